"""Univariate bias adjustment of daily series: train on a reference, adjust a simulation.

The arguments are those that a variable's sections `training_args` and `adjusting_args` name. This module
does what surrounds the numbers: periods, calendars, units, blocks of cells, attributes. The numbers of a block come
from our kernels (`kernel_backend`) or from xsdba (`xsdba_backend`).
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, get_args

import numpy as np
import xarray as xr

from espo_luigi.errors import ConfigurationError, DataError
from espo_luigi.methods import xsdba as xsdba_backend
from espo_luigi.methods.base import (
    AdjustmentSetup,
    Backend,
    Grouping,
    Step,
    TrainedObject,
    TrainingSetup,
    preparation,
    read_train_params,
    with_variable_attributes,
)
from espo_luigi.methods.dqm import method as kernel_backend
from espo_luigi.science.calendar import TimeAxis, calendar_of, convert, minimum_calendar, whole_years
from espo_luigi.science.choices import DEFAULT_METHOD, METHODS, TREATED, TREATMENTS, AlignOn, Engine, each_period
from espo_luigi.science.chunks import REALIZATION, Blocks, assign_coords, check_same_cells, rechunk_variable
from espo_luigi.science.units import convert_to, threshold_in, units_of

logger = logging.getLogger(__name__)

DEFAULT_NQUANTILES = 15
_ALWAYS_DOUBLE = ("pth", "dP0")
DEFAULT_GROUP: Mapping[str, Any] = {"group": "time.dayofyear", "window": 31}
_THRESHOLD_ARGUMENTS = (
    "thresh",
    "adapt_freq_thresh",
    "jitter_under_thresh_value",
    "jitter_over_thresh_value",
    "jitter_over_thresh_upper_bnd",
)


def train(
    reference: xr.DataArray,
    historical: xr.DataArray,
    *,
    period: Sequence[str | int],
    method: str = DEFAULT_METHOD,
    group: str | Mapping[str, Any] = DEFAULT_GROUP,
    xclim_train_args: Mapping[str, Any] | None = None,
    xsdba_train_args: Mapping[str, Any] | None = None,
    jitter_under: Mapping[str, Any] | None = None,
    adapt_freq: Mapping[str, Any] | None = None,
    additive_space: Mapping[str, Any] | None = None,
    maximal_calendar: str = "noleap",
    align_on: AlignOn = "year",
    seed: str | None = None,
    first_cell: int | np.ndarray = 0,
    engine: Engine = "auto",
) -> xr.Dataset:
    """Train an adjustment of `historical` towards `reference` over a period.

    Both series are daily, with `time` and the same cells (`loc`, lat and lon, any dimensions, or none), numpy- or
    Dask-backed; lazy if either is lazy. The calendar is the smaller of the simulation's and `maximal_calendar`; units
    are the reference's. The result has `af`, `hist_q` (cells, dayofyear, quantiles), `scaling` (cells, dayofyear)
    and, with `adapt_freq`, `pth` and `dP0`; attributes are xsdba's, so that it reads the dataset, too.

    A historical series with the dimension `realization` is a pool: with `add_dims: [realization]` in the group, the
    members' values make one sample for one correction. `max_tail_factor` adds `hist_q_raw` (cells, dayofyear,
    quantiles) to the result, `adapt_freq_thresh` adds `P0_ref`, `P0_hist` and `pth` (cells, dayofyear, realization).

    Parameters
    ----------
    period
        First and last year, both included.
    method, group, xclim_train_args
        As in xsdba; `xsdba_train_args` is the newer name of the last.
    jitter_under, adapt_freq
        `{"thresh": "0.01 mm d-1"}`: values below become noise in both series, and the frequency of values above is
        adapted in `historical` (Themeßl et al. 2012). Only these calibration inputs are changed.
    additive_space
        Arguments of xsdba's `to_additive_space` (lower_bound, upper_bound, trans, clip_next_to_bounds): reference and
        historical are transformed, and `adjust` transforms the simulation, and the scenario back. For kind "+".
    seed
        Names the random draws; with the cell's position, and the label of a pool's member, it decides them. None draws
        a new one.
    first_cell
        Position of the first cell in the domain, so that a slice draws what the whole domain would draw there. For
        cells apart from each other: of each, how many cells that are left out lie before it. They have to be in memory,
        and in a single block of our kernels.
    engine
        "auto" for our kernels where they can, or "xsdba".

    Raises
    ------
    DataError
        If the period is missing, or times, cells or units do not match.
    ConfigurationError
        If an argument is unknown or contradicts another.
    """
    grouping = Grouping.parse(group)
    members = _members(historical, grouping, "the historical series")
    calendar = minimum_calendar(calendar_of(historical), maximal_calendar)
    reference = convert(_select(reference, period, "the reference"), calendar, align_on=align_on)
    historical = convert(_select(historical, period, "the simulation"), calendar, align_on=align_on)
    units = units_of(reference)
    historical = convert_to(historical, units)
    _check_same_times(reference, historical)
    given = _either(xclim_train_args, xsdba_train_args, "train_args")
    setup = TrainingSetup(
        method=_known_method(method),
        group=grouping,
        train_args=_train_args(given, method, units),
        time=TimeAxis.of(reference),
        units=units,
        seed=seed if seed is not None else secrets.token_hex(8),
        jitter_under=_threshold(jitter_under, "jitter_under", units),
        adapt_freq=_threshold(adapt_freq, "adapt_freq", units),
        adapt_freq_group=Grouping.parse(adapt_freq["group"]) if adapt_freq and "group" in adapt_freq else None,
        members=members,
        first_cell=first_cell,
        additive_space=_additive_space(additive_space, units),
    )
    _check_consistent(setup)
    params = {
        "var": [str(historical.name)],
        "maximal_calendar": maximal_calendar,
        "adapt_freq": None if adapt_freq is None else dict(adapt_freq),
        "jitter_under": None if jitter_under is None else dict(jitter_under),
        "jitter_over": None,
        "period": [str(year) for year in period],
        "seed": setup.seed,
    }
    if setup.additive_space is not None:
        params["additive_space"] = dict(setup.additive_space)
    if members is not None:
        params["xsdba_train_args"] = dict(given or {})
    training = _train_in_blocks(reference, historical, setup, engine)
    return training.assign_attrs(_training_attributes(str(historical.name), setup, params))


def adjust(simulation: xr.DataArray, training: xr.Dataset, **arguments: Any) -> xr.DataArray:
    """Return the scenario of `adjust_and_count`, whose arguments these are, under the simulation's name."""
    return adjust_and_count(simulation, training, **arguments)["scenario"].rename(simulation.name)


