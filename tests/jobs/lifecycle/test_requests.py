"""Requests that come while a manager ends."""

from __future__ import annotations

from job_work import Work

from espo_luigi.errors import Failure
from espo_luigi.jobs.lifecycle.control import CANCEL
from espo_luigi.jobs.lifecycle.policy import Cause
from espo_luigi.jobs.lifecycle.requests import Requests


def test_a_request_that_comes_when_all_are_closed_has_its_outcome_at_once(work: Work) -> None:
    requests = Requests()
    before = requests.add("task.1", work.order("a"))
    requests.close_all(CANCEL, {"task.1": 2})
    after = requests.add("task.2", work.order("b"))
    outcomes = [handle.wait(0) for handle in (before, after)]
    assert all(isinstance(outcome, Failure) and outcome.cause is Cause.DRIVER_CANCELLED for outcome in outcomes)
    assert [outcome.attempts for outcome in outcomes if outcome] == [2, 0]
    assert len(requests.incoming) == 1
