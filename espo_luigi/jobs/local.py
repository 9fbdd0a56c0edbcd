"""The local engine: each job in a child process on this machine, as many at once as its CPUs and memory allow."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from espo_luigi.errors import JobError, JobInputError
from espo_luigi.jobs.forkserver import Child, ForkServer
from espo_luigi.jobs.order import JobOrder, last_lines, seconds_of
from espo_luigi.jobs.records import read_json, read_object
from espo_luigi.jobs.resources import Resources, machine_cpus, machine_memory
from espo_luigi.jobs.trouble import DRIVERS_PATIENCE_SECONDS, persistently

logger = logging.getLogger(__name__)

_HEARTBEAT_SECONDS = 2.0
WAITING = "waiting"


@dataclass(frozen=True)
class LocalSettings:
    """What jobs may use of this machine (None: all of its CPUs, nine tenths of its memory), and who serves them.

    `server` is a command that takes modules to import, and then calls `forkserver.serve`.
    """

    server: Sequence[str]
    cpus: int | None = None
    memory_bytes: int | None = None


class Slots:
    """CPUs and bytes of memory that jobs take and give back."""

    def __init__(self, cpus: int, memory_bytes: int) -> None:
        self.cpus = cpus
        self.memory_bytes = memory_bytes
        self._free = [cpus, memory_bytes]
        self._changed = threading.Condition()

    @contextmanager
    def taken(self, resources: Resources) -> Iterator[None]:
        """Wait until `resources` are free, and hold them inside the ``with`` block."""
        wanted = (resources.cpus_per_task, resources.memory_bytes)
        with self._changed:
            self._changed.wait_for(lambda: all(w <= f for w, f in zip(wanted, self._free, strict=True)))
            self._free = [f - w for w, f in zip(wanted, self._free, strict=True)]
        try:
            yield
        finally:
            with self._changed:
                self._free = [f + w for w, f in zip(wanted, self._free, strict=True)]
                self._changed.notify_all()


class LocalEngine:
    """Runs jobs as child processes; a job ends when its driver does, so that the next driver never finds one running.

    `still_ours` is asked before each starts: whether this driver may still work where it does.
    """

    def __init__(self, settings: LocalSettings, still_ours: Callable[[], bool] = lambda: True) -> None:
        self._command = settings.server
        self._still_ours = still_ours
        self._slots = Slots(settings.cpus or machine_cpus(), settings.memory_bytes or machine_memory() * 9 // 10)
        self._server: ForkServer | None = None
        self._lock = threading.Lock()
        self._children: dict[str, Child] = {}
        self._said: set[str] = set()
        self._stopping = False

    def check(self, orders: Iterable[JobOrder]) -> None:
        """Accept all: values reach the job in a file, so that any is safe."""

    def run(self, order: JobOrder) -> float:
        """Run the job, wait for it, and return the seconds that it took.

        Raises
        ------
        JobError
            If the job fails; the message has its error's last lines and the path of its log.
        """
        order = replace(order, resources=self._fit(order))
        order.report(f"{WAITING} for free CPUs", None)
        with self._slots.taken(order.resources):
            # It may have waited for long, the whole process stopped: another driver may be at the same work by now.
            if not self._still_ours() or self._stopping:
                raise JobError(f"{order.label}: not started, the run is stopping")
            persistently(lambda: _prepare(order), DRIVERS_PATIENCE_SECONDS)
            order.report("running", None)
            self._wait(order, self._start(order))
        try:
            return seconds_of(_checked_result(order))
        except JobError:
            if not self._stopping:
                raise
            raise JobError(f"{order.label}: stopped with the run; log: {order.files.log}") from None

    def stop(self, order_id: str) -> None:
        """Terminate the job of that order, if it runs, and start no other."""
        self._stopping = True
        child = self._children.get(order_id)
        if child is not None:
            child.signal(signal.SIGTERM)

    def detach(self) -> None:
        """Stop the jobs, and end: one here cannot outlive its driver."""
        self._stopping = True
        for child in list(self._children.values()):
            child.signal(signal.SIGTERM)
        self.close()

    def close(self) -> None:
        """End the process that starts the jobs."""
        with self._lock:
            if self._server is not None:
                self._server.close()
                self._server = None

    def _fit(self, order: JobOrder) -> Resources:
        asked, family = order.resources, order.family
        # Half of the machine: two jobs side by side lose less in starting, reading and writing than one as large as it.
        fitted = asked.fitted(max(1, self._slots.cpus // 2), self._slots.memory_bytes // 2)
        if fitted != asked and family not in self._said:
            self._said.add(family)
            logger.info("%s asks for %s; fitted to this machine: %s", family, _described(asked), _described(fitted))
        return fitted

    def _start(self, order: JobOrder) -> Child:
        with self._lock:
            if self._server is None:
                self._server = ForkServer([*self._command, *order.preload, order.module])
            child = self._children[order.id] = self._server.start(order.files.order, order.files.log)
        return child

    def _wait(self, order: JobOrder, child: Child) -> None:
        while not child.ended.wait(_HEARTBEAT_SECONDS):
            if heartbeat := read_json(order.files.heartbeat):
                order.report(f"running\n{heartbeat.get('message', '')}", int(heartbeat.get("percent", 0)))
        del self._children[order.id]


def _prepare(order: JobOrder) -> None:
    order.write(parent=os.getpid())
    for stale in (order.files.result, order.files.heartbeat):
        stale.unlink(missing_ok=True)


def _checked_result(order: JobOrder) -> dict[str, Any]:
    """Return what the job has written; raises `JobError` unless it succeeded."""
    result = persistently(lambda: read_object(order.files.result), DRIVERS_PATIENCE_SECONDS)
    if result is not None and result.get("outcome") == "success":
        return result
    if result is None:
        why = "the job ended without a result: killed, or out of memory"
        tail = _tail(order.files.log)
    else:
        why, tail = str(result.get("exception")), str(result.get("traceback") or "")
    kind = JobInputError if result is not None and result.get("outcome") == "input" else JobError
    raise kind(f"{order.label} failed: {why}{last_lines(tail)}\n  log: {order.files.log}")


def _tail(log: Path) -> str:
    try:
        return log.read_text(errors="replace")[-3000:]
    except OSError:
        return ""


def _described(resources: Resources) -> str:
    return f"{resources.n_workers} worker(s), {resources.cpus_per_task} CPU(s), {resources.memory}"
