"""Looking at stores: complete or not, what made them, and their data, lazily."""

from __future__ import annotations

import logging
import os
import re
import zipfile
from pathlib import Path
from typing import Any, Self

import xarray as xr
import zarr
from zarr.abc.store import ByteRequest
from zarr.core.buffer import Buffer, BufferPrototype

from espo_luigi.errors import StoreError
from espo_luigi.store.archive_ends import read_packed_marker
from espo_luigi.store.codecs import unsafe_codec
from espo_luigi.store.identity import Identity, check_still, identity_of
from espo_luigi.store.marker import MARKER_NAME, REMAKE, ROOT_METADATA_NAME, Marker, check_inventory
from espo_luigi.store.table import marker_line

logger = logging.getLogger(__name__)


_CHUNK_KEY = re.compile(r"/c(/\d+)*$")


class DenseStore(zarr.storage.WrapperStore[Any]):
    """A published store, of which every read is of the one that was opened, and every chunk was written.

    A chunk that is not there, or has no bytes, is an error, where Zarr reads fill values. What is read after another
    store got the name is an error, in whatever process. `opened` is part of what Dask makes its keys of: results of a
    store are never taken for those of its successor.
    """

    def __init__(self, store: Any, path: Path, opened: Identity | None) -> None:
        super().__init__(store)
        self._path, self._opened = path, opened

    def _with_store(self, store: Any) -> Self:
        return type(self)(store, self._path, self._opened)

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """Return a key's bytes; None only for metadata that do not exist.

        Raises
        ------
        StoreError
            If the store was replaced, or a chunk is missing or empty.
        """
        try:
            found = await self._store.get(key, prototype, byte_range)
        finally:
            check_still(self._path, self._opened)
        # Zarr reads a shard without bytes as fill values, too.
        if (found is None or not len(found)) and _CHUNK_KEY.search(key):
            raise StoreError(
                f"{self._path}: the chunk {key} is {'gone' if found is None else 'empty'}, which was there when the "
                f"store was published: somebody deleted it, or the file system lost it; {REMAKE}"
            )
        return found


def _marker_text(path: Path) -> str | None:
    """The text of a store's marker file, None if the store is missing, half there or not ours."""
    try:
        if path.suffix == ".zip":
            return read_packed_marker(path)
        if path.suffix in (".csv", ".html"):
            return marker_line(path)
        # A plan asks for as many markers as there are tasks, and a path takes its time to make.
        with open(f"{path}/{MARKER_NAME}", encoding="utf-8") as file:
            text = file.read()
        return text if os.stat(f"{path}/{ROOT_METADATA_NAME}").st_size else None
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, UnicodeDecodeError):
        return None


def read_marker(path: Path) -> Marker | None:
    """The marker of a complete store, directory or `.zip`, None if it is not complete; well under a millisecond."""
    text = _marker_text(Path(path))
    try:
        return None if text is None else Marker.from_json(text)
    except StoreError:
        return None


def is_complete(path: Path) -> bool:
    """Whether root metadata and a readable marker are there (of a `.zip`: both its ends); well under a millisecond."""
    return read_marker(path) is not None


def open_store(path: Path, *, check: bool = True, cut: bool = True) -> xr.Dataset:
    """Open a complete store lazily, in its stored chunks; time deltas stay numbers.

    A chunk that is missing raises a StoreError when it is read, and so does any once the store was deleted or another
    published under its name: a reader never sees two.

    Parameters
    ----------
    path : Path
        A `.zarr` directory or a `.zarr.zip` archive.
    check : bool
        Compare the number of files and their bytes with the marker's (one `stat` a file): Zarr would read a lost chunk
        as fill values. A chunk altered without a change of size raises when it is read, by its checksum.
    cut : bool
        Cut data variables into dask chunks, those of the store. Without, they are read when they are indexed, so that
        whoever cuts them decides what is read together.

    Returns
    -------
    xr.Dataset
        Coordinates are in memory; no other values are read.

    Raises
    ------
    StoreError
        If the store is missing, truncated, without marker, or unreadable.
    """
    path = Path(path)
    opened = identity_of(path)
    if not is_complete(path):
        raise StoreError(_why_not_complete(path))
    if check and path.is_dir():
        check_inventory(path)
    return _open(path, opened, cut)


def _open(path: Path, opened: Identity | None, cut: bool) -> xr.Dataset:
    inner: Any = zarr.storage.ZipStore if path.is_file() else zarr.storage.LocalStore
    try:
        source = DenseStore(inner(path, read_only=True), path, opened)
        if unsafe := unsafe_codec(source, {"consolidated": True}):
            raise StoreError(
                f"{path}: espo_luigi never writes {unsafe}, which may run code: somebody altered the store"
            )
        ds = xr.open_zarr(source, chunks={} if cut else None, consolidated=True, decode_timedelta=False)
        # In dask chunks of their own, they would contradict those of the data, which xarray refuses.
        return ds.assign_coords(ds.coords.to_dataset().compute().coords)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, zipfile.BadZipFile) as error:
        raise StoreError(f"cannot open {path} ({type(error).__name__}: {error}); {REMAKE}") from error


def _why_not_complete(path: Path) -> str:
    if not path.exists():
        return f"there is no store at {path}: run the task that makes it"
    if path.suffix == ".zip":
        lost = f"its end, its {MARKER_NAME} or its {ROOT_METADATA_NAME} is missing"
        return f"{path} is truncated or was not packed by espo_luigi: {lost}; {REMAKE}"
    missing = [name for name in (MARKER_NAME, ROOT_METADATA_NAME) if not (path / name).is_file()]
    lost = f"no readable {' and '.join(missing) or MARKER_NAME} inside"
    return f"{path} is not a complete store of espo_luigi: {lost}; {REMAKE}"
