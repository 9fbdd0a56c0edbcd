"""Aspects of daily series that a reviewer asks about, each from sums of single years, so that years can be resampled.

All of it is of data in memory, (time, cell), in degrees Celsius and millimetres a day, as `summaries.in_display_units`
returns them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.science.diagnose.properties import keep_compiled_run_lengths, quiet
from espo_luigi.science.diagnose.summaries import SEASONS, WET_DAY

Sums = list[np.ndarray]
Period = tuple[int, int]

# A hot day is above this quantile of the reference's days, a heat wave so many hot days or more.
WARM_QUANTILE, HEAT_WAVE_DAYS = 0.95, 3
LOW, HIGH = 0.05, 0.95
# Years of a block, for the variability between years: their order may matter.
YEARS_TOGETHER = 3
_PAIRS = (("tasmax", "pr"), ("dtr", "pr"), ("tasmax", "tasmin"))
_TWO_SEASONS = ("DJF", "JJA")
_NAMES = {"tasmax": "tasmax", "tasmin": "tasmin", "pr": "precipitation", "dtr": "daily range"}
_UNITS = {"tasmax": "degC", "tasmin": "degC", "pr": "mm d-1"}


@dataclass(frozen=True, eq=False)
class Series:
    """A source's days at the cells, and at a neighbour of each; and quantiles of the reference's days."""

    daily: xr.Dataset
    beside: xr.Dataset
    limits: xr.Dataset

    def values(self, name: str, *, beside: bool = False) -> np.ndarray:
        """Return a variable's values, (time, cell)."""
        return np.asarray((self.beside if beside else self.daily)[name].transpose("time", "cell").values, float)

    def in_season(self, season: str) -> np.ndarray:
        """Return which days are in a season."""
        return self.daily["time"].dt.month.values % 12 // 3 == SEASONS.index(season)

    def by_year(self, values: np.ndarray) -> np.ndarray:
        """Return the sums of each calendar year; NaN count as 0."""
        first = np.unique(self.daily["time"].dt.year.values, return_index=True)[1]
        return np.add.reduceat(np.where(np.isnan(values), 0.0, values), first, axis=0)


@dataclass(frozen=True, eq=False)
class Aspect:
    """A number about a cell's series: the sums of its years, and how the number follows from sums over years.

    `calibrated` has sets of variables: adjusting all variables of a set makes the aspect right by construction.
    """

    name: str
    long_name: str
    units: str
    needs: tuple[str, ...]
    sums: Callable[[Series], Sums]
    number: Callable[..., np.ndarray]
    calibrated: tuple[frozenset[str], ...] = ()
    years_together: int = 1

    def is_calibrated(self, adjusted: Collection[str]) -> bool:
        """Return whether adjusting these variables makes it right by construction."""
        return any(needed <= set(adjusted) for needed in self.calibrated)


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


def limits(reference: xr.Dataset) -> xr.Dataset:
    """Return the reference's low and high quantiles of days in each cell (cell, quantile), to count days beyond."""
    found = {name: reference[name] for name in _UNITS if name in reference}
    return xr.Dataset(found).quantile([LOW, HIGH], dim="time", keep_attrs=True)


def _mean(name: str, season: str, series: Series) -> Sums:
    values = np.where(series.in_season(season)[:, None], series.values(name), np.nan)
    return [series.by_year(values), series.by_year(~np.isnan(values) * 1.0)]


def _beyond(name: str, level: float, series: Series) -> Sums:
    """Days beyond the reference's quantile, those equal to it as half days; of precipitation, wet days only."""
    values, limit = series.values(name), series.limits[name].sel(quantile=level).values
    limit = np.maximum(limit, WET_DAY) if name == "pr" else limit
    beyond = (values < limit if level < 0.5 else values > limit) + (values == limit) / 2
    return [100 * series.by_year(beyond), series.by_year(~np.isnan(values) * 1.0)]


