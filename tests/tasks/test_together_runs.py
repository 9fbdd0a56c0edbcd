"""MBCn of a group, by two lines of a configuration, through the whole line: adjusted, derived, checked, reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from complete_demo import NOLEAP, in_order
from demo_runs import ONE_REGION
from scipy.stats import spearmanr

from espo_luigi import store, tasks
from espo_luigi.audit.value import way_of
from espo_luigi.tasks.report import write_now

KNOWN, ALL = ["1991", "1994"], ["1991", "1998"]
JOINT = {"method": "MBCn", "variables": ["tasmax", "dtr", "pr"]}
CHANGES: dict[str, Any] = {
    **ONE_REGION,
    "custom__ref_period": KNOWN,
    "custom__sim_period": ALL,
    "health_checks__start_date": "1991-01-01",
    "health_checks__end_date": "1998-12-30",
    "biasadjust__variables": {"joint": JOINT},
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
    for task in {one.task_id: one for end in ends for one in in_order(end)}.values():
        assert not isinstance(task, tasks.Train)
        with task.guarded():
            task.work()
    write_now(tmp_path / "report.html")
    assert NOLEAP in (tmp_path / "report.html").read_text()
    product = store.open_store(ends[1].out_final().path)
    reference = store.open_store(tasks.ReferenceCalendar(piece="south", calendar="noleap").out_reference().path).load()
    simulation = store.open_store(tasks.Rechunk(sim_id=NOLEAP, piece="south").out_regchunked().path).load()
    adjusted = store.open_store(tasks.Adjust(pool=NOLEAP, piece="south", var="joint").out_adjusted().path).load()
    assert set(adjusted.data_vars) == {*JOINT["variables"]}
    at = {name: reference[name].reset_coords(drop=True) for name in ("lat", "lon")}
    made = product.sel(at).load()
    tasmin = (adjusted["tasmax"] - adjusted["dtr"]).transpose(*made["tasmin"].dims)
    np.testing.assert_allclose(made["tasmin"], tasmin, atol=0.02)
    wanted, raw, found = (correlation(one) for one in (reference, simulation, made))
    assert abs(found - wanted) < 0.05 and abs(found - wanted) < abs(raw - wanted)
    said = made["pr"].attrs["bias_adjustment"]
    assert said.startswith("MBCn(") and "'5D'" in said and "adapt_freq_thresh" in said
    way = way_of(NOLEAP, float(made["lat"][0]), float(made["lon"][0]), "1992-07-14", "tasmin")
    names = [step.name for step in way.adjusted["dtr"].steps]
    assert names[0] == "regridded" and "rank after" in names
