"""The files about every submission: if this driver dies, the next driver goes on from them.

Two facts make doubling impossible. The scheduler is given a job's name once: its record is on disk before the call, and
a further try gets the next number. And the driver gives a name up only after it has closed the name's *claim*. That is
a file that either the job or the driver creates first. A job that starts later finds its claim closed, and
does nothing.
"""

from __future__ import annotations

import functools
import json
import logging
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from espo_luigi.errors import JobError, SubmissionError
from espo_luigi.files import create_whole, parse_json, read_object, sync_path, this_version, write_atomically
from espo_luigi.jobs.order import LAYOUT, JobState
from espo_luigi.jobs.schedulers.script import JOB_ID, start_path, submission_name

logger = logging.getLogger(__name__)

_CLOSED = "the driver"
_LAYOUT_FILE = "layout.json"


@dataclass(frozen=True)
class Record:
    """A task's current submission, and its history. Causes are codes of a `Cause`."""

    task: str
    rule: str
    wildcards: Mapping[str, str]
    memory_bytes: int
    time_minutes: int
    log_pattern: str
    submission: int = 1  # counts all submissions
    attempt: int = 1  # counts those that are charged against `retries`
    uncharged: int = 0  # counts those that are not, in a row: a node failed, the job was preempted
    state: JobState = JobState.READY
    job_id: str | None = None
    exclude: tuple[str, ...] = ()
    ending: str = ""  # why the driver cancelled the job: a cause
    cause: str = ""  # why it failed
    history: tuple[Mapping[str, Any], ...] = ()  # of each earlier submission its cause, as ``ended``
    learnt_memory_bytes: int = 0  # the least amount for the next submission, after less had been too little
    learnt_time_minutes: int = 0
    bundle: str = ""  # the scheduler's name of the job that carries several tasks, or of this element of an array

    @property
    def name(self) -> str:
        """The current submission's job name."""
        return submission_name(self.task, self.submission)

    @property
    def job_name(self) -> str:
        """The scheduler's name of the current submission's job."""
        return self.bundle or self.name

    @property
    def is_out(self) -> bool:
        """Whether the scheduler has, or may have, the submission's job."""
        return self.state in (JobState.SUBMITTING, JobState.QUEUED)

    @property
    def is_over(self) -> bool:
        """Whether the task has its outcome."""
        return self.state in (JobState.SUCCEEDED, JobState.FAILED)

    def next_submission(self, why: str, **changes: Any) -> Record:
        """The record of the next submission; the current submission ended for a cause, `why`."""
        past = {"name": self.name, "job_id": self.job_id, "ended": why, "bundle": self.bundle}
        fresh: dict[str, Any] = {"submission": self.submission + 1, "state": JobState.READY, "job_id": None}
        fresh |= dict.fromkeys(("ending", "cause", "bundle"), "")
        return replace(self, **{**fresh, **changes}, history=(*self.history, past))


# By field, the type of the value in the file.
_IN_JSON = {"str": str, "int": int, "str | None": str | None, "JobState": str, "Mapping[str, str]": dict}
_KINDS = {field.name: _IN_JSON.get(str(field.type), list) for field in fields(Record)}


