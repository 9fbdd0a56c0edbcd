"""Choosing cells of a map: those inside of a box or of polygons, those with data, and some for figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.science.boxes import TOLERANCE, Box
from espo_luigi.science.chunks import indexer
from espo_luigi.science.stack import STACKED_DIM, horizontal_dims

TILE_CELLS = 64
CELL = "cell"
Ring = Sequence[tuple[float, float]]
"""Vertices (degrees east, degrees north); the last one repeats the first."""
Polygon = Sequence[Ring]
"""The outline, then the holes."""


def land_map(field: xr.DataArray) -> xr.Dataset:
    """Return a map (y, x) as `land`, with its cells as `cell` (1 each), which counts the cells of a box; lazy."""
    return xr.Dataset({"land": field, "cell": xr.ones_like(field)})


def holds_land(land: xr.Dataset) -> bool:
    """Whether any cell of `land` is not NaN; computes tiles from the middle outwards, until a tile has data."""
    return any(bool(tile.notnull().any()) for tile in _tiles(land["land"], *horizontal_dims(land)))


def count_cells(land: xr.Dataset) -> int:
    """How many cells a map has, after `extract.subset_box`; of a curvilinear grid, those inside of the box."""
    return int(land["cell"].notnull().sum())


def _tiles(field: xr.DataArray, y: str, x: str) -> Iterator[xr.DataArray]:
    middle = (field.sizes[y] - TILE_CELLS) / 2, (field.sizes[x] - TILE_CELLS) / 2

    def distance(corner: tuple[int, ...]) -> float:
        return max(abs(at - centre) for at, centre in zip(corner, middle, strict=True))

    starts = (range(0, field.sizes[dim], TILE_CELLS) for dim in (y, x))
    for row, column in sorted(product(*starts), key=distance):
        yield field.isel({y: slice(row, row + TILE_CELLS), x: slice(column, column + TILE_CELLS)})


def cells_in(ds: xr.Dataset, name: str, scope: Mapping[str, Any], land: xr.DataArray | None = None) -> xr.DataArray:
    """Return the cells whose centre lies in a scope, boolean (y, x); land only, where `land` is given. Reads no data.

    Parameters
    ----------
    ds
        With `lat` and `lon` of one dimension each, or of two (rotated and curvilinear grids).
    name
        The scope's name, for errors.
    scope
        `lon_bnds` and `lat_bnds` (degrees, bounds included), or `shape`, polygons.
    land
        Boolean (y, x).

    Raises
    ------
    DataError
        If there is no such cell.
    """
    y, x = horizontal_dims(ds)
    lat, lon = (degrees.transpose(y, x) for degrees in xr.broadcast(ds["lat"], ds["lon"]))
    if "shape" in scope:
        inside = in_polygons(lon.values, lat.values, scope["shape"])
        where = "the polygons of its file"
    else:
        box = Box(tuple(scope["lon_bnds"]), tuple(scope["lat_bnds"]))
        inside = _in_box(lon.values, lat.values, box)
        where = str(box)
    cells = xr.DataArray(inside, dims=(y, x))
    if land is not None:
        cells = cells & land.transpose(y, x).values
    if not cells.any():
        kind = "land cell" if land is not None else "cell"
        raise DataError(
            f"The scope {name!r} of the health checks holds no {kind} of the grid: got {where}, and the grid reaches "
            f"from {extent(lat)} degrees north and {extent(lon)} degrees east. Correct the bounds or the file, or "
            "remove the scope."
        )
    return cells


def cut_to(ds: xr.Dataset, cells: xr.DataArray) -> tuple[xr.Dataset, xr.DataArray]:
    """Cut a dataset and the cells to the rows and columns that hold them; other cells there become NaN. Lazy."""
    y, x = map(str, cells.dims)
    part = {dim: indexer(np.flatnonzero(cells.any(other).values)) for dim, other in ((y, x), (x, y))}
    cut, mask = ds.isel(part), cells.isel(part)
    of_cells = {name: da for name, da in cut.data_vars.items() if {y, x} <= set(da.dims)}
    return cut.assign({name: da.where(mask) for name, da in of_cells.items()}), mask


def in_polygons(lon: np.ndarray, lat: np.ndarray, polygons: Iterable[Polygon]) -> np.ndarray:
    """Return which points lie in a polygon, and not in its holes. Longitudes are modulo 360.

    Edges are straight in degrees, as in GeoJSON: a polygon across the antimeridian is cut in two, or has longitudes
    beyond 180. The memory that is needed does not depend on the number of vertices.
    """
    order = np.argsort(lat, axis=None, kind="stable")
    lats, lons = (np.asarray(degrees, "float64").ravel()[order] for degrees in (lat, lon))
    in_any = np.zeros(lats.size, bool)
    for polygon in polygons:
        crossed = np.zeros(lats.size, bool)
        for ring in polygon:
            _cross(lats, lons, ring, crossed)
        in_any |= crossed
    inside = np.empty(lats.size, bool)
    inside[order] = in_any
    return inside.reshape(lat.shape)


def _cross(lats: np.ndarray, lons: np.ndarray, ring: Ring, crossed: np.ndarray) -> None:
    """Turn `crossed` over for each edge of a ring that lies east of a point; points are in the order of latitudes."""
    vertices = np.asarray(ring, "float64")
    middle = (vertices[:, 0].min() + vertices[:, 0].max()) / 2
    cross_edges(
        (lons - middle + 180) % 360 - 180 + middle, lats, np.stack([vertices[:-1], vertices[1:]], axis=1), crossed
    )


def cross_edges(x: np.ndarray, y: np.ndarray, edges: np.ndarray, crossed: np.ndarray) -> None:
    """Turn `crossed` over for each edge (edge, 2 ends, 2) at the right of a point; `y` of the points ascends."""
    # An edge concerns the points from its lower end (included) to its upper end.
    first, last = np.searchsorted(y, [edges[..., 1].min(axis=1), edges[..., 1].max(axis=1)])
    for edge in np.flatnonzero(first < last):
        at, ((x0, y0), (x1, y1)) = slice(first[edge], last[edge]), edges[edge]
        crossed[at] ^= x[at] < x0 + (y[at] - y0) * ((x1 - x0) / (y1 - y0))


def _in_box(lon: np.ndarray, lat: np.ndarray, box: Box) -> np.ndarray:
    (west, east), (south, north) = box
    lon = np.asarray(lon, "float64")
    return (lat >= south) & (lat <= north) & ((lon - west + TOLERANCE) % 360 <= east - west + 2 * TOLERANCE)


def extent(coordinate: xr.DataArray) -> str:
    """Return the least and the greatest value of a coordinate, as errors have them."""
    return f"{float(coordinate.min()):g} to {float(coordinate.max()):g}"


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
    y, x = horizontal_dims(field.to_dataset(name="field"))
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
