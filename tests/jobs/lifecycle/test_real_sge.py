"""The engine on a real, throw-away Grid Engine: nothing lost, nothing doubled, nothing hanging."""

from __future__ import annotations

import shlex
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Iterator

import pytest
from job_work import Work
from real_clusters import (
    MIB,
    at_work,
    check_an_absence,
    check_ends_without_a_result,
    failure_of,
    job_id_of,
    running,
    success_of,
    timed_out_job,
)
from strangers import AS_STRANGER, as_root
from throwaway_daemons import eventually
from throwaway_sge import ThrowawayGridEngine, queue

from espo_luigi.jobs.causes import Cause
from espo_luigi.jobs.lifecycle.state import Handle
from espo_luigi.jobs.schedulers.gridengine import SgeOptions

pytestmark = [pytest.mark.slurm, pytest.mark.sge]


@pytest.fixture
def cluster(grid_engine: ThrowawayGridEngine) -> ThrowawayGridEngine:
    return grid_engine


@pytest.fixture(scope="module", autouse=True)
def timed_out(grid_engine: ThrowawayGridEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Handle]:
    """The job that takes longest, begun with the first test."""
    with timed_out_job(Work(tmp_path_factory.mktemp("timeout"), "sge"), grid_engine) as handle:
        yield handle


def asked(cluster: ThrowawayGridEngine, job_id: str) -> dict[str, str]:
    """What a job in the queue has asked for, as qstat tells it."""
    lines = cluster.run("qstat", "-j", job_id).splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def test_a_job_that_succeeds_is_seen_with_its_result_log_and_what_it_asked_for(
    work: Work, cluster: ThrowawayGridEngine
) -> None:
    options = SgeOptions(queue="other.q", extra={"l": "h_cpu=3600"})
    # The run's name begins with a digit, which the name of a job of Grid Engine must not.
    with running(work, cluster, workdir=work.folder / "2024@x") as manager:
        handle = manager.submit(work.order("a,b:c", seconds=300, cpus_per_task=4, memory_bytes=2**30, options=options))
        eventually(at_work(handle))
        told = asked(cluster, job_id_of(handle))
        work.end("a,b:c")
        outcome = success_of(handle)
    assert told["hard resource_list"] == "h_rt=600,h_vmem=256M,h_cpu=3600"
    assert told["parallel environment"] == "threaded range: 4"
    assert told["hard_queue_list"] == "other.q"
    assert told["notify"] == "TRUE"
    assert outcome.result["job_id"] == outcome.job_id
    assert outcome.log_path == work.folder / "sge_logs" / "rule" / f"rule-name=a+b_c-{outcome.job_id}.out"
    assert outcome.log_path.exists()
    assert len(work.starts()) == 1


