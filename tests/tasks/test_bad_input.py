"""Messages about bad input name the value, the expected values and the place; nothing is lost."""

import csv
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import luigi
import numpy as np
import pytest
import xarray as xr
from complete_demo import edit, set_key, work
from luigi.task_register import Register

import espo_luigi
from espo_luigi import store, tasks
from espo_luigi.driver.engines import close_engines
from espo_luigi.errors import ConfigurationError, DataError
from espo_luigi.tasks.context import context

Configure = Callable[..., list[Path]]


def fails(*wanted: luigi.Task) -> None:
    assert not espo_luigi.build(list(wanted)).succeeded


def refused(folder: Path, *wanted: luigi.Task) -> None:
    """Nothing starts, and nothing is written."""
    fails(*wanted or (tasks.All(),))
    assert not any((folder / name).exists() for name in ("run", "work", "final"))


def edit_rows(catalogue: Path, change: Callable[[dict[str, str]], dict[str, str] | None]) -> None:
    with catalogue.open() as file:
        rows = list(csv.DictReader(file))
    kept = [row for row in (change(dict(row)) for row in rows) if row is not None]
    with catalogue.open("w") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(kept)


def test_a_missing_catalogue_is_named_with_the_command_that_makes_one(
    own_raw: Path, tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    (own_raw / "simulation.json").unlink()
    refused(tmp_path)
    assert str(own_raw / "simulation.json") in log.text
    assert "espo catalog" in log.text


def test_a_catalogue_without_history_says_that_history_is_missing(
    own_raw: Path, tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    edit_rows(own_raw / "simulation.csv", lambda row: None if row["experiment"] == "historical" else row)
    refused(tmp_path)
    assert "histor" in log.text
    assert "Demo-NoLeap" in log.text


def test_a_simulation_that_ends_in_2099_stops_the_run_before_it_starts(
    own_raw: Path, tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    end = {"date_end": "2099-12-30 00:00"}
    edit_rows(own_raw / "simulation.csv", lambda row: row | end if row["experiment"] == "ssp585" else row)
    refused(tmp_path)
    assert "2099-12-30, expected all of 1950-2100" in log.text


def drown(raw: Path, **beyond: float) -> None:
    """Make sea of the reference's cells beyond a latitude or longitude."""
    for file in (raw / "reconstruction").rglob("*.nc"):
        dataset = xr.load_dataset(file)
        (name,) = [name for name in ("tasmax", "tasmin", "pr") if name in dataset]
        for axis, bound in beyond.items():
            dataset[name] = dataset[name].where(dataset[axis] < bound, np.float32(np.nan))
        file.unlink()
        dataset.to_netcdf(file)


def test_a_region_without_a_land_cell_stops_the_run_before_it_starts(
    own_raw: Path, tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    drown(own_raw, lat=47.5)
    refused(tmp_path)
    assert "in -67 to -64.5 °E, 47.5 to 48 °N" in log.text
    assert "custom.ref_period" in log.text
    tasks.RefDefault(piece="south").check()


def test_a_region_between_the_references_cells_is_named_with_the_references_bounds(configured: Configure) -> None:
    set_key(configured()[0], "custom.regions.north.lat_bnds", [47.5, 47.6])
    with pytest.raises(ConfigurationError, match=r"`custom.regions.north`: .*holds no cell .*45.125 to 47.875 °N"):
        tasks.RefDefault(piece="north").check()


def test_a_region_wider_than_the_reference_stops_the_run_before_it_starts(
    configured: Configure, tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    files = configured()
    for path in ("custom.regions.north", "domain"):
        set_key(files[0], f"{path}.lat_bnds", [47.5 if "north" in path else 45.0, 48.5])
    refused(tmp_path)
    assert "region north (47.5..48.5 degrees north" in log.text
    assert "(45.125..47.875 degrees north" in log.text


def test_a_simulation_that_ends_inside_of_the_domain_stops_the_run_before_it_starts(
    own_raw: Path, tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    shorten(own_raw, "Demo-360Day", lambda ds: ds.sel(lat=slice(46.0, None)))
    refused(tmp_path)
    assert "`domain`: " in log.text and "Demo-360Day" in log.text
    assert "(41.875..45.625 degrees north" in log.text
    assert "0.5 degrees in the north" in log.text
    assert "on_input_problem.extrapolation: warn`" in log.text


def test_extrapolation_can_be_let_through_and_is_counted_in_the_product(own_raw: Path, tmp_path: Path) -> None:
    shorten(own_raw, "Demo-360Day", lambda ds: ds.sel(lat=slice(46.0, None)))
    edit(
        tmp_path / "config.yml", lambda config: config["extraction"].update(on_input_problem={"extrapolation": "warn"})
    )
    (sim_id,) = (name for name in context().simulations if "360Day" in name)
    regrid = tasks.Regrid(sim_id=sim_id, piece="north")
    work(regrid)
    (row,) = store.read_table(tasks.InputCheck(sim_id=sim_id).out_problems().path)
    assert (row["action"], row["problem"]) == ("warn", "extrapolation")
    assert "0.5 degrees in the north" in row["message"]
    made = store.open_store(regrid.out_regridded().path)
    assert made.attrs["espo_luigi_extrapolated_cells"] == made.sizes["loc"] == 15


@pytest.mark.parametrize("of_the_stage", [False, True])
def test_land_beyond_the_outermost_centres_is_refused_where_nothing_is_put_there(
    configured: Configure, of_the_stage: bool
) -> None:
    """Its values would be missing, which a later rule takes for a store that was damaged."""
    nothing, nearest = ({"extrap_method": how} for how in (None, "nearest_s2d"))
    stage = {"cf_grid_2d": {"lon0_b": -70, "lon1_b": -62, "d_lon": 1, "lat0_b": 43, "lat1_b": 49, "d_lat": 1}}
    grids = {"one": {**stage, "regridder_kwargs": nothing}} if of_the_stage else {}
    way = {"regrid__regrid_dataset__regridder_kwargs": nearest if of_the_stage else nothing}
    configured(**way, regrid__regrid_dataset__intermediate_grids=grids)
    (sim_id,) = (name for name in context().simulations if "360Day" in name)
    made, extracted = tasks.RefDefault(piece="north").compute([]), tasks.Extract(sim_id=sim_id).compute([])
    regrid = tasks.Regrid(sim_id=sim_id, piece="north")
    # The outermost centres are at 46.875 degrees, and the land's rows at 47.625 and 47.875.
    cut = extracted.sel(lat=slice(47.0, None))
    key = "intermediate_grids.one.regridder_kwargs" if of_the_stage else "regridder_kwargs"
    told = rf"15 of 15 land cells .* 0\.85 cells .* at 47\.875 °N .* `regrid.regrid_dataset.{key}.extrap_method: "
    with pytest.raises(DataError, match=told):
        regrid.compute(made["reference"], made["grid"], cut)
    regrid.compute(made["reference"], made["grid"], extracted)
    nothing["extrap_method"] = "inverse_dist"
    configured(**way, regrid__regrid_dataset__intermediate_grids=grids)
    regrid.compute(made["reference"], made["grid"], cut)


def shorten(raw: Path, source: str, cut: Callable[[xr.Dataset], xr.Dataset]) -> None:
    for file in (raw / "simulation").rglob(f"*_{source}_*.nc"):
        dataset = cut(xr.load_dataset(file, decode_times=False))
        file.unlink()
        dataset.to_netcdf(file)


def test_a_bound_on_a_row_of_the_reference_stops_the_run_before_it_starts(
    configured: Configure, tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    files = configured()
    set_key(files[0], "custom.regions.south.lat_bnds", [45.0, 45.875])
    set_key(files[0], "custom.regions.middle.lat_bnds", [45.875, 47.5])
    refused(tmp_path)
    assert "h have the row(s) 45.875" in log.text


def test_a_domain_without_a_land_cell_stops_the_run_before_it_starts(
    configured: Configure, tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    # East of the coast, and reaching over the border to the region in the north, where its longitudes have land.
    box = {"name": "Highland", "method": "bbox", "lat_bnds": [47.0, 48.0], "lon_bnds": [-65.25, -64.5]}
    set_key(configured()[0], "off-diag.domains.Highland", box)
    refused(tmp_path)
    assert "has no land: of the reference's 6 cells" in log.text
    assert "-65.25 to -64.5 °E, 47 to 47.5 °N" in log.text


def test_only_the_domains_that_a_run_needs_have_to_have_land_where_they_lie_inside_of_their_host(
    configured: Configure,
) -> None:
    set_key(configured()[0], "off-diag.domains.Highland.lon_bnds", [-68.5, -65.0])
    tasks.OffDiagRefProp(diag_domain="Highland").check()
    Register.clear_instance_cache()
    set_key(configured()[0], "off-diag.domains.Highland.lon_bnds", [-64.75, -64.5])
    tasks.OffDiagRefProp(diag_domain="Lowland").check()
    tasks.RefDefault(piece="middle").check()
    with pytest.raises(ConfigurationError, match=r"`off-diag.domains.Highland` has no land"):
        tasks.OffDiagRefProp(diag_domain="Highland").check()


def test_land_is_looked_for_in_the_product_where_it_is_made(own_raw: Path, tmp_path: Path) -> None:
    files = [tmp_path / "config.yml", tmp_path / "paths.yml"]
    work(tasks.RefDefault(piece="middle"))
    shutil.rmtree(own_raw / "reconstruction")
    tasks.RefDefault(piece="middle").check()
    tasks.OffDiagRefProp(diag_domain="Highland").check()
    set_key(files[0], "off-diag.domains.Highland.lon_bnds", [-64.75, -64.5])
    Register.clear_instance_cache()
    with pytest.raises(ConfigurationError, match="has no land: of the reference's 4 cells"):
        tasks.OffDiagRefProp(diag_domain="Highland").check()


def test_a_reference_that_opens_and_cannot_be_read_stops_the_run_before_it_starts(
    configured: Configure, tmp_path: Path, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured()

    def damaged(found: xr.Dataset) -> bool:
        raise RuntimeError("NetCDF: HDF error")

    monkeypatch.setattr("espo_luigi.tasks.partition.holds_land", damaged)
    refused(tmp_path, tasks.RefDefault(piece="south"))
    assert "be read there (NetCDF: HDF error)" in log.text


def test_of_the_reference_only_the_file_with_the_first_day_is_opened(
    own_raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    real = xr.open_dataset
    monkeypatch.setattr(
        xr, "open_dataset", lambda path, **keywords: opened.append(Path(path).name) or real(path, **keywords)
    )
    for region in ("south", "middle", "north"):
        tasks.RefDefault(piece=region).check()
    tasks.OffDiagRefProp(diag_domain="Highland").check()
    # Once to see how it is stored, once to open it.
    assert opened == ["tasmax_day_Demo-Land_reference_19910101-20201231.nc"] * 2


def test_unknown_units_name_the_variable_and_the_expected_units(own_raw: Path, log: pytest.LogCaptureFixture) -> None:
    (file,) = (own_raw / "reconstruction").rglob("pr_*.nc")
    dataset = xr.load_dataset(file)
    dataset.pr.attrs["units"] = "furlongs"
    file.unlink()
    dataset.to_netcdf(file)
    fails(tasks.RefDefault(piece="south"))
    assert "furlongs" in log.text
    assert "kg m-2 s-1" in log.text
    assert file.name in log.text


def test_a_truncated_store_is_an_error_that_names_it_and_nothing_is_built_on_it(
    configured: Configure, log: pytest.LogCaptureFixture
) -> None:
    configured()
    work(tasks.RefDefault(piece="south"))
    path = tasks.RefDefault(piece="south").out_reference().path
    chunk = next(path.glob("tasmax/c/*/*"))
    chunk.write_bytes(chunk.read_bytes()[:100])
    fails(tasks.ReferenceCalendar(piece="south", calendar="noleap"))
    assert str(path) in log.text
    assert not tasks.ReferenceCalendar(piece="south", calendar="noleap").complete()


@pytest.fixture()
def small_disk(tmpfs: Callable[[str, str], Path]) -> Path:
    return tmpfs("disk", "size=300k")


def with_final(files: list[Path], folder: Path) -> None:
    edit(files[1], lambda content: content["paths"].update(final=str(folder)))
    close_engines()


def test_a_full_disk_is_an_error_that_says_so_and_only_an_unfinished_store_stays(
    configured: Configure, small_disk: Path, log: pytest.LogCaptureFixture
) -> None:
    with_final(configured(), small_disk)
    task = tasks.RefDefault(piece="south")
    fails(task)
    assert "No space left on device" in log.text
    assert str(small_disk) in log.text
    # The small grid, which was whole before the disk was full, stays; of the reference, what a next try goes on from.
    grid, reference = task.out_grid(), task.out_reference()
    assert grid.target.exists() and not Path(reference.path).exists()
    (partial,) = Path(reference.path).parent.glob(f".{Path(reference.path).name}.*.partial")
    kept = {Path(grid.path), partial}
    others = {path for path in small_disk.rglob("*") if path.is_file() and kept.isdisjoint(path.parents)}
    assert {path.name for path in others} == {"Demo-Land+NAM_input.csv", "Demo-Land+NAM_input.csv.espo.json"}


def test_a_read_only_folder_stops_the_run_before_it_starts(
    configured: Configure, small_disk: Path, tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with_final(configured(), small_disk)
    refused(tmp_path)
    assert f"paths.final = {small_disk}" in log.text
    assert "cannot be written" in log.text


def test_a_store_of_a_different_task_is_not_taken_for_this_tasks(configured: Configure) -> None:
    configured()
    task = tasks.ReferenceCalendar(piece="south", calendar="noleap")
    path = task.out_reference().path
    made = {"piece": "south", "calendar": "noleap"}
    for family, parameters, complete in (
        ("ReferenceCalendar", made, True),
        ("ReferenceCalendar", made | {"piece": "north"}, False),
        ("RefDefault", made, False),
    ):
        store.write_store(xr.Dataset({"pr": ("loc", [1.0])}), path, store.Marker(family, parameters))
        assert task.complete() is complete


def test_a_product_of_a_different_configuration_is_used_and_reported_once(
    configured: Configure, log: pytest.LogCaptureFixture
) -> None:
    configured()
    task = tasks.ReferenceCalendar(piece="south", calendar="noleap")
    path = task.out_reference().path
    made_by = store.Marker("ReferenceCalendar", {"piece": "south", "calendar": "noleap"}, config_hash="0123456789ab")
    store.write_store(xr.Dataset({"pr": ("loc", [1.0])}), path, made_by)
    assert task.complete() and task.complete()
    said = [message for message in log.messages if "was made of something else" in message]
    assert len(said) == 1 and str(path) in said[0] and "(changed: configuration)" in said[0]
