"""How long a run takes, simulated: a task starts, first come, first served, after what it needs and if it has room."""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """One task: how long it takes, how much room (of each thing), what it needs, the temporary bytes that it makes."""

    seconds: float
    room: Mapping[str, float]
    needs: Sequence[str]
    temporary_bytes: float = 0.0


@dataclass(frozen=True)
class Timing:
    """Seconds of the whole, the longest chain's, the most at once, and the most temporary bytes at once."""

    seconds: float
    longest_chain_seconds: float
    most_at_once: int
    temporary_bytes: float


def timing(steps: Mapping[str, Step], room: Mapping[str, float]) -> Timing:
    """Return how long `steps`, each after those that it needs, take in so much `room` of each thing.

    What they need and is no step is there already.
    """
    run = _Simulation(steps, room)
    run.play()
    return Timing(run.now, _longest_chain(steps), run.most, run.most_bytes)


class _Simulation:
    def __init__(self, steps: Mapping[str, Step], room: Mapping[str, float]) -> None:
        self._steps, self._room = steps, dict(room)
        self._left = {name: sum(needed in steps for needed in step.needs) for name, step in steps.items()}
        self._users: dict[str, list[str]] = defaultdict(list)
        for name, step in steps.items():
            for needed in step.needs:
                self._users[needed].append(name)
        self._unused = {name: len(self._users[name]) for name in steps}
        self._ready = deque(name for name, left in self._left.items() if not left)
        self._running: list[tuple[float, str]] = []
        self._bytes = 0.0
        self.now, self.most, self.most_bytes = 0.0, 0, 0.0

    def play(self) -> None:
        while self._ready or self._running:
            self._start()
            self.now, name = heapq.heappop(self._running)
            self._end(name)

    def _start(self) -> None:
        while self._ready and (self._fits(self._steps[self._ready[0]]) or not self._running):
            name = self._ready.popleft()
            step = self._steps[name]
            self._take(step, 1)
            self._bytes += step.temporary_bytes
            heapq.heappush(self._running, (self.now + step.seconds, name))
        self.most = max(self.most, len(self._running))
        self.most_bytes = max(self.most_bytes, self._bytes)

    def _fits(self, step: Step) -> bool:
        # Thirds of a job may come to a little more than one.
        return all(taken <= self._room[name] * (1 + 1e-9) + 1e-9 for name, taken in step.room.items())

    def _take(self, step: Step, times: int) -> None:
        for name, taken in step.room.items():
            self._room[name] -= times * taken

    def _end(self, name: str) -> None:
        step = self._steps[name]
        self._take(step, -1)
        for user in self._users[name]:
            self._left[user] -= 1
            if not self._left[user]:
                self._ready.append(user)
        for needed in step.needs:
            if needed in self._unused:
                self._unused[needed] -= 1
                if not self._unused[needed]:
                    self._bytes -= self._steps[needed].temporary_bytes


def _longest_chain(steps: Mapping[str, Step]) -> float:
    longest: dict[str, float] = {}
    for name, step in steps.items():
        longest[name] = step.seconds + max((longest[one] for one in step.needs if one in longest), default=0.0)
    return max(longest.values(), default=0.0)
