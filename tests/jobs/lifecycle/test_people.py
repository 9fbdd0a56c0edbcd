"""The job manager and people: a cancellation cut short, a driver that was stopped, a configuration that was edited."""

from __future__ import annotations

import json
import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from fake_clock import FakeClock
from fake_cluster import PATIENCE, FakeCluster, has_id
from forced import Forced
from job_work import Work
from throwaway_daemons import eventually

from espo_luigi.errors import Failure, JobError
from espo_luigi.files import write_atomically
from espo_luigi.jobs.causes import Cause
from espo_luigi.jobs.engine import BatchEngine
from espo_luigi.jobs.lifecycle.control import cancel_jobs
from espo_luigi.jobs.lifecycle.records import Record, RecordStore
from espo_luigi.jobs.lifecycle.state import Success
from espo_luigi.jobs.local import Forks, LocalEngine
from espo_luigi.jobs.lock import DriverLock, HeldLocks, SecondDriverError
from espo_luigi.jobs.order import JobFiles, JobOrder, JobState
from espo_luigi.jobs.resources import Resources
from espo_luigi.jobs.retry import persistently
from espo_luigi.jobs.schedulers import slurm
from espo_luigi.jobs.schedulers.base import Phase, Row
from espo_luigi.jobs.schedulers.commands import Answer, Commands
from espo_luigi.jobs.settings import BatchSettings


@pytest.mark.parametrize("forgotten", [False, True], ids=["in squeue", "forgotten by Slurm"])
def test_a_job_whose_cancellation_was_cut_short_is_submitted_again_without_charge(
    fake: FakeCluster, work: Work, forgotten: bool
) -> None:
    first = fake.manager()
    fake.eventually(has_id(first.submit(work.order("a"))))
    fake.misbehave("scancel", "take-then-fail")
    assert first.cancel_all() == 0, "scancel did not say that it has"
    fake.behave("scancel")
    fake.behave("squeue")
    if forgotten:
        fake.forget_jobs()
    second = fake.manager()
    handle = second.submit(work.order("a"))
    seconds = PATIENCE.absent_after + PATIENCE.latency_wait + 5
    fake.eventually(lambda: len(fake.calls("sbatch")) == 2 or handle.outcome is not None, seconds)
    assert handle.outcome is None
    record = second.store.load(handle.task)
    assert record is not None
    assert (record.submission, record.attempt, record.uncharged) == (2, 1, 0)
    assert record.history[-1]["ended"] == "driver_cancelled"


def test_a_job_that_survived_its_cancellation_is_taken_over(fake: FakeCluster, work: Work) -> None:
    first = fake.manager()
    fake.eventually(has_id(first.submit(work.order("a"))))
    fake.misbehave("scancel", "fail scancel: error: Unable to contact slurm controller")
    first.cancel_all()
    fake.finish("a", "1")
    outcome = fake.outcome(fake.manager().submit(work.order("a")), 10)
    assert isinstance(outcome, Success)
    assert len(fake.calls("sbatch")) == 1


@pytest.mark.parametrize(
    ("state", "name"),
    [("RUNNING", "urgent_for_paper"), ("PENDING", "climate_{}")],
    ids=["by a person", "by the site"],
)
def test_a_renamed_job_is_followed_and_cancelled_by_its_id(
    fake: FakeCluster, work: Work, state: str, name: str
) -> None:
    handle, other = fake.all_submitted("ab", manager := fake.manager())
    fake.rename(name)
    fake.set_state(state)
    fake.eventually(lambda: handle.progress.message.startswith(f"{state}, job" if state == "PENDING" else "job"))
    fake.clock.go_on(PATIENCE.absent_after + PATIENCE.settle + 1)
    assert (handle.outcome, len(fake.calls("sbatch"))) == (None, 2)
    fake.finish("a", handle.progress.job_id or "")
    assert isinstance(fake.outcome(handle, 5), Success)
    assert manager.cancel_all() == 1, "of the task without a result"
    assert [call.split()[-1] for call in fake.calls("scancel")] == [other.progress.job_id]


