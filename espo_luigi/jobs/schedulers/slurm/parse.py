"""What Slurm's commands answer, read: pure functions of text.

The texts are those of 22.05 (golden files that it made itself), and, as far as their documentation tells, of its
successors up to 25.05.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import replace

from espo_luigi.jobs.bundles.model import element_name
from espo_luigi.jobs.schedulers.base import Phase, Refusal, Row

logger = logging.getLogger(__name__)

NO_SUCH_JOB = "Invalid job id"
SQUEUE_FORMAT = "%i|%T|%N|%r|%j"
SACCT_FORMAT = "JobID,State,ExitCode,NodeList,Submit,JobName"

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
    "LAUNCH_FAILED": Phase.PENDING,  # a flag: a node could not start it (its prolog failed, say), it was requeued
    "RECONFIG_FAIL": Phase.PENDING,  # a flag: its node could not be set up for it
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
    "PREEMPTED": Phase.PREEMPTED,
    "CANCELLED": Phase.CANCELLED,
    "REVOKED": Phase.CANCELLED,  # the sibling on another cluster of a federation started instead
    "DEADLINE": Phase.DEADLINE,
}

# Reasons of PENDING that no waiting will cure: the job asks for what it may never have.
HOPELESS_REASONS = frozenset(
    {"AccountNotAllowed", "AssocMaxCpuPerJobLimit", "AssocMaxMemPerJob", "AssocMaxNodePerJobLimit"}
    | {"AssocMaxWallDurationPerJobLimit", "BadConstraints", "DependencyNeverSatisfied", "InvalidAccount"}
    | {"InvalidQOS", "PartitionNodeLimit", "PartitionTimeLimit", "QOSMaxCpuPerJobLimit", "QOSMaxMemoryPerJob"}
    | {"QOSMaxNodePerJobLimit", "QOSMaxWallDurationPerJobLimit", "QOSNotAllowed"}
)


# Flags that say that the job's node could not start it.
_LAUNCH_FLAGS = {"LAUNCH_FAILED", "RECONFIG_FAIL"}
# States of jobs that wait until somebody releases them.
_HELD = {"REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
# Of several words about one job (a state and its flags, as newer versions may give), the first of these that one of
# them means is what holds: a job that is requeued is not over, and one that is completing not quite.
_PRECEDENCE = (Phase.PENDING, Phase.LEAVING, Phase.SUSPENDED)


def row(job_id: str, name: str, state: str, node: str = "", reason: str = "", exit_code: str = "") -> Row:
    """One job, from Slurm's own words."""
    phase = phase_of(state)
    flagged = not _LAUNCH_FLAGS.isdisjoint(_words(state))
    launch_failed = phase is Phase.PENDING and (flagged or reason.lower().startswith("launch failed"))
    hopeless = launch_failed or (phase is Phase.PENDING and reason in HOPELESS_REASONS)
    held = "held" in reason.lower() or not _HELD.isdisjoint(_words(state))
    held = held and phase is Phase.PENDING and not hopeless
    reason = "" if reason == "None" else reason
    return Row(job_id, name, state, phase, node, reason, exit_code, launch_failed, hopeless, held)


def phase_of(state: str) -> Phase:
    """Meaning of a state and its flags (``COMPLETING``; ``FAILED,COMPLETING``).

    An unknown word is warned about once, and says nothing beside a known one; alone, it counts as still there.
    """
    words = _words(state)
    for word in words:
        if word not in STATES:
            _warn_unknown(word)
    phases = [STATES[word] for word in words if word in STATES]
    first = phases[0] if phases else Phase.RUNNING
    return next((phase for phase in _PRECEDENCE if phase in phases), first)


def _words(state: str) -> list[str]:
    return re.split(r"[,+]", state.upper())


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
    """Jobs in the answer of ``squeue --noheader --array --format=SQUEUE_FORMAT``; other lines are passed over."""
    rows = []
    for line in text.splitlines():
        # The name comes last, as other people's names may hold the separator.
        parts = line.split("|", 4)
        if len(parts) == 5:
            ids, state, node, reason, name = parts
            rows += [row(*one, state, node, reason) for one in _jobs(ids, name)]
    return rows


