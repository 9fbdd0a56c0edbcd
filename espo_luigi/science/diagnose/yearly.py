"""Sums of the years of daily series, and what follows from them: means, wet days, spells, transitions, correlations.

All of it is of data in memory, (time, cell), in the units of reports; see `in_display_units`. The
report's tables of a few cells (`summary`, `changes`) are here. The aspects of a climate, which resample years, and the
comparison with known futures build on this.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.science.chunks import join
from espo_luigi.science.units import as_shown, convert_to
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
SEASONS = ("DJF", "MAM", "JJA", "SON")
SPELL_DAYS = np.arange(1, 41)
# A change in per cent means nothing where the first value is below this share of a wet day (else of the mean).
LEAST_OF_WET_DAY, LEAST_OF_MEAN = 0.1, 0.01

Period = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Days:
    """The days of a time axis, in order of time."""

    year: np.ndarray
    month: np.ndarray

    @classmethod
    def of(cls, data: xr.Dataset | xr.DataArray) -> Days:
        """Return the days of a dataset or a variable."""
        index: Any = data.indexes["time"]
        return cls(np.asarray(index.year), np.asarray(index.month))

    @property
    def season(self) -> np.ndarray:
        """The place of each day's season in `SEASONS`."""
        return self.month % 12 // 3

    @property
    def years(self) -> np.ndarray:
        """The years that have days."""
        return np.unique(self.year)

    def between(self, period: Period) -> np.ndarray:
        """Return whether each day is in a period."""
        return (self.year >= period[0]) & (self.year <= period[1])

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Return the sums of each calendar year along the first dimension; NaN count as 0."""
        first = np.unique(self.year, return_index=True)[1]
        return np.add.reduceat(np.where(np.isnan(values), 0.0, values), first, axis=0)

    def means(self, values: np.ndarray) -> np.ndarray:
        """Return the means of each calendar year, without NaN; NaN for a year that has nothing else."""
        return ratio(self.sums(values), self.sums(~np.isnan(values) * 1.0))

    def by_season(self, period: Period) -> list[list[np.ndarray]]:
        """Return the places of each season's days in a period, year by year; empty where a year has none."""
        inside = np.flatnonzero(self.between(period))
        of_year = [inside[self.year[inside] == year] for year in range(period[0], period[1] + 1)]
        return [[days[self.season[days] == season] for days in of_year] for season in range(len(SEASONS))]


