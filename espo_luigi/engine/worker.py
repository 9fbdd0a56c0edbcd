"""A Luigi worker for tasks that wait: a thread a task instead of a forked process, and no memory that grows.

`install` has Luigi's command line use it.
"""

from __future__ import annotations

import getpass
import logging
import multiprocessing
import queue
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import luigi.interface
import luigi.worker
from luigi.cmdline_parser import CmdlineParser
from luigi.configuration import get_config
from luigi.rpc import RemoteScheduler
from luigi.scheduler import DISABLED, DONE, FAILED, PENDING, RUNNING, UNKNOWN
from luigi.task import Task

from espo_luigi.cluster.lock import SecondDriverError
from espo_luigi.engine.engines import close_engines, engine, hold_folders
from espo_luigi.engine.remote import PatientScheduler
from espo_luigi.engine.run import Graph, Run, checked_graph, places_of
from espo_luigi.engine.scheduler import LinearScheduler
from espo_luigi.engine.settings import settings
from espo_luigi.engine.signals import Stopped, end_quietly
from espo_luigi.engine.task import SlurmTask
from espo_luigi.errors import EspoError, JobInputError

logger = logging.getLogger(__name__)

_STACK_BYTES = 512 * 1024


class ThreadTaskProcess(luigi.worker.TaskProcess):
    """Stands where Luigi expects a process, and is a thread: thousands may wait at once."""

    exitcode = 0
    pid = None

    def __init__(self, run: Run, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._run_of = run
        self._lost_input = False
        self._thread = threading.Thread(target=self._work, name=self.task.task_id, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        threading.stack_size(_STACK_BYTES)
        self._thread.start()
        threading.stack_size(0)

    def is_alive(self) -> bool:
        """Return True while the task runs."""
        return self._thread.is_alive()

    def terminate(self) -> None:
        """Have the task stop its job."""
        self.task.on_kill() if isinstance(self.task, SlurmTask) else None

    def _work(self) -> None:
        started = time.monotonic()
        results: deque[Any] = deque(maxlen=1)
        queue, self.result_queue = self.result_queue, _Remember(results)
        self.run()
        _, status, reason, missing, _ = results[0]
        try:
            if (missing or self._lost_input) and self._run_of.may_try_again(self.task):
                results.append(self._put_back())
            elif status in (DONE, FAILED):
                self._run_of.ended(self.task, status == DONE, time.monotonic() - started, str(reason or ""))
        finally:
            # Luigi waits for this whatever else goes wrong.
            queue.put(results[0])

    def _put_back(self) -> tuple[Any, ...]:
        """Return what luigi takes for "needs these first": it looks at them anew, and makes those that are gone."""
        needs = [(task.task_module, task.task_family, task.to_str_params()) for task in self.task.deps()]
        return self.task.task_id, PENDING, "", [], needs

    def _handle_run_exception(self, ex: BaseException) -> Any:
        self._lost_input = isinstance(ex, JobInputError)
        if type(ex) is RuntimeError and str(ex).startswith("Unfulfilled dep"):  # luigi's own, without a log
            ex = JobInputError(f"{self.task}: {ex}")
        if not isinstance(ex, EspoError):
            return super()._handle_run_exception(ex)
        logger.error("%s", ex)
        self.task.trigger_event(luigi.Event.FAILURE, self.task, ex)
        return str(ex)


class _Results(queue.SimpleQueue[Any]):
    """Where threads put how their tasks ended; luigi's queue sends it through a pipe, for processes."""

    def close(self) -> None:
        """Do what luigi expects of a queue at the end."""


class _Remember:
    """The one method of a queue that a task process calls."""

    def __init__(self, results: deque[Any]) -> None:
        self.put = results.append


def walk(roots: Iterable[Task]) -> Iterator[Task]:
    """Yield every task of the graph below `roots`, complete or not, each once."""
    seen: set[str] = set()
    stack = list(roots)
    while stack:
        task = stack.pop()
        if task.task_id not in seen:
            seen.add(task.task_id)
            yield task
            stack.extend(task.deps())


def _exclusive_folders(tasks: Iterable[SlurmTask]) -> set[Path]:
    """Return the folders that a run of `tasks` must have for itself; all tasks of a class say the same."""
    return {folder for kind in {type(task) for task in tasks} for folder in kind.exclusive_folders()}


class EspoWorker(luigi.worker.Worker):
    """Luigi's worker, with threads for processes, checks before anything runs, and temporary outputs released.

    With luigid, all drivers of a work folder are one worker, one after the other: what a driver that was killed had
    running is handed to the next at once. What luigid forgets when it is restarted, it is told again.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._run_of_tasks = Run()
        # Luigi keeps every answer of the scheduler for its summary: with many waiting tasks, gigabytes a day.
        self._get_work_response_history: deque[Any] = deque(maxlen=1)
        self._task_result_queue = _Results()
        self._refused = False
        self._is_remote = isinstance(self._scheduler, RemoteScheduler)
        self._ended_well: set[str] = set()
        self._disabled: set[str] = set()
        self._announcing_again = False
        self._is_running = False

    def add(self, task: Task, multiprocess: bool = False, processes: int = 0) -> bool:
        """Check every task of the graph below `task`; schedule it only if all can run, and no other driver is at it."""
        try:
            graph = self._checked(task)
        except EspoError as error:
            logger.error("Nothing was started: %s", error)
            self._refused = True
            self._scheduled_tasks[task.task_id] = task
            self._add_task_history.append((task, UNKNOWN, False))
            self.add_succeeded = False
            return False
        known = len(self._add_task_history)
        if self._is_running:  # what a task needs that found it gone, or thought of it late
            with self._announcing_what_is_known():
                succeeded = super().add(task)
            self._run_of_tasks.planned_again(graph, self._announced_pending(known))
        else:
            self._look_for_disabled()
            succeeded = super().add(task, multiprocess, processes)
            self._run_of_tasks.planned(task, graph, self._announced_pending(known))
        return bool(succeeded)

    def _checked(self, task: Task) -> Graph:
        """Return the graph below `task`. A second driver, or what cannot run, is refused before luigi hears of it."""
        graph = checked_graph(task)
        jobs = [one for one, _ in graph.values() if isinstance(one, SlurmTask) and type(one).run is SlurmTask.run]
        if jobs and not task.complete():  # who has nothing to run only reads, and is not refused
            hold_folders(_exclusive_folders(jobs))
            engine(settings().engine).check(jobs)
        return graph

    def _announced_pending(self, known: int) -> dict[str, bool]:
        announced = self._add_task_history[known:]
        return {one.task_id: bool(runnable) for one, status, runnable in announced if status == PENDING}

    @contextmanager
    def _announcing_what_is_known(self) -> Iterator[None]:
        self._announcing_again = True
        try:
            yield
        finally:
            self._announcing_again = False

    def _look_for_disabled(self) -> None:
        # luigid disables for a day what has failed; whoever starts a driver wants it tried now.
        if self._is_remote:
            self._disabled = set(self._scheduler.task_list(DISABLED, "", limit=False))

    def _add_task(self, *arguments: Any, **keywords: Any) -> None:
        task_id, status = keywords["task_id"], keywords["status"]
        if self._announcing_again and status == PENDING:
            if task_id in self._running_tasks:
                keywords["status"] = RUNNING
            elif self._run_of_tasks.has_failed(task_id):
                keywords["status"] = FAILED
            elif task_id in self._ended_well:
                # Done, and then its output went: luigi's scheduler does not believe "pending" so soon after "done".
                self._disabled.add(task_id)
        (self._ended_well.add if status == DONE else self._ended_well.discard)(task_id)
        if task_id in self._disabled:
            self._disabled.discard(task_id)
            # Only who says "disabled" may say "pending" after a scheduler's own "disabled".
            self._scheduler.add_task(worker=self._id, task_id=task_id, status=DISABLED)
        super()._add_task(*arguments, **keywords)

    def _get_work(self) -> Any:
        response = super()._get_work()
        if self._is_remote and self._was_forgotten(response):
            self._announce_again()
            response = super()._get_work()
        while self._is_remote and response.task_id in self._ended_well:
            # luigid was restarted with an older state.
            self._scheduler.add_task(worker=self._id, task_id=response.task_id, status=DONE)
            response = super()._get_work()
        return response

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
            with self._announcing_what_is_known():
                for root in self._run_of_tasks.roots:
                    super().add(root)
        finally:
            del self._add_task_history[known:]

    def run(self) -> bool:
        """Run until everything is done or has failed; a signal stops the run, or (SIGHUP) leaves its jobs running."""
        if self._refused:
            return False
        self._release_left_over()
        self._is_running = True
        with _signals():
            succeeded = super().run()
        self._run_of_tasks.report()
        if all(status == DONE for _, status, _ in self._add_task_history):
            places = " ".join(place for root in self._run_of_tasks.roots for place in places_of(root))
            logger.info("Nothing to do: what was asked for is there already: %s", places)
        return bool(succeeded)

    def _release_left_over(self) -> None:
        if not self._run_of_tasks.covers_everything:
            return
        left_over = [task for task in self._run_of_tasks.left_over() if isinstance(task, SlurmTask)]
        try:
            hold_folders(_exclusive_folders(left_over))
        except SecondDriverError as error:
            # Only where this run has nothing else to do: else it would have been refused.
            logger.info("What nobody needs any more is left where it is: %s", error)
        else:
            self._run_of_tasks.release_left_over()

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> Literal[False]:
        """Stop what still runs (or leave it, after SIGHUP), and end the engines."""
        detaching = isinstance(error, Detach)
        if detaching:
            self._running_tasks.clear()
        super().__exit__(kind, error, traceback)
        close_engines(detach=detaching)
        if isinstance(error, KeyboardInterrupt):
            _say_stopped(error)
        return False

    def _generate_worker_id(self, worker_info: Any) -> str:
        return f"Worker(workdir={Path(settings().workdir).absolute()}, username={getpass.getuser()})"

    def _create_task_process(self, task: Task) -> luigi.worker.TaskProcess:
        messages: Any = multiprocessing.Queue() if task.accepts_messages else None
        return ThreadTaskProcess(
            self._run_of_tasks,
            task,
            self._id,
            self._task_result_queue,
            luigi.worker.TaskStatusReporter(self._scheduler, task.task_id, self._id, messages),
            use_multiprocessing=True,
            worker_timeout=self._config.timeout,
            check_unfulfilled_deps=self._config.check_unfulfilled_deps,
            check_complete_on_run=self._config.check_complete_on_run,
        )


def _say_stopped(interrupt: KeyboardInterrupt) -> None:
    """Say that the run was stopped; where Luigi's command runs it, end that without a traceback."""
    signum = signal.Signals(interrupt.args[0]) if isinstance(interrupt, Stopped) else signal.SIGINT
    logger.info("Stopped (%s): what is complete stays; the same command goes on from there", signum.name)
    if CmdlineParser.get_instance() is not None:
        end_quietly(interrupt)


class Detach(Stopped):
    """The terminal is gone: the driver ends, and its jobs are left to the next one."""


@contextmanager
def _signals() -> Iterator[None]:
    """Turn SIGTERM into what Ctrl-C does, and SIGHUP into `Detach`, in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(signum: int, _frame: object) -> None:
        raise (Detach if signum == signal.SIGHUP else Stopped)(signum)

    # nohup has SIGHUP ignored, and means it.
    wanted = [signum for signum in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(signum) is not signal.SIG_IGN]
    before = {signum: signal.signal(signum, stop) for signum in wanted}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


class WorkerSchedulerFactory(luigi.interface._WorkerSchedulerFactory):
    """What Luigi's command line and `luigi.build` ask for a scheduler and a worker."""

    def create_local_scheduler(self) -> LinearScheduler:
        """Return a scheduler inside this process."""
        return LinearScheduler(record_task_history=False)

    def create_remote_scheduler(self, url: str) -> PatientScheduler:
        """Return luigid, as one that may be restarted."""
        return PatientScheduler(url)

    def create_worker(self, scheduler: Any, worker_processes: int, assistant: bool = False) -> EspoWorker:
        """Return an `EspoWorker`."""
        show_progress_on_stderr()
        return EspoWorker(scheduler=scheduler, worker_processes=worker_processes, assistant=assistant)


def show_progress_on_stderr() -> None:
    """Print this package's log from INFO up on standard error, unless the user has set up logging for it."""
    package = logging.getLogger("espo_luigi")
    if not package.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S"))
        package.addHandler(handler)
        package.setLevel(logging.INFO)
        package.propagate = False


# What a luigi.cfg gets that does not say otherwise: an exit code for each failure (Luigi's own are 0), no lock in a
# folder that belongs to the first user of a login node (a run has its own), and no success without its output.
_DEFAULTS = {
    "core": {"no_lock": "true"},
    "worker": {"check_complete_on_run": "true"},
    "scheduler": {"retry_count": "1"},
    "retcode": {
        "already_running": "10",
        "missing_data": "20",
        "not_run": "25",
        "task_failed": "30",
        "scheduling_error": "35",
        "unhandled_exception": "40",
    },
}


def install() -> None:
    """Have Luigi's command line use `EspoWorker`, and set what luigi.cfg leaves open."""
    setattr(luigi.interface, "_WorkerSchedulerFactory", WorkerSchedulerFactory)  # noqa: B010  (a class, to mypy)
    configuration = get_config()
    for section, options in _DEFAULTS.items():
        for name, value in options.items():
            if not configuration.has_option(section, name):
                configuration.set(section, name, value)
