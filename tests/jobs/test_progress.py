"""Where a job stands, in words."""

import socket

import pytest
from conftest import Work

from espo_luigi.jobs.lifecycle.flights import Flight
from espo_luigi.jobs.lifecycle.handles import Handle, Progress
from espo_luigi.jobs.lifecycle.progress import at_work, between_beats, done, of_batch
from espo_luigi.jobs.lifecycle.records import SUBMITTED, Record
from espo_luigi.jobs.order import Standing
from espo_luigi.jobs.schedulers.base import Phase
from espo_luigi.jobs.schedulers.gridengine.parse import phase_of
from espo_luigi.jobs.schedulers.slurm import parse as slurm_answers
from espo_luigi.jobs.schedulers.slurm import submit as slurm
from espo_luigi.jobs.state import JobState

BEAT = {
    "percent": 43,
    "peak_memory_bytes": int(12.1 * 2**30),
    "memory_bytes": 32 * 2**30,
    "message": "Dask: 57 tasks to go",
    "node": "n3.cluster",
}


@pytest.mark.parametrize(
    ("state", "phase"), [("RUNNING", Phase.RUNNING), *((one, phase_of(one)) for one in ("r", "Rr", "t"))]
)
def test_a_running_job_is_told_with_its_node_progress_and_memory(state: str, phase: Phase) -> None:
    assert of_batch(Progress(state, "1234", 1, "n3", BEAT, phase)) == Standing(
        "job 1234 on n3, 43 %, 12.1 of 32 GiB\nDask: 57 tasks to go", 43, state=JobState.RUNNING
    )
    starting = of_batch(Progress(state, "1234", 2, "n3", phase=phase))
    assert starting == Standing("job 1234 on n3, attempt 2, starting", state=JobState.RUNNING)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("planned", "waiting to be submitted"),
        ("PENDING", "PENDING, job 7"),
        ("SUSPENDED", "SUSPENDED, job 7"),
        ("qw", "qw, job 7"),
    ],
)
def test_what_does_not_run_is_told_with_its_state(state: str, expected: str) -> None:
    assert of_batch(Progress(state, None if state == "planned" else "7")).message == expected


def test_a_pending_job_is_told_with_what_its_reason_means(work: Work) -> None:
    record = Record("a", "rule", {}, 1, 1, "log", state=SUBMITTED, job_id="7")
    row = slurm_answers.row("7", "a.1", "PENDING", reason="Licenses")
    found = Flight(work.request("a"), Handle("a", "a"), record, slurm, row=row).progress()
    assert of_batch(found) == Standing(
        "PENDING (Licenses), job 7: it waits for a licence", state=JobState.QUEUED, reason="Licenses"
    )


def test_the_dashboard_is_told_with_the_line_that_reaches_it() -> None:
    found = at_work("job 1234 on n3", {**BEAT, "dashboard_port": 40123})
    assert found.dashboard == "http://127.0.0.1:40123/status"
    assert found.dashboard in found.message
    through = socket.gethostname()
    assert found.message.splitlines()[-1] == f"ssh -N -L 40123:127.0.0.1:40123 -J {through} n3.cluster"
    here = at_work("running", {"dashboard_port": 40123, "node": through})
    assert here.message.splitlines()[-1] == f"ssh -N -L 40123:127.0.0.1:40123 {through}"


def test_a_node_with_a_name_that_a_shell_would_run_is_quoted() -> None:
    found = at_work("running", {"dashboard_port": 40123, "node": "n3;id"})
    assert found.message.endswith("'n3;id'")


def test_signs_of_life_that_make_no_sense_are_told_without_figures() -> None:
    assert at_work("running", {"percent": "many", "memory_bytes": None, "message": "working"}).message == (
        "running\nworking"
    )


def test_what_is_done_is_told_with_its_time_and_most_memory() -> None:
    result = {**BEAT, "node": "n3", "job_id": "1234", "started": 10.0, "ended": 22.5}
    assert done(result) == Standing("done: job 1234 on n3, 12.5 s, 12.1 of 32 GiB", 100, state=JobState.SUCCEEDED)
    assert done({"node": "here", "started": 1.0, "ended": 2.0}) == Standing(
        "done: on here, 1.0 s", 100, state=JobState.SUCCEEDED
    )


def test_a_young_job_is_listened_to_more_often() -> None:
    assert [between_beats(age, 30.0) for age in (0.0, 20.0, 150.0, 1e9)] == [0.5, 4.0, 30.0, 30.0]
    assert between_beats(0.0, 0.1) == 0.1
