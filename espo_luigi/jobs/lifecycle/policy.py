"""Decisions about a job, as pure functions: the next action, the cause of its end, and the consequences.

`step` has the table of transitions; `CAUSES` is the table of causes and consequences.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from espo_luigi.errors import Failure
from espo_luigi.jobs.lifecycle.records import Record
from espo_luigi.jobs.lifecycle.state import Job, Success
from espo_luigi.jobs.order import JobState, ResultWord, is_final
from espo_luigi.jobs.retry import growing_pause
from espo_luigi.jobs.schedulers.base import Phase, Scheduler
from espo_luigi.jobs.settings import BatchSettings, Patience

GROWTH = 1.5


class Cause(enum.StrEnum):
    """Why a job did not succeed, as records keep it; `CAUSES` is the table of meanings and consequences."""

    EXCEPTION = "exception"
    INPUT = "input"
    FILES = "files"
    CONFIGURATION = "configuration"
    MEMORY = "memory"
    TIMEOUT = "timeout"
    NODE = "node"
    PREEMPTED = "preempted"
    NOT_BEGUN = "not_begun"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    STALLED = "stalled"
    CRASHED = "crashed"
    LOST = "lost"
    REFUSED = "refused"
    HOPELESS = "hopeless"
    NO_LOG = "no_log"
    NO_OUTPUT = "no_output"
    UNCONFIRMED = "unconfirmed"
    DRIVER_CANCELLED = "driver_cancelled"
    DETACHED = "detached"
    INTERNAL = "internal"

    def words(self, scheduler: Scheduler | None = None) -> str:
        """The cause in some words, for messages."""
        return CAUSES[self].words.format(scheduler=scheduler.NAME if scheduler else "the scheduler")

    def explanation(self, scheduler: Scheduler | None = None) -> str:
        """Its meaning for the user, and the remedy, if there is any."""
        name, submit = (scheduler.NAME, scheduler.SUBMIT) if scheduler else ("the scheduler", "the scheduler")
        told = (CAUSES[self].meaning, CAUSES[self].remedy)
        return "; ".join(text.format(scheduler=name, submit=submit) for text in told if text)


def words_of(code: str) -> str:
    """The words for a code of a record; a code that is no cause's stands for itself."""
    return Cause(code).words() if code in set(Cause) else code


class Retry(enum.Enum):
    """Whether a job is submitted again after a cause, and at which cost."""

    NEVER = "never"  # it would end in the same way
    CHARGED = "charged"  # up to `retries` times
    UNCHARGED = "uncharged"  # up to `max_uncharged` times in a row, as it is not the job's fault
    FREE = "free"  # any number of times


@dataclass(frozen=True)
class Consequences:
    """The consequences of a cause, and its words for people."""

    words: str
    meaning: str
    remedy: str = ""
    retry: Retry = Retry.CHARGED
    goes_on: bool = False  # free for a job that completed blocks of its output: it goes on from there
    grows: str = ""  # the amount of a record of which the next submission asks for more
    other_node: bool = False  # the next submission avoids the node, which is as likely to be at fault as the task
    may_be_done: bool = True  # the output may be complete nevertheless
    forgets: bool = False  # the next run asks for the amounts of its configuration, not for those of this run


_NEVER, _, _UNCHARGED, _FREE = Retry

