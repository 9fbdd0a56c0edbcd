"""The archive of flags beside a product: of the production of 2024, in production's shape, with planted defects."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray as xr
from demo_runs import use, write_config
from test_production_shape import MANY, REGIONS, SHAPE, make_raw, of_source, two_threads, work_through

from espo_luigi import store, tasks
from espo_luigi.audit import validate
from espo_luigi.audit.value import way_of
from espo_luigi.config.schema import fingerprint
from espo_luigi.methods import blocks
from espo_luigi.publication.catalogue import row_of
from espo_luigi.publication.products import find_products
from espo_luigi.science import quality
from espo_luigi.science.finalize.gaps import join_land
from espo_luigi.tasks.context import context
from espo_luigi.tasks.report import FlagDetails, summary_tasks

pytestmark = [pytest.mark.production, pytest.mark.timeout(600)]
MISSING = {"id": "*", "variable": "pr", "when": "2001-07-03", "what": "missing"}
# The planted defects. The spike is in a cell of the raw grid, the others in cells of the reference.
ODD_YEAR, WARM_FROM, SWAPPED, SPIKE = 1996, 2004, ("2004-01", "2004-07"), "2005-07-03"
SPIKED, INVERTED, SHIFTED = (46.875, -65.625), (45.875, -66.125), (46.375, -66.375)


def plant_in(raw: Path) -> None:
    """Plant a year of 1.5 times the rain in the reference; warm the simulation, swap two months of it, and add a spike.

    The simulation is 2 K warmer after the calibration, so that a change of the opposite sign is no noise.
    """

    def rainier(values: Any, days: np.ndarray, file: Any) -> None:
        at = np.flatnonzero([day.year == ODD_YEAR for day in days])
        values[at] = values[at] * 1.5

    def warmer(values: Any, days: np.ndarray, file: Any) -> None:
        dates = np.array([f"{day.year}-{day.month:02}-{day.day:02}" for day in days])
        first, other = (np.flatnonzero(np.char.startswith(dates, month)) for month in SWAPPED)
        values[first], values[other] = values[other], values[first]
        values[np.char.startswith(dates, f"{WARM_FROM}").argmax() :] += 2
        lat, lon = (np.abs(file[name][:] - place).argmin() for name, place in zip(("lat", "lon"), SPIKED, strict=True))
        values[np.flatnonzero(dates == SPIKE), lat, lon] += 40

    for pattern, plant in {"pr_day_Demo-Land*": rainier, "tasm*_day_Demo-360Day_ssp*": warmer}.items():
        for path in raw.rglob(pattern):
            with netCDF4.Dataset(path, "a") as file:
                time, values = file["time"], file[path.name.partition("_")[0]]
                plant(values, np.asarray(netCDF4.num2date(time[:], time.units, time.calendar)), file)


def misplacing(adjust: Callable[..., xr.Dataset]) -> Callable[..., xr.Dataset]:
    """An adjustment of tasmax that inverts the change in one cell, and gives another the values of its neighbour."""

    def adjusting(simulation: xr.DataArray, *training: xr.Dataset, **arguments: Any) -> xr.Dataset:
        made = adjust(simulation, *training, **arguments)
        if simulation.name != "tasmax":
            return made
        tasmax, cells = made["scenario"], list(zip(made["lat"].values, made["lon"].values, strict=True))
        order = np.arange(len(cells))
        if SHIFTED in cells:
            order[cells.index(SHIFTED)] = cells.index((SHIFTED[0] + 0.25, SHIFTED[1]))
        moved = tasmax.variable.isel(loc=order).chunk(tasmax.chunksizes)
        is_later = tasmax.indexes["time"].year >= WARM_FROM
        colder = np.outer([cell == INVERTED for cell in cells], np.where(is_later, 4, 0)).astype("f4")
        return made.assign(scenario=tasmax.copy(data=(moved - xr.Variable(("loc", "time"), colder)).data))

    return adjusting


def make(folder: Path, raw: Path, **more: Any) -> tasks.ConcatenationFinal:
    """Make a product, and return its task."""
    changes: dict[str, Any] = {
        **SHAPE,
        **MANY,
        "custom__regions": {name: region for name, region in REGIONS.items() if name != "north"},
        **of_source("Demo-360Day"),
        "extraction__simulation__repairs": [MISSING],
        "extraction__simulation__fill_in_time": {"pr": "both"},
        **more,
    }
    use(write_config(folder, raw, **changes), folder)
    (sim_id,) = context().simulations
    task = tasks.ConcatenationFinal(sim_id=sim_id)
    with two_threads(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "adjust_and_count", misplacing(blocks.adjust_and_count))
        work_through(task, lambda one: one.work())
    assert task.complete()
    return task


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Raw files with defects, in the folder of the run with flags."""
    plant_in(made := make_raw(tmp_path_factory.mktemp("flags") / "raw"))
    return made


