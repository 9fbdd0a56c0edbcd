"""Kernels that adapt the frequency of dry days inside of each day of year's sample, in training and in adjusting.

A member of a pool that has more dry days than the reference gets wet ones: the highest of its dry values are replaced
by draws between the threshold and ``top`` (pth). In training, a day of year's new sample is never written down. It is
what stays of the dry values (``kept``, a set of bits over the pool's ranks), then the draws among the lowest wet values
(``merged``, a sorted list), then the other wet values (``wet``, bits). Quantiles are positions in these three.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from espo_luigi.methods.dqm.kernels.bits import count_ones, nth_bit, trailing_zeros
from espo_luigi.methods.dqm.kernels.compiled import inlined
from espo_luigi.methods.dqm.kernels.preparation import (
    NEW_VALUE,
    TIE,
    count_before,
    draw,
    flip_counting,
    relative_rank,
    stream,
    wet_value,
    window_quantile,
)
from espo_luigi.methods.dqm.kernels.quantiles import (
    anomaly,
    cumulate,
    find_positions,
    interpolate_anomalies,
    keeps_order,
    quantiles_of_sorted,
    word_of,
)

_ONE = np.uint64(1)
_LOW_SIX = np.uint64(63)
# More than the values of a day of year's window; a day of year's draws are numbered from its multiple on.
_DRAWS_OF_A_GROUP = np.int64(1) << 32
# On each side, as in a window of 30 years.
_YEARS_NEARBY = 15


class Shares(NamedTuple):
    """What training remembers of the adaptation: (…, day of year, member).

    Attributes
    ----------
    dry_reference, dry_historical
        Shares of values up to the threshold (P0_ref, P0_hist).
    pth
        Highest new value; NaN where nothing is adapted.
    """

    dry_reference: np.ndarray
    dry_historical: np.ndarray
    pth: np.ndarray


class Adapting(NamedTuple):
    """What training needs to adapt: the threshold of dry days, seeds (cell, member), and the shares that it fills."""

    threshold: float
    seeds: np.ndarray
    shares: Shares


class Sample(NamedTuple):
    """A day of year's sample of all members, as bits over the pool's ranks.

    Attributes
    ----------
    dry, wet
        Values up to the threshold, of each member; the wet values of all, whose ranks begin after the dry ones.
    counts, dry_counts, replaced
        Each member's values, dry values, and dry values that are replaced.
    words, below
        The word where each member's replaced values begin, and its dry values before that word.
    """

    dry: np.ndarray
    wet: np.ndarray
    counts: np.ndarray
    dry_counts: np.ndarray
    replaced: np.ndarray
    words: np.ndarray
    below: np.ndarray


@inlined
def needs_adapting(dry_reference, dry_historical):
    """Whether a member has more dry values than the reference (dP0 > 0); not if either is NaN."""
    return dry_historical > 0 and (dry_historical - dry_reference) / dry_historical > 0


@inlined
def count_kept(n_values, n_dry, lower):
    """Count the dry values that stay: those whose relative rank is below ``lower``."""
    kept = min(max(np.int64(lower * (n_values - 1)), 0), n_dry)
    while kept > 0 and not relative_rank(kept, n_values) < lower:
        kept -= 1
    while kept < n_dry and relative_rank(kept + 1, n_values) < lower:
        kept += 1
    return kept


@inlined
def flip_members(sample, ranks, n_low, times):
    """Let values enter or leave the window: of each member as many of ``times``, the members one after the other."""
    dry, wet, counts, dry_counts, _, words, below = sample
    of_a_member = times.size // counts.size
    for member in range(counts.size):
        for time in times[member * of_a_member : (member + 1) * of_a_member]:
            rank = ranks[time]
            if rank < n_low:
                bit = _ONE << (np.uint64(rank) & _LOW_SIX)
                dry[member, rank >> 6] ^= bit
                change = 1 if dry[member, rank >> 6] & bit else -1
                dry_counts[member] += change
                counts[member] += change
                below[member] += change if rank >> 6 < words[member] else 0
            elif rank < ranks.size:
                bit = _ONE << (np.uint64(rank - n_low) & _LOW_SIX)
                wet[(rank - n_low) >> 6] ^= bit
                counts[member] += 1 if wet[(rank - n_low) >> 6] & bit else -1


@inlined
def keep_lowest(sample, member, n_kept, sorted_values, kept):
    """Add the ``n_kept`` lowest of a member's dry values to ``kept``; return the sum of the others.

    The search begins in the word of the day before.
    """
    bits, word, below = sample.dry[member], sample.words[member], sample.below[member]
    while below > n_kept:
        word -= 1
        below -= np.int64(count_ones(bits[word]))
    while word < bits.size and below + np.int64(count_ones(bits[word])) <= n_kept:
        below += np.int64(count_ones(bits[word]))
        word += 1
    sample.words[member], sample.below[member] = word, below
    for index in range(word):
        kept[index] |= bits[index]
    total = 0.0
    if word < bits.size:
        low = (_ONE << nth_bit(bits[word], np.uint64(n_kept - below))) - _ONE
        kept[word] |= bits[word] & low
        rest = bits[word] & ~low
        while True:
            while rest:
                total += sorted_values[(word << 6) + np.int64(trailing_zeros(rest))]
                rest &= rest - _ONE
            word += 1
            if word == bits.size:
                break
            rest = bits[word]
    return total


@inlined
def adapt_members(sample, reference, sorted_values, shares, group, kept):
    """Decide how many dry values of each member are replaced; fill ``kept`` and the shares; return what they sum to.

    ``reference`` has the day's bits, counts before each word, sorted values, and how many values and dry values.
    """
    bits, before, values, n_values, n_dry = reference
    removed = 0.0
    kept[:] = 0
    for member in range(sample.counts.size):
        count, dry_count = sample.counts[member], sample.dry_counts[member]
        dry_reference, dry_historical = n_dry / n_values, dry_count / count
        shares.dry_reference[group, member] = dry_reference
        shares.dry_historical[group, member] = dry_historical
        shares.pth[group, member] = np.nan
        stay = dry_count
        if needs_adapting(dry_reference, dry_historical):
            shares.pth[group, member] = window_quantile(bits, before, n_values, values, dry_historical)
            stay = count_kept(count, dry_count, (dry_reference / dry_historical) * dry_historical)
        removed += keep_lowest(sample, member, stay, sorted_values, kept)
        sample.replaced[member] = dry_count - stay
    return removed


@inlined
def take_between(bits, sorted_values, lowest, highest, removes, out, count):
    """Append the values of ``bits`` between both limits to ``out``, ascending; return the new count."""
    first = np.searchsorted(sorted_values, lowest, side="right")
    for word in range(first >> 6, bits.size):
        rest = bits[word]
        if word == first >> 6:
            rest &= ~((_ONE << (np.uint64(first) & _LOW_SIX)) - _ONE)
        if removes:
            bits[word] ^= rest
        while rest:
            value = sorted_values[(word << 6) + np.int64(trailing_zeros(rest))]
            if value >= highest:
                return count
            out[count] = value
            count += 1
            rest &= rest - _ONE
    return count


@inlined
def sort_uniform(values, starts, out):
    """Sort uniform numbers from [0, 1) into ``out``: as many buckets as numbers, then insertion."""
    size = values.size
    starts[: size + 1] = 0
    for index in range(size):
        starts[min(np.int64(values[index] * size), size - 1) + 1] += 1
    for index in range(size):
        starts[index + 1] += starts[index]
    for index in range(size):
        bucket = min(np.int64(values[index] * size), size - 1)
        out[starts[bucket]] = values[index]
        starts[bucket] += 1
    for index in range(1, size):
        value = out[index]
        place = index
        while place > 0 and out[place - 1] > value:
            out[place] = out[place - 1]
            place -= 1
        out[place] = value


@inlined
def draw_sorted(start, group, threshold, top, scratch, starts, out):
    """Fill ``out`` with a member's new values of a day of year, ascending; return their sum."""
    size = out.size
    drawn, ordered = scratch[0, :size], scratch[1, :size]
    for index in range(size):
        drawn[index] = draw(start, group * _DRAWS_OF_A_GROUP + index)
    sort_uniform(drawn, starts, ordered)
    total = 0.0
    for index in range(size):
        # Where a quantile of the reference was interpolated to below the threshold, new values descend from there.
        place = index if top >= threshold else size - 1 - index
        out[place] = wet_value(out, ordered[index], threshold, top)
        total += out[place]
    return total


