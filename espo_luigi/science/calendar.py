"""Time of daily series: calendars, time axes as plain numbers, missing days inserted as NaN, and NaN filled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal, TypeVar, cast

import cftime
import dask.array
import numpy as np
import pandas as pd
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.science.attributes import INSERTED_DAYS
from espo_luigi.science.chunks import rechunk_variable
from espo_luigi.science.variables import Filling

XarrayObject = TypeVar("XarrayObject", xr.Dataset, xr.DataArray)

SYNONYMS = {
    "standard": "standard",
    "gregorian": "standard",
    "proleptic_gregorian": "standard",
    "default": "standard",
    "noleap": "noleap",
    "365_day": "noleap",
    "360_day": "360_day",
    "all_leap": "all_leap",
    "366_day": "all_leap",
}
_ORDER = ("360_day", "noleap", "standard", "all_leap")
# Calendars all of whose years are equal.
DAYS_IN_YEAR = {"360_day": 360, "noleap": 365, "all_leap": 366}
# The coordinate with the days from a stamp to the middle of its interval.
TO_MIDPOINT = "days_to_midpoint"
SECONDS_PER_DAY = 86400
_FIRST_YEAR = 1850
_START = f"{_FIRST_YEAR}-01-01"
EPOCH = f"days since {_START}"
_LAST_JULIAN_YEAR = 1582


def canonical(name: str) -> str:
    """Name of a calendar as this package uses it: 360_day, noleap, standard or all_leap.

    Raises
    ------
    DataError
        If the calendar is none of the CF calendars that the adjustment knows.
    """
    try:
        return SYNONYMS[name]
    except KeyError:
        raise DataError(
            f"calendar {name!r} is not supported; expected one of {', '.join(sorted(SYNONYMS))}. "
            "Convert the data to one of them first."
        ) from None


def day_of(value: Any) -> str:
    """Return the day of a date, numpy's or cftime's, as YYYY-MM-DD."""
    return value.isoformat()[:10] if isinstance(value, cftime.datetime) else str(value)[:10]


def calendar_of(obj: xr.Dataset | xr.DataArray) -> str:
    """Calendar of the `time` coordinate; numpy datetimes and all Gregorian kinds are "standard". Lazy.

    Raises
    ------
    DataError
        If there is no `time` coordinate made of dates, or its calendar is unknown.
    """
    if "time" not in obj.coords:
        raise DataError(
            f"no time coordinate; got the coordinates {sorted(map(str, obj.coords))}. Decode the times first."
        )
    try:
        name = obj["time"].dt.calendar
    except (AttributeError, TypeError):
        raise DataError(
            f"the time coordinate holds {obj['time'].dtype}, not dates. Correct its units and calendar."
        ) from None
    return canonical(name)


def minimum_calendar(*names: str) -> str:
    """Return the calendar with the fewest days: 360_day < noleap < standard (any Gregorian) < all_leap.

    Raises `DataError` if a name is no known calendar.
    """
    return min((canonical(name) for name in names), key=_ORDER.index)


def convert(obj: XarrayObject, calendar: str, *, align_on: Literal["year", "date"] = "year") -> XarrayObject:
    """Convert a daily series to another calendar, lazily; the same object if it already has it.

    To noleap, only 29 February goes. To 360_day with `align_on="year"`, the position within the year is scaled, which
    drops 5 days a year spread evenly (6 in a leap year). Values are never interpolated. The time dimension keeps a
    single chunk if it was one. Raises `DataError` if either calendar is unknown.
    """
    wanted = canonical(calendar)
    if calendar_of(obj) == wanted:
        return obj
    if wanted == "360_day" and align_on == "year":
        return _to_360_days(obj)
    return obj.convert_calendar(cast("Any", wanted), align_on=align_on)


def whole_years(obj: XarrayObject, first: str | int, last: str | int) -> XarrayObject:
    """Return the years from the first to the last, both included; lazy. None may be there.

    By numbers: where an index reaches beyond 2262, pandas cannot look up years by their text.
    """
    if not obj.sizes["time"]:
        return obj
    years = obj["time"].dt.year.values
    inside = np.flatnonzero((years >= int(first)) & (years <= int(last)))
    return obj.isel(time=slice(inside[0], inside[-1] + 1) if inside.size else slice(0))


def floor_to_day(obj: XarrayObject, to_midpoint: np.ndarray | xr.DataArray | None = None) -> XarrayObject:
    """Return the series with its stamps at midnight, numpy's in the standard calendar; the same object if they are so.

    The day of a step holds the middle of its interval, `to_midpoint` days (time) after the stamp. Where there is none
    (NaN), it holds the stamp.
    A second is added first: fractions of days are rounded, so that stamps lie a little before midnight.

    If a file has a date beyond numpy's nanoseconds (2262), xarray decodes all its dates as cftime's.
    By numbers: cftime's own `floor` goes date by date, which takes most of a second for a century.
    """
    axis = TimeAxis.of(obj)
    midnights = np.floor(axis.days + (0 if to_midpoint is None else np.nan_to_num(to_midpoint)) + 1 / SECONDS_PER_DAY)
    as_wanted = axis.calendar != "standard" or isinstance(obj.indexes["time"], pd.DatetimeIndex)
    if as_wanted and np.array_equal(midnights, axis.days):
        return obj
    index = TimeAxis(axis.calendar, midnights).index
    attrs = {name: value for name, value in obj["time"].attrs.items() if name != "bounds"}
    return obj.assign_coords(time=xr.DataArray(index, dims="time", attrs=attrs))


def _to_360_days(obj: XarrayObject) -> XarrayObject:
    """Scale each day's position in its year to 360 days, and keep the first of the days that meet.

    What xarray's `convert_calendar` does date by date, which takes seconds for thirty years.
    """
    axis = TimeAxis.of(obj)
    years = axis.year
    lengths = np.array([cftime.is_leap_year(year, axis.calendar) for year in range(years.min(), years.max() + 1)]) + 365
    position = np.round(360 * axis.dayofyear / lengths[years - years.min()]).astype(np.int64)
    days = (years - _FIRST_YEAR) * 360 + position - 1
    _, kept = np.unique(days, return_index=True)
    index = TimeAxis("360_day", days[kept] + axis.days[kept] % 1).index
    attrs = {name: value for name, value in obj["time"].attrs.items() if name != "calendar"}
    return obj.isel(time=kept).assign_coords(time=xr.DataArray(index, dims="time", attrs=attrs))


def encode_dates(index: xr.CFTimeIndex, units: str) -> np.ndarray | None:
    """Encode dates as xarray's numbers, int64 where they are whole; None unless in days and in years of equal length.

    By numbers: xarray's own way goes date by date, which takes a third of a second for a century and a half.
    """
    calendar = SYNONYMS.get(index.calendar) if len(index) else None
    if calendar not in DAYS_IN_YEAR or not units.startswith("days since "):
        return None
    origin = xr.CFTimeIndex([cftime.num2date(0, units, index.calendar)])
    days = TimeAxis.of_index(calendar, index).days - TimeAxis.of_index(calendar, origin).days
    whole = days.astype(np.int64)
    return whole if np.array_equal(whole, days) else days


@dataclass(frozen=True, eq=False)
class TimeAxis:
    """A time coordinate as numbers, which travel to Dask workers more cheaply than tens of thousands of date objects.

    Attributes
    ----------
    calendar
        Canonical calendar name.
    days
        Days since 1850-01-01 in that calendar, float64, for each time step.
    """

    calendar: str
    days: np.ndarray

    @classmethod
    def of(cls, obj: xr.Dataset | xr.DataArray) -> TimeAxis:
        """Time axis of an object's `time` coordinate."""
        return cls.of_index(calendar_of(obj), obj.indexes["time"])

    @classmethod
    def of_index(cls, calendar: str, index: pd.Index) -> TimeAxis:
        """Time axis of dates in a calendar, named as `canonical` does."""
        if isinstance(index, pd.DatetimeIndex):
            days = (index - pd.Timestamp(_START)) / pd.Timedelta(days=1)
        else:
            # Field by field: cftime's date2num is ten times slower, xarray's fields take longer.
            year, dayofyear, hour, minute, second, microsecond = (
                np.fromiter(map(attrgetter(name), index.values), np.int64, len(index))
                for name in ("year", "dayofyr", "hour", "minute", "second", "microsecond")
            )
            if (length := DAYS_IN_YEAR.get(calendar)) is None and (year <= _LAST_JULIAN_YEAR).any():
                return cls(calendar, np.asarray(cftime.date2num(index.values, EPOCH, calendar), dtype=np.float64))
            first_of_year = (year - _FIRST_YEAR) * (length or 365)
            if length is None:
                first_of_year += _leap_days_before(year) - _leap_days_before(_FIRST_YEAR)
            seconds = (hour * 60 + minute) * 60 + second + microsecond / 1e6
            days = first_of_year + (dayofyear - 1) + seconds / SECONDS_PER_DAY
        return cls(calendar, np.asarray(days, dtype=np.float64))

    def number(self, day: str) -> int:
        """Return the number of a day, YYYY-MM-DD; raises `DataError` if the calendar has no such day."""
        try:
            year, month, of_month = (int(part) for part in day.split("-"))
            date = cftime.datetime(year, month, of_month, calendar=self.calendar)
        except ValueError:
            raise DataError(f"{day!r} is no day of the {self.calendar} calendar; expected YYYY-MM-DD.") from None
        return int(self.of_index(self.calendar, xr.CFTimeIndex([date])).days[0])

    @property
    def index(self) -> pd.Index:
        """The dates: a DatetimeIndex for the standard calendar, else a CFTimeIndex."""
        if self.calendar == "standard":
            since = (self.days * (SECONDS_PER_DAY * 1e6)).astype("timedelta64[us]")
            return pd.DatetimeIndex(np.datetime64(_START, "us") + since)
        return xr.CFTimeIndex(cftime.num2date(self.days, EPOCH, self.calendar))

    @property
    def dayofyear(self) -> np.ndarray:
        """Day of the year of each step, from 1."""
        if self.calendar in DAYS_IN_YEAR:
            return np.floor(self.days).astype(np.int64) % DAYS_IN_YEAR[self.calendar] + 1
        return xr.DataArray(self.index, dims="time").dt.dayofyear.values

    @property
    def year(self) -> np.ndarray:
        """Year of each step."""
        if self.calendar in DAYS_IN_YEAR:
            return np.floor(self.days).astype(np.int64) // DAYS_IN_YEAR[self.calendar] + _FIRST_YEAR
        return np.asarray(self.index.year)

    @property
    def days_in_longest_year(self) -> int:
        """Number of days of year that the calendar can have."""
        return DAYS_IN_YEAR.get(self.calendar, 366)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TimeAxis) and self.calendar == other.calendar and np.array_equal(self.days, other.days)

    def __hash__(self) -> int:
        return hash((self.calendar, self.days.tobytes()))

    def __str__(self) -> str:
        if not len(self):
            return f"no times ({self.calendar})"
        return f"{len(self)} times from {self.index[0]} to {self.index[-1]} ({self.calendar})"

    def __len__(self) -> int:
        return self.days.size


