"""Why a task is not done: the tasks that it waits for, down to the root, and the remedy."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import indent
from typing import NamedTuple

from espo_luigi.driver.display.status import duration, is_alive, seconds_at_work
from espo_luigi.driver.run.run import each_after_its_needs, pending_in, walk
from espo_luigi.driver.settings.espo import settings
from espo_luigi.driver.settings.sections import SECTIONS
from espo_luigi.driver.task import SlurmTask
from espo_luigi.errors import ParameterError, nearest
from espo_luigi.jobs.lifecycle.policy import Cause
from espo_luigi.jobs.local.engine import KILLED
from espo_luigi.jobs.order import end_of_log
from espo_luigi.jobs.schedulers.base import Phase
from espo_luigi.jobs.schedulers.commands import Commands
from espo_luigi.jobs.schedulers.known import SCHEDULERS
from espo_luigi.overview.standing import Stand, TaskState, TaskStates, Trace, fits, scheduler, words_of
from espo_luigi.tasks.all import All
from espo_luigi.tasks.make import task_for

_LINES_OF_LOG = 12
_AGAIN = "Correct the cause and give the same command again: what is complete is not done again."


def why(words: Sequence[str]) -> str:
    """Return a paragraph about the task that the words name: a path, or a rule and some of its parameters' values.

    Raises
    ------
    ParameterError, UnknownPathError
        If they name no task, or several.
    """
    search, start = Search(), named_task(words)
    chain = search.chain(start)
    root = chain[-1]
    if search.is_idle(root) and not search.is_to_run(start):
        return _about_unneeded(start)
    found = about(root, search.states)
    if len(chain) == 1:
        return found
    between = ", which waits for ".join(_names(chain)[1:])
    return f"{start.label()} waits for {between}.\n{found}"


def _about_unneeded(task: SlurmTask) -> str:
    paths = [str(target) for target in task.output()]
    return (
        f"{task.label()} is not there, and a run of All would not make it: nothing that All lacks is made of it. "
        f"(Temporary stores are deleted once nothing needs them.) `espo make {shlex.quote(paths[0])}` makes it."
    )


def _names(chain: Sequence[SlurmTask]) -> list[str]:
    """Return the tasks' names, without parameters that an earlier task of the chain has, too."""
    named: dict[str, str] = {}
    names = []
    for task in chain:
        own = [f"{name}={value}" for name, value in task.wildcards.items() if named.get(name) != value]
        names.append(" ".join([task.get_task_family(), *own]))
        named |= task.wildcards
    return names


def named_task(words: Sequence[str]) -> SlurmTask:
    """Return the task that a path, or a rule and values of its parameters name."""
    if len(words) == 1 and ("/" in words[0] or "." in words[0]):  # as no rule's name has
        return task_for(Path(words[0]))
    family, *rest = [word for word in words if not word.startswith("--")]
    everything = [task for task in walk([All()]) if isinstance(task, SlurmTask)]
    tasks = [task for task in everything if task.task_family == family]
    if not tasks:
        rules = sorted({task.task_family for task in everything})
        hint = nearest(family, rules, hint=" Did you mean {}?")
        raise ParameterError(f"{family!r} is no rule of this run, and no path.{hint} Rules: {', '.join(rules)}")
    exact = [task for task in tasks if all(word in words_of(task.wildcards) for word in rest)]
    found = exact or [task for task in tasks if fits(task.wildcards, rest)]
    if len(found) != 1:
        some = "".join(f"\n  {task.label()}" for task in (found or tasks)[:10])
        raise ParameterError(f"{len(found)} tasks are {' '.join(words)}, expected one; such as:{some}")
    return found[0]


class _Way(NamedTuple):
    """The way down from a task: the rank of its end, and the next task; None if the task is the end itself."""

    rank: int
    below: SlurmTask | None


class Search:
    """Finds the way from a task down to the root, and looks at each task once."""

    def __init__(self) -> None:
        self.states = TaskStates()
        self._ways: dict[str, _Way] = {}

    def chain(self, task: SlurmTask) -> list[SlurmTask]:
        """Return the chain of needs from a task down: to a failed task, else to a running or missing task."""
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

    def is_idle(self, task: SlurmTask) -> bool:
        """Return whether a task waits for a driver, while no driver is alive."""
        return not is_alive(self.states.run) and self.states.of(task).stand is Stand.READY

    def is_to_run(self, task: SlurmTask) -> bool:
        """Return whether a run of `All` would do the task."""
        graph = each_after_its_needs([All()])
        return task.task_id in pending_in([All()], graph, lambda each: not self.states.is_complete(each))[0]

    def _missing_below(self, task: SlurmTask) -> Iterator[SlurmTask]:
        """Yield the incomplete needs of a task; none if the task is complete or its job is out."""
        if self.states.of(task).stand not in (Stand.COMPLETE, Stand.RUNNING):
            for need in task.deps():
                if isinstance(need, SlurmTask) and not self.states.is_complete(need):
                    yield need

    def _prefer(self, task: SlurmTask, need: SlurmTask) -> None:
        """Let the way from `task` lead to `need`, if that way ends at a lower rank than the way known so far."""
        rank, known = self._ways[need.task_id].rank, self._ways.get(task.task_id)
        if known is None or rank < known.rank:
            self._ways[task.task_id] = _Way(rank, need)

    def _rank(self, task: SlurmTask) -> int:
        return {Stand.FAILED: 0, Stand.RUNNING: 1}.get(self.states.of(task).stand, 2)


def about(task: SlurmTask, states: TaskStates | None = None) -> str:
    """Return a paragraph about a task that waits for no other."""
    states = states or TaskStates()
    found, label = states.closely(task), task.label()
    if found.stand is Stand.COMPLETE:
        return f"{label} is complete: there is nothing that it waits for."
    if found.stand is Stand.STALE:
        changed = f"Since then, changed: {', '.join(found.changed)}. `--espo-rerun stale` makes it again."
        return f"{label} is complete: there is nothing that it waits for. {changed}"
    if found.stand is Stand.BLOCKED:
        return f"{label} cannot run: {found.why}"
    if found.trace is not None and found.stand is Stand.FAILED:
        return _about_failed(found, found.trace, label)
    if found.trace is not None and found.stand is Stand.RUNNING:
        return _about_running(found.trace, label) if found.trace.is_alive else _about_submitted(task, found.trace)
    if is_alive(states.run):
        jobs = states.run["jobs"]
        doing = jobs[task.task_id]["message"].splitlines()[0] if task.task_id in jobs else "waits for its turn"
        return f"{label} has all that it needs; {doing} ({len(jobs)} tasks are begun: `espo status`). Wait."
    so_far = found.why or "has all that it needs"
    return f"{label} {so_far}, and no driver is running: give the command of the run again."


def _about_failed(found: TaskState, trace: Trace, label: str) -> str:
    logs = trace.logs()
    end = (
        f"\nThe end of its log, {logs[-1]}:\n{indent(end_of_log(logs[-1], _LINES_OF_LOG), '    ')}"
        if logs
        else "\nIt left no log."
    )
    has_crashed = found.cause is Cause.CRASHED or (trace.record is None and KILLED in found.why)
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
    commands = Commands(SCHEDULERS[engine], SECTIONS[engine]().batch_settings().commands)
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
