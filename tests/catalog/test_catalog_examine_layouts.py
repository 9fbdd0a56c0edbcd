"""Files of other layouts than most: where they are cut, what calendar they are in, what is in memory at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from examined_files import BOX, LAT, LON, weather

from espo_luigi.catalog import Asset, Match, open_match
from espo_luigi.catalog.examine import examine_match
from espo_luigi.science.extract import input_counts


def one_variable(*paths: Path, **columns: str) -> Match:
    """A match of `tasmax` alone, of 2000 and 2001."""
    assets = tuple(Asset({"path": str(path), **columns}, ("tasmax",), str(path)) for path in paths)
    return Match("CMIP6_M", assets, ("tasmax",), (), (("2000", "2001"),), {"id": "CMIP6_M"})


def test_dates_that_are_beyond_numpys_in_one_file_are_of_the_same_calendar(tmp_path: Path) -> None:
    """A scenario in one file that ends in 2300, after a historical run."""
    paths = [tmp_path / "historical.nc", tmp_path / "ssp585.nc"]
    for path, start, periods in zip(paths, ("2000-01-01 12:00", "2001-01-01"), (366, 365 * 265), strict=True):
        time = xr.date_range(start, periods=periods, freq="D", use_cftime=True)
        values = np.linspace(280, 290, periods * 4, dtype="float32").reshape(periods, 2, 2)
        coords = {"time": time, "lat": LAT[2:4], "lon": LON[2:4]}
        xr.Dataset({"tasmax": (("time", "lat", "lon"), values, {"units": "K"})}, coords).to_netcdf(path)
    match = one_variable(*paths)
    box = BOX | {"lat_bnds": (45.0, 47.5), "lon_bnds": (256.0, 259.0)}
    assert examine_match(match, period=("2000", "2001"), regions=[box], limits={}) == []
    assert open_match(match).sizes["time"] == 731


def test_cells_without_coordinates_do_not_differ(tmp_path: Path) -> None:
    """Of a curvilinear grid, land cells of the ocean's processors have none."""
    lat, lon = np.meshgrid(LAT, LON, indexing="ij")
    lat[0, 0] = lon[0, 0] = np.nan
    paths = [tmp_path / "2000.nc", tmp_path / "2001.nc"]
    for year, path in zip((2000, 2001), paths, strict=True):
        ds = weather("tasmax", (year, year), "noleap")
        held = ds.tasmax.drop_vars(["lat", "lon"]).rename(lat="y", lon="x").to_dataset()
        held.assign_coords(lat=(("y", "x"), lat), lon=(("y", "x"), lon)).to_netcdf(path)
    assert examine_match(one_variable(*paths), period=("2000", "2001"), regions=[BOX], limits={}) == []


def test_regions_on_both_sides_of_the_edge_of_longitudes_are_looked_at(tmp_path: Path) -> None:
    """Each can be cut from 0 to 360 degrees; one box around them cannot."""
    lat, lon = np.arange(35.0, 60.0, 5), np.arange(0.0, 360.0, 5)
    time = xr.date_range("2000-01-01", "2001-12-31", freq="D")
    values = np.random.default_rng(0).uniform(270, 290, (len(time), len(lat), len(lon))).astype("float32")
    values[40, 1, 70] = values[50, 3, 2] = values[60, 0, 30] = 400
    ds = xr.Dataset(
        {"tasmax": (("time", "lat", "lon"), values, {"units": "K"})}, {"time": time, "lat": lat, "lon": lon}
    )
    ds.to_netcdf(tmp_path / "reference.nc")
    spain = {"name": "spain", "lon_bnds": (-11, -1), "lat_bnds": (36, 44)}
    germany = {"name": "germany", "lon_bnds": (5, 15), "lat_bnds": (47, 55)}
    match = one_variable(tmp_path / "reference.nc")
    (found,) = examine_match(match, period=("2000", "2001"), regions=[spain, germany], limits={"tasmax": (200, 340)})
    assert (found.kind, found.count) == ("impossible_values", 2)
    assert (found.day, found.lat, found.lon) == ("2000-02-10", 40.0, 350.0)


@pytest.mark.parametrize("name", ["series.zarr", "series.nc"])
def test_of_a_file_of_long_series_a_tile_of_the_map_is_in_memory_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A reference is often stored so: all days of some cells in one chunk. Found is the same as of maps."""
    ds = weather("tasmax", (2000, 2001), "noleap")
    values = ds.tasmax.values
    values[100], values[200], values[300] = np.nan, 280, 0
    values[300, 0, 0], values[30, 5, 7], values[31, 2, 9] = 285, 400, 390
    values[400] = np.nan
    values[400, 6, 10] = 281
    chunks = (730, 3, 4)
    if name.endswith("zarr"):
        ds.to_zarr(tmp_path / name, encoding={"tasmax": {"chunks": chunks}})
    else:
        ds.to_netcdf(tmp_path / name, encoding={"tasmax": {"chunksizes": chunks}})
    sizes: list[int] = []
    real = input_counts.FileDays.__init__

    def measured(self: Any, raw: Any, days: Any, values: np.ndarray, *others: Any) -> None:
        sizes.append(values.size)
        real(self, raw, days, values, *others)

    monkeypatch.setattr(input_counts.FileDays, "__init__", measured)
    monkeypatch.setattr("espo_luigi.catalog.examine.BLOCK_BYTES", 730 * 3 * len(LON) * 4)
    world = BOX | {"lon_bnds": (250, 280), "lat_bnds": (40, 55)}
    found = examine_match(
        one_variable(tmp_path / name), period=("2000", "2001"), regions=[world], limits={"tasmax": (200, 340)}
    )
    assert max(sizes) <= 730 * 3 * len(LON)
    rows = {problem.kind: (problem.day, problem.count, problem.lat, problem.lon, problem.value) for problem in found}
    cells = len(LAT) * len(LON)
    (impossible,) = [problem for problem in found if problem.kind == "impossible_values"]
    assert f"{cells + 1} value(s) on 3 day(s) from 2000-01-31 on" in impossible.message
    assert rows == {
        "maps_without_data": ("2000-04-11", 1, None, None, None),
        "constant_maps": ("2000-07-20", 1, None, None, 280.0),
        "missing_values": ("2000-01-01", cells - 1, LAT[0], LON[0], None),
        "impossible_values": ("2000-10-28", cells + 1, LAT[0], LON[1], 0.0),
    }
