"""A job on its node answers the signals of a scheduler; Grid Engine sends them to all its processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from throwaway_daemons import eventually

from espo_luigi.jobs.order import JobOrder
from espo_luigi.jobs.schedulers.gridengine import render
from espo_luigi.jobs.schedulers.script import ScriptValues

JOB = """
import subprocess, sys, time
from pathlib import Path
from espo_luigi import machine
from espo_luigi.jobs.node import run as node

def at_its_work(order, monitor):
    child = subprocess.Popen(["sleep", "60"], stderr=subprocess.DEVNULL)
    Path(sys.argv[2]).write_text(str(child.pid))
    time.sleep(60)

sys.exit(node.run_order(Path(sys.argv[1]), at_its_work))
"""


@contextmanager
def at_work(folder: Path, order: JobOrder) -> Iterator[tuple[subprocess.Popen[str], psutil.Process]]:
    """The job of the script that goes to Grid Engine, in a group of its own, and a process that it has started."""
    (folder / "job.py").write_text(JOB)
    child = folder / "child"
    values = ScriptValues(
        name="r.Rule.1",
        attempt=1,
        argv=(sys.executable, str(folder / "job.py"), str(order.files.order), str(child)),
        cpus_per_task=1,
        memory_bytes=100 * 2**20,
        time_minutes=1,
        log_pattern="/x-$JOB_ID.out",
        claim_file=str(folder / "claim"),
        workdir=str(folder),
    )
    environ = {**os.environ, "JOB_ID": "7", "SGE_TASK_ID": "undefined", "PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen(
        ["bash", "-c", render(values)], env=environ, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as job:
        try:
            eventually(lambda: child.exists() and bool(child.read_text()))
            yield job, psutil.Process(int(child.read_text()))
        finally:
            with suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)


def test_a_job_goes_on_with_all_its_processes_after_the_signal_before_a_suspension(
    tmp_path: Path, order: JobOrder
) -> None:
    with at_work(tmp_path, order) as (job, child):
        os.killpg(job.pid, signal.SIGUSR1)
        time.sleep(0.5)
        assert job.poll() is None and child.is_running() and child.status() == psutil.STATUS_SLEEPING


@pytest.mark.parametrize(
    ("signum", "is_late", "outcome"),
    [
        # Grid Engine's signal before a kill, to all processes; Slurm's to the script, early and when time is nearly up.
        (signal.SIGUSR2, False, "preempted"),
        (signal.SIGTERM, False, "preempted"),
        (signal.SIGTERM, True, "time limit"),
    ],
)
def test_a_job_that_is_told_to_end_says_so_and_why(
    tmp_path: Path,
    order: JobOrder,
    monkeypatch: pytest.MonkeyPatch,
    signum: signal.Signals,
    is_late: bool,
    outcome: str,
) -> None:
    if is_late:
        monkeypatch.setattr("espo_luigi.jobs.schedulers.script.ScriptValues.late_seconds", 0)
    with at_work(tmp_path, order) as (job, _):
        os.killpg(job.pid, signum) if signum == signal.SIGUSR2 else job.terminate()
        job.communicate(timeout=60)
    assert job.returncode == 128 + signum
    result = json.loads(order.files.result.read_text())
    told = (result["outcome"], result["exception"], result["job_id"])
    assert told == (outcome, f"Stopped: stopped by signal {signum.value}", "7")


FORKS = """
import os, signal, sys, time
from pathlib import Path
from espo_luigi import machine
from espo_luigi.jobs.node import run as node

def end_of_a_fork():
    pid = os.fork()
    if not pid:
        time.sleep(5)
        os._exit(0)
    os.kill(pid, signal.SIGTERM)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def work(order, monitor):
    ends = [end_of_a_fork() for _ in range(30)]
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
    finally:
        ends.append(end_of_a_fork())
        Path(sys.argv[2]).write_text(str(ends))

sys.exit(node.run_order(Path(sys.argv[1]), work))
"""


def test_a_signal_ends_forks_of_a_job_at_once_even_while_they_start_or_the_job_stops(
    tmp_path: Path, order: JobOrder
) -> None:
    (tmp_path / "job.py").write_text(FORKS)
    ends = tmp_path / "ends"
    job = [sys.executable, str(tmp_path / "job.py"), str(order.files.order), str(ends)]
    subprocess.run(job, check=False, timeout=60, stderr=subprocess.DEVNULL)
    assert ends.read_text() == str([-signal.SIGTERM] * 31)
    assert json.loads(order.files.result.read_text())["exception"] == "Stopped: stopped by signal 15"


IN_A_HOOK = """
import os, signal, sys, time
from pathlib import Path
from espo_luigi import machine
from espo_luigi.jobs.node import run as node

