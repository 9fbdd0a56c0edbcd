"""A Dask session whose workers run in separate jobs, by dask-jobqueue; its scheduler lives in this process.

This module adds to dask-jobqueue: the options and limits of all jobs, TLS between nodes, and replacement of lost
workers. No worker outlives its session, which cancels all jobs of its name at its end.
"""

from __future__ import annotations

import asyncio
import logging
import operator
import os
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espo_luigi.jobs.dask.jobs import WORKER_FOLDER, WorkerJobs, environment_file, prologue, settings_file, workers_name
from espo_luigi.jobs.dask.session import Failing, prepared
from espo_luigi.jobs.retry import Minutely, growing_pauses
from espo_luigi.jobs.schedulers import SCHEDULERS
from espo_luigi.jobs.schedulers.base import Refusal
from espo_luigi.jobs.schedulers.commands import ID_LOOKS_SECONDS, Answer, Commands

if TYPE_CHECKING:
    from distributed import Client

logger = logging.getLogger(__name__)

# First and longest pause between looks at the worker jobs: a lost worker is replaced soon, while jobs that pend for
# days cost the scheduler a query a minute.
_LOOKS_SECONDS = 5.0, 60.0
# First and longest pause after a refused submission: a limit of the site may last for hours.
_HOLDS_SECONDS = 5.0, 300.0
# How long such a job may be missing from the scheduler's list before a different job is submitted for it.
_SETTLE_SECONDS = 60.0
# A busy scheduler may miss one cancellation; worker jobs end by themselves, if late.
_CANCEL_TRIES = 3
# dask-jobqueue's classes of jobs, each with its module.
_CLASSES = {"slurm": "slurm.SLURMJob", "sge": "sge.SGEJob"}
# Stands for the scheduler's address in the script of a job that is only shown.
_ADDRESS = "tls://SCHEDULER:PORT"
# So many jobs that end before any worker begins point to a fault that further jobs would share.
_MOST_FALSE_STARTS = 5


@dataclass
class Session:
    """A session's name and commands, and the fate of its submissions; `others` are names of its further jobs."""

    workers: WorkerJobs
    owner: str
    commands: Commands
    others: tuple[str, ...] = ()
    over: threading.Event = field(default_factory=threading.Event)
    refused: str = ""
    refusal: str = ""
    hold_until: float = 0.0
    pauses: Iterator[float] = field(default_factory=lambda: growing_pauses(*_HOLDS_SECONDS))
    failing: Failing = field(default_factory=Failing)
    ids: set[str] = field(default_factory=set)
    unsettled_until: float = 0.0
    # Of two jobs submitted at once, it would be unknown which of two new ids is whose.
    lock: threading.Lock = field(default_factory=threading.Lock)

    def submit(self, script: Path) -> str:
        """Submit a worker's job, as fast as the site allows; return the job's id, or nothing as `id_of`."""
        with self.lock:
            return self._submit(script)

    def _submit(self, script: Path) -> str:
        if self.over.is_set():
            raise RuntimeError("the session is over")
        if self.commands.clock.now() < self.hold_until:
            raise RuntimeError(self.refusal)
        answer = self.commands.submit(self.commands.scheduler.submit_command(self.workers.values(self.owner), script))
        if answer.ok:
            self.pauses, self.refused = growing_pauses(*_HOLDS_SECONDS), ""
            return self.id_of(answer)
        if self.commands.scheduler.refusal(answer.words) is Refusal.PERMANENT:
            self.refused = answer.words
        self._hold(answer.words)
        raise RuntimeError(answer.words)

    def id_of(self, answer: Answer) -> str:
        """Return the id of a job that was just taken; empty if neither the answer nor the scheduler's list tells it.

        dask-jobqueue would take the first number of a site's banner, and cancel the job of that id.
        """
        job_id = self.commands.scheduler.submitted_id(answer.stdout)
        if job_id is not None:
            self.ids.add(job_id)
            return job_id
        for pause in ID_LOOKS_SECONDS:
            self.commands.clock.sleep(pause)
            if job_id := self.unassigned(self.alive()):
                return job_id
        self.unsettled_until = self.commands.clock.now() + _SETTLE_SECONDS
        logger.warning("a job of %s was accepted, its id is not known yet: %s", self.owner, answer.words)
        return ""

    def unassigned(self, alive: set[str] | None) -> str:
        """Take an id, of those `alive`, that no job of this session has yet; empty if there is none."""
        job_id = min((alive or set()) - self.ids, default="")
        self.ids |= {job_id} - {""}
        return job_id

    def _hold(self, words: str) -> None:
        """Submit nothing for a while, twice as long each time, so that the site need not refuse thousands of jobs."""
        now = self.commands.clock.now()
        if now >= self.hold_until:
            self.hold_until, self.refusal = now + next(self.pauses), words

    def alive(self) -> set[str] | None:
        """Return the ids of this session's jobs that wait or run, or None if the scheduler does not answer."""
        rows = self.commands.jobs()
        if rows is None:
            return None
        names = (workers_name(self.owner), *self.others)
        # People and sites rename jobs.
        ours = (row for row in rows if row.name in names or row.job_id in self.ids)
        return {row.job_id for row in ours if not row.phase.ended}

    def cancel(self) -> None:
        """Cancel all jobs of this session and of its earlier starts; repeat it for jobs that a command missed."""
        for _ in range(_CANCEL_TRIES):
            alive = self.alive()
            if alive is not None and (not alive or self.commands.cancel(alive)):
                return
        logger.warning("%s did not answer: its jobs %s end by themselves", self.commands.scheduler.NAME, self.owner)


