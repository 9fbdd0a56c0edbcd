"""The interface of a scheduler: text that goes to its commands, and text that comes back.

A scheduler is a module that fulfils `Scheduler` by constants and pure functions, some of them parsers from a module
beside it. `commands.Commands` alone runs the commands. Ids of jobs have to fit `script.JOB_ID`.

A new option, such as ``--reservation`` of Slurm, is a field of that scheduler's `OPTIONS` (`SlurmOptions`), which
`asked` (Slurm) or `arguments` (Grid Engine) renders. Slurm renders every such field as ``--name=value`` without further
code. The key of luigi.cfg's section and the parameter of each task follow from the field.

A new scheduler, such as LSF, is a module ``lsf`` beside `slurm` and `gridengine`, an entry in `SCHEDULERS`, and a
section of luigi.cfg in `driver.settings.sections`. `gridengine` is the smaller example. Only `slurm` has bundles,
drivers that are jobs, and steps in an allocation (`espo submit`, `espo shell`).
"""

from __future__ import annotations

import enum
import functools
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from espo_luigi.jobs.causes import Cause
from espo_luigi.jobs.resources import JobOptions
from espo_luigi.jobs.schedulers.script import ScriptValues

logger = logging.getLogger(__name__)


class Phase(enum.Enum):
    """The meaning of a scheduler's state of a job, unless the job ended badly: then that is a `Cause`.

    ========================== ==========================================================
    PENDING, RUNNING           it waits; it has begun
    SUSPENDED                  it has begun, and is stopped for a while
    LEAVING                    its processes are gone or told to go; its epilog may run
    COMPLETED                  it has ended, with exit code 0
    ========================== ==========================================================
    """

    PENDING = "pending"
    RUNNING = "running"
    SUSPENDED = "suspended"
    LEAVING = "leaving"
    COMPLETED = "completed"


@dataclass(frozen=True)
class Row:
    """A job in a scheduler's answer: where it stands, or why it ended badly, is its `phase`.

    `state` is the scheduler's own name of that; `reason` may be empty.

    An element of an array is a job with an id like ``1234_3`` and a name like ``name[3]``.

    `launch_failed`: a node could not start the job, and the scheduler queued it again and holds it. `hopeless`: waiting
    will not start the job. `held`: the job waits until somebody releases it, or gives its account more. `start`: when
    the job started, or is expected to start, if the query asked for that. `in_error`: a host that is not named could
    not start the job. `no_log`: its node could not open the job's log, or its script, so that nothing of it ran.
    """

    job_id: str
    name: str
    state: str
    phase: Phase | Cause
    node: str = ""
    reason: str = ""
    launch_failed: bool = False
    hopeless: bool = False
    held: bool = False
    start: str = ""
    in_error: bool = False
    no_log: bool = False

    @property
    def ended(self) -> bool:
        return self.phase is Phase.COMPLETED or isinstance(self.phase, Cause)

    @property
    def said(self) -> str:
        """The state for people: ``PENDING (Priority)``."""
        return f"{self.state} ({self.reason})" if self.reason else self.state


class Refusal(enum.Enum):
    """Whether a submission that got no job id may succeed later: PASSING yes, PERMANENT no.

    TOO_MANY: later, or now with fewer jobs. TOO_LARGE: only as a smaller array.
    """

    PASSING = "passing"
    TOO_MANY = "too many"
    TOO_LARGE = "too large"
    PERMANENT = "permanent"
    UNCLEAR = "unclear"

    @classmethod
    def of(cls, meanings: Iterable[tuple[str, Refusal]], message: str, /) -> Refusal:
        """Return the meaning of the first pattern that occurs in a command's message."""
        found = (meaning for pattern, meaning in meanings if re.search(pattern, message, re.IGNORECASE))
        return next(found, cls.UNCLEAR)


@dataclass(frozen=True)
class Usage:
    """The resources that a run of a job was given and used; a field that the scheduler leaves out is 0 or empty.

    Times are seconds since 1970. `cpus`, `memory_bytes` and `time_minutes` are those that the job was given.
    """

    job_id: str
    name: str
    phase: Phase | Cause
    node: str = ""
    queued: float = 0.0
    started: float = 0.0
    ended: float = 0.0
    cpus: int = 0
    memory_bytes: int = 0
    time_minutes: int = 0
    cpu_seconds: float = 0.0
    peak_memory_bytes: int = 0
    energy_joules: float = 0.0


Found = TypeVar("Found")


@dataclass(frozen=True)
class Query(Generic[Found]):
    """A command that asks about jobs. `parse` reads its answer, and raises ValueError if that is not whole.

    The command may fail with a message in `none` if there is no such job.
    """

    argv: tuple[str, ...]
    parse: Callable[[str], list[Found]]
    none: tuple[str, ...] = ()


