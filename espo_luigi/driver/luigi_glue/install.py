"""`install` gives Luigi this package's worker and schedulers, and exit codes for failures."""

from __future__ import annotations

import functools
import logging
import sys
import warnings
from collections.abc import Sequence
from configparser import InterpolationError
from types import TracebackType
from typing import Any, NoReturn

import luigi.interface
from luigi.cmdline_parser import CmdlineParser
from luigi.configuration import get_config
from luigi.parameter import MissingParameterException, UnconsumedParameterWarning
from luigi.task_register import TaskClassException

from espo_luigi.driver.luigi_glue.scheduler import LinearScheduler, PatientScheduler
from espo_luigi.driver.luigi_glue.worker import EspoWorker
from espo_luigi.driver.settings.sections import SECTIONS
from espo_luigi.errors import ProcessLimitError, log_as_text
from espo_luigi.files import ready_standard_streams
from espo_luigi.jobs.settings import BatchSettings

logger = logging.getLogger(__name__)
_luigis_run, _luigis_schedule_and_run = luigi.interface._run, luigi.interface._schedule_and_run
_luigis_build_parser = CmdlineParser._build_parser
_earlier_hook = sys.excepthook
# The exit code of Python's parser of command lines.
_WRONG_USAGE = 2


class WorkerSchedulerFactory(luigi.interface._WorkerSchedulerFactory):
    """Makes the scheduler and the worker for Luigi's command line and for `luigi.build`."""

    # The arguments of Luigi's command, if that runs the tasks.
    arguments: list[str] | None = None

    def create_local_scheduler(self) -> LinearScheduler:
        """Return a scheduler inside this process."""
        return LinearScheduler(record_task_history=False)

    def create_remote_scheduler(self, url: str) -> PatientScheduler:
        """Return a client of luigid that waits while luigid restarts."""
        return PatientScheduler(url)

    def create_worker(self, scheduler: Any, worker_processes: int, assistant: bool = False) -> EspoWorker:
        """Return an `EspoWorker`."""
        show_progress_on_stderr()
        worker = EspoWorker(scheduler=scheduler, worker_processes=worker_processes, assistant=assistant)
        worker.arguments = self.arguments
        return worker


def show_progress_on_stderr() -> None:
    """Print this package's log from INFO up on standard error, unless the user has set up logging for it."""
    package = logging.getLogger("espo_luigi")
    if not package.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S"))
        package.addHandler(handler)
        package.setLevel(logging.INFO)
        package.propagate = False
    for name in ("", "espo_luigi", "luigi", "luigi-interface"):
        for of_logger in logging.getLogger(name).handlers:
            of_logger.addFilter(log_as_text)


@functools.wraps(_luigis_run)
def _run(cmdline_args: Sequence[str] | None = None, *arguments: Any, **keywords: Any) -> Any:
    """Do what Luigi's command does; if the command line is wrong, print why, and end this process."""
    # A program that calls luigi.run with its own arguments gets Luigi's exceptions.
    of_command = not arguments and not keywords and cmdline_args in (None, sys.argv[1:])
    if of_command:
        factory = keywords["worker_scheduler_factory"] = WorkerSchedulerFactory()
        factory.arguments = sys.argv[1:]
    try:
        return _luigis_run(cmdline_args, *arguments, **keywords)
    except ProcessLimitError as error:
        if not of_command:
            raise
        show_progress_on_stderr()
        logger.error("%s. Jobs of a cluster go on; the same command takes them over", error)
        raise SystemExit(get_config().getint("retcode", "not_run")) from error
    except (MissingParameterException, ValueError, InterpolationError) as error:
        if not (of_command and _is_told(error)):
            raise
        raise SystemExit(get_config().getint("retcode", "scheduling_error")) from error


@functools.wraps(_luigis_schedule_and_run)
def _schedule_and_run(*arguments: Any, **keywords: Any) -> Any:
    """Run tasks as Luigi does; then list stale tasks, while the command line's options still hold."""
    result = _luigis_schedule_and_run(*arguments, **keywords)
    if isinstance(result.worker, EspoWorker):
        result.worker.tell_what_is_stale()
    return result


def _without_traceback(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Print a paragraph if no task has the name; show all other errors as before."""
    if not (isinstance(error, TaskClassException) and _is_told(error)):
        _earlier_hook(kind, error, traceback)


@functools.wraps(_luigis_build_parser)
def _build_parser(root_task: str | None = None, help_all: bool = False) -> Any:
    """Return Luigi's parser, which prints a paragraph in place of its usage if the command line is wrong."""
    from espo_luigi.driver.luigi_glue.words import refusal

    def refuse(message: str) -> NoReturn:
        _tell(refusal(message, root_task))
        raise SystemExit(_WRONG_USAGE)

    parser = _luigis_build_parser(root_task, help_all)
    parser.error = refuse
    return parser


def _is_told(error: Exception) -> bool:
    """Log the error in the words of Luigi's command; return whether an error was found."""
    from espo_luigi.driver.luigi_glue.words import reason

    if why := reason(error, sys.argv[1:]):
        _tell(why)
        logger.debug("It was refused here:", exc_info=error)
    return bool(why)


def _tell(why: str) -> None:
    show_progress_on_stderr()
    logger.error("Nothing was started: %s", why)


# Defaults of luigi.cfg that replace Luigi's own.
# - log_level: the run's own log and summary replace Luigi's.
# - no_lock: Luigi's lock lies in a folder that belongs to the first user of a login node; a run has its own lock.
# - workers: as many as jobs may be in flight, since a waiting task costs only a thread.
# - check_complete_on_run: a task without its output has failed.
# - retcode: Luigi exits with 0 after failures, too.
_DEFAULTS = {
    "core": {"log_level": "WARNING", "no_lock": "true", "workers": str(BatchSettings.max_jobs)},
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
    """Have Luigi use `EspoWorker` and its schedulers, and set what luigi.cfg leaves open; safe to repeat.

    A module of tasks that Luigi's command runs calls it: there is no other place to choose the worker.
    """
    ready_standard_streams()
    setattr(luigi.interface, "_WorkerSchedulerFactory", WorkerSchedulerFactory)  # noqa: B010  (a class, to mypy)
    luigi.interface._run = _run
    luigi.interface._schedule_and_run = _schedule_and_run
    # Of our sections, unknown keys are errors: `check_names`.
    ours = "|".join(["espo", *SECTIONS])
    warnings.filterwarnings("ignore", rf"(?s).* not consumed by the task '({ours})'", UnconsumedParameterWarning)
    if "luigi.cmdline" in sys.modules:  # its command, which looks for the task before it calls `_run`
        sys.excepthook = _without_traceback
        setattr(CmdlineParser, "_build_parser", staticmethod(_build_parser))  # noqa: B010  (a method, to mypy)
    configuration = get_config()
    for section, options in _DEFAULTS.items():
        for name, value in options.items():
            if not configuration.has_option(section, name):
                configuration.set(section, name, value)
