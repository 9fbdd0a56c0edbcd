"""ESPO v2: pools of several members, slices of land cells, and the names of its products; nothing is computed here."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import yaml
from complete_demo import complete_all, edit, in_order, set_key
from demo_runs import content_of, copy_properties, use
from luigi.configuration import LuigiConfigParser, get_config
from luigi.task_register import Register
from shared_folder import linked_copy

from espo_luigi import store, tasks
from espo_luigi.driver.graph import Graph
from espo_luigi.errors import CatalogError, ConfigurationError, DataError, ParameterError
from espo_luigi.overview.plan import plan_of
from espo_luigi.science import pooling, quality
from espo_luigi.science.attributes import IMPOSSIBLE_VALUES
from espo_luigi.science.finalize.gaps import count_crossed
from espo_luigi.tasks import partition
from espo_luigi.tasks.all import Selection
from espo_luigi.tasks.context import context, forget, settings
from espo_luigi.tasks.cost import Basis
from espo_luigi.tasks.ensembles import check_regions, common_land
from espo_luigi.tasks.inputs import COLUMNS
from espo_luigi.tasks.make import task_for
from espo_luigi.tasks.outcomes import check_outcomes
from espo_luigi.tasks.product import JoinTask
from espo_luigi.tasks.publish import ends_of_run

V2_DEMO = Path(__file__).parents[2] / "config" / "v2-demo"
POOL = "ScenarioMIP_Demo-Ensemble_ssp370"
REGIONAL_POOL = "Demo-Regional_Demo-Ensemble_ssp370"
ENSEMBLE = [f"CMIP6_ScenarioMIP_ESPO-DEMO_Demo-Ensemble_ssp370_r{number}i1p1f1_global" for number in (1, 2, 3)]
SPREAD = {"tasmax": 4.0, "tasmin": -2.0}
REGIONAL = "CMIP6_DD_Demo-Ensemble_r1i1p1f1_ESPO-DEMO_Demo-Regional_ssp370_v1-r1_GSL-33"


@pytest.fixture()
def v2(tmp_path: Path, v2_raw: Path, own_settings: LuigiConfigParser) -> Callable[..., list[Path]]:
    """A function that configures this process for the demo of ESPO v2, with changes of dotted keys."""

    def configure(members: int = 5, raw: Path = v2_raw, **changes: Any) -> list[Path]:
        content = content_of(V2_DEMO / "config.yml")
        content["subregions"] |= changes
        content["extraction"]["simulation"]["search_data_catalogs"]["restrict_members"]["ordered"] = members
        paths = yaml.safe_load((V2_DEMO / "paths.yml").read_text())
        del paths["demo"]
        text = yaml.safe_dump(paths).replace("espo-v2-demo/raw", str(raw)).replace("espo-v2-demo", str(tmp_path))
        copy_properties(tmp_path)
        files = [tmp_path / "config.yml", tmp_path / "paths.yml"]
        files[0].write_text(yaml.safe_dump(content, sort_keys=False))
        files[1].write_text(text)
        use(files, tmp_path)
        return files

    return configure


def test_simulations_are_pooled_by_model_and_experiment_and_regional_ones_by_their_driver(v2: Any) -> None:
    v2()
    run = context()
    assert {name: len(ids) for name, ids in run.pools.items()} == {
        POOL: 3,
        "ScenarioMIP_Demo-Single_ssp370": 1,
        REGIONAL_POOL: 2,
    }
    assert list(run.pools[POOL]) == ENSEMBLE
    assert all(partition.pool_of(run, sim_id) == POOL for sim_id in ENSEMBLE)
    assert partition.pool_of(run, REGIONAL) == REGIONAL_POOL


def test_a_member_that_cannot_be_read_stops_its_own_pool_by_name_and_no_other(
    v2: Any, v2_raw: Path, tmp_path: Path
) -> None:
    raw = linked_copy(v2_raw, tmp_path / "raw")
    damaged = sorted(path for path in raw.rglob("*Demo-Regional*") if path.is_file() and "r2i1p1f1" in str(path))[0]
    whole = damaged.read_bytes()
    damaged.unlink()
    damaged.write_bytes(whole[: len(whole) // 2])
    v2(raw=raw)
    one, two = (tasks.InputCheck(sim_id=sim_id) for sim_id in context().pools[REGIONAL_POOL])
    with pytest.raises(DataError, match=damaged.name):
        two.work()
    one.work()
    assert one.complete() and not two.complete()
    needed = {pool: set(Graph([tasks.Train(pool=pool, piece="sr-0", var="pr")])) for pool in context().pools}
    assert [pool for pool, of in needed.items() if two in of] == [REGIONAL_POOL] and one in needed[REGIONAL_POOL]


@pytest.mark.parametrize(("n", "sizes"), [(75, [75, 75, 36]), (93, [93, 93]), (186, [186]), (500, [186])])
def test_the_land_cells_of_the_masked_reference_are_cut_into_slices_of_equal_size(
    v2: Any, n: int, sizes: list[int]
) -> None:
    v2(n=n)
    run = context()
    pieces = partition.pieces(run)
    assert pieces == [f"sr-{number}" for number in range(len(sizes))]
    assert [run.production.pieces.cells(run, name) for name in pieces] == sizes


def test_each_land_cell_is_in_a_single_slice_in_the_order_of_rows(v2: Any) -> None:
    v2()
    run = context()
    maps = tasks.reference.reference_maps(run, run.reference(), partition.domain_without_buffer(run.config)).isel(
        time=slice(0, 2)
    )
    cut = [run.production.pieces.cut(run, maps, name) for name in partition.pieces(run)]
    lands = np.array([grid["land"].values for _, grid in cut])
    assert lands.sum(axis=0).max() == 1
    assert np.array_equal(lands.any(axis=0), (maps["tasmax"].isel(time=0).notnull()).values)
    together = xr.concat([cells["orog"] if "orog" in cells else cells["tasmax"] for cells, _ in cut], "loc")
    assert together.sizes["loc"] == 186
    rows = np.concatenate([cells["rlat"].values for cells, _ in cut])
    assert (np.diff(rows) >= 0).all()
    grid = cut[0][1]
    assert {"mask", "orog", "rotated_pole"} <= set(grid.coords), "what describes the grid goes with it"
    # As xscen masks the fixed fields, too; the mask itself stays whole.
    np.testing.assert_array_equal(grid["orog"].notnull(), grid["mask"] == 1)
    assert grid["mask"].notnull().all()


def test_sea_that_the_reference_has_data_on_is_left_out_by_its_mask(v2: Any) -> None:
    v2()
    run = context()
    masked = run.land_cells
    object.__setattr__(run.config.extraction.reference.extract_dataset, "mask", False)
    del run.__dict__["land_cells"], run.__dict__["reference_on_its_first_day"]
    assert run.land_cells > masked == 186


def test_a_fixed_field_that_is_listed_first_is_not_taken_for_the_series_that_shows_land(v2: Any) -> None:
    files = v2()
    key = "extraction.reference.search_data_catalogs.variables_and_freqs"
    wanted = context().config.extraction.reference.search_data_catalogs.variables_and_freqs
    set_key(files[0], key, dict(sorted(wanted.items(), key=lambda item: item[1] != "fx")))
    assert next(iter(context().config.extraction.reference.search_data_catalogs.variables_and_freqs)) == "mask"
    assert context().land_cells == 186


def test_the_reference_of_a_domain_that_was_widened_is_examined_again(v2: Any) -> None:
    files = v2()
    task = tasks.RefInputCheck()
    store.write_table(COLUMNS, [], task.out_problems().path, task.marker())
    assert task.complete() and task.stale() == []
    set_key(files[0], "domain.lat_bnds", [47.0, 50.0])
    (changed,) = tasks.RefInputCheck().stale()
    assert "region" in changed or "domain" in changed


def test_random_draws_do_not_depend_on_the_size_of_slices(v2: Any) -> None:
    drawn = {}
    for n in (75, 40):
        v2(n=n)
        run = context()
        for name in partition.pieces(run):
            seed, first = run.production.pieces.draws(POOL, name, "pr")
            drawn |= {
                (n, first + cell): (seed, first + cell) for cell in range(int(run.production.pieces.cells(run, name)))
            }
    assert all(drawn[75, cell] == drawn[40, cell] for cell in range(186))


def test_a_reference_that_changed_since_the_plan_fails_with_both_numbers(v2: Any) -> None:
    v2()
    run = context()
    maps = tasks.reference.reference_maps(run, run.reference(), partition.domain_without_buffer(run.config)).isel(
        time=slice(0, 2)
    )
    run.__dict__["land_cells"] = 200
    with pytest.raises(DataError, match="186 land cells, and 200 when the run was planned"):
        run.production.pieces.cut(run, maps, "sr-0")
    with pytest.raises(DataError, match="186 land cells, and 200"):
        tasks.MakeRef().compute([])


def joined(task: JoinTask, values: str, minus: float = 0.0, **attrs: Any) -> xr.Dataset:
    """What a task makes of slices whose values are the reference's tasmax less a number, on the first two days."""
    run = context()
    maps = tasks.reference.reference_maps(run, run.reference(), partition.domain_without_buffer(run.config)).isel(
        time=slice(0, 2)
    )
    cut = [run.production.pieces.cut(run, maps, name) for name in partition.pieces(run)]
    members = [task.sim_id]
    factor, units = (1e-6, "kg m-2 s-1") if values == "pr" else (1, "K")
    made = [((cells["tasmax"] - minus) * factor).assign_attrs(units=units) for cells, _ in cut]
    given = [cells[["tasmax"]].assign(tasmax=one) for (cells, _), one in zip(cut, made, strict=True)]
    slices = [pooling.pool_of_members([cells.rename(tasmax=values)], members) for cells in given]
    described = [one.assign_attrs(attrs | {"cat:bias_adjust_project": "ESPO", "cat:domain": "NAM"}) for one in slices]
    extracted = [bound.task.compute([]) for bound in task.in_extracted]
    # CRCM5's files have no values on their first day.
    lacking = [one.isel(time=[0, 1]).where(one["time"] > one["time"][0]) for one in extracted]
    return task.compute(described, [grid for _, grid in cut], lacking).compute()


