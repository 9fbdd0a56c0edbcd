"""The engine on a real, throw-away Slurm cluster: nothing lost, nothing doubled, nothing hanging."""

from __future__ import annotations

import shutil
import time

import pytest
from job_work import Work
from real_clusters import (
    MIB,
    at_work,
    check_a_cancellation,
    check_killed_drivers,
    failure_of,
    job_id_of,
    left_behind,
    running,
    state_is,
    success_of,
    take_back,
)
from throwaway_daemons import eventually
from throwaway_slurm import ThrowawayCluster

from espo_luigi.jobs.accounts import read_accounts, submissions
from espo_luigi.jobs.causes import Cause
from espo_luigi.jobs.schedulers.base import Phase, Usage
from espo_luigi.jobs.schedulers.slurm import SlurmOptions
from espo_luigi.report.job_use import accounted

pytestmark = pytest.mark.slurm(accounting=True)


@pytest.fixture
def cluster(with_accounting: ThrowawayCluster) -> ThrowawayCluster:
    return with_accounting


def test_a_job_that_succeeds_is_seen_with_its_result_and_log(work: Work, cluster: ThrowawayCluster) -> None:
    with running(work, cluster) as manager:
        outcome = success_of(manager.submit(work.order("a")))
    assert outcome.result["job_id"] == outcome.job_id
    assert outcome.log_path == work.folder / "slurm_logs" / "rule" / f"rule-name=a-{outcome.job_id}.out"
    assert outcome.log_path.exists()
    assert len(work.starts()) == 1


def test_a_log_folder_that_is_not_on_the_nodes_is_named_after_the_second_job(
    work: Work, cluster: ThrowawayCluster
) -> None:
    with running(work, cluster, retries=3) as manager:
        handle = manager.submit(work.order("a", options=SlurmOptions(extra={"hold": ""})))
        eventually(lambda: handle.progress.job_id is not None)
        shutil.rmtree(work.folder / "slurm_logs")
        (work.folder / "slurm_logs").touch()  # Slurm 24.11 makes a folder that is missing
        cluster.run("scontrol", "release", job_id_of(handle))
        eventually(lambda: handle.progress.attempt == 2, 30)
        eventually(lambda: handle.progress.job_id is not None)
        cluster.run("scontrol", "release", job_id_of(handle))
        failure = failure_of(handle)
    assert failure.cause is Cause.NO_LOG and "set `log_dir`" in failure.message
    assert manager.commands.counts["sbatch"] == 2 and work.starts() == []


def test_a_job_cancelled_by_somebody_is_not_retried(work: Work, cluster: ThrowawayCluster) -> None:
    check_a_cancellation(work, cluster)


def test_a_requeued_job_runs_again_under_its_id_and_is_charged_no_attempt(
    work: Work, cluster: ThrowawayCluster
) -> None:
    with running(work, cluster) as manager:
        handle = manager.submit(work.order("a", seconds=300))
        eventually(at_work(handle))
        job_id = job_id_of(handle)
        cluster.run("scontrol", "requeue", job_id)
        eventually(state_is(handle, "PENDING"))
        cluster.start_at_once(job_id, at_work(handle))
        work.end("a")
        outcome = success_of(handle)
    assert (outcome.job_id, outcome.attempts) == (job_id, 1)
    assert len(work.starts()) == 2 and len(set(work.starts())) == 1


def test_a_job_whose_node_goes_down_runs_elsewhere_without_charge(work: Work, cluster: ThrowawayCluster) -> None:
    with running(work, cluster) as manager:
        handle = manager.submit(work.order("a", seconds=300))
        eventually(at_work(handle))
        node = handle.progress.node
        cluster.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
        try:
            eventually(state_is(handle, "PENDING"))
            cluster.start_at_once(job_id_of(handle), at_work(handle))
            work.end("a")
            outcome = success_of(handle)
        finally:
            take_back(cluster, node)
    assert outcome.attempts == 1


def test_a_database_that_is_away_costs_nothing(work: Work, cluster: ThrowawayCluster) -> None:
    cluster.stop_daemon("slurmdbd")
    try:
        with running(work, cluster) as manager:
            success_of(manager.submit(work.order("a")))
            assert failure_of(manager.submit(work.order("b", "fail"))).cause is Cause.EXCEPTION
    finally:
        cluster.start_daemon("slurmdbd")
    eventually(lambda: bool(cluster.run("sacctmgr", "--noheader", "list", "cluster", check=False)))