def _import_dask_jobqueue() -> Any:
    """Import dask-jobqueue but keep this process's handlers of Ctrl-C and SIGTERM, which it replaces."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    import dask_jobqueue

    for number, handler in before.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)
    return dask_jobqueue


def _job_class(session: Session) -> Any:
    """Return dask-jobqueue's job class, with the options and commands of this package."""
    from distributed.deploy.spec import ProcessInterface

    workers, scheduler = session.workers, session.commands.scheduler
    base: Any = operator.attrgetter(_CLASSES[workers.scheduler])(_import_dask_jobqueue())
    trouble = Minutely()

    class WorkerJob(base):
        def __init__(self, address: str, name: str | None = None, **keywords: Any) -> None:
            # Workers find keys and certificates in their settings: dask-jobqueue passes paths through a shell.
            keywords |= {"security": None, "job_script_prologue": prologue(workers, session.owner, address)}
            super().__init__(address, name, **keywords)
            self.job_header = "\n".join(scheduler.header(workers.values(session.owner)))

        async def start(self) -> None:
            try:
                await super().start()
            except (RuntimeError, ValueError) as error:
                # Its place stays empty until a later submission succeeds.
                if not session.over.is_set():
                    trouble.warn("a worker's job was not submitted, trying again: %s", error)
                self.job_id = ""
                await ProcessInterface.start(self)

        async def _submit_job(self, script_filename: str) -> str:
            return await asyncio.to_thread(session.submit, Path(script_filename))

        def _job_id_from_submit_output(self, out: str) -> str:
            return out

        @classmethod
        async def _close_job(cls, job_id: str | None, cancel_command: str) -> None:
            if job_id and not session.over.is_set():
                await asyncio.to_thread(session.commands.cancel, [job_id])

    return WorkerJob


def _job_keywords(workers: WorkerJobs) -> dict[str, Any]:
    return {
        "cores": workers.cores,
        "processes": workers.processes,
        "memory": f"{workers.dask_memory_bytes}B",
        "python": f"{shlex.quote(workers.job_options.python or sys.executable)} -P",
        "death_timeout": workers.death_timeout,
        "local_directory": f'"${WORKER_FOLDER}"',
        # Only the scheduler may connect to a worker.
        "worker_extra_args": ["--no-dashboard", "--dashboard-address", "127.0.0.1:0"],
        "interface": shlex.quote(workers.interface) if workers.interface else None,
    }


def job_script(workers: WorkerJobs, owner: str) -> str:
    """Return the script of a worker's job, with a placeholder for the scheduler's address."""
    session = Session(workers, owner, Commands(SCHEDULERS[workers.scheduler]))
    job = _job_class(session)(_ADDRESS, "NAME", protocol="tls://", **_job_keywords(workers))
    return str(job.job_script())


@contextmanager
def jobqueue_session(
    workers: WorkerJobs, owner: str, settings: Mapping[str, Any] | None = None, *, dashboard: bool = False
) -> Iterator[Client]:
    """Start a scheduler in this process and the worker jobs of `owner`; at any end, cancel these jobs.

    Raises
    ------
    JobError
        If the cluster refuses such jobs for good, or if they end again and again before they begin to work.
    """
    from distributed import Client

    session = Session(workers, owner, Commands(SCHEDULERS[workers.scheduler]))
    folder = Path(settings_file(workers, owner)).parent
    # After a restart of this job, workers of its first start may still look for the scheduler that is gone.
    session.cancel()
    Path(SCHEDULERS[workers.scheduler].log_path(workers.log_pattern, "0")).parent.mkdir(parents=True, exist_ok=True)
    try:
        with prepared(folder, session.failing, settings, dashboard=dashboard) as security:
            session.commands.hand_on(Path(environment_file(workers, owner)))
            with (
                _cluster(session, security, dashboard) as cluster,
                Client(cluster) as client,
                _kept_up(session, cluster),
            ):
                client.forward_logging("espo_luigi", logging.INFO)
                yield client
    finally:
        session.over.set()
        session.cancel()


def _cluster(session: Session, security: Any, dashboard: bool) -> Any:
    workers = session.workers
    scheduler = {"dashboard": dashboard, "dashboard_address": "127.0.0.1:0", "idle_timeout": workers.idle_timeout}
    return _import_dask_jobqueue().JobQueueCluster(
        job_cls=_job_class(session),
        name=f"{session.owner}.{os.getpid()}",
        security=security,
        protocol="tls://",
        silence_logs=False,
        scheduler_options={name: value for name, value in scheduler.items() if value != ""},
        **_job_keywords(workers),
    )


