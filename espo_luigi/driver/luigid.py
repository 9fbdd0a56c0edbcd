"""All that is luigid's own: the driver's client of it, the worker that runs tasks with it, and its page.

luigid may be silent for a while, and the driver waits for it; a restarted luigid is told the tasks again that it has
forgotten.
"""

from __future__ import annotations

import http.client
import json
import logging
import os
import time
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import luigi.scheduler
import luigi.worker
from luigi.rpc import RemoteScheduler, RPCError, _urljoin
from luigi.scheduler import DISABLED, DONE, FAILED, RUNNING
from luigi.task import Task

from espo_luigi.driver.graph import Graph
from espo_luigi.driver.worker import EspoWorker, StatusReporter
from espo_luigi.errors import SubmissionError
from espo_luigi.jobs.retry import Minutely

logger = logging.getLogger(__name__)

_NOT_OURS = json.dumps("Not of the run that is at work in this work folder: give a command that asks for it.")
_RETRY_SECONDS = 2.0
_trouble = Minutely()
# Calls that may get lost: signs of life, and what luigid's page shows of running tasks.
_OPTIONAL = ("/api/ping", "/api/set_task_status_message", "/api/set_task_progress_percentage")
_NOTHING = json.dumps({"response": None})
_PASSING = (502, 503, 504)  # a proxy's answers while luigid restarts


