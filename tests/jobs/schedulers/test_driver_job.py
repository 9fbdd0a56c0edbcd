"""A driver's job after the end of the driver, by its note, its exit code and Slurm's answers; without a Slurm."""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_clock import FakeClock

from espo_luigi.errors import SubmissionError
from espo_luigi.jobs.lock import DriverLock
from espo_luigi.jobs.schedulers import slurm
from espo_luigi.jobs.schedulers.base import Row
from espo_luigi.jobs.schedulers.commands import Answer, Commands
from espo_luigi.jobs.schedulers.driver_job import DriverJob, Note, new_note, note_path, submit_driver, withdraw
from espo_luigi.jobs.schedulers.script import ScriptValues
from espo_luigi.jobs.schedulers.slurm_parse import row

PYTHON = sys.executable
# The job's SIGTERM, which it hands on, arrives while the driver is at its end.
_TOLD = "import os, signal, sys; signal.signal(15, signal.SIG_IGN); os.kill(os.getppid(), 15); "
TERMINATED = (PYTHON, "-c", _TOLD + "sys.exit(143)")
DONE = (PYTHON, "-c", _TOLD)


class Slurm(Commands):
    """Records Slurm's commands, and answers that the job is in a certain state."""

    def __init__(self, state: str = "RUNNING", submitted: Answer | None = None) -> None:
        super().__init__(slurm)
        self.state = state
        self.submitted = submitted or Answer(0, "7\n")
        self.asked: list[tuple[str, ...]] = []

    def run(self, argv: tuple[str, ...], environ: object = None) -> Answer:
        self.asked.append(argv)
        return Answer(0, f"JobId=7 JobState={self.state} Reason=None") if "show" in argv else Answer(0)

    def submit(self, argv: tuple[str, ...]) -> Answer:
        self.asked.append(argv)
        return self.submitted

    @property
    def requeued(self) -> bool:
        return ("scontrol", "requeue", "7") in self.asked