@inlined
def merge(left, right, out):
    """Merge two sorted lists."""
    i, j = 0, 0
    while i < left.size and j < right.size:
        from_left = left[i] <= right[j]
        out[i + j] = left[i] if from_left else right[j]
        i += from_left
        j += not from_left
    while i < left.size:
        out[i + j] = left[i]
        i += 1
    while j < right.size:
        out[i + j] = right[j]
        j += 1


@inlined
def merge_draws(sample, starts_of_draws, group, threshold, pth, lists, scratch, buckets, n_merged):
    """Merge each member's new values into ``lists[0]``, which has the values around them; return count and sum."""
    added = 0.0
    current = 0
    for member in range(pth.size):
        size = sample.replaced[member]
        if size > 0:
            new = lists[2, :size]
            added += draw_sorted(starts_of_draws[member], group, threshold, pth[member], scratch, buckets, new)
            merge(lists[current, :n_merged], new, lists[1 - current])
            current = 1 - current
            n_merged += size
    if current == 1:
        lists[0, :n_merged] = lists[1, :n_merged]
    return n_merged, added


@inlined
def limits_of_draws(sample, threshold, pth):
    """Return the lowest and the highest value between which there are new values; the threshold if there are none."""
    lowest, highest = threshold, threshold
    for member in range(pth.size):
        if sample.replaced[member] > 0:
            lowest, highest = min(lowest, pth[member]), max(highest, pth[member])
    return lowest, highest


