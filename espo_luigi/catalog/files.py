"""Opening one NetCDF file or Zarr store lazily, in chunks that suit how it is stored."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import xarray as xr

DAYS_PER_CHUNK = 365
# Several years at a time where a grid is so small that one takes less: each chunk costs Dask a few milliseconds.
BYTES_PER_CHUNK = 16 * 1024**2


def is_zarr(path: str, stated_format: str = "") -> bool:
    """Whether a path is a Zarr store (directory or `.zarr.zip`), by its catalogue's format or its name."""
    return stated_format == "zarr" or path.rstrip("/").endswith((".zarr", ".zarr.zip"))


def open_zarr(path: str, options: Mapping[str, Any]) -> xr.Dataset:
    """Open a Zarr store, directory or archive, in its own chunks; time deltas stay numbers; lazy."""
    from zarr.storage import ZipStore

    # A plain path to an archive is not opened by zarr 3.
    store: Any = ZipStore(path, mode="r") if path.endswith(".zip") else path
    return xr.open_dataset(store, **{"engine": "zarr", "chunks": {}, "decode_timedelta": False, **options})


def open_netcdf(
    path: str, variables: Sequence[str], options: Mapping[str, Any], most_bytes: float = math.inf
) -> xr.Dataset:
    """Open a NetCDF file in chunks of a year or some megabytes, whole stored chunks of `variables`; lazy.

    `most_bytes` makes chunks smaller than that where a year is more: of fewer days, and of stored chunks of many days,
    of some rows of the map.
    """
    engine = {"engine": options["engine"]} if "engine" in options else {}
    with xr.open_dataset(path, decode_cf=False, **engine) as probe:
        held = [probe[name] for name in variables if name in probe]
        largest = max(held, key=lambda data: data.nbytes, default=None)
        chunks = {"time": DAYS_PER_CHUNK} if largest is None else _chunks(largest, most_bytes)
    return xr.open_dataset(path, **{"chunks": chunks, "decode_timedelta": False, **options})


def _chunks(data: xr.DataArray, most_bytes: float) -> dict[Hashable, int]:
    """Whole stored chunks: a compressed chunk that is cut is decompressed more than once."""
    stored = data.encoding.get("chunksizes") or (1,) * data.ndim
    days = _days_per_chunk(data, stored[0], most_bytes)
    bytes_per_row = max(days * math.prod(data.shape[2:]) * 4, 1)
    if data.ndim < 2 or bytes_per_row * data.shape[1] <= most_bytes:
        return {"time": days}
    return {"time": days, data.dims[1]: int(max(most_bytes // bytes_per_row // stored[1], 1) * stored[1])}


def _days_per_chunk(data: xr.DataArray, stored: int, most_bytes: float) -> int:
    bytes_per_day = max(math.prod(data.shape[1:]) * 4, 1)  # in single precision, whatever it is packed in
    days = min(max(DAYS_PER_CHUNK, BYTES_PER_CHUNK // bytes_per_day), most_bytes // bytes_per_day)
    return int(max(days // stored, 1) * stored)


def tracking_id(path: str) -> str:
    """Return a file's attribute `tracking_id`, by which ESGF knows it; nothing without one, or if it cannot be read."""
    try:
        with open_zarr(path, {}) if is_zarr(path) else xr.open_dataset(path, decode_cf=False) as ds:
            return str(ds.attrs.get("tracking_id", ""))
    # A damaged file may raise nearly anything from its backend; other checks report what is wrong.
    except Exception:
        return ""


def first_line(error: Exception) -> str:
    """The first sentence of an error; xarray's on unreadable files continues with how to install backends."""
    text = str(error).split("\n")[0].split("Consider explicitly selecting")[0].strip()
    return f"{type(error).__name__}: {text.removesuffix('.')}"
