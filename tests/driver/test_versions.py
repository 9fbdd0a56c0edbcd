"""Several versions of this package share a folder, on a real Slurm."""

import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from drivers import Driver
from throwaway_daemons import ended, eventually
from throwaway_slurm import ClusterSpec, ThrowawayCluster

import espo_luigi
from espo_luigi.files import this_version
from espo_luigi.jobs.lifecycle.records import RecordStore
from espo_luigi.jobs.order import LAYOUT

pytestmark = pytest.mark.slurm
CLUSTER = ClusterSpec(nodes=2, cpus=16)
SLOW = ("SlowOnes", "--n", "3", "--seconds")


def installed(folder: Path, version: str, layout: int = LAYOUT) -> Path:
    """Install or upgrade this package in `folder`, with the given version and layout."""
    package = folder / "espo_luigi"
    shutil.copytree(Path(espo_luigi.__file__).parent, package, symlinks=False, dirs_exist_ok=True)
    source = package / "jobs" / "order.py"
    source.write_text(source.read_text().replace(f"\nLAYOUT = {LAYOUT}\n", f"\nLAYOUT = {layout}\n"))
    for old in folder.glob("*.dist-info"):
        shutil.rmtree(old)
    metadata = folder / f"espo_luigi-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: espo_luigi\nVersion: {version}\n")
    return folder


def use(driver: Driver, folder: Path) -> None:
    driver.environ = driver.environ | {"PYTHONPATH": f"{folder}:{driver.environ['PYTHONPATH']}"}


def espo(driver: Driver, *words: str) -> str:
    command = [sys.executable, "-m", "espo_luigi.commands.cli", *words]
    return subprocess.run(command, cwd=driver.folder, env=driver.environ, capture_output=True, text=True).stdout


def killed(driver: Driver, seconds: str) -> None:
    process = driver.start(*SLOW, seconds)
    driver.wait_for_starts(3)
    process.kill()
    process.communicate()


@contextmanager
def nodes_taken(cluster: ThrowawayCluster) -> Iterator[None]:
    """Occupy all nodes with a foreign job, so that further jobs pend."""
    options = ("--parsable", f"--nodes={cluster.spec.nodes}", "--exclusive", "--output=/dev/null")
    job_id = cluster.run("sbatch", *options, "--wrap", "sleep 600").strip()
    try:
        eventually(lambda: cluster.run("squeue", "--noheader", "--states=RUNNING", f"--jobs={job_id}"))
        yield
    finally:
        cluster.run("scancel", job_id)


def upgraded_while_jobs_pend(driver: Driver, folder: Path, layout: int) -> subprocess.Popen[str]:
    """Start a driver of version 1.0, upgrade that to 2.0 in place while its three jobs pend, and let them start."""
    use(driver, installed(folder, "1.0"))
    with nodes_taken(driver.cluster):
        process = driver.start(*SLOW, "1")
        eventually(lambda: len(driver.jobs()) == 4)
        installed(folder, "2.0", layout)
    return process


def test_jobs_that_start_after_an_upgrade_to_another_layout_say_so_and_do_nothing(
    driver: Driver, tmp_path_factory: pytest.TempPathFactory
) -> None:
    errors = ended(upgraded_while_jobs_pend(driver, tmp_path_factory.mktemp("environment"), LAYOUT + 1), 30)
    refusal = (
        f"was ordered by espo_luigi 1.0 (layout {LAYOUT}), and its job finds espo_luigi 2.0 (layout {LAYOUT + 1}), "
        "which cannot read the order: the environment was upgraded meanwhile. Nothing was done."
    )
    logs = [path.read_text() for path in driver.folder.glob("slurm_logs/Slow/*.out")]
    assert len(logs) == 3 and all(log.count(refusal) == 1 and "Traceback" not in log for log in logs)
    assert errors.count("ConfigurationChangedError: Slow ") >= 3
    assert refusal in errors and "0 of 3 tasks done, 3 failed" in errors and "Traceback" not in errors
    records = list(RecordStore(driver.folder / "work" / "scheduler").all())
    assert [(one.submission, one.attempt, one.learnt_memory_bytes) for one in records] == [(1, 1, 0)] * 3
    assert driver.starts() == Counter()

    refused = ended(driver.start(*SLOW, "1"), 35)
    assert "run with espo_luigi 1.0, or" in refused
    assert driver.starts() == Counter()


@pytest.mark.long
def test_jobs_that_start_after_an_upgrade_with_the_same_layout_run(
    driver: Driver, tmp_path_factory: pytest.TempPathFactory
) -> None:
    ended(upgraded_while_jobs_pend(driver, tmp_path_factory.mktemp("environment"), LAYOUT))
    assert driver.starts() == Counter({"0": 1, "1": 1, "2": 1})


def test_a_driver_of_another_layout_refuses_and_leaves_the_others_jobs_alone(
    driver: Driver, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = Driver(driver.folder, driver.cluster)
    use(other, installed(tmp_path_factory.mktemp("other"), "9.9", LAYOUT + 1))
    process = driver.start(*SLOW, "300")
    driver.wait_for_starts(3)
    beside = ended(other.start(*SLOW, "300"), 35)
    assert f"process {process.pid} on " in beside
    assert f"espo_luigi {this_version()}; this is 9.9" in beside
    process.send_signal(signal.SIGKILL)
    process.communicate()

    jobs = sorted(driver.jobs())
    refused = ended(other.start(*SLOW, "1"), 35)
    assert (
        f"written by espo_luigi {this_version()} (layout {LAYOUT}), and espo_luigi 9.9 (layout {LAYOUT + 1})" in refused
    )
    assert "Traceback" not in refused and "cancelled" not in espo(other, "cancel")
    assert sorted(driver.jobs()) == jobs and driver.starts() == Counter({"0": 1, "1": 1, "2": 1})
    assert "3 job(s) cancelled" in espo(driver, "cancel")
    eventually(lambda: not driver.jobs())


def test_a_driver_of_another_version_with_the_same_layout_takes_over(
    driver: Driver, tmp_path_factory: pytest.TempPathFactory
) -> None:
    killed(driver, "6")
    use(driver, installed(tmp_path_factory.mktemp("other"), "9.9"))
    ended(driver.start(*SLOW, "6"))
    assert driver.starts() == Counter({"0": 1, "1": 1, "2": 1})
