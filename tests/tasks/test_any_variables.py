"""Productions of any set of variables: one that nobody has heard of, one of temperatures, derived ones, five."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import any_variables
import dask
import numpy as np
import pytest
import xarray as xr
from any_variables import configuration, write_raw
from checked_netcdf import problems_of
from complete_demo import work
from demo_runs import use
from luigi.configuration import LuigiConfigParser
from xclim import indices

from espo_luigi import store, tasks
from espo_luigi.audit.sample import audit
from espo_luigi.audit.shown import render
from espo_luigi.audit.value import way_of
from espo_luigi.errors import CatalogError
from espo_luigi.tasks.context import context
from espo_luigi.tasks.export import every_export
from espo_luigi.tasks.publish import publish
from espo_luigi.tasks.report import write_now

pytestmark = pytest.mark.production
SIM = "CMIP6_ScenarioMIP_X_Any_ssp370_r1i1p1f1_gn"
Run = Callable[..., dict[str, xr.DataArray]]


@pytest.fixture()
def run(tmp_path: Path, own_settings: LuigiConfigParser) -> Run:
    """A function that makes a production, and returns its variables."""

    def made(raw: str, adjusted: str, *, v2: bool, **more: Any) -> dict[str, xr.DataArray]:
        write_raw(tmp_path / "raw", raw.split())
        use(configuration(tmp_path, tmp_path / "raw", adjusted.split(), v2=v2, more=more), tmp_path)
        with dask.config.set(scheduler="threads", num_workers=2):
            work(tasks.All())
        opened = {name: store.open_store(info.path) for name, info in context().archives(SIM).items()}
        return {name: ds[name].load() for name, ds in opened.items()}

    return made


def explained(folder: Path, var: str) -> str:
    """The explanation of a value, after a report."""
    write_now(folder / "report.html")
    assert SIM in (folder / "report.html").read_text()
    return render(way_of(SIM, 46.25, -65.25, "1993-07-14", var))


def export_and_publish(folder: Path, var: str) -> None:
    work(*(task for task in every_export(folder / "netcdf", "espo-v2")._exports if task.var == var))
    (file,) = (folder / "netcdf").rglob(f"{var}_*.nc")
    assert not problems_of([file])
    publish()
    found = audit(2, 1)
    assert not found.differences and not found.failures and {row.var for row in found.rows} >= {var}


@pytest.mark.parametrize(("v2", "units"), [(False, "DU"), (True, "mg m-3")])
def test_a_variable_that_nobody_has_heard_of_goes_all_the_way_by_itself(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, v2: bool, units: str
) -> None:
    """With units that are converted, or with the files' own, which no program knows."""
    own = {"units": units} if units == "mg m-3" else {}
    monkeypatch.setitem(any_variables.UNITS, "ozone", "ug m-3" if own else units)
    ozone = {"bounds": [0, None], "long_name": "Ozone near the ground", **own}
    made = run("ozone", "ozone", v2=v2, variables={"ozone": ozone})
    assert list(made) == ["ozone"]
    attrs, values = made["ozone"].attrs, made["ozone"].values
    assert attrs["units"] == units and attrs["long_name"] == "Ozone near the ground"
    assert np.isfinite(values).any(axis=0).sum() == np.isfinite(values).all(axis=0).sum() == 33
    assert "ozone, product" in explained(tmp_path, "ozone")
    if not v2:
        export_and_publish(tmp_path, "ozone")


def test_humidity_is_derived_within_its_bounds_with_the_dew_point(run: Run, tmp_path: Path) -> None:
    made = run("tasmax tasmin huss ps", "tas huss ps", v2=False, clean_up={"derive": ["hurs", "tdps"]})
    assert list(made) == ["tas", "huss", "ps", "hurs", "tdps"]
    free = indices.relative_humidity(made["tas"], huss=made["huss"], ps=made["ps"], invalid_values=None)
    np.testing.assert_allclose(made["hurs"], free.clip(0, 100), atol=1e-3)
    assert float(made["hurs"].max()) == 100
    np.testing.assert_allclose(made["hurs"].attrs["espo_luigi_days_clipped"], (free > 100).sum(), rtol=1e-3)
    told = render(way_of(SIM, 46.25, -65.25, "1993-07-14", "hurs"))
    assert "(xclim, sonntag90) of tas, huss and ps" in told and "adjusted ps" in told


def test_tas_is_derived_from_exchanged_temperatures_and_the_wind_from_its_components(run: Run, tmp_path: Path) -> None:
    raw = "tasmax tasmin uas vas"
    made = run(raw, raw, v2=True, clean_up={"derive": {"tas": {"from": ["tasmin", "tasmax"]}, "sfcWind": {}}})
    assert list(made) == [*raw.split(), "tas", "sfcWind"] and not bool((made["tasmax"] < made["tasmin"]).any())
    np.testing.assert_allclose(made["tas"], (made["tasmax"] + made["tasmin"]) / 2, atol=1e-3)
    np.testing.assert_allclose(made["sfcWind"], np.hypot(made["uas"], made["vas"]), atol=1e-4)
    assert made["sfcWind"].attrs["standard_name"] == "wind_speed"
    told = explained(tmp_path, "tas")
    assert "derived: mean of tasmax and tasmin" in told and "adjusted tasmin" in told
    export_and_publish(tmp_path, "sfcWind")


@pytest.mark.parametrize("which", ["simulation", "reference"])
def test_a_mean_of_extremes_is_not_compared_with_a_stored_mean(tmp_path: Path, which: str) -> None:
    write_raw(tmp_path / "raw", ["tas", "tasmax", "tasmin"])
    rows = tmp_path / "raw" / f"{which}.csv"
    rows.write_text("\n".join(row for row in rows.read_text().splitlines() if "('tas',)" not in row))
    use(configuration(tmp_path, tmp_path / "raw", ["tas"], v2=False), tmp_path)
    here = "derived here and stored in" if which == "simulation" else "stored here and derived in"
    with pytest.raises(CatalogError, match=f"{SIM}: tas is {here} the reference, .* tasmax and tasmin is another"):
        _ = context().simulations


def test_the_report_s_series_have_what_products_derive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_raw(tmp_path / "raw", ["tasmax", "tasmin"])
    use(
        configuration(
            tmp_path, tmp_path / "raw", ["tasmax", "tasmin"], v2=False, more={"clean_up": {"derive": ["tas"]}}
        ),
        tmp_path,
    )
    opened = [xr.open_dataset(tmp_path / "raw" / f"reference-{name}.nc") for name in ("tasmax", "tasmin")]
    given = xr.merge(opened).chunk(time=100)
    product = given.assign(tas=given["tasmax"])
    monkeypatch.setattr(tasks.Summaries, "describe", lambda self, field, sources: sources)
    task = tasks.Summaries(sim_id=SIM, diag_domain="all")
    sources = task.compute(product, given, given, product)
    assert all({*ds} == {"tasmax", "tasmin", "tas"} for ds in sources.values())
    expected = (given["tasmax"] + given["tasmin"] + 273.15) / 2 - 273.15
    np.testing.assert_allclose(sources["raw"]["tas"], expected, atol=1e-3)
