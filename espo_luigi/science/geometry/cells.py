"""Where cells lie: names of latitude and longitude, horizontal dimensions, the cells of boxes, polygons and domains.

Datasets may follow any convention of longitudes.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from espo_luigi.errors import DataError
from espo_luigi.science.chunks import indexer
from espo_luigi.science.geometry.boxes import TOLERANCE, Box
from espo_luigi.science.sphere import cell_corners, unit_vectors
from espo_luigi.science.stations import OF_A_STATION, along_one_dimension, are_points, as_points

Floats = NDArray[np.float64]
Ring = Sequence[tuple[float, float]]
"""Vertices (degrees east, degrees north); the last one repeats the first."""
Polygon = Sequence[Ring]
"""The outline, then the holes."""

# cf-xarray's guesses take `lat_bnds` and `latent_heat` for latitudes, too.
COORDINATE_NAMES = {"lat": ("lat", "latitude", "nav_lat"), "lon": ("lon", "longitude", "nav_lon")}
# Further from its middle a domain is hardly regional, and its plane would be very large.
_LARGEST_RADIUS_DEGREES = 80


# Names and dimensions


def coordinate_names(ds: xr.Dataset) -> dict[str, str]:
    """Return what a file calls latitude and longitude, by `lat` and `lon`; those that it lacks are left out."""
    found = {}
    for name, usual in COORDINATE_NAMES.items():
        standard = (str(one) for one, data in ds.variables.items() if data.attrs.get("standard_name") == usual[1])
        there = next((one for one in usual if one in ds.variables), None) or next(standard, None)
        if there is not None:
            found[name] = there
    return found


def normalise_coordinates(ds: xr.Dataset) -> xr.Dataset:
    """Name latitude and longitude `lat` and `lon`, dimensions too; other coordinates but time and the grid's go. Lazy.

    Stations become a grid of one column (`stations.as_points`).

    Raises
    ------
    DataError
        If latitude, longitude or time is missing.
    """
    names = coordinate_names(ds)
    if missing := [name for name in ("lat", "lon", "time") if name not in {**names, **ds.indexes}]:
        raise DataError(
            f"no coordinate {' and '.join(missing)}; got {sorted(map(str, ds.variables))}. Expected time, lat and lon."
        )
    renamed = ds.rename({found: name for name, found in names.items() if found != name}).set_coords(["lat", "lon"])
    if along_one_dimension(renamed["lat"], renamed["lon"]):
        renamed = as_points(renamed)
    for name in names:
        if renamed[name].ndim == 1 and renamed[name].dims != (name,):
            renamed = renamed.swap_dims({renamed[name].dims[0]: name})
    kept = {"time", "lat", "lon", *renamed.dims, *(OF_A_STATION if are_points(renamed) else ())}
    return renamed.drop_vars([name for name in renamed.coords if name not in kept])


def horizontal_dims(data: xr.Dataset | xr.DataArray) -> tuple[str, str]:
    """Return the names of the two horizontal dimensions: (lat, lon), (rlat, rlon), or those of a 2-D `lat`."""
    for y, x in (("lat", "lon"), ("rlat", "rlon")):
        if y in data.dims and x in data.dims:
            return y, x
    if "lat" in data.coords and data["lat"].ndim == 2:
        y, x = map(str, data["lat"].dims)
        return y, x
    raise DataError(
        f"No horizontal grid in {domain_of(data)}: the dimensions are {list(data.dims)}, "
        f"expected (lat, lon), (rlat, rlon) or those of a 2-D lat."
    )


def domain_of(data: xr.Dataset | xr.DataArray) -> str:
    """Return what errors call a dataset's domain."""
    return f"the domain {data.attrs.get('cat:domain', '(no cat:domain)')!r}"


def extent(coordinate: xr.DataArray) -> str:
    """Return the least and the greatest value of a coordinate, as errors have them."""
    return f"{float(coordinate.min()):g} to {float(coordinate.max()):g}"


# Cells inside


def in_box(ds: xr.Dataset, box: Box) -> xr.DataArray:
    """Return the cells whose centre lies in a box, bounds included, boolean along those of `lat` and `lon`. In memory.

    Coordinates are compared in their own dtype, like xarray's slices: 49.4 in float32 is more than 49.4 in float64.
    """
    (west, east), (south, north) = box
    lat, lon = ds["lat"].compute(), ds["lon"].compute()
    around = ((lon + turn >= west - TOLERANCE) & (lon + turn <= east + TOLERANCE) for turn in (0, -360, 360))
    return (lat >= south) & (lat <= north) & functools.reduce(operator.or_, around)


