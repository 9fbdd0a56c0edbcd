"""The energy that jobs took: measured by the scheduler, or estimated from their CPUs."""

from __future__ import annotations

from dataclasses import dataclass

# Of a core of a processor that is not known, at full use: the mean of Green Algorithms (Lannelongue et al. 2021,
# doi:10.1002/advs.202100707; the line "Any" of its table of processors).
WATTS_PER_CPU = 12.0
_JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True)
class Measured:
    """The energy that a scheduler has measured, and the hours of these jobs' CPU time, `core_hours`."""

    joules: float = 0.0
    core_hours: float = 0.0


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
