"""Kernels of quantile delta mapping: the rank of each value among those of its day of year, and the factor there.

Days of year by themselves are sorted many at once, by a network of comparisons (Batcher's odd-even merge sort), which
LLVM vectorises. Windows of days are sets of bits over the ranks of the sorted series, as in the training (`quantiles`).
"""

from __future__ import annotations

import numpy as np

from espo_luigi.methods.dqm.kernels.adapting import adapt_simulation
from espo_luigi.methods.dqm.kernels.adjusting import (
    any_factor,
    empty_tables,
    fill_tables,
    keep_tails,
    mark_wet,
)
from espo_luigi.methods.dqm.kernels.compiled import compiled, inlined
from espo_luigi.methods.dqm.kernels.preparation import count_below, find_equals, mixed, rank_at
from espo_luigi.methods.dqm.kernels.quantiles import copy_to, cumulate, flip
from espo_luigi.methods.dqm.kernels.sorting import sort_cell


@inlined
def order_rows(low, high, low_places, high_places):
    """Exchange the values of two rows, and their places, where the first is higher."""
    for day in range(low.size):
        first, second, place, other = low[day], high[day], low_places[day], high_places[day]
        swaps = second < first
        low[day] = second if swaps else first
        high[day] = first if swaps else second
        low_places[day] = other if swaps else place
        high_places[day] = place if swaps else other


@inlined
def sort_columns(values, places):
    """Sort each column of ``values``, and ``places`` with it (Knuth 1998, algorithm 5.2.2M)."""
    size, merged = values.shape[0], 1
    while merged < size:
        apart = merged
        while apart > 0:
            for start in range(apart % merged, size - apart, 2 * apart):
                for row in range(start, min(start + apart, size - apart)):
                    if row // (2 * merged) == (row + apart) // (2 * merged):
                        order_rows(values[row], values[row + apart], places[row], places[row + apart])
            apart //= 2
        merged *= 2


@inlined
def spread(rank, least, most):
    """Spread a mean rank over 0 to 1, rounded as xsdba's; the only rank of values that are all equal is the middle."""
    return 0.5 if most == least else most * (rank - least) / (most - least)


@inlined
def rank_sorted(values, places, centres, day, n_values, turns, factors, out, found):
    """Fill ``out`` with the ranks of a day of year, as `relative_ranks` does, and ``found`` with its factors there.

    The day's values are a sorted column, so the level only rises.
    """
    level = 0
    end, start = 1, n_values - 1
    while end < n_values and values[end, day] == values[0, day]:
        end += 1
    while start > 0 and values[start - 1, day] == values[start, day]:
        start -= 1
    least, most = (1 + end) / 2 / n_values, (start + 1 + n_values) / 2 / n_values
    start = 0
    while start < n_values:
        end = start + 1
        while end < n_values and values[end, day] == values[start, day]:
            end += 1
        share = spread((start + 1 + end) / 2 / n_values, least, most)
        while level < turns.size and turns[level] < share:
            level += 1
        for row in range(start, end):
            time = centres[places[row, day]] + day
            out[time] = share
            found[time] = factors[level]
        start = end


@inlined
def ranks_of_days(series, days, rows, turns, factors, out, found):
    """Rank each value among those of its own day of year, as `relative_ranks` does, and find the factors there."""
    out[:] = np.nan
    found[:] = np.nan
    for run in range(days.run_groups.size):
        centres, size = days.run_centres[days.run_start[run] : days.run_start[run + 1]], days.run_groups[run]
        values, places = np.empty((centres.size, size), dtype=series.dtype), np.empty((centres.size, size), np.int32)
        n_values = np.zeros(size, dtype=np.int64)
        for year in range(centres.size):
            places[year] = year
            for day in range(size):
                value = series[centres[year] + day]
                values[year, day] = np.inf if np.isnan(value) else value
                n_values[day] += not np.isnan(value)
        sort_columns(values, places)
        for day in range(size):
            if n_values[day] > 0:
                row = rows[centres[0] + day]
                own = factors[row - 1 if row <= factors.shape[0] else 0]
                rank_sorted(values, places, centres, day, n_values[day], turns[row], own, out, found)


