"""The steps of a value from the raw cells to the product, each made again, and the comparison with the product."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from espo_luigi import store
from espo_luigi.audit import cells
from espo_luigi.audit.cells import Cell, Made
from espo_luigi.errors import DataError, ParameterError, not_one_of
from espo_luigi.methods.base import Step
from espo_luigi.science import calendar, quality, stack
from espo_luigi.science import regrid as cascade
from espo_luigi.science.attributes import REPAIRS, STATED_UNITS
from espo_luigi.science.calendar import TimeAxis, day_of
from espo_luigi.science.chunks import REALIZATION
from espo_luigi.science.derivations import NEEDED_FOR, TEMPERATURES, way_from
from espo_luigi.science.geometry.cells import horizontal_dims
from espo_luigi.science.units import convert_to
from espo_luigi.store.marker import processor
from espo_luigi.tasks import partition
from espo_luigi.tasks.adjustment import Adjust, Train
from espo_luigi.tasks.base import package_versions
from espo_luigi.tasks.context import RunContext, context

# How far a value may be from the product's where processors or versions differ: of the value.
TOLERANCE = 1e-5
# Days before and after the day in figures.
_DAYS_AROUND = 45
_SMALLEST_WEIGHT = 1e-9
_STAGES = ("regridding", "training", "adjustment", "clean-up", "product")


@dataclass(frozen=True)
class RawCell:
    """A cell of the raw grid, its weight in the regridded value, and its own value."""

    lat: float
    lon: float
    weight: float
    value: float


@dataclass(frozen=True)
class Adjusted:
    """An adjusted variable: the raw cells, the steps from the regridded to the adjusted value, and the days around.

    `regridded` and `adjusted` are values of the days around, in the reference's units; the place of the day is `day`.
    """

    units: str
    raw: tuple[RawCell, ...]
    steps: tuple[Step, ...]
    day: int
    regridded: tuple[float, ...]
    adjusted: tuple[float, ...]


@dataclass(frozen=True)
class Product:
    """A variable of the product: the steps from the adjusted values, and the archive that has the last one's value."""

    steps: tuple[Step, ...]
    identical: bool
    store: str


@dataclass(frozen=True)
class Way:
    """The way of a day's values in a cell.

    Attributes
    ----------
    date, raw_date
        In the calendars of the product and of the raw files.
    source
        The store that the regridded series was read from; "" if it was made of raw files.
    other_versions
        Packages whose version differs from the product's: that of the product, and that of this process.
    """

    sim_id: str
    members: tuple[str, ...]
    cell: Cell
    date: str
    calendar: str
    raw_date: str
    source: str
    adjusted: Mapping[str, Adjusted]
    products: Mapping[str, Product]
    other_versions: Mapping[str, tuple[str, str]]


def way_of(sim_id: str, lat: float, lon: float, date: str, var: str = "") -> Way:
    """Return the way of the values of a simulation, at a point, on a day; of a variable of the product, or of all.

    Raises
    ------
    ParameterError
        If the simulation, variable, cell or day is none of the run's.
    DataError
        If the inputs of the cell lack a year or more, or a step does not give the product's value.
    StoreError
        If the product or the reference is not there.
    """
    run = context()
    sim_id, infos = _known(run, sim_id, var)
    cell = cells.find_cell(run, lat, lon)
    products = {
        name: cells.in_product(cells.open_product(info.path), run, sim_id, cell)[name] for name, info in infos.items()
    }
    first = next(iter(products.values()))
    step = step_of(first, date)
    pool, needed = partition.pool_of(run, sim_id), run.production.needed(list(infos))
    is_downscaled = run.config.downscaling is not None
    piece = partition.adjusted_piece(run, pool) if is_downscaled else cell.piece
    places = cells.coarse_places(run, pool, cell) if is_downscaled else np.array([cell.place])
    given, source = cells.kept_series(run, pool, piece, places)
    cells.check_complete(given, cell, run.config.biasadjust.variables_of(needed))
    if size := cells.cells_drawn_together(given, needed):
        given, source = cells.kept_series(run, pool, piece, cells.block_of(run, piece, int(places[0]), size))
    series = cells.adjust(given, needed)
    made = cells.finish(run, sim_id, cell, cells.downscale(run, series, cell) if is_downscaled else series, list(infos))
    raw = cells.extracted(sim_id)
    numbers = xr.DataArray(np.arange(raw.sizes["time"]), {"time": raw["time"]}, ["time"])
    axis, day = TimeAxis.of(made.product), made.product["time"].values[step]
    at = int(calendar.convert(numbers, axis.calendar).sel(time=day))
    weights, maps = cells.regridding(run, piece, raw), raw.isel(time=at).compute()
    sources = {source for name in products for source in made_of(made, name, step)[0]}
    # In the order of the way, so that an error names the first step that differs.
    adjusted = {
        name: _adjusted(made, (key, name), day_of(day), weights[name], maps[name])
        for key, ds in made.series.adjusted.items()
        for name in map(str, ds.data_vars)
        if name in sources
    }
    finals = {name: _product(made, kept, step, infos[name]) for name, kept in products.items()}
    marker = store.read_marker(next(iter(infos.values())).path)
    return Way(
        sim_id, tuple(given.members), cell, day_of(day), axis.calendar, day_of(raw["time"].values[at]), source,
        adjusted, finals, other_versions(marker),
    )  # fmt: skip


