"""Decisions about a job, as pure functions: the next action, the cause of its end, and the consequences.

`step` has the table of transitions; `causes.CAUSES` is the table of causes and consequences.
"""

from __future__ import annotations

import enum
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from espo_luigi.errors import Failure
from espo_luigi.jobs.causes import CAUSES, Cause, Retry
from espo_luigi.jobs.lifecycle.records import Record
from espo_luigi.jobs.lifecycle.state import Job, Success
from espo_luigi.jobs.order import OWN_CAUSES, JobState, is_final
from espo_luigi.jobs.retry import growing_pause
from espo_luigi.jobs.schedulers.base import Phase
from espo_luigi.jobs.settings import BatchSettings, Patience

GROWTH = 1.5


class Action(enum.Enum):
    """What the driver does next about a job; `step` has the table.

    LOOK, CLAIM, CLOSE and WITHDRAW find out what the table needs, and `step` decides again.
    """

    WAIT = "wait"
    LOOK = "look"  # for the output
    CLAIM = "claim"  # close the claim of a submission without a trace, unless a job has it
    CLOSE = "close"  # close the claim, and look at how the job ended
    WITHDRAW = "withdraw"  # likewise, and cancel the job, which was queued again
    CANCEL = "cancel"
    SUCCEED = "succeed"
    FAIL = "fail"
    AGAIN = "again"  # submit the next record
    AGAIN_ALONE = "again, alone"  # in no bundle
    AGAIN_ANYWHERE = "again, anywhere"  # on any node


class Step(NamedTuple):
    """Where a job stands, the next action, why, and the record to write before it."""

    state: JobState
    action: Action = Action.WAIT
    cause: Cause | None = None
    record: Record | None = None


def step(job: Job, now: float, settings: BatchSettings) -> Step:
    """Return where a job stands, and the next action with its cause and its record.

    The first row that holds counts. The action is WAIT if none does, or until the time in brackets has passed. Times
    count from when this driver began to look (`Job.watched_since`).

    =================== ======================================================================== ============
    State               What is known                                                            Action
    =================== ======================================================================== ============
    any                 the scheduler refused it for good                                        gives up
    ENDED               its result says success                                                  LOOK
    ENDED               its result says success, and its output is there                         SUCCEED
    ENDED               its result says success, and its output is not there [latency_wait]      ends
    ENDED               it has a result, or nothing of it ran                                    ends
    ENDED               neither [latency_wait]                                                   ends
    any                 its result says failure [latency_wait], and it leaves its node, is in    ends
                        no answer, or the scheduler is silent, whose word on memory is awaited
    any                 its result says failure, and it runs without a sign of life              ends
                        [absent_after]
    any                 its result says failure for good, and it was requeued                    ends
    MISSING, CANCELLING it is in no answer, its id unknown [settle, or absent_after if the       gives up
                        scheduler took it]
    MISSING, CANCELLING it is in no answer, without a sign of life [absent_after]                ends
    READY               the user cancelled its order                                             FAIL
    any                 likewise, it has an id, and this driver has not cancelled it             CANCEL
    any                 the scheduler is silent                                                  WAIT
    CANCELLING          it leaves its node, and this driver has not cancelled it                 CANCEL
    CANCELLING          it leaves its node [absent_after]                                        ends
    CANCELLING          it is there still, and wanted as little as before [cancel_again]         CANCEL
    QUEUED              it waits without hope [hopeless]                                         CANCEL
    RUNNING             it runs without a sign of life [stall_timeout_seconds]                   CANCEL
    READY               not submitted                                                            WAIT
    =================== ======================================================================== ============

    "gives up": see `_given_up`. "ends": see `_after_its_end`.
    """
    state = _state(job)
    if job.intent.refused:
        return _given_up(job, state, now, settings.patience)
    if job.files.succeeded and job.end.complete is not False:
        return Step(state, Action.LOOK) if job.end.complete is None else _succeeded(job, state)
    if _is_over(job, state, now, settings.patience):
        return _after_its_end(job, state, now, settings)
    if state is JobState.READY and job.unwanted:
        return _failed(job, state, Cause.DRIVER_CANCELLED)
    if state is not JobState.ENDED and (cause := _cause_to_cancel(job, now, settings)):
        return Step(state, Action.CANCEL, cause, replace(job.record, ending=cause))
    return Step(state)


def _is_over(job: Job, state: JobState, now: float, patience: Patience) -> bool:
    """Whether a submission has ended, or counts as ended. Its claim is closed before anything follows."""
    seen, missing = job.seen, job.seen.missing
    if state is JobState.ENDED:
        return _is_settled(job, now, patience)
    if _has_failed_for_good(job, now, patience):
        return True
    if not seen.answered:
        return False
    if missing is not None and job.record.job_id is None:
        return job.read_for(missing, now, patience.absent_after if job.intent.accepted else patience.settle)
    if missing is not None:
        alive = job.heard_since is not None and now - job.heard_since < patience.absent_after
        return not alive and job.read_for(missing, now, patience.absent_after)
    # Its node may be dead.
    leaves = state is JobState.CANCELLING and job.intent.cancelled is not None
    return leaves and job.watched_for(seen.since_when(Phase.LEAVING), now, patience.absent_after)


