"""The kernel of the training: means, quantiles and factors of each cell, from samples that may be adapted."""

from __future__ import annotations

import numpy as np

from espo_luigi.methods.dqm.kernels.adapting import Shares, adapted_quantiles
from espo_luigi.methods.dqm.kernels.compiled import compiled
from espo_luigi.methods.dqm.kernels.quantiles import correct, series_means, window_quantiles
from espo_luigi.methods.dqm.kernels.sorting import sort_cell


@compiled
def train_cells(
    reference,
    historical,
    keys,
    plan,
    pool_plan,
    quantiles,
    multiplicative,
    about_mean,
    small,
    adapting,
    factors,
    historical_quantiles,
    scaling,
    raw_quantiles,
):
    """Train each cell: fill the adjustment factors, the quantiles of the historical anomalies and the scaling.

    Unless ``about_mean``, quantiles are those of the values, and there is no scaling. ``historical`` is the long series
    of a pool's members. Where ``raw_quantiles`` has cells, too, it is filled with the quantiles of the historical
    values themselves. With ``adapting``, an `Adapting` or None, the samples are adapted to the reference's dry days;
    multiplicatively only. Numba compiles a version for each. ``small`` is that of `quantiles.correct`.
    """
    n_groups = scaling.shape[1]
    reference_quantiles = np.empty((n_groups, quantiles.size), dtype=factors.dtype)
    means = np.empty((2, n_groups), dtype=factors.dtype)
    zeros = np.zeros(n_groups, dtype=factors.dtype)
    divides = multiplicative and about_mean
    reference_ranks = np.empty(reference.shape[1], dtype=np.int32)
    reference_values = np.empty(reference.shape[1], dtype=reference.dtype)
    ranks = np.empty(historical.shape[1], dtype=np.int32)
    values = np.empty(historical.shape[1], dtype=historical.dtype)
    for cell in range(scaling.shape[0]):
        means[:] = 0
        if about_mean:
            series_means(reference[cell], plan, means[0])
            series_means(historical[cell], pool_plan, means[1])
        known = reference_values[: sort_cell(reference[cell], keys, reference_ranks, reference_values)]
        window_quantiles(reference_ranks, known, plan, quantiles, divides, means[0], reference_quantiles)
        pooled = values[: sort_cell(historical[cell], keys, ranks, values)]
        if raw_quantiles.shape[0] > 0:
            window_quantiles(ranks, pooled, pool_plan, quantiles, False, zeros, raw_quantiles[cell])
        if adapting is None:
            window_quantiles(ranks, pooled, pool_plan, quantiles, divides, means[1], historical_quantiles[cell])
        else:
            threshold, seeds, shares = adapting
            adapted_quantiles(
                (reference_ranks, known),
                (ranks, pooled),
                plan,
                pool_plan,
                quantiles,
                threshold,
                seeds[cell],
                about_mean,
                means[1],
                Shares(shares.dry_reference[cell], shares.dry_historical[cell], shares.pth[cell]),
                historical_quantiles[cell],
            )
        own = factors[cell], scaling[cell]
        correct(reference_quantiles, historical_quantiles[cell], means, multiplicative, about_mean, small, *own)
