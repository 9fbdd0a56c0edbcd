"""A run that other usual settings have begun does not go on with today's, and pieces of two ways are never joined."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import luigi
import pytest
from complete_demo import complete_all, in_order, publish, remove, set_key
from luigi.configuration import get_config

from espo_luigi import tasks
from espo_luigi.config import usual
from espo_luigi.driver.graph import Graph
from espo_luigi.errors import ConfigurationError
from espo_luigi.overview.plan import plan_of
from espo_luigi.overview.plan_text import render_plan
from espo_luigi.overview.states import BLOCKED, RUN
from espo_luigi.tasks import product
from espo_luigi.tasks.all import Selection
from espo_luigi.tasks.base import EspoTask
from espo_luigi.tasks.context import forget

OTHER = (
    r"begun by other usual settings than `usual: 2027-01`: `biasadjust.variables.\w+.adjusting_args` of .*rerun = stale"
)
PER_PIECE = (tasks.Adjust, tasks.CleanUp, tasks.Move)


def checked() -> None:
    """What a driver does before it submits anything."""
    luigi.task_register.Register.clear_instance_cache()
    Graph([tasks.All()], check=True)


def of(rule: type[EspoTask], **wildcards: str) -> list[EspoTask]:
    luigi.task_register.Register.clear_instance_cache()
    found = [task for task in in_order(tasks.All()) if isinstance(task, rule)]
    return [task for task in found if task.wildcards.items() >= wildcards.items()]


@pytest.fixture
def begun_before(complete_demo: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The demo by usual settings, complete by those of a version that searched the plane and named none."""
    # It opens the reference's grid, which has nothing in it here.
    monkeypatch.setattr(product, "_look_where_pieces_meet", lambda _: None)
    set_key(complete_demo / "config.yml", "biasadjust.variables", dict.fromkeys(("dtr", "tasmax", "pr")))
    todays: Callable[..., Any] = usual.usual_settings

    def former(*given: Any, **how: Any) -> Any:
        made = todays(*given, **how)
        made["adjusting_args"]["xclim_adjust_args"]["interp"] = "nearest"
        return made

    with monkeypatch.context() as patch:
        patch.setattr(usual, "usual_settings", former)
        patch.setattr(tasks.adjustment.VariableTask, "reading", EspoTask.reading)
        forget()
        luigi.task_register.Register.clear_instance_cache()
        complete_all()
    forget()
    return complete_demo


def test_a_half_finished_run_is_refused_before_anything_is_submitted_and_the_plan_names_the_difference(
    begun_before: Path,
) -> None:
    checked()  # complete: it is used as it is
    sim_id = of(tasks.ConcatenationFinal)[-1].sim_id
    before = (*PER_PIECE, tasks.Extract, tasks.Regrid, tasks.Train)
    gone = [
        one for one in in_order(tasks.All()) if getattr(one, "sim_id", "") == sim_id and not isinstance(one, before)
    ]
    remove(*gone, *(one for rule in PER_PIECE for one in of(rule, piece="south") if sim_id in one.wildcards.values()))
    with pytest.raises(ConfigurationError, match=OTHER):
        checked()
    plan = plan_of((), Selection())
    blocked = [one for one in plan.of(BLOCKED) if one.rule == "Adjust"]
    assert len(blocked) == 3
    assert not {one.rule for one in plan.of(RUN)} & {"Train", "Adjust", "CleanUp", "ConcatenationFinal"}
    assert "usual settings than `usual: 2027-01`" in render_plan(plan)
    get_config().set("espo", "rerun", "stale")
    checked()


def test_one_finished_simulation_is_enough(begun_before: Path) -> None:
    """Products of two ways would make one ensemble."""
    *_, last = of(tasks.ConcatenationFinal)
    gone = [task for task in in_order(tasks.All()) if getattr(task, "pool", getattr(task, "sim_id", "")) == last.sim_id]
    remove(*gone)
    with pytest.raises(ConfigurationError, match=OTHER):
        checked()


def test_settings_that_a_version_without_names_had_too_are_no_others(complete_demo: Path) -> None:
    set_key(complete_demo / "config.yml", "biasadjust.variables", dict.fromkeys(("dtr", "tasmax", "pr")))
    luigi.task_register.Register.clear_instance_cache()
    complete_all()
    for task in of(tasks.Adjust):
        marker = task.marker()
        assert marker.fingerprints["usual"] == "2027-01"
        unnamed = {key: one for key, one in marker.fingerprints.items() if key != "usual"}
        publish(task, dataclasses.replace(marker, fingerprints=unnamed))
    remove(*of(tasks.ConcatenationFinal), of(tasks.Adjust)[0])
    for task in of(tasks.Adjust):
        task.check()


def test_pieces_of_different_settings_are_not_joined_whoever_gave_them(complete_demo: Path) -> None:
    quantiles = "biasadjust.variables.tasmax.training_args.xclim_train_args.nquantiles"
    set_key(complete_demo / "config.yml", quantiles, 40)
    assert "usual" not in of(tasks.Adjust)[0].marker().fingerprints, "all of the demo's settings are written"
    joined = of(tasks.ConcatenationFinal)[0]
    with joined.guarded():  # as each job's work is
        assert joined.stale(), "all pieces are of the former settings"
    for rule in (tasks.Train, tasks.Adjust, tasks.CleanUp):
        for task in of(rule, piece="south"):
            publish(task, task.marker())
    with pytest.raises(
        ConfigurationError, match=r"in two ways cannot be joined: `biasadjust.variables.tasmax.training_args`"
    ):
        joined.guarded().__enter__()
