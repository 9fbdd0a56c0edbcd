"""Dask sessions: inside of a job, on all nodes of a job, or with workers in jobs of their own.

Gives a client that is connected and as large as the allocation: `session` in a job, `jobqueue` with workers, and if
asked for the scheduler, in separate jobs. `settings` are those of Dask. Here stands what others know of worker jobs:
their request to the scheduler, as a value, and the text of their script.
"""

from __future__ import annotations

import fnmatch
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from espo_luigi.errors import SizingError
from espo_luigi.jobs.keys import NAMES, TEXT, WHOLE, Kind, as_text, key
from espo_luigi.jobs.resources import (
    DEFAULT_MEMORY,
    DEFAULT_TIME,
    LEAST_WORKER_BYTES,
    MEMORY,
    MIB,
    TIME,
    JobOptions,
    headroom,
    names_of,
    parse_memory,
    parse_time,
    said_memory,
)
from espo_luigi.jobs.schedulers import SCHEDULERS, script
from espo_luigi.jobs.schedulers.gridengine import FLAGS
from espo_luigi.jobs.schedulers.script import ScriptValues
from espo_luigi.jobs.settings import Site
from espo_luigi.machine import THREAD_POOLS

# The variable of a worker's job that names the folder into which Dask spills.
WORKER_FOLDER = "espo_dask_folder"
# The file of the workers' Dask settings, in their session's folder.
SETTINGS_NAME = "dask.yaml"
# Directives that ask for GPUs and are no options of this package.
GPU_DIRECTIVES = frozenset({"gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task"})


def _lines(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping) or not isinstance(value, Sequence):
        raise ValueError("expected a list such as ['--reservation=name']")
    return [as_text(line) for line in value]


@dataclass(frozen=True)
class WorkerTable:
    """The entries of `worker_jobs` that become options, or other entries of `WorkerJobs`."""

    n: int = key(0, "in place of `jobs`, the number of Dask workers (`scale(n=10)`)", WHOLE)
    queue: str = key("", "the partition or queue", said_default="the rule's")
    virtual_env: str = key("", "the environment whose `bin/python` the workers run")
    resource_spec: str = key(
        "", 'Grid Engine\'s `-l`: `"h_vmem=64G"` (not 64GB), of each slot unless `memory_per = job`'
    )
    job_extra: tuple[str, ...] = key(
        (), 'further directives: `["--reservation=name"]`, `["-pe threaded 10"]`', Kind("list", _lines)
    )
    # These are of the job that holds Dask's scheduler, has one CPU, and mostly waits.
    scheduler_profile: str = key("", "a profile for the task's own job, with a partition for jobs that wait")
    scheduler_memory: str = key(
        "", "the memory of the task's own job", MEMORY, said_default="the scheduler profile's, else 4GB"
    )
    scheduler_time: str = key(
        "", "the time of the task's own job", TIME, said_default="the scheduler profile's, else the rule's `time`"
    )


