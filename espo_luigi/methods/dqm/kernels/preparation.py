"""Kernels that prepare training data: noise below a threshold, and adaptation of the frequency of dry days.

Every random number is a function of the cell's seed, its purpose and the time step, independent of the order of
computing. The generator is SplitMix64 (Steele et al. 2014), entered at any place.
"""

from __future__ import annotations

import numpy as np

from espo_luigi.methods.dqm.kernels.bits import count_ones, trailing_zeros
from espo_luigi.methods.dqm.kernels.compiled import compiled, inlined
from espo_luigi.methods.dqm.kernels.sorting import sort_cell

_ONE = np.uint64(1)
_LOW_SIX = np.uint64(63)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_TO_UNIT = 2.0**-53

# The purpose of a draw; part of the seed.
NOISE = {"reference": np.uint64(1), "historical": np.uint64(2), "simulation": np.uint64(5)}
NEW_VALUE = np.uint64(3)
TIE = np.uint64(4)


@inlined
def mixed(state):
    """Scramble 64 bits (SplitMix64's output function)."""
    state = (state ^ (state >> np.uint64(30))) * _MIX_1
    state = (state ^ (state >> np.uint64(27))) * _MIX_2
    return state ^ (state >> np.uint64(31))


@inlined
def stream(seed, purpose):
    """Return the start of a cell's draws for a purpose."""
    return mixed(seed + purpose * _MIX_1)


@inlined
def draw(start, counter):
    """Draw the ``counter``-th number in [0, 1) of a stream."""
    return np.float64(mixed(start + np.uint64(counter + 1) * _GOLDEN) >> np.uint64(11)) * _TO_UNIT


@inlined
def uniform(seed, purpose, counter):
    """Draw the ``counter``-th number in [0, 1) of a cell's series for a purpose."""
    return draw(stream(seed, purpose), counter)


@inlined
def flip_counting(bits, ranks, n_low, times, n_values, n_dry):
    """Let values enter or leave the window; return the new counts of values and dry values (ranks below ``n_low``)."""
    for time in times:
        rank = ranks[time]
        if rank < ranks.size:
            bit = _ONE << (np.uint64(rank) & _LOW_SIX)
            bits[rank >> 6] ^= bit
            change = 1 if bits[rank >> 6] & bit else -1
            n_values += change
            n_dry += change if rank < n_low else 0
    return n_values, n_dry


@inlined
def count_before(bits, before):
    """Fill ``before`` with the number of bits set before each word."""
    count = 0
    for word in range(bits.size):
        before[word] = count
        count += np.int64(count_ones(bits[word]))


@inlined
def count_below(bits, before, rank):
    """Count the values in the window whose rank is lower."""
    word = rank >> 6
    return before[word] + np.int64(count_ones(bits[word] & ((_ONE << (np.uint64(rank) & _LOW_SIX)) - _ONE)))


@inlined
def rank_at(bits, before, position):
    """Return the rank of the value at this position in the window."""
    word = np.searchsorted(before, position, side="right") - 1
    rest = bits[word]
    for _ in range(position - before[word]):
        rest &= rest - _ONE
    return (word << 6) + np.int64(trailing_zeros(rest))


@inlined
def window_quantile(bits, before, n_values, sorted_values, quantile):
    """Linear quantile, in float64, of the values in the window."""
    position = (n_values - 1) * quantile
    low = np.int64(position)
    left = np.float64(sorted_values[rank_at(bits, before, low)])
    if low + 1 >= n_values:
        return left
    right = np.float64(sorted_values[rank_at(bits, before, low + 1)])
    return left + (right - left) * (position - low)


@inlined
def find_equals(sorted_values, firsts, lasts):
    """Fill, for each rank, the first and the last rank (excluded) of the values equal to its own."""
    first, last = 0, sorted_values.size
    for rank in range(last):
        if rank > 0 and sorted_values[rank] != sorted_values[rank - 1]:
            first = rank
        firsts[rank] = first
    for rank in range(last - 1, -1, -1):
        lasts[rank] = last
        if rank > 0 and sorted_values[rank] != sorted_values[rank - 1]:
            last = rank


@inlined
def place_among_equals(n_equal, time, seed, first, taken_firsts, taken_places):
    """Draw the place of a value among the equal values of its window, free of those that its group took already."""
    attempt = 0
    while True:
        place = np.int64(uniform(seed, TIE, time + (attempt << 32)) * n_equal)
        free = True
        for index in range(taken_places.size):
            free &= taken_firsts[index] != first or taken_places[index] != place
        if free:
            return place
        attempt += 1


@inlined
def relative_rank(rank, n_values):
    """Return a rank (from 1) as a number from 0 to 1, rounded as xsdba's."""
    return (rank / n_values - 1 / n_values) / (1 - 1 / n_values)


