"""Values that raw files cannot have are found with their worst day and cell: units, limits, maps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from examined_files import (
    BOX,
    FLAGS,
    LAT,
    LON,
    UNITS,
    YEARS,
    Files,
    changed_at,
    good_files,
    load,
    weather,
    where,
)

from espo_luigi.catalog import examine
from espo_luigi.catalog.examine import examine_match
from espo_luigi.catalog.open import open_match, open_years
from espo_luigi.catalog.read import Asset
from espo_luigi.errors import DataError
from espo_luigi.science.diagnose.flags import limits_of
from espo_luigi.science.extract.dataset import to_canonical_units
from espo_luigi.science.extract.input_problems import Problem, RawSeries
from espo_luigi.science.extract.input_values import value_problems
from espo_luigi.science.possible import converted
from espo_luigi.science.variables import VARIABLES

# The dates of one are cftime's, those of the other numpy's: for tests whose days matter.
WITH_EITHER_DATES = pytest.mark.parametrize("files", ["360_day", "standard"], indirect=True)


@pytest.fixture()
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    return good_files(tmp_path, getattr(request, "param", "360_day"))


@pytest.mark.parametrize("units", ["parsnips", "m", None])
def test_units_that_are_unknown_or_absent(files: Files, units: str | None) -> None:
    def relabelled(ds: xr.Dataset) -> xr.Dataset:
        ds.tasmin.attrs = {} if units is None else {"units": units}
        return ds

    file = files.change("tasmin", 2002, relabelled)
    problem = files.only()
    assert where(problem)[:3] == ("units", "tasmin", file)
    assert "expected K" in problem.message


@pytest.mark.parametrize(("name", "units", "value"), [("tasmax", "degC", 558.15), ("tasmin", "degC", 548.15)])
def test_kelvin_that_say_to_be_degrees_celsius(files: Files, name: str, units: str, value: float) -> None:
    def relabelled(ds: xr.Dataset) -> xr.Dataset:
        ds[name].attrs["units"] = units
        return ds

    file = files.change(name, 2002, relabelled)
    found = {problem.kind: problem for problem in files.problems()}
    problem = found.pop("mislabelled_units")
    assert (problem.variable, problem.file) == (name, file)
    assert problem.value == pytest.approx(value, abs=10)
    assert set(found) <= {"tasmax_below_tasmin"}, "of tasmin, it is above tasmax, too"


def test_degrees_celsius_that_say_to_be_kelvin(files: Files) -> None:
    def in_celsius(ds: xr.Dataset) -> xr.Dataset:
        return ds.assign(tasmax=(ds.tasmax - 273.15).assign_attrs(units="K"))

    file = files.change("tasmax", 2005, in_celsius)
    found = {problem.kind: problem for problem in files.problems()}
    assert set(found) == {"mislabelled_units", "tasmax_below_tasmin"}
    assert (found["mislabelled_units"].variable, found["mislabelled_units"].file) == ("tasmax", file)


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("tasmax", 335.0, "values_out_of_range"),
        ("pr", -1e-6, "values_out_of_range"),
        ("pr", 0.03, "values_out_of_range"),
        ("tasmax", 354.0, "impossible_values"),
        ("pr", -2e-5, "impossible_values"),
        ("pr", 0.05, "impossible_values"),
        ("pr", 1e20, "impossible_values"),
        ("pr", np.inf, "impossible_values"),
    ],
)
def test_the_worst_impossible_value_is_named_with_its_day_and_cell(
    tmp_path: Path, name: str, value: float, kind: str
) -> None:
    files = good_files(tmp_path, "noleap")
    files.change(name, 2002, changed_at(name, "2003-07-19", 45.0, 262.0, value))
    problem, *missing = files.problems()
    assert where(problem) == (kind, name, str(files.path(name, 2002)), "2003-07-19")
    assert (problem.lat, problem.lon) == (45.0, 262.0)
    assert problem.value == pytest.approx(value)
    assert problem.count == 1
    assert [(one.kind, one.count) for one in missing] == ([("missing_values", 1)] if np.isinf(value) else [])


@WITH_EITHER_DATES
def test_what_is_outside_of_the_box_or_the_period_does_not_matter(files: Files) -> None:
    files.change("tasmax", 2002, changed_at("tasmax", "2003-07-19", 40.0, 262.0, 1e20))
    files.change("tasmax", 2000, changed_at("tasmax", "2000-07-19", 45.0, 262.0, 1e20))
    assert files.problems(("2001", "2005")) == []


@WITH_EITHER_DATES
def test_limits_in_polygons_are_of_the_cells_inside_and_all_files_are_opened_once(
    files: Files, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opened: list[str] = []

    def counted(asset: Asset, *arguments: Any) -> xr.Dataset:
        opened.append(asset.path)
        return open_years(asset, *arguments)

    monkeypatch.setattr(examine, "open_years", counted)
    # A triangle; the corner of its bounding box at 50 degrees north and 253 degrees east lies outside.
    scope = {"name": "QC", "shape": [[[(-108.0, 44.0), (-90.0, 44.0), (-90.0, 51.0), (-108.0, 44.0)]]]}
    files.change("tasmax", 2002, changed_at("tasmax", "2003-07-19", 47.5, 268.0, 320.0))
    files.change("tasmax", 2005, changed_at("tasmax", "2005-07-19", 50.0, 253.0, 321.0))
    limits = limits_of({"tasmax": {"temperature_extremely_high": {"thresh": "40 degC"}}})
    elsewhere = {"name": "Gulf", "shape": [[[(0.0, 44.0), (9.0, 44.0), (9.0, 51.0), (0.0, 44.0)]]]}
    whole = {"name": "whole", "lon_bnds": (-180.0, 180.0), "lat_bnds": (40.0, 60.0)}
    hotter = limits_of({"tasmax": {"temperature_extremely_high": {"thresh": "47.5 degC"}}})
    inside, highest = examine_match(
        files.match,
        period=("2000", "2005"),
        regions=[BOX],
        limits={},
        scopes=[(scope, limits), (elsewhere, limits), (whole, hotter)],
    )
    assert where(inside)[::3] == ("values_out_of_range", "2003-07-19")
    assert (inside.lat, inside.lon, inside.count) == (47.5, 268.0, 1)
    assert (highest.kind, highest.day, highest.count) == ("values_out_of_range", "2005-07-19", 1)
    assert "not looked at: The scope 'Gulf'" in caplog.text
    assert sorted(opened) == sorted(asset.path for asset in files.match.assets)


@WITH_EITHER_DATES
def test_tasmax_below_tasmin_is_counted_and_its_worst_day_and_cell_named(files: Files) -> None:
    for day, lat, lon, value in (("2002-03-05", 50.0, 256.0, 294.5), ("2004-11-30", 47.5, 271.0, 312.5)):
        files.change("tasmin", 2002, changed_at("tasmin", day, lat, lon, value))
        tasmax = load(files.path("tasmax", 2002)).tasmax
        expected = float(tasmax.sel(time=day, lat=lat, lon=lon).item()) - value
    problem = files.only()
    assert where(problem) == ("tasmax_below_tasmin", "tasmax", str(files.path("tasmax", 2002)), "2004-11-30")
    assert (problem.lat, problem.lon) == (47.5, 271.0)
    assert problem.count == 2
    assert problem.value == pytest.approx(expected, abs=1e-3)


@WITH_EITHER_DATES
def test_tasmax_and_tasmin_are_compared_where_their_files_end_on_other_days(files: Files) -> None:
    whole = xr.concat([weather("tasmin", years, files.calendar) for years in YEARS], "time")
    cuts = [0, 401, 1093, None]
    for (first, _), start, stop in zip(YEARS, cuts, cuts[1:], strict=False):
        files.write(whole.isel(time=slice(start, stop)), files.path("tasmin", first))
    assert files.problems() == []
    tasmin = load(files.path("tasmin", 2002))
    day = tasmin.indexes["time"][500].strftime("%Y-%m-%d")
    files.change("tasmin", 2002, changed_at("tasmin", day, 47.5, 271.0, 320.0))
    problem = files.only()
    assert (problem.kind, problem.day, problem.lat, problem.lon) == ("tasmax_below_tasmin", day, 47.5, 271.0)


@WITH_EITHER_DATES
@pytest.mark.parametrize(("value", "kind"), [(280.0, "constant_maps"), (np.nan, "maps_without_data")])
def test_maps_of_one_value_and_without_any(files: Files, value: float, kind: str) -> None:
    damaged(files, "tasmax", set_at(np.s_[400:417], value), (2002,))
    day = weather("tasmax", (2002, 2004), files.calendar).indexes["time"][400].strftime("%Y-%m-%d")
    problem = files.only()
    assert where(problem) == (kind, "tasmax", str(files.path("tasmax", 2002)), day)
    assert problem.count == 17
    assert problem.value == (None if np.isnan(value) else value)


def test_a_day_without_rain_is_no_problem_and_one_with_the_same_rain_everywhere_is(files: Files) -> None:
    def flat(ds: xr.Dataset) -> xr.Dataset:
        ds.pr[5], ds.pr[7] = 0.0, 1e-5
        return ds

    file = files.change("pr", 2005, flat)
    problem = files.only()
    assert where(problem) == ("constant_maps", "pr", file, "2005-01-08")
    assert problem.count == 1


def test_sea_without_data_is_no_problem(files: Files) -> None:
    for name in UNITS:
        for first, _ in YEARS:
            files.change(name, first, lambda ds: ds.where(ds.lon < 262))
    assert files.problems() == []


def test_limits_are_those_of_the_flags_in_canonical_units() -> None:
    limits = limits_of(FLAGS)
    assert limits["tasmax"] == limits["tasmin"] == pytest.approx((203.15, 333.15))
    assert limits["pr"] == pytest.approx((0.0, 1650 / 86400))
    assert limits_of({}) == {} and limits_of({"tasmax": None, "pr": {}}) == {}


def test_a_flag_without_threshold_has_xclims_own() -> None:
    assert limits_of({"tasmax": {"temperature_extremely_high": {}}})["tasmin"] == pytest.approx((-np.inf, 333.15))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [("pr", 0.0, "the value is 0 in all cells on all days"), ("tasmin", 270.0, "the value is 270 in all cells"),
     ("tasmax", np.nan, "no cell has a value on any day")],
)  # fmt: skip
def test_a_variable_that_never_varies_is_a_problem_and_its_maps_are_not_listed_too(
    files: Files, name: str, value: float, said: str
) -> None:
    for first, _ in YEARS:
        files.change(name, first, lambda ds: ds.assign({name: ds[name].where(False, value)}))
    problem = files.only()
    assert (problem.kind, problem.variable, problem.file) == ("constant_series", name, str(files.path(name, 2000)))
    assert said in problem.message


def test_one_year_without_rain_is_no_constant_series(files: Files) -> None:
    files.change("pr", 2005, lambda ds: ds.assign(pr=ds["pr"] * 0))
    assert files.problems() == []


def test_precipitation_a_little_below_zero_on_all_days_is_not_a_matter_of_units(files: Files) -> None:
    file = files.change("pr", 2002, lambda ds: ds.assign(pr=ds["pr"] - 6e-6))
    problem = files.only()
    assert (problem.kind, problem.file) == ("values_out_of_range", file)


@pytest.mark.parametrize(
    ("name", "change"),
    [("tasmax", lambda da: da - 273.15), ("pr", lambda da: da * 86400), ("pr", lambda da: da + 10)],
)
def test_what_is_impossible_on_most_days_is_found_without_any_flag(
    files: Files, name: str, change: Callable[[xr.DataArray], xr.DataArray]
) -> None:
    files.change(name, 2002, lambda ds: ds.assign({name: change(ds[name]).assign_attrs(units=UNITS[name])}))
    found = examine_match(files.match, period=("2000", "2005"), regions=[BOX], limits={})
    assert "mislabelled_units" in {problem.kind for problem in found if problem.variable == name}


def test_a_cell_of_zero_kelvin_on_all_days_is_not_a_matter_of_units(files: Files) -> None:
    damaged(files, "tasmax", set_at(np.s_[:, 3, 5], 0), (2002,))
    file = str(files.path("tasmax", 2002))
    found = {problem.kind: problem.file for problem in files.problems()}
    assert found == {"impossible_values": file, "tasmax_below_tasmin": file}


def test_cells_that_a_mask_takes_out_are_not_examined(tmp_path: Path) -> None:
    files = good_files(tmp_path, "noleap")
    damaged(files, "tasmax", set_at(np.s_[:, 3, 5], 0))
    assert ("impossible_values", "tasmax") in kinds(files)
    assert kinds(files, masked=lambda ds: ds.where((ds["lat"] != LAT[3]) | (ds["lon"] != LON[5]))) == {}


@WITH_EITHER_DATES
def test_cells_that_begin_to_have_data_after_the_first_day_are_counted(files: Files) -> None:
    """The first map says where land is: such cells would be left out without a word."""

    def late(ds: xr.Dataset) -> xr.Dataset:
        ds["tasmax"][0, 2, 4] = ds["tasmax"][:40, 3, 5] = ds["tasmax"][:, 4, 4] = np.nan
        return ds

    file = files.change("tasmax", 2000, late)
    for first in (2002, 2005):
        files.change("tasmax", first, lambda ds: ds.assign(tasmax=ds["tasmax"].where(ds["lat"] != LAT[5])))
    arguments: dict[str, Any] = {"period": ("2000", "2005"), "regions": [BOX], "limits": {}}
    found, few = examine_match(files.match, **arguments, mask_variable="tasmax")
    assert (few.kind, few.variable, few.lat) == ("too_few_days", "tasmax", LAT[5])
    assert where(found) == ("cells_without_first_day", "tasmax", file, "2000-01-01")
    assert (found.count, found.lat, found.lon) == (3, LAT[2], LON[4])


@pytest.mark.parametrize(
    ("box", "said"),
    [
        ({"lat_bnds": (41.0, 60.0)}, "3.75 degrees in the north"),
        ({"lon_bnds": (240.0, 278.0)}, "8.5 degrees in the west"),
    ],
)
def test_a_box_that_reaches_beyond_the_grid_is_a_problem(files: Files, box: dict[str, Any], said: str) -> None:
    (found,) = examine_match(files.match, period=("2000", "2005"), regions=[BOX | box], limits={})
    assert found.kind == "extrapolation" and said in found.message
    assert found.file in {asset.path for asset in files.match.assets}


def damaged(
    files: Files, name: str, change: Callable[[np.ndarray], None], years: tuple[int, ...] = (2000, 2002, 2005)
) -> None:
    """Change the values (time, lat, lon) of a variable's files."""

    def changed(ds: xr.Dataset) -> xr.Dataset:
        change(ds[name].values)
        return ds

    for first in years:
        files.change(name, first, changed)


