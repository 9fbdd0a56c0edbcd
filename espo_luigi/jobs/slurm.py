"""Slurm: what goes to its commands and what they answer, as pure functions of text (`scheduler.Scheduler`).

The directives stand in the script (so that it can be read, and submitted by hand) and are given to sbatch as arguments
too: ``SBATCH_…`` variables of the user's environment override a script's own lines, but not arguments.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from espo_luigi.errors import SubmissionError
from espo_luigi.jobs.scheduler import Memory, Phase, Query, Refusal, Row, chunked
from espo_luigi.jobs.script import JobOptions, ScriptValues, checked, own_names, positive, render_script, safe

logger = logging.getLogger(__name__)

NAME = "Slurm"
SUBMIT = "sbatch"
VARIABLES = "SLURM_"

MIB = 2**20
# The longest file name on the usual file systems is 255 bytes; what is left is for the job's id and the suffix.
_LONGEST_LOG_STEM = 200
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


@dataclass(frozen=True)
class SlurmOptions(JobOptions):
    """Options of sbatch that have a name in luigi.cfg and as parameters of a task; this is the one list of them."""

    partition: str | None = None
    account: str | None = None
    constraint: str | None = None
    qos: str | None = None
    nodelist: str | None = None
    gres: str | None = None
    licenses: str | None = None


OPTIONS = SlurmOptions
_NAMED = own_names(SlurmOptions)


def log_pattern(log_dir: str, rule: str, wildcards: Mapping[str, str]) -> str:
    """``{log_dir}/{rule}/{rule}-{wildcards}-%j.out``, with what file names cannot hold replaced by ``_``."""
    values = ",".join(f"{key}={value}" for key, value in sorted(wildcards.items()))
    stem = f"{safe(rule, 60)}-{values}" if values else safe(rule, 60)
    # sbatch replaces %-codes in this path; %% is one per cent sign.
    return f"{log_dir.replace('%', '%%')}/{safe(rule, 60)}/{safe(stem, _LONGEST_LOG_STEM)}-%j.out"


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
        f"--output={checked('log path', values.log_pattern)}",
        # A job that is requeued keeps its id: its second start must not wipe the log of the first.
        "--open-mode=append",
        "--requeue",
        f"--chdir={checked('work folder', values.workdir)}",
        "--nodes=1",
        "--ntasks=1",
        f"--cpus-per-task={positive('cpus_per_task', values.cpus_per_task)}",
        f"--mem={positive('memory', values.memory_mib)}M",
        f"--time={positive('time_minutes', values.time_minutes)}",
    ]
    named = [(name, getattr(options, name, None)) for name in _NAMED]
    mine += [f"--{name}={checked(name, value)}" for name, value in named if value]
    if options.exclude:
        mine.append(f"--exclude={checked('exclude', ','.join(options.exclude))}")
    return (*mine, *(_extra(name, value) for name, value in options.extra.items()))


def render(values: ScriptValues) -> str:
    """The sbatch script of one submission. Raises SubmissionError for a value that cannot be passed safely."""
    header = [f"#SBATCH {_for_header(directive)}" for directive in directives(values)]
    return render_script(values, header, "SLURM_JOB_ID")


def submission(values: ScriptValues, script: Path) -> tuple[str, ...]:
    """The command that submits the script."""
    return ("sbatch", "--parsable", *directives(values), str(script))


def _extra(name: str, value: str) -> str:
    if not _DIRECTIVE.fullmatch(name):
        raise SubmissionError(f"extra: {name!r} is not a directive's long name without dashes, such as 'reservation'")
    if name in _RESERVED:
        raise SubmissionError(f"extra: --{name} is set by the engine, or would make one submission more than one job")
    if name in (*_NAMED, "exclude"):
        raise SubmissionError(f"extra: --{name} has an option of its own: give it as {name!r}")
    return f"--{name}={checked(name, value)}" if value else f"--{name}"


def _for_header(directive: str) -> str:
    # sbatch reads its own quoting in #SBATCH lines: inside double quotes, a backslash protects a quote or itself.
    if re.fullmatch(r"[\w./:=,+@%-]*", directive, re.ASCII):
        return directive
    name, _, value = directive.partition("=")
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'{name}="{escaped}"'


_SQUEUE_FORMAT = "%A|%T|%N|%r|%j"
_SACCT_FORMAT = "JobIDRaw,State,ExitCode,NodeList,Submit,JobName"

STATES: dict[str, Phase] = {
    # waiting
    "PENDING": Phase.PENDING,
    "CONFIGURING": Phase.PENDING,  # has its nodes, which are still booting
    "REQUEUED": Phase.PENDING,  # in sacct: this run of the job was ended, and the job queued again under the same id
    "REQUEUE_FED": Phase.PENDING,  # requeued by a federation
    "REQUEUE_HOLD": Phase.PENDING,  # requeued, and held until somebody releases it
    "RESV_DEL_HOLD": Phase.PENDING,  # its reservation was deleted: held
    "SPECIAL_EXIT": Phase.PENDING,  # requeued and held because of its exit code
    "POWER_UP_NODE": Phase.PENDING,
    "EXPEDITING": Phase.PENDING,  # Slurm 25: requeued at once after a node failed
    # on a node
    "RUNNING": Phase.RUNNING,
    "SIGNALING": Phase.RUNNING,
    "RESIZING": Phase.RUNNING,
    "SUSPENDED": Phase.SUSPENDED,
    "STOPPED": Phase.SUSPENDED,  # got SIGSTOP, keeps its CPUs
    # its processes are ending or have ended; a final state follows
    "COMPLETING": Phase.LEAVING,
    "STAGE_OUT": Phase.LEAVING,
    "UPDATE_DB": Phase.LEAVING,
    # over
    "COMPLETED": Phase.COMPLETED,
    "FAILED": Phase.FAILED,
    "OUT_OF_MEMORY": Phase.MEMORY,
    "TIMEOUT": Phase.TIMEOUT,
    "NODE_FAIL": Phase.NODE,
    "BOOT_FAIL": Phase.NODE,
    "LAUNCH_FAILED": Phase.NODE,
    "RECONFIG_FAIL": Phase.NODE,
    "PREEMPTED": Phase.PREEMPTED,
    "CANCELLED": Phase.CANCELLED,
    "REVOKED": Phase.CANCELLED,  # the sibling on another cluster of a federation started instead
    "DEADLINE": Phase.DEADLINE,
}

# Reasons of PENDING that no waiting will cure: the job asks for what it may never have.
HOPELESS_REASONS = frozenset(
    {
        "AccountNotAllowed",
        "AssocMaxCpuPerJobLimit",
        "AssocMaxMemPerJob",
        "AssocMaxNodePerJobLimit",
        "AssocMaxWallDurationPerJobLimit",
        "BadConstraints",
        "DependencyNeverSatisfied",
        "InvalidAccount",
        "InvalidQOS",
        "PartitionNodeLimit",
        "PartitionTimeLimit",
        "QOSMaxCpuPerJobLimit",
        "QOSMaxMemoryPerJob",
        "QOSMaxNodePerJobLimit",
        "QOSMaxWallDurationPerJobLimit",
        "QOSNotAllowed",
    }
)


def row(job_id: str, name: str, state: str, node: str = "", reason: str = "", exit_code: str = "") -> Row:
    """One job, from Slurm's own words."""
    phase = phase_of(state)
    launch_failed = phase is Phase.PENDING and reason.lower().startswith("launch failed")
    hopeless = launch_failed or (phase is Phase.PENDING and reason in HOPELESS_REASONS)
    reason = "" if reason == "None" else reason
    return Row(job_id, name, state, phase, node, reason, exit_code, launch_failed, hopeless)


