"""The usage of jobs in schedulers' accounting, read from text."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from real_clusters import MIB

from espo_luigi.jobs.causes import Cause
from espo_luigi.jobs.schedulers import gridengine as sge
from espo_luigi.jobs.schedulers import slurm
from espo_luigi.jobs.schedulers.base import Phase, Usage
from espo_luigi.jobs.schedulers.commands import Commands
from espo_luigi.jobs.schedulers.gridengine import parse_usage as parse_qacct
from espo_luigi.jobs.schedulers.slurm_parse import parse_usage as parse_sacct

if TYPE_CHECKING:
    from fake_cluster import FakeCluster

GOLDEN = Path(__file__).parent / "golden"
T = 1767261600.0  # 2026-01-01T10:00:00Z


def line(**changes: str) -> str:
    """One line of sacct about a job of an hour."""
    fields = {
        "JobID": "7",
        "State": "COMPLETED",
        "Submit": "2026-01-01T10:00:00",
        "Start": "2026-01-01T10:01:00",
        "End": "2026-01-01T11:01:00",
        "AllocCPUS": "4",
        "ReqMem": "2048M",
        "TimelimitRaw": "90",
        "TotalCPU": "02:00:30",
        "MaxRSS": "",
        "ConsumedEnergyRaw": "0",
        "NodeList": "n1",
        "JobName": "run.Train.0.1",
    }
    return "|".join({**fields, **changes}.values())


def test_a_job_of_sacct_has_the_largest_memory_of_its_steps() -> None:
    steps = [line(JobID="7.batch", MaxRSS="300000K"), line(JobID="7.extern", MaxRSS=""), line(JobID="7.0", MaxRSS="1G")]
    (found,) = parse_sacct("\n".join([line(), *steps]))
    expected = Usage(
        "7", "run.Train.0.1", Phase.COMPLETED, "n1", T, T + 60, T + 3660, 4, 2048 * MIB, 90, 7230.0, 1024 * MIB
    )
    assert found == expected


def test_each_run_of_a_requeued_job_is_one_with_the_steps_that_follow_it() -> None:
    text = [line(State="NODE_FAIL"), line(JobID="7.batch", MaxRSS="10M"), line(), line(JobID="7.batch", MaxRSS="20M")]
    found = parse_sacct("\n".join(text))
    assert [(one.phase, one.peak_memory_bytes) for one in found] == [
        (Cause.NODE, 10 * MIB),
        (Phase.COMPLETED, 20 * MIB),
    ]


@pytest.mark.parametrize(
    ("field", "text", "name", "expected"),
    [
        ("TotalCPU", "1-00:00:02", "cpu_seconds", 86402.0),
        ("TotalCPU", "00:01.500", "cpu_seconds", 1.5),
        ("TotalCPU", "", "cpu_seconds", 0.0),
        ("ConsumedEnergyRaw", "5400", "energy_joules", 5400.0),
        # A site that measures nothing says 0, or nothing, or Slurm's mark of "no value".
        ("ConsumedEnergyRaw", "0", "energy_joules", 0.0),
        ("ConsumedEnergyRaw", "", "energy_joules", 0.0),
        ("ConsumedEnergyRaw", "18446744073709551614", "energy_joules", 0.0),
        ("ReqMem", "1000Mc", "memory_bytes", 4000 * MIB),
        ("ReqMem", "1000Mn", "memory_bytes", 1000 * MIB),
        ("ReqMem", "1.50G", "memory_bytes", 1536 * MIB),
        ("ReqMem", "", "memory_bytes", 0),
        ("TimelimitRaw", "UNLIMITED", "time_minutes", 0),
        ("End", "Unknown", "ended", 0.0),
        ("Start", "None", "started", 0.0),
        ("State", "CANCELLED by 1000", "phase", Cause.CANCELLED),
        ("JobName", "a|b", "name", "a|b"),
        ("JobID", "7_3", "job_id", "7_3"),
    ],
)
def test_a_field_of_sacct(field: str, text: str, name: str, expected: object) -> None:
    (found,) = parse_sacct(line(**{field: text}))
    assert getattr(found, name) == expected


def test_what_is_no_line_of_a_job_is_passed_over() -> None:
    assert parse_sacct("sacct: error\n\n7|COMPLETED\n7.batch|x\n" + line(JobID="7_[3-5]")) == []


def test_runs_of_qacct_have_times_cpus_and_what_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/Toronto")
    time.tzset()
    found = {one.job_id: one for one in parse_qacct((GOLDEN / "qacct.txt").read_text())}
    monkeypatch.undo()
    time.tzset()
    ok, timed_out = found["10"], found["15"]
    assert (ok.name, ok.node, ok.cpus, ok.cpu_seconds) == ("r.ok.0123456789ab.1", "n1", 1, 0.167)
    # Sun Nov 22 04:47:52 2026 in Toronto is 09:47:52 UTC.
    assert (ok.queued, ok.started - ok.queued, ok.ended - ok.started) == (1795340872.0, 1.0, 0.0)
    assert (timed_out.memory_bytes, timed_out.phase) == (1024 * MIB, Cause.TIMEOUT)


@pytest.mark.parametrize("why", ["fail Slurm accounting storage is disabled", "missing"])
def test_where_there_is_no_accounting_there_are_no_accounts(fake: FakeCluster, why: str) -> None:
    if why == "missing":
        (fake.folder / "bin" / "sacct").unlink()
    else:
        fake.misbehave("sacct", why)
    # Only this folder: a real sacct would be found in another.
    commands = Commands(slurm, environ={"PATH": str(fake.folder / "bin")})
    assert commands.usage(["1"], ["a"]) is None


def test_the_commands_ask_for_many_jobs_at_once() -> None:
    many = [str(number) for number in range(1, 20_000)]
    assert len(slurm.usage(many, [])) < 10
    assert len(sge.usage(many, [f"run.Train.{number:05}.1" for number in range(20_000)])) == 1
