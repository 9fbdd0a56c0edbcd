"""Regridding in cascade: every stage is linear, so that the whole cascade is a single sparse matrix.

The interpolation is bilinear (`sphere`) or, of variables that ask for it, conservative (`conservative`).
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import dask
import dask.array as da
import numpy as np
import xarray as xr
from scipy import sparse

from espo_luigi.errors import DataError
from espo_luigi.science.attributes import (
    CELLS_WITHOUT_DATA,
    EXTRAPOLATED_CELLS,
    INCOMPLETE,
    REGRID_METHODS,
    RegridMethod,
)
from espo_luigi.science.chunks import indexer
from espo_luigi.science.conservative import Quadrilaterals, cells_of, conservative_weights
from espo_luigi.science.quality import without_mark
from espo_luigi.science.sphere import Extrapolation, Grid, cells_away, outside_weights, weights_and_outside
from espo_luigi.science.stack import STACKED_DIM, places_on

log = logging.getLogger(__name__)

# Source values taken at once: bounds the float64 copies, and such a slab stays in the processor's cache.
_SLAB_VALUES = 65_536
_SHORTEST_SLAB, _LONGEST_SLAB = 32, 512
# The part of the source that a task reads at once.
_READ_BYTES = 256 * 1024**2
# Weights of zero are tiny, and sums of weights are 1 up to round-off.
_NO_SHARE = 1e-9
# Degrees by which steps may differ by round-off: coordinates may be float32.
_SAME_STEP = 1e-4
# Global attributes, of CMIP6 and CORDEX, that describe the source's grid.
_OF_THE_GRID = ("grid", "grid_label", "nominal_resolution", "CORDEX_domain", "domain_id", "domain")
# The source's coordinate that says which of its cells are used.
_MASK = "mask"
BOUNDS = ("lat_bounds", "lon_bounds")
"""The source's coordinates that say where its cells end: (lat, 2) and (lon, 2), or (y, x, 4) of a 2-D lat and lon."""
# The part of a cell that round-off may leave uncovered.
_UNCOVERED = 1e-6


@dataclass(frozen=True)
class Stage:
    """A step of the cascade: its target grid, and its extrapolation outside of the source (None: NaN).

    `conservative` does not extrapolate. Points of conservative stages are cells of the grid `whole`, with the numbers
    `places`.
    """

    grid: Grid
    extrapolation: Extrapolation | None
    method: RegridMethod = "bilinear"
    whole: Grid | None = None
    places: np.ndarray | None = None


@dataclass(frozen=True)
class _Horizontal:
    """Where a dataset's grid is: the values of `lat` and `lon`, and the names of their dimensions."""

    grid: Grid
    dims: tuple[Hashable, ...]

    def is_same_as(self, other: _Horizontal) -> bool:
        return (
            self.dims == other.dims
            and np.array_equal(self.grid.lat, other.grid.lat)
            and np.array_equal(self.grid.lon, other.grid.lon)
        )


@dataclass(frozen=True)
class Weights:
    """How a target's cells are made of a source's cells.

    Attributes
    ----------
    matrix
        Sparse (cells of the target, cells of the source), of the whole cascade.
    steps
        The names of the stages' grids; `TARGET` is the last.
    extrapolated
        Whether a cell of the target depends on extrapolated values.
    method
        The interpolation of all stages. The sum of a row of `conservative` is the part of the cell that is covered.
    """

    source: _Horizontal
    destination: _Horizontal
    matrix: sparse.csr_matrix
    steps: tuple[str, ...]
    extrapolated: np.ndarray
    method: RegridMethod = "bilinear"


# The name of a cascade's last stage.
TARGET = "target"


