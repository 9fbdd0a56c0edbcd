"""Kernels of the adjustment: LOESS trends of the windowed means of each day of year, and the nearest factors.

Days of year whose time steps move by one day from one to the next (in a calendar without leap days, all of them) form a
run: in each year they are neighbours in memory, and the LOESS weights over the years are theirs in common.
"""

from __future__ import annotations

import numpy as np

from espo_luigi.science.compiled import compiled, inlined
from espo_luigi.science.loess_kernels import BLOCK, smooth_block, smooth_incomplete
from espo_luigi.science.quantile_kernels import TILE, copy_to, pad_series, window_counts, window_sums


@inlined
def middle(left, right):
    """Return the point halfway, in float64."""
    return 0.5 * (np.float64(left) + np.float64(right))


@inlined
def fill_complete_table(factors, nearest, historical_quantiles, known_x, known_factors, middles, edges, edge_factors):
    """Lay out one day of year none of whose quantiles and factors is NaN (see ``fill_table``)."""
    last = factors.size - 1
    copy_to(known_x, historical_quantiles)
    copy_to(known_factors, nearest)
    middles[last:] = np.inf
    for index in range(last):
        middles[index] = middle(historical_quantiles[index], historical_quantiles[index + 1])
    edges[0], edges[1] = historical_quantiles[0], historical_quantiles[last]
    edge_factors[0], edge_factors[1] = factors[0], factors[last]
    return factors.size


@inlined
def all_known(factors, historical_quantiles):
    """Whether no factor and no quantile is NaN."""
    n_missing = 0
    for index in range(factors.size):
        n_missing += np.isnan(factors[index]) | np.isnan(historical_quantiles[index])
    return n_missing == 0


@inlined
def fill_table(factors, nearest, historical_quantiles, known_x, known_factors, middles, edges, edge_factors):
    """Lay out one day of year for the search: its points without NaN, the middles between them, and its ends.

    Returns the number of points. The ends are the first and last quantile and factor that are not NaN, as xsdba has it;
    ``nearest`` are the factors of points that are found as nearest (see ``quantile_mapping.settle_ties``).
    """
    if all_known(factors, historical_quantiles):
        return fill_complete_table(
            factors, nearest, historical_quantiles, known_x, known_factors, middles, edges, edge_factors
        )
    count = 0
    edges[:] = np.nan
    edge_factors[:] = np.nan
    middles[:] = np.inf
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
            if count > 0:
                middles[count - 1] = middle(known_x[count - 1], known_x[count])
            count += 1
    return count


@inlined
def nearest_in_row(x, row, counts, known_x, middles):
    """Return the position of the point nearest to ``x`` in a row: the number of middles below it.

    Comparing with all of them is vectorised, and faster than a bisection, half of whose branches are mispredicted. In
    float32 none is counted too many (rounding keeps order), and the few too little are made up for in float64. Unsigned
    indices spare numba's handling of negative ones.
    """
    row = np.uint64(row)
    rounded = np.float32(x)
    position = np.int32(0)
    for index in range(middles.shape[1]):
        position = np.int32(position + np.int32(middles[row, np.uint64(index)] < rounded))
    place = np.uint64(position)
    last = np.uint64(counts[row] - 1)
    while place < last and middle(known_x[row, place], known_x[row, place + np.uint64(1)]) < x:
        place += np.uint64(1)
    return place


@inlined
def nearest_factor(x, row, counts, known_x, known_factors, middles):
    """Return the factor of the point nearest to (x, row): another row can win only if it is nearer than the best."""
    best, factor = np.inf, np.nan
    if counts[row] > 0:
        place = nearest_in_row(x, row, counts, known_x, middles)
        best = (x - known_x[row, place]) ** 2
        factor = known_factors[row, place]
    away = 1
    while away * away < best and (row - away >= 0 or row + away < counts.size):
        for other in (row - away, row + away):
            if 0 <= other < counts.size and counts[other] > 0:
                place = nearest_in_row(x, other, counts, known_x, middles)
                distance = (x - known_x[other, place]) ** 2 + away * away
                if distance < best:
                    best = distance
                    factor = known_factors[other, place]
        away += 1
    return factor


@inlined
def scale_series(simulation, scaling, rows, multiplicative, scaled):
    """Move each day by the scaling of its day of year, in the data's precision."""
    for time in range(simulation.size):
        factor = scaling[rows[time]]
        scaled[time] = simulation[time] * factor if multiplicative else simulation[time] + factor


@inlined
def window_means(scaled, half, window, padded, means):
    """Fill ``means`` with the windowed mean of every time step, NaN where the window holds nothing."""
    counts = np.empty(scaled.size, dtype=np.int32)
    lanes = np.empty((8, TILE), dtype=scaled.dtype)
    has_missing = pad_series(scaled, half, padded)
    window_sums(padded, window, lanes, means)
    window_counts(scaled, half, has_missing, counts)
    fewest = counts[0]
    for time in range(means.size):
        fewest = min(fewest, counts[time])
        means[time] = np.float64(means[time]) / counts[time]
    return fewest > 0


