"""Locks of folders: a second driver is refused while the first may live, on this host or elsewhere."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from espo_luigi.errors import EspoError
from espo_luigi.files import (
    lives,
    open_own,
    process_room,
    process_start,
    read_object,
    server_time,
    this_version,
    write_atomically,
)
from espo_luigi.jobs.retry import Clock, Minutely, start

logger = logging.getLogger(__name__)

# How often a driver refreshes its locks.
REFRESH_EVERY_SECONDS = 30.0
# Two drivers look at a lock for milliseconds; waiting longer than this means that the file's lock does not work.
_LONGEST_GUARD_SECONDS = 10.0
_LOOK_SECONDS = 0.05


class SecondDriverError(EspoError):
    """A different driver works in the same folder."""


class DriverLock:
    """The file ``driver.lock``: host, process id and start of its driver, which refreshes it while it lives.

    A driver whose process cannot be looked for from here, as it is on a different host, in a different container,
    before a reboot, or hidden, counts as dead after `stale_after_seconds` of silence; 900 s, so that pauses of the
    file server that lose many refreshes in a row do no harm. The lock names the `engine` of a driver without a
    scheduler, because such a driver takes no requests to stop.
    """

    def __init__(
        self, folder: Path, stale_after_seconds: float = 900.0, *, name: str = "driver.lock", engine: str = ""
    ) -> None:
        self.path = folder / name
        self._guard = folder / f".{name.removeprefix('.')}.guard"
        self._stale_after = stale_after_seconds
        self._said = {"version": this_version()} | ({"engine": engine} if engine else {})
        self._mine = this_process()

    def acquire(self) -> None:
        """Take the lock. Raises SecondDriverError when a driver that may be alive holds it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with _alone(self._guard):
            if (holder := self.holder()) is not None and not self._is_mine(holder):
                there = f"in {holder['started_in']}" if holder.get("started_in") else "there"
                theirs, ours = holder.get("version", this_version()), this_version()
                version = "" if theirs == ours else f" (espo_luigi {theirs}; this is {ours})"
                if holder["host"] == self._mine["host"] and holder.get("room", "") != self._mine["room"]:
                    version += " (in another container there, or before its last reboot)"
                raise SecondDriverError(
                    f"a driver already works in {self.path.parent}: process {holder['pid']} on {holder['host']}"
                    f"{version}, heard of {self._age():.0f} s ago; stop that one, or use `espo detach` {there}, or "
                    f"remove {self.path} if you know that it is dead"
                )
            self._write()

    def refresh(self) -> bool:
        """Show that the driver lives; return False if the lock belongs to a different driver now.

        Raises OSError when the lock can be neither read nor written, so that its holder is unknown.
        """
        with _alone(self._guard):
            holder = read_object(self.path)
            if holder is not None and not self._is_mine(holder):
                return False
            self._write()
            return True

    def release(self) -> None:
        """Remove the lock's files, unless a different driver holds it."""
        if not self.path.parent.is_dir():
            return
        with _alone(self._guard):
            if self._is_mine(read_object(self.path) or {}):
                self.path.unlink(missing_ok=True)
            self._guard.unlink(missing_ok=True)

    def holder(self) -> dict[str, Any] | None:
        """Return what the lock says of a driver that may be alive, or None; a damaged lock has host and pid, too.

        Raises OSError when the lock cannot be read.
        """
        holder = read_object(self.path)
        if holder is None:
            return None
        number = holder.get("pid")
        holder |= {"host": str(holder.get("host", "an unknown host")), "pid": number if type(number) is int else 0}
        alive = lives(holder["pid"], holder.get("started"), holder.get("room"))
        may_live = self._age() < self._stale_after if alive is None else alive
        return holder if may_live else None

    def _write(self) -> None:
        # Version, engine and folder are for people only. Colleagues who share the folder must be able to read them.
        said = {**self._mine, **self._said}
        with contextlib.suppress(FileNotFoundError):
            said["started_in"] = os.getcwd()
        write_atomically(self.path, json.dumps(said), public=True)

    def _is_mine(self, holder: dict[str, Any]) -> bool:
        return all(holder.get(key) == value for key, value in self._mine.items())

    def _age(self) -> float:
        # Both times are the file server's, so that differing clocks of two login nodes do not matter.
        try:
            return server_time(self.path) - self.path.stat().st_mtime
        except FileNotFoundError:
            return 0.0


