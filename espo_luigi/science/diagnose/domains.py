"""Diagnosed domains: their cells, raw simulations on their grid, and properties in wanted units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.science import regrid, stack
from espo_luigi.science.chunks import rechunk
from espo_luigi.science.diagnose.properties import properties
from espo_luigi.science.extract.dataset import subset_box
from espo_luigi.science.units import in_units

# Cells of a block: some 13 MB for each variable and thirty years.
CELLS_IN_A_BLOCK = 300
# The day of the reference, counted from 0, on which its land has values; ESPO-G's choice.
DAY_WITH_LAND = 130


def cut_domain(ds: xr.Dataset, region: Mapping[str, Any]) -> xr.Dataset:
    """Cut the box of `lon_bnds` and `lat_bnds` out of a dataset, bounds included, without a buffer.

    Works on 1-D `lat` and `lon`, in any order and either longitude convention. Of a curvilinear grid, the smallest part
    that holds the box is cut, and cells outside of the box are NaN. The result's `cat:domain` is the box's `name`,
    and so is that of its products. Fixed fields among the coordinates, such as `orog`, are left out. Lazy.

    Raises
    ------
    DataError
        When no cell lies in the box, or the box crosses the edge of the data's longitudes.
    """
    named = {"cat:domain": region["name"]} if "name" in region else {}
    bare = ds.drop_vars([name for name in ds.coords if name not in ("lat", "lon", *ds.dims)])
    return subset_box(bare, {"name": "the domain", **region, "tile_buffer": 0}).assign_attrs(named)


def blocks(part: xr.Dataset) -> dict[str, int]:
    """Return the chunks for computing properties: whole series of some rows."""
    y, x = stack.horizontal_dims(part)
    return {y: max(1, CELLS_IN_A_BLOCK // part.sizes[x]), x: -1, "time": -1}


def in_blocks(part: xr.Dataset) -> xr.Dataset:
    """Return daily maps in `blocks`, lazily; a single block is computed.

    xsdba needs as long to describe a lazy result as to compute a block.
    """
    chunked = rechunk(part, blocks(part))
    return chunked.compute() if all(len(sizes) == 1 for sizes in chunked.chunksizes.values()) else chunked


def on_domain(
    raw: xr.Dataset,
    reference: xr.Dataset,
    *,
    land: str,
    regridder_kwargs: Mapping[str, object] | None = None,
    intermediate_grids: Mapping[str, Mapping[str, Any]] | None = None,
) -> xr.Dataset:
    """Regrid a simulation to a domain's cells, where the reference has data.

    Loads the cells of the simulation that are needed (on Dask's workers), since each block of the result would read the
    files again; the rest is lazy.

    Parameters
    ----------
    raw
        Daily maps of the simulation, any grid, calendar and units.
    reference
        The reference in the domain, as `cut_domain` returns it, 131 days or more: gives the grid and the land.
    land
        The variable of `reference` that is NaN where the result is to be NaN, on the day at position 130.
    regridder_kwargs, intermediate_grids
        As of `regrid.regrid`. No intermediate grid is skipped, and a mask of the simulation is not used.

    Raises
    ------
    DataError
        If the reference has fewer days, or the regridding fails.
    """
    if reference.sizes["time"] <= DAY_WITH_LAND:
        raise DataError(
            f"the reference has {reference.sizes['time']} days; expected more than {DAY_WITH_LAND}, as the day at that "
            f"position says where {land} has values. Give a longer reference period."
        )
    has_data = reference[land].isel(time=DAY_WITH_LAND).notnull().reset_coords(drop=True).compute()
    grid = stack.grid_of(reference)
    how: dict[str, Any] = {"regridder_kwargs": regridder_kwargs, "intermediate_grids": intermediate_grids}
    near = regrid.part_reached(raw.drop_vars("mask", errors="ignore"), grid, **how)
    loaded = rechunk(near, blocks(near)).persist()
    return regrid.regrid(loaded, grid, **how, chunks=blocks(grid)).where(has_data)


def spread_over(part: xr.Dataset, grid: xr.Dataset) -> xr.Dataset:
    """Return maps of a part of a grid on the whole grid, NaN elsewhere; lazy.

    Raises
    ------
    DataError
        If a row or a column is not in the grid.
    """
    for name in stack.horizontal_dims(grid):
        if strange := np.setdiff1d(part[name], grid[name]).size:
            raise DataError(
                f"{strange} of {part.sizes[name]} values of {name} are not in the grid of "
                f"{grid.sizes[name]}: both must be the same grid, to the last digit."
            )
    y, x = stack.horizontal_dims(grid)
    return part.reindex({y: grid[y], x: grid[x]}).assign_coords(grid.coords)


def properties_in_units(
    part: xr.Dataset,
    *,
    units: Mapping[str, str],
    definitions: Mapping[str, Any],
    period: Sequence[str],
) -> xr.Dataset:
    """Return the properties of daily maps after their conversion to `units`; computed, a map each.

    Parameters
    ----------
    part
        The variables in any units that convert, precipitation as flux or depth.
    units
        The unit of each variable; others are not used.
    definitions, period
        As of `properties`.

    Raises
    ------
    DataError
        If units do not convert, or as `properties`.
    """
    series = part[[name for name in units if name in part]].sel(time=slice(*period))
    converted = in_units(in_blocks(series), units)
    return properties(converted, definitions=definitions, period=period, to_level="diag-properties").compute()
