"""A job as three values, replaced whole at each submission: `Seen`, `Files` and `Intent`; and the state they give.

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
from espo_luigi.jobs.lifecycle.records import Record, RecordStore
from espo_luigi.jobs.order import JobOrder, JobState, Progress, ResultWord, at_work, end_of_log, is_final, listed
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
    return ("ended", False) if row.phase.ended else (row.phase, row.hopeless)


@dataclass(frozen=True)
class Files:
    """The word of a submission's files on it; a member is a job that shares the scheduler's job with other tasks."""

    result: Mapping[str, Any] | None = None
    result_since: float | None = None
    former_result: Mapping[str, Any] | None = None  # of an earlier start, before the job was requeued
    beat: bytes = b""  # the heartbeat's text
    heard: float | None = None  # when that last changed
    looked: float | None = None  # when it was last read
    begun: float | None = None  # when a member's claim was found
    exit_code: int | None = None  # how a member ended
    ended: float | None = None  # and when
    unreadable: float = 0.0  # the last failed look for the result
    unclaimed: float | None = None  # since when the claim names nobody

    @property
    def outcome(self) -> str:
        """The result's word for how the job ended; empty without a result."""
        return "" if self.result is None else str(self.result.get("outcome", ""))

    @property
    def succeeded(self) -> bool:
        """Whether the job says that its work is done."""
        return self.outcome == ResultWord.SUCCESS

    def without_result(self) -> Files:
        """Without a result file; the file may vanish after it reported success."""
        return self if self.succeeded else replace(self, result=None, result_since=None)


@dataclass(frozen=True)
class Intent:
    """The driver's plans for a submission, and its actions."""

    ready: float = 0.0  # since when it may be submitted
    not_before: float = 0.0  # when its pause ends
    alone: bool = False  # whether it goes in no bundle
    refused_since: float | None = None  # since when submissions get no id
    unclear: str = ""  # the scheduler's words to the last, if they may or may not pass
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
    unsaved: bool = False  # the record on disk is older than `record`
    trouble_since: float | None = None  # since when this driver cannot use its files
    watched_since: float = 0.0  # when this driver began to look, without a gap since

    def __post_init__(self) -> None:
        # Where the job stands by the last `policy.step`, or by its record if that has changed since.
        self.state = self.record.state

    def again(self, record: Record, intent: Intent) -> None:
        self.record, self.seen, self.files, self.intent = record, Seen(), Files(), intent
        self.state = record.state

    # Observations.

    def saw(self, row: Row, now: float) -> None:
        if row.phase is Phase.LEAVING and self.ended_since is not None:
            # Its end is accounted; the driver does not wait for the site's epilog.
            self.seen = replace(self.seen, answered=True)
            return
        goes_on = self.row is not None and _meaning(self.row) == _meaning(row)
        off_node = now if row.phase is Phase.PENDING else self.seen.off_node
        self.seen = Seen(row, self.seen.since if goes_on else now, off_node=off_node)
        if row.phase is Phase.PENDING:
            # Its last start counts no more, unless it succeeded, or failed for good.
            files = replace(self.files, begun=None, exit_code=None, ended=None)
            lost = files.result is not None and not files.succeeded and not is_final(files.result)
            self.files = replace(files.without_result(), former_result=files.result) if lost else files

    def saw_member(self, begun: bool, exit_code: int | None, now: float) -> None:
        """Take in a member's claims: whether it has begun, and how it has ended."""
        if self.row is None or self.row.phase is Phase.PENDING:
            # Before the job runs, its files are of an earlier start.
            return
        files, code = self.files, self.files.exit_code if exit_code is None else exit_code
        since = (now if files.begun is None else files.begun) if begun else None
        ended = now if code is not None and files.ended is None else files.ended
        self.files = replace(files, begun=since, exit_code=code, ended=ended)

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
        """Since when the job is known to have ended, by the scheduler or as a member; None if it is not."""
        seen = self.seen.since if self.row is not None and self.row.phase.ended else None
        return min((one for one in (seen, self.files.ended) if one is not None), default=None)

    @property
    def began(self) -> float | None:
        """The last moment at which the job may have begun to run; None if it pends, or nobody knows."""
        return self.seen.off_node if self.row is None else self.seen.since_when(Phase.RUNNING)

    @property
    def heard_since(self) -> float | None:
        """The last moment that counts as a sign of life: a job that begins or goes on gets its full time again."""
        began = self.seen.since_when(Phase.RUNNING)
        heard = [one for one in (self.files.heard, self.files.begun, began) if one is not None]
        return max([*heard, self.watched_since]) if heard else None

    @property
    def waits_its_turn(self) -> bool:
        """Whether the job that it shares runs, and this member has not begun."""
        runs = self.row is not None and self.row.phase is Phase.RUNNING
        return self.record.shares_job and runs and self.files.begun is None

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
        steps = sorted(path.parent.glob(path.name)) if self.record.shares_job and "*" in path.name else []
        return steps[-1] if steps else path

    def log_says_out_of_memory(self) -> bool:
        """Whether the job's log, or its whole bundle's if that ended as a whole, ends with the scheduler's words."""
        logs = [self.log] if self.log else []
        if self.log and self.record.shares_job and self.files.exit_code is None:
            logs += self.log.parent.glob(f"*-bundle=*-{self.record.job_id}.out")
        return any(self.scheduler.says_out_of_memory(end_of_log(log)) for log in logs)

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
        if self.waits_its_turn:
            return Progress(listed("waiting in its bundle", place, again), **facts)
        in_words = self.scheduler.in_words(row.reason) if row.reason else ""
        # A reason without words of its own, such as Grid Engine's, is told with the scheduler's state.
        facts |= {"reason": row.reason if in_words or not row.reason else f"{row.state}: {row.reason}"}
        if row.phase is Phase.RUNNING:
            said = {name: value for name, value in (as_object(self.files.beat) or {}).items() if name != "time"}
            return replace(at_work(listed(place, again), said), **facts)
        pends = row.phase is Phase.PENDING
        why = [in_words, drained] if pends else []
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
