"""A pool of ESPO v2, by the command."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pytest
import xarray as xr
import yaml
from checked_netcdf import assert_cdo_reads, problems_of
from demo_runs import content_of, copy_properties, lists_like, use
from luigi.configuration import LuigiConfigParser
from test_espo_v2 import REGIONAL, REGIONAL_POOL, V2_DEMO
from test_production_shape import assert_same
from throwaway_slurm import ClusterSpec, ThrowawayCluster
from throwaway_slurm import missing_packages as missing_for_slurm

from espo_luigi import store, tasks
from espo_luigi.commands import cli
from espo_luigi.science import quality
from espo_luigi.tasks.context import context

_NO_SLURM = missing_for_slurm(False)
SLURM = (
    "[slurm]\nnode_cpus = 2\npoll_seconds = 1\nresult_seconds = 1\nmax_jobs = 4\nnode_memory = 4GB\n"
    "pack = 6\nbundle = pilot\n"
)
pytestmark = [pytest.mark.production, pytest.mark.timeout(900)]
# Of the raw data's 150 years, 33, which make no whole chunks.
FIRST, LAST = 1990, 2022


OUTCOMES = {
    "indicators": {"module": "two.yml", "datasets": ["scenario", "simulation"]},
    "aggregate": {"climatological_op": {"window": 15, "periods": [[1991, 2005], [2008, 2022]]}},
    "ensembles": {},
    "spatial_mean": {"regions": {"gaspe": {"lon_bnds": [-67, -65], "lat_bnds": [48, 49]}}},
}


class Made(NamedTuple):
    """The folder of a run, its exit code and its log."""

    folder: Path
    code: int
    said: str

    def product(self, member: int, var: str) -> Path:
        (found,) = (self.folder / "final").rglob(f"{var}_day_*_r{member}i1p1f1_ESPO-DEMO_Demo-Regional_*.zarr.zip")
        return Path(found)

    def flags(self, member: int, var: str) -> Path:
        (found,) = (self.folder / "final" / "flags").glob(f"{var}_flags_day_*_r{member}i1p1f1_*.zarr.zip")
        return found


def make(
    folder: Path,
    raw: Path,
    n: int,
    engine: str,
    options: str = "",
    environ: Mapping[str, str] = os.environ,
    *,
    pools: str = REGIONAL_POOL,
    until: str = "ConcatClean",
    sections: Mapping[str, object] = MappingProxyType({}),
) -> Made:
    """Make the products of pools: by default of two regional members, one of whose years lacks its first day."""
    content = content_of(V2_DEMO / "config.yml")
    content["subregions"]["n"] = n
    content["flags"] = {}
    for period in list(lists_like(["1951", "2100"], content)):
        period[:] = [str(FIRST), str(LAST)]
    for checks in content["health_checks"].values():
        if "start_date" in checks:
            checks |= {"start_date": f"{FIRST}-01-01", "end_date": f"{LAST}-12-30"}
    # 34.56 mm/d.
    content["clean_up"]["xscen_clean_up"]["pr"]["clip_var"] = {"pr": [None, 4e-4]}
    (folder / "config.yml").write_text(yaml.safe_dump({**content, **sections}, sort_keys=False))
    copy_properties(folder)
    paths = yaml.safe_load((V2_DEMO / "paths.yml").read_text())
    del paths["demo"]
    text = yaml.safe_dump(paths).replace("espo-v2-demo/raw", str(raw)).replace("espo-v2-demo", str(folder))
    (folder / "paths.yml").write_text(text)
    sections = (V2_DEMO / "luigi.cfg").read_text()
    (folder / "luigi.cfg").write_text(
        "[core]\nworkers = 500\nlog_level = WARNING\nno_lock = true\n"
        f"[espo]\nengine = {engine}\nworkdir = run\nconfig = config.yml paths.yml\n{options}"
        "[worker]\nwait_interval = 0.5\n[retcode]\ntask_failed = 30\nscheduling_error = 35\n"
        + re.sub("memory = .*", "memory = 2GB", sections)
    )
    luigi = [str(Path(sys.executable).parent / "luigi"), "--module", "espo_luigi.tasks", "--local-scheduler", "All"]
    with (folder / "stderr").open("w") as stderr:
        command = [*luigi, *(["--pool", pools] if pools else []), *(["--until", until] if until else [])]
        code = subprocess.call(command, cwd=folder, env=dict(environ), stderr=stderr, timeout=1700)
    return Made(folder, code, (folder / "stderr").read_text()[-4000:])


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory, v2_raw: Path) -> Made:
    folder = tmp_path_factory.mktemp("here")
    (folder / "two.yml").write_text("realm: atmos\nindicators: {tx_mean: {base: tx_mean}, rx1day: {base: rx1day}}\n")
    return make(folder, v2_raw, 100, "local", until="", sections=OUTCOMES)


def test_a_pool_of_regional_members_has_values_on_all_land_inside_of_its_outline_and_nowhere_else(here: Made) -> None:
    assert here.code == 0, here.said
    for var in ("tasmax", "tasmin", "dtr", "pr"):
        for member in (1, 2):
            ds = store.open_store(here.product(member, var))
            values = ds[var].values
            land = np.isfinite(values[0])
            assert land.sum() == 95 and np.isfinite(values[:, land]).all() and np.isnan(values[:, ~land]).all()
            assert (ds["mask"].values[land] == 1).all()
            assert ds[ds[var].attrs["grid_mapping"]].attrs["grid_mapping_name"] == "rotated_latitude_longitude"


def test_tasmax_is_nowhere_below_tasmin_in_the_products(here: Made) -> None:
    for member in (1, 2):
        high, low = (store.open_store(here.product(member, var))[var] for var in ("tasmax", "tasmin"))
        assert int((high < low).sum()) == 0


def test_the_published_range_is_adjusted_by_itself_and_the_range_before_the_exchange_is_kept(here: Made) -> None:
    high, low, dtr = (store.open_store(here.product(1, var))[var] for var in ("tasmax", "tasmin", "dtr"))
    assert float(abs(high - low - dtr).max()) > 0.1 and float(dtr.min()) >= 0
    (path,) = (here.folder / "final" / "preswap").glob("dtrpreswap_day_*_r1i1p1f1_ESPO-DEMO_Demo-Regional_*.zarr.zip")
    before = store.open_store(path)["dtr"]
    # Swapping turns a negative range over, and changes no other; K in float32.
    np.testing.assert_allclose(abs(before).values, (high - low).values, atol=1e-4)


def test_products_have_the_attributes_that_the_configuration_leaves_and_adds(here: Made) -> None:
    content = content_of(V2_DEMO / "config.yml")["clean_up"]["xscen_clean_up"]["pr"]
    ds = store.open_store(here.product(1, "pr"))
    for name, attrs in (("global", ds.attrs), ("pr", ds["pr"].attrs)):
        added = content["add_attrs"][name]
        assert {key: attrs[key] for key in added} == added
        kept = {*content["remove_all_attrs_except"][name], *added}
        assert {key for key in attrs if not key.startswith("espo_luigi_")} <= kept
    # A prefix that is empty does nothing.
    assert ds.attrs["cat:bias_adjust_reference"] == "Demo-Rotated"
    assert ds.attrs["cat:bias_adjust_project"] == "ESPO"


def test_each_member_is_checked_everywhere_and_in_the_scope_and_diagnosed(here: Made) -> None:
    checks = [store.open_store(path) for path in (here.folder / "final" / "checks" / "NAM").glob("*_checks.zarr")]
    assert len(checks) == 2
    for found in checks:
        raised = {str(name): bool(value) for name, value in found.data_vars.items()}
        assert len(raised) == 12 and not any(raised.values()), raised
        assert [name for name in raised if name.startswith("QC_pr_")]
    diagnosed = list(
        (here.folder / "final" / "diagnostics" / "Demo-Rotated" / "NAM" / "Gaspe").glob("*/*_imp.zarr.zip")
    )
    assert len(diagnosed) == 2
    for path in diagnosed:
        shares = store.open_store(path).load().to_array()
        assert 0 <= float(shares.min()) < float(shares.max()) <= 1


def test_members_keep_their_differences_and_the_day_that_all_files_lack_is_filled_and_recorded(here: Made) -> None:
    one, two = (store.open_store(here.product(member, "tasmax")) for member in (1, 2))
    assert float(abs(one["tasmax"] - two["tasmax"]).max()) > 1
    day = one["tasmax"].sel(time="2015-01-01")
    assert int(day.notnull().sum()) == 95
    assert one.attrs["espo_luigi_inserted_days"] == "2015-01-01"
    assert [ds.attrs["cat:id"] for ds in (one, two)] == [
        f"ESPO_Demo-Rotated_CMIP6_DD_Demo-Ensemble_r{member}i1p1f1_ESPO-DEMO_Demo-Regional_ssp370_v1-r1_NAM"
        for member in (1, 2)
    ]
    assert [ds.attrs["cat:driving_member"] for ds in (one, two)] == ["r1i1p1f1", "r2i1p1f1"]


@pytest.mark.parametrize("var", ["tasmax", "tasmin", "dtr", "pr"])
def test_a_members_product_has_its_variable_alone_and_flags_beside_it(here: Made, var: str) -> None:
    product, flags = (store.open_store(path(2, var)).load() for path in (here.product, here.flags))
    of, masks = flags[f"{var}_flags"], quality.meanings(flags[f"{var}_flags"])
    assert set(product.data_vars) - {"rotated_pole"} == {var} and "espo_luigi_days" not in product[var].attrs
    assert set(flags.data_vars) - {"rotated_pole"} == {f"{var}_flags", f"{var}_cell_flags"}
    assert ("made_wet" in masks) == (var == "pr")
    assert "units" not in of.attrs and of.attrs["standard_name"] == "quality_flag"
    assert not (of.where(product[var].isnull(), 0) > 0).any(), "flags in the sea"
    # The day that all files lack is filled in all cells.
    assert int((of.sel(time="2015-01-01") & masks["filled_in_time"] > 0).sum()) == 95


def test_the_products_pass_the_validation_of_a_stranger(
    here: Made, own_settings: LuigiConfigParser, capsys: pytest.CaptureFixture[str]
) -> None:
    own_settings.set("espo", "config", "")
    assert cli.main(["validate", str(here.folder / "final"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["products"] == 8
    assert [check["name"] for check in told["checks"] if check["verdict"] != "passed"] == ["audit", "catalogue"]


@pytest.fixture()
def told(here: Made, own_settings: LuigiConfigParser, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """A function that returns what `espo explain` says of the run."""
    use([here.folder / "config.yml", here.folder / "paths.yml"], here.folder)

    def explain(*words: str) -> str:
        assert cli.main(["explain", *words]) == 0
        return capsys.readouterr().out

    return explain


def test_espo_explain_makes_a_members_values_again_and_says_that_a_gap_was_filled(
    here: Made, told: Callable[..., str]
) -> None:
    member = "Demo-Ensemble_r2i1p1f1_ESPO-DEMO_Demo-Regional"
    product = store.open_store(here.product(2, "pr"))
    row, column = np.argwhere(np.isfinite(product["pr"].isel(time=0).values))[40]
    at = product.isel({"rlat": row, "rlon": column})
    point = f"{float(at.lat):.4f}", f"{float(at.lon):.4f}"
    way = json.loads(told(member, *point, "2015-01-01", "--json"))
    assert len(way["members"]) == 2 and all(one["identical"] for one in way["products"].values())
    assert way["products"].keys() == {"tasmax", "tasmin", "dtr", "pr"}
    assert way["products"]["pr"]["steps"][-1]["value"] == float(at["pr"].sel(time="2015-01-01").squeeze())
    for adjusted in way["adjusted"].values():
        assert "A gap of the raw series was filled" in adjusted["steps"][0]["sentence"]


def test_clipped_days_are_flagged_by_cell_and_told_by_espo_explain(here: Made, told: Callable[..., str]) -> None:
    product, flags = (store.open_store(path(2, "pr")).load() for path in (here.product, here.flags))
    flagged = (flags["pr_flags"] & quality.meanings(flags["pr_flags"])["clipped"]) > 0
    is_clipped = product["pr"] == np.float32(4e-4)
    land = product["pr"].notnull().any("time")
    assert is_clipped.any() and float(product["pr"].max()) == np.float32(4e-4)
    np.testing.assert_array_equal(flagged.where(land), is_clipped.where(land))
    time, row, column = np.argwhere(is_clipped.values)[0]
    at = product.isel({"time": time, "rlat": row, "rlon": column})
    point = f"{float(at.lat):.4f}", f"{float(at.lon):.4f}", str(at["time"].dt.strftime("%Y-%m-%d").item())
    said = told("Demo-Ensemble_r2i1p1f1_ESPO-DEMO_Demo-Regional", *point, "pr")
    assert "clipped to at most 0.0004" in " ".join(said.split())


def test_a_sample_of_a_pools_products_is_what_the_raw_files_give(here: Made, told: Callable[..., str]) -> None:
    found = json.loads(told("--sample", "2", "--json"))
    assert all(row["identical"] == row["values"] for row in found["rows"])
    # A cell may lie outside of a regional simulation's outline.
    compared = sum(row["cells"] for row in found["rows"] if row["var"] == "pr")
    assert compared + sum(found["left_out"].values()) == 2 and compared
    assert found["without_product"]


def test_the_pools_mean_over_the_calibration_is_the_references_and_members_need_not_be(
    here: Made, v2_raw: Path
) -> None:
    years = slice("1991", "2020")
    adjusted = [store.open_store(here.product(member, "tasmax"))["tasmax"].sel(time=years) for member in (1, 2)]
    files = (v2_raw / "reconstruction" / "Demo-Rotated").glob("tasmax_*.nc")
    reference = xr.open_dataset(next(iter(files)))["tasmax"].sel(time=years).mean("time")
    on_grid = reference.sel(rlat=adjusted[0]["rlat"], rlon=adjusted[0]["rlon"], method="nearest")
    pooled = sum(each.mean("time") for each in adjusted) / 2
    assert float(abs(pooled - on_grid.values).max()) < 0.15


@pytest.mark.skipif(shutil.which("cdo") is None, reason="install cdo")
def test_rotated_products_are_exported_to_netcdf_that_a_checker_accepts_and_cdo_reads(
    here: Made, own_settings: LuigiConfigParser, tmp_path: Path
) -> None:
    sim_id = REGIONAL.replace("r1i1p1f1", "r2i1p1f1")
    use([here.folder / "config.yml", here.folder / "paths.yml"], here.folder)
    assert cli.main(["export", "--sim-id", sim_id, str(tmp_path / "netcdf")]) == 0
    first = []
    for var in ("tasmax", "tasmin", "dtr", "pr"):
        files = sorted((tmp_path / "netcdf").rglob(f"{var}_day_*+{sim_id}_*.nc"))
        assert len(files) == 9
        first.append(files[0])
        assert_cdo_reads(files, store.open_store(here.product(2, var))[var].load(), tmp_path)
        with xr.open_dataset(files[0]) as found:
            mapping = found[found[var].attrs.get("grid_mapping") or found[var].encoding["grid_mapping"]]
            assert mapping.attrs["grid_mapping_name"] == "rotated_latitude_longitude"
    assert problems_of(first) == ""


def test_members_of_a_regional_pool_make_an_ensemble_on_the_cells_of_their_outline(
    here: Made, own_settings: LuigiConfigParser, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert here.code == 0, here.said
    use([here.folder / "config.yml", here.folder / "paths.yml"], here.folder)
    ids = [sim_id for sim_id in context().simulations if "Demo-Regional" in sim_id]
    monkeypatch.setattr("espo_luigi.tasks.ensembles.members", lambda run, experiment: ids)
    wanted = {"freq": "YS-JAN", "dataset": "scenario", "experiment": "ssp370", "product": "climatology"}
    ensemble, regions = tasks.Ensemble(**wanted), tasks.Regions(**wanted)
    assert len(ids) == 2 and all(task.complete() for task in ensemble.requires())
    for task in (ensemble, regions):
        task.check()
        task.work()
    found = store.open_store(ensemble.out_ensemble().path)
    counts = found["tx_mean_clim_mean_members"].isel(horizon=0)
    assert int((counts == 2).sum()) == 95 and int((counts == 1).sum()) == 0
    days = [store.open_store(here.product(member, "tasmax"))["tasmax"] for member in (1, 2)]
    means = [of.sel(time=slice("1991", "2005")).groupby("time.year").mean().mean("year") for of in days]
    np.testing.assert_allclose(found["tx_mean_clim_mean_mean"].isel(horizon=0), (means[0] + means[1]) / 2, rtol=1e-5)
    rows = store.read_table(regions.out_table().path)
    assert {row["region"] for row in rows} == {"gaspe"} and {*ids, "p50"} <= {row["statistic"] for row in rows}
    raw = tasks.Indicators(sim_id=ids[0], dataset="simulation", freq="YS-JAN").out_indicators().path
    assert int(store.open_store(raw)["tx_mean"].isel(time=5).notnull().sum()) >= 95


def test_swapping_makes_no_file_of_every_chunk(here: Made) -> None:
    results = [json.loads(path.read_text()) for path in (here.folder / "run" / "jobs" / "Swap").glob("*.result.json")]
    assert len(results) == 2
    # Three outputs, each with a file for a member and 20 cells, and some with coordinates; two have counts of days, and
    # flags of days and of cells.
    assert all(result["made"]["files"] < 3 * (2 * 5 + 20) + 2 * 10 + 2 * 2 * (2 * 5 + 1) for result in results)


@pytest.mark.long()
@pytest.mark.slurm()
@pytest.mark.timeout(3600)
@pytest.mark.skipif(_NO_SLURM is not None, reason=str(_NO_SLURM))
def test_the_whole_demo_has_the_same_bytes_in_slices_of_another_size_on_slurm(v2_raw: Path, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "slurm").mkdir()
    here = make(tmp_path / "here", v2_raw, 75, "local", pools="", until="")
    assert here.code == 0, here.said
    with ThrowawayCluster.start(ClusterSpec(nodes=2, cpus=4)) as cluster:
        there = make(tmp_path / "slurm", v2_raw, 93, "slurm", SLURM, cluster.environ, pools="", until="")
    assert there.code == 0, there.said
    assert len(list((there.folder / "final").glob("reference/split_regions/*_default.zarr"))) == 2
    products = [path.relative_to(here.folder) for path in sorted((here.folder / "final").rglob("*_day_*.zarr.zip"))]
    # Four variables, and the range before the exchange, of six members: a pool of three, one of 360 days, two regional.
    assert len(products) == 6 * 5
    for path in products:
        assert_same(there.folder / path, here.folder / path)
    flags = [store.open_store(path) for path in (here.folder / "final" / "checks").rglob("*_checks.zarr")]
    assert len(flags) == 6 and not any(bool(value) for found in flags for value in found.data_vars.values())


def test_no_byte_of_a_downscaled_product_depends_on_the_slices(tmp_path: Path, v2_raw: Path) -> None:
    rain = {"method": "MBCnSD", "arguments": {"iterations": 2, "years": 20}}
    sections = {"downscaling": {"grid": 0.5, "method": "QPLAD", "variables": {"pr": rain}}, "flags": {}}
    made = []
    for n in (40, 500):
        folder = tmp_path / str(n)
        folder.mkdir()
        made.append(make(folder, v2_raw, n, "local", sections=sections))
        assert made[-1].code == 0, made[-1].said
    for var in ("tasmax", "pr"):
        one, other = (store.open_store(each.product(1, var)).load() for each in made)
        np.testing.assert_array_equal(one[var].values, other[var].values)
        assert int(one[var].notnull().any("time").sum()) > 0
        flags, others = (store.open_store(each.flags(1, var)).load() for each in made)
        xr.testing.assert_equal(flags, others)
