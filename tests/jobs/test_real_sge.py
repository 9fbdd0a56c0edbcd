"""The engine on a real, throw-away Grid Engine: nothing lost, nothing doubled, nothing hanging."""

from __future__ import annotations

import json
import random
import re
import signal
import socket
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
from throwaway_sge import ThrowawayGridEngine, missing_packages, queue

from espo_luigi.errors import SubmissionError
from espo_luigi.jobs import sge
from espo_luigi.jobs.commands import Commands, CommandSettings
from espo_luigi.jobs.handles import Failure, Handle, Success
from espo_luigi.jobs.manager import JobManager
from espo_luigi.jobs.policy import Cause
from espo_luigi.jobs.records import RecordStore
from espo_luigi.jobs.sge import SgeOptions
from espo_luigi.jobs.stopping import cancel_records

_MISSING = missing_packages()
pytestmark = [pytest.mark.slurm, pytest.mark.sge, pytest.mark.skipif(_MISSING is not None, reason=str(_MISSING))]
DRIVER = Path(__file__).with_name("driver.py")
MIB = 2**20


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThrowawayGridEngine]:
    with ThrowawayGridEngine.start() as cluster:
        yield cluster


@pytest.fixture
def work(tmp_path: Path) -> Work:
    return Work(tmp_path, "sge")


@contextmanager
def running(work: Work, cluster: ThrowawayGridEngine, **settings: Any) -> Iterator[JobManager]:
    manager = work.manager(cluster.environ, **settings)
    manager.start()
    try:
        yield manager
    finally:
        manager.cancel_all()


