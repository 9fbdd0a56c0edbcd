"""Staleness while production goes on: runs that end half way, inputs of several ages, files that change meanwhile."""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import luigi
import pytest
from complete_demo import edit, in_order, publish
from demo_runs import use
from luigi.configuration import get_config
from test_staleness import fewer_quantiles

from espo_luigi import store, tasks
from espo_luigi.driver.board import FILE
from espo_luigi.driver.graph import Graph
from espo_luigi.driver.stale import told_of
from espo_luigi.overview import states
from espo_luigi.overview.plan import plan_of
from espo_luigi.tasks import clean, staleness
from espo_luigi.tasks.all import Selection, widened
from espo_luigi.tasks.base import EspoTask

ENGINE = "biasadjust.variables.tasmax.training_args"


def graph() -> list[EspoTask]:
    luigi.task_register.Register.clear_instance_cache()
    return in_order(tasks.All())


def publish_again(which: Callable[[EspoTask], bool]) -> list[EspoTask]:
    """Publish again, in the order of a run under the present configuration."""
    made = [task for task in graph() if which(task)]
    for task in made:
        publish(task, task.marker())
    return made


def is_whole(task: EspoTask) -> bool:
    return isinstance(task, tasks.ConcatenationFinal)


@pytest.mark.parametrize("remade", ["south", "north"])
def test_a_product_of_older_and_newer_parts_is_stale_whichever_comes_first(complete_demo: Path, remade: str) -> None:
    edit(complete_demo / "config.yml", fewer_quantiles)
    rules = tasks.Train | tasks.Adjust | tasks.CleanUp
    publish_again(lambda task: isinstance(task, rules) and getattr(task, "piece", "") == remade)
    (whole, *_) = publish_again(is_whole)
    assert whole.stale() == [ENGINE]


def test_a_key_that_a_rule_and_its_older_input_read_is_that_of_the_older(complete_demo: Path) -> None:
    edit(complete_demo / "config.yml", lambda content: content["custom"].update(maximal_calendar="standard"))
    (adjusted, *_) = publish_again(lambda task: isinstance(task, tasks.Adjust) and task.var == "tasmax")
    assert "custom.maximal_calendar" in adjusted.in_training[0].task.stale()
    assert "custom.maximal_calendar" in adjusted.stale()


def test_remade_stores_of_a_killed_run_are_not_left_over_while_their_products_are_stale(complete_demo: Path) -> None:
    edit(complete_demo / "config.yml", fewer_quantiles)
    rules = tasks.Train | tasks.Adjust
    made = publish_again(lambda task: isinstance(task, rules) and (task.var, task.piece) == ("tasmax", "south"))
    assert not any(task.stale() for task in made)
    left = {leftover.path for leftover in clean.leftovers()}
    assert not left & {path for task in made for path in task.temporary_paths()}
    older = next(task for task in graph() if isinstance(task, tasks.Adjust) and task.stale())
    assert left >= set(older.temporary_paths())


def test_a_remade_temporary_store_does_not_refresh_the_kept_store_beside_it(complete_demo: Path) -> None:
    edit(complete_demo / "config.yml", fewer_quantiles)
    whole = next(task for task in graph() if is_whole(task))
    (scenario,) = whole.temporary_paths()
    (scenario / store.MARKER_NAME).write_text(store.Marker(whole.get_task_family(), whole.wildcards).to_json())
    assert whole.stale() == [ENGINE]


def test_raw_files_that_change_while_a_run_goes_on_fail_no_task(complete_demo: Path, own_raw: Path) -> None:
    use([complete_demo / "config.yml", complete_demo / "paths.yml"], complete_demo)
    for task in graph():
        publish(task, task.marker())
    get_config().set("espo", "rerun", "stale")
    extract = next(task for task in graph() if isinstance(task, tasks.Extract))
    assert extract.complete()
    raw = extract.raw_files()[0]
    raw.write_bytes(raw.read_bytes() + b"more")
    # Its job is another process, which looks at the files itself.
    seen = dict(extract.context.fingerprints)
    extract.context.fingerprints.clear()
    publish(extract, extract.marker())
    extract.context.fingerprints.update(seen)
    assert extract.complete()