@dataclass(frozen=True)
class WorkerJobs:
    """The jobs whose Dask workers compute for a task, or for a session without a task.

    - `folder` is on a file system that all nodes see; only its owner can read it.
    - `options` are the scheduler's options by their names.
    """

    scheduler: str
    workdir: str
    log_pattern: str
    folder: str
    options: Mapping[str, Any] = field(default_factory=dict)
    jobs: int = key(1, "the number of jobs (`scale(jobs=10)`)", WHOLE, said_default="the rule's `n_workers`")
    minimum_jobs: int = key(0, "with `maximum_jobs`: the fewest jobs", WHOLE)
    maximum_jobs: int = key(0, "adaptive: as many jobs as there is work for, at most this number", WHOLE)
    cores: int = key(1, "the CPUs of each job that Dask uses", WHOLE, said_default="the share of the rule's CPUs")
    memory_bytes: int = key(
        parse_memory(DEFAULT_MEMORY),
        "the memory of each job that Dask uses",
        MEMORY,
        name="memory",
        said_default="the share of the rule's memory",
    )
    walltime_minutes: int = key(
        parse_time(DEFAULT_TIME), "the time limit of each job", TIME, name="walltime", said_default="the rule's `time`"
    )
    processes: int = key(1, "Dask workers of a job, which share its cores and memory equally", WHOLE)
    job_cpu: int = key(
        0, "the CPUs that each job asks for, if it needs more than Dask uses", WHOLE, said_default="`cores`"
    )
    job_mem_bytes: int = key(
        0,
        "the memory that each job asks for, if it needs more than Dask uses",
        MEMORY,
        name="job_mem",
        said_default="`memory`",
    )
    memory_cap_bytes: int | None = None
    wait_for_workers: str = key(
        "0",
        'the work starts when this number or percentage (`"50%"`) of the workers is there; 0: at once',
    )
    idle_timeout: str = key("", 'a session ends after this time without work (`"2 hours"`)')
    death_timeout: int = key(60, "seconds after which a worker without a scheduler ends", WHOLE)
    interface: str = key("", "the network interface, such as `ib0`")

    @property
    def most_jobs(self) -> int:
        """The largest number of jobs at a time."""
        return self.maximum_jobs or self.jobs

    @property
    def said(self) -> str:
        """The number of jobs, in words."""
        return f"{self.minimum_jobs} to {self.maximum_jobs} job(s)" if self.maximum_jobs else f"{self.jobs} job(s)"

    @property
    def cpus(self) -> int:
        """The CPUs of a job."""
        return max(self.job_cpu, self.cores)

    @property
    def dask_memory_bytes(self) -> int:
        """The share of a job's memory for Dask's workers; the rest is for their nannies."""
        return self.memory_bytes - headroom(self.memory_bytes)

    @property
    def asked_memory_bytes(self) -> int:
        """The memory that a job asks for."""
        return max(self.memory_bytes, self.job_mem_bytes)

    @property
    def workers_to_wait_for(self) -> int:
        """The number of workers that the work waits for."""
        # Where Dask adapts the number of jobs, it submits only the fewest before there is work.
        all_of_them = (self.minimum_jobs if self.maximum_jobs else self.jobs) * self.processes
        text = self.wait_for_workers.strip()
        wanted = math.ceil(float(text[:-1]) * all_of_them / 100) if text.endswith("%") else int(text)
        return min(wanted, all_of_them)

    @property
    def job_options(self) -> JobOptions:
        """The options as the scheduler's module takes them."""
        # The lists of an order that comes from JSON are tuples again.
        kind = SCHEDULERS[self.scheduler].OPTIONS
        lists = {name: tuple(self.options[name]) for name in names_of(kind, NAMES) if name in self.options}
        return kind(**{**self.options, **lists})

    def check(self, label: str) -> None:
        """Raise `SizingError` if the numbers contradict each other, with `label` in the message.

        Raise `SubmissionError` for a value that cannot be passed on safely.
        """
        try:
            _ = self.workers_to_wait_for
            for name in ("jobs", "cores", "processes"):
                if getattr(self, name) < 1:
                    raise ValueError(f"{name} = {getattr(self, name)}; expected at least 1")
            if self.maximum_jobs and self.minimum_jobs > self.maximum_jobs:
                raise ValueError(f"minimum_jobs = {self.minimum_jobs} is more than maximum_jobs = {self.maximum_jobs}")
            if self.cores % self.processes:
                raise ValueError(f"cores = {self.cores} cannot be shared equally by processes = {self.processes}")
            if self.dask_memory_bytes // self.processes < LEAST_WORKER_BYTES:
                raise ValueError(
                    f"memory = {said_memory(self.memory_bytes)} leaves less than 256 MiB for each of {self.processes} "
                    "Dask worker(s): raise memory or lower processes"
                )
        except ValueError as error:
            raise SizingError(f"{label}: worker_jobs: {error}") from None
        SCHEDULERS[self.scheduler].header(self.values("check", "check"))
        prologue(self, "check", "tls://check:1")

    def refusals(self, site: Site) -> list[str]:
        """Return the violations of the site's rules."""
        amounts = {"memory": self.asked_memory_bytes, "cpus": self.cpus, "time": self.walltime_minutes}
        said = site.exceeded({"cpus": "cores", "time": "walltime"}, **amounts, jobs=self.most_jobs)
        options = {**self.options, **(self.options.get("extra") or {})}
        said += [
            f"{name} = {value} is not for Dask workers, {site.where} says (not_for_workers: {pattern})"
            for name, patterns in site.not_for_workers.items()
            if (value := str(options.get(name) or ""))
            for pattern in patterns
            if any(fnmatch.fnmatchcase(part.strip(), pattern) for part in value.split(","))
        ]
        return [f"worker_jobs: {words}" for words in said]

    def fitted(self, cpus: int | None, memory_bytes: int | None) -> WorkerJobs:
        """Return the same jobs, each cut to the size of a node."""
        cores = min(self.cores, cpus or self.cores)
        processes = max(n for n in range(1, min(self.processes, cores) + 1) if cores % n == 0)
        memory = min(self.memory_bytes, memory_bytes or self.memory_bytes)
        job_cpu = min(self.job_cpu, cpus or self.job_cpu)
        return replace(self, cores=cores, processes=processes, memory_bytes=memory, job_cpu=job_cpu)

    def grown(self, factor: float) -> WorkerJobs:
        """Return the same jobs with `factor` times the memory, up to the cap."""
        if factor <= 1:
            return self
        memory = int(self.memory_bytes * factor) // MIB * MIB
        return replace(self, memory_bytes=min(memory, max(self.memory_cap_bytes or memory, self.memory_bytes)))

    def session_folder(self, owner: str) -> str:
        """Return the private folder of the session of the job called `owner`."""
        return f"{self.folder}/{owner}"

    def values(self, owner: str, name: str) -> ScriptValues:
        """Return the values of the script of the job called `name` in the session called `owner`."""
        return ScriptValues(
            name=name,
            attempt=1,
            argv=(),
            cpus_per_task=self.cpus,
            memory_bytes=self.asked_memory_bytes,
            time_minutes=self.walltime_minutes,
            log_pattern=self.log_pattern,
            claim_file="",
            workdir=self.workdir,
            options=self.job_options,
            environment_file=f"{self.session_folder(owner)}/environment.sh",
        )


