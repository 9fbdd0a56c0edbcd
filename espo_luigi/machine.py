"""The CPUs, the memory and the threads that a process may use on this machine, and the end of a process."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import NoReturn

import psutil

# Each Dask thread computes with a single thread: pools of BLAS, OpenMP and numba would multiply a worker's share.
THREAD_POOLS = (
    *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "NUMEXPR_NUM_THREADS"),
    "BLOSC_NTHREADS",
)


def machine_cpus() -> int:
    """Return the CPUs that this process may use: of its affinity, or its cgroup's quota if that is less."""
    quota = cgroup_cpu_quota(_own_cgroup(), Path("/sys/fs/cgroup"))
    there = len(os.sched_getaffinity(0))
    # A part of a CPU is no place for a job; a job needs one in any case.
    return there if quota is None else max(1, min(there, int(quota)))


def given_cpus() -> int:
    """Return the CPUs for a process that computes alone: `machine_cpus`, or those that a job gives its task if less.

    Without cgroups or binding, a job sees all CPUs of its node.
    """
    given = (os.environ.get(name, "") for name in ("SLURM_CPUS_PER_TASK", "NSLOTS"))
    return min([machine_cpus(), *(int(number) for number in given if number.isdecimal() and int(number))])


def machine_memory() -> int:
    """Return the bytes of memory that this process may use: the machine's, or its cgroup's if that is less."""
    limit = cgroup_memory_limit(_own_cgroup(), Path("/sys/fs/cgroup"))
    total = int(psutil.virtual_memory().total)
    return total if limit is None else min(total, limit)


def limit_thread_pools(environment: MutableMapping[str, str]) -> None:
    """Limit the thread pools of computing libraries to a single thread in `environment`, unless the user set them."""
    for name in THREAD_POOLS:
        environment.setdefault(name, "1")


def _own_cgroup() -> str:
    try:
        return Path("/proc/self/cgroup").read_text()
    except OSError:
        return ""


def cgroup_cpu_quota(own: str, root: Path) -> float | None:
    """Return the least number of CPUs that the cgroups in `own` and all above them allow; None without any quota.

    The parameters are those of `cgroup_memory_limit`. A container has such a quota (``docker run --cpus 1``).
    """
    quotas = []
    for line in own.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            quotas += [text.split() for text in _texts_upward(root, path, "cpu.max")]
        elif "cpu" in controllers.split(","):
            folder = root / controllers if (root / controllers).is_dir() else root / "cpu"
            amounts, periods = (_texts_upward(folder, path, f"cpu.cfs_{name}_us") for name in ("quota", "period"))
            quotas += [list(pair) for pair in zip(amounts, periods, strict=False)]
    known = [(int(amount), int(period)) for amount, period in quotas if amount.isdecimal() and period.isdecimal()]
    return min((amount / period for amount, period in known if amount and period), default=None)


def cgroup_memory_limit(own: str, root: Path) -> int | None:
    """Return the lowest memory limit, in bytes, of the cgroups in `own` and of all above them; None without any.

    Slurm limits the step or the job, which are above the leaf that a process is in.

    Parameters
    ----------
    own
        What ``/proc/self/cgroup`` holds: ``0::/path`` (version 2), ``9:memory:/path`` (version 1).
    root
        Where cgroups are mounted: ``/sys/fs/cgroup``.
    """
    limits = []
    for line in own.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            limits += _limits_upward(root, path, "memory.max")
        elif "memory" in controllers.split(","):
            limits += _limits_upward(root / "memory", path, "memory.limit_in_bytes")
    return min(limits, default=None)


def _limits_upward(mount: Path, path: str, name: str) -> list[int]:
    return [int(limit) for limit in _texts_upward(mount, path, name) if limit.isdecimal()]


def _texts_upward(mount: Path, path: str, name: str) -> list[str]:
    relative = Path(path.lstrip("/"))
    # In a container the path may be the host's: the mount itself then holds the container's limit.
    files = [mount / folder / name for folder in (relative, *relative.parents)]
    return [file.read_text().strip() for file in files if file.is_file()]


def end_with(run: Callable[[], int]) -> NoReturn:
    """Call `run` and end this process with its exit code.

    Threads, exit handlers and processes that a task left behind cannot keep the job, and so its allocation, alive.
    """
    code = 1
    try:
        code = run()
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    try:
        for handler in logging.getLogger().handlers:
            handler.flush()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)
