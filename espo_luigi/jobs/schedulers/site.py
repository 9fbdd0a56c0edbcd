"""What a site allows and asks of its users, and what of a job is against that."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from espo_luigi.jobs.resources import Resources, parse_memory, parse_time
from espo_luigi.jobs.schedulers.script import JobOptions

# How amounts are compared; messages have them as they were written.
AMOUNTS: Mapping[str, Callable[[str], int]] = {
    "memory": parse_memory,
    "cpus": int,
    "time": parse_time,
    "jobs": int,
    "steps": int,
}
# The names of options that are not called as their limit is.
_OPTIONS: Mapping[str, str] = {"jobs": "max_jobs"}

_WARNING_SECONDS = 60


@dataclass(frozen=True)
class Site:
    """A site's rules, and where they stand (`[slurm] profile = narval`).

    `limits` are the most `memory`, `cpus` and `time` of a job, `jobs` of a user at once, and `steps` of a job, as text.
    `needs` are options of jobs that each user has to give, each with an example. `grace` is how many seconds a
    preempted job has between SIGTERM and its end, by pattern of partition. `not_for_workers` are patterns of what no
    Dask worker's job may be given, by option.
    """

    where: str = ""
    limits: Mapping[str, str] = field(default_factory=dict)
    needs: Mapping[str, str] = field(default_factory=dict)
    grace: Mapping[str, int] = field(default_factory=dict)
    not_for_workers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def exceeded(self, called: Mapping[str, str] = _OPTIONS, /, **asked: str | int) -> list[str]:
        """Say of each amount that is more than allowed how much was asked for, and how much there is at most.

        `called` are the options of the amounts that have another name.
        """
        return [
            f"{called.get(name, name)} = {value} is more than the {self.limits[name]} that {self.where} allows"
            for name, value in asked.items()
            if name in self.limits and AMOUNTS[name](str(value)) > AMOUNTS[name](self.limits[name])
        ]

    def missing(self, options: JobOptions) -> list[str]:
        """Say of each option that the user has to give, and has not given, how to."""
        return [
            f"{self.where} needs your own {name}: write `{name} = …` below it (such as {example})"
            for name, example in self.needs.items()
            if not getattr(options, name)
        ]

    def warning_seconds(self, options: JobOptions, time_minutes: int) -> int:
        """How long before its end a job gets a signal: its grace time, or a minute; a twentieth of its time at most.

        Not at all (0) where that is less than a minute and the site says nothing: it may be told a minute early. What
        the user asks for by `extra` goes first.
        """
        own = options.extra.get("signal", "").rpartition("@")[2]
        if own.isdigit():
            return int(own)
        partitions = str(getattr(options, "partition", None) or "").split(",")
        given = [
            seconds
            for pattern, seconds in self.grace.items()
            if any(fnmatch.fnmatchcase(name, pattern) for name in partitions)
        ]
        seconds = min(min(given, default=_WARNING_SECONDS), 60 * time_minutes // 20)
        return seconds if given or seconds >= _WARNING_SECONDS else 0

    def refused_for_workers(self, options: Mapping[str, Any]) -> list[str]:
        """Say of each option of Dask workers' jobs, `extra` included, what of it this site does not let them have."""
        said = {**options, **(options.get("extra") or {})}
        return [
            f"{name} = {said[name]} is not for Dask workers, {self.where} says (not_for_workers: {pattern})"
            for name, patterns in self.not_for_workers.items()
            for pattern in patterns
            if said.get(name) and any(fnmatch.fnmatchcase(one.strip(), pattern) for one in str(said[name]).split(","))
        ]

    def refusals(self, resources: Resources, options: JobOptions, max_jobs: int) -> list[str]:
        """Say what of a job, or of so many at once, is against these rules."""
        sizes = self.exceeded(memory=resources.memory, cpus=resources.cpus_per_task, time=resources.time)
        return [*self.missing(options), *sizes, *self.exceeded(jobs=max_jobs)]
