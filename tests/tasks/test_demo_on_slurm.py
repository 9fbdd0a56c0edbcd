"""The demo of one simulation, every rule, as jobs of a real Slurm, by the command that users give: what it leaves."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from demo_runs import use, write_config
from test_production_shape import MANY, ONE, PERIODS, REGIONS, SHAPE, assert_same, make, make_raw, stacking
from throwaway_slurm import ClusterSpec, ThrowawayCluster, missing_packages

from espo_luigi import tasks
from espo_luigi.driver.run import walk
from espo_luigi.driver.task import SlurmTask
from espo_luigi.jobs.records import RecordStore
from espo_luigi.tasks.base import EspoTask
from espo_luigi.tasks.make import rules

_MISSING = missing_packages(False)
pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(_MISSING is not None, reason=str(_MISSING)),
    pytest.mark.timeout(1500),
]
# Two bands, of 3 and 9 rows: each job imports for seconds, and a third region would show nothing that two do not.
BANDS = {"south": REGIONS["south"], "middle": {**REGIONS["middle"], "lat_bnds": [45.75, 48.0]}}
CHANGES = {**stacking(False), "custom__regions": BANDS}
# Dask's workers of a job: several are processes of their own, among which blocks travel.
WORKERS = {rule: 2 if rule in (tasks.Regrid, tasks.CleanUp) else 1 for rule in rules()}


class Made(NamedTuple):
    """The folder of a run that has ended, with its exit code and what it said."""

    folder: Path
    code: int
    said: str


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_raw(tmp_path_factory.mktemp("shape") / "raw")


def make_by_command(folder: Path, raw: Path, engine: str, options: str, environ: Mapping[str, str]) -> Made:
    """Make the demo in many chunks, of one simulation, by the command, as jobs of a cluster."""
    config = " ".join(map(str, write_config(folder, raw, **{**SHAPE, **PERIODS, **MANY, **CHANGES})))
    (folder / "luigi.cfg").write_text(
        "[core]\nworkers = 500\nlog_level = WARNING\nno_lock = true\n"
        f"[espo]\nengine = {engine}\nworkdir = run\nconfig = {config}\n"
        f"[{engine}]\nnode_cpus = 2\npoll_seconds = 1\nresult_seconds = 1\nmax_jobs = 3\n{options}\n"
        "[worker]\nwait_interval = 0.5\n[retcode]\ntask_failed = 30\nscheduling_error = 35\n"
        + "".join(f"[{rule.__name__}]\nn_workers = {n}\ncpus_per_task = {n}\n" for rule, n in WORKERS.items())
    )
    luigi = Path(sys.executable).parent / "luigi"
    command = [luigi, "--module", "espo_luigi.tasks", "All", "--local-scheduler"]
    with (folder / "stderr").open("w") as stderr:
        done = subprocess.run(command, cwd=folder, env=environ, stderr=stderr, check=False, timeout=1400)
    return Made(folder, done.returncode, (folder / "stderr").read_text()[-4000:])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, raw: Path) -> Made:
    """The demo as jobs of Slurm."""
    with ThrowawayCluster.start(ClusterSpec(nodes=2, cpus=4)) as cluster:
        return make_by_command(tmp_path_factory.mktemp("run"), raw, "slurm", "node_memory = 4GB", cluster.environ)


def test_the_demo_ends_well_with_its_products_one_attempt_a_job_and_nothing_temporary(made: Made) -> None:
    check_end(made)


def check_end(made: Made) -> None:
    """All products, one attempt a job, nothing temporary."""
    assert made.code == 0, made.said
    folder = made.folder
    use([folder / "config.yml", folder / "paths.yml"], folder)
    graph = list(walk([tasks.All()]))
    assert {type(task) for task in graph} - {tasks.All} == set(rules())
    infos = [(type(task), item) for task in graph if isinstance(task, EspoTask) for item in task._infos().items()]
    kept = [info for rule, (name, info) in infos if not getattr(rule, name).is_temporary]
    assert kept
    assert [info.path for info in kept if not info.target.exists()] == []
    assert list((folder / "work").iterdir()) == []
    records = list(RecordStore(folder / "run" / "slurm").all())
    assert len(records) == sum(isinstance(task, SlurmTask) for task in graph)
    assert {(record.submission, record.attempt) for record in records} == {(1, 1)}


def test_jobs_of_slurm_make_the_same_bytes(tmp_path: Path, raw: Path, made: Made) -> None:
    check_bytes(tmp_path, raw, made)


def check_bytes(tmp_path: Path, raw: Path, made: Made) -> None:
    """Every product, against one chunk for everything in this process."""
    assert made.code == 0, made.said
    one = make(tmp_path, raw, **ONE, **CHANGES)
    assert any(name.startswith("final/NAM/") for name in one)
    for name, path in one.items():
        assert_same(made.folder / "final" / name, path)