def fill_in_time(ds: xr.Dataset, *, how: Mapping[str, Filling]) -> xr.Dataset:
    """Fill NaN of each cell from its other days; cells without any data stay NaN; lazy on dask.

    Gaps between days with data are interpolated linearly ("forward", "both") or become 0 ("zero"). After the last day
    with data, "forward" and "both" repeat it; before the first day, "both" repeats that day and "forward" leaves NaN.
    Units, dtypes, attributes and other variables stay. Blocks of the result hold all of time. Raises `DataError` if
    times are not in order.

    Parameters
    ----------
    ds
        Variables with `time`, in order, and any other dimensions; any calendar.
    how
        The filling of each variable; variables that `ds` lacks are ignored.
    """
    days = TimeAxis.of(ds).days
    _check_order(days, ds)
    # xarray's `interpolate_na` counts nanoseconds, which decides the last bit.
    nanoseconds = (days - days[:1]) * (SECONDS_PER_DAY * 1e9)
    return ds.assign({name: _filled(ds[name].variable, way, nanoseconds) for name, way in how.items() if name in ds})


def insert_days(ds: xr.Dataset, *, days: Sequence[str], until: str = "") -> xr.Dataset:
    """Insert days that a daily series lacks, as NaN; lazy. The same dataset if it lacks none.

    The attribute `espo_luigi_inserted_days` lists the inserted days. Those of `days` that the series has, or that lie
    outside of it, are left alone.

    Parameters
    ----------
    ds
        Variables with or without `time`, in order, at the same hour each day; any calendar. Blocks keep their lengths.
    days
        The days that may be missing, as YYYY-MM-DD in the calendar of the series.
    until
        The day up to which `days` are inserted after the last of the series; by default, none is.

    Raises
    ------
    DataError
        If another day is missing, a day is double or out of order, or the calendar lacks one of `days`.
    """
    axis = TimeAxis.of(ds)
    _check_order(present := np.floor(axis.days).astype(np.int64), ds)
    whole = np.arange(present[0], present[-1] + 1) if present.size else present
    end = axis.number(until) if until and whole.size else -np.inf
    if whole.size == present.size and not (whole.size and whole[-1] < end):
        return ds
    expected = [axis.number(day) for day in days]
    while whole[-1] < end and whole[-1] + 1 in expected:
        whole = np.append(whole, whole[-1] + 1)
    missing = np.setdiff1d(whole, present)
    if not missing.size:
        return ds
    unexpected = np.setdiff1d(missing, expected)
    if unexpected.size:
        raise DataError(
            f"the series lacks {unexpected.size} days, the first is {_listed(unexpected[:1], axis.calendar)}; expected "
            f"all days but {', '.join(days) or 'none'}. Correct or exclude the data."
        )
    filled = ds.assign_coords(time=present).reindex(time=whole)
    # Dask makes blocks of other lengths, the last longer than the first: stores do not take these.
    first = {name: sizes["time"][0] for name, da in ds.data_vars.items() if "time" in (sizes := da.variable.chunksizes)}
    cut = {name: rechunk_variable(filled[name].variable, {"time": size}) for name, size in first.items()}
    index = TimeAxis(axis.calendar, whole + axis.days[0] % 1).index
    dated = filled.assign(cut).assign_coords(time=xr.Variable("time", index, ds["time"].attrs, ds["time"].encoding))
    return dated.assign_attrs({INSERTED_DAYS: _listed(missing, axis.calendar)})


