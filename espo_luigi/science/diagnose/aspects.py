"""Aspects of a climate that a reviewer asks about, and whether adjusting brought them nearer to the reference.

An aspect follows from sums of single years (`yearly`), so that years can be resampled, which tells the noise of the
years at hand. All of it is of data in memory, (time, cell), in degrees Celsius and millimetres a day.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.science.chunks import REALIZATION
from espo_luigi.science.diagnose import yearly
from espo_luigi.science.diagnose.properties import keep_compiled_run_lengths, quiet
from espo_luigi.science.diagnose.yearly import SEASONS, WET_DAY, Days, Period, correlation, deviation, ratio
from espo_luigi.science.seeds import cell_generator

Sums = list[np.ndarray]

# A hot day is above this quantile of the reference's days, a heat wave so many hot days or more.
WARM_QUANTILE, HEAT_WAVE_DAYS = 0.95, 3
LOW, HIGH = 0.05, 0.95
# Years of a block, for the variability between years: their order may matter.
YEARS_TOGETHER = 3
_PAIRS = (("tasmax", "pr"), ("dtr", "pr"), ("tasmax", "tasmin"))
_TWO_SEASONS = ("DJF", "JJA")
_NAMES = {"tasmax": "tasmax", "tasmin": "tasmin", "pr": "precipitation", "dtr": "daily range"}
_UNITS = {"tasmax": "degC", "tasmin": "degC", "pr": "mm d-1"}


RESAMPLINGS = 1000
# The expected share of false verdicts among the cells with a verdict.
FALSE_DISCOVERIES = 0.05
# With fewer years (or blocks of years), resampling does not tell the noise.
LEAST_YEARS, LEAST_BLOCKS = 10, 4


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

    `calibrated` has sets of variables: adjusting all variables of a set makes the aspect right by construction.
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


def limits(reference: xr.Dataset) -> xr.Dataset:
    """Return the reference's low and high quantiles of days in each cell (cell, quantile), to count days beyond."""
    named = {name: reference[name] for name in _UNITS if name in reference}
    return xr.Dataset(named).quantile([LOW, HIGH], dim="time", keep_attrs=True)


def _mean(name: str, season: str, series: Series) -> Sums:
    values = np.where(series.in_season(season)[:, None], series.values(name), np.nan)
    return series.counted(values, ~np.isnan(values))


def _beyond(name: str, level: float, series: Series) -> Sums:
    """Days beyond the reference's quantile, those equal to it as half days; of precipitation, wet days only."""
    values, limit = series.values(name), series.limits[name].sel(quantile=level).values
    limit = np.maximum(limit, WET_DAY) if name == "pr" else limit
    beyond = (values < limit if level < 0.5 else values > limit) + (values == limit) / 2
    return series.counted(100 * beyond, ~np.isnan(values))


def _wet_days(series: Series) -> Sums:
    wet, dry = yearly.wet_and_dry(series.values("pr"))
    return series.counted(100 * wet, wet | dry)


def _spell(kind: int, series: Series) -> Sums:
    """The days of the wet (0) or dry (1) spells that begin in a year, and how many those are."""
    inside = yearly.wet_and_dry(series.values("pr"))[kind]
    cell, first, length = yearly.runs(inside)
    lasting, begun = np.zeros(inside.shape), np.zeros(inside.shape)
    lasting[first, cell], begun[first, cell] = length, 1
    return series.counted(lasting, begun)


def _transition(kind: int, series: Series) -> Sums:
    """The wet days after a wet (0) or dry (1) day, and all days that follow such a day."""
    both = yearly.wet_and_dry(series.values("pr"))
    known, wet = yearly.wet_after(both[kind], *both)
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


def _correlation(first: str, second: str, season: str, series: Series) -> Sums:
    """Sums of ranks in a season: their correlation is Spearman's; `second` is "" for the neighbour's `first`."""
    other = series.values(second) if second else series.values(first, beside=True)
    x, y = yearly.ranked(series.values(first), other, series.in_season(season))
    return [series.days.sums(terms) for terms in yearly.correlation_sums(x, y)]


def _of_xclim(index: Callable[[Any, Series], xr.DataArray], series: Series) -> Sums:
    """The values of an index of xclim, which has a number for each year."""
    from xclim import indices

    keep_compiled_run_lengths()
    with quiet():
        made = index(indices, series)
    return _of_years(np.asarray(made.transpose("time", "cell").values, float))


