"""What people give to a driver on a real Slurm, and do to it: sizes, limits, hostile text, jobs left behind."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from job_work import Work
from real_clusters import (
    check_hostile_texts,
    failure_of,
    left_behind,
    running,
    success_of,
    timed_out_job,
)
from throwaway_slurm import ThrowawayCluster

from espo_luigi.errors import Failure
from espo_luigi.jobs.causes import Cause
from espo_luigi.jobs.lifecycle.control import cancel_jobs, request_stop
from espo_luigi.jobs.lifecycle.records import RecordStore
from espo_luigi.jobs.lifecycle.state import Handle, Success
from espo_luigi.jobs.schedulers import slurm
from espo_luigi.jobs.schedulers.commands import Commands
from espo_luigi.jobs.schedulers.slurm import SlurmOptions

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module", autouse=True)
def timed_out(without_accounting: ThrowawayCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Handle]:
    """The job that takes longest, begun with the first test."""
    with timed_out_job(Work(tmp_path_factory.mktemp("timeout")), without_accounting) as handle:
        yield handle


def test_a_time_that_the_partition_never_grants_does_not_wait_for_ever(
    work: Work, without_accounting: ThrowawayCluster
) -> None:
    with running(work, without_accounting) as manager:
        failure = failure_of(manager.submit(work.order("a", time_minutes=60 * 24 * 30)))
    assert failure.cause in (Cause.HOPELESS, Cause.REFUSED)
    assert "PartitionTimeLimit" in failure.message or "time limit" in failure.message


def test_no_more_jobs_are_in_flight_than_allowed(work: Work, without_accounting: ThrowawayCluster) -> None:
    with running(work, without_accounting, max_jobs=2) as manager:
        handles = {name: manager.submit(work.order(name, seconds=0.5)) for name in map("a{}".format, range(5))}
        results = {handle.task: work.folder / "results" / name for name, handle in handles.items()}
        most = 0
        while not all(handle.outcome for handle in handles.values()):
            known = ",".join(record.name for record in manager.store.all()) or "none"
            names = without_accounting.run("squeue", "--noheader", "--format=%j", f"--name={known}")
            # One that has written its result stays in Slurm for the moment that it takes to end.
            working = [name for name in names.split() if not results[name.rpartition(".")[0]].exists()]
            most = max(most, len(working))
            time.sleep(0.1)
    assert 0 < most <= 2
    assert len(work.starts()) == 5


def test_hostile_text_in_every_value_reaches_the_job_as_it_is(
    without_accounting: ThrowawayCluster, tmp_path: Path
) -> None:
    # A backslash in a log's path makes sbatch leave %j as it is: such a folder is refused.
    check_hostile_texts(
        without_accounting,
        {
            text: (Work(tmp_path / text.replace("\\", "backslash")), SlurmOptions(setup=f"# {text}"))
            for text in ("a'b\"c $(touch pwned) `touch pwned` ${HOME};#c é漢🌧 %j", "-x", "\\")
        },
    )


def test_hostile_text_in_a_directive_is_refused_by_slurm_and_runs_nothing(
    work: Work, without_accounting: ThrowawayCluster
) -> None:
    names = ("partition", "account", "constraint", "qos", "nodelist", "gres", "licenses")
    hostile = '$(touch pwned) "; touch pwned #'
    with running(work, without_accounting) as manager:
        orders = [work.order(name, options=SlurmOptions(**{name: hostile})) for name in names]
        outcomes = [handle.wait(60) for handle in [manager.submit(order) for order in orders]]
    # Without accounting, Slurm ignores an account or a QOS, whatever its name.
    kinds = {name: type(outcome) for name, outcome in zip(names, outcomes, strict=True)}
    assert kinds == {name: Success if name in ("account", "qos") else Failure for name in names}
    assert not list(work.folder.rglob("pwned"))


def test_jobs_left_behind_can_be_cancelled_without_a_driver(work: Work, without_accounting: ThrowawayCluster) -> None:
    handle = left_behind(work, without_accounting, work.order("a", seconds=100))
    assert failure_of(handle).cause is Cause.DETACHED
    assert not request_stop(work.state_dir, "cancel"), "there is no driver to ask"
    store = RecordStore(work.state_dir)
    commands = Commands(slurm, None, without_accounting.environ)
    assert cancel_jobs(store, commands) == 1


def test_the_number_of_commands_does_not_depend_on_the_number_of_jobs(
    work: Work, without_accounting: ThrowawayCluster
) -> None:
    with running(work, without_accounting, poll_seconds=1.0) as manager:
        handles = [manager.submit(work.order(f"a{i}", seconds=2)) for i in range(40)]
        began = time.monotonic()
        for handle in handles:
            success_of(handle)
        polls = manager.commands.counts["squeue"]
    assert polls <= (time.monotonic() - began) / 1.0 + 3
    # On a loaded machine jobs pend for so long that the driver asks for nodes that are out of use.
    assert set(manager.commands.counts) <= {"sbatch", "squeue", "scancel", "sinfo"}
    assert manager.commands.counts["sinfo"] <= polls


def test_a_time_limit_is_a_cause_of_its_own_and_its_cap_is_kept(timed_out: Handle) -> None:
    failure = failure_of(timed_out, 400)
    assert (failure.cause, failure.attempts) == (Cause.TIMEOUT, 1)
    assert "TIMEOUT" in failure.message
