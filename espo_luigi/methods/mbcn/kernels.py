"""Kernels of MBCn (Cannon 2018): a cell's variables together, in samples of days, in windows of years."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from espo_luigi.methods.dqm.kernels.adapting import count_kept, draw_sorted, needs_adapting
from espo_luigi.methods.dqm.kernels.bits import trailing_zeros
from espo_luigi.methods.dqm.kernels.compiled import compiled, inlined
from espo_luigi.methods.dqm.kernels.preparation import NEW_VALUE, mixed, stream
from espo_luigi.methods.dqm.kernels.quantiles import copy_to, quantiles_of_sorted
from espo_luigi.methods.dqm.kernels.ranking import spread
from espo_luigi.methods.dqm.kernels.sorting import sort_cell
from espo_luigi.methods.mbcn.bins import (
    Bins,
    count_before_bins,
    empty_bins,
    fill_bins,
    level_from,
    quantiles_in_bins,
    rank_in_bins,
    shift_by_rank,
    steps_of,
)

_ONE = np.uint64(1)
_LOW_SIX = np.uint64(63)
_DAYS = 256
_MOVES = 16  # of insertion, for each value; then sorting is faster


class Groups(NamedTuple):
    """The time steps of samples, and whether each is of the group's own days; sample i begins at ``starts[i]``."""

    times: np.ndarray
    central: np.ndarray
    starts: np.ndarray


class Univariates(NamedTuple):
    """How each variable is adjusted by itself, (variable) and levels (variable, level); NaN for what is not done."""

    multiplicative: np.ndarray
    levels: np.ndarray
    n_levels: np.ndarray
    thresholds: np.ndarray
    tail_factors: np.ndarray
    small: np.ndarray


class Sorted(NamedTuple):
    """Series (variable, place), members end to end: as they are, where all are there, their ranks, and sorted."""

    series: np.ndarray
    complete: np.ndarray
    ranks: np.ndarray
    values: np.ndarray


class Trained(NamedTuple):
    """A variable's univariate training: factors, and what adjusting needs besides.

    ``known`` has the levels whose factors are finite: that of a historical 0 is not. ``dry`` has the shares of values
    up to the threshold in reference and historical, and the highest new value.
    """

    known: np.ndarray
    factors: np.ndarray
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
    complete = np.ones(size * length, dtype=np.bool_)
    for variable in range(given.shape[0]):
        for member in range(size):
            part = series[variable, member * length : (member + 1) * length]
            copy_to(part, given[variable, cell, members.start + member])
        sort_cell(series[variable], keys, ranks[variable], values[variable])
        for place in range(size * length):
            complete[place] &= not np.isnan(series[variable, place])
    return Sorted(series, complete, ranks, values)


@inlined
def take_sample(complete, length, span, groups, number, places, kept):
    """Fill ``places`` with those of a sample's days that have all variables, and ``kept`` with the days to keep.

    The sample's times are counted from the span's first in each member's ``length``. Returns how many there are.
    """
    count, n_kept = 0, 0
    for start in range(0, complete.size, length):
        for index in range(groups.starts[number], groups.starts[number + 1]):
            time = span[0] + groups.times[index]
            if complete[start + time]:
                places[count] = start + time
                if groups.central[index] and span[2] <= time and time < span[3]:
                    kept[n_kept] = count
                    n_kept += 1
                count += 1
    return count, n_kept


@inlined
def product(one, other):
    """Return the scalar product, by four sums that do not wait for each other."""
    first, second, third, fourth = 0.0, 0.0, 0.0, 0.0
    whole = one.size - one.size % 4
    for place in range(0, whole, 4):
        first += one[place] * other[place]
        second += one[place + 1] * other[place + 1]
        third += one[place + 2] * other[place + 2]
        fourth += one[place + 3] * other[place + 3]
    for place in range(whole, one.size):
        first += one[place] * other[place]
    return (first + second) + (third + fourth)


