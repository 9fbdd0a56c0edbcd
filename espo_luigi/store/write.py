"""Writing datasets as Zarr 3 stores: encodings, chunks and shards, plain attributes, the marker last."""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import dask
import numpy as np
import xarray as xr
from zarr.codecs import BloscCodec, Crc32cCodec, TransposeCodec, ZstdCodec
from zarr.storage import LocalStore

from espo_luigi.errors import StoreError
from espo_luigi.files import HeldFolder, sync_path, write_atomically
from espo_luigi.replacing import sync_tree
from espo_luigi.science.calendar import encode_dates
from espo_luigi.science.chunks import rechunk_variable
from espo_luigi.science.stations import as_series
from espo_luigi.store.blocks import (
    HeldStore,
    files_of,
    is_valid,
    is_written_in_blocks,
    pieces_of,
    places_of,
    write_blocks,
    writers_of,
)
from espo_luigi.store.inventory import check_dense, has_fingerprint, render_marker_file
from espo_luigi.store.marker import MARKER_NAME, Marker
from espo_luigi.store.partials import take_over
from espo_luigi.store.publish import Publication, partial_of

logger = logging.getLogger(__name__)

# The units of time. The rest of the encoding describes the file that the data came from: its dtype, packing, chunks
# and codecs, and a calendar that may have been converted since.
_KEPT_ENCODING = ("units",)
# Bytes of the same significance side by side, then LZ4. On daily fields this is smaller than zarr's default (zstd),
# five times as fast to write and three times to read (docs/developers/benchmarks.md). Each chunk ends in a checksum:
# a chunk that the disk altered raises when it is read.
_NUMBERS = (BloscCodec(cname="lz4", clevel=5, shuffle="shuffle"), Crc32cCodec())
# Bytes of values that were computed from two datasets hardly repeat. Bits of the same significance do, along a
# dimension whose neighbours are alike.
_BITS = (BloscCodec(cname="lz4", clevel=5, shuffle="bitshuffle"), Crc32cCodec())
_TEXT = (ZstdCodec(level=0, checksum=True),)
_WHOLE_ARRAY_LIMIT_BYTES = 128 * 1024**2


def plain_attributes(attributes: Mapping[Hashable, Any]) -> dict[str, Any]:
    """Coerce attributes to text and numbers, which every format can hold.

    Sequences become comma-joined text, NumPy scalars Python numbers, and all other values text. `flag_masks` (CF 3.5)
    become a list of numbers.
    """
    return {
        str(name): [int(mask) for mask in value] if name == "flag_masks" else _storable(value)
        for name, value in attributes.items()
    }


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
    """Return a shallow copy with plain attributes and without the encodings of the source files."""
    prepared = ds = as_series(ds).copy(deep=False)
    prepared.attrs = plain_attributes(ds.attrs)
    prepared.encoding = {}
    for variable in prepared.variables.values():
        flags = {key: of for key, of in variable.attrs.items() if key == "flag_values" and not isinstance(of, str)}
        typed = {key: np.asarray(of, variable.dtype) for key, of in flags.items()}
        variable.attrs = plain_attributes(variable.attrs) | typed
        variable.encoding = {key: variable.encoding[key] for key in _KEPT_ENCODING if key in variable.encoding}
        if variable.dtype == bool:  # else xarray before 2026.9 writes int8, and this attribute
            variable.attrs["dtype"] = "bool"
    return prepared.assign_coords({name: _numbered(prepared[name].variable) for name in prepared.indexes})


def _numbered(variable: xr.Variable) -> xr.Variable:
    """A coordinate with its dates as numbers, if `encode_dates` can make them; else unchanged."""
    index = variable.to_index()
    units = variable.encoding.get("units", "")
    numbers = encode_dates(index, units) if isinstance(index, xr.CFTimeIndex) else None
    if numbers is None:
        return variable
    return xr.Variable(variable.dims, numbers, {**variable.attrs, "units": units, "calendar": index.calendar})


def _sizes_along(wanted: Mapping[Any, int] | None, variable: xr.Variable) -> dict[Hashable, int]:
    """The wanted sizes along a variable's own dimensions, at most the whole; -1 is the whole."""
    sizes = {}
    for dim, size in (wanted or {}).items():
        if dim in variable.sizes:
            length = max(variable.sizes[dim], 1)
            sizes[dim] = length if size == -1 else min(int(size), length)
    return sizes


