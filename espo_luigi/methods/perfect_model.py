"""A known future: a simulation is adjusted towards the truth, a second simulation, and compared with its later years.

Series are daily, (cells, time), of the same cells. Errors of the level and of the change are kept apart: models that
warm differently have different levels after any adjustment.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dask
import numpy as np
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.methods import blocks
from espo_luigi.methods.base import method_named
from espo_luigi.science import calendar, seeds
from espo_luigi.science.attributes import QUANTILE
from espo_luigi.science.chunks import join
from espo_luigi.science.diagnose import statistics
from espo_luigi.science.diagnose.statistics import SEASONS, Days, Period, Resampling
from espo_luigi.science.display import of_differences, wet_day
from espo_luigi.science.grid import evenly_placed
from espo_luigi.science.stack import STACKED_DIM
from espo_luigi.science.units import convert_to, units_of
from espo_luigi.science.variables import VARIABLES, Variable, variable

TRUTH, RAW, ADJUSTED, SCALING = "truth", "raw", "adjusted", "Scaling"
CALIBRATION, ENERGY = "calibration", "energy"
PROPERTIES = ("mean", "q05", "q95", "q99", "wet_days")
REPLICATES, BLOCK_YEARS = 100, 5
_QUANTILES = {"q05": 0.05, "q95": 0.95, "q99": 0.99}
_DIMS = ("period", "season", "property")

Arguments = Mapping[str, Any]


@dataclass(frozen=True)
class Plan:
    """How a variable is compared: its calibration, and the units of its errors, by default the truth's.

    A day below `wet` (in these units) is dry, if it is a number.
    """

    calibration: Period
    units: str = ""
    wet: float | None = None

    def shown(self, series: xr.DataArray) -> xr.DataArray:
        """Return a series in the units of the errors."""
        return convert_to(series, self.units) if self.units else series

    def periods(self, later: Sequence[Period]) -> dict[str, Period]:
        """Return the calibration and the later periods, by their names."""
        return {CALIBRATION: self.calibration} | {f"{first}-{last}": (first, last) for first, last in later}

    def climates(self, series: xr.DataArray, later: Sequence[Period]) -> xr.DataArray:
        """Return the properties of a daily series in these periods."""
        return climates(self.shown(series), self.periods(later), self.wet)


@dataclass(frozen=True)
class Adjustment:
    """A method for a variable, or for several together, with the arguments of `training_args` and `adjusting_args`.

    `shared` has those that training and adjusting share: engine, seed, first_cell, maximal_calendar.
    """

    variables: tuple[str, ...]
    method: str
    training: Arguments
    adjusting: Arguments
    shared: Arguments = field(default_factory=dict)

    def apply(self, truth: xr.Dataset, simulation: xr.Dataset, before: int | np.ndarray = 0) -> xr.Dataset:
        """Return the adjusted variables, lazy if the series are; `before` is added to the first cell's place.

        With the argument `keeps_ranks`, a method that ranks days adds the quantiles of a variable.
        """
        shared = {**self.shared, "first_cell": self.shared.get("first_cell", 0) + before}
        named = method_named(self.method, shared.get("engine", "auto"))
        picked: Any = list(self.variables) if named.variables_together else self.variables[0]
        known, simulated = truth[picked], simulation[picked]
        given: dict[str, Any] = {**self.adjusting, **shared}
        if "seed" in shared:
            given["seed"] = f"{shared['seed']}+adjust"
        if named.needs_reference_to_adjust:
            given["reference"] = known
        if named.trains:
            training = blocks.train(known, simulated, method=self.method, **self.training, **shared)
        else:
            training = None
            given |= {"method": self.method, "training_args": self.training}
        made = blocks.adjust_and_count(simulated, training, **given)
        if named.variables_together:
            return made
        names = {"scenario": picked, QUANTILE: f"{picked}_{QUANTILE}"}
        kept = {old: new for old, new in names.items() if old in made}
        return made[list(kept)].rename(kept)


def shown_as(name: str, table: Mapping[str, Variable] = VARIABLES) -> dict[str, Any]:
    """Return a plan's `units` and `wet`, by what a table knows of a variable; temperatures keep the truth's units."""
    units = variable(name, table).shown_units
    return {"units": units if of_differences(units) == units else "", "wet": wet_day(name, table=table)}


@dataclass(frozen=True)
class Sampling:
    """The later periods that are compared, how many cells are sampled, and the seed of the resampled years.

    Of each of `groups`, the dependence between its variables is compared, too.
    """

    periods: Sequence[Period]
    cells: int
    seed: str
    maximal_calendar: str = "noleap"
    groups: Sequence[Sequence[str]] = ()


def compare(
    truth: xr.Dataset,
    simulation: xr.Dataset,
    *,
    plans: Mapping[str, Plan],
    methods: Mapping[str, Sequence[Adjustment]],
    sampling: Sampling,
) -> xr.Dataset:
    """Adjust a simulation towards the truth's calibration period, and compare it with the truth afterwards.

    Computes; lazy series are read block by block, variable by variable. Errors are in the plan's units, those of the
    share of wet days in 1. The series go to the smaller calendar.

    Parameters
    ----------
    truth, simulation
        Daily series of the same cells, stacked or on a grid.
    plans
        How each variable is compared, by its name.
    methods
        How variables are adjusted, by the method's label. `ADJUSTED` adjusts all variables in all cells, and any
        further method those that it names in the sampled cells.
    sampling
        What is compared; the errors of single cells are those of the sampled ones.

    Returns
    -------
    xr.Dataset
        `level` and `change` (variable, adjustment, period, season, property, cell): simulation minus truth in a period,
        and the same after the difference in the calibration is taken off. `level_of_all` and `change_of_all`: the mean
        over all cells of their absolute values; NaN for methods that are applied to the sample only. `noise`
        (replicate, variable, period, season, property): the mean over the sampled cells of the absolute error between
        two realisations of the truth's climate, from resampled blocks of its years. With groups, `dependence`
        (adjustment, period, season, joint, cell): Spearman's correlation of each pair of variables minus the truth's,
        and the energy distance of the group from the truth; `dependence_noise` (period, season, joint): the errors
        that 95 % of those between two realisations stay below.

    Raises
    ------
    DataError
        If a period lacks days, or no cell has data in both.
    """
    calendars = map(calendar.calendar_of, (truth, simulation))
    common = calendar.minimum_calendar(*calendars, sampling.maximal_calendar)
    known, simulated = (calendar.convert(series[list(plans)], common) for series in (truth, simulation))
    simulated = simulated.assign({name: convert_to(simulated[name], units_of(known[name])) for name in plans})
    whole = _of_all_cells(known, simulated, plans, methods[ADJUSTED], sampling.periods)
    # On all days of all periods, in both simulations.
    known_days = [of[[RAW, TRUTH]].isel(property=0, drop=True).to_array("dataset").notnull() for of in whole.values()]
    valid = join([of.all(["dataset", "period", "season"]) for of in known_days], "variable").all("variable")
    if not valid.any():
        raise DataError(f"No cell of {valid.size} has data in both simulations: take simulations that overlap.")
    evenly = evenly_placed(valid.values, sampling.cells)
    chosen = {str(dim): xr.DataArray(at, dims=STACKED_DIM) for dim, at in zip(valid.dims, evenly, strict=True)}
    known, simulated = known.isel(chosen).load(), simulated.isel(chosen).load()
    sampled = {name: properties.isel(chosen) for name, properties in whole.items()}
    places = np.ravel_multi_index(evenly, valid.shape)
    series = {TRUTH: {name: known[name] for name in plans}, RAW: {name: simulated[name] for name in plans}}
    for label in methods if sampling.groups else [label for label in methods if label != ADJUSTED]:
        before = places - np.arange(places.size) if label == ADJUSTED else 0  # what all cells draw
        each = [how.apply(known, simulated, before) for how in methods[label]]
        series[label] = {str(name): adjusted for of in each for name, adjusted in of.items()}
        for name, adjusted in {} if label == ADJUSTED else series[label].items():
            sampled[name][label] = plans[name].climates(adjusted, sampling.periods)
    made = [
        _of_variable(whole[name], sampled[name], valid, [RAW, *methods]).assign(
            noise=resampled(plan.shown(known[name]), plan.periods(sampling.periods), sampling.seed, plan.wet)
        )
        for name, plan in plans.items()
    ]
    errors: xr.Dataset = join(made, xr.Variable("variable", np.array(list(plans), dtype=object)), join="outer")
    units = np.array([plan.units or units_of(known[name]) for name, plan in plans.items()], dtype=object)
    joint = [_dependence(series, of, plans, sampling) for of in sampling.groups]
    return xr.merge(
        [errors.assign(cells=int(valid.sum())).assign_coords(units=("variable", units)), *joint],
        join="outer",
        compat="no_conflicts",
    )


def _of_all_cells(
    known: xr.Dataset,
    simulated: xr.Dataset,
    plans: Mapping[str, Plan],
    adjustments: Sequence[Adjustment],
    later: Sequence[Period],
) -> dict[str, xr.Dataset]:
    """Compute the properties of the truth, of the raw and of the adjusted simulation, by variable."""
    made: dict[str, xr.Dataset] = {}
    for how in adjustments:
        series = {TRUTH: known, RAW: simulated, ADJUSTED: how.apply(known, simulated)}
        lazy = {
            name: xr.Dataset({label: plans[name].climates(each[name], later) for label, each in series.items()})
            for name in how.variables
        }
        made |= dask.compute(lazy)[0]
    return {name: made[name] for name in plans}


def _of_variable(whole: xr.Dataset, sampled: xr.Dataset, valid: xr.DataArray, labels: Sequence[str]) -> xr.Dataset:
    """Return a variable's errors by method; NaN for methods that leave the variable out."""
    errors = _errors(sampled.drop_vars(STACKED_DIM, errors="ignore").rename({STACKED_DIM: "cell"}))
    errors = errors.reindex(adjustment=np.array(labels, dtype=object))
    of_all = abs(_errors(whole.where(valid))).mean(valid.dims).reindex(adjustment=errors["adjustment"])
    return errors.assign({f"{name}_of_all": da.drop_vars(set(da.coords) - set(da.dims)) for name, da in of_all.items()})


