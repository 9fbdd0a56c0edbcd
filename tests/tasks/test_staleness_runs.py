"""Staleness while production goes on: runs that end half way, inputs of several ages, files that change meanwhile."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import luigi
import pytest
from complete_demo import edit, in_order, publish
from demo_runs import use
from luigi.configuration import get_config
from test_staleness import fewer_quantiles

from espo_luigi import store, tasks
from espo_luigi.tasks import clean
from espo_luigi.tasks.base import EspoTask

ENGINE = "biasadjust.variables.tasmax.training_args"


def graph() -> list[EspoTask]:
    luigi.task_register.Register.clear_instance_cache()
    return in_order(tasks.All())


def publish_again(which: Callable[[EspoTask], bool]) -> list[EspoTask]:
    """Publish anew, each after what it needs, as a run under the present configuration does."""
    made = [task for task in graph() if which(task)]
    for task in made:
        publish(task, task.marker())
    return made


def is_whole(task: EspoTask) -> bool:
    return isinstance(task, tasks.ConcatenationFinal)


@pytest.mark.parametrize("remade", ["south", "north"])
def test_a_product_of_older_and_newer_parts_is_stale_whichever_comes_first(complete_demo: Path, remade: str) -> None:
    edit(complete_demo / "config.yml", fewer_quantiles)
    rules = tasks.Train | tasks.Adjust | tasks.CleanUp | tasks.FinalZarr
    publish_again(lambda task: isinstance(task, rules) and getattr(task, "region", "") == remade)
    (whole, *_) = publish_again(is_whole)
    assert whole.stale() == [ENGINE]


def test_a_key_that_a_rule_and_its_older_input_read_is_that_of_the_older(complete_demo: Path) -> None:
    edit(complete_demo / "config.yml", lambda content: content["custom"].update(maximal_calendar="standard"))
    (adjusted, *_) = publish_again(lambda task: isinstance(task, tasks.Adjust) and task.var == "tasmax")
    assert "custom.maximal_calendar" in adjusted.in_training.task.stale()
    assert "custom.maximal_calendar" in adjusted.stale()


def test_what_a_killed_run_has_made_anew_is_not_left_over_while_its_products_are_stale(complete_demo: Path) -> None:
    edit(complete_demo / "config.yml", fewer_quantiles)
    rules = tasks.Train | tasks.Adjust
    made = publish_again(lambda task: isinstance(task, rules) and (task.var, task.region) == ("tasmax", "south"))
    assert not any(task.stale() for task in made)
    left = {leftover.path for leftover in clean.leftovers()}
    assert not left & {path for task in made for path in task.temporary_paths()}
    older = next(task for task in graph() if isinstance(task, tasks.Adjust) and task.stale())
    assert left >= set(older.temporary_paths())


def test_a_temporary_store_made_anew_says_nothing_of_the_kept_one_beside_it(complete_demo: Path) -> None:
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


def test_an_input_that_was_made_anew_is_a_reason(complete_demo: Path) -> None:
    reference = next(task for task in graph() if isinstance(task, tasks.RefDefault) and task.region == "south")
    publish(reference, dataclasses.replace(reference.marker(), versions={"espo_luigi": "of another day"}))
    calendars = [task for task in graph() if isinstance(task, tasks.ReferenceCalendar) and task.region == "south"]
    assert [task.stale() for task in calendars] == [["input RefDefault region=south"]] * len(calendars) != []
    assert all(task.complete() for task in calendars)
    get_config().set("espo", "rerun", "stale")
    assert not any(task.complete() for task in calendars)
