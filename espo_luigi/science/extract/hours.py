"""Days of hourly series, or of steps of any other part of a day: means, totals, minima and maxima."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import dask.array as da
import numpy as np
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.science.calendar import SECONDS_PER_DAY, TO_MIDPOINT, TimeAxis, day_of
from espo_luigi.science.extract.dataset import to_canonical_units
from espo_luigi.science.units import rate_of_totals
from espo_luigi.science.variables import VARIABLES, Variable, names_of, variable

# A month has no value if it lacks 11 of its days, or 5 in a row (WMO-No. 1203, 4.4); so has a day, in proportion.
_TOO_MANY, _TOO_MANY_IN_A_ROW = 11 / 30, 5 / 30
_SECOND = 1 / SECONDS_PER_DAY
_REDUCE: Mapping[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "mean": (np.mean, np.nanmean),
    "maximum": (np.max, np.nanmax),
    "minimum": (np.min, np.nanmin),
    "sum": (np.sum, np.nansum),
}


def steps_in_a_day(data: xr.DataArray) -> int:
    """Return how many steps a day has, by the usual distance of stamps.

    Raises `DataError` if that is no part of a day, or stamps are double or out of order.
    """
    between = np.diff(TimeAxis.of(data).days)
    if between.size and (between < _SECOND).any():
        at = int(np.flatnonzero(between < _SECOND)[0])
        stamps = data["time"].values[[at, at + 1]]
        raise DataError(f"{data.name}: {stamps[0]} is followed by {stamps[1]}; expected stamps in order, each once.")
    usual = float(np.median(between)) if between.size else 1.0
    steps = round(1 / usual)
    if steps < 2 or abs(steps * usual - 1) > 1e-3:
        raise DataError(f"{data.name} has steps of {24 * usual:.4g} hours; expected a part of a day, such as 1 or 3.")
    return steps


def offsets_of(day: str, lon: xr.DataArray, steps: int) -> np.ndarray:
    """Return how many days each cell's clock is ahead of UTC, with the dimensions of `lon`.

    `day` is UTC, UTC-05:00 or local; the local clock follows the longitude, to a whole step.
    """
    if day == "local":
        return np.round(((lon.values.astype(np.float64) + 180) % 360 - 180) / 360 * steps) / steps
    hours, minutes = (float(part) for part in (day.removeprefix("UTC") or "0:0").split(":"))
    ahead = (abs(hours) + minutes / 60) / 24
    return np.full(lon.shape, -ahead if "-" in day else ahead)


def days_of(
    data: xr.DataArray,
    *,
    day: str = "UTC",
    accumulation: str = "",
    periods: tuple[tuple[int, int], ...] = (),
    table: Mapping[str, Variable] = VARIABLES,
    read: Callable[[int, int], da.Array] | None = None,
    at_once: int = 0,
) -> xr.DataArray:
    """Return the daily series of a variable that is there by hours; lazy, in blocks of days.

    The statistic is that of the variable's `cell_methods` in the table: mean, maximum or minimum; of amounts (m,
    J m-2), the total. A step belongs to the day that holds the middle of its interval, or else its stamp. A day without
    11 of 30 of its steps, or 5 of 30 in a row, is NaN; a total, without any. `comment` tells how it is made.

    Parameters
    ----------
    data
        (time, y, x) by Dask, with `lon`, and `TO_MIDPOINT` where times have bounds. Made days have the table's units.
    day
        The zone of days: UTC, UTC-05:00, or local, which is by longitude.
    accumulation
        ``over_step``: amounts, fluxes and extremes are of the step that ends at the stamp. ``since_midnight``: amounts
        are since 00 UTC, whose stamp has the whole day before.
    periods
        First and last days, as numbers of `TimeAxis`; by default, all that steps belong to.
    read
        Returns the steps from the first to before the last, in place of `data`, which then only describes them.
    at_once
        How many steps make a block; by default those of a block of `data`.

    Raises
    ------
    DataError
        If steps are no parts of a day, double or out of order, an amount lacks its `accumulation`, or the variable's
        `cell_methods` are others.
    """
    name, row, steps, axis = str(data.name), variable(str(data.name), table), steps_in_a_day(data), TimeAxis.of(data)
    rate, method = rate_of_totals(str(data.attrs.get("units", "")), row.units), _method(name, row)
    if rate and not accumulation:
        raise DataError(
            f"{name} has units {data.attrs['units']!r}, an amount: give `accumulation: {{{name}: over_step}}` if it is "
            "that of the time before each stamp (ERA5), or `since_midnight` if that since 00 UTC (ERA5-Land)."
        )
    offsets = xr.DataArray(offsets_of(day, data["lon"], steps), dims=data["lon"].dims)
    offsets = offsets.broadcast_like(data[0].drop_vars(data.coords)).transpose(*data.dims[1:])
    since_midnight = bool(rate) and accumulation == "since_midnight"
    if since_midnight and (np.abs(offsets * steps - np.round(offsets * steps)) > 1e-6).any():
        raise DataError(f"{name} has {steps} stamps a day, none of them at midnight of {day}: give another `day`.")
    is_of_step = rate or method != "mean" or "flux" in (row.standard_name or data.attrs.get("standard_name", ""))
    if since_midnight or (accumulation and is_of_step and TO_MIDPOINT not in data.coords):
        middles = axis.days - 0.5 / steps
    else:
        middles = axis.days + (np.nan_to_num(data[TO_MIDPOINT].values) if TO_MIDPOINT in data.coords else 0)
    low, high = float(offsets.min()), float(offsets.max())
    ends = int(np.floor(middles[0] + low + _SECOND)), int(np.floor(middles[-1] + high + _SECOND))
    within = [(max(first, ends[0]), min(last, ends[1])) for first, last in periods] or [ends]
    days = np.concatenate([np.arange(first, last + 1) for first, last in within])
    statistic = "sum" if rate else method
    how = {"steps": steps, "statistic": "since_midnight" if since_midnight else statistic}
    clock = axis.days if since_midnight else middles
    by_cell = offsets.chunk(data[0].chunksizes).data
    of_a_block = max(1, (at_once or max(data.chunksizes["time"])) // steps)
    blocks = []
    for at in range(0, days.size, of_a_block):
        wanted = days[at : at + of_a_block]
        # One more step before: an amount since midnight may begin there.
        first = max(int(np.searchsorted(middles, wanted[0] - high - _SECOND)) - since_midnight, 0)
        last = int(np.searchsorted(middles, wanted[-1] + 1 - low - _SECOND))
        part = read(first, last) if read else data.variable.isel(time=slice(first, last)).data
        part = part.rechunk({0: -1})
        given = how | {"clock": clock[first:last], "days": wanted}
        shape = ((wanted.size,), *part.chunks[1:])
        blocks.append(da.map_blocks(_of_block, part, by_cell, chunks=shape, dtype=data.dtype, **given))
    coords = {key: coord for key, coord in data.coords.items() if "time" not in coord.dims}
    told = f"{statistic} of {steps} steps a day, day {day}{f', {accumulation}' if accumulation else ''}"
    attrs = {**data.attrs, **names_of(name, table), "comment": told} | ({"units": rate} if rate else {})
    time = xr.DataArray(TimeAxis(axis.calendar, days.astype(np.float64)).index, dims="time", attrs=data["time"].attrs)
    made = xr.DataArray(da.concatenate(blocks), {**coords, "time": time}, data.dims, name, attrs)
    return to_canonical_units(made, table=table)


def lacking(data: xr.DataArray, days: xr.DataArray, accumulation: str = "") -> str:
    """Return how many steps of these days the series lacks in all cells, and the first day, in words; "" if none.

    A total's stamp is at the end of its step. Days are those of UTC.
    """
    steps = steps_in_a_day(data)
    there = np.floor(TimeAxis.of(data).days - (0.5 / steps if accumulation else 0) + _SECOND)
    wanted = np.floor(TimeAxis.of(days).days)
    count = steps - (np.searchsorted(there, wanted, "right") - np.searchsorted(there, wanted))
    if not (count > 0).any():
        return ""
    first = day_of(days["time"].values[int(np.flatnonzero(count > 0)[0])])
    return f"{int(count.clip(0).sum())} of {steps * wanted.size} steps are missing, the first on {first}"


def _method(name: str, row: Variable) -> str:
    """The statistic of a variable's `cell_methods`; the mean if it has none."""
    found = re.search(r"time: (\w+)", row.cell_methods)
    method = found[1] if found else "mean"
    if method not in _REDUCE:
        raise DataError(f"{name} is a {method} ({row.cell_methods!r}), which is not made of hours; give it by day.")
    return method


