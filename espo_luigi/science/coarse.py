"""The coarse grid of a downscaling: cells with edges at whole multiples, and the fine cells that belong to them.

A fine cell belongs to the coarse cell that its centre lies in. Coarse cells have numbers of the whole globe, so that
they are the same for each domain, piece and block.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from espo_luigi.errors import DataError
from espo_luigi.science.chunks import indexer, is_lazy, join, rechunk
from espo_luigi.science.sphere import Floats, unit_vectors
from espo_luigi.science.stack import ORIGINAL_SHAPE, STACKED_DIM

Integers = NDArray[np.int64]

# Degrees by which coordinates may be off: files may have float32.
_ROUND_OFF = 1e-5
_CELLS_IN_A_BLOCK = 1000


@dataclass(frozen=True)
class CoarseGrid:
    """A regular grid of the globe whose cells are `step` degrees wide; 180 is a whole multiple of it."""

    step: float

    @property
    def shape(self) -> tuple[int, int]:
        """Rows from south to north, and columns from 0 degrees east on."""
        rows = round(180 / self.step)
        return rows, 2 * rows

    def numbers(self, lat: Floats, lon: Floats) -> Integers:
        """Return the cells in which points (degrees) lie; those on an edge belong to the north and the east."""
        rows, columns = self.shape
        row = np.clip(np.floor((np.asarray(lat, float) + 90 + _ROUND_OFF) / self.step), 0, rows - 1)
        column = np.floor((np.asarray(lon, float) + _ROUND_OFF) / self.step) % columns
        return (row * columns + column).astype(np.int64)

    def edge_near(self, lat: float) -> float:
        """Return the latitude, just below the nearest edge of rows, that parts the cells of rows on both sides."""
        return round((lat + 90) / self.step) * self.step - 90 - _ROUND_OFF

    def centres(self, numbers: Integers) -> tuple[Floats, Floats]:
        """Return latitude and longitude (0 to 360) of cells."""
        row, column = np.divmod(numbers, self.shape[1])
        return (row + 0.5) * self.step - 90, (column + 0.5) * self.step

    def around(self, lat: Floats, lon: Floats) -> tuple[Integers, Floats]:
        """Return the four cells (point, 4) whose centres surround points, and their bilinear weights."""
        rows, columns = self.shape
        above, along = (np.asarray(lat, float) + 90) / self.step - 0.5, np.asarray(lon, float) / self.step - 0.5
        row, column = np.floor(above), np.floor(along)
        north, east = above - row, along - column
        corners, weights = [], []
        for up, share in ((0, 1 - north), (1, north)):
            for right, part in ((0, 1 - east), (1, east)):
                corners.append(np.clip(row + up, 0, rows - 1) * columns + (column + right) % columns)
                weights.append(share * part)
        return np.stack(corners, axis=-1).astype(np.int64), np.stack(weights, axis=-1)


@dataclass(frozen=True, eq=False)
class Places:
    """Where fine cells lie among coarse cells that have data.

    Attributes
    ----------
    numbers
        The coarse cell, with or without data, that each fine cell lies in.
    own
        The place, among those with data, of this coarse cell, or else of the nearest.
    nearest
        Fine cells whose own coarse cell is only the nearest.
    corners, weights
        The places of four coarse cells (fine, 4), and their bilinear weights: those around the fine cell or, if one of
        them has no data, its own.
    """

    numbers: Integers
    own: Integers
    nearest: NDArray[np.bool_]
    corners: Integers
    weights: Floats


def places_of(grid: CoarseGrid, numbers: Integers, lat: Floats, lon: Floats) -> Places:
    """Return where fine cells (degrees) lie among the coarse cells of these numbers, ascending."""
    from scipy.spatial import cKDTree

    inside = grid.numbers(lat, lon)
    own, known = _found(numbers, inside)
    if not known.all():
        tree = cKDTree(unit_vectors(*grid.centres(numbers)))
        own[~known] = tree.query(unit_vectors(lat[~known], lon[~known]))[1]
    around, weights = grid.around(lat, lon)
    corners, there = _found(numbers, around)
    lone = (~there & (weights > _ROUND_OFF)).any(axis=-1) | ~known
    corners = np.where(lone[:, None] | (weights <= 0) | ~there, own[:, None], corners)
    weights = np.where(lone[:, None], np.array([1.0, 0, 0, 0]), weights)
    return Places(inside, own, ~known, corners, weights)


def areas_of(cells: xr.Dataset) -> Floats:
    """Return what stacked cells weigh in means: areas on grids of latitudes and longitudes, rotated too; else 1."""
    rows = {str(name) for name, one in cells.coords.items() if one.dims == (STACKED_DIM,)} - {"lat", "lon", "rlon"}
    if rows not in ({"rlat"}, set()):  # coordinates of a projection
        return np.ones(cells.sizes[STACKED_DIM])
    return np.cos(np.deg2rad(cells["rlat" if rows else "lat"].values.astype(float)))


def coarse_numbers(grid: CoarseGrid, cells: xr.Dataset, least_share: float = 0.0) -> Integers:
    """Return the numbers, ascending, of the coarse cells that stacked fine cells cover by a share at least.

    The share is that of the areas in the coarse cell, of those in the fullest coarse cell.

    Raises
    ------
    DataError
        If no coarse cell holds more than one fine cell.
    """
    numbers, inverse, count = np.unique(
        grid.numbers(cells["lat"].values, cells["lon"].values), return_inverse=True, return_counts=True
    )
    if count.max(initial=0) < 2:
        raise DataError(
            f"the coarse grid of {grid.step:g} degrees is no coarser than the reference: none of its cells holds the "
            "centres of two cells of the reference. Give a larger step."
        )
    area = np.bincount(inverse, weights=areas_of(cells))
    return np.asarray(numbers[area >= least_share * area.max()])


def by_coarse_cells(cells: xr.Dataset, grid: CoarseGrid) -> xr.Dataset:
    """Return stacked cells in another order: those that lie in the same coarse cell one after the other. Lazy."""
    numbers = grid.numbers(cells["lat"].values, cells["lon"].values)
    return cells.isel({STACKED_DIM: indexer(np.argsort(numbers, kind="stable"))})


def coarse_cells(grid: CoarseGrid, numbers: Integers, *, west: float) -> tuple[xr.Dataset, xr.Dataset]:
    """Return coarse cells along `loc`, in the order of `numbers`, and the complete grid that has them, with `land`.

    Longitudes count from the multiple of the step below `west` on. The grid has a row and a column more, so that it is
    never a single one.
    """
    columns = grid.shape[1]
    first = round(np.floor(west / grid.step + _ROUND_OFF))
    row, column = np.divmod(numbers, columns)
    column = (column - first) % columns + first
    rows, all_columns = np.arange(row.min(), row.max() + 2), np.arange(column.min(), column.max() + 2)
    rows = rows - 1 if rows[-1] >= grid.shape[0] else rows
    lat, lon = (rows + 0.5) * grid.step - 90, (all_columns + 0.5) * grid.step
    land = np.zeros((rows.size, all_columns.size), bool)
    land[row - rows[0], column - all_columns[0]] = True
    whole = xr.Dataset(
        {"land": (("lat", "lon"), land, {"long_name": "cells that have data"})},
        {"lat": ("lat", lat, _LAT), "lon": ("lon", lon, _LON)},
    )
    shape = {ORIGINAL_SHAPE: f"{rows.size}x{all_columns.size}"}
    at, along = lat[row - rows[0]], lon[column - all_columns[0]]
    cells = xr.Dataset(coords={"lat": (STACKED_DIM, at, _LAT | shape), "lon": (STACKED_DIM, along, _LON | shape)})
    return cells, whole


_LAT = {"units": "degrees_north", "standard_name": "latitude", "axis": "Y"}
_LON = {"units": "degrees_east", "standard_name": "longitude", "axis": "X"}


def coarse_means(fine: xr.Dataset, grid: CoarseGrid, numbers: Integers) -> xr.Dataset:
    """Return the means (time, loc) of stacked fine cells in coarse cells, weighed by their areas; lazy on dask.

    Cells lie in the order of `numbers`, ascending, and have no coordinates. Fine cells of other coarse cells do not
    count; NaN in one that counts makes the mean NaN.
    """
    own, known = _found(numbers, grid.numbers(fine["lat"].values, fine["lon"].values))
    order = np.flatnonzero(known)[np.argsort(own[known], kind="stable")]
    bare = fine.drop_vars([name for name, coord in fine.coords.items() if STACKED_DIM in coord.dims])
    areas, parts = areas_of(fine)[order], []
    for part in whole_cells(own[order], _CELLS_IN_A_BLOCK):
        block = bare.isel({STACKED_DIM: indexer(order[part])})
        block = rechunk(block, {STACKED_DIM: -1, "time": -1}) if is_lazy(block) else block
        starts = np.flatnonzero(np.diff(own[order[part]], prepend=-1))
        means = {name: _means(data, areas[part], starts) for name, data in block.data_vars.items()}
        parts.append(block.drop_vars(list(means)).assign(means))
    made: xr.Dataset = join(parts, STACKED_DIM)
    return made


def _means(data: xr.DataArray, areas: Floats, starts: Integers) -> xr.DataArray:
    def mean(block: np.ndarray) -> np.ndarray:
        weighed = np.add.reduceat(block.astype(np.float64) * areas, starts, axis=-1)
        return (weighed / np.add.reduceat(areas, starts)).astype(block.dtype)

    return xr.apply_ufunc(
        mean,
        data,
        input_core_dims=[[STACKED_DIM]],
        output_core_dims=[["coarse"]],
        dask="parallelized",
        dask_gufunc_kwargs={"output_sizes": {"coarse": starts.size}},
        output_dtypes=[data.dtype],
        keep_attrs=True,
    ).rename(coarse=STACKED_DIM)


def whole_cells(inside: Integers, most: int) -> list[slice]:
    """Cut fine cells, in the order of the coarse cells that they lie in, into blocks of whole coarse cells.

    A block has `most` fine cells at most, or a single coarse cell.
    """
    ends = np.append(np.flatnonzero(np.diff(inside)) + 1, inside.size)
    blocks, first, last = [], 0, 0
    for end in ends.tolist():
        if last > first and end - first > most:
            blocks.append(slice(first, last))
            first = last
        last = end
    return [*blocks, slice(first, last)]


def _found(numbers: Integers, wanted: Integers) -> tuple[Integers, NDArray[np.bool_]]:
    """Return the places of wanted numbers among ascending ones, and which of them are there."""
    places = np.minimum(np.searchsorted(numbers, wanted), numbers.size - 1)
    return places, numbers[places] == wanted