@inlined
def relative_ranks(values, keys, windows, kept, out):
    """Fill ``out`` with each value's rank in its day of year's window, from 0 to 1, rounded as xsdba's.

    Only ``kept`` values, bool, are ranked. Equal values share their mean rank. NaN stands for NaN. ``keys`` is scratch
    (see `sort_cell`).
    """
    ranks, sorted_values = np.empty(values.size, dtype=np.int32), np.empty(values.size, dtype=values.dtype)
    n_valid = sort_cell(values, keys, ranks, sorted_values)
    # Rows of one array would not be contiguous to the compiler.
    firsts, lasts = np.empty(n_valid, dtype=np.int32), np.empty(n_valid, dtype=np.int32)
    tied = n_valid > 1 and (sorted_values[1:n_valid] == sorted_values[: n_valid - 1]).any()
    if tied:
        find_equals(sorted_values[:n_valid], firsts, lasts)
    bits = np.zeros((values.size >> 6) + 2, dtype=np.uint64)
    word_counts, before = np.zeros(bits.size, dtype=np.int32), np.zeros(bits.size, dtype=np.int32)
    for group in range(windows.dayofyear.size):
        flip(bits, ranks, windows.flips[windows.flip_start[group] : windows.flip_start[group + 1]])
        n_values = cumulate(bits, word_counts, before)
        lowest, highest = 1.0, np.float64(n_values)
        if tied and n_values > 0:
            lowest = (1 + count_below(bits, before, lasts[rank_at(bits, before, 0)])) / 2
            highest = (count_below(bits, before, firsts[rank_at(bits, before, n_values - 1)]) + 1 + n_values) / 2
        least, most = lowest / n_values, highest / n_values
        for time in windows.centres[windows.centre_start[group] : windows.centre_start[group + 1]]:
            rank = ranks[time]
            if not kept[time] or rank >= n_valid:
                out[time] = np.nan
                continue
            below = count_below(bits, before, firsts[rank] if tied else rank)
            up_to = count_below(bits, before, lasts[rank]) if tied else below + 1
            out[time] = spread((below + 1 + up_to) / 2 / n_values, least, most)


@inlined
def level_at(quantile, turns):
    """Return the position of the nearest level: the number of turns below the quantile, close to its share of them."""
    place = min(np.int64(quantile * (turns.size + 1)), turns.size)
    while place > 0 and not turns[place - 1] < quantile:
        place -= 1
    while place < turns.size and turns[place] < quantile:
        place += 1
    return place


@inlined
def tabulate(factors, levels, turns, tables):
    """Lay out a cell some of whose factors are NaN; other days' may then be nearest (`nearest_factor`)."""
    levels_by_day = np.empty(factors.shape, dtype=factors.dtype)
    for day in range(factors.shape[0]):
        copy_to(levels_by_day[day], levels)
    fill_tables(factors, factors, levels_by_day, tables)
    for row in range(turns.shape[0]):
        if tables.counts[row] == levels.size:
            copy_to(tables.middles[row], turns[row])


@inlined
def find_ranked(ranks, rows, factors, turns, is_complete, tables, found):
    """Fill ``found`` with the factors at successive ranks; ``rows`` are their days' among the tables'."""
    n_days = factors.shape[0]
    for time in range(ranks.size):
        quantile, row = ranks[time], rows[time]
        if not is_complete:
            found[time] = any_factor(quantile, row, tables)
        elif np.isnan(quantile):
            found[time] = np.nan
        else:
            found[time] = factors[row - 1 if row <= n_days else 0, level_at(quantile, turns[row])]


