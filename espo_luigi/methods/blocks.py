"""Bias adjustment of daily series by any method: train on a reference, adjust a simulation.

The arguments are those that a variable's sections `training_args` and `adjusting_args` name. This module does what
surrounds the numbers: periods, calendars, units, blocks of cells, attributes. The numbers of a block come from a
method (`base.Method`).
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import dask.array
import numpy as np
import xarray as xr

from espo_luigi.errors import ConfigurationError, DataError
from espo_luigi.methods.base import (
    DEFAULT_METHOD,
    AdjustingSection,
    Array,
    Engine,
    Method,
    Setup,
    Step,
    TrainingSection,
    checked,
    method_named,
)
from espo_luigi.methods.usual import USUAL_METHODS, usual_settings, year_windows
from espo_luigi.science.attributes import QUANTILE, TREATED
from espo_luigi.science.calendar import TimeAxis, calendar_of, convert, minimum_calendar, whole_years
from espo_luigi.science.chunks import (
    REALIZATION,
    VARIABLE,
    CellBlocks,
    assign_coords,
    cell_dims,
    check_same_cells,
    join,
    rechunk_variable,
)
from espo_luigi.science.periods import AlignOn, each_period
from espo_luigi.science.units import convert_to, units_of
from espo_luigi.science.variables import VARIABLES

logger = logging.getLogger(__name__)

# The attribute in which a training store says how it was made, as JSON.
ATTRIBUTE = "espo_luigi_training"
# The time of reference and historical beside a simulation's.
_CALIBRATION = "calibration"

# A variable, or a dataset of the variables that are adjusted together.
Series = xr.DataArray | xr.Dataset


def train(
    reference: Series,
    historical: Series,
    *,
    method: str = DEFAULT_METHOD,
    engine: Engine = "auto",
    maximal_calendar: str | None = None,
    seed: str | None = None,
    first_cell: int | np.ndarray = 0,
    **arguments: Any,
) -> xr.Dataset:
    """Train an adjustment of `historical` towards `reference` over a period.

    Both series are daily, with `time` and the same cells (`loc`, lat and lon, any dimensions, or none), numpy- or
    Dask-backed; lazy if either is lazy. The calendar is the smaller of the simulation's and `maximal_calendar`, by
    default noleap, or with usual settings the reference's; units are the reference's. The result has the method's
    arrays, with the cells' dimensions first; its attribute `espo_luigi_training` says how it was made.

    A historical series with the dimension `realization` is a pool of members. Methods that adjust several variables
    together take datasets.

    Parameters
    ----------
    method
        Its name, as in the configuration: one of xsdba's, or `NAME.VARIANT` of an installed method.
    engine
        Of xsdba's methods: "auto" for our kernels where they can, or "xsdba".
    seed
        Names the random draws; with the cell's place, and the label of a pool's member, it decides them. None draws a
        new one.
    first_cell
        Place of the first cell in the domain, so that a slice draws what the whole domain would draw there. For cells
        apart from each other: of each, how many cells that are left out lie before it.
    **arguments
        Those of `training_args`: `period` (first and last year, both included; the common years by default), and the
        method's own. Without any, they are the usual settings of the variable that `reference` is named after.

    Raises
    ------
    DataError
        If the period is missing, or times, cells or units do not match.
    ConfigurationError
        If an argument is unknown or contradicts another.
    """
    named = method_named(method, engine)
    _check_kind(named, reference, historical)
    usual = None if {*arguments} - {*TrainingSection.model_fields} else _usual_name(reference, method)
    of_variable = (
        usual_settings(VARIABLES[usual], method, pooled=REALIZATION in historical.dims)["training_args"]
        if usual
        else {}
    )
    if "period" not in arguments:
        years = [one.indexes["time"].year for one in (reference, historical)]
        first, last = max(one.min() for one in years), min(one.max() for one in years)
        if not first <= last:
            raise DataError(
                f"the reference ({years[0].min()}-{years[0].max()}) and the simulation have no common years."
            )
        arguments["period"] = (str(first), str(last))
    section = checked(named.Training, of_variable | arguments, "training_args")
    units = _units(reference)
    maximal_calendar = maximal_calendar or (calendar_of(reference) if usual else "noleap")
    calendar = minimum_calendar(calendar_of(historical), maximal_calendar)
    calibration = _calibration(reference, historical, section.arguments(), calendar, units)
    known, simulated = calibration.values()
    setup = Setup(
        units=units,
        time=TimeAxis.of(known),
        dtype=np.result_type(known.dtype, simulated.dtype),
        training=section.arguments(),
        seed=seed if seed is not None else secrets.token_hex(8),
        members=_members(simulated),
    )
    chosen = named.chosen(setup)
    blocks = CellBlocks.of(
        calibration,
        cells_in_a_block=chosen.cells_in_a_block,
        fixed=chosen.fixed_blocks,
        first_cell=first_cell,
    )
    template = _template(blocks, chosen.layout(setup), setup.dtype)
    coords = {name: one for name, one in known.coords.items() if one.dims and not {"time", VARIABLE} & {*one.dims}}
    if REALIZATION in template.dims and REALIZATION in simulated.coords:
        coords[REALIZATION] = simulated[REALIZATION]
    made = assign_coords(blocks.map(_train_block, template, (chosen, setup)), coords)
    told = {
        "method": method,
        "arguments": section.model_dump(mode="json", exclude_none=True),
        "units": units,
        "maximal_calendar": maximal_calendar,
        "seed": setup.seed,
    } | ({"usual": usual} if usual else {})
    return made.assign_attrs(chosen.attributes(setup)).assign_attrs({ATTRIBUTE: json.dumps(told)})


def adjust(simulation: xr.DataArray, training: xr.Dataset | None = None, **arguments: Any) -> xr.DataArray:
    """Return the scenario of `adjust_and_count`, whose arguments these are, under the simulation's name."""
    return adjust_and_count(simulation, training, **arguments)["scenario"].rename(simulation.name)


