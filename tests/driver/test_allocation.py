"""The driver inside an allocation of a real Slurm: its tasks are steps, and take no more than the allocation has."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from drivers import Driver
from throwaway_daemons import ended, eventually
from throwaway_slurm import ClusterSpec

from espo_luigi.files import read_json

pytestmark = pytest.mark.slurm
CLUSTER = ClusterSpec(nodes=2, cpus=8)


@pytest.fixture()
def driver(driver: Driver) -> Driver:
    configuration = driver.folder / "luigi.cfg"
    configuration.write_text(configuration.read_text().replace("engine = slurm", "engine = allocation"))
    return driver


def command(driver: Driver, task: str, *arguments: str) -> list[str]:
    luigi = str(Path(sys.executable).parent / "luigi")
    return [luigi, "--module", "toy_tasks", task, "--folder", str(driver.folder), *arguments, "--local-scheduler"]


def start(driver: Driver, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(words, cwd=driver.folder, env=driver.environ, stderr=subprocess.PIPE, text=True)


def allocated(driver: Driver, *options: str) -> str:
    """Make an idle allocation; return its id."""
    done = subprocess.run(
        ["salloc", "--no-shell", *options], env=driver.environ, capture_output=True, text=True, check=True
    )
    job_id = done.stderr.split("allocation")[1].split()[0]
    driver.environ = driver.environ | {"SLURM_JOB_ID": job_id}
    return job_id


def steps(driver: Driver) -> list[str]:
    return driver.cluster.run("squeue", "--steps", "--noheader", "--format=%i %j").splitlines()


def most_at_once(spans: list[tuple[float, float]]) -> int:
    return max(sum(began <= moment < ended for began, ended in spans) for moment, _ in spans)


def test_tasks_that_do_not_fit_all_at_once_run_as_steps_on_all_nodes_within_cpus_and_memory(driver: Driver) -> None:
    # Four CPUs a node, and memory for two tasks.
    sizes = ("--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=4", "--mem=650")
    ended(start(driver, "salloc", *sizes, *command(driver, "ManyNoted", "--n", "6")))
    noted = [path.read_text().split() for path in driver.folder.glob("count-*.txt")]
    assert len(noted) == 6
    assert {cpus for _, cpus, _, _ in noted} == {"1"}
    spans = {
        name: [(float(began), float(ended)) for node, _, began, ended in noted if node == name] for name in ("n1", "n2")
    }
    most = {name: most_at_once(of_node) for name, of_node in spans.items()}
    assert max(most.values()) == 2, "of each node, all of the memory and no more"
    assert most_at_once([span for of_node in spans.values() for span in of_node]) >= 3, "both nodes at once"
    assert not (driver.folder / "slurm_logs").exists(), "nothing was submitted"


def test_of_a_step_that_fails_or_takes_too_much_memory_the_cause_is_said_and_the_others_go_on(driver: Driver) -> None:
    allocated(driver, "--nodes=1", "--ntasks=1", "--cpus-per-task=4", "--mem=2000")
    errors = ended(start(driver, *command(driver, "Troubled")), 30)
    assert "ValueError: no luck" in errors
    assert "it had 400MB: raise [Hungry] memory" in errors
    assert "1 of 3 tasks done, 2 failed" in errors
    assert (driver.folder / "count-3.txt").exists()
    driver.cluster.run("scancel", driver.environ["SLURM_JOB_ID"])


def test_steps_end_with_a_driver_that_is_killed_or_interrupted_and_it_is_said_when_the_allocation_is_over(
    driver: Driver,
) -> None:
    job_id = allocated(driver, "--nodes=1", "--ntasks=1", "--cpus-per-task=2", "--mem=2000")
    slow = (*command(driver, "SlowOnes", "--n", "3"), "--SlowOnes-seconds", "60", "--Slow-memory", "300MB")
    for number, (signum, code) in enumerate({signal.SIGKILL: -9, signal.SIGINT: -2}.items()):
        process = start(driver, *slow)
        driver.wait_for_starts(2 * number + 2)
        process.send_signal(signum)
        errors = ended(process, code)
        eventually(lambda: not steps(driver), 20)
    assert "Stopped (SIGINT)" in errors and "Traceback" not in errors
    process = start(driver, *slow)
    driver.wait_for_starts(6)
    driver.cluster.run("scancel", job_id)
    errors = ended(process, 30)
    assert errors.count(f"allocation {job_id} is over (") >= 3
    assert "not started: allocation" in errors and "espo shell" in errors


def test_outside_of_an_allocation_nothing_is_started_and_it_is_said_what_to_do(driver: Driver) -> None:
    errors = ended(start(driver, *command(driver, "ManyNoted", "--n", "1")), 35)
    assert "engine = allocation" in errors
    assert "espo shell" in errors
    assert read_json(driver.folder / "work" / "scheduler" / "driver.lock") is None
