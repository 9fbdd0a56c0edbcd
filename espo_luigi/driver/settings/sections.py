"""The sections of luigi.cfg for schedulers (``[slurm]``, ``[sge]``), read into the settings of an engine."""

from __future__ import annotations

import functools
import math
import os
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from espo_luigi.driver.settings.espo import (
    Profile,
    Settings,
    give_parameter,
    give_parameters,
    parameter_of,
    settings,
    settings_keys,
)
from espo_luigi.errors import ConfigurationError, SubmissionError
from espo_luigi.jobs.keys import checked, keys_of, layered
from espo_luigi.jobs.resources import JobOptions, own_names
from espo_luigi.jobs.schedulers import SCHEDULERS, job_id
from espo_luigi.jobs.settings import BatchSettings, Patience, Site

# The command of a job, before the order's file or ``--serve`` and modules. `-P` keeps Python from importing modules out
# of the work folder, where other people may put some.
JOB_COMMAND = (sys.executable, "-P", "-m", "espo_luigi.job")
# The options of all schedulers that a task may set itself.
OPTION_NAMES = tuple(
    dict.fromkeys([*(name for one in SCHEDULERS.values() for name in own_names(one.OPTIONS)), "extra"])
)


class BatchSection(Settings):
    """What any scheduler's section holds: its options of jobs, and how the driver looks after them."""

    options: ClassVar[type[JobOptions]]

    @classmethod
    def completed(cls, values: dict[str, Any], given: frozenset[str]) -> dict[str, Any]:
        """Return the section's values, with the profile's where luigi.cfg and the command line say nothing."""
        profile = cls.profile_called(values["profile"])
        written = {name: values[name] for name in given & settings_keys().keys() if values[name] != ""}
        checked(settings_keys(), written, f"luigi.cfg, [{cls.__name__}]")
        # Without max_jobs, the site's limit is the default.
        allowed = profile.site.limits.get("jobs", values["max_jobs"])
        by_default = {"max_jobs": min(values["max_jobs"], allowed)} if "max_jobs" not in given else {}
        return values | by_default | {name: profile.settings[name] for name in profile.settings.keys() - given}

    @classmethod
    @functools.cache
    def profile_called(cls, name: str) -> Profile:
        """Return a profile of this section; read once a process, as luigi.cfg is. Raises what `read_profile` does."""
        from espo_luigi.driver.settings.profile import read_profile

        return read_profile(cls.__name__, name, cls.options) if name else Profile()

    def options_of(self, rule: Mapping[str, Any], own: Mapping[str, Any]) -> JobOptions:
        """Return a job's options: the defaults', the profile's, the `rule`'s, luigi.cfg's, and the task's `own`."""
        section, keys = type(self).__name__, keys_of(self.options)
        general = {name: getattr(self, name) for name in keys}
        given = {name: general.pop(name) for name in self.given() & general.keys()}
        layers: dict[str, Mapping[str, Any]] = {
            f"the defaults of [{section}]": general,
            f"[{section}] profile = {self.profile}": self.profile_called(self.profile).options,
            "the rule's options": rule,
            f"[{section}] of luigi.cfg": given,
            "the options of the task": {name: value for name, value in own.items() if name in keys},
        }
        said = {
            where: {name: value for name, value in layer.items() if value not in (None, "", (), [], {})}
            for where, layer in layers.items()
        }
        return self.options(**layered(keys, said))

    def site(self) -> Site:
        """Return the site's rules; what users have to say may stand in the environment that sbatch reads."""
        site, prefix = self.profile_called(self.profile).site, SCHEDULERS[type(self).__name__].USER_VARIABLES
        said = {name for name in site.needs if prefix and os.environ.get(prefix + name.upper())}
        return replace(site, needs={name: example for name, example in site.needs.items() if name not in said})

    def batch_settings(self) -> BatchSettings:
        """Return how the engine works."""
        site, keys = self.site(), keys_of(BatchSettings)
        values = {one.field: one.value(getattr(self, name)) for name, one in keys.items()}
        patience = Patience(**{name: getattr(self, name) for name in keys_of(Patience)})
        # A job misses several heartbeats before it counts as lost or hanging.
        longest = patience.absent_after / 4, (values["stall_timeout_seconds"] or math.inf) / 4
        values["beat_seconds"] = min(values["beat_seconds"], *longest)
        for name, amount in (("memory_cap_bytes", "memory"), ("time_cap_minutes", "time")):
            values[name] = min(filter(None, (values[name], site.limits.get(amount))), default=None)
        return BatchSettings(
            workdir=Path(settings().workdir),
            start_dir=Path.cwd(),
            work=JOB_COMMAND,
            site=site,
            patience=patience,
            **values,
        )


class slurm(BatchSection):
    """How jobs go to Slurm, from luigi.cfg's ``[slurm]`` section or the command line (``--slurm-partition long``)."""

    options = SCHEDULERS["slurm"].OPTIONS


class sge(BatchSection):
    """How jobs go to Grid Engine, from luigi.cfg's ``[sge]`` section or the command line (``--sge-queue long.q``)."""

    options = SCHEDULERS["sge"].OPTIONS


SECTIONS: Mapping[str, type[BatchSection]] = {"slurm": slurm, "sge": sge}

for _name, _section in SECTIONS.items():
    _keys = {**settings_keys(), **keys_of(_section.options)}
    give_parameters(_section, _keys, scratch=SCHEDULERS[_name].SCRATCH, log_dir=f"{_name}_logs")


def leaves_jobs_on_sigterm() -> bool:
    """Whether SIGTERM leaves the jobs to the next driver: always where the driver is itself a job, whose time is up."""
    section = SECTIONS.get(settings().engine)
    return section is not None and (job_id() is not None or section().on_sigterm == "detach")


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


def add_options(owner: type) -> None:
    """Give a class of tasks a Luigi parameter for each option of any scheduler that tasks may set."""
    keys = {name: one for section in SECTIONS.values() for name, one in keys_of(section.options).items()}
    for name in OPTION_NAMES:
        # Empty, an option is the section's.
        give_parameter(owner, name, parameter_of(keys[name], None, significant=False))