def test_a_product_has_the_id_and_the_coordinates_that_v2s_scripts_give_it(v2: Any) -> None:
    v2()
    attrs = {"cat:mip_era": "CMIP6", "cat:activity": "ScenarioMIP", "cat:id": ENSEMBLE[1]}
    made = joined(tasks.ConcatClean(sim_id=ENSEMBLE[1], var="pr"), "pr", **attrs)
    assert made.attrs["cat:id"] == "ESPO_Demo-Rotated_CMIP6_ScenarioMIP_ESPO-DEMO_Demo-Ensemble_ssp370_r2i1p1f1_NAM"
    assert not any("original_shape" in coord.attrs for coord in made.coords.values())
    np.testing.assert_array_equal(made["orog"].notnull(), made["mask"] == 1)


def test_a_regional_product_covers_the_grid_though_the_simulation_has_no_values_on_its_first_day(v2: Any) -> None:
    v2()
    made = joined(tasks.ConcatClean(sim_id=REGIONAL, var="tasmax"), "tasmax")
    # Counted by great circles around the cells of the raw grid (tests/demo/test_demo_v2.py has their share).
    assert int(made["tasmax"].isel(time=0).notnull().sum()) == 95
    assert made.attrs["cat:id"] == (
        "ESPO_Demo-Rotated_CMIP6_DD_Demo-Ensemble_r1i1p1f1_ESPO-DEMO_Demo-Regional_ssp370_v1-r1_NAM"
    )


