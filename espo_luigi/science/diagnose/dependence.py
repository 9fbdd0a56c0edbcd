"""Dependence between variables: rank correlations of pairs, and the energy distance between joint distributions.

All of it is of arrays in memory, (variable, cell, time).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import xarray as xr

from espo_luigi.science.diagnose.aspects import weights_of_years
from espo_luigi.science.diagnose.yearly import SEASONS, Days, correlation, correlation_sums, ranked

# The source that each variable adjusted by itself makes, to compare with variables that are adjusted together.
USUAL = "DQM"
# The energy distance of resampled years exceeds that of the noise in one case of twenty.
NOISE_QUANTILE = 0.95
DAYS_APART = 3


def rank_correlation(values: np.ndarray) -> np.ndarray:
    """Return Spearman's correlation of each pair of variables, in the order of `itertools.combinations`.

    Of `values` (variable, cell, time), in any units; the result is (pair, cell), NaN of a constant. Days on which
    either variable is NaN are left out.
    """
    days = np.ones(values.shape[-1], bool)
    pairs = itertools.combinations(np.moveaxis(values, -1, 1), 2)
    sums = (correlation_sums(*ranked(first, second, days)) for first, second in pairs)
    return np.stack([correlation(*(terms.sum(axis=0) for terms in of_pair)) for of_pair in sums])


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


def energy_noise(reference: np.ndarray, years: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return the energy distance that two samples of the reference's climate have in one case of twenty, by cell.

    Both are resampled `years` (time) of the `reference` (variable, cell, time), as successive days depend on each
    other; `random` draws the years, the same for all cells.
    """
    row = np.unique(years, return_inverse=True)[1]
    of_year = np.eye(row.max() + 1)
    often = [weights_of_years(random, len(of_year), 1) for _ in range(2)]
    made = np.full(reference.shape[1], np.nan)
    for cell in range(len(made)):
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
        made[cell] = np.quantile(2 * both - own - others, NOISE_QUANTILE)
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


def energies(
    sources: Mapping[str, xr.Dataset], *, groups: Collection[Sequence[str]], random: np.random.Generator
) -> xr.Dataset:
    """Return how far the joint distribution of each group of variables is from the reference's, by season.

    Every third day counts, as successive days have much in common.

    Parameters
    ----------
    sources
        `reference` and others, (time, cell), in memory, of the same years and any calendar, with all groups' variables.
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
    days, made = {name: Days.of(ds) for name, ds in sources.items()}, {}
    others = [name for name in sources if name != "reference"]
    for group, (place, season) in itertools.product(groups, enumerate(SEASONS)):
        chosen = {name: np.flatnonzero(of.season == place)[::DAYS_APART] for name, of in days.items()}
        values = {
            name: np.stack([ds[one].transpose("cell", "time").values[:, chosen[name]] for one in group])
            for name, ds in sources.items()
        }
        known, years = values["reference"], days["reference"].year[chosen["reference"]]
        energy = np.stack([energy_distance(known, values[name]) for name in others])
        noise = energy_noise(known, years, random)
        both = {"energy": (("other", "cell"), energy), "energy_noise": ("cell", noise)}
        made[f"{', '.join(group)}, {season}"] = xr.Dataset(both, {"other": others})
    return xr.concat(list(made.values()), xr.Variable("distance", list(made)), data_vars="all", join="exact")
