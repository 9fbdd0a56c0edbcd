"""Means over regions: polygons, boxes and points, weighted by the areas that cells share with them.

The cells are those of the conservative regridding. GEOS, by way of shapely, intersects them with polygons on longitude
and the sine of latitude, which keep areas.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.science.chunks import join
from espo_luigi.science.conservative import Boxes, Cells, cells_of, conservative_weights
from espo_luigi.science.geometry.boxes import Box
from espo_luigi.science.geometry.cells import extent, horizontal_dims
from espo_luigi.science.geometry.polygons import check_crossings, read_polygons
from espo_luigi.science.outcomes.natures import means_of
from espo_luigi.science.regrid import horizontal_of
from espo_luigi.science.sphere import unit_vectors

# Edges of polygons are straight in degrees; pieces of this length are straight on the sine of latitude, too. Parts of a
# polygon with more vertices are cut. So many cells are outlined at a time.
_EDGE_DEGREES, _PART_VERTICES, _CELLS = 0.1, 1000, 10_000
# Above all countries and coasts: more takes minutes.
_LONGEST_DEGREES, _MOST_VERTICES, _MOST_CROSSINGS = 30_000, 5_000_000, 5000


@dataclass(frozen=True)
class Point:
    """A place in degrees, whose nearest cell is taken."""

    lon: float
    lat: float


Region = Any
"""A `Box`, a `Point`, or a polygon or several of shapely in degrees."""


def parse_regions(files: Mapping[str, bytes], name_by: str) -> dict[str, Region]:
    """Return the polygons of a file by the names in the property `name_by`.

    `files` are those of `read_polygons`. Raises `DataError` as it does, and if the property is missing.
    """
    import shapely

    found: dict[str, list[Any]] = {}
    for at, polygons, properties in read_polygons(files):
        name = properties.get(name_by)
        if name is None or name == "" or isinstance(name, list | dict):
            got = ", ".join(f"{key}: {str(value)[:40]!r}" for key, value in properties.items()) or "none"
            raise DataError(f"{at.rstrip(',')}: no property {name_by!r} to name regions by; got {got}.")
        found.setdefault(str(name), []).append(polygons)
    for name, parts in found.items():
        check_crossings(parts, f"the region {name!r}")
    return {name: shapely.union_all(parts) for name, parts in found.items()}


def region_means(ds: xr.Dataset, regions: Mapping[str, Region], land: xr.DataArray | None = None) -> xr.Dataset:
    """Return the means over regions, along a new dimension `region` of their names; lazy.

    NaN is left out, so a mean is that of the cells with a value; so are variables of categories. Days of the year have
    the circular mean. `coverage` is the part of the region's area in cells of the grid (on `land`); `lat` and `lon` are
    the middle of its cells. Percentiles over members are no means of percentiles: take the means of members first.

    Parameters
    ----------
    ds
        On a regular grid, or on one with `lat` and `lon` of two dimensions; longitudes in any convention.
    land
        Boolean (y, x): cells with data. Without it, a region in the sea is NaN, and no error.

    Raises
    ------
    DataError
        If a region has no cell of the grid, or none with data.
    """
    y, x = horizontal_dims(ds)
    horizontal = horizontal_of(ds, "grid")
    cells, shape = cells_of(horizontal.grid.with_square_cells()), horizontal.grid.shape
    numbers = {name: da for name, da in ds.items() if {y, x} <= set(da.dims) and da.dtype.kind in "fiub"}
    on_grid = xr.Dataset(numbers).filter_by_attrs(flag_values=None)
    on_grid = on_grid.drop_vars([name for name, c in on_grid.coords.items() if {y, x} & set(c.dims)])
    means, coverage, centres, outlines = [], [], [], functools.cache(lambda: _outlines(cells))
    for name, region in regions.items():
        try:
            shares = _shares(region, cells, horizontal.grid, outlines)
        except DataError as error:
            raise DataError(f"The region {name!r} {error}") from error
        share = xr.DataArray(shares.reshape(shape), dims=horizontal.dims)
        if not (share > 0).any():
            raise DataError(
                f"The region {name!r} lies outside of the domain: got {_told(region)}, and the grid reaches from "
                f"{extent(ds['lat'])} degrees north and {extent(ds['lon'])} degrees east. Leave the region out."
            )
        share = share if land is None else share.where(xr.DataArray(land.transpose(y, x).values, dims=(y, x)), 0.0)
        if not (share > 0).any():
            raise DataError(f"The region {name!r} has no land cell: got {_told(region)}. Move or leave out the region.")
        rows, columns = (np.flatnonzero((share > 0).any(other)) for dim, other in ((y, x), (x, y)))
        box = {y: slice(rows[0], rows[-1] + 1), x: slice(columns[0], columns[-1] + 1)}
        within = share.isel(box)
        # Without a variable, there are no rows and columns.
        cut = on_grid and on_grid.isel(box)
        means.append(cut and means_of(cut, lambda ds: ds.weighted(within).mean((y, x), keep_attrs=True)))  # noqa: B023
        coverage.append(float(share.sum()))
        centres.append(share.values.ravel() @ horizontal.grid.unit_vectors().reshape(-1, 3))
    out: xr.Dataset = join(means, xr.DataArray(list(regions), dims="region", name="region"))
    part = {"long_name": "part of the region's area in cells of the grid", "units": "1"}
    first, second, up = np.reshape(centres, (-1, 3)).T
    lat, lon = np.rad2deg([np.arctan2(up, np.hypot(first, second)), np.arctan2(second, first)])
    out = out.assign_coords(
        coverage=("region", np.minimum(coverage, 1), part),
        lat=("region", lat, {"standard_name": "latitude", "units": "degrees_north"}),
        lon=("region", lon, {"standard_name": "longitude", "units": "degrees_east"}),
    )
    return out.assign_attrs(ds.attrs)


def _told(region: Region) -> str:
    if isinstance(region, Point):
        return f"{region.lat:g} degrees north, {region.lon:g} degrees east"
    return str(region if isinstance(region, Box) else Box(*np.reshape(region.bounds, (2, 2)).T.tolist()))


def _shares(region: Region, cells: Cells, grid: Any, outlines: Callable[[], Any]) -> np.ndarray:
    """The part of the region's area in each cell, in C order; of a point, 1 in the nearest cell."""
    if isinstance(region, Box):
        (west, east), lat = region
        target = Boxes(np.array([lat], float), np.array([[west, east if east > west else east + 360]], float))
        return np.nan_to_num(conservative_weights(cells, target).toarray()[0])
    if isinstance(region, Point):
        place = unit_vectors(np.array(region.lat), np.array(region.lon))
        distance = np.linalg.norm(grid.unit_vectors() - place, axis=-1)
        # The centre of the cell that holds the point is not farther than a cell's diagonal.
        is_near = distance.min() <= np.deg2rad(np.hypot(*grid.largest_steps())) / 2
        return (np.arange(distance.size) == distance.argmin()).astype(float) * is_near
    import shapely

    if region.length > _LONGEST_DEGREES or shapely.get_num_coordinates(region) > _MOST_VERTICES:
        raise _too_intricate(region)
    areas, tree = np.zeros(cells.size), outlines()
    flat = shapely.segmentize(region, _EDGE_DEGREES)
    flat = shapely.transform(flat, lambda at: np.column_stack([at[:, 0], np.sin(np.deg2rad(at[:, 1]))]))
    flat = shapely.make_valid(flat, method="structure", keep_collapsed=False)
    for part, turn in itertools.product(_cut(flat), (-360, 0, 360)):
        turned = shapely.transform(part, lambda at, turn=turn: at + np.array([turn, 0]))
        found = tree.query(turned, predicate="intersects")
        areas[found] += shapely.area(shapely.intersection(tree.geometries[found], turned))
    return areas / flat.area


