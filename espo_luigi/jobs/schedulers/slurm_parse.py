"""Parses the answers of Slurm's commands, and explains its reasons: pure functions of text.

The golden files come from Slurm 22.05. The forms of later versions, up to 25.05, are taken from their documentation.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from espo_luigi.jobs.causes import Cause
from espo_luigi.jobs.schedulers.base import Phase, Refusal, Row, Usage, bytes_of, warn_of_unknown_state
from espo_luigi.jobs.schedulers.script import JOB_ID, element_name

NO_SUCH_JOB = "Invalid job id"
# In each format the name comes last, as other users' names may hold the separator.
SQUEUE_FORMAT = "%i|%T|%N|%r|%j"
SACCT_FORMAT = "JobID,State,ExitCode,NodeList,Submit,JobName"
USAGE_FORMAT = (
    "JobID,State,Submit,Start,End,AllocCPUS,ReqMem,TimelimitRaw,TotalCPU,MaxRSS,ConsumedEnergyRaw,NodeList,JobName"
)
# Above this are Slurm's marks of "no value"; a job of a thousand nodes takes less in a year.
_MOST_JOULES = 1e14

STATES: dict[str, Phase | Cause] = {
    "PENDING": Phase.PENDING,
    "CONFIGURING": Phase.PENDING,  # has its nodes, which are still booting
    "REQUEUED": Phase.PENDING,  # in sacct: this run of the job has ended, and Slurm queued it again under the same id
    "REQUEUE_FED": Phase.PENDING,  # requeued by a federation
    "REQUEUE_HOLD": Phase.PENDING,  # requeued, and held until somebody releases it
    "RESV_DEL_HOLD": Phase.PENDING,  # its reservation was deleted: held
    "SPECIAL_EXIT": Phase.PENDING,  # requeued and held because of its exit code
    "POWER_UP_NODE": Phase.PENDING,
    "EXPEDITING": Phase.PENDING,  # Slurm 25: requeued at once after a node failed
    "LAUNCH_FAILED": Phase.PENDING,  # a flag: its node could not start it (the prolog failed, say); it was requeued
    "RECONFIG_FAIL": Phase.PENDING,  # a flag: its node could not be set up for it
    "RUNNING": Phase.RUNNING,
    "SIGNALING": Phase.RUNNING,
    "RESIZING": Phase.RUNNING,
    "SUSPENDED": Phase.SUSPENDED,
    "STOPPED": Phase.SUSPENDED,  # got SIGSTOP, keeps its CPUs
    # its processes are ending or have ended; a final state follows
    "COMPLETING": Phase.LEAVING,
    "STAGE_OUT": Phase.LEAVING,
    "UPDATE_DB": Phase.LEAVING,
    "COMPLETED": Phase.COMPLETED,
    "FAILED": Cause.CRASHED,
    "OUT_OF_MEMORY": Cause.MEMORY,
    "TIMEOUT": Cause.TIMEOUT,
    "NODE_FAIL": Cause.NODE,
    "BOOT_FAIL": Cause.NODE,
    "PREEMPTED": Cause.PREEMPTED,
    "CANCELLED": Cause.CANCELLED,
    "REVOKED": Cause.CANCELLED,  # the sibling on another cluster of a federation started instead
    "DEADLINE": Cause.DEADLINE,
}

# Reasons of PENDING that waiting does not cure: the job asks for more than it may ever get.
HOPELESS_REASONS = frozenset(
    {"AccountNotAllowed", "BadConstraints", "DependencyNeverSatisfied", "InvalidAccount", "InvalidQOS"}
    | {"PartitionNodeLimit", "PartitionTimeLimit", "QOSNotAllowed"}
)
# Limits on a single job: AssocMaxCpuPerJobLimit, QOSMaxWallDurationPerJobLimit, QOSMinGRES, …
_OF_A_JOB = re.compile(r"(Assoc|QOS)Max\w+Per(Job|Node)(Limit)?|QOSMin\w+")
# Between a state and its flags.
_FLAGS = re.compile(r"[,+]")
# Flags of a job whose node could not start it.
_LAUNCH_FLAGS = {"LAUNCH_FAILED", "RECONFIG_FAIL"}
# States of jobs that wait until somebody releases them.
_HELD = {"REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
# Newer versions may give a state with flags. If several phases are meant, the first of these wins: a requeued job is
# not over, and a completing job is not quite over.
_PRECEDENCE = (Phase.PENDING, Phase.LEAVING, Phase.SUSPENDED)


def row(job_id: str, name: str, state: str, node: str = "", reason: str = "", exit_code: str = "") -> Row:
    """Make the row of a job from Slurm's state and reason."""
    phase, flags = phase_of(state), set(_FLAGS.split(state.upper()))
    launch_failed = phase is Phase.PENDING and bool(flags & _LAUNCH_FLAGS or reason.lower().startswith("launch failed"))
    is_incurable = reason in HOPELESS_REASONS or _OF_A_JOB.fullmatch(reason) is not None
    hopeless = launch_failed or (phase is Phase.PENDING and is_incurable)
    waits_for_people = "held" in reason.lower() or bool(flags & _HELD) or _is_used_up(reason)
    held = waits_for_people and phase is Phase.PENDING and not hopeless
    # From 24.11 on, the reason is "RaisedSignal:53(Real-time_signal_19)".
    nothing_ran = reason == "JobLaunchFailure" or reason.startswith("RaisedSignal:53(") or exit_code == "0:53"
    no_log = phase is Cause.CRASHED and nothing_ran
    reason = "" if reason == "None" else reason
    return Row(job_id, name, state, phase, node, reason, launch_failed, hopeless, held, no_log=no_log)