def adjust_and_count(
    simulation: xr.DataArray,
    training: xr.Dataset,
    *,
    periods: Sequence[Any],
    xclim_adjust_args: Mapping[str, Any] | None = None,
    xsdba_adjust_args: Mapping[str, Any] | None = None,
    jitter_under: Mapping[str, Any] | None = None,
    maximal_calendar: str | None = None,
    align_on: AlignOn = "year",
    seed: str | None = None,
    first_cell: int | np.ndarray = 0,
    engine: Engine = "auto",
) -> xr.Dataset:
    """Adjust a simulation with what `train` made of it, and count the days that got no factor of their own quantile.

    The variable `scenario` has the simulation's dimensions, their order, its dtype and attributes, the reference's
    units and the training's calendar; lazy if the simulation or the training is. The members of a pool (`realization`)
    share the corrections and the trend, which is that of the mean over them. Our kernels add `treated`: days (cells,
    realization, treatment) by the coordinate `treatment` (`choices.TREATMENTS`); its attribute `days` is the number of
    all days. xsdba does not tell.

    Parameters
    ----------
    periods
        A pair of years, both included, or a list of pairs, which are adjusted one by one and joined along time.
    xclim_adjust_args
        As in xsdba, with detrend as `{"LoessDetrend": {"f": 0.2, …}}`, which gets the training's group and kind;
        `xsdba_adjust_args` is the newer name.
    jitter_under
        `{"thresh": "1e-4 K"}`: values of the simulation below become noise first.
    maximal_calendar
        By default the training's.
    seed, first_cell, engine
        As in `train`.

    Raises
    ------
    DataError
        If a period is missing, cells or units do not match, or `training` is no training dataset.
    ConfigurationError
        If an argument is unknown or contradicts another.
    """
    trained, params = TrainedObject.of(training), read_train_params(training)
    given = _either(xclim_adjust_args, xsdba_adjust_args, "adjust_args") or {}
    each = _each_period(
        simulation, training, periods, given, jitter_under, maximal_calendar, align_on, seed, first_cell
    )
    parts = [_adjust_in_blocks(part, training, setup, engine) for part, setup in each]
    simulation, arguments = convert_to(simulation, trained.units), dict(given)
    several = [one["simulation"] for one in parts]
    scenario = several[0] if len(parts) == 1 else xr.concat(several, dim="time", coords="minimal", compat="override")
    scenario = (
        scenario.copy(data=rechunk_variable(scenario.variable, {"time": -1}).data) if scenario.chunks else scenario
    )
    described = _described(training, trained, arguments)
    scenario = scenario.transpose(*simulation.dims).assign_attrs(
        {
            **simulation.attrs,
            "history": "\n".join(filter(None, [f"Bias-adjusted with {described}", simulation.attrs.get("history")])),
            "bias_adjustment": described + preparation(params),
            "units": trained.units,
        }
    )
    made = scenario.to_dataset(name="scenario")
    if TREATED in parts[0]:
        days = scenario.sizes["time"]
        treated = sum((one[TREATED] for one in parts[1:]), parts[0][TREATED])
        made[TREATED] = treated.assign_attrs(long_name="Days that were treated so", units="d", days=days)
    return made


