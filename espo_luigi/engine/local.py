"""The local engine: each job in a child process on this machine, as many at once as its CPUs and memory allow."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from espo_luigi.cluster.records import read_json
from espo_luigi.cluster.resources import Resources, machine_cpus, machine_memory, parse_memory
from espo_luigi.engine.forkserver import Child, ForkServer
from espo_luigi.engine.jobfile import JobFiles, last_lines, seconds_of, write_order
from espo_luigi.engine.settings import settings
from espo_luigi.engine.task import SlurmTask
from espo_luigi.errors import JobError, JobInputError

logger = logging.getLogger(__name__)

_HEARTBEAT_SECONDS = 2.0


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
    """Runs jobs as child processes; a job dies with its driver, so that the next driver never meets it."""

    def __init__(self) -> None:
        chosen = settings()
        memory = parse_memory(chosen.local_memory) if chosen.local_memory else machine_memory() * 9 // 10
        self._slots = Slots(chosen.local_cpus or machine_cpus(), memory)
        self._server: ForkServer | None = None
        self._lock = threading.Lock()
        self._children: dict[str, Child] = {}
        self._said: set[str] = set()
        self._stopping = False

    def check(self, tasks: Sequence[SlurmTask]) -> None:
        """Accept all tasks: any value travels in a file."""

    def run(self, task: SlurmTask) -> float:
        """Run the job of `task`, wait for it, and return the seconds that it took.

        Raises
        ------
        JobError
            If the job fails; the message has its error's last lines and the path of its log.
        """
        resources = self._fit(task)
        with self._slots.taken(resources):
            if self._stopping:
                raise JobError(f"{task.label()}: not started, the run is stopping")
            files = write_order(task, resources, parent=os.getpid())
            for stale in (files.result, files.heartbeat):
                stale.unlink(missing_ok=True)
            self._wait(task, files, self._start(task, files))
        try:
            return seconds_of(checked_result(task, files))
        except JobError:
            if not self._stopping:
                raise
            raise JobError(f"{task.label()}: stopped with the run; log: {files.log}") from None

    def stop(self, task: SlurmTask) -> None:
        """Terminate the job of `task`, if it runs, and start no other."""
        self._stopping = True
        child = self._children.get(task.task_id)
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

    def _fit(self, task: SlurmTask) -> Resources:
        asked = task.allocation
        # Half of the machine: two jobs side by side lose less in starting, reading and writing than one as large as it.
        fitted = asked.fitted(max(1, self._slots.cpus // 2), self._slots.memory_bytes // 2)
        family = task.get_task_family()
        if fitted != asked and family not in self._said:
            self._said.add(family)
            logger.info("%s asks for %s; fitted to this machine: %s", family, _described(asked), _described(fitted))
        return fitted

    def _start(self, task: SlurmTask, files: JobFiles) -> Child:
        with self._lock:
            if self._server is None:
                self._server = ForkServer([*task.preload, task.task_module])
            child = self._children[task.task_id] = self._server.start(files.order, files.log)
        return child

    def _wait(self, task: SlurmTask, files: JobFiles, child: Child) -> None:
        while not child.ended.wait(_HEARTBEAT_SECONDS):
            show_progress(task, files)
        del self._children[task.task_id]


def show_progress(task: SlurmTask, files: JobFiles) -> None:
    """Show what the job's last sign of life says on Luigi's page."""
    heartbeat = read_json(files.heartbeat)
    if heartbeat and task.set_status_message:
        task.set_status_message(str(heartbeat.get("message", "")))
        task.set_progress_percentage(int(heartbeat.get("percent", 0)))


def checked_result(task: SlurmTask, files: JobFiles) -> dict[str, Any]:
    """Return what the job of `task` has written; raises `JobError` unless it succeeded."""
    result = read_json(files.result)
    if result is not None and result.get("outcome") == "success":
        return result
    if result is None:
        why = "the job ended without a result: killed, or out of memory"
        tail = _tail(files.log)
    else:
        why, tail = str(result.get("exception")), str(result.get("traceback") or "")
    kind = JobInputError if result is not None and result.get("outcome") == "input" else JobError
    raise kind(f"{task.label()} failed: {why}{last_lines(tail)}\n  log: {files.log}")


def _tail(log: Path) -> str:
    try:
        return log.read_text(errors="replace")[-3000:]
    except OSError:
        return ""


def _described(resources: Resources) -> str:
    return f"{resources.n_workers} worker(s), {resources.cpus_per_task} CPU(s), {resources.memory}"
