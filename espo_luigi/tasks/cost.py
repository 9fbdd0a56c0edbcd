"""The expected cost of tasks, by the best basis that there is: ended jobs, the package's measurements, the limits."""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import yaml

from espo_luigi.driver.task import SlurmTask
from espo_luigi.errors import EspoError
from espo_luigi.jobs.order import ResultWord, seconds_of
from espo_luigi.jobs.resources import MIB, Resources
from espo_luigi.report.reading import job_results
from espo_luigi.tasks.context import context

# The wildcards on which the cost of a rule's job depends: other simulations cost the same, other pieces do not.
_PLACES = ("piece", "diag_domain", "var", "calendar", "level", "freq", "dataset", "product")
_BYTES_A_VALUE = 4
_MEASURED = Path(__file__).parent / "measured.yml"
# Cells of the measurements in a degree squared: those of 0.1 degrees.
_MEASURED_DENSITY = 100.0
# The fields that a result needs to be learnt from.
_NEEDED = {"family", "started", "ended", "peak_memory_bytes"}
Place = tuple[str, ...]


class Basis(StrEnum):
    """The basis of an expected cost, from the best to the worst."""

    JOBS = "jobs"  # of this rule, which have ended in this run or in those of `learn_from`
    TABLE = "table"  # measured.yml, an estimate
    LIMITS = "limits"  # the most that the task may take


@dataclass(frozen=True, slots=True)
class Cost:
    """The expected cost of a task.

    Only ended jobs tell `files`; without them, `size_bytes` is an upper limit. `memory_basis` is LIMITS, too, if memory
    was scaled from smaller jobs.
    """

    seconds: float
    cpus: int
    memory_bytes: int
    files: float
    size_bytes: float
    basis: Basis
    memory_basis: Basis

    @property
    def core_hours(self) -> float:
        """CPUs times hours."""
        return self.seconds * self.cpus / 3600


@dataclass(frozen=True, slots=True)
class _Job:
    """The cost of a job that succeeded."""

    place: Place
    size: float
    core_seconds: float
    memory_bytes: int
    files: int
    size_bytes: int


