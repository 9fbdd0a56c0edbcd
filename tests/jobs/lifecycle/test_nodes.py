"""Broken nodes and what is learnt of them and of tasks: as plain bookkeeping, and in a driver on stand-ins of Slurm."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fake_cluster import PATIENCE, FakeCluster
from job_work import Work

from espo_luigi.jobs.causes import Cause
from espo_luigi.jobs.lifecycle.policy import next_record
from espo_luigi.jobs.lifecycle.state import Handle, Success
from espo_luigi.jobs.lifecycle.submit import NodeWatch
from espo_luigi.jobs.resources import GIB, JobOptions
from espo_luigi.jobs.schedulers.script import task_name
from espo_luigi.jobs.settings import BatchSettings


def excluded_by(call: str) -> list[str]:
    return [word.partition("=")[2] for word in call.split() if word.startswith("--exclude=")]


class Nodes:
    """Lets each pending job run on a node that it may go to; on a broken one it ends at once.

    All jobs go to the first of `names`, or, `spread`, one after the other.
    """

    def __init__(self, fake: FakeCluster, names: list[str], broken: set[str], spread: bool = False) -> None:
        self.fake, self.names, self.broken, self.spread = fake, names, broken, spread
        self.started: list[str] = []

    def play(self) -> None:
        rows = [line.split("|") for line in (self.fake.folder / "jobs").read_text().splitlines()]
        for row, call in zip(rows, self.fake.calls("sbatch"), strict=False):
            if row[1] == "PENDING":
                excluded = ",".join(excluded_by(call)).split(",")
                names = [name for name in self.names if name not in excluded]
                node = names[int(row[0]) % len(names) if self.spread else 0]
                self.started.append(node)
                row[1], row[2] = ("FAILED" if node in self.broken else "COMPLETED"), node
                if node not in self.broken:
                    self.fake.finish(self._task(row[4]), row[0])
        (self.fake.folder / "jobs").write_text("".join("|".join(row) + "\n" for row in rows))

    def _task(self, name: str) -> str:
        return next(h.order.label for h in self.handles if name.startswith(h.task + ".")).split("=")[1].rstrip(")")

    handles: list[Handle]


def run_tasks(fake: FakeCluster, work: Work, nodes: Nodes, n_tasks: int, seconds: float, **settings: float) -> None:
    manager = fake.manager(retries=2, **settings)
    nodes.handles = [manager.submit(work.order(f"t{i}")) for i in range(n_tasks)]
    go_on(fake, nodes, seconds, settings.get("poll_seconds", 0.3))


def go_on(fake: FakeCluster, nodes: Nodes, seconds: float, step: float) -> None:
    until = fake.clock.now() + seconds
    while fake.clock.now() < until and not all(handle.outcome for handle in nodes.handles):
        fake.clock.go_on(step)
        if (fake.folder / "jobs").exists():
            nodes.play()


def test_a_node_where_jobs_end_at_once_costs_no_task_more_than_one_job(
    fake: FakeCluster, work: Work, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = Nodes(fake, ["n1", "n2"], broken={"n1"})
    run_tasks(fake, work, nodes, n_tasks=12, seconds=60)
    assert all(isinstance(handle.outcome, Success) for handle in nodes.handles)
    assert len(nodes.started) <= 24
    assert caplog.text.count("node n1: jobs of 3 tasks") == 1
    n_calls = len(fake.calls("sbatch"))
    nodes.handles = [*nodes.handles, fake.managers[0].submit(work.order("later"))]
    fake.eventually(lambda: len(fake.calls("sbatch")) > n_calls)
    assert excluded_by(fake.calls("sbatch")[-1]) == ["n1"]


def test_where_all_jobs_end_at_once_submission_is_held_and_one_job_is_tried_at_a_time(
    fake: FakeCluster, work: Work, caplog: pytest.LogCaptureFixture
) -> None:
    names = [f"n{i}" for i in range(1, 40)]
    nodes = Nodes(fake, names, broken=set(names), spread=True)
    run_tasks(fake, work, nodes, n_tasks=20, seconds=1500, poll_seconds=5.0, result_seconds=5.0)
    assert not any(handle.outcome for handle in nodes.handles)
    assert len(nodes.started) == 22, "the twenty that were under way, and one after each hold"
    assert max(handle.progress.attempt for handle in nodes.handles) == 2, "tasks take turns"
    assert caplog.text.count("after 600 s, one job is tried") == 3
    nodes.broken = set()
    go_on(fake, nodes, seconds=1000, step=5.0)
    assert all(isinstance(handle.outcome, Success) for handle in nodes.handles)
    assert "submission goes on" in caplog.text


def test_a_node_where_a_job_did_well_is_not_suspected_for_what_came_before() -> None:
    watch = NodeWatch()
    watch.crashed("a", "n1", 0)
    watch.crashed("b", "n1", 1)
    watch.does_well("n1", 1)
    watch.crashed("c", "n1", 2)
    assert watch.excluded == ()


def test_a_job_under_which_a_file_system_failed_clears_no_node_of_suspicion(fake: FakeCluster, work: Work) -> None:
    manager = fake.manager(retries=1)
    watch = manager._nodes
    handle = fake.submitted(work.order("a"), manager)
    now = fake.clock.now()
    for task in "bc":
        watch.crashed(task, "n1", now - 1)
    fake.set_state("RUNNING")
    fake.eventually(lambda: handle.progress.state == "running")
    fake.finish("a", "1", outcome="files", exception="OSError: [Errno 28] No space left on device")
    fake.set_state("FAILED")
    fake.eventually(lambda: handle.progress.attempt == 2)
    watch.crashed("d", "n1", now)
    assert watch.excluded == ("n1",)


def test_a_job_that_had_started_before_says_nothing_of_the_node_now() -> None:
    watch = NodeWatch()
    watch.crashed("a", "n1", 10)
    watch.crashed("b", "n1", 11)
    watch.does_well("n1", 5)
    watch.crashed("c", "n1", 12)
    assert watch.excluded == ("n1",)


def test_tasks_that_can_only_run_on_a_node_that_is_avoided_count_there() -> None:
    watch = NodeWatch()
    for number in range(3):
        watch.crashed(f"t{number}", "n1", number)
    for number in range(3, 9):
        assert watch.avoided_by(f"t{number}") == ("n1",)
        watch.allow_all(f"t{number}")
        assert watch.avoided_by(f"t{number}") == ()
        watch.crashed(f"t{number}", "n1", number)
    assert watch.in_trouble


def test_one_task_that_ends_again_and_again_is_no_broken_node() -> None:
    watch = NodeWatch()
    for now in range(10):
        watch.crashed("a", "n1", now)
    assert watch.excluded == () and not watch.in_trouble


def test_never_more_than_half_of_the_nodes_seen_are_avoided() -> None:
    watch = NodeWatch()
    for number in range(6):
        for task in "abc":
            watch.crashed(task, f"n{number}", 0)
    assert len(watch.excluded) == 3


def test_after_an_hour_the_run_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    watch, now, tried = NodeWatch(), 0.0, 0
    for number in range(6):
        watch.crashed(f"t{number}", "", now)
    while watch.in_trouble:
        now += 30
        if not watch.held(now):
            tried += 1
            watch.submitted(now)
            watch.crashed(f"t{tried}", "", now + 1)
    assert 3600 <= now <= 4000 and tried == 6
    assert "after an hour: submission goes on" in caplog.text
    for number in range(10):
        watch.crashed(f"u{number}", "", now)
    assert not watch.in_trouble, "until a job does well"


def test_a_job_from_before_the_trouble_does_not_end_it() -> None:
    watch = NodeWatch()
    for number in range(6):
        watch.crashed(f"t{number}", "", 100.0)
    watch.does_well("n1", 50.0)
    assert watch.in_trouble
    watch.does_well("n1", 170.0)
    assert not watch.in_trouble


def test_what_a_task_needed_in_one_run_is_what_it_starts_with_in_the_next(fake: FakeCluster, work: Work) -> None:
    request = work.order("a", memory_bytes=100 * GIB, time_minutes=100)
    first = fake.manager(memory_cap_bytes=140 * GIB, retries=3)
    handle = fake.submitted(request, first)
    fake.set_state("OUT_OF_MEMORY")
    fake.eventually(lambda: handle.progress.job_id == "2", PATIENCE.latency_wait + 5)
    fake.finish("a", "2")
    assert isinstance(fake.outcome(handle, 5), Success)
    first.detach()
    (work.folder / "results" / "a").unlink()
    again = fake.manager(memory_cap_bytes=140 * GIB).submit(request)
    fake.eventually(lambda: again.progress.job_id == "3")
    asked = [word for word in fake.calls("sbatch")[-1].split() if word.startswith(("--mem", "--time"))]
    assert asked == [f"--mem={140 * 1024}M", "--time=100"]


def test_what_the_cluster_never_gives_is_not_asked_for_again(fake: FakeCluster, work: Work) -> None:
    request = work.order("a", memory_bytes=100 * GIB)
    first = fake.manager(retries=3)
    handle = fake.submitted(request, first)
    refusal = "sbatch: error: Memory specification can not be satisfied"
    fake.misbehave("sbatch", f"fail {refusal}")
    fake.set_state("OUT_OF_MEMORY")
    assert fake.failure(handle, PATIENCE.latency_wait + 5).cause is Cause.REFUSED
    record = first.store.load(handle.task)
    assert record is not None and record.memory_bytes == 150 * GIB
    assert first.submitter.first_record(handle.task, request, record).memory_bytes == 100 * GIB


def test_a_smaller_request_counts_where_nothing_was_learnt_and_a_larger_one_always(
    fake: FakeCluster, work: Work
) -> None:
    manager = fake.manager()
    plan = manager.submitter.first_record
    request = work.order("a", memory_bytes=10 * GIB)
    name = task_name("run", "rule", {"name": "a"})
    asked_much = plan(name, work.order("a", memory_bytes=50 * GIB), None)
    assert plan(name, request, asked_much).memory_bytes == 10 * GIB
    grown = next_record(plan(name, request, None), Cause.MEMORY, BatchSettings(retries=1))
    assert plan(name, request, grown).memory_bytes == 15 * GIB
    assert plan(name, work.order("a", memory_bytes=20 * GIB), grown).memory_bytes == 20 * GIB


@pytest.mark.parametrize(
    ("state", "now", "cap", "asked"),
    [
        ("OUT_OF_MEMORY", {"memory_bytes": 64 * GIB}, {}, "--mem=65536M --time=100"),
        ("OUT_OF_MEMORY", {"memory_bytes": 5 * GIB}, {}, "--mem=6144M --time=100"),
        ("OUT_OF_MEMORY", {"memory_bytes": 4 * GIB}, {"memory_cap_bytes": 5 * GIB}, "--mem=5120M --time=100"),
        ("TIMEOUT", {"time_minutes": 600}, {}, "--mem=4096M --time=600"),
        ("TIMEOUT", {"time_minutes": 90}, {"time_cap_minutes": 120}, "--mem=4096M --time=120"),
        ("NODE_FAIL", {"memory_bytes": 2 * GIB, "time_minutes": 30}, {}, "--mem=2048M --time=30"),
    ],
)
def test_a_setting_that_is_changed_counts_for_a_job_that_an_earlier_driver_planned(
    fake: FakeCluster, work: Work, state: str, now: dict[str, int], cap: dict[str, int], asked: str
) -> None:
    before = {"memory_bytes": 4 * GIB, "time_minutes": 100}
    first = fake.manager(retries=3, patience=replace(PATIENCE, first_refusal=1000, longest_refusal=1000))
    handle = fake.submitted(work.order("a", **before), first)
    # A refused submission holds all that follow.
    fake.misbehave("sbatch", "fail sbatch: error: Batch job submission failed: Socket timed out")
    first.submit(work.order("b"))
    fake.eventually(lambda: first.submitter.held(fake.clock.now()))
    fake.set_state(state)
    fake.eventually(lambda: getattr(first.store.load(handle.task), "submission", 0) == 2)
    first.cancel_all()
    fake.behave("sbatch")
    again = fake.submitted(work.order("a", **{**before, **now}, cpus_per_task=3), retries=3, **cap)
    assert again.task == handle.task
    sizes = [word for word in fake.calls("sbatch")[-1].split() if word.startswith(("--mem", "--time", "--cpus"))]
    assert sizes == ["--cpus-per-task=3", *asked.split()]


def test_a_memory_raised_while_a_job_is_out_counts_for_its_next_try(fake: FakeCluster, work: Work) -> None:
    first = fake.manager(retries=3)
    fake.submitted(work.order("a", memory_bytes=4 * GIB), first)
    first.detach()
    handle = fake.submitted(work.order("a", memory_bytes=64 * GIB), retries=3)
    assert handle.progress.job_id == "1"
    fake.set_state("OUT_OF_MEMORY")
    fake.eventually(lambda: handle.progress.job_id == "2", PATIENCE.latency_wait + 5)
    assert f"--mem={64 * 1024}M" in fake.calls("sbatch")[-1]


def test_nodes_that_the_user_excludes_meanwhile_get_no_job_that_an_earlier_driver_planned(
    fake: FakeCluster, work: Work
) -> None:
    fake.misbehave("sbatch", "fail sbatch: error: Batch job submission failed: Socket timed out")
    first = fake.manager()
    handle = first.submit(work.order("a", options=JobOptions(exclude=("n7",))))
    fake.eventually(lambda: fake.calls("sbatch"))
    first.detach()
    fake.behave("sbatch")
    second = fake.submitted(work.order("a", options=JobOptions(exclude=("n8",))))
    assert handle.task == second.task
    assert excluded_by(fake.calls("sbatch")[-1]) == ["n8"]