CAUSES: Mapping[Cause, Consequences] = {
    Cause.EXCEPTION: Consequences(
        "exception",
        "Python raised an exception, which would come again: not retried",
        "correct what the exception names, and run again",
        _NEVER,
        may_be_done=False,
    ),
    # The driver makes the input again, and then asks for the job again.
    Cause.INPUT: Consequences(
        "input gone or replaced",
        "an input was not the one that it began with, and nothing was published",
        "find out who else writes or deletes in that folder, and run again",
        _NEVER,
        may_be_done=False,
    ),
    Cause.FILES: Consequences(
        "file system failed",
        "a disk, a quota or a network file system failed under it",
        "see to it, and run again",
        other_node=True,
    ),
    Cause.CONFIGURATION: Consequences(
        "configuration changed",
        "it was ordered under another one, or by another version, and did nothing: not retried",
        "run again, or put the former files or version back first",
        _NEVER,
    ),
    Cause.MEMORY: Consequences(
        "out of memory",
        "it needed more memory than it had",
        "raise `memory` or its cap",
        grows="memory_bytes",
    ),
    Cause.TIMEOUT: Consequences(
        "time limit",
        "it ran into its time limit",
        "raise `time` or its cap",
        goes_on=True,
        grows="time_minutes",
    ),
    Cause.NODE: Consequences(
        "node failed",
        "nodes failed under it",
        "run again; tell the administrators, or name the nodes in `exclude`",
        _UNCHARGED,
        goes_on=True,
        other_node=True,
    ),
    Cause.PREEMPTED: Consequences(
        "preempted",
        "it was preempted again and again",
        "run again, or on a partition without preemption",
        _UNCHARGED,
        goes_on=True,
    ),
    Cause.NOT_BEGUN: Consequences(
        "not begun when its bundle ended",
        "others of its bundle used up its time or memory again and again",
        "lower `pack` or raise `time`",
        _UNCHARGED,
        goes_on=True,
    ),
    Cause.CANCELLED: Consequences("cancelled", "somebody cancelled it: not retried", "run again", _NEVER),
    Cause.DEADLINE: Consequences(
        "deadline", "its deadline passed: not retried", "give it a later `deadline` in `extra`, or none", _NEVER
    ),
    Cause.STALLED: Consequences(
        "stalled",
        "its heartbeat stopped while it ran; the log says where it was",
        "run again; if it only needs longer without progress, raise `stall_timeout`",
        other_node=True,
    ),
    Cause.CRASHED: Consequences(
        "ended without a result",
        "it ended without writing a result",
        "look for a signal or a failed set-up in the log",
        other_node=True,
    ),
    Cause.NO_LOG: Consequences(
        "its node could not open its log",
        "no log of this run is there yet: the log folder and the work folder have to be on the nodes, too, under the "
        "same path",
        "set `log_dir` to a folder that they share",
        _NEVER,
    ),
    Cause.LOST: Consequences(
        "lost",
        "{scheduler} does not know it any more, and it left no result",
        "run again",
        other_node=True,
    ),
    Cause.REFUSED: Consequences(
        "refused by {scheduler}",
        "{submit} refused it",
        "correct its options (where a site forbids `--mem`: `memory_resource = mem-per-cpu` or `none`)",
        _NEVER,
        forgets=True,
    ),
    Cause.HOPELESS: Consequences(
        "cannot start",
        "it waits for something that does not pass by itself, such as a limit",
        "ask for less, or elsewhere",
        _NEVER,
        forgets=True,
    ),
    Cause.NO_OUTPUT: Consequences(
        "output missing",
        "it reported success, but its output is not there",
        "find out who else deletes there, or raise `latency_wait` where files appear late",
        _NEVER,
        may_be_done=False,
    ),
    Cause.UNCONFIRMED: Consequences(
        "never arrived in {scheduler}", "{submit} failed, and the job never appeared in {scheduler}", retry=_FREE
    ),
    # The user stopped the run and has started it again: it is no fault of the job.
    Cause.DRIVER_CANCELLED: Consequences("cancelled by the driver", "the run was cancelled", retry=_FREE),
    Cause.DETACHED: Consequences(
        "left to the next driver", "the driver left; the next one takes the job over", retry=_NEVER
    ),
    Cause.INTERNAL: Consequences(
        "error in the driver",
        "the driver could not handle it",
        "report it, with the driver's log",
        _NEVER,
    ),
}


class Action(enum.Enum):
    """What the driver does next about a job; `step` has the table."""

    WAIT = "wait"
    SUCCEED = "succeed"  # look for its output
    END = "end"  # find the cause, and whether the job is tried again
    GIVE_UP_NAME = "give up name"  # close the claim of a submission without a trace, and submit under a new name
    CANCEL = "cancel"  # for its `cause_to_cancel`


