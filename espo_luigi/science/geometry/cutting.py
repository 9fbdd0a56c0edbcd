"""Cutting regions, boxes of longitudes and latitudes with a buffer, out of raw data and of the reference."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.science.chunks import indexer
from espo_luigi.science.geometry.boxes import Box, missing_sides
from espo_luigi.science.geometry.cells import cut_to, extent, horizontal_dims, in_box, normalise_coordinates
from espo_luigi.science.stations import STATION, are_points

# Longitudes that differ by less belong to the same column.
_SAME_DEGREES = 1e-4


def subset_box(ds: xr.Dataset, region: Mapping[str, Any]) -> xr.Dataset:
    """Cut a box of longitudes and latitudes, bounds included and widened by the region's `tile_buffer`; lazy.

    A box may cross the first and the last longitude of a global grid. Columns then run from its western to its eastern
    bound, and their longitudes go on across the edge. The buffer of a box around the Earth repeats columns. Curvilinear
    grids (2-D `lat`, `lon`) are cropped to the rows and columns that reach the box, and NaN outside it. Raises
    `DataError` if no cell is in the box, or a coordinate is missing or out of order.
    """
    if are_points(ds):
        return ds.isel({STATION: np.flatnonzero(_inside(ds, region))})
    if ds["lat"].ndim == 2:
        return _crop_and_mask(ds, _inside(ds, region))
    _check_coordinates(ds)
    rows, (places, longitudes) = _rows(ds, region), _columns(ds, region)
    cut = ds.isel(lat=indexer(rows), lon=indexer(places))
    return cut if np.array_equal(cut["lon"], longitudes) else cut.assign_coords(lon=cut["lon"].copy(data=longitudes))


def cells_inside(ds: xr.Dataset, region: Mapping[str, Any]) -> xr.DataArray | bool:
    """Return which cells `subset_box` leaves inside of the box, boolean (y, x); True for 1-D `lat` and `lon`."""
    grid = normalise_coordinates(ds)
    grid = grid.drop_vars(grid.data_vars)
    if grid["lat"].ndim == 1:
        return True
    return subset_box(grid.assign(inside=xr.ones_like(grid["lat"])), region)["inside"].notnull()


def subset_boxes(ds: xr.Dataset, regions: Sequence[Mapping[str, Any]]) -> xr.Dataset:
    """Cut the cells of several regions: of 1-D coordinates, all rows and all columns that any region needs.

    Rows, columns and their coordinates keep the data's order and values. Raises `DataError` as `subset_box`, for the
    first region that does not fit the data.
    """
    if ds["lat"].ndim == 2:
        inside = functools.reduce(operator.or_, (_inside(ds, region) for region in regions))
        return ds.isel({STATION: np.flatnonzero(inside)}) if are_points(ds) else _crop_and_mask(ds, inside)
    _check_coordinates(ds)
    rows = np.unique(np.concatenate([_rows(ds, region) for region in regions]))
    columns = np.unique(np.concatenate([_columns(ds, region)[0] for region in regions]))
    return ds.isel(lat=indexer(rows), lon=indexer(columns))


def spread_over(part: xr.Dataset, grid: xr.Dataset) -> xr.Dataset:
    """Return maps of a part of a grid on the whole grid, NaN elsewhere; lazy.

    Raises
    ------
    DataError
        If a row or a column is not in the grid.
    """
    dims = horizontal_dims(grid)
    for name in dims:
        if strange := np.setdiff1d(part[name], grid[name]).size:
            raise DataError(
                f"{strange} of {part.sizes[name]} values of {name} are not in the grid of "
                f"{grid.sizes[name]}: both must be the same grid, to the last digit."
            )
    return part.reindex({dim: grid[dim] for dim in dims}).assign_coords(grid.coords)


def beyond_the_grid(ds: xr.Dataset, region: Mapping[str, Any]) -> str:
    """Say how far a region reaches beyond the outermost cells of 1-D `lat` and `lon`, or return nothing.

    Values there would be extrapolated. Allowed are `tile_buffer` steps of the grid, or half a step, where a cell ends,
    and any distance between the outermost row and a pole. 2-D coordinates are not checked here, since their corners
    need not reach those of a box: `regrid.check_reach` checks each cell.
    """
    if ds["lat"].ndim == 2:
        return ""
    lat, lon, cells = ds["lat"], ds["lon"], max(float(region.get("tile_buffer") or 0), 0.5)
    data = Box(_ends(lon), (float(lat.min()), float(lat.max())))
    (west, east), (south, north) = data
    step_lon, step_lat = _largest_step(lon, 0), _largest_step(lat, 0)
    reach = data.widened(cells * step_lon, cells * step_lat)
    # A globe has no room for a column between its last and its first, nor for a row between the outermost and the pole.
    if east - west + 1.5 * step_lon >= 360:
        reach = reach._replace(lon_bnds=(0, 360))
    poles = -90 if south - step_lat <= -90 else reach.lat_bnds[0], 90 if north + step_lat >= 90 else reach.lat_bnds[1]
    wanted = Box(tuple(region["lon_bnds"]), tuple(region["lat_bnds"]))
    beyond = missing_sides(wanted, reach._replace(lat_bnds=poles), tolerance=1e-6)
    return (
        f"region {region['name']} ({wanted}) reaches beyond the data ({data}): {beyond} further than {cells:g} cells"
        if beyond
        else ""
    )


def _ends(lon: xr.DataArray) -> tuple[float, float]:
    """Return the western and the eastern end of longitudes that may begin anywhere: the sides of their widest gap."""
    values = np.sort(np.asarray(lon.values, dtype="float64") % 360)
    gaps = np.diff(np.append(values, values[0] + 360))
    widest = int(gaps.argmax())
    return float(values[(widest + 1) % values.size]) - (360.0 if widest + 1 < values.size else 0.0), float(
        values[widest]
    )


def _check_coordinates(ds: xr.Dataset) -> None:
    """Check the values of `lat` and `lon`: latitudes of rows are in order; longitudes may begin anywhere."""
    for name, most in (("lat", 90.001), ("lon", 720)):
        values, units = np.asarray(ds[name].values), str(ds[name].attrs.get("units", "degrees"))
        if values.dtype.kind not in "fiu" or units.lower().startswith("rad"):
            raise DataError(f"{name} holds {values.dtype} in {units}; expected degrees.")
        if missing := int((~np.isfinite(values)).sum()):
            raise DataError(f"{missing} of {values.size} values of {name} are missing; expected all of them.")
        if np.abs(values).max() > most:
            raise DataError(f"{name} is {extent(ds[name])}; expected degrees, {most:.0f} at most.")
    if ds["lat"].ndim == 2:
        return
    steps, around = np.diff(ds["lat"].values), np.sort(ds["lon"].values % 360)
    if not ((steps > 0).all() or (steps < 0).all()):
        raise DataError(f"lat neither rises nor falls from row to row ({extent(ds['lat'])}); expected rows in order.")
    # A global grid may have its first column again as its last.
    if (np.diff(around) < _SAME_DEGREES).sum() > 1:
        raise DataError(f"several columns have the same lon ({extent(ds['lon'])}); expected one each.")


def _rows(ds: xr.Dataset, region: Mapping[str, Any]) -> np.ndarray:
    """Return which rows lie within a region's latitudes."""
    south, north = _bounds(ds, region).lat_bnds
    # In the coordinate's own dtype, as `in_box`.
    rows = np.flatnonzero((ds["lat"].values >= south) & (ds["lat"].values <= north))
    return rows if rows.size else _refuse(ds, region)


