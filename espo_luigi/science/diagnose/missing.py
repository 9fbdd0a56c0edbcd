"""Missing values of daily series, by the methods of xclim."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

import dask.array
import numpy as np
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.science.choices import MissingMethod

Methods = Mapping[str, Any] | Sequence[str] | str
"""Names of methods, or their arguments by name."""


def lacking(ds: xr.Dataset, methods: Methods, cells: xr.DataArray | None) -> dict[str, dict[str, Any]]:
    """Return whether each variable on time lacks values by each method, in some of the cells; lazy.

    Without a regular time axis there is nothing to compare with: the result is empty.

    Raises
    ------
    DataError
        If there is no such method.
    """
    names = [methods] if isinstance(methods, str) else methods
    arguments = dict(methods) if isinstance(methods, Mapping) else {name: {} for name in names}
    functions = {method: method_of(method) for method in arguments}
    if not functions or inferred_freq(ds) is None:
        return {}
    series = {str(name): da for name, da in ds.data_vars.items() if "time" in da.dims}
    found = {
        method: {name: function(da, **{"freq": "YS", **(arguments[method] or {})}) for name, da in series.items()}
        for method, function in functions.items()
    }
    return {
        method: {name: (da if cells is None else da & cells).any() for name, da in by_variable.items()}
        for method, by_variable in found.items()
    }


def method_of(method: str) -> Callable[..., xr.DataArray]:
    """Return the function of xclim, or our own of the same result."""
    from xclim.core import missing

    if method.removeprefix("missing_") == "some_but_not_all":
        return some_but_not_all
    if method not in get_args(MissingMethod):
        raise DataError(
            f"missing names the method {method!r}: expected any, some_but_not_all, at_least_n_valid, pct or wmo."
        )
    return getattr(missing, method, None) or getattr(missing, f"missing_{method}")


def inferred_freq(ds: xr.Dataset) -> str | None:
    """Return the frequency of a time axis; None if it is irregular, or has too few steps to tell."""
    return xr.infer_freq(ds["time"]) if ds.sizes["time"] > 2 else None


def some_but_not_all(da: xr.DataArray, freq: str, **kwargs: Any) -> xr.DataArray:
    """Return which cells have a period that lacks some of its days, but not all of them; lazy.

    The same as `xclim.core.missing.missing_some_but_not_all(da, freq).any("time")`, in 4 tasks a block instead of more
    than 40. A period that the time axis covers in part lacks days; a cell without any day of it passes. With arguments
    of xclim but `freq` (months, a season), xclim itself computes.

    Parameters
    ----------
    da
        On time and other dimensions; the time axis is regular.
    freq
        The periods, as pandas writes them.
    """
    from xclim.core import missing

    if kwargs:
        return missing.missing_some_but_not_all(da, freq=freq, **kwargs).any("time")
    ordered = da.transpose("time", ...)
    days = xr.ones_like(ordered["time"], dtype=int).resample(time=freq).sum().values.astype(int)
    expected = missing.expected_count(ordered["time"], freq=freq).values
    valid = dask.array.asarray(ordered.notnull().data)
    period = np.repeat(np.arange(days.size), days)
    of_block = np.split(period, np.cumsum(valid.chunks[0])[:-1])
    others = (1,) * (valid.ndim - 1)
    counts = dask.array.map_blocks(
        _count,
        valid,
        dask.array.from_array(period.reshape(-1, *others), chunks=(valid.chunks[0], *others)),
        dtype=np.int32,
        chunks=(tuple(int(one[-1] - one[0]) + 1 for one in of_block), *valid.chunks[1:]),
    )
    # A period at the end of a block goes on in the next: it has a row of counts in each.
    rows = np.concatenate([np.arange(one[0], one[-1] + 1) for one in of_block])
    found = counts.rechunk({0: -1}).map_blocks(_is_partial, rows, expected, drop_axis=0, dtype=bool)
    return ordered.isel(time=0, drop=True).copy(data=found)


def _count(valid: np.ndarray, period: np.ndarray) -> np.ndarray:
    """The number of valid days in each period that a block has days of."""
    ends = np.flatnonzero(np.diff(period.ravel(), append=-1)) + 1
    parts = np.split(valid, ends[:-1])
    return np.stack([np.count_nonzero(part, axis=0) for part in parts]).astype(np.int32)


def _is_partial(counts: np.ndarray, rows: np.ndarray, expected: np.ndarray) -> np.ndarray:
    first = np.flatnonzero(np.diff(rows, prepend=-1))
    valid = np.add.reduceat(counts, first, axis=0)
    whole = expected.reshape(-1, *(1,) * (counts.ndim - 1))
    return ((valid != whole) & (valid != 0)).any(axis=0)
