"""The rules after the product: indicators, their climatologies and changes, by horizon and by level of warming."""

from __future__ import annotations

import functools
import itertools
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import dask
import xarray as xr

from espo_luigi.catalog import Match
from espo_luigi.catalog.files import is_zarr, open_netcdf, open_zarr
from espo_luigi.config import Extraction
from espo_luigi.config.outcomes import ComputeDeltas
from espo_luigi.errors import ConfigurationError, DataError, problems_in
from espo_luigi.files import read_bytes
from espo_luigi.jobs.resources import Resources
from espo_luigi.science import stack
from espo_luigi.science.calendar import canonical, minimum_calendar, whole_years
from espo_luigi.science.chunks import join, rechunk
from espo_luigi.science.definitions import is_file
from espo_luigi.science.derivations import with_lacking
from espo_luigi.science.finalize import scenario as finalize
from espo_luigi.science.geometry.cells import horizontal_dims
from espo_luigi.science.outcomes import indicators as science
from espo_luigi.science.outcomes.climatology import HORIZON, LEVEL, climatology, horizons, missing_years
from espo_luigi.science.outcomes.delta import delta
from espo_luigi.science.outcomes.natures import on_standard_year, with_natures
from espo_luigi.science.outcomes.percentiles import Percentile, compute_percentiles
from espo_luigi.science.outcomes.return_levels import FEWEST_YEARS, return_levels, with_intervals
from espo_luigi.science.outcomes.trends import trends
from espo_luigi.science.outcomes.warming import Warming, global_means, parse_global_means, reaching
from espo_luigi.science.variables import variable
from espo_luigi.tasks import partition
from espo_luigi.tasks.base import EspoTask, SimulationParameter, WildcardParameter, every_piece
from espo_luigi.tasks.context import RunContext
from espo_luigi.tasks.ports import kept, packed, temporary, upstream
from espo_luigi.tasks.product import Move, final_archives
from espo_luigi.tasks.production import summarised
from espo_luigi.tasks.reference import RefDefault
from espo_luigi.tasks.simulation import Regrid, four_years

logger = logging.getLogger(__name__)
_OF_LEVELS = {"units": "K", "long_name": "level of global warming"}
_BASE = ("indicators.base_period", "custom.ref_period")
_READ = ("indicators.definitions", "indicators.freqs", *_BASE)
_FACETS = "{mip_era}/{activity}/{institution}/{source}/{driving}{experiment}/{member}/{freq}/"
_PLACE = "indicators/{domain}/{dataset}/" + _FACETS + "{sim_id}+{domain}+{dataset}+{freq}+"
_OF_REFERENCE = "indicators/{domain}/reference/{ref_source}+{domain}+{freq}+"
_CHUNK_BYTES = 2**23
# Daily data that are read at a time. Uncut, those of the whole domain were in memory: 5.6 GiB for 5 063 cells.
_BLOCK_BYTES = 2**26
Pool = Callable[[xr.Dataset, xr.Dataset], Sequence[xr.Dataset]]
_SMALL = Resources(n_workers=1, cpus_per_task=4, memory="16GB", time="120")


@functools.lru_cache(maxsize=2)
def chosen(run: RunContext) -> Mapping[str, list[tuple[str, Any]]]:
    """Return the indicators by frequency: of files all, of others those that are possible."""
    try:
        return science.by_frequency(_loaded(run)[0].items(), run.needed("indicators").freqs)
    except ConfigurationError as error:
        raise ConfigurationError(f"`indicators.module`: {error}") from error


@functools.lru_cache(maxsize=2)
def _loaded(run: RunContext) -> tuple[dict[str, Any], set[str]]:
    """Return the indicators by name, which xclim reads, and the names of those that are made where it is possible."""
    section, found, run.indicators_left_out = run.needed("indicators"), dict[str, Any](), {}
    if_possible: set[str] = set()
    shared = set.intersection(*(set(_variables(run, name)) for name in section.datasets))
    for module in section.module:
        own = science.load_indicators(module)
        if twice := found.keys() & dict(own):
            raise ConfigurationError(f"{module} has names of another module's indicators: {', '.join(sorted(twice))}.")
        if not is_file(module):
            own, left_out = science.possible(own, shared)
            if not own:
                raise ConfigurationError(f"no indicator of {module} can be computed from {sorted(shared)}.")
            if_possible |= dict(own).keys()
            run.indicators_left_out |= left_out
        found |= own
    return found, if_possible


def _variables(run: RunContext, dataset: str) -> list[str]:
    """Return the variables that a dataset has indicators of."""
    config = run.config
    made = {"scenario": config.published, "simulation": [*config.variables, *config.derived]}
    return made.get(dataset, [*config.extraction.reference.series, *config.derived])


