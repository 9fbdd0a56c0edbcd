"""Small tasks without climate data, for the engines' tests."""

import functools
import gc
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import luigi
from luigi.execution_summary import LuigiRunResult

from espo_luigi import Resources, SlurmTask, install
from espo_luigi.driver.install import WorkerSchedulerFactory
from espo_luigi.errors import InputChangedError
from espo_luigi.jobs.node.claim import check_claim
from espo_luigi.store.publish import Publication, written_aside

install()


def run(*tasks: luigi.Task) -> LuigiRunResult:
    """Run them in this process, without luigid."""
    return luigi.build(
        list(tasks),
        local_scheduler=True,
        workers=20,
        worker_scheduler_factory=WorkerSchedulerFactory(),
        detailed_summary=True,
        log_level="ERROR",
    )


class Count(SlurmTask):
    """Write the sum of the first `n` integers, computed by Dask."""

    n = luigi.IntParameter()
    folder = luigi.Parameter()
    resources_default = Resources(n_workers=1, cpus_per_task=1, memory="1GB", time="10")
    file_name = "count-{}.txt"

    @property
    def place(self) -> Path:
        return Path(str(self.folder))

    def output(self) -> luigi.LocalTarget:
        return luigi.LocalTarget(str(self.place / self.file_name.format(self.n)))

    @contextmanager
    def publishing(self) -> Iterator[Callable[[], Mapping[str, int]]]:
        with Publication(claim=check_claim).in_force() as publication:
            yield publication.blocks

    def work(self) -> None:
        import dask.array

        self.write(dask.array.arange(self.n, chunks=10).sum().compute())

    def write(self, text: object) -> None:
        with self.output().open("w") as file:
            file.write(str(text))

    def note(self, name: str, line: object) -> None:
        """Add a line to a file of the folder."""
        with (self.place / name).open("a") as file:
            file.write(f"{line}\n")


class Sliced(Count):
    """Cut an array of Dask's, and write whether the garbage collector runs after that."""

    file_name = "sliced-{}.txt"

    def work(self) -> None:
        import dask.array

        dask.array.arange(self.n, chunks=10)[2:-2].sum().compute()
        self.write(gc.isenabled() and gc.get_threshold()[0] > 0)


class Fail(Count):
    """Fail in its job."""

    def work(self) -> None:
        raise ValueError("no such luck")


class Leave(Count):
    """Leave the job as programs with a command line do."""

    uses_dask = False
    file_name = "leave-{}.txt"

    def work(self) -> None:
        sys.exit("no data in 1991-2020")


class Failures(luigi.WrapperTask):
    """Need a task that fails, and a task that leaves its job."""

    n = luigi.IntParameter()
    folder = luigi.Parameter()

    def requires(self) -> list[luigi.Task]:
        return [kind(n=self.n, folder=self.folder) for kind in (Fail, Leave)]


class Pooled(Count):
    """Compute in pools of processes, which are forked beside Dask's threads."""

    file_name = "pooled-{}.txt"

    def work(self) -> None:
        signal.alarm(30)  # a process that does not end would hold the test up
        total = 0
        for _ in range(20):
            with multiprocessing.get_context("fork").Pool(4) as pool:
                total += pool.apply(abs, (-self.n,))  # and the others are ended while they start
        self.write(total)


class Grumble(Count):
    """Fail with a text that a browser would take for HTML."""

    uses_dask = False
    file_name = "grumble-{}.txt"

    def work(self) -> None:
        raise ValueError("1 < 2 & 3")


class Sum(Count):
    """Add what two `Count` tasks wrote, without Dask."""

    # Importing and starting Dask takes a second of each job.
    uses_dask = False
    file_name = "sum-{}.txt"

    def requires(self) -> list[luigi.Task]:
        return [Count(n=self.n, folder=self.folder), Count(n=self.n + 1, folder=self.folder)]

    def work(self) -> None:
        self.write(sum(int(target.open().read()) for target in self.input()))