def regrid(
    ds: xr.Dataset,
    target: xr.Dataset,
    *,
    chunks: Mapping[Any, int] | None = None,
    weights: Mapping[Hashable, Weights] | None = None,
    **options: Any,
) -> xr.Dataset:
    """Interpolate every variable of ``ds`` that lies on its grid to the grid or the stacked points of ``target``.

    Parameters
    ----------
    ds : xr.Dataset
        Any units and calendar, lat/lon 1-D and monotonic (any direction, any longitude convention) or 2-D. With a
        coordinate ``mask`` only cells where it is 1 take part, in interpolation and in extrapolation. As in xESMF,
        a single stage to points ignores the mask, and logs a warning. On the target's own grid the rest is NaN.
    target : xr.Dataset
        Only its coordinates are used: lat/lon of one common dimension (points), 1-D each (grid) or 2-D.
    chunks : mapping, optional
        Cells of a block along the target's dimensions (-1, or not given: all). A block is one Dask task, with
        all of time: it reads the rows and columns of the source that it needs, and nothing else.
    weights : mapping, optional
        What `weigh` makes of the datasets and the ``options``; by default, it is called here.

    Returns
    -------
    xr.Dataset
        Dimensions (time, ..., dimensions of the target); dtype and units as in ``ds``; coordinates of the horizontal
        dimensions as in ``target``. Lazy if ``chunks`` are given or ``ds`` is on dask; the weights are computed.
        A value is NaN if at any stage one of the cells that it is interpolated from is NaN or missing. The attribute
        `espo_luigi_extrapolated_cells` counts the cells whose values are extrapolated at any stage. Conservative: a
        cell that no source cell covers is NaN; in part covered, it has its part of the value. With
        ``conservative_normed`` it has the mean of what covers it, and is extrapolated if nothing does.

    Raises
    ------
    DataError
        No usable lat/lon, fewer than two points along an axis of ``ds``, an empty target, or a ``mask`` on other
        dimensions, of values other than 0, 1 and NaN, or without any 1; conservative from a 2-D lat/lon without
        bounds, or to points without ``whole``.

    Notes
    -----
    Bilinear in Cartesian coordinates and inverse distance weights as in ESMF (see `espo_luigi.science.sphere`).
    Conservative as CDO's `remapcon` (see `espo_luigi.science.conservative`).
    """
    source, destination = horizontal_of(ds, "source"), horizontal_of(target, "target")
    attrs: dict[Hashable, Any] = {name: value for name, value in ds.attrs.items() if name not in _OF_THE_GRID}
    attrs |= {key: value for key, value in target.attrs.items() if key == "cat:domain"}
    attrs["cat:processing_level"] = "regridded"
    if weights is None:
        weights = weigh(ds, target, **options)
    attrs |= _gaps(ds, source.dims, weights)
    if any(its.method != "bilinear" for its in weights.values()):
        attrs[REGRID_METHODS] = ", ".join(f"{name}: {its.method}" for name, its in weights.items())
    if source.is_same_as(destination):
        log.info("source and target have the same lat and lon: not regridded")
        own = ds.drop_vars([INCOMPLETE, _MASK, *BOUNDS], errors="ignore")
        if _used(ds, source) is not None:
            kept = ds[_MASK].reset_coords(drop=True) == 1
            own = own.assign({name: variable.where(kept) for name, variable in _variables_on(source, own).items()})
        own = own.assign_coords(_target_coordinates(target, destination))
        return own.assign_attrs(attrs)
    variables = _variables_on(source, ds)
    lazy = chunks is not None or any(variable.chunks for variable in variables.values())
    made: dict[int, np.ndarray] = {}
    for its in weights.values():
        if id(its) not in made:
            made[id(its)] = _blocks(its.matrix, source, destination, chunks or {}, lazy=lazy)
    regridded = {
        name: _regrid_variable(v.variable, source, destination, made[id(weights[name])])
        for name, v in variables.items()
    }
    coords = {**_kept_coordinates(ds, source), **_target_coordinates(target, destination)}
    extrapolated = np.logical_or.reduce([its.extrapolated for its in weights.values()])
    return xr.Dataset(regridded, coords=coords, attrs=attrs | {EXTRAPOLATED_CELLS: int(extrapolated.sum())})


