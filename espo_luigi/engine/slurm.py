"""The Slurm engine: each task's job submitted by `sbatch`, and one thread that watches them all."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import luigi
import yaml

from espo_luigi.cluster.commands import CommandSettings, SlurmCommands
from espo_luigi.cluster.flights import Patience
from espo_luigi.cluster.handles import JobRequest, Progress, Success
from espo_luigi.cluster.jobs import JobManager
from espo_luigi.cluster.policy import Cause
from espo_luigi.cluster.records import SUBMITTED, SUBMITTING, RecordStore
from espo_luigi.cluster.resources import GIB, Resources, parse_memory, parse_time
from espo_luigi.cluster.slurm import SlurmOptions, render_script, task_name
from espo_luigi.cluster.stopping import DETACH, cancel_records, request_stop
from espo_luigi.cluster.submitter import JobSettings, Submitter
from espo_luigi.engine.jobfile import job_files, last_lines, seconds_of, write_order
from espo_luigi.engine.settings import Settings, settings, state_dir
from espo_luigi.engine.task import SLURM_NAMES, SlurmTask
from espo_luigi.errors import ConfigurationError, JobError, JobInputError, SubmissionError

logger = logging.getLogger(__name__)


class slurm(Settings):
    """How jobs go to Slurm, from luigi.cfg's ``[slurm]`` section or the command line (``--slurm-partition long``)."""

    profile = luigi.Parameter(default="", description="YAML file with this cluster's values of the options below")
    partition = luigi.Parameter(default="")
    account = luigi.Parameter(default="")
    constraint = luigi.Parameter(default="")
    qos = luigi.Parameter(default="")
    nodelist = luigi.Parameter(default="")
    gres = luigi.Parameter(default="")
    licenses = luigi.Parameter(default="")
    extra: Any = luigi.DictParameter(default={}, description='further directives, {"reservation": "maintenance"}')
    setup = luigi.Parameter(default="", description="bash lines before the work: module load …, source …/activate")
    environment: Any = luigi.DictParameter(default={}, description="variables of the job's environment")
    scratch = luigi.Parameter(default="$SLURM_TMPDIR", description="fast folder on the node")
    node_cpus = luigi.IntParameter(
        default=0, description="most CPUs of a job, where nodes are small; 0: as the rule says"
    )
    node_memory = luigi.Parameter(
        default="", description="most memory of a job, such as 180GB; empty: as the rule says"
    )
    retries = luigi.IntParameter(default=2, description="further attempts after memory, time or a stall")
    memory_cap = luigi.Parameter(default="", description="most memory of a retry, such as 500GB; empty: no limit")
    time_cap = luigi.Parameter(default="", description="longest time of a retry, such as 2-00:00:00; empty: no limit")
    stall_timeout = luigi.IntParameter(default=1800, description="seconds without heartbeat after which a job hangs")
    max_jobs = luigi.IntParameter(default=500, description="jobs in flight at once")
    max_submit_per_second = luigi.FloatParameter(default=10.0)
    max_status_per_second = luigi.FloatParameter(default=1.0)
    poll_seconds = luigi.FloatParameter(default=10.0, description="between two looks at squeue")
    result_seconds = luigi.FloatParameter(default=1.0, description="between two looks at the result files")
    latency_wait = luigi.FloatParameter(default=60.0, description="seconds in which files become visible everywhere")
    absent_after = luigi.FloatParameter(default=300.0, description="seconds after which an unknown job is lost")
    log_dir = luigi.Parameter(default="slurm_logs", description="folder of the jobs' logs")


_OPTION_NAMES = {field.name for field in fields(SlurmOptions)}


def options_of(task: SlurmTask) -> SlurmOptions:
    """Return the Slurm options of a task: defaults, the cluster's profile, the rule, luigi.cfg and the command line."""
    configured = slurm()
    general = {name: getattr(configured, name) for name in _OPTION_NAMES if hasattr(configured, name)}
    own = {name: getattr(task, name) for name in SLURM_NAMES}
    chosen: dict[str, Any] = {}
    for layer in (read_profile(configured.profile), task.slurm_default, general, own):
        chosen |= {name: value for name, value in layer.items() if value}
    return SlurmOptions(**chosen)


def read_profile(path: str) -> dict[str, Any]:
    """Return the options of a cluster's profile.

    Raises
    ------
    ConfigurationError
        If the file cannot be read or names an option that does not exist.
    """
    if not path:
        return {}
    try:
        profile = yaml.safe_load(Path(path).expanduser().read_text()) or {}
    except (OSError, yaml.YAMLError) as error:
        raise ConfigurationError(f"[slurm] profile = {path}: {error}") from error
    unknown = set(profile) - _OPTION_NAMES
    if unknown:
        raise ConfigurationError(
            f"[slurm] profile = {path}: unknown {', '.join(sorted(unknown))}; "
            f"expected some of: {', '.join(sorted(_OPTION_NAMES))}"
        )
    return profile


def allocation_of(task: SlurmTask) -> Resources:
    """Return the resources of a task's job: what its rule says, no more than the cluster's nodes have."""
    chosen, asked = slurm(), task.allocation
    memory = parse_memory(chosen.node_memory) if chosen.node_memory else asked.memory_bytes
    return asked.fitted(chosen.node_cpus or asked.cpus_per_task, memory)


