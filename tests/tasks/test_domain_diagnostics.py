"""The rules `diag_ref` and `diag` on the demo in small, against the raw files and xsdba."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import xarray as xr
import xclim.core.units
import xsdba.properties
from demo_runs import of_years

from espo_luigi import store, tasks
from espo_luigi.config.downscaling import DownscalingSection
from espo_luigi.errors import ConfigurationError, ParameterError
from espo_luigi.science import regrid
from espo_luigi.tasks import simulation as simulation_module
from espo_luigi.tasks.base import EspoTask
from espo_luigi.tasks.context import RunContext, context
from espo_luigi.tasks.publish import ends_of_run

UNITS = {"tasmax": "degC", "pr": "mm d-1", "dtr": "K"}
PERIOD = ["1995", "1998"]
HIGHLAND = {"name": "Highland", "lat_bnds": [46.0, 47.0], "lon_bnds": [-67.0, -65.0]}
LOWLAND = {"name": "Lowland", "lat_bnds": [45.0, 45.75], "lon_bnds": [-66.5, -65.5]}
DEFINITIONS: dict[str, Any] = {
    "realm": "generic",
    "indicators": {
        **{f"mean_{name}": {"base": "xsdba.properties.mean", "input": {"da": name}} for name in UNITS},
        "q99_pr": {"base": "xsdba.properties.quantile", "input": {"da": "pr"}, "parameters": {"q": 0.99}},
    },
}
DIAGNOSED = {
    "domains": {"Highland": HIGHLAND, "Lowland": LOWLAND},
    "change_units_arg": UNITS,
    "properties": DEFINITIONS,
    "period": PERIOD,
}
V2: dict[str, Any] = {
    "subregions": {"n": 40},
    "custom__regions": {},
    "off-diag": None,
    "clean_up__xscen_clean_up": {},
    "clean_up__temperatures": "derived",  # as this production adjusts dtr, not tasmin
}
# A repair that would leave no value of tasmax, and the skipping of coarser grids.
NOT_USED = {
    "extraction__simulation__repairs": [
        {"id": "*", "variable": "tasmax", "what": "missing", "where": "> 1 K"},
    ],
    "regrid__skip_coarser": True,
}


@pytest.fixture()
def in_v2(configured: Callable[..., list[Path]]) -> Callable[..., None]:
    """A function that configures this process for ESPO v2 on the demo in small, with diagnostics."""

    def configure(**changes: object) -> None:
        configured(**{**V2, "domain-diag": DIAGNOSED, **changes})

    return configure


def simulation() -> str:
    return next(iter(context().simulations))


def test_the_files_have_the_names_of_v2(in_v2: Callable[..., None]) -> None:
    in_v2()
    final, sim = context().config.paths.final, simulation()
    ref = context().config.reference_source
    task = tasks.Diag(sim_id=sim, diag_domain="Highland")
    folder = final / "diagnostics" / ref / "NAM" / "Highland"
    assert tasks.DiagRef(diag_domain="Highland").out_prop().path == folder / "ref-prop.zarr.zip"
    kept = {info.path for info in task.decisive_infos()}
    names = ("sim-prop", "sim-meas", "scen-prop", "scen-meas", "imp")
    assert kept == {folder / sim / f"{sim}_NAM_Highland_{name}.zarr.zip" for name in names}


def test_a_diagnosis_waits_for_the_reference_the_products_and_the_raw_series_that_all_domains_share(
    in_v2: Callable[..., None],
) -> None:
    in_v2()
    sim = simulation()
    task = tasks.Diag(sim_id=sim, diag_domain="Highland")
    expected = [
        tasks.DiagExtract(sim_id=sim),
        tasks.MakeRef(),
        tasks.DiagRef(diag_domain="Highland"),
        *(tasks.ConcatClean(sim_id=sim, var=name) for name in UNITS),
    ]
    assert {one.task_id for one in task.requires()} == {one.task_id for one in expected}
    wanted = {(sim_id, domain) for sim_id in context().simulations for domain in ("Highland", "Lowland")}
    assert {(one.sim_id, one.diag_domain) for one in ends_of_run() if isinstance(one, tasks.Diag)} == wanted


def test_the_raw_series_do_not_depend_on_downscaling(
    in_v2: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gives `Extract` bounds of cells, which a diagnosis only needs for a conservative regridding."""
    in_v2()
    read = []
    monkeypatch.setattr(simulation_module, "asset_with", lambda match, names: read.append({*names}) or match.assets[0])
    config, section = context().config, DownscalingSection(grid=1, method="QPLAD", arguments={"window": 15})
    monkeypatch.setattr(context(), "config", config.model_copy(update={"downscaling": section}))
    tasks.DiagExtract(sim_id=simulation()).compute([])
    assert not read
    tasks.Extract(sim_id=simulation()).compute([])
    assert read == [{*config.variables}]


