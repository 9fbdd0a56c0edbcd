"""The sections of luigi.cfg for schedulers (``[slurm]``, ``[sge]``), read into the settings of an engine."""

from __future__ import annotations

import functools
import math
import os
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from luigi import ChoiceParameter, DictParameter, FloatParameter, IntParameter, Parameter

from espo_luigi.driver.settings.espo import AMOUNTS, Profile, Settings, give_parameter, parsed, settings
from espo_luigi.errors import ConfigurationError, SubmissionError
from espo_luigi.jobs.resources import TABLES, JobOptions, own_names, parse_memory, parse_time
from espo_luigi.jobs.schedulers import SCHEDULERS, job_id
from espo_luigi.jobs.settings import BatchSettings, Patience, Site

# The command of a job, before the order's file or ``--serve`` and modules. `-P` keeps Python from importing modules out
# of the work folder, where other people may put some.
JOB_COMMAND = (sys.executable, "-P", "-m", "espo_luigi.job")
# The options of all schedulers that a task may set itself.
OPTION_NAMES = tuple(
    dict.fromkeys([*(name for one in SCHEDULERS.values() for name in own_names(one.OPTIONS)), "extra"])
)


_SECTION_AMOUNT = (
    "{} of `espo shell`, `espo submit`, sessions, and tasks of your own without any; each rule of ESPO has its own: {}"
)


