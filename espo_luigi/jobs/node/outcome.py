"""How a job's work ended, as its result file says it."""

from __future__ import annotations

import enum


class ResultWord(enum.StrEnum):
    """The words of a result; all but the first are of jobs that have failed, or have been stopped.

    ERROR is an exception that would come again. WORKERS_LOST, like a result without any of these words, leaves it to
    the scheduler's account why; PREEMPTED, TIME_LIMIT and STOPPED are told by a job that got a signal to end.
    """

    SUCCESS = "success"
    ERROR = "error"
    INPUT = "input"
    CONFIGURATION = "configuration"
    MEMORY = "memory"
    FILES = "files"
    WORKERS_LOST = "workers lost"
    PREEMPTED = "preempted"
    TIME_LIMIT = "time limit"
    STOPPED = "stopped"
