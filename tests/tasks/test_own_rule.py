"""A rule in a user's module: the code of the how-to page is planned, run, shown and made stale like our rules."""

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from complete_demo import DAY360, NOLEAP, edit
from demo_runs import use
from luigi.configuration import LuigiConfigParser
from luigi.task_register import Register
from others_packages import code_blocks

from espo_luigi import store
from espo_luigi.commands import cli
from espo_luigi.errors import ParameterError
from espo_luigi.tasks import CleanUp, ConcatenationFinal, make


def scenario() -> xr.Dataset:
    """Three years of a product: the second has 10 days above 25 °C, the third 30, at each of six cells."""
    time = xr.date_range("1981-01-01", "1983-12-31", freq="D", use_cftime=True, calendar="noleap")
    days = np.full(time.size, 290.0, "float32")
    days[365 : 365 + 10] = days[730 : 730 + 30] = 300.0
    lat, lon = [45.0, 45.5], [-66.0, -65.5, -65.0]
    data = np.broadcast_to(days[:, None, None], (days.size, 2, 3))
    attrs = {"units": "K", "standard_name": "air_temperature", "cell_methods": "time: maximum within days"}
    coords: Any = {"time": time, "lat": lat, "lon": lon}
    return xr.DataArray(data, coords, ("time", "lat", "lon"), "tasmax", attrs).chunk(time=365).to_dataset()


@pytest.fixture()
def folder(
    tmp_path: Path, configured: Any, own_settings: LuigiConfigParser, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A run's folder with the page's module beside its luigi.cfg, where the products of 2024 are complete."""
    files = configured()
    for sim_id in (NOLEAP, DAY360):
        task = ConcatenationFinal(sim_id=sim_id)
        store.write_store(scenario(), task.out_scenario().path, task.marker())
        store.pack(task.out_scenario().path, task.out_final().path, task.marker())
    (tmp_path / "mine.py").write_text(code_blocks("own-rule.md")["python"][0])
    settings = f"[espo]\nworkdir = {tmp_path / 'run'}\nconfig = {' '.join(map(str, files))}\n"
    (tmp_path / "luigi.cfg").write_text(settings)
    monkeypatch.syspath_prepend(tmp_path)
    rules = list(Register._reg)
    yield tmp_path
    # Luigi calls a rule ambiguous that a later test's module registers again.
    Register._reg[:] = rules
    for name in ("mine", "rain"):
        sys.modules.pop(name, None)


def test_a_rule_in_a_module_of_one_s_own_is_planned_run_shown_and_made_stale(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(*words: str) -> str:
        assert cli.main(list(words)) == 0
        return capsys.readouterr().out

    before = told("plan", "--module", "mine")
    assert re.search(r"^SummerDays +- +2 ", before, re.MULTILINE), before
    program = [str(Path(sys.executable).parent / "luigi"), "--module", "mine", "SummerDays", "--sim-id", "NoLeap"]
    environment = {**os.environ, "PYTHONPATH": "."}
    ran = subprocess.run(
        [*program, "--local-scheduler"], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    made = store.open_store(folder / f"final/indicators/{NOLEAP}+summer-days.zarr.zip")
    assert made["summer_days"].values[:, 1, 1].tolist() == [0, 10, 30]
    assert "SummerDays" in told("status")
    edit(folder / "config.yml", lambda content: content["custom"]["ref_period"].__setitem__(1, "2021"))
    use([folder / "config.yml", folder / "paths.yml"], folder)
    after = told("plan", "--module", "mine", "--rerun", "stale", "--tasks")
    assert re.search(r"SummerDays[^\n]*changed: .*custom\.ref_period", after), after
    everything = importlib.import_module("mine").AllSummerDays().requires()
    assert {task.sim_id for task in everything} == {NOLEAP, DAY360}


def test_why_make_and_rules_know_the_rules_of_a_module(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / f"final/indicators/{NOLEAP}+summer-days.zarr.zip"
    assert make.task_for(path, "mine").label() == f"SummerDays sim_id={NOLEAP}"
    for command, words in {"why": ["SummerDays", NOLEAP], "rules": []}.items():
        assert cli.main([command, *words, "--module", "mine"]) == 0
    said = capsys.readouterr().out
    assert f"SummerDays sim_id={NOLEAP}" in said and re.search(
        r"^SummerDays +sim_id +Days of each year", said, re.MULTILINE
    )


def test_a_rule_after_cleanup_has_its_task_for_each_region_and_what_a_finished_run_deleted_is_made_again(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "rain.py").write_text(code_blocks("own-rule.md")["python"][1])
    try:
        assert cli.main(["plan", "--module", "rain"]) == 0
    finally:
        sys.modules.pop("rain", None)
    plan = capsys.readouterr().out
    assert re.search(r"^RegionalRain +- +6 ", plan, re.MULTILINE), plan
    assert re.search(r"^CleanUp +- +6 ", plan, re.MULTILINE) and "ConcatenationFinal" not in plan, plan
    rain = importlib.import_module("rain").RegionalRain(sim_id=NOLEAP, piece="south")
    assert rain.in_cleaned().path == CleanUp(sim_id=NOLEAP, piece="south").out_cleaned_up().path
    days = xr.date_range("1981-01-01", periods=730, calendar="noleap", use_cftime=True)
    made = rain.compute(xr.Dataset({"pr": ("time", np.repeat([1.0, 3.0], 365))}, {"time": days}))
    assert made["pr"].values.tolist() == [1.0, 3.0]


def test_a_module_that_is_not_there_or_has_no_rule_is_refused(folder: Path) -> None:
    with pytest.raises(ParameterError, match=r"--module nowhere: .*PYTHONPATH=\."):
        make.tasks_of("nowhere")
    with pytest.raises(ParameterError, match="--module json: it defines no rule"):
        make.tasks_of("json")