def phase_of(state: str) -> Phase:
    """Meaning of a state's name; an unknown one counts as still there (running), and is warned about once."""
    phase = STATES.get(state)
    if phase is None:
        _warn_unknown(state)
        return Phase.RUNNING
    return phase


_warned: set[str] = set()


def _warn_unknown(state: str) -> None:
    if state not in _warned:
        _warned.add(state)
        logger.warning("Slurm answered the unknown job state %r: the job is taken as still there", state)


def submitted_id(text: str) -> str | None:
    """Job id in the answer of ``sbatch --parsable`` (``id`` or ``id;cluster``), or None when there is none."""
    lines = [line.strip() for line in text.splitlines()]
    found = [line.partition(";")[0] for line in lines if re.fullmatch(r"\d+(;\S+)?", line)]
    return found[-1] if found else None


def parse_squeue(text: str) -> list[Row]:
    """Jobs in the answer of ``squeue --noheader --format=_SQUEUE_FORMAT``; lines of another form are passed over."""
    rows = []
    for line in text.splitlines():
        # The name comes last, as other people's names may hold the separator.
        parts = line.split("|", 4)
        if len(parts) == 5 and parts[0].isdigit():
            job_id, state, node, reason, name = parts
            rows.append(row(job_id, name, state, node, reason))
    return rows


