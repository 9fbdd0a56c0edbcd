"""One task's work on a compute node: ``python -m espo_luigi.job FILE``.

Rebuilds the task from the order in FILE, starts the Dask session, calls `work`, and writes the result atomically. While
it runs, a heartbeat file says that it is alive and how far Dask is.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from luigi.configuration import get_config
from luigi.task_register import Register

from espo_luigi.cluster.heartbeat import Monitor, beating
from espo_luigi.cluster.records import read_json
from espo_luigi.cluster.resources import GIB, Resources, given_by_slurm, machine_memory, render_memory
from espo_luigi.cluster.session import dask_session, limit_thread_pools
from espo_luigi.engine.jobfile import write_json
from espo_luigi.engine.settings import settings
from espo_luigi.engine.task import SlurmTask
from espo_luigi.errors import EspoError, InputChangedError, SizingError

logger = logging.getLogger("espo_luigi.job")


def main(arguments: list[str] | None = None) -> int:
    """Run the job whose order is the one argument; return its exit code."""
    path = Path((arguments if arguments is not None else sys.argv[1:])[0])
    order = read_json(path)
    if order is None:
        raise SystemExit(f"{path}: not a readable job order")
    _set_up_process()
    if "parent" in order:
        # A job of the local engine, which may itself run inside a Slurm job whose variables are not about this one.
        for name in [name for name in os.environ if name.startswith("SLURM_")]:
            del os.environ[name]
    job_id = os.environ.get("SLURM_JOB_ID")
    if job_id is not None and _done_before(Path(order["result"]), job_id):
        logger.info("Job %s was requeued after it had succeeded: nothing to do", job_id)
        return 0
    result = _run(order)
    write_json(Path(order["result"]), result)
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


def _run(order: dict[str, Any]) -> dict[str, Any]:
    started = time.time()
    monitor = Monitor()
    result: dict[str, Any] = {
        "outcome": "success",
        "exception": None,
        "traceback": None,
        "job_id": os.environ.get("SLURM_JOB_ID"),
    }
    try:
        _work(order, monitor)
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
        "family": order["family"],
        "parameters": order["parameters"],
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


def _outcome(error: BaseException) -> str:
    if isinstance(error, EspoError):
        return "input" if isinstance(error, InputChangedError) else "error"
    from distributed.scheduler import KilledWorker

    if isinstance(error, (MemoryError, KilledWorker)):
        return "memory"
    return "stopped" if isinstance(error, SystemExit) else "error"


def _work(order: dict[str, Any], monitor: Monitor) -> None:
    task = rebuild_task(order)
    # What was imported lives as long as the job: the garbage collector, which tens of thousands of dates set off, need
    # not go through it, and a forked job need not copy it.
    gc.freeze()
    resources = _allocated(Resources(**order["resources"]), task.get_task_family())
    session = (
        dask_session(resources, task.dask_settings(), task.dask_client(), dashboard=settings().dashboard)
        if task.uses_dask
        else nullcontext()
    )
    with _alive(order), session as client, beating(monitor, partial(write_json, Path(order["heartbeat"]))):
        monitor.scheduler = getattr(getattr(client, "cluster", None), "scheduler", None)
        logger.info("%s starts", task.label())
        with task.guarded():
            task.work()
        logger.info("%s is done", task.label())


def _allocated(asked: Resources, rule: str) -> Resources:
    """Return the resources that this job has: what was asked, with the memory of a retry, checked against the node."""
    given = given_by_slurm()
    if given.get("cpus_per_task", asked.cpus_per_task) < asked.cpus_per_task:
        raise SizingError(f"{rule}: Slurm gave {given['cpus_per_task']} CPUs of the {asked.cpus_per_task} asked for")
    memory = given.get("memory_bytes", asked.memory_bytes)
    limit = machine_memory()
    if os.environ.get("SLURM_JOB_ID") and limit < memory:
        logger.warning("%s: the node has %.1f GiB of the %.1f asked for", rule, limit / GIB, memory / GIB)
        memory = limit
    allocated = replace(asked, memory=render_memory(memory))
    allocated.check(rule)
    return allocated


def rebuild_task(order: dict[str, Any]) -> SlurmTask:
    """Return the task that `order` describes, under the luigi configuration that it had in the driver."""
    configuration = get_config()
    for section, options in {**order["luigi"], "espo": order["espo"]}.items():
        for option, value in options.items():
            configuration.set(section, option.replace("-", "_"), value.replace("%", "%%"))
    importlib.import_module(order["module"])
    return Register.get_task_cls(order["family"]).from_str_params(order["parameters"])


@contextmanager
def _alive(order: dict[str, Any]) -> Iterator[None]:
    """End this job when its driver has died, if the order names one (local engine): nobody would take its result."""
    parent = order.get("parent")
    done = threading.Event()

    def watch() -> None:
        while not done.wait(1.0):
            if not psutil.pid_exists(parent):
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


if __name__ == "__main__":
    sys.exit(main())
