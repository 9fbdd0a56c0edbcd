"""What is done about a job that did not succeed: a pure function of the cause, the record and the limits."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from espo_luigi.jobs.lifecycle.records import FINISHED, Record
from espo_luigi.jobs.order import ResultWord
from espo_luigi.jobs.schedulers.base import Phase, Scheduler

GROWTH = 1.5
_LONGER_PAUSE = 5


class Cause(enum.Enum):
    """Why a job did not succeed."""

    EXCEPTION = "exception"
    INPUT = "input gone or replaced"
    FILES = "file system failed"
    CONFIGURATION = "configuration changed"
    MEMORY = "out of memory"
    TIMEOUT = "time limit"
    NODE = "node failed"
    PREEMPTED = "preempted"
    NOT_BEGUN = "not begun when its bundle ended"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    STALLED = "stalled"
    CRASHED = "ended without a result"
    LOST = "lost"
    REFUSED = "refused by {scheduler}"
    HOPELESS = "cannot start"
    NO_OUTPUT = "output missing"
    UNCONFIRMED = "never arrived in {scheduler}"
    DRIVER_CANCELLED = "cancelled by the driver"
    DETACHED = "left to the next driver"
    INTERNAL = "error in the driver"

    def words(self, scheduler: Scheduler) -> str:
        """The cause in one or two words, as records and messages have it."""
        return self.value.format(scheduler=scheduler.NAME)

    def explanation(self, scheduler: Scheduler) -> str:
        """What it means, and what to do."""
        return EXPLANATION[self].format(scheduler=scheduler.NAME, submit=scheduler.SUBMIT)


# Another try would end in the same way: wrong code, or somebody's decision. After INPUT, the driver has the input made
# again first, and then asks for the job again.
_FINAL = frozenset(
    {
        Cause.EXCEPTION,
        Cause.INPUT,
        Cause.CONFIGURATION,
        Cause.CANCELLED,
        Cause.DEADLINE,
        Cause.REFUSED,
        Cause.HOPELESS,
        Cause.NO_OUTPUT,
    }
)
# By the outcome with which a job says itself that it has failed.
OUTCOMES: Mapping[str, Cause] = {
    ResultWord.ERROR: Cause.EXCEPTION,
    ResultWord.INPUT: Cause.INPUT,
    ResultWord.CONFIGURATION: Cause.CONFIGURATION,
    ResultWord.FILES: Cause.FILES,
    ResultWord.MEMORY: Cause.MEMORY,
}
# By the outcome of a job that got a signal to end, where the scheduler says no more than that it ended.
_TOLD: Mapping[str, Cause] = {ResultWord.PREEMPTED: Cause.PREEMPTED, ResultWord.TIME_LIMIT: Cause.TIMEOUT}
# Not the job's fault: no attempt is charged, but there is an end to it.
_UNCHARGED = frozenset({Cause.NODE, Cause.PREEMPTED, Cause.NOT_BEGUN})
# Causes that cost no attempt if the job completed some blocks.
_GOES_ON = _UNCHARGED | {Cause.TIMEOUT}
# The node is as likely to be at fault as the task, which is tried on another one: a file system that failed there, and
# ends without a word of Python's.
_MAYBE_THE_NODE = frozenset({Cause.NODE, Cause.FILES, Cause.CRASHED, Cause.LOST, Cause.STALLED})


@dataclass(frozen=True)
class Limits:
    """How far retries may go. `max_uncharged` ends a series of failing nodes."""

    retries: int
    memory_cap_bytes: int | None
    time_cap_minutes: int | None
    max_uncharged: int = 20


def next_record(
    record: Record, cause: Cause, limits: Limits, node: str = "", excused: bool = False, progressed: bool = False
) -> Record | None:
    """The record of another submission after `cause`, or None when there is to be none.

    An `excused` end is known to be the cluster's fault: it is not charged, as the failures of nodes are not. A job that
    has `progressed` has completed a part of its output, and will go on from there: as long as it does, it may be
    preempted, lose its node or run out of time any number of times.
    """
    if cause in _FINAL:
        return None
    if cause is Cause.DRIVER_CANCELLED:
        # The user stopped the run and has started it again: it is no fault of the job.
        return record.next_submission(cause.value)
    changes: dict[str, Any] = {}
    if cause in _MAYBE_THE_NODE and node:
        changes["exclude"] = tuple(sorted({*record.exclude, node}))
    if cause in _GOES_ON and progressed:
        return record.next_submission(cause.value, uncharged=0, **changes)
    if cause in _UNCHARGED or excused:
        if record.uncharged >= limits.max_uncharged:
            return None
        return record.next_submission(cause.value, uncharged=record.uncharged + 1, **changes)
    if record.attempt > limits.retries:
        return None
    more = _more_resources(record, cause, limits)
    return None if more is None else record.next_submission(cause.value, attempt=record.attempt + 1, **changes, **more)


def pause_before(record: Record, first: float) -> float:
    """Seconds to wait before the record's submission: `first`, growing, after a file system that failed."""
    ends = [past["ended"] for past in record.history]
    if not ends or ends[-1] != Cause.FILES.value:
        return 0.0
    return min(first * _LONGER_PAUSE ** (ends.count(Cause.FILES.value) - 1), 30 * first)


