"""MBCnSD, the statistical downscaling of ISIMIP3b: Lange 2019, doi 10.5194/gmd-12-3055-2019, section 3.2.

The bilinearly interpolated simulation gets the multivariate distribution of the reference in the fine cells of each
coarse cell, month by month. Cells are the variables of an MBCn that keeps their weighted sum, the coarse value.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from pydantic import Field

from espo_luigi.downscaling.base import Downscaler, Limit, Setup
from espo_luigi.fields import Integer, OmitDefault, Section, Threshold
from espo_luigi.methods.base import Step
from espo_luigi.methods.dqm.windows import spans_of
from espo_luigi.science.seeds import cell_generator

# Of draws beyond a threshold: most lie next to the bound, so that they hardly change weighted sums.
_POWER = 10
_OF_A_DRAW = 1e-9


class MBCnSDArguments(Section):
    """Keyword arguments of MBCnSD."""

    iterations: Integer = Field(default=20, ge=1, description="random rotations")
    quantiles: Integer = Field(default=50, ge=2, description="steps between the quantiles that are mapped")
    years: Integer = Field(default=30, ge=1, description="years that have a distribution of their own")
    step: Integer = Field(default=10, ge=1, description="years from one window of years to the next")
    lower_threshold: Threshold | None = OmitDefault("values below stand for the lower bound; by default by the table")
    upper_threshold: Threshold | None = OmitDefault("values above stand for the upper bound; by default by the table")


class Learned(NamedTuple):
    """The reference's months (day), and of each coarse cell the fine cells' axes (cell, axis) and rotations."""

    fine: np.ndarray
    months: np.ndarray
    axes: dict[int, np.ndarray]
    rotations: dict[int, np.ndarray]


class MBCnSD(Downscaler):
    """The reference's distributions in fine cells, and their dependence; nearly keeps the weighted sum."""

    Arguments = MBCnSDArguments
    most_cells = 400

    def learn(self, coarse: np.ndarray, fine: np.ndarray, setup: Setup) -> Learned:
        """Draw the rotations, which depend on the number of fine cells alone, and look for the first axes."""
        from espo_luigi.methods.mbcn.method import rotations  # here, as a configuration needs none

        axes, turns, number_of = {}, dict[int, np.ndarray](), setup.arguments["iterations"]
        for number, cells in setup.groups().items():
            axes[number] = first_axes(setup.areas[cells])
            if cells.size not in turns:
                turns[cells.size] = rotations(setup.seed, cells.size, number_of, cells.size)
        return Learned(fine, np.asarray(setup.reference.index.month), axes, turns)

    def apply(self, adjusted: np.ndarray, learned: Learned, setup: Setup) -> np.ndarray:
        """Map the interpolated simulation to the reference, in each coarse cell, month and window of years."""
        places = setup.places
        out = np.full((places.own.size, adjusted.shape[1]), np.nan)
        months, years = np.asarray(setup.time.index.month), setup.time.year
        for number, cells in setup.groups().items():
            place = places.own[cells[0]]
            interpolated = setup.interpolated(adjusted, cells)
            valid = np.isfinite(adjusted[place]) & np.isfinite(interpolated).all(axis=0)
            known = np.isfinite(learned.fine[cells]).all(axis=0)
            for month in range(1, 13):
                of_fine = np.flatnonzero(known & (learned.months == month))
                days = np.flatnonzero(valid & (months == month))
                if not (days.size and of_fine.size):
                    continue
                draws = _Draws(setup, number, month)
                observed = draws.beyond(learned.fine[np.ix_(cells, of_fine)], "fine")
                coarse = draws.beyond(adjusted[place, days][None], "coarse")[0]
                simulated = draws.beyond(interpolated[:, days], "simulation")
                for own, kept in _windows(years[days], setup):
                    axes, turns = learned.axes[number], learned.rotations[cells.size]
                    sample = np.ascontiguousarray(simulated[:, own])
                    made = downscale(observed, coarse[own], sample, axes, turns, setup.arguments["quantiles"])
                    out[np.ix_(cells, days[own][kept])] = made[:, kept]
        return _without_draws(out, setup.lower, setup.upper)

    def steps(self, adjusted: np.ndarray, learned: Learned, setup: Setup, cell: int, day: int) -> list[Step]:
        """Return the interpolated and the downscaled value."""
        interpolated = float(setup.interpolated(adjusted[:, [day]], [cell])[0, 0])
        made = float(self.apply(adjusted, learned, setup)[cell, day])
        return [Step("interpolated", interpolated, "", "between coarse cells"), Step("downscaled", made, "")]


