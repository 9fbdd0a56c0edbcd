"""The bash script of one submission, as any scheduler runs it, and the names that tell submissions apart.

Every value is quoted, or refused with a `SubmissionError` before anything is submitted.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from espo_luigi.errors import SubmissionError

_CONTROL = re.compile(r"[\x00-\x1f\x7f\x80-\x9f\u2028\u2029]")
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)\}?((?:/.*)?)", re.ASCII)
# Seconds between a job's tries to claim its work: four minutes in all.
PAUSES = "1 2 4 8 15 30 60 120 0"
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
JOB_ID = re.compile(r"\d+(_\d+)?", re.ASCII)
# Where a job finds its claim and which of its starts it is; what the file beside the claim is called that says
# which start works.
CLAIM_VARIABLE = "ESPO_CLAIM"
NAME_VARIABLE = "ESPO_JOB_NAME"
ATTEMPT_VARIABLE = "ESPO_ATTEMPT"
SCRATCH_VARIABLE = "ESPO_NODE_SCRATCH"
START_VARIABLE = "ESPO_START"
FIRST_START = "0"
# After which second since 1970 a signal to end means that the time is nearly up.
LATE_VARIABLE = "ESPO_LATE"
# How much earlier than asked for a scheduler may say so.
_SIGNAL_SECONDS = 60
_START = ".start"
# What the file beside the claim is called that says that a bundle's member has ended, while others go on.
END = ".end"
# What the name of a job's worker jobs ends in.
_WORKERS = ".workers"


@dataclass(frozen=True)
class JobOptions:
    """What a site or a user wants of any scheduler for a job, besides CPUs, memory and time.

    `exclude` are nodes on which it must not run. `extra` holds any further option of the scheduler by its long name
    without dashes (``{"reservation": "maintenance"}``; an empty value makes a flag, ``{"exclusive": ""}``). `setup` is
    bash, run as it stands before the job's command. `environment` is exported with its values taken literally.
    `python` runs the work, where it is not the driver's own: a path, or a name that is looked for in what `setup` made
    of ``PATH``.
    `scratch` is a folder on the node, as a literal path or beginning with one variable (``$SLURM_TMPDIR/work``); the
    job finds it in ``ESPO_NODE_SCRATCH``.
    """

    exclude: tuple[str, ...] = ()
    extra: Mapping[str, str] = field(default_factory=dict)
    setup: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    scratch: str | None = None
    python: str = ""


@dataclass(frozen=True)
class PackOptions(JobOptions):
    """How many tasks of a rule make one submission, and how (`bundling.Bundling` reads them)."""

    pack: str | None = None
    bundle: str | None = None
    pack_at_once: str | None = None
    pack_per_step: str | None = None
    step_options: Mapping[str, str] = field(default_factory=dict)


PACKING = tuple(name for name in PackOptions.__dataclass_fields__ if name not in JobOptions.__dataclass_fields__)


# Which options are lists, and which are names with values; all others are text.
LISTS = tuple(one.name for one in fields(PackOptions) if one.default == ())
TABLES = tuple(one.name for one in fields(PackOptions) if one.default_factory is dict)


def own_names(kind: type[JobOptions]) -> tuple[str, ...]:
    """Return the names of the options that a scheduler has of its own."""
    return tuple(one.name for one in fields(kind) if one.name not in JobOptions.__dataclass_fields__)


@dataclass(frozen=True)
class ScriptValues:
    """All that one submission's script is made of.

    `log_pattern` is the log's path as the scheduler takes it; `claim_file` is where the job says
    which job id does this submission's work; `workdir` is where the command starts. `environment_file` is where
    `Commands.hand_on` has written the job's environment, if the scheduler needs that.
    The job is told so many `warning_seconds` before its end, where the scheduler can be asked to (0: it is not).
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
        """After how many seconds a signal to end means that the time is nearly up."""
        early = self.warning_seconds + _SIGNAL_SECONDS if self.warning_seconds else _SIGNAL_SECONDS // 2
        return max(0, 60 * self.time_minutes - early)


