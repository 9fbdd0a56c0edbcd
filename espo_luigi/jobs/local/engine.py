"""The local engine: each job in a child process of the driver, as many at once as CPUs and memory allow.

A `Launcher` starts them: `Forks` on this machine, `allocation.Steps` on the nodes of an allocation.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from espo_luigi.errors import JobError, JobInputError, StoppedError
from espo_luigi.jobs.lifecycle.records import read_json, read_object
from espo_luigi.jobs.lifecycle.state import at_work, between_beats, done
from espo_luigi.jobs.local.forkserver import ForkServer
from espo_luigi.jobs.node.outcome import ResultWord
from espo_luigi.jobs.order import JobOrder, Standing, end_of_log, last_lines, seconds_of
from espo_luigi.jobs.resources import Resources, machine_cpus, machine_memory
from espo_luigi.jobs.state import JobState
from espo_luigi.jobs.trouble import DRIVERS_PATIENCE_SECONDS, persistently

logger = logging.getLogger(__name__)


class Child(Protocol):
    """One job that was started."""

    @property
    def ended(self) -> threading.Event: ...

    def signal(self, signum: int) -> None: ...


@dataclass(frozen=True)
class Room:
    """CPUs and bytes of memory, of a node or of a job."""

    cpus: int
    memory_bytes: int


class Launcher(Protocol):
    """Starts jobs at some `place` (in words), on its nodes, of which each has room for some.

    `largest` is the most that one job gets. `parent` is what a job's order says of its driver, with which it ends.
    """

    @property
    def place(self) -> str: ...

    @property
    def nodes(self) -> Mapping[str, Room]: ...

    @property
    def largest(self) -> Room: ...

    @property
    def parent(self) -> int | str: ...

    def start(self, order: JobOrder, node: str) -> Child:
        """Start the job on that node; called by one thread at a time."""

    def why_killed(self, order: JobOrder, log_tail: str) -> str:
        """Say why a job may have ended without a result."""

    def is_over(self) -> str:
        """Say why no job can be started here any more, or nothing."""

    def close(self) -> None:
        """End what starts the jobs."""


# What is known of a job of this machine that has left no result.
KILLED = "killed, or out of memory"


class LauncherSettings(Protocol):
    """What makes a launcher."""

    def launcher(self) -> Launcher: ...


@dataclass(frozen=True)
class LocalSettings:
    """What jobs may use of this machine (None: all of its CPUs, nine tenths of its memory), and who serves them.

    `server` is a command that takes modules to import, and then calls `forkserver.serve`.
    """

    server: Sequence[str]
    cpus: int | None = None
    memory_bytes: int | None = None

    def launcher(self) -> Forks:
        """Return what starts jobs on this machine."""
        return Forks(self.server, Room(self.cpus or machine_cpus(), self.memory_bytes or machine_memory() * 9 // 10))


class Forks:
    """Starts jobs on this machine, as forks of one process that has imported everything."""

    place = "this machine"

    def __init__(self, command: Sequence[str], room: Room) -> None:
        self._command = command
        self.nodes = {"": room}
        # Half of the machine: two jobs side by side lose less in starting, reading and writing than one as large as it.
        self.largest = Room(max(1, room.cpus // 2), room.memory_bytes // 2)
        self.parent = os.getpid()
        self._server: ForkServer | None = None

    def start(self, order: JobOrder, node: str) -> Child:
        """Have the server, which the first job's modules start, fork."""
        if self._server is None:
            self._server = ForkServer([*self._command, *order.preload, order.module])
        return self._server.start(order.files.order, order.files.log)

    def why_killed(self, order: JobOrder, log_tail: str) -> str:
        """Say what may have been."""
        return KILLED

    def is_over(self) -> str:
        """Say nothing: this machine is there as long as its driver."""
        return ""

    def close(self) -> None:
        """End the server."""
        if self._server is not None:
            self._server.close()
            self._server = None


class Slots:
    """CPUs and bytes of memory of nodes, that jobs take and give back."""

    def __init__(self, nodes: Mapping[str, Room]) -> None:
        self._free = {node: (room.cpus, room.memory_bytes) for node, room in nodes.items()}
        self._changed = threading.Condition()

    @contextmanager
    def taken(self, resources: Resources) -> Iterator[str]:
        """Wait until `resources` are free on a node, and hold them inside the ``with`` block, which gets its name."""
        wanted = (resources.cpus_per_task, resources.memory_bytes)
        with self._changed:
            node = self._changed.wait_for(lambda: self._with_room_for(wanted))[0]
            self._add(node, (-wanted[0], -wanted[1]))
        try:
            yield node
        finally:
            with self._changed:
                self._add(node, wanted)
                self._changed.notify_all()

    def _with_room_for(self, wanted: tuple[int, int]) -> list[str]:
        return [node for node, (cpus, memory) in self._free.items() if wanted[0] <= cpus and wanted[1] <= memory]

    def _add(self, node: str, change: tuple[int, int]) -> None:
        cpus, memory = self._free[node]
        self._free[node] = (cpus + change[0], memory + change[1])


