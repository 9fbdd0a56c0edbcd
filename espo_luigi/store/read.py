"""Opening stores lazily: every value comes from the store that was opened, and no codec can run code."""

from __future__ import annotations

import asyncio
import os
import re
import stat
import warnings
import zipfile
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self, cast

import xarray as xr
import zarr
from zarr.abc.store import ByteRequest
from zarr.core.buffer import Buffer, BufferPrototype

from espo_luigi.errors import StoreError
from espo_luigi.files import kind_of_file, leads_out
from espo_luigi.science.stations import are_series, from_series
from espo_luigi.store.identity import Identity, check_still, identity_of
from espo_luigi.store.inventory import check_inventory
from espo_luigi.store.marker import MARKER_NAME, REMAKE, ROOT_METADATA_NAME, is_complete

# Zarr warns of labels such as the properties' names, which it would rather have written another way.
warnings.filterwarnings("ignore", message=".*Zarr V3 specification.*")

_METADATA = (".zattrs", ".zarray", ".zgroup", ".zmetadata", "zarr.json")
_CHUNK_KEY = re.compile(r"/c(/\d+)*$")
# Codecs that turn bytes into numbers or text, and do nothing else.
_SAFE = frozenset(
    {
        # of Zarr 3 itself
        *("bytes", "transpose", "sharding_indexed"),
        # of numcodecs: compressors, checksums, and filters of numbers
        *("blosc", "bz2", "gzip", "lz4", "lzma", "pcodec", "zfpy", "zlib", "zstd"),
        *("adler32", "crc32", "crc32c", "fletcher32", "jenkins_lookup3"),
        *("astype", "bitround", "delta", "fixedscaleoffset", "packbits", "quantize", "shuffle"),
        # of coordinates that are text
        "vlen-utf8",
    }
)


# Consolidated metadata of thousands of arrays; and more arrays than any dataset has.
_LARGEST_METADATA, _MOST_ENTRIES = 64 * 2**20, 10_000


class _ReadByGet(zarr.storage.WrapperStore[Any]):
    """A store whose `get` makes every read; Zarr's wrapper passes some by it, to the store inside."""

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        """Return parts of the bytes of several keys."""
        return await asyncio.gather(*(self.get(key, prototype, part) for key, part in key_ranges))

    async def _get_many(
        self, requests: Iterable[tuple[str, BufferPrototype, ByteRequest | None]]
    ) -> AsyncGenerator[tuple[str, Buffer | None], None]:
        for key, prototype, part in requests:
            yield key, await self.get(key, prototype, part)


class ClosedStore(_ReadByGet):
    """A store in a folder whose every read comes from a file of the folder: no link in it leads out, as into a home."""

    @classmethod
    def at(cls, folder: Path) -> Self:
        """Return the store in a folder, to be read only."""
        return cls(zarr.storage.LocalStore(folder, read_only=True))

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """Return a key's bytes, None if there is no such file.

        Raises
        ------
        StoreError
            If the file is reached by a link out of the folder, or is a pipe or device, or more metadata than any
            dataset has.
        """
        check_inside(os.fspath(self._store.root), key)
        return cast("Buffer | None", await self._store.get(key, prototype, byte_range))

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Yield the names in a folder of the store. Raises StoreError if there are too many for arrays of a dataset."""
        number = 0
        async for name in self._store.list_dir(prefix):
            number += 1
            if number > _MOST_ENTRIES:
                raise StoreError(f"{prefix or 'the store'} holds more than {_MOST_ENTRIES} arrays; expected a dataset")
            yield name


def check_inside(root: str, key: str) -> None:
    """Check that a key of a store in a folder is a file of this folder, or missing.

    Raises
    ------
    StoreError
        If a link on its way leads out of the folder, or it is neither a file nor a folder, or too large for metadata.
    """
    path, parts = root, key.split("/")
    if ".." in parts or key.startswith("/"):
        raise StoreError(f"{root}: got the key {key[:200]!r}, expected the name of a file in the store")
    try:
        for part in parts:
            path = f"{path}/{part}"
            mode = os.lstat(path).st_mode
            if not stat.S_ISLNK(mode):
                continue
            if target := leads_out(path, root):
                raise StoreError(
                    f"{path} is a link to {target}, out of the store; expected a file in the store, as a store of "
                    "others might link to a private one. Copy it with what its links lead to (`cp -rL`)"
                )
            mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise StoreError(f"{path} is {kind_of_file(mode)}; expected a file")
    if key.endswith(_METADATA) and (size := os.stat(path).st_size) > _LARGEST_METADATA:
        raise StoreError(f"{path} has {size} bytes; expected metadata of {_LARGEST_METADATA} at most")


class DenseStore(_ReadByGet):
    """A published store whose every read comes from the store that was opened, and whose every chunk was written.

    A missing or empty chunk is an error, where Zarr reads fill values. A read after a new store got the name is an
    error in every process. Dask's keys contain `opened`: results of a store never stand for those of its successor.
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


