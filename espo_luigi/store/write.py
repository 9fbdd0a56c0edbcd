"""Datasets → published Zarr 3 stores: encodings, chunks and shards, plain attributes, the marker last."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import dask
import numpy as np
import xarray as xr
from zarr.codecs import BloscCodec, Crc32cCodec, TransposeCodec, ZstdCodec

from espo_luigi.errors import StoreError
from espo_luigi.files import replace_text, sync_path
from espo_luigi.science.calendar import encode_dates
from espo_luigi.science.chunks import rechunk_variable
from espo_luigi.store import manifest
from espo_luigi.store.blocks import blocks_of, is_written_in_blocks, pieces_of, write_blocks
from espo_luigi.store.dense import check_dense
from espo_luigi.store.marker import MARKER_NAME, Marker, is_of_work, render_marker_file, take_inventory, work_id
from espo_luigi.store.publish import sweep_partials, sync_tree, take_on, written_aside

logger = logging.getLogger(__name__)

# How time is counted. All else describes the file that the data came from: its dtype, packing, chunks, codecs, and a
# calendar that may have been converted since.
_KEPT_ENCODING = ("units",)
# Bytes of the same significance side by side, then LZ4: smaller than zarr's default (zstd) on daily fields, written
# five times as fast and read three times (docs/performance.md). Each chunk ends in a checksum: what a disk altered
# raises when it is read.
_NUMBERS = (BloscCodec(cname="lz4", clevel=5, shuffle="shuffle"), Crc32cCodec())
# For values computed from two datasets, hardly a byte repeats: bits of the same significance side by side, along a
# dimension in which neighbours are alike.
_BITS = (BloscCodec(cname="lz4", clevel=5, shuffle="bitshuffle"), Crc32cCodec())
_TEXT = (ZstdCodec(level=0, checksum=True),)
_WHOLE_ARRAY_LIMIT_BYTES = 128 * 1024**2


def plain_attributes(attributes: Mapping[Hashable, Any]) -> dict[str, str | int | float]:
    """Coerce attributes to what every format can hold: text and numbers.

    Sequences become comma-joined text, NumPy scalars Python numbers; mappings, truth values, None and all else, text.
    """
    return {str(name): _storable(value) for name, value in attributes.items()}


def _storable(value: Any) -> str | int | float:
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, list | tuple | set | frozenset):
        members = sorted(value, key=str) if isinstance(value, set | frozenset) else value
        return ",".join(str(_storable(member)) for member in members)
    return value if isinstance(value, str | int | float) and not isinstance(value, bool) else str(value)


def prepared(ds: xr.Dataset) -> xr.Dataset:
    """A shallow copy with plain attributes and with the encodings of the source files dropped."""
    prepared = ds.copy(deep=False)
    prepared.attrs = plain_attributes(ds.attrs)
    prepared.encoding = {}
    for variable in prepared.variables.values():
        variable.attrs = plain_attributes(variable.attrs)
        variable.encoding = {key: variable.encoding[key] for key in _KEPT_ENCODING if key in variable.encoding}
    return prepared.assign_coords({name: _numbered(prepared[name].variable) for name in prepared.indexes})


def _numbered(variable: xr.Variable) -> xr.Variable:
    """A coordinate with its dates as numbers where `encode_dates` can; any other as it is."""
    index = variable.to_index()
    units = variable.encoding.get("units", "")
    numbers = encode_dates(index, units) if isinstance(index, xr.CFTimeIndex) else None
    if numbers is None:
        return variable
    return xr.Variable(variable.dims, numbers, {**variable.attrs, "units": units, "calendar": index.calendar})


def _sizes_along(wanted: Mapping[Any, int] | None, variable: xr.Variable) -> dict[Hashable, int]:
    """The wanted sizes along a variable's own dimensions; -1 is the whole dimension, never more than it."""
    sizes = {}
    for dim, size in (wanted or {}).items():
        if dim in variable.sizes:
            length = max(variable.sizes[dim], 1)
            sizes[dim] = length if size == -1 else min(int(size), length)
    return sizes


