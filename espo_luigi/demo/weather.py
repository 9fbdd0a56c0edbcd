"""Invented daily weather: temperature with seasons, warming and memory, rain with dry days, and both with mountains.

Also humidity, wind and radiation that go with them.
"""

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
_KELVIN_PER_METRE = -0.0065
# Rain grows by this fraction for each metre that the ground rises along the wind, over `_ALONG_WIND` degrees.
_RAIN_PER_METRE = 0.0015
# Wind from the south-west, in degrees of latitude and longitude.
_ALONG_WIND = (0.2, 0.3)
# Latitude, longitude, metres, and widths along both, after the mountains between the St. Lawrence and the Atlantic.
_MOUNTAINS = np.array(
    [
        (48.8, -66.7, 850, 0.25, 0.7),  # Chic-Chocs
        (48.9, -65.5, 700, 0.25, 0.6),
        (48.2, -67.8, 400, 0.35, 0.7),  # Notre Dame Mountains
        (47.2, -69.4, 400, 0.4, 0.6),
        (46.1, -69.2, 650, 0.3, 0.4),  # Katahdin
        (45.4, -70.4, 650, 0.45, 0.6),  # Longfellow Mountains
        (44.4, -71.4, 900, 0.4, 0.5),  # White Mountains
        (47.3, -66.5, 600, 0.45, 0.6),  # highlands of New Brunswick
        (46.9, -72.3, 500, 0.4, 0.6),  # Laurentians
        (47.6, -71.2, 850, 0.45, 0.5),
        (48.9, -70.2, 700, 0.4, 0.6),
        (49.2, -68.6, 400, 0.3, 0.6),
        (45.65, -65.0, 300, 0.2, 0.5),  # Caledonia
        (44.75, -65.2, 200, 0.2, 0.6),  # South Mountain
    ]
)


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
    # How wide the grid's cells are, over which mountains are smoothed.
    cell_degrees: float = 0.25
    humidity_percent: float = 76.0
    # Of what the humidity would have above 100 %, this share is kept: models may exceed saturation.
    supersaturation: float = 0.0
    wind_m_per_second: float = 3.8
    clear_sky: float = 0.74


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
    """Invent daily `tasmax`, `tasmin` (K, tasmin always below) and `pr` (kg m-2 s-1): float32, (time, y, x).

    `lats` and `lons` are those of rows and columns, or 2-D those of cells.

    Temperature: a yearly cycle, a warming that grows with the square of time since 1950 to `warming_kelvin` in 2100,
    and noise with a memory of days. It falls with height and to the north, and seasons are stronger to the west. Rain:
    Weibull-distributed on the days on which a second noise exceeds a threshold, 2 % more a degree of warming, more on
    the mountains' south-western slopes and less behind them. Rainy days have a smaller range of temperature.
    """
    lat, lon = _by_cell(lats, lons)
    shape = (days.years.size, *np.broadcast_shapes(lat.shape, lon.shape))
    winter = np.cos(2 * np.pi * (days.phases - _COLDEST_PHASE)).astype(np.float32)[:, None, None]
    warming = climate.warming_kelvin * ((days.years - 1950) / 150.0).astype(np.float32) ** 2
    colder = _KELVIN_PER_METRE * _heights(climate, lat, lon) - 0.9 * (lat - 46.5)
    tas = np.float32(climate.mean_kelvin) + colder.astype(np.float32) + warming[:, None, None]
    tas = tas - climate.seasonal_kelvin * winter * np.clip(1 - 0.03 * (lon + 66), 0.8, 1.25).astype(np.float32)
    tas += climate.noise_kelvin * (1 + 0.3 * winter) * _noise(rng, shape, memory=0.75, shared=0.9)
    pr = (1 + 0.02 * warming[:, None, None]) * _rain(climate, winter, _noise(rng, shape, memory=0.4, shared=0.9))
    pr *= _rain_shadow(climate, lat, lon)
    spread = np.exp(0.25 * _noise(rng, shape, memory=0.3, shared=0.7)) * np.where(pr > 1, 0.75, 1.0)
    half_range = np.maximum(0.5 * climate.range_kelvin * (1 - 0.15 * winter) * spread, 0.25)
    values = {"tasmax": tas + half_range, "tasmin": tas - half_range, "pr": pr / SECONDS_PER_DAY}
    return {name: value.astype(np.float32) for name, value in values.items()}


