"""The demo of one simulation, every rule, as jobs of a real Slurm, by the command that users give: what it leaves."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from demo_runs import use, write_config
from throwaway_slurm import ClusterSpec, ThrowawayCluster, missing_packages

from espo_luigi import tasks
from espo_luigi.driver.run import walk
from espo_luigi.driver.task import SlurmTask
from espo_luigi.jobs.records import RecordStore
from espo_luigi.tasks.base import EspoTask
from espo_luigi.tasks.make import rules

_MISSING = missing_packages(False)
pytestmark = [pytest.mark.slurm, pytest.mark.skipif(_MISSING is not None, reason=str(_MISSING))]


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThrowawayCluster]:
    with ThrowawayCluster.start(ClusterSpec(nodes=2, cpus=4)) as started:
        yield started


@pytest.fixture()
def command(tmp_path: Path, demo_raw: Path) -> list[str]:
    """The command that makes the demo, of one simulation, in the test's own folder."""
    criteria = {"processing_level": "raw", "experiment": ["ssp585"], "source": ["Demo-360Day"]}
    wanted = {"extraction__simulation__search_data_catalogs__other_search_criteria": criteria}
    config = " ".join(map(str, write_config(tmp_path, demo_raw, **wanted)))
    (tmp_path / "luigi.cfg").write_text(
        "[core]\nworkers = 500\nlog_level = WARNING\nno_lock = true\n"
        f"[espo]\nengine = slurm\nworkdir = run\nconfig = {config}\n"
        "[slurm]\nnode_cpus = 1\nnode_memory = 4GB\npoll_seconds = 1\nresult_seconds = 1\nmax_jobs = 3\n"
        "[worker]\nwait_interval = 0.5\n[retcode]\ntask_failed = 30\nscheduling_error = 35\n"
    )
    luigi = Path(sys.executable).parent / "luigi"
    return [str(luigi), "--module", "espo_luigi.tasks", "All", "--local-scheduler"]


@pytest.mark.timeout(1500)
def test_the_demo_ends_well_with_its_products_one_attempt_a_job_and_nothing_temporary(
    tmp_path: Path, cluster: ThrowawayCluster, command: list[str]
) -> None:
    with (tmp_path / "stderr").open("w") as stderr:
        done = subprocess.run(command, cwd=tmp_path, env=cluster.environ, stderr=stderr, check=False, timeout=1400)
    assert done.returncode == 0, (tmp_path / "stderr").read_text()[-4000:]
    use([tmp_path / "config.yml", tmp_path / "paths.yml"], tmp_path)
    graph = list(walk([tasks.All()]))
    assert {type(task) for task in graph} - {tasks.All} == set(rules())
    infos = [(type(task), item) for task in graph if isinstance(task, EspoTask) for item in task._infos().items()]
    kept = [info for rule, (name, info) in infos if not getattr(rule, name).is_temporary]
    assert kept
    assert [info.path for info in kept if not info.target.exists()] == []
    assert list((tmp_path / "work").iterdir()) == []
    records = list(RecordStore(tmp_path / "run" / "slurm").all())
    assert len(records) == sum(isinstance(task, SlurmTask) for task in graph)
    assert {(record.submission, record.attempt) for record in records} == {(1, 1)}
