"""A killed writer leaves its complete blocks, and the next writer goes on from them to the same bytes."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import socket
import time
from collections import Counter
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
from espo_luigi.files import HeldFolder
from espo_luigi.replacing import room_digits
from espo_luigi.store import Publication, open_store, write_store
from espo_luigi.store.blocks import BlockWriter, files_of, is_valid, write_blocks, writers_of
from espo_luigi.store.blocks import _read as read
from espo_luigi.store.partials import START_NAME
from espo_luigi.store.write import laid_out_for, prepared, write_zarr

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


def rewritten(counted: Counted, path: Path, **options: Any) -> int:
    """The number of blocks that the next writer computes."""
    before = counted.blocks
    write(counted, path, **options)
    return counted.blocks - before


def written(partial: Path, variable: str = "pr", within: str = "content") -> list[Path]:
    """The files of a variable's blocks, each of which is a block; Zarr's unfinished files have longer names."""
    return sorted(file for file in (partial / within / variable / "c").rglob("[0-9]") if file.is_file())


@pytest.mark.parametrize("options", [{}, {"at_once": {"y": 4}}, {"by_place": True}, {"shards": None, "chunks": FILES}])
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
        found = max(found, len(written(partial)))
    assert found >= kills / 2
    write(counted, path)
    assert contents(path) == undisturbed
    assert BLOCKS < counted.blocks <= BLOCKS + kills
    assert {entry.name for entry in tmp_path.iterdir()} == {"a.zarr", "log"}


def flipped(chunk: Path) -> None:
    content = bytearray(chunk.read_bytes())
    content[len(content) // 3] ^= 1
    chunk.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        Path.unlink,
        lambda chunk: os.truncate(chunk, 0),
        lambda chunk: os.truncate(chunk, chunk.stat().st_size - 9),
        lambda chunk: os.truncate(chunk, chunk.stat().st_size + 9),
        lambda chunk: chunk.write_bytes(bytes(chunk.stat().st_size)),
        flipped,
    ],
    ids=["lost", "empty", "cut", "longer", "zeros", "flipped"],
)
def test_a_block_whose_file_is_missing_or_damaged_is_computed_again(
    tmp_path: Path, undisturbed: dict[str, bytes], damage: Callable[[Path], None]
) -> None:
    path, counted = tmp_path / "a.zarr", Counted(tmp_path / "log", 0.002)
    partial = killed(path, counted, 5)
    complete = written(partial)
    damage(complete[-1])
    (partial / "content" / "pr" / "c" / "9").mkdir(exist_ok=True)
    (partial / "content" / "pr" / "c" / "9" / "left.0123.partial").touch()
    assert rewritten(counted, path) == BLOCKS - len(complete) + 1
    assert contents(path) == undisturbed


@pytest.mark.parametrize("sharded", [True, False])
@pytest.mark.parametrize("values", ["float32", "bool"])
def test_no_change_of_a_chunks_file_is_taken_for_what_was_written(tmp_path: Path, sharded: bool, values: str) -> None:
    """Each third bit of the file is flipped, and the file is cut after each byte."""
    ds = xr.Dataset({"pr": ("x", np.array([0, 0, 0, 1], values))}).chunk(x=4)
    laid_out, encoding = laid_out_for(prepared(ds), {"x": 2 if sharded else 4}, {"x": 4} if sharded else None)
    partial = HeldFolder.make(tmp_path / ".a.zarr.partial")
    write_zarr(laid_out, partial, mode="w-", encoding=encoding, compute=False)
    blocks = files_of(laid_out, partial)
    ((block, (name,)),) = blocks.items()
    with dask.config.set(scheduler="synchronous"):
        write_blocks(laid_out, partial, list(blocks), set())
    writers = writers_of(laid_out, partial)
    assert is_valid(writers, block)
    file = partial.content / name
    whole = file.read_bytes()
    changed = [whole[:size] for size in range(len(whole))]
    for bit in range(0, 8 * len(whole), 3):
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        changed.append(bytes(content))
    for content in changed:
        file.write_bytes(content)
        if is_valid(writers, block):  # two bits of a header have no meaning
            assert len(content) == len(whole)
            np.testing.assert_array_equal(read(partial, "pr", (slice(0, 4),)), ds.pr)


@pytest.mark.parametrize("options", [{}, {"shards": None, "chunks": FILES}], ids=["shards", "chunks"])
def test_blocks_of_fill_values_are_gone_on_from_and_those_that_are_missing_computed(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    """As at sea: by default, Zarr writes no file for such a chunk, and reads a missing one as fill values."""

    class AtSea(Counted):
        def __call__(self, block: np.ndarray, block_id: tuple[int, ...]) -> np.ndarray:
            return np.full_like(super().__call__(block, block_id), np.nan)

    path, counted = tmp_path / "a.zarr", AtSea(tmp_path / "log", 0.002)
    complete = written(killed(path, counted, 5, **options))
    assert len(complete) >= 4
    complete[0].unlink()
    assert rewritten(counted, path, **options) == BLOCKS - len(complete) + 1
    assert len(written(path, within="")) == BLOCKS


def test_a_block_of_which_one_file_of_two_is_missing_is_computed_again(tmp_path: Path) -> None:
    path, counted = tmp_path / "a.zarr", Counted(tmp_path / "log", 0.002)
    partial = killed(path, counted, 5, shards=None)
    places = [tuple(map(int, file.parts[-3:])) for file in written(partial)]
    # A file has five days, a block ten; the last block has four.
    halves = Counter((time // 2, y, x) for time, y, x in places)
    complete = {block for block, files in halves.items() if files == (1 if block[0] == 2 else 2)}
    time, y, x = next(block for block in complete if block[0] < 2)
    (partial / "content" / "pr" / "c" / f"{2 * time + 1}" / f"{y}" / f"{x}").unlink()
    assert rewritten(counted, path, shards=None) == BLOCKS - len(complete) + 1
    write(counted, tmp_path / "b.zarr", shards=None)
    assert contents(path) == contents(tmp_path / "b.zarr")


@pytest.mark.parametrize(
    ("options", "damage"),
    [
        ({"fingerprint": "other work"}, lambda partial: None),
        ({"chunks": {"time": 2}}, lambda partial: None),
        ({}, lambda partial: (partial / START_NAME).write_text('{"fingerprint": "wor')),
        ({}, lambda partial: (partial / START_NAME).unlink()),
        ({"fingerprint": ""}, lambda partial: None),
    ],
    ids=["fingerprint", "metadata", "torn start", "no start", "no fingerprint"],
)
def test_a_partial_with_another_fingerprint_is_deleted_and_nothing_of_it_used(
    tmp_path: Path, options: dict[str, Any], damage: Callable[[Path], None]
) -> None:
    path, counted = tmp_path / "a.zarr", Counted(tmp_path / "log", 0.002)
    damage(killed(path, counted, 5))
    assert rewritten(counted, path, **options) == BLOCKS
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
    found = len(written(killed(path, counted, 5)))
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
    assert str(successor) in partial.name and written(partial)
    os.kill(successor, signal.SIGKILL)
    os.kill(successor, signal.SIGCONT)
    os.waitpid(successor, 0)


def test_a_living_writers_blocks_are_its_own_where_nobody_owns_the_work(tmp_path: Path) -> None:
    path, counted = tmp_path / "a.zarr", Counted(tmp_path / "log", 0.005)
    living = stopped_at_block(counted, path)
    assert rewritten(counted, path) == BLOCKS
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
    partial.rename(tmp_path / f".a.zarr.{socket.gethostname()}-{os.getpid()}-{room_digits()}0123456789abcdef.partial")
    write(counted, path)
    assert counted.blocks <= BLOCKS + 1
    assert contents(path) == undisturbed


def test_where_blocks_are_is_found_once_for_each_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else, the time to verify blocks grows with the square of their number."""
    path, counted, of, calls = tmp_path / "a.zarr", Counted(tmp_path / "log", 0.002), BlockWriter.of, []

    def noted(ds: xr.Dataset, partial: HeldFolder, name: str) -> BlockWriter:
        calls.append(name)
        return of(ds, partial, name)

    killed(path, counted, BLOCKS - 1)
    monkeypatch.setattr(BlockWriter, "of", noted)
    write(counted, path)
    # For their files, to verify, to write and to read them.
    assert max(Counter(calls).values()) <= 4