def test_a_product_whose_attributes_tell_how_all_are_adjusted_is_stale_once_another_variable_is_adjusted_otherwise(
    v2: Any,
) -> None:
    files = v2()
    of_tasmax = "biasadjust.variables.tasmax.training_args"
    assert of_tasmax not in tasks.ConcatClean(sim_id=ENSEMBLE[0], var="pr").reading()
    set_key(files[0], "clean_up.xscen_clean_up.pr.add_attrs.pr", {"comment": "Adjusted by {adjustment}."})
    assert of_tasmax in tasks.ConcatClean(sim_id=ENSEMBLE[0], var="pr").reading()


def test_the_range_before_the_exchange_is_a_dtr_with_dtrs_attributes_and_all_of_its_values(
    v2: Any,
) -> None:
    set_key(v2()[0], "clean_up.xscen_clean_up.dtr.clip_var", {"dtr": [0, 1]})
    task = tasks.ConcatCleanPreswap(sim_id=ENSEMBLE[0])
    assert "clean_up.variables.dtr" in task.reading()
    made = joined(task, "dtrpreswap", minus=300.0, contact="the raw data's")
    assert list(made.data_vars) == ["dtr"] and float(made["dtr"].min()) < -10, "tasmax below tasmin"
    assert made.attrs["version"] == "v2.0" and "contact" not in made.attrs
    added = content_of(V2_DEMO / "config.yml")["clean_up"]["xscen_clean_up"]["dtr"]["add_attrs"]["dtr"]
    kept = {key: made["dtr"].attrs[key] for key in ("standard_name", "long_name", "cell_methods")}
    assert kept == {key: added[key] for key in kept}
    assert made["dtr"].attrs["description"].startswith("tasmax - tasmin, as adjusted")


