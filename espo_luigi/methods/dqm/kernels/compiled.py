"""How the project compiles its kernels: without the GIL, and kept on disk between processes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from espo_luigi.methods.dqm.kernel_cache import KernelCache

logger = logging.getLogger(__name__)

# Numbers in a row of `weigh_rows`, eight registers of four float64, and days of year that are adjusted together: their
# factors fit in the first-level cache.
ROW = 32


def compiled(function: Callable[..., Any]) -> Any:
    """Compile ``function`` lazily with numba (nogil), cached on disk wherever a folder can be written.

    The machine code is kept in this folder's ``__pycache__``, or in the user's cache folder if that is read-only.
    ``NUMBA_CACHE_DIR`` overrides both. These sources and this processor have their own folder there
    (`kernel_cache.code_id`). Each process compiles for itself if it cannot write the folder, or other users can.
    Exact float semantics are kept (no fastmath), but for LOESS (`weigh_rows`): the kernels add in xsdba's order.
    """
    dispatcher = inlined(function)
    try:
        dispatcher._cache = KernelCache(function)  # as numba's own `enable_caching`, with our class
    except RuntimeError as error:
        logger.warning(
            "Compiled kernels cannot be kept (%s): each process compiles anew, which takes about a minute. "
            "Set NUMBA_CACHE_DIR to a writable folder.",
            error,
        )
    return dispatcher


def inlined(function: Callable[..., Any]) -> Any:
    """Compile ``function`` for use inside kernels only: it is the calling kernel that is cached."""
    return numba.njit(nogil=True, error_model="numpy")(function)


@intrinsic
def weigh_rows(typing_context, rows, first, weights, which, out):  # type: ignore[no-untyped-def]
    """Set ``out[which]`` to the sum of ``rows[first]``, ``rows[first + 1]``, … weighed by ``weights[which]``.

    All are float64 and contiguous, with rows of `ROW`; that there are so many rows as weights from ``first`` on is not
    checked. The sums stay in registers, which LLVM does not see by itself, and multiplying and adding are fused.
    docs/developers/benchmarks.md tells what this saves.
    """

    def code(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        _, first, _, which, _ = arguments
        rows, weights, out = (
            context.make_array(signature.args[place])(context, builder, arguments[place]) for place in (0, 2, 4)
        )
        row = ir.VectorType(ir.DoubleType(), ROW)

        def row_of(array, number):  # type: ignore[no-untyped-def]
            start = builder.mul(number, ir.Constant(number.type, ROW))
            return builder.bitcast(builder.gep(array.data, [start]), row.as_pointer())

        n_weights = cgutils.unpack_tuple(builder, weights.shape)[-1]
        first_weight = builder.mul(which, n_weights)
        total = cgutils.alloca_once_value(builder, ir.Constant(row, [0.0] * ROW))
        with cgutils.for_range(builder, n_weights) as loop:
            weight = builder.load(builder.gep(weights.data, [builder.add(first_weight, loop.index)]))
            values = builder.load(row_of(rows, builder.add(first, loop.index)), align=8)
            weighed = builder.fmul(_spread(builder, weight, row), values, flags=["contract"])
            builder.store(builder.fadd(builder.load(total), weighed, flags=["contract"]), total)
        builder.store(builder.load(total), row_of(out, which), align=8)
        return context.get_dummy_value()

    return types.void(rows, types.int64, weights, types.int64, out), code


def _spread(builder, value, vector):  # type: ignore[no-untyped-def]
    """Fill a vector with a value."""
    lone = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.IntType(32)(0))
    return builder.shuffle_vector(
        lone, lone, ir.Constant(ir.VectorType(ir.IntType(32), vector.count), [0] * vector.count)
    )
