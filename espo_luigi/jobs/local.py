"""The local engine: runs each job as a child process of the driver, as many at once as CPUs and memory allow.

A `Launcher` starts the jobs: `Forks` on this machine, `srun.Steps` on the nodes of an allocation.
"""

from __future__ import annotations

import json
import logging
import math
import os
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from espo_luigi.errors import Failure, JobError, JobInputError, StoppedError
from espo_luigi.files import age_of, create_whole, lives, read_json, read_object, read_text
from espo_luigi.jobs.forkserver import Child, ForkServer
from espo_luigi.jobs.lock import HeldLocks, this_process
from espo_luigi.jobs.order import (
    JobOrder,
    JobState,
    Progress,
    ResultWord,
    at_work,
    between_beats,
    done,
    end_of_log,
)
from espo_luigi.jobs.resources import GIB, Resources
from espo_luigi.jobs.retry import DRIVERS_PATIENCE_SECONDS, persistently
from espo_luigi.machine import machine_cpus, machine_memory

logger = logging.getLogger(__name__)

# The likely reason when a job of this machine leaves no result.
KILLED = "killed, or out of memory"
# Luigi starts tasks that are ready together within some milliseconds.
_READY_TOGETHER_SECONDS = 0.2
# A job whose process cannot be looked for from here counts as dead after so long, and so many beats, of silence.
_SILENT_SECONDS, _SILENT_BEATS = 120.0, 4
_LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class Room:
    """CPUs and bytes of memory of a node or a job."""

    cpus: int
    memory_bytes: int

    def __str__(self) -> str:
        return f"{self.cpus} CPU(s) and {self.memory_bytes / GIB:.1f} GiB"


class Launcher(ABC):
    """Starts jobs on `nodes`, each with room for some jobs.

    `place` names the machine or the allocation for people. `largest` is the most that a job may use beside others.
    `parent` goes into each order and lets the job notice the end of its driver.
    """

    place: str
    nodes: Mapping[str, Room]
    largest: Room
    parent: int | str

    @property
    def alone(self) -> Room:
        """The most that a job may use while no other job runs or waits."""
        # An existing node: the most CPUs and the most memory may be on different nodes.
        return max(self.nodes.values(), key=lambda room: (room.cpus, room.memory_bytes))

    @abstractmethod
    def start(self, order: JobOrder, node: str) -> Child:
        """Start the job on that node; a single thread calls it at a time."""

    @abstractmethod
    def close(self) -> None:
        """End the launcher's own processes."""

    def why_killed(self, order: JobOrder, log_tail: str) -> str:
        """Return the likely reason for a job's end without a result."""
        return KILLED

    def is_over(self) -> str:
        """Return why no further job can start, or an empty text."""
        return ""


