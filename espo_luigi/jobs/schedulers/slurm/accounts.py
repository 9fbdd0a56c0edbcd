"""What jobs took, as Slurm's accounting has it, read from ``sacct``: pure functions of text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from espo_luigi.jobs.schedulers.base import Account
from espo_luigi.jobs.schedulers.script import JOB_ID
from espo_luigi.jobs.schedulers.slurm.parse import phase_of

# The name comes last, as other people's names may hold the separator.
ACCOUNTS_FORMAT = "JobID,State,Submit,Start,End,AllocCPUS,ReqMem,TimelimitRaw,TotalCPU,MaxRSS,NodeList,JobName"
_TIME = re.compile(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+(?:\.\d+)?)", re.ASCII)
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)([nc]?)", re.ASCII)


def parse_accounts(text: str) -> list[Account]:
    """Runs in the answer of ``sacct --parsable2 --noheader --duplicates --noconvert --format=ACCOUNTS_FORMAT``.

    A job has a line of its own, then one for each of its steps, of which the memory is: the most that one step's task
    held. A requeued job is there once a run, with the same id.
    """
    runs: list[Account] = []
    for parts in (line.split("|", 11) for line in text.splitlines()):
        if len(parts) != 12:
            continue
        if JOB_ID.fullmatch(parts[0]):
            runs.append(_run(parts))
        elif runs and parts[0].startswith(f"{runs[-1].job_id}."):
            most = max(runs[-1].peak_memory_bytes, _bytes(parts[9]))
            runs[-1] = replace(runs[-1], peak_memory_bytes=most)
    return runs


def _run(parts: Sequence[str]) -> Account:
    job_id, state, queued, started, ended, cpus, memory, minutes, cpu_time, _, node, name = parts
    n_cpus = int(cpus) if cpus.isdigit() else 0
    # Versions before 21.08 say of what: 4000Mn of each node, 1000Mc of each CPU.
    return Account(
        job_id=job_id,
        name=name,
        phase=phase_of(state.split(" ")[0].rstrip("+")),
        node=node,
        queued=_moment(queued),
        started=_moment(started),
        ended=_moment(ended),
        cpus=n_cpus,
        memory_bytes=_bytes(memory) * (n_cpus if memory.endswith("c") else 1),
        time_minutes=int(minutes) if minutes.isdigit() else 0,
        cpu_seconds=_seconds(cpu_time),
    )


def _moment(text: str) -> float:
    """Seconds since 1970 of an ISO time in UTC; 0 for ``Unknown`` and ``None``."""
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return 0.0


def _seconds(text: str) -> float:
    """Seconds of ``[[days-]hours:]minutes:seconds``; 0 for what is none."""
    found = _TIME.fullmatch(text)
    if found is None:
        return 0.0
    days, hours, minutes = (int(part or 0) for part in found.groups()[:3])
    return 86400 * days + 3600 * hours + 60 * minutes + float(found[4])


def _bytes(text: str) -> int:
    found = _MEMORY.fullmatch(text)
    return int(float(found[1]) * 1024 ** " KMGTP".index(found[2] or " ")) if found else 0
