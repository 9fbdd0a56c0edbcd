"""Hourly files as archives have them: months as files, in chunks that divide nothing, a leap year among two."""

import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr

LATS, LONS = np.linspace(48, 45, 7), np.linspace(-72.5, -64.5, 9)


def weather(first: str, last: str, lats: np.ndarray = LATS, lons: np.ndarray = LONS) -> xr.Dataset:
    """Return an hour's temperature (K) and the precipitation of the hour before (m); the last row is sea."""
    times = pd.date_range(first, last, freq="h")
    rng = np.random.default_rng(7)
    shape = (times.size, lats.size, lons.size)
    hours = times.hour.values[:, None, None] - lons / 15
    season = 12 * np.cos(2 * np.pi * (times.day_of_year.values[:, None, None] - 200) / 365.25)
    tas = 280 + season + 5 * np.cos(2 * np.pi * (hours - 15) / 24) + rng.normal(0, 2, shape)
    pr = np.where(rng.random(shape) < 0.1, rng.gamma(0.7, 0.001, shape), 0)
    dims = ("valid_time", "latitude", "longitude")
    coords = {"valid_time": times, "latitude": lats, "longitude": lons}
    made = xr.Dataset({"tas": (dims, tas), "pr": (dims, pr)}, coords).astype("float32")
    made = made.where(made["latitude"] != lats[-1])
    made["tas"].attrs, made["pr"].attrs = {"units": "K"}, {"units": "m"}
    made["valid_time"].attrs = {"standard_name": "time"}
    return made


def since_midnight(hourly: xr.Dataset) -> xr.Dataset:
    """Return the same with precipitation as ERA5-Land has it: since 00 UTC, all of the day at 00 UTC of the next."""
    day = (hourly["valid_time"].to_index() - pd.Timedelta("30min")).floor("D").values
    made = [hourly["pr"][day == one].cumsum("valid_time", skipna=False) for one in np.unique(day)]
    times = {"valid_time": hourly["valid_time"]}
    return hourly.assign(pr=xr.concat(made, "valid_time").assign_coords(times).assign_attrs(units="m"))


def write_months(ds: xr.Dataset, folder: Path, by: str = "%Y%m") -> Path:
    """Write a file for each variable and month, or year."""
    folder.mkdir(parents=True)
    for name in map(str, ds.data_vars):
        for month, part in ds[[name]].groupby(ds["valid_time"].dt.strftime(by)):
            sizes = tuple(min(*pair) for pair in zip((185, 3, 4), part[name].shape, strict=True))
            how = {name: {"chunksizes": sizes, "zlib": True, "complevel": 1}}
            part.to_netcdf(folder / f"{name}_{month}.nc", encoding=how)
    return folder


def cdo(*words: str, paths: list[Path], out: Path) -> xr.Dataset:
    """Return what CDO makes of files, one after the other in time."""
    subprocess.run(["cdo", "-s", "-O", *words, "-mergetime", *map(str, paths), str(out)], check=True)
    return xr.load_dataset(out)