def _wet(series: Series) -> tuple[np.ndarray, np.ndarray]:
    values = series.values("pr")
    there = ~np.isnan(values)
    return (values >= WET_DAY) & there, (values < WET_DAY) & there


def _wet_days(series: Series) -> Sums:
    wet, dry = _wet(series)
    return [100 * series.by_year(wet * 1.0), series.by_year((wet | dry) * 1.0)]


def _spell(op: str, series: Series) -> Sums:
    """The days of the spells that begin in a year, and how many those are."""
    from xclim.indices.generic import spell_length_statistics

    keep_compiled_run_lengths()
    with quiet():
        found = spell_length_statistics(
            series.daily["pr"],
            threshold=f"{WET_DAY} mm/day",
            window=1,
            win_reducer="max",
            op=op,
            spell_reducer=["sum", "count"],
            freq="YS",
            resample_before_rl=False,
        )
    return [np.nan_to_num(one.transpose("time", "cell").values) for one in found]


def _transition(before: int, series: Series) -> Sums:
    """The wet days after a wet (0) or dry (1) day, and all days that follow such a day."""
    wet, dry = _wet(series)
    initial, blank = (wet, dry)[before][:-1], np.zeros((1, wet.shape[1]), bool)
    known = np.vstack([blank, initial & (wet | dry)[1:]])
    return [series.by_year((known & wet) * 1.0), series.by_year(known * 1.0)]


def _lag1(name: str, season: str, series: Series) -> Sums:
    """The autocorrelation within the season of each year; December belongs to the next year's winter."""
    values, inside = series.values(name), series.in_season(season)
    year, month = series.daily["time"].dt.year.values, series.daily["time"].dt.month.values
    of_season, years = year + ((month == 12) & (season == "DJF")), np.unique(year)
    found = np.full((len(years), values.shape[1]), np.nan)
    for row, one in enumerate(years):
        days = values[inside & (of_season == one)]
        if len(days) > 1:
            away = days - days.mean(axis=0)
            with np.errstate(invalid="ignore", divide="ignore"):
                found[row] = (away[1:] * away[:-1]).sum(axis=0) / (away**2).sum(axis=0)
    return [np.nan_to_num(found), ~np.isnan(found) * 1.0]


def _yearly(name: str, series: Series) -> Sums:
    values = series.values(name)
    mean = ratio(series.by_year(values), series.by_year(~np.isnan(values) * 1.0))
    return [np.nan_to_num(mean), np.nan_to_num(mean**2), ~np.isnan(mean) * 1.0]


def _correlation(first: str, second: str, season: str, series: Series) -> Sums:
    return _rank_sums(series, series.values(first), series.values(second), season)


def _with_neighbour(name: str, season: str, series: Series) -> Sums:
    return _rank_sums(series, series.values(name), series.values(name, beside=True), season)


def _rank_sums(series: Series, x: np.ndarray, y: np.ndarray, season: str) -> Sums:
    """Sums of ranks in a season: their correlation is Spearman's."""
    from scipy.stats import rankdata

    known = series.in_season(season)[:, None] & ~np.isnan(x) & ~np.isnan(y)
    ranks = [rankdata(np.where(known, one, np.nan), axis=0, nan_policy="omit") for one in (x, y)]
    # About the middle rank, so that squares stay small.
    middle = (known.sum(axis=0) + 1) / 2
    x, y = (np.where(known, one - middle, 0.0) for one in ranks)
    return [series.by_year(one) for one in (x * y, x, y, x * x, y * y, known * 1.0)]


def _of_xclim(index: Callable[[Series], xr.DataArray], series: Series) -> Sums:
    """The values of an index of xclim, which has a number for each year."""
    keep_compiled_run_lengths()
    with quiet():
        found = index(series)
    values = np.asarray(found.transpose("time", "cell").values, float)
    return [np.nan_to_num(values), ~np.isnan(values) * 1.0]


