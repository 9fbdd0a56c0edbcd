"""What people give to a driver on a real Grid Engine, and do to it: hostile text, limits, kills, interrupts."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path

import pytest
from job_work import Work
from real_clusters import (
    check_hostile_texts,
    check_killed_drivers,
    code_of,
    failure_of,
    job_id_of,
    left_behind,
    running,
    start_driver,
    success_of,
)
from throwaway_daemons import eventually
from throwaway_sge import ThrowawayGridEngine

from espo_luigi.errors import SubmissionError
from espo_luigi.jobs.causes import Cause
from espo_luigi.jobs.lifecycle.control import cancel_jobs
from espo_luigi.jobs.lifecycle.records import RecordStore
from espo_luigi.jobs.schedulers import gridengine as sge
from espo_luigi.jobs.schedulers.commands import Commands
from espo_luigi.jobs.schedulers.gridengine import SgeOptions

pytestmark = [pytest.mark.slurm, pytest.mark.sge]


@pytest.fixture
def cluster(grid_engine: ThrowawayGridEngine) -> ThrowawayGridEngine:
    return grid_engine


NEVER: list[tuple[SgeOptions, dict[str, int], str]] = [
    (SgeOptions(queue="nix.q"), {}, "unknown queue"),
    (SgeOptions(project="nix"), {}, "project .nix. does not exist"),
    (SgeOptions(parallel_environment="nix"), {"cpus_per_task": 2}, "parallel environment .nix. does not exist"),
    (SgeOptions(memory_resource="nix"), {}, "unknown resource .nix."),
    (SgeOptions(extra={"l": "nix=1"}), {}, "unknown resource .nix."),
    (SgeOptions(extra={"nix": "1"}), {}, "invalid option argument"),
    (SgeOptions(), {"cpus_per_task": 129}, "no suitable queues"),
    (SgeOptions(), {"memory_bytes": 2**40}, "no suitable queues"),
]


def test_what_grid_engine_will_never_take_fails_at_once_with_its_words(
    work: Work, cluster: ThrowawayGridEngine
) -> None:
    with running(work, cluster, retries=3) as manager:
        orders = [work.order(f"a{n}", options=options, **more) for n, (options, more, _) in enumerate(NEVER)]
        failures = [failure_of(handle) for handle in [manager.submit(order) for order in orders]]
        assert manager.commands.counts["qsub"] == len(NEVER)
    assert {failure.cause for failure in failures} == {Cause.REFUSED}
    told = zip(failures, NEVER, strict=True)
    assert [failure.message for failure, (_, _, words) in told if not re.search(words, failure.message)] == []


def test_a_limit_on_submitted_jobs_passes_as_jobs_end(work: Work, cluster: ThrowawayGridEngine) -> None:
    cluster.change("conf", max_u_jobs="2")
    try:
        with running(work, cluster) as manager:
            handles = [manager.submit(work.order(f"a{i}")) for i in range(4)]
            for handle in handles:
                success_of(handle)
    finally:
        cluster.change("conf", max_u_jobs="0")
    assert len(work.starts()) == len(set(work.starts())) == 4


def test_hostile_text_in_every_value_reaches_the_job_as_it_is(cluster: ThrowawayGridEngine, tmp_path: Path) -> None:
    # qsub replaces variables in a log's path: such a folder is refused.
    check_hostile_texts(
        cluster,
        {
            text: (Work(tmp_path / text.replace("$", "dollar"), "sge"), SgeOptions(setup=f"# {text}\n#$ -t 1-3"))
            for text in ("a'b\"c $(touch pwned) `id` ${HOME};#c é漢🌧", "-x", "\\")
        },
    )


def test_hostile_text_in_an_option_is_refused_and_runs_nothing(work: Work, cluster: ThrowawayGridEngine) -> None:
    hostile = '$(touch pwned) "; touch pwned #'
    with running(work, cluster) as manager:
        with pytest.raises(SubmissionError):
            manager.submit(work.order("a", options=SgeOptions(memory_resource=hostile)))
        for name in ("queue", "project", "parallel_environment"):
            order = work.order(name, cpus_per_task=2, options=SgeOptions(**{name: hostile}))
            assert failure_of(manager.submit(order)).cause is Cause.REFUSED
    assert not list(work.folder.rglob("pwned"))


def test_a_driver_killed_at_any_moment_loses_and_doubles_nothing(work: Work, cluster: ThrowawayGridEngine) -> None:
    check_killed_drivers(work, cluster, jobs=12)


def test_an_interrupted_driver_cancels_its_jobs_and_nobody_elses(work: Work, cluster: ThrowawayGridEngine) -> None:
    other = cluster.run("qsub", "-terse", "-b", "y", "-o", "/dev/null", "-j", "y", "sleep", "100").strip()
    driver = start_driver(work, cluster, jobs=4, seconds=100)
    eventually(lambda: len(work.starts()) == 4)
    driver.send_signal(signal.SIGINT)
    assert (code_of(driver), json.loads(driver.communicate()[0])) == (130, {"cancelled": 4})
    eventually(lambda: [row.job_id for row in Commands(sge, environ=cluster.environ).jobs() or []] == [other])
    cluster.run("qdel", other)


def test_jobs_of_a_driver_that_hung_up_go_on_and_are_taken_over(work: Work, cluster: ThrowawayGridEngine) -> None:
    driver = start_driver(work, cluster, jobs=3, seconds=300)
    eventually(lambda: len(work.starts()) == 3)
    driver.send_signal(signal.SIGHUP)
    code_of(driver)
    for i in range(3):
        work.end(f"job{i:02d}")
    assert code_of(start_driver(work, cluster, jobs=3, seconds=300)) == 0
    assert len(work.starts()) == 3


def test_jobs_left_behind_can_be_cancelled_without_a_driver(work: Work, cluster: ThrowawayGridEngine) -> None:
    job_id = job_id_of(left_behind(work, cluster, work.order("a", seconds=100)))
    store = RecordStore(work.state_dir)
    assert cancel_jobs(store, Commands(sge, None, cluster.environ)) == 1
    eventually(lambda: not cluster.run("qstat", "-j", job_id, check=False))


def test_the_number_of_commands_does_not_depend_on_the_number_of_jobs(work: Work, cluster: ThrowawayGridEngine) -> None:
    with running(work, cluster, poll_seconds=1.0) as manager:
        began = time.monotonic()
        for handle in [manager.submit(work.order(f"a{i}", seconds=1)) for i in range(12)]:
            success_of(handle)
        polls, memories = manager.commands.counts["qstat"], manager.commands.counts["qacct"]
    assert polls <= (time.monotonic() - began) / 1.0 + 3
    assert memories == 0, "who has left a result is not looked for in the accounting file"
