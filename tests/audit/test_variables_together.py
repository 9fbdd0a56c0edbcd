"""Values of variables that are adjusted together: made again for single cells, and explained."""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import xarray as xr
from any_variables import KNOWN, PERIOD, configuration, write_raw
from complete_demo import edit, in_order
from demo_runs import use
from luigi.configuration import LuigiConfigParser

from espo_luigi.audit.sample import audit
from espo_luigi.audit.value import way_of
from espo_luigi.methods.base import Block, Method, Setup, Step
from espo_luigi.science.seeds import cell_generator
from espo_luigi.tasks.context import context

SIM = "CMIP6_ScenarioMIP_X_Any_ssp370_r1i1p1f1_gn"
LAND = 46.25, -65.25


class Noisy(Method):
    """Scale the variables to the reference's means, with noise of the cell, the member and the variable."""

    trains = False
    variables_together = True
    needs_reference_to_adjust = True

    def adjust(self, block: Block, trained: xr.Dataset, setup: Setup) -> xr.Dataset:
        """Scale."""
        moved = block["simulation"] * (block["reference"].mean("time") / block["historical"].mean("time"))
        shape = len(setup.units), len(setup.member_seeds), len(setup.time)
        for place, cell in enumerate(block["cell"].values):
            draws = [cell_generator(seed, "simulation", int(cell)).random(shape[::2]) for seed in setup.member_seeds]
            moved.values[:, place] *= 1 + np.stack(draws, 1).reshape(moved[:, place].shape).astype(moved.dtype) / 50
        return moved.to_dataset(name="scenario")

    def steps(
        self, block: Block, trained: xr.Dataset, setup: Setup, day: int, member: int = 0, variable: str = ""
    ) -> list[Step]:
        """The value with its noise."""
        made = self.adjust(block, trained, setup)["scenario"].values.reshape(len(setup.units), -1, len(setup.time))
        return [Step("noisy", float(made[list(setup.units).index(variable), member, day]), setup.units[variable])]


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    point, known = metadata.EntryPoint("noisy", f"{__name__}:Noisy", "espo_luigi.methods"), metadata.entry_points

    def points(**of: str) -> Any:
        return (point,) if of == {"group": "espo_luigi.methods"} else known(**of)

    monkeypatch.setattr(metadata, "entry_points", points)


Run = Callable[..., None]
OTHER = SIM.replace("r1i", "r2i")
NAMES = ["tasmax", "dtr", "pr"]
NOISY = {
    "method": "noisy",
    "variables": NAMES,
    "training_args": {"period": KNOWN},
    "adjusting_args": {"periods": PERIOD},
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


@pytest.mark.parametrize("v2", [False, True])
def test_products_of_variables_together_are_explained_and_audited_by_single_cells(run: Run, v2: bool) -> None:
    run(NOISY, v2=v2)
    assert list(context().pools.values()) == ([(SIM, OTHER)] if v2 else [(SIM,), (OTHER,)])
    way = way_of(OTHER, *LAND, "1993-07-14")
    assert list(way.adjusted) == NAMES and {*way.products} == {"tasmax", "tasmin", "pr", *(["dtr"] if v2 else [])}
    assert all(product.identical for product in way.products.values())
    for name, adjusted in way.adjusted.items():
        assert [step.name for step in adjusted.steps] == ["regridded", "noisy", "adjusted"], name
    found = audit(6, 1)
    assert not found.differences and not found.failures
    assert all(row.identical == row.values for row in found.rows)
