"""A store holds the written values in the requested layout, with plain attributes and a marker."""

from __future__ import annotations

import contextlib
import json
import time
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask.array
import dask.callbacks
import numpy as np
import pytest
import xarray as xr
import zarr
from distributed import Client

from espo_luigi.errors import StoreError
from espo_luigi.store import (
    MARKER_NAME,
    Marker,
    is_complete,
    open_store,
    pack,
    read_marker,
    remove,
    write_store,
)

MARKER = Marker("Train", {"region": "south"}, {"xsdba": "0.7.0"}, {"noleap": "0123456789abcdef"}, "c0ffee")


def example(calendar: str = "noleap", days: int = 400, cells: int = 7) -> xr.Dataset:
    values = np.random.default_rng(1).normal(280, 5, (days, cells)).astype("float32")
    values[:, -1] = np.nan
    time = xr.date_range(
        "1999-12-25", periods=days, calendar=calendar, use_cftime=None if calendar == "standard" else True
    )
    coords = {"time": time, "lat": ("loc", np.linspace(45, 46, cells), {"original_shape": "3x4"})}
    return xr.Dataset({"tasmax": (("time", "loc"), values, {"units": "K"})}, coords, {"cat:domain": "south"})


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    write_store(example().chunk(loc=3), tmp_path / "a.zarr", MARKER)
    return tmp_path / "a.zarr"


@pytest.mark.parametrize("folder", ["run#1", "run?", "run 50%20"])
def test_a_store_is_written_into_a_folder_whose_name_has_the_characters_of_a_url(tmp_path: Path, folder: str) -> None:
    write_store(example().chunk(loc=3), tmp_path / folder / "a.zarr", MARKER)
    xr.testing.assert_identical(open_store(tmp_path / folder / "a.zarr").compute(), example())
    assert [path.name for path in tmp_path.iterdir()] == [folder]


@pytest.mark.parametrize("calendar", ["noleap", "360_day", "standard"])
def test_what_is_written_is_what_is_opened(tmp_path: Path, calendar: str) -> None:
    ds = example(calendar).chunk(time=100, loc=3)
    write_store(ds, tmp_path / "a.zarr", MARKER)
    opened = open_store(tmp_path / "a.zarr")
    xr.testing.assert_identical(opened.compute(), ds.compute())
    assert opened.tasmax.chunks == ds.tasmax.chunks
    assert opened.time.dt.calendar == ds.time.dt.calendar


def test_it_is_zarr_3_with_consolidated_metadata_and_the_marker_beside(stored: Path) -> None:
    root = json.loads((stored / "zarr.json").read_text())
    assert root["zarr_format"] == 3
    assert set(root["consolidated_metadata"]["metadata"]) == {"tasmax", "time", "lat"}
    assert read_marker(stored) == MARKER
    assert json.loads((stored / MARKER_NAME).read_text())["id"] == MARKER.id


def test_the_dtype_in_memory_wins_over_the_one_of_the_source_file(tmp_path: Path) -> None:
    ds = example().chunk(loc=3)
    ds.tasmax.encoding = {"dtype": "int16", "scale_factor": 0.1, "_FillValue": -1, "chunks": (5, 5), "zlib": True}
    ds.tasmax.encoding["coordinates"] = "lat"
    ds.time.encoding = {"units": "days since 1850-01-01", "calendar": "noleap", "dtype": "float64"}
    write_store(ds, tmp_path / "a.zarr", MARKER)
    stored = zarr.open_group(tmp_path / "a.zarr", mode="r")
    assert stored["tasmax"].dtype == "float32"
    assert stored["tasmax"].chunks == (400, 3)
    assert dict(stored["time"].attrs)["units"] == "days since 1850-01-01"
    assert ds.tasmax.encoding["dtype"] == "int16", "an argument was changed"


def test_a_calendar_that_was_converted_is_not_written_as_the_old_one(tmp_path: Path) -> None:
    ds = example("standard").convert_calendar("360_day", align_on="year")
    ds.time.encoding = {"units": "days since 1850-01-01", "calendar": "standard"}
    write_store(ds, tmp_path / "a.zarr", MARKER)
    xr.testing.assert_identical(open_store(tmp_path / "a.zarr").compute(), ds)


def test_attributes_become_text_and_numbers(tmp_path: Path) -> None:
    ds = example()
    ds.attrs = {"cat:variable": ("tasmax", "pr"), "dict": {"a": 1}, "count": np.int64(3), "flag": True, "none": None}
    ds.tasmax.attrs = {"array": np.array([1.5, 2.0]), "mean": np.float32(0.5), "plain": 2}
    write_store(ds, tmp_path / "a.zarr", MARKER)
    opened = open_store(tmp_path / "a.zarr")
    expected = {"cat:variable": "tasmax,pr", "dict": "{'a': 1}", "count": 3, "flag": "True", "none": "None"}
    assert opened.attrs == expected
    assert opened.tasmax.attrs == {"array": "1.5,2.0", "mean": 0.5, "plain": 2}
    assert ds.attrs["cat:variable"] == ("tasmax", "pr"), "an argument was changed"


