"""Groups of tasks start as scratch space has room: the decision, the account, and a run's end without room."""

import logging
from collections.abc import Sequence

import luigi
import pytest
from luigi.configuration import get_config
from luigi.scheduler import Scheduler

from espo_luigi import SlurmTask
from espo_luigi.driver.board import board
from espo_luigi.driver.scheduler import LinearScheduler
from espo_luigi.driver.scratch import Scratch, Use, admitted
from espo_luigi.driver.settings.espo import amount_of
from espo_luigi.driver.worker import EspoWorker
from espo_luigi.errors import ConfigurationError
from espo_luigi.overview.timing import TimedTask, timing

GB = 10**9


def test_groups_start_in_their_order_as_long_as_all_that_they_will_write_has_room() -> None:
    uses = {name: Use(0, need, 1) for name, need in {"a": 4, "b": 3, "c": 3, "d": 1}.items()}
    assert admitted("abcd", [], uses, 10) == ["a", "b", "c"]
    assert admitted("abcd", [], uses, 11) == ["a", "b", "c", "d"]
    assert admitted("d", ["a", "b", "c"], uses, 10) == []


def test_stores_on_the_disk_count_whoever_has_left_them_and_so_do_tasks_of_no_group() -> None:
    uses = {"a": Use(0, 4, 1), "b": Use(0, 4, 1), "failed": Use(3, 0, 0), "": Use(0, 0, 1)}
    assert admitted("ab", [], uses, 10) == ["a"]
    assert admitted("ab", [], uses, 11) == ["a", "b"]
    assert admitted("ab", [], uses | {"": Use(2, 3, 1)}, 12) == ["a"]
    assert admitted("ab", [], uses | {"": Use(2, 3, 1)}, 11) == []


def test_a_group_at_work_keeps_room_for_what_it_has_yet_to_write_and_gives_the_rest_back() -> None:
    assert admitted("b", ["a"], {"a": Use(2, 6, 3), "b": Use(0, 3, 1)}, 10) == []
    assert admitted("b", ["a"], {"a": Use(2, 5, 3), "b": Use(0, 3, 1)}, 10) == ["b"]


def test_a_smaller_group_does_not_overtake_one_that_waits_for_groups_at_work() -> None:
    uses = {"a": Use(5, 0, 1), "large": Use(0, 9, 1), "small": Use(0, 1, 1)}
    assert admitted(["large", "small"], ["a"], uses, 10) == []


def test_it_does_overtake_one_that_what_others_left_keeps_out() -> None:
    uses = {"a": Use(2, 0, 1), "large": Use(0, 9, 1), "small": Use(0, 1, 1), "failed": Use(2, 0, 0)}
    assert admitted(["large", "small"], ["a"], uses, 10) == ["small"]


def test_a_restarted_group_counts_once_what_it_has_and_one_that_only_frees_space_starts_in_any_case() -> None:
    assert admitted("a", [], {"a": Use(6, 4, 1)}, 10) == ["a"]
    assert admitted("ab", [], {"a": Use(12, 0, 1), "b": Use(0, 1, 1)}, 10) == ["a"]


def test_the_account_follows_what_tasks_write_delete_and_fail_to_write() -> None:
    scratch = Scratch(10)
    for name, writes in (("a1", 4), ("a2", 4), ("b1", 6)):
        scratch.expect(name, name[0], writes=writes, on_disk=0, is_left=True)
    assert [scratch.admits(name) for name in "abab"] == [True, False, True, False]
    scratch.note("a1", on_disk=1, is_left=False)  # less than was expected
    assert not scratch.admits("b"), "1 is there, 4 and 6 are to come"
    scratch.note("a2", on_disk=3, is_left=False)
    assert scratch.admits("b"), "4 are there, 6 to come"
    scratch.expect("c1", "c", writes=2, on_disk=0, is_left=True)
    assert not scratch.admits("c")
    scratch.note("b1", is_left=False)
    assert scratch.admits("c")