def _known(run: RunContext, sim_id: str, var: str) -> tuple[str, dict[str, Any]]:
    """The whole id of a simulation, and its archives; raises `ParameterError` with the nearest names."""
    whole = run.full_id(sim_id)
    if whole not in run.simulations:
        raise ParameterError(not_one_of("sim_id", sim_id, list(run.simulations), takes_parts=True))
    known = run.archives(whole)
    if var and var not in known:
        raise ParameterError(not_one_of("var", var, list(known)))
    return whole, {var: known[var]} if var else known


def step_of(data: xr.DataArray, date: str) -> int:
    """Return the time step of a day (YYYY-MM-DD) in a product.

    Raises
    ------
    DataError
        If the product's calendar has no such day.
    ParameterError
        If the day lies outside of the product.
    """
    axis = TimeAxis.of(data)
    places = np.flatnonzero(np.floor(axis.days) == axis.number(date))
    if not places.size:
        spans = f"{day_of(data['time'].values[0])} to {day_of(data['time'].values[-1])}"
        raise ParameterError(f"{date} lies outside of the product, which has {spans}. Give a day inside.")
    return int(places[0])


def other_versions(marker: store.Marker | None) -> dict[str, tuple[str, str]]:
    """Return the packages, and the processor, that differ from the marker's: its own, and the present one."""
    if marker is None:
        return {}
    made = {**marker.versions, "processor": marker.processor}
    here = {**package_versions(), "processor": processor()}
    return {name: (was, here[name]) for name, was in made.items() if was and here.get(name, was) != was}


# Steps


def _adjusted(made: Made, of: tuple[str, str], date: str, weights: cascade.Weights, raw: xr.DataArray) -> Adjusted:
    """The steps of a variable that is adjusted under a name of the configuration; `raw` is the map of the day."""
    (key, var), own = of, made.series.coarse or made.series
    task = Adjust(pool=own.pool, piece=own.piece, var=key)
    scenario = _of_member(own.adjusted[key][var], made.sim_id).isel(loc=0)
    units, axis = str(scenario.attrs["units"]), TimeAxis.of(scenario)
    align = task.how.adjusting_args.align_on or "year"
    series = calendar.convert(own.members[made.sim_id][var].isel(loc=0), axis.calendar, align_on=align)
    # The scenario has the years of its periods only.
    series = convert_to(series.isel(time=np.isin(np.floor(TimeAxis.of(series).days), np.floor(axis.days))), units)
    at = int(np.flatnonzero(np.floor(axis.days) == axis.number(date))[0])
    value, member = float(scenario[at]), list(own.members).index(made.sim_id)
    given = own.training[key], list(own.members.values()), own.references_for(task), own.before
    told = task.steps(*given, date, member, var)
    if told and not _near(told[-1].value, value):
        raise DataError(
            f"adjustment: the steps of {var} give {told[-1].value!r} {units} on {date}, and the method {value!r}: "
            "a defect of the method. Please report it with this cell and day."
        )
    parts, regridded = _regridded(made, weights, raw, float(series[at]), units)
    last = Step(
        "adjusted", value, units, f"{task.how.name}, period {'-'.join(map(str, task.how.training_args.period))}."
    )
    around = slice(max(at - _DAYS_AROUND, 0), at + _DAYS_AROUND + 1)
    steps = [regridded, *told, last]
    if made.series.told is not None:
        steps += made.series.told(key, var, date, member)[1:]  # the first is the coarse value
        scenario = _of_member(made.series.adjusted[key][var], made.sim_id).isel(loc=0)
    before, after = (tuple(map(float, data.values[around])) for data in (series, scenario))
    return Adjusted(units, parts, tuple(steps), at - around.start, before, after)


