"""The schedulers, as text: `base` has the interface, `slurm` and `gridengine` fulfil it by pure functions.

`slurm_parse` reads the answers of Slurm's commands. `commands` alone runs commands, `script` renders a job's script,
and `driver_job` submits a driver as a job of Slurm.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from espo_luigi.jobs.schedulers import gridengine, slurm
from espo_luigi.jobs.schedulers.base import Scheduler

SCHEDULERS: Mapping[str, Scheduler] = {"slurm": slurm, "sge": gridengine}


def around(environ: Mapping[str, str] | None = None) -> Scheduler | None:
    """Return the scheduler whose job this process is (or a process with that environment), if any."""
    environ = os.environ if environ is None else environ
    return next((scheduler for scheduler in SCHEDULERS.values() if scheduler.job_id(environ)), None)


def job_id() -> str | None:
    """Return the id of the job that this process is, if any."""
    scheduler = around()
    return scheduler.job_id(os.environ) if scheduler else None


def node_folder() -> str | None:
    """Return the folder on the node that a scheduler gave to this process, if the folder exists."""
    own = [scheduler for scheduler in SCHEDULERS.values() if scheduler.job_id(os.environ)]
    folders = (os.environ.get(scheduler.SCRATCH.removeprefix("$"), "") for scheduler in own)
    return next((folder for folder in folders if os.path.isdir(folder)), None)