def fill_inserted_days(ds: xr.Dataset, *, how: Mapping[str, Filling]) -> xr.Dataset:
    """Fill the days that `insert_days` has inserted from their neighbours, as `fill_in_time`; other gaps stay; lazy."""
    if not (inserted := str(ds.attrs.get(INSERTED_DAYS, ""))):
        return ds
    axis = TimeAxis.of(ds)
    kept = ~np.isin(np.floor(axis.days), [axis.number(day) for day in inserted.split(",")])
    return ds.where(xr.DataArray(kept, {"time": ds["time"]}, dims="time"), fill_in_time(ds, how=how))


def without_inserted_days(ds: xr.Dataset) -> xr.Dataset:
    """Undo `insert_days`: the days that files lacked are left out; lazy. The same dataset if none was inserted."""
    inserted = str(ds.attrs.get(INSERTED_DAYS, "")).split(",")
    if inserted == [""]:
        return ds
    axis = TimeAxis.of(ds)
    left_out = np.isin(np.floor(axis.days), [axis.number(day) for day in inserted])
    kept = ds.isel(time=np.flatnonzero(~left_out)).copy(deep=False)
    del kept.attrs[INSERTED_DAYS]
    return kept


def _leap_days_before(year: Any) -> Any:
    """Return the number of Gregorian leap days before a year, from year 1 on."""
    return (year - 1) // 4 - (year - 1) // 100 + (year - 1) // 400