def _dependence(
    series: Mapping[str, Mapping[str, xr.DataArray]],
    group: Sequence[str],
    plans: Mapping[str, Plan],
    sampling: Sampling,
) -> xr.Dataset:
    """Return the errors of a group's dependence in the later periods, and their noise: (joint, …), pairs first.

    Dry days are alike in correlations. For energy distances, every third day counts, as successive days have much in
    common. The noise is that of `resampled`; energy distances, which go by squares, add up over both periods.
    """
    given = {
        label: xr.Dataset({name: plans[name].shown(of[name]) for name in group})
        for label, of in series.items()
        if {*group} <= {*of}
    }
    least = [-np.inf if (wet := plans[name].wet) is None else wet for name in group]
    periods = plans[group[0]].periods(sampling.periods)
    draws, labels = seeds.cell_generator(sampling.seed, "years", 0), [label for label in given if label != TRUTH]
    errors, pairs_away, energies = list[Any](), list[np.ndarray](), list[np.ndarray]()
    for first, last in periods.values():
        compared = [TRUTH, *labels] if energies else [TRUTH]  # the calibration's own errors are not asked for
        here = {label: given[label].sel(time=slice(f"{first}", f"{last}")) for label in compared}
        for _, values, years in statistics.values_by_season(here, group):
            alike = {label: np.where(of < np.reshape(least, (-1, 1, 1)), 0.0, of) for label, of in values.items()}
            known, *others = (statistics.rank_correlation(of) for of in alike.values())
            drawn = Resampling.of(draws, length := last - first + 1, block_years(length))
            pairs = statistics.rank_correlation(alike[TRUTH], years, drawn.weights[:, np.unique(years) - first])
            pairs_away.append(realisations_apart(drawn, np.moveaxis(pairs, 1, 0)))
            truth, *rest = (of[..., ::3] for of in values.values())
            energy, between = statistics.energy_distances(truth, rest, years[::3], draws, drawn.together)
            energies.append(drawn.widening**2 * np.nanmean(between, axis=-1))
            errors += [[*(of - known), distance] for of, distance in zip(others, energy, strict=True)]
    away, between = (np.reshape(of, (len(periods), len(SEASONS), *of[0].shape)) for of in (pairs_away, energies))
    means, sums = np.nanmean(abs(away[1:] - away[0]), axis=-1), (between[1:] + between[0])[..., None]
    noise = np.quantile(np.concatenate([means, sums], axis=-1), statistics.NOISE_QUANTILE, axis=2)
    shape = len(periods) - 1, len(SEASONS), len(labels), *np.shape(errors)[1:]
    names = [*map(", ".join, itertools.combinations(group, 2)), f"{ENERGY} {', '.join(group)}"]
    coords = {"adjustment": labels, "period": list(periods)[1:], "season": list(SEASONS), "joint": names}
    return xr.Dataset(
        {
            "dependence": (("period", "season", "adjustment", "joint", "cell"), np.float32(np.reshape(errors, shape))),
            "dependence_noise": (("period", "season", "joint"), np.float32(noise)),
        },
        {name: (name, np.array(words, dtype=object)) for name, words in coords.items()},
    )


