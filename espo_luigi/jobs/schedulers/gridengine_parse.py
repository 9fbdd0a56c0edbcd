"""Parses the answers of Grid Engine's commands, as 8.1.9 gives them: pure functions of text."""

from __future__ import annotations

import html
import re
import time
from collections.abc import Iterator, Mapping

from espo_luigi.jobs.schedulers.base import Phase, Refusal, Row, Usage, warn_of_unknown_state

# qacct fails with one of these if it has no such job (yet), or no job at all. Its file is written some seconds after
# the end of a job.
NO_JOB = ("not found", "no jobs running since startup", "unable to open")
_PREFIX = "espo."
_JOB = re.compile(r"<job_list\b.*?</job_list>", re.DOTALL)
_FIELD = re.compile(r"<(\w+)>([^<]*)</\1>")
# The meaning of the letters in qstat's state. The first entry with a letter of the state wins.
_LETTERS: tuple[tuple[str, Phase], ...] = (
    ("d", Phase.LEAVING),  # is being deleted
    ("q", Phase.PENDING),
    ("sSTNP", Phase.SUSPENDED),  # by its user, with its queue, by a threshold, preempted
    ("rt", Phase.RUNNING),
)
_KNOWN = "hREwz"


def sge_name(name: str) -> str:
    """Convert a submission's name for Grid Engine, which refuses a leading digit and at signs."""
    return _PREFIX + name.replace("@", "%40")


def _name(job: str) -> str:
    return job.removeprefix(_PREFIX).replace("%40", "@")


def submitted_id(text: str) -> str | None:
    """Return the job id in the answer of ``qsub -terse``, if it tells a single id; a site's `qsub` may drop that."""
    told = re.findall(r"\bYour job (\d+) ", text) or re.findall(r"^\s*(\d+)\s*$", text, re.MULTILINE)
    return told[0] if len(set(told)) == 1 else None


def parse_qstat(text: str) -> list[Row]:
    """Read the answer of ``qstat -xml``. Raises ValueError if the answer is not whole."""
    if not text.rstrip().endswith("</job_info>"):
        raise ValueError(f"the end is missing: {text[-80:]!r}")
    # By patterns, as the strange name of a single job would make the whole answer invalid XML.
    return [_listed(dict(_FIELD.findall(job))) for job in _JOB.findall(text)]


def _listed(fields: Mapping[str, str]) -> Row:
    state = fields.get("state", "")
    error = "E" in state
    job_id = fields.get("JB_job_number", "")
    return Row(
        job_id,
        _name(html.unescape(fields.get("JB_name", ""))),
        state,
        phase_of(state),
        fields.get("queue_name", "").partition("@")[2],
        reason=f"qstat -j {job_id} says why" if error else "",
        hopeless=error,
        held="h" in state and not error,
        in_error=error,
    )


def phase_of(state: str) -> Phase:
    """Return the phase of a state's letters (``qw``, ``Rr``, ``dr``); an unknown state is logged once."""
    if set(state) - set(_KNOWN).union(*(letters for letters, _ in _LETTERS)):
        warn_of_unknown_state("Grid Engine", state)
    meant = (phase for letters, phase in _LETTERS if set(letters) & set(state))
    return next(meant, Phase.RUNNING)


# Codes of ``failed`` (sge_status(5)) if the job's script has not begun, or the node has lost the job.
_NODE_FAILED = frozenset({1, 3, 4, 6, 7, 8, 9, 10, 11, 18, 19, 20, 21, 26, 27, 28, 29, 31, 32, 33, 34, 35, 36, 38})
# The node could not open the job's log, or change to its work folder: nothing of the job ran.
_NO_LOG = frozenset({26, 28})
# Codes of a run that is over while the job is queued again under the same id.
_AGAIN = frozenset({24, 25})
_LIMIT = 37
# The exit status after SIGUSR2, which Grid Engine sends before it kills a job that is being deleted.
_TOLD_TO_STOP = 128 + 12
_KILLED = 128


def parse_qacct(text: str) -> list[Row]:
    """Read the answer of ``qacct -j``; only the last run of each job is returned."""
    rows = map(_ended, _runs(text))
    return list({(row.job_id, row.name): row for row in rows}.values())


def _runs(text: str) -> Iterator[dict[str, str]]:
    for block in re.split(r"^=+$", text, flags=re.MULTILINE):
        fields = {key: value.strip() for key, value in re.findall(r"^(\w+)[ \t]+(.*)$", block, re.MULTILINE)}
        if fields.get("jobnumber", "").isdigit() and "exit_status" in fields:
            yield fields


def parse_usage(text: str) -> list[Usage]:
    """Read each run in the answer of ``qacct -j``, without its peak memory: qacct has only that of address space."""
    return [_usage(fields, _ended(fields)) for fields in _runs(text)]


def _usage(fields: Mapping[str, str], row: Row) -> Usage:
    asked = dict(re.findall(r"\b(h_rt|h_vmem)=([^,\s]+)", fields.get("category", "")))
    slots = max(1, _leading(fields.get("slots", "")))
    cpu = re.match(r"\d+(\.\d+)?", fields.get("cpu", ""))
    return Usage(
        job_id=row.job_id,
        name=row.name,
        phase=row.phase,
        node=row.node,
        queued=_moment(fields.get("qsub_time", "")),
        started=_moment(fields.get("start_time", "")),
        ended=_moment(fields.get("end_time", "")),
        cpus=slots,
        memory_bytes=int(_bytes(asked.get("h_vmem", "")) * slots),
        time_minutes=seconds_of(asked.get("h_rt", "")) // 60,
        cpu_seconds=float(cpu.group()) if cpu else 0.0,
    )


