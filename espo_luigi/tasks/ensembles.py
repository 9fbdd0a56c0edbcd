"""The rules over simulations: statistics of ensembles on the grid, and over regions."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import h5py
import numpy as np
import xarray as xr

from espo_luigi import store
from espo_luigi.catalog.open import open_grid
from espo_luigi.config.outcomes import EnsemblesSection, files_of
from espo_luigi.errors import ConfigurationError, DataError
from espo_luigi.export import netcdf
from espo_luigi.files import open_regular
from espo_luigi.replacing import check_ours
from espo_luigi.science import stack
from espo_luigi.science.attributes import FEWEST, FEWEST_ROBUST
from espo_luigi.science.chunks import join
from espo_luigi.science.geometry.boxes import Box
from espo_luigi.science.geometry.cells import cut_to_outline, extent, horizontal_dims, outline
from espo_luigi.science.geometry.cutting import spread_over, subset_box
from espo_luigi.science.netcdf import text_attribute
from espo_luigi.science.outcomes.climatology import HORIZON, LEVEL, MEMBER, by_year, least_years
from espo_luigi.science.outcomes.natures import INITIALS, NAMES, on_standard_year
from espo_luigi.science.outcomes.regions import Point, parse_regions, region_means
from espo_luigi.science.outcomes.return_levels import RETURN_PERIOD
from espo_luigi.science.outcomes.trends import UNCERTAINTY_OF
from espo_luigi.tasks import partition
from espo_luigi.tasks.base import EspoTask, WildcardParameter, provenance
from espo_luigi.tasks.context import RunContext
from espo_luigi.tasks.outcomes import (
    Climatology,
    DatasetParameter,
    Delta,
    Indicators,
    OutcomeTask,
    ReturnLevels,
    Trends,
    WarmingLevels,
    baseline,
    chosen,
    datasets,
    with_levels,
)
from espo_luigi.tasks.ports import kept, upstream

ALL = "all"
_RULES = {
    **{"indicators": Indicators, "climatology": Climatology, "delta": Delta, "warming_levels": WarmingLevels},
    **{"trends": Trends, "return_levels": ReturnLevels},
}
_CHANGES = ("delta", "warming_levels")
# Of what regions have means: their changes and trends are those of these means.
_POOLED = {**_RULES, "delta": Climatology, **dict.fromkeys(("warming_levels", "trends", "return_levels"), Indicators)}
# A trend with a higher p-value is taken for none.
_SIGNIFICANT = 0.05
_PLACE = "ensembles/{domain}/{dataset}/{experiment}/{freq}/{experiment}+{domain}+{dataset}+{freq}+{product}+"
# The global attribute of a NetCDF file with the id of its marker, which the table beside it has.
_MARKER = "espo_luigi_marker"


def products(run: RunContext) -> list[str]:
    """Return of what there are ensembles."""
    of = run.config.aggregate
    made: dict[str, Any] = {**dict(of), "delta": of.compute_deltas, "warming_levels": run.config.warming_levels}
    return [name for name in _settings(run).processing_levels if made.get(name, True) is not None]


def _settings(run: RunContext) -> EnsemblesSection:
    return run.config.ensembles or EnsemblesSection()


def experiment_of(columns: Mapping[str, str]) -> str:
    """Return the scenario of a row of the catalogue: of historical+ssp585, ssp585; "unknown" if there is none."""
    return (columns.get("experiment") or "unknown").rpartition("+")[2]


def members(run: RunContext, experiment: str) -> list[str]:
    """Return the simulations of an experiment, or all."""
    found = run.simulations.items()
    return [sim_id for sim_id, match in found if experiment in (ALL, experiment_of(match.columns))]


def dropped(run: RunContext, experiment: str) -> dict[str, str]:
    """Return the simulations of an experiment, or all, that the search drops, each with the reason."""
    of = {sim_id: experiment_of(columns) for sim_id, columns in run.columns_of_dropped.items()}
    return {sim_id: why for sim_id, why in run.dropped.items() if experiment in (ALL, of[sim_id])}


def _experiments(run: RunContext) -> list[str]:
    return [ALL, *sorted({experiment_of(match.columns) for match in run.simulations.values()})]


ExperimentParameter = functools.partial(WildcardParameter, _experiments)
ProductParameter = functools.partial(WildcardParameter, products)


@functools.lru_cache(maxsize=2)
def regions(run: RunContext) -> Mapping[str, Any]:
    """Return the regions by name; raises `ConfigurationError` if a file cannot be used."""
    found: dict[str, Any] = {}
    for name, asked in run.needed("spatial_mean").regions.items():
        try:
            if asked.method == "shape":
                own = parse_regions(files_of(asked.shape), asked.name_by)
            else:
                is_box = asked.method == "bbox"
                own = {name: Box(asked.lon_bnds, asked.lat_bnds) if is_box else Point(asked.lon, asked.lat)}
            if twice := found.keys() & own.keys():
                raise DataError(f"another region has the name {', '.join(sorted(twice))}; expected a name of its own.")
        except (DataError, OSError) as error:
            raise ConfigurationError(f"`spatial_mean.regions.{name}`: {error}") from error
        found |= own
    return found


class EnsembleTask(OutcomeTask):
    """A rule over the simulations of an experiment; levels of warming take those of all experiments together."""

    experiment, dataset, product = ExperimentParameter(), DatasetParameter(), ProductParameter()
    is_about_all = True
    in_members = upstream(
        tuple(_RULES.values()),
        lambda task: f"out_{task.product}",
        which=lambda task: _RULES[task.product],
        sim_id=lambda task: members(task.context, task.experiment),
    )
    in_yearly = upstream(Indicators, "out_indicators", sim_id=lambda task: task.with_variability)
    reads: ClassVar[tuple[str, ...]] = (
        "ensembles.ensemble_stats",
        "custom.ref_period",
        "aggregate.compute_deltas.reference_horizon",
    )

    def check(self) -> None:
        """Raise an error, too, if no grid holds all members', a simulation has no weight, or a weight no simulation."""
        super().check()
        if self.dataset == "scenario" and not self.complete():
            common_land(self.context, self.experiment)
        weights, run = _settings(self.context).ensemble_stats.weights, self.context
        if not isinstance(weights, Mapping):
            return
        key, ids = "`ensembles.ensemble_stats.weights`", members(run, self.experiment)
        if lacking := [sim_id for sim_id in ids if sim_id not in weights]:
            raise ConfigurationError(f"{key}: no weight of {', '.join(lacking)}; add it.")
        if strange := weights.keys() - run.simulations.keys() - run.dropped.keys():
            got = f"{', '.join(sorted(strange))}, expected simulations: {', '.join(run.simulations)}"
            raise ConfigurationError(f"{key}: got {got}.")
        if min(weights.values()) < 0 or not any(weights[sim_id] for sim_id in ids):
            raise ConfigurationError(
                f"{key}: got {dict(weights)}; expected 0 or more, and for one of {', '.join(ids)} more than 0."
            )

    def work_size(self) -> float:
        """Return the size of all members together."""
        of_member = partition.size_of(self.context, {**self.wildcards, "sim_id": ""})
        return len(members(self.context, self.experiment)) * of_member

    @property
    def with_variability(self) -> list[str]:
        """The simulations whose yearly, seasonal or monthly values tell which changes are robust: of means only."""
        is_mean = self.context.config.aggregate.climatological_op.op == "mean"
        return members(self.context, self.experiment) if self.product in _CHANGES and is_mean else []

    def over_members(self, of_members: list[xr.Dataset], yearly: list[xr.Dataset]) -> tuple[xr.Dataset, xr.Dataset]:
        """Return the members together, and their statistics and agreement; those that are missing are named."""
        from espo_luigi.science.outcomes import ensemble

        run, asked = self.context, _settings(self.context).ensemble_stats
        ids, percentiles = members(run, self.experiment), asked.statistics.ensemble_percentiles
        together = ensemble.join(dict(zip(ids, of_members, strict=True)), dropped(run, self.experiment))
        # P-values and limits of intervals have no statistics over simulations.
        main = together[_main(together)]
        there = ensemble.present(main)
        given = dict(asked.weights) if isinstance(asked.weights, Mapping) else None
        models = {one: _model(run, one) for one in ids} if asked.weights == "models" else None
        weights = {name: ensemble.weigh(there[name], models, given) for name in main}
        least = percentiles.min_members
        made = ensemble.statistics(
            main,
            there,
            percentiles=percentiles.values,
            weights=weights,
            fewest=least,
            fewest_of_percentiles=asked.fewest.percentiles,
        )
        made = made.assign_attrs({FEWEST: asked.fewest.percentiles, FEWEST_ROBUST: asked.fewest.robustness})
        is_trend = self.product == "trends"
        for name in (name for name, data in main.items() if is_trend or "delta_kind" in data.attrs):
            thresholds = self._thresholds(main[name], dict(zip(ids, yearly, strict=True)) if yearly else {})
            if is_trend:
                thresholds = xr.where(together[f"{name}_pvalue"] <= _SIGNIFICANT, 0.0, np.inf)
            how: Any = {"thresholds": thresholds, "weights": weights[name], "fewest": least}
            how["fewest_of_robustness"] = asked.fewest.robustness
            how |= {"criterion": f"has a p-value up to {_SIGNIFICANT}"} if is_trend else {}
            shares = ensemble.agreement(main[name], there[name], **how)
            made = made.merge(shares.rename({key: f"{name}_{key}" for key in shares.data_vars}), compat="override")
        return together, self._partitioned(made, main, there) if asked.partition else made

    def _partitioned(self, made: xr.Dataset, together: xr.Dataset, there: xr.Dataset) -> xr.Dataset:
        """Return the statistics with each yearly indicator's variance by source, or an attribute that says why not."""
        from espo_luigi.science.outcomes.ensemble import Part, partition

        run, method = self.context, str(_settings(self.context).ensemble_stats.partition)
        if self.product != "indicators" or self.experiment != ALL or not self.freq.startswith("YS"):
            return made
        parts, (first, last) = {}, map(int, baseline(run).split("-"))
        for sim_id in members(run, ALL):
            columns = run.simulation(sim_id).columns
            source, driving, scenario = (columns.get(key) or "" for key in ("source", "driving_model", "experiment"))
            is_regional = driving and method == "lafferty-sriver"
            parts[sim_id] = Part(driving, scenario, source) if is_regional else Part(_model(run, sim_id), scenario)
        try:
            split = {name: partition(da, there[name], parts, (first, last), method) for name, da in together.items()}
        except DataError as error:
            return made.assign_attrs(uncertainty_absent=str(error))
        return made.assign({f"{name}_uncertainty": of for name, of in split.items()})

    def _thresholds(self, changes: xr.DataArray, yearly: Mapping[str, xr.Dataset]) -> xr.DataArray | None:
        """Return the changes that exceed each member's variability; None without yearly values."""
        from espo_luigi.science.outcomes.ensemble import MEMBER, variability

        if not yearly:
            return None
        name, (first, last) = str(changes.name).partition("_clim_")[0], baseline(self.context).split("-")
        asked, levels = self.context.config.aggregate.climatological_op, self.context.config.warming_levels
        years = levels.window if levels and self.product == "warming_levels" else asked.window
        years_of = functools.partial(by_year, season_year=asked.season_year)
        base = [
            years_of(on_standard_year(ds[[name]]))[name].sel(year=slice(int(first), int(last)))
            for ds in yearly.values()
        ]
        made = [
            variability(
                of,
                years or of.sizes["year"],
                changes.attrs["delta_kind"],
                least=least_years(asked.min_periods, of.sizes["year"], self.freq, of),
            )
            for of in base
        ]
        thresholds: xr.DataArray = join(made, changes[MEMBER], join="outer")
        return thresholds.broadcast_like(changes)