def _windows(years: np.ndarray, setup: Setup) -> Iterator[tuple[slice, slice]]:
    """Yield the days of each window of years, and which of them are kept."""
    given = {"window": setup.arguments["years"], "step": min(setup.arguments["step"], setup.arguments["years"])}
    enough = years[-1] - years[0] + 1 > given["window"]
    for span in spans_of(years, given if enough else None):
        yield slice(span.first, span.last), slice(span.kept_first - span.first, span.kept_last - span.first)


class _Draws(NamedTuple):
    """The random draws of a month of a coarse cell."""

    setup: Setup
    number: int
    month: int

    def beyond(self, values: np.ndarray, role: str) -> np.ndarray:
        """Draw values beyond the thresholds of each series (cell, day), in the order that the values have."""
        made = np.array(values, dtype=np.float64)
        for side, limit in (("lower", self.setup.lower), ("upper", self.setup.upper)):
            if limit is None:
                continue
            generator = cell_generator(self.setup.seed, f"downscaling {role} {side} {self.month}", self.number)
            for series, given, draws in zip(made, values, generator.random(values.shape), strict=True):
                beyond = np.flatnonzero(given <= limit.threshold if side == "lower" else given >= limit.threshold)
                new = limit.bound + draws[beyond] ** _POWER * (limit.threshold - limit.bound)
                # Equal values are in the order of their draws; so a part of these hardly counts otherwise.
                order = np.argsort(given[beyond] + _OF_A_DRAW * (new - limit.bound))
                series[beyond[order]] = np.sort(new)
        return made


def _without_draws(values: np.ndarray, lower: Limit | None, upper: Limit | None) -> np.ndarray:
    if lower is not None:
        values[values <= lower.threshold] = lower.bound
    if upper is not None:
        values[values >= upper.threshold] = upper.bound
    return values


def first_axes(areas: np.ndarray) -> np.ndarray:
    """Return axes (cell, axis) of unit length, at right angles, of which the first is along the weights."""
    frame = np.eye(areas.size)
    frame[:, 0] = areas / np.sqrt((areas**2).sum())
    axes = np.linalg.qr(frame)[0]
    return np.asarray(axes * np.sign(axes[:, 0] @ frame[:, 0]))


def downscale(
    observed: np.ndarray,
    coarse: np.ndarray,
    simulated: np.ndarray,
    axes: np.ndarray,
    rotations: np.ndarray,
    quantiles: int = 50,
) -> np.ndarray:
    """Return a sample (cell, day) with the distribution of `observed` (cell, day) and the weighted mean `coarse`.

    `axes` are what `first_axes` returns of the cells' weights.
    """
    from espo_luigi.downscaling.kernels import map_axes  # here, as a configuration needs none

    if len(simulated) == 1:
        return coarse[None].copy()
    levels = np.linspace(0, 1, quantiles + 1)
    turned, sample = axes.T @ observed, axes.T @ simulated
    sample[0] = coarse * axes[:, 0].sum()
    map_axes(turned[:1], np.sort(turned[:1]), np.sort(sample[:1]), levels, np.zeros(1), False)
    return rotate_and_map(turned, sample, axes[:, 0] @ axes, axes, rotations, levels)


def rotate_and_map(
    observed: np.ndarray,
    simulated: np.ndarray,
    weights: np.ndarray,
    axes: np.ndarray,
    rotations: np.ndarray,
    levels: np.ndarray,
) -> np.ndarray:
    """Return a sample (axis, day) rotated, mapped and turned back; each rotation keeps the weighted sum.

    `axes` are those that the samples are in, and `weights` those of the sum along these axes.
    """
    from espo_luigi.downscaling.kernels import map_axes

    for rotation in rotations:
        turn = np.ascontiguousarray(rotation.T)
        axes, weights = axes @ rotation, turn @ weights
        # numpy sorts with the processor's vectors: 3 microseconds for 1116 days.
        observed, simulated = turn @ observed, turn @ simulated
        map_axes(simulated, np.sort(simulated), np.sort(observed), levels, weights, True)
    observed, simulated = axes @ observed, axes @ simulated
    map_axes(simulated, np.sort(simulated), np.sort(observed), levels, weights, False)
    return simulated
