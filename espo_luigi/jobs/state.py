"""The states of a job: the same codes in `run.json`, `espo status` and the page; the last two also in records."""

from __future__ import annotations

import enum


class JobState(enum.StrEnum):
    """Where a job stands.

    The first seven follow from the scheduler's word, the job's files and the driver's plans. The last two are
    outcomes: the driver does nothing more about the job.
    """

    READY = "ready"  # to be submitted, or waiting for room on this machine
    SUBMITTING = "submitting"  # handed to the scheduler, which has not confirmed it yet
    QUEUED = "queued"  # pending or suspended at the scheduler
    RUNNING = "running"
    MISSING = "missing"  # the scheduler answers and does not list it
    CANCELLING = "cancelling"  # the driver has cancelled it and waits for its end
    ENDED = "ended"  # the scheduler has ended it; its result is awaited
    SUCCEEDED = "succeeded"
    FAILED = "failed"  # with a cause (`Cause`)
