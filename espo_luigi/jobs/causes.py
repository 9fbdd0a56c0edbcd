"""Why a job did not succeed, in one word, and what follows; `CAUSES` is the table of meanings and consequences.

The scheduler's word and the job's own become a `Cause` where they are read: by the schedulers' parsers, and by
`order.result_cause`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


class Named(Protocol):
    """A scheduler, as far as sentences about it need it."""

    NAME: str
    SUBMIT: str


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

    def words(self, scheduler: Named | None = None) -> str:
        """Return the cause in some words, for messages."""
        return CAUSES[self].words.format(scheduler=scheduler.NAME if scheduler else "the scheduler")

    def explanation(self, scheduler: Named | None = None) -> str:
        """Return its meaning for the user, and the remedy, if there is any."""
        name, submit = (scheduler.NAME, scheduler.SUBMIT) if scheduler else ("the scheduler", "the scheduler")
        told = (CAUSES[self].meaning, CAUSES[self].remedy)
        return "; ".join(text.format(scheduler=name, submit=submit) for text in told if text)


def words_of(code: str) -> str:
    """Return the words for a code of a record; a code that is no cause's stands for itself."""
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