def this_process() -> dict[str, Any]:
    """Return what a lock says of the process that holds it."""
    own = os.getpid()
    return {"host": socket.gethostname(), "pid": own, "started": process_start(own), "room": process_room()}


class HeldLocks:
    """All locks of a driver; a thread refreshes them as long as any is held.

    A driver that was suspended for too long finds a lock taken. `on_lost` is then called with an error that names the
    lock, and `still_held` stays false until `release`.
    """

    def __init__(self, on_lost: Callable[[SecondDriverError], object], clock: Clock | None = None) -> None:
        self._on_lost = on_lost
        self._clock = clock or Clock()
        self._trouble = Minutely(self._clock)
        self._changing = threading.Lock()
        self._held: dict[Path, DriverLock] = {}
        self._released = threading.Event()
        self._looked = self._clock.now()
        self.lost = False

    def hold(self, *locks: DriverLock) -> None:
        """Take all `locks` that are not held yet; if SecondDriverError or ProcessLimitError is raised, none."""
        with self._changing, contextlib.ExitStack() as undo:
            # Sorted, so that of two drivers that want the same folders at once, the first gets them all.
            new = {lock.path: lock for lock in sorted(locks, key=lambda lock: lock.path) if lock.path not in self._held}
            for lock in new.values():
                lock.acquire()
                undo.callback(lock.release)
            if new and not self._held:
                self._released.set()
                self._released = threading.Event()
                self._looked, self.lost = self._clock.now(), False
                start(threading.Thread(target=self._refresh, args=(self._released,), daemon=True))
            undo.pop_all()
            self._held |= new

    def release(self, *locks: DriverLock) -> None:
        """Release the locks, by default all; one that cannot be removed is stale once this process has ended."""
        with self._changing:
            for lock in locks or list(self._held.values()):
                # By now, a later lock may hold the same path.
                if self._held.get(lock.path) is lock:
                    del self._held[lock.path]
                    with contextlib.suppress(OSError):
                        lock.release()
            if not self._held:
                self._released.set()
            if not locks:
                self.lost = False

    def still_held(self) -> bool:
        """Return whether all locks still belong to this driver; looks at them unless it did so a short while ago.

        Raises OSError where a lock can be neither read nor written: nothing may be started until that works again.
        """
        if not self.lost and self._clock.now() - self._looked >= REFRESH_EVERY_SECONDS:
            self._look()
        return not self.lost

    def _refresh(self, released: threading.Event) -> None:
        while not released.wait(REFRESH_EVERY_SECONDS):
            try:
                self._look()
            except OSError as error:
                self._trouble.warn("trouble with this driver's locks, going on: %s", error)

    def _look(self) -> None:
        lost, errors = [], []
        with self._changing:
            for lock in list(self._held.values()):
                try:
                    if not lock.refresh():
                        lost.append(self._held.pop(lock.path))
                except OSError as error:
                    errors.append(error)
            self.lost = self.lost or bool(lost)
            if not errors:
                self._looked = self._clock.now()
        for lock in lost:
            self._on_lost(SecondDriverError(f"{lock.path} is another driver's now: this one was silent for too long"))
        if errors:
            raise errors[0]


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Keep two drivers apart that look at a lock in the same instant.

    Where locks of files do not work (Lustre without `flock`), a window of microseconds is left.
    """
    deadline = time.monotonic() + _LONGEST_GUARD_SECONDS
    while True:
        with open(open_own(path), "w") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Its last holder may have removed it, and a third driver may hold a new file of that name.
                again = not os.path.samestat(path.stat(), os.fstat(file.fileno()))
            except (BlockingIOError, PermissionError, FileNotFoundError):
                again = True
            except OSError:
                again = False
            if not again or time.monotonic() >= deadline:
                yield
                return
        time.sleep(_LOOK_SECONDS)
