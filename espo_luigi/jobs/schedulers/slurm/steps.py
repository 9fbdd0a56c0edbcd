"""Slurm's allocations and steps as text: reads the nodes of an allocation, and makes the command of a step."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from espo_luigi.errors import SubmissionError
from espo_luigi.jobs.resources import Resources, mib
from espo_luigi.jobs.schedulers.script import safe
from espo_luigi.jobs.schedulers.slurm.parse import NO_SUCH_JOB

_STATE = re.compile(r"\bJobState=(\w+)")
DIRECTIVE = re.compile(r"[a-z][a-z0-9-]*", re.ASCII)
_END = re.compile(r"\bEndTime=(\S+)")
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


def allocation_command(job_id: str) -> tuple[str, ...]:
    """Return the command that describes an allocation."""
    return ("scontrol", "--details", "show", "job", job_id)


def names_command(nodes: str) -> tuple[str, ...]:
    """Return the command that writes out the names of ``n[1-2]``."""
    return ("scontrol", "show", "hostnames", nodes)


def knows_no_such_job(message: str) -> bool:
    """Return whether scontrol failed because the controller has forgotten the job, which has then ended."""
    return NO_SUCH_JOB in message


def parse_allocation(text: str, names_of: Callable[[str], Sequence[str]]) -> Allocation:
    """Read the answer; `names_of` writes out the names of ``n[1-2]``. Raises ValueError if the answer is not whole."""
    state, end = _STATE.search(text), _END.search(text)
    if state is None:
        raise ValueError(f"scontrol said no JobState: {text[:200]!r}")
    nodes = {name: (_cpus(ids), int(memory)) for group, ids, memory in _NODES.findall(text) for name in names_of(group)}
    return Allocation(state[1], end[1] if end else "", nodes)


def _cpus(ids: str) -> int:
    """Count the CPUs of ``0-3,8``."""
    ranges = [part.split("-") for part in ids.split(",")]
    return sum(int(ends[-1]) - int(ends[0]) + 1 for ends in ranges)


def sizes(**asked: int | str) -> list[str]:
    """Return `nodes`, `cpus_per_task`, bytes of `memory`, … as options of salloc, sbatch and srun."""
    texts = {
        "mem" if name == "memory" else name: f"{mib(int(n))}M" if name == "memory" else n for name, n in asked.items()
    }
    return [f"--{name.replace('_', '-')}={text}" for name, text in texts.items()]


def memory_asked(options: object, memory_bytes: int) -> dict[str, int]:
    """Return the `memory` for `sizes`; nothing if `memory_resource` leaves it out. Raises SubmissionError."""
    resource = getattr(options, "memory_resource", "mem")
    if resource not in ("mem", "none"):
        raise SubmissionError(f"memory_resource: {resource!r}; expected 'mem', or 'none' to ask for no memory")
    return {} if resource == "none" else {"memory": memory_bytes}


def step_command(job_id: str, node: str, rule: str, resources: Resources, argv: Sequence[str]) -> tuple[str, ...]:
    """Return the command that runs `argv` as a step on a node, waits for it, and passes on its output.

    The step reads the command's standard input, and so sees the end of the process that started the command.
    """
    return (
        "srun",
        f"--jobid={job_id}",
        "--exclusive",
        *sizes(nodes=1, ntasks=1, cpus_per_task=resources.cpus_per_task, memory=resources.memory_bytes),
        f"--nodelist={node}",
        "--mpi=none",
        f"--job-name={safe(rule, 60)}",
        *argv,
    )
