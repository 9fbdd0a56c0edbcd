"""What `espo status` and `espo why` say of jobs whose driver is gone, from files alone."""

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import luigi
import pytest
import toy_tasks
from luigi.configuration import get_config

from espo_luigi.driver.settings.espo import state_dir
from espo_luigi.files import process_room
from espo_luigi.jobs.causes import Cause
from espo_luigi.jobs.lifecycle.records import Record, RecordStore
from espo_luigi.jobs.order import JobState, write_json
from espo_luigi.jobs.schedulers.script import task_name
from espo_luigi.overview import states, why

HINT = "correct its options (where a site forbids `--mem`: `memory_resource = mem-per-cpu` or `none`)"
NOT_RUN = "no driver is running: give the command of the run again"


@pytest.fixture()
def task(tmp_path: Path, own_workdir: Path) -> toy_tasks.Echo:
    return toy_tasks.Echo(n=1, text="so", folder=str(tmp_path))


def record_of(task: toy_tasks.Echo, workdir: Path, state: str, **values: Any) -> None:
    store = RecordStore(state_dir())
    store.create_folders()
    name = task_name(workdir.name, "Echo", task.wildcards, store.salt)
    store.save(Record(name, "Echo", task.wildcards, 2**30, 60, "log", state=state, **values))


def run_of(workdir: Path, **values: Any) -> None:
    state = {"updated": time.time(), "ended": True, "outcome": "done", "failures": {}, "jobs": {}}
    write_json(workdir / "run.json", state | values)
    os.utime(workdir / "run.json", ((state | values)["updated"],) * 2)


