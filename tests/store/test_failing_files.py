"""The mount on which file-system trouble is tested is itself a file system, and fails as it is told, and only so."""

from __future__ import annotations

import errno
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import dask
import numpy as np
import pytest
import xarray as xr
from failing_files import FailingFiles, Fault, missing_parts
from store_examples import fork

from espo_luigi.errors import StoreError
from espo_luigi.replacing import EXCHANGE, renamed
from espo_luigi.store import Marker, Publication, join_stores, open_store, pack, unchanged, write_store

_MISSING = missing_parts()
pytestmark = pytest.mark.skipif(_MISSING is not None, reason=str(_MISSING))
ERRORS = ("ESTALE", "EIO", "EDQUOT", "ENOSPC")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FailingFiles]:
    folder = tmp_path_factory.mktemp("failing")
    with FailingFiles.mounted(folder / "behind", folder / "mount") as mounted:
        yield mounted


@pytest.fixture()
def folder(files: FailingFiles, request: pytest.FixtureRequest) -> Iterator[Path]:
    made = files.mountpoint / str(abs(hash(request.node.name)))
    made.mkdir()
    yield made
    files.clear()


def fails_with(action: Callable[[], object]) -> str:
    with pytest.raises(OSError) as raised:
        action()
    return errno.errorcode[raised.value.errno or 0]


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("operation", ["write", "open", "create", "rename", "listdir", "stat", "fsync", "close"])
def test_a_call_fails_as_told_where_told_and_then_no_more(
    files: FailingFiles, folder: Path, operation: str, error: str
) -> None:
    def use(path: Path) -> None:
        with (path / "file").open("w") as file:
            file.write("x")
            file.flush()
            os.fsync(file.fileno())
        with (path / "file").open():
            os.replace(path / "file", path / "renamed")
        assert os.listdir(path) == ["renamed"]

    for name in ("struck", "spared"):
        (folder / name).mkdir()
    number = files.set(Fault(operation, f"{folder.name}/struck*", error=error))
    use(folder / "spared")
    assert files.hits(number) == 0
    assert fails_with(lambda: use(folder / "struck")) == error
    assert files.hits(number) > 0
    files.clear(number)
    use(folder / "struck")


def test_names_are_swapped_where_the_file_system_can_and_refused_where_told(files: FailingFiles, folder: Path) -> None:
    for name in ("a", "b"):
        (folder / name).mkdir()
        (folder / name / "who").write_text(name)
    assert renamed(folder / "a", folder / "b", EXCHANGE)
    assert (folder / "a" / "who").read_text() == "b"
    files.set(Fault("exchange", error="EINVAL"))
    assert not renamed(folder / "a", folder / "b", EXCHANGE)
    assert (folder / "a" / "who").read_text() == "b"


def test_a_call_that_was_done_may_be_answered_by_an_error(files: FailingFiles, folder: Path) -> None:
    number = files.set(Fault("link create", f"{folder.name}/*", error="EEXIST", times=1, after=True))
    assert fails_with(lambda: (folder / "mine").open("x")) == "EEXIST"
    assert (folder / "mine").exists()
    files.clear(number)
    files.set(Fault("link", f"{folder.name}/*", error="EEXIST", times=1, after=True))
    assert fails_with(lambda: os.link(folder / "mine", folder / "linked")) == "EEXIST"
    assert (folder / "mine").stat().st_nlink == 2


@pytest.fixture()
def clients(tmp_path: Path) -> Iterator[tuple[FailingFiles, FailingFiles]]:
    where = tmp_path / "behind", tmp_path / "mount"
    with FailingFiles.mounted(*where, private=True) as node, FailingFiles.mounted(*where) as login:
        yield login, node


def on(client: FailingFiles, script: str) -> str:
    words = [*client.inside, "sh", "-c", script]
    return subprocess.run(words, cwd=client.mountpoint, capture_output=True, text=True, check=False).stdout.strip()


def test_what_another_client_makes_is_seen_late_where_told(clients: tuple[FailingFiles, FailingFiles]) -> None:
    login, node = clients
    mount = login.mountpoint
    (mount / "known").write_text("1")
    number = login.set(Fault(path="*.new", hide=1.5))
    on(node, f"echo 2 > {mount}/known; echo 3 > {mount}/a.new; mkdir {mount}/b.new")
    assert (mount / "known").read_text() == "2\n", "what was seen once is seen"
    assert os.listdir(mount) == ["known"]
    assert not (mount / "a.new").exists() and not (mount / "b.new").exists()
    (mount / "own.new").touch()
    assert (mount / "own.new").exists(), "a client sees what it makes itself"
    assert on(node, f"ls {mount}").split() == ["a.new", "b.new", "known", "own.new"]
    time.sleep(1.6)
    assert sorted(os.listdir(mount)) == ["a.new", "b.new", "known", "own.new"]
    assert (mount / "a.new").read_text() == "3\n"
    login.clear(number)


