"""Why a task is not done: what it waits for, down to the root, and the remedy."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import indent
from typing import Any, NamedTuple

from luigi.task import Task

from espo_luigi.driver.display.status import duration, is_alive, seconds_at_work
from espo_luigi.driver.run.board import read_state
from espo_luigi.driver.run.run import each_after_its_needs, pending_in, walk
from espo_luigi.driver.settings.espo import settings
from espo_luigi.driver.settings.sections import SECTIONS
from espo_luigi.driver.task import SlurmTask
from espo_luigi.errors import EspoError, ParameterError, nearest
from espo_luigi.jobs.lifecycle.policy import Cause, words_of
from espo_luigi.jobs.lifecycle.records import FINISHED, PLANNED, SUBMITTED, SUBMITTING
from espo_luigi.jobs.local.engine import KILLED
from espo_luigi.jobs.node.outcome import ResultWord
from espo_luigi.jobs.order import end_of_log
from espo_luigi.jobs.schedulers.base import Phase, Scheduler
from espo_luigi.jobs.schedulers.commands import Commands
from espo_luigi.jobs.schedulers.known import SCHEDULERS
from espo_luigi.jobs.state import JobState
from espo_luigi.overview.traces import Trace, fits, said_of, trace_of
from espo_luigi.tasks.all import All
from espo_luigi.tasks.base import EspoTask
from espo_luigi.tasks.make import task_for

# The outcomes of runs, and of records, that are no failure of the job.
_STOPPED_RUNS = ("stopped", "detached")
_STOPPED_RECORDS = (Cause.DRIVER_CANCELLED, Cause.DETACHED)
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
    if len(chain) == 1:
        return about(root)
    between = ", which waits for ".join(_names(chain)[1:])
    return f"{start.label()} waits for {between}.\n{about(root)}"


def _about_unneeded(task: SlurmTask) -> str:
    paths = [str(target) for target in task.output()]
    return (
        f"{task.label()} is not there, and a run of All would not make it: nothing that All lacks is made of it. "
        f"(Temporary stores are deleted once nothing needs them.) `espo make {shlex.quote(paths[0])}` makes it."
    )


def _names(chain: Sequence[SlurmTask]) -> list[str]:
    """The tasks' names, without the parameters that a task before has."""
    said: dict[str, str] = {}
    names = []
    for task in chain:
        own = [f"{name}={value}" for name, value in task.wildcards.items() if said.get(name) != value]
        names.append(" ".join([task.get_task_family(), *own]))
        said |= task.wildcards
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
    exact = [task for task in tasks if all(word in said_of(task.wildcards) for word in rest)]
    found = exact or [task for task in tasks if fits(task.wildcards, rest)]
    if len(found) != 1:
        some = "".join(f"\n  {task.label()}" for task in (found or tasks)[:10])
        raise ParameterError(f"{len(found)} tasks are {' '.join(words)}, expected one; such as:{some}")
    return found[0]


class _Way(NamedTuple):
    """The way down from a task: the rank of its end, and the first task on it; none if the task is the end itself."""

    rank: int
    below: SlurmTask | None


class Search:
    """The way from a task down to the root; each task's state, and how the run stands, are asked for once."""

    def __init__(self) -> None:
        self._run = _run()
        self._complete: dict[str, bool] = {}
        self._traces: dict[str, Trace] = {}
        self._ways: dict[str, _Way] = {}
        self._ranks: dict[str, int] = {}

    def chain(self, task: SlurmTask) -> list[SlurmTask]:
        """Return the task, and what it waits for: rather what has failed than what is out or only missing."""
        stack = [(task, self._missing_below(task))]
        while stack:
            one, needs = stack[-1]
            need = None if self._has_failed_below(one) else next(needs, None)
            if need is None:
                self._ways.setdefault(one.task_id, _Way(self._rank(one), None))
                stack.pop()
                if stack:
                    self._prefer(stack[-1][0], one)
            elif need.task_id in self._ways:
                self._prefer(one, need)
            else:
                stack.append((need, self._missing_below(need)))
        chain = [task]
        while below := self._ways[chain[-1].task_id].below:
            chain.append(below)
        return chain

    def is_idle(self, task: SlurmTask) -> bool:
        """Return whether a task is missing and has no job, out or failed, and no driver is alive that may begin it."""
        return not is_alive(self._run) and not self._is_complete(task) and self._rank(task) == 2

    def is_to_run(self, task: SlurmTask) -> bool:
        """Return whether a run of `All` would do the task."""
        graph = each_after_its_needs([All()])
        return task.task_id in pending_in([All()], graph, lambda one: not self._is_complete(one))[0]

    def _missing_below(self, task: SlurmTask) -> Iterator[SlurmTask]:
        """Yield what a task waits for: of one that is complete or has a job out, nothing."""
        if not self._is_complete(task) and not _has_job(self._trace(task)):
            for need in task.deps():
                if isinstance(need, SlurmTask) and not self._is_complete(need):
                    yield need

    def _has_failed_below(self, task: SlurmTask) -> bool:
        way = self._ways.get(task.task_id)
        return way is not None and way.rank == 0

    def _prefer(self, task: SlurmTask, need: SlurmTask) -> None:
        """Have the way from a task lead by that need, if its end ranks before that of the needs until now."""
        rank, known = self._ways[need.task_id].rank, self._ways.get(task.task_id)
        if known is None or rank < known.rank:
            self._ways[task.task_id] = _Way(rank, need)

    def _rank(self, task: SlurmTask) -> int:
        if task.task_id not in self._ranks:
            trace = self._trace(task)
            has_failed = _failure(task, trace, self._run)
            self._ranks[task.task_id] = 0 if has_failed else 1 if _has_job(trace) else 2
        return self._ranks[task.task_id]

    def _is_complete(self, task: Task) -> bool:
        if task.task_id not in self._complete:
            self._complete[task.task_id] = task.complete()
        return self._complete[task.task_id]

    def _trace(self, task: SlurmTask) -> Trace:
        if task.task_id not in self._traces:
            self._traces[task.task_id] = trace_of(task.get_task_family(), task.wildcards)
        return self._traces[task.task_id]


