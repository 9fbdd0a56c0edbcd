"""The values of each step of a way, frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from espo_luigi.explain.cells import Cell
from espo_luigi.explain.mapping import Correction, Sample

# How far a value may be from the product's where processors or versions differ: of the value.
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Part:
    """A cell of a grid that the value is made of, its weight and its value."""

    lat: float
    lon: float
    weight: float
    value: float


@dataclass(frozen=True)
class Stage:
    """A grid on the way, with the cells of it that the value is made of: weights add up to 1."""

    grid: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Regridded:
    """The interpolation of a variable: its grids, from the raw grid on; `repairs` are those of the raw series."""

    stages: tuple[Stage, ...]
    extrapolated: bool
    value: float
    filled: bool
    repairs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Noise:
    """Noise in place of small values: their shares in the window's samples, and whether it changed the day."""

    threshold: float
    reference_share: float
    simulation_share: float
    in_scenario: bool
    day_before: float | None


@dataclass(frozen=True)
class DryDays:
    """The frequency adaptation in the window.

    Attributes
    ----------
    reference_share, simulation_share
        The shares of days up to the threshold.
    top
        New values are drawn between the threshold and this; NaN if none is drawn.
    made_wet
        How many values of the window's sample became wet, if that is known.
    day
        What the day became in the calibration's sample, or None if it was left as it was, or is not in it.
    in_calibration
        Whether the day lies in the calibration period.
    in_scenario
        Whether the simulation that is adjusted is adapted, too (ESPO v2).
    """

    threshold: float
    reference_share: float
    simulation_share: float
    top: float
    made_wet: int | None
    day: float | None
    in_calibration: bool
    in_scenario: bool


@dataclass(frozen=True)
class Adjusted:
    """The way of an adjusted variable."""

    var: str
    units: str
    regridded: Regridded
    noise: Noise | None
    dry_days: DryDays | None
    sample: Sample
    correction: Correction
    value: float


@dataclass(frozen=True)
class Final:
    """The last steps of a variable of the product.

    Attributes
    ----------
    made_of
        The adjusted variables, with their values of the day.
    how
        A code: "adjusted", "difference" (tasmax - dtr), "exchanged" or "consistent" (tasmax and tasmin).
    clean
        The value after rounding and clipping, made again.
    value, store
        The value in the product, and the product's path.
    """

    var: str
    units: str
    made_of: Mapping[str, float]
    how: str
    rounded_to: int | None
    clipped: tuple[float | None, float | None] | None
    bits: int | None
    clean: float
    value: float
    store: str
    attributes: Mapping[str, str]

    @property
    def identical(self) -> bool:
        """Whether the product has the value that was made again, bit for bit."""
        return same(self.clean, self.value)


@dataclass(frozen=True)
class Day:
    """The day in its calendars; `reference_day` has the same place in the reference's year (month-day)."""

    date: str
    calendar: str
    simulation_date: str
    simulation_calendar: str
    dayofyear: int
    days_in_year: int
    reference_day: str


@dataclass(frozen=True)
class Way:
    """The way of a day's values in a cell.

    Attributes
    ----------
    source
        The store that the regridded series was read from; "" if it was made of raw files.
    other_versions
        Packages of which the product was made with another version than this process has: that, and this.
    """

    sim_id: str
    members: tuple[str, ...]
    cell: Cell
    day: Day
    source: str
    adjusted: Mapping[str, Adjusted]
    finals: tuple[Final, ...]
    other_versions: Mapping[str, tuple[str, str]]


def same(one: float, other: float) -> bool:
    """Whether two values are equal, or both missing."""
    return one == other or (np.isnan(one) and np.isnan(other))


def within_tolerance(one: float, other: float) -> bool:
    """Whether two values differ by round-off only."""
    return same(one, other) or bool(abs(one - other) <= TOLERANCE * max(abs(one), abs(other)))
