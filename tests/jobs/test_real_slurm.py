"""The engine on a real, throw-away Slurm cluster: nothing lost, nothing doubled, nothing hanging."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import NODE_JOB, Work
from throwaway_slurm import ClusterSpec, ThrowawayCluster, missing_packages

from espo_luigi.errors import SubmissionError
from espo_luigi.jobs import slurm
from espo_luigi.jobs.commands import Commands, CommandSettings
from espo_luigi.jobs.handles import Failure, Handle, JobRequest, Success
from espo_luigi.jobs.manager import JobManager
from espo_luigi.jobs.policy import Cause
from espo_luigi.jobs.records import RecordStore
from espo_luigi.jobs.slurm import SlurmOptions
from espo_luigi.jobs.stopping import cancel_records, request_stop

_MISSING = missing_packages(accounting=True)
pytestmark = [pytest.mark.slurm, pytest.mark.skipif(_MISSING is not None, reason=str(_MISSING))]
DRIVER = Path(__file__).with_name("driver.py")
MIB = 2**20


@pytest.fixture(scope="module")
def with_accounting() -> Iterator[ThrowawayCluster]:
    enforce = "AccountingStorageEnforce=associations,limits,qos,safe"
    with ThrowawayCluster.start(ClusterSpec(accounting=True, conf=(enforce,))) as cluster:
        cluster.run("sacctmgr", "-i", "add", "qos", "two", "MaxSubmitJobsPerUser=2")
        cluster.run("sacctmgr", "-i", "add", "qos", "short", "MaxWall=1", "Flags=DenyOnLimit")
        cluster.run("sacctmgr", "-i", "modify", "user", "root", "set", "qos+=two,short")
        yield cluster


@pytest.fixture(scope="module")
def without_accounting() -> Iterator[ThrowawayCluster]:
    with ThrowawayCluster.start(ClusterSpec()) as cluster:
        yield cluster


@pytest.fixture(params=["with_accounting", "without_accounting"])
def cluster(request: pytest.FixtureRequest) -> ThrowawayCluster:
    return request.getfixturevalue(request.param)


@contextmanager
def running(work: Work, cluster: ThrowawayCluster, **settings: Any) -> Iterator[JobManager]:
    manager = work.manager(cluster.environ, **settings)
    manager.start()
    try:
        yield manager
    finally:
        manager.cancel_all()


def eventually(condition: Callable[[], bool], timeout: float = 90.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def state_is(handle: Handle, word: str) -> Callable[[], bool]:
    return lambda: handle.progress.state.startswith(word)


def at_work(handle: Handle) -> Callable[[], bool]:
    """Slurm's RUNNING comes before the job's command has started: the heartbeat shows that it has."""
    return lambda: bool(handle.progress.heartbeat)


def failure_of(handle: Handle, timeout: float = 120.0) -> Failure:
    outcome = handle.wait(timeout)
    assert isinstance(outcome, Failure), outcome
    return outcome


def success_of(handle: Handle, timeout: float = 120.0) -> Success:
    outcome = handle.wait(timeout)
    assert isinstance(outcome, Success), outcome
    return outcome


def job_id_of(handle: Handle) -> str:
    eventually(lambda: handle.progress.job_id is not None)
    return str(handle.progress.job_id)


@pytest.fixture(scope="module")
def timed_out(without_accounting: ThrowawayCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Handle]:
    """A job that runs into Slurm's shortest limit, a minute, while the other tests run."""
    work = Work(tmp_path_factory.mktemp("timeout"))
    with running(work, without_accounting) as manager:
        limits = {"time_minutes": 1, "retries": 2, "time_cap_minutes": 1}
        yield manager.submit(work.request("slow", seconds=1000, **limits))


@pytest.fixture(autouse=True)
def started_early(timed_out: Handle) -> None:
    """Begin the job that takes longest with the first test."""


def test_a_job_that_succeeds_is_seen_with_its_result_and_log(work: Work, cluster: ThrowawayCluster) -> None:
    with running(work, cluster) as manager:
        outcome = success_of(manager.submit(work.request("a")))
    assert outcome.result["job_id"] == outcome.job_id
    assert outcome.log_path == work.folder / "slurm_logs" / "rule" / f"rule-name=a-{outcome.job_id}.out"
    assert outcome.log_path.exists()
    assert len(work.starts()) == 1