def weigh(
    ds: xr.Dataset,
    target: xr.Dataset,
    *,
    regridder_kwargs: Mapping[str, object] | None = None,
    intermediate_grids: Mapping[str, Mapping[str, Any]] | None = None,
    skip_coarser: bool = False,
    methods: Mapping[str, RegridMethod] | None = None,
    whole: xr.Dataset | None = None,
) -> dict[Hashable, Weights]:
    """Return the weights with which `regrid` makes the cells of ``target`` of those of ``ds``; reads coordinates only.

    They are by variable; variables of the same method share theirs. Raises `DataError` as `regrid`.

    Parameters
    ----------
    regridder_kwargs : mapping, optional
        xESMF's names: ``extrap_method`` (None, inverse_dist, nearest_s2d), ``extrap_dist_exponent`` (2),
        ``extrap_num_src_pnts`` (8). Others have no influence.
    intermediate_grids : mapping of mappings, optional
        In order, the grids passed on the way: ``{name: {"cf_grid_2d": bounds and steps, "regridder_kwargs": …}}``.
    skip_coarser : bool
        Leave out intermediate grids whose ``d_lon`` or ``d_lat`` exceeds the largest step of ``ds`` in that direction.
        Of a 2-D lat/lon the step is the largest distance between neighbours, in degrees of a great circle.
    methods : mapping, optional
        The interpolation of all stages, by variable (bilinear). Conservative ones are of first order, and know the
        cells of ``ds`` by its coordinates `BOUNDS`; without these, cells of 1-D lat/lon end half-way between points.
        ``nearest`` takes the nearest cell of ``ds``, by way of no intermediate grid.
    whole : xr.Dataset, optional
        The grid from which the points of ``target`` were stacked: conservative methods need its cells.
    """
    source, destination = horizontal_of(ds, "source"), horizontal_of(target, "target")
    method_of = {name: (methods or {}).get(without_mark(name), "bilinear") for name in _variables_on(source, ds)}
    used = _used(ds, source)
    if source.is_same_as(destination):
        same = sparse.identity(source.grid.size, format="csr")
        nothing = np.zeros(source.grid.size, bool)
        each = {how: Weights(source, destination, same, (), nothing, how) for how in {*method_of.values()}}
        return {name: each[how] for name, how in method_of.items()}
    _check_source(source)
    grids = intermediate_grids or {}
    between = {name: _intermediate(spec) for name, spec in grids.items()}
    if skip_coarser:
        between = {name: stage for name, stage in between.items() if not _is_coarser(name, grids[name], source.grid)}
    stages = {**between, TARGET: Stage(destination.grid, _extrapolation(regridder_kwargs or {}))}
    cells = None
    if whole is not None and STACKED_DIM in target.dims and {*method_of.values()} - {"bilinear", "nearest"}:
        # The grid whose cells stacked points are, and their numbers in it.
        cells = horizontal_of(whole, "target's grid").grid, places_on(target, whole)
    made = {how: _weigh(source, destination, stages, used, how, cells) for how in {*method_of.values()}}
    return {name: made[how] for name, how in method_of.items()}


def _weigh(
    source: _Horizontal,
    destination: _Horizontal,
    stages: Mapping[str, Stage],
    used: np.ndarray | None,
    method: RegridMethod,
    cells: tuple[Grid, np.ndarray] | None,
) -> Weights:
    if method == "nearest":
        closest, ones = outside_weights(source.grid, destination.grid.unit_vectors(), Extrapolation(num_points=1), used)
        rows = np.arange(len(closest))
        shape = (len(rows), source.grid.size)
        one_cell = sparse.csr_matrix((ones[:, 0], (rows, closest[:, 0])), shape=shape)
        return Weights(source, destination, one_cell, (TARGET,), np.zeros(len(rows), bool), method)
    if method == "bilinear" and used is not None and len(stages) == 1 and destination.grid.layout == "points":
        log.warning(
            "the source's mask leaves out %d of %d cells and is ignored: as in xESMF, a single stage to points uses "
            "all cells. An intermediate grid would make the mask count.",
            used.size - used.sum(),
            used.size,
        )
        used = None
    if method != "bilinear":
        if source.grid.layout == "curvilinear" and source.grid.bounds is None:
            raise DataError(
                f"{method} regridding from lat and lon on {source.dims} needs the corners of the cells; expected "
                f"coordinates {' and '.join(BOUNDS)} of these and four corners"
            )
        stages = {name: replace(stage, method=method) for name, stage in stages.items()}
        if destination.grid.layout == "points":
            if cells is None:
                raise DataError(f"{method} regridding to points needs the grid of which they are cells; got points")
            stages = {**stages, TARGET: replace(stages[TARGET], whole=cells[0], places=cells[1])}
    matrix, extrapolated = cascade(source.grid, list(stages.values()), used)
    return Weights(source, destination, matrix, tuple(stages), extrapolated, method)


