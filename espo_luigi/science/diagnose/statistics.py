"""Statistics of daily series, and the noise of the years at hand, by resampling them.

Summaries, aspects of a climate, and known futures build on this. All of it is of data in memory: (time, cell), or
(variable, cell, time) of several variables.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from espo_luigi.errors import DataError

SEASONS = ("DJF", "MAM", "JJA", "SON")
RESAMPLINGS = 1000
# Noise is what 95 % of the errors between two realisations of one climate stay below.
NOISE_QUANTILE = 0.95

Period = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Days:
    """The days of a time axis, in order of time."""

    year: np.ndarray
    month: np.ndarray

    @classmethod
    def of(cls, data: xr.Dataset | xr.DataArray) -> Days:
        """Return the days of a dataset or a variable."""
        index: Any = data.indexes["time"]
        return cls(np.asarray(index.year), np.asarray(index.month))

    @property
    def season(self) -> np.ndarray:
        """The place of each day's season in `SEASONS`."""
        return self.month % 12 // 3

    @property
    def years(self) -> np.ndarray:
        """The years that have days."""
        return np.unique(self.year)

    def between(self, period: Period) -> np.ndarray:
        """Return whether each day is in a period."""
        return (self.year >= period[0]) & (self.year <= period[1])

    def require(self, period: Period, name: str) -> None:
        """Raise `DataError` if a year of the period has no day; `name` says of what the days are."""
        there, expected = len(np.unique(self.year[self.between(period)])), period[1] - period[0] + 1
        if there < expected:
            has = f"its years are {self.year.min()} to {self.year.max()}" if self.year.size else "it has no days"
            raise DataError(
                f"{name} has {there} of the {expected} years {period[0]}-{period[1]}; {has}. Choose other periods, or "
                "extract more years."
            )

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Return the sums of each calendar year along the first dimension; NaN count as 0."""
        return _sums_of_years(values, self.year)

    def means(self, values: np.ndarray) -> np.ndarray:
        """Return the means of each calendar year, without NaN; NaN for a year that has nothing else."""
        return ratio(self.sums(values), self.sums(~np.isnan(values) * 1.0))

    def by_season(self, period: Period) -> list[list[np.ndarray]]:
        """Return the places of each season's days in a period, year by year; empty where a year has none."""
        inside = np.flatnonzero(self.between(period))
        of_year = [inside[self.year[inside] == year] for year in range(period[0], period[1] + 1)]
        return [[days[self.season[days] == season] for days in of_year] for season in range(len(SEASONS))]


def _sums_of_years(values: np.ndarray, year: np.ndarray) -> np.ndarray:
    first = np.unique(year, return_index=True)[1]
    return np.add.reduceat(np.where(np.isnan(values), 0.0, values), first, axis=0)