def test_names_truth_values_and_empty_dimensions_survive(tmp_path: Path) -> None:
    ds = xr.Dataset(
        {"flag": ((), True), "share": ("properties", [0.25, 0.5]), "none": ("empty", np.zeros(0))},
        {"properties": ["mean_tasmax", "aca_pr"]},
    )
    write_store(ds, tmp_path / "a.zarr", MARKER)
    opened = open_store(tmp_path / "a.zarr").compute()
    xr.testing.assert_identical(opened, ds)
    assert opened.flag.dtype == bool


def test_shards_hold_the_same_data_in_fewer_files(tmp_path: Path) -> None:
    ds = example(days=1000, cells=64).chunk(time=365, loc=10)
    write_store(ds, tmp_path / "plain.zarr", MARKER)
    write_store(ds, tmp_path / "sharded.zarr", MARKER, shards={"time": 730, "loc": -1})
    array = zarr.open_group(tmp_path / "sharded.zarr", mode="r")["tasmax"]
    assert (array.chunks, array.shards) == ((365, 10), (730, 70))
    xr.testing.assert_identical(open_store(tmp_path / "sharded.zarr").compute(), ds.compute())
    files = {name: len(list((tmp_path / name / "tasmax" / "c").rglob("*"))) for name in ("plain.zarr", "sharded.zarr")}
    assert files["sharded.zarr"] < files["plain.zarr"] / 4


def example_of_quantiles(*dims: str) -> xr.Dataset:
    """Values that change slowly along the cells, and at random along all else."""
    sizes = {"loc": 130, "dayofyear": 30, "quantiles": 20, "time": 400}
    random = np.random.default_rng(2).normal(size=[sizes[dim] for dim in dims])
    alike = xr.DataArray(random, dims=dims).isel(loc=0) * 5 + xr.DataArray(np.linspace(280, 281, 130), dims="loc")
    return alike.transpose(*dims).astype("f4").to_dataset(name="af").chunk(loc=50)


@pytest.mark.parametrize("shards", [None, {"time": -1}])
@pytest.mark.parametrize("dims", [("loc", "dayofyear", "quantiles"), ("time", "loc"), ("loc", "time")])
def test_values_compressed_bit_by_bit_are_the_same(
    tmp_path: Path, dims: tuple[str, ...], shards: dict[str, int] | None
) -> None:
    ds = example_of_quantiles(*dims)
    write_store(ds, tmp_path / "a.zarr", MARKER, shards=shards, bits_along="loc")
    xr.testing.assert_identical(open_store(tmp_path / "a.zarr").compute(), ds.compute())


def test_quantiles_are_smaller_bit_by_bit_along_the_cells(tmp_path: Path) -> None:
    size = {}
    for along in (None, "loc"):
        write_store(
            example_of_quantiles("loc", "dayofyear", "quantiles"), tmp_path / "a.zarr", MARKER, bits_along=along
        )
        size[along] = sum(f.stat().st_size for f in (tmp_path / "a.zarr/af/c").rglob("*") if f.is_file())
    assert size["loc"] < 0.97 * size[None]


@pytest.mark.parametrize("size", [1, 4, 6, 100])
def test_what_is_computed_piece_by_piece_makes_the_same_store(tmp_path: Path, size: int) -> None:
    ds = example().assign(pr=example().tasmax * 2, flag=((), True)).chunk(loc=3)
    for name, pieces in (("together.zarr", None), ("apart.zarr", {"loc": size})):
        write_store(ds.assign(flag=ds.flag.load()), tmp_path / name, MARKER, chunks={"time": 100}, at_once=pieces)
    together, apart = (open_store(tmp_path / name) for name in ("together.zarr", "apart.zarr"))
    xr.testing.assert_identical(apart.compute(), together.compute())
    assert [v.encoding["chunks"] for v in apart.values()] == [v.encoding["chunks"] for v in together.values()]


def test_pieces_that_a_cluster_computes_one_after_the_other_are_all_written(tmp_path: Path) -> None:
    # Maps become series: maps that pieces share are computed for each piece, blocks are written once.
    maps = dask.array.random.default_rng(1).random((400, 60), chunks=(50, 60))
    ds = xr.Dataset({"tasmax": (("time", "loc"), maps.rechunk((400, 3)))})
    with dask.config.set({"array.rechunk.method": "tasks"}), Client(processes=False, dashboard_address=None):
        write_store(ds, tmp_path / "a.zarr", MARKER, at_once={"loc": 7})
        xr.testing.assert_identical(open_store(tmp_path / "a.zarr").compute(), ds.compute())


