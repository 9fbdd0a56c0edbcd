"""A driver as a small job of Slurm, which has itself queued again until the run is done: ``driver_job.sh``.

A note in the state folder names the job that is the driver. A job that the note does not name does nothing, so that
`espo cancel` stops the driver for good.
"""

from __future__ import annotations

import json
import secrets
import shlex
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from espo_luigi.errors import SubmissionError
from espo_luigi.files import read_object, write_atomically
from espo_luigi.jobs.lock import DriverLock
from espo_luigi.jobs.retry import DRIVERS_PATIENCE_SECONDS, persistently
from espo_luigi.jobs.schedulers import slurm
from espo_luigi.jobs.schedulers.commands import Commands
from espo_luigi.jobs.schedulers.script import ScriptValues, checked, render_script, shell_text

# The job gets the signal so long before its end.
NOTICE_SECONDS = 120
# Between looks at the lock of a driver on a dead node, and between tries to have the job queued again.
_PAUSE_SECONDS = 10
_SCRIPT = Path(__file__).with_name("driver_job.sh")


@dataclass(frozen=True)
class Note:
    """Names the job that is the driver; `token` differs for each submission.

    `alone`: the driver computes in this job itself, without jobs for tasks.
    """

    token: str
    job_id: str = ""
    alone: bool = False

    @classmethod
    def read(cls, path: Path) -> Note | None:
        """Return the note in the file, if there is any; what another version noted besides is left out."""
        said = persistently(lambda: read_object(path), DRIVERS_PATIENCE_SECONDS)
        return cls(**{one.name: said[one.name] for one in fields(cls) if one.name in said}) if said else None

    def write(self, path: Path) -> None:
        text = json.dumps(asdict(self))
        persistently(lambda: write_atomically(path, text, durable=True), DRIVERS_PATIENCE_SECONDS)


def note_path(state_dir: Path) -> Path:
    """Return the path of the note of a run's driver."""
    return state_dir / "driver-job.json"


def render_driver(values: ScriptValues, note: Path, token: str, pause_seconds: int = _PAUSE_SECONDS) -> str:
    """Return the script of a driver's job, whose command is that of `values`. Raises SubmissionError."""
    names = f"note={shlex.quote(checked('state folder', str(note)))}\ntoken={token}\npause={pause_seconds}"
    return render_script(
        values, slurm.header(values), run=lambda command: f"{names}\ncommand=({command})\n{shell_text(_SCRIPT)}"
    )


def submit_driver(values: ScriptValues, state_dir: Path, commands: Commands, *, alone: bool) -> str:
    """Submit a job that runs the command of `values`, a driver, until the driver has ended; return the job's id.

    Raises SubmissionError if there is a driver already, if Slurm refuses the job, or if the id of an accepted job
    cannot be found.
    """
    path, note = note_path(state_dir), Note(secrets.token_hex(8), alone=alone)
    _refuse_second(path, commands)
    state_dir.mkdir(parents=True, exist_ok=True)
    path.with_name(f"{path.name}.short").unlink(missing_ok=True)
    script = path.with_suffix(".sh")
    write_atomically(script, render_driver(values, path, note.token))
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
    if note is None or not note.job_id:
        return
    rows = commands.jobs([note.job_id])
    if rows is None:
        raise SubmissionError(f"Slurm did not say what job {note.job_id} is ({commands.silence}); try again later")
    for row in rows:
        if row.job_id == note.job_id and not row.ended:
            raise SubmissionError(
                f"job {note.job_id} ({row.state}) is the driver of {path.parent} already: `espo cancel` or `espo "
                "detach` end it"
            )


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
        commands.run((*slurm.CANCEL, *which, note.job_id))
    return note
