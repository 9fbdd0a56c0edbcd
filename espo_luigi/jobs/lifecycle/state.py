"""A job as four values, replaced whole at each submission: `Seen`, `Files`, `Intent` and `End`.

A `Job` lives from its order to its outcome. Decisions about it are in `policy`. All times are seconds of the driver's
monotonic clock.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from espo_luigi.errors import Failure
from espo_luigi.files import as_object, read_object
from espo_luigi.jobs.causes import Cause
from espo_luigi.jobs.lifecycle.records import Record, RecordStore
from espo_luigi.jobs.order import (
    JobOrder,
    JobState,
    Progress,
    ResultWord,
    at_work,
    end_of_log,
    is_final,
    listed,
    result_cause,
)
from espo_luigi.jobs.schedulers.base import Phase, Row, Scheduler

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Seen:
    """The scheduler's word on a submission."""

    row: Row | None = None  # its last row of the job
    since: float = 0.0  # when it first said that the job pends, waits without hope, runs, leaves or has ended
    missing: float | None = None  # since when its answers lack the job
    answered: bool = True  # whether it answered the last question
    off_node: float | None = None  # the last moment at which the job cannot have been on a node, if that is known

    def since_when(self, phase: Phase) -> float | None:
        """Since when the job is in that phase; None if it is not."""
        return self.since if self.row is not None and self.row.phase is phase else None


def _meaning(row: Row) -> tuple[object, bool]:
    return ("ended", False) if row.ended else (row.phase, row.hopeless)


@dataclass(frozen=True)
class Files:
    """The word of a submission's files on it."""

    result: Mapping[str, Any] | None = None
    result_since: float | None = None
    former_result: Mapping[str, Any] | None = None  # of an earlier start, before the job was requeued
    beat: bytes = b""  # the heartbeat's text
    heard: float | None = None  # when that last changed
    looked: float | None = None  # when it was last read
    unreadable: float = 0.0  # the last failed look for the result
    claim_empty_since: float | None = None  # since when the claim names nobody

    @property
    def cause(self) -> Cause | None:
        """Why the job did not succeed, by its result."""
        return result_cause(self.result)

    @property
    def succeeded(self) -> bool:
        """Whether the job says that its work is done."""
        return self.result is not None and self.result.get("outcome") == ResultWord.SUCCESS

    def without_result(self) -> Files:
        """Without a result file; the file may vanish after it reported success."""
        return self if self.succeeded else replace(self, result=None, result_since=None)


@dataclass(frozen=True)
class End:
    """What the driver found out as it closed the claim of a submission."""

    unclaimed: bool | None = None  # whether no job has claimed the work; None until the claim is closed
    complete: bool | None = None  # whether the output is there; None until it was looked for in this cycle
    log_says_memory: bool = False  # whether the scheduler wrote so
    no_log: bool = False  # whether its node could not open its log, nor any node one of this run
    no_log_again: bool = False  # whether that is no single node's fault: another node's, or this task's second job
    is_accounted: bool = False  # whether the scheduler keeps accounts
    avoids_nodes: bool = False  # whether it may not run on some nodes because jobs ended badly there
    is_only_job: bool = False  # whether the scheduler has taken no other job that is under way
    queued_again: bool = False  # whether the scheduler queued it again in vain: it is cancelled once that is recorded


@dataclass(frozen=True)
class Intent:
    """The driver's plans for a submission, and its actions."""

    ready: float = 0.0  # since when it may be submitted
    not_before: float = 0.0  # when its pause ends
    alone: bool = False  # whether it goes in no bundle
    refused_since: float | None = None  # since when submissions get no id
    unclear: str = ""  # the scheduler's words to the last, if they may or may not pass
    refused: str = ""  # the scheduler's words, if it will never take the job
    accepted: bool = False  # whether the scheduler took the job, and did not tell its id
    to_cancel: bool = False  # whether it goes to the scheduler's next cancellation
    cancelled: float | None = None  # when the driver cancelled it
    complaint: str = ""  # the scheduler's words that made it do so