def test_of_two_clients_one_creates_unless_told_that_both_do(clients: tuple[FailingFiles, FailingFiles]) -> None:
    login, node = clients
    mount = login.mountpoint
    create = f"set -o noclobber; echo node > {mount}/claim && echo created"
    assert on(node, f"bash -c '{create}'") == "created"
    login.set(Fault(path="claim", hide=60))
    assert fails_with(lambda: (mount / "claim").open("x")) == "EEXIST", "the server knows what the client does not see"
    login.set(Fault("exclusive", "claim", shared=True))
    with (mount / "claim").open("x") as file:
        file.write("me!!")
    assert on(node, f"cat {mount}/claim") == "me!!"


def example() -> xr.Dataset:
    values = np.random.default_rng(3).normal(280, 5, (40, 12)).astype("float32")
    return xr.Dataset({"tasmax": (("time", "loc"), values, {"units": "K"})}).chunk(time=20, loc=4)


@pytest.mark.parametrize("exchange", [True, False])
def test_a_store_is_published_replaced_linked_and_packed_on_the_mount(
    files: FailingFiles, folder: Path, exchange: bool
) -> None:
    if not exchange:
        files.set(Fault("exchange", error="EINVAL"))
    made = example().assign_coords(time=range(40))
    path, marker = folder / "a.zarr", Marker("Train", {"region": "south"})
    for _ in range(2):
        write_store(made, path, marker)
    join_stores(open_store(path), [path], folder / "b.zarr", marker, dim="time", chunks={"time": 20, "loc": 4})
    pack(path, folder / "a.zarr.zip", marker)
    for name in ("a.zarr", "b.zarr", "a.zarr.zip"):
        xr.testing.assert_identical(open_store(folder / name).compute(), made.compute())
    chunk = next(one for one in (path / "tasmax" / "c").rglob("*") if one.is_file())
    assert chunk.stat().st_nlink == 2
    assert sorted(os.listdir(folder)) == ["a.zarr", "a.zarr.zip", "b.zarr"]


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("operation", ["write", "create", "mkdir", "rename", "fsync", "close"])
def test_a_store_that_cannot_be_written_is_an_error_that_names_the_cause_and_nothing_is_left(
    files: FailingFiles, folder: Path, operation: str, error: str
) -> None:
    number = files.set(Fault(operation, f"{folder.name}/*", error=error))
    with pytest.raises(StoreError, match=error):
        write_store(example(), folder / "a.zarr", Marker("Train"))
    assert files.hits(number) > 0
    files.clear(number)
    write_store(example(), folder / "a.zarr", Marker("Train"))
    assert os.listdir(folder) == ["a.zarr"]


@pytest.mark.parametrize("error", ["ENOSPC", "EIO"])
def test_a_retry_goes_on_from_the_blocks_before_the_disk_failed(files: FailingFiles, folder: Path, error: str) -> None:
    path, marker = folder / "a.zarr", Marker("Train")
    number = files.set(Fault("create", f"{folder.name}/*/tasmax/c/0/*", error=error))  # Dask begins with the others
    with dask.config.set(scheduler="synchronous"), pytest.raises(StoreError, match=error):
        write_store(example(), path, marker, fingerprint="work")
    assert files.hits(number) > 0
    files.clear(number)

    def retry() -> None:
        with dask.config.set(scheduler="synchronous"), Publication(claim=lambda: None).in_force() as publication:
            write_store(example(), path, marker, fingerprint="work")
        os._exit(publication.blocks()["found"])

    assert os.waitstatus_to_exitcode(os.waitpid(fork(retry), 0)[1]) > 0
    xr.testing.assert_identical(open_store(path).compute(), example().compute())
    assert os.listdir(folder) == ["a.zarr"]


def test_a_store_on_a_file_system_that_was_mounted_anew_is_the_same_store(tmp_path: Path) -> None:
    """An automounter unmounts what nobody has open, as a job that computes for long: the device's number changes."""
    behind, mountpoint = tmp_path / "behind", tmp_path / "mount"
    devices = []
    with FailingFiles.mounted(behind, mountpoint):
        devices.append(mountpoint.stat().st_dev)
        ds = xr.Dataset({"pr": (("time",), np.arange(24.0))}).chunk(time=8)
        write_store(ds, mountpoint / "a.zarr", Marker(task="Extract"))
        opened = open_store(mountpoint / "a.zarr")
        guard = unchanged([mountpoint / "a.zarr"], [mountpoint / "a.zarr" / "zarr.json"])
        guard.__enter__()
    with FailingFiles.mounted(tmp_path / "other", tmp_path / "other-mount"), FailingFiles.mounted(behind, mountpoint):
        devices.append(mountpoint.stat().st_dev)
        assert opened.pr.sum() == 276
        write_store(ds, mountpoint / "b.zarr", Marker(task="Regrid"))
        guard.__exit__(None, None, None)
    assert devices[0] != devices[1]
