"""Several processes write a store, or sweep each other's partials: only whole stores are published."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask
import pytest
from store_examples import EVERY_WAY, MARKER, InTheMiddle, constant, fork, pass_on, to_publish

from espo_luigi import replacing
from espo_luigi.errors import StoreError
from espo_luigi.replacing import room_digits
from espo_luigi.store import Marker, Publication, open_store, publish, read_marker, write_store
from espo_luigi.store.partials import abandoned_partials, remove_partial, sweep_partials


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
        with dask.config.set(scheduler="synchronous"), Publication(checks=(check,)).in_force():
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

    with Publication(checks=(check,)).in_force(), pytest.raises(StoreError, match="another job has the claim"):
        write_store(constant(2), destination, MARKER) if way == "written" else pass_on(way, source, destination)
    assert not destination.exists()


def test_a_publication_that_ends_leaves_those_that_began_later_in_force() -> None:
    first, second = Publication(), Publication()
    with contextlib.ExitStack() as later:
        with first.in_force():
            later.enter_context(second.in_force())
        assert Publication.current() is second


def test_a_thread_of_the_job_publishes_under_its_conditions(tmp_path: Path) -> None:
    def check() -> None:
        raise StoreError("another job has the claim")

    with Publication(claim=check).in_force(), ThreadPoolExecutor(1) as pool:
        written = pool.submit(write_store, constant(1), tmp_path / "a.zarr", MARKER)
    with pytest.raises(StoreError, match="another job has the claim"):
        written.result()


@pytest.mark.parametrize("lost", ["pr/c/4/0", "pr/c/1", "time", "pr/zarr.json"])
def test_a_writer_some_of_whose_files_are_gone_publishes_nothing(tmp_path: Path, lost: str) -> None:
    def lose() -> None:
        found = next(tmp_path.glob(".a.zarr.*.partial/content")) / lost
        shutil.rmtree(found) if found.is_dir() else found.unlink()

    with dask.config.set(scheduler="synchronous"), pytest.raises(StoreError, match="was deleted while it was written"):
        write_store(InTheMiddle(lose).dataset(), tmp_path / "a.zarr", MARKER)
    assert not list(tmp_path.iterdir())


def test_a_file_without_bytes_is_not_published(tmp_path: Path) -> None:
    def empty() -> None:
        os.truncate(next(tmp_path.glob(".a.zarr.*.partial/content/pr/c/4/0")), 0)

    with dask.config.set(scheduler="synchronous"), pytest.raises(StoreError, match=r"pr/c/4/0.* no bytes"):
        write_store(InTheMiddle(empty).dataset(), tmp_path / "a.zarr", MARKER)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("sweep", ["writer", "clean"])
def test_what_sweeps_a_partial_takes_its_name_away_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sweep: str
) -> None:
    """A tree that is being deleted can still be renamed: published, it would lose files afterwards."""
    partial = tmp_path / ".a.zarr.another-host-1-0123abcd.partial"
    write_store(constant(1), partial, MARKER)
    deleting = []

    def interposed(root: Path, *arguments: Any, **options: Any) -> None:
        with pytest.raises(FileNotFoundError):
            publish.publish(partial, tmp_path / "b.zarr")
        deleting.append(root)

    monkeypatch.setattr("shutil.rmtree", interposed)
    remove_partial(partial) if sweep == "clean" else sweep_partials(tmp_path / "a.zarr", published=True)
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
    destination = to_publish(way, tmp_path)
    with pytest.raises((StoreError, FileExistsError)):
        write_store(constant(2), destination, MARKER) if way == "written" else pass_on(way, source, destination)
    assert not destination.exists()


class FailingRenames:
    """Renaming on a network file system that cannot swap names, and whose answers are errors from a call on."""

    def __init__(self, first: int, times: int, *, done: bool, number: int = errno.ESTALE) -> None:
        self.first, self.times, self.done, self.number, self.calls = first, times, done, number, 0
        self._rename = os.rename

    def __call__(self, source: Any, target: Any) -> None:
        self.calls += 1
        fails = self.first <= self.calls < self.first + self.times
        if self.done or not fails:
            self._rename(source, target)
        if fails:
            raise OSError(self.number, os.strerror(self.number), str(target))


@pytest.mark.parametrize("done", [False, True], ids=["refused", "done all the same"])
@pytest.mark.parametrize(("first", "times"), [(1, 1), (2, 1), (2, 2), (2, 1000)])
def test_after_a_failure_of_any_renaming_the_former_or_the_new_store_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int, times: int, done: bool
) -> None:
    path = tmp_path / "a.zarr"
    write_store(constant(1), path, Marker("Write", {"value": "1"}))
    monkeypatch.setattr(replacing, "renamed", lambda first, second, how: False)
    monkeypatch.setattr(replacing, "_GIVE_BACK_PAUSES", (0.0, 0.0))

    def fail() -> None:
        os.rename = FailingRenames(first, times, done=done, number=errno.EIO if times == 2 else errno.ESTALE)  # type: ignore[assignment]
        with dask.config.set(scheduler="synchronous"):
            write_store(constant(2), path, Marker("Write", {"value": "2"}))

    os.waitpid(fork(fail), 0)
    for hidden in [*abandoned_partials(tmp_path)]:
        remove_partial(hidden)
    sweep_partials(path)
    if first == 2 and times == 1000 and not done:
        # No renaming succeeds any more: what had the name stays until the next store has it.
        (former,) = tmp_path.iterdir()
        assert (open_store(former).pr.values == 1).all()
    else:
        assert (open_store(path).pr.values == open_store(path).attrs["value"]).all()
    write_store(constant(3), path, Marker("Write", {"value": "3"}))
    assert (open_store(path).pr.values == 3).all()
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.zarr"]


def test_a_former_store_whose_name_somebody_else_took_stays_until_the_next_store_has_the_name(tmp_path: Path) -> None:
    path, former = (
        tmp_path / "a.zarr",
        tmp_path / f".a.zarr.former.{socket.gethostname()}-999999999-{room_digits()}0123456789abcdef.partial",
    )
    write_store(constant(1), path, MARKER)
    path.rename(former)
    (path / "mine").mkdir(parents=True)
    sweep_partials(path)
    assert former.exists() and not list(abandoned_partials(tmp_path))
    (path / "mine").rmdir()
    path.rmdir()
    write_store(constant(2), path, MARKER)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.zarr"]


@pytest.mark.parametrize("done", [False, True], ids=["refused", "done all the same"])
def test_after_a_failure_of_swapping_the_former_or_the_new_store_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    path, swap = tmp_path / "a.zarr", replacing.renamed
    write_store(constant(1), path, Marker("Write", {"value": "1"}))

    def failing(first: Path, second: Path, how: int) -> bool:
        if how == replacing.EXCHANGE:
            if done:
                swap(first, second, how)
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(second))
        return swap(first, second, how)

    monkeypatch.setattr(replacing, "renamed", failing)
    with contextlib.nullcontext() if done else pytest.raises(StoreError, match="EIO"):
        write_store(constant(2), path, Marker("Write", {"value": "2"}))
    assert (open_store(path).pr.values == (2 if done else 1)).all()
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.zarr"]


def test_a_former_store_that_cannot_be_deleted_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def busy(*_: Any) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    monkeypatch.setattr(publish, "_DELETE_ATTEMPTS", 1)
    monkeypatch.setattr("espo_luigi.files.HeldFolder.delete", busy)
    write_store(constant(1), tmp_path / "a.zarr", MARKER)
    assert "any more: [Errno 16]" in caplog.text