def datasets(run: RunContext) -> list[str]:
    """Return of what each simulation has indicators: the scenario, the regridded simulation."""
    return [name for name in run.needed("indicators").datasets if name != "reference"]


@functools.lru_cache(maxsize=2)
def percentiles(run: RunContext) -> list[Percentile]:
    """Return the percentiles of the base period that the indicators need."""
    every = chosen(run) if run.config.indicators is not None else {}
    return science.percentiles_needed(pair for of in every.values() for pair in of)


def base_period(run: RunContext) -> tuple[str, str]:
    """Return the first and the last year of the percentiles' base period."""
    return run.needed("indicators").base_period or run.config.custom.ref_period


FrequencyParameter = functools.partial(WildcardParameter, lambda run: list(chosen(run)))
DatasetParameter = functools.partial(WildcardParameter, datasets)
_ReferenceParameter = functools.partial(WildcardParameter, lambda run: ["reference"])


def baseline(run: RunContext) -> str:
    """Return the horizon with which changes are compared."""
    deltas = run.config.aggregate.compute_deltas
    return (deltas and deltas.reference_horizon) or "-".join(run.config.custom.ref_period)


def check_outcomes(run: RunContext) -> None:
    """Raise an error if indicators, horizons or levels are not possible, which a run finds out once."""
    if fault := _fault_of_outcomes(run):
        raise fault.with_traceback(None)


@functools.lru_cache(maxsize=2)
def _fault_of_outcomes(run: RunContext) -> ConfigurationError | None:
    try:
        _check_outcomes(run)
    except ConfigurationError as error:
        return error
    return None


def _check_outcomes(run: RunContext) -> None:
    """Check what costs nothing, then try each indicator; of the raw files, calendars are read only.

    Of bundles and xclim's modules, a warning tells which indicators are not possible.
    """
    section, config = run.needed("indicators"), run.config
    _check_base(run)
    _check_horizons(run)
    table = dict(config.table)
    for name, units in config.extraction.variables_and_units.items():
        table[name] = replace(variable(name, table), units=units)
    for (variables, calendar, years), name in _series(run).items():
        how: Any = {"calendar": calendar, "years": years, "if_possible": _loaded(run)[1]}
        how["base_period"] = base_period(run)
        for freq, indicators in chosen(run).items():
            try:
                left_out = science.checked(indicators, sorted(variables), table, [freq], **how)
            except ConfigurationError as error:
                raise ConfigurationError(f"`indicators.module`, of the {name}: {error}") from error
            if freq[:2] not in ("YS", "QS", "MS"):
                raise ConfigurationError(f"`indicators`: got the frequency {freq}; expected YS, QS or MS.")
            if len(left_out) == len(indicators):
                why = problems_in(f"`indicators.freqs`: {freq} without an indicator of the {name}", left_out.values())
                raise ConfigurationError(why)
            run.indicators_left_out.update(left_out)
    if left_out := run.indicators_left_out:
        reasons = {reason.partition(";")[0].rstrip("."): "" for reason in left_out.values()}
        told = [f"{', '.join(name for name, of in left_out.items() if of.startswith(why))}: {why}" for why in reasons]
        modules = ", ".join(section.module)
        logger.warning("`indicators.module`: %s", problems_in(f"the choice of all of {modules}", told))
    every = {name: science.northern_dates(one) for of in chosen(run).values() for name, one in of}
    dated = [f"{name} ({', '.join(map(': '.join, of.items()))})" for name, of in every.items() if of]
    if dated and (south := config.domain.lat_bnds[0]) < 0:
        logger.warning(
            "`indicators.module`: the domain begins at %g degrees north, and these have dates of northern summers: %s. "
            "For southern ones, set half a year later, and `freq`: mid_date: 01-01, freq: YS-JUL.",
            *(south, "; ".join(dated)),
        )
    _check_statistics(run)
    if config.warming_levels:
        _check_levels(run)


def _check_base(run: RunContext) -> None:
    """Raise an error unless all data have the base period, and the indicators' years all of it or none."""
    section, custom = run.needed("indicators"), run.config.custom
    if not (percentiles(run) or _is_calibrated(run)):
        return
    base = _years(base_period(run))
    told = f"`indicators.base_period`: got {base[0]}-{base[1]}, but"
    for name in section.datasets:
        spans = [custom.ref_period] if name == "reference" else custom.stretches
        if not any(int(first) <= base[0] <= base[1] <= int(last) for first, last in spans):
            raise ConfigurationError(f"{told} the {name} has {' and '.join('-'.join(span) for span in spans)}.")
    for first, last in section.periods:
        if int(first) <= base[1] and base[0] <= int(last) and not int(first) <= base[0] <= base[1] <= int(last):
            raise ConfigurationError(f"{told} `indicators.periods` has a part of it only, {first}-{last}.")


