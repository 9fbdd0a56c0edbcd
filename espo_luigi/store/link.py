"""New stores from the files of existing ones, by hard links: several stores joined."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import xarray as xr

from espo_luigi.files import load_json
from espo_luigi.store.identity import unchanged
from espo_luigi.store.inventory import check_inventory
from espo_luigi.store.marker import ROOT_METADATA_NAME, Marker
from espo_luigi.store.publish import partial_of
from espo_luigi.store.write import finish, laid_out_for, prepared, write_rows, write_zarr

logger = logging.getLogger(__name__)

_CANNOT_LINK = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES}


def join_stores(
    joined: xr.Dataset,
    sources: Sequence[Path],
    destination: Path,
    marker: Marker,
    *,
    dim: str,
    chunks: Mapping[Any, int],
) -> None:
    """Publish stores joined along a dimension: link the chunks that lie whole in a source, write the rest.

    A chunk is linked if its source starts at a multiple of the chunk's size and has the same codecs.

        rows of the sources    0 . . . . . . . 8 . . . . . . 15 . . . . 20     (chunks of 4)
        chunks of the whole    |linked |linked |linked |written|written|

    Raises `StoreError` if a source has lost files or is replaced meanwhile, or if the disk refuses.

    Parameters
    ----------
    joined : xr.Dataset
        The result, lazily: the sources in their order along `dim`.
    sources : sequence of Path
        Complete store directories, in the order of `dim`.
    destination : Path
        The new store's name.
    marker : Marker
        The new store's marker.
    dim : str
        The dimension along which the sources are joined.
    chunks : mapping
        Chunk sizes of the result, as in `write_store`.
    """
    # What is in memory is written with the metadata.
    small = {name: data.compute() for name, data in joined.data_vars.items() if dim not in data.dims}
    laid_out, encoding = laid_out_for(prepared(joined.assign(small)), chunks, None)
    with unchanged(sources), partial_of(destination) as partial:
        for source in sources:
            check_inventory(source)
        write_zarr(laid_out, partial, mode="w-", encoding=encoding, compute=False)
        spans, left = list(_spans(sources, dim)), dict[Rows, list[Hashable]]()
        for name, variable in laid_out.data_vars.items():
            if dim not in variable.dims:
                continue
            axis, total = variable.dims.index(dim), variable.sizes[dim]
            size = _array(partial.content, name)["chunk_grid"]["configuration"]["chunk_shape"][axis]
            linked = [_link_chunks(span, partial.content, name, axis, size, total) for span in spans]
            left.setdefault(_gaps(linked, total), []).append(name)
        for rows, names in left.items():
            for start, stop in rows:
                logger.info("%s: rows %d to %d of %s are written anew", destination.name, start, stop, dim)
                write_rows(laid_out[names], partial, dim, slice(start, stop))
        finish(partial.content, marker)


Span = tuple[Path, int, int]
Rows = tuple[tuple[int, int], ...]


def _spans(sources: Sequence[Path], dim: str) -> Iterator[Span]:
    """Each source with the number of its first row in the result, and of the row after its last."""
    start = 0
    for source in sources:
        stop = start + _array(source, dim)["shape"][0]
        yield source, start, stop
        start = stop


def _array(store: Path, name: Hashable) -> dict[str, Any]:
    """The metadata of an array, without its attributes."""
    content = load_json(store / str(name) / ROOT_METADATA_NAME)
    return {key: value for key, value in content.items() if key != "attributes"}


def _link_chunks(span: Span, partial: Path, name: Hashable, axis: int, size: int, total: int) -> tuple[int, int]:
    """Link the chunks of a source that are the same in the result; return the rows that they cover."""
    source, start, stop = span
    theirs, ours = _array(source, name), _array(partial, name)
    shapes = [[n for i, n in enumerate(array["shape"]) if i != axis] for array in (theirs, ours)]
    is_alike = shapes[0] == shapes[1] and {**theirs, "shape": None} == {**ours, "shape": None}
    if start % size or not is_alike:
        return start, start
    whole = stop if stop == total else start + (stop - start) // size * size
    chunks = source / str(name) / "c"
    for entry in chunks.rglob("*"):
        if not entry.is_file():
            continue
        place = [int(part) for part in entry.relative_to(chunks).parts]
        if start + place[axis] * size < whole:
            place[axis] += start // size
            target = partial.joinpath(str(name), "c", *map(str, place))
            target.parent.mkdir(parents=True, exist_ok=True)
            _link_or_copy(entry, target)
    return start, whole


def _gaps(covered: Sequence[tuple[int, int]], total: int) -> Rows:
    """The rows from 0 to `total` that the sorted spans do not cover; neighbouring gaps are merged."""
    gaps, at = [], 0
    for start, stop in [*(span for span in covered if span[0] < span[1]), (total, total)]:
        if start > at:
            gaps.append((at, start))
        at = stop
    return tuple(gaps)


def _link_or_copy(source: Path, destination: Path) -> None:
    try:
        os.link(source, destination)
    except OSError as error:
        if error.errno not in _CANNOT_LINK:
            raise
        shutil.copyfile(source, destination)