@inlined
def standardised(series, places, ones, out):
    """Fill ``out`` (variable, day) with a sample's values by their mean and standard deviation; constant ones are 0."""
    size = places.size
    for variable in range(out.shape[0]):
        own, row = series[variable], out[variable]
        for day in range(size):
            row[day] = own[places[day]]
        mean = product(row, ones) / size
        for day in range(size):
            row[day] -= mean
        deviation = np.sqrt(product(row, row) / size)
        # Of equal values, the mean may be off by a rounding.
        factor = 1 / deviation if deviation > 1e-12 * abs(mean) else 0.0
        for day in range(size):
            row[day] *= factor


@inlined
def rotate(rotation, values, room):
    """Rotate values (variable, day) in place, a few days at a time, which ``room`` has room for."""
    n_variables, size = values.shape
    for start in range(0, size, _DAYS):
        days = min(_DAYS, size - start)
        for variable in range(n_variables):
            own, part = values[variable, start : start + days], room[variable]
            for day in range(days):
                part[day] = own[day]
        one, other, third = room[0], room[1], room[min(2, n_variables - 1)]
        for axis in range(n_variables):
            row, weights = values[axis, start : start + days], rotation[axis]
            first, second = weights[0], weights[1]
            last = weights[2] if n_variables > 2 else 0.0
            for day in range(days):
                row[day] = first * one[day] + second * other[day] + last * third[day]
            for variable in range(3, n_variables):
                part, weight = room[variable], weights[variable]
                for day in range(days):
                    row[day] += weight * part[day]


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
        rotate(turns[number], reference[0], reference[1])
        rotate(turns[number], historical[0], historical[1])
        for axis in range(factors.shape[1]):
            fill_bins(reference[0, axis], bins)
            quantiles_in_bins(reference[0, axis], bins, levels, own)
            fill_bins(historical[0, axis], bins)
            quantiles_in_bins(historical[0, axis], bins, levels, other)
            for level in range(levels.size):
                factors[number, axis, level] = own[level] - other[level]
            factors[number, axis, levels.size] = factors[number, axis, levels.size - 1]
            shift_by_rank(historical[0, axis], bins, steps, factors[number, axis])


@inlined
def adjust_rotated(samples, turns, steps, bins, factors):
    """Rotate and adjust a standardised sample, ``samples[0]``; return the place of the result, rotated back."""
    for number in range(turns.shape[0]):
        rotate(turns[number], samples[0], samples[1])
        if number < factors.shape[0]:
            for axis in range(factors.shape[1]):
                fill_bins(samples[0, axis], bins)
                shift_by_rank(samples[0, axis], bins, steps, factors[number, axis])
    return 0


@inlined
def sort_sample(source, variable, places, room, out, order):
    """Fill ``out`` with a sample's values, ascending, and ``order``, unless it is empty, with their days."""
    ranks, values, bits, place_of = source.ranks[variable], source.values[variable], room.bits, room.place_of
    n_words = (ranks.size >> 6) + 1
    bits[:n_words] = 0
    for day in range(places.size):
        rank = ranks[places[day]]
        bits[rank >> 6] |= _ONE << (np.uint64(rank) & _LOW_SIX)
        if order.size > 0:
            place_of[rank] = day
    count = 0
    for word in range(n_words):
        rest = bits[word]
        while rest:
            rank = (word << 6) + np.int64(trailing_zeros(rest))
            out[count] = values[rank]
            if order.size > 0:
                order[count] = place_of[rank]
            count += 1
            rest &= rest - _ONE


@inlined
def order_nearly(values, order):
    """Sort values that are nearly sorted, and ``order`` with them, unless it is empty."""
    left = _MOVES * values.size
    for index in range(1, values.size):
        value, place = values[index], index
        while place > 0 and values[place - 1] > value:
            values[place] = values[place - 1]
            place -= 1
        values[place] = value
        if order.size > 0:
            day = order[index]
            for later in range(index, place, -1):
                order[later] = order[later - 1]
            order[place] = day
        left -= index - place
        if left < 0:
            break
    if left < 0:
        sorting = np.argsort(values)
        values[:] = values[sorting].copy()
        if order.size > 0:
            order[:] = order[sorting].copy()