def _is_calibrated(run: RunContext) -> bool:
    """Return True if there is an index that is standardized over the base period."""
    return any("cal_start" in one.parameters for of in chosen(run).values() for _, one in of)


def _series(run: RunContext) -> dict[tuple[frozenset[str], str, tuple[int, int]], str]:
    """Return what there are indicators of, each kind once with its name: variables, calendar, shortest stretch."""
    config = run.config
    found: dict[tuple[frozenset[str], str, tuple[int, int]], str] = {}
    raw = {_calendar(run, match, config.extraction.simulation) for match in run.simulations.values()}
    shortest = min(_spans(run), key=lambda years: years[1] - years[0])
    for name in run.needed("indicators").datasets:
        calendars, years = raw, shortest
        if name == "scenario":
            calendars = {minimum_calendar(calendar, config.custom.maximal_calendar) for calendar in raw}
        elif name == "reference":
            reference = _calendar(run, run.reference(), config.extraction.reference)
            calendars, years = {reference}, _years(config.custom.ref_period)
        for calendar in sorted(calendars):
            found.setdefault((frozenset(_variables(run, name)), calendar, years), f"{name} ({calendar} calendar)")
    return found


def _calendar(run: RunContext, match: Match, extraction: Extraction) -> str:
    """Return the calendar of a dataset's first file, or if that cannot be read, the fullest that products have."""
    asset, options = match.assets[0], {**extraction.extract_dataset.xr_open_kwargs, "decode_times": False}
    try:
        with_zarr = is_zarr(asset.path, asset.columns.get("format", ""))
        with open_zarr(asset.path, options) if with_zarr else open_netcdf(asset.path, (), options) as ds:
            return canonical(str(ds["time"].attrs.get("calendar", "standard")))
    except Exception:  # a backend may raise nearly anything on a damaged file, which the check of inputs names
        return str(run.config.custom.maximal_calendar)


def _check_horizons(run: RunContext) -> None:
    config = run.config
    deltas, spans = config.aggregate.compute_deltas, _spans(run)
    data = [_years(stretch) for stretch in config.custom.stretches]
    ends = [("indicators.periods", span, data) for span in spans]
    ends += [("aggregate.climatological_op.periods", period, spans) for period in _ranges(run)]
    if deltas or config.warming_levels:
        ends.append(("aggregate.compute_deltas.reference_horizon", _years(baseline(run).split("-")), spans))
    if _is_calibrated(run):
        ends.append(("indicators.base_period", _years(base_period(run)), spans))
    for key, (first, last), within in ends:
        if not any(start <= first <= last <= end for start, end in within):
            told = ", ".join(f"{start}-{end}" for start, end in within)
            raise ConfigurationError(f"`{key}`: got {first}-{last}, expected years within the data, {told}.")


def _check_statistics(run: RunContext) -> None:
    """Raise an error if a statistic or change over years is not possible: zeros are tried."""
    aggregate, sample, key = run.config.aggregate, _sample(run), "aggregate.climatological_op"
    try:
        made = _climatology(run, sample, _horizons(run))
        key = "aggregate.compute_deltas"
        if deltas := aggregate.compute_deltas:
            delta(made, baseline(run), kind=deltas.kind, least=deltas.least)
        key = "aggregate.trends"
        if aggregate.trends:
            trends(sample, **_arguments(run, "trends"))
        key = "aggregate.return_levels"
        if levels := aggregate.return_levels:
            if strange := sorted({*levels.indicators} - {*map(str, sample)}):
                raise ConfigurationError(f"got {', '.join(strange)}, expected of {', '.join(map(str, sample))}.")
            made = return_levels(sample[[*levels.indicators]], **_arguments(run, "return_levels"), resamples=0)
            if deltas:
                delta(made, baseline(run))
    except (ConfigurationError, DataError) as error:
        raise ConfigurationError(f"`{key}`: {error}") from error


def _climatology(run: RunContext, ds: xr.Dataset, periods: Any = None) -> xr.Dataset:
    asked = run.config.aggregate.climatological_op.arguments("window", "stride", "periods", "rename_variables")
    return climatology(on_standard_year(ds), **asked, periods=periods)