@inlined
def block_trends(means, centres, plan, kind_of_years, complete, block, trends):
    """Fill ``trends`` (year, day) of the block of days whose first ones are at ``centres``; ``block`` is scratch."""
    n_years = centres.size
    for year in range(n_years):
        for day in range(BLOCK):
            block[year, day] = means[min(centres[year] + day, means.size - 1)]
    block[n_years:, :] = 0
    smooth_block(block, plan.weights[kind_of_years], plan.firsts[kind_of_years, :n_years], trends)
    if not complete:
        for day in range(BLOCK):
            if np.isnan(block[:n_years, day]).any():
                points = plan.points[kind_of_years, :n_years]
                spacing = plan.spacings[kind_of_years]
                smooth_incomplete(points, block[:n_years, day], plan.fraction, spacing, trends[:n_years, day])


@inlined
def fill_tables(factors, nearest, historical_quantiles, counts, known_x, known_factors, middles, edges, edge_factors):
    """Lay out all days of year, with the last one before the first and the first one after the last."""
    n_days = factors.shape[0]
    for row in range(n_days + 2):
        day = (row - 1) % n_days
        counts[row] = fill_table(
            factors[day],
            nearest[day],
            historical_quantiles[day],
            known_x[row],
            known_factors[row],
            middles[row],
            edges[row],
            edge_factors[row],
        )


@inlined
def remove_trend(values, trends, multiplicative, anomalies):
    """Take the trend from each value, in float64."""
    for day in range(values.size):
        if multiplicative:
            anomalies[day] = np.float64(values[day]) * (1 / trends[day])
        else:
            anomalies[day] = np.float64(values[day]) - trends[day]


@inlined
def put_back(anomalies, factors, trends, multiplicative, out):
    """Apply the factors and put the trend back."""
    for day in range(out.size):
        if multiplicative:
            out[day] = anomalies[day] * factors[day] * trends[day]
        else:
            out[day] = anomalies[day] + factors[day] + trends[day]


@inlined
def find_factors(anomalies, rows, tables, factors):
    """Find the factor of each of a few successive days: beyond the day's quantiles its end's, otherwise the nearest."""
    counts, known_x, known_factors, middles, edges, edge_factors = tables
    for day in range(rows.size):
        x, row = anomalies[day], np.uint64(rows[day])
        if x < edges[row, 0]:
            factors[day] = edge_factors[row, 0]
        elif x > edges[row, 1]:
            factors[day] = edge_factors[row, 1]
        else:
            place = np.uint64(0)
            if counts[row] > 0:
                place = nearest_in_row(x, row, counts, known_x, middles)
                factors[day] = known_factors[row, place]
            if counts[row] == 0 or abs(x - known_x[row, place]) > 1:
                factors[day] = nearest_factor(x, rows[day], counts, known_x, known_factors, middles)


@inlined
def adjust_run(
    scaled, means, centres, first_group, n_groups, kind_of_years, complete, plan, tables, multiplicative, out
):
    """Adjust the days of one run, a block of days of year at a time."""
    block = np.empty((centres.size + plan.weights.shape[2] + 4, BLOCK))
    trends = np.empty((centres.size, BLOCK))
    anomalies, factors = np.empty(BLOCK), np.empty(BLOCK)
    for start in range(0, n_groups, BLOCK):
        size = min(BLOCK, n_groups - start)
        rows = plan.table_rows[first_group + start : first_group + start + size]
        block_trends(means, centres + start, plan, kind_of_years, complete, block, trends)
        for year in range(centres.size):
            first = centres[year] + start
            remove_trend(scaled[first : first + size], trends[year], multiplicative, anomalies)
            find_factors(anomalies, rows, tables, factors)
            put_back(anomalies, factors, trends[year], multiplicative, out[first : first + size])


@compiled
def adjust_cells(simulation, factors, nearest, historical_quantiles, scaling, plan, multiplicative, out):
    """Adjust each cell; scratch is per call and stays in the second-level cache."""
    n_times, half = simulation.shape[1], plan.window // 2
    n_rows, n_quantiles = factors.shape[1] + 2, factors.shape[2]
    size = (n_quantiles + 15) // 16 * 16
    counts = np.empty(n_rows, dtype=np.int64)
    known_x = np.empty((n_rows, n_quantiles), dtype=historical_quantiles.dtype)
    known_factors = np.empty((n_rows, n_quantiles), dtype=factors.dtype)
    middles = np.empty((n_rows, size), dtype=np.float32)
    edges = np.empty((n_rows, 2))
    edge_factors = np.empty((n_rows, 2))
    tables = (counts, known_x, known_factors, middles, edges, edge_factors)
    scaled = np.empty(n_times, dtype=simulation.dtype)
    means = np.empty(n_times, dtype=simulation.dtype)
    padded = np.empty(n_times + 2 * half, dtype=simulation.dtype)
    for cell in range(simulation.shape[0]):
        fill_tables(
            factors[cell],
            nearest[cell],
            historical_quantiles[cell],
            counts,
            known_x,
            known_factors,
            middles,
            edges,
            edge_factors,
        )
        scale_series(simulation[cell], scaling[cell], plan.scaling_rows, multiplicative, scaled)
        complete = window_means(scaled, half, plan.window, padded, means)
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
                out[cell],
            )
