"""Chunks of data variables, and functions applied to blocks of cells: to whole series, lazily or at once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import xarray as xr

from espo_luigi.errors import DataError


def rechunk(ds: xr.Dataset, chunks: Mapping[Any, Any]) -> xr.Dataset:
    """Return `ds` with its data variables in `chunks` (-1: the whole dimension), lazily; coordinates stay as they are.

    Dimensions that a variable lacks are ignored. xarray's `Dataset.chunk` and `DataArray.chunk` first make a token of
    every coordinate, which takes a second a variable for 151 years of date objects.
    """
    return ds.assign({name: rechunk_variable(data.variable, chunks) for name, data in ds.data_vars.items()})


def rechunk_variable(variable: xr.Variable, chunks: Mapping[Any, Any]) -> xr.Variable:
    """Return one variable in `chunks`, lazily.

    Blocks that are cut along some dimensions and joined along others are copied in between: what is cut off a block
    is a view, which keeps the whole block in memory until its part of all other blocks is there.
    """
    wanted = {dim: size for dim, size in chunks.items() if dim in variable.dims}
    cut = {
        dim: size
        for dim, size in wanted.items()
        if 0 < np.max(size) < max(variable.chunksizes.get(dim, (0,)))  # -1 is the whole, a tuple has all sizes
    }
    if cut and len(cut) < len(wanted):
        parts = variable.chunk(cut)
        variable = parts.copy(data=parts.data.map_blocks(np.copy, dtype=parts.dtype))
    return variable.chunk(wanted)


def join(parts: Iterable[Any], dim: Any = None, attributes: str = "override", *, what: str = "", **how: Any) -> Any:
    """Return parts one after the other along `dim`, or without it the variables of all in one dataset; lazy.

    Parts keep their blocks. Other indexes have to be the same, and the first part gives the coordinates and variables
    without the dimension. `dim` may be the labels of a new dimension; `attributes` is xarray's `combine_attrs`, and
    `how` are arguments of its `concat`. With `what`, which errors call the parts, variables and coordinates have to be
    the same, too.

    Raises
    ------
    DataError
        With `what`, if parts differ; without, xarray raises a ValueError.
    """
    every = list(parts)
    alike: dict[str, Any] = {"join": "exact", "compat": "equals" if what else "override", "combine_attrs": attributes}
    try:
        if dim is None:
            return xr.merge(every, **alike | {"compat": "equals"} | how)
        if isinstance(every[0], xr.Dataset):
            alike["data_vars"] = "minimal" if isinstance(dim, str) and dim in every[0].dims else "all"
            names = [frozenset(map(str, part.data_vars)) for part in every]
            odd = frozenset.union(*names) - frozenset.intersection(*names)
            if what and odd:  # xarray would fill with NaN
                raise ValueError(f"not all have {', '.join(sorted(odd))}")
        return xr.concat(every, dim, coords="minimal", **alike | how)
    except (ValueError, xr.MergeError) as error:
        if not what:
            raise
        raise DataError(
            f"{what} have different days, cells or variables ({error}); expected the same. Make those that are out of "
            "date again."
        ) from error


def block_sizes(ds: xr.Dataset) -> dict[Hashable, int]:
    """Return the size of the first Dask block of the data variables along each dimension."""
    return {dim: sizes[0] for data in ds.data_vars.values() for dim, sizes in data.variable.chunksizes.items()}


def indexer(places: np.ndarray) -> slice | np.ndarray:
    """Return consecutive places as a slice, which stores read faster; other places as they are."""
    return slice(int(places[0]), int(places[-1]) + 1) if (np.diff(places) == 1).all() else places


logger = logging.getLogger(__name__)

Result = TypeVar("Result", xr.Dataset, xr.DataArray)
BlockFunction = Callable[[xr.Dataset, Any], xr.Dataset]
# The dimension of a pool's members.
REALIZATION = "realization"
# The dimension of variables that are adjusted together.
VARIABLE = "variable"


def cell_dims(data: xr.DataArray) -> tuple[Hashable, ...]:
    """Every dimension but time, realization and variable: `loc`, or lat and lon, or none for a single point."""
    return tuple(dim for dim in data.dims if dim not in ("time", REALIZATION, VARIABLE))


def check_same_cells(first: xr.DataArray, second: xr.DataArray | xr.Dataset, names: tuple[str, str]) -> None:
    """Check that the second has the first's cells.

    Raises
    ------
    DataError
        If a dimension is missing, or differs in size or in its coordinate.
    """
    for dim in cell_dims(first):
        sizes = first.sizes[dim], second.sizes.get(dim)
        if sizes[0] != sizes[1]:
            raise DataError(
                f"{names[0]} has {sizes[0]} cells along {dim!r} and {names[1]} {sizes[1] or 'no such dimension'}; "
                "regrid one to the other's grid."
            )
        indexes = first.indexes.get(dim), second.indexes.get(dim)
        if indexes[0] is not None and indexes[1] is not None and not indexes[0].equals(indexes[1]):
            raise DataError(f"{names[0]} and {names[1]} have different coordinates along {dim!r}; regrid one of them.")


def is_lazy(data: xr.Dataset) -> bool:
    """Whether any of the variables is Dask-backed."""
    return any(variable.chunks for variable in data.variables.values())


@dataclass(frozen=True)
class CellBlocks:
    """Series and other variables on the same cells, cut into blocks of cells with all of time.

    Attributes
    ----------
    data
        Dask-backed variables and `cell`, each cell's place in the domain; no cell coordinates.
    dims
        The cells' dimensions.
    lazy
        Whether results stay lazy.
    """

    data: xr.Dataset
    dims: tuple[Hashable, ...]
    lazy: bool

    @classmethod
    def of(
        cls,
        series: Mapping[str, xr.DataArray],
        *,
        cells_in_a_block: int,
        fixed: bool,
        others: xr.Dataset | None = None,
        first_cell: int | np.ndarray = 0,
    ) -> CellBlocks:
        """Cut series, all with the first series' cells, and the variables of `others`.

        `first_cell` is the first cell's place in the domain. For cells apart from each other, it says of each how many
        cells that are left out lie before it.

        Lazy series keep their blocks unless `fixed`, which makes the blocks a function of the grid alone. Where their
        blocks differ, all get blocks of one size, as stores have them. A block of pools has so many cells fewer as
        there are members, lazy or not.
        """
        first = next(iter(series.values()))
        dims = cell_dims(first)
        data = xr.Dataset({name: _bare(data) for name, data in series.items()})
        if others is not None:
            data = data.merge(
                others.drop_vars([name for name in others.coords if name not in others.dims or name in dims]),
                join="exact",
                compat="equals",
            )
        lazy = is_lazy(data)
        sizes = tuple(first.sizes[dim] for dim in dims)
        data["cell"] = dims, (np.arange(int(np.prod(sizes)), dtype=np.int64) + first_cell).reshape(sizes)
        _warn_of_time_chunks(series)
        members = data.sizes.get(REALIZATION, 1)
        most = max(1, cells_in_a_block // members)
        side = max(1, int(most ** (1 / len(dims)))) if dims else 1
        whole = {dim: -1 for dim in data.dims if dim not in dims}
        fitted = _fitted(data, dims, most if members > 1 else data["cell"].size) if lazy else {}
        cut = dict.fromkeys(dims, side) if fixed or not lazy else fitted
        return cls(data.chunk({**whole, **cut}).unify_chunks(), dims, lazy)

    def map(self, function: BlockFunction, template: xr.Dataset, setup: Any) -> xr.Dataset:
        """Apply `function(block, setup)` to every block; dimensions, types and attributes become the template's."""
        none = dict.fromkeys(self.dims, slice(0))
        empty = template.isel(none).map(lambda data: data.copy(data=np.empty(data.shape, data.dtype)))
        result = xr.map_blocks(_call, self.data, kwargs={"function": function, "setup": setup, "empty": empty},
                               template=template)  # fmt: skip
        return result if self.lazy else result.compute(scheduler="synchronous")


