"""A Dask session on all nodes of a Slurm job: the scheduler runs in this process, `srun` starts the workers."""

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
from espo_luigi.jobs.dask.jobs import SETTINGS_NAME
from espo_luigi.jobs.dask.local import limit_thread_pools, limit_zarr, scratch_folder
from espo_luigi.jobs.dask.session import Failing, prepared
from espo_luigi.jobs.resources import Resources
from espo_luigi.jobs.schedulers.slurm import sizes

if TYPE_CHECKING:
    from distributed import Client

logger = logging.getLogger(__name__)

# A node with a slow file system may take minutes to import Dask; after that, the work begins without it.
_LONGEST_START_SECONDS = 300.0
# Nannies need some seconds to end their workers; after that, srun is killed.
_LONGEST_END_SECONDS = 15.0


# Workers spill pickles, so their folder must be private: another account could own a folder of Dask's usual name.
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
    """Start workers on each node of this job, sized by `resources`; `folder` exists only during the session.

    Raises
    ------
    WorkersLostError
        If all workers end before the work does.
    """
    from distributed import Client, Scheduler, SpecCluster

    nodes = int(os.environ.get("SLURM_JOB_NUM_NODES", "1"))
    limit_thread_pools(os.environ)
    limit_zarr(resources.threads_per_worker)
    failing = Failing(WorkersLostError)
    with prepared(folder, failing, settings, dashboard=dashboard) as security:
        options = {"dashboard": dashboard, "dashboard_address": "127.0.0.1:0"}
        scheduler = {"cls": Scheduler, "options": {**options, "protocol": "tls://", "security": security}}
        with (
            SpecCluster(scheduler=scheduler, security=security) as cluster,
            Client(cluster) as client,
            _workers(_command(nodes, resources, cluster.scheduler_address), folder / SETTINGS_NAME, failing),
        ):
            _wait_for_workers(cluster, nodes * resources.n_workers)
            client.forward_logging("espo_luigi", logging.INFO)
            yield client


def _command(nodes: int, resources: Resources, address: str) -> list[str]:
    places = sizes(nodes=nodes, ntasks=nodes, ntasks_per_node=1, cpus_per_task=resources.cpus_per_task)
    # A worker that ends must not end the rest. On the first node, this process holds CPUs of the job as well.
    step = ["srun", *places, "--kill-on-bad-exit=0", "--overlap"]
    worker = [sys.executable, "-P", "-m", "distributed.cli.dask_worker", address]
    worker += ["--nworkers", str(resources.n_workers)]
    worker += ["--nthreads", str(resources.threads_per_worker), "--memory-limit", str(resources.worker_memory_bytes)]
    worker += ["--death-timeout", "60", "--protocol", "tls://", "--nanny"]
    worker += ["--no-dashboard", "--dashboard-address", "127.0.0.1:0"]
    return [*step, "bash", "-c", _IN_OWN_FOLDER, "-", scratch_folder(), *worker]


@contextmanager
def _workers(command: list[str], settings: Path, failing: Failing) -> Iterator[None]:
    over = threading.Event()
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
