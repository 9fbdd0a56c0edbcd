"""Adjusting on a coarse grid, and downscaling after: rules, pieces, and the products of the demo in small."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from complete_demo import NOLEAP, edit, in_order, work
from demo_runs import ONE_REGION, of_years

from espo_luigi import store, tasks
from espo_luigi.audit.sample import audit
from espo_luigi.audit.validate import validate
from espo_luigi.audit.value import way_of
from espo_luigi.errors import ConfigurationError, ParameterError
from espo_luigi.methods.dqm.ranking import of_quantiles
from espo_luigi.science.coarse import CoarseGrid, areas_of
from espo_luigi.tasks.all import Selection
from espo_luigi.tasks.context import context
from espo_luigi.tasks.cost import Basis, Experience, tables
from espo_luigi.tasks.partition import COARSE, pieces
from espo_luigi.tasks.production import Slices

Configure = Callable[..., list[Path]]
YEARS = of_years(1991, 1998, 1991, 1994)
SECTION: dict[str, Any] = {
    "grid": 0.5,
    "method": "QPLAD",
    "arguments": {"years": 4},
    "variables": {"tasmax": {"method": "BCSD"}},
}


def families(task: Any) -> dict[str, set[str]]:
    """Return the pieces of each rule's tasks below a task."""
    found: dict[str, set[str]] = {}
    for one in in_order(task):
        found.setdefault(one.get_task_family(), set()).add(one.wildcards.get("piece", ""))
    return found


def test_with_the_section_the_coarse_level_is_adjusted(configured: Configure) -> None:
    configured(**YEARS, downscaling=SECTION)
    found = families(tasks.ConcatenationFinal(sim_id=NOLEAP))
    assert found["Train"] == found["Adjust"] == found["Regrid"] == {COARSE}
    assert found["Downscale"] == found["CleanUp"] == {*pieces(context())}
    assert len(pieces(context())) > 1
    assert found["CoarseReference"] == {""}


def test_without_the_section_no_rule_of_it_runs(configured: Configure) -> None:
    configured(**YEARS)
    found = families(tasks.ConcatenationFinal(sim_id=NOLEAP))
    assert not {"CoarseReference", "Downscale"} & {*found}
    assert found["Adjust"] == {*pieces(context())}
    assert not any(
        "downscaling" in key for task in in_order(tasks.HealthChecks(sim_id=NOLEAP)) for key in task.reading()
    )
    with pytest.raises(ParameterError, match="downscaling"):
        _ = tasks.CoarseReference(calendar="noleap").look()
    with pytest.raises(ParameterError):
        tasks.Adjust(pool=NOLEAP, piece=COARSE, var="pr").check()


def test_a_grid_that_is_no_coarser_is_refused_by_key_before_anything_runs(configured: Configure) -> None:
    configured(**YEARS, downscaling={"grid": 0.25, "method": "BCSD"})
    with pytest.raises(ConfigurationError, match=r"downscaling\.grid"):
        tasks.CoarseReference(calendar="noleap").check()


def test_a_coarse_cell_of_too_many_cells_is_refused_by_key(configured: Configure) -> None:
    configured(**YEARS, downscaling={"grid": 6, "method": "MBCnSD", "arguments": {"years": 4}})
    context().__dict__.pop("coarse_numbers", None)
    from espo_luigi.downscaling.mbcnsd import MBCnSD

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MBCnSD, "most_cells", 10)
        with pytest.raises(ConfigurationError, match=r"downscaling\.grid.*10 at most"):
            tasks.CoarseReference(calendar="noleap").check()


def test_a_part_of_a_run_has_the_coarse_level_that_its_pieces_need(configured: Configure) -> None:
    configured(**YEARS, downscaling=SECTION)
    from espo_luigi.driver.graph import Graph

    graph = Graph([tasks.ConcatenationFinal(sim_id=NOLEAP)])
    name = pieces(context())[0]
    ends = Selection(pieces=name).ends(graph)
    assert {(task.get_task_family(), task.piece) for task in ends} == {("CleanUp", name)}


def test_no_coarse_cell_lies_in_two_pieces(configured: Configure) -> None:
    configured(**YEARS, downscaling=SECTION)
    work(*(tasks.RefDefault(piece=name) for name in pieces(context())))
    grid, seen = CoarseGrid(0.5), list[set[int]]()
    for name in pieces(context()):
        cells = store.open_store(tasks.RefDefault(piece=name).out_reference().path)
        seen.append({*grid.numbers(cells["lat"].values, cells["lon"].values).tolist()})
    assert not set.intersection(*seen)


class Planned:
    """A run of 8 land cells, in rows of which each half lies in a coarse cell of its own."""

    land_cells = 8
    coarse_numbers = np.array([5, 5, 6, 6, 5, 5, 6, 6])