def test_a_python_exception_is_not_retried_and_its_words_are_in_the_message(
    work: Work, cluster: ThrowawayCluster
) -> None:
    with running(work, cluster) as manager:
        failure = failure_of(manager.submit(work.request("a", "fail", retries=3)))
    assert failure.cause is Cause.EXCEPTION
    assert "no such model" in failure.message and str(failure.log_path) in failure.message
    assert failure.tail.endswith("ValueError: no")
    assert len(work.starts()) == 1


def test_a_job_killed_for_memory_is_retried_with_half_as_much_again(work: Work, cluster: ThrowawayCluster) -> None:
    with running(work, cluster) as manager:
        handle = manager.submit(work.request("a", ["memory", "succeed"], seconds=5, retries=2, memory_bytes=50 * MIB))
        eventually(lambda: handle.progress.attempt == 2, 30)
        asked = cluster.run("squeue", "--noheader", "--format=%m", f"--jobs={job_id_of(handle)}").strip()
        success_of(handle)
    assert asked == "75M"


def test_memory_at_its_cap_is_not_tried_again(work: Work, without_accounting: ThrowawayCluster) -> None:
    with running(work, without_accounting) as manager:
        limits = {"retries": 5, "memory_bytes": 50 * MIB, "memory_cap_bytes": 50 * MIB}
        failure = failure_of(manager.submit(work.request("a", "memory", seconds=20, **limits)))
    assert (failure.cause, failure.attempts) == (Cause.MEMORY, 1)


def test_a_job_that_ends_without_a_result_is_retried_as_often_as_allowed(
    work: Work, without_accounting: ThrowawayCluster
) -> None:
    with running(work, without_accounting) as manager:
        crashed = manager.submit(work.request("crash", "die", retries=1))
        silent = manager.submit(work.request("silent", "nothing", retries=0))
        assert failure_of(crashed).cause is failure_of(silent).cause is Cause.CRASHED
    assert len(work.starts()) == 3


def test_a_job_cancelled_by_somebody_is_not_retried(work: Work, cluster: ThrowawayCluster) -> None:
    with running(work, cluster) as manager:
        handle = manager.submit(work.request("a", seconds=100, retries=3))
        eventually(at_work(handle))
        cluster.run("scancel", job_id_of(handle))
        assert failure_of(handle).cause is Cause.CANCELLED
    assert len(work.starts()) == 1


def test_a_job_that_hangs_leaves_its_stack_in_the_log_and_is_tried_again(
    work: Work, without_accounting: ThrowawayCluster
) -> None:
    with running(work, without_accounting) as manager:
        outcome = success_of(
            manager.submit(work.request("a", ["hang", "succeed"], retries=1, stall_timeout_seconds=1.5))
        )
    assert outcome.attempts == 2
    first = next(path for path in outcome.log_path.parent.iterdir() if path != outcome.log_path)
    assert "in _beat" in first.read_text(), "the stack of the hanging function"


def test_a_requeued_job_runs_again_under_its_id_and_is_charged_no_attempt(
    work: Work, cluster: ThrowawayCluster
) -> None:
    with running(work, cluster) as manager:
        handle = manager.submit(work.request("a", seconds=3))
        eventually(at_work(handle))
        job_id = job_id_of(handle)
        cluster.run("scontrol", "requeue", job_id)
        eventually(state_is(handle, "PENDING"))
        _start_at_once(cluster, job_id, at_work(handle))
        outcome = success_of(handle, 40)
    assert (outcome.job_id, outcome.attempts) == (job_id, 1)
    assert len(work.starts()) == 2 and len(set(work.starts())) == 1


def test_a_requeued_job_whose_result_is_taken_does_nothing(work: Work, without_accounting: ThrowawayCluster) -> None:
    cluster = without_accounting
    with running(work, cluster) as manager:
        failure = failure_of(manager.submit(work.request("a", "fail")))
        assert failure.log_path is not None
        job_id = failure.log_path.stem.rpartition("-")[2]
        cluster.run("scontrol", "requeue", job_id)
        _start_at_once(cluster, job_id, lambda: "does nothing" in failure.log_path.read_text())
    assert len(work.starts()) == 1


