"""Kernels that rank values without sorting them: equal bins, each a chain of its values' places.

What depends on ranks changes at a few of them only. Counts of the bins tell which bins these are in, and only the
values of such bins are compared with each other. The values are standardised, so that the bins are fixed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from espo_luigi.methods.dqm.kernels.compiled import inlined

_FARTHEST = 2.5  # standard deviations; the first and the last bin have all that is farther
_ONE = np.int64(1) << 32
_COUNT = -_ONE
_PLACE = _ONE - 1
_FEW = 40


class Bins(NamedTuple):
    """The bins of some values.

    Attributes
    ----------
    heads
        Of each bin, how many values it has (the upper 32 bits), and the place of the last.
    links
        Of each value, the place of the one before it in its bin.
    bins
        Each value's bin.
    shifts
        What is added to the values of each bin.
    mixed
        Bins whose values have several factors, and (the upper 32 bits) how many values are in lower bins.
    places, values
        Room for a bin's values, and their places.
    """

    heads: np.ndarray
    links: np.ndarray
    bins: np.ndarray
    shifts: np.ndarray
    mixed: np.ndarray
    places: np.ndarray
    values: np.ndarray


class Steps(NamedTuple):
    """Where factors change among the ranks of a sample of a size.

    Attributes
    ----------
    lower, weights
        For each doubled mean rank, the level below it (or nearest), and the weight of the next level's factor.
    firsts, lasts
        For each number of values, the level of the next rank, and that of the last. If factors lie between levels, the
        level above: each bin is looked at.
    """

    lower: np.ndarray
    weights: np.ndarray
    firsts: np.ndarray
    lasts: np.ndarray


@inlined
def empty_bins(size):
    """Return room for samples of up to so many values."""
    n_bins = 256
    while n_bins < min(size // 3, 16384):
        n_bins *= 2
    return Bins(
        np.zeros(n_bins, dtype=np.int64),
        np.zeros(size, dtype=np.int32),
        np.zeros(size, dtype=np.uint16),
        np.zeros(n_bins),
        np.zeros(n_bins, dtype=np.int64),
        np.zeros(size, dtype=np.int64),
        np.zeros(size),
    )


@inlined
def relative_rank_of(doubled, size):
    """Return a doubled rank (from 2) as a rank from 0 to 1, rounded as xsdba's."""
    return (doubled / 2 / size - 1 / size) / (1 - 1 / size)


@inlined
def level_from(level, place, known, linear):
    """Return the level nearest to a place, or the one below it, as scipy's interp1d; search from ``level`` on."""
    last = known.size - 1
    while level < last and (known[level + 1] if linear else known[level] / 2 + known[level + 1] / 2) < place:
        level += 1
    return level


