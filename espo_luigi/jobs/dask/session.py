"""Dask sessions inside of a job, on its node or on all of its nodes, and what all sessions over several nodes share.

Only processes that hold a session's keys can speak with its scheduler and workers: without them, any account of the
cluster could have a worker run code. Only what computes imports this module, as Dask takes long to import.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import dask
from distributed import Client, LocalCluster, Nanny, Scheduler, SpecCluster, Worker
from distributed.diagnostics.plugin import WorkerPlugin
from distributed.security import Security

from espo_luigi.errors import JobError, WorkersLostError
from espo_luigi.files import write_new
from espo_luigi.jobs.dask import SETTINGS_NAME
from espo_luigi.jobs.dask.settings import (
    SETTINGS,
    WITHOUT_PAGES,
    check_client,
    keep_freed_memory,
    limit_zarr,
    on_loopback,
    scratch_folder,
)
from espo_luigi.jobs.order import extra_folders
from espo_luigi.jobs.resources import GIB, Resources
from espo_luigi.jobs.schedulers.slurm import sizes
from espo_luigi.machine import limit_thread_pools

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

# Every worker runs this first: it adds the module folders of the session's process, and drops a cache of machine code
# that other accounts can write. A worker's own environment may lack this package.
_PRELOAD = """\
import sys

sys.path.extend(folder for folder in {folders!r} if folder not in sys.path)
try:
    from espo_luigi.files import ensure_numba_cache
except ImportError:
    pass
else:
    if fault := ensure_numba_cache():
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
# For the worker of this process. No nanny could restart it, so at Dask's 80 % it would pause for ever. Instead it goes
# on past the limit: too little memory ends as a MemoryError or Slurm's OUT_OF_MEMORY, and is retried with more. It
# spills by the size of Dask's data (`target`), because the process's memory does not shrink (`keep_freed_memory`).
_SETTINGS_IN_PROCESS = {f"distributed.worker.memory.{name}": False for name in ("spill", "pause", "terminate")}
# Nothing leaves the process, and Dask would not start where the user's own settings require it.
_SETTINGS_IN_PROCESS |= {"distributed.comm.require-encryption": False}


@contextmanager
def dask_session(
    resources: Resources,
    settings: Mapping[str, Any] | None = None,
    client: Mapping[str, Any] | None = None,
    *,
    dashboard: bool = False,
) -> Iterator[Client]:
    """Start a `LocalCluster` sized to `resources`, and close it at the end.

    A single worker lives in this process; it starts at once and may use the job's whole memory. Several workers are
    processes, each with a nanny that restarts it near its own limit. A task that has killed three workers fails as
    `KilledWorker`.

    Traffic stays on the node's loopback, by TLS over TCP, with keys of this session. UCX is not used, because it aborts
    where InfiniBand is set up badly. The dashboard takes any free port, so that jobs of a node do not collide. Without
    it, Dask's HTTP servers answer nothing.

    `settings` are Dask's (``array.slicing.split_large_chunks: False``), on top of the package's own. `client` holds
    further keywords for `LocalCluster`, as in the configuration's ``dask.client``. Raises ConfigurationError for a
    keyword that would open a server to other accounts, JobError where the node has no 127.0.0.1.
    """
    check_client(client or {})
    _require_loopback()
    limit_thread_pools(os.environ)
    if resources.n_workers == 1:
        # Not with nannies: they pause a worker until its process's memory shrinks.
        keep_freed_memory()
    limit_zarr(resources.threads_per_worker)
    keywords = _cluster_keywords(resources, client or {}, dashboard=dashboard)
    layout = SETTINGS | ({} if keywords["processes"] else _SETTINGS_IN_PROCESS) | ({} if dashboard else WITHOUT_PAGES)
    with tempfile.TemporaryDirectory(prefix="espo-dask-", dir=scratch_folder(), ignore_cleanup_errors=True) as scratch:
        keywords.setdefault("local_directory", scratch)
        with (
            dask.config.set({**layout, **(settings or {})}),
            LocalCluster(**keywords) as cluster,
            Client(cluster) as session,
        ):
            sizes = resources.n_workers, resources.threads_per_worker, resources.worker_memory_bytes / GIB
            logger.info("Dask: %d worker(s), %d thread(s) each, %.1f GiB each", *sizes)
            yield session