@inlined
def adapt_sorted(values, order, threshold, dry, draws):
    """Make dry values of a sorted sample wet, in the proportion of the training (Themeßl et al. 2012)."""
    dry_reference, dry_historical, top = dry
    if not needs_adapting(dry_reference, dry_historical):
        return
    n_dry = np.searchsorted(values, threshold, side="right")
    kept = count_kept(values.size, n_dry, (dry_reference / dry_historical) * (n_dry / values.size))
    if kept < n_dry:
        scratch, starts = np.empty((2, n_dry - kept)), np.empty(n_dry - kept + 1, dtype=np.int32)
        draw_sorted(draws[0], draws[1], threshold, top, scratch, starts, values[kept:n_dry])
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
def train_alone(reference, historical, order, variable, how, draws):
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
        adapt_sorted(historical, order, threshold, dry, draws)
    quantiles_of_sorted(historical, levels, other)
    quantiles_of_sorted(reference, levels, own)
    factors = own / other if multiplicative else own - other
    for level in range(levels.size):
        if multiplicative and other[level] < how.small[variable] and factors[level] > 2:
            factors[level] = 2
    valid = np.isfinite(factors)
    return Trained(levels[valid], factors[valid], limit, dry)


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
        if not value > trained.limit:
            value = correct(value, factor_between(share, level, trained.known, trained.factors, linear), multiplicative)
        for place in range(start, end):
            values[place] = value
        start = end


class Work(NamedTuple):
    """What is done to a pool's members: `successive` rotations, the arguments of `transform.adjust`, and the seed."""

    turns: np.ndarray
    levels: np.ndarray
    linear: bool
    how: Univariates
    plan: NamedTuple
    seed: np.uint64


class Room(NamedTuple):
    """Arrays that are used again for each sample: as long as the largest, or (``bits``, ``place_of``) as a series."""

    bins: Bins
    before: np.ndarray
    bits: np.ndarray
    place_of: np.ndarray
    ones: np.ndarray
    places: np.ndarray
    kept: np.ndarray
    values: np.ndarray
    order: np.ndarray


@inlined
def make_room(longest, most, with_order):
    """Return room for series and samples of up to so many values."""
    bins = empty_bins(most)
    return Room(
        bins,
        np.empty(bins.heads.size, dtype=np.int64),
        np.empty((longest >> 6) + 1, dtype=np.uint64),
        np.empty(longest + 64 if with_order else 0, dtype=np.int32),
        np.ones(most),
        np.empty((2, most), dtype=np.int64),
        np.empty(most, dtype=np.int64),
        np.empty((2, most)),
        np.empty(most if with_order else 0, dtype=np.int64),
    )


@inlined
def adjust_alone(values, order, variable, how, trained, linear, draws):
    """Adjust a variable's sorted sample by itself, and sort it again."""
    multiplicative, threshold = how.multiplicative[variable], how.thresholds[variable]
    if not np.isnan(threshold):
        adapt_sorted(values, order, threshold, trained.dry, draws)
    if trained.known.size > 0:
        adjust_by_rank(values, trained, multiplicative, linear)
        order_nearly(values, order)


@inlined
def draws_of(seed, variable, number):
    """Return the start of a variable's draws, and the number of the sample."""
    return stream(mixed(seed + np.uint64(variable + 1)), NEW_VALUE), number


