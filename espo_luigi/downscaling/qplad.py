"""Quantile-preserving, localized-analog downscaling (QPLAD): Gergel et al. 2024, doi 10.5194/gmd-17-191-2024.

Each day takes the pattern of the day of the reference, around the same day of the year, that has the same quantile
among the days of its coarse cell. What is kept of the training is the order of the reference's days, by coarse cell.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from pydantic import Field

from espo_luigi.downscaling.base import Downscaler, Setup, WindowArguments
from espo_luigi.fields import Integer, OmitDefault, PositiveThreshold
from espo_luigi.methods.base import Step
from espo_luigi.science.seeds import cell_generator


class QPLADArguments(WindowArguments):
    """Keyword arguments of QPLAD."""

    years: Integer = Field(
        default=21, ge=1, description="years around each year in which a day is ranked, if the method keeps no ranks"
    )
    wet_day: PositiveThreshold | None = OmitDefault(
        "days with less are dry; by default as the table of variables has it (pr: 1 mm d-1)"
    )


class Learned(NamedTuple):
    """The reference with its dry days made wet, and the order of its days.

    `order` (coarse cell, day of year, rank) are places along time, ascending by the coarse value; `counts` (coarse
    cell, day of year) says how many there are.
    """

    coarse: np.ndarray
    fine: np.ndarray
    order: np.ndarray
    counts: np.ndarray


class QPLAD(Downscaler):
    """Patterns of the reference's days, by the day's quantile.

    The mean over a coarse cell is kept, apart from the amounts of days under the threshold of wet days.
    """

    Arguments = QPLADArguments
    interpolates = False

    def learn(self, coarse: np.ndarray, fine: np.ndarray, setup: Setup) -> Learned:
        """Order the reference's days by their coarse value."""
        from espo_luigi.downscaling.kernels import order_days  # here, as a configuration needs none

        coarse, fine = _wet(coarse, setup, "coarse"), _wet(fine, setup, "fine")
        days, starts = days_around(setup.reference.dayofyear, setup.arguments["window"])
        order, counts = order_days(coarse, days, starts)
        return Learned(coarse, fine, order, counts)

    def quantiles(self, adjusted: np.ndarray, setup: Setup) -> np.ndarray:
        """Return those of the adjustment, or the rank of each day among those around it, in years around its own."""
        from espo_luigi.downscaling.kernels import rank_days

        if setup.quantiles is not None:
            return setup.quantiles
        adjusted = _wet(adjusted, setup, "simulation")
        dayofyear, year = setup.time.dayofyear, setup.time.year
        window, years = setup.arguments["window"], setup.arguments["years"]
        return rank_days(adjusted, dayofyear, year, window // 2, years, setup.time.days_in_longest_year)

    def apply(self, adjusted: np.ndarray, learned: Learned, setup: Setup) -> np.ndarray:
        """Give each day the factors at its quantile."""
        from espo_luigi.downscaling.kernels import take_factors

        own, days, ratio = setup.places.own, setup.time.dayofyear, setup.kind == "*"
        quantiles, wet = self.quantiles(adjusted, setup), _wet(adjusted, setup, "simulation")
        made = take_factors(wet, quantiles, *learned, own, days, ratio)
        return made if setup.wet is None else np.where(made < setup.wet, 0.0, made)

    def beyond(self, learned: Learned, setup: Setup) -> np.ndarray:
        """Return days that get the factor of the first or the last day of the reference."""
        counts = learned.counts[:, np.minimum(setup.time.dayofyear, learned.counts.shape[1]) - 1]
        assert setup.quantiles is not None
        places = setup.quantiles * counts - 0.5
        return (places < 0) | (places > counts - 1)

    def steps(self, adjusted: np.ndarray, learned: Learned, setup: Setup, cell: int, day: int) -> list[Step]:
        """Return the day's quantile, and the factor there."""
        wet = _wet(adjusted, setup, "simulation")
        own = setup.places.own[cell]
        quantile = self.quantiles(adjusted, setup)[own, day]
        made, before = self.apply(adjusted, learned, setup)[cell, day], wet[own, day]
        factor = made / before if setup.kind == "*" else made - before
        return [
            Step("quantile", float(quantile), "1", "among the days around it, in the years around its own"),
            Step("factor", float(factor), "1" if setup.kind == "*" else "", "of the reference's day at this quantile"),
            Step("downscaled", float(made), ""),
        ]


def _wet(values: np.ndarray, setup: Setup, role: str) -> np.ndarray:
    """Give days with less than a wet day's amount an amount between half of it and all of it (as GDPCIR)."""
    if setup.wet is None:
        return values
    made = values.copy()
    is_fine = role == "fine"
    groups = setup.groups() if is_fine else {number: [at] for at, number in enumerate(setup.numbers.tolist())}
    for number, cells in groups.items():
        draws = cell_generator(setup.seed, f"downscaling {role}", number).random((len(cells), values.shape[1]))
        made[cells] = np.where(values[cells] < setup.wet, setup.wet * (0.5 + 0.5 * draws), values[cells])
    return made


def days_around(dayofyear: np.ndarray, window: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of the days around each day of the year, from 1, one after the other, and where each begins.

    The days around a day are those next to it in time: the series' first and last days have fewer.
    """
    offsets, size = np.arange(window) - window // 2, dayofyear.size
    by_day = np.split(np.argsort(dayofyear, kind="stable"), np.cumsum(np.bincount(dayofyear))[:-1])[1:]
    around = [(places[:, None] + offsets).ravel() for places in by_day]
    inside = [one[(one >= 0) & (one < size)] for one in around]
    return np.concatenate(inside), np.cumsum([0, *map(len, inside)])
