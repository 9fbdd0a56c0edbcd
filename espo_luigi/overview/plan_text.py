"""A plan for people, and for scripts."""

from __future__ import annotations

import itertools
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TypedDict, cast

from espo_luigi.driver.settings.espo import power
from espo_luigi.driver.status import cpu_time, duration
from espo_luigi.driver.task import without_effect
from espo_luigi.fields import existing_parent
from espo_luigi.jobs.energy import in_words
from espo_luigi.jobs.resources import render_size
from espo_luigi.overview.plan import Plan, Planned
from espo_luigi.overview.states import BLOCKED, DONE, RUN, StateInPlan
from espo_luigi.overview.timing import Timing
from espo_luigi.tasks.context import context, settings
from espo_luigi.tasks.cost import Basis, Cost, measured

# The columns of the table and their widths.
_COLUMNS = {
    "rule": -24,
    "done": 7,
    "to run": 8,
    "blocked": 9,
    "stale": 7,
    "CPU time": 13,
    "memory": 10,
    "longest": 13,
    "files": 9,
    "bytes": 10,
}
# The number of changed keys shown for a rule, and of simulations that are left out.
_SHOWN = 3
# Of what goes on in a further line, to the right of the tasks' states.
_INDENT = 11
_MISSING = "output missing"


def render_plan(plan: Plan, *, each: bool = False, width: int = sys.maxsize) -> str:
    """Return the table of rules, the reasons, the cost, and problems; with `each`, a line for every task.

    The lines of tasks that are longer than `width` go on below, under the rule.
    """
    parts = (_problems(plan), _table(plan), _each(plan, width) if each else _reasons(plan), _summary(plan))
    return "\n\n".join(text for part in parts if (text := "\n".join(part)))


def _by_rule(plan: Plan) -> dict[str, list[Planned]]:
    rules: dict[str, list[Planned]] = {}
    for planned in plan.tasks.values():
        rules.setdefault(planned.rule, []).append(planned)
    return rules


def _table(plan: Plan) -> Iterator[str]:
    # Only jobs that have ended tell how many files they made.
    learnt = any(planned.cost and planned.cost.basis == Basis.JOBS for planned in plan.of(RUN))
    widths = {name: width for name, width in _COLUMNS.items() if learnt or name != "files"}
    rows = [dict(zip(_COLUMNS, _COLUMNS, strict=True))]
    for rule, tasks in _by_rule(plan).items():
        counts = Counter(planned.status.in_plan for planned in tasks)
        stale = sum(bool(planned.status.changed) for planned in tasks)
        cells = [*(str(counts[state] or "-") for state in (DONE, RUN, BLOCKED)), str(stale or "-"), *_cost(tasks)]
        rows.append(dict(zip(_COLUMNS, [rule, *cells], strict=True)))
    for row in rows:
        yield "".join(f"{row[name]:<{-n}}" if n < 0 else f"{row[name]:>{n}}" for name, n in widths.items())


def _cost(tasks: list[Planned]) -> list[str]:
    costs = [planned.cost for planned in tasks if planned.status.in_plan == RUN and planned.cost is not None]
    if not costs:
        return ["-"] * 5
    mark = _MARKS[_worst(cost.basis for cost in costs)]
    memory_mark = _MARKS[_worst(cost.memory_basis for cost in costs)]
    most = "<" if mark else ""
    files, made = sum(cost.files for cost in costs), sum(cost.size_bytes for cost in costs)
    return [
        f"{mark}{_cpu_time(costs)}",
        f"{memory_mark}{render_size(max(cost.memory_bytes for cost in costs))}",
        f"{mark}{duration(max(cost.seconds for cost in costs))}",
        "?" if most else f"{files:.0f}",
        f"{most}{render_size(made)}" if made else "?" if most else "-",
    ]


def _cpu_time(costs: Iterable[Cost]) -> str:
    return cpu_time(sum(cost.core_hours for cost in costs))