def _main(ds: xr.Dataset) -> list[str]:
    return [str(name) for name, data in ds.items() if UNCERTAINTY_OF not in data.attrs]


def on_one_grid(members: Sequence[xr.Dataset]) -> list[xr.Dataset]:
    """Return members on the grid of the largest: a regional simulation's products are a part of it."""
    if not members:
        return []
    y, x = horizontal_dims(members[0])
    like = max(members, key=lambda ds: ds.sizes[y] * ds.sizes[x])
    grid = stack.grid_of(like)

    def is_part(ds: xr.Dataset) -> bool:
        return not ds[[y, x]].equals(like[[y, x]]) and all(ds[dim].isin(like[dim]).all() for dim in (y, x))

    return [spread_over(ds, grid) if is_part(ds) else ds for ds in members]


def _model(run: RunContext, sim_id: str) -> str:
    columns = run.simulation(sim_id).columns
    return " ".join(columns.get(name) or "" for name in ("source", "driving_model"))


class Ensemble(EnsembleTask):
    """Rule `ensemble`, new against ESPO-G: statistics over simulations, and whether they agree."""

    out_ensemble = kept(_PLACE + "ensemble.zarr")
    makes = "ensemble"

    def compute(self, members: list[xr.Dataset], yearly: list[xr.Dataset]) -> xr.Dataset:
        """Compute percentiles, mean, standard deviation, and agreement of changes."""
        made = self.over_members(on_one_grid(members), on_one_grid(yearly))[1]
        label = "_".join(self.context.fields[name] for name in ("ref_source", "domain"))
        attrs = {"cat:id": f"{label}_{self.experiment}", "cat:type": "ensemble"}
        if self.product == "warming_levels":
            named = [*zip(made.attrs["ensemble_members"].split("; "), members, strict=True)]
            for key in ("warming_level_years", "warming_level_absent"):
                attrs[key] = "; ".join(f"{name}: {text}" for name, ds in named if (text := ds.attrs.get(key)))
        return self.described(made.assign_attrs(attrs))


