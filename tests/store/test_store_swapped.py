"""An account that may write the folder of a store swaps what is being written for a link, or for a folder of its own.

Nothing behind the link changes, and a store under its name is what was written.
"""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import dask
import numpy as np
import pytest
import xarray as xr
from store_examples import MARKER, InTheMiddle, constant
from strangers import AS_STRANGER, NOBODY, as_root, reachable

from espo_luigi.errors import StoreError
from espo_luigi.export.netcdf import Layout, write_netcdf
from espo_luigi.files import HeldFolder
from espo_luigi.replacing import by_digest
from espo_luigi.store import blocks, open_store, write_store, write_table
from espo_luigi.store.blocks import BlockWriter, HeldStore
from espo_luigi.store.partials import abandoned_partials

SECONDS = 0.5


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.fixture()
def private(tmp_path: Path) -> Path:
    """A folder with files of all names that a writer could write through a link."""
    folder = tmp_path / "private"
    write_store(constant(5), folder / "a.zarr", MARKER)
    shutil.copytree(folder / "a.zarr", folder / "content")
    shutil.copytree(folder / "a.zarr", folder, dirs_exist_ok=True)
    (folder / "file").write_text("mine")
    return folder


@contextmanager
def swapping(shared: Path, private: Path) -> Iterator[list[str]]:
    """Put a link in the place of each hidden name of the folder as soon as it is there."""
    swapped: list[str] = []
    ended = threading.Event()

    def swap() -> None:
        while not ended.is_set():
            for entry in os.scandir(shared):
                if entry.name.startswith(".") and not entry.is_symlink() and ".away" not in entry.name:
                    with suppress(OSError):
                        os.rename(entry.path, f"{entry.path}.away{len(swapped)}")
                        target = private if entry.is_dir() else private / "file"
                        os.symlink(target, entry.path)
                        swapped.append(entry.name)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield swapped
    finally:
        ended.set()
        thread.join()


def a_store(path: Path) -> None:
    with dask.config.set(scheduler="threads"):
        write_store(constant(1), path, MARKER, fingerprint=str(time.monotonic_ns()))


DIGESTS: set[str] = set()


def a_netcdf_file(path: Path) -> None:
    time_ = xr.date_range("2001-01-01", periods=4, freq="D")
    data = (("time", "lat", "lon"), np.ones((4, 2, 2), "float32"))
    ds = xr.Dataset({"pr": data}, {"time": time_})
    write_netcdf(ds, path, Layout({}), by_digest(DIGESTS), lambda _, digest: DIGESTS.add(digest))


WRITERS: list[tuple[str, Callable[[Path], None]]] = [
    ("a.zarr", a_store),
    ("a.nc", a_netcdf_file),
    ("a.csv", lambda path: write_table(["a"], [{"a": "1"}] * 20_000, path, MARKER)),
]


@pytest.mark.parametrize(("name", "write"), WRITERS)
def test_what_is_behind_a_link_that_is_swapped_in_while_a_product_is_written_stays(
    tmp_path: Path, private: Path, name: str, write: Callable[[Path], None]
) -> None:
    shared, before = tmp_path / "shared", contents(private)
    shared.mkdir()
    ends = time.monotonic() + SECONDS
    tried = 0
    with swapping(shared, private) as swapped:
        while tried < 5 or time.monotonic() < ends:
            tried += 1
            with suppress(StoreError):
                write(shared / name)
            assert not (shared / name).is_symlink()
    assert contents(private) == before
    assert swapped, "nothing was swapped: the test is void"
    write(shared / name)


def test_a_store_whose_partial_is_swapped_half_way_is_what_was_computed(tmp_path: Path, private: Path) -> None:
    before = contents(private)

    def swap() -> None:
        (partial,) = tmp_path.glob(".b.zarr.*.partial")
        partial.rename(tmp_path / "away")
        partial.symlink_to(private)

    with dask.config.set(scheduler="synchronous"):
        write_store(InTheMiddle(swap).dataset(), tmp_path / "b.zarr", MARKER)
    assert contents(private) == before
    assert not (tmp_path / "b.zarr").is_symlink()
    xr.testing.assert_equal(open_store(tmp_path / "b.zarr").load(), InTheMiddle(lambda: None).dataset().load())