@dataclass(frozen=True)
class Directive:
    """The request of a line that is written for dask-jobqueue: `options` by their names, and amounts.

    `memory_bytes` is for each slot, if `per_slot`.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    cpus: int = 0
    memory_bytes: int = 0
    time_minutes: int = 0
    per_slot: bool = False


def read_directive(scheduler: str, line: str, options: Mapping[str, Any]) -> Directive:
    """Read an entry of `job_extra`, such as ``--gres=gpu:1`` or ``-pe threaded 10``. Raises ValueError."""
    flag, *rest = shlex.split(line) or [""]
    if not flag.startswith("--" if scheduler == "slurm" else "-"):
        raise ValueError("expected --NAME=VALUE" if scheduler == "slurm" else "expected -NAME")
    name, _, value = flag.lstrip("-").partition("=")
    value = value or " ".join(rest)
    if scheduler == "sge":
        if name == "pe" and len(rest) == 2:
            return Directive({"parallel_environment": rest[0]}, cpus=int(rest[1]))
        if name == "l":
            return read_resources(scheduler, value, options)
        if name in ("cwd", "V", "j"):  # every job gets these anyway
            return Directive()
        name = FLAGS.get(name, name)
    if name in names_of(SCHEDULERS[scheduler].OPTIONS, TEXT):
        return Directive({name: value})
    return Directive({"extra": {**options["extra"], name: value}})


def read_resources(scheduler: str, text: str, options: Mapping[str, Any]) -> Directive:
    """Read `resource_spec`, with memory and time apart, so that limits apply to them. Raises ValueError."""
    if scheduler != "sge":
        raise ValueError("it is Grid Engine's; expected job_extra, or gres")
    parts = {part.partition("=")[0]: part for part in map(str.strip, text.split(",")) if part}
    memory = parts.pop(options["memory_resource"], "=0").partition("=")[2]
    time = parts.pop("h_rt", "=0").partition("=")[2]
    listed = ",".join(filter(None, [options["extra"].get("l"), *parts.values()]))
    return Directive(
        {"extra": {**options["extra"], "l": listed}} if parts else {},
        memory_bytes=_bytes(memory),
        # A bare number is seconds.
        time_minutes=-(-int(time) // 60) if time.isdecimal() else parse_time(time),
        per_slot=options["memory_per"] == "slot",
    )


def _bytes(text: str) -> int:
    """Read an amount of Grid Engine: a bare number is bytes, g is 10^9, G is 2^30."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgG]?)", text)
    if found is None:
        raise ValueError(f"{text!r} is no amount of memory; expected for example 4G")
    return int(float(found[1]) * (1000 if found[2].islower() else 1024) ** " KMG".index(found[2].upper() or " "))


def prologue(workers: WorkerJobs, owner: str, scheduler_address: str) -> list[str]:
    """Return the bash of a worker's job before its command.

    The job ends at once if its scheduler's port refuses connections, since its session is over then. Raises
    SubmissionError if a value cannot be passed safely.
    """
    options = workers.job_options
    host, _, port = scheduler_address.partition("://")[2].rpartition(":")
    scratch = f"${{{script.SCRATCH_VARIABLE}:-${{TMPDIR:-/tmp}}}}"
    return [
        f"unset {script.CLAIM_VARIABLE} {script.OWNER_VARIABLE} {script.START_VARIABLE} {script.NAME_VARIABLE}",
        *script.option_exports(options),
        *(f"export {name}=${{{name}:-1}}" for name in THREAD_POOLS),
        f"export ZARR_THREADING__MAX_WORKERS={workers.cores // workers.processes}",
        f"export DASK_CONFIG={shlex.quote(f'{workers.session_folder(owner)}/{SETTINGS_NAME}')}",
        *script.rendered_setup(options),
        script.render_cd(workers.workdir),
        f"if LC_ALL=C timeout 20 bash -c ': < /dev/tcp/$1/$2' - {shlex.quote(host.strip('[]'))} {shlex.quote(port)} "
        "2>&1 | grep -q 'Connection refused'; then",
        "    echo 'The scheduler of this worker has ended: nothing to do.'; exit 0",
        "fi",
        # Workers spill pickles, so their folder must be private: another account could own a folder of Dask's name.
        f'{WORKER_FOLDER}=$(mktemp -d "{scratch}/espo-dask-XXXXXXXXXX") || exit 1',
        f"trap 'rm -rf -- \"${WORKER_FOLDER}\"' EXIT",
    ]
