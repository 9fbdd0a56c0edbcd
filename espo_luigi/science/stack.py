"""Stacking of the cells that have data into a dimension `loc`, and the way back to the complete grid."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import dask
import dask.array
import numpy as np
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.science.chunks import indexer
from espo_luigi.science.geometry.cells import domain_of, horizontal_dims
from espo_luigi.science.stations import are_points

logger = logging.getLogger(__name__)

STACKED_DIM = "loc"
ORIGINAL_SHAPE = "original_shape"
INCOMPLETE_CELLS = "incomplete_cells"
DEFAULT_CHUNK = 20

Sizes = tuple[tuple[int, ...], tuple[int, ...]]


def stack_drop_nans(ds: xr.Dataset) -> xr.Dataset:
    """Keep only the cells that have data, as a single dimension.

    The mask is the first data variable that has horizontal dimensions, at its first time step: cells that are not NaN
    there; a warning names the variables that are NaN in other cells at theirs. The horizontal dimensions, in C order,
    become `loc` (without an index); the horizontal coordinates (`lat`, `lon`; also `rlat`, `rlon` on a rotated grid)
    lie on `loc`, each with the attribute `original_shape` ("NLATxNLON"). Variables without horizontal dimensions stay
    as they are. Lazy on dask, except for that time step of each variable.

    Raises
    ------
    DataError
        When no cell has data, or the dataset has no horizontal grid.
    """
    y, x = horizontal_dims(ds)
    cells = _cells_with_data(ds, y, x)
    shape = f"{ds.sizes[y]}x{ds.sizes[x]}"
    stacked = ds.map(_stack_variable, keep_attrs=True, args=(y, x, cells))
    coords = {name: _stack_coord(ds, name, (y, x), cells, shape) for name in _horizontal_coords(ds, y, x)}
    return stacked.drop_vars([n for n in coords if n in stacked.coords]).assign_coords(coords).assign_attrs(ds.attrs)


def land_of(ds: xr.Dataset) -> xr.DataArray:
    """Return which cells of a dataset that is not stacked `stack_drop_nans` keeps: (y, x), boolean, in memory.

    Its attribute `incomplete_cells` counts cells where another variable has no data at its first time step. Raises
    `DataError` when the dataset has no horizontal grid.
    """
    y, x = horizontal_dims(ds)
    first, *others = _masks(ds, y, x).values()
    lacking = np.zeros(first.shape, bool)
    for mask in others:
        lacking |= first & ~mask
    attrs = {"long_name": "cells that have data", INCOMPLETE_CELLS: int(lacking.sum())}
    return xr.DataArray(first, {name: ds[name] for name in (y, x) if name in ds.coords}, (y, x), "land", attrs)


def grid_of(ds: xr.Dataset) -> xr.Dataset:
    """Return the complete horizontal coordinates of a dataset that is not stacked, without data variables.

    1-D `lat` and `lon`, or `rlat` and `rlon` with the 2-D `lat` and `lon`; `cat:domain` is kept in the attributes.
    """
    y, x = horizontal_dims(ds)
    coords = {name: ds[name].drop_vars(set(ds[name].coords) - {name}) for name in _horizontal_coords(ds, y, x)}
    attrs = {key: value for key, value in ds.attrs.items() if key == "cat:domain"}
    return xr.Dataset(coords=coords, attrs=attrs).load()


def unstack_fill_nan(
    ds: xr.Dataset, grid: xr.Dataset, chunks: Mapping[str, int] | None = None, *, part: xr.Dataset | None = None
) -> xr.Dataset:
    """Put stacked cells back on their complete grid, cells without data being NaN.

    Cells are recognised by exact equality of their coordinates with the grid's. `loc` is replaced by the grid's two
    dimensions, which come last: (time, lat, lon). Floating types and attributes are kept, those of the stacked
    coordinates (`original_shape`) on top of the grid's; so are unsigned integers, bits, which are 0 in cells without
    data; other types become float64.
    Lazy on dask, or where chunks are given. A block of the result is a task that reads only the cells that it needs, so
    that memory holds no more of the grid than is being written.

    Parameters
    ----------
    ds
        Dataset with the dimension `loc`, as made by `stack_drop_nans`; without it, it is returned as it is.
    grid
        Coordinates of the complete grid, as made by `grid_of`.
    chunks
        Size of a block along each dimension (-1 is all). Where none is given: 20 cells along the grid's dimensions,
        and the data's own blocks along others.
    part
        Coordinates of the part of the grid that is wanted, by default all of it; cells elsewhere are not read.

    Raises
    ------
    DataError
        When a cell is not on the grid, two cells are the same, or `original_shape` is not the grid's shape.
    """
    if STACKED_DIM not in ds.dims:
        return ds
    y, x = horizontal_dims(grid)
    expected = f"{grid.sizes[y]}x{grid.sizes[x]}"
    if other := {ds[name].attrs.get(ORIGINAL_SHAPE, expected) for name in (y, x) if name in ds.coords} - {expected}:
        raise DataError(
            f"The stacked data of {domain_of(ds)} come from a grid of {', '.join(other)} cells, the grid given has "
            f"{expected}: give the grid of the dataset that was stacked."
        )
    if part is not None:
        ds, grid = _cells_on(ds, part), part
    shape, cells = (grid.sizes[y], grid.sizes[x]), places_on(ds, grid)
    if repeated := cells.size - np.unique(cells).size:
        raise DataError(
            f"{repeated} of {cells.size} cells of {domain_of(ds)} have the coordinates of another: expected one each."
        )
    blocks = (_block_sizes(shape[0], y, chunks), _block_sizes(shape[1], x, chunks))
    bare = ds.drop_vars([name for name in grid.coords if name in ds.coords])
    unstacked = bare.map(_unstack_variable, keep_attrs=True, args=(cells, blocks, (y, x), chunks))
    known = {name: grid[name].assign_attrs(ds[name].attrs) for name in grid.coords if name in ds.coords}
    return unstacked.assign_coords(grid.assign_coords(known).coords).assign_attrs(ds.attrs)


def stacked_as(ds: xr.Dataset, cells: xr.Dataset) -> xr.Dataset:
    """Return fields on a grid at the cells of stacked data, without coordinates of the cells; lazy.

    Raises `DataError` when a cell is not on the grid, by exact equality of coordinates.
    """
    y, x = horizontal_dims(ds)
    return ds.map(_stack_variable, keep_attrs=True, args=(y, x, places_on(cells, ds))).drop_vars(
        [y, x], errors="ignore"
    )


def _cells_on(ds: xr.Dataset, part: xr.Dataset) -> xr.Dataset:
    """The stacked cells that lie on a part of the grid."""
    y, x = horizontal_dims(part)
    inside = np.isin(ds[y].values, part[y].values) & np.isin(ds[x].values, part[x].values)
    if not inside.any():
        raise DataError(
            f"No cell of {domain_of(ds)} has data in the part that is wanted: {part.sizes[y]} x {part.sizes[x]} cells "
            f"from {y} {float(part[y].min()):g} to {float(part[y].max()):g} and {x} {float(part[x].min()):g} to "
            f"{float(part[x].max()):g}."
        )
    return ds.isel({STACKED_DIM: indexer(np.flatnonzero(inside))})


def _horizontal_coords(ds: xr.Dataset, y: str, x: str) -> list[Hashable]:
    return [name for name, coord in ds.coords.items() if coord.dims and set(coord.dims) <= {y, x}]


def _cells_with_data(ds: xr.Dataset, y: str, x: str) -> np.ndarray:
    masks = _masks(ds, y, x)
    first, *others = masks
    if not masks[first].any():
        raise DataError(
            f"{first!r} is NaN in all {masks[first].size} cells of {domain_of(ds)} at its first time step: "
            f"expected cells with data. Check that the region's bounds cover land that the dataset covers."
        )
    differing = {name: number for name in others if (number := int((masks[name] != masks[first]).sum()))}
    if differing:
        logger.warning(
            "In %s, %r at its first time step decides which cells are kept; others have data elsewhere then: %s.",
            domain_of(ds),
            first,
            ", ".join(f"{name!r} in {number} cells" for name, number in differing.items()),
        )
    return np.flatnonzero(masks[first])


def _masks(ds: xr.Dataset, y: str, x: str) -> dict[Hashable, np.ndarray]:
    """Where each variable has data at its first time step; the first variable decides which cells are kept."""
    on_grid = {name: da for name, da in ds.data_vars.items() if y in da.dims and x in da.dims}
    if not on_grid:
        raise DataError(f"No variable on ({y}, {x}) in {domain_of(ds)}: nothing says which cells have data.")
    first_steps = {name: da.isel({dim: 0 for dim in da.dims if dim not in (y, x)}) for name, da in on_grid.items()}
    if are_points(ds):  # all count, whatever they lack on the first day
        return {name: np.ones((da.sizes[y], 1), bool) for name, da in first_steps.items()}
    lazy = {name: da.transpose(y, x).notnull().data for name, da in first_steps.items()}
    masks: dict[Hashable, np.ndarray]
    (masks,) = dask.compute(lazy)
    return masks


def _stack_variable(da: xr.DataArray, y: str, x: str, cells: np.ndarray) -> xr.DataArray:
    if y not in da.dims or x not in da.dims:
        return da
    flat = da.drop_vars([name for name in da.coords if {y, x} & set(da[name].dims)])
    return flat.stack({STACKED_DIM: (y, x)}, create_index=False).isel({STACKED_DIM: cells})


def _stack_coord(ds: xr.Dataset, name: Hashable, dims: tuple[str, str], cells: np.ndarray, shape: str) -> xr.Variable:
    missing = [dim for dim in dims if dim not in ds[name].dims]
    full = ds[name].variable.to_base_variable().set_dims({**{dim: ds.sizes[dim] for dim in missing}, **ds[name].sizes})
    return xr.Variable(
        STACKED_DIM, full.transpose(*dims).values.ravel()[cells], {**ds[name].attrs, ORIGINAL_SHAPE: shape}
    )


def places_on(ds: xr.Dataset, grid: xr.Dataset) -> np.ndarray:
    """Return the numbers, in C order, that stacked cells have on the complete grid.

    Raises `DataError` when a cell is not on the grid, by exact equality of coordinates.
    """
    y, x = horizontal_dims(grid)
    places: np.ndarray = _positions(ds, grid, y) * grid.sizes[x] + _positions(ds, grid, x)
    return places


def _positions(ds: xr.Dataset, grid: xr.Dataset, name: str) -> np.ndarray:
    """Return where each cell's coordinate lies on the grid's axis, by exact equality."""
    if name not in ds.coords:
        raise DataError(
            f"No coordinate {name!r} on {STACKED_DIM!r} in {domain_of(ds)}: cells cannot be put back on their grid."
        )
    axis, values = grid[name].values, ds[name].values
    places = grid.get_index(name).get_indexer(values)
    missed = np.flatnonzero(places < 0)
    if missed.size:
        raise DataError(
            f"{missed.size} of {values.size} cells of {domain_of(ds)} are not on the grid, the first at {name} = "
            f"{values[missed[0]]!r} (nearest on the grid: {axis[np.abs(axis - values[missed[0]]).argmin()]!r}): "
            f"give the grid of the dataset that was stacked, with unrounded coordinates."
        )
    return places


def _block_sizes(size: int, dim: str, chunks: Mapping[str, int] | None) -> tuple[int, ...]:
    chunk = dict(chunks or {}).get(dim, DEFAULT_CHUNK)
    chunk = size if chunk == -1 else min(chunk, size)
    return dask.array.core.normalize_chunks((chunk,), (size,))[0]


def _unstack_variable(
    da: xr.DataArray, cells: np.ndarray, blocks: Sizes, dims: tuple[str, str], chunks: Mapping[str, int] | None
) -> xr.DataArray:
    if STACKED_DIM not in da.dims:
        return da
    stacked = da.variable
    others = tuple(dim for dim in stacked.dims if dim != STACKED_DIM)
    data: np.ndarray | dask.array.Array
    if chunks is None and stacked.chunks is None:
        shape = (sum(blocks[0]), sum(blocks[1]))
        data = _scatter(stacked.transpose(*others, STACKED_DIM).values, where=cells, shape=shape)
    else:
        cut: dict[Hashable, int] = {STACKED_DIM: -1}
        cut |= {dim: size for dim, size in (chunks or {}).items() if dim in others}
        data = dask.array.block(
            [[_unstack_block(stacked, taken, cut, others) for taken in row] for row in _cells_by_block(cells, blocks)]
        )
    coords = {name: coord for name, coord in da.coords.items() if STACKED_DIM not in coord.dims}
    return xr.DataArray(data, coords, (*others, *dims), name=da.name, attrs=da.attrs)


@dataclass(frozen=True)
class _Taken:
    """The stacked cells that a block of the grid takes, in ascending order, and where in the block they go."""

    places: np.ndarray
    where: np.ndarray
    shape: tuple[int, int]


def _cells_by_block(cells: np.ndarray, blocks: Sizes) -> list[list[_Taken]]:
    row, column = np.divmod(cells, sum(blocks[1]))
    edges_y, edges_x = (np.cumsum((0, *sizes)) for sizes in blocks)
    i, j = (np.searchsorted(e, v, side="right") - 1 for e, v in ((edges_y, row), (edges_x, column)))
    inner = (row - edges_y[i]) * np.asarray(blocks[1])[j] + (column - edges_x[j])
    block = i * len(blocks[1]) + j
    order = np.argsort(block, kind="stable")
    places = np.split(order, np.searchsorted(block[order], np.arange(1, len(blocks[0]) * len(blocks[1]))))
    taken = iter(places)
    return [[_Taken(own := next(taken), inner[own], (rows, columns)) for columns in blocks[1]] for rows in blocks[0]]


def _unstack_block(
    stacked: xr.Variable, taken: _Taken, cut: Mapping[Hashable, int], others: tuple[Hashable, ...]
) -> dask.array.Array:
    """A block of the grid's two dimensions, in as many tasks as the further dimensions have blocks."""
    places = indexer(taken.places) if taken.places.size else slice(0, 1)
    data = stacked.isel({STACKED_DIM: places}).chunk(cut).transpose(*others, STACKED_DIM).data
    if not taken.places.size:
        chunks = (*data.chunks[:-1], *((size,) for size in taken.shape))
        shape = [sum(sizes) for sizes in chunks]
        return dask.array.full(shape, **_missing(stacked.dtype), chunks=chunks)
    lead, y, x = tuple(range(len(others))), len(others), len(others) + 1
    return dask.array.blockwise(
        _scatter,
        (*lead, y, x),
        data,
        (*lead, x + 1),
        new_axes={y: taken.shape[0], x: taken.shape[1]},
        concatenate=True,
        where=taken.where,
        shape=taken.shape,
        meta=np.empty((0,) * (len(others) + 2), _missing(stacked.dtype)["dtype"]),
    )


def _missing(dtype: np.dtype) -> dict[str, Any]:
    """The value of cells without data, and its type."""
    return {"fill_value": 0 if dtype.kind == "u" else np.nan, "dtype": dtype if dtype.kind in "fu" else np.float64}


def _scatter(stacked: np.ndarray, *, where: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Write cells (..., cell) into a block (..., y, x) of NaN, at the given flat positions."""
    # Taken from the cells, with one without data after them: twice as fast as values put at their places.
    *lead, cells = stacked.shape
    whole, taken = np.full((*lead, cells + 1), **_missing(stacked.dtype)), np.full(shape, cells)
    whole[..., :cells], taken.flat[where] = stacked, np.arange(cells)
    return whole.take(taken, axis=-1)
