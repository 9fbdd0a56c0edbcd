"""Luigi tasks as jobs of a real Slurm: the command that users give, its signals, its death and its second coming."""

import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from drivers import Driver, Luigid
from throwaway_daemons import ended, eventually
from throwaway_slurm import ClusterSpec, ThrowawayCluster

from espo_luigi.jobs.lifecycle.records import RecordStore

pytestmark = pytest.mark.slurm
CLUSTER = ClusterSpec(nodes=2, cpus=16)


def test_a_failure_is_told_with_its_cause_attempts_and_log_and_the_exit_code(driver: Driver) -> None:
    errors = ended(driver.start("Failures", "--n", "1"), 30)
    assert "attempt 1: exception: ValueError: no such luck" in errors
    assert "attempt 1: exception: SystemExit: no data in 1991-2020" in errors
    assert "0 of 2 tasks done, 2 failed" in errors and "attempt 2" not in errors
    logs = {Path(rest.split()[0]) for rest in errors.split("log: ")[1:]}
    assert sorted("no such luck" in log.read_text() for log in logs) == [False, True]


def test_a_job_whose_input_went_is_tried_again_once_its_input_is_there_again(driver: Driver) -> None:
    errors = ended(driver.start("Bereft", "--n", "10"))
    assert "attempt 1: input gone or replaced: InputChangedError: the input is gone" in errors
    assert (driver.folder / "bereft-10.txt").read_text() == "45"
    records = {record.rule: record for record in RecordStore(driver.folder / "work" / "scheduler").all()}
    assert {rule: record.submission for rule, record in records.items()} == {"Count": 2, "Bereft": 2}


def test_a_driver_killed_again_and_again_starts_each_task_once(driver: Driver) -> None:
    for seconds in (0.0, 0.5, 1.5):
        process = driver.start("SlowOnesAndGated", "--n", "6", "--seconds", "4")
        # Before it has its lock, a driver does nothing that its death could harm.
        driver.wait_for_lock(process.pid)
        time.sleep(seconds)
        process.kill()
        process.communicate()
    (driver.folder / "go").touch()
    ended(driver.start("SlowOnesAndGated", "--n", "6", "--seconds", "4"))
    assert driver.starts() == Counter({str(n): 1 for n in range(7)})
    assert len(list(driver.folder.glob("slow-*.txt"))) == 6


def test_an_interrupt_cancels_this_runs_jobs_and_says_how_many(driver: Driver) -> None:
    options = ("--parsable", "--job-name=foreign", "--output=/dev/null")
    foreign = driver.cluster.run("sbatch", *options, "--wrap", "sleep 300").strip()
    try:
        process = driver.start("SlowOnes", "--n", "3", "--seconds", "300")
        driver.wait_for_starts(3)
        process.send_signal(signal.SIGINT)
        errors = ended(process, -signal.SIGINT)
        assert "3 job(s) cancelled" in errors
        assert "Traceback" not in errors
        eventually(lambda: driver.jobs() == ["foreign"], 20)
    finally:
        driver.cluster.run("scancel", foreign)


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGHUP, 129), (signal.SIGTERM, 143)])
def test_a_driver_that_hangs_up_or_is_terminated_leaves_its_jobs_and_the_next_takes_them_over(
    driver: Driver, signum: signal.Signals, code: int
) -> None:
    process = driver.start("SlowOnes", "--n", "3", "--seconds", "12")
    driver.wait_for_starts(3)
    process.send_signal(signum)
    errors = ended(process, code)
    assert "Detached: the jobs go on" in errors
    assert "cancelled" not in errors
    assert "Traceback" not in errors
    ended(driver.start("SlowOnes", "--n", "3", "--seconds", "12"))
    assert driver.starts() == Counter({"0": 1, "1": 1, "2": 1})


def test_a_second_driver_on_the_same_folder_is_refused_with_the_first_ones_pid(driver: Driver) -> None:
    first = driver.start("SlowOnes", "--n", "1", "--seconds", "120")
    driver.wait_for_starts(1)
    second = driver.start("SlowOnes", "--n", "1", "--seconds", "120")
    _, errors = second.communicate(timeout=180)
    assert second.returncode != 0
    assert f"process {first.pid} on" in errors
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=180)
    assert driver.starts() == Counter({"0": 1})