@inlined
def trace(traced, places, kept, rotated, values, order, room):
    """Fill what is traced of a sample's kept days, (5, 1, member, time); ranks are from 1."""
    before = np.empty(order.size, dtype=np.int64)
    for rank in range(order.size):
        before[order[rank]] = rank
    for day in kept:
        rank = rank_in_bins(rotated, day, room.before, room.bins)
        out = traced[:, 0, places[day] // traced.shape[3], places[day] % traced.shape[3]]
        out[0], out[1], out[2] = values[before[day]], before[day] + 1, rank + 1
        out[3], out[4] = places[order[rank]], order.size


@inlined
def train_group(reference, historical, group, work, room, factors):
    """Fill a group's rotated factors, and return the univariate training of each variable; none without days."""
    length, n_variables, number = reference.complete.size, factors.shape[1], group * (work.plan.spans.shape[0] + 1)
    whole, groups = np.array([0, length, 0, length], dtype=np.int64), work.plan.calibration
    n_observed = take_sample(reference.complete, length, whole, groups, group, room.places[0], room.kept)[0]
    n_modelled = take_sample(historical.complete, length, whole, groups, group, room.places[1], room.kept)[0]
    alone, order = [], np.empty(0, dtype=np.int64)
    if min(n_observed, n_modelled) == 0:
        return alone
    places, others = room.places[0, :n_observed], room.places[1, :n_modelled]
    observed, modelled = np.empty((2, n_variables, n_observed)), np.empty((2, n_variables, n_modelled))
    standardised(reference.series, places, room.ones[:n_observed], observed[0])
    standardised(historical.series, others, room.ones[:n_modelled], modelled[0])
    steps = steps_of(n_modelled, work.levels, work.linear)
    train_rotated(observed, modelled, work.turns, work.levels, steps, room.bins, factors)
    for variable in range(n_variables):
        own, other = room.values[0, :n_observed], room.values[1, :n_modelled]
        sort_sample(reference, variable, places, room, own, order)
        sort_sample(historical, variable, others, room, other, order)
        alone.append(train_alone(own, other, order, variable, work.how, draws_of(work.seed, variable, number)))
    return alone


@inlined
def adjust_sample(simulation, places, kept, rotated, alone, number, work, room, out, traced):
    """Adjust each variable of a sample by itself, and give its values to the kept days by their rotated ranks."""
    size, length = places.size, out.shape[2]
    for variable in range(rotated.shape[0]):
        values, order, draws = room.values[0, :size], room.order[:size], draws_of(work.seed, variable, number)
        sort_sample(simulation, variable, places, room, values, order)
        adjust_alone(values, order, variable, work.how, alone[variable], work.linear, draws)
        fill_bins(rotated[variable], room.bins)
        count_before_bins(room.bins, room.before)
        for day in kept:
            rank, place = rank_in_bins(rotated[variable], day, room.before, room.bins), places[day]
            out[variable, place // length, place % length] = values[rank]
        if traced.shape[2] > 0:
            trace(traced[:, variable], places, kept, rotated[variable], values, order, room)


@inlined
def adjust_group(reference, historical, simulation, group, work, room, factors, out, traced):
    """Adjust a group's samples, one in each window of years."""
    plan, length, n_variables = work.plan, out.shape[2], out.shape[0]
    n_groups, n_spans = plan.calibration.starts.size - 1, plan.spans.shape[0]
    alone = train_group(reference, historical, group, work, room, factors)
    steps, samples = steps_of(0, work.levels, work.linear), np.empty((2, n_variables, 0))
    for number in range(n_spans if len(alone) > 0 else 0):
        span, which = plan.spans[number], plan.spans[number, 4] * n_groups + group
        size, n_kept = take_sample(simulation.complete, length, span, plan.simulation, which, room.places[0], room.kept)
        if n_kept == 0:
            continue
        if samples.shape[2] != size:
            samples, steps = np.empty((2, n_variables, size)), steps_of(size, work.levels, work.linear)
        places, kept = room.places[0, :size], room.kept[:n_kept]
        standardised(simulation.series, places, room.ones[:size], samples[0])
        rotated = samples[adjust_rotated(samples, work.turns, steps, room.bins, factors)]
        of_sample = group * (n_spans + 1) + number + 1
        adjust_sample(simulation, places, kept, rotated, alone, of_sample, work, room, out, traced)


@inlined
def adjust_pool(reference, historical, simulation, work, out, traced):
    """Adjust a cell's members, sorted as a single series, (variable, member, time), group by group."""
    starts = work.plan.calibration.starts
    most = out.shape[1] * max(np.diff(starts).max(), np.diff(work.plan.simulation.starts).max())
    longest = max(simulation.complete.size, historical.complete.size)
    room = make_room(longest, most, traced.shape[2] > 0)
    factors = np.empty((work.turns.shape[0] - 1, out.shape[0], work.levels.size + 1))
    for group in range(starts.size - 1):
        adjust_group(reference, historical, simulation, group, work, room, factors, out, traced)


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
                Work(successive(rotations[cell, pool]), levels, linear, how, plan, seeds[cell, pool]),
                out[:, cell, members],
                traced[:, :, min(cell, traced.shape[2]) : cell + 1, members],
            )
