"""Raw files of some years, good ones, which tests damage: nine files, three a variable."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from espo_luigi.catalog import Asset, Match
from espo_luigi.catalog.examine import examine_match
from espo_luigi.science.diagnose.flags import limits_of
from espo_luigi.science.extract.input_problems import Problem

# Sizes that nothing divides; the box leaves cells out on each side.
LAT, LON = np.linspace(40.0, 55.0, 7), np.linspace(250.0, 280.0, 11)
BOX = {"name": "box", "lon_bnds": (252.0, 278.0), "lat_bnds": (41.0, 54.0)}
YEARS = ((2000, 2001), (2002, 2004), (2005, 2005))
FLAGS: dict[str, Any] = {
    "tasmax": {"temperature_extremely_high": {"thresh": "60 degC"}},
    "tasmin": {"temperature_extremely_low": {"thresh": "-70 degC"}},
    "pr": {"negative_accumulation_values": {}, "very_large_precipitation_events": {"thresh": "1650 mm/d"}},
}
UNITS = {"tasmax": "K", "tasmin": "K", "pr": "kg m-2 s-1"}
CALENDARS = ("noleap", "360_day", "standard")


def weather(name: str, years: tuple[int, int], calendar: str, hour: int = 12) -> xr.Dataset:
    end = f"{years[1]}-12-{30 if calendar == '360_day' else 31}"
    time = xr.date_range(
        f"{years[0]}-01-01 {hour:02}:00", f"{end} {hour:02}:00", freq="D", calendar=calendar, use_cftime=True
    )
    middle, spread = {"tasmax": (285, 9), "tasmin": (275, 0.9), "pr": (3e-5, 2.9e-5)}[name]
    draws = np.random.default_rng(years[0]).uniform(-1, 1, (len(time), len(LAT), len(LON)))
    values = (middle + spread * draws).astype("float32")
    coords = {"time": time, "lat": LAT, "lon": LON, "height": 2.0}
    return xr.Dataset({name: (("time", "lat", "lon"), values, {"units": UNITS[name]})}, coords)


def load(path: Path) -> xr.Dataset:
    return xr.load_dataset(path, decode_times=xr.coders.CFDatetimeCoder(use_cftime=True))


@dataclass
class Files:
    """Nine files, three a variable, and the search's match of them."""

    folder: Path
    calendar: str

    def path(self, name: str, first: int) -> Path:
        return self.folder / f"{name}_{first}.nc"

    def write(self, ds: xr.Dataset, path: Path, **encoding: Any) -> None:
        path.unlink(missing_ok=True)
        times = {"units": "days since 1850-01-01", "dtype": "float64"}
        ds.to_netcdf(path, encoding={"time": times} | encoding)

    def change(self, name: str, first: int, change: Callable[[xr.Dataset], xr.Dataset]) -> str:
        path = self.path(name, first)
        self.write(change(load(path)), path)
        return str(path)

    @property
    def match(self) -> Match:
        assets = []
        for name in UNITS:
            for first, last in YEARS:
                path = str(self.path(name, first))
                columns = {"date_start": f"{first}-01-01", "date_end": f"{last}-12-31", "format": "nc", "path": path}
                assets.append(Asset(columns, (name,), path))
        return Match("CMIP6_M", tuple(assets), tuple(UNITS), ("dtr",), (("2000", "2005"),), {"id": "CMIP6_M"})

    def problems(self, period: tuple[str, str] = ("2000", "2005")) -> list[Problem]:
        return examine_match(self.match, period=period, regions=[BOX], limits=limits_of(FLAGS))

    def only(self) -> Problem:
        (problem,) = self.problems()
        return problem


def good_files(folder: Path, calendar: str) -> Files:
    for name, content in _contents(calendar).items():
        (folder / name).write_bytes(content)
    return Files(folder, calendar)


@cache
def _contents(calendar: str) -> Mapping[str, bytes]:
    """The nine files, made once a process: coding a calendar's dates takes longer than what most tests look at."""
    with tempfile.TemporaryDirectory() as folder:
        made = Files(Path(folder), calendar)
        for name in UNITS:
            for years in YEARS:
                ds = weather(name, years, calendar)
                made.write(ds, made.path(name, years[0]), **{name: {"chunksizes": (100, 4, 5), "zlib": True}})
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def changed_at(name: str, day: str, lat: float, lon: float, value: float) -> Callable[[xr.Dataset], xr.Dataset]:
    """A function that sets one value."""

    def change(ds: xr.Dataset) -> xr.Dataset:
        row, column = int(np.argmin(np.abs(LAT - lat))), int(np.argmin(np.abs(LON - lon)))
        ds[name][ds.indexes["time"].get_loc(ds.sel(time=day).indexes["time"][0]), row, column] = value
        return ds

    return change


def where(problem: Problem) -> tuple[str, str, str, str]:
    return problem.kind, problem.variable, problem.file, problem.day