def steps(
    simulation: xr.DataArray,
    training: xr.Dataset,
    *,
    date: str,
    member: int = 0,
    periods: Sequence[Any],
    xclim_adjust_args: Mapping[str, Any] | None = None,
    xsdba_adjust_args: Mapping[str, Any] | None = None,
    jitter_under: Mapping[str, Any] | None = None,
    maximal_calendar: str | None = None,
    align_on: AlignOn = "year",
    seed: str | None = None,
    first_cell: int | np.ndarray = 0,
    engine: Engine = "auto",
) -> list[Step]:
    """Return the named steps by which one cell is adjusted on a day; empty if the method tells none, as xsdba.

    `date` is YYYY-MM-DD in the training's calendar, and `member` the place of a pool's member. The other arguments are
    those of `adjust_and_count`, and `simulation` and `training` have a single cell. Computes.
    """
    given = _either(xclim_adjust_args, xsdba_adjust_args, "adjust_args") or {}
    each = _each_period(
        simulation, training, periods, given, jitter_under, maximal_calendar, align_on, seed, first_cell
    )
    for part, setup in each:
        places = np.flatnonzero(np.floor(setup.time.days) == setup.time.number(date))
        backend = _choose(engine, kernel_backend.why_not_adjust(setup), f"adjustment of {part.name}")
        if places.size:
            block = _blocks_to_adjust(part, training, setup, backend).data.compute()
            return backend.steps(block, setup, int(places[0]), member)
    return []


def _each_period(
    simulation: xr.DataArray,
    training: xr.Dataset,
    periods: Sequence[Any],
    arguments: Mapping[str, Any],
    jitter_under: Mapping[str, Any] | None,
    maximal_calendar: str | None,
    align_on: AlignOn,
    seed: str | None,
    first_cell: int | np.ndarray,
) -> Iterator[tuple[xr.DataArray, AdjustmentSetup]]:
    """The simulation in each period, in the training's units and calendar, and how it is adjusted."""
    trained, params = TrainedObject.of(training), read_train_params(training)
    members = _members(simulation, trained.group, "the simulation")
    _check_same_members(simulation, training)
    calendar = minimum_calendar(calendar_of(simulation), maximal_calendar or params.get("maximal_calendar", "noleap"))
    simulation = convert_to(simulation, trained.units)
    seed = seed if seed is not None else secrets.token_hex(8)
    for period in _pairs(periods):
        part = convert(_select(simulation, period, "the simulation"), calendar, align_on=align_on)
        yield (
            part,
            AdjustmentSetup(
                trained=trained,
                adjust_args=dict(arguments),
                time=TimeAxis.of(part),
                seed=seed,
                jitter_under=_threshold(jitter_under, "jitter_under", trained.units),
                members=members,
                first_cell=first_cell,
                additive_space=params.get("additive_space"),
            ),
        )


def _train_in_blocks(
    reference: xr.DataArray, historical: xr.DataArray, setup: TrainingSetup, engine: Engine
) -> xr.Dataset:
    backend = _choose(engine, kernel_backend.why_not_train(setup), f"training of {historical.name}")
    check_same_cells(reference, historical, ("reference", "historical"))
    blocks = Blocks.of(
        {"reference": reference, "historical": historical},
        cells_in_a_block=backend.CELLS_IN_A_BLOCK,
        fixed=backend.FIXED_BLOCKS,
    )
    dtype = np.result_type(reference.dtype, historical.dtype)
    template = backend.layout(blocks.data, setup)
    double = _ALWAYS_DOUBLE if setup.adapt_freq is not None else ()
    template = blocks.like(template, {name: dtype for name in template if name not in double})
    template = with_variable_attributes(template, setup)
    coords = _cell_coords(reference)
    if REALIZATION in template.dims and REALIZATION in historical.coords:
        coords[REALIZATION] = historical[REALIZATION]
    return assign_coords(blocks.map(backend.train_block, template, setup), coords)


