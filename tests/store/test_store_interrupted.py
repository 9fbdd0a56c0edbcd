"""Killed, full, read-only, truncated: the old store or the new store is there, and errors say what to do."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from store_examples import constant, fork, write_for_ever
from strangers import as_root

from espo_luigi.errors import StoreError
from espo_luigi.replacing import room_digits
from espo_luigi.store import Marker, is_complete, open_store, pack, read_marker, remove, write_store
from espo_luigi.store.publish import written_aside

KILLS = 20
# About what a write takes: how long a writer that is killed in its first write may have written.
FIRST_WRITE_SECONDS = 0.03


def noise(megabytes: int) -> xr.Dataset:
    """Data that no codec makes smaller."""
    values = np.random.default_rng(1).integers(0, 255, (megabytes, 1_000_000), "uint8")
    return xr.Dataset({"pr": (("time", "loc"), values)}).chunk(time=1)


def kill_a_writer(path: Path, first: int, writes: float) -> None:
    """Kill a process while it writes one store after the other: after so many writes, of the last of them a part."""
    told, tell = os.pipe()
    child = fork(lambda: write_for_ever(path, first, lambda: os.write(tell, b".")))
    os.close(tell)  # so that the end of the writer ends the reading
    begun = [time.monotonic() for _ in range(1 + int(writes)) if os.read(told, 1)]
    assert len(begun) == 1 + int(writes), "the writer ended by itself"
    time.sleep((writes % 1) * (begun[-1] - begun[-2] if len(begun) > 1 else FIRST_WRITE_SECONDS))
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    os.close(told)
    assert os.WIFSIGNALED(status), "the writer ended by itself"


def test_a_writer_killed_at_any_moment_leaves_a_whole_store(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    write_store(constant(0), path, Marker("Write", {"value": "0"}))
    draw = random.Random(1)
    caught_writing, seen = 0, set()
    for kill in range(1, KILLS + 1):
        kill_a_writer(path, kill * 1_000_000, draw.uniform(0, 3))
        stored = open_store(path).pr.values
        assert np.unique(stored).tolist() == [int(read_marker(path).parameters["value"])]
        partials = [entry for entry in tmp_path.iterdir() if entry.name.endswith(".partial")]
        assert len(partials) <= 1, "what killed writers leave is not swept"
        caught_writing += len(partials)
        seen.add(int(stored[0, 0]))
    assert caught_writing >= KILLS / 4, "the kills missed the writes: the test is void"
    assert len(seen) >= KILLS / 4, "the writers were killed before they wrote: the test is void"
    write_store(constant(1), path, Marker("Write"))
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.zarr"]


def test_a_failing_computation_leaves_the_old_store(tmp_path: Path) -> None:
    def fail(block: np.ndarray) -> np.ndarray:
        raise ZeroDivisionError("in the middle")

    path = tmp_path / "a.zarr"
    write_store(constant(1), path, Marker("Write"))
    failing = constant(2).pr.data.map_blocks(fail, dtype="int32", meta=np.empty((0, 0), "int32"))
    with pytest.raises(ZeroDivisionError):
        write_store(xr.Dataset({"pr": (("time", "loc"), failing)}), path, Marker("Write"))
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.zarr"]
    assert open_store(path).pr.values[0, 0] == 1


def partial_of(folder: Path, name: str, host: str, pid: int) -> Path:
    partial = folder / f".{name}.{host}-{pid}-{room_digits()}0123456789abcdef.partial"
    partial.mkdir()
    return partial


def test_partials_of_other_writers_are_left_alone_until_the_store_is_published(tmp_path: Path) -> None:
    here = socket.gethostname()
    living = partial_of(tmp_path, "a.zarr", here, os.getppid())
    elsewhere = partial_of(tmp_path, "a.zarr", "another-host", 1)
    forgotten = partial_of(tmp_path, "a.zarr", "another-host", 2)
    dead = partial_of(tmp_path, "a.zarr", here, 999_999_999)
    other_name = partial_of(tmp_path, "b.zarr", "another-host", 3)
    three_days_ago = time.time() - 3 * 86400
    os.utime(forgotten, (three_days_ago, three_days_ago))
    with pytest.raises(ZeroDivisionError), written_aside(tmp_path / "a.zarr"):
        assert not dead.exists() and not forgotten.exists()
        raise ZeroDivisionError
    assert living.exists() and elsewhere.exists()
    write_store(constant(1), tmp_path / "a.zarr", Marker("Write"))
    assert set(tmp_path.glob(".*")) == {living, other_name}


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    write_store(constant(7), tmp_path / "a.zarr", Marker("Write"))
    pack(tmp_path / "a.zarr", tmp_path / "a.zarr.zip")
    return tmp_path / "a.zarr.zip"


def test_a_zip_cut_anywhere_is_not_complete(archive: Path) -> None:
    content = archive.read_bytes()
    cuts = [0, 1, 21, 22, 30, 100, *range(200, len(content), 97), len(content) - 22, len(content) - 1]
    for cut in cuts:
        archive.write_bytes(content[:cut])
        assert not is_complete(archive), f"cut at {cut} of {len(content)} bytes"
    with pytest.raises(StoreError, match=r"a\.zarr\.zip is truncated.*run the task that makes it again"):
        open_store(archive)


def test_a_zip_with_something_after_its_end_is_not_complete(archive: Path) -> None:
    archive.write_bytes(archive.read_bytes() + b"\0" * 100)
    assert not is_complete(archive)


def test_a_zip_altered_in_the_middle_raises_when_it_is_read(archive: Path) -> None:
    content = bytearray(archive.read_bytes())
    start = content.index(b"pr/c/0/0") + len(b"pr/c/0/0")
    content[start + 8] ^= 0xFF
    archive.write_bytes(content)
    opened = open_store(archive)
    with pytest.raises(Exception, match="CRC"):
        opened.pr.load()


def test_a_store_that_lost_a_chunk_or_a_part_of_one_is_not_opened(tmp_path: Path) -> None:
    for name, damage in {"lost": Path.unlink, "cut": lambda chunk: os.truncate(chunk, 5)}.items():
        path = tmp_path / f"{name}.zarr"
        write_store(constant(7), path, Marker("Write"))
        damage(path / "pr" / "c" / "3" / "0")
        with pytest.raises(StoreError, match=r"was changed after it was written: got .* expected .*run the task"):
            open_store(path)


@pytest.mark.parametrize("cut", [True, False])
def test_a_chunk_that_is_lost_under_a_reader_is_an_error_where_zarr_reads_fill_values(
    tmp_path: Path, cut: bool
) -> None:
    write_store(constant(7), tmp_path / "a.zarr", Marker("Write"))
    opened = open_store(tmp_path / "a.zarr", cut=cut)
    (tmp_path / "a.zarr" / "pr" / "c" / "3" / "0").unlink()
    with pytest.raises(StoreError, match=r"a\.zarr: the chunk pr/c/3/0 is gone"):
        opened.pr.load()
    assert 0 in xr.open_zarr(tmp_path / "a.zarr").pr.values


def test_a_store_that_is_deleted_under_a_reader_is_an_error(tmp_path: Path) -> None:
    write_store(constant(7), tmp_path / "a.zarr", Marker("Write"))
    opened = open_store(tmp_path / "a.zarr")
    remove(tmp_path / "a.zarr")
    with pytest.raises(StoreError, match=r"a\.zarr was replaced or deleted .* is now gone"):
        opened.pr.load()


@pytest.fixture
def small_disk(tmpfs: Callable[[str, str], Path]) -> Path:
    return tmpfs("small", "size=3m")


@pytest.fixture
def read_only(tmp_path: Path, tmpfs: Callable[[str, str], Path]) -> Iterator[Path]:
    if os.getuid() == 0:  # who ignores permissions
        yield tmpfs("fixed", "ro")
        return
    folder = tmp_path / "fixed"
    folder.mkdir(0o555)
    yield folder
    folder.chmod(0o755)


def test_a_full_disk_leaves_the_old_store_and_nothing_else(small_disk: Path) -> None:
    path = small_disk / "a.zarr"
    write_store(constant(1), path, Marker("Write"))
    with pytest.raises(StoreError) as error:
        write_store(noise(5), path, Marker("Write"))
    message = str(error.value)
    assert re.search(
        r"cannot write .*a\.zarr \(ENOSPC: No space left on device; 0\.\d+ GB free in .*\); free space", message
    )
    assert [entry.name for entry in small_disk.iterdir()] == ["a.zarr"]
    assert (open_store(path).pr.values == 1).all()


def test_a_zip_that_does_not_fit_leaves_nothing(small_disk: Path, tmp_path: Path) -> None:
    write_store(noise(5), tmp_path / "a.zarr", Marker("Write"))
    with pytest.raises(StoreError, match="ENOSPC"):
        pack(tmp_path / "a.zarr", small_disk / "a.zarr.zip")
    assert not list(small_disk.iterdir())


def test_a_read_only_folder_is_named_with_what_to_do(read_only: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot write .*fixed/a\.zarr \((EROFS|EACCES): .*\); .*point the paths"):
        write_store(constant(1), read_only / "a.zarr", Marker("Write"))


@as_root
def test_a_full_table_of_inodes_is_named(tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m,nr_inodes=2", "none", tmp_path / "small"], check=False
    )
    if mounted.returncode:
        pytest.skip("this container may mount nothing: run where root may")
    try:
        (tmp_path / "small" / "a").touch()
        with pytest.raises(
            StoreError, match=r"ENOSPC: .*all inodes are taken: delete or pack small files.*0\.001 GB free"
        ):
            write_store(xr.Dataset({"x": 1.0}), tmp_path / "small" / "a.zarr", Marker("Work"))
    finally:
        subprocess.run(["umount", tmp_path / "small"], check=True)


@pytest.mark.parametrize("shards", [None, {"time": 32}])
def test_an_altered_chunk_raises_when_it_is_read(tmp_path: Path, shards: dict[str, int] | None) -> None:
    write_store(noise(1).isel(loc=slice(1000)), tmp_path / "a.zarr", Marker("Write"), shards=shards)
    chunk = tmp_path / "a.zarr" / "pr" / "c" / "0" / "0"
    content = bytearray(chunk.read_bytes())
    content[500] ^= 1
    chunk.write_bytes(content)
    opened = open_store(tmp_path / "a.zarr")
    with pytest.raises(Exception, match=r"[Cc]hecksum"):
        opened.pr.load()