def adjust_and_count(
    simulation: Series, training: xr.Dataset | None = None, *, first_cell: int | np.ndarray = 0, **arguments: Any
) -> xr.Dataset:
    """Adjust a simulation with what `train` made of it, and mark the days that the method treats apart.

    The variable `scenario` (of several variables together: their names) has the simulation's dimensions, their order,
    its dtype and attributes, the reference's units and the training's calendar; lazy if the simulation or the training
    is. Periods are adjusted one by one, and joined along time. Methods that count add `treated`, uint8 of the same
    dimensions: bits of days, as `flag_masks` and `flag_meanings` name them. With `keeps_ranks`, methods that rank add
    `quantile` (`dqm.ranking.as_quantiles`).

    Parameters
    ----------
    method, training_args
        Of methods that train nothing; otherwise the training tells.
    reference, historical
        For methods that need the reference to adjust; `historical` is the simulation itself by default.
    engine, seed, first_cell
        As in `train`.
    maximal_calendar
        By default the training's.
    **arguments
        All others: those of `adjusting_args`, with `periods` (a pair of years, both included, or a list of pairs; all
        years by default), and the method's own. Without any, they are the usual settings, if the training's are.

    Raises
    ------
    DataError
        If a period is missing, cells or units do not match, or `training` is no training dataset.
    ConfigurationError
        If an argument is unknown or contradicts another.
    """
    job = _Job.of(simulation, training, **arguments)
    parts = []
    for period in each_period(job.setup.adjusting["periods"]):
        blocks, part, chosen, setup = job.blocks(period, first_cell)
        like = blocks.data["simulation"].drop_vars(blocks.data.coords, errors="ignore")
        template = like.to_dataset(name="scenario")
        if chosen.counts:
            bits = chosen.bits(setup)
            named = {"flag_masks": list(bits.values()), "flag_meanings": " ".join(bits)}
            template[TREATED] = xr.zeros_like(like, dtype=np.uint8).assign_attrs(named)
        if setup.keeps_ranks and chosen.ranks(setup):
            template[QUANTILE] = xr.zeros_like(like, dtype=np.uint16).drop_attrs()
        parts.append(assign_coords(blocks.map(_adjust_block, template, (chosen, setup)), dict(part.coords)))
    return _described(parts, simulation, job)


def steps(
    simulation: Series,
    training: xr.Dataset | None = None,
    *,
    date: str,
    member: int = 0,
    variable: str = "",
    first_cell: int | np.ndarray = 0,
    **arguments: Any,
) -> list[Step]:
    """Return the method's named steps for a single cell on a date, YYYY-MM-DD, of the training's calendar. Computes.

    The arguments are those of `adjust_and_count`, and the cells' dimensions have the size 1. A pool has all its
    members; `member` is the place of that whose steps are returned. Of variables that are adjusted together, `variable`
    names that whose steps are returned.

    Raises
    ------
    DataError
        If no period or no series has the day.
    """
    job = _Job.of(simulation, training, **arguments)
    for period in each_period(job.setup.adjusting["periods"]):
        if int(period[0]) <= int(date[:4]) <= int(period[1]):
            blocks, _, chosen, setup = job.blocks(period, first_cell)
            places = np.flatnonzero(np.floor(setup.time.days) == setup.time.number(date))
            if places.size:
                block = blocks.data.compute(scheduler="synchronous")
                of = (variable,) if chosen.variables_together else ()
                return chosen.steps(*_in_memory(block, chosen, setup), setup, int(places[0]), member, *of)
    raise DataError(f"{date} is not adjusted; expected a day of the periods and of the series.")


