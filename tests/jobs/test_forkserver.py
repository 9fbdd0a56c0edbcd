"""The process that starts the local engine's jobs: modules that print, a machine that refuses a process, its end."""

import errno
import signal
import sys
from pathlib import Path

import pytest
from throwaway_daemons import eventually

from espo_luigi.files import lives, process_room
from espo_luigi.jobs.forkserver import Child, ForkServer

LIMITED = """
import os, sys
from espo_luigi.jobs import forkserver

fork, tries = os.fork, []

def limited():
    tries.append(None)
    if len(tries) == 2:
        raise OSError(int(sys.argv[1]), os.strerror(int(sys.argv[1])))
    return fork()

os.fork = limited
forkserver.serve(lambda order: 0)
"""
CHATTY = """
import os
from espo_luigi.jobs import forkserver

def imports():
    print("half a line, as Python buffers it", end="")
    os.write(1, b"bytes of a C library\\n")
    os.system("echo a line of a child; cat")

forkserver.serve(lambda order: 0, imports)
"""
HELPED = """
import subprocess, time
from espo_luigi.jobs import forkserver

helpers = []
forkserver.serve(lambda order: time.sleep(0.5), lambda: helpers.append(subprocess.Popen(["sleep", "0.1"])))
"""
SLEEPY = """
import time
from espo_luigi.jobs import forkserver

forkserver.serve(lambda order: time.sleep(600))
"""


def started(server: ForkServer, folder: Path, jobs: int) -> list[Child]:
    return [server.start(folder / "order", folder / f"{n}.log") for n in range(jobs)]


@pytest.mark.parametrize("number", ["EAGAIN", "ENOMEM"])
def test_a_limit_on_processes_fails_the_job_that_met_it_and_no_other(tmp_path: Path, number: str) -> None:
    server = ForkServer((sys.executable, "-c", LIMITED, str(getattr(errno, number))))
    children = started(server, tmp_path, 3)
    assert all(child.ended.wait(30) for child in children)
    server.close()
    assert [bool(child.pid) for child in children] == [True, False, True]
    assert "`ulimit -u` allows" in children[1].refused and not children[2].refused


def test_what_modules_print_and_read_as_they_are_imported_disturbs_no_job(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    server = ForkServer((sys.executable, "-c", CHATTY))
    (child,) = started(server, tmp_path, 1)
    assert child.ended.wait(60) and not child.refused
    server.close()
    printed = capfd.readouterr()
    said = ["bytes of a C library", "a line of a child", "half a line, as Python buffers it"]
    assert all(printed.err.count(words) == 1 for words in said) and printed.out == ""
    assert (tmp_path / "0.log").read_text() == ""


def test_the_end_of_a_program_that_a_module_started_as_it_was_imported_disturbs_no_job(tmp_path: Path) -> None:
    server = ForkServer((sys.executable, "-c", HELPED))
    children = started(server, tmp_path, 2)
    assert all(child.ended.wait(20) for child in children)
    server.close()


@pytest.mark.parametrize("before", [True, False], ids=["before the order", "after the order"])
def test_a_server_that_has_ended_starts_nothing_and_says_so(tmp_path: Path, before: bool) -> None:
    server = ForkServer(("bash", "-c", "exit 3" if before else "read; exit 3"))
    if before:
        server._process.wait()
    (child,) = started(server, tmp_path, 1)
    assert child.ended.wait(60)
    assert "the process that starts the local engine's jobs has ended (exit code 3)" in child.refused


def test_jobs_are_stopped_before_they_are_told_dead_when_their_server_was_killed(tmp_path: Path) -> None:
    server = ForkServer((sys.executable, "-c", SLEEPY))
    children = started(server, tmp_path, 2)
    eventually(lambda: all(child.pid for child in children))
    server._process.kill()
    assert all(child.ended.wait(60) for child in children)
    assert all(lives(child.pid, "", process_room()) is False for child in children)


def test_a_server_that_no_job_has_needed_is_ended_while_it_imports() -> None:
    server = ForkServer((sys.executable, "-c", "import time; time.sleep(600)"))
    server.close()
    assert server._process.returncode == -signal.SIGKILL
