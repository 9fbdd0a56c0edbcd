"""What is made of a job of Grid Engine of which nothing is known any more: deleted while it waited, or lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from job_work import Work

from espo_luigi.jobs.lifecycle.manager import JobManager
from espo_luigi.jobs.lifecycle.policy import Cause
from espo_luigi.jobs.lifecycle.state import Job, Seen
from espo_luigi.jobs.schedulers import gridengine as sge
from espo_luigi.jobs.schedulers.base import Phase, Row
from espo_luigi.jobs.schedulers.commands import Commands
from espo_luigi.jobs.settings import BatchSettings


@pytest.mark.parametrize(
    ("last_seen", "claimed", "accounting", "cause"),
    [
        (Phase.PENDING, False, True, Cause.CANCELLED),
        # It was rescheduled, and deleted before it began again: its claim is of its first start.
        (Phase.PENDING, True, True, Cause.CANCELLED),
        # Without accounting, it may have begun and crashed since.
        (Phase.PENDING, True, False, Cause.LOST),
        (Phase.PENDING, False, False, Cause.CANCELLED),
        # It began, and could not write its claim.
        (Phase.RUNNING, False, True, Cause.LOST),
        (Phase.RUNNING, True, True, Cause.LOST),
        # An earlier driver's, never seen by this one.
        (None, False, True, Cause.CANCELLED),
        (None, True, True, Cause.LOST),
    ],
)
def test_a_job_without_a_trace(
    work: Work, tmp_path: Path, last_seen: Phase | None, claimed: bool, accounting: bool, cause: Cause
) -> None:
    commands = Commands(sge, BatchSettings(tmp_path))
    manager = JobManager(commands)
    store, order = manager.store, work.order("a")
    store.create_folders()
    record = manager.submitter.first_record("run.rule.0", order, None)
    if claimed:
        store.claim_path(record.name).write_text("7\n")
    if not accounting:
        commands.lacking.add("qacct")
    row = None if last_seen is None else Row("7", record.name, "", last_seen)
    assert manager._cause(Job(order, record, sge, seen=Seen(row))) is cause