@pytest.mark.parametrize("on_impossible", ["fail", "warn"])
def test_a_derived_tasmin_above_tasmax_is_refused_where_both_are_together(v2: Any, on_impossible: str) -> None:
    edit(v2()[0], lambda content: content["clean_up"].update(temperatures="derived", on_impossible=on_impossible))
    values, dims = np.full((1, 3, 4), 290.0, "f4"), ("realization", "loc", "time")
    tasmax = xr.Dataset({"tasmax": (dims, values, {"units": "K"})}).chunk(loc=2)
    dtr = xr.Dataset({"dtr": (dims, values - 280, {"units": "K"})}).chunk(loc=2)
    sound = tasks.Swap(pool=POOL, piece="sr-0").compute([tasmax, dtr])
    np.testing.assert_array_equal(sound["tasmin"]["tasmin"], 280)
    assert sound["tasmin"]["tasmin"].dims == sound["tasmax"]["tasmax"].dims == dims
    dtr["dtr"] = dtr["dtr"].where([True, True, True, False], -1)
    swap = tasks.Swap(pool=POOL, piece="sr-0")
    assert "clean_up.on_impossible" not in swap.reading()
    made = swap.compute([tasmax, dtr])["tasmin"]
    if on_impossible == "warn":
        assert float(made["tasmin"].max().compute()) == 291
        assert swap.read_for([made]) == ["clean_up.on_impossible"]
    else:
        with pytest.raises(DataError, match="not above tasmax"):
            made.compute()


def test_a_variable_of_a_pool_is_derived_member_by_member(v2: Any) -> None:
    set_key(v2()[0], "clean_up.derive", ["tas"])
    task = tasks.Derive(pool=POOL, piece="sr-0", var="tas")
    assert {needed.get_task_family() for needed in task.requires()} == {"Swap"}
    dims = ("realization", "loc", "time")
    warm = xr.DataArray(np.arange(24, dtype="f4").reshape(2, 3, 4) + 280, dims=dims, attrs={"units": "K"})
    high, low = (xr.Dataset({name: warm + more}, attrs={"cat:variable": name}) for name, more in SPREAD.items())
    made = task.compute([], [high.chunk(loc=2)], [low.chunk(loc=2)])
    assert list(made) == ["tas"] and made["tas"].dims == dims and made.attrs["cat:variable"] == "tas"
    np.testing.assert_array_equal(made["tas"], warm + 1)
    ends = [end for end in ends_of_run() if isinstance(end, tasks.ConcatClean) and end.var == "tas"]
    assert len(ends) == 6
    assert {needed.get_task_family() for needed in ends[0].requires()} >= {"Derive"}


def test_exchanged_days_of_a_member_are_flagged_beside_the_flags_that_each_temperature_has(
    v2: Any,
) -> None:
    edit(v2()[0], lambda content: content.update(flags={}, clean_up={**content["clean_up"], "derive": ["tas"]}))
    time = xr.date_range("1991-01-01", periods=4, calendar="noleap", use_cftime=True)
    coords, dims = {"realization": ENSEMBLE[:2], "time": time}, ("realization", "loc", "time")
    given = {}
    for name, level in (("tasmax", 290.0), ("tasmin", 280.0)):
        values = xr.DataArray(np.full((2, 3, 4), level, "f4"), coords, dims, name, {"units": "K"})
        marks = xr.zeros_like(values, dtype="u1").assign_attrs(flag_masks=[1], flag_meanings="jittered")
        marks[0, 0, 0 if name == "tasmax" else 1] = 1
        how: dict[str, Any] = {"period": [1991, 1991], "kind": "+", "signal": 1.0}
        raw = values.to_dataset()
        flags = quality.of_adjusted(values, quality.of_regridded(raw, raw, {name: np.zeros(6, bool)}, ()), marks, **how)
        days = {f"{name}_days_jittered": marks.sum("time") + len(given)}
        given[name] = values.to_dataset().assign(flags | days).chunk(loc=2)
    given["tasmin"]["tasmin"][1, 2, 3] = 299
    made = tasks.Swap(pool=POOL, piece="sr-0").compute([given["tasmax"], given["tasmin"]])
    assert quality.beside(made["dtrpreswap"], ["tasmax", "tasmin"]) == []
    for name, day in (("tasmax", 0), ("tasmin", 1)):
        assert int(made[name][f"{name}_days_jittered"].sum()) == 1 + 6 * (name == "tasmin")
        raised = made[name][f"{name}_flags"].compute()
        assert "units" not in raised.attrs
        assert np.argwhere(raised.values == 1).tolist() == [[0, 0, day]]
        exchanged = quality.meanings(raised)["exchanged"]
        assert np.argwhere((raised.values & exchanged) > 0).tolist() == [[1, 2, 3]]
    derive = tasks.Derive(pool=POOL, piece="sr-0", var="tas")
    derived = derive.compute([], [made["tasmax"]], [made["tasmin"]]).compute()
    assert np.argwhere(derived["tas_flags"].values > 0).tolist() == [[0, 0, 0], [0, 0, 1], [1, 2, 3]]
    product = tasks.ConcatClean(sim_id=ENSEMBLE[0], var="tas")
    assert product.out_flags().path.name.startswith("tas_flags_day_")
    assert "flags" in tasks.Adjust(pool=POOL, piece="sr-0", var="pr").reading()