class Regions(EnsembleTask):
    """Rule `regions`, new against ESPO-G: means over regions, of each simulation and over simulations."""

    in_members = upstream(
        tuple(dict.fromkeys(_POOLED.values())),
        lambda task: f"out_{_POOLED[task.product].makes}",
        which=lambda task: _POOLED[task.product],
        sim_id=lambda task: members(task.context, task.experiment),
    )
    reads = (
        *("ensembles.ensemble_stats", "custom.ref_period", "warming_levels", "spatial_mean"),
        *("aggregate.climatological_op", "aggregate.compute_deltas"),
    )
    out_table = kept(_PLACE + "regions.csv")

    def check(self) -> None:
        """Raise an error, too, if a region has no land in the domain."""
        super().check()
        check_ours(self._netcdf, _why_not_ours)
        if not self.complete():
            check_regions(self.context, self.experiment if self.dataset == "scenario" else "")

    def reading(self) -> list[str]:
        """Return the keys that it reads, with those of trends or return levels if it has these."""
        return super().reading() + [f"aggregate.{self.product}"] * (self.product in ("trends", "return_levels"))

    @property
    def _netcdf(self) -> Path:
        return Path(self.out_table().path.with_suffix(".nc"))

    def complete(self) -> bool:
        """Return True if the table is complete, and the NetCDF file beside it was made with it."""
        marker = self.out_table().target.marker()
        return super().complete() and marker is not None and maker_of(self._netcdf) == marker.id

    def work(self) -> None:
        """Write the means as NetCDF, then as a table."""
        inputs = [[store.open_store(one().path) for one in ports] for ports in (self.in_members, self.in_yearly)]
        of_members, yearly = map(on_one_grid, inputs)
        ids = members(self.context, self.experiment)
        together, made = self.over_members(
            [self._means(sim_id, ds).compute() for sim_id, ds in zip(ids, of_members, strict=True)],
            [region_means(ds, regions(self.context)).compute() for ds in yearly],
        )
        marker = self.marker()
        whole = made.merge(together, compat="override", combine_attrs="override").assign_attrs(provenance(marker))
        table, attrs = self.context.config.table, {_MARKER: marker.id}
        described = netcdf.statistics_file(whole, self._netcdf.stem, table, attrs)
        netcdf.write_netcdf(described, self._netcdf, netcdf.Layout({}), _why_not_ours)
        columns, rows = _long_table(whole, _main(together), self.experiment)
        store.write_table(columns, rows, self.out_table().path, marker, beside=[self._netcdf])

    def _means(self, sim_id: str, ds: xr.Dataset) -> Any:
        if self.product in ("indicators", "climatology"):
            return region_means(ds, regions(self.context))
        task = _RULES[self.product](sim_id=sim_id, dataset=self.dataset, freq=self.freq)
        if self.product == "trends":
            return task.compute(region_means(ds, regions(self.context)))
        return task.compute(ds, functools.partial(_pooled, self.context))