def _of_member(data: xr.DataArray, sim_id: str) -> xr.DataArray:
    return data.sel({REALIZATION: sim_id}) if REALIZATION in data.dims else data


def _regridded(
    made: Made, weights: cascade.Weights, day: xr.DataArray, value: float, units: str
) -> tuple[tuple[RawCell, ...], Step]:
    """The raw cells of a value with their weights, and the regridded value, which has to be theirs."""
    place = int((made.series.coarse or made.series).places[0])
    repaired, stated = (str(made.series.members[made.sim_id].attrs.get(key, "")) for key in (REPAIRS, STATED_UNITS))
    row = weights.matrix[[place]]
    lat, lon = (one.ravel() for one in weights.source.grid.coordinates())
    flat = np.asarray(convert_to(day, units).transpose(*weights.source.dims).values, np.float64).ravel()
    parts = tuple(
        RawCell(float(lat[source]), float(lon[source]), float(weight), float(flat[source]))
        for weight, source in sorted(zip(row.data, row.indices, strict=True), reverse=True)
        if weight > _SMALLEST_WEIGHT or np.isnan(flat[source])
    )
    found = float(np.float32(sum(part.weight * part.value for part in parts)))
    is_filled = np.isnan(found) and not np.isnan(value)
    if not is_filled and not _near(found, value):
        raise DataError(
            f"regridding: the raw cells and their weights give {found!r} {units} of {day.name}, and the series has "
            f"{value!r}. The raw files or the configuration changed since: run again with `[espo] rerun = stale`."
        )
    between = [name for name in weights.steps if name != cascade.TARGET]
    repairs = [text for text in repaired.split("; ") if text.startswith(f"{day.name} ")]
    said = [f"{len(parts)} raw cells by their weights{', by way of ' + ' and '.join(between) if between else ''}."]
    said += [] if weights.method == "bilinear" else [f"{weights.method}: the weights are shares of areas."]
    said += ["A gap of the raw series was filled (`extraction.simulation.fill_in_time`)."] if is_filled else []
    said += [f"The raw series was repaired: {'; '.join(repairs)}."] if repairs else []
    taken = [text for text in stated.partition(": ")[2].split(", ") if text.startswith(f"{day.name} in ")]
    said += [f"The raw series was taken as {' and '.join(taken)}."] if taken else []
    said += (
        ["Extrapolated: a cell on the way lies outside of the grid before it."] if weights.extrapolated[place] else []
    )
    return parts, Step("regridded", value, units, " ".join(said))


def _product(made: Made, kept: xr.DataArray, step: int, info: Any) -> Product:
    """The last steps of a variable, made again and as the product has it, and the comparison."""
    var, clean = str(kept.name), made.product[str(kept.name)]
    units, again, value = str(clean.attrs.get("units", "")), float(clean.isel(time=step)), float(kept.isel(time=step))
    sources, how = made_of(made, var, step)
    own = made.series.variables
    steps = [
        Step(f"adjusted {name}", one, units if var == name else str(own[name].attrs["units"]), "")
        for name, one in sources.items()
    ]
    treatment = made.run.production.treatment(var)
    bounds = zip(("least", "most"), treatment.clip_var.get(var, ()), strict=False)
    done = [how, *(f"clipped to at {word} {bound:g}" for word, bound in bounds if bound is not None)]
    done += ["at most the potential radiation of its day and latitude"] if var in treatment.limit_var else []
    done += [f"rounded to {treatment.round_var[var]} decimals"] if var in treatment.round_var else []
    done += [] if treatment.bits is None else [f"{treatment.bits} bits of the mantissa kept"]
    steps.append(Step("clean-up", again, units, f"{'; '.join(done)}."))
    if not _near(again, value):
        which = made.series.coarse or made.series
        raw = cells.from_raw(made.run, made.sim_id, {which.piece: which.places})[which.piece]
        changed = ", ".join(made.run.archives(made.sim_id)[var].task.stale())
        blame = f"Changed since: {changed}. Run again with `[espo] rerun = stale`."
        if not changed:
            blame = (
                "Neither configuration nor files changed since, as far as the marker tells: the product was altered."
            )
        raise DataError(
            f"{first_difference(made, raw)}: {var} is {value!r} {units} in {info.path}, and {again!r} when it is made "
            f"again from the kept stores and raw files. {blame}"
        )
    identical = np.array_equal(again, value, equal_nan=True)
    said = "The same, bit for bit." if identical else f"A difference of {value - again:.3g}."
    # A production may be without flags.
    flags = getattr(info.task, "out_flags", None)
    if flags is not None and store.is_complete(flags().path):
        flagged = cells.in_product(store.open_store(flags().path), made.run, made.sim_id, made.cell)
        raised = quality.raised(flagged, var, step)
        said += f" Flags: {', '.join(raised)}." if raised else ""
    return Product((*steps, Step("product", value, units, said)), identical, str(info.path))