def work(task: EspoTask) -> EspoTask:
    with dask.config.set(scheduler="threads", num_workers=2):
        task.work()
    return task


def publish_products(sim_id: str, maps: xr.Dataset, folder: Path) -> None:
    """Put maps in the place of a simulation's final archives."""
    for name in UNITS:
        task = tasks.ConcatClean(sim_id=sim_id, var=name)
        store.write_store(maps[[name]].chunk(time=400, lat=4, lon=4), folder / f"{name}.zarr", task.marker())
        task.out_final().path.parent.mkdir(parents=True, exist_ok=True)
        store.pack(folder / f"{name}.zarr", task.out_final().path, task.marker())


def raw_series() -> xr.Dataset:
    """What the files of the first simulation hold in the period, opened by xarray alone."""
    files = context().simulation(simulation()).files
    raw = xr.open_mfdataset(files, use_cftime=True, data_vars="minimal").sel(time=slice(*PERIOD)).load()
    raw = raw[["tasmax", "tasmin", "pr"]]
    return raw.assign(dtr=(raw.tasmax - raw.tasmin).assign_attrs(units="K"))


def oracle(maps: xr.Dataset) -> xr.Dataset:
    """xsdba's properties in float64, after the conversion by xclim."""
    values = maps.astype("float64", keep_attrs=True)
    units = {name: units for name, units in UNITS.items() if name != "dtr"}
    values = values.assign(
        {name: xclim.core.units.convert_units_to(values[name], one, context="hydro") for name, one in units.items()}
    )
    means = {f"mean_{name}": xsdba.properties.mean(values[name]) for name in UNITS}
    return xr.Dataset(means | {"q99_pr": xsdba.properties.quantile(values.pr, q=0.99)})


