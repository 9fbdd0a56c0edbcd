"""The engine of a cluster: each job submitted to a scheduler, and one thread that watches them all."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

from espo_luigi.errors import JobError, JobInputError, LeftError, StoppedError, SubmissionError
from espo_luigi.files import read_object
from espo_luigi.jobs.causes import Cause
from espo_luigi.jobs.dask import WorkerJobs
from espo_luigi.jobs.lifecycle.manager import JobManager
from espo_luigi.jobs.lifecycle.records import RecordStore
from espo_luigi.jobs.lifecycle.state import Success
from espo_luigi.jobs.lifecycle.submit import Submitter, bundling_of
from espo_luigi.jobs.lock import HeldLocks
from espo_luigi.jobs.order import JobOrder, done
from espo_luigi.jobs.resources import ARRAY, GIB, MIB, STEPS, Resources, mib
from espo_luigi.jobs.retry import Minutely, persistently
from espo_luigi.jobs.schedulers.base import Scheduler
from espo_luigi.jobs.schedulers.commands import Commands
from espo_luigi.jobs.schedulers.script import task_name
from espo_luigi.jobs.settings import BatchSettings

logger = logging.getLogger(__name__)

# A job without progress writes its stack before the driver cancels it; heartbeats are at most a quarter of that apart.
_STACK_AFTER = 0.75
_ERRORS: Mapping[str, type[JobError]] = {
    Cause.INPUT: JobInputError,
    Cause.DRIVER_CANCELLED: StoppedError,
    Cause.DETACHED: LeftError,
}


class BatchEngine:
    """An `Engine` that brings jobs to their end by a `JobManager`, for as long as it holds the driver's `locks`."""

    def __init__(self, scheduler: Scheduler, settings: BatchSettings, locks: HeldLocks | None = None) -> None:
        self._settings = settings
        self._manager = JobManager(Commands(scheduler, settings), locks)
        self._manager.start()
        # The first to stop takes it, and says so. Nobody may wait for it: the thread that is waited for may itself find
        # out that this driver has to stop.
        self._first_stop = threading.Lock()
        self._ending = threading.Event()
        self._trouble = Minutely()

    def check(self, orders: Iterable[JobOrder]) -> None:
        """Raise `SubmissionError` for a job that its site refuses, or whose values cannot be passed on safely."""
        for order in orders:
            if order.workers:
                WorkerJobs(**order.workers).check(order.label)
            fitting = fitted(order, self._settings)
            if refusals := _refusals(fitting, self._settings):
                raise SubmissionError(f"{order.label}: {'; '.join(refusals)}")
            self._manager.submitter.check("check", fitting)

    def fitted(self, order: JobOrder) -> JobOrder:
        """Return the order, which asks for no more than the cluster's nodes have."""
        return replace(
            fitted(order, self._settings),
            beat_seconds=self._settings.beat_seconds,
            stack_after_seconds=_STACK_AFTER * (self._settings.stall_timeout_seconds or 0.0),
        )

    def run(self, order: JobOrder) -> Mapping[str, Any]:
        """Submit the (fitted) job, or adopt an earlier driver's, wait for it, and return its result.

        Raises
        ------
        JobError
            If the job does not succeed; it carries the `Failure`.
        """
        persistently(lambda: self._write(order), math.inf, self._pause, self._trouble.warn)
        outcome = self._manager.submit(order).wait()
        if isinstance(outcome, Success):
            order.on_progress(done(outcome.result))
            return outcome.result
        assert outcome is not None  # as there was no time-out
        raise _ERRORS.get(outcome.cause, JobError)(outcome)

    def _write(self, order: JobOrder) -> None:
        store = self._manager.store
        record = store.load(task_name(self._settings.run, order.family, order.wildcards, store.salt))
        # The job of an earlier driver has read, or will read, the order that is there.
        theirs = read_object(order.files.order) if record is not None and record.is_out else None
        if theirs is None:
            order.write()
        elif (configuration := str(theirs.get("configuration", ""))) != order.configuration:
            logger.warning(
                "%s: its job is out already, ordered under another configuration (%s, now %s). If it has begun, "
                "it goes on, and what it makes is used like what is there already; if not, it will do nothing, and is "
                "submitted anew. `espo cancel`, and the same command again, has it made under the new one",
                order.label,
                configuration or "none",
                order.configuration or "none",
            )

    def _pause(self, seconds: float) -> None:
        if self._ending.wait(seconds):
            raise StoppedError("not submitted, the run is stopping")

    def cancel(self, order_id: str) -> None:
        self._manager.cancel(order_id)

    def stop(self) -> None:
        self._ending.set()
        if self._first_stop.acquire(blocking=False):
            logger.warning("Stopping: %d job(s) cancelled", self._manager.cancel_all())

    def detach(self) -> None:
        self._ending.set()
        first = self._first_stop.acquire(blocking=False)
        self._manager.detach()
        if first:
            logger.warning("Detached: the jobs go on; the next run on %s takes them over", self._settings.workdir)

    def close(self) -> None:
        """End the watching; nothing is cancelled."""
        self._ending.set()
        self._manager.detach()


