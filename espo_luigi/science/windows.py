"""Windows around each day of year: which time steps they hold, and how one day's window becomes the next one's."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from espo_luigi.errors import DataError

LONGEST_WINDOW = 127


class WindowPlan(NamedTuple):
    """Which time steps belong to which day of year, and how one day's window becomes the next one's.

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


def plan_windows(dayofyear: np.ndarray, window: int) -> WindowPlan:
    """Lay out centred windows over a series of days, by position as xsdba's rolling windows are.

    Raises
    ------
    DataError
        If the window is not an odd number from 1 to 127, or windows of one day of year overlap.
    """
    dayofyear = np.asarray(dayofyear)
    if not (1 <= window <= LONGEST_WINDOW and window % 2):
        raise DataError(f"A window of {window} days; the kernels do odd windows of 1 to {LONGEST_WINDOW}. Use xsdba.")
    groups, group_of_time = np.unique(dayofyear, return_inverse=True)
    centres = np.argsort(group_of_time, kind="stable").astype(np.int32)
    centre_start = np.searchsorted(group_of_time[centres], np.arange(groups.size + 1)).astype(np.int64)
    flips = _flips(np.split(centres, centre_start[1:-1]), dayofyear.size, window)
    flip_start = np.concatenate([[0], np.cumsum([part.size for part in flips])]).astype(np.int64)
    joined = np.concatenate(flips) if flips else np.empty(0)
    return WindowPlan(window, groups.astype(np.int64), centres, centre_start, joined.astype(np.int32), flip_start)


def _flips(centres_by_group: list[np.ndarray], n_times: int, window: int) -> list[np.ndarray]:
    reach = np.arange(-(window // 2), window // 2 + 1)
    previous = np.zeros(n_times, dtype=bool)
    flips = []
    for centres in centres_by_group:
        if centres.size > 1 and np.diff(centres).min() < window:
            raise DataError(
                f"Windows of {window} days overlap around time steps {centres[:3]}, …, of the same day of year; "
                "the kernels need years of daily data. Use xsdba."
            )
        times = (centres[:, np.newaxis] + reach).ravel()
        member = np.zeros(n_times, dtype=bool)
        member[times[(times >= 0) & (times < n_times)]] = True
        flips.append(np.flatnonzero(member ^ previous))
        previous = member
    return flips
