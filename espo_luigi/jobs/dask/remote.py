"""A Dask session whose scheduler runs in a separate job: ``python -m espo_luigi.jobs.dask.remote ORDER``.

That job holds the scheduler and submits the workers. It ends when its client closes the session or is gone.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from distributed import Client

from espo_luigi.errors import JobError, SubmissionError
from espo_luigi.files import write_atomically
from espo_luigi.jobs.dask import WorkerJobs
from espo_luigi.jobs.dask.jobqueue import SETTLE_SECONDS, Session, jobqueue_session
from espo_luigi.jobs.dask.session import read_security
from espo_luigi.jobs.order import extra_folders, write_json
from espo_luigi.jobs.resources import JobOptions, Resources
from espo_luigi.jobs.schedulers import SCHEDULERS
from espo_luigi.jobs.schedulers.commands import Commands

logger = logging.getLogger(__name__)

# The client looks for the scheduler's address five times a second; it comes late only if its file system shows new
# files late.
_FIRST_CLIENT_SECONDS = 600.0
# A client that loses its connection returns within seconds, or never.
_NO_CLIENT_SECONDS = 60.0
# How often a waiting client asks the scheduler of the cluster whether the job still waits or runs.
_LOOK_SECONDS = 5.0


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
        argv=(options.python or sys.executable, "-P", "-m", "espo_luigi.jobs.dask.remote", str(order)),
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
