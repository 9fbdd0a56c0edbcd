"""What is wrong with raw files is found with its file, day and cell: each kind in real files, several a variable."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from examined_files import BOX, CALENDARS, LAT, LON, UNITS, YEARS, Files, changed_at, good_files, load, weather, where

from espo_luigi.catalog import open_match
from espo_luigi.catalog.examine import examine_match
from espo_luigi.errors import DataError
from espo_luigi.science.limits import INPUT_PROBLEMS

# Of problems that have to do with dates; others are those of any calendar.
IN_EACH_CALENDAR = pytest.mark.parametrize("files", CALENDARS, indirect=True)


@pytest.fixture()
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    return good_files(tmp_path, getattr(request, "param", "noleap"))


@IN_EACH_CALENDAR
def test_nothing_is_found_in_good_files(files: Files) -> None:
    assert files.problems() == []


@IN_EACH_CALENDAR
def test_days_that_are_missing(files: Files) -> None:
    days = load(files.path("pr", 2002)).indexes["time"]
    place = days.get_loc(days[days.strftime("%Y-%m-%d") == "2003-02-17"][0])
    file = files.change("pr", 2002, lambda ds: ds.isel(time=np.delete(np.arange(len(days)), [place, place + 1, 900])))
    problem = files.only()
    assert where(problem) == ("missing_days", "pr", file, "2003-02-17")
    assert problem.count == 3
    last = str(days[900])[:10]
    assert problem.message == f"3 days are missing from 2003-02-17 to {last}, at 2 places"


@IN_EACH_CALENDAR
def test_days_that_are_there_twice(files: Files) -> None:
    file = files.change("tasmin", 2002, lambda ds: ds.isel(time=np.insert(np.arange(ds.sizes["time"]), 4, [3, 3])))
    problem = files.only()
    assert where(problem) == ("double_days", "tasmin", file, "2002-01-04")
    assert problem.count == 2


@IN_EACH_CALENDAR
def test_days_in_another_order(files: Files) -> None:
    def shuffled(ds: xr.Dataset) -> xr.Dataset:
        order = np.arange(ds.sizes["time"])
        order[10], order[13] = 13, 10
        return ds.isel(time=order)

    file = files.change("tasmax", 2005, shuffled)
    problem = files.only()
    assert where(problem) == ("days_out_of_order", "tasmax", file, "2005-01-12")
    assert problem.count == 2


@IN_EACH_CALENDAR
def test_days_of_a_file_that_are_in_the_next_one_too(files: Files) -> None:
    longer = xr.concat(
        [weather("pr", (2002, 2004), files.calendar), weather("pr", (2005, 2005), files.calendar)], "time"
    )
    files.write(longer.isel(time=slice(-150)), files.path("pr", 2002))
    days = {"360_day": 360, "noleap": 365, "standard": 365}[files.calendar] - 150
    problem = files.only()
    assert where(problem) == ("double_days", "pr", str(files.path("pr", 2005)), "2005-01-01")
    assert problem.count == days


@IN_EACH_CALENDAR
def test_days_missing_between_two_files(files: Files) -> None:
    file = files.change("tasmax", 2002, lambda ds: ds.isel(time=slice(3, None)))
    problem = files.only()
    assert where(problem) == ("missing_days", "tasmax", file, "2002-01-01")
    assert problem.count == 3
    before = files.path("tasmax", 2000)
    assert problem.message == f"3 days are missing from 2002-01-01 to 2002-01-03: {before} ends before them"


@IN_EACH_CALENDAR
def test_days_missing_at_an_end_whatever_the_catalogue_says(files: Files) -> None:
    late = files.change("tasmax", 2000, lambda ds: ds.isel(time=slice(1, None)))
    early = files.change("pr", 2005, lambda ds: ds.isel(time=slice(-3)))
    found = sorted(files.problems(), key=where)
    first, last = ("2005-12-28", "2005-12-30") if files.calendar == "360_day" else ("2005-12-29", "2005-12-31")
    assert [*map(where, found)] == [
        ("missing_days", "pr", early, first),
        ("missing_days", "tasmax", late, "2000-01-01"),
    ]
    assert [one.count for one in found] == [3, 1]
    assert [one.message for one in found] == [
        f"3 days are missing from {first} to {last} of the period 2000-2005",
        "1 day is missing: 2000-01-01 of the period 2000-2005",
    ]


@pytest.mark.parametrize(
    ("files", "step"), [("noleap", "h"), ("360_day", "12h"), ("standard", "MS")], indirect=["files"]
)
def test_steps_that_are_not_days(files: Files, step: str) -> None:
    def other_steps(ds: xr.Dataset) -> xr.Dataset:
        number = {"h": 24 * 360, "12h": 720, "MS": 12}[step]
        time = xr.date_range("2005-01-01", periods=number, freq=step, calendar=files.calendar, use_cftime=True)
        return ds.isel(time=np.zeros(number, int)).assign_coords(time=time)

    file = files.change("pr", 2005, other_steps)
    found = files.problems()
    steps = [where(one) for one in found if one.kind == "steps_not_daily"]
    assert steps == [("steps_not_daily", "pr", file, "2005-01-01")]
    assert {problem.kind for problem in found} <= {"steps_not_daily", "missing_days"}


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


@IN_EACH_CALENDAR
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


@pytest.mark.parametrize("kind", [name for name, kind in INPUT_PROBLEMS.items() if not kind.may_warn])
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


@IN_EACH_CALENDAR
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
