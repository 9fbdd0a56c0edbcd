"""A Dask session whose workers run in separate jobs, by dask-jobqueue.

Its scheduler lives in this process or in a job: ``python -m espo_luigi.jobs.dask.jobqueue ORDER`` holds the scheduler,
submits the workers, and ends when its client closes the session or is gone.

This module adds to dask-jobqueue: the options and limits of all jobs, TLS between nodes, and replacement of lost
workers. No worker outlives its session, which cancels all jobs of its name at its end.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from distributed import Client
from distributed.core import Status
from distributed.deploy.spec import ProcessInterface

from espo_luigi.errors import JobError, SubmissionError
from espo_luigi.files import write_atomically
from espo_luigi.jobs.dask import WORKER_FOLDER, WorkerJobs, prologue
from espo_luigi.jobs.dask.session import Failing, prepared, read_security
from espo_luigi.jobs.order import extra_folders, write_json
from espo_luigi.jobs.resources import JobOptions, Resources
from espo_luigi.jobs.retry import Minutely, growing_pauses
from espo_luigi.jobs.schedulers import SCHEDULERS
from espo_luigi.jobs.schedulers.base import Refusal
from espo_luigi.jobs.schedulers.commands import Commands
from espo_luigi.jobs.schedulers.script import owner_of, workers_name

logger = logging.getLogger(__name__)

# First and longest pause between looks at the worker jobs: a lost worker is replaced soon, while jobs that pend for
# days cost the scheduler a query a minute.
_LOOKS_SECONDS = 5.0, 60.0
# First and longest pause after a refused submission: a limit of the site may last for hours.
_HOLDS_SECONDS = 5.0, 300.0
# How long such a job may be missing from the scheduler's list before a different job is submitted for it.
SETTLE_SECONDS = 60.0
# A busy scheduler may miss one cancellation; worker jobs end by themselves, if late.
_CANCEL_TRIES = 3
# So many jobs that end before any worker begins point to a fault that further jobs would share.
_MOST_FALSE_STARTS = 5
# The client looks for the scheduler's address five times a second; it comes late only if its file system shows new
# files late.
_FIRST_CLIENT_SECONDS = 600.0
# A client that loses its connection returns within seconds, or never.
_NO_CLIENT_SECONDS = 60.0
# How often a waiting client asks the scheduler of the cluster whether the job still waits or runs.
_LOOK_SECONDS = 5.0


@dataclass
class Session:
    """The worker jobs of the job called `owner`, and the fate of their submissions."""

    workers: WorkerJobs
    owner: str
    commands: Commands
    # Whether the owner's job ends with the session, too.
    with_owner: bool = False
    over: threading.Event = field(default_factory=threading.Event)
    failing: Failing = field(default_factory=Failing)
    refused: str = ""
    hold_until: float = 0.0
    hold_words: str = ""
    pauses: Iterator[float] = field(default_factory=lambda: growing_pauses(*_HOLDS_SECONDS))
    # People and sites rename jobs.
    ids: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def submit(self, script: Path, name: str) -> str:
        """Submit the job called `name`, as fast as the site allows; return its id, empty if that is not known yet.

        dask-jobqueue would take the first number of a site's banner, and cancel the job of that id.
        """
        # One at a time: a site that refuses a job need not refuse thousands.
        with self.lock:
            if self.over.is_set():
                raise RuntimeError("the session is over")
            now = self.commands.clock.now()
            if now < self.hold_until:
                raise RuntimeError(self.hold_words)
            scheduler = self.commands.scheduler
            answer = self.commands.submit(scheduler.submit_command(self.workers.values(self.owner, name), script))
            if not answer.ok:
                if scheduler.refusal(answer.words) is Refusal.PERMANENT:
                    self.refused = answer.words
                self.hold_until, self.hold_words = now + next(self.pauses), answer.words
                raise RuntimeError(answer.words)
            self.pauses, self.refused = growing_pauses(*_HOLDS_SECONDS), ""
            job_id = self.commands.id_of(answer, name) or ""
            if not job_id:
                logger.warning("%s was accepted, its id is not known yet: %s", name, answer.words)
            self.ids |= {job_id} - {""}
            return job_id

    def alive(self) -> dict[str, str] | None:
        """Return the names of this session's jobs that wait or run, by ids; None if the scheduler does not answer."""
        rows = self.commands.jobs()
        if rows is None:
            return None
        return {
            row.job_id: row.name
            for row in rows
            if not row.ended
            and (row.job_id in self.ids or owner_of(row.name) == self.owner)
            and (self.with_owner or row.name != self.owner)
        }

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
    workers, scheduler = session.workers, session.commands.scheduler
    base: Any = _import_dask_jobqueue().core.Job
    trouble = Minutely()

    class WorkerJob(base):
        config_name = workers.scheduler

        def __init__(self, address: str, name: str | None = None, **keywords: Any) -> None:
            # Workers find keys and certificates in their settings: dask-jobqueue passes paths through a shell.
            keywords |= {"security": None, "job_script_prologue": prologue(workers, session.owner, address)}
            super().__init__(address, name, **keywords)
            self.own_name, self.settled = workers_name(session.owner), 0.0
            self.job_header = "\n".join(scheduler.header(workers.values(session.owner, self.own_name)))

        async def start(self) -> None:
            try:
                await super().start()
            except (RuntimeError, ValueError) as error:
                # Its place stays empty until a later submission succeeds.
                if not session.over.is_set():
                    trouble.warn("a worker's job was not submitted, trying again: %s", error)
                self.job_id, self.settled = "", 0.0
                await ProcessInterface.start(self)

        async def _submit_job(self, script_filename: str) -> str:
            job_id = await asyncio.to_thread(session.submit, Path(script_filename), self.own_name)
            self.settled = session.commands.clock.now() + SETTLE_SECONDS
            return job_id

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
    job = _job_class(session)("tls://SCHEDULER:PORT", "NAME", protocol="tls://", **_job_keywords(workers))
    return str(job.job_script())