class Bereft(Count):
    """Need a `Count`, which is gone while this works the first few times, and say so as the guard of stores does."""

    uses_dask = False
    times = luigi.IntParameter(default=1)
    removes = luigi.BoolParameter(default=True, parsing=luigi.BoolParameter.EXPLICIT_PARSING)
    file_name = "bereft-{}.txt"

    def requires(self) -> list[luigi.Task]:
        return [Count(n=self.n, folder=self.folder)]

    def work(self) -> None:
        self.note("starts", "start")
        if len((self.place / "starts").read_text().splitlines()) <= int(self.times):
            if self.removes:
                self.input()[0].remove()
            raise InputChangedError("the input is gone")
        with self.output().open("w") as file, self.input()[0].open() as counted:
            file.write(counted.read())


class Rootless(Bereft):
    """Need nothing of another task: what changes while this works the first few times is a raw file."""

    def requires(self) -> list[luigi.Task]:
        return []

    def work(self) -> None:
        self.note("starts", "start")
        if len((self.place / "starts").read_text().splitlines()) <= int(self.times):
            raise InputChangedError("the raw file is another")
        self.write("whole")


class Thief(Bereft):
    """Take away an input after it was made and before its users start."""

    file_name = "thief-{}.txt"

    def work(self) -> None:
        self.input()[0].remove()
        self.write("taken")


class Robbed(Bereft):
    """Need a `Count` that a `Thief` takes before this can start."""

    def requires(self) -> list[luigi.Task]:
        return [*super().requires(), Thief(n=self.n, folder=self.folder)]