@pytest.mark.parametrize("on_impossible", ["fail", "warn"])
def test_a_tasmin_above_tasmax_of_a_member_is_counted_in_its_product(v2: Any, on_impossible: str) -> None:
    edit(v2()[0], lambda content: content["clean_up"].update(temperatures="derived", on_impossible=on_impossible))
    pool = xr.DataArray([[[290.0, 290.0]], [[290.0, 295.0]]], dims=("realization", "loc", "time"))
    pool = pool.assign_coords(realization=ENSEMBLE[:2])
    crossed = count_crossed(xr.Dataset({"tasmin": pool, "tasmax": pool.clip(max=291)}))
    told = pooling.told_of_members(IMPOSSIBLE_VALUES, crossed)
    assert pooling.told_of_members(IMPOSSIBLE_VALUES, crossed.sum()) == {IMPOSSIBLE_VALUES: 1}
    assert pooling.told_of_members(IMPOSSIBLE_VALUES, crossed[:1]) == {}
    if on_impossible == "fail":
        with pytest.raises(DataError, match=r"tasmin is above tasmax in 3 values.*rerun = stale"):
            joined(tasks.ConcatClean(sim_id=ENSEMBLE[1], var="tasmin"), "tasmin", **told)
        return
    for sim_id, number in zip(ENSEMBLE[:2], (None, 3), strict=True):
        made = joined(tasks.ConcatClean(sim_id=sim_id, var="tasmin"), "tasmin", **told)
        assert made.attrs.get(IMPOSSIBLE_VALUES) == number
        assert not any("of_members" in name for name in made.attrs)


def test_members_are_extracted_and_regridded_alone_and_trained_and_adjusted_together(v2: Any) -> None:
    v2()
    training = tasks.Train(pool=POOL, piece="sr-1", var="pr")
    assert [bound.task for bound in training.in_regridded] == [
        tasks.Regrid(sim_id=sim_id, piece="sr-1") for sim_id in ENSEMBLE
    ]
    product = tasks.ConcatClean(sim_id=ENSEMBLE[1], var="pr")
    assert [bound.task for bound in product.in_slices] == [
        tasks.Adjust(pool=POOL, piece=piece, var="pr") for piece in ("sr-0", "sr-1", "sr-2")
    ]
    swapped = tasks.ConcatClean(sim_id=ENSEMBLE[1], var="tasmin")
    assert {bound.task.task_family for bound in swapped.in_slices} == {"Swap"}
    assert swapped.in_extracted == []
    assert [bound.task for bound in tasks.ConcatClean(sim_id=REGIONAL, var="dtr").in_extracted] == [
        tasks.Extract(sim_id=REGIONAL)
    ]


@pytest.mark.parametrize(
    ("how", "without", "takes"),
    [
        ("swap", "", ["tasmax", "tasmin"]),
        ("derived", "tasmin", ["tasmax", "dtr"]),
        ("dqm-dtr", "", ["tasmax", "tasmin", "dtr"]),
    ],
)
def test_one_key_says_how_temperatures_are_made_consistent(v2: Any, how: str, without: str, takes: list[str]) -> None:
    files = v2()
    set_key(files[0], "clean_up.temperatures", how)
    edit(files[0], lambda content: content["biasadjust"]["variables"].pop(without, None))
    swap = tasks.Swap(pool=POOL, piece="sr-0")
    assert [bound.task.var for bound in swap.in_adjusted] == takes
    made = {
        task.var: task for task in ends_of_run() if isinstance(task, tasks.ConcatClean) and task.sim_id == ENSEMBLE[0]
    }
    assert set(made) == {"tasmax", "tasmin", "dtr", "pr"}
    assert made["tasmin"].in_slices[0].task == swap and made["dtr"].in_slices[0].task.task_family == "Adjust"