def _longest(kind: str, series: Series) -> xr.DataArray:
    import xclim.indices

    function = getattr(xclim.indices, f"maximum_consecutive_{kind}_days")
    found: xr.DataArray = function(series.daily["pr"], thresh=f"{WET_DAY} mm/day", freq="YS")
    return found


def _five_days(series: Series) -> xr.DataArray:
    import xclim.indices

    found: xr.DataArray = xclim.indices.max_n_day_precipitation_amount(series.daily["pr"], window=5, freq="YS")
    return found


def _heat_waves(series: Series) -> xr.DataArray:
    import xclim.indices

    limit = series.limits["tasmax"].sel(quantile=WARM_QUANTILE, drop=True)
    found: xr.DataArray = xclim.indices.hot_spell_total_length(
        series.daily["tasmax"], thresh=limit, window=HEAT_WAVE_DAYS, freq="YS"
    )
    return found


def _snow(series: Series) -> xr.DataArray:
    import xclim.indices

    tas = ((series.daily["tasmax"] + series.daily["tasmin"]) / 2).assign_attrs(units="degC")
    found: xr.DataArray = xclim.indices.high_precip_low_temp(
        series.daily["pr"], tas, pr_thresh=f"{WET_DAY} mm/day", tas_thresh="0 degC", freq="YS"
    )
    return found


def _by_itself(name: str) -> tuple[frozenset[str], ...]:
    return (frozenset({name}),)


def _marginal() -> Iterator[Aspect]:
    """Means by season, days beyond the reference's quantiles, and wet days."""
    for name, units in _UNITS.items():
        # tasmin as tasmax minus dtr: the mean follows, the quantiles do not.
        derived = (frozenset({"tasmax", "dtr"}),) if name == "tasmin" else ()
        for season in SEASONS:
            yield Aspect(
                f"mean_{name}_{season}",
                f"Mean {_NAMES[name]}, {season}",
                units,
                (name,),
                partial(_mean, name, season),
                ratio,
                (*_by_itself(name), *derived),
            )
        for level in (HIGH,) if name == "pr" else (LOW, HIGH):
            side = "below" if level < 0.5 else "above"
            yield Aspect(
                f"{side}_q{100 * level:02.0f}_{name}",
                f"Days of {_NAMES[name]} {side} the reference's {100 * level:.0f}th percentile",
                "%",
                (name,),
                partial(_beyond, name, level),
                ratio,
                _by_itself(name),
            )
    yield Aspect("wet_days", "Wet days", "%", ("pr",), _wet_days, ratio, _by_itself("pr"))


def _temporal() -> Iterator[Aspect]:
    """Spells, transitions, persistence, and variability between years."""
    for kind, (words, op) in enumerate({"wet": ">=", "dry": "<"}.items()):
        yield Aspect(f"{words}_spell", f"Mean length of {words} spells", "d", ("pr",), partial(_spell, op), ratio)
        yield Aspect(
            f"longest_{words}_spell",
            f"Longest {words} spell of a year, mean",
            "d",
            ("pr",),
            partial(_of_xclim, partial(_longest, words)),
            ratio,
        )
        yield Aspect(
            f"wet_after_{words}",
            f"Probability of a wet day after a {words} day",
            "1",
            ("pr",),
            partial(_transition, kind),
            ratio,
        )
    for name in _UNITS:
        for season in _TWO_SEASONS:
            words = f"Lag-1 autocorrelation of {_NAMES[name]}, {season}"
            yield Aspect(f"lag1_{name}_{season}", words, "1", (name,), partial(_lag1, name, season), ratio)
        yield Aspect(
            f"between_years_{name}",
            f"Standard deviation of yearly means of {_NAMES[name]}",
            "K" if name != "pr" else "mm d-1",
            (name,),
            partial(_yearly, name),
            deviation,
            years_together=YEARS_TOGETHER,
        )