def test_a_job_of_another_run_that_got_the_same_id_is_not_followed(fake: FakeCluster, work: Work) -> None:
    handle = fake.submitted(work.order("a"), retries=1)
    fake.rename("another.rule.0123456789ab.1")
    fake.eventually(lambda: len(fake.calls("sbatch")) == 2)
    fake.eventually(lambda: handle.progress.job_id == "2")
    assert fake.calls("scancel") == []


def test_a_foreign_job_that_got_the_id_of_an_old_record_is_neither_followed_nor_cancelled(
    fake: FakeCluster, work: Work
) -> None:
    first = fake.left_behind("a")
    fake.rename("thesis")
    assert cancel_jobs(first.store, first.commands) == 0
    assert fake.calls("scancel") == []


@pytest.mark.parametrize("claimed", [False, True])
def test_a_later_driver_follows_a_renamed_job_only_if_it_has_claimed_its_work(
    fake: FakeCluster, work: Work, claimed: bool
) -> None:
    first = fake.left_behind("a")
    if claimed:
        (record,) = first.store.all()
        first.store.claim_path(record.name).write_text(f"{record.job_id}\n")
    fake.rename("thesis")
    second = fake.manager(retries=1)
    second.submit(work.order("a"))
    fake.clock.go_on(PATIENCE.absent_after + PATIENCE.settle + 1)
    fake.eventually(lambda: len(fake.calls("sbatch")) == (1 if claimed else 2))
    second.cancel_all()
    assert [call.split()[-1] for call in fake.calls("scancel")] == ["1" if claimed else "2"]


def test_a_wrong_id_in_the_answer_of_sbatch_is_corrected_by_the_name(fake: FakeCluster, work: Work) -> None:
    (fake.folder / "jobs").write_text("1|RUNNING|n1|None|thesis\n")
    fake.misbehave("sbatch", "say 1")
    manager = fake.manager()
    handle = manager.submit(work.order("a"))
    fake.eventually(lambda: handle.progress.job_id == "2")
    assert manager.cancel_all() == 1
    assert [call.split()[-1] for call in fake.calls("scancel")] == ["2"]


class HalfDeaf:
    """Commands of a scheduler whose first listing holds one job of two, and whose first cancellation fails."""

    settings = BatchSettings()

    def __init__(self, store: RecordStore) -> None:
        self.store = store
        self.listed = [["a"], ["a", "b"]]
        self.endings: list[list[str]] = []

    def jobs(self, job_ids: object = ()) -> list[Row]:
        names = self.listed.pop(0)
        return [Row(str(ord(name)), f"{name}.1", "RUNNING", Phase.RUNNING) for name in names]

    def cancel(self, job_ids: Iterable[str]) -> bool:
        loaded = [self.store.load(chr(int(job_id))) for job_id in job_ids]
        self.endings.append([record.ending for record in loaded if record is not None])
        return not self.listed


def test_every_try_of_a_cancellation_is_on_disk_before_it_is_made(tmp_path: Path) -> None:
    store = RecordStore(tmp_path)
    store.create_folders()
    records = [Record(name, "rule", {}, 1, 1, "log", state=JobState.QUEUED, job_id=str(ord(name))) for name in "ab"]
    commands = HalfDeaf(store)
    assert cancel_jobs(store, cast("Commands", commands), records) == 2
    assert commands.endings == [["driver_cancelled"], ["driver_cancelled"] * 2]


def taken_over(folder: Path, name: str = "driver.lock") -> None:
    """Another driver, on another host, has the lock."""
    (folder / name).write_text(json.dumps({"host": "another", "pid": 1, "started": "1"}))


def sleep_through(fake: FakeCluster, seconds: float) -> None:
    """The driver is stopped for so long: its time goes on without it."""
    assert isinstance(fake.clock, FakeClock)
    fake.clock.sleep(seconds)


