"""The coarse grid of a downscaling, and the fine cells that belong to its cells.

A fine cell belongs to the coarse cell that its centre lies in. Coarse cells have numbers of the whole grid, so that
they are the same for each domain, piece and block.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from espo_luigi.errors import DataError
from espo_luigi.science.chunks import indexer, is_lazy, join, rechunk
from espo_luigi.science.conservative import Boxes, cells_of
from espo_luigi.science.regrid import BOUNDS, horizontal_of
from espo_luigi.science.sphere import Floats, unit_vectors
from espo_luigi.science.stack import ORIGINAL_SHAPE, STACKED_DIM

Integers = NDArray[np.int64]
Edges = tuple[tuple[float, ...], tuple[float, ...]]

# Degrees by which coordinates may be off: files may have float32.
ROUND_OFF = 1e-5
_CELLS_IN_A_BLOCK = 1000


@dataclass(frozen=True)
class CoarseGrid:
    """Cells between parallels and meridians.

    `cells` are degrees of which 180 is a whole multiple, the width of cells all over the globe, or the latitudes and
    the longitudes of the cells' edges, ascending, as `edges_in` returns them.
    """

    cells: float | Edges

    @functools.cached_property
    def edges(self) -> tuple[Floats, Floats]:
        """Latitudes and longitudes of the cells' edges, ascending."""
        if isinstance(self.cells, tuple):
            return np.array(self.cells[0]), np.array(self.cells[1])
        rows = round(180 / self.cells)
        return self.cells * np.arange(rows + 1.0) - 90, self.cells * np.arange(2 * rows + 1.0)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows from south to north, and columns from the first edge east on."""
        lat, lon = self.edges
        return lat.size - 1, lon.size - 1

    @property
    def name(self) -> str:
        """The width in degrees, or how many cells a file has."""
        return "{} x {} cells".format(*self.shape) if isinstance(self.cells, tuple) else str(self.cells)

    @functools.cached_property
    def key(self) -> str:
        """A short name for files, which differs where the cells differ."""
        return "{}x{}-{}".format(*self.shape, hashlib.sha256(repr(self.cells).encode()).hexdigest()[:8])

    @property
    def area(self) -> float:
        """The mean area of cells, degrees squared."""
        return float(np.prod([np.diff(edges).mean() for edges in self.edges]))

    @property
    def goes_round(self) -> bool:
        """Whether the last column is next to the first one."""
        return bool(np.ptp(self.edges[1]) > 360 - ROUND_OFF)

    def numbers(self, lat: Floats, lon: Floats) -> Integers:
        """Return the cells in which points (degrees) lie, -1 outside; on an edge, those to the north and the east."""
        (rows, columns), (of_rows, of_columns) = self.shape, self.edges
        lat, lon = np.asarray(lat, float) + ROUND_OFF, self._eastwards(np.asarray(lon, float) + ROUND_OFF)
        row = np.clip(np.searchsorted(of_rows, lat, "right") - 1, 0, rows - 1)
        column = np.clip(np.searchsorted(of_columns, lon, "right") - 1, 0, columns - 1)
        inside = (lat >= of_rows[0]) & (lat <= of_rows[-1] + 2 * ROUND_OFF) & (lon <= of_columns[-1] + 2 * ROUND_OFF)
        return np.where(inside, row * columns + column, -1).astype(np.int64)

    def _eastwards(self, lon: Floats) -> Floats:
        """Return longitudes that are less than 360 degrees east of the first edge."""
        west = self.edges[1][0]
        return np.asarray(west + (lon - west) % 360)

    def centres(self, numbers: Integers) -> tuple[Floats, Floats]:
        """Return latitude and longitude of cells, the latter from the first edge east on."""
        row, column = np.divmod(numbers, self.shape[1])
        lat, lon = map(_middles, self.edges)
        return lat[row], lon[column]

    def around(self, lat: Floats, lon: Floats) -> tuple[Integers, Floats]:
        """Return the four cells (point, 4) whose centres surround points, and their bilinear weights.

        Beyond the outermost centres, but for those of a grid that goes round, these are constant.
        """
        (rows, columns), (of_rows, of_columns) = self.shape, map(_middles, self.edges)
        above = np.interp(np.asarray(lat, float), of_rows, np.arange(rows))
        places = np.arange(columns)
        if self.goes_round:
            of_columns = np.concatenate([of_columns[-1:] - 360, of_columns, of_columns[:1] + 360])
            places = np.arange(-1, columns + 1)
        along = np.interp(self._eastwards(np.asarray(lon, float)), of_columns, places)
        row, column = np.floor(above), np.floor(along)
        north, east = above - row, along - column
        corners, weights = [], []
        for up, share in ((0, 1 - north), (1, north)):
            for right, part in ((0, 1 - east), (1, east)):
                corners.append(np.clip(row + up, 0, rows - 1) * columns + (column + right) % columns)
                weights.append(share * part)
        return np.stack(corners, axis=-1).astype(np.int64), np.stack(weights, axis=-1)


def _middles(edges: Floats) -> Floats:
    return (edges[:-1] + edges[1:]) / 2


def edges_in(ds: xr.Dataset) -> Edges:
    """Return the edges, to 1e-5 degrees, of a dataset's cells: CF bounds, or else half-way between 1-D lat and lon.

    Raises `DataError` if it has no such grid of two rows and two columns at least.
    """
    if not all(ds.sizes.get(name, 0) > 1 for name in ("lat", "lon")):
        raise DataError(f"expected two or more lat and lon, each on its own dimension; got {dict(ds.sizes)}")
    given = [str({**ds[name].encoding, **ds[name].attrs}.get("bounds")) for name in ("lat", "lon")]
    if set(given) <= set(ds.variables):
        ds = ds.assign_coords({name: ds[one].variable for name, one in zip(BOUNDS, given, strict=True)})
    cells = cells_of(horizontal_of(ds, "source").grid)
    assert isinstance(cells, Boxes)
    both = (cells.lat, cells.lon[np.ptp(cells.lon, axis=1) > 0])
    lat, lon = (np.append(np.sort(one[:, 0]), one.max()).round(5).tolist() for one in both)
    return tuple(lat), tuple(lon)


@dataclass(frozen=True, eq=False)
class Places:
    """Where fine cells lie among coarse cells that have data."""

    numbers: Integers  # the coarse cell, with or without data, that each fine cell lies in
    own: Integers  # the place, among those with data, of this coarse cell, or else of the nearest
    nearest: NDArray[np.bool_]  # whether it is only the nearest
    # The places of four coarse cells (fine, 4), and their bilinear weights: those around the fine cell or, if one of
    # them has no data, its own.
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
    lone = (~there & (weights > ROUND_OFF)).any(axis=-1) | ~known
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
        If no coarse cell holds more than one fine cell, or the grid does not reach one.
    """
    inside = grid.numbers(cells["lat"].values, cells["lon"].values)
    numbers, inverse, count = np.unique(inside, return_inverse=True, return_counts=True)
    if beyond := int((inside < 0).sum()):
        raise DataError(
            f"the coarse grid ({grid.name}) does not reach {beyond} of the reference's {inside.size} cells. Give a "
            "file that covers the domain."
        )
    if count.max(initial=0) < 2:
        raise DataError(
            f"the coarse grid ({grid.name}) is no coarser than the reference: none of its cells holds the centres of "
            "two cells of the reference. Give larger cells."
        )
    area = np.bincount(inverse, weights=areas_of(cells))
    return np.asarray(numbers[area >= least_share * area.max()])


