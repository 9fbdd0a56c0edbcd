"""The steps of an adjusted variable on a day: noise, dry days, sample and correction, checked against the kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xarray as xr

from espo_luigi.config.bias_adjustment import VariableAdjustment
from espo_luigi.errors import ConfigurationError, DataError
from espo_luigi.explain import mapping
from espo_luigi.explain.cells import Made
from espo_luigi.explain.mapping import Sample
from espo_luigi.explain.values import Adjusted, Day, DryDays, Noise, Part, Regridded, Stage, within_tolerance
from espo_luigi.methods.base import AdjustmentSetup, Grouping, TrainedObject, TrainingSetup
from espo_luigi.methods.dqm import method as kernel_backend
from espo_luigi.methods.dqm import quantile_mapping
from espo_luigi.methods.dqm.windows import plan_windows
from espo_luigi.science import calendar, seeds
from espo_luigi.science import regrid as cascade
from espo_luigi.science.calendar import TimeAxis
from espo_luigi.science.choices import each_period
from espo_luigi.science.extract.repairs import REPAIRS
from espo_luigi.science.units import convert_to, threshold_in
from espo_luigi.tasks import partition
from espo_luigi.tasks.adjustment import JITTER_OF_DTR
from espo_luigi.tasks.context import RunContext

_SMALLEST_WEIGHT = 1e-9
_LEVELS = tuple(float(one) for one in np.linspace(0, 1, 41))


def place_of(axis: TimeAxis, date: str) -> int | None:
    """The time step of a day of the axis's calendar, or None."""
    found = np.flatnonzero(np.floor(axis.days) == axis.number(date))
    return int(found[0]) if found.size else None


def _regridded(weights: cascade.Weights, day: xr.DataArray, place: int, value: float, units: str) -> Regridded:
    """The cells of each grid that a cell is made of, with their values of the day."""
    flat = np.asarray(convert_to(day, units).transpose(*weights.source.dims).values, np.float64).ravel()
    fields = [("raw", weights.source.grid, flat)]
    for name, step in weights.steps.items():
        fields.append((name, weights.grids[name], step @ fields[-1][2]))
    rows: list[Any] = [weights.matrix[[place]]]
    # From the last grid back: the weight of each of its cells in the value.
    for step in reversed(list(weights.steps.values())[1:]):
        rows.insert(1, rows[1] @ step if len(rows) > 1 else step[[place]])
    stages = tuple(
        Stage(name, _parts(grid, values, row)) for (name, grid, values), row in zip(fields, rows, strict=False)
    )
    found = float(np.float32(sum(part.weight * part.value for part in stages[0].parts)))
    filled = bool(np.isnan(found) and not np.isnan(value))
    if not filled and not within_tolerance(found, value):
        raise DataError(
            f"regridding: the raw cells and their weights give {found!r} {units} of {day.name}, and the series has "
            f"{value!r}. The raw files or the configuration changed since: run again with `[espo] rerun = stale`."
        )
    return Regridded(stages, bool(weights.extrapolated[place]), value, filled)


def _repairs_of(series: xr.Dataset, var: str) -> tuple[str, ...]:
    """The repairs of a variable's raw series."""
    listed = str(series.attrs.get(REPAIRS, "")).split("; ")
    return tuple(one for one in listed if one.startswith(f"{var} "))


def _parts(grid: Any, values: np.ndarray, row: Any) -> tuple[Part, ...]:
    lat, lon = (one.ravel() for one in grid.coordinates())
    cells_of_row = sorted(zip(row.indices.tolist(), row.data.tolist(), strict=True), key=lambda one: -one[1])
    return tuple(
        Part(float(lat[cell]), float(lon[cell]), weight, float(values[cell]))
        for cell, weight in cells_of_row
        if weight > _SMALLEST_WEIGHT or np.isnan(values[cell])
    )


@dataclass(frozen=True)
class Calibration:
    """A cell's calibration in the training's calendar and units: the reference (time), the members (member, time).

    Attributes
    ----------
    noisy, prepared_reference, prepared
        The members with noise, and reference and members as they are trained.
    window
        The time steps around the day of the year, in all years.
    """

    reference: np.ndarray
    historical: np.ndarray
    noisy: np.ndarray
    prepared_reference: np.ndarray
    prepared: np.ndarray
    setup: TrainingSetup
    window: np.ndarray