def _errors(of: xr.Dataset) -> xr.Dataset:
    """Return the errors of the level and of the change, by method and later period."""
    methods = [name for name in of.data_vars if name != TRUTH]
    labels = xr.Variable("adjustment", np.array(methods, dtype=object))
    minus_truth: xr.DataArray = join((of[name] - of[TRUTH] for name in methods), labels)
    level = minus_truth.isel(period=slice(1, None))
    change = level - minus_truth.isel(period=0, drop=True)
    return xr.Dataset({"level": level, "change": change}).astype(np.float32)


def climates(series: xr.DataArray, periods: Mapping[str, Period], wet: float | None = None) -> xr.DataArray:
    """Return the properties of a daily series (cells, time) by period and season: (cells, period, season, property).

    Quantiles are linear between days. With `wet`, below which a day is dry, there is the share of wet days, and no 5 %
    quantile. A cell that lacks a day is NaN. Lazy on dask.
    """
    days = Days.of(series)
    for period in periods.values():
        days.require(period, str(series.name))
    groups = [[np.concatenate(season) for season in days.by_season(period)] for period in periods.values()]
    lengths = {"period": len(periods), "season": len(SEASONS), "property": len(PROPERTIES)}
    properties: xr.DataArray = xr.apply_ufunc(
        _climates,
        series,
        kwargs={"groups": groups, "wet": wet},
        input_core_dims=[["time"]],
        output_core_dims=[list(_DIMS)],
        dask="parallelized",
        output_dtypes=[np.float64],
        dask_gufunc_kwargs={"output_sizes": lengths},
    )
    labels = {"period": list(periods), "season": list(SEASONS), "property": list(PROPERTIES)}
    return properties.assign_coords({name: (name, np.array(words, dtype=object)) for name, words in labels.items()})