def set_at(place: Any, value: float) -> Callable[[np.ndarray], None]:
    """A function that sets values at a place of (time, lat, lon)."""
    return lambda values: values.__setitem__(place, value)


def kinds(files: Files, **arguments: Any) -> dict[tuple[str, str], Problem]:
    given: dict[str, Any] = {"period": ("2000", "2005"), "regions": [BOX], "limits": limits_of(FLAGS)}
    return {(found.kind, found.variable): found for found in examine_match(files.match, **given | arguments)}


def test_tasmax_and_tasmin_that_have_each_others_values_are_refused(tmp_path: Path) -> None:
    files = good_files(tmp_path, "noleap")
    for first in (2000, 2002, 2005):
        warm, cold = (load(files.path(name, first)) for name in ("tasmax", "tasmin"))
        files.write(cold.rename(tasmin="tasmax"), files.path("tasmax", first))
        files.write(warm.rename(tasmax="tasmin"), files.path("tasmin", first))
    problem = kinds(files)["crossed_temperatures", "tasmax"]
    assert "the variables are probably exchanged" in problem.message
    assert problem.count > 0.5 * 6 * 365 * 5 * 9


@pytest.mark.parametrize(
    ("hits", "cells", "kind"),
    [
        (0.04, 1, ""),
        (0.06, 1, "tasmax_below_tasmin"),
        (0.06, 3, "crossed_temperatures"),
        (0.6, 1, "crossed_temperatures"),
    ],
)
def test_temperatures_that_meet_are_refused_in_a_twentieth_of_the_cells_or_on_half_of_the_days_of_a_cell(
    tmp_path: Path, hits: float, cells: int, kind: str
) -> None:
    """One of 45 cells may have them on some days, as over sea ice in coarse precision."""
    files = good_files(tmp_path, "noleap")

    for first in (2000, 2002, 2005):
        warm, cold = (load(files.path(name, first)) for name in ("tasmax", "tasmin"))
        days = np.random.default_rng(first).permutation(warm.sizes["time"])[: round(hits * warm.sizes["time"])]
        for column in range(5, 5 + cells):
            cold.tasmin[days, 3, column] = warm.tasmax[days, 3, column]
        files.write(cold, files.path("tasmin", first))
    found = kinds(files)
    assert set(found) == ({(kind, "tasmax")} if kind else set())
    if kind:
        problem = found[kind, "tasmax"]
        assert (problem.lat, problem.lon) == (LAT[3], LON[5])
        assert problem.count == cells * sum(round(hits * 365 * years) for years in (2, 3, 1))