def step(job: Job, now: float, settings: BatchSettings) -> tuple[JobState, Action]:
    """Return where a job stands, and the next action.

    The first row that holds counts. The action is WAIT if none does, or until the time in brackets has passed. Times
    count from when this driver began to look (`Job.watched_since`).

    =================== ======================================================================== ============
    State               What is known                                                            Action
    =================== ======================================================================== ============
    ENDED               its result says success                                                  SUCCEED
    ENDED               it has a result, or nothing of it ran                                    END
    ENDED               neither [latency_wait]                                                   END
    any                 its result says failure [latency_wait], and it leaves its node, is in    END
                        no answer, or the scheduler is silent, whose word on memory is awaited
    any                 its result says failure, and it runs without a sign of life              END
                        [absent_after]
    any                 its result says failure for good, and it was requeued: it is cancelled   END
    any                 the scheduler is silent                                                  WAIT
    MISSING, CANCELLING it is in no answer, its id unknown [settle, or absent_after if the       GIVE_UP_NAME
                        scheduler took it]
    MISSING, CANCELLING it is in no answer, without a sign of life [absent_after]                END
    CANCELLING          it leaves its node, as a member whose claim is closed [absent_after]     END
    CANCELLING          it is there still, and wanted as little as before [cancel_again]         CANCEL
    QUEUED              it waits without hope [hopeless]                                         CANCEL
    RUNNING             it runs without a sign of life [stall_timeout_seconds]                   CANCEL
    READY               not submitted                                                            WAIT
    =================== ======================================================================== ============
    """
    state, patience, seen, cancelled = _state(job), settings.patience, job.seen, job.intent.cancelled
    over, cancel = False, False
    if state is JobState.ENDED:
        if job.files.succeeded:
            return state, Action.SUCCEED
        # The scheduler may list the end before the result file is visible here.
        ran = job.row is None or not job.row.no_log
        over = job.files.result is not None or not ran or job.read_for(job.ended_since, now, patience.latency_wait)
    elif _has_failed_for_good(job, now, patience):
        over = True
    elif not seen.answered:
        pass
    elif seen.missing is not None:
        return state, _while_missing(job, now, patience)
    elif state is JobState.CANCELLING and seen.since_when(Phase.LEAVING) is not None:
        # Its node may be dead. Its claim is closed before anything follows.
        over = job.watched_for(seen.since, now, patience.absent_after)
    else:
        hopeless = job.row is not None and job.row.hopeless and job.watched_for(seen.since, now, patience.hopeless)
        works = seen.since_when(Phase.RUNNING) is not None and not has_failed(job)
        hangs = works and job.watched_for(job.heard_since, now, settings.stall_timeout_seconds or math.inf)
        unwanted = cancelled is not None and job.record.ending == Cause.DRIVER_CANCELLED
        due = cancelled is None or job.watched_for(cancelled, now, patience.cancel_again)
        cancel = due and (hopeless or hangs or unwanted)
    return state, Action.END if over else Action.CANCEL if cancel else Action.WAIT


def _state(job: Job) -> JobState:
    record, phase = job.record, job.row.phase if job.row is not None else None
    if record.state is JobState.READY:
        return JobState.READY
    if job.ended_since is not None or job.files.succeeded:
        return JobState.ENDED
    if record.ending:
        return JobState.CANCELLING
    if job.seen.missing is not None:
        return JobState.MISSING
    if phase in (Phase.RUNNING, Phase.LEAVING):
        return JobState.RUNNING
    return record.state if phase is None else JobState.QUEUED


def _has_failed_for_good(job: Job, now: float, patience: Patience) -> bool:
    """Whether the job has written why it failed, and no more need be known."""
    result_since = job.files.result_since
    if was_requeued_in_vain(job):
        return True
    if not has_failed(job) or not job.watched_for(result_since, now, patience.latency_wait):
        return False
    if not job.seen.answered:
        return job.files.outcome != ResultWord.MEMORY
    # Its processes are gone, though a site's epilog may go on for an hour.
    if job.seen.since_when(Phase.LEAVING) is not None or job.seen.missing is not None:
        return True
    # It still runs for the scheduler: its process hangs as it ends, or Grid Engine runs the site's epilog.
    ends_for_long = all(job.watched_for(since, now, patience.absent_after) for since in (result_since, job.heard_since))
    return ends_for_long and job.seen.since_when(Phase.RUNNING) is not None


def was_requeued_in_vain(job: Job) -> bool:
    """Whether the scheduler queued the job again, as some sites have it do, though it would fail again.

    It has to say so after the result was found: a short job ends before the scheduler's next answer.
    """
    waited, result_since = job.seen.off_node, job.files.result_since
    told_since = waited is not None and result_since is not None and waited > result_since
    return told_since and is_final(job.files.result) and job.seen.since_when(Phase.PENDING) is not None


def _while_missing(job: Job, now: float, patience: Patience) -> Action:
    if job.record.job_id is None:
        seconds = patience.absent_after if job.intent.accepted else patience.settle
        return Action.GIVE_UP_NAME if job.read_for(job.seen.missing, now, seconds) else Action.WAIT
    alive = job.heard_since is not None and now - job.heard_since < patience.absent_after
    over = not alive and job.read_for(job.seen.missing, now, patience.absent_after)
    return Action.END if over else Action.WAIT


def cause_to_cancel(job: Job) -> Cause:
    """Why the driver cancels, maybe again, a job that waits without hope, or hangs."""
    if job.record.ending == Cause.DRIVER_CANCELLED:
        return Cause.DRIVER_CANCELLED
    if job.row is None or not job.row.hopeless:
        return Cause.STALLED
    # A node that cannot launch jobs (its prolog fails, say) gives them back held.
    return Cause.NODE if job.row.launch_failed else Cause.HOPELESS


