"""Chunks of data variables, without a look at the coordinates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