def with_corners(ds: xr.Dataset) -> xr.Dataset:
    """Return a dataset whose 2-D lat and lon have `BOUNDS`: where it has none, corners half-way between centres."""
    source = horizontal_of(ds, "source")
    if source.grid.layout != "curvilinear" or source.grid.bounds is not None:
        return ds
    corners = cells_of(source.grid)
    assert isinstance(corners, Quadrilaterals)
    x, y, z = np.moveaxis(corners.corners.reshape(*source.grid.shape, 4, 3), -1, 0)
    values = np.rad2deg(np.arcsin(np.clip(z, -1, 1))), np.rad2deg(np.arctan2(y, x))
    dims = (*source.dims, "vertices")
    return ds.assign_coords({name: (dims, degrees) for name, degrees in zip(BOUNDS, values, strict=True)})


def regrid_cells(ds: xr.Dataset, weights: Mapping[Hashable, Weights], cells: np.ndarray) -> xr.Dataset:
    """Return some cells of a target, with the values that `regrid` gives them, bit for bit; lazy if ``ds`` is.

    Parameters
    ----------
    ds : xr.Dataset
        The source from whose coordinates the weights were made.
    cells : numpy.ndarray
        Places in the target, in C order.

    Returns
    -------
    xr.Dataset
        (time, ..., loc), with the cells' `lat` and `lon`; reads only the rows and columns that the cells need.
    """
    first = next(iter(weights.values()))
    lat, lon = (values.ravel()[cells] for values in first.destination.grid.coordinates())
    chosen = _Horizontal(Grid(lat, lon, "points"), (STACKED_DIM,))
    variables, source = _variables_on(first.source, ds), first.source
    lazy = any(variable.chunks for variable in variables.values())
    made = {}
    for name, data in variables.items():
        blocks = np.empty(1, dtype=object)
        blocks[0] = _block(weights[name].matrix[cells], source.grid.shape, (len(cells),), lazy=lazy)
        made[name] = _regrid_variable(data.variable, source, chosen, blocks)
    at = {name: (STACKED_DIM, values) for name, values in (("lat", lat), ("lon", lon))}
    return xr.Dataset(made, coords={**_kept_coordinates(ds, source), **at}, attrs=ds.attrs)


def part_reached(ds: xr.Dataset, target: xr.Dataset, **options: Any) -> xr.Dataset:
    """Return the rows and columns of ``ds`` from which `regrid` makes its values, and those between; lazy.

    `regrid` gives the same values from this part. It holds for all intermediate grids and no ``mask``. Raises and
    ``options`` are as of `weigh`.
    """
    weights = weigh(ds.drop_vars(_MASK, errors="ignore"), target, **options)
    first = next(iter(weights.values()))
    source = first.source
    if source.is_same_as(first.destination):
        return ds
    reached = np.unique(np.concatenate([its.matrix.indices for its in weights.values()]))
    places = np.divmod(reached, source.grid.shape[1])
    # A cell more on each side: a part of a single row or column is no grid.
    return ds.isel(
        {dim: slice(max(0, of.min() - 1), of.max() + 2) for dim, of in zip(source.dims, places, strict=True) if of.size}
    )


def check_reach(ds: xr.Dataset, target: xr.Dataset, cells: float) -> None:
    """Check that no cell of a target lies more than so many `cells` of the source beyond the source's grid.

    Raises
    ------
    DataError
        If any does.
    """
    source, destination = horizontal_of(ds, "source"), horizontal_of(target, "target")
    away = cells_away(source.grid, destination.grid)
    # Half a diagonal is how far from the nearest point a target may be inside of a grid.
    allowed = max(cells, 0.5)
    far = away > allowed * np.sqrt(2) * (1 + 1e-6)
    if not far.any():
        return
    lat, lon = (values.ravel()[int(away.argmax())] for values in destination.grid.coordinates())
    raise DataError(
        f"{int(far.sum())} of {far.size} cells of the target lie more than {allowed:g} cells of the source beyond it: "
        f"their values are extrapolated. The farthest is {away.max():.1f} cells away, at {lat:g} °N {lon:g} °E. "
        "Correct the bounds of the regions, or exclude the dataset."
    )


