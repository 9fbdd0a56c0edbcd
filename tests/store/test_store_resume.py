"""A killed writer leaves its complete blocks, and the next writer goes on from them to the same bytes."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from store_examples import MARKER, fork

from espo_luigi.errors import ClaimLostError, StoreError
from espo_luigi.store import Publication, open_store, write_store
from espo_luigi.store.partials import FOLDER_NAME, START_NAME
from espo_luigi.store.partials import recorded as recorded_in

CHUNKS = {"time": 5, "y": 4, "x": 6}
FILES = {"time": 10, "y": 4, "x": 6}
SHAPE = (24, 7, 10)
BLOCKS = 3 * 2 * 2
OTHER_BLOCKS = 3


class Counted:
    """Values that no codec makes smaller; a file gets a line for each block that is computed."""

    def __init__(self, log: Path, seconds: float = 0.0) -> None:
        self.log, self.seconds = log, seconds

    def __call__(self, block: np.ndarray, block_id: tuple[int, ...]) -> np.ndarray:
        time.sleep(self.seconds)
        with self.log.open("a") as file:
            file.write(f"{block_id}\n")
        values = np.random.default_rng(block_id).random(block.shape, "float32")
        return np.where(values < 0.2, np.float32(np.nan), values)

    @property
    def blocks(self) -> int:
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0

    def dataset(self) -> xr.Dataset:
        """As in production: several files along each dimension, of sizes that divide nothing, and a mask of values."""
        data = da.zeros(SHAPE, dtype="float32", chunks=tuple(FILES.values()))
        data = data.map_blocks(self, dtype="float32", meta=np.empty((0, 0, 0), "float32"))
        pr = xr.Variable(("time", "y", "x"), data, {"units": "mm/d"})
        return xr.Dataset(
            {"pr": pr, "cells": ("y", np.arange(7))},
            {"time": np.arange(24), "y": np.linspace(45, 46, 7), "gaps": pr.isnull().sum("time") > 7},
        )


def write(counted: Counted, path: Path, **options: Any) -> None:
    with dask.config.set(scheduler="synchronous"):
        keywords = {"chunks": CHUNKS, "shards": FILES, "fingerprint": "work", **options}
        write_store(counted.dataset(), path, MARKER, **keywords)


def contents(store: Path) -> dict[str, bytes]:
    return {str(file.relative_to(store)): file.read_bytes() for file in store.rglob("*") if file.is_file()}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a writer that nobody disturbs."""
    folder = tmp_path_factory.mktemp("undisturbed")
    write(Counted(folder / "log"), folder / "a.zarr")
    return contents(folder / "a.zarr")


def killed(path: Path, counted: Counted, after_blocks: int, and_seconds: float = 0.0, **options: Any) -> Path:
    """The partial of a writer that was killed after so many blocks."""
    before = counted.blocks
    child = fork(lambda: write(counted, path, **options))
    until = time.monotonic() + 20
    while counted.blocks < before + after_blocks:
        assert time.monotonic() < until
        time.sleep(0.0005)
    time.sleep(and_seconds)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "the writer ended by itself"
    return next(path.parent.glob(".a.zarr.*.partial"))


def recorded(partial: Path, variable: str = "pr") -> list[Any]:
    return [block for block, _ in recorded_in(partial) if variable in ("", block[0])]


