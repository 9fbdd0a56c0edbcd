"""Luigi tasks as jobs of a real Slurm: the command that users give, its signals, its death and its second coming."""

import os
import signal
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
    assert "attempt 1: exception: ValueError" in errors
    assert "SystemExit: no data in 1991-2020" in errors
    assert "0 of 2 tasks done, 2 failed" in errors and "attempt 2" not in errors
    logs = {Path(rest.split()[0]) for rest in errors.split("log: ")[1:]}
    assert sorted("no such luck" in log.read_text() for log in logs) == [False, True]


def test_a_job_whose_input_went_is_tried_again_once_its_input_is_there_again(driver: Driver) -> None:
    errors = ended(driver.start("Bereft", "--n", "10"))
    assert "InputChangedError: the input is gone" in errors
    assert (driver.folder / "bereft-10.txt").read_text() == "45"
    records = {record.rule: record for record in RecordStore(driver.folder / "work" / "scheduler").all()}
    assert {rule: record.submission for rule, record in records.items()} == {"Count": 2, "Bereft": 2}


def test_a_driver_that_is_terminated_leaves_its_jobs_and_the_next_takes_them_over(driver: Driver) -> None:
    process = driver.start("SlowOnes", "--n", "3", "--seconds", "12")
    driver.wait_for_starts(3)
    process.terminate()
    errors = ended(process, 143)
    assert "Detached: the jobs go on" in errors
    assert "cancelled" not in errors
    assert "Traceback" not in errors
    ended(driver.start("SlowOnes", "--n", "3", "--seconds", "12"))
    assert driver.starts() == Counter({"0": 1, "1": 1, "2": 1})


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


def test_jobs_are_submitted_as_a_profile_says_that_extends_a_packaged_one(
    driver: Driver, cluster: ThrowawayCluster
) -> None:
    (driver.folder / "site.yml").write_text(
        "extends: workstation\npartition: urgent\nenvironment: {SITE: of the profile}\nlog_dir: logs of the site\n"
        "limits: {memory: 1G, cpus: 1, time: 10, jobs: 50}\nneeds: {account: any}\n"
    )
    ended(driver.start("Count", "--n", "10", "--slurm-profile", "site.yml", "--slurm-account", "any"))
    job = cluster.run("scontrol", "show", "job", driver.record().job_id)
    assert "Partition=urgent" in job
    assert "TimeLimit=00:10:00" in job
    script = cluster.run("scontrol", "write", "batch_script", driver.record().job_id, "-")
    assert "export SITE='of the profile'\n" in script
    assert len(list(driver.folder.glob("logs of the site/Count/*.out"))) == 1
    assert (driver.folder / "count-10.txt").read_text() == "45"


def test_nothing_is_submitted_of_a_graph_in_which_one_task_is_refused(
    driver: Driver, cluster: ThrowawayCluster
) -> None:
    before = cluster.run("squeue", "--noheader", "--states=all", "--format=%i")
    (driver.folder / "site.yml").write_text("limits: {memory: 500M}\n")
    process = driver.start(
        "Sum", "--n", "10", "--slurm-profile", "site.yml", "--Sum-memory", "300MB", "--Sum-time", "1"
    )
    errors = ended(process, 35)
    assert "memory = 1GB is more than the 500MB" in errors
    assert cluster.run("squeue", "--noheader", "--states=all", "--format=%i") == before
    assert list(RecordStore(driver.folder / "work" / "scheduler").all()) == []
