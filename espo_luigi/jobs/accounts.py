"""The scheduler's accounts of a run's jobs, and the energy that jobs took: measured, or estimated from their CPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from espo_luigi.jobs.bundles import own_job_name
from espo_luigi.jobs.lifecycle.records import Record
from espo_luigi.jobs.schedulers import SCHEDULERS
from espo_luigi.jobs.schedulers.base import Usage
from espo_luigi.jobs.schedulers.commands import Commands
from espo_luigi.jobs.settings import BatchSettings

_LONGEST_ANSWER_SECONDS = 30.0
# Of a core of a processor that is not known, at full use: the mean of Green Algorithms (Lannelongue et al. 2021,
# doi:10.1002/advs.202100707; the line "Any" of its table of processors).
WATTS_PER_CPU = 12.0
_JOULES_PER_KWH = 3.6e6

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


@dataclass(frozen=True)
class Power:
    """What an hour of a CPU takes, and what a kilowatt-hour emits: grams of CO2, 0 if that is not known."""

    watts_per_cpu: float = WATTS_PER_CPU
    grams_per_kwh: float = 0.0

    def joules(self, core_hours: float) -> float:
        """Return the estimate of so many core-hours."""
        return core_hours * 3600 * self.watts_per_cpu


def in_words(power: Power, core_hours: float, measured_joules: float = 0.0) -> str:
    """Return the energy of jobs that were measured and of the core-hours of all others, with the kind of figure."""
    estimate = power.joules(core_hours)
    rate = f"{power.watts_per_cpu:g} W a CPU"
    if not measured_joules:
        how = f"estimate: {rate}"
    elif not estimate:
        how = "measured by the scheduler"
    else:
        how = f"{_amount(measured_joules)} measured by the scheduler, the rest an estimate: {rate}"
    total, emitted = measured_joules + estimate, ""
    if power.grams_per_kwh:
        grams = total / _JOULES_PER_KWH * power.grams_per_kwh
        kilos = grams / 1000
        amount = f"{grams:.2g} g" if grams < 99.5 else f"{kilos:.2g} kg" if kilos < 99.5 else f"{kilos:,.0f} kg"
        emitted = f", {amount} of CO2 at {power.grams_per_kwh:g} g/kWh"
    return f"{'about ' if estimate else ''}{_amount(total)} ({how}){emitted}"


def _amount(joules: float) -> str:
    kwh = joules / _JOULES_PER_KWH
    return f"{kwh * 1000:.2g} Wh" if kwh < 0.0995 else f"{kwh:.2g} kWh" if kwh < 99.5 else f"{kwh:,.0f} kWh"
