"""The heartbeat: a file that a job rewrites while it makes progress, with Dask's progress and the memory in use."""

from __future__ import annotations

import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from espo_luigi.files import process_room
from espo_luigi.jobs import schedulers
from espo_luigi.jobs.order import between_beats
from espo_luigi.jobs.retry import Minutely

logger = logging.getLogger(__name__)

# Often enough to see most peaks of memory; a look reads a few files of /proc for each process.
_LOOK_SECONDS = 2.0
# How long the end of a job waits for a heartbeat that hangs in the file system; the result matters more.
_LONGEST_WRITE_SECONDS = 30.0
# CPU seconds and bytes that the heartbeat itself and Dask's idle event loops take in a second; more than that is work.
_IDLE_CPU = 0.1
_IDLE_BYTES = 200_000


class Use(NamedTuple):
    """What processes have used since they started.

    `read_bytes` came from files and pipes, the page cache included, `passed_bytes` went there; `written_bytes` went to
    the disk (rchar, wchar and write_bytes of /proc/PID/io).
    """

    cpu_seconds: float = 0.0
    read_bytes: int = 0
    passed_bytes: int = 0
    written_bytes: int = 0


class Monitor:
    """Watches this process and its children: memory, and whether work goes on.

    - `scheduler` is Dask's, once this process has one; `workers_elsewhere` tells that its workers are in separate jobs
      or on separate nodes.
    - `done` is set when the work is done and only the shutdown is left.
    - `blocks` returns how many blocks of the output were found complete and how many were computed, where known.
    - `made` counts the files and bytes that the job has made, as far as the task tells.
    - `memory_bytes` is the job's limit, `dashboard_port` the port of Dask's dashboard on the node; 0 if unknown.
    """

    def __init__(self) -> None:
        self.scheduler: Any = None
        self.workers_elsewhere = False
        self.done = threading.Event()
        self.made: dict[str, int] = {}
        self.blocks: Callable[[], Mapping[str, int]] = dict
        self.peak_memory_bytes = 0
        self.memory_bytes = 0
        self.dashboard_port = 0
        self._most = 1
        self._known_before = 0
        self._started = time.time()
        # Of each process, also of those that have ended: a sum over living processes would drop, and hide work.
        self._used: dict[psutil.Process, Use] = {}
        self._last = (0, 0.0, 0.0, time.monotonic())

    @property
    def used(self) -> Use:
        """What this process and its children have used."""
        return Use(*map(sum, zip(*self._used.values(), strict=True)))

    def look(self) -> bool:
        """Look now; return whether there was progress since the last: in Dask's tasks, CPU time or file traffic."""
        own, memory = psutil.Process(), 0
        for process in (own, *own.children(recursive=True)):
            with suppress(psutil.Error):
                memory += process.memory_info().rss
                moved = process.io_counters()
                cpu = sum(process.cpu_times()[:2])
                self._used[process] = Use(cpu, moved.read_chars, moved.write_chars, moved.write_bytes)
        # The maximum of getrusage would start at the parent's.
        own_peak = 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
        self.peak_memory_bytes = max(self.peak_memory_bytes, memory, own_peak)
        left, known = self.tasks_left, sum(sum(states.values()) for states in self._task_states())
        # Tasks that come after Dask was idle begin a new computation.
        self._most = max(self._most, known - self._known_before, left) if left else 1
        self._known_before = self._known_before if left else known
        used = self.used
        used_bytes = used.read_bytes + used.passed_bytes
        former_left, before_cpu, before_bytes, before = self._last
        idle = max(time.monotonic() - before, 1.0)
        works = used.cpu_seconds - before_cpu > _IDLE_CPU * idle or used_bytes - before_bytes > _IDLE_BYTES * idle
        elsewhere = self.scheduler.workers if self.workers_elsewhere and self.scheduler is not None else {}
        others_compute = any(worker.metrics.get("cpu", 0) > 100 * _IDLE_CPU for worker in list(elsewhere.values()))
        are_awaited = self.workers_elsewhere and not elsewhere
        if works or left != former_left or others_compute or are_awaited:
            self._last = (left, used.cpu_seconds, used_bytes, time.monotonic())
            return True
        return False

    @property
    def tasks_left(self) -> int:
        """The number of Dask tasks that wait or run."""
        return sum(states["waiting"] + states["processing"] + states["queued"] for states in self._task_states())

    def _task_states(self) -> list[Mapping[str, int]]:
        prefixes = self.scheduler.task_prefixes.values() if self.scheduler is not None else ()
        return [prefix.states for prefix in list(prefixes)]

    def sign_of_life(self) -> dict[str, Any]:
        """Return the current content of the heartbeat file."""
        left = self.tasks_left
        self._most = max(self._most, left)
        return {
            "time": time.time(),
            "job_id": schedulers.job_id(),
            "pid": os.getpid(),
            "room": process_room(),
            "node": socket.gethostname(),
            "started": self._started,
            "peak_memory_bytes": self.peak_memory_bytes,
            "memory_bytes": self.memory_bytes,
            "dashboard_port": self.dashboard_port,
            "percent": round(100 * (1 - left / self._most)) if left else 0,
            "message": f"Dask: {left} tasks to go" if left else "working",
            "blocks": dict(self.blocks()),
        }


@contextmanager
def beating(monitor: Monitor, write: Callable[[dict[str, Any]], None], every_seconds: float) -> Iterator[None]:
    """Pass a heartbeat to `write` now and every `every_seconds`, unless nothing moved: a hanging job stops writing.

    A failed write is no reason to stop: the next heartbeat is tried all the same.
    """
    done, trouble, began = threading.Event(), Minutely(), time.monotonic()

    def has_moved() -> bool:
        try:
            return monitor.look()
        except (psutil.Error, OSError) as error:
            trouble.warn("cannot look at this job's processes: %s", error)
            return True

    def beat() -> None:
        moved, written = True, -math.inf
        while True:
            moved = has_moved() or moved
            now = time.monotonic()
            between = between_beats(now - began, every_seconds)
            if moved and now - written >= between:
                written = now
                try:
                    write(monitor.sign_of_life())
                    moved = False
                except OSError as error:
                    trouble.warn("cannot write the heartbeat: %s", error)
            if done.wait(min(between, _LOOK_SECONDS)):
                return

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(_LONGEST_WRITE_SECONDS)
        has_moved()
