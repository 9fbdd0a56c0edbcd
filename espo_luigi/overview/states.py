"""How a run and its tasks stand, from files alone: `run.json` of the driver, and the files of each job."""

from __future__ import annotations

import enum
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, TypedDict

from luigi.configuration import get_config
from luigi.task import Task

from espo_luigi.driver.board import StateRead, read_state
from espo_luigi.driver.run import scheduler_name
from espo_luigi.driver.screen import status_lines
from espo_luigi.driver.settings.espo import power, settings, state_dir
from espo_luigi.driver.stale import stale_lines
from espo_luigi.driver.status import cpu_seconds, duration, failures_in, is_alive
from espo_luigi.driver.task import SlurmTask
from espo_luigi.errors import EspoError, JobError, ParameterError
from espo_luigi.files import age_of, lives, parse_json, read_bytes, read_json
from espo_luigi.jobs.causes import Cause
from espo_luigi.jobs.energy import in_words
from espo_luigi.jobs.lifecycle.records import Record, RecordStore
from espo_luigi.jobs.local import KILLED
from espo_luigi.jobs.order import JobFiles, JobState, ResultWord, heartbeat_files, jobs_folder, label_of, order_files
from espo_luigi.jobs.schedulers import SCHEDULERS
from espo_luigi.jobs.schedulers.base import Scheduler
from espo_luigi.jobs.schedulers.script import task_name

_OPEN = re.compile(rb'"state": "(submitting|queued)"')
# The words of a plan for a task's state.
StateInPlan = Literal["done", "to run", "blocked"]
DONE: Final = "done"
RUN: Final = "to run"
BLOCKED: Final = "blocked"
STOPPED = "was stopped with its run"


class StatusJson(TypedDict):
    """The state of a run.

    `run` is null if no run has begun here. `left` counts, by rule and state, the jobs that go on without a driver.
    Times are seconds since 1970, by the clock of the driver's host. The `state` of a job and the scheduler's `reason`
    are codes.
    """

    workdir: str
    alive: bool
    run: StateRead | None
    left: dict[str, dict[str, int]]


def read() -> dict[str, Any]:
    """Return the last state that the driver wrote, whether it is alive, and the jobs that a dead driver left."""
    workdir = Path(settings().workdir).absolute()
    state = read_state(workdir)
    alive = is_alive(state)
    return {"workdir": str(workdir), "alive": alive, "run": state or None, "left": {} if alive else _left(workdir)}


def _left(workdir: Path) -> dict[str, dict[str, int]]:
    """Count, by rule, the jobs that go on without a driver; a job with a heartbeat is at work."""
    found: dict[str, Counter[str]] = {}
    beating = {path for path in heartbeat_files(workdir) if is_beating(JobFiles.at(path))}
    for record in _open_records(RecordStore(state_dir()).folder / "records"):
        # A READY record has no job yet.
        if record.get("state") in (JobState.SUBMITTING, JobState.QUEUED):
            rule = str(record.get("rule"))
            if JobFiles.of(workdir, rule, record.get("wildcards", {})).heartbeat not in beating:
                found.setdefault(rule, Counter())[str(record["state"])] += 1
    for path in beating:
        found.setdefault(path.parent.name, Counter())["at work"] += 1
    return {rule: dict(counts) for rule, counts in sorted(found.items())}


