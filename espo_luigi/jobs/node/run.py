"""The life of a job on its node: it reads its order, does the work, and writes its result atomically.

`run_order` takes the work as a function of the order. A heartbeat file shows meanwhile that the job lives.
"""

from __future__ import annotations

import faulthandler
import functools
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from espo_luigi.errors import (
    ClaimLostError,
    ConfigurationChangedError,
    EspoError,
    InputChangedError,
    SizingError,
    WorkersLostError,
    as_text,
    log_as_text,
)
from espo_luigi.files import (
    is_file_trouble,
    lives,
    open_own,
    private_mode,
    process_room,
    process_start,
    read_object,
    ready_standard_streams,
    this_version,
)
from espo_luigi.jobs import schedulers
from espo_luigi.jobs.node.claim import check_claim
from espo_luigi.jobs.node.heartbeat import Monitor, beating
from espo_luigi.jobs.order import LAYOUT, JobOrder, ResultWord, is_final, write_json
from espo_luigi.jobs.resources import GIB, Resources, render_memory
from espo_luigi.jobs.retry import JOBS_PATIENCE_SECONDS, persistently
from espo_luigi.jobs.schedulers.script import (
    ATTEMPT_VARIABLE,
    CLAIM_VARIABLE,
    LATE_VARIABLE,
    OWNER_VARIABLE,
    START_VARIABLE,
)
from espo_luigi.machine import end_with, limit_thread_pools, machine_memory

logger = logging.getLogger("espo_luigi.job")

# How long Dask may take to shut down after the work is done; a worker that hangs must not cost the job's success.
_LONGEST_END_SECONDS = 120.0
# How often a local job looks whether its driver lives: within a second, the next driver may use the CPUs.
_PARENT_LOOK_SECONDS = 1.0
# How long such a job has to write down its end, after the driver is gone.
_ORPHANS_END_SECONDS = 10.0
# Until a signal that was lost is sent again.
_AGAIN_SECONDS = 0.05
# The signals that tell a job to end.
_STOPPING = (signal.SIGTERM, signal.SIGUSR2)

# Does an order's work inside `signs_of_life`. It may give the monitor Dask's scheduler, and must set `done`.
Work = Callable[[JobOrder, Monitor], None]


def run_order(path: Path, work: Work) -> int:
    """Execute the order file by calling `work`; return the process's exit code."""
    try:
        values = dict(json.loads(persistently(path.read_text, JOBS_PATIENCE_SECONDS)))
    except (OSError, ValueError, TypeError) as error:
        raise SystemExit(f"{path}: not a readable job order ({error})") from error
    try:
        if values.get("layout") != LAYOUT:
            return _refuse(values, Path(values["files"]["result"]))
        order, parent = JobOrder.parsed(values), values.get("parent")
    except (KeyError, TypeError) as error:
        raise SystemExit(
            f"{path}: another version of espo_luigi has written this order ({error!r}): cancel the run's jobs (espo "
            "cancel), and give the command again"
        ) from error
    _set_up_process()
    _expect_progress(order)
    if isinstance(parent, int):
        # A local job. Its driver may run inside a scheduler's job, whose variables would mislead this one.
        prefixes = tuple(scheduler.VARIABLES for scheduler in schedulers.SCHEDULERS.values())
        for name in [name for name in os.environ if name.startswith(prefixes)]:
            del os.environ[name]
    if claim := values.get("claim"):
        # A scheduler's job has them from its script.
        os.environ |= {CLAIM_VARIABLE: str(order.files.claim), OWNER_VARIABLE: claim}
        os.environ.pop(START_VARIABLE, None)
    if _done_before(order.files.result, schedulers.job_id()):
        return 0
    if parent is not None:
        threading.Thread(target=_end_with_driver, args=(parent,), daemon=True).start()
    return _write_result(_run(order, work), order.files.result, order.files.heartbeat)


def _refuse(values: Mapping[str, Any], result: Path) -> int:
    """Write a result that refuses the order of another layout; return the process's exit code."""
    job_id = schedulers.job_id()
    if _done_before(result, job_id):
        return 0
    theirs = f"espo_luigi {values.get('version', '(unknown)')}"
    told = (
        f"{values['label']} was ordered by {theirs} (layout {values.get('layout', 'unknown')}), and its job finds "
        f"espo_luigi {this_version()} (layout {LAYOUT}), which cannot read the order: the environment was upgraded "
        f"meanwhile. Nothing was done. Install {theirs} again to finish or cancel the run, or choose another workdir"
    )
    sys.stderr.write(f"{told}\n")
    refused = {"outcome": ResultWord.CONFIGURATION, "exception": f"{ConfigurationChangedError.__name__}: {told}"}
    return _write_result(refused | {"traceback": None, "job_id": job_id}, result)


