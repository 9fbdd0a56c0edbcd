"""The resources of a task, in the units of Slurm and of Dask, and checks that both agree.

Slurm's ``60GB`` is 60 GiB, but Dask's is 60 x 10^9 bytes. This module computes in bytes and writes Slurm's notation.
"""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import psutil

from espo_luigi.errors import SizingError

# For jobs whose rule and site set no value.
DEFAULT_MEMORY, DEFAULT_TIME = "4GB", "1:00:00"
LEAST_WORKER_BYTES = 2**28
_MEMORY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?\s*", re.IGNORECASE)
_DAYS = re.compile(r"(\d+)-(\d+)(?::(\d+))?(?::(\d+))?")
MIB, GIB = 2**20, 2**30
_UNITS = {"": MIB, "K": 2**10, "M": MIB, "G": GIB, "T": 2**40}


def parse_memory(text: str | int) -> int:
    """Return bytes from Slurm's notation (``4000`` is MiB; ``60GB``, ``60G`` and ``60GiB`` are 60 x 2^30 bytes)."""
    match = _MEMORY.fullmatch(str(text))
    if match is None or float(match[1]) == 0:
        raise SizingError(f"{text!r} is not an amount of memory; expected for example 60GB, 3500M or 4000 (MiB)")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def parse_time(text: str | int) -> int:
    """Return minutes, rounded up, from Slurm's notations: ``90``, ``90:00``, ``1:30:00``, ``2-12``, ``2-12:30:00``."""
    value = str(text).strip()
    with_days = _DAYS.fullmatch(value)
    if with_days:
        days, hours, minutes, seconds = (int(part or 0) for part in with_days.groups())
    else:
        parts = value.split(":")
        if not all(part.isdecimal() for part in parts) or len(parts) > 3:
            raise SizingError(f"{text!r} is not a duration; expected minutes (90), HH:MM:SS or D-HH:MM:SS")
        numbers = [int(part) for part in parts]
        days = 0
        hours, minutes, seconds = {1: (0, *numbers, 0), 2: (0, *numbers), 3: tuple(numbers)}[len(parts)]
    total = days * 1440 + hours * 60 + minutes + -(-seconds // 60)
    if total == 0:
        raise SizingError(f"time = {text!r} is no time at all; expected at least 1 (minute)")
    return total


def render_memory(n_bytes: int) -> str:
    """Return `n_bytes` in Slurm's notation, rounded down to whole MiB."""
    return f"{n_bytes // MIB}M"


def said_memory(n_bytes: int) -> str:
    """Return `n_bytes` for people, as they would write it: ``60GB`` or, if these are no whole GiB, ``3500MB``."""
    return f"{n_bytes // GIB}GB" if n_bytes % GIB == 0 else f"{n_bytes // MIB}MB"


def said_time(minutes: int) -> str:
    """Return minutes for people: ``8:00:00``, ``7-00:00:00``."""
    days, hours = divmod(minutes // 60, 24)
    return f"{days}-{hours:02d}:{minutes % 60:02d}:00" if days else f"{hours}:{minutes % 60:02d}:00"


def render_size(count: float) -> str:
    """Return bytes for people, in decimal units: ``1.5 GB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def mib(n_bytes: int) -> int:
    """Return `n_bytes` in MiB, rounded up, as a scheduler is asked for them."""
    return -(-n_bytes // MIB)


def headroom(memory_bytes: int) -> int:
    """Return the bytes kept for the scheduler, the client and the nannies: a tenth, 2 GiB at most."""
    return min(2 * GIB, memory_bytes // 10)


@dataclass(frozen=True)
class Resources:
    """A rule's request: Dask workers, CPUs, memory and time, the last two in Slurm's notation.

    Empty memory or time is filled in from the cluster's profile, or else is 4GB or an hour.
    """

    n_workers: int = 1
    cpus_per_task: int = 1
    memory: str = ""
    time: str = ""

    def as_text(self) -> dict[str, str]:
        """Return the values by their names."""
        return {name: str(value) for name, value in asdict(self).items()}

    @property
    def threads_per_worker(self) -> int:
        """Threads of each Dask worker."""
        return self.cpus_per_task // self.n_workers

    @property
    def memory_bytes(self) -> int:
        """Memory of the whole job, in bytes."""
        return parse_memory(self.completed().memory)

    @property
    def time_minutes(self) -> int:
        """Time limit, in whole minutes."""
        return parse_time(self.completed().time)

    @property
    def worker_memory_bytes(self) -> int:
        """Memory limit of each Dask worker, in bytes: an equal share of the memory without the headroom."""
        return (self.memory_bytes - headroom(self.memory_bytes)) // self.n_workers

    def check(self, rule: str) -> None:
        """Raise `SizingError` if the numbers contradict each other; `rule` is named in the message."""
        try:
            _ = self.memory_bytes, self.time_minutes
        except SizingError as error:
            raise SizingError(f"{rule}: {error}") from None
        for name in ("n_workers", "cpus_per_task"):
            if getattr(self, name) < 1:
                raise SizingError(f"{rule}: {name} = {getattr(self, name)}; expected at least 1")
        if self.cpus_per_task % self.n_workers:
            raise SizingError(self._uneven(rule))
        if self.worker_memory_bytes < LEAST_WORKER_BYTES:
            raise SizingError(
                f"{rule}: memory = {self.memory} leaves {self.worker_memory_bytes / MIB:.0f} MiB for each of "
                f"{self.n_workers} Dask workers; a worker needs 256 MiB at least: raise memory or lower n_workers"
            )

    def _uneven(self, rule: str) -> str:
        down = self.cpus_per_task - self.cpus_per_task % self.n_workers
        choices = sorted({max(down, self.n_workers), down + self.n_workers})
        return (
            f"{rule}: cpus_per_task = {self.cpus_per_task} cannot be shared equally by n_workers = {self.n_workers}; "
            f"the nearest cpus_per_task that can: {' or '.join(map(str, choices))}"
        )

    def completed(self, memory: str = "", time: str = "") -> Resources:
        """Return the same request; empty memory and time become the site's, else the defaults."""
        return replace(self, memory=self.memory or memory or DEFAULT_MEMORY, time=self.time or time or DEFAULT_TIME)

    def fitted(self, cpus: int, memory_bytes: int) -> Resources:
        """Return the same request, no larger than `cpus` and `memory_bytes`."""
        if self.cpus_per_task <= cpus and self.memory_bytes <= memory_bytes:
            return self
        n_cpus = min(self.cpus_per_task, cpus)
        n_workers = min(self.n_workers, n_cpus)
        memory = self.memory if self.memory_bytes <= memory_bytes else render_memory(memory_bytes)
        return replace(self, n_workers=n_workers, cpus_per_task=n_cpus - n_cpus % n_workers, memory=memory)


def machine_cpus() -> int:
    """Return the CPUs that this process may use: of its affinity, or its cgroup's quota if that is less."""
    quota = cgroup_cpu_quota(_own_cgroup(), Path("/sys/fs/cgroup"))
    there = len(os.sched_getaffinity(0))
    # A part of a CPU is no place for a job; a job needs one in any case.
    return there if quota is None else max(1, min(there, int(quota)))


def machine_memory() -> int:
    """Return the bytes of memory that this process may use: the machine's, or its cgroup's if that is less."""
    limit = cgroup_memory_limit(_own_cgroup(), Path("/sys/fs/cgroup"))
    total = int(psutil.virtual_memory().total)
    return total if limit is None else min(total, limit)


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
