"""Writing lazy arrays block by block: each block is computed, and written as whole files of a partial."""

from __future__ import annotations

import functools
import itertools
import logging
import operator
from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import dask
import dask.array as da
import numpy as np
import xarray as xr
import zarr
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from zarr.storage import LocalStore

from espo_luigi.errors import StoreError
from espo_luigi.files import HeldFolder, is_file_trouble
from espo_luigi.store.partials import BlockKey

logger = logging.getLogger(__name__)

Region = tuple[slice, ...]


def is_written_in_blocks(variable: xr.Variable) -> bool:
    """Whether a variable is lazy and consists of numbers, which are stored as they are in memory."""
    return variable.chunks is not None and variable.dtype.kind in "fiub"


def pieces_of(ds: xr.Dataset, dim: Hashable, size: int) -> Iterator[list[BlockKey]]:
    """Cut each data variable along `dim` into pieces of at most `size`; yield the blocks of each piece."""
    for name, variable in ds.data_vars.variables.items():
        if not is_written_in_blocks(variable):
            continue
        axis, blocks = variable.dims.index(dim), max(size // variable.chunksizes[dim][0], 1)
        by_piece: dict[int, list[BlockKey]] = {}
        for place in _places(variable):
            by_piece.setdefault(place[axis] // blocks, []).append((str(name), place))
        yield from by_piece.values()


def places_of(ds: xr.Dataset) -> Iterator[list[BlockKey]]:
    """Yield the blocks at a few places, of all data variables that are cut as the largest is; last, all other blocks.

    There are as many places at a time as the active Dask client, or this process without one, has threads. Variables
    may lack dimensions along which the largest is whole.
    """
    variables = {str(name): one for name, one in ds.data_vars.variables.items() if is_written_in_blocks(one)}
    largest = max(variables.values(), key=lambda one: one.nbytes, default=xr.Variable((), 0))
    cut = dict(largest.chunksizes)
    whole = {dim: sizes for dim, sizes in cut.items() if len(sizes) == 1}
    alike = {name: one for name, one in variables.items() if {**whole, **one.chunksizes} == cut}
    places = (dict(zip(largest.dims, place, strict=True)) for place in _places(largest))
    while some := list(itertools.islice(places, _threads())):
        yield [(name, tuple(place[dim] for dim in one.dims)) for place in some for name, one in alike.items()]
    yield [(name, place) for name, one in variables.items() if name not in alike for place in _places(one)]


def _threads() -> int:
    from distributed import get_client

    try:
        return sum(get_client().nthreads().values())
    except ValueError:  # no client: blocks are computed in this thread, or by threads of this process
        return int(dask.config.get("num_workers", 1))


def _places(variable: xr.Variable) -> Iterator[tuple[int, ...]]:
    return itertools.product(*(range(len(sizes)) for sizes in variable.chunks or ()))


def write_blocks(
    ds: xr.Dataset, partial: HeldFolder, wanted: Collection[BlockKey], found: Collection[BlockKey]
) -> None:
    """Compute the `wanted` blocks, in Dask's client or threads, into a store that has their metadata.

    The blocks that were `found` in the store are read where the wanted blocks depend on them.
    """
    places: dict[str, list[tuple[int, ...]]] = {}
    for name, place in wanted:
        places.setdefault(name, []).append(place)
    reading: dict[str, dict[Any, Any]] = {}
    for name, blocks in itertools.groupby(sorted(found), operator.itemgetter(0)):
        data = ds.variables[name].data
        if data.name in data.dask.layers:
            writer = BlockWriter.of(ds, partial, name)
            read = {(data.name, *place): (_read, partial, name, writer.region(place)) for _, place in blocks}
            reading[data.name] = {**data.dask.layers[data.name], **read}
    layers, written = {name: MaterializedLayer(layer) for name, layer in reading.items()}, []
    for name, of_variable in places.items():
        data = ds.variables[name].data
        if not layers.keys().isdisjoint(data.dask.layers):
            own = {key: layers.get(key, layer) for key, layer in data.dask.layers.items()}
            data = da.Array(HighLevelGraph(own, data.dask.dependencies), data.name, data.chunks, data.dtype)
        written.append(_written(data, BlockWriter.of(ds, partial, name), of_variable))
    dask.compute(*written)


def _written(data: da.Array, writer: BlockWriter, places: list[tuple[int, ...]]) -> da.Array:
    """An array with a number for each place; computing the number writes the block."""
    ones = tuple((1,) * blocks for blocks in data.numblocks)
    options: dict[str, Any] = {"dtype": "i1", "chunks": ones, "meta": np.ones((1,) * data.ndim, "i1")}
    written = da.map_blocks(writer, data, token="write-block", **options)
    # The name holds the places: under the same name, a cluster would return the result of an earlier piece.
    label = f"written-{dask.base.tokenize(written.name, places)}"
    layer: dict[Any, Any] = {(label, n): (np.ravel, (written.name, *place)) for n, place in enumerate(places)}
    graph = HighLevelGraph.from_collections(label, layer, dependencies=[written])
    return da.Array(graph, label, ((1,) * len(places),), "i1")


@dataclass(frozen=True)
class BlockWriter:
    """Writes blocks of a variable, cut along each dimension at `starts`."""

    partial: HeldFolder
    variable: str
    starts: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, ds: xr.Dataset, partial: HeldFolder, name: str) -> BlockWriter:
        """Return the writer of a lazy variable's own blocks."""
        starts = (np.cumsum([0, *sizes]) for sizes in ds.variables[name].chunks or ())
        return cls(partial, name, tuple(tuple(map(int, along)) for along in starts))

    def __call__(self, block: np.ndarray, block_id: tuple[int, ...]) -> np.ndarray:
        """Write a block; return the number 1 in as many dimensions.

        Raises
        ------
        StoreError
            If the partial is gone, or its name is that of something else: a second writer has taken its content over.
        """
        try:
            self._write(block, tuple(map(int, block_id)))
        except FileNotFoundError as error:
            raise StoreError(
                f"{self.partial.path} was deleted while it was written, or taken over. Nothing is published. Another "
                "attempt at this task goes on from it, or another person works in that folder"
            ) from error
        return np.ones((1,) * block.ndim, "i1")

    def _write(self, block: np.ndarray, place: tuple[int, ...]) -> None:
        array, region = _opened(self.partial, self.variable), self.region(place)
        if block.dtype != array.dtype:
            raise StoreError(f"{self.partial.path}: {self.variable} has {block.dtype}, and its metadata {array.dtype}")
        array[region] = block

    def region(self, place: tuple[int, ...]) -> Region:
        """Return the region of the variable that the block at a place covers."""
        return tuple(slice(along[at], along[at + 1]) for along, at in zip(self.starts, place, strict=True))

    def files(self, place: tuple[int, ...]) -> list[str]:
        """Return the files of the block at a place, by their names from the store's root."""
        array = _opened(self.partial, self.variable)
        sizes = array.shards or array.chunks
        along = (
            range(one.start // size, -(-one.stop // size)) for one, size in zip(self.region(place), sizes, strict=True)
        )
        return [f"{self.variable}/{array.metadata.encode_chunk_key(chunk)}" for chunk in itertools.product(*along)]


class HeldStore(LocalStore):
    """The store of a partial; another process that gets it holds the partial by a descriptor of its own."""

    def __init__(self, partial: HeldFolder, *, read_only: bool = False) -> None:
        super().__init__(partial.content, read_only=read_only)
        self._partial = partial

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(HeldStore, self._partial, read_only=self.read_only), ()

    def with_read_only(self, read_only: bool = False) -> Self:
        """Return the same store, only to read or not."""
        return type(self)(self._partial, read_only=read_only)


@functools.lru_cache(maxsize=64)
def _opened(partial: HeldFolder, variable: str) -> zarr.Array:
    # Chunks of fill values are written, too, so that a missing chunk was lost. (`open_array` ignores this.)
    opened = zarr.open(HeldStore(partial), path=variable, mode="r+", config={"write_empty_chunks": True})
    assert isinstance(opened, zarr.Array)
    return opened


def files_of(ds: xr.Dataset, partial: HeldFolder) -> dict[BlockKey, list[str]]:
    """Return the files of each block, by their names from the root of a store that has the metadata."""
    return {
        (name, place): writer.files(place)
        for name, writer in writers_of(ds, partial).items()
        for place in _places(ds.variables[name])
    }


def writers_of(ds: xr.Dataset, partial: HeldFolder) -> dict[str, BlockWriter]:
    """Return the writer of each variable that is written in blocks."""
    names = [str(name) for name, variable in ds.variables.items() if is_written_in_blocks(variable)]
    return {name: BlockWriter.of(ds, partial, name) for name in names}


def is_valid(writers: Mapping[str, BlockWriter], block: BlockKey) -> bool:
    """Return whether the files of a block, which must be there, can be decoded. Raises errors of the disk that pass."""
    name, place = block
    writer = writers[name]
    partial = writer.partial
    try:
        # Zarr may read an empty shard as fill values.
        if not all((partial.content / file).stat().st_size for file in writer.files(place)):
            raise EOFError("a file is empty")
        _read(partial, name, writer.region(place))
    except MemoryError:
        raise
    except Exception as error:  # each codec has errors of its own for a file that was cut or changed
        if is_file_trouble(error):  # the block may be as good as ever
            raise
        logger.warning("a block of %s in %s is damaged, and is computed again: %s", name, partial.path, error)
        return False
    return True


def _read(partial: HeldFolder, variable: str, region: Region) -> np.ndarray:
    return np.asarray(_opened(partial, variable)[region])