def _write_result(result: Mapping[str, Any], path: Path, heartbeat: Path | None = None) -> int:
    """Write the result, then delete the heartbeat file; return the exit code."""
    try:
        check_claim()
    except ClaimLostError as error:
        # The result file belongs to the job that has the work now.
        logger.error("%s", error)
        return 1
    persistently(lambda: write_json(path, result), JOBS_PATIENCE_SECONDS)
    if heartbeat is not None:
        with suppress(OSError):
            heartbeat.unlink(missing_ok=True)
    return 0 if result["outcome"] == ResultWord.SUCCESS else int(result.get("exit_code", 1))


def _set_up_process() -> None:
    # Logs are read as UTF-8; Dask's workers write there, too.
    ready_standard_streams("utf-8")
    os.environ["PYTHONIOENCODING"] = "utf-8:backslashreplace"
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", stream=sys.stderr, force=True
    )
    logging.getLogger().handlers[0].addFilter(log_as_text)
    logging.getLogger("espo_luigi").setLevel(logging.INFO)
    faulthandler.enable()
    # For people who want to see where a job is. Without a handler, the signal would end the job.
    if signal.getsignal(signal.SIGUSR1) is not signal.SIG_IGN:
        faulthandler.register(signal.SIGUSR1, all_threads=True, chain=False)
    _answer_by(_stop)
    sys.unraisablehook = _stop_soon
    os.register_at_fork(before=_hold_signals, after_in_parent=_let_signals_through, after_in_child=_leave_signals)
    limit_thread_pools(os.environ)


def _done_before(path: Path, job_id: str | None) -> bool:
    """Return whether this job of a scheduler succeeded before it was requeued, or failed for good.

    Removes any other result.
    """
    if job_id is None:
        return False
    result = persistently(lambda: read_object(path), JOBS_PATIENCE_SECONDS) or {}
    if result.get("job_id") == job_id and result.get("outcome") == ResultWord.SUCCESS:
        logger.info("Job %s was requeued after it had succeeded: nothing to do", job_id)
        return True
    if result.get("job_id") == job_id and is_final(result):
        # Some sites requeue each job that fails (RequeueExit).
        logger.error("Job %s was requeued after %s: it does nothing", job_id, result.get("exception"))
        return True
    persistently(lambda: path.unlink(missing_ok=True), JOBS_PATIENCE_SECONDS)
    return False


class Stopped(SystemExit):
    """This job got a signal to stop; its exit code is that of a process killed by the signal."""

    def __init__(self, signum: int) -> None:
        super().__init__(128 + signum)
        self.signum = signum

    def __str__(self) -> str:
        return f"stopped by signal {self.signum}"


def _answer_by(handler: Callable[[int, Any], None]) -> None:
    for number in _STOPPING:
        signal.signal(number, handler)


def _stop(signum: int, _frame: object) -> None:
    # Further signals are ignored, so that the result is written whole: Slurm signals again after the grace time, and a
    # process of the job may pass a signal on that all have got already.
    _answer_by(_go_on_stopping)
    raise Stopped(signum)


def _go_on_stopping(signum: int, _frame: object) -> None:
    """Ignore a signal; other than SIG_IGN, programs that the job starts do not inherit this handler."""


def _stop_soon(dropped: Any) -> None:
    """Send a stopping signal again whose exception Python dropped: in a hook of a fork, or in a finalizer."""
    if not isinstance(dropped.exc_value, Stopped):
        sys.__unraisablehook__(dropped)
        return
    _answer_by(_stop)
    _let_signals_through()
    threading.Timer(_AGAIN_SECONDS, os.kill, (os.getpid(), dropped.exc_value.signum)).start()


# A signal ends a fork of the job (a `multiprocessing.Pool` has several), like any process. Under `_stop`, a fork might
# raise `Stopped` where Python drops exceptions, and live on. Signals wait while the fork is made.
_hold_signals = partial(signal.pthread_sigmask, signal.SIG_BLOCK, _STOPPING)
_let_signals_through = partial(signal.pthread_sigmask, signal.SIG_UNBLOCK, _STOPPING)


def _leave_signals() -> None:
    for number in _STOPPING:
        if signal.getsignal(number) in (_stop, _go_on_stopping):
            signal.signal(number, signal.SIG_DFL)
    _let_signals_through()


def _run(order: JobOrder, work: Work) -> dict[str, Any]:
    started, monitor, over = time.time(), Monitor(), threading.Event()
    result: dict[str, Any] = {"outcome": ResultWord.SUCCESS, "job_id": schedulers.job_id()}
    result |= {"exception": None, "traceback": None}

    def end_in_time() -> None:
        monitor.done.wait()
        if not over.wait(_LONGEST_END_SECONDS):
            logger.warning("The work is done, but Dask does not end: ending the job without it")
            files, account = order.files, _account(order, monitor, started)
            end_with(lambda: _write_result(result | account, files.result, files.heartbeat))

    threading.Thread(target=end_in_time, daemon=True).start()
    try:
        work(order, monitor)
    except BaseException as error:
        result.update(_failure(error, monitor))
    over.set()
    return result | _account(order, monitor, started)