class RecordStore:
    """Reads and writes the records, claims and scripts of a state folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def check_layout(self) -> None:
        """Raise SubmissionError if a version with another layout wrote this folder, or may have."""
        said = read_object(self.folder / _LAYOUT_FILE) or {}
        has_records = any((self.folder / "records").glob("*.json"))
        if (layout := said.get("layout", "unknown" if has_records else LAYOUT)) != LAYOUT:
            theirs = f"espo_luigi {said.get('version', 'of an unknown version')}"
            raise SubmissionError(
                f"{self.folder} was written by {theirs} (layout {layout}), and espo_luigi {this_version()} (layout "
                f"{LAYOUT}) cannot read it: finish or cancel the run with {theirs}, or choose another workdir"
            )

    def create_folders(self) -> None:
        """Make the folders; safe to repeat. Raises SubmissionError if a version with another layout wrote them."""
        self.check_layout()
        for name in ("records", "claims", "scripts"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        if not self._salt_path.exists():
            # Lost in a crash of the machine, all jobs would get other names, and run twice.
            write_atomically(self._salt_path, secrets.token_hex(8), durable=True)
            sync_path(self.folder.parent)
        said = {"layout": LAYOUT, "version": this_version()}
        if read_object(self.folder / _LAYOUT_FILE) != said:
            write_atomically(self.folder / _LAYOUT_FILE, json.dumps(said), durable=True)

    @property
    def environment_path(self) -> Path:
        """Where a scheduler's jobs find the environment that it is not to hand on, as it would show it."""
        return self.folder / "environment.sh"

    @functools.cached_property
    def salt(self) -> str:
        """Text in the hash of task names: runs with the same name in two folders differ in it."""
        return self._salt_path.read_text(encoding="utf-8")

    def load(self, task: str) -> Record | None:
        """The task's record, or None. Raises JobError if the file is no record."""
        path = self._record_path(task)
        try:
            values = parse_json(path.read_text(encoding="utf-8"))
            if wrong := [name for name, value in dict(values).items() if not isinstance(value, _KINDS[name])]:
                raise ValueError(f"{', '.join(wrong)} of a wrong type")
            values |= {name: tuple(values[name]) for name in ("exclude", "history")}
            return Record(**values | {"state": JobState(values["state"])})
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError) as error:
            # Going on as if there were none could run a job twice.
            raise JobError(
                f"{path} is not a record of a submission ({error}); look in squeue or qstat for {task}.*, "
                f"cancel them, then remove the file, and {self.claim_path(task)}.*, by which they could not start anew"
            ) from error

    def knows(self, name: str) -> bool:
        """Whether `name` is that of a submission of this run; its record may be damaged."""
        try:
            return self._record_path(name.rpartition(".")[0]).exists()
        except OSError:
            return False  # such as a name that is too long for a file's

    def save(self, record: Record, durable: bool = False) -> None:
        """Write the record atomically; `durable` also survives a crash of the machine."""
        write_atomically(self._record_path(record.task), json.dumps(asdict(record), ensure_ascii=False), durable)

    def all(self, complain: Callable[[str], object] = logger.error) -> Iterator[Record]:
        """All records, in no order; a damaged one is complained about, and must not stop other tasks."""
        for path in (self.folder / "records").glob("*.json"):
            try:
                record = self.load(path.stem)
            except JobError as error:
                complain(str(error))
                continue
            if record is not None:
                yield record

    def script_path(self, name: str) -> Path:
        return self.folder / "scripts" / f"{name}.sh"

    def claim_path(self, name: str) -> Path:
        return self.folder / "claims" / name

    def claim_owner(self, name: str) -> str | None:
        """The id of the job that started under that name; None if no job did."""
        # A task of Grid Engine's arrays adds its number.
        owner = (self._claim(name) or "").partition(".")[0]
        return owner if JOB_ID.fullmatch(owner) else None

    def close_unclaimed(self, name: str) -> bool:
        """Make sure that no job of that name ever starts its work; False if a job has started."""
        try:
            create_whole(self.claim_path(name), _CLOSED)
        except FileExistsError:
            return self._claim(name) == _CLOSED
        return True

    def is_claimed_by_nobody(self, name: str) -> bool:
        """Whether there is an empty claim."""
        return self._claim(name) == ""

    def _claim(self, name: str) -> str | None:
        try:
            return self.claim_path(name).read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            return None

    def close(self, name: str) -> None:
        """Make sure that a job of that name, which has ended, does nothing if somebody requeues it."""
        write_atomically(self.claim_path(name), _CLOSED)

    def forget_files(self, name: str) -> None:
        """Remove the script and the claim of a job that succeeded: thousands of them would fill a quota on files."""
        self.script_path(name).unlink(missing_ok=True)
        self.claim_path(name).unlink(missing_ok=True)
        start_path(self.claim_path(name)).unlink(missing_ok=True)

    @property
    def _salt_path(self) -> Path:
        return self.folder / "salt"

    def _record_path(self, task: str) -> Path:
        return self.folder / "records" / f"{task}.json"
