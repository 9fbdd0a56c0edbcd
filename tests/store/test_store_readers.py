"""While processes publish and delete, a reader sees a single whole store, or an error."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import xarray as xr
import zarr
from store_examples import EVERY_WAY, MARKER, constant, fork, make, pass_on, to_publish, write_for_ever

from espo_luigi import replacing
from espo_luigi.errors import InputChangedError, StoreError
from espo_luigi.store import Marker, is_complete, open_store, read_marker, write_store
from espo_luigi.store.inventory import check_inventory


@pytest.fixture(params=[True, False], ids=["exchange", "two-renames"])
def swap(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """File systems that swap two names, and those that do not (NFS, Lustre)."""
    if not request.param:
        monkeypatch.setattr(replacing, "renamed", lambda first, second, how: False)


@pytest.fixture(params=["a.zarr", "a.zarr.zip"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / str(request.param)


@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.usefixtures("swap")
def test_a_store_replaced_between_two_reads_is_an_error(path: Path, cut: bool) -> None:
    make(1, path)
    opened = open_store(path, cut=cut)
    assert (opened.pr[:8].values == 1).all()
    make(2, path)
    with pytest.raises(InputChangedError, match=r"a\.zarr.* was replaced or deleted while it was read.*open it again"):
        opened.pr[8:].load()


def test_a_reader_sent_to_another_process_is_of_the_store_that_was_opened(path: Path) -> None:
    make(1, path)
    opened = open_store(path)
    assert (opened.pr.compute(scheduler="processes", num_workers=1).values == 1).all()
    make(2, path)
    with pytest.raises(InputChangedError, match="was replaced or deleted while it was read"):
        opened.pr.compute(scheduler="processes", num_workers=1)


def test_a_store_replaced_between_its_marker_and_its_data_is_an_error(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(1, path)

    def complete_and_replaced(path: Path) -> bool:
        found = is_complete(path)
        monkeypatch.undo()
        make(2, path)
        return found

    monkeypatch.setattr("espo_luigi.store.read.is_complete", complete_and_replaced)
    with pytest.raises(InputChangedError, match="was replaced or deleted while it was read"):
        open_store(path)


def test_dask_does_not_take_the_results_of_a_store_for_those_of_its_successor(path: Path) -> None:
    make(1, path)
    before = open_store(path)
    make(2, path)
    assert set(before.pr.data.dask).isdisjoint(open_store(path).pr.data.dask)


def replace_in_the_middle(monkeypatch: pytest.MonkeyPatch, name: str, source: Path) -> None:
    """Publish a new store as `source` before the fifth file is linked or packed."""
    module, function = name.rsplit(".", 1)
    original, calls = getattr(__import__(module, fromlist=[function]), function), []

    def interposed(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 5:
            write_store(constant(2), source, MARKER)
        return original(*arguments)

    monkeypatch.setattr(name, interposed)


@pytest.mark.parametrize("way", EVERY_WAY)
def test_a_source_replaced_while_it_is_passed_on_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    source, destination = tmp_path / "a.zarr", to_publish(way, tmp_path)
    write_store(constant(1), source, MARKER)
    hook = "archive._add" if way == "packed" else "link._link_or_copy"
    replace_in_the_middle(monkeypatch, f"espo_luigi.store.{hook}", source)
    with pytest.raises(InputChangedError, match=rf"the input {source} is not the store"):
        pass_on(way, source, destination)
    assert not destination.exists()
    assert (open_store(source).pr.values == 2).all()


def delete(chunk: Path) -> None:
    chunk.unlink()


def lose_all_bytes(chunk: Path) -> None:
    """As a network file system shows a file for a moment."""
    os.truncate(chunk, 0)


@pytest.mark.parametrize("lose", [delete, lose_all_bytes])
@pytest.mark.parametrize("way", EVERY_WAY)
def test_a_source_that_loses_a_chunk_while_it_is_passed_on_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, lose: Callable[[Path], None]
) -> None:
    source, destination = tmp_path / "a.zarr", to_publish(way, tmp_path)
    write_store(constant(1), source, MARKER)
    module = "archive" if way == "packed" else "link"

    def checked_and_lost(root: Path) -> None:
        monkeypatch.undo()
        check_inventory(root)
        lose(source / "pr/c/3/0")

    monkeypatch.setattr(f"espo_luigi.store.{module}.check_inventory", checked_and_lost)
    with pytest.raises(StoreError, match=r"3/0 has no bytes|was changed after|was deleted while"):
        pass_on(way, source, destination)
    assert not destination.exists()


def contents(root: Path) -> dict[str, bytes]:
    return {str(entry.relative_to(root)): entry.read_bytes() for entry in root.rglob("*") if entry.is_file()}


def test_files_that_two_stores_share_are_never_written_in_place(tmp_path: Path) -> None:
    source, destination = tmp_path / "a.zarr", tmp_path / "b.zarr"
    write_store(constant(1), source, MARKER)
    before = contents(source)
    pass_on("joined", source, destination)
    chunk = "pr/c/3/0"
    assert (source / chunk).samefile(destination / chunk)
    # What no rule does: a region written into a published store.
    part = constant(5).isel(time=slice(24, 32)).drop_vars(["time", "height"])
    part.to_zarr(destination, region={"time": slice(24, 32)}, mode="r+", consolidated=True)
    assert xr.open_zarr(destination).pr.values[24, 0] == 5
    assert contents(source) == before


def test_a_store_that_goes_while_its_files_are_counted_is_an_error_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_store(constant(0), tmp_path / "a.zarr", Marker("Write", {}))
    scandir = os.scandir

    def gone_before(path: object) -> object:
        if str(path).endswith("a.zarr/pr/c"):
            (tmp_path / "a.zarr").rename(tmp_path / "gone")
        return scandir(path)  # type: ignore[call-overload]

    monkeypatch.setattr(os, "scandir", gone_before)
    with pytest.raises(InputChangedError, match=r"a\.zarr was replaced or deleted while it was opened"):
        open_store(tmp_path / "a.zarr")


def value_of(found: xr.Dataset) -> int:
    """The write that a whole store comes from."""
    coordinates = {int(found.time[0]) // 1000, int(found.height), found.attrs["value"]}
    seen = coordinates | set(np.unique(found.pr.values).tolist())
    assert len(seen) == 1, f"a mixture of {seen}"
    return int(seen.pop())


def read_until_both_are_seen(path: Path) -> None:
    """Read stores until both writers were seen five times; errors are as good as whole stores."""
    seen: list[int] = []
    until = time.monotonic() + 60
    while min(seen.count(1), seen.count(2)) < 5:
        assert time.monotonic() < until, "the readers did not see both writers: the test is void"
        with dask.config.set(scheduler="synchronous"), contextlib.suppress(StoreError):
            seen.append(value_of(open_store(path).compute()) // 100_000)


@pytest.mark.usefixtures("swap")
def test_two_publishers_of_one_store_leave_a_whole_one_and_its_readers_see_whole_ones(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    write_store(constant(0), path, Marker("Write", {"value": "0"}))
    children = [fork(lambda first=first: write_for_ever(path, first)) for first in (100_000, 200_000)]
    try:
        read_until_both_are_seen(path)
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
        ends = [os.waitpid(child, 0)[1] for child in children]
    assert all(map(os.WIFSIGNALED, ends)), "a writer failed because another one published"
    if path.exists():  # killed between two renames, it is not
        assert value_of(open_store(path)) == int(read_marker(path).parameters["value"])


def test_the_metadata_that_readers_take_are_those_of_the_arrays(tmp_path: Path) -> None:
    write_store(constant(1), tmp_path / "a.zarr", MARKER, chunks={"time": 8}, at_once={"time": 16})
    pass_on("joined", tmp_path / "a.zarr", tmp_path / "joined.zarr")
    for name in ("a", "joined"):
        root = tmp_path / f"{name}.zarr"
        one, other = (zarr.open_group(root, mode="r", use_consolidated=consolidated) for consolidated in (True, False))
        assert set(one.array_keys()) == {"pr", "time", "height"} == set(other.array_keys())
        for key in one.array_keys():
            assert one[key].metadata.to_dict() == other[key].metadata.to_dict()