def calibrate(run: RunContext, made: Made, var: str, dayofyear: int) -> Calibration:
    """Return a cell's calibration, prepared as for the training, with the window around a day of the year."""
    variable = run.config.biasadjust.variables[var]
    arguments, trained = variable.training_args.arguments(), TrainedObject.of(made.training[var])
    target, (first, last) = calendar.calendar_of(made.adjusted[var]), arguments["period"]

    def series(ds: xr.Dataset) -> xr.DataArray:
        data = convert_to(calendar.whole_years(ds[var], first, last), trained.units)
        return calendar.convert(data, target, align_on=arguments.get("align_on", "year")).isel(loc=0)

    reference = series(made.reference)
    setup = _setup(run, made, var, TimeAxis.of(reference))
    if reason := why_xsdba(run, made, var):
        raise ConfigurationError(
            f"{var} is adjusted by xsdba ({reason}), which draws random numbers for blocks of cells: `espo explain` "
            "knows the steps of our kernels only."
        )
    plan = plan_windows(setup.time.dayofyear, setup.group.window)
    window = mapping.places_in_window(plan, min(dayofyear, int(plan.dayofyear[-1])), len(setup.time))
    historical = np.stack([series(one).values for one in made.members.values()])
    return Calibration(reference.values, historical, *_prepared(reference.values, historical, setup), setup, window)


def why_xsdba(run: RunContext, made: Made, var: str) -> str:
    """Say why xsdba adjusts a variable, whose draws cannot be made again for a single cell; "" if our kernels do."""
    if run.config.biasadjust.variables[var].engine == "xsdba":
        return "asked for"
    return kernel_backend.why_not_train(_setup(run, made, var, TimeAxis.of(made.reference))) or ""


def _setup(run: RunContext, made: Made, var: str, axis: TimeAxis) -> TrainingSetup:
    """The training's setup, of this cell alone."""
    given, units = run.config.biasadjust.variables[var].training_args, TrainedObject.of(made.training[var]).units
    seed, first = run.production.pieces.draws(partition.pool_of(run, made.sim_id), made.cell.piece, var)
    arguments = given.arguments()

    def threshold(name: str) -> float | None:
        return threshold_in(arguments[name]["thresh"], units) if arguments.get(name) else None

    return TrainingSetup(
        given.method,
        Grouping.parse(arguments["group"]),
        given.xclim_train_args.arguments(),
        axis,
        units,
        seed,
        threshold("jitter_under"),
        threshold("adapt_freq"),
        members=tuple(made.members) if "realization" in made.adjusted[var].dims else None,
        first_cell=first + made.cell.place,
        additive_space=arguments.get("additive_space"),
    )


def _names_of_draws(setup: TrainingSetup, purpose: str = "") -> list[str]:
    """The seed of each member's draws."""
    seed = f"{setup.seed}{purpose}"
    return [seed] if setup.members is None else [f"{seed}+{name}" for name in setup.members]


def _cell_seeds(name: str, setup: TrainingSetup) -> np.ndarray:
    return quantile_mapping.cell_seeds(name, np.array([setup.first_cell]))


