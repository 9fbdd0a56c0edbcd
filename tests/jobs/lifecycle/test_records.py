"""The records of submissions, and the claims of jobs."""

from __future__ import annotations

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
from espo_luigi.jobs.lifecycle.records import Record, RecordStore
from espo_luigi.jobs.order import LAYOUT
from espo_luigi.jobs.resources import GIB

RECORD = Record(
    "run.Train.0123", "Train", {"var": "pr"}, memory_bytes=4 * GIB, time_minutes=60, log_pattern="/l/%j.out"
)


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
    with pytest.raises(SubmissionError, match=r"with espo_luigi 9\.9"):
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
    with pytest.raises(SubmissionError, match=r"layout unknown"):
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
