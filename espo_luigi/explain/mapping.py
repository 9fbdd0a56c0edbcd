"""The numbers of detrended quantile mapping of a single day, in numpy: each step of what the kernels do at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from espo_luigi.methods.dqm import quantile_mapping
from espo_luigi.methods.dqm.windows import WindowPlan

Floats = np.ndarray[Any, Any]
# How far the product of the steps may be from the kernels' value, which adds in a different order.
_ROUND_OFF = 1e-5


@dataclass(frozen=True)
class Sample:
    """The calibration's values in the window around a day of the year.

    Attributes
    ----------
    levels, reference, simulation
        Quantiles of both, as far as they were prepared for the training.
    reference_size, simulation_size
        The number of values; a pool's members count together.
    rank
        The share of the simulation's values that are not above the value of the day.
    """

    window: int
    first_year: int
    last_year: int
    reference_size: int
    simulation_size: int
    reference_mean: float
    simulation_mean: float
    levels: tuple[float, ...]
    reference: tuple[float, ...]
    simulation: tuple[float, ...]
    rank: float


@dataclass(frozen=True)
class Correction:
    """The steps from a simulated value to the adjusted value, in the reference's units.

    Attributes
    ----------
    scaling, scaled, trend, anomaly
        The value moved by the scaling of the day of the year, its trend, and what is left without the trend.
    level, quantile, day_of_factor, factor
        The nearest point among the training's quantiles: its level, its value, the day of the year, and its factor.
    beyond
        "below" or "above" if the anomaly lies outside of the day's quantiles, else "".
    kept
        Whether the value stays as it was, because it is above the limit `tail_limit`.
    """

    kind: str
    value: float
    scaling: float
    scaled: float
    trend: float
    anomaly: float
    level: float
    quantile: float
    quantiles: int
    dayofyear: int
    day_of_factor: int
    factor: float
    beyond: str
    tail_limit: float | None
    kept: bool
    result: float


def places_in_window(plan: WindowPlan, dayofyear: int, n_times: int) -> np.ndarray:
    """Return the time steps of the window around a day of the year, in all years."""
    group = int(np.searchsorted(plan.dayofyear, dayofyear))
    centres = plan.centres[plan.centre_start[group] : plan.centre_start[group + 1]]
    half = plan.window // 2
    places = (centres[:, np.newaxis] + np.arange(-half, half + 1)).ravel()
    return places[(places >= 0) & (places < n_times)]


def trend_of(scaled: Floats, plan: quantile_mapping.AdjustmentPlan, step: int, *, window: int) -> float:
    """Return the LOESS trend at a time step, of a pool's scaled series (member, time).

    The means of the windows are added as numpy adds, like the kernels' (docs/explanation/numbers.md).
    """
    run, year, ahead = _place_in_run(plan, step)
    centres = plan.run_centres[plan.run_start[run] : plan.run_start[run + 1]] + ahead
    kind = plan.run_kinds[run]
    weights, first = plan.weights[kind, year], plan.firsts[kind, year]
    used = np.flatnonzero(weights)
    means = _window_means(scaled, centres[first + used], window)
    return float(np.sum(weights[used] * means.astype(np.float64)))


def _place_in_run(plan: quantile_mapping.AdjustmentPlan, step: int) -> tuple[int, int, int]:
    """The run of days that a time step is in, its year there, and how many days ahead of the run's first it is."""
    for run, groups in enumerate(plan.run_groups):
        centres = plan.run_centres[plan.run_start[run] : plan.run_start[run + 1]]
        year = int(np.searchsorted(centres, step, side="right")) - 1
        if year >= 0 and step - centres[year] < groups:
            return run, year, int(step - centres[year])
    raise AssertionError(f"no run of days has the time step {step}")


def _window_means(scaled: Floats, centres: np.ndarray, window: int) -> Floats:
    half, dtype = window // 2, scaled.dtype
    total, count = np.zeros(centres.size, dtype), np.zeros(centres.size)
    for series in scaled:
        padded = np.pad(series, half, constant_values=np.nan)
        views = sliding_window_view(padded, window)[centres]
        total += np.where(np.isnan(views), dtype.type(0), views).sum(axis=-1)
        count += (~np.isnan(views)).sum(axis=-1)
    return (total.astype(np.float64) / count).astype(dtype)


