"""Stacking of the cells that have data into one dimension `loc`, and the way back to the complete grid."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping

import dask
import dask.array
import numpy as np
import xarray as xr
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph
from dask.typing import Key

from espo_luigi.errors import DataError

logger = logging.getLogger(__name__)

STACKED_DIM = "loc"
ORIGINAL_SHAPE = "original_shape"
DEFAULT_CHUNK = 20


def stack_drop_nans(ds: xr.Dataset) -> xr.Dataset:
    """Keep only the cells that have data, as one dimension.

    The mask is the first data variable that has horizontal dimensions, at its first time step: cells that are not NaN
    there; a warning names the variables that are NaN in other cells at theirs. The horizontal dimensions, in C order,
    become `loc` (without an index); the horizontal coordinates (`lat`, `lon`; also `rlat`, `rlon` on a rotated grid)
    lie on `loc`, each with the attribute `original_shape` ("NLATxNLON"). Variables without horizontal dimensions stay
    as they are. Lazy on dask, but for that one time step of each variable.

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


def grid_of(ds: xr.Dataset) -> xr.Dataset:
    """Return the complete horizontal coordinates of a dataset that is not stacked, without data variables.

    1-D `lat` and `lon`, or `rlat` and `rlon` with the 2-D `lat` and `lon`; `cat:domain` is kept in the attributes.
    """
    y, x = horizontal_dims(ds)
    coords = {name: ds[name].drop_vars(set(ds[name].coords) - {name}) for name in _horizontal_coords(ds, y, x)}
    attrs = {key: value for key, value in ds.attrs.items() if key == "cat:domain"}
    return xr.Dataset(coords=coords, attrs=attrs).load()


def unstack_fill_nan(ds: xr.Dataset, grid: xr.Dataset, chunks: Mapping[str, int] | None = None) -> xr.Dataset:
    """Put stacked cells back on their complete grid, cells without data being NaN.

    Cells are recognised by exact equality of their coordinates with the grid's. `loc` is replaced by the grid's two
    dimensions, which come last: (time, lat, lon). Floating types and attributes are kept, those of the stacked
    coordinates (`original_shape`) on top of the grid's; other types become float64.
    Lazy on dask: one block of the result is one scatter of the cells that it takes from the stacked blocks, so that no
    more of the grid is in memory than is being written.

    Parameters
    ----------
    ds
        Dataset with the dimension `loc`, as made by `stack_drop_nans`; without it, it is returned as it is.
    grid
        Coordinates of the complete grid, as made by `grid_of`.
    chunks
        Cells per block along the grid's dimensions (-1 is all); 20 where it is not said. Only for dask.

    Raises
    ------
    DataError
        When a cell is not on the grid, two cells are the same, or `original_shape` is not the grid's shape.
    """
    if STACKED_DIM not in ds.dims:
        return ds
    y, x = horizontal_dims(grid)
    shape = (grid.sizes[y], grid.sizes[x])
    _check_shape(ds, y, x, shape)
    cells = _positions(ds, grid, y) * shape[1] + _positions(ds, grid, x)
    _check_unique(ds, cells)
    blocks = (_block_sizes(shape[0], y, chunks), _block_sizes(shape[1], x, chunks))
    bare = ds.drop_vars([name for name in grid.coords if name in ds.coords])
    unstacked = bare.map(_unstack_variable, keep_attrs=True, args=(cells, blocks, (y, x)))
    return unstacked.assign_coords(_with_stacked_attrs(grid, ds)).assign_attrs(ds.attrs)


def _with_stacked_attrs(grid: xr.Dataset, ds: xr.Dataset) -> xr.Coordinates:
    known = {name: grid[name].assign_attrs(ds[name].attrs) for name in grid.coords if name in ds.coords}
    return grid.assign_coords(known).coords


def horizontal_dims(ds: xr.Dataset) -> tuple[str, str]:
    """Return the names of the two horizontal dimensions: (lat, lon), (rlat, rlon), or those of a 2-D `lat`."""
    for y, x in (("lat", "lon"), ("rlat", "rlon")):
        if y in ds.dims and x in ds.dims:
            return y, x
    if "lat" in ds.coords and ds["lat"].ndim == 2:
        y, x = map(str, ds["lat"].dims)
        return y, x
    raise DataError(
        f"No horizontal grid in {_domain(ds)}: the dimensions are {list(ds.dims)}, "
        f"expected (lat, lon), (rlat, rlon) or those of a 2-D lat."
    )