def _is_used_up(reason: str) -> bool:
    """Return whether an amount of an account or a QOS is used up, which no end of a job gives back."""
    # Not those of jobs that run at the moment: AssocGrpCPURunMinutesLimit.
    return re.match(r"(Assoc|QOS)(Grp(?!\w*Run)\w*(Minutes|Mins)|GrpWall)", reason) is not None


def phase_of(state: str) -> Phase | Cause:
    """Return the phase of a state and its flags (``COMPLETING``; ``FAILED,COMPLETING``).

    An unknown name is logged once and ignored beside a known name. Alone, it means that the job is still there.
    """
    names = _FLAGS.split(state.upper())
    for name in names:
        if name not in STATES:
            warn_of_unknown_state("Slurm", name)
    phases = [STATES[name] for name in names if name in STATES]
    first = phases[0] if phases else Phase.RUNNING
    return next((phase for phase in _PRECEDENCE if phase in phases), first)


def parse_squeue(text: str) -> list[Row]:
    """Read the answer of ``squeue --noheader --array --format=SQUEUE_FORMAT``; skip lines of any other form."""
    rows = []
    for line in text.splitlines():
        parts = line.split("|", 4)
        if len(parts) == 5:
            ids, state, node, reason, name = parts
            rows += [row(*one, state, node, reason) for one in _jobs(ids, name)]
    return rows


def parse_one_of_squeue(text: str) -> list[Row]:
    """Read the answer of ``squeue --noheader --format=SQUEUE_FORMAT|%S``, with the time at which each job starts."""
    parts = [line.rpartition("|") for line in text.splitlines()]
    return [replace(job, start=start.replace("N/A", "")) for rest, _, start in parts for job in parse_squeue(rest)]


def _jobs(ids: str, name: str) -> list[tuple[str, str]]:
    """Return the id and the name of each job of ``17``, ``17_3``, or ``17_[0,2-5%2]``."""
    found = re.fullmatch(r"(\d+)(?:_(\d+)|_\[([\d,-]+)(?:%\d+)?\])?", ids)
    if found is None:
        return []
    base, one, many = found.groups()
    if one is None and many is None:
        return [(base, name)]
    return [(f"{base}_{place}", element_name(name, place)) for place in _places(one or many)]


def _places(text: str) -> Iterator[int]:
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (last or first).isdigit():
            yield from range(int(first), int(last or first) + 1)


