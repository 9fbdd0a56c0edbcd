"""Jobs, nodes and daemons of a real Slurm that go away: nothing lost, nothing doubled, nothing hanging."""

from __future__ import annotations

from dataclasses import replace

import pytest
from job_work import Work
from real_clusters import (
    at_work,
    check_a_cancellation,
    check_an_absence,
    check_ends_without_a_result,
    failure_of,
    job_id_of,
    left_behind,
    running,
    state_is,
    success_of,
    take_back,
)
from throwaway_daemons import eventually
from throwaway_slurm import ClusterSpec, ThrowawayCluster

from espo_luigi.jobs.causes import Cause
from espo_luigi.jobs.schedulers.slurm import SlurmOptions

pytestmark = pytest.mark.slurm(accounting=True)


def test_a_job_that_ends_without_a_result_is_retried_as_often_as_allowed(
    work: Work, without_accounting: ThrowawayCluster
) -> None:
    check_ends_without_a_result(work, without_accounting)


def test_a_job_cancelled_by_somebody_is_not_retried(work: Work, without_accounting: ThrowawayCluster) -> None:
    check_a_cancellation(work, without_accounting)


def test_a_requeued_job_whose_result_is_taken_does_nothing(work: Work, without_accounting: ThrowawayCluster) -> None:
    cluster = without_accounting
    with running(work, cluster) as manager:
        failure = failure_of(manager.submit(work.order("a", "fail")))
        assert failure.log_path is not None
        job_id = failure.log_path.stem.rpartition("-")[2]
        cluster.run("scontrol", "requeue", job_id)
        cluster.start_at_once(job_id, lambda: "does nothing" in failure.log_path.read_text())
    assert len(work.starts()) == 1


def test_a_preempted_job_goes_on_under_its_id_and_is_charged_no_attempt(
    work: Work, without_accounting: ThrowawayCluster
) -> None:
    with running(work, without_accounting) as manager:
        options = SlurmOptions(nodelist="n4")
        handle = manager.submit(work.order("a", seconds=300, cpus_per_task=64, options=options))
        eventually(at_work(handle))
        job_id = job_id_of(handle)
        urgent = without_accounting.run(
            "sbatch",
            "--parsable",
            "--partition=urgent",
            "--nodelist=n4",
            "--cpus-per-task=64",
            "--output=/dev/null",
            "--wrap=sleep 2",
        )
        eventually(state_is(handle, "PENDING"))
        eventually(
            lambda: not without_accounting.run("squeue", "--noheader", f"--jobs={urgent.strip()}", check=False).strip()
        )
        without_accounting.start_at_once(job_id, at_work(handle))
        work.end("a")
        outcome = success_of(handle)
    assert (outcome.job_id, outcome.attempts) == (job_id, 1)


def test_a_job_that_slurm_may_not_requeue_is_submitted_anew_without_the_node_that_failed(
    work: Work, without_accounting: ThrowawayCluster
) -> None:
    with running(work, without_accounting) as manager:
        handle = manager.submit(work.order("a", seconds=300))
        eventually(at_work(handle))
        node, first = handle.progress.node, job_id_of(handle)
        without_accounting.run("scontrol", "update", f"JobId={first}", "Requeue=0")
        without_accounting.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
        try:
            eventually(lambda: job_id_of(handle) != first)
            excluded = without_accounting.run("scontrol", "show", "job", job_id_of(handle))
            work.end("a")
            outcome = success_of(handle)
        finally:
            take_back(without_accounting, node)
    assert f"ExcNodeList={node}" in excluded
    assert outcome.attempts == 1


def test_a_controller_that_is_away_costs_nothing(work: Work, without_accounting: ThrowawayCluster) -> None:
    check_an_absence(work, without_accounting, "slurmctld", without_accounting.wait_for_controller)


def test_the_past_is_known_to_sacct_when_the_controller_has_forgotten(work: Work) -> None:
    with ThrowawayCluster.start(ClusterSpec(nodes=1, accounting=True, min_job_age=2)) as cluster:
        job_id = job_id_of(left_behind(work, cluster, work.order("a", seconds=60)))
        eventually(lambda: len(work.starts()) == 1)
        cluster.run("scancel", job_id)
        ask = ("squeue", "--noheader", "--states=all", "--format=%i")
        eventually(lambda: job_id not in cluster.run(*ask), 90)
        with running(work, cluster, retries=3) as second:
            assert failure_of(second.submit(work.order("a"))).cause is Cause.CANCELLED
            assert second.commands.counts["sacct"] >= 1
    assert len(work.starts()) == 1


def test_an_old_result_whose_output_was_removed_is_not_believed(
    work: Work, without_accounting: ThrowawayCluster
) -> None:
    request = work.order("a", seconds=0.5)
    left_behind(work, without_accounting, request)
    eventually(request.files.result.exists)
    with running(work, without_accounting) as second:
        again = replace(request, is_complete=lambda: len(work.starts()) == 2)
        assert not success_of(second.submit(again)).adopted
    assert len(work.starts()) == 2
