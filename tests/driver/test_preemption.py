"""Jobs of a real Slurm that are preempted go on from the blocks that they have completed."""

import json
import os
import random
import time
from pathlib import Path

import dask
import pytest
import toy_tasks
from drivers import Driver
from throwaway_daemons import ended, eventually
from throwaway_slurm import ClusterSpec, ThrowawayCluster

pytestmark = pytest.mark.slurm
# Two nodes for a job each. A job with a grace time is told to end when it is preempted, not later.
CLUSTER = ClusterSpec(nodes=2, cpus=1, conf=("SlurmctldParameters=preempt_send_user_signal",))
# As many as the suite has time for; 10 were tried by hand.
PREEMPTIONS = int(os.environ.get("ESPO_PREEMPTIONS", "1"))
# As many as are computed meanwhile: each round takes the two jobs some eight seconds.
BLOCKS = 80 * PREEMPTIONS - 40


def contents(store: Path) -> dict[str, bytes]:
    return {str(file.relative_to(store)): file.read_bytes() for file in store.rglob("*") if file.is_file()}


class Preempted(Driver):
    """A run of one task of many blocks, in a partition of the cluster, and jobs that preempt its job."""

    def __init__(self, parent: Path, cluster: ThrowawayCluster, partition: str) -> None:
        folder = parent / partition
        folder.mkdir()
        super().__init__(folder, cluster)
        self.partition = partition
        (folder / "site.yml").write_text("grace: {'*-grace': 10}\n")
        configuration = (folder / "luigi.cfg").read_text().replace("[slurm]", "[slurm]\nprofile = site.yml")
        (folder / "luigi.cfg").write_text(f"{configuration}[Blocks]\npartition = {partition}\n")

    def computed(self) -> int:
        path = self.folder / "computed"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def preempt(self, after_blocks: int) -> None:
        """Preempt the job when it has computed so many more blocks, and see Slurm do so."""
        before = self.computed()
        eventually(lambda: self.computed() >= before + after_blocks)
        mine = (f"--partition={self.partition}", "--noheader")
        node = self.cluster.run("squeue", *mine, "--states=RUNNING", "--format=%N").strip()
        urgent = self.cluster.run(
            "sbatch", "--parsable", "--partition=urgent", f"--nodelist={node}", "--output=/dev/null", "--wrap=true"
        ).strip()
        eventually(
            lambda: self.cluster.run("squeue", "--noheader", f"--jobs={urgent}", "--states=PD", check=False) == ""
        )

    def start_again(self) -> None:
        """Have the preempted job start at once, if Slurm has requeued it."""
        if self.partition == "main":
            eventually(lambda: bool(self.waiting()))
        for job in self.waiting():
            self.cluster.start_at_once(job, lambda job=job: job not in self.waiting())

    def waiting(self) -> list[str]:
        mine = (f"--partition={self.partition}", "--noheader")
        return self.cluster.run("squeue", *mine, "--states=PENDING", "--format=%A").split()


def undisturbed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    folder.mkdir()
    task = toy_tasks.Blocks(n=BLOCKS, folder=str(folder))
    with dask.config.set(scheduler="synchronous"), monkeypatch.context() as patch:
        patch.setattr(time, "sleep", lambda seconds: None)
        task.work()
    return contents(Path(task.output().path))


def test_preempted_jobs_go_on_from_their_complete_blocks(
    tmp_path: Path, cluster: ThrowawayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first is requeued and goes on under its id; the second ends when told to, and is submitted again."""
    expected, draw = undisturbed(tmp_path / "undisturbed", monkeypatch), random.Random(7)
    jobs = {"main": 1, "main-grace": PREEMPTIONS + 1}
    runs = [Preempted(tmp_path, cluster, partition) for partition in jobs]
    processes = [run.start("Blocks", "--n", str(BLOCKS)) for run in runs]
    for _ in range(PREEMPTIONS):
        for run in runs:
            run.preempt(draw.randint(1, 10))
        for run in runs:
            run.start_again()
    for run, process in zip(runs, processes, strict=True):
        ended(process)
        assert contents(run.folder / f"blocks-{BLOCKS}.zarr") == expected
        # Each time, at most the block is lost that the only thread of the only worker has in hand.
        assert BLOCKS <= run.computed() <= BLOCKS + PREEMPTIONS
        record = run.record()
        assert (record.submission, record.attempt, record.uncharged) == (jobs[run.partition], 1, 0)
        (result,) = (json.loads(file.read_text()) for file in (run.folder / "work" / "jobs").rglob("*.result.json"))
        assert sum(result["blocks"].values()) == BLOCKS and result["blocks"]["found"] > 0
        assert not list(run.folder.glob(".*.partial"))