def test_a_preempted_job_goes_on_under_its_id_and_is_charged_no_attempt(
    work: Work, without_accounting: ThrowawayCluster
) -> None:
    with running(work, without_accounting) as manager:
        options = SlurmOptions(nodelist="n4")
        handle = manager.submit(work.request("a", seconds=3, cpus_per_task=64, options=options))
        eventually(at_work(handle))
        job_id = job_id_of(handle)
        urgent = without_accounting.run(
            "sbatch", "--parsable", "--partition=urgent", "--nodelist=n4", "--cpus-per-task=64", "--wrap=sleep 2"
        )
        eventually(state_is(handle, "PENDING"))
        eventually(
            lambda: not without_accounting.run("squeue", "--noheader", f"--jobs={urgent.strip()}", check=False).strip()
        )
        _start_at_once(without_accounting, job_id, at_work(handle))
        outcome = success_of(handle, 60)
    assert (outcome.job_id, outcome.attempts) == (job_id, 1)


def test_a_job_whose_node_goes_down_runs_elsewhere_without_charge(work: Work, cluster: ThrowawayCluster) -> None:
    with running(work, cluster) as manager:
        handle = manager.submit(work.request("a", seconds=3))
        eventually(at_work(handle))
        node = handle.progress.node
        cluster.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
        try:
            eventually(state_is(handle, "PENDING"))
            _start_at_once(cluster, job_id_of(handle), at_work(handle))
            outcome = success_of(handle, 60)
        finally:
            _resume(cluster, node)
    assert outcome.attempts == 1


def test_a_job_that_slurm_may_not_requeue_is_submitted_anew_without_the_node_that_failed(
    work: Work, without_accounting: ThrowawayCluster
) -> None:
    with running(work, without_accounting) as manager:
        handle = manager.submit(work.request("a", seconds=4))
        eventually(at_work(handle))
        node, first = handle.progress.node, job_id_of(handle)
        without_accounting.run("scontrol", "update", f"JobId={first}", "Requeue=0")
        without_accounting.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
        try:
            eventually(lambda: job_id_of(handle) != first)
            excluded = without_accounting.run("scontrol", "show", "job", job_id_of(handle))
            outcome = success_of(handle, 60)
        finally:
            _resume(without_accounting, node)
    assert f"ExcNodeList={node}" in excluded
    assert outcome.attempts == 1


def test_a_job_that_stays_after_its_result_is_cancelled(work: Work, without_accounting: ThrowawayCluster) -> None:
    with running(work, without_accounting) as manager:
        outcome = success_of(manager.submit(work.request("a", "linger")))
        ask = ("squeue", "--noheader", "--format=%T", f"--jobs={outcome.job_id}")
        eventually(lambda: not without_accounting.run(*ask, check=False).strip())


def test_a_controller_that_is_away_costs_nothing(work: Work, without_accounting: ThrowawayCluster) -> None:
    cluster = without_accounting
    with running(work, cluster) as manager:
        handles = [manager.submit(work.request(f"a{i}", seconds=3)) for i in range(3)]
        eventually(lambda: all(at_work(handle)() for handle in handles))
        cluster.stop_daemon("slurmctld", hard=True)
        late = manager.submit(work.request("late"))
        assert all(isinstance(handle.wait(20), Success) for handle in handles), "result files count without Slurm"
        assert late.wait(2) is None
        cluster.start_daemon("slurmctld")
        cluster.wait_for_controller()
        success_of(late, 60)
    assert Counter(Counter(work.starts()).values()) == {1: 4}


def test_a_database_that_is_away_costs_nothing(work: Work, with_accounting: ThrowawayCluster) -> None:
    cluster = with_accounting
    cluster.stop_daemon("slurmdbd")
    try:
        with running(work, cluster) as manager:
            success_of(manager.submit(work.request("a")))
            assert failure_of(manager.submit(work.request("b", "fail"))).cause is Cause.EXCEPTION
    finally:
        cluster.start_daemon("slurmdbd")
    eventually(lambda: bool(cluster.run("sacctmgr", "--noheader", "list", "cluster", check=False)))