def parse_sacct(text: str) -> list[Row]:
    """Jobs in the answer of ``sacct --parsable2 --noheader --allocations --duplicates --format=_SACCT_FORMAT``.

    A requeued job has one line a run, all with the same id: the run that was submitted last is the one returned.
    """
    latest: dict[tuple[str, str], tuple[str, Row]] = {}
    for line in text.splitlines():
        parts = line.split("|", 5)
        if len(parts) != 6 or not parts[0].isdigit():
            continue
        job_id, state, exit_code, node, submitted, name = parts
        run = row(job_id, name, state.split(" ")[0].rstrip("+"), _known(node), exit_code=exit_code)
        # ISO times compare as text, except "Unknown"; of equal ones the later line is the later run.
        when = submitted if submitted[:1].isdigit() else ""
        if (job_id, name) not in latest or when >= latest[job_id, name][0]:
            latest[job_id, name] = (when, run)
    return [run for _, run in latest.values()]


def parse_scontrol(text: str) -> list[Row]:
    """Jobs in the answer of ``scontrol --oneliner show jobs``."""
    rows = []
    for line in text.splitlines():
        # A job's name may hold blanks and equal signs: it ends where the user's name and number begin.
        head = re.match(r"JobId=(\d+) .*?JobName=(.*?) UserId=\S+\(\d+\) GroupId=", line)
        if head is None:
            continue
        fields = dict(re.findall(r"(?:^| )(JobState|Reason|NodeList|ExitCode)=(\S*)", line))
        reason, node = fields.get("Reason", ""), _known(fields.get("NodeList", ""))
        rows.append(row(head[1], head[2], fields.get("JobState", ""), node, reason, fields.get("ExitCode", "")))
    return rows


def _known(node: str) -> str:
    return "" if node in ("(null)", "None assigned", "None") else node


# The text is Slurm's, from sbatch's stderr. Order matters: the first that is found decides.
_REFUSALS: tuple[tuple[str, Refusal], ...] = (
    # Limits on how many jobs one may have: room comes as jobs end.
    (r"Max\w*Submit\w*Limit|Max\w*SubmitJobs?\w*|GrpSubmit\w*", Refusal.PASSING),
    (r"QOS(Grp|Max)\w*|Assoc(Grp|Max)\w*", Refusal.PERMANENT),
    (r"violates accounting/QOS policy", Refusal.UNCLEAR),
    (
        r"did not answer in|unable to contact slurm|Socket timed out|Zero Bytes|Connection (refused|timed out|reset)",
        Refusal.PASSING,
    ),
    (r"temporarily unable to accept|Resource temporarily unavailable|Transport endpoint", Refusal.PASSING),
    (r"standby mode|Munge encode failed|authentication error|Communication (connection|shutdown)", Refusal.PASSING),
    (r"partition (is )?(not available|down|inactive)|Slurm(ctld)? is (busy|in)|Try again later", Refusal.PASSING),
    (r"invalid|unrecognized option|not permitted|permission denied|can ?not be satisfied", Refusal.PERMANENT),
    (r"is not available|is ambiguous|requires an argument|more processors", Refusal.PERMANENT),
)


def refusal(words: str) -> Refusal:
    """Whether sbatch's words mean that the same job may be accepted later."""
    for pattern, meaning in _REFUSALS:
        if re.search(pattern, words, re.IGNORECASE):
            return meaning
    return Refusal.UNCLEAR


_MEMORY_WORDS = re.compile(r"oom.kill event|Exceeded (job|step) memory limit|exceeded memory limit|Out Of Memory", re.I)