def open_store(path: Path, *, check: bool = True, cut: bool = True) -> xr.Dataset:
    """Open a complete store lazily, in its stored chunks; time deltas stay numbers.

    To plot a series of a simulation's own calendar (noleap, 360_day) with xarray, install nc-time-axis.

    Reading a missing chunk raises a StoreError. So does any read after the store was deleted or replaced: a reader
    never sees two stores.

    Parameters
    ----------
    path : Path
        A `.zarr` directory or a `.zarr.zip` archive.
    check : bool
        Compare the number of files and their bytes with the marker's (one `stat` per file): Zarr would read a lost
        chunk as fill values. A chunk that was altered in place raises when it is read, by its checksum.
    cut : bool
        Cut data variables into dask chunks, those of the store. If not, data are read when they are indexed, and the
        caller decides which of them are read together.

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
        if not path.exists():
            raise StoreError(f"there is no store at {path}: run the task that makes it")
        if path.suffix == ".zip":
            lost = f"its end, its {MARKER_NAME} or its {ROOT_METADATA_NAME} is missing"
            raise StoreError(f"{path} is truncated or was not packed by espo_luigi: {lost}; {REMAKE}")
        missing = [name for name in (MARKER_NAME, ROOT_METADATA_NAME) if not (path / name).is_file()]
        lost = f"no readable {' and '.join(missing) or MARKER_NAME} inside"
        raise StoreError(f"{path} is not a complete store of espo_luigi: {lost}; {REMAKE}")
    if check and path.is_dir():
        check_inventory(path)
    return _open(path, opened, cut)


def _open(path: Path, opened: Identity | None, cut: bool) -> xr.Dataset:
    try:
        inner: Any = zarr.storage.ZipStore(path, read_only=True) if path.is_file() else ClosedStore.at(path)
        source = DenseStore(inner, path, opened)
        if unsafe := unsafe_codec(arrays_of(source, {"consolidated": True})):
            raise StoreError(
                f"{path}: espo_luigi never writes {unsafe}, which may run code: somebody altered the store"
            )
        options: dict[str, Any] = {"consolidated": True, "decode_timedelta": False}
        ds = xr.open_zarr(source, chunks={} if cut else None, **options)
        if are_series(ds):  # lazy without Dask, they cannot get a dimension
            ds = from_series(xr.open_zarr(source, chunks={}, **options))
        # Dask chunks of their own would contradict those of the data, which xarray refuses.
        return ds.assign_coords(ds.coords.to_dataset().compute().coords)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, zipfile.BadZipFile) as error:
        raise StoreError(f"cannot open {path} ({type(error).__name__}: {error}); {REMAKE}") from error


def arrays_of(store: Any, options: Mapping[str, Any]) -> dict[str, zarr.Array]:
    """Return the arrays of a Zarr group, by name; reads no values.

    Parameters
    ----------
    store : zarr.abc.store.Store or str
        The store that xarray will be given.
    options : mapping
        The options for xarray; those by which it finds the group and the metadata are used.
    """
    how = {name: options[name] for name in ("group", "storage_options", "zarr_format") if options.get(name)}
    # Opened by xarray's own function: these are the metadata that xarray will read.
    with warnings.catch_warnings():
        # xarray warns of metadata that are not consolidated when it opens the store.
        warnings.simplefilter("ignore", RuntimeWarning)
        # Zarr warns of labels such as the properties' names, which it would rather have written another way.
        warnings.filterwarnings("ignore", message=".*Zarr V3 specification.*")
        opened = xr.backends.ZarrStore.open_group(store, mode="r", consolidated=options.get("consolidated"), **how)
        return dict(opened.zarr_group.arrays())


def unsafe_codec(arrays: Mapping[str, zarr.Array]) -> str:
    """Name the first codec of a Zarr group's arrays that cannot be trusted, and its array; nothing if all can.

    Decoding with some codecs runs code. A list of allowed codecs stays right when somebody installs a package that
    adds codecs.
    """
    codecs = ((codec, name) for name, array in arrays.items() for codec in _codecs(array.metadata.to_dict()))
    unsafe = (f"the codec {codec} of {name}" for codec, name in codecs if codec.removeprefix("numcodecs.") not in _SAFE)
    return next(unsafe, "")


def _codecs(metadata: Mapping[str, Any]) -> Iterator[str]:
    """The names of an array's codecs: Zarr 2's filters and compressor; Zarr 3's codecs, and those inside of shards."""
    for key in ("filters", "compressor", "codecs", "index_codecs"):
        found = metadata.get(key) or ()
        for codec in (found,) if isinstance(found, Mapping) else found:
            yield str(codec.get("id", codec.get("name")))
            yield from _codecs(codec.get("configuration") or {})
