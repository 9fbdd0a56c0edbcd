"""The outline of a regional simulation's domain, and products cut to it.

Borders of cells are great circles: dates lines and poles need no care. Cells are seen from the centre of the Earth on a
plane that touches the domain's middle (gnomonic projection), where great circles are straight lines.
"""

from __future__ import annotations

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from espo_luigi.errors import DataError
from espo_luigi.science.grid import cross_edges, cut_to, extent
from espo_luigi.science.sphere import cell_corners, unit_vectors
from espo_luigi.science.stack import horizontal_dims

Floats = NDArray[np.float64]

# Further from its middle a domain is hardly regional, and its plane would be very large.
_LARGEST_RADIUS_DEGREES = 80


def outline(lat: xr.DataArray, lon: xr.DataArray) -> xr.Dataset:
    """Return the border of a grid's cells: their outer corners, in order around the grid.

    Corners lie in the middle of four centres; beyond the outermost, centres are extrapolated. Raises `DataError` if the
    grid has fewer than two rows or columns.

    Parameters
    ----------
    lat, lon
        Centres of the cells, degrees: of the same dimensions, or rows and columns of a grid.

    Returns
    -------
    xarray.Dataset
        `lat` and `lon` (corner), degrees, longitudes from -180 to 180. In memory.
    """
    lat, lon = xr.broadcast(lat, lon)
    if min(lat.shape) < 2:
        raise DataError(f"the grid has {dict(lat.sizes)} cells; expected two rows and two columns at least.")
    grid = cell_corners(unit_vectors(lat.values.astype(np.float64), lon.values.astype(np.float64)))
    corners = np.concatenate([grid[0, :-1], grid[:-1, -1], grid[-1, :0:-1], grid[:0:-1, 0]])
    x, y, z = (corners / np.linalg.norm(corners, axis=-1, keepdims=True)).T
    return xr.Dataset(
        {
            "lat": ("corner", np.rad2deg(np.arcsin(z)), {"units": "degrees_north"}),
            "lon": ("corner", np.rad2deg(np.arctan2(y, x)), {"units": "degrees_east"}),
        }
    )


def inside(border: xr.Dataset, lat: xr.DataArray, lon: xr.DataArray) -> xr.DataArray:
    """Return which points lie inside of an outline: an odd number of edges is on the way out. In memory.

    Parameters
    ----------
    border
        What `outline` returns.
    lat, lon
        The points, degrees, any longitude convention: of the same dimensions, or rows and columns of a grid.

    Raises
    ------
    DataError
        If the outline reaches further than 80 degrees from its middle.
    """
    lat, lon = xr.broadcast(lat, lon)
    corners = unit_vectors(border["lat"].values, border["lon"].values)
    middle = corners.sum(axis=0)
    middle /= np.linalg.norm(middle)
    radius = np.rad2deg(np.arccos(np.clip(corners @ middle, -1, 1).min()))
    if not radius <= _LARGEST_RADIUS_DEGREES:
        raise DataError(
            f"the domain reaches {radius:.0f} degrees from its middle; expected {_LARGEST_RADIUS_DEGREES} at most. Cut "
            "regional domains only."
        )
    points = unit_vectors(*(one.values.ravel().astype(np.float64) for one in (lat, lon)))
    found = np.zeros(len(points), bool)
    near = np.flatnonzero(points @ middle > 0)
    ring = _on_plane(corners, middle)
    edges = np.stack([ring, np.roll(ring, -1, axis=0)], axis=1)
    found[near] = _within(_on_plane(points[near], middle), edges)
    return xr.DataArray(found.reshape(lat.shape), dims=lat.dims, name="inside")


def cut_to_outline(ds: xr.Dataset, border: xr.Dataset) -> xr.Dataset:
    """Return a dataset without the rows and columns that lie outside of an outline, and NaN in other cells outside.

    A cell belongs to its centre. Coordinates keep their values in all cells that are left. Lazy on dask. Raises
    `DataError` if no cell is inside, or the dataset has no horizontal grid.
    """
    y, x = horizontal_dims(ds)
    within = inside(border, ds["lat"], ds["lon"]).transpose(y, x)
    if not within.any():
        domain = f"{extent(border['lat'])} °N, {extent(border['lon'])} °E"
        raise DataError(f"none of {within.size} cells lies in the domain ({domain}); check whose outline it is.")
    return cut_to(ds, within)[0]


def _on_plane(vectors: Floats, middle: Floats) -> Floats:
    """The gnomonic projection (..., 2) of unit vectors (..., 3)."""
    right = np.cross(middle, np.eye(3)[np.abs(middle).argmin()])
    right /= np.linalg.norm(right)
    return vectors @ np.stack([right, np.cross(middle, right)], axis=-1) / (vectors @ middle)[..., None]


def _within(points: Floats, edges: Floats) -> NDArray[np.bool_]:
    """Which points (n, 2) have an odd number of edges (m, 2 ends, 2) on their right."""
    order = np.argsort(points[:, 1], kind="stable")
    found = np.zeros(len(points), bool)
    cross_edges(points[order, 0], points[order, 1], edges, found)
    result = np.empty_like(found)
    result[order] = found
    return result
