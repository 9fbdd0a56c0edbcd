"""Land cells without data are an error, unless the simulation or the reference itself lacks them."""

from __future__ import annotations

from typing import Literal

import dask
import numpy as np
import pandas as pd
import pytest
import xarray as xr

from espo_luigi.errors import DataError, HealthCheckError
from espo_luigi.science.attributes import CELLS_WITHOUT_DATA, IMPOSSIBLE_VALUES, LET_THROUGH
from espo_luigi.science.chunks import join
from espo_luigi.science.diagnose.health import health_checks
from espo_luigi.science.finalize.gaps import (
    allowed_gaps,
    join_land,
    require_data,
    with_incomplete_cells,
    with_possible_values,
)
from espo_luigi.science.finalize.scenario import Land, Treatment, concatenate, finish
from espo_luigi.science.geometry.cutting import cells_inside, subset_box
from espo_luigi.science.regrid import regrid
from espo_luigi.science.stack import grid_of, land_of, stack_drop_nans

DAYS, ROWS, COLUMNS = 20, 6, 8
CHUNKS = {"time": 8, "lat": 4, "lon": -1}


def scenario(first_row: int = 0) -> xr.Dataset:
    """Data on land, NaN on the sea east of the fifth column and in a lake."""
    rng = np.random.default_rng(first_row)
    land = np.ones((ROWS, COLUMNS), bool)
    land[:, 5:] = land[2, 2] = False
    values = {name: np.where(land, rng.random((DAYS, ROWS, COLUMNS)), np.nan).astype("f4") for name in ("tasmax", "pr")}
    coords = {
        "time": xr.date_range("2001-01-01", periods=DAYS, calendar="noleap", use_cftime=True),
        "lat": 45 + (first_row + np.arange(ROWS)) / 10,
        "lon": -70 + np.arange(COLUMNS) / 10,
    }
    variables = {name: (("time", "lat", "lon"), value, {"units": "K"}) for name, value in values.items()}
    return xr.Dataset(variables, coords, {"cat:domain": "south"})


def with_hole(ds: xr.Dataset, days: slice, rows: slice, columns: slice = slice(None)) -> xr.Dataset:
    holed = ds.copy(deep=True)
    holed["pr"][days, rows, columns] = np.nan
    return holed


def test_data_on_all_land_pass_unchanged_and_lazily() -> None:
    ds, land = scenario(), land_of(scenario())
    passed = require_data(ds.chunk(CHUNKS), land)
    assert dask.is_dask_collection(passed.pr)
    xr.testing.assert_identical(passed.compute(), ds)
    xr.testing.assert_identical(require_data(ds, land), ds)


@pytest.mark.parametrize("chunks", [CHUNKS, None])
def test_land_without_data_in_one_chunk_of_time_is_an_error_that_counts_it(chunks: dict[str, int] | None) -> None:
    ds = with_hole(scenario(), slice(8, 16) if chunks else slice(None), slice(4, 6))
    ds = ds.chunk(chunks) if chunks else ds
    with pytest.raises(DataError, match=r"pr has no data on any of \d+ days in 10 of \d+ land cells"):
        require_data(ds, land_of(scenario())).compute()


def test_a_block_of_several_chunks_of_time_is_looked_at_chunk_by_chunk() -> None:
    land = land_of(scenario())
    ds = with_hole(scenario(), slice(8, 16), slice(4, 6)).chunk({**CHUNKS, "time": -1})
    require_data(ds, land).compute()
    with pytest.raises(DataError, match=r"pr has no data on any of 8 days in 10 of \d+ land cells"):
        require_data(ds, land, days=8).compute()


def test_single_days_without_data_are_no_gap() -> None:
    ds = with_hole(scenario(), slice(8, 15), slice(None)).chunk(CHUNKS)
    require_data(ds, land_of(scenario())).compute()


def test_so_many_cells_as_the_simulation_lacks_may_lack_data() -> None:
    ds = with_hole(scenario(), slice(None), slice(4, 5), slice(0, 2)).chunk(CHUNKS)
    land = land_of(scenario())
    require_data(ds, land, allowed=allowed_gaps({CELLS_WITHOUT_DATA: 2}, land)).compute()
    with pytest.raises(DataError, match="in all but 1"):
        require_data(ds, land, allowed=allowed_gaps({CELLS_WITHOUT_DATA: 1}, land)).compute()