def raw_series(**values: np.ndarray) -> dict[str, list[RawSeries]]:
    """Daily values (time, y, x) as the examination takes them."""

    def of(name: str, data: np.ndarray) -> RawSeries:
        time = xr.date_range("2000-01-01", periods=len(data), calendar="noleap", use_cftime=True)
        coords = {"time": time, "lat": np.arange(data.shape[1]), "lon": np.arange(data.shape[2])}
        units = {**UNITS, "hurs": "%", "clt": "%"}.get(name, "K")
        return RawSeries(f"{name}.nc", xr.DataArray(data, coords, coords.keys(), name, {"units": units}))

    return {name: [of(name, data)] for name, data in values.items()}


def test_a_range_beside_both_temperatures_counts_no_day_twice_and_sea_without_data_counts_not() -> None:
    warm = 290 + np.random.default_rng(1).normal(size=(100, 10, 10))
    warm[:, :5] = np.nan
    dtr = 5 + np.random.default_rng(2).random(warm.shape)
    # On 4 of 100 days, in half of the 50 cells with data: on 2 % of the values.
    dtr[:4, 5:, :5] = 0
    assert value_problems(raw_series(tasmax=warm, tasmin=warm - dtr, dtr=dtr), {}) == []
    # On 6 days in all of them.
    dtr[:6] = 0
    found = value_problems(raw_series(tasmax=warm, tasmin=warm - dtr), {})
    crossed = next(problem for problem in found if problem.kind == "crossed_temperatures")
    assert "in 6.0% of this file's values" in crossed.message and crossed.count == 6 * 50


