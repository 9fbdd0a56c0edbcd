"""Outputs that only other tasks need are released when the last of those is done, never before."""

import io
import json
import logging
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import luigi
import pytest

from espo_luigi import SlurmTask
from espo_luigi.driver.board import board, forget_board
from espo_luigi.driver.graph import Graph
from espo_luigi.driver.install import show_progress_on_stderr
from espo_luigi.driver.run import Run
from espo_luigi.driver.status import status_of
from espo_luigi.driver.worker import EspoWorker
from espo_luigi.errors import Failure, StoreError

released: list[str] = []


class Made(SlurmTask):
    name = luigi.Parameter()

    def delete_temporary(self) -> None:
        released.append(str(self.name))


class User(SlurmTask):
    """A root that covers everything: no task outside of its graph needs its inputs."""

    name = luigi.Parameter()
    covers_everything = True

    def requires(self) -> list[luigi.Task]:
        return [Made(name="shared"), Made(name=f"of {self.name}")]


class Stubborn(SlurmTask):
    def delete_temporary(self) -> None:
        raise StoreError("Device or resource busy")


class OneOfMany(User):
    covers_everything = False


class Step(SlurmTask):
    n = luigi.IntParameter()

    def requires(self) -> list[luigi.Task]:
        return [Step(n=self.n - 1)] if self.n else []


class StubbornUser(SlurmTask):
    covers_everything = True

    def requires(self) -> list[luigi.Task]:
        return [Stubborn()]


@pytest.fixture(autouse=True)
def heard(monkeypatch: pytest.MonkeyPatch) -> None:
    released.clear()
    monkeypatch.setattr(logging.getLogger("espo_luigi"), "propagate", True)


def planned(run: Run, root: luigi.Task, *pending: luigi.Task) -> None:
    run.add(Graph([root], check=True), {task.task_id: True for task in pending})


def test_an_output_goes_with_the_last_task_that_needs_it() -> None:
    run, one, two = Run(), User(name="one"), User(name="two")
    planned(run, one, one)
    planned(run, two, two)
    run.delete_temporary(run.left_over())
    assert released == []
    run.ended(one, None, 1.0)
    assert released == ["of one"]
    run.ended(two, None, 1.0)
    assert released == ["of one", "shared", "of two"]


class Packer(SlurmTask):
    """A task that packs what it makes: others read the archive."""

    def delete_temporary(self) -> None:
        released.append("packed")


class ReaderOfArchives(User):
    def requires(self) -> list[luigi.Task]:
        return [Packer(), Made(name="read")]

    def reads_temporary(self, needs: Sequence[luigi.Task]) -> Sequence[luigi.Task]:
        return [need for need in needs if isinstance(need, Made)]


def test_what_no_task_reads_any_more_goes_at_once_though_tasks_need_the_archive_beside_it() -> None:
    run, reader = Run(), ReaderOfArchives(name="one")
    planned(run, reader, reader, *reader.requires())
    for made in reader.requires():
        run.ended(made, None, 1.0)
    assert released == ["packed"]
    again = Run()
    planned(again, reader, reader)
    assert again.left_over() == [Packer()], "that of a killed run goes when the next one begins"
    run.ended(reader, None, 1.0)
    assert {*released} == {"packed", "read"}


def test_a_run_of_a_part_deletes_nothing_that_others_may_need() -> None:
    run, finished, part = Run(), OneOfMany(name="finished"), OneOfMany(name="part")
    planned(run, finished)
    planned(run, part, part)
    run.delete_temporary(run.left_over())
    run.ended(part, None, 1.0)
    assert released == []


def test_beside_a_root_that_covers_everything_a_part_is_no_reason_to_keep() -> None:
    run, everything, part = Run(), User(name="all"), OneOfMany(name="part")
    planned(run, everything, everything)
    planned(run, part, part)
    run.ended(part, None, 1.0)
    assert released == ["of part"]


def test_a_task_whose_input_is_gone_is_tried_again_a_few_times_and_what_is_made_again_counts_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "espo_luigi")
    run, user = Run(), User(name="one")
    planned(run, user, user, *user.requires())
    for made in user.requires():
        run.ended(made, None, 1.0)
    assert [run.use_a_try(user) for _ in range(4)] == [True, True, True, False]
    run.add(Graph([user], check=True), {user.requires()[0].task_id: True}, again=True)
    run.ended(user.requires()[0], None, 1.0)
    run.ended(user, None, 1.0)
    told = [record.getMessage().split("]")[0] for record in caplog.records if record.getMessage().startswith("[")]
    assert told == ["[1/3", "[2/3", "[2/3", "[3/3"]


class Everything(luigi.WrapperTask):
    def requires(self) -> list[luigi.Task]:
        return [Made(name="one")]


def test_a_task_that_is_no_job_does_not_count_as_in_a_plan(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "espo_luigi")
    run, everything = Run(), Everything()
    planned(run, everything, everything, *everything.requires())
    run.ended(everything.requires()[0], None, 1.0)
    run.ended(everything, None, 1.0)
    assert [one.getMessage() for one in caplog.records if "done" in one.getMessage()] == [
        "[1/1] Made name=one done in 1.0 s"
    ]


def test_a_failure_keeps_what_the_next_run_will_need() -> None:
    run, one = Run(), User(name="one")
    planned(run, one, one)
    run.delete_temporary(run.left_over())
    run.ended(one, Failure(one.label(), "out of luck"), 1.0)
    assert released == []


