"""Stores joined along a dimension hold the values of a copy, and share files with their sources where they can."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from espo_luigi.errors import StoreError
from espo_luigi.store import Marker, join_stores, open_store, read_marker, write_store

CHUNKS = {"time": 7, "lat": 4, "lon": 3}


def band(first: int, rows: int) -> xr.Dataset:
    rng = np.random.default_rng(first)
    shape = (20, rows, 8)
    coords = {"time": np.arange(20), "lat": np.arange(first, first + rows) / 10 + 45, "lon": np.arange(8) / 10}
    values = {name: (("time", "lat", "lon"), rng.random(shape, "f4"), {"units": "K"}) for name in ("tasmax", "pr")}
    return xr.Dataset(values, coords)


def bands(folder: Path, heights: Sequence[int], chunks: dict[str, int] = CHUNKS) -> list[Path]:
    firsts = [0, *itertools.accumulate(heights)]
    paths = [folder / f"band{number}.zarr" for number in range(len(heights))]
    for path, first, rows in zip(paths, firsts, heights, strict=False):
        write_store(band(first, rows), path, Marker("CleanUp"), chunks=chunks)
    return paths


def join(paths: Sequence[Path], destination: Path) -> xr.Dataset:
    whole = xr.concat([open_store(path) for path in paths], dim="lat")
    join_stores(whole, paths, destination, Marker("ConcatenationFinal"), dim="lat", chunks=CHUNKS)
    return whole


def linked_files(paths: Sequence[Path], destination: Path) -> int:
    own = {entry.stat().st_ino for path in paths for entry in path.glob("*/c/**/*") if entry.is_file()}
    return sum(entry.stat().st_ino in own for entry in destination.glob("pr/c/**/*") if entry.is_file())


@pytest.mark.parametrize(
    ("heights", "rows_linked"),
    [
        ((8, 4, 5), 5),  # every band starts at a chunk: chunks of rows 0-4, 4-8, 8-12, 12-16 and the short last one
        ((6, 5, 6), 1),  # no other band does: only the first chunk is whole in its band
        ((5, 3, 6), 3),  # a seam at rows 4 to 8
        ((3, 2, 2), 0),  # bands lower than a chunk
    ],
)
def test_what_is_joined_is_what_a_copy_would_be(tmp_path: Path, heights: Sequence[int], rows_linked: int) -> None:
    paths = bands(tmp_path, heights)
    whole = join(paths, tmp_path / "whole.zarr")
    joined = open_store(tmp_path / "whole.zarr")
    xr.testing.assert_identical(joined.compute(), whole.compute())
    assert joined.tasmax.encoding["chunks"] == (7, 4, 3)
    assert linked_files(paths, tmp_path / "whole.zarr") == rows_linked * 3 * 3
    assert read_marker(tmp_path / "whole.zarr").task == "ConcatenationFinal"


def test_files_are_copied_where_links_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def refuse(source: Path, destination: Path, **options: bool) -> None:
        if "c" in Path(source).parts:
            raise OSError(18, "Invalid cross-device link")
        link(source, destination, **options)

    paths = bands(tmp_path, (8, 8))
    monkeypatch.setattr(os, "link", refuse)
    whole = join(paths, tmp_path / "whole.zarr")
    xr.testing.assert_identical(open_store(tmp_path / "whole.zarr").compute(), whole.compute())
    assert linked_files(paths, tmp_path / "whole.zarr") == 0


def test_bands_in_other_chunks_are_written_anew(tmp_path: Path) -> None:
    paths = bands(tmp_path, (8, 8), {"time": 7, "lat": 4, "lon": 5})
    whole = join(paths, tmp_path / "whole.zarr")
    xr.testing.assert_identical(open_store(tmp_path / "whole.zarr").compute(), whole.compute())
    assert linked_files(paths, tmp_path / "whole.zarr") == 0


def test_a_band_that_has_lost_a_chunk_is_not_joined(tmp_path: Path) -> None:
    paths = bands(tmp_path, (8, 8))
    whole = xr.concat([open_store(path) for path in paths], dim="lat")
    os.unlink(paths[1] / "pr" / "c" / "0" / "0" / "0")
    with pytest.raises(StoreError, match=r"band1\.zarr was changed after it was written"):
        join_stores(whole, paths, tmp_path / "whole.zarr", Marker("Join"), dim="lat", chunks=CHUNKS)
    assert not (tmp_path / "whole.zarr").exists()


def test_a_variable_without_the_dimension_is_written_once(tmp_path: Path) -> None:
    paths = bands(tmp_path, (8, 8))
    told = xr.Variable((), np.int8(3), {"algorithm": "bitround"})
    whole = xr.concat([open_store(path) for path in paths], dim="lat").assign(quantization_info=told)
    for number, given in enumerate((whole, whole.chunk())):
        destination = tmp_path / f"whole{number}.zarr"
        join_stores(given, paths, destination, Marker("ConcatenationFinal"), dim="lat", chunks=CHUNKS)
        xr.testing.assert_identical(open_store(destination).compute(), whole.compute())