class BatchSection(Settings):
    """What any scheduler's section holds, beside the scheduler's own options."""

    options: ClassVar[type[JobOptions]]

    profile = Parameter(
        default="", description="name (`espo profiles`) or YAML file of this cluster's values of all that is below"
    )
    memory = Parameter(default="", description=_SECTION_AMOUNT.format("memory", "`[Train] memory`"))
    time = Parameter(default="", description=_SECTION_AMOUNT.format("time limit", "`[Train] time`"))
    step_options: Any = DictParameter(default={}, description='options of each step of a bundle, {"overlap": ""}')
    exclude = Parameter(default="", description="nodes on which no job may run, such as n[1-3],m1")
    extra: Any = DictParameter(default={}, description='further directives, {"reservation": "maintenance"}')
    setup = Parameter(default="", description="bash lines before the work: module load …, source …/activate")
    python = Parameter(
        default="", description="Python of the jobs, such as python: the one that setup activates; empty: the driver's"
    )
    environment: Any = DictParameter(default={}, description="variables of the job's environment")
    worker_jobs: Any = DictParameter(default={}, description='of cluster = jobqueue, such as {"walltime": "2:00:00"}')
    node_cpus = IntParameter(default=0, description="most CPUs of a job, where nodes are small; 0: as the rule says")
    node_memory = Parameter(default="", description="most memory of a job, such as 180GB; empty: as the rule says")
    retries = IntParameter(
        default=BatchSettings.retries,
        description="further attempts after too little memory or time, a stall, a lost job or a failed file system",
    )
    max_uncharged = IntParameter(
        default=BatchSettings.max_uncharged,
        description="further submissions in a row that count as no attempt, as after a failed node or a preemption",
    )
    memory_cap = Parameter(default="", description="most memory of a retry, such as 500GB; empty: no limit")
    time_cap = Parameter(default="", description="longest time of a retry, such as 2-00:00:00; empty: no limit")
    stall_timeout = IntParameter(
        default=int(BatchSettings.stall_timeout_seconds or 0),
        description="seconds without heartbeat after which a job is taken for hanging; 0: never",
    )
    on_sigterm = ChoiceParameter(
        choices=["detach", "cancel"],
        default="detach",
        description="what becomes of the jobs if the driver is terminated",
    )
    max_jobs = IntParameter(default=BatchSettings.max_jobs, description="jobs in flight at once")
    max_submit_per_second = FloatParameter(
        default=BatchSettings.max_submit_per_second, description="most calls of sbatch or qsub a second"
    )
    max_status_per_second = FloatParameter(
        default=BatchSettings.max_status_per_second, description="most queries (squeue, sacct, qstat, qacct) a second"
    )
    poll_seconds = FloatParameter(default=BatchSettings.poll_seconds, description="between two looks at squeue, qstat")
    result_seconds = FloatParameter(default=BatchSettings.result_seconds, description="between two looks at results")
    heartbeat_seconds = FloatParameter(default=BatchSettings.beat_seconds, description="between a job's signs of life")
    latency_wait = FloatParameter(default=Patience.latency_wait, description="seconds until all nodes see a new file")
    absent_after = FloatParameter(default=Patience.absent_after, description="seconds until an unknown job is lost")
    log_dir = Parameter(default="slurm_logs", description="folder of the jobs' logs")

    @classmethod
    def completed(cls, values: dict[str, Any], given: frozenset[str]) -> dict[str, Any]:
        """Return the section's values, with the profile's where luigi.cfg and the command line say nothing."""
        profile = cls.profile_called(values["profile"])
        for name in given & AMOUNTS.keys():
            if values[name]:
                parsed(f"luigi.cfg, [{cls.__name__}]", name, values[name], AMOUNTS[name])
        # Without max_jobs, the site's limit is the default.
        allowed = profile.site.limits.get("jobs", values["max_jobs"])
        by_default = {"max_jobs": min(values["max_jobs"], allowed)} if "max_jobs" not in given else {}
        return values | by_default | {name: profile.settings[name] for name in profile.settings.keys() - given}

    @classmethod
    @functools.cache
    def profile_called(cls, name: str) -> Profile:
        """Return a profile of this section; read once a process, as luigi.cfg is. Raises what `read_profile` does."""
        from espo_luigi.driver.settings.profile import read_profile

        return read_profile(cls, name, cls.options) if name else Profile()

    def options_of(self, rule: Mapping[str, Any], own: Mapping[str, Any]) -> JobOptions:
        """Return a job's options: the defaults', the profile's, the `rule`'s, luigi.cfg's, and the task's `own`."""
        section, names = type(self).__name__, self.options.__dataclass_fields__
        general = {name: getattr(self, name) for name in names if hasattr(self, name)}
        given = {name: general.pop(name) for name in self.given() & general.keys()}
        layers: dict[str, Mapping[str, Any]] = {
            f"the defaults of [{section}]": general,
            f"[{section}] profile = {self.profile}": self.profile_called(self.profile).options,
            "the rule's options": rule,
            f"[{section}] of luigi.cfg": given,
            "the options of the task": {name: value for name, value in own.items() if name in names},
        }
        from espo_luigi.driver.settings.profile import layered, options_model

        said = {
            where: {name: value for name, value in layer.items() if value not in (None, "", (), [], {})}
            for where, layer in layers.items()
        }
        return self.options(**layered(options_model(self.options), said))

    def site(self) -> Site:
        """Return the site's rules; what users have to say may stand in the environment that sbatch reads."""
        site, prefix = self.profile_called(self.profile).site, SCHEDULERS[type(self).__name__].USER_VARIABLES
        said = {name for name in site.needs if prefix and os.environ.get(prefix + name.upper())}
        return replace(site, needs={name: example for name, example in site.needs.items() if name not in said})

    def batch_settings(self) -> BatchSettings:
        """Return how the engine works."""
        site = self.site()
        return BatchSettings(
            workdir=Path(settings().workdir),
            start_dir=Path.cwd(),
            log_dir=Path(self.log_dir).absolute(),
            work=JOB_COMMAND,
            site=site,
            node_cpus=self.node_cpus or None,
            node_memory_bytes=parse_memory(self.node_memory) if self.node_memory else None,
            retries=self.retries,
            max_uncharged=self.max_uncharged,
            memory_cap_bytes=_least(parse_memory, self.memory_cap, site.limits.get("memory")),
            time_cap_minutes=_least(parse_time, self.time_cap, site.limits.get("time")),
            stall_timeout_seconds=self.stall_timeout or None,
            max_jobs=self.max_jobs,
            poll_seconds=self.poll_seconds,
            result_seconds=self.result_seconds,
            # A job misses several heartbeats before it counts as lost or hanging.
            beat_seconds=min(self.heartbeat_seconds, self.absent_after / 4, self.stall_timeout / 4 or math.inf),
            max_status_per_second=self.max_status_per_second,
            max_submit_per_second=self.max_submit_per_second,
            patience=Patience(latency_wait=self.latency_wait, absent_after=self.absent_after),
        )