def test_the_past_is_known_to_sacct_when_the_controller_has_forgotten(work: Work) -> None:
    with ThrowawayCluster.start(ClusterSpec(nodes=1, accounting=True, min_job_age=2)) as cluster:
        first = work.manager(cluster.environ)
        first.start()
        cancelled = first.submit(work.request("a", seconds=60, retries=3))
        job_id = job_id_of(cancelled)
        eventually(lambda: len(work.starts()) == 1)
        first.detach()
        cluster.run("scancel", job_id)
        ask = ("squeue", "--noheader", "--states=all", "--format=%i")
        eventually(lambda: job_id not in cluster.run(*ask), 90)
        with running(work, cluster) as second:
            assert failure_of(second.submit(work.request("a", retries=3))).cause is Cause.CANCELLED
            assert second.commands.counts["sacct"] >= 1
    assert len(work.starts()) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (SlurmOptions(partition="nix"), "invalid partition"),
        (SlurmOptions(constraint="nix"), "Invalid feature"),
        (SlurmOptions(gres="nix:1"), "Invalid generic resource"),
        (SlurmOptions(licenses="nix"), "Invalid license"),
        (SlurmOptions(nodelist="nix"), "Invalid node name"),
        (SlurmOptions(account="nix"), "Invalid account"),
        (SlurmOptions(qos="nix"), "Invalid qos"),
        (SlurmOptions(qos="short"), "QOSMaxWallDurationPerJobLimit"),
        (SlurmOptions(extra={"nix": "1"}), "unrecognized option"),
    ],
    ids=lambda value: "" if isinstance(value, str) else str(value)[12:40],
)
def test_what_slurm_will_never_take_fails_at_once_with_its_words(
    work: Work, with_accounting: ThrowawayCluster, options: SlurmOptions, words: str
) -> None:
    with running(work, with_accounting) as manager:
        failure = failure_of(manager.submit(work.request("a", options=options, retries=3)), 5)
        assert failure.cause is Cause.REFUSED
        assert words in failure.message
        assert manager.commands.counts["sbatch"] == 1


def test_memory_larger_than_any_node_fails_at_once(work: Work, without_accounting: ThrowawayCluster) -> None:
    with running(work, without_accounting) as manager:
        failure = failure_of(manager.submit(work.request("a", memory_bytes=10**15)), 5)
    assert failure.cause is Cause.REFUSED and "not available" in failure.message


def test_a_limit_on_submitted_jobs_passes_as_jobs_end(work: Work, with_accounting: ThrowawayCluster) -> None:
    with running(work, with_accounting) as manager:
        options = SlurmOptions(qos="two")
        handles = [manager.submit(work.request(f"a{i}", seconds=1, options=options)) for i in range(5)]
        for handle in handles:
            success_of(handle, 60)
    assert len(work.starts()) == len(set(work.starts())) == 5


def test_a_time_that_the_partition_never_grants_does_not_wait_for_ever(
    work: Work, without_accounting: ThrowawayCluster
) -> None:
    with running(work, without_accounting) as manager:
        failure = failure_of(manager.submit(work.request("a", time_minutes=60 * 24 * 30)), 30)
    assert failure.cause in (Cause.HOPELESS, Cause.REFUSED)
    assert "PartitionTimeLimit" in failure.message or "time limit" in failure.message


def test_no_more_jobs_are_in_flight_than_allowed(work: Work, without_accounting: ThrowawayCluster) -> None:
    with running(work, without_accounting, max_jobs=2) as manager:
        handles = {name: manager.submit(work.request(name, seconds=0.5)) for name in map("a{}".format, range(5))}
        results = {handle.task: work.folder / "results" / name for name, handle in handles.items()}
        most = 0
        while not all(handle.outcome for handle in handles.values()):
            names = without_accounting.run("squeue", "--noheader", "--format=%j", "--name=" + ",".join(_names(manager)))
            # One that has written its result stays in Slurm for the moment that it takes to end.
            working = [name for name in names.split() if not results[name.rpartition(".")[0]].exists()]
            most = max(most, len(working))
            time.sleep(0.1)
    assert 0 < most <= 2
    assert len(work.starts()) == 5


