"""Kernels of the training: windowed means and quantiles of each day of year.

A day's window is a subset of the cell's values. The cell is sorted once. The window is a set of bits over the ranks;
a quantile is a position in that set. From a day of year to the next, only the first and the last day of each year's
window flip. Sorting each day's window is much slower (docs/developers/benchmarks.md).
"""

from __future__ import annotations

import numpy as np

from espo_luigi.methods.dqm.kernels.bits import count_ones, nth_bit, trailing_zeros
from espo_luigi.methods.dqm.kernels.compiled import inlined

_ONE = np.uint64(1)
_LOW_SIX = np.uint64(63)
TILE = 1024


@inlined
def pad_series(values, half, padded):
    """Copy ``values`` into ``padded``, ``half`` places in, zeros for NaN and at both ends; return if any is NaN."""
    padded[:half] = 0
    padded[half + values.size :] = 0
    inner = padded[half : half + values.size]
    n_missing = 0
    for index in range(values.size):
        missing = np.isnan(values[index])
        n_missing += missing
        inner[index] = 0 if missing else values[index]
    return n_missing > 0


@inlined
def add_to(total, part):
    """Add ``part`` to ``total`` in place; a loop over whole arrays, which LLVM can vectorise."""
    for place in range(total.size):
        total[place] += part[place]


@inlined
def copy_to(target, source):
    """Copy ``source`` into ``target``; faster than assigning a slice."""
    for place in range(target.size):
        target[place] = source[place]


@inlined
def add_two_to(total, one, other):
    """Add ``one`` and then ``other`` to ``total`` in place."""
    for place in range(total.size):
        total[place] = total.dtype.type(total[place] + one[place]) + other[place]


@inlined
def add_ahead(values, distance, size):
    """Add to each of the first ``size`` values the value that lies ``distance`` ahead, in place."""
    for place in range(size):
        values[place] += values[place + distance]


@inlined
def tile_sums(padded, window, strided, total):
    """Sum the windows that begin at each place of ``total``, in the order of numpy's pairwise summation (to 128).

    Numpy sums every eighth value, from each of eight places, and adds the eight sums two by two. Each such sum belongs
    to many windows and is made once. ``strided`` is scratch, eight places longer than ``total``.
    """
    size = total.size
    done = window - window % 8
    if window < 8:
        copy_to(total, padded)
        done = 1
    else:
        copy_to(strided[: size + 7], padded[: size + 7])
        for offset in range(8, done, 8):
            add_to(strided[: size + 7], padded[offset : offset + size + 7])
        add_ahead(strided, 1, size + 6)
        add_ahead(strided, 2, size + 4)
        add_ahead(strided, 4, size)
        copy_to(total, strided)
    for offset in range(done, window - 1, 2):
        one, other = padded[offset : offset + size], padded[offset + 1 : offset + 1 + size]
        add_two_to(total, one, other)
    if (window - done) % 2:
        add_to(total, padded[window - 1 : window - 1 + size])


@inlined
def window_sums(padded, window, strided, sums):
    """Sum the centred window of every time step; numpy's additions in numpy's order, many time steps at once."""
    for first in range(0, sums.size, TILE):
        tile_sums(padded[first:], window, strided, sums[first : first + TILE])


@inlined
def window_counts(values, half, has_missing, counts):
    """Count the values that are not NaN in the centred window of every time step."""
    size = values.size
    if not has_missing:
        counts[:] = 2 * half + 1
        for index in range(min(half, size)):
            counts[index] = min(index, half) + 1 + min(size - 1 - index, half)
            counts[size - 1 - index] = counts[index]
        return
    count = 0
    for index in range(-half, size):
        if index + half < size and not np.isnan(values[index + half]):
            count += 1
        if index - half - 1 >= 0 and not np.isnan(values[index - half - 1]):
            count -= 1
        if index >= 0:
            counts[index] = count


@inlined
def group_mean(sums, counts, centres):
    """Average over the windows around ``centres`` as xsdba does: windows added year by year, divided in float64."""
    total = sums.dtype.type(0)
    count = 0
    for centre in centres:
        total = sums.dtype.type(total + sums[centre])
        count += counts[centre]
    return sums.dtype.type(np.float64(total) / count) if count > 0 else sums.dtype.type(np.nan)


