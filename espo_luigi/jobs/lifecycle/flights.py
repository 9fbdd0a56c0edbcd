"""One request until its outcome: what is known of its job, and what follows from it, without running any command."""

from __future__ import annotations

import enum
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from espo_luigi.jobs.lifecycle.handles import Failure, Handle, JobRequest, Progress, Success
from espo_luigi.jobs.lifecycle.policy import OUTCOMES, Cause, cause_of
from espo_luigi.jobs.lifecycle.records import Record, RecordStore, as_object, read_object
from espo_luigi.jobs.order import ResultWord, end_of_log
from espo_luigi.jobs.schedulers.base import Phase, Refusal, Row, Scheduler

logger = logging.getLogger(__name__)

# Seconds after which a job that is still there is cancelled once more: one is lost when the controller goes down.
_CANCEL_AGAIN = 60.0
# A job that ends without a result within so many seconds on its node is more likely the node's fault than the task's.
_QUICK_SECONDS = 300.0


@dataclass(frozen=True)
class Patience:
    """How long, in seconds, each kind of uncertainty may last before something is done about it."""

    # for files that a network file system shows late
    latency_wait: float = 60.0
    # for a job that the scheduler's answers no longer hold
    absent_after: float = 300.0
    # for a job whose submission gave no id, before its name is given up
    settle: float = 15.0
    # for refusals of which it is not clear that they will pass
    unclear_refusal: float = 300.0
    # for a pending job whose reason no waiting cures
    hopeless: float = 600.0
    # between asking a stalled job for its stack and cancelling it
    stack_dump: float = 5.0
    # for an error with a job's files that waiting does not cure: no permission, a folder that is gone
    lasting_trouble: float = 300.0
    # for more tasks that may go in the same bundle
    gather: float = 2.0
    # before the first submission after a file system that failed under the job; later ones wait longer
    after_trouble: float = 60.0


class Step(enum.Enum):
    """What the manager has to do about a flight next."""

    WAIT = "wait"
    SUCCEED = "succeed"
    ENDED = "ended"
    GIVE_UP_NAME = "give up name"
    LOST = "lost"
    HOPELESS = "hopeless"
    DUMP_STACK = "dump stack"
    CANCEL_STALLED = "cancel stalled"
    CANCEL_LEFTOVER = "cancel leftover"


