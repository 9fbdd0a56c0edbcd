"""Kernels of MBCn (Cannon 2018): a cell's variables together, in samples of days, in windows of years."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from espo_luigi.methods.dqm.kernels.adapting import count_kept, draw_sorted, needs_adapting
from espo_luigi.methods.dqm.kernels.bins import (
    count_before_bins,
    empty_bins,
    fill_bins,
    level_from,
    quantiles_in_bins,
    rank_in_bins,
    shift_by_rank,
    steps_of,
)
from espo_luigi.methods.dqm.kernels.bits import trailing_zeros
from espo_luigi.methods.dqm.kernels.compiled import compiled, inlined
from espo_luigi.methods.dqm.kernels.preparation import NEW_VALUE, mixed, stream
from espo_luigi.methods.dqm.kernels.quantiles import copy_to, quantiles_of_sorted
from espo_luigi.methods.dqm.kernels.ranking import spread
from espo_luigi.methods.dqm.kernels.sorting import sort_cell

_ONE = np.uint64(1)
_LOW_SIX = np.uint64(63)
_MOVES = 16  # of insertion, for each value; then sorting is faster


class Groups(NamedTuple):
    """The time steps of samples, and whether each is of the group's own days; sample i begins at ``starts[i]``."""

    times: np.ndarray
    central: np.ndarray
    starts: np.ndarray


class Univariates(NamedTuple):
    """How each variable is adjusted by itself, (variable) and levels (variable, level); NaN for what is not done.

    ``detrend`` is the degree of the trend of detrended quantile mapping, -1 for quantile delta mapping.
    """

    multiplicative: np.ndarray
    levels: np.ndarray
    n_levels: np.ndarray
    thresholds: np.ndarray
    tail_factors: np.ndarray
    detrend: int


class Sorted(NamedTuple):
    """Series (variable, place), members end to end: as they are, their ranks, and sorted."""

    series: np.ndarray
    ranks: np.ndarray
    values: np.ndarray


class Trained(NamedTuple):
    """A variable's univariate training: factors at levels or historical quantiles, and what adjusting needs besides.

    ``known`` has the levels or quantiles without those whose factors are NaN. ``dry`` has the shares of values up to
    the threshold in reference and historical, and the highest new value.
    """

    known: np.ndarray
    factors: np.ndarray
    scaling: float
    limit: float
    dry: tuple[float, float, float]


@inlined
def sort_series(given, cell, members):
    """Sort the members (variable, cell, member, time) of a cell as a single series of each variable."""
    size = members.stop - members.start
    length = given.shape[-1]
    series = np.empty((given.shape[0], size * length), dtype=given.dtype)
    ranks = np.empty(series.shape, dtype=np.int32)
    values = np.empty(series.shape, dtype=given.dtype)
    keys = np.empty((2, size * length), dtype=np.uint64)
    for variable in range(given.shape[0]):
        for member in range(size):
            part = series[variable, member * length : (member + 1) * length]
            copy_to(part, given[variable, cell, members.start + member])
        sort_cell(series[variable], keys, ranks[variable], values[variable])
    return Sorted(series, ranks, values)


@inlined
def take_sample(series, length, span, groups, number, places, kept):
    """Fill ``places`` with those of a sample's days that have all variables, and ``kept`` with the days to keep.

    The sample's times are counted from the span's first in each member's ``length``. Returns how many there are.
    """
    count, n_kept = 0, 0
    for start in range(0, series.shape[1], length):
        for index in range(groups.starts[number], groups.starts[number + 1]):
            time = span[0] + groups.times[index]
            complete = True
            for variable in range(series.shape[0]):
                complete &= not np.isnan(series[variable, start + time])
            if complete:
                places[count] = start + time
                if groups.central[index] and span[2] <= time and time < span[3]:
                    kept[n_kept] = count
                    n_kept += 1
                count += 1
    return count, n_kept


