"""Jobs of a real Slurm that are preempted go on from the blocks that they have completed."""

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_slurm_engine import Driver, eventually
from throwaway_slurm import ClusterSpec, ThrowawayCluster, missing_packages

from espo_luigi.jobs.records import RecordStore
from espo_luigi.store.manifest import lines_of

_MISSING = missing_packages(False)
pytestmark = [pytest.mark.slurm, pytest.mark.skipif(_MISSING is not None, reason=str(_MISSING))]
BLOCKS = 60
# As many as the suite has time for; 10 were tried by hand.
PREEMPTIONS = int(os.environ.get("ESPO_PREEMPTIONS", "2"))


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThrowawayCluster]:
    """Two nodes for one job each, of which one with a grace time is told to end when it is preempted, not after it."""
    told = "SlurmctldParameters=preempt_send_user_signal"
    with ThrowawayCluster.start(ClusterSpec(nodes=2, cpus=1, conf=(told,))) as started:
        yield started


def contents(store: Path) -> dict[str, bytes]:
    return {str(file.relative_to(store)): file.read_bytes() for file in store.rglob("*") if file.is_file()}


class Preempted(Driver):
    """A run of one task of many blocks, in a partition of the cluster, and jobs that preempt its job."""

    def __init__(self, folder: Path, cluster: ThrowawayCluster, options: str) -> None:
        super().__init__(folder, cluster)
        (folder / "site.yml").write_text("grace: {'*-grace': 10}\n")
        configuration = (folder / "luigi.cfg").read_text().replace("[slurm]", "[slurm]\nprofile = site.yml")
        (folder / "luigi.cfg").write_text(f"{configuration}[Blocks]\n{options}\n")

    def computed(self) -> int:
        path = self.folder / "computed"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def complete(self) -> int:
        partials = self.folder.glob(".blocks-*.partial")
        return max((sum(map(len, lines_of(partial).values())) for partial in partials), default=0)

    def preempt(self, after_blocks: int) -> None:
        """Preempt the job when it has computed so many more blocks, and let it start again at once."""
        before = self.computed()
        eventually(lambda: self.computed() >= before + after_blocks)
        node = self.cluster.run("squeue", "--noheader", "--states=RUNNING", "--format=%N").strip()
        urgent = self.cluster.run(
            "sbatch", "--parsable", "--partition=urgent", f"--nodelist={node}", "--output=/dev/null", "--wrap=true"
        ).strip()
        eventually(
            lambda: self.cluster.run("squeue", "--noheader", f"--jobs={urgent}", "--states=PD", check=False) == ""
        )
        for job in self.cluster.run("squeue", "--noheader", "--states=PENDING", "--format=%A").split():
            self.cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now", check=False)


@pytest.fixture(scope="module")
def undisturbed(cluster: ThrowawayCluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    driver = Driver(tmp_path_factory.mktemp("undisturbed"), cluster)
    process = driver.start("Blocks", "--n", str(BLOCKS))
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return contents(driver.folder / f"blocks-{BLOCKS}.zarr")


@pytest.mark.parametrize(
    ("options", "jobs"),
    [("partition = main", 1), ("partition = main-grace", PREEMPTIONS + 1)],
    ids=["requeued", "cancelled after the grace time"],
)
def test_a_preempted_job_goes_on_from_its_complete_blocks(
    tmp_path: Path, cluster: ThrowawayCluster, undisturbed: dict[str, bytes], options: str, jobs: int
) -> None:
    driver, draw = Preempted(tmp_path, cluster, options), random.Random(7)
    process = driver.start("Blocks", "--n", str(BLOCKS))
    for _ in range(PREEMPTIONS):
        driver.preempt(draw.randint(1, BLOCKS // (PREEMPTIONS + 2)))
        assert driver.complete() > 0
    _, errors = process.communicate(timeout=180)
    assert process.returncode == 0, errors
    assert contents(tmp_path / f"blocks-{BLOCKS}.zarr") == undisturbed
    # One block at hand in the one thread of the one worker is lost at most, each time.
    assert BLOCKS <= driver.computed() <= BLOCKS + PREEMPTIONS
    (record,) = RecordStore(tmp_path / "work" / "slurm").all()
    assert (record.submission, record.attempt, record.uncharged) == (jobs, 1, 0)
    (result,) = (json.loads(file.read_text()) for file in (tmp_path / "work" / "jobs").rglob("*.result.json"))
    assert sum(result["blocks"].values()) == BLOCKS and result["blocks"]["found"] > 0
    assert not list(tmp_path.glob(".*.partial"))
