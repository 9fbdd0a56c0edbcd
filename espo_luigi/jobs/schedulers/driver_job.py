"""Runs a driver as a small job of Slurm: ``python -m ….driver_job NOTE TOKEN`` in that job.

The job's time is shorter than the run's. Some time before its end, Slurm sends SIGTERM, and the driver leaves its jobs
to the next driver. After that the job calls ``scontrol requeue``, as long as the note still names this job. It keeps
its id, so that its drivers never work at the same time. A note in the state folder names the job. A job that the note
does not name does nothing, so that `espo cancel` stops the driver for good.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from espo_luigi.errors import SubmissionError
from espo_luigi.files import read_json, write_atomically
from espo_luigi.jobs.local.srun import allocation_of
from espo_luigi.jobs.lock import DriverLock
from espo_luigi.jobs.retry import DRIVERS_PATIENCE_SECONDS, persistently
from espo_luigi.jobs.schedulers import slurm
from espo_luigi.jobs.schedulers.commands import Commands
from espo_luigi.jobs.schedulers.script import ScriptValues

logger = logging.getLogger("espo_luigi.driver_job")

# The job gets the signal so long before its end.
NOTICE_SECONDS = 120
# A driver that gets no more time than this, so many times in a row, makes no progress and is not started again.
_SHORT_SECONDS = 300.0
_MOST_SHORT = 5
# Tries to requeue the job.
_TRIES = 6
_PAUSE_SECONDS = 10.0
# Exit codes of a terminated driver.
_TERMINATED = (128 + signal.SIGTERM, -signal.SIGTERM)
# Exit codes of a command that ended with its job.
_ENDED = (-signal.SIGTERM, -signal.SIGKILL)
# A driver refreshes its locks in turn, so that they grow too old at slightly different times.
_AFTER_LOCK_SECONDS = 5.0


@dataclass(frozen=True)
class Note:
    """Names the job that is the driver. `token` differs for each submission; `short` counts too short slots in a row.

    `alone`: the driver computes in this job itself, without jobs for tasks.
    """

    token: str
    command: tuple[str, ...]
    job_id: str = ""
    short: int = 0
    alone: bool = False

    @classmethod
    def read(cls, path: Path) -> Note | None:
        """Return the note in the file, if there is any."""
        fields = persistently(lambda: read_json(path), DRIVERS_PATIENCE_SECONDS)
        return cls(**fields | {"command": tuple(fields["command"])}) if fields else None

    def write(self, path: Path) -> None:
        """Write the note."""
        text = json.dumps(asdict(self))
        persistently(lambda: write_atomically(path, text, durable=True), DRIVERS_PATIENCE_SECONDS)


def note_path(state_dir: Path) -> Path:
    """Return the path of the note of a run's driver."""
    return state_dir / "driver-job.json"


def submit_driver(values: ScriptValues, note: Note, state_dir: Path, commands: Commands) -> str:
    """Submit a job that runs the `note`'s command, a driver, again and again until it has ended; return the job's id.

    The `values`' argv is the Python that the job runs. Raises SubmissionError if there is a driver already, if Slurm
    refuses the job, or if the id of an accepted job cannot be found.
    """
    path = note_path(state_dir)
    _refuse_second(path, commands)
    state_dir.mkdir(parents=True, exist_ok=True)
    values = replace(values, argv=(*values.argv, "-P", "-m", __name__, str(path), note.token))
    script = path.with_suffix(".sh")
    write_atomically(script, slurm.render_plain(values))
    note.write(path)
    answer = commands.submit(slurm.submit_command(values, script))
    job_id = commands.id_of(answer, values.name)
    if job_id is None and answer.ok:
        raise SubmissionError(
            f"the driver's job was accepted, its id is not known yet ({answer.words}): look for {values.name} in "
            "`squeue --me`. It runs the command once it starts; if you give the command again, it does nothing"
        )
    if job_id is None:
        # If Slurm has taken the job all the same, that job finds no note and does nothing.
        path.unlink()
        raise SubmissionError(f"the driver's job was not submitted: {answer.words}")
    replace(note, job_id=job_id).write(path)
    return job_id


def _refuse_second(path: Path, commands: Commands) -> None:
    if (holder := DriverLock(path.parent).holder()) is not None:
        raise SubmissionError(
            f"a driver works in {path.parent} already: process {holder['pid']} on {holder['host']}; stop that one "
            "(`espo detach`) first"
        )
    note = Note.read(path)
    if note is not None and note.job_id:
        found = allocation_of(note.job_id, commands)
        if found.state in ("PENDING", "RUNNING", "COMPLETING", "SUSPENDED"):
            raise SubmissionError(
                f"job {note.job_id} ({found.state}) is the driver of {path.parent} already: `espo cancel` or `espo "
                "detach` end it"
            )


def new_note(command: Sequence[str], *, alone: bool) -> Note:
    """Return a note for a new submission."""
    return Note(secrets.token_hex(8), tuple(command), alone=alone)