# Why a job failed, by its own word. "stopped" is missing: its signal may be a requeue's.
_BY_RESULT: Mapping[str, Cause] = {
    ResultWord.ERROR: Cause.EXCEPTION,
    ResultWord.INPUT: Cause.INPUT,
    ResultWord.CONFIGURATION: Cause.CONFIGURATION,
    ResultWord.FILES: Cause.FILES,
    ResultWord.MEMORY: Cause.MEMORY,
}
# Why a job got a signal to end, by its own word, which counts if the scheduler gives no reason itself.
_BY_SIGNAL: Mapping[str, Cause] = {ResultWord.PREEMPTED: Cause.PREEMPTED, ResultWord.TIME_LIMIT: Cause.TIMEOUT}
# The scheduler's definite words, which are those of the causes.
_DEFINITE = (Phase.MEMORY, Phase.TIMEOUT, Phase.NODE, Phase.PREEMPTED, Phase.DEADLINE, Phase.NOT_BEGUN)


def has_failed(job: Job) -> bool:
    """Whether the job itself has written that it failed, and why."""
    return job.files.outcome in _BY_RESULT


def cause_of(phase: Phase | None, result: Mapping[str, Any] | None, ending: str, log_says_memory: bool) -> Cause:
    """Why a job that ended did not succeed.

    A definite word of the scheduler's goes before the job's own: a job that is being stopped may report the exception
    that the stopping caused. `phase` is None if the scheduler does not know the job. `ending` is why the driver
    cancelled it.
    """
    outcome = result.get("outcome") if result else None
    # A job that waited without hope may have begun all the same, before its cancellation arrived.
    if ending == Cause.STALLED or (ending in (Cause.HOPELESS, Cause.NODE) and outcome not in _BY_RESULT):
        return Cause(ending)
    if phase in _DEFINITE:
        return Cause(phase.value)
    forgotten = phase is None and outcome in (None, ResultWord.STOPPED, *_BY_SIGNAL)
    if ending == Cause.DRIVER_CANCELLED and (phase is Phase.CANCELLED or forgotten):
        return Cause.DRIVER_CANCELLED
    if outcome == ResultWord.MEMORY:
        return Cause.MEMORY
    if phase is Phase.CANCELLED and not ending:
        return Cause.CANCELLED
    if log_says_memory:
        return Cause.MEMORY
    return {**_BY_RESULT, **_BY_SIGNAL}.get(str(outcome), Cause.CRASHED)


def next_record(
    record: Record, cause: Cause, settings: BatchSettings, node: str = "", progressed: bool = False
) -> Record | None:
    """The record of the next submission after `cause`; None if the job is not tried again.

    A job that completed a part of its output has `progressed`.
    """
    follows = CAUSES[cause]
    retry = Retry.FREE if progressed and follows.goes_on else follows.retry
    changes: dict[str, Any] = {}
    if follows.other_node and node:
        changes["exclude"] = tuple(sorted({*record.exclude, node}))
    if retry is Retry.FREE:
        return record.next_submission(cause, **changes | ({"uncharged": 0} if progressed else {}))
    if retry is Retry.UNCHARGED and record.uncharged < settings.max_uncharged:
        return record.next_submission(cause, uncharged=record.uncharged + 1, **changes)
    if retry is Retry.CHARGED and record.attempt <= settings.retries:
        if follows.grows:
            cap = settings.memory_cap_bytes if follows.grows == "memory_bytes" else settings.time_cap_minutes
            asked = getattr(record, follows.grows)
            more = min(math.ceil(asked * GROWTH), cap or math.inf)
            if more <= asked:
                return None  # the same amount would fail again
            changes |= {follows.grows: more, f"learnt_{follows.grows}": more}
        return record.next_submission(cause, attempt=record.attempt + 1, **changes)
    return None


def pause_before(record: Record, first: float) -> float:
    """Seconds to wait before the record's submission: `first`, growing, after a file system that failed."""
    ends = [past["ended"] for past in record.history]
    if not ends or ends[-1] != Cause.FILES:
        return 0.0
    return growing_pause(ends.count(Cause.FILES), first, 30 * first, factor=5.0)


def success_of(job: Job) -> Success:
    record, result = job.record, dict(job.files.result or {})
    log = job.log or Path(record.log_pattern)
    return Success(str(result.get("job_id") or record.job_id), record.attempt, log, result, job.adopted)


def failure_of(job: Job, cause: Cause, words: str = "") -> Failure:
    """The outcome of a job that is not tried again; `words` are the scheduler's or Python's own, if any."""
    record, row = job.record, job.row
    if cause in (Cause.EXCEPTION, Cause.INPUT, Cause.CONFIGURATION, Cause.FILES):
        words = str((job.files.result or {}).get("exception") or "")
    elif not words and row is not None:
        words = job.intent.complaint or row.said
    said, explained = cause.words(job.scheduler) + (f": {words}" if words else ""), cause.explanation(job.scheduler)
    label, job_id = job.order.label, record.job_id or ""
    return Failure(label, said, cause, explained, record.attempt, job_id, job.node, job.log, job.tail())