def test_no_more_than_a_piece_of_whole_blocks_is_computed_at_once(tmp_path: Path) -> None:
    computed: list[set[int]] = []

    class Recorder(dask.callbacks.Callback):
        def _start(self, _: object) -> None:
            computed.append(set())

    def block(data: np.ndarray, block_info: Any = None) -> np.ndarray:
        computed[-1].add(block_info[0]["chunk-location"][1])
        return data

    data = dask.array.zeros((4, 14), chunks=(4, 3)).map_blocks(block, meta=np.empty((0, 0)))
    ds = xr.Dataset({"tasmax": (("time", "loc"), data), "pr": (("time", "loc"), data)})
    with Recorder():
        write_store(ds, tmp_path / "a.zarr", MARKER, at_once={"loc": 7})
    assert [places for places in computed if places] == 2 * [{0, 1}, {2, 3}, {4}]


@pytest.mark.parametrize("days", [4, 10])
@pytest.mark.parametrize("threads", [0, 2])
def test_variables_are_computed_together_at_as_many_places_as_there_are_threads(
    tmp_path: Path, threads: int, days: int
) -> None:
    data = dask.array.random.default_rng(1).random((10, 14), chunks=(days, 3))
    values, flags = (("time", "loc"), data), (("time", "loc"), data > 0.5)
    ds = xr.Dataset({"pr": values, "pr_flags": flags, "pr_days": ("loc", (data > 0.5).sum(axis=0))})
    written, compute = [], dask.compute

    def together(*arrays: Any) -> Any:
        written.append(sum(array.size for array in arrays if isinstance(array, dask.array.Array)))
        return compute(*arrays)

    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as client:
        if threads:
            client.enter_context(Client(processes=False, threads_per_worker=threads, dashboard_address=None))
        patch.setattr(dask, "compute", together)
        write_store(ds, tmp_path / "a.zarr", MARKER, by_place=True)
        patch.undo()
        xr.testing.assert_identical(open_store(tmp_path / "a.zarr").compute(), ds.compute())
    # 3 x 5 places of two variables; the days, which are cut otherwise, are last. Or 5 places, the days with them.
    in_parts, in_whole = (7 * [4] + [2, 5], [6, 6, 3]) if threads else (15 * [2] + [5], 5 * [3])
    assert [size for size in written if size] == (in_parts if days == 4 else in_whole)


def test_asked_chunks_are_stored_whatever_the_dask_chunks_were(tmp_path: Path) -> None:
    ds = example().chunk(time=(150, 250), loc=(2, 5))
    write_store(ds, tmp_path / "a.zarr", MARKER, chunks={"time": -1, "loc": 3, "lat": 20})
    assert zarr.open_group(tmp_path / "a.zarr", mode="r")["tasmax"].chunks == (400, 3)
    xr.testing.assert_identical(open_store(tmp_path / "a.zarr").compute(), ds.compute())


def test_irregular_chunks_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"'tasmax' has dask chunks \(150, 50, 200\) along 'time'.*chunks="):
        write_store(example().chunk(time=(150, 50, 200)), tmp_path / "a.zarr", MARKER)
    assert not list(tmp_path.iterdir())


def test_a_store_replaces_the_one_of_the_same_name(stored: Path) -> None:
    write_store(example(cells=2), stored, Marker("Other"))
    assert open_store(stored).sizes["loc"] == 2
    assert read_marker(stored).task == "Other"
    assert [entry.name for entry in stored.parent.iterdir()] == ["a.zarr"]


def test_a_store_without_marker_or_root_metadata_is_not_complete(stored: Path) -> None:
    example().to_zarr(stored.parent / "foreign.zarr", zarr_format=3, consolidated=False)
    assert is_complete(stored)
    assert not is_complete(stored.parent / "foreign.zarr")
    with pytest.raises(
        StoreError, match=r"foreign\.zarr is not a complete store.*no readable espo\.json.*run the task"
    ):
        open_store(stored.parent / "foreign.zarr")
    (stored / "zarr.json").unlink()
    assert not is_complete(stored)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"task": '])
def test_a_store_with_a_broken_marker_is_not_complete(stored: Path, text: str) -> None:
    (stored / MARKER_NAME).write_text(text)
    assert not is_complete(stored)
    with pytest.raises(StoreError):
        open_store(stored)


def test_a_missing_store_is_said_to_be_missing(tmp_path: Path) -> None:
    assert not is_complete(tmp_path / "a.zarr")
    assert read_marker(tmp_path / "a.zarr.zip") is None
    with pytest.raises(StoreError, match=r"no store at .*a\.zarr: run the task that makes it"):
        open_store(tmp_path / "a.zarr")