def _members(data: xr.DataArray, group: Grouping, name: str) -> tuple[str, ...] | None:
    """Labels of a pool's members, or their numbers; None for a series without the dimension."""
    if group.add_dims and REALIZATION not in data.dims:
        raise DataError(
            f"{name} has the dimensions {', '.join(map(str, data.dims))}, and the group pools {REALIZATION}; "
            f"leave add_dims out, or give the members along {REALIZATION}."
        )
    if REALIZATION not in data.dims:
        return None
    if not group.add_dims:
        raise ConfigurationError(
            f"{name} has {data.sizes[REALIZATION]} members along {REALIZATION}, and the group pools no dimension; "
            f"expected add_dims: [{REALIZATION}] in the group, or one member at a time."
        )
    labels = tuple(str(label) for label in data[REALIZATION].values)
    if len(set(labels)) < len(labels):
        raise DataError(f"{name} has members of the same name along {REALIZATION}: {', '.join(labels)}.")
    return labels


def _check_same_members(simulation: xr.DataArray, training: xr.Dataset) -> None:
    """Check that a training that keeps numbers of each member has the simulation's."""
    if REALIZATION not in training.dims:
        return
    labels = [tuple(map(str, one[REALIZATION].values)) for one in (simulation, training)]
    if labels[0] != labels[1]:
        raise DataError(
            f"The simulation has the members {', '.join(labels[0])}, and the training {', '.join(labels[1])}; "
            "adjust the members that were trained, in their order."
        )


def _check_consistent(setup: TrainingSetup) -> None:
    """Check arguments that contradict each other."""
    kind, adapts = setup.train_args.get("kind", "+"), setup.train_args.get("adapt_freq_thresh") is not None
    if adapts and kind != "*":
        raise ConfigurationError(
            f'adapt_freq_thresh makes dry days wet and needs kind "*"; got {kind!r}. Leave it out, or change the kind.'
        )
    if setup.adapt_freq is not None and (adapts or setup.members is not None):
        raise ConfigurationError(
            "adapt_freq changes the series of a single member before the training; a pool needs adapt_freq_thresh in "
            "xsdba_train_args instead, and both together are not possible."
        )
    if setup.additive_space is not None and (kind != "+" or adapts):
        raise ConfigurationError(f'additive_space needs kind "+" without adapt_freq_thresh; got kind {kind!r}.')


def _additive_space(given: Mapping[str, Any] | None, units: str) -> dict[str, Any] | None:
    """Arguments of the transformation, with bounds in the data's units."""
    if not given:
        return None
    unknown = set(given) - {"lower_bound", "upper_bound", "trans", "clip_next_to_bounds"}
    if unknown or "lower_bound" not in given:
        raise ConfigurationError(
            f"additive_space is {dict(given)!r}; expected lower_bound, and upper_bound, trans and clip_next_to_bounds."
        )
    bounds = {name: f"{threshold_in(given[name], units)!r} {units}" for name in given if name.endswith("_bound")}
    return {**given, **bounds}


def _adjust_in_blocks(
    simulation: xr.DataArray, training: xr.Dataset, setup: AdjustmentSetup, engine: Engine
) -> xr.Dataset:
    backend = _choose(engine, kernel_backend.why_not_adjust(setup), f"adjustment of {simulation.name}")
    blocks = _blocks_to_adjust(simulation, training, setup, backend)
    template = blocks.data[["simulation"]].drop_vars(blocks.data.coords, errors="ignore")
    if backend.COUNTS_TREATMENTS:
        by_cell = xr.zeros_like(template["simulation"].isel(time=0), dtype=np.int32)
        template[TREATED] = by_cell.expand_dims(treatment=len(TREATMENTS), axis=-1)
        template = template.assign_coords(treatment=list(TREATMENTS))
    adjusted = blocks.map(backend.adjust_block, template, setup)
    return assign_coords(adjusted, dict(simulation.coords))


def _blocks_to_adjust(
    simulation: xr.DataArray, training: xr.Dataset, setup: AdjustmentSetup, backend: Backend
) -> Blocks:
    check_same_cells(simulation, training, ("simulation", "training"))
    unused = () if setup.trained.state.get("adapt_freq_thresh") else _ALWAYS_DOUBLE
    return Blocks.of(
        {"simulation": simulation},
        others=training.drop_vars(unused, errors="ignore").drop_attrs(deep=False),
        cells_in_a_block=backend.CELLS_IN_A_BLOCK,
        fixed=backend.FIXED_BLOCKS,
    )