def test_a_store_that_was_made_under_this_configuration_of_an_older_input_is_warned_of_by_its_keys(
    complete_demo: Path, log: pytest.LogCaptureFixture
) -> None:
    edit(complete_demo / "config.yml", fewer_quantiles)
    (adjusted, *_) = publish_again(lambda task: isinstance(task, tasks.Adjust) and task.var == "tasmax")
    staleness._warned_for.clear()
    log.clear()
    assert adjusted.complete() and adjusted.complete()
    (said,) = [record.getMessage() for record in log.records if "was made of" in record.getMessage()]
    assert f"(changed: {ENGINE})" in said
    assert adjusted.context.config.hash not in said  # its marker has it, too


def run_luigi(folder: Path, *words: str) -> tuple[int, list[str]]:
    """Run Luigi's command in a folder; return its exit code and its log."""
    command = [str(Path(sys.executable).parent / "luigi"), "--module", "espo_luigi.tasks", *words, "--local-scheduler"]
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    ended = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    return ended.returncode, ended.stderr.splitlines()


def test_a_run_with_nothing_to_do_ends_with_the_stale_tasks_and_their_command_as_plan_and_status_do(
    complete_demo: Path,
) -> None:
    config = f"--espo-config={complete_demo / 'config.yml'} {complete_demo / 'paths.yml'}"
    (complete_demo / "luigi.cfg").write_text("[espo]\nfinal_format = sharded\nworkdir = run\n")
    edit(complete_demo / "config.yml", fewer_quantiles)
    board = {"root": "All", "pid": 0, "started": 0.0, "ended": True, "updated": 0.0, "rules": {}, "jobs": {}}
    (complete_demo / "run").mkdir(exist_ok=True)
    (complete_demo / "run" / FILE).write_text(json.dumps(board | {"engine": "local", "failures": {}}))
    code, said = run_luigi(complete_demo, "All", config)
    *_, head, rules, again, command = said
    assert code == 0 and sum("changed" in line for line in said) == 2
    plan = plan_of((), Selection())
    stale = [one for one in plan.tasks.values() if one.status.changed]
    assert f"STALE: {len(stale)} task(s)" in head
    assert f"{sum(one.rule == 'Move' for one in stale)} Move" in rules and rules.endswith(f": because of {ENGINE}")
    assert f" {len(plan.again)} task(s)" in again
    assert command == f"  luigi --module espo_luigi.tasks All '{config}' --local-scheduler --espo-rerun stale"
    assert states.render(states.read())[-4:] == [head.partition("WARNING ")[2], rules, again, command]


def test_the_command_for_a_stale_rule_is_without_only_if_earlier_rules_are_stale(complete_demo: Path) -> None:
    def told(root: luigi.Task) -> str:
        luigi.task_register.Register.clear_instance_cache()
        return str(told_of(Graph([root], check=True), ["All", "--only", "HealthChecks"])["command"])

    edit(complete_demo / "config.yml", lambda content: content["health_checks"].update(freq="M"))
    assert told(tasks.All(only="HealthChecks")).endswith(" All --only HealthChecks --espo-rerun stale")
    edit(complete_demo / "config.yml", fewer_quantiles)
    assert told(tasks.All(only="HealthChecks")).endswith(" All --until HealthChecks --espo-rerun stale")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("All --from Train --sim-id A", "All --sim-id A"),
        ("--from=Train All --only=Move", "All --until Move"),
        ("All --until Train", "All --until Train"),
    ],
)
def test_words_of_a_part_are_widened_to_earlier_rules(words: str, expected: str) -> None:
    assert widened(words.split()) == expected.split()


def test_a_remade_input_is_a_reason(complete_demo: Path) -> None:
    reference = next(task for task in graph() if isinstance(task, tasks.RefDefault) and task.piece == "south")
    publish(reference, dataclasses.replace(reference.marker(), versions={"espo_luigi": "of another day"}))
    calendars = [task for task in graph() if isinstance(task, tasks.ReferenceCalendar) and task.piece == "south"]
    assert [task.stale() for task in calendars] == [["input RefDefault piece=south"]] * len(calendars) != []
    assert all(task.complete() for task in calendars)
    get_config().set("espo", "rerun", "stale")
    assert not any(task.complete() for task in calendars)