def test_a_pool_is_compared_with_the_reference_as_a_whole_by_the_sums_of_its_members(v2: Any) -> None:
    v2()
    domain = next(iter(context().domains))
    compared = tasks.NotCalibrated(pool=POOL, diag_domain=domain)
    sums = [tasks.Summaries(sim_id=sim_id, diag_domain=domain) for sim_id in ENSEMBLE]
    assert [bound.task for bound in compared.in_sums] == sums
    assert [bound.task for bound in sums[1].in_regridded] == [
        tasks.Regrid(sim_id=ENSEMBLE[1], piece=piece) for piece in ("sr-0", "sr-1", "sr-2")
    ]
    get_config().set("espo", "report", "true")
    asked = [task for task in in_order(tasks.All()) if isinstance(task, tasks.NotCalibrated)]
    pools = {(task.pool, task.diag_domain) for task in asked}
    assert {POOL, REGIONAL_POOL} < {pool for pool, _ in pools}
    assert pools == {(pool, domain) for pool in context().pools for domain in context().domains}


def test_products_lie_in_a_tree_of_facets_and_make_finds_their_tasks(v2: Any, tmp_path: Path) -> None:
    v2()
    path = tasks.ConcatClean(sim_id=ENSEMBLE[0], var="pr").out_final().path
    within = path.relative_to(tmp_path / "final")
    assert str(within) == (
        "staging/simulation/biasadjusted/ESPO_v20_Demo-Rotated/CMIP6/ScenarioMIP/NAM/ESPO-DEMO/Demo-Ensemble/ssp370/"
        f"r1i1p1f1/day/pr/pr_day_ESPO6_v20_Demo-Rotated+{ENSEMBLE[0]}_NAM_1951-2100.zarr.zip"
    )
    driven = tasks.ConcatClean(sim_id=REGIONAL, var="pr").out_final().path
    assert "/Demo-Regional/Demo-Ensemble/r1i1p1f1/ssp370/" in str(driven)
    for wanted in (path, driven):
        assert task_for(wanted).out_final().path == wanted
    assert task_for(tasks.RefDefault(piece="sr-2").out_reference().path) == tasks.RefDefault(piece="sr-2")


def test_the_default_target_is_made_of_v2s_rules_alone(v2: Any) -> None:
    v2()
    families = {task.task_family for task in in_order(tasks.All())}
    assert families == {
        *("InputCheck", "RefInputCheck", "MakeRef", "RefDefault", "ReferenceCalendar", "Extract", "Regrid"),
        *("Train", "Adjust", "Swap", "ConcatClean", "ConcatCleanPreswap", "HealthChecks", "DiagRef"),
        *("DiagExtract", "Diag"),
    }


@pytest.mark.parametrize(
    ("selection", "rules", "about"),
    [
        (Selection(sims=ENSEMBLE[0]), {"HealthChecks", "ConcatCleanPreswap", "Diag"}, {ENSEMBLE[0]}),
        (Selection(pools=POOL), {"HealthChecks", "ConcatCleanPreswap", "Diag"}, set(ENSEMBLE)),
        (Selection(until="Train", pools=POOL, pieces="sr-1"), {"Train"}, set(ENSEMBLE)),
        (Selection(until="Regrid", sims=ENSEMBLE[2], pieces="sr-0"), {"Regrid"}, {ENSEMBLE[2]}),
    ],
)
def test_a_run_can_be_narrowed_to_a_simulation_a_pool_or_a_piece(
    v2: Any, selection: Selection, rules: set[str], about: set[str]
) -> None:
    v2()
    ends = selection.ends(Graph(ends_of_run()))
    assert {task.task_family for task in ends} == rules
    assert set().union(*(partition.simulations_of(task) for task in ends)) == about


def test_a_pool_that_is_not_there_is_refused_with_the_nearest_name(v2: Any) -> None:
    v2()
    with pytest.raises(ParameterError, match=f"did you mean {POOL}"):
        Selection(pools=POOL.replace("Ensemble", "Ensembel")).ends(Graph(ends_of_run()))


def test_a_job_has_the_members_that_its_driver_found_though_the_catalogue_has_grown_since(v2: Any) -> None:
    v2(members=2)
    order = tasks.Train(pool=POOL, piece="sr-0", var="pr").order()
    assert json.loads(order.settings["espo"]["pool_members"]) == {POOL: ENSEMBLE[:2]}
    v2(members=3)
    get_config().set("espo", "pool_members", order.settings["espo"]["pool_members"])
    assert list(settings().pool_members[POOL]) == ENSEMBLE[:2]
    assert partition.members(context(), POOL) == ENSEMBLE[:2]
    get_config().remove_option("espo", "pool_members")
    assert partition.members(context(), POOL) == ENSEMBLE


