"""The resources that jobs asked for and used, by their results and the scheduler's accounts, with figures of them."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from espo_luigi.jobs.accounts import Submissions
from espo_luigi.jobs.causes import words_of
from espo_luigi.jobs.lifecycle.records import Record
from espo_luigi.jobs.order import ResultWord
from espo_luigi.jobs.resources import GIB, LEAST_WORKER_BYTES, MIB, headroom, parse_memory, parse_time
from espo_luigi.jobs.schedulers.base import Phase, Usage
from espo_luigi.report.drawings import drawing, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SPARE = 1.2
# After Okabe and Ito (2008); the rules that took most time get a colour, in this order.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
_OTHERS = "#999999"
_MOST_LANES = 60


@dataclass(frozen=True)
class Job:
    """The resources that a job was given and used, in bytes, seconds and CPUs; times are seconds since 1970.

    If `accounted`, a scheduler has counted these figures, otherwise the job itself.
    """

    rule: str
    node: str
    started: float
    ended: float
    ordered: float | None
    succeeded: bool
    n_workers: int
    cpus: int
    memory_bytes: int
    time_minutes: int
    peak_memory_bytes: int
    cpu_seconds: float
    job_id: str = ""
    accounted: bool = False
    cluster: str = ""
    # As the scheduler has measured it; 0 where it measures none.
    energy_joules: float = 0.0

    @classmethod
    def of(cls, result: Mapping[str, Any], ordered: float | None = None) -> Job:
        """Return the job of a result that it wrote; raises KeyError or ValueError where something lacks."""
        asked = result["parameters"]
        return cls(
            rule=str(result["family"]),
            node=str(result.get("node", "?")),
            started=float(result["started"]),
            ended=float(result["ended"]),
            ordered=ordered,
            succeeded=result["outcome"] == ResultWord.SUCCESS,
            n_workers=int(asked["n_workers"]),
            cpus=int(asked["cpus_per_task"]),
            memory_bytes=parse_memory(asked["memory"]),
            time_minutes=parse_time(asked["time"]),
            peak_memory_bytes=int(result["peak_memory_bytes"]),
            cpu_seconds=float(result.get("cpu_seconds", 0.0)),
            job_id=str(result.get("job_id") or ""),
            cluster=str(result.get("cluster") or ""),
        )

    @property
    def seconds(self) -> float:
        """How long it worked."""
        return self.ended - self.started

    @property
    def cpus_used(self) -> float:
        """How many CPUs were at work in the mean."""
        return self.cpu_seconds / self.seconds if self.seconds > 0 else 0.0

    @property
    def waited(self) -> float | None:
        """Seconds between the order and the start, if the time of the order is known."""
        return None if self.ordered is None else max(0.0, self.started - self.ordered)


def by_rule(jobs: Iterable[Job]) -> dict[str, list[Job]]:
    """Return the jobs of each rule, ordered by the rules' start."""
    rules: dict[str, list[Job]] = defaultdict(list)
    for job in sorted(jobs, key=lambda job: job.started):
        rules[job.rule].append(job)
    return dict(rules)