def in_a_second_process(writer: BlockWriter) -> None:
    """Write a block as a Dask worker does, which has got the writer by pickle, and holds nothing yet."""
    blocks._opened.cache_clear()
    pickle.loads(pickle.dumps(writer))(np.ones(8, "int32"), (0,))  # noqa: S301


@pytest.mark.parametrize("put", ["a link", "a folder", "nothing"])
def test_a_worker_elsewhere_refuses_whatever_has_the_name_of_the_partial(
    tmp_path: Path, private: Path, put: str
) -> None:
    partial = HeldFolder.make(tmp_path / ".a.zarr.partial")
    ds = xr.Dataset({"pr": ("time", np.zeros(8, "int32"))})
    ds.to_zarr(HeldStore(partial), mode="w-", zarr_format=3, consolidated=False)
    writer = BlockWriter(partial, "pr", ((0, 8),))
    in_a_second_process(writer)
    sent = pickle.loads(pickle.dumps(HeldStore(partial)))  # noqa: S301
    assert sent.root != partial.content and sent.root.samefile(partial.content) and not sent.read_only
    assert (xr.open_zarr(partial.content, consolidated=False).pr == 1).all()
    ds.to_zarr(private / "content", mode="w", zarr_format=3, consolidated=False)
    before = contents(private)
    partial.path.rename(tmp_path / "away")
    if put == "a link":
        partial.path.symlink_to(private)
    elif put == "a folder":
        private.rename(partial.path)
    with pytest.raises(StoreError, match=r"a\.zarr\.partial was deleted while it was written, or taken over"):
        in_a_second_process(writer)
    assert sorted(contents(partial.path if put == "a folder" else private).values()) == sorted(before.values())


@pytest.mark.parametrize("what", ["a full folder", "a link", "a foreign folder"])
def test_a_folder_put_in_the_place_of_a_new_one_is_refused(
    tmp_path: Path, private: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    mkdir, before = os.mkdir, contents(private)

    def swapped(path: Path, mode: int) -> None:
        mkdir(path, mode)
        os.rmdir(path)
        if what == "a link":
            path.symlink_to(private)
        else:
            (private.rename if what == "a full folder" else mkdir)(path)
            if what == "a foreign folder":
                os.chown(path, NOBODY, NOBODY)

    monkeypatch.setattr(os, "mkdir", swapped)
    with pytest.raises(StoreError, match="moved away or replaced as soon as it was made"):
        HeldFolder.make(tmp_path / ".a.partial")
    found = tmp_path / ".a.partial" if what == "a full folder" else private
    assert sorted(contents(found).values()) == sorted(before.values())


def test_a_store_has_the_rights_and_the_group_of_what_is_made_in_its_folder(tmp_path: Path) -> None:
    """While it is written, the folder around it is private; the store itself is the group's."""
    os.chmod(tmp_path, 0o2775)
    former = os.umask(0o002)
    try:
        (tmp_path / "plain").mkdir()
        seen = []
        with dask.config.set(scheduler="synchronous"):
            watched = InTheMiddle(lambda: seen.append(next(tmp_path.glob(".*.partial")).stat().st_mode & 0o7777))
            write_store(watched.dataset(), tmp_path / "a.zarr", MARKER)
        write_table(["a"], [], tmp_path / "a.csv", MARKER)
    finally:
        os.umask(former)
    assert seen == [0o2700]
    assert (tmp_path / "a.zarr").stat().st_mode == (tmp_path / "plain").stat().st_mode
    assert (tmp_path / "a.csv").stat().st_mode & 0o777 == 0o664


@as_root
def test_the_private_partial_of_another_account_is_left_to_that_account(tmp_path: Path) -> None:
    """As a colleague publishes the same store, or cleans up: it can neither be read nor deleted."""
    os.chmod(tmp_path, 0o777)
    partial = HeldFolder.make(tmp_path / ".a.zarr.another-host-7-0123abcd.partial")
    os.utime(partial.path, (0, 0))
    assert list(abandoned_partials(tmp_path)) == [partial.path]
    code = (
        "import sys; from pathlib import Path; from espo_luigi.store.partials import *; folder = Path(sys.argv[1]);"
        "sweep_partials(folder / 'a.zarr', published=True); print(list(abandoned_partials(folder)))"
    )
    with reachable(tmp_path):
        words = [*AS_STRANGER, sys.executable, "-c", code, str(tmp_path)]
        done = subprocess.run(words, capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout == "[]\n" and partial.path.is_dir()
