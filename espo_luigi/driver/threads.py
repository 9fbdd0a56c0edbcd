"""A thread for each task, where Luigi expects a process: thousands may wait at once."""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections import deque
from types import SimpleNamespace
from typing import Any

import luigi.worker
from luigi.scheduler import DONE, FAILED, PENDING, RUNNING
from luigi.task import Task

from espo_luigi.driver.run import Run, named
from espo_luigi.driver.scheduler import PatientScheduler
from espo_luigi.driver.task import SlurmTask
from espo_luigi.errors import EspoError, Failure, JobInputError, StoppedError
from espo_luigi.jobs.retry import DRIVERS_PATIENCE_SECONDS, Minutely, persistently, start

logger = logging.getLogger(__name__)

_STACK_BYTES = 512 * 1024
_trouble = Minutely()


def is_complete(task: Task) -> bool:
    """Return whether `task` is complete; a file system that fails for a moment is asked again."""
    return bool(persistently(task.complete, DRIVERS_PATIENCE_SECONDS, warn=_trouble.warn))


class ThreadTaskProcess(luigi.worker.TaskProcess):
    """Stands where Luigi expects a process, and is a thread: thousands may wait at once."""

    exitcode = 0
    pid = None

    def __init__(self, run: Run, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._run_of = run
        self._lost_input = False
        self._stopped = ""
        self._failure: Failure | None = None
        # Held from the task's end on, or from its timeout, whichever comes first.
        self._end = threading.Lock()
        self.check_complete = is_complete
        self._thread = threading.Thread(target=self._work, name=self.task.task_id, daemon=True)

    def start(self) -> None:
        """Start the thread. Raises ProcessLimitError, which ends the run and leaves its jobs to the next."""
        threading.stack_size(_STACK_BYTES)
        try:
            start(self._thread)
        finally:
            threading.stack_size(0)

    def is_alive(self) -> bool:
        """Return True while the task runs."""
        return self._thread.is_alive()

    def terminate(self) -> None:
        """Record that the task has failed, and have it end its job: it took longer than `[worker] timeout`.

        At the end of a run, Luigi calls this for all tasks that are left, whose jobs have been stopped by then.
        """
        if self._run_of.is_over:
            return
        if not self._ends_now():
            self._thread.join()  # Luigi has its result first, and ignores the timeout.
            return
        failure = Failure(named(self.task), f"it took longer than [worker] timeout, {self.worker_timeout:g} s")
        logger.error("%s", failure)
        self._run_of.ended(self.task, failure, self.worker_timeout)
        if isinstance(self.task, SlurmTask):
            self.task.on_kill()

    def _ends_now(self) -> bool:
        """Return True to the first caller; hide the timeout from Luigi, which looks at it before each result."""
        self.timeout_time = math.inf
        return self._end.acquire(blocking=False)

    def _work(self) -> None:
        started = time.monotonic()
        results: deque[Any] = deque(maxlen=1)
        queue, self.result_queue = self.result_queue, SimpleNamespace(put=results.append)
        self.run()
        _, status, reason, missing, _ = results[0]
        if not self._ends_now():  # it took too long, and Luigi has been told
            return
        try:
            if (missing or self._lost_input) and self._run_of.use_a_try(self.task):
                results.append(self._put_back())
            elif self._stopped:
                self._run_of.stopped(self.task, self._stopped)
            elif status in (DONE, FAILED):
                failure = self._failure or Failure(named(self.task), str(reason or ""))
                self._run_of.ended(self.task, failure if status == FAILED else None, time.monotonic() - started)
        finally:
            # Luigi waits for this whatever else goes wrong.
            queue.put(results[0])

    def _put_back(self) -> tuple[Any, ...]:
        """Return what luigi takes for new requirements: it checks them again, and makes those that are missing."""
        needs = [(task.task_module, task.task_family, task.to_str_params()) for task in self.task.deps()]
        return self.task.task_id, PENDING, "", [], needs

    def _run_get_new_deps(self) -> Any:
        # To check what its task needs may have taken long.
        if self._run_of.is_over:
            raise StoppedError(f"{self.task}: not started, the run has ended")
        return super()._run_get_new_deps()

    def _handle_run_exception(self, ex: BaseException) -> Any:
        self._lost_input = isinstance(ex, JobInputError)
        if type(ex) is RuntimeError and str(ex).startswith("Unfulfilled dep"):  # luigi's own, without a log
            ex = JobInputError(Failure(named(self.task), str(ex)))
        self._failure = Failure.of(named(self.task), ex)
        if self._end.locked():  # it took too long
            return str(ex)
        if not isinstance(ex, EspoError):
            return super()._handle_run_exception(ex)
        if isinstance(ex, StoppedError):
            self._stopped = ex.outcome
        else:
            logger.error("%s", ex)
            self.task.trigger_event(luigi.Event.FAILURE, self.task, ex)
        return str(ex)


class StatusReporter(luigi.worker.TaskStatusReporter):
    """Sends luigid what its page shows of a task; with a link, all that luigid would else forget about the task."""

    def __init__(self, task: Task, scheduler: Any, worker_id: str, messages: Any) -> None:
        super().__init__(scheduler, task.task_id, worker_id, messages)
        self._task = task

    def update_tracking_url(self, tracking_url: str) -> None:
        """Show a link, where there is a page; none if it is empty."""
        if isinstance(self._scheduler, PatientScheduler):
            self._scheduler.show(
                task_id=self._task.task_id,
                worker=self._worker_id,
                status=RUNNING,
                tracking_url=tracking_url,
                priority=self._task.priority,
                resources=self._task.process_resources(),
                retry_policy_dict=luigi.worker._get_retry_policy_dict(self._task),
                accepts_messages=self._task.accepts_messages,
            )


class Results(queue.SimpleQueue[Any]):
    """Where threads put how their tasks ended; luigi's queue sends it through a pipe, for processes."""

    def close(self) -> None:
        """Do what luigi expects of a queue at the end."""