def _fitted(data: xr.Dataset, dims: tuple[Hashable, ...], most: int) -> dict[Hashable, int]:
    """Return the sizes of lazy blocks, cut along the first dimensions until they have few enough cells."""
    chunks = data.unify_chunks().chunksizes
    sizes = {dim: max(chunks.get(dim, (data.sizes[dim],))) for dim in dims}
    for dim in dims:
        excess = -(-int(np.prod(list(sizes.values()))) // most)
        sizes[dim] = -(-sizes[dim] // excess) if excess < sizes[dim] else 1
    return sizes


def assign_coords(result: Result, coords: Mapping[Hashable, xr.DataArray]) -> Result:
    """Give a result the coordinates of its input; lazy coordinates get the result's blocks."""
    chunks = result.chunksizes
    return result.assign_coords(
        {name: coord.chunk({dim: chunks.get(dim, -1) for dim in coord.dims}) if coord.chunks else coord
         for name, coord in coords.items()}
    )  # fmt: skip


def _call(block: xr.Dataset, *, function: BlockFunction, setup: Any, empty: xr.Dataset) -> xr.Dataset:
    """Give a block's result exactly the template's dimensions, dtypes and coordinates."""
    made = function(block, setup)
    variables = {
        name: (like.dims, made[name].transpose(*like.dims).values.astype(like.dtype, copy=False), like.attrs)
        for name, like in empty.data_vars.items()
    }
    return xr.Dataset(variables, coords=empty.coords, attrs=empty.attrs)


def _bare(data: xr.DataArray) -> xr.DataArray:
    return data.reset_coords(drop=True).drop_vars(data.coords, errors="ignore").drop_attrs()


def _warn_of_time_chunks(series: Mapping[str, xr.DataArray]) -> None:
    for name, data in series.items():
        chunks = len(data.chunksizes.get("time", ()))
        if chunks > 1:
            logger.warning("%s has %d chunks along time; joining them, which may move all the data", name, chunks)