def test_the_plan_over_a_grown_catalogue_says_who_enters_a_pool_and_which_products_change(v2: Any) -> None:
    get_config().set("espo", "final_format", "sharded")
    v2(members=2)
    complete_all()
    v2(members=3)
    Register.clear_instance_cache()
    found = plan_of((), Selection())
    stale = {task_id: " ".join(one.status.changed) for task_id, one in found.tasks.items() if one.status.changed}
    changed = [tasks.ConcatClean(sim_id=sim_id, var="pr").task_id for sim_id in ENSEMBLE[:2]]
    assert all(f"pool {POOL} ({ENSEMBLE[2]} enters)" in stale[task_id] for task_id in changed)
    assert not [name for name in stale if "Demo_Single" in name], "products of other pools stay as they are"


def test_a_repair_of_one_member_runs_its_chain_again_and_what_the_pool_makes(v2: Any) -> None:
    get_config().set("espo", "final_format", "sharded")
    files = v2()
    complete_all()
    row = {"id": ENSEMBLE[1].replace("CMIP6", "*"), "variable": "pr", "what": "missing", "when": "2040"}
    edit(files[0], lambda content: content["extraction"]["simulation"]["repairs"].append(row))
    Register.clear_instance_cache()
    key = "extraction.simulation.repairs"
    stale = {task.task_id: task.stale() for task in in_order(tasks.All())}
    assert [stale[tasks.Regrid(sim_id=sim_id, piece="sr-0").task_id] for sim_id in ENSEMBLE] == [
        [],
        [f"{key}.{ENSEMBLE[1]}"],
        [],
    ]
    for changed in (tasks.Train(pool=POOL, piece="sr-0", var="pr"), tasks.ConcatClean(sim_id=ENSEMBLE[0], var="pr")):
        assert stale[changed.task_id] == [f"{key}.{ENSEMBLE[1]}"]
    assert not any(changes for name, changes in stale.items() if "Demo_Single" in name or "Demo_Regional" in name)