def _cut(polygon: Any) -> Iterator[Any]:
    """Parts of few vertices. Raises `DataError` for zigzags: GEOS is slow, quadratically, in the edges a cut meets."""
    import shapely

    if shapely.get_num_coordinates(polygon) <= _PART_VERTICES:
        yield polygon
        return
    west, south, east, north = polygon.bounds
    lon, lat = (west + east) / 2, (south + north) / 2
    at, ring = shapely.get_coordinates(shapely.get_rings(shapely.get_parts(polygon)), return_index=True)
    is_behind = at > (lon, lat)
    if ((is_behind[1:] != is_behind[:-1]) & (ring[1:] == ring[:-1])[:, None]).sum(axis=0).max() > _MOST_CROSSINGS:
        raise _too_intricate(polygon)
    for half in itertools.product((west, lon), (south, lat)):
        yield from _cut(shapely.clip_by_rect(polygon, *half, half[0] + lon - west, half[1] + lat - south))


def _too_intricate(polygon: Any) -> DataError:
    import shapely

    return DataError(
        f"is too intricate: its outline has {shapely.get_num_coordinates(polygon)} vertices and {polygon.length:.0f} "
        f"degrees; expected an outline that is no zigzag, of at most {_MOST_VERTICES} vertices and {_LONGEST_DEGREES} "
        "degrees. Simplify the polygon: ogr2ogr -simplify 0.01 new.geojson FILE"
    )


def _outlines(cells: Cells) -> Any:
    """A tree of cells as polygons; those without corners are empty."""
    import shapely

    if isinstance(cells, Boxes):
        row, column = np.divmod(np.arange(cells.size), len(cells.lon))
        (south, north), (west, east) = np.sin(np.deg2rad(cells.lat[row])).T, _turned(cells.lon)[column].T
        return shapely.STRtree(shapely.box(west, south, east, north))
    parts = np.array_split(cells.corners, cells.size // _CELLS + 1)
    return shapely.STRtree(np.concatenate([_quadrilaterals(part) for part in parts]))


def _quadrilaterals(corners: np.ndarray) -> np.ndarray:
    import shapely

    # A corner at a pole has no longitude.
    along = np.clip(np.linspace(0, 1, 21), 1e-3, 1 - 1e-3)[:, None]
    between = corners[:, :, None] * (1 - along) + np.roll(corners, -1, axis=1)[:, :, None] * along
    x, y, z = np.moveaxis(between.reshape(len(corners), -1, 3), -1, 0)
    sine = z / np.sqrt(x**2 + y**2 + z**2)
    lon = _turned(np.rad2deg(np.unwrap(np.arctan2(y, x)[:, [*range(x.shape[1]), 0]])))
    # The outline of the cell around a pole goes along the pole, too.
    pole = np.where(np.abs(lon[:, -1] - lon[:, 0]) > 1, np.sign(sine[:, 0]), sine[:, 0])
    around = np.column_stack([lon, lon[:, -1], lon[:, 0]]), np.column_stack([sine, sine[:, 0], pole, pole])
    vertices = np.stack(around, axis=-1)
    known, polygons = np.isfinite(vertices).all(axis=(1, 2)), np.full(len(corners), shapely.Polygon())
    polygons[known] = shapely.make_valid(shapely.polygons(vertices[known]), method="structure", keep_collapsed=False)
    return polygons


def _turned(lon: np.ndarray) -> np.ndarray:
    """Longitudes (cell, ...) from -180 degrees on."""
    return lon - 360 * np.floor((lon.min(axis=1, keepdims=True) + 180) / 360)