@pytest.mark.parametrize(("text", "size"), [("20TB", 20e12), ("1.5 GB", 1.5e9), ("2GiB", 2**31), ("", None)])
def test_the_limit_is_in_decimal_units_as_disks_are(text: str, size: float | None) -> None:
    get_config().set("espo", "scratch_limit", text)
    assert amount_of("scratch_limit") == size


def test_a_limit_that_is_no_size_is_refused() -> None:
    get_config().set("espo", "scratch_limit", "much")
    with pytest.raises(ConfigurationError, match=r"^luigi.cfg, \[espo\]: scratch_limit = much: "):
        amount_of("scratch_limit")


ran: list[str] = []
stores: dict[str, int] = {}
# The pools that had stores on the disk whenever a step had written, and the bytes of all.
together: list[set[str]] = []
held: list[int] = []


class Step(SlurmTask):
    """Steps 0 and 1 of a pool each write a store of 3 GB, which goes with the last step that needs it; 2 is the end."""

    pool = luigi.Parameter()
    number = luigi.IntParameter()
    fails = luigi.Parameter(default="", significant=False)

    @property
    def name(self) -> str:
        return f"{self.pool}{self.number}"

    def requires(self) -> list[luigi.Task]:
        return [Step(pool=self.pool, number=self.number - 1, fails=self.fails)] if self.number else []

    def scratch_group(self) -> str:
        return str(self.pool)

    @classmethod
    def scratch_to_write(cls, tasks: Sequence[SlurmTask]) -> list[float]:
        return [3.0 * GB if isinstance(task, Step) and task.number < 2 else 0.0 for task in tasks]

    @classmethod
    def scratch_on_disk(cls, tasks: Sequence[SlurmTask]) -> list[int]:
        return [stores.get(task.name, 0) for task in tasks if isinstance(task, Step)]

    def delete_temporary(self) -> None:
        stores.pop(self.name, None)

    def complete(self) -> bool:
        return self.name in stores or self.name in ran

    def run(self) -> None:
        if self.name in str(self.fails).split():
            raise ValueError("no luck")
        if self.number < 2:
            stores[self.name] = 3 * GB
        together.append({name[0] for name in stores})
        held.append(sum(stores.values()))
        ran.append(self.name)


class Pools(luigi.WrapperTask):
    """All steps of some pools, which come in their order; no other task needs their stores."""

    names = luigi.Parameter()
    fails = luigi.Parameter(default="")
    covers_everything = True

    def requires(self) -> list[luigi.Task]:
        return [Step(pool=name, number=2, fails=self.fails) for name in reversed(str(self.names))]


