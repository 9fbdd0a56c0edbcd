"""Adjusting on a coarse grid, and downscaling after: rules, pieces, and the products of the demo in small."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from complete_demo import DAY360, NOLEAP, edit, in_order, work
from demo_runs import ONE_REGION, of_years
from scipy.stats import binned_statistic_2d

from espo_luigi import store, tasks
from espo_luigi.audit.sample import audit
from espo_luigi.audit.validate import validate
from espo_luigi.audit.value import way_of
from espo_luigi.config import Region
from espo_luigi.errors import ConfigurationError, ParameterError
from espo_luigi.methods.dqm.ranking import of_quantiles
from espo_luigi.science.coarse import CoarseGrid, areas_of
from espo_luigi.tasks import partition
from espo_luigi.tasks.all import Selection
from espo_luigi.tasks.context import context
from espo_luigi.tasks.cost import Basis, Experience, tables
from espo_luigi.tasks.partition import COARSE, pieces
from espo_luigi.tasks.production import Boxes, Slices

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
    assert found["CoarseReference"] == {COARSE}


def test_without_the_section_no_rule_of_it_runs(configured: Configure) -> None:
    configured(**YEARS)
    found = families(tasks.ConcatenationFinal(sim_id=NOLEAP))
    assert not {"CoarseReference", "Downscale"} & {*found}
    assert found["Adjust"] == {*pieces(context())}
    assert not any(
        "downscaling" in key for task in in_order(tasks.HealthChecks(sim_id=NOLEAP)) for key in task.reading()
    )
    with pytest.raises(ParameterError, match="downscaling"):
        _ = tasks.CoarseReference(piece=COARSE, calendar="noleap").look()
    with pytest.raises(ParameterError):
        tasks.Adjust(pool=NOLEAP, piece=COARSE, var="pr").check()


def test_a_grid_that_is_no_coarser_is_refused_by_key_before_anything_runs(configured: Configure) -> None:
    configured(**YEARS, downscaling={"grid": 0.25, "method": "BCSD"})
    with pytest.raises(ConfigurationError, match=r"downscaling\.grid"):
        tasks.CoarseReference(piece=COARSE, calendar="noleap").check()


def test_coarse_cells_of_which_little_is_land_are_refused_by_key(configured: Configure) -> None:
    configured(**YEARS, downscaling={"grid": 20, "method": "BCSD"})
    # 92 land cells of 0.25 degrees, of 400 square degrees.
    with pytest.raises(ConfigurationError, match=r"`downscaling\.least_share`.*0\.1 .* on 0\.01"):
        tasks.CoarseReference(piece=COARSE, calendar="noleap").check()


def test_a_coarse_cell_of_too_many_cells_is_refused_by_key(configured: Configure) -> None:
    configured(**YEARS, downscaling={"grid": 6, "method": "MBCnSD", "arguments": {"years": 4}})
    from espo_luigi.downscaling.mbcnsd import MBCnSD

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MBCnSD, "most_cells", 10)
        with pytest.raises(ConfigurationError, match=r"downscaling\.grid.*10 at most"):
            tasks.CoarseReference(piece=COARSE, calendar="noleap").check()


def test_a_part_of_a_run_has_the_coarse_level_that_its_pieces_need(configured: Configure) -> None:
    configured(**YEARS, downscaling=SECTION)
    from espo_luigi.driver.graph import Graph

    graph = Graph([tasks.ConcatenationFinal(sim_id=NOLEAP)])
    name = pieces(context())[0]
    ends = Selection(pieces=name).ends(graph)
    assert {(task.get_task_family(), task.piece) for task in ends} == {("CleanUp", name)}


class Planned:
    """A run of 8 land cells, in rows of which each half lies in a coarse cell of its own."""

    land_cells = 8

    def coarse_numbers(self, grid: CoarseGrid) -> np.ndarray:
        """The number of each land cell's coarse cell."""
        return np.array([5, 5, 6, 6, 5, 5, 6, 6])


def test_pieces_that_cut_coarse_cells_need_each_other() -> None:
    boxes = {"south": (45.0, 46.0), "middle": (46.1, 47.2), "north": (47.3, 47.9), "far": (48.1, 49.0)}
    of_boxes = Boxes({name: Region(name=name, lon_bnds=(10, 11), lat_bnds=both) for name, both in boxes.items()})
    near = {name: of_boxes.near(None, name, CoarseGrid(1.0)) for name in boxes}
    # Cells on the parallel of 46 belong to the coarse cells to the north.
    assert near["south"] == ["south", "middle"] and near["north"] == ["middle", "north"] and near["far"] == ["far"]
    run = Planned()
    assert Slices({}, 2).near(run, "sr-2", CoarseGrid(1.0)) == ["sr-0", "sr-2"]
    assert Slices({}, 3).near(run, "sr-2", CoarseGrid(1.0)) == ["sr-0", "sr-1", "sr-2"]