def test_a_heartbeat_that_goes_while_it_is_looked_at_ends_nothing(
    task: toy_tasks.Echo, own_workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = own_workdir / "heartbeats" / "Echo" / "n=2.json"
    write_json(task.order().files.heartbeat, {})
    glob = Path.glob
    monkeypatch.setattr(Path, "glob", lambda path, pattern: [*glob(path, pattern), gone])
    assert states.read()["left"] == {"Echo": {"at work": 1}}


def test_what_goes_on_without_a_driver_was_submitted_and_is_counted_once(
    task: toy_tasks.Echo, own_workdir: Path
) -> None:
    record_of(task, own_workdir, JobState.READY)
    assert states.read()["left"] == {}
    record_of(task, own_workdir, JobState.QUEUED, job_id="7")
    assert states.read()["left"] == {"Echo": {"queued": 1}}
    write_json(task.order().files.heartbeat, {})
    assert states.read()["left"] == {"Echo": {"at work": 1}}
    os.utime(task.order().files.heartbeat, (1, 1))
    assert states.read()["left"] == {"Echo": {"queued": 1}}


@pytest.mark.parametrize(
    ("beat_seconds", "seconds_ago", "is_at_work"), [(30.0, 100.0, True), (30.0, 200.0, False), (90.0, 300.0, True)]
)
def test_status_and_why_agree_on_whether_a_job_is_at_work(
    task: toy_tasks.Echo, own_workdir: Path, beat_seconds: float, seconds_ago: float, is_at_work: bool
) -> None:
    replace(task.order(), beat_seconds=beat_seconds).write()
    heartbeat, of_its_node = task.order().files.heartbeat, {"time": 1.0, "pid": 1, "node": "n1"}
    write_json(heartbeat, of_its_node)
    os.utime(heartbeat, (time.time() - seconds_ago,) * 2)
    assert states.read()["left"] == ({"Echo": {"at work": 1}} if is_at_work else {})
    assert (" is at work: process 1 on n1" in why.about(task)) is is_at_work


@pytest.mark.parametrize(("pid", "is_at_work"), [("1", True), ("of a process that has ended", False)])
def test_a_job_of_the_local_engine_whose_process_has_ended_is_not_at_work_however_young_its_heartbeat(
    task: toy_tasks.Echo, own_workdir: Path, pid: str, is_at_work: bool
) -> None:
    if pid != "1":
        ended = subprocess.Popen(["true"])
        ended.wait()
        pid = str(ended.pid)
    task.order().write(parent=1)
    run_of(own_workdir, outcome="failed")
    write_json(task.order().files.heartbeat, {"time": 1.0, "pid": int(pid), "room": process_room()})
    assert states.read()["left"] == ({"Echo": {"at work": 1}} if is_at_work else {})
    said = f" is at work: process {pid} on " if is_at_work else "failed: its job ended without a result: killed"
    assert said in why.about(task)


@pytest.mark.parametrize(
    "run",
    [
        {"outcome": "stopped"},
        {"outcome": "detached"},
        {"ended": False, "outcome": "", "updated": 1.0},
    ],
)
def test_a_job_that_its_run_took_with_it_did_not_fail(
    task: toy_tasks.Echo, own_workdir: Path, run: dict[str, Any]
) -> None:
    task.order().write()
    run_of(own_workdir, **run)
    assert why.about(task) == f"{task.label()} was stopped with its run, and {NOT_RUN}."
    write_json(task.order().files.result, {"outcome": "stopped", "exception": "SystemExit: 143"})
    assert why.about(task) == f"{task.label()} was stopped with its run, and {NOT_RUN}."


def test_a_job_that_the_driver_cancelled_did_not_fail_and_one_that_was_killed_did(
    task: toy_tasks.Echo, own_workdir: Path
) -> None:
    task.order().write()
    run_of(own_workdir, outcome="failed")
    assert "its job ended without a result" in why.about(task)
    assert "Raise the rule's `memory`" in why.about(task)
    record_of(task, own_workdir, JobState.FAILED, cause=Cause.DRIVER_CANCELLED.value)
    assert why.about(task) == f"{task.label()} was stopped with its run, and {NOT_RUN}."
    record_of(task, own_workdir, JobState.FAILED, cause=Cause.MEMORY.value)
    assert "failed: out of memory" in why.about(task)


def test_a_task_whose_turn_is_still_to_come_has_not_failed_by_its_last_order(
    task: toy_tasks.Echo, own_workdir: Path
) -> None:
    task.order().write()
    run_of(own_workdir, ended=False, outcome="")
    assert "waits for its turn" in why.about(task)


class Layer(toy_tasks.SlurmTask):
    """Each needs all of the layer below; the ways down are many, the tasks are few."""

    depth = luigi.IntParameter()
    n = luigi.IntParameter()
    looked: list[str] = []

    def requires(self) -> list["Layer"]:
        return [Layer(depth=self.depth - 1, n=n) for n in range(4)] if self.depth else []

    def complete(self) -> bool:
        self.looked.append(self.task_id)
        return False


def test_each_task_is_looked_at_once_and_no_further_than_the_first_that_failed(
    own_workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []
    real = states.read_state
    monkeypatch.setattr(states, "read_state", lambda workdir: [read.append(workdir), real(workdir)][1])
    top = Layer(depth=8, n=0)
    chain = why.Search(()).chain(top)
    assert [task.depth for task in chain] == list(range(8, -1, -1))
    assert len(Layer.looked) == len(set(Layer.looked)) == 1 + 8 * 4
    assert read == [own_workdir]
    Layer.looked.clear()
    failed = Layer(depth=0, n=0).order()
    failed.write()
    write_json(failed.files.result, {"outcome": "error", "exception": "ValueError: no"})
    chain = why.Search(()).chain(top)
    assert chain[-1] is Layer(depth=0, n=0)
    assert len(Layer.looked) == 9


class Link(toy_tasks.SlurmTask):
    """A link of a chain."""

    n = luigi.IntParameter()

    def requires(self) -> list["Link"]:
        return [Link(n=self.n - 1)] if self.n else []

    def complete(self) -> bool:
        return False


def test_a_chain_of_more_tasks_than_python_calls_can_be_deep_is_followed_to_its_end(own_workdir: Path) -> None:
    length = 2 * sys.getrecursionlimit()
    assert [task.n for task in why.Search(()).chain(Link(n=length))] == list(range(length, -1, -1))


@pytest.mark.parametrize(
    ("engine", "cause", "said"),
    [
        ("slurm", Cause.REFUSED, f"refused by Slurm (sbatch refused it; {HINT})."),
        ("sge", Cause.REFUSED, f"refused by Grid Engine (qsub refused it; {HINT})."),
        ("slurm", Cause.UNCONFIRMED, "never arrived in Slurm (sbatch failed, and the job never appeared in Slurm)."),
        ("local", Cause.REFUSED, f"refused by Slurm (sbatch refused it; {HINT})."),
        ("slurm", Cause.MEMORY, "out of memory (it needed more memory than it had; raise `memory` or its cap)."),
    ],
)
def test_what_an_outcome_means_is_explained_in_the_words_of_its_scheduler(
    task: toy_tasks.Echo, own_workdir: Path, engine: str, cause: Cause, said: str
) -> None:
    get_config().set("espo", "engine", engine)
    record_of(task, own_workdir, JobState.FAILED, cause=cause)
    assert f"{task.label()} failed: {said}" in why.about(task)
