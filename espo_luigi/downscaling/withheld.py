"""Both ways on withheld years of a reference: its cells adjusted, and coarse cells adjusted and then downscaled.

The simulation is the reference itself, averaged to the coarse grid: what its later years are in each cell is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from espo_luigi.downscaling.blocks import downscale
from espo_luigi.methods.perfect_model import Adjustment, Plan, block_years, realisations_apart
from espo_luigi.science import seeds
from espo_luigi.science.attributes import QUANTILE
from espo_luigi.science.chunks import join
from espo_luigi.science.coarse import CoarseGrid, areas_of, places_of
from espo_luigi.science.diagnose import statistics
from espo_luigi.science.diagnose.statistics import Period, Resampling
from espo_luigi.science.stack import STACKED_DIM

TRUTH, DEFAULT = "truth", "default"
MEASURES = ("mean", "area_spread", "cell_spread", "highest", "inside", "across", "wet_days", "all_dry")
_REPLICATES, _LEAST_COARSE_CELLS = 200, 4


def sampled(fine: xr.Dataset, coarse: xr.Dataset, grid: CoarseGrid, cells: int) -> xr.Dataset:
    """Return the fine cells of the coarse cells nearest to the middle one: so many at most, or four coarse cells.

    Fine cells of coarse cells without data are left out. Lazy.
    """
    numbers, known = (grid.numbers(of["lat"].values, of["lon"].values) for of in (fine, coarse))
    own, counts = np.unique(numbers[np.isin(numbers, known)], return_counts=True)
    places = np.stack(np.divmod(own, grid.shape[1]))
    away = ((places - np.median(places, axis=1, keepdims=True)) ** 2).sum(axis=0)
    order = np.argsort(away, kind="stable")
    enough = max(_LEAST_COARSE_CELLS, int((np.cumsum(counts[order]) <= cells).sum()))
    return fine.isel({STACKED_DIM: np.flatnonzero(np.isin(numbers, own[order[:enough]]))})


def compare(
    fine: xr.Dataset,
    coarse: xr.Dataset,
    *,
    grid: CoarseGrid,
    plans: Mapping[str, Plan],
    adjustments: Sequence[Adjustment],
    ways: Mapping[str, Mapping[str, Mapping[str, Any]]],
    withheld: Period,
) -> xr.Dataset:
    """Adjust the averaged reference in both ways by the plans' calibration, and compare the withheld years.

    Computes. Years are resampled in blocks, as those of known futures.

    Parameters
    ----------
    fine
        The reference (time, loc): all cells of some coarse cells, next to each other.
    coarse
        Its means in these coarse cells and those around them, of the same days.
    adjustments
        How each variable is adjusted, on fine and on coarse cells.
    ways
        By the name of a way to downscale, the arguments of `blocks.downscale` for each variable, but for the grid.

    Returns
    -------
    xr.Dataset
        `error` (variable, way, measure): the way minus the truth; `DEFAULT` is the reference's cells adjusted. Its
        `noise` (variable, measure) is what 95 % of the errors between two realisations of the truth's climate stay
        below, and `truth` its value. `seam` (variable, way, pair): the correlation of two neighbours minus the truth's,
        with `lat` and `lon` between them; `across` tells whether an edge of the coarse grid parts them. In units of the
        plans; spreads are standard deviations of days, `highest` the mean over cells of each cell's highest value,
        `all_dry` the share of days without a wet cell.
    """
    fine, coarse = fine.transpose("time", STACKED_DIM).load(), coarse.transpose("time", STACKED_DIM)
    numbers = grid.numbers(coarse["lat"].values, coarse["lon"].values)
    order, at = np.argsort(numbers), (fine["lat"].values, fine["lon"].values)
    found = places_of(grid, numbers[order], *at)
    coarse = coarse.isel({STACKED_DIM: order[np.unique(np.append(found.corners, found.own))]}).load()
    places = places_of(grid, grid.numbers(coarse["lat"].values, coarse["lon"].values), *at)
    near = fine.map(
        lambda one: one.copy(
            data=sum(
                coarse[one.name].values[:, places.corners[:, corner]] * places.weights[:, corner].astype(one.dtype)
                for corner in range(places.corners.shape[1])
            )
        )
    )
    series: dict[str, dict[Any, xr.DataArray]] = {TRUTH: dict(fine), DEFAULT: {}, **{way: {} for way in ways}}
    for how in adjustments:
        first, last = plans[how.variables[0]].calibration
        known, means = (of.sel(time=slice(f"{first}", f"{last}")) for of in (fine, coarse))
        series[DEFAULT] |= dict(how.apply(known, near))
        adjusted = how.apply(means, coarse)
        for way, arguments in ways.items():
            for name in how.variables:
                given = {"ranks": adjusted.get(f"{name}_{QUANTILE}"), "grid": grid, **arguments[name]}
                series[way][name] = downscale(adjusted[name], means[name], known[name], **given)
    cells = _Cells.of(fine, places.numbers)
    each = []
    for name, plan in plans.items():
        later = {
            way: plan.shown(of[name]).sel(time=slice(*map(str, withheld))).transpose("time", STACKED_DIM)
            for way, of in series.items()
        }
        each.append(_compared({way: of.values for way, of in later.items()}, later[TRUTH], cells, plan.wet))
    found = join(each, xr.Variable("variable", np.array(list(plans), dtype=object)))
    return found.assign_coords(
        way=("way", np.array(list(series)[1:], dtype=object)),
        measure=("measure", np.array(MEASURES, dtype=object)),
        units=("variable", np.array([plan.units or fine[name].attrs["units"] for name, plan in plans.items()], object)),
        across=("pair", cells.across),
        **{name: ("pair", fine[name].values[cells.pairs].mean(axis=0)) for name in ("lat", "lon")},
    )


@dataclass(frozen=True, eq=False)
class _Cells:
    """What each fine cell weighs, the places of neighbours (2, pair), and which pairs lie across coarse cells."""

    weights: np.ndarray
    pairs: np.ndarray
    across: np.ndarray

    @classmethod
    def of(cls, fine: xr.Dataset, numbers: np.ndarray) -> _Cells:
        """Find neighbours along rows and columns, those of a rotated or projected grid too."""
        areas, steps = areas_of(fine), list[np.ndarray]()
        others = [
            name for name, one in fine.coords.items() if one.dims == (STACKED_DIM,) and name not in ("lat", "lon")
        ]
        for name in others if len(others) == 2 else ("lat", "lon"):
            values = fine[name].values.astype(float)
            apart = np.diff(np.unique(values.round(5)))
            steps.append(np.rint((values - values.min()) / apart.min(initial=np.inf)).astype(int))
        place = steps[0] * (steps[1].max() + 2) + steps[1]
        found = [np.intersect1d(place + step, place, return_indices=True)[1:] for step in (1, steps[1].max() + 2)]
        pairs = np.concatenate(found, axis=1)
        return cls(areas / areas.sum(), pairs, numbers[pairs[0]] != numbers[pairs[1]])


def _compared(values: Mapping[str, np.ndarray], truth: xr.DataArray, cells: _Cells, wet: float | None) -> xr.Dataset:
    """Return the errors of each way's values (time, cell), their noise, and where seams are."""
    years = truth["time"].dt.year.values
    count = np.unique(years).size
    drawn = Resampling.of(seeds.cell_generator(TRUTH, "years", 0), count, block_years(count), _REPLICATES)
    all_years = np.arange(count)[None]
    made = {name: _measures(of, years, all_years, cells, wet) for name, of in values.items()}
    (known, pairs), ways = made[TRUTH], [name for name in values if name != TRUTH]
    away = realisations_apart(drawn, _measures(values[TRUTH], years, drawn.years, cells, wet)[0])
    return xr.Dataset(
        {
            "error": (("way", "measure"), np.concatenate([made[way][0] - known for way in ways])),
            "noise": ("measure", np.quantile(np.abs(away), statistics.NOISE_QUANTILE, axis=0)),
            "truth": ("measure", known[0]),
            "seam": (("way", "pair"), np.concatenate([made[way][1] - pairs for way in ways])),
        }
    )


