"""Made climates in which ratios are hard: rain, snowfall and snow on the ground, of a reference and a biased model."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import xarray as xr
from scipy.signal import lfilter

from espo_luigi.science import quality
from espo_luigi.science.variables import VARIABLES

# Years of the calibration; of others without climate change; of a warmer climate.
CALIBRATION, OTHERS, FUTURE = (1981, 2010), (1951, 1980), (2071, 2100)
_DAYS = 365


class Climate(NamedTuple):
    """A climate: numbers are pairs of the reference and the model, or a single one of both.

    Attributes
    ----------
    wet, dry_season
        Shares of wet days in the middle of the year and half a year away.
    amount, shape
        Of a gamma distribution: the mean of wet days in mm, and its shape.
    drizzle
        The model's mean amount on other days, in mm.
    kelvin, range
        The mean temperature in °C, and the amplitude of its season; the model is 2 K warmer.
    more_rain
        By what the model's amounts are multiplied in the future.
    step
        Amounts are rounded to multiples of it, in mm.
    """

    wet: tuple[float, float]
    dry_season: tuple[float, float]
    amount: tuple[float, float]
    kelvin: float
    range: float
    shape: float = 0.7
    drizzle: float = 0.0
    more_rain: float = 1.25
    step: float = 0.0


CLIMATES = {
    "desert": Climate((0.01, 0.006), (0.01, 0.006), (10, 10), 22, 8, drizzle=0.01),
    "monsoon": Climate((0.7, 0.85), (0.005, 0.003), (14, 10), 25, 4, drizzle=0.01),
    "polar": Climate((0.3, 0.7), (0.2, 0.5), (1.2, 0.8), -12, 14, drizzle=0.02, more_rain=1.4),
    "temperate": Climate((0.4, 0.5), (0.45, 0.6), (6, 4), 8, 10),
    "tropical": Climate((0.75, 0.95), (0.5, 0.7), (14, 9), 26, 2),
    "snow line": Climate((0.4, 0.3), (0.3, 0.35), (6, 5), 4, 9),
    "coast": Climate((0.004, 0.002), (0.06, 0.02), (4, 6), 13, 4, shape=0.5, drizzle=0.1),
    "ties": Climate((0.25, 0.15), (0.05, 0.02), (5, 4), -1, 8, step=0.5),
}


class Both(NamedTuple):
    """A variable of the reference and of the model in all years, (loc, time)."""

    reference: xr.DataArray
    model: xr.DataArray


def daily(climate: Climate, *, cells: int = 4, seed: int = 0) -> dict[str, Both]:
    """Return `pr`, `prsn` and `snw` of a climate."""
    time = xr.date_range(f"{OTHERS[0]}-01-01", f"{FUTURE[1]}-12-31", calendar="noleap", use_cftime=True)
    years = np.repeat(np.arange(OTHERS[0], FUTURE[1] + 1), _DAYS)
    summer = 0.5 - 0.5 * np.cos(2 * np.pi * np.tile(np.arange(_DAYS), years.size // _DAYS) / _DAYS)
    change, shape = np.clip((years - CALIBRATION[1]) / (FUTURE[0] - CALIBRATION[1]), 0, 1), (cells, years.size)
    made = []
    for model in (0, 1):
        random = np.random.default_rng([seed, model])
        share = climate.dry_season[model] + (climate.wet[model] - climate.dry_season[model]) * summer
        amount = random.gamma(climate.shape, climate.amount[model] / climate.shape, shape)
        amount *= 1 + model * (climate.more_rain - 1) * change
        drizzle = random.gamma(0.5, 2 * climate.drizzle, shape) if model and climate.drizzle else np.zeros(shape)
        rain = np.where(random.random(shape) < share, amount, drizzle)
        if climate.step:
            rain = np.round(rain / climate.step) * climate.step
        warmth = climate.kelvin + climate.range * (2 * summer - 1) + model * (2 + 3 * change)
        degrees = warmth + _persistent(random, shape)
        snowfall = rain * np.clip((1.5 - degrees) / 3, 0, 1)
        made.append({"pr": rain, "prsn": snowfall, "snw": _snow(snowfall, degrees)})
    both = {}
    for name, units in (("pr", "mm d-1"), ("prsn", "mm d-1"), ("snw", "kg m-2")):
        attrs = {"units": units, "standard_name": VARIABLES[name].standard_name}
        each = (xr.DataArray(one[name].astype("f4"), {"time": time}, ("loc", "time"), name, attrs) for one in made)
        both[name] = Both(*each)
    return both


class Measured(NamedTuple):
    """Multiples over all cells of a climate: of the reference's mean and maximum, and of the raw change.

    Attributes
    ----------
    mean, highest
        In the calibration: the scenario's, by the reference's.
    mean_of_others
        In years that are not calibrated with, as `mean`.
    raw, change, error
        Changes of the mean to the future, raw and of the scenario, and the raw one's bootstrap error.
    of_months
        The raw changes of months, as their shares of the reference weigh them: what an adjustment by season keeps.
    highest_later
        The future's maximum, by the reference's times the raw change of maxima.
    arid
        The share of cells that are flagged as arid.
    """

    mean: float
    highest: float
    mean_of_others: float
    raw: float
    change: float
    error: float
    of_months: float
    highest_later: float
    arid: float

    def beyond(self, mean: float, most: float = 1.5) -> list[str]:
        """Return what is not within the multiples that usual settings keep; `mean` is the reference's, in its units.

        Maxima are at most ``most`` of what they should be.
        """
        is_sure = mean >= 0.1 and abs(self.raw) > 2 * self.error
        kept = {
            "mean": abs(self.mean - 1) <= 0.1,
            "highest": self.highest <= most,
            "change": not is_sure
            or min(abs(self.change - one) for one in (self.raw, self.of_months)) <= 0.2 * abs(self.raw),
            "highest_later": self.highest_later <= most,
        }
        return [name for name, is_kept in kept.items() if not is_kept]


def measure(both: Both, scenario: xr.DataArray) -> Measured:
    """Compare a scenario, in the reference's units, with the reference and the model."""
    years = both.model["time"].dt.year.values
    parts = [
        [one.values[:, (years >= first) & (years <= last)].astype(np.float64) for one in (*both, scenario)]
        for first, last in (CALIBRATION, OTHERS, FUTURE)
    ]
    (reference, raw, made), (before, _, made_before), (_, raw_later, later) = parts
    yearly, yearly_later = (one.reshape(len(one), -1, _DAYS).mean(-1) for one in (raw, raw_later))
    draws = np.random.default_rng(0).integers(0, yearly.shape[1], (200, 2, yearly.shape[1]))
    spread = np.std([yearly_later[:, one].mean() / yearly[:, other].mean() for one, other in draws])
    name, nowhere = str(scenario.name), np.zeros(len(raw), bool)
    simulation = xr.Dataset({name: both.model})
    regridded = quality.of_regridded(simulation, simulation, {name: nowhere}, ())
    wet = {"pr": 1.0, "prsn": 1.0, "snw": 1.0}[name]
    flags = quality.of_adjusted(scenario, regridded, period=CALIBRATION, kind="*", signal=1.0, wet=wet)
    arid = flags[f"{name}_cell_flags"] & quality.meanings(flags[f"{name}_cell_flags"])["arid"]
    return Measured(
        made.mean() / reference.mean(),
        _highest(made) / _highest(reference),
        made_before.mean() / before.mean(),
        raw_later.mean() / raw.mean() - 1,
        later.mean() / made.mean() - 1,
        float(spread),
        _change_of_months(reference, raw, raw_later),
        _highest(later) / _highest(reference) / (_highest(raw_later) / _highest(raw)),
        float((arid > 0).mean()),
    )


