"""A Luigi worker for tasks that wait: a thread for each, not a forked process, and memory that does not grow."""

from __future__ import annotations

import getpass
import logging
import math
import multiprocessing
import os
import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import luigi.scheduler
import luigi.worker
from luigi.cmdline_parser import CmdlineParser
from luigi.parameter import ParameterVisibility
from luigi.scheduler import DISABLED, DONE, FAILED, PENDING, RUNNING, UNKNOWN
from luigi.task import Task

from espo_luigi.driver.board import board, forget_board, tell_the_end, watched
from espo_luigi.driver.engines import begin_local, close_engines, engine, hold_folders, stop_engines
from espo_luigi.driver.graph import Graph, without_collector
from espo_luigi.driver.run import Run, named, places_of
from espo_luigi.driver.scheduler import LinearScheduler
from espo_luigi.driver.settings.espo import amount_of, check_names, check_packages, settings, state_dir
from espo_luigi.driver.settings.sections import OPTION_NAMES, SECTIONS, leaves_jobs_on_sigterm
from espo_luigi.driver.signals import Detach, Signals, Terminated, end_quietly
from espo_luigi.driver.stale import stale_lines, told_of
from espo_luigi.driver.task import RESOURCE_NAMES, SlurmTask, without_effect
from espo_luigi.driver.task_classes import has_job
from espo_luigi.errors import EspoError, Failure, JobInputError, ProcessLimitError, StoppedError, SubmissionError
from espo_luigi.jobs.accounts import measured_since, read_accounts, submissions
from espo_luigi.jobs.lifecycle.records import RecordStore
from espo_luigi.jobs.lock import SecondDriverError
from espo_luigi.jobs.retry import DRIVERS_PATIENCE_SECONDS, Minutely, persistently, process_limit, start
from espo_luigi.jobs.schedulers import SCHEDULERS

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
    """Tells Luigi's scheduler how a task stands, but no link, for which the scheduler would forget all else."""

    def update_tracking_url(self, tracking_url: str) -> None:
        """Show no link: a driver's own scheduler has no page."""


class Results(queue.SimpleQueue[Any]):
    """Where threads put how their tasks ended; luigi's queue sends it through a pipe, for processes."""

    def close(self) -> None:
        """Do what luigi expects of a queue at the end."""


def _exclusive_folders(tasks: Iterable[SlurmTask]) -> set[Path]:
    """Return the folders that a run of `tasks` must have for itself; they are the same for all tasks of a class."""
    return {folder for kind in {type(task) for task in tasks} for folder in kind.exclusive_folders()}