@pytest.mark.parametrize(
    "text", ["a'b", 'a"b', "a b", "$(touch pwned)", "`touch pwned`", "${HOME}", "a;b#c", "é漢🌧", "-x", "\\", "%j"]
)
def test_hostile_text_in_every_value_reaches_the_job_as_it_is(
    work: Work, without_accounting: ThrowawayCluster, tmp_path: Path, text: str
) -> None:
    # A backslash in a log's path makes sbatch leave %j as it is: such a folder is refused.
    hostile = Work(tmp_path / text.replace("\\", "backslash"))
    hostile.folder.mkdir()
    request = hostile.request(
        text.replace("/", "_"),
        run=text,
        rule=text,
        wildcards={text: text},
        options=SlurmOptions(environment={"ESPO_TEST": text}, scratch=text, setup=f"# {text}"),
    )
    probe = tmp_path / "probe"
    script = (
        f"import os, sys, runpy; open({str(probe)!r}, 'w').write(os.environ['ESPO_TEST'] + sys.argv[2]); "
        f"runpy.run_path({str(NODE_JOB)!r}, run_name='__main__')"
    )
    request = _with(request, argv=(sys.executable, "-S", "-c", script, str(request.job_file), text))
    with running(hostile, without_accounting) as manager:
        success_of(manager.submit(request))
    assert probe.read_text() == text + text
    assert not list(tmp_path.rglob("pwned"))


@pytest.mark.parametrize("name", ["partition", "account", "constraint", "qos", "nodelist", "gres", "licenses"])
def test_hostile_text_in_a_directive_is_refused_by_slurm_and_runs_nothing(
    work: Work, without_accounting: ThrowawayCluster, name: str
) -> None:
    with running(work, without_accounting) as manager:
        handle = manager.submit(work.request("a", options=SlurmOptions(**{name: '$(touch pwned) "; touch pwned #'})))
        outcome = handle.wait(20)
    # Without accounting, Slurm ignores an account or a QOS, whatever its name.
    assert isinstance(outcome, Success if name in ("account", "qos") else Failure), outcome
    assert not list(work.folder.rglob("pwned"))


def test_a_newline_is_refused_before_anything_is_submitted(work: Work, without_accounting: ThrowawayCluster) -> None:
    with running(work, without_accounting) as manager:
        with pytest.raises(SubmissionError, match="control character"):
            manager.submit(work.request("a", options=SlurmOptions(qos="x\n#SBATCH --wrap=id")))
        assert manager.commands.counts["sbatch"] == 0


def test_a_driver_killed_at_any_moment_loses_and_doubles_nothing(work: Work, with_accounting: ThrowawayCluster) -> None:
    generator = random.Random(20)
    for _ in range(10):
        driver = _driver(work, with_accounting, jobs=20, seconds=2)
        time.sleep(generator.uniform(0.25, 1.2))
        driver.kill()
        driver.wait()
    last = _driver(work, with_accounting, jobs=20, seconds=2)
    assert (last.wait(90), json.loads(last.communicate()[0])) == (0, {"complete": 20})
    assert len(work.starts()) == 20
    tasks = Counter(name.rpartition(".")[0] for name in work.starts())
    assert Counter(tasks.values()) == {1: 20}, "every task's job started exactly once"


def test_a_second_driver_is_refused_with_the_first_ones_host_and_pid(
    work: Work, without_accounting: ThrowawayCluster
) -> None:
    first = _driver(work, without_accounting, jobs=1, seconds=3)
    eventually(lambda: bool(work.starts()))
    second = _driver(work, without_accounting, jobs=1, seconds=3)
    assert second.wait(20) == 3
    refused = json.loads(second.communicate()[0])["refused"]
    assert f"process {first.pid} on " in refused
    assert first.wait(30) == 0
    assert len(work.starts()) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_driver_cancels_its_jobs_and_nobody_elses(
    work: Work, without_accounting: ThrowawayCluster, number: signal.Signals
) -> None:
    cluster = without_accounting
    other = cluster.run("sbatch", "--parsable", "--wrap=sleep 100", "--output=/dev/null").strip()
    driver = _driver(work, cluster, jobs=6, seconds=100)
    eventually(lambda: len(work.starts()) == 6)
    driver.send_signal(number)
    assert (driver.wait(30), json.loads(driver.communicate()[0])) == (130, {"cancelled": 6})
    left = cluster.run("squeue", "--noheader", "--states=PENDING,RUNNING", "--format=%i %j")
    assert other in left
    assert not [record for record in RecordStore(work.folder / "state").all() if record.name in left]
    cluster.run("scancel", other)


def test_jobs_of_a_driver_that_hung_up_go_on_and_are_taken_over(work: Work, cluster: ThrowawayCluster) -> None:
    driver = _driver(work, cluster, jobs=3, seconds=4)
    eventually(lambda: len(work.starts()) == 3)
    driver.send_signal(signal.SIGHUP)
    driver.wait(20)
    again = _driver(work, cluster, jobs=3, seconds=4)
    assert again.wait(40) == 0
    assert len(work.starts()) == 3


