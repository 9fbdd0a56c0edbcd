"""A driver's job after the end of the driver, by its note, its exit code and Slurm's answers; without a Slurm."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_clock import FakeClock

from espo_luigi.errors import SubmissionError
from espo_luigi.jobs.lock import DriverLock
from espo_luigi.jobs.schedulers import slurm
from espo_luigi.jobs.schedulers.base import Row
from espo_luigi.jobs.schedulers.commands import Answer, Commands
from espo_luigi.jobs.schedulers.driver_job import Note, note_path, render_driver, submit_driver, withdraw
from espo_luigi.jobs.schedulers.script import ScriptValues
from espo_luigi.jobs.schedulers.slurm_parse import row

# The job's SIGTERM, which it hands on, arrives while the driver is at its end.
_TOLD = "trap '' TERM; kill -TERM $PPID; sleep 0.1; "
TERMINATED = ("bash", "-c", _TOLD + "exit 143")
DONE = ("bash", "-c", _TOLD)
# Answers that job 7 is in the state of the file beside it, and records what it is asked for.
SCONTROL = """#!/bin/bash
echo "$*" >> "${0%/*}/asked"
[ "$1" = requeue ] || { echo "JobId=7 JobName=a JobState=$(cat "${0%/*}/state") Reason=None"; exit; }
echo PENDING > "${0%/*}/state"
exit "$(cat "${0%/*}/code")"
"""


class Slurm(Commands):
    """Records Slurm's commands, and lists the driver's job in a certain state."""

    def __init__(self, state: str = "RUNNING", submitted: Answer | None = None) -> None:
        super().__init__(slurm)
        self.state = state
        self.submitted = submitted or Answer(0, "7\n")
        self.asked: list[tuple[str, ...]] = []

    def run(self, argv: tuple[str, ...], environ: object = None) -> Answer:
        self.asked.append(argv)
        return Answer(0)

    def jobs(self, job_ids: object = ()) -> list[Row] | None:
        return [row("7", "run.driver", self.state)]

    def submit(self, argv: tuple[str, ...]) -> Answer:
        return self.submitted


class Job:
    """A driver's job with a driver, a state in Slurm, and the exit code of `scontrol requeue`."""

    def __init__(self, folder: Path, command: tuple[str, ...], state: str = "RUNNING", code: int = 0) -> None:
        self.folder = folder / "job"
        self.folder.mkdir(exist_ok=True)
        self.note = note_path(folder)
        for name, text in {"scontrol": SCONTROL, "state": state, "code": str(code)}.items():
            (self.folder / name).write_text(text)
        (self.folder / "scontrol").chmod(0o700)
        (self.folder / "asked").write_text("")
        self.script = render_driver(values(folder, command), self.note, "mine", pause_seconds=0)

    def start(self, restarts: int = 0) -> subprocess.Popen[str]:
        path = f"{self.folder}:{os.environ['PATH']}"
        environ = {**os.environ, "PATH": path, "SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": str(restarts)}
        return subprocess.Popen(
            ["bash", "-c", self.script], env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def ended(self, short: int = 0, token: str = "mine") -> tuple[int, str]:
        """The job's exit code and log, after so many slots that were too short."""
        Note(token, "7").write(self.note)
        self.short.write_text(str(short))
        job = self.start()
        log, _ = job.communicate(timeout=60)
        return job.returncode, log

    @property
    def short(self) -> Path:
        return self.note.with_name("driver-job.json.short")

    @property
    def requeued(self) -> int:
        return (self.folder / "asked").read_text().splitlines().count("requeue 7")


@pytest.mark.parametrize("state", ["COMPLETING", "CANCELLED", "PENDING"])
def test_of_a_job_that_does_not_run_any_more_nothing_is_queued_again(tmp_path: Path, state: str) -> None:
    job = Job(tmp_path, TERMINATED, state)
    code, log = job.ended()
    assert (code, job.requeued) == (143, 0)
    assert f"job 7 is {state}: it is left to Slurm" in log


def test_a_terminated_driver_is_queued_again_and_one_that_did_its_work_meanwhile_is_not(tmp_path: Path) -> None:
    job = Job(tmp_path, TERMINATED)
    code, log = job.ended()
    assert (code, job.requeued, "job 7 is queued again" in log) == (143, 1, True)
    assert (job.short.read_text(), job.note.exists()) == ("1\n", True)
    job = Job(tmp_path, DONE)
    assert (job.ended()[0], job.requeued, job.note.exists()) == (0, 0, False)


def test_the_drivers_exit_code_is_the_jobs_and_its_words_keep_their_blanks_and_signs(tmp_path: Path) -> None:
    job = Job(tmp_path, ("bash", "-c", 'echo "got $1"; exit 30', "-", "a b; $(touch owned) 'c'"))
    code, log = job.ended()
    assert (code, job.requeued, job.note.exists()) == (30, 0, False)
    assert "got a b; $(touch owned) 'c'\n" in log


def test_a_signal_reaches_the_driver_and_the_job_waits_for_its_end(tmp_path: Path) -> None:
    wait = "trap 'sleep 0.3; echo left the jobs; exit 143' TERM; echo ready; while :; do sleep 0.05; done"
    job = Job(tmp_path, ("bash", "-c", wait))
    Note("mine", "7").write(job.note)
    process = job.start()
    assert process.stdout is not None
    while "ready" not in (line := process.stdout.readline()) or "starts" in line:
        assert line
    process.terminate()
    assert "left the jobs\n" in process.communicate(timeout=60)[0]
    assert (process.returncode, job.requeued) == (143, 1)


def test_that_a_job_is_queued_again_may_end_scontrol_before_it_has_its_answer(tmp_path: Path) -> None:
    job = Job(tmp_path, TERMINATED, code=143)
    code, log = job.ended()
    assert (code, job.requeued, "job 7 is queued again" in log) == (143, 1, True)


def test_a_slurm_that_gives_no_answer_is_asked_again(tmp_path: Path) -> None:
    job = Job(tmp_path, TERMINATED, state="")
    code, log = job.ended()
    assert (code, "did not take job 7 back" in log) == (143, True)
    assert len((job.folder / "asked").read_text().splitlines()) == 6


def test_a_driver_that_gets_nowhere_five_times_is_not_queued_again(tmp_path: Path) -> None:
    job = Job(tmp_path, TERMINATED)
    code, log = job.ended(short=4)
    assert (code, job.requeued, "gets nowhere" in log) == (143, 0, True)
    assert not job.note.exists()


def test_a_job_that_is_not_in_the_note_does_nothing(tmp_path: Path) -> None:
    job = Job(tmp_path, ("touch", str(tmp_path / "ran")))
    assert job.ended(token="another")[0] == 0
    assert not (tmp_path / "ran").exists()
    assert job.note.exists()


def test_a_run_that_is_cancelled_while_its_driver_is_terminated_does_not_come_back(tmp_path: Path) -> None:
    remove = f"{_TOLD} rm '{note_path(tmp_path)}'; exit 143"
    job = Job(tmp_path, ("bash", "-c", remove))
    assert (job.ended()[0], job.requeued) == (143, 0)


@pytest.mark.parametrize("cancelled", [False, True])
def test_after_a_restart_the_lock_of_a_driver_on_a_dead_node_is_waited_for(tmp_path: Path, cancelled: bool) -> None:
    lock, done = tmp_path / "driver.lock", tmp_path / "done"
    lock.write_text(json.dumps({"host": "another", "pid": 1, "started": "1"}))
    job = Job(tmp_path, (sys.executable, "-c", f"open({str(done)!r}, 'w')"))
    Note("mine", "7").write(job.note)
    process = job.start(restarts=1)
    assert process.stdout is not None
    assert "waiting until the driver" in process.stdout.readline()
    if cancelled:
        withdraw(tmp_path, Slurm())
    assert not done.exists()
    os.utime(lock, (time.time() - 1000, time.time() - 1000))
    process.communicate(timeout=60)
    assert (process.returncode, done.exists()) == (0, not cancelled)


def values(folder: Path, command: tuple[str, ...] = ("luigi",)) -> ScriptValues:
    return ScriptValues("run.driver", 1, command, 1, 4096, 60, str(folder / "driver-%j.out"), "", str(folder))


def test_a_second_driver_is_refused_while_the_first_ones_job_is_there(tmp_path: Path) -> None:
    assert submit_driver(values(tmp_path), tmp_path, Slurm(), alone=False) == "7"
    with pytest.raises(SubmissionError, match=r"job 7 \(PENDING\) is the driver"):
        submit_driver(values(tmp_path), tmp_path, Slurm("PENDING"), alone=False)
    assert submit_driver(values(tmp_path), tmp_path, Slurm("FAILED"), alone=False) == "7"


def test_a_drivers_job_whose_id_sbatch_does_not_tell_is_found_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = Slurm(submitted=Answer(0, "-- Welcome, in 2026 --", "sbatch: error: invalid value, ignoring..."))
    listed = [row("8", "other", "PENDING"), row("9", values(tmp_path).name, "PENDING")]
    monkeypatch.setattr(commands, "jobs", lambda *_: listed)
    assert submit_driver(values(tmp_path), tmp_path, commands, alone=False) == "9"


def test_a_drivers_job_that_was_accepted_is_not_refused_although_it_is_listed_late_or_never(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = Slurm(submitted=Answer(0, "Welcome"))
    commands.clock = FakeClock()
    listed: list[list[Row]] = [[], [row("9", values(tmp_path).name, "PENDING")]]
    monkeypatch.setattr(commands, "jobs", lambda *_: listed.pop(0) if listed else [])
    assert submit_driver(values(tmp_path), tmp_path, commands, alone=False) == "9"
    note_path(tmp_path).unlink()
    with pytest.raises(SubmissionError, match="was accepted, its id is not known yet"):
        submit_driver(values(tmp_path), tmp_path, commands, alone=False)
    note = Note.read(note_path(tmp_path))
    assert note is not None and note.token in note_path(tmp_path).with_suffix(".sh").read_text(), "the job finds itself"


def test_of_a_job_that_slurm_may_have_taken_unnoticed_the_driver_does_nothing(tmp_path: Path) -> None:
    refused = Slurm(submitted=Answer(1, stderr="Socket timed out"))
    with pytest.raises(SubmissionError, match="Socket timed out"):
        submit_driver(values(tmp_path), tmp_path, refused, alone=False)
    assert not note_path(tmp_path).exists()


def test_a_withdrawn_driver_is_cancelled_unless_it_works_and_can_be_told_what_becomes_of_its_jobs(
    tmp_path: Path,
) -> None:
    lock = DriverLock(tmp_path)
    for works, alone, words in ((True, False, ["--state=PENDING"]), (True, True, []), (False, False, [])):
        lock.acquire() if works else lock.release()
        commands = Slurm()
        note = Note("mine", "7", alone=alone)
        note.write(note_path(tmp_path))
        assert withdraw(tmp_path, commands) == note
        assert commands.asked == [("scancel", f"--user={os.getuid()}", *words, "7")]
        assert not note_path(tmp_path).exists()
        assert withdraw(tmp_path, Slurm()) is None


def test_a_note_of_another_version_names_its_job_all_the_same(tmp_path: Path) -> None:
    note_path(tmp_path).write_text('{"token": "mine", "job_id": "7", "alone": true, "command": ["luigi"], "short": 0}')
    assert Note.read(note_path(tmp_path)) == Note("mine", "7", alone=True)
