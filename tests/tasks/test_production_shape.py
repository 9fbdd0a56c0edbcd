"""Production's shape in small: several chunks in every dimension give the same bytes as a single chunk."""

from __future__ import annotations

import itertools
import os
import re
import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import dask
import luigi
import netCDF4
import numpy as np
import pytest
import xarray as xr
from demo_runs import of_years, use, write_config
from small_demo import ensure_small_demo

from espo_luigi import store, tasks
from espo_luigi.demo import sources
from espo_luigi.jobs.dask.session import dask_session
from espo_luigi.jobs.resources import Resources
from espo_luigi.science.diagnose import diagnosis
from espo_luigi.store import Publication
from espo_luigi.store.blocks import BlockWriter
from espo_luigi.tasks import product, reference
from espo_luigi.tasks.base import EspoTask
from espo_luigi.tasks.context import context
from espo_luigi.tasks.report import Summaries

pytestmark = pytest.mark.production
# Nothing divides anything: 80 land cells in blocks of 7, bands of 3, 5 and 4 rows, whose bounds fall inside chunks of
# 4 rows or on them, 10 columns in chunks of 3, 18 years in chunks of 4. Raw files are of more years than are wanted.
LATITUDES = {"south": (45.0, 45.75), "middle": (45.75, 47.0), "north": (47.0, 48.0)}
REGIONS = {
    name: {"name": name, "method": "bbox", "lon_bnds": [-67.0, -64.5], "lat_bnds": list(bounds)}
    for name, bounds in LATITUDES.items()
}
SHAPE: dict[str, Any] = {
    "custom__regions": REGIONS,
    **of_years(1989, 2006, 1992, 2003),
    "flags": {},
}
MANY = {
    "custom__working_chunks": {"lat": 3, "lon": 4, "loc": 7, "time": -1},
    "custom__final_chunks": {"lat": 4, "lon": 3},
    "extraction__simulation__chunks": {"time": 1000},
}
ONE = {
    "custom__working_chunks": {"lat": -1, "lon": -1, "loc": -1, "time": -1},
    "custom__final_chunks": {"lat": 50, "lon": 50},
}
# The size of the part that is brought to series at a time: some 14 cells of the reference's twelve years.
SERIES_BYTES = 4 * 14 * 12 * 366
_TIME_OF_DAY = re.compile(r"\d\d\d\d-\d\d-\d\d \d\d:\d\d:\d\d")
Products = dict[str, Path]
# A lake in the middle, and rows 0 to 3 of columns 6 to 8: a block of the product that is all sea after cutting.
SEA = [(6, 4), (6, 5), (7, 4), *((row, column) for row in range(4) for column in (6, 7, 8))]


def make_raw(folder: Path) -> Path:
    """Make the demo's data in a folder, of two years more than are wanted at each end, with more sea."""
    with pytest.MonkeyPatch.context() as patch:
        for simulation in sources.SIMULATIONS:
            patch.setitem(simulation.experiments, "historical", (1987, 2000))
            patch.setitem(simulation.experiments, "ssp585", (2001, 2008))
        ensure_small_demo(folder)
    for path in (folder / "reconstruction").rglob("*.nc"):
        with netCDF4.Dataset(path, "a") as file:
            variable = next(one for name, one in file.variables.items() if name in ("tasmax", "tasmin", "pr"))
            for row, column in SEA:
                variable[:, row, column] = np.nan
    return folder


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_raw(tmp_path_factory.mktemp("shape") / "raw")


def stop_and_go_on(task: EspoTask) -> Counter[str]:
    """Have a process do the work of a task that is killed at its third block; then do it here.

    Return how many blocks were found and computed here.
    """
    if (child := os.fork()) == 0:
        write, begun = BlockWriter.__call__, itertools.count()

        def stopping(self: BlockWriter, block: Any, block_id: tuple[int, ...]) -> Any:
            if next(begun) == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            return write(self, block, block_id)

        BlockWriter.__call__ = stopping  # type: ignore[method-assign]
        try:
            with dask.config.set(scheduler="synchronous"), task.guarded():
                task.work()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    with Publication().in_force() as publication, task.guarded():
        task.work()
    return Counter(publication.blocks())


def two_threads() -> AbstractContextManager[object]:
    """Have Dask compute in two threads, without a cluster."""
    return dask.config.set(scheduler="threads", num_workers=2)


def one_worker() -> AbstractContextManager[object]:
    """Let a job's Dask cluster compute, a single worker with two threads."""
    return dask_session(Resources(1, 2, "4GB"))


def work_through(root: luigi.Task, work: Callable[[EspoTask], object]) -> list[EspoTask]:
    """Do the work of every task of the graph in this process, inputs first; return the rules' tasks."""
    done: dict[str, luigi.Task] = {}

    def visit(task: luigi.Task) -> None:
        if task.task_id not in done:
            for needed in task.deps():
                visit(needed)
            done[task.task_id] = task
            if isinstance(task, EspoTask):
                work(task)

    visit(root)
    return [task for task in done.values() if isinstance(task, EspoTask)]


