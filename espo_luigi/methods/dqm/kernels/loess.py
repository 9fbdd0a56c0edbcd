"""Kernels of the LOESS of degree 0 with tricube weights, with xsdba's neighbours and half-widths."""

from __future__ import annotations

import numpy as np

from espo_luigi.methods.dqm.kernels.compiled import compiled, inlined, weigh_rows


@inlined
def tricube(distance, half_width):
    """Weigh a point at a distance, as xsdba does."""
    relative = distance / half_width
    return 0.0 if relative >= 1 else (1 - relative**3) ** 3


@inlined
def equal_half_width(index, n_points, span, spacing):
    """Return the distance at which weights become 0, for equally spaced points, as xsdba's fast branch has it."""
    half = (span - 1) // 2
    if index < half:
        return (span - index) * spacing
    if index >= n_points - half:
        return (index - (n_points - span) + 1) * spacing
    return (half + 1) * spacing


@inlined
def subset(index, n_points, reach, size):
    """Return the first and the last point (excluded) that may weigh on a point."""
    if index < reach:
        return 0, size
    if index >= n_points - reach - 1:
        return n_points - size, n_points
    return index - reach, index + reach + 1


@inlined
def normalise(weights):
    """Divide weights by their sum."""
    weights /= weights.sum()


@inlined
def equal_weights(x, fraction, spacing, weights, firsts):
    """Weights of xsdba's LOESS for equally spaced points; away from the ends, those of the point before, shifted."""
    n_points = x.size
    span = int(2 * (fraction * n_points // 2) + 1)
    size = min(span + 4, n_points)
    reach = (span - 1) // 2 + 2
    for index in range(n_points):
        first, last = subset(index, n_points, reach, size)
        firsts[index] = first
        if index <= reach or index >= n_points - reach:
            half_width = equal_half_width(index, n_points, span, spacing)
            for place in range(first, last):
                weights[index, place - first] = tricube(abs(x[place] - x[index]), half_width)
            normalise(weights[index])
        else:
            weights[index] = weights[index - 1]


@inlined
def unequal_weights(x, fraction, weights, firsts):
    """Weights of xsdba's LOESS for any points: they become 0 at the distance of the r-th nearest."""
    n_points = x.size
    span = int(np.round(fraction * n_points))
    reach = min(span + 2, n_points)
    size = min(2 * reach, n_points)
    for index in range(n_points):
        first, last = subset(index, n_points, reach, size)
        firsts[index] = first
        distances = np.abs(x[first:last] - x[index])
        half_width = np.sort(distances)[span]
        for place in range(last - first):
            weights[index, place] = tricube(distances[place], half_width)
        normalise(weights[index])


@inlined
def loess_weights(x, fraction, spacing, weights, firsts):
    """Fill ``weights`` (point, neighbour) and ``firsts``, each point's first neighbour, for a LOESS of degree 0.

    ``spacing`` is that of the points, or 0 if unequal. Weights sum to 1; where the half-width is 0 they are NaN, as in
    xsdba (few points left by missing years).
    """
    weights[:] = 0
    if spacing > 0:
        equal_weights(x, fraction, spacing, weights, firsts)
    else:
        unequal_weights(x, fraction, weights, firsts)


@compiled
def weigh_classes(points, n_points, fraction, spacings, weights, firsts):
    """Compute the weights of each class of years (see ``AdjustmentPlan``)."""
    for index in range(n_points.size):
        n = n_points[index]
        loess_weights(points[index, :n], fraction, spacings[index], weights[index, :n], firsts[index, :n])


@inlined
def smooth_block(means, weights, firsts, trends):
    """Weigh the means (year, day) of a block into trends; the places after the last year are zeros."""
    for year in range(firsts.size):
        weigh_rows(means, np.int64(firsts[year]), weights, year, trends)


@inlined
def smooth_incomplete(x, means, fraction, spacing, trends):
    """LOESS of one day of year some of whose means are NaN, which are left out and stay NaN."""
    known = np.flatnonzero(~np.isnan(means))
    trends[:] = np.nan
    if known.size == 0:
        return
    points, values = x[known], means[known]
    weights = np.empty((known.size, known.size))
    firsts = np.empty(known.size, dtype=np.int32)
    loess_weights(points, fraction, spacing, weights, firsts)
    for index in range(known.size):
        total = 0.0
        for place in range(known.size - firsts[index]):
            total += weights[index, place] * values[firsts[index] + place]
        trends[known[index]] = total