def in_polygons(lon: np.ndarray, lat: np.ndarray, polygons: Iterable[Polygon]) -> np.ndarray:
    """Return which points lie in a valid polygon, or on its edge, and not in its holes. Longitudes are modulo 360.

    Edges are straight in degrees, as in GeoJSON: a polygon across the antimeridian is cut in two, or has longitudes
    beyond 180.
    """
    import shapely  # here, as it takes a tenth of a second, and most jobs need none

    inside = np.zeros(np.shape(lon), bool)
    for border, *holes in polygons:
        polygon = shapely.Polygon(border, holes)
        west, _, east, _ = polygon.bounds
        turns = np.round(((west + east) / 2 - lon) / 360)
        shapely.prepare(polygon)
        inside |= shapely.intersects_xy(polygon, lon + 360 * turns, lat)
    return inside


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
    if "shape" in scope:
        lat, lon = (degrees.transpose(y, x) for degrees in xr.broadcast(ds["lat"], ds["lon"]))
        inside, where = in_polygons(lon.values, lat.values, scope["shape"]), "the polygons of its file"
    else:
        box = Box(tuple(scope["lon_bnds"]), tuple(scope["lat_bnds"]))
        inside, where = in_box(ds, box).transpose(y, x).values, str(box)
    cells = xr.DataArray(inside, dims=(y, x))
    if land is not None:
        cells = cells & land.transpose(y, x).values
    if not cells.any():
        kind = "land cell" if land is not None else "cell"
        raise DataError(
            f"The scope {name!r} of the health checks holds no {kind} of the grid: got {where}, and the grid reaches "
            f"from {extent(ds['lat'])} degrees north and {extent(ds['lon'])} degrees east. Correct the bounds or the "
            "file, or remove the scope."
        )
    return cells


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


def in_outline(border: xr.Dataset, lat: xr.DataArray, lon: xr.DataArray) -> xr.DataArray:
    """Return which points lie inside of an outline. In memory.

    Borders of cells are great circles: they are straight lines on a plane that touches the domain's middle (gnomonic
    projection), so that date line and poles need no care.

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
    import shapely

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
    polygon = shapely.Polygon(_on_plane(corners, middle))
    shapely.prepare(polygon)
    found[near] = shapely.contains_xy(polygon, _on_plane(points[near], middle))
    return xr.DataArray(found.reshape(lat.shape), dims=lat.dims, name="inside")


def _on_plane(vectors: Floats, middle: Floats) -> Floats:
    """The gnomonic projection (..., 2) of unit vectors (..., 3)."""
    right = np.cross(middle, np.eye(3)[np.abs(middle).argmin()])
    right /= np.linalg.norm(right)
    return vectors @ np.stack([right, np.cross(middle, right)], axis=-1) / (vectors @ middle)[..., None]


# Cutting


def cut_to(
    ds: xr.Dataset, cells: xr.DataArray, places: Mapping[str, Any] | None = None
) -> tuple[xr.Dataset, xr.DataArray]:
    """Cut a dataset and the cells to the rows and columns that hold them; other cells there become NaN. Lazy.

    `places` are other rows and columns to cut to, by dimension.
    """
    y, x = map(str, cells.dims)
    held = {dim: indexer(np.flatnonzero(cells.any(other).values)) for dim, other in ((y, x), (x, y))}
    cut, mask = ds.isel(places or held), cells.isel(places or held).reset_coords(drop=True)
    of_cells = {name: da for name, da in cut.data_vars.items() if {y, x} <= set(da.dims)}
    return cut.assign({name: da.where(mask) for name, da in of_cells.items()}), mask


def cut_to_outline(ds: xr.Dataset, border: xr.Dataset) -> xr.Dataset:
    """Return a dataset without the rows and columns that lie outside of an outline, and NaN in other cells outside.

    A cell belongs to its centre. Coordinates keep their values in all cells that are left. Lazy on dask. Raises
    `DataError` if no cell is inside, or the dataset has no horizontal grid.
    """
    within = in_outline(border, ds["lat"], ds["lon"]).transpose(*horizontal_dims(ds))
    if not within.any():
        domain = f"{extent(border['lat'])} °N, {extent(border['lon'])} °E"
        raise DataError(f"none of {within.size} cells lies in the domain ({domain}); check whose outline it is.")
    return cut_to(ds, within)[0]
