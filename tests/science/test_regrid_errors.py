"""What cannot be regridded, or not as it is asked for, is an error that says what is supported."""

from __future__ import annotations

from typing import Any

import pytest
import xarray as xr
from test_regrid import REG1, simulation, small, stacked

from espo_luigi.errors import ConfigurationError, DataError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"method": "conservative"},
            r"regridder_kwargs: method = 'conservative' is not supported; supported: 'bilinear'",
        ),
        ({"extrap_method": "creep_fill"}, "supported: None, 'inverse_dist', 'nearest_s2d'"),
        ({"skipna": True}, "skipna = True is not supported; supported: False"),
        ({"extrap_methode": "x"}, "unknown key 'extrap_methode'; known are method, extrap_method"),
        ({"extrap_method": "inverse_dist", "extrap_num_src_pnts": 0}, "extrap_num_src_pnts must be a positive number"),
    ],
)
def test_unsupported_options_are_errors_that_list_what_is_supported(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        small(simulation(), regridder_kwargs=options)


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        (
            {key: value for key, value in REG1.items() if key != "d_lat"},
            "reg.cf_grid_2d must have exactly lon0_b, lon1_b",
        ),
        ({**REG1, "d_lat": 100}, "lat from 9 to 84 by 100 makes 1 cells; at least 2 are needed"),
        ({**REG1, "lon1_b": "east"}, "the bounds and the step of lon must be numbers"),
    ],
)
def test_an_intermediate_grid_that_cannot_be_made_is_an_error(bounds: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        small(simulation(), intermediate_grids={"reg": {"cf_grid_2d": bounds}})


@pytest.mark.parametrize(
    ("ds", "message"),
    [
        (
            simulation().drop_vars(["lat", "area"]),
            "the source of the regridding has no latitude: expected a coordinate 'lat'",
        ),
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
