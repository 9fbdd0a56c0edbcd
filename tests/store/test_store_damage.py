"""Files of a store that lost their bytes or hold wrong bytes are errors, in every kind of array."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from store_examples import MARKER

from espo_luigi.errors import StoreError
from espo_luigi.store import open_store, write_store


def rich() -> xr.Dataset:
    """Every kind of array that rules write: numbers, flags, text, dates, scalars."""
    days = xr.date_range("2000-01-01", periods=20, calendar="noleap", use_cftime=True)
    values = np.random.default_rng(1).random((20, 6), "float32")
    return xr.Dataset(
        {
            "pr": (("time", "loc"), values),
            "land": ("loc", np.array([True, False] * 3)),
            "height": ((), np.float32(2)),
        },
        {"time": days, "season": ("time", ["DJF"] * 20), "level": "diag", "lat": ("loc", np.arange(6.0))},
    )


LAYOUTS = {"chunks": {}, "shards": {"shards": {"time": 20}}, "bits": {"bits_along": "loc"}}


@pytest.fixture(params=LAYOUTS)
def every_kind(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    write_store(rich(), tmp_path / "a.zarr", MARKER, chunks={"time": 5}, **LAYOUTS[request.param])
    return tmp_path / "a.zarr"


def empty(content: bytes) -> bytes:
    return b""


def nothing_but_zeros(content: bytes) -> bytes:
    """A file after a power cut, or with a hole: its size is right."""
    return bytes(len(content))


def one_bit_off(content: bytes) -> bytes:
    return content[: len(content) // 2] + bytes([content[len(content) // 2] ^ 1]) + content[len(content) // 2 + 1 :]


@pytest.mark.parametrize("damage", [empty, nothing_but_zeros, one_bit_off])
def test_a_damaged_chunk_of_any_kind_is_an_error(every_kind: Path, damage: Callable[[bytes], bytes]) -> None:
    chunks = [
        entry for entry in every_kind.rglob("*") if entry.is_file() and "/c" in str(entry.relative_to(every_kind))
    ]
    assert len(chunks) >= 7
    for chunk in chunks:
        whole = chunk.read_bytes()
        chunk.write_bytes(damage(whole))
        with pytest.raises(Exception, match=r".+"):
            open_store(every_kind, check=False).load()
            pytest.fail(f"{chunk} was read", pytrace=False)
        chunk.write_bytes(whole)
    xr.testing.assert_identical(open_store(every_kind).load(), rich())


def test_a_file_of_no_bytes_is_an_error_when_a_store_is_opened(every_kind: Path) -> None:
    for file in [entry for entry in every_kind.rglob("*") if entry.is_file()]:
        whole = file.read_bytes()
        file.write_bytes(b"")
        with pytest.raises(StoreError, match="run the task"):
            open_store(every_kind)
        file.write_bytes(whole)


def test_a_store_that_somebody_gave_another_codec_is_not_read(every_kind: Path) -> None:
    metadata = every_kind / "zarr.json"
    content = json.loads(metadata.read_text())
    objects = {"codecs": [{"name": "vlen-bytes"}], "data_type": "variable_length_bytes", "fill_value": ""}
    content["consolidated_metadata"]["metadata"]["pr"] |= objects
    metadata.write_text(json.dumps(content))
    with pytest.raises(StoreError, match=r"espo_luigi never writes the codec vlen-bytes of pr, which may run code"):
        open_store(every_kind, check=False)