class Die(Count):
    """End without a word, as if the kernel had killed it."""

    def work(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Sleep(Count):
    """Say who it is, and sleep for `n` seconds."""

    def work(self) -> None:
        (self.place / "pid").write_text(str(os.getpid()))
        time.sleep(int(self.n))


class Slow(Count):
    """Note that it starts, take some seconds, and note what `folder` says."""

    uses_dask = False
    seconds = luigi.FloatParameter(default=2.0, significant=False)
    file_name = "slow-{}.txt"

    def work(self) -> None:
        self.note("starts", self.n)
        time.sleep(float(self.seconds))
        self.write("done")


class SlowOnes(luigi.WrapperTask):
    """`n` tasks that are slow, and one that needs them all."""

    n = luigi.IntParameter()
    folder = luigi.Parameter()
    seconds = luigi.FloatParameter(default=2.0)

    def requires(self) -> list[luigi.Task]:
        return [Slow(n=i, folder=self.folder, seconds=self.seconds) for i in range(int(self.n))]


class Echo(Count):
    """Write a text as it came."""

    uses_dask = False
    n = luigi.IntParameter(default=1)
    text = luigi.Parameter()
    file_name = "echo.txt"

    def work(self) -> None:
        self.write(self.text)


class Say(Echo):
    """Print a text in the job and in Dask's worker, and write it."""

    uses_dask = True

    def work(self) -> None:
        import dask

        _said(str(self.text))
        self.write(dask.compute(dask.delayed(_said)(str(self.text)))[0])


def _said(text: str) -> str:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
    return ascii(text)


class Link(Slow):
    """A task of a chain: each needs its predecessor and computes nothing."""

    file_name = "link-{}.txt"

    def requires(self) -> list[luigi.Task]:
        return [Link(n=int(self.n) - 1, folder=self.folder, seconds=self.seconds)] if self.n else []


class Lucky(Count):
    """Fail for as long as there is no file called ``luck``."""

    uses_dask = False

    def work(self) -> None:
        if not (self.place / "luck").exists():
            raise ValueError("no luck")
        self.write("lucky")


class Hungry(Count):
    """Hold 600 MiB for some seconds, which Slurm sees when it next looks at the job."""

    uses_dask = False

    def work(self) -> None:
        held = b"x" * (600 * 2**20)
        time.sleep(8)
        self.write(len(held))


class Hang(Count):
    """Hang at the first attempt, and only then."""

    uses_dask = False

    def work(self) -> None:
        if os.environ["ESPO_ATTEMPT"] == "1":
            _hang()
        self.write(os.environ["ESPO_ATTEMPT"])


def _hang() -> None:
    time.sleep(600)


class Gated(Slow):
    """Wait for a file called ``go``, and then be `Slow`."""

    file_name = "gated-{}.txt"

    def work(self) -> None:
        while not (self.place / "go").exists():
            time.sleep(0.2)
        super().work()


class Published(Gated):
    """Wait for a file called ``go``, publish as stores are, and note which start of the job did."""

    def work(self) -> None:
        start = os.environ.get("SLURM_RESTART_COUNT", "0")
        self.note("starts", start)
        while not (self.place / "go").exists():
            time.sleep(0.2)
        with written_aside(Path(self.output().path)) as partial:
            partial.write_text(start)
        self.note("published", start)


class SlowOnesAndGated(SlowOnes):
    """Tasks that end while drivers come and go, and a task that keeps the run incomplete."""

    def requires(self) -> list[luigi.Task]:
        return [*super().requires(), Gated(n=self.n, folder=self.folder, seconds=0.0)]


@functools.cache
def _configuration(folder: str) -> str:
    """What the file called ``configuration`` said when this process first asked."""
    path = Path(folder) / "configuration"
    return path.read_text().strip() if path.exists() else ""


class Configured(Count):
    """Depend on the file called ``configuration``, and write what it says."""

    uses_dask = False

    def configuration_id(self) -> str:
        return _configuration(str(self.folder))

    def work(self) -> None:
        self.note("starts", self.n)
        self.write(self.configuration_id())


class Edits(Configured):
    """Have somebody edit the configuration during the run, by the time this is done."""

    file_name = "edited.txt"

    def work(self) -> None:
        super().work()
        (self.place / "configuration").write_text("B")


class AfterEdits(Configured):
    """Begin after the configuration was edited."""

    def requires(self) -> list[luigi.Task]:
        return [Edits(n=self.n, folder=self.folder)]


class Blocks(Count):
    """Write a store of `n` blocks, a tenth of a second each, and a line for each that is computed."""

    file_name = "blocks-{}.zarr"

    def work(self) -> None:
        import dask.array
        import numpy
        import xarray

        from espo_luigi.store import Marker, write_store

        log = self.place / "computed"

        def compute(block: numpy.ndarray, block_id: tuple[int, ...]) -> numpy.ndarray:
            time.sleep(0.1)
            with log.open("a") as file:
                file.write(f"{block_id[0]}\n")
            return numpy.random.default_rng(block_id).random(block.shape)

        data = dask.array.zeros((self.n, 1000), chunks=(1, 1000)).map_blocks(
            compute, dtype="f8", meta=numpy.empty((0, 0))
        )
        marker = Marker("Blocks", created="")
        write_store(xarray.Dataset({"pr": (("time", "x"), data)}), Path(self.output().path), marker, fingerprint="work")


class Halfway(Count):
    """Give Dask `n` tasks, half of which are not done before there is a file called ``go``."""

    def work(self) -> None:
        import dask

        def compute(number: int) -> int:
            self.note("computed", number)
            done = self.place / "computed"
            while not (self.place / "go").exists() and len(done.read_text().split()) > int(self.n) / 2:
                time.sleep(0.1)
            return number

        self.write(sum(dask.compute(*[dask.delayed(compute)(number) for number in range(int(self.n))])))


class Shown(luigi.WrapperTask):
    """A task that is held halfway, a short task, and a task that fails."""

    n = luigi.IntParameter()
    folder = luigi.Parameter()

    def requires(self) -> list[luigi.Task]:
        folder = self.folder
        return [Halfway(n=self.n, folder=folder), Count(n=1, folder=folder), Grumble(n=1, folder=folder)]


class Noted(Count):
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
            Lucky(n=1, folder=self.folder, memory="300MB"),
            Hungry(n=2, folder=self.folder, memory="400MB"),
            Noted(n=3, folder=self.folder),
        ]
