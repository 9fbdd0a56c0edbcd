"""The requests of a manager that have no outcome yet, as any thread may make them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping

from espo_luigi.jobs.lifecycle.control import stopped
from espo_luigi.jobs.lifecycle.handles import Handle, JobRequest, Outcome, Progress


class Requests:
    """Those that came in and were not taken yet (`incoming`), and the handles of all that are open."""

    def __init__(self) -> None:
        self.incoming: deque[tuple[JobRequest, Handle]] = deque()
        self._handles: dict[str, Handle] = {}
        self._guard = threading.Lock()
        self._closed: str | None = None

    def add(self, task: str, request: JobRequest, on_progress: Callable[[Progress], None] | None) -> Handle:
        """Return the handle of the task's request; once all were closed, one that has its outcome."""
        with self._guard:
            handle = self._handles.get(task)
            if handle is not None:
                return handle
            handle = Handle(task, request.label, on_progress)
            if self._closed is not None:
                handle.resolve(stopped(self._closed, 0, request.label))
                return handle
            self._handles[task] = handle
            self.incoming.append((request, handle))
        return handle

    def close(self, handle: Handle, outcome: Outcome) -> None:
        """Give a request its outcome."""
        with self._guard:
            self._handles.pop(handle.task, None)
        handle.resolve(outcome)

    def close_all(self, how: str, attempts: Mapping[str, int]) -> None:
        """Give all that are left, and all that come, the outcome of a manager that stops.

        `attempts` are those of each task.
        """
        with self._guard:
            self._closed = how
            left, self._handles = list(self._handles.values()), {}
        for handle in left:
            handle.resolve(stopped(how, attempts.get(handle.task, 0), handle.label))