@contextmanager
def jobqueue_session(
    workers: WorkerJobs, owner: str, settings: Mapping[str, Any] | None = None, *, dashboard: bool = False
) -> Iterator[Client]:
    """Start a scheduler in this process and the worker jobs of `owner`; at any end, cancel these jobs.

    Raises JobError if the cluster refuses such jobs for good, or if they end again and again before they begin to work.
    """
    session = Session(workers, owner, Commands(SCHEDULERS[workers.scheduler]))
    folder, environment = Path(workers.session_folder(owner)), workers.values(owner, owner).environment_file
    # After a restart of this job, workers of its first start may still look for the scheduler that is gone.
    session.cancel()
    Path(SCHEDULERS[workers.scheduler].log_path(workers.log_pattern, "0")).parent.mkdir(parents=True, exist_ok=True)
    try:
        with prepared(folder, session.failing, settings, dashboard=dashboard) as security:
            session.commands.write_environment(Path(environment))
            with (
                _cluster(session, security, dashboard) as cluster,
                Client(cluster) as client,
                _Keeper(session, cluster).at_work(),
            ):
                client.forward_logging("espo_luigi", logging.INFO)
                yield client
    finally:
        session.over.set()
        session.cancel()


def _cluster(session: Session, security: Any, dashboard: bool) -> Any:
    idle = session.workers.idle_timeout
    return _import_dask_jobqueue().JobQueueCluster(
        job_cls=_job_class(session),
        name=f"{session.owner}.{os.getpid()}",
        security=security,
        protocol="tls://",
        silence_logs=False,
        scheduler_options={"dashboard": dashboard, "dashboard_address": "127.0.0.1:0", "idle_timeout": idle},
        **_job_keywords(session.workers),
    )