def _moment(text: str) -> float:
    """Return seconds since 1970 of a time in this machine's zone; 0 for text of any other form."""
    try:
        return time.mktime(time.strptime(text, "%a %b %d %H:%M:%S %Y"))
    except (ValueError, OverflowError):
        return 0.0


def _ended(fields: Mapping[str, str]) -> Row:
    failed, exit_status = _leading(fields.get("failed", "0")), _leading(fields["exit_status"])
    cause = fields.get("failed", "").partition(":")[2].strip()
    return Row(
        fields["jobnumber"],
        _name(fields.get("jobname", "")),
        f"failed {failed}" if failed else "ended",
        _phase_of_end(failed, exit_status, fields),
        fields.get("hostname", ""),
        reason=f"{cause}, exit status {exit_status}" if cause else f"exit status {exit_status}",
        exit_code=str(exit_status),
        no_log=failed in _NO_LOG,
    )


def _phase_of_end(failed: int, exit_status: int, fields: Mapping[str, str]) -> Phase:
    if failed in _AGAIN or failed in _NODE_FAILED:
        return Phase.PENDING if failed in _AGAIN else Phase.NODE
    if failed == _LIMIT or exit_status > _KILLED:
        return _phase_of_kill(failed, exit_status, fields)
    return Phase.FAILED if exit_status else Phase.COMPLETED


def _phase_of_kill(failed: int, exit_status: int, fields: Mapping[str, str]) -> Phase:
    """Find the limit that was exceeded: qacct has the same code for all limits, older versions have none."""
    asked = dict(re.findall(r"\b(h_rt|h_cpu|h_vmem)=([^,\s]+)", fields.get("category", "")))
    if _reached(asked.get("h_rt", ""), fields.get("ru_wallclock", "")):
        return Phase.TIMEOUT
    if failed != _LIMIT and exit_status == _TOLD_TO_STOP:
        return Phase.CANCELLED
    most = _bytes(asked.get("h_vmem", "")) * max(1, _leading(fields.get("slots", "")))
    if most and _bytes(fields.get("maxvmem", "")) >= most:
        return Phase.MEMORY
    if failed != _LIMIT:
        return Phase.FAILED
    return Phase.TIMEOUT if _reached(asked.get("h_cpu", ""), fields.get("cpu", "")) else Phase.MEMORY


def _reached(limit: str, used: str) -> bool:
    seconds = seconds_of(limit)
    return seconds > 0 and _leading(used) >= seconds


def _leading(text: str) -> int:
    found = re.match(r"\d+", text)
    return int(found.group()) if found else 0


def _bytes(text: str) -> float:
    found = re.match(r"(\d+(?:\.\d+)?)([KMGT]?)", text, re.IGNORECASE)
    return float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " ") if found else 0.0


def seconds_of(text: str) -> int:
    """Return the seconds of Grid Engine's notation, seconds or HH:MM:SS (``99:99:99`` too); 0 for any other text."""
    if not re.fullmatch(r"\d+(:\d+:\d+)?", text, re.ASCII):
        return 0
    parts = [int(part) for part in text.split(":")]
    return parts[0] if len(parts) == 1 else parts[0] * 3600 + parts[1] * 60 + parts[2]


# Patterns of qsub's stderr. The first that matches decides.
_REFUSALS: tuple[tuple[str, Refusal], ...] = (
    # Limits on the number of a user's jobs, which pass as jobs end.
    (r"only \d+ jobs are allowed", Refusal.PASSING),
    (r"did not answer in|commlib|unable to (send|contact|connect)|can't (contact|connect)", Refusal.PASSING),
    (r"(send|receive|select|read) error|Connection (refused|timed out|reset)|try again", Refusal.PASSING),
    (r"temporarily unavailable|submission of (new )?jobs is disabled", Refusal.PASSING),
    (r"no suitable queues|unknown (resource|queue)|does(n't| not) exist|not a valid|not allowed", Refusal.PERMANENT),
    (r"invalid|is not an? \w+ value|denied|rejected|no access|permission", Refusal.PERMANENT),
)


def refusal(message: str) -> Refusal:
    """Say whether qsub may accept the same job later, from its error message."""
    return Refusal.of(message, _REFUSALS)


_OUT_OF_MEMORY = re.compile(r"^([\w.]*\.)?_?(Array)?MemoryError\b|cannot allocate memory|std::bad_alloc", re.I | re.M)


def says_out_of_memory(log_tail: str) -> bool:
    """Return whether the job's log ends with the message of a process that got no more memory.

    ``h_vmem`` limits each process, too, so that its request is refused before Grid Engine sees any excess.
    """
    return _OUT_OF_MEMORY.search(log_tail) is not None


def in_words(reason: str) -> str:
    """Return nothing: a row's reason contains the remedy."""
    return ""


def keeps_no_accounting(stderr: str) -> bool:
    """Return False: qacct gives the same message before the first job has ended."""
    return False


def has_ended(stderr: str) -> bool:
    """Return whether qdel failed because the job had ended meanwhile."""
    return "does not exist" in stderr
