"""Small tasks that read and write stores as the rules do, for runs on files that fail: `Everything` needs them all."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import luigi
import numpy as np
import xarray as xr
from luigi.task import flatten

from espo_luigi import Resources, SlurmTask, install
from espo_luigi.jobs.node.claim import check_claim
from espo_luigi.store import Marker, Publication, join_stores, open_store, pack, unchanged, write_store
from espo_luigi.tasks.ports import ZarrTarget

install()


class Stored(SlurmTask):
    """Make a store; tell a diary, which no fault can reach, of each start and each end."""

    n = luigi.IntParameter()
    folder = luigi.Parameter()
    diary = luigi.Parameter(significant=False)
    seconds = luigi.FloatParameter(default=0.0, significant=False)
    resources_default = Resources(n_workers=1, cpus_per_task=1, memory="300MB", time="10")
    uses_dask = False
    suffix = ".zarr"

    def output(self) -> ZarrTarget:
        name = f"{type(self).__name__}-{self.n}{self.suffix}"
        return ZarrTarget(Path(str(self.folder)) / "products" / name, type(self).__name__, {"n": str(self.n)})

    @contextmanager
    def publishing(self) -> Iterator[Callable[[], Mapping[str, int]]]:
        with Publication(claim=check_claim).in_force() as publication:
            yield publication.blocks

    def guarded(self) -> AbstractContextManager[Any]:
        return unchanged([target.path for target in flatten(self.input())])

    def work(self) -> None:
        self._note("start")
        time.sleep(float(self.seconds) / 2)
        self.make(self.output().path, Marker(type(self).__name__, {"n": str(self.n)}))
        self._note("done")
        time.sleep(float(self.seconds) / 2)

    def make(self, path: Path, marker: Marker) -> None:
        write_store(self.data(), path, marker)

    def data(self) -> xr.Dataset:
        raise NotImplementedError

    def _note(self, what: str) -> None:
        # One write of a short line to a file opened for appending: lines of many jobs do not mix.
        with Path(str(self.diary)).open("a") as file:
            file.write(f"{time.time():.2f} {type(self).__name__}-{self.n} {what} {os.environ.get('SLURM_JOB_ID')}\n")

    def other(self, kind: type[Stored], n: int) -> Stored:
        return kind(n=n, folder=self.folder, diary=self.diary, seconds=self.seconds)


class Source(Stored):
    """Numbers of chance, seeded by `n`."""

    def data(self) -> xr.Dataset:
        values = np.random.default_rng(int(self.n)).normal(280, 5, (60, 30)).astype("float32")
        return xr.Dataset({"tas": (("time", "loc"), values)}, {"time": np.arange(60)}).chunk(time=30, loc=10)


class Scaled(Stored):
    """Twice a `Source`."""

    def requires(self) -> Stored:
        return self.other(Source, int(self.n))

    def data(self) -> xr.Dataset:
        return open_store(self.input().path) * np.float32(2)


class Pair(Stored):
    """The sum of two `Scaled`."""

    def requires(self) -> list[Stored]:
        return [self.other(Scaled, 2 * int(self.n) + i) for i in range(2)]

    def data(self) -> xr.Dataset:
        one, two = (open_store(target.path) for target in self.input())
        return one + two


class Linked(Stored):
    """The files of a `Pair` under another name."""

    def requires(self) -> Stored:
        return self.other(Pair, int(self.n))

    def make(self, path: Path, marker: Marker) -> None:
        source = self.input().path
        join_stores(open_store(source), [source], path, marker, dim="time", chunks={"time": 30, "loc": 10})


class Archive(Linked):
    """A `Pair` as one file."""

    suffix = ".zarr.zip"

    def make(self, path: Path, marker: Marker) -> None:
        pack(self.input().path, path, marker)


def products_of(groups: int, **common: Any) -> Iterator[Stored]:
    """The last tasks of `groups` groups of six: the others are what they need."""
    for n in range(groups):
        yield (Archive if n % 2 else Linked)(n=n, **common)


class Everything(luigi.WrapperTask):
    """`groups` groups of six tasks: two sources, both scaled, their sum, and that linked or packed."""

    groups = luigi.IntParameter()
    folder = luigi.Parameter()
    diary = luigi.Parameter(significant=False)
    seconds = luigi.FloatParameter(default=0.0, significant=False)

    def requires(self) -> list[Stored]:
        common = {"folder": self.folder, "diary": self.diary, "seconds": self.seconds}
        return list(products_of(int(self.groups), **common))


def make_undisturbed(groups: int, folder: Path) -> None:
    """Make all products here and now, without scheduler and mount."""

    def make(task: Stored) -> None:
        for needed in flatten(task.requires()):
            make(needed)
        if not task.complete():
            task.work()

    folder.mkdir(parents=True)
    for task in products_of(groups, folder=str(folder), diary=str(folder / "diary")):
        make(task)