def _change_of_months(reference: np.ndarray, raw: np.ndarray, later: np.ndarray) -> float:
    months = np.arange(_DAYS) * 12 // _DAYS
    means = [
        np.bincount(months, one.reshape(-1, _DAYS).mean(0)) / np.bincount(months) for one in (reference, raw, later)
    ]
    known = means[1] > 0
    return float(np.average(means[2][known] / means[1][known], weights=means[0][known]) - 1)


def _highest(values: np.ndarray) -> float:
    """The mean of the cells' maxima, which depends less on a single day than the maximum of all."""
    return float(values.max(axis=-1).mean())


def _persistent(random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Noise of 4 K with a memory of some days."""
    return np.asarray(lfilter([1], [1, -0.8], random.normal(0, 4 * np.sqrt(1 - 0.8**2), shape)))


def _snow(snowfall: np.ndarray, degrees: np.ndarray) -> np.ndarray:
    """Snow on the ground, of which 3 mm melt a day and kelvin, and a thousandth of what there is each day."""
    snow = np.zeros_like(snowfall)
    for day in range(1, snowfall.shape[1]):
        left = 0.999 * snow[:, day - 1] + snowfall[:, day] - 3 * np.clip(degrees[:, day], 0, None)
        snow[:, day] = np.clip(left, 0, None)
    return snow
