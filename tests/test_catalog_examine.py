"""What is wrong with raw files is found with its file, day and cell: each kind in real files, several a variable."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from espo_luigi.catalog import Asset, Match, open_match
from espo_luigi.catalog.examine import examine_match
from espo_luigi.errors import DataError
from espo_luigi.science.choices import UnusableInput
from espo_luigi.science.input_problems import Problem
from espo_luigi.science.input_values import limits_of

# Sizes that nothing divides; the box leaves cells out on each side.
LAT, LON = np.linspace(40.0, 55.0, 7), np.linspace(250.0, 280.0, 11)
BOX = {"name": "box", "lon_bnds": (252.0, 278.0), "lat_bnds": (41.0, 54.0)}
YEARS = ((2000, 2001), (2002, 2004), (2005, 2005))
FLAGS: dict[str, Any] = {
    "tasmax": {"temperature_extremely_high": {"thresh": "60 degC"}},
    "tasmin": {"temperature_extremely_low": {"thresh": "-70 degC"}},
    "pr": {"negative_accumulation_values": {}, "very_large_precipitation_events": {"thresh": "1650 mm/d"}},
}
UNITS = {"tasmax": "K", "tasmin": "K", "pr": "kg m-2 s-1"}
CALENDARS = ("noleap", "360_day", "standard")


def weather(name: str, years: tuple[int, int], calendar: str, hour: int = 12) -> xr.Dataset:
    end = f"{years[1]}-12-{30 if calendar == '360_day' else 31}"
    time = xr.date_range(
        f"{years[0]}-01-01 {hour:02}:00", f"{end} {hour:02}:00", freq="D", calendar=calendar, use_cftime=True
    )
    middle, spread = {"tasmax": (285, 9), "tasmin": (275, 0.9), "pr": (3e-5, 2.9e-5)}[name]
    draws = np.random.default_rng(years[0]).uniform(-1, 1, (len(time), len(LAT), len(LON)))
    values = (middle + spread * draws).astype("float32")
    coords = {"time": time, "lat": LAT, "lon": LON, "height": 2.0}
    return xr.Dataset({name: (("time", "lat", "lon"), values, {"units": UNITS[name]})}, coords)


def load(path: Path) -> xr.Dataset:
    return xr.load_dataset(path, decode_times=xr.coders.CFDatetimeCoder(use_cftime=True))


@dataclass
class Files:
    """Nine files, three a variable, and the search's match of them."""

    folder: Path
    calendar: str

    def path(self, name: str, first: int) -> Path:
        return self.folder / f"{name}_{first}.nc"

    def write(self, ds: xr.Dataset, path: Path, **encoding: Any) -> None:
        path.unlink(missing_ok=True)
        times = {"units": "days since 1850-01-01", "dtype": "float64"}
        ds.to_netcdf(path, encoding={"time": times} | encoding)

    def change(self, name: str, first: int, change: Callable[[xr.Dataset], xr.Dataset]) -> str:
        path = self.path(name, first)
        self.write(change(load(path)), path)
        return str(path)

    @property
    def match(self) -> Match:
        assets = []
        for name in UNITS:
            for first, last in YEARS:
                path = str(self.path(name, first))
                columns = {"date_start": f"{first}-01-01", "date_end": f"{last}-12-31", "format": "nc", "path": path}
                assets.append(Asset(columns, (name,), path))
        return Match("CMIP6_M", tuple(assets), tuple(UNITS), ("dtr",), (("2000", "2005"),), {"id": "CMIP6_M"})

    def problems(self, period: tuple[str, str] = ("2000", "2005")) -> list[Problem]:
        return examine_match(self.match, period=period, regions=[BOX], limits=limits_of(FLAGS))

    def only(self) -> Problem:
        (problem,) = self.problems()
        return problem


@pytest.fixture(params=CALENDARS)
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    made = Files(tmp_path, request.param)
    for name in UNITS:
        for years in YEARS:
            ds = weather(name, years, request.param)
            made.write(ds, made.path(name, years[0]), **{name: {"chunksizes": (100, 4, 5), "zlib": True}})
    return made