def test_a_complete_root_does_not_take_away_what_the_next_root_needs() -> None:
    run, complete, pending = Run(), User(name="complete"), User(name="pending")
    planned(run, complete)
    planned(run, pending, pending)
    run.delete_temporary(run.left_over())
    assert released == ["of complete"]


def test_what_was_asked_for_is_kept() -> None:
    run, asked = Run(), Made(name="asked")
    planned(run, asked, asked)
    run.ended(asked, None, 1.0)
    run.delete_temporary(run.left_over())
    assert released == []


def test_an_output_that_cannot_be_deleted_does_not_stop_the_run(caplog: pytest.LogCaptureFixture) -> None:
    run, user = Run(), StubbornUser()
    planned(run, user, user)
    run.ended(user, None, 1.0)
    assert "Device or resource busy" in caplog.text
    run.delete_temporary(run.left_over())


def test_the_end_of_a_run_names_each_failure_once_and_forgets_one_that_was_made_good(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run, one, two = Run(), User(name="one"), User(name="two")
    planned(run, one, one)
    planned(run, two, two)
    run.ended(one, Failure.of(one.label(), OSError("no such host")), 1.0)
    run.ended(two, Failure(two.label(), "memory", attempts=2, job_id="7"), 1.0)
    run.ended(two, None, 1.0)
    run.report()
    told = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert told == ["1 of 2 tasks done, 1 failed:", "  User name=one failed: OSError: no such host"]


def test_the_end_of_a_run_tells_a_cause_once_and_names_the_tasks_that_failed_alike(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run, users = Run(), [User(name=str(number)) for number in range(8)]
    for user in users:
        planned(run, user, user)
        run.ended(user, Failure(user.label(), "OSError: no space", log_path=Path(f"/logs/{user.name}")), 1.0)
    run.report()
    told = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    named = ", ".join(user.label() for user in users[:5])
    assert told == [
        "0 of 8 tasks done, 8 failed:",
        f"  User name=7 failed: OSError: no space\n    log: /logs/7\n  7 more failed alike: {named}, …",
    ]


CHECKS = "HealthCheckError: The following health checks failed:\n  - pr is 2\n  - tas is 3"
LOG = Path("/there/it.log")


def told_of_a_failure(failure: Failure, caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the lines of the closing summary of a run whose one task failed so."""
    run, one = Run(), User(name="one")
    planned(run, one, one)
    run.ended(one, failure, 1.0)
    run.report()
    return "\n".join(record.getMessage() for record in caplog.records if record.levelname == "ERROR").splitlines()[1:]


def test_the_end_of_a_run_tells_all_lines_of_a_reason_and_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    failure = Failure("User name=one", CHECKS, log_path=LOG, tail="    x = 1\n    ValueError: x")
    told = [*f"User name=one failed: {CHECKS}".splitlines(), f"  log: {LOG}"]
    assert told_of_a_failure(failure, caplog) == [f"  {line}" for line in told]


def test_of_an_absurdly_long_reason_the_end_of_a_run_tells_the_beginning_and_where_the_whole_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = "\n".join(told_of_a_failure(Failure("User name=one", "ab " * 5000, log_path=LOG), caplog))
    assert "failed: ab ab" in told and len(told) < 4500
    assert told.endswith(f"(11000 characters more, in the log: {LOG})\n    log: {LOG}")


def test_a_table_shows_a_reason_of_several_lines_in_one(caplog: pytest.LogCaptureFixture) -> None:
    forget_board()
    told_of_a_failure(Failure("User name=one", CHECKS, log_path=LOG), caplog)
    (failed,) = status_of(board().snapshot(), time.time()).lists["failed"]
    assert failed == f"User name=one failed: {' '.join(CHECKS.split())} log: {LOG}"
    forget_board()


def test_what_a_run_keeps_of_a_failure_has_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    forget_board()
    told_of_a_failure(Failure("User name=one", "no catalogue at https://me:hunter2@host/"), caplog)
    assert "hunter2" not in json.dumps(board().snapshot(), default=str)
    forget_board()


def test_a_chain_of_more_tasks_than_python_calls_can_be_deep_is_planned() -> None:
    graph = Graph([Step(n=2 * sys.getrecursionlimit())], check=True)
    assert [task.n for task in graph] == list(range(2 * sys.getrecursionlimit() + 1))


def test_the_log_in_a_terminal_has_no_control_characters_of_files_that_it_quotes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    package = logging.getLogger("espo_luigi")
    monkeypatch.setattr(package, "handlers", [])
    monkeypatch.setattr(package, "propagate", package.propagate)
    screen = io.StringIO()
    monkeypatch.setattr("sys.stderr", screen)
    show_progress_on_stderr()
    logging.getLogger("espo_luigi.catalog").warning("%s is dropped:\n\tsaid %s", "a\x1b[2Jb\x9b1mc\u202e", {"n": 1})
    assert screen.getvalue().endswith(" a\\x1b[2Jb\\x9b1mc\\u202e is dropped:\n\tsaid {'n': 1}\n")


def test_an_account_without_a_name_is_told_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr("getpass.getuser", nobody)
    assert f"username={os.getuid()})" in EspoWorker._generate_worker_id(object(), {})  # type: ignore[arg-type]
