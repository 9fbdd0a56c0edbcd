"""What a reader sees while others publish, replace, delete and sweep: one whole store, or an error."""

from __future__ import annotations

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

from espo_luigi.errors import InputChangedError, StoreError
from espo_luigi.store import (
    Marker,
    is_complete,
    join_stores,
    link_store,
    open_store,
    pack,
    publish,
    publishing_after,
    read_marker,
    write_store,
)
from espo_luigi.store.marker import check_inventory

MARKER = Marker("Write", created="2026-01-01T00:00:00+00:00")
EVERY_WAY = ["linked", "joined", "packed"]


def constant(value: int, rows: int = 64) -> xr.Dataset:
    """A dataset of which every value, coordinate and attribute tells the write that it comes from."""
    values = np.full((rows, 16), value, "int32")
    coordinates = {"time": np.arange(rows) + 1000 * value, "height": value}
    return xr.Dataset({"pr": (("time", "loc"), values)}, coordinates, {"value": value}).chunk(time=8)


def archived(value: int, path: Path) -> None:
    folder = path.with_name(f"made-{value}") / "a.zarr"
    write_store(constant(value), folder, MARKER)
    pack(folder, path)


def make(value: int, path: Path) -> None:
    archived(value, path) if path.suffix == ".zip" else write_store(constant(value), path, MARKER)