@inlined
def flip(bits, ranks, times):
    """Let the values at ``times`` enter or leave the window: flip the bits of their ranks."""
    last = bits.size - 1
    for time in times:
        rank = ranks[time]
        word = rank >> 6 if rank < ranks.size else last
        bits[word] ^= _ONE << (np.uint64(rank) & _LOW_SIX)


@inlined
def cumulate(bits, counts, before):
    """Fill ``before`` with the number of bits set before each word; return how many there are in all.

    The last word is where values that are NaN go and is not counted. Two loops, since only the first is vectorised.
    """
    for word in range(bits.size):
        counts[word] = count_ones(bits[word])
    total = 0
    for word in range(bits.size - 1):
        before[word] = total
        total += counts[word]
    before[bits.size - 1] = total
    return total


@inlined
def word_of(before, position, near):
    """Find the word that holds the bit of this ``position`` in the window, from where it was the day before."""
    word = near
    while before[word + 1] <= position:
        word += 1
    while before[word] > position:
        word -= 1
    return word


@inlined
def next_rank(bits, word, place):
    """Return the rank of the first bit set after ``place`` in ``word``; such a bit must exist."""
    rest = bits[word] & ~(((_ONE << place) << _ONE) - _ONE)
    while rest == 0:
        word += 1
        rest = bits[word]
    return (word << 6) + np.int64(trailing_zeros(rest))


@inlined
def anomaly(like, value, mean, multiplicative):
    """Add -mean or multiply by 1/mean, in the precision of the array ``like``, as xsdba does."""
    if multiplicative:
        return like.dtype.type(value * like.dtype.type(1 / mean))
    return like.dtype.type(value - mean)


@inlined
def lerp(like, left, right, gamma):
    """Interpolate between two order statistics as numpy's and xsdba's linear quantile does."""
    if gamma >= 0.5:
        return like.dtype.type(right - like.dtype.type(right - left) * (1 - np.float64(gamma)))
    return like.dtype.type(left + like.dtype.type(like.dtype.type(right - left) * gamma))


@inlined
def quantile_position(quantile, n_values):
    """Return the (0-based, fractional) position of a type 7 quantile, kept within the values."""
    position = n_values * np.float64(quantile) + (1 - np.float64(quantile)) - 1
    return min(max(position, 0.0), n_values - 1.0)


@inlined
def find_positions(quantiles, n_values, lows, gammas):
    """Fill the positions of the order statistics below each quantile and the distances to them."""
    for index in range(quantiles.size):
        position = quantile_position(quantiles[index], n_values)
        lows[index] = np.int64(position)
        gammas[index] = position - lows[index]


@inlined
def read_order_statistics(bits, before, n_values, sorted_values, lows, words, lefts, rights):
    """Fill the order statistics at ``lows`` and their successors; ``words`` remembers where the previous day's were."""
    for index in range(lows.size):
        low = lows[index]
        word = word_of(before, low, words[index])
        words[index] = word
        place = nth_bit(bits[word], np.uint64(low - before[word]))
        rank = (word << 6) + np.int64(place)
        lefts[index] = sorted_values[rank]
        rights[index] = sorted_values[next_rank(bits, word, place) if low < n_values - 1 else rank]


@inlined
def interpolate_anomalies(lefts, rights, gammas, mean, multiplicative, out):
    """Fill ``out`` with quantiles of anomalies: where the mean keeps the order, those of the order statistics."""
    for index in range(out.size):
        left = anomaly(out, lefts[index], mean, multiplicative)
        right = anomaly(out, rights[index], mean, multiplicative)
        out[index] = lerp(out, left, right, gammas[index])


@inlined
def sorted_anomalies(bits, sorted_values, mean, multiplicative, anomalies):
    """Gather the anomalies of the values in the window and sort them, leaving NaN out; return how many there are."""
    count = 0
    for rank in range(sorted_values.size):
        if bits[rank >> 6] & (_ONE << (np.uint64(rank) & _LOW_SIX)):
            anomalies[count] = anomaly(anomalies, sorted_values[rank], mean, multiplicative)
            count += not np.isnan(anomalies[count])
    anomalies[:count].sort()
    return count