@pytest.fixture(autouse=True)
def in_a_job(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    yield
    signal.signal(signal.SIGTERM, before)


def ended(folder: Path, commands: Slurm, command: tuple[str, ...], short: int = 0, token: str = "mine") -> int:
    Note("mine", command, "7", short).write(note_path(folder))
    return DriverJob(note_path(folder), token, commands, pause=lambda _: None).run({})


@pytest.mark.parametrize("state", ["COMPLETING", "CANCELLED", "PENDING"])
def test_of_a_job_that_does_not_run_any_more_nothing_is_queued_again(tmp_path: Path, state: str) -> None:
    commands = Slurm(state)
    assert ended(tmp_path, commands, TERMINATED) == 143
    assert not commands.requeued


def test_a_terminated_driver_is_queued_again_and_one_that_did_its_work_meanwhile_is_not(tmp_path: Path) -> None:
    commands = Slurm()
    assert ended(tmp_path, commands, TERMINATED) == 143
    assert commands.requeued
    assert (Note.read(note_path(tmp_path)) or Note("", ())).short == 1
    commands = Slurm()
    assert ended(tmp_path, commands, DONE) == 0
    assert not commands.requeued
    assert not note_path(tmp_path).exists()


def test_that_a_job_is_queued_again_may_end_scontrol_before_it_has_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    commands = Slurm()

    def run(argv: tuple[str, ...], environ: object = None) -> Answer:
        answer = Slurm.run(commands, argv)
        if "requeue" not in argv:
            return answer
        commands.state = "PENDING"
        return Answer(-signal.SIGTERM)

    monkeypatch.setattr(commands, "run", run)
    caplog.set_level("INFO")
    assert ended(tmp_path, commands, TERMINATED) == 143
    assert "job 7 is queued again" in caplog.text
    assert "failed" not in caplog.text
    assert commands.asked.count(("scontrol", "requeue", "7")) == 1


def test_a_driver_that_gets_nowhere_five_times_is_not_queued_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    commands = Slurm()
    assert ended(tmp_path, commands, TERMINATED, short=4) == 143
    assert not commands.requeued
    assert "gets nowhere" in caplog.text
    assert not note_path(tmp_path).exists()


def test_a_job_that_is_not_in_the_note_does_nothing(tmp_path: Path) -> None:
    assert ended(tmp_path, Slurm(), (PYTHON, "-c", f"open({str(tmp_path / 'ran')!r}, 'w')"), token="another") == 0
    assert not (tmp_path / "ran").exists()
    assert note_path(tmp_path).exists()


def test_a_run_that_is_cancelled_while_its_driver_is_terminated_does_not_come_back(tmp_path: Path) -> None:
    commands = Slurm()
    remove = f"{_TOLD} os.remove({str(note_path(tmp_path))!r}); sys.exit(143)"
    assert ended(tmp_path, commands, (PYTHON, "-c", remove)) == 143
    assert not commands.requeued


def test_after_a_restart_the_lock_of_a_driver_on_a_dead_node_is_waited_for(tmp_path: Path) -> None:
    lock = tmp_path / "driver.lock"
    lock.write_text(json.dumps({"host": "another", "pid": 1, "started": "1"}))
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            os.utime(lock, (time.time() - 1000, time.time() - 1000))

    Note("mine", (PYTHON, "-c", "")).write(note_path(tmp_path))
    assert DriverJob(note_path(tmp_path), "mine", Slurm(), pause).run({"SLURM_RESTART_COUNT": "1"}) == 0
    assert pauses == [10.0, 10.0, 10.0, 5.0]


NOTE = new_note(("luigi",), alone=False)


def values(folder: Path) -> ScriptValues:
    return ScriptValues("run.driver", 1, ("python",), 1, 4096, 60, str(folder / "driver-%j.out"), "", str(folder))


def test_a_run_that_is_cancelled_while_its_driver_waits_for_a_lock_does_not_start(tmp_path: Path) -> None:
    lock, done = tmp_path / "driver.lock", tmp_path / "done"
    lock.write_text(json.dumps({"host": "another", "pid": 1, "started": "1"}))

    def pause(_seconds: float) -> None:
        withdraw(tmp_path, Slurm())
        os.utime(lock, (time.time() - 1000, time.time() - 1000))

    Note("mine", ("touch", str(done)), "7").write(note_path(tmp_path))
    assert DriverJob(note_path(tmp_path), "mine", Slurm(), pause).run({"SLURM_RESTART_COUNT": "1"}) == 0
    assert not done.exists()


def test_a_second_driver_is_refused_while_the_first_ones_job_is_there(tmp_path: Path) -> None:
    assert submit_driver(values(tmp_path), NOTE, tmp_path, Slurm()) == "7"
    with pytest.raises(SubmissionError, match=r"job 7 \(PENDING\) is the driver"):
        submit_driver(values(tmp_path), NOTE, tmp_path, Slurm("PENDING"))
    assert submit_driver(values(tmp_path), NOTE, tmp_path, Slurm("FAILED")) == "7"


def test_a_drivers_job_whose_id_sbatch_does_not_tell_is_found_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = Slurm(submitted=Answer(0, "-- Welcome, in 2026 --", "sbatch: error: invalid value, ignoring..."))
    listed = [row("8", "other", "PENDING"), row("9", values(tmp_path).name, "PENDING")]
    monkeypatch.setattr(commands, "jobs", lambda: listed)
    assert submit_driver(values(tmp_path), NOTE, tmp_path, commands) == "9"


def test_a_drivers_job_that_was_accepted_is_not_refused_although_it_is_listed_late_or_never(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = Slurm(submitted=Answer(0, "Welcome"))
    commands.clock = FakeClock()
    listed: list[list[Row]] = [[], [row("9", values(tmp_path).name, "PENDING")]]
    monkeypatch.setattr(commands, "jobs", lambda: listed.pop(0) if listed else [])
    assert submit_driver(values(tmp_path), NOTE, tmp_path, commands) == "9"
    note_path(tmp_path).unlink()
    with pytest.raises(SubmissionError, match="was accepted, its id is not known yet"):
        submit_driver(values(tmp_path), NOTE, tmp_path, commands)
    assert Note.read(note_path(tmp_path)) == NOTE, "the job finds its command"


def test_of_a_job_that_slurm_may_have_taken_unnoticed_the_driver_does_nothing(tmp_path: Path) -> None:
    refused = Slurm(submitted=Answer(1, stderr="Socket timed out"))
    with pytest.raises(SubmissionError, match="Socket timed out"):
        submit_driver(values(tmp_path), NOTE, tmp_path, refused)
    assert DriverJob(note_path(tmp_path), "any", Slurm()).run({}) == 0


def test_a_withdrawn_driver_is_cancelled_unless_it_works_and_can_be_told_what_becomes_of_its_jobs(
    tmp_path: Path,
) -> None:
    lock = DriverLock(tmp_path)
    for works, alone, words in ((True, False, ["--state=PENDING"]), (True, True, []), (False, False, [])):
        lock.acquire() if works else lock.release()
        commands = Slurm()
        note = Note("mine", DONE, "7", alone=alone)
        note.write(note_path(tmp_path))
        assert withdraw(tmp_path, commands) == note
        assert commands.asked == [("scancel", *words, f"--user={os.getuid()}", "7")]
        assert not note_path(tmp_path).exists()
        assert withdraw(tmp_path, Slurm()) is None
