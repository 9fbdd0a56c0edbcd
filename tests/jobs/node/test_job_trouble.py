"""A job whose file systems fail retries, names the failure, and ends."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array
import numpy as np
import pytest
import xarray as xr
from throwaway_daemons import eventually

from espo_luigi.errors import InputChangedError, StoreError
from espo_luigi.files import is_file_trouble
from espo_luigi.jobs import retry
from espo_luigi.jobs.dask.session import dask_session
from espo_luigi.jobs.node import heartbeat
from espo_luigi.jobs.node import run as node
from espo_luigi.jobs.node.heartbeat import Monitor, beating
from espo_luigi.jobs.order import JobOrder
from espo_luigi.jobs.resources import Resources
from espo_luigi.jobs.retry import persistently
from espo_luigi.store import Marker, write_store


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "_set_up_process", lambda: None)
    monkeypatch.setattr(heartbeat, "_LOOK_SECONDS", 0.05)


@pytest.fixture
def full_disk(tmpfs: Callable[[str, str], Path]) -> Path:
    return tmpfs("full", "size=64k")


def result_of(order: JobOrder) -> dict[str, Any]:
    return dict(json.loads(order.files.result.read_text()))


def data() -> xr.Dataset:
    values = dask.array.random.default_rng(0).random((100, 1000), chunks=(50, 1000))
    return xr.Dataset({"tasmax": (("time", "x"), values)})


def error_of(action: Callable[[], object]) -> BaseException:
    with pytest.raises(Exception) as caught:
        action()
    return caught.value


def test_a_full_disk_is_known_however_xarray_zarr_and_the_store_wrap_it(full_disk: Path) -> None:
    plain = error_of(lambda: (full_disk / "file").write_bytes(bytes(100_000)))
    (full_disk / "file").unlink()
    zarr = error_of(lambda: data().to_zarr(full_disk / "a.zarr", zarr_format=3, consolidated=False))
    stored = error_of(lambda: write_store(data(), full_disk / "b.zarr", Marker("t")))
    assert isinstance(stored, StoreError)
    assert [node._outcome(error) for error in (plain, zarr, stored)] == ["files"] * 3


@pytest.mark.parametrize("workers", [1, 2])
def test_a_full_disk_is_known_through_dask_and_its_processes(full_disk: Path, workers: int) -> None:
    with dask_session(Resources(workers, workers, f"{workers}GB")):
        error = error_of(lambda: write_store(data(), full_disk / "a.zarr", Marker("t")))
    assert node._outcome(error) == "files"


def test_netcdf4_says_of_a_full_disk_only_that_hdf5_failed(full_disk: Path) -> None:
    """It is not recognised as a failure of the disk, because netCDF's library does not tell the reason."""
    error = error_of(lambda: data().to_netcdf(full_disk / "a.nc", engine="netcdf4"))
    assert not is_file_trouble(error)


def chained(error: Exception, cause: Exception) -> Exception:
    try:
        raise error from cause
    except Exception as caught:
        return caught


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_the_systems_words_are_found_in_chains_and_groups(number: int) -> None:
    failure = OSError(number, os.strerror(number))
    assert node._outcome(failure) == "files"
    assert node._outcome(chained(ValueError("x"), failure)) == "files"
    assert node._outcome(ExceptionGroup("several", [ValueError("x"), failure])) == "files"
    assert node._outcome(RuntimeError(f"HDF5: errno = {number}, error message = '{os.strerror(number)}'")) == "files"


def test_what_is_more_definite_goes_first() -> None:
    failure = OSError(errno.ESTALE, os.strerror(errno.ESTALE))
    assert node._outcome(chained(InputChangedError("gone"), failure)) == "input"
    assert node._outcome(chained(MemoryError(), failure)) == "memory"
    assert node._outcome(FileNotFoundError(errno.ENOENT, "no such file")) == "error"
    assert node._outcome(PermissionError(errno.EACCES, "no")) == "error"


def test_a_circle_of_causes_ends() -> None:
    one, two = ValueError("one"), ValueError("two")
    one.__context__, two.__context__ = two, one
    assert not is_file_trouble(one)


class Fails:
    """An action that raises the error so many times, then succeeds."""

    def __init__(self, times: int, number: int = errno.EIO) -> None:
        self.left, self.number = times, number

    def __call__(self) -> str:
        if self.left:
            self.left -= 1
            raise OSError(self.number, os.strerror(self.number))
        return "done"


