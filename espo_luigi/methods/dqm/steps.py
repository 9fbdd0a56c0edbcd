"""The steps of one day in one cell, by the kernels that adjust whole series."""

from __future__ import annotations

import numpy as np

from espo_luigi.methods.base import Step
from espo_luigi.methods.dqm import quantile_mapping, ranking
from espo_luigi.methods.dqm.quantile_mapping import Adaptation, AdjustmentPlan, Training
from espo_luigi.methods.dqm.ranking import RankPlan


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
    traced = np.empty((5, 1, *simulation.shape))
    adjusted, _ = quantile_mapping.adjust(
        simulation[np.newaxis], training, plan, kind=kind, skips_zeros=skips_zeros, adaptation=more, traced=traced
    )
    before, scaled, trend, anomaly, factor = (float(one[0, member, step]) for one in traced)
    row = int(plan.scaling_rows[step])
    day, scaling = f"day {row + 1} of the year", float(training.scaling[0, row])
    scaled_by = f"× {scaling:.4g}" if times else f"{scaling:+.4g} {units}"
    place, quantile = _quantile(anomaly, training.historical_quantiles[0, row], day)
    unit = "1" if times else units
    searched = "quantiles of this day of the year" if plan.reach > 1 else "quantiles and days of the year"
    said = _kept(before, more, row, units) or f"anomaly {'× factor ×' if times else '+ factor +'} trend."
    return [
        *_made_wet(before, simulation[member, step], more, units),
        Step("scaled", scaled, units, f"{scaled_by}, the scaling of {day}."),
        Step("trend", trend, units, "LOESS over the years, of the scaled series' means around this day of the year."),
        Step("anomaly", anomaly, unit, "Divided by the trend." if times else "Without the trend."),
        Step("quantile", float(levels[place]), "1", quantile),
        Step("factor", factor, unit, f"That of the nearest point among the training's {searched}."),
        Step("result", float(adjusted[0, member, step]), units, said),
    ]


def _kept(value: float, more: Adaptation, row: int, units: str) -> str:
    """The sentence about a value above the limit of its day of the year; empty for other values."""
    if not (more.limits.size and value > more.limits[0, row]):
        return ""
    return f"Above the limit {more.limits[0, row]:.4g} {units}: the value stays as the model has it."


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


def steps_by_rank(
    simulation: np.ndarray,
    factors: np.ndarray,
    levels: np.ndarray,
    plans: list[RankPlan],
    *,
    kind: str,
    units: str,
    step: int,
    member: int = 0,
    adaptation: Adaptation | None = None,
) -> list[Step]:
    """Return what `ranking.adjust` does to one value; arguments are those, and of `steps_of_day`."""
    more, times = adaptation or Adaptation.none(simulation.dtype), kind == "*"
    traced = np.empty((3, 1, *simulation.shape))
    adjusted, _ = ranking.adjust(
        simulation[np.newaxis], factors, levels, plans, kind=kind, adaptation=more, traced=traced
    )
    quantile, before, factor = (float(one[0, member, step]) for one in traced)
    plan = next(one for one in plans if one.span.kept_first <= step < one.span.kept_last)
    row, result = int(plan.days.scaling_rows[step - plan.span.first]), float(adjusted[0, member, step])
    n_days = int((plan.rows == plan.rows[step - plan.span.first]).sum())
    near = f"{plan.windows.window} days around day {row + 1}" if plan.windows.window > 1 else f"day {row + 1}"
    ranked = f"The rank, from 0 to 1, among the values of {near} of the year, in {n_days} years"
    level = (
        "" if np.isnan(quantile) else f" of the level {levels[np.argmin(np.abs(levels - quantile))]:.4g}, the nearest"
    )
    said = _kept(before, more, row, units) or f"value {'×' if times else '+'} factor."
    return [
        *_made_wet(before, simulation[member, step], more, units),
        Step("quantile", quantile, "1", f"{ranked}."),
        Step("factor", factor, "1" if times else units, f"The training's{level}."),
        Step("result", result, units, said),
    ]


def _made_wet(before: float, given: float, more: Adaptation, units: str) -> list[Step]:
    """The step of the adaptation of frequencies, if there is one."""
    if not more.shares.pth.size:
        return []
    said = "A dry day, which the adaptation of frequencies made wet." if before != given else "Not made wet."
    return [Step("made wet", before, units, said)]