class Experience:
    """The cost of ended jobs, by rule: from the first work folder that has a successful job of the rule.

    For other rules, the package's table has a job's cost, as a line over its size.
    """

    def __init__(self, workdirs: Iterable[Path]) -> None:
        self._jobs: dict[str, list[_Job]] = {}
        for workdir in workdirs:
            found: dict[str, list[_Job]] = defaultdict(list)
            for result in job_results(workdir):
                if result.get("outcome") == ResultWord.SUCCESS and result.keys() >= _NEEDED:
                    parameters, made = result.get("parameters", {}), result.get("made") or {}
                    job = _Job(
                        place=_place(parameters),
                        size=float(result.get("size", 0.0)),
                        core_seconds=seconds_of(result) * int(parameters.get("cpus_per_task", 1)),
                        memory_bytes=int(result["peak_memory_bytes"]),
                        files=int(made.get("files", 0)),
                        size_bytes=int(made.get("bytes", 0)),
                    )
                    found[result["family"]].append(job)
            self._jobs = found | self._jobs
        self._known: dict[tuple[str, Place, float], tuple[float, float, float] | None] = {}
        self._by_place: dict[tuple[str, str], dict[Place, list[_Job]]] = {}
        self._peaks: dict[str, tuple[int, float, int]] = {}
        # Why the reference's cells are unknown: it cannot be opened. A check reports that before anything starts.
        self.lacks_reference = ""

    def expected(self, task: SlurmTask, allocation: Resources) -> Cost:
        """Return the expected cost of a task with these resources."""
        rule, place, size = task.get_task_family(), _place(task.wildcards), task.work_size()
        key, group = (rule, place, size), self._group_of(place)
        if key not in self._known:
            self._known[key] = _scaled(self._alike(rule, group), place, size)
        learnt, cpus = self._known[key], allocation.cpus_per_task
        if learnt is not None:
            core_seconds, files, made = learnt
            memory, memory_basis = self._memory(rule, size, allocation.memory_bytes)
            return Cost(core_seconds / cpus, cpus, memory, files, made, Basis.JOBS, memory_basis)
        longest, most = 60.0 * allocation.time_minutes, allocation.memory_bytes
        made = _BYTES_A_VALUE * task.values_in_outputs * size * self._cells_by_area if task.values_in_outputs else 0.0
        named = f"{rule} {getattr(task, 'downscaler', '') or self._methods.get(group, '')}".strip()
        row = named if group or named in self._measured_rules else rule
        if row not in self._measured_rules:
            return Cost(longest, cpus, most, 0.0, made, Basis.LIMITS, Basis.LIMITS)
        # A job's core-seconds and MiB, as a line over millions of cells x days x variables x members.
        line, millions = self._measured_rules[row], size * self._cells_by_area / 365e6
        seconds = line["seconds"] + line["seconds_a_million"] * millions
        memory = int((line["mib"] + line["mib_a_million"] * millions) * MIB)
        return Cost(min(seconds / cpus, longest), cpus, min(memory, most), 0.0, made, Basis.TABLE, Basis.TABLE)

    def _alike(self, rule: str, group: str) -> dict[Place, list[_Job]]:
        """The ended jobs of a rule that adjust a group of variables, or none, by their place."""
        if (rule, group) not in self._by_place:
            alike = self._by_place[rule, group] = defaultdict[Place, list[_Job]](list)
            for job in self._jobs.get(rule, []):
                if self._group_of(job.place) == group:
                    alike[job.place].append(job)
        return self._by_place[rule, group]

    def size_bytes(self, task: SlurmTask) -> float:
        """Return the expected bytes of a task's outputs."""
        return self.expected(task, task.allocation).size_bytes

    def _memory(self, rule: str, size: float, limit: int) -> tuple[int, Basis]:
        """The jobs' largest peak; for a task larger than all, scaled, at most the limit."""
        if rule not in self._peaks:
            # The largest peak, and the largest size with the largest peak of the jobs of that size.
            jobs = self._jobs[rule]
            by_size = max((job.size, job.memory_bytes) for job in jobs)
            self._peaks[rule] = max(job.memory_bytes for job in jobs), *by_size
        peak, largest, of_largest = self._peaks[rule]
        if not largest or size <= largest:
            return peak, Basis.JOBS
        return max(peak, min(int(of_largest * size / largest), limit)), Basis.LIMITS

    def _group_of(self, place: Place) -> str:
        """The group of variables that a task adjusts together, whose cost is no other's; "" of other tasks."""
        var = place[_PLACES.index("var")]
        return var if var in self._methods else ""

    @cached_property
    def _methods(self) -> dict[str, str]:
        """The method of each group of variables that are adjusted together."""
        return {key: how.name for key, how in context().config.biasadjust.variables.items() if how.variables}

    @cached_property
    def _measured_rules(self) -> dict[str, dict[str, float]]:
        return dict(measured()["rules"])

    @cached_property
    def _cells_by_area(self) -> float:
        """Cells of the reference in a degree squared; of 0.1 degrees if it cannot be opened."""
        try:
            return context().cells_by_area
        except (EspoError, OSError) as error:
            self.lacks_reference = str(error)
            return _MEASURED_DENSITY


def measured() -> dict[str, Any]:
    """Return the package's table for the run's production: the measured cost of each rule's jobs, processor, date."""
    return tables().get(context().production.costs, {"rules": {}})


@cache
def tables() -> dict[str, dict[str, Any]]:
    """Return the package's measurements, by production."""
    return dict(yaml.safe_load(_MEASURED.read_text()))


def _place(wildcards: Mapping[str, str]) -> Place:
    return tuple(wildcards.get(name, "") for name in _PLACES)


def _scaled(jobs: Mapping[Place, Sequence[_Job]], place: Place, size: float) -> tuple[float, float, float] | None:
    """Core-seconds, files and bytes of a task: of those at the same place the median, else of all, by their size."""
    alike = jobs.get(place) or itertools.chain.from_iterable(jobs.values())
    taken = [(job, size / job.size if size and job.size else 1.0) for job in alike]
    if not taken:
        return None
    return (
        statistics.median(scale * job.core_seconds for job, scale in taken),
        statistics.median(scale * job.files for job, scale in taken),
        statistics.median(scale * job.size_bytes for job, scale in taken),
    )
