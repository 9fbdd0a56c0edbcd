"""What a scheduler is to the rest of this package: text that goes to its commands, and text that comes back.

A module (`slurm`, `sge`) fulfils `Scheduler` with pure functions; `commands` runs what they say.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

from espo_luigi.jobs.bundles.model import BundleText, BundleValues
from espo_luigi.jobs.schedulers.script import LISTS, TABLES, PackOptions, ScriptValues


class Phase(enum.Enum):
    """What a job's state means to whoever waits for it."""

    PENDING = "pending"
    RUNNING = "running"
    SUSPENDED = "suspended"
    LEAVING = "leaving"
    COMPLETED = "completed"
    FAILED = "failed"
    MEMORY = "memory"
    TIMEOUT = "timeout"
    NODE = "node"
    PREEMPTED = "preempted"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"

    @property
    def ended(self) -> bool:
        return self not in (Phase.PENDING, Phase.RUNNING, Phase.SUSPENDED, Phase.LEAVING)


@dataclass(frozen=True)
class Row:
    """One job in a scheduler's answer. `state` is its own word; `reason` is empty where it gives none.

    An element of an array is a job of its own, with an id like ``1234_3`` and a name like ``name[3]``.

    `launch_failed`: a node could not start the job, which is queued again and held. `hopeless`: it waits for something
    that waiting does not bring. `held`: it waits until somebody releases it. `in_error`: a host, which is not named,
    could not start it.
    """

    job_id: str
    name: str
    state: str
    phase: Phase
    node: str = ""
    reason: str = ""
    exit_code: str = ""
    launch_failed: bool = False
    hopeless: bool = False
    held: bool = False
    # When it started, or is expected to, where that was asked for.
    start: str = ""
    in_error: bool = False

    @property
    def said(self) -> str:
        """The state for people: ``PENDING (Priority)``."""
        return f"{self.state} ({self.reason})" if self.reason else self.state


class Refusal(enum.Enum):
    """What a submission that was not answered with a job id means for another try."""

    PASSING = "passing"
    PERMANENT = "permanent"
    UNCLEAR = "unclear"

    @classmethod
    def of(cls, words: str, meanings: Iterable[tuple[str, Refusal]]) -> Refusal:
        """What the first of the patterns means that is found in the words."""
        found = (meaning for pattern, meaning in meanings if re.search(pattern, words, re.IGNORECASE))
        return next(found, cls.UNCLEAR)


@dataclass(frozen=True)
class Account:
    """What a scheduler has accounted of one run of a job; what it does not say is 0 or empty.

    Times are seconds since 1970. CPUs, bytes and minutes are those that the job was given.
    """

    job_id: str
    name: str
    phase: Phase
    node: str = ""
    queued: float = 0.0
    started: float = 0.0
    ended: float = 0.0
    cpus: int = 0
    memory_bytes: int = 0
    time_minutes: int = 0
    cpu_seconds: float = 0.0
    peak_memory_bytes: int = 0