def sufficient(jobs: Sequence[Job]) -> dict[str, str]:
    """Return resources that would have sufficed for all of a rule's jobs, with 20 % to spare, as luigi.cfg has them.

    Never more CPUs than were given: the use of these does not show what more would have done.
    """
    given = max(jobs, key=lambda job: job.cpus)
    cpus = min(given.cpus, max(1, math.ceil(SPARE * max(job.cpus_used for job in jobs))))
    workers = min(given.n_workers, cpus)
    cpus = min(given.cpus, -(-cpus // workers) * workers)
    memory = math.ceil(SPARE * max(job.peak_memory_bytes for job in jobs))
    while (memory - headroom(memory)) // workers < LEAST_WORKER_BYTES:
        memory += 64 * MIB
    minutes = math.ceil(SPARE * max(job.seconds for job in jobs) / 60)
    return {
        "n_workers": str(workers),
        "cpus_per_task": str(cpus - cpus % workers),
        "memory": f"{-(-memory // (64 * MIB)) * 64}M",
        "time": str(max(1, minutes)),
    }


def rule_blocks(jobs: Iterable[Job]) -> str:
    """Return luigi.cfg's sections with sufficient resources, for each rule with a successful job.

    Rules whose Dask workers were elsewhere are left out: a job cannot measure what these took.
    """
    succeeded = by_rule(job for job in jobs if job.succeeded and not job.cluster)
    blocks = (
        "\n".join([f"[{rule}]", *(f"{name} = {value}" for name, value in sufficient(of).items())])
        for rule, of in succeeded.items()
    )
    return "\n\n".join(blocks)


def retries(records: Iterable[Record]) -> Counter[tuple[str, str]]:
    """Count the submissions that were repeated, by rule and cause."""
    return Counter(
        (record.rule, words_of(str(past.get("ended", "?")))) for record in records for past in record.history
    )


@drawing
def timeline(jobs: Sequence[Job], *, title: str = "") -> Figure:
    """Draw when each job worked, node by node; simultaneous jobs are stacked, failed jobs are hatched."""
    from matplotlib.collections import PolyCollection

    seconds: Counter[str] = Counter()
    for job in jobs:
        seconds[job.rule] += int(1000 * job.seconds)
    # The rules that took most time get a colour.
    colours = {rule: colour for (rule, _), colour in zip(seconds.most_common(), _COLOURS, strict=False)}
    lanes = _lanes(jobs)
    height = sum(len(of) for of in lanes.values()) + len(lanes)
    figure, ((axes,),) = new_figure(9.6, 1.6 + 0.16 * min(height, _MOST_LANES))
    first = min((job.started for job in jobs), default=0.0)
    lasting = max((job.ended for job in jobs), default=0.0) - first
    units = ((86400, "d"), (3600, "h"), (60, "min"))
    unit, words = next(((unit, name) for unit, name in units if lasting > 3 * unit), (1.0, "s"))
    low, ticks, bars = 0, list[float](), defaultdict[tuple[str, bool], list[Any]](list)
    for of_node in lanes.values():
        for place, lane in enumerate(of_node, low):
            for job in lane:
                left = (job.started - first) / unit
                right = left + max(job.seconds / unit, 0.002)
                corners = [(left, place), (right, place), (right, place + 0.8), (left, place + 0.8)]
                bars[colours.get(job.rule, _OTHERS), job.succeeded].append(corners)
        ticks.append(low + len(of_node) / 2)
        low += len(of_node) + 1
    # The bars of a colour are a single artist, since there may be thousands.
    for (colour, succeeded), corners in bars.items():
        looks: dict[str, Any] = {"edgecolor": "none"} if succeeded else {"edgecolor": "black", "hatch": "xxxx"}
        axes.add_collection(PolyCollection(corners, facecolor=colour, **looks))
    axes.autoscale_view()
    axes.set_yticks(ticks, list(lanes))
    axes.set(xlabel=f"Time since the first job began [{words}]", ylabel="Node", ylim=(low, -1), title=title)
    _legend_of_rules(figure, colours, jobs)
    return figure


def _lanes(jobs: Iterable[Job]) -> dict[str, list[list[Job]]]:
    """Put the jobs of each node that overlap into lanes of their own, as few as that takes; n2 comes before n10."""
    nodes: dict[str, list[list[Job]]] = defaultdict(list)
    for job in sorted(jobs, key=lambda job: job.started):
        lanes = nodes[job.node]
        free = next((lane for lane in lanes if lane[-1].ended <= job.started), None)
        if free is None:
            lanes.append([job])
        else:
            free.append(job)
    by_number = sorted(nodes, key=lambda node: [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", node)])
    return {node: nodes[node] for node in by_number}


def _legend_of_rules(figure: Figure, rules: Mapping[str, str], jobs: Sequence[Job]) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=colour, label=rule) for rule, colour in rules.items()]
    if len({job.rule for job in jobs}) > len(rules):
        handles.append(Patch(facecolor=_OTHERS, label="others"))
    if not all(job.succeeded for job in jobs):
        handles.append(Patch(facecolor="white", edgecolor="black", hatch="xxxx", label="failed"))
    figure.legend(handles=handles, loc="outside lower center", ncols=5)


@drawing
def requested_and_used(jobs: Iterable[Job], *, title: str = "") -> Figure:
    """Draw, by rule, the requested resources and the most that a job used: CPUs, memory, time."""
    rules = by_rule(jobs)
    figure, axes = new_figure(9.6, 1.6 + 0.22 * len(rules), 1, 3, sharey=True)
    quantities: dict[str, list[tuple[list[float], list[float]]]] = {
        "CPUs [1]": [([j.cpus for j in of], [j.cpus_used for j in of]) for of in rules.values()],
        "Memory [GiB]": [
            ([j.memory_bytes / GIB for j in of], [j.peak_memory_bytes / GIB for j in of]) for of in rules.values()
        ],
        "Time [min]": [([j.time_minutes for j in of], [j.seconds / 60 for j in of]) for of in rules.values()],
    }
    for place, (words, values) in zip(axes[0], quantities.items(), strict=True):
        rows = np.arange(len(values))
        place.plot([max(asked) for asked, _ in values], rows, "|", color="black", markersize=9, label="asked for")
        most = [max(used) for _, used in values]
        place.plot(most, rows, "o", color="#0072B2", markersize=5, label="most used")
        place.set(xscale="linear" if words.startswith("CPU") else "log", xlabel=words)
        place.grid(True, axis="x")
    axes[0][0].set_xlim(left=0)
    axes[0][0].set_yticks(range(len(rules)), list(rules))
    axes[0][0].set_ylim(len(rules) - 0.4, -0.6)
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    figure.suptitle(title)
    return figure


def accounted(jobs: Sequence[Job], known: Submissions, accounts: Sequence[Usage]) -> list[Job]:
    """Return the jobs, corrected by the accounts of them, and after them the runs that have left no result."""
    last = {account.job_id: account for account in sorted(accounts, key=lambda account: account.started)}
    own = {job.job_id for job in jobs}
    workers = {job.rule: job.n_workers for job in jobs}
    runs = [account for account in accounts if account.job_id not in own or account is not last[account.job_id]]
    corrected = [(job, last.get(job.job_id)) for job in jobs]
    for account in runs:
        record = known[account.job_id, account.name]
        job = Job(
            rule=record.rule,
            node="?",
            started=0.0,
            ended=0.0,
            ordered=None,
            succeeded=account.phase is Phase.COMPLETED,
            n_workers=workers.get(record.rule, 1),
            cpus=1,
            memory_bytes=record.memory_bytes,
            time_minutes=record.time_minutes,
            peak_memory_bytes=0,
            cpu_seconds=0.0,
            job_id=account.job_id,
        )
        corrected.append((job, account))
    return [
        job
        if account is None
        else replace(
            job,
            node=account.node or job.node,
            started=account.started,
            ended=account.ended,
            ordered=account.queued or job.ordered,
            cpus=account.cpus or job.cpus,
            memory_bytes=account.memory_bytes or job.memory_bytes,
            time_minutes=account.time_minutes or job.time_minutes,
            peak_memory_bytes=max(account.peak_memory_bytes, job.peak_memory_bytes),  # both are samples
            cpu_seconds=account.cpu_seconds or job.cpu_seconds,
            accounted=True,
            energy_joules=account.energy_joules,
        )
        for job, account in corrected
    ]