# Before a cost in the table, and in a sentence.
_MARKS = {Basis.JOBS: "", Basis.TABLE: "~", Basis.LIMITS: "<"}
_WORDS = {Basis.JOBS: "", Basis.TABLE: "about ", Basis.LIMITS: "at most "}


def _worst(found: Iterable[Basis]) -> Basis:
    return max(found, key=list(Basis).index, default=Basis.JOBS)


def _reasons(plan: Plan) -> Iterator[str]:
    stale: dict[tuple[str, ...], list[str]] = {}
    others = ""
    for rule, tasks in _by_rule(plan).items():
        to_run = [planned.status.why for planned in tasks if planned.status.in_plan == RUN]
        for reason, count in Counter(why.partition(": ")[0] for why in to_run if why).items():
            if reason == _MISSING:
                continue  # as expected
            example = next(why for why in to_run if why.startswith(reason)).removeprefix(reason).removeprefix(": ")
            others = "other "
            yield f"{rule}: {count} {RUN}: {reason}{f' ({example.splitlines()[0]}{_more(count)})' if example else ''}"
        changes = [planned.status.changed for planned in tasks if planned.status.changed]
        if keys := tuple(dict.fromkeys(itertools.chain(*changes))):
            stale.setdefault(keys, []).append(f"{len(changes)} {rule}")
    for keys, counts in stale.items():
        yield f"stale: {', '.join(counts)}: {', '.join(keys[:_SHOWN])}{_more(len(keys), _SHOWN)} changed since"
    if any(planned.status.why.startswith(_MISSING) for planned in plan.tasks.values()):
        yield f"All {others}tasks to run have a missing output; `--tasks` names it."


def _more(count: int, shown: int = 1) -> str:
    return f", and {count - shown} more" if count > shown else ""


def _each(plan: Plan, width: int) -> Iterator[str]:
    longest = max((len(planned.rule) for planned in plan.tasks.values()), default=0)
    lines = textwrap.TextWrapper(width, subsequent_indent=" " * _INDENT, break_long_words=False, break_on_hyphens=False)
    for planned in plan.tasks.values():
        stale = f"stale: {', '.join(planned.status.changed)}" if planned.status.changed else ""
        again = "made again with --rerun stale" if planned.task.task_id in plan.again else ""
        notes = "; ".join(filter(None, (planned.reason, stale, again)))
        rule, _, parameters = planned.task.label().partition(" ")
        line = f"{planned.status.in_plan:8} {rule:<{longest}} {parameters}{f'  ({notes})' if notes else ''}".rstrip()
        yield lines.fill(line) if len(line) > width else line


def _summary(plan: Plan) -> Iterator[str]:
    run = [planned for planned in plan.of(RUN) if planned.cost is not None]
    counts = ", ".join(f"{len(plan.of(state))} {state}" for state in (DONE, RUN, BLOCKED))
    stops_all = any(planned.status.why != plan.lacking for planned in plan.of(BLOCKED))
    consequence = "; luigi starts nothing before the problems are solved" if stops_all or plan.too_large else ""
    yield f"{len(plan.tasks)} tasks: {counts}{consequence}"
    without = {"catalogue's simulations": context().dropped, "module's indicators": context().indicators_left_out}
    for what, left_out in ((what, list(names)) for what, names in without.items() if names):
        named = f"{', '.join(left_out[:_SHOWN])}{_more(len(left_out), _SHOWN)}"
        yield f"LEFT OUT: {len(left_out)} of the {what}, for reasons that the warnings name: {named}"
    if plan.again:
        needed = "the stale ones, and those whose deleted stores they need"
        yield f"{len(plan.again)} of them would be made again with --rerun stale: {needed}"
    if again := plan.again_for_others():
        rules = ", ".join(f"{count} {rule}" for rule, count in Counter(one.rule for one in again).most_common())
        cost = _cpu_time(planned.cost for planned in again if planned.cost is not None)
        yield f"{len(again)} of those to run make stores that an earlier run has deleted: {rules}; {cost} of CPU time"
    if run:
        yield from _costs(plan, run)
        yield from without_effect(planned.task for planned in run)
    elif not plan.of(BLOCKED):
        yield "nothing to do: all of it is there"


