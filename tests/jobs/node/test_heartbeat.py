"""A job that works writes heartbeats; a job that hangs stops, although some of its threads run."""

import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from throwaway_daemons import eventually

from espo_luigi.jobs.dask.session import dask_session
from espo_luigi.jobs.node import heartbeat
from espo_luigi.jobs.node.heartbeat import Monitor, beating
from espo_luigi.jobs.resources import Resources


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "_LOOK_SECONDS", 0.5)


def spin(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        sum(range(1000))


def test_work_is_seen_and_hanging_is_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "_LOOK_SECONDS", 0.01)
    beats, looks, monitor = list[dict[str, Any]](), list[bool](), Monitor()

    def look() -> bool:
        looks.append(len(looks) in (0, 1, 2, 5))
        return looks[-1]

    monkeypatch.setattr(monitor, "look", look)
    with beating(monitor, beats.append, 0.0):
        eventually(lambda: len(looks) > 10)
    assert len(beats) == 4


_CHILD = """
import sys, time
while time.process_time() < 0.8:
    sum(range(1000))
print("used", flush=True)
sys.stdin.read()
"""


def test_work_is_seen_after_a_child_that_worked_more_has_ended() -> None:
    monitor = Monitor()
    with subprocess.Popen([sys.executable, "-c", _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"used\n"
        assert monitor.look()
        child.kill()
    monitor.look()
    spin(0.5)
    assert monitor.look()
    assert not monitor.look()


def test_the_peak_is_this_process_own_with_what_it_held_for_a_moment() -> None:
    # In a process of its own: memory that earlier tests held would hide it. Linux writes 1024 bytes as "kB".
    program = """
import re
from espo_luigi.jobs.node.heartbeat import Monitor
monitor = Monitor()
monitor.look()
before = monitor.peak_memory_bytes
held = bytearray(b"x") * (200 * 2**20)
del held
monitor.look()
print((monitor.peak_memory_bytes - before) // 2**20)
print(monitor.peak_memory_bytes / (1024 * int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    held, of_systems = done.stdout.split()
    assert 150 <= int(held) <= 260
    assert float(of_systems) == pytest.approx(1, rel=0.01)


_it_is_time = threading.Event()


def wait_for_it() -> bool:
    """Wait as a Dask task, whose worker is in this process."""
    return _it_is_time.wait(60)


def test_dasks_tasks_are_counted() -> None:
    monitor = Monitor()
    with dask_session(Resources(1, 2, "1GB")) as client:
        monitor.scheduler = client.cluster.scheduler
        assert monitor.tasks_left == 0
        waiting = client.submit(wait_for_it)
        eventually(lambda: monitor.tasks_left)
        assert monitor.sign_of_life()["message"] == "Dask: 1 tasks to go"
        _it_is_time.set()
        assert waiting.result(timeout=60)
        eventually(lambda: not monitor.tasks_left)
