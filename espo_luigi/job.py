"""A job of a `SlurmTask`: ``python -m espo_luigi.job ORDER``.

``--serve MODULE…`` forks a job for each order that arrives on standard input, ``--pilot LISTING MODULE…`` a job for
each order of a listing.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Callable, Coroutine, Generator, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from espo_luigi.driver.settings.espo import settings
from espo_luigi.driver.task import SlurmTask, import_task_module, rebuild_task
from espo_luigi.driver.task_classes import no_steps
from espo_luigi.errors import ConfigurationChangedError, SubmissionError
from espo_luigi.files import drop_foreign_backend, ensure_numba_cache
from espo_luigi.jobs.node.heartbeat import Monitor
from espo_luigi.jobs.node.run import allocated, run_order, signs_of_life
from espo_luigi.jobs.order import JobOrder
from espo_luigi.jobs.resources import Resources
from espo_luigi.jobs.schedulers.script import ATTEMPT_VARIABLE, NAME_VARIABLE
from espo_luigi.machine import end_with, limit_thread_pools

logger = logging.getLogger("espo_luigi.job")

# When the garbage collector runs, as Python starts with it.
_COLLECTING = gc.get_threshold()


def main(arguments: list[str] | None = None) -> int:
    """Run the job of an order, serve the local engine, or run a bundle's listing; return the exit code."""
    logging.getLogger("pint").setLevel(logging.ERROR)  # xclim redefines units, each with a warning
    if fault := ensure_numba_cache():
        logger.warning(fault)
    drop_foreign_backend()
    first, *others = arguments if arguments is not None else sys.argv[1:]
    if first not in ("--serve", "--pilot"):
        return run_order(Path(first), work)
    run = partial(run_order, work=work)
    # A job of its own needs neither module.
    if first == "--serve":
        from espo_luigi.jobs.forkserver import serve

        serve(run, lambda: _import(others))
        return 0
    from espo_luigi.jobs.bundles.pilot import run_members

    listing, *modules = others
    limit_thread_pools(os.environ)
    _import(modules)
    return run_members(Path(listing), run)


def _import(modules: Iterable[str]) -> None:
    for name in modules:
        import_task_module(name)


def work(order: JobOrder, monitor: Monitor) -> None:
    """Rebuild the task, start its Dask session, and call its `work`."""
    task = rebuild_task(order)
    check_configuration(task, order)
    resources = allocated(order.resources, order.family)
    monitor.memory_bytes = resources.memory_bytes
    monitor.workers_elsewhere = order.cluster != ""
    with task.publishing() as monitor.blocks, _session(task, order, resources) as client, signs_of_life(order, monitor):
        if client is not None:
            from espo_luigi.jobs.dask.session import fail_on_exit

            fail_on_exit(client)
        monitor.scheduler = getattr(getattr(client, "cluster", None), "scheduler", None)
        link = getattr(client, "dashboard_link", None) if settings().dashboard else None
        monitor.dashboard_port = urlsplit(link or "").port or 0
        # All imports live as long as the job. Frozen, they cost the garbage collector no time, which tens of thousands
        # of dates start often, and a forked job no copies.
        gc.freeze()
        gc.set_threshold(*_COLLECTING)
        _wait_for_workers(order, client)
        logger.info("%s starts", task.label())
        with task.guarded():
            _call_work(task)
        monitor.made = task.work_made()
        monitor.done.set()
        logger.info("%s is done", task.label())


def _wait_for_workers(order: JobOrder, client: Any) -> None:
    if not order.workers:
        return
    from espo_luigi.jobs.dask import WorkerJobs

    if awaited := WorkerJobs(**order.workers).workers_to_wait_for:
        client.wait_for_workers(awaited)


def _call_work(task: SlurmTask) -> None:
    """Call the task's `work`; raises `SubmissionError` if that returns steps to take, in place of taking them."""
    job = os.getpid()
    # Luigi gives them to a task in its own processes; in a job, where no such process listens, they are logged.
    for name in ("set_status_message", "set_progress_percentage", "set_tracking_url", "decrease_running_resources"):
        if getattr(task, name, None) is None:
            setattr(task, name, partial(logger.info, f"{task.get_task_family()}.{name}: %s"))
    work: Callable[[], object] = task.work
    # A fork that `work` made must not close the job's Dask session or write its result.
    try:
        returned = work()
    except BaseException as error:
        if os.getpid() != job:
            end_with(partial(_end_fork, error))
        raise
    if os.getpid() != job:
        end_with(_end_fork)
    if isinstance(returned, (Generator, Coroutine)):
        raise SubmissionError(no_steps(task.get_task_family()))


def _end_fork(error: BaseException | None = None) -> int:
    """End a fork that `work` made: it must not close the job's Dask session or write its result."""
    if error is not None:
        raise error
    return 0


def _session(task: SlurmTask, order: JobOrder, resources: Resources) -> AbstractContextManager[Any]:
    """Return the Dask session of a job, with its workers in the places that the order names."""
    if not task.uses_dask:
        return nullcontext()
    if order.workers:
        from espo_luigi.jobs.dask import WorkerJobs
        from espo_luigi.jobs.dask.jobqueue import jobqueue_session

        # When a retry gave the job more memory, its workers get more as well.
        workers = WorkerJobs(**order.workers).grown(resources.memory_bytes / order.resources.memory_bytes)
        return jobqueue_session(
            workers, os.environ[NAME_VARIABLE], task.dask_settings(), dashboard=settings().dashboard
        )
    # A job that failed for its memory is tried again with workers, which spill to disk.
    is_first = os.environ.get(ATTEMPT_VARIABLE, "1") == "1"
    if is_first and not (order.cluster or settings().dashboard) and task.is_small(resources):
        from espo_luigi.jobs.dask.settings import threaded_session

        return threaded_session(resources, task.dask_settings())
    from espo_luigi.jobs.dask.session import allocation_session, dask_session

    if order.cluster == "allocation":
        folder = order.files.workdir / "dask" / os.environ[NAME_VARIABLE]
        return allocation_session(resources, folder, task.dask_settings(), dashboard=settings().dashboard)
    return dask_session(resources, task.dask_settings(), task.dask_client(), dashboard=settings().dashboard)


def check_configuration(task: SlurmTask, order: JobOrder) -> None:
    """Raise `ConfigurationChangedError` if the configuration has changed since the job's order."""
    found = task.configuration_id()
    if found != order.configuration:
        raise ConfigurationChangedError(
            f"{task.label()} was ordered under configuration {order.configuration or '(none)'}, and its job finds "
            f"{found or '(none)'}: the files were edited since. Nothing was done. To go on under the new one, give the "
            "command again (what is complete is kept: delete what the change concerns, or for ESPO-G's rules add "
            "--espo-rerun stale); else put the files back first"
        )


if __name__ == "__main__":
    # Without the garbage collector, a job starts in less time. `gc.disable` would last: what Dask decorates with its
    # `disable_gc` puts back the state in which it was imported.
    gc.set_threshold(0)
    end_with(main)
