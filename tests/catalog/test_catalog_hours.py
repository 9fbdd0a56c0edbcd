"""Files of hours, of any archive's layout, are opened as days that `Match.by_day` opens again."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from espo_luigi import store
from espo_luigi.catalog import Catalog, Match, open_fixed, open_match
from espo_luigi.catalog.build import make_catalog
from espo_luigi.catalog.hours import open_days
from espo_luigi.catalog.open import open_grid, open_grid_mapping
from espo_luigi.errors import DataError
from espo_luigi.store import Marker

BOX = {"name": "box", "lat_bnds": [46, 50], "lon_bnds": [-6, 6]}


def hours(name: str, first: str, count: int, freq: str = "h", calendar: str = "noleap", step: float = 3) -> xr.Dataset:
    """A variable on a globe whose longitudes begin at 0, of which each hour has its number since 2001 in the year."""
    times = xr.date_range(first, periods=count, freq=freq, calendar=calendar, use_cftime=True)
    lat, lon = np.arange(-88.5, 90, step), np.arange(0.0, 360, step)
    numbers = (np.asarray(times.dayofyear) - 1) * 24 + np.asarray(times.hour)
    values = np.broadcast_to(200 + numbers[:, None, None] / 100, (count, lat.size, lon.size)).astype("float32")
    coords = {"time": times, "lat": lat, "lon": lon}
    return xr.Dataset({name: (("time", "lat", "lon"), values, {"units": "K"})}, coords)


@pytest.fixture()
def raw(tmp_path: Path) -> Path:
    folder = tmp_path / "raw"
    folder.mkdir()
    return folder


def found(folder: Path, wanted: Mapping[str, str]) -> Match:
    make_catalog(folder / "raw", folder / "catalogue.json", source="Hours")
    catalog = Catalog.from_files([folder / "catalogue.json"])
    (match,) = catalog.search(variables_and_freqs=wanted, allow_resampling=True).values()
    return replace(match, periods=(("2001", "2001"),))


def days(match: Match, folder: Path, **how: object) -> xr.Dataset:
    """What is opened of the store of the match's days."""
    made = open_days(match, **{"region": BOX, "accumulation": {}, "xr_open_kwargs": {}, **how})
    path = folder / "daily.zarr"
    store.write_store(made, path, Marker("Daily"), by_place=True)
    return open_match(match.by_day(path))


def test_steps_with_bounds_in_files_and_stores_are_of_the_day_of_their_middle(tmp_path: Path, raw: Path) -> None:
    january, february = hours("tas", "2001-01-01", 31 * 24), hours("tas", "2001-02-01", 28 * 24)
    for number, ds in enumerate((january, february)):
        ends = ds.assign_coords(time=ds.indexes["time"].shift(1, "h"))
        ends["time"].attrs["bounds"] = "time_bnds"
        ends["time_bnds"] = ("time", "bnds"), np.stack([ds["time"], ends["time"]], axis=-1)
        if number:
            ends.chunk({"time": 100}).to_zarr(raw / "b.zarr")
        else:
            ends.to_netcdf(raw / "a.nc")
    made = days(found(tmp_path, {"tas": "D", "tasmax": "D"}), tmp_path)
    number = np.arange(59)
    np.testing.assert_allclose(made["tas"][:, 0, 0], 200 + (24 * number + 11.5) / 100, rtol=1e-6)
    np.testing.assert_allclose(made["tasmax"][:, 0, 0], 200 + (24 * number + 23) / 100, rtol=1e-6)
    # Across the first longitude, with the cells in order.
    assert made["lon"].values.tolist() == [-6, -3, 0, 3, 6]
    assert made["time"].dt.calendar == "noleap" and made.attrs["cat:source"] == "Hours"