@pytest.mark.parametrize("options", [{}, {"at_once": {"y": 4}}, {"shards": None, "chunks": FILES}])
def test_what_is_written_block_by_block_has_the_bytes_that_xarray_writes(
    tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    to_zarr = xr.Dataset.to_zarr

    def all_at_once(ds: xr.Dataset, path: Path, **keywords: Any) -> Any:
        to_zarr(ds, tmp_path / "b.zarr", **{**keywords, "compute": True})
        return to_zarr(ds, path, **keywords)

    monkeypatch.setattr(xr.Dataset, "to_zarr", all_at_once)
    write(Counted(tmp_path / "log"), tmp_path / "a.zarr", **options)
    ours = contents(tmp_path / "a.zarr")
    del ours["espo.json"]
    assert ours == contents(tmp_path / "b.zarr")


def test_writers_killed_at_any_moment_compute_no_block_again_but_the_one_at_hand(
    tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    path, counted, draw = tmp_path / "a.zarr", Counted(tmp_path / "log", 0.002), random.Random(4)
    kills, found = 6, 0
    for _ in range(kills):
        partial = killed(path, counted, draw.randint(1, 2), draw.uniform(0, 0.01))
        assert len(list(tmp_path.glob(".*.partial"))) == 1
        found = max(found, len(recorded(partial)))
    assert found >= kills / 2
    write(counted, path)
    assert contents(path) == undisturbed
    assert BLOCKS < counted.blocks <= BLOCKS + kills
    assert {entry.name for entry in tmp_path.iterdir()} == {"a.zarr", "log"}


def damaged(damage: Callable[[Path], None]) -> Callable[[Path], None]:
    return lambda partial: damage(next(iter(sorted((partial / "content" / "pr" / "c").rglob("[0-9]"))[-1:])))


def torn(partial: Path) -> None:
    (lines,) = (partial / FOLDER_NAME).glob("*.jsonl")
    os.truncate(lines, lines.stat().st_size - 9)


@pytest.mark.parametrize(
    "damage",
    [
        torn,
        damaged(Path.unlink),
        damaged(lambda chunk: chunk.write_bytes(bytes(chunk.stat().st_size))),
    ],
    ids=["torn line", "lost", "zeros"],
)
def test_a_block_that_is_not_as_it_was_recorded_is_computed_again(
    tmp_path: Path, undisturbed: dict[str, bytes], damage: Callable[[Path], None]
) -> None:
    path, counted = tmp_path / "a.zarr", Counted(tmp_path / "log", 0.002)
    partial = killed(path, counted, 5)
    complete = len(recorded(partial))
    damage(partial)
    (partial / "content" / "pr" / "c" / "9").mkdir(exist_ok=True)
    (partial / "content" / "pr" / "c" / "9" / "left.0123.partial").touch()
    before = counted.blocks
    write(counted, path)
    assert counted.blocks - before == BLOCKS - complete + 1
    assert contents(path) == undisturbed


def another_attribute(partial: Path) -> None:
    metadata = partial / "content" / "zarr.json"
    metadata.write_text(metadata.read_text().replace("mm/d", "kg/d"))


@pytest.mark.parametrize(
    ("options", "damage"),
    [
        ({"fingerprint": "other work"}, lambda partial: None),
        ({}, another_attribute),
        ({}, lambda partial: (partial / "content" / "y" / "c" / "0").write_bytes(b"other values")),
        ({}, lambda partial: (partial / FOLDER_NAME / START_NAME).write_text('{"fingerprint": "wor')),
        ({"fingerprint": ""}, lambda partial: None),
    ],
    ids=["fingerprint", "metadata", "coordinate", "torn start", "no fingerprint"],
)
def test_a_partial_with_another_fingerprint_is_deleted_and_nothing_of_it_used(
    tmp_path: Path, options: dict[str, Any], damage: Callable[[Path], None]
) -> None:
    path, counted = tmp_path / "a.zarr", Counted(tmp_path / "log", 0.002)
    damage(killed(path, counted, 5))
    before = counted.blocks
    write(counted, path, **options)
    assert counted.blocks - before == BLOCKS
    assert {entry.name for entry in tmp_path.iterdir()} == {"a.zarr", "log"}
    open_store(path).load()


def test_an_attempt_that_notes_another_time_in_a_history_has_the_same_fingerprint(tmp_path: Path) -> None:
    """As xclim does, in the attributes of each indicator."""

    class Noted(Counted):
        time = "09:59:59"

        def dataset(self) -> xr.Dataset:
            made = super().dataset()
            made["pr"].attrs["history"] = f"[2026-01-01 {self.time}] pr: made"
            return made

    path, counted = tmp_path / "a.zarr", Noted(tmp_path / "log", 0.002)
    found = len(recorded(killed(path, counted, 5)))
    before, counted.time = counted.blocks, "10:00:03"
    write(counted, path)
    assert counted.blocks - before == BLOCKS - found
    open_store(path).load()


def test_one_of_several_that_start_at_once_goes_on_from_the_blocks_and_all_publish_the_same(
    tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    path, counted = tmp_path / "a.zarr", Counted(tmp_path / "log", 0.1)
    killed(path, counted, 10)
    before = counted.blocks
    gate, opener = os.pipe()

    def start_with_the_others() -> None:
        os.close(opener)
        os.read(gate, 1)
        write(counted, path)
        os._exit(0)

    children = [fork(start_with_the_others) for _ in range(3)]
    os.close(opener)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
    assert 2 * BLOCKS < counted.blocks - before <= 3 * BLOCKS - 8
    assert contents(path) == undisturbed
    assert {entry.name for entry in tmp_path.iterdir()} == {"a.zarr", "log"}


def stopped_at_block(counted: Counted, path: Path, **options: Any) -> int:
    """A writer that stops itself (SIGSTOP) with the blocks that it has completed by then."""
    child = fork(lambda: write(counted, path, **options))
    while counted.blocks < 5:
        time.sleep(0.001)
    os.kill(child, signal.SIGSTOP)
    os.waitpid(child, os.WUNTRACED)
    return child


def test_a_job_that_alone_owns_the_work_goes_on_from_one_that_still_lives(
    tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    """A requeued job, whose first start hangs on the same node or on a lost node."""
    path, counted = tmp_path / "a.zarr", Counted(tmp_path / "log", 0.005)
    zombie = stopped_at_block(counted, path)
    with Publication(claim=lambda: None).in_force():
        write(counted, path)
    assert counted.blocks <= BLOCKS + 1
    os.kill(zombie, signal.SIGCONT)
    assert os.waitpid(zombie, 0)[1] != 0
    assert contents(path) == undisturbed


def test_a_job_that_lost_its_work_takes_nothing_of_its_successor(tmp_path: Path) -> None:
    path, counted = tmp_path / "a.zarr", Counted(tmp_path / "log", 0.005)
    successor = stopped_at_block(counted, path)

    def check() -> None:
        raise ClaimLostError("somebody else has the work now")

    with Publication(claim=check).in_force(), pytest.raises(ClaimLostError):
        write(counted, path)
    (partial,) = tmp_path.glob(".*.partial")
    assert str(successor) in partial.name and recorded(partial)
    os.kill(successor, signal.SIGKILL)
    os.kill(successor, signal.SIGCONT)
    os.waitpid(successor, 0)


def test_a_living_writers_blocks_are_its_own_where_nobody_owns_the_work(tmp_path: Path) -> None:
    path, counted = tmp_path / "a.zarr", Counted(tmp_path / "log", 0.005)
    living = stopped_at_block(counted, path)
    before = counted.blocks
    write(counted, path)
    assert counted.blocks - before == BLOCKS
    os.kill(living, signal.SIGKILL)
    os.kill(living, signal.SIGCONT)
    os.waitpid(living, 0)


@pytest.mark.parametrize("sole", [True, False])
def test_only_a_job_that_alone_owns_the_work_goes_on_from_what_was_left_on_another_host(
    tmp_path: Path, undisturbed: dict[str, bytes], sole: bool
) -> None:
    path, counted = tmp_path / "a.zarr", Counted(tmp_path / "log", 0.002)
    partial = killed(path, counted, 5)
    partial.rename(tmp_path / ".a.zarr.another-host-7-01234567.partial")
    with Publication(claim=(lambda: None) if sole else None).in_force():
        write(counted, path)
    assert counted.blocks <= BLOCKS + 1 if sole else counted.blocks >= BLOCKS + 5
    assert contents(path) == undisturbed
    assert {entry.name for entry in tmp_path.iterdir()} == {"a.zarr", "log"}


def test_a_writer_in_a_container_knows_a_dead_one_with_its_own_number(
    tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    path, counted = tmp_path / "a.zarr", Counted(tmp_path / "log", 0.002)
    partial = killed(path, counted, 5)
    partial.rename(tmp_path / f".a.zarr.{socket.gethostname()}-{os.getpid()}-01234567.partial")
    write(counted, path)
    assert counted.blocks <= BLOCKS + 1
    assert contents(path) == undisturbed


@pytest.mark.parametrize(("error", "left"), [(SystemExit(143), 1), (MemoryError(), 1), (ZeroDivisionError(), 0)])
def test_what_stopped_work_has_completed_stays_and_what_failed_is_deleted(
    tmp_path: Path, error: BaseException, left: int
) -> None:
    class Failing(Counted):
        def __call__(self, block: np.ndarray, block_id: tuple[int, ...]) -> np.ndarray:
            if self.blocks == 5:
                raise error
            return super().__call__(block, block_id)

    with pytest.raises(type(error)):
        write(Failing(tmp_path / "log"), tmp_path / "a.zarr")
    assert len(list(tmp_path.glob(".*.partial"))) == left


def test_an_output_that_an_earlier_attempt_has_published_is_not_made_again(tmp_path: Path) -> None:
    """A task of two outputs that is always stopped at its second would else never come to an end."""
    path, counted = tmp_path / "a.zarr", Counted(tmp_path / "log")
    write(counted, path)
    write(counted, path)
    assert counted.blocks == BLOCKS
    write(counted, path, fingerprint="other work")
    assert counted.blocks == 2 * BLOCKS
    (path / "pr" / "c" / "0" / "0" / "0").unlink()
    write(counted, path, fingerprint="other work")
    assert counted.blocks == 3 * BLOCKS
    open_store(path).load()


def test_how_many_blocks_were_found_and_computed_is_counted(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    path, counted = tmp_path / "a.zarr", Counted(tmp_path / "log", 0.002)
    found = len(recorded(killed(path, counted, 5), ""))
    with Publication().in_force() as publication:
        write(counted, path)
    assert publication.blocks() == {"found": found, "computed": BLOCKS + OTHER_BLOCKS - found}
    assert f"a.zarr: {found} of its {BLOCKS + OTHER_BLOCKS} blocks were complete already" in log.text


def test_a_partial_that_was_deleted_under_its_writer_is_an_error(tmp_path: Path) -> None:
    class Deleting(Counted):
        def __call__(self, block: np.ndarray, block_id: tuple[int, ...]) -> np.ndarray:
            if self.blocks == 5:
                shutil.rmtree(next(tmp_path.glob(".*.partial")))
            return super().__call__(block, block_id)

    with pytest.raises(StoreError, match="was deleted while it was written, or taken over"):
        write(Deleting(tmp_path / "log"), tmp_path / "a.zarr")
    assert not (tmp_path / "a.zarr").exists()


def test_a_partial_that_others_could_have_changed_is_not_gone_on_from(
    tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    """Its blocks may be changed, and links put among them, after they were verified."""
    path, counted = tmp_path / "a.zarr", Counted(tmp_path / "log", 0.002)
    partial = killed(path, counted, 5)
    partial.chmod(0o770)
    before = counted.blocks
    write(counted, path)
    assert counted.blocks - before == BLOCKS
    assert contents(path) == undisturbed
