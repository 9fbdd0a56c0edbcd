"""Checks before publication that the job still owns its work.

A job loses its work in two ways. A scheduler restarts it under the same id while the first process still works, for
example on a node that stopped answering. Or the driver gives the job up and closes its claim.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from espo_luigi.errors import ClaimLostError
from espo_luigi.jobs import schedulers
from espo_luigi.jobs.retry import JOBS_PATIENCE_SECONDS, persistently
from espo_luigi.jobs.schedulers.script import CLAIM_VARIABLE, FIRST_START, START_VARIABLE, start_path


@dataclass(frozen=True)
class Claim:
    """The file that names the working job; after a restart, a file beside it names the start that works."""

    path: Path
    job_id: str
    start: str

    def check(self) -> None:
        """Raise `ClaimLostError` unless this start of this job owns the work."""
        # The start first, so that a claim that is closed between the two reads is noticed.
        start = _text(start_path(self.path)) or FIRST_START
        owner = _text(self.path)
        if (owner, start) != (self.job_id, self.start):
            raise ClaimLostError(
                f"job {self.job_id} (start {self.start}) does not own its work any more: {self.path} says "
                f"{owner or 'nothing'!r} (start {start}). It was requeued while it worked on, or was given up: "
                "nothing is published, and no result written; whoever has the work now does both"
            )


def check_claim() -> None:
    """Raise `ClaimLostError` if this job's work belongs to a different job or a later start now.

    Tasks that publish without `espo_luigi.store` call it right before a file gets its final name. It retries while the
    file system fails for a moment. A job of the local engine has no claim.
    """
    scheduler = schedulers.around()
    if scheduler is not None and CLAIM_VARIABLE in os.environ:
        start = os.environ.get(START_VARIABLE, FIRST_START)
        claim = Claim(Path(os.environ[CLAIM_VARIABLE]), str(schedulers.job_id()), start)
        persistently(claim.check, JOBS_PATIENCE_SECONDS)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""