def test_what_is_there_by_day_is_taken_by_day(tmp_path: Path, raw: Path) -> None:
    hours("tas", "2001-03-01", 8 * 20, "3h").to_netcdf(raw / "hours.nc")
    hours("tasmax", "2001-03-02", 18, "D").to_netcdf(raw / "daily.nc")
    match = found(tmp_path, {"tas": "D", "tasmax": "D", "tasmin": "D"})
    assert dict(match.hours) == {"tas": "tas", "tasmin": "tas"}
    made = days(match, tmp_path)
    number = 60 + np.arange(18)
    assert made.sizes["time"] == 18
    np.testing.assert_allclose(made["tasmax"][:, 0, 0], 200 + 24 * number / 100, rtol=1e-6)
    np.testing.assert_allclose(made["tasmin"][:, 0, 0], 200 + 24 * number / 100, rtol=1e-6)
    np.testing.assert_allclose(made["tas"][:, 0, 0], 200 + (24 * number + 10.5) / 100, rtol=1e-6)
    hours("tasmax", "2001-03-02", 18, "D", step=1.5).to_netcdf(raw / "daily.nc")
    with pytest.raises(DataError, match="tasmax is on another grid"):
        days(found(tmp_path, {"tas": "D", "tasmax": "D"}), tmp_path)


def test_a_rotated_grid_keeps_its_mapping_its_fields_and_the_bounds_of_its_cells(tmp_path: Path, raw: Path) -> None:
    plain = hours("tas", "2001-01-01", 96, calendar="standard")
    y, x = np.meshgrid(np.arange(40.0, 60, 2), np.arange(-14.0, 16, 2), indexing="ij")
    dims, places = ("rlat", "rlon"), {"rlat": y[:, 0] - 50, "rlon": x[0]}
    corner = np.array([[-1, -1], [-1, 1], [1, 1], [1, -1]])
    for name in ("lat", "lon"):
        centres, side = (y, 0) if name == "lat" else (x, 1)
        attrs = {"bounds": f"{name}_vertices", "units": f"degrees_{'north' if name == 'lat' else 'east'}"}
        places[name] = dims, centres, attrs
        places[f"{name}_vertices"] = (*dims, "vertices"), centres[..., None] + corner[:, side]
    values = plain["tas"].values[:, : len(y), : x.shape[1]]
    ds = xr.Dataset({"tas": (("time", *dims), values, {"units": "K", "grid_mapping": "pole"})}, places)
    ds["pole"] = (), np.int8(0), {"grid_mapping_name": "rotated_latitude_longitude"}
    ds.assign_coords(time=plain.indexes["time"].to_datetimeindex(time_unit="us")).to_netcdf(raw / "tas.nc")
    orog = xr.Dataset({"orog": (dims, 100 * y + x, {"units": "m"})}, {**places})
    orog.to_netcdf(raw / "orog.nc")
    match = found(tmp_path, {"tas": "D", "orog": "fx"})
    made = days(match, tmp_path)
    path = tmp_path / "daily.zarr"
    fields = open_fixed(match.by_day(path), made)
    assert (made.sizes["rlat"], made.sizes["rlon"]) == (3, 7)
    np.testing.assert_array_equal(fields["orog"], 100 * made["lat"] + made["lon"])
    grid = open_grid(match.by_day(path).assets[0], {})
    np.testing.assert_array_equal(grid["lat_bounds"].max("lat_corner"), made["lat"] + 1)
    mapping = open_grid_mapping(match.by_day(path), "tas")
    assert (mapping.name, mapping.attrs["grid_mapping_name"]) == ("pole", "rotated_latitude_longitude")
    np.testing.assert_allclose(made["tas"][:, 0, 0], 200 + (24 * np.arange(4) + 11.5) / 100, rtol=1e-6)


def test_memory_and_results_do_not_depend_on_blocks(tmp_path: Path, raw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = hours("tas", "2001-01-01", 24 * 12)
    how = {"tas": {"chunksizes": (31, 7, 50)}}
    ds.isel(time=slice(None, 130)).to_netcdf(raw / "a.nc", encoding=how)
    ds.isel(time=slice(130, None)).to_netcdf(raw / "b.nc", encoding=how)
    match = found(tmp_path, {"tas": "D", "tasmin": "D"})
    whole = days(match, tmp_path).load()
    monkeypatch.setattr("espo_luigi.catalog.hours.BLOCK_BYTES", 50_000)
    made = open_days(match, region=BOX | {"lat_bnds": [-90, 90]}, accumulation={}, xr_open_kwargs={})
    largest = max(4 * np.prod(block) for block in [made["tas"].data.chunksize])
    assert made["tas"].data.npartitions > 10 and largest * 24 < 500_000
    xr.testing.assert_equal(made["tas"].sel(lat=whole["lat"]).drop_attrs(), whole["tas"].drop_attrs())
