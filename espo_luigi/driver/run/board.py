"""The state of a run: kept by the driver, shown in its terminal, and written to ``run.json``."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from espo_luigi.driver.display.status import RUNNING, is_alive, standing
from espo_luigi.files import age_of
from espo_luigi.jobs.lifecycle.records import read_json, write_atomically

FILE = "run.json"
# The message of a task until its engine reports the first one.
WAITING = "waiting"


@dataclass
class Rule:
    """How many tasks of a rule a run has, how many of them are done and failed, and what the jobs of those took."""

    total: int = 0
    done: int = 0
    failed: int = 0
    seconds: float = 0.0
    core_hours: float = 0.0


@dataclass
class Job:
    """A task that was begun, and where its job stands; `running_since` is 0 until the job runs.

    `phase` is what the scheduler's state means, empty without one; `words` are those that `espo why` takes for it.
    """

    id: str
    label: str
    rule: str
    since: float
    cpus: int
    memory_bytes: int
    heartbeat: str
    message: str = WAITING
    percent: int | None = None
    phase: str = ""
    running_since: float = 0.0
    words: str = ""


@dataclass
class State:
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
    jobs: dict[str, Job] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    # What was stale at its end (`stale.told_of`).
    stale: dict[str, Any] = field(default_factory=dict)


class Board:
    """A driver's account of its run; its tasks' threads write to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.state = State()
        self._expected: dict[str, str] = {}
        self._done: set[str] = set()
        self._stopped = ""

    def expect(self, root: str, engine: str, tasks: Iterable[tuple[str, str]]) -> None:
        """Take note of tasks that are to run, by id and rule."""
        with self._lock:
            self.state.root, self.state.engine = root, engine
            for task_id, rule in tasks:
                if task_id not in self._expected:
                    self._expected[task_id] = rule
                    self.state.rules.setdefault(rule, Rule()).total += 1

    def refuse(self, root: str, reason: str) -> None:
        """Take note that nothing is started, and why."""
        with self._lock:
            self.state.root = root
            self.state.failures[root] = reason

    def begin(self, job: Job) -> None:
        """Take note of a job that is begun; of one that is tried again, too."""
        with self._lock:
            self.state.jobs[job.id] = job
            if self.state.failures.pop(job.id, None) is not None:
                self.state.rules[job.rule].failed -= 1

    def tell(self, task_id: str, message: str, percent: int | None, phase: str = "") -> None:
        """Take note of where a job stands."""
        with self._lock:
            if job := self.state.jobs.get(task_id):
                job.message, job.percent, job.phase = message, percent, phase
                is_running = standing(message, phase) == RUNNING
                job.running_since = (job.running_since or time.time()) if is_running else 0.0

    def end(self, task_id: str, succeeded: bool, seconds: float, reason: str) -> None:
        """Take note of how a task ended, and how long its job worked; 0 if that is not known."""
        with self._lock:
            job, name = self.state.jobs.pop(task_id, None), self._expected.get(task_id)
            if name is None:
                self._note_other(task_id, succeeded, reason)
                return
            rule = self.state.rules[name]
            seconds = seconds or (time.time() - job.running_since if job is not None and job.running_since else 0.0)
            rule.seconds += seconds
            rule.core_hours += seconds * (job.cpus if job is not None else 0) / 3600
            if succeeded:
                rule.done += task_id not in self._done
                self._done.add(task_id)
            elif task_id not in self.state.failures:
                rule.failed += 1
                self.state.failures[task_id] = reason

    def stop(self, task_id: str, outcome: str) -> float:
        """Take note that a task ended with its run, by the run's `outcome`; return how long its job has worked."""
        with self._lock:
            self._stopped = outcome
            job = self.state.jobs.pop(task_id, None)
            return time.time() - job.running_since if job is not None and job.running_since else 0.0

    def _note_other(self, task_id: str, succeeded: bool, reason: str) -> None:
        """Take note of the end of a task that is no job, such as `All`."""
        if succeeded:
            self.state.failures.pop(task_id, None)
        else:
            self.state.failures[task_id] = reason

    def snapshot(self) -> dict[str, Any]:
        """Return the state as plain values, as of now."""
        with self._lock:
            self.state.updated = time.time()
            return asdict(self.state)

    def note_stale(self, workdir: Path, told: dict[str, Any]) -> None:
        """Take note of what is stale, also in the file of this run or, if it had nothing to do, of the last one."""
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
    def is_done(self) -> bool:
        """Whether all that was to run is done."""
        return not self.state.failures and all(rule.done == rule.total for rule in self.state.rules.values())

    @property
    def outcome(self) -> str:
        """How a run has ended whose tasks have all ended."""
        return "done" if self.is_done else (not self.state.failures and self._stopped) or "failed"

    def close(self, outcome: str = "") -> None:
        """Say that the run has ended, and how."""
        with self._lock:
            self.state.ended = True
            self.state.outcome = outcome or self.state.outcome


def read_state(workdir: Path) -> dict[str, Any]:
    """Return the state that a run's driver wrote last, and how many `silent_seconds` ago; empty where there is none."""
    path = workdir / FILE
    state = read_json(path)
    with suppress(FileNotFoundError):
        return state | {"silent_seconds": age_of(path)} if state else {}
    return {}


class Reporter:
    """A thread that writes the board to a file every so many seconds, and gives it to the functions in `shows`."""

    def __init__(self, board: Board, workdir: Path, every_seconds: float = 2.0) -> None:
        self._board, self._path, self._every = board, workdir / FILE, every_seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="board", daemon=True)
        self.shows: list[Any] = []

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Write a last time, and end."""
        self._board.close()
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(30.0)
        self._write()

    def _run(self) -> None:
        while not self._over.wait(self._every):
            self._write()

    def _write(self) -> None:
        state = self._board.snapshot()
        with suppress(OSError):  # nothing depends on it, and the next one comes soon
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path, json.dumps(state))
        for show in self.shows:
            show(state)


_boards: list[Board] = []


def board() -> Board:
    """Return the board of this process's run."""
    if not _boards:
        _boards.append(Board())
    return _boards[0]


def forget_board() -> None:
    """Begin with an empty one."""
    _boards.clear()
