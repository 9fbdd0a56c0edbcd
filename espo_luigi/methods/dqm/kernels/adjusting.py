"""Kernels of the adjustment: LOESS trends of the windowed means of each day of year, and the nearest factors.

Successive days of year form a run if their time steps, too, follow each other in all years; without leap days, all days
form a single run. A run's days are neighbours in memory, and share the LOESS weights over the years.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from espo_luigi.methods.dqm.kernels import TREATMENTS
from espo_luigi.methods.dqm.kernels.adapting import adapt_simulation
from espo_luigi.methods.dqm.kernels.compiled import ROW, compiled, inlined
from espo_luigi.methods.dqm.kernels.loess import smooth_block, smooth_incomplete
from espo_luigi.methods.dqm.kernels.quantiles import TILE, add_to, copy_to, pad_series, window_counts, window_sums

# Bits of the days' marks.
MADE_WET, EXTRAPOLATED, LIMITED = (
    np.uint8(1 << TREATMENTS.index(one)) for one in ("made_wet", "extrapolated", "limited")
)


class Tables(NamedTuple):
    """A cell's training, laid out for the search: a row a day of year, and a further row before and after.

    Attributes
    ----------
    counts
        Points of the row, without NaN.
    known_x, known_factors
        Their quantiles and factors.
    middles
        Halfway between successive points, in float64, then infinite.
    edges, edge_factors
        First and last quantile that is not NaN, and first and last factor, as xsdba has it.
    plain
        Whether no point is NaN, and the points at the ends have the factors that apply beyond them.
    reach
        That of the plan; if it is infinite, a day without points takes those of the nearest day.
    """

    counts: np.ndarray
    known_x: np.ndarray
    known_factors: np.ndarray
    middles: np.ndarray
    edges: np.ndarray
    edge_factors: np.ndarray
    plain: np.ndarray
    reach: float


@inlined
def empty_tables(factors, historical_quantiles, reach):
    """Make room for the tables of one cell of both (cell, day of year, quantile)."""
    n_rows, n_quantiles = factors.shape[1] + 2, factors.shape[2]
    return Tables(
        np.empty(n_rows, dtype=np.int64),
        np.empty((n_rows, n_quantiles), dtype=historical_quantiles.dtype),
        np.empty((n_rows, n_quantiles), dtype=factors.dtype),
        np.empty((n_rows, n_quantiles - 1)),
        np.empty((n_rows, 2)),
        np.empty((n_rows, 2)),
        np.empty(n_rows, dtype=np.bool_),
        reach,
    )


@inlined
def all_known(factors, historical_quantiles):
    """Whether all factors and quantiles are numbers."""
    n_missing = 0
    for index in range(factors.size):
        n_missing += np.isnan(factors[index]) | np.isnan(historical_quantiles[index])
    return n_missing == 0


@inlined
def copy_known(factors, nearest, historical_quantiles, known_x, known_factors, edges, edge_factors):
    """Keep the points without NaN, and the first and the last quantile and factor that are not; return how many."""
    count = 0
    edges[:] = np.nan
    edge_factors[:] = np.nan
    for index in range(factors.size):
        x, factor = historical_quantiles[index], factors[index]
        if not np.isnan(x):
            edges[0] = x if np.isnan(edges[0]) else edges[0]
            edges[1] = x
        if not np.isnan(factor):
            edge_factors[0] = factor if np.isnan(edge_factors[0]) else edge_factors[0]
            edge_factors[1] = factor
        if not (np.isnan(x) or np.isnan(factor)):
            known_x[count] = x
            known_factors[count] = nearest[index]
            count += 1
    return count


@inlined
def share_middle(known_x, known_factors):
    """Give points at equal quantiles the factor of the middle of them, or of the lower of two."""
    start = 0
    while start < known_x.size:
        end = start + 1
        while end < known_x.size and known_x[end] == known_x[start]:
            end += 1
        known_factors[start:end] = known_factors[(start + end - 1) // 2]
        start = end


@inlined
def fill_row(factors, nearest, historical_quantiles, tables, row):
    """Lay out one day of year.

    ``nearest`` are the factors of points that are found as nearest in xsdba's plane (`quantile_mapping.settle_ties`).
    """
    last = factors.size - 1
    known_x, known_factors = tables.known_x[row], tables.known_factors[row]
    edges, edge_factors = tables.edges[row], tables.edge_factors[row]
    if all_known(factors, historical_quantiles):
        copy_to(known_x, historical_quantiles)
        copy_to(known_factors, nearest)
        edges[0], edges[1] = historical_quantiles[0], historical_quantiles[last]
        edge_factors[0], edge_factors[1] = factors[0], factors[last]
        count = factors.size
    else:
        count = copy_known(factors, nearest, historical_quantiles, known_x, known_factors, edges, edge_factors)
    if tables.reach > 1:
        share_middle(known_x[:count], known_factors[:count])
    tables.counts[row] = count
    middles = tables.middles[row]
    middles[max(count - 1, 0) :] = np.inf
    for index in range(count - 1):
        middles[index] = 0.5 * (np.float64(known_x[index]) + np.float64(known_x[index + 1]))
    tables.plain[row] = (
        count == factors.size and factors[0] == known_factors[0] and factors[last] == known_factors[last]
    )


@inlined
def fill_tables(factors, nearest, historical_quantiles, tables):
    """Lay out all days of year, with the last day before the first and the first day after the last."""
    n_days = factors.shape[0]
    for row in range(n_days + 2):
        day = (row - 1) % n_days
        fill_row(factors[day], nearest[day], historical_quantiles[day], tables, row)


@inlined
def nearest_in_row(x, row, middles):
    """Return the position of the point nearest to ``x`` in a row: the number of middles below it.

    LLVM vectorises this loop. A bisection is slower (docs/developers/benchmarks.md): it mispredicts half of its
    branches.
    """
    count = np.uint64(0)
    for index in range(middles.shape[1]):
        count += np.uint64(middles[row, index] < x)
    return count


@inlined
def nearest_from(place, x, row, middles):
    """Return the position of the point nearest to ``x`` in a row, found from that in the row beside it."""
    while place > 0 and not middles[row, place - 1] < x:
        place -= 1
    while place < middles.shape[1] and middles[row, place] < x:
        place += 1
    return place


@inlined
def nearest_factor(x, row, tables):
    """Return the factor of the point nearest to (x, row): a further row can win only if it is nearer than the best.

    The quantiles of days of year change slowly, so each row's search begins where that of the row beside it ended.
    """
    counts, known_x, known_factors, middles = tables.counts, tables.known_x, tables.known_factors, tables.middles
    best, factor = np.inf, np.nan
    before = after = np.int64(nearest_in_row(x, np.uint64(row), middles))
    away = 0
    while away * away < best and (row - away >= 0 or row + away < counts.size):
        if row - away >= 0 and counts[row - away] > 0:
            before = nearest_from(before, x, row - away, middles)
            distance = ((x - known_x[row - away, before]) / tables.reach) ** 2 + away * away
            if distance < best:
                best, factor = distance, known_factors[row - away, before]
        if row + away < counts.size and counts[row + away] > 0:
            after = nearest_from(after, x, row + away, middles)
            distance = ((x - known_x[row + away, after]) / tables.reach) ** 2 + away * away
            if distance < best:
                best, factor = distance, known_factors[row + away, after]
        away += 1
    return factor


@inlined
def any_factor(x, row, tables):
    """Find the factor of any value: beyond the day's quantiles its end's, otherwise the nearest within reach."""
    if np.isnan(x):
        return np.nan
    if x < tables.edges[row, 0]:
        return tables.edge_factors[row, 0]
    if x > tables.edges[row, 1]:
        return tables.edge_factors[row, 1]
    return nearest_factor(x, row, tables)


@inlined
def find_factors(anomalies, rows, tables, factors):
    """Find the factors of successive days (year, day).

    Most values lie within reach of a point of their own day: no other day's, at least so far away, is nearer.
    Years are looped over in here, and the tables taken apart once: numba counts references at each call.
    """
    plain, known_x, known_factors = tables.plain, tables.known_x, tables.known_factors
    middles = tables.middles
    for year in range(anomalies.shape[0]):
        for day in range(rows.size):
            x, row = anomalies[year, day], np.uint64(rows[day])
            place = nearest_in_row(x, row, middles)
            factors[year, day] = known_factors[row, place]
            if not plain[row] or abs(x - known_x[row, place]) > tables.reach:
                factors[year, day] = any_factor(x, rows[day], tables)


@inlined
def mark_beyond(anomalies, lowest, highest, firsts, marks):
    """Mark the values (year, day) beyond their day's quantiles; each year's first is at ``firsts``."""
    for year in range(anomalies.shape[0]):
        for day in range(lowest.size):
            x = anomalies[year, day]
            # A day without rain stays dry, whatever its factor.
            is_beyond = ((x < lowest[day]) & (x != 0)) | (x > highest[day])
            marks[firsts[year] + day] |= EXTRAPOLATED if is_beyond else np.uint8(0)


@inlined
def scale_series(simulation, scaling, rows, multiplicative, scaled):
    """Move each day by the scaling of its day of year, in the data's precision."""
    for time in range(simulation.size):
        factor = scaling[rows[time]]
        scaled[time] = simulation[time] * factor if multiplicative else simulation[time] + factor


