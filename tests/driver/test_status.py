"""How a run stands, read from its files, and shown by its driver."""

import configparser
import functools
import json
import os
import re
import threading
import time
from dataclasses import replace
from pathlib import Path

import luigi
import pytest
import toy_tasks
from json_shapes import check_shape
from throwaway_daemons import eventually
from toy_tasks import run

from espo_luigi import SlurmTask
from espo_luigi.commands import cli
from espo_luigi.driver import worker
from espo_luigi.driver.board import BegunTask, Board, reported
from espo_luigi.driver.screen import status_lines
from espo_luigi.driver.status import cpu_time, seconds_left
from espo_luigi.errors import Failure
from espo_luigi.jobs.order import JobState, Progress, write_json
from espo_luigi.jobs.schedulers.base import Phase, Usage
from espo_luigi.jobs.schedulers.slurm_parse import in_words
from espo_luigi.overview import states as report
from espo_luigi.overview.states import trace_of, traces_like
from espo_luigi.overview.why import about

pytestmark = pytest.mark.usefixtures("one_fork_server")


class Both(luigi.WrapperTask):
    """A task that a signal kills, and a task that succeeds."""

    folder = luigi.Parameter()

    def requires(self) -> list[SlurmTask]:
        return [toy_tasks.Die(n=1, folder=self.folder), toy_tasks.Echo(n=2, text="well", folder=self.folder)]


def test_what_was_killed_is_told_by_status_and_by_why_with_its_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(Both(folder=str(tmp_path)))
    killed = toy_tasks.Die(n=1, folder=str(tmp_path))

    found = report.read()
    rules = found["run"]["rules"]
    assert not found["alive"] and found["run"]["ended"] and found["run"]["jobs"] == {}
    assert {name: (rule["total"], rule["done"], rule["failed"]) for name, rule in rules.items()} == {
        "Die": (1, 0, 1),
        "Echo": (1, 1, 0),
    }
    assert cli.main(["status"]) == 0
    said = capsys.readouterr().out
    assert "1 of 2 done, 1 FAILED" in said and "no driver: the last run ended" in said
    assert f"{killed.label()} failed: the job ended without a result: killed, or out of memory" in said

    told = about(killed)
    (log,) = trace_of("Die", killed.wildcards).logs()
    assert f"The end of its log, {log}:\n" in told and "Die n=1" in told.partition("The end of its log")[2]
    assert "Raise the rule's `memory`" in told
    assert about(toy_tasks.Echo(n=2, text="well", folder=str(tmp_path))).endswith("is done.")
    assert cli.main(["logs", "Die", "n=1"]) == 0
    assert log.read_text() in capsys.readouterr().out
    assert cli.main(["logs", "Dye"]) == 1
    assert "rules with jobs: Die, Echo" in capsys.readouterr().err


