"""A job's look at its claim: whether it may still publish, and write its result."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from espo_luigi.errors import ClaimLostError
from espo_luigi.jobs import retry
from espo_luigi.jobs.lifecycle.records import RecordStore
from espo_luigi.jobs.node import run as node
from espo_luigi.jobs.node.claim import check_claim
from espo_luigi.jobs.node.heartbeat import Monitor
from espo_luigi.jobs.order import JobOrder


@pytest.fixture
def claim(store: RecordStore, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The claim of the job 7, which this process is."""
    path = store.claim_path("t.1")
    path.write_text("7\n")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("ESPO_CLAIM", str(path))
    monkeypatch.delenv("ESPO_START", raising=False)
    return path


@pytest.fixture
def order(order: JobOrder, monkeypatch: pytest.MonkeyPatch) -> JobOrder:
    monkeypatch.setattr(node, "_set_up_process", lambda: None)
    return order


def test_a_claim_that_the_driver_has_closed_is_lost(claim: Path, store: RecordStore) -> None:
    store.close("t.1")
    with pytest.raises(ClaimLostError, match="the driver"):
        check_claim()
    store.forget_files("t.1")
    with pytest.raises(ClaimLostError, match="nothing"):
        check_claim()


def test_a_claim_that_cannot_be_read_for_a_moment_is_not_lost(claim: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_FIRST_PAUSE_SECONDS", 0.01)
    read, errors = Path.read_text, [errno.ESTALE, errno.EIO]

    def read_text(path: Path, *arguments: Any, **keywords: Any) -> str:
        if path == claim and errors:
            raise OSError(errors[-1], os.strerror(errors.pop()))
        return read(path, *arguments, **keywords)

    monkeypatch.setattr(Path, "read_text", read_text)
    check_claim()
    assert not errors


@pytest.mark.parametrize("lost", [False, True])
def test_a_job_that_lost_its_claim_writes_no_result(
    claim: Path, store: RecordStore, order: JobOrder, lost: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def work(order: JobOrder, monitor: Monitor) -> None:
        if lost:
            store.close("t.1")

    assert node.run_order(order.files.order, work) == int(lost)
    assert order.files.result.exists() is not lost
    assert lost or json.loads(order.files.result.read_text())["job_id"] == "7"
