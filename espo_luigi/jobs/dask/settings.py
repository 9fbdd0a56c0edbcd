"""What Dask runs with: its settings, those that users may choose, and the limits of a process's threads and memory."""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from espo_luigi.errors import ConfigurationError
from espo_luigi.jobs import schedulers
from espo_luigi.jobs.resources import Resources
from espo_luigi.jobs.schedulers.script import SCRATCH_VARIABLE
from espo_luigi.machine import limit_thread_pools

# Options of glibc's malloc that keep freed memory for reuse: variable's name, option's number in mallopt, and value.
# Otherwise blocks of 100 MB go back to the kernel, and clearing their pages again takes up to a third of a job's time.
# Threads share a single arena, so that the peak does not grow.
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
    # A worker that holds the GIL in a long block works and is not dead.
    "distributed.scheduler.worker-ttl": "30 minutes",
    "distributed.admin.tick.limit": "10 minutes",
    # Dask's profiler takes some 5 % of a job's CPU time; without it, the dashboard's page "Profile" stays empty.
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.comm.timeouts.connect": "120s",
    # The user's own link may have variables of a JupyterHub, which a job lacks.
    "distributed.dashboard.link": "{scheme}://{host}:{port}/status",
    "logging.distributed": "warning",
}

# Any account of the node can open Dask's HTTP pages, which show logs and names of tasks; these settings remove them.
WITHOUT_PAGES: dict[str, Any] = {"distributed.scheduler.http.routes": [], "distributed.worker.http.routes": []}

# Keywords of Dask's `LocalCluster` that could open a server without TLS, or beyond the loopback.
_NOT_FOR_USERS = {"protocol", "security", "processes", "worker_class", "scheduler_kwargs"} | {
    *("services", "service_kwargs", "worker_services", "worker_dashboard_address")
}

# The settings of Dask that a configuration may hold, each with all below it. Others run code (`preload`, `environ`,
# `routes`, `policies`, `logging-file-config`, a dictionary of `logging`), or open a session to other accounts (`tls`).
_SETTINGS_FOR_USERS = {
    "": (
        *("admin.async-client-fallback", "admin.traceback", "array", "chunksize", "dataframe", "delayed-pure"),
        *("num-workers", "optimization", "scheduler", "split-every", "temporary-directory", "tokenize"),
        "visualization",
    ),
    "logging.": ("distributed",),
    "distributed.": ("adaptive", "client.heartbeat", "deploy", "diagnostics", "p2p"),
    "distributed.admin.": ("log-length", "low-level-log-length", "max-error-length", "system-monitor", "tick"),
    "distributed.comm.": ("compression", "offload", "retry", "shard", "socket-backlog", "timeouts", "zstd"),
    "distributed.scheduler.": (
        *("allowed-failures", "bandwidth", "default-data-size", "default-task-durations", "events-cleanup-delay"),
        *("idle-timeout", "locks", "no-workers-timeout", "rootish-taskgroup", "rootish-taskgroup-dependencies"),
        *("unknown-task-duration", "validate", "work-stealing", "work-stealing-interval", "worker-saturation"),
        *("worker-ttl", "active-memory-manager.start", "active-memory-manager.interval"),
    ),
    "distributed.worker.": (
        *("connections", "daemon", "lifetime", "memory", "profile", "resources", "transfer", "use-file-locking"),
        "validate",
    ),
}
# Dask's advice against memory that workers do not release; allowed if its value is a number.
_TRIM = [f"distributed.nanny.{name}.MALLOC_TRIM_THRESHOLD_" for name in ("environ", "pre-spawn-environ")]


def keep_freed_memory() -> None:
    """Make this process keep and reuse freed memory; works with glibc only."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        for name, (option, value) in _MALLOC.items():
            # A variable of the user's was read by glibc at the start.
            if name not in os.environ:
                libc.mallopt(option, value)


@contextmanager
def threaded_session(resources: Resources, settings: Mapping[str, Any]) -> Iterator[None]:
    """Let Dask compute in threads of this process, one a CPU, without a client, a scheduler or workers.

    A session takes more CPU time than a small task, and each of its Dask tasks some ten times a thread's.
    """
    import dask

    limit_thread_pools(os.environ)
    keep_freed_memory()
    limit_zarr(resources.cpus_per_task)
    # As in a session, the user's settings decide neither where Dask computes nor in how many threads.
    with dask.config.set({**SETTINGS, **settings, "scheduler": "threads", "num_workers": resources.cpus_per_task}):
        yield


def limit_zarr(threads: int) -> None:
    """Limit Zarr's threads; by itself it uses more than the job has CPUs."""
    os.environ["ZARR_THREADING__MAX_WORKERS"] = str(threads)
    if "zarr" in sys.modules:
        sys.modules["zarr"].config.set({"threading.max_workers": threads})


def scratch_folder() -> str:
    """Return the fast folder that this job may fill: luigi.cfg's ``scratch``, the scheduler's, or the system's."""
    return os.environ.get(SCRATCH_VARIABLE) or schedulers.node_folder() or tempfile.gettempdir()


def check_client(client: Mapping[str, Any]) -> None:
    """Check keywords for `LocalCluster`, as in the configuration's ``dask.client``.

    Raises ConfigurationError if a keyword would open a server to other accounts.
    """
    for name in sorted(_NOT_FOR_USERS & client.keys()):
        raise ConfigurationError(
            f"`dask.client.{name}`: got {client[name]!r}, expected no such key: each session sets it itself, so that "
            "no other account can speak with its scheduler and workers (`espo docs security`). Remove it."
        )
    on_loopback(client.get("dashboard_address"))


def check_settings(settings: Mapping[str, Any]) -> None:
    """Check the settings of Dask in a configuration, by dotted names.

    Raises ConfigurationError if a setting may run code or open a server: only those pass that tune Dask.
    """
    allowed = [f"{prefix}{name}" for prefix, names in _SETTINGS_FOR_USERS.items() for name in names]
    numbers = {name.replace("_", "-") for name in _TRIM}
    for key, value in settings.items():
        # Dask takes `_` for `-`.
        name = str(key).replace("_", "-")
        is_trim = name in numbers and str(value).isdecimal()
        if not is_trim and not any(f"{name}.".startswith(f"{one}.") for one in allowed):
            raise ConfigurationError(
                f"`dask.{key}`: expected a setting that runs no code and opens no server, one of {', '.join(allowed)} "
                f"or below, or a number as {' or '.join(_TRIM)}. Remove it, or write it into your own ~/.config/dask."
            )


def on_loopback(address: Any) -> str:
    """Return the address of Dask's dashboard, a port or ``:port``, with the loopback as its host.

    Raises ConfigurationError if the address names a host beyond the loopback.
    """
    host, _, port = str(address or ":0").rpartition(":")
    if host.strip("[]") not in ("", "127.0.0.1", "localhost", "::1") or not port.isdecimal():
        raise ConfigurationError(
            f"`dask.client.dashboard_address`: got {address!r}, expected a port or an address of this node alone, such "
            "as 127.0.0.1:8787: Dask's pages ask nobody for a password. From elsewhere, use `ssh -L`."
        )
    return f"{host or '127.0.0.1'}:{port}"
