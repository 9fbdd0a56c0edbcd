"""Productions of any set of variables: one that nobody has heard of, one of temperatures, derived ones, five."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import xarray as xr
from any_variables import configuration, write_raw
from complete_demo import in_order
from demo_runs import use
from luigi.configuration import LuigiConfigParser

from espo_luigi import store, tasks
from espo_luigi.audit.sample import audit
from espo_luigi.audit.shown import render
from espo_luigi.audit.value import way_of
from espo_luigi.tasks.context import context
from espo_luigi.tasks.export import every_export
from espo_luigi.tasks.publish import publish
from espo_luigi.tasks.report import write_now

SIM = "CMIP6_ScenarioMIP_X_Any_ssp370_r1i1p1f1_gn"
Run = Callable[..., dict[str, xr.DataArray]]


@pytest.fixture()
def run(tmp_path: Path, own_settings: LuigiConfigParser) -> Run:
    """A function that makes a production, and returns its variables."""

    def made(raw: str, adjusted: str, *, v2: bool, **more: Any) -> dict[str, xr.DataArray]:
        write_raw(tmp_path / "raw", raw.split())
        use(configuration(tmp_path, tmp_path / "raw", adjusted.split(), v2=v2, more=more), tmp_path)
        with dask.config.set(scheduler="threads", num_workers=2):
            for task in in_order(tasks.All()):
                task.check()
                with task.guarded():
                    task.work()
        opened = {name: store.open_store(info.path) for name, info in context().archives(SIM).items()}
        return {name: ds[name].load() for name, ds in opened.items()}

    return made


def everything_else(folder: Path, var: str, day: str = "1994-07-14") -> str:
    """Report, export, publication, audit and explanation; the last is returned."""
    write_now(folder / "report.html")
    assert SIM in (folder / "report.html").read_text()
    for task in every_export(folder / "netcdf", "espo-v2")._exports:
        with task.guarded():
            task.work()
    assert list((folder / "netcdf").rglob(f"{var}_*.nc"))
    publish()
    found = audit(2, 1)
    assert not found.differences and not found.failures and found.rows
    return render(way_of(SIM, 46.25, -65.25, day, var))


@pytest.mark.parametrize("v2", [False, True])
def test_a_variable_that_nobody_has_heard_of_goes_all_the_way_by_itself(run: Run, tmp_path: Path, v2: bool) -> None:
    ozone = {"units": "mg m-3", "bounds": [0, None], "long_name": "Ozone near the ground"}
    made = run("ozone", "ozone", v2=v2, variables={"ozone": ozone})
    assert list(made) == ["ozone"]
    assert made["ozone"].attrs["units"] == "mg m-3" and made["ozone"].attrs["long_name"] == "Ozone near the ground"
    values = made["ozone"].values
    assert np.isfinite(values).any(axis=0).sum() == 33 and np.isfinite(values).all(axis=0).sum() == 33
    assert "ozone, product" in everything_else(tmp_path, "ozone")
