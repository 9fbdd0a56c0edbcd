"""Where a job stands, in words."""

import json
import socket
from collections.abc import Mapping
from dataclasses import replace

import pytest
from job_work import Work

from espo_luigi.jobs.lifecycle.policy import step
from espo_luigi.jobs.lifecycle.records import Record
from espo_luigi.jobs.lifecycle.state import Files, Job, Seen
from espo_luigi.jobs.order import JobState, Progress, at_work, between_beats, done
from espo_luigi.jobs.schedulers import slurm
from espo_luigi.jobs.schedulers import slurm_parse as slurm_answers
from espo_luigi.jobs.schedulers.base import Phase, Row
from espo_luigi.jobs.schedulers.gridengine import phase_of
from espo_luigi.jobs.settings import BatchSettings

BEAT = {
    "percent": 43,
    "peak_memory_bytes": int(12.1 * 2**30),
    "memory_bytes": 32 * 2**30,
    "message": "Dask: 57 tasks to go",
    "node": "n3.cluster",
}


RECORD = Record("a", "rule", {}, 1, 1, "log", state=JobState.QUEUED, job_id="1234")


def progress(work: Work, record: Record, row: Row | None = None, beat: Mapping[str, object] | None = None) -> Progress:
    files = Files(beat=json.dumps(beat).encode() if beat else b"")
    job = Job(work.order("a"), record, slurm, seen=Seen(row), files=files)
    job.state = step(job, 0.0, BatchSettings()).state
    return job.progress()


@pytest.mark.parametrize(
    ("state", "phase"), [("RUNNING", Phase.RUNNING), *((one, phase_of(one)) for one in ("r", "Rr", "t"))]
)
def test_a_running_job_is_told_with_its_node_progress_and_memory(work: Work, state: str, phase: Phase) -> None:
    facts = {"state": JobState.RUNNING, "job_id": "1234", "node": "n3"}
    row = Row("1234", "a.1", state, phase, "n3")
    assert progress(work, RECORD, row, BEAT) == Progress(
        "job 1234 on n3, 43 %, 12.1 of 32 GiB\nDask: 57 tasks to go", 43, **facts
    )
    second = replace(RECORD, attempt=2)
    assert progress(work, second, row) == Progress("job 1234 on n3, attempt 2, starting", attempt=2, **facts)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (JobState.READY, "waiting to be submitted"),
        (JobState.SUBMITTING, "submitting"),
        (JobState.QUEUED, "queued, job 7"),
    ],
)
def test_what_the_scheduler_has_not_listed_is_told_with_what_is_on_record(
    work: Work, state: JobState, expected: str
) -> None:
    job_id = "7" if state is JobState.QUEUED else None
    found = progress(work, replace(RECORD, state=state, job_id=job_id))
    assert found == Progress(expected, state=state, job_id=job_id)


@pytest.mark.parametrize(
    ("said", "phase", "expected"),
    [
        ("PENDING", Phase.PENDING, "PENDING, job 7"),
        ("SUSPENDED", Phase.SUSPENDED, "SUSPENDED, job 7"),
        ("qw", Phase.PENDING, "qw, job 7"),
    ],
)
def test_what_does_not_run_is_told_with_its_state(work: Work, said: str, phase: Phase, expected: str) -> None:
    found = progress(work, RECORD, Row("7", "a.1", said, phase))
    assert found == Progress(expected, state=JobState.QUEUED, job_id="7")


def test_a_pending_job_is_told_with_what_its_reason_means(work: Work) -> None:
    found = progress(work, RECORD, slurm_answers.row("7", "a.1", "PENDING", reason="Licenses"))
    assert found == Progress(
        "PENDING (Licenses), job 7: it waits for a licence",
        state=JobState.QUEUED,
        reason="Licenses",
        job_id="7",
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
    assert done(result) == Progress("done: job 1234 on n3, 12.5 s, 12.1 of 32 GiB", 100, state=JobState.SUCCEEDED)
    assert done({"node": "here", "started": 1.0, "ended": 2.0}).message == "done: on here, 1.0 s"


def test_a_young_job_is_listened_to_more_often() -> None:
    assert [between_beats(age, 30.0) for age in (0.0, 20.0, 150.0, 1e9)] == [0.5, 4.0, 30.0, 30.0]
    assert between_beats(0.0, 0.1) == 0.1