def test_a_driver_that_was_stopped_submits_nothing_after_another_took_over(fake: FakeCluster, work: Work) -> None:
    manager = fake.manager(patience=replace(PATIENCE, first_refusal=50))
    fake.misbehave("sbatch", "fail sbatch: error: Batch job submission failed: Socket timed out")
    handles = [manager.submit(work.order(name)) for name in "abc"]
    fake.eventually(lambda: manager.submitter.held(fake.clock.now()))
    fake.clock.go_on(1)
    fake.behave("sbatch")
    taken_over(manager.store.folder)
    sleep_through(fake, 1000)
    fake.eventually(lambda: all(handle.outcome for handle in handles))
    assert len(fake.calls("sbatch")) == 1
    assert all(isinstance(handle.outcome, Failure) and handle.outcome.cause is Cause.DETACHED for handle in handles)


def test_a_driver_that_was_stopped_and_is_then_interrupted_cancels_nothing_of_its_successor(
    fake: FakeCluster, work: Work
) -> None:
    manager = fake.manager()
    fake.eventually(has_id(manager.submit(work.order("a"))))
    taken_over(manager.store.folder)
    manager.stopping = "cancel"
    sleep_through(fake, 1000)
    assert manager.cancel_all() == 0
    assert not fake.calls("scancel")


