"""Luigi's scheduler inside a driver: the one of runs without luigid.

Luigi's own scheduler looks at every task whenever a worker asks for work: a run's time grows with the square of its
tasks. Here, tasks that may start wait in a heap, and Luigi's own `get_work` sees only the first of them. It sees all
tasks if its answer depends on more: resources, batches, several workers, a pause. Tasks for which scratch space has no
room are set aside, by group, and seen by nobody.
"""

from __future__ import annotations

import heapq
import logging
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import luigi.scheduler
from luigi.scheduler import DISABLED, DONE, FAILED, PENDING, RUNNING, SimpleTaskState
from luigi.scheduler import Task as Entry

from espo_luigi.driver.scratch import Scratch

logger = logging.getLogger(__name__)


class ReadyTasks(SimpleTaskState):
    """Luigi's table of tasks, with a heap of those that may start, by rank."""

    def __init__(self, state_path: str) -> None:
        super().__init__(state_path)
        # Entries may be out of date: they are looked at again when they come up.
        self._ready: list[tuple[float, float, str]] = []
        # By dependency: the tasks that wait for it, with their other dependencies. A task waits for only one at a time.
        self._waiting: dict[str, dict[str, list[str]]] = defaultdict(dict)
        # If set, Luigi sees only these tasks.
        self.shown: list[Entry] | None = None
        self.scratch: Scratch | None = None
        # The tasks that only wait for room on scratch, by group.
        self._set_aside: dict[str, list[str]] = defaultdict(list)

    def set_status(self, task: Entry, new_status: str, config: Any = None) -> None:
        """Set the status; find out what may start because of it."""
        super().set_status(task, new_status, config)
        if task.status == DONE:
            for task_id, others in self._waiting.pop(task.id, {}).items():
                self._go_on(task_id, others)
        elif task.status == PENDING:
            self.look_at(task.id)

    def look_at(self, task_id: str) -> None:
        """Queue a pending task if its dependencies are done; otherwise let it wait for an unfinished dependency."""
        task = self.get_task(task_id)
        if task is not None:
            self._go_on(task_id, list(task.deps))

    def _go_on(self, task_id: str, needed: list[str]) -> None:
        task = self.get_task(task_id)
        if task is None or task.status != PENDING:
            return
        while needed:
            dependency = needed.pop()
            if not self._is_done(dependency):
                self._waiting[dependency][task_id] = needed
                return
        heapq.heappush(self._ready, _rank(task))

    def first(self, worker_id: str) -> list[Entry]:
        """Return the task of the highest rank that `worker_id` can start, or nothing."""
        for group in [group for group in self._set_aside if self.scratch is None or self.scratch.admits(group)]:
            for task_id in self._set_aside.pop(group):
                self.look_at(task_id)
        while self._ready:
            task_id = self._ready[0][-1]
            task = self.get_task(task_id)
            is_ready = task is not None and task.status == PENDING and worker_id in task.workers
            is_first = is_ready and _rank(task) == self._ready[0] and all(map(self._is_done, task.deps))
            if is_first and self.has_room(task_id):
                return [task]
            heapq.heappop(self._ready)
            if is_first and self.scratch is not None:
                group = self.scratch.group_of(task_id)
                if group not in self._set_aside:
                    logger.info("%s waits for room on scratch ([espo] scratch_limit)", group)
                self._set_aside[group].append(task_id)
            elif is_ready:
                self.look_at(task_id)
        return []

    def has_room(self, task_id: str) -> bool:
        """Return whether scratch space has room for a task's group."""
        return self.scratch is None or self.scratch.admits(self.scratch.group_of(task_id))

    def get_active_tasks_by_status(self, *statuses: str) -> Iterable[Entry]:
        """Return the shown tasks in any of `statuses`."""
        if self.shown is None:
            return super().get_active_tasks_by_status(*statuses)
        return (task for task in self.shown if task.status in statuses)

    def _is_done(self, task_id: str) -> bool:
        task = self.get_task(task_id)
        return task is not None and task.status == DONE


def _rank(task: Entry) -> tuple[float, float, str]:
    # Luigi's order: the highest priority, then the first that was added.
    return -task.priority, task.time, task.id


class LinearScheduler(luigi.scheduler.Scheduler):
    """Luigi's scheduler inside a driver: same order, priorities, resources, retries and failures, at constant cost."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{**settings, "prune_on_get_work": False})
        state = ReadyTasks(self._config.state_path)
        state._metrics_collector = self._state._metrics_collector
        self._state: ReadyTasks = state
        self._needs_all = False

    def add_task(self, task_id: Any = None, resources: Any = None, **keywords: Any) -> Any:
        self._needs_all |= bool(resources)
        answer = super().add_task(task_id=task_id, resources=resources, **keywords)
        self._state.look_at(task_id)  # its dependencies and its workers may be new
        return answer

    def _update_priority(self, task: Entry, prio: float, worker: str) -> None:
        before = task.priority
        super()._update_priority(task, prio, worker)
        if task.priority != before:
            self._state.look_at(task.id)

    def add_task_batcher(self, *arguments: Any, **keywords: Any) -> Any:
        self._needs_all = True
        return super().add_task_batcher(*arguments, **keywords)

    def get_work(self, worker: str, current_tasks: Any = None, **keywords: Any) -> Any:
        self._update_worker(worker)  # a driver that was suspended must not be pruned by its own question
        self.prune()
        asked = {"worker": worker, "current_tasks": current_tasks, **keywords}
        running = self._state.get_active_task_count_for_status(RUNNING)
        lost_some = current_tasks is None or running != len(current_tasks)
        is_alone = len(self._state.get_worker_ids()) == 1
        if keywords.get("assistant") or self._needs_all or self._paused or lost_some or not is_alone:
            return super().get_work(**asked)
        first = self._state.first(worker)
        if not first and not current_tasks:
            return super().get_work(**asked)  # the end: its answer has to count those that are left
        self._state.shown = first
        try:
            return super().get_work(**asked)
        finally:
            self._state.shown = None

    def start_within(self, scratch: Scratch | None) -> None:
        """Start the tasks of a group only once scratch space has room for the group."""
        self._state.scratch = scratch

    def _schedulable(self, task: Entry) -> bool:
        return bool(super()._schedulable(task)) and self._state.has_room(task.id)

    def _prune_workers(self) -> None:
        if any(worker.prune(self._config) for worker in self._state.get_active_workers()):
            super()._prune_workers()
            super()._prune_tasks()

    def _prune_tasks(self) -> None:
        # While the driver lives, only tasks that failed can change by themselves.
        removed = []
        for task in list(self._state.get_active_tasks_by_status(FAILED, DISABLED)):
            self._state.update_status(task, self._config)
            if self._state.may_prune(task):
                removed.append(task.id)
        self._state.inactivate_tasks(removed)