def test_a_run_can_be_cancelled_from_another_terminal(work: Work, without_accounting: ThrowawayCluster) -> None:
    with running(work, without_accounting) as manager:
        handle = manager.submit(work.request("a", seconds=100))
        eventually(at_work(handle))
        assert request_stop(work.folder / "state", "cancel")
        assert failure_of(handle).cause is Cause.DRIVER_CANCELLED
        manager.cancel_all()
        assert manager.cancelled == 1


def test_jobs_left_behind_can_be_cancelled_without_a_driver(work: Work, without_accounting: ThrowawayCluster) -> None:
    manager = work.manager(without_accounting.environ)
    manager.start()
    handle = manager.submit(work.request("a", seconds=100))
    job_id_of(handle)
    manager.detach()
    assert failure_of(handle).cause is Cause.DETACHED
    assert not request_stop(work.folder / "state", "cancel"), "there is no driver to ask"
    store = RecordStore(work.folder / "state")
    commands = Commands(slurm, CommandSettings(), without_accounting.environ)
    assert cancel_records(store, commands, store.all()) == 1


def test_a_result_that_came_while_no_driver_ran_is_taken_over(work: Work, cluster: ThrowawayCluster) -> None:
    first = work.manager(cluster.environ)
    first.start()
    request = work.request("a", seconds=1)
    job_id_of(first.submit(request))
    first.detach()
    eventually(request.result_file.exists)
    with running(work, cluster) as second:
        outcome = success_of(second.submit(request))
        assert outcome.adopted
        assert second.commands.counts["sbatch"] == 0


def test_an_old_result_whose_output_was_removed_is_not_believed(
    work: Work, without_accounting: ThrowawayCluster
) -> None:
    request = work.request("a", seconds=0.5)
    first = work.manager(without_accounting.environ)
    first.start()
    job_id_of(first.submit(request))
    first.detach()
    eventually(request.result_file.exists)
    with running(work, without_accounting) as second:
        again = _with(request, is_complete=lambda: len(work.starts()) == 2)
        assert not success_of(second.submit(again)).adopted
    assert len(work.starts()) == 2


def test_a_time_limit_is_a_cause_of_its_own_and_its_cap_is_kept(timed_out: Handle) -> None:
    failure = failure_of(timed_out, 400)
    assert (failure.cause, failure.attempts) == (Cause.TIMEOUT, 1)
    assert "TIMEOUT" in failure.message


def test_the_number_of_commands_does_not_depend_on_the_number_of_jobs(
    work: Work, without_accounting: ThrowawayCluster
) -> None:
    with running(work, without_accounting, poll_seconds=1.0) as manager:
        handles = [manager.submit(work.request(f"a{i}", seconds=2)) for i in range(40)]
        began = time.monotonic()
        for handle in handles:
            success_of(handle, 60)
        polls = manager.commands.counts["squeue"]
    assert polls <= (time.monotonic() - began) / 1.0 + 3
    assert set(manager.commands.counts) <= {"sbatch", "squeue", "scancel"}


def _start_at_once(cluster: ThrowawayCluster, job_id: str, until: Callable[[], bool]) -> None:
    # Slurm lets a requeued job wait for two minutes; in the second of its requeueing, a node would refuse to start it.
    time.sleep(2)
    deadline = time.monotonic() + 20
    while not until():
        cluster.run("scontrol", "update", f"JobId={job_id}", "StartTime=now", check=False)
        assert time.monotonic() < deadline, cluster.run("scontrol", "show", "job", job_id)
        time.sleep(0.5)


def _resume(cluster: ThrowawayCluster, node: str) -> None:
    # Slurm may have taken a node that answers back by itself; then it refuses to resume it.
    cluster.run("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)
    eventually(lambda: "down" not in cluster.run("sinfo", "--noheader", "--format=%T", f"--nodes={node}"))


def _names(manager: JobManager) -> list[str]:
    return [record.name for record in manager.store.all()] or ["none"]


def _with(request: JobRequest, **changes: Any) -> JobRequest:
    return replace(request, **changes)


def _driver(work: Work, cluster: ThrowawayCluster, jobs: int, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, str(DRIVER), str(work.folder), str(jobs), str(seconds)]
    return subprocess.Popen(command, env=cluster.environ, stdout=subprocess.PIPE, text=True)