def test_what_passes_is_tried_again_with_growing_pauses() -> None:
    pauses: list[float] = []
    assert persistently(Fails(8), 1e6, pauses.append) == "done"
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]


def test_what_does_not_pass_is_raised_at_once() -> None:
    with pytest.raises(OSError, match="Permission denied"):
        persistently(Fails(1, errno.EACCES), 1e6, pytest.fail)


def test_what_lasts_is_raised_in_the_end() -> None:
    with pytest.raises(OSError, match="Input/output error"):
        persistently(Fails(100), 0.5, pytest.fail)


def test_a_result_is_written_once_the_file_system_takes_it_and_the_heartbeat_goes(
    order: JobOrder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "_FIRST_PAUSE_SECONDS", 0.01)
    write, tries = node.write_json, Fails(2, errno.EDQUOT)
    monkeypatch.setattr(node, "write_json", lambda path, value: (tries(), write(path, value)))
    beats: list[bool] = []
    modes: list[int] = []

    def work(order: JobOrder, monitor: Monitor) -> None:
        with node.signs_of_life(order, monitor):
            until = time.monotonic() + 10
            while not order.files.heartbeat.exists() and time.monotonic() < until:
                threading.Event().wait(0.01)
            beats.append(order.files.heartbeat.exists())
            modes.append(order.files.heartbeat.stat().st_mode & 0o777)

    assert node.run_order(order.files.order, work) == 0
    assert result_of(order)["outcome"] == "success"
    assert modes == [0o600], "as all small files of a run"
    assert beats == [True] and not order.files.heartbeat.exists()
    assert sorted(path.name for path in order.files.order.parent.iterdir()) == sorted(
        [order.files.order.name, order.files.result.name]
    ), "no heartbeat among the results"


def test_a_result_that_cannot_be_read_for_a_moment_is_not_thrown_away(
    order: JobOrder, monkeypatch: pytest.MonkeyPatch
) -> None:
    order.files.result.write_text(json.dumps({"outcome": "success", "job_id": "7"}))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(retry, "_FIRST_PAUSE_SECONDS", 0.01)
    read, tries = node.read_object, Fails(2, errno.ESTALE)

    def read_object(path: Path) -> dict[str, Any] | None:
        tries()
        return read(path)

    monkeypatch.setattr(node, "read_object", read_object)
    assert node.run_order(order.files.order, pytest.fail) == 0
    assert result_of(order)["outcome"] == "success"


def test_a_heartbeat_that_cannot_be_written_is_followed_by_the_next(caplog: pytest.LogCaptureFixture) -> None:
    beats: list[dict[str, Any]] = []
    tries = Fails(3, errno.EDQUOT)

    def write(beat: dict[str, Any]) -> None:
        tries()
        beats.append(beat)

    monitor = Monitor()
    monitor.look = lambda: True  # type: ignore[method-assign]
    with beating(monitor, write, 0.1):
        until = time.monotonic() + 10
        while len(beats) < 2 and time.monotonic() < until:
            threading.Event().wait(0.05)
    assert len(beats) >= 2
    assert caplog.text.count("cannot write the heartbeat") == 1


def test_a_heart_beats_no_faster_than_it_is_told() -> None:
    beats: list[dict[str, Any]] = []
    monitor = Monitor()
    monitor.look = lambda: True  # type: ignore[method-assign]
    began = time.monotonic()
    with beating(monitor, beats.append, 0.3):
        eventually(lambda: len(beats) >= 3)
    assert time.monotonic() - began >= 0.3 * (len(beats) - 1)


def test_an_error_while_ending_is_no_failure_of_work_that_is_done(order: JobOrder) -> None:
    def work(order: JobOrder, monitor: Monitor) -> None:
        monitor.done.set()
        raise TimeoutError("Dask does not close")

    assert node.run_order(order.files.order, work) == 0
    assert result_of(order)["outcome"] == "success" and result_of(order)["exception"] is None


_HANGS = """
import sys, time
from pathlib import Path
from espo_luigi.jobs.node import run as node
node._LONGEST_END_SECONDS = 0.5

def work(order, monitor):
    monitor.done.set()
    time.sleep(60)

sys.exit(node.run_order(Path(sys.argv[1]), work))
"""


def test_an_end_that_hangs_after_the_work_is_a_success(order: JobOrder) -> None:
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", _HANGS, str(order.files.order)], check=False, timeout=60)
    assert done.returncode == 0 and time.monotonic() - began < 50
    assert result_of(order)["outcome"] == "success"
    assert np.isfinite(result_of(order)["ended"])
