"""Dependence between variables: rank correlations of pairs, and the energy distance between joint distributions.

All of it is of arrays in memory, (variable, cell, time).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import xarray as xr

from espo_luigi.science.diagnose.aspects import weights_of_years
from espo_luigi.science.diagnose.yearly import SEASONS, Days, correlation, correlation_sums, ranked

# The source that each variable adjusted by itself makes, to compare with variables that are adjusted together.
USUAL = "DQM"
# The energy distance of resampled years exceeds that of the noise in one case of twenty.
NOISE_QUANTILE = 0.95


def rank_correlation(values: np.ndarray, often: np.ndarray | None = None) -> np.ndarray:
    """Return Spearman's correlation of each pair of variables, in the order of `itertools.combinations`.

    Of `values` (variable, cell, time), in any units; the result is (pair, cell), NaN of a constant. Days on which
    either variable is NaN are left out. Of resamplings that have each day so `often` (resampling, time), the result is
    (pair, resampling, cell); days keep their ranks among all days, which is fast, and differs little.
    """
    days = np.ones(values.shape[-1], bool)
    weights = days * 1.0 if often is None else often
    pairs = itertools.combinations(np.moveaxis(values, -1, 1), 2)
    sums = (correlation_sums(*ranked(first, second, days)) for first, second in pairs)
    return np.stack([correlation(*(weights @ terms for terms in of_pair)) for of_pair in sums])


def energy_distance(reference: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the energy distance 2 E|X - Y| - E|X - X'| - E|Y - Y'| of two joint distributions, by cell.

    Both are (variable, cell, time), of the same units and any numbers of days, whose order does not matter; those with
    NaN are left out. Variables are standardised by the reference's mean and standard deviation. The result (cell), of
    no units, is 0 of equal samples, and NaN where the reference is constant or nothing is known.

    References
    ----------
    Székely and Rizzo 2004, Testing for equal distributions in high dimension, InterStat 5.
    """
    made = np.full(reference.shape[1], np.nan)
    for cell in range(len(made)):
        x, y = _standardised(reference[:, cell], other[:, cell])
        if len(x) and len(y):
            made[cell] = 2 * _distances(x, y).mean() - _distances(x, x).mean() - _distances(y, y).mean()
    return made


def energy_noise(
    reference: np.ndarray, years: np.ndarray, random: np.random.Generator, together: int = 1
) -> np.ndarray:
    """Return energy distances between pairs of samples of the reference's climate, (resampling, cell).

    All are resampled `years` (time) of the `reference` (variable, cell, time), so many in a block, as successive days
    depend on each other; `random` draws the years, the same for all cells.
    """
    row = np.unique(years, return_inverse=True)[1]
    of_year = np.eye(row.max() + 1)
    often = [weights_of_years(random, len(of_year), together) for _ in range(2)]
    made = np.full((len(often[0]), reference.shape[1]), np.nan)
    for cell in range(made.shape[1]):
        known = ~np.isnan(reference[:, cell]).any(axis=0)
        x, _ = _standardised(reference[:, cell], reference[:, cell])
        if not len(x):
            continue
        days = of_year[row[known]]
        between = days.T @ _distances(x, x) @ days
        first, second = (times / np.maximum(times @ days.sum(axis=0), 1)[:, None] for times in often)
        both, own, others = (
            np.einsum("dy,yz,dz->d", a, between, b, optimize=True)
            for a, b in ((first, second), (first, first), (second, second))
        )
        made[:, cell] = 2 * both - own - others
    return made


def _standardised(reference: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The days with values, (time, variable), by the reference's mean and standard deviation."""
    known, others = (values[:, ~np.isnan(values).any(axis=0)].T.astype(float) for values in (reference, other))
    if len(known) < 2 or not (spread := known.std(axis=0)).all():
        return known[:0], others[:0]
    return (known - known.mean(axis=0)) / spread, (others - known.mean(axis=0)) / spread


def _distances(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    from scipy.spatial.distance import cdist

    return cdist(first, second)


def seasons_of(
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


def energies_of(
    values: Mapping[str, np.ndarray], years: np.ndarray, random: np.random.Generator, together: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Return the energy distances of further sources from the first, (source, cell), and their noise.

    Every third day counts, as successive days have much in common. Arguments are as of `seasons_of` and `energy_noise`.
    """
    known, *others = (of[..., ::3] for of in values.values())
    return np.array([energy_distance(known, other) for other in others]), energy_noise(
        known, years[::3], random, together
    )


def energies(
    sources: Mapping[str, xr.Dataset], *, groups: Collection[Sequence[str]], random: np.random.Generator
) -> xr.Dataset:
    """Return how far the joint distribution of each group of variables is from the reference's, by season.

    Parameters
    ----------
    sources
        `reference`, then others, (time, cell), in memory, of the same years, any calendar, and all groups' variables.
    groups
        The variables of each.
    random
        Draws the years of the noise.

    Returns
    -------
    xr.Dataset
        `energy` (distance, other, cell) and `energy_noise` (distance, cell); the labels along `distance` have the
        variables and the season.
    """
    made, (_, *others) = {}, sources
    for group in groups:
        for season, values, years in seasons_of(sources, group):
            energy, noise = energies_of(values, years, random)
            limit = np.quantile(noise, NOISE_QUANTILE, axis=0)
            both = {"energy": (("other", "cell"), energy), "energy_noise": ("cell", limit)}
            made[f"{', '.join(group)}, {season}"] = xr.Dataset(both, {"other": others})
    return xr.concat(list(made.values()), xr.Variable("distance", list(made)), data_vars="all", join="exact")
