"""Stores whose every value tells the write that it comes from, and the ways to publish such stores."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import dask
import numpy as np
import xarray as xr

from espo_luigi.store import Marker, join_stores, open_store, pack, write_store

MARKER = Marker("Write", created="2026-01-01T00:00:00+00:00")
EVERY_WAY = ["joined", "packed"]


def constant(value: int) -> xr.Dataset:
    """A dataset whose every value, coordinate and attribute tells the write that it comes from."""
    values = np.full((64, 16), value, "int32")
    coordinates = {"time": np.arange(64) + 1000 * value, "height": value}
    return xr.Dataset({"pr": (("time", "loc"), values)}, coordinates, {"value": value}).chunk(time=8)


def _archived(value: int, path: Path) -> None:
    folder = path.with_name(f"made-{value}") / "a.zarr"
    write_store(constant(value), folder, MARKER)
    pack(folder, path)


def make(value: int, path: Path) -> None:
    _archived(value, path) if path.suffix == ".zip" else write_store(constant(value), path, MARKER)


def write_for_ever(path: Path, first: int, before_each: Callable[[], object] = lambda: None) -> None:
    with dask.config.set(scheduler="synchronous"):
        for value in range(first, first + 100_000):
            before_each()
            write_store(constant(value), path, Marker("Write", {"value": str(value)}))


def pass_on(way: str, source: Path, destination: Path) -> None:
    if way == "packed":
        pack(source, destination)
    else:
        other = source.with_name("other.zarr")
        if not other.exists():
            write_store(constant(1), other, MARKER)
        whole = xr.concat([open_store(source), open_store(other)], "time")
        join_stores(whole, [source, other], destination, MARKER, dim="time", chunks={"time": 8})


def to_publish(way: str, folder: Path) -> Path:
    return folder / ("b.zarr.zip" if way == "packed" else "b.zarr")


def fork(work: Callable[[], None]) -> int:
    """Do some work in another process; return its number."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(1)
    return child


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