@inlined
def value_at(position, kept, kept_before, merged, wet, wet_before, n_taken, dry_values, wet_values, near):
    """Return the value at a position of the new sample; ``near`` remembers the words of the previous one.

    ``n_taken`` of the wet values are among ``merged``.
    """
    n_kept = kept_before[kept_before.size - 1]
    if position < n_kept:
        word = word_of(kept_before, position, near[0])
        near[0] = word
        return dry_values[(word << 6) + np.int64(nth_bit(kept[word], np.uint64(position - kept_before[word])))]
    position -= n_kept
    if position < merged.size:
        return merged[position]
    position -= merged.size - n_taken
    word = word_of(wet_before, position, near[1])
    near[1] = word
    return wet_values[(word << 6) + np.int64(nth_bit(wet[word], np.uint64(position - wet_before[word])))]


@inlined
def new_quantiles(new, n_values, mean, quantiles, positions, near, ends, out):
    """Fill the quantiles of the anomalies of a new sample; ``new`` has the arguments of `value_at`."""
    kept, kept_before, merged, wet, wet_before, n_taken, dry_values, wet_values = new
    if n_values > 0 and keeps_order(out, mean, True):
        find_positions(quantiles, n_values, positions, ends[2])
        for index in range(quantiles.size):
            low = positions[index]
            for side in range(2):
                ends[side, index] = value_at(
                    min(low + side, n_values - 1),
                    kept, kept_before, merged, wet, wet_before, n_taken, dry_values, wet_values, near[index],
                )  # fmt: skip
        interpolate_anomalies(ends[0], ends[1], ends[2], mean, True, out)
        return
    anomalies = np.empty(n_values, dtype=out.dtype)
    count = 0
    for position in range(n_values):
        value = value_at(
            position, kept, kept_before, merged, wet, wet_before, n_taken, dry_values, wet_values, near[0]
        )  # fmt: skip
        anomalies[count] = anomaly(anomalies, value, mean, True)
        count += not np.isnan(anomalies[count])
    anomalies[:count].sort()
    quantiles_of_sorted(anomalies[:count], quantiles, out)


