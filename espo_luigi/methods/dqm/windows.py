"""Windows around each day of year: which time steps they hold, and how a day's window becomes the next day's.

Also windows of years, in which quantile delta mapping ranks values.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from espo_luigi.errors import DataError

LONGEST_WINDOW = 127


class WindowPlan(NamedTuple):
    """The time steps of each day of year, and how a day's window becomes the next day's.

    Attributes
    ----------
    window
        Days in a window, odd.
    dayofyear
        The days of year that occur, ascending; a "group" below is a position in this array.
    centres, centre_start
        Time steps by group, ascending within it; group g has ``centres[centre_start[g]:centre_start[g + 1]]``.
    flips, flip_start
        Time steps that enter or leave the window from group g - 1 (none, for the first) to group g, likewise.
    """

    window: int
    dayofyear: np.ndarray
    centres: np.ndarray
    centre_start: np.ndarray
    flips: np.ndarray
    flip_start: np.ndarray


class YearWindow(NamedTuple):
    """The first time step of a window of years and the one after its last, and the same of the steps that are kept."""

    first: int
    last: int
    kept_first: int
    kept_last: int


def year_windows(years: np.ndarray, window: int, step: int) -> list[YearWindow]:
    """Lay out windows of years that begin every ``step`` years, as xsdba's `stack_periods` and `unstack_periods`.

    ``years`` has each time step's, ascending. Each window keeps its middle ``step`` years, the first also those before,
    the last also those after. Years that remain after the last whole window, which xsdba leaves out, are kept from a
    further window that ends with them. Windows without any time step, in a gap of years, are left out. Raises
    `DataError` if there are fewer years than a window has.
    """
    first, last = int(years[0]), int(years[-1]) + 1
    if last - first < window:  # of a period, the data may cover a part
        raise DataError(
            f"moving_yearly_window has windows of {window} years, and {first}-{last - 1} has {last - first}; expected "
            "data of as many years. Shorten the window, or give more years."
        )
    starts = list(range(first, last - window + 1, step))
    bounds = [first, *(start + (window + step) // 2 for start in starts[:-1]), starts[-1] + window]
    made = [(start, *kept) for start, kept in zip(starts, itertools.pairwise(bounds), strict=True)]
    if bounds[-1] < last:
        made.append((last - window, bounds[-1], last))
    steps = [YearWindow(*np.searchsorted(years, (start, start + window, *kept)).tolist()) for start, *kept in made]
    return [one for one in steps if one.first < one.last]


def spans_of(years: np.ndarray, windows: Mapping[str, int] | None) -> list[YearWindow]:
    """Return the windows of years, or all years where there are none."""
    return year_windows(years, **windows) if windows else [YearWindow(0, len(years), 0, len(years))]


class DayGroups(NamedTuple):
    """Time steps by day of year: the days that occur, ascending, and their time steps, ascending."""

    dayofyear: np.ndarray
    centres: list[np.ndarray]


def group_days(dayofyear: np.ndarray) -> DayGroups:
    """Group time steps by day of year."""
    dayofyear = np.asarray(dayofyear)
    counts = np.bincount(dayofyear)
    order = np.argsort(dayofyear.astype(np.int16), kind="stable").astype(np.int32)
    ends = np.cumsum(counts)
    days = np.flatnonzero(counts)
    return DayGroups(days, [order[ends[day] - counts[day] : ends[day]] for day in days])


def plan_windows(dayofyear: np.ndarray, window: int) -> WindowPlan:
    """Lay out centred windows over a series of days, by position as xsdba's rolling windows are.

    Raises `DataError` if the window is not an odd number from 1 to 127, or windows of one day of year overlap.
    """
    check_window(window)
    groups = group_days(dayofyear)
    centres, centre_start = joined(groups.centres)
    gaps = np.diff(centres)
    gaps[centre_start[1:-1] - 1] = window  # from one day of year to the next
    if gaps.size and gaps.min() < window:
        first = int(np.argmax(gaps < window))
        raise DataError(
            f"Windows of {window} days overlap around time steps {centres[first]} and {centres[first + 1]}, "
            "of the same day of year; the kernels need years of daily data. Use xsdba."
        )
    flips = _flips(groups.centres, len(dayofyear), window)
    return WindowPlan(window, groups.dayofyear, centres, centre_start, *joined(flips))


def plan_pool(plan: WindowPlan, n_times: int, members: int) -> WindowPlan:
    """Lay out a pool of members as one long series: each of ``n_times`` as in ``plan``, end to end.

    Between two members are as many places without data as half a window has, so that no window holds days of both
    (`joined_members`). Members come one after the other in each group.
    """

    def repeated(times: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        shifts = np.arange(members)[:, np.newaxis] * (n_times + plan.window // 2)
        return joined([(times[first:last] + shifts).ravel() for first, last in itertools.pairwise(starts)])

    return WindowPlan(
        plan.window, plan.dayofyear, *repeated(plan.centres, plan.centre_start), *repeated(plan.flips, plan.flip_start)
    )


def joined_members(values: np.ndarray, plan: WindowPlan) -> np.ndarray:
    """Join the members of (cell, member, time) into the long series that `plan_pool` lays out, (cell, time)."""
    n_cells, members, n_times = values.shape
    gap = plan.window // 2
    long = np.full((n_cells, members, n_times + gap), np.nan, dtype=values.dtype)
    long[:, :, :n_times] = values
    return np.ascontiguousarray(long.reshape(n_cells, -1)[:, : members * (n_times + gap) - gap])


def check_window(window: int) -> None:
    """Raise `DataError` unless the kernels can do windows of so many days."""
    if not (1 <= window <= LONGEST_WINDOW and window % 2):
        raise DataError(f"A window of {window} days; the kernels do odd windows of 1 to {LONGEST_WINDOW}. Use xsdba.")


def joined(parts: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Join time steps into one array, and say where each part begins and the last part ends."""
    starts = np.concatenate([[0], np.cumsum([part.size for part in parts])]).astype(np.int64)
    return np.concatenate(parts).astype(np.int32), starts


def _flips(centres_by_group: list[np.ndarray], n_times: int, window: int) -> list[np.ndarray]:
    half = window // 2
    # Windows reach over both ends of the series; the places beyond are cut off.
    member, previous = np.zeros((2, n_times + 2 * half), dtype=bool)
    windows, previous_windows = (sliding_window_view(one, window, writeable=True) for one in (member, previous))
    flips = []
    for centres in centres_by_group:
        member[:] = False
        windows[centres] = True
        flips.append(np.flatnonzero((member ^ previous)[half : half + n_times]))
        member, windows, previous, previous_windows = previous, previous_windows, member, windows
    return flips