def test_cells_in_which_another_variable_of_the_reference_has_no_data_are_allowed_for() -> None:
    reference = with_hole(scenario(), slice(None), slice(4, 5), slice(0, 2))
    assert land_of(reference).attrs["incomplete_cells"] == 2
    land = land_of(reference)
    require_data(reference.chunk(CHUNKS), land, allowed=allowed_gaps({}, land)).compute()


def years_of(value: float = 1.0) -> xr.Dataset:
    """Three years of one value on a small grid."""
    time = xr.date_range("2001-01-01", periods=1095, calendar="noleap", use_cftime=True)
    coords = {"time": time, "lat": [45.0, 45.5, 46.0], "lon": [-70.0, -69.5, -69.0]}
    return xr.Dataset({"tasmax": (("time", "lat", "lon"), np.full((1095, 3, 3), value, "f4"))}, coords)


def test_regridding_counts_the_target_cells_around_source_cells_that_lack_a_year() -> None:
    source = years_of()
    source["tasmax"][100:480, 0, 0] = np.nan
    source["tasmax"][3, 2, 2] = np.nan
    target = xr.Dataset(coords={"lat": ("loc", [45.1, 45.9]), "lon": ("loc", [-69.9, -69.1])})
    marked = with_incomplete_cells(source.chunk(time=200))
    assert dask.is_dask_collection(marked.incomplete.data) and marked.incomplete.sum() == 1
    found = regrid(marked.transpose("time", "lon", "lat"), target, chunks={"loc": 1})
    assert found.attrs[CELLS_WITHOUT_DATA] == 1 and "incomplete" not in found.coords
    np.testing.assert_array_equal(found.tasmax.isnull().sum("time"), [380, 1])
    assert CELLS_WITHOUT_DATA not in regrid(with_incomplete_cells(years_of()), target).attrs


def test_what_lies_outside_of_a_curvilinear_box_is_not_said_to_lack_data() -> None:
    source = years_of().rename(lat="rlat", lon="rlon")
    lat = source.rlat + 0.5 * (source.rlon + 70)
    source = source.assign_coords(lat=lat, lon=source.rlon + 0 * source.rlat)
    box = {"name": "slope", "lat_bnds": [45.2, 46.3], "lon_bnds": [-70, -69]}
    cut = subset_box(source, box)
    assert int(cut["tasmax"].isnull().all("time").sum()) == 2
    # Inside, a cell lacks a year, and another all days.
    cut["tasmax"][:400, 1, 1] = np.nan
    cut["tasmax"][:, 0, 0] = np.nan
    found = with_incomplete_cells(cut, cells_inside(source, box)).incomplete
    np.testing.assert_array_equal(np.argwhere(found.values), [[0, 0], [1, 1]])
    assert cells_inside(years_of(), box) is True


def adjusted(ds: xr.Dataset) -> list[xr.Dataset]:
    whole = ds.assign(dtr=ds.tasmax * 0 + 3)
    stacked = stack_drop_nans(scenario())
    cells = [
        stack_drop_nans(scenario().assign({"pr": whole[name]}))["pr"].rename(name) for name in ("tasmax", "dtr", "pr")
    ]
    return [cell.assign_coords(lat=stacked.lat, lon=stacked.lon).assign_attrs(units="K").to_dataset() for cell in cells]


def clean_up(ds: xr.Dataset, mask: bool = False) -> xr.Dataset:
    land = Land(land_of(scenario()), grid_of(scenario()))
    return finish(
        join(adjusted(ds), attributes="drop_conflicts", what="The adjusted variables"),
        treatment=Treatment(to_level="x"),
        land=land,
        chunks=CHUNKS,
        temperatures="derived",
        mask=mask,
    )


def test_cleaning_up_refuses_a_scenario_that_has_lost_a_band() -> None:
    land = land_of(scenario())
    clean = clean_up(scenario()).compute()
    assert int(clean.tasmin.notnull().all("time").sum()) == int(land.sum())
    with pytest.raises(DataError, match="pr has no data on any of 8 days in 5 of"):
        clean_up(with_hole(scenario(), slice(0, 8), slice(3, 4))).compute()


