"""Renders the bash script of a submission for any scheduler, and names submissions.

A script is a rendered header, whose values are quoted assignments, and static ``.sh`` files of this package. A value
that cannot be quoted is refused with a `SubmissionError` before anything is submitted.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import secrets
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from espo_luigi.errors import SubmissionError
from espo_luigi.jobs.resources import JobOptions

_CONTROL = re.compile(r"[\x00-\x1f\x7f\x80-\x9f\u2028\u2029]")
_SCRATCH = re.compile(r"\$\{?([A-Za-z_]\w*)\}?((?:/.*)?)", re.ASCII)
VARIABLE_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
JOB_ID = re.compile(r"\d+(_\d+)?", re.ASCII)
# The variables that a job finds in its environment.
CLAIM_VARIABLE = "ESPO_CLAIM"
NAME_VARIABLE = "ESPO_JOB_NAME"
ATTEMPT_VARIABLE = "ESPO_ATTEMPT"
SCRATCH_VARIABLE = "ESPO_NODE_SCRATCH"
# The text by which the claim names this job: its id, or that of a task of its array.
OWNER_VARIABLE = "ESPO_OWNER"
# Which start of the job this is: `claim.sh` sets it.
START_VARIABLE = "ESPO_START"
FIRST_START = "0"
# From this second since 1970 on, a signal to end means that the time is nearly up.
LATE_VARIABLE = "ESPO_LATE"
# A scheduler may send its warning so much earlier than asked.
_SIGNAL_SECONDS = 60
_CLAIM = Path(__file__).with_name("claim.sh")


@dataclass(frozen=True)
class ScriptValues:
    """The values of a submission's script.

    `log_pattern` is the log's path with the scheduler's placeholders. The job that does the work writes its id to
    `claim_file`. The command starts in `workdir`. `Commands.write_environment` has written the job's environment to
    `environment_file`, if the scheduler needs that. The job gets a signal `warning_seconds` before its end, if the
    scheduler can send it (0: none).
    """

    name: str
    attempt: int
    argv: tuple[str, ...]
    cpus_per_task: int
    memory_bytes: int
    time_minutes: int
    log_pattern: str
    claim_file: str
    workdir: str
    options: JobOptions = field(default_factory=JobOptions)
    warning_seconds: int = 0
    environment_file: str = ""

    @property
    def late_seconds(self) -> int:
        """The seconds after which a signal to end means that the time is nearly up."""
        early = self.warning_seconds + _SIGNAL_SECONDS if self.warning_seconds else _SIGNAL_SECONDS // 2
        return max(0, 60 * self.time_minutes - early)


def start_path(claim: Path) -> Path:
    """Return the file in which a job that was started again says which of its starts works."""
    return claim.with_name(claim.name + ".start")


def end_path(claim: Path) -> Path:
    """Return the file that says how a member of a bundle has ended."""
    return claim.with_name(claim.name + ".end")


@functools.cache
def shell_text(path: Path) -> str:
    """Return a ``.sh`` file below its head, the comments up to the first empty line."""
    return path.read_text(encoding="utf-8").partition("\n\n")[2].rstrip("\n")


def task_name(run: str, rule: str, wildcards: Mapping[str, str], salt: str = "") -> str:
    """Name a task's record, safe in file names and in schedulers' answers: ``{run}.{rule}.{hash}``.

    The hash is of the full run, rule and wildcards, the same on any machine. `salt` tells apart runs of the same name
    in two work folders.
    """
    text = json.dumps([salt, run, rule, sorted(wildcards.items())], ensure_ascii=True)
    return ".".join([safe(run, 40), safe(rule, 60), hashlib.sha256(text.encode()).hexdigest()[:12]])


def submission_name(task: str, submission: int) -> str:
    """Name the job of a submission. No two submissions ever use the same name."""
    return f"{task}.{submission}"


def workers_name(owner: str) -> str:
    """Return a name for a worker job of the job called `owner`, used once."""
    return f"{owner}.{secrets.token_hex(4)}.workers"


def owner_of(name: str) -> str:
    """Return the name of the job whose worker job is called `name`; of any other job, its own."""
    return re.sub(r"\.[0-9a-f]{8}\.workers$", "", name)


def element_name(name: str, place: object) -> str:
    """Name an element of the array called `name`, as rows of a scheduler's answer do."""
    return f"{name}[{place}]"


def array_of(name: str) -> str:
    """Return the name given to the scheduler: of the array for an element, else the job's own."""
    return name.partition("[")[0]


