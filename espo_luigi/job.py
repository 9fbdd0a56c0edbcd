"""A job of a `SlurmTask`: ``python -m espo_luigi.job ORDER``; with ``--serve MODULE…`` one is forked for each."""

from __future__ import annotations

import gc
import importlib
import logging
import sys
from contextlib import nullcontext
from pathlib import Path

from luigi.configuration import get_config
from luigi.task_register import Register

from espo_luigi.driver.settings import settings
from espo_luigi.driver.task import SlurmTask
from espo_luigi.errors import ConfigurationChangedError
from espo_luigi.jobs.claim import check_claim
from espo_luigi.jobs.forkserver import serve
from espo_luigi.jobs.heartbeat import Monitor
from espo_luigi.jobs.node import allocated, run_order, signs_of_life
from espo_luigi.jobs.order import JobOrder
from espo_luigi.jobs.session import dask_session
from espo_luigi.store.publish import publishing_after

logger = logging.getLogger("espo_luigi.job")


def main(arguments: list[str] | None = None) -> int:
    """Run the job whose order is the one argument, or serve; return the exit code."""
    first, *modules = arguments if arguments is not None else sys.argv[1:]
    if first != "--serve":
        return run_order(Path(first), work)
    for name in modules:
        importlib.import_module(name)
    serve(lambda order: run_order(order, work))
    return 0


def work(order: JobOrder, monitor: Monitor) -> None:
    """Rebuild the task, start its Dask session, and call its `work`."""
    task = rebuild_task(order)
    check_configuration(task, order)
    # What was imported lives as long as the job: the garbage collector, which tens of thousands of dates set off, need
    # not go through it, and a forked job need not copy it.
    gc.freeze()
    resources = allocated(order.resources, order.family)
    session = (
        dask_session(resources, task.dask_settings(), task.dask_client(), dashboard=settings().dashboard)
        if task.uses_dask
        else nullcontext()
    )
    with session as client, signs_of_life(order, monitor), publishing_after(check_claim):
        monitor.scheduler = getattr(getattr(client, "cluster", None), "scheduler", None)
        logger.info("%s starts", task.label())
        with task.guarded():
            task.work()
        monitor.made = task.work_made()
        monitor.done.set()
        logger.info("%s is done", task.label())


def rebuild_task(order: JobOrder) -> SlurmTask:
    """Return the task that `order` describes, under the luigi configuration that it had in the driver."""
    configuration = get_config()
    for section, options in order.settings.items():
        for option, value in options.items():
            configuration.set(section, option.replace("-", "_"), value.replace("%", "%%"))
    importlib.import_module(order.module)
    return Register.get_task_cls(order.family).from_str_params({**order.parameters, **order.resources.as_text()})


def check_configuration(task: SlurmTask, order: JobOrder) -> None:
    """Raise `ConfigurationChangedError` unless the job finds the configuration under which it was ordered."""
    found = task.configuration_id()
    if found != order.configuration:
        raise ConfigurationChangedError(
            f"{task.label()} was ordered under configuration {order.configuration or '(none)'}, and its job finds "
            f"{found or '(none)'}: the files were edited since. Nothing was done. To go on under the new one, give the "
            "command again (what is complete stays: delete what the change concerns); else put the files back first"
        )


if __name__ == "__main__":
    sys.exit(main())
