"""The small demo's reference in the layouts of archives that people have."""

from pathlib import Path

import numpy as np
import xarray as xr


def reference_in_celsius(raw: Path, *years: str) -> xr.Dataset:
    """The small demo's reference: temperatures in °C, precipitation in mm a day, in single precision."""
    files = sorted(raw.rglob("*Demo-Land*.nc"))
    ds = xr.merge([xr.open_dataset(file) for file in files], compat="override")[["tasmax", "tasmin", "pr"]].load()
    ds = ds.sel(time=slice(*(years or (None,)))).drop_encoding().drop_attrs()
    return (ds - xr.Dataset({"tasmax": 273.15, "tasmin": 273.15})).assign(pr=ds["pr"] * 86400).astype("float32")


def write(ds: xr.Dataset, path: Path, name: str, held: str, units: str, time: str = "time") -> None:
    """Write a variable by another name, with these units."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = ds[[name]].rename({name: held})
    data[held].attrs["units"] = units
    data.rename({"time": time} if time != "time" else {}).to_netcdf(path)


def as_e_obs(ds: xr.Dataset, folder: Path) -> None:
    """Write a file for each variable, with all years."""
    named = ds.rename(lat="latitude", lon="longitude")
    for name, held, units in (("tasmax", "tx", "Celsius"), ("tasmin", "tn", "Celsius"), ("pr", "rr", "mm")):
        write(named, folder / f"{held}_ens_mean_0.25deg_reg_v31.0e.nc", name, held, units)


def as_gridmet(ds: xr.Dataset, folder: Path) -> None:
    """Write a file for each variable and year, of which two variables have a name in common."""
    kelvin = ds.assign(tasmax=ds["tasmax"] + np.float32(273.15), tasmin=ds["tasmin"] + np.float32(273.15))
    for year, of_year in kelvin.groupby("time.year"):
        for name, file, held, units in (
            ("tasmax", "tmmx", "air_temperature", "K"),
            ("tasmin", "tmmn", "air_temperature", "K"),
            ("pr", "pr", "precipitation_amount", "mm"),
        ):
            write(of_year.transpose("time", "lat", "lon"), folder / f"{file}_{year}.nc", name, held, units, "day")


def as_daymet(ds: xr.Dataset, folder: Path) -> None:
    """Write a file for each variable and year, with the first 365 days."""
    for year, of_year in ds.groupby("time.year"):
        noon = of_year["time"][:365].dt.floor("D") + np.timedelta64(12, "h")
        kept = of_year.isel(time=slice(365)).assign_coords(time=noon)
        for name, held, units in (
            ("tasmax", "tmax", "degrees C"),
            ("tasmin", "tmin", "degrees C"),
            ("pr", "prcp", "mm/day"),
        ):
            write(kept, folder / f"daymet_v4_daily_na_{held}_{year}.nc", name, held, units)
