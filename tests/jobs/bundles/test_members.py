"""The rows of submissions: a member that shares its job has one of its own, by the job's row and its own files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from espo_luigi.jobs.bundles import members, own_job_name
from espo_luigi.jobs.bundles.members import Bundles
from espo_luigi.jobs.causes import Cause
from espo_luigi.jobs.lifecycle.records import Record, RecordStore
from espo_luigi.jobs.order import JobState
from espo_luigi.jobs.schedulers.base import Phase, Row

BUNDLE = "run.rule.bundle-1"
MEMBER = Record("run.rule.0", "rule", {}, 2**30, 60, "log-%j", state=JobState.QUEUED, job_id="7", bundle=BUNDLE)


def row_of(store: RecordStore, record: Record, phase: Phase | Cause) -> Row | None:
    bundles = Bundles(store, lambda: [record])
    bundles.look()
    return bundles.row_of(record, {record.job_name: Row("7", record.job_name, phase.name, phase, "n1", "why")})


@pytest.fixture
def store(tmp_path: Path) -> RecordStore:
    store = RecordStore(tmp_path)
    store.create_folders()
    return store


@pytest.mark.parametrize(
    ("phase", "owner", "code", "ending", "expected"),
    [
        (Phase.PENDING, "", None, "", Phase.PENDING),
        (Phase.PENDING, "7", 1, "", Phase.PENDING),  # the files are of its start before it was requeued
        (Phase.SUSPENDED, "", None, "", Phase.SUSPENDED),
        (Phase.RUNNING, "", None, "", Phase.PENDING),
        (Phase.RUNNING, "7", None, "", Phase.RUNNING),
        (Phase.RUNNING, "7", 0, "", Phase.COMPLETED),
        (Phase.RUNNING, "7", 137, "", Cause.CRASHED),
        # The driver that wrote why it ends was killed before it closed the claim: the member works on.
        (Phase.RUNNING, "7", None, "driver_cancelled", Phase.RUNNING),
        (Phase.RUNNING, "the driver", None, "stalled", Phase.LEAVING),
        (Phase.RUNNING, "the driver", 143, "stalled", Cause.CANCELLED),
        # Its turn came, and it found its claim closed.
        (Phase.RUNNING, "the driver", 0, "driver_cancelled", Cause.CANCELLED),
        (Phase.PENDING, "the driver", None, "hopeless", Phase.LEAVING),
        (Phase.LEAVING, "", None, "", Phase.LEAVING),
        (Phase.COMPLETED, "7", None, "", Phase.COMPLETED),
        *((phase, "", None, "", Cause.NOT_BEGUN) for phase in (Phase.COMPLETED, Cause.TIMEOUT, Cause.MEMORY)),
        *((phase, "", None, "", phase) for phase in (Cause.CRASHED, Cause.NODE, Cause.PREEMPTED, Cause.CANCELLED)),
        # The driver has closed the claim, and could not write what follows.
        (Cause.TIMEOUT, "the driver", None, "", Cause.NOT_BEGUN),
        (Cause.MEMORY, "the driver", None, "driver_cancelled", Cause.CANCELLED),
        # A definite word on the whole job counts for a member that it killed.
        (Cause.MEMORY, "7", 137, "", Cause.MEMORY),
    ],
)
def test_a_member_that_shares_its_job_has_a_row_by_its_claim_and_its_end(
    store: RecordStore, phase: Phase | Cause, owner: str, code: int | None, ending: str, expected: Phase | Cause
) -> None:
    claim = store.claim_path(MEMBER.name)
    if owner:
        claim.write_text(owner)
    if code is not None:
        claim.with_name(claim.name + ".end").write_text(f"7 {code}\n")
    row = row_of(store, replace(MEMBER, ending=ending), phase)
    assert row is not None and (row.phase, row.name, row.node) == (expected, MEMBER.name, "n1")


@pytest.mark.parametrize("text", ["6 1\n", "", "7 x"])
def test_an_end_of_another_job_or_without_a_number_is_no_end(store: RecordStore, text: str) -> None:
    claim = store.claim_path(MEMBER.name)
    claim.write_text("7")
    claim.with_name(claim.name + ".end").write_text(text)
    row = row_of(store, MEMBER, Phase.RUNNING)
    assert row is not None and row.phase is Phase.RUNNING


@pytest.mark.parametrize("bundle", ["", f"{BUNDLE}[3]"])
def test_a_job_of_its_own_and_an_element_of_an_array_have_the_schedulers_row(store: RecordStore, bundle: str) -> None:
    row = row_of(store, replace(MEMBER, bundle=bundle), Phase.RUNNING)
    assert row is not None and row.phase is Phase.RUNNING


def test_before_the_first_look_a_member_of_a_job_that_runs_may_have_begun(store: RecordStore) -> None:
    bundles = Bundles(store, lambda: [MEMBER])
    row = bundles.row_of(MEMBER, {BUNDLE: Row("7", BUNDLE, "RUNNING", Phase.RUNNING)})
    assert row is not None and row.phase is Phase.RUNNING
    bundles.look()
    later = bundles.row_of(MEMBER)
    assert later is not None and later.phase is Phase.PENDING


def test_a_member_that_began_has_begun_although_the_driver_closes_its_claim(store: RecordStore) -> None:
    bundles, job = Bundles(store, lambda: [MEMBER]), Row("7", BUNDLE, "TIMEOUT", Cause.TIMEOUT)
    store.claim_path(MEMBER.name).write_text("7")
    bundles.look()
    store.close(MEMBER.name)
    bundles.look()
    row = bundles.row_of(MEMBER, {BUNDLE: job})
    assert row is not None and row.phase is Cause.TIMEOUT


def test_after_a_look_that_failed_a_member_may_have_begun(store: RecordStore, monkeypatch: pytest.MonkeyPatch) -> None:
    bundles, job = Bundles(store, lambda: [MEMBER]), Row("7", BUNDLE, "RUNNING", Phase.RUNNING)
    bundles.look()
    with monkeypatch.context() as patch, pytest.raises(OSError, match="stale"):
        patch.setattr(members, "listed_names", Mock(side_effect=OSError("stale")))
        bundles.look()
    row = bundles.row_of(MEMBER, {BUNDLE: job})
    assert row is not None and row.phase is Phase.RUNNING


def test_the_log_of_the_whole_job_counts_for_a_member_that_did_not_end_by_itself(
    store: RecordStore, tmp_path: Path
) -> None:
    claim, log = store.claim_path(MEMBER.name), tmp_path / "rule-a-7.out"
    whole = tmp_path / "rule-bundle=2-7.out"
    whole.touch()
    bundles = Bundles(store, lambda: [MEMBER])
    bundles.look()
    assert bundles.logs(MEMBER, log) == [log, whole] and bundles.logs(replace(MEMBER, bundle=""), log) == [log]
    claim.with_name(claim.name + ".end").write_text("7 1\n")
    bundles.look()
    assert bundles.logs(MEMBER, log) == [log] and bundles.logs(MEMBER, None) == []


def test_a_job_that_is_needed_goes_on_and_its_files_stay(store: RecordStore) -> None:
    other = replace(MEMBER, task="run.rule.1")
    records = [MEMBER, other]
    bundles = Bundles(store, lambda: records)
    script = store.script_path(BUNDLE)
    script.touch()
    script.with_suffix(".json").write_text('{"members": []}')
    bundles.forget(MEMBER)
    assert bundles.needs_job(MEMBER) and script.exists()
    # One that is being cancelled needs it no more.
    records[1] = replace(other, ending="stalled")
    bundles.forget(MEMBER)
    assert not bundles.needs_job(MEMBER) and not script.exists()


def test_only_a_job_of_a_tasks_own_has_a_name_in_the_accounts() -> None:
    names = [own_job_name(bundle, "run.rule.0.1") for bundle in ("", BUNDLE, f"{BUNDLE}[3]")]
    assert names == ["run.rule.0.1", "", BUNDLE]
