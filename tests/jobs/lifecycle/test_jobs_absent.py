"""Jobs of which Slurm's commands tell nothing, or not yet: what they are taken for (stand-ins of the commands)."""

from __future__ import annotations

import pytest
from fake_cluster import PATIENCE, FakeCluster
from job_work import Work

from espo_luigi.jobs.causes import Cause
from espo_luigi.jobs.lifecycle.state import Success
from espo_luigi.jobs.schedulers import slurm
from espo_luigi.jobs.schedulers.commands import Commands
from espo_luigi.jobs.settings import BatchSettings


def test_while_slurm_does_not_answer_nothing_is_lost_it_is_said_once_a_minute_and_results_count(
    fake: FakeCluster, work: Work, caplog: pytest.LogCaptureFixture
) -> None:
    handles = fake.all_submitted("ab")
    fake.misbehave("squeue", "fail slurm_load_jobs error: Unable to contact slurm controller")
    fake.clock.go_on(PATIENCE.absent_after + 1)
    fake.finish("a", "1")
    assert isinstance(fake.outcome(handles[0], 5), Success)
    assert handles[1].outcome is None
    assert caplog.text.count("Slurm has not answered") == 1
    assert "Unable to contact slurm controller" in caplog.text
    assert len(fake.calls("sbatch")) == 2


def test_a_job_is_lost_only_after_it_was_absent_from_answers_for_the_stated_time(fake: FakeCluster, work: Work) -> None:
    handle = fake.submitted(work.order("a"))
    fake.forget_jobs()
    began = fake.clock.now()
    assert fake.failure(handle, 20).cause is Cause.LOST
    assert fake.clock.now() - began >= PATIENCE.absent_after


def test_an_adopted_job_that_was_stopped_and_that_slurm_has_forgotten_is_tried_again(
    fake: FakeCluster, work: Work
) -> None:
    fake.left_behind("a")
    fake.finish("a", "1", outcome="stopped", exception="SystemExit: stopped by signal 15")
    fake.forget_jobs()
    second = fake.manager(retries=1)
    handle = second.submit(work.order("a"))
    fake.eventually(lambda: len(fake.calls("sbatch")) == 2)
    fake.eventually(lambda: handle.progress.attempt == 2)
    record = second.store.load(handle.task)
    assert record is not None and record.history[-1]["ended"] == Cause.CRASHED.value


def test_an_accounting_that_lags_behind_is_waited_for(fake: FakeCluster, work: Work) -> None:
    handle = fake.submitted(work.order("a"))
    fake.forget_jobs()
    fake.clock.go_on(0.3)
    name = f"{handle.task}.1"
    # sacct still tells of the first run of a job that was requeued since, then of a job that runs no more.
    (fake.folder / "sacct.says").write_text(f"1|RUNNING|0:0|n1|2026-01-01T10:00:00|{name}\n")
    fake.clock.go_on(0.5)
    assert handle.outcome is None
    (fake.folder / "sacct.says").write_text(f"1|TIMEOUT|0:0|n1|2026-01-01T10:00:00|{name}\n")
    assert fake.failure(handle, PATIENCE.latency_wait + 3).cause is Cause.TIMEOUT


def test_a_database_that_does_not_answer_is_no_absence(fake: FakeCluster, work: Work) -> None:
    handle = fake.submitted(work.order("a"))
    fake.misbehave("sacct", "fail sacct: error: slurm_persist_conn_open_without_init: failed to open connection")
    fake.forget_jobs()
    assert fake.outcome(handle, PATIENCE.absent_after + 2) is None


def test_without_accounting_scontrol_is_asked_and_sacct_no_more(fake: FakeCluster, work: Work) -> None:
    fake.misbehave("sacct", "fail Slurm accounting storage is disabled")
    handle = fake.submitted(work.order("a"))
    fake.forget_jobs()
    assert fake.outcome(handle, 20) is not None
    assert len(fake.calls("sacct")) == 1 and fake.calls("scontrol")


@pytest.mark.parametrize("how", ["missing", "forbidden"])
def test_where_sacct_cannot_be_started_scontrol_is_asked(fake: FakeCluster, how: str) -> None:
    sacct = fake.folder / "bin" / "sacct"
    sacct.unlink() if how == "missing" else sacct.chmod(0o644)
    # Only this folder: a real sacct would be found in another.
    commands = Commands(slurm, BatchSettings(max_status_per_second=0), {"PATH": str(fake.folder / "bin")})
    assert commands.remembered(["1"], []) == []
    assert commands.lacking == {"sacct"} and fake.calls("scontrol")


def test_a_job_cancelled_by_us_that_the_scheduler_then_forgets_is_not_lost(fake: FakeCluster, work: Work) -> None:
    """Grid Engine lists no ended jobs, and tells nothing of one that was deleted while it pended."""
    handle = fake.submitted(work.order("a"), fake.manager(poll_seconds=5.0, result_seconds=5.0, retries=1))
    fake.set_state("PENDING", "PartitionTimeLimit")
    fake.eventually(lambda: bool(fake.calls("scancel")))
    fake.forget_jobs()
    assert fake.failure(handle, PATIENCE.absent_after + 65).cause is Cause.HOPELESS