def _chunk_shape(name: Hashable, variable: xr.Variable, chunks: Mapping[Any, int] | None) -> tuple[int, ...] | None:
    """The Zarr chunk of a data variable: as asked, else as its dask chunks, else whole; None leaves it to zarr."""
    asked = _sizes_along(chunks, variable)
    if variable.chunks is None:
        if not asked and variable.nbytes > _WHOLE_ARRAY_LIMIT_BYTES:
            return None
        return tuple(asked.get(dim, max(length, 1)) for dim, length in variable.sizes.items())
    return tuple(
        asked[dim] if dim in asked else _regular_chunk(name, dim, sizes)
        for dim, sizes in zip(variable.dims, variable.chunks, strict=True)
    )


def _regular_chunk(name: Hashable, dim: Hashable, sizes: tuple[int, ...]) -> int:
    """The one size of all dask chunks along a dimension, of which only the last may be shorter."""
    first = sizes[0] if sizes else 1
    if set(sizes[:-1]) - {first} or (sizes and sizes[-1] > first):
        raise StoreError(
            f"variable {name!r} has dask chunks {sizes} along {dim!r}, expected equal ones with a shorter last one: "
            f"give write_store chunks={{{dim!r}: {first}}}, or rechunk before"
        )
    return max(first, 1)


