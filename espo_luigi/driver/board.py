"""The state of a run: kept by the driver, written to ``run.json``, shown in a terminal, and told at its end."""

from __future__ import annotations

import functools
import importlib.util
import json
import logging
import os
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from espo_luigi.driver.settings.espo import settings
from espo_luigi.driver.signals import Detach
from espo_luigi.driver.status import COLUMNS, RUNNING, WAITING, is_alive, summary_line
from espo_luigi.errors import Failure, ProcessLimitError
from espo_luigi.files import age_of, read_json, write_atomically
from espo_luigi.jobs.energy import Measured
from espo_luigi.jobs.order import JobState, Progress
from espo_luigi.jobs.retry import start

logger = logging.getLogger(__name__)

FILE = "run.json"
Show = Callable[[Mapping[str, Any]], None]
EVERY_SECONDS = 2.0
_LINE_EVERY_SECONDS = 300.0
_NOTIFY_TIMEOUT_SECONDS = 60.0
_FAILURES_TOLD = 50


@dataclass
class Rule:
    """Counts of a rule's tasks in a run, and the seconds, reserved core-hours and CPU time of its ended jobs."""

    total: int = 0
    done: int = 0
    failed: int = 0
    seconds: float = 0.0
    core_hours: float = 0.0
    cpu_seconds: float = 0.0


@dataclass
class BegunTask:
    """A task that was begun, and the state of its job. `running_since` is 0 until the job runs.

    `state` and `reason` are codes: a `JobState`, and the scheduler's reason why the job pends. `column` of the displays
    counts it. `message` is for people. `espo why` knows the task by `words`.
    """

    id: str
    label: str
    rule: str
    since: float
    cpus: int
    memory_bytes: int
    heartbeat: str
    message: str = "waiting"
    percent: int | None = None
    state: JobState = JobState.READY
    column: str = WAITING
    reason: str = ""
    running_since: float = 0.0
    words: str = ""


@dataclass
class RunState:
    """All that a board shows."""

    root: str = ""
    engine: str = ""
    pid: int = field(default_factory=os.getpid)
    host: str = field(default_factory=socket.gethostname)
    started: float = field(default_factory=time.time)
    updated: float = 0.0
    ended: bool = False
    # "done", "failed", "stopped", "detached" or "refused", once it has ended.
    outcome: str = ""
    rules: dict[str, Rule] = field(default_factory=dict)
    jobs: dict[str, BegunTask] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)
    # The stale tasks at its end (`stale.told_of`).
    stale: dict[str, Any] = field(default_factory=dict)
    # What the scheduler has measured of its jobs' energy, at its end.
    measured: Measured = field(default_factory=Measured)


@dataclass
class StateRead(RunState):
    """The state of a run, as it is read from `run.json`, and the age of that file."""

    silent_seconds: float = 0.0


class Board:
    """A driver's account of its run. The threads of its tasks write to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.state = RunState()
        self._expected: dict[str, str] = {}
        self._done: set[str] = set()
        self._stopped = ""

    def expect(self, root: str, engine: str, tasks: Iterable[tuple[str, str]]) -> None:
        """Add tasks that are to run, by id and rule."""
        with self._lock:
            self.state.root, self.state.engine = root, engine
            for task_id, rule in tasks:
                if task_id not in self._expected:
                    self._expected[task_id] = rule
                    self.state.rules.setdefault(rule, Rule()).total += 1

    def refuse(self, root: str, reason: str) -> None:
        """Record why nothing is started."""
        with self._lock:
            self.state.root = root
            self.state.failures[root] = Failure("", reason)

    def begin(self, job: BegunTask) -> None:
        """Add a job that begins, for the first time or again."""
        with self._lock:
            self.state.jobs[job.id] = job
            if self.state.failures.pop(job.id, None) is not None and job.id in self._expected:
                self.state.rules[job.rule].failed -= 1

    def tell(self, task_id: str, progress: Progress) -> None:
        """Record where a job stands."""
        with self._lock:
            if job := self.state.jobs.get(task_id):
                job.message, job.percent = progress.message, progress.percent
                job.state, job.reason = progress.state or job.state, progress.reason
                job.column = COLUMNS.get(job.state, job.column)
                if (given := progress.given) is not None:
                    job.cpus, job.memory_bytes = given.cpus_per_task, given.memory_bytes
                job.running_since = (job.running_since or time.time()) if job.column == RUNNING else 0.0

    def end(
        self, task_id: str, failure: Failure | None, seconds: float = 0.0, cpu_seconds: float | None = None
    ) -> None:
        """Record how a task ended, and how long its job worked, 0 if that is unknown.

        `cpu_seconds` is its CPU time; if it is unknown, as of jobs that failed, all that was reserved counts.
        """
        with self._lock:
            job, name = self.state.jobs.pop(task_id, None), self._expected.get(task_id)
            if name is None:  # no job, such as `All`
                self.state.failures.pop(task_id, None)
                self.state.failures |= {task_id: failure} if failure else {}
                return
            rule = self.state.rules[name]
            seconds = seconds or (time.time() - job.running_since if job is not None and job.running_since else 0.0)
            rule.seconds += seconds
            reserved = seconds * (job.cpus if job is not None else 0)
            rule.core_hours += reserved / 3600
            rule.cpu_seconds += reserved if cpu_seconds is None else cpu_seconds
            if failure is None:
                rule.done += task_id not in self._done
                self._done.add(task_id)
            elif task_id not in self.state.failures:
                rule.failed += 1
                self.state.failures[task_id] = failure

    def stop(self, task_id: str, outcome: str) -> float:
        """Record that a task was stopped with its run, by the run's `outcome`; return how long its job has worked."""
        with self._lock:
            self._stopped = outcome
            job = self.state.jobs.pop(task_id, None)
            return time.time() - job.running_since if job is not None and job.running_since else 0.0

    def snapshot(self) -> dict[str, Any]:
        """Return the current state as plain values."""
        with self._lock:
            self.state.updated = time.time()
            return asdict(self.state)

    def note_stale(self, workdir: Path, told: dict[str, Any]) -> None:
        """Record the stale tasks, also in `run.json`: if this run had nothing to do, in the last run's file."""
        self.state.stale = told
        state = read_state(workdir)
        if not state or state.get("root") != self.state.root or (state["pid"] != self.state.pid and is_alive(state)):
            return
        with suppress(OSError):
            path, driver_said = workdir / FILE, {name: state[name] for name in state if name != "silent_seconds"}
            written = path.stat().st_mtime_ns
            write_atomically(path, json.dumps({**driver_said, "stale": told}))
            # The file's time is the last sign of life of its driver.
            os.utime(path, ns=(written, written))

    @property
    def outcome(self) -> str:
        """How a run has ended whose tasks have all ended."""
        if self.state.failures:
            return "failed"
        is_done = all(rule.done == rule.total for rule in self.state.rules.values())
        return "done" if is_done else self._stopped or "failed"

    def close(self, outcome: str = "") -> None:
        """Say that the run has ended, and how."""
        with self._lock:
            self.state.ended = True
            self.state.outcome = outcome or self.state.outcome


