"""The scheduler's accounts of a run's jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from espo_luigi.jobs.bundles.model import shares_job
from espo_luigi.jobs.lifecycle.records import Record
from espo_luigi.jobs.schedulers import SCHEDULERS
from espo_luigi.jobs.schedulers.base import Usage
from espo_luigi.jobs.schedulers.commands import Commands
from espo_luigi.jobs.schedulers.script import array_of
from espo_luigi.jobs.settings import BatchSettings

_LONGEST_ANSWER_SECONDS = 30.0

# A job by its id and its name, as ids are used again.
Submissions = Mapping[tuple[str, str], Record]


def submissions(records: Iterable[Record]) -> Submissions:
    """Return the record of each job that was one task's alone, of earlier attempts too."""
    found: dict[tuple[str, str], Record] = {}
    for record in records:
        for past in record.history:
            if past["job_id"] and not shares_job(past.get("bundle", "")):
                found[past["job_id"], array_of(past.get("bundle") or past["name"])] = record
        if record.job_id and not record.shares_job:
            found[record.job_id, array_of(record.job_name)] = record
    return found


def read_accounts(engine: str, known: Submissions) -> list[Usage]:
    """Return the scheduler's accounts of these jobs; empty if it keeps no accounts or does not answer."""
    if engine not in SCHEDULERS or not known:
        return []
    commands = Commands(SCHEDULERS[engine], BatchSettings(command_seconds=_LONGEST_ANSWER_SECONDS))
    ids, names = zip(*known, strict=True)
    said = commands.usage(dict.fromkeys(ids), dict.fromkeys(names))
    return [one for one in said or () if (one.job_id, one.name) in known and one.started and one.ended]


@dataclass(frozen=True)
class Measured:
    """The energy that a scheduler has measured, and the core-hours of these jobs."""

    joules: float = 0.0
    core_hours: float = 0.0


def measured_since(since: float, accounts: Iterable[Usage]) -> Measured:
    """Return what was measured of jobs that started after `since` (seconds since 1970)."""
    own = [one for one in accounts if one.started >= since and one.energy_joules]
    hours = sum(one.cpus * (one.ended - one.started) for one in own) / 3600
    return Measured(sum(one.energy_joules for one in own), hours)