@as_root
def test_a_job_has_its_drivers_environment_and_no_other_account_sees_it(
    work: Work, cluster: ThrowawayGridEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_TOKEN", "hush-4711")
    with running(work, cluster) as manager:
        options = SgeOptions(setup=f'printf %s "$A_TOKEN" > {shlex.quote(str(work.folder / "token"))}')
        handle = manager.submit(work.order("a", seconds=20, options=options))
        eventually(at_work(handle))
        job_id, environment = job_id_of(handle), manager.store.environment_path
        command = [*AS_STRANGER, "qstat", "-j", job_id]
        shown = subprocess.run(command, env=cluster.environ, capture_output=True, text=True, check=True).stdout
        command = [*AS_STRANGER, "cat", str(environment)]
        read = subprocess.run(command, capture_output=True, text=True, check=False)
        work.end("a")
        success_of(handle)
    assert (work.folder / "token").read_text() == "hush-4711"
    assert f"job_number: {job_id}" in " ".join(shown.split())
    assert "hush" not in shown
    assert (read.returncode, read.stdout, stat.S_IMODE(environment.stat().st_mode)) == (1, "", 0o600)
    # Nor did Grid Engine write it where others can read.
    spooled = subprocess.run(["grep", "-rlsF", "hush-4711", str(cluster.folder)], capture_output=True, text=True)
    assert spooled.stdout == ""


def test_a_python_exception_is_not_retried_and_its_words_are_in_the_message(
    work: Work, cluster: ThrowawayGridEngine
) -> None:
    with running(work, cluster, retries=3) as manager:
        failure = failure_of(manager.submit(work.order("a", "fail")))
    assert failure.cause is Cause.EXCEPTION
    assert "no such model" in failure.message and str(failure.log_path) in failure.message
    assert len(work.starts()) == 1


@pytest.mark.parametrize("how", ["memory", "memory of many"])
def test_a_job_that_exceeds_its_memory_is_retried_with_half_as_much_again(
    work: Work, cluster: ThrowawayGridEngine, how: str
) -> None:
    """One process is refused what is above the limit; several together are killed."""
    with running(work, cluster, retries=2) as manager:
        request = work.order("a", [how, "succeed"], seconds=300, memory_bytes=150 * MIB)
        handle = manager.submit(request)
        eventually(lambda: handle.progress.attempt == 2 and at_work(handle)(), 60)
        told = asked(cluster, job_id_of(handle))
        work.end("a")
        success_of(handle)
    assert "h_vmem=225M" in told["hard resource_list"]


def test_a_job_that_ends_without_a_result_is_retried_as_often_as_allowed(
    work: Work, cluster: ThrowawayGridEngine
) -> None:
    # Without the one host there is none: the second tries go to any.
    assert check_ends_without_a_result(work, cluster).commands.counts["qsub"] == 6


def test_a_job_deleted_by_somebody_is_not_retried(work: Work, cluster: ThrowawayGridEngine) -> None:
    with running(work, cluster, retries=3) as manager:
        handle = manager.submit(work.order("a", seconds=100))
        eventually(at_work(handle))
        cluster.run("qdel", job_id_of(handle))
        assert failure_of(handle).cause is Cause.CANCELLED
    assert len(work.starts()) == 1


def test_a_job_deleted_before_it_starts_is_not_retried(work: Work, cluster: ThrowawayGridEngine) -> None:
    cluster.run("qmod", "-d", "other.q")
    try:
        with running(work, cluster, retries=3) as manager:
            handle = manager.submit(work.order("a", options=SgeOptions(queue="other.q")))
            eventually(lambda: handle.progress.message.startswith("qw"))
            cluster.run("qdel", job_id_of(handle))
            assert failure_of(handle).cause is Cause.CANCELLED
    finally:
        cluster.run("qmod", "-e", "other.q")
    assert work.starts() == []


def test_a_job_that_hangs_leaves_its_stack_in_the_log_and_is_tried_again(
    work: Work, cluster: ThrowawayGridEngine
) -> None:
    with running(work, cluster, retries=1, stall_timeout_seconds=4.0) as manager:
        outcome = success_of(manager.submit(work.order("a", ["hang", "succeed"])))
    assert outcome.attempts == 2
    first = next(path for path in outcome.log_path.parent.iterdir() if path != outcome.log_path)
    assert "in _beat" in first.read_text(), "the stack of the hanging function"


def test_a_job_rescheduled_twice_runs_again_under_its_id_and_is_charged_no_attempt(
    work: Work, cluster: ThrowawayGridEngine
) -> None:
    with running(work, cluster) as manager:
        handle = manager.submit(work.order("a", seconds=300))
        for start in (1, 2):
            eventually(lambda start=start: len(work.starts()) == start and at_work(handle)())
            cluster.run("qmod", "-rj", job_id_of(handle))
        eventually(lambda: len(work.starts()) == 3)
        said = [path.read_text() for path in (work.state_dir / "claims").glob("*.start")]
        work.end("a")
        outcome = success_of(handle)
    assert outcome.attempts == 1
    assert len(set(work.starts())) == 1
    assert len(said) == 1, "Grid Engine says RESTARTED=1 each time: the script has words of its own"


def test_a_job_that_is_suspended_and_goes_on_is_not_stalled(work: Work, cluster: ThrowawayGridEngine) -> None:
    with running(work, cluster, stall_timeout_seconds=4.0) as manager:
        handle = manager.submit(work.order("a", seconds=300))
        eventually(at_work(handle))
        cluster.run("qmod", "-sj", job_id_of(handle))
        eventually(lambda: handle.progress.message.startswith("s"))
        time.sleep(7.5)  # SIGUSR1 first, SIGSTOP after 3 s
        cluster.run("qmod", "-usj", job_id_of(handle))
        work.end("a")
        success_of(handle)
    assert len(work.starts()) == 1


@pytest.fixture
def broken(work: Work, cluster: ThrowawayGridEngine) -> Iterator[SgeOptions]:
    """A queue in which no job can start."""
    prolog = work.folder / "prolog"
    prolog.write_text("#!/bin/sh\nexit 100\n")
    prolog.chmod(0o755)
    cluster.configure("-Aq", queue("broken.q", cluster.tmpdir, prolog=str(prolog)))
    yield SgeOptions(queue="broken.q")
    cluster.run("qconf", "-dq", "broken.q")


def test_a_job_that_cannot_start_is_cancelled_and_fails_with_the_accountings_words(
    work: Work, cluster: ThrowawayGridEngine, broken: SgeOptions
) -> None:
    with running(work, cluster, retries=1) as manager:
        failure = failure_of(manager.submit(work.order("a", options=broken)))
    assert failure.cause is Cause.HOPELESS
    assert "Eqw (application error returned, " in failure.message
    assert work.starts() == []


def test_a_log_folder_that_is_not_on_the_nodes_is_named_at_once(work: Work, cluster: ThrowawayGridEngine) -> None:
    cluster.run("qmod", "-d", "*")
    with running(work, cluster, retries=3) as manager:
        handle = manager.submit(work.order("a"))
        eventually(lambda: handle.progress.job_id is not None)
        shutil.rmtree(work.folder / "sge_logs")
        cluster.run("qmod", "-e", "*")
        failure = failure_of(handle)
    assert failure.cause is Cause.NO_LOG and "set `log_dir`" in failure.message
    assert "Eqw (opening input/output file, " in failure.message
    assert work.starts() == []


def test_a_host_that_puts_job_after_job_into_an_error_state_is_found_out_and_avoided(
    work: Work, cluster: ThrowawayGridEngine, broken: SgeOptions
) -> None:
    with running(work, cluster) as manager:
        for i in range(3):
            manager.submit(work.order(f"a{i}", options=broken))
        eventually(lambda: manager.submitter.nodes.excluded == (socket.gethostname(),), 30)
    assert work.starts() == []


def test_a_time_limit_is_a_cause_of_its_own_and_its_cap_is_kept(timed_out: Handle) -> None:
    failure = failure_of(timed_out, 180)
    assert (failure.cause, failure.attempts) == (Cause.TIMEOUT, 1)
    assert "h_rt" in failure.message


def test_a_master_that_is_away_costs_nothing(work: Work, cluster: ThrowawayGridEngine) -> None:
    def come_back() -> None:
        cluster.wait_for_master()
        # The host's daemon by itself looks for its master again after half a minute.
        cluster.stop_daemon("execd", hard=True)
        cluster.start_daemon("execd")

    check_an_absence(work, cluster, "qmaster", come_back)