def _climates(values: np.ndarray, groups: Sequence[Sequence[np.ndarray]], wet: float | None) -> np.ndarray:
    """Compute the properties of each group of days; time is the last axis."""
    return np.stack([np.stack([_properties(values[..., days], wet) for days in each], -2) for each in groups], -3)


def _properties(values: np.ndarray, wet: float | None) -> np.ndarray:
    """Compute the properties over the last axis."""
    found = np.moveaxis(statistics.quantiles(values, list(_QUANTILES.values())), -1, 0)
    made = {"mean": values.mean(axis=-1, dtype=np.float64), **dict(zip(_QUANTILES, found, strict=True))}
    lacking = np.isnan(made["mean"])
    if wet is not None:
        made["wet_days"] = (values >= wet).mean(axis=-1)
        del made["q05"]
    nothing = np.full(values.shape[:-1], np.nan)
    return np.stack([np.where(lacking, np.nan, made.get(name, nothing)) for name in PROPERTIES], -1)


def resampled(truth: xr.DataArray, periods: Mapping[str, Period], seed: str, wet: float | None = None) -> xr.DataArray:
    """Return the mean absolute error between two realisations of the truth's climate, by resampled blocks of years.

    Both the calibration and the later period are resampled, as an adjusted simulation has the noise of both; an error
    of the same size is no error. Blocks of 5 years, of a sixth of a period below 30 years, go round at its end.

    Parameters
    ----------
    truth
        Series in memory, (cells, time).
    periods
        The calibration first.
    seed
        Names the draws: pieces of a domain draw the same years.
    wet
        As of `climates`.
    """
    values, days = truth.transpose(..., "time").values, Days.of(truth)
    draws, away = seeds.cell_generator(seed, "years", 0), list[np.ndarray]()
    for first, last in periods.values():
        by_season = days.by_season((first, last))
        drawn = Resampling.of(draws, length := last - first + 1, block_years(length), REPLICATES)
        chosen = ([np.concatenate([season[year] for year in years]) for season in by_season] for years in drawn.years)
        away.append(realisations_apart(drawn, np.stack([_climates(values, [of], wet)[..., 0, :, :] for of in chosen])))
    apart = [np.abs(later - away[0]).mean(axis=1) for later in away[1:]]
    labels = {"period": list(periods)[1:], "season": list(SEASONS), "property": list(PROPERTIES)}
    coords = {name: (name, np.array(words, dtype=object)) for name, words in labels.items()}
    return xr.DataArray(np.stack(apart, axis=1).astype(np.float32), dims=("replicate", *_DIMS), coords=coords)


def block_years(years: int) -> int:
    """Return how many successive years of a period are resampled together."""
    return max(1, min(BLOCK_YEARS, years // 6))


def realisations_apart(drawn: Resampling, values: np.ndarray) -> np.ndarray:
    """Return how far apart two realisations are: the second one doubles the variance."""
    return np.sqrt(2) * drawn.deviations(values)
