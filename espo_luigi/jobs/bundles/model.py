"""How tasks of a rule go to a scheduler several at a time, as one submission (a bundle), and what it is made of.

Steps run side by side in one job, each as a step of its own; an array has a job for each; a pilot is one job in which
a process that has imported everything forks a child for each.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from espo_luigi.errors import SubmissionError
from espo_luigi.jobs.schedulers.script import PackOptions, ScriptValues

STEPS = "steps"
ARRAY = "array"
PILOT = "pilot"
KINDS = (STEPS, ARRAY, PILOT)


@dataclass(frozen=True)
class Bundling:
    """Up to `most` tasks a bundle, of which `at_once` run at a time (0: all), `per_step` in a step.

    `step_options` are further options of each step.
    """

    kind: str = STEPS
    most: int = 1
    at_once: int = 0
    per_step: int = 1
    step_options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, options: PackOptions) -> Bundling:
        """Read the options of a job. Raises SubmissionError for a value that is none."""
        kind = options.bundle or STEPS
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
        """How many run at once in one job."""
        if self.kind == ARRAY:
            return 1
        return min(self.most, self.at_once or (1 if self.kind == PILOT else self.most))

    def of_room(self, jobs: int) -> int:
        """How many may go together where there is room for so many jobs: an array has one for each, others one."""
        return min(self.most, jobs) if self.kind == ARRAY else self.most

    def fitted(self, cpus: int, memory: int, most_cpus: int | None, most_memory: int | None) -> Bundling:
        """As many at once as there is room for on a node, where its size is known; one task is `cpus` and `memory`."""
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
    """All that one bundle's submission is made of: `members`, equal in size, and where the `scripts` of each lie.

    `log_pattern` is the log of the job that carries them, `plan` the file with what a pilot does, for which `pilot` is
    the command. Of the whole, `time_minutes` is the limit.
    """

    name: str
    bundling: Bundling
    members: tuple[ScriptValues, ...]
    scripts: tuple[str, ...]
    log_pattern: str
    time_minutes: int
    plan: str = ""
    pilot: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        """How many of these members run at once in one job."""
        return min(self.bundling.width, len(self.members))

    @property
    def steps(self) -> Sequence[range]:
        """Which members, by their places, each step runs."""
        size, n = self.bundling.per_step, len(self.members)
        return [range(first, min(first + size, n)) for first in range(0, n, size)]

    def member_name(self, place: int) -> str:
        """How the scheduler's rows call the job in which a member runs."""
        return element_name(self.name, place) if self.bundling.kind == ARRAY else self.name

    def member_id(self, job_id: str, place: int) -> str:
        """The id of the job in which a member runs, of a submission that was answered with `job_id`."""
        return f"{job_id}_{place}" if self.bundling.kind == ARRAY else job_id


@dataclass(frozen=True)
class BundleText:
    """What a scheduler makes of a bundle: its `script`, that of each of the `members`, and further `files` by ending.

    `command` submits the script, whose path follows.
    """

    script: str
    members: tuple[str, ...]
    command: tuple[str, ...]
    files: Mapping[str, str]


def element_name(name: str, place: object) -> str:
    """How an element of the array called `name` is called: rows of a scheduler's answer are told apart by it."""
    return f"{name}[{place}]"


def array_of(name: str) -> str:
    """The name that a scheduler was given, of what `element_name` or any other job is called."""
    return name.partition("[")[0]


def shares_job(name: str) -> bool:
    """Whether the job that a bundle's member runs in is that of the others, too."""
    return bool(name) and "[" not in name


def total_minutes(bundling: Bundling, n: int, minutes: int, cap: int | None) -> int:
    """The time limit of a bundle of `n` tasks of so many minutes each, one after the other where not all run at once.

    No more than `cap`, unless one alone is: what has not begun by then goes into another bundle.
    """
    if bundling.kind == ARRAY:
        return minutes
    needed = -(-n // min(bundling.width, n)) * minutes
    return needed if cap is None else max(minutes, min(needed, cap))
