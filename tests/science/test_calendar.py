"""Calendars: names, their order, conversion and time axes as numbers."""

from __future__ import annotations

import cftime
import numpy as np
import pytest
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.science.calendar import (
    TimeAxis,
    calendar_of,
    canonical,
    convert,
    encode_dates,
    floor_to_day,
    minimum_calendar,
    whole_years,
)


def daily(
    calendar: str, start: str = "2000-01-01", end: str = "2001-12-30", use_cftime: bool | None = None
) -> xr.DataArray:
    time = xr.date_range(start, end, freq="D", calendar=calendar, use_cftime=use_cftime)
    return xr.DataArray(np.arange(time.size, dtype="float32"), dims="time", coords={"time": time}, name="tasmax")


@pytest.mark.parametrize(
    ("calendar", "use_cftime", "expected"),
    [
        ("standard", False, "standard"),
        ("standard", True, "standard"),
        ("gregorian", True, "standard"),
        ("proleptic_gregorian", True, "standard"),
        ("noleap", None, "noleap"),
        ("365_day", None, "noleap"),
        ("360_day", None, "360_day"),
        ("all_leap", None, "all_leap"),
    ],
)
def test_a_calendar_has_one_name_whatever_the_dates_are_made_of(
    calendar: str, use_cftime: bool | None, expected: str
) -> None:
    data = daily(calendar, use_cftime=use_cftime)
    assert calendar_of(data) == expected
    assert calendar_of(data.to_dataset()) == expected


def test_a_julian_calendar_is_refused_by_name() -> None:
    with pytest.raises(DataError, match=r"'julian' is not supported.*360_day"):
        calendar_of(daily("julian"))


def test_times_that_are_not_decoded_are_refused() -> None:
    with pytest.raises(DataError, match="Correct its units"):
        calendar_of(xr.DataArray([1.0], dims="time", coords={"time": [0.5]}))


def test_data_without_times_are_refused() -> None:
    with pytest.raises(DataError, match=r"no time coordinate.*\['x'\]"):
        calendar_of(xr.DataArray([1.0], dims="x", coords={"x": [0]}))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("360_day", "noleap"), "360_day"),
        (("standard", "noleap"), "noleap"),
        (("proleptic_gregorian", "all_leap"), "standard"),
        (("gregorian", "360_day", "all_leap"), "360_day"),
        (("366_day",), "all_leap"),
    ],
)
def test_the_minimum_calendar_has_the_fewest_days(names: tuple[str, ...], expected: str) -> None:
    assert minimum_calendar(*names) == expected


def test_an_equal_calendar_returns_the_same_object() -> None:
    data = daily("standard")
    assert convert(data, "proleptic_gregorian") is data


def test_converting_to_noleap_drops_only_29_february() -> None:
    data = daily("standard")
    converted = convert(data, "noleap")
    dropped = set(data.values.tolist()) - set(converted.values.tolist())
    assert [str(data.time.values[int(day)])[:10] for day in dropped] == ["2000-02-29"]


# The days that REFERENCE.md lists for align_on "year".
DROPPED = {
    2001: ["02-06", "04-20", "07-02", "09-13", "11-25"],
    2000: ["01-31", "04-01", "06-01", "08-01", "10-01", "12-01"],
}


@pytest.mark.parametrize(("year", "calendar"), [(2001, "noleap"), (2001, "standard"), (2000, "standard")])
def test_converting_to_360_days_drops_the_listed_days(year: int, calendar: str) -> None:
    data = daily(calendar, f"{year}-01-01", f"{year}-12-31")
    kept = set(convert(data, "360_day").values.tolist())
    dropped = [data.indexes["time"][day].strftime("%m-%d") for day in range(data.size) if day not in kept]
    assert dropped == DROPPED[year]


def test_converting_is_lazy_and_keeps_time_in_one_chunk() -> None:
    data = daily("standard").expand_dims(loc=4).chunk({"loc": 2, "time": -1})
    for calendar in ("noleap", "360_day"):
        converted = convert(data, calendar)
        assert len(converted.chunksizes["time"]) == 1
        assert converted.chunksizes["loc"] == (2, 2)
        xr.testing.assert_identical(converted.compute(), convert(data.compute(), calendar))


@pytest.mark.parametrize("calendar", ["standard", "noleap", "360_day", "all_leap"])
def test_a_time_axis_gives_its_dates_back(calendar: str) -> None:
    data = daily(calendar, "1899-12-01", "1904-03-01")
    axis = TimeAxis.of(data)
    assert axis.index.equals(data.indexes["time"])
    np.testing.assert_array_equal(axis.dayofyear, data.time.dt.dayofyear)
    np.testing.assert_array_equal(axis.year, data.time.dt.year)
    assert axis.days_in_longest_year >= axis.dayofyear.max()