@inlined
def is_replaced(rank, n_values, dry_reference, dry_historical):
    """Whether a dry value has to become wet: its relative rank lies between the two frequencies, as in xsdba."""
    relative = relative_rank(rank, n_values)
    return not (relative < (dry_reference / dry_historical) * dry_historical) and not (relative > dry_historical)


@inlined
def wet_value(like, uniform_draw, threshold, top):
    """Return what a dry value becomes: between the threshold and ``top``, in the precision of the array ``like``."""
    return like.dtype.type(like.dtype.type(top - threshold) * like.dtype.type(uniform_draw)) + threshold


@inlined
def adapt_group(centres, bits, before, n_values, ranks, firsts, lasts, frequencies, limits, seed, out):
    """Make some dry values of one day of year wet: uniform between the threshold and ``pth``, the two ``limits``."""
    threshold, top = limits
    taken = np.empty((2, centres.size), dtype=np.int64)
    n_taken = 0
    for time in centres:
        rank = ranks[time]
        if rank < ranks.size and out[time] <= threshold:
            first = firsts[rank]
            below = count_below(bits, before, first)
            n_equal = count_below(bits, before, lasts[rank]) - below
            place = 0
            if n_equal > 1:
                place = place_among_equals(n_equal, time, seed, first, taken[0, :n_taken], taken[1, :n_taken])
                taken[0, n_taken], taken[1, n_taken] = first, place
                n_taken += 1
            if is_replaced(below + place + 1, n_values, frequencies[0], frequencies[1]):
                out[time] = wet_value(out, uniform(seed, NEW_VALUE, time), threshold, top)


@inlined
def adapt_series(reference, historical, keys, plan, threshold, seed, pth, dry_share, out):
    """Adapt one cell's frequency of dry days (Themeßl et al. 2012): fill ``out``, ``pth``, ``dry_share`` (dP0)."""
    ranks = np.empty((2, historical.size), dtype=np.int32)
    values = np.empty((2, historical.size), dtype=historical.dtype)
    n_valid = (
        sort_cell(reference, keys, ranks[0], values[0]),
        sort_cell(historical, keys, ranks[1], values[1]),
    )
    firsts, lasts = np.empty(n_valid[1], dtype=np.int32), np.empty(n_valid[1], dtype=np.int32)
    find_equals(values[1, : n_valid[1]], firsts, lasts)
    n_low = np.array([np.searchsorted(values[index, : n_valid[index]], threshold, side="right") for index in range(2)])
    bits = np.zeros((2, (historical.size >> 6) + 1), dtype=np.uint64)
    before = np.empty((2, bits.shape[1]), dtype=np.int64)
    n_values = np.zeros(2, dtype=np.int64)
    n_dry = np.zeros(2, dtype=np.int64)
    out[:] = historical
    for group in range(pth.size):
        times = plan.flips[plan.flip_start[group] : plan.flip_start[group + 1]]
        for index in range(2):
            n_values[index], n_dry[index] = flip_counting(
                bits[index], ranks[index], n_low[index], times, n_values[index], n_dry[index]
            )
        dry = (n_dry[0] / n_values[0], n_dry[1] / n_values[1])
        dry_share[group] = np.nan if dry[1] == 0 else (dry[1] - dry[0]) / dry[1]
        pth[group] = np.nan
        if dry_share[group] > 0:
            count_before(bits[0], before[0])
            count_before(bits[1], before[1])
            pth[group] = window_quantile(bits[0], before[0], n_values[0], values[0], dry[1])
            centres = plan.centres[plan.centre_start[group] : plan.centre_start[group + 1]]
            limits = (threshold, pth[group])
            adapt_group(centres, bits[1], before[1], n_values[1], ranks[1], firsts, lasts, dry, limits, seed, out)


@compiled
def jitter_cells(values, threshold, seeds, purpose, out):
    """Copy series (cell, time), values strictly below the threshold replaced by uniform noise between 0 and it."""
    lowest = np.nextafter(values.dtype.type(0), values.dtype.type(1))
    highest = np.nextafter(values.dtype.type(threshold), values.dtype.type(0))
    for cell in range(values.shape[0]):
        for time in range(values.shape[1]):
            if values[cell, time] < threshold:
                noise = lowest + (threshold - lowest) * uniform(seeds[cell], purpose, time)
                out[cell, time] = min(noise, highest)
            else:
                out[cell, time] = values[cell, time]


@compiled
def adapt_cells(reference, historical, keys, plan, threshold, seeds, adapted, pth, dry_share):
    """Adapt the frequency of each cell's values up to a threshold; ``keys`` is scratch (see `sort_cell`)."""
    for cell in range(reference.shape[0]):
        own = seeds[cell], pth[cell], dry_share[cell], adapted[cell]
        adapt_series(reference[cell], historical[cell], keys, plan, threshold, *own)
