"""The stale tasks at the end of a run, the keys of their changes, and the command that makes them again."""

import json
import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import luigi
import pytest
from luigi.interface import run as luigi_run

from espo_luigi import SlurmTask, install
from espo_luigi.driver.board import FILE, board, forget_board
from espo_luigi.driver.graph import Graph
from espo_luigi.driver.stale import program_words, stale_lines, told_of

install()


class Old(SlurmTask):
    """Complete, unless `is_there` says otherwise, and made of something that has changed under `keys` since."""

    name = luigi.Parameter()
    keys = luigi.ListParameter(default=[])
    is_there = luigi.BoolParameter(default=True, parsing=luigi.BoolParameter.EXPLICIT_PARSING)

    def complete(self) -> bool:
        return bool(self.is_there)

    def stale(self) -> list[str]:
        return [str(key) for key in self.keys]


class Product(Old):
    """Made of a store that was deleted since, and of a table that is there, and is stale itself if the table is."""

    def requires(self) -> list[luigi.Task]:
        return [Old(name="store", is_there=False), Old(name="table", keys=self.keys)]


class Products(luigi.WrapperTask):
    """Two stale products and a current one."""

    keys = luigi.ListParameter(default=[])

    def requires(self) -> list[luigi.Task]:
        return [Product(name="one", keys=self.keys), Product(name="two", keys=self.keys), Old(name="other")]


class Part(Products):
    """Has words for a part of it, which leaves out what its products are made of."""

    def words_to_run(self, words: Sequence[str], rules: set[str]) -> list[str]:
        return [word for word in words if word != "--part" or rules <= {"Product"}]


def told(root: luigi.Task, words: list[str] | None) -> list[str]:
    return list(stale_lines(told_of(Graph([root], check=True), words)))


def test_the_lines_say_how_many_of_which_rules_because_of_which_keys_and_what_makes_them_again() -> None:
    lines = told(Products(keys=["a.b", "c"]), ["Products", "--keys", '["a.b"]'])
    assert lines == [
        "STALE: 3 task(s) are complete and used as they are, but what they were made of has changed since:",
        "  1 Old, 2 Product: because of a.b, c",
        "This makes them again, 4 task(s) with those that they need:",
        f"  {shlex.join(program_words())} Products --keys '[\"a.b\"]' --espo-rerun stale",
    ]


def test_of_many_keys_some_are_named() -> None:
    assert "because of 0, 1, 2, 3, 4, and 3 more" in told(Products(keys=[*map(str, range(8))]), [])[1]


@pytest.mark.parametrize("root", [Products(), Old(name="one")])
def test_where_nothing_is_stale_there_are_no_lines(root: luigi.Task) -> None:
    assert told(root, []) == []


def test_what_is_missing_is_not_stale_and_what_it_is_made_of_may_be() -> None:
    lines = told(Product(name="failed", keys=["a"], is_there=False), [])
    assert lines[1:3] == ["  1 Old: because of a", "This makes them again, 1 task(s) with those that they need:"]


def test_a_program_that_runs_the_tasks_is_told_the_setting() -> None:
    assert told(Products(keys=["a"]), None)[-1] == "  the same program, with `rerun = stale` below [espo] in luigi.cfg"


def test_words_that_would_leave_out_what_is_made_again_are_not_in_the_command() -> None:
    assert told(Part(keys=["a"]), ["Part", "--part"])[-1].endswith(" Part --espo-rerun stale")


@pytest.mark.parametrize(
    ("argv", "started", "expected"),
    [
        (["{bin}/luigi", "All"], ["python", "{bin}/luigi", "All"], ["luigi"]),
        (["{bin}/other/luigi", "All"], ["python", "{bin}/other/luigi", "All"], ["{bin}/other/luigi"]),
        (["/x/luigi/__main__.py", "All"], ["python3", "-m", "luigi", "All"], ["python3", "-m", "luigi"]),
        (["run.py"], ["python3", "run.py"], ["python3", "run.py"]),
    ],
)
def test_the_command_begins_as_it_was_given(
    argv: list[str], started: list[str], expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for script in (tmp_path / "luigi", tmp_path / "other" / "luigi"):
        script.parent.mkdir(exist_ok=True)
        script.touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    for name, words in (("argv", argv), ("orig_argv", started)):
        monkeypatch.setattr(sys, name, [word.format(bin=tmp_path) for word in words])
    assert program_words() == [word.format(bin=tmp_path) for word in expected]


def test_the_file_of_another_driver_that_is_at_work_is_left_alone(own_workdir: Path) -> None:
    own_workdir.mkdir()
    state = {"root": "All", "pid": 1, "ended": False, "updated": time.time()}
    (own_workdir / FILE).write_text(json.dumps(state))
    forget_board()
    board().expect("All", "local", [])
    board().note_stale(own_workdir, {"rules": {}})
    assert json.loads((own_workdir / FILE).read_text()) == state


def test_what_is_stale_is_noted_for_status_where_there_was_nothing_to_do_and_forgotten_when_it_is_not_any_more(
    own_workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_workdir.mkdir()
    before = {"root": str(Products()), "pid": 0, "ended": True, "updated": 0.0, "outcome": "done"}
    (own_workdir / FILE).write_text(json.dumps(before))
    os.utime(own_workdir / FILE, (1000, 1000))
    words = ["Products", "--local-scheduler", "--no-lock"]
    monkeypatch.setattr(sys, "argv", ["luigi", *words])
    monkeypatch.setattr(Old, "stale", lambda task: ["a.b"])
    assert luigi_run()
    state = json.loads((own_workdir / FILE).read_text())
    assert state["stale"]["rules"]["Product"] == {"tasks": 2, "keys": ["a.b"]}
    assert state["stale"]["command"].endswith("Products --local-scheduler --no-lock --espo-rerun stale")
    monkeypatch.setattr(Old, "stale", lambda task: [])
    assert luigi_run()
    assert json.loads((own_workdir / FILE).read_text()) == {**before, "stale": {}}
    assert (own_workdir / FILE).stat().st_mtime == 1000, "the last sign of life of the driver whose run it was"
