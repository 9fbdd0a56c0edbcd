"""A job takes its values from its order or from Slurm, and does nothing twice."""

import argparse
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from espo_luigi import job
from espo_luigi.driver.task import SlurmTask
from espo_luigi.errors import InputChangedError, SizingError, StoreError
from espo_luigi.jobs.causes import Cause
from espo_luigi.jobs.lifecycle.policy import cause_of
from espo_luigi.jobs.node import run as node
from espo_luigi.jobs.order import LAYOUT, JobFiles, JobOrder, result_cause
from espo_luigi.jobs.resources import GIB, Resources, headroom
from espo_luigi.jobs.schedulers import slurm


@pytest.fixture(autouse=True)
def large_node_outside_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_CPUS_PER_TASK", "SLURM_MEM_PER_NODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(node, "machine_memory", lambda: 256 * GIB)


def in_slurm(monkeypatch: pytest.MonkeyPatch, *, cpus: int = 8, memory_gib: int = 60) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", str(cpus))
    monkeypatch.setenv("SLURM_MEM_PER_NODE", str(memory_gib * 1024))


ASKED = Resources(4, 8, "60GB", "2:00:00")


def test_a_retrys_larger_memory_reaches_the_dask_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    in_slurm(monkeypatch, memory_gib=90)
    allocated = node.allocated(ASKED, "Extract")
    assert allocated.memory_bytes == 90 * GIB
    assert allocated.worker_memory_bytes == (90 * GIB - headroom(90 * GIB)) // 4
    assert (allocated.n_workers, allocated.cpus_per_task, allocated.time) == (4, 8, "2:00:00")


def test_fewer_cpus_than_asked_for_are_an_error_with_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    in_slurm(monkeypatch, cpus=2)
    with pytest.raises(SizingError, match="2 CPUs of the 8"):
        node.allocated(ASKED, "Extract")


def test_a_node_with_less_memory_than_slurm_says_is_believed_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    in_slurm(monkeypatch, memory_gib=60)
    monkeypatch.setattr(node, "machine_memory", lambda: 40 * GIB)
    with caplog.at_level(logging.WARNING):
        assert node.allocated(ASKED, "Extract").memory_bytes == 40 * GIB
    assert "40.0 GiB of the 60.0" in caplog.text


class Runs:
    """Stands for the work of a job; keeps what Slurm's variables said when it was to start."""

    def __init__(self) -> None:
        self.given: list[dict[str, int]] = []

    def __call__(self, order: JobOrder, work: object) -> dict[str, Any]:
        assert not order.files.result.exists()
        self.given.append(slurm.given(os.environ))
        return {"outcome": "success", "job_id": "new"}


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    runs = Runs()
    monkeypatch.setattr(node, "_set_up_process", lambda: None)
    monkeypatch.setattr(node, "_run", runs)
    return runs


def write_order(folder: Path, **more: Any) -> tuple[Path, Path]:
    order = an_order(folder)
    order.write(**more)
    return order.files.order, order.files.result


def an_order(folder: Path, family: str = "Rule") -> JobOrder:
    files = JobFiles(*(folder / name for name in ("order.json", "result.json", "beat", "log")))
    return JobOrder("id", "Rule", "module", family, {}, {}, Resources(), files)


def test_a_job_of_the_local_engine_does_not_take_slurms_variables_for_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, runs: Runs
) -> None:
    in_slurm(monkeypatch, cpus=1, memory_gib=1)
    order, result = write_order(tmp_path, parent=1)
    assert job.main([str(order)]) == 0
    assert runs.given == [{}]
    assert node.allocated(ASKED, "Extract").memory_bytes == 60 * GIB
    assert json.loads(result.read_text())["outcome"] == "success"


def test_a_job_of_slurm_takes_slurms_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, runs: Runs) -> None:
    in_slurm(monkeypatch, cpus=8, memory_gib=90)
    order, _ = write_order(tmp_path)
    assert job.main([str(order)]) == 0
    assert runs.given == [{"cpus_per_task": 8, "memory_bytes": 90 * GIB}]


def test_a_job_requeued_after_its_own_success_does_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, runs: Runs
) -> None:
    in_slurm(monkeypatch)
    order, result = write_order(tmp_path)
    before = json.dumps({"outcome": "success", "job_id": "7"})
    result.write_text(before)
    assert job.main([str(order)]) == 0
    assert runs.given == []
    assert result.read_text() == before


def test_an_order_of_another_layout_is_refused_by_what_any_layout_has_of_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    in_slurm(monkeypatch)
    order, result = write_order(tmp_path)
    parts = {name: value for name, value in json.loads(order.read_text()).items() if name == "label"}
    files = {"result": str(result)}
    order.write_text(json.dumps(parts | {"layout": LAYOUT + 1, "version": "9.9", "files": files}))
    assert job.main([str(order)]) == 1
    said = json.loads(result.read_text())
    assert (said["outcome"], said["job_id"], said["traceback"]) == ("configuration", "7", None)
    assert f"Rule was ordered by espo_luigi 9.9 (layout {LAYOUT + 1}), and its job finds" in said["exception"]
    assert f"(layout {LAYOUT}), which cannot read the order" in said["exception"]
    assert said["exception"].removeprefix("ConfigurationChangedError: ") in capfd.readouterr().err

    done = json.dumps({"outcome": "success", "job_id": "7"})
    result.write_text(done)
    assert job.main([str(order)]) == 0
    assert result.read_text() == done, "a job that is requeued after its success has nothing to refuse"