@dataclass(frozen=True, eq=False)
class _Job:
    """An adjustment: the method, the setup but for the dates of a period, and the series."""

    named: Method
    setup: Setup
    calendar: str
    simulation: Series
    calibration: Mapping[str, xr.DataArray]
    training: xr.Dataset | None

    @classmethod
    def of(
        cls,
        simulation: Series,
        training: xr.Dataset | None,
        *,
        method: str = DEFAULT_METHOD,
        training_args: Mapping[str, Any] | None = None,
        reference: Series | None = None,
        historical: Series | None = None,
        engine: Engine = "auto",
        maximal_calendar: str | None = None,
        seed: str | None = None,
        keeps_ranks: bool = False,
        **arguments: Any,
    ) -> _Job:
        """Check the arguments, and select reference and historical where the method needs them."""
        told: dict[str, Any] = {"method": method, "arguments": training_args or {}}
        if training is not None:
            told = _told(training)
        named = method_named(told["method"], engine)
        _check_kind(named, simulation)
        if "periods" not in arguments:
            years = simulation.indexes["time"].year
            arguments["periods"] = [(str(years.min()), str(years.max()))]
        if "usual" in told and not {*arguments} - {*AdjustingSection.model_fields}:
            usual = usual_settings(VARIABLES[told["usual"]], told["method"], pooled=False)["adjusting_args"]
            if told["method"] != DEFAULT_METHOD:
                usual |= year_windows(each_period(arguments["periods"]))
            if engine == "xsdba":  # which has no nearest_quantile
                usual["xclim_adjust_args"]["interp"] = "nearest"
            arguments = usual | arguments
        if named.trains and training is None:
            raise ConfigurationError(f"method {named.name} adjusts with a training; expected what `train` returns.")
        if named.needs_reference_to_adjust and reference is None:
            raise ConfigurationError(f"method {named.name} needs the reference to adjust; expected `reference`, too.")
        units = told.get("units") or _units(simulation if reference is None else reference)
        calendar = minimum_calendar(calendar_of(simulation), maximal_calendar or told.get("maximal_calendar", "noleap"))
        setup = Setup(
            units=units,
            time=TimeAxis(calendar_of(simulation), np.empty(0)),  # each period has its own
            dtype=np.result_type(*_each(simulation).values()),
            training=checked(named.Training, told["arguments"], "training_args").arguments(),
            adjusting=checked(named.Adjusting, arguments, "adjusting_args").arguments(),
            seed=seed if seed is not None else secrets.token_hex(8),
            members=_members(simulation),
            attrs={} if training is None else training.attrs,
            keeps_ranks=keeps_ranks,
        )
        selected: Mapping[str, xr.DataArray] = {}
        if named.needs_reference_to_adjust and reference is not None:
            simulated = simulation if historical is None else historical
            selected = _calibration(reference, simulated, setup.training, calendar, units)
            setup = replace(setup, calibration=TimeAxis.of(selected["reference"]))
        return cls(named, setup, calendar, simulation, selected, training)

    def blocks(
        self, period: Sequence[str | int], first_cell: int | np.ndarray
    ) -> tuple[CellBlocks, xr.DataArray, Method, Setup]:
        """Return a period in blocks, its simulation, and the method with its setup."""
        setup, training = self.setup, self.training
        align_on = setup.adjusting.get("align_on", "year")
        part = _selected(self.simulation, period, "the simulation", self.calendar, align_on, setup.units)
        setup = replace(setup, time=TimeAxis.of(part))
        if training is not None:
            pooled = REALIZATION in training.dims  # the training keeps numbers of each member
            labels = [", ".join(map(str, one[REALIZATION].values)) for one in (part, training) if pooled]
            if len({*labels}) > 1:
                raise DataError(
                    f"The simulation has the members {labels[0]}, and the training {labels[1]}; adjust the members "
                    "that were trained, in their order."
                )
            check_same_cells(part, training, ("simulation", "training"))
        chosen = self.named.chosen(setup)
        # A dataset has a single `time`.
        others = {name: one.rename(time=_CALIBRATION) for name, one in self.calibration.items()}
        if chosen.variables_together and "lat" in part.coords:
            cell = part.isel({dim: 0 for dim in part.dims if dim not in cell_dims(part)}, drop=True)
            others["latitude"] = xr.DataArray(part["lat"].variable).broadcast_like(cell.drop_vars(cell.coords))
        blocks = CellBlocks.of(
            {"simulation": part, **others},
            others=None if training is None else training.drop_attrs(deep=False),
            cells_in_a_block=chosen.cells_in_a_block,
            fixed=chosen.fixed_blocks,
            first_cell=first_cell,
        )
        return blocks, part, chosen, setup


