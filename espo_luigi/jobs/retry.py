"""Waiting and trying again: the clock, growing pauses, and file-system errors that pass by themselves."""

from __future__ import annotations

import itertools
import logging
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from espo_luigi.errors import ProcessLimitError
from espo_luigi.files import passes

logger = logging.getLogger(__name__)

T = TypeVar("T")

# A clock that counts the time in which the machine slept; Linux alone has it.
_SLEEP_COUNTS: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

# How long a job, and a driver that has nothing else to do, try a failing file operation again: a file server that
# fails over to its partner is back within minutes, while a full disk needs people.
JOBS_PATIENCE_SECONDS = 300.0
DRIVERS_PATIENCE_SECONDS = 300.0
# The first pause is for errors of an instant; the longest finds a recovered server within a minute.
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 60.0
# A trouble of hours leaves a line a minute in the log, rather than thousands.
_SAY_EVERY_SECONDS = 60.0


class Clock:
    """The machine's clock; tests pass a clock of their own to the job manager."""

    def now(self) -> float:
        """Return seconds that only grow: changes of the date do not matter, and time in suspension counts."""
        return time.clock_gettime(_SLEEP_COUNTS)

    def wait(self, event: threading.Event, seconds: float) -> None:
        event.wait(seconds)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def start(thread: threading.Thread) -> None:
    """Start a thread. Raises ProcessLimitError."""
    try:
        thread.start()
    except RuntimeError as error:
        raise ProcessLimitError(process_limit(error)) from error


def process_limit(error: Exception) -> str:
    """Return the sentence for a thread or a process that the machine did not let start."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    many = "any number of" if allowed == resource.RLIM_INFINITY else allowed
    return (
        f"{socket.gethostname()} lets this account start no further process or thread ({error}): `ulimit -u` allows "
        f"{many} processes, and a container may allow less; all programs of the account count. End other programs, "
        "raise the limit, or lower [core] workers"
    )


def growing_pause(failures: int, first: float, longest: float, factor: float = 2.0) -> float:
    """Return the seconds to wait after so many failures in a row: `first`, and each time `factor` times as long."""
    # A higher power may be too large for a float.
    return min(first * factor ** min(failures - 1, 60), longest)


def growing_pauses(first: float, longest: float) -> Iterator[float]:
    """Return endless pauses in seconds, each twice the last, up to the longest."""
    return (growing_pause(failures, first, longest) for failures in itertools.count(1))


class Minutely:
    """Logs a warning about a lasting trouble, at most once a minute."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or Clock()
        self._next = 0.0

    def warn(self, message: str, *values: object) -> None:
        """Log the warning, unless the last was less than a minute ago."""
        if self._clock.now() >= self._next:
            self._next = self._clock.now() + _SAY_EVERY_SECONDS
            logger.warning(message, *values)


def persistently(
    action: Callable[[], T],
    seconds: float,
    pause: Callable[[float], object] = time.sleep,
    warn: Callable[..., object] = logger.warning,
) -> T:
    """Call `action`, and call it again with growing pauses for `seconds` while it fails with a passing OSError.

    An OSError that does not pass is raised at once, the last passing one after `seconds`.
    """
    until = time.monotonic() + seconds
    pauses = growing_pauses(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
    while True:
        try:
            return action()
        except OSError as error:
            wait = next(pauses)
            if not passes(error) or time.monotonic() + wait > until:
                raise
            warn("%s: trying again in %.0f s", error, wait)
        pause(wait)
