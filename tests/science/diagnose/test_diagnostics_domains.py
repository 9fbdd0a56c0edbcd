"""The box of a diagnosed domain, cut from a map."""

from __future__ import annotations

import numpy as np
import xarray as xr

from espo_luigi.science.diagnose.diagnosis import cut_domain


def make_map(lon: np.ndarray, lat: np.ndarray) -> xr.Dataset:
    return xr.Dataset({"tas": (("lat", "lon"), np.ones((lat.size, lon.size)))}, {"lat": lat, "lon": lon})


BOX = {"name": "Ute", "lat_bnds": (35.0, 40.0), "lon_bnds": (-111.0, -103.0)}


def test_the_domain_of_the_official_diagnostics_is_cut_without_the_buffer_that_its_region_may_have():
    ds = make_map(np.arange(-120.0, -100), np.arange(30.0, 45))
    xr.testing.assert_identical(cut_domain(ds, {**BOX, "tile_buffer": 1.5}), cut_domain(ds, BOX))


def test_what_is_cut_says_that_it_is_the_domain():
    ds = make_map(np.arange(-120.0, -100), np.arange(30.0, 45)).assign_attrs({"cat:domain": "south", "cat:id": "sim"})
    assert cut_domain(ds, BOX).attrs == {"cat:domain": "Ute", "cat:id": "sim"}
    assert ds.attrs["cat:domain"] == "south", "the input is not changed"
