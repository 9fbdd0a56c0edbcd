"""Rounding of mantissas to some bits, for smaller stores, with the attributes of CF 1.12 (section 8.4)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import numpy as np
import xarray as xr

CONTAINER = "quantization_info"


def round_bits(ds: xr.Dataset, names: Iterable[Hashable], keepbits: int, *, version: str) -> xr.Dataset:
    """Round the mantissas of floating variables to the nearest, half to even; lazy on dask.

    `keepbits` are 1 to 23 of float32, 1 to 52 of float64: the relative error is at most 2**-(keepbits + 1). NaN and
    infinite values stay. Each rounded variable says how many bits are kept; the variable `quantization_info` names the
    algorithm and the `version` of this package.
    """
    told = {"algorithm": "bitround", "implementation": f"espo_luigi version {version}"}
    rounded = {name: _rounded(ds[name], keepbits) for name in names}
    return ds.assign({**rounded, CONTAINER: xr.Variable((), np.int8(0), told)})


def round_mantissas(values: np.ndarray, keepbits: int) -> np.ndarray:
    """Return float32 or float64 with `keepbits` explicit bits of mantissa; NaN and infinite values stay."""
    dropped = np.finfo(values.dtype).nmant - keepbits
    if not dropped:
        return values
    # Adding half a unit of the last kept bit (less 1 where that bit is 0) rounds to the nearest, half to even.
    native = values.astype(values.dtype.newbyteorder("="), copy=False)
    bits = native.view(f"u{native.dtype.itemsize}")
    one = bits.dtype.type(1)
    rounded = bits >> bits.dtype.type(dropped)
    rounded &= one
    rounded += (one << bits.dtype.type(dropped - 1)) - one
    rounded += bits
    rounded &= ~((one << bits.dtype.type(dropped)) - one)
    # The carry would make a number of a NaN whose mantissa is full.
    return np.where(np.isnan(native), native, rounded.view(native.dtype))


def _rounded(data: xr.DataArray, keepbits: int) -> xr.DataArray:
    if data.chunks is None:
        rounded = data.copy(data=round_mantissas(data.values, keepbits))
    else:
        rounded = data.copy(data=data.data.map_blocks(round_mantissas, keepbits, dtype=data.dtype))
    return rounded.assign_attrs(quantization=CONTAINER, quantization_nsb=keepbits)
