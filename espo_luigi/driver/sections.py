"""The sections of luigi.cfg that say how jobs go to a scheduler (``[slurm]``), as the values that its engine takes."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import luigi

from espo_luigi.driver.profile import as_options, read_profile
from espo_luigi.driver.settings import Settings, give_parameter, settings, state_dir
from espo_luigi.jobs.batch import BatchSettings
from espo_luigi.jobs.commands import CommandSettings
from espo_luigi.jobs.flights import Patience
from espo_luigi.jobs.resources import parse_memory, parse_time
from espo_luigi.jobs.schedulers import SCHEDULERS, job_id
from espo_luigi.jobs.script import JobOptions, own_names
from espo_luigi.jobs.submitter import JobSettings

# What runs a job: it takes the order's file, or ``--serve`` and modules.
JOB_COMMAND = (sys.executable, "-m", "espo_luigi.job")
# The options of all schedulers that a task may set itself.
OPTION_NAMES = tuple(
    dict.fromkeys([*(name for one in SCHEDULERS.values() for name in own_names(one.OPTIONS)), "extra"])
)


class BatchSection:
    """What any scheduler's section holds, beside the scheduler's own options."""

    options: ClassVar[type[JobOptions]]

    profile = luigi.Parameter(default="", description="YAML file with this cluster's values of the options below")
    extra: Any = luigi.DictParameter(default={}, description='further directives, {"reservation": "maintenance"}')
    setup = luigi.Parameter(default="", description="bash lines before the work: module load …, source …/activate")
    python = luigi.Parameter(
        default="", description="Python of the jobs, such as python: the one that setup activates; empty: the driver's"
    )
    environment: Any = luigi.DictParameter(default={}, description="variables of the job's environment")
    node_cpus = luigi.IntParameter(
        default=0, description="most CPUs of a job, where nodes are small; 0: as the rule says"
    )
    node_memory = luigi.Parameter(
        default="", description="most memory of a job, such as 180GB; empty: as the rule says"
    )
    retries = luigi.IntParameter(
        default=BatchSettings.retries, description="further attempts after memory, time or a stall"
    )
    memory_cap = luigi.Parameter(default="", description="most memory of a retry, such as 500GB; empty: no limit")
    time_cap = luigi.Parameter(default="", description="longest time of a retry, such as 2-00:00:00; empty: no limit")
    stall_timeout = luigi.IntParameter(
        default=int(BatchSettings.stall_timeout_seconds or 0),
        description="seconds without heartbeat after which a job hangs",
    )
    on_sigterm = luigi.ChoiceParameter(
        choices=["detach", "cancel"],
        default="detach",
        description="what becomes of the jobs when the driver is terminated",
    )
    max_jobs = luigi.IntParameter(default=JobSettings.max_jobs, description="jobs in flight at once")
    max_submit_per_second = luigi.FloatParameter(default=CommandSettings.max_submit_per_second)
    max_status_per_second = luigi.FloatParameter(default=CommandSettings.max_status_per_second)
    poll_seconds = luigi.FloatParameter(default=JobSettings.poll_seconds, description="between two looks at squeue")
    result_seconds = luigi.FloatParameter(
        default=JobSettings.result_seconds, description="between two looks at the result files"
    )
    heartbeat_seconds = luigi.FloatParameter(
        default=JobSettings.beat_seconds, description="between two signs of life of a job"
    )
    latency_wait = luigi.FloatParameter(
        default=Patience.latency_wait, description="seconds in which files become visible everywhere"
    )
    absent_after = luigi.FloatParameter(
        default=Patience.absent_after, description="seconds after which an unknown job is lost"
    )
    log_dir = luigi.Parameter(default="slurm_logs", description="folder of the jobs' logs")

    def options_of(self, rule: Mapping[str, Any], own: Mapping[str, Any]) -> JobOptions:
        """Return a job's options: the cluster's profile, the `rule`'s, luigi.cfg's, and the task's `own`."""
        names = self.options.__dataclass_fields__
        general = {name: getattr(self, name) for name in names if hasattr(self, name)}
        mine = {name: value for name, value in own.items() if name in names}
        section = type(self).__name__
        layers = {
            "the rule's options": rule,
            f"[{section}] of luigi.cfg": general,
            "the options of the task": mine,
        }
        chosen = read_profile(section, self.profile, self.options)
        for where, layer in layers.items():
            chosen |= {name: value for name, value in as_options(layer, where).items() if value}
        return self.options(**chosen)

    def _beat_seconds(self) -> float:
        """Return what was asked for, or less: who waits for signs of life has to miss several."""
        return min(self.heartbeat_seconds, self.absent_after / 4, self.stall_timeout / 4 or math.inf)

    def batch_settings(self) -> BatchSettings:
        """Return how the engine works."""
        return BatchSettings(
            workdir=Path(settings().workdir),
            state_dir=state_dir(),
            work=JOB_COMMAND,
            manager=JobSettings(
                workdir=Path.cwd(),
                log_dir=Path(self.log_dir).absolute(),
                max_jobs=self.max_jobs,
                poll_seconds=self.poll_seconds,
                result_seconds=self.result_seconds,
                beat_seconds=self._beat_seconds(),
                patience=Patience(latency_wait=self.latency_wait, absent_after=self.absent_after),
            ),
            commands=CommandSettings(
                max_status_per_second=self.max_status_per_second, max_submit_per_second=self.max_submit_per_second
            ),
            node_cpus=self.node_cpus or None,
            node_memory_bytes=parse_memory(self.node_memory) if self.node_memory else None,
            retries=self.retries,
            memory_cap_bytes=parse_memory(self.memory_cap) if self.memory_cap else None,
            time_cap_minutes=parse_time(self.time_cap) if self.time_cap else None,
            stall_timeout_seconds=self.stall_timeout or None,
        )


class slurm(BatchSection, Settings):
    """How jobs go to Slurm, from luigi.cfg's ``[slurm]`` section or the command line (``--slurm-partition long``)."""

    options = SCHEDULERS["slurm"].OPTIONS
    scratch = luigi.Parameter(default="$SLURM_TMPDIR", description="fast folder on the node")


def leaves_jobs_on_sigterm() -> bool:
    """Whether SIGTERM leaves the jobs to the next driver: always where the driver is itself a job, whose time is up."""
    section = SECTIONS.get(settings().engine)
    return section is not None and (job_id() is not None or section().on_sigterm == "detach")


SECTIONS: Mapping[str, type[BatchSection]] = {"slurm": slurm}


def add_options(owner: type, names: tuple[str, ...]) -> None:
    """Give a class a Luigi parameter for each option that is not one yet."""
    for name in names:
        give_parameter(owner, name, luigi.Parameter(default="", significant=False))


for _section in SECTIONS.values():
    add_options(_section, own_names(_section.options))