def parse_sacct(text: str) -> list[Row]:
    """Read the answer of ``sacct --parsable2 --noheader --allocations --duplicates --format=SACCT_FORMAT``.

    A requeued job has a line for each run, all with the same id. Only the run that was submitted last is returned.
    """
    latest: dict[tuple[str, str], tuple[str, Row]] = {}
    for line in text.splitlines():
        parts = line.split("|", 5)
        if len(parts) != 6:
            continue
        ids, state, exit_code, node, submitted, given_name = parts
        # ISO times compare as text, except "Unknown". If two are equal, the later line is the later run.
        when = submitted if submitted[:1].isdigit() else ""
        for job_id, name in _jobs(ids, given_name):
            run = row(job_id, name, state.split(" ")[0].rstrip("+"), _known(node), exit_code=exit_code)
            if (job_id, name) not in latest or when >= latest[job_id, name][0]:
                latest[job_id, name] = (when, run)
    return [run for _, run in latest.values()]


def parse_scontrol(text: str) -> list[Row]:
    """Read the answer of ``scontrol --oneliner show jobs``."""
    rows = []
    for line in text.splitlines():
        # A job's name may hold blanks and equal signs. It ends where the user's name and number begin.
        head = re.match(
            r"JobId=(\d+) (?:ArrayJobId=(\d+) ArrayTaskId=(\S+) )?.*?JobName=(.*?) UserId=\S+\(\d+\) GroupId=", line
        )
        if head is None:
            continue
        # The first match of each field counts: users' texts, which may hold anything, follow (Comment, SubmitLine).
        found = re.findall(r" (JobState|Reason|NodeList|ExitCode)=(\S*)", line[head.end() :])
        fields = dict(reversed(found))
        reason, node = fields.get("Reason", ""), _known(fields.get("NodeList", ""))
        ids = f"{head[2]}_[{head[3]}]" if head[2] else head[1]
        state, code = fields.get("JobState", ""), fields.get("ExitCode", "")
        rows += [row(*one, state, node, reason, code) for one in _jobs(ids, head[4])]
    return rows


# A line for each group of nodes that give the job equal shares.
_NODES = re.compile(r"^\s+Nodes=(\S+) CPU_IDs=(\S+) Mem=(\d+)", re.MULTILINE)


@dataclass(frozen=True)
class Allocation:
    """A job's nodes in `scontrol show job`: CPUs and MiB of memory of each (0 MiB: Slurm does not limit memory)."""

    state: str
    ends: str = ""
    nodes: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def runs(self) -> bool:
        return self.state == "RUNNING"


def parse_allocation(text: str, names_of: Callable[[str], Sequence[str]]) -> Allocation:
    """Read the answer; `names_of` writes out the names of ``n[1-2]``. Raises ValueError if the answer is not whole."""
    state, end = re.search(r"\bJobState=(\w+)", text), re.search(r"\bEndTime=(\S+)", text)
    if state is None:
        raise ValueError(f"scontrol said no JobState: {text[:200]!r}")
    nodes = {
        name: (len(list(_places(cpus))), int(memory))
        for group, cpus, memory in _NODES.findall(text)
        for name in names_of(group)
    }
    return Allocation(state[1], end[1] if end else "", nodes)


def _known(node: str) -> str:
    return "" if node in ("(null)", "None assigned", "None", "N/A") else node


_DURATION = re.compile(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+(?:\.\d+)?)", re.ASCII)


def parse_usage(text: str) -> list[Usage]:
    """Read the answer of ``sacct --parsable2 --noheader --duplicates --noconvert --format=USAGE_FORMAT``.

    The line of a job is followed by lines of its steps, which alone have the memory used: the most that a task of the
    step held. A requeued job appears once for each run, with the same id.
    """
    runs: list[Usage] = []
    for parts in (line.split("|", 12) for line in text.splitlines()):
        if len(parts) != 13:
            continue
        if JOB_ID.fullmatch(parts[0]):
            runs.append(_run(parts))
        elif runs and parts[0].startswith(f"{runs[-1].job_id}."):
            most = max(runs[-1].peak_memory_bytes, bytes_of(parts[9]))
            # A step's energy is a part of its job's; some versions of Slurm have that of steps only.
            joules = max(runs[-1].energy_joules, _joules(parts[10]))
            runs[-1] = replace(runs[-1], peak_memory_bytes=most, energy_joules=joules)
    return runs


