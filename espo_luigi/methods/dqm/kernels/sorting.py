"""Kernels that sort the values of one cell and rank them: a radix sort of their bits."""

from __future__ import annotations

import numpy as np

from espo_luigi.methods.dqm.kernels.compiled import inlined

_ONE = np.uint64(1)
_DIGIT_BITS = 11
_N_DIGITS = 2048
_DIGIT_MASK = np.uint64(_N_DIGITS - 1)


@inlined
def sortable_keys(values, keys, order):
    """Fill ``keys`` with integers that sort like ``values``, ``order`` with indices; return how many are not NaN."""
    bits = values.view(keys.dtype)
    sign = _ONE << np.uint64(8 * keys.itemsize - 1)
    n_valid = 0
    for index in range(values.size):
        if not np.isnan(values[index]):
            key = np.uint64(bits[index])
            if values[index] == 0:
                keys[n_valid] = sign
            elif key & sign:
                keys[n_valid] = ~key
            else:
                keys[n_valid] = key | sign
            order[n_valid] = index
            n_valid += 1
    return n_valid


@inlined
def scatter_digit(keys, order, n_valid, shift, starts, new_keys, new_order):
    """Move keys and indices to their places by the eleven bits at ``shift``; digits begin where ``starts`` says."""
    for index in range(n_valid):
        key = keys[index]
        digit = (np.uint64(key) >> shift) & _DIGIT_MASK
        place = starts[digit]
        starts[digit] = place + 1
        new_keys[place] = key
        new_order[place] = order[index]


@inlined
def digit_starts(keys, n_valid, shift, starts):
    """Count the digits at ``shift``, turn counts into starting places; return whether all keys share a digit."""
    starts[:] = 0
    for index in range(n_valid):
        starts[(np.uint64(keys[index]) >> shift) & _DIGIT_MASK] += 1
    alone = n_valid == 0 or starts[(np.uint64(keys[0]) >> shift) & _DIGIT_MASK] == n_valid
    total = 0
    for digit in range(_N_DIGITS):
        count = starts[digit]
        starts[digit] = total
        total += count
    return alone


@inlined
def sort_cell(values, keys, ranks, sorted_values):
    """Sort one cell: fill ``sorted_values`` and ``ranks`` (NaN: ``values.size``); return how many are not NaN.

    A radix sort of eleven bits a pass, over the bits that the values' range has; ``keys`` is scratch of two rows, of
    the unsigned type of the values' size. Faster than argsort (docs/developers/benchmarks.md).
    """
    order = np.empty((2, values.size), dtype=np.int32)
    starts = np.empty(_N_DIGITS, dtype=np.int32)
    n_valid = sortable_keys(values, keys[0], order[0])
    least, most, row = keys[0, 0], keys[0, 0], 0
    for index in range(n_valid):
        least, most = min(least, keys[0, index]), max(most, keys[0, index])
    for index in range(n_valid):
        keys[0, index] -= least
    for bit in range(0, 8 * keys.itemsize, _DIGIT_BITS):
        shift = np.uint64(bit)
        if np.uint64(most - least) >> shift and not digit_starts(keys[row], n_valid, shift, starts):
            scatter_digit(keys[row], order[row], n_valid, shift, starts, keys[1 - row], order[1 - row])
            row = 1 - row
    ranks[: values.size] = values.size
    for rank in range(n_valid):
        ranks[order[row, rank]] = rank
        sorted_values[rank] = values[order[row, rank]]
    return n_valid