def _sample(run: RunContext) -> xr.Dataset:
    """Return zeros for the years of the indicators, with the names and units that these will have."""
    years = [year for first, last in _spans(run) for year in range(first, last + 1)]
    time = xr.date_range(f"{years[0]}-01-01", f"{years[-1]}-12-31", freq="YS", calendar="noleap", use_cftime=True)
    zeros = xr.DataArray([0.0] * time.size, {"time": time}, ("time",))
    found = {attrs["var_name"]: (attrs, one) for of in chosen(run).values() for _, one in of for attrs in one.cf_attrs}
    # xclim sets units of 1 only when it computes.
    named = {name: zeros.assign_attrs({"units": "1", **attrs}) for name, (attrs, _) in found.items()}
    indices = {name: one.compute.__name__ for name, (_, one) in found.items()}
    whole = with_natures(xr.Dataset(named, attrs={"cat:xrfreq": "YS"}), indices)
    return whole.sel(time=whole["time"].dt.year.isin(years))


def _spans(run: RunContext) -> list[tuple[int, int]]:
    """The years of the indicators, without a gap each."""
    return [_years(span) for span in run.needed("indicators").periods or run.config.custom.stretches]


def _ranges(run: RunContext) -> list[tuple[int, int]]:
    return [_years(period) for period in run.config.aggregate.climatological_op.periods] or _spans(run)


def _arguments(run: RunContext, product: str, sim_id: str | None = None) -> dict[str, Any]:
    """Return the arguments of trends or return levels; of the reference (""), for the only period, its years."""
    asked: Any = getattr(run.config.aggregate, product)
    given = asked.model_dump(exclude={"indicators"})
    given["season_year"] = run.config.aggregate.climatological_op.season_year
    if sim_id == "":
        fraction = asked.min_periods if isinstance(asked.min_periods, float) else None
        return given | {"periods": (), "min_periods": fraction}
    return given | {"periods": asked.periods or (_spans if product == "trends" else _horizons)(run)}


def _by_period(function: Callable[..., xr.Dataset], indicators: xr.Dataset, given: dict[str, Any]) -> xr.Dataset:
    """Return trends or return levels; periods that the data lack are NaN."""
    years, wanted = {*indicators["time"].dt.year.values}, given["periods"] or ()
    there = [ends for ends in wanted if years >= {*range(int(ends[0]), int(ends[1]) + 1)}]
    made = function(indicators, **given | {"periods": there})
    return made.reindex({HORIZON: [f"{first}-{last}" for first, last in wanted]}) if wanted else made


def with_levels(run: RunContext, freq: str) -> list[str]:
    """Return the indicators of a frequency of which there are return levels."""
    asked = run.config.aggregate.return_levels
    made = {attrs["var_name"] for _, one in chosen(run)[freq] for attrs in one.cf_attrs}
    return [name for name in asked.indicators if name in made] if asked else []


def _horizons(run: RunContext) -> list[tuple[int, int]]:
    asked = run.config.aggregate.climatological_op
    return horizons(_ranges(run), asked.window, asked.stride)


def _years(period: Sequence[str]) -> tuple[int, int]:
    first, last = period
    return int(first), int(last)


def warming(run: RunContext, *sim_ids: str) -> Warming:
    """Return the years of each level of simulations; levels in years that the scenarios lack are absent."""
    section = run.needed("warming_levels")
    source, spans = section.tas_src, _spans(run)
    found = reaching(
        {sim_id: run.simulation(sim_id).columns for sim_id in sim_ids},
        section.wl,
        parse_global_means(read_bytes(source), str(source)) if source else global_means(),
        base=_years(section.tas_baseline_period),
        window=section.window,
        any_member=section.ignore_member,
    )
    for sim_id, periods in found.periods.items():
        for level, period in list(periods.items()):
            if not any(first <= period[0] and period[1] <= last for first, last in spans):
                there = " and ".join(f"{first}-{last}" for first, last in spans)
                years = "{}-{}".format(*periods.pop(level))
                found.absent[sim_id][level] = f"the period {years} is not in the data, which are of {there}"
    return found


def _check_levels(run: RunContext) -> None:
    least, (first, last) = run.config.aggregate.climatological_op.min_periods, _years(baseline(run).split("-"))
    lengths = {"warming_levels.window": run.needed("warming_levels").window, "the baseline": last - first + 1}
    for what, length in lengths.items():
        if isinstance(least, int) and least > length:
            raise ConfigurationError(
                f"`aggregate.climatological_op.min_periods`: got {least}, but {what} has {length} years; expected at "
                "most as many, or a fraction."
            )
    try:
        found = warming(run, *run.simulations)
    except (DataError, OSError) as error:
        raise ConfigurationError(f"`warming_levels.tas_src`: {error}") from error
    reasons = [f"{sim_id}: {levels_in_words(why)}" for sim_id, why in found.absent.items() if why]
    if not any(found.periods.values()):
        raise ConfigurationError(
            f"`warming_levels`: no simulation reaches any of {', '.join(map(str, run.needed('warming_levels').wl))} K "
            f"({'; '.join(reasons)}). Leave the levels out, or give a table of global means, `warming_levels.tas_src`."
        )
    for reason in reasons:
        logger.warning("Levels of warming of %s.", reason)


