"""How the project compiles its kernels: without the GIL, and kept on disk between processes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numba
from llvmlite import binding, ir
from numba.core import types
from numba.extending import intrinsic

logger = logging.getLogger(__name__)

_SLOW_DEPOSIT = ("bdver4", "znver1", "znver2")


def compiled(function: Callable[..., Any]) -> Any:
    """Compile ``function`` lazily with numba (nogil), cached on disk wherever a folder can be written.

    Numba keeps the machine code beside the module, or in the user's cache folder if that is read-only (or where
    ``NUMBA_CACHE_DIR`` says). Where neither exists, e.g. in a read-only container, each process compiles for itself.
    What is kept is checked against the kernel's own file only: after editing a function that it calls, delete
    ``__pycache__/*.nb?``.
    Exact float semantics are kept (no fastmath): the kernels reproduce xsdba's order of additions.
    """
    try:
        return numba.njit(nogil=True, cache=True, error_model="numpy")(function)
    except RuntimeError as error:
        logger.warning(
            "Compiled kernels cannot be kept (%s): each process compiles anew, which takes about a minute. "
            "Set NUMBA_CACHE_DIR to a writable folder.",
            error,
        )
        return numba.njit(nogil=True, error_model="numpy")(function)


def inlined(function: Callable[..., Any]) -> Any:
    """Compile ``function`` for use inside kernels only: it is the calling kernel that is cached."""
    return numba.njit(nogil=True, error_model="numpy")(function)


def contracted(function: Callable[..., Any]) -> Any:
    """Like ``inlined``, where multiplying and adding in one step may spare a rounding: for float64 sums."""
    return numba.njit(nogil=True, error_model="numpy", fastmath={"contract"})(function)


def deposits_fast() -> bool:
    """Whether this processor scatters bits (x86's ``pdep``) in one step; AMD's before Zen 3 take hundreds."""
    return binding.get_host_cpu_features().get("bmi2", False) and binding.get_host_cpu_name() not in _SLOW_DEPOSIT


@intrinsic
def deposit_bits(typing_context, source, mask):  # type: ignore[no-untyped-def]
    """Scatter the low bits of ``source`` to the bits set in ``mask`` (x86's ``pdep``; see ``deposits_fast``)."""

    def code(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        word = ir.IntType(64)
        function_type = ir.FunctionType(word, [word, word])
        return builder.call(builder.module.declare_intrinsic("llvm.x86.bmi.pdep.64", (), function_type), arguments)

    return types.uint64(types.uint64, types.uint64), code


@intrinsic
def count_ones(typing_context, word):  # type: ignore[no-untyped-def]
    """Count the bits set in a 64-bit word (LLVM ``ctpop``)."""

    def code(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.ctpop(arguments[0])

    return types.uint64(types.uint64), code


@intrinsic
def trailing_zeros(typing_context, word):  # type: ignore[no-untyped-def]
    """Count the zero bits below the lowest set bit of a 64-bit word, which must not be 0 (LLVM ``cttz``)."""

    def code(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.cttz(arguments[0], context.get_constant(types.boolean, 1))

    return types.uint64(types.uint64), code