def test_a_member_of_another_domain_does_not_enter_a_pool_unnoticed(v2: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    v2()
    run = context()
    match = run.simulations[ENSEMBLE[1]]
    other = replace(match, columns={**match.columns, "domain": "elsewhere"})
    monkeypatch.setitem(run.__dict__, "simulations", {**run.simulations, ENSEMBLE[1]: other})
    with pytest.raises(CatalogError, match=r"several kinds \(domain: elsewhere, global\)"):
        _ = run.pools


def test_before_any_job_has_ended_the_plan_estimates_every_rule_of_v2(v2: Any) -> None:
    v2()
    get_config().set("espo", "report", "true")
    found = plan_of((), Selection())
    bases = {one.rule: one.cost.basis for one in found.tasks.values() if one.cost is not None}
    assert {"MakeRef", "Swap", "ConcatCleanPreswap", "Diag", "Inversions", "Report"} <= bases.keys()
    assert {rule for rule, basis in bases.items() if basis is not Basis.TABLE} == set()


def with_method(files: list[Path], method: str) -> None:
    set_key(files[0], "regrid.regrid_method", {"pr": method})


def test_at_the_edges_of_a_regional_model_only_the_normed_conservative_method_is_accepted(v2: Any) -> None:
    files = v2()
    with_method(files, "conservative")
    tasks.InputCheck(sim_id=ENSEMBLE[0]).check()
    with pytest.raises(DataError, match=r"`regrid.regrid_method.pr: conservative` would give too little at the edges"):
        tasks.InputCheck(sim_id=REGIONAL).check()
    with_method(files, "conservative_normed")
    with pytest.raises(DataError, match=r"pr: conservative_normed` needs the corners of cells, and .*GSL-33"):
        tasks.InputCheck(sim_id=REGIONAL).check()


def test_slices_of_a_rotated_reference_are_regridded_conservatively(v2: Any) -> None:
    """Stacked cells have their places: the values are near to the bilinear ones."""
    files, sim_id = v2(), ENSEMBLE[0]
    with_method(files, "conservative_normed")
    piece = partition.pieces(context())[0]
    made = tasks.RefDefault(piece=piece).compute([])
    extracted = tasks.Extract(sim_id=sim_id).compute([])
    task = tasks.Regrid(sim_id=sim_id, piece=piece)
    regridded = task.compute(made["reference"], made["grid"], extracted)
    found = regridded["pr"].isel(time=slice(400, 403)).compute()
    with_method(files, "bilinear")
    bilinear = task.compute(made["reference"], made["grid"], extracted)["pr"].isel(time=slice(400, 403)).compute()
    assert found.notnull().all() and not np.allclose(found, bilinear, rtol=0.01)
    assert np.corrcoef(found.values.ravel(), bilinear.values.ravel())[0, 1] > 0.9


def test_indicators_of_each_simulation_and_their_ensemble_follow_the_products(v2: Any, tmp_path: Path) -> None:
    (tmp_path / "one.yml").write_text("realm: atmos\nindicators: {tx_mean: {base: tx_mean}}\n")
    sections = {"indicators": {"module": "one.yml"}, "ensembles": {}, "aggregate": {"compute_deltas": {}}}
    sections["aggregate"]["climatological_op"] = {"window": 30, "periods": [[1991, 2020], [2041, 2070]]}
    edit(v2()[0], lambda content: content.update(sections))
    plan = plan_of((), Selection(until="Ensemble"))
    assert {one.rule for one in plan.tasks.values() if one.cost and one.cost.basis is Basis.LIMITS} == set()
    rules = Counter(one.rule for one in plan.tasks.values())
    assert {"Indicators": 12, "Climatology": 12, "Delta": 12, "Ensemble": 6}.items() <= rules.items()
    check_outcomes(context())
    task = tasks.Indicators(sim_id=REGIONAL, dataset="scenario", freq="YS-JAN")
    assert len(task.in_final) == len(context().config.published) and not task.in_pieces
    assert task_for(task.out_indicators().path) == task
    raw = tasks.Indicators(sim_id=REGIONAL, dataset="simulation", freq="YS-JAN")
    assert not raw.in_final and len(raw.in_pieces) == len(raw.in_grids) == len(partition.pieces(context()))


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"indicators": {"module": "wind.yml"}}, r"(?s)`indicators.module`, of the .*needs sfcWind"),
        ({"spatial_mean": {"regions": {"far": {"lon_bnds": [10, 12], "lat_bnds": [45, 46]}}}}, "far' lies outside of"),
    ],
)
def test_bad_indicators_and_regions_of_v2_are_named_before_anything_runs(
    v2: Any, tmp_path: Path, sections: dict[str, Any], message: str
) -> None:
    (tmp_path / "one.yml").write_text("realm: atmos\nindicators: {tx_mean: {base: tx_mean}}\n")
    (tmp_path / "wind.yml").write_text("realm: atmos\nindicators: {a: {base: sfcWind_max}}\n")
    edit(v2()[0], lambda content: content.update({"indicators": {"module": "one.yml"}, **sections}))
    with pytest.raises(ConfigurationError, match=message):
        check_outcomes(context())
        check_regions(context())


def test_regional_members_without_a_common_grid_are_named_before_anything_runs(
    v2: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = v2()
    (tmp_path / "one.yml").write_text("indicators: {a: {base: tx_mean}}")
    edit(files[0], lambda content: content.update({"indicators": {"module": "one.yml"}, "ensembles": {}}))
    forget()
    run = context()
    match, task = run.simulation(REGIONAL), tasks.Ensemble(
        freq="YS-JAN", dataset="scenario", experiment="ssp370", product="indicators"
    )  # fmt: skip
    task.check()
    grid = xr.load_dataset(match.assets[0].path, decode_times=False)
    columns = grid[match.assets[0].variables[0]].dims[-1]

    def member(name: str, **part: slice) -> Any:
        grid.isel(part).to_netcdf(tmp_path / f"{name}.nc")
        return replace(match, id=name, assets=(replace(match.assets[0], path=str(tmp_path / f"{name}.nc")),))

    half = grid.sizes[columns] // 2
    west, east = member("west", **{columns: slice(half)}), member("east", **{columns: slice(half, None)})
    for others, fails in (({"west": west, "east": east}, True), ({"west": west, REGIONAL: match}, False)):
        monkeypatch.setitem(run.__dict__, "simulations", others)
        common_land.cache_clear()
        if not fails:
            task.check()
            continue
        with pytest.raises(
            ConfigurationError,
            match=r"all simulations of ssp370 are regional, and no grid holds .* (east|west) \(.* °N",
        ):
            task.check()
        tasks.Ensemble(freq="YS-JAN", dataset="simulation", experiment="ssp370", product="indicators").check()
