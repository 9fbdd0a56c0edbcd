"""Checks before publication that the job still owns its work.

A job loses its work in three ways. A scheduler restarts it under the same id while the first process still works, for
example on a node that stopped answering. Or the driver gives the job up and closes its claim. Or a second driver takes
over a job of the local engine that it cannot know to be alive.
"""

from __future__ import annotations

import os
from pathlib import Path

from espo_luigi.errors import ClaimLostError
from espo_luigi.jobs import schedulers
from espo_luigi.jobs.retry import JOBS_PATIENCE_SECONDS, persistently
from espo_luigi.jobs.schedulers.script import (
    CLAIM_VARIABLE,
    FIRST_START,
    OWNER_VARIABLE,
    START_VARIABLE,
    start_path,
)


def check_claim() -> None:
    """Raise `ClaimLostError` if this job's work belongs to a different job or a later start now.

    Tasks that publish without `espo_luigi.store` call it right before a file gets its final name. It retries while the
    file system fails for a moment.
    """

    def check() -> None:
        # A script of an earlier version exports no owner.
        path, job_id = Path(os.environ[CLAIM_VARIABLE]), os.environ.get(OWNER_VARIABLE) or str(schedulers.job_id())
        mine = os.environ.get(START_VARIABLE, FIRST_START)
        # The start first, so that a claim that is closed between the two reads is noticed.
        start, owner = _text(start_path(path)) or FIRST_START, _text(path)
        if (owner, start) != (job_id, mine):
            raise ClaimLostError(
                f"job {job_id} (start {mine}) does not own its work any more: {path} says "
                f"{owner or 'nothing'!r} (start {start}). It was requeued while it worked on, or was given up: "
                "nothing is published, and no result written; whoever has the work now does both"
            )

    if CLAIM_VARIABLE in os.environ:
        persistently(check, JOBS_PATIENCE_SECONDS)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""
