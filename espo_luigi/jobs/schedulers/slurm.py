"""Slurm as a `base.Scheduler`, which describes the functions without a docstring; `slurm_parse` reads the answers.

The directives stand in the script, so that it can be read and submitted by hand. sbatch gets them as arguments, too:
``SBATCH_…`` variables of the user's environment override a script's lines, but not arguments.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from espo_luigi.errors import SubmissionError
from espo_luigi.jobs.keys import key
from espo_luigi.jobs.resources import (
    ARRAY,
    MIB,
    PACKING,
    PILOT,
    STEPS,
    JobOptions,
    PackOptions,
    Resources,
    mib,
    own_names,
)
from espo_luigi.jobs.schedulers import slurm_parse as answers
from espo_luigi.jobs.schedulers.base import Query, Row, Usage, chunked
from espo_luigi.jobs.schedulers.script import ScriptValues, array_of, checked, log_stem, positive, render_script, safe
from espo_luigi.jobs.schedulers.slurm_parse import in_words, refusal, says_out_of_memory  # noqa: F401

NAME = "Slurm"
SUBMIT = "sbatch"
VARIABLES = "SLURM_"
USER_VARIABLES = "SBATCH_"
SCRATCH = "$SLURM_TMPDIR"
# A number: $LOGNAME may name a different user.
_OWN = f"--user={os.getuid()}"
# --states=all: ended jobs stay for MinJobAge, so that this command alone finds nearly all of them.
_LISTED = ("--all", "--noheader", "--states=all", "--array", f"--format={answers.SQUEUE_FORMAT}")
LISTING: Query[Row] = Query(("squeue", *_LISTED, _OWN), answers.parse_squeue)
CANCEL: tuple[str, ...] = ("scancel", _OWN)
# ``sbatch --parsable`` says ``id`` or ``id;cluster``. A site's own `sbatch` may drop ``--parsable``.
ID_FORMS: tuple[str, ...] = (r"\bSubmitted batch job (\d+)\b", r"^\s*(\d+)(?:;\S+)?\s*$")
HAS_ENDED: tuple[str, ...] = (answers.NO_SUCH_JOB, "already completing or completed")
NO_ACCOUNTING = "accounting storage is disabled"
WITHOUT_ACCOUNTING = "no accounting (%s): squeue and scontrol are asked instead of sacct"
INSTEAD_OF_ACCOUNTING: Query[Row] | None = Query(
    ("scontrol", "--oneliner", "--all", "show", "jobs"), answers.parse_scontrol
)
DRAINED: Query[str] | None = Query(
    ("sinfo", "--noheader", "--Node", "--states=drain,down", "--format=%N|%E"), answers.parse_drained
)

# The form of a directive's long name.
DIRECTIVE = re.compile(r"[a-z][a-z0-9-]*", re.ASCII)
# Directives that the engine itself sets, or that would make a submission more than a single job with a single command.
_RESERVED = frozenset(
    {"array", "chdir", "cluster", "clusters", "cpus-per-task", "error", "export-file", "input", "job-name", "mem"}
    | {"mem-per-cpu", "mem-per-gpu", "nodes", "no-requeue", "ntasks", "open-mode", "output", "parsable", "requeue"}
    | {"test-only", "time", "wait", "wrap"}
)


@dataclass(frozen=True)
class SlurmOptions(PackOptions):
    """Options of sbatch that are keys of luigi.cfg and parameters of tasks; no other list of them exists.

    Where the site forbids ``--mem``, ``memory_resource = mem-per-cpu`` asks for each CPU's share, ``none`` for nothing.
    """

    partition: str | None = key(None, "sbatch's `--partition`")
    account: str | None = key(None, "sbatch's `--account`")
    constraint: str | None = key(None, "sbatch's `--constraint`")
    qos: str | None = key(None, "sbatch's `--qos`")
    nodelist: str | None = key(None, "sbatch's `--nodelist`")
    gres: str | None = key(None, "sbatch's `--gres`")
    licenses: str | None = key(None, "sbatch's `--licenses`")
    nodes: str | None = key(None, "sbatch's `--nodes`")
    memory_resource: str = key("mem", "name of memory in a job's request, mem or mem-per-cpu; none: jobs ask for none")


OPTIONS = SlurmOptions
# The options that are not sbatch's own.
NOT_SBATCHS = (*PACKING, "memory_resource")
_NAMED = tuple(name for name in own_names(SlurmOptions) if name != "nodes" and name not in NOT_SBATCHS)
# The ends of the logs' names, by the kind of bundle.
_LOG_ENDS = {"": "%j", PILOT: "%j", STEPS: "%j-step-%s-task-{}", ARRAY: "%A_%a"}


def log_pattern(log_dir: str, rule: str, wildcards: Mapping[str, str], bundle: str = "", task: int = 0) -> str:
    """Return ``{log_dir}/{rule}/{rule}-{wildcards}-%j.out``; characters that file names cannot hold become ``_``.

    In a bundle, ``%j`` is followed by the step's number and the `task` in it, or is replaced by an array's element.
    """
    # The elements of an array share a name.
    stem = log_stem(rule, {} if bundle == ARRAY else wildcards, ",")
    # sbatch replaces %-codes in this path; %% is a per cent sign.
    folder = f"{log_dir.replace('%', '%%')}/{safe(rule, 60)}"
    return f"{folder}/{stem}-{_LOG_ENDS[bundle].format(task)}.out"


def log_path(pattern: str, job_id: str) -> str:
    """Return the log's real path, from the result of `log_pattern`; ``*`` stands for the number of a step."""
    filled = pattern.replace("%%", "\0").replace("%j", job_id).replace("%A_%a", job_id).replace("%s", "*")
    return filled.replace("\0", "%")