@dataclass(frozen=True)
class Method:
    """How a cell is adjusted.

    Attributes
    ----------
    training
        `af`, `hist_q` (dayofyear, quantiles) and `scaling` (dayofyear) of the cell, and the levels `quantiles`.
    tail_limits
        Values above these (dayofyear) stay as they are; None for none.
    """

    kind: str
    plan: quantile_mapping.AdjustmentPlan
    training: Mapping[str, Floats]
    skips_zeros: bool = False
    tail_limits: Floats | None = None


def correct(adapted: Floats, method: Method, *, member: int, step: int) -> Correction:
    """Return the steps of a time step of a member; `adapted` is the simulation (member, time) that is scaled."""
    plan, training = method.plan, method.training
    row, multiplies = int(plan.scaling_rows[step]), method.kind == "*"
    of_day = training["scaling"][plan.scaling_rows].astype(adapted.dtype)
    scaled = adapted * of_day if multiplies else adapted + of_day
    trend = trend_of(scaled, plan, step, window=plan.window)
    before, value = float(adapted[member, step]), float(scaled[member, step])
    divisor = 1.0 if method.skips_zeros and trend == 0 else trend
    anomaly = value * (1 / divisor) if multiplies else value - trend
    found = nearest(anomaly, row, training["af"], training["hist_q"])
    result = anomaly * found.factor * trend if multiplies else anomaly + found.factor + trend
    limit = None if method.tail_limits is None else float(method.tail_limits[row])
    kept = limit is not None and before > limit
    return Correction(
        kind=method.kind,
        value=before,
        scaling=float(training["scaling"][row]),
        scaled=value,
        trend=trend,
        anomaly=anomaly,
        level=float(training["quantiles"][found.place]),
        quantile=float(training["hist_q"][found.day, found.place]),
        quantiles=training["hist_q"].shape[1],
        dayofyear=row + 1,
        day_of_factor=found.day + 1,
        factor=found.factor,
        beyond=found.beyond,
        tail_limit=limit,
        kept=kept,
        result=before if kept else float(adapted.dtype.type(result)),
    )


@dataclass(frozen=True)
class Point:
    """A point of the training: the day of the year (from 0), the place of the quantile, and the factor."""

    day: int
    place: int
    factor: float
    beyond: str = ""


def nearest(anomaly: float, day: int, factors: Floats, quantiles: Floats) -> Point:
    """Return the point nearest to an anomaly in the plane of quantiles and days; beyond the day's quantiles, its end.

    Of points at the same distance the day's own is taken, then an earlier day's, as the kernels do.
    """
    known = np.flatnonzero(~np.isnan(quantiles[day]))
    if known.size and anomaly < quantiles[day, known[0]]:
        return Point(day, int(known[0]), float(factors[day, known[0]]), "below")
    if known.size and anomaly > quantiles[day, known[-1]]:
        return Point(day, int(known[-1]), float(factors[day, known[-1]]), "above")
    training = quantile_mapping.Training(factors[np.newaxis], quantiles[np.newaxis], np.zeros((1, len(factors))))
    settled = quantile_mapping.settle_ties(training)[0]
    n_days = len(factors)
    rows = np.arange(-1, n_days + 1)
    table = quantiles[rows % n_days].astype(np.float64)
    away = (anomaly - table) ** 2 + ((rows - day) ** 2)[:, np.newaxis]
    away[np.isnan(away) | np.isnan(settled[rows % n_days])] = np.inf
    order = np.lexsort((rows, np.abs(rows - day)))
    best = order[int(np.argmin(away[order].min(axis=1)))]
    place = int(np.argmin(away[best]))
    return Point(int(rows[best] % n_days), place, float(settled[rows[best] % n_days, place]))


def agree(one: float, other: float) -> bool:
    """Whether two numbers agree up to round-off, or are both missing."""
    if np.isnan(one) or np.isnan(other):
        return bool(np.isnan(one) and np.isnan(other))
    return abs(one - other) <= _ROUND_OFF * max(abs(one), abs(other)) + 1e-12
