"""Claims of the local engine: of two drivers that both believe to be alone, one works on a task."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from espo_luigi.errors import JobError, StoppedError
from espo_luigi.files import process_start
from espo_luigi.jobs import local
from espo_luigi.jobs.forkserver import Child
from espo_luigi.jobs.local import Launcher, LocalEngine, Room
from espo_luigi.jobs.lock import this_process
from espo_luigi.jobs.node import run as node
from espo_luigi.jobs.node.heartbeat import Monitor
from espo_luigi.jobs.order import JobFiles, JobOrder
from espo_luigi.jobs.resources import Resources
from espo_luigi.jobs.schedulers.script import CLAIM_VARIABLE, OWNER_VARIABLE


class Works(Launcher):
    """Does the work of a job at once; `lose` lets another driver take the job's claim over meanwhile."""

    place, parent, nodes, largest = "here", "stdin", {"": Room(8, 2**40)}, Room(8, 2**40)

    def __init__(self, lose: bool = False) -> None:
        self.begun, self.codes = 0, list[int]()
        self._lose = lose

    def start(self, order: JobOrder, node_name: str) -> Child:
        child = Child()
        self.codes.append(node.run_order(order.files.order, self._work))
        child.ended.set()
        return child

    def _work(self, order: JobOrder, monitor: Monitor) -> None:
        self.begun += 1
        if self._lose:
            order.files.claim.write_text(json.dumps(ELSEWHERE))

    def close(self) -> None:
        """Leave nothing behind."""


ELSEWHERE: dict[str, Any] = {"host": "login2", "pid": 1, "started": "1", "room": "another container"}


@pytest.fixture
def order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobOrder:
    for name in (CLAIM_VARIABLE, OWNER_VARIABLE):
        monkeypatch.setenv(name, "")  # put back after the test
    monkeypatch.setattr(node, "_set_up_process", lambda: None)
    monkeypatch.setattr(node, "_end_with_driver", lambda parent: None)
    monkeypatch.setattr(local, "_SILENT_SECONDS", 0.3)
    monkeypatch.setattr(local, "_LOOK_SECONDS", 0.05)
    files = JobFiles.of(tmp_path, "Rule", {"n": "1"})
    files.claim.parent.mkdir(parents=True)
    return JobOrder("id", "Rule n=1", "m", "Rule", {}, {}, Resources(), files, beat_seconds=0.05)


def test_a_job_claims_its_work_and_gives_it_back(order: JobOrder) -> None:
    engine = LocalEngine(works := Works())
    engine.run(order)
    engine.run(order)
    assert works.begun == 2 and not order.files.claim.exists()


class Stopped(Child):
    """A job that works until it is stopped."""

    def __init__(self) -> None:
        super().__init__()
        self.stop = self.ended.set  # type: ignore[method-assign]


class StopsMeanwhile(Works):
    """Starts a job while the run is being stopped, which does not yet know the job."""

    engine: LocalEngine

    def start(self, order: JobOrder, node_name: str) -> Child:
        self.engine.stop()
        return Stopped()


def test_a_job_that_is_being_started_as_the_run_stops_is_stopped(order: JobOrder) -> None:
    launcher = StopsMeanwhile()
    launcher.engine = LocalEngine(launcher)
    errors: list[StoppedError] = []

    def work() -> None:
        try:
            launcher.engine.run(order)
        except StoppedError as error:
            errors.append(error)

    working = threading.Thread(target=work, daemon=True)
    working.start()
    working.join(10)
    assert len(errors) == 1


def test_a_job_of_another_driver_that_lives_is_not_started_again(order: JobOrder) -> None:
    other = subprocess.Popen(["sleep", "60"])
    try:
        said = this_process() | {"pid": other.pid, "started": process_start(other.pid)}
        order.files.claim.write_text(json.dumps(said))
        with pytest.raises(JobError, match=rf"not started: process {other.pid} on .*, another driver, works on it"):
            LocalEngine(works := Works()).run(order)
    finally:
        other.kill()
        other.wait()
    LocalEngine(works).run(order)
    assert works.begun == 1, "its driver is dead"


def test_a_job_of_a_driver_in_another_container_lives_while_it_beats(order: JobOrder) -> None:
    order.files.claim.write_text(json.dumps(ELSEWHERE))
    over = threading.Event()

    def beat() -> None:
        while not over.wait(0.05):
            order.files.heartbeat.write_text(str(time.time()))

    beating = threading.Thread(target=beat)
    beating.start()
    try:
        with pytest.raises(JobError, match="not started: process 1 on login2, another driver, works on it"):
            LocalEngine(works := Works()).run(order)
    finally:
        over.set()
        beating.join()
    began = time.monotonic()
    LocalEngine(works).run(order)
    assert works.begun == 1 and time.monotonic() - began >= 0.2, "it was silent for long enough"


def test_a_job_whose_work_another_driver_has_taken_over_publishes_nothing(order: JobOrder) -> None:
    with pytest.raises(JobError, match="without a result"):
        LocalEngine(works := Works(lose=True)).run(order)
    assert works.codes == [1] and not order.files.result.exists()
    assert json.loads(order.files.claim.read_text()) == ELSEWHERE, "it is another driver's now"
    assert os.environ[OWNER_VARIABLE] != ""
