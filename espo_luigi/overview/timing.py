"""How long a run takes: what there is to share (CPUs, memory, places in a scheduler), and a simulation of its tasks."""

from __future__ import annotations

import heapq
import math
import os
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from espo_luigi.driver.engines import local_launcher
from espo_luigi.driver.scratch import Scratch
from espo_luigi.driver.settings.espo import settings, workers
from espo_luigi.driver.settings.sections import JOB_COMMAND, SECTIONS
from espo_luigi.errors import SubmissionError
from espo_luigi.jobs.local import Launcher, Room
from espo_luigi.jobs.resources import GIB, Resources
from espo_luigi.jobs.schedulers import slurm
from espo_luigi.jobs.srun import Steps


@dataclass(frozen=True, slots=True)
class TimedTask:
    """A task: its time, its part of the capacity (by thing), and the temporary bytes that it makes."""

    seconds: float
    room: Mapping[str, float]
    temporary_bytes: float = 0.0


@dataclass(frozen=True)
class Timing:
    """Seconds of the whole, the longest chain's, the most at once, and the most temporary bytes at once.

    `no_room` says which groups find no room on scratch, and why.
    """

    seconds: float
    longest_chain_seconds: float
    most_at_once: int
    temporary_bytes: float
    no_room: str = ""


def timing(
    steps: Mapping[str, TimedTask],
    needs: Mapping[str, Sequence[str]],
    room: Mapping[str, float],
    *,
    scratch: Scratch | None = None,
    deletes: bool = True,
) -> Timing:
    """Return how long `steps`, each after those that it needs, take in so much `room` of each thing.

    `needs` are those of a `Graph`; what is not among the steps is there already. With `scratch`, whose account goes on
    here, groups wait as in a run; steps that never get room are left out. Unless it `deletes`, temporary stores stay.
    """
    run = _Simulation(steps, needs, room, scratch, deletes=deletes)
    run.play()
    no_room = scratch.no_room() if scratch is not None else ""
    # The longest chain of steps that need each other.
    longest: dict[str, float] = {}
    for name, step in steps.items():
        longest[name] = step.seconds + max((longest[one] for one in needs.get(name, ()) if one in longest), default=0.0)
    return Timing(run.now, max(longest.values(), default=0.0), run.most, run.most_bytes, no_room)


class _Simulation:
    def __init__(
        self,
        steps: Mapping[str, TimedTask],
        needs: Mapping[str, Sequence[str]],
        room: Mapping[str, float],
        scratch: Scratch | None,
        *,
        deletes: bool,
    ) -> None:
        self._steps, self._needs = steps, {name: needs.get(name, ()) for name in steps}
        self._room, self._scratch, self._deletes = dict(room), scratch, deletes
        # By group without room: its tasks that may start else.
        self._set_aside: dict[str, list[str]] = defaultdict(list)
        self._left = {name: sum(needed in steps for needed in of_step) for name, of_step in self._needs.items()}
        self._users: dict[str, list[str]] = defaultdict(list)
        for name, of_step in self._needs.items():
            for needed in of_step:
                self._users[needed].append(name)
        self._unused = {name: len(users) for name, users in self._users.items()}
        self._ready = deque(name for name, left in self._left.items() if not left)
        self._running: list[tuple[float, str]] = []
        self._bytes = 0.0
        self.now, self.most, self.most_bytes = 0.0, 0, 0.0

    def play(self) -> None:
        while self._ready or self._running:
            self._start()
            if not self._running:
                return
            self.now, name = heapq.heappop(self._running)
            self._end(name)

    def _start(self) -> None:
        while self._ready and (self._fits(self._steps[self._ready[0]]) or not self._running):
            name = self._ready.popleft()
            if self._scratch is not None and not self._scratch.admits(group := self._scratch.group_of(name)):
                self._set_aside[group].append(name)
                continue
            step = self._steps[name]
            self._take(step, 1)
            self._bytes += step.temporary_bytes
            heapq.heappush(self._running, (self.now + step.seconds, name))
        self.most = max(self.most, len(self._running))
        self.most_bytes = max(self.most_bytes, self._bytes)

    def _fits(self, step: TimedTask) -> bool:
        # The thirds of a job may add up to a little more than 1.
        return all(taken <= self._room[name] * (1 + 1e-9) + 1e-9 for name, taken in step.room.items())

    def _take(self, step: TimedTask, times: int) -> None:
        for name, taken in step.room.items():
            self._room[name] -= times * taken

    def _end(self, name: str) -> None:
        step = self._steps[name]
        self._take(step, -1)
        self._note(name, on_disk=round(step.temporary_bytes), is_left=False)
        for user in self._users[name]:
            self._left[user] -= 1
            if not self._left[user]:
                self._ready.append(user)
        for needed in self._needs[name] if self._deletes else ():
            self._unused[needed] -= 1
            if not self._unused[needed]:
                self._note(needed, on_disk=0)
                self._bytes -= self._steps[needed].temporary_bytes if needed in self._steps else 0.0
        if self._scratch is not None:
            for group in [group for group in self._set_aside if self._scratch.admits(group)]:
                self._ready.extend(self._set_aside.pop(group))

    def _note(self, name: str, *, on_disk: int, is_left: bool | None = None) -> None:
        if self._scratch is not None:
            self._scratch.note(name, on_disk=on_disk, is_left=is_left)


# How much there is, or how much a job takes, of each thing that jobs share.
Amounts = Mapping[str, float]


@dataclass(frozen=True)
class Capacity:
    """The amounts that there are, the largest job (None: unlimited), and words for the place.

    Nodes are added up. Things without a name here are unlimited; unless `is_known`, their limits are unknown.
    """

    amounts: Amounts
    largest: Room | None
    words: str
    is_known: bool = True

    def taken(self, resources: Resources, at_once: int) -> Amounts:
        """Return the part of the capacity that a task takes; `at_once` tasks of its kind share a job."""
        takes = {
            "workers": 1.0,
            "jobs": 1 / at_once,
            "cpus": resources.cpus_per_task,
            "memory": resources.memory_bytes,
        }
        return {name: takes[name] for name in self.amounts}


def capacity() -> Capacity:
    """Return the capacity of the chosen engine."""
    engine, at_once = settings().engine, workers()
    if engine in SECTIONS:
        most = SECTIONS[engine]().max_jobs
        words = f"with [{engine}] max_jobs = {most}, [core] workers = {at_once}"
        return Capacity({"workers": at_once, "jobs": most}, None, words)
    if engine != "allocation":
        return _of_nodes(local_launcher(), at_once, "here")
    try:
        launcher = Steps(JOB_COMMAND)
    except (SubmissionError, ValueError) as error:
        outside = "the allocation's size is known inside of it only (`espo shell`)"
        return Capacity({"workers": at_once}, None, str(error) if slurm.job_id(os.environ) else outside, is_known=False)
    return _of_nodes(launcher, at_once, f"of {launcher.place}")


def _of_nodes(launcher: Launcher, at_once: int, where: str) -> Capacity:
    nodes: Sequence[Room] = list(launcher.nodes.values())
    cpus, memory = sum(node.cpus for node in nodes), sum(node.memory_bytes for node in nodes)
    words = f"on {cpus} CPU(s) and {math.floor(memory / GIB * 10) / 10} GiB {where}"
    return Capacity({"workers": at_once, "cpus": cpus, "memory": memory}, launcher.largest, words)