def coarse_cells(grid: CoarseGrid, numbers: Integers, *, west: float) -> tuple[xr.Dataset, xr.Dataset]:
    """Return coarse cells along `loc`, in the order of `numbers`, and the complete grid that has them, with `land`.

    Longitudes count from the edge of cells below `west` on. The grid has a row and a column more, so that it is never
    a single one.
    """
    (of_rows, of_columns), columns = grid.edges, grid.shape[1]
    row, column = np.divmod(numbers, columns)
    first = columns * round((west - of_columns[0]) / 360)
    if grid.goes_round:
        rounds, beyond = np.divmod(west - of_columns[0] + ROUND_OFF, 360)
        first = int(rounds) * columns + int(np.searchsorted(of_columns - of_columns[0], beyond, "right")) - 1
    column = (column - first) % columns + first
    all_columns = _and_one_more(column, first + columns * (1 + grid.goes_round))
    rows = _and_one_more(row, grid.shape[0])
    turns, east = np.divmod(all_columns, columns)
    south_north = np.stack([of_rows[rows], of_rows[rows + 1]], axis=-1)
    west_east = np.stack([of_columns[east], of_columns[east + 1]], axis=-1) + 360 * turns[:, None]
    lat, lon = south_north.mean(axis=1), west_east.mean(axis=1)
    land = np.zeros((rows.size, all_columns.size), bool)
    land[row - rows[0], column - all_columns[0]] = True
    whole = xr.Dataset(
        {"land": (("lat", "lon"), land, {"long_name": "cells that have data"})},
        {"lat": ("lat", lat, _LAT), "lon": ("lon", lon, _LON)},
    )
    if isinstance(grid.cells, tuple):  # centres need not lie in the middle of those beside them
        both = (("lat", "vertices"), south_north), (("lon", "vertices"), west_east)
        whole = whole.assign_coords(dict(zip(BOUNDS, both, strict=True)))
    shape = {ORIGINAL_SHAPE: f"{rows.size}x{all_columns.size}"}
    at, along = lat[row - rows[0]], lon[column - all_columns[0]]
    cells = xr.Dataset(coords={"lat": (STACKED_DIM, at, _LAT | shape), "lon": (STACKED_DIM, along, _LON | shape)})
    return cells, whole