def test_variables_without_a_mask_may_have_data_in_other_cells() -> None:
    warm = 290.0 + np.random.default_rng(1).normal(size=(100, 10, 10))
    rain = 1e-5 * np.random.default_rng(2).random((100, 10, 10))
    rain[:, 0] = np.nan
    assert value_problems(raw_series(tasmax=warm, pr=rain), {}) == []
    assert [found.kind for found in value_problems(raw_series(tasmax=warm, pr=rain), {}, "tasmax")] == ["too_few_days"]


def test_a_few_cells_in_a_desert_and_days_without_data_are_not_dry_units() -> None:
    dry = np.random.default_rng(1).random((2200, 10, 10)) * 1e-7
    assert "mislabelled_units" in {found.kind for found in value_problems(raw_series(pr=dry), {})}
    assert value_problems(raw_series(pr=dry[:, :2, :4]), {}) == []
    dry[1000:1100] = np.nan
    assert {found.kind for found in value_problems(raw_series(pr=dry), {})} == {"maps_without_data"}


def test_precipitation_that_is_drier_than_any_desert_has_other_units(tmp_path: Path) -> None:
    files = good_files(tmp_path, "noleap")
    damaged(files, "pr", lambda values: np.divide(values, 1000, out=values))
    problem = kinds(files)["mislabelled_units", "pr"]
    assert problem.file == str(files.path("pr", 2000)) and problem.value == pytest.approx(5.9e-8, rel=0.01)
    assert problem.count == 6 * 365
    assert "more than 0.0051 mm d-1" in problem.message
    damaged(files, "pr", lambda values: np.multiply(values, 1000, out=values), (2000,))
    assert ("mislabelled_units", "pr") not in kinds(files), "four years may be dry"