@inlined
def adapted_quantiles(
    reference, historical, plan, pool_plan, quantiles, threshold, seeds, about_mean, means, shares, out
):
    """Fill ``out`` (day of year, quantile) and ``means`` from each day of year's adapted sample, and the shares.

    Unless ``about_mean``, ``out`` has the quantiles of the values themselves, and ``means`` stay as they are.
    ``reference`` and ``historical`` are ranks and sorted values; ``means`` come with those before adapting.
    """
    (reference_ranks, reference_values), (ranks, values) = reference, historical
    members, n_quantiles = seeds.size, quantiles.size
    reference_low = np.searchsorted(reference_values, threshold, side="right")
    n_low = np.searchsorted(values, threshold, side="right")
    dry_values, wet_values = values[:n_low], values[n_low:]
    bits = np.zeros((reference_ranks.size >> 6) + 1, dtype=np.uint64)
    before = np.empty(bits.size, dtype=np.int64)
    sample = Sample(
        np.zeros((members, (n_low >> 6) + 1), dtype=np.uint64),
        np.zeros((wet_values.size >> 6) + 2, dtype=np.uint64),
        np.zeros(members, dtype=np.int64),
        np.zeros(members, dtype=np.int64),
        np.zeros(members, dtype=np.int64),
        np.zeros(members, dtype=np.int64),
        np.zeros(members, dtype=np.int64),
    )
    # One word more, where counts end.
    kept = np.zeros((n_low >> 6) + 2, dtype=np.uint64)
    word_counts = np.empty(max(kept.size, sample.wet.size), dtype=np.int32)
    kept_before, wet_before = np.empty(kept.size, dtype=np.int32), np.empty(sample.wet.size, dtype=np.int32)
    longest = np.diff(pool_plan.centre_start).max() * pool_plan.window
    lists, scratch = np.empty((3, longest), dtype=out.dtype), np.empty((2, longest))
    buckets = np.empty(longest + 1, dtype=np.int32)
    positions, near = np.empty(n_quantiles, dtype=np.int64), np.zeros((n_quantiles, 2), dtype=np.int64)
    ends = np.empty((3, n_quantiles), dtype=out.dtype)
    starts_of_draws = np.empty(members, dtype=np.uint64)
    for member in range(members):
        starts_of_draws[member] = stream(seeds[member], NEW_VALUE)
    n_reference, n_dry_reference = 0, 0
    for group in range(means.size):
        times = plan.flips[plan.flip_start[group] : plan.flip_start[group + 1]]
        n_reference, n_dry_reference = flip_counting(
            bits, reference_ranks, reference_low, times, n_reference, n_dry_reference
        )
        count_before(bits, before)
        flip_members(
            sample, ranks, n_low, pool_plan.flips[pool_plan.flip_start[group] : pool_plan.flip_start[group + 1]]
        )
        day = (bits, before, reference_values, n_reference, n_dry_reference)
        removed = adapt_members(sample, day, values, shares, group, kept)
        n_merged, n_taken, added = 0, 0, 0.0
        if sample.replaced.any():
            lowest, highest = limits_of_draws(sample, threshold, shares.pth[group])
            n_dry_taken = take_between(kept, dry_values, lowest, np.inf, True, lists[0], 0)
            n_merged = take_between(sample.wet, wet_values, threshold, highest, False, lists[0], n_dry_taken)
            n_taken = n_merged - n_dry_taken
            n_merged, added = merge_draws(
                sample, starts_of_draws, group, threshold, shares.pth[group], lists, scratch, buckets, n_merged
            )
        n_values = sample.counts.sum()
        if about_mean and (added != 0 or removed != 0):
            means[group] = (np.float64(means[group]) * n_values - removed + added) / n_values
        cumulate(kept, word_counts, kept_before)
        cumulate(sample.wet, word_counts, wet_before)
        new = (kept, kept_before, lists[0, :n_merged], sample.wet, wet_before, n_taken, dry_values, wet_values)
        mean = means[group] if about_mean else means.dtype.type(1)
        new_quantiles(new, n_values, mean, quantiles, positions, near, ends, out[group])