@dataclass(eq=False)
class Job:
    """A job between its order and its outcome."""

    order: JobOrder
    record: Record
    scheduler: Scheduler
    tell: Callable[[Progress], None] = lambda progress: None
    adopted: bool = False  # an earlier driver wrote its order, maybe under another configuration, and submitted it
    seen: Seen = field(default_factory=Seen)
    files: Files = field(default_factory=Files)
    intent: Intent = field(default_factory=Intent)
    end: End = field(default_factory=End)
    unwanted: bool = False  # the user has cancelled its order
    unsaved: bool = False  # the record on disk is older than `record`
    trouble_since: float | None = None  # since when this driver cannot use its files
    watched_since: float = 0.0  # when this driver began to look, without a gap since

    def __post_init__(self) -> None:
        # Where the job stands by the last `policy.step`, or by its record if that has changed since.
        self.state = self.record.state

    def again(self, record: Record, intent: Intent) -> None:
        self.record, self.seen, self.files, self.intent, self.end = record, Seen(), Files(), intent, End()
        self.state = record.state

    # Observations.

    def saw(self, row: Row, now: float) -> None:
        """Take in the job's row in the scheduler's answer."""
        self.seen = replace(self.seen, answered=True)
        if self.stands(row, now):
            self.seen = replace(self.seen, missing=None)

    def stands(self, row: Row, now: float) -> bool:
        """Take in where the job stands, whether or not the scheduler has just said so; return whether that counts."""
        if row.phase is Phase.LEAVING and self.ended_since is not None:
            # Its end is accounted; the driver does not wait for the site's epilog.
            return False
        goes_on = self.row is not None and _meaning(self.row) == _meaning(row)
        off_node = now if row.phase is Phase.PENDING else self.seen.off_node
        since = self.seen.since if goes_on else now
        self.seen = replace(self.seen, row=row, since=since, off_node=off_node)
        if row.phase is Phase.PENDING:
            # Its last start counts no more, unless it succeeded, or failed for good.
            files = self.files
            if files.result is not None and not files.succeeded and not is_final(files.result):
                self.files = replace(files.without_result(), former_result=files.result)
        return True

    def read_result(self, store: RecordStore, now: float) -> None:
        """Take in the result file, if a job of this task wrote it. Raises OSError where that cannot be known."""
        result = read_object(self.order.files.result)
        if result is None or result == self.files.former_result:
            return
        job_id = str(result.get("job_id", ""))
        owner = self.record.job_id or store.claim_owner(self.record.name)
        # A job that was given up as lost may still come back with the work done.
        earlier = {str(past["job_id"]) for past in self.record.history if past["job_id"]}
        if job_id == owner or (job_id in earlier and result.get("outcome") == ResultWord.SUCCESS):
            since = now if self.files.result_since is None else self.files.result_since
            self.files = replace(self.files, result=result, result_since=since)

    def listen(self, now: float, every_seconds: float = 0.0) -> None:
        """Look at the heartbeat if the last look is so long ago: any change of it counts, as nodes' clocks differ."""
        if self.files.looked is not None and now - self.files.looked < every_seconds:
            return
        beat = b""
        try:
            with suppress(FileNotFoundError):
                beat = self.order.files.heartbeat.read_bytes()
        except OSError:
            # The file system does not answer this driver: the job may be well.
            self.files = replace(self.files, heard=now, looked=now)
            return
        heard = self.files.heard if beat == self.files.beat else now
        self.files = replace(self.files, beat=beat, looked=now, heard=heard)

    # Conclusions.

    @property
    def row(self) -> Row | None:
        return self.seen.row

    @property
    def node(self) -> str:
        """Where the job runs or ran, as far as the scheduler has said so."""
        return self.row.node if self.row is not None else ""

    @property
    def ended_since(self) -> float | None:
        """Since when the job is known to have ended; None if it is not."""
        return self.seen.since if self.row is not None and self.row.ended else None

    @property
    def began(self) -> float | None:
        """The last moment at which the job may have begun to run; None if it pends, or nobody knows."""
        return self.seen.off_node if self.row is None else self.seen.since_when(Phase.RUNNING)

    @property
    def heard_since(self) -> float | None:
        """The last moment that counts as a sign of life: a job that begins or goes on gets its full time again."""
        began = self.seen.since_when(Phase.RUNNING)
        heard = [one for one in (self.files.heard, began) if one is not None]
        return max([*heard, self.watched_since]) if heard else None

    @property
    def blocks_done(self) -> int:
        """How many blocks of its output the job has completed, by its result or its last heartbeat."""
        said = self.files.result or as_object(self.files.beat) or {}
        blocks = said.get("blocks") if str(said.get("job_id")) == self.record.job_id else None
        return int(blocks.get("computed", 0)) if isinstance(blocks, Mapping) else 0

    def watched_for(self, since: float | None, now: float, seconds: float) -> bool:
        """Whether so many seconds have passed since then, during which this driver looked."""
        return since is not None and now - max(since, self.watched_since) >= seconds

    def read_for(self, since: float | None, now: float, seconds: float) -> bool:
        """As `watched_for`, during which the result could be looked for, too."""
        return since is not None and self.watched_for(max(since, self.files.unreadable), now, seconds)

    @property
    def log(self) -> Path | None:
        """The current job's log, or None while it has no id."""
        if not self.record.job_id:
            return None
        path = Path(self.scheduler.log_path(self.record.log_pattern, self.record.job_id))
        # A step's number is unknown until the step starts.
        steps = sorted(path.parent.glob(path.name)) if "*" in path.name else []
        return steps[-1] if steps else path

    def tail(self) -> str:
        """The last lines of the traceback, or of the log if there is no traceback."""
        traceback = str((self.files.result or {}).get("traceback") or "")
        return "\n".join(traceback.splitlines()[-15:]) or (end_of_log(self.log) if self.log else "")

    def progress(self, drained: str = "") -> Progress:
        """Where the job stands, for people; `drained` says which nodes the scheduler took out of use."""
        row, record = self.row, self.record
        again = f"attempt {record.attempt}" if record.attempt > 1 else ""
        job_id = row.job_id if row is not None else record.job_id
        job = f"job {job_id}" if job_id else ""
        place = f"{job} on {self.node}" if self.node else job
        facts: dict[str, Any] = {"state": self.state, "job_id": job_id, "attempt": record.attempt, "node": self.node}
        if row is None:
            word = "waiting to be submitted" if record.state is JobState.READY else record.state
            return Progress(listed(word, place, again), **facts)
        in_words = self.scheduler.in_words(row.reason) if row.reason else ""
        # A reason without words of its own, such as Grid Engine's, is told with the scheduler's state.
        facts |= {"reason": row.reason if in_words or not row.reason else f"{row.state}: {row.reason}"}
        if row.phase is Phase.RUNNING:
            said = {name: value for name, value in (as_object(self.files.beat) or {}).items() if name != "time"}
            return replace(at_work(listed(place, again), said), **facts)
        pends = row.phase is Phase.PENDING
        # A member that waits for its turn has a node already.
        why = [in_words, "" if row.node else drained] if pends else []
        words = "\n".join(filter(None, why))
        return Progress(listed(row.said, place, again) + (f": {words}" if words else ""), **facts)


@dataclass(frozen=True)
class Success:
    """The job succeeded; `result` is its result file. `adopted` means that an earlier driver had submitted it."""

    job_id: str
    attempts: int
    log_path: Path
    result: Mapping[str, Any]
    adopted: bool


Outcome = Success | Failure


class Handle:
    """Any thread's view of an order that the manager has; its thread writes `progress` and `outcome`."""

    def __init__(self, task: str, order: JobOrder) -> None:
        self.task = task
        self.order = order
        self.outcome: Outcome | None = None
        self.progress = Progress("waiting")
        self._done = threading.Event()

    def wait(self, timeout: float | None = None) -> Outcome | None:
        """The outcome, or None after `timeout` seconds."""
        self._done.wait(timeout)
        return self.outcome

    def resolve(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self._done.set()

    def report(self, progress: Progress) -> None:
        """Tell the order's listener where the job stands, if that changed."""
        if progress == self.progress:
            return
        self.progress = progress
        try:
            self.order.on_progress(progress)
        except Exception:  # the listener's error must not stop other jobs
            logger.exception("the progress listener of %s failed", self.task)
