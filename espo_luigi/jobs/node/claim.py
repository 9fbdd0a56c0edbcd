"""How a job finds out, before it publishes, that no other job and no later start of it has taken over its work.

A scheduler may start a job a second time, under the same id, while its first process works on: on a node that does not
answer any more, say. And the driver closes the claim of a job that it has given up. In both cases somebody else does
the work now.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from espo_luigi.errors import ClaimLostError
from espo_luigi.jobs.schedulers import known as schedulers
from espo_luigi.jobs.schedulers.script import CLAIM_VARIABLE, FIRST_START, START_VARIABLE, start_path
from espo_luigi.jobs.trouble import JOBS_PATIENCE_SECONDS, persistently


@dataclass(frozen=True)
class Claim:
    """The file that names the job that works, and beside it which start of that job, once it was started again."""

    path: Path
    job_id: str
    start: str

    def check(self) -> None:
        """Raise `ClaimLostError` unless this start of this job is the one that works."""
        # The start first: a claim that is closed between the two looks is seen.
        start = _text(start_path(self.path)) or FIRST_START
        owner = _text(self.path)
        if (owner, start) != (self.job_id, self.start):
            raise ClaimLostError(
                f"job {self.job_id} (start {self.start}) does not own its work any more: {self.path} says "
                f"{owner or 'nothing'!r} (start {start}). It was requeued while it worked on, or was given up: "
                "nothing is published, and no result written; whoever has the work now does both"
            )


def own_claim(environ: Mapping[str, str] | None = None) -> Claim | None:
    """The claim of the job that this process is, or None where there is none: a job of the local engine."""
    environ = os.environ if environ is None else environ
    scheduler = schedulers.around(environ)
    if scheduler is None or CLAIM_VARIABLE not in environ:
        return None
    start = environ.get(START_VARIABLE, FIRST_START)
    return Claim(Path(environ[CLAIM_VARIABLE]), str(scheduler.job_id(environ)), start)


def check_claim() -> None:
    """Raise `ClaimLostError` if another job, or a later start of this one, does this job's work now.

    For tasks that publish by other means than `espo_luigi.store`: to be called right before a file gets its final name.
    A file system that fails for a moment is asked again.
    """
    claim = own_claim()
    if claim is not None:
        persistently(claim.check, JOBS_PATIENCE_SECONDS)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""