@contextmanager
def _kept_up(session: Session, cluster: Any) -> Iterator[None]:
    """Submit the worker jobs and replace lost jobs; cancel all before Dask ends."""
    keeper = _Keeper(session, cluster)
    thread = threading.Thread(target=keeper.run, name="worker-jobs", daemon=True)
    try:
        keeper.ask_for_jobs()
        thread.start()
        yield
    finally:
        session.over.set()
        session.cancel()
        # Dask would cancel each job by a separate command, and wait until each has handed its results on.
        cluster.sync(keeper.forget, list(cluster.workers))


class _Keeper:
    """Watches a session's jobs, because Dask does not notice a job that ends before its worker joins."""

    def __init__(self, session: Session, cluster: Any) -> None:
        self._session = session
        self._cluster = cluster
        self._begun: set[str] = set()
        self._false_starts = 0
        self._trouble = Minutely()

    def ask_for_jobs(self) -> None:
        """Make Dask submit the jobs that the session asks for."""
        workers = self._session.workers
        if workers.maximum_jobs:
            self._cluster.adapt(minimum_jobs=workers.minimum_jobs, maximum_jobs=workers.maximum_jobs)
        else:
            self._cluster.scale(jobs=workers.jobs)

    def run(self) -> None:
        """Watch the jobs until the session is over."""
        pauses = growing_pauses(*_LOOKS_SECONDS)
        while not self._session.over.wait(next(pauses)):
            try:
                asked_in_vain = self._look()
            except Exception:  # the next look may do better
                logger.exception("cannot look at this session's worker jobs")
                asked_in_vain = True
            if not asked_in_vain:
                pauses = growing_pauses(*_LOOKS_SECONDS)

    def _look(self) -> bool:
        """Look at the jobs; return whether the scheduler was asked and nothing had changed."""
        if self._cluster.scheduler.status.name in ("closing", "closed"):
            logger.warning("nothing to do for %s: the session has ended", self._session.workers.idle_timeout)
            self._session.over.set()
            self._session.cancel()
            # At the session's end, Dask would wait for the closed scheduler to answer.
            self._cluster.shutdown_scheduler = False
            return False
        connected, places = self._connected(), dict(self._cluster.workers)
        self._begun |= connected
        if not places.keys() - connected:
            return False
        # Jobs that are submitted meanwhile would be missing from the answer.
        with self._session.lock:
            alive = self._session.alive()
            if alive is None:
                return True
            gone = self._gone(places, alive)
        if gone:
            self._count_false_starts({name for name in gone if places[name].job_id}, bool(connected))
            self._replace(gone, alive)
        return not gone

    def _gone(self, places: Mapping[str, Any], alive: set[str]) -> list[str]:
        """Return the names of the jobs that have ended or were refused; give late ids to jobs taken without any."""
        for job in places.values():
            if job.job_id == "":
                job.job_id = self._session.unassigned(alive)
        settled = self._session.commands.clock.now() >= self._session.unsettled_until
        ended = {name for name, job in places.items() if job.job_id is not None and job.job_id not in alive}
        return [name for name in ended if places[name].job_id or settled]

    def _connected(self) -> set[str]:
        """Return the names of the jobs that have a worker."""
        names = {str(worker.name) for worker in list(self._cluster.scheduler.workers.values())}
        return names if self._session.workers.processes == 1 else {name.rpartition("-")[0] for name in names}

    def _count_false_starts(self, gone: set[str], some_work: bool) -> None:
        self._false_starts = 0 if some_work else self._false_starts + len(gone - self._begun)

    def _replace(self, gone: list[str], alive: set[str]) -> None:
        workers = self._session.workers
        if self._session.refused and not alive:
            self._session.failing.fail(
                f"{self._session.commands.scheduler.NAME} refuses the worker jobs: {self._session.refused}"
            )
        elif self._false_starts >= _MOST_FALSE_STARTS + 2 * workers.most_jobs:
            self._session.failing.fail(
                f"{self._false_starts} worker jobs ended one after the other before they began to work: their logs "
                f"({workers.log_pattern}) say why"
            )
        else:
            self._trouble.warn("%d worker job(s) ended or could not be submitted: submitting others", len(gone))
            # The same number as before, since the user of the cluster may have scaled it.
            n = len(self._cluster.worker_spec)
            self._cluster.sync(self.forget, gone)
            if self._cluster._adaptive is None:
                self._cluster.scale(jobs=n)

    async def forget(self, names: list[str]) -> None:
        """Remove jobs that have ended from Dask's tables."""
        from distributed.core import Status

        for name in names:
            self._cluster.worker_spec.pop(name, None)
            job = self._cluster.workers.pop(name, None)
            if job is not None:
                job.status = Status.closed
