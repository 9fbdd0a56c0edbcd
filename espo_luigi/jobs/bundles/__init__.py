"""Bundles: several tasks of a rule as one submission; `slurm` renders its scripts, `pilot` is one of its programs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from espo_luigi.errors import SubmissionError
from espo_luigi.jobs.resources import ARRAY, PILOT, STEPS, PackOptions
from espo_luigi.jobs.schedulers.script import ScriptValues, array_of, element_name

# A job with a step for each member, a job for each member, a job whose process forks a child for each member.
KINDS = (STEPS, ARRAY, PILOT)


@dataclass(frozen=True)
class Bundling:
    """Options of a bundle: up to `most` tasks, `at_once` at a time (0: all), `per_step` in a step.

    `step_options` are further options of each step.
    """

    kind: str = PILOT
    most: int = 1
    at_once: int = 0
    per_step: int = 1
    step_options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, options: PackOptions) -> Bundling:
        """Read the options of a job. Raises SubmissionError for a bad value."""
        kind = options.bundle or (STEPS if options.pack_per_step or options.step_options else PILOT)
        if kind not in KINDS:
            raise SubmissionError(f"bundle = {kind}: expected one of {', '.join(KINDS)}")
        most, at_once = _number("pack", options.pack, 1), _number("pack_at_once", options.pack_at_once, 0)
        per_step = _number("pack_per_step", options.pack_per_step, 1)
        if kind != STEPS and (per_step > 1 or options.step_options):
            raise SubmissionError(f"pack_per_step and step_options are of bundle = steps, not of bundle = {kind}")
        if per_step > 1 and at_once % per_step:
            raise SubmissionError(
                f"pack_at_once = {at_once} is no multiple of pack_per_step = {per_step}: whole steps run at once"
            )
        return cls(kind, most, at_once, per_step, options.step_options)

    @property
    def width(self) -> int:
        """The number of tasks that run at once in a job."""
        if self.kind == ARRAY:
            return 1
        return min(self.most, self.at_once or (1 if self.kind == PILOT else self.most))

    def within_node(self, cpus: int, memory: int, most_cpus: int | None, most_memory: int | None) -> Bundling:
        """Run no more tasks of `cpus` and `memory` at once than a node has room for, if its size is known."""
        rooms = [most_cpus // cpus] if most_cpus else []
        rooms += [most_memory // memory] if most_memory else []
        room = max(min([self.width, *rooms]), 1)
        if self.kind == ARRAY or room >= self.width:
            return self
        # Whole steps.
        return replace(self, at_once=max(room - room % self.per_step, self.per_step))


def _number(name: str, text: str | None, least: int) -> int:
    if text is None or not text.strip():
        return least
    if not re.fullmatch(r"\d{1,5}", text.strip(), re.ASCII) or int(text) < least:
        raise SubmissionError(f"{name} = {text}: expected a whole number, {least} or more")
    return int(text)


@dataclass(frozen=True)
class BundleValues:
    """The values of a bundle's submission: `members`, equal in size, and the paths of their `scripts`.

    `log_pattern` and `time_minutes` are of the job that carries the members. `listing` is the file that a pilot reads,
    and `pilot` is the pilot's command.
    """

    name: str
    bundling: Bundling
    members: tuple[ScriptValues, ...]
    scripts: tuple[str, ...]
    log_pattern: str
    time_minutes: int
    listing: str = ""
    pilot: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        """The number of these members that run at once in a job."""
        return min(self.bundling.width, len(self.members))

    def member_name(self, place: int) -> str:
        """Return the name in the scheduler's rows of the job that runs a member."""
        return element_name(self.name, place) if self.bundling.kind == ARRAY else self.name

    def member_id(self, job_id: str, place: int) -> str:
        """Return the id of the job that runs a member, if the submission was answered with `job_id`."""
        return f"{job_id}_{place}" if self.bundling.kind == ARRAY else job_id


@dataclass(frozen=True)
class BundleText:
    """A bundle as text: its `script`, the scripts of its `members`, and further `files` by the suffixes of their names.

    `command` with the script's path submits the bundle.
    """

    script: str
    members: tuple[str, ...]
    command: tuple[str, ...]
    files: Mapping[str, str]


def shares_job(name: str) -> bool:
    """Return whether the members of a bundle share the job called `name`; an element of an array has its own."""
    return bool(name) and "[" not in name


def own_job_name(bundle: str, name: str) -> str:
    """Return the scheduler's name of a submission's job or array; empty if it shares the job called `bundle`."""
    return "" if shares_job(bundle) else array_of(bundle or name)


def total_minutes(bundling: Bundling, n: int, minutes: int, cap: int | None) -> int:
    """Return the time limit of a bundle of `n` tasks of so many minutes each, which take turns if not all fit.

    The limit is at most `cap`, or the time of a single task if that is longer. Tasks that have not begun by then go
    into a new bundle.
    """
    if bundling.kind == ARRAY:
        return minutes
    needed = -(-n // min(bundling.width, n)) * minutes
    return needed if cap is None else max(minutes, min(needed, cap))
