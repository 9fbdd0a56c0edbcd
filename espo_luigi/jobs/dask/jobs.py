"""Dask workers that run in separate jobs: their request to the scheduler, as a value, and the text of their script."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from espo_luigi.errors import SizingError
from espo_luigi.jobs.dask.local import THREAD_POOLS
from espo_luigi.jobs.resources import (
    DEFAULT_MEMORY,
    DEFAULT_TIME,
    LEAST_WORKER_BYTES,
    headroom,
    parse_memory,
    parse_time,
    render_memory,
)
from espo_luigi.jobs.schedulers import SCHEDULERS
from espo_luigi.jobs.schedulers.script import (
    CLAIM_VARIABLE,
    LISTS,
    NAME_VARIABLE,
    SCRATCH_VARIABLE,
    START_VARIABLE,
    JobOptions,
    ScriptValues,
    option_exports,
    render_cd,
    rendered_setup,
    workers_name,
)
from espo_luigi.jobs.schedulers.site import Site

# The variable of a worker's job that names the folder into which Dask spills.
WORKER_FOLDER = "espo_dask_folder"
# The file of the workers' Dask settings, in their session's folder.
SETTINGS_NAME = "dask.yaml"


@dataclass(frozen=True)
class WorkerJobs:
    """The jobs whose Dask workers compute for a task, or for a session without a task.

    - Each of `jobs` asks for `cores` CPUs, `memory` and `walltime`. Its `processes` workers share them equally.
    - `job_cpu` and `job_mem` ask for more CPUs and memory than Dask uses.
    - With `maximum_jobs`, Dask adapts the number of jobs to the work, but keeps at least `minimum_jobs`.
    - The work begins once `wait_for_workers` workers are there, a number or a share (``50%``).
    - A session without work ends after `idle_timeout`, a worker without a scheduler after `death_timeout` seconds.
    - `interface` is the network interface, such as ``ib0``.
    - `folder` is on a file system that all nodes see; only its owner can read it.
    - `options` are the scheduler's options by their names.
    """

    scheduler: str
    workdir: str
    log_pattern: str
    folder: str
    options: Mapping[str, Any] = field(default_factory=dict)
    jobs: int = 1
    minimum_jobs: int = 0
    maximum_jobs: int = 0
    cores: int = 1
    job_cpu: int = 0
    processes: int = 1
    memory: str = DEFAULT_MEMORY
    job_mem: str = ""
    memory_cap_bytes: int | None = None
    walltime: str = DEFAULT_TIME
    wait_for_workers: str = "0"
    idle_timeout: str = ""
    death_timeout: int = 60
    interface: str = ""

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
    def memory_bytes(self) -> int:
        """The memory of a job."""
        return parse_memory(self.memory)

    @property
    def dask_memory_bytes(self) -> int:
        """The share of a job's memory for Dask's workers; the rest is for their nannies."""
        return self.memory_bytes - headroom(self.memory_bytes)

    @property
    def asked_memory(self) -> str:
        """The memory that a job asks for."""
        return max(self.memory, self.job_mem or self.memory, key=parse_memory)

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
        values: dict[str, Any] = {
            name: tuple(value) if name in LISTS else value for name, value in self.options.items()
        }
        return SCHEDULERS[self.scheduler].OPTIONS(**values)

    def check(self, label: str) -> None:
        """Raise `SizingError` if the numbers contradict each other; `label` is named in the message."""
        try:
            _ = self.memory_bytes, self.asked_memory, parse_time(self.walltime), self.workers_to_wait_for
        except (SizingError, ValueError) as error:
            raise SizingError(f"{label}: worker_jobs: {error}") from None
        for name in ("jobs", "cores", "processes"):
            if getattr(self, name) < 1:
                raise SizingError(f"{label}: worker_jobs: {name} = {getattr(self, name)}; expected at least 1")
        if self.maximum_jobs and self.minimum_jobs > self.maximum_jobs:
            raise SizingError(
                f"{label}: worker_jobs: minimum_jobs = {self.minimum_jobs} is more than "
                f"maximum_jobs = {self.maximum_jobs}"
            )
        if self.cores % self.processes:
            raise SizingError(
                f"{label}: worker_jobs: cores = {self.cores} cannot be shared equally by processes = {self.processes}"
            )
        if self.dask_memory_bytes // self.processes < LEAST_WORKER_BYTES:
            raise SizingError(
                f"{label}: worker_jobs: memory = {self.memory} leaves less than 256 MiB for each of {self.processes} "
                "Dask worker(s): raise memory or lower processes"
            )

    def check_text(self) -> None:
        """Raise `SubmissionError` for a value that cannot be passed on safely."""
        SCHEDULERS[self.scheduler].header(self.values("check"))
        prologue(self, "check", "tls://check:1")

    def refusals(self, site: Site) -> list[str]:
        """Return the violations of the site's rules."""
        amounts: dict[str, str | int] = {"memory": self.asked_memory, "cpus": self.cpus}
        amounts |= {"time": self.walltime, "jobs": self.most_jobs}
        said = site.exceeded({"cpus": "cores", "time": "walltime"}, **amounts)
        return [f"worker_jobs: {words}" for words in (*said, *site.refused_for_workers(self.options))]

    def fitted(self, cpus: int | None, memory_bytes: int | None) -> WorkerJobs:
        """Return the same jobs, each cut to the size of a node."""
        cores = min(self.cores, cpus or self.cores)
        processes = max(n for n in range(1, min(self.processes, cores) + 1) if cores % n == 0)
        memory = min(self.memory_bytes, memory_bytes or self.memory_bytes)
        text = self.memory if memory == self.memory_bytes else render_memory(memory)
        return replace(
            self, cores=cores, processes=processes, memory=text, job_cpu=min(self.job_cpu, cpus or self.job_cpu)
        )

    def grown(self, factor: float) -> WorkerJobs:
        """Return the same jobs with `factor` times the memory, up to the cap."""
        if factor <= 1:
            return self
        memory = int(self.memory_bytes * factor)
        return replace(self, memory=render_memory(min(memory, max(self.memory_cap_bytes or memory, self.memory_bytes))))

    def values(self, owner: str) -> ScriptValues:
        """Return the values of each job's script in the session called `owner`."""
        return ScriptValues(
            name=workers_name(owner),
            attempt=1,
            argv=(),
            cpus_per_task=self.cpus,
            memory_bytes=parse_memory(self.asked_memory),
            time_minutes=parse_time(self.walltime),
            log_pattern=self.log_pattern,
            claim_file="",
            workdir=self.workdir,
            options=self.job_options,
            environment_file=environment_file(self, owner),
        )