def _chunk_shape(name: Hashable, variable: xr.Variable, chunks: Mapping[Any, int] | None) -> tuple[int, ...] | None:
    """The Zarr chunk of a variable: as asked, else as its dask chunks, else whole; None leaves it to zarr."""
    asked = _sizes_along(chunks, variable)
    if variable.chunks is None:
        if not asked and variable.nbytes > _WHOLE_ARRAY_LIMIT_BYTES:
            return None
        return tuple(asked.get(dim, max(length, 1)) for dim, length in variable.sizes.items())
    shape = []
    for dim, sizes in zip(variable.dims, variable.chunks, strict=True):
        first = sizes[0] if sizes else 1
        # Only the last may be shorter.
        if dim not in asked and (set(sizes[:-1]) - {first} or (sizes and sizes[-1] > first)):
            raise StoreError(
                f"variable {name!r} has dask chunks {sizes} along {dim!r}, expected equal ones with a shorter last "
                f"one: give write_store chunks={{{dim!r}: {first}}}, or rechunk before"
            )
        shape.append(asked.get(dim, max(first, 1)))
    return tuple(shape)


def laid_out_for(
    ds: xr.Dataset,
    chunks: Mapping[Any, int] | None,
    shards: Mapping[Any, int] | None,
    bits_along: Hashable | None = None,
) -> tuple[xr.Dataset, dict[Hashable, dict[str, Any]]]:
    """Return the dataset with dask chunks that match the files, and each variable's encoding."""
    encoding: dict[Hashable, dict[str, Any]] = {}
    laid_out = ds.copy(deep=False)
    for name, variable in ds.variables.items():
        is_data = name in ds.data_vars
        # A coordinate is a single file, however the data are cut.
        chunk = _chunk_shape(name, variable, chunks if is_data else dict.fromkeys(variable.dims, -1))
        # An encoding given to xarray replaces the variable's own, with its units of time.
        encoding[name] = {**variable.encoding, **_codecs(variable, bits_along)}
        if chunk is None or not variable.ndim:
            continue
        unit = encoding[name]["chunks"] = chunk
        if shards and is_data:
            asked = _sizes_along(shards, variable)
            # As asked, rounded up to whole chunks.
            sizes = (-(-asked.get(dim, size) // size) * size for dim, size in zip(variable.dims, chunk, strict=True))
            unit = encoding[name]["shards"] = tuple(sizes)
        if variable.chunks is not None or (is_data and (chunks or shards)):
            # No two workers may share a file: dask blocks are of whole files.
            blocks = variable.chunks or ((),) * variable.ndim
            sizes_by_dim = zip(variable.dims, blocks, unit, strict=True)
            wanted = {dim: one for dim, sizes, one in sizes_by_dim if not sizes or any(n % one for n in sizes[:-1])}
            laid_out[name] = rechunk_variable(variable, wanted) if wanted else variable
    return laid_out, encoding


def _codecs(variable: xr.Variable, bits_along: Hashable | None) -> dict[str, Any]:
    if bits_along in variable.dims and variable.dtype.kind == "f":
        order = sorted(range(variable.ndim), key=lambda axis: variable.dims[axis] == bits_along)
        filters = () if order == list(range(variable.ndim)) else (TransposeCodec(order=order),)
        return {"compressors": _BITS, "filters": filters}
    return {"compressors": _NUMBERS if variable.dtype.kind in "fiu" else _TEXT}


def write_zarr(ds: xr.Dataset, where: Path | HeldFolder, **options: Any) -> None:
    """Write a dataset as Zarr 3, with the chunks of fill values (sea), so that a missing chunk was lost."""
    with warnings.catch_warnings():
        # Consolidated metadata and fixed-length text are not yet in Zarr 3's specification; our readers know them.
        warnings.filterwarnings("ignore", category=UserWarning, module="zarr")
        warnings.filterwarnings("ignore", message=".*(onsolidated metadata|Zarr V3 specification|Zarr format 3).*")
        # From 3.2 on, Zarr parses a text as a URL, which ends at `#` or `?`.
        store = LocalStore(where) if isinstance(where, Path) else HeldStore(where)
        ds.to_zarr(store, zarr_format=3, consolidated=True, write_empty_chunks=True, **options)


def write_store(
    ds: xr.Dataset,
    path: Path,
    marker: Marker,
    *,
    chunks: Mapping[Any, int] | None = None,
    shards: Mapping[Any, int] | None = None,
    at_once: Mapping[Any, int] | None = None,
    by_place: bool = False,
    bits_along: Hashable | None = None,
    fingerprint: str = "",
    summed: bool = False,
) -> None:
    """Compute a dataset into a Zarr 3 store and publish it atomically, replacing a store of the same name.

    The active Dask client computes lazy data. The dtype in memory is the dtype on disk. Raises `StoreError` if dask
    chunks are irregular, or if the disk refuses (full, read-only, over quota). Without a fingerprint, nothing is left
    behind.

    Parameters
    ----------
    ds : xr.Dataset
        Any dimensions; attributes are coerced to text and numbers.
    path : Path
        The final name; a missing folder is made.
    marker : Marker
        Written last, inside.
    chunks : mapping, optional
        Chunk sizes of data variables by dimension (-1: whole); by default those of dask, which must be regular.
        Dimensions that a variable lacks are ignored.
    shards : mapping, optional
        Shard sizes of data variables by dimension (-1: whole), rounded up to whole chunks.
    at_once : mapping, optional
        A dimension of all lazy data variables, and the length of the piece that is computed at a time, rounded down to
        whole blocks. Variables and pieces are computed one by one, which takes less memory; intermediate results that
        pieces share are computed for each piece again.
    by_place : bool
        Compute the blocks of all variables at a place together, and a place for each thread at a time. Dask's own order
        holds what variables share (values and their flags) for many places. Variables that are cut otherwise come last;
        what they share with the others is computed again.
    bits_along : hashable, optional
        A dimension along which neighbours are alike, for values whose bytes hardly repeat: compress bit by bit, with
        this dimension last in a chunk. Trained quantiles get some 10 % smaller, and slower to read.
    fingerprint : str, optional
        A text for all that the values depend on. With it, a writer that is killed or stopped, or that the disk fails,
        leaves its complete blocks, and a later writer with the same fingerprint, metadata and coordinates goes on from
        them. A store that already has the fingerprint stays.
    summed : bool
        Read the files once more, for a SHA-256 of all in the marker file.
    """
    path = Path(path)
    if fingerprint and has_fingerprint(path, fingerprint):
        logger.info("%s is there: an earlier attempt at the same task has published it", path)
        return
    laid_out, encoding = laid_out_for(prepared(ds), chunks, shards, bits_along)
    publication = Publication.current()
    with partial_of(path, resumable=bool(fingerprint)) as partial:
        laid_out = _computed(laid_out, coordinates=bool(at_once) or by_place)
        # "w-" refuses a folder that is there already.
        write_zarr(laid_out, partial, mode="w-", encoding=encoding, compute=False)
        files, found = files_of(laid_out, partial), set()
        if fingerprint:
            valid = functools.partial(is_valid, writers_of(laid_out, partial))
            found = take_over(partial, path, fingerprint, publication.claim, files, valid)
        with publication.blocks.of(partial, files, found):
            if at_once:
                pieces = pieces_of(laid_out, *next(iter(at_once.items())))
            else:
                pieces = places_of(laid_out) if by_place else iter([list(files)])
            for piece in pieces:
                write_blocks(laid_out, partial, [block for block in piece if block not in found], found)
        finish(partial.content, marker, fingerprint, summed=summed)
    logger.info("wrote %s", path)
    if found:
        logger.info("%s: %d of its %d blocks were complete already", path.name, len(found), len(files))


def _computed(ds: xr.Dataset, coordinates: bool) -> xr.Dataset:
    """The dataset with all lazy data but numbers computed; with `coordinates`, these are computed, too."""
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


def write_rows(ds: xr.Dataset, partial: HeldFolder, dim: str, rows: slice) -> None:
    """Compute some rows of the data variables along a dimension, into a store that has their metadata."""
    part = ds.isel({dim: rows})
    write_zarr(part.drop_vars(part.coords).drop_encoding(), partial, region={dim: rows}, mode="r+")


def finish(content: Path, marker: Marker, fingerprint: str = "", *, summed: bool = False) -> None:
    """Force the data onto the disk, then write the marker and force that, too.

    Raises `StoreError` if any file that was written is missing.
    """
    sync_tree(content)
    check_dense(content)
    marker_file = content / MARKER_NAME
    write_atomically(marker_file, render_marker_file(content, marker, fingerprint, summed=summed), public=True)
    sync_path(marker_file)
    sync_path(content)
