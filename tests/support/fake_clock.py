"""A clock that stands still until a test moves it, so that minutes of waiting take no time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from espo_luigi.jobs.retry import Clock

# What the manager's thread may take to do what is due, when the test has moved the clock.
_PATIENCE_SECONDS = 30.0


class FakeClock(Clock):
    """The manager's time; `go_on` moves it, and returns once the manager waits again."""

    def __init__(self) -> None:
        self._now = 1000.0
        self._changed = threading.Condition()
        self._waiting: dict[int, float] = {}

    def now(self) -> float:
        return self._now

    def wait(self, event: threading.Event, seconds: float) -> None:
        moment, me = self._now + seconds, threading.get_ident()
        with self._changed:
            self._waiting[me] = moment
            while self._now < moment and not event.is_set():
                # An event is set without a word to this clock.
                self._changed.wait(0.005)
            del self._waiting[me]

    def sleep(self, seconds: float) -> None:
        with self._changed:
            self._now += seconds

    def go_on(self, seconds: float, until: Callable[[], object] = lambda: False) -> bool:
        """Move the time on, from one thing that somebody waits for to the next; stop where `until` is true."""
        end = self._now + seconds
        while not until():
            self._let_others_work(until)
            if until() or self._now >= end:
                break
            with self._changed:
                due = [moment for moment in self._waiting.values() if moment > self._now]
                self._now = min([end, *due])
                self._changed.notify_all()
        return bool(until())

    def _let_others_work(self, until: Callable[[], object]) -> None:
        """Return once somebody waits for a later moment, or `until` is true."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        quiet = time.monotonic() + 0.006
        while time.monotonic() < deadline and not until():
            with self._changed:
                at_rest = bool(self._waiting) and all(moment > self._now for moment in self._waiting.values())
            if not at_rest:
                quiet = time.monotonic() + 0.006
            elif time.monotonic() >= quiet:
                return
            time.sleep(0.001)


class RunningClock(Clock):
    """The real time, for tests of what waits for it elsewhere, too."""

    def go_on(self, seconds: float, until: Callable[[], object] = lambda: False) -> bool:
        """Wait until it is true, or so many seconds."""
        deadline = time.monotonic() + seconds
        while not until() and time.monotonic() < deadline:
            time.sleep(0.02)
        return bool(until())