def test_a_desert_is_no_problem(tmp_path: Path) -> None:
    """As at Arica: less than a millimetre a year, nearly all of it on the few days with rain."""
    files = good_files(tmp_path, "noleap")

    def arid(values: np.ndarray) -> None:
        values[:] = 0
        values[50, 3, 4] = 2 / 86400

    damaged(files, "pr", arid)
    assert kinds(files) == {}


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_fifth_of_the_days_without_a_number_is_refused(tmp_path: Path, value: float) -> None:
    files = good_files(tmp_path, "noleap")
    damaged(files, "tasmax", set_at(np.s_[::5], value))
    problem = kinds(files)["too_few_days", "tasmax"]
    assert problem.count == 5 * 9 and "on 1752 of 2190" in problem.message


def test_a_scenario_without_values_is_refused_though_its_history_has_them(tmp_path: Path) -> None:
    files = good_files(tmp_path, "noleap")
    damaged(files, "pr", lambda values: values.fill(np.nan), (2005,))
    problem = kinds(files)["too_few_days", "pr"]
    assert problem.count == 5 * 9 and "on 1825 of 2190" in problem.message
    assert problem.file == str(files.path("pr", 2005)), "the history is not at fault"


@pytest.mark.parametrize("first", [first for first, _ in YEARS])
@pytest.mark.parametrize("calendar", ["noleap", "standard"])
def test_a_file_without_any_day_is_named_and_not_the_others(tmp_path: Path, calendar: str, first: int) -> None:
    """xarray says nothing of it in the standard calendar, and of the others that cftime may be missing."""
    files = good_files(tmp_path, calendar)
    path = files.path("pr", first)
    empty = xr.load_dataset(path, decode_times=False).isel(time=slice(0)).drop_encoding()
    path.unlink()
    empty.to_netcdf(path, unlimited_dims=["time"])
    problem = files.only()
    assert where(problem) == ("unreadable_files", "pr", str(path), "")
    assert "pr has no time step" in problem.message
    with pytest.raises(DataError, match=rf"pr_{first}.nc .* has no time step"):
        open_match(files.match)


