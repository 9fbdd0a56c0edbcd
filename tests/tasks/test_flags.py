"""The archive of flags beside a product: of the production of 2024, in production's shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from demo_runs import use, write_config
from test_production_shape import MANY, REGIONS, SHAPE, make_raw, of_source, two_threads, work_through

from espo_luigi import store, tasks
from espo_luigi.audit import validate
from espo_luigi.audit.value import way_of
from espo_luigi.config.schema import fingerprint
from espo_luigi.publication.catalogue import row_of
from espo_luigi.publication.products import find_products
from espo_luigi.science import quality
from espo_luigi.tasks.context import context
from espo_luigi.tasks.report import FlagMaps, summary_tasks

pytestmark = pytest.mark.timeout(600)
SPIKE = {"id": "*", "variable": "pr", "when": "2001-07-03", "what": "missing"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[xr.Dataset, xr.Dataset]:
    """A product and its flags."""
    folder = tmp_path_factory.mktemp("flags")
    raw = make_raw(folder / "raw")
    changes: dict[str, Any] = {
        **SHAPE,
        **MANY,
        "custom__regions": {name: region for name, region in REGIONS.items() if name != "north"},
        **of_source("Demo-360Day"),
        "flags": {},
        "extraction__simulation__repairs": [SPIKE],
        "extraction__simulation__fill_in_time": {"pr": "both"},
    }
    use(write_config(folder, raw, **changes), folder)
    (sim_id,) = context().simulations
    task = tasks.ConcatenationFinal(sim_id=sim_id)
    with two_threads():
        work_through(task, lambda one: one.work())
    assert task.complete()
    return store.open_store(task.out_final().path).load(), store.open_store(task.out_flags().path).load()


def test_sums_of_flags_are_the_counts_of_the_product(made: tuple[xr.Dataset, xr.Dataset]) -> None:
    product, flags = made
    counts = [str(name) for name in product.data_vars if "_days_" in str(name)]
    assert len(counts) == 12
    for name in counts:
        variable, kind = name.split("_days_")
        of = flags[quality.flags_name(variable)]
        days = (of & quality.meanings(of)[kind] > 0).sum("time")
        np.testing.assert_array_equal(days.values, product[name].fillna(0).values, name)
    assert int(product["pr_days_extrapolated"].sum()) > 0


def test_the_flags_of_a_production_pass_the_validation_and_must_be_there(
    made: tuple[xr.Dataset, xr.Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    (sim_id,) = context().simulations
    final, archive = context().config.paths.final, tasks.ConcatenationFinal(sim_id=sim_id).out_flags().path
    monkeypatch.setattr(validate, "_faults", lambda path: [])
    monkeypatch.setitem(validate.CHECKS, "audit", ("no audit", lambda seen: ()))

    def verdict() -> tuple[str, list[str]]:
        (check,) = [one for one in validate.validate(final, lambda line: None).checks if one.name == "flags"]
        return check.verdict, check.details

    assert verdict() == ("passed", [])
    archive.rename(final / "hidden")
    try:
        said, details = verdict()
    finally:
        (final / "hidden").rename(archive)
    assert said == "failed" and {line.rpartition(": ")[2] for line in details} == {
        f"no archive has flags of {name}" for name in ("pr", "tasmax", "tasmin")
    }


def test_maps_of_flags_have_the_counts_of_the_product_and_every_flag(made: tuple[xr.Dataset, xr.Dataset]) -> None:
    product, flags = made
    (sim_id,) = context().simulations
    assert FlagMaps(sim_id=sim_id) in list(summary_tasks())
    maps = FlagMaps(sim_id=sim_id).compute(product.chunk(lat=7, time=300), flags.chunk(lat=5, time=1000)).load()
    for name in (str(one) for one in product.data_vars if "_days_" in str(one)):
        np.testing.assert_array_equal(maps[name], product[name], name)
        assert maps[name].attrs["days"] == product.sizes["time"]
    of_cells = flags["pr_cell_flags"]
    for kind, mask in quality.meanings(of_cells).items():
        assert int(maps[f"pr_days_{kind}"].sum()) == int(((of_cells & mask) > 0).sum())
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
    use(write_config(tmp_path, tmp_path / "raw"), tmp_path)
    assert [name for name, _ in task.ports()] == ["out_scenario", "out_final"]
    assert not any(isinstance(one, FlagMaps) for one in summary_tasks())
    assert "flags" not in tasks.Adjust(pool="x", piece="south", var="pr").reading()