class Scheduler(Protocol):
    """A scheduler's commands as text, their answers, and the environment of its jobs."""

    NAME: str
    SUBMIT: str
    # The prefix of the variables from which `job_id` knows a job of this scheduler.
    VARIABLES: str
    # The prefix of the variables in which users give options to the commands; empty if there are none.
    USER_VARIABLES: str
    # The fast folder that a job has on its node, as a shell variable.
    SCRATCH: str
    # Asks for all jobs of the user, those that ended a short while ago included.
    LISTING: Query[Row]
    # Cancels the user's jobs whose ids follow.
    CANCEL: tuple[str, ...]
    # The forms of a job's id in the answer to `submit_command`; a form counts if those before it do not occur.
    ID_FORMS: tuple[str, ...]
    # Messages of a cancellation that fails because the job had ended meanwhile.
    HAS_ENDED: tuple[str, ...]
    # The message of a cluster that keeps no accounting; empty if only a missing program says so.
    NO_ACCOUNTING: str
    # Logged with the reason on a cluster without accounting, and asked there instead, if there is anything to ask.
    WITHOUT_ACCOUNTING: str
    INSTEAD_OF_ACCOUNTING: Query[Row] | None
    # Asks for sentences about nodes that the scheduler itself took out of use; None if it does not do that.
    DRAINED: Query[str] | None

    @property
    def OPTIONS(self) -> type[JobOptions]:
        """The options that a job may ask for."""

    # The script and its log.
    def log_pattern(
        self, log_dir: str, rule: str, wildcards: Mapping[str, str], bundle: str = "", task: int = 0, /
    ) -> str:
        """Return the log's path with the scheduler's own placeholders; `task` is the place in a step of a bundle."""

    def log_path(self, pattern: str, job_id: str, /) -> str:
        """Return the log's real path."""

    def render(self, values: ScriptValues, /) -> str:
        """Return the script of a submission. Raises SubmissionError for a value that cannot be passed safely."""

    def header(self, values: ScriptValues, /) -> list[str]:
        """Return the first lines of any job's script, for scripts that `render` does not make."""

    # Submitting.
    def submit_command(self, values: ScriptValues, script: Path, /) -> tuple[str, ...]:
        """Return the command that submits the script."""

    def refusal(self, message: str, /) -> Refusal:
        """Say whether the same job may be accepted later."""

    # Following.
    def by_id(self, job_ids: Sequence[str], /) -> Sequence[Query[Row]]:
        """Ask for jobs that `LISTING` lacks: of any user, and whatever defaults of the site or the user hide."""

    def one_job(self, job_id: str, /) -> Query[Row]:
        """Ask for a job, with its expected start if the scheduler estimates that."""

    def in_words(self, reason: str, /) -> str:
        """Explain to the user why a job pends, and the remedy; empty if the reason says that itself."""

    # Jobs that have ended.
    def forgets_cancelled(self, job_id: str, /) -> bool:
        """Return whether a job with such an id that is cancelled before it starts leaves no trace."""

    def accounting(
        self, job_ids: Sequence[str], names: Sequence[str], known_names: Sequence[str] = (), /
    ) -> Sequence[Query[Row]]:
        """Ask for jobs that `LISTING` no longer has, by id and by name.

        `known_names` are the names of the jobs with ids, for schedulers that ask for many jobs by name.
        """

    def usage(self, job_ids: Sequence[str], names: Sequence[str], /) -> Sequence[Query[Usage]]:
        """Ask for the resources that ended jobs were given and used, by id or by the names of these jobs."""

    def says_out_of_memory(self, log_tail: str, /) -> object:
        """Return whether the job's log ends with the scheduler's message about a job killed for memory."""

    # The environment of commands and jobs.
    def environment(self, environ: Mapping[str, str], /) -> dict[str, str]:
        """Return the environment of the scheduler's commands."""

    def environment_script(self, environ: Mapping[str, str], /) -> str:
        """Return bash that gives a job the environment of its submission; empty if the scheduler does that itself."""

    def job_id(self, environ: Mapping[str, str], /) -> str | None:
        """Return the id of the job around this process."""

    def given(self, environ: Mapping[str, str], /) -> dict[str, int]:
        """Return the CPUs and the bytes of memory of the job, as far as its environment tells them."""


@functools.cache
def warn_of_unknown_state(scheduler: str, state: str) -> None:
    """Log once that a scheduler answered a state that this package does not know."""
    logger.warning("%s answered the unknown job state %r: the job is taken as still there", scheduler, state)


def bytes_of(text: str) -> int:
    """Return the bytes of an amount with which `text` begins, such as ``4000M``; 0 if there is none."""
    found = re.match(r"(\d+(?:\.\d+)?)([KMGTP]?)", text, re.ASCII | re.IGNORECASE)
    return int(float(found[1]) * 1024 ** " KMGTP".index(found[2].upper() or " ")) if found else 0


def chunked(parts: Iterable[str], longest: int = 30_000) -> list[list[str]]:
    """Group texts so that each group, joined by commas, fits into a command's argument of `longest` characters."""
    groups: list[list[str]] = []
    room = 0
    for part in parts:
        if not groups or room < len(part) + 1:
            groups.append([])
            room = longest
        groups[-1].append(part)
        room -= len(part) + 1
    return groups
