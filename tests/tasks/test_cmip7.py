"""Files of CMIP7, from catalogue to product: two models, history and scenario."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import dask
import numpy as np
import pytest
import xarray as xr
import yaml
from complete_demo import work
from demo_runs import ONE_REGION, of_years, use, write_config
from small_demo import ensure_small_demo

from espo_luigi import store, tasks
from espo_luigi.catalog.build import make_catalog
from espo_luigi.demo import sources

pytestmark = pytest.mark.production
FIRST, LAST = 2004, 2031
SOURCES = ["Demo-NoLeap", "Demo-360Day"]
SIM_IDS = {name: f"CMIP7_ScenarioMIP_ESPO-DEMO_{name}_scen7-h_r1i1p1f1_global" for name in SOURCES}
HELD = {"tasmax": ("tas", "tmax-h2m-hxy-u"), "tasmin": ("tas", "tmin-h2m-hxy-u"), "pr": ("pr", "tavg-u-hxy-u")}
SHORT = {**ONE_REGION, **of_years(FIRST, LAST, 2006, 2017)}


def write_as_cmip7(path: Path, folder: Path) -> None:
    """Write a file of the demo's simulations as CMIP7 has it: by branding suffix, with a parent and a tracking id."""
    with xr.open_dataset(path, decode_cf=False) as opened:
        ds = opened.load()
    source, searched = ds.attrs["source_id"], ds.attrs["variable_id"]
    held, suffix = HELD[searched]
    activity, experiment, region = "CMIP", "historical", "GLB"
    parent = {"parent_experiment_id": "no parent"}
    if ds.attrs["experiment_id"] != experiment:
        parent = {"parent_mip_era": "CMIP7", "parent_activity_id": activity, "parent_experiment_id": experiment}
        parent |= {"parent_source_id": source, "parent_variant_label": "r1i1p1f1"}
        activity, experiment, region = "ScenarioMIP", "scen7-h", "glb"
    run = {"activity_id": activity, "institution_id": "ESPO-DEMO", "source_id": source, "experiment_id": experiment}
    run |= {"variant_label": "r1i1p1f1", "region": region, "frequency": "day", "variable_id": held}
    run |= {"branding_suffix": suffix, "grid_label": "g999"}
    others = {
        "mip_era": "CMIP7",
        "drs_specs": "MIP-DRS7",
        "branded_variable": f"{held}_{suffix}",
        "product": "model-output",
    }
    others |= {"nominal_resolution": "250 km", "realization_index": "r1"}
    others["tracking_id"] = f"hdl:21.14107/{source}-{experiment}-{searched}"
    ds[searched].attrs |= {"missing_value": np.float32(1e20), "cell_measures": "area: areacella"}
    for variable in ds.variables.values():
        variable.encoding = {} if "_FillValue" in variable.attrs else {"_FillValue": None}
    place = folder.joinpath("MIP-DRS7", "CMIP7", *run.values(), "v20260901")
    place.mkdir(parents=True)
    names = held, suffix, "day", region, "g999", source, experiment, "r1i1p1f1", path.stem.rpartition("_")[2]
    ds.rename({searched: held}).assign_attrs(run | others | parent).to_netcdf(place / f"{'_'.join(names)}.nc")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a run from the catalogue to the checks of products, in this process, on data of fewer years."""
    folder = tmp_path_factory.mktemp("cmip7")
    raw = folder / "raw"
    with pytest.MonkeyPatch.context() as patch:
        for simulation in sources.SIMULATIONS:
            patch.setitem(simulation.experiments, "historical", (FIRST, 2021))
            patch.setitem(simulation.experiments, "ssp585", (2022, LAST))
        ensure_small_demo(raw)
    for path in (raw / "simulation").rglob("*.nc"):
        write_as_cmip7(path, folder / "cmip7")
    make_catalog(folder / "cmip7", folder / "cmip7.json")
    files = write_config(folder, raw, **SHORT)
    criteria = {"mip_era": "CMIP7", "experiment": ["scen7-h"], "source": SOURCES}
    search = {"data_catalogs": [str(folder / "cmip7.json")], "other_search_criteria": criteria}
    overlay = {"extraction": {"simulation": {"search_data_catalogs": search}}, "clean_up": {"problems": []}}
    (folder / "cmip7.yml").write_text(yaml.safe_dump(overlay))
    use([*files, folder / "cmip7.yml"], folder)
    with dask.config.set(scheduler="threads", num_workers=2):
        # What comes after the extraction is the same for the other model's calendar in CMIP6: test_end_to_end.py.
        work(tasks.HealthChecks(sim_id=SIM_IDS["Demo-NoLeap"]), tasks.Extract(sim_id=SIM_IDS["Demo-360Day"]))
    yield folder


def test_the_catalogue_has_the_variables_that_people_search(made: Path) -> None:
    with (made / "cmip7.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {(row["variable"], row["branding_suffix"]) for row in rows} == {
        ("('tasmax',)", "tmax-h2m-hxy-u"),
        ("('tasmin',)", "tmin-h2m-hxy-u"),
        ("('pr',)", "tavg-u-hxy-u"),
    }
    assert {(row["region"], row["grid_label"], row["version"]) for row in rows} == {("glb", "g999", "v20260901")}
    assert {row["parent_experiment"] for row in rows} == {"no parent", "historical"}
    assert all(Path(row["path"]).is_file() for row in rows)


def test_a_simulation_is_extracted_from_history_and_future_in_its_calendar(made: Path) -> None:
    extracted = store.open_store(tasks.Extract(sim_id=SIM_IDS["Demo-360Day"]).out_extracted().path)
    assert extracted.sizes["time"] == (LAST - FIRST + 1) * 360 and extracted["time"].dt.calendar == "360_day"
    daily = [name for name, data in extracted.data_vars.items() if data.ndim == 3]
    assert {"tasmax", "pr"} < {*daily} and all(extracted[name].notnull().all() for name in daily)
    assert (extracted.attrs["cat:mip_era"], extracted.attrs["cat:experiment"]) == ("CMIP7", "scen7-h")


def test_the_scenario_covers_history_and_future_and_says_what_it_is(made: Path) -> None:
    source = "Demo-NoLeap"
    sim_id = SIM_IDS[source]
    scenario = store.open_store(made / f"final/final/NAM/day+{sim_id}+NAM_{FIRST}-{LAST}.zarr.zip")
    assert scenario.sizes["time"] == (LAST - FIRST + 1) * 365
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
    sim_id = SIM_IDS["Demo-NoLeap"]
    scenario = store.open_store(made / f"final/final/NAM/day+{sim_id}+NAM_{FIRST}-{LAST}.zarr.zip")
    calibration = scenario[["tasmax", "pr"]].sel(time=slice("2006", "2017")).load()
    reference = store.open_store(made / "final/reference/Demo-Land+south+noleap.zarr")
    cells = calibration.sel(lat=reference.lat, lon=reference.lon).mean("time")
    expected = reference[["tasmax", "pr"]].sel(time=slice("2006", "2017")).mean("time").load()
    np.testing.assert_allclose(cells.tasmax, expected.tasmax, atol=0.2)
    np.testing.assert_allclose(cells.pr, expected.pr, rtol=0.15)


@pytest.mark.parametrize("source", SOURCES)
def test_the_tracking_ids_of_all_inputs_are_in_the_marker(made: Path, source: str) -> None:
    marker = store.read_marker(made / f"final/checks/NAM/{SIM_IDS[source]}+NAM_input.csv")
    assert marker is not None
    files = sorted((made / "cmip7").rglob(f"*{source}*.nc"))
    assert sorted(marker.inputs) == [str(path) for path in files] and len(files) == 6
    ids = set(marker.inputs.values())
    assert len(ids) == 6 and all(text.startswith("hdl:21.14107/") for text in ids)
