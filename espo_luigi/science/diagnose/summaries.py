"""Summaries of the daily series of a few cells, which the report's figures draw, and changes between two periods.

All of it is of data in memory, (time, cell), in the units of reports (`display.in_display_units`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.science.chunks import join
from espo_luigi.science.diagnose.statistics import (
    SEASONS,
    Days,
    Period,
    quantiles,
    rank_correlation,
    runs,
    wet_after,
    wet_and_dry,
)
from espo_luigi.science.display import of_differences, wet_day
from espo_luigi.science.variables import VARIABLES, Variable, variable

# Pairs of variables whose correlation is summarised by month, where both are there.
PAIRS = (
    ("tasmax", "pr"),
    ("tas", "pr"),
    ("tasmax", "hurs"),
    ("tas", "hurs"),
    ("hurs", "pr"),
    ("rsds", "pr"),
    ("sfcWind", "pr"),
    ("hurs", "rsds"),
    ("tas", "rsds"),
)
# More of them where the tails are.
_TAIL = (0.0001, 0.0003, 0.001, 0.003)
QUANTILES = np.array([*_TAIL, *np.arange(1, 100) / 100, *(1 - tail for tail in reversed(_TAIL))])
CHANGE_QUANTILES = np.array([0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99])
SPELL_DAYS = np.arange(1, 41)
# A change in per cent means nothing where the first value is below this share of a wet day (else of the mean).
LEAST_OF_WET_DAY, LEAST_OF_MEAN = 0.1, 0.01


def periods_of_change(years: Iterable[int], wanted: tuple[Period, Period]) -> tuple[Period, Period]:
    """Return the two periods to compare: those wanted if all of their years are there, else the longest two.

    These have equal length, the first year and the last, and no gap.

    Raises
    ------
    DataError
        If there are less than two years.
    """
    there = np.unique(list(years))
    if all(np.isin(np.arange(first, last + 1), there).all() for first, last in wanted):
        return wanted
    stretches = np.split(there, np.flatnonzero(np.diff(there) > 1) + 1)
    whole = len(stretches) == 1
    length = len(there) // 2 if whole else min(len(stretches[0]), len(stretches[-1]))
    if length < 1:
        raise DataError(f"The years {', '.join(map(str, there))} are no two periods: expected two years at least.")
    first, last = int(there[0]), int(there[-1])
    return (first, first + length - 1), (last - length + 1, last)


def summary(daily: xr.Dataset, *, period: Period, table: Mapping[str, Variable] = VARIABLES) -> xr.Dataset:
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
        (quantile) and `{name}_yearly` (year). Of the first variable with dry days `wet_day_frequency` (month), whose
        attributes name the variable and the least value of a wet day; `wet_wet` and `dry_wet` (shares of days that are
        wet or dry and followed by a wet one), `wet_spell` and `dry_spell` (days): the share of spells that last so long
        or longer. `corr_{name}_{other}` (month) of each of `PAIRS`: Spearman's correlation of each cell, averaged.
    """
    everything = Days.of(daily)
    inside = daily.sel(time=everything.between(period))
    if not inside.sizes["time"]:
        raise DataError(f"No day in {period[0]}-{period[1]}.")
    months = Days.of(inside).month
    made: dict[str, Any] = {}
    for name, da in inside.data_vars.items():
        values = da.transpose("time", "cell").values
        made[f"{name}_cycle"] = "month", np.array([np.nanmean(values[months == m]) for m in range(1, 13)]), da.attrs
        made[f"{name}_quantile"] = "quantile", _quantiles(values, QUANTILES), da.attrs
    for name, da in daily.data_vars.items():
        means = da.transpose("time", "cell").mean("cell").values
        made[f"{name}_yearly"] = "year", everything.means(means), da.attrs
    for pair in (pair for pair in PAIRS if set(pair) <= set(inside.data_vars)):
        both = np.stack([inside[name].transpose("cell", "time").values for name in pair])
        by_month = (rank_correlation(both[..., months == month]) for month in range(1, 13))
        monthly = [np.nanmean(cells) if np.isfinite(cells).any() else np.nan for cells in by_month]
        made[f"corr_{'_'.join(pair)}"] = "month", np.array(monthly)
    coords = {"month": np.arange(1, 13), "quantile": QUANTILES, "year": everything.years, "days": SPELL_DAYS}
    return xr.Dataset(made | _wetness(inside, months, table), coords)


