"""A plan of a run: each task's state, and why, and its expected cost."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from luigi.task import Task

from espo_luigi.driver.graph import Graph, without_collector
from espo_luigi.driver.run import expect_on_scratch
from espo_luigi.driver.scratch import Scratch
from espo_luigi.driver.settings.espo import amount_of, check_names, unchanging_settings
from espo_luigi.driver.settings.sections import OPTION_NAMES, SECTIONS
from espo_luigi.driver.stale import stale_in
from espo_luigi.driver.task import SlurmTask
from espo_luigi.errors import ParameterError
from espo_luigi.jobs.engine import room_of
from espo_luigi.jobs.order import jobs_folder
from espo_luigi.jobs.resources import Resources
from espo_luigi.overview.states import BLOCKED, DONE, RUN, StateInPlan, TaskState, TaskStatus, problem_of
from espo_luigi.overview.timing import Amounts, Capacity, TimedTask, Timing, capacity, timing
from espo_luigi.store.marker import reading_once
from espo_luigi.tasks.all import All, Selection
from espo_luigi.tasks.base import EspoTask
from espo_luigi.tasks.context import settings
from espo_luigi.tasks.cost import Cost, Experience

# The number of inputs that a reason names.
_SHOWN = 2
_HALF = "half there, or another task's"


@dataclass(slots=True)
class Planned:
    """A task, its state, its expected cost, and its part of the capacity."""

    task: SlurmTask
    status: TaskStatus = field(default_factory=TaskStatus)
    cost: Cost | None = None
    takes: Amounts = field(default_factory=dict)

    @property
    def rule(self) -> str:
        """The task's rule."""
        return str(self.task.get_task_family())

    @property
    def temporary_bytes(self) -> float:
        """The expected bytes of its temporary outputs."""
        share = self.task.temporary_share() if isinstance(self.task, EspoTask) else 0.0
        return share * self.cost.size_bytes if self.cost is not None else 0.0

    @property
    def reason(self) -> str:
        """Why it is to run or blocked, with the task that blocks it."""
        return f"needs {self.status.blocked_by}: {self.status.why}" if self.status.blocked_by else self.status.why


@dataclass
class Plan:
    """All tasks of a run, by id, in the order of their `graph`; `again` are complete tasks that depend on a change.

    If it `deletes`, temporary stores go as soon as nothing needs them. `scratch` is the account of a run with
    `[espo] scratch_limit`. `lacking` is the problem of tasks that a run leaves out. `lacks_reference` says why costs
    assume cells of 0.1 degrees.
    """

    graph: Graph
    tasks: dict[str, Planned]
    again: set[str]
    deletes: bool
    capacity: Capacity
    lacking: str
    lacks_reference: str
    scratch: Scratch | None = None

    @property
    def too_large(self) -> str:
        """Why a run with this limit of scratch space is refused; "" if it is not."""
        return self.scratch.too_large() if self.scratch is not None else ""

    def of(self, state: StateInPlan) -> list[Planned]:
        """Return the tasks in a state."""
        return self._by_state[state]

    @functools.cached_property
    def _by_state(self) -> dict[str, list[Planned]]:
        found: dict[str, list[Planned]] = {DONE: [], RUN: [], BLOCKED: []}
        for planned in self.tasks.values():
            found[planned.status.in_plan].append(planned)
        return found

    def again_for_others(self) -> list[Planned]:
        """Return the tasks to run whose outputs tasks that are done have used: they were temporary, and are gone."""
        found: dict[str, Planned] = {}
        for task_id, planned in reversed(self.tasks.items()):
            if planned.status.in_plan == DONE or task_id in found:
                found |= {need: self.tasks[need] for need in self.graph.needs[task_id] if need in self.tasks}
            if planned.status.in_plan != RUN:
                found.pop(task_id, None)
        return list(found.values())

    def timing(self, *, limited: bool = True) -> Timing:
        """Return how long the tasks to run take; unless `limited`, without the limit of scratch space."""
        steps = {}
        for task_id, planned in self.tasks.items():
            if planned.status.in_plan == RUN and planned.cost is not None:
                steps[task_id] = TimedTask(planned.cost.seconds, planned.takes, planned.temporary_bytes)
        scratch = self.scratch.copy() if self.scratch is not None and limited and not self.too_large else None
        return timing(steps, self.graph.needs, self.capacity.amounts, scratch=scratch, deletes=self.deletes)

    def made_bytes(self, *, temporary: bool) -> float:
        """Return the bytes of the temporary outputs to make, or of the kept ones; none counts as deleted meanwhile."""
        run = [planned for planned in self.of(RUN) if planned.cost is not None]
        gone = sum(planned.temporary_bytes for planned in run)
        return gone if temporary else sum(planned.cost.size_bytes for planned in run if planned.cost is not None) - gone


