"""An allocation of Slurm and its steps, as text: what it consists of, and the command of one step in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from espo_luigi.jobs.resources import Resources, mib
from espo_luigi.jobs.schedulers.script import safe
from espo_luigi.jobs.schedulers.slurm.parse import NO_SUCH_JOB

_STATE = re.compile(r"\bJobState=(\w+)")
DIRECTIVE = re.compile(r"[a-z][a-z0-9-]*", re.ASCII)
_END = re.compile(r"\bEndTime=(\S+)")
# One line for each group of nodes of which the job has the same.
_NODES = re.compile(r"^\s+Nodes=(\S+) CPU_IDs=(\S+) Mem=(\d+)", re.MULTILINE)


@dataclass(frozen=True)
class Allocation:
    """What `scontrol show job` says of a job: `nodes` have CPUs and MiB of memory (0: Slurm does not share memory)."""

    state: str
    ends: str = ""
    nodes: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def runs(self) -> bool:
        return self.state == "RUNNING"


def allocation_command(job_id: str) -> tuple[str, ...]:
    """The command that describes an allocation."""
    return ("scontrol", "--details", "show", "job", job_id)


def names_command(nodes: str) -> tuple[str, ...]:
    """The command that writes out the names of ``n[1-2]``."""
    return ("scontrol", "show", "hostnames", nodes)


def knows_no_such_job(words: str) -> bool:
    """Whether scontrol failed because the controller has forgotten the job, which has then ended."""
    return NO_SUCH_JOB in words


def parse_allocation(text: str, names_of: Callable[[str], Sequence[str]]) -> Allocation:
    """Read the answer; `names_of` writes out the names of ``n[1-2]``. Raises ValueError for one that is not whole."""
    state, end = _STATE.search(text), _END.search(text)
    if state is None:
        raise ValueError(f"scontrol said no JobState: {text[:200]!r}")
    nodes = {name: (_cpus(ids), int(memory)) for group, ids, memory in _NODES.findall(text) for name in names_of(group)}
    return Allocation(state[1], end[1] if end else "", nodes)


def _cpus(ids: str) -> int:
    """How many ``0-3,8`` are."""
    ranges = [part.split("-") for part in ids.split(",")]
    return sum(int(one[-1]) - int(one[0]) + 1 for one in ranges)


def sizes(**asked: int | str) -> list[str]:
    """Return `nodes`, `cpus_per_task`, bytes of `memory`, … as options of salloc, sbatch and srun."""
    texts = {
        "mem" if name == "memory" else name: f"{mib(int(n))}M" if name == "memory" else n for name, n in asked.items()
    }
    return [f"--{name.replace('_', '-')}={text}" for name, text in texts.items()]


def step_command(job_id: str, node: str, rule: str, resources: Resources, argv: Sequence[str]) -> tuple[str, ...]:
    """The command that runs `argv` as a step of its own on a node, and waits for it, its output being this one's.

    Its standard input is the command's: the step sees it end when whoever started this command does.
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