def products(rules: list[EspoTask], final: Path) -> Products:
    """The kept stores, by their path below `final`."""
    kept = [getattr(task, name)().path for task in rules for name, port in task.ports() if not port.is_temporary]
    return {str(path.relative_to(final)): path for path in kept}


def make(
    folder: Path,
    raw: Path,
    work: Callable[[EspoTask], object] = lambda task: task.work(),
    session: Callable[[], AbstractContextManager[object]] = two_threads,
    **changes: object,
) -> Products:
    """Make everything in `folder` under the shape with `changes`, in this process, and return the products."""
    use(write_config(folder, raw, **{**SHAPE, **changes}), folder)
    with session():
        return products(work_through(tasks.All(), work), folder / "final")


@pytest.fixture(scope="module")
def resumed() -> dict[type[EspoTask], Counter[str]]:
    """Of each rule, how many blocks were found and computed by tasks that had been stopped before."""
    return defaultdict(Counter)


@pytest.fixture(scope="module")
def run(
    tmp_path_factory: pytest.TempPathFactory, raw: Path, resumed: dict[type[EspoTask], Counter[str]]
) -> Iterator[Callable[..., Products]]:
    """A function that makes everything under a configuration, once, and returns the products.

    Of whole grids in many chunks, tasks of each rule are killed and done again.
    """
    made: dict[str, Products] = {}

    def stopped(task: EspoTask) -> None:
        # Of rules that write no blocks, one task is enough; of one variable, as the others are made by the same lines.
        known = type(task) not in resumed or resumed[type(task)]["found"] > 0
        if known and getattr(task, "var", "pr") == "pr":
            resumed[type(task)] += stop_and_go_on(task)
        else:
            with task.guarded():
                task.work()

    def once(**changes: object) -> Products:
        if repr(changes) not in made:
            many = MANY.items() <= changes.items()
            with pytest.MonkeyPatch.context() as patch:
                if many:
                    # And two chunks of the product side by side.
                    patch.setattr(reference, "SERIES_BYTES", SERIES_BYTES)
                    patch.setattr(product, "BLOCK_BYTES", 4 * 4 * 1461 * 6)
                    # Two rows of a domain of eight columns.
                    patch.setattr(diagnosis, "CELLS_IN_A_BLOCK", 20)
                # Once is enough: how a rule goes on has nothing to do with stacking. The other time, Dask's cluster
                # computes, as in jobs.
                how: dict[str, Any] = {}
                if many:
                    how = {"session": one_worker} if "Demo-NoLeap" in repr(changes) else {"work": stopped}
                made[repr(changes)] = make(tmp_path_factory.mktemp("run"), raw, **how, **changes)
        return made[repr(changes)]

    yield once


def in_memory(path: Path) -> xr.Dataset:
    """A product without what says how and when it was made."""
    ds = store.open_store(path).load()
    ds.attrs = {name: value for name, value in ds.attrs.items() if not name.startswith("espo_luigi")}
    for variable in ds.variables.values():
        variable.attrs = {name: _TIME_OF_DAY.sub("", str(value)) for name, value in variable.attrs.items()}
    return ds


def assert_same(path: Path, other: Path) -> None:
    """Two products hold the same: a table's rows, a store's bytes."""
    if path.suffix == ".csv":
        assert store.read_table(path) == store.read_table(other)
    else:
        xr.testing.assert_identical(in_memory(path), in_memory(other))


def of_source(source: str) -> dict[str, object]:
    """The search of a single simulation; each of the two has a calendar of its own."""
    criteria = {"processing_level": "raw", "experiment": ["ssp585"], "source": [source]}
    return {"extraction__simulation__search_data_catalogs__other_search_criteria": criteria}


@pytest.fixture(scope="module", params=[pytest.param("Demo-NoLeap", marks=pytest.mark.long), "Demo-360Day"])
def pair(request: pytest.FixtureRequest, run: Callable[..., Products]) -> tuple[Products, Products]:
    """The products in many chunks, and in one."""
    return run(**MANY, **of_source(request.param)), run(**ONE, **of_source(request.param))


@pytest.mark.timeout(900)
def test_products_are_the_same_bytes_in_many_chunks_and_in_one(pair: tuple[Products, Products]) -> None:
    many, one = pair
    assert len(many) > 20 and many.keys() == one.keys()
    for name, path in many.items():
        assert_same(path, one[name])


def test_the_run_had_several_chunks_in_every_dimension(pair: tuple[Products, Products]) -> None:
    beginnings = ("final/NAM/", "NAM_SPLIT/middle/", "regridded/")
    wide = [
        path for name, path in pair[0].items() if name.startswith(beginnings) and not re.search("south|north", name)
    ]
    assert len(wide) >= 3
    for path in wide:
        blocks = store.open_store(path)["pr_flags" if path.name.startswith("flags") else "pr"].variable.chunksizes
        assert all(len(sizes) > 1 for dim, sizes in blocks.items() if dim != "time"), (path, blocks)