@inlined
def standardised(series, places, out):
    """Fill ``out`` (variable, day) with a sample's values by their mean and standard deviation; constant ones are 0."""
    size = places.size
    for variable in range(out.shape[0]):
        own, row = series[variable], out[variable]
        total = 0.0
        for day in range(size):
            row[day] = own[places[day]]
            total += row[day]
        mean, squares = total / size, 0.0
        for day in range(size):
            row[day] -= mean
            squares += row[day] * row[day]
        deviation = np.sqrt(squares / size)
        factor = 1 / deviation if deviation > 0 else 0.0
        for day in range(size):
            row[day] *= factor


@inlined
def rotate(rotation, values, out):
    """Fill ``out`` (variable, day) with the rotated values."""
    for axis in range(out.shape[0]):
        row, one, other = out[axis], values[0], values[1]
        first, second = rotation[axis, 0], rotation[axis, 1]
        for day in range(row.size):
            row[day] = first * one[day] + second * other[day]
        for variable in range(2, out.shape[0]):
            own, weight = values[variable], rotation[axis, variable]
            for day in range(row.size):
                row[day] += weight * own[day]


@inlined
def successive(rotations):
    """Return the rotations from each one's axes to the next one's, and the last back."""
    made = np.empty((rotations.shape[0] + 1, *rotations.shape[1:]))
    for number in range(made.shape[0]):
        for row in range(made.shape[1]):
            for column in range(made.shape[1]):
                total = 0.0
                for axis in range(made.shape[1]):
                    later = rotations[number, row, axis] if number < rotations.shape[0] else np.float64(row == axis)
                    earlier = rotations[number - 1, column, axis] if number > 0 else np.float64(column == axis)
                    total += later * earlier
                made[number, row, column] = total
    return made


@inlined
def train_rotated(reference, historical, turns, levels, steps, bins, factors):
    """Fill the factors (rotation, variable, level) of the rotated and standardised samples, (2, variable, day) each."""
    own, other = np.empty((2, levels.size))
    for number in range(turns.shape[0] - 1):
        now, then = number % 2, 1 - number % 2
        rotate(turns[number], reference[now], reference[then])
        rotate(turns[number], historical[now], historical[then])
        for axis in range(factors.shape[1]):
            fill_bins(reference[then, axis], bins)
            quantiles_in_bins(reference[then, axis], bins, levels, own)
            fill_bins(historical[then, axis], bins)
            quantiles_in_bins(historical[then, axis], bins, levels, other)
            for level in range(levels.size):
                factors[number, axis, level] = own[level] - other[level]
            factors[number, axis, levels.size] = factors[number, axis, levels.size - 1]
            shift_by_rank(historical[then, axis], bins, steps, factors[number, axis])


@inlined
def adjust_rotated(samples, turns, steps, bins, factors):
    """Rotate and adjust a standardised sample, ``samples[0]``; return the place of the result, rotated back."""
    for number in range(turns.shape[0]):
        now, then = number % 2, 1 - number % 2
        rotate(turns[number], samples[now], samples[then])
        if number < factors.shape[0]:
            for axis in range(factors.shape[1]):
                fill_bins(samples[then, axis], bins)
                shift_by_rank(samples[then, axis], bins, steps, factors[number, axis])
    return turns.shape[0] % 2


@inlined
def sort_sample(ranks, values, places, bits, place_of, out, order):
    """Fill ``out`` with a sample's values, ascending, and ``order`` with their days; two arguments are room."""
    bits[:] = 0
    for day in range(places.size):
        rank = ranks[places[day]]
        bits[rank >> 6] |= _ONE << (np.uint64(rank) & _LOW_SIX)
        place_of[rank] = day
    count = 0
    for word in range(bits.size):
        rest = bits[word]
        while rest:
            rank = (word << 6) + np.int64(trailing_zeros(rest))
            out[count], order[count] = values[rank], place_of[rank]
            count += 1
            rest &= rest - _ONE


