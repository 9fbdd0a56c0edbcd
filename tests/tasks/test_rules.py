"""Every rule has the reference workflow's files, parameters and resources, and refuses impossible values."""

import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import luigi
import numpy as np
import pytest
import xarray as xr
from complete_demo import OTHER_RULES, edit
from luigi.cmdline_parser import CmdlineParser

from espo_luigi import store, tasks
from espo_luigi.driver.graph import Graph
from espo_luigi.errors import InputChangedError, ParameterError, UnknownPathError
from espo_luigi.jobs.resources import Resources
from espo_luigi.tasks.base import EspoTask
from espo_luigi.tasks.context import context
from espo_luigi.tasks.make import rules, task_for
from espo_luigi.tasks.partition import simulations_of
from espo_luigi.tasks.ports import InputPort, ports_of

DIAGNOSED = "FIN/diagnostics/{diag_domain}/"
# rule: (its outputs, workers, cpus, memory), from the table of the reference workflow's rules.
REFERENCE = {
    "RefDefault": ("FIN/reference/{ref_source}+{piece}+default.zarr", 2, 10, "50GB"),
    "ReferenceCalendar": ("FIN/reference/{ref_source}+{piece}+{calendar}.zarr", 2, 10, "50GB"),
    "Extract": ("TMP/{sim_id}+NAM+extracted.zarr", 2, 10, "50GB"),
    "Regrid": ("TMP/{sim_id}+{piece}+regridded.zarr", 3, 9, "48GB"),
    "Train": ("TMP/{pool}+{piece}+{var}+training.zarr", 3, 12, "100GB"),
    "Adjust": ("TMP/{pool}+{piece}+{var}+adjusted.zarr", 3, 15, "100GB"),
    "CleanUp": ("TMP/{sim_id}+{piece}+cleaned_up.zarr", 2, 6, "50GB"),
    "Move": (
        "FIN/NAM_SPLIT/{piece}/day+{sim_id}+{piece}+1950-2100.zarr.zip "
        "FIN/regridded/day+{sim_id}+{piece}+regchunked.zarr.zip",
        2,
        10,
        "50GB",
    ),
    "ConcatenationFinal": (
        "TMP/day+{sim_id}+NAM+1950-2100.zarr FIN/final/NAM/day+{sim_id}+NAM_1950-2100.zarr.zip",
        12,
        12,
        "60GB",
    ),
    "HealthChecks": ("FIN/checks/NAM/{sim_id}+NAM_checks.zarr", 8, 40, "40GB"),
    "OffDiagRefProp": (f"{DIAGNOSED}{{ref_source}}+{{diag_domain}}+diag_ref_prop.zarr.zip", 3, 15, "60GB"),
    "OffDiagSimPropMeas": (f"{DIAGNOSED}{{sim_id}}+{{diag_domain}}+diag_sim_meas.zarr.zip", 3, 15, "60GB"),
    "OffDiagScenPropMeas": (f"{DIAGNOSED}{{sim_id}}+{{diag_domain}}+diag_scen_meas.zarr.zip", 3, 15, "60GB"),
    "DiagMeasuresImprovement": (f"{DIAGNOSED}{{sim_id}}+{{diag_domain}}+improvement.zarr.zip", 3, 15, "6GB"),
}
WILDCARDS = {
    "drs": "espo-g6",
    "folder": "/netcdf",
    "sim_id": "SIM",
    "truth": "TRUTH",
    "pool": "SIM",
    "piece": "south",
    "var": "pr",
    "calendar": "noleap",
    "diag_domain": "Highland",
    "level": "diag_sim_prop",
    "freq": "YS-JAN",
    "dataset": "scenario",
    "experiment": "ssp585",
    "product": "delta",
    "outcome": "indicators/X",
}


@pytest.fixture()
def folder(configured: Callable[..., list[Path]], tmp_path: Path) -> Path:
    configured()
    return tmp_path


def example(rule: type[EspoTask]) -> EspoTask:
    names = [name for name, parameter in rule.get_params() if parameter.significant]
    return rule(**{name: WILDCARDS[name] for name in names})


@pytest.mark.parametrize("name", REFERENCE)
def test_a_rule_has_the_reference_workflows_files_and_resources(name: str, folder: Path) -> None:
    templates, n_workers, cpus, memory = REFERENCE[name]
    task = example(getattr(tasks, name))
    fields = WILDCARDS | {"ref_source": context().config.reference_source}
    wanted = {
        template.format(**fields).replace("TMP/", f"{folder}/work/").replace("FIN/", f"{folder}/final/")
        for template in templates.split()
    }
    assert wanted <= {str(target) for target in task.output()}
    assert (task.n_workers, task.cpus_per_task, task.memory) == (n_workers, cpus, memory)