def ratio(total: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Return total / count, NaN for nothing."""
    return np.divide(total, count, out=np.full(np.shape(total), np.nan), where=count > 0)


def deviation(total: np.ndarray, squares: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Return the standard deviation (ddof 1) from the sums of values and of their squares."""
    with np.errstate(invalid="ignore", divide="ignore"):
        variance = np.where(count > 1, (squares - total**2 / count) / (count - 1), np.nan)
    return np.sqrt(np.maximum(variance, 0))


def correlation(*sums: np.ndarray) -> np.ndarray:
    """Return Pearson's correlation from the sums of x y, x, y, x², y², and the number of days; NaN of a constant."""
    both, x, y, x_squares, y_squares, count = sums
    with np.errstate(invalid="ignore", divide="ignore"):
        spread = (x_squares - x**2 / count) * (y_squares - y**2 / count)
        return np.where(spread > 0, (both - x * y / count) / np.sqrt(np.maximum(spread, 0)), np.nan)


def correlation_sums(x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
    """Return what `correlation` takes the sums of, day by day; 0 where a value is NaN."""
    known = ~np.isnan(x) & ~np.isnan(y)
    x, y = (np.where(known, values, 0.0) for values in (x, y))
    return [x * y, x, y, x * x, y * y, known * 1.0]


def ranked(x: np.ndarray, y: np.ndarray, days: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the ranks of two series among the common values of the chosen days, by cell, and NaN elsewhere.

    The correlation of the ranks is Spearman's. Ranks are about their middle, so that squares stay small.
    """
    from scipy.stats import rankdata

    known = days[:, None] & ~np.isnan(x) & ~np.isnan(y)
    middle = (known.sum(axis=0) + 1) / 2
    ranks = [rankdata(np.where(known, values, np.nan), axis=0, nan_policy="omit") - middle for values in (x, y)]
    return ranks[0], ranks[1]


def wet_and_dry(values: np.ndarray, least: float) -> tuple[np.ndarray, np.ndarray]:
    """Return which days are wet (`least` or more), and which are dry; a day without a value is neither."""
    there = ~np.isnan(values)
    return (values >= least) & there, (values < least) & there


def wet_after(before: np.ndarray, wet: np.ndarray, dry: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return which days with a value follow a day of `before`, and which of these are wet."""
    known = np.zeros_like(wet)
    known[1:] = before[:-1] & (wet | dry)[1:]
    return known, known & wet


def runs(inside: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the cell, the first day and the length of each run of true values along time."""
    steps = np.diff(np.pad(inside.astype(np.int8), ((1, 1), (0, 0))), axis=0).T
    cell, first = np.nonzero(steps == 1)
    return cell, first, np.nonzero(steps == -1)[1] - first


def drawn_years(random: np.random.Generator, years: int, together: int, times: int) -> np.ndarray:
    """Draw years with replacement, (draw, year): blocks of successive years; the first year comes after the last."""
    first = random.integers(years, size=(times, -(-years // together), 1))
    return ((first + np.arange(together)) % years).reshape(times, -1)[:, :years]


def in_order(names: Iterable[str], table: Mapping[str, Variable] = VARIABLES) -> list[str]:
    """Return variables in the table's order; those that it lacks come last, as given."""
    given = dict.fromkeys(names)
    return [*(name for name in table if name in given), *(name for name in given if name not in table)]


def display_units(name: str, table: Mapping[str, Variable] = VARIABLES) -> str:
    """Return a variable's units in reports; "" for those of its data."""
    return variable(name, table).shown_units


def wet_day(name: str, units: str = "", table: Mapping[str, Variable] = VARIABLES) -> float | None:
    """Return the value below which a day is dry, in these or in a report's units; None of a variable without dry days.

    It has six digits: conversion leaves 0.9999999999999999 mm d-1.
    """
    known, wanted = variable(name, table), units or display_units(name, table)
    if known.wet is None or not known.units or wanted == known.units:
        return known.wet
    given = xr.DataArray(known.wet, name=name, attrs={"units": known.units})
    return float(f"{float(convert_to(given, wanted)):.6g}")


def in_display_units(
    ds: xr.Dataset, names: Iterable[str] | None = None, *, table: Mapping[str, Variable] = VARIABLES
) -> xr.Dataset:
    """Return variables (by default all) in a report's units and the table's order; lazy.

    Units are those of `as_shown`. Each has a `long_name`.
    """
    shown = [name for name in in_order(map(str, ds.data_vars if names is None else names), table) if name in ds]
    made = {}
    for name in shown:
        words = {"long_name": variable(name, table).long_name or name}
        named = ds[name].assign_attrs({} if {"long_name", "standard_name"} & ds[name].attrs.keys() else words)
        made[name] = as_shown(named, variable(name, table))
    return ds.assign(made)[shown]


def of_differences(units: str) -> str:
    """Return the units of differences between values."""
    return "K" if units == "degC" else units


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
    coords = {"month": np.arange(1, 13), "quantile": QUANTILES, "year": everything.years, "days": SPELL_DAYS}
    return xr.Dataset({**made, **_wetness(inside, months, table), **_correlations(inside, months)}, coords)


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
    described = {
        name: _described(ds.compute(), period, chosen if name in years else None, table) for name, ds in sources.items()
    }
    joined: xr.Dataset = join(described.values(), "source", join="outer")
    text = " to ".join(f"{begin}-{end}" for begin, end in chosen)
    return joined.assign_coords(source=list(described)).assign_attrs(periods=text, period=f"{period[0]}-{period[1]}")


def _described(
    daily: xr.Dataset, period: Period, periods: tuple[Period, Period] | None, table: Mapping[str, Variable]
) -> xr.Dataset:
    made = summary(daily, period=period, table=table).drop_attrs(deep=False)
    changed = None if periods is None else changes(daily, periods, table)
    return made if changed is None else made.merge(changed, join="outer", compat="no_conflicts")


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
    """Linear (type 7) quantiles of each cell, averaged over the cells; NaN are left out."""
    if not len(values):
        return np.full(len(levels), np.nan)
    function = np.nanquantile if np.isnan(values).any() else np.quantile
    return np.nanmean(function(values, levels, axis=0), axis=-1)


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


def _correlations(ds: xr.Dataset, months: np.ndarray) -> dict[str, Any]:
    made = {}
    for pair in (pair for pair in PAIRS if set(pair) <= set(ds.data_vars)):
        x, y = (ds[name].transpose("time", "cell").values for name in pair)
        by_month = [_spearman(x, y, months == month) for month in range(1, 13)]
        made[f"corr_{'_'.join(pair)}"] = "month", np.array(by_month)
    return made


def _spell_shares(inside: np.ndarray) -> np.ndarray:
    """The share of spells that last so many days or more, of all cells."""
    _, _, lengths = runs(inside)
    if not lengths.size:
        return np.full(len(SPELL_DAYS), np.nan)
    return np.array([(lengths >= days).mean() for days in SPELL_DAYS])


def _spearman(x: np.ndarray, y: np.ndarray, days: np.ndarray) -> float:
    """Spearman's correlation of each cell over some days, averaged."""
    sums = correlation_sums(*ranked(x[days], y[days], np.ones(days.sum(), bool)))
    cells = correlation(*(terms.sum(axis=0) for terms in sums))
    return float(np.nanmean(cells)) if np.isfinite(cells).any() else np.nan
