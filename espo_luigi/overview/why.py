"""Why a task is not done: the tasks that it waits for, down to the root, and the remedy."""

from __future__ import annotations

import functools
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from textwrap import indent
from typing import NamedTuple

from luigi import Task

from espo_luigi.driver.graph import Graph
from espo_luigi.driver.settings.sections import SECTIONS
from espo_luigi.driver.status import duration, is_alive, seconds_at_work
from espo_luigi.driver.task import SlurmTask
from espo_luigi.errors import ConfigurationError, ParameterError, nearest, no_such_rule
from espo_luigi.jobs.causes import Cause
from espo_luigi.jobs.order import ResultWord, end_of_log
from espo_luigi.jobs.schedulers import SCHEDULERS
from espo_luigi.jobs.schedulers.base import Phase
from espo_luigi.jobs.schedulers.commands import Commands
from espo_luigi.overview.states import (
    DONE,
    RUN,
    TaskState,
    TaskStates,
    TaskStatus,
    Trace,
    fits,
    problem_of,
    scheduler,
    words_of,
)
from espo_luigi.tasks.all import All
from espo_luigi.tasks.base import EspoTask
from espo_luigi.tasks.context import settings
from espo_luigi.tasks.make import task_for, tasks_of
from espo_luigi.tasks.perfect_model import ALL, PerfectModel

_LINES_OF_LOG = 12
_AGAIN = "Correct the cause and give the same command again: what is complete is not done again."


def why(words: Sequence[str], module: str = "") -> str:
    """Return a paragraph about the task that the words name: a path, or a rule and some of its parameters' values.

    With the name of a user's module, that module's rules are known, too.

    Raises
    ------
    ParameterError, UnknownPathError
        If they name no task, or several.
    """
    if not settings().config_files and Path("luigi.cfg").exists():
        raise ConfigurationError(
            "`espo why` explains the tasks of a production, whose configuration `[espo] config` of luigi.cfg names; it "
            "names none. Of tasks of your own, `espo status` tells how they stand, and `espo logs TASK` shows the log"
        )
    search = Search([All(), *(tasks_of(module) if module else ())])
    if len(words) == 1 and (told := _about_folder(words[0], search)):
        return told
    start = named_task(words, module, search)
    if ended := search.ended(start):
        deleted = [str(target) for target in start.output()]
        return (
            f"{start.label()} was done at {_moment(ended)}; its temporary store was deleted because nothing needs it "
            f"any more: {', '.join(deleted)}. `espo make {shlex.quote(deleted[0])}` makes it again."
        )
    chain = search.chain(start)
    root = chain[-1]
    is_idle = not is_alive(search.states.run) and search.states.of(root).state is TaskState.READY
    if is_idle and start.task_id not in search.to_run:
        paths = [str(target) for target in start.output()]
        return (
            f"{start.label()} is not there, and a run of All would not make it: nothing that All lacks is made of it. "
            f"(Temporary stores are deleted once nothing needs them.) `espo make {shlex.quote(paths[0])}` makes it."
        )
    found = about(root, search.states)
    if len(chain) == 1:
        return found
    between = ", which waits for ".join(_names(chain)[1:])
    return f"{start.label()} waits for {between}.\n{found}"


def _moment(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M}"


def _about_folder(folder: str, search: Search) -> str:
    """Return a table of the rules that make a folder's outputs, and how many of the tasks stand how.

    Returns "" if no output lies below the folder.
    """
    wanted = Path(folder).absolute()
    made: dict[Path, SlurmTask] = {}
    for task in (task for task in search.graph if isinstance(task, EspoTask)):
        made |= {path: task for target in task.output() if wanted in (path := target.path.absolute()).parents}
    rules: dict[str, Counter[str]] = {}
    for each in {task.task_id: task for task in made.values()}.values():
        rules.setdefault(each.get_task_family(), Counter())[search.word(each)] += 1
    lines = [f"  {rule:<24}{', '.join(f'{n} {word}' for word, n in counts.items())}" for rule, counts in rules.items()]
    there = sum(os.path.exists(path) for path in made)
    told = f"{folder}: {there} of {len(made)} outputs are there. The tasks that make them:"
    return "\n".join([told, *lines]) if made else ""


def _names(chain: Sequence[SlurmTask]) -> list[str]:
    """Return the tasks' names, without parameters that an earlier task of the chain has, too."""
    named: dict[str, str] = {}
    names = []
    for task in chain:
        own = [f"{name}={value}" for name, value in task.wildcards.items() if named.get(name) != value]
        names.append(" ".join([task.get_task_family(), *own]))
        named |= task.wildcards
    return names


