"""Cells of variables that are adjusted together, made again without their blocks: the same values, and their steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from any_variables import KNOWN, PERIOD, configuration, write_raw
from complete_demo import edit
from demo_runs import use
from luigi.configuration import LuigiConfigParser

from espo_luigi.audit import cells
from espo_luigi.science.seeds import cell_generator
from espo_luigi.tasks import Adjust, partition
from espo_luigi.tasks.context import context

SIM = "CMIP6_ScenarioMIP_X_Any_ssp370_r1i1p1f1_gn"
UNITS = {"tasmax": "K", "dtr": "K", "pr": "kg m-2 s-1"}
WINDOWED = {"group": "5D", "window": 3}
POOLED = {**WINDOWED, "add_dims": ["realization"]}
CASES = {
    "MBCn": {"group": WINDOWED},
    "MBCn in moving years": {"group": {"group": "time.month"}},
    "MBCn of a pool": {"group": POOLED},
}
BY_VARIABLE = {
    "dtr": {"kind": "*", "jitter_under": {"thresh": "0.5 K"}},
    "pr": {"kind": "*", "jitter_under": {"thresh": "0.01 mm d-1"}, "adapt_freq_thresh": "1 mm d-1"},
}


def series(seed: int, n_cells: int, error: float) -> xr.Dataset:
    """Three variables of 1991-1994; the last cell has no data."""
    time = xr.date_range("1991-01-01", "1994-12-31", calendar="noleap", use_cftime=True)
    made = {}
    for name, unit in UNITS.items():
        draws = np.stack(
            [cell_generator(str(seed), name, cell).gamma(0.7, 5, size=time.size) for cell in range(n_cells)]
        )
        draws[-1] = np.nan
        values = {"tasmax": 285 + draws, "dtr": draws + 0.1, "pr": np.maximum(draws - 2, 0) / 86400}[name]
        made[name] = (("loc", "time"), (values * (1 + error)).astype("f4"), {"units": unit})
    return xr.Dataset(made, {"time": time, "lat": ("loc", np.arange(n_cells) / 4)})


def configured(folder: Path, case: str, pool: list[str]) -> None:
    joint: dict[str, Any] = {
        "method": "MBCn",
        "variables": list(UNITS),
        "training_args": {"period": KNOWN, "by_variable": BY_VARIABLE, "n_iter": 3, "nquantiles": 10, **CASES[case]},
        "adjusting_args": {"periods": PERIOD},
    }
    joint["adjusting_args"]["moving_yearly_window"] = {"window": 3, "step": 1} if "moving" in case else None
    write_raw(folder / "raw", ["tasmax", "tasmin", "pr"])
    files = configuration(folder, folder / "raw", list(UNITS), v2=len(pool) > 1)
    more = {"biasadjust": {"variables": {"joint": joint}}, "clean_up": {"temperatures": "derived"}}
    edit(files[0], lambda content: content.update(more))
    use(files, folder)


@pytest.mark.parametrize(
    ("case", "n_members"),
    [*((case, 2) for case in CASES), ("MBCn of a pool", 1)],
)
def test_a_cell_is_the_same_without_its_block_and_its_steps_end_with_its_value(
    case: str, n_members: int, tmp_path: Path, own_settings: LuigiConfigParser, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [SIM, SIM.replace("r1i", "r2i")][:n_members]
    configured(tmp_path, case, ids)
    piece = partition.pieces(context())[-1]
    monkeypatch.setattr(partition, "members", lambda run, pool: ids)
    n_cells = 5
    members = {name: series(number, n_cells, 0.1) for number, name in enumerate(ids)}
    whole = cells.Series(SIM, piece, np.arange(n_cells), [series(9, n_cells, 0.0)] * 2, members)
    assert cells.cells_drawn_together(whole, ["joint"]) == 0
    made = cells.adjust(whole, ["joint"]).adjusted["joint"]
    for values in made.data_vars.values():
        assert values.isel(loc=slice(-1)).notnull().all() and values.isel(loc=-1).isnull().all()
    for place in (1, n_cells - 1):
        own = whole.cells(np.array([place]))
        alone = cells.adjust(own, ["joint"]).adjusted["joint"]
        xr.testing.assert_identical(alone, made.isel(loc=[place]))
    task, own = Adjust(pool=SIM, piece=piece, var="joint"), whole.cells(np.array([1]))
    member, date = n_members - 1, "1992-03-01"
    given = [], list(own.members.values()), own.references_for(task), own.before
    for variable in UNITS:
        value = float(made[variable].isel(loc=1).sel(time=date).values.ravel()[member])
        told = task.steps(*given, date, member, variable)
        assert told[-1].value == value
        assert {"univariate", "rank before", "rank after", "result"} <= {step.name for step in told}


def test_slices_of_any_size_give_a_pool_the_same_values(tmp_path: Path, own_settings: LuigiConfigParser) -> None:
    ids = [SIM, SIM.replace("r1i", "r2i")]
    configured(tmp_path, "MBCn of a pool", ids)
    made = []
    for n, piece, first in ((19, "sr-0", 7), (7, "sr-1", 0)):
        edit(tmp_path / "config.yml", lambda content, n=n: content.update(subregions={"n": n}))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(partition, "members", lambda run, pool: ids)
            members = {name: series(number, 3, 0.1) for number, name in enumerate(ids)}
            cut = cells.Series(SIM, piece, first + np.arange(3), [series(9, 3, 0.0)] * 2, members)
            made.append(cells.adjust(cut, ["joint"]).adjusted["joint"])
    xr.testing.assert_identical(*made)
    assert not made[0].isel(loc=0).equals(made[0].isel(loc=1))