def test_the_reference_was_made_in_several_pieces(pair: tuple[Products, Products]) -> None:
    references = [store.open_store(path) for name, path in pair[0].items() if name.endswith("+default.zarr")]
    assert [ds.pr.nbytes > SERIES_BYTES for ds in references] == [True] * len(REGIONS)


def test_exactly_the_references_land_cells_have_data_in_the_product(
    pair: tuple[Products, Products],
) -> None:
    for name, path in pair[0].items():
        if name.startswith("final/NAM/day"):
            ds = store.open_store(path).load()
            land = np.concatenate(
                [
                    store.open_store(pair[0][f"reference/Demo-Land+{region}+coords.zarr"]).land.values
                    for region in REGIONS
                ]
            )
            assert land.sum() < land.size - len(SEA) + 1
            for variable in ("tasmax", "tasmin", "pr"):
                np.testing.assert_array_equal(ds[variable].notnull().all("time"), land)
                np.testing.assert_array_equal(ds[variable].notnull().any("time"), land)


def test_every_rule_that_writes_its_products_block_by_block_goes_on_from_those_of_a_killed_job(
    run: Callable[..., Products], resumed: dict[type[EspoTask], Counter[str]]
) -> None:
    run(**MANY, **of_source("Demo-360Day"))
    assert {rule for rule, tally in resumed.items() if tally["found"] > 0} >= {
        tasks.RefDefault,
        tasks.ReferenceCalendar,
        tasks.Extract,
        tasks.Regrid,
        tasks.Train,
        tasks.Adjust,
        tasks.CleanUp,
        tasks.OffDiagRefProp,
        tasks.DiagnosticsReference,
    }


def test_without_the_section_off_diag_the_whole_domain_of_several_pieces_is_diagnosed_in_some_of_its_cells(
    tmp_path: Path, raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosis, "CELLS_OF_A_DOMAIN", 10)
    changes = {**MANY, **of_source("Demo-360Day"), "off-diag": None, "flags": None}
    made = make(tmp_path, raw, **changes)
    diagnosed = {name.split("+")[-1].split(".")[0]: path for name, path in made.items() if "whole-NAM" in name}
    stores = {name: store.open_store(path).load() for name, path in diagnosed.items()}
    whole = next(store.open_store(path).load() for name, path in made.items() if name.startswith("final/NAM/day"))
    product = whole.sel(time=slice("1992", "2003"))
    assert stores["diag_ref_prop"].attrs["cells"] == "one row and one column in 3, of 81 land cells"
    wanted = {"lat": product.lat.sortby("lat").values[1::3], "lon": product.lon.values[1::3]}
    for ds in (ds for name, ds in stores.items() if name != "improvement"):
        assert all(np.array_equal(ds[dim], values) for dim, values in wanted.items())
        assert int(ds.mean_pr.notnull().sum()) == int(ds.q99_tasmin.notnull().sum()) == 8
    scenario, reference, biases = (stores[name] for name in ("diag_scen_prop", "diag_ref_prop", "diag_scen_meas"))
    there = product.sel(wanted)
    np.testing.assert_allclose(scenario.mean_pr, there.pr.mean("time"), rtol=1e-5)
    np.testing.assert_allclose(scenario.q01_tasmin, there.tasmin.quantile(0.01, "time"), rtol=1e-5)
    np.testing.assert_allclose(biases.mean_tasmax, scenario.mean_tasmax - reference.mean_tasmax, atol=1e-4)
    assert float(stores["improvement"].improved_grid_points.sel(properties="mean_pr")) > 0.9
    (sim_id,) = context().simulations
    summaries = Summaries(sim_id=sim_id, diag_domain="whole-NAM")
    with two_threads():
        summaries.work()
    assert store.open_store(summaries.out_sums().path).sizes["cell"] == 8


@pytest.mark.long
def test_a_production_of_another_package_makes_the_same_scenarios_in_its_own_place(
    strangers_production: None, run: Callable[..., Products], tmp_path: Path, raw: Path
) -> None:
    changes = ONE | of_source("Demo-NoLeap")
    named = {"production": "institute-x", "project": {"name": "Scenarios-X", "version": "3"}}
    made = make(tmp_path, raw, **changes, **named)
    archive, flags = sorted(path for name, path in made.items() if name.startswith("Scenarios-X_v3/"))
    assert flags.name == f"flags_{archive.name}"
    assert not [name for name in made if name.startswith(("final/", "NAM_SPLIT/", "regridded/", "diagnostics/"))]
    (ours,) = (path for name, path in run(**changes).items() if name.startswith("final/NAM/day"))
    theirs, ours = in_memory(archive), in_memory(ours)
    xr.testing.assert_equal(theirs, ours)
    assert "Scenarios-X" in str(theirs.attrs)
