"""Stacking keeps the cells with data; unstacking puts them back, exactly, on the complete grid."""

from __future__ import annotations

import logging

import dask
import numpy as np
import pytest
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.science.stack import grid_of, stack_drop_nans, unstack_fill_nan

NT, NY, NX = 5, 7, 9


def make_land(chunks: dict | None = None, descending: bool = False) -> xr.Dataset:
    rng = np.random.default_rng(0)
    sea = rng.random((NY, NX)) < 0.4
    lat = np.linspace(40.05, 46.3, NY)
    coords = {
        "time": xr.date_range("2000-01-01", periods=NT, calendar="noleap", use_cftime=True),
        "lat": ("lat", lat[::-1] if descending else lat, {"units": "degrees_north"}),
        "lon": ("lon", np.linspace(-80.1, -71.7, NX).astype("float32"), {"units": "degrees_east"}),
    }
    data = {
        name: (("time", "lat", "lon"), np.where(sea, np.nan, rng.random((NT, NY, NX))).astype(dtype), {"units": "K"})
        for name, dtype in (("tasmax", "float32"), ("pr", "float64"))
    }
    ds = xr.Dataset(data, coords, {"cat:domain": "south", "cat:id": "x"})
    return ds.chunk(chunks) if chunks else ds


def make_rotated() -> xr.Dataset:
    ds = make_land().rename(lat="rlat", lon="rlon")
    lat2d = ds.rlat + 0.01 * ds.rlon
    lon2d = (ds.rlon - 0.02 * ds.rlat).transpose("rlat", "rlon")
    return ds.assign_coords(lat=lat2d, lon=lon2d).assign(
        rotated_pole=((), 0, {"grid_mapping_name": "rotated_latitude_longitude"})
    )


def with_original_shape(ds: xr.Dataset) -> xr.Dataset:
    """What unstacking gives back: the dataset, whose horizontal coordinates know the shape."""
    names = [name for name in ("lat", "lon", "rlat", "rlon") if name in ds.coords]
    return ds.assign_coords({name: ds[name].assign_attrs(original_shape="7x9") for name in names})


def test_stacking_keeps_in_c_order_the_cells_that_numpy_finds_in_the_first_time_step():
    ds = make_land()
    flat = ds.pr.values.reshape(NT, -1)
    land = ~np.isnan(ds.tasmax.values[0].ravel())
    stacked = stack_drop_nans(ds)
    assert stacked.tasmax.dims == ("time", "loc")
    np.testing.assert_array_equal(stacked.pr, flat[:, land])
    np.testing.assert_array_equal(stacked.lat, np.repeat(ds.lat.values, NX)[land])
    np.testing.assert_array_equal(stacked.lon, np.tile(ds.lon.values, NY)[land])


def test_stacked_coordinates_carry_the_original_shape_and_loc_has_no_index():
    stacked = stack_drop_nans(make_land())
    assert stacked.lat.attrs == {"units": "degrees_north", "original_shape": "7x9"}
    assert stacked.lon.attrs["original_shape"] == "7x9"
    assert "loc" not in stacked.coords and "loc" not in stacked.indexes
    assert stacked.attrs == {"cat:domain": "south", "cat:id": "x"}
    assert stacked.tasmax.attrs == {"units": "K"}


def test_only_the_first_variable_at_the_first_step_decides_which_cells_stay():
    ds = make_land()
    ds["pr"] = ds.pr.where(False)
    ds["tasmax"] = ds.tasmax.where(ds.time > ds.time[0], 1.0)
    assert stack_drop_nans(ds).sizes["loc"] == NY * NX


@pytest.mark.parametrize("chunks", [None, {"time": 2, "lat": 3}])
def test_variables_with_data_in_other_cells_at_their_first_step_are_named_in_a_warning(chunks, caplog):
    ds = make_land().assign(dtr=lambda ds: ds.tasmax, elevation=("lat", np.ones(NY)))
    land = np.argwhere(~np.isnan(ds.tasmax.values[0]))
    ds["pr"].values[0, *land[:2].T] = np.nan
    ds["pr"].values[0, *np.argwhere(np.isnan(ds.tasmax.values[0]))[0]] = 1.0
    ds["dtr"] = ds.dtr.where(ds.time == ds.time[0])
    with caplog.at_level(logging.WARNING, logger="espo_luigi.science.stack"):
        stacked = stack_drop_nans(ds.chunk(chunks) if chunks else ds)
    (record,) = caplog.records
    assert record.getMessage().startswith("In the domain 'south', 'tasmax' at its first time step decides")
    assert record.getMessage().endswith("then: 'pr' in 3 cells.")
    assert stacked.sizes["loc"] == len(land)


def test_variables_with_data_in_the_same_cells_bring_no_warning(caplog):
    stack_drop_nans(make_land())
    assert not caplog.records


@pytest.mark.parametrize("descending", [False, True])
def test_unstacking_what_was_stacked_gives_the_dataset_back(descending):
    ds = make_land(descending=descending)
    xr.testing.assert_identical(unstack_fill_nan(stack_drop_nans(ds), grid_of(ds)), with_original_shape(ds))


