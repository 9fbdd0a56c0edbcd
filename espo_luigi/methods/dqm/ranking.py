"""Quantile delta mapping by day of year on numpy arrays (cell, time), by compiled kernels: the numbers are xsdba's."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from espo_luigi.methods.dqm.kernels.ranking import adjust_ranked
from espo_luigi.methods.dqm.quantile_mapping import Adaptation, AdjustmentPlan, plan_adjustment, run_by_cells
from espo_luigi.methods.dqm.windows import WindowPlan, YearWindow, plan_pool, plan_windows

_NO_RANK = 2**16 - 1


class RankPlan(NamedTuple):
    """How values are ranked in a window of years.

    Attributes
    ----------
    span
        The window's time steps, and those that are kept.
    rows
        The day of year of each of the window's time steps.
    days, windows
        The window's days, and those among which a value is ranked: of all members as one long series if `pooled`.
    pooled
        Whether the members of a pool are ranked together.
    """

    span: YearWindow
    rows: np.ndarray
    days: AdjustmentPlan
    windows: WindowPlan
    pooled: bool


def plan_ranks(
    dayofyear: np.ndarray,
    days: np.ndarray,
    spans: list[YearWindow],
    *,
    window: int,
    n_training_days: int,
    pool: int | None = None,
) -> list[RankPlan]:
    """Lay out the ranks in each window of years.

    Parameters
    ----------
    dayofyear, days, n_training_days
        As for `plan_adjustment`.
    window
        Values are ranked among those of so many days around their day of year.
    pool
        The number of members that are ranked together; None if each is ranked by itself.
    """
    plans: dict[bytes, tuple[AdjustmentPlan, WindowPlan]] = {}
    made = []
    for span in spans:
        rows = np.ascontiguousarray(dayofyear[span.first : span.last], dtype=np.int64)
        if (key := rows.tobytes()) not in plans:
            of_days = plan_adjustment(
                rows, days[span.first : span.last], window=window, fraction=None, n_training_days=n_training_days
            )
            windows = plan_windows(rows, window)
            plans[key] = of_days, windows if pool is None else plan_pool(windows, rows.size, pool)
        made.append(RankPlan(span, rows, *plans[key], pool is not None))
    return made


@functools.lru_cache(maxsize=4)
def turning_points(levels: tuple[float, ...], n_days: int) -> np.ndarray:
    """Return the last rank between successive levels that is nearer to the lower one, (day of year, level) in float64.

    There is a further day before the first and after the last. A rank is often halfway between two levels, such as 0.02
    between 0.01 and 0.03. There, it is the side that scipy's tree takes, as in xsdba (see
    `quantile_mapping.settle_ties`).
    """
    from scipy.spatial import cKDTree

    known = np.asarray(levels)
    rows = np.arange(n_days + 2)
    middles = 0.5 * (known[:-1] + known[1:])
    tree = cKDTree(np.column_stack([np.tile(known, rows.size), np.repeat(rows, known.size)]).astype(np.float64))
    places = np.column_stack([np.tile(middles, rows.size), np.repeat(rows, middles.size)])
    found = tree.query(places)[1].reshape(rows.size, middles.size) % known.size
    takes_lower = found == np.arange(middles.size)
    return np.where(takes_lower, middles, np.nextafter(middles, -np.inf))


def adjust(
    simulation: np.ndarray,
    factors: np.ndarray,
    levels: np.ndarray,
    plans: list[RankPlan],
    *,
    kind: str,
    adaptation: Adaptation | None = None,
    traced: np.ndarray | None = None,
    threads: int = 1,
) -> tuple[np.ndarray, np.ndarray]:
    """Adjust a simulation by quantile delta mapping; results are those of `quantile_mapping.adjust`.

    Each value gets the factor at its rank (Cannon et al. 2015, as xsdba's QuantileDeltaMapping): that of the nearest
    level, constant beyond the levels.

    Parameters
    ----------
    simulation
        (cell, time) or, of a pool, (cell, member, time).
    factors
        The training's (cell, dayofyear, quantile).
    levels
        Those of the quantiles, from 0 to 1, in the training's type.
    traced
        If given, filled with each value's rank, the value as it is ranked and its factor: (3, cell, member, time); or
        (1, …) with the rank.
    """
    adjusted = np.empty(simulation.shape, simulation.dtype)
    shape = (len(simulation), simulation.shape[1] if simulation.ndim == 3 else 1, simulation.shape[-1])
    members, out = np.ascontiguousarray(simulation).reshape(shape), adjusted.reshape(shape)
    marks = np.zeros(shape, np.uint8)
    more = adaptation or Adaptation.none(factors.dtype)
    turns = turning_points(tuple(levels.astype(np.float64).tolist()), factors.shape[1])
    nowhere = np.empty((3, 0, 0, 0)) if traced is None else traced

    def kernel(cells: slice) -> None:
        for plan in plans:
            length = plan.rows.size + plan.windows.window // 2
            size = (shape[1] if plan.pooled else 1) * length - plan.windows.window // 2
            adjust_ranked(
                members[cells],
                factors[cells],
                levels,
                turns,
                plan,
                np.empty((2, size), dtype=f"u{simulation.dtype.itemsize}"),
                kind == "*",
                *more.of_cells(cells, simulation.dtype),
                out[cells],
                marks[cells],
                nowhere[:, cells],
            )

    run_by_cells(kernel, len(simulation), threads)
    return adjusted, marks.reshape(simulation.shape)


def as_quantiles(ranks: np.ndarray) -> np.ndarray:
    """Return ranks from 0 to 1 as uint16: within 1 / 131 068; NaN is the highest number."""
    return np.where(np.isnan(ranks), _NO_RANK, np.rint(ranks * (_NO_RANK - 1))).astype(np.uint16)


def of_quantiles(quantiles: np.ndarray) -> np.ndarray:
    """Inverse of `as_quantiles`."""
    return np.where(quantiles == _NO_RANK, np.nan, quantiles / (_NO_RANK - 1))
