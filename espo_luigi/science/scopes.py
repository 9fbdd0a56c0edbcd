"""The cells of a grid inside of a scope: a box of longitudes and latitudes, or polygons. Regular and rotated grids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.science.boxes import TOLERANCE, Box
from espo_luigi.science.chunks import indexer
from espo_luigi.science.stack import horizontal_dims

Ring = Sequence[tuple[float, float]]
"""Vertices (degrees east, degrees north); the last one repeats the first."""
Polygon = Sequence[Ring]
"""The outline, then the holes."""


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
    lat, lon = (one.transpose(y, x) for one in xr.broadcast(ds["lat"], ds["lon"]))
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
            f"from {_ends(lat)} degrees north and {_ends(lon)} degrees east. Correct the bounds or the file, or remove "
            "the scope."
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
    lats, lons = (np.asarray(one, "float64").ravel()[order] for one in (lat, lon))
    found = np.zeros(lats.size, bool)
    for polygon in polygons:
        crossed = np.zeros(lats.size, bool)
        for ring in polygon:
            _cross(lats, lons, ring, crossed)
        found |= crossed
    inside = np.empty(lats.size, bool)
    inside[order] = found
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


def _ends(coordinate: xr.DataArray) -> str:
    return f"{float(coordinate.min()):g} to {float(coordinate.max()):g}"
