"""Rounding of mantissas to some bits, for smaller stores, with the attributes of CF 1.12 (section 8.4)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import numpy as np
import xarray as xr

from espo_luigi.errors import DataError

CONTAINER = "quantization_info"


def round_bits(ds: xr.Dataset, keepbits: int | Mapping[str, int], *, version: str) -> xr.Dataset:
    """Round the mantissas of floating data variables to the nearest, half to even; lazy on dask.

    The relative error is at most 2**-(keepbits + 1). NaN and infinite values stay. Coordinates and other types stay.
    Each rounded variable says how many bits are kept; the variable `quantization_info` names the algorithm.

    Parameters
    ----------
    ds
        Any dimensions.
    keepbits
        The bits that are kept: of all variables, or of each by name. 1 to 23 of float32, 1 to 52 of float64.
    version
        The version of this package, which `quantization_info` names.

    Raises
    ------
    DataError
        If a variable is missing, is not floating, or has no so many bits.
    """
    floating = [name for name, da in ds.data_vars.items() if da.dtype.kind == "f"]
    wanted = dict.fromkeys(floating, keepbits) if isinstance(keepbits, int) else dict(keepbits)
    if missing := [name for name in wanted if name not in floating]:
        raise DataError(f"bits of {missing} are to be rounded; expected floating variables, got {floating}.")
    if not wanted:
        return ds
    container = xr.Variable(
        (), np.int8(0), {"algorithm": "bitround", "implementation": f"espo_luigi version {version}"}
    )
    return ds.assign({name: _rounded(name, ds[name], bits) for name, bits in wanted.items()} | {CONTAINER: container})


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


def _rounded(name: Hashable, data: xr.DataArray, keepbits: int) -> xr.DataArray:
    most = np.finfo(data.dtype).nmant
    if isinstance(keepbits, bool) or not 1 <= keepbits <= most:
        raise DataError(f"{keepbits} bits of {name} are to be kept; expected 1 to {most} of {data.dtype}.")
    if data.chunks is None:
        rounded = data.copy(data=round_mantissas(data.values, keepbits))
    else:
        rounded = data.copy(data=data.data.map_blocks(round_mantissas, keepbits, dtype=data.dtype))
    return rounded.assign_attrs(quantization=CONTAINER, quantization_nsb=keepbits)