@pytest.mark.parametrize(
    ("size", "numbers"), [(3, [0, 0, 1, 1, 0, 0, 1, 1]), (5, [0] * 8), (1, [0, 0, 1, 1, 0, 0, 1, 1])]
)
def test_a_slice_has_whole_coarse_cells(size: int, numbers: list[int]) -> None:
    slices = Slices({}, CoarseGrid(1.0), size)
    run = Planned()
    names = slices.names(run)
    assert names == [f"sr-{number}" for number in range(max(numbers) + 1)]
    assert [slices.cells(run, name) for name in names] == np.bincount(numbers).tolist()
    assert Slices({}, None, size).names(run) == [f"sr-{number}" for number in range(-(-8 // size))]


def product(configured: Configure, **changes: Any) -> xr.Dataset:
    configured(**YEARS, **changes)
    task = tasks.ConcatenationFinal(sim_id=NOLEAP)
    work(task)
    return store.open_store(task.out_final().path).load()


def test_a_file_has_the_coarse_cells(configured: Configure, tmp_path: Path) -> None:
    regridded, sizes = {}, list[float]()
    cells = {"lat": np.arange(40.25, 50, 0.5), "lon": np.arange(280.25, 300, 0.5)}
    xr.Dataset(coords=cells).to_netcdf(tmp_path / "cells.nc")
    for grid in (0.5, str(tmp_path / "cells.nc")):
        configured(**YEARS, downscaling={**SECTION, "grid": grid})
        task = tasks.Regrid(sim_id=NOLEAP, piece=COARSE)
        work(task)
        sizes.append(task.work_size())
        regridded[grid] = store.open_store(task.out_regridded().path).load()
        shutil.rmtree(Path(task.out_regridded().path).parent)
        shutil.rmtree(Path(tasks.CoarseReference(calendar="noleap").out_reference().path).parent)
    one, other = regridded.values()
    assert one.sizes == other.sizes and sizes[0] == pytest.approx(sizes[1])
    np.testing.assert_allclose(one["tasmax"].values, other["tasmax"].values, rtol=1e-6)


@pytest.mark.production
@pytest.mark.parametrize("method", ["QPLAD", "MBCnSD"])
def test_the_product_does_not_depend_on_the_pieces(configured: Configure, method: str) -> None:
    arguments = {"years": 4} if method == "QPLAD" else {"years": 4, "iterations": 3}
    section = {"grid": 0.5, "method": method, "arguments": arguments}
    whole = product(configured, downscaling=section, **ONE_REGION)
    assert len(pieces(context())) == 1
    for path in (context().config.paths.final, context().config.paths.tmpdir):
        path.rename(path.with_name(f"{path.name}-of-one"))
    parts = product(configured, downscaling=section)
    assert len(pieces(context())) > 1
    for name in ("tasmax", "tasmin", "pr"):
        np.testing.assert_array_equal(whole[name].values, parts[name].values, err_msg=name)
        assert whole[name].notnull().any()


@pytest.mark.production
def test_the_product_has_the_coarse_mean_of_what_was_adjusted(configured: Configure) -> None:
    made = product(configured, downscaling=SECTION | {"variables": {}}, flags={}, **ONE_REGION)
    flags = store.open_store(tasks.ConcatenationFinal(sim_id=NOLEAP).out_flags().path)
    for name in ("tasmax", "tasmin"):
        assert flags[f"{name}_cell_flags"].attrs["flag_meanings"].split()[-1] == "coarse_cell_missing"
        assert flags[f"{name}_flags"].attrs["flag_meanings"].split()[-1] == "downscaled_beyond"
        assert 0 < (flags[f"{name}_flags"] >= 1 << 15).mean() < 0.05
    adjusted = store.open_store(tasks.Adjust(pool=NOLEAP, piece=COARSE, var="tasmax").out_adjusted().path).load()
    stacked = made[["tasmax"]].stack(loc=("lat", "lon")).dropna("loc", how="all").reset_index("loc")
    numbers = CoarseGrid(0.5).numbers(stacked["lat"].values, stacked["lon"].values)
    at = CoarseGrid(0.5).numbers(adjusted["lat"].values, adjusted["lon"].values)
    weights = areas_of(stacked)
    for place, number in enumerate(at):
        own = np.flatnonzero(numbers == number)
        mean = np.average(stacked["tasmax"].transpose("loc", "time").values[own], axis=0, weights=weights[own])
        np.testing.assert_allclose(mean, adjusted["tasmax"].transpose("loc", "time").values[place], atol=0.05)
    assert ", then QPLAD(grid=0.5" in made["tasmax"].attrs["bias_adjustment"]


@pytest.mark.production
def test_explain_audit_and_validation_make_downscaled_values_again(configured: Configure) -> None:
    product(configured, downscaling=SECTION, **ONE_REGION)
    way = way_of(NOLEAP, 46.125, -65.875, "1996-07-14", "pr")
    names = [step.name for step in way.adjusted["pr"].steps]
    assert names[0] == "regridded" and names[-4:] == ["adjusted", "quantile", "factor", "downscaled"]
    assert way.adjusted["pr"].steps[-1].value == pytest.approx(way.adjusted["pr"].adjusted[way.adjusted["pr"].day])
    assert way.products["pr"].identical
    both = way_of(NOLEAP, 45.125, -66.875, "1996-01-14", "tasmin")
    assert both.adjusted["tasmax"].steps[-2].name == "fine climatology"
    found = audit(6, 1)
    assert found.rows and not found.differences and not found.failures
    checks = {check.name: check for check in validate(context().config.paths.final, lambda line: None).checks}
    assert {name for name, check in checks.items() if check.verdict == "failed"} == {"variables"}
    assert all("360Day" in detail and "is missing" in detail for detail in checks["variables"].details)
    assert checks["audit"].verdict == checks["cells"].verdict == checks["bounds"].verdict == "passed"


@pytest.mark.production
def test_variables_that_are_adjusted_together_are_downscaled_each_and_explained(configured: Configure) -> None:
    (file, _) = configured(**YEARS, **ONE_REGION, downscaling=SECTION)

    def together(content: dict[str, Any]) -> None:
        of_heat = {"period": ["1991", "1994"], "n_iter": 3, "group": {"group": "time.month"}}
        heat = {"method": "MBCn", "variables": ["tasmax", "dtr"], "training_args": of_heat}
        heat["adjusting_args"] = {"periods": ["1991", "1998"], "moving_yearly_window": None}
        content["biasadjust"]["variables"] = {"pr": content["biasadjust"]["variables"]["pr"], "heat": heat}

    edit(file, together)
    work(tasks.ConcatenationFinal(sim_id=NOLEAP))
    made = store.open_store(tasks.Downscale(pool=NOLEAP, piece=pieces(context())[0], var="heat").out_adjusted().path)
    assert {"tasmax", "dtr"} <= {*made} and all(made[name].notnull().all() for name in ("tasmax", "dtr"))
    way = way_of(NOLEAP, 46.125, -65.875, "1996-07-14", "tasmin")
    assert way.products["tasmin"].identical
    found = audit(3, 1)
    assert found.rows and not found.differences and not found.failures


def test_a_plan_has_the_measured_cost_of_each_downscaler(configured: Configure) -> None:
    configured(**YEARS, downscaling={**SECTION, "variables": {"pr": {"method": "MBCnSD", "arguments": {"years": 4}}}})
    rules = {"CoarseReference", "Downscale", "Downscale MBCnSD"}
    assert all(rules <= {*table["rules"]} for name, table in tables().items() if name in ("espo-2024", "espo-v2"))
    piece = pieces(context())[0]
    of = {name: tasks.Downscale(pool=NOLEAP, piece=piece, var=name) for name in ("tasmax", "pr")}
    costs = {name: Experience([]).expected(task, task.allocation) for name, task in of.items()}
    assert {cost.basis for cost in costs.values()} == {Basis.TABLE}
    assert costs["pr"].seconds > costs["tasmax"].seconds


@pytest.mark.production
def test_quantile_delta_mapping_keeps_the_quantiles_that_qplad_takes(configured: Configure) -> None:
    by_rank = {
        "training_args": {"method": "QuantileDeltaMapping"},
        "adjusting_args": {"moving_yearly_window": {"window": 6, "step": 2}},
    }
    product(configured, downscaling=SECTION, **ONE_REGION, biasadjust__variables__dtr=by_rank)
    kept = store.open_store(tasks.Adjust(pool=NOLEAP, piece=COARSE, var="dtr").out_adjusted().path)["dtr_quantile"]
    assert kept.dtype == np.uint16 and 0.45 < of_quantiles(kept.values).mean() < 0.55
    made = store.open_store(tasks.Downscale(pool=NOLEAP, piece=pieces(context())[0], var="dtr").out_adjusted().path)
    assert "dtr_quantile" not in made and made["dtr"].notnull().all()
    way = way_of(NOLEAP, 46.125, -65.875, "1996-07-14", "tasmin")
    assert way.products["tasmin"].identical
    own, again = [step.value for step in way.adjusted["dtr"].steps if step.name == "quantile"]
    assert own == pytest.approx(again, abs=1 / 131_068)
