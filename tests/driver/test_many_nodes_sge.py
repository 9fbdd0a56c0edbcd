"""A rule whose Dask workers are jobs of their own, on a real Grid Engine."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
from cluster_tasks import SpreadBlocks
from throwaway_sge import ThrowawayGridEngine

from espo_luigi.jobs.dask.session import dask_session
from espo_luigi.jobs.resources import Resources

pytestmark = [pytest.mark.slurm, pytest.mark.sge]
# As the document for Grid Engine has it; what a process maps is limited by h_vmem, beyond what it uses.
TABLE = (
    '{"jobs": 2, "wait_for_workers": "100%%", "cores": 1, "processes": 1, "memory": "600MB", "queue": "main.q", '
    '"resource_spec": "h_vmem=8G", "job_extra": ["-cwd", "-V", "-pe threaded 1"], "walltime": "00:10:00"}'
)


def digest(folder: Path) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(folder.rglob("c/*")))).hexdigest()


def test_workers_that_are_jobs_of_grid_engine_write_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "luigi.cfg").write_text(
        "[core]\nlog_level = WARNING\nno_lock = true\n[espo]\nengine = sge\nworkdir = work\n"
        "[sge]\nqueue = main.q\npoll_seconds = 1\nresult_seconds = 0.5\n"
        f"[retcode]\ntask_failed = 30\n[SpreadBlocks]\nmemory = 8GB\ncluster = jobqueue\nworker_jobs = {TABLE}\n"
    )
    luigi = Path(sys.executable).parent / "luigi"
    command = [str(luigi), "--module", "cluster_tasks", "SpreadBlocks", "--folder", str(tmp_path), "--n", "6"]
    with ThrowawayGridEngine.start() as cluster:
        environ = cluster.environ
        done = subprocess.run(
            [*command, "--local-scheduler"], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=180
        )
        assert done.returncode == 0, done.stderr
        left = subprocess.run(["qstat"], env=environ, capture_output=True, text=True, check=True).stdout
    assert "workers" not in left
    logs = [path.read_text() for path in (tmp_path / "sge_logs" / "workers" / "SpreadBlocks").glob("*.out")]
    assert len(logs) == 2 and any("espo_luigi.user" in log for log in logs)
    with dask_session(Resources(1, 1, "1GB")):
        (tmp_path / "local").mkdir()
        SpreadBlocks(n=6, folder=str(tmp_path / "local"), seconds=0.0).work()
    assert digest(tmp_path / "blocks-6.zarr") == digest(tmp_path / "local" / "blocks-6.zarr")