def _of_block(
    block: np.ndarray, offsets: np.ndarray, *, clock: np.ndarray, days: np.ndarray, steps: int, statistic: str
) -> np.ndarray:
    """The days of a block (time, y, x), of cells whose clocks are ahead of UTC by `offsets` (y, x)."""
    made = np.full((days.size, *block.shape[1:]), np.nan, block.dtype)
    for offset in np.unique(offsets) if len(block) else ():
        cells = offsets == offset
        part = block.reshape(len(block), -1) if cells.all() else block[:, cells]
        if statistic == "since_midnight":
            made[:, cells] = _totals(part, clock, days - offset, steps)
            continue
        local = clock + offset + _SECOND
        firsts, lasts = np.searchsorted(local, [days, days + 1])
        for at, (first, last) in enumerate(zip(firsts, lasts, strict=True)):
            slots = np.floor((local[first:last] - days[at]) * steps).astype(int)
            made[at, cells] = _of_day(part[first:last], slots, steps, statistic)
    return made


def _of_day(values: np.ndarray, slots: np.ndarray, steps: int, statistic: str) -> Any:
    """The statistic of a day's steps (step, cell), which are those of `slots` among all of the day."""
    if not len(values):
        return np.nan
    reduce, reduce_known = _REDUCE[statistic]
    exact = {"dtype": np.float64} if statistic in ("mean", "sum") else {}
    made = reduce(values, axis=0, **exact)
    is_whole = len(values) == steps
    if statistic == "sum":
        return made if is_whole else np.nan
    # The numbers above are NaN where any step is. The sea has no values at all.
    again = np.flatnonzero(np.isnan(made)) if is_whole else np.arange(made.size)
    again = again[~np.isnan(values[:, again]).all(axis=0)]
    if again.size:
        some = values[:, again]
        missing = np.ones((steps, again.size), bool)
        missing[slots] = np.isnan(some)
        run, longest = np.zeros(again.size), np.zeros(again.size)
        for of_step in missing:
            run = (run + 1) * of_step
            longest = np.maximum(longest, run)
        lacks = (missing.sum(axis=0) >= np.ceil(steps * _TOO_MANY)) | (longest >= np.ceil(steps * _TOO_MANY_IN_A_ROW))
        made[again] = np.where(lacks, np.nan, reduce_known(some, axis=0, **exact))
    return made


def _totals(values: np.ndarray, stamps: np.ndarray, begin: np.ndarray, steps: int) -> np.ndarray:
    """The totals of days that begin at times in UTC, of amounts since 00 UTC (step, cell)."""

    def at(times: np.ndarray) -> np.ndarray:
        places = np.searchsorted(stamps, times - 0.25 / steps).clip(max=stamps.size - 1)
        found = np.abs(stamps[places] - times) < 0.25 / steps
        return np.where(found[:, None], values[places], np.nan).astype(np.float64)

    midnight = np.ceil(begin - _SECOND)
    if (midnight - begin < _SECOND).all():
        return at(begin + 1)
    return at(midnight) - at(begin) + at(begin + 1)