def named_task(words: Sequence[str], module: str, search: Search) -> SlurmTask:
    """Return the task that a path (also one inside of a store), or a rule and values of its parameters name.

    For a rule, the graph of the search has its tasks.
    """
    if len(words) == 1 and ("/" in words[0] or "." in words[0]):  # as no rule's name has
        path = Path(words[0])
        return task_for(next((one for one in (path, *path.parents) if one.suffix in (".zarr", ".zip")), path), module)
    family, *rest = [word for word in words if not word.startswith("--")]
    is_known = family in ("PerfectModel", "PerfectPair", "WithheldYears")
    graph = Graph([PerfectModel(truth=ALL)]) if is_known else search.graph
    everything = [task for task in graph if isinstance(task, SlurmTask)]
    tasks = [task for task in everything if task.task_family == family]
    if not tasks:
        rules = sorted({task.task_family for task in everything})
        raise ParameterError(no_such_rule(family, rules))
    exact = [task for task in tasks if all(word in words_of(task.wildcards) for word in rest)]
    found = exact or [task for task in tasks if fits(task.wildcards, rest)]
    if len(found) != 1:
        some = "".join(f"\n  {task.label()}" for task in (found or tasks)[:10])
        hint = ""
        if not found:
            # The first word that fits no task.
            whole = dict.fromkeys(word for task in tasks for word in words_of(task.wildcards))
            known = dict.fromkeys(part for word in whole for part in (word, *re.split("[_-]", word)))
            wrong = next((word for word in rest if not any(fits(task.wildcards, [word]) for task in tasks)), "")
            hint = nearest(wrong, known, hint=f" (no {wrong}; did you mean {{}}?)")
        raise ParameterError(f"{len(found)} tasks are {' '.join(words)}{hint}, expected one; such as:{some}")
    return found[0]


class _Way(NamedTuple):
    """The way down from a task: the rank of its end, and the next task; None if the task is the end itself."""

    rank: int
    below: SlurmTask | None


class Search:
    """Finds the way from a task down to the root, and looks at each task once."""

    def __init__(self, ends: Sequence[Task]) -> None:
        self._ends = ends
        self.states = TaskStates()
        self._ways: dict[str, _Way] = {}
        self._blocked: dict[str, bool] = {}

    def chain(self, task: SlurmTask) -> list[SlurmTask]:
        """Return the chain of needs down to a failed task, else to one that cannot run, is running, or is missing."""
        stack = [(task, self._missing_below(task))]
        while stack:
            current, needs = stack[-1]
            way = self._ways.get(current.task_id)
            need = None if way is not None and way.rank == 0 else next(needs, None)
            if need is None:
                self._ways.setdefault(current.task_id, _Way(self._rank(current), None))
                stack.pop()
                if stack:
                    self._prefer(stack[-1][0], current)
            elif need.task_id in self._ways:
                self._prefer(current, need)
            else:
                stack.append((need, self._missing_below(need)))
        chain = [task]
        while below := self._ways[chain[-1].task_id].below:
            chain.append(below)
        return chain

    def ended(self, task: SlurmTask) -> float:
        """Return when a task was done whose temporary outputs were deleted since; 0 if there is none to be made."""
        found = self.states.of(task)
        result = (found.trace.result if found.trace else None) or {}
        was_done = found.state is TaskState.READY and result.get("outcome") == ResultWord.SUCCESS
        return float(result["ended"]) if was_done and task.task_id not in self.to_run else 0.0

    @functools.cached_property
    def graph(self) -> Graph:
        """The tasks below the ends, such as `All`."""
        return Graph(self._ends)

    @functools.cached_property
    def to_run(self) -> set[str]:
        """The tasks that a run of the ends would do."""
        return self.graph.pending(lambda each: not self.states.is_complete(each))[0]

    def word(self, task: SlurmTask) -> str:
        """Return how a task stands, in a few words."""
        stand = self.states.of(task).state
        if stand is not TaskState.READY:
            return DONE if stand is TaskState.COMPLETE else str(stand)
        return RUN if task.task_id in self.to_run else "not needed any more"

    def _missing_below(self, task: SlurmTask) -> Iterator[SlurmTask]:
        """Yield the incomplete needs of a task; none if the task is complete, its job is out, or it cannot run."""
        if self.states.of(task).state not in (TaskState.COMPLETE, TaskState.RUNNING) and not self._is_blocked(task):
            for need in task.deps():
                if isinstance(need, SlurmTask) and not self.states.is_complete(need):
                    yield need

    def _prefer(self, task: SlurmTask, need: SlurmTask) -> None:
        """Let the way from `task` lead to `need`, if that way ends at a lower rank than the way known so far."""
        rank, known = self._ways[need.task_id].rank, self._ways.get(task.task_id)
        if known is None or rank < known.rank:
            self._ways[task.task_id] = _Way(rank, need)

    def _rank(self, task: SlurmTask) -> int:
        ranks = {TaskState.FAILED: 0, TaskState.RUNNING: 2}
        return 1 if self._is_blocked(task) else ranks.get(self.states.of(task).state, 3)

    def _is_blocked(self, task: SlurmTask) -> bool:
        if task.task_id not in self._blocked:
            self._blocked[task.task_id] = self.states.of(task).state is TaskState.READY and bool(problem_of(task))
        return self._blocked[task.task_id]


