"""Raw files that lie stop a run before anything heavy starts, or are said and let through, as configured."""

import csv
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import luigi
import netCDF4
import pytest
import xarray as xr
from complete_demo import DAY360, NOLEAP, edit
from luigi.task_register import Register

import espo_luigi
from espo_luigi import store, tasks
from espo_luigi.config.regions import Region
from espo_luigi.driver.graph import Graph
from espo_luigi.report.reading import job_results
from espo_luigi.science.attributes import LET_THROUGH, STATED_UNITS
from espo_luigi.science.finalize import scenario as finalize
from espo_luigi.science.geometry.cutting import subset_box, subset_boxes
from espo_luigi.tasks.context import context
from espo_luigi.tasks.inputs import told

Configure = Callable[..., list[Path]]


def on_problem(folder: Path, **actions: str) -> None:
    edit(folder / "config.yml", lambda content: content["extraction"].update(on_input_problem=actions))


def file_of(raw: Path, source: str, name: str, experiment: str) -> Path:
    (path,) = [path for path in raw.rglob(f"{name}_day_{source}_{experiment}*.nc")]
    return path


def jobs(folder: Path) -> Counter[str]:
    return Counter(result["family"] for result in job_results(folder / "run"))


def swap(raw: Path, source: str, day: int, row: int, column: int) -> Path:
    """Put a maximum 7 K under its minimum, on one day of the future; return the file."""
    path = file_of(raw, source, "tasmax", "ssp585")
    with netCDF4.Dataset(path, "a") as file, netCDF4.Dataset(file_of(raw, source, "tasmin", "ssp585")) as other:
        file["tasmax"][day, row, column] = other["tasmin"][day, row, column] - 7
    return path


def rows_of(task: Any) -> list[dict[str, str]]:
    return [dict(row) for row in store.read_table(task.out_problems().path)]


def test_good_files_have_an_empty_complete_table(configured: Configure, tmp_path: Path) -> None:
    configured()
    wanted = [tasks.RefInputCheck(), *(tasks.InputCheck(sim_id=sim_id) for sim_id in (NOLEAP, DAY360))]
    assert espo_luigi.build(wanted).succeeded
    assert [rows_of(task) for task in wanted] == [[], [], []]
    assert all(task.complete() for task in wanted)
    names = {path.name for path in (tmp_path / "final" / "checks" / "NAM").iterdir()}
    tables = {f"{name}+NAM_input.csv" for name in ("Demo-Land", NOLEAP, DAY360)}
    assert names == tables | {f"{name}.espo.json" for name in tables}
    assert espo_luigi.build([tasks.Extract(sim_id=NOLEAP)]).succeeded
    assert jobs(tmp_path) == {"InputCheck": 2, "RefInputCheck": 1, "Extract": 1}
    table = wanted[1].out_problems().path
    for damage in (
        ("action,", "act,"),
        ("\n", "\nwarn,problem_of_a_later_version" + "," * 8 + "\n"),
        ("\n", "\nwarn,\n"),
    ):
        whole = table.read_text()
        table.write_text(whole.replace(*damage, 1))
        assert not wanted[1].complete()
        table.write_text(whole)
    assert wanted[1].complete()


def test_nothing_reads_raw_files_before_they_were_checked(configured: Configure) -> None:
    configured()
    graph = list(Graph([tasks.All()]))
    families = Counter(task.get_task_family() for task in graph)
    assert (families["InputCheck"], families["RefInputCheck"]) == (2, 1)
    needed = {
        task.task_id: {other.get_task_family() for other in luigi.task.flatten(task.requires())} for task in graph
    }
    firsts = {task_id.split("_")[0] for task_id, others in needed.items() if not others}
    assert firsts == {"InputCheck", "RefInputCheck"}


