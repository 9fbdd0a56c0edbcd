"""A lock between processes on all nodes, for a file that several processes write."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from espo_luigi.errors import StoreError
from espo_luigi.files import write_new
from espo_luigi.jobs.lock import DriverLock, HeldLocks, SecondDriverError
from espo_luigi.replacing import Judge
from espo_luigi.store.disk import disk_errors
from espo_luigi.store.publish import written_aside

logger = logging.getLogger(__name__)

# A writer on a second node with an older lock is dead: living writers refresh theirs ten times as often.
SILENT_SECONDS = 300.0
# Longer than the time after which a silent writer counts as dead.
PATIENCE_SECONDS = 600.0
_LOOK_EVERY_SECONDS = 0.2

Write = Callable[[Path, str, Judge], None]


@contextmanager
def alone(path: Path, patience_seconds: float = PATIENCE_SECONDS) -> Iterator[Write]:
    """Wait until no other process changes `path`; yield a function that replaces a file of ours by a text.

    The file is replaced whole or not at all.

    The lock is a file beside it, with host, process and start of its holder. The lock of a dead process of this host is
    taken at once. The lock of a process of a second host is taken once it has not been refreshed for long.

    Raises
    ------
    StoreError
        If another process holds the lock for longer than `patience_seconds`, or the folder cannot be written to.
    """
    lock, locks = DriverLock(path.parent, SILENT_SECONDS, name=f".{path.name}.lock"), HeldLocks(logger.warning)
    with disk_errors(path, "write"):
        _take(lock, locks, path, time.monotonic() + patience_seconds)

    def write(target: Path, text: str, judge: Judge) -> None:
        with written_aside(target, judge=judge) as partial:
            write_new(partial, text, durable=True)
            if not locks.still_held():
                raise StoreError(
                    f"{path} was not written: this process was suspended, and another process writes there now; give "
                    "the command again"
                )

    try:
        yield write
    finally:
        locks.release()


def _take(lock: DriverLock, locks: HeldLocks, path: Path, deadline: float) -> None:
    while True:
        try:
            return locks.hold(lock)
        except SecondDriverError:
            holder = lock.holder()
            if holder is not None and time.monotonic() > deadline:
                raise StoreError(
                    f"{path} is being written by process {holder['pid']} on {holder['host']}, also after a long wait: "
                    f"give the command again later, or remove {lock.path} if you know that it is dead"
                ) from None
        time.sleep(_LOOK_EVERY_SECONDS)