def log_stem(rule: str, wildcards: Mapping[str, str], between: str) -> str:
    """Return the beginning of a log's name, which the job's id follows."""
    values = between.join(f"{key}={value}" for key, value in sorted(wildcards.items()))
    # The usual file systems allow 255 bytes; the rest is for the job's id and the suffix.
    return safe(f"{safe(rule, 60)}-{values}" if values else safe(rule, 60), 200)


def render_script(
    values: ScriptValues,
    header: Iterable[str],
    job_id: str = "",
    first: Iterable[str] = (),
    # With `exec`, the scheduler's signals to the script reach the command itself.
    run: Callable[[str], str] = "exec {}".format,
) -> str:
    """Return the script of a submission. Raises SubmissionError for an unsafe value.

    `header` are the scheduler's directives, `job_id` is its id of the job as bash (empty: the job claims no work), and
    `first` is bash before the claim. `run` makes the lines that run a command.
    """
    parts, exports = ["\n".join(["#!/bin/bash", *header]), *first], option_exports(values.options)
    if job_id:
        claim = shlex.quote(checked("claim file", values.claim_file))
        parts.append(f"claim={claim}\njob_id={job_id}\n{shell_text(_CLAIM)}")
        exports = [
            f"export {NAME_VARIABLE}={shlex.quote(values.name)}",
            f"export {ATTEMPT_VARIABLE}={values.attempt}",
            f"export {CLAIM_VARIABLE}={claim}",
            f"export {LATE_VARIABLE}=$(( $(date +%s) + {values.late_seconds} ))",
            *exports,
        ]
    parts += ["\n".join(exports)] if exports else []
    command = f"{render_cd(values.workdir)}\n{run(render_command(values.argv))}"
    return "\n\n".join([*parts, *rendered_setup(values.options), command]) + "\n"


def rendered_setup(options: JobOptions) -> list[str]:
    """Return the user's bash that runs before the command, if there is any."""
    setup = checked("setup", options.setup, allowed="\n\t").strip("\n")
    return [setup] if setup else []


def render_cd(workdir: str) -> str:
    """Return the line that goes to the work folder."""
    return f"cd -- {shlex.quote(workdir)} || exit 1"


def option_exports(options: JobOptions) -> list[str]:
    """Return lines of bash that export a job's scratch folder and environment. Raises SubmissionError."""
    if not options.scratch:
        return rendered_environment(options)
    scratch = checked("scratch", options.scratch)
    value, variable = shlex.quote(scratch), _SCRATCH.fullmatch(scratch)
    if variable:
        # Not every cluster defines $SLURM_TMPDIR.
        value = f'"${{{variable[1]}:-${{TMPDIR:-/tmp}}}}"' + (shlex.quote(variable[2]) if variable[2] else "")
    return [f"export {SCRATCH_VARIABLE}={value}", *rendered_environment(options)]


def rendered_environment(options: JobOptions) -> list[str]:
    """Return the lines that export the user's variables."""
    lines = []
    for name, value in options.environment.items():
        if not VARIABLE_NAME.fullmatch(name):
            raise SubmissionError(f"environment: {name!r} is not a variable's name (letters, digits and _)")
        lines.append(f"export {name}={shlex.quote(checked(name, value))}")
    return lines


def render_command(argv: tuple[str, ...]) -> str:
    """Return a command, quoted for bash."""
    if not argv:
        raise SubmissionError("argv is empty: there is no command to run on the node")
    return " ".join(shlex.quote(checked("argv", word)) for word in argv)


def checked(what: str, value: str, allowed: str = "") -> str:
    """Return `value`; raises SubmissionError, which names `what`, if it is not plain text."""
    found = _CONTROL.search("".join(c for c in value if c not in allowed))
    if found:
        raise SubmissionError(f"{what}: {value!r} holds the control character {found.group()!r}; remove it")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise SubmissionError(f"{what}: {value!r} is not valid text ({error.reason})") from error
    return value


def positive(what: str, value: int) -> int:
    """Return `value`; raises SubmissionError if it is below one."""
    if value < 1:
        raise SubmissionError(f"{what} is {value}, expected 1 or more")
    return value


def safe(text: str, longest: int) -> str:
    """Replace characters that file names cannot hold by ``_``, and cut to `longest` characters."""
    clean = re.sub(r"[^A-Za-z0-9_.=,+@-]", "_", text).lstrip("-")
    return clean if len(clean) <= longest else f"{clean[: longest - 9]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
