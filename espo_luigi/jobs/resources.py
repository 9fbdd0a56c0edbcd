"""What a job asks for: its resources, in the units of Slurm and of Dask, and the options that every scheduler takes.

Slurm's ``60GB`` is 60 GiB, but Dask's is 60 x 10^9 bytes. This module computes in bytes and writes Slurm's notation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from espo_luigi.errors import SizingError
from espo_luigi.jobs.keys import NAMES, TABLE, WHOLE, Kind, as_text, key, keys_of

# For jobs whose rule and site set no value.
DEFAULT_MEMORY, DEFAULT_TIME = "4GB", "1:00:00"
LEAST_WORKER_BYTES = 2**28
_MEMORY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?\s*", re.IGNORECASE)
_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
MIB, GIB = 2**20, 2**30
_UNITS = {"": MIB, "K": 2**10, "M": MIB, "G": GIB, "T": 2**40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?(?:e\d+)?)\s*([KMGTP]?)(I?)B?\s*", re.IGNORECASE)


def parse_memory(text: str | int) -> int:
    """Return bytes from Slurm's notation (``4000`` is MiB; ``60GB``, ``60G`` and ``60GiB`` are 60 x 2^30 bytes)."""
    match = _MEMORY.fullmatch(str(text))
    if match is None or float(match[1]) == 0:
        raise SizingError(f"{text!r} is not an amount of memory; expected for example 60GB, 3500M or 4000 (MiB)")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def parse_time(text: str | int) -> int:
    """Return minutes, rounded up, from Slurm's notations: ``90``, ``90:00``, ``1:30:00``, ``2-12``, ``2-12:30:00``."""
    match = _TIME.fullmatch(str(text).strip())
    if match is None:
        raise SizingError(f"{text!r} is not a duration; expected minutes (90), HH:MM:SS or D-HH:MM:SS")
    days, first, second, third = match.groups()
    # Without days, a single number is minutes, and two are minutes and seconds.
    parts = (days, first, second, third) if days or third else (0, 0, first, second)
    days, hours, minutes, seconds = (int(part or 0) for part in parts)
    total = days * 1440 + hours * 60 + minutes + -(-seconds // 60)
    if total == 0:
        raise SizingError(f"time = {text!r} is no time at all; expected at least 1 (minute)")
    return total


def parse_size(text: str) -> int:
    """Return the bytes of a size on a disk: ``20TB`` is 20 x 10^12, ``20TiB`` 20 x 2^40, a bare number bytes."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise SizingError(f"{text!r} is not a size; expected for example 20TB, 500GB or 1.5TiB")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** (" KMGTP".index(match[2].upper() or " ")))


# The kinds of amounts, which are written in Slurm's notation.
MEMORY = Kind("memory", lambda value: parse_memory(as_text(value)))
TIME = Kind("time", lambda value: parse_time(as_text(value)))
# As disks have it.
SIZE = Kind("size", lambda value: parse_size(as_text(value)))


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
    """A rule's request: Dask workers, CPUs, memory and time.

    `completed` makes values of memory and time, in bytes and minutes, which orders carry.

    Parameters
    ----------
    n_workers : int
        Dask workers (processes) of the job, which share its CPUs and memory equally.
    cpus_per_task : int
        CPUs of the job, a multiple of `n_workers`.
    memory : str or int
        Memory of the job: ``"60GB"`` in Slurm's notation (units of 1024), or bytes. Empty: that of the cluster's
        profile, else 4GB.
    time : str or int
        Time limit of the job: ``"2:00:00"`` in Slurm's notation, or minutes. Empty: that of the cluster's profile, else
        an hour.
    """

    n_workers: int = key(1, "Dask workers of the job", WHOLE)
    cpus_per_task: int = key(1, "CPUs of the job, a multiple of n_workers", WHOLE)
    memory: str | int = key("", "memory of the job, such as 60GB", MEMORY)
    time: str | int = key("", "time limit, such as 2:00:00 or 90 (minutes)", TIME)

    def as_text(self) -> dict[str, str]:
        """Return the values by their names."""
        memory = said_memory(self.memory) if isinstance(self.memory, int) else self.memory
        return {name: str(value) for name, value in (asdict(self) | {"memory": memory}).items()}

    @property
    def threads_per_worker(self) -> int:
        """Threads of each Dask worker."""
        return self.cpus_per_task // self.n_workers

    @property
    def memory_bytes(self) -> int:
        """Memory of the whole job, in bytes."""
        return self.memory if isinstance(self.memory, int) else parse_memory(self.memory or DEFAULT_MEMORY)

    @property
    def time_minutes(self) -> int:
        """Time limit, in whole minutes."""
        return self.time if isinstance(self.time, int) else parse_time(self.time or DEFAULT_TIME)

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
        if rest := self.cpus_per_task % self.n_workers:
            down = self.cpus_per_task - rest
            choices = sorted({max(down, self.n_workers), down + self.n_workers})
            raise SizingError(
                f"{rule}: cpus_per_task = {self.cpus_per_task} cannot be shared equally by n_workers = "
                f"{self.n_workers}; the nearest cpus_per_task that can: {' or '.join(map(str, choices))}"
            )
        if self.worker_memory_bytes < LEAST_WORKER_BYTES:
            left = f"leaves {self.worker_memory_bytes / MIB:.0f} MiB for each of {self.n_workers} Dask workers"
            raise SizingError(
                f"{rule}: memory = {said_memory(self.memory_bytes)} {left}; a worker needs 256 MiB at least: raise "
                "memory or lower n_workers"
            )

    def completed(self, memory: str = "", time: str = "") -> Resources:
        """Return the same request in bytes and minutes; empty memory and time become the site's, else the defaults.

        Raises `SizingError` for a text that is no amount.
        """
        asked = replace(self, memory=self.memory or memory, time=self.time or time)
        return replace(self, memory=asked.memory_bytes, time=asked.time_minutes)

    def fitted(self, cpus: int, memory_bytes: int) -> Resources:
        """Return the same request, no larger than `cpus` and `memory_bytes`."""
        if self.cpus_per_task <= cpus and self.memory_bytes <= memory_bytes:
            return self
        n_cpus = min(self.cpus_per_task, cpus)
        n_workers = min(self.n_workers, n_cpus)
        memory = min(self.memory_bytes, memory_bytes // MIB * MIB)
        return replace(self, n_workers=n_workers, cpus_per_task=n_cpus - n_cpus % n_workers, memory=memory)


@dataclass(frozen=True)
class JobOptions:
    """The options of a job that every scheduler takes, besides CPUs, memory and time.

    The job must not run on the nodes in `exclude`. `extra` holds any further option of the scheduler by its long name
    without dashes (``{"reservation": "maintenance"}``). An empty value makes a flag, ``{"exclusive": ""}``. `setup` is
    bash, run unchanged before the job's command. The values of `environment` are exported literally. `python` replaces
    the driver's own Python: a path, or a name that is looked up in the ``PATH`` that `setup` leaves. `scratch` is a
    folder on the node, a literal path or a path that begins with a variable (``$SLURM_TMPDIR/work``). The job finds it
    in ``ESPO_NODE_SCRATCH``.
    """

    exclude: tuple[str, ...] = key((), "nodes on which no job may run, such as n[1-3],m1", NAMES)
    extra: Mapping[str, str] = key({}, 'further directives, {"reservation": "maintenance"}', TABLE)
    setup: str = key("", "bash lines before the work: module load …, source …/activate")
    environment: Mapping[str, str] = key({}, "variables of the job's environment", TABLE)
    scratch: str | None = key(None, "fast folder on the node")
    python: str = key("", "Python of the jobs, such as python: the one that setup activates; empty: the driver's")


@dataclass(frozen=True)
class PackOptions(JobOptions):
    """The options that make several tasks of a rule one submission; `bundles.Bundling` reads them."""

    pack: str | None = key(None, "most tasks of one submission, a bundle; empty: 1")
    bundle: str | None = key(
        None, "what a bundle is: pilot (the default), array or steps (the default if an option of steps is given)"
    )
    pack_at_once: str | None = key(
        None, "members of a bundle that run at once; empty: of steps all, of a pilot 1, of an array any number"
    )
    pack_per_step: str | None = key(None, "members of a bundle that share a step; empty: 1")
    step_options: Mapping[str, str] = key({}, 'options of each step of a bundle, {"overlap": ""}', TABLE)


# The kinds of `bundle`: see `bundles`.
STEPS, ARRAY, PILOT = "steps", "array", "pilot"


def names_of(options: type[JobOptions], kind: Kind) -> tuple[str, ...]:
    """Return the names of a scheduler's options whose values are of a kind."""
    return tuple(name for name, one in keys_of(options).items() if one.kind is kind)


def own_names(kind: type[JobOptions]) -> tuple[str, ...]:
    """Return the names of the options that only this scheduler has."""
    return tuple(name for name in keys_of(kind) if name not in keys_of(JobOptions))


PACKING = own_names(PackOptions)