def test_the_marker_s_id_is_of_its_content_without_the_time() -> None:
    later = replace(MARKER, created="2100-01-01T00:00:00+00:00")
    assert later != MARKER and later.id == MARKER.id
    assert Marker("Train", {"region": "north"}).id != Marker("Train", {"region": "south"}).id
    assert Marker.from_json(MARKER.to_json()) == MARKER


def test_removing_leaves_nothing_and_may_be_repeated(stored: Path) -> None:
    remove(stored)
    remove(stored)
    remove(stored / "not/there.zarr")
    assert not list(stored.parent.iterdir())


def test_a_zip_is_what_xarray_and_zipfile_read(stored: Path) -> None:
    archive = stored.parent / "a.zarr.zip"
    pack(stored, archive)
    with xr.open_zarr(zarr.storage.ZipStore(archive, mode="r"), decode_timedelta=False) as opened:
        xr.testing.assert_identical(opened.compute(), example())
    with zipfile.ZipFile(archive) as file:
        assert file.testzip() is None
        assert {member.compress_type for member in file.infolist()} == {zipfile.ZIP_STORED}
        on_disk = {f"{path.relative_to(stored)}{'/' * path.is_dir()}" for path in stored.rglob("*")}
        assert sorted(file.namelist()) == sorted(on_disk)
    xr.testing.assert_identical(open_store(archive).compute(), example())
    assert is_complete(archive) and read_marker(archive) == MARKER


def test_the_same_store_packs_to_the_same_bytes(stored: Path) -> None:
    for name in ("1.zip", "2.zip"):
        pack(stored, stored.parent / name)
    assert (stored.parent / "1.zip").read_bytes() == (stored.parent / "2.zip").read_bytes()


def test_an_archive_may_lack_arrays_of_its_store_and_is_as_others_packed_without_them(tmp_path: Path) -> None:
    masks = {"flag_masks": np.array([1, 4], "u1"), "flag_meanings": "wet dry"}
    flags = xr.DataArray(np.arange(6, dtype="u1"), dims="loc", attrs=masks)
    both = xr.Dataset({"pr": ("loc", np.arange(6.0)), "pr_flags": flags}, {"lat": ("loc", np.arange(6.0))})
    write_store(both, tmp_path / "both.zarr", MARKER)
    for left_out, kept in (("pr", "pr_flags"), ("pr_flags", "pr")):
        archive = tmp_path / f"{kept}.zarr.zip"
        pack(tmp_path / "both.zarr", archive, MARKER, [left_out])
        assert is_complete(archive) and not [
            name for name in zipfile.ZipFile(archive).namelist() if name.startswith(f"{left_out}/")
        ]
        found = open_store(archive).load()
        assert list(found.data_vars) == [kept] and list(found.coords) == ["lat"]
        write_store(both[[kept]], tmp_path / f"{kept}.zarr", MARKER)
        xr.testing.assert_identical(found, open_store(tmp_path / f"{kept}.zarr").load())
    assert open_store(tmp_path / "pr_flags.zarr.zip")["pr_flags"].attrs == {
        "flag_masks": [1, 4],
        "flag_meanings": "wet dry",
    }


def test_a_zip64_archive_is_recognised(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 2)
    archive = stored.parent / "a.zarr.zip"
    pack(stored, archive)
    content = archive.read_bytes()
    assert b"PK\x06\x06" in content[-200:], "no Zip64 record was written: the test is void"
    assert is_complete(archive)
    archive.write_bytes(content[:-1])
    assert not is_complete(archive)


def test_only_a_complete_store_is_packed(tmp_path: Path) -> None:
    (tmp_path / "half.zarr").mkdir()
    with pytest.raises(StoreError, match="expected a complete store directory"):
        pack(tmp_path / "half.zarr", tmp_path / "half.zarr.zip")
    assert [entry.name for entry in tmp_path.iterdir()] == ["half.zarr"]


def test_completeness_costs_less_than_a_millisecond_where_nothing_disturbs(tmp_path: Path) -> None:
    data = dask.array.zeros((300, 10), chunks=(1, 10))
    write_store(xr.Dataset({"tasmax": (("time", "loc"), data + 1)}), tmp_path / "a.zarr", MARKER)
    pack(tmp_path / "a.zarr", tmp_path / "a.zarr.zip")
    for path in (tmp_path / "a.zarr", tmp_path / "a.zarr.zip"):
        durations = []
        for _ in range(50):
            start = time.perf_counter()
            assert is_complete(path)
            durations.append(time.perf_counter() - start)
        assert min(durations) < 1e-3