def _choose(engine: Engine, why_not_kernels: str | None, what: str) -> Backend:
    """Choose what computes the blocks, and log it."""
    if engine not in get_args(Engine):
        raise ConfigurationError(f"engine is {engine!r}; expected {' or '.join(get_args(Engine))}.")
    if engine == "xsdba" or why_not_kernels:
        logger.info("%s by xsdba: %s", what, "asked for" if engine == "xsdba" else why_not_kernels)
        return xsdba_backend
    logger.info("%s by our kernels", what)
    return kernel_backend


def _select(data: xr.DataArray, period: Sequence[str | int], name: str) -> xr.DataArray:
    """Whole years of a period, both ends included."""
    first, last = (int(year) for year in period)
    selected = whole_years(data, first, last)
    if not selected.sizes["time"]:
        have = data.indexes["time"]
        raise DataError(
            f"{name} has no data in {first}-{last}; it covers {have[0]} to {have[-1]}. "
            "Change the period or extract more years."
        )
    years = selected.indexes["time"].year
    if (years[0], years[-1]) != (first, last):
        logger.warning("%s covers only %d-%d of the period %d-%d", name, years[0], years[-1], first, last)
    return selected


def _check_same_times(reference: xr.DataArray, historical: xr.DataArray) -> None:
    axes = TimeAxis.of(reference), TimeAxis.of(historical)
    if axes[0].calendar == axes[1].calendar and np.array_equal(axes[0].days, axes[1].days):
        return
    described = [f"{name} has {axis}" for name, axis in zip(("reference", "historical"), axes, strict=True)]
    raise DataError(
        f"{' and '.join(described)}; training needs the same time stamps in both. "
        "Give both the same period, daily and complete, with times floored to the day."
    )


def _train_args(given: Mapping[str, Any] | None, method: str, units: str) -> dict[str, Any]:
    """Arguments of xsdba's train, with thresholds in the data's units, which xsdba does not convert to a flux."""
    arguments = dict(given or {})
    for name in _THRESHOLD_ARGUMENTS:
        if arguments.get(name) is not None:
            arguments[name] = f"{threshold_in(arguments[name], units)!r} {units}"
    if method == DEFAULT_METHOD:
        arguments.setdefault("nquantiles", DEFAULT_NQUANTILES)
    if isinstance(arguments.get("nquantiles"), Sequence):
        arguments["nquantiles"] = np.asarray(arguments["nquantiles"], dtype=np.float64)
    return arguments


def _threshold(argument: Mapping[str, Any] | None, name: str, units: str) -> float | None:
    if not argument:
        return None
    if "thresh" not in argument:
        raise ConfigurationError(
            f'{name} is {dict(argument)!r}; expected the key thresh, such as {{"thresh": "1 mm d-1"}}.'
        )
    return threshold_in(argument["thresh"], units)


def _either(old: Mapping[str, Any] | None, new: Mapping[str, Any] | None, name: str) -> Mapping[str, Any] | None:
    """One of the two names of the same argument."""
    if old is not None and new is not None:
        raise ConfigurationError(f"xclim_{name} and xsdba_{name} are two names of the same argument; give one of them.")
    return old if old is not None else new


def _known_method(method: str) -> str:
    if method in ("MBCn", "ExtremeValues"):
        raise ConfigurationError(
            f"method is {method}, which needs several variables or an adjustment before it, and is not supported; "
            f"expected one of {', '.join(METHODS)}."
        )
    if method not in METHODS:
        raise ConfigurationError(f"method is {method!r}; expected one of {', '.join(METHODS)}.")
    return method


def _pairs(periods: Sequence[Any]) -> list[Sequence[str | int]]:
    """Periods as a list of pairs of years, from a single pair or several."""
    pairs = each_period(periods)
    if any(len(pair) != 2 for pair in pairs):
        raise ConfigurationError(f"periods is {periods!r}; expected [first year, last year] or a list of such pairs.")
    return pairs


def _cell_coords(data: xr.DataArray) -> dict[Hashable, xr.DataArray]:
    return {name: coord for name, coord in data.coords.items() if "time" not in coord.dims and coord.dims}


def _training_attributes(variable: str, setup: TrainingSetup, params: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "group": setup.group.name,
        "group_window": setup.group.window,
        "train_params": repr(dict(params)),
        "cat:processing_level": f"training_{variable}",
    }


def _described(training: xr.Dataset, trained: TrainedObject, arguments: Mapping[str, Any]) -> str:
    """The call that adjusted, as xsdba describes it."""
    given = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    return f"{training.attrs.get('adj_params', trained.method)}.adjust(sim, {given})"