def _longest(kind: str, indices: Any, series: Series) -> Any:
    function = getattr(indices, f"maximum_consecutive_{kind}_days")
    return function(series.daily["pr"], thresh=f"{WET_DAY} mm/day", freq="YS")


def _five_days(indices: Any, series: Series) -> Any:
    return indices.max_n_day_precipitation_amount(series.daily["pr"], window=5, freq="YS")


def _heat_waves(indices: Any, series: Series) -> Any:
    limit = series.limits["tasmax"].sel(quantile=WARM_QUANTILE, drop=True)
    return indices.hot_spell_total_length(series.daily["tasmax"], thresh=limit, window=HEAT_WAVE_DAYS, freq="YS")


def _snow(indices: Any, series: Series) -> Any:
    tas = ((series.daily["tasmax"] + series.daily["tasmin"]) / 2).assign_attrs(units="degC")
    return indices.high_precip_low_temp(
        series.daily["pr"], tas, pr_thresh=f"{WET_DAY} mm/day", tas_thresh="0 degC", freq="YS"
    )


def _marginal() -> Iterator[Aspect]:
    """Means by season, days beyond the reference's quantiles, and wet days."""
    for name, units in _UNITS.items():
        own = (frozenset({name}),)
        # tasmin as tasmax minus dtr: the mean follows, the quantiles do not.
        derived = (frozenset({"tasmax", "dtr"}),) if name == "tasmin" else ()
        for season in SEASONS:
            words, sums = f"Mean {_NAMES[name]}, {season}", partial(_mean, name, season)
            yield Aspect(f"mean_{name}_{season}", words, units, (name,), sums, calibrated=(*own, *derived))
        for level in (HIGH,) if name == "pr" else (LOW, HIGH):
            side, sums = "below" if level < 0.5 else "above", partial(_beyond, name, level)
            words = f"Days of {_NAMES[name]} {side} the reference's {100 * level:.0f}th percentile"
            yield Aspect(f"{side}_q{100 * level:02.0f}_{name}", words, "%", (name,), sums, calibrated=own)
    yield Aspect("wet_days", "Wet days", "%", ("pr",), _wet_days, calibrated=(frozenset({"pr"}),))


def _temporal() -> Iterator[Aspect]:
    """Spells, transitions, persistence, and variability between years."""
    rain = ("pr",)
    for kind, word in enumerate(("wet", "dry")):
        yield Aspect(f"{word}_spell", f"Mean length of {word} spells", "d", rain, partial(_spell, kind))
        longest = partial(_of_xclim, partial(_longest, word))
        yield Aspect(f"longest_{word}_spell", f"Longest {word} spell of a year, mean", "d", rain, longest)
        words = f"Probability of a wet day after a {word} day"
        yield Aspect(f"wet_after_{word}", words, "1", rain, partial(_transition, kind))
    for name in _UNITS:
        for season in _TWO_SEASONS:
            words = f"Lag-1 autocorrelation of {_NAMES[name]}, {season}"
            yield Aspect(f"lag1_{name}_{season}", words, "1", (name,), partial(_lag1, name, season))
        words, units = f"Standard deviation of yearly means of {_NAMES[name]}", "K" if name != "pr" else "mm d-1"
        sums = partial(_yearly, name)
        yield Aspect(f"between_years_{name}", words, units, (name,), sums, deviation, years_together=YEARS_TOGETHER)


def _joint() -> Iterator[Aspect]:
    """What several days, variables or cells have in common."""
    five, waves = partial(_of_xclim, _five_days), partial(_of_xclim, _heat_waves)
    yield Aspect("most_in_5_days", "Most precipitation in 5 days of a year, mean", "mm", ("pr",), five)
    for first, second in _PAIRS:
        for season in _TWO_SEASONS:
            words = f"Correlation of {_NAMES[first]} and {_NAMES[second]}, {season}"
            sums = partial(_correlation, first, second, season)
            yield Aspect(f"corr_{first}_{second}_{season}", words, "1", (first, second), sums, correlation)
    for name in ("tasmax", "pr"):
        for season in _TWO_SEASONS:
            words = f"Correlation of {_NAMES[name]} with the next cell's, {season}"
            sums = partial(_correlation, name, "", season)
            yield Aspect(f"next_cell_{name}_{season}", words, "1", (name,), sums, correlation)
    words = f"Days in heat waves of {HEAT_WAVE_DAYS} days or more"
    yield Aspect("heat_wave_days", words, "d", ("tasmax",), waves)
    yield Aspect("snow_days", "Wet days below 0 °C", "d", ("pr", "tasmax", "tasmin"), partial(_of_xclim, _snow))