@pytest.fixture(params=[True, False], ids=["exchange", "two-renames"])
def swap(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """File systems that swap two names, and those that do not (NFS, Lustre)."""
    if not request.param:
        monkeypatch.setattr(publish, "_exchange", lambda first, second: False)


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
    """Publish another store as `source` before the fifth of the files is linked or packed."""
    module, function = name.rsplit(".", 1)
    original, calls = getattr(__import__(module, fromlist=[function]), function), []

    def interposed(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 5:
            write_store(constant(2), source, MARKER)
        return original(*arguments)

    monkeypatch.setattr(name, interposed)


def pass_on(way: str, source: Path, destination: Path) -> None:
    if way == "packed":
        pack(source, destination)
    elif way == "linked":
        link_store(source, destination, MARKER)
    else:
        other = source.with_name("other.zarr")
        write_store(constant(1), other, MARKER)
        whole = xr.concat([open_store(source), open_store(other)], "time")
        join_stores(whole, [source, other], destination, MARKER, dim="time", chunks={"time": 8})


def to_publish(way: str, folder: Path) -> Path:
    return folder / ("b.zarr.zip" if way == "packed" else "b.zarr")


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


@pytest.mark.parametrize("way", ["linked", "joined"])
def test_files_that_two_stores_share_are_never_written_in_place(tmp_path: Path, way: str) -> None:
    source, destination = tmp_path / "a.zarr", tmp_path / "b.zarr"
    write_store(constant(1), source, MARKER)
    before = contents(source)
    pass_on(way, source, destination)
    chunk = "pr/c/3/0"
    assert (source / chunk).samefile(destination / chunk)
    # What no rule does: a region written into a published store.
    part = constant(5).isel(time=slice(24, 32)).drop_vars(["time", "height"])
    part.to_zarr(destination, region={"time": slice(24, 32)}, mode="r+", consolidated=True)
    assert xr.open_zarr(destination).pr.values[24, 0] == 5
    assert contents(source) == before


def write_for_ever(path: Path, first: int) -> None:
    with dask.config.set(scheduler="synchronous"):
        for value in range(first, first + 100_000):
            write_store(constant(value), path, Marker("Write", {"value": str(value)}))


def fork(work: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(1)
    return child


def read_for(seconds: float, path: Path) -> tuple[list[int], list[str]]:
    """The values of whole stores, and the errors, of one read after the other."""
    values, errors, until = [], [], time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            with dask.config.set(scheduler="synchronous"):
                found = open_store(path).compute()
        except StoreError as error:
            errors.append(str(error))
            continue
        seen = {
            *np.unique(found.pr.values).tolist(),
            int(found.time[0]) // 1000,
            int(found.height),
            found.attrs["value"],
        }
        assert len(seen) == 1, f"a mixture of {seen}"
        values.append(seen.pop())
    return values, errors


@pytest.mark.usefixtures("swap")
def test_two_publishers_of_one_store_leave_a_whole_one_and_its_readers_see_whole_ones(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    write_store(constant(0), path, Marker("Write", {"value": "0"}))
    children = [fork(lambda first=first: write_for_ever(path, first)) for first in (100_000, 200_000)]
    try:
        values, _ = read_for(4, path)
        ended = [child for child in children if os.waitpid(child, os.WNOHANG)[0]]
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0) if child not in locals().get("ended", []) else None
    assert not ended, "a writer failed because another one published"
    assert {value // 100_000 for value in values} >= {1, 2}, "the readers did not see both writers: the test is void"
    if path.exists():  # killed between two renames, it is not
        found = open_store(path)
        assert np.unique(found.pr.values).tolist() == [int(read_marker(path).parameters["value"])]


class InTheMiddle:
    """Do something once, when the middle of a dataset is computed."""

    def __init__(self, action: Callable[[], None]) -> None:
        self.action, self.blocks = action, 0

    def __call__(self, block: np.ndarray) -> np.ndarray:
        self.blocks += 1
        if self.blocks == 8:
            self.action()
        return block

    def dataset(self) -> xr.Dataset:
        ds = constant(1)
        data = ds.pr.data.map_blocks(self, dtype="int32", meta=np.empty((0, 0), "int32"))
        return ds.assign(pr=(("time", "loc"), data))


def test_a_writer_whose_partial_another_host_swept_publishes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its successor runs there, and takes it for dead: Zarr makes folders that are gone again, without a word."""

    def publish_on_another_host() -> None:
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr("socket.gethostname", lambda: "another-host")
            write_store(constant(9), tmp_path / "a.zarr", MARKER)

    with dask.config.set(scheduler="synchronous"), pytest.raises(StoreError, match="was deleted while it was written"):
        write_store(InTheMiddle(publish_on_another_host).dataset(), tmp_path / "a.zarr", MARKER)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.zarr"]
    assert (open_store(tmp_path / "a.zarr").pr.values == 9).all()


@pytest.mark.parametrize(("checked", "left"), [(True, 2), (False, 1)])
def test_a_zombie_that_works_on_after_its_successor_is_stopped_by_the_check_before_publishing(
    tmp_path: Path, checked: bool, left: int
) -> None:
    path, claim = tmp_path / "a.zarr", tmp_path / "claim"
    claim.write_text("first")

    def check() -> None:
        if checked and claim.read_text() != "first":
            raise StoreError("another job has the claim")

    def work_and_stop() -> None:
        stopped_there = InTheMiddle(lambda: os.kill(os.getpid(), signal.SIGSTOP)).dataset()
        with dask.config.set(scheduler="synchronous"), publishing_after(check):
            write_store(stopped_there, path, Marker("Write", {"value": "1"}))

    zombie = fork(work_and_stop)
    assert os.WIFSTOPPED(os.waitpid(zombie, os.WUNTRACED)[1])
    claim.write_text("second")
    write_store(constant(2), path, Marker("Write", {"value": "2"}))
    os.kill(zombie, signal.SIGCONT)
    os.waitpid(zombie, 0)
    assert (open_store(path).pr.values == left).all()
    assert read_marker(path).parameters == {"value": str(left)}
    assert {entry.name for entry in tmp_path.iterdir()} == {"a.zarr", "claim"}


@pytest.mark.parametrize("way", ["written", *EVERY_WAY])
def test_the_check_before_publishing_is_asked_however_a_store_is_made(tmp_path: Path, way: str) -> None:
    source, destination = tmp_path / "a.zarr", to_publish(way, tmp_path)
    write_store(constant(1), source, MARKER)
    write_store(constant(1), source.with_name("other.zarr"), MARKER)

    def check() -> None:
        if list(tmp_path.glob(".b.zarr*.partial")):
            raise StoreError("another job has the claim")

    with publishing_after(check), pytest.raises(StoreError, match="another job has the claim"):
        write_store(constant(2), destination, MARKER) if way == "written" else pass_on(way, source, destination)
    assert not destination.exists()


@pytest.mark.parametrize("lost", ["pr/c/4/0", "pr/c/1", "time", "pr/zarr.json"])
def test_a_writer_some_of_whose_files_are_gone_publishes_nothing(tmp_path: Path, lost: str) -> None:
    def lose() -> None:
        found = next(tmp_path.glob(".a.zarr.*.partial")) / lost
        publish.delete(found)

    with dask.config.set(scheduler="synchronous"), pytest.raises(StoreError, match="was deleted while it was written"):
        write_store(InTheMiddle(lose).dataset(), tmp_path / "a.zarr", MARKER)
    assert not list(tmp_path.iterdir())


def test_a_file_without_bytes_is_not_published(tmp_path: Path) -> None:
    def empty() -> None:
        os.truncate(next(tmp_path.glob(".a.zarr.*.partial/pr/c/4/0")), 0)

    with dask.config.set(scheduler="synchronous"), pytest.raises(StoreError, match=r"pr/c/4/0.* no bytes"):
        write_store(InTheMiddle(empty).dataset(), tmp_path / "a.zarr", MARKER)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("sweep", ["writer", "clean"])
def test_what_sweeps_a_partial_takes_its_name_away_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sweep: str
) -> None:
    """A tree that is being deleted can still be renamed: published, it would lose files afterwards."""
    from espo_luigi.store.leftovers import remove_partial

    partial = tmp_path / ".a.zarr.another-host-1-0123abcd.partial"
    write_store(constant(1), partial, MARKER)
    deleting = []

    def interposed(root: Path, *arguments: Any, **options: Any) -> None:
        with pytest.raises(FileNotFoundError):
            publish.publish(partial, tmp_path / "b.zarr")
        deleting.append(root)

    monkeypatch.setattr("shutil.rmtree", interposed)
    remove_partial(partial) if sweep == "clean" else publish.sweep_partials(tmp_path / "a.zarr", published=True)
    assert len(deleting) == 1 and not (tmp_path / "b.zarr").exists()


@pytest.mark.parametrize("way", ["written", *EVERY_WAY])
def test_nobody_takes_a_partial_of_the_same_name_for_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    source = tmp_path / "source" / "a.zarr"
    write_store(constant(1), source, MARKER)
    write_store(constant(1), source.with_name("other.zarr"), MARKER)
    theirs, theirs_zip = tmp_path / "theirs", tmp_path / "theirs.zip"
    theirs.mkdir()
    (theirs / "file").touch()
    theirs_zip.touch()
    monkeypatch.setattr(publish, "partial_path", lambda path: theirs_zip if path.suffix == ".zip" else theirs)
    monkeypatch.setattr("test_store_readers.write_store", lambda *_: None)
    destination = to_publish(way, tmp_path)
    with pytest.raises((StoreError, FileExistsError)):
        write_store_now(constant(2), destination, MARKER) if way == "written" else pass_on(way, source, destination)
    assert not destination.exists()


write_store_now = write_store


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
    """What a power cut or a hole leaves, with the right size."""
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


def test_the_metadata_that_readers_take_are_those_of_the_arrays(tmp_path: Path) -> None:
    write_store(constant(1), tmp_path / "a.zarr", MARKER, chunks={"time": 8}, at_once={"time": 16})
    pass_on("joined", tmp_path / "a.zarr", tmp_path / "joined.zarr")
    link_store(tmp_path / "a.zarr", tmp_path / "linked.zarr", MARKER, {"title": "another"})
    for name in ("a", "joined", "linked"):
        root = tmp_path / f"{name}.zarr"
        one, other = (zarr.open_group(root, mode="r", use_consolidated=consolidated) for consolidated in (True, False))
        assert set(one.array_keys()) == {"pr", "time", "height"} == set(other.array_keys())
        for key in one.array_keys():
            assert one[key].metadata.to_dict() == other[key].metadata.to_dict()