def _open_records(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of jobs that may be out, without parsing the other (up to 20 000) records."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError, ValueError):
                text = read_bytes(entry.path)
                if _OPEN.search(text):
                    yield parse_json(text)


def render(found: Mapping[str, Any], lines: int = 0) -> list[str]:
    """Return the state as lines for people; if `lines` is a number, cut to so many."""
    state = found["run"]
    if state is None:
        go_there = "Go to the folder that has your luigi.cfg, or let `espo init` write a folder to start from."
        remedy = [] if get_config().sections() else [go_there]
        return [f"{found['workdir']}: no run has begun here", *remedy, *_rendered_left(found["left"])]
    silent = duration(state["silent_seconds"])
    now = state["updated"] + state["silent_seconds"]  # by the clock of the driver's host, as are the times in its state
    since = f"since {duration(now - state['started'])}"
    if not found["alive"]:
        state = {**state, "jobs": {}}
    if found["alive"]:
        driver = f"driver: process {state['pid']} on {state['host']}, {since}"
    elif state["ended"]:
        driver = f"no driver: the last run ended {silent} ago: {state.get('outcome', '')}".removesuffix(": ")
    else:
        driver = f"no driver: process {state['pid']} on {state['host']} was heard last {silent} ago"
    left = _rendered_left(found["left"])
    stale = [] if found["alive"] else list(stale_lines(state.get("stale", {})))
    energy = list(_energy(state))
    room = max(lines - 1 - len(left) - len(energy), 1) if lines else 0
    shown = [driver, *energy, *status_lines(state, now, room), *(["", *stale] if stale else []), *left]
    return shown[: lines or None]


def _energy(state: Mapping[str, Any]) -> Iterator[str]:
    """A line about the energy of the jobs that have ended; a run's end tells what the scheduler has measured."""
    measured = state.get("measured", {"joules": 0.0, "core_hours": 0.0})
    if hours := sum(map(cpu_seconds, state["rules"].values())) / 3600:
        yield f"energy: {in_words(power(), max(hours - measured['core_hours'], 0.0), measured['joules'])}"


def _rendered_left(left: Mapping[str, Mapping[str, int]]) -> list[str]:
    lines = [f"  {rule}: {', '.join(f'{n} {name}' for name, n in counts.items())}" for rule, counts in left.items()]
    return ["", "jobs that go on without a driver (the next one takes them over):", *lines] if lines else []


# A job without a heartbeat for so long, and for so many of its intervals, is not at work.
_SILENT_SECONDS, _SILENT_BEATS = 120.0, 4


@dataclass(frozen=True)
class Trace:
    """The files of a task's job; a missing file is None. `is_alive`: the job is at work."""

    label: str
    files: JobFiles
    is_alive: bool
    order: Mapping[str, Any]
    record: Record | None
    result: Mapping[str, Any] | None
    beat: Mapping[str, Any] | None

    def logs(self) -> list[Path]:
        """Return the logs that are there, of all submissions, the latest last."""
        found = [self.files.log] if self.files.log.is_file() else []
        if self.record is not None:
            ids = [*(past["job_id"] for past in self.record.history), self.record.job_id]
            paths = [Path(scheduler().log_path(self.record.log_pattern, job_id)) for job_id in ids if job_id]
            found += [path for path in dict.fromkeys(paths) if path.is_file()]
        return found


def trace_of(family: str, wildcards: Mapping[str, str]) -> Trace:
    """Return the files of the job of a task."""
    workdir = Path(settings().workdir).absolute()
    files = JobFiles.of(workdir, family, wildcards)
    # In this order: a job that ends meanwhile has no heartbeat any more, and a result.
    is_alive, beat = is_beating(files), read_json(files.heartbeat)
    records, record = RecordStore(state_dir()), None
    with suppress(OSError, JobError):
        record = records.load(task_name(workdir.name, family, wildcards, records.salt))
    return Trace(
        label_of(family, wildcards),
        files,
        is_alive and beat is not None,
        read_json(files.order) or {},
        record,
        read_json(files.result),
        beat,
    )


def is_beating(files: JobFiles) -> bool:
    """Return whether a job is at work: its last heartbeat is recent, and a local job's process lives.

    Recent by the file's time, as the clocks of nodes may differ.
    """
    try:
        silent = age_of(files.heartbeat)
    except OSError:  # the job has not begun, or has ended
        return False
    order, beat = read_json(files.order) or {}, read_json(files.heartbeat) or {}
    # The local engine's orders name its driver's process. A job that was killed leaves a young heartbeat.
    if isinstance(order.get("parent"), int) and lives(int(beat.get("pid", 0)), "", beat.get("room")) is False:
        return False
    return silent < max(_SILENT_SECONDS, _SILENT_BEATS * float(order.get("beat_seconds", 0.0)))


class TaskState(enum.StrEnum):
    """The states of a task; `TaskStatus` defines them."""

    COMPLETE = "complete"
    STALE = "stale"
    RUNNING = "running"
    FAILED = "failed"
    BLOCKED = "blocked"
    READY = "ready"
    TO_COME = "to come"


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """How a task stands, and why.

    | `state` | what holds | in a plan |
    |---|---|---|
    | COMPLETE | `task.complete()`: all kept outputs are there, made together | done |
    | STALE | complete, and `changed` names the settings, raw files or inputs that have changed since | done |
    | RUNNING | its job is out, in the state `job` | – |
    | FAILED | its last job failed for `cause`, and `why` has the error's words | – |
    | BLOCKED | it cannot run, or needs the task `blocked_by` that cannot: `why` | blocked |
    | READY | it is not complete, and all that it needs is | to run |
    | TO_COME | it is not complete, and waits for tasks that are not complete either | to run |

    A plan looks at no job. `tasks.staleness` defines complete and stale for outputs; with `rerun = stale`, a stale task
    is not complete.
    """

    state: TaskState = TaskState.COMPLETE
    why: str = ""
    changed: tuple[str, ...] = ()
    job: JobState | None = None
    cause: Cause | None = None
    trace: Trace | None = None
    blocked_by: str = ""

    @property
    def in_plan(self) -> StateInPlan:
        """The word for it in a plan: "done", "to run" or "blocked"."""
        if self.state in (TaskState.COMPLETE, TaskState.STALE):
            return DONE
        return BLOCKED if self.state is TaskState.BLOCKED else RUN


class TaskStates:
    """Reads how tasks stand, each task once, by `run.json` as it was when the reader was made."""

    def __init__(self) -> None:
        self.run = read_state(Path(settings().workdir).absolute())
        self._complete: dict[str, bool] = {}
        self._states: dict[str, TaskStatus] = {}

    def is_complete(self, task: Task) -> bool:
        """Return whether a task is complete."""
        if task.task_id not in self._complete:
            self._complete[task.task_id] = task.complete()
        return self._complete[task.task_id]

    def of(self, task: SlurmTask) -> TaskStatus:
        """Return how a task stands, by its outputs and its job's files: COMPLETE, RUNNING, FAILED or READY."""
        if self.is_complete(task):
            return TaskStatus()
        if task.task_id not in self._states:
            self._states[task.task_id] = self._of_job(task)
        return self._states[task.task_id]

    def closely(self, task: SlurmTask) -> TaskStatus:
        """Return the same after a closer look, at settings, files and needs: also STALE, BLOCKED or TO_COME."""
        found = self.of(task)
        if found.state is TaskState.COMPLETE and (changed := tuple(task.stale())):
            return TaskStatus(TaskState.STALE, changed=changed)
        if found.state is not TaskState.READY:
            return found
        problem, raw_files = problem_of(task), getattr(task, "raw_files", list)
        if not problem and (missing := [str(path) for path in raw_files() if not os.path.exists(path)]):
            problem = f"{missing[0]} is missing ({len(missing)} file(s)). Get it, or correct the catalogue."
        if problem:
            return replace(found, state=TaskState.BLOCKED, why=problem)
        return found if all(map(self.is_complete, task.deps())) else replace(found, state=TaskState.TO_COME)

    def _of_job(self, task: SlurmTask) -> TaskStatus:
        trace = trace_of(task.get_task_family(), task.wildcards)
        if trace.is_alive:
            return TaskStatus(TaskState.RUNNING, job=JobState.RUNNING, trace=trace)
        if trace.record is not None and trace.record.is_out:
            return TaskStatus(TaskState.RUNNING, job=trace.record.state, trace=trace)
        by_driver = failures_in(self.run).get(task.task_id)
        reported = by_driver.words if by_driver else ""
        stopped = self._was_stopped(trace)
        is_planned = trace.record is not None and trace.record.state is JobState.READY
        if not is_planned and (failure := reported if stopped else self._failure(trace, reported)):
            return TaskStatus(TaskState.FAILED, failure, cause=_cause(trace.record), trace=trace)
        return TaskStatus(TaskState.READY, STOPPED if stopped else "", trace=trace)

    def _failure(self, trace: Trace, reported: str) -> str:
        """Return how a job failed that was not stopped, empty if it did not; `reported` are its driver's words."""
        if trace.result is not None and trace.result.get("outcome") != ResultWord.SUCCESS:
            return str(trace.result.get("exception")) or reported
        if cause := _cause(trace.record):
            return reported or cause.words(scheduler())
        is_over = bool(trace.order) and trace.result is None and not is_alive(self.run)
        return reported or (f"its job ended without a result: {KILLED}" if is_over else "")

    def _was_stopped(self, trace: Trace) -> bool:
        """Return whether a job ended because its run did: by its record or result, or where it has neither."""
        if trace.record is not None and trace.record.is_over:
            return _cause(trace.record) in (Cause.DRIVER_CANCELLED, Cause.DETACHED)
        if trace.result is not None:
            return trace.result.get("outcome") == ResultWord.STOPPED
        ended_by_itself = self.run.get("ended") and self.run.get("outcome") not in ("stopped", "detached")
        return bool(trace.order) and not ended_by_itself and not is_alive(self.run)


def _cause(record: Record | None) -> Cause | None:
    """Return why the job of a finished record failed."""
    if record is None or record.state is not JobState.FAILED or record.cause not in set(Cause):
        return None
    return Cause(record.cause)


def problem_of(task: SlurmTask) -> str:
    """Return why a task cannot run as asked; empty if it can."""
    try:
        task.check()
    except (EspoError, OSError) as error:
        return str(error)
    return ""


def scheduler() -> Scheduler:
    """Return the scheduler whose words explain a job's record."""
    return SCHEDULERS[scheduler_name()]


def traces_like(words: Sequence[str]) -> list[Trace]:
    """Return the ordered jobs of the rule that the first word names, whose parameters match the other words.

    Raises
    ------
    ParameterError
        If no job matches.
    """
    family, *rest = words
    workdir = Path(settings().workdir).absolute()
    orders = [order for path in order_files(workdir, family) if (order := read_json(path)) is not None]
    found = [order for order in orders if fits(order.get("wildcards", {}), rest)]
    if not found:
        folder = jobs_folder(workdir)
        known = sorted(path.name for path in folder.glob("*") if path.is_dir())
        raise ParameterError(
            f"no job of {' '.join(words)} was ordered in {folder}: got the rule {family}, of which "
            f"{len(orders)} job(s) were; rules with jobs: {', '.join(known) or '(none)'}"
        )
    return [trace_of(family, order["wildcards"]) for order in found]


def words_of(wildcards: Mapping[str, str]) -> list[str]:
    """Return the words for a task's parameters: each value, alone and as ``name=value``."""
    return [*wildcards.values(), *(f"{name}={value}" for name, value in wildcards.items())]


def fits(wildcards: Mapping[str, str], words: Sequence[str]) -> bool:
    """Return whether each word is part of a value or of ``name=value``; words that begin with ``--`` are ignored."""
    return all(any(word in known for known in words_of(wildcards)) for word in words if not word.startswith("--"))
