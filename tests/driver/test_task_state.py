"""Each row of the table of `TaskStatus`."""

import time
from pathlib import Path

import luigi
import pytest
from luigi.configuration import get_config

from espo_luigi import SlurmTask
from espo_luigi.driver.settings.espo import state_dir
from espo_luigi.errors import SubmissionError
from espo_luigi.jobs.causes import Cause
from espo_luigi.jobs.lifecycle.records import Record, RecordStore
from espo_luigi.jobs.order import JobState, write_json
from espo_luigi.jobs.schedulers.script import task_name
from espo_luigi.overview.states import BLOCKED, DONE, RUN, TaskState, TaskStates, TaskStatus


class Product(SlurmTask):
    """A task whose answers its parameters give."""

    made = luigi.BoolParameter()
    changed = luigi.Parameter(default="")
    problem = luigi.Parameter(default="")
    lacks = luigi.BoolParameter()

    def requires(self) -> list["Product"]:
        return [Product(changed="below")] if self.lacks else []

    def complete(self) -> bool:
        return bool(self.made)

    def stale(self, *, files: bool = True) -> list[str]:
        return [self.changed] if self.changed else []

    def check(self) -> None:
        if self.problem:
            raise SubmissionError(self.problem)


def record(task: Product, workdir: Path, state: JobState, cause: str = "") -> None:
    store = RecordStore(state_dir())
    store.create_folders()
    name = task_name(workdir.name, "Product", task.wildcards, store.salt)
    store.save(Record(name, "Product", task.wildcards, 2**30, 60, "log", state=state, cause=cause))


def state_of(task: Product) -> TaskStatus:
    return TaskStates().closely(task)


def test_outputs_decide_between_complete_and_stale(own_workdir: Path) -> None:
    assert state_of(Product(made=True)) == TaskStatus(TaskState.COMPLETE)
    assert state_of(Product(made=True, changed="key")) == TaskStatus(TaskState.STALE, changed=("key",))


@pytest.mark.parametrize("job", [JobState.SUBMITTING, JobState.QUEUED])
def test_a_job_that_is_out_is_running_in_its_state(own_workdir: Path, job: JobState) -> None:
    task = Product()
    record(task, own_workdir, job)
    assert (state_of(task).state, state_of(task).job) == (TaskState.RUNNING, job)
    write_json(task.order().files.heartbeat, {"time": time.time()})
    assert (state_of(task).state, state_of(task).job) == (TaskState.RUNNING, JobState.RUNNING)


def test_a_failed_job_has_its_cause_as_a_code_and_is_none_while_it_is_planned_again(own_workdir: Path) -> None:
    get_config().set("espo", "engine", "slurm")
    task = Product()
    record(task, own_workdir, JobState.FAILED, Cause.TIMEOUT)
    assert (state_of(task).state, state_of(task).cause) == (TaskState.FAILED, Cause.TIMEOUT)
    record(task, own_workdir, JobState.READY)
    assert state_of(task).state is TaskState.READY


def test_without_a_job_the_task_and_its_needs_decide(own_workdir: Path) -> None:
    blocked = state_of(Product(problem="too much memory"))
    assert (blocked.state, blocked.why) == (TaskState.BLOCKED, "too much memory")
    assert state_of(Product()).state is TaskState.READY
    assert state_of(Product(lacks=True)).state is TaskState.TO_COME


def test_a_plan_has_three_words_for_the_states() -> None:
    words = {stand: TaskStatus(stand).in_plan for stand in TaskState}
    assert {stand for stand in TaskState if words[stand] == DONE} == {TaskState.COMPLETE, TaskState.STALE}
    assert {stand for stand in TaskState if words[stand] == BLOCKED} == {TaskState.BLOCKED}
    assert {stand for stand in TaskState if words[stand] == RUN} == set(TaskState) - {
        TaskState.COMPLETE,
        TaskState.STALE,
        TaskState.BLOCKED,
    }