@pytest.mark.parametrize(
    "before",
    [
        {"outcome": "success", "job_id": "6"},
        {"outcome": "error", "job_id": "6"},
        {"outcome": "error", "job_id": "7", "told_to_end": True},
        {"outcome": "files", "job_id": "7"},
        {"outcome": "success"},
    ],
)
def test_anothers_result_or_an_own_failure_is_removed_before_the_work(
    before: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, runs: Runs
) -> None:
    in_slurm(monkeypatch)
    order, result = write_order(tmp_path)
    result.write_text(json.dumps(before))
    assert job.main([str(order)]) == 0
    assert len(runs.given) == 1
    assert json.loads(result.read_text())["job_id"] == "new"


@pytest.mark.parametrize("outcome", ["error", "input", "configuration"])
def test_a_job_that_failed_for_good_does_nothing_when_its_site_starts_it_again(
    outcome: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, runs: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    in_slurm(monkeypatch)
    order, result = write_order(tmp_path)
    result.write_text(said := json.dumps({"outcome": outcome, "job_id": "7", "exception": "ValueError: no"}))
    assert job.main([str(order)]) == 0
    assert (runs.given, result.read_text()) == ([], said)


def test_an_order_of_another_version_ends_the_job_with_what_to_do(tmp_path: Path) -> None:
    order, _ = write_order(tmp_path)
    old = json.loads(order.read_text())
    del old["files"]
    order.write_text(json.dumps(old))
    with pytest.raises(SystemExit, match=r"another version of espo_luigi has written this order .*espo cancel"):
        job.main([str(order)])


def test_an_unreadable_order_ends_the_job_with_the_files_name(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"order\.json: not a readable job order"):
        job.main([str(tmp_path / "order.json")])


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (MemoryError(), "memory"),
        (node.Stopped(15), "stopped"),
        (SystemExit("no data in 1991-2020"), "error"),
        (ValueError(), "error"),
        (StoreError("no room"), "error"),
        (InputChangedError("gone"), "input"),
    ],
)
def test_only_too_little_memory_asks_for_more_and_only_another_input_for_the_same_again(
    error: BaseException, outcome: str
) -> None:
    assert node._outcome(error) == outcome


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: sys.exit("no data in 1991-2020"), "SystemExit: no data in 1991-2020"),
        (
            lambda: argparse.ArgumentParser().parse_args(["--no-such"]),
            "SystemExit: work called sys.exit(2), as argparse",
        ),
        (lambda: sys.exit(), "SystemExit: work called sys.exit(None), as"),
    ],
)
def test_a_way_out_of_the_work_is_a_failure_with_its_text_and_no_signal_of_the_scheduler(
    call: Callable[[], object], said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    in_slurm(monkeypatch)

    def work(*_: object) -> None:
        call()

    result = node._run(an_order(tmp_path), work)
    assert result["outcome"] == "error" and result["exception"].startswith(said)
    assert cause_of(Cause.CRASHED, result_cause(result), "", False) is Cause.EXCEPTION


def test_a_fork_of_the_works_own_ends_where_the_work_would_go_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Forks(SlurmTask):
        uses_dask = False

        def work(self) -> None:
            ends = [lambda: sys.exit(3), lambda: 1 / 0, lambda: None]
            forks = []
            for end in ends:
                pid = os.fork()
                if not pid:
                    end()
                    return
                forks.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            (tmp_path / "forks").write_text(str(forks))

    monkeypatch.setattr(job, "rebuild_task", lambda order: Forks())
    assert node._run(an_order(tmp_path, "Forks"), job.work)["outcome"] == "success"
    assert (tmp_path / "forks").read_text() == "[3, 1, 0]"


def test_a_job_works_inside_its_tasks_guard(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Guarded(SlurmTask):
        uses_dask = False

        @contextmanager
        def guarded(self) -> Iterator[None]:
            yield
            raise InputChangedError("gone")

        def work(self) -> None:
            (tmp_path / "worked").touch()

    monkeypatch.setattr(job, "rebuild_task", lambda order: Guarded())
    result = node._run(an_order(tmp_path, "Guarded"), job.work)
    assert (tmp_path / "worked").exists()
    assert (result["outcome"], result["exception"]) == ("input", "InputChangedError: gone")


def test_what_luigi_gives_to_tasks_of_its_own_processes_is_logged_in_a_job(caplog: pytest.LogCaptureFixture) -> None:
    class Tells(SlurmTask):
        def work(self) -> None:
            self.set_status_message("half way")
            self.set_progress_percentage(50)
            self.set_tracking_url("http://localhost:1")

    with caplog.at_level(logging.INFO):
        job._call_work(Tells())
    assert "Tells.set_status_message: half way" in caplog.text and "Tells.set_progress_percentage: 50" in caplog.text