@pytest.mark.parametrize("few", [300, 100])
def test_days_without_values_are_told_of_the_file_that_lacks_them(tmp_path: Path, few: int) -> None:
    files = good_files(tmp_path, "noleap")
    damaged(files, "tasmin", set_at(np.s_[:few, 2, 3], np.nan), (2005,))
    (problem,) = kinds(files).values()
    assert where(problem)[:3] == (
        "too_few_days" if few > 219 else "missing_values",
        "tasmin",
        str(files.path("tasmin", 2005)),
    )


def test_days_are_counted_by_cell_in_all_years_and_in_those_of_the_calibration(tmp_path: Path) -> None:
    """A station that closed, and two that have a gap: of the latter, one is in the calibration of three years."""
    files = good_files(tmp_path, "noleap")
    damaged(files, "pr", set_at(np.s_[:, 2, 3], np.nan), (2002, 2005))
    for gap in (np.s_[:100, 3, 4], np.s_[:120, 4, 5]):
        damaged(files, "tasmin", set_at(gap, np.nan), (2002,))
    found = kinds(files, calibration=("2002", "2004"), mask_variable="tasmax")
    assert list(found) == [("too_few_days", "tasmin"), ("missing_values", "tasmin"), ("too_few_days", "pr")]
    short, lacking, few = found.values()
    assert (few.lat, few.lon, few.count) == (LAT[2], LON[3], 1)
    assert "on 730 of 2190, and on 0" in few.message
    assert (short.lat, short.lon, short.count) == (LAT[4], LON[5], 1)
    assert "on 2070 of 2190, and on 975" in short.message
    assert (lacking.lat, lacking.lon, lacking.count) == (LAT[3], LON[4], 100)