def test_a_manager_that_goes_on_after_nobody_waited_for_it_leaves_jobs_and_locks_to_its_successor(
    fake: FakeCluster, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = fake.manager(patience=replace(PATIENCE, ending=0.05))
    hangs, goes_on = threading.Event(), threading.Event()
    fake.eventually(has_id(manager.submit(work.order("a"))))
    monkeypatch.setattr(manager._watcher, "look", lambda _: (hangs.set(), goes_on.wait(30))[2:])
    fake.eventually(hangs.is_set)
    assert manager.cancel_all() == 0
    # As `close_engines` does, and the next run of this process.
    manager._locks.release()
    manager._locks.hold(successor := DriverLock(manager.store.folder))
    goes_on.set()
    manager._thread.join(30)
    assert not manager._thread.is_alive() and not fake.calls("scancel")
    assert successor.path.exists()
    manager._locks.release()


def test_a_driver_whose_other_folders_were_taken_submits_nothing(fake: FakeCluster, work: Work, tmp_path: Path) -> None:
    manager = fake.manager()
    manager._locks.hold(DriverLock(tmp_path))
    fake.eventually(has_id(manager.submit(work.order("a"))))
    taken_over(tmp_path)
    handle = manager.submit(work.order("b"))
    sleep_through(fake, 1000)
    fake.eventually(lambda: handle.outcome)
    assert len(fake.calls("sbatch")) == 1


def test_locks_are_looked_at_after_an_absence_and_not_each_time(tmp_path: Path) -> None:
    lost: list[SecondDriverError] = []
    held = HeldLocks(lost.append, clock := FakeClock())
    held.hold(DriverLock(tmp_path))
    taken_over(tmp_path)
    assert held.still_held(), "it was not away"
    clock.sleep(501)
    assert not held.still_held()
    assert not held.still_held()
    assert [str(tmp_path / "driver.lock") in str(error) for error in lost] == [True]
    held.release()
    held.hold(DriverLock(tmp_path / "elsewhere"))
    assert held.still_held()
    held.release()


def test_the_local_engine_starts_nothing_in_folders_that_are_another_drivers_now(tmp_path: Path) -> None:
    order = JobOrder("id", "Rule", "m", "Rule", {}, {}, Resources(), JobFiles.of(tmp_path, "Rule", {"n": "1"}))
    held = HeldLocks(lambda _: None, clock := FakeClock())
    held.hold(DriverLock(tmp_path))
    engine = LocalEngine(Forks(("false",), 2, 2**34), held)
    taken_over(tmp_path)
    clock.sleep(31)
    with pytest.raises(JobError, match="another driver has taken over"):
        engine.run(order)
    assert not order.files.order.exists()


def test_the_local_engine_waits_once_for_a_full_disk_and_then_says_which(
    tmpfs: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each task of a run would wait in turn: for ever, in a run of thousands."""
    disk = tmpfs("disk", "size=64k")
    with suppress(OSError), (disk / "full").open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    orders = [
        JobOrder("id", "Rule", "m", "Rule", {"n": n}, {}, Resources(), JobFiles.of(disk, "Rule", {"n": n}))
        for n in "123"
    ]
    engine, waited = LocalEngine(Forks(("false",), 2, 2**34)), list[list[float]]()

    def at_once(action: Callable[[], object], seconds: float) -> object:
        return persistently(action, seconds, waited[-1].append)

    monkeypatch.setattr("espo_luigi.jobs.local.persistently", at_once)
    monkeypatch.setattr("espo_luigi.jobs.local.DRIVERS_PATIENCE_SECONDS", 2.0)
    for order in orders:
        waited.append([])
        with pytest.raises(
            JobError, match=r"not started.*No space left on device: '.*disk/.*; see to that disk .space"
        ):
            engine.run(order)
    assert waited == [[1.0], [], []]
    (disk / "full").unlink()
    with pytest.raises(JobError, match=r"not started: the process that starts the local .* has ended \(exit code 1\)"):
        engine.run(orders[0])


def finished_under(fake: FakeCluster, work: Work, outcome: str, **more: Any) -> list[str]:
    """An earlier driver's job ended so; return what the next driver, who takes it over, wrote of orders."""
    fake.left_behind("a")
    fake.finish("a", "1", outcome=outcome, exception="ConfigurationChangedError: A, B")
    fake.set_state("COMPLETED" if outcome == "success" else "FAILED")
    orders: list[str] = []
    second = fake.manager()
    handle = second.submit(work.order("a", rewritten=lambda: orders.append("B"), **more))
    fake.eventually(lambda: len(fake.calls("sbatch")) == 2 or handle.outcome is not None)
    assert handle.outcome is None, handle.outcome
    record = second.store.load(handle.task)
    assert record is not None and (record.submission, record.attempt) == (2, 1)
    return orders


def test_a_job_that_refused_its_earlier_drivers_configuration_is_ordered_anew(fake: FakeCluster, work: Work) -> None:
    assert finished_under(fake, work, "configuration") == ["B"]


def test_a_success_for_other_outputs_is_not_believed_and_the_work_is_ordered_anew(
    fake: FakeCluster, work: Work
) -> None:
    assert finished_under(fake, work, "success", is_complete=lambda: len(fake.calls("sbatch")) == 2) == ["B"]


def test_a_job_of_this_driver_that_finds_another_configuration_is_not_retried(fake: FakeCluster, work: Work) -> None:
    handle = fake.submitted(work.order("a"), retries=3)
    fake.finish("a", "1", outcome="configuration", exception="ConfigurationChangedError: was A, is B")
    fake.set_state("FAILED")
    outcome = fake.outcome(handle, 20)
    assert isinstance(outcome, Failure) and outcome.cause is Cause.CONFIGURATION
    assert "was A, is B" in outcome.message
    assert len(fake.calls("sbatch")) == 1


def test_schedulers_are_asked_in_utc_and_jobs_are_submitted_in_the_users_zone(
    fake: FakeCluster, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {"PATH": f"{fake.folder / 'bin'}:{os.environ['PATH']}", "TZ": "America/Toronto"}
    manager = work.manager(environ, clock=fake.clock)
    manager.start()
    fake.managers.append(manager)
    fake.eventually(has_id(manager.submit(work.order("a"))))
    fake.forget_jobs()
    fake.eventually(lambda: fake.calls("sacct"))
    manager.commands.cancel(["1"])
    zones = dict(line.split() for line in (fake.folder / "zones").read_text().splitlines())
    assert zones == {"sbatch": "America/Toronto", "squeue": "UTC", "sacct": "UTC", "scancel": "UTC"}


def test_the_salt_survives_a_crash_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forced, state = Forced(monkeypatch), tmp_path / "work" / "scheduler"
    RecordStore(state).create_folders()
    salt = next(path for path in state.iterdir() if path.name.endswith("salt"))
    assert forced.early[salt] == [] and salt in forced.kept and state.parent in forced.folders


def test_a_job_s_record_survives_a_crash_of_the_machine_before_the_job_is_submitted(
    fake: FakeCluster, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    forced, submit = Forced(monkeypatch), Commands.submit
    at_submission = []

    def watched(commands: Commands, argv: tuple[str, ...]) -> Answer:
        (record,) = (path for path in forced.early if path.suffix == ".json" and path.parent.name == "records")
        at_submission.append((forced.early[record], record in forced.kept, json.loads(record.read_text())["state"]))
        return submit(commands, argv)

    monkeypatch.setattr(Commands, "submit", watched)
    fake.submitted(work.order("a"))
    assert at_submission == [([], True, JobState.SUBMITTING.value)]


@pytest.fixture(params=["0o022", "0o002", "0o077"])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(int(request.param, 8))
    yield int(request.param, 8)
    os.umask(before)


def test_small_files_are_the_users_own_and_a_groups_where_the_folder_is(tmp_path: Path, umask: int) -> None:
    own, shared = tmp_path / "own", tmp_path / "shared"
    own.mkdir(mode=0o755)
    shared.mkdir()
    shared.chmod(0o2775)
    for folder in (own, shared / "below"):
        folder.mkdir(exist_ok=True)
        write_atomically(folder / "order.json", "{}")
    modes = [stat.S_IMODE((folder / "order.json").stat().st_mode) for folder in (own, shared / "below")]
    assert modes == [0o600, 0o660 & ~umask]


def test_a_lock_says_who_holds_it_to_everybody_who_shares_the_folder(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        lock = DriverLock(tmp_path)
        lock.acquire()
        assert stat.S_IMODE(lock.path.stat().st_mode) == 0o644
    finally:
        os.umask(before)


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user, which root alone can")
def test_a_colleague_of_the_group_takes_over_where_the_folder_is_the_groups(tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents):
        if not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o011)
    shared = tmp_path / "project"
    shared.mkdir()
    os.chown(shared, -1, 4242)
    shared.chmod(0o2775)
    before = os.umask(0o002)
    try:
        store = RecordStore(shared / "scheduler")
        store.create_folders()
        record = Record("t", "rule", {}, memory_bytes=1, time_minutes=1, log_pattern="")
        store.save(record)
        assert _as_user(4243, 4242, store, record) == 0
        assert _as_user(4244, 4245, store, record) == 13, "somebody outside of the group"
    finally:
        os.umask(before)
    assert RecordStore(shared / "scheduler").load("t").job_id == "7"  # type: ignore[union-attr]


def _as_user(uid: int, gid: int, store: RecordStore, record: Record) -> int:
    """Read and write the record as that user; return 0 or the error's number."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(gid)
            os.setuid(uid)
            assert store.load("t") == record
            store.save(Record("t", "rule", {}, memory_bytes=1, time_minutes=1, log_pattern="", job_id="7"))
            code = 0 if len(store.salt) == 16 else 2
        except OSError as error:
            code = error.errno or 3
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_run_that_is_cancelled_when_its_folder_is_lost_ends_at_once(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", f"{fake.folder / 'bin'}:{os.environ['PATH']}")

    def on_lost(_: SecondDriverError) -> None:
        eventually(lambda: engine._manager.stopping is not None)
        # As the driver does, in the thread that finds out that a folder is another's.
        engine.detach()

    settings = BatchSettings(tmp_path, log_dir=tmp_path, work=("true",))
    engine = BatchEngine(slurm, settings, HeldLocks(on_lost, clock := FakeClock()))
    taken_over(settings.state_dir)
    clock.sleep(31)
    stopping = threading.Thread(target=engine.stop, daemon=True)
    stopping.start()
    stopping.join(20)
    assert not stopping.is_alive() and not engine._manager._thread.is_alive()