@pytest.fixture(scope="module")
def made(raw: Path) -> tuple[xr.Dataset, xr.Dataset]:
    """A product and its flags."""
    task = make(raw.parent, raw, flags={})
    return store.open_store(task.out_final().path).load(), store.open_store(task.out_flags().path).load()


def where(flags: xr.Dataset, name: str, flag: str) -> xr.DataArray:
    """Where a flag of days, or of cells, is raised."""
    of = flags[quality.flags_name(name, "cells" if flag in quality.CELLS else "days")]
    return (of & quality.meanings(of)[flag]) > 0


@pytest.mark.parametrize("name", ["tasmax", "tasmin"])
def test_a_spike_and_swapped_months_are_flagged_on_their_days_alone(
    made: tuple[xr.Dataset, xr.Dataset], name: str
) -> None:
    product, flags = made
    dates = product["time"].dt.strftime("%Y-%m-%d").values
    is_swapped = np.char.startswith(dates.astype(str), SWAPPED[0]) | np.char.startswith(dates.astype(str), SWAPPED[1])
    season, record = (where(flags, name, f"beyond_the_{what}") for what in ("season", "record"))
    land = product[name].notnull().all("time")
    assert float(season.where(land).isel(time=is_swapped).mean()) > 0.5
    assert not season.isel(time=~(is_swapped | (dates == SPIKE))).any()
    on_the_day = record.isel(time=dates == SPIKE).squeeze("time")
    assert on_the_day.sel(lat=SPIKED[0], lon=SPIKED[1]) and on_the_day.sum() < land.sum() / 2
    assert not record.isel(time=~(is_swapped | (dates == SPIKE))).any()


def test_an_inverted_change_is_flagged_in_its_cell_alone(made: tuple[xr.Dataset, xr.Dataset]) -> None:
    for name in ("tasmax", "tasmin", "dtr", "pr"):
        for flag in [*quality.CELLS][1:]:
            raised = where(made[1], name, flag)
            rows, columns = np.nonzero(raised.values)
            at = list(zip(raised["lat"].values[rows], raised["lon"].values[columns], strict=True))
            is_there = name.startswith("tasm") and flag not in ("signal_not_judged", "arid")
            assert at == ([INVERTED] if is_there else []), (name, flag)


@pytest.mark.parametrize("name", ["tasmax", "tasmin", "pr"])
def test_days_beyond_the_record_are_those_of_the_products_own_values(
    made: tuple[xr.Dataset, xr.Dataset], name: str
) -> None:
    """A year of 1.5 times the rain is in the record, and a neighbour's values are within it: neither has a flag."""
    product, flags = made
    files = (context().config.paths.final.parent / "raw" / "reconstruction").rglob("*.nc")
    raw = xr.merge([xr.open_dataset(path)[[path.name.partition("_")[0]]] for path in files]).sel(
        time=slice("1992", "2003")
    )
    raw = raw.convert_calendar("noleap").sel(lat=product["lat"], lon=product["lon"]).load()
    low, high = raw[name].min("time"), raw[name].max("time")
    beyond = (product[name] < low - 0.1 * (high - low)) | (product[name] > high + 0.1 * (high - low))
    np.testing.assert_array_equal(where(flags, name, "beyond_the_record"), beyond.transpose("time", "lat", "lon"))


