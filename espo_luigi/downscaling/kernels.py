"""Kernels of downscalers: the order of days and their factors (QPLAD), quantile maps of rotated cells (MBCnSD)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from espo_luigi.methods.dqm.kernels.compiled import compiled, inlined
from espo_luigi.methods.mbcn.kernels import rotate

_DAYS = 256  # that `rotate` has room for


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


class Room(NamedTuple):
    """Room for a sample's values by bins, the quantiles, and what each bin has."""

    values: np.ndarray
    bins: np.ndarray
    starts: np.ndarray
    sorted: np.ndarray
    before: np.ndarray


@inlined
def make_room(size, n_quantiles):
    """Return room for so many values and quantiles."""
    n_bins = 64
    while n_bins < size // 2:
        n_bins *= 2
    return Room(
        np.empty(size),
        np.empty(size, dtype=np.int32),
        np.empty(n_bins + 2, dtype=np.int64),
        np.empty(n_bins, dtype=np.bool_),
        np.empty(n_bins + 1, dtype=np.int64),
    )


@inlined
def bin_of(value, low, scale, last):
    """Return the bin of a value."""
    return np.int32(min((value - low) * scale, last))


@inlined
def sort_bin(room, number):
    """Sort the values of a bin, unless they are sorted."""
    if room.sorted[number]:
        return
    room.sorted[number] = True
    own = room.values[room.starts[number] : room.starts[number + 1]]
    if own.size > 32:
        own[:] = np.sort(own)
        return
    for index in range(1, own.size):
        value, place = own[index], index
        while place > 0 and own[place - 1] > value:
            own[place] = own[place - 1]
            place -= 1
        own[place] = value


@inlined
def find_quantiles(values, levels, room, out):
    """Fill ``out`` with the linear quantiles of values; return the lowest value, and the width of bins' inverse."""
    low, high = values[0], values[0]
    for value in values:
        low = min(low, value)
        high = max(high, value)
    n_bins, starts = room.sorted.size, room.starts
    scale, last = n_bins / (high - low), np.float64(n_bins - 1)
    if not np.isfinite(scale):  # all values are equal
        out[:] = low
        return low, 0.0
    starts[:] = 0
    for place in range(values.size):
        number = bin_of(values[place], low, scale, last)
        room.bins[place] = number
        starts[number + 2] += 1
    for number in range(2, n_bins + 2):
        starts[number] += starts[number - 1]
    for place in range(values.size):
        number = room.bins[place] + 1
        room.values[starts[number]] = values[place]
        starts[number] += 1
    room.sorted[:] = False
    number = 0
    for index in range(levels.size):
        position = (values.size - 1) * levels[index]
        below = np.int64(position)
        above = min(below + 1, values.size - 1)
        while starts[number + 1] <= below:
            number += 1
        sort_bin(room, number)
        following = number
        while starts[following + 1] <= above:
            following += 1
        sort_bin(room, following)
        share = position - below
        out[index] = room.values[below] * (1 - share) + room.values[above] * share
    return low, scale


@inlined
def map_values(values, own, wanted, low, scale, room, weight, change):
    """Map values from their ``own`` quantiles to the wanted, linearly; add what changes, weighed, to ``change``."""
    if scale == 0.0:
        difference = wanted[wanted.size - 1] - own[0]
        for place in range(values.size):
            values[place] += difference
            change[place] += weight * difference
        return
    before, last = room.before, np.float64(room.sorted.size - 1)
    before[:] = 0
    for knot in own:
        before[bin_of(knot, low, scale, last) + 1] += 1
    for number in range(1, before.size):
        before[number] += before[number - 1]
    for place in range(values.size):
        value, number = values[place], room.bins[place]
        first, after = max(before[number] - 1, 0), before[number + 1]
        while after - first > 1:
            middle = (first + after) // 2
            if own[middle] <= value:
                first = middle
            else:
                after = middle
        if first == own.size - 1:
            made = wanted[first]
        else:
            slope = (wanted[first + 1] - wanted[first]) / (own[first + 1] - own[first])
            made = slope * (value - own[first]) + wanted[first]
        values[place] = made
        change[place] += weight * (made - value)


@compiled
def map_to_sample(values, sample, levels):
    """Map values from their quantiles to those of a sample, in place."""
    own, wanted = np.empty(levels.size), np.empty(levels.size)
    find_quantiles(sample, levels, make_room(sample.size, levels.size), wanted)
    room = make_room(values.size, levels.size)
    low, scale = find_quantiles(values, levels, room, own)
    map_values(values, own, wanted, low, scale, room, 0.0, np.zeros(values.size))


@compiled
def rotate_and_map(observed, simulated, weights, axes, rotations, levels):
    """Rotate and map a sample (axis, day) in place, and turn it back; each rotation keeps the weighted sum.

    ``axes`` are those that the samples are in, and ``weights`` those of the sum, along these axes.
    """
    n_axes = simulated.shape[0]
    own, wanted = np.empty(levels.size), np.empty(levels.size)
    of_observed = make_room(observed.shape[1], levels.size)
    of_simulated = make_room(simulated.shape[1], levels.size)
    change, part = np.zeros(simulated.shape[1]), np.empty((n_axes, _DAYS))
    total = axes.copy()
    for number in range(rotations.shape[0] + 1):
        turn = np.ascontiguousarray(rotations[number].T) if number < rotations.shape[0] else total.copy()
        total = total @ np.ascontiguousarray(turn.T)
        weights = turn @ weights
        rotate(turn, observed, part)
        rotate(turn, simulated, part)
        change[:] = 0.0
        for axis in range(n_axes):
            find_quantiles(observed[axis], levels, of_observed, wanted)
            low, scale = find_quantiles(simulated[axis], levels, of_simulated, own)
            map_values(simulated[axis], own, wanted, low, scale, of_simulated, weights[axis], change)
        if number < rotations.shape[0]:
            for axis in range(n_axes):
                row, weight = simulated[axis], weights[axis]
                for day in range(change.size):
                    row[day] -= change[day] * weight
