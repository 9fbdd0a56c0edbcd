"""MBCn of a group, by two lines of a configuration, through the whole line: adjusted, derived, checked, reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from complete_demo import NOLEAP, in_order, work
from demo_runs import ONE_REGION, of_years
from luigi.configuration import LuigiConfigParser
from scipy.stats import spearmanr
from test_isimip import DATA, LIMITS, OWN, REGRID, SIM, STRETCHES, configuration, configure

from espo_luigi import store, tasks
from espo_luigi.audit.value import way_of
from espo_luigi.commands import cli
from espo_luigi.tasks.report import write_now

pytestmark = pytest.mark.production
KNOWN = ["1991", "1994"]
JOINT = {"method": "MBCn", "variables": ["tasmax", "dtr", "pr"]}
CHANGES: dict[str, Any] = {
    **ONE_REGION,
    **of_years(1991, 1998, *map(int, KNOWN)),
    # The export needs an institution.
    "biasadjust__variables": {"joint": JOINT | {"adjusting_args": {"bias_adjust_institution": "ESPO-DEMO"}}},
}


def correlation(ds: xr.Dataset) -> float:
    """The mean rank correlation of tasmax and pr in a cell's winters of the calibration."""
    winters = ds.sel(time=slice(*KNOWN))
    winters = winters.sel(time=winters["time"].dt.month.isin([12, 1, 2])).transpose("loc", ..., "time")
    each = [spearmanr(winters["tasmax"][cell], winters["pr"][cell]).statistic for cell in range(winters.sizes["loc"])]
    return float(np.mean(each))


def test_a_group_reaches_products_checks_diagnostics_and_the_report(
    configured: Callable[..., list[Path]], tmp_path: Path
) -> None:
    configured(**CHANGES)
    ends = [tasks.HealthChecks(sim_id=NOLEAP), tasks.ConcatenationFinal(sim_id=NOLEAP)]
    assert not any(isinstance(task, tasks.Train) for task in in_order(ends[0]))
    work(*ends)
    write_now(tmp_path / "report.html")
    assert NOLEAP in (tmp_path / "report.html").read_text()
    product = store.open_store(ends[1].out_final().path)
    reference = store.open_store(tasks.ReferenceCalendar(piece="south", calendar="noleap").out_reference().path).load()
    simulation = store.open_store(tasks.Regrid(sim_id=NOLEAP, piece="south").out_regridded().path).load()
    adjusted = store.open_store(tasks.Adjust(pool=NOLEAP, piece="south", var="joint").out_adjusted().path).load()
    assert set(adjusted.data_vars) == {*JOINT["variables"]}
    at = {name: reference[name].reset_coords(drop=True) for name in ("lat", "lon")}
    made = product.sel(at).load()
    tasmin = (adjusted["tasmax"] - adjusted["dtr"]).transpose(*made["tasmin"].dims)
    np.testing.assert_allclose(made["tasmin"], tasmin, atol=0.02)
    wanted, raw, found = (correlation(one) for one in (reference, simulation, made))
    assert abs(found - wanted) < 0.05 and abs(found - wanted) < abs(raw - wanted)
    said = made["pr"].attrs["bias_adjustment"]
    assert said.startswith("MBCn(") and "'15D'" in said and "adapt_freq_thresh" in said
    assert cli.main(["export", "--sim-id", NOLEAP, str(tmp_path / "netcdf")]) == 0
    with xr.open_mfdataset(map(str, (tmp_path / "netcdf").rglob("pr_*.nc"))) as exported:
        np.testing.assert_array_equal(exported["pr"].sel(at).transpose(*made["pr"].dims), made["pr"])
        assert exported["pr"].attrs["bias_adjustment"] == said
    way = way_of(NOLEAP, float(made["lat"][0]), float(made["lon"][0]), "1992-07-14", "tasmin")
    names = [step.name for step in way.adjusted["dtr"].steps]
    assert names[0] == "regridded" and "rank after" in names


BERLIN = ("hurs", "pr", "rsds", "sfcWind", "tasrange")


@pytest.mark.long
@pytest.mark.skipif(not DATA.is_dir(), reason=f"needs {DATA}, which is not there")
def test_five_real_variables_keep_their_bounds_and_get_the_correlations_of_the_reference(
    tmp_path: Path, own_settings: LuigiConfigParser
) -> None:
    content = configuration(tmp_path, dict.fromkeys(BERLIN), variables={"tasrange": OWN["tasrange"]}, regrid=REGRID)
    content["biasadjust"]["variables"] = {"joint": {"method": "MBCn", "variables": list(BERLIN)}}
    configure(tmp_path, content)
    end = tasks.HealthChecks(sim_id=SIM)
    work(end)
    product = store.open_store(tasks.ConcatenationFinal(sim_id=SIM).out_final().path).load()
    for name in BERLIN:
        low, high = (0, 200) if name == "tasrange" else LIMITS[name]
        assert product[name].notnull().all() and low <= product[name].min() and product[name].max() <= high, name
    reference = store.open_store(tasks.ReferenceCalendar(piece="land", calendar="noleap").out_reference().path).load()
    simulation = store.open_store(tasks.Regrid(sim_id=SIM, piece="land").out_regridded().path).load()
    at = {name: reference[name].reset_coords(drop=True) for name in ("lat", "lon")}
    wanted, raw, made = (pairs(one) for one in (reference, simulation, product.sel(at)))
    before, after = (np.abs(one - wanted) for one in (raw, made))
    without_pr = np.ix_(range(len(wanted)), *[[place for place, name in enumerate(BERLIN) if name != "pr"]] * 2)
    # Of amounts with many dry days, the rotations, which see standardised values, know the small ones least.
    assert after[without_pr].max() < 0.05 < before[without_pr].max() and after.mean() < before.mean() / 2, (
        after.max((0, 1)),
        before.max((0, 1)),
        after.mean(),
        before.mean(),
    )


def pairs(ds: xr.Dataset) -> np.ndarray:
    """The rank correlations of all pairs of variables in summers of the first stretch, in each cell."""
    # The noise of dry days has ranks of its own.
    summers = ds.assign(pr=ds["pr"].where(ds["pr"] > 0.1 / 86400, 0)).sel(time=slice(*STRETCHES[0]))
    summers = summers.sel(time=summers["time"].dt.month.isin([6, 7, 8])).transpose("loc", ..., "time")
    cells = [np.stack([summers[name].values[cell] for name in BERLIN]) for cell in range(summers.sizes["loc"])]
    return np.array([spearmanr(one, axis=1).statistic for one in cells])