def check_covered(weights: Mapping[Hashable, Weights]) -> None:
    """Check that the source covers all cells of the target of the variables that are regridded conservatively.

    Raises
    ------
    DataError
        If cells are not covered, or with `conservative` only in part.
    """
    for name, its in weights.items():
        if its.method == "bilinear":
            continue
        covered = np.nan_to_num(np.asarray(its.matrix.sum(axis=1)).ravel())
        lacking = covered < 1 - _UNCOVERED
        if not lacking.any():
            continue
        lat, lon = (values.ravel()[int(covered.argmin())] for values in its.destination.grid.coordinates())
        raise DataError(
            f"{name}, {its.method}: {int(lacking.sum())} of {lacking.size} cells of the target are not covered by the "
            f"source's cells, the one at {lat:g} °N {lon:g} °E by {100 * covered.min():.3g} %. `conservative_normed` "
            "takes the mean of what covers a cell in part. Otherwise correct the bounds of the regions, widen the "
            "grids of the cascade or `tile_buffer`, or exclude the dataset."
        )


def check_filled(weights: Mapping[Hashable, Weights], options: Mapping[str, Any], key: str) -> None:
    """Check that all cells of the target get values: the ends of the source's grid leave none without.

    `options` are those of `weigh`, at ``key`` of the configuration.

    Raises
    ------
    DataError
        If a cell would have none.
    """
    for name, its in weights.items():
        lacking = np.isnan(np.asarray(its.matrix.sum(axis=1)).ravel())
        if not lacking.any():
            continue
        away = np.where(lacking, cells_away(its.source.grid, its.destination.grid), -1)
        lat, lon = (values.ravel()[int(away.argmax())] for values in its.destination.grid.coordinates())
        grids = options.get("intermediate_grids") or {}
        stages = {f"intermediate_grids.{step}.": grids[step] for step in its.steps if step != TARGET} | {"": options}
        ways = [one for one, stage in stages.items() if _extrapolation(stage.get("regridder_kwargs") or {}) is None]
        keys = [f"`{key}.{one}regridder_kwargs.extrap_method: inverse_dist`" for one in ways]
        if its.method == "conservative":
            keys.insert(0, f"`regrid.regrid_method.{name}: conservative_normed`")
        raise DataError(
            f"{name}, {its.method}: {int(lacking.sum())} of {lacking.size} land cells lie beyond the outermost centres "
            "or cells of the source, or of those that its mask leaves: they would have no values. The farthest is "
            f"{away.max():.2f} cells of the source away from the nearest centre, at {lat:g} °N {lon:g} °E. "
            f"Give {' and '.join(keys)}, correct the bounds of the regions, or exclude the dataset."
        )


def cascade(
    source: Grid, stages: Sequence[Stage], used: np.ndarray | None = None
) -> tuple[sparse.csr_matrix, np.ndarray]:
    """Return the matrix of all stages, and the last stage's points that depend on extrapolated values.

    Weights are never negative, and zeros are kept as tiny numbers. So the product (points of the last stage, points of
    the source) has an entry wherever a path leads through the stages, and a NaN spreads exactly as in separate stages.
    Only the source's points where `used` (None: all) take part.
    """
    matrix: sparse.csr_matrix | None = None
    share = np.zeros(source.size)
    for stage in stages:
        step, outside = _step(source, stage, used)
        # Cells of a conservative stage that nothing covers take no part in the next.
        used = None if stage.method == "bilinear" else ~np.isnan(np.asarray(step.sum(axis=1)).ravel())
        # The weight in each value of points that are extrapolated.
        share = np.where(outside, 1.0, step @ share)
        matrix, source = step if matrix is None else step @ matrix, stage.grid
    assert matrix is not None
    return matrix, share > _NO_SHARE


def _step(source: Grid, stage: Stage, used: np.ndarray | None) -> tuple[sparse.csr_matrix, np.ndarray]:
    if stage.method == "bilinear":
        return weights_and_outside(source, stage.grid, stage.extrapolation, used)
    cells, normed = cells_of(stage.whole or stage.grid), stage.method == "conservative_normed"
    step = conservative_weights(cells_of(source), cells, places=stage.places, used=used, normed=normed)
    outside = np.isnan(np.asarray(step.sum(axis=1)).ravel())
    if not (normed and stage.extrapolation and outside.any() and (used is None or used.any())):
        return step, np.zeros_like(outside)
    nearest, share = outside_weights(source, stage.grid.unit_vectors()[outside], stage.extrapolation, used)
    entries = step.tocoo()
    kept, rows = ~outside[entries.row], np.repeat(np.flatnonzero(outside), nearest.shape[1])
    index = (np.append(entries.row[kept], rows), np.append(entries.col[kept], nearest))
    step = sparse.coo_matrix((np.append(entries.data[kept], share), index), shape=step.shape).tocsr()
    step.eliminate_zeros()
    return step, outside