class EspoWorker(luigi.worker.Worker):
    """Luigi's worker, with threads for processes, checks before anything runs, and temporary outputs deleted.

    The successive drivers of a work folder are the same worker.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        forget_board()
        self._run_of_tasks = Run()
        # Luigi keeps every answer of the scheduler for its summary: with many waiting tasks, gigabytes a day.
        self._get_work_response_history: deque[Any] = deque(maxlen=1)
        self._task_result_queue = Results()
        self._refused = False
        self._ended_well: set[str] = set()
        self._disabled: set[str] = set()
        self._announcing_again = False
        self._is_running = False
        # The arguments of Luigi's command, if it runs this; None in a program.
        self.arguments: list[str] | None = None
        self._signals = Signals(leaves_jobs_on_sigterm)

    def add(self, task: Task, multiprocess: bool = False, processes: int = 0) -> bool:
        """Check every task of the graph below `task`; schedule it only if all can run and no other driver runs them."""
        try:
            graph = persistently(lambda: self._checked(task), DRIVERS_PATIENCE_SECONDS)
        except (EspoError, OSError) as error:
            remedy = "; see to that file and its disk (rights, space, quota), and run again"
            why = f"{error}{'' if isinstance(error, EspoError) else remedy}"
            logger.error("Nothing was started: %s", why)
            board().refuse(task.label() if isinstance(task, SlurmTask) else task.task_family, why)
            self._refused = True
            self._scheduled_tasks[task.task_id] = task
            self._add_task_history.append((task, UNKNOWN, False))
            self.add_succeeded = False
            return False
        known = len(self._add_task_history)
        # A running task may lack needs, or ask for more.
        with without_collector():
            succeeded = self._announce(task) if self._is_running else super().add(task, multiprocess, processes)
        announced = self._add_task_history[known:]
        pending = {one.task_id: bool(runnable) for one, status, runnable in announced if status == PENDING}
        self._run_of_tasks.add(graph, pending, again=self._is_running)
        return bool(succeeded)

    def _checked(self, task: Task) -> Graph:
        """Return the graph below `task`. A second driver, or a task that cannot run, is refused before luigi has it."""
        check_names()
        if not isinstance(task, SlurmTask):  # a job names what it needs itself
            begin_local(getattr(task, "preload", ()))
        graph = Graph([task], check=True)
        most, n = self._config.task_limit, len(self._scheduled_tasks.keys() | graph.tasks.keys())
        if most is not None and n > most:
            # Luigi would leave out tasks, and what needs them, with a warning for each.
            raise SubmissionError(
                f"[worker] task_limit = {most} is less than the {n} tasks of this run, complete tasks included: leave "
                "the limit out, or ask for a part of the run"
            )
        if (limit := amount_of("scratch_limit")) is not None and not self._is_running:
            if not isinstance(self._scheduler, LinearScheduler):
                raise SubmissionError(
                    "[espo] scratch_limit needs the driver's own scheduler: give --local-scheduler, or leave the limit "
                    "out"
                )
            self._run_of_tasks.budget(limit, graph)
            self._scheduler.start_within(self._run_of_tasks.scratch)
        jobs = [one for one in graph if isinstance(one, SlurmTask) and has_job(one, SlurmTask)]
        if jobs and not task.complete():  # a run without anything to do only reads, and may go on
            check_packages()
            hold_folders(_exclusive_folders(jobs))
            # Wildcards only reach file names, where they are cleaned: most tasks of a rule are alike otherwise.
            names = (*OPTION_NAMES, *RESOURCE_NAMES)
            alike = {(one.get_task_family(), *(str(getattr(one, name)) for name in names)): one for one in jobs}
            engine(settings().engine).check(one.order() for one in alike.values())
            if not self._is_running:
                for sentence in without_effect(alike.values()):
                    logger.warning("%s", sentence)
        return graph

    def _add(self, task: Task, complete: Any) -> Any:
        if not isinstance(complete, bool):  # the text of an error
            with suppress(Exception):
                complete = is_complete(task)
        return super()._add(task, complete)

    def _announce(self, task: Task) -> bool:
        """Tell the scheduler a task and its needs during the run, with what is known of them."""
        self._announcing_again = True
        try:
            return bool(super().add(task))
        finally:
            self._announcing_again = False

    def _add_task(self, *arguments: Any, **keywords: Any) -> None:
        task_id, status = keywords["task_id"], keywords["status"]
        if self._announcing_again and status == PENDING:
            if task_id in self._running_tasks:
                keywords["status"] = RUNNING
            elif task_id in self._run_of_tasks.failed:
                keywords["status"] = FAILED
            elif task_id in self._ended_well:
                # Its output was deleted after it was done: luigi's scheduler ignores "pending" so soon after "done".
                self._disabled.add(task_id)
        (self._ended_well.add if status == DONE else self._ended_well.discard)(task_id)
        if task_id in self._disabled:
            self._disabled.discard(task_id)
            # After a scheduler's own "disabled", it takes "pending" only from a worker that has sent "disabled".
            self._scheduler.add_task(worker=self._id, task_id=task_id, status=DISABLED)
        if keywords.get("params"):
            # With all parameters, the command to run a task again on luigid's page would fill a screen; and Luigi's
            # scheduler keeps each of them four times.
            visibilities = self._scheduled_tasks[task_id]._get_param_visibilities()
            shown = [name for name in keywords["params"] if visibilities.get(name) == ParameterVisibility.PUBLIC]
            keywords["params"] = {name: keywords["params"][name] for name in shown}
        super()._add_task(*arguments, **keywords)

    def run(self) -> bool:
        """Run until everything is done or has failed; a signal stops the run, or leaves its jobs running."""
        if self._refused:
            board().close("refused")
            return False
        section, most = SECTIONS.get(settings().engine), self.worker_processes
        if section is not None and section().max_jobs > most:
            below = f"[core] workers = {most} is below [{section.__name__}] max_jobs = {section().max_jobs}"
            logger.info("%s: no more than %d job(s) are submitted at once", below, most)
        self._delete_left_over()
        self._is_running = True
        with watched():
            succeeded = super().run()
            if (scratch := self._run_of_tasks.scratch) is not None and (no_room := scratch.no_room()):
                board().end("scratch", Failure("", no_room))
                succeeded = False
                logger.error("%s", no_room)
            if (state := board().state).engine in SCHEDULERS and state.rules:
                with suppress(EspoError, OSError):
                    accounts = read_accounts(state.engine, submissions(RecordStore(state_dir()).all()))
                    state.measured = measured_since(state.started, accounts)
        self._run_of_tasks.report()
        if all(status == DONE for _, status, _ in self._add_task_history):
            places = " ".join(place for root in self._run_of_tasks.graph.roots.values() for place in places_of(root))
            logger.info("Nothing to do: what was asked for is there already: %s", places)
            board().close("done")
        return bool(succeeded)

    def _tell_what_is_stale(self) -> None:
        """Log, and note in `run.json`, which complete tasks are stale, and the command that makes them again."""
        try:
            told = told_of(self._run_of_tasks.graph, self.arguments)
        except (EspoError, OSError) as error:
            logger.warning("What is stale of this run is not known: %s", error)
            return
        except KeyboardInterrupt as interrupt:
            logger.info("This run has ended; what is stale of it is not known: interrupted")
            if CmdlineParser.get_instance() is not None:
                end_quietly(interrupt)
            raise
        if told:
            logger.warning("%s", "\n".join(stale_lines(told)))
        board().note_stale(Path(settings().workdir).absolute(), told)

    def _delete_left_over(self) -> None:
        left_over = self._run_of_tasks.left_over()
        try:
            hold_folders(_exclusive_folders(left_over))
        except SecondDriverError as error:
            # This run has nothing else to do: else it would have been refused.
            logger.info("Temporary stores that nothing needs any more are not deleted now: %s", error)
        else:
            self._run_of_tasks.delete_temporary(left_over)

    def __enter__(self) -> EspoWorker:
        self._signals.hear()
        try:
            super().__enter__()
        except RuntimeError as error:
            raise ProcessLimitError(process_limit(error)) from error
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> Literal[False]:
        """Stop what still runs (or leave it, after `Detach`), and end the engines, whatever signals come meanwhile."""
        self._signals.only_note()
        try:
            self._run_of_tasks.is_over = True
            # Where no process can be started, no job can be cancelled.
            detaching = isinstance(error, Detach | ProcessLimitError)
            if detaching:
                self._running_tasks.clear()
            elif any(one.is_alive() for one in self._running_tasks.values()):
                stop_engines()
            super().__exit__(kind, error, traceback)
            close_engines(detach=detaching)
            tell_the_end()
            if isinstance(error, KeyboardInterrupt):
                signum = signal.Signals(error.args[0]) if isinstance(error, Terminated) else signal.SIGINT
                logger.info("Stopped (%s): what is complete stays; the same command goes on from there", signum.name)
                if CmdlineParser.get_instance() is not None:  # Luigi's command runs it
                    end_quietly(error)
        finally:
            self._signals.restore()
        if error is None and not self._refused:
            self._tell_what_is_stale()
        return False

    def _generate_worker_id(self, worker_info: Any) -> str:
        try:
            user = getpass.getuser()
        except (KeyError, OSError):  # a container's account may have neither an entry of passwd nor USER
            user = str(os.getuid())
        return f"Worker(workdir={Path(settings().workdir).absolute()}, username={user})"

    def _create_task_process(self, task: Task) -> luigi.worker.TaskProcess:
        return ThreadTaskProcess(
            self._run_of_tasks,
            task,
            self._id,
            self._task_result_queue,
            self._reporter(task, multiprocessing.Queue() if task.accepts_messages else None),
            use_multiprocessing=True,
            worker_timeout=self._config.timeout,
            check_unfulfilled_deps=self._config.check_unfulfilled_deps,
            check_complete_on_run=self._config.check_complete_on_run,
        )

    def _reporter(self, task: Task, messages: Any) -> StatusReporter:
        return StatusReporter(self._scheduler, task.task_id, self._id, messages)
