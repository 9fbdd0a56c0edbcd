"""The time that the job manager uses."""

from __future__ import annotations

import threading
import time

# A clock that counts the time that a machine slept is Linux's alone.
_SLEEP_COUNTS: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock:
    """The machine's own; a test gives the manager another one."""

    def now(self) -> float:
        """Seconds that only grow, whatever the machine's date is set to; time while it is suspended counts."""
        return time.clock_gettime(_SLEEP_COUNTS)

    def wait(self, event: threading.Event, seconds: float) -> None:
        """Wait for `event`, for so many seconds at most."""
        event.wait(seconds)

    def sleep(self, seconds: float) -> None:
        """Wait for so many seconds."""
        time.sleep(seconds)
