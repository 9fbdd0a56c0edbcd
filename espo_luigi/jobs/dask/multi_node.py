"""A Dask session on all nodes of one job of Slurm: the scheduler in this process, workers by one `srun`."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espo_luigi.errors import WorkersLostError
from espo_luigi.jobs.dask.failing import Failing
from espo_luigi.jobs.dask.local import (
    SETTINGS,
    SETTINGS_OF_JOBS,
    WITHOUT_PAGES,
    limit_thread_pools,
    limit_zarr,
    scratch_folder,
)
from espo_luigi.jobs.dask.settings import private_folder, quiet_logs, write_security, write_settings
from espo_luigi.jobs.resources import Resources
from espo_luigi.jobs.schedulers.slurm.steps import sizes

if TYPE_CHECKING:
    from distributed import Client

logger = logging.getLogger(__name__)

# How long nodes are waited for, whose file system may be slow; then the others begin.
_LONGEST_START_SECONDS = 300.0
_LONGEST_END_SECONDS = 15.0


# What a worker spills are pickles: a folder of Dask's usual name may be another account's.
_IN_OWN_FOLDER = """\
trap : TERM
folder=$(mktemp -d "$1/espo-dask-XXXXXXXXXX") || exit 1
"${@:2}" --local-directory "$folder"
code=$?
rm -rf -- "$folder"
exit $code"""


@contextmanager
def allocation_session(
    resources: Resources, folder: Path, settings: Mapping[str, Any] | None = None, *, dashboard: bool = False
) -> Iterator[Client]:
    """Start workers as `resources` say on each node of this job; `folder` is made for the session alone.

    Raises
    ------
    WorkersLostError
        If all workers have ended before the work is done.
    """
    import dask
    from distributed import Client, Scheduler, SpecCluster

    nodes = int(os.environ.get("SLURM_JOB_NUM_NODES", "1"))
    limit_thread_pools(os.environ)
    limit_zarr(resources.threads_per_worker)
    all_settings = {**SETTINGS, **SETTINGS_OF_JOBS, **({} if dashboard else WITHOUT_PAGES), **(settings or {})}
    failing, over = Failing(WorkersLostError), threading.Event()
    with failing.raised(), quiet_logs(), private_folder(folder), dask.config.set(all_settings):
        security, settings_path = write_security(folder), folder / "dask.yaml"
        write_settings(settings_path, security, all_settings)
        options = {"dashboard": dashboard, "dashboard_address": "127.0.0.1:0"}
        scheduler = {"cls": Scheduler, "options": {**options, "protocol": "tls://", "security": security}}
        with (
            SpecCluster(scheduler=scheduler, security=security) as cluster,
            Client(cluster) as client,
            _workers(_command(nodes, resources, cluster.scheduler_address), settings_path, failing, over),
        ):
            _wait_for_workers(cluster, nodes * resources.n_workers)
            client.forward_logging("espo_luigi", logging.INFO)
            yield client


def _command(nodes: int, resources: Resources, address: str) -> list[str]:
    places = sizes(nodes=nodes, ntasks=nodes, ntasks_per_node=1, cpus_per_task=resources.cpus_per_task)
    # One worker that ends must not end the others; on the first node, this process has CPUs of the job, too.
    step = ["srun", *places, "--kill-on-bad-exit=0", "--overlap"]
    worker = [sys.executable, "-P", "-m", "distributed.cli.dask_worker", address]
    worker += ["--nworkers", str(resources.n_workers)]
    worker += ["--nthreads", str(resources.threads_per_worker), "--memory-limit", str(resources.worker_memory_bytes)]
    worker += ["--death-timeout", "60", "--protocol", "tls://", "--nanny"]
    worker += ["--no-dashboard", "--dashboard-address", "127.0.0.1:0"]
    return [*step, "bash", "-c", _IN_OWN_FOLDER, "-", scratch_folder(), *worker]


@contextmanager
def _workers(command: list[str], settings: Path, failing: Failing, over: threading.Event) -> Iterator[None]:
    process = subprocess.Popen(command, env={**os.environ, "DASK_CONFIG": str(settings)}, stdin=subprocess.DEVNULL)

    def watch() -> None:
        code = process.wait()
        if not over.is_set():
            failing.fail(f"srun, which runs Dask's workers, ended with {code} before the work was done")

    threading.Thread(target=watch, name="srun", daemon=True).start()
    try:
        yield
    finally:
        over.set()
        process.terminate()
        try:
            process.wait(_LONGEST_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()


def _wait_for_workers(cluster: Any, n: int) -> None:
    until = time.monotonic() + _LONGEST_START_SECONDS
    while len(cluster.scheduler.workers) < n:
        if time.monotonic() >= until and cluster.scheduler.workers:
            logger.warning("only %d of %d Dask workers have come: beginning", len(cluster.scheduler.workers), n)
            return
        time.sleep(0.1)