def _is_settled(job: Job, now: float, patience: Patience) -> bool:
    """Whether nothing more about a job that has ended is to be expected."""
    if job.files.succeeded:
        return job.watched_for(job.files.result_since, now, patience.latency_wait)
    # The scheduler may list the end before the result file is visible here.
    ran = job.row is None or not job.row.no_log
    return job.files.result is not None or not ran or job.read_for(job.ended_since, now, patience.latency_wait)


def _cause_to_cancel(job: Job, now: float, settings: BatchSettings) -> Cause | None:
    """Why to cancel, maybe again, a job that is not wanted, waits without hope or hangs; None if it may go on."""
    patience, seen, cancelled = settings.patience, job.seen, job.intent.cancelled
    if job.unwanted and job.record.job_id and cancelled is None:
        return Cause.DRIVER_CANCELLED
    if seen.missing is not None or not seen.answered:
        return None
    if seen.since_when(Phase.LEAVING) is not None:
        # An earlier driver wrote why it is to be cancelled, and may have got no further.
        return Cause(job.record.ending) if job.record.ending and cancelled is None else None
    if cancelled is not None and not job.watched_for(cancelled, now, patience.cancel_again):
        return None
    hopeless = job.row is not None and job.row.hopeless and job.watched_for(seen.since, now, patience.hopeless)
    works = seen.since_when(Phase.RUNNING) is not None and not has_failed(job)
    hangs = works and job.watched_for(job.heard_since, now, settings.stall_timeout_seconds or math.inf)
    if job.record.ending == Cause.DRIVER_CANCELLED and (cancelled is not None or hopeless or hangs):
        return Cause.DRIVER_CANCELLED
    if hopeless:
        # A node that cannot launch jobs (its prolog fails, say) gives them back held.
        return Cause.NODE if job.row is not None and job.row.launch_failed else Cause.HOPELESS
    return Cause.STALLED if hangs else None


def _succeeded(job: Job, state: JobState, cause: Cause | None = None) -> Step:
    return Step(state, Action.SUCCEED, cause, replace(job.record, state=JobState.SUCCEEDED, cause=""))


def _failed(job: Job, state: JobState, cause: Cause) -> Step:
    record = replace(job.record, state=JobState.FAILED, cause=cause)
    if CAUSES[cause].forgets:
        record = replace(record, learnt_memory_bytes=0, learnt_time_minutes=0)
    return Step(state, Action.FAIL, cause, record)


def _given_up(job: Job, state: JobState, now: float, patience: Patience) -> Step:
    """What is done about a submission that was refused, or never arrived: first its claim is closed.

    If a job has the claim, that job is found by its id. An empty claim is of a driver or a job that could not write it.
    """
    if not job.end.unclaimed:
        empty = job.watched_for(job.files.claim_empty_since, now, patience.latency_wait)
        return Step(state, Action.CLOSE if empty else Action.CLAIM)
    if job.intent.refused:
        return _elsewhere(job, state, Cause.REFUSED) or _failed(job, state, Cause.REFUSED)
    lasts = job.watched_for(job.intent.refused_since, now, patience.unclear_refusal)
    if job.intent.unclear and job.end.is_only_job and lasts:
        return _failed(job, state, Cause.REFUSED)
    return Step(state, Action.AGAIN, Cause.UNCONFIRMED, job.record.next_submission(Cause.UNCONFIRMED))


def _elsewhere(job: Job, state: JobState, cause: Cause) -> Step | None:
    """A job that gets no place goes alone, or to any node; None if it asked for no less already."""
    if job.record.bundle:
        return Step(state, Action.AGAIN_ALONE, cause, job.record.next_submission(cause))
    if job.end.avoids_nodes:
        # Nodes where jobs ended badly are better than none.
        return Step(state, Action.AGAIN_ANYWHERE, cause, job.record.next_submission(cause, exclude=()))
    return None


def _after_its_end(job: Job, state: JobState, now: float, settings: BatchSettings) -> Step:
    """What follows a submission that is over; the first that holds.

    0. It never got an id, nor a result: see `_given_up`.
    1. Its claim is not closed: CLOSE or, if it was queued again though it failed for good, WITHDRAW.
    2. Its output may be complete nevertheless (`Consequences.may_be_done`): LOOK, then SUCCEED if so.
    3. It waited without hope, in a bundle or avoiding nodes: AGAIN_ALONE, AGAIN_ANYWHERE.
    4. `CAUSES` and `next_record` allow one more submission, and the user has not cancelled the order: AGAIN.
    5. FAIL.
    """
    end, record = job.end, job.record
    if record.job_id is None and job.files.result is None and state is not JobState.ENDED:
        return _given_up(job, state, now, settings.patience)
    if end.unclaimed is None:
        return Step(state, Action.WITHDRAW if _was_requeued_in_vain(job) else Action.CLOSE)
    cause = _cause(job)
    if CAUSES[cause].may_be_done and end.complete is not False:
        return Step(state, Action.LOOK, cause) if end.complete is None else _succeeded(job, state, cause)
    if cause is Cause.HOPELESS and (elsewhere := _elsewhere(job, state, cause)):
        return elsewhere
    if job.adopted and cause is Cause.NO_OUTPUT:
        # An old success, whose output was removed since.
        following: Record | None = record.next_submission(cause, attempt=1)
    elif job.adopted and cause is Cause.CONFIGURATION:
        # It was ordered under an earlier driver's configuration.
        following = record.next_submission(cause)
    else:
        following = next_record(record, cause, settings, job.node, progressed=job.blocks_done > 0)
    if following is None or job.unwanted:
        return _failed(job, state, Cause.NO_LOG if end.no_log and cause in _NOTHING_RAN else cause)
    return Step(state, Action.AGAIN, cause, following)