def _pooled(run: RunContext, ds: xr.Dataset, base: xr.Dataset) -> list[xr.Dataset]:
    """Return regions' means of the cells that have the baseline and each period that any cell has."""
    known, along = ds.notnull(), [dim for dim in (HORIZON, LEVEL) if dim in ds.dims]
    everywhere = (known | ~known.any(horizontal_dims(ds))).all(along) & base.isel({HORIZON: 0}, drop=True).notnull()
    return [region_means(one.where(everywhere), regions(run)) for one in (ds, base)]


def _long_table(ds: xr.Dataset, bases: Sequence[str], experiment: str) -> tuple[list[str], Iterator[store.Row]]:
    """Columns, and a row for each value: of a simulation, whose variables are the `bases`, or of their statistics."""
    along = next((dim for dim in (HORIZON, LEVEL) if dim in ds.dims), "time")
    columns = ["region", "indicator", "long_name", "unit", "experiment", along, "season"]
    columns += [*([RETURN_PERIOD] if RETURN_PERIOD in ds.dims else []), "statistic", "value"]
    seasons = {"M": NAMES, "Q": [(2 * INITIALS)[at : at + 3] for at in range(12)]}
    of_months = seasons.get(ds.attrs.get("cat:xrfreq", "")[:1], ["annual"] * 12)

    def rows_of(name: str, data: xr.DataArray) -> list[Any]:
        base = max((base for base in bases if f"{name}_".startswith(f"{base}_")), key=len)
        # Categories in memory have a number for no category.
        values = data.astype(float).where(data != data.attrs.get("_FillValue", np.nan))
        frame = values.to_dataframe(name="value").reset_index()
        labels = frame[[dim for dim in ("uncertainty", MEMBER) if dim in frame]].to_numpy()
        frame["season"] = frame.get("season", frame.get("month", "annual"))
        if along == "time":
            frame["season"] = [of_months[when.month - 1] for when in frame["time"]]
            frame["time"] = frame["time"].map("{:%Y-%m-%d}".format)
        # Of return levels, there are both in the table.
        change = "delta" if RETURN_PERIOD in ds.dims and "delta_kind" in data.attrs else ""
        frame["statistic"] = ["_".join(filter(None, (change, name[len(base) + 1 :], *row))) for row in labels]
        frame["value"] = ["" if np.isnan(value) else f"{value:.4g}" for value in frame["value"]]
        frame["indicator"], frame["long_name"] = base.partition("_clim_")[0], ds[base].attrs.get("long_name", "")
        frame["unit"], frame["experiment"] = data.attrs.get("units", ""), experiment
        return frame[columns].astype(str).to_dict("records")

    return columns, (row for name, data in ds.data_vars.items() for row in rows_of(str(name), data))


