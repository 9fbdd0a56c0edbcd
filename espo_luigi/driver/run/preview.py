"""What would be submitted, and stopping a run from another terminal: the engines' answers without a run."""

from __future__ import annotations

from espo_luigi.driver.settings.espo import settings, state_dir
from espo_luigi.driver.settings.sections import SECTIONS
from espo_luigi.driver.task import SlurmTask
from espo_luigi.errors import SubmissionError
from espo_luigi.jobs import engine as batch
from espo_luigi.jobs.lock import DriverLock
from espo_luigi.jobs.schedulers.commands import Commands
from espo_luigi.jobs.schedulers.known import SCHEDULERS
from espo_luigi.jobs.schedulers.slurm import submit as slurm
from espo_luigi.jobs.schedulers.slurm.driver_job import Note, note_path, withdraw


def preview(task: SlurmTask) -> str:
    """Return the script that the first submission of `task` would be, and the Dask cluster that its job will start."""
    task.check()
    name = _scheduler_name()
    return batch.preview(task.order(name), SCHEDULERS[name], SECTIONS[name]().batch_settings())


def stop_from_outside(how: str) -> str:
    """Cancel or detach the run of ``[espo] workdir`` from another terminal; return what was done, in words."""
    name = _scheduler_name()
    chosen = SECTIONS[name]().batch_settings()
    _refuse_driver_without_jobs()
    note = withdraw(state_dir(), Commands(slurm, chosen.commands))
    if note is not None and note.alone:
        return f"the driver's job {note.job_id}, in which all was computed, is cancelled; what is complete stays"
    stopped = batch.stop_from_outside(how, SCHEDULERS[name], chosen)
    return f"the driver's job {note.job_id} does not start again; {stopped}" if note is not None else stopped


def _refuse_driver_without_jobs() -> None:
    """Raise SubmissionError if the driver at work has no jobs of a scheduler: it looks for no requests to stop."""
    lock, note = DriverLock(state_dir()), Note.read(note_path(state_dir()))
    holder = lock.holder()
    if holder is not None and holder.get("engine") and (note is None or not note.alone):
        raise SubmissionError(
            f"the driver of {settings().workdir} has no jobs of a scheduler ([espo] engine = {holder['engine']}): end "
            f"it with Ctrl-C in its terminal, or with `kill {holder['pid']}` on {holder['host']}; what is complete "
            f"stays. If it is dead, remove {lock.path}"
        )


def _scheduler_name() -> str:
    # Where the local engine is configured, what Slurm would do can still be seen.
    return settings().engine if settings().engine in SCHEDULERS else next(iter(SCHEDULERS))
