"""Samples of several variables for the golden results of R's package MBC: a month of 18 years, one window of days.

Only numpy and xarray are imported.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xarray as xr

PROJECT = Path(__file__).parents[2]
STATIONS = PROJECT / "tests" / "data"
ISIMIP = PROJECT.parent / "shared" / "data" / "isimip-berlin"
CALIBRATION, FUTURE = slice("1979", "1996"), slice("2083", "2100")
DRY = 0.05  # mm per day
N_ITER = 20


class Sample(NamedTuple):
    """A month of some cells, each part (variable, cell, day); precipitation in mm per day."""

    reference: np.ndarray
    historical: np.ndarray
    simulation: np.ndarray


class Source(NamedTuple):
    """Where a sample is from."""

    name: str
    variables: tuple[str, ...]
    month: int


SOURCES = (
    Source("stations", ("tasmax", "pr"), 7),
    Source("berlin", ("hurs", "pr", "rsds", "sfcWind", "tasrange"), 4),
)


@functools.cache
def sample(source: Source) -> Sample:
    """Read a sample. Days under 0.05 mm get random amounts under it, the same each time: no day ties with another."""
    random = np.random.default_rng(44)
    parts = []
    for name, years in (("reference", CALIBRATION), ("historical", CALIBRATION), ("simulation", FUTURE)):
        rows = []
        for variable in source.variables:
            series = _stations(name, variable) if source.name == "stations" else _berlin(name, variable)
            series = series.sel(time=years).transpose("cell", "time").astype("f8")
            values = series.isel(time=series.time.dt.month == source.month).values
            if variable == "pr":
                values = np.where(values < DRY, random.uniform(0.001 * DRY, DRY, values.shape), values)
            # Rounded values would tie.
            rows.append(values + random.uniform(-1e-3, 1e-3, values.shape) * (variable != "pr"))
        parts.append(np.stack(rows))
    return Sample(*parts)


def _stations(name: str, variable: str) -> xr.DataArray:
    file = "ahccd_1950-2013.nc" if name == "reference" else "CanESM2_1950-2100.nc"
    with xr.open_dataset(STATIONS / file) as data:
        series = data[variable].load().rename(location="cell")
    per_day = variable == "pr" and name != "reference"
    kelvin = variable == "tasmax" and name == "reference"
    return series * 86400 if per_day else series + 273.15 if kelvin else series


def _berlin(name: str, variable: str) -> xr.DataArray:
    """One cell of 1°, and the observations of 0.5° at its corner."""
    part = {
        "reference": "obs-hist_fine_1979-2014",
        "historical": "sim-hist_coarse_1979-2014",
        "simulation": "sim-fut_coarse_2065-2100",
    }[name]
    with xr.open_dataset(ISIMIP / f"{variable}_{part}.nc") as data:
        series = data[variable].isel(lon=[0], lat=0).load().rename(lon="cell")
    return series * 86400 if variable == "pr" else series
