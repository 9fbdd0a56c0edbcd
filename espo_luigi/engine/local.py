"""The local engine: each job in a child process on this machine, as many at once as its CPUs and memory allow."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from espo_luigi.cluster.resources import Resources, machine_cpus, machine_memory, parse_memory
from espo_luigi.engine.jobfile import JobFiles, read_json, write_order
from espo_luigi.engine.settings import settings
from espo_luigi.engine.task import SlurmTask
from espo_luigi.errors import JobError

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.1
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
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._said: set[str] = set()
        self._stopping = False

    def run(self, task: SlurmTask) -> None:
        """Run the job of `task` and wait for it.

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
            self._wait(task, files, self._start(task, files))
        check_result(task, files)

    def stop(self, task: SlurmTask) -> None:
        """Terminate the job of `task`, if it runs, and start no other."""
        self._stopping = True
        child = self._children.get(task.task_id)
        if child is not None:
            child.terminate()

    def _fit(self, task: SlurmTask) -> Resources:
        asked = task.allocation
        fitted = asked.fitted(self._slots.cpus, self._slots.memory_bytes)
        family = task.get_task_family()
        if fitted != asked and family not in self._said:
            self._said.add(family)
            logger.info("%s asks for %s; fitted to this machine: %s", family, _described(asked), _described(fitted))
        return fitted

    def _start(self, task: SlurmTask, files: JobFiles) -> subprocess.Popen[bytes]:
        with open(files.log, "wb") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", "espo_luigi.job", str(files.order)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._children[task.task_id] = child
        return child

    def _wait(self, task: SlurmTask, files: JobFiles, child: subprocess.Popen[bytes]) -> None:
        looked = time.monotonic()
        while child.poll() is None:
            time.sleep(_POLL_SECONDS)
            if time.monotonic() - looked > _HEARTBEAT_SECONDS:
                looked = time.monotonic()
                show_progress(task, files)
        del self._children[task.task_id]


def show_progress(task: SlurmTask, files: JobFiles) -> None:
    """Show what the job's last sign of life says on Luigi's page."""
    heartbeat = read_json(files.heartbeat)
    if heartbeat and task.set_status_message:
        task.set_status_message(str(heartbeat.get("message", "")))
        task.set_progress_percentage(int(heartbeat.get("percent", 0)))


def check_result(task: SlurmTask, files: JobFiles) -> None:
    """Raise `JobError` unless the job of `task` has written that it succeeded."""
    result = read_json(files.result)
    if result is not None and result.get("outcome") == "success":
        return
    if result is None:
        why = "the job ended without a result: killed, or out of memory"
        tail = _tail(files.log)
    else:
        why, tail = str(result.get("exception")), str(result.get("traceback") or "")
    lines = "\n".join(f"    {line}" for line in tail.strip().splitlines()[-12:])
    raise JobError(f"{task.label()} failed: {why}\n{lines}\n  log: {files.log}")


def _tail(log: Path) -> str:
    try:
        return log.read_text(errors="replace")[-3000:]
    except OSError:
        return ""


def _described(resources: Resources) -> str:
    return f"{resources.n_workers} worker(s), {resources.cpus_per_task} CPU(s), {resources.memory}"