to_send = [signal.SIGTERM]

def work(order, monitor):
    os.register_at_fork(**{sys.argv[2]: lambda: to_send and os.kill(os.getpid(), to_send.pop())})
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
    time.sleep(5)

sys.exit(node.run_order(Path(sys.argv[1]), work))
"""


@pytest.mark.parametrize("hook", ["before", "after_in_parent"])
def test_a_signal_stops_a_job_even_if_it_comes_where_python_drops_exceptions(
    tmp_path: Path, order: JobOrder, hook: str
) -> None:
    (tmp_path / "job.py").write_text(IN_A_HOOK)
    job = [sys.executable, str(tmp_path / "job.py"), str(order.files.order), hook]
    done = subprocess.run(job, check=False, timeout=60, stderr=subprocess.DEVNULL)
    assert done.returncode == 128 + signal.SIGTERM
    assert json.loads(order.files.result.read_text())["exception"] == "Stopped: stopped by signal 15"


HANGS = """
import ctypes, sys, time
from pathlib import Path
from espo_luigi import machine
from espo_luigi.jobs.node import run as node

def hang():
    ctypes.PyDLL(None).usleep(2_000_000)  # with Python's lock: no thread of Python goes on

def work(order, monitor):
    with node.signs_of_life(order, monitor):
        until, beats, beat = time.monotonic() + 1.5, set(), order.files.heartbeat
        while time.monotonic() < until or len(beats) < 3:
            sum(range(10_000))
            if time.monotonic() > until and beat.exists():
                beats.add(beat.read_text())
        hang()

sys.exit(node.run_order(Path(sys.argv[1]), work))
"""


def test_a_job_without_progress_writes_where_it_is_even_if_it_holds_pythons_lock(
    tmp_path: Path, order: JobOrder
) -> None:
    replace(order, beat_seconds=0.2, stack_after_seconds=1.2).write()
    (tmp_path / "job.py").write_text(HANGS)
    job = [sys.executable, str(tmp_path / "job.py"), str(order.files.order)]
    done = subprocess.run(job, check=True, timeout=60, stderr=subprocess.PIPE, text=True)
    assert "in hang" in done.stderr, "as the time begins anew with each heartbeat"


ARMS_IN_A_FORK = """
import os, signal, sys
from pathlib import Path
from espo_luigi import machine
from espo_luigi.jobs.node import run as node

def work(order, monitor):
    child = os.fork()
    if child == 0:
        signal.alarm(5)
        node._expect_progress(order)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    monitor.done.set()

sys.exit(node.run_order(Path(sys.argv[1]), work))
"""


def test_a_fork_of_a_job_that_waits_for_progress_does_not_hang(tmp_path: Path, order: JobOrder) -> None:
    replace(order, stack_after_seconds=60.0).write()
    (tmp_path / "job.py").write_text(ARMS_IN_A_FORK)
    subprocess.run([sys.executable, str(tmp_path / "job.py"), str(order.files.order)], check=True, timeout=120)


LEAVES = """
import atexit, sys, threading, time
from functools import partial
from pathlib import Path
from espo_luigi import machine
from espo_luigi.jobs.node import run as node

def work(order, monitor):
    print("its last words", end="")
    if sys.argv[2] == "thread":
        threading.Thread(target=time.sleep, args=(300,)).start()
    else:
        atexit.register(time.sleep, 300)
    if sys.argv[3] == "1":
        raise ValueError("no such model")

machine.end_with(partial(node.run_order, Path(sys.argv[1]), work))
"""


@pytest.mark.parametrize(("left", "code"), [("thread", 0), ("exit handler", 0), ("thread", 1)])
def test_what_a_task_leaves_behind_does_not_keep_its_job_once_the_result_is_written(
    tmp_path: Path, order: JobOrder, left: str, code: int
) -> None:
    (tmp_path / "job.py").write_text(LEAVES)
    job = [sys.executable, str(tmp_path / "job.py"), str(order.files.order), left, str(code)]
    done = subprocess.run(job, check=False, timeout=120, stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL)
    assert (done.returncode, done.stdout) == (code, "its last words")
    assert json.loads(order.files.result.read_text())["outcome"] == ("error" if code else "success")