def test_a_partial_whose_content_is_gone_is_deleted(tmp_path: Path) -> None:
    """A writer was killed once its store had its name, and the store was removed."""
    path, counted = tmp_path / "a.zarr", Counted(tmp_path / "log", 0.002)
    shutil.rmtree(killed(path, counted, 1) / "content")
    write(counted, path)
    assert {entry.name for entry in tmp_path.iterdir()} == {"a.zarr", "log"}


def test_the_files_of_a_partial_are_for_its_account_alone_also_in_a_groups_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o2770)
    partial = killed(tmp_path / "a.zarr", Counted(tmp_path / "log", 0.002), 1)
    assert (partial / START_NAME).stat().st_mode & 0o777 == 0o600


def test_blocks_that_the_file_system_does_not_give_for_a_while_stay(
    tmp_path: Path, undisturbed: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stale(*arguments: Any) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    path, counted = tmp_path / "a.zarr", Counted(tmp_path / "log", 0.002)
    complete = len(written(killed(path, counted, 5)))
    before = counted.blocks
    monkeypatch.setattr("espo_luigi.store.blocks._read", stale)
    os.waitpid(fork(lambda: write(counted, path)), 0)
    monkeypatch.undo()
    write(counted, path)
    assert counted.blocks - before == BLOCKS - complete
    assert contents(path) == undisturbed


@pytest.mark.parametrize(
    ("error", "left"),
    [
        (SystemExit(143), 1),
        (MemoryError(), 1),
        *((OSError(number, os.strerror(number)), 1) for number in (errno.ENOSPC, errno.EDQUOT, errno.EIO)),
        (ZeroDivisionError(), 0),
    ],
    ids=str,
)
def test_what_stopped_work_has_completed_stays_and_what_failed_is_deleted(
    tmp_path: Path, error: BaseException, left: int
) -> None:
    class Failing(Counted):
        def __call__(self, block: np.ndarray, block_id: tuple[int, ...]) -> np.ndarray:
            if self.blocks == 5:
                raise error
            return super().__call__(block, block_id)

    path, failing = tmp_path / "a.zarr", Failing(tmp_path / "log")
    with pytest.raises(StoreError if isinstance(error, OSError) else type(error)):
        write(failing, path)
    assert len(list(tmp_path.glob(".*.partial"))) == left
    before = failing.blocks
    with Publication(claim=lambda: None).in_force():
        os.waitpid(fork(lambda: write(Counted(failing.log), path)), 0)
    assert failing.blocks - before == BLOCKS - before * left


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


def test_a_former_store_that_was_swapped_into_the_partial_is_not_gone_on_from(
    tmp_path: Path, undisturbed: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that is killed once its store has its name leaves the former store in the place of its own."""

    class Otherwise(Counted):
        def __call__(self, block: np.ndarray, block_id: tuple[int, ...]) -> np.ndarray:
            return super().__call__(block, block_id) + 1

    path, counted = tmp_path / "a.zarr", Counted(tmp_path / "log")
    write(Otherwise(tmp_path / "log"), path, fingerprint="other work")
    monkeypatch.setattr("espo_luigi.store.publish.sync_path", lambda folder: os.kill(os.getpid(), signal.SIGKILL))
    os.waitpid(fork(lambda: write(counted, path)), 0)
    assert contents(path) == undisturbed and list(tmp_path.glob(".*.partial"))
    monkeypatch.undo()
    shutil.rmtree(path)
    before = counted.blocks
    with Publication(claim=lambda: None).in_force():
        write(counted, path)
    assert counted.blocks - before == BLOCKS
    assert contents(path) == undisturbed


def test_how_many_blocks_were_found_and_computed_is_counted(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    path, counted = tmp_path / "a.zarr", Counted(tmp_path / "log", 0.002)
    partial = killed(path, counted, 5)
    found = sum(len(written(partial, name)) for name in ("pr", "gaps", "cells"))
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
    assert rewritten(counted, path) == BLOCKS
    assert contents(path) == undisturbed