@inlined
def pool_means(scaled, half, window, padded, means):
    """Fill ``means`` with the mean over the window of all members (member, time); return whether all have values."""
    members, n_times = scaled.shape
    counts = np.empty(n_times, dtype=np.int32)
    strided = np.empty(TILE + 8, dtype=scaled.dtype)
    has_missing = pad_series(scaled[0], half, padded)
    window_sums(padded, window, strided, means)
    window_counts(scaled[0], half, has_missing, counts)
    if members > 1:
        more_sums, more_counts = np.empty(n_times, dtype=scaled.dtype), np.empty(n_times, dtype=np.int32)
        for member in range(1, members):
            has_missing = pad_series(scaled[member], half, padded)
            window_sums(padded, window, strided, more_sums)
            window_counts(scaled[member], half, has_missing, more_counts)
            add_to(means, more_sums)
            add_to(counts, more_counts)
    fewest = counts[0]
    for time in range(means.size):
        fewest = min(fewest, counts[time])
        means[time] = np.float64(means[time]) / counts[time]
    return fewest > 0


@inlined
def block_trends(means, centres, plan, kind_of_years, complete, block, trends):
    """Fill ``trends`` (year, day) of a block of days that begin at ``centres``; ``block`` is scratch."""
    n_years = centres.size
    for year in range(n_years):
        ends = min(ROW, means.size - centres[year])
        copy_to(block[year, :ends], means[centres[year] : centres[year] + ends])
        block[year, ends:] = 0
    block[n_years:, :] = 0
    smooth_block(block, plan.weights[kind_of_years], plan.firsts[kind_of_years, :n_years], trends)
    if not complete:
        for day in range(ROW):
            if np.isnan(block[:n_years, day]).any():
                points = plan.points[kind_of_years, :n_years]
                spacing = plan.spacings[kind_of_years]
                smooth_incomplete(points, block[:n_years, day], plan.fraction, spacing, trends[:n_years, day])