def test_what_is_masked_in_a_problem_simulation_is_not_taken_for_data_that_were_lost() -> None:
    impossible = scenario()
    impossible[["tasmax", "pr"]] = impossible[["tasmax", "pr"]] + 273
    impossible["tasmax"][8:16, 3, :3] = 50.0
    land = land_of(scenario())
    masked = concatenate([clean_up(impossible, mask=True)], domain="NAM").chunk(CHUNKS)
    assert all(int((masked[name].isel(time=slice(8, 16)).isnull().all("time") & land).sum()) == 3 for name in masked)
    require_data(masked, land, allowed=allowed_gaps(masked.attrs, land)).compute()
    with pytest.raises(DataError, match="pr has no data on any of 8 days"):
        clean_up(with_hole(impossible, slice(0, 8), slice(3, 4)), mask=True).compute()


def test_the_land_of_regions_is_joined_as_their_scenarios_are() -> None:
    parts = [scenario(0), scenario(6)]
    whole = concatenate(parts, domain="NAM")
    land = join_land([land_of(part) for part in parts], whole)
    assert land.sizes == {"lat": 12, "lon": 8} and int(land.sum()) == 58
    require_data(whole.chunk(CHUNKS), land).compute()
    descending = concatenate([part.isel(lat=slice(None, None, -1)) for part in parts], domain="NAM")
    flipped = join_land([land_of(part.isel(lat=slice(None, None, -1))) for part in parts], descending)
    np.testing.assert_array_equal(flipped.lat, descending.lat)


def test_health_checks_say_which_variable_lacks_land() -> None:
    ds = with_hole(scenario(), slice(8, 16), slice(4, 6)).chunk(CHUNKS)
    found = health_checks(ds, return_flags=True, land=land_of(scenario()))
    assert bool(found.pr_land_cells_without_data) and not bool(found.tasmax_land_cells_without_data)
    assert "'pr' has no data on any day" in found.attrs["warnings"]
    with pytest.raises(HealthCheckError, match=r"land cells of the reference\. \[land\]"):
        health_checks(ds, land=land_of(scenario()), raise_on=["land"])
    assert "warnings" not in health_checks(scenario().chunk(CHUNKS), land=land_of(scenario())).attrs


def product(**changed: float) -> xr.Dataset:
    """Temperatures and precipitation on the land of `scenario`, with other values at day 9, row 1, column 3."""
    land = scenario().tasmax.notnull()
    values = {"tasmax": (290.0, "K"), "tasmin": (280.0, "K"), "pr": (1e-5, "kg m-2 s-1")}
    made = xr.Dataset({name: land.where(land) * value for name, (value, _) in values.items()}).astype("float32")
    for name, (_, units) in values.items():
        made[name].attrs = {"units": units}
        made[name][9, 1, 3] = changed.get(name, made[name][9, 1, 3])
    return made


@pytest.mark.parametrize("chunks", [CHUNKS, None])
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"tasmin": 291.0}, "tasmin .* 291 K .*expected 180 to 340 K, not above tasmax. Each land"),
        ({"tasmax": 345.0}, "tasmax .* 345 K .*expected 180 to 340 K. Each land"),
        ({"tasmin": 170.0}, "tasmin .* 170 "),
        ({"pr": -1e-12}, "pr .* -1e-12 kg .*expected 0 to 0.0347222 kg m-2 s-1"),
        ({"pr": np.nan}, "pr .* nan "),
        ({"tasmax": np.inf}, "tasmax .* inf "),
    ],
)
def test_an_impossible_value_refuses_a_product_and_is_named_with_its_place(
    changed: dict[str, float], said: str, chunks: dict[str, int] | None
) -> None:
    made = product(**changed).chunk(chunks) if chunks else product(**changed)
    land = land_of(scenario())
    with pytest.raises(DataError, match=rf"{said}[^$]*on_impossible: warn") as refusal:
        with_possible_values(made, land, on_impossible="fail").compute()
    place = f" on {str(made.time.values[9])[:10]} at latitude {float(made.lat[1]):g}, longitude {float(made.lon[3]):g}"
    assert "1 impossible values" in str(refusal.value) and place in str(refusal.value)
    let_through = with_possible_values(made, land, on_impossible="warn")
    assert let_through.attrs == {IMPOSSIBLE_VALUES: 1}
    xr.testing.assert_equal(let_through, made)