def levels_in_words(absent: Mapping[float, str]) -> str:
    """Return why levels of warming are absent, each reason once, after its levels."""
    levels: dict[str, list[str]] = {}
    for level, why in absent.items():
        levels.setdefault(why, []).append(f"{level:g} K")
    return "; ".join(f"{', '.join(of)}: {why}" for why, of in levels.items())


class OfProducts(EspoTask):
    """A rule after the product."""

    resources_default = _SMALL
    # The level of processing in the catalogue.
    makes: ClassVar[str] = ""

    def check(self) -> None:
        """Raise an error, too, if what the configuration asks for is not possible."""
        super().check()
        if not self.complete():
            check_outcomes(self.context)

    def layout(self, dataset: xr.Dataset) -> dict[str, Any]:
        """Return that the marker file gets the SHA-256 of all files: no archive has their CRC-32."""
        return {"summed": True}

    def described(self, made: xr.Dataset) -> xr.Dataset:
        """Return the output with the attributes of its row in the catalogue, in chunks of several of the product's.

        A chunk has all times. Horizons and years in chunks of as few cells as days have would be thousands of files.
        """
        dataset = getattr(self, "dataset", "reference").replace("scenario", "")
        what = "-".join(filter(None, (self.makes, getattr(self, "product", "").replace("_", "-"))))
        attrs = {
            "cat:processing_level": "_".join(filter(None, (what, dataset))),
            "cat:xrfreq": str(getattr(self, "freq", "fx")),
        }
        final = {dim: size for dim, size in self.context.config.custom.final_chunks.items() if dim in made.sizes}
        cells = {dim: size if size > 0 else made.sizes[dim] for dim, size in final.items() if dim != "time"}
        largest = max(data.nbytes for data in made.values()) * math.prod(cells[dim] / made.sizes[dim] for dim in cells)
        several = max(1, int((_CHUNK_BYTES / largest) ** 0.5))
        chunks = {dim: several * size for dim, size in cells.items()}
        kept = {key: value for key, value in made.attrs.items() if key not in ("cat:variable", "cat:frequency")}
        cut = rechunk(made, {**chunks, "time": -1, HORIZON: -1, LEVEL: -1})
        return cut.drop_attrs(deep=False).assign_attrs({**kept, **attrs})

    def percentiles(self, parts: Sequence[xr.Dataset], grids: Sequence[xr.Dataset] = ()) -> xr.Dataset:
        """Return percentiles of the base period, of maps, or of the stacked cells of pieces, on their whole grid."""
        config, base = self.context.config, _years(base_period(self.context))
        days = (_in_blocks(_daily(whole_years(part, *base)), whole=True) for part in parts)
        made = (with_lacking(part, config.derived, config.table) for part in days)
        whole = [compute_percentiles(part, percentiles(self.context), base) for part in made]
        return self.described(on_the_grid(whole, grids, config.custom.final_chunks) if grids else whole[0])


class OutcomeTask(OfProducts):
    """A rule after the product, of a frequency."""

    freq = FrequencyParameter()

    def indicators(
        self, parts: Sequence[xr.Dataset], grids: Sequence[xr.Dataset], of_base: Sequence[xr.Dataset]
    ) -> xr.Dataset:
        """Return the indicators of daily data: of maps, or of the stacked cells of pieces, on their whole grid."""
        config, section, whole = self.context.config, self.context.needed("indicators"), []
        how: Any = {"freqs": [self.freq], "if_possible": _loaded(self.context)[1]}
        how["base_period"] = base_period(self.context)
        for part in parts:
            daily = with_lacking(_in_blocks(_daily(part)), config.derived, config.table)
            years = section.periods if hasattr(self, "sim_id") else []
            days = join([whole_years(daily, *period) for period in years], "time") if years else daily
            per = (stack.stacked_as(of_base[0], part) if grids else of_base[0]) if of_base else None
            of = chosen(self.context)[self.freq]
            whole.append(science.compute_indicators(days, of, percentiles=per, **how)[self.freq])
        return self.described(on_the_grid(whole, grids, config.custom.final_chunks) if grids else whole[0])


def _daily(part: xr.Dataset) -> xr.Dataset:
    return part[[name for name, data in part.data_vars.items() if "time" in data.dims]]


