"""The driver's own scheduler answers as Luigi's does, and looks at no more tasks than it must."""

from collections.abc import Callable
from typing import Any

import luigi
import pytest
from luigi.scheduler import PENDING, Scheduler
from luigi.scheduler import Task as Entry

from espo_luigi import SlurmTask
from espo_luigi.driver.scheduler import LinearScheduler
from espo_luigi.driver.worker import EspoWorker

ran: list[str] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    ran.clear()


class Note(SlurmTask):
    """Note that it ran; complete once it has."""

    name = luigi.Parameter()
    rank = luigi.IntParameter(default=0)
    fails = luigi.BoolParameter(default=False)
    tokens = luigi.IntParameter(default=0)
    needs = luigi.TupleParameter(default=())

    @property
    def priority(self) -> int:  # type: ignore[override]
        return int(self.rank)

    @property
    def resources(self) -> dict[str, int]:  # type: ignore[override]
        return {"token": int(self.tokens)} if self.tokens else {}

    def requires(self) -> list[luigi.Task]:
        return [MADE[name] for name in self.needs]

    def complete(self) -> bool:
        return str(self.name) in ran

    def run(self) -> None:
        if self.fails:
            raise ValueError(f"{self.name} fails")
        ran.append(str(self.name))


MADE: dict[str, Note] = {}


def note(name: str, **parameters: Any) -> Note:
    MADE[name] = Note(name=name, **parameters)
    return MADE[name]


def work(scheduler: Scheduler, *roots: luigi.Task, processes: int = 1) -> bool:
    worker = EspoWorker(scheduler=scheduler, worker_processes=processes, wait_interval=0.01, wait_jitter=0.0)
    with worker:
        added = all([worker.add(root) for root in roots])
        return worker.run() and added


Make = Callable[..., Scheduler]


@pytest.fixture(params=[LinearScheduler, Scheduler])
def make(request: pytest.FixtureRequest) -> Make:
    """Each test holds for Luigi's own scheduler too, which is the oracle."""
    return lambda **more: request.param(**{"retry_count": 1, "prune_on_get_work": True, **more})


def test_tasks_run_after_what_they_need(make: Make) -> None:
    note("a")
    note("b", needs=("a",))
    note("c", needs=("a",))
    assert work(make(), note("d", needs=("c", "b")), processes=3)
    assert ran[0] == "a"
    assert ran[-1] == "d"
    assert len(ran) == 4


def test_what_needs_a_failed_task_is_not_run_and_the_rest_is(make: Make) -> None:
    note("a", fails=True)
    note("b", needs=("a",))
    note("c", needs=("b",))
    note("x")
    assert not work(make(), note("c", needs=("b",)), note("y", needs=("x",)))
    assert ran == ["x", "y"]


def test_the_highest_priority_comes_first_and_is_handed_down_to_what_it_needs(make: Make) -> None:
    note("low", rank=1)
    note("middle", rank=5)
    note("base")
    note("high", rank=9, needs=("base",))
    assert work(make(), *[MADE[name] for name in ("low", "middle", "high")])
    assert ran == ["base", "high", "middle", "low"]


def test_resources_are_never_exceeded(make: Make) -> None:
    running: list[int] = []
    most: list[int] = []
    scheduler = make(resources={"token": 3})
    original = scheduler.get_work

    def counted(**asked: Any) -> Any:
        answer = original(**asked)
        entries = scheduler._state.get_active_tasks_by_status("RUNNING")
        running.append(sum(entry.resources.get("token", 0) for entry in entries))
        most.append(max(running))
        return answer

    scheduler.get_work = counted  # type: ignore[method-assign]
    assert work(scheduler, *[note(f"t{i}", tokens=2 if i % 2 else 1) for i in range(8)], processes=8)
    assert len(ran) == 8
    assert max(most) == 3


def test_a_failed_task_is_tried_again_after_the_retry_delay(make: Make) -> None:
    attempts: list[int] = []

    class Flaky(Note):
        retry_count = 5

        def run(self) -> None:
            attempts.append(1)
            if len(attempts) < 3:
                raise ValueError("not yet")
            super().run()

    scheduler = make(retry_count=5, retry_delay=0.0)
    worker = EspoWorker(scheduler=scheduler, worker_processes=1, wait_interval=0.01, wait_jitter=0.0, keep_alive=True)
    with worker:
        worker.add(Flaky(name="flaky"))
        worker.run()
    assert len(attempts) == 3
    assert ran == ["flaky"]


def test_a_task_whose_dependency_is_no_longer_done_waits_again(make: Make) -> None:
    scheduler = make(stable_done_cooldown_secs=0)
    scheduler.add_task(worker="w", task_id="a", status="DONE")
    scheduler.add_task(worker="w", task_id="b", deps=["a"])
    scheduler.add_task(worker="w", task_id="a", status=PENDING)
    assert scheduler.get_work(worker="w", current_tasks=[])["task_id"] == "a"
    assert scheduler.get_work(worker="w", current_tasks=["a"])["task_id"] is None
    scheduler.add_task(worker="w", task_id="a", status="DONE")
    assert scheduler.get_work(worker="w", current_tasks=[])["task_id"] == "b"


def test_the_answer_at_the_end_counts_what_is_left(make: Make) -> None:
    scheduler = make()
    scheduler.add_task(worker="w", task_id="a", deps=["missing"])
    answer = scheduler.get_work(worker="w", current_tasks=[])
    assert answer["task_id"] is None
    assert answer["n_pending_tasks"] == 1


def looks_at_tasks(n: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Number of times that the scheduler reads a task's status while a root with `n` tasks below it runs."""
    looks = [0]

    class Counted(Entry):
        @property
        def status(self) -> str:  # type: ignore[override]
            looks[0] += 1
            return self.__dict__["status"]

        @status.setter
        def status(self, value: str) -> None:
            self.__dict__["status"] = value

    monkeypatch.setattr("luigi.scheduler.Task", Counted)
    scheduler = LinearScheduler()
    ids = [f"t{i}" for i in range(n)]
    scheduler.add_task(worker="w", task_id="root", deps=ids)
    for task_id in ids:
        scheduler.add_task(worker="w", task_id=task_id)
    for _ in range(n + 1):
        task_id = scheduler.get_work(worker="w", current_tasks=[])["task_id"]
        scheduler.add_task(worker="w", task_id=task_id, status="DONE")
    assert task_id == "root"
    return looks[0]


def test_ten_times_the_tasks_take_ten_times_the_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert looks_at_tasks(1000, monkeypatch) < 10.5 * looks_at_tasks(100, monkeypatch)
