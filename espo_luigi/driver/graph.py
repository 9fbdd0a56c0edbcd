"""The graph of tasks: a run, a plan, staleness, timing and `espo why` share the walk and the queries of this class."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from luigi.task import Task

from espo_luigi.driver.task import SlurmTask


@contextmanager
def without_collector() -> Iterator[None]:
    """Pause Python's collector of garbage: it would look again and again at all tasks that a graph has."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


# During a walk: the tasks that `made` has made, by class and values.
_made: ContextVar[dict[Any, Any] | None] = ContextVar("made", default=None)


def made(kind: type[Task], values: Mapping[str, Any]) -> Any:
    """Return the task of a class with these values; in a walk, Luigi looks up all parameters of each task only once."""
    known, key = _made.get(), (kind, tuple(values.items()))
    try:
        task = known.get(key) if known is not None else None
    except TypeError:  # a value that cannot be looked up, such as a mapping
        return kind(**values)
    if task is None:
        task = kind(**values)
        if known is not None:
            known[key] = task
    return task


@contextmanager
def _walking() -> Iterator[None]:
    token = _made.set(_made.get() or {})
    try:
        with without_collector():
            yield
    finally:
        _made.reset(token)


class Graph:
    """The tasks below `roots`, complete or not, however deep; each task once, after its needs.

    `tasks` has the tasks and `needs` the ids of their direct needs, both by id. Each task is asked once for its needs.
    With `check`, the walk raises what `SlurmTask.check` raises.
    """

    def __init__(self, roots: Iterable[Task] = (), *, check: bool = False) -> None:
        self.roots = {task.task_id: task for task in roots}
        self.tasks: dict[str, Task] = {}
        self.needs: dict[str, tuple[str, ...]] = {}
        with _walking():
            self._walk(check)

    def _walk(self, check: bool) -> None:
        needs: dict[str, tuple[str, ...]] = {}
        stack = list(self.roots.values())[::-1]
        while stack:
            task = stack.pop()
            task_id = task.task_id
            if task_id in needs:
                if task_id not in self.tasks:
                    self.tasks[task_id], self.needs[task_id] = task, needs[task_id]
                continue
            if check and isinstance(task, SlurmTask):
                task.check()
            found = task.deps()
            needs[task_id] = tuple(need.task_id for need in found)
            stack.append(task)
            stack += [need for need in reversed(found) if need.task_id not in self.tasks]

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks.values())

    def add(self, other: Graph) -> None:
        """Add the tasks of another graph, with the needs that they have there."""
        self.tasks |= other.tasks
        self.needs |= other.needs

    def below(self, roots: Iterable[Task]) -> Graph:
        """Return the part of this graph below some of its tasks."""
        part = Graph()
        part.roots = {task.task_id: task for task in roots}
        within = self.pending(lambda task: True, part.roots.values())[0]
        part.tasks = {task_id: task for task_id, task in self.tasks.items() if task_id in within}
        part.needs = {task_id: self.needs[task_id] for task_id in part.tasks}
        return part

    def needs_of(self, task: Task) -> list[Task]:
        """Return the direct needs of a task."""
        return [self.tasks[need] for need in self.needs[task.task_id]]

    def pending(
        self, is_wanted: Callable[[Task], bool] = lambda task: not task.complete(), ends: Iterable[Task] | None = None
    ) -> tuple[set[str], set[str]]:
        """Return the tasks that a run of `ends` would do, and those that it checks.

        The needs of a complete task are not checked. The `ends` are the roots by default.
        """
        pending, seen = set[str](), set[str]()
        stack = [task.task_id for task in (self.roots.values() if ends is None else ends)]
        while stack:
            task_id = stack.pop()
            if task_id not in seen:
                seen.add(task_id)
                if is_wanted(self.tasks[task_id]):
                    pending.add(task_id)
                    stack.extend(self.needs[task_id])
        return pending, seen