def _run(parts: Sequence[str]) -> Usage:
    job_id, state, queued, started, ended, cpus, memory, minutes, cpu_time, _, energy, node, name = parts
    n_cpus = int(cpus) if cpus.isdigit() else 0
    # Before 21.08, a letter follows the amount: 4000Mn is for each node, 1000Mc for each CPU.
    return Usage(
        job_id=job_id,
        name=name,
        phase=phase_of(state.split(" ")[0].rstrip("+")),
        node=node,
        queued=_moment(queued),
        started=_moment(started),
        ended=_moment(ended),
        cpus=n_cpus,
        memory_bytes=bytes_of(memory) * (n_cpus if memory.endswith("c") else 1),
        time_minutes=int(minutes) if minutes.isdigit() else 0,
        cpu_seconds=_seconds(cpu_time),
        energy_joules=_joules(energy),
    )


def _joules(text: str) -> float:
    """Return the joules of ``ConsumedEnergyRaw``; 0, which is no measurement, for any other text."""
    joules = float(text) if text.isascii() and text.isdigit() else 0.0
    return joules if joules < _MOST_JOULES else 0.0


def _moment(text: str) -> float:
    """Return seconds since 1970 of an ISO time in UTC; 0 for ``Unknown`` and ``None``."""
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return 0.0


def _seconds(text: str) -> float:
    """Return the seconds of ``[[days-]hours:]minutes:seconds``; 0 for any other text."""
    found = _DURATION.fullmatch(text)
    if found is None:
        return 0.0
    days, hours, minutes = (int(part or 0) for part in found.groups()[:3])
    return 86400 * days + 3600 * hours + 60 * minutes + float(found[4])


# What a job asks for. Words about none of it, such as "Not allowed at this time", may hold only for a while.
_ASKED = r"(--\w+|\b(partition|account|qos|memory|mem|cpu|gpu|constraint|(?<!this )(?<!any )(wall)?time)s?\b)"
_FORBIDDEN = (
    r"(not (allowed|supported|accepted|permitted|possible)|needs? to be|(is|are) required|too long|forbidden|disabled"
    r"|prohibited|instead|\bonly\b|must|(please|do not|don't) (use|give|specify|request|set|ask))"
)

# Patterns of sbatch's stderr. The first that matches decides.
_REFUSALS: tuple[tuple[str, Refusal], ...] = (
    # Limits on the number of a user's jobs pass as jobs end; that on the size of an array does not.
    (r"Max\w*Submit\w*Limit|Max\w*SubmitJobs?\w*|GrpSubmit\w*", Refusal.TOO_MANY),
    (r"Invalid job array", Refusal.TOO_LARGE),
    (r"QOS(Grp|Max)\w*|Assoc(Grp|Max)\w*", Refusal.PERMANENT),
    (r"violates accounting/QOS policy", Refusal.UNCLEAR),
    (
        r"did not answer in|unable to contact slurm|Socket timed out|Zero Bytes|Connection (refused|timed out|reset)",
        Refusal.PASSING,
    ),
    (r"temporarily unable to accept|Resource temporarily unavailable|Transport endpoint", Refusal.PASSING),
    (r"standby mode|Munge encode failed|authentication error|Communication (connection|shutdown)", Refusal.PASSING),
    (r"partition (is )?(not available|down|inactive)|Slurm(ctld)? is (busy|in)|Try again later", Refusal.PASSING),
    # The words of a site's job_submit script stand before Slurm's "Unspecified error".
    (r"too many (jobs|submissions)|(queued|pending|submitted) jobs|more than \d+ jobs", Refusal.TOO_MANY),
    (r"maximum number of jobs", Refusal.TOO_MANY),
    (r"rate limit|try (it )?later|in the queue|queue is", Refusal.PASSING),
    (r"maintenance|paused|overload", Refusal.PASSING),
    (r"No partition specified|Job size specification|user's group|must specify", Refusal.PERMANENT),
    (rf"{_ASKED}.{{0,80}}{_FORBIDDEN}|{_FORBIDDEN}.{{0,80}}{_ASKED}", Refusal.PERMANENT),
    (r"invalid|unrecognized option|not permitted|permission denied|can ?not be satisfied", Refusal.PERMANENT),
    (r"is not available|is ambiguous|requires an argument|more processors", Refusal.PERMANENT),
)