def _problems(plan: Plan) -> Iterator[str]:
    """Yield each cause of blocked tasks once, with the tasks that it concerns itself, and how many it blocks."""
    found: dict[str, list[Planned]] = {}
    for planned in plan.of(BLOCKED):
        found.setdefault(planned.status.why, []).append(planned)
    if plan.too_large:
        yield f"PROBLEM  {plan.too_large}"
    for cause, tasks in found.items():
        own = [planned for planned in tasks if not planned.status.blocked_by]
        rules = Counter(planned.rule for planned in own)
        of = own[0].task.label() if len(own) == 1 else ", ".join(f"{count} {rule}" for rule, count in rules.items())
        after = len(tasks) - len(own)
        later = f", and {after} later task{'s' if after > 1 else ''}" if after else ""
        yield f"PROBLEM  {cause}"
        yield f"         It blocks {len(tasks)} of {len(plan.tasks)} tasks: {of}{later}."


def _costs(plan: Plan, run: list[Planned]) -> Iterator[str]:
    costs = [planned.cost for planned in run if planned.cost is not None]
    worst, took = _worst(cost.basis for cost in costs), plan.timing()
    most = _WORDS[worst]
    energy = in_words(power(), sum(cost.core_hours for cost in costs))
    yield f"cost: {most}{_cpu_time(costs)} of CPU time reserved; energy: {energy}"
    chain = f"the longest chain takes {most}{duration(took.longest_chain_seconds)}"
    if plan.capacity.is_known:
        at_once = f"{took.most_at_once} task(s) at once; {chain}"
        wall_time = f"{most}{duration(took.seconds)} {plan.capacity.words}"
        yield f"wall time: {wall_time}, without waiting in the queue ({at_once})"
    else:
        yield f"wall time: not known: {plan.capacity.words}; {chain}"
    yield from _bases(plan, run)
    yield from _disk(plan, took, "at most " if most else "")


def _bases(plan: Plan, run: list[Planned]) -> Iterator[str]:
    """Yield the meaning of the marks before costs."""
    rules: dict[Basis, set[str]] = {basis: set() for basis in Basis}
    for planned in run:
        if planned.cost is not None:
            rules[planned.cost.basis].add(planned.rule)
    all_rules = set().union(*rules.values())
    if estimated := rules[Basis.TABLE]:
        table = measured()
        yield (
            f"  ~ is an estimate by what jobs took on {table['processor']} on {table['date']} "
            f"(benchmarks/production.py), until a job of the rule has ended here: {_named(estimated, all_rules)}"
        )
        yield "  < before bytes: as if nothing were compressed and all cells land"
    if plan.lacks_reference:
        is_known = any(planned.status.why == plan.lacks_reference for planned in plan.of(BLOCKED))
        reason = "" if is_known else f": {plan.lacks_reference}"
        yield f"  cells of 0.1 degrees are assumed, as the reference cannot be opened{reason}"
    if limited := rules[Basis.LIMITS]:
        these = _named(limited, all_rules)
        yield f"  < is what may be used at most, by the rules' limits, as no job has ended yet: {these}"
    scaled = Basis.JOBS, Basis.LIMITS
    if any(planned.cost and (planned.cost.basis, planned.cost.memory_basis) == scaled for planned in run):
        yield "  < before memory: by size, as the jobs that have ended were smaller; the rule's limit at most"


def _named(rules: set[str], all_rules: set[str]) -> str:
    return "all rules" if rules == all_rules else ", ".join(sorted(rules))


