"""Orders and locks that cannot be written for a moment, and an order that an earlier driver wrote."""

from __future__ import annotations

import errno
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_cluster import PATIENCE, FakeCluster
from job_work import Work
from throwaway_daemons import eventually

from espo_luigi.jobs import retry
from espo_luigi.jobs.engine import BatchEngine
from espo_luigi.jobs.lock import DriverLock
from espo_luigi.jobs.order import JobFiles, JobOrder, seconds_of
from espo_luigi.jobs.resources import Resources
from espo_luigi.jobs.schedulers import slurm
from espo_luigi.jobs.settings import BatchSettings

ERRORS = [errno.EDQUOT, errno.ESTALE, errno.EIO, errno.ENOSPC]


def test_an_order_that_cannot_be_written_for_a_moment_fails_no_task(
    fake: FakeCluster, work: Work, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write, left = JobOrder.write, [2]

    def failing(order: JobOrder, **more: Any) -> None:
        if left[0]:
            left[0] -= 1
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        write(order, **more)

    monkeypatch.setattr(JobOrder, "write", failing)
    monkeypatch.setenv("PATH", f"{fake.folder / 'bin'}:{os.environ['PATH']}")
    settings = BatchSettings(tmp_path, log_dir=tmp_path, work=("true",), result_seconds=0.1)
    engine = BatchEngine(slurm, settings)
    order = JobOrder("id", "Rule", "m", "Rule", {}, {}, Resources(), JobFiles.of(tmp_path, "Rule", {}))
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(engine.run, engine.fitted(order))
        eventually(lambda: fake.calls("sbatch"), 30)
        order.files.result.write_text(json.dumps({"job_id": "1", "outcome": "success", "started": 1, "ended": 3}))
        assert seconds_of(running.result(30)) == 2
    engine.close()
    written = json.loads(order.files.order.read_text())
    assert (left, written["beat_seconds"]) == ([0], 30.0)


@pytest.mark.parametrize("number", ERRORS)
def test_a_driver_starts_and_ends_where_its_lock_cannot_be_written_for_a_moment(
    fake: FakeCluster, work: Work, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    acquire, left = DriverLock.acquire, [2]

    def failing(lock: DriverLock, *_: object) -> None:
        if left[0]:
            left[0] -= 1
            raise OSError(number, os.strerror(number))
        acquire(lock)

    monkeypatch.setattr(DriverLock, "acquire", failing)
    monkeypatch.setattr(retry, "_FIRST_PAUSE_SECONDS", 0.01)
    manager = fake.manager()
    assert left == [0] and manager.store.salt
    died: list[object] = []
    monkeypatch.setattr(threading, "excepthook", died.append)
    left[0] = 1
    monkeypatch.setattr(DriverLock, "release", failing)
    manager.detach()
    assert (left, died) == ([0], [])


def test_a_manager_that_does_not_end_in_time_is_not_left_without_a_word(
    fake: FakeCluster, work: Work, caplog: pytest.LogCaptureFixture
) -> None:
    manager = fake.manager(patience=replace(PATIENCE, ending=0.0))
    manager.detach()
    assert "has not ended within 0 s" in caplog.text