@inlined
def copy_adapted(simulation, cell, span, days, threshold, nearby, shares, seeds, marks, series):
    """Copy a window of years of a cell's members, dry days made wet as `adapting.adapt_simulation` does."""
    first, last, kept_first, kept_last = span
    kept = slice(kept_first - first, kept_last - first)
    for member in range(series.shape[0]):
        given = simulation[cell, member, first:last]
        if shares.pth.shape[0] == 0:
            copy_to(series[member], given)
            continue
        adapt_simulation(
            given,
            days,
            threshold,
            nearby,
            shares.dry_reference[cell, :, member],
            shares.dry_historical[cell, :, member],
            shares.pth[cell, :, member],
            # Each window of years draws for itself.
            mixed(seeds[cell, member] + np.uint64(first)) if first > 0 else seeds[cell, member],
            series[member],
        )
        mark_wet(given[kept], series[member, kept], marks[cell, member, kept_first:kept_last])


@inlined
def apply_factors(values, factors, multiplicative, out):
    """Apply the factors, in the data's precision."""
    for time in range(values.size):
        out[time] = values[time] * factors[time] if multiplicative else values[time] + factors[time]


@inlined
def trace(ranks, values, factors, out):
    """Copy what is traced of a member."""
    copy_to(out[0], ranks)
    if out.shape[0] > 1:
        copy_to(out[1], values)
        copy_to(out[2], factors)


@compiled
def adjust_ranked(
    simulation,
    factors,
    levels,
    turns,
    plan,
    keys,
    multiplicative,
    threshold,
    nearby,
    shares,
    limits,
    seeds,
    out,
    marks,
    traced,
):
    """Adjust the members (cell, member, time) of each cell within the window of years of a `ranking.RankPlan`.

    ``turns`` are those of `ranking.turning_points`. The other arguments are those of `adjusting.adjust_cells`. Where
    ``traced`` (3, cell, member, time) has cells, it is filled with the ranks, the values that are ranked and the
    factors, or (1, …) with the ranks.
    """
    span, rows, days, windows, pooled = plan
    first, last, kept_first, kept_last = span
    members, n_times = simulation.shape[1], last - first
    kept = slice(kept_first - first, kept_last - first)
    in_sample = members if pooled else 1
    length = n_times + windows.window // 2
    series = np.empty((members, n_times), dtype=simulation.dtype)
    sample = np.full(keys.shape[1], np.nan, dtype=simulation.dtype)
    ranks, steps = np.empty(sample.size), np.arange(sample.size) % length
    is_kept = (kept_first - first <= steps) & (steps < kept_last - first)
    factors_found = np.empty(n_times, dtype=factors.dtype)
    alone = windows.window == 1 and not pooled
    tables = empty_tables(factors, factors, 1.0)
    for cell in range(simulation.shape[0]):
        is_complete = not np.isnan(factors[cell]).any()
        if not is_complete:
            tabulate(factors[cell], levels, turns, tables)
        copy_adapted(simulation, cell, span, days, threshold, nearby, shares, seeds, marks, series)
        for member in range(members):
            start = member % in_sample * length
            if alone:
                ranks_of_days(series[member], days, rows, turns, factors[cell], ranks, factors_found)
            elif start == 0:
                for other in range(in_sample):
                    copy_to(sample[other * length : other * length + n_times], series[member + other])
                relative_ranks(sample, keys, windows, is_kept, ranks)
            own, values, found = ranks[start : start + n_times][kept], series[member, kept], factors_found[kept]
            if not (alone and is_complete):
                find_ranked(own, rows[kept], factors[cell], turns, is_complete, tables, found)
            adjusted = out[cell, member, kept_first:kept_last]
            apply_factors(values, found, multiplicative, adjusted)
            if limits.shape[0] > 0:
                marked = marks[cell, member, kept_first:kept_last]
                keep_tails(values, limits[cell], days.scaling_rows[kept], adjusted, marked)
            if traced.shape[1] > 0:
                trace(own, values, found, traced[:, cell, member, kept_first:kept_last])
