"""The insides of Luigi and sciluigi that the package uses: private names, with signatures, or "" where it is a value.

`test_private_names.py` checks each in the installed Luigi; setup.cfg allows the minor versions that pass. Names that
are not private, but that the package replaces or overrides, are listed too.
"""

from __future__ import annotations

from collections.abc import Mapping

# By class (or module), the attributes; of values, instances have them.
PRIVATE_NAMES: Mapping[str, Mapping[str, str]] = {
    "luigi.interface": {
        "_WorkerSchedulerFactory": "()",
        "_run": (
            "(cmdline_args=None, main_task_cls=None, worker_scheduler_factory=None, use_dynamic_argparse=None, "
            "local_scheduler=False, detailed_summary=False)"
        ),
    },
    "luigi.interface._WorkerSchedulerFactory": {
        "create_local_scheduler": "(self)",
        "create_remote_scheduler": "(self, url)",
        "create_worker": "(self, scheduler, worker_processes, assistant=False)",
    },
    "luigi.configuration.LuigiConfigParser": {"_config_paths": ""},
    "luigi.parameter": {"_no_value": ""},
    "luigi.parameter.Parameter": {
        "_default": "",
        "_parser_kwargs": "(param_name, task_name=None)",
        "_value_iterator": "(self, task_name, param_name)",
    },
    "luigi.parameter.ChoiceParameter": {"_choices": ""},
    "luigi.rpc": {"_urljoin": "(base, url)"},
    "luigi.rpc.RemoteScheduler": {
        "_fetch": "(self, url_suffix, body)",
        "_url": "",
        "_fetcher": "",
        "_connect_timeout": "",
        "_rpc_retry_attempts": "",
        "_rpc_retry_wait": "",
    },
    "luigi.scheduler.Scheduler": {
        "_config": "",
        "_state": "",
        "_paused": "",
        "_update_worker": "(self, worker_id, worker_reference=None, get_work=False)",
        "_update_priority": "(self, task, prio, worker)",
        "_prune_workers": "(self)",
        "_prune_tasks": "(self)",
        "_schedulable": "(self, task)",
    },
    "luigi.scheduler.SimpleTaskState": {
        "_metrics_collector": "",
        "set_status": "(self, task, new_status, config=None)",
        "get_active_tasks_by_status": "(self, *statuses)",
    },
    "luigi.task.Task": {
        "get_params": "()",
        "get_param_values": "(params, args, kwargs)",
        "_get_param_visibilities": "(self)",
    },
    "luigi.worker": {"_get_retry_policy_dict": "(task)"},
    "luigi.worker.TaskProcess": {
        "_handle_run_exception": "(self, ex)",
        "_run_get_new_deps": "(self)",
        "result_queue": "",
    },
    "luigi.worker.TaskStatusReporter": {
        "update_tracking_url": "(self, tracking_url)",
        "_scheduler": "",
        "_worker_id": "",
    },
    "luigi.worker.Worker": {
        "_add": "(self, task, is_complete)",
        "_add_task": "(self, *args, **kwargs)",
        "_get_work": "(self)",
        "_get_work_task_id": "(self, get_work_response)",
        "_generate_worker_id": "(self, worker_info)",
        "_create_task_process": "(self, task)",
        "_add_task_history": "",
        "_assistant": "",
        "_batch_families_sent": "",
        "_config": "",
        "_get_work_response_history": "",
        "_id": "",
        "_running_tasks": "",
        "_scheduled_tasks": "",
        "_scheduler": "",
        "_task_result_queue": "",
        "_worker_info": "",
    },
    "sciluigi.dependencies.DependencyHelpers": {"_add_upstream_tasks": "(self, tasks, new_tasks)"},
}