def _joint() -> Iterator[Aspect]:
    """What several days, variables or cells have in common."""
    yield Aspect(
        "most_in_5_days",
        "Most precipitation in 5 days of a year, mean",
        "mm",
        ("pr",),
        partial(_of_xclim, _five_days),
        ratio,
    )
    for first, second in _PAIRS:
        for season in _TWO_SEASONS:
            words = f"Correlation of {_NAMES[first]} and {_NAMES[second]}, {season}"
            sums = partial(_correlation, first, second, season)
            yield Aspect(f"corr_{first}_{second}_{season}", words, "1", (first, second), sums, correlation)
    for name in ("tasmax", "pr"):
        for season in _TWO_SEASONS:
            words = f"Correlation of {_NAMES[name]} with the next cell's, {season}"
            sums = partial(_with_neighbour, name, season)
            yield Aspect(f"next_cell_{name}_{season}", words, "1", (name,), sums, correlation)
    words = f"Days in heat waves of {HEAT_WAVE_DAYS} days or more"
    yield Aspect("heat_wave_days", words, "d", ("tasmax",), partial(_of_xclim, _heat_waves), ratio)
    needs = ("pr", "tasmax", "tasmin")
    yield Aspect("snow_days", "Wet days below 0 °C", "d", needs, partial(_of_xclim, _snow), ratio)


ASPECTS: Mapping[str, Aspect] = {one.name: one for of in (_marginal, _temporal, _joint) for one in of()}


def yearly_sums(sources: Mapping[str, xr.Dataset], beside: Mapping[str, xr.Dataset], *, period: Period) -> xr.Dataset:
    """Return the sums of each year that the aspects are made of: (source, sum, year, cell) of each aspect.

    Parameters
    ----------
    sources
        `reference`, `raw` and `adjusted` series, (time, cell), in display units, lazy or not, of any calendar.
    beside
        The same at a neighbour of each cell; NaN where it has none.
    period
        First and last year; each source has all of them.

    Returns
    -------
    xr.Dataset
        In memory; only the aspects whose variables all sources have.

    Raises
    ------
    DataError
        If a source lacks years of the period.
    """
    inside = {name: _complete(name, ds, period) for name, ds in sources.items()}
    near = {name: _complete(name, ds, period) for name, ds in beside.items()}
    levels = limits(inside["reference"])
    known = set.intersection(*(set(map(str, ds.data_vars)) for ds in inside.values()))
    wanted = [one for one in ASPECTS.values() if set(one.needs) <= known]
    found = {
        name: xr.Dataset(
            {
                one.name: (("sum_" + str(len(sums)), "year", "cell"), np.stack(sums))
                for one in wanted
                for sums in [one.sums(Series(ds, near[name], levels))]
            }
        )
        for name, ds in inside.items()
    }
    years = np.arange(period[0], period[1] + 1)
    joined = xr.concat(list(found.values()), dim="source", join="exact", coords="minimal")
    return joined.assign_coords(source=list(found), year=years)


def _complete(name: str, ds: xr.Dataset, period: Period) -> xr.Dataset:
    """The period's days in memory, with the daily range."""
    selected = ds.sel(time=slice(str(period[0]), str(period[1]))).compute()
    years = np.unique(selected["time"].dt.year.values)
    if len(years) != period[1] - period[0] + 1:
        has = f"{years[0]} to {years[-1]}" if len(years) else "none of them"
        raise DataError(f"The {name} data have {len(years)} of the years {period[0]} to {period[1]} ({has}).")
    both = {"tasmax", "tasmin"} <= set(selected)
    return selected.assign(dtr=selected["tasmax"] - selected["tasmin"]) if both else selected


def sums_of(ds: xr.Dataset, name: str) -> Sequence[xr.DataArray]:
    """Return the sums of an aspect, one by one."""
    (dim,) = (str(dim) for dim in ds[name].dims if str(dim).startswith("sum_"))
    return [ds[name].isel({dim: place}) for place in range(ds.sizes[dim])]
