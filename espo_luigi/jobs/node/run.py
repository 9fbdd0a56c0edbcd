"""One job on its node: reads its order, does the work, and writes its result atomically.

While it works, a heartbeat file says that it is alive and how far Dask is. What the work is, whoever starts it says:
`run_order` takes a function of the order.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from espo_luigi.errors import (
    ClaimLostError,
    ConfigurationChangedError,
    EspoError,
    InputChangedError,
    SizingError,
    WorkersLostError,
)
from espo_luigi.files import open_own
from espo_luigi.jobs.dask.local import limit_thread_pools
from espo_luigi.jobs.layout import FIRST_LAYOUT, LAYOUT
from espo_luigi.jobs.lifecycle.records import private_mode
from espo_luigi.jobs.lock import this_version
from espo_luigi.jobs.node.claim import check_claim
from espo_luigi.jobs.node.heartbeat import Monitor, beating
from espo_luigi.jobs.node.outcome import ResultWord
from espo_luigi.jobs.order import JobOrder, write_json
from espo_luigi.jobs.resources import GIB, Resources, machine_memory, render_memory
from espo_luigi.jobs.schedulers import known as schedulers
from espo_luigi.jobs.schedulers.script import ATTEMPT_VARIABLE, LATE_VARIABLE
from espo_luigi.jobs.trouble import JOBS_PATIENCE_SECONDS, is_file_trouble, persistently

logger = logging.getLogger("espo_luigi.job")

# How long Dask may take to end after the work is done.
_LONGEST_END_SECONDS = 120.0

# What does an order's work, inside `signs_of_life`, with a monitor that may be given Dask's scheduler, and whose
# `done` it has to set.
Work = Callable[[JobOrder, Monitor], None]


def run_order(path: Path, work: Work) -> int:
    """Do what the order file says, by `work`; return the process's exit code."""
    values = _read_order(path)
    read = JobOrder.parsed
    if values.get("layout", FIRST_LAYOUT) != LAYOUT:
        read, work = JobOrder.of_another_layout, partial(_refuse, values)
    try:
        order, parent = read(values), values.get("parent")
    except (KeyError, TypeError) as error:
        raise SystemExit(
            f"{path}: another version of espo_luigi has written this order ({error!r}): cancel the run's jobs (espo "
            "cancel), and give the command again"
        ) from error
    _set_up_process()
    if isinstance(parent, int):
        # A job of the local engine, which may itself run inside a scheduler's job whose variables are not about this.
        prefixes = tuple(scheduler.VARIABLES for scheduler in schedulers.SCHEDULERS.values())
        for name in [name for name in os.environ if name.startswith(prefixes)]:
            del os.environ[name]
    job_id = schedulers.job_id()
    if job_id is not None and persistently(lambda: _done_before(order.files.result, job_id), JOBS_PATIENCE_SECONDS):
        logger.info("Job %s was requeued after it had succeeded: nothing to do", job_id)
        return 0
    with _alive(parent):
        return _hand_over(order, _run(order, work))


def _read_order(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(persistently(path.read_text, JOBS_PATIENCE_SECONDS)))
    except (OSError, ValueError, TypeError) as error:
        raise SystemExit(f"{path}: not a readable job order ({error})") from error


def _refuse(values: Mapping[str, Any], order: JobOrder, _monitor: Monitor) -> None:
    """Stand for the work of an order that this version cannot read."""
    theirs = f"espo_luigi {values.get('version', '(unknown)')}"
    ours = f"espo_luigi {this_version()}"
    raise ConfigurationChangedError(
        f"{order.label} was ordered by {theirs} (layout {values.get('layout', FIRST_LAYOUT)}), and its job finds "
        f"{ours} (layout {LAYOUT}), which cannot read the order: the environment was upgraded meanwhile. Nothing was "
        f"done. To go on with {ours}, give `espo cancel`, and then the command again; else install {theirs} again first"
    )


