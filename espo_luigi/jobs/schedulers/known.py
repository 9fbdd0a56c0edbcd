"""Which schedulers there are: the one list, and which of them runs this process."""

from __future__ import annotations

import os
from collections.abc import Mapping

from espo_luigi.jobs.schedulers.base import Scheduler
from espo_luigi.jobs.schedulers.gridengine import submit as sge
from espo_luigi.jobs.schedulers.slurm import submit as slurm

SCHEDULERS: Mapping[str, Scheduler] = {"slurm": slurm, "sge": sge}


def around(environ: Mapping[str, str] | None = None) -> Scheduler | None:
    """The scheduler in one of whose jobs this process (or one with that environment) runs, or None."""
    environ = os.environ if environ is None else environ
    return next((scheduler for scheduler in SCHEDULERS.values() if scheduler.job_id(environ)), None)


def environment(scheduler: Scheduler, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a scheduler's commands, which hand it on to the job.

    By variables of another scheduler, one of whose jobs this process is, the job would take itself for one of those.
    """
    others = tuple(one.VARIABLES for one in SCHEDULERS.values() if one is not scheduler)
    return scheduler.environment({name: value for name, value in environ.items() if not name.startswith(others)})


def job_id() -> str | None:
    """The id of the job that this process is, or None."""
    scheduler = around()
    return scheduler.job_id(os.environ) if scheduler else None


def node_folder() -> str | None:
    """The folder on the node that a scheduler gave to this process, or None; one that is not there counts as none."""
    folders = (scheduler.node_folder(os.environ) for scheduler in SCHEDULERS.values())
    return next((folder for folder in folders if folder and os.path.isdir(folder)), None)