def test_a_variable_that_a_land_cell_never_has_is_refused(tmp_path: Path) -> None:
    files = good_files(tmp_path, "noleap")
    without = set_at(np.s_[:, 2, 3], np.nan)
    damaged(files, "pr", without)
    assert set(kinds(files, mask_variable="tasmax")) == {("too_few_days", "pr")}
    damaged(files, "tasmax", without)
    assert kinds(files, mask_variable="tasmax") == {}, "that cell is sea"


def humidity(highest: float, days: int = 365) -> np.ndarray:
    return highest * (1 - 0.8 * np.random.default_rng(4).random((days, 10, 11)))


def test_fractions_that_are_labelled_percent_have_other_units() -> None:
    (found,) = value_problems(raw_series(hurs=humidity(1.05)), {})
    assert (found.kind, found.variable, found.file) == ("mislabelled_units", "hurs", "hurs.nc")
    assert found.value == pytest.approx(1.05, rel=0.01) and found.count == 365 * 10 * 11
    assert "probably fractions of 1" in found.message and "expected values up to 100 %" in found.message
    assert value_problems(raw_series(hurs=humidity(105.6)), {}) == [], "a model's humidity may exceed 100 %"
    assert value_problems(raw_series(clt=humidity(1.05, 359)), {}) == [], "a dry season may have no clouds"


def test_percentages_near_zero_are_no_fractions_where_all_are_zero_or_another_file_has_more() -> None:
    snow = raw_series(clt=humidity(0))["clt"]
    assert not [one for one in value_problems({"clt": snow}, {}) if one.kind == "mislabelled_units"], "the tropics"
    first, second = raw_series(hurs=humidity(100))["hurs"], raw_series(hurs=humidity(1))["hurs"]
    later = second[0].data.assign_coords(time=second[0].data.indexes["time"].shift(365, "D"))
    assert value_problems({"hurs": [*first, RawSeries("later.nc", later)]}, {}) == []
    row = converted(VARIABLES["hurs"], "1")
    fractions = RawSeries("hurs.nc", (second[0].data / 100).assign_attrs(units="1"), row=row)
    assert value_problems({"hurs": [fractions]}, {}) == []


def test_percent_that_are_labelled_fractions_are_impossible_throughout() -> None:
    percent = raw_series(hurs=humidity(100))["hurs"][0]
    canonical = to_canonical_units(percent.data.assign_attrs(units="1"))
    (found,) = value_problems({"hurs": [RawSeries("percent.nc", canonical, units="1")]}, {})
    assert found.kind == "mislabelled_units" and "expected -5 to 200 %" in found.message


@pytest.mark.parametrize(
    ("name", "attrs", "message"),
    [
        ("hurs", {"units": "K"}, "a.nc: hurs has units 'K'; expected % or what converts to it"),
        ("pr", {}, "a.nc: pr has units 'none'; expected kg m-2 s-1"),
        ("pr", {"units": "shovels"}, "a.nc: pr has units 'shovels'; expected kg m-2 s-1"),
    ],
)
def test_units_of_another_kind_and_units_that_nobody_knows_are_refused(
    name: str, attrs: dict[str, str], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        to_canonical_units(xr.DataArray(np.ones(3, "f4"), dims="time", name=name, attrs=attrs), "a.nc")


@pytest.mark.parametrize(("attrs", "units"), [({"units": "DU"}, "DU"), ({"units": "1e-9"}, "1e-9"), ({}, "")])
def test_a_variable_that_nobody_has_heard_of_keeps_its_units(attrs: dict[str, str], units: str) -> None:
    given = xr.DataArray(np.arange(3, dtype="i2"), dims="time", name="ozone", attrs=attrs)
    kept = to_canonical_units(given)
    assert kept.attrs["units"] == units and kept.dtype == "f4" and given.attrs == attrs
    np.testing.assert_array_equal(kept, [0, 1, 2])