def _horizontal_coords(ds: xr.Dataset, y: str, x: str) -> list[Hashable]:
    return [name for name, coord in ds.coords.items() if coord.dims and set(coord.dims) <= {y, x}]


def _domain(ds: xr.Dataset) -> str:
    return f"the domain {ds.attrs.get('cat:domain', '(no cat:domain)')!r}"


def _cells_with_data(ds: xr.Dataset, y: str, x: str) -> np.ndarray:
    masks = {name: _has_data(da, y, x) for name, da in ds.data_vars.items() if y in da.dims and x in da.dims}
    if not masks:
        raise DataError(f"No variable on ({y}, {x}) in {_domain(ds)}: nothing says which cells have data.")
    (masks,) = dask.compute(masks)
    first, *others = masks
    cells = np.flatnonzero(masks[first])
    if not cells.size:
        raise DataError(
            f"{first!r} is NaN in all {masks[first].size} cells of {_domain(ds)} at its first time step: "
            f"expected cells with data. Check that the region's bounds cover land that the dataset covers."
        )
    differing = {name: int((masks[name] != masks[first]).sum()) for name in others}
    _warn_of_other_masks(ds, first, {name: number for name, number in differing.items() if number})
    return cells


def _has_data(da: xr.DataArray, y: str, x: str) -> np.ndarray | dask.array.Array:
    return da.isel({dim: 0 for dim in da.dims if dim not in (y, x)}).transpose(y, x).notnull().data


def _warn_of_other_masks(ds: xr.Dataset, first: Hashable, differing: Mapping[Hashable, int]) -> None:
    if differing:
        listed = ", ".join(f"{name!r} in {number} cells" for name, number in differing.items())
        logger.warning(
            "In %s, %r at its first time step decides which cells are kept; others have data elsewhere then: %s.",
            _domain(ds),
            first,
            listed,
        )


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


def _check_shape(ds: xr.Dataset, y: str, x: str, shape: tuple[int, int]) -> None:
    expected = f"{shape[0]}x{shape[1]}"
    got = {ds[name].attrs.get(ORIGINAL_SHAPE, expected) for name in (y, x) if name in ds.coords}
    if got - {expected}:
        raise DataError(
            f"The stacked data of {_domain(ds)} come from a grid of {', '.join(got)} cells, "
            f"the grid given has {expected}: give the grid of the dataset that was stacked."
        )


def _positions(ds: xr.Dataset, grid: xr.Dataset, name: str) -> np.ndarray:
    """Return where each cell's coordinate lies on the grid's axis, by exact equality."""
    if name not in ds.coords:
        raise DataError(
            f"No coordinate {name!r} on {STACKED_DIM!r} in {_domain(ds)}: cells cannot be put back on their grid."
        )
    axis, values = grid[name].values, ds[name].values
    order = np.argsort(axis)
    found = order[np.clip(np.searchsorted(axis, values, sorter=order), 0, axis.size - 1)]
    missed = np.flatnonzero(axis[found] != values)
    if missed.size:
        raise DataError(
            f"{missed.size} of {values.size} cells of {_domain(ds)} are not on the grid, the first at {name} = "
            f"{values[missed[0]]!r} (nearest on the grid: {axis[np.abs(axis - values[missed[0]]).argmin()]!r}): "
            f"give the grid of the dataset that was stacked, with unrounded coordinates."
        )
    return found


def _check_unique(ds: xr.Dataset, cells: np.ndarray) -> None:
    repeated = cells.size - np.unique(cells).size
    if repeated:
        raise DataError(
            f"{repeated} of {cells.size} cells of {_domain(ds)} have the coordinates of another: expected one each."
        )


def _block_sizes(size: int, dim: str, chunks: Mapping[str, int] | None) -> tuple[int, ...]:
    chunk = dict(chunks or {}).get(dim, DEFAULT_CHUNK)
    chunk = size if chunk == -1 else min(chunk, size)
    return dask.array.core.normalize_chunks((chunk,), (size,))[0]