class _Keeper:
    """Watches a session's jobs, because Dask does not notice a job that ends before its worker joins."""

    def __init__(self, session: Session, cluster: Any) -> None:
        self._session = session
        self._cluster = cluster
        self._begun: set[str] = set()
        self._false_starts = 0
        self._trouble = Minutely()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Submit the worker jobs and replace lost jobs; cancel all before Dask ends."""
        session, workers = self._session, self._session.workers
        thread = threading.Thread(target=self._run, name="worker-jobs", daemon=True)
        try:
            if workers.maximum_jobs:
                self._cluster.adapt(minimum_jobs=workers.minimum_jobs, maximum_jobs=workers.maximum_jobs)
            else:
                self._cluster.scale(jobs=workers.jobs)
            thread.start()
            yield
        finally:
            session.over.set()
            session.cancel()
            # Dask would cancel each job by a separate command, and wait until each has handed its results on.
            self._cluster.sync(self._forget, list(self._cluster.workers))

    def _run(self) -> None:
        pauses = growing_pauses(*_LOOKS_SECONDS)
        while not self._session.over.wait(next(pauses)):
            try:
                if not self._look():
                    pauses = growing_pauses(*_LOOKS_SECONDS)
            except Exception:  # the next look may do better
                logger.exception("cannot look at this session's worker jobs")

    def _look(self) -> bool:
        """Look at the jobs; return whether the scheduler was asked and nothing had changed."""
        session, workers, cluster = self._session, self._session.workers, self._cluster
        if cluster.scheduler.status.name in ("closing", "closed"):
            logger.warning("nothing to do for %s: the session has ended", workers.idle_timeout)
            session.over.set()
            session.cancel()
            # At the session's end, Dask would wait for the closed scheduler to answer.
            cluster.shutdown_scheduler = False
            return False
        connected = {str(worker.name) for worker in list(cluster.scheduler.workers.values())}
        places = dict(cluster.workers)
        if workers.processes > 1:  # a job called 7 has workers called 7-0, 7-1, …
            connected = {name.rpartition("-")[0] for name in connected}
        self._begun |= connected
        if not places.keys() - connected:
            return False
        # Jobs that are submitted meanwhile would be missing from the answer.
        with session.lock:
            alive = session.alive()
            if alive is None:
                return True
            gone = self._gone(places, alive)
        if gone:
            ended = {name for name in gone if places[name].job_id}
            self._false_starts = 0 if connected else self._false_starts + len(ended - self._begun)
            self._replace(gone, alive)
        return not gone

    def _gone(self, places: Mapping[str, Any], alive: Mapping[str, str]) -> list[str]:
        """Return the places whose jobs have ended or were refused; give late ids to jobs taken without any."""
        now, ids = self._session.commands.clock.now(), {name: job_id for job_id, name in alive.items()}
        for job in places.values():
            if job.job_id == "" and job.own_name in ids:
                job.job_id = ids[job.own_name]
                self._session.ids.add(job.job_id)
        ended = {place: job for place, job in places.items() if job.job_id is not None and job.job_id not in alive}
        return [place for place, job in ended.items() if job.job_id or now >= job.settled]

    def _replace(self, gone: list[str], alive: Mapping[str, str]) -> None:
        session, workers = self._session, self._session.workers
        if session.refused and not alive:
            why = f"{session.commands.scheduler.NAME} refuses the worker jobs: {session.refused}"
            session.failing.fail(JobError(why))
        elif self._false_starts >= _MOST_FALSE_STARTS + 2 * workers.most_jobs:
            why = f"{self._false_starts} worker jobs ended one after the other before they began to work"
            session.failing.fail(JobError(f"{why}: their logs ({workers.log_pattern}) say why"))
        else:
            self._trouble.warn("%d worker job(s) ended or could not be submitted: submitting others", len(gone))
            # The same number as before, since the user of the cluster may have scaled it.
            n = len(self._cluster.worker_spec)
            self._cluster.sync(self._forget, gone)
            if self._cluster._adaptive is None:
                self._cluster.scale(jobs=n)

    async def _forget(self, names: list[str]) -> None:
        """Remove jobs that have ended from Dask's tables."""
        for name in names:
            self._cluster.worker_spec.pop(name, None)
            job = self._cluster.workers.pop(name, None)
            if job is not None:
                job.status = Status.closed