def _in_blocks(daily: xr.Dataset, *, whole: bool = False) -> xr.Dataset:
    """Return daily data cut into blocks of some chunks of the store: maps of four years, or whole series."""
    are_series = whole or stack.STACKED_DIM in daily.dims
    times = -1 if are_series else four_years(daily)
    sizes = {dim: times if dim == "time" else "auto" for dim in daily.dims}
    with dask.config.set({"array.chunk-size": (1 + are_series) * _BLOCK_BYTES}):
        # Only data: dask has no size of texts, such as names of stations.
        cut = {name: one.variable.chunk({dim: sizes[dim] for dim in one.dims}) for name, one in daily.data_vars.items()}
    return daily.assign(cut).unify_chunks()


def on_the_grid(parts: Sequence[xr.Dataset], grids: Sequence[xr.Dataset], chunks: Mapping[str, int]) -> xr.Dataset:
    """Return the stacked cells of all pieces on the whole grid; lazy."""
    bare = [grid.drop_vars("land") for grid in grids]
    y, _ = horizontal_dims(bare[0])
    if not all(grid[y].equals(bare[0][y]) for grid in bare):  # boxes, from south to north
        ordered = bare if finalize.ascending(bare[0], y) else bare[::-1]
        bare = [join(ordered, y)]
    # Attributes of the cells' coordinates tell of a piece; the grid has its own.
    of_cells = [name for name, coord in parts[0].coords.items() if stack.STACKED_DIM in coord.dims]
    cells = [part.assign_coords({name: part[name].drop_attrs() for name in of_cells}) for part in parts]
    return stack.unstack_fill_nan(join(cells, stack.STACKED_DIM, what="The slices"), bare[0], {**chunks, "time": -1})


class _OfDays(OfProducts):
    """A rule that reads the days of a scenario, or of its regridded simulation."""

    dataset, sim_id = DatasetParameter(), SimulationParameter()
    resources_default = Resources(n_workers=3, cpus_per_task=12, memory="48GB", time="1000")
    in_final = final_archives(
        lambda task: task.context.config.published,
        sim_id=lambda task: task.sim_id if task.dataset == "scenario" else [],
    )
    in_pieces = summarised("regridded", (Move, Regrid), piece=lambda task: task.pieces)
    in_grids = upstream(RefDefault, "out_grid", piece=lambda task: task.pieces)
    uncut = ("in_final", "in_pieces")

    @property
    def pieces(self) -> list[str]:
        """The pieces of the regridded simulation; none for the scenario."""
        return every_piece(self) if self.dataset == "simulation" else []


class _OfReference(OfProducts):
    """A rule that reads the days of the reference."""

    resources_default = _OfDays.resources_default
    in_pieces = upstream(RefDefault, "out_reference", piece=every_piece)
    in_grids = upstream(RefDefault, "out_grid", piece=every_piece)
    uncut = ("in_pieces",)


class Percentiles(_OfDays):
    """Rule `percentiles`, new against ESPO-G: of a base period, for indicators of all frequencies."""

    reads = ("indicators.definitions", *_BASE)
    out_percentiles = kept(_PLACE.replace("{freq}", "fx") + "percentiles.zarr")
    makes = "percentiles"

    def compute(self, final: Any, pieces: list[xr.Dataset], grids: list[xr.Dataset]) -> xr.Dataset:
        """Compute all percentiles that indicators of any frequency need."""
        return self.percentiles(pieces or [finalize.merge_products(final)], grids)


class ReferencePercentiles(_OfReference):
    """Rule `reference_percentiles`, new against ESPO-G: percentiles of the reference's base period."""

    dataset = _ReferenceParameter()
    reads = (*Percentiles.reads, partition.NAMES_KEY)
    out_percentiles = kept(_OF_REFERENCE.replace("{freq}", "fx") + "percentiles.zarr")
    makes = "percentiles"

    def compute(self, pieces: list[xr.Dataset], grids: list[xr.Dataset]) -> xr.Dataset:
        """Compute all percentiles that indicators of any frequency need."""
        return self.percentiles(pieces, grids)


class Indicators(_OfDays, OutcomeTask):
    """Rule `indicators`, new against ESPO-G: climate indicators of a scenario, or of its regridded simulation."""

    in_percentiles = upstream(
        Percentiles, "out_percentiles", sim_id=lambda task: [task.sim_id] if percentiles(task.context) else []
    )
    reads = (*_READ, "indicators.periods")
    out_computed = temporary("{sim_id}+{domain}+{dataset}+{freq}+indicators.zarr")
    out_indicators = packed(_PLACE + "indicators.zarr.zip", "out_computed")
    makes = "indicators"

    def compute(
        self, final: Any, pieces: list[xr.Dataset], grids: list[xr.Dataset], percentiles: list[xr.Dataset]
    ) -> xr.Dataset:
        """Compute the indicators of this frequency."""
        return self.indicators(pieces or [finalize.merge_products(final)], grids, percentiles)


