"""The records of submissions, and the claims of jobs."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from espo_luigi.errors import JobError, SubmissionError
from espo_luigi.files import this_version
from espo_luigi.jobs.causes import Cause
from espo_luigi.jobs.lifecycle.policy import next_record, pause_before
from espo_luigi.jobs.lifecycle.records import Record, RecordStore
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


def test_of_many_drivers_that_start_at_once_one_gets_the_lock(tmp_path: Path) -> None:
    assert len(winners_of("DriverLock(Path(sys.argv[1])).acquire()", str(tmp_path))) == 1