def prologue(workers: WorkerJobs, owner: str, scheduler_address: str) -> list[str]:
    """Return the bash of a worker's job before its command.

    The job ends at once if its scheduler's port refuses connections, since its session is over then.

    Raises
    ------
    SubmissionError
        If a value cannot be passed safely.
    """
    values = workers.values(owner)
    host, _, port = scheduler_address.partition("://")[2].rpartition(":")
    pools = [f"export {name}=${{{name}:-1}}" for name in THREAD_POOLS]
    return [
        f"unset {CLAIM_VARIABLE} {START_VARIABLE} {NAME_VARIABLE}",
        *option_exports(values.options),
        *pools,
        f"export ZARR_THREADING__MAX_WORKERS={workers.cores // workers.processes}",
        f"export DASK_CONFIG={shlex.quote(settings_file(workers, owner))}",
        *rendered_setup(values.options),
        render_cd(workers.workdir),
        f"if LC_ALL=C timeout 20 bash -c ': < /dev/tcp/$1/$2' - {shlex.quote(host.strip('[]'))} {shlex.quote(port)} "
        "2>&1 | grep -q 'Connection refused'; then",
        "    echo 'The scheduler of this worker has ended: nothing to do.'; exit 0",
        "fi",
        # Workers spill pickles, so their folder must be private: another account could own a folder of Dask's name.
        f'{WORKER_FOLDER}=$(mktemp -d "${{{SCRATCH_VARIABLE}:-${{TMPDIR:-/tmp}}}}/espo-dask-XXXXXXXXXX") || exit 1',
        f"trap 'rm -rf -- \"${WORKER_FOLDER}\"' EXIT",
    ]


def settings_file(workers: WorkerJobs, owner: str) -> str:
    """Return the path of the Dask settings for the workers of `owner`."""
    return f"{workers.folder}/{owner}/{SETTINGS_NAME}"


def environment_file(workers: WorkerJobs, owner: str) -> str:
    """Return the path of the environment for the jobs of `owner`, for schedulers that do not hand it on."""
    return f"{workers.folder}/{owner}/environment.sh"
