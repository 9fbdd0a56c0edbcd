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
def count_lower(values, others, halves, known):
    """Count 2 for a lower value in the same place, 1 for an equal one; and those that are known.

    Loops over whole views from 0 on are what the compiler makes vectors of.
    """
    for place in range(values.size):
        value, other = values[place], others[place]
        halves[place] += 2 * (other < value) + (other == value)
        known[place] += other == other


@compiled
def find_years(year):
    """Return where each year from the first to the last begins, -1 if it has no day, and where it ends."""
    starts, ends = np.full(year[-1] - year[0] + 1, -1, dtype=np.int64), np.zeros(year[-1] - year[0] + 1, dtype=np.int64)
    for place in range(year.size - 1, -1, -1):
        starts[year[place] - year[0]] = place
        ends[year[place] - year[0]] = max(ends[year[place] - year[0]], place + 1)
    return starts, ends


@compiled
def rank_days(values, dayofyear, year, half, years, longest):
    """Return the share of lower values, and half of the equal ones, among days around in years around."""
    size, out = values.shape[1], np.full(values.shape, np.nan)
    starts, ends = find_years(year)
    count = starts.size
    halves, known = np.empty(longest + 1, dtype=np.int32), np.empty(longest + 1, dtype=np.int32)
    for cell in range(values.shape[0]):
        own = values[cell]
        for number in range(count):
            begin, end = starts[number], ends[number]
            if begin < 0:
                continue
            halves[:], known[:] = 0, 0
            first = max(0, min(number - years // 2, count - years))
            for other in range(first, min(first + years, count)):
                if starts[other] < 0:
                    continue
                # The same day of the other year is so many places on. Days in a row are compared in one go.
                apart = starts[other] - dayofyear[starts[other]] - begin + dayofyear[begin]
                for offset in range(apart - half, apart + half + 1):
                    low = max(begin, starts[other] - apart, -offset)
                    high = min(end, ends[other] - apart, size - offset)
                    if low < high:
                        count_lower(own[low:high], own[low + offset :], halves[low - begin :], known[low - begin :])
            for place in range(begin, end):
                if not np.isnan(own[place]):
                    out[cell, place] = 0.5 * halves[place - begin] / known[place - begin]
    return out


@compiled
def take_factors(adjusted, quantiles, coarse, fine, order, counts, own, dayofyear, ratio):
    """Apply to each day (fine cell, day) the factor at its quantile, linear between days and constant at the ends."""
    out = np.empty((own.size, adjusted.shape[1]))
    low, high = np.zeros(adjusted.shape[1], dtype=np.int32), np.zeros(adjusted.shape[1], dtype=np.int32)
    weight, factors = np.zeros(adjusted.shape[1]), np.empty(fine.shape[1])
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
        for day in range(fine.shape[1]):
            if ratio:  # of a coarse value of 0, no change
                factors[day] = fine[cell, day] / coarse[place, day] if coarse[place, day] != 0 else 1.0
            else:
                factors[day] = fine[cell, day] - coarse[place, day]
        for day in range(adjusted.shape[1]):
            factor = factors[low[day]] + weight[day] * (factors[high[day]] - factors[low[day]])
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