def test_properties_and_measures_are_those_of_the_raw_files_and_of_the_products(
    in_v2: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_v2(**NOT_USED, **of_years(1993, 2000, 1993, 2000))
    sim = simulation()
    work(tasks.RefInputCheck())
    work(tasks.InputCheck(sim_id=sim))
    reference = store.open_store(work(tasks.MakeRef()).out_fullregion().path).load()
    warmer = reference.assign(tasmax=reference.tasmax + 2, pr=reference.pr * 1.5)
    publish_products(sim, warmer.assign_attrs({"cat:id": sim}), tmp_path)
    work(tasks.DiagRef(diag_domain="Highland"))
    work(tasks.DiagExtract(sim_id=sim))
    monkeypatch.setattr(RunContext, "open", None)  # a domain does not read the raw files
    task = work(tasks.Diag(sim_id=sim, diag_domain="Highland"))
    assert task.complete()
    found = {name: store.open_store(getattr(task, f"out_{name}")().path).load() for name in
             ("sim_prop", "sim_meas", "scen_prop", "scen_meas", "improvement")}  # fmt: skip

    here = {"lat": slice(46, 47), "lon": slice(-67, -65)}
    in_domain = reference.sel(here)
    config = context().config.regrid.regrid_dataset.arguments()
    regridded = regrid.regrid(raw_series(), reference[["tasmax"]], **config).sel(here)
    expected = oracle(regridded.where(in_domain.tasmax.isel(time=130).drop_vars("time").notnull()))
    of_reference = oracle(in_domain.sel(time=slice(*PERIOD)))
    assert found["sim_prop"].mean_tasmax.notnull().sum() == in_domain.tasmax[130].notnull().sum() < 32
    for name, wanted in expected.items():
        np.testing.assert_allclose(found["sim_prop"][name], wanted, rtol=1e-4, atol=1e-4, err_msg=str(name))
        bias = found["sim_meas"][name]
        np.testing.assert_allclose(bias, wanted - of_reference[name], rtol=1e-3, atol=1e-3, err_msg=str(name))
    land = in_domain.tasmax[130].notnull().values
    np.testing.assert_allclose(found["scen_meas"].mean_tasmax.values[land], 2, atol=1e-3)
    np.testing.assert_allclose(
        found["scen_meas"].mean_pr.values[land], 0.5 * of_reference.mean_pr.values[land], rtol=1e-3
    )
    np.testing.assert_allclose(found["scen_meas"].mean_dtr.values[land], 0, atol=1e-4)
    improved = found["improvement"].improved_grid_points
    better = abs(found["sim_meas"].mean_tasmax.values[land]) >= abs(found["scen_meas"].mean_tasmax.values[land])
    assert float(improved.sel(properties="mean_tasmax")) == pytest.approx(better.mean())
    assert float(improved.sel(properties="mean_dtr")) == 1
    assert found["sim_prop"].attrs["cat:processing_level"] == "diag-properties"
    assert (
        found["sim_prop"].mean_tasmax.attrs["units"] == "degC" and found["sim_prop"].attrs["cat:domain"] == "Highland"
    )


@pytest.mark.parametrize(
    ("changed", "outdated"),
    [
        ({"domains": {"Highland": HIGHLAND, "Lowland": {**LOWLAND, "lat_bnds": [45.0, 45.5]}}}, False),
        ({"domains": {"Highland": {**HIGHLAND, "lat_bnds": [46.0, 46.5]}, "Lowland": LOWLAND}}, True),
        ({"period": ["1995", "1999"]}, True),
        ({"change_units_arg": {**UNITS, "tasmax": "K"}}, True),
    ],
)
def test_a_diagnosis_is_outdated_by_its_own_domain_only(
    in_v2: Callable[..., None], changed: dict[str, Any], outdated: bool
) -> None:
    def fingerprints() -> list[dict[str, str]]:
        of_domain = {"diag_domain": "Highland"}
        both = tasks.DiagRef(**of_domain), tasks.Diag(sim_id=simulation(), **of_domain)
        return [dict(task.marker().fingerprints) for task in both]

    in_v2()
    before = fingerprints()
    in_v2(**{"domain-diag": {**DIAGNOSED, **changed}})
    assert [now != was for now, was in zip(fingerprints(), before, strict=True)] == [outdated, outdated]


def test_a_domain_without_land_is_refused_by_its_key(in_v2: Callable[..., None]) -> None:
    sea = {"name": "Sea", "lat_bnds": [46.8, 47.5], "lon_bnds": [-65.2, -64.6]}
    in_v2(**{"domain-diag": {**DIAGNOSED, "domains": {"Sea": sea}}})
    with pytest.raises(ConfigurationError, match=r"`domain-diag.domains.Sea` has no land: of the reference's 9 cells"):
        tasks.DiagRef(diag_domain="Sea").check()


def test_the_rules_of_the_other_workflow_say_which_section_they_need(
    in_v2: Callable[..., None], configured: Callable[..., list[Path]]
) -> None:
    in_v2()
    with pytest.raises(ParameterError, match="OffDiagRefProp needs the section `off-diag`"):
        tasks.OffDiagRefProp(diag_domain="Highland").check()
    configured()
    with pytest.raises(ParameterError, match="DiagRef needs the section `domain-diag`"):
        tasks.DiagRef(diag_domain="Highland").check()
