"""The codecs of Zarr stores, looked at before a value is decoded: to decode with some of them is to run code."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import xarray as xr

_SAFE = frozenset(
    {
        # of Zarr 3 itself
        *("bytes", "transpose", "sharding_indexed"),
        # of numcodecs: compressors, checksums, and what turns numbers into numbers
        *("blosc", "bz2", "gzip", "lz4", "lzma", "pcodec", "zfpy", "zlib", "zstd"),
        *("adler32", "crc32", "crc32c", "fletcher32", "jenkins_lookup3"),
        *("astype", "bitround", "delta", "fixedscaleoffset", "packbits", "quantize", "shuffle"),
        # of coordinates that are text
        "vlen-utf8",
    }
)
"""The codecs that a store may have: they turn bytes into numbers or text, and nothing else."""


def unsafe_codec(store: Any, options: Mapping[str, Any]) -> str:
    """Name the first codec of a Zarr group that cannot be trusted, and its array; nothing if all can. Reads no values.

    A list of what is allowed stays right when a package that somebody installs adds codecs.

    Parameters
    ----------
    store : zarr.abc.store.Store or str
        What is then given to xarray.
    options : mapping
        Those of the options for xarray by which it finds the group and the metadata are used.
    """
    how = {name: options[name] for name in ("group", "storage_options", "zarr_format") if options.get(name)}
    # By xarray's own function, so that what is looked at is what xarray will read.
    with warnings.catch_warnings():
        # That metadata are not consolidated, xarray says itself when it opens the store.
        warnings.simplefilter("ignore", RuntimeWarning)
        opened = xr.backends.ZarrStore.open_group(store, mode="r", consolidated=options.get("consolidated"), **how)
    arrays = opened.zarr_group.members()
    unsafe = (
        f"the codec {codec} of {name}"
        for name, array in arrays
        for codec in _codecs(array.metadata.to_dict())
        if codec.removeprefix("numcodecs.") not in _SAFE
    )
    return next(unsafe, "")


def _codecs(metadata: Mapping[str, Any]) -> Iterator[str]:
    """The names of an array's codecs: Zarr 2's filters and compressor; Zarr 3's codecs, and those inside of shards."""
    for key in ("filters", "compressor", "codecs", "index_codecs"):
        found = metadata.get(key) or ()
        for codec in (found,) if isinstance(found, Mapping) else found:
            yield str(codec.get("id", codec.get("name")))
            yield from _codecs(codec.get("configuration") or {})