def parse_one_of_squeue(text: str) -> list[Row]:
    """Jobs in the answer of ``squeue --noheader --format=SQUEUE_FORMAT|%S``: with the time of their start."""
    rows = []
    for line in text.splitlines():
        rest, _, start = line.rpartition("|")
        rows += [replace(one, start="" if start == "N/A" else start) for one in parse_squeue(rest)]
    return rows


def _jobs(ids: str, name: str) -> list[tuple[str, str]]:
    """The id and the name of each job of ``17``, ``17_3``, or ``17_[0,2-5%2]``; none for anything else."""
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
    """Jobs in the answer of ``sacct --parsable2 --noheader --allocations --duplicates --format=SACCT_FORMAT``.

    A requeued job has one line a run, all with the same id: the run that was submitted last is the one returned.
    """
    latest: dict[tuple[str, str], tuple[str, Row]] = {}
    for line in text.splitlines():
        parts = line.split("|", 5)
        if len(parts) != 6:
            continue
        ids, state, exit_code, node, submitted, said = parts
        # ISO times compare as text, except "Unknown"; of equal ones the later line is the later run.
        when = submitted if submitted[:1].isdigit() else ""
        for job_id, name in _jobs(ids, said):
            run = row(job_id, name, state.split(" ")[0].rstrip("+"), _known(node), exit_code=exit_code)
            if (job_id, name) not in latest or when >= latest[job_id, name][0]:
                latest[job_id, name] = (when, run)
    return [run for _, run in latest.values()]


def parse_scontrol(text: str) -> list[Row]:
    """Jobs in the answer of ``scontrol --oneliner show jobs``."""
    rows = []
    for line in text.splitlines():
        # A job's name may hold blanks and equal signs: it ends where the user's name and number begin.
        head = re.match(
            r"JobId=(\d+) (?:ArrayJobId=(\d+) ArrayTaskId=(\S+) )?.*?JobName=(.*?) UserId=\S+\(\d+\) GroupId=", line
        )
        if head is None:
            continue
        # The first of each counts: to the right are texts of users (Comment, SubmitLine), which may hold anything.
        found = re.findall(r" (JobState|Reason|NodeList|ExitCode)=(\S*)", line[head.end() :])
        fields = dict(reversed(found))
        reason, node = fields.get("Reason", ""), _known(fields.get("NodeList", ""))
        ids = f"{head[2]}_[{head[3]}]" if head[2] else head[1]
        state, code = fields.get("JobState", ""), fields.get("ExitCode", "")
        rows += [row(*one, state, node, reason, code) for one in _jobs(ids, head[4])]
    return rows


def _known(node: str) -> str:
    return "" if node in ("(null)", "None assigned", "None", "N/A") else node


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
    return Refusal.of(words, _REFUSALS)


_MEMORY_WORDS = re.compile(r"oom.kill event|Exceeded (job|step) memory limit|exceeded memory limit|Out Of Memory", re.I)


def says_out_of_memory(log_tail: str) -> bool:
    """Whether the job's log ends with Slurm's own words for a job killed for memory.

    Where memory is enforced by polling instead of cgroups, such a job is FAILED with signal 9, not OUT_OF_MEMORY.
    """
    lines = [line for line in log_tail.splitlines() if line.startswith("slurmstepd")]
    return any(_MEMORY_WORDS.search(line) for line in lines)


def keeps_no_memory(stderr: str) -> bool:
    """Whether sacct says that there is no accounting."""
    return "accounting storage is disabled" in stderr


def has_ended(stderr: str) -> bool:
    """Whether scancel failed because the job had ended meanwhile."""
    return NO_SUCH_JOB in stderr or "already completing or completed" in stderr
