"""The environment that a driver hands on to the jobs that it submits, and commands that cannot be started."""

import errno
import os
import subprocess
from pathlib import Path

import pytest

from espo_luigi.jobs import schedulers
from espo_luigi.jobs.schedulers.commands import Commands

JOBS = {"slurm": {"SLURM_JOB_ID": "7", "SLURM_TMPDIR": "/node/7"}, "sge": {"JOB_ID": "8", "SGE_TASK_ID": "undefined"}}


@pytest.mark.parametrize(("inside", "submits"), [("slurm", "sge"), ("sge", "slurm")])
def test_a_job_does_not_take_itself_for_one_of_the_scheduler_around_its_driver(
    tmp_path: Path, inside: str, submits: str
) -> None:
    program = tmp_path / "submit"
    program.write_text("#!/bin/sh\nenv\n")
    program.chmod(0o755)
    environ = {"PATH": os.environ["PATH"], "MINE": "kept", **JOBS[inside]}
    assert schedulers.around(environ) is schedulers.SCHEDULERS[inside]
    lines = Commands(schedulers.SCHEDULERS[submits], environ=environ).submit((str(program),)).stdout.splitlines()
    handed_on = dict(line.split("=", 1) for line in lines)
    assert schedulers.around(handed_on) is None
    assert schedulers.around(handed_on | JOBS[submits]) is schedulers.SCHEDULERS[submits]
    assert handed_on["MINE"] == "kept"


def test_a_command_for_which_no_process_is_left_names_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_fork(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "run", no_fork)
    answer = Commands(schedulers.SCHEDULERS["slurm"]).run(("squeue",))
    assert answer.returncode is None and answer.installed
    assert answer.words.startswith("squeue could not be started: ") and "`ulimit -u` allows" in answer.words
