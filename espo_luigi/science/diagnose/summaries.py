"""What daily series of a few cells are like, as small tables: cycles, quantiles, spells, and changes between periods.

All of it is of data in memory, (time, cell), in degrees Celsius and millimetres a day; see `in_display_units`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.science.units import convert_to, is_difference

DISPLAY_UNITS = {"tasmax": "degC", "tasmin": "degC", "pr": "mm d-1"}
WET_DAY = 1.0
# More of them where the tails are.
_TAIL = (0.0001, 0.0003, 0.001, 0.003)
QUANTILES = np.array([*_TAIL, *np.arange(1, 100) / 100, *(1 - tail for tail in reversed(_TAIL))])
CHANGE_QUANTILES = np.array([0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99])
SEASONS = ("DJF", "MAM", "JJA", "SON")
SPELL_DAYS = np.arange(1, 41)
# A change in per cent of less than this at the beginning means nothing.
LEAST_FOR_PER_CENT = 0.1

Period = tuple[int, int]


def in_display_units(ds: xr.Dataset) -> xr.Dataset:
    """Return the variables that summaries are about, in degC and mm d-1; lazy; differences of temperature stay."""
    found = {name: ds[name] for name in DISPLAY_UNITS if name in ds}
    return ds.assign(
        {name: convert_to(da, DISPLAY_UNITS[name]) for name, da in found.items() if not is_difference(da)}
    )[list(found)]


def periods_of_change(first: int, last: int, wanted: tuple[Period, Period]) -> tuple[Period, Period]:
    """Return the two periods to compare: those wanted if the years reach there, else the longest two of equal length.

    Raises
    ------
    DataError
        If there are less than two years.
    """
    if first <= wanted[0][0] and last >= wanted[1][1]:
        return wanted
    length = (last - first + 1) // 2
    if length < 1:
        raise DataError(f"The years {first} to {last} are no two periods: expected two years at least.")
    return (first, first + length - 1), (last - length + 1, last)


def summary(daily: xr.Dataset, *, period: Period) -> xr.Dataset:
    """Describe series over a period, and their means of all years.

    Parameters
    ----------
    daily
        Variables on (time, cell), in memory, in display units, of any calendar.
    period
        First and last year of all but the yearly means.

    Returns
    -------
    xr.Dataset
        Of each variable, over the days and averaged over the cells, `{name}_cycle` (month), `{name}_quantile`
        (quantile) and `{name}_yearly` (year). Of precipitation `wet_day_frequency` (month), `wet_wet` and `dry_wet`
        (shares of days that are wet or dry and followed by a wet one), `wet_spell` and `dry_spell` (days): the share of
        spells that last so long or longer. `corr_tasmax_pr` (month): Spearman's correlation of each cell, averaged.
    """
    inside = daily.sel(time=_between(daily["time"].dt.year.values, period))
    if not inside.sizes["time"]:
        raise DataError(f"No day in {period[0]}-{period[1]}.")
    months = inside["time"].dt.month.values
    found: dict[str, Any] = {}
    for name, da in inside.data_vars.items():
        values = da.transpose("time", "cell").values
        found[f"{name}_cycle"] = "month", np.array([np.nanmean(values[months == m]) for m in range(1, 13)]), da.attrs
        found[f"{name}_quantile"] = "quantile", _quantiles(values, QUANTILES), da.attrs
    years, yearly = _yearly(daily)
    found |= {f"{name}_yearly": ("year", values, daily[name].attrs) for name, values in yearly.items()}
    coords = {"month": np.arange(1, 13), "quantile": QUANTILES, "year": years, "days": SPELL_DAYS}
    return xr.Dataset({**found, **_wetness(inside, months)}, coords)


def compare(sources: Mapping[str, xr.Dataset], *, period: Period, periods: tuple[Period, Period]) -> xr.Dataset:
    """Return the `summary` of each source, along `source`, and the `changes` of those whose years allow it.

    Sources are lazy or not, in display units; a single source at a time is in memory. The attribute `periods` has
    the years between which changes are: those asked for, or the longest two that all but the reference have.

    Raises
    ------
    DataError
        If a source has no day in the period.
    """
    spans = {name: _span(ds) for name, ds in sources.items() if name != "reference"}
    first, last = max(span[0] for span in spans.values()), min(span[1] for span in spans.values())
    chosen = periods_of_change(first, last, periods)
    found = {name: _described(ds.compute(), period, chosen if name in spans else None) for name, ds in sources.items()}
    joined = xr.concat(list(found.values()), dim="source", join="outer", combine_attrs="override", coords="minimal")
    text = " to ".join(f"{begin}-{end}" for begin, end in chosen)
    return joined.assign_coords(source=list(found)).assign_attrs(periods=text, period=f"{period[0]}-{period[1]}")


def _described(daily: xr.Dataset, period: Period, periods: tuple[Period, Period] | None) -> xr.Dataset:
    found = summary(daily, period=period).drop_attrs(deep=False)
    return found if periods is None else found.merge(changes(daily, periods))


def _span(ds: xr.Dataset) -> Period:
    return int(ds["time"].dt.year[0]), int(ds["time"].dt.year[-1])


def changes(daily: xr.Dataset, periods: tuple[Period, Period]) -> xr.Dataset:
    """Return how quantiles of each season change between two periods, averaged over the cells.

    `{name}_change` (season, change_quantile), in the variable's units; of precipitation in per cent of the first
    period's quantile (averages over the cells both), NaN where that is below 0.1 mm d-1.
    """
    season = np.array([month % 12 // 3 for month in daily["time"].dt.month.values])
    year = daily["time"].dt.year.values
    found: dict[str, Any] = {}
    for name, da in daily.data_vars.items():
        values = da.transpose("time", "cell").values
        before, after = (
            np.stack(
                [_quantiles(values[_between(year, period) & (season == one)], CHANGE_QUANTILES) for one in range(4)]
            )
            for period in periods
        )
        found[f"{name}_change"] = ("season", "change_quantile"), *_change(before, after, da)
    return xr.Dataset(found, {"season": list(SEASONS), "change_quantile": CHANGE_QUANTILES})


def _change(before: np.ndarray, after: np.ndarray, da: xr.DataArray) -> tuple[np.ndarray, Mapping[Any, Any]]:
    if da.attrs.get("units") != DISPLAY_UNITS["pr"]:
        return after - before, {**da.attrs, "units": "K"}
    share = np.full_like(before, np.nan)
    np.divide(after - before, before, out=share, where=before >= LEAST_FOR_PER_CENT)
    return 100 * share, {**da.attrs, "units": "%"}


def _between(year: np.ndarray, period: Period) -> np.ndarray:
    return (year >= period[0]) & (year <= period[1])


def _quantiles(values: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Linear (type 7) quantiles of each cell, averaged over the cells; NaN are left out."""
    if not len(values):
        return np.full(len(levels), np.nan)
    function = np.nanquantile if np.isnan(values).any() else np.quantile
    return np.nanmean(function(values, levels, axis=0), axis=-1)