def _least(parse: Callable[[str], int], cap: str, limit: int | None) -> int | None:
    amounts = [parse(cap)] if cap else []
    return min([*amounts, limit] if limit else amounts, default=None)


class slurm(BatchSection):
    """How jobs go to Slurm, from luigi.cfg's ``[slurm]`` section or the command line (``--slurm-partition long``)."""

    options = SCHEDULERS["slurm"].OPTIONS
    scratch = Parameter(default=SCHEDULERS["slurm"].SCRATCH, description="fast folder on the node")


class sge(BatchSection):
    """How jobs go to Grid Engine, from luigi.cfg's ``[sge]`` section or the command line (``--sge-queue long.q``)."""

    options = SCHEDULERS["sge"].OPTIONS
    scratch = Parameter(default=SCHEDULERS["sge"].SCRATCH, description="fast folder on the node")
    log_dir = Parameter(default="sge_logs", description="folder of the jobs' logs")


def leaves_jobs_on_sigterm() -> bool:
    """Whether SIGTERM leaves the jobs to the next driver: always where the driver is itself a job, whose time is up."""
    section = SECTIONS.get(settings().engine)
    return section is not None and (job_id() is not None or section().on_sigterm == "detach")


SECTIONS: Mapping[str, type[BatchSection]] = {"slurm": slurm, "sge": sge}


def refuse_login_host() -> None:
    """Raise `SubmissionError` if this machine is a login host by any packaged or chosen profile, unless allowed."""
    from espo_luigi.driver.settings.profile import login_host_of, packaged_profiles

    host, chosen = socket.gethostname(), []
    for section in SECTIONS.values():
        # An unreadable profile does not matter to an engine that works without it.
        with suppress(ConfigurationError):
            chosen.append(section().profile)
    profile = login_host_of(host, dict.fromkeys([*filter(None, chosen), *packaged_profiles()]))
    if profile and not settings().allow_login_host:
        raise SubmissionError(
            f"{host} is a login host (profile {profile}), and engine = local would compute on it: choose another "
            "engine, give the command inside a job, or set [espo] allow_login_host = true"
        )


# The options of schedulers that are not passed on as they are.
_MEANINGS = {
    "pack": "most tasks of one submission, a bundle; empty: 1",
    "bundle": "what a bundle is: pilot (the default), array or steps (the default if an option of steps is given)",
    "pack_at_once": "members of a bundle that run at once; empty: of steps all, of a pilot 1, of an array any number",
    "pack_per_step": "members of a bundle that share a step; empty: 1",
    "memory_resource": "name of memory in a job's request (Slurm: mem or mem-per-cpu); none: jobs ask for no memory",
    "memory_per": "whether the request for memory is for each slot or for the whole job (slot, job)",
    "parallel_environment": "of jobs with several CPUs; its allocation_rule has to be $pe_slots",
}


def add_options(owner: type, names: tuple[str, ...]) -> None:
    """Give a class a Luigi parameter for each option that it lacks."""
    for name in names:
        kind, default = (DictParameter, {}) if name in TABLES else (Parameter, "")
        described = {"description": _MEANINGS[name]} if name in _MEANINGS else {}
        give_parameter(owner, name, kind(default=default, significant=False, **described))


for _section in SECTIONS.values():
    # Tables are there already.
    add_options(_section, tuple(name for name in own_names(_section.options) if not hasattr(_section, name)))
