"""Submitting worker jobs to a scheduler that refuses them: how often it is asked."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fake_clock import FakeClock

from espo_luigi.jobs.dask import WorkerJobs
from espo_luigi.jobs.dask.jobqueue import SETTLE_SECONDS, Session, _Keeper
from espo_luigi.jobs.schedulers import slurm, slurm_parse
from espo_luigi.jobs.schedulers.base import Phase, Row
from espo_luigi.jobs.schedulers.commands import Answer, Commands
from espo_luigi.jobs.schedulers.script import workers_name

OWNER = "run.rule.0123456789ab.1"
NAME = workers_name(OWNER)
FULL = "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit)"


class FullCluster(Commands):
    """Commands of a Slurm that takes no job for the first 100 seconds."""

    asked = 0

    def submit(self, argv: tuple[str, ...]) -> Answer:
        self.asked += 1
        return Answer(0, "17\n") if self.clock.now() >= 1100 else Answer(1, stderr=FULL)


@pytest.fixture
def session(tmp_path: Path) -> Session:
    workers = WorkerJobs("slurm", str(tmp_path), str(tmp_path / "%j.out"), str(tmp_path))
    return Session(workers, OWNER, FullCluster(slurm, environ={}, clock=FakeClock()))


def test_of_thousands_of_jobs_one_is_tried_at_a_time_and_ever_less_often(session: Session) -> None:
    taken = []
    for second in range(200):
        for _ in range(100):
            try:
                taken.append((second, session.submit(Path("script"), NAME)))
            except RuntimeError as error:
                assert str(error) == FULL
        session.commands.clock.sleep(1)
    assert session.commands.asked - len(taken) == 5  # after 0, 5, 15, 35 and 75 s
    assert taken[0] == (155, "17")
    assert len(taken) == 45 * 100


@pytest.mark.parametrize("says", ["node 7 of 2026\nSubmitted batch job 18", "node 7 of 2026"])
def test_a_job_is_known_by_its_id_and_not_by_a_number_of_the_sites_banner(
    session: Session, monkeypatch: pytest.MonkeyPatch, says: str
) -> None:
    listed = [
        slurm_parse.parse_squeue(f"{n}|PENDING|||{name}")[0] for n, name in ((17, workers_name(OWNER)), (18, NAME))
    ]
    monkeypatch.setattr(session.commands, "submit", lambda argv: Answer(0, says))
    monkeypatch.setattr(session.commands, "jobs", lambda: listed)
    assert session.submit(Path("script"), NAME) == "18"


def test_nothing_is_submitted_once_the_session_is_over(session: Session) -> None:
    session.over.set()
    with pytest.raises(RuntimeError, match="over"):
        session.submit(Path("script"), NAME)
    assert session.commands.asked == 0


class SilentCluster(Commands):
    """Commands of a Slurm that tells no id, and lists a job only some seconds after it took the job."""

    late = 3.0

    def submit(self, argv: tuple[str, ...]) -> Answer:
        name = next(word.removeprefix("--job-name=") for word in argv if word.startswith("--job-name="))
        self.taken = [*getattr(self, "taken", []), (name, self.clock.now())]
        return Answer(0, "Welcome\n")

    def jobs(self) -> list[Row]:
        listed = [(str(n), name) for n, (name, since) in enumerate(self.taken) if self.clock.now() >= since + self.late]
        return [Row(n, name, "PENDING", Phase.PENDING) for n, name in listed]


def test_jobs_that_were_taken_without_an_id_get_one_each_although_they_are_submitted_at_once(session: Session) -> None:
    session.commands = SilentCluster(slurm, environ={}, clock=FakeClock())
    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(session.submit, [Path("script")] * 8, [workers_name(OWNER) for _ in range(8)]))
    assert sorted(ids) == list("01234567")


def test_a_job_that_is_listed_late_is_not_submitted_again(session: Session) -> None:
    session.commands = commands = SilentCluster(slurm, environ={}, clock=FakeClock())
    commands.late = 30.0
    settled = commands.clock.now() + SETTLE_SECONDS
    job = SimpleNamespace(job_id=session.submit(Path("script"), NAME), own_name=NAME, settled=settled)
    keeper = _Keeper(session, cast("Any", None))
    assert job.job_id == ""
    assert keeper._gone({"a": job}, session.alive() or {}) == [], "it may be listed later"
    commands.clock.sleep(30)
    assert keeper._gone({"a": job}, session.alive() or {}) == []
    assert job.job_id == "0"
    assert keeper._gone({"a": job}, {}) == ["a"], "it has ended"
    refused = SimpleNamespace(job_id="", own_name=workers_name(OWNER), settled=0.0)
    assert keeper._gone({"b": refused}, session.alive() or {}) == ["b"]
