"""Values of variables that are adjusted together: made again for single cells, and explained."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import dask
import pytest
import xarray as xr
from any_variables import KNOWN, PERIOD, configuration, write_raw
from complete_demo import edit, in_order
from demo_runs import use
from luigi.configuration import LuigiConfigParser

from espo_luigi.audit.sample import audit
from espo_luigi.audit.value import way_of
from espo_luigi.tasks.context import context

pytestmark = pytest.mark.production
SIM = "CMIP6_ScenarioMIP_X_Any_ssp370_r1i1p1f1_gn"
LAND = 46.25, -65.25


Run = Callable[..., None]
OTHER = SIM.replace("r1i", "r2i")
NAMES = ["tasmax", "dtr", "pr"]
PR = {"kind": "*", "jitter_under": {"thresh": "1 mm d-1"}, "adapt_freq_thresh": "2 mm d-1"}
MBCN: dict[str, Any] = {
    "method": "MBCn",
    "variables": NAMES,
    "training_args": {
        "period": KNOWN,
        "group": {"group": "5D", "window": 5},
        "n_iter": 3,
        "by_variable": {"dtr": {"kind": "*"}, "pr": PR},
    },
    "adjusting_args": {"periods": PERIOD, "moving_yearly_window": {"window": 3, "step": 1}},
}


def add_member(folder: Path) -> None:
    """Write a second member of the simulation, and catalogue it."""
    rows = (folder / "simulation.csv").read_text().splitlines()
    for name in ("tasmax", "tasmin", "pr"):
        ds = xr.open_dataset(folder / f"simulation-{name}.nc")
        ds.roll(time=-1, roll_coords=False).to_netcdf(folder / f"simulation-{name}-r2.nc")
    more = [row.replace("r1i", "r2i").replace(".nc", "-r2.nc") for row in rows[1:]]
    (folder / "simulation.csv").write_text("\n".join([*rows, *more]) + "\n")


@pytest.fixture()
def run(tmp_path: Path, own_settings: LuigiConfigParser) -> Run:
    """A function that makes the products of variables that are adjusted together."""

    def made(how: dict[str, Any], *, v2: bool) -> None:
        write_raw(tmp_path / "raw", ["tasmax", "tasmin", "pr"])
        add_member(tmp_path / "raw")
        files = configuration(tmp_path, tmp_path / "raw", NAMES, v2=v2)
        adjusted = {"biasadjust": {"variables": {"joint": how}}, "clean_up": {"temperatures": "derived"}}
        edit(files[0], lambda content: content.update(adjusted))
        use(files, tmp_path)
        run = context()
        with dask.config.set(scheduler="threads", num_workers=2):
            for task in (info.task for sim_id in run.simulations for info in run.archives(sim_id).values()):
                for needed in in_order(task):
                    if not needed.complete():
                        with needed.guarded():
                            needed.work()

    return made


@pytest.mark.parametrize(("v2", "group"), [(False, {}), (True, {}), (True, {"add_dims": []})])
def test_products_of_variables_together_are_explained_and_audited_by_single_cells(
    run: Run, v2: bool, group: dict[str, Any]
) -> None:
    training: dict[str, Any] = MBCN["training_args"]
    run(MBCN | {"training_args": training | {"group": training["group"] | group}}, v2=v2)
    assert list(context().pools.values()) == ([(SIM, OTHER)] if v2 else [(SIM,), (OTHER,)])
    around = way_of(OTHER, *LAND, "1993-07-14").adjusted["pr"]
    dry = around.adjusted.index(0) - around.day
    way = way_of(OTHER, *LAND, f"{date(1993, 7, 14) + timedelta(dry)}")
    assert list(way.adjusted) == NAMES and {*way.products} == {"tasmax", "tasmin", "pr", *(["dtr"] if v2 else [])}
    assert all(product.identical for product in way.products.values())
    for name, adjusted in way.adjusted.items():
        told = [step.name for step in adjusted.steps if step.name != "noise"]
        last = ["dry", "adjusted"] if name == "pr" else ["adjusted"]
        assert told == ["regridded", "univariate", "rank before", "rank after", "result", *last], name
        alone = next(step for step in adjusted.steps if step.name == "univariate")
        assert ("of 2 members" in alone.sentence) == (v2 and not group)
    found = audit(6, 1)
    assert not found.differences and not found.failures
    assert all(row.identical == row.values for row in found.rows)
