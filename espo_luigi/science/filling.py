"""Gaps of daily series: missing days inserted as NaN, and NaN filled from other days."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import dask.array
import numpy as np
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.science.calendar import SECONDS_PER_DAY, TimeAxis, day_of
from espo_luigi.science.choices import FILLING_OF_V2, Filling
from espo_luigi.science.chunks import rechunk_variable

# A global attribute: the days that no file had, as YYYY-MM-DD, joined by commas.
INSERTED_DAYS = "espo_luigi_inserted_days"


def fill_in_time(ds: xr.Dataset, *, how: Mapping[str, Filling] = FILLING_OF_V2) -> xr.Dataset:
    """Fill NaN of each cell from its other days; cells without any data stay NaN; lazy on dask.

    Gaps between days with data are interpolated linearly ("forward", "both") or become 0 ("zero"). After the last day
    with data, "forward" and "both" repeat it; before the first day, "both" repeats that day and "forward" leaves NaN.
    Units, dtypes, attributes and other variables stay. Blocks of the result hold all of time.

    Parameters
    ----------
    ds
        Variables with `time`, in order, and any other dimensions; any calendar.
    how
        The filling of each variable; variables that `ds` lacks are ignored.

    Raises
    ------
    DataError
        If times are not in order.
    """
    days = TimeAxis.of(ds).days
    _check_order(days, ds)
    # xarray's `interpolate_na` counts nanoseconds, which decides the last bit.
    nanoseconds = (days - days[:1]) * (SECONDS_PER_DAY * 1e9)
    return ds.assign({name: _filled(ds[name].variable, one, nanoseconds) for name, one in how.items() if name in ds})


def insert_days(ds: xr.Dataset, *, days: Sequence[str]) -> xr.Dataset:
    """Insert days that a daily series lacks, as NaN; lazy. The same dataset if it lacks none.

    The attribute `espo_luigi_inserted_days` lists the inserted days. Those of `days` that the series has, or that lie
    outside of it, are left alone.

    Parameters
    ----------
    ds
        Variables with or without `time`, in order, at the same hour each day; any calendar. Blocks keep their lengths.
    days
        The days that may be missing, as YYYY-MM-DD in the calendar of the series.

    Raises
    ------
    DataError
        If another day is missing, a day is double or out of order, or the calendar lacks one of `days`.
    """
    axis = TimeAxis.of(ds)
    _check_order(present := np.floor(axis.days).astype(np.int64), ds)
    whole = np.arange(present[0], present[-1] + 1) if present.size else present
    missing = np.setdiff1d(whole, present)
    if not missing.size:
        return ds
    unexpected = np.setdiff1d(missing, [axis.number(day) for day in days])
    if unexpected.size:
        raise DataError(
            f"the series lacks {unexpected.size} days, the first is {_listed(unexpected[:1], axis.calendar)}; expected "
            f"all days but {', '.join(days) or 'none'}. Correct or exclude the data."
        )
    found = ds.assign_coords(time=present).reindex(time=whole)
    # Dask makes blocks of other lengths, the last longer than the first: stores do not take these.
    first = {name: sizes["time"][0] for name, da in ds.data_vars.items() if "time" in (sizes := da.variable.chunksizes)}
    cut = {name: rechunk_variable(found[name].variable, {"time": size}) for name, size in first.items()}
    index = TimeAxis(axis.calendar, whole + axis.days[0] % 1).index
    dated = found.assign(cut).assign_coords(time=xr.Variable("time", index, ds["time"].attrs, ds["time"].encoding))
    return dated.assign_attrs({INSERTED_DAYS: _listed(missing, axis.calendar)})


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
