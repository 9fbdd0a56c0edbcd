"""Whether a part of a map has any cell with data, with as little reading as that takes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import xarray as xr

from espo_luigi.science.stack import horizontal_dims

TILE_CELLS = 64


def land_map(field: xr.DataArray) -> xr.Dataset:
    """Return a map (y, x) as `land`, with its cells as `cell` (1 each), which counts the cells of a box; lazy."""
    return xr.Dataset({"land": field, "cell": xr.ones_like(field)})


def holds_land(found: xr.Dataset) -> bool:
    """Whether any cell of `land` is not NaN; computes tiles from the middle outwards, until a tile has data."""
    return any(bool(tile.notnull().any()) for tile in _tiles(found["land"], *horizontal_dims(found)))


def count_cells(found: xr.Dataset) -> int:
    """How many cells a map has, after `extract.subset_box`; of a curvilinear grid, those inside of the box."""
    return int(found["cell"].notnull().sum())


def _tiles(field: xr.DataArray, y: str, x: str) -> Iterator[xr.DataArray]:
    middle = (field.sizes[y] - TILE_CELLS) / 2, (field.sizes[x] - TILE_CELLS) / 2

    def distance(corner: tuple[int, ...]) -> float:
        return max(abs(at - centre) for at, centre in zip(corner, middle, strict=True))

    starts = (range(0, field.sizes[dim], TILE_CELLS) for dim in (y, x))
    for row, column in sorted(product(*starts), key=distance):
        yield field.isel({y: slice(row, row + TILE_CELLS), x: slice(column, column + TILE_CELLS)})