def changed_at(name: str, day: str, lat: float, lon: float, value: float) -> Callable[[xr.Dataset], xr.Dataset]:
    """A function that sets one value."""

    def change(ds: xr.Dataset) -> xr.Dataset:
        row, column = int(np.argmin(np.abs(LAT - lat))), int(np.argmin(np.abs(LON - lon)))
        ds[name][ds.indexes["time"].get_loc(ds.sel(time=day).indexes["time"][0]), row, column] = value
        return ds

    return change


def where(problem: Problem) -> tuple[str, str, str, str]:
    return problem.kind, problem.variable, problem.file, problem.day


def test_nothing_is_found_in_good_files(files: Files) -> None:
    assert files.problems() == []


def test_days_that_are_missing(files: Files) -> None:
    days = load(files.path("pr", 2002)).indexes["time"]
    place = days.get_loc(days[days.strftime("%Y-%m-%d") == "2003-02-17"][0])
    file = files.change("pr", 2002, lambda ds: ds.isel(time=np.delete(np.arange(len(days)), [place, place + 1, 900])))
    problem = files.only()
    assert where(problem) == ("missing_days", "pr", file, "2003-02-17")
    assert problem.count == 3


def test_days_that_are_there_twice(files: Files) -> None:
    file = files.change("tasmin", 2002, lambda ds: ds.isel(time=np.insert(np.arange(ds.sizes["time"]), 4, [3, 3])))
    problem = files.only()
    assert where(problem) == ("double_days", "tasmin", file, "2002-01-04")
    assert problem.count == 2


def test_days_in_another_order(files: Files) -> None:
    def shuffled(ds: xr.Dataset) -> xr.Dataset:
        order = np.arange(ds.sizes["time"])
        order[10], order[13] = 13, 10
        return ds.isel(time=order)

    file = files.change("tasmax", 2005, shuffled)
    problem = files.only()
    assert where(problem) == ("days_out_of_order", "tasmax", file, "2005-01-12")
    assert problem.count == 2


def test_days_of_a_file_that_are_in_the_next_one_too(files: Files) -> None:
    longer = xr.concat(
        [weather("pr", (2002, 2004), files.calendar), weather("pr", (2005, 2005), files.calendar)], "time"
    )
    files.write(longer.isel(time=slice(-150)), files.path("pr", 2002))
    days = {"360_day": 360, "noleap": 365, "standard": 365}[files.calendar] - 150
    problem = files.only()
    assert where(problem) == ("double_days", "pr", str(files.path("pr", 2005)), "2005-01-01")
    assert problem.count == days


def test_days_missing_between_two_files(files: Files) -> None:
    file = files.change("tasmax", 2002, lambda ds: ds.isel(time=slice(3, None)))
    problem = files.only()
    assert where(problem) == ("missing_days", "tasmax", file, "2002-01-01")
    assert problem.count == 3
    assert str(files.path("tasmax", 2000)) in problem.message


def test_days_missing_at_an_end_whatever_the_catalogue_says(files: Files) -> None:
    late = files.change("tasmax", 2000, lambda ds: ds.isel(time=slice(1, None)))
    early = files.change("pr", 2005, lambda ds: ds.isel(time=slice(-3)))
    found = sorted(map(where, files.problems()))
    last = {"360_day": "2005-12-27", "noleap": "2005-12-28", "standard": "2005-12-28"}[files.calendar]
    assert found == [("missing_days", "pr", early, last), ("missing_days", "tasmax", late, "2000-01-02")]


@pytest.mark.parametrize("step", ["h", "12h", "MS"])
def test_steps_that_are_not_days(files: Files, step: str) -> None:
    def other_steps(ds: xr.Dataset) -> xr.Dataset:
        number = {"h": 24 * 360, "12h": 720, "MS": 12}[step]
        time = xr.date_range("2005-01-01", periods=number, freq=step, calendar=files.calendar, use_cftime=True)
        return ds.isel(time=np.zeros(number, int)).assign_coords(time=time)

    file = files.change("pr", 2005, other_steps)
    found = [problem for problem in files.problems() if problem.kind == "steps_not_daily"]
    assert [where(one) for one in found] == [("steps_not_daily", "pr", file, "2005-01-01")]
    assert {problem.kind for problem in files.problems()} <= {"steps_not_daily", "missing_days"}


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