def apply_weights(block: np.ndarray, weights: sparse.csr_matrix, shape: tuple[int, ...]) -> np.ndarray:
    """Regrid a block (..., source dims) to (..., *shape); sums in float64, result of the block's dtype."""
    flat = block.reshape(-1, weights.shape[1])
    out = np.empty((len(flat), weights.shape[0]), dtype=_result_dtype(block.dtype))
    length = int(np.clip(_SLAB_VALUES // weights.shape[1], _SHORTEST_SLAB, _LONGEST_SLAB))
    for start in range(0, len(flat), length):
        slab = np.ascontiguousarray(flat[start : start + length].T, dtype=np.float64)
        out[start : start + length] = (weights @ slab).T
    extra = block.shape[: block.ndim - 2]
    return out.reshape(*extra, *shape)


@dataclass(frozen=True)
class _Block:
    """Some target cells: the rows and columns of the source that they are interpolated from, and the weights."""

    shape: tuple[int, ...]
    rows: np.ndarray
    columns: np.ndarray
    # A csr_matrix (target cells, rows × columns), or that as a Dask key that all variables share.
    weights: Any


def _blocks(
    weights: sparse.csr_matrix,
    source: _Horizontal,
    destination: _Horizontal,
    chunks: Mapping[Any, int],
    *,
    lazy: bool,
) -> np.ndarray:
    """The blocks of the target, in an array with the target's dimensions."""
    shape = destination.grid.shape
    sizes = da.core.normalize_chunks([chunks.get(dim, -1) for dim in destination.dims], shape)
    cells = np.arange(destination.grid.size).reshape(shape)
    blocks = np.empty([len(of_dim) for of_dim in sizes], dtype=object)
    edges = [np.cumsum((0, *of_dim)) for of_dim in sizes]
    for place in np.ndindex(*blocks.shape):
        part = cells[tuple(slice(edge[i], edge[i + 1]) for edge, i in zip(edges, place, strict=True))]
        blocks[place] = _block(weights[part.ravel()], source.grid.shape, part.shape, lazy=lazy)
    return blocks


def _block(weights: sparse.csr_matrix, source: tuple[int, ...], shape: tuple[int, ...], *, lazy: bool) -> _Block:
    row, column = np.divmod(np.unique(weights.indices), source[1])
    rows, columns = np.unique(row), np.unique(column)
    own = weights[:, (rows[:, None] * source[1] + columns).ravel()]
    # Summed in the order of the source's cells: the same bytes for any blocks.
    own.sort_indices()
    return _Block(shape, rows, columns, dask.delayed(own, pure=True, traverse=False) if lazy else own)


def _regrid_variable(
    variable: xr.Variable, source: _Horizontal, destination: _Horizontal, blocks: np.ndarray
) -> xr.Variable:
    extra = sorted((dim for dim in variable.dims if dim not in source.dims), key=lambda dim: dim != "time")
    y, x = source.dims
    parts = np.empty(blocks.shape, dtype=object)
    for place, block in np.ndenumerate(blocks):
        part = variable.isel({y: indexer(block.rows), x: indexer(block.columns)})
        parts[place] = _regrid_block(part, (*extra, *source.dims), block)
    data = da.block(parts.tolist()) if dask.is_dask_collection(parts.flat[0]) else parts.flat[0]
    attrs = {key: value for key, value in variable.attrs.items() if key != "grid_mapping"}
    return xr.Variable((*extra, *destination.dims), data, attrs)


def _regrid_block(part: xr.Variable, dims: tuple[Hashable, ...], block: _Block) -> Any:
    if not dask.is_dask_collection(block.weights):
        return apply_weights(part.transpose(*dims).values, block.weights, block.shape)
    # From a store that is not cut, a Dask task reads just these rows and columns; of a fine source, some years at once.
    days = max(1, _READ_BYTES // max(1, part.dtype.itemsize * block.rows.size * block.columns.size))
    data = part.chunk({dim: days if dim == "time" else -1 for dim in part.dims}).transpose(*dims).data
    old, new = range(data.ndim), range(data.ndim, data.ndim + len(block.shape))
    regridded = da.blockwise(
        apply_weights,
        (*old[:-2], *new),
        data,
        tuple(old),
        new_axes=dict(zip(new, block.shape, strict=True)),
        concatenate=True,
        weights=block.weights,
        shape=block.shape,
        dtype=_result_dtype(data.dtype),
        meta=np.empty((0,) * (data.ndim - 2 + len(block.shape)), dtype=_result_dtype(data.dtype)),
    )
    return regridded.rechunk(-1)


def _result_dtype(dtype: np.dtype) -> np.dtype:
    return dtype if dtype.kind == "f" else np.dtype("float64")


# Options


def _extrapolation(kwargs: Mapping[str, Any]) -> Extrapolation | None:
    """The extrapolation that xESMF's arguments ask for; the configuration refuses others that would change numbers."""
    method = kwargs.get("extrap_method")
    if method is None:
        return None
    if method == "nearest_s2d":
        return Extrapolation(num_points=1)
    return Extrapolation(kwargs.get("extrap_dist_exponent") or 2.0, int(kwargs.get("extrap_num_src_pnts") or 8))


def _intermediate(spec: Mapping[str, Any]) -> Stage:
    """The stage of a grid whose centres are as in xESMF's cf_grid_2d: past the upper bound by half a step at most."""
    grid, edges = spec["cf_grid_2d"], []
    for axis in ("lat", "lon"):
        step = grid[f"d_{axis}"]
        edges.append(np.arange(grid[f"{axis}0_b"], grid[f"{axis}1_b"] + step / 2, step))
    lat, lon = ((ends[:-1] + ends[1:]) / 2 for ends in edges)
    return Stage(Grid(lat, lon, "rectilinear"), _extrapolation(spec.get("regridder_kwargs") or {}))


def _is_coarser(name: str, spec: Mapping[str, Any], source: Grid) -> bool:
    for key, step in zip(("d_lat", "d_lon"), source.largest_steps(), strict=True):
        if (width := spec["cf_grid_2d"][key]) > step + _SAME_STEP:
            log.info("intermediate grid %s is skipped: %s is %g, and the source's step %g", name, key, width, step)
            return True
    return False


# Coordinates


def horizontal_of(ds: xr.Dataset, role: str) -> _Horizontal:
    """The grid of a dataset with `lat` and `lon`, and the names of its dimensions; `role` is for errors."""
    if missing := [name for name in ("lat", "lon") if name not in ds.variables]:
        raise DataError(
            f"the {role} of the regridding has no {' and '.join(missing)}: expected coordinates lat and lon among "
            f"{', '.join(map(str, ds.variables)) or 'nothing'}"
        )
    lat, lon = ds["lat"], ds["lon"]
    if lat.size == 0 or lon.size == 0:
        raise DataError(f"the {role} of the regridding has no points: lat {lat.shape}, lon {lon.shape}")
    if lat.ndim == lon.ndim == 1 and lat.dims != lon.dims:
        layout, dims = "rectilinear", (*lat.dims, *lon.dims)
    elif set(lat.dims) == set(lon.dims) and lat.ndim in (1, 2):
        layout, dims = ("points" if lat.ndim == 1 else "curvilinear"), lat.dims
        lon = lon.transpose(*dims)
    else:
        raise DataError(
            f"the {role} of the regridding has lat on {lat.dims} and lon on {lon.dims}; expected both on one dimension "
            "(points), each on its own (grid), or both on the same two (curvilinear grid)"
        )
    values = [np.asarray(coordinate.values, dtype=np.float64) for coordinate in (lat, lon)]
    if not all(np.isfinite(value).all() for value in values) or np.abs(values[0]).max() > 90 + 1e-6:
        raise DataError(f"the {role} of the regridding has coordinates that are NaN or latitudes outside -90 to 90")
    return _Horizontal(Grid(values[0], values[1], layout, bounds=_bounds(ds, layout, lat, lon)), dims)


def _bounds(ds: xr.Dataset, layout: str, lat: xr.DataArray, lon: xr.DataArray) -> tuple[np.ndarray, np.ndarray] | None:
    if layout == "points" or not set(BOUNDS) <= set(ds.coords):
        return None
    dims = (lat.dims, lat.dims) if layout == "curvilinear" else (lat.dims, lon.dims)
    south, west = (
        np.asarray(ds[name].transpose(*its, ...).values, dtype=np.float64)
        for name, its in zip(BOUNDS, dims, strict=True)
    )
    return south, west


def _check_source(source: _Horizontal) -> None:
    grid = source.grid
    if grid.layout == "points":
        raise DataError(f"the source of the regridding is a list of points on {source.dims[0]!r}; expected a grid")
    if min(grid.shape) < 2:
        raise DataError(
            f"the source of the regridding is {grid.shape} on {source.dims}; expected 2 or more points each"
        )
    if grid.layout == "rectilinear":
        for name, values in (("lat", grid.lat), ("lon", np.unwrap(grid.lon, period=360))):
            steps = np.diff(values)
            if not ((steps > 0).all() or (steps < 0).all()):
                raise DataError(f"the source's {name} is not monotonic: {values[:5]}...; sort it before regridding")


def _used(ds: xr.Dataset, source: _Horizontal) -> np.ndarray | None:
    """Which of the source's points the mask lets take part (None: all)."""
    if _MASK not in ds.coords:
        return None
    mask = ds[_MASK]
    if set(mask.dims) != set(source.dims):
        raise DataError(f"the source's coordinate {_MASK!r} is on {mask.dims}; expected its grid, {source.dims}")
    values = np.asarray(mask.transpose(*source.dims).values, dtype=np.float64).ravel()
    used = values == 1
    wrong = values[~used & (values != 0) & ~np.isnan(values)]
    if wrong.size:
        raise DataError(
            f"the source's coordinate {_MASK!r} has {wrong.size} values like {wrong[0]:g}; expected 1 (used), 0 or NaN"
        )
    if not used.any():
        raise DataError(
            f"the source's coordinate {_MASK!r} is 1 in none of {used.size} cells: nothing to regrid from. "
            "Check how the mask was made, above all the unit of its threshold."
        )
    return None if used.all() else used


def _variables_on(source: _Horizontal, ds: xr.Dataset) -> dict[Hashable, xr.DataArray]:
    numbers = {name: v for name, v in ds.data_vars.items() if v.dtype.kind in "fiub" and name not in ("lat", "lon")}
    on_grid = {name: variable for name, variable in numbers.items() if set(source.dims) <= set(variable.dims)}
    if not on_grid:
        raise DataError(
            f"none of {list(map(str, ds.data_vars))} is a numeric variable on {source.dims}: nothing to regrid"
        )
    if dropped := set(ds.data_vars) - set(on_grid) - {"lat", "lon"}:
        log.debug("not on the grid, dropped by regridding: %s", ", ".join(map(str, dropped)))
    return on_grid


def _kept_coordinates(ds: xr.Dataset, source: _Horizontal) -> dict[Hashable, xr.DataArray]:
    """Coordinates that do not describe the grid that is left behind."""
    mappings = {v.attrs.get("grid_mapping", v.encoding.get("grid_mapping")) for v in ds.data_vars.values()}
    return {
        name: coordinate.reset_coords(drop=True)
        for name, coordinate in ds.coords.items()
        if not set(coordinate.dims) & set(source.dims)
        and name not in mappings | {"lat", "lon"}
        and "grid_mapping_name" not in coordinate.attrs
    }


def _target_coordinates(target: xr.Dataset, destination: _Horizontal) -> dict[Hashable, xr.DataArray]:
    described = target.set_coords(["lat", "lon"])
    return {
        name: coordinate.reset_coords(drop=True)
        for name, coordinate in described.coords.items()
        if coordinate.dims and set(coordinate.dims) <= set(destination.dims)
    }


def _gaps(ds: xr.Dataset, dims: tuple[Hashable, ...], weights: Mapping[Hashable, Weights]) -> dict[Hashable, Any]:
    """How many target cells lack a year's data or more, because a source cell does that they are made from."""
    if INCOMPLETE not in ds.coords or not ds[INCOMPLETE].any():
        return {}
    incomplete = ds[INCOMPLETE].transpose(*dims).values.ravel().astype(np.int64)
    reached = [(its.matrix != 0).astype(np.int64) @ incomplete for its in {id(w): w for w in weights.values()}.values()]
    return {CELLS_WITHOUT_DATA: int(np.logical_or.reduce([of > 0 for of in reached]).sum())}
