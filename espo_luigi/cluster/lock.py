"""One driver a state folder: the lock that refuses a second one, unless the first is dead."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from espo_luigi.cluster.records import read_json, write_atomically
from espo_luigi.errors import EspoError


class SecondDriverError(EspoError):
    """Another driver works on the same state folder."""


class DriverLock:
    """The file ``driver.lock``: host, process id and start of the driver that holds it, refreshed while it lives."""

    def __init__(self, folder: Path, stale_after_seconds: float = 900.0) -> None:
        self.path = folder / "driver.lock"
        self._stale_after = stale_after_seconds
        self._mine = {"host": socket.gethostname(), "pid": os.getpid(), "started": _process_start(os.getpid())}

    def acquire(self) -> None:
        """Take the lock. Raises SecondDriverError when a driver that may be alive holds it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with _alone(self.path.with_name(".driver.lock.guard")):
            holder = read_json(self.path)
            if holder is not None and not self._is_mine(holder) and self._may_live(holder):
                raise SecondDriverError(
                    f"a driver already works in {self.path.parent}: process {holder['pid']} on {holder['host']}, "
                    f"{self._age():.0f} s ago; stop that one, or use `espo detach` there, or remove {self.path} if "
                    "you know that it is dead"
                )
            self._write()

    def refresh(self) -> bool:
        """Say that the driver lives; False when the lock is another's now.

        Raises OSError when the lock can be neither read nor written, which says nothing about whose it is.
        """
        try:
            holder = _parse(self.path.read_text(encoding="utf-8", errors="replace"))
        except FileNotFoundError:
            holder = None
        if holder is not None and not self._is_mine(holder):
            return False
        self._write()
        return True

    def release(self) -> None:
        """Give the lock up, if it is still ours."""
        holder = read_json(self.path)
        if holder is not None and self._is_mine(holder):
            self.path.unlink(missing_ok=True)

    def holder(self) -> dict[str, Any] | None:
        """Host and pid of the driver that holds the lock and may be alive, or None."""
        holder = read_json(self.path)
        return holder if holder is not None and self._may_live(holder) else None

    def _write(self) -> None:
        write_atomically(self.path, json.dumps(self._mine))

    def _is_mine(self, holder: dict[str, Any]) -> bool:
        return all(holder.get(key) == value for key, value in self._mine.items())

    def _may_live(self, holder: dict[str, Any]) -> bool:
        if holder.get("host") == self._mine["host"]:
            # The start time tells a process from a later one with the same number.
            return _process_start(int(holder.get("pid", 0))) == holder.get("started")
        return self._age() < self._stale_after

    def _age(self) -> float:
        # Both times are the file server's, so that clocks of two login nodes that differ do not matter.
        probe = self.path.with_name(f".driver.lock.{os.getpid()}.now")
        try:
            probe.touch()
            return probe.stat().st_mtime - self.path.stat().st_mtime
        except FileNotFoundError:
            return 0.0
        finally:
            probe.unlink(missing_ok=True)


def _parse(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _process_start(pid: int) -> str | None:
    """When a process of this machine started, in ticks since boot, or None when there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Keep two drivers that start in the same instant apart."""
    with path.open("w") as file:
        # A file system without locks (Lustre without its flock option) leaves a window of microseconds.
        with contextlib.suppress(OSError):
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline:
                try:
                    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except (BlockingIOError, PermissionError):
                    time.sleep(0.05)
        yield
