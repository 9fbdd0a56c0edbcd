"""The Dask cluster inside one job: as large as the allocation, with nothing shared with other jobs of the node."""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from espo_luigi.errors import ConfigurationError
from espo_luigi.jobs.resources import GIB, Resources
from espo_luigi.jobs.schedulers import known as schedulers
from espo_luigi.jobs.schedulers.script import SCRATCH_VARIABLE

if TYPE_CHECKING:
    from distributed import Client

logger = logging.getLogger(__name__)

# One computing thread per Dask thread: the BLAS, OpenMP and numba pools of a worker must not multiply its share.
THREAD_POOLS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "BLOSC_NTHREADS",
)

# Freed memory is kept and used again: blocks of 100 MB would else be given back to the kernel, which clears each page
# anew, for up to a third of a job's time. With one arena, threads share it; the peak does not grow. By the variable's
# name: the option's number in glibc's mallopt, and its value.
_MALLOC = {
    "MALLOC_ARENA_MAX": (-8, 1),
    "MALLOC_MMAP_MAX_": (-4, 0),
    "MALLOC_TRIM_THRESHOLD_": (-1, 2**31 - 1),
    "MALLOC_TOP_PAD_": (-2, 2**24),
}

SETTINGS: dict[str, Any] = {
    "array.slicing.split_large_chunks": False,
    "distributed.worker.daemon": True,
    "distributed.scheduler.allowed-failures": 2,
    # A worker that holds the GIL in a long block is at work, not dead.
    "distributed.scheduler.worker-ttl": "30 minutes",
    "distributed.admin.tick.limit": "10 minutes",
    # A look at every thread's stack 100 times a second takes some 5 % of a job's CPU time; without it, the dashboard's
    # page "Profile" stays empty.
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.comm.timeouts.connect": "120s",
    "logging.distributed": "warning",
}

# Where workers are jobs of their own, or on other nodes: one that is preempted, or whose node fails, is no fault of the
# task that it computed. A task that kills every worker by its memory still comes to an end.
SETTINGS_OF_JOBS: dict[str, Any] = {
    "distributed.scheduler.allowed-failures": 10,
    # Whether a lost worker's job is to be replaced, or comes back by itself (requeued), is seen in the listing.
    "distributed.deploy.lost-worker-timeout": "30 days",
    "distributed.comm.timeouts.tcp": "60s",
}

# Without a nanny, nobody restarts a worker: at Dask's 80% it would pause for ever, and its job hang. Past the limit it
# goes on, so that too little memory ends as a MemoryError or as Slurm's OUT_OF_MEMORY, and is retried with more. It
# spills by what Dask holds (`target`), not by the process's memory, which does not shrink (`keep_freed_memory`).
_SETTINGS_IN_PROCESS: dict[str, Any] = {
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
}


# Every account of the node reaches Dask's HTTP servers, which show logs and names of tasks.
WITHOUT_PAGES: dict[str, Any] = {"distributed.scheduler.http.routes": [], "distributed.worker.http.routes": []}

# Keywords of Dask's `LocalCluster` by which a server could open without TLS, or elsewhere than on the loopback.
_NOT_FOR_USERS = {"protocol", "security", "processes", "worker_class", "scheduler_kwargs"} | {
    *("services", "service_kwargs", "worker_services", "worker_dashboard_address")
}


def limit_thread_pools(environment: MutableMapping[str, str]) -> None:
    """Set to one thread, in `environment`, each computing library's own pool that the user has not set."""
    for name in THREAD_POOLS:
        environment.setdefault(name, "1")


def keep_freed_memory() -> None:
    """Have this process use freed memory again (glibc; elsewhere nothing changes)."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        for name, (option, value) in _MALLOC.items():
            # Where the user has set one, glibc has it already.
            if name not in os.environ:
                libc.mallopt(option, value)


def limit_zarr(threads: int) -> None:
    """Let Zarr code chunks in so many threads: by itself it takes more than the job has CPUs."""
    os.environ["ZARR_THREADING__MAX_WORKERS"] = str(threads)
    if "zarr" in sys.modules:
        sys.modules["zarr"].config.set({"threading.max_workers": threads})


def scratch_folder() -> str:
    """Return the fast folder that this job may fill: ``scratch`` of luigi.cfg, the scheduler's, or the usual one."""
    return os.environ.get(SCRATCH_VARIABLE) or schedulers.node_folder() or tempfile.gettempdir()


