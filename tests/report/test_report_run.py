"""What the jobs of a run took, and what would have sufficed."""

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from espo_luigi.jobs.energy import Power
from espo_luigi.jobs.lifecycle.records import Record
from espo_luigi.jobs.order import JobOrder, write_json
from espo_luigi.jobs.resources import Resources
from espo_luigi.report import job_use
from espo_luigi.report.html import Link, Text
from espo_luigi.report.make import inputs_section, run_section
from espo_luigi.report.reading import RunView, read_jobs

JOB = job_use.Job("Train", "n1", 0.0, 600.0, -30.0, True, 2, 8, 64 * 2**30, 1000, 10 * 2**30, 1800.0)


def test_what_would_have_sufficed_has_a_fifth_to_spare_over_the_largest_job() -> None:
    larger = replace(JOB, peak_memory_bytes=20 * 2**30, ended=1200.0, cpu_seconds=1200.0)
    found = job_use.sufficient([JOB, larger])
    asked = Resources(int(found["n_workers"]), int(found["cpus_per_task"]), found["memory"], found["time"])
    asked.check("Train")
    assert 24 * 2**30 <= asked.memory_bytes < 24.2 * 2**30
    assert asked.time_minutes == 24
    # 1800 CPU seconds in 600 s are three CPUs; with a fifth more it takes four, two a worker.
    assert (asked.n_workers, asked.cpus_per_task) == (2, 4)


def test_a_tiny_job_is_given_what_a_worker_needs() -> None:
    tiny = replace(JOB, peak_memory_bytes=2**20, ended=0.5, cpu_seconds=0.1)
    found = job_use.sufficient([tiny])
    Resources(int(found["n_workers"]), int(found["cpus_per_task"]), found["memory"], found["time"]).check("Train")
    assert found["time"] == "1"


def test_never_more_cpus_than_were_given() -> None:
    busy = replace(JOB, cpu_seconds=600.0 * 7.9)
    assert job_use.sufficient([busy])["cpus_per_task"] == "8"


def test_the_blocks_can_be_pasted_into_luigi_cfg() -> None:
    import configparser

    failed = replace(JOB, rule="Adjust", succeeded=False)
    parser = configparser.ConfigParser()
    parser.read_string(job_use.rule_blocks([JOB, failed]))
    assert parser.sections() == ["Train"]
    assert parser["Train"]["memory"] == f"{12 * 1024}M"


def test_retries_are_counted_by_rule_and_cause() -> None:
    record = Record("t", "Train", {}, 1, 1, "log")
    again = record.next_submission("memory").next_submission("node")
    found = job_use.retries([again, record.next_submission("memory")])
    assert found == {("Train", "out of memory"): 2, ("Train", "node failed"): 1}


def test_the_timeline_has_a_bar_for_each_job_and_overlapping_ones_in_lanes() -> None:
    jobs = [JOB, replace(JOB, started=300.0, ended=900.0), replace(JOB, node="n2", succeeded=False)]
    axes = job_use.timeline(jobs).axes[0]
    bars = [path.get_extents() for collection in axes.collections for path in collection.get_paths()]
    assert len(bars) == 3
    assert [(round(bar.x0), round(bar.x1)) for bar in bars] == [(0, 10), (5, 15), (0, 10)]
    assert [bar.y0 for bar in bars] == [0, 1, 3], "a lane each, and one free between nodes"
    assert [label.get_text() for label in axes.get_yticklabels()] == ["n1", "n2"]
    assert axes.get_xlabel() == "Time since the first job began [min]"
    assert [collection.get_hatch() for collection in axes.collections] == [None, "xxxx"]


def test_requested_and_used_have_units_and_the_largest_of_each_rule() -> None:
    figure = job_use.requested_and_used([JOB, replace(JOB, peak_memory_bytes=30 * 2**30)])
    assert [axes.get_xlabel() for axes in figure.axes] == ["CPUs [1]", "Memory [GiB]", "Time [min]"]
    asked, used = figure.axes[1].lines
    assert (list(asked.get_xdata()), list(used.get_xdata())) == ([64.0], [30.0])


def test_waiting_is_from_the_order_to_the_start() -> None:
    assert JOB.waited == 30.0
    assert replace(JOB, ordered=None).waited is None


@pytest.mark.parametrize("ahead", [240.0, -240.0])
def test_waiting_is_right_where_the_nodes_clock_is_not(ahead: float, order: JobOrder) -> None:
    now, asked = time.time(), Resources(1, 1, "1GB", "10").as_text()
    os.utime(order.files.order, (now - 330,) * 2)
    result = {"family": "Rule", "started": now + ahead - 300, "ended": now + ahead, "outcome": "success"}
    write_json(order.files.result, result | {"parameters": asked, "peak_memory_bytes": 1})
    os.utime(order.files.result, (now, now))
    (job,) = read_jobs(order.files.workdir)
    assert job.waited == pytest.approx(30)


def test_the_page_links_the_release_of_the_products(tmp_path: Path) -> None:
    view = RunView((), "abc", "ERA5-Land", (), (), (1991, 2020), tmp_path, tmp_path / "run", "local")
    (tmp_path / "RELEASE.json").write_text('{"made_by": "espo validate", "version": "1.0", "date": "2026-11-26"}')
    blocks = inputs_section(view, tmp_path / "report" / "report.html").blocks
    assert Link("Release 1.0 of 2026-11-26", "../RELEASE.json") in blocks


@pytest.mark.parametrize(
    ("joules", "said"),
    [
        # 4800 s of CPU time at 15 W are 72 kJ, 0.02 kWh.
        (0.0, "Energy: about 20 Wh (estimate: 15 W a CPU), 6 g of CO2 at 300 g/kWh."),
        (3.6e6, "Energy: 1 kWh (measured by the scheduler), 0.3 kg of CO2 at 300 g/kWh."),
    ],
)
def test_the_energy_of_jobs_is_measured_or_an_estimate_of_their_cpus(tmp_path: Path, joules: float, said: str) -> None:
    empty = RunView((), "abc", "ERA5-Land", (), (), (1991, 2020), tmp_path, tmp_path / "run", "local")
    job = replace(JOB, energy_joules=joules, cpu_seconds=4800.0)
    section = run_section(replace(empty, power=Power(15.0, 300.0)), [job])
    assert said in [block.text for block in section.blocks if isinstance(block, Text)]
