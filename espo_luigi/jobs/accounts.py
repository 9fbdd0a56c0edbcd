"""The scheduler's accounts of a run's jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from espo_luigi.jobs.bundles import own_job_name
from espo_luigi.jobs.energy import Measured
from espo_luigi.jobs.lifecycle.records import Record
from espo_luigi.jobs.schedulers import SCHEDULERS
from espo_luigi.jobs.schedulers.base import Usage
from espo_luigi.jobs.schedulers.commands import Commands
from espo_luigi.jobs.settings import BatchSettings

_LONGEST_ANSWER_SECONDS = 30.0

# A job by its id and its name, as ids are used again.
Submissions = Mapping[tuple[str, str], Record]


def submissions(records: Iterable[Record]) -> Submissions:
    """Return the record of each job that was one task's alone, of earlier attempts too."""
    found: dict[tuple[str, str], Record] = {}
    for record in records:
        for past in record.history:
            found[past["job_id"], own_job_name(past.get("bundle", ""), past["name"])] = record
        found[record.job_id or "", own_job_name(record.bundle, record.name)] = record
    return {job: record for job, record in found.items() if all(job)}


def read_accounts(engine: str, known: Submissions) -> list[Usage]:
    """Return the scheduler's accounts of these jobs; empty if it keeps no accounts or does not answer."""
    if engine not in SCHEDULERS or not known:
        return []
    commands = Commands(SCHEDULERS[engine], BatchSettings(command_seconds=_LONGEST_ANSWER_SECONDS))
    ids, names = zip(*known, strict=True)
    said = commands.usage(dict.fromkeys(ids), dict.fromkeys(names))
    return [one for one in said or () if (one.job_id, one.name) in known and one.started and one.ended]


def measured_since(since: float, accounts: Iterable[Usage]) -> Measured:
    """Return what was measured of jobs that started after `since` (seconds since 1970)."""
    own = [one for one in accounts if one.started >= since and one.energy_joules]
    return Measured(sum(one.energy_joules for one in own), sum(one.cpu_seconds for one in own) / 3600)
