"""What the tests on real clusters share: managers that leave nothing behind, and waiting for what jobs do."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from job_work import NODE_JOB, Work
from throwaway_daemons import eventually
from throwaway_slurm import ThrowawayCluster

from espo_luigi.errors import Failure
from espo_luigi.jobs.causes import Cause
from espo_luigi.jobs.lifecycle.manager import JobManager
from espo_luigi.jobs.lifecycle.state import Handle, Success
from espo_luigi.jobs.order import JobOrder
from espo_luigi.jobs.resources import JobOptions

DRIVER = Path(__file__).with_name("jobs_driver.py")
MIB = 2**20


class Cluster(Protocol):
    """A throw-away cluster of any scheduler."""

    @property
    def environ(self) -> Mapping[str, str]: ...


@contextmanager
def running(work: Work, cluster: Cluster, /, **settings: Any) -> Iterator[JobManager]:
    manager = work.manager(cluster.environ, **settings)
    manager.start()
    try:
        yield manager
    finally:
        manager.cancel_all()


def state_is(handle: Handle, word: str) -> Callable[[], bool]:
    return lambda: handle.progress.message.startswith(word)


def at_work(handle: Handle) -> Callable[[], bool]:
    """A scheduler's "running" comes before the job's command has started: the heartbeat shows that it has."""
    return lambda: handle.progress.percent is not None


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


@contextmanager
def timed_out_job(work: Work, cluster: Cluster) -> Iterator[Handle]:
    """A job that runs into the shortest time limit there is, a minute, while a module's other tests run."""
    with running(work, cluster, retries=2, time_cap_minutes=1) as manager:
        yield manager.submit(work.order("slow", seconds=1000, time_minutes=1))


def start_driver(work: Work, cluster: Cluster, jobs: int, seconds: float, *kind: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(DRIVER), str(work.folder), str(jobs), str(seconds), work.scheduler, *kind]
    environ = {**cluster.environ, "PYTHONFAULTHANDLER": "1"}
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True)


def code_of(driver: subprocess.Popen[str], seconds: float = 120) -> int:
    """Wait for the end of a driver; one that does not end writes its stacks, which pytest shows."""
    try:
        return driver.wait(seconds)
    except subprocess.TimeoutExpired:
        driver.send_signal(signal.SIGABRT)
        driver.wait(10)
        raise


def check_hostile_texts(cluster: Cluster, cases: Mapping[str, tuple[Work, JobOptions]]) -> None:
    """A job with a text in all its values, by text, gets it as it is, by its environment and as an argument."""
    handles = {}
    with ExitStack() as stack:
        for text, (work, options) in cases.items():
            work.folder.mkdir()
            script = (
                "import os, sys, runpy; text = sys.argv.pop(1); "
                f"open({str(work.folder / 'probe')!r}, 'w').write(os.environ['ESPO_TEST'] + text); "
                f"runpy.run_path({str(NODE_JOB)!r}, run_name='__main__')"
            )
            options = replace(options, environment={"ESPO_TEST": text}, scratch=text)
            order = work.order(text, rule=text, wildcards={text: text}, options=options)
            manager = stack.enter_context(running(work, cluster, work=(sys.executable, "-S", "-c", script, text)))
            handles[text] = manager.submit(order)
        for handle in handles.values():
            success_of(handle)
    for text, (work, _) in cases.items():
        assert (work.folder / "probe").read_text() == text + text
        assert not list(work.folder.rglob("pwned"))


def left_behind(work: Work, cluster: Cluster, order: JobOrder) -> Handle:
    """Have a driver submit a job, and leave it alone."""
    driver = work.manager(cluster.environ)
    driver.start()
    handle = driver.submit(order)
    job_id_of(handle)
    driver.detach()
    return handle


def check_ends_without_a_result(work: Work, cluster: Cluster) -> JobManager:
    """Jobs that end without a result are retried as often as allowed."""
    with running(work, cluster, retries=1) as manager:
        crashed = manager.submit(work.order("crash", "die"))
        silent = manager.submit(work.order("silent", "nothing"))
        assert failure_of(crashed).cause is failure_of(silent).cause is Cause.CRASHED
    assert len(work.starts()) == 4
    return manager


def check_a_cancellation(work: Work, cluster: ThrowawayCluster) -> None:
    """A job that somebody cancels is not tried again."""
    with running(work, cluster, retries=3) as manager:
        handle = manager.submit(work.order("a", seconds=100))
        eventually(at_work(handle))
        cluster.run("scancel", job_id_of(handle))
        assert failure_of(handle).cause is Cause.CANCELLED
    assert len(work.starts()) == 1


def check_killed_drivers(work: Work, cluster: Cluster, jobs: int) -> None:
    """Drivers that are killed at any moment lose and double nothing."""
    generator = random.Random(20)
    for _ in range(10):
        driver = start_driver(work, cluster, jobs, seconds=2)
        time.sleep(generator.uniform(0.25, 1.2))
        driver.kill()
        driver.wait()
    last = start_driver(work, cluster, jobs, seconds=2)
    assert (code_of(last), json.loads(last.communicate()[0])) == (0, {"complete": jobs})
    tasks = Counter(name.rpartition(".")[0] for name in work.starts())
    assert Counter(tasks.values()) == {1: jobs}, "every task's job started exactly once"


def check_an_absence(work: Work, cluster: Any, daemon: str, come_back: Callable[[], None]) -> None:
    """A scheduler that is away costs nothing."""
    with running(work, cluster) as manager:
        handles = [manager.submit(work.order(f"a{i}", seconds=3)) for i in range(3)]
        eventually(lambda: all(at_work(handle)() for handle in handles))
        cluster.stop_daemon(daemon, hard=True)
        late = manager.submit(work.order("late"))
        assert all(isinstance(handle.wait(20), Success) for handle in handles), "result files count without it"
        assert late.wait(2) is None
        cluster.start_daemon(daemon)
        come_back()
        success_of(late, 60)
    assert Counter(Counter(work.starts()).values()) == {1: 4}


def take_back(cluster: ThrowawayCluster, node: str) -> None:
    """Have Slurm use a node again that was set down."""
    # Slurm may have taken a node that answers back by itself; then it refuses to resume it.
    cluster.run("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)
    eventually(lambda: "down" not in cluster.run("sinfo", "--noheader", "--format=%T", f"--nodes={node}"))