def last_record(record: Record, cause: Cause | None, scheduler: Scheduler) -> Record:
    """The record of a task that is not tried again in this run, after success (None) or for a cause."""
    changes: dict[str, Any] = {"outcome": ResultWord.SUCCESS if cause is None else cause.words(scheduler)}
    if cause in (Cause.REFUSED, Cause.HOPELESS):
        # It may be for what it has learnt to ask for: the next run begins as it was told to.
        changes |= {"learnt_memory_bytes": 0, "learnt_time_minutes": 0}
    return replace(record, state=FINISHED, **changes)


def _more_resources(record: Record, cause: Cause, limits: Limits) -> dict[str, int] | None:
    """What grows; None when it is at its cap already, as the same again would fail again."""
    if cause is Cause.MEMORY:
        memory = _grown(record.memory_bytes, limits.memory_cap_bytes)
        more = {"memory_bytes": memory, "learnt_memory_bytes": memory}
        return None if memory <= record.memory_bytes else more
    if cause is Cause.TIMEOUT:
        minutes = _grown(record.time_minutes, limits.time_cap_minutes)
        more = {"time_minutes": minutes, "learnt_time_minutes": minutes}
        return None if minutes <= record.time_minutes else more
    return {}


def _grown(value: int, cap: int | None) -> int:
    grown = math.ceil(value * GROWTH)
    return grown if cap is None else min(grown, cap)


_BY_PHASE = {
    Phase.MEMORY: Cause.MEMORY,
    Phase.TIMEOUT: Cause.TIMEOUT,
    Phase.NODE: Cause.NODE,
    Phase.PREEMPTED: Cause.PREEMPTED,
    Phase.DEADLINE: Cause.DEADLINE,
}


def cause_of(phase: Phase | None, result: Mapping[str, Any] | None, ending: str, log_says_memory: bool) -> Cause:
    """Why a job that ended did not succeed.

    The scheduler's word goes before the job's own where it is definite: a job that is being stopped may well write down
    the exception that the stopping caused. `phase` None is a job of which the scheduler says nothing.
    """
    outcome = result.get("outcome") if result else None
    for ours in (Cause.STALLED, Cause.HOPELESS, Cause.NODE):
        if ending == ours.value:
            return ours
    if phase in _BY_PHASE:
        return _BY_PHASE[phase]
    forgotten = phase is None and outcome in (None, ResultWord.STOPPED, *_TOLD)
    if ending == Cause.DRIVER_CANCELLED.value and (phase is Phase.CANCELLED or forgotten):
        return Cause.DRIVER_CANCELLED
    if outcome == ResultWord.MEMORY:
        return Cause.MEMORY
    # `ending` is set when the engine itself cancelled a job that had written its result and did not go.
    if phase is Phase.CANCELLED and not ending:
        return Cause.CANCELLED
    if log_says_memory:
        return Cause.MEMORY
    return {**OUTCOMES, **_TOLD}.get(str(outcome), Cause.CRASHED)


EXPLANATION: Mapping[Cause, str] = {
    Cause.EXCEPTION: "Python raised an exception, which would come again: not retried",
    Cause.INPUT: "an input was not the one that it began with, and nothing was published",
    Cause.FILES: "a disk, a quota or a network file system failed under it; see to it, and run again",
    Cause.CONFIGURATION: "it was ordered under another one, or by another version, and did nothing: not retried",
    Cause.MEMORY: "it needed more memory than it had; raise `memory` or its cap",
    Cause.TIMEOUT: "it ran into its time limit; raise `time` or its cap",
    Cause.NODE: "nodes failed under it",
    Cause.PREEMPTED: "it was preempted again and again",
    Cause.NOT_BEGUN: "others of its bundle used up its time or memory again and again; lower `pack` or raise `time`",
    Cause.CANCELLED: "somebody cancelled it: not retried",
    Cause.DEADLINE: "its deadline passed: not retried",
    Cause.STALLED: "its heartbeat stopped while it ran; its stack is in the log if it could be had",
    Cause.CRASHED: "it ended without writing a result: look for a signal or a failed set-up in the log",
    Cause.LOST: "{scheduler} does not know it any more, and it left no result",
    Cause.REFUSED: "{submit} refused it",
    Cause.HOPELESS: "it waits for something that does not pass by itself, such as a limit: ask for less, or elsewhere",
    Cause.NO_OUTPUT: "it reported success, but its output is not there",
    Cause.UNCONFIRMED: "{submit} failed, and the job never appeared in {scheduler}",
    Cause.DRIVER_CANCELLED: "the run was cancelled",
    Cause.DETACHED: "the driver left; the next one takes the job over",
    Cause.INTERNAL: "the driver could not handle it",
}