def test_units_that_can_be_converted_are_no_problem(files: Files) -> None:
    files.change("tasmax", 2002, lambda ds: ds.assign(tasmax=(ds.tasmax - 273.15).assign_attrs(units="degC")))
    files.change("pr", 2005, lambda ds: ds.assign(pr=(ds.pr * 86400).assign_attrs(units="mm d-1")))
    assert files.problems() == []


@pytest.mark.parametrize(
    ("name", "value", "shown"), [("tasmax", 340.0, 340.0), ("pr", -1e-6, -1e-6), ("pr", 0.05, 0.05), ("pr", 1e20, 1e20)]
)
def test_the_worst_impossible_value_is_named_with_its_day_and_cell(
    files: Files, name: str, value: float, shown: float
) -> None:
    files.change(name, 2002, changed_at(name, "2003-07-19", 45.0, 262.0, value))
    problem = files.only()
    assert where(problem) == ("values_out_of_range", name, str(files.path(name, 2002)), "2003-07-19")
    assert (problem.lat, problem.lon) == (45.0, 262.0)
    assert problem.value == pytest.approx(shown)
    assert problem.count == 1


def test_what_is_outside_of_the_box_or_the_period_does_not_matter(files: Files) -> None:
    files.change("tasmax", 2002, changed_at("tasmax", "2003-07-19", 40.0, 262.0, 1e20))
    files.change("tasmax", 2000, changed_at("tasmax", "2000-07-19", 45.0, 262.0, 1e20))
    assert files.problems(("2001", "2005")) == []


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


@pytest.mark.parametrize(("value", "kind"), [(280.0, "constant_maps"), (np.nan, "maps_without_data")])
def test_maps_of_one_value_and_without_any(files: Files, value: float, kind: str) -> None:
    def flat(ds: xr.Dataset) -> xr.Dataset:
        ds.tasmax[400:417] = value
        return ds

    file = files.change("tasmax", 2002, flat)
    day = weather("tasmax", (2002, 2004), files.calendar).indexes["time"][400].strftime("%Y-%m-%d")
    problem = files.only()
    assert where(problem) == (kind, "tasmax", file, day)
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


def test_an_empty_and_a_truncated_file_and_one_that_is_gone(files: Files) -> None:
    os.truncate(files.path("tasmax", 2000), 0)
    os.truncate(files.path("pr", 2005), files.path("pr", 2005).stat().st_size * 2 // 3)
    files.path("tasmin", 2002).unlink()
    found = files.problems()
    assert {problem.kind for problem in found} == {"unreadable_files"}, "the days that go with them are no line more"
    reasons = {(problem.variable, problem.file): problem.message for problem in found}
    expected = {
        ("tasmax", 2000): "is empty (0 bytes)",
        ("pr", 2005): "cannot be read",
        ("tasmin", 2002): "does not exist",
    }
    assert reasons.keys() == {(name, str(files.path(name, first))) for name, first in expected}
    for (name, first), text in expected.items():
        assert text in reasons[name, str(files.path(name, first))]


def test_a_file_that_is_damaged_inside_is_named_with_the_day_from_which_it_cannot_be_read(files: Files) -> None:
    path = files.path("pr", 2002)
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 3000] = b"\x55" * 3000
    path.write_bytes(content)
    problem = files.only()
    assert (problem.kind, problem.variable, problem.file) == ("unreadable_files", "pr", str(path))
    assert problem.day == "2002-01-01", "of so small a file all days are read at once"


def test_calendars_that_change_between_files(files: Files) -> None:
    other = "standard" if files.calendar == "noleap" else "noleap"
    files.write(weather("tasmin", (2002, 2004), other), files.path("tasmin", 2002))
    problem = files.only()
    assert where(problem) == ("calendars", "tasmin", str(files.path("tasmin", 2002)), "2002-01-01")
    assert f"the calendar is {other}, and {files.calendar} in other files" in problem.message


def test_coordinates_that_differ_by_round_off_and_by_more(files: Files) -> None:
    close, far = LAT.copy(), LON.copy()
    close[2], far[3] = close[2] + 3e-6, far[3] + 0.4
    near_file = files.change("tasmin", 2002, lambda ds: ds.assign_coords(lat=close))
    far_file = files.change("pr", 2005, lambda ds: ds.assign_coords(lon=far))
    found = {problem.kind: problem for problem in files.problems()}
    near = found["coordinates_by_round_off"]
    assert (near.file, near.lat, near.lon, near.count) == (near_file, pytest.approx(close[2]), None, 1)
    assert near.value == pytest.approx(3e-6, rel=1e-3)
    assert found["grids"].file == far_file


