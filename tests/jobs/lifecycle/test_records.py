"""The records of submissions, and the locks of drivers."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from throwaway_daemons import eventually

from espo_luigi.errors import JobError, SubmissionError
from espo_luigi.files import process_room, read_object, this_version
from espo_luigi.jobs.lifecycle.control import request_stop, take_control
from espo_luigi.jobs.lifecycle.policy import Cause, next_record, pause_before
from espo_luigi.jobs.lifecycle.records import Record, RecordStore
from espo_luigi.jobs.lock import DriverLock, HeldLocks, SecondDriverError
from espo_luigi.jobs.order import LAYOUT
from espo_luigi.jobs.resources import GIB
from espo_luigi.jobs.settings import BatchSettings

RECORD = Record(
    "run.Train.0123", "Train", {"var": "pr"}, memory_bytes=4 * GIB, time_minutes=60, log_pattern="/l/%j.out"
)
LIMITS = BatchSettings(retries=3, memory_cap_bytes=8 * GIB, time_cap_minutes=100)


def test_a_record_comes_back_as_it_was_written(store: RecordStore) -> None:
    record = RECORD.next_submission("node", exclude=("n1",), job_id="7")
    store.save(record, durable=True)
    assert store.load(record.task) == record
    assert list(store.all()) == [record] and store.load("nothing") is None


@pytest.mark.parametrize(
    "damage",
    ["", "{", "[]", '{"task": "x"}', {"bundle": None}, {"submission": "x"}, {"exclude": "n1"}, {"wildcards": []}],
)
def test_a_damaged_record_is_an_error_and_not_an_absent_one(store: RecordStore, damage: str | dict[str, Any]) -> None:
    store.save(RECORD)
    path = store.folder / "records" / f"{RECORD.task}.json"
    is_typed = isinstance(damage, dict)
    path.write_text(json.dumps(json.loads(path.read_text()) | damage) if isinstance(damage, dict) else damage)
    with pytest.raises(JobError, match="of a wrong type" if is_typed else r"squeue.*run\.Train\.0123"):
        store.load(RECORD.task)


def test_a_reader_never_sees_half_a_record(store: RecordStore) -> None:
    code = (
        "import sys; from dataclasses import replace; from pathlib import Path\n"
        "from espo_luigi.jobs.lifecycle.records import Record, RecordStore\n"
        "store = RecordStore(Path(sys.argv[1])); record = store.load(sys.argv[2])\n"
        "while True: store.save(replace(record, attempt=record.attempt + 1, rule='x' * 200_000))"
    )
    store.save(RECORD)
    writer = subprocess.Popen([sys.executable, "-c", code, str(store.folder), RECORD.task])
    try:
        until = time.monotonic() + 10
        seen = set()
        while len(seen) < 2 and time.monotonic() < until:
            record = store.load(RECORD.task)
            assert record is not None
            seen.add(record.rule)
        for _ in range(50):
            assert store.load(RECORD.task) is not None
    finally:
        writer.kill()
        writer.wait()
    assert len(seen) == 2, "the writer has written"


def test_every_submission_has_a_name_of_its_own() -> None:
    second = RECORD.next_submission("node")
    assert [RECORD.name, second.name] == ["run.Train.0123.1", "run.Train.0123.2"]
    assert second.history == ({"name": RECORD.name, "job_id": None, "ended": "node", "bundle": ""},)


def test_the_salt_tells_two_work_folders_apart_and_stays(tmp_path: Path, store: RecordStore) -> None:
    other = RecordStore(tmp_path / "other")
    other.create_folders()
    first = store.salt
    store.create_folders()
    assert store.salt == first != other.salt


def test_a_folder_of_another_layout_is_refused_with_the_version_that_can_read_it(store: RecordStore) -> None:
    said = {"layout": LAYOUT + 1, "version": "9.9"}
    (store.folder / "layout.json").write_text(json.dumps(said))
    with pytest.raises(SubmissionError, match=r"finish or cancel the run with espo_luigi 9\.9, or choose another"):
        store.create_folders()
    (store.folder / "layout.json").write_text(json.dumps(said | {"layout": LAYOUT}))
    store.create_folders()
    assert f'"version": "{this_version()}"' in (store.folder / "layout.json").read_text()


@pytest.mark.parametrize("text", [None, "", "{}"])
def test_records_whose_layout_is_unknown_are_refused_and_an_empty_folder_is_not(
    store: RecordStore, text: str | None
) -> None:
    path = store.folder / "layout.json"
    path.unlink() if text is None else path.write_text(text)
    store.check_layout()
    store.save(RECORD)
    with pytest.raises(SubmissionError, match=r"an unknown version \(layout unknown\).* choose another workdir"):
        store.create_folders()


def test_a_name_without_a_started_job_can_be_closed(store: RecordStore) -> None:
    assert store.close_unclaimed("a")
    assert store.close_unclaimed("a")
    assert store.claim_owner("a") is None


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK])
def test_a_name_can_be_closed_once_where_there_are_no_hard_links(
    store: RecordStore, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def no_link(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", no_link)
    assert store.close_unclaimed("a") and store.close_unclaimed("a")
    store.claim_path("b").write_text("42\n")
    assert not store.close_unclaimed("b") and store.claim_owner("b") == "42"
    assert {path.name for path in store.claim_path("").iterdir()} == {"a", "b"}


def test_a_name_under_which_a_job_started_cannot_be_closed(store: RecordStore) -> None:
    store.claim_path("a").write_text("42\n")
    assert not store.close_unclaimed("a")
    assert store.claim_owner("a") == "42"
    store.close("a")
    assert store.claim_owner("a") is None


def test_a_claim_that_names_nobody_is_told_from_one_that_is_not_there(store: RecordStore) -> None:
    assert not store.is_claimed_by_nobody("a")
    store.claim_path("a").touch()
    assert store.is_claimed_by_nobody("a") and not store.close_unclaimed("a")
    store.close("a")
    assert not store.is_claimed_by_nobody("a") and store.close_unclaimed("a")


def winners_of(act: str, *arguments: str) -> list[int]:
    """Which of five processes get through a statement that all of them begin at once; these stay until all tried."""
    program = (
        "import sys; from pathlib import Path; from espo_luigi.files import create_whole\n"
        "from espo_luigi.jobs.lock import DriverLock\n"
        f"print('ready', flush=True); sys.stdin.readline(); {act}; print('done', flush=True); sys.stdin.readline()"
    )
    pipe = subprocess.PIPE
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", program, *arguments, str(number)],
                    stdin=pipe,
                    stdout=pipe,
                    stderr=subprocess.DEVNULL,
                    text=True,
                )
            )
            for number in range(5)
        ]
        pipes = [(one.stdin, one.stdout) for one in processes if one.stdin and one.stdout]
        assert [out.readline() for _, out in pipes] == ["ready\n"] * 5
        for told, _ in pipes:
            told.write("\n")
            told.flush()
        return [number for number, (_, out) in enumerate(pipes) if out.readline() == "done\n"]


def test_of_many_that_want_a_name_one_gets_it_whole(store: RecordStore) -> None:
    path = store.claim_path("a")
    (winner,) = winners_of("create_whole(Path(sys.argv[1]), sys.argv[2])", str(path))
    assert path.read_text() == str(winner)
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    ("cause", "amounts"),
    [(Cause.MEMORY, [(6 * GIB, 60), (8 * GIB, 60)]), (Cause.TIMEOUT, [(4 * GIB, 90), (4 * GIB, 100)])],
)
def test_more_is_given_up_to_its_cap_and_then_no_more(cause: Cause, amounts: list[tuple[int, int]]) -> None:
    record, given = next_record(RECORD, cause, LIMITS), list[tuple[int, int]]()
    while record is not None:
        given.append((record.memory_bytes, record.time_minutes))
        record = next_record(record, cause, LIMITS)
    assert given == amounts


def test_a_failed_node_is_excluded_and_charged_to_nobody_but_not_for_ever() -> None:
    record: Record | None = RECORD
    for number in range(1, 4):
        assert record is not None
        record = next_record(record, Cause.NODE, BatchSettings(retries=0, max_uncharged=3), f"n{number}")
    assert record is not None and (record.attempt, record.exclude) == (1, ("n1", "n2", "n3"))
    assert next_record(record, Cause.NODE, BatchSettings(retries=0, max_uncharged=3), "n4") is None


def test_where_a_file_system_failed_is_avoided_and_each_time_the_pause_is_longer() -> None:
    limits, record, pauses = BatchSettings(retries=9), RECORD, [pause_before(RECORD, 60)]
    for number in range(1, 5):
        following = next_record(record, Cause.FILES, limits, f"n{number}")
        assert following is not None
        record = following
        pauses.append(pause_before(record, 60))
    assert pauses == [0, 60, 300, 1500, 1800]
    assert (record.exclude, record.attempt) == (("n1", "n2", "n3", "n4"), 5)
    crashed = next_record(record, Cause.CRASHED, limits)
    assert crashed is not None and pause_before(crashed, 60) == 0


def _hold_lock(folder: Path, name: str = "driver.lock") -> subprocess.Popen[str]:
    code = (
        "import sys, time; from pathlib import Path; from espo_luigi.jobs.lock import DriverLock\n"
        "DriverLock(Path(sys.argv[1]), name=sys.argv[2]).acquire(); print('held', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(folder), name], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_a_second_driver_is_refused_while_the_first_lives_and_let_in_once_it_is_dead(tmp_path: Path) -> None:
    first = _hold_lock(tmp_path)
    try:
        with pytest.raises(SecondDriverError, match=f"process {first.pid} on {socket.gethostname()}"):
            DriverLock(tmp_path).acquire()
        assert DriverLock(tmp_path).holder() is not None
    finally:
        first.kill()
        first.wait()
    assert DriverLock(tmp_path).holder() is None
    DriverLock(tmp_path).acquire()


def test_a_process_that_got_the_dead_drivers_number_does_not_count(tmp_path: Path) -> None:
    lock = {"host": socket.gethostname(), "pid": os.getppid(), "started": "1", "room": process_room()}
    (tmp_path / "driver.lock").write_text(json.dumps(lock))
    DriverLock(tmp_path).acquire()
    assert json.loads((tmp_path / "driver.lock").read_text())["pid"] == os.getpid()


def test_a_driver_gets_all_the_folders_that_it_wants_or_none_and_leaves_nothing_in_them(tmp_path: Path) -> None:
    def locks(*names: str) -> list[DriverLock]:
        return [DriverLock(tmp_path / name, name=".espo-driver.lock") for name in names]

    first = _hold_lock(tmp_path / "b", ".espo-driver.lock")
    held = HeldLocks(on_lost=pytest.fail)
    try:
        with pytest.raises(SecondDriverError, match=rf"{tmp_path}/b: process {first.pid}"):
            held.hold(*locks("b", "a"))
        assert locks("a")[0].holder() is None
    finally:
        first.kill()
        first.wait()
    held.hold(*locks("b", "a"))
    held.hold(*locks("b", "c"))
    assert [lock.holder() is not None for lock in locks("a", "b", "c")] == [True] * 3
    held.release()
    assert [list((tmp_path / name).iterdir()) for name in "abc"] == [[], [], []]
    held.hold(*locks("a"))
    assert locks("a")[0].holder() is not None
    held.release()


def test_held_locks_are_kept_fresh_and_one_that_another_driver_took_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("espo_luigi.jobs.lock.REFRESH_EVERY_SECONDS", 0.05)
    lost: list[SecondDriverError] = []
    held, path = HeldLocks(lost.append), tmp_path / "driver.lock"
    held.hold(DriverLock(tmp_path))
    os.utime(path, (time.time() - 1000, time.time() - 1000))
    eventually(lambda: time.time() - path.stat().st_mtime < 500)
    other = json.dumps({"host": "login2", "pid": 1, "started": "1"})
    # Again and again: a refresh that has read the file just before would write over it.
    eventually(lambda: path.write_text(other) and lost)
    time.sleep(0.2)
    assert [str(path) in str(error) for error in lost] == [True]
    held.release()
    assert "login2" in path.read_text()


def test_a_lock_that_is_taken_over_while_its_driver_refreshes_it_has_one_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = DriverLock(tmp_path)
    lock._mine |= {"host": "login2", "room": "elsewhere"}
    lock.acquire()
    takes = (
        "import sys; from pathlib import Path; from espo_luigi.jobs.lock import DriverLock\n"
        "lock = DriverLock(Path(sys.argv[1]), stale_after_seconds=-1000)\nprint('now', flush=True)\nlock.acquire()"
    )
    others: list[subprocess.Popen[bytes]] = []

    def read(path: Path) -> dict[str, Any] | None:
        found = read_object(path)
        others.append(subprocess.Popen([sys.executable, "-c", takes, str(tmp_path)], stdout=subprocess.PIPE))
        assert others[0].stdout is not None
        assert others[0].stdout.readline() == b"now\n"
        with contextlib.suppress(subprocess.TimeoutExpired):
            others[0].wait(2)
        return found

    with monkeypatch.context() as patch:
        patch.setattr("espo_luigi.jobs.lock.read_object", lambda path: read(path) if not others else read_object(path))
        lock.refresh()
    assert others[0].wait(60) == 0
    assert json.loads(lock.path.read_text())["pid"] == others[0].pid, "who was told that it has the lock has it"
    assert not lock.refresh()


@pytest.mark.parametrize("text", [None, "", "{"])
def test_a_lock_that_names_nobody_is_taken_back_by_the_driver_that_had_it(tmp_path: Path, text: str | None) -> None:
    lock = DriverLock(tmp_path)
    lock.acquire()
    before = (tmp_path / "driver.lock").read_text()
    (tmp_path / "driver.lock").unlink()
    if text is not None:
        (tmp_path / "driver.lock").write_text(text)
    assert lock.refresh()
    assert (tmp_path / "driver.lock").read_text() == before


def test_a_driver_that_does_not_take_a_request_to_stop_is_named_and_not_said_to_be_asked(tmp_path: Path) -> None:
    (tmp_path / "driver.lock").write_text(json.dumps({"host": "login2", "pid": 77, "started": "1"}))
    with pytest.raises(SubmissionError, match=r"process 77 on login2.*has not taken.*driver\.lock"):
        request_stop(tmp_path, "cancel", timeout=0.3)
    assert take_control(tmp_path) == "cancel", "if it lives after all, it finds the request"


def test_a_driver_that_ends_before_it_takes_a_request_leaves_none_to_the_next(tmp_path: Path) -> None:
    first = _hold_lock(tmp_path)
    killer = threading.Timer(0.3, first.kill)
    killer.start()
    assert not request_stop(tmp_path, "cancel", timeout=1.0)
    first.wait()
    assert take_control(tmp_path) is None


def test_of_many_drivers_that_start_at_once_one_gets_the_lock(tmp_path: Path) -> None:
    assert len(winners_of("DriverLock(Path(sys.argv[1])).acquire()", str(tmp_path))) == 1


@pytest.mark.parametrize(
    "content",
    [
        "{}",
        json.dumps({"host": socket.gethostname()}),
        '{"host": 5}',
        '{"host": "\\u001b[2Jelsewhere", "pid": "x"}',
        '{"host": "elsewhere", "pid": null}',
        '{"host": "login2", "pid": 0, "started": "1"}',
    ],
)
def test_a_lock_of_another_host_or_of_nobody_is_respected_until_it_is_old(tmp_path: Path, content: str) -> None:
    path = tmp_path / "driver.lock"
    path.write_text(content)
    with pytest.raises(SecondDriverError, match=r"already works in .*: process 0 on .*remove .*driver\.lock"):
        DriverLock(tmp_path).acquire()
    assert DriverLock(tmp_path).holder() is not None
    os.utime(path, (0, 0))
    DriverLock(tmp_path).acquire()
