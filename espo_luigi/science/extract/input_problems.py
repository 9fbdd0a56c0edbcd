"""Problems with raw daily files: their type, and the problems of a time axis."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import cftime
import numpy as np
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.science.calendar import TimeAxis, calendar_of, day_of
from espo_luigi.science.limits import DAILY
from espo_luigi.science.variables import Variable, variable


@dataclass(frozen=True)
class Problem:
    """A line of the table: a problem with a variable of a file, its count, and its first or worst place."""

    kind: str
    """Of `INPUT_PROBLEMS`."""
    message: str
    file: str = ""
    variable: str = ""
    day: str = ""
    lat: float | None = None
    lon: float | None = None
    value: float | None = None
    count: int = 1


@dataclass(frozen=True, eq=False)
class RawSeries:
    """One variable as one file has it: (time, y, x), lazily, in canonical units, stamps at midnight."""

    file: str
    data: xr.DataArray
    # Days (YYYY-MM-DD) that may be missing.
    may_lack: Sequence[str] = ()
    # The units in the file.
    units: str = ""
    # The number that the file declares as missing, in its units, if a value may be equal to it.
    doubtful_fill: float | None = None
    # The variable's row of the table; by default that of `VARIABLES`.
    row: Variable | None = None
    # The file's attributes of missing values, by their names.
    fills: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The variable."""
        return str(self.data.name)

    @property
    def known(self) -> Variable:
        """The variable's row of the table."""
        return self.row or variable(self.name)

    @cached_property
    def days(self) -> np.ndarray:
        """Each step's day, as a number in its calendar."""
        return np.floor(TimeAxis.of(self.data).days).astype(np.int64)

    def lacked(self, first: int, last: int) -> np.ndarray:
        """Return which days from the first to the last are missing and may not be."""
        allowed = [self.number(day) for day in self.may_lack]
        return np.setdiff1d(np.arange(first, last + 1), [*self.days, *allowed])

    def day(self, number: int) -> str:
        """Return a day's date from its number, whether the file has it or not."""
        return day_of(TimeAxis(TimeAxis.of(self.data[:1]).calendar, np.array([float(number)])).index[0])

    def number(self, day: str) -> int:
        """Return the number of a day, given as YYYY-MM-DD."""
        return TimeAxis.of(self.data[:1]).number(day)

    def missing(self, count: int, first: int, last: int, gaps: int = 1) -> str:
        """Return how many days are missing, in so many gaps, and the first and the last of them."""
        if count == 1:
            return f"1 day is missing: {self.day(first)}"
        places = f", at {gaps} places" if gaps > 1 else ""
        return f"{count} days are missing from {self.day(first)} to {self.day(last)}{places}"

    def problem(
        self, kind: str, message: str, day: int, count: int, cell: Sequence[int] = (), value: float | None = None
    ) -> Problem:
        """Return a problem of this series that begins on a day, in a cell (its row and column) if one is given."""
        at = dict(zip(self.data.dims[1:], cell, strict=False))
        lat, lon = (float(self.data[name].isel(at, missing_dims="ignore")) if at else None for name in ("lat", "lon"))
        return Problem(kind, message, self.file, self.name, self.day(day), lat, lon, value, count)


def wanted_days(start: str, end: str, calendar: str) -> tuple[str, str]:
    """Return the first and the last day of a period whose ends are years, months or days, as YYYY-MM-DD."""
    first = f"{start}-01-01"[:10]
    if len(end) == 10:
        return first, end
    year, month = int(end[:4]), int(end[5:7] or 12)
    return first, f"{end[:4]}-{month:02}-{cftime.datetime(year, month, 1, calendar=calendar).daysinmonth}"


def require_days(
    ds: xr.Dataset, where: str = "", *, period: tuple[str, str] | None = None, may_lack: Sequence[str] = ()
) -> None:
    """Check that a dataset, which is not empty, has each day once and in order, and all days of a period, if given.

    Raises `DataError` with the first of the problems that `day_problems` and `end_problems` find, after `where`.
    """
    raw = RawSeries("", ds["time"], may_lack)
    problems = [*day_problems(raw), *(end_problems([raw], period) if period else ())]
    if problems:
        at = f"{problems[0].day}: " if problems[0].kind != "missing_days" else ""
        message = f"{where}: {at}{problems[0].message}" if where else f"{at}{problems[0].message}"
        raise DataError(f"{message}; expected each day once and in order. Correct or exclude the data.")


def end_problems(files: Sequence[RawSeries], period: tuple[str, str]) -> list[Problem]:
    """Return the days of a period that are missing before the first and after the last day of a variable's files."""
    first, last = min(files, key=lambda raw: raw.days.min()), max(files, key=lambda raw: raw.days.max())
    begin, end = map(first.number, wanted_days(*period, calendar_of(first.data)))
    gaps = ((first, np.arange(begin, first.days.min())), (last, last.lacked(int(last.days.max()) + 1, end)))
    return [
        raw.problem(
            "missing_days",
            f"{raw.missing(days.size, *days[[0, -1]])} of the period {'-'.join(period)}",
            days[0],
            days.size,
        )
        for raw, days in gaps
        if days.size
    ]


def neighbour_problems(files: Sequence[RawSeries]) -> list[Problem]:
    """Return the days that are missing between a variable's files, or in two of them.

    The files are not empty, and share a calendar.
    """
    problems: list[Problem] = []
    for before, after in itertools.pairwise(sorted(files, key=lambda raw: int(raw.days.min()))):
        last, first = int(before.days.max()), int(after.days.min())
        if (lacked := after.lacked(last + 1, first - 1)).size:
            message = f"{after.missing(lacked.size, lacked[0], lacked[-1])}: {before.file} ends before them"
            problems.append(after.problem("missing_days", message, lacked[0], lacked.size))
        elif first <= last:
            message = f"days are in {before.file}, too, the first of them this one"
            count = min(last, int(after.days.max())) - first + 1
            problems.append(after.problem("double_days", message, first, count))
    return problems


def is_daily(raw: RawSeries) -> bool:
    """Whether a file's steps are days, some missing, double or out of order, or all days again from the first."""
    return raw.days.size < 2 or any((np.diff(days) == 1).mean() >= DAILY for days in (np.sort(raw.days), raw.days))


def day_problems(raw: RawSeries) -> list[Problem]:
    """Return the problems with the days of a file, which is not empty."""
    in_order = np.sort(raw.days)
    steps = np.diff(in_order)
    if not is_daily(raw):
        first, usual = in_order[np.flatnonzero(steps != 1)[0]], float(np.mean(steps))
        message = f"steps are {usual:.3g} days in the mean, expected one stamp a day"
        return [raw.problem("steps_not_daily", message, first, int((steps != 1).sum()))]
    turns = np.flatnonzero(np.diff(raw.days) < 0)
    back = raw.days[turns + 1]
    before = raw.day(raw.days[turns[0]]) if turns.size else ""
    back_from = f"the dates go back at {turns.size} place(s): {before} is followed by this day"
    double = in_order[1:][steps == 0]
    lacked = raw.lacked(in_order[0], in_order[-1])
    gaps = lacked[np.diff(lacked, prepend=-2) > 1]
    absent = raw.missing(lacked.size, lacked[0], lacked[-1], gaps.size) if lacked.size else ""
    found: list[tuple[str, str, np.ndarray, int]] = [
        ("days_out_of_order", back_from, back, back.size),
        ("double_days", "days are there more than once, the first of them this one", double, double.size),
        ("missing_days", absent, gaps, lacked.size),
    ]
    return [raw.problem(kind, message, days[0], count) for kind, message, days, count in found if days.size]