def _disk(plan: Plan, took: Timing, most: str) -> Iterator[str]:
    paths = context().config.paths
    for name, folder, needed in (
        ("final", paths.final, plan.made_bytes(temporary=False)),
        ("tmpdir", paths.tmpdir, took.temporary_bytes),
    ):
        free = _free(folder)
        short = "  NOT ENOUGH" if needed > free else ""
        yield f"disk: {most}{render_size(needed)} in {name} {folder} ({render_size(free)} free){short}"
    if settings().keep_temporary:
        yield "  keep_temporary = true: no temporary store is deleted"
    if plan.scratch is not None and not plan.too_large:
        without = plan.timing(limited=False).temporary_bytes
        yield f"  within scratch_limit = {settings().scratch_limit}; {most}{render_size(without)} without the limit"
    if took.no_room:
        yield f"  {took.no_room}"


def _free(folder: Path) -> int:
    return shutil.disk_usage(existing_parent(folder)).free


class CostJson(TypedDict):
    """The expected cost of a task: `tasks.cost.Cost`."""

    seconds: float
    cpus: int
    memory_bytes: int
    files: float
    size_bytes: float
    basis: Basis
    memory_basis: Basis
    core_hours: float


class PlannedJson(TypedDict):
    """A task of the plan. `stale` names what has changed since it was done."""

    rule: str
    wildcards: dict[str, str]
    state: StateInPlan
    reason: str
    stale: tuple[str, ...]
    made_again_with_rerun_stale: bool
    cost: CostJson | None


class PlanJson(TypedDict):
    """The plan of a run.

    `left_out` has the simulations that the search drops, with the reason, and `counts` the number of tasks by state.
    `wall_seconds` and `most_jobs_at_once` are null where it is unknown how many tasks can run at once.
    """

    tasks: list[PlannedJson]
    left_out: dict[str, str]
    counts: dict[str, int]
    made_again_with_rerun_stale: int
    energy_joules_estimated: float
    wall_seconds: float | None
    longest_chain_seconds: float
    most_jobs_at_once: int | None
    final_bytes: float
    final_free_bytes: int
    temporary_bytes: float
    temporary_bytes_at_once: float
    temporary_free_bytes: int
    temporary_bytes_at_once_without_limit: float


def as_json(plan: Plan) -> PlanJson:
    """Return the plan as plain values."""
    took, paths = plan.timing(), context().config.paths
    return {
        "tasks": [_plain(planned, plan) for planned in plan.tasks.values()],
        "left_out": context().dropped,
        "counts": {state: len(plan.of(state)) for state in (DONE, RUN, BLOCKED)},
        "made_again_with_rerun_stale": len(plan.again),
        "energy_joules_estimated": power().joules(sum(one.cost.core_hours for one in plan.of(RUN) if one.cost)),
        "wall_seconds": took.seconds if plan.capacity.is_known else None,
        "longest_chain_seconds": took.longest_chain_seconds,
        "most_jobs_at_once": took.most_at_once if plan.capacity.is_known else None,
        "final_bytes": plan.made_bytes(temporary=False),
        "final_free_bytes": _free(paths.final),
        "temporary_bytes": plan.made_bytes(temporary=True),
        "temporary_bytes_at_once": took.temporary_bytes,
        "temporary_free_bytes": _free(paths.tmpdir),
        "temporary_bytes_at_once_without_limit": plan.timing(limited=False).temporary_bytes,
    }


def _plain(planned: Planned, plan: Plan) -> PlannedJson:
    cost = asdict(planned.cost) | {"core_hours": planned.cost.core_hours} if planned.cost is not None else None
    return {
        "rule": planned.rule,
        "wildcards": planned.task.wildcards,
        "state": planned.status.in_plan,
        "reason": planned.reason,
        "stale": planned.status.changed,
        "made_again_with_rerun_stale": planned.task.task_id in plan.again,
        "cost": cast(CostJson | None, cost),
    }
