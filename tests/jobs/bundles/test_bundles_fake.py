"""Members of bundles against stand-ins of Slurm's commands: each runs exactly once, and fails alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_cluster import PATIENCE, FakeCluster, has_id
from job_work import Work

from espo_luigi.jobs.causes import Cause
from espo_luigi.jobs.lifecycle.manager import JobManager
from espo_luigi.jobs.lifecycle.records import Record, RecordStore
from espo_luigi.jobs.lifecycle.state import Handle, Success
from espo_luigi.jobs.order import JobOrder, JobState
from espo_luigi.jobs.resources import ARRAY, STEPS, PackOptions
from espo_luigi.jobs.schedulers.commands import Answer, Commands

NAMES = "abcd"


def asked(work: Work, name: str, kind: str = STEPS, **more: Any) -> JobOrder:
    return work.order(name, options=PackOptions(pack=str(len(NAMES)), bundle=kind), **more)


def submitted(fake: FakeCluster, manager: JobManager, kind: str = STEPS, **more: Any) -> list[Handle]:
    handles = [manager.submit(asked(fake.work, name, kind, **more)) for name in NAMES]
    fake.eventually(lambda: all(has_id(handle)() for handle in handles))
    return handles


def record_of(fake: FakeCluster, handle: Handle) -> Record:
    record = RecordStore(fake.work.state_dir).load(handle.task)
    assert record is not None
    return record


def claims(fake: FakeCluster) -> Path:
    return fake.work.state_dir / "claims"


def begin(fake: FakeCluster, *handles: Handle, job_id: str = "1") -> None:
    """The job runs, and these members have begun."""
    fake.set_state("RUNNING")
    for handle in handles:
        (claims(fake) / record_of(fake, handle).name).write_text(job_id)


def end(fake: FakeCluster, handle: Handle, code: int, job_id: str = "1") -> None:
    (claims(fake) / f"{record_of(fake, handle).name}.end").write_text(f"{job_id} {code}\n")


def all_succeed(fake: FakeCluster, handles: list[Handle]) -> bool:
    return all(isinstance(fake.outcome(handle, 10), Success) for handle in handles)


@pytest.mark.parametrize(
    ("words", "refused"), [("Invalid job array specification", [8, 4]), ("QOSMaxSubmitJobPerUserLimit", [8, 4, 4])]
)
def test_an_array_that_is_too_large_goes_in_smaller_ones(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch, words: str, refused: list[int]
) -> None:
    submit, sizes = Commands.submit, []

    def at_most_three(commands: Commands, argv: tuple[str, ...]) -> Answer:
        last = next((word for word in argv if word.startswith("--array=")), "0").rpartition("-")[2].partition("%")[0]
        sizes.append(int(last) + 1)
        return Answer(1, stderr=f"sbatch: error: {words}") if sizes[-1] > 3 else submit(commands, argv)

    monkeypatch.setattr(Commands, "submit", at_most_three)
    manager, options = fake.manager(), PackOptions(pack="8", bundle=ARRAY)
    handles = [manager.submit(fake.work.order(name, options=options)) for name in "abcdefgh"]
    fake.eventually(lambda: all(has_id(handle)() for handle in handles), 600)
    taken = [size for size in sizes if size <= 3]
    assert sizes[:3] == [8, 4, 2] and sum(taken) == 8
    assert [size for size in sizes if size > 3] in (refused, [*refused, 4]), "a limit on arrays is not tried again"


def test_tasks_that_are_ready_together_are_one_submission_and_each_has_its_own_outcome(fake: FakeCluster) -> None:
    handles = submitted(fake, fake.manager())
    begin(fake, *handles)
    fake.finish("a", "1")
    fake.finish("b", "1", outcome="error", exception="ValueError: no")
    fake.finish("c", "1")
    assert all_succeed(fake, [handles[0], handles[2]])
    assert (claims(fake) / f"{handles[0].task}.1").read_text() == "the driver", "the bundle may be requeued"
    end(fake, handles[1], 1)
    assert fake.failure(handles[1], 10).cause is Cause.EXCEPTION
    assert handles[3].outcome is None
    fake.finish("d", "1")
    assert all_succeed(fake, [handles[3]])
    assert len(fake.calls("sbatch")) == 1 and fake.calls("scancel") == []


def test_fewer_than_may_go_wait_for_a_moment_only_and_one_goes_as_a_job_of_its_own(fake: FakeCluster) -> None:
    manager = fake.manager()
    handles = [manager.submit(asked(fake.work, name)) for name in "ab"]
    fake.eventually(lambda: all(has_id(handle)() for handle in handles), PATIENCE.gather + 1.0)
    alone = manager.submit(asked(fake.work, "c"))
    fake.eventually(has_id(alone), PATIENCE.gather + 1.0)
    assert [record_of(fake, one).bundle != "" for one in (*handles, alone)] == [True, True, False]
    assert len(fake.calls("sbatch")) == 2


def test_a_bundle_is_one_of_the_jobs_that_may_be_in_flight_and_as_large_as_there_are_tasks(fake: FakeCluster) -> None:
    manager = fake.manager(max_jobs=2)
    handles = [manager.submit(asked(fake.work, name)) for name in "abcdefghij"]
    fake.eventually(lambda: all(has_id(handle)() for handle in handles[:8]))
    begin(fake, *handles[:4])
    fake.finish("a", "1")
    assert all_succeed(fake, handles[:1])
    fake.clock.go_on(PATIENCE.gather + 1.0)
    assert not any(has_id(handle)() for handle in handles[8:]), "the bundle of the task that ended is still one job"
    for name in "bcd":
        fake.finish(name, "1")
    assert all_succeed(fake, handles[1:4])
    fake.eventually(lambda: all(has_id(handle)() for handle in handles[8:]), PATIENCE.gather + 1.0)
    assert len(fake.calls("sbatch")) == 3


def test_elements_of_an_array_are_as_many_jobs(fake: FakeCluster) -> None:
    manager = fake.manager(max_jobs=3)
    handles = [manager.submit(asked(fake.work, name, ARRAY)) for name in NAMES]
    fake.eventually(lambda: all(has_id(handle)() for handle in handles[:3]))
    fake.clock.go_on(PATIENCE.gather + 1.0)
    assert not has_id(handles[3])()


def test_only_tasks_that_ask_for_the_same_go_together(fake: FakeCluster) -> None:
    manager = fake.manager()
    small = [manager.submit(asked(fake.work, name)) for name in "ab"]
    large = [manager.submit(asked(fake.work, name, memory_bytes=2**30)) for name in "cd"]
    fake.eventually(lambda: all(has_id(handle)() for handle in (*small, *large)))
    bundles = [record_of(fake, handle).bundle for handle in (*small, *large)]
    assert bundles[0] == bundles[1] != bundles[2] == bundles[3]


def test_a_member_that_ends_without_a_result_is_tried_again_while_the_others_go_on(fake: FakeCluster) -> None:
    handles = submitted(fake, fake.manager(retries=1))
    begin(fake, *handles)
    end(fake, handles[0], 137)
    fake.eventually(lambda: handles[0].progress.attempt == 2 and handles[0].progress.job_id == "2")
    assert record_of(fake, handles[0]).history[0]["ended"] == Cause.CRASHED.value
    assert [handle.progress.attempt for handle in handles[1:]] == [1, 1, 1]
    assert fake.calls("scancel") == []
    assert (claims(fake) / f"{handles[0].task}.1").read_text() == "the driver"


def test_what_an_earlier_start_of_a_requeued_bundle_said_counts_for_nothing(fake: FakeCluster) -> None:
    handles = submitted(fake, fake.manager())
    begin(fake, *handles)
    fake.set_state("PENDING", "BeginTime")
    fake.clock.go_on(1.0)
    end(fake, handles[0], 143)
    fake.clock.go_on(PATIENCE.latency_wait + 2.0)
    assert handles[0].progress.attempt == 1 and handles[0].outcome is None


def test_a_bundle_that_is_queued_again_after_a_member_failed_for_good_goes_on_for_the_others(fake: FakeCluster) -> None:
    handles = submitted(fake, fake.manager())
    begin(fake, *handles)
    fake.finish("b", "1", outcome="error", exception="ValueError: no")
    fake.eventually(lambda: handles[1].progress.message.startswith("job 1"))
    fake.set_state("PENDING", "BeginTime")
    assert fake.failure(handles[1], 10).cause is Cause.EXCEPTION
    fake.clock.go_on(1.0)
    assert fake.calls("scancel") == []


def test_a_member_that_hangs_is_told_by_its_claim_and_the_bundle_is_cancelled_once_nobody_needs_it(
    fake: FakeCluster,
) -> None:
    manager = fake.manager(stall_timeout_seconds=1.0)
    handles = [manager.submit(asked(fake.work, n)) for n in "ab"]
    fake.eventually(lambda: all(has_id(handle)() for handle in handles))
    begin(fake, handles[0])
    claim = claims(fake) / record_of(fake, handles[0]).name
    fake.eventually(lambda: claim.read_text() == "the driver")
    hanging = record_of(fake, handles[0])
    assert (hanging.submission, hanging.state, hanging.ending) == (1, JobState.QUEUED, Cause.STALLED)
    fake.clock.go_on(5.0)
    assert fake.calls("scancel") == [], "the other one waits for its turn, and has need of the job"
    assert fake.calls("sacct") == [], "the accounting has no end of a job that goes on"
    end(fake, handles[0], 137)
    assert fake.failure(handles[0], 5).cause is Cause.STALLED
    begin(fake, handles[1])
    fake.eventually(lambda: fake.calls("scancel"))
    assert fake.calls("scancel")[0].split()[-1] == "1"


def test_members_that_had_not_begun_when_time_ran_out_are_not_charged(fake: FakeCluster) -> None:
    handles = submitted(fake, fake.manager(retries=1, time_cap_minutes=100))
    begin(fake, *handles[:2])
    fake.clock.go_on(1.0)
    fake.set_state("TIMEOUT")
    fake.eventually(lambda: all(record_of(fake, handle).submission == 2 for handle in handles))
    records = [record_of(fake, handle) for handle in handles]
    assert [record.attempt for record in records] == [2, 2, 1, 1]
    assert [record.time_minutes for record in records] == [15, 15, 10, 10]


def test_a_bundle_that_is_refused_says_nothing_of_its_tasks_which_go_alone(fake: FakeCluster) -> None:
    fake.misbehave("sbatch", "fail sbatch: error: Batch job submission failed: Requested node configuration is invalid")
    manager = fake.manager()
    handles = [manager.submit(asked(fake.work, name)) for name in NAMES]
    fake.eventually(lambda: fake.calls("sbatch"))
    fake.behave("sbatch")
    fake.eventually(lambda: all(has_id(handle)() for handle in handles))
    assert len(fake.calls("sbatch")) in (5, 6) and not any(record_of(fake, one).bundle for one in handles)


@pytest.mark.parametrize(("kind", "how"), [(STEPS, "take-then-hang"), (ARRAY, "take-then-fail")])
def test_a_bundle_that_was_taken_although_sbatch_failed_is_found_by_its_name(
    fake: FakeCluster, kind: str, how: str
) -> None:
    fake.misbehave("sbatch", how)
    handles = submitted(fake, fake.manager(), kind)
    expected = [f"1_{place}" for place in range(4)] if kind == ARRAY else ["1"] * 4
    assert [handle.progress.job_id for handle in handles] == expected
    assert len(fake.calls("sbatch")) == 1


def test_a_bundle_that_never_arrived_is_given_up_member_by_member(fake: FakeCluster) -> None:
    fake.misbehave("sbatch", "refuse-then-take")
    handles = submitted(fake, fake.manager())
    assert len(fake.calls("sbatch")) == 2
    assert {(claims(fake) / f"{handle.task}.1").read_text() for handle in handles} == {"the driver"}


@pytest.mark.parametrize("kind", [STEPS, ARRAY])
def test_the_next_driver_takes_all_members_over_and_one_that_was_not_recorded_is_submitted(
    fake: FakeCluster, kind: str
) -> None:
    first = fake.manager()
    handles = submitted(fake, first, kind)
    first.detach()
    # As if that driver had been killed after sbatch, and before it wrote the id of one down.
    store = RecordStore(fake.work.state_dir)
    store.save(replace(record_of(fake, handles[1]), state=JobState.SUBMITTING, job_id=None))
    second = fake.manager()
    fake.set_state("RUNNING")
    again = [second.submit(asked(fake.work, name, kind)) for name in NAMES]
    for place, name in enumerate(NAMES):
        fake.finish(name, f"1_{place}" if kind == ARRAY else "1")
    assert all_succeed(fake, again)
    assert len(fake.calls("sbatch")) == 1
    fake.eventually(lambda: not any(claims(fake).iterdir()))


def test_a_driver_killed_before_sbatch_has_its_members_submitted_once(fake: FakeCluster) -> None:
    first = fake.manager()
    handles = submitted(fake, first)
    first.detach()
    (fake.folder / "jobs").write_text("")
    store = RecordStore(fake.work.state_dir)
    for handle in handles[:2]:
        store.save(replace(record_of(fake, handle), state=JobState.SUBMITTING, job_id=None))
    for handle in handles[2:]:
        store.save(replace(record_of(fake, handle), state=JobState.READY, job_id=None, bundle=""))
    again = submitted(fake, fake.manager())
    assert [record_of(fake, handle).submission for handle in again] == [2, 2, 1, 1]
    assert [(claims(fake) / f"{handle.task}.1").exists() for handle in again] == [True, True, False, False]


def test_one_members_files_that_cannot_be_written_keep_it_alone_waiting(fake: FakeCluster) -> None:
    obstacle = fake.work.folder / "results-of-a"
    obstacle.write_text("in the way")
    manager = fake.manager()
    order = asked(fake.work, "a")
    bad = replace(order, files=replace(order.files, result=obstacle / "a"))
    handles = [manager.submit(bad), *(manager.submit(asked(fake.work, name)) for name in "bcd")]
    fake.eventually(lambda: all(has_id(handle)() for handle in handles[1:]))
    assert len({record_of(fake, handle).bundle for handle in handles[1:]}) == 1
    assert not has_id(handles[0])()


def test_elements_of_an_array_end_and_are_cancelled_each_by_its_own_id(fake: FakeCluster) -> None:
    manager = fake.manager(stall_timeout_seconds=1.0)
    handles = submitted(fake, manager, ARRAY)
    fake.set_state("RUNNING")
    fake.finish("a", "1_0")
    fake.finish("b", "1_2")  # another's id
    assert all_succeed(fake, handles[:1])
    hanging = {f"1_{place}" for place in (1, 2, 3)}
    fake.eventually(lambda: {word for call in fake.calls("scancel") for word in call.split()[2:]} == hanging)


def test_a_cancelled_run_cancels_a_bundle_once_and_writes_down_all_members(fake: FakeCluster) -> None:
    manager = fake.manager()
    handles = submitted(fake, manager)
    begin(fake, *handles)
    manager.stopping = "cancel"
    fake.eventually(lambda: all(handle.outcome is not None for handle in handles))
    assert [call.split()[-1] for call in fake.calls("scancel")] == ["1"]
    records = [json.loads(path.read_text()) for path in (fake.work.state_dir / "records").iterdir()]
    assert {record["cause"] for record in records} == {Cause.DRIVER_CANCELLED.value}
