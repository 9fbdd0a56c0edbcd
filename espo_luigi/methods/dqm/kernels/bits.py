"""Kernels on the bits of 64-bit words: how many are set, and where."""

from __future__ import annotations

import numpy as np

from espo_luigi.methods.dqm.kernels.compiled import inlined

_ONE = np.uint64(1)
_PAIRS = np.uint64(0x5555555555555555)
_NIBBLES = np.uint64(0x3333333333333333)
_BYTES = np.uint64(0x0F0F0F0F0F0F0F0F)
_EACH_BYTE = np.uint64(0x0101010101010101)
_TOP_BITS = np.uint64(0x8080808080808080)
_SET_BITS = [[bit for bit in range(8) if byte >> bit & 1] for byte in range(256)]
_NTH_BIT_OF_BYTE = np.array([[(*bits, *[0] * 8)[n] for bits in _SET_BITS] for n in range(8)], dtype=np.uint8)


@inlined
def ones_up_to_bytes(word):
    """Return, in each byte, how many bits of ``word`` are set up to the end of that byte."""
    pairs = word - ((word >> _ONE) & _PAIRS)
    nibbles = (pairs & _NIBBLES) + ((pairs >> np.uint64(2)) & _NIBBLES)
    return ((nibbles + (nibbles >> np.uint64(4))) & _BYTES) * _EACH_BYTE


@inlined
def count_ones(word):
    """Count the bits set in a word; LLVM makes a single instruction of it (our own intrinsic was no faster)."""
    return ones_up_to_bytes(word) >> np.uint64(56)


@inlined
def trailing_zeros(word):
    """Count the zero bits below the lowest set bit of a word, which must not be 0."""
    return count_ones((word & (~word + _ONE)) - _ONE)


@inlined
def nth_bit(word, n):
    """Return the place of the ``n``-th (from 0) bit set in ``word``, without a branch (after Vigna 2008)."""
    sums = ones_up_to_bytes(word)
    place = count_ones(((n * _EACH_BYTE | _TOP_BITS) - sums) & _TOP_BITS) << np.uint64(3)
    rest = n - (((sums << np.uint64(8)) >> place) & np.uint64(255))
    return place + np.uint64(_NTH_BIT_OF_BYTE[rest, (word >> place) & np.uint64(255)])
