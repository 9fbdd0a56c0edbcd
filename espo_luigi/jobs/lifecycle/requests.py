"""The orders that a `JobManager` has, with their handles and outcomes."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from espo_luigi.errors import Failure
from espo_luigi.jobs.lifecycle.control import CANCEL, DETACH
from espo_luigi.jobs.lifecycle.policy import Cause
from espo_luigi.jobs.order import JobOrder, Standing

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Success:
    """The job succeeded; `result` is its result file. `adopted` means that an earlier driver had submitted it."""

    job_id: str
    attempts: int
    log_path: Path
    result: Mapping[str, Any]
    adopted: bool


Outcome = Success | Failure


class Handle:
    """Any thread's view of an order that the manager has; its thread writes `standing` and `outcome`."""

    def __init__(self, task: str, order: JobOrder) -> None:
        self.task = task
        self.order = order
        self.outcome: Outcome | None = None
        self.standing = Standing("waiting")
        self._done = threading.Event()

    def wait(self, timeout: float | None = None) -> Outcome | None:
        """The outcome, or None after `timeout` seconds."""
        self._done.wait(timeout)
        return self.outcome

    def resolve(self, outcome: Outcome) -> None:
        """Set the outcome."""
        self.outcome = outcome
        self._done.set()

    def report(self, standing: Standing) -> None:
        """Tell the order's listener where the job stands, if that changed."""
        if standing == self.standing:
            return
        self.standing = standing
        try:
            self.order.report(standing)
        except Exception:  # the listener's error must not stop other jobs
            logger.exception("the progress listener of %s failed", self.task)


class Requests:
    """The orders without an outcome, from any thread; the manager still has to take those in `incoming`."""

    def __init__(self) -> None:
        self.incoming: deque[Handle] = deque()
        self._handles: dict[str, Handle] = {}
        self._guard = threading.Lock()
        self._closed: str | None = None

    def add(self, task: str, order: JobOrder) -> Handle:
        """Return the handle of the task's order; once all were closed, a handle that has its outcome."""
        with self._guard:
            handle = self._handles.get(task)
            if handle is not None:
                return handle
            handle = Handle(task, order)
            if self._closed is not None:
                handle.resolve(_stopped(self._closed, 0, order.label))
                return handle
            self._handles[task] = handle
            self.incoming.append(handle)
        return handle

    def close(self, task: str, outcome: Outcome) -> None:
        """Give a task's order its outcome."""
        with self._guard:
            handle = self._handles.pop(task, None)
        if handle is not None:
            handle.resolve(outcome)

    def close_all(self, how: str, attempts: Mapping[str, int]) -> None:
        """Give all that are left, and all that come, the outcome of a manager that stops.

        `attempts` are those of each task.
        """
        with self._guard:
            self._closed = how
            left, self._handles = list(self._handles.values()), {}
        for handle in left:
            handle.resolve(_stopped(how, attempts.get(handle.task, 0), handle.order.label))


def _stopped(how: str, attempts: int, label: str) -> Failure:
    """The outcome of an order whose driver was asked to stop."""
    cause = {CANCEL: Cause.DRIVER_CANCELLED, DETACH: Cause.DETACHED}.get(how, Cause.INTERNAL)
    return Failure(label, cause.explanation(), cause, attempts=attempts)