def _and_one_more(places: Integers, count: int) -> Integers:
    """Return all places from the first to the last, and one more before or after, of so many."""
    last = min(int(places.max()) + 1, count - 1)
    return np.arange(min(int(places.min()), last - 1), last + 1)


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
        means = xr.apply_ufunc(
            _means,
            block,
            kwargs={"areas": areas[part], "starts": starts},
            input_core_dims=[[STACKED_DIM]],
            output_core_dims=[["coarse"]],
            dask="parallelized",
            dask_gufunc_kwargs={"output_sizes": {"coarse": starts.size}},
            output_dtypes=[next(iter(block.data_vars.values())).dtype],
            keep_attrs=True,
        )
        parts.append(means.rename(coarse=STACKED_DIM))
    made: xr.Dataset = join(parts, STACKED_DIM)
    return made


def _means(values: np.ndarray, areas: Floats, starts: Integers) -> np.ndarray:
    weighed = np.add.reduceat(values.astype(np.float64) * areas, starts, axis=-1)
    return np.asarray((weighed / np.add.reduceat(areas, starts)).astype(values.dtype))


def with_neighbours(
    parts: Sequence[xr.Dataset], place: int, grid: CoarseGrid, cells: slice | Integers = slice(None)
) -> tuple[xr.Dataset, Integers]:
    """Return all cells of stacked parts that share a coarse cell with cells of the one at `place`, and where these are.

    Lazy. `cells` are places in that part, whose attributes coordinates have.
    """
    own, first = parts[place], sum(part.sizes[STACKED_DIM] for part in parts[:place])
    whole, wanted = join(parts, STACKED_DIM), np.arange(first, first + own.sizes[STACKED_DIM])[cells]
    numbers = grid.numbers(whole["lat"].values, whole["lon"].values)
    together = np.flatnonzero(np.isin(numbers, numbers[wanted]))
    made = whole.isel({STACKED_DIM: indexer(together)})
    for name, coord in own.coords.items():
        made[name].attrs = coord.attrs
    return made, np.searchsorted(together, wanted)


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