def eventually(condition: Callable[[], bool], timeout: float = 60.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def at_work(handle: Handle) -> Callable[[], bool]:
    return lambda: bool(handle.progress.heartbeat)


def failure_of(handle: Handle, timeout: float = 60.0) -> Failure:
    outcome = handle.wait(timeout)
    assert isinstance(outcome, Failure), outcome
    return outcome


def success_of(handle: Handle, timeout: float = 60.0) -> Success:
    outcome = handle.wait(timeout)
    assert isinstance(outcome, Success), outcome
    return outcome


def job_id_of(handle: Handle) -> str:
    eventually(lambda: handle.progress.job_id is not None)
    return str(handle.progress.job_id)


def end_work(work: Work, name: str) -> None:
    """Have the job of that name end its work."""
    Path(f"{work.output(name)}.told").touch()


def asked(cluster: ThrowawayGridEngine, job_id: str) -> dict[str, str]:
    """What a job in the queue has asked for, as qstat tells it."""
    lines = cluster.run("qstat", "-j", job_id).splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def test_a_job_that_succeeds_is_seen_with_its_result_log_and_what_it_asked_for(
    work: Work, cluster: ThrowawayGridEngine
) -> None:
    options = SgeOptions(queue="other.q", extra={"l": "h_cpu=3600"})
    with running(work, cluster) as manager:
        handle = manager.submit(
            work.request("a,b:c", seconds=1, cpus_per_task=4, memory_bytes=2**30, run="2024@x", options=options)
        )
        eventually(at_work(handle))
        told = asked(cluster, job_id_of(handle))
        outcome = success_of(handle)
    assert told["hard resource_list"] == "h_rt=600,h_vmem=256M,h_cpu=3600"
    assert told["parallel environment"] == "threaded range: 4"
    assert told["hard_queue_list"] == "other.q"
    assert told["notify"] == "TRUE"
    assert outcome.result["job_id"] == outcome.job_id
    assert outcome.log_path == work.folder / "sge_logs" / "rule" / f"rule-name=a+b_c-{outcome.job_id}.out"
    assert outcome.log_path.exists()
    assert len(work.starts()) == 1


def test_a_python_exception_is_not_retried_and_its_words_are_in_the_message(
    work: Work, cluster: ThrowawayGridEngine
) -> None:
    with running(work, cluster) as manager:
        failure = failure_of(manager.submit(work.request("a", "fail", retries=3)))
    assert failure.cause is Cause.EXCEPTION
    assert "no such model" in failure.message and str(failure.log_path) in failure.message
    assert len(work.starts()) == 1


@pytest.mark.parametrize("how", ["memory", "memory of many"])
def test_a_job_that_exceeds_its_memory_is_retried_with_half_as_much_again(
    work: Work, cluster: ThrowawayGridEngine, how: str
) -> None:
    """One process is refused what is above the limit; several together are killed."""
    with running(work, cluster) as manager:
        request = work.request("a", [how, "succeed"], seconds=3, retries=2, memory_bytes=150 * MIB)
        handle = manager.submit(request)
        eventually(lambda: handle.progress.attempt == 2 and at_work(handle)(), 30)
        told = asked(cluster, job_id_of(handle))
        success_of(handle)
    assert "h_vmem=225M" in told["hard resource_list"]


def test_a_time_limit_is_a_cause_of_its_own_and_its_cap_is_kept(work: Work, cluster: ThrowawayGridEngine) -> None:
    with running(work, cluster) as manager:
        limits = {"retries": 2, "time_minutes": 1, "time_cap_minutes": 1}
        failure = failure_of(manager.submit(work.request("a", seconds=1000, **limits)), 180)
    assert (failure.cause, failure.attempts) == (Cause.TIMEOUT, 1)
    assert "h_rt" in failure.message


def test_a_job_that_ends_without_a_result_is_retried_as_often_as_allowed(
    work: Work, cluster: ThrowawayGridEngine
) -> None:
    with running(work, cluster) as manager:
        crashed = manager.submit(work.request("crash", "die", retries=1))
        silent = manager.submit(work.request("silent", "nothing", retries=0))
        assert failure_of(crashed).cause is failure_of(silent).cause is Cause.CRASHED
        # Without the one host there is none: the second try goes to any.
        assert manager.commands.counts["qsub"] == 4
    assert len(work.starts()) == 3


def test_a_job_deleted_by_somebody_is_not_retried(work: Work, cluster: ThrowawayGridEngine) -> None:
    with running(work, cluster) as manager:
        handle = manager.submit(work.request("a", seconds=100, retries=3))
        eventually(at_work(handle))
        cluster.run("qdel", job_id_of(handle))
        assert failure_of(handle).cause is Cause.CANCELLED
    assert len(work.starts()) == 1


def test_a_job_deleted_before_it_starts_is_not_retried(work: Work, cluster: ThrowawayGridEngine) -> None:
    cluster.run("qmod", "-d", "other.q")
    try:
        with running(work, cluster) as manager:
            handle = manager.submit(work.request("a", options=SgeOptions(queue="other.q"), retries=3))
            eventually(lambda: handle.progress.state == "qw")
            cluster.run("qdel", job_id_of(handle))
            assert failure_of(handle).cause is Cause.CANCELLED
    finally:
        cluster.run("qmod", "-e", "other.q")
    assert work.starts() == []


def test_a_job_that_hangs_leaves_its_stack_in_the_log_and_is_tried_again(
    work: Work, cluster: ThrowawayGridEngine
) -> None:
    with running(work, cluster) as manager:
        outcome = success_of(
            manager.submit(work.request("a", ["hang", "succeed"], retries=1, stall_timeout_seconds=1.5))
        )
    assert outcome.attempts == 2
    first = next(path for path in outcome.log_path.parent.iterdir() if path != outcome.log_path)
    assert "in _beat" in first.read_text(), "the stack of the hanging function"


def test_a_job_rescheduled_twice_runs_again_under_its_id_and_is_charged_no_attempt(
    work: Work, cluster: ThrowawayGridEngine
) -> None:
    with running(work, cluster) as manager:
        handle = manager.submit(work.request("a", seconds=300))
        for start in (1, 2):
            eventually(lambda start=start: len(work.starts()) == start and at_work(handle)())
            cluster.run("qmod", "-rj", job_id_of(handle))
        eventually(lambda: len(work.starts()) == 3)
        said = [path.read_text() for path in (work.folder / "state" / "claims").glob("*.start")]
        end_work(work, "a")
        outcome = success_of(handle, 40)
    assert outcome.attempts == 1
    assert len(set(work.starts())) == 1
    assert len(said) == 1, "Grid Engine says RESTARTED=1 each time: the script has words of its own"


def test_a_job_that_is_suspended_and_goes_on_is_not_stalled(work: Work, cluster: ThrowawayGridEngine) -> None:
    with running(work, cluster) as manager:
        handle = manager.submit(work.request("a", seconds=300, stall_timeout_seconds=2.0, retries=0))
        eventually(at_work(handle))
        cluster.run("qmod", "-sj", job_id_of(handle))
        eventually(lambda: handle.progress.state == "s")
        time.sleep(4.5)  # SIGUSR1 first, SIGSTOP after 3 s
        cluster.run("qmod", "-usj", job_id_of(handle))
        end_work(work, "a")
        success_of(handle, 40)
    assert len(work.starts()) == 1


def test_a_job_that_cannot_start_is_cancelled_and_fails_with_where_to_look(
    work: Work, cluster: ThrowawayGridEngine
) -> None:
    prolog = work.folder / "prolog"
    prolog.write_text("#!/bin/sh\nexit 100\n")
    prolog.chmod(0o755)
    cluster.configure("-Aq", queue("broken.q", prolog=str(prolog)))
    try:
        with running(work, cluster) as manager:
            failure = failure_of(manager.submit(work.request("a", options=SgeOptions(queue="broken.q"), retries=1)))
    finally:
        cluster.run("qconf", "-dq", "broken.q")
    assert failure.cause is Cause.HOPELESS
    assert "Eqw (qstat -j " in failure.message
    assert work.starts() == []


def test_a_host_that_puts_job_after_job_into_an_error_state_is_found_out_and_avoided(
    work: Work, cluster: ThrowawayGridEngine
) -> None:
    prolog = work.folder / "prolog"
    prolog.write_text("#!/bin/sh\nexit 100\n")
    prolog.chmod(0o755)
    cluster.configure("-Aq", queue("broken.q", prolog=str(prolog)))
    options = SgeOptions(queue="broken.q")
    try:
        with running(work, cluster) as manager:
            for i in range(3):
                manager.submit(work.request(f"a{i}", options=options))
            eventually(lambda: manager.submitter.nodes.excluded == (socket.gethostname(),), 30)
    finally:
        cluster.run("qconf", "-dq", "broken.q")
    assert work.starts() == []


def test_a_job_that_stays_after_its_result_is_cancelled(work: Work, cluster: ThrowawayGridEngine) -> None:
    with running(work, cluster) as manager:
        outcome = success_of(manager.submit(work.request("a", "linger")))
        eventually(lambda: not _is_known(cluster, outcome.job_id))


def test_a_master_that_is_away_costs_nothing(work: Work, cluster: ThrowawayGridEngine) -> None:
    with running(work, cluster) as manager:
        handles = [manager.submit(work.request(f"a{i}", seconds=3)) for i in range(3)]
        eventually(lambda: all(at_work(handle)() for handle in handles))
        cluster.stop_daemon("qmaster", hard=True)
        late = manager.submit(work.request("late"))
        assert all(isinstance(handle.wait(20), Success) for handle in handles), "result files count without it"
        assert late.wait(1) is None
        cluster.start_daemon("qmaster")
        cluster.wait_for_master()
        # The host's daemon by itself looks for its master again after half a minute.
        cluster.stop_daemon("execd", hard=True)
        cluster.start_daemon("execd")
        success_of(late, 60)
    assert Counter(Counter(work.starts()).values()) == {1: 4}


@pytest.mark.parametrize(
    ("options", "more", "words"),
    [
        (SgeOptions(queue="nix.q"), {}, "unknown queue"),
        (SgeOptions(project="nix"), {}, "project .nix. does not exist"),
        (SgeOptions(parallel_environment="nix"), {"cpus_per_task": 2}, "parallel environment .nix. does not exist"),
        (SgeOptions(memory_resource="nix"), {}, "unknown resource .nix."),
        (SgeOptions(extra={"l": "nix=1"}), {}, "unknown resource .nix."),
        (SgeOptions(extra={"nix": "1"}), {}, "invalid option argument"),
        (SgeOptions(), {"cpus_per_task": 129}, "no suitable queues"),
        (SgeOptions(), {"memory_bytes": 2**40}, "no suitable queues"),
    ],
)
def test_what_grid_engine_will_never_take_fails_at_once_with_its_words(
    work: Work, cluster: ThrowawayGridEngine, options: SgeOptions, more: dict[str, Any], words: str
) -> None:
    with running(work, cluster) as manager:
        failure = failure_of(manager.submit(work.request("a", options=options, retries=3, **more)), 5)
        assert failure.cause is Cause.REFUSED
        assert re.search(words, failure.message)
        assert manager.commands.counts["qsub"] == 1


def test_a_limit_on_submitted_jobs_passes_as_jobs_end(work: Work, cluster: ThrowawayGridEngine) -> None:
    cluster.change("conf", max_u_jobs="2")
    try:
        with running(work, cluster) as manager:
            handles = [manager.submit(work.request(f"a{i}")) for i in range(4)]
            for handle in handles:
                success_of(handle, 60)
    finally:
        cluster.change("conf", max_u_jobs="0")
    assert len(work.starts()) == len(set(work.starts())) == 4


@pytest.mark.parametrize("text", ["a'b", "$(touch pwned)", "${HOME}", "a b;c#", "é漢🌧", "-x", "\\", 'x"y`id`'])
def test_hostile_text_in_every_value_reaches_the_job_as_it_is(
    work: Work, cluster: ThrowawayGridEngine, tmp_path: Path, text: str
) -> None:
    # qsub replaces variables in a log's path: such a folder is refused.
    hostile = Work(tmp_path / text.replace("$", "dollar"), "sge")
    hostile.folder.mkdir()
    probe = tmp_path / "probe"
    script = (
        f"import os, sys, runpy; open({str(probe)!r}, 'w').write(os.environ['ESPO_TEST'] + sys.argv[2]); "
        f"runpy.run_path({str(NODE_JOB)!r}, run_name='__main__')"
    )
    options = SgeOptions(environment={"ESPO_TEST": text}, scratch=text, setup=f"# {text}\n#$ -t 1-3")
    request = hostile.request(text, run=text, rule=text, wildcards={text: text}, options=options)
    request = replace(request, argv=(sys.executable, "-S", "-c", script, str(request.job_file), text))
    with running(hostile, cluster) as manager:
        success_of(manager.submit(request))
    assert probe.read_text() == text + text
    assert not list(tmp_path.rglob("pwned"))


@pytest.mark.parametrize("name", ["queue", "project", "parallel_environment", "memory_resource"])
def test_hostile_text_in_an_option_is_refused_and_runs_nothing(
    work: Work, cluster: ThrowawayGridEngine, name: str
) -> None:
    with running(work, cluster) as manager:
        options = SgeOptions(**{name: '$(touch pwned) "; touch pwned #'})
        try:
            outcome = manager.submit(work.request("a", cpus_per_task=2, options=options)).wait(20)
        except SubmissionError:
            assert name == "memory_resource"
        else:
            assert isinstance(outcome, Failure) and outcome.cause is Cause.REFUSED, outcome
    assert not list(work.folder.rglob("pwned"))


def test_a_driver_killed_at_any_moment_loses_and_doubles_nothing(work: Work, cluster: ThrowawayGridEngine) -> None:
    generator = random.Random(20)
    for _ in range(10):
        driver = _driver(work, cluster, jobs=12, seconds=2)
        time.sleep(generator.uniform(0.25, 1.2))
        driver.kill()
        driver.wait()
    last = _driver(work, cluster, jobs=12, seconds=2)
    assert (last.wait(90), json.loads(last.communicate()[0])) == (0, {"complete": 12})
    tasks = Counter(name.rpartition(".")[0] for name in work.starts())
    assert Counter(tasks.values()) == {1: 12}, "every task's job started exactly once"


def test_an_interrupted_driver_cancels_its_jobs_and_nobody_elses(work: Work, cluster: ThrowawayGridEngine) -> None:
    other = cluster.run("qsub", "-terse", "-b", "y", "-o", "/dev/null", "-j", "y", "sleep", "100").strip()
    driver = _driver(work, cluster, jobs=4, seconds=100)
    eventually(lambda: len(work.starts()) == 4)
    driver.send_signal(signal.SIGINT)
    assert (driver.wait(30), json.loads(driver.communicate()[0])) == (130, {"cancelled": 4})
    eventually(lambda: [row.job_id for row in Commands(sge, environ=cluster.environ).jobs() or []] == [other])
    cluster.run("qdel", other)


def test_jobs_of_a_driver_that_hung_up_go_on_and_are_taken_over(work: Work, cluster: ThrowawayGridEngine) -> None:
    driver = _driver(work, cluster, jobs=3, seconds=4)
    eventually(lambda: len(work.starts()) == 3)
    driver.send_signal(signal.SIGHUP)
    driver.wait(20)
    again = _driver(work, cluster, jobs=3, seconds=4)
    assert again.wait(40) == 0
    assert len(work.starts()) == 3


def test_jobs_left_behind_can_be_cancelled_without_a_driver(work: Work, cluster: ThrowawayGridEngine) -> None:
    manager = work.manager(cluster.environ)
    manager.start()
    handle = manager.submit(work.request("a", seconds=100))
    job_id = job_id_of(handle)
    manager.detach()
    store = RecordStore(work.folder / "state")
    assert cancel_records(store, Commands(sge, CommandSettings(), cluster.environ), store.all()) == 1
    eventually(lambda: not _is_known(cluster, job_id))


def test_the_number_of_commands_does_not_depend_on_the_number_of_jobs(work: Work, cluster: ThrowawayGridEngine) -> None:
    with running(work, cluster, poll_seconds=1.0) as manager:
        began = time.monotonic()
        for handle in [manager.submit(work.request(f"a{i}", seconds=1)) for i in range(12)]:
            success_of(handle, 60)
        polls, memories = manager.commands.counts["qstat"], manager.commands.counts["qacct"]
    assert polls <= (time.monotonic() - began) / 1.0 + 3
    assert memories == 0, "who has left a result is not looked for in the accounting file"


def _is_known(cluster: ThrowawayGridEngine, job_id: str) -> bool:
    return bool(cluster.run("qstat", "-j", job_id, check=False))


def _driver(work: Work, cluster: ThrowawayGridEngine, jobs: int, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, str(DRIVER), str(work.folder), str(jobs), str(seconds), "sge"]
    return subprocess.Popen(command, env=cluster.environ, stdout=subprocess.PIPE, text=True)
