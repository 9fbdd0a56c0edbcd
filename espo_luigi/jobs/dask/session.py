"""Dask sessions whose workers run on several nodes: settings, private files, failure; and one on all nodes of a job."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espo_luigi.errors import JobError, WorkersLostError
from espo_luigi.files import write_new
from espo_luigi.jobs.dask import SETTINGS_NAME
from espo_luigi.jobs.dask.local import SETTINGS, WITHOUT_PAGES, limit_thread_pools, limit_zarr, scratch_folder
from espo_luigi.jobs.order import extra_folders
from espo_luigi.jobs.resources import Resources
from espo_luigi.jobs.schedulers.slurm import sizes

if TYPE_CHECKING:
    from distributed import Client
    from distributed.security import Security

logger = logging.getLogger(__name__)

# A worker that is preempted, or whose node fails, is no fault of the task that it computed. Ten such losses are
# allowed; a task that kills every worker by its memory still comes to an end.
_SETTINGS_OF_JOBS: dict[str, Any] = {
    "distributed.scheduler.allowed-failures": 10,
    # The scheduler's listing shows whether a lost worker's job must be replaced, or was requeued and comes back.
    "distributed.deploy.lost-worker-timeout": "30 days",
    # A busy worker may answer late; Dask's 30 s lose healthy workers of a loaded network.
    "distributed.comm.timeouts.tcp": "60s",
}

# Any account of the cluster's nodes could otherwise connect to a worker, which runs the code that it is sent.
_PROTECTED = {"distributed.comm.require-encryption": True}
# All messages of a worker go to its job's log, including those of this package.
_LOGGED = {"logging": {"distributed": "info", "espo_luigi": "info"}}


# Every worker runs this first: it adds the module folders of the session's process, and drops a cache of machine code
# that other accounts can write. A worker's own environment may lack this package.
_PRELOAD = """\
import sys

sys.path.extend(folder for folder in {folders!r} if folder not in sys.path)
try:
    from espo_luigi.files import drop_shared_numba_cache
except ImportError:
    pass
else:
    if fault := drop_shared_numba_cache():
        print(fault, file=sys.stderr)
"""

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


class Failing:
    """Lets any thread end the work of the thread that created this, with an error.

    Dask waits for ever for workers that never come; the interrupt ends that wait.
    """

    def __init__(self, kind: type[JobError] = JobError) -> None:
        self._kind = kind
        self._thread = threading.get_ident()
        self._words = ""

    def fail(self, words: str) -> None:
        """Make `raised` raise an error; outside of the main thread, which alone gets signals, only log it."""
        self._words = words
        logger.error("%s", words)
        if self._thread == threading.main_thread().ident:
            signal.pthread_kill(self._thread, signal.SIGINT)

    @contextmanager
    def raised(self) -> Iterator[None]:
        """Surround the work; raise the error if `fail` ended it."""
        try:
            yield
        except KeyboardInterrupt:
            if self._words:
                raise self._kind(self._words) from None
            raise


@contextmanager
def prepared(
    folder: Path, failing: Failing, settings: Mapping[str, Any] | None, *, dashboard: bool
) -> Iterator[Security]:
    """Create a session's folder with keys and settings for its workers, and apply the settings here as well."""
    import dask

    from espo_luigi.jobs.dask.security import write_security

    used = {**SETTINGS, **_SETTINGS_OF_JOBS, **({} if dashboard else WITHOUT_PAGES), **(settings or {})}
    with failing.raised(), _quiet_logs(), _private(folder), dask.config.set(used):
        security = write_security(folder)
        _write_settings(folder / SETTINGS_NAME, security, used)
        yield security


@contextmanager
def _quiet_logs() -> Iterator[None]:
    """Log Dask's warnings, except for the refused connections of worker jobs that test the port."""
    levels = {"distributed": logging.WARNING, "distributed.comm.tcp": logging.ERROR}
    before = {name: logging.getLogger(name).level for name in levels}
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


@contextmanager
def _private(folder: Path) -> Iterator[None]:
    """Create an empty folder that only its owner can read, and remove it at the end."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write_settings(path: Path, security: Any, settings: Mapping[str, Any]) -> None:
    """Write the settings that Dask's workers read by ``DASK_CONFIG``."""
    import dask

    keys: dict[str, Any] = {"distributed.comm.tls.ca-file": security.tls_ca_file}
    for role in ("client", "worker"):
        for kind in ("key", "cert"):
            keys[f"distributed.comm.tls.{role}.{kind}"] = getattr(security, f"tls_{role}_{kind}")
    preload = path.with_suffix(".py")
    write_new(preload, _PRELOAD.format(folders=extra_folders()), 0o600)
    keys["distributed.worker.preload"] = [*dask.config.get("distributed.worker.preload", []), str(preload)]
    own = {name: value for name, value in settings.items() if not name.startswith("logging")}
    nested: dict[str, Any] = {}
    dask.config.set({**own, **keys, **_PROTECTED, **_LOGGED}, config=nested)
    # JSON is YAML, and takes tuples.
    write_new(path, json.dumps(nested), 0o600)


@contextmanager
def allocation_session(
    resources: Resources, folder: Path, settings: Mapping[str, Any] | None = None, *, dashboard: bool = False
) -> Iterator[Client]:
    """Start workers on each node of this job, sized by `resources`; `folder` exists only during the session.

    Raises WorkersLostError if all workers end before the work does.
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