class ReferenceIndicators(_OfReference, OutcomeTask):
    """Rule `reference_indicators`, new against ESPO-G: climate indicators of the reference."""

    in_percentiles = upstream(
        ReferencePercentiles, "out_percentiles", dataset=lambda task: ["reference"] if percentiles(task.context) else []
    )
    reads = (*_READ, partition.NAMES_KEY)
    out_indicators = kept(_OF_REFERENCE + "indicators.zarr")
    makes = "indicators"

    def compute(self, pieces: list[xr.Dataset], grids: list[xr.Dataset], percentiles: list[xr.Dataset]) -> xr.Dataset:
        """Compute the indicators of this frequency, of all years of the reference."""
        return self.indicators(pieces, grids, percentiles)


class Climatology(OutcomeTask):
    """Rule `climatology`, new against ESPO-G: the indicators' statistics over windows of years."""

    dataset, sim_id = DatasetParameter(), SimulationParameter()
    in_indicators = upstream(Indicators, "out_indicators")
    reads = ("aggregate.climatological_op",)
    out_climatology = kept(_PLACE + "climatology.zarr")
    makes = "climatology"

    def compute(self, indicators: xr.Dataset) -> xr.Dataset:
        """Compute each horizon; horizons that the data lack are NaN."""
        asked = self.context.config.aggregate.climatological_op
        given = asked.arguments("window", "stride", "periods", "rename_variables")
        given["periods"] = _horizons(self.context) if self.sim_id else None
        made = _by_period(climatology, on_standard_year(indicators), given)
        return self.described(made.assign_attrs(missing_years=missing_years(indicators, asked.season_year)))


class ReferenceClimatology(Climatology):
    """Rule `reference_climatology`, new against ESPO-G: the reference's indicators over its years, the only horizon."""

    dataset, sim_id = "reference", ""
    in_indicators = upstream(ReferenceIndicators, "out_indicators")
    out_climatology = kept(_OF_REFERENCE + "climatology.zarr")


class DeltaTask(OutcomeTask):
    """A rule of changes."""

    dataset, sim_id = DatasetParameter(), SimulationParameter()

    def change(self, ds: xr.Dataset, base: xr.Dataset, pool: Pool | None = None) -> xr.Dataset:
        """Return the changes since the baseline, of the kinds that are asked for, or those of what `pool` returns."""
        asked = self.context.config.aggregate.compute_deltas or ComputeDeltas()
        names = {str(name).partition("_clim_")[0] for name in ds.data_vars}
        kind, least = asked.kind, {name: text for name, text in asked.least.items() if name in names}
        own = kind if isinstance(kind, str) else {name: one for name, one in kind.items() if name in names}
        ds, base = pool(ds, base) if pool else (ds, base)
        return delta(ds, base, kind=own, least=least)


class Delta(DeltaTask):
    """Rule `delta`, new against ESPO-G: the changes of the indicators' climatologies since a baseline."""

    in_climatology = upstream(Climatology, "out_climatology")
    reads = ("aggregate.compute_deltas", "custom.ref_period")
    out_delta = kept(_PLACE + "delta.zarr")
    makes = "delta"

    def compute(self, climatology: xr.Dataset, pool: Pool | None = None) -> xr.Dataset:
        """Compare each horizon with the baseline."""
        return self.described(self.change(climatology, climatology.sel({HORIZON: [baseline(self.context)]}), pool))


class WarmingLevels(DeltaTask):
    """Rule `warming_levels`, new against ESPO-G: changes in the years in which a model reaches levels of warming."""

    in_indicators = upstream(Indicators, "out_indicators")
    reads = ("aggregate.compute_deltas", "aggregate.climatological_op", "custom.ref_period", "warming_levels")
    out_warming_levels = kept(_PLACE + "warming-levels.zarr")
    makes = "warming-levels"

    def compute(self, indicators: xr.Dataset, pool: Pool | None = None) -> xr.Dataset:
        """Compare the years of each level with the baseline; levels that are not reached are NaN."""
        levels, found = self.context.needed("warming_levels").wl, warming(self.context, self.sim_id)
        periods, absent = found.periods[self.sim_id], dict(found.absent[self.sim_id])
        of = functools.partial(_climatology, self.context, indicators)
        base = of([tuple(baseline(self.context).split("-"))])
        made = {}
        for level, period in periods.items():
            try:
                made[level] = of([period]).isel({HORIZON: 0}, drop=True)
            except DataError as error:  # the series ends before
                absent[level] = str(error)
        if not made:
            made[levels[0]] = base.isel({HORIZON: 0}, drop=True).where(False)
        joined = join(made.values(), xr.Variable(LEVEL, list(made), _OF_LEVELS))
        years = "; ".join(f"{level:g} K: {first}-{last}" for level, (first, last) in periods.items() if level in made)
        lacks = levels_in_words(absent)
        changes = self.change(joined, base, pool).reindex({LEVEL: list(levels)})
        return self.described(changes.assign_attrs(warming_level_years=years, warming_level_absent=lacks))