def test_the_unstacked_coordinates_have_the_grids_attributes_and_above_them_those_of_the_stacked_ones():
    ds = make_land()
    stacked, grid = stack_drop_nans(ds), grid_of(ds)
    stacked["lat"].attrs = {"original_shape": "7x9", "axis": "Y"}
    grid["lat"].attrs["axis"] = "y"
    out = unstack_fill_nan(stacked, grid)
    assert out.lat.attrs == {"units": "degrees_north", "original_shape": "7x9", "axis": "Y"}
    assert out.indexes["lat"].equals(ds.indexes["lat"])
    assert grid.lat.attrs == {"units": "degrees_north", "axis": "y"}, "the input is not changed"


@pytest.mark.parametrize("chunks", [None, {"lat": 2, "lon": 4}])
def test_bits_keep_their_type_and_are_0_where_there_are_no_cells(chunks):
    stacked = stack_drop_nans(make_land())
    bits = xr.ones_like(stacked.tasmax, dtype="uint16") * np.uint16(513)
    land = make_land().tasmax.isel(time=0).notnull().values
    made = unstack_fill_nan(stacked.assign(bits=bits, number=bits.astype("int16")), grid_of(make_land()), chunks)
    assert made.bits.dtype == "uint16" and made.number.dtype == "float64"
    np.testing.assert_array_equal(made.bits, np.broadcast_to(np.where(land, 513, 0), made.bits.shape))


def test_what_was_unstacked_can_be_stacked_again():
    stacked = stack_drop_nans(make_land())
    xr.testing.assert_identical(stack_drop_nans(unstack_fill_nan(stacked, grid_of(make_land()))), stacked)


@pytest.mark.parametrize("chunks", [{"lat": 2, "lon": 4}, {"lat": -1, "lon": 3}, {}])
@pytest.mark.parametrize("loc", [4, -1])
def test_unstacking_on_dask_is_lazy_and_gives_the_same_in_the_chunks_that_were_asked_for(chunks, loc):
    ds = make_land({"time": 2, "lat": 3, "lon": 3})
    stacked = stack_drop_nans(ds).chunk(loc=loc)
    unstacked = unstack_fill_nan(stacked, grid_of(ds), chunks)
    assert dask.is_dask_collection(unstacked.pr)
    assert unstacked.tasmax.chunksizes["lat"][0] == {2: 2}.get(chunks.get("lat"), NY)
    xr.testing.assert_identical(unstacked.compute(), with_original_shape(ds.compute()))


def test_xarrays_own_unstack_agrees():
    ds = make_land()
    stacked = stack_drop_nans(ds)
    theirs = stacked.set_index(loc=("lat", "lon")).unstack("loc").reindex(lat=ds.lat, lon=ds.lon)
    ours = unstack_fill_nan(stacked, grid_of(ds))
    xr.testing.assert_equal(ours, theirs.transpose("time", "lat", "lon"))


def test_a_rotated_grid_makes_the_round_trip_with_its_2d_coordinates():
    ds = make_rotated()
    stacked = stack_drop_nans(ds)
    assert set(stacked.coords) == {"time", "rlat", "rlon", "lat", "lon"}
    assert all(stacked[name].dims == ("loc",) for name in ("rlat", "rlon", "lat", "lon"))
    xr.testing.assert_identical(unstack_fill_nan(stacked, grid_of(ds)), with_original_shape(ds))


def test_the_grid_holds_complete_coordinates_and_no_data():
    grid = grid_of(make_rotated())
    assert not grid.data_vars and grid.lat.shape == (NY, NX) and set(grid.coords) == {"rlat", "rlon", "lat", "lon"}


def test_dimensions_besides_time_survive_and_the_grid_comes_last():
    ds = make_land()
    stacked = stack_drop_nans(ds).transpose("loc", "time").expand_dims(quantiles=[0.1, 0.9], axis=1)
    assert unstack_fill_nan(stacked, grid_of(ds)).pr.dims == ("quantiles", "time", "lat", "lon")


def test_a_region_without_data_is_an_error_that_names_it():
    ds = make_land().where(False)
    with pytest.raises(DataError, match=r"'tasmax' is NaN in all 63 cells of the domain 'south'"):
        stack_drop_nans(ds)


def test_a_cell_off_the_grid_is_an_error_that_says_which():
    ds = make_land()
    stacked = stack_drop_nans(ds)
    moved = stacked.assign_coords(lat=stacked.lat + 1e-6)
    with pytest.raises(
        DataError, match=r"cells of the domain 'south' are not on the grid, the first at lat = .*40\.05"
    ):
        unstack_fill_nan(moved, grid_of(ds))


def test_another_regions_grid_is_an_error_that_shows_both_shapes():
    ds = make_land()
    with pytest.raises(DataError, match="from a grid of 7x9 cells, the grid given has 6x9"):
        unstack_fill_nan(stack_drop_nans(ds), grid_of(ds.isel(lat=slice(1, None))))


def test_two_cells_at_one_place_are_an_error():
    stacked = stack_drop_nans(make_land())
    twice = xr.concat([stacked, stacked.isel(loc=[0])], "loc", data_vars="all", coords="all")
    with pytest.raises(DataError, match=r"1 of \d+ cells .* have the coordinates of another"):
        unstack_fill_nan(twice, grid_of(make_land()))
