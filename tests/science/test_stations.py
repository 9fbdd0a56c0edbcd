"""Stations as a grid of one column: cut, stacked, stored and drawn; all of them count, whatever they lack."""

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from espo_luigi import store
from espo_luigi.errors import DataError
from espo_luigi.report.maps import areas_of, share_maps
from espo_luigi.science import stack
from espo_luigi.science.geometry.cells import normalise_coordinates
from espo_luigi.science.geometry.cutting import subset_box
from espo_luigi.science.stations import as_series


def stations(**lon: float) -> xr.Dataset:
    values = np.arange(12, dtype="f4").reshape(3, 4)
    values[0, 2] = np.nan
    ds = xr.Dataset(
        {"tas": (("time", "n"), values)},
        {
            "time": xr.date_range("2000-01-01", periods=3),
            "lat": ("n", [50.0, 10.0, 51.0, 52.0]),
            "lon": ("n", [5.0, 6.0, 7.0, 359.0]),
            "station_id": ("n", ["a", "b", "c", "d"]),
        },
    )
    return normalise_coordinates(ds)


def test_a_box_keeps_its_stations_alone_and_their_numbers() -> None:
    cut = subset_box(stations(), {"name": "x", "lon_bnds": [-2, 8], "lat_bnds": [45, 55]})
    assert list(cut["station_id"].values) == ["a", "c", "d"] and list(cut["station"].values) == [0, 2, 3]
    assert cut["tas"].dims == ("time", "station", "point")
    with pytest.raises(DataError, match=r"region x .* holds no cell"):
        subset_box(stations(), {"name": "x", "lon_bnds": [20, 30], "lat_bnds": [45, 55]})


def test_stations_come_back_from_stacked_cells_and_from_stores(tmp_path: Path) -> None:
    ds = subset_box(stations(), {"name": "x", "lon_bnds": [-2, 8], "lat_bnds": [45, 55]})
    stacked = stack.stack_drop_nans(ds)
    assert stacked.sizes["loc"] == 3 == int(stack.land_of(ds).sum())  # one lacks its first day
    back = stack.unstack_fill_nan(stacked, stack.grid_of(ds))
    np.testing.assert_array_equal(back["tas"], ds["tas"])
    assert list(back["station_id"].values) == ["a", "c", "d"]
    store.write_store(ds.chunk(), tmp_path / "a.zarr", store.Marker(task="a"))
    for cut in (True, False):
        opened = store.open_store(tmp_path / "a.zarr", cut=cut)
        xr.testing.assert_identical(
            opened.drop_attrs(deep=False).compute(), ds.transpose(*opened.dims).drop_attrs(deep=False)
        )
    on_disk = xr.open_zarr(tmp_path / "a.zarr", consolidated=True)
    assert on_disk["tas"].dims == ("time", "station") and on_disk["lat"].dims == ("station",)
    assert on_disk.attrs["featureType"] == "timeSeries" == as_series(ds).attrs["featureType"]


def test_a_map_of_stations_has_a_point_for_each_that_has_a_value() -> None:
    field = stations()["tas"].isel(time=0)
    assert (areas_of(field) == 1).all()
    figure = share_maps({"<b>A</b>": field}, title="stations")
    missing, known = figure.axes[0].collections[:2]
    np.testing.assert_array_equal(known.get_offsets(), [[5, 50], [6, 10], [-1, 52]])
    np.testing.assert_array_equal(known.get_array(), [0, 1, 3])
    np.testing.assert_array_equal(missing.get_offsets(), [[7, 51]])
