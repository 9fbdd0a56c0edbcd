"""Kernels of downscalers: the order of days and their factors (QPLAD), quantile maps of rotated cells (MBCnSD)."""

from __future__ import annotations

import numpy as np

from espo_luigi.methods.dqm.kernels.compiled import compiled, inlined
from espo_luigi.methods.dqm.kernels.quantiles import quantiles_of_sorted

_BINS = 2048


@compiled
def order_days(coarse, days, starts):
    """Return the order of days (coarse cell, day of year, rank) by their values, NaN left out, and their counts."""
    most = np.diff(starts).max()
    order = np.zeros((coarse.shape[0], starts.size - 1, most), dtype=np.int32)
    counts = np.zeros((coarse.shape[0], starts.size - 1), dtype=np.int64)
    for cell in range(coarse.shape[0]):
        ranks, place_of = np.empty(coarse.shape[1], dtype=np.int64), np.argsort(coarse[cell], kind="mergesort")
        valid = 0
        for rank in range(place_of.size):
            ranks[place_of[rank]] = rank
            valid += not np.isnan(coarse[cell, place_of[rank]])
        taken = np.zeros(coarse.shape[1], dtype=np.bool_)
        for day in range(starts.size - 1):
            own = days[starts[day] : starts[day + 1]]
            for place in own:
                taken[ranks[place]] = True
            count = 0
            for rank in range(valid):
                if taken[rank]:
                    order[cell, day, count] = place_of[rank]
                    count += 1
            counts[cell, day] = count
            for place in own:
                taken[ranks[place]] = False
    return order, counts


@compiled
def rank_days(values, dayofyear, year, half, years, longest):
    """Return the share of lower values, and half of the equal ones, among days around in years around."""
    size = values.shape[1]
    out = np.full(values.shape, np.nan)
    first, last = year[0], year[size - 1]
    centres = np.full((last - first + 1, longest + 1), -1, dtype=np.int64)
    for place in range(size):
        centres[year[place] - first, dayofyear[place]] = place
    for cell in range(values.shape[0]):
        own = values[cell]
        for place in range(size):
            value = own[place]
            if np.isnan(value):
                continue
            start = max(0, min(year[place] - first - years // 2, last - first + 1 - years))
            n_lower, n_equal, n_all = 0, 0, 0
            for number in range(start, min(start + years, last - first + 1)):
                centre = centres[number, dayofyear[place]]
                if centre < 0:
                    continue
                for other in range(max(0, centre - half), min(size, centre + half + 1)):
                    n_lower += own[other] < value
                    n_equal += own[other] == value
                    n_all += not np.isnan(own[other])
            out[cell, place] = (n_lower + 0.5 * n_equal) / n_all
    return out


@inlined
def factor_of(coarse, fine, day, ratio):
    """Return the factor of a day of the reference; of a coarse value of 0, no change."""
    if not ratio:
        return fine[day] - coarse[day]
    return fine[day] / coarse[day] if coarse[day] != 0 else 1.0


@compiled
def take_factors(adjusted, quantiles, coarse, fine, order, counts, own, dayofyear, ratio):
    """Apply to each day (fine cell, day) the factor at its quantile, linear between days and constant at the ends."""
    out = np.empty((own.size, adjusted.shape[1]))
    low, high = np.zeros(adjusted.shape[1], dtype=np.int32), np.zeros(adjusted.shape[1], dtype=np.int32)
    weight = np.zeros(adjusted.shape[1])
    last = -1
    for cell in range(own.size):
        place = own[cell]
        if place != last:
            for day in range(adjusted.shape[1]):
                group = min(dayofyear[day], counts.shape[1]) - 1
                count = counts[place, group]
                weight[day] = np.nan
                if count > 0 and not np.isnan(quantiles[place, day]):
                    position = min(max(quantiles[place, day] * count - 0.5, 0.0), count - 1.0)
                    rank = min(np.int64(position), max(count - 2, 0))
                    low[day] = order[place, group, rank]
                    high[day] = order[place, group, min(rank + 1, count - 1)]
                    weight[day] = position - rank
            last = place
        for day in range(adjusted.shape[1]):
            first = factor_of(coarse[place], fine[cell], low[day], ratio)
            second = factor_of(coarse[place], fine[cell], high[day], ratio)
            factor = first + weight[day] * (second - first)
            out[cell, day] = adjusted[place, day] * factor if ratio else adjusted[place, day] + factor
    return out


@inlined
def find_slopes(own, wanted, out):
    """Fill ``out`` with the slopes from each quantile to the next, 0 after the last."""
    for knot in range(own.size - 1):
        width = own[knot + 1] - own[knot]
        out[knot] = (wanted[knot + 1] - wanted[knot]) / width if width > 0 else 0.0
    out[own.size - 1] = 0.0


@compiled
def map_axes(values, ordered, target, levels, weights, keeps_sum):
    """Map values (axis, day) in place from their quantiles to those of a target, linearly.

    ``ordered`` and ``target`` are sorted along days. With ``keeps_sum``, the weighted sum of a day stays as it was.
    """
    n_axes, size = values.shape
    own, wanted, slopes = np.empty((3, levels.size))
    bins, before, change = np.empty(size, dtype=np.int32), np.empty(_BINS + 1, dtype=np.int32), np.zeros(size)
    last = np.float64(_BINS - 1)
    for axis in range(n_axes):
        row, weight = values[axis], weights[axis]
        quantiles_of_sorted(ordered[axis], levels, own)
        quantiles_of_sorted(target[axis], levels, wanted)
        find_slopes(own, wanted, slopes)
        # The knots of equal bins between the outermost quantiles but one; the first and the last have all beyond.
        low, high = own[min(1, levels.size - 1)], own[max(levels.size - 2, 0)]
        scale = _BINS / (high - low) if high > low else 0.0
        before[:] = 0
        for knot in range(levels.size):
            before[np.int32(min(max((own[knot] - low) * scale, 0.0), last)) + 1] += 1
        for number in range(1, before.size):
            before[number] += before[number - 1]
        for day in range(size):
            bins[day] = np.int32(min(max((row[day] - low) * scale, 0.0), last))
        for day in range(size):
            value, number = row[day], bins[day]
            first, after = max(before[number] - 1, 0), before[number + 1]
            while first + 1 < after and own[first + 1] <= value:
                first += 1
            made = slopes[first] * (value - own[first]) + wanted[first]
            change[day] += weight * (made - value)
            row[day] = made
    if keeps_sum:
        for axis in range(n_axes):
            row, weight = values[axis], weights[axis]
            for day in range(size):
                row[day] -= change[day] * weight