def _yearly(daily: xr.Dataset) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    years, first = np.unique(daily["time"].dt.year.values, return_index=True)
    found = {}
    for name, da in daily.data_vars.items():
        cells = da.transpose("time", "cell").mean("cell").values
        there = ~np.isnan(cells)
        sums, counts = np.add.reduceat(np.where(there, cells, 0), first), np.add.reduceat(there.astype(int), first)
        found[str(name)] = np.divide(sums, counts, out=np.full(len(years), np.nan), where=counts > 0)
    return years, found


def _wetness(ds: xr.Dataset, months: np.ndarray) -> dict[str, Any]:
    if "pr" not in ds:
        return {}
    pr = ds["pr"].transpose("time", "cell").values
    wet, there = pr >= WET_DAY, ~np.isnan(pr)
    pairs = there[1:] & there[:-1]
    by_month = [months == month for month in range(1, 13)]
    found: dict[str, Any] = {
        "wet_day_frequency": ("month", np.array([wet[one].sum() / there[one].sum() for one in by_month])),
        "wet_wet": ((), (wet[:-1] & wet[1:])[pairs].mean()),
        "dry_wet": ((), (~wet[:-1] & wet[1:])[pairs].mean()),
        "wet_spell": ("days", _spell_shares(wet & there)),
        "dry_spell": ("days", _spell_shares(~wet & there)),
    }
    if "tasmax" in ds:
        tasmax = ds["tasmax"].transpose("time", "cell").values
        found["corr_tasmax_pr"] = "month", np.array([_spearman(tasmax[one], pr[one]) for one in by_month])
    return found


def _spell_shares(inside: np.ndarray) -> np.ndarray:
    """The share of spells that last so many days or more, of all cells."""
    lengths = np.concatenate(list(_lengths(inside)) or [np.array([], int)])
    if not lengths.size:
        return np.full(len(SPELL_DAYS), np.nan)
    return np.array([(lengths >= days).mean() for days in SPELL_DAYS])


def _lengths(inside: np.ndarray) -> Iterator[np.ndarray]:
    edge = np.zeros((1, inside.shape[1]), np.int8)
    steps = np.diff(np.concatenate([edge, inside.astype(np.int8), edge]), axis=0)
    for cell in steps.T:
        yield np.flatnonzero(cell == -1) - np.flatnonzero(cell == 1)


def _spearman(first: np.ndarray, second: np.ndarray) -> float:
    """Spearman's correlation over common days, of each cell, averaged."""
    from scipy.stats import rankdata

    found = []
    for one, other in zip(first.T, second.T, strict=True):
        common = ~(np.isnan(one) | np.isnan(other))
        if common.sum() > 1:
            found.append(np.corrcoef(rankdata(one[common]), rankdata(other[common]))[0, 1])
    return float(np.nanmean(found)) if found else np.nan