@inlined
def order_nearly(values, order):
    """Sort values that are nearly sorted, and ``order`` with them."""
    left = _MOVES * values.size
    for index in range(1, values.size):
        value, day, place = values[index], order[index], index
        while place > 0 and values[place - 1] > value:
            values[place], order[place] = values[place - 1], order[place - 1]
            place -= 1
        values[place], order[place] = value, day
        left -= index - place
        if left < 0:
            break
    if left < 0:
        sorting = np.argsort(values)
        values[:], order[:] = values[sorting].copy(), order[sorting].copy()


@inlined
def adapt_sorted(values, order, threshold, dry, start, number):
    """Make dry values of a sorted sample wet, in the proportion of the training (Themeßl et al. 2012)."""
    dry_reference, dry_historical, top = dry
    if not needs_adapting(dry_reference, dry_historical):
        return
    n_dry = np.searchsorted(values, threshold, side="right")
    kept = count_kept(values.size, n_dry, (dry_reference / dry_historical) * (n_dry / values.size))
    if kept < n_dry:
        scratch, starts = np.empty((2, n_dry - kept)), np.empty(n_dry - kept + 1, dtype=np.int32)
        draw_sorted(start, number, threshold, top, scratch, starts, values[kept:n_dry])
        order_nearly(values, order)


@inlined
def correct(value, factor, multiplicative):
    """Apply a factor."""
    return value * factor if multiplicative else value + factor


@inlined
def factor_between(place, level, known, factors, linear):
    """Return the factor at a place whose level is found, as scipy's interp1d."""
    if not linear or place <= known[0] or level == known.size - 1:
        return factors[level]
    slope = (factors[level + 1] - factors[level]) / (known[level + 1] - known[level])
    return slope * (place - known[level]) + factors[level]


@inlined
def train_alone(reference, historical, order, variable, how, start, number):
    """Train a variable on sorted samples; ``historical`` is changed."""
    levels = how.levels[variable, : how.n_levels[variable]]
    multiplicative, threshold = how.multiplicative[variable], how.thresholds[variable]
    own, other = np.empty(levels.size), np.empty(levels.size)
    quantiles_of_sorted(historical, levels, other)
    limit = np.inf
    if not np.isnan(how.tail_factors[variable]):
        limit = how.tail_factors[variable] * other[levels.size - 1]
    dry = (np.nan, np.nan, np.nan)
    if not np.isnan(threshold):
        share = np.searchsorted(historical, threshold, side="right") / historical.size
        top = np.empty(1)
        quantiles_of_sorted(reference, np.full(1, share), top)
        dry = (np.searchsorted(reference, threshold, side="right") / reference.size, share, top[0])
        adapt_sorted(historical, order, threshold, dry, start, number)
    scaling = 0.0
    if how.detrend >= 0:
        means = reference.mean(), historical.mean()
        scaling = means[0] / means[1] if multiplicative else means[0] - means[1]
        quantiles_of_sorted(historical * (1 / means[1]) if multiplicative else historical - means[1], levels, other)
        quantiles_of_sorted(reference * (1 / means[0]) if multiplicative else reference - means[0], levels, own)
    else:
        quantiles_of_sorted(historical, levels, other)
        quantiles_of_sorted(reference, levels, own)
    factors = own / other if multiplicative else own - other
    valid = ~np.isnan(factors)
    known = other if how.detrend >= 0 else levels
    return Trained(known[valid], factors[valid], scaling, limit, dry)


@inlined
def adjust_by_rank(values, trained, multiplicative, linear):
    """Adjust a sorted sample by quantile delta mapping; equal values have their mean rank."""
    size, level = values.size, 0
    end, start = 1, size - 1
    while end < size and values[end] == values[0]:
        end += 1
    while start > 0 and values[start - 1] == values[start]:
        start -= 1
    least, most = (1 + end) / 2 / size, (start + 1 + size) / 2 / size
    start = 0
    while start < size:
        end, value = start + 1, values[start]
        while end < size and values[end] == value:
            end += 1
        share = spread((start + 1 + end) / 2 / size, least, most)
        level = level_from(level, share, trained.known, linear)
        factor = factor_between(share, level, trained.known, trained.factors, linear)
        adjusted = value if value > trained.limit else correct(value, factor, multiplicative)
        values[start:end] = adjusted
        start = end


