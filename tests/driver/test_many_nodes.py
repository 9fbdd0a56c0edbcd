"""Rules whose Dask workers are jobs of their own, or on several nodes of a job; sessions without a rule: on Slurm."""

import hashlib
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from cluster_tasks import SpreadBlocks
from drivers import Driver
from strangers import as_root, listening, no_luck, strangers_luck
from throwaway_daemons import ended, eventually
from throwaway_slurm import ClusterSpec, ThrowawayCluster

from espo_luigi.jobs.dask.session import dask_session
from espo_luigi.jobs.lifecycle.records import RecordStore
from espo_luigi.jobs.resources import Resources

pytestmark = pytest.mark.slurm
CLUSTER = ClusterSpec(nodes=2, cpus=2)
JOBQUEUE = "cluster = jobqueue\n"
SPREAD = "cluster = allocation\nnodes = 2"


def start(folder: Path, cluster: ThrowawayCluster, section: str) -> subprocess.Popen[str]:
    driver = Driver(folder, cluster)
    with (folder / "luigi.cfg").open("a") as file:
        file.write(f"[SpreadBlocks]\n{section}\n")
    return driver.start("SpreadBlocks", "--n", "6", module="cluster_tasks")


def bytes_of(folder: Path) -> dict[str, str]:
    store = folder / "blocks-6.zarr"
    files = [path for path in store.rglob("*") if path.is_file()]
    assert len(files) == 7  # six blocks, and the metadata
    return {str(path.relative_to(store)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def makers(folder: Path) -> dict[str, str]:
    """The job and the node's number that made a block, by block."""
    return {path.name.split(".")[0]: path.name.split(".", 1)[1] for path in folder.glob("made-*")}


def jobs(cluster: ThrowawayCluster, *more: str) -> list[str]:
    return cluster.run("squeue", "--noheader", "--states=PENDING,RUNNING", "--format=%i %j", *more).splitlines()


def workers(cluster: ThrowawayCluster, *more: str) -> list[str]:
    return [line.split()[0] for line in jobs(cluster, *more) if line.endswith(".workers")]


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The store's files, made in this process."""
    folder = tmp_path_factory.mktemp("local")
    with dask_session(Resources(1, 1, "1GB")):
        SpreadBlocks(n=6, folder=str(folder), seconds=0.0).work()
    return bytes_of(folder)


def test_workers_that_are_jobs_write_the_same_bytes_though_one_is_lost_and_each_has_a_log_and_none_is_left(
    tmp_path: Path, cluster: ThrowawayCluster, local: dict[str, str]
) -> None:
    table = '{"jobs": 2, "memory": "600MB", "wait_for_workers": "100%%"}'
    process = start(tmp_path, cluster, f"{JOBQUEUE}seconds = 2\nworker_jobs = {table}")
    eventually(lambda: bool(makers(tmp_path)))
    before = workers(cluster)
    cluster.run("scancel", before[0])
    eventually(lambda: bool(set(workers(cluster)) - set(before)))
    ended(process)
    assert bytes_of(tmp_path) == local
    (record,) = RecordStore(tmp_path / "work" / "scheduler").all()
    assert (record.attempt, record.submission) == (1, 1)
    (log,) = (tmp_path / "slurm_logs" / "SpreadBlocks").glob("*.out")
    logs = [path.read_text() for path in (tmp_path / "slurm_logs" / "workers" / "SpreadBlocks").glob("*.out")]
    assert len(logs) == 3
    assert sum("espo_luigi.user" in one and "block" in one for one in logs) >= 2
    assert "espo_luigi.user: block 3" in log.read_text()
    assert workers(cluster) == []
    assert list((tmp_path / "work" / "scheduler" / "dask").iterdir()) == []


@pytest.mark.long
def test_adaptive_workers_come_with_the_work_and_one_that_is_requeued_changes_nothing(
    tmp_path: Path, cluster: ThrowawayCluster, local: dict[str, str]
) -> None:
    table = '{"minimum_jobs": 1, "maximum_jobs": 2, "memory": "600MB"}'
    process = start(tmp_path, cluster, f"{JOBQUEUE}seconds = 4\nworker_jobs = {table}")
    eventually(lambda: len(workers(cluster)) == 2)
    eventually(lambda: bool(makers(tmp_path)))
    job_id = next(iter(makers(tmp_path).values())).split(".")[0]
    cluster.run("scontrol", "requeue", job_id)
    ended(process)
    assert bytes_of(tmp_path) == local
    assert workers(cluster) == []


def test_no_worker_is_left_of_a_job_that_is_killed(tmp_path: Path, cluster: ThrowawayCluster) -> None:
    table = '{"jobs": 4, "memory": "600MB", "death_timeout": 15}'
    # A worker without a scheduler waits for the block that it computes, 30 s at most.
    process = start(tmp_path, cluster, f"{JOBQUEUE}seconds = 8\nworker_jobs = {table}")
    eventually(lambda: bool(makers(tmp_path)) and len(workers(cluster)) == 4)
    pending = workers(cluster, "--states=PENDING")
    assert pending
    # The driver, too: nobody is left who could cancel anything.
    process.kill()
    process.communicate()
    (order,) = (tmp_path / "work" / "jobs" / "SpreadBlocks").glob("*[!t].json")
    pid = subprocess.run(["pgrep", "-f", f"espo_luigi.job {order}"], capture_output=True, text=True, check=True).stdout
    os.kill(int(pid.split()[0]), signal.SIGKILL)
    eventually(lambda: jobs(cluster) == [])


def test_one_job_of_two_nodes_computes_on_both(
    tmp_path: Path, cluster: ThrowawayCluster, local: dict[str, str]
) -> None:
    ended(start(tmp_path, cluster, SPREAD))
    assert bytes_of(tmp_path) == local
    assert {place.split(".")[1] for place in makers(tmp_path).values()} == {"0", "1"}
    assert len({place.split(".")[0] for place in makers(tmp_path).values()}) == 1


# A module beside the program, in a folder that only the program's own Python looks in.
MODULE = """
import logging, os
def job(_): logging.getLogger("espo_luigi.mine").info("a message"); return os.environ["SLURM_JOB_ID"]
"""
PROGRAM = """
import sys
from espo_luigi.cluster import session
from mine import job
if __name__ == "__main__":
    options = {"memory": "600MB", "walltime": "10", "scheduler_memory": "600MB", "death_timeout": 15}
    with session(jobs=2, wait_for_workers="100%", scheduler_in_job=sys.argv[1] == "job", **options) as client:
        print(sorted(set(client.gather(client.map(job, range(20))))), flush=True)
        if sys.argv[1] == "wait": sys.stdin.read()
"""


def test_a_session_whose_scheduler_is_a_job_has_workers_and_leaves_nothing(
    tmp_path: Path, cluster: ThrowawayCluster
) -> None:
    (tmp_path / "mine.py").write_text(MODULE)
    program = [sys.executable, "-c", PROGRAM, "job"]
    done = subprocess.run(program, cwd=tmp_path, env=cluster.environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split(",")) == 2
    assert jobs(cluster) == []
    logs = [path.read_text() for path in (tmp_path / "slurm_logs" / "workers" / "session").glob("*.out")]
    assert sum("a message" in log for log in logs) >= 2
    assert list((tmp_path / "espo-work" / "scheduler" / "dask").iterdir()) == []


def listening_in(folder: Path, *but: str) -> list[Any]:
    """Where all that works in a folder listens, as drivers, jobs and their workers do; `but` programs of Slurm's."""
    here = []
    for process in psutil.process_iter(["cwd", "name"]):
        if process.info["cwd"] == str(folder) and process.info["name"] not in but:
            with suppress(psutil.NoSuchProcess):
                here += listening([process])
    return list(dict.fromkeys(here))


@as_root
@pytest.mark.parametrize(
    ("section", "cancelled"),
    [
        (f'{JOBQUEUE}worker_jobs = {{"jobs": 4, "memory": "600MB"}}', 5),
        pytest.param(SPREAD, 1, marks=pytest.mark.long),
    ],
)
def test_another_account_reaches_nothing_of_a_session_on_several_nodes_and_an_interrupt_cancels_its_workers(
    tmp_path: Path, cluster: ThrowawayCluster, section: str, cancelled: int
) -> None:
    process = start(tmp_path, cluster, f"{section}\nseconds = 300")
    eventually(lambda: len(makers(tmp_path)) >= 2)
    # srun listens for Slurm's own daemons, which speak by munge's credentials.
    addresses = listening_in(tmp_path, "srun")
    # A scheduler and its pages; of each of two workers a nanny, too.
    assert len(addresses) >= 6
    assert strangers_luck(addresses) == no_luck(len(addresses))
    eventually(lambda: len(jobs(cluster)) == cancelled)
    process.send_signal(signal.SIGINT)
    assert f"{cancelled} job(s) cancelled" in ended(process, -signal.SIGINT)
    eventually(lambda: jobs(cluster) == [])


@as_root
def test_another_account_reaches_nothing_of_a_session_without_a_task_which_leaves_no_job_when_it_is_killed(
    tmp_path: Path, cluster: ThrowawayCluster
) -> None:
    (tmp_path / "mine.py").write_text(MODULE)
    program = [sys.executable, "-c", PROGRAM, "wait"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(program, cwd=tmp_path, env=cluster.environ, **pipes) as notebook:
        # It has computed, and waits with its session for its standard input to close.
        assert notebook.stdout is not None and notebook.stdout.readline()
        addresses = listening_in(tmp_path)
        assert len(addresses) >= 6
        assert strangers_luck(addresses) == no_luck(len(addresses))
        notebook.kill()
    eventually(lambda: jobs(cluster) == [])