def request_of(task: SlurmTask) -> JobRequest:
    """Return what `task` asks of Slurm."""
    chosen, files, resources = slurm(), job_files(task), allocation_of(task)
    return JobRequest(
        run=Path(settings().workdir).absolute().name,
        rule=task.get_task_family(),
        wildcards=task.wildcards,
        argv=(sys.executable, "-m", "espo_luigi.job", str(files.order)),
        job_file=files.order,
        result_file=files.result,
        heartbeat_file=files.heartbeat,
        cpus_per_task=resources.cpus_per_task,
        memory_bytes=resources.memory_bytes,
        time_minutes=resources.time_minutes,
        options=options_of(task),
        retries=chosen.retries,
        memory_cap_bytes=parse_memory(chosen.memory_cap) if chosen.memory_cap else None,
        time_cap_minutes=parse_time(chosen.time_cap) if chosen.time_cap else None,
        stall_timeout_seconds=chosen.stall_timeout or None,
        is_complete=task.complete,
    )


def job_settings() -> JobSettings:
    """Return how the job manager works."""
    chosen = slurm()
    return JobSettings(
        workdir=Path.cwd(),
        log_dir=Path(chosen.log_dir).absolute(),
        max_jobs=chosen.max_jobs,
        poll_seconds=chosen.poll_seconds,
        result_seconds=chosen.result_seconds,
        patience=Patience(latency_wait=chosen.latency_wait, absent_after=chosen.absent_after),
    )


def commands() -> SlurmCommands:
    """Return what runs Slurm's commands."""
    chosen = slurm()
    return SlurmCommands(
        CommandSettings(
            max_status_per_second=chosen.max_status_per_second, max_submit_per_second=chosen.max_submit_per_second
        )
    )


def preview(task: SlurmTask) -> str:
    """Return the script that the first submission of `task` would be, and the Dask cluster that its job will start."""
    task.check()
    request, resources = request_of(task), allocation_of(task)
    submitter = Submitter(job_settings(), commands(), RecordStore(state_dir()))
    name = task_name(request.run, request.rule, request.wildcards)
    layout = (
        f"# Dask in the job: {resources.n_workers} worker(s) x {resources.threads_per_worker} thread(s), "
        f"{resources.worker_memory_bytes / GIB:.1f} GiB each of {resources.memory_bytes / GIB:.1f} GiB\n"
    )
    return render_script(submitter.script_values(request, submitter.plan(name, request, None))) + layout


def stop_from_outside(how: str) -> str:
    """Cancel or detach the run of ``[espo] workdir`` from another terminal; return what was done, in words."""
    if request_stop(state_dir(), how):
        return f"asked the driver of {state_dir()} to {how}"
    if how == DETACH:
        return f"no driver works in {state_dir()}: its jobs, if any, go on by themselves"
    store = RecordStore(state_dir())
    cancelled = cancel_records(store, commands(), store.all())
    if cancelled is None:
        raise SubmissionError("Slurm did not answer: nothing was cancelled; try again later")
    return f"{cancelled} job(s) cancelled"


class SlurmEngine:
    """Has one `JobManager` bring every task's job to its end."""

    def __init__(self) -> None:
        self._manager = JobManager(job_settings(), commands(), state_dir())
        self._manager.start()
        self._guard = threading.Lock()
        self._stopped = False

    def check(self, tasks: Sequence[SlurmTask]) -> None:
        """Raise `SubmissionError` for a value that cannot be passed to Slurm safely."""
        # Wildcards only reach file names, where they are cleaned: what matters is the same for most tasks of a rule.
        different = {
            (task.get_task_family(), *(str(getattr(task, name)) for name in SLURM_NAMES)): task for task in tasks
        }
        submitter = Submitter(job_settings(), commands(), self._manager.store)
        for task in different.values():
            submitter.check("check", request_of(task))

    def run(self, task: SlurmTask) -> float:
        """Submit the job of `task`, or adopt an earlier driver's, wait for it, and return the seconds that it took.

        Raises
        ------
        JobError
            If the job does not succeed, with the cause, the number of attempts and the path of its log.
        """
        request = request_of(task)
        if not (self._is_out(request) and request.job_file.exists()):
            write_order(task, allocation_of(task))
        handle = self._manager.submit(request, on_progress=lambda progress: _show(task, progress))
        outcome = handle.wait()
        if isinstance(outcome, Success):
            return seconds_of(outcome.result)
        assert outcome is not None  # without a time-out, there is one
        kind = JobInputError if outcome.cause is Cause.INPUT else JobError
        raise kind(outcome.message + last_lines(outcome.tail))

    def _is_out(self, request: JobRequest) -> bool:
        """Whether an earlier driver has submitted this: its job has read, or will read, the order that is there."""
        store = self._manager.store
        record = store.load(task_name(request.run, request.rule, request.wildcards, store.salt))
        return record is not None and record.state in (SUBMITTING, SUBMITTED)

    def stop(self, task: SlurmTask) -> None:
        """Cancel all jobs of this run, once, whichever task asks first."""
        with self._guard:
            if not self._stopped:
                self._stopped = True
                logger.warning("Stopping: %d job(s) cancelled", self._manager.cancel_all())

    def detach(self) -> None:
        """Leave the jobs to the next driver."""
        with self._guard:
            self._stopped = True
            self._manager.detach()
            logger.warning("Detached: the jobs go on; the next run on %s takes them over", settings().workdir)

    def close(self) -> None:
        """End the watching; nothing is cancelled."""
        self._manager.close()


def _show(task: SlurmTask, progress: Progress) -> None:
    if task.set_status_message:
        beat = progress.heartbeat
        place = f"job {progress.job_id} on {progress.node}" if progress.node else f"job {progress.job_id or '-'}"
        task.set_status_message(f"{progress.state}, {place}, attempt {progress.attempt}\n{beat.get('message', '')}")
        if "percent" in beat:
            task.set_progress_percentage(int(beat["percent"]))