def about(task: SlurmTask, states: TaskStates | None = None) -> str:
    """Return a paragraph about a task that waits for no other."""
    states = states or TaskStates()
    found, label = states.closely(task), task.label()
    if found.state in (TaskState.COMPLETE, TaskState.STALE):
        changed = f" Since then, changed: {', '.join(found.changed)}. `--espo-rerun stale` makes it again."
        return f"{label} {_made_at(task)}.{changed if found.changed else ''}"
    if found.state is TaskState.BLOCKED:
        return f"{label} cannot run: {found.why}"
    if found.trace is not None and found.state is TaskState.FAILED:
        return _about_failed(found, found.trace, label)
    if found.trace is not None and found.state is TaskState.RUNNING:
        return _about_running(found.trace, label) if found.trace.is_alive else _about_submitted(task, found.trace)
    if is_alive(states.run):
        jobs = states.run["jobs"]
        turn = "its turn, or room within scratch_limit" if settings().scratch_limit else "its turn"
        doing = jobs[task.task_id]["message"].splitlines()[0] if task.task_id in jobs else f"waits for {turn}"
        return f"{label} has all that it needs; {doing} ({len(jobs)} tasks are begun: `espo status`). Wait."
    so_far = found.why or "has all that it needs"
    return f"{label} {so_far}, and no driver is running: give the command of the run again."


def _made_at(task: SlurmTask) -> str:
    """Return when the outputs were made, and where they are."""
    infos = task.decisive_infos() if isinstance(task, EspoTask) else []
    markers = [marker for info in infos if (marker := info.target.marker()) is not None]
    made = f"was done at {_moment(datetime.fromisoformat(markers[0].created).timestamp())}" if markers else "is done"
    return f"{made}: {', '.join(str(info.path) for info in infos)}" if infos else made


def _about_failed(found: TaskStatus, trace: Trace, label: str) -> str:
    logs = trace.logs()
    end = (
        f"\nThe end of its log, {logs[-1]}:\n{indent(end_of_log(logs[-1], _LINES_OF_LOG), '    ')}"
        if logs
        else "\nIt left no log."
    )
    # Jobs of the local engine have no record.
    has_crashed = found.cause is Cause.CRASHED or (trace.record is None and trace.result is None)
    hint = " Raise the rule's `memory`, if the log says nothing else." if has_crashed else ""
    meaning = f" ({found.cause.explanation(scheduler())})" if found.cause else ""
    return f"{label} failed: {found.why}{meaning}.{end}\n{_AGAIN}{hint}"


def _about_running(trace: Trace, label: str) -> str:
    beat = trace.beat or {}
    since = f" for {duration(seconds_at_work(beat))}" if beat.get("started") else ""
    job = f"job {beat['job_id']}" if beat.get("job_id") else f"process {beat.get('pid')}"
    percent = f", {beat['percent']} %" if beat.get("percent") else ""
    return f"{label} is at work: {job} on {beat.get('node')}{since}{percent}; {beat.get('message', '')}. Wait."


def _about_submitted(task: SlurmTask, trace: Trace) -> str:
    assert trace.record is not None
    job_id, engine = trace.record.job_id, settings().engine
    if not job_id or engine not in SCHEDULERS:
        return f"{task.label()} was submitted, and its job's number is not known yet. Wait, or look at `espo status`."
    commands = Commands(SCHEDULERS[engine], SECTIONS[engine]().batch_settings())
    row = commands.one(job_id)
    name = f"{task.label()}: job {job_id}"
    if row is None:
        return (
            f"{name} was submitted; {SCHEDULERS[engine].NAME} does not list it now, or does not answer. A driver finds "
            "out what became of it: give the same command again, if none is running."
        )
    if row.phase is not Phase.PENDING:
        return (
            f"{name} is {row.said} on {row.node or '?'}, and has given no sign of life yet. Wait, or see `espo logs`."
        )
    start = f" It is expected to start at {row.start.replace('T', ' ')} UTC." if row.start else ""
    drained = "".join(f" {sentence}." for sentence in commands.drained())
    words = SCHEDULERS[engine].in_words(row.reason) or row.state
    return f"{name} pends: {words} ({row.reason or 'no reason given'}).{start}{drained}"