def maker_of(file: Path | BinaryIO) -> str | None:
    """Return the id of the marker of the task that made a NetCDF file; None if there is no such file of ours."""
    try:
        with open_regular(file) if isinstance(file, Path) else nullcontext(file) as held, h5py.File(held) as opened:
            return text_attribute(opened, _MARKER) or None
    # h5py's errors of damaged metadata.
    except (OSError, RuntimeError):
        return None


def _why_not_ours(descriptor: int) -> str:
    with os.fdopen(os.dup(descriptor), "rb") as opened:
        return "" if maker_of(opened) else f"it is no NetCDF-4 file with the global attribute {_MARKER}"


@functools.lru_cache(maxsize=8)
def common_land(run: RunContext, experiment: str) -> xr.Dataset | None:
    """Return the reference's first day on the grid of the largest member of regional simulations only, as products are.

    None if a member covers the domain, or there is none. Raises `ConfigurationError` if that grid lacks rows or columns
    of another member.
    """
    ids = members(run, experiment)
    if not ids or not all(map(run.is_regional, ids)):
        return None
    config, parts = run.config, {}
    options = dict(config.extraction.simulation.extract_dataset.xr_open_kwargs)
    land = partition.cut_box(
        run.reference_on_its_first_day, partition.domain_without_buffer(config).arguments(), "domain"
    )
    for sim_id in ids:
        try:
            grid = subset_box(open_grid(run.simulation(sim_id).assets[0], options), config.domain.arguments())
            parts[sim_id] = cut_to_outline(land, outline(grid["lat"], grid["lon"]))
        # A backend may raise nearly anything on a damaged file, which `InputCheck` names.
        except Exception:
            return None
    y, x = horizontal_dims(land)
    largest = max(parts, key=lambda sim_id: parts[sim_id].sizes[y] * parts[sim_id].sizes[x])
    beyond = [name for name, ds in parts.items() if not all(ds[dim].isin(parts[largest][dim]).all() for dim in (y, x))]
    if beyond:
        told = {one: f"{extent(parts[one]['lat'])} °N, {extent(parts[one]['lon'])} °E" for one in parts}
        raise ConfigurationError(
            f"`ensembles`: all simulations of {experiment} are regional, and no grid holds those of all: got {largest} "
            f"({told[largest]}), and beyond it {beyond[0]} ({told[beyond[0]]}). Expected one that holds all. Make "
            "the domain smaller, exclude one of them, or add a global simulation."
        )
    return parts[largest]