def _check_order(days: np.ndarray, ds: xr.Dataset) -> None:
    wrong = np.flatnonzero(np.diff(days) <= 0)
    if wrong.size:
        before, after = (day_of(ds["time"].values[place]) for place in (wrong[0], wrong[0] + 1))
        raise DataError(f"{before} is followed by {after}; expected days in order, each once. Correct the data.")


def _listed(days: np.ndarray, calendar: str) -> str:
    return ",".join(day_of(date) for date in TimeAxis(calendar, days.astype(np.float64)).index)


def _filled(variable: xr.Variable, how: Filling, times: np.ndarray) -> xr.Variable:
    axis = variable.get_axis_num("time")
    if variable.chunks is None:
        return variable.copy(data=_fill_block(variable.values, axis=axis, how=how, times=times))
    data = rechunk_variable(variable, {"time": -1}).data
    filled = dask.array.map_blocks(
        _fill_block, data, dtype=data.dtype, meta=data._meta, axis=axis, how=how, times=times
    )
    return variable.copy(data=filled)


def _fill_block(block: np.ndarray, *, axis: int, how: Filling, times: np.ndarray) -> np.ndarray:
    missing = np.isnan(block)
    if not missing.any():
        return block
    filled = block.copy()
    series, gaps = np.moveaxis(filled, axis, -1), np.moveaxis(missing, axis, -1)
    days = gaps.sum(axis=-1)
    for cell in zip(*np.nonzero((days > 0) & (days < times.size)), strict=True):
        line, gap = series[cell], gaps[cell]
        if how == "zero":
            line[gap] = 0
        else:
            before = None if how == "both" else np.nan
            # Only the days beside gaps matter: with all days, this takes more than twice as long.
            beside = ~gap
            beside[1:-1] &= gap[2:] | gap[:-2]
            line[gap] = np.interp(times[gap], times[beside], line[beside], left=before)
    return filled