class Forks(Launcher):
    """Starts jobs on this machine, as forks of a process that has imported everything.

    `command` imports its arguments' modules and then calls `forkserver.serve`. Jobs get all CPUs and nine tenths of the
    memory, unless told otherwise.
    """

    place = "this machine"

    def __init__(self, command: Sequence[str], cpus: int | None = None, memory_bytes: int | None = None) -> None:
        self._command = command
        room = Room(cpus or machine_cpus(), memory_bytes or machine_memory() * 9 // 10)
        self.nodes = {"": room}
        # Half of the machine: while a job starts, reads or writes, a second job, if there is any, keeps the CPUs busy.
        self.largest = Room(max(1, room.cpus // 2), room.memory_bytes // 2)
        self.parent = os.getpid()
        self._server: ForkServer | None = None

    def start(self, order: JobOrder, node: str) -> Child:
        """Make the server fork; the first job starts the server with its modules, unless `begin` has."""
        return self.begin((*order.preload, order.module)).start(order.files.order, order.files.log)

    def begin(self, modules: Sequence[str]) -> ForkServer:
        """Start the server, which imports `modules` while the caller goes on; return the one that there is."""
        self._server = self._server or ForkServer([*self._command, *modules])
        return self._server

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None


class Slots:
    """The free room of each node, which jobs take and give back."""

    def __init__(self, nodes: Mapping[str, Room]) -> None:
        self._free = dict(nodes)
        # The number of jobs that have room or wait for it.
        self._jobs = 0
        self._changed = threading.Condition()

    @contextmanager
    def taken(self, shared: Resources, alone: Resources) -> Iterator[tuple[str, Resources]]:
        """Wait until there is room for `shared`; yield the node and what was taken, held inside the ``with`` block.

        If no other job runs or waits by then, nor within `_READY_TOGETHER_SECONDS`, that is `alone`. A task that
        becomes ready later waits for the end of this job.
        """
        with self._changed:
            self._jobs += 1
            self._changed.notify_all()
        try:
            with self._changed:
                given, node = shared, self._with_room(shared)
                if alone != shared:
                    if self._changed.wait_for(lambda: self._jobs > 1, _READY_TOGETHER_SECONDS):
                        node = self._with_room(shared)
                    else:
                        given, node = alone, self._with_room(alone)
                self._add(node, -given.cpus_per_task, -given.memory_bytes)
            try:
                yield node, given
            finally:
                with self._changed:
                    self._add(node, given.cpus_per_task, given.memory_bytes)
        finally:
            with self._changed:
                self._jobs -= 1
                self._changed.notify_all()

    def _with_room(self, asked: Resources) -> str:
        cpus, memory = asked.cpus_per_task, asked.memory_bytes

        def with_room() -> list[str]:
            return [node for node, free in self._free.items() if cpus <= free.cpus and memory <= free.memory_bytes]

        return self._changed.wait_for(with_room)[0]

    def _add(self, node: str, cpus: int, memory_bytes: int) -> None:
        free = self._free[node]
        self._free[node] = Room(free.cpus + cpus, free.memory_bytes + memory_bytes)


class LocalEngine:
    """Runs jobs as child processes, which end with their driver, so that the next driver finds none running.

    Nothing is started once another driver has one of the `locks` of this driver's folders.
    """

    def __init__(self, launcher: Launcher, locks: HeldLocks | None = None) -> None:
        self._launcher = launcher
        self._locks = locks or HeldLocks(logger.error)
        self._slots = Slots(launcher.nodes)
        self._lock = threading.Lock()
        self._children: dict[str, Child] = {}
        self._turns: dict[str, threading.Lock] = {}
        self._said: set[str] = set()
        self._stopping = False
        self._cancelled: set[str] = set()
        self._over = ""
        self._waited_in_vain = False

    def check(self, orders: Iterable[JobOrder]) -> None:
        """Accept all orders, as any value reaches the job in a file; log which rules ask for more than a job gets."""
        cut = {order.family for order in orders if self._shared(order.resources) != order.resources} - self._said
        if cut:
            self._said |= cut
            place, largest, alone = self._launcher.place, self._launcher.largest, self._launcher.alone
            most = str(largest) if largest == alone else f"{largest} beside other jobs, and {alone} alone"
            told = "A job on %s gets at most %s. %d rule(s) ask for more, and get at most that: %s"
            logger.info(told, place, most, len(cut), ", ".join(sorted(cut)))

    def fitted(self, order: JobOrder) -> JobOrder:
        """Return the order with its resources cut to the most that a job gets here, if no other job runs or waits.

        Beside others, it gets fewer threads and less memory, but as many processes.
        """
        asked, alone = order.resources, self._launcher.alone
        n_workers, cpus = self._shared(asked).n_workers, min(asked.cpus_per_task, alone.cpus)
        cut = replace(asked, n_workers=n_workers, cpus_per_task=cpus - cpus % n_workers)
        return replace(order, resources=cut.fitted(alone.cpus, alone.memory_bytes))

    def _shared(self, asked: Resources) -> Resources:
        return asked.fitted(self._launcher.largest.cpus, self._launcher.largest.memory_bytes)

    def run(self, order: JobOrder) -> Mapping[str, Any]:
        """Run the job, wait for its end, and return its result; raise JobError with the `Failure`."""
        # A cancelled job may take a while to end, and must not meet its successor.
        with self._lock:
            turn = self._turns.setdefault(order.id, threading.Lock())
        with turn:
            return self._run(self.fitted(order))  # a request for more than the room would wait for ever

    def _run(self, order: JobOrder) -> Mapping[str, Any]:
        self._cancelled.discard(order.id)
        order.on_progress(Progress("waiting for free CPUs", state=JobState.READY))
        with self._slots.taken(self._shared(order.resources), order.resources) as (node, given):
            if self._stopping:
                raise StoppedError(Failure(order.label, "not started, the run is stopping"))
            if self._over or order.id in self._cancelled:
                raise JobError(Failure(order.label, f"not started: {self._over or 'it was cancelled'}"))
            order = replace(order, resources=given)
            claim = self._prepare(order)
            order.on_progress(Progress("running", state=JobState.RUNNING, given=given))
            try:
                self._carry_out(order, node)
            finally:
                with suppress(OSError):
                    if read_text(order.files.claim) == claim:
                        order.files.claim.unlink()
            # Before the CPUs are freed, so that no further job starts in an allocation that is over.
            return self._ended(order)

    def _ended(self, order: JobOrder) -> Mapping[str, Any]:
        result = persistently(lambda: read_object(order.files.result), DRIVERS_PATIENCE_SECONDS) or {}
        word = result.get("outcome")
        if word == ResultWord.SUCCESS:
            order.on_progress(done(result))
            return result
        why, tail = str(result.get("exception")), str(result.get("traceback") or "")
        if not result:
            tail = end_of_log(order.files.log)
            why = f"the job ended without a result: {self._launcher.why_killed(order, tail)}"
        failure = Failure(order.label, why, log_path=order.files.log, tail=tail)
        if word == ResultWord.INPUT:
            raise JobInputError(failure)
        if self._stopping:
            if word == ResultWord.ERROR:
                # The stop may have caused the error, or not.
                logger.warning("as the run was being stopped: %s", JobError(failure))
            raise StoppedError(Failure(order.label, "stopped with the run", log_path=order.files.log))
        self._over = self._over or self._launcher.is_over()
        if self._over:
            raise JobError(Failure(order.label, f"stopped: {self._over}", log_path=order.files.log))
        raise JobError(failure)

    def cancel(self, order_id: str) -> None:
        self._cancelled.add(order_id)
        if child := self._children.get(order_id):
            child.stop()

    def stop(self) -> None:
        self._stopping = True
        for child in list(self._children.values()):
            child.stop()

    def detach(self) -> None:
        """Stop all jobs and end, as jobs cannot outlive this driver."""
        self.stop()
        self.close()

    def close(self) -> None:
        with self._lock:
            self._launcher.close()

    def _prepare(self, order: JobOrder) -> str:
        """Write the job's files; return the text of its claim."""

        def write() -> str:
            # While this process was suspended, a second driver may have taken over the work.
            if not self._locks.still_held():
                raise JobError(Failure(order.label, "not started: another driver has taken over"))
            claim = self._claim(order)
            order.write(parent=self._launcher.parent, claim=claim)
            for stale in (order.files.result, order.files.heartbeat):
                stale.unlink(missing_ok=True)
            return claim

        try:
            # All jobs' files are on the same disk: after a wait in vain, the next jobs are tried once.
            claim = persistently(write, 0.0 if self._waited_in_vain else DRIVERS_PATIENCE_SECONDS)
        except OSError as error:
            self._waited_in_vain = True
            why = f"not started, as its files cannot be written: {error}"
            remedy = "see to that disk (space, quota), and run again"
            raise JobError(Failure(order.label, why, remedy=remedy)) from error
        self._waited_in_vain = False
        return claim

    def _claim(self, order: JobOrder) -> str:
        """Create the claim on the order's work, which names this driver; return its text.

        This is the second line after the locks. Waits until another driver's job is dead or silent; raises JobError if
        the other driver lives.
        """
        path, mine, until = order.files.claim, this_process(), None
        silent_after = max(_SILENT_SECONDS, _SILENT_BEATS * order.beat_seconds)
        while (holder := read_object(path)) is not None and any(holder.get(name) != mine[name] for name in mine):
            alive, silent = lives(int(holder.get("pid", 0)), holder.get("started"), holder.get("room")), _silence(order)
            if alive is False or (alive is None and silent >= silent_after):
                break
            until = until or time.monotonic() + silent_after
            if alive or time.monotonic() >= until or self._stopping:
                why = f"not started: process {holder.get('pid')} on {holder.get('host')}, another driver, works on it"
                remedy = f"stop that driver, and run again; remove {path} if you know that it is dead"
                raise JobError(Failure(order.label, f"{why}; heard of {silent:.0f} s ago", remedy=remedy))
            time.sleep(_LOOK_SECONDS)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        create_whole(path, claim := json.dumps({**mine, "job": secrets.token_hex(4)}))
        return claim

    def _carry_out(self, order: JobOrder, node: str) -> None:
        """Start the job, and wait until it has ended."""
        with self._lock:
            child = self._children[order.id] = self._launcher.start(order, node)
            if self._stopping or order.id in self._cancelled:  # said while it was being started
                child.stop()
        began = time.monotonic()
        while not child.ended.wait(between_beats(time.monotonic() - began, order.beat_seconds)):
            child.end_if_late()
            if heartbeat := read_json(order.files.heartbeat):
                order.on_progress(at_work(f"running on {heartbeat.get('node')}", heartbeat))
        del self._children[order.id]
        if child.refused:
            raise JobError(Failure(order.label, f"not started: {child.refused}"))


def _silence(order: JobOrder) -> float:
    """Return for how many seconds a job has given no sign of life."""
    ages = [math.inf]
    for path in (order.files.heartbeat, order.files.claim):
        with suppress(FileNotFoundError):
            ages.append(age_of(path))
    return min(ages)
