"""The expected cost of tasks: learnt from jobs of this and of other runs, or else the most that they may take."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from espo_luigi.driver.task import SlurmTask
from espo_luigi.errors import EspoError
from espo_luigi.jobs.order import ResultWord, seconds_of
from espo_luigi.jobs.resources import Resources
from espo_luigi.report.job_results import job_results
from espo_luigi.tasks.base import EspoTask

# The wildcards on which the cost of a rule's job depends: other simulations cost the same, other pieces do not.
_PLACES = ("piece", "diag_domain", "var", "calendar", "level")
_BYTES_A_VALUE = 4
# The fields that a result needs to be learnt from.
_NEEDED = {"family", "started", "ended", "peak_memory_bytes"}
Place = tuple[str, ...]


@dataclass(frozen=True)
class Cost:
    """The cost of a task. If `learnt` is False, seconds and memory are the most that the task may take.

    `memory_learnt` is False, too, if memory was learnt from smaller jobs.
    """

    seconds: float
    cpus: int
    memory_bytes: int
    files: float
    size_bytes: float
    learnt: bool
    memory_learnt: bool

    @property
    def core_hours(self) -> float:
        """CPUs times hours."""
        return self.seconds * self.cpus / 3600


@dataclass(frozen=True)
class _Job:
    """The cost of a job that succeeded."""

    place: Place
    size: float
    core_seconds: float
    memory_bytes: int
    files: int
    size_bytes: int


class Experience:
    """The cost of ended jobs, by rule: from the first work folder that has a successful job of the rule."""

    def __init__(self, workdirs: Iterable[Path]) -> None:
        self._jobs: dict[str, list[_Job]] = {}
        for workdir in workdirs:
            found: dict[str, list[_Job]] = defaultdict(list)
            for result in job_results(workdir):
                if result.get("outcome") == ResultWord.SUCCESS and result.keys() >= _NEEDED:
                    found[result["family"]].append(_job(result))
            self._jobs = found | self._jobs
        self._known: dict[tuple[str, Place, float], tuple[float, float, float] | None] = {}
        self._peaks: dict[str, tuple[int, float, int]] = {}
        self._density = -1.0

    def expected(self, task: SlurmTask, allocation: Resources) -> Cost:
        """Return the expected cost of a task with these resources."""
        rule, place, size = task.get_task_family(), _place(task.wildcards), task.work_size()
        key = rule, place, size
        if key not in self._known:
            self._known[key] = _scaled(self._jobs.get(rule, []), place, size)
        learnt, cpus = self._known[key], allocation.cpus_per_task
        if learnt is None:
            files, made = 0.0, self._at_most(task, size)
            return Cost(60.0 * allocation.time_minutes, cpus, allocation.memory_bytes, files, made, False, False)
        core_seconds, files, made = learnt
        memory, memory_learnt = self._memory(rule, size, allocation.memory_bytes)
        return Cost(core_seconds / cpus, cpus, memory, files, made, True, memory_learnt)

    def _memory(self, rule: str, size: float, limit: int) -> tuple[int, bool]:
        """The jobs' largest peak, and True; for a task larger than all, scaled, at most the limit, and False."""
        if rule not in self._peaks:
            self._peaks[rule] = _peaks(self._jobs[rule])
        peak, largest, of_largest = self._peaks[rule]
        if not largest or size <= largest:
            return peak, True
        return max(peak, min(int(of_largest * size / largest), limit)), False

    def _at_most(self, task: SlurmTask, size: float) -> float:
        """Bytes of the outputs, as if nothing were compressed and all cells land."""
        values = task.values_in_outputs if isinstance(task, EspoTask) else 0.0
        if not values or not isinstance(task, EspoTask):
            return 0.0
        if self._density < 0:
            try:
                self._density = task.context.cells_by_area
            except (EspoError, OSError):  # a check reports it before anything starts
                self._density = 0.0
        return _BYTES_A_VALUE * values * size * self._density


def _job(result: Mapping[str, Any]) -> _Job:
    parameters, made = result.get("parameters", {}), result.get("made") or {}
    return _Job(
        place=_place(parameters),
        size=float(result.get("size", 0.0)),
        core_seconds=seconds_of(result) * int(parameters.get("cpus_per_task", 1)),
        memory_bytes=int(result["peak_memory_bytes"]),
        files=int(made.get("files", 0)),
        size_bytes=int(made.get("bytes", 0)),
    )


def _place(wildcards: Mapping[str, str]) -> Place:
    return tuple(wildcards.get(name, "") for name in _PLACES)


def _peaks(jobs: list[_Job]) -> tuple[int, float, int]:
    """The largest peak of memory, the largest size, and the largest peak of the jobs of that size."""
    largest = max(job.size for job in jobs)
    return (
        max(job.memory_bytes for job in jobs),
        largest,
        max(job.memory_bytes for job in jobs if job.size == largest),
    )


def _scaled(jobs: Iterable[_Job], place: Place, size: float) -> tuple[float, float, float] | None:
    """Core-seconds, files and bytes of a task: of those at the same place the median, else of all, by their size."""
    found = list(jobs)
    same = [job for job in found if job.place == place]
    taken = [(job, size / job.size if size and job.size else 1.0) for job in same or found]
    if not taken:
        return None
    return (
        statistics.median(scale * job.core_seconds for job, scale in taken),
        statistics.median(scale * job.files for job, scale in taken),
        statistics.median(scale * job.size_bytes for job, scale in taken),
    )
