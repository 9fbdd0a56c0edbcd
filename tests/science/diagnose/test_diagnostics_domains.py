"""The box of a diagnosed domain, cut from a map."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.science.diagnose.diagnosis import cut_domain


def make_map(lon: np.ndarray, lat: np.ndarray) -> xr.Dataset:
    return xr.Dataset({"tas": (("lat", "lon"), np.ones((lat.size, lon.size)))}, {"lat": lat, "lon": lon})


BOX = {"name": "Ute", "lat_bnds": (35.0, 40.0), "lon_bnds": (-111.0, -103.0)}


@pytest.mark.parametrize("shift", [0, 360])
@pytest.mark.parametrize("step", [1, -1])
def test_the_box_is_cut_with_its_bounds_in_either_longitude_convention_and_order_of_latitudes(shift, step):
    ds = make_map(np.arange(-120.0, -100) + shift, np.arange(30.0, 45)[::step])
    out = cut_domain(ds, BOX)
    np.testing.assert_array_equal(out.lat, np.arange(35.0, 41)[::step])
    np.testing.assert_array_equal(out.lon, np.arange(-111.0, -102) + shift)


def test_the_domain_of_the_official_diagnostics_is_cut_without_the_buffer_that_its_region_may_have():
    ds = make_map(np.arange(-120.0, -100), np.arange(30.0, 45))
    xr.testing.assert_identical(cut_domain(ds, {**BOX, "tile_buffer": 1.5}), cut_domain(ds, BOX))


def test_what_is_cut_says_that_it_is_the_domain():
    ds = make_map(np.arange(-120.0, -100), np.arange(30.0, 45)).assign_attrs({"cat:domain": "south", "cat:id": "sim"})
    assert cut_domain(ds, BOX).attrs == {"cat:domain": "Ute", "cat:id": "sim"}
    assert ds.attrs["cat:domain"] == "south", "the input is not changed"


def test_bounds_from_0_to_360_meet_data_from_minus_180_to_180():
    ds = make_map(np.arange(-120.0, -100), np.arange(30.0, 45))
    shifted = {**BOX, "lon_bnds": (249.0, 257.0)}
    xr.testing.assert_identical(cut_domain(ds, shifted), cut_domain(ds, BOX))


def test_a_curvilinear_grid_is_cropped_and_masked():
    ds = make_map(np.arange(4.0), np.arange(5.0)).rename(lat="rlat", lon="rlon")
    ds = ds.assign_coords(lat=34.0 + ds.rlat + 0 * ds.rlon, lon=-112.0 + ds.rlon + ds.rlat)
    out = cut_domain(ds, {**BOX, "lat_bnds": (35, 36), "lon_bnds": (-111, -110)})
    inside = [(35.0, -111.0), (35.0, -110.0), (36.0, -110.0)]
    assert out.sizes == {"rlat": 2, "rlon": 2} and int(out.tas.notnull().sum()) == len(inside)


def test_a_box_without_a_cell_is_an_error_that_shows_what_the_data_span():
    with pytest.raises(DataError, match=r"region Ute .*holds no cell of the data \(-70 to -61 °E, 30 to 44 °N\)"):
        cut_domain(make_map(np.arange(-70.0, -60), np.arange(30.0, 45)), BOX)


def test_a_box_across_the_edge_of_the_longitudes_has_its_columns_side_by_side():
    found = cut_domain(make_map(np.arange(0.0, 360), np.arange(30.0, 45)), {**BOX, "lon_bnds": (-10, 10)})
    assert found["lon"].values.tolist() == list(range(-10, 11))
