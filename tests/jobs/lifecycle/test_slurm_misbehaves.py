"""A real, throw-away Slurm whose nodes lie, whose commands hang or are late, and with whose jobs somebody meddles."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from job_work import Work
from real_clusters import at_work, failure_of, job_id_of, running, state_is, success_of
from throwaway_daemons import eventually
from throwaway_slurm import ClusterSpec, ThrowawayCluster

from espo_luigi.jobs.causes import Cause
from espo_luigi.jobs.schedulers.slurm import SlurmOptions

pytestmark = pytest.mark.slurm(accounting=True)
# While a file called "long" is beside it, jobs stay COMPLETING.
_EPILOG = """#!/bin/bash
for i in $(seq 600); do [ -e "${0%/*}/long" ] || exit 0; sleep 0.1; done
"""


@pytest.fixture(scope="module")
def epilog(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("epilog") / "epilog.sh"
    path.write_text(_EPILOG)
    path.chmod(0o755)
    return path


@pytest.fixture(scope="module")
def cluster(epilog: Path) -> Iterator[ThrowawayCluster]:
    conf = (f"Epilog={epilog}", "PartitionName=single Nodes=n4 MaxTime=INFINITE")
    with ThrowawayCluster.start(ClusterSpec(accounting=True, conf=conf)) as cluster:
        yield cluster


@pytest.fixture
def long_epilog(epilog: Path) -> Iterator[None]:
    (epilog.parent / "long").touch()
    yield
    (epilog.parent / "long").unlink()


def state_of(cluster: ThrowawayCluster, job_id: str) -> str:
    ask = ("squeue", "--noheader", "--states=all", "--format=%T", f"--jobs={job_id}")
    return cluster.run(*ask, check=False).strip()


def with_wrapper(cluster: ThrowawayCluster, folder: Path, command: str, script: str) -> dict[str, str]:
    """The cluster's environment, with a script of that name before Slurm's own command, which it finds as $real."""
    folder.mkdir()
    path = folder / command
    real = cluster.run("sh", "-c", f"command -v {command}").strip()
    path.write_text(f"#!/bin/bash\nreal={real} here={folder}\n{script}\n")
    path.chmod(0o755)
    return cluster.environ | {"PATH": f"{folder}:{cluster.environ['PATH']}"}


def test_an_epilog_that_goes_on_is_not_waited_for_once_the_result_is_there(
    work: Work, cluster: ThrowawayCluster, long_epilog: None
) -> None:
    with running(work, cluster) as manager:
        good, bad = manager.submit(work.order("good")), manager.submit(work.order("bad", "fail"))
        assert failure_of(bad, 20).cause is Cause.EXCEPTION
        assert state_of(cluster, success_of(good).job_id) == "COMPLETING"


def test_how_a_job_ended_whose_epilog_goes_on_is_known_to_the_accounting(
    work: Work, cluster: ThrowawayCluster, long_epilog: None
) -> None:
    with running(work, cluster, retries=1) as manager:
        handle = manager.submit(work.order("a", ["die", "succeed"]))
        eventually(lambda: handle.progress.job_id is not None)
        first = job_id_of(handle)
        assert success_of(handle).attempts == 2
        assert state_of(cluster, first) == "COMPLETING"


def test_a_squeue_whose_answers_are_old_ends_no_job(work: Work, cluster: ThrowawayCluster, tmp_path: Path) -> None:
    # Of the driver's patience with jobs that are not listed (absent_after) as much as a minute is of the usual 300 s.
    old = (
        'find "$here/answer" -newermt "-1.5 seconds" 2>/dev/null | grep -q . || { "$real" "$@" > "$here/new" && '
        'mv "$here/new" "$here/answer"; }\ncat "$here/answer"'
    )
    environ = with_wrapper(cluster, tmp_path / "bin", "squeue", old)
    manager = work.manager(environ, retries=1)
    manager.start()
    try:
        fine = [manager.submit(work.order(f"a{i}", seconds=i)) for i in range(4)]
        retried = manager.submit(work.order("b", ["die", "succeed"]))
        again = manager.submit(work.order("c", seconds=3))
        eventually(at_work(again))
        cluster.run("scontrol", "requeue", job_id_of(again))
        time.sleep(2)
        cluster.start_at_once(job_id_of(again), lambda: work.starts().count(f"{again.task}.1") == 2)
        outcomes = [success_of(handle) for handle in (*fine, again)]
        assert {outcome.attempts for outcome in outcomes} == {1}
        assert success_of(retried).attempts == 2
    finally:
        manager.cancel_all()
    assert Counter(work.starts()).total() == 4 + 2 + 2


def test_a_scancel_that_cancels_half_and_hangs_leaves_no_job(
    work: Work, cluster: ThrowawayCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    half = (
        'if [ -e "$here/once" ]; then exec "$real" "$@"; fi\ntouch "$here/once"\n'
        'ids=("${@:2}"); "$real" "${ids[@]:0:${#ids[@]}/2}"; sleep 30'
    )
    environ = with_wrapper(cluster, tmp_path / "bin", "scancel", half)
    manager = work.manager(environ, command_seconds=3.0)
    manager.start()
    handles = [manager.submit(work.order(f"a{i}", seconds=100)) for i in range(4)]
    eventually(lambda: all(at_work(handle)() for handle in handles))
    assert manager.cancel_all() == 4
    ids = [job_id_of(handle) for handle in handles]
    eventually(lambda: {state_of(cluster, job_id) for job_id in ids} == {"CANCELLED"}, 20)
    assert "did not answer in 3 s" in caplog.text


def test_a_job_that_is_requeued_and_held_waits_for_its_release(work: Work, cluster: ThrowawayCluster) -> None:
    with running(work, cluster) as manager:
        handle = manager.submit(work.order("a", seconds=300))
        eventually(at_work(handle))
        job_id = job_id_of(handle)
        cluster.run("scontrol", "requeuehold", job_id)
        eventually(lambda: "held" in handle.progress.message.lower(), 20)
        time.sleep(4)
        assert handle.outcome is None
        cluster.run("scontrol", "release", job_id)
        cluster.start_at_once(job_id, lambda: len(work.starts()) == 2)
        work.end("a")
        outcome = success_of(handle)
    assert (outcome.job_id, outcome.attempts) == (job_id, 1)


def test_a_job_that_is_suspended_does_not_hang_and_goes_on_when_it_is_resumed(
    work: Work, cluster: ThrowawayCluster
) -> None:
    with running(work, cluster, stall_timeout_seconds=4.0) as manager:
        handle = manager.submit(work.order("a", seconds=300))
        eventually(at_work(handle))
        job_id = job_id_of(handle)
        cluster.run("scontrol", "suspend", job_id)
        eventually(state_is(handle, "SUSPENDED"))
        time.sleep(6)
        cluster.run("scontrol", "resume", job_id)
        work.end("a")
        outcome = success_of(handle)
    assert (outcome.job_id, outcome.attempts, len(work.starts())) == (job_id, 1, 1)


@contextmanager
def backup_of(cluster: ThrowawayCluster) -> Iterator[None]:
    """A second slurmctld, on a host of its own as far as names and addresses go."""
    hosts, conf = cluster.folder / "hosts", cluster.folder / "backup.conf"
    hosts.write_text(f"127.0.0.1 localhost {socket.gethostname()}\n127.0.0.2 backup\n")
    # With the pid file of the first, it would end that at its start.
    conf.write_text((cluster.folder / "slurm.conf").read_text().replace("slurmctld.pid", "backup.pid"))
    start = (
        f"mount --bind {hosts} /etc/hosts; hostname backup; exec slurmctld -D -f {conf} -L {cluster.folder}/log/b.log"
    )
    process = subprocess.Popen(["unshare", "--uts", "--mount", "sh", "-c", start], env=cluster.environ)
    try:
        eventually(lambda: "backup) at backup is UP" in cluster.run("scontrol", "ping", check=False), 20)
        yield
    finally:
        process.terminate()
        process.wait(20)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give the second controller a host name of its own")
def test_a_controller_that_another_takes_over_from_costs_nothing(work: Work) -> None:
    conf = ("SlurmctldHost=backup(127.0.0.2)", "CommunicationParameters=NoCtldInAddrAny", "SlurmctldTimeout=3")
    with ThrowawayCluster.start(ClusterSpec(nodes=2, conf=conf)) as cluster, backup_of(cluster):
        assert "(primary) at" in cluster.run("scontrol", "ping") and "DOWN" not in cluster.run("scontrol", "ping")
        with running(work, cluster, retries=1) as manager:
            early = manager.submit(work.order("early", seconds=6))
            # It ends once the second controller has taken over: one that is in standby loses the message of an end.
            failing = manager.submit(work.order("failing", ["die late", "succeed"], seconds=100))
            eventually(at_work(early))
            eventually(at_work(failing))
            cluster.stop_daemon("slurmctld")
            late = manager.submit(work.order("late"))
            assert success_of(late).attempts == 1
            work.end("failing")
            assert success_of(early).attempts == 1
            assert success_of(failing, 120).attempts == 2
        assert "(primary) at" in cluster.run("scontrol", "ping", check=False)
        assert "DOWN" in cluster.run("scontrol", "ping", check=False)
    assert Counter(work.starts()).total() == 4 and len(set(work.starts())) == 4


def test_the_only_node_of_a_partition_is_not_avoided_for_ever(work: Work, cluster: ThrowawayCluster) -> None:
    with running(work, cluster, retries=1) as manager:
        options = SlurmOptions(partition="single")
        handle = manager.submit(work.order("a", ["die", "succeed"], options=options))
        assert success_of(handle).attempts == 2