@pytest.fixture(autouse=True)
def heard(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    ran.clear()
    stores.clear()
    together.clear()
    held.clear()
    monkeypatch.setattr(logging.getLogger("espo_luigi"), "propagate", True)
    caplog.set_level(logging.INFO, "espo_luigi")


def work(root: luigi.Task, limit: str = "", scheduler: Scheduler | None = None) -> bool:
    get_config().set("espo", "scratch_limit", limit)
    scheduler = scheduler or LinearScheduler(retry_count=1)
    worker = EspoWorker(scheduler=scheduler, worker_processes=6, wait_interval=0.01, wait_jitter=0.0)
    with worker:
        return bool(worker.add(root) and worker.run())


def test_pools_are_on_the_disk_one_after_the_other(caplog: pytest.LogCaptureFixture) -> None:
    assert work(Pools("abc"), "7GB")
    assert {len(pools) for pools in together} <= {0, 1}
    assert max(held) == 6 * GB
    assert (sorted(ran), stores) == ([pool + number for pool in "abc" for number in "012"], {})
    assert caplog.text.count("waits for room on scratch") == 2


def test_with_more_room_or_without_a_limit_they_are_there_together(caplog: pytest.LogCaptureFixture) -> None:
    assert work(Pools("abc"), "18GB")
    assert max(map(len, together)) > 1
    ran.clear()
    assert work(Pools("abc"))
    assert "waits for room" not in caplog.text


def test_a_scheduler_that_has_to_look_at_all_tasks_starts_none_without_room() -> None:
    scheduler = LinearScheduler(retry_count=1)
    scheduler._needs_all = True
    assert work(Pools("abc"), "7GB", scheduler)
    assert {len(pools) for pools in together} <= {0, 1}


def test_a_pool_larger_than_the_limit_is_refused_before_anything_starts(caplog: pytest.LogCaptureFixture) -> None:
    assert not work(Pools("ab"), "5.9GB")
    assert (
        "[espo] scratch_limit = 5.9GB, but a alone needs 6 GB for temporary stores (and 1 more are too" in caplog.text
    )
    assert ran == []


def test_what_a_failed_pool_has_left_counts_and_without_room_the_run_ends_with_a_sentence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert not work(Pools("abc", "a1"), "8GB")
    assert (ran, stores) == (["a0"], {"a0": 3 * GB})
    (said,) = [record.getMessage() for record in caplog.records if "no room" in record.getMessage()]
    assert "scratch_limit = 8GB, of which temporary stores take 3 GB (3 GB of a). b, c cannot start; b has 6 GB" in said
    assert board().state.failures["scratch"].message.startswith("no room")
    assert board().state.outcome == "failed"


def test_a_failed_pool_writes_nothing_more_and_the_others_go_on_beside_what_it_left() -> None:
    assert not work(Pools("abc", "a0"), "7GB")
    assert sorted(ran) == [pool + number for pool in "bc" for number in "012"]
    ran.clear()
    assert not work(Pools("abc", "a1"), "9GB")
    assert sorted(ran) == ["a0", *(pool + number for pool in "bc" for number in "012")]
    assert {len(pools - {"a"}) for pools in together} <= {0, 1}
    assert max(held) == 9 * GB


def test_a_restart_counts_what_is_there_and_begins_with_the_pool_that_has_room() -> None:
    stores["b0"] = 3 * GB
    assert work(Pools("abc"), "8GB")
    assert ran[:2] == ["b1", "b2"], "beside b's store there is no room for the 6 GB of a"
    assert {len(pools) for pools in together} <= {0, 1}


def test_a_disk_that_does_not_answer_leaves_the_last_known_size(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sizes = Step.scratch_on_disk

    def failing(tasks: Sequence[SlurmTask]) -> list[int]:
        if ran[-1:] == ["a1"]:
            raise OSError(5, "Input/output error")
        return sizes(tasks)

    monkeypatch.setattr(Step, "scratch_on_disk", failing)
    assert work(Pools("ab"), "9GB")
    assert sorted(ran) == [pool + number for pool in "ab" for number in "012"]
    assert "is not known: [Errno 5]" in caplog.text


def test_luigis_own_scheduler_cannot_keep_a_limit(caplog: pytest.LogCaptureFixture) -> None:
    assert not work(Pools("a"), "9GB", Scheduler(retry_count=1))
    assert "give --local-scheduler" in caplog.text


def test_a_plan_waits_as_a_run_does() -> None:
    steps = {f"{pool}{n}": TimedTask(1, {}, 3.0 if n < 2 else 0.0) for pool in "abc" for n in range(3)}
    needs = {f"{pool}{n}": [f"{pool}{n - 1}"] for pool in "abc" for n in (1, 2)}

    def account(limit: int) -> Scratch:
        scratch = Scratch(limit)
        for name, step in steps.items():
            scratch.expect(name, name[0], writes=step.temporary_bytes, on_disk=0, is_left=True)
        return scratch

    assert (timing(steps, needs, {}).seconds, timing(steps, needs, {}).temporary_bytes) == (3, 18)
    one = timing(steps, needs, {}, scratch=account(7))
    assert (one.seconds, one.temporary_bytes, one.no_room) == (9, 6, "")
    kept = timing(steps, needs, {}, scratch=account(7), deletes=False)
    assert (kept.seconds, kept.temporary_bytes) == (3, 6)
    assert "b, c cannot start" in kept.no_room