def _hand_over(order: JobOrder, result: Mapping[str, Any]) -> int:
    """Write the result, which hours of work may depend on, and then delete the heartbeat file; return the exit code."""
    try:
        check_claim()
    except ClaimLostError as error:
        # The result file is the other's.
        logger.error("%s", error)
        return 1
    persistently(lambda: write_json(order.files.result, result), JOBS_PATIENCE_SECONDS)
    with suppress(OSError):
        order.files.heartbeat.unlink(missing_ok=True)
    return 0 if result["outcome"] == ResultWord.SUCCESS else int(result.get("exit_code", 1))


def _set_up_process() -> None:
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", stream=sys.stderr, force=True
    )
    logging.getLogger("espo_luigi").setLevel(logging.INFO)
    faulthandler.enable()
    if signal.getsignal(signal.SIGUSR1) is not signal.SIG_IGN:
        faulthandler.register(signal.SIGUSR1, all_threads=True, chain=False)
    for number in (signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, _stop)
    # What Grid Engine sends before it kills: the only chance that a job which hangs has to write its stack.
    faulthandler.register(signal.SIGUSR2, all_threads=True, chain=True)
    limit_thread_pools(os.environ)


def _done_before(path: Path, job_id: str) -> bool:
    """Whether this very job has succeeded before it was requeued; what its last run wrote otherwise is removed."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return False
    except ValueError:
        result = {}
    if result.get("job_id") == job_id and result.get("outcome") == ResultWord.SUCCESS:
        return True
    path.unlink(missing_ok=True)
    return False


class Stopped(SystemExit):
    """This job got a signal to stop; it ends with the exit code of a process that the signal has ended."""

    def __init__(self, signum: int) -> None:
        super().__init__(128 + signum)
        self.signum = signum

    def __str__(self) -> str:
        return f"stopped by signal {self.signum}"


def _stop(signum: int, _frame: object) -> None:
    # Slurm signals again when the grace is over: what is being written down by then must not be cut short.
    # A scheduler may signal all processes of a job, and one of them the others again.
    for number in (signum, signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    raise Stopped(signum)


def _run(order: JobOrder, work: Work) -> dict[str, Any]:
    started = time.time()
    monitor = Monitor()
    result: dict[str, Any] = {
        "outcome": ResultWord.SUCCESS,
        "exception": None,
        "traceback": None,
        "job_id": schedulers.job_id(),
    }
    with _ending_in_time(monitor, lambda: _hand_over(order, result | _account(order, monitor, started))):
        try:
            work(order, monitor)
        except BaseException as error:
            result |= _failure(error, monitor)
    return result | _account(order, monitor, started)


def _failure(error: BaseException, monitor: Monitor) -> dict[str, Any]:
    """The result's entries about an error: none about one that came when the work was done."""
    if monitor.done.is_set():
        logger.warning("The work is done; while ending: %s: %s", type(error).__name__, error)
        return {}
    said: dict[str, Any] = {"outcome": _outcome(error), "exception": f"{type(error).__name__}: {error}"}
    if isinstance(error, Stopped):
        logger.warning("Told to end (signal %d): what is complete stays, for the next attempt", error.signum)
        return said | {"exit_code": error.code}
    if isinstance(error, EspoError):
        logger.error("%s", error)
        return said
    logger.exception("The task failed")
    return said | {"traceback": traceback.format_exc()}


def _account(order: JobOrder, monitor: Monitor, started: float) -> dict[str, Any]:
    """What was asked, and what it took."""
    return {
        "family": order.family,
        "parameters": {**order.parameters, **order.resources.as_text()},
        "cluster": order.cluster,
        "attempt": int(os.environ.get(ATTEMPT_VARIABLE, "1")),
        "node": socket.gethostname(),
        "started": started,
        "ended": time.time(),
        "peak_memory_bytes": monitor.peak_memory_bytes,
        "memory_bytes": monitor.memory_bytes,
        "cpu_seconds": monitor.cpu_seconds,
        "read_bytes": monitor.read_bytes,
        "written_bytes": monitor.written_bytes,
        "size": order.size,
        "made": monitor.made,
        "dask": {"spilled_bytes": monitor.spilled_bytes, "worker_restarts": monitor.worker_restarts},
        "blocks": dict(monitor.blocks()),
    }