def _unstack_variable(
    da: xr.DataArray, cells: np.ndarray, blocks: tuple[tuple[int, ...], tuple[int, ...]], dims: tuple[str, str]
) -> xr.DataArray:
    if STACKED_DIM not in da.dims:
        return da
    last = da.transpose(..., STACKED_DIM)
    if not np.issubdtype(last.dtype, np.floating):
        last = last.astype(np.float64)
    if last.chunks is None:
        data: np.ndarray | dask.array.Array = _scatter(
            [last.values], [cells], (sum(blocks[0]), sum(blocks[1])), last.dtype
        )
    else:
        data = _scatter_blocks(last.data, cells, blocks)
    coords = {name: coord for name, coord in last.coords.items() if STACKED_DIM not in coord.dims}
    return xr.DataArray(data, coords, (*last.dims[:-1], *dims), name=da.name, attrs=da.attrs)


def _take(block: np.ndarray, columns: np.ndarray) -> np.ndarray:
    return block[..., columns]


def _scatter(
    pieces: list[np.ndarray],
    cells: list[np.ndarray],
    shape: tuple[int, int],
    dtype: np.dtype,
    lead: tuple[int, ...] = (),
) -> np.ndarray:
    """Write pieces (..., cell) into a block (..., y, x) of NaN, at the given flat positions."""
    lead = pieces[0].shape[:-1] if pieces else lead
    block = np.full((*lead, shape[0] * shape[1]), np.nan, dtype)
    for piece, where in zip(pieces, cells, strict=True):
        block[..., where] = piece
    return block.reshape(*lead, *shape)


def _scatter_blocks(
    stacked: dask.array.Array, cells: np.ndarray, blocks: tuple[tuple[int, ...], tuple[int, ...]]
) -> dask.array.Array:
    """Make the graph: small takes from each stacked block, so that it is released early, then one scatter a block."""
    token = tokenize(stacked, cells, blocks)
    take, scatter = f"unstack-take-{token}", f"unstack-scatter-{token}"
    graph: dict[Key, tuple] = {}
    routes = _routes(cells, stacked.chunks[-1], blocks)
    for lead in np.ndindex(*(len(sizes) for sizes in stacked.chunks[:-1])):
        lead_shape = tuple(sizes[i] for sizes, i in zip(stacked.chunks[:-1], lead, strict=True))
        for (i, j), pieces in routes.items():
            keys = []
            for source, columns, _ in pieces:
                key: Key = (take, *lead, source, i, j)
                graph[key] = (_take, (stacked.name, *lead, source), columns)
                keys.append(key)
            shape = (blocks[0][i], blocks[1][j])
            graph[(scatter, *lead, i, j)] = (
                _scatter,
                keys,
                [where for *_, where in pieces],
                shape,
                stacked.dtype,
                lead_shape,
            )
    layers = HighLevelGraph(
        {**stacked.dask.layers, scatter: graph}, {**stacked.dask.dependencies, scatter: set(stacked.__dask_layers__())}
    )
    return dask.array.Array(layers, scatter, (*stacked.chunks[:-1], *blocks), dtype=stacked.dtype)


def _routes(
    cells: np.ndarray, sources: tuple[int, ...], blocks: tuple[tuple[int, ...], tuple[int, ...]]
) -> dict[tuple[int, int], list[tuple[int, np.ndarray, np.ndarray]]]:
    """Return, per block of the grid, (stacked block, columns in it, flat positions in the block of the grid)."""
    row, col = np.divmod(cells, sum(blocks[1]))
    edges_y, edges_x = (np.cumsum((0, *sizes)) for sizes in blocks)
    edges_s = np.cumsum((0, *sources))
    at = np.arange(cells.size)
    i, j, s = (np.searchsorted(e, v, side="right") - 1 for e, v in ((edges_y, row), (edges_x, col), (edges_s, at)))
    widths = np.asarray(blocks[1])[j]
    inner = (row - edges_y[i]) * widths + (col - edges_x[j])
    routes: dict[tuple[int, int], list[tuple[int, np.ndarray, np.ndarray]]] = {
        (a, b): [] for a in range(len(blocks[0])) for b in range(len(blocks[1]))
    }
    order = np.lexsort((at, s, j, i))
    cuts = np.flatnonzero(np.any(np.diff(np.stack([i, j, s])[:, order], axis=1), axis=0)) + 1
    for group in np.split(order, cuts):
        first = group[0]
        routes[int(i[first]), int(j[first])].append((int(s[first]), group - edges_s[s[first]], inner[group]))
    return routes