@pytest.mark.parametrize("blocks", [True, False])
@pytest.mark.parametrize("shape", ["rotated", "cells", "members"])
def test_the_place_of_an_impossible_value_is_named_on_any_grid_and_in_any_calendar(
    shape: str, blocks: bool, caplog: pytest.LogCaptureFixture
) -> None:
    time = xr.date_range("2001-02-25", periods=12, calendar="360_day", use_cftime=True)
    lat = xr.DataArray(np.arange(12.0).reshape(3, 4) + 45, dims=("rlat", "rlon"))
    made = xr.Dataset({"tasmax": xr.full_like(lat, 290).expand_dims(time=time)}).assign_coords(lat=lat, lon=lat - 120)
    made = made if shape == "rotated" else made.stack(loc=("rlat", "rlon")).reset_index("loc", drop=True)
    made["tasmax"] = made["tasmax"].where((made.time != time[5]) | (made.lat != 53), 345).assign_attrs(units="K")
    land, place = made["lat"] > 0, "on 2001-02-30 at latitude 53, longitude -67"
    if shape == "members":
        made = xr.concat([made.where(made != 345, 300), made], pd.Index(["A", "B"], name="realization"))
        place = f"of B {place}"
    made = made.chunk(time=7, **{land.dims[-1]: 2}) if blocks else made
    with pytest.raises(DataError, match=f"the first of them 345 K {place}; expected"):
        with_possible_values(made, land, on_impossible="fail").compute()
    with_possible_values(made, land, on_impossible="warn")
    assert f"1 impossible values of tasmax, the first of them 345 K {place}, which" in caplog.text


@pytest.mark.parametrize("how", ["fail", "warn"])
def test_possible_values_pass_unchanged_in_any_units_and_lazily(how: Literal["fail", "warn"]) -> None:
    made, land = product().chunk(CHUNKS), land_of(scenario())
    xr.testing.assert_identical(with_possible_values(made, land, on_impossible=how).compute(), made.compute())
    assert dask.is_dask_collection(with_possible_values(made, land, on_impossible=how).pr)
    for name in ("tasmax", "tasmin"):
        made[name] = (made[name] - 273.15).assign_attrs(units="degC")
    made["pr"] = (made["pr"] * 86400).assign_attrs(units="mm d-1")
    xr.testing.assert_identical(with_possible_values(made, land, on_impossible=how).compute(), made.compute())


def test_days_without_data_are_possible_only_where_attributes_tell_of_them() -> None:
    made, land = product(pr=np.nan), land_of(scenario())
    told = {LET_THROUGH: "simulation: missing_values of pr (1 values)"}
    for known, of in ((made.assign_attrs(told), land), (made, land.assign_attrs(told))):
        xr.testing.assert_equal(with_possible_values(known, of, on_impossible="fail"), made)
    for problem in ("tasmax_below_tasmin of tasmax", "missing_values of tasmax", "impossible_values of pr"):
        other = made.assign_attrs({LET_THROUGH: f"simulation: {problem} (3 values)"})
        with pytest.raises(DataError, match="1 impossible values"):
            with_possible_values(other, land, on_impossible="fail")
    cold = made.assign(pr=made["pr"].fillna(0)).assign_attrs(
        {LET_THROUGH: "simulation: missing_values of dtr (1 values)"}
    )
    cold["tasmin"][9, 1, 3] = np.nan
    # tasmin is made of dtr.
    xr.testing.assert_equal(with_possible_values(cold, land, on_impossible="fail"), cold)


def test_more_impossible_values_than_float32_counts_are_counted() -> None:
    ds = xr.Dataset({"tas": (("time", "lat", "lon"), np.broadcast_to(np.float32(0), (1, 4097, 4097)), {"units": "K"})})
    land = xr.DataArray(np.broadcast_to(False, (4097, 4097)), dims=("lat", "lon"))
    assert with_possible_values(ds, land, on_impossible="warn").attrs == {IMPOSSIBLE_VALUES: 4097 * 4097}


def test_the_impossible_values_of_all_regions_are_counted() -> None:
    parts = [scenario(0).assign_attrs({IMPOSSIBLE_VALUES: 2}), scenario(6), scenario(12)]
    parts[2].attrs[IMPOSSIBLE_VALUES] = 3
    assert concatenate(parts, domain="NAM").attrs[IMPOSSIBLE_VALUES] == 5
