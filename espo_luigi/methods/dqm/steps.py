"""The steps of detrended quantile mapping of one day in one cell, by the kernels that adjust whole series."""

from __future__ import annotations

import numpy as np

from espo_luigi.methods.base import Step
from espo_luigi.methods.dqm.kernels.adapting import adapt_simulation
from espo_luigi.methods.dqm.kernels.adjusting import trace_cell
from espo_luigi.methods.dqm.quantile_mapping import Adaptation, AdjustmentPlan, Training, settle_ties


def steps_of_day(
    simulation: np.ndarray,
    training: Training,
    plan: AdjustmentPlan,
    *,
    kind: str,
    units: str,
    levels: np.ndarray,
    step: int,
    member: int = 0,
    skips_zeros: bool = False,
    adaptation: Adaptation | None = None,
) -> list[Step]:
    """Return what `quantile_mapping.adjust` does to one value; the last step, `result`, is its scenario's value.

    `simulation` has the members (member, time) of one cell; `member` and `step` are the value's place. `training` has
    a single cell. `levels` are those of the quantiles, from 0 to 1. The other arguments are those of `adjust`.
    """
    more, times = adaptation or Adaptation.none(simulation.dtype), kind == "*"
    adapted = _adapted(simulation, plan, more)
    scaled, traced = np.empty_like(adapted), np.empty((3, adapted.shape[-1]))
    arrays = training.factors, settle_ties(training), training.historical_quantiles, training.scaling
    trace_cell(adapted, *arrays, plan, times, skips_zeros, member, scaled, *traced)
    trend, anomaly, factor = (float(series[step]) for series in traced)
    row, before, made = int(plan.scaling_rows[step]), adapted[member, step], []
    if more.shares.pth.size:
        is_wet = before != simulation[member, step]
        said = "A dry day, which the adaptation of frequencies made wet." if is_wet else "Not made wet."
        made.append(Step("made wet", float(before), units, said))
    day, scaling = f"day {row + 1} of the year", float(training.scaling[0, row])
    how = f"× {scaling:.4g}" if times else f"{scaling:+.4g} {units}"
    place, quantile = _quantile(anomaly, training.historical_quantiles[0, row], day)
    unit, value = ("1", anomaly * factor * trend) if times else (units, anomaly + factor + trend)
    result, said = float(simulation.dtype.type(value)), f"anomaly {'× factor ×' if times else '+ factor +'} trend."
    if more.limits.size and before > (limit := more.limits[0, row]):
        result, said = float(before), f"Above the limit {limit:.4g} {units}: the value stays as the model has it."
    return [
        *made,
        Step("scaled", float(scaled[member, step]), units, f"{how}, the scaling of {day}."),
        Step("trend", trend, units, "LOESS over the years, of the scaled series' means around this day of the year."),
        Step("anomaly", anomaly, unit, "Divided by the trend." if times else "Without the trend."),
        Step("quantile", float(levels[place]), "1", quantile),
        Step("factor", factor, unit, "That of the nearest point among the training's quantiles and days of the year."),
        Step("result", result, units, said),
    ]


def _adapted(simulation: np.ndarray, plan: AdjustmentPlan, more: Adaptation) -> np.ndarray:
    """The members with dry days made wet, as the training asks."""
    if not more.shares.pth.size:
        return simulation
    out, threshold = np.empty_like(simulation), simulation.dtype.type(more.threshold)
    for member, series in enumerate(simulation):
        shares = [np.ascontiguousarray(share[0, :, member]) for share in more.shares]
        adapt_simulation(series, plan, threshold, *shares, more.seeds[0, member], out[member])
    return out


def _quantile(anomaly: float, quantiles: np.ndarray, day: str) -> tuple[int, str]:
    """The place of the quantile of this day of the year that is nearest, and a sentence about it."""
    known = np.flatnonzero(~np.isnan(quantiles))
    if not known.size or np.isnan(anomaly):
        return 0, f"No quantile of {day} is known."
    place = int(known[np.argmin(np.abs(quantiles[known].astype(np.float64) - anomaly))])
    said = f"The level of the nearest quantile of {day}"
    if anomaly < quantiles[known[0]]:
        said = f"Below all quantiles of {day}: the first gives the factor"
    elif anomaly > quantiles[known[-1]]:
        said = f"Above all quantiles of {day}: the last gives the factor"
    return place, f"{said}, {quantiles[place]:.4g}."
