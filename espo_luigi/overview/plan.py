"""What a run would do, before it does anything: each task's state, and why; what it is expected to cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from luigi.task import Task

from espo_luigi.driver.run import Graph, each_after_its_needs
from espo_luigi.driver.sections import OPTION_NAMES, SECTIONS
from espo_luigi.driver.settings import settings
from espo_luigi.driver.task import SlurmTask
from espo_luigi.errors import EspoError
from espo_luigi.jobs.batch import refusals_of
from espo_luigi.jobs.resources import Resources, machine_cpus, machine_memory, parse_memory
from espo_luigi.overview.cost import Cost, Experience
from espo_luigi.overview.timing import Step, Timing, timing
from espo_luigi.ports import OutputPort, ports_of
from espo_luigi.tasks.base import EspoTask

_HALF = "half there, or another task's"
DONE, RUN, BLOCKED = "done", "to run", "blocked"


@dataclass
class Planned:
    """One task, those that it needs, its state, why it is to run or cannot, what changed since, and its cost."""

    task: SlurmTask
    needs: list[str]
    state: str = DONE
    reason: str = ""
    stale: list[str] = field(default_factory=list)
    cost: Cost | None = None

    @property
    def rule(self) -> str:
        """The task's rule."""
        return str(self.task.get_task_family())


@dataclass
class Plan:
    """All tasks of a run, by id, each after what it needs; `again` are those that are complete and depend on a change.

    `covers_everything` says whether temporary stores are deleted as soon as nothing needs them.
    """

    tasks: dict[str, Planned]
    again: set[str]
    covers_everything: bool

    def of(self, *states: str) -> list[Planned]:
        """Return the tasks in these states."""
        return [one for one in self.tasks.values() if one.state in states]

    def timing(self) -> Timing:
        """Return how long what is to run takes in the room that there is."""
        local = settings().engine not in SECTIONS
        steps = {}
        for task_id, one in self.tasks.items():
            if one.state == RUN and one.cost is not None:
                temporary = one.cost.size_bytes if _is_temporary(type(one.task)) else 0.0
                steps[task_id] = Step(one.cost.seconds, one.cost.cpus if local else 1, one.needs, temporary)
        return timing(steps, room())

    def made_bytes(self, *, temporary: bool) -> float:
        """Return the bytes that are to be made in one of the two folders, as if nothing were deleted meanwhile."""
        made = [one for one in self.of(RUN) if one.cost is not None and _is_temporary(type(one.task)) == temporary]
        return sum(one.cost.size_bytes for one in made if one.cost is not None)


def room() -> int:
    """Return how many jobs there may be at once, or how many CPUs this machine has for them."""
    section = SECTIONS.get(settings().engine)
    return section().max_jobs if section is not None else settings().local_cpus or machine_cpus()


def make_plan(ends: Sequence[Task], *, allowed: set[str] | None = None, covers_everything: bool = False) -> Plan:
    """Plan a run of `ends` and what they need; rules that are not `allowed` do not run."""
    graph = each_after_its_needs(ends)
    tasks = {
        task_id: Planned(task, [need.task_id for need in needs])
        for task_id, (task, needs) in graph.items()
        if isinstance(task, SlurmTask)
    }
    pending, seen = _pending(ends, graph, lambda task: not task.complete())
    for task_id in seen & tasks.keys():
        one = tasks[task_id]
        one.stale = one.task.stale() if isinstance(one.task, EspoTask) and task_id not in pending else []
    again: set[str] = set()
    if any(tasks[task_id].stale for task_id in seen & tasks.keys()):
        again = _pending(ends, graph, lambda task: not task.complete() or _is_stale(task))[0] - pending
    experience = Experience(Path(settings().workdir))
    for task_id, one in tasks.items():
        if task_id in pending:
            _decide(one, tasks, allowed, experience)
    return Plan(tasks, again & tasks.keys(), covers_everything)


def _pending(ends: Iterable[Task], graph: Graph, is_wanted: Callable[[Task], bool]) -> tuple[set[str], set[str]]:
    """Return the tasks that a run would do, and those that it looks at: nothing behind what is complete."""
    pending: set[str] = set()
    seen: set[str] = set()
    stack = list(ends)
    while stack:
        task = stack.pop()
        if task.task_id not in seen:
            seen.add(task.task_id)
            if is_wanted(task):
                pending.add(task.task_id)
                stack.extend(graph[task.task_id][1])
    return pending, seen


def _is_stale(task: Task) -> bool:
    return isinstance(task, EspoTask) and bool(task.stale())


def _decide(one: Planned, tasks: dict[str, Planned], allowed: set[str] | None, experience: Experience) -> None:
    """Say whether a task that is not complete can run, why, and at what cost; those that it needs are decided."""
    resources, problem = _resources(one.task)
    waits = next((tasks[need] for need in one.needs if need in tasks and tasks[need].state == BLOCKED), None)
    if allowed is not None and one.rule not in allowed:
        problem = "missing, and before the rules that are to run"
    elif not problem and waits is not None:
        problem = waits.reason if waits.reason.startswith("needs ") else f"needs {waits.task.label()}: {waits.reason}"
    one.state, one.reason = (BLOCKED, problem) if problem else (RUN, why_to_run(one.task))
    if resources is not None:
        one.cost = experience.expected(one.task, resources)


def _resources(task: SlurmTask) -> tuple[Resources | None, str]:
    """Return what the task's job gets, and what is wrong with the task or its request."""
    try:
        task.check()
        asked = task.allocation
    except (EspoError, OSError) as error:
        return None, str(error)
    section = SECTIONS.get(settings().engine)
    if section is None:
        return asked.fitted(max(1, room() // 2), _local_memory(settings().local_memory) // 2), ""
    return _on_a_cluster(task, asked)


@lru_cache
def _local_memory(said: str) -> int:
    return parse_memory(said) if said else machine_memory() * 9 // 10


def _on_a_cluster(task: SlurmTask, asked: Resources) -> tuple[Resources, str]:
    key = (task.get_task_family(), asked, *(str(getattr(task, name, "")) for name in OPTION_NAMES))
    if key not in _refused:
        _refused[key] = refusals_of(task.order(), SECTIONS[settings().engine]().batch_settings())
    fitted, refusals = _refused[key]
    return fitted, "; ".join(refusals)


# By rule, resources and options.
_refused: dict[Any, tuple[Resources, list[str]]] = {}


def why_to_run(task: Task) -> str:
    """Return which output is missing, or what of the configuration changed."""
    if not isinstance(task, EspoTask):
        return "not complete"
    ports = dict(ports_of(type(task), OutputPort))
    kept = {name: port for name, port in ports.items() if not port.is_temporary} or ports
    infos = [getattr(task, name)() for name in kept]
    missing = [info for info in infos if info.target.marker() is None]
    if missing:
        others = [info.path.name for info in missing if info.path.exists()]
        named = ", ".join(info.path.name for info in missing)
        return f"output {_HALF if others else 'missing'}: {named}"
    if changed := task.stale():
        return f"changed: {', '.join(changed)}"
    return "its outputs were not made together, or what they say is not allowed any more"


@lru_cache
def _is_temporary(rule: type) -> bool:
    ports = [port for _, port in ports_of(rule, OutputPort)]
    return bool(ports) and all(port.is_temporary for port in ports)
