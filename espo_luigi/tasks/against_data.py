"""Where a configuration is held against the data before anything starts.

Regions and domains: the reference covers them, has land in them, and no row in two. The whole domain: each simulation
covers it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import xarray as xr

from espo_luigi.catalog import Match
from espo_luigi.catalog.open import open_grid
from espo_luigi.config import Extraction
from espo_luigi.errors import ConfigurationError, DataError
from espo_luigi.science.extract.dataset import beyond_the_grid, subset_box
from espo_luigi.science.land import count_cells, holds_land
from espo_luigi.science.stack import horizontal_dims


def cut(whole: xr.Dataset, box: Mapping[str, Any], key: str) -> xr.Dataset:
    """Cut a box out of a map of the reference; raises `ConfigurationError`, with the box's `key`, if it has no cell."""
    try:
        return subset_box(whole, box)
    except DataError as error:
        raise ConfigurationError(f"`{key}`: {error} Correct the bounds, or the data.") from error


def cut_region(reference: xr.Dataset, box: Mapping[str, Any], key: str) -> xr.Dataset:
    """Cut a region out of a map of the whole reference.

    Raises
    ------
    ConfigurationError
        If the reference has no cell in the region, or ends before the region does; it names the region's `key`.
    """
    found = cut(reference, box, key)
    if beyond := beyond_the_grid(reference, box):
        raise ConfigurationError(f"`{key}`: {beyond}. Correct the bounds, or take another reference.")
    return found


def beyond_simulation(simulation: Match, extraction: Extraction, box: Mapping[str, Any], key: str) -> str:
    """Say how far a box reaches beyond the grid of a simulation's first file, or return nothing.

    Opens that file, and reads its coordinates only. Of a file that cannot be opened, `InputCheck` tells.

    Raises
    ------
    DataError
        If the box cannot be cut out of the grid, or holds too few cells to interpolate between.
    """
    asset = simulation.assets[0]
    try:
        grid = open_grid(asset, dict(extraction.extract_dataset.xr_open_kwargs))
    # A backend may raise nearly anything on a damaged file.
    except Exception:
        return ""
    try:
        found = subset_box(grid, box)
    except DataError as error:
        raise DataError(f"`{key}`: {asset.path}: {error} Correct the bounds, or exclude the simulation.") from error
    if min(found.sizes.values()) < 2:
        raise DataError(f"`{key}`: {asset.path} has {dict(found.sizes)} cells there; expected 2 or more each way.")
    beyond = beyond_the_grid(grid, box)
    return f"`{key}`: {asset.path}: {beyond}" if beyond else ""


def shared_rows(maps: Mapping[str, xr.Dataset]) -> str:
    """Say which rows of the reference lie in two of the regions, as a bound lies on them, or return nothing."""
    if any("lat" in found.coords and found["lat"].ndim == 2 for found in maps.values()) and len(maps) > 1:
        return (
            "`custom.regions` has several bands of latitude, and on the reference's rotated grid they share rows: give "
            "one region"
        )
    axes = {name: horizontal_dims(found)[0] for name, found in maps.items()}
    rows = {name: set(maps[name][y].values.tolist()) for name, y in axes.items() if y in maps[name].coords}
    for one, other in itertools.combinations(rows, 2):
        if (both := rows[one] & rows[other]) and _side_by_side(maps[one], maps[other]):
            listed = ", ".join(f"{row:g}" for row in sorted(both)[:3])
            return (
                f"`custom.regions.{one}` and `custom.regions.{other}` both have the row(s) {listed} of the reference: "
                "a bound is inclusive. Put it between two rows"
            )
    return ""


def _side_by_side(one: xr.Dataset, other: xr.Dataset) -> bool:
    x = horizontal_dims(one)[1]
    return bool(set(one[x].values.tolist()) & set(other[x].values.tolist()))


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
