"""File systems that fail for a moment: which errors pass, and going on meanwhile."""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from espo_luigi.jobs.clock import Clock

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Errors of disks, quotas and network file systems themselves, whatever was asked of them.
PASSING = frozenset(
    {
        errno.EIO,
        errno.ESTALE,
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EROFS,  # a disk that failed is mounted anew, to be read only
        errno.ETIMEDOUT,
        errno.EREMOTEIO,
        errno.ENOLCK,
        errno.EBUSY,
        errno.EAGAIN,
        errno.EINTR,
        errno.ENOTCONN,  # Lustre and Ceph, when their server has forgotten this client
        errno.ESHUTDOWN,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
    }
)
# Libraries of C put the system's words into errors of their own (HDF5: "errno = 28, … 'No space left on device'").
_WORDS = tuple(os.strerror(number) for number in (errno.EIO, errno.ESTALE, errno.ENOSPC, errno.EDQUOT))

# For how long a job asks a file system again that fails for a moment.
JOBS_PATIENCE_SECONDS = 300.0
# For how long a driver does, where it has nothing to do meanwhile.
DRIVERS_PATIENCE_SECONDS = 300.0
_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 60.0
_SAY_EVERY_SECONDS = 60.0


def passes(error: OSError) -> bool:
    """Whether the same may succeed a while later."""
    return error.errno in PASSING


def is_file_trouble(error: BaseException) -> bool:
    """Whether a file system's failure is among an error's causes: xarray, Zarr and Dask wrap them."""
    return any(
        (isinstance(one, OSError) and passes(one)) or any(words in str(one) for words in _WORDS)
        for one in _chain(error)
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    to_do: list[BaseException | None] = [error]
    while to_do:
        one = to_do.pop()
        if one is not None and not any(one is other for other in seen):
            seen.append(one)
            yield one
            to_do += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]


class Minutely:
    """Warns of a trouble that lasts, once a minute."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or Clock()
        self._next = 0.0

    def warn(self, message: str, *values: object) -> None:
        """Log the warning, unless one was logged less than a minute ago."""
        if self._clock.now() >= self._next:
            self._next = self._clock.now() + _SAY_EVERY_SECONDS
            logger.warning(message, *values)


def growing_pause(failures: int, first: float, longest: float, factor: float = 2.0) -> float:
    """Return the seconds to wait after so many failures in a row: `first`, and each time `factor` times as long."""
    # A higher power may be too large for a float.
    return min(first * factor ** min(failures - 1, 60), longest)


def persistently(
    action: Callable[[], T],
    seconds: float,
    pause: Callable[[float], object] = time.sleep,
    warn: Callable[..., object] = logger.warning,
) -> T:
    """Do `action`; while a file system fails, do it again, with growing pauses, for so many seconds.

    Raises what the last try raised, and at once what does not pass.
    """
    until, failures = time.monotonic() + seconds, 0
    while True:
        try:
            return action()
        except OSError as error:
            failures += 1
            wait = growing_pause(failures, _FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
            if not passes(error) or time.monotonic() + wait > until:
                raise
            warn("%s: trying again in %.0f s", error, wait)
        pause(wait)