@dataclass
class Flight:
    """A request between `submit` and its outcome. All times are the driver's monotonic clock."""

    request: JobRequest
    handle: Handle
    record: Record
    scheduler: Scheduler
    adopted: bool = False
    # Whether its order is one that an earlier driver wrote, maybe under another configuration.
    old_order: bool = False
    row: Row | None = None
    # the last moment at which the job was known to be on no node; None if that was an earlier driver's
    started_after: float | None = None
    begun_well: bool = False
    leaving_since: float | None = None
    ended_since: float | None = None
    absent_since: float | None = None
    hopeless_since: float | None = None
    result: Mapping[str, Any] | None = None
    result_since: float | None = None
    void_result: Mapping[str, Any] | None = None
    beat: bytes = b""
    beat_since: float | None = None
    beat_read: float | None = None
    dumped_since: float | None = None
    cancel_since: float | None = None
    silent: bool = False
    refusal: Refusal | None = None
    refused_since: float | None = None
    refusal_words: str = ""
    hopeless_words: str = ""
    drained_words: str = ""
    # what is known here and not on disk yet, since when the driver has trouble with the files, not to submit before
    unsaved: bool = False
    trouble_since: float | None = None
    empty_claim_since: float | None = None
    not_before: float = 0.0
    # since when it is ready to be submitted, and whether in no bundle
    ready_since: float | None = None
    alone: bool = False
    # of a member whose job is others', too: whether it has begun, and its exit code once it has ended
    begun: bool = False
    exit_code: int | None = None

    def start_over(self, record: Record) -> None:
        """Forget the job of the last submission; what was said to refuse it stays."""
        self.record = record
        self.row = self.result = self.started_after = self.leaving_since = None
        self.begun_well = False
        self.ended_since = self.absent_since = self.hopeless_since = self.result_since = None
        self.beat, self.beat_since, self.dumped_since, self.cancel_since = b"", None, None, None
        self.beat_read = self.empty_claim_since = self.exit_code = None
        self.begun = False

    def start_clocks_anew(self, now: float) -> None:
        """Let all waiting begin now: nobody has looked for a while, and what was seen before is old."""
        for name in (one.name for one in fields(self) if one.name.endswith("_since")):
            if getattr(self, name) is not None:
                setattr(self, name, now)
        self.dumped_since = None

    @property
    def succeeded(self) -> bool:
        return self.result is not None and self.result.get("outcome") == ResultWord.SUCCESS

    @property
    def blocks_done(self) -> int:
        """How many blocks of its output the job has completed, by its result or its last heartbeat."""
        said = self.result or as_object(self.beat) or {}
        blocks = said.get("blocks") if str(said.get("job_id")) == self.record.job_id else None
        return int(blocks.get("computed", 0)) if isinstance(blocks, Mapping) else 0

    @property
    def log(self) -> Path | None:
        """The current job's log, or None while it has no id."""
        if not self.record.job_id:
            return None
        path = Path(self.scheduler.log_path(self.record.log_pattern, self.record.job_id))
        # The number of a step is nobody's before it begins.
        steps = sorted(path.parent.glob(path.name)) if self.record.shares_job and "*" in path.name else []
        return steps[-1] if steps else path

    @property
    def node(self) -> str:
        """Where the job runs or ran, as far as the scheduler has said so."""
        return self.row.node if self.row is not None else ""

    def ended_at_once(self, now: float) -> bool:
        """Whether the job, which has ended, cannot have been on its node for long."""
        return self.started_after is not None and (self.ended_since or now) - self.started_after < _QUICK_SECONDS

    def has_begun_well(self, now: float) -> bool:
        """Whether the job shows signs of life for longer than one on a broken node does: true once, then no more."""
        running = self.row is not None and self.row.phase is Phase.RUNNING and bool(self.beat)
        if self.begun_well or not running or not _over(self.started_after, now, _QUICK_SECONDS):
            return False
        self.begun_well = True
        return True

    def saw(self, row: Row, now: float) -> None:
        """Take in the scheduler's row of the job."""
        if row.phase is Phase.LEAVING and self.ended_since is not None:
            # How it ended is accounted; what the site does on the node after that is not waited for.
            self.silent = False
            return
        if row.phase is not Phase.RUNNING or self.row is None or self.row.phase is not Phase.RUNNING:
            # The heartbeat is only expected of a job that runs: a requeued or resumed one gets its full time again.
            self.beat_since, self.dumped_since = now, None
        if row.phase is Phase.PENDING:
            self.started_after = now
        self.leaving_since = (self.leaving_since or now) if row.phase is Phase.LEAVING else None
        self.row, self.absent_since, self.silent = row, None, False
        # A requeued job is not over, whatever was said of its last run, nor is what that run wrote its result.
        self.exit_code = None if row.phase is Phase.PENDING else self.exit_code
        self.ended_since = (self.ended_since or now) if row.phase.ended or self.exit_code is not None else None
        if row.phase is Phase.PENDING and self.result is not None and not self.succeeded:
            self.void_result, self.result, self.result_since = self.result, None, None
        self.hopeless_since = (self.hopeless_since or now) if row.hopeless else None
        self.hopeless_words = row.said if row.hopeless else self.hopeless_words

    def leaves_for_long(self, now: float, patience: Patience) -> bool:
        """Whether the job's processes are gone, without a result, and something of the site's still goes on."""
        unknown = self.result is None and self.ended_since is None
        return unknown and _over(self.leaving_since, now, patience.latency_wait)

    def saw_member(self, begun: bool, exit_code: int | None, now: float) -> None:
        """Take in what the files of a shared job say of this member."""
        if self.row is None or self.row.phase is Phase.PENDING:
            return  # the files are of an earlier start
        if begun and not self.begun:
            self.beat_since = self.dumped_since = None
        self.begun = begun
        if exit_code is not None and self.exit_code is None:
            self.exit_code, self.ended_since = exit_code, self.ended_since or now

    def missed(self, now: float) -> None:
        """Take in that the scheduler answered without listing the job."""
        self.absent_since = now if self.absent_since is None else self.absent_since
        self.silent = False

    def heard_nothing(self) -> None:
        """Take in that the scheduler did not answer: absence has to begin anew."""
        self.absent_since = None
        self.silent = True

    def listen(self, now: float, every_seconds: float) -> None:
        """Look at the heartbeat if the last look is so long ago."""
        if self.beat_since is None or _over(self.beat_read, now, every_seconds, default=True):
            self.read_beat(now)

    def read_beat(self, now: float) -> None:
        """Look at the heartbeat; any change of the file counts, whatever the node's clock says."""
        self.beat_read = now
        try:
            beat = self.request.heartbeat_file.read_bytes()
        except FileNotFoundError:
            beat = b""
        except OSError:
            # The file system does not answer this driver: the job may be well.
            self.beat_since, self.dumped_since = now, None
            return
        if beat != self.beat or self.beat_since is None:
            self.beat, self.beat_since, self.dumped_since = beat, now, None

    def read_result(self, store: RecordStore, now: float) -> None:
        """Take in the result file, if it is one of this task's jobs'. Raises OSError where that cannot be known."""
        result = read_object(self.request.result_file)
        if result is None or result == self.void_result:
            return
        job_id = str(result.get("job_id", ""))
        owner = self.record.job_id or store.claim_owner(self.record.name)
        # A job that was given up as lost may still come back with the work done.
        earlier = {str(past["job_id"]) for past in self.record.history if past["job_id"]}
        if job_id == owner or (job_id in earlier and result.get("outcome") == ResultWord.SUCCESS):
            self.result = result
            self.result_since = now if self.result_since is None else self.result_since

    def lost_result(self) -> None:
        """Take in that there is no result file: a requeued job removes what its last run wrote, unless it succeeded."""
        if not self.succeeded:
            self.result = self.result_since = None

    def saw_no_files(self, now: float) -> None:
        """Take in that the file system did not answer: a missing result has to be missed anew."""
        if self.result is None:
            self.ended_since = now if self.ended_since is not None else None
            self.absent_since = now if self.absent_since is not None else None

    def next_step(self, now: float, patience: Patience) -> Step:
        """What is to be done now; a pure function of what is known."""
        if self.succeeded:
            return Step.SUCCEED
        if self.ended_since is not None:
            # The scheduler may list the end before the result file is visible here.
            waited = now - self.ended_since >= patience.latency_wait
            return Step.ENDED if self.result is not None or waited else Step.WAIT
        if self.record.shares_job and self.cancel_since is not None:
            # Its claim is closed: it stops by itself, and without that it can do nothing that counts any more.
            return Step.ENDED if _over(self.cancel_since, now, patience.absent_after) else Step.WAIT
        if self.has_failed and _over(self.result_since, now, patience.latency_wait):
            return self._step_after_result(now)
        if self.silent or not _over(self.cancel_since, now, _CANCEL_AGAIN, default=True):
            return Step.WAIT
        if self.absent_since is not None:
            return self._step_while_absent(now, patience)
        if self.record.ending and _over(self.leaving_since, now, patience.absent_after):
            # Cancelled by us, and it does not go: its node may be dead. Its claim is closed before anything follows.
            return Step.ENDED
        if _over(self.hopeless_since, now, patience.hopeless):
            return Step.HOPELESS
        return self._step_while_running(now, patience)

    @property
    def has_failed(self) -> bool:
        """Whether the job itself has written that it failed, and why."""
        # "stopped" is not among them, as the signal may be a requeue's: the scheduler decides what became of the job.
        return self.result is not None and self.result.get("outcome") in OUTCOMES

    def _step_after_result(self, now: float) -> Step:
        if self.silent:
            told = None if self.result is None else self.result.get("outcome", "")
            return Step.WAIT if told in (None, ResultWord.MEMORY) else Step.ENDED
        if self.row is not None and self.row.phase is Phase.LEAVING:
            # Its processes are gone; a site's epilog may go on for an hour.
            return Step.ENDED
        # It wrote its result and does not go: it would block the retry, or waste its allocation.
        if self.absent_since is not None:
            return Step.ENDED
        return Step.CANCEL_LEFTOVER if _over(self.cancel_since, now, _CANCEL_AGAIN, default=True) else Step.WAIT

    def _step_while_absent(self, now: float, patience: Patience) -> Step:
        if self.record.job_id is None:
            return Step.GIVE_UP_NAME if _over(self.absent_since, now, patience.settle) else Step.WAIT
        alive = self.beat_since is not None and now - self.beat_since < patience.absent_after
        gone = _over(self.absent_since, now, patience.absent_after) and not alive
        if not gone:
            return Step.WAIT
        # One that this driver or an earlier one was cancelling is not lost: the scheduler has forgotten it since.
        return Step.ENDED if self.result is not None or self.record.ending else Step.LOST

    def _step_while_running(self, now: float, patience: Patience) -> Step:
        timeout = self.request.stall_timeout_seconds
        if timeout is None or self.row is None or self.row.phase is not Phase.RUNNING:
            return Step.WAIT
        if self.record.shares_job and not self.begun:
            return Step.WAIT  # for its turn
        if self.dumped_since is not None:
            return Step.CANCEL_STALLED if _over(self.dumped_since, now, patience.stack_dump) else Step.WAIT
        return Step.DUMP_STACK if _over(self.beat_since, now, timeout) else Step.WAIT

    def ending(self, step: Step) -> str:
        """Why the job is about to be cancelled by us, as the record keeps it."""
        if step is Step.HOPELESS and self.row is not None:
            # A node that cannot launch jobs (its prolog fails, say) gives them back held.
            return str((Cause.NODE if self.row.launch_failed else Cause.HOPELESS).value)
        return Cause.STALLED.value if step is Step.CANCEL_STALLED else "result written"

    def cause(self) -> Cause:
        """Why the job, which has ended, did not succeed."""
        phase = self.row.phase if self.row is not None and self.row.phase.ended else None
        return cause_of(phase, self.result, self.record.ending, any(map(self._says_out_of_memory, self._logs())))

    def _says_out_of_memory(self, log: Path) -> bool:
        return self.scheduler.says_out_of_memory(end_of_log(log))

    def _logs(self) -> list[Path]:
        """The job's log, and the one of all where a bundle ended as a whole."""
        log = self.log
        if log is None or not self.record.shares_job or self.exit_code is not None:
            return [log] if log else []
        return [log, *log.parent.glob(f"*-bundle=*-{self.record.job_id}.out")]

    def log_tail(self) -> str:
        """The log's last lines, or nothing when there is no log."""
        return end_of_log(self.log) if self.log else ""

    def tail(self) -> str:
        """The traceback's last lines, or the log's where there is none."""
        traceback = str((self.result or {}).get("traceback") or "")
        return "\n".join(traceback.splitlines()[-15:]) or self.log_tail()

    def failure(self, cause: Cause, words: str = "") -> Failure:
        """The end of a flight that is not tried again; `words` are the scheduler's or Python's own, if any."""
        record = self.record
        if cause in (Cause.EXCEPTION, Cause.INPUT, Cause.CONFIGURATION, Cause.FILES):
            words = str((self.result or {}).get("exception") or "")
        elif not words and self.row is not None:
            words = f"{self.hopeless_words or self.row.said} on {self.row.node or 'no node'}"
        message = (
            f"{self.request.label}: job {record.job_id or '(none)'}, attempt {record.attempt}: "
            f"{cause.words(self.scheduler)}: "
            f"{words + '; ' if words else ''}{cause.explanation(self.scheduler)}; log: {self.log or 'none'}"
        )
        return Failure(cause, record.attempt, message, self.log, self.tail())

    def success(self) -> Success:
        """The end of a flight whose work is done."""
        record, result = self.record, dict(self.result or {})
        log = self.log or Path(record.log_pattern)
        return Success(str(result.get("job_id") or record.job_id), record.attempt, log, result, self.adopted)

    def progress(self) -> Progress:
        """Where the job stands, for people."""
        if self.row is None:
            return Progress(self.record.state, self.record.job_id, self.record.attempt)
        if self.record.shares_job and self.row.phase is Phase.RUNNING and not self.begun:
            return Progress("waiting in its bundle", self.row.job_id, self.record.attempt, self.row.node)
        said = (as_object(self.beat) or {}) if self.row.phase is Phase.RUNNING else {}
        heartbeat = {key: value for key, value in said.items() if key != "time"}
        row, pends = self.row, self.row.phase is Phase.PENDING
        why = self.scheduler.in_words(row.reason) if pends and row.reason else ""
        reason = row.reason if why or not row.reason else f"{row.state}: {row.reason}"
        why = "\n".join(filter(None, (why, self.drained_words if pends else "")))
        return Progress(row.said, row.job_id, self.record.attempt, row.node, heartbeat, row.phase, why, reason)


def _over(since: float | None, now: float, limit: float, default: bool = False) -> bool:
    return default if since is None else now - since >= limit


def listed_names(folder: Path) -> set[str]:
    """The names in a folder, none where it is not there (yet); one listing, however many jobs write there.

    A listing also makes a network file system look again, where asking for one file may get a remembered "no".
    """
    try:
        return set(os.listdir(folder))
    except FileNotFoundError:
        return set()