@pytest.mark.parametrize("name", [rule.__name__ for rule in rules()])
def test_every_rule_with_inputs_is_guarded_against_their_going(
    name: str, folder: Path, configured: Callable[..., list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "Derive":
        configured(clean_up__derive=["tas"])
        monkeypatch.setitem(WILDCARDS, "var", "tas")
    if name in ("Downscale", "WithheldYears"):
        configured(downscaling={"grid": 0.5, "method": "BCSD"})
    # Whose paths have the catalogue's facets.
    if name in ("Percentiles", "Indicators", "Climatology", "Delta", "WarmingLevels", "Trends", "ReturnLevels"):
        monkeypatch.setitem(WILDCARDS, "sim_id", next(iter(context().simulations)))
    if name == "ExportOutcome":
        kept = tasks.ReferenceClimatology(freq="YS-JAN").out_climatology
        monkeypatch.setattr("espo_luigi.tasks.export.outcomes", lambda run: {"indicators/X": kept})
    rule = getattr(tasks, name)
    # Checks of files have an input only where these are by hours.
    if not list(ports_of(rule, InputPort)) or name in ("InputCheck", "RefInputCheck"):
        return
    # There is no simulation SIM with files to look at.
    monkeypatch.setattr(rule, "raw_files", lambda self: [])
    with pytest.raises(InputChangedError, match=rf"the input {folder}/.* it was missing"), example(rule).guarded():
        pytest.fail("the work has begun")


def test_a_task_is_small_if_its_memory_is_6_times_the_arrays_that_it_reads(folder: Path, tmp_path: Path) -> None:
    task = tasks.Move(sim_id="SIM", piece="south")
    paths = [info.path for info in task.input_infos()]
    assert not task.is_small(Resources(1, 1, 2**40)), "the inputs are not there"
    ds = xr.Dataset({"pr": (("time", "lat"), np.zeros((1000, 20), "f4")), "land": ("lat", np.ones(20, bool))})
    for path in paths:
        store.write_store(ds, path, store.Marker("CleanUp"))
    assert ds.nbytes == 80_020 == store.array_bytes(paths[0])
    enough = 6 * len(paths) * ds.nbytes
    assert task.is_small(Resources(1, 1, enough)) and task.is_small(Resources(2, 2, enough))
    assert not task.is_small(Resources(1, 1, enough - 1))
    store.pack(paths[0], packed := tmp_path / "a.zarr.zip", store.Marker("Move"))
    assert store.array_bytes(packed) == ds.nbytes
    raw = tasks.InputCheck(sim_id=next(iter(context().simulations)))
    assert not raw.is_small(Resources(1, 1, 2**40)), "nobody has noted the size of raw data"


def test_the_default_target_asks_for_every_product_of_every_simulation(folder: Path) -> None:
    run = context()
    families = [(task.get_task_family(), task) for task in luigi.task.flatten(tasks.All().requires())]
    count = {name: sum(family == name for family, _ in families) for name, _ in families}
    n_sims, n_regions, n_domains = (
        len(run.simulations),
        len(run.config.custom.regions),
        len(run.config.off_diag.domains),
    )
    assert (n_sims, n_regions, n_domains) == (2, 3, 2)
    assert count == {
        "HealthChecks": n_sims,
        "OffDiagRefProp": n_domains,
        **dict.fromkeys(("OffDiagSimPropMeas", "OffDiagScenPropMeas"), n_sims * n_domains),
        "DiagMeasuresImprovement": n_sims * n_domains,
        "Move": n_sims * n_regions,
        "ConcatDiagRefProp": 1,
        "ConcatenationDiag": 4 * n_sims,
        "DiagImprovedEtHeatmap": n_sims * n_regions,
    }


def test_every_rule_is_part_of_the_default_target_with_the_report(folder: Path) -> None:
    luigi.configuration.get_config().set("espo", "report", "true")
    assert {type(task) for task in Graph([tasks.All()])} - {tasks.All} == set(rules()) - OTHER_RULES


@pytest.mark.parametrize(
    ("rule", "wildcards", "choices"),
    [
        ("Train", {"piece": "soth", "var": "pr"}, "--region 'soth' is not one of: south, middle, north; did you mean"),
        ("Train", {"piece": "south", "var": "tasmin"}, "--var 'tasmin' is not one of: "),
        ("ReferenceCalendar", {"piece": "south", "calendar": "julian"}, "is not one of: noleap, 360_day"),
        ("OffDiagRefProp", {"diag_domain": "Lowlands"}, "is not one of: Highland, Lowland; did you mean Lowland"),
        ("Extract", {"sim_id": "nobody"}, "--sim-id 'nobody' is not one of: "),
    ],
)
def test_a_wildcard_that_nothing_holds_is_refused_with_the_choices(
    rule: str, wildcards: dict[str, str], choices: str, folder: Path
) -> None:
    if rule == "Train":
        wildcards = wildcards | {"pool": next(iter(context().simulations))}
    with pytest.raises(ParameterError) as refusal:
        getattr(tasks, rule)(**wildcards).check()
    assert choices in str(refusal.value)


@pytest.mark.parametrize("options", ["--sim-id SIM --region south", "--pool SIM --piece south"])
def test_a_rule_takes_the_options_that_narrow_the_default_target(options: str, folder: Path) -> None:
    with CmdlineParser.global_instance(["Adjust", *options.split(), "--var", "pr"]) as parsed:
        assert parsed.get_task_obj() == tasks.Adjust(pool="SIM", piece="south", var="pr")


def test_a_path_leads_to_the_task_that_makes_it(folder: Path) -> None:
    sim_id = next(iter(context().simulations))
    for task in Graph([tasks.All()]):
        if isinstance(task, EspoTask) and simulations_of(task) <= {sim_id}:
            for target in task.output():
                assert task_for(Path(str(target))) == task


def test_a_path_that_no_task_makes_names_the_nearest(folder: Path) -> None:
    sim_id = next(iter(context().simulations))
    near = folder / "final" / "final" / "NAM" / f"day+{sim_id}+NAM_1950-2100.zarr.zip"
    with pytest.raises(UnknownPathError) as refusal:
        task_for(near.with_name(near.name.replace("1950", "1951")))
    assert str(near) in str(refusal.value)


def test_resources_can_be_set_beside_the_rule_in_luigi_cfg(folder: Path) -> None:
    luigi.configuration.get_config().set("Train", "memory", "120GB")
    task = tasks.Train(pool="SIM", piece="south", var="pr")
    assert task.allocation == Resources(3, 12, 120 * 2**30, 1000)


@pytest.mark.parametrize("rule", ["ConcatDiagRefProp", "ConcatenationDiag"])
def test_properties_of_bands_of_different_heights_become_one_store(rule: str, folder: Path) -> None:
    def band(south: float, rows: int) -> xr.Dataset:
        grid = {"lat": south + 0.25 * np.arange(rows), "lon": np.arange(10.0)}
        return xr.DataArray(np.ones((rows, 10)), grid, name="mean-pr").to_dataset().chunk()

    whole = example(getattr(tasks, rule)).compute([band(45.0, 3), band(45.75, 7), band(47.5, 2)])
    assert whole["mean-pr"].chunks == ((4, 4, 4), (9, 1))
    store.write_store(whole, folder / "whole.zarr", store.Marker(rule, {}))


def test_the_configured_regions_decide_the_wiring(configured: Callable[..., list[Path]]) -> None:
    def without_the_north(config: Any) -> None:
        del config["custom"]["regions"]["north"]
        domains = {name: one for name, one in config["off-diag"]["domains"].items() if one["lat_bnds"][1] <= 47}
        config["off-diag"]["domains"] = domains
        for step in config["off-diag"]["steps"].values():
            step["domain"] = {name: host for name, host in step["domain"].items() if name in domains}

    edit(configured()[0], without_the_north)
    whole = tasks.ConcatenationFinal(sim_id=next(iter(context().simulations)))
    assert {task.piece for task in whole.requires()} == {"middle", "south"}
    assert [bound().task.piece for bound in whole.in_pieces] == ["south", "middle"]


def test_sciluigis_invalid_escapes_are_not_told_to_users(tmp_path: Path) -> None:
    # Not compiled yet. Python 3.12 and later show a SyntaxWarning; 3.11 has another category, and hides it.
    own = str(sys.modules["sciluigi"].__file__)
    shutil.copytree(Path(own).parent, tmp_path / "sciluigi", ignore=shutil.ignore_patterns("__pycache__"))
    environ = os.environ | {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    words = [
        word for kind in ("SyntaxWarning", "DeprecationWarning") for word in ("-W", f"error:invalid escape:{kind}")
    ]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(SyntaxError, match="invalid escape sequence"):  # else, the filter in ports.py can go
            compile((tmp_path / "sciluigi" / "slurm.py").read_text(), "slurm.py", "exec")
    command = [sys.executable, *words, "-c", "import espo_luigi.tasks.ports"]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
