"""The text that goes to Slurm: job names, log file names, directives and sbatch scripts, as pure functions of values.

Every value is quoted, or refused with a `SubmissionError` before anything is submitted. The directives stand in the
script (so that it can be read, and submitted by hand) and are given to sbatch as arguments too: ``SBATCH_…`` variables
of the user's environment override a script's own lines, but not arguments.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from espo_luigi.errors import SubmissionError

MIB = 2**20
# The longest file name on the usual file systems is 255 bytes; what is left is for the job's id and the suffix.
_LONGEST_LOG_STEM = 200
_CONTROL = re.compile(r"[\x00-\x1f\x7f\x80-\x9f\u2028\u2029]")
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)\}?((?:/.*)?)", re.ASCII)
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_DIRECTIVE = re.compile(r"[a-z][a-z0-9-]*", re.ASCII)
# Directives that the engine itself sets, or with which one submission would no longer be one job that runs one command.
_RESERVED = frozenset(
    {
        "array",
        "chdir",
        "cluster",
        "clusters",
        "cpus-per-task",
        "error",
        "export-file",
        "input",
        "job-name",
        "mem",
        "mem-per-cpu",
        "mem-per-gpu",
        "nodes",
        "no-requeue",
        "ntasks",
        "open-mode",
        "output",
        "parsable",
        "requeue",
        "test-only",
        "time",
        "wait",
        "wrap",
    }
)
_NAMED = ("partition", "account", "constraint", "qos", "nodelist", "gres", "licenses")


@dataclass(frozen=True)
class SlurmOptions:
    """What a site or a user wants of Slurm for a job, besides CPUs, memory and time.

    `extra` holds any further directive by its long name without dashes (``{"reservation": "maintenance"}``; an empty
    value makes a flag, ``{"exclusive": ""}``). `setup` is bash, run as it stands before the job's command.
    `environment` is exported with its values taken literally. `scratch` is a folder on the node, as a literal path or
    beginning with one variable (``$SLURM_TMPDIR/work``); the job finds it in ``ESPO_NODE_SCRATCH``.
    """

    partition: str | None = None
    account: str | None = None
    constraint: str | None = None
    qos: str | None = None
    nodelist: str | None = None
    exclude: tuple[str, ...] = ()
    gres: str | None = None
    licenses: str | None = None
    extra: Mapping[str, str] = field(default_factory=dict)
    setup: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    scratch: str | None = None


@dataclass(frozen=True)
class ScriptValues:
    """All that one sbatch script is made of.

    `log_pattern` is the log's path as sbatch takes it (``%j`` is the job's id); `claim_file` is where the job says
    which job id does this submission's work; `workdir` is where the command starts. Memory is in MiB, time in minutes.
    """

    name: str
    attempt: int
    argv: tuple[str, ...]
    cpus_per_task: int
    memory_mib: int
    time_minutes: int
    log_pattern: str
    claim_file: str
    workdir: str
    options: SlurmOptions = field(default_factory=SlurmOptions)


def task_name(run: str, rule: str, wildcards: Mapping[str, str], salt: str = "") -> str:
    """Name of a task's record, safe in file names and in squeue's answers: ``{run}.{rule}.{hash}``.

    The hash is of the full run, rule and wildcards, the same on any machine; `salt` tells apart the same run in two
    work folders.
    """
    text = json.dumps([salt, run, rule, sorted(wildcards.items())], ensure_ascii=True)
    return ".".join([_safe(run, 40), _safe(rule, 60), hashlib.sha256(text.encode()).hexdigest()[:12]])


def job_name(task: str, submission: int) -> str:
    """Name of one submission's job. No two calls of sbatch ever use the same one."""
    return f"{task}.{submission}"


def log_pattern(log_dir: str, rule: str, wildcards: Mapping[str, str]) -> str:
    """``{log_dir}/{rule}/{rule}-{wildcards}-%j.out``, with what file names cannot hold replaced by ``_``."""
    values = ",".join(f"{key}={value}" for key, value in sorted(wildcards.items()))
    stem = f"{_safe(rule, 60)}-{values}" if values else _safe(rule, 60)
    # sbatch replaces %-codes in this path; %% is one per cent sign.
    return f"{log_dir.replace('%', '%%')}/{_safe(rule, 60)}/{_safe(stem, _LONGEST_LOG_STEM)}-%j.out"


def log_path(pattern: str, job_id: str) -> str:
    """The log's real path, from the pattern that `log_pattern` made."""
    return pattern.replace("%%", "\0").replace("%j", job_id).replace("\0", "%")


