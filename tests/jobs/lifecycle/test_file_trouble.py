"""File systems that fail for a moment, as the driver sees it: nothing fails, nothing is charged, nothing is doubled."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_cluster import PATIENCE, FakeCluster, has_id
from job_work import Work

from espo_luigi import files
from espo_luigi.errors import Failure
from espo_luigi.jobs.causes import Cause
from espo_luigi.jobs.lifecycle import observe as watcher
from espo_luigi.jobs.lifecycle.manager import JobManager
from espo_luigi.jobs.lifecycle.records import Record, RecordStore
from espo_luigi.jobs.lifecycle.state import Success
from espo_luigi.jobs.order import JobState

ERRORS = [errno.EDQUOT, errno.ESTALE, errno.EIO, errno.ENOSPC]


class Faults:
    """Has methods of `RecordStore` fail, for as long as `number` is set; `when` says for what arguments."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.number = 0
        self.names: set[str] = set()
        self.when: Callable[..., bool] = lambda *_: True
        for name in ("load", "save", "claim_owner", "close", "close_unclaimed", "forget_files"):
            monkeypatch.setattr(RecordStore, name, self._failing(name, getattr(RecordStore, name)))

    def begin(self, number: int, *names: str) -> None:
        self.names, self.number = set(names), number

    def end(self) -> None:
        self.number = 0

    def _failing(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(store: RecordStore, *arguments: Any, **keywords: Any) -> Any:
            if self.number and (name in self.names or not self.names) and self.when(*arguments):
                raise OSError(self.number, os.strerror(self.number))
            return method(store, *arguments, **keywords)

        return call


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    return Faults(monkeypatch)


@pytest.mark.parametrize("number", ERRORS)
def test_a_while_in_which_nothing_can_be_read_or_written_fails_no_task(
    fake: FakeCluster, work: Work, faults: Faults, number: int
) -> None:
    manager = fake.manager()
    faults.begin(number)
    handles = [manager.submit(work.order(f"a{i}")) for i in range(20)]
    fake.clock.go_on(5)
    assert [handle.outcome for handle in handles] == [None] * 20
    faults.end()
    fake.eventually(lambda: all(has_id(handle)() for handle in handles))
    faults.begin(number)
    for handle in handles:
        name = handle.order.id
        fake.finish(name, str(handle.progress.job_id))
    fake.clock.go_on(5)
    faults.end()
    outcomes = [fake.outcome(handle, 20) for handle in handles]
    assert all(isinstance(outcome, Success) and outcome.attempts == 1 for outcome in outcomes)
    assert len(fake.calls("sbatch")) == 20


def test_a_job_whose_id_cannot_be_written_down_is_not_submitted_again(
    fake: FakeCluster, work: Work, faults: Faults, caplog: pytest.LogCaptureFixture
) -> None:
    manager = fake.manager()
    faults.when = lambda record, *_: isinstance(record, Record) and record.state == JobState.QUEUED
    faults.begin(errno.EDQUOT, "save")
    handle = fake.submitted(work.order("a"), manager)
    fake.clock.go_on(8)
    record = manager.store.load(handle.task)
    assert record is not None and (record.state, record.job_id) == (JobState.SUBMITTING, None)
    assert caplog.text.count("trouble with the files") == 1
    faults.end()
    fake.clock.go_on(2)
    record = manager.store.load(handle.task)
    assert record is not None and (record.state, record.job_id) == (JobState.QUEUED, "1")
    assert len(fake.calls("sbatch")) == 1


def test_a_driver_that_dies_with_an_id_not_written_down_is_followed_by_one_that_finds_the_job(
    fake: FakeCluster, work: Work, faults: Faults
) -> None:
    first = fake.manager()
    faults.when = lambda record, *_: isinstance(record, Record) and record.state == JobState.QUEUED
    faults.begin(errno.EDQUOT, "save")
    fake.eventually(has_id(first.submit(work.order("a"))))
    first.detach()
    faults.end()
    handle = fake.submitted(work.order("a"))
    fake.finish("a", "1")
    assert isinstance(fake.outcome(handle, 5), Success)
    assert len(fake.calls("sbatch")) == 1


def test_what_is_written_before_a_submission_can_fail_and_the_name_is_used_again(
    fake: FakeCluster, work: Work, faults: Faults
) -> None:
    manager = fake.manager()
    faults.when = lambda record, *_: isinstance(record, Record) and record.state == JobState.SUBMITTING
    faults.begin(errno.ENOSPC, "save")
    handle = manager.submit(work.order("a"))
    fake.clock.go_on(5)
    assert fake.calls("sbatch") == []
    faults.end()
    fake.eventually(has_id(handle))
    record = manager.store.load(handle.task)
    assert record is not None and (record.submission, record.attempt, record.history) == (1, 1, ())


def test_a_retry_that_cannot_be_written_down_is_charged_once(fake: FakeCluster, work: Work, faults: Faults) -> None:
    manager = fake.manager(retries=1)
    handle = fake.submitted(work.order("a"), manager)
    faults.begin(errno.EIO, "save", "close")
    fake.set_state("FAILED")
    fake.clock.go_on(PATIENCE.latency_wait + 5)
    faults.end()
    fake.eventually(lambda: handle.progress.job_id == "2")
    record = manager.store.load(handle.task)
    assert record is not None and (record.submission, record.attempt, len(record.history)) == (2, 2, 1)


def test_a_job_that_is_queued_again_in_vain_is_cancelled_once_that_is_written_down(
    fake: FakeCluster, work: Work, faults: Faults
) -> None:
    handle = fake.submitted(work.order("a"), fake.manager(retries=3))
    fake.set_state("RUNNING")
    fake.finish("a", "1", outcome="error", exception="ValueError: no")
    fake.clock.go_on(0.5)
    faults.begin(errno.ESTALE, "save")
    fake.set_state("PENDING", "BeginTime")
    fake.clock.go_on(2)
    assert fake.work.state_dir.joinpath("claims", f"{handle.task}.1").read_text() == "the driver"
    assert not fake.calls("scancel") and handle.outcome is None
    faults.end()
    assert fake.failure(handle, 5).cause is Cause.EXCEPTION
    fake.eventually(lambda: fake.calls("scancel"))


def test_an_order_cancelled_before_its_submission_has_its_outcome_once_that_can_be_written_down(
    fake: FakeCluster, work: Work, faults: Faults
) -> None:
    manager = fake.manager(max_jobs=1)
    first, *waiting = (manager.submit(work.order(name)) for name in "abc")
    fake.eventually(has_id(first))
    faults.begin(errno.ESTALE, "save")
    for handle in waiting:
        manager.cancel(handle.order.id)
    fake.clock.go_on(1)
    faults.end()
    outcomes = [fake.outcome(handle, 10) for handle in waiting]
    assert [isinstance(one, Failure) and one.cause for one in outcomes] == [Cause.DRIVER_CANCELLED] * 2
    assert len(fake.calls("sbatch")) == 1 and not fake.calls("scancel")


def test_a_claim_that_cannot_be_read_ends_no_driver_and_hides_no_other_result(
    fake: FakeCluster, work: Work, faults: Faults
) -> None:
    fake.misbehave("sbatch", "take-then-fail")
    fake.forget_jobs()
    manager = fake.manager()
    handle = manager.submit(work.order("a"))
    fake.eventually(lambda: len(fake.calls("sbatch")) == 1)
    faults.begin(errno.ESTALE, "claim_owner", "close_unclaimed")
    fake.finish("a", "1")
    manager.store.claim_path(f"{handle.task}.1").write_text("1\n")
    good = fake.submitted(work.order("b"), manager)
    fake.finish("b", "2")
    assert isinstance(fake.outcome(good, 5), Success)
    fake.clock.go_on(5)
    assert manager.stopping is None and handle.outcome is None
    faults.end()
    assert isinstance(fake.outcome(handle, 5), Success)
    assert len(fake.calls("sbatch")) == 2


def test_an_error_that_no_waiting_cures_ends_its_task_alone(fake: FakeCluster, work: Work) -> None:
    def complete() -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", "output")

    manager = fake.manager()
    bad, good = manager.submit(work.order("a", is_complete=complete)), manager.submit(work.order("b"))
    fake.eventually(lambda: has_id(bad)() and has_id(good)())
    fake.finish("a", "1")
    fake.clock.go_on(PATIENCE.lasting_trouble - 1)
    assert bad.outcome is None
    assert "Permission denied" in fake.failure(bad, 5).message
    fake.finish("b", "2")
    assert isinstance(fake.outcome(good, 5), Success)


def test_a_folder_for_logs_that_cannot_be_made_fails_that_task_and_the_others_go_on(
    fake: FakeCluster, work: Work
) -> None:
    (work.folder / "slurm_logs").mkdir()
    (work.folder / "slurm_logs" / "bad").write_text("in the way")
    manager = fake.manager()
    bad = manager.submit(work.order("a", rule="bad"))
    fake.submitted(work.order("b"), manager)
    assert "File exists" in fake.failure(bad, PATIENCE.lasting_trouble + 5).message
    assert len(fake.calls("sbatch")) == 1
    assert [job.state for job in manager._jobs.values()] == [JobState.QUEUED] and not manager._ready


def test_results_that_cannot_be_looked_for_are_not_missing(
    fake: FakeCluster, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_listing(folder: Path) -> set[str]:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(folder))

    handle = fake.submitted(work.order("a"), retries=3)
    with monkeypatch.context() as patch:
        patch.setattr(watcher, "listed_names", no_listing)
        fake.finish("a", "1", outcome="error", exception="ValueError: no")
        fake.set_state("FAILED")
        fake.clock.go_on(10 * PATIENCE.latency_wait)
        assert handle.outcome is None
    assert fake.failure(handle, 5).cause is Cause.EXCEPTION
    assert len(fake.calls("sbatch")) == 1


def test_a_job_under_which_a_file_system_failed_is_tried_elsewhere_after_a_pause_and_not_for_ever(
    fake: FakeCluster, work: Work
) -> None:
    handle = fake.submitted(work.order("a"), retries=1)
    fake.set_state("RUNNING")
    fake.eventually(lambda: handle.progress.state == "running")
    fake.finish("a", "1", outcome="files", exception="OSError: [Errno 28] No space left on device")
    fake.set_state("FAILED")
    ended = fake.clock.now()
    fake.eventually(lambda: handle.progress.job_id == "2", PATIENCE.after_trouble + 10)
    assert fake.clock.now() - ended >= PATIENCE.after_trouble
    assert "--exclude=n1" in fake.calls("sbatch")[1].split()
    fake.finish("a", "2", outcome="files", exception="OSError: [Errno 28] No space left on device")
    fake.set_state("FAILED")
    outcome = fake.outcome(handle, 5)
    assert isinstance(outcome, Failure) and outcome.cause is Cause.FILES
    assert "No space left on device" in outcome.message and "run again" in outcome.message
    assert outcome.attempts == 2


def test_while_one_task_pauses_the_others_are_submitted(fake: FakeCluster, work: Work) -> None:
    manager = fake.manager(max_jobs=1, retries=1)
    fake.submitted(work.order("a"), manager)
    second = manager.submit(work.order("b"))
    fake.finish("a", "1", outcome="files", exception="OSError: [Errno 5] Input/output error")
    fake.set_state("FAILED")
    fake.eventually(has_id(second), PATIENCE.after_trouble / 2)


@pytest.mark.parametrize("state", ["FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"])
def test_a_job_that_ended_badly_over_a_complete_product_has_succeeded(
    fake: FakeCluster, work: Work, state: str
) -> None:
    manager = fake.manager(retries=3)
    handle = fake.submitted(work.order("a", is_complete=lambda: True), manager)
    fake.set_state(state)
    outcome = fake.outcome(handle, PATIENCE.latency_wait + 5)
    assert isinstance(outcome, Success) and outcome.job_id == "1"
    assert len(fake.calls("sbatch")) == 1
    assert manager.store.claim_path(f"{handle.task}.1").read_text() == "the driver", "nobody can requeue it"


def test_an_exception_counts_whatever_is_there(fake: FakeCluster, work: Work) -> None:
    handle = fake.submitted(work.order("a", is_complete=lambda: True))
    fake.finish("a", "1", outcome="error", exception="HealthCheckError: all NaN")
    fake.set_state("FAILED")
    assert fake.failure(handle, 5).cause is Cause.EXCEPTION


def test_an_empty_claim_of_an_older_version_is_closed_with_a_word(
    fake: FakeCluster, work: Work, caplog: pytest.LogCaptureFixture
) -> None:
    fake.misbehave("sbatch", "take-then-fail")
    fake.forget_jobs()
    manager = fake.manager()
    handle = manager.submit(work.order("a"))
    fake.eventually(lambda: len(fake.calls("sbatch")) == 1)
    claim = manager.store.claim_path(f"{handle.task}.1")
    claim.touch()
    fake.eventually(lambda: len(fake.calls("sbatch")) == 2)
    assert claim.read_text() == "the driver"
    assert f"{claim} is empty" in caplog.text


def test_a_claim_of_the_driver_that_cannot_be_written_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RecordStore(tmp_path)
    store.create_folders()

    def on_a_full_disk(path: Path, mode: int) -> int:
        path.touch()
        return os.open("/dev/full", os.O_WRONLY)

    monkeypatch.setattr(files, "open_new", on_a_full_disk)
    with pytest.raises(OSError, match="No space left on device"):
        store.close_unclaimed("a")
    assert list((tmp_path / "claims").iterdir()) == []
    monkeypatch.undo()
    assert store.close_unclaimed("a")


def test_jobs_are_cancelled_while_nothing_can_be_written_and_that_is_written_down_afterwards(
    fake: FakeCluster, work: Work, faults: Faults
) -> None:
    manager = fake.manager()
    fake.all_submitted("abc", manager)
    faults.begin(errno.EDQUOT, "close", "save")
    threading.Timer(1.5, faults.end).start()
    assert manager.cancel_all() == 3
    assert {record.state for record in manager.store.all()} == {JobState.FAILED}


def test_jobs_are_cancelled_and_counted_where_nothing_can_be_written_any_more(
    fake: FakeCluster, work: Work, faults: Faults, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    manager = fake.manager(patience=replace(PATIENCE, writing_down=0.0))
    fake.all_submitted("abc", manager)
    faults.begin(errno.EDQUOT, "close", "save")
    assert manager.cancel_all() == 3
    assert len(fake.calls("scancel")) == 1
    assert "3 cancelled job(s)" in caplog.text and "Disk quota exceeded" in caplog.text


DAMAGED = "run.rule.0123456789ab"


def damage(manager: JobManager, task: str = DAMAGED) -> None:
    (manager.store.folder / "records" / f"{task}.json").write_text("{")


def test_a_damaged_record_of_a_job_whose_workers_are_left_stops_no_other_job(fake: FakeCluster, work: Work) -> None:
    manager = fake.manager()
    handle = fake.submitted(work.order("a"), manager)
    damage(manager)
    jobs = fake.folder / "jobs"
    jobs.write_text(f"{jobs.read_text()}9|RUNNING|n1|None|{DAMAGED}.1.01234567.workers\n")
    fake.eventually(lambda: any("9" in call.split() for call in fake.calls("scancel")))
    fake.finish("a", "1")
    assert isinstance(fake.outcome(handle, 5), Success)
    assert manager.stopping is None


def test_a_damaged_record_ends_its_own_task_alone_and_says_what_to_do(fake: FakeCluster, work: Work) -> None:
    first = fake.left_behind(*"ab")
    damage(first, next(record.task for record in first.store.all() if record.wildcards == {"name": "a"}))
    manager = fake.manager()
    bad, good = manager.submit(work.order("a")), manager.submit(work.order("b"))
    assert "is not a record of a submission" in fake.failure(bad, 5).words
    fake.finish("b", "2")
    assert isinstance(fake.outcome(good, 5), Success)


def test_a_damaged_record_keeps_no_job_of_an_earlier_driver_from_being_cancelled(
    fake: FakeCluster, work: Work, caplog: pytest.LogCaptureFixture
) -> None:
    first = fake.left_behind(*"abc")
    damage(first)
    assert fake.manager().cancel_all() == 3
    assert f"{DAMAGED}.json is not a record" in caplog.text
