"""Jobs that seem to hang, and drivers or file systems that were away for a while."""

from __future__ import annotations

import errno
import json
from typing import Any

import pytest
from fake_cluster import PATIENCE, FakeCluster, has_id
from job_work import Work

from espo_luigi.jobs.lifecycle.state import Success

ERRORS = [errno.EDQUOT, errno.ESTALE, errno.EIO, errno.ENOSPC]


def running(fake: FakeCluster, work: Work, *names: str, **settings: Any) -> list[Any]:
    handles = fake.all_submitted(names, **settings, stall_timeout_seconds=3.0)
    fake.set_state("RUNNING")
    fake.eventually(lambda: all(handle.progress.state == "running" for handle in handles))
    return handles


def test_a_heartbeat_is_read_again_before_its_job_is_taken_for_hanging(fake: FakeCluster, work: Work) -> None:
    # Between two of the driver's usual looks, the time of a stall passes.
    (handle,) = running(fake, work, "a", beat_seconds=1000.0)
    for beat in range(16):
        (work.folder / "heartbeats" / "a").write_text(json.dumps({"time": beat}))
        fake.clock.go_on(0.5)
    assert handle.outcome is None and fake.calls("scancel") == []


def test_many_jobs_that_hang_take_one_command_to_end_them(fake: FakeCluster, work: Work) -> None:
    running(fake, work, *"abcdefgh")
    fake.eventually(lambda: fake.calls("scancel"))
    (cancel,) = fake.calls("scancel")
    assert set("12345678") <= set(cancel.split()) and "--signal" not in cancel


def test_a_driver_that_was_away_lets_all_waiting_begin_anew(
    fake: FakeCluster, work: Work, caplog: pytest.LogCaptureFixture
) -> None:
    (handle,) = running(fake, work, "a")
    fake.clock.sleep(200)
    fake.clock.go_on(2)
    assert "did not run for 20" in caplog.text
    assert fake.calls("scancel") == [] and handle.outcome is None
    fake.forget_jobs()
    fake.clock.go_on(0.5)
    fake.clock.sleep(200)
    fake.clock.go_on(0.5)
    assert handle.outcome is None
    fake.eventually(lambda: len(fake.calls("sbatch")) == 2 or handle.outcome)


def test_a_file_system_that_hangs_for_one_job_makes_no_other_one_wait_in_vain(fake: FakeCluster, work: Work) -> None:
    def complete() -> bool:
        other = manager._jobs[second.task]
        if other.ended_since is not None and not hung:
            hung.append(True)
            fake.clock.sleep(3 * PATIENCE.latency_wait)
            fake.finish("b", "2")
        return bool(hung)

    hung: list[bool] = []
    manager = fake.manager(retries=3)
    first = manager.submit(work.order("a", is_complete=complete))
    second = manager.submit(work.order("b"))
    fake.eventually(lambda: has_id(first)() and has_id(second)())
    fake.finish("a", "1")
    fake.set_state("COMPLETED")
    assert isinstance(fake.outcome(second, 5), Success)
    assert hung and len(fake.calls("sbatch")) == 2
