"""One job on its node: reads its order, does the work, and writes its result atomically.

While it works, a heartbeat file says that it is alive and how far Dask is. What the work is, whoever starts it says:
`run_order` takes a function of the order.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from espo_luigi.errors import ClaimLostError, EspoError, InputChangedError, SizingError
from espo_luigi.jobs import schedulers
from espo_luigi.jobs.claim import check_claim
from espo_luigi.jobs.heartbeat import Monitor, beating
from espo_luigi.jobs.order import JobOrder, write_json
from espo_luigi.jobs.records import read_json
from espo_luigi.jobs.resources import GIB, Resources, machine_memory, render_memory
from espo_luigi.jobs.session import limit_thread_pools

logger = logging.getLogger("espo_luigi.job")

# What does an order's work, inside `signs_of_life`, with a monitor that may be told of Dask's scheduler.
Work = Callable[[JobOrder, Monitor], None]


def run_order(path: Path, work: Work) -> int:
    """Do what the order file says, by `work`; return the process's exit code."""
    values = read_json(path)
    if values is None:
        raise SystemExit(f"{path}: not a readable job order")
    try:
        order, parent = JobOrder.parsed(values), values.get("parent")
    except (KeyError, TypeError) as error:
        raise SystemExit(
            f"{path}: another version of espo_luigi has written this order ({error!r}): cancel the run's jobs (espo "
            "cancel), and give the command again"
        ) from error
    _set_up_process()
    if parent is not None:
        # A job of the local engine, which may itself run inside a scheduler's job whose variables are not about this.
        prefixes = tuple(scheduler.VARIABLES for scheduler in schedulers.SCHEDULERS.values())
        for name in [name for name in os.environ if name.startswith(prefixes)]:
            del os.environ[name]
    job_id = schedulers.job_id()
    if job_id is not None and _done_before(order.files.result, job_id):
        logger.info("Job %s was requeued after it had succeeded: nothing to do", job_id)
        return 0
    with _alive(parent):
        result = _run(order, work)
    try:
        check_claim()
    except ClaimLostError as error:
        # The result file is the other's, whatever this one has to say.
        logger.error("%s", error)
        return 1
    write_json(order.files.result, result)
    return 0 if result["outcome"] == "success" else 1


def _set_up_process() -> None:
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", stream=sys.stderr, force=True
    )
    logging.getLogger("espo_luigi").setLevel(logging.INFO)
    logging.getLogger("pint").setLevel(logging.ERROR)  # xclim redefines units, each with a warning
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True, chain=False)
    signal.signal(signal.SIGTERM, _stop)
    limit_thread_pools(os.environ)  # type: ignore[arg-type]


def _done_before(path: Path, job_id: str) -> bool:
    """Whether this very job has succeeded before it was requeued; what its last run wrote otherwise is removed."""
    result = read_json(path)
    if result is not None and result.get("job_id") == job_id and result.get("outcome") == "success":
        return True
    path.unlink(missing_ok=True)
    return False


def _stop(signum: int, _frame: object) -> None:
    raise SystemExit(f"stopped by signal {signum}")


def _run(order: JobOrder, work: Work) -> dict[str, Any]:
    started = time.time()
    monitor = Monitor()
    result: dict[str, Any] = {
        "outcome": "success",
        "exception": None,
        "traceback": None,
        "job_id": schedulers.job_id(),
    }
    try:
        work(order, monitor)
    except EspoError as error:
        logger.error("%s", error)
        result |= {"outcome": _outcome(error), "exception": f"{type(error).__name__}: {error}"}
    except BaseException as error:
        logger.exception("The task failed")
        result |= {
            "outcome": _outcome(error),
            "exception": f"{type(error).__name__}: {error}",
            "traceback": traceback.format_exc(),
        }
    return result | {
        "family": order.family,
        "parameters": {**order.parameters, **order.resources.as_text()},
        "attempt": int(os.environ.get("ESPO_ATTEMPT", "1")),
        "node": socket.gethostname(),
        "started": started,
        "ended": time.time(),
        "peak_memory_bytes": monitor.peak_memory_bytes,
        "cpu_seconds": monitor.cpu_seconds,
        "read_bytes": monitor.read_bytes,
        "written_bytes": monitor.written_bytes,
        "dask": {"spilled_bytes": monitor.spilled_bytes, "worker_restarts": monitor.worker_restarts},
    }


def signs_of_life(order: JobOrder, monitor: Monitor) -> AbstractContextManager[None]:
    """Return what `work` does its work in, so that the driver hears of it while it does."""
    return beating(monitor, partial(write_json, order.files.heartbeat))


def _outcome(error: BaseException) -> str:
    if isinstance(error, EspoError):
        return "input" if isinstance(error, InputChangedError) else "error"
    from distributed.scheduler import KilledWorker

    if isinstance(error, (MemoryError, KilledWorker)):
        return "memory"
    return "stopped" if isinstance(error, SystemExit) else "error"


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
def _alive(parent: int | None) -> Iterator[None]:
    """End this job when its driver `parent` has died, if it has one (local engine): nobody would take its result."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(1.0):
            if parent is not None and not psutil.pid_exists(parent):
                logger.error("The driver (pid %s) is gone: stopping", parent)
                os.kill(os.getpid(), signal.SIGTERM)
                done.wait(10)
                os._exit(1)

    if parent is not None:
        threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        done.set()
