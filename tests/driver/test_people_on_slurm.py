"""People and a real Slurm: Ctrl-C twice, a login node that goes down, an edited file, drained nodes."""

import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import toy_tasks
from drivers import Driver
from luigi.configuration import get_config
from throwaway_daemons import ended, eventually
from throwaway_slurm import ClusterSpec

from espo_luigi.overview import states, why

pytestmark = pytest.mark.slurm
CLUSTER = ClusterSpec(nodes=2, cpus=16)
SLOW = ("SlowOnes", "--n", "3", "--seconds")


def wrap_scancel(driver: Driver, script: str) -> None:
    """Have scancel do what `script` says, where ``$real`` is Slurm's own."""
    programs = driver.folder / "bin"
    programs.mkdir()
    real = shutil.which("scancel", path=driver.environ["PATH"])
    (programs / "scancel").write_text(f"#!/bin/bash\nreal={real}\n{script}\n")
    (programs / "scancel").chmod(0o755)
    driver.environ = driver.environ | {"PATH": f"{programs}:{driver.environ['PATH']}"}


def configure(driver: Driver, section: str, line: str) -> None:
    path = driver.folder / "luigi.cfg"
    text = path.read_text()
    path.write_text(
        text.replace(f"{section}\n", f"{section}\n{line}\n") if section in text else f"{text}{section}\n{line}\n"
    )


def no_jobs_of(driver: Driver) -> bool:
    return not driver.jobs()


def test_an_interrupt_cancels_this_runs_jobs_and_a_second_ctrl_c_does_not_interrupt_that(driver: Driver) -> None:
    options = ("--parsable", "--job-name=foreign", "--output=/dev/null")
    foreign = driver.cluster.run("sbatch", *options, "--wrap", "sleep 300").strip()
    wrap_scancel(driver, 'touch cancelling; sleep 3; exec $real "$@"')
    process = driver.start(*SLOW, "300")
    driver.wait_for_starts(3)
    process.send_signal(signal.SIGINT)
    eventually((driver.folder / "cancelling").exists)
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        process.send_signal(signum)
        time.sleep(0.3)
    errors = ended(process, -signal.SIGINT)
    assert "3 job(s) cancelled" in errors
    assert "SIGINT: this run is stopping already" in errors
    assert "Traceback" not in errors
    eventually(lambda: driver.jobs() == ["foreign"])
    driver.cluster.run("scancel", foreign)


def test_a_driver_inside_a_job_leaves_its_jobs_whatever_luigi_cfg_says(driver: Driver) -> None:
    configure(driver, "[slurm]", "on_sigterm = cancel")
    luigi = Path(sys.executable).parent / "luigi"
    command = [str(luigi), "--module", "toy_tasks", *SLOW, "20", "--folder", str(driver.folder), "--local-scheduler"]
    script = driver.folder / "driver.sh"
    python_path = shlex.quote(driver.environ["PYTHONPATH"])
    script.write_text(f"#!/bin/bash\ncd {driver.folder}\nexport PYTHONPATH={python_path}\nexec {shlex.join(command)}\n")
    options = ("--parsable", "--job-name=driver", f"--output={driver.folder}/driver.out")
    job_id = driver.cluster.run("sbatch", *options, str(script)).strip()
    driver.wait_for_starts(3)
    # As at the end of its time: SIGTERM to all of the job's processes, and SIGKILL after KillWait.
    driver.cluster.run("scancel", job_id)
    eventually(lambda: "Detached: the jobs go on" in (driver.folder / "driver.out").read_text())
    eventually(lambda: len(driver.jobs()) == 3)
    ended(driver.start(*SLOW, "10"))
    assert driver.starts() == Counter({"0": 1, "1": 1, "2": 1})


