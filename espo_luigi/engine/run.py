"""What one driver knows of its run: its tasks, who still needs whose outputs, and how each ended."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Collection, Sequence

from luigi.task import Task

from espo_luigi.engine.task import SlurmTask

logger = logging.getLogger(__name__)

# A task and those that it requires, by the task's id.
Graph = dict[str, tuple[Task, Sequence[Task]]]


def checked_graph(root: Task) -> Graph:
    """Return every task below `root`, complete or not, after having checked it. Raises what `SlurmTask.check` does."""
    graph: Graph = {}
    stack = [root]
    while stack:
        task = stack.pop()
        if task.task_id not in graph:
            if isinstance(task, SlurmTask):
                task.check()
            needs = task.deps()
            graph[task.task_id] = task, needs
            stack.extend(needs)
    return graph


class Run:
    """The tasks of this driver's run: who still needs whose outputs, and how many are done."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._needs: dict[str, Sequence[Task]] = {}
        self._consumers: dict[str, set[str]] = defaultdict(set)
        self._roots: set[str] = set()
        self._done = 0
        self._failures: list[str] = []

    def report(self) -> None:
        """Say how the run ended: what failed, why, and where the logs are."""
        if self._failures:
            logger.error("%d of %d tasks done, %d failed:", self._done, len(self._needs), len(self._failures))
            for failure in self._failures:
                logger.error("  %s", failure)

    def planned(self, root: Task, graph: Graph, pending: Collection[str]) -> None:
        """Take note of a root, its graph, and what is pending in it; release what none of that needs any more."""
        with self._lock:
            for task_id in pending:
                task, needs = graph.get(task_id, (None, ()))
                self._needs[task_id] = needs
                for needed in needs:
                    self._consumers[needed.task_id].add(task_id)
            self._roots.add(root.task_id)
            for task_id, (task, _) in graph.items():
                if task_id not in self._needs:
                    self._release(task)

    def ended(self, task: Task, succeeded: bool, seconds: float, reason: str) -> None:
        """Take note that `task` ended, and release the outputs that it was the last to need."""
        with self._lock:
            self._done += succeeded
            label = task.label() if isinstance(task, SlurmTask) else str(task)
            outcome = "done" if succeeded else "FAILED"
            logger.info("[%d/%d] %s %s in %.1f s", self._done, len(self._needs), label, outcome, seconds)
            if not succeeded:
                self._failures.append((reason.strip() or label).splitlines()[0])
                return
            for needed in self._needs.get(task.task_id, ()):
                self._consumers[needed.task_id].discard(task.task_id)
                self._release(needed)

    def _release(self, task: Task) -> None:
        if isinstance(task, SlurmTask) and task.task_id not in self._roots and not self._consumers[task.task_id]:
            task.release()