def start_path(claim: Path) -> Path:
    """Where a job that was started again says which of its starts works."""
    return claim.with_name(claim.name + _START)


def end_path(claim: Path) -> Path:
    """Where it is said how a member of a bundle has ended."""
    return claim.with_name(claim.name + END)


def task_name(run: str, rule: str, wildcards: Mapping[str, str], salt: str = "") -> str:
    """Name of a task's record, safe in file names and in schedulers' answers: ``{run}.{rule}.{hash}``.

    The hash is of the full run, rule and wildcards, the same on any machine; `salt` tells apart the same run in two
    work folders.
    """
    text = json.dumps([salt, run, rule, sorted(wildcards.items())], ensure_ascii=True)
    return ".".join([safe(run, 40), safe(rule, 60), hashlib.sha256(text.encode()).hexdigest()[:12]])


def submission_name(task: str, submission: int) -> str:
    """Name of one submission's job. No two submissions ever use the same one."""
    return f"{task}.{submission}"


def workers_name(owner: str) -> str:
    """Name of the worker jobs of the job called `owner`."""
    return owner + _WORKERS


def owner_name(name: str) -> str | None:
    """Name of the job whose worker job is called `name`; None if it is no worker job."""
    return name.removesuffix(_WORKERS) if name.endswith(_WORKERS) else None


def log_stem(rule: str, wildcards: Mapping[str, str], between: str) -> str:
    """The name of a job's log, up to what tells its jobs apart."""
    values = between.join(f"{key}={value}" for key, value in sorted(wildcards.items()))
    # The longest file name on the usual file systems is 255 bytes; what is left is for the job's id and the suffix.
    return safe(f"{safe(rule, 60)}-{values}" if values else safe(rule, 60), 200)


def render_script(
    values: ScriptValues,
    header: Iterable[str],
    job_id_variable: str,
    first: Iterable[str] = (),
    # The signals that the scheduler sends to the script reach the command itself.
    run: Callable[[str], str] = "exec {}".format,
) -> str:
    """The script of one submission below the scheduler's own `header`. Raises SubmissionError for an unsafe value.

    `first` are the scheduler's own lines of bash before all others; `run` makes of a command the lines that run it.
    """
    claim = _render_claim(checked("claim file", values.claim_file), job_id_variable)
    command = run(render_command(values.argv))
    return _joined(values, header, [*first, claim, _RENDERED_START, "\n".join(_exports(values))], command)


def render_plain_script(values: ScriptValues, header: Iterable[str]) -> str:
    """The script of a job that claims no work. Raises SubmissionError for an unsafe value."""
    exports = "\n".join(option_exports(values.options))
    return _joined(values, header, [exports] if exports else [], f"exec {render_command(values.argv)}")


def _joined(values: ScriptValues, header: Iterable[str], parts: Iterable[str], command: str) -> str:
    beginning, setup = "\n".join(["#!/bin/bash", *header]), rendered_setup(values.options)
    return "\n\n".join([beginning, *parts, *setup, f"{render_cd(values.workdir)}\n{command}"]) + "\n"


def rendered_setup(options: JobOptions) -> list[str]:
    """What the user wants to be run before the command, if anything."""
    setup = checked("setup", options.setup, allowed="\n\t").strip("\n")
    return [setup] if setup else []


def render_cd(workdir: str) -> str:
    """The line that goes to the work folder."""
    return f"cd -- {shlex.quote(workdir)} || exit 1"


def _render_claim(claim_file: str, job_id: str) -> str:
    # Of all jobs that may ever start under this name, one works: whoever creates the claim first, the job by its
    # id or the driver by a word. A job that is started again finds its own id and goes on. A claim is written aside and
    # linked: it appears whole. While the file system fails, and where a claim is empty, the job looks again for four
    # minutes. With `set -C`, bash writes through no link that somebody has put there.
    return f"""\
claim={shlex.quote(claim_file)}
aside=${{claim%/*}}/.${{claim##*/}}.${job_id}.$HOSTNAME.$$.$RANDOM$RANDOM
begun=again
for pause in {PAUSES}; do
    why=$( rm -f -- "$aside"; set -C
        {{ printf '%s\\n' "${job_id}" > "$aside" && [ -s "$aside" ] && ln -- "$aside" "$claim"; }} 2>&1 ) &&
        begun=first
    owner=$(cat -- "$claim" 2>/dev/null)
    [ -n "$owner" ] && break
    sleep "$pause"
done
rm -f -- "$aside"
if [ -z "$owner" ]; then
    echo "Cannot claim the work by $claim ($why): nothing is done, as another job might do the same." >&2
    exit 1
fi
if [ "$owner" != "${job_id}" ]; then
    echo "This work belongs to '$owner': job ${job_id} does nothing." >&2
    exit 0
fi"""