@contextmanager
def remote_session(workers: WorkerJobs, owner: str, resources: Resources, options: JobOptions) -> Iterator[Client]:
    """Submit the scheduler's job, wait until it runs, and connect to it; at the end cancel it and its workers.

    Raises SubmissionError if the cluster refuses the job; JobError if the job ends before its scheduler has an address.
    """
    session = Session(workers, owner, Commands(SCHEDULERS[workers.scheduler]), with_owner=True)
    folder = Path(workers.folder)
    order = folder / f"{owner}.json"
    write_json(order, {"owner": owner, "workers": asdict(workers), "folders": extra_folders()})
    try:
        job_id = _submit(session, order, resources, options)
        address = _address(session, job_id, folder / owner / "scheduler.json")
        with Client(address, security=read_security(folder / owner)) as client:
            yield client
    finally:
        session.cancel()
        for path in folder.glob(f"{owner}.*"):
            path.unlink(missing_ok=True)


def _submit(session: Session, order: Path, resources: Resources, options: JobOptions) -> str:
    """Submit the scheduler's job; return its id, empty if that is not known yet."""
    workers, scheduler = session.workers, session.commands.scheduler
    values = replace(
        workers.values(session.owner, session.owner),
        argv=(options.python or sys.executable, "-P", "-m", "espo_luigi.jobs.dask.jobqueue", str(order)),
        cpus_per_task=resources.cpus_per_task,
        memory_bytes=resources.memory_bytes,
        time_minutes=resources.time_minutes,
        claim_file=str(order.with_suffix(".claim")),
        options=options,
        environment_file=str(order.with_suffix(".environment")),
    )
    script = order.with_suffix(".sh")
    write_atomically(script, scheduler.render(values))
    session.commands.write_environment(Path(values.environment_file))
    Path(scheduler.log_path(values.log_pattern, "0")).parent.mkdir(parents=True, exist_ok=True)
    answer = session.commands.submit(scheduler.submit_command(values, script))
    if not answer.ok:
        raise SubmissionError(f"{scheduler.NAME} did not take the job of Dask's scheduler: {answer.words}")
    return session.commands.id_of(answer, values.name) or ""


def _address(session: Session, job_id: str, file: Path) -> str:
    """Wait for the scheduler's address as long as its job waits or runs; its id may be empty until it is listed."""
    looked = time.monotonic()
    settled = looked + SETTLE_SECONDS
    while True:
        with suppress(FileNotFoundError):
            return str(json.loads(file.read_text(encoding="utf-8"))["address"])
        if time.monotonic() - looked > _LOOK_SECONDS:
            alive, looked = session.alive(), time.monotonic()
            job_id = job_id or next((own for own, name in (alive or {}).items() if name == session.owner), "")
            if alive is not None and job_id not in alive and (job_id or looked >= settled):
                log = session.commands.scheduler.log_path(session.workers.log_pattern, job_id)
                raise JobError(
                    f"the job of Dask's scheduler ({job_id or 'id unknown'}) has ended: its log says why: {log}"
                )
        time.sleep(0.2)


def serve(order: Path) -> None:
    """Run the scheduler in this job until its client is gone."""
    values = json.loads(order.read_text(encoding="utf-8"))
    workers, owner = WorkerJobs(**values["workers"]), str(values["owner"])
    # The scheduler unpickles its client's functions, and so imports their modules.
    sys.path.extend(folder for folder in values["folders"] if folder not in sys.path)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with jobqueue_session(workers, owner) as client:
        scheduler: Any = client.cluster.scheduler
        write_json(Path(workers.folder) / owner / "scheduler.json", {"address": scheduler.address})
        until = time.monotonic() + _FIRST_CLIENT_SECONDS
        while time.monotonic() < until and scheduler.status.name == "running":
            if set(scheduler.clients) - {client.id, "fire-and-forget"}:
                until = time.monotonic() + _NO_CLIENT_SECONDS
            time.sleep(1)
        logger.info("no client any more, or nothing to do: the session has ended")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    serve(Path(sys.argv[1]))