def _measures(
    values: np.ndarray, years: np.ndarray, drawn: np.ndarray, cells: _Cells, wet: float | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return `MEASURES` (resampling, measure) in drawn years (resampling, year), and correlations of all pairs."""
    values = values.astype(float)
    first = np.unique(years, return_index=True)[1]
    weights = Resampling(drawn, 1).weights

    def total(of: np.ndarray) -> np.ndarray:
        return np.asarray(weights @ np.add.reduceat(of, first, axis=0))

    def spread(of: np.ndarray) -> np.ndarray:
        return statistics.deviation(total(of), total(of**2), days[:, None])

    days = total(np.ones(len(values)))
    apart = values - values.mean(axis=0)
    one, other = cells.pairs
    sums, squares = total(apart), total(apart**2)
    both = total(apart[:, one] * apart[:, other])
    pairs = statistics.correlation(
        both, sums[:, one], sums[:, other], squares[:, one], squares[:, other], days[:, None]
    )
    highest = np.maximum.reduceat(values, first, axis=0)
    is_wet = np.full(values.shape, np.nan) if wet is None else (values >= wet).astype(float)
    found = {
        "mean": total(values @ cells.weights) / days,
        "area_spread": spread((values @ cells.weights)[:, None])[:, 0],
        "cell_spread": spread(apart).mean(axis=1),
        "highest": np.array([highest[own].max(axis=0).mean() for own in drawn]),
        "inside": pairs[:, ~cells.across].mean(axis=1),
        "across": pairs[:, cells.across].mean(axis=1),
        "wet_days": total(is_wet.mean(axis=1)) / days,
        "all_dry": total(1 - is_wet.max(axis=1)) / days,
    }
    return np.stack([found[name] for name in MEASURES], axis=1), pairs