def test_all_problems_are_found_at_once(files: Files) -> None:
    files.change("tasmax", 2002, changed_at("tasmax", "2003-07-19", 45.0, 262.0, 340.0))
    os.truncate(files.path("pr", 2005), 0)
    files.change("tasmin", 2000, lambda ds: ds.isel(time=np.delete(np.arange(ds.sizes["time"]), 90)))
    assert {"values_out_of_range", "unreadable_files", "missing_days"} == {one.kind for one in files.problems()}


def test_a_box_that_does_not_fit_the_grid_is_a_problem(files: Files) -> None:
    box = BOX | {"lat_bnds": (70.0, 80.0)}
    (problem,) = examine_match(files.match, period=("2000", "2005"), regions=[box], limits={})
    assert problem.kind == "grids" and "holds no cell" in problem.message


@pytest.mark.parametrize("kind", UnusableInput.__args__)  # type: ignore[attr-defined]
def test_nothing_that_fails_is_refused_without_need(files: Files, kind: str) -> None:
    """What no configuration lets through is what opening the files refuses, or cannot tell from that."""
    damage: dict[str, Callable[[], object]] = {
        "unreadable_files": lambda: os.truncate(files.path("pr", 2005), 0),
        "units": lambda: files.change("pr", 2005, lambda ds: ds.assign(pr=ds.pr.assign_attrs(units="m"))),
        "calendars": lambda: files.write(
            weather("pr", (2002, 2004), "standard" if files.calendar == "noleap" else "noleap"), files.path("pr", 2002)
        ),
        "grids": lambda: files.change("pr", 2005, lambda ds: ds.assign_coords(lon=LON + 1)),
        "steps_not_daily": lambda: files.change("pr", 2005, lambda ds: ds.isel(time=np.repeat(np.arange(9), 24))),
        "missing_days": lambda: files.change("pr", 2005, lambda ds: ds.isel(time=[0, 1, 2, 4, 5, 6])),
        "double_days": lambda: files.change("pr", 2005, lambda ds: ds.isel(time=[0, 1, 2, 3, 3, 4, 5, 6])),
        "days_out_of_order": lambda: files.change("pr", 2005, lambda ds: ds.isel(time=[0, 2, 1, *range(3, 90)])),
    }
    damage[kind]()
    assert kind in {problem.kind for problem in files.problems()}
    with pytest.raises(DataError):
        open_match(files.match)


def test_limits_are_those_of_the_flags_in_canonical_units() -> None:
    limits = limits_of(FLAGS)
    assert limits["tasmax"] == limits["tasmin"] == pytest.approx((203.15, 333.15))
    assert limits["pr"] == pytest.approx((0.0, 1650 / 86400))
    assert limits_of({}) == {} and limits_of({"tasmax": None, "pr": {}}) == {}


def test_a_flag_without_threshold_has_xclims_own() -> None:
    assert limits_of({"tasmax": {"temperature_extremely_high": {}}})["tasmin"] == pytest.approx((-np.inf, 333.15))


def test_blocks_of_days_are_no_larger_than_they_may_be_and_read_once(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a file whose year is too much, blocks are whole stored chunks of some days, each read once."""
    read: list[tuple[str, int, int, str]] = []
    real = xr.backends.netCDF4_.NetCDF4ArrayWrapper._getitem

    def counted(self: Any, key: Any) -> Any:
        if self.variable_name in UNITS:
            read.append((self.datastore._filename, key[0].start or 0, key[0].stop, repr(key[1:])))
        return real(self, key)

    monkeypatch.setattr(xr.backends.netCDF4_.NetCDF4ArrayWrapper, "_getitem", counted)
    monkeypatch.setattr("espo_luigi.catalog.examine.BLOCK_BYTES", 230 * len(LAT) * len(LON) * 4)
    assert files.problems() == []
    assert len(read) == len(set(read))
    sizes = [weather("pr", years, files.calendar).sizes["time"] for years in YEARS]
    blocks = {(start, min(start + 200, size)) for size in sizes for start in range(0, size, 200)}
    assert {(start, stop) for _, start, stop, _ in read} == blocks