def test_the_flags_of_a_production_pass_the_validation_and_must_be_there(
    made: tuple[xr.Dataset, xr.Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    (sim_id,) = context().simulations
    final, archive = context().config.paths.final, tasks.ConcatenationFinal(sim_id=sim_id).out_flags().path
    monkeypatch.setattr(validate, "_faults", lambda path: [])
    monkeypatch.setitem(validate.CHECKS, "audit", ("no audit", lambda seen: ()))

    def verdict() -> tuple[str, list[str]]:
        checks = {check.name: check for check in validate.validate(final, lambda line: None).checks}
        assert {name for name, check in checks.items() if check.verdict == "failed"} <= {"flags"}
        return checks["flags"].verdict, checks["flags"].details

    assert verdict() == ("passed", [])
    archive.rename(final / ".hidden")
    try:
        said, details = verdict()
    finally:
        (final / ".hidden").rename(archive)
    seen = validate._Seen(final, False, "", context(), context().config.validation, [])
    np.testing.assert_array_equal(join_land(seen.reference, made[0]), made[0]["tasmax"].notnull().any("time"))
    assert said == "failed" and [line.rpartition(": ")[2] for line in details] == [
        "no archive has flags of pr, tasmax, tasmin"
    ]


def test_maps_of_flags_have_what_the_method_counted_and_every_flag(made: tuple[xr.Dataset, xr.Dataset]) -> None:
    product, flags = made
    (sim_id,) = context().simulations
    task = FlagDetails(sim_id=sim_id)
    assert task in list(summary_tasks()) and [name for name, _ in task.ports()] == ["out_flags", "out_maps"]
    with two_threads():
        for one in (tasks.HealthChecks(sim_id=sim_id), task):
            one.work()
    assert task.complete()
    maps = store.open_store(task.out_maps().path).load()
    assert list(product) == ["pr", "tasmax", "tasmin"] and int(maps["pr_days_extrapolated"].sum()) > 0
    kinds = {"pr": ["made_wet", "extrapolated"], "tasmax": ["extrapolated"], "dtr": ["jittered", "extrapolated"]}
    for name, of_method in kinds.items():
        assert list(quality.meanings(flags[f"{name}_flags"]))[: -len(quality.DAYS)] == of_method
    assert {of.attrs["days"] for of in maps.values()} == {1, product.sizes["time"]}
    for name, bits in flags.data_vars.items():
        for kind, mask in quality.meanings(bits).items():
            raised = (bits & mask) > 0
            expected = raised.sum("time") if "time" in raised.dims else raised
            of = maps[f"{str(name).removesuffix('_flags').removesuffix('_cell')}_days_{kind}"]
            np.testing.assert_array_equal(of.fillna(0), expected, kind)
    assert maps["pr_days_repaired"].max() == 1 and np.isnan(maps["pr_days_repaired"]).any()


def test_a_raw_value_that_was_repaired_and_filled_is_flagged_on_its_day(made: tuple[xr.Dataset, xr.Dataset]) -> None:
    product, flags = made
    land = product["pr"].isel(time=0).notnull().values
    for flag in ("repaired", "filled_in_time"):
        raised = (flags["pr_flags"] & quality.meanings(flags["pr_flags"])[flag]) > 0
        (day,) = np.flatnonzero(raised.any(("lat", "lon")))
        assert str(product["time"].values[day]).startswith("2001-07-03")
        np.testing.assert_array_equal(raised[day], land)
        assert not (flags["tasmax_flags"] & quality.meanings(flags["tasmax_flags"])[flag]).any()


def test_the_product_has_no_flags_and_its_flags_no_values_and_both_the_same_days(
    made: tuple[xr.Dataset, xr.Dataset],
) -> None:
    product, flags = made
    assert not [name for name in product.variables if quality.is_flags(name)]
    assert set(flags.data_vars) == {
        f"{name}{of}" for name in ("pr", "tasmax", "tasmin", "dtr") for of in ("_flags", "_cell_flags")
    }
    for name in product.coords:
        xr.testing.assert_identical(product[name].variable, flags[name].variable)
    found = find_products(context().config.paths.final)
    rows = [row_of(one) for one in found if one.marker.task == "ConcatenationFinal"]
    assert sorted(row["processing_level"] for row in rows) == ["final", "final_flags"]
    assert "simulation regridded" in flags["tasmin_cell_flags"].attrs["comment"]
    assert flags["pr_flags"].dtype == np.uint16 and flags["pr_cell_flags"].dtype == np.uint8
    assert flags["pr_flags"].dims == product["pr"].dims and "units" not in flags["pr_flags"].attrs
    beyond = quality.meanings(flags["dtr_flags"])["extrapolated"]
    either = (flags["dtr_flags"] | flags["tasmax_flags"]) & beyond
    np.testing.assert_array_equal(flags["tasmin_flags"] & beyond, either)


def test_a_values_flags_are_explained(made: tuple[xr.Dataset, xr.Dataset]) -> None:
    _, flags = made
    of = flags["pr_flags"]
    at = np.argwhere((of.values & quality.meanings(of)["repaired"]) > 0)[0]
    lat, lon = (float(flags[name][place]) for name, place in zip(("lat", "lon"), at[1:], strict=True))
    (sim_id,) = context().simulations
    way = way_of(sim_id, lat, lon, "2001-07-03", "pr")
    assert "Flags: filled_in_time, repaired." in way.products["pr"].steps[-1].sentence
    assert "Flags" not in way_of(sim_id, lat, lon, "2001-07-04", "pr").products["pr"].steps[-1].sentence


def test_a_run_without_the_section_has_no_flags_and_turning_it_on_makes_its_stores_stale(
    made: tuple[xr.Dataset, xr.Dataset], tmp_path: Path
) -> None:
    (sim_id,) = context().simulations
    task = tasks.ConcatenationFinal(sim_id=sim_id)
    assert [name for name, _ in task.ports()] == ["out_scenario", "out_final", "out_flags"]
    assert "flags" in store.read_marker(task.out_final().path).fingerprints
    config = context().config
    without = config.model_copy(update={"flagging": None})
    assert fingerprint(without, "flags") != fingerprint(config, "flags")
    source, marker = task.out_scenario().path, store.read_marker(task.out_final().path)
    use(write_config(tmp_path, tmp_path / "raw"), tmp_path)
    assert marker is not None
    # Stores on the way may still have flags.
    task._pack(source, tmp_path / "values.zarr.zip", marker, of_flags=False)
    assert not [name for name in store.open_store(tmp_path / "values.zarr.zip") if quality.is_flags(name)]
    assert [name for name, _ in task.ports()] == ["out_scenario", "out_final"]
    details = FlagDetails(sim_id=sim_id)
    assert details.in_bits == [] and [name for name, _ in details.ports()] == ["out_flags"]
    assert "flags" not in tasks.Adjust(pool="x", piece="south", var="pr").reading()
    cleaned = tasks.CleanUp(sim_id=sim_id, piece="south")
    assert "flags" not in cleaned.reading() and cleaned.in_reference == []


def test_without_flags_the_same_values_have_the_sums_of_their_flags_as_attributes(
    made: tuple[xr.Dataset, xr.Dataset], raw: Path, tmp_path: Path
) -> None:
    product, flags = made
    without = store.open_store(make(tmp_path, raw, flags=None).out_final().path).load()
    assert list(without) == list(product)
    xr.testing.assert_equal(without, product)
    for name, kinds in {"pr": ["made_wet", "extrapolated"], "tasmax": ["extrapolated"]}.items():
        bits, masks = flags[f"{name}_flags"], quality.meanings(flags[f"{name}_flags"])
        told = {key: days for key, days in without[name].attrs.items() if key.startswith("espo_luigi_days")}
        sums = {f"espo_luigi_days_{kind}": int(((bits & masks[kind]) > 0).sum()) for kind in kinds}
        assert told == sums | {"espo_luigi_days": product[name].size - int(product[name].isnull().sum())}
        assert not told.keys() & product[name].attrs.keys()