def says_out_of_memory(log_tail: str) -> bool:
    """Whether the job's log ends with Slurm's own words for a job killed for memory.

    Where memory is enforced by polling instead of cgroups, such a job is FAILED with signal 9, not OUT_OF_MEMORY.
    """
    lines = [line for line in log_tail.splitlines() if line.startswith("slurmstepd")]
    return any(_MEMORY_WORDS.search(line) for line in lines)


def listing(user: str) -> Query:
    """All jobs of this user that the controller knows, those that ended a short while ago included."""
    # --states=all: ended jobs stay for MinJobAge, so that one command answers for nearly all of them.
    form = ("--all", "--noheader", "--states=all", f"--format={_SQUEUE_FORMAT}")
    return Query(("squeue", *form, f"--user={user}"), parse_squeue)


def memories(user: str, job_ids: Sequence[str], names: Sequence[str]) -> tuple[Memory, ...]:
    """What Slurm remembers of jobs that squeue does not know: from sacct, or from scontrol without accounting."""
    form = ("--parsable2", "--noheader", "--allocations", "--duplicates", f"--format={_SACCT_FORMAT}")
    by_id = [(f"--user={user}", f"--jobs={','.join(group)}") for group in chunked(job_ids)]
    # By name, sacct looks no further back than midnight unless told.
    by_name = [("--starttime=now-30days", f"--user={user}", f"--name={','.join(group)}") for group in chunked(names)]
    return (
        Memory(
            "sacct",
            tuple(Query(("sacct", *form, *selection), parse_sacct) for selection in (*by_id, *by_name)),
            without="no accounting (%s): squeue and scontrol are asked instead of sacct",
        ),
        Memory("scontrol", (Query(("scontrol", "--oneliner", "--all", "show", "jobs"), parse_scontrol),)),
    )


def keeps_no_memory(stderr: str) -> bool:
    """Whether sacct says that there is no accounting."""
    return "accounting storage is disabled" in stderr


def cancellations(user: str, job_ids: Iterable[str]) -> list[tuple[str, ...]]:
    """The commands that cancel jobs of this user by id, as few as the length of a command line allows."""
    return [("scancel", f"--user={user}", *group) for group in chunked(job_ids)]


def has_ended(stderr: str) -> bool:
    """Whether scancel failed because the job had ended meanwhile."""
    return "Invalid job id" in stderr or "already completing or completed" in stderr


def stack_dumps(job_ids: Iterable[str]) -> list[tuple[str, ...]]:
    """The commands that send SIGUSR1 to each job's own command, which writes its stack to the log."""
    return [("scancel", "--signal=USR1", "--batch", *group) for group in chunked(job_ids)]


# What a user's environment may say to Slurm's commands. The rest would change the form of their answers
# (SQUEUE_FORMAT…) or, where the driver itself runs in a job, make the jobs inherit its sizes (SLURM_CPUS_PER_TASK…).
_KEPT = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT")
_DROPPED_PREFIXES = ("SLURM_", "SQUEUE_", "SACCT_", "SCANCEL_", "SCONTROL_")


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of Slurm's commands, whose times are UTC's: an hour that comes twice a year would mix up runs."""
    kept = {key: value for key, value in environ.items() if key in _KEPT or not key.startswith(_DROPPED_PREFIXES)}
    return {**kept, "LC_ALL": "C.UTF-8", "SLURM_TIME_FORMAT": "standard", "TZ": "UTC"}


def job_id(environ: Mapping[str, str]) -> str | None:
    """The id of the job in which this process runs."""
    return environ.get("SLURM_JOB_ID")


def given(environ: Mapping[str, str]) -> dict[str, int]:
    """The CPUs and the bytes of memory that Slurm gave to this job, as far as it says so."""
    said = {}
    if "SLURM_CPUS_PER_TASK" in environ:
        said["cpus_per_task"] = int(environ["SLURM_CPUS_PER_TASK"])
    if environ.get("SLURM_MEM_PER_NODE", "0") != "0":  # 0 is all of the node's
        said["memory_bytes"] = int(environ["SLURM_MEM_PER_NODE"]) * MIB
    return said


def node_folder(environ: Mapping[str, str]) -> str | None:
    """The folder on the node that the site gave to the job."""
    return environ.get("SLURM_TMPDIR")
