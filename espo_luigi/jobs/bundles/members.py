"""Gives each submission its row, also to members of a bundle, and knows whether a shared job is still needed.

An element of an array has a row of the scheduler's. A member that shares its job gets a row made of the job's row, its
claim (which exists once it has begun) and its end file (which holds its exit code).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from espo_luigi.errors import JobError
from espo_luigi.files import listed_names, read_object
from espo_luigi.jobs.bundles import shares_job
from espo_luigi.jobs.causes import Cause
from espo_luigi.jobs.order import JobState
from espo_luigi.jobs.schedulers.base import Phase, Row
from espo_luigi.jobs.schedulers.script import array_of, end_path

# The ends of a job that say nothing against a member that had not begun.
_LEAVES_OUT = (Phase.COMPLETED, Cause.TIMEOUT, Cause.MEMORY)


class Submitted(Protocol):
    """A record of a submission, as far as bundles need it."""

    @property
    def task(self) -> str: ...
    @property
    def state(self) -> JobState: ...
    @property
    def job_id(self) -> str | None: ...
    @property
    def bundle(self) -> str: ...
    @property
    def ending(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def job_name(self) -> str: ...
    @property
    def is_out(self) -> bool: ...


class Store(Protocol):
    """The files of submissions, as far as bundles need them."""

    def load(self, task: str, /) -> Submitted | None: ...
    def claim_path(self, name: str, /) -> Path: ...
    def claim_owner(self, name: str, /) -> str | None: ...
    def script_path(self, name: str, /) -> Path: ...
    def close(self, name: str, /) -> None: ...
    def forget_files(self, name: str, /) -> None: ...


class Bundles:
    """Knows the members of bundles among the `records` of jobs under way, and in those of earlier drivers."""

    def __init__(self, store: Store, records: Callable[[], Iterable[Submitted]]) -> None:
        self._store = store
        self._records = records
        # By name, the last row of each job that members share.
        self._shared: dict[str, Row] = {}
        # By the last look, if it succeeded: the members that have begun, those whose claims the driver has closed, and
        # the exit codes of those that have ended.
        self._has_looked = False
        self._begun: set[str] = set()
        self._closed: set[str] = set()
        self._codes: dict[str, int] = {}

    def look(self) -> None:
        """Find out which members have begun, and how they ended, by one listing for all. Raises OSError."""
        self._has_looked, self._closed = False, set()
        members = [record for record in self._records() if shares_job(record.bundle)]
        claims, codes = listed_names(self._store.claim_path("")) if members else set[str](), dict[str, int]()
        begun, closed = set[str](), set[str]()
        for record in members:
            if record.name in claims:
                # Whoever has begun remains so once the driver closes the claim, which then names nobody.
                known = record.name in self._begun
                owned = (known and not record.ending) or self._store.claim_owner(record.name) is not None
                begun |= {record.name} if known or owned else set()
                closed |= set() if owned else {record.name}
            end = end_path(self._store.claim_path(record.name))
            if end.name in claims:
                with suppress(FileNotFoundError, ValueError):
                    job_id, code = end.read_text(encoding="utf-8").split()
                    codes |= {record.name: int(code)} if job_id == record.job_id else {}
        self._begun, self._closed, self._codes, self._has_looked = begun, closed, codes, True

    def row_of(self, record: Submitted, answer: Mapping[str, Row] | None = None) -> Row | None:
        """Return a submission's row in a scheduler's `answer`, whose rows are given by name; None if it is not there.

        Without an answer, return the row of a member that shares its job, by the job's last row and the last look.
        """
        row = (self._shared if answer is None else answer).get(record.job_name)
        if row is None or not shares_job(record.bundle):
            return row
        self._shared[record.bundle] = row
        own, code = replace(row, name=record.name), self._codes.get(record.name)
        has_begun = not self._has_looked or record.name in self._begun
        if row.ended:
            left_out = Cause.CANCELLED if record.ending else Cause.NOT_BEGUN
            return own if has_begun or row.phase not in _LEAVES_OUT else replace(own, phase=left_out)
        # Before the job runs, the members' files are of an earlier start.
        if code is not None and row.phase is not Phase.PENDING:
            ended = Cause.CANCELLED if record.ending else Cause.CRASHED if code else Phase.COMPLETED
            return replace(own, state=f"exit code {code}", phase=ended)
        if record.ending and record.name in self._closed:
            # It stops by itself, or works in vain.
            return replace(own, phase=Phase.LEAVING)
        if row.phase is Phase.RUNNING and not has_begun:
            return replace(own, state="waiting in its bundle", phase=Phase.PENDING, reason="")
        return own

    def logs(self, record: Submitted, log: Path | None) -> list[Path]:
        """Return the logs that may tell why a submission ended: its `log`, and the job's if that ended as a whole."""
        logs = [log] if log else []
        if log and shares_job(record.bundle) and record.name not in self._codes:
            logs += log.parent.glob(f"*-bundle=*-{record.job_id}.out")
        return logs

    def stop(self, record: Submitted) -> None:
        """Have a member that shares its job stop, or not start again, by closing its claim."""
        if shares_job(record.bundle):
            self._store.close(record.name)

    def needs_job(self, record: Submitted) -> bool:
        """Return whether others share the submission's job and need it, so that it must go on."""
        return shares_job(record.bundle) and self._is_needed(record)

    def forget(self, record: Submitted, done: bool = False) -> None:
        """Delete the files of a submission that is `done`, and those of its bundle unless a task still needs it.

        A member that shares its job keeps its closed claim as long as the job may start again.
        """
        if done and not shares_job(record.bundle):
            self._store.forget_files(record.name)
        if not record.bundle or self._is_needed(record):
            return
        self._shared.pop(record.bundle, None)
        name = array_of(record.bundle)
        listing = self._listing_path(name)
        for member, other in self._members(name):
            end_path(self._store.claim_path(member)).unlink(missing_ok=True)
            if other.name == member and other.state is JobState.SUCCEEDED:
                self._store.forget_files(member)
        for path in listing.parent.glob(f"{name}.*"):
            path.unlink(missing_ok=True)

    def _is_needed(self, record: Submitted) -> bool:
        """Return whether a different task that is not done needs the job or the array of this record's bundle."""
        name, known = array_of(record.bundle), {record.task}
        for other in self._records():
            known.add(other.task)
            if other.task != record.task and _needs(other, name):
                return True
        # Those that this driver has not come to yet.
        try:
            return any(_needs(other, name) for _, other in self._members(name) if other.task not in known)
        except JobError:
            return True  # a record that cannot be read may need it

    def _members(self, name: str) -> Iterator[tuple[str, Submitted]]:
        """Yield the names of the members' submissions, each with its task's record."""
        for member in (read_object(self._listing_path(name)) or {"members": []})["members"]:
            record = self._store.load(member["name"].rpartition(".")[0])
            if record is not None:
                yield member["name"], record

    def _listing_path(self, name: str) -> Path:
        return self._store.script_path(name).with_suffix(".json")


def _needs(record: Submitted, name: str) -> bool:
    return array_of(record.bundle) == name and record.is_out and not record.ending