@dataclass(frozen=True)
class Directive:
    """What one asks for: options, as `OPTIONS` names them, and amounts, as `resources` reads them; None: nothing.

    `memory` is that of each slot, if `per_slot`.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    cpus: str | None = None
    memory: str | None = None
    time: str | None = None
    per_slot: bool = False

    @classmethod
    def option(cls, options: Mapping[str, Any], name: str, value: str) -> Self:
        """One of the options that have a name of their own, or else one of `extra`."""
        has_a_name = name in options and name not in (*LISTS, *TABLES)
        return cls({name: value} if has_a_name else {"extra": {**options["extra"], name: value}})


Said = TypeVar("Said")


@dataclass(frozen=True)
class Query(Generic[Said]):
    """A command that asks about jobs, and how its answer is read: `parse` raises ValueError for one that is not whole.

    `none` is what a command may say that fails because there is no such job.
    """

    argv: tuple[str, ...]
    parse: Callable[[str], list[Said]]
    none: tuple[str, ...] = ()


@dataclass(frozen=True)
class Memory:
    """Commands that list jobs that ended a while ago; `without` is logged where `program` is not to be had."""

    program: str
    queries: tuple[Query[Row], ...]
    without: str = ""


class Scheduler(Protocol):
    """Text in, text out: what is to be run, what its answer means, and what a job finds in its environment."""

    NAME: str
    SUBMIT: str
    # How the names begin of the variables by which `job_id` knows a job of its own.
    VARIABLES: str
    # How the names begin of the variables by which users give options to its commands; empty if there are none.
    USER_VARIABLES: str
    # The fast folder that a job has on its node, as a shell says it.
    SCRATCH: str
    # Directives without a name among the options by which jobs ask for GPUs.
    GPU_DIRECTIVES: frozenset[str]
    # Where dask-jobqueue has its class of such jobs.
    DASK_JOB: str
    # Whether a job that is cancelled before it starts leaves no trace.
    FORGETS_CANCELLED: bool

    @property
    def OPTIONS(self) -> type[PackOptions]:
        """What a job may ask of it."""

    def log_pattern(
        self, log_dir: str, rule: str, wildcards: Mapping[str, str], bundle: str = "", task: int = 0, /
    ) -> str:
        """Where a job logs, as the scheduler takes it: one of its own, or in a kind of bundle, as task of its step."""

    def log_path(self, pattern: str, job_id: str, /) -> str:
        """The log's real path."""

    def directive(self, line: str, options: Mapping[str, Any], /) -> Directive:
        """What a line of a script's header asks for, beside `options`. Raises ValueError if it is none."""

    def resource_spec(self, text: str, options: Mapping[str, Any], /) -> Directive:
        """What dask-jobqueue's keyword of that name asks for. Raises ValueError where it means nothing."""

    def render(self, values: ScriptValues, /) -> str:
        """The script of a submission. Raises SubmissionError for a value that cannot be passed safely."""

    def header(self, values: ScriptValues, /) -> list[str]:
        """The lines with which a script of another command than `render`'s begins."""

    def submission(self, values: ScriptValues, script: Path, /) -> tuple[str, ...]:
        """The command that submits it."""

    def bundled(self, bundle: BundleValues, /) -> BundleText:
        """The scripts and the submission of several tasks at once. Raises SubmissionError where that cannot be had."""

    def submitted_id(self, text: str, /) -> str | None:
        """The job's id, from the answer of `submission`."""

    def refusal(self, words: str, /) -> Refusal:
        """Whether the same job may be accepted later."""

    def listing(self, user: str, /) -> Query[Row]:
        """All jobs of the user, those that ended a short while ago included."""

    def drained_nodes(self) -> Query[str] | None:
        """Sentences about nodes that the scheduler itself took out of use; None where it says none."""

    def one_job(self, user: str, job_id: str, /) -> Query[Row]:
        """One job; its `start` is when it is expected to start, where the scheduler has that."""

    def memories(
        self, user: str, job_ids: Sequence[str], names: Sequence[str], known_names: Sequence[str] = (), /
    ) -> Sequence[Memory]:
        """The commands for jobs that `listing` no longer has, by id and by name, the best first.

        `known_names` are those of the jobs with ids, for schedulers that can ask for many only by name.
        """

    def accounts(self, user: str, job_ids: Sequence[str], names: Sequence[str], /) -> Sequence[Query[Account]]:
        """The queries for what jobs that have ended were given and took, by id, or by the names that they have."""

    def in_words(self, reason: str, /) -> str:
        """What the reason means for which a job pends, and what can be done; nothing where it says that itself."""

    def keeps_no_memory(self, stderr: str, /) -> bool:
        """Whether a command failed because this cluster keeps no accounting."""

    def cancellations(self, user: str, job_ids: Iterable[str], /) -> Sequence[tuple[str, ...]]:
        """The commands that cancel jobs."""

    def has_ended(self, stderr: str, /) -> bool:
        """Whether a cancellation failed because the job had ended meanwhile."""

    def stack_dumps(self, job_ids: Iterable[str], /) -> Sequence[tuple[str, ...]]:
        """The commands that have jobs write their stacks to their logs, if that can be had without ending them."""

    def says_out_of_memory(self, log_tail: str, /) -> bool:
        """Whether the job's log ends with the scheduler's own words for a job killed for memory."""

    def environment(self, environ: Mapping[str, str], /) -> dict[str, str]:
        """The environment of its commands."""

    def handed_on(self, environ: Mapping[str, str], /) -> str:
        """The bash that gives a job the environment of its submission, where the scheduler is not to do that."""

    def job_id(self, environ: Mapping[str, str], /) -> str | None:
        """The id of the job in which this process runs."""

    def given(self, environ: Mapping[str, str], /) -> dict[str, int]:
        """The CPUs and the bytes of memory that the job was given, as far as its environment says so."""

    def node_folder(self, environ: Mapping[str, str], /) -> str | None:
        """The folder on the node that the job was given, if any."""


def chunked(words: Iterable[str], longest: int = 30_000) -> list[list[str]]:
    """Words in groups whose comma-joined length stays below `longest` characters, as one argument has a limit."""
    groups: list[list[str]] = []
    room = 0
    for word in words:
        if not groups or room < len(word) + 1:
            groups.append([])
            room = longest
        groups[-1].append(word)
        room -= len(word) + 1
    return groups
