"""The built-in example of CMIP7, from catalogue to product: two models, history and scenario, every rule."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import dask
import luigi
import netCDF4
import numpy as np
import pytest
import yaml
from demo_runs import CONFIG, ONE_REGION, use, write_config
from small_demo import ensure_small_demo

from espo_luigi import store, tasks
from espo_luigi.demo import sources
from espo_luigi.tasks.base import EspoTask

FIRST, LAST = 2004, 2031
DAYS = {"Demo7-NoLeap": 365, "Demo7-360Day": 360}
SIM_IDS = {name: f"CMIP7_ScenarioMIP_ESPO-DEMO_{name}_scen7-h_r1i1p1f1_global" for name in DAYS}
SHORT = {
    **ONE_REGION,
    "custom__ref_period": ["2006", "2017"],
    "custom__sim_period": [str(FIRST), str(LAST)],
    "health_checks__start_date": f"{FIRST}-01-01",
    "health_checks__end_date": f"{LAST}-12-30",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a run of every task, in this process, on data of fewer years."""
    folder = tmp_path_factory.mktemp("cmip7")
    raw = folder / "raw"
    with pytest.MonkeyPatch.context() as patch:
        for simulation in sources.CMIP7_SIMULATIONS:
            patch.setitem(simulation.experiments, "historical", (FIRST, 2021))
            patch.setitem(simulation.experiments, "scen7-h", (2022, LAST))
        ensure_small_demo(raw, mip_era="CMIP7")
    files = write_config(folder, raw, **SHORT)
    # As `load` merges config/demo/cmip7.yml, in this folder.
    text = (CONFIG / "cmip7.yml").read_text().replace("espo-demo-cmip7/raw", str(raw))
    overlay = yaml.safe_load(text.replace("espo-demo-cmip7", str(folder)))
    (folder / "cmip7.yml").write_text(yaml.safe_dump(overlay))
    use([*files, folder / "cmip7.yml"], folder)
    done: set[str] = set()

    def work_through(task: luigi.Task) -> None:
        if task.task_id in done:
            return
        done.add(task.task_id)
        for needed in task.deps():
            work_through(needed)
        if isinstance(task, EspoTask):
            with task.guarded():
                task.work()

    with dask.config.set(scheduler="threads", num_workers=2):
        work_through(tasks.All())
    yield folder


def test_the_files_are_as_cmip7_publishes_them(made: Path) -> None:
    paths = sorted((made / "raw/simulation").rglob("*.nc"))
    assert len(paths) == 12
    folder = paths[0].relative_to(made / "raw/simulation").parts[:-1]
    assert folder[:2] == ("MIP-DRS7", "CMIP7") and len(folder) == 13 and folder[-1] == "v20260901"
    assert {path.name.split("_")[3] for path in paths} == {"GLB", "glb"}
    for path in paths:
        with netCDF4.Dataset(path) as file:
            held = file.variables[file.variable_id]
            assert held._FillValue == held.missing_value == np.float32(1e20)
            assert file.tracking_id.startswith("hdl:21.14107/") and file.mip_era == "CMIP7"
            stamps, limits = file.variables["time"][:], file.variables[file.variables["time"].bounds][:]
            assert set(stamps % 1) == {0.5} and (limits.mean(axis=1) == stamps).all()


def test_the_catalogue_has_the_variables_that_people_search(made: Path) -> None:
    with (made / "raw/simulation.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {(row["variable"], row["branding_suffix"]) for row in rows} == {
        ("('tasmax',)", "tmax-h2m-hxy-u"),
        ("('tasmin',)", "tmin-h2m-hxy-u"),
        ("('pr',)", "tavg-u-hxy-u"),
    }
    assert {(row["region"], row["grid_label"], row["version"]) for row in rows} == {("glb", "g999", "v20260901")}
    assert {row["parent_experiment"] for row in rows} == {"no parent", "historical"}
    assert all(Path(row["path"]).is_file() for row in rows)


@pytest.mark.parametrize("source", DAYS)
def test_the_scenario_covers_history_and_future_and_says_what_it_is(made: Path, source: str) -> None:
    sim_id = SIM_IDS[source]
    scenario = store.open_store(made / f"final/final/NAM/day+{sim_id}+NAM_{FIRST}-{LAST}.zarr.zip")
    assert scenario.sizes["time"] == (LAST - FIRST + 1) * DAYS[source]
    assert {name for name, data in scenario.data_vars.items() if "time" in data.dims} == {"tasmax", "tasmin", "pr"}
    loaded = scenario.load()
    land = loaded["tasmax"].isel(time=0).notnull()
    assert int(land.sum()) == 95
    assert bool((loaded["tasmax"] > loaded["tasmin"]).where(land, True).all())
    stale = {"tracking_id", "branded_variable", "branding_suffix", "variable_id", "grid_label", "region", "product"}
    stale |= {
        "cat:grid_label",
        "cat:branding_suffix",
        "nominal_resolution",
        "parent_experiment_id",
        "realization_index",
    }
    assert not stale & set(scenario.attrs)
    assert not {"cell_measures", "branding_suffix"} & set(scenario["tasmax"].attrs)
    expected = {"mip_era": "CMIP7", "experiment_id": "scen7-h", "activity_id": "ScenarioMIP", "source_id": source}
    assert expected.items() <= scenario.attrs.items()
    assert (scenario.attrs["cat:mip_era"], scenario.attrs["cat:experiment"]) == ("CMIP7", "scen7-h")


def test_the_scenario_has_the_references_climate_over_the_calibration(made: Path) -> None:
    sim_id = SIM_IDS["Demo7-NoLeap"]
    scenario = store.open_store(made / f"final/final/NAM/day+{sim_id}+NAM_{FIRST}-{LAST}.zarr.zip")
    calibration = scenario[["tasmax", "pr"]].sel(time=slice("2006", "2017")).load()
    reference = store.open_store(made / "final/reference/Demo-Land+south+noleap.zarr")
    cells = calibration.sel(lat=reference.lat, lon=reference.lon).mean("time")
    expected = reference[["tasmax", "pr"]].sel(time=slice("2006", "2017")).mean("time").load()
    np.testing.assert_allclose(cells.tasmax, expected.tasmax, atol=0.2)
    np.testing.assert_allclose(cells.pr, expected.pr, rtol=0.15)


@pytest.mark.parametrize("source", DAYS)
def test_the_tracking_ids_of_all_inputs_are_in_the_marker(made: Path, source: str) -> None:
    marker = store.read_marker(made / f"final/checks/NAM/{SIM_IDS[source]}+NAM_input.csv")
    assert marker is not None
    files = sorted((made / "raw/simulation").rglob(f"*{source}*.nc"))
    assert sorted(marker.inputs) == [str(path) for path in files] and len(files) == 6
    ids = set(marker.inputs.values())
    assert len(ids) == 6 and all(text.startswith("hdl:21.14107/") for text in ids)
