"""A stranger's method, whose package is the how-to page's, and a debiaser of ibicus: from config.yml to the product."""

import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from complete_demo import NOLEAP, in_order, work
from demo_runs import ONE_REGION, of_years
from others_packages import code_blocks

from espo_luigi import store, tasks
from espo_luigi.audit.value import way_of
from espo_luigi.config import load
from espo_luigi.errors import ConfigurationError
from espo_luigi.methods.base import method_named
from espo_luigi.overview.plan import plan_of
from espo_luigi.tasks.all import Selection
from espo_luigi.tasks.report import write_now

KNOWN, ALL = ["1991", "1994"], ["1991", "1998"]
MINE = {
    "method": "scaling-of-mine",
    "training_args": {"period": KNOWN, "kind": "*"},
    "adjusting_args": {"periods": ALL},
}
IBICUS = {
    "method": "ibicus.LinearScaling",
    "training_args": {"period": KNOWN},
    "adjusting_args": {"periods": ALL, "running_window_step_length": 31},
}
CHANGES: dict[str, Any] = {
    **ONE_REGION,
    **of_years(1991, 1998, *map(int, KNOWN)),
    "biasadjust__variables__dtr": MINE,
    "biasadjust__variables__pr": IBICUS,
    "biasadjust__variables__tasmax": IBICUS,
}


@pytest.fixture()
def installed(others_site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package is installed for this process."""
    monkeypatch.syspath_prepend(others_site)
    yield
    sys.modules.pop("scaling_of_mine", None)


Configure = Callable[..., list[Path]]


def test_an_installed_method_is_listed_and_its_arguments_are_checked_before_anything_runs(
    installed: None, configured: Configure
) -> None:
    with pytest.raises(ConfigurationError, match=r"'scaling-of-min'; expected .*scaling-of-mine.*did you mean"):
        method_named("scaling-of-min")
    files = configured(biasadjust__variables__dtr=MINE | {"training_args": {"period": KNOWN, "kind": "/"}})
    with pytest.raises(
        ConfigurationError, match=r"`biasadjust\.variables\.dtr\.training_args\.kind` \(.*config\.yml, line \d+\)"
    ):
        load(files)
    files = configured(biasadjust__variables__dtr=MINE | {"method": "ibicus.QuantileMapping", "training_args": {}})
    with pytest.raises(ConfigurationError, match=r"biasadjust\.variables\.dtr(.|\n)*hurs, pr, "):
        load(files)


def test_the_page_s_choice_of_the_method_is_taken_over_production_s_values(
    installed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.yml").write_text(code_blocks("own-method.md")["yaml"][0])
    monkeypatch.chdir(Path(__file__).parents[2] / "config" / "espo-g6")
    chosen = load(["config.yml", "../demo/paths.yml", tmp_path / "mine.yml"]).biasadjust.variables["tasmax"]
    assert chosen.method == "scaling-of-mine" and chosen.training_args.arguments()["kind"] == "+"


def test_markers_have_the_version_of_the_method_s_package(installed: None, configured: Configure) -> None:
    pytest.importorskip("ibicus", reason="needs the package ibicus: pip install -e '.[test]'")
    configured(**CHANGES)
    made = {task.var: task.marker().versions for task in in_order(tasks.All()) if isinstance(task, tasks.Adjust)}
    assert made["dtr"].keys() - made["pr"].keys() == {"scaling-of-mine"}
    assert made["pr"]["ibicus"] == metadata.version("ibicus") and "ibicus" not in made["dtr"]
    assert made["dtr"]["scaling-of-mine"] == metadata.version("scaling-of-mine")


def test_a_stranger_s_method_and_ibicus_reach_the_product(
    installed: None, configured: Configure, tmp_path: Path
) -> None:
    pytest.importorskip("ibicus", reason="needs the package ibicus: pip install -e '.[test]'")
    configured(**CHANGES)
    end = tasks.ConcatenationFinal(sim_id=NOLEAP)
    trained = {task.wildcards["var"] for task in in_order(end) if isinstance(task, tasks.Train)}
    assert trained == {"dtr"}, "ibicus trains nothing"
    assert "Adjust" in {one.rule for one in plan_of((), Selection(), [end]).tasks.values()}
    work(end)
    write_now(tmp_path / "report.html")
    assert NOLEAP in (tmp_path / "report.html").read_text()
    product = store.open_store(end.out_final().path)
    reference = store.open_store(tasks.ReferenceCalendar(piece="south", calendar="noleap").out_reference().path)
    simulation = store.open_store(tasks.Regrid(sim_id=NOLEAP, piece="south").out_regridded().path)
    for chosen in (slice(0, 4), slice(-4, None)):
        at = {name: reference[name].isel(loc=chosen).reset_coords(drop=True) for name in ("lat", "lon")}
        made = product.sel(at).load()
        given = [one.isel(loc=chosen).sel(time=slice(*ALL)).load() for one in (reference, simulation)]
        scaled = scaled_by_month(*(one["dtr"] for one in given))
        tasmin = made["tasmax"].transpose("loc", "time").values - scaled
        np.testing.assert_allclose(made["tasmin"].transpose("loc", "time"), tasmin, atol=1e-3)
        rain = by_ibicus(*(one["pr"] for one in given))
        np.testing.assert_allclose(made["pr"].transpose("loc", "time"), rain, rtol=1e-5, atol=1e-10)
    way = way_of(NOLEAP, float(made["lat"][0]), float(made["lon"][0]), "1992-07-14", "tasmin")
    assert [step.name for step in way.adjusted["dtr"].steps] == ["regridded", "factor", "scaled", "adjusted"]


def scaled_by_month(reference: xr.DataArray, simulation: xr.DataArray) -> np.ndarray:
    """The plain formula, (loc, time)."""
    made = simulation.transpose("loc", "time").values.astype("f8").copy()
    observed = reference.transpose("loc", "time").values
    month, known = simulation["time"].dt.month.values, simulation["time"].dt.year.values <= int(KNOWN[1])
    of_reference = reference["time"].dt.month.values[reference["time"].dt.year.values <= int(KNOWN[1])]
    for number in range(1, 13):
        mean = observed[:, : of_reference.size][:, of_reference == number].mean(axis=1)
        modelled = simulation.transpose("loc", "time").values[:, known & (month == number)].mean(axis=1)
        made[:, month == number] *= (mean / modelled)[:, None]
    return made


def by_ibicus(reference: xr.DataArray, simulation: xr.DataArray) -> np.ndarray:
    """ibicus on whole maps, (loc, time), in kg m-2 s-1."""
    from ibicus.debias import LinearScaling

    per_second = 1 / 86400 if reference.attrs["units"] != "kg m-2 s-1" else 1.0
    calibrated = slice(KNOWN[0], KNOWN[1])
    of = {
        "obs": reference.sel(time=calibrated) * per_second,
        "cm_hist": simulation.sel(time=calibrated),
        "cm_future": simulation,
    }
    assert simulation.attrs["units"] == "kg m-2 s-1"
    cubes = {name: one.transpose("time", "loc").values.astype("f8")[:, :, None] for name, one in of.items()}
    times = {f"time_{name}": one["time"].values for name, one in of.items()}
    debiaser = LinearScaling.from_variable("pr", running_window_step_length=31)
    return np.asarray(debiaser.apply(**cubes, **times, progressbar=False)[:, :, 0]).T