@inlined
def select(values, position):
    """Return the value at a position of the sorted values, which are moved (Hoare's selection)."""
    left, right = 0, values.size - 1
    while left < right:
        value = values[(left + right) // 2]
        i, j = left, right
        while i <= j:
            while values[i] < value:
                i += 1
            while value < values[j]:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        if position <= j:
            right = j
        elif position >= i:
            left = i
        else:
            return values[position]
    return values[position]


@inlined
def lowest_replaced(values, kept, scratch):
    """Return the lowest value that is replaced if so many of the lowest stay; often the lowest of all, which is 0."""
    lowest = values[0]
    for value in values:
        lowest = min(lowest, value)
    n_lowest = 0
    for value in values:
        n_lowest += value == lowest
    if kept < n_lowest:
        return lowest
    n_more = 0
    for value in values:
        scratch[n_more] = value
        n_more += value > lowest
    return select(scratch[:n_more], kept - n_lowest)


@inlined
def adapt_day(series, centres, ahead, threshold, ratio, top, streams, scratch, out):
    """Make dry values of a day of year wet, whose series' places are ``ahead`` of ``centres``.

    The highest are; which of those equal to the lowest of these is drawn, each of them being as likely.
    """
    values, more, places = scratch
    count, n_dry = 0, 0
    for centre in centres:
        value = series[centre + ahead]
        values[n_dry], places[n_dry] = value, centre + ahead
        count += not np.isnan(value)
        n_dry += value <= threshold
    if n_dry == 0:
        return
    kept = count_kept(count, n_dry, np.float64(ratio) * (n_dry / count))
    if kept == n_dry:
        return
    limit = lowest_replaced(values[:n_dry], kept, more)
    n_equal, n_stay = 0, kept
    for index in range(n_dry):
        n_equal += values[index] == limit
        n_stay -= values[index] < limit
    for index in range(n_dry):
        place = places[index]
        replaces = values[index] > limit
        if values[index] == limit:
            replaces = draw(streams[0], place) * n_equal >= n_stay
            n_equal -= 1
            n_stay -= not replaces
        if replaces:
            out[place] = wet_value(out, draw(streams[1], place), threshold, top)


@inlined
def count_nearby(series, half, threshold, counts):
    """Fill ``counts`` with the numbers of wet and dry values up to ``half`` days away: (2, time)."""
    n_wet, n_dry = 0, 0
    for time in range(-half, series.size):
        if time + half < series.size:
            n_wet += series[time + half] > threshold
            n_dry += series[time + half] <= threshold
        if time > half:
            n_wet -= series[time - half - 1] > threshold
            n_dry -= series[time - half - 1] <= threshold
        if time >= 0:
            counts[0, time], counts[1, time] = n_wet, n_dry


@inlined
def adapt_nearby(series, plan, threshold, dry_reference, dry_historical, pth, streams, out):
    """Make dry values wet in proportion to the wet ones around: in the days of the window and the years around.

    A dry day becomes wet with the probability n_wet x lacking / n_dry: numbers of days around, and the wet days that
    the training lacks for each simulated one. So changes of the frequency stay, in ratios, in samples of any size.
    """
    counts = np.empty((2, series.size), dtype=np.int64)
    count_nearby(series, max(plan.window // 2, 15), threshold, counts)
    for run in range(plan.run_groups.size):
        centres = plan.run_centres[plan.run_start[run] : plan.run_start[run + 1]]
        for ahead in range(plan.run_groups[run]):
            row = plan.scaling_rows[centres[0] + ahead]
            if not dry_reference[row] < dry_historical[row] < 1:
                continue
            lacking = (dry_historical[row] - dry_reference[row]) / (1 - dry_historical[row])
            n_wet, n_dry = 0, 0
            for year in range(-_YEARS_NEARBY, centres.size):
                if year + _YEARS_NEARBY < centres.size:
                    entering = centres[year + _YEARS_NEARBY] + ahead
                    n_wet, n_dry = n_wet + counts[0, entering], n_dry + counts[1, entering]
                if year > _YEARS_NEARBY:
                    leaving = centres[year - _YEARS_NEARBY - 1] + ahead
                    n_wet, n_dry = n_wet - counts[0, leaving], n_dry - counts[1, leaving]
                time = centres[max(year, 0)] + ahead
                if year >= 0 and series[time] <= threshold and draw(streams[0], time) * n_dry < n_wet * lacking:
                    out[time] = wet_value(out, draw(streams[1], time), threshold, pth[row])


@inlined
def adapt_simulation(series, plan, threshold, nearby, dry_reference, dry_historical, pth, seed, out):
    """Copy a member's series, dry days of each day of year made wet in the proportion that training found.

    Days of year have no window here, as in xsdba, unless ``nearby`` (`adapt_nearby`). The training's numbers are (day
    of year).
    """
    out[:] = series
    if nearby:
        both = stream(seed, TIE), stream(seed, NEW_VALUE)
        adapt_nearby(series, plan, threshold, dry_reference, dry_historical, pth, both, out)
        return
    longest = np.diff(plan.run_start).max()
    values, more = np.empty((2, longest + 1), dtype=series.dtype)
    scratch = values, more, np.empty(longest + 1, dtype=np.int64)
    streams = stream(seed, TIE), stream(seed, NEW_VALUE)
    for run in range(plan.run_groups.size):
        centres = plan.run_centres[plan.run_start[run] : plan.run_start[run + 1]]
        for ahead in range(plan.run_groups[run]):
            row = plan.scaling_rows[centres[0] + ahead]
            if needs_adapting(dry_reference[row], dry_historical[row]):
                ratio = dry_reference[row] / dry_historical[row]
                adapt_day(series, centres, ahead, threshold, ratio, pth[row], streams, scratch, out)
