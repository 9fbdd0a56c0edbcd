"""The job manager against stand-ins of Slurm's commands: only what a real cluster cannot be made to do."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import pytest
from fake_clock import FakeClock, RunningClock
from fake_cluster import PATIENCE, FakeCluster, has_id
from job_work import Work

from espo_luigi.errors import Failure
from espo_luigi.jobs.causes import Cause
from espo_luigi.jobs.lifecycle.control import cancel_jobs, request_stop
from espo_luigi.jobs.lifecycle.state import Success
from espo_luigi.jobs.lock import DriverLock
from espo_luigi.jobs.order import JobState
from espo_luigi.jobs.schedulers import slurm
from espo_luigi.jobs.schedulers.commands import Commands, RateLimit


@pytest.mark.parametrize("how", ["take-then-hang", "take-then-fail"])
def test_a_job_that_was_taken_although_sbatch_failed_is_found_by_its_name(
    fake: FakeCluster, work: Work, how: str
) -> None:
    fake.misbehave("sbatch", how)
    handle = fake.submitted(work.order("a"))
    fake.finish("a", "1")
    assert isinstance(fake.outcome(handle, 5), Success)
    assert len(fake.calls("sbatch")) == 1


@pytest.mark.parametrize("says", ["-- Welcome -- Submitted batch job ID", "ID;narval", "-- Welcome, in 2026 --"])
def test_a_job_that_sbatch_takes_with_a_warning_and_a_banner_is_followed_at_once(
    fake: FakeCluster, work: Work, says: str
) -> None:
    fake.misbehave("sbatch", f"say {says}")
    handles = fake.all_submitted("abc", poll_seconds=30.0)
    for number, name in enumerate("abc", 1):
        fake.finish(name, str(number))
    assert [type(fake.outcome(handle, 5)) for handle in handles] == [Success] * 3
    assert len(fake.calls("sbatch")) == 3


def test_a_job_that_sbatch_took_without_an_id_is_not_given_up_while_squeue_is_late(
    fake: FakeCluster, work: Work
) -> None:
    fake.misbehave("sbatch", "say -- Welcome --")
    fake.forget_jobs()
    handle = fake.manager().submit(work.order("a"))
    fake.clock.go_on(PATIENCE.settle + 0.6)
    assert len(fake.calls("sbatch")) == 1
    (fake.folder / "squeue.says").unlink()
    fake.eventually(has_id(handle))
    assert len(fake.calls("sbatch")) == 1


def test_a_job_that_runs_although_its_submission_seems_refused_is_followed(fake: FakeCluster, work: Work) -> None:
    fake.misbehave("sbatch", "fail sbatch: error: invalid value, ignoring")
    manager = fake.manager(max_jobs=1)
    store = manager.store
    first = manager.submit(work.order("a"))
    # The next submission's job begins before sbatch has ended.
    assert isinstance(fake.outcome(first, 5), Failure)
    assert store.claim_path(f"{first.task}.1").read_text() == "the driver", "if it starts, it does nothing"
    store.claim_path(f"{first.task}.2").write_text("7\n")
    second = manager.submit(work.order("a"))
    fake.eventually(has_id(second))
    fake.finish("a", "7")
    assert isinstance(fake.outcome(second, 5), Success)


def test_tasks_of_a_manager_that_cannot_go_on_have_failed_and_were_not_left(
    fake: FakeCluster, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = fake.manager()
    handle = fake.submitted(work.order("a"), manager)

    def broken() -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(manager, "_cycle", broken)
    assert fake.failure(handle, 5).cause is Cause.INTERNAL
    assert fake.calls("scancel") == []


def test_what_a_jobs_log_says_of_its_end_is_told_before_the_next_attempt(
    fake: FakeCluster, work: Work, caplog: pytest.LogCaptureFixture
) -> None:
    fake.submitted(work.order("a"), retries=1)
    log = work.folder / "slurm_logs" / "rule" / "rule-name=a-1.out"
    log.write_text("module: command not found\nCannot claim the work by claims/a (No locks available)\n")
    fake.set_state("FAILED")
    fake.eventually(lambda: len(fake.calls("sbatch")) == 2)
    assert 'its log ends with "Cannot claim the work by claims/a (No locks available)"; trying again' in caplog.text


@pytest.mark.parametrize("is_only_there", [False, True], ids=["on all nodes", "on a node"])
def test_a_log_folder_that_is_not_on_the_nodes_is_named_after_the_second_job(
    fake: FakeCluster, work: Work, is_only_there: bool, caplog: pytest.LogCaptureFixture
) -> None:
    manager = fake.manager(patience=PATIENCE if is_only_there else replace(PATIENCE, latency_wait=100.0), retries=3)
    if is_only_there:
        fake.outcome(manager.submit(work.order("fine")), 0)
        (work.folder / "slurm_logs" / "rule").mkdir(parents=True, exist_ok=True)
        (work.folder / "slurm_logs" / "rule" / "rule-name=fine-7.out").touch()
    handle = fake.submitted(work.order("a"), manager)
    fake.set_state("FAILED", "JobLaunchFailure")
    if is_only_there:
        fake.eventually(lambda: handle.progress.attempt == 2)
        return
    fake.eventually(lambda: len(fake.calls("sbatch")) == 2)
    assert "set `log_dir`" in caplog.text
    fake.eventually(lambda: handle.progress.job_id == "2")
    fake.set_state("FAILED", "JobLaunchFailure")
    outcome = fake.outcome(handle, 10)
    assert isinstance(outcome, Failure) and outcome.cause is Cause.NO_LOG
    assert "attempt 2: its node could not open its log" in outcome.message
    assert "set `log_dir`" in outcome.message
    assert len(fake.calls("sbatch")) == 2


def test_an_account_without_time_is_named_once_for_all_jobs(
    fake: FakeCluster, work: Work, caplog: pytest.LogCaptureFixture
) -> None:
    handles = fake.all_submitted("abc")
    fake.set_state("PENDING", "AssocGrpCPUMinutesLimit")
    fake.clock.go_on(5)
    assert caplog.text.count("AssocGrpCPUMinutesLimit): your account's time") == 1
    assert " and 2 more: PENDING" in caplog.text
    assert [handle.outcome for handle in handles] == [None] * 3


def test_a_refusal_that_passes_is_tried_again_under_another_name(fake: FakeCluster, work: Work) -> None:
    fake.misbehave("sbatch", "refuse-then-take")
    manager = fake.manager()
    handle = fake.submitted(work.order("a"), manager)
    assert len({call.partition("--job-name=")[2].split()[0] for call in fake.calls("sbatch")}) == 2
    assert manager.store.claim_path(f"{handle.task}.1").read_text() == "the driver", "a late first job does nothing"


def test_a_submission_without_an_answer_is_not_repeated_while_slurm_is_silent(fake: FakeCluster, work: Work) -> None:
    fake.misbehave("sbatch", "take-then-hang")
    fake.misbehave("squeue", "fail squeue: error: Unable to contact slurm controller")
    handle = fake.manager().submit(work.order("a"))
    fake.clock.go_on(PATIENCE.settle + 1.5)
    assert len(fake.calls("sbatch")) == 1
    fake.behave("squeue")
    fake.eventually(has_id(handle))
    assert len(fake.calls("sbatch")) == 1


def test_a_job_that_appears_after_its_name_was_given_up_is_never_confused_with_the_next(
    fake: FakeCluster, work: Work
) -> None:
    fake.misbehave("sbatch", "take-then-hang")
    fake.forget_jobs()
    manager = fake.manager()
    handle = manager.submit(work.order("a"))
    fake.eventually(lambda: len(fake.calls("sbatch")) == 2)
    (fake.folder / "squeue.says").unlink()
    fake.eventually(lambda: handle.progress.job_id == "2")
    assert manager.store.claim_path(f"{handle.task}.1").read_text() == "the driver"


def test_a_job_that_started_although_sbatch_failed_is_known_by_its_claim(fake: FakeCluster, work: Work) -> None:
    fake.misbehave("sbatch", "take-then-hang")
    fake.forget_jobs()
    manager = fake.manager()
    handle = manager.submit(work.order("a"))
    fake.eventually(lambda: len(fake.calls("sbatch")) == 1)
    manager.store.claim_path(f"{handle.task}.1").write_text("1\n")
    fake.eventually(has_id(handle))
    fake.finish("a", "1")
    assert isinstance(fake.outcome(handle, 5), Success)
    assert len(fake.calls("sbatch")) == 1


def test_an_unclear_refusal_is_tried_again_for_a_while_and_then_told_in_slurms_words(
    fake: FakeCluster, work: Work
) -> None:
    fake.misbehave("sbatch", "fail sbatch: error: this site wishes you a good day")
    outcome = fake.outcome(fake.manager().submit(work.order("a")), 20)
    assert isinstance(outcome, Failure) and outcome.cause is Cause.REFUSED
    assert "wishes you a good day" in outcome.message
    assert len(fake.calls("sbatch")) > 1


def test_a_refusal_is_logged_once_until_its_words_change_and_so_is_its_end(
    fake: FakeCluster, work: Work, caplog: pytest.LogCaptureFixture
) -> None:
    down, full = "Unable to contact slurm controller (connect failure)", "Slurm temporarily unable to accept job"
    fake.misbehave("sbatch", f"fail sbatch: error: {down}")
    handle = fake.manager().submit(work.order("a"))
    fake.eventually(lambda: len(fake.calls("sbatch")) > 3)
    fake.misbehave("sbatch", f"fail sbatch: error: {full}")
    calls = len(fake.calls("sbatch"))
    fake.eventually(lambda: len(fake.calls("sbatch")) > calls + 2)
    fake.behave("sbatch")
    fake.eventually(has_id(handle))
    # The id is known before the message about it is written.
    fake.eventually(lambda: "takes jobs again" in caplog.text)
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [sum(text in line for line in warned) for text in (down, full, "takes jobs again")] == [1, 1, 1], warned


def test_the_jobs_are_those_of_the_user_who_runs_the_driver_whatever_the_environment_says(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, "somebody-else")
    commands = Commands(slurm, None, {"PATH": f"{fake.folder / 'bin'}:{os.environ['PATH']}"})
    commands.jobs()
    commands.remembered(["1"], [])
    commands.cancel(["1"])
    for command in ("squeue", "sacct", "scancel"):
        assert f"--user={os.getuid()}" in fake.calls(command)[0].split()


def test_an_output_that_becomes_visible_late_is_waited_for_and_then_missed(fake: FakeCluster, work: Work) -> None:
    manager = fake.manager()
    finished: list[float] = []
    late = manager.submit(
        work.order("a", is_complete=lambda: fake.clock.now() > finished[0] + PATIENCE.latency_wait / 2)
    )
    never = manager.submit(work.order("b", is_complete=lambda: False))
    fake.eventually(lambda: has_id(late)() and has_id(never)())
    finished.append(fake.clock.now())
    fake.finish("a", "1")
    fake.finish("b", "2")
    assert isinstance(fake.outcome(late, 5), Success) and fake.clock.now() > finished[0] + PATIENCE.latency_wait / 2
    assert fake.failure(never, 10).cause is Cause.NO_OUTPUT


def test_a_result_of_another_job_is_not_taken(fake: FakeCluster, work: Work) -> None:
    handle = fake.submitted(work.order("a"))
    fake.finish("a", "99")
    assert fake.outcome(handle, 0.5) is None


def test_what_a_job_wrote_before_it_was_requeued_is_void(fake: FakeCluster, work: Work) -> None:
    handle = fake.submitted(work.order("a"))
    fake.set_state("RUNNING")
    fake.finish("a", "1", outcome="error", exception="RuntimeError: stopped by signal 15", told_to_end=True)
    fake.clock.go_on(0.5)
    fake.set_state("PENDING", "BeginTime")
    assert fake.outcome(handle, PATIENCE.latency_wait + 1) is None
    fake.set_state("RUNNING")
    fake.finish("a", "1")
    assert isinstance(fake.outcome(handle, 5), Success)


@pytest.mark.parametrize("held", ["BeginTime", "JobHoldMaxRequeue"])
def test_a_job_that_failed_for_good_is_not_left_to_a_queue_that_starts_it_again(
    fake: FakeCluster, work: Work, held: str
) -> None:
    manager = fake.manager(retries=3)
    handle = fake.submitted(work.order("a"), manager)
    fake.set_state("RUNNING")
    fake.finish("a", "1", outcome="error", exception="ValueError: no")
    fake.clock.go_on(0.5)
    fake.set_state("PENDING", held)
    failure = fake.failure(handle, 5)
    assert failure.cause is Cause.EXCEPTION and "ValueError: no" in failure.message
    fake.eventually(lambda: fake.calls("scancel"))
    assert fake.calls("scancel")[0].split()[-1] == "1" and len(fake.calls("sbatch")) == 1
    assert manager.store.claim_path(f"{handle.task}.1").read_text() == "the driver"


def test_a_job_that_failed_before_it_was_seen_to_run_was_not_queued_again(fake: FakeCluster, work: Work) -> None:
    handle = fake.submitted(work.order("a"), retries=3, command_seconds=2.0)
    fake.eventually(lambda: len(fake.calls("squeue")) > 1)
    fake.misbehave("squeue", "hang")  # its last answer says that the job pends
    fake.finish("a", "1", outcome="error", exception="ValueError: no")
    fake.clock.go_on(5)
    fake.behave("squeue")
    fake.set_state("FAILED")
    assert fake.failure(handle, 5).cause is Cause.EXCEPTION
    fake.clock.go_on(5)
    assert not fake.calls("scancel")


def test_a_colleagues_job_that_a_listing_of_ones_own_lacks_is_asked_for_by_id(fake: FakeCluster, work: Work) -> None:
    manager = fake.manager(retries=3)
    handle = fake.submitted(work.order("a"), manager)
    (fake.folder / "squeue.by-id").write_text((fake.folder / "jobs").read_text())
    fake.forget_jobs()
    assert fake.outcome(handle, 2 * PATIENCE.absent_after) is None and handle.progress.state is JobState.QUEUED
    assert any("--jobs=1" in call and "--user" not in call for call in fake.calls("squeue"))
    assert cancel_jobs(manager.store, manager.commands) == 1, "a job that is hidden is not gone"
    (fake.folder / "squeue.by-id").write_text("")
    fake.finish("a", "1")
    assert isinstance(fake.outcome(handle, 5), Success) and len(fake.calls("sbatch")) == 1


def test_the_job_of_one_order_is_cancelled_alone_and_not_submitted_again(fake: FakeCluster, work: Work) -> None:
    manager = fake.manager(retries=3)
    first, second = (manager.submit(work.order(name)) for name in "ab")
    fake.eventually(has_id(first))
    fake.eventually(has_id(second))
    manager.cancel(first.order.id)
    assert fake.failure(first, 10).cause is Cause.DRIVER_CANCELLED
    assert len(fake.calls("scancel")) == 1 and len(fake.calls("sbatch")) == 2
    assert second.outcome is None
    # Given again, it is a new order.
    again = manager.submit(work.order("a"))
    fake.eventually(has_id(again))


def test_an_order_that_is_given_again_while_its_job_is_being_cancelled_gets_a_new_job(
    fake: FakeCluster, work: Work
) -> None:
    manager = fake.manager()
    first = fake.submitted(work.order("a"), manager)
    manager.cancel(first.order.id)
    with ThreadPoolExecutor() as pool:
        again = pool.submit(manager.submit, work.order("a"))
        fake.eventually(again.done)
    assert first.outcome is not None and again.result() is not first
    fake.eventually(has_id(again.result()))
    assert len(fake.calls("sbatch")) == 2


def test_a_job_that_is_to_be_cancelled_as_the_driver_ends_is_not_left_to_the_next(
    fake: FakeCluster, work: Work
) -> None:
    manager = fake.manager()
    fake.eventually(has_id(handle := manager.submit(work.order("a"))))
    manager._unwanted.add(handle.order.id)  # as `cancel` does, in the cycle in which the driver ends
    manager.detach()
    assert len(fake.calls("scancel")) == 1


def test_a_request_that_comes_after_the_end_has_its_outcome_at_once(fake: FakeCluster, work: Work) -> None:
    manager = fake.manager()
    before = fake.submitted(work.order("a"), manager)
    manager.cancel_all()
    after = manager.submit(work.order("b"))
    outcomes = [handle.wait(0) for handle in (before, after)]
    assert all(isinstance(outcome, Failure) and outcome.cause is Cause.DRIVER_CANCELLED for outcome in outcomes)
    assert [outcome.attempts for outcome in outcomes if outcome] == [1, 0]


def test_cancelling_also_ends_the_jobs_of_an_earlier_driver_that_this_one_was_not_asked_for(
    fake: FakeCluster, work: Work, caplog: pytest.LogCaptureFixture
) -> None:
    fake.left_behind(*"ab")
    second = fake.manager()
    handle = second.submit(work.order("b"))
    fake.eventually(lambda: handle.progress.message.startswith("PENDING"))
    assert second.cancel_all() == 2
    assert {line.split("|")[1] for line in (fake.folder / "jobs").read_text().splitlines()} == {"CANCELLED"}
    assert "cancelled 2 job(s)" in caplog.text
    assert fake.failure(handle, 1).message.startswith("rule (name=b) failed: ")


def test_no_thread_is_made_for_a_request_and_the_same_request_is_the_same_handle(fake: FakeCluster, work: Work) -> None:
    manager = fake.manager(max_jobs=1)
    before = threading.active_count()
    handles = {id(manager.submit(work.order(f"a{i}"))) for i in range(100)}
    assert id(manager.submit(work.order("a0"))) in handles
    assert threading.active_count() == before
    fake.eventually(lambda: len(fake.calls("sbatch")) == 1)
    fake.eventually(lambda: len(manager._ready) == 99)


def test_a_slow_rate_of_submission_is_kept_and_does_not_keep_the_driver_busy(fake: FakeCluster, work: Work) -> None:
    fake.clock = RunningClock()
    manager = fake.manager()
    manager.commands.submit_rate = RateLimit(2.0)
    used, began = time.process_time(), fake.clock.now()
    handles = [manager.submit(work.order(f"a{i}")) for i in range(4)]
    fake.eventually(lambda: all(has_id(handle)() for handle in handles))
    elapsed = fake.clock.now() - began
    assert elapsed >= 1.5
    assert time.process_time() - used < 0.5 * elapsed


def test_a_job_of_seconds_is_over_before_the_next_regular_look_at_results(fake: FakeCluster, work: Work) -> None:
    handle = fake.submitted(work.order("a"), fake.manager(poll_seconds=100.0, result_seconds=60.0))
    fake.clock.go_on(5)
    fake.finish("a", "1")
    assert isinstance(fake.outcome(handle, 3), Success)


def test_an_error_in_the_listener_disturbs_nobody(fake: FakeCluster, work: Work) -> None:
    def listener(_: object) -> None:
        raise RuntimeError("listener")

    handle = fake.manager().submit(work.order("a", on_progress=listener))
    fake.eventually(has_id(handle))
    fake.finish("a", "1")
    assert isinstance(fake.outcome(handle, 5), Success)


def test_an_error_about_one_job_ends_that_one_alone(fake: FakeCluster, work: Work) -> None:
    def complete() -> bool:
        raise ValueError("no such store")

    manager = fake.manager()
    bad, good = manager.submit(work.order("a", is_complete=complete)), manager.submit(work.order("b"))
    fake.eventually(lambda: has_id(bad)() and has_id(good)())
    fake.finish("a", "1")
    fake.finish("b", "2")
    assert "no such store" in fake.failure(bad, 5).message
    assert isinstance(fake.outcome(good, 5), Success)


def test_a_driver_is_asked_to_stop_and_seen_to_take_it(fake: FakeCluster, work: Work) -> None:
    fake.clock = RunningClock()
    manager = fake.manager()
    handle = fake.submitted(work.order("a"), manager)
    assert request_stop(manager.store.folder, "detach")
    assert fake.failure(handle, 5).cause is Cause.DETACHED


@pytest.mark.parametrize("file", ["control", "driver.lock"])
def test_files_of_the_driver_that_cannot_be_read_for_a_while_do_not_end_it(
    fake: FakeCluster, work: Work, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, file: str
) -> None:
    monkeypatch.setattr("espo_luigi.jobs.lock.REFRESH_EVERY_SECONDS", 0.1)
    manager = fake.manager()
    handle = fake.submitted(work.order("a"), manager)
    path = manager.store.folder / file
    while not path.is_dir():  # the driver may write its lock between the two
        path.unlink(missing_ok=True)
        with suppress(FileExistsError):
            path.mkdir()
    fake.eventually(lambda: "trouble with the files" in caplog.text)
    path.rmdir()
    fake.finish("a", "1")
    assert isinstance(fake.outcome(handle, 5), Success)
    assert manager.stopping is None
    fake.eventually(lambda: DriverLock(manager.store.folder).holder() is not None)


def test_a_rate_is_kept_by_all_threads_together() -> None:
    clock = FakeClock()
    began, limit = clock.now(), RateLimit(20.0, clock)
    threads = [threading.Thread(target=limit.wait) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clock.now() - began == pytest.approx(5 / 20.0)


def test_a_job_that_is_held_is_named_once_with_how_it_goes_on(
    fake: FakeCluster, work: Work, caplog: pytest.LogCaptureFixture
) -> None:
    handle = fake.submitted(work.order("a"))
    fake.set_state("PENDING", "JobHeldUser")
    fake.clock.go_on(5)
    assert handle.outcome is None
    assert caplog.text.count("job 1: PENDING (JobHeldUser): it is held by you") == 1


def test_a_job_cancelled_as_hanging_that_never_goes_is_given_up_with_its_claim(fake: FakeCluster, work: Work) -> None:
    """Its node is dead: Slurm calls it COMPLETING, Grid Engine ``dr``, for ever."""
    manager = fake.manager(poll_seconds=5.0, result_seconds=5.0, retries=1, stall_timeout_seconds=2.0)
    handle = fake.submitted(work.order("a"), manager)
    fake.set_state("RUNNING")
    fake.misbehave("scancel", "fail scancel: error: Unable to contact slurm controller")
    fake.eventually(lambda: fake.calls("scancel"))
    fake.set_state("COMPLETING")
    fake.eventually(lambda: handle.progress.job_id == "2", PATIENCE.absent_after + 65)
    assert manager.store.claim_path(f"{handle.task}.1").read_text() == "the driver"
    record = manager.store.load(handle.task)
    assert record is not None and record.history[0]["ended"] == Cause.STALLED.value