def test_hostile_text_in_a_parameter_stays_text(driver: Driver) -> None:
    value = 'a b it\'s "quoted" $(touch owned) `touch owned` été; touch owned\ntouch owned'
    ended(driver.start("Echo", "--text", value))
    assert (driver.folder / "echo.txt").read_text() == value
    assert not (driver.folder / "owned").exists()


def test_of_a_job_that_was_requeued_while_its_first_process_works_on_one_publishes(
    driver: Driver, cluster: ThrowawayCluster
) -> None:
    process = driver.start("Published", "--n", "1")
    driver.wait_for_starts(1)
    job_id, node = cluster.run("squeue", "--noheader", "--states=RUNNING", "--format=%i %N").split()
    # The node does not answer any more; what runs on it, runs on.
    os.kill(cluster.pids[node], signal.SIGSTOP)
    try:
        cluster.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=frozen")
        eventually(lambda: bool(cluster.run("squeue", "--noheader", "--states=PENDING", "--format=%i")))
        cluster.start_at_once(job_id, lambda: driver.starts().total() > 1)
        (driver.folder / "go").touch()
        _, errors = process.communicate(timeout=180)
        (log,) = (driver.folder / "slurm_logs" / "Published").iterdir()
        eventually(lambda: "does not own its work any more" in log.read_text())
    finally:
        os.kill(cluster.pids[node], signal.SIGCONT)
        cluster.run("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)
    assert process.returncode == 0, errors
    assert driver.starts() == Counter({"0": 1, "1": 1})
    assert (driver.folder / "published").read_text() == "1\n"
    assert (driver.folder / "gated-1.txt").read_text() == "1"
    assert driver.record().attempt == 1


def test_a_task_that_needs_more_memory_than_asked_gets_half_as_much_again_until_it_succeeds(driver: Driver) -> None:
    ended(driver.start("Hungry", "--n", "1", "--memory", "400MB"))
    record = driver.record()
    assert [past["ended"] for past in record.history] == ["memory"] * 2
    assert (record.attempt, record.memory_bytes) == (3, 900 * 2**20)
    assert (driver.folder / "count-1.txt").read_text() == str(600 * 2**20)


def test_a_task_that_hangs_is_cancelled_with_its_stack_in_the_log_and_succeeds_at_its_second_attempt(
    driver: Driver,
) -> None:
    # Longer than a job takes to start on a busy machine: until then there is no heartbeat either.
    ended(driver.start("Hang", "--n", "1", "--slurm-stall-timeout", "10"))
    assert (driver.folder / "count-1.txt").read_text() == "2"
    (past,) = driver.record().history
    assert past["ended"] == "stalled"
    (log,) = (driver.folder / "slurm_logs" / "Hang").glob(f"*-{past['job_id']}.out")
    assert "in _hang" in log.read_text(), "the stack of the hanging function"


def test_a_graph_of_tasks_runs_as_jobs_with_luigid_as_scheduler(driver: Driver) -> None:
    (driver.folder / "luigid").mkdir()
    luigid = Luigid(driver.folder / "luigid")
    luigid.start()
    try:
        process = driver.start("Sum", "--n", "10", luigid=luigid)
        _, errors = process.communicate(timeout=120)
    finally:
        luigid.stop(signal.SIGKILL)
    assert process.returncode == 0, errors
    assert (driver.folder / "sum-10.txt").read_text() == str(sum(range(10)) + sum(range(11)))
    assert len(list(driver.folder.glob("slurm_logs/*/*.out"))) == 3


def test_nothing_is_submitted_of_a_graph_in_which_one_task_is_refused(
    driver: Driver, cluster: ThrowawayCluster
) -> None:
    before = cluster.run("squeue", "--noheader", "--states=all", "--format=%i")
    (driver.folder / "site.yml").write_text("limits: {memory: 500M}\n")
    process = driver.start(
        "Sum", "--n", "10", "--slurm-profile", "site.yml", "--Sum-memory", "300MB", "--Sum-time", "1"
    )
    errors = ended(process, 35)
    assert "memory = 1GB is more than the 500MB that [slurm] profile = site.yml allows" in errors
    assert cluster.run("squeue", "--noheader", "--states=all", "--format=%i") == before
    assert list(RecordStore(driver.folder / "work" / "scheduler").all()) == []
