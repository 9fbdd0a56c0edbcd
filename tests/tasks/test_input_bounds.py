"""What raw files cannot be, of variables with bounds and of one's own: found by the checks, before anything heavy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import any_variables
import pytest
import xarray as xr
from demo_runs import use
from luigi.configuration import LuigiConfigParser

from espo_luigi import store, tasks
from espo_luigi.errors import DataError
from espo_luigi.tasks.context import context

BOUNDS = {"lower_bound": "0 %", "upper_bound": "100 %", "trans": "logit"}


def configured(folder: Path, clip: str | None, **own: Any) -> tuple[tasks.RefInputCheck, tasks.InputCheck]:
    """Checks of a production of humidity, by a logit, and of ozone."""
    space = {"additive_space": {**BOUNDS, "clip_next_to_bounds": clip}}
    more = {"biasadjust": {"variables": {"hurs": {"training_args": space}}}, **own}
    use(any_variables.configuration(folder, folder / "raw", ["hurs", "ozone"], v2=False, more=more), folder)
    return tasks.RefInputCheck(), tasks.InputCheck(sim_id=next(iter(context().simulations)))


@pytest.fixture()
def raw(tmp_path: Path, own_settings: LuigiConfigParser) -> Path:
    any_variables.write_raw(tmp_path / "raw", ["hurs", "ozone"])
    return tmp_path / "raw" / "simulation-hurs.nc"


def messages(check: Any) -> dict[tuple[str, str], str]:
    """The messages of what fails, by problem and variable, of a check that fails."""
    with pytest.raises(DataError):
        check.work()
    rows = store.read_table(check.out_problems().path)
    return {(row["problem"], row["variable"]): row["message"] for row in rows if row["action"] == "fail"}


def test_values_beyond_the_bounds_of_a_logit_are_told_with_the_key(raw: Path, tmp_path: Path) -> None:
    of_reference, of_simulation = configured(tmp_path, "strict")
    for check in (of_reference, of_simulation):
        assert "biasadjust.variables.hurs.training_args.additive_space" in check.reading()
    (found,) = messages(of_simulation).items()
    assert found[0] == ("impossible_values", "hurs")
    assert "expected -5 to 100 %" in found[1]
    assert "a `margin` there limits them" in found[1]
    for check in configured(tmp_path, "permissive"):
        check.work()
        assert store.read_table(check.out_problems().path) == []


def test_bounds_that_most_values_pass_are_told_with_the_key(raw: Path, tmp_path: Path) -> None:
    ds = xr.load_dataset(raw)
    ds.assign(hurs=(ds["hurs"] + 95).assign_attrs(ds["hurs"].attrs)).to_netcdf(raw)
    margin = {"clip_next_to_bounds": None, "margin": "1 %"}
    own = {"biasadjust": {"variables": {"hurs": {"training_args": {"additive_space": BOUNDS | margin}}}}}
    of_reference, of_simulation = configured(tmp_path, None, **own)
    of_reference.work()
    (found,) = messages(of_simulation).items()
    assert found[0] == ("mislabelled_units", "hurs") and "expected 0 to 100" in found[1]
    assert "`biasadjust.variables.hurs.training_args.additive_space`" in found[1]


def test_fractions_labelled_percent_and_units_that_nobody_knows_are_told_with_file_and_variable(
    raw: Path, tmp_path: Path
) -> None:
    damaged = {"hurs": lambda da: (da / 100).assign_attrs(da.attrs), "ozone": lambda da: da.assign_attrs(units="DU?")}
    for name, change in damaged.items():
        path = raw.with_name(f"simulation-{name}.nc")
        ds = xr.load_dataset(path)
        ds.assign({name: change(ds[name])}).to_netcdf(path)
    _, check = configured(tmp_path, "permissive", variables={"ozone": {"units": "mg m-3"}})
    found = messages(check)
    assert set(found) == {("mislabelled_units", "hurs"), ("units", "ozone")}
    assert "expected values up to 100 %" in found["mislabelled_units", "hurs"]
    assert f"{raw.with_name('simulation-ozone.nc')}: ozone has units 'DU?'" in found["units", "ozone"]


def test_the_limits_of_a_variable_of_one_s_own_are_those_of_the_section_variables(raw: Path, tmp_path: Path) -> None:
    _, check = configured(tmp_path, "permissive", variables={"ozone": {"units": "mg m-3", "raw": [0, 0.05]}})
    (found,) = messages(check).items()
    assert found[0] == ("impossible_values", "ozone") and "expected 0 to 0.05 mg m-3" in found[1]