def _failure(error: BaseException, monitor: Monitor) -> dict[str, Any]:
    """Return the result's entries about an error; none if the work was done before it."""
    if monitor.done.is_set():
        logger.warning("The work is done; while ending: %s: %s", type(error).__name__, error)
        return {}
    text = str(error)
    if type(error) is SystemExit and not isinstance(error.code, str):
        # Click does so after success, too, where more work may have been meant to follow.
        text = f"work called sys.exit({error.code}), as argparse and click do; expected a return. The log tells why"
    said: dict[str, Any] = {"outcome": _outcome(error), "exception": as_text(f"{type(error).__name__}: {text}")}
    if signal.getsignal(signal.SIGTERM) is _go_on_stopping:
        said["told_to_end"] = True
    if isinstance(error, Stopped):
        logger.warning("Told to end (signal %d): what is complete stays, for the next attempt", error.signum)
        return said | {"exit_code": error.code}
    if isinstance(error, EspoError):
        logger.error("%s", error)
        return said
    logger.exception("The task failed")
    return said | {"traceback": as_text(traceback.format_exc())}


def _account(order: JobOrder, monitor: Monitor, started: float) -> dict[str, Any]:
    """Return the result's entries about the job's request and its use."""
    used = monitor.used
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
        "cpu_seconds": used.cpu_seconds,
        "read_bytes": used.read_bytes,
        "written_bytes": used.written_bytes,
        "size": order.size,
        "made": monitor.made,
        "blocks": dict(monitor.blocks()),
    }


def signs_of_life(order: JobOrder, monitor: Monitor) -> AbstractContextManager[None]:
    """Return a context in which heartbeats are written for the driver."""
    return beating(monitor, partial(_write_beat, order), order.beat_seconds)


@functools.cache
def _own_pid() -> int:
    # The first call is the job's. A fork of it has the lock of the thread of C locked, and would wait for ever.
    return os.getpid()


def _expect_progress(order: JobOrder) -> None:
    """Have the stacks of all threads written to the log, unless this is called again in time."""
    if order.stack_after_seconds and os.getpid() == _own_pid():
        # A thread of C does it, without Python's lock. The descriptor stays the log's if a task replaces `sys.stderr`.
        faulthandler.dump_traceback_later(order.stack_after_seconds, file=2)


def _write_beat(order: JobOrder, beat: Mapping[str, Any]) -> None:
    # Written in place and not synced: any change counts, and hundreds of jobs share a metadata server.
    path = order.files.heartbeat
    try:
        file = open_own(path, os.O_TRUNC, private_mode(path))
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open_own(path, os.O_TRUNC, private_mode(path))
    try:
        os.write(file, json.dumps(beat).encode())
    finally:
        os.close(file)
    _expect_progress(order)


def _outcome(error: BaseException) -> ResultWord:
    if isinstance(error, Stopped):
        if schedulers.around() is None:
            return ResultWord.STOPPED
        is_late = time.time() >= float(os.environ.get(LATE_VARIABLE, "inf"))
        return ResultWord.TIME_LIMIT if is_late else ResultWord.PREEMPTED
    if isinstance(error, InputChangedError):
        return ResultWord.INPUT
    if isinstance(error, ConfigurationChangedError):
        return ResultWord.CONFIGURATION
    if isinstance(error, WorkersLostError):
        # The workers were preempted or ran out of memory: the scheduler's state decides.
        return ResultWord.WORKERS_LOST
    # By name, as a job without Dask does not import it.
    if isinstance(error, MemoryError) or "KilledWorker" in (kind.__name__ for kind in type(error).__mro__):
        return ResultWord.MEMORY
    return ResultWord.FILES if is_file_trouble(error) else ResultWord.ERROR


def allocated(asked: Resources, rule: str) -> Resources:
    """Return the resources of this job: as asked, with the memory of a retry, limited to the node's memory.

    Raises
    ------
    SizingError
        If the scheduler gave fewer CPUs than asked, or the memory is too small for the workers.
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


def _end_with_driver(parent: int | str) -> None:
    """End this job of the local engine when its driver dies.

    `parent` is the driver's process on this machine, or ``stdin``, which the driver holds open.
    """
    if isinstance(parent, int):
        began = process_start(parent)
        while lives(parent, began, process_room()) is not False:
            time.sleep(_PARENT_LOOK_SECONDS)
    else:
        while os.read(0, 4096):
            pass
    logger.error("The driver is gone, or stops this job: stopping")
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_ORPHANS_END_SECONDS)
    os._exit(1)
