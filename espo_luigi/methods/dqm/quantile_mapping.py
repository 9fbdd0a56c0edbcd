"""Detrended quantile mapping by day of year on numpy arrays (cell, time), by compiled kernels.

The numbers are xsdba's: same windows, same order of additions, same nearest neighbours. Cells are independent, and
the kernels release the GIL: each thread takes a few cells of a block at a time, with the same result.
Threads are Python's: numba's own cannot be entered from several Dask threads at once, or after a fork.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from espo_luigi.errors import DataError
from espo_luigi.methods.dqm.kernels.adapting import Adapting, Shares
from espo_luigi.methods.dqm.kernels.adjusting import adjust_cells
from espo_luigi.methods.dqm.kernels.loess import weigh_classes
from espo_luigi.methods.dqm.kernels.preparation import NOISE, adapt_cells, jitter_cells
from espo_luigi.methods.dqm.kernels.training import train_cells
from espo_luigi.methods.dqm.windows import WindowPlan, check_window, group_days, joined, joined_members, plan_pool

# Few enough that threads end together, enough that a call's own cost is nothing.
_CELLS_IN_A_CALL = 4


def run_by_cells(kernel: Callable[[slice], None], n_cells: int, threads: int) -> None:
    """Call ``kernel`` with slices that cover all cells, from as many threads as given."""
    slices = [slice(first, first + _CELLS_IN_A_CALL) for first in range(0, n_cells, _CELLS_IN_A_CALL)]
    if threads <= 1 or len(slices) == 1:
        for cells in slices:
            kernel(cells)
        return
    with ThreadPoolExecutor(min(threads, len(slices))) as pool:
        for _ in pool.map(kernel, slices):
            pass


class Training(NamedTuple):
    """What training makes: factors and historical quantiles (cell, dayofyear, quantile), scaling (cell, dayofyear).

    `raw_quantiles`, of the values themselves, and `shares` (cell, dayofyear, member) are there if they are asked for.
    """

    factors: np.ndarray
    historical_quantiles: np.ndarray
    scaling: np.ndarray
    raw_quantiles: np.ndarray | None = None
    shares: Shares | None = None


def train(
    reference: np.ndarray,
    historical: np.ndarray,
    plan: WindowPlan,
    *,
    quantiles: np.ndarray,
    kind: str,
    detrended: bool = True,
    raw: bool = False,
    adapt_freq_thresh: float | None = None,
    small: float = 0.0,
    seeds: np.ndarray | None = None,
    threads: int = 1,
) -> Training:
    """Train detrended quantile mapping (Cannon et al. 2015) of ``historical`` towards ``reference``, (cell, time) both.

    Quantiles of the anomalies from the windowed mean of each day of year, difference (kind "+") or quotient ("*").
    Types are the arrays'; float32 with float64 is computed in float64. A historical (cell, member, time) is a pool: the
    samples have the values of all members, and there is one correction for all.

    Parameters
    ----------
    detrended
        False: quantiles of the values themselves, and no scaling, as quantile delta mapping trains.
    raw
        Whether to return the quantiles of the historical values, too.
    adapt_freq_thresh
        Adapts each member's frequency of values up to this threshold in each day of year's sample, as xsdba's argument
        of the same name does; for kind "*". The draws need ``seeds`` (cell, member).
    small
        Where the historical values are below it, ratios are at most 2.
    """
    dtype = np.result_type(reference, historical)
    reference, historical = (np.ascontiguousarray(one, dtype=dtype) for one in (reference, historical))
    n_cells, n_times = reference.shape
    members = historical.shape[1] if historical.ndim == 3 else 1
    quantiles = np.asarray(quantiles).astype(dtype)
    shape = (n_cells, plan.dayofyear.size)
    made = Training(
        np.empty((*shape, quantiles.size), dtype), np.empty((*shape, quantiles.size), dtype), np.empty(shape, dtype)
    )
    raw_quantiles = np.empty((n_cells if raw else 0, shape[1], quantiles.size), dtype)
    shares = Shares(*(np.empty((*shape, members), dtype) for _ in Shares._fields))
    pool_plan = plan_pool(plan, n_times, members) if members > 1 else plan

    def kernel(cells: slice) -> None:
        part = historical[cells].reshape(-1, members, n_times)
        pooled = joined_members(part, plan) if members > 1 else part[:, 0]
        keys = np.empty((2, pooled.shape[1]), dtype=f"u{dtype.itemsize}")
        adapting = None
        if adapt_freq_thresh is not None:
            assert seeds is not None and kind == "*"
            of_cells = seeds.reshape(n_cells, members)[cells]
            adapting = Adapting(dtype.type(adapt_freq_thresh), of_cells, Shares(*(one[cells] for one in shares)))
        outputs = [one[cells] for one in (*made[:3], raw_quantiles)]
        how = kind == "*", detrended, dtype.type(small)
        train_cells(reference[cells], pooled, keys, plan, pool_plan, quantiles, *how, adapting, *outputs)

    run_by_cells(kernel, n_cells, threads)
    return made._replace(
        raw_quantiles=raw_quantiles if raw else None, shares=None if adapt_freq_thresh is None else shares
    )


def jitter(
    values: np.ndarray, threshold: float, *, seeds: np.ndarray, series: str = "historical", threads: int = 1
) -> np.ndarray:
    """Replace values below a threshold by noise, as xsdba's ``jitter_under_thresh``, in series (…, time).

    Draws depend on each series' seed and on whether it is the reference, the historical or the adjusted simulation.
    """
    flat = np.ascontiguousarray(values).reshape(-1, values.shape[-1])
    out, of_series = np.empty_like(flat), seeds.ravel()

    def kernel(cells: slice) -> None:
        jitter_cells(flat[cells], float(threshold), of_series[cells], NOISE[series], out[cells])

    run_by_cells(kernel, len(flat), threads)
    return out.reshape(values.shape)


def cell_seeds(seed: str, cells: np.ndarray) -> np.ndarray:
    """Make each cell's 64-bit seed from a text and the cell's position in the whole grid."""
    start = np.frombuffer(hashlib.sha256(seed.encode()).digest()[:8], dtype="<u8")[0]
    text = (f"{start}|{cell}".encode() for cell in np.asarray(cells).ravel().tolist())
    digests = b"".join(hashlib.blake2b(one, digest_size=8).digest() for one in text)
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)


def seeds_of_members(seeds: Sequence[str], cells: np.ndarray) -> np.ndarray:
    """Return `cell_seeds` of each member's text, (cell, member)."""
    return np.stack([cell_seeds(seed, cells) for seed in seeds], axis=-1)