@inlined
def quantiles_of_sorted(values, quantiles, out):
    """Fill ``out`` with the linear quantiles of sorted values; NaN if there are none."""
    for index in range(quantiles.size):
        if values.size == 0:
            out[index] = np.nan
            continue
        position = quantile_position(quantiles[index], values.size)
        low = np.int64(position)
        high = min(low + 1, values.size - 1)
        out[index] = lerp(out, values[low], values[high], out.dtype.type(position - low))
        if np.isnan(out[index]):
            out[index] = values[values.size - 1]


@inlined
def keeps_order(like, mean, multiplicative):
    """Whether anomalies sort like values: differences always, quotients if 1/mean is positive and finite."""
    if not multiplicative:
        return True
    factor = like.dtype.type(1 / mean)
    return factor > 0 and np.isfinite(factor)


@inlined
def series_means(values, plan, means):
    """Fill ``means`` with the windowed mean of each day of year."""
    half = plan.window // 2
    padded = np.empty(values.size + 2 * half, dtype=values.dtype)
    strided = np.empty(TILE + 8, dtype=values.dtype)
    sums = np.empty(values.size, dtype=values.dtype)
    counts = np.empty(values.size, dtype=np.int32)
    has_missing = pad_series(values, half, padded)
    window_sums(padded, plan.window, strided, sums)
    window_counts(values, half, has_missing, counts)
    for group in range(means.size):
        means[group] = group_mean(sums, counts, plan.centres[plan.centre_start[group] : plan.centre_start[group + 1]])


@inlined
def window_quantiles(ranks, sorted_values, plan, quantiles, multiplicative, means, out):
    """Fill ``out`` (day of year, quantile) with the quantiles of the anomalies from ``means`` in each day's window."""
    bits = np.zeros((ranks.size >> 6) + 2, dtype=np.uint64)
    word_counts = np.zeros(bits.size, dtype=np.int32)
    before = np.zeros(bits.size, dtype=np.int32)
    words = np.zeros(quantiles.size, dtype=np.int64)
    lows = np.empty(quantiles.size, dtype=np.int64)
    ends = np.empty((3, quantiles.size), dtype=out.dtype)
    n_before = 0
    for group in range(means.size):
        flip(bits, ranks, plan.flips[plan.flip_start[group] : plan.flip_start[group + 1]])
        n_values = cumulate(bits, word_counts, before)
        if n_values > 0 and keeps_order(out, means[group], multiplicative):
            if n_values != n_before:
                find_positions(quantiles, n_values, lows, ends[2])
                n_before = n_values
            read_order_statistics(bits, before, n_values, sorted_values, lows, words, ends[0], ends[1])
            interpolate_anomalies(ends[0], ends[1], ends[2], means[group], multiplicative, out[group])
        else:
            anomalies = np.empty(n_values, dtype=out.dtype)
            count = sorted_anomalies(bits, sorted_values, means[group], multiplicative, anomalies)
            quantiles_of_sorted(anomalies[:count], quantiles, out[group])


@inlined
def correct(reference_quantiles, historical_quantiles, means, multiplicative, about_mean, small, factors, scaling):
    """Fill a cell's factors and scaling: reference against historical.

    A historical value below ``small`` is at most doubled (as by `ratio.max` of Cannon's R package MBC).
    """
    for group in range(scaling.size):
        if multiplicative:
            scaling[group] = means[0, group] / means[1, group]
        else:
            scaling[group] = means[0, group] - means[1, group]
        for index in range(factors.shape[1]):
            right = historical_quantiles[group, index]
            left = reference_quantiles[group, index]
            factors[group, index] = left / right if multiplicative else left - right
            if multiplicative and (right * means[1, group] if about_mean else right) < small:
                most = factors.dtype.type(2 / scaling[group] if about_mean else 2)
                factors[group, index] = most if factors[group, index] > most else factors[group, index]