def _has_job(trace: Trace) -> bool:
    return trace.is_alive or (trace.record is not None and trace.record.state in (SUBMITTING, SUBMITTED))


def _run() -> Mapping[str, Any]:
    return read_state(Path(settings().workdir).absolute())


def _failure(task: SlurmTask, trace: Trace, run: Mapping[str, Any]) -> str:
    """Say how the task's job failed; nothing if it did not, is at work again, or was stopped."""
    if trace.is_alive or (trace.record is not None and trace.record.state in (PLANNED, SUBMITTING, SUBMITTED)):
        return ""
    said = str(run.get("failures", {}).get(task.task_id, ""))
    if _was_stopped(trace, run):
        return said
    if trace.result is not None and trace.result.get("outcome") != ResultWord.SUCCESS:
        return str(trace.result.get("exception")) or said
    record = trace.record
    if record is not None and record.state == FINISHED and record.outcome not in ("", JobState.SUCCEEDED):
        return said or words_of(record.outcome, _scheduler())
    is_over = bool(trace.order) and trace.result is None and not is_alive(run)
    return said or (f"its job ended without a result: {KILLED}" if is_over else "")


def _was_stopped(trace: Trace, run: Mapping[str, Any]) -> bool:
    """Whether the job ended because its run did: by its record or result, or where it has neither."""
    if trace.record is not None and trace.record.state == FINISHED:
        return trace.record.outcome in _STOPPED_RECORDS
    if trace.result is not None:
        return trace.result.get("outcome") == ResultWord.STOPPED
    ended_by_itself = run.get("ended") and run.get("outcome") not in _STOPPED_RUNS
    return bool(trace.order) and not ended_by_itself and not is_alive(run)


def about(task: SlurmTask) -> str:
    """Return a paragraph about a task that waits for no other."""
    if task.complete():
        return _about_complete(task)
    trace = trace_of(task.get_task_family(), task.wildcards)
    if failure := _failure(task, trace, _run()):
        return _about_failed(task, trace, failure)
    if trace.is_alive and trace.beat is not None:
        return _about_running(task, trace.beat)
    if trace.record is not None and trace.record.state in (SUBMITTING, SUBMITTED):
        return _about_submitted(task, trace)
    return _about_not_begun(task, trace)


def _about_complete(task: SlurmTask) -> str:
    stale = task.stale() if isinstance(task, EspoTask) else []
    more = f" Since then, changed: {', '.join(stale)}. `--espo-rerun stale` makes it again." if stale else ""
    return f"{task.label()} is complete: there is nothing that it waits for.{more}"


def _about_failed(task: SlurmTask, trace: Trace, failure: str) -> str:
    code = trace.record.outcome if trace.record is not None else ""
    known = Cause(code).explanation(_scheduler()) if code in set(Cause) else ""
    logs = trace.logs()
    end = (
        f"\nThe end of its log, {logs[-1]}:\n{indent(end_of_log(logs[-1], _LINES_OF_LOG), '    ')}"
        if logs
        else "\nIt left no log."
    )
    hint = " Raise the rule's `memory`, if the log says nothing else." if "without a result" in failure else ""
    meaning = f" ({known})" if known else ""
    return f"{task.label()} failed: {failure}{meaning}.{end}\n{_AGAIN}{hint}"


def _scheduler() -> Scheduler:
    return SCHEDULERS.get(settings().engine, SCHEDULERS["slurm"])


def _about_running(task: SlurmTask, beat: Mapping[str, Any]) -> str:
    since = f" for {duration(seconds_at_work(beat))}" if beat.get("started") else ""
    job = f"job {beat['job_id']}" if beat.get("job_id") else f"process {beat.get('pid')}"
    percent = f", {beat['percent']} %" if beat.get("percent") else ""
    return f"{task.label()} is at work: {job} on {beat.get('node')}{since}{percent}; {beat.get('message', '')}. Wait."


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


def _about_not_begun(task: SlurmTask, trace: Trace) -> str:
    try:
        task.check()
    except (EspoError, OSError) as error:
        return f"{task.label()} cannot run: {error}"
    missing = [str(path) for path in getattr(task, "raw_files", list)() if not os.path.exists(path)]
    if missing:
        lacks = f"{missing[0]} is missing ({len(missing)} file(s))"
        return f"{task.label()} cannot run: {lacks}. Get it, or correct the catalogue."
    run = _run()
    if is_alive(run):
        job = run["jobs"].get(task.task_id)
        doing = job["message"].splitlines()[0] if job else "waits for its turn"
        return (
            f"{task.label()} has all that it needs; {doing} ({len(run['jobs'])} tasks are begun: `espo status`). Wait."
        )
    so_far = "was stopped with its run" if _was_stopped(trace, run) else "has all that it needs"
    return f"{task.label()} {so_far}, and no driver is running: give the command of the run again."