def _shard_shape(variable: xr.Variable, chunk: tuple[int, ...], shards: Mapping[Any, int]) -> tuple[int, ...]:
    """The shard of a variable: as asked, rounded up to whole chunks."""
    asked = _sizes_along(shards, variable)
    return tuple(-(-asked.get(dim, size) // size) * size for dim, size in zip(variable.dims, chunk, strict=True))


def laid_out_for(
    ds: xr.Dataset,
    chunks: Mapping[Any, int] | None,
    shards: Mapping[Any, int] | None,
    bits_along: Hashable | None = None,
) -> tuple[xr.Dataset, dict[Hashable, dict[str, Any]]]:
    """The dataset with dask chunks that match what is written, and each variable's encoding."""
    encoding: dict[Hashable, dict[str, Any]] = {}
    laid_out = ds.copy(deep=False)
    for name, variable in ds.variables.items():
        is_data = name in ds.data_vars
        # A coordinate is one file, however the data are cut.
        chunk = _chunk_shape(name, variable, chunks if is_data else dict.fromkeys(variable.dims, -1))
        # What is given to xarray replaces the variable's own encoding, the units of time among it.
        encoding[name] = {**variable.encoding, **_codecs(variable, bits_along)}
        if chunk is None or not variable.ndim:
            continue
        unit = encoding[name]["chunks"] = chunk
        if shards and is_data:
            unit = encoding[name]["shards"] = _shard_shape(variable, chunk, shards)
        if variable.chunks is not None or (is_data and (chunks or shards)):
            laid_out[name] = _in_whole_files(variable, unit)
    return laid_out, encoding


def _codecs(variable: xr.Variable, bits_along: Hashable | None) -> dict[str, Any]:
    if bits_along in variable.dims and variable.dtype.kind == "f":
        order = sorted(range(variable.ndim), key=lambda axis: variable.dims[axis] == bits_along)
        filters = () if order == list(range(variable.ndim)) else (TransposeCodec(order=order),)
        return {"compressors": _BITS, "filters": filters}
    return {"compressors": _NUMBERS if variable.dtype.kind in "fiu" else _TEXT}


def _in_whole_files(variable: xr.Variable, unit: tuple[int, ...]) -> xr.Variable:
    """The variable in dask blocks of one or more whole files: no two workers ever share one."""
    blocks = variable.chunks or ((),) * variable.ndim
    split = [not sizes or any(size % one for size in sizes[:-1]) for sizes, one in zip(blocks, unit, strict=True)]
    wanted = {dim: one for dim, one, cut in zip(variable.dims, unit, split, strict=True) if cut}
    return rechunk_variable(variable, wanted) if wanted else variable


def write_zarr(ds: xr.Dataset, path: Path, **options: Any) -> None:
    """Write a dataset as Zarr 3, chunks of nothing but fill values (sea) too: one that is not there was lost, then."""
    with warnings.catch_warnings():
        # Consolidated metadata and fixed-length text are not yet in Zarr 3's specification; our readers have them.
        warnings.filterwarnings("ignore", category=UserWarning, module="zarr")
        warnings.filterwarnings("ignore", message=".*(onsolidated metadata|Zarr V3 specification|Zarr format 3).*")
        ds.to_zarr(path, zarr_format=3, consolidated=True, write_empty_chunks=True, **options)


def write_store(
    ds: xr.Dataset,
    path: Path,
    marker: Marker,
    *,
    chunks: Mapping[Any, int] | None = None,
    shards: Mapping[Any, int] | None = None,
    at_once: Mapping[Any, int] | None = None,
    bits_along: Hashable | None = None,
    key: str = "",
) -> None:
    """Compute a dataset into a Zarr 3 store and publish it atomically, replacing a store of the same name.

    Lazy data are computed here, by whatever Dask client is active. The dtype in memory is the dtype on disk.

    Parameters
    ----------
    ds : xr.Dataset
        Any dimensions; attributes are coerced to text and numbers.
    path : Path
        The final name; its folder is made if missing.
    marker : Marker
        Written last, inside.
    chunks : mapping, optional
        Chunk sizes of data variables by dimension (-1: whole); by default those of dask, which have to be regular.
        Dimensions that a variable lacks are ignored.
    shards : mapping, optional
        Shard sizes of data variables by dimension (-1: whole), rounded up to whole chunks.
    at_once : mapping, optional
        One dimension of all lazy data variables and how much of it is computed at a time, rounded down to whole blocks:
        one variable after the other, and each piece by piece. Less memory where all need much of it; what pieces share
        is computed anew for each.
    bits_along : hashable, optional
        A dimension along which neighbours are alike, of values whose bytes hardly repeat: they are compressed bit by
        bit, with this dimension last in a chunk. Some 10 % smaller for trained quantiles, and slower to read.
    key : str, optional
        All that the values depend on. With it, a writer that is killed or stopped leaves its complete blocks, and the
        next one with the same key, metadata and coordinates goes on from them. A store that is there with the same
        key stays.

    Raises
    ------
    StoreError
        If dask chunks are irregular, or the disk refuses (full, read-only, over quota); nothing is left behind.
    """
    path = Path(path)
    if key and is_of_work(path, work_id(key)):
        logger.info("%s is there: an earlier attempt at the same work has published it", path)
        return
    laid_out, encoding = laid_out_for(prepared(ds), chunks, shards, bits_along)
    with written_aside(path, resumable=bool(key)) as partial:
        laid_out = _computed(laid_out, coordinates=bool(at_once))
        # "w-": never into a folder that is there already.
        write_zarr(laid_out, partial, mode="w-", encoding=encoding, compute=False)
        found = _taken_on(partial, path, key) if key else set()
        wanted = blocks_of(laid_out)
        with manifest.counted(partial, len(found)):
            for piece in pieces_of(laid_out, *next(iter(at_once.items()))) if at_once else [wanted]:
                write_blocks(laid_out, partial, [one for one in piece if one not in found], found, bool(key))
        finish(partial, marker, work_id(key))
    logger.info("wrote %s", path)
    if found:
        logger.info("%s: %d of its %d blocks were complete already", path.name, len(found), len(wanted))


def _computed(ds: xr.Dataset, coordinates: bool) -> xr.Dataset:
    """The dataset, in which only numbers are lazy; if `coordinates`, none of these are."""
    lazy = {name: variable for name, variable in ds.variables.items() if variable.chunks is not None}
    first = {
        name: variable
        for name, variable in lazy.items()
        if not is_written_in_blocks(variable) or (coordinates and name in ds.coords)
    }
    computed = ds.copy(deep=False)
    for name, variable in dask.compute(first)[0].items():
        computed[name] = variable
    return computed


def _taken_on(partial: Path, path: Path, key: str) -> set[manifest.Block]:
    """The complete blocks of an earlier attempt, which is now in the partial's place; nothing else is left of any."""
    manifest.begin(partial, key)
    found = take_on(partial, path)
    sweep_partials(path)
    return found


def write_rows(ds: xr.Dataset, path: Path, dim: str, rows: slice) -> None:
    """Compute a part of the data variables along a dimension into a store that has their metadata already."""
    part = ds.isel({dim: rows})
    write_zarr(part.drop_vars(part.coords).drop_encoding(), path, region={dim: rows}, mode="r+")


def finish(partial: Path, marker: Marker, work: str = "") -> None:
    """Everything onto the disk, then the marker, then that too; raises StoreError if anything written is gone again."""
    sync_tree(partial)
    check_dense(partial)
    manifest.forget(partial)
    marker_file = partial / MARKER_NAME
    text = render_marker_file(marker, take_inventory(partial), work)
    replace_text(marker_file, text)
    sync_path(marker_file)
    sync_path(partial)
