"""What goes into the `JobManager` and what comes out: a request, a handle to wait on, and an outcome."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from espo_luigi.jobs.bundles.model import Bundling
from espo_luigi.jobs.lifecycle.policy import Cause, Limits
from espo_luigi.jobs.schedulers.base import Phase
from espo_luigi.jobs.schedulers.script import JobOptions

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class JobRequest:
    """One task's work as a job; `run`, `rule` and `wildcards` are its identity, the rest may differ from run to run;
    `label` is its name for people.

    `is_complete` is asked after the job reported success, until it says so or `latency_wait` has passed (the output may
    become visible late on a network file system), and before any other try. `write_order` writes `job_file` anew.
    `stall_timeout_seconds` None does not watch the heartbeat. `warning_seconds` is, for so many minutes, how long
    before its end a job gets a signal. `bundling` says with how many of its kind it may go, `pilot` is the command for
    a bundle's plan (the plan's path follows, and the modules to import first). `has_workers` says that the job submits
    jobs of its own.
    """

    run: str
    label: str
    rule: str
    wildcards: Mapping[str, str]
    argv: tuple[str, ...]
    job_file: Path
    result_file: Path
    heartbeat_file: Path
    cpus_per_task: int
    memory_bytes: int
    time_minutes: int
    options: JobOptions = field(default_factory=JobOptions)
    retries: int = 0
    memory_cap_bytes: int | None = None
    time_cap_minutes: int | None = None
    stall_timeout_seconds: float | None = None
    is_complete: Callable[[], bool] | None = None
    write_order: Callable[[], None] | None = None
    warning_seconds: Callable[[int], int] = lambda minutes: 0
    bundling: Bundling = field(default_factory=Bundling)
    pilot: tuple[str, ...] = ()
    preload: tuple[str, ...] = ()
    has_workers: bool = False

    def limits(self, max_uncharged: int) -> Limits:
        """How far retries of this request may go."""
        return Limits(self.retries, self.memory_cap_bytes, self.time_cap_minutes, max_uncharged)


@dataclass(frozen=True)
class Progress:
    """Where a job stands: the scheduler's state and reason, and what the job's heartbeat says besides the time.

    `phase` is what that state means, None where the state is not the scheduler's own; `why` is why it pends, in words.
    """

    state: str
    job_id: str | None = None
    attempt: int = 1
    node: str = ""
    heartbeat: Mapping[str, Any] = field(default_factory=dict)
    phase: Phase | None = None
    why: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Success:
    """The job succeeded; `result` is its result file. `adopted` means that an earlier driver had submitted it."""

    job_id: str
    attempts: int
    log_path: Path
    result: Mapping[str, Any]
    adopted: bool


@dataclass(frozen=True)
class Failure:
    """The job did not succeed and is not tried again. `message` says why in words, `tail` is the traceback's end."""

    cause: Cause
    attempts: int
    message: str
    log_path: Path | None = None
    tail: str = ""


Outcome = Success | Failure


class Handle:
    """Somebody's view of a submitted request."""

    def __init__(self, task: str, label: str, on_progress: Callable[[Progress], None] | None = None) -> None:
        self.task = task
        self.label = label
        self.outcome: Outcome | None = None
        self.progress = Progress("waiting")
        self._on_progress = on_progress
        self._done = threading.Event()

    def wait(self, timeout: float | None = None) -> Outcome | None:
        """The outcome, or None when there is none within `timeout` seconds."""
        self._done.wait(timeout)
        return self.outcome

    def resolve(self, outcome: Outcome) -> None:
        """Set the outcome; for the manager."""
        self.outcome = outcome
        self._done.set()

    def report(self, progress: Progress) -> None:
        """Tell the listener where the job stands, if that changed; for the manager, in its thread."""
        if progress == self.progress:
            return
        self.progress = progress
        if self._on_progress is not None:
            try:
                self._on_progress(progress)
            except Exception:  # the listener's error is none of the other jobs' business
                logger.exception("the progress listener of %s failed", self.task)
