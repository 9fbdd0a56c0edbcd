"""Stopping a run, from its own driver or from outside, and cancelling exactly its jobs."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from espo_luigi.errors import SubmissionError
from espo_luigi.files import write_atomically
from espo_luigi.jobs.causes import Cause
from espo_luigi.jobs.lifecycle.records import Record, RecordStore
from espo_luigi.jobs.lock import DriverLock
from espo_luigi.jobs.order import JobState
from espo_luigi.jobs.retry import Minutely, persistently
from espo_luigi.jobs.schedulers.base import Row
from espo_luigi.jobs.schedulers.commands import Commands
from espo_luigi.jobs.schedulers.script import owner_of

logger = logging.getLogger(__name__)

CANCEL = "cancel"
DETACH = "detach"
# A manager that cannot go on leaves its jobs, as after `DETACH`, but the run has failed.
BREAK = "break"
_CONTROL = "control"
_CANCEL_TRIES = 3
# The end of the name of any run's submission, or of its bundle.
_SUBMISSION = re.compile(r"\.[0-9a-f]{12}\.\d+$|\.bundle-[0-9a-f]{12}")


class OwnJobs:
    """The ids and names of this run's jobs: people and sites rename jobs, and ids are given anew."""

    def __init__(self, store: RecordStore) -> None:
        self._store = store
        self._names: dict[str, str] = {}
        self._claims: dict[str, set[str]] = {}
        self._proven: set[str] = set()

    def add(self, record: Record, *, submitted_here: bool = False) -> None:
        """Take in a record; the id of a job that this driver submitted needs no further proof."""
        if record.job_id:
            self._names[record.job_id] = record.job_name
            self._claims.setdefault(record.job_id, set()).add(record.name)
            if submitted_here:
                self._proven.add(record.job_id)

    def renamed_back(self, rows: Sequence[Row]) -> list[Row]:
        """Rows in which this run's jobs have their own names again.

        A row keeps its name if that name is a submission's (another run may have the id by now), or if our job is
        listed under its own name. It also keeps its name without a proof that the job is ours: this driver submitted
        it or saw it under its own name, the new name holds the old, or the job has claimed its work.
        """
        listed = {row.name for row in rows}
        self._proven.update(row.job_id for row in rows if self._names.get(row.job_id) == row.name)

        def is_renamed(row: Row) -> bool:
            name = self._names.get(row.job_id, row.name)
            if name in listed:
                return False
            if name in row.name or _SUBMISSION.search(row.name):
                return name in row.name
            claims = self._claims[row.job_id] if row.job_id not in self._proven else ()
            if any(self._store.claim_owner(claim) == row.job_id for claim in claims):
                self._proven.add(row.job_id)
            return row.job_id in self._proven

        return [replace(row, name=self._names[row.job_id]) if is_renamed(row) else row for row in rows]


def cancel_jobs(
    store: RecordStore, commands: Commands, newer: Iterable[Record] = (), own: OwnJobs | None = None
) -> int | None:
    """Cancel exactly the jobs of this run's records; return how many, or None if the scheduler did not answer.

    `newer` records replace those on disk, which include jobs of earlier drivers that this one may not have taken over.
    `own` has what the caller knows of its jobs already.
    """
    records: dict[str, Record] = {}
    try:
        for record in store.all():
            records[record.task] = record
    except OSError as error:
        logger.error("not all records can be read, their jobs are not cancelled: %s", error)
    records |= {record.task: record for record in newer}
    by_job: dict[str, list[Record]] = {}
    for record in records.values():
        if record.is_out:
            by_job.setdefault(record.job_name, []).append(record)
    cancelled = _cancel_by_name(store, commands, by_job, own or OwnJobs(store)) if by_job else 0
    if cancelled is not None:
        _write_down(store, itertools.chain(*by_job.values()), commands.settings.patience.writing_down)
    return cancelled


def _write_down(store: RecordStore, cancelled: Iterable[Record], seconds: float) -> None:
    def finish(record: Record) -> None:
        store.close(record.name)
        store.save(replace(record, state=JobState.FAILED, cause=Cause.DRIVER_CANCELLED))

    until, warn, left = time.monotonic() + seconds, Minutely().warn, []
    for record in cancelled:
        try:
            persistently(partial(finish, record), until - time.monotonic(), warn=warn)
        except OSError as error:
            left.append(f"{record.name} ({error})")
    if left:
        said = f"{len(left)} cancelled job(s) cannot be written down, such as {left[0]}"
        logger.error("%s: the next run may say that somebody cancelled them; then give its command once more", said)


def _cancel_by_name(
    store: RecordStore, commands: Commands, records: Mapping[str, list[Record]], own: OwnJobs
) -> int | None:
    """Cancel the jobs of these names, each with its records; return how many, or None if the scheduler is silent.

    A command that did not end may have cancelled some of them: the rest is cancelled again.
    """
    cancelled: set[str] = set()
    for record in itertools.chain(*records.values()):
        own.add(record)
    for _ in range(_CANCEL_TRIES):
        rows = commands.jobs(record.job_id for record in itertools.chain(*records.values()) if record.job_id)
        if rows is None:
            return None
        # By name, or by id with a proof: the id may be that of any other job of this user by now.
        rows = own.renamed_back(rows)
        owned = {row.job_id: owner_of(row.name) for row in rows if not row.ended}
        alive = {job_id: name for job_id, name in owned.items() if name in records}
        # On disk first: if this driver is killed now, the next driver finds out who cancelled these jobs.
        for record in itertools.chain(*(records[name] for name in set(alive.values()))):
            try:
                store.save(replace(record, ending=Cause.DRIVER_CANCELLED))
            except OSError as error:
                logger.warning("%s is cancelled although that cannot be written down: %s", record.name, error)
        cancelled.update(alive)
        if not alive or commands.cancel(alive):
            return len(cancelled)
    return None


def request_stop(state_dir: Path, how: str, timeout: float = 10.0) -> bool:
    """Ask the driver that works in `state_dir` to `CANCEL` or `DETACH`, and see it take the request; False without one.

    Raises SubmissionError if a driver that may be alive does not take the request within `timeout` seconds.
    """
    lock, control = DriverLock(state_dir), state_dir / _CONTROL
    if lock.holder() is None:
        return False
    write_atomically(control, how)
    until = time.monotonic() + timeout
    while _is_asked(state_dir):
        if time.monotonic() >= until:
            holder = lock.holder()
            if holder is None:
                # It ended meanwhile, and the next driver must not be stopped.
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
    """Take the request to the driver of `state_dir`, if there is any: `CANCEL`, `DETACH` or None."""
    if not _is_asked(state_dir):
        return None
    asked = (state_dir / _CONTROL).read_text(encoding="utf-8").strip()
    with contextlib.suppress(OSError):
        (state_dir / _CONTROL).unlink()
    return asked if asked in (CANCEL, DETACH) else None


def _is_asked(state_dir: Path) -> bool:
    # A listing makes a network file system look again, where asking for one file may get a remembered answer.
    return _CONTROL in os.listdir(state_dir)