class LocalEngine:
    """Runs jobs as child processes; a job ends when its driver does, so that the next driver never finds one running.

    `still_ours` is asked before each starts: whether this driver may still work where it does.
    """

    def __init__(self, settings: LauncherSettings, still_ours: Callable[[], bool] = lambda: True) -> None:
        self._launcher = settings.launcher()
        self._still_ours = still_ours
        self._slots = Slots(self._launcher.nodes)
        self._lock = threading.Lock()
        self._children: dict[str, Child] = {}
        self._said: set[str] = set()
        self._stopping = False
        self._over = ""

    def check(self, orders: Iterable[JobOrder]) -> None:
        """Accept all: values reach the job in a file, so that any is safe."""

    def fitted(self, order: JobOrder) -> JobOrder:
        """Return the order, which asks for no more than one job gets here."""
        largest, asked, family = self._launcher.largest, order.resources, order.family
        given = asked.fitted(largest.cpus, largest.memory_bytes)
        if given != asked and family not in self._said:
            self._said.add(family)
            place = self._launcher.place
            logger.info("%s asks for %s; fitted to %s: %s", family, _described(asked), place, _described(given))
        return replace(order, resources=given)

    def run(self, order: JobOrder) -> float:
        """Run the job, wait for it, and return the seconds that it took.

        Raises
        ------
        JobError
            If the job fails; the message has its error's last lines and the path of its log.
        """
        order = self.fitted(order)  # one that asks for more than there is would wait for ever
        order.report(Standing("waiting for free CPUs", state=JobState.READY))
        with self._slots.taken(order.resources) as node:
            # It may have waited for long, the whole process stopped: another driver may be at the same work by now.
            if self._stopping:
                raise StoppedError(f"{order.label}: not started, the run is stopping")
            if not self._still_ours():
                raise JobError(f"{order.label}: not started: another driver has taken over")
            if self._over:
                raise JobError(f"{order.label}: not started: {self._over}")
            persistently(lambda: self._prepare(order), DRIVERS_PATIENCE_SECONDS)
            order.report(Standing("running", state=JobState.RUNNING))
            self._wait(order, self._start(order, node))
            # Checked before the CPUs are freed, so that no further job is started in an allocation that is over.
            return self._ended(order)

    def _ended(self, order: JobOrder) -> float:
        result = persistently(lambda: read_object(order.files.result), DRIVERS_PATIENCE_SECONDS)
        try:
            succeeded = _checked_result(order, result, self._launcher.why_killed)
            order.report(done(succeeded))
            return seconds_of(succeeded)
        except JobInputError:
            raise
        except JobError as error:
            if self._stopping:
                if result is not None and result.get("outcome") == ResultWord.ERROR:
                    # It may come of the stop, or not.
                    logger.warning("as the run was being stopped: %s", error)
                raise StoppedError(f"{order.label}: stopped with the run; log: {order.files.log}") from None
            self._over = self._over or self._launcher.is_over()
            if not self._over:
                raise
            raise JobError(f"{order.label}: stopped: {self._over}\n  log: {order.files.log}") from None

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
        """End what starts the jobs."""
        with self._lock:
            self._launcher.close()

    def _prepare(self, order: JobOrder) -> None:
        order.write(parent=self._launcher.parent)
        for stale in (order.files.result, order.files.heartbeat):
            stale.unlink(missing_ok=True)

    def _start(self, order: JobOrder, node: str) -> Child:
        with self._lock:
            child = self._children[order.id] = self._launcher.start(order, node)
        return child

    def _wait(self, order: JobOrder, child: Child) -> None:
        began = time.monotonic()
        while not child.ended.wait(between_beats(time.monotonic() - began, order.beat_seconds)):
            if heartbeat := read_json(order.files.heartbeat):
                order.report(at_work(f"running on {heartbeat.get('node')}", heartbeat))
        del self._children[order.id]


def _checked_result(
    order: JobOrder, result: dict[str, Any] | None, why_killed: Callable[[JobOrder, str], str]
) -> dict[str, Any]:
    """Return what the job has written; raises `JobError` unless it succeeded."""
    if result is not None and result.get("outcome") == ResultWord.SUCCESS:
        return result
    if result is None:
        tail = end_of_log(order.files.log)
        why = f"the job ended without a result: {why_killed(order, tail)}"
    else:
        why, tail = str(result.get("exception")), str(result.get("traceback") or "")
    kind = JobInputError if result is not None and result.get("outcome") == ResultWord.INPUT else JobError
    raise kind(f"{order.label} failed: {why}\n  log: {order.files.log}{last_lines(tail)}")


def _described(resources: Resources) -> str:
    return f"{resources.n_workers} worker(s), {resources.cpus_per_task} CPU(s), {resources.memory}"
