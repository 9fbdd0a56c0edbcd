"""What cannot be regridded is an error that says what is expected."""

from __future__ import annotations

import pytest
import xarray as xr
from test_regrid import simulation, small, stacked

from espo_luigi.errors import DataError


@pytest.mark.parametrize(
    ("ds", "message"),
    [
        (simulation().drop_vars(["lat", "area"]), "the source of the regridding has no lat: expected coordinates lat"),
        (simulation().isel(lat=[3]), "expected 2 or more points each"),
        (simulation().isel(lon=[3, 1, 2]), "the source's lon is not monotonic"),
        (simulation().isel(lon=[]), "the source of the regridding has no points"),
        (simulation()[["time_bnds", "lat", "lon"]], "nothing to regrid"),
        (stacked().isel(loc=slice(9)), "the source of the regridding is a list of points on 'loc'"),
    ],
)
def test_a_source_that_cannot_be_regridded_is_an_error(ds: xr.Dataset, message: str) -> None:
    with pytest.raises(DataError, match=message):
        small(ds)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (simulation().area * 0, r"'mask' is 1 in none of 143 cells: nothing to regrid from"),
        (simulation().area * float("nan"), r"'mask' is 1 in none of 143 cells"),
        (simulation().area * 60, r"'mask' has 143 values like 60; expected 1 \(used\), 0 or NaN"),
        (simulation().lat > 50, r"'mask' is on \('lat',\); expected its grid, \('lat', 'lon'\)"),
        (simulation().tasmax > 280, r"'mask' is on \('time', 'lat', 'lon'\); expected its grid"),
    ],
)
def test_a_mask_that_cannot_be_used_is_an_error(mask: xr.DataArray, message: str) -> None:
    with pytest.raises(DataError, match=message):
        small(simulation().assign_coords(mask=mask))


def test_an_empty_target_is_an_error() -> None:
    with pytest.raises(DataError, match="the target of the regridding has no points"):
        small(simulation(), stacked().isel(loc=slice(0)))


def test_a_target_with_missing_coordinates_is_an_error() -> None:
    target = stacked()
    with pytest.raises(DataError, match="the target of the regridding has coordinates that are NaN"):
        small(simulation(), target.assign_coords(lat=target.lat.where(target.lat > 50)))
