"""A job's state follows from the meaning of its scheduler's state, not from its name."""

import dataclasses
from pathlib import Path

import pytest
import toy_tasks
from luigi.configuration import get_config

from espo_luigi.driver.board import BegunTask, Board
from espo_luigi.driver.screen import status_lines
from espo_luigi.driver.status import COLUMNS, status_of
from espo_luigi.driver.task import SlurmTask
from espo_luigi.jobs.lifecycle.policy import step
from espo_luigi.jobs.lifecycle.records import Record
from espo_luigi.jobs.lifecycle.state import Job as Submitted
from espo_luigi.jobs.lifecycle.state import Seen
from espo_luigi.jobs.order import JobState, Progress
from espo_luigi.jobs.schedulers import SCHEDULERS
from espo_luigi.jobs.schedulers import gridengine as sge_answers
from espo_luigi.jobs.schedulers import slurm_parse as slurm_answers
from espo_luigi.jobs.schedulers.base import Row
from espo_luigi.jobs.schedulers.commands import Commands
from espo_luigi.jobs.settings import BatchSettings
from espo_luigi.overview import why
from espo_luigi.overview.states import trace_of

QSTAT = """<job_list state="pending"><JB_job_number>{}</JB_job_number><JB_name>espo.a</JB_name><state>{}</state>
<queue_name></queue_name></job_list>"""


def of_sge(job_id: str, state: str) -> Row:
    return sge_answers.parse_qstat(f"{QSTAT.format(job_id, state)}</job_info>")[0]


ROWS = {
    "Eqw": of_sge("7", "Eqw"),
    "hRq": of_sge("8", "hRq"),
    "SUSPENDED": slurm_answers.row("9", "a", "SUSPENDED", "n1"),
    "SPECIAL_EXIT": slurm_answers.row("10", "a", "SPECIAL_EXIT"),
    "PENDING": slurm_answers.row("11", "a", "PENDING", reason="Priority"),
}


def told(task: SlurmTask, row: Row, engine: str) -> Board:
    """The board after the scheduler's watcher has reported that row."""
    board = Board()
    board.expect("All", engine, [(task.task_id, "Echo")])
    board.begin(BegunTask(task.task_id, task.label(), "Echo", 0.0, 1, 1, "nowhere"))
    record = Record("a", "Echo", task.wildcards, 1, 1, "log", state=JobState.QUEUED, job_id=row.job_id)
    job = Submitted(task.order(engine), record, SCHEDULERS[engine], seen=Seen(row))
    job.state = step(job, 0.0, BatchSettings()).state
    board.tell(task.task_id, job.progress())
    return board


@pytest.fixture()
def task(tmp_path: Path, own_workdir: Path) -> SlurmTask:
    return toy_tasks.Echo(n=1, text="so", folder=str(tmp_path))


@pytest.mark.parametrize("state", ROWS)
def test_what_does_not_run_is_pending(task: SlurmTask, state: str) -> None:
    found = status_of(told(task, ROWS[state], "slurm").snapshot(), 1000.0)
    assert [(rule["running"], rule["pending"]) for rule in found.rules.values()] == [(0, 1)]


@pytest.mark.parametrize("row", [of_sge("7", "Rr"), slurm_answers.row("9", "a", "COMPLETING", "n1")])
def test_what_runs_is_running(task: SlurmTask, row: Row) -> None:
    assert "1 running" in status_lines(told(task, row, "sge").snapshot())[0]


def test_each_scheduler_is_quoted_in_its_own_words(
    task: SlurmTask, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "  1 job(s), Eqw: qstat -j 7 says why" in status_lines(told(task, ROWS["Eqw"], "sge").snapshot())
    of_slurm = status_lines(told(task, ROWS["PENDING"], "slurm").snapshot())
    assert "  1 job(s), Priority: other people's jobs go first" in of_slurm
    get_config().set("espo", "engine", "sge")
    record = Record("a", "Echo", task.wildcards, 1, 1, "log", state=JobState.QUEUED, job_id="7")
    trace = dataclasses.replace(trace_of("Echo", task.wildcards), record=record)
    for state, said in {"Eqw": "Eqw (qstat -j 7 says why)", "qw": "qw (no reason given)"}.items():
        monkeypatch.setattr(Commands, "one", lambda *_, state=state: of_sge("7", state))
        assert why._about_submitted(task, trace) == f"{task.label()}: job 7 pends: {said}."


def test_each_state_of_a_job_has_a_column_but_those_that_say_nothing_of_whether_it_ran() -> None:
    assert set(JobState) - COLUMNS.keys() == {JobState.MISSING, JobState.CANCELLING}


def test_a_running_job_that_one_answer_lacks_still_runs_and_keeps_its_time(task: SlurmTask) -> None:
    board = told(task, slurm_answers.row("9", "a", "RUNNING", "n1"), "slurm")
    since = board.snapshot()["jobs"][task.task_id]["running_since"]
    board.tell(task.task_id, Progress("job 9 on n1\nDask: 5 tasks", state=JobState.MISSING))
    found = board.snapshot()
    assert found["jobs"][task.task_id]["running_since"] == since > 0
    assert "1 running" in status_lines(found)[0]
    assert "pending" not in status_of(found, 1000.0).lists


def test_a_pending_job_that_is_cancelled_never_counts_as_running(task: SlurmTask) -> None:
    board = told(task, ROWS["PENDING"], "slurm")
    board.tell(task.task_id, Progress("PENDING (Licenses), job 9", state=JobState.CANCELLING))
    found = board.snapshot()
    assert found["jobs"][task.task_id]["running_since"] == 0
    assert "1 pending" in status_lines(found)[0]
