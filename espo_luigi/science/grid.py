"""Choosing cells of a map: those with data, and some for figures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import dask
import numpy as np
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.science.geometry.cells import horizontal_dims
from espo_luigi.science.stack import STACKED_DIM
from espo_luigi.science.stations import are_points

TILE_CELLS = 64
CELL = "cell"


def land_map(field: xr.DataArray) -> xr.Dataset:
    """Return a map (y, x) as `land`, with its cells as `cell` (1 each), which counts the cells of a box; lazy.

    Stations are land, whatever they lack.
    """
    field = xr.ones_like(field) if are_points(field) else field
    return xr.Dataset({"land": field, "cell": xr.ones_like(field)})


def holds_land(land: xr.Dataset) -> bool:
    """Whether any cell of `land` is not NaN; computes tiles from the middle outwards, until a tile has data."""
    return any(bool(tile.notnull().any()) for tile in _tiles(land["land"], *horizontal_dims(land)))


def count_cells(land: xr.Dataset) -> int:
    """How many cells a map has, after `cutting.subset_box`; of a curvilinear grid, those inside of the box."""
    return int(land["cell"].notnull().sum())


def _tiles(field: xr.DataArray, y: str, x: str) -> Iterator[xr.DataArray]:
    middle = (field.sizes[y] - TILE_CELLS) / 2, (field.sizes[x] - TILE_CELLS) / 2

    def distance(corner: tuple[int, ...]) -> float:
        return max(abs(at - centre) for at, centre in zip(corner, middle, strict=True))

    starts = (range(0, field.sizes[dim], TILE_CELLS) for dim in (y, x))
    for row, column in sorted(product(*starts), key=distance):
        yield field.isel({y: slice(row, row + TILE_CELLS), x: slice(column, column + TILE_CELLS)})


@dataclass(frozen=True, eq=False)
class Cells:
    """Places on a grid: the names of its two coordinates, and their values cell by cell; `of` is how many there are."""

    y: str
    x: str
    rows: np.ndarray
    columns: np.ndarray
    of: int


def evenly(field: xr.DataArray, count: int) -> Cells:
    """Return so many cells of a map (y, x) that have data, evenly spaced in the order of its rows; all, if it has less.

    Raises `DataError` if no cell has data.
    """
    y, x = horizontal_dims(field)
    there = field.transpose(y, x).notnull().values
    if not there.any():
        raise DataError(f"No cell of {field.name!r} has data, of {dict(field.sizes)}.")
    row, column = evenly_placed(there, count)
    return Cells(y, x, field[y].values[row], field[x].values[column], int(there.sum()))


def evenly_placed(there: np.ndarray, count: int) -> list[np.ndarray]:
    """Return the places, along each dimension, of so many true values, evenly spaced in C order; of all, if less."""
    places = np.nonzero(there)
    size = places[0].size
    chosen = np.unique(np.linspace(0, size - 1, min(count, size)).round().astype(int))
    return [at[chosen] for at in places]


def beside(field: xr.DataArray, cells: Cells) -> Cells:
    """Return an adjacent cell with data of each cell: in its row, else in its column; itself if it has none."""
    there = field.transpose(cells.y, cells.x).notnull().values
    rows = field.indexes[cells.y].get_indexer(cells.rows)
    columns = field.indexes[cells.x].get_indexer(cells.columns)
    near = np.stack([rows, columns])
    for down, right in ((-1, 0), (1, 0), (0, -1), (0, 1)):
        y, x = rows + down, columns + right
        inside = (y >= 0) & (y < there.shape[0]) & (x >= 0) & (x < there.shape[1])
        near = np.where(inside & there[np.where(inside, y, 0), np.where(inside, x, 0)], [y, x], near)
    return Cells(cells.y, cells.x, field[cells.y].values[near[0]], field[cells.x].values[near[1]], cells.of)


def read_together(**parts: xr.Dataset) -> dict[str, xr.Dataset]:
    """Return parts of the same data in memory; a block that several parts need is read once."""
    lazy = {part: {name: of.data for name, of in ds.data_vars.items()} for part, ds in parts.items()}
    # Arrays, not datasets: Dask takes seconds to make a token of the dates of a model's calendar.
    (read,) = dask.compute(lazy)
    return {part: ds.copy(data=read[part]) for part, ds in parts.items()}


def at_neighbours(ds: xr.Dataset, cells: Cells, near: Cells) -> xr.Dataset:
    """Return the series `at_cells` of the neighbours of cells, NaN of a cell that is its own neighbour; lazy."""
    alone = (near.rows == cells.rows) & (near.columns == cells.columns)
    return at_cells(ds, near).where(xr.DataArray(~alone, dims=CELL))


def at_cells(ds: xr.Dataset, cells: Cells) -> xr.Dataset:
    """Return the series of some cells, (time, cell), of stacked cells or of a grid; exact coordinates, lazy.

    Raises
    ------
    DataError
        If the data lack any of the cells.
    """
    if STACKED_DIM in ds.dims:
        places = {place: at for at, place in enumerate(zip(ds[cells.y].values, ds[cells.x].values, strict=True))}
        chosen = {STACKED_DIM: [places.get(place, -1) for place in zip(cells.rows, cells.columns, strict=True)]}
    else:
        chosen = {
            cells.y: list(ds.indexes[cells.y].get_indexer(cells.rows)),
            cells.x: list(ds.indexes[cells.x].get_indexer(cells.columns)),
        }
    if any(-1 in places for places in chosen.values()):
        raise DataError(
            f"The data have not all of {len(cells.rows)} cells that are wanted, by {cells.y} and {cells.x}."
        )
    return ds.isel({dim: xr.DataArray(places, dims=CELL) for dim, places in chosen.items()})