def invent_humid_weather(
    climate: Climate, days: Days, lats: Axis, lons: Axis, rng: np.random.Generator
) -> dict[str, Field]:
    """Invent daily `tas` (K), `pr` (kg m-2 s-1), `hurs` (%), `sfcWind` (m s-1), `rsds` (W m-2): float32, (time, y, x).

    The temperature and the rain of `invent_weather`, and what goes with them: rainy days are cloudy, so that they are
    humid and dark; dry and clear days have a large range of temperature. Wind blows in winter and on rainy days.
    Radiation is a share of what comes to the top of the atmosphere.
    """
    lat = _by_cell(lats, lons)[0]
    weather = invent_weather(climate, days, lats, lons, rng)
    tasmax, tasmin, pr = weather.values()
    winter = np.cos(2 * np.pi * (days.phases - _COLDEST_PHASE)).astype(np.float32)[:, None, None]
    cloud = 0.8 * _noise(rng, pr.shape, memory=0.5, shared=0.8) + 0.6 * np.log1p(SECONDS_PER_DAY * pr) - 0.5
    cloud -= 0.4 * (tasmax - tasmin) / np.float32(climate.range_kelvin) - 0.4
    hurs = climate.humidity_percent + 4 * winter + 9 * cloud
    hurs = np.where(hurs > 100, 100 + climate.supersaturation * (hurs - 100), np.maximum(hurs, 5))
    wind = climate.wind_m_per_second * (1 + 0.15 * winter)
    wind = wind * np.exp(0.35 * _noise(rng, pr.shape, memory=0.3, shared=0.8) + 0.06 * cloud)
    share = climate.clear_sky - 0.55 * (ndtr(cloud) - 0.25).clip(0)
    values = {"hurs": hurs, "sfcWind": wind, "rsds": share * _top_of_atmosphere(days.phases[:, None, None], lat)}
    made = {"tas": (tasmax + tasmin) / 2, "pr": pr, **values}
    return {name: np.broadcast_to(value, pr.shape).astype(np.float32) for name, value in made.items()}


def _top_of_atmosphere(phases: Axis, lat: Axis) -> Axis:
    """Return the daily mean of the sun's radiation above the atmosphere, W m-2, between the polar circles.

    With a circular orbit (Allen et al. 1998, FAO paper 56, equation 21).
    """
    tilt, north = np.deg2rad(-23.44) * np.cos(2 * np.pi * (phases + 10 / 365)), np.deg2rad(lat)
    sunset = np.arccos(-np.tan(north) * np.tan(tilt))
    up, along = np.sin(north) * np.sin(tilt), np.cos(north) * np.cos(tilt)
    radiation: Axis = 1361 / np.pi * (sunset * up + along * np.sin(sunset))
    return radiation


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


def heights(climate: Climate, lats: Axis, lons: Axis) -> Axis:
    """Metres above the sea (y, x) of the mountains as a grid of the climate's cells sees them."""
    return _heights(climate, *_by_cell(lats, lons))


def _by_cell(lats: Axis, lons: Axis) -> tuple[Axis, Axis]:
    """Return arrays that broadcast to (y, x), with longitudes of 180 degrees at most."""
    west = np.where(lons > 180, lons - 360, lons)
    return (lats, west) if lats.ndim == 2 else (lats[:, None], west[None, :])


def _heights(climate: Climate, lat: Axis, lon: Axis) -> Axis:
    """Metres above the sea: the mountains, the lower and the wider the larger the grid's cells are."""
    north, east, metres, *widths = _MOUNTAINS.T[..., None, None]
    smooth = [np.hypot(width, 0.5 * climate.cell_degrees) for width in widths]
    lower = metres * widths[0] * widths[1] / (smooth[0] * smooth[1])
    distance = ((lat - north) / smooth[0]) ** 2 + ((lon - east) / smooth[1]) ** 2
    heights: Axis = (lower * np.exp(-0.5 * distance)).sum(axis=0)
    return heights


def _rain_shadow(climate: Climate, lat: Axis, lon: Axis) -> Field:
    """A factor of rain: above 1 near the ocean and where the ground rises along the wind, below 1 where it falls."""
    up, along = (0.5 * step for step in _ALONG_WIND)
    rise = _heights(climate, lat + up, lon + along) - _heights(climate, lat - up, lon - along)
    near_ocean = np.clip(1 + 0.04 * (lon + 66) - 0.06 * (lat - 46.5), 0.6, 1.4)
    return (near_ocean * np.clip(1 + _RAIN_PER_METRE * rise, 0.4, 2.0)).astype(np.float32)