# A job that was started again says which of its starts works now: the one before may still be on a node that the
# scheduler lost, and looks here before it publishes (`espo_luigi.jobs.node.claim`). The last to write works; each
# writes a unique text, as not every scheduler numbers restarts. In a file of its own, so that a claim that the driver
# closes meanwhile stays closed. While the file system fails, the job tries again, as long as for the claim.
_RENDERED_START = f"""\
export {START_VARIABLE}={FIRST_START}
if [ "$begun" = again ]; then
    {START_VARIABLE}=$(date +%s.%N).$HOSTNAME.$$
    start="$claim{_START}"
    aside="$start.$HOSTNAME.$$.$RANDOM$RANDOM"
    for pause in {PAUSES}; do
        rm -f -- "$aside"
        ( set -C; printf '%s\\n' "${START_VARIABLE}" > "$aside" ) && mv -fT -- "$aside" "$start" && break
        sleep "$pause"
    done
    rm -f -- "$aside"
    if [ "$(cat -- "$start")" != "${START_VARIABLE}" ]; then
        echo "Cannot write $start: nothing is done, as an earlier start of this job may still be at work." >&2
        exit 1
    fi
fi"""


def _exports(values: ScriptValues) -> list[str]:
    lines = [f"export {NAME_VARIABLE}={shlex.quote(values.name)}", f"export {ATTEMPT_VARIABLE}={values.attempt}"]
    lines.append(f"export {CLAIM_VARIABLE}={shlex.quote(values.claim_file)}")
    lines.append(f"export {LATE_VARIABLE}=$(( $(date +%s) + {values.late_seconds} ))")
    return [*lines, *option_exports(values.options)]


def option_exports(options: JobOptions) -> list[str]:
    """Lines of bash that set a job's environment as its options say. Raises SubmissionError for an unsafe value."""
    lines = []
    if options.scratch:
        lines.append(f"export {SCRATCH_VARIABLE}={_scratch(checked('scratch', options.scratch))}")
    return [*lines, *rendered_environment(options)]


def rendered_environment(options: JobOptions) -> list[str]:
    """The lines that export what the user wants in the job's environment."""
    lines = []
    for name, value in options.environment.items():
        if not _NAME.fullmatch(name):
            raise SubmissionError(f"environment: {name!r} is not a variable's name (letters, digits and _)")
        lines.append(f"export {name}={shlex.quote(checked(name, value))}")
    return lines


def _scratch(value: str) -> str:
    variable = _VARIABLE.fullmatch(value)
    if variable is None:
        return shlex.quote(value)
    name, rest = variable.groups()
    # Not every cluster defines $SLURM_TMPDIR.
    return f'"${{{name}:-${{TMPDIR:-/tmp}}}}"' + (shlex.quote(rest) if rest else "")


def render_command(argv: tuple[str, ...]) -> str:
    """The words of a command, quoted for bash."""
    if not argv:
        raise SubmissionError("argv is empty: there is no command to run on the node")
    return " ".join(shlex.quote(checked("argv", word)) for word in argv)


def checked(what: str, value: str, allowed: str = "") -> str:
    """Return `value`; raises SubmissionError, naming `what` it is, if it is not plain text."""
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
    """Return `text` without what file names cannot hold, cut to `longest` characters."""
    clean = re.sub(r"[^A-Za-z0-9_.=,+@-]", "_", text).lstrip("-")
    return clean if len(clean) <= longest else f"{clean[: longest - 9]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
