"""Small tasks without climate data, for the engines' tests."""

from pathlib import Path

import luigi

from espo_luigi import Resources, SlurmTask
from espo_luigi.engine.worker import install

install()


class Count(SlurmTask):
    """Write the sum of the first `n` integers, computed by Dask."""

    n = luigi.IntParameter()
    folder = luigi.Parameter()
    resources_default = Resources(n_workers=1, cpus_per_task=1, memory="1GB", time="10")

    def output(self) -> luigi.LocalTarget:
        return luigi.LocalTarget(str(Path(str(self.folder)) / f"count-{self.n}.txt"))

    def work(self) -> None:
        import dask.array

        total = int(dask.array.arange(self.n, chunks=10).sum().compute())
        with self.output().open("w") as file:
            file.write(str(total))


class Fail(Count):
    """Fail in its job."""

    def work(self) -> None:
        raise ValueError("no such luck")


class Sum(Count):
    """Add what two `Count` tasks wrote."""

    def requires(self) -> list[luigi.Task]:
        return [Count(n=self.n, folder=self.folder), Count(n=self.n + 1, folder=self.folder)]

    def output(self) -> luigi.LocalTarget:
        return luigi.LocalTarget(str(Path(str(self.folder)) / f"sum-{self.n}.txt"))

    def work(self) -> None:
        total = sum(int(target.open().read()) for target in self.input())
        with self.output().open("w") as file:
            file.write(str(total))
