"""The box of a diagnosed domain, cut from a map."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import xarray as xr

from espo_luigi.science import stack
from espo_luigi.science.diagnose import diagnosis
from espo_luigi.science.diagnose.definitions import judged, usual_properties
from espo_luigi.science.diagnose.diagnosis import cut_domain, spread
from espo_luigi.science.variables import VARIABLES


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


def pieces_of(ds: xr.Dataset, rows: Sequence[slice]) -> tuple[list[xr.Dataset], list[xr.Dataset]]:
    """Stacked pieces of maps, and their grids with `land`."""
    parts = [ds.isel(lat=one) for one in rows]
    grids = [stack.grid_of(part).assign(land=stack.land_of(part)) for part in parts]
    return [stack.stack_drop_nans(part) if part.tas.notnull().any() else part for part in parts], grids


@pytest.mark.parametrize("turn", [1, -1])
def test_cells_of_a_whole_domain_are_spread_over_its_pieces_and_lie_as_on_its_map(
    turn: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosis, "CELLS_OF_A_DOMAIN", 12)
    values = np.random.default_rng(0).random((5, 12, 10))
    values[:, :, 4] = np.nan
    whole = xr.Dataset(
        {"tas": (("time", "lat", "lon"), values)}, {"lat": np.arange(40.0, 52)[::turn], "lon": np.arange(10.0, 20)}
    )
    rows = [slice(0, 4), slice(4, 6), slice(6, 12)][::turn]
    parts, grids = pieces_of(whole, rows)
    maps = spread(parts, grids)
    assert maps.attrs["cells"] == "one row and one column in 3, of 108 land cells"
    expected = whole.sortby("lat").isel(lat=slice(1, None, 3), lon=slice(1, None, 3))
    np.testing.assert_array_equal(maps.tas.transpose("time", "lat", "lon"), expected.tas)
    assert maps.tas.chunks is not None
    monkeypatch.setattr(diagnosis, "CELLS_OF_A_DOMAIN", 108)
    whole = spread(parts, grids)
    assert whole.attrs["cells"] == "all 108 land cells" and whole.tas.shape == (5, 12, 10)


def test_a_domain_of_one_row_has_cells_however_many_columns_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "CELLS_OF_A_DOMAIN", 2)
    row = xr.Dataset({"tas": (("time", "lat", "lon"), np.ones((2, 1, 50)))}, {"lat": [45.0], "lon": np.arange(50.0)})
    parts, grids = pieces_of(row, [slice(None)])
    assert dict(spread(parts, grids).sizes) == {"time": 2, "lat": 1, "lon": 2}


def test_each_variable_of_the_table_has_usual_properties_that_xsdba_has() -> None:
    usual = usual_properties(VARIABLES)
    names = {*judged(usual)["indicators"]}
    assert {"mean_pr", "dry_pr", "q99_hurs", "q01_tasmin"} <= names and names.isdisjoint({"q01_pr", "dry_tasmax"})