@functools.lru_cache(maxsize=8)
def check_regions(run: RunContext, experiment: str = "") -> None:
    """Raise `ConfigurationError` if a region lies outside of the domain, or of all members, or has no land."""
    box = partition.domain_without_buffer(run.config).arguments()
    common = common_land(run, experiment) if experiment else None
    land = partition.cut_box(run.reference_on_its_first_day, box, "domain") if common is None else common
    try:
        region_means(land[["land"]], regions(run), land["land"].notnull().compute())
    except DataError as error:
        raise ConfigurationError(f"`spatial_mean.regions`: {error}") from error


def _experiments_of(run: RunContext, product: str, freq: str) -> list[str]:
    """Levels of warming, and the partition of variance, take all experiments together."""
    is_split = product == "indicators" and _settings(run).ensemble_stats.partition and freq.startswith("YS")
    each = _experiments(run)
    if product == "return_levels" and not with_levels(run, freq):
        return []
    if product == "warming_levels":
        return [ALL]
    return each if is_split and len(each) > 2 else each[1:]


def ends_of_ensembles(run: RunContext) -> Iterator[EspoTask]:
    """Yield the ensembles and the regions that the configuration asks for."""
    config = run.config
    rules = [rule for rule, given in ((Ensemble, config.ensembles), (Regions, config.spatial_mean)) if given]
    for freq in chosen(run) if config.indicators and rules else ():
        for product in products(run):
            for experiment in _experiments_of(run, product, freq):
                for dataset in datasets(run):
                    for rule in rules:
                        yield rule(freq=freq, product=product, experiment=experiment, dataset=dataset)
