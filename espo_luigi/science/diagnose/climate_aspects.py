"""Aspects of a climate that a reviewer asks about: means, tails, spells, persistence, variability, dependence.

An aspect follows from sums of single years, so that years can be resampled, which tells the noise of the years at hand.
All of it is of data in memory, (time, cell), in the units of reports (`display.in_display_units`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import xarray as xr

from espo_luigi.science.chunks import join
from espo_luigi.science.derivations import daily_temperature_range
from espo_luigi.science.diagnose import statistics
from espo_luigi.science.diagnose.properties import quiet
from espo_luigi.science.diagnose.statistics import SEASONS, Days, Period, correlation, deviation, ratio
from espo_luigi.science.diagnose.summaries import PAIRS
from espo_luigi.science.display import in_order, of_differences, wet_day
from espo_luigi.science.units import convert_to
from espo_luigi.science.variables import VARIABLES, Variable, variable

Sums = list[np.ndarray]
# The least value of a wet day, and what sets the names of a variable's aspects apart from those of the table's first.
_Wet = tuple[float, str, str]

# A hot day is above this quantile of the reference's days, a heat wave so many hot days or more.
WARM_QUANTILE, HEAT_WAVE_DAYS = 0.95, 3
LOW, HIGH = 0.05, 0.95
# Years of a block, for the variability between years: their order may matter.
YEARS_TOGETHER = 3
_PAIRS = (*PAIRS[:1], ("dtr", "pr"), ("tasmax", "tasmin"), *PAIRS[1:])
_TWO_SEASONS = ("DJF", "JJA")
SOURCES = ("reference", "raw", "adjusted")
# Variables that texts do not call by their short names.
_WORDS = {"pr": "precipitation", "dtr": "daily range"}
# xclim's sums of days need precipitation in these units.
_RAIN = "mm d-1"
# The source that each variable adjusted by itself makes, to compare with variables that are adjusted together.
USUAL = "DQM"


@dataclass(frozen=True, eq=False)
class Series:
    """A source's days at the cells, and at a neighbour of each; and quantiles of the reference's days."""

    daily: xr.Dataset
    beside: xr.Dataset
    limits: xr.Dataset
    days: Days

    def values(self, name: str, *, beside: bool = False) -> np.ndarray:
        """Return a variable's values, (time, cell)."""
        return np.asarray((self.beside if beside else self.daily)[name].transpose("time", "cell").values, float)

    def in_season(self, season: str) -> np.ndarray:
        """Return which days are in a season."""
        return self.days.season == SEASONS.index(season)

    def counted(self, values: np.ndarray, known: np.ndarray) -> Sums:
        """Return the yearly sums of values, and the numbers of days that are known."""
        return [self.days.sums(values * 1.0), self.days.sums(known * 1.0)]


@dataclass(frozen=True, eq=False)
class Aspect:
    """A number about a cell's series: the sums of its years, and how the number follows from sums over years.

    `units` is "" for those of the data. `calibrated` has sets of variables: adjusting all variables of a set makes the
    aspect right by construction.
    """

    name: str
    long_name: str
    units: str
    needs: tuple[str, ...]
    sums: Callable[[Series], Sums]
    number: Callable[..., np.ndarray] = ratio
    calibrated: tuple[frozenset[str], ...] = ()
    years_together: int = 1

    def is_calibrated(self, adjusted: Collection[str]) -> bool:
        """Return whether adjusting these variables makes it right by construction."""
        return any(needed <= set(adjusted) for needed in self.calibrated)


def _mean(name: str, season: str, series: Series) -> Sums:
    values = np.where(series.in_season(season)[:, None], series.values(name), np.nan)
    return series.counted(values, ~np.isnan(values))


def _beyond(name: str, level: float, wet: float | None, series: Series) -> Sums:
    """Days beyond the reference's quantile, those equal to it as half days; wet days only, where some are dry."""
    values, limit = series.values(name), series.limits[name].sel(quantile=level).values
    limit = limit if wet is None else np.maximum(limit, wet)
    beyond = (values < limit if level < 0.5 else values > limit) + (values == limit) / 2
    return series.counted(100 * beyond, ~np.isnan(values))


def _wet_days(name: str, least: float, series: Series) -> Sums:
    wet, dry = statistics.wet_and_dry(series.values(name), least)
    return series.counted(100 * wet, wet | dry)


def _spell(kind: int, name: str, least: float, series: Series) -> Sums:
    """The days of the wet (0) or dry (1) spells that begin in a year, and how many those are."""
    inside = statistics.wet_and_dry(series.values(name), least)[kind]
    cell, first, length = statistics.runs(inside)
    lasting, begun = np.zeros(inside.shape), np.zeros(inside.shape)
    lasting[first, cell], begun[first, cell] = length, 1
    return series.counted(lasting, begun)


