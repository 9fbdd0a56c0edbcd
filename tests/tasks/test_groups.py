"""Rules of variables that are adjusted together: what a task costs, and which settings it depends on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import luigi
import pytest
from any_variables import KNOWN, PERIOD, configuration, write_raw
from complete_demo import edit, in_order, publish
from demo_runs import use
from luigi.configuration import LuigiConfigParser

from espo_luigi import tasks
from espo_luigi.tasks import partition
from espo_luigi.tasks.context import context
from espo_luigi.tasks.cost import Basis, Experience

SIM = "CMIP6_ScenarioMIP_X_Any_ssp370_r1i1p1f1_gn"
NAMES = ["tasmax", "dtr", "pr"]
MBCN = {
    "method": "MBCn",
    "variables": NAMES,
    "training_args": {"period": KNOWN, "group": {"group": "time.dayofyear", "window": 31}},
    "adjusting_args": {"periods": PERIOD, "moving_yearly_window": None},
}


@pytest.fixture()
def config(tmp_path: Path, own_settings: LuigiConfigParser) -> Path:
    """The configuration of a production that adjusts three variables together."""
    write_raw(tmp_path / "raw", ["tasmax", "tasmin", "pr"])
    files = configuration(tmp_path, tmp_path / "raw", NAMES, v2=False)
    more: dict[str, Any] = {"biasadjust": {"variables": {"joint": MBCN}}, "clean_up": {"temperatures": "derived"}}
    edit(files[0], lambda content: content.update(more))
    use(files, tmp_path)
    own_settings.set("espo", "final_format", "sharded")
    return files[0]


def adjusting(var: str = "joint") -> tasks.Adjust:
    luigi.task_register.Register.clear_instance_cache()
    return tasks.Adjust(pool=SIM, piece="all", var=var)


def test_a_group_s_task_is_as_large_as_all_of_its_variables(config: Path) -> None:
    of_joint = adjusting().work_size()
    assert of_joint == pytest.approx(partition.size_of(context(), {"pool": SIM, "piece": "all"}))
    edit(config, lambda content: content["biasadjust"]["variables"]["joint"].update(variables=NAMES[:2]))
    assert adjusting().work_size() == pytest.approx(of_joint * 2 / 3)


def other_setting_of_pr(joint: dict[str, Any]) -> None:
    joint["training_args"]["by_variable"] = {"pr": {"nquantiles": 30}}


def without_pr(joint: dict[str, Any]) -> None:
    joint["variables"] = NAMES[:2]


@pytest.mark.parametrize(("change", "key"), [(other_setting_of_pr, "training_args"), (without_pr, "variables")])
def test_a_changed_setting_of_one_variable_makes_its_group_stale(
    config: Path, change: Callable[[dict[str, Any]], None], key: str
) -> None:
    publish(adjusting(), adjusting().marker())
    assert adjusting().stale() == []
    edit(config, lambda content: change(content["biasadjust"]["variables"]["joint"]))
    assert f"biasadjust.variables.joint.{key}" in adjusting().stale()


def renamed(content: dict[str, Any]) -> None:
    content["biasadjust"]["variables"] = {"all-three": content["biasadjust"]["variables"]["joint"]}


def with_pr_alone(content: dict[str, Any]) -> None:
    content["biasadjust"]["variables"]["joint"]["variables"] = NAMES[:2]
    content["biasadjust"]["variables"]["pr"] = {}


@pytest.mark.parametrize("change", [renamed, with_pr_alone])
def test_a_renamed_group_and_a_variable_that_leaves_it_make_the_product_stale(
    config: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    def product() -> tasks.ConcatenationFinal:
        luigi.task_register.Register.clear_instance_cache()
        return tasks.ConcatenationFinal(sim_id=SIM)

    for task in in_order(product()):
        publish(task, task.marker())
    assert product().complete() and product().stale() == []
    edit(config, change)
    assert any(key.startswith("biasadjust.variables.joint.") for key in product().stale(files=False))
    assert {task.var for task in in_order(product()) if isinstance(task, tasks.Adjust) and not task.complete()} == {
        *context().config.biasadjust.variables
    } - {"joint"}


def test_the_cost_of_a_group_is_learnt_from_jobs_of_its_own_only(config: Path, tmp_path: Path) -> None:
    edit(config, with_pr_alone)
    alone, together = adjusting("pr"), adjusting()
    results = tmp_path / "ended" / "jobs" / "Adjust"
    results.mkdir(parents=True)

    def ended(task: tasks.Adjust, seconds: float) -> None:
        told = {"outcome": "success", "family": "Adjust", "parameters": {**task.wildcards, "cpus_per_task": "1"}}
        numbers = {"started": 0.0, "ended": seconds, "peak_memory_bytes": 10**9, "size": task.work_size()}
        (results / f"{task.var}.result.json").write_text(json.dumps(told | numbers))

    ended(alone, 100.0)
    before = [Experience([tmp_path / "ended"]).expected(task, task.allocation) for task in (alone, together)]
    assert before[0].basis == Basis.JOBS and before[1].basis == Basis.TABLE, "measured for MBCn"
    ended(together, 700.0)
    after = [Experience([tmp_path / "ended"]).expected(task, task.allocation) for task in (alone, together)]
    assert [cost.core_hours * 3600 for cost in after] == pytest.approx([100.0, 700.0])