def _described(parts: list[xr.Dataset], simulation: Series, job: _Job) -> xr.Dataset:
    """Join the periods, and tell how the scenario was made."""
    scenario = _joined([one["scenario"] for one in parts])
    said, made, units = job.named.describe(job.setup), {}, job.setup.units
    for (name, unit), original in zip(units.items(), _each(simulation, units).values(), strict=True):
        together = VARIABLE in scenario.dims
        own = scenario.sel({VARIABLE: name}, drop=True) if together else scenario
        history = "\n".join(filter(None, [f"Bias-adjusted with {said}", original.attrs.get("history")]))
        made[name if together else "scenario"] = own.transpose(*original.dims).assign_attrs(
            {**original.attrs, "history": history, "bias_adjustment": said, "units": unit}
        )
    for name in (name for name in (TREATED, QUANTILE) if name in parts[0]):
        made[name] = _joined([one[name] for one in parts]).transpose(*made["scenario"].dims)
    return xr.Dataset(made)


def _joined(periods: list[xr.DataArray]) -> xr.DataArray:
    """Join periods along time; lazy in blocks of all of time."""
    whole, *others = periods
    if others:
        whole = join(periods, "time")
    return whole.copy(data=rechunk_variable(whole.variable, {"time": -1}).data) if whole.chunks else whole


def _train_block(block: xr.Dataset, job: tuple[Method, Setup]) -> xr.Dataset:
    method, setup = job
    return method.train(_in_memory(block, method, setup)[0], setup)


def _adjust_block(block: xr.Dataset, job: tuple[Method, Setup]) -> xr.Dataset:
    method, setup = job
    made = method.adjust(*_in_memory(block, method, setup), setup)
    if not method.counts:
        return made
    marks = made[TREATED]
    if marks.dtype != np.uint8 or {*marks.dims} != {*made["scenario"].dims}:
        raise DataError(
            f"method {method.name} returned `{TREATED}` of {marks.dtype} with {marks.dims}; expected uint8 with the "
            f"scenario's dimensions, {made['scenario'].dims}: bit n for the days of counts[n]. Correct the method."
        )
    return made.assign({TREATED: marks.transpose(..., "time")})


def _in_memory(block: xr.Dataset, method: Method, setup: Setup) -> tuple[dict[str, xr.DataArray], xr.Dataset]:
    """Return the block's series and its training, as a method gets them."""
    cells = block["cell"].dims
    series = {name: block[name] for name in ("cell", "latitude") if name in block}
    for name in (name for name in ("simulation", "reference", "historical") if name in block):
        data, axis = block[name], setup.time
        if _CALIBRATION in data.dims and setup.calibration is not None:
            data, axis = data.rename({_CALIBRATION: "time"}), setup.calibration
        dims = [dim for dim in (VARIABLE, *cells, REALIZATION, "time") if dim in data.dims]
        units = {} if VARIABLE in dims else {"units": setup.unit}  # of several variables, `setup.units` has them
        data = data.transpose(*dims).assign_attrs(units)
        if VARIABLE in dims:  # the order of the values in memory, by which sums round off, depends on the block
            data = data.copy(data=np.ascontiguousarray(data.values))
        series[name] = data.assign_coords(time=axis.index) if method.dated else data
    return series, block.drop_vars(list(series)).transpose(*cells, ..., missing_dims="ignore")


def _template(blocks: CellBlocks, layout: Mapping[str, Array], dtype: np.dtype[Any]) -> xr.Dataset:
    """Return the training dataset that will be made, as lazy zeros."""
    cell, made = blocks.data["cell"], {}
    coords: dict[str, np.ndarray] = {}
    for name, array in layout.items():
        sizes = {dim: size if isinstance(size, int) else len(size) for dim, size in array.dims.items()}
        coords |= {dim: np.asarray(values) for dim, values in array.dims.items() if not isinstance(values, int)}
        chunks = (*(cell.chunks or ()), *((size,) for size in sizes.values()))
        zeros = dask.array.zeros((*cell.shape, *sizes.values()), dtype=array.dtype or dtype, chunks=chunks)
        made[name] = xr.Variable((*cell.dims, *sizes), zeros, dict(array.attrs))
    return xr.Dataset(made, coords)