def ratio(total: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Return total / count, NaN for nothing."""
    return np.divide(total, count, out=np.full(np.shape(total), np.nan), where=count > 0)


def quantiles(values: np.ndarray, levels: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return linear (type 7) quantiles along the last axis, (…, level), in float64; NaN are left out.

    The values are sorted once: `np.quantile` takes six times as long for three levels.
    """
    ordered = np.sort(values, axis=-1)  # NaN last
    place = np.maximum((~np.isnan(ordered)).sum(axis=-1, keepdims=True) - 1, 0) * np.asarray(levels)
    below, above = (
        np.take_along_axis(ordered, of(place).astype(np.intp), axis=-1).astype(np.float64) for of in (np.floor, np.ceil)
    )
    return below + (above - below) * (place % 1)


def deviation(total: np.ndarray, squares: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Return the standard deviation (ddof 1) from the sums of values and of their squares."""
    with np.errstate(invalid="ignore", divide="ignore"):
        variance = np.where(count > 1, (squares - total**2 / count) / (count - 1), np.nan)
    return np.sqrt(np.maximum(variance, 0))


def correlation(*sums: np.ndarray) -> np.ndarray:
    """Return Pearson's correlation from the sums of x y, x, y, x², y², and the number of days; NaN of a constant."""
    both, x, y, x_squares, y_squares, count = sums
    with np.errstate(invalid="ignore", divide="ignore"):
        spread = (x_squares - x**2 / count) * (y_squares - y**2 / count)
        return np.where(spread > 0, (both - x * y / count) / np.sqrt(np.maximum(spread, 0)), np.nan)


def rank_terms(x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
    """Return what `correlation` takes the sums of, day by day, for Spearman's correlation of two series by cell.

    Days on which either is NaN are 0. Ranks are about their middle: sums are exact, in any order.
    """
    from scipy.stats import rankdata

    known = ~np.isnan(x) & ~np.isnan(y)
    middle = (known.sum(axis=0) + 1) / 2
    ranks = (rankdata(np.where(known, values, np.nan), axis=0, nan_policy="omit") - middle for values in (x, y))
    x, y = (np.where(known, of, 0.0) for of in ranks)
    return [x * y, x, y, x * x, y * y, known * 1.0]


def rank_correlation(
    values: np.ndarray, years: np.ndarray | None = None, weights: np.ndarray | None = None
) -> np.ndarray:
    """Return Spearman's correlation of each pair of variables, in the order of `itertools.combinations`.

    Of `values` (variable, cell, time), in any units; the result is (pair, cell), NaN of a constant. With the year of
    each day and the `weights` of years (resampling, year), it is (pair, resampling, cell); days keep their ranks among
    all days, which is fast, and differs little.
    """
    made = []
    for pair in itertools.combinations(np.moveaxis(values, -1, 1), 2):
        sums = (of.sum(axis=0) if years is None else _sums_of_years(of, years) for of in rank_terms(*pair))
        made.append(correlation(*(sums if weights is None else (weights @ of for of in sums))))
    return np.stack(made)


def wet_and_dry(values: np.ndarray, least: float) -> tuple[np.ndarray, np.ndarray]:
    """Return which days are wet (`least` or more), and which are dry; a day without a value is neither."""
    there = ~np.isnan(values)
    return (values >= least) & there, (values < least) & there


def wet_after(before: np.ndarray, wet: np.ndarray, dry: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return which days with a value follow a day of `before`, and which of these are wet."""
    known = np.zeros_like(wet)
    known[1:] = before[:-1] & (wet | dry)[1:]
    return known, known & wet


def runs(inside: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the cell, the first day and the length of each run of true values along time."""
    steps = np.diff(np.pad(inside.astype(np.int8), ((1, 1), (0, 0))), axis=0).T
    cell, first = np.nonzero(steps == 1)
    return cell, first, np.nonzero(steps == -1)[1] - first


def values_by_season(
    sources: Mapping[str, xr.Dataset], group: Sequence[str]
) -> Iterator[tuple[str, dict[str, np.ndarray], np.ndarray]]:
    """Yield of each season its name, a group's values (variable, cell, time) by source, and the first one's years.

    Sources are in memory, of any calendar, and their years may differ.
    """
    days = {name: Days.of(ds) for name, ds in sources.items()}
    series = {name: np.stack([ds[of].transpose(..., "time").values for of in group]) for name, ds in sources.items()}
    first = next(iter(days.values()))
    for place, season in enumerate(SEASONS):
        values = {name: of[..., days[name].season == place] for name, of in series.items()}
        yield season, values, first.year[first.season == place]


@dataclass(frozen=True, eq=False)
class Resampling:
    """Years drawn with replacement, in blocks of `together` successive years: their places, (resampling, year)."""

    years: np.ndarray
    together: int

    @classmethod
    def of(
        cls, random: np.random.Generator, years: int, together: int = 1, resamplings: int = RESAMPLINGS
    ) -> Resampling:
        """Draw as many years as there are; the first year comes after the last."""
        first = random.integers(years, size=(resamplings, -(-years // together), 1))
        return cls(((first + np.arange(together)) % years).reshape(resamplings, -1)[:, :years], together)

    @property
    def weights(self) -> np.ndarray:
        """How often each resampling has each year, (resampling, year)."""
        weights = np.zeros(self.years.shape)
        np.add.at(weights, (np.arange(len(weights))[:, None], self.years), 1.0)
        return weights

    @property
    def widening(self) -> float:
        """What makes deviations of n resampled blocks those of another realisation's value, tested at 5 %.

        A sample's own spread is too small, by sqrt(1 - 1/n), and Student's t allows for a spread that is known from so
        few. NaN of a single block.
        """
        from scipy.stats import norm, t

        blocks = self.years.shape[1] / self.together
        if blocks <= 1:
            return np.nan
        return float(np.sqrt(blocks / (blocks - 1)) * t.ppf(0.975, blocks - 1) / norm.ppf(0.975))

    def deviations(self, resampled: np.ndarray) -> np.ndarray:
        """Return widened deviations from the resamplings' mean, (resampling, …); 0 of a resampling without a value.

        The mean of resampled standard deviations or quotients is not that of all years: it is biased.
        """
        known = np.isfinite(resampled)
        count = known.sum(axis=0)
        mean = ratio(np.where(known, resampled, 0.0).sum(axis=0), count)
        return self.widening * np.where(known | (count == 0), resampled - mean, 0.0)


def energy_distances(
    reference: np.ndarray,
    others: Sequence[np.ndarray],
    years: np.ndarray,
    random: np.random.Generator,
    together: int = 1,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the energy distances 2 E|X - Y| - E|X - X'| - E|Y - Y'| of joint distributions from the reference's.

    All are (variable, cell, time), of the same units and any numbers of days, whose order does not matter; those with
    NaN are left out. Variables are standardised by the reference's mean and standard deviation. The distances (other,
    cell), of no units, are 0 of equal samples, and NaN where the reference is constant or nothing is known. Also
    returns their noise (resampling, cell): distances between two samples of the reference's climate, resampled from its
    `years` (time), so many in a block, as successive days depend on each other; the same years for all cells.

    References
    ----------
    Székely and Rizzo 2004, Testing for equal distributions in high dimension, InterStat 5.
    """
    from scipy.spatial.distance import cdist

    row = np.unique(years, return_inverse=True)[1]
    of_year = np.eye(row.max() + 1)
    drawn = [Resampling.of(random, len(of_year), together) for _ in range(2)]
    distances, noise = (np.full((size, reference.shape[1]), np.nan) for size in (len(others), RESAMPLINGS))
    for cell in range(reference.shape[1]):
        known = ~np.isnan(reference[:, cell]).any(axis=0)
        x = reference[:, cell][:, known].T.astype(float)
        if len(x) < 2 or not (spread := x.std(axis=0)).all():
            continue
        mean = x.mean(axis=0)
        x = (x - mean) / spread
        own = cdist(x, x)
        for place, other in enumerate(of[:, cell] for of in others):
            y = (other[:, ~np.isnan(other).any(axis=0)].T.astype(float) - mean) / spread
            if len(y):
                distances[place, cell] = 2 * cdist(x, y).mean() - own.mean() - cdist(y, y).mean()
        days = of_year[row[known]]
        between = days.T @ own @ days
        first, second = (of.weights / np.maximum(of.weights @ days.sum(axis=0), 1)[:, None] for of in drawn)
        both, one, another = (
            np.einsum("dy,yz,dz->d", a, between, b, optimize=True)
            for a, b in ((first, second), (first, first), (second, second))
        )
        noise[:, cell] = 2 * both - one - another
    return distances, noise