def _transition(kind: int, name: str, least: float, series: Series) -> Sums:
    """The wet days after a wet (0) or dry (1) day, and all days that follow such a day."""
    both = statistics.wet_and_dry(series.values(name), least)
    known, wet = statistics.wet_after(both[kind], *both)
    return series.counted(wet, known)


def _lag1(name: str, season: str, series: Series) -> Sums:
    """The autocorrelation within the season of each year; December belongs to the next year's winter."""
    values, inside, days = series.values(name), series.in_season(season), series.days
    of_season = days.year + ((days.month == 12) & (season == "DJF"))
    lagged = np.full((len(days.years), values.shape[1]), np.nan)
    for row, year in enumerate(days.years):
        chosen = values[inside & (of_season == year)]
        if len(chosen) > 1:
            away = chosen - chosen.mean(axis=0)
            with np.errstate(invalid="ignore", divide="ignore"):
                lagged[row] = (away[1:] * away[:-1]).sum(axis=0) / (away**2).sum(axis=0)
    return _of_years(lagged)


def _yearly(name: str, series: Series) -> Sums:
    mean = series.days.means(series.values(name))
    return [np.nan_to_num(mean), *_of_years(mean**2)]


def _of_years(values: np.ndarray) -> Sums:
    """Sums and counts of yearly values, for the mean over the years that have a value."""
    return [np.nan_to_num(values), ~np.isnan(values) * 1.0]


def _correlation(first: str, second: str, season: str, dry: Mapping[str, float], series: Series) -> Sums:
    """Sums of ranks in a season: their correlation is Spearman's; `second` is "" for the neighbour's `first`.

    Values below those of `dry` have one rank, since those that an adjustment gives to dry days mean nothing.
    """
    inside = series.in_season(season)
    both = {first: series.values(first), second: series.values(second or first, beside=not second)}
    alike = (np.where(values < dry.get(name, -np.inf), 0.0, values)[inside] for name, values in both.items())
    made = []
    for terms in statistics.rank_terms(*alike):
        whole = np.zeros((len(inside), terms.shape[1]))
        whole[inside] = terms
        made.append(series.days.sums(whole))
    return made


def _of_spells(inside: np.ndarray, least_days: int, combine: np.ufunc, series: Series) -> Sums:
    """What `combine` makes of the lengths of each year's spells of so many days or more; a spell ends with its year."""
    made = np.zeros((len(series.days.years), inside.shape[1]))
    for row, year in zip(made, series.days.years, strict=True):
        cell, _, length = statistics.runs(inside[series.days.year == year])
        long = length >= least_days
        combine.at(row, cell[long], length[long])
    return _of_years(made)


def _longest(kind: int, name: str, least: float, series: Series) -> Sums:
    return _of_spells(statistics.wet_and_dry(series.values(name), least)[kind], 1, np.maximum, series)


def _heat_waves(series: Series) -> Sums:
    hot = series.values("tasmax") > series.limits["tasmax"].sel(quantile=WARM_QUANTILE).values
    return _of_spells(hot, HEAT_WAVE_DAYS, np.add, series)


def _of_xclim(index: Callable[[Any, Series], xr.DataArray], series: Series) -> Sums:
    """The values of an index of xclim, which has a number for each year."""
    from xclim import indices

    with quiet():
        made = index(indices, series)
    return _of_years(np.asarray(made.transpose("time", "cell").values, float))


def _five_days(name: str, indices: Any, series: Series) -> Any:
    return indices.max_n_day_precipitation_amount(series.daily[name], window=5, freq="YS")


def _snow(name: str, least: float, indices: Any, series: Series) -> Any:
    warmest, coldest = (convert_to(series.daily[each], "degC") for each in ("tasmax", "tasmin"))
    tas = ((warmest + coldest) / 2).assign_attrs(units="degC")
    return indices.high_precip_low_temp(
        series.daily[name], tas, pr_thresh=f"{least} {_RAIN}", tas_thresh="0 degC", freq="YS"
    )


def _word(name: str) -> str:
    return _WORDS.get(name, name)


def _marginal(units: Mapping[str, str], wet: Mapping[str, _Wet]) -> Iterator[Aspect]:
    """Means by season, days beyond the reference's quantiles, and wet days."""
    for name in units:
        own, least = (frozenset({name}),), wet[name][0] if name in wet else None
        # tasmin as tasmax minus dtr: the mean follows, the quantiles do not.
        derived = (frozenset({"tasmax", "dtr"}),) if name == "tasmin" else ()
        for season in SEASONS:
            words, sums = f"Mean {_word(name)}, {season}", partial(_mean, name, season)
            yield Aspect(f"mean_{name}_{season}", words, units[name], (name,), sums, calibrated=(*own, *derived))
        for level in (LOW, HIGH) if least is None else (HIGH,):
            side, sums = "below" if level < 0.5 else "above", partial(_beyond, name, level, least)
            words = f"Days of {_word(name)} {side} the reference's {100 * level:.0f}th percentile"
            yield Aspect(f"{side}_q{100 * level:02.0f}_{name}", words, "%", (name,), sums, calibrated=own)
    for name, (amount, tag, of) in wet.items():
        days = partial(_wet_days, name, amount)
        yield Aspect(f"wet_days{tag}", f"Wet days{of}", "%", (name,), days, calibrated=(frozenset({name}),))