@contextmanager
def dask_session(
    resources: Resources,
    settings: Mapping[str, Any] | None = None,
    client: Mapping[str, Any] | None = None,
    *,
    dashboard: bool = False,
) -> Iterator[Client]:
    """Start a `LocalCluster` sized to `resources`, and close it at the end.

    One worker lives in this process, starts in no time, and may exceed its memory limit as far as the job's; several
    are processes, each with a nanny that restarts it near its own limit: a task under which three of them died
    fails as `KilledWorker`.
    Traffic stays on the node's loopback, by TLS over TCP (never UCX, which aborts where InfiniBand is set up badly),
    with keys that only this session has. The dashboard, where asked for, takes any free port: jobs on one node cannot
    meet. Without it, Dask's HTTP servers answer nothing.

    Parameters
    ----------
    resources
        Workers, CPUs and memory of this job.
    settings
        Dask settings (``array.slicing.split_large_chunks: False``), on top of the package's own.
    client
        Further keywords for `LocalCluster`, as in the configuration's ``dask.client``.
    dashboard
        Whether the scheduler serves Dask's dashboard, on any free port of the loopback.

    Raises
    ------
    ConfigurationError
        If a keyword would let other accounts in (`check_client`).
    """
    check_client(client or {})
    # A driver imports this module too, and computes nothing.
    import dask
    from distributed import Client, LocalCluster

    limit_thread_pools(os.environ)
    if resources.n_workers == 1:
        # A worker with a nanny is paused by its memory, until that shrinks.
        keep_freed_memory()
    limit_zarr(resources.threads_per_worker)
    keywords = _cluster_keywords(resources, client or {}, dashboard=dashboard)
    layout = SETTINGS if keywords["processes"] else SETTINGS | _SETTINGS_IN_PROCESS
    layout = layout if dashboard else layout | WITHOUT_PAGES
    with tempfile.TemporaryDirectory(prefix="espo-dask-", dir=scratch_folder(), ignore_cleanup_errors=True) as scratch:
        keywords.setdefault("local_directory", str(Path(scratch)))
        with (
            dask.config.set({**layout, **(settings or {})}),
            LocalCluster(**keywords) as cluster,
            Client(cluster) as session,
        ):
            logger.info("Dask: %d worker(s), %d thread(s) each, %.1f GiB each", *_layout(resources))
            yield session


def dashboard_port(client: Any) -> int:
    """Return the port of the dashboard of a client's scheduler; 0 without one."""
    return urlsplit(getattr(client, "dashboard_link", None) or "").port or 0


def _cluster_keywords(resources: Resources, client: Mapping[str, Any], *, dashboard: bool) -> dict[str, Any]:
    several = resources.n_workers > 1
    keywords: dict[str, Any] = {
        "n_workers": resources.n_workers,
        "threads_per_worker": resources.threads_per_worker,
        "processes": several,
        "memory_limit": resources.worker_memory_bytes,
        "dashboard_address": "127.0.0.1:0",
        "scheduler_kwargs": {"dashboard": dashboard},
        "worker_dashboard_address": "127.0.0.1:0",
    }
    if not dashboard:
        keywords["worker_class"] = _without_dashboard(several)
    if several or "interface" in client or "host" in client:
        from espo_luigi.jobs.dask.tls import MemorySecurity

        # Whoever reaches a scheduler or a worker can have it run code; and every account of the node reaches its
        # loopback. A worker of this process has no address, unless it is given an interface, which needs a protocol.
        keywords |= {"protocol": "tls", "security": MemorySecurity.temporary()}
    if several and "interface" not in client:
        # Dask takes a host or an interface, never both.
        keywords["host"] = "127.0.0.1"
    if "dashboard_address" in client:
        client = {**client, "dashboard_address": on_loopback(client["dashboard_address"])}
    return {**keywords, **client}


def check_client(client: Mapping[str, Any]) -> None:
    """Check keywords for `LocalCluster`, as in the configuration's ``dask.client``.

    Raises
    ------
    ConfigurationError
        If one would open a server to other accounts.
    """
    for name in sorted(_NOT_FOR_USERS & client.keys()):
        raise ConfigurationError(
            f"`dask.client.{name}`: got {client[name]!r}, expected no such key: each session sets it itself, so that "
            "no other account can speak with its scheduler and workers (docs/security.md). Remove it."
        )
    on_loopback(client.get("dashboard_address"))


def on_loopback(address: Any) -> str:
    """Return where Dask's dashboard is to listen, a port or an address without host, as one of the loopback.

    Raises
    ------
    ConfigurationError
        If it names another host.
    """
    host, _, port = str(address or ":0").rpartition(":")
    if host.strip("[]") not in ("", "127.0.0.1", "localhost", "::1") or not port.isdecimal():
        raise ConfigurationError(
            f"`dask.client.dashboard_address`: got {address!r}, expected a port or an address of this node alone, such "
            "as 127.0.0.1:8787: Dask's pages ask nobody for a password. From elsewhere, use `ssh -L`."
        )
    return f"{host or '127.0.0.1'}:{port}"


def _without_dashboard(several: bool) -> type:
    """Return Dask's class of workers without their dashboard, for which each would import Bokeh, half a second long.

    With no address, it is not started either, but then the worker listens beyond the loopback.
    """
    from distributed import Nanny, Worker

    kind: Any = Nanny if several else Worker

    class Plain(kind):
        def __init__(self, *args: Any, **keywords: Any) -> None:
            super().__init__(*args, **{**keywords, "dashboard": False})

    return Plain


def _layout(resources: Resources) -> tuple[int, int, float]:
    return resources.n_workers, resources.threads_per_worker, resources.worker_memory_bytes / GIB