@contextmanager
def _ending_in_time(monitor: Monitor, hand_over: Callable[[], int]) -> Iterator[None]:
    """End the process with success if Dask does not shut down after the work is done."""
    over = threading.Event()

    def watch() -> None:
        monitor.done.wait()
        if not over.wait(_LONGEST_END_SECONDS):
            logger.warning("The work is done, but Dask does not end: ending the job without it")
            os._exit(hand_over())

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        over.set()


def signs_of_life(order: JobOrder, monitor: Monitor) -> AbstractContextManager[None]:
    """Return what `work` does its work in: it writes heartbeats for the driver."""
    return beating(monitor, partial(_write_beat, order.files.heartbeat), order.beat_seconds)


def _write_beat(path: Path, beat: Mapping[str, Any]) -> None:
    # Neither renamed nor forced onto the disk: any change counts, and hundreds of jobs share a metadata server.
    try:
        file = open_own(path, os.O_TRUNC, private_mode(path))
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open_own(path, os.O_TRUNC, private_mode(path))
    try:
        os.write(file, json.dumps(beat).encode())
    finally:
        os.close(file)


def _outcome(error: BaseException) -> ResultWord:
    if isinstance(error, Stopped) and schedulers.around() is not None:
        is_late = time.time() >= float(os.environ.get(LATE_VARIABLE, "inf"))
        return ResultWord.TIME_LIMIT if is_late else ResultWord.PREEMPTED
    if isinstance(error, SystemExit):
        return ResultWord.STOPPED
    if isinstance(error, InputChangedError):
        return ResultWord.INPUT
    if isinstance(error, ConfigurationChangedError):
        return ResultWord.CONFIGURATION
    if isinstance(error, WorkersLostError):
        # They were preempted, or had too little memory: the scheduler's state decides.
        return ResultWord.WORKERS_LOST
    from distributed.scheduler import KilledWorker

    if isinstance(error, (MemoryError, KilledWorker)):
        return ResultWord.MEMORY
    return ResultWord.FILES if is_file_trouble(error) else ResultWord.ERROR


def allocated(asked: Resources, rule: str) -> Resources:
    """Return the resources that this job has: what was asked, with the memory of a retry, checked against the node.

    Raises
    ------
    SizingError
        If what was given is not enough.
    """
    scheduler = schedulers.around()
    given = scheduler.given(os.environ) if scheduler else {}
    if scheduler and given.get("cpus_per_task", asked.cpus_per_task) < asked.cpus_per_task:
        raise SizingError(
            f"{rule}: {scheduler.NAME} gave {given['cpus_per_task']} CPUs of the {asked.cpus_per_task} asked for"
        )
    memory = given.get("memory_bytes", asked.memory_bytes)
    limit = machine_memory()
    if scheduler and limit < memory:
        logger.warning("%s: the node has %.1f GiB of the %.1f asked for", rule, limit / GIB, memory / GIB)
        memory = limit
    has = replace(asked, memory=render_memory(memory))
    has.check(rule)
    return has


@contextmanager
def _alive(parent: int | str | None) -> Iterator[None]:
    """End this job when its driver has died, if it ends with one: nobody would take its result.

    `parent` is the driver's process on this machine, or ``stdin``, which the driver holds open.
    """
    done = threading.Event()

    def watch() -> None:
        if _is_gone(parent, done):
            logger.error("The driver is gone, or stops this job: stopping")
            os.kill(os.getpid(), signal.SIGTERM)
            done.wait(10)
            os._exit(1)

    if parent is not None:
        threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _is_gone(parent: int | str | None, done: threading.Event) -> bool:
    """Wait until the driver has died, or the job is `done`; return whether it was the driver."""
    if isinstance(parent, int):
        while not done.wait(1.0):
            if not psutil.pid_exists(parent):
                return True
        return False
    while os.read(0, 4096):
        pass
    return not done.is_set()
