"""Requests that come while a manager ends."""

from __future__ import annotations

from fake_cluster import FakeCluster
from job_work import Work

from espo_luigi.errors import Failure
from espo_luigi.jobs.lifecycle.policy import Cause


def test_a_request_that_comes_after_the_end_has_its_outcome_at_once(fake: FakeCluster, work: Work) -> None:
    manager = fake.manager()
    before = fake.submitted(work.order("a"), manager)
    manager.cancel_all()
    after = manager.submit(work.order("b"))
    outcomes = [handle.wait(0) for handle in (before, after)]
    assert all(isinstance(outcome, Failure) and outcome.cause is Cause.DRIVER_CANCELLED for outcome in outcomes)
    assert [outcome.attempts for outcome in outcomes if outcome] == [1, 0]