def made_of(made: Made, var: str, step: int) -> tuple[dict[str, float], str]:
    """Return the adjusted variables that a variable is made of, with their values, and how."""
    config, adjusted = made.run.config, made.series.variables
    if var in config.derived:
        parts = [made_of(made, name, step)[0] for name in config.derived[var]]
        values = {name: value for part in parts for name, value in part.items()}
        return values, f"derived: {way_from(var, config.derived[var]).words}"
    temperatures = config.consistency
    is_alone = temperatures is None or var not in TEMPERATURES or (var == "tasmax" and temperatures != "swap")
    names = (var,) if is_alone else NEEDED_FOR["swap" if temperatures == "swap" else "derived"]
    values = {name: float(_of_member(adjusted[name], made.sim_id).isel(loc=0, time=step)) for name in names}
    if is_alone:
        return values, "The adjusted value"
    if temperatures == "swap":
        exchanged = values["tasmax"] < values["tasmin"]
        return values, "tasmax and tasmin exchanged" if exchanged else "tasmax is not below tasmin: not exchanged"
    return values, "tasmax - dtr"


# The first step that differs.


def first_difference(made: Made, raw: xr.Dataset) -> str:
    """Return the first step whose kept store differs from the cell that was made again, or else the last.

    `raw` is the regridded series, made of raw files. Where stores before it were deleted, the steps from the first of
    these on are named: "training to clean-up".
    """
    if made.series.coarse is not None:
        return _span(-1, len(_STAGES) - 1)
    own, sim_id, piece = made.series, made.sim_id, made.cell.piece
    names, agrees = {"pool": own.pool, "piece": piece}, -1
    kept = made.run.production.stores_on_the_way(sim_id, piece)
    stores: list[tuple[str, Any, xr.Dataset]] = [("regridding", info, raw) for info in kept["regridding"]]
    stores += [
        ("training", Train(**names, var=var).out_training(), ds) for var, made_ in own.training.items() for ds in made_
    ]
    stores += [("adjustment", Adjust(**names, var=var).out_adjusted(), ds) for var, ds in own.adjusted.items()]
    stores += [("clean-up", info, made.product) for info in kept.get("clean-up", ())]
    for stage, info, ds in stores:
        if store.is_complete(info.path):
            if not _has(info.path, ds, made.cell):
                return f"{_span(agrees, _STAGES.index(stage))} ({info.path.name})"
            agrees = _STAGES.index(stage)
    return _span(agrees, len(_STAGES) - 1)


def _span(agrees: int, differs: int) -> str:
    return " to ".join(dict.fromkeys((_STAGES[min(agrees + 1, differs)], _STAGES[differs])))


def _has(path: Any, own: xr.Dataset, cell: Cell) -> bool:
    """Whether a store has these values in a cell, up to round-off."""
    theirs = store.open_store(path)
    if stack.STACKED_DIM in theirs.dims:
        theirs = theirs.isel({stack.STACKED_DIM: [cell.place]})
    else:
        theirs = theirs.isel(dict(zip(horizontal_dims(theirs), (cell.row, cell.column), strict=True)))
    return all(
        # With a changed setting, a training may have other quantiles.
        dict(data.sizes) == dict(own[name].sizes)
        and np.allclose(data.transpose(*own[name].dims).values, own[name].values, TOLERANCE, 0, equal_nan=True)
        for name, data in theirs.data_vars.items()
        if name in own
    )


def _near(value: float, other: float) -> bool:
    """Whether two values differ by round-off only."""
    return bool(np.isclose(value, other, rtol=TOLERANCE, atol=0, equal_nan=True))