@inlined
def steps_of(size, levels, linear):
    """Return where factors change among ``size`` values."""
    lower, weights = np.zeros(2 * size + 1, dtype=np.int64), np.zeros(2 * size + 1)
    firsts, lasts = np.zeros((2, size + 1), dtype=np.uint32)
    level = 0
    for doubled in range(2, 2 * size + 1):
        rank = relative_rank_of(doubled, size) if size > 1 else 0.5
        level = level_from(level, rank, levels, linear)
        lower[doubled] = level
        if linear and level + 1 < levels.size and rank > levels[level]:
            weights[doubled] = (rank - levels[level]) / (levels[level + 1] - levels[level])
        if doubled % 2 == 0:
            firsts[doubled // 2 - 1], lasts[doubled // 2] = level, level + np.int64(linear)
    return Steps(lower, weights, firsts, lasts)


@inlined
def fill_bins(values, bins):
    """Chain the places of values in their bins."""
    heads, links, of_value = bins.heads, bins.links, bins.bins
    scale, last = heads.size / (2 * _FARTHEST), np.float64(heads.size - 1)
    for place in range(values.size):
        of_value[place] = np.uint16(np.int32(min(max((values[place] + _FARTHEST) * scale, 0.0), last)))
    heads[:] = 0
    for place in range(values.size):
        head = heads[of_value[place]]
        links[place] = np.int32(head & _PLACE)
        heads[of_value[place]] = (head & _COUNT) + _ONE + place


@inlined
def collect(values, head, links, places, own):
    """Copy the places and the values of a bin; return how many it has."""
    count, place = head >> 32, head & _PLACE
    for index in range(count):
        places[index], own[index] = place, values[place]
        place = np.int64(links[place])
    return count


@inlined
def shift_many(values, places, own, before, steps, factors):
    """Do the same as `shift_few` with a full bin."""
    ordered = np.sort(own)
    for index in range(own.size):
        first, last = np.searchsorted(ordered, own[index]), np.searchsorted(ordered, own[index], side="right")
        values[places[index]] = own[index] + factor_at(2 * before + 1 + first + last, steps, factors)


@inlined
def factor_at(doubled, steps, factors):
    """Return the factor at a doubled rank; ``factors`` repeat their last."""
    level, weight = steps.lower[doubled], steps.weights[doubled]
    return factors[level] + weight * (factors[level + 1] - factors[level])


@inlined
def shift_few(values, count, places, own, before, lower, weights, factors):
    """Add to the values of a bin the factors at their ranks; ``before`` are in lower bins."""
    for index in range(count):
        value, doubled = own[index], 2 * before + 1
        for other in range(count):
            doubled += np.int64(own[other] < value) + np.int64(own[other] <= value)
        level = lower[doubled]
        values[places[index]] = value + (factors[level] + weights[doubled] * (factors[level + 1] - factors[level]))


@inlined
def shift_by_rank(values, bins, steps, factors):
    """Add to each value the factor at its rank; equal values have their mean rank."""
    heads, links, of_value, shifts, mixed, places, own = bins
    lower, weights, firsts, lasts = steps
    n_mixed, before = 0, np.int64(0)
    for number in range(heads.size):  # no branch: where factors change cannot be foreseen
        after = before + (heads[number] >> 32)
        level = firsts[np.uint64(before)]
        shifts[number] = factors[level]
        mixed[np.uint64(n_mixed)] = before * _ONE + number
        n_mixed += np.int64(lasts[np.uint64(after)] > level)
        before = after
    for one in mixed[:n_mixed]:
        number, before = one & _PLACE, one >> 32
        shifts[number] = 0.0
        count = collect(values, heads[number], links, places, own)
        if count > _FEW:
            shift_many(values, places[:count], own[:count], before, steps, factors)
        else:
            shift_few(values, count, places, own, before, lower, weights, factors)
    for place in range(values.size):
        values[place] += shifts[of_value[place]]


@inlined
def value_in_bin(values, number, wanted, bins):
    """Return the value at a position (from 0) among those of a bin."""
    count = collect(values, bins.heads[number], bins.links, bins.places, bins.values)
    own = bins.values[:count]
    if count > _FEW:
        return np.sort(own)[wanted]
    for value in own:
        n_less, n_up_to = 0, 0
        for other in own:
            n_less += other < value
            n_up_to += other <= value
        if n_less <= wanted and wanted < n_up_to:
            return value
    return np.nan


@inlined
def quantiles_in_bins(values, bins, levels, out):
    """Fill ``out`` with the linear quantiles of the values; ``levels`` ascend."""
    number, before = 0, np.int64(0)
    for index in range(levels.size):
        position = (values.size - 1) * levels[index]
        low = np.int64(position)
        left, right = 0.0, 0.0
        for wanted in (low, min(low + 1, values.size - 1)):
            while before > wanted:
                number -= 1
                before -= bins.heads[number] >> 32
            while before + (bins.heads[number] >> 32) <= wanted:
                before += bins.heads[number] >> 32
                number += 1
            left, right = right, value_in_bin(values, number, wanted - before, bins)
        out[index] = left + (right - left) * (position - low)


@inlined
def rank_in_bins(values, place, before, bins):
    """Return the rank (from 0) of a value, equal ones in their order; ``before`` has each bin's lower values."""
    number, value = bins.bins[place], values[place]
    head = bins.heads[number]
    rank, other = np.int64(before[number]), head & _PLACE
    for _ in range(head >> 32):
        rank += values[other] < value or (values[other] == value and other < place)
        other = np.int64(bins.links[other])
    return rank


@inlined
def count_before_bins(bins, before):
    """Fill ``before`` with the number of values in lower bins."""
    total = np.int64(0)
    for number in range(bins.heads.size):
        before[number] = total
        total += bins.heads[number] >> 32