@unchanging_settings()
@reading_once()
@without_collector()
def plan_of(rules: Sequence[str], selection: Selection, roots: Sequence[Task] = ()) -> Plan:
    """Plan a run of `All`, or until some of its rules, narrowed by a selection; or a run of `roots`.

    Raises
    ------
    ConfigurationError
        If luigi.cfg has an unknown name.
    ParameterError
        If a rule, a simulation or a region is not part of the run, or no task is left.
    """
    check_names()
    if rules and (selection.until or selection.only):
        raise ParameterError("TASK is a rule until which the run goes, and excludes --until and --only")
    everything = Graph(roots or All().everything())
    parts = [replace(selection, until=rule) for rule in rules] or [selection]
    graph = everything.below(task for part in parts for task in part.ends(everything))
    allowed = selection.allowed(graph)
    tasks = {task_id: Planned(task) for task_id, task in graph.tasks.items() if isinstance(task, SlurmTask)}
    pending, seen = graph.pending()
    stale, again = stale_in(graph, pending, seen)
    for task_id, keys in stale.items():
        tasks[task_id].status = TaskStatus(TaskState.STALE, changed=tuple(keys))
    _refused.clear()  # settings may have changed since the last plan
    experience, available = Experience(_experienced()), capacity()
    for task_id, planned in tasks.items():
        if task_id in pending:
            problem = selection.lacking if allowed is not None and planned.rule not in allowed else ""
            needs = [tasks[need] for need in graph.needs[task_id] if need in tasks]
            _decide(planned, needs, problem, experience, available)
    deletes = not (selection or rules or roots or settings().keep_temporary)
    scratch = None if (limit := amount_of("scratch_limit")) is None else Scratch(limit)
    if scratch is not None:
        expect_on_scratch(scratch, graph, {one for one in pending if tasks[one].status.in_plan == RUN})
    return Plan(graph, tasks, again, deletes, available, selection.lacking, experience.lacks_reference, scratch)


def _experienced() -> tuple[Path, ...]:
    own, *others = settings().experienced
    if lacking := [str(other) for other in others if not jobs_folder(other).is_dir()]:
        raise ParameterError(
            f"[espo] learn_from: {', '.join(lacking)} is no work folder of a run, which has a folder jobs: give the "
            "`workdir` of a run that has done something, or nothing"
        )
    return own, *others


def _decide(
    planned: Planned, needs: Sequence[Planned], problem: str, experience: Experience, available: Capacity
) -> None:
    """Decide whether an incomplete task can run, why, and at what cost, after the tasks that it needs."""
    resources, own_problem, takes = _resources(planned.task, available)
    waits = next((need for need in needs if need.status.in_plan == BLOCKED), None)
    if problem := problem or own_problem:
        planned.status = TaskStatus(TaskState.BLOCKED, problem)
    elif waits is not None:
        planned.status = replace(waits.status, blocked_by=waits.status.blocked_by or waits.task.label())
    else:
        waits_first = any(need.status.in_plan == RUN for need in needs)
        planned.status = TaskStatus(TaskState.TO_COME if waits_first else TaskState.READY, why_to_run(planned.task))
    if resources is not None:
        planned.cost, planned.takes = experience.expected(planned.task, resources), takes


def _resources(task: SlurmTask, available: Capacity) -> tuple[Resources | None, str, Amounts]:
    """Return the task's resources, the problem with it or its request, and its part of the capacity."""
    if problem := problem_of(task):
        return None, problem, {}
    asked, is_batch = task.allocation, settings().engine in SECTIONS
    options = [str(getattr(task, name, "")) for name in OPTION_NAMES] if is_batch else ()
    key = (task.get_task_family(), asked, *options)
    if key not in _refused:
        fitted, problem, at_once = asked, "", 1
        if is_batch:
            order, batch = task.order(), SECTIONS[settings().engine]().batch_settings()
            fitted, refusals, at_once = room_of(order, batch)
            problem, at_once = "; ".join(refusals), 1 if refusals else at_once
        elif available.largest:
            fitted = asked.fitted(available.largest.cpus, available.largest.memory_bytes)
        _refused[key] = fitted, problem, available.taken(fitted, at_once)
    return _refused[key]


# By rule, resources and options.
_refused: dict[Any, tuple[Resources, str, Amounts]] = {}


def why_to_run(task: Task) -> str:
    """Return which output is missing, or which part of the configuration changed."""
    if not isinstance(task, EspoTask):
        return "not complete"
    infos = task.decisive_infos()
    missing = [info for info in infos if info.target.marker() is None]
    if missing:
        others = [info.path.name for info in missing if info.path.exists()]
        named = ", ".join(info.path.name for info in missing)
        return f"output {_HALF if others else 'missing'}: {named}"
    if task.is_about_all:
        # The inputs that are gone, or are not those that the output was made of.
        marker, now = infos[0].target.marker(), task.input_ids()
        before = dict(marker.inputs) if marker is not None else {}
        differing = [Path(path).name for path in {**before, **now} if before.get(path) != now.get(path)]
        if differing:
            return f"not about what is there now: {', '.join(differing[:_SHOWN])}"
    if changed := task.stale():
        return f"changed: {', '.join(changed)}"
    return "its outputs were not made together, or what they say is not allowed any more"