def _cause(job: Job) -> Cause:
    """Why the job did not succeed; one without a trace was cancelled by somebody while it waited, or is lost."""
    end, row = job.end, job.row
    if job.files.succeeded:
        return Cause.NO_OUTPUT
    if job.ended_since is not None or job.files.result is not None or job.record.ending:
        ended = row.phase if row is not None and row.ended else None
        cause = cause_of(ended, job.files.cause, job.record.ending, end.log_says_memory)
        return Cause.NO_LOG if end.no_log_again and cause in _NOTHING_RAN else cause
    waited = row is None or row.phase is Phase.PENDING
    if not (waited and job.scheduler.forgets_cancelled(str(job.record.job_id))):
        return Cause.LOST
    # The accounting, or without it the claim, would show that the job has begun since.
    return Cause.CANCELLED if end.unclaimed or (row is not None and end.is_accounted) else Cause.LOST


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
    if _was_requeued_in_vain(job):
        return True
    if not has_failed(job) or not job.watched_for(result_since, now, patience.latency_wait):
        return False
    if not job.seen.answered:
        return job.files.cause is not Cause.MEMORY
    # Its processes are gone, though a site's epilog may go on for an hour.
    if job.seen.since_when(Phase.LEAVING) is not None or job.seen.missing is not None:
        return True
    # It still runs for the scheduler: its process hangs as it ends, or Grid Engine runs the site's epilog.
    ends_for_long = all(job.watched_for(since, now, patience.absent_after) for since in (result_since, job.heard_since))
    return ends_for_long and job.seen.since_when(Phase.RUNNING) is not None


def _was_requeued_in_vain(job: Job) -> bool:
    """Whether the scheduler queued the job again, as some sites have it do, though it would fail again.

    It has to say so after the result was found: a short job ends before the scheduler's next answer.
    """
    waited, result_since = job.seen.off_node, job.files.result_since
    told_since = waited is not None and result_since is not None and waited > result_since
    return told_since and is_final(job.files.result) and job.seen.since_when(Phase.PENDING) is not None


# The causes for which a job may have ended because no node can open a log.
_NOTHING_RAN = (Cause.CRASHED, Cause.HOPELESS)
# The scheduler's definite words.
_DEFINITE = (Cause.MEMORY, Cause.TIMEOUT, Cause.NODE, Cause.PREEMPTED, Cause.DEADLINE, Cause.NOT_BEGUN)


def has_failed(job: Job) -> bool:
    """Whether the job itself has written that it failed, and why."""
    return job.files.cause in OWN_CAUSES


def cause_of(ended: Phase | Cause | None, said: Cause | None, ending: str, log_says_memory: bool) -> Cause:
    """Why a job that ended did not succeed.

    `ended` is the scheduler's word for its end, None if the scheduler does not know the job; `said` is the job's own
    word, and `ending` is why the driver cancelled it. A definite word of the scheduler's goes before the job's own: a
    job that is being stopped may report the exception that the stopping caused.
    """
    # A job that waited without hope may have begun all the same, before its cancellation arrived.
    if ending == Cause.STALLED or (ending in (Cause.HOPELESS, Cause.NODE) and said not in OWN_CAUSES):
        return Cause(ending)
    if ended in _DEFINITE:
        return Cause(ended)
    forgotten = ended is None and said in (None, Cause.PREEMPTED, Cause.TIMEOUT)
    if ending == Cause.DRIVER_CANCELLED and (ended is Cause.CANCELLED or forgotten):
        return Cause.DRIVER_CANCELLED
    if said is Cause.MEMORY:
        return Cause.MEMORY
    if ended is Cause.CANCELLED and not ending:
        return Cause.CANCELLED
    if log_says_memory:
        return Cause.MEMORY
    return said or Cause.CRASHED


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
    elif cause is Cause.REFUSED:
        words = job.intent.refused or job.intent.unclear
    elif not words and row is not None:
        words = job.intent.complaint or row.said
    said, explained = cause.words(job.scheduler) + (f": {words}" if words else ""), cause.explanation(job.scheduler)
    label, job_id = job.order.label, record.job_id or ""
    return Failure(label, said, cause, explained, record.attempt, job_id, job.node, job.log, job.tail())