def _temporal(units: Mapping[str, str], wet: Mapping[str, _Wet]) -> Iterator[Aspect]:
    """Spells, transitions, persistence, and variability between years."""
    for name, (least, tag, of) in wet.items():
        for kind, word in enumerate(("wet", "dry")):
            spell, after = partial(_spell, kind, name, least), partial(_transition, kind, name, least)
            yield Aspect(f"{word}_spell{tag}", f"Mean length of {word} spells{of}", "d", (name,), spell)
            words, longest = f"Longest {word} spell of a year, mean{of}", partial(_longest, kind, name, least)
            yield Aspect(f"longest_{word}_spell{tag}", words, "d", (name,), longest)
            words = f"Probability of a wet day after a {word} day{of}"
            yield Aspect(f"wet_after_{word}{tag}", words, "1", (name,), after)
    for name in units:
        for season in _TWO_SEASONS:
            words = f"Lag-1 autocorrelation of {_word(name)}, {season}"
            yield Aspect(f"lag1_{name}_{season}", words, "1", (name,), partial(_lag1, name, season))
        words, unit = f"Standard deviation of yearly means of {_word(name)}", of_differences(units[name])
        sums = partial(_yearly, name)
        yield Aspect(f"between_years_{name}", words, unit, (name,), sums, deviation, years_together=YEARS_TOGETHER)


def _pairs(together: Collection[Sequence[str]]) -> dict[tuple[str, str], tuple[frozenset[str], ...]]:
    """The pairs whose correlation is an aspect, and what calibrates it: pairs of a group are adjusted together."""
    known = {frozenset(pair): pair for pair in _PAIRS}
    every = [pair for group in together for pair in itertools.combinations(group, 2)]
    within = [known.get(frozenset(pair), pair) for pair in every]
    return {pair: (frozenset(pair),) if pair in within else () for pair in (*_PAIRS, *within)}


def _joint(
    units: Mapping[str, str], wet: Mapping[str, _Wet], together: Collection[Sequence[str]] = ()
) -> Iterator[Aspect]:
    """What several days, variables or cells have in common."""
    rain = {name: of for name, of in wet.items() if units[name] == _RAIN}
    for name, (_, tag, _) in rain.items():
        five, words = partial(_of_xclim, partial(_five_days, name)), f"Most {_word(name)} in 5 days of a year, mean"
        yield Aspect(f"most_in_5_days{tag}", words, "mm", (name,), five)
    for (first, second), by in _pairs(together).items():
        dry = {name: amount for name, (amount, _, _) in wet.items() if by and name in (first, second)}
        for season in _TWO_SEASONS:
            words = f"Correlation of {_word(first)} and {_word(second)}, {season}{', dry days alike' if dry else ''}"
            sums = partial(_correlation, first, second, season, dry)
            # With dry days, MBCn does not make correlations exact, whatever its settings.
            sets = () if dry else by
            yield Aspect(f"corr_{first}_{second}_{season}", words, "1", (first, second), sums, correlation, sets)
    # The next cell's tasmin is much as its tasmax.
    for name in (name for name in units if name != "tasmin" or "tasmax" not in units):
        for season in _TWO_SEASONS:
            words = f"Correlation of {_word(name)} with the next cell's, {season}"
            sums = partial(_correlation, name, "", season, {})
            yield Aspect(f"next_cell_{name}_{season}", words, "1", (name,), sums, correlation)
    words = f"Days in heat waves of {HEAT_WAVE_DAYS} days or more"
    yield Aspect("heat_wave_days", words, "d", ("tasmax",), _heat_waves)
    for name, (least, tag, of) in rain.items():
        needs, snow = (name, "tasmax", "tasmin"), partial(_of_xclim, partial(_snow, name, least))
        yield Aspect(f"snow_days{tag}", f"Wet days below 0 °C{of}", "d", needs, snow)