def test_files_that_lie_stop_the_run_before_any_extraction_starts(
    own_raw: Path, tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    on_problem(tmp_path, tasmax_below_tasmin="fail")
    # 12 March 2041: 26 years, and 31 + 28 + 11 days. The box of the extraction has this cell.
    path = swap(own_raw, "Demo-NoLeap", 26 * 365 + 70, 3, 3)
    missing = file_of(own_raw, "Demo-360Day", "pr", "historical")
    missing.write_bytes(missing.read_bytes()[:100_000])
    reference = file_of(own_raw, "Demo-Land", "pr", "reference")
    reference.write_bytes(b"")
    assert not espo_luigi.build([tasks.All()]).succeeded
    assert jobs(tmp_path) == {"InputCheck": 2, "RefInputCheck": 1}
    (row,) = rows_of(tasks.InputCheck(sim_id=NOLEAP))
    assert (row["action"], row["problem"], row["variable"]) == ("fail", "tasmax_below_tasmin", "tasmax")
    assert (row["file"], row["day"], row["count"]) == (str(path), "2041-03-12", "1")
    assert (float(row["lat"]), float(row["lon"])) == pytest.approx((37.67 + 3 * 2.79, 284.0625 + 3 * 2.8125), rel=1e-5)
    assert float(row["value"]) == pytest.approx(-7, abs=1e-3)
    assert f"tasmax_below_tasmin (fail): tasmax, {path}, 2041-03-12, cell 46.04 °N 292.5 °E, value -7" in log.text
    assert f"unreadable_files (fail): pr, {missing}" in log.text
    assert f"{reference} (id " in log.text and "is empty (0 bytes)" in log.text
    for task in (tasks.InputCheck(sim_id=NOLEAP), tasks.InputCheck(sim_id=DAY360), tasks.RefInputCheck()):
        assert str(task.out_problems().path) in log.text
        assert len(rows_of(task)) == 1 and not task.complete()


def test_warnings_about_raw_files_are_shown_and_the_run_goes_on(
    own_raw: Path, tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    swap(own_raw, "Demo-360Day", 26 * 360 + 71, 4, 4)
    with netCDF4.Dataset(file_of(own_raw, "Demo-Land", "tasmin", "reference"), "a") as file:
        file["tasmin"][1500, 4, 3] = 190.0
    assert espo_luigi.build([tasks.Regrid(sim_id=DAY360, piece="south")]).succeeded
    assert jobs(tmp_path)["Extract"] == jobs(tmp_path)["Regrid"] == 1
    (row,) = rows_of(tasks.InputCheck(sim_id=DAY360))
    assert (row["action"], row["problem"], row["day"]) == ("warn", "tasmax_below_tasmin", "2041-03-12")
    (row,) = rows_of(tasks.RefInputCheck())
    assert (row["action"], row["problem"], row["value"]) == ("warn", "values_out_of_range", "190")
    # 1500 days after 1 January 1991, and the fifth row and fourth column of the whole grid.
    assert (row["day"], row["lat"], row["lon"]) == ("1995-02-09", "46.125", "-66.125")
    said = [message for message in log.messages if "1 warning(s)" in message]
    assert len(said) == 2 and all("(warn): " in message for message in said)


def test_a_warning_that_is_made_an_error_afterwards_is_one_until_it_is_a_warning_again(
    own_raw: Path, tmp_path: Path
) -> None:
    swap(own_raw, "Demo-NoLeap", 5000, 3, 3)
    task = tasks.InputCheck(sim_id=NOLEAP)
    task.work()
    assert task.complete()
    on_problem(tmp_path, tasmax_below_tasmin="fail")
    assert not task.complete()
    assert not espo_luigi.build([tasks.Extract(sim_id=NOLEAP)]).succeeded
    assert jobs(tmp_path) == {"InputCheck": 1}
    assert rows_of(task)[0]["action"] == "fail"
    on_problem(tmp_path, tasmax_below_tasmin="warn")
    assert espo_luigi.build([tasks.Extract(sim_id=NOLEAP)]).succeeded
    assert task.complete() and rows_of(task)[0]["action"] == "warn"


def test_the_references_check_reads_all_regions_in_any_convention_of_longitudes(configured: Configure) -> None:
    configured()
    regions = {
        "south": Region(name="south", lon_bnds=[293.0, 295.5], lat_bnds=[45.0, 46.0], tile_buffer=1.5),
        "north": Region(name="north", lon_bnds=[-68.0, -65.0], lat_bnds=[46.0, 48.0]),
    }
    whole = context().reference_on_its_first_day
    held = subset_boxes(whole, [region.model_dump() for region in regions.values()])
    parts = [subset_box(whole, region.model_dump()) for region in regions.values()]
    for dim in ("lat", "lon"):
        assert set(held[dim].values) == {value for part in parts for value in part[dim].values}


def test_problems_that_are_let_through_are_told_in_the_product_with_their_counts() -> None:
    """Of several files, the counts are added up; what concerns no value is not told."""
    rows = [
        {"problem": problem, "variable": variable, "count": count}
        for problem, variable, count in (
            ("missing_values", "pr", "3"),
            ("missing_values", "pr", "4"),
            ("tasmax_below_tasmin", "tasmax", "5"),
            ("too_few_days", "pr", "2"),
            ("coordinates_by_round_off", "pr", "6"),
        )
    ]
    text = (
        "simulation: missing_values of pr (7 values), tasmax_below_tasmin of tasmax (5 values), "
        "too_few_days of pr (2 cells)"
    )
    assert told(rows, "simulation") == {LET_THROUGH: text}
    assert told(rows[4:], "simulation") == {} == told([], "reference")


def test_extracted_data_are_repaired_and_tell_of_the_problems(own_raw: Path) -> None:
    """tasmin 7 K above tasmax on a day in one cell: its range is the smallest; precipitation below zero is 0."""
    path = swap(own_raw, "Demo-NoLeap", 5000, 3, 3)
    with netCDF4.Dataset(file_of(own_raw, "Demo-NoLeap", "pr", "ssp585"), "a") as file:
        file["pr"][5000, 3, 3] = -1e-7
    task = tasks.InputCheck(sim_id=NOLEAP)
    task.work()
    with task.out_problems().path.open(newline="") as file:
        header, *rows = csv.reader(file)  # as a spreadsheet reads it
    assert header == ["action", "problem", "variable", "file", "day", "lat", "lon", "value", "count", "message"]
    assert {len(row) for row in rows} == {len(header)}
    made = tasks.Extract(sim_id=NOLEAP).compute(store.read_table(task.out_problems().path))
    text = "simulation: values_out_of_range of pr (1 values), tasmax_below_tasmin of tasmax (1 values)"
    assert made.attrs[LET_THROUGH] == text
    with xr.open_dataset(path) as raw:
        cell = made.sel(time=raw.indexes["time"][5000].strftime("%Y-%m-%d"), lat=raw.lat[3], lon=raw.lon[3]).compute()
    assert float(cell.pr.item()) == 0 and float(cell.dtr.item()) == 0.5
    assert float((cell.tasmax - cell.tasmin).item()) == pytest.approx(-7, abs=1e-3), "nothing else is changed"


def test_the_grid_of_the_reference_tells_of_its_problems(own_raw: Path) -> None:
    rows = [{"problem": "missing_values", "variable": "pr", "count": "30"}]
    grid = tasks.RefDefault(piece="south").compute(rows)["grid"]
    assert grid["land"].attrs[LET_THROUGH] == "reference: missing_values of pr (30 values)"


def test_impossible_values_of_a_variable_with_repairs_are_a_warning(own_raw: Path, tmp_path: Path) -> None:
    assert tasks.InputCheck(sim_id=NOLEAP).action("impossible_values", "tasmax") == "fail"
    repairs = [{"id": "*Demo-NoLeap*", "variable": "tasmax", "where": "> 335 K", "what": "missing"}]
    edit(tmp_path / "config.yml", lambda content: content["extraction"]["simulation"].update(repairs=repairs))
    assert tasks.InputCheck(sim_id=NOLEAP).action("impossible_values", "tasmax") == "warn"
    assert tasks.InputCheck(sim_id=NOLEAP).action("impossible_values", "pr") == "fail"
    assert tasks.InputCheck(sim_id=DAY360).action("impossible_values", "tasmax") == "fail"


def as_totals(path: Path) -> None:
    """Make amounts of a day in mm of a file's precipitation, without a word about it."""
    with netCDF4.Dataset(path, "a") as file:
        file["pr"].units = "mm"
        file["pr"][:] = file["pr"][:] * 86400


def test_stated_units_give_the_values_and_the_check_of_files_that_state_them_and_are_told(
    own_raw: Path, tmp_path: Path
) -> None:
    def made() -> list[xr.Dataset]:
        grid = tasks.RefDefault(piece="south").compute([])
        return [one.compute() for one in (grid["reference"], grid["grid"], tasks.Extract(sim_id=NOLEAP).compute([]))]

    expected = made()
    for path in [*own_raw.rglob("pr_day_Demo-NoLeap_*.nc"), *(own_raw / "reconstruction").rglob("pr_*.nc")]:
        as_totals(path)
    checks = tasks.InputCheck(sim_id=NOLEAP), tasks.RefInputCheck()
    for check in checks:
        assert {(each.kind, each.variable) for each in check.problems()} >= {("units", "pr")}
    stated = {"reference": {"units": {"pr": "mm d-1"}}, "simulation": {"accumulation": "over_step"}}
    edit(tmp_path / "config.yml", lambda content: [content["extraction"][key].update(stated[key]) for key in stated])
    Register.clear_instance_cache()
    for check in checks:
        assert not [each for each in check.problems() if each.variable == "pr"]
    found = made()
    for one, other in zip(found, expected, strict=True):
        xr.testing.assert_allclose(one, other, rtol=1e-6)
    reference, grid, simulation = found
    assert grid["land"].attrs[STATED_UNITS].endswith(": pr in mm d-1 in place of mm")
    assert simulation.attrs[STATED_UNITS] == f"{NOLEAP}: pr in mm d-1 in place of mm"
    product = finalize._told(simulation, grid["land"], 0)
    assert product.attrs[STATED_UNITS] == f"{simulation.attrs[STATED_UNITS]}; {reference.attrs[STATED_UNITS]}"