def compare(
    sources: Mapping[str, xr.Dataset],
    *,
    period: Period,
    periods: tuple[Period, Period],
    table: Mapping[str, Variable] = VARIABLES,
) -> xr.Dataset:
    """Return the `summary` of each source, along `source`, and the `changes` of those whose years allow it.

    Sources are lazy or not, in display units; a single source at a time is in memory. The attribute `periods` has
    the years between which changes are: those asked for, or the longest two that all but the reference have.

    Raises
    ------
    DataError
        If a source has no day in the period.
    """
    years = {name: set(Days.of(ds).years.tolist()) for name, ds in sources.items() if name != "reference"}
    chosen = periods_of_change(set.intersection(*years.values()), periods)
    described = {}
    for name, ds in sources.items():
        daily = ds.compute()
        described[name] = summary(daily, period=period, table=table).drop_attrs(deep=False)
        if name in years:
            changed = changes(daily, chosen, table)
            described[name] = described[name].merge(changed, join="outer", compat="no_conflicts")
    joined: xr.Dataset = join(described.values(), "source", join="outer")
    text = " to ".join(f"{begin}-{end}" for begin, end in chosen)
    return joined.assign_coords(source=list(described)).assign_attrs(periods=text, period=f"{period[0]}-{period[1]}")


def changes(daily: xr.Dataset, periods: tuple[Period, Period], table: Mapping[str, Variable] = VARIABLES) -> xr.Dataset:
    """Return how quantiles of each season change between two periods, averaged over the cells.

    `{name}_change` (season, change_quantile), in the variable's units. Of a variable whose factors are multiplied, and
    that is no difference of temperatures, it is in per cent of the first period's quantile (averages over the cells
    both), and NaN where that is below a tenth of a wet day (a hundredth of the quantiles' mean, without dry days).
    """
    days = Days.of(daily)
    made: dict[str, Any] = {}
    for name, da in daily.data_vars.items():
        values = da.transpose("time", "cell").values
        before, after = (
            np.stack(
                [
                    _quantiles(values[days.between(period) & (days.season == season)], CHANGE_QUANTILES)
                    for season in range(len(SEASONS))
                ]
            )
            for period in periods
        )
        made[f"{name}_change"] = ("season", "change_quantile"), *_change(before, after, da, table)
    return xr.Dataset(made, {"season": list(SEASONS), "change_quantile": CHANGE_QUANTILES})


def _change(
    before: np.ndarray, after: np.ndarray, da: xr.DataArray, table: Mapping[str, Variable]
) -> tuple[np.ndarray, Mapping[Any, Any]]:
    name, units = str(da.name), str(da.attrs.get("units", ""))
    if variable(name, table).kind == "+" or variable(name, table).difference:
        return after - before, {**da.attrs, "units": of_differences(units)}
    wet = wet_day(name, units, table)
    least = LEAST_OF_MEAN * np.nanmean(before) if wet is None else LEAST_OF_WET_DAY * wet
    share = np.full_like(before, np.nan)
    np.divide(after - before, before, out=share, where=before >= least)
    return 100 * share, {**da.attrs, "units": "%"}


def _quantiles(values: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Quantiles of each cell, averaged over the cells; NaN are left out."""
    if not len(values):
        return np.full(len(levels), np.nan)
    return np.nanmean(quantiles(values.T, levels), axis=0)


def _wetness(ds: xr.Dataset, months: np.ndarray, table: Mapping[str, Variable]) -> dict[str, Any]:
    """Statistics of wet days of the first variable that has dry days, if any."""
    units = {str(name): str(da.attrs.get("units", "")) for name, da in ds.data_vars.items()}
    limits = {name: least for name in units if (least := wet_day(name, units[name], table)) is not None}
    if not limits:
        return {}
    name, least = next(iter(limits.items()))
    wet, dry = wet_and_dry(ds[name].transpose("time", "cell").values, least)
    by_month = [months == month for month in range(1, 13)]
    after_wet, wet_wet = wet_after(wet, wet, dry)
    after_dry, dry_wet = wet_after(dry, wet, dry)
    pairs = after_wet.sum() + after_dry.sum()
    often = np.array([wet[days].sum() / (wet | dry)[days].sum() for days in by_month])
    return {
        "wet_day_frequency": ("month", often, {"variable": name, "least": least, "units_of_least": units[name]}),
        "wet_wet": ((), wet_wet.sum() / pairs),
        "dry_wet": ((), dry_wet.sum() / pairs),
        "wet_spell": ("days", _spell_shares(wet)),
        "dry_spell": ("days", _spell_shares(dry)),
    }


def _spell_shares(inside: np.ndarray) -> np.ndarray:
    """The share of spells that last so many days or more, of all cells."""
    _, _, lengths = runs(inside)
    if not lengths.size:
        return np.full(len(SPELL_DAYS), np.nan)
    return np.array([(lengths >= days).mean() for days in SPELL_DAYS])