def aspects_of(
    names: Collection[str], table: Mapping[str, Variable] = VARIABLES, together: Collection[Sequence[str]] = ()
) -> dict[str, Aspect]:
    """Return the aspects of a set of variables by name, in order: those of which all that they need is there.

    The daily range of tasmax and tasmin is there where both are, for its correlations only. Of groups of variables that
    are adjusted `together`, the correlations of all pairs are aspects, calibrated unless a variable has dry days.
    """
    units = {name: variable(name, table).shown_units for name in in_order(names, table)}
    first = next((name for name, of in table.items() if of.wet is not None), "")
    least = {name: wet_day(name, table=table) for name in units}
    wet = {
        name: (amount, *(("", "") if name == first else (f"_{name}", f", {_word(name)}")))
        for name, amount in least.items()
        if amount is not None
    }
    there = {*names, "dtr"} if {"tasmax", "tasmin"} <= set(names) else set(names)
    joint = partial(_joint, together=together)
    every = (aspect for of in (_marginal, _temporal, joint) for aspect in of(units, wet))
    return {aspect.name: aspect for aspect in every if set(aspect.needs) <= there}


def yearly_sums(
    sources: Mapping[str, xr.Dataset],
    beside: Mapping[str, xr.Dataset],
    *,
    period: Period,
    table: Mapping[str, Variable] = VARIABLES,
    together: Collection[Sequence[str]] = (),
) -> xr.Dataset:
    """Return the sums of each year that the aspects are made of: (source, sum, year, cell) of each aspect.

    Parameters
    ----------
    sources
        `reference`, `raw` and `adjusted` series, (time, cell), in display units, lazy or not, of any calendar. Further
        sources may lack variables: sums that need these are NaN.
    beside
        The same at a neighbour of each cell; NaN where it has none.
    period
        First and last year; each source has all of them.
    together
        The groups of variables that are adjusted together, as of `aspects_of`.

    Returns
    -------
    xr.Dataset
        In memory; only the aspects whose variables all sources have. An attribute has the units of the aspect.

    Raises
    ------
    DataError
        If a source lacks years of the period.
    """
    inside = {name: complete(name, ds, period) for name, ds in sources.items()}
    near = {name: complete(name, ds, period) for name, ds in beside.items()}
    shared = [name for name in map(str, sources["reference"]) if all(name in sources[of] for of in SOURCES)]
    wanted = aspects_of(shared, table, together).values()
    # To count the days beyond.
    levels = inside["reference"][shared].quantile([LOW, HIGH], dim="time", keep_attrs=True)
    own = {name: str(inside["reference"][name].attrs.get("units", "1")) for name in shared}
    series = {name: Series(ds, near[name], levels, Days.of(ds)) for name, ds in inside.items()}
    sums_of_sources = {
        name: xr.Dataset(
            {
                aspect.name: (
                    ("sum_" + str(len(sums)), "year", "cell"),
                    np.stack(sums),
                    {"units": aspect.units or own[aspect.needs[0]]},
                )
                for aspect in wanted
                if set(aspect.needs) <= set(ds)
                for sums in [aspect.sums(series[name])]
            }
        )
        for name, ds in inside.items()
    }
    years = np.arange(period[0], period[1] + 1)
    joined: xr.Dataset = join(sums_of_sources.values(), "source")
    return joined.assign_coords(source=list(sums_of_sources), year=years)


def complete(name: str, ds: xr.Dataset, period: Period) -> xr.Dataset:
    """Return the period's days in memory, with the daily range; `name` is the source's.

    Raises
    ------
    DataError
        If years are missing.
    """
    Days.of(ds).require(period, name)
    selected = ds.sel(time=slice(str(period[0]), str(period[1]))).compute()
    if "dtr" in selected or not {"tasmax", "tasmin"} <= set(selected):
        return selected
    return selected.assign(dtr=daily_temperature_range(selected["tasmax"], selected["tasmin"]))


def energies(
    sources: Mapping[str, xr.Dataset], *, groups: Collection[Sequence[str]], random: np.random.Generator
) -> xr.Dataset:
    """Return how far the joint distribution of each group of variables is from the reference's, by season.

    Every third day counts, as successive days have much in common.

    Parameters
    ----------
    sources
        `reference`, then others, (time, cell), in memory, of the same years, any calendar, and all groups' variables.
    groups
        The variables of each.
    random
        Draws the years of the noise.

    Returns
    -------
    xr.Dataset
        `energy` (distance, other, cell) and `energy_noise` (distance, cell); the labels along `distance` have the
        variables and the season.
    """
    made, (_, *others) = {}, sources
    for group in groups:
        for season, values, years in statistics.values_by_season(sources, group):
            first, *rest = (of[..., ::3] for of in values.values())
            energy, noise = statistics.energy_distances(first, rest, years[::3], random)
            limit = np.quantile(noise, statistics.NOISE_QUANTILE, axis=0)
            both = {"energy": (("other", "cell"), energy), "energy_noise": ("cell", limit)}
            made[f"{', '.join(group)}, {season}"] = xr.Dataset(both, {"other": others})
    energies_of: xr.Dataset = join(made.values(), xr.Variable("distance", list(made)))
    return energies_of
