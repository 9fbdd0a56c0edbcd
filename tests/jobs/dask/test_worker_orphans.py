"""A driver cancels the worker jobs of a job that is gone, and leaves all others alone."""

from pathlib import Path

from espo_luigi.jobs.causes import Cause
from espo_luigi.jobs.lifecycle.observe import orphans
from espo_luigi.jobs.lifecycle.records import Record, RecordStore
from espo_luigi.jobs.schedulers.base import Phase, Row
from espo_luigi.jobs.schedulers.script import workers_name

OWNER = "run.rule.0123456789ab.2"


def row(job_id: str, name: str, phase: Phase) -> Row:
    return Row(job_id, name, phase.name, phase)


def store(folder: Path) -> RecordStore:
    made = RecordStore(folder)
    made.create_folders()
    made.save(Record(OWNER.rpartition(".")[0], "rule", {}, 1, 1, "log", submission=2))
    return made


def workers(name: str) -> list[Row]:
    phases = (Phase.PENDING, Phase.RUNNING, Phase.COMPLETED, Phase.LEAVING)
    return [row(str(n), workers_name(name), phase) for n, phase in enumerate(phases)]


def test_workers_that_wait_or_run_are_cancelled_once_their_job_is_gone(tmp_path: Path) -> None:
    for ended in ([], [row("9", OWNER, Phase.LEAVING)], [row("9", OWNER, Cause.NODE)]):
        assert orphans([*workers(OWNER), *ended], store(tmp_path).knows) == ["0", "1"]


def test_workers_of_a_job_that_runs_or_is_requeued_are_left_alone(tmp_path: Path) -> None:
    for phase in (Phase.RUNNING, Phase.PENDING, Phase.SUSPENDED):
        assert orphans([*workers(OWNER), row("9", OWNER, phase)], store(tmp_path).knows) == []


def test_workers_of_another_run_and_of_a_session_are_left_alone(tmp_path: Path) -> None:
    for name in ("other.rule.0123456789ab.2", "espo-session.01234567"):
        assert orphans(workers(name), store(tmp_path).knows) == []


def test_workers_of_a_job_whose_record_is_damaged_are_cancelled_and_stop_nobody(tmp_path: Path) -> None:
    made = store(tmp_path)
    (tmp_path / "records" / f"{OWNER.rpartition('.')[0]}.json").write_text("{")
    assert orphans(workers(OWNER), made.knows) == ["0", "1"]


def test_a_name_that_is_no_name_of_a_record_stops_nobody(tmp_path: Path) -> None:
    assert orphans(workers("x" * 300 + ".1"), store(tmp_path).knows) == []