def test_a_run_that_goes_on_is_told_with_its_jobs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("espo_luigi.driver.board.reported", functools.partial(reported, every_seconds=0.1))
    task = toy_tasks.Gated(n=1, folder=str(tmp_path), seconds=0.0)
    going = threading.Thread(target=run, args=[task])
    going.start()
    try:
        eventually(lambda: trace_of("Gated", task.wildcards).is_alive)
        eventually(lambda: report.read()["alive"])
        eventually(lambda: "longest at work:" in report.render(report.read()))
        assert cli.main(["status", "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        check_shape("status", told)
        (job,) = told["run"]["jobs"].values()
        assert (job["label"], job["column"], told["left"]) == (task.label(), "running", {})
        eventually(lambda: any(": Gated 1 " in line and "GiB" in line for line in report.render(report.read())))
        assert about(task).startswith(f"{task.label()} is at work: process ")
    finally:
        (tmp_path / "go").touch()
        going.join()
    assert not report.read()["alive"]


def test_who_has_no_configuration_here_is_told_so(own_workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "get_config", configparser.ConfigParser)
    begun, lacking = report.render(report.read())
    assert begun.endswith("no run has begun here")
    assert lacking == "Go to the folder that has your luigi.cfg, or let `espo init` write a folder to start from."


def test_a_driver_that_died_is_told_and_what_words_mean_several_jobs_is_asked_back(
    tmp_path: Path, own_workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report.render(report.read()) == [f"{own_workdir}: no run has begun here"]
    run(*(toy_tasks.Echo(n=n, text="same", folder=str(tmp_path)) for n in (1, 22)))
    state = json.loads((own_workdir / "run.json").read_text())
    (own_workdir / "run.json").write_text(json.dumps({**state, "ended": False}))
    os.utime(own_workdir / "run.json", (time.time() - 300,) * 2)
    assert report.render(report.read())[0].endswith("was heard last 5 min ago")
    assert [one.label for one in traces_like(["Echo", "n=22"])] == [
        toy_tasks.Echo(n=22, text="same", folder=str(tmp_path)).label()
    ]
    assert cli.main(["logs", "Echo", "same"]) == 1
    assert "2 jobs are Echo same; say more of one" in capsys.readouterr().err


@pytest.mark.parametrize("ahead", [240.0, -240.0])
def test_the_clock_of_the_drivers_host_decides_neither_whether_it_is_at_work_nor_since_when(
    ahead: float, tmp_path: Path, own_workdir: Path
) -> None:
    run(toy_tasks.Echo(n=1, text="same", folder=str(tmp_path)))
    run_json, now = own_workdir / "run.json", time.time()
    state = json.loads(run_json.read_text()) | {"ended": False, "started": now + ahead - 660, "updated": now + ahead}
    run_json.write_text(json.dumps(state))
    assert re.fullmatch(r"driver: process \d+ on \S+, since 11 min", report.render(report.read())[0])
    os.utime(run_json, (now - 300,) * 2)
    assert report.render(report.read())[0].endswith("was heard last 5 min ago")
    run_json.write_text(json.dumps(state | {"ended": True, "outcome": "done"}))
    os.utime(run_json, (now - 300,) * 2)
    assert report.render(report.read())[0] == "no driver: the last run ended 5 min ago: done"


def test_the_energy_that_a_scheduler_has_measured_is_told_and_the_rest_is_an_estimate(
    tmp_path: Path, own_workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = time.time() + 60
    # 3.6 MJ of 1.5 hours of CPU time; the second job was not measured, and the third is of an earlier run.
    account = Usage(
        "1", "r.Echo.1", Phase.COMPLETED, started=began, ended=began + 2700, cpu_seconds=5400, energy_joules=3.6e6
    )
    said = [account, replace(account, energy_joules=0.0), replace(account, started=began - 9e3)]
    monkeypatch.setattr(worker, "SCHEDULERS", {"local": None})
    monkeypatch.setattr(worker, "read_accounts", lambda engine, known: said)
    run(toy_tasks.Echo(n=1, text="same", folder=str(tmp_path)))
    run_json = own_workdir / "run.json"
    state = json.loads(run_json.read_text())
    assert state["measured"] == {"joules": 3.6e6, "core_hours": 1.5}
    state["rules"]["Echo"]["cpu_seconds"] = 101.5 * 3600
    run_json.write_text(json.dumps(state))
    words = "about 2.2 kWh (1 kWh measured by the scheduler, the rest an estimate: 12 W a CPU)"
    assert report.render(report.read())[1] == f"energy: {words}"
    run_json.write_text(json.dumps({name: value for name, value in state.items() if name != "measured"}))
    assert report.render(report.read())[1] == "energy: about 1.2 kWh (estimate: 12 W a CPU)"


@pytest.mark.parametrize("ahead", [240.0, -240.0])
def test_how_long_a_job_is_at_work_is_said_by_the_clock_of_its_node(
    ahead: float, tmp_path: Path, own_workdir: Path
) -> None:
    task, now = toy_tasks.Echo(n=1, text="same", folder=str(tmp_path)), time.time()
    files = task.order().files
    task.order().write()
    write_json(files.heartbeat, {"started": now + ahead - 660, "time": now + ahead, "pid": 7, "node": "n1"})
    assert f"{task.label()} is at work: process 7 on n1 for 11 min" in about(task)
    # The driver took the job over two minutes ago; its clock is right.
    job = BegunTask(task.task_id, task.label(), "Echo", now - 120, 1, 2**30, str(files.heartbeat))
    board = Board()
    board.expect("All", "slurm", [(task.task_id, "Echo")])
    board.begin(job)
    board.tell(task.task_id, Progress("RUNNING on n1", state=JobState.RUNNING))
    assert any(line.startswith("  11 min, RUNNING on n1") for line in status_lines(board.snapshot(), now))


def board_of_a_cluster() -> Board:
    board = Board()
    board.expect("All", "slurm", [(str(number), "Train") for number in range(10)])
    for number, progress in enumerate(
        [
            Progress("PENDING (Priority), job 1, attempt 1\n", state=JobState.QUEUED, reason="Priority"),
            Progress("PENDING (QOS…), job 2, attempt 1\n", state=JobState.QUEUED, reason="QOSMaxCpuPerUserLimit"),
            Progress("planned, job -", state=JobState.READY),
        ]
    ):
        board.begin(BegunTask(str(number), f"Train n={number}", "Train", time.time() - 600, 4, 2**30, "nowhere"))
        board.tell(str(number), progress)
    return board


def test_jobs_of_a_cluster_are_told_apart_and_their_reasons_are_in_plain_words() -> None:
    lines = status_lines(board_of_a_cluster().snapshot())
    assert lines[0] == "0 of 10 done, 2 pending, 1 waiting, 0 s of CPU time of 0 s reserved: All"
    assert "  1 job(s), Priority: other people's jobs go first" in lines
    assert any("QOSMaxCpuPerUserLimit: your QOS may not have more at once" in line for line in lines)
    assert not any("longest at work" in line for line in lines)
    assert in_words("SomethingNew") == "Slurm says SomethingNew"


def test_the_time_left_is_that_of_the_pace_so_far() -> None:
    board = Board()
    board.expect("All", "local", [(str(number), "Train") for number in range(10)])
    for number in range(4):
        board.begin(BegunTask(str(number), "", "Train", 0.0, 2, 1, ""))
        board.end(str(number), None if number else Failure("Train", "no luck"), 100.0)
    state = board.snapshot()
    # 400 job-seconds in 100 s: four at once. Six are left, of 400 / 3 s each.
    assert seconds_left(state, state["started"] + 100) == pytest.approx(6 * 400 / 3 / 4)
    assert state["rules"]["Train"]["core_hours"] == pytest.approx(800 / 3600)
    board.begin(BegunTask("0", "", "Train", 0.0, 2, 1, ""))
    assert board.snapshot()["rules"]["Train"]["failed"] == 0


def test_a_task_that_was_added_during_the_run_may_fail_and_begin_again() -> None:
    board = Board()
    board.expect("All", "local", [("0", "Train")])
    for rule in ("Train", "Extract"):
        board.end("lost", Failure(rule, "no luck"))
        board.begin(BegunTask("lost", "", rule, 0.0, 2, 1, ""))
    state = board.snapshot()
    assert state["rules"]["Train"]["failed"] == 0 and not state["failures"]


@pytest.mark.parametrize(
    ("core_hours", "said"),
    [(0.0, "0 s"), (0.000103, "0.4 s"), (0.01, "36 s"), (0.2, "12 min"), (3.33, "3 h 20 min"), (1234.4, "1,234 h")],
)
def test_cpu_time_is_in_seconds_minutes_and_hours(core_hours: float, said: str) -> None:
    assert cpu_time(core_hours) == said


def test_the_summary_and_the_table_of_rules_have_the_same_cpu_time() -> None:
    board = Board()
    board.expect("All", "local", [("0", "Train")])
    board.begin(BegunTask("0", "", "Train", 0.0, 2, 1, ""))
    board.end("0", None, 0.5, 0.37)
    lines = status_lines(board.snapshot())
    assert lines[0] == "1 of 1 done, 0.4 s of CPU time of 1 s reserved: All"
    assert lines[2].endswith("CPU time") and lines[3].endswith(" 0.4 s")


def test_a_job_that_fails_counts_what_it_reserved_and_so_does_a_run_of_an_earlier_version() -> None:
    board = Board()
    board.expect("All", "local", [("0", "Train")])
    board.begin(BegunTask("0", "", "Train", 0.0, 2, 1, ""))
    board.end("0", Failure("0", "lost"), 1800.0)
    state = board.snapshot()
    assert (state["rules"]["Train"]["core_hours"], state["rules"]["Train"]["cpu_seconds"]) == (1.0, 3600.0)
    del state["rules"]["Train"]["cpu_seconds"]
    assert "60 min of CPU time of 60 min reserved" in status_lines(state)[0]