@inlined
def trend_of(values, times, degree):
    """Return the mean time, the mean and the slope of a sample."""
    middle, mean = times.mean(), values.mean()
    slope, spread_of_times = 0.0, 0.0
    for day in range(values.size):
        slope += (times[day] - middle) * (values[day] - mean)
        spread_of_times += (times[day] - middle) ** 2
    return middle, mean, slope / spread_of_times if degree > 0 and spread_of_times > 0 else 0.0


@inlined
def adjust_detrended(values, order, times, trained, multiplicative, linear, degree):
    """Adjust a sorted sample by detrended quantile mapping; ``times`` are those of the days of ``order``."""
    own_times = times[order]
    scaled = values * trained.scaling if multiplicative else values + trained.scaling
    middle, mean, slope = trend_of(scaled, own_times, degree)
    for index in range(values.size):
        trend = mean + slope * (own_times[index] - middle)
        detrended = scaled[index] * (1 / trend) if multiplicative else scaled[index] - trend
        level = level_from(0, detrended, trained.known, linear)
        factor = factor_between(detrended, level, trained.known, trained.factors, linear)
        if not values[index] > trained.limit:
            values[index] = correct(correct(detrended, factor, multiplicative), trend, multiplicative)
    order_nearly(values, order)


@inlined
def largest(groups, members):
    """Return the size of the largest sample."""
    return members * np.diff(groups.starts).max()


