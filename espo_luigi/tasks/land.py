"""What is checked in the reference before anything starts: land in every region and in every diagnosed domain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import xarray as xr

from espo_luigi.errors import ConfigurationError, DataError
from espo_luigi.science.extract import subset_box
from espo_luigi.science.land import count_cells, holds_land


def cut(whole: xr.Dataset, box: Mapping[str, Any], key: str) -> xr.Dataset:
    """Cut a box out of a map of the reference; raises `ConfigurationError`, with the box's `key`, if it has no cell."""
    try:
        return subset_box(whole, box)
    except DataError as error:
        raise ConfigurationError(f"`{key}`: {error} Correct the bounds, or take it away.") from error


def missing_land(found: xr.Dataset, box: Mapping[str, Any], key: str) -> str:
    """Say what a box of the reference, already cut, lacks if none of its cells has data; else return nothing.

    Raises
    ------
    DataError
        If the reference cannot be read.
    """
    try:
        if holds_land(found):
            return ""
    except Exception as error:  # a backend may raise nearly anything on a damaged file
        raise DataError(
            f"`{key}`: the reference cannot be read there ({error}): get or make its files again."
        ) from error
    (west, east), (south, north) = box["lon_bnds"], box["lat_bnds"]
    return (
        f"`{key}` has no land: of the reference's {count_cells(found)} cells in {west:g} to {east:g} °E, {south:g} to "
        f"{north:g} °N, none has a value on the first day of `custom.ref_period`"
    )
