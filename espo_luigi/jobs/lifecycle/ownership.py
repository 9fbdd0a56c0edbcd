"""Whether a driver may still act: at the last look, not long ago, its locks were still its own."""

from __future__ import annotations

import logging
from collections.abc import Callable

from espo_luigi.jobs.lock import REFRESH_EVERY_SECONDS, DriverLock
from espo_luigi.jobs.trouble import Clock, Minutely

logger = logging.getLogger(__name__)


class Ownership:
    """The lock of a manager's folder, and whether `others_are_ours`: the folders that its driver locked, too."""

    def __init__(self, lock: DriverLock, others_are_ours: Callable[[], bool], clock: Clock, trouble: Minutely) -> None:
        self._lock = lock
        self.others_are_ours = others_are_ours
        self._clock = clock
        self._trouble = trouble
        self._next_look = 0.0
        self.lost = False

    def is_sure(self) -> bool:
        """Look at the locks, if the last look is a while ago: this process may have been stopped since.

        Where they cannot be looked at, the driver has to wait until they can.
        """
        if self._clock.now() >= self._next_look:
            self._look()
        return not self.lost and self._clock.now() < self._next_look

    def _look(self) -> None:
        try:
            ours = self._lock.refresh() and self.others_are_ours()
        except OSError as error:
            self._trouble.warn("trouble with the files in %s, going on: %s", self._lock.path.parent, error)
            return
        if ours:
            self._next_look = self._clock.now() + REFRESH_EVERY_SECONDS
        else:
            logger.error("%s is no longer this driver's: it stops, and leaves its jobs alone", self._lock.path)
            self.lost = True