ASPECTS: Mapping[str, Aspect] = {aspect.name: aspect for of in (_marginal, _temporal, _joint) for aspect in of()}


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
    wanted = [aspect for aspect in ASPECTS.values() if set(aspect.needs) <= known]
    sums_of_sources = {
        name: xr.Dataset(
            {
                aspect.name: (("sum_" + str(len(sums)), "year", "cell"), np.stack(sums))
                for aspect in wanted
                for sums in [aspect.sums(Series(ds, near[name], levels, Days.of(ds)))]
            }
        )
        for name, ds in inside.items()
    }
    years = np.arange(period[0], period[1] + 1)
    joined = xr.concat(
        list(sums_of_sources.values()), dim="source", data_vars="all", coords="minimal", compat="override", join="exact"
    )
    return joined.assign_coords(source=list(sums_of_sources), year=years)


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


@dataclass(frozen=True)
class Verdict:
    """How many cells of an aspect are nearer to the reference than before, and farther: shares of those with data."""

    aspect: str
    calibrated: bool
    nearer: float
    farther: float
    # The shares of cells that differ from the reference beyond noise, before and after.
    raw_off: float
    adjusted_off: float

    @property
    def word(self) -> str:
        """`nearer`, `farther`, or `no different` within noise: the larger share, if it is not tiny."""
        if max(self.nearer, self.farther) < FALSE_DISCOVERIES:
            return "no different"
        return "nearer" if self.nearer >= self.farther else "farther"

    @property
    def is_worse(self) -> bool:
        """Whether an aspect that was not calibrated is `farther` than before."""
        return not self.calibrated and self.word == "farther"

    @property
    def is_broken(self) -> bool:
        """Whether an aspect that was calibrated is not right beyond noise."""
        return self.calibrated and self.adjusted_off >= FALSE_DISCOVERIES


def compare_aspects(sums: Sequence[xr.Dataset], *, adjusted: Collection[str], seed: str) -> xr.Dataset:
    """Compare raw and adjusted aspects with the reference's, and resample years to tell the noise.

    The years of the reference and those of the simulations are drawn independently; raw and adjusted, and all members
    of a pool, get the same years. The value of a pool is the mean of its members' values. Deviations of the resampled
    values are widened by sqrt(n / (n - 3)) for n years, as a sample's own spread is too small.

    Parameters
    ----------
    sums
        The `yearly_sums` of a simulation, or of a pool's members, of the same cells.
    adjusted
        The variables that were adjusted: they decide which aspects are calibrated.
    seed
        Names the draws of years: the same name gives the same numbers.

    Returns
    -------
    xr.Dataset
        `value` (source, aspect, cell). `noise` (side, aspect, cell): the standard deviation of the resampled distance
        between raw (or adjusted) and reference. `p_value` (aspect, cell) of raw and adjusted being equally far from the
        reference, `p_off` (side, aspect, cell) of there being no distance; NaN with less than 10 years.
        `verdict` (aspect, cell): 1 nearer, -1 farther, 0 no different within noise, or by less than the noise of the
        adjusted; `off` (side, aspect, cell): 1 where the distance is beyond noise. Both control the false discovery
        rate over the cells of an aspect at 5 %.
        `calibrated` (aspect).

    References
    ----------
    Benjamini and Hochberg 1995, doi:10.1111/j.2517-6161.1995.tb02031.x
    """
    members = xr.concat(
        [member.load() for member in sums],
        REALIZATION,
        data_vars="all",
        coords="minimal",
        compat="override",
        join="exact",
        combine_attrs="override",
    )
    random = cell_generator(seed, "years", 0)
    names = [name for name in ASPECTS if name in members]
    compared = xr.concat(
        [_compared(ASPECTS[name], members, random) for name in names],
        dim="aspect",
        data_vars="all",
        coords="minimal",
        compat="override",
        join="exact",
    )
    calibrated = [ASPECTS[name].is_calibrated(adjusted) for name in names]
    named = {"aspect": names, "side": ["raw", "adjusted"], "source": ["reference", "raw", "adjusted"]}
    return compared.assign(calibrated=("aspect", calibrated)).assign_coords(named).assign_attrs(members.attrs)