class PatientScheduler(RemoteScheduler):
    """Waits, for as long as it takes, for a luigid that has answered before.

    Before its first answer, it is asked as often as ``[core] rpc-retry-attempts`` says.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._host = urlsplit(url).hostname or ""
        if self._host in ("localhost", "127.0.0.1", "::1") and not proxy_bypass(self._host):
            # A proxy would look for luigid on its own machine.
            known = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
            os.environ["no_proxy"] = ",".join(filter(None, [known, self._host]))
        self._reached = False
        self._in_vain = 0
        self._silent_since: float | None = None

    def _fetch(self, url_suffix: str, body: Any) -> str:
        if url_suffix in _OPTIONAL:
            return self._try(url_suffix, body)
        while True:
            try:
                answer = self._once(url_suffix, body)
            except (OSError, http.client.HTTPException) as error:
                self._wait(error) if self._reached else self._wait_to_reach(error)
            else:
                self._reached = True
                return answer

    def _wait_to_reach(self, error: Exception) -> None:
        """Wait before the next attempt to reach luigid; raise `SubmissionError` after the last."""
        cause: BaseException = error
        while cause.__context__ is not None:  # requests wraps the system's words three times
            cause = cause.__context__
        silent = f"luigid at {self._url} does not answer ({cause})"
        if (scheme := urlsplit(self._url).scheme) in getproxies() and not proxy_bypass(self._host):
            silent += f"; {scheme}_proxy is set, and {self._host} is not in no_proxy, so that a proxy is asked for it"
        remedy = "start luigid, correct --scheduler-url ([core] default-scheduler-url), or give --local-scheduler"
        self._in_vain += 1
        if self._in_vain >= self._rpc_retry_attempts:
            raise SubmissionError(f"{silent}: {remedy}") from error
        logger.warning("%s: %s; trying again in %g s", silent, remedy, self._rpc_retry_wait)
        time.sleep(self._rpc_retry_wait)

    def show(self, **task: Any) -> None:
        """Send luigid what only its page shows of a running task, unless it does not answer now."""
        self._try("/api/add_task", {"data": json.dumps(task)})

    def _try(self, url_suffix: str, body: Any) -> str:
        # These calls come from the thread that watches the jobs, which must not wait.
        if self._silent_since is not None and url_suffix != _OPTIONAL[0]:
            return _NOTHING
        try:
            return self._once(url_suffix, body)
        except (OSError, http.client.HTTPException, RPCError):
            return _NOTHING

    def _once(self, url_suffix: str, body: Any) -> str:
        try:
            answer = str(self._fetcher.fetch(_urljoin(self._url, url_suffix), body, self._connect_timeout))
        except (OSError, http.client.HTTPException) as error:  # requests' and urllib's errors are OSErrors
            code = getattr(getattr(error, "response", None), "status_code", getattr(error, "code", None))
            if code is not None and code not in _PASSING:
                if not self._reached:
                    raise SubmissionError(f"what answers at {self._url} is no luigid, or a proxy: {error}") from error
                raise RPCError(f"luigid at {self._url} refused {url_suffix}: {error}", error) from error
            self._silent_since = self._silent_since or time.monotonic()
            raise
        self._silent_since = None
        return answer

    def _wait(self, error: Exception) -> None:
        away = time.monotonic() - (self._silent_since or time.monotonic())
        _trouble.warn("luigid at %s has not answered for %.0f s; waiting, jobs go on (%s)", self._url, away, error)
        time.sleep(_RETRY_SECONDS)


class PageReporter(StatusReporter):
    """Sends luigid what its page shows of a task; with a link, all that luigid would else forget about the task."""

    def __init__(self, task: Task, scheduler: Any, worker_id: str, messages: Any) -> None:
        super().__init__(scheduler, task.task_id, worker_id, messages)
        self._task = task

    def update_tracking_url(self, tracking_url: str) -> None:
        """Show a link; none if it is empty."""
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


class LuigidWorker(EspoWorker):
    """A worker of luigid, which hands the tasks of a killed driver to the next driver at once."""

    _was_given_others = False

    def _reporter(self, task: Task, messages: Any) -> PageReporter:
        return PageReporter(task, self._scheduler, self._id, messages)

    def _checked(self, task: Task) -> Graph:
        graph = super()._checked(task)
        if not self._is_running:
            self._look_for_disabled()
        return graph

    def _look_for_disabled(self) -> None:
        # luigid disables failed tasks for a day; a new driver has to try them now.
        self._disabled = set(self._scheduler.task_list(DISABLED, "", limit=False))

    def _get_work(self) -> Any:
        response = self._ask_for_work()
        if self._was_forgotten(response):
            self._announce_again()
            response = self._ask_for_work()
        while response.task_id in self._ended_well:
            # luigid was restarted with an older state.
            self._scheduler.add_task(worker=self._id, task_id=response.task_id, status=DONE)
            response = self._ask_for_work()
        return response

    def _ask_for_work(self) -> Any:
        self._was_given_others = True
        while self._was_given_others:
            self._was_given_others = False
            response = super()._get_work()
        return response

    def _get_work_task_id(self, get_work_response: Any) -> Any:
        # Luigi would import the module that luigid names, and run it. The task may come from an earlier driver of this
        # work folder, or from anybody who reaches luigid's port.
        ids = get_work_response.get("batch_task_ids") or [get_work_response.get("task_id")]
        others = [task_id for task_id in ids if task_id is not None and task_id not in self._scheduled_tasks]
        if self._assistant or not others:
            return super()._get_work_task_id(get_work_response)
        for task_id in others:
            logger.warning("luigid hands out %s, which is not of this run: not run", task_id)
            self._scheduler.add_task(worker=self._id, task_id=task_id, status=FAILED, expl=_NOT_OURS, runnable=False)
        self._was_given_others = True
        return None

    def _was_forgotten(self, response: Any) -> bool:
        if response.worker_state == luigi.scheduler.WORKER_STATE_DISABLED:
            return False
        if self._running_tasks:
            return not self._running_tasks.keys() <= {task["task_id"] for task in response.running_tasks}
        return response.task_id is None and not response.n_pending_tasks and self._run_of_tasks.can_go_on()

    def _announce_again(self) -> None:
        logger.warning("luigid does not know this run's tasks any more: telling it again")
        self._look_for_disabled()
        known = len(self._add_task_history)
        self._batch_families_sent.clear()
        self._scheduler.add_worker(self._id, self._worker_info)
        try:
            for root in self._run_of_tasks.graph.roots.values():
                self._announce(root)
        finally:
            del self._add_task_history[known:]
