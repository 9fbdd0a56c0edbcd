"""A site's rules for its users, and the sentences about a job that breaks them."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from espo_luigi.jobs.resources import Resources, said_memory, said_time
from espo_luigi.jobs.schedulers.script import JobOptions

# How amounts are written; what is not here is a number.
_SAID: Mapping[str, Callable[[int], str]] = {"memory": said_memory, "time": said_time}
# The options whose names differ from their limits'.
_OPTIONS: Mapping[str, str] = {"jobs": "max_jobs"}

_WARNING_SECONDS = 60


@dataclass(frozen=True)
class Site:
    """A site's rules, and the place that they come from (`[slurm] profile = narval`).

    `limits` are the most `memory` (bytes), `cpus` and `time` (minutes) of a job, `jobs` of a user at once, and `steps`
    of a job. `needs` maps the options that each user has to give to an example. `grace` maps patterns of partitions to
    the seconds between SIGTERM and the end of a preempted job. `not_for_workers` maps options to patterns of values
    that the jobs of Dask's workers must not have.
    """

    where: str = ""
    limits: Mapping[str, int] = field(default_factory=dict)
    needs: Mapping[str, str] = field(default_factory=dict)
    grace: Mapping[str, int] = field(default_factory=dict)
    not_for_workers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def exceeded(self, called: Mapping[str, str] = _OPTIONS, /, **asked: int) -> list[str]:
        """Return a sentence about each amount above its limit; `called` maps amounts to options of different names."""
        said = {name: _SAID.get(name, str) for name in asked}
        return [
            f"{called.get(name, name)} = {said[name](value)} is more than the {said[name](self.limits[name])} that "
            f"{self.where} allows"
            for name, value in asked.items()
            if value > self.limits.get(name, value)
        ]

    def missing(self, options: JobOptions) -> list[str]:
        """Return a sentence about each option that the user still has to give."""
        return [
            f"{self.where} needs your own {name}: write `{name} = …` below it (such as {example})"
            for name, example in self.needs.items()
            if not getattr(options, name)
        ]

    def warning_seconds(self, options: JobOptions, time_minutes: int) -> int:
        """Return how long before its end a job gets a signal: its grace time or a minute, at most a 20th of its time.

        Return 0 (no signal) if that is less than a minute and the partition has no grace time, as Slurm may send it a
        minute early. A signal that the user asks for in `extra` takes precedence.
        """
        own = options.extra.get("signal", "").rpartition("@")[2]
        if own.isdigit():
            return int(own)
        partitions = str(getattr(options, "partition", None) or "").split(",")
        graces = [
            seconds
            for pattern, seconds in self.grace.items()
            if any(fnmatch.fnmatchcase(name, pattern) for name in partitions)
        ]
        seconds = min(min(graces, default=_WARNING_SECONDS), 60 * time_minutes // 20)
        return seconds if graces or seconds >= _WARNING_SECONDS else 0

    def refusals(self, resources: Resources, options: JobOptions, max_jobs: int) -> list[str]:
        """Return a sentence about each rule that a job, or so many jobs at once, would break."""
        sizes = self.exceeded(memory=resources.memory_bytes, cpus=resources.cpus_per_task, time=resources.time_minutes)
        return [*self.missing(options), *sizes, *self.exceeded(jobs=max_jobs)]
