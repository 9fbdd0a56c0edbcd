"""The members of a bundle that share a job: which have begun or ended, which need the job, and deleting its files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from espo_luigi.errors import JobError
from espo_luigi.files import listed_names, read_object
from espo_luigi.jobs.lifecycle.records import Record, RecordStore
from espo_luigi.jobs.lifecycle.state import Job
from espo_luigi.jobs.order import JobState
from espo_luigi.jobs.schedulers.script import array_of, end_path


class Bundles:
    """The bundles of the `jobs` that are under way, by task, and of records of earlier drivers."""

    def __init__(self, store: RecordStore, jobs: Mapping[str, Job]) -> None:
        self._store = store
        self._jobs = jobs

    def look(self, now: float) -> None:
        """Find out which members have begun, and which have ended, by one listing for all. Raises OSError."""
        members = [job for job in self._jobs.values() if job.record.shares_job]
        names = listed_names(self._store.claim_path("")) if members else set()
        for job in members:
            end = end_path(self._store.claim_path(job.record.name))
            job.saw_member(job.record.name in names, self._end(job, end) if end.name in names else None, now)

    def _end(self, job: Job, path: Path) -> int | None:
        try:
            job_id, code = path.read_text(encoding="utf-8").split()
        except (FileNotFoundError, ValueError):
            return None
        return int(code) if job_id == job.record.job_id else None

    def is_needed(self, record: Record) -> bool:
        """Return whether a different task that is not done needs the job or the array of this record's bundle."""
        name = array_of(record.bundle)
        others = (job.record for job in self._jobs.values() if job.record.task != record.task)
        if any(_needs(other, name) for other in others):
            return True
        # Those that this driver has not come to yet.
        known = {record.task, *self._jobs}
        try:
            return any(_needs(other, name) for _, other in self._members(name) if other.task not in known)
        except JobError:
            return True  # a record that cannot be read may need it

    def forget_if_over(self, record: Record) -> None:
        """Delete the files of a submission's bundle unless a task still needs it."""
        if self.is_needed(record):
            return
        name = array_of(record.bundle)
        listing = self._listing_path(name)
        for member, record in self._members(name):
            end_path(self._store.claim_path(member)).unlink(missing_ok=True)
            if record.name == member and record.state is JobState.SUCCEEDED:
                self._store.forget_files(member)
        for path in listing.parent.glob(f"{name}.*"):
            path.unlink(missing_ok=True)

    def _members(self, name: str) -> Iterator[tuple[str, Record]]:
        """Yield the names of the members' submissions, each with its task's record."""
        for member in (read_object(self._listing_path(name)) or {"members": []})["members"]:
            record = self._store.load(member["name"].rpartition(".")[0])
            if record is not None:
                yield member["name"], record

    def _listing_path(self, name: str) -> Path:
        return self._store.script_path(name).with_suffix(".json")


def _needs(record: Record, name: str) -> bool:
    return array_of(record.bundle) == name and record.is_out and not record.ending