def adapt_frequencies(
    reference: np.ndarray,
    historical: np.ndarray,
    plan: WindowPlan,
    threshold: float,
    *,
    seeds: np.ndarray,
    threads: int = 1,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Adapt the frequency of historical values up to a threshold, (cell, time), as ESPO-G does before the training.

    Distributions are those of xsdba's ``adapt_freq``; a cell's draws depend on its seed (see ``cell_seeds``) and
    nothing else. Returns the historical series, and pth and dP0 (cell, dayofyear).
    """
    dtype = np.result_type(reference, historical)
    reference, historical = (np.ascontiguousarray(one, dtype=dtype) for one in (reference, historical))
    (n_cells, n_times), adapted = reference.shape, np.empty_like(historical)
    pth, dry_share = np.empty((n_cells, plan.dayofyear.size), dtype), np.empty((n_cells, plan.dayofyear.size))

    def kernel(cells: slice) -> None:
        keys = np.empty((2, n_times), dtype=f"u{dtype.itemsize}")
        outputs = adapted[cells], pth[cells], dry_share[cells]
        adapt_cells(reference[cells], historical[cells], keys, plan, dtype.type(threshold), seeds[cells], *outputs)

    run_by_cells(kernel, n_cells, threads)
    return adapted, pth, dry_share


class AdjustmentPlan(NamedTuple):
    """How the kernels walk through a simulation's days.

    Attributes
    ----------
    window, fraction
        Days in a window; LOESS fraction f.
    reach
        The distance of values that counts as much as a day of the year: 1 in xsdba's plane; infinite for the nearest
        quantile of a value's own day, whatever the unit.
    scaling_rows
        For each time step, the row of the training's day of year nearest to its own.
    table_rows
        For each group (day of year that occurs), its row among the training's with one more at each end.
    run_first, run_groups, run_kinds, run_centres, run_start
        Runs of groups whose time steps all move by one day from group to group: the first group, the number of groups,
        the kind of years, and the first group's time steps.
    points, spacings, weights, firsts
        For each kind of years (sequence of distances): LOESS points from 0 to 1, their spacing (0: unequal), each
        year's weights and the first year that they are for. Empty without LOESS.
    """

    window: int
    fraction: float
    reach: float
    scaling_rows: np.ndarray
    table_rows: np.ndarray
    run_first: np.ndarray
    run_groups: np.ndarray
    run_kinds: np.ndarray
    run_centres: np.ndarray
    run_start: np.ndarray
    points: np.ndarray
    spacings: np.ndarray
    weights: np.ndarray
    firsts: np.ndarray


def plan_adjustment(
    dayofyear: np.ndarray, days: np.ndarray, *, window: int, fraction: float | None, n_training_days: int
) -> AdjustmentPlan:
    """Lay out the adjustment of a series of days, with the reach of xsdba's plane.

    Parameters
    ----------
    dayofyear, days
        Of each time step: day of year, and days since any origin in the series' calendar.
    fraction
        LOESS fraction f, within (0, 1); None for a plan without LOESS.
    n_training_days
        Days of year in the training, 1 to this.

    Raises
    ------
    DataError
        If the window is outside of what the kernels do, or a day of year has no factors.
    """
    check_window(window)
    days_present, groups = group_days(dayofyear)
    if days_present[-1] > n_training_days + 1:
        raise DataError(
            f"The simulation has day of year {days_present[-1]} and the training ends at {n_training_days}; "
            "train in the simulation's calendar."
        )
    changes = (index for index, group in enumerate(groups) if not np.array_equal(group, groups[index - 1] + 1))
    firsts = sorted({0, *changes})
    centres = [groups[first] for first in firsts]
    kinds, run_kinds = _kinds_of_years([np.asarray(days)[one].astype(np.int64) for one in centres])
    empty = np.empty((0, 0)), np.empty(0), np.empty((0, 0, 0)), np.empty((0, 0), np.int32)
    points, spacings, weights, first_years = empty if fraction is None else _loess(kinds, fraction)
    return AdjustmentPlan(
        window,
        fraction or 0.0,
        1.0,
        (np.minimum(dayofyear, n_training_days) - 1).astype(np.int32),
        days_present,
        np.asarray(firsts, dtype=np.int64),
        np.diff([*firsts, len(groups)]),
        run_kinds,
        *joined(centres),
        points,
        spacings,
        weights,
        first_years,
    )


def _kinds_of_years(days: list[np.ndarray]) -> tuple[list[np.ndarray], np.ndarray]:
    """Distinct sequences of distances in days, and each run's sequence."""
    kinds: dict[bytes, int] = {}
    distances = [one - one[0] for one in days]
    numbers = np.asarray([kinds.setdefault(one.tobytes(), len(kinds)) for one in distances], dtype=np.int64)
    return [np.frombuffer(key, dtype=np.int64) for key in kinds], numbers


def _loess(kinds: list[np.ndarray], fraction: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Points, spacings, weights and first neighbours of each kind of years."""
    n_points = np.asarray([kind.size for kind in kinds])
    longest = int(n_points.max())
    points = np.zeros((len(kinds), longest))
    spacings = np.zeros(len(kinds))
    for index, kind in enumerate(kinds):
        points[index, : kind.size] = kind / max(kind[-1], 1)
        if kind.size == 1:
            spacings[index] = 1
        elif np.ptp(np.diff(kind)) == 0:
            spacings[index] = points[index, 1]
    weights = np.zeros((len(kinds), longest, longest))
    first_years = np.zeros((len(kinds), longest), dtype=np.int32)
    weigh_classes(points, n_points, fraction, spacings, weights, first_years)
    # Without the zeros before and after each year's weights.
    leading, width = np.argmax(weights != 0, axis=-1), int((weights != 0).sum(axis=-1).max())
    padded = np.concatenate([weights, np.zeros((*weights.shape[:2], width))], axis=-1)
    trimmed = np.take_along_axis(padded, leading[..., np.newaxis] + np.arange(width), axis=-1)
    return points, spacings, trimmed, (first_years + leading).astype(np.int32)


def settle_ties(training: Training) -> np.ndarray:
    """Return the factors to search: where quantiles of a day are equal, all get the factor that scipy would find.

    xsdba searches with scipy's k-d tree, whose choice among equal points follows from how the tree was built. So a tree
    is built in the cells that have such points with different factors, which takes about 10 ms each. It is the tree of
    `scipy.interpolate.griddata` up to scipy 1.17, whatever is installed: no number depends on that.
    """
    factors, quantiles = training.factors, training.historical_quantiles
    equal = quantiles[..., 1:] == quantiles[..., :-1]
    if not equal.any():
        return factors
    settled = factors.copy()
    for cell in np.flatnonzero((equal & (factors[..., 1:] != factors[..., :-1])).any(axis=(1, 2))):
        settled[cell] = _settled(factors[cell], quantiles[cell])
    return settled


def _settled(factors: np.ndarray, quantiles: np.ndarray) -> np.ndarray:
    """Factors of one cell (dayofyear, quantile), each replaced by that of the point that scipy finds at its place."""
    from scipy.spatial import cKDTree

    padded_factors, padded_quantiles = (np.pad(one, ((1, 1), (0, 0)), mode="wrap") for one in (factors, quantiles))
    known = ~(np.isnan(padded_factors) | np.isnan(padded_quantiles))
    rows = np.broadcast_to(np.arange(len(padded_factors))[:, np.newaxis], padded_factors.shape)
    points = np.column_stack([padded_quantiles[known], rows[known]]).astype(np.float64)
    equal = np.pad(padded_quantiles[:, 1:] == padded_quantiles[:, :-1], ((0, 0), (1, 1)))
    tied = np.flatnonzero((equal[:, 1:] | equal[:, :-1])[known])
    # Any other point finds itself.
    found = cKDTree(points).query(points[tied])[1]
    settled, own = padded_factors.copy(), padded_factors[known]
    own[tied] = own[found]
    settled[known] = own
    return settled[1:-1]


@dataclass(frozen=True)
class Adaptation:
    """What is done to a simulation besides the adjustment, as the training did to the historical series.

    Attributes
    ----------
    threshold, shares, seeds
        The threshold of dry days, the training's shares (cell, dayofyear, member), and seeds (cell, member).
    limits
        Values above these (cell, dayofyear) are not adjusted; empty for none.
    nearby
        Whether dry days become wet in proportion to the wet days around them, not to dry days.
    """

    threshold: float
    shares: Shares
    seeds: np.ndarray
    limits: np.ndarray
    nearby: bool = False

    @classmethod
    def none(cls, dtype: np.dtype[Any]) -> Adaptation:
        """Return what changes nothing."""
        empty = np.empty((0, 0, 0), dtype)
        return cls(0.0, Shares(empty, empty, empty), np.empty((0, 0), np.uint64), np.empty((0, 0), dtype))

    def of_cells(self, cells: slice, dtype: np.dtype[Any]) -> tuple[Any, ...]:
        """Return the kernels' arguments for some cells of a series of a type."""
        shares = Shares(*(one[cells] for one in self.shares))
        return dtype.type(self.threshold), self.nearby, shares, self.limits[cells], self.seeds[cells]


def adjust(
    simulation: np.ndarray,
    training: Training,
    plan: AdjustmentPlan,
    *,
    kind: str,
    skips_zeros: bool = False,
    adaptation: Adaptation | None = None,
    traced: np.ndarray | None = None,
    threads: int = 1,
) -> tuple[np.ndarray, np.ndarray]:
    """Adjust a simulation (cell, time) with its training; the first result has the simulation's type and shape.

    The second, of the same shape, has bit n where a day is treated as `TREATMENTS[n]` says (uint8).

    Scaling, LOESS trend of the windowed means, nearest factor within the plan's reach, constant extrapolation
    (Cannon et al. 2015, as xsdba's DetrendedQuantileMapping with LoessDetrend of degree 0). The members
    of a pool (cell, member, time) share a trend, that of the mean over them. ``skips_zeros`` is xsdba's
    ``mult_skip_zeros``. If ``traced`` is given, it is filled with the values before scaling, scaled values, trends,
    anomalies and factors: (5, cell, member, time).
    """
    adjusted = np.empty(simulation.shape, simulation.dtype)
    shape = (len(simulation), simulation.shape[1] if simulation.ndim == 3 else 1, simulation.shape[-1])
    members, out = np.ascontiguousarray(simulation).reshape(shape), adjusted.reshape(shape)
    marks = np.zeros(shape, np.uint8)
    more = adaptation or Adaptation.none(training.factors.dtype)
    nowhere = np.empty((5, 0, 0, 0)) if traced is None else traced

    def kernel(cells: slice) -> None:
        part = Training(training.factors[cells], training.historical_quantiles[cells], training.scaling[cells])
        adjust_cells(
            members[cells],
            part.factors,
            settle_ties(part) if plan.reach == 1 else part.factors,
            part.historical_quantiles,
            part.scaling,
            plan,
            kind == "*",
            skips_zeros,
            *more.of_cells(cells, simulation.dtype),
            out[cells],
            marks[cells],
            nowhere[:, cells],
        )

    run_by_cells(kernel, len(simulation), threads)
    return adjusted, marks.reshape(simulation.shape)