def withdraw(state_dir: Path, commands: Commands) -> Note | None:
    """Keep the driver's job from starting again, and cancel it unless its driver follows jobs; return its note."""
    path = note_path(state_dir)
    note = Note.read(path)
    if note is None:
        return None
    # The note goes first: a job that starts at this moment misses it, and does nothing.
    path.unlink(missing_ok=True)
    # A driver at work, with jobs, reads the control file; a driver that is still starting does not yet.
    is_at_work = not note.alone and DriverLock(state_dir).holder() is not None
    which = ("--state=PENDING",) if is_at_work else ()
    if note.job_id:
        commands.run(("scancel", *which, f"--user={os.getuid()}", note.job_id))
    return note


class DriverJob:
    """Runs in the job: starts the driver, and requeues the job or ends it after the driver."""

    def __init__(self, path: Path, token: str, commands: Commands, pause: Callable[[float], object] = time.sleep):
        self._path = path
        self._token = token
        self._commands = commands
        self._pause = pause
        self._job_id = str(slurm.job_id(os.environ))
        self._driver: subprocess.Popen[bytes] | None = None
        self._terminated = False

    def run(self, environ: Mapping[str, str] = os.environ) -> int:
        """Run the driver; return the exit code of the job."""
        signal.signal(signal.SIGTERM, self._hand_on)
        note = self._note()
        if note is None:
            logger.warning("this driver was stopped, or another one was submitted meanwhile: nothing is done")
            return 0
        if environ.get("SLURM_RESTART_COUNT", "0") != "0":
            self._wait_for_the_one_before()
            if self._note() is None:
                logger.warning("this driver was stopped while it waited: nothing is done")
                return 0
        began = time.monotonic()
        code = self._drive(note.command)
        if self._terminated and code in _TERMINATED:
            short = note.short + 1 if time.monotonic() - began < _SHORT_SECONDS else 0
            return self._again(replace(note, job_id=self._job_id, short=short), code)
        self._forget()
        return code

    def _hand_on(self, signum: int, _frame: object) -> None:
        self._terminated = True
        if self._driver is not None:
            self._driver.terminate()

    def _drive(self, command: Sequence[str]) -> int:
        if self._terminated:
            return _TERMINATED[0]
        logger.info("the driver starts: %s", shlex.join(command))
        self._driver = subprocess.Popen(command)
        if self._terminated:
            self._driver.terminate()
        return self._driver.wait()

    def _note(self) -> Note | None:
        note = Note.read(self._path)
        return note if note is not None and note.token == self._token else None

    def _forget(self) -> None:
        if self._note() is not None:
            self._path.unlink(missing_ok=True)

    def _wait_for_the_one_before(self) -> None:
        """Wait until the lock of a driver on a dead node is old enough to be taken."""
        lock, waited = DriverLock(self._path.parent), False
        while not self._terminated and (holder := lock.holder()) is not None:
            if not waited:
                logger.info("waiting until the driver on %s counts as dead", holder.get("host"))
            waited = True
            self._pause(_PAUSE_SECONDS)
        if waited:
            self._pause(_AFTER_LOCK_SECONDS)

    def _again(self, note: Note, code: int) -> int:
        """Requeue the job, unless somebody has cancelled the driver or its slots are too short to get anywhere."""
        if self._note() is None:
            logger.info("this run was stopped: its driver does not start again")
            return code
        if note.short >= _MOST_SHORT:
            logger.error(
                "the driver was terminated %d times in a row within %.0f s of its start, and gets nowhere: it does not "
                "start again. Give it more time (espo submit --time), or another partition",
                note.short,
                _SHORT_SECONDS,
            )
            self._forget()
            return code
        note.write(self._path)
        for _ in range(_TRIES):
            if self._queued_again():
                return code
            self._pause(_PAUSE_SECONDS)
        logger.error("Slurm did not take job %s back: give the same `espo submit` again", self._job_id)
        return code

    def _queued_again(self) -> bool:
        """Ask Slurm to requeue the job; return whether no further try is needed."""
        try:
            state = allocation_of(self._job_id, self._commands).state
        except SubmissionError as error:
            logger.warning("%s", error)
            return False
        if state != "RUNNING":
            # After a preemption, Slurm itself requeues the job. After scancel it must not be requeued, but would be.
            logger.info("job %s is %s: it is left to Slurm", self._job_id, state)
            return True
        answer = self._commands.run(("scontrol", "requeue", self._job_id))
        # A requeue ends the job's processes, sometimes scontrol's, too, before it has received the answer.
        if answer.ok or answer.returncode in _ENDED:
            logger.info("job %s is queued again: the next driver goes on", self._job_id)
        else:
            logger.warning("scontrol requeue failed: %s", answer.words)
        return answer.ok


def main(arguments: Sequence[str]) -> int:
    """Run a driver's job."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-7s %(message)s", datefmt="%H:%M:%S")
    path, token = arguments
    return DriverJob(Path(path), token, Commands(slurm)).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