def product(configured: Configure, sim_id: str = NOLEAP, **changes: Any) -> xr.Dataset:
    configured(**YEARS, **changes)
    task = tasks.ConcatenationFinal(sim_id=sim_id)
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
        shutil.rmtree(Path(tasks.CoarseReference(piece=COARSE, calendar="noleap").out_reference().path).parent)
    one, other = regridded.values()
    assert one.sizes == other.sizes and sizes[0] == pytest.approx(sizes[1])
    np.testing.assert_allclose(one["tasmax"].values, other["tasmax"].values, rtol=1e-6)


def test_each_model_has_its_own_coarse_grid(configured: Configure) -> None:
    configured(**YEARS, downscaling=SECTION | {"grid": "model"})
    found = [families(tasks.ConcatenationFinal(sim_id=sim_id)) for sim_id in (NOLEAP, DAY360)]
    grids = [one["CoarseReference"] for one in found]
    assert [len(one) for one in grids] == [1, 1] and grids[0] != grids[1]
    assert {*grids[0], *grids[1]} == {*context().coarse_grids}
    for one, own in zip(found, grids, strict=True):
        assert one["Train"] == one["Adjust"] == one["Regrid"] == own
        assert one["Downscale"] == {*pieces(context())}
    shapes = [context().coarse_grid(pool).shape for pool in (NOLEAP, DAY360)]
    assert shapes == [(7, 9), (9, 8)]
    piece = pieces(context())[0]
    sizes = [
        tasks.Train(pool=pool, piece=partition.adjusted_piece(context(), pool), var="pr").work_size()
        for pool in (NOLEAP, DAY360)
    ]
    assert sizes[1] / sizes[0] == pytest.approx(2.79 * 2.8125 / (1.25 * 1.875), rel=1e-3)
    assert tasks.Downscale(pool=NOLEAP, piece=piece, var="pr").near == pieces(context())[:2]


def test_a_pool_of_two_grids_is_refused_by_key(configured: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    configured(**YEARS, downscaling=SECTION | {"grid": "model"})
    monkeypatch.setattr(context(), "members", lambda pool: [NOLEAP, DAY360])
    with pytest.raises(ConfigurationError, match=rf"`downscaling\.grid`.*{NOLEAP} \(7 x 9.*{DAY360} \(9 x 8"):
        tasks.Downscale(pool=NOLEAP, piece=pieces(context())[0], var="pr").requires()


@pytest.mark.production
def test_means_of_cells_that_do_not_nest_are_scipys(configured: Configure) -> None:
    configured(**YEARS, downscaling=SECTION | {"grid": "model", "least_share": 0.0})
    task = tasks.CoarseReference(piece=partition.adjusted_piece(context(), DAY360), calendar="noleap")
    work(task)
    made = store.open_store(task.out_reference().path).load()
    fine = xr.concat([store.open_store(port().path) for port in task.in_reference], "loc").load()
    south_north, west_east = context().coarse_grid(DAY360).edges
    lat, lon, areas = fine["lat"].values, fine["lon"].values, np.cos(np.deg2rad(fine["lat"].values))
    for name, data in fine.data_vars.items():
        values = data.transpose("time", "loc").values.astype(float)
        sums = binned_statistic_2d(lat, lon, [areas, *(values * areas)], "sum", [south_north, west_east])[0]
        means = sums[1:, sums[0] > 0] / sums[0, sums[0] > 0]
        np.testing.assert_allclose(made[name].transpose("time", "loc").values, means, rtol=1e-6)
    counts = binned_statistic_2d(lat, lon, None, "count", [south_north, west_east])[0]
    assert len({*counts[counts > 0]}) > 2  # the cells do not nest


@pytest.mark.production
@pytest.mark.parametrize(("grid", "sim_id"), [(0.5, NOLEAP), ("model", DAY360)])
def test_the_product_does_not_depend_on_the_pieces(configured: Configure, grid: float | str, sim_id: str) -> None:
    ways = {"tasmax": {"method": "BCSD"}, "pr": {"method": "MBCnSD", "arguments": {"years": 4, "iterations": 3}}}
    section = SECTION | {"grid": grid, "variables": ways}
    whole = product(configured, sim_id, downscaling=section, **ONE_REGION)
    assert len(pieces(context())) == 1
    for path in (context().config.paths.final, context().config.paths.tmpdir):
        path.rename(path.with_name(f"{path.name}-of-one"))
    parts = product(configured, sim_id, downscaling=section)
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
    product(configured, downscaling=SECTION | {"grid": "model"}, **ONE_REGION)
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