def forgets_cancelled(job_id: str) -> bool:
    """Return whether it is the id of an element of an array."""
    return "_" in job_id


def sizes(**asked: int | str) -> list[str]:
    """Return `nodes`, `cpus_per_task`, bytes of `memory`, … as options of salloc, sbatch and srun."""
    names = {"memory": "mem", "memory_per_cpu": "mem-per-cpu"}
    texts = {names.get(name, name): f"{mib(int(n))}M" if name in names else n for name, n in asked.items()}
    return [f"--{name.replace('_', '-')}={text}" for name, text in texts.items()]


def memory_asked(options: object, memory_bytes: int, cpus: int) -> dict[str, int]:
    """Return the memory of so many CPUs, on one node, for `sizes`; nothing if `memory_resource` leaves it out.

    Raises SubmissionError.
    """
    resource = getattr(options, "memory_resource", "mem")
    if resource not in (known := {"mem": "memory", "mem-per-cpu": "memory_per_cpu", "none": ""}):
        raise SubmissionError(
            f"memory_resource: {resource!r}; expected 'mem', 'mem-per-cpu', or 'none' to ask for no memory"
        )
    amount = -(-memory_bytes // cpus) if resource == "mem-per-cpu" else memory_bytes
    return {known[resource]: amount} if known[resource] else {}


def directives(values: ScriptValues, ntasks: int = 1) -> tuple[str, ...]:
    """Return the job's options as arguments ``--name=value`` of sbatch, in a fixed order. Raises SubmissionError."""
    options = values.options
    if "\\" in values.log_pattern:
        # sbatch takes a path with a backslash literally: all jobs would write to the same file, named %j.
        raise SubmissionError(f"log path: {values.log_pattern!r} holds a backslash; use a log folder without one")
    mine = [
        f"--job-name={values.name}",
        f"--output={checked('log path', values.log_pattern)}",
        # A requeued job keeps its id: its second start must not wipe the log of the first.
        "--open-mode=append",
        "--requeue",
        f"--chdir={checked('work folder', values.workdir)}",
        *_places(getattr(options, "nodes", None) or "1", ntasks),
        *sizes(
            cpus_per_task=positive("cpus_per_task", values.cpus_per_task),
            **memory_asked(options, positive("memory", values.memory_bytes), values.cpus_per_task * ntasks),
            time=positive("time_minutes", values.time_minutes),
        ),
    ]
    if "propagate" not in options.extra:
        # The soft limits of the login node (`ulimit -v`) are not those of a job.
        mine.append("--propagate=NONE")
    if values.warning_seconds and "signal" not in options.extra:
        # B: signals the batch script itself. In a partition's grace time, Slurm would signal the steps alone.
        mine.append(f"--signal=B:TERM@{values.warning_seconds}")
    return (*mine, *asked(options))


def asked(options: JobOptions) -> tuple[str, ...]:
    """Return `options` as arguments of salloc and sbatch. Raises SubmissionError."""
    named = [(name, getattr(options, name, None)) for name in _NAMED]
    mine = [f"--{name}={checked(name, value)}" for name, value in named if value]
    if options.exclude:
        mine.append(f"--exclude={checked('exclude', ','.join(options.exclude))}")
    return (*mine, *(_extra(name, value) for name, value in options.extra.items()))


def _places(nodes: str, ntasks: int) -> list[str]:
    if not re.fullmatch(r"[1-9][0-9]*", nodes, re.ASCII):
        raise SubmissionError(f"nodes: {nodes!r} is not a number of nodes, such as 4")
    if nodes == "1":
        return sizes(nodes=1, ntasks=ntasks)
    return sizes(nodes=nodes, ntasks=nodes, ntasks_per_node=1)


def render(values: ScriptValues) -> str:
    return render_script(values, header(values), "$SLURM_JOB_ID")


def header(values: ScriptValues) -> list[str]:
    return header_lines(directives(values))


def header_lines(arguments: Iterable[str]) -> list[str]:
    """Return sbatch's arguments as lines of a script."""
    lines = []
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if not re.fullmatch(r"[\w./:=,+@%-]*", value, re.ASCII):
            # sbatch reads its own quoting in these lines: in double quotes, a backslash protects a quote or itself.
            value = '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
        lines.append(f"#SBATCH {name}{equals}{value}")
    return lines


def submit_command(values: ScriptValues, script: Path) -> tuple[str, ...]:
    return ("sbatch", "--parsable", *directives(values), str(script))


def _extra(name: str, value: str) -> str:
    if not DIRECTIVE.fullmatch(name):
        raise SubmissionError(f"extra: {name!r} is not a directive's long name without dashes, such as 'reservation'")
    if name in _RESERVED:
        how = "; `memory_resource` chooses how memory is asked for" if name.startswith("mem") else ""
        raise SubmissionError(
            f"extra: --{name} is set by the engine, or would make one submission more than one job{how}"
        )
    if name in (*_NAMED, "exclude"):
        raise SubmissionError(f"extra: --{name} has an option of its own: give it as {name!r}")
    return f"--{name}={checked(name, value)}" if value else f"--{name}"


def by_id(job_ids: Sequence[str]) -> list[Query[Row]]:
    return [
        Query(("squeue", *_LISTED, f"--jobs={','.join(group)}"), answers.parse_squeue, (answers.NO_SUCH_JOB,))
        for group in chunked(job_ids)
    ]


def one_job(job_id: str) -> Query[Row]:
    form = f"--format={answers.SQUEUE_FORMAT}|%S"
    return Query(("squeue", "--noheader", f"--jobs={job_id}", form), answers.parse_one_of_squeue)


def accounting(job_ids: Sequence[str], names: Sequence[str], known_names: Sequence[str] = ()) -> list[Query[Row]]:
    form = ("--parsable2", "--noheader", "--allocations", "--duplicates", f"--format={answers.SACCT_FORMAT}")
    by_id = [(_OWN, f"--jobs={','.join(group)}") for group in chunked(job_ids)]
    # By name, sacct looks no further back than midnight by default.
    by_name = [
        ("--starttime=now-30days", _OWN, f"--name={','.join(group)}")
        for group in chunked(dict.fromkeys(map(array_of, names)))
    ]
    return [Query(("sacct", *form, *selection), answers.parse_sacct) for selection in (*by_id, *by_name)]


def usage(job_ids: Sequence[str], names: Sequence[str]) -> list[Query[Usage]]:
    """Ask sacct for the resources of jobs and their steps, as only steps have the memory that was used."""
    form = ("--parsable2", "--noheader", "--duplicates", "--noconvert", f"--format={answers.USAGE_FORMAT}")
    return [
        Query(("sacct", *form, _OWN, f"--jobs={','.join(group)}"), answers.parse_usage) for group in chunked(job_ids)
    ]


# They choose the cluster. Our commands ask and answer for the cluster of SLURM_CONF alone.
_OTHER_CLUSTERS = ("SLURM_CLUSTERS", "SBATCH_CLUSTERS", "SBATCH_CLUSTER_CONSTRAINT")
# A user's environment may tell Slurm's commands which cluster to use, who pays, and where jobs may go. Other variables
# are dropped. They would change the request (SBATCH_ARRAY_INX, SBATCH_WAIT, SBATCH_MEM_PER_CPU…) or the form of answers
# (answers.SQUEUE_FORMAT…). If the driver runs in a job, its jobs would inherit that job's sizes (SLURM_CPUS_PER_TASK…).
USERS_OPTIONS = ("ACCOUNT", "CONSTRAINT", "PARTITION", "QOS", "RESERVATION", "WCKEY")
_KEPT = frozenset({"SLURM_CONF", "SLURM_JWT", *(f"{USER_VARIABLES}{name}" for name in USERS_OPTIONS)})
_DROPPED_PREFIXES = ("SLURM_", "SBATCH_", "SQUEUE_", "SACCT_", "SCANCEL_", "SCONTROL_", "SALLOC_", "SRUN_")


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of Slurm's commands, in UTC: the hour that a local clock repeats would mix up runs.

    Raises SubmissionError if it chooses a cluster other than the job's around this process.
    """
    for name in _OTHER_CLUSTERS:
        if (chosen := environ.get(name)) and chosen != environ.get("SLURM_CLUSTER_NAME"):
            raise SubmissionError(
                f"{name}={chosen} chooses a cluster, and jobs would go to that of SLURM_CONF; expected no such "
                f"variable. Nothing was submitted. Give `unset {name}`, and work on a login node of {chosen}, or set "
                "SLURM_CONF to the slurm.conf of that cluster"
            )
    kept = {key: value for key, value in environ.items() if key in _KEPT or not key.startswith(_DROPPED_PREFIXES)}
    return {**kept, "LC_ALL": "C.UTF-8", "SLURM_TIME_FORMAT": "standard", "TZ": "UTC"}


def environment_script(environ: Mapping[str, str]) -> str:
    """Return nothing: sbatch hands the environment on, and shows it only to the job's owner and Slurm's operators."""
    return ""


def step_command(
    job_id: str, node: str, rule: str, resources: Resources, options: object, argv: Sequence[str]
) -> tuple[str, ...]:
    """Return the command that runs `argv` as a step on a node, waits for it, and passes on its output.

    The step reads the command's standard input, and so sees the end of the process that started the command.
    """
    size = {
        "cpus_per_task": resources.cpus_per_task,
        **memory_asked(options, resources.memory_bytes, resources.cpus_per_task),
    }
    place = ("--exclusive", *sizes(nodes=1, ntasks=1, **size), f"--nodelist={node}", "--mpi=none")
    return ("srun", f"--jobid={job_id}", *place, f"--job-name={safe(rule, 60)}", *argv)


# The allocation's own variables that are not about its size.
_OF_A_STEP = ("TZ", "LC_ALL", SCRATCH.removeprefix("$"))


def step_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of `srun` and its step: the driver's, without variables that set options of srun."""
    own = {name: environ[name] for name in _OF_A_STEP if name in environ}
    clean = {name: value for name, value in environment(environ).items() if name not in _OF_A_STEP}
    return clean | own


def job_id(environ: Mapping[str, str]) -> str | None:
    """Return the id of the job around this process; ``1234_3`` is an element of an array."""
    if "SLURM_ARRAY_JOB_ID" in environ:
        return f"{environ['SLURM_ARRAY_JOB_ID']}_{environ['SLURM_ARRAY_TASK_ID']}"
    return environ.get("SLURM_JOB_ID")


def given(environ: Mapping[str, str]) -> dict[str, int]:
    amounts = {}
    if "SLURM_CPUS_PER_TASK" in environ:
        amounts["cpus_per_task"] = int(environ["SLURM_CPUS_PER_TASK"])
    if per_cpu := environ.get("SLURM_MEM_PER_CPU"):
        amounts["memory_bytes"] = int(per_cpu) * amounts.get("cpus_per_task", 1) * MIB
    if environ.get("SLURM_MEM_PER_NODE", "0") != "0":  # 0 means all memory of the node
        amounts["memory_bytes"] = int(environ["SLURM_MEM_PER_NODE"]) * MIB
    return amounts