def _columns(ds: xr.Dataset, region: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return which columns lie within a region's longitudes, in their order there, and these longitudes."""
    lon, (west, east) = ds["lon"].values, _bounds(ds, region).lon_bnds
    moved = np.stack([lon, lon - 360, lon + 360])
    turn, places = np.nonzero((moved >= west) & (moved <= east))
    if not places.size:
        return _refuse(ds, region)
    found = moved[turn, places]
    if turn.any() or np.any(np.diff(found) <= 0):
        order = np.argsort(found, kind="stable")
        # A global grid may have its first column again as its last; and a box of 360 degrees has both of its ends.
        order = order[np.append(True, np.diff(found[order]) > _SAME_DEGREES)]
        if found[order[-1]] - found[order[0]] > 360 - _SAME_DEGREES and not region.get("tile_buffer"):
            order = order[:-1]
        places, found = places[order], found[order]
        if np.median(np.diff(lon)) < 0:
            places, found = places[::-1], found[::-1]
    return places, found


def _inside(ds: xr.Dataset, region: Mapping[str, Any]) -> xr.DataArray:
    """Return which cells of a curvilinear grid lie within a region's bounds."""
    inside = in_box(ds, _bounds(ds, region))
    return inside if inside.any() else _refuse(ds, region)


def _refuse(ds: xr.Dataset, region: Mapping[str, Any]) -> NoReturn:
    (west, east), (south, north) = _bounds(ds, region)
    raise DataError(
        f"region {region['name']} ({west:g} to {east:g} °E, {south:g} to {north:g} °N with its buffer) "
        f"holds no cell of the data ({extent(ds['lon'])} °E, {extent(ds['lat'])} °N)."
    )


def _bounds(ds: xr.Dataset, region: Mapping[str, Any]) -> Box:
    """Return a region's bounds with its buffer, as the data count longitudes."""
    cells = float(region.get("tile_buffer") or 0)
    (south, north), (west, east) = sorted(map(float, region["lat_bnds"])), _in_convention(ds["lon"], region)
    margins = cells * _largest_step(ds["lon"], -1), cells * _largest_step(ds["lat"], 0)
    return Box((west - margins[0], east + margins[0]), (south - margins[1], north + margins[1]))


def _largest_step(coordinate: xr.DataArray, axis: int) -> float:
    values = np.asarray(coordinate.values, dtype="float64")
    if values.shape[axis] < 2:
        return 0.0
    steps = np.abs(np.diff(values, axis=axis))
    # Where a global grid crosses its own edge the step is 360° minus the difference.
    return float(np.nanmax(np.minimum(steps, np.abs(360.0 - steps))))


def _in_convention(lon: xr.DataArray, region: Mapping[str, Any]) -> tuple[float, float]:
    """Return the region's western and eastern bound, turned so that most of its cells keep their longitudes."""
    west, east = (float(bound) for bound in region["lon_bnds"])

    def cells(turn: int) -> int:
        return int(((lon >= west + turn) & (lon <= east + turn)).sum())

    turns = [turn for turn in (0, 360, -360) if cells(turn)]
    # A region narrower than a cell, or beyond the data: the turn that is nearest to them.
    nearest = 360 * round(float(lon.min() + lon.max() - west - east) / 2 / 360)
    turn = max(turns, key=cells, default=nearest)
    return west + turn, east + turn


def _crop_and_mask(ds: xr.Dataset, inside: xr.DataArray) -> xr.Dataset:
    y, x = map(str, inside.dims)
    rows = np.flatnonzero(inside.any(x).values)
    columns = _side_by_side(inside.any(y).values, ds["lon"])
    cropped, _ = cut_to(ds, inside, {y: slice(int(rows[0]), int(rows[-1]) + 1), x: indexer(columns)})
    _check_coordinates(cropped)
    return cropped


def _side_by_side(wanted: np.ndarray, lon: xr.DataArray) -> np.ndarray:
    """Return the wanted columns of a curvilinear grid with those between them, across its edge if it is a globe's."""
    columns, number = np.flatnonzero(wanted), wanted.size
    gaps = np.diff(np.append(columns, columns[0] + number))
    widest, first_to_last = int(gaps.argmax()), lon.isel({lon.dims[1]: [0, -1]})
    if widest == columns.size - 1 or _largest_step(first_to_last, 1) > 1.5 * _largest_step(lon, 1):
        return np.arange(columns[0], columns[-1] + 1)
    start = columns[widest + 1]
    return np.arange(start, start + number - gaps[widest] + 1) % number