def fitted(order: JobOrder, settings: BatchSettings) -> JobOrder:
    """Return the order, which asks for no more than the cluster's nodes have."""
    asked = order.resources
    cpus, memory = settings.node_cpus or asked.cpus_per_task, settings.node_memory_bytes or asked.memory_bytes
    fitting = replace(order, resources=asked.fitted(cpus, memory))
    if order.workers:
        workers = WorkerJobs(**order.workers).fitted(settings.node_cpus, settings.node_memory_bytes)
        fitting = replace(fitting, workers=asdict(workers))
    return fitting


def _refusals(order: JobOrder, settings: BatchSettings) -> list[str]:
    """Return the violations of the site's rules by a fitted order: alone, or in a bundle of as many as may be."""
    site, asked, bundling = settings.site, order.resources, bundling_of(order, settings)
    alone = site.refusals(asked, order.options, settings.max_jobs)
    alone += WorkerJobs(**order.workers).refusals(site) if order.workers else []
    if alone or bundling.most < 2 or bundling.kind == ARRAY:
        return alone
    amounts = {"memory": mib(asked.memory_bytes) * MIB, "cpus": asked.cpus_per_task}
    amounts = {name: bundling.width * amount for name, amount in amounts.items()}
    if bundling.kind == STEPS:
        amounts["steps"] = -(-bundling.most // bundling.per_step)
    return [f"pack = {bundling.most}, {bundling.width} at once: {one}" for one in site.exceeded(**amounts)]


def room_of(order: JobOrder, settings: BatchSettings) -> tuple[Resources, list[str], int]:
    """Return an order's resources on the cluster's nodes, its violations of the site's rules, and its room.

    The room is how many of the order's kind run at once in one job of the scheduler.
    """
    order = fitted(order, settings)
    return order.resources, _refusals(order, settings), bundling_of(order, settings).width


def preview(order: JobOrder, scheduler: Scheduler, settings: BatchSettings) -> str:
    """Return the script that the first submission would be, and the Dask cluster that its job will start."""
    order = fitted(order, settings)
    submitter = Submitter(Commands(scheduler, settings), RecordStore(settings.state_dir))
    name, most = task_name(settings.run, order.family, order.wildcards), bundling_of(order, settings).most
    refused = "".join(f"# Would be refused: {one}\n" for one in _refusals(order, settings))
    resources = order.resources
    layout = (
        f"# Dask in the job: {resources.n_workers} worker(s) x {resources.threads_per_worker} thread(s), "
        f"{resources.worker_memory_bytes / GIB:.1f} GiB each of {resources.memory_bytes / GIB:.1f} GiB"
        f"{', on each of its nodes' if order.cluster == 'allocation' else ''}\n"
    )
    if order.workers:
        # Importing Dask takes half a second.
        from espo_luigi.jobs.dask.jobqueue import job_script

        workers = WorkerJobs(**order.workers)
        script = job_script(workers, submitter.first_record(name, order, None).name)
        layout = f"# Dask's workers: {workers.said} as follows\n\n{script}"
    return submitter.preview(name, order, most if most > 1 else 0) + layout + refused
