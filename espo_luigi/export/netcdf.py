"""Writing NetCDF-4 files from a product, chunk by chunk in flat memory, each whole under its name or not there."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import xarray as xr

from espo_luigi.errors import StoreError
from espo_luigi.export.conventions import BOUNDS
from espo_luigi.files import aside_of, open_new, sync_path
from espo_luigi.replacing import Judge, by_digest
from espo_luigi.store.disk import delete_quietly
from espo_luigi.store.publish import written_aside

logger = logging.getLogger(__name__)

FILL_VALUE = np.float32(1e20)
# Below this size, the time to ask for a chunk outweighs the time to read it (CMIP7's guidance for modellers).
SMALLEST_CHUNK_BYTES = 4 * 2**20
# Without a list of files of ours, no file is replaced.
_NEW = by_digest(())
# What HDF5 keeps of a variable in memory: each chunk is written once, whole, and needs no cache.
_NO_CACHE = 0


@dataclass(frozen=True)
class Layout:
    """How a file is cut and encoded.

    Parameters
    ----------
    chunks : mapping of str to int
        Cells of a chunk along `Y` and `X`; -1 is the whole. A chunk has all days of its file. Chunks below 4 MB are
        made higher, then wider, by whole multiples.
    time_units : str
        Days since a date.
    at_noon : bool
        Whether a day's stamp is its noon or its beginning.
    classic : bool
        Whether files keep to the classic data model.
    """

    chunks: Mapping[str, int]
    time_units: str = "days since 1950-01-01"
    at_noon: bool = False
    classic: bool = False

    def chunk(self, shape: Sequence[int]) -> tuple[int, int, int]:
        """Return the chunk of float32 data of a shape (time, y, x)."""
        days, *cells = shape
        asked = [self.chunks.get(axis, -1) for axis in ("Y", "X")]
        sizes = [size if one == -1 else min(one, size) for one, size in zip(asked, cells, strict=True)]
        for axis in (0, 1):
            smallest = 4 * days * sizes[0] * sizes[1]
            if smallest < SMALLEST_CHUNK_BYTES:
                times = -(-SMALLEST_CHUNK_BYTES // smallest)
                sizes[axis] = min(sizes[axis] * times, cells[axis])
        return days, sizes[0], sizes[1]


def write_netcdf(
    ds: xr.Dataset,
    path: Path,
    layout: Layout,
    judge: Judge = _NEW,
    note: Callable[[Path, str], None] | None = None,
) -> str:
    """Write a dataset of `conventions.described` as a NetCDF-4 file, and publish it atomically.

    Data are float32, compressed by deflate 1 with shuffle; coordinates are double and have no fill value. Memory holds
    a chunk of the file and the chunks of the source that it is made of. `note` gets the SHA-256 of the file before the
    file gets its name; it is returned.

    Raises
    ------
    StoreError
        If the disk refuses, or a file of that name is not ours by the `judge`. Nothing is left behind.
    """
    with written_aside(path, judge=judge) as partial:
        with _errors_of_the_disk(partial), _new_file(partial, layout) as file:
            _define_coordinates(file, ds, layout)
            for name, variable in ds.data_vars.items():
                _write_variable(file, str(name), variable.variable, layout)
        sync_path(partial)
        with partial.open("rb", buffering=0) as written:
            digest = hashlib.file_digest(written, "sha256").hexdigest()
        if note is not None:
            note(path, digest)
    logger.info("wrote %s", path)
    return digest


@contextmanager
def _new_file(partial: Path, layout: Layout) -> Iterator[netCDF4.Dataset]:
    # The name must be free: no link is followed.
    os.close(open_new(partial))
    file = netCDF4.Dataset(partial, "w", format="NETCDF4_CLASSIC" if layout.classic else "NETCDF4")
    try:
        file.set_fill_off()
        yield file
    except BaseException:
        with suppress(Exception):
            file.close()
        raise
    file.close()


@contextmanager
def _errors_of_the_disk(partial: Path) -> Iterator[None]:
    """Raise the disk's error for NetCDF's "HDF error" or "Permission denied": a write beside it meets it, too."""
    try:
        yield
    except (RuntimeError, PermissionError) as error:
        if not isinstance(error, PermissionError) and "NetCDF" not in str(error):
            raise
        probe = aside_of(partial)
        try:
            with open(open_new(probe), "wb") as file:
                file.write(bytes(SMALLEST_CHUNK_BYTES))
                file.flush()
                os.fsync(file.fileno())
        finally:
            delete_quietly(probe)
        raise StoreError(
            f"cannot write {partial}: the NetCDF library says {str(error)!r}, and the disk took a write beside it just "
            "after; run again, and look for what limits the size of files there if it stays"
        ) from error


def _define_coordinates(file: netCDF4.Dataset, ds: xr.Dataset, layout: Layout) -> None:
    for name, value in ds.attrs.items():
        file.setncattr(str(name), _plain(value))
    for name, size in ds.sizes.items():
        file.createDimension(str(name), size)
    file.createDimension(BOUNDS, 2)
    days, calendar = _days(ds["time"], layout.time_units)
    # The bounds have no units of their own: CF 7.1 gives them those of time.
    named = {"standard_name": "time", "long_name": "time", "axis": "T", "bounds": "time_bnds"}
    described = {"units": layout.time_units, "calendar": calendar, **named}
    _write_small(file, "time", xr.Variable(("time",), days + 0.5 if layout.at_noon else days, described))
    _write_small(file, "time_bnds", xr.Variable(("time", BOUNDS), np.stack([days, days + 1], axis=1)))
    for name, one in ds.coords.items():
        if name != "time":
            _write_small(file, str(name), one.variable)


def _days(time: xr.DataArray, units: str) -> tuple[np.ndarray, str]:
    """The beginnings of the days as numbers of double precision, and their calendar."""
    numbers, _, calendar = xr.coding.times.encode_cf_datetime(time.values, units, time.dt.calendar, np.dtype("f8"))
    return np.floor(np.asarray(numbers, np.float64)), "standard" if "gregorian" in calendar else calendar


def _write_small(file: netCDF4.Dataset, name: str, variable: xr.Variable) -> None:
    """Write a variable in a single chunk, without a fill value."""
    values = np.asarray(variable.values)
    options: dict[str, Any] = {"chunksizes": values.shape} if values.ndim else {}
    made = file.createVariable(name, values.dtype, tuple(map(str, variable.dims)), fill_value=False, **options)
    _describe(made, variable.attrs)
    made[...] = values


def _write_variable(file: netCDF4.Dataset, name: str, variable: xr.Variable, layout: Layout) -> None:
    if variable.ndim < 3:
        _write_small(file, name, variable)
        return
    chunk = layout.chunk(variable.shape)
    made = file.createVariable(
        name,
        np.float32,
        tuple(map(str, variable.dims)),
        fill_value=FILL_VALUE,
        chunksizes=chunk,
        chunk_cache=_NO_CACHE,
        compression="zlib",
        complevel=1,
        shuffle=True,
    )
    made.set_auto_maskandscale(False)
    # Of the data's own type, as CF 2.5.1 wants it.
    missing: dict[Hashable, Any] = {"missing_value": FILL_VALUE} if "missing_value" in variable.attrs else {}
    _describe(made, {**variable.attrs, **missing})
    # Rows of chunks, so that each is written once, and each chunk of a source with chunks of that size is read once.
    starts = (range(0, size, step) for size, step in zip(variable.shape, chunk, strict=True))
    for corner in product(*starts):
        where = tuple(slice(first, first + step) for first, step in zip(corner, chunk, strict=True))
        values = np.array(variable[where].values, np.float32)
        np.copyto(values, FILL_VALUE, where=np.isnan(values))
        made[where] = values


def _describe(made: netCDF4.Variable, attrs: Mapping[Hashable, Any]) -> None:
    made.setncatts({str(name): _plain(value) for name, value in attrs.items()})


def _plain(value: Any) -> Any:
    """Whole numbers as int32, which the classic data model has, too."""
    return np.int32(value) if isinstance(value, int) and abs(value) < 2**31 else value