def read_state(workdir: Path) -> dict[str, Any]:
    """Return the state that a driver wrote last, and how many `silent_seconds` ago; empty if there is no file."""
    path = workdir / FILE
    state = read_json(path)
    with suppress(FileNotFoundError):
        return state | {"silent_seconds": age_of(path)} if state else {}
    return {}


@contextmanager
def reported(board: Board, workdir: Path, show: Show, every_seconds: float = EVERY_SECONDS) -> Iterator[None]:
    """Write the board to `run.json`, and `show` it, every few seconds during the block and at its end."""
    over = threading.Event()

    def report() -> None:
        state = board.snapshot()
        with suppress(OSError):  # nothing depends on the file, and it is written again soon
            workdir.mkdir(parents=True, exist_ok=True)
            write_atomically(workdir / FILE, json.dumps(state, default=str))
        show(state)

    def report_until_over() -> None:
        while not over.wait(every_seconds):
            report()

    thread = threading.Thread(target=report_until_over, name="board", daemon=True)
    with suppress(ProcessLimitError):  # nothing depends on what it shows
        start(thread)
    try:
        yield
    finally:
        board.close()
        over.set()
        if thread.is_alive():
            thread.join(30.0)
        report()


@functools.cache
def board() -> Board:
    """Return the board of this process's run."""
    return Board()


# The next board is an empty one.
forget_board = board.cache_clear


@contextmanager
def watched() -> Iterator[None]:
    """Write and show the board during the block, and record how the run ended."""
    if not board().state.rules:  # nothing to do
        yield
        return
    with _display() as show, reported(board(), Path(settings().workdir).absolute(), show):
        try:
            yield
            board().close(board().outcome)
        except BaseException as error:
            board().close("detached" if isinstance(error, Detach | ProcessLimitError) else "stopped")
            raise


@contextmanager
def _display() -> Iterator[Show]:
    """Yield what shows a state: a table at the bottom of a terminal, or a line in the log every few minutes."""
    is_terminal = sys.stderr.isatty() and os.environ.get("TERM") not in ("dumb", "", None)
    # SlurmTask alone may be installed without rich.
    if settings().live and is_terminal and importlib.util.find_spec("rich"):
        from espo_luigi.driver.screen import Screen

        with Screen() as screen:
            yield screen.show
        return
    shown_at = time.monotonic()

    def show(state: Mapping[str, Any]) -> None:
        nonlocal shown_at
        if time.monotonic() - shown_at >= _LINE_EVERY_SECONDS:
            shown_at = time.monotonic()
            logger.info("%s", summary_line(state, time.time()))

    yield show


def tell_the_end() -> None:
    """Run the command of ``[espo] notify``, if the run ended, was refused or had nothing to do."""
    if board().state.outcome and settings().notify:
        notify(settings().notify, board().snapshot())


def notify(command: str, state: Mapping[str, Any]) -> None:
    """Run the command, without a shell, with how the run ended on its standard input and in its environment."""
    try:
        text, environ = _told(state)
        words = shlex.split(command)
        subprocess.run(words, input=text.encode(), env=environ, timeout=_NOTIFY_TIMEOUT_SECONDS, check=True)
    except Exception as error:  # the run's outcome stays as it is
        logger.warning("[espo] notify = %s: %s: %s", command, type(error).__name__, error)


def _told(state: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """Return the text and the environment that the command gets."""
    from espo_luigi.driver.screen import status_lines

    outcome, summary = state["outcome"], summary_line(state, time.time())
    counts = {name.upper(): sum(rule[name] for rule in state["rules"].values()) for name in ("total", "done")}
    told = {"RESULT": outcome, "SUMMARY": summary, **counts, "FAILED": len(state["failures"])}
    lines = status_lines(state, most_failures=_FAILURES_TOLD)[1:]
    text = "\n".join([f"{outcome}: {summary}", f"work folder: {Path(settings().workdir).absolute()}", *lines, ""])
    return text, {**os.environ, **{f"ESPO_{name}": str(value) for name, value in told.items()}}