def _require_loopback() -> None:
    try:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
    except OSError as error:
        raise JobError(
            f"{socket.gethostname()} has no address 127.0.0.1 ({error}). Dask's scheduler and workers need it to reach "
            "each other, even where all else is IPv6. Ask the site to give it to the interface lo, or keep jobs off "
            "this node."
        ) from error


def fail_on_exit(client: Client) -> None:
    """Make ``sys.exit`` in a Dask task an error of that task; Dask lets it end the worker's event loop, and hangs.

    Tasks that are coroutine functions are an exception: Dask runs them in that event loop, and they still hang.
    """

    def call(function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except SystemExit as end:
            raise RuntimeError(f"a Dask task called sys.exit({end.code!r}); expected a return or an exception") from end

    # Not at the top of the module, so that workers get its code, where they lack this package.
    class ExitsFail(WorkerPlugin):
        name = "espo-exits-fail"

        def setup(self, worker: Any) -> None:
            executor = worker.executors["default"]
            executor.submit = functools.partial(executor.submit, call)

    try:
        client.register_plugin(ExitsFail())
    except OSError as error:
        # A worker died meanwhile; the scheduler gives the plugin to those that join later.
        logger.warning("a Dask worker was lost at the session's start: %s", error)


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
        # Schedulers and workers run any code that is sent to them, and every account of the node reaches its loopback.
        # A worker of this process has no address, unless the user gives it an interface.
        keywords |= {"protocol": "tls", "security": MemorySecurity.temporary()}
    if several and "interface" not in client:
        # Dask takes a host or an interface, never both.
        keywords["host"] = "127.0.0.1"
    if "dashboard_address" in client:
        client = {**client, "dashboard_address": on_loopback(client["dashboard_address"])}
    return {**keywords, **client}


def _without_dashboard(several: bool) -> type:
    """Return Dask's class of workers without a dashboard, which would import Bokeh for half a second in each.

    `dashboard_address=None` avoids it as well, but makes the worker listen beyond the loopback.
    """
    kind: Any = Nanny if several else Worker

    class Plain(kind):
        def __init__(self, *args: Any, **keywords: Any) -> None:
            super().__init__(*args, **{**keywords, "dashboard": False})

    return Plain


class MemorySecurity(Security):
    """A `Security` for a session on one node, made by `temporary()`: key and certificate are text and on no disk.

    Python's ssl reads keys from files, for which Dask would create a temporary folder. This class uses a file in
    memory, which no other account can open. A nanny hands the text to its worker through a pipe.
    """

    def _get_tls_context(self, tls: dict[str, Any], purpose: ssl.Purpose) -> ssl.SSLContext:
        with _in_memory(tls["cert"]) as cert, _in_memory(tls["key"]) as key:
            context: ssl.SSLContext = super()._get_tls_context({**tls, "cert": cert, "key": key}, purpose)
        return context


@contextmanager
def _in_memory(text: str) -> Iterator[str]:
    descriptor = os.memfd_create("espo-luigi", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def write_security(folder: Path) -> Security:
    """Write a key and a certificate for this session alone into its private folder; return them by their paths."""
    made: Any = Security.temporary()
    for name in ("tls_ca_file", "tls_scheduler_key"):
        write_new(folder / f"{name}.pem", getattr(made, name), 0o600)
    return read_security(folder)


def read_security(folder: Path) -> Security:
    """Return the keys that `write_security` wrote."""
    cert, key = str(folder / "tls_ca_file.pem"), str(folder / "tls_scheduler_key.pem")
    roles = ("client", "scheduler", "worker")
    pairs = {f"tls_{role}_cert": cert for role in roles} | {f"tls_{role}_key": key for role in roles}
    return Security(require_encryption=True, tls_ca_file=cert, **pairs)


class Failing:
    """Lets any thread end the work of the thread that created this, with an error.

    Dask waits for ever for workers that never come; the interrupt ends that wait.
    """

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._error: JobError | None = None

    def fail(self, error: JobError) -> None:
        """Make `raised` raise the error; outside of the main thread, which alone gets signals, only log it."""
        self._error = error
        logger.error("%s", error)
        if self._thread == threading.main_thread().ident:
            signal.pthread_kill(self._thread, signal.SIGINT)

    @contextmanager
    def raised(self) -> Iterator[None]:
        """Surround the work; raise the error if `fail` ended it."""
        try:
            yield
        except KeyboardInterrupt:
            if self._error is not None:
                raise self._error from None
            raise


@contextmanager
def prepared(
    folder: Path, failing: Failing, settings: Mapping[str, Any] | None, *, dashboard: bool
) -> Iterator[Security]:
    """Create a session's private folder with keys and settings for its workers, and apply the settings here as well."""
    used = {**SETTINGS, **_SETTINGS_OF_JOBS, **({} if dashboard else WITHOUT_PAGES), **(settings or {})}
    with failing.raised(), ExitStack() as stack:
        # Dask's warnings are logged, except for the refused connections of worker jobs that test the port.
        for name, level in {"distributed": logging.WARNING, "distributed.comm.tcp": logging.ERROR}.items():
            dasks = logging.getLogger(name)
            stack.callback(dasks.setLevel, dasks.level)
            dasks.setLevel(level)
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        stack.enter_context(dask.config.set(used))
        security = write_security(folder)
        _write_settings(folder / SETTINGS_NAME, security, used)
        yield security


def _write_settings(path: Path, security: Any, settings: Mapping[str, Any]) -> None:
    """Write the settings that Dask's workers read by ``DASK_CONFIG``."""
    keys: dict[str, Any] = {
        # Any account of the cluster's nodes could otherwise connect to a worker, which runs the code that it is sent.
        "distributed.comm.require-encryption": True,
        "distributed.comm.tls.ca-file": security.tls_ca_file,
        # All messages of a worker go to its job's log, including those of this package.
        "logging": {"distributed": "info", "espo_luigi": "info"},
    }
    for role in ("client", "worker"):
        for kind in ("key", "cert"):
            keys[f"distributed.comm.tls.{role}.{kind}"] = getattr(security, f"tls_{role}_{kind}")
    preload = path.with_suffix(".py")
    write_new(preload, _PRELOAD.format(folders=extra_folders()), 0o600)
    keys["distributed.worker.preload"] = [*dask.config.get("distributed.worker.preload", []), str(preload)]
    own = {name: value for name, value in settings.items() if not name.startswith("logging")}
    nested: dict[str, Any] = {}
    dask.config.set({**own, **keys}, config=nested)
    # JSON is YAML, and takes tuples.
    write_new(path, json.dumps(nested), 0o600)


@contextmanager
def allocation_session(
    resources: Resources, folder: Path, settings: Mapping[str, Any] | None = None, *, dashboard: bool = False
) -> Iterator[Client]:
    """Start workers on each node of this job, sized by `resources`; `folder` exists only during the session.

    Raises WorkersLostError if all workers end before the work does.
    """
    nodes = int(os.environ.get("SLURM_JOB_NUM_NODES", "1"))
    limit_thread_pools(os.environ)
    limit_zarr(resources.threads_per_worker)
    failing = Failing()
    with prepared(folder, failing, settings, dashboard=dashboard) as security:
        options = {"dashboard": dashboard, "dashboard_address": "127.0.0.1:0"}
        scheduler = {"cls": Scheduler, "options": {**options, "protocol": "tls://", "security": security}}
        with (
            SpecCluster(scheduler=scheduler, security=security) as cluster,
            Client(cluster) as client,
            _workers(_command(nodes, resources, cluster.scheduler_address), folder / SETTINGS_NAME, failing),
        ):
            n = nodes * resources.n_workers
            try:
                client.wait_for_workers(n, timeout=_LONGEST_START_SECONDS)
            except TimeoutError:
                client.wait_for_workers(1)
                logger.warning("only %d of %d Dask workers have come: beginning", len(cluster.scheduler.workers), n)
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
            why = f"srun, which runs Dask's workers, ended with {code} before the work was done"
            failing.fail(WorkersLostError(why))

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
