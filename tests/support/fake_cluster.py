"""A job manager on stand-ins of Slurm's commands, its clock in the test's hands."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import fake_slurm
from fake_clock import FakeClock, RunningClock
from job_work import Work

from espo_luigi.errors import Failure
from espo_luigi.jobs.lifecycle.manager import JobManager
from espo_luigi.jobs.lifecycle.state import Handle, Outcome
from espo_luigi.jobs.order import JobOrder
from espo_luigi.jobs.settings import Patience

PATIENCE = Patience(
    latency_wait=0.6,
    absent_after=1.5,
    settle=0.4,
    unclear_refusal=1.0,
    hopeless=0.5,
    lasting_trouble=3.0,
    after_trouble=2.0,
    gather=0.3,
    first_refusal=0.2,
)

SHORT = {"poll_seconds": 0.1, "result_seconds": 0.05, "beat_seconds": 0.1, "patience": PATIENCE}


class FakeCluster:
    """A manager on fake commands, and what makes them misbehave."""

    def __init__(self, work: Work, folder: Path) -> None:
        self.work, self.folder = work, folder
        self.managers: list[JobManager] = []
        self.clock: FakeClock | RunningClock = FakeClock()
        fake_slurm.install(folder)

    def manager(self, **settings: Any) -> JobManager:
        environ = {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}
        # On a busy machine, a stand-in may take a second; the tests wait in vain for those alone that hang.
        hangs = any("hang" in one.read_text() for one in self.folder.glob("*.do"))
        settings = {"command_seconds": 2.0 if hangs else 30.0, **SHORT, **settings}
        manager = self.work.manager(environ, self.clock, **settings)
        manager.start()
        self.managers.append(manager)
        return manager

    def submitted(self, order: JobOrder, manager: JobManager | None = None, **settings: Any) -> Handle:
        """Submit a job, to a manager of its own with these `settings` unless told otherwise, and wait for its id."""
        handle = (manager or self.manager(**settings)).submit(order)
        self.eventually(has_id(handle))
        return handle

    def all_submitted(self, names: Iterable[str], manager: JobManager | None = None, **settings: Any) -> list[Handle]:
        """Submit plain jobs of these names as `submitted` does."""
        manager = manager or self.manager(**settings)
        handles = [manager.submit(self.work.order(name)) for name in names]
        self.eventually(lambda: all(has_id(handle)() for handle in handles))
        return handles

    def left_behind(self, *names: str) -> JobManager:
        """Have a driver submit plain jobs of these names, and leave them alone."""
        self.all_submitted(names, manager := self.manager())
        manager.detach()
        return manager

    def eventually(self, condition: Callable[[], object], seconds: float = 60.0) -> None:
        assert self.clock.go_on(seconds, condition), "waited in vain"

    def outcome(self, handle: Handle, seconds: float) -> Outcome | None:
        """What became of it within so many seconds of the manager's time."""
        self.clock.go_on(seconds, lambda: handle.outcome is not None)
        return handle.outcome

    def failure(self, handle: Handle, seconds: float) -> Failure:
        """The failure that its outcome is."""
        outcome = self.outcome(handle, seconds)
        assert isinstance(outcome, Failure), outcome
        return outcome

    def misbehave(self, command: str, how: str) -> None:
        (self.folder / f"{command}.do").write_text(how)

    def behave(self, command: str) -> None:
        (self.folder / f"{command}.do").unlink(missing_ok=True)

    def calls(self, command: str) -> list[str]:
        path = self.folder / "calls"
        return [line for line in path.read_text().splitlines() if line.split()[0] == command] if path.exists() else []

    def set_state(self, state: str, reason: str = "None") -> None:
        path = self.folder / "jobs"
        rows = [line.split("|") for line in path.read_text().splitlines()]
        path.write_text("".join("|".join([row[0], state, "n1", reason, row[4]]) + "\n" for row in rows))

    def rename(self, name: str) -> None:
        """Give all jobs this name, in which ``{}`` stands for the former name."""
        path = self.folder / "jobs"
        rows = [line.split("|") for line in path.read_text().splitlines()]
        path.write_text("".join("|".join([*row[:4], name.format(row[4])]) + "\n" for row in rows))

    def forget_jobs(self) -> None:
        (self.folder / "squeue.says").write_text("")

    def finish(self, name: str, job_id: str, **result: Any) -> None:
        (self.work.folder / "results").mkdir(exist_ok=True)
        text = json.dumps({"job_id": job_id, "outcome": "success", **result})
        (self.work.folder / "results" / name).write_text(text)


def has_id(handle: Handle) -> Callable[[], bool]:
    return lambda: handle.progress.job_id is not None
