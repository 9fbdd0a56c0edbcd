"""The process that starts the local engine's jobs, on a machine that refuses a process."""

import sys
from pathlib import Path

from espo_luigi.jobs.local.forkserver import ForkServer

SERVER = """
import os
from espo_luigi.jobs.local import forkserver

fork, tries = os.fork, []

def limited():
    tries.append(None)
    if len(tries) == 2:
        raise BlockingIOError(11, "Resource temporarily unavailable")
    return fork()

os.fork = limited
forkserver.serve(lambda order: 0)
"""


def test_a_limit_on_processes_fails_the_job_that_met_it_and_no_other(tmp_path: Path) -> None:
    server = ForkServer((sys.executable, "-c", SERVER))
    children = [server.start(tmp_path / "order", tmp_path / f"{n}.log") for n in range(3)]
    assert all(child.ended.wait(30) for child in children)
    server.close()
    assert [bool(child.pid) for child in children] == [True, False, True]
    assert "`ulimit -u` allows" in children[1].refused and not children[2].refused
