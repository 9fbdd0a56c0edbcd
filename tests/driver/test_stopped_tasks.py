"""Tasks that were stopped with a run, or left to the next run, have not failed."""

import logging
import os
import threading
import time
from pathlib import Path
from unittest.mock import MagicMock

import fake_slurm
import luigi
import pytest
import toy_tasks
from luigi.configuration import get_config
from throwaway_daemons import eventually
from toy_tasks import run

from espo_luigi.driver.board import board
from espo_luigi.driver.run import Run
from espo_luigi.driver.worker import EspoWorker, Results, ThreadTaskProcess
from espo_luigi.errors import Failure, ProcessLimitError
from espo_luigi.jobs.lifecycle.records import RecordStore
from espo_luigi.jobs.order import JobState

pytestmark = pytest.mark.usefixtures("one_fork_server")


def lines(log: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.getMessage() for record in log.records if record.levelno == level]


def test_of_an_interrupted_run_each_task_that_worked_has_a_line_and_none_is_an_error(
    tmp_path: Path, own_workdir: Path, monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    get_config().set("espo", "local_cpus", "1")
    handle = EspoWorker._handle_next_task

    def interrupted(worker: EspoWorker) -> None:
        jobs = board().snapshot()["jobs"].values()
        if len(jobs) == 2 and any(job["running_since"] for job in jobs):
            raise KeyboardInterrupt
        handle(worker)

    monkeypatch.setattr(EspoWorker, "_handle_next_task", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(toy_tasks.SlowOnes(n=2, folder=str(tmp_path), seconds=60.0))
    for thread in [one for one in threading.enumerate() if one.name.startswith("Slow_")]:
        thread.join(30)
    assert lines(log, logging.ERROR) == []
    (line,) = [line for line in lines(log, logging.INFO) if line.startswith("[")]
    assert line.startswith("[0/2] Slow n=") and " stopped after " in line


def test_a_task_that_takes_longer_than_luigi_lets_it_fails_alone_and_its_job_is_ended(
    tmp_path: Path, own_workdir: Path, log: pytest.LogCaptureFixture
) -> None:
    get_config().set("espo", "local_cpus", "1")
    slow, other = toy_tasks.Sleep(n=60, folder=str(tmp_path)), toy_tasks.Echo(text="next", folder=str(tmp_path))
    slow.worker_timeout, slow.priority, pid = 4, 1, tmp_path / "pid"
    result = run(slow, other)
    assert result.status == luigi.LuigiStatusCode.FAILED and other.complete()
    assert f"{slow.label()} failed: it took longer than [worker] timeout, 4 s" in lines(log, logging.ERROR)[0]
    eventually(lambda: not pid.exists() or not Path("/proc", pid.read_text()).exists())
    state = board().snapshot()
    assert {name: (rule["done"], rule["failed"]) for name, rule in state["rules"].items()} == {
        "Sleep": (0, 1),
        "Echo": (1, 0),
    }


class Waits(luigi.Task):
    """Ends once it is told so."""

    name = luigi.Parameter()
    worker_timeout = 0.05
    may_end: threading.Event

    def run(self) -> None:
        self.may_end.wait(30)

    def complete(self) -> bool:
        return bool(self.may_end.is_set())


class Overdue:
    """Tasks at work in threads, of which Luigi's worker looks for those that take too long."""

    def __init__(self, *names: str) -> None:
        self.may_end, self._task_result_queue = threading.Event(), Results()
        tasks = [Waits(name=name) for name in names]
        self._running_tasks = {task.task_id: self._started(task) for task in tasks}

    def _started(self, task: Waits) -> ThreadTaskProcess:
        task.may_end = self.may_end
        process = ThreadTaskProcess(Run(), task, "worker", self._task_result_queue, MagicMock())
        process.start()
        return process

    def look(self) -> None:
        time.sleep(0.1)
        luigi.worker.Worker._purge_children(self)

    def end(self) -> list[str]:
        """Let the tasks end; return the statuses that Luigi got."""
        self.may_end.set()
        for process in self._running_tasks.values():
            process._thread.join(30)
        return [self._task_result_queue.get()[1] for _ in range(self._task_result_queue.qsize())]


def test_a_task_that_takes_too_long_fails_once_however_often_luigi_looks(log: pytest.LogCaptureFixture) -> None:
    overdue = Overdue("one", "two")
    for _ in range(3):
        overdue.look()
    assert len([line for line in lines(log, logging.INFO) if " FAILED in " in line]) == 2
    assert overdue._task_result_queue.qsize() == 2
    assert overdue.end() == ["FAILED"] * 2, "and nothing of them once they end"


def test_a_task_that_has_ended_does_not_fail_while_its_end_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    overdue, recorded, recording, go_on = Overdue("one"), list[object](), threading.Event(), threading.Event()

    def slow(run: Run, task: luigi.Task, failure: Failure | None, seconds: float) -> None:
        recorded.append(failure)
        recording.set()
        go_on.wait(0 if failure else 30)

    monkeypatch.setattr(Run, "ended", slow)
    overdue.may_end.set()
    assert recording.wait(30)
    overdue.look()
    go_on.set()
    assert (overdue.end(), recorded) == (["DONE"], [None])


@pytest.mark.parametrize(
    ("how", "words", "outcome"),
    [("cancel", "stopped", "stopped"), ("detach", "left to the next run", "detached")],
)
def test_a_run_that_is_ended_from_outside_has_failures_for_luigi_and_none_for_people(
    tmp_path: Path,
    own_workdir: Path,
    monkeypatch: pytest.MonkeyPatch,
    log: pytest.LogCaptureFixture,
    how: str,
    words: str,
    outcome: str,
) -> None:
    monkeypatch.setattr("espo_luigi.jobs.lifecycle.manager.take_control", lambda folder: how)
    get_config().set("espo", "engine", "slurm")
    result = run(toy_tasks.SlowOnes(n=2, folder=str(tmp_path)))
    assert result.status == luigi.LuigiStatusCode.FAILED
    assert lines(log, logging.ERROR) == []
    assert f"0 of 2 tasks done, 2 {words}: the same command goes on from there" in lines(log, logging.WARNING)
    state = board().snapshot()
    assert (state["outcome"], state["failures"], state["rules"]["Slow"]["failed"]) == (outcome, {}, 0)


@pytest.fixture
def third_task_has_no_thread(monkeypatch: pytest.MonkeyPatch, own_workdir: Path) -> None:
    started, start = list[str](), threading.Thread.start
    store = RecordStore(own_workdir / "scheduler")

    def limited(thread: threading.Thread) -> None:
        if thread.name.startswith("Slow_"):
            started.append(thread.name)
            deadline = time.monotonic() + 30
            while len(started) == 3 and time.monotonic() < deadline:
                if [record.state for record in store.all()] == [JobState.QUEUED] * 2:
                    raise RuntimeError("can't start new thread")
                time.sleep(0.05)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)


def test_where_no_thread_can_be_started_the_limit_is_named_and_the_jobs_are_left_to_the_next_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    log: pytest.LogCaptureFixture,
    third_task_has_no_thread: None,
) -> None:
    fake = tmp_path / "fake"
    fake_slurm.install(fake)
    monkeypatch.setenv("PATH", f"{fake / 'bin'}:{os.environ['PATH']}")
    get_config().set("espo", "engine", "slurm")
    with pytest.raises(ProcessLimitError, match=r"start no further process or thread .*`ulimit -u` allows"):
        run(toy_tasks.SlowOnes(n=3, folder=str(tmp_path)))
    calls = [line.split()[0] for line in (fake / "calls").read_text().splitlines()]
    assert (calls.count("sbatch"), calls.count("scancel")) == (2, 0)
    assert [line for line in lines(log, logging.WARNING) if line.startswith("Detached: the jobs go on")]
    assert not list(tmp_path.rglob("driver.lock"))
    assert board().snapshot()["outcome"] == "detached"
