"""Tasks that say where and when they ran, for the tests of steps of an allocation."""

import os
import time

import luigi
import toy_tasks

from espo_luigi import Resources


class Noted(toy_tasks.Count):
    """Take a second, and note node, CPUs, beginning and end."""

    uses_dask = False
    resources_default = Resources(n_workers=1, cpus_per_task=1, memory="300MB", time="10")

    def work(self) -> None:
        began = time.time()
        time.sleep(1.5)
        self.write(f"{os.environ['SLURMD_NODENAME']} {os.environ['SLURM_CPUS_PER_TASK']} {began} {time.time()}")


class ManyNoted(luigi.WrapperTask):
    """`n` of them."""

    n = luigi.IntParameter()
    folder = luigi.Parameter()

    def requires(self) -> list[luigi.Task]:
        return [Noted(n=i, folder=self.folder) for i in range(int(self.n))]


class Troubled(luigi.WrapperTask):
    """A task that fails, a task that takes too much memory, and an independent task."""

    folder = luigi.Parameter()

    def requires(self) -> list[luigi.Task]:
        return [
            toy_tasks.Lucky(n=1, folder=self.folder, memory="300MB"),
            toy_tasks.Hungry(n=2, folder=self.folder, memory="400MB"),
            Noted(n=3, folder=self.folder),
        ]
