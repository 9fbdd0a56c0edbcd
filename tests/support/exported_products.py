"""Products of a simulation, and the NetCDF files that `espo export` makes of them, made here by xarray and hashlib."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from espo_luigi import store
from espo_luigi.publication.origin import About
from espo_luigi.store.table import write_checksums

SIM = "CMIP6_ScenarioMIP_X_Model_ssp585_r1i1p1f1_global"
ATTRS = {
    "cat:id": SIM,
    "cat:type": "simulation",
    "cat:processing_level": "final",
    "cat:source": "Model",
    "cat:xrfreq": "D",
    "cat:frequency": "day",
}
RAW = {"files of " + SIM: "0123456789ab"}
FILES = {
    "/raw/pr_b.nc": "hdl:21.14100/0f2b8e0e-1b2c-4c1d-9c0e-0123456789ab",
    "/raw/pr_a.nc": "hdl:21.14100/1f2b8e0e-1b2c-4c1d-9c0e-0123456789ab",
    "/raw/old.nc": "2f2b8e0e-1b2c-4c1d-9c0e-0123456789ab",
    "/raw/nameless.nc": "",
}
ABOUT = About("ESPO v1", "Scenarios", "CC-BY-4.0", "2026-01-01", cite_as="https://doi.org/10.5281/zenodo.1")
ROTATED = {
    "grid_mapping_name": "rotated_latitude_longitude",
    "grid_north_pole_latitude": 42.5,
    "grid_north_pole_longitude": 83.0,
    "north_pole_grid_longitude": 0.0,
}


def on_map(calendar: str = "noleap", years: int = 3, seed: int = 1) -> xr.Dataset:
    """Two variables on 4 x 5 cells, of which two are sea."""
    days = {"360_day": 360}.get(calendar, 365) * years
    time = xr.date_range("2001-01-01", periods=days, calendar=calendar, use_cftime=True)
    values = np.random.default_rng(seed).uniform(250, 300, (2, days, 4, 5)).astype("float32")
    values[:, :, 0, :2] = np.nan
    place = {
        "lat": ("lat", [45.25, 45.75, 46.25, 46.75], {"units": "degrees_north", "standard_name": "latitude"}),
        "lon": ("lon", 287.25 + 0.5 * np.arange(5), {"units": "degrees_east", "standard_name": "longitude"}),
    }
    both = {
        name: (("time", "lat", "lon"), one, {"units": "K", "long_name": name})
        for name, one in zip(("tasmax", "tasmin"), values, strict=True)
    }
    return xr.Dataset(both, {"time": time, **place}, ATTRS)


def rotated(rlat: np.ndarray, rlon: np.ndarray) -> xr.Dataset:
    """A rotated grid whose latitudes and longitudes PROJ has computed."""
    import pyproj

    pole = pyproj.CRS.from_cf(ROTATED)
    to_earth = pyproj.Transformer.from_crs(pole, pyproj.CRS.from_epsg(4326), always_xy=True)
    lon, lat = to_earth.transform(*np.meshgrid(rlon, rlat))
    coords = {
        "rlat": ("rlat", rlat, {"standard_name": "grid_latitude"}),
        "rlon": ("rlon", rlon, {"standard_name": "grid_longitude"}),
        "lat": (("rlat", "rlon"), lat),
        "lon": (("rlat", "rlon"), lon),
        "rotated_pole": ((), 1, ROTATED),
    }
    return xr.Dataset({"tasmax": (("rlat", "rlon"), lat)}, coords)


def publish(dataset: xr.Dataset, path: Path, task: str = "ConcatenationFinal", **parameters: str) -> store.Marker:
    """Publish a dataset as an archive or as a folder, with a marker."""
    versions = {"espo_luigi": "0.2.0"}
    marker = store.Marker(task, parameters, versions, fingerprints=RAW, created="2026-01-01T00:00:00+00:00")
    folder = path.with_suffix("") if path.suffix == ".zip" else path
    store.write_store(dataset, folder, marker)
    if path.suffix == ".zip":
        store.pack(folder, path, marker)
        store.remove(folder)
    return marker


def look_at_raw_files(final: Path) -> None:
    """Publish the table that InputCheck writes."""
    marker = store.Marker("InputCheck", {"sim_id": SIM}, inputs=FILES, fingerprints=RAW)
    store.write_table(["problem"], [], final / "checks" / "sim_input.csv", marker)


def export(product: Path, final: Path, folder: Path, made_from: str = "") -> list[Path]:
    """Write the files of a product: a variable and two years in each, and then the file of their checksums.

    The last line of this file is the marker of the export, by default from the product as it is.
    """
    ds = store.open_store(product).load()
    stem, made = product.name.removesuffix(".zip").removesuffix(".zarr"), []
    marker = store.read_marker(product)
    inputs = {f"/elsewhere/final/{product.name}": made_from or (marker.id if marker else "")}
    for name in ds.data_vars:
        files = {}
        for first in (2001, 2003):
            part = ds[[name]].sel(time=slice(str(first), str(first + 1)))
            tracking = f"hdl:21.14100/{name}-{first}"
            part.attrs = {"espo_luigi_product": product.relative_to(final).as_posix(), "tracking_id": tracking}
            path = folder / str(name) / f"{name}_{stem}_{first}.nc"
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(part, path)
            files[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
            made.append(path)
        write_checksums(files, folder / str(name) / f"{name}_{stem}.sha256", store.Marker("Export", inputs=inputs))
    return made


def _write(part: xr.Dataset, path: Path) -> None:
    for variable in part.variables.values():
        variable.encoding = {}
    days = int(xr.DataArray(part["time"].dt.year == part["time"].dt.year[0]).sum())
    stored = {"zlib": True, "complevel": 1, "shuffle": True, "_FillValue": np.float32(1e20)}
    encoding: dict[str, dict[str, Any]] = {
        str(name): {**stored, "chunksizes": (days, *data.shape[1:])} for name, data in part.data_vars.items()
    }
    encoding["time"] = {"units": "days since 1950-01-01", "dtype": "float64", "_FillValue": None}
    part.to_netcdf(path, encoding=encoding, unlimited_dims=[])