class Trends(OutcomeTask):
    """Rule `trends`, new against ESPO-G: the indicators' trends over periods of years, with their p-values."""

    dataset, sim_id = DatasetParameter(), SimulationParameter()
    in_indicators = upstream(Indicators, "out_indicators")
    reads = ("aggregate.trends", "aggregate.climatological_op.season_year")
    out_trends = kept(_PLACE + "trends.zarr")
    makes = "trends"

    def compute(self, indicators: xr.Dataset) -> xr.Dataset:
        """Compute the trends of each period."""
        given = _arguments(self.context, "trends", self.sim_id)
        return self.described(_by_period(trends, on_standard_year(indicators), given))


class ReferenceTrends(Trends):
    """Rule `reference_trends`, new against ESPO-G: the trends of the reference's indicators over its years."""

    dataset, sim_id = "reference", ""
    in_indicators = upstream(ReferenceIndicators, "out_indicators")
    out_trends = kept(_OF_REFERENCE + "trends.zarr")


class ReturnLevels(DeltaTask):
    """Rule `return_levels`, new against ESPO-G: return levels of maxima and minima, their changes and intervals."""

    in_indicators = upstream(Indicators, "out_indicators")
    reads = (
        *("aggregate.return_levels", "aggregate.compute_deltas", "custom.ref_period"),
        *(f"aggregate.climatological_op.{key}" for key in ("periods", "window", "stride", "season_year")),
    )
    out_return_levels = kept(_PLACE + "return-levels.zarr")
    makes = "return-levels"

    def compute(self, indicators: xr.Dataset, pool: Pool | None = None) -> xr.Dataset:
        """Fit each period and compare it with the baseline, of the data and of each resample."""
        run, names = self.context, with_levels(self.context, str(self.freq))
        levels = _by_period(return_levels, indicators[names], _arguments(run, "return_levels", self.sim_id))
        if not (run.config.aggregate.compute_deltas and self.sim_id):
            return self.described(with_intervals(pool(levels, levels.isel({HORIZON: [0]}))[0] if pool else levels))
        base = levels.sel({HORIZON: [baseline(run)]})
        levels, base = pool(levels, base) if pool else (levels, base)
        return self.described(with_intervals(join([levels, self.change(levels, base)])))


class ReferenceReturnLevels(ReturnLevels):
    """Rule `reference_return_levels`, new against ESPO-G: return levels of the reference over its years."""

    dataset, sim_id = "reference", ""
    in_indicators = upstream(ReferenceIndicators, "out_indicators")
    reads = ("aggregate.return_levels", "aggregate.climatological_op.season_year")
    out_return_levels = kept(_OF_REFERENCE + "return-levels.zarr")


def ends_of_outcomes(run: RunContext) -> Iterator[EspoTask]:
    """Yield the last tasks of the rules after the product, as far as the configuration asks for them."""
    if run.config.indicators is None:
        return
    aggregate, (first, last) = run.config.aggregate, _years(run.config.custom.ref_period)
    for freq in chosen(run):
        levels, deltas = with_levels(run, freq), aggregate.compute_deltas
        if "reference" in run.config.indicators.datasets:
            is_long = last - first + 1 >= FEWEST_YEARS
            asked: dict[Any, Any] = {ReferenceClimatology: True, ReferenceTrends: aggregate.trends}
            asked[ReferenceReturnLevels] = levels and is_long
            yield from (rule(freq=freq) for rule, given in asked.items() if given)
        wanted = {Delta: deltas, Climatology: not deltas, Trends: aggregate.trends, ReturnLevels: levels}
        rules = [rule for rule, given in (wanted | {WarmingLevels: run.config.warming_levels}).items() if given]
        for dataset, sim_id in itertools.product(datasets(run), run.simulations):
            yield from (rule(freq=freq, dataset=dataset, sim_id=sim_id) for rule in rules)