def _compared(aspect: Aspect, members: xr.Dataset, random: np.random.Generator) -> xr.Dataset:
    """The comparison of one aspect: (source, cell), (side, cell) and (cell)."""
    years = members.sizes["year"]
    sums = [one.transpose("source", REALIZATION, "year", "cell") for one in sums_of(members, aspect.name)]
    everything = np.ones((1, years))
    value = np.stack([_number(aspect, everything, sums, source)[0] for source in ("reference", "raw", "adjusted")])
    drawn, simulated = (_weights(random, years, aspect.years_together) for _ in range(2))
    of_reference = _number(aspect, drawn, sums, "reference")
    # A sample's own spread is too small.
    blocks = max(years / aspect.years_together, LEAST_BLOCKS)
    distance = []
    for row, side in ((1, "raw"), (2, "adjusted")):
        deviations = _centred(_number(aspect, simulated, sums, side)) - _centred(of_reference)
        distance.append(value[row] - value[0] + deviations * np.sqrt(blocks / (blocks - 3)))
    raw, adjusted = distance
    noise = np.stack([one.std(axis=0) for one in distance])
    gain = np.abs(value[1] - value[0]) - np.abs(value[2] - value[0])
    # Raw and adjusted have the same years: tiny changes are certain, and no reason to call an aspect worse.
    visible = np.abs(gain) > noise[1]
    p_value = _two_sided(np.abs(raw) - np.abs(adjusted), years)
    p_off = np.stack([_two_sided(one, years) for one in distance])
    return xr.Dataset(
        {
            "value": (("source", "cell"), value),
            "noise": (("side", "cell"), noise),
            "p_value": ("cell", p_value),
            "p_off": (("side", "cell"), p_off),
            "verdict": ("cell", _flagged(p_value) * np.sign(gain) * visible),
            "off": (("side", "cell"), np.stack([_flagged(one) for one in p_off])),
        }
    )


def _number(aspect: Aspect, weights: np.ndarray, sums: list[xr.DataArray], source: str) -> np.ndarray:
    """The aspect of each resampling, (resampling, cell): the mean over the members. The reference has no members."""
    members = sums[0].sizes[REALIZATION] if source != "reference" else 1
    of_members = [
        aspect.number(*(weights @ terms.sel(source=source).values[member] for terms in sums))
        for member in range(members)
    ]
    return np.mean(of_members, axis=0)


def _weights(random: np.random.Generator, years: int, together: int) -> np.ndarray:
    """How often each resampling has each year."""
    chosen = yearly.drawn_years(random, years, together, RESAMPLINGS)
    weights = np.zeros((RESAMPLINGS, years))
    np.add.at(weights, (np.arange(RESAMPLINGS)[:, None], chosen), 1.0)
    return weights


def _centred(resampled: np.ndarray) -> np.ndarray:
    """Deviations from the resamplings' mean: that of a standard deviation or a quotient is biased."""
    known = np.isfinite(resampled)
    mean = np.where(known, resampled, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    return np.where(known, resampled - mean, 0.0)


def _two_sided(resampled: np.ndarray, years: int) -> np.ndarray:
    """The p-value of 0, two-sided, in the distribution of each cell; NaN for a cell without a value."""
    low, high = ((1 + beyond.sum(axis=0)) / (RESAMPLINGS + 1) for beyond in (resampled <= 0, resampled >= 0))
    there = np.isfinite(resampled).all(axis=0) & (years >= LEAST_YEARS)
    return np.where(there, np.minimum(1.0, 2 * np.minimum(low, high)), np.nan)


def _flagged(p_values: np.ndarray) -> np.ndarray:
    """1 for the cells that are discoveries, 0 for others; NaN where there is no p-value."""
    from scipy.stats import false_discovery_control

    known = np.isfinite(p_values)
    flagged = np.full(p_values.shape, np.nan)
    if known.any():
        flagged[known] = false_discovery_control(p_values[known]) <= FALSE_DISCOVERIES
    return flagged


def verdicts(compared: xr.Dataset) -> Iterator[Verdict]:
    """Yield the verdict about each aspect that any cell has a p-value of."""
    for place, name in enumerate(compared["aspect"].values):
        of_aspect = compared.isel(aspect=place)
        verdict = of_aspect["verdict"].values[np.isfinite(of_aspect["verdict"].values)]
        if verdict.size:
            off = [float(of_aspect["off"].sel(side=side).mean()) for side in ("raw", "adjusted")]
            shares = (float((verdict > 0).mean()), float((verdict < 0).mean()))
            yield Verdict(str(name), bool(of_aspect["calibrated"]), *shares, *off)
