"""The steps of detrended quantile mapping of one day in one cell, by the kernels that adjust whole series."""

from __future__ import annotations

from typing import Any

import numpy as np

from espo_luigi.methods.base import Step
from espo_luigi.methods.dqm import quantile_mapping
from espo_luigi.methods.dqm.kernels.adapting import adapt_simulation
from espo_luigi.methods.dqm.kernels.adjusting import trace_cell
from espo_luigi.methods.dqm.quantile_mapping import Adaptation, AdjustmentPlan, Training


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

    Parameters
    ----------
    simulation
        The members (member, time) of one cell, as they are given to `adjust`.
    training, plan, kind, skips_zeros, adaptation
        As for `adjust`, with a single cell.
    levels
        The quantiles' levels, from 0 to 1.
    step, member
        The place of the value.
    """
    more = adaptation or Adaptation.none(simulation.dtype)
    adapted = _adapted(simulation, plan, more)
    scaled = np.empty_like(adapted)
    trend, anomaly, factor = (
        float(one[step]) for one in _traced(adapted, training, plan, scaled, (kind == "*", skips_zeros, member))
    )
    row, before, times = int(plan.scaling_rows[step]), adapted[member, step], kind == "*"
    scaling, day = float(training.scaling[0, row]), f"day {row + 1} of the year"
    made: list[Step] = []
    if before != simulation[member, step]:
        made.append(Step("made wet", float(before), units, "A dry day, which the adaptation of frequencies made wet."))
    how = f"× {scaling:.4g}" if times else f"{scaling:+.4g} {units}"
    trended = "Divided by the trend." if times else "Without the trend."
    unit = "1" if times else units
    place, quantile, said = _nearest(anomaly, training.historical_quantiles[0, row], day)
    result = anomaly * factor * trend if times else anomaly + factor + trend
    made += [
        Step("scaled", float(scaled[member, step]), units, f"{how}, the scaling of {day}."),
        Step("trend", trend, units, "LOESS over the years, of the scaled series' means around this day of the year."),
        Step("anomaly", anomaly, unit, trended),
        Step("quantile", float(levels[place]), "1", f"{said}, {quantile:.4g}."),
        Step("factor", factor, unit, "That of the nearest point among the training's quantiles and days of the year."),
        Step(
            "result",
            float(simulation.dtype.type(result)),
            units,
            f"anomaly {'× factor ×' if times else '+ factor +'} trend.",
        ),
    ]
    if more.limits.size and before > more.limits[0, row]:
        limit = f"Above the limit {more.limits[0, row]:.4g} {units}: the value stays as the model has it."
        made[-1] = Step("result", float(before), units, limit)
    return made


def _adapted(simulation: np.ndarray, plan: AdjustmentPlan, more: Adaptation) -> np.ndarray:
    """The members with dry days made wet, as the training asks."""
    if not more.shares.tops.size:
        return simulation
    out, threshold = np.empty_like(simulation), simulation.dtype.type(more.threshold)
    for member, series in enumerate(simulation):
        shares = [np.ascontiguousarray(share[0, :, member]) for share in more.shares]
        adapt_simulation(series, plan, threshold, *shares, more.seeds[0, member], out[member])
    return out


def _traced(
    series: np.ndarray, training: Training, plan: AdjustmentPlan, scaled: np.ndarray, how: tuple[bool, bool, int]
) -> Any:
    """The trends, anomalies and factors (time) of a member; fills `scaled`."""
    traced = np.empty((3, series.shape[-1]))
    trace_cell(
        series,
        training.factors,
        quantile_mapping.settle_ties(training),
        training.historical_quantiles,
        training.scaling,
        plan,
        *how,
        scaled,
        *traced,
    )
    return traced


def _nearest(anomaly: float, quantiles: np.ndarray, day: str) -> tuple[int, float, str]:
    """The place of the quantile of this day of the year that is nearest, its value, and a sentence's beginning."""
    known = np.flatnonzero(~np.isnan(quantiles))
    if not known.size or np.isnan(anomaly):
        return 0, float("nan"), "Without a quantile"
    place = int(known[np.argmin(np.abs(quantiles[known].astype(np.float64) - anomaly))])
    value = float(quantiles[place])
    if anomaly < quantiles[known[0]]:
        return place, value, f"Below all quantiles of {day}: the first gives the factor"
    if anomaly > quantiles[known[-1]]:
        return place, value, f"Above all quantiles of {day}: the last gives the factor"
    return place, value, f"The level of the nearest quantile of {day}"