def _prepared(
    reference: np.ndarray, historical: np.ndarray, setup: TrainingSetup
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The members with noise; and the reference (time) and the members as they are trained."""
    own, one = _cell_seeds(setup.seed, setup), reference[np.newaxis]
    noisy = historical
    if setup.jitter_under is not None:
        of_members = np.concatenate([_cell_seeds(name, setup) for name in _names_of_draws(setup)])
        noisy = quantile_mapping.jitter(historical, setup.jitter_under, seeds=of_members)
        one = quantile_mapping.jitter(one, setup.jitter_under, seeds=own, reference=True)
    if setup.adapt_freq is None:
        return noisy, one[0], noisy
    made = quantile_mapping.prepare(
        reference[np.newaxis],
        historical,
        plan_windows(setup.time.dayofyear, setup.group.window),
        seeds=own,
        jitter_under=setup.jitter_under,
        adapt_freq=setup.adapt_freq,
    )
    return noisy, made.reference[0], made.historical


def adjusted_of(run: RunContext, made: Made, var: str, day: Day, raw: tuple[cascade.Weights, xr.Dataset]) -> Adjusted:
    """Return the steps of an adjusted variable; `raw` are the weights and the raw maps of the day.

    Raises
    ------
    DataError
        If a step does not lead to the next value of the rules.
    ConfigurationError
        If xsdba adjusts the variable.
    """
    calibration = calibrate(run, made, var, day.dayofyear)
    setup, member = calibration.setup, list(made.members).index(made.sim_id)
    variable = run.config.biasadjust.variables[var]
    simulation, step, axis = _simulation(made, var, variable, day)
    noisy = _with_noise(simulation, var, setup)
    method = _method(made, var, variable, axis)
    adapted = _adapted(made, var, noisy, method, setup)
    correction = mapping.correct(adapted, method, member=member, step=step)
    value = float(_value(made, var, day))
    if not mapping.agree(correction.result, value):
        raise DataError(
            f"adjustment: the steps of {var} give {correction.result!r} {setup.units} on {day.date}, and the kernels "
            f"{value!r}: a defect of espo_luigi. Please report it with this cell and day."
        )
    weights, maps = raw
    before = float(simulation[member, step])
    return Adjusted(
        var,
        setup.units,
        replace(
            _regridded(weights, maps[var], made.cell.place, before, setup.units),
            repairs=_repairs_of(made.members[made.sim_id], var),
        ),
        _noise(calibration, before, float(noisy[member, step])),
        _dry_days(made, var, calibration, day),
        _sample(calibration, before),
        correction,
        value,
    )


def _simulation(made: Made, var: str, variable: VariableAdjustment, day: Day) -> tuple[np.ndarray, int, TimeAxis]:
    """The members (member, time) over the period that has the day, in the calendar and the units of the training."""
    units, target = TrainedObject.of(made.training[var]).units, calendar.calendar_of(made.adjusted[var])
    arguments = variable.adjusting_args.arguments()
    year = int(day.date[:4])
    first, last = next(pair for pair in each_period(arguments["periods"]) if int(pair[0]) <= year <= int(pair[1]))
    align = arguments.get("align_on", "year")
    found = [
        calendar.convert(convert_to(calendar.whole_years(one[var], first, last), units), target, align_on=align).isel(
            loc=0
        )
        for one in made.members.values()
    ]
    axis = TimeAxis.of(found[0])
    step = place_of(axis, day.date)
    assert step is not None
    return np.stack([one.values for one in found]), step, axis


def _with_noise(simulation: np.ndarray, var: str, setup: TrainingSetup) -> np.ndarray:
    """The simulation that is adjusted: a diurnal range has noise below a threshold, as `Adjust` has it."""
    if var != "dtr":
        return simulation
    threshold, names = threshold_in(JITTER_OF_DTR["thresh"], setup.units), _names_of_draws(setup, "+adjust")
    how: dict[str, Any] = {"role": "simulation", "cells": np.array([setup.first_cell])}
    members = zip(simulation[:, np.newaxis], names, strict=True)
    return np.concatenate([seeds.jitter_under(one, threshold, seed=name, **how) for one, name in members])


def _method(made: Made, var: str, variable: VariableAdjustment, axis: TimeAxis) -> mapping.Method:
    training = made.training[var].isel(loc=0)
    trained = TrainedObject.of(made.training[var])
    arguments = variable.adjusting_args.arguments().get("xclim_adjust_args", {})
    reason = kernel_backend.why_not_adjust(AdjustmentSetup(trained, arguments, axis, ""))
    if reason:
        raise ConfigurationError(f"{var} is adjusted by xsdba ({reason}): `espo explain` knows our kernels only.")
    loess = arguments["detrend"]["LoessDetrend"] or {}
    plan = quantile_mapping.plan_adjustment(
        axis.dayofyear,
        axis.days,
        window=trained.group.window,
        fraction=float(loess.get("f", 0.2)),
        n_training_days=training.sizes["dayofyear"],
    )
    arrays = {name: training[name].transpose("dayofyear", ...).values for name in ("af", "hist_q", "scaling")} | {
        "quantiles": training["quantiles"].values
    }
    tail = trained.state.get("max_tail_factor")
    limits = None
    if tail is not None:
        raw = training["hist_q_raw"].transpose("dayofyear", "quantiles").values[:, -1]
        limits = raw.dtype.type(tail) * raw
    return mapping.Method(trained.kind or "+", plan, arrays, bool(loess.get("mult_skip_zeros")), limits)


def _adapted(made: Made, var: str, simulation: np.ndarray, method: mapping.Method, setup: TrainingSetup) -> np.ndarray:
    """The members with their dry days adapted, where the training asks for that."""
    if setup.adapt_freq_thresh is None:
        return simulation
    from espo_luigi.methods.dqm.kernels.adapting import adapt_simulation

    training = made.training[var].isel(loc=0)
    shares = [training[name].transpose("dayofyear", ...).values for name in ("P0_ref", "P0_hist", "pth")]
    threshold = simulation.dtype.type(setup.adapt_freq_thresh)
    out = np.empty_like(simulation)
    for member, name in enumerate(_names_of_draws(setup, "+adjust")):
        own = [np.ascontiguousarray(one.reshape(len(one), -1)[:, member]) for one in shares]
        adapt_simulation(simulation[member], method.plan, threshold, *own, _cell_seeds(name, setup)[0], out[member])
    return out


def _value(made: Made, var: str, day: Day) -> np.ndarray:
    data = made.adjusted[var][var].isel(loc=0)
    if "realization" in data.dims:
        data = data.sel(realization=made.sim_id)
    return data.isel(time=place_of(TimeAxis.of(data), day.date)).values


def _noise(calibration: Calibration, before: float, after: float) -> Noise | None:
    threshold, window = calibration.setup.jitter_under, calibration.window
    if threshold is None:
        return None
    changed = before != after and not np.isnan(before)
    return Noise(
        threshold,
        float((calibration.reference[window] < threshold).mean()),
        float((calibration.historical[:, window] < threshold).mean()),
        changed,
        after if changed else None,
    )


def _dry_days(made: Made, var: str, calibration: Calibration, day: Day) -> DryDays | None:
    setup, window, training = calibration.setup, calibration.window, made.training[var]
    threshold = setup.adapt_freq if setup.adapt_freq is not None else setup.adapt_freq_thresh
    if threshold is None:
        return None
    member = list(made.members).index(made.sim_id)
    tops = training["pth"].isel(loc=0, dayofyear=min(day.dayofyear, training.sizes["dayofyear"]) - 1)
    step = place_of(setup.time, day.date)
    before, after = calibration.noisy, calibration.prepared
    wetted = setup.adapt_freq is not None and step is not None and before[0, step] != after[0, step]
    return DryDays(
        threshold,
        float((calibration.prepared_reference[window] <= threshold).mean()),
        float((before[member, window] <= threshold).mean()),
        float(np.atleast_1d(tops.values)[member if tops.ndim else 0]),
        int((before[:, window] != after[:, window]).sum()) if setup.adapt_freq is not None else None,
        float(after[0, step]) if wetted else None,
        step is not None,
        setup.adapt_freq_thresh is not None,
    )


def _sample(calibration: Calibration, value: float) -> Sample:
    setup, window = calibration.setup, calibration.window
    reference, simulation = calibration.prepared_reference[window], calibration.prepared[:, window].ravel()
    return Sample(
        setup.group.window,
        int(setup.time.year[0]),
        int(setup.time.year[-1]),
        int(reference.size),
        int(simulation.size),
        float(np.nanmean(reference)),
        float(np.nanmean(simulation)),
        _LEVELS,
        tuple(map(float, np.nanquantile(reference, _LEVELS))),
        tuple(map(float, np.nanquantile(simulation, _LEVELS))),
        float((simulation <= value).mean()),
    )