@inlined
def remove_trends(values, firsts, trends, multiplicative, skips_zeros, anomalies):
    """Take the trend (year, day) from the values of successive days, in float64; each year's first is at ``firsts``.

    With ``skips_zeros``, a trend of 0 divides nothing.
    """
    for year in range(firsts.size):
        for day in range(anomalies.shape[1]):
            value = np.float64(values[firsts[year] + day])
            if multiplicative:
                anomalies[year, day] = value * (
                    1 / (1.0 if skips_zeros and trends[year, day] == 0 else trends[year, day])
                )
            else:
                anomalies[year, day] = value - trends[year, day]


@inlined
def put_back(anomalies, factors, firsts, trends, multiplicative, out):
    """Apply the factors and put the trend back."""
    for year in range(firsts.size):
        for day in range(anomalies.shape[1]):
            if multiplicative:
                out[firsts[year] + day] = anomalies[year, day] * factors[year, day] * trends[year, day]
            else:
                out[firsts[year] + day] = anomalies[year, day] + factors[year, day] + trends[year, day]


@inlined
def trace(firsts, size, found, traced):
    """Keep trends, anomalies and factors (year, day) of successive days; each year's first is at ``firsts``."""
    for number in range(3):
        for year in range(firsts.size):
            copy_to(traced[number, firsts[year] : firsts[year] + size], found[number][year, :size])


