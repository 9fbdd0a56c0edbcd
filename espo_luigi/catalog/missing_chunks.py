"""Chunks that are missing in Zarr stores of raw data, as after an interrupted copy."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from espo_luigi.catalog.cmip7 import NAMES_IN_FILES
from espo_luigi.catalog.files import open_zarr, zarr_store
from espo_luigi.science.extract.dataset import LATITUDE_NAMES, LONGITUDE_NAMES

# To compare their names takes some ten seconds.
MOST_CHUNKS = 5_000_000


@dataclass(frozen=True)
class MissingChunks:
    """The chunks (or shards) of an array that are absent."""

    array: str
    keys: Sequence[str]
    """Their keys in the store, in order of time."""
    wanted: int
    """How many chunks the array has in the years."""
    day: Any = None
    """The first date in the first missing chunk, numpy's or cftime's; None for coordinates."""


def missing_chunks(
    path: str, variables: Sequence[str], years: tuple[int, int], options: Mapping[str, Any]
) -> list[MissingChunks]:
    """Return the arrays of a Zarr store that lack chunks in some years, coordinates or else variables.

    Zarr reads fill values there, and writers leave out chunks that hold nothing else. So if the fill value stands for
    missing values, chunks of the same cells may be absent at all times, and all chunks of a single day. A coordinate's
    chunk of a single value may be absent. Nothing is returned for stores whose keys cannot be listed (HTTP), nor for
    arrays of over `MOST_CHUNKS`.
    """
    group = _opened(path, options)
    arrays = dict(group.zarr_group.arrays())
    coordinates = {*group.get_dimensions(), *LATITUDE_NAMES, *LONGITUDE_NAMES} & arrays.keys()
    found = [_of_coordinate(arrays[name]) for name in sorted(coordinates)]
    if any(found):
        # Without coordinates, the dates and cells of other chunks are unknown.
        return [lacking for lacking in found if lacking]
    with open_zarr(path, {**options, "chunks": None}) as ds:
        dates = ds["time"].dt.year.values if "time" in ds.dims else np.array([])
        steps = np.flatnonzero((dates >= years[0]) & (dates <= years[1]))
        names = [name if name in arrays else NAMES_IN_FILES.get(name, "") for name in variables]
        held = [name for name in names if name in arrays]
        fixed = {name for name in held if ds[name].sizes.get("time", 1) == 1}
        found = [_of_field(arrays[name], ds[name]) for name in held if name in fixed]
        if steps.size:
            first, last = int(steps[0]), int(steps[-1])
            found += [_of_variable(arrays[name], ds[name], first, last) for name in held if name not in fixed]
    return [lacking for lacking in found if lacking]


def _opened(path: str, options: Mapping[str, Any]) -> Any:
    """Open a group by xarray's own function, as `arrays_of` does: of its metadata only."""
    how = {name: options[name] for name in ("group", "storage_options") if options.get(name)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return xr.backends.ZarrStore.open_group(
            zarr_store(path), mode="r", consolidated=options.get("consolidated"), **how
        )


def _of_coordinate(array: Any) -> MissingChunks | None:
    absent = _absent(array)
    if absent is None or not absent.any() or math.prod(_shape_of_a_file(array)) == 1:
        return None
    return MissingChunks(str(array.basename), _keys(array, absent), absent.size)


def _of_field(array: Any, data: xr.DataArray) -> MissingChunks | None:
    """Return the absent chunks of a variable without time, or with a single one."""
    absent = _absent(array)
    if absent is None or not absent.any() or (_stands_for_missing(array.fill_value, data) and not absent.all()):
        return None
    return MissingChunks(str(array.basename), _keys(array, absent), absent.size)


def _of_variable(array: Any, data: xr.DataArray, first: int, last: int) -> MissingChunks | None:
    """Return the absent chunks of a variable between two steps of time."""
    absent = _absent(array)
    if absent is None:
        return None
    axis = data.dims.index("time")
    steps = _shape_of_a_file(array)[axis]
    absent = np.moveaxis(absent, axis, 0)
    if _stands_for_missing(array.fill_value, data) and not absent.all():
        empty = np.pad(absent.all(axis=tuple(range(1, absent.ndim))), 1)
        absent &= ~absent.all(axis=0)
        if steps == 1:
            # A map that was empty from the start; several days in a row are rather a copy that stopped.
            absent[empty[1:-1] & ~empty[:-2] & ~empty[2:]] = False
    absent[: first // steps] = absent[last // steps + 1 :] = False
    if not absent.any():
        return None
    chunk = int(np.flatnonzero(absent.any(axis=tuple(range(1, absent.ndim))))[0])
    wanted = (last // steps - first // steps + 1) * math.prod(absent.shape[1:])
    day = data["time"].values[max(chunk * steps, first)]
    return MissingChunks(str(array.basename), _keys(array, np.moveaxis(absent, 0, axis)), wanted, day)


def _stands_for_missing(fill: Any, data: xr.DataArray) -> bool:
    declared = [data.encoding[name] for name in ("_FillValue", "missing_value") if name in data.encoding]
    return fill is not None and (fill != fill or any(fill == one for one in declared))


def _shape_of_a_file(array: Any) -> tuple[int, ...]:
    return tuple(array.shards or array.chunks)


def _absent(array: Any) -> np.ndarray | None:
    """Return which files of the grid of chunks (shards) are not in the store; None if it cannot be listed."""
    from zarr.core.sync import collect_aiterator

    store, prefix = array.store_path.store, f"{array.path}/" if array.path else ""
    grid = tuple(-(-size // one) for size, one in zip(array.shape, _shape_of_a_file(array), strict=True))
    if math.prod(grid) > MOST_CHUNKS:
        return None
    try:
        there = set(collect_aiterator(store.list_prefix(prefix)))
    # Remote stores may raise nearly anything where they cannot list; local stores can.
    except Exception:
        return None
    if not there:
        return None
    # Zarr reads a shard without bytes as fill values, too.
    root = getattr(getattr(store, "_store", store), "root", None) if array.shards else None
    absent = np.zeros(grid, bool)
    for at in itertools.product(*map(range, grid)):
        key = prefix + array.metadata.encode_chunk_key(at)
        absent[at] = key not in there or (isinstance(root, Path) and not (root / key).stat().st_size)
    return absent


def _keys(array: Any, absent: np.ndarray) -> list[str]:
    return [f"{array.path}/{array.metadata.encode_chunk_key(tuple(map(int, at)))}" for at in np.argwhere(absent)]