NEVER: list[tuple[SlurmOptions, dict[str, int], str]] = [
    (SlurmOptions(partition="nix"), {}, "invalid partition"),
    (SlurmOptions(constraint="nix"), {}, "Invalid feature"),
    (SlurmOptions(gres="nix:1"), {}, "Invalid generic resource"),
    (SlurmOptions(licenses="nix"), {}, "Invalid license"),
    (SlurmOptions(nodelist="nix"), {}, "Invalid node name"),
    (SlurmOptions(account="nix"), {}, "Invalid account"),
    (SlurmOptions(qos="nix"), {}, "Invalid qos"),
    (SlurmOptions(qos="short"), {}, "QOSMaxWallDurationPerJobLimit"),
    (SlurmOptions(extra={"nix": "1"}), {}, "unrecognized option"),
    (SlurmOptions(), {"memory_bytes": 10**15}, "not available"),
]


def test_what_slurm_will_never_take_fails_at_once_with_its_words(work: Work, cluster: ThrowawayCluster) -> None:
    with running(work, cluster, retries=3) as manager:
        orders = [work.order(f"a{n}", options=options, **more) for n, (options, more, _) in enumerate(NEVER)]
        failures = [failure_of(handle) for handle in [manager.submit(order) for order in orders]]
    # An answer that a loaded Slurm gives too late is asked for again; a retry of a refusal would make 4 attempts.
    assert {failure.cause for failure in failures} == {Cause.REFUSED}
    assert max(failure.attempts for failure in failures) <= 2
    told = zip(failures, NEVER, strict=True)
    assert [failure.message for failure, (_, _, words) in told if words not in failure.message] == []


@pytest.mark.parametrize("bundle", [{}, {"pack": "5", "bundle": "array"}], ids=["alone", "array"])
def test_a_limit_on_submitted_jobs_passes_as_jobs_end(
    work: Work, cluster: ThrowawayCluster, bundle: dict[str, str]
) -> None:
    with running(work, cluster) as manager:
        options = SlurmOptions(qos="two", **bundle)
        handles = [manager.submit(work.order(f"a{i}", seconds=1, options=options)) for i in range(5)]
        for handle in handles:
            success_of(handle)
    assert len(work.starts()) == len(set(work.starts())) == 5


def test_a_driver_killed_at_any_moment_loses_and_doubles_nothing(work: Work, cluster: ThrowawayCluster) -> None:
    check_killed_drivers(work, cluster, jobs=20)


def test_a_result_that_came_while_no_driver_ran_is_taken_over(work: Work, cluster: ThrowawayCluster) -> None:
    request = work.order("a", seconds=1)
    left_behind(work, cluster, request)
    eventually(request.files.result.exists)
    with running(work, cluster) as second:
        outcome = success_of(second.submit(request))
        assert outcome.adopted
        assert second.commands.counts["sbatch"] == 0


def test_sacct_tells_the_report_of_a_job_that_ended_well_and_of_one_that_was_killed(
    work: Work, cluster: ThrowawayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SLURM_CONF", "PATH"):
        monkeypatch.setenv(name, cluster.environ[name])
    found: dict[str, Usage] = {}
    with running(work, cluster) as manager:
        big = manager.submit(work.order("big", "memory", seconds=4, memory_bytes=500 * MIB, cpus_per_task=2))
        dead = manager.submit(work.order("dead", "die"))
        success_of(big)
        failure_of(dead)
        known = submissions(manager.store.all())

        def has_both() -> bool:
            # The end of a job comes to the database some seconds after its result.
            found.update({one.job_id: one for one in read_accounts("slurm", known)})
            return len(found) == 2

        eventually(has_both, 60)
    assert {(one.job_id, one.name) for one in found.values()} == known.keys()
    first, second = found[job_id_of(big)], found[job_id_of(dead)]
    assert (first.phase, first.cpus, first.memory_bytes, first.time_minutes) == (Phase.COMPLETED, 2, 500 * MIB, 10)
    assert 200 * MIB < first.peak_memory_bytes < 300 * MIB
    assert 4 <= first.ended - first.started < 60
    assert abs(first.started - time.time()) < 300, "times are UTC's"
    assert (second.phase, second.memory_bytes) == (Cause.CRASHED, 100 * MIB)

    jobs = accounted([], known, list(found.values()))
    assert {(job.rule, job.succeeded, job.cpus, job.time_minutes) for job in jobs} == {
        ("rule", True, 2, 10),
        ("rule", False, 1, 10),
    }
