"""Ending a run from inside or outside its driver: cancelling recorded jobs, and asking a driver to stop."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from espo_luigi.errors import EspoError, SubmissionError
from espo_luigi.jobs.lifecycle.handles import Failure
from espo_luigi.jobs.lifecycle.policy import EXPLANATION, Cause
from espo_luigi.jobs.lifecycle.records import FINISHED, SUBMITTED, SUBMITTING, Record, RecordStore, write_atomically
from espo_luigi.jobs.lock import DriverLock
from espo_luigi.jobs.schedulers.commands import Commands
from espo_luigi.jobs.schedulers.script import owner_name
from espo_luigi.jobs.trouble import Minutely, persistently

logger = logging.getLogger(__name__)

CANCEL = "cancel"
DETACH = "detach"
# What a manager does by itself that cannot go on: jobs stay, as after `DETACH`, but the run has failed.
BREAK = "break"
_CONTROL = "control"
_CANCEL_TRIES = 3
# Seconds in which a file system that fails is asked again for what was cancelled to be written down.
_WRITE_PATIENCE = 30.0


def cancel_records(store: RecordStore, commands: Commands, records: Iterable[Record]) -> int | None:
    """Cancel the jobs of these records, and no others; return how many, or None if the scheduler did not answer."""
    out = [record for record in records if record.state in (SUBMITTING, SUBMITTED)]
    by_job: dict[str, list[Record]] = {}
    for record in out:
        by_job.setdefault(record.job_name, []).append(record)
    cancelled = _cancel_by_name(store, commands, by_job) if out else 0
    if cancelled is None:
        return None
    _write_down(store, out)
    return cancelled


def _write_down(store: RecordStore, cancelled: Iterable[Record]) -> None:
    until, warn, left = time.monotonic() + _WRITE_PATIENCE, Minutely().warn, []
    for record in cancelled:
        try:
            persistently(partial(_finish, store, record), until - time.monotonic(), warn=warn)
        except OSError as error:
            left.append(f"{record.name} ({error})")
    if left:
        logger.error(
            "%d cancelled job(s) cannot be written down, such as %s: the next run may say that somebody cancelled "
            "them; then give its command once more",
            len(left),
            left[0],
        )


def _finish(store: RecordStore, record: Record) -> None:
    store.close(record.name)
    store.save(replace(record, state=FINISHED, outcome=Cause.DRIVER_CANCELLED.value))


def _cancel_by_name(store: RecordStore, commands: Commands, records: Mapping[str, list[Record]]) -> int | None:
    """Cancel the jobs of these names, each with its records; return how many, or None if the scheduler did not answer.

    A command that did not end may have cancelled some of them: those that are left are cancelled anew.
    """
    cancelled: set[str] = set()
    for _ in range(_CANCEL_TRIES):
        rows = commands.jobs()
        if rows is None:
            return None
        # Found by id and name: an id may be that of somebody else's job by now.
        owned = {row.job_id: owner_name(row.name) or row.name for row in rows if not row.phase.ended}
        alive = {job_id: name for job_id, name in owned.items() if name in records}
        # On disk first: if this driver is killed from here on, the next one finds who has cancelled these jobs.
        for record in (record for name in set(alive.values()) for record in records[name]):
            _save(store, replace(record, ending=Cause.DRIVER_CANCELLED.value))
        cancelled.update(alive)
        if not alive or commands.cancel(alive):
            return len(cancelled)
    return None


def _save(store: RecordStore, record: Record) -> None:
    try:
        store.save(record)
    except OSError as error:
        logger.warning("%s is cancelled although that cannot be written down: %s", record.name, error)


def cancel_run(store: RecordStore, commands: Commands, newer: Iterable[Record]) -> int:
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
        name = commands.scheduler.NAME
        logger.error("%s did not take the cancellation: the next driver, or `espo cancel`, finds the jobs", name)
        return 0
    logger.warning("cancelled %d job(s) of this run", cancelled)
    return cancelled


def stopped(how: str, attempts: int, label: str) -> Failure:
    """What becomes of a request that is under way when its driver is asked to stop."""
    cause = {CANCEL: Cause.DRIVER_CANCELLED, DETACH: Cause.DETACHED}.get(how, Cause.INTERNAL)
    return Failure(cause, attempts, f"{label}: {EXPLANATION[cause]}")


def request_stop(state_dir: Path, how: str, timeout: float = 10.0) -> bool:
    """Ask the driver that works in `state_dir` to `CANCEL` or `DETACH`, and see it take the request; False without one.

    Raises SubmissionError if a driver that may be alive does not take the request within `timeout` seconds.
    """
    if how not in (CANCEL, DETACH):
        raise SubmissionError(f"a driver can be asked to {CANCEL!r} or {DETACH!r}, not to {how!r}")
    lock, control = DriverLock(state_dir), state_dir / _CONTROL
    if lock.holder() is None:
        return False
    write_atomically(control, how)
    until = time.monotonic() + timeout
    while _is_there(control):
        if time.monotonic() >= until:
            holder = lock.holder()
            if holder is None:
                # It ended meanwhile: the next one is not to be stopped.
                control.unlink(missing_ok=True)
                return False
            raise SubmissionError(
                f"the driver of {state_dir} (process {holder.get('pid')} on {holder.get('host')}) has not taken the "
                f"request to {how} in {timeout:.0f} s: if it lives, it does once it has time; if it is dead, remove "
                f"{lock.path} and repeat this"
            )
        time.sleep(0.1)
    return True


def take_control(state_dir: Path) -> str | None:
    """What the driver of `state_dir` is asked to do, once: `CANCEL`, `DETACH` or None."""
    # A listing makes a network file system look again, where asking for one file may get a remembered "no".
    if _CONTROL not in os.listdir(state_dir):
        return None
    asked = (state_dir / _CONTROL).read_text(encoding="utf-8").strip()
    with contextlib.suppress(OSError):
        (state_dir / _CONTROL).unlink()
    return asked if asked in (CANCEL, DETACH) else None


def _is_there(path: Path) -> bool:
    try:
        # Opened, as a network file system may remember for a minute that a file exists.
        path.open("rb").close()
    except OSError as error:
        return error.errno not in (errno.ENOENT, errno.ESTALE)
    return True
