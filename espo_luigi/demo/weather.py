"""Invented daily weather: temperature with seasons, warming and memory, and rain with dry days."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import ndtr

from espo_luigi.science.calendar import DAYS_IN_YEAR, SECONDS_PER_DAY

Field = npt.NDArray[np.float32]
Axis = npt.NDArray[np.float64]

_COLDEST_PHASE = 0.055


@dataclass(frozen=True)
class Climate:
    """The parameters of an invented climate; temperatures are at 46.5 degrees north."""

    mean_kelvin: float = 277.0
    seasonal_kelvin: float = 14.0
    noise_kelvin: float = 4.0
    range_kelvin: float = 10.0
    warming_kelvin: float = 5.0
    wet_fraction: float = 0.45
    rain_mm_per_day: float = 6.5
    rain_shape: float = 0.85
    highland_kelvin: float = 0.0


@dataclass(frozen=True)
class Days:
    """A daily time axis without cftime objects: the numbers of a NetCDF file, and the phases of the year."""

    calendar: str
    units: str
    numbers: Axis
    years: npt.NDArray[np.int64]
    phases: Axis = field(repr=False)

    @property
    def last_day(self) -> str:
        """Month and day on which the last year ends."""
        return "1230" if self.calendar == "360_day" else "1231"

    def within(self, first: int, last: int) -> slice:
        """The positions of the years `first` to `last`, both included."""
        return slice(*np.searchsorted(self.years, [first, last + 1]))


def days_of(calendar: str, first: int, last: int) -> Days:
    """The noons of whole years in a calendar.

    Parameters
    ----------
    calendar : str
        `noleap`, `360_day` or `standard`.
    first, last : int
        The years, both included.
    """
    if calendar in DAYS_IN_YEAR:
        length = DAYS_IN_YEAR[calendar]
        years = np.repeat(np.arange(first, last + 1), length)
        day = np.tile(np.arange(length), last + 1 - first)
        noons: Axis = (years - 1850) * length + day + np.float64(0.5)
        return Days(calendar, "days since 1850-01-01", noons, years, day / length)
    dates = pd.date_range(f"{first}-01-01", f"{last}-12-31", freq="D")
    numbers = (dates - pd.Timestamp("1850-01-01")).days.to_numpy(dtype=np.float64) + 0.5
    return Days(
        calendar, "days since 1850-01-01", numbers, dates.year.to_numpy(), (dates.day_of_year.to_numpy() - 1) / 365.25
    )


def invent_weather(
    climate: Climate,
    days: Days,
    lats: Axis,
    lons: Axis,
    rng: np.random.Generator,
) -> dict[str, Field]:
    """Invent daily `tasmax`, `tasmin` (K, tasmin always below) and `pr` (kg m-2 s-1): float32, (time, lat, lon).

    Temperature: a yearly cycle, a warming that grows with the square of time since 1950 to `warming_kelvin` in 2100,
    and noise with a memory of days. Rain: Weibull-distributed on the days on which a second noise exceeds a threshold,
    2 % more a degree of warming. Rainy days have a smaller range of temperature.
    """
    shape = (days.years.size, lats.size, lons.size)
    winter = np.cos(2 * np.pi * (days.phases - _COLDEST_PHASE)).astype(np.float32)[:, None, None]
    warming = climate.warming_kelvin * ((days.years - 1950) / 150.0).astype(np.float32) ** 2
    tas = np.float32(climate.mean_kelvin) + _geography(climate, lats, lons) + warming[:, None, None]
    tas = tas - climate.seasonal_kelvin * winter
    tas += climate.noise_kelvin * (1 + 0.3 * winter) * _noise(rng, shape, memory=0.75, shared=0.9)
    pr = (1 + 0.02 * warming[:, None, None]) * _rain(climate, winter, _noise(rng, shape, memory=0.4, shared=0.9))
    spread = np.exp(0.25 * _noise(rng, shape, memory=0.3, shared=0.7)) * np.where(pr > 1, 0.75, 1.0)
    half_range = np.maximum(0.5 * climate.range_kelvin * (1 - 0.15 * winter) * spread, 0.25)
    values = {"tasmax": tas + half_range, "tasmin": tas - half_range, "pr": pr / SECONDS_PER_DAY}
    return {name: value.astype(np.float32) for name, value in values.items()}


def _noise(rng: np.random.Generator, shape: tuple[int, int, int], *, memory: float, shared: float) -> Field:
    """Standard normal noise with a day-to-day correlation `memory`, the `shared` part of it common to all cells."""
    from scipy.signal import lfilter  # takes half a second, and is not needed once the demo's data are made

    common = rng.standard_normal((shape[0], 1, 1), dtype=np.float32)
    own = rng.standard_normal(shape, dtype=np.float32)
    innovations = np.float32(shared) * common + np.float32(np.sqrt(1 - shared**2)) * own
    innovations[1:] *= np.float32(np.sqrt(1 - memory**2))
    filtered: Field = lfilter(np.ones(1, np.float32), np.array([1, -memory], np.float32), innovations, axis=0)
    return filtered


def _rain(climate: Climate, winter: Field, noise: Field) -> Field:
    """Rain in mm per day, zero on dry days; winters have more wet days with less rain."""
    dry_probability = 1 - climate.wet_fraction * (1 + 0.1 * winter)
    exceedance = np.clip((1 - ndtr(noise)) / (1 - dry_probability), 1e-7, 1)
    amount: Field = (
        climate.rain_mm_per_day * (1 - 0.2 * winter) * np.abs(np.log(exceedance)) ** (1 / climate.rain_shape)
    )
    return amount


def _geography(climate: Climate, lats: Axis, lons: Axis) -> Field:
    """Colder to the north, and colder by `highland_kelvin` on a hill that only a fine grid has."""
    lat, lon = lats[:, None], np.where(lons > 180, lons - 360, lons)[None, :]
    hill = np.exp(-((lat - 46.8) ** 2) / 0.5 - (lon + 66.2) ** 2 / 0.4)
    return (-0.9 * (lat - 46.5) + climate.highland_kelvin * hill).astype(np.float32)


def is_sea(lats: Axis, lons: Axis) -> npt.NDArray[np.bool_]:
    """Where the reference has no land: east of a winding coast, (lat, lon)."""
    coast = -65.0 + 0.45 * np.sin(2.2 * (lats - 45.0))
    sea: npt.NDArray[np.bool_] = lons[None, :] > coast[:, None]
    return sea