@inlined
def trace(traced, variable, cell, places, kept, ranks, values, order):
    """Fill what is traced of a sample's kept days; ``ranks`` (from 0) are those after the rotations."""
    length = traced.shape[-1]
    before = np.empty(order.size, dtype=np.int64)
    before[order] = np.arange(order.size)
    for index in range(kept.size):
        day = kept[index]
        out = traced[:, variable, cell, places[day] // length, places[day] % length]
        out[0], out[1], out[2] = values[before[day]], before[day] + 1, ranks[index] + 1
        out[3], out[4] = places[order[ranks[index]]], order.size


@inlined
def adjust_alone(values, order, places, length, variable, how, trained, linear, start, number):
    """Adjust a variable's sorted sample by itself, and sort it again."""
    multiplicative, threshold = how.multiplicative[variable], how.thresholds[variable]
    if not np.isnan(threshold):
        adapt_sorted(values, order, threshold, trained.dry, start, number)
    if trained.known.size == 0:
        values[:] = np.nan
    elif how.detrend >= 0:
        times = np.empty(places.size)
        for day in range(places.size):
            times[day] = places[day] % length
        adjust_detrended(values, order, times, trained, multiplicative, linear, how.detrend)
    else:
        adjust_by_rank(values, trained, multiplicative, linear)
        order_nearly(values, order)


@inlined
def adjust_pool(  # noqa: C901
    reference, historical, simulation, length, turns, levels, linear, how, plan, seed, out, traced, cell, first_member
):
    """Adjust a cell's members, sorted as a single series, group by group, in each window of years."""
    n_variables, n_groups = simulation.series.shape[0], plan.calibration.starts.size - 1
    calibration_length = reference.series.shape[1]
    whole = np.array([0, calibration_length, 0, calibration_length], dtype=np.int64)
    n_pooled = historical.series.shape[1] // calibration_length
    most_trained = largest(plan.calibration, n_pooled)
    most = max(most_trained, largest(plan.simulation, n_pooled))
    room, places, kept = empty_bins(most), np.empty((2, most), dtype=np.int64), np.empty(most, dtype=np.int64)
    bits = np.empty((max(simulation.series.shape[1], historical.series.shape[1]) >> 6) + 1, dtype=np.uint64)
    place_of, before = np.empty(bits.size << 6, dtype=np.int32), np.empty(room.heads.size, dtype=np.int64)
    factors = np.empty((turns.shape[0] - 1, n_variables, levels.size + 1))
    trained_steps, steps = steps_of(0, levels, linear), steps_of(0, levels, linear)
    samples = np.empty((2, n_variables, 0))
    values, order, ranks = np.empty(most), np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64)
    others, unused = np.empty(most), np.empty(most, dtype=np.int64)
    for group in range(n_groups):
        n_observed, _ = take_sample(
            reference.series, calibration_length, whole, plan.calibration, group, places[0], kept
        )
        n_modelled, _ = take_sample(
            historical.series, calibration_length, whole, plan.calibration, group, places[1], kept
        )
        if n_observed == 0 or n_modelled == 0:
            continue
        if trained_steps.lower.size != 2 * n_modelled + 1:
            trained_steps = steps_of(n_modelled, levels, linear)
        observed, modelled = np.empty((2, n_variables, n_observed)), np.empty((2, n_variables, n_modelled))
        standardised(reference.series, places[0, :n_observed], observed[0])
        standardised(historical.series, places[1, :n_modelled], modelled[0])
        train_rotated(observed, modelled, turns, levels, trained_steps, room, factors)
        alone = []
        for variable in range(n_variables):
            start = stream(mixed(seed + np.uint64(variable + 1)), NEW_VALUE)
            sort_sample(
                reference.ranks[variable],
                reference.values[variable],
                places[0, :n_observed],
                bits,
                place_of,
                others,
                unused,
            )
            sort_sample(
                historical.ranks[variable],
                historical.values[variable],
                places[1, :n_modelled],
                bits,
                place_of,
                values,
                order,
            )
            alone.append(
                train_alone(
                    others[:n_observed],
                    values[:n_modelled],
                    order[:n_modelled],
                    variable,
                    how,
                    start,
                    group * (1 + len(plan.spans)),
                )
            )
        for number in range(plan.spans.shape[0]):
            span = plan.spans[number]
            size, n_kept = take_sample(
                simulation.series, length, span, plan.simulation, span[4] * n_groups + group, places[0], kept
            )
            if n_kept == 0:
                continue
            own = places[0, :size]
            if samples.shape[2] != size:
                samples, steps = np.empty((2, n_variables, size)), steps_of(size, levels, linear)
            standardised(simulation.series, own, samples[0])
            rotated = samples[adjust_rotated(samples, turns, steps, room, factors)]
            for variable in range(n_variables):
                start = stream(mixed(seed + np.uint64(variable + 1)), NEW_VALUE)
                sort_sample(simulation.ranks[variable], simulation.values[variable], own, bits, place_of, values, order)
                adjust_alone(
                    values[:size], order[:size], own, length, variable, how, alone[variable], linear, start,
                    group * (1 + len(plan.spans)) + number + 1,
                )  # fmt: skip
                fill_bins(rotated[variable], room)
                count_before_bins(room, before)
                for index in range(n_kept):
                    ranks[index] = rank_in_bins(rotated[variable], kept[index], before, room)
                    place = own[kept[index]]
                    out[variable, cell, first_member + place // length, place % length] = values[ranks[index]]
                if traced.shape[2] > 0:
                    trace(
                        traced[:, :, :, first_member:], variable, cell, own, kept[:n_kept], ranks, values[:size],
                        order[:size],
                    )  # fmt: skip


@compiled
def adjust_together(reference, historical, simulation, rotations, levels, linear, how, plan, seeds, out, traced):
    """Adjust the members (variable, cell, member, time) of each cell; the arguments are those of `transform.adjust`."""
    pools = rotations.shape[1]
    in_pool = simulation.shape[2] // pools
    for cell in range(simulation.shape[1]):
        observed = sort_series(reference, cell, slice(0, 1))
        for pool in range(pools):
            members = slice(pool * in_pool, (pool + 1) * in_pool)
            adjust_pool(
                observed,
                sort_series(historical, cell, members),
                sort_series(simulation, cell, members),
                simulation.shape[3],
                successive(rotations[cell, pool]),
                levels,
                linear,
                how,
                plan,
                seeds[cell, pool],
                out,
                traced,
                cell,
                members.start,
            )