def directives(values: ScriptValues) -> tuple[str, ...]:
    """The job's options as ``--name=value``, in a fixed order, each one argument of sbatch. Raises SubmissionError."""
    options = values.options
    if "\\" in values.log_pattern:
        # With a backslash in it, sbatch takes the whole path literally: all jobs would write to one file named %j.
        raise SubmissionError(f"log path: {values.log_pattern!r} holds a backslash; use a log folder without one")
    mine = [
        f"--job-name={values.name}",
        f"--output={_checked('log path', values.log_pattern)}",
        # A job that is requeued keeps its id: its second start must not wipe the log of the first.
        "--open-mode=append",
        "--requeue",
        f"--chdir={_checked('work folder', values.workdir)}",
        "--nodes=1",
        "--ntasks=1",
        f"--cpus-per-task={_positive('cpus_per_task', values.cpus_per_task)}",
        f"--mem={_positive('memory', values.memory_mib)}M",
        f"--time={_positive('time_minutes', values.time_minutes)}",
    ]
    named = [(name, getattr(options, name)) for name in _NAMED]
    mine += [f"--{name}={_checked(name, value)}" for name, value in named if value]
    if options.exclude:
        mine.append(f"--exclude={_checked('exclude', ','.join(options.exclude))}")
    return (*mine, *(_extra(name, value) for name, value in options.extra.items()))


def render_script(values: ScriptValues) -> str:
    """The sbatch script of one submission. Raises SubmissionError for a value that cannot be passed safely."""
    options = values.options
    header = [f"#SBATCH {_for_header(directive)}" for directive in directives(values)]
    setup = _checked("setup", options.setup, allowed="\n\t").strip("\n")
    parts = [
        "\n".join(["#!/bin/bash", *header]),
        _render_claim(_checked("claim file", values.claim_file)),
        "\n".join(_exports(values)),
        *([setup] if setup else []),
        # exec: the signals that Slurm sends to the batch step reach the command itself.
        f"cd -- {shlex.quote(values.workdir)} || exit 1\nexec {_command(values.argv)}",
    ]
    return "\n\n".join(parts) + "\n"


def _render_claim(claim_file: str) -> str:
    # Of all jobs that Slurm may ever start under this name, one works: whoever creates the claim first, the job by its
    # id or the driver by a word. A requeued job finds its own id and goes on. Only its own job leaves a claim empty (it
    # died between creating and writing), and a driver's is empty no longer than an instant.
    return f"""\
claim={shlex.quote(claim_file)}
( set -o noclobber; printf '%s\\n' "$SLURM_JOB_ID" > "$claim" ) 2>/dev/null
[ -s "$claim" ] || sleep 2
if ! owner=$(cat -- "$claim"); then
    echo "Cannot write $claim: nothing is done, as another job might do the same work." >&2
    exit 1
fi
if [ -n "$owner" ] && [ "$owner" != "$SLURM_JOB_ID" ]; then
    echo "This work belongs to '$owner': job $SLURM_JOB_ID does nothing." >&2
    exit 0
fi"""


def _exports(values: ScriptValues) -> list[str]:
    options = values.options
    lines = [f"export ESPO_JOB_NAME={shlex.quote(values.name)}", f"export ESPO_ATTEMPT={values.attempt}"]
    if options.scratch:
        lines.append(f"export ESPO_NODE_SCRATCH={_scratch(_checked('scratch', options.scratch))}")
    for name, value in options.environment.items():
        if not _NAME.fullmatch(name):
            raise SubmissionError(f"environment: {name!r} is not a variable's name (letters, digits and _)")
        lines.append(f"export {name}={shlex.quote(_checked(name, value))}")
    return lines


def _scratch(value: str) -> str:
    variable = _VARIABLE.fullmatch(value)
    if variable is None:
        return shlex.quote(value)
    name, rest = variable.groups()
    # Not every cluster defines $SLURM_TMPDIR.
    return f'"${{{name}:-${{TMPDIR:-/tmp}}}}"' + (shlex.quote(rest) if rest else "")


def _command(argv: tuple[str, ...]) -> str:
    if not argv:
        raise SubmissionError("argv is empty: there is no command to run on the node")
    return " ".join(shlex.quote(_checked("argv", word)) for word in argv)


def _extra(name: str, value: str) -> str:
    if not _DIRECTIVE.fullmatch(name):
        raise SubmissionError(f"extra: {name!r} is not a directive's long name without dashes, such as 'reservation'")
    if name in _RESERVED:
        raise SubmissionError(f"extra: --{name} is set by the engine, or would make one submission more than one job")
    if name in (*_NAMED, "exclude"):
        raise SubmissionError(f"extra: --{name} has an option of its own: give it as {name!r}")
    return f"--{name}={_checked(name, value)}" if value else f"--{name}"


def _for_header(directive: str) -> str:
    # sbatch reads its own quoting in #SBATCH lines: inside double quotes, a backslash protects a quote or itself.
    if re.fullmatch(r"[\w./:=,+@%-]*", directive, re.ASCII):
        return directive
    name, _, value = directive.partition("=")
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'{name}="{escaped}"'


def _checked(what: str, value: str, allowed: str = "") -> str:
    found = _CONTROL.search("".join(c for c in value if c not in allowed))
    if found:
        raise SubmissionError(f"{what}: {value!r} holds the control character {found.group()!r}; remove it")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise SubmissionError(f"{what}: {value!r} is not valid text ({error.reason})") from error
    return value


def _positive(what: str, value: int) -> int:
    if value < 1:
        raise SubmissionError(f"{what} is {value}, expected 1 or more")
    return value


def _safe(text: str, longest: int) -> str:
    clean = re.sub(r"[^A-Za-z0-9_.=,+@-]", "_", text).lstrip("-")
    return clean if len(clean) <= longest else f"{clean[: longest - 9]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