@inlined
def adjust_run(
    scaled,
    means,
    centres,
    first_group,
    n_groups,
    kind_of_years,
    complete,
    plan,
    tables,
    multiplicative,
    skips_zeros,
    out,
    marks,
    traced,
):
    """Adjust the days of a run, a block of days of year at a time; members (member, time) share their trends.

    ``marks`` (member, time) get the bit of extrapolated days. ``traced`` (5, cell, member, time) has a cell or none.
    """
    block = np.empty((centres.size + plan.weights.shape[2], ROW))
    trends = np.empty((centres.size, ROW))
    anomalies, factors = np.empty(trends.shape), np.empty(trends.shape)
    for start in range(0, n_groups, ROW):
        size = min(ROW, n_groups - start)
        rows = plan.table_rows[first_group + start : first_group + start + size]
        lowest, highest = tables.edges[rows, 0], tables.edges[rows, 1]
        block_trends(means, centres + start, plan, kind_of_years, complete, block, trends)
        for member in range(scaled.shape[0]):
            remove_trends(scaled[member], centres + start, trends, multiplicative, skips_zeros, anomalies[:, :size])
            mark_beyond(anomalies, lowest, highest, centres + start, marks[member])
            find_factors(anomalies, rows, tables, factors)
            put_back(anomalies[:, :size], factors, centres + start, trends, multiplicative, out[member])
            if traced.shape[1] > 0:
                trace(centres + start, size, (trends, anomalies, factors), traced[2:, 0, member])


@inlined
def keep_tails(adapted, limits, rows, out, marks):
    """Put values above their day's limit back, neither scaled nor adjusted, and mark them."""
    for time in range(adapted.size):
        if adapted[time] > limits[rows[time]]:
            out[time] = adapted[time]
            marks[time] |= LIMITED


@inlined
def mark_wet(before, after, marks):
    """Mark the values that differ; NaN stays NaN."""
    for time in range(before.size):
        is_changed = (before[time] < after[time]) | (before[time] > after[time])
        marks[time] |= MADE_WET if is_changed else np.uint8(0)


@compiled
def adjust_cells(
    simulation,
    factors,
    nearest,
    historical_quantiles,
    scaling,
    plan,
    multiplicative,
    skips_zeros,
    threshold,
    nearby,
    shares,
    limits,
    seeds,
    out,
    marks,
    traced,
):
    """Adjust the members (cell, member, time) of each cell; scratch is per call, little more than the members' series.

    Frequencies are adapted, ``nearby`` or not, if ``shares`` (see `Shares`) have cells; tails are kept if ``limits``
    (cell, day) do. ``marks`` (cell, member, time) get the bits of days made wet, extrapolated and limited. Where
    ``traced`` (5, cell, member, time) has cells, it is filled with the values before scaling, scaled values, trends,
    anomalies and factors.
    """
    members, n_times = simulation.shape[1], simulation.shape[2]
    half = plan.window // 2
    tables = empty_tables(factors, historical_quantiles, plan.reach)
    scaled = np.empty((members, n_times), dtype=simulation.dtype)
    means = np.empty(n_times, dtype=simulation.dtype)
    padded = np.empty(n_times + 2 * half, dtype=simulation.dtype)
    adapts = shares.pth.shape[0] > 0
    adapted = np.empty((members, n_times) if adapts else (0, 0), dtype=simulation.dtype)
    for cell in range(simulation.shape[0]):
        fill_tables(factors[cell], nearest[cell], historical_quantiles[cell], tables)
        series = simulation[cell]
        for member in range(members):
            if adapts:
                adapt_simulation(
                    simulation[cell, member],
                    plan,
                    threshold,
                    nearby,
                    shares.dry_reference[cell, :, member],
                    shares.dry_historical[cell, :, member],
                    shares.pth[cell, :, member],
                    seeds[cell, member],
                    adapted[member],
                )
                series = adapted
                mark_wet(simulation[cell, member], adapted[member], marks[cell, member])
            scale_series(series[member], scaling[cell], plan.scaling_rows, multiplicative, scaled[member])
            if traced.shape[1] > 0:
                copy_to(traced[0, cell, member], series[member])
                copy_to(traced[1, cell, member], scaled[member])
        complete = pool_means(scaled, half, plan.window, padded, means)
        for run in range(plan.run_groups.size):
            centres = plan.run_centres[plan.run_start[run] : plan.run_start[run + 1]]
            adjust_run(
                scaled,
                means,
                centres,
                plan.run_first[run],
                plan.run_groups[run],
                plan.run_kinds[run],
                complete,
                plan,
                tables,
                multiplicative,
                skips_zeros,
                out[cell],
                marks[cell],
                traced[:, cell : cell + 1],
            )
        if limits.shape[0] > 0:
            for member in range(members):
                keep_tails(series[member], limits[cell], plan.scaling_rows, out[cell, member], marks[cell, member])