refusal = functools.partial(Refusal.of, _REFUSALS)

# Slurm's message about a job killed for memory. If Slurm enforces memory by polling instead of cgroups, such a job is
# FAILED with signal 9, not OUT_OF_MEMORY.
_OUT_OF_MEMORY = re.compile(
    r"^slurmstepd.*(oom.kill event|Exceeded (job|step) memory limit|exceeded memory limit|Out Of Memory)", re.I | re.M
)
says_out_of_memory = _OUT_OF_MEMORY.search

# The meaning of a reason of PENDING, and the user's remedy.
_EXPLANATIONS = {
    "Priority": "other people's jobs go first",
    "Resources": "it is next, and waits until enough CPUs and memory of a node are free",
    "BeginTime": "it waits for its time to begin: it was requeued a moment ago, or was told to begin later",
    "Dependency": "it waits for another job",
    "JobHeldUser": "it is held by you: `scontrol release` lets it go on",
    "JobHeldAdmin": "it is held by an administrator: ask there",
    "Licenses": "it waits for a licence",
    "NodeDown": "a node that it needs is down",
    "PartitionConfig": "it asks for more than a node of its partition has: lower the rule's request, or choose another",
    "PartitionDown": "its partition is down: ask the site, or choose another",
    "PartitionInactive": "its partition is closed at the moment",
    "PartitionNodeLimit": "it asks for more than its partition has: lower the rule's request, or choose another",
    "PartitionTimeLimit": "it asks for more time than its partition allows: lower the rule's `time`, or choose another",
    "ReqNodeNotAvail": "a node that it needs is down, drained or reserved (for maintenance: a shorter `time` may fit)",
    "Reservation": "it waits for its reservation",
    "QOSMaxJobsPerUserLimit": "you have as many jobs running as your QOS allows: it goes on when one of them ends",
    "AssocMaxJobsLimit": "your account has as many jobs running as it may: it goes on when one of them ends",
    "InvalidAccount": "its account is not valid: correct `account`",
    "InvalidQOS": "its QOS is not valid: correct `qos`",
    "None": "Slurm has not looked at it yet",
}
# Reasons with which Slurm itself takes a node out of use, until an administrator resumes the node.
_DRAINED_BY_SLURM = (
    ("Duplicate jobid", "slurmctld lost its state, and gave out numbers of jobs that were still there"),
    ("Kill task failed", "a job's processes could not be ended"),
    ("Prolog error", "its prolog failed"),
    ("Epilog error", "its epilog failed"),
    ("batch job complete failure", "it could not report a job's end"),
    ("unexpectedly rebooted", "it started anew by itself"),
)


def parse_drained(text: str) -> list[str]:
    """Return a sentence for each reason with which Slurm drained nodes, from ``sinfo`` lines ``node|reason``."""
    nodes: dict[tuple[str, str], dict[str, None]] = {}
    for line in text.splitlines():
        node, _, reason = line.strip().partition("|")
        known = (meaning for phrase, meaning in _DRAINED_BY_SLURM if phrase.lower() in reason.lower())
        # A reason may have several phrases, and is told once.
        if meaning := next(known, ""):
            nodes.setdefault((reason, meaning), {})[node] = None
    return [
        f"Slurm drained {', '.join(names)} ({reason}: {meaning}), and starts nothing there: an administrator, once no "
        f"process of a job is left there, gives `scontrol update nodename={','.join(names)} state=resume`"
        for (reason, meaning), names in nodes.items()
    ]


def in_words(reason: str) -> str:
    """Explain a reason of PENDING to its user; an unknown reason is named as it is."""
    name = reason.split(",")[0].strip("() ")
    whose = "your QOS" if name.startswith("QOS") else "your account"
    if _is_used_up(name):
        return f"{whose}'s time on this cluster is used up ({name}): it waits until the site gives more"
    if name not in _EXPLANATIONS and re.match(r"(QOS|Assoc)(Grp|Max)\w*$", name):
        return (
            f"{whose} may not have more at once ({name}): it goes on when other jobs end, or never if it asks too much"
        )
    return _EXPLANATIONS.get(name, f"Slurm says {name}" if name else "Slurm has not said why")
