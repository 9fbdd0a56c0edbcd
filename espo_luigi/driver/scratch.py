"""The budget of scratch space (``[espo] scratch_limit``): groups of tasks wait until their temporary stores have room.

A group is a set of tasks whose temporary stores come and go together, such as those of a pool. Tasks without a group
start at any time; their stores count.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from espo_luigi.driver.settings.espo import settings
from espo_luigi.jobs.resources import render_size

# The group of tasks that start at any time.
NO_GROUP = ""
# The number of groups that a message names.
_SHOWN = 3


class Use(NamedTuple):
    """Bytes of a group's stores on the disk, and of those that it has yet to write; `left` tasks can still run."""

    on_disk: int = 0
    to_write: int = 0
    left: int = 0

    @property
    def bytes(self) -> int:
        """All of them."""
        return self.on_disk + self.to_write


def admitted(waiting: Sequence[str], at_work: Collection[str], uses: Mapping[str, Use], limit: int) -> list[str]:
    """Return those of the `waiting` groups that may start, in their order, beside the groups that are `at_work`.

    The limit has to hold all stores on the disk, what groups at work and tasks without a group have yet to write, and
    the group's own stores. Groups behind a waiting group wait, too. But a group is passed over if leftovers of
    other groups keep it out: the end of groups at work would not help it.
    """
    always = uses.get(NO_GROUP, Use())
    ending = set(at_work) - {NO_GROUP}
    free = limit - always.to_write - sum(use.on_disk for use in uses.values())
    free -= sum(uses[name].to_write for name in ending)
    chosen: list[str] = []
    for name in waiting:
        if uses[name].to_write <= max(free, 0):  # a group that writes nothing more only frees space
            free -= uses[name].to_write
            ending.add(name)
            chosen.append(name)
            continue
        stays = always.bytes + sum(use.on_disk for one, use in uses.items() if one not in {*ending, name, NO_GROUP})
        if ending and stays + uses[name].bytes <= limit:
            break
    return chosen


@dataclass(frozen=True)
class _Task:
    """A task's group, the bytes that it writes, those of its stores on the disk, and whether it can still run."""

    group: str
    writes: int
    on_disk: int
    is_left: bool

    @property
    def use(self) -> Use:
        return Use(self.on_disk, max(0, self.writes - self.on_disk) if self.is_left else 0, int(self.is_left))


_NO_TASK = _Task(NO_GROUP, 0, 0, is_left=False)


class Scratch:
    """The account of a run's temporary stores, by group, and which groups have started; several threads use it."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._tasks: dict[str, _Task] = {}
        # The bytes and tasks of each group; `NO_GROUP` has those of the tasks that start at any time.
        self.uses: dict[str, Use] = {NO_GROUP: Use()}
        self._started: set[str] = {NO_GROUP}
        self._waiting: dict[str, None] = {}
        self._is_changed = True

    def expect(self, task_id: str, group: str, *, writes: float, on_disk: int, is_left: bool) -> None:
        """Add a task, or replace its figures; a task that is left for any root stays left."""
        with self._lock:
            is_left = is_left or self._tasks.get(task_id, _NO_TASK).is_left
            self._replace(task_id, _Task(group, round(writes), on_disk, is_left))

    def note(self, task_id: str, *, on_disk: int | None = None, is_left: bool | None = None) -> None:
        """Record the bytes of a task's stores, or whether it can still run."""
        with self._lock:
            if (task := self._tasks.get(task_id)) is not None:
                task = task if on_disk is None else replace(task, on_disk=on_disk)
                self._replace(task_id, task if is_left is None else replace(task, is_left=is_left))

    def _replace(self, task_id: str, task: _Task) -> None:
        for one, sign in ((self._tasks.get(task_id, _NO_TASK), -1), (task, 1)):
            so_far = self.uses.get(one.group, Use())
            self.uses[one.group] = Use(*(n + sign * own for n, own in zip(so_far, one.use, strict=True)))
        self._tasks[task_id] = task
        self._is_changed = True

    def copy(self) -> Scratch:
        """Return a copy; in the copy, no group has started."""
        copied = Scratch(self.limit)
        copied._tasks, copied.uses = dict(self._tasks), dict(self.uses)
        return copied

    def group_of(self, task_id: str) -> str:
        """Return the group of a task; `NO_GROUP` if the task is not known."""
        return self._tasks.get(task_id, _NO_TASK).group

    def admits(self, group: str) -> bool:
        """Return whether tasks of a group may start; if not, the group waits behind those that wait already."""
        with self._lock:
            if group in self._started:
                return True
            if self._is_changed or group not in self._waiting:
                self._waiting.setdefault(group)
                at_work = [name for name in self._started if self.uses[name].left]
                for name in admitted(list(self._waiting), at_work, self.uses, self.limit):
                    self._started.add(name)
                    del self._waiting[name]
                self._is_changed = False
            return group in self._started

    def too_large(self) -> str:
        """Return why groups can never start: alone, they need more than the limit; "" if each has room alone."""
        always = self.uses[NO_GROUP].bytes
        sizes = {name: use.bytes + always for name, use in self.uses.items() if name and use.to_write}
        large = sorted(name for name, size in sizes.items() if size > self.limit)
        if not large:
            return ""
        most = max(large, key=lambda name: sizes[name])
        besides = f", the {render_size(always)} of tasks that start at any time included" if always else ""
        others = f" (and {len(large) - 1} more are too large)" if len(large) > 1 else ""
        return (
            f"[espo] scratch_limit = {settings().scratch_limit}, but {most} alone needs {render_size(sizes[most])} for "
            f"temporary stores{besides}{others}: raise the limit, or leave it out"
        )

    def no_room(self) -> str:
        """Return a sentence about the stores on the disk and the groups that wait; "" if no group waits."""
        with self._lock:
            if not self._waiting:
                return ""
            sizes = {name: use.on_disk for name, use in self.uses.items() if use.on_disk}
            largest = sorted(sizes, key=lambda name: -sizes[name])[:_SHOWN]
            lie = ", ".join(f"{render_size(sizes[name])} of {name or 'tasks of no group'}" for name in largest)
            waiting = list(self._waiting)
            wait = f"{', '.join(waiting[:_SHOWN])}{_more(len(waiting))}"
            return (
                f"no room: [espo] scratch_limit = {settings().scratch_limit}, of which temporary stores take "
                f"{render_size(sum(sizes.values()))} ({lie}{_more(len(sizes))}). {wait} cannot start; {waiting[0]} has "
                f"{render_size(self.uses[waiting[0]].to_write)} to write. Raise the limit, or solve what failed, if "
                "anything did: the same command goes on from these stores. `espo clean` deletes those that nothing "
                "needs. With keep_temporary = true, or in a part of All, a run deletes none"
            )


def _more(count: int) -> str:
    return f", and {count - _SHOWN} more" if count > _SHOWN else ""
