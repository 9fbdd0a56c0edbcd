"""Chunks of data variables, whose coordinates stay as they are, and which part of a store a block reads."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import xarray as xr


def rechunk(ds: xr.Dataset, chunks: Mapping[Any, int]) -> xr.Dataset:
    """Return `ds` with its data variables in `chunks` (-1: the whole dimension), lazily; coordinates stay as they are.

    Dimensions that a variable lacks are ignored. xarray's `Dataset.chunk` and `DataArray.chunk` first make a token of
    every coordinate, which takes a second a variable for 151 years of date objects.
    """
    return ds.assign({name: rechunk_variable(data.variable, chunks) for name, data in ds.data_vars.items()})


def rechunk_variable(variable: xr.Variable, chunks: Mapping[Any, int]) -> xr.Variable:
    """Return one variable in `chunks`, lazily."""
    return variable.chunk({dim: size for dim, size in chunks.items() if dim in variable.dims})


def block_sizes(ds: xr.Dataset) -> dict[Hashable, int]:
    """Return the size of the first Dask block of the data variables along each dimension."""
    return {dim: sizes[0] for data in ds.data_vars.values() for dim, sizes in data.variable.chunksizes.items()}


def indexer(places: np.ndarray) -> slice | np.ndarray:
    """Return places as a slice if each follows the one before, which stores read faster, else as they are."""
    return slice(int(places[0]), int(places[-1]) + 1) if (np.diff(places) == 1).all() else places
