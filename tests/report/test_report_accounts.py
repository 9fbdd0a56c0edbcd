"""What a scheduler has accounted, beside what jobs have counted themselves."""

from dataclasses import replace

from report_examples import write_job, write_run

from espo_luigi.jobs import accounts
from espo_luigi.jobs.accounts import read_accounts, submissions
from espo_luigi.jobs.causes import Cause
from espo_luigi.jobs.lifecycle.records import Record, RecordStore
from espo_luigi.jobs.order import JobState
from espo_luigi.jobs.resources import GIB
from espo_luigi.jobs.schedulers.base import Phase, Usage
from espo_luigi.report.job_use import Job, accounted
from espo_luigi.report.make import make_sections

JOB = Job("Train", "host7", 1010.0, 1600.0, 900.0, True, 2, 4, 8 * GIB, 60, 3 * GIB, 1000.0, "12")
RECORD = Record("r.Train.0", "Train", {}, 8 * GIB, 60, "log", state=JobState.SUCCEEDED, job_id="12")
ACCOUNT = Usage("12", "r.Train.0.1", Phase.COMPLETED, "n1", 950.0, 1000.0, 1605.0, 4, 12 * GIB, 90, 1200.0, 2 * GIB)


def test_a_job_has_the_times_and_sizes_of_its_account_and_the_larger_memory() -> None:
    (found,) = accounted([JOB], submissions([RECORD]), [ACCOUNT])
    assert found == replace(
        JOB,
        node="n1",
        started=1000.0,
        ended=1605.0,
        ordered=950.0,
        memory_bytes=12 * GIB,
        time_minutes=90,
        cpu_seconds=1200.0,
        accounted=True,
    )
    assert (found.peak_memory_bytes, found.waited) == (3 * GIB, 50.0)


def test_an_attempt_that_was_killed_is_a_job_that_failed() -> None:
    record = RECORD.next_submission("out of memory", job_id="15")
    killed = replace(ACCOUNT, phase=Cause.MEMORY, peak_memory_bytes=8 * GIB)
    again = replace(ACCOUNT, job_id="15", name="r.Train.0.2", started=2000.0, ended=2100.0)
    found = accounted([replace(JOB, job_id="15")], submissions([record]), [killed, again])
    assert [(one.succeeded, one.started, one.rule, one.n_workers) for one in found] == [
        (True, 2000.0, "Train", 2),
        (False, 1000.0, "Train", 2),
    ]
    assert found[1].peak_memory_bytes == 8 * GIB


def test_the_first_run_of_a_requeued_job_is_one_more() -> None:
    first = replace(ACCOUNT, phase=Cause.NODE, started=100.0, ended=200.0)
    found = accounted([JOB], submissions([RECORD]), [first, ACCOUNT])
    assert [(one.succeeded, one.started) for one in found] == [(True, 1000.0), (False, 100.0)]


def test_what_an_account_does_not_say_is_the_jobs_own_word() -> None:
    silent = Usage("12", "r.Train.0.1", Phase.COMPLETED, started=1000.0, ended=1605.0)
    (found,) = accounted([JOB], submissions([RECORD]), [silent])
    assert found == replace(JOB, started=1000.0, ended=1605.0, accounted=True)


def test_a_job_that_several_tasks_shared_is_none_of_theirs() -> None:
    assert submissions([replace(RECORD, bundle="r.Train.bundle.1")]) == {}
    element = replace(RECORD, bundle="r.Train.array.1[3]", job_id="12_3")
    assert list(submissions([element])) == [("12_3", "r.Train.array.1")]


def test_without_a_scheduler_or_submissions_nothing_is_asked() -> None:
    assert read_accounts("local", submissions([RECORD])) == []
    assert read_accounts("slurm", {}) == []


def test_accounts_of_other_jobs_and_of_runs_that_have_not_ended_are_left_out(monkeypatch) -> None:
    said = [ACCOUNT, replace(ACCOUNT, name="somebody else's"), replace(ACCOUNT, ended=0.0)]
    monkeypatch.setattr(accounts.Commands, "usage", lambda self, ids, names: said)
    assert read_accounts("slurm", submissions([RECORD])) == [ACCOUNT]


def test_the_page_says_whose_figures_they_are(tmp_path, monkeypatch) -> None:
    view = write_run(tmp_path)
    write_job(view.workdir, "Train", "var=0", started=100.0, job_id="12")
    store = RecordStore(view.workdir / "scheduler")
    store.create_folders()
    store.save(RECORD)
    monkeypatch.setattr(accounts.Commands, "usage", lambda self, ids, names: [ACCOUNT])
    (run,) = (one for one in make_sections(view)[0] if one.title == "Jobs")
    words = " ".join(block.text for block in run.blocks if hasattr(block, "text"))
    assert "4 jobs on 1 node" in words
    assert "1 of them by the scheduler's accounts, with the runs that failed; the other 3 as the jobs have" in words
    table = next(block for block in run.blocks if getattr(block, "caption", "").startswith("Used"))
    assert table.rows[0][4] == "2.00 of 12.0"
