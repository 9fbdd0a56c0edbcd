"""What becomes of a job that was preempted or ran out of time, with a part of its output complete."""

from __future__ import annotations

import json

import pytest
from fake_cluster import PATIENCE, FakeCluster
from job_work import Work

from espo_luigi.jobs.causes import Cause
from espo_luigi.jobs.lifecycle.policy import next_record
from espo_luigi.jobs.lifecycle.records import Record
from espo_luigi.jobs.lifecycle.state import Handle, Success
from espo_luigi.jobs.schedulers.script import ScriptValues
from espo_luigi.jobs.schedulers.slurm import SlurmOptions, directives
from espo_luigi.jobs.settings import BatchSettings, Site

RECORD = Record("run.Rule.0", "Rule", {}, memory_bytes=2**30, time_minutes=180, log_pattern="log")
STRICT = BatchSettings(retries=0, max_uncharged=0)


@pytest.mark.parametrize("cause", [Cause.PREEMPTED, Cause.TIMEOUT, Cause.NODE])
def test_who_completes_blocks_is_submitted_again_with_the_same_time_any_number_of_times(cause: Cause) -> None:
    record: Record | None = RECORD
    for submission in range(2, 50):
        assert record is not None
        record = next_record(record, cause, STRICT, "n1", progressed=True)
        assert record is not None and record.submission == submission
    assert record is not None
    assert (record.attempt, record.uncharged, record.time_minutes) == (1, 0, 180)
    assert record.exclude == (("n1",) if cause is Cause.NODE else ())
    assert next_record(record, cause, STRICT) is None


@pytest.mark.parametrize("cause", [Cause.EXCEPTION, Cause.CANCELLED, Cause.MEMORY, Cause.CRASHED])
def test_completed_blocks_excuse_no_other_end(cause: Cause) -> None:
    assert next_record(RECORD, cause, STRICT, progressed=True) is None


def ran_out_of_time(fake: FakeCluster, work: Work, handle: Handle, job_id: int, blocks: int, killed: bool) -> None:
    """The job runs, completes so many blocks, and is at its limit; killed, it has no time to write its result."""
    fake.eventually(lambda: handle.progress.job_id == str(job_id))
    said = {"job_id": str(job_id), "blocks": {"found": 0, "computed": blocks}}
    (work.folder / "heartbeats").mkdir(exist_ok=True)
    (work.folder / "heartbeats" / "a").write_text(json.dumps(said))
    fake.set_state("RUNNING")
    fake.eventually(lambda: handle.progress.state == "running")
    if not killed:
        (work.folder / "heartbeats" / "a").unlink()
        fake.finish("a", outcome="time limit", **said)
    fake.set_state("TIMEOUT")


def asked_minutes(fake: FakeCluster) -> list[int]:
    return [int(call.partition("--time=")[2].split()[0]) for call in fake.calls("sbatch")]


@pytest.mark.parametrize("killed", [True, False])
def test_a_rule_of_thirty_hours_is_done_in_slots_of_three(fake: FakeCluster, work: Work, killed: bool) -> None:
    handle = fake.manager().submit(work.order("a", time_minutes=180))
    for job_id in range(1, 11):
        ran_out_of_time(fake, work, handle, job_id, blocks=1, killed=killed)
    fake.eventually(lambda: handle.progress.job_id == "11")
    fake.finish("a", "11")
    outcome = fake.outcome(handle, 5)
    assert isinstance(outcome, Success) and outcome.attempts == 1
    assert asked_minutes(fake) == [180] * 11


def test_without_progress_a_job_gets_more_time_until_there_are_no_more_tries(fake: FakeCluster, work: Work) -> None:
    handle = fake.manager(retries=1).submit(work.order("a", time_minutes=180))
    ran_out_of_time(fake, work, handle, 1, blocks=3, killed=True)
    ran_out_of_time(fake, work, handle, 2, blocks=0, killed=True)
    ran_out_of_time(fake, work, handle, 3, blocks=0, killed=False)
    failure = fake.failure(handle, PATIENCE.latency_wait + 5)
    assert (failure.cause, failure.attempts) == (Cause.TIMEOUT, 2)
    assert asked_minutes(fake) == [180, 180, 270]


@pytest.mark.parametrize(
    ("partition", "minutes", "seconds"),
    [("low-grace", 1000, 120), ("low-grace", 10, 30), ("main", 1000, 60), ("main", 19, 0), ("a,low-grace", 60, 120)],
)
def test_a_job_is_told_of_its_end_as_long_before_it_as_its_partition_gives_it(
    partition: str, minutes: int, seconds: int
) -> None:
    site = Site(grace={"*-grace": 120})
    assert site.warning_seconds(SlurmOptions(partition=partition), minutes) == seconds


@pytest.mark.parametrize(("signal", "seconds"), [("B:TERM@300", 300), ("USR1@90", 90), ("TERM", 60), ("", 60)])
def test_a_users_own_signal_says_how_long_before_its_end_a_job_is_told(signal: str, seconds: int) -> None:
    assert Site().warning_seconds(SlurmOptions(extra={"signal": signal}), 1000) == seconds


def test_a_users_own_signal_is_not_doubled() -> None:
    values = ScriptValues("n", 1, ("true",), 1, 100, 60, "log", "claim", "/", SlurmOptions(), warning_seconds=60)
    assert "--signal=B:TERM@60" in directives(values)
    own = ScriptValues(**{**vars(values), "options": SlurmOptions(extra={"signal": "B:TERM@300"})})
    assert [one for one in directives(own) if one.startswith("--signal")] == ["--signal=B:TERM@300"]
