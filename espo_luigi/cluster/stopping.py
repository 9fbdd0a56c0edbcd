"""Ending a run from inside or outside its driver: cancelling recorded jobs, and asking a driver to stop."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from espo_luigi.cluster.commands import SlurmCommands
from espo_luigi.cluster.handles import Failure
from espo_luigi.cluster.lock import DriverLock
from espo_luigi.cluster.policy import EXPLANATION, Cause
from espo_luigi.cluster.records import FINISHED, SUBMITTED, SUBMITTING, Record, RecordStore, write_atomically
from espo_luigi.errors import EspoError, SubmissionError

logger = logging.getLogger(__name__)

CANCEL = "cancel"
DETACH = "detach"


def cancel_records(store: RecordStore, commands: SlurmCommands, records: Iterable[Record]) -> int | None:
    """Cancel the jobs of these records, and no others; return how many, or None if Slurm did not answer."""
    out = {record.name: record for record in records if record.state in (SUBMITTING, SUBMITTED)}
    rows = commands.squeue() if out else []
    if rows is None:
        return None
    # By id and name: an id that Slurm has given to somebody else's job meanwhile is left alone.
    alive = [row.job_id for row in rows if row.name in out and not row.phase.ended]
    if alive and not commands.scancel(alive):
        return None
    for record in out.values():
        store.close(record.name)
        store.save(replace(record, state=FINISHED, outcome=Cause.DRIVER_CANCELLED.value))
    return len(alive)


def cancel_run(store: RecordStore, commands: SlurmCommands, newer: Iterable[Record]) -> int:
    """Cancel the jobs of all records of this run, of which a driver knows some `newer` than on disk; return how many.

    The records also hold the jobs of earlier drivers, which this one may not have come to yet.
    """
    records: dict[str, Record] = {}
    try:
        for record in store.all():
            records[record.task] = record
    except (EspoError, OSError) as error:
        logger.error("not all records can be read, their jobs are not cancelled: %s", error)
    cancelled = cancel_records(store, commands, {**records, **{record.task: record for record in newer}}.values())
    if cancelled is None:
        logger.error("Slurm did not take the cancellation: the next driver, or `espo cancel`, finds the jobs")
        return 0
    logger.warning("cancelled %d job(s) of this run", cancelled)
    return cancelled


def stopped(how: str, attempts: int, title: str) -> Failure:
    """What becomes of a request that is under way when its driver is asked to stop."""
    cause = Cause.DRIVER_CANCELLED if how == CANCEL else Cause.DETACHED
    return Failure(cause, attempts, f"{title}: {EXPLANATION[cause]}")


def request_stop(state_dir: Path, how: str) -> bool:
    """Ask the driver that works in `state_dir` to `CANCEL` or `DETACH`; False when none does."""
    if how not in (CANCEL, DETACH):
        raise SubmissionError(f"a driver can be asked to {CANCEL!r} or {DETACH!r}, not to {how!r}")
    if DriverLock(state_dir).holder() is None:
        return False
    write_atomically(state_dir / "control", how)
    return True


def take_control(state_dir: Path) -> str | None:
    """What the driver of `state_dir` is asked to do, once: `CANCEL`, `DETACH` or None."""
    control = state_dir / "control"
    try:
        asked = control.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return None
    control.unlink(missing_ok=True)
    return asked if asked in (CANCEL, DETACH) else None