@pytest.mark.parametrize("calendar", ["standard", "noleap", "360_day"])
def test_years_are_selected_up_to_2300(calendar: str) -> None:
    dates = xr.date_range("2257-01-01", "2300-12-30", freq="D", calendar=calendar, use_cftime=True)
    whole = floor_to_day(xr.DataArray(np.arange(dates.size), {"time": dates}, ["time"]))
    days = {"standard": 365, "noleap": 365, "360_day": 360}[calendar]
    found = whole_years(whole, "2299", "2300")
    assert found["time"].dt.year.values[[0, days - 1, days]].tolist() == [2299, 2299, 2300]
    assert found.sizes["time"] >= 2 * days - 1 and found.values[-1] == dates.size - 1
    assert whole_years(whole, 2301, 2302).sizes["time"] == 0
    assert whole_years(whole[:0], 2299, 2300).sizes["time"] == 0


@pytest.mark.parametrize(
    ("calendar", "first"),
    [
        *((one, 0) for one in ("standard", "proleptic_gregorian", "noleap", "360_day", "all_leap")),
        ("standard", -100_000),  # the 1570s: Julian days
    ],
)
def test_a_time_axis_numbers_each_day_as_cftime_does(calendar: str, first: int) -> None:
    days = first + np.arange(92_000) + 0.53125
    dates = xr.CFTimeIndex(cftime.num2date(days, "days since 1850-01-01", calendar))
    expected = cftime.date2num(dates.values, "days since 1850-01-01", canonical(calendar))
    axis = TimeAxis.of_index(canonical(calendar), dates)
    np.testing.assert_array_equal(axis.days, expected)
    assert axis == TimeAxis(canonical(calendar), expected) and hash(axis) == hash(TimeAxis(axis.calendar, expected))
    assert axis not in (TimeAxis(axis.calendar, expected[1:]), TimeAxis("julian", expected), expected[0])


def test_a_time_axis_keeps_noon() -> None:
    noon = daily("standard").assign_coords(time=daily("standard").time + np.timedelta64(12, "h"))
    assert TimeAxis.of(noon).index.equals(noon.indexes["time"])


@pytest.mark.parametrize("calendar", ["standard", "noleap"])
@pytest.mark.parametrize("hour", [0, 12])
def test_converting_to_360_days_is_what_xarray_does_date_by_date(calendar: str, hour: int) -> None:
    start = f"1999-03-05T{hour:02d}:00:00"
    times = xr.date_range(start, periods=2200, calendar=calendar, use_cftime=calendar != "standard")
    data = xr.DataArray(np.arange(2200.0), dims="time", coords={"time": times}, name="tasmax")
    data["time"].attrs["standard_name"] = "time"
    expected = data.convert_calendar("360_day", align_on="year")
    xr.testing.assert_identical(convert(data, "360_day"), expected)


@pytest.mark.parametrize("calendar", ["standard", "noleap", "360_day"])
def test_flooring_to_the_day_is_what_xarray_does_date_by_date(calendar: str) -> None:
    times = xr.date_range("2003-12-28T12:00:00", periods=100, calendar=calendar, use_cftime=calendar != "standard")
    data = xr.DataArray(np.arange(100.0), dims="time", coords={"time": times}, name="pr")
    floored = floor_to_day(data)
    assert list(floored.time.values) == list(data.time.dt.floor("D").values)
    assert floor_to_day(floored) is floored


@pytest.mark.parametrize("calendar", ["noleap", "360_day", "all_leap"])
@pytest.mark.parametrize("units", ["days since 1950-01-01", "days since 1850-1-1 12:00"])
@pytest.mark.parametrize(("start", "freq"), [("1999-12-20", "D"), ("1999-12-20 12:00", "D"), ("1849-12-25", "6h")])
def test_dates_are_encoded_as_xarray_encodes_them(calendar: str, units: str, start: str, freq: str) -> None:
    index = xr.date_range(start, periods=500, freq=freq, calendar=calendar, use_cftime=True)
    variable = xr.Variable("time", index.values, encoding={"units": units, "calendar": calendar})
    expected = xr.conventions.encode_cf_variable(variable, name="time").values
    encoded = encode_dates(index, units)
    assert encoded is not None and encoded.dtype == expected.dtype
    np.testing.assert_array_equal(encoded, expected)


@pytest.mark.parametrize(
    ("calendar", "units"), [("julian", "days since 1950-01-01"), ("noleap", "hours since 1950-01-01")]
)
def test_what_cannot_be_encoded_by_numbers_is_left_to_xarray(calendar: str, units: str) -> None:
    index = xr.date_range("2000-01-01", periods=5, calendar=calendar, use_cftime=True)
    assert encode_dates(index, units) is None and encode_dates(index[:0], units) is None