def _told(training: xr.Dataset) -> dict[str, Any]:
    """Return what a training store tells of its training."""
    if ATTRIBUTE not in training.attrs:
        raise DataError(
            f"not a training dataset: no attribute {ATTRIBUTE} is there, only {sorted(map(str, training.attrs))}. "
            "Train again."
        )
    return dict(json.loads(training.attrs[ATTRIBUTE]))


def _check_kind(method: Method, *series: Series) -> None:
    """Check that a method of several variables together gets datasets, and another arrays."""
    for one in series:
        if isinstance(one, xr.Dataset) != method.variables_together:
            expected = "a dataset of several variables" if method.variables_together else "an array of a variable"
            raise ConfigurationError(f"method {method.name} takes {expected}; got a {type(one).__name__}.")


def _each(data: Series, names: Iterable[str] | None = None) -> dict[str, xr.DataArray]:
    """Return the variables by name; of an array, itself."""
    if isinstance(data, xr.DataArray):
        return {str(data.name): data}
    return {str(name): data[name] for name in (data.data_vars if names is None else names)}


def _usual_name(reference: Series, method: str) -> str | None:
    """Return the variable whose usual settings a training without arguments takes; None of a method without any."""
    if isinstance(reference, xr.Dataset) or method not in USUAL_METHODS:
        return None
    if (name := str(reference.name)) not in VARIABLES:
        raise ConfigurationError(
            f"the reference's name is {name}, and nothing says how it is trained; expected a variable with usual "
            f"settings ({', '.join(VARIABLES)}), or arguments such as group."
        )
    return name


def _units(data: Series) -> dict[str, str]:
    return {name: units_of(one) for name, one in _each(data).items()}


def _calibration(
    reference: Series, historical: Series, given: Mapping[str, Any], calendar: str, units: Mapping[str, str]
) -> dict[str, xr.DataArray]:
    """Return reference and historical over the training's period, with the same cells and dates."""
    how = (calendar, given.get("align_on", "year"), units)
    both = {
        "reference": _selected(reference, given["period"], "the reference", *how),
        "historical": _selected(historical, given["period"], "the simulation", *how),
    }
    axes = {name: TimeAxis.of(one) for name, one in both.items()}
    first, second = axes.values()
    if first != second:
        raise DataError(
            f"{' and '.join(f'{name} has {axis}' for name, axis in axes.items())}; training needs the same time stamps "
            "in both. Give both the same period, daily and complete, with times floored to the day."
        )
    check_same_cells(both["reference"], both["historical"], ("reference", "historical"))
    return both


def _selected(
    data: Any,
    period: Sequence[str | int],
    name: str,
    calendar: str,
    align_on: AlignOn,
    units: Mapping[str, str],
) -> xr.DataArray:
    """Return whole years of a period, both ends included, in a calendar and in units; variables along `variable`."""
    first, last = (int(year) for year in period)
    selected = whole_years(data, first, last)
    if not selected.sizes["time"]:
        have = data.indexes["time"]
        raise DataError(
            f"{name} has no data in {first}-{last}; it covers {have[0]} to {have[-1]}. "
            "Change the period or extract more years."
        )
    years = selected.indexes["time"][[0, -1]].year
    if (years[0], years[-1]) != (first, last):
        logger.warning("%s covers only %d-%d of the period %d-%d", name, years[0], years[-1], first, last)
    converted = convert(selected, calendar, align_on=align_on)
    if isinstance(converted, xr.DataArray):
        (unit,) = units.values()
        return convert_to(converted, unit)
    if lacking := [one for one in units if one not in converted]:
        raise DataError(f"{name} lacks {', '.join(lacking)}; it has {', '.join(map(str, converted.data_vars))}.")
    parts = [convert_to(converted[one], unit).drop_attrs() for one, unit in units.items()]
    names = xr.Variable(VARIABLE, np.array(list(units), dtype=object))
    together: xr.DataArray = join(parts, names)
    return together.rename(None)


def _members(data: Series) -> tuple[str, ...] | None:
    """Labels of a pool's members, or their numbers; None for a series without the dimension."""
    if REALIZATION not in data.dims:
        return None
    labels = tuple(str(label) for label in data[REALIZATION].values)
    if len(set(labels)) < len(labels):
        raise DataError(f"the simulation has members of the same name along {REALIZATION}: {', '.join(labels)}.")
    return labels