def test_a_job_that_begins_after_an_edit_refuses_and_the_next_driver_orders_it_anew(driver: Driver) -> None:
    (driver.folder / "configuration").write_text("A")
    process = driver.start("Configured", "--n", "1", "--Configured-extra", '{"hold": ""}', "--slurm-retries", "0")
    eventually(lambda: bool(driver.jobs()))
    eventually(lambda: driver.record().job_id is not None)
    process.send_signal(signal.SIGHUP)
    errors = ended(process, 129)
    assert "Detached: the jobs go on" in errors and "Traceback" not in errors
    (driver.folder / "configuration").write_text("B")
    driver.cluster.run("scontrol", "release", str(driver.record().job_id))
    result = driver.folder / "work" / "jobs" / "Configured"
    eventually(lambda: bool(list(result.glob("*.result.json"))))
    errors = ended(driver.start("Configured", "--n", "1", "--slurm-retries", "0"))
    assert "another configuration (A, now B)" in errors
    assert "[core] workers = 50 is below [slurm] max_jobs" in errors
    assert (driver.folder / "count-1.txt").read_text() == "B"
    record = driver.record()
    assert [past["ended"] for past in record.history] == ["configuration"]
    assert (record.submission, record.attempt) == (2, 1)
    assert driver.starts() == Counter({"1": 1})


def test_files_of_a_run_are_the_users_own_and_a_termination_cancels_where_that_is_wanted(driver: Driver) -> None:
    configure(driver, "[smtp]", "password = hunter2")
    process = driver.start(*SLOW, "300", "--slurm-on-sigterm", "cancel")
    driver.wait_for_starts(3)
    files = [path for path in (driver.folder / "work").rglob("*") if path.is_file()]
    assert len([path for path in files if path.suffix in (".json", ".sh")]) >= 9
    assert not [path for path in files if "hunter2" in path.read_text(errors="replace")]
    others = [path for path in files if path.stat().st_mode & 0o077]
    # Claims are written by the job's script, and hold its id; locks are for all to read.
    assert {path.parent.name if path.parent.name == "claims" else path.name for path in others} <= {
        "claims",
        "driver.lock",
        ".driver.lock.guard",
    }
    process.terminate()
    _, errors = process.communicate(timeout=180)
    assert (process.returncode, "3 job(s) cancelled" in errors) == (143, True), errors
    eventually(lambda: no_jobs_of(driver))


def test_why_a_job_pends_is_told_with_slurms_reason_and_the_expected_start(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in driver.environ.items():
        monkeypatch.setenv(name, value)
    configuration = get_config()
    configuration.set("espo", "workdir", str(driver.folder / "work"))
    process = driver.start("Configured", "--n", "1", "--Configured-extra", '{"begin": "now+1hour"}')
    try:
        pending = "  1 job(s), BeginTime: it waits for its time to begin"
        eventually(lambda: any(line.startswith(pending) for line in states.render(states.read())))
        configuration.set("espo", "engine", "slurm")
        said = why.about(toy_tasks.Configured(n=1, folder=str(driver.folder)))
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=180)
    words = rf"Configured .*: job {driver.record().job_id} pends: it waits for its time .* \(BeginTime\)\. "
    assert re.fullmatch(rf"{words}It is expected to start at \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d UTC\.", said), said


def test_nodes_that_slurm_drained_are_named_with_the_administrators_command(driver: Driver) -> None:
    nodes = driver.cluster.spec.node_names
    resume = f"scontrol update nodename={','.join(nodes)} state=resume"
    update = ("scontrol", "update", f"NodeName={','.join(nodes)}")
    driver.cluster.run(*update, "State=DRAIN", "Reason=Duplicate jobid")
    try:
        process = driver.start(*SLOW, "1")
        run_json = driver.folder / "work" / "run.json"
        eventually(lambda: resume in (run_json.read_text() if run_json.exists() else ""), 60)
        command = [sys.executable, "-m", "espo_luigi.commands.cli", "status"]
        said = subprocess.run(command, cwd=driver.folder, env=driver.environ, capture_output=True, text=True).stdout
        assert f"Slurm drained {', '.join(nodes)} (Duplicate jobid: " in said
        assert resume in said
    finally:
        driver.cluster.run(*shlex.split(resume))
    errors = ended(process)
    assert "3 job(s) pend; Slurm drained" in errors and errors.count(resume) == 1
