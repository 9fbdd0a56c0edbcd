"""Installs this package's worker and schedulers in Luigi's command; reads the task that a command names.

Explains wrong settings, too.
"""

from __future__ import annotations

import functools
import logging
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from configparser import InterpolationError
from contextlib import contextmanager, suppress
from typing import Any

import luigi.interface
from luigi.cmdline_parser import CmdlineParser
from luigi.configuration import get_config
from luigi.parameter import ParameterException, UnconsumedParameterWarning
from luigi.task_register import Register, TaskClassException

from espo_luigi.driver.luigid import LuigidWorker, PatientScheduler
from espo_luigi.driver.run import preview
from espo_luigi.driver.scheduler import LinearScheduler
from espo_luigi.driver.settings.espo import wrong_value
from espo_luigi.driver.settings.sections import SECTIONS
from espo_luigi.driver.worker import EspoWorker
from espo_luigi.errors import ParameterError, ProcessLimitError, log_as_text
from espo_luigi.files import ensure_numba_cache, ready_standard_streams
from espo_luigi.jobs.settings import BatchSettings

logger = logging.getLogger(__name__)
_luigis_run = luigi.interface._run


class WorkerSchedulerFactory(luigi.interface._WorkerSchedulerFactory):
    """Makes the scheduler and the worker for Luigi's command line and for `luigi.build`."""

    # The arguments of Luigi's command, if that runs the tasks.
    arguments: list[str] | None = None

    def create_local_scheduler(self) -> LinearScheduler:
        return LinearScheduler(record_task_history=False)

    def create_remote_scheduler(self, url: str) -> PatientScheduler:
        return PatientScheduler(url)

    def create_worker(self, scheduler: Any, worker_processes: int, assistant: bool = False) -> EspoWorker:
        show_progress_on_stderr()
        kind = LuigidWorker if isinstance(scheduler, PatientScheduler) else EspoWorker
        worker = kind(scheduler=scheduler, worker_processes=worker_processes, assistant=assistant)
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
    """Run Luigi's command; for a wrong value in luigi.cfg, log its key and exit."""
    if arguments or keywords or cmdline_args not in (None, sys.argv[1:]):
        # A program that calls luigi.run with its own arguments gets Luigi's exceptions.
        return _luigis_run(cmdline_args, *arguments, **keywords)
    factory = WorkerSchedulerFactory()
    factory.arguments = sys.argv[1:]
    try:
        return _luigis_run(cmdline_args, worker_scheduler_factory=factory)
    except ProcessLimitError as error:
        show_progress_on_stderr()
        logger.error("%s. Jobs of a cluster go on; the same command takes them over", error)
        raise SystemExit(get_config().getint("retcode", "not_run")) from error
    except (ValueError, InterpolationError) as error:
        if not (why := wrong_setting(error)):
            raise
        show_progress_on_stderr()
        logger.error("Nothing was started: %s", why)
        raise SystemExit(get_config().getint("retcode", "scheduling_error")) from error


@contextmanager
def named_by(words: Sequence[str]) -> Iterator[Any]:
    """Yield the task that the words of a ``luigi`` command name, under the settings that are among them."""
    with CmdlineParser.global_instance(list(words)) as parsed:
        yield parsed.get_task_obj()


def preview_of(words: Sequence[str]) -> str:
    """Return the preview of the task that the words of a ``luigi`` command name (``--module … Train --region …``).

    Raise `ParameterError` with Luigi's message if there is no such task, or a parameter is missing or wrong.
    """
    try:
        with named_by(words) as task:
            return preview(task)
    except (TaskClassException, ParameterException) as error:
        raise ParameterError(_without_arguments(error)) from error


def wrong_setting(error: Exception) -> str:
    """Return which key of luigi.cfg has a value that Luigi cannot read, and why; "" for other errors."""
    for cause in (error, error.__cause__):
        if isinstance(cause, InterpolationError):
            return f"luigi.cfg, {wrong_value(cause.section, cause.option)}"
    where = re.search(r"^(\w+): Error when parsing the default value of '(\w+)'$", _without_arguments(error))
    if not where:
        return ""
    family, name = where[1], where[2]
    parameter = None
    with suppress(TaskClassException):  # several classes may have the name
        parameter = dict(Register.get_task_cls(family).get_params())[name]
    told = wrong_value(family, name, parameter) if get_config().has_option(family, name) else ""
    if not told and parameter is None:
        return f"luigi.cfg, `[{family}] {name}`: {error.__cause__}"
    return f"luigi.cfg, {told}" if told else f"--{family}-{name.replace('_', '-')}: {error.__cause__}"


def _without_arguments(error: Exception) -> str:
    """Return an error of Luigi without all values of the task, which stand behind its name."""
    return re.sub(r"\[args=.*\](?=: )", "", str(error), flags=re.DOTALL)


# Defaults of luigi.cfg that replace Luigi's own.
# - log_level: the run's own log and summary replace Luigi's.
# - no_lock: Luigi's lock lies in a folder that belongs to the first user of a login node; a run has its own lock.
# - workers: as many as jobs may be in flight, since a waiting task costs only a thread.
# - check_complete_on_run: a task without its output has failed.
# - retcode: Luigi exits with 0 after failures.
DEFAULTS = {
    "core": {"log_level": "WARNING", "no_lock": "true", "workers": str(BatchSettings.max_jobs)},
    "worker": {"check_complete_on_run": "true"},
    "scheduler": {"retry_count": "1"},
    "retcode": {
        "task_failed": "30",
        "scheduling_error": "35",
        "missing_data": "20",
        "already_running": "10",
        "not_run": "25",
        "unhandled_exception": "40",
    },
}


def install() -> None:
    """Have Luigi use `EspoWorker` and its schedulers, and set what luigi.cfg leaves open; safe to repeat.

    A module of tasks that Luigi's command runs calls it: there is no other place to choose the worker.
    """
    ready_standard_streams()
    if fault := ensure_numba_cache():
        logging.getLogger("espo_luigi").warning(fault)
    setattr(luigi.interface, "_WorkerSchedulerFactory", WorkerSchedulerFactory)  # noqa: B010  (a class, to mypy)
    luigi.interface._run = _run
    # Of our sections, unknown keys are errors: `check_names`.
    ours = "|".join(["espo", *SECTIONS])
    warnings.filterwarnings("ignore", rf"(?s).* not consumed by the task '({ours})'", UnconsumedParameterWarning)
    configuration = get_config()
    for section, options in DEFAULTS.items():
        for name, value in options.items():
            if not configuration.has_option(section, name):
                configuration.set(section, name, value)
