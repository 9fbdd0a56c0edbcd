"""No rule that writes in blocks takes more memory for more cells: its memory follows the size of a block."""

from __future__ import annotations

import gc
import json
import os
import traceback
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import pytest
from complete_demo import NOLEAP, in_order
from demo_runs import ONE_REGION, of_years, use, write_config
from small_demo import small_reference, steps

from espo_luigi import tasks
from espo_luigi.catalog import examine, files
from espo_luigi.demo import ensure_demo, make, sources
from espo_luigi.methods.dqm.compilation import compile_all
from espo_luigi.tasks import product, reference, simulation
from espo_luigi.tasks.base import EspoTask

ROOT = Path(__file__).parents[2]
ROWS, COLUMNS = (12, 48), 20
DAYS = 5844  # of sixteen years
# As in production, a piece has many blocks.
CELLS = 20
SERIES_BYTES = 4 * DAYS * CELLS
ADDED_BYTES = SERIES_BYTES * COLUMNS // CELLS * (ROWS[1] - ROWS[0])  # of a variable
SHAPE: dict[str, Any] = {
    **of_years(1991, 2006, 1991, 2006),
    "custom__working_chunks": {"lat": 2, "lon": 10, "loc": CELLS, "time": -1},
    "custom__final_chunks": {"lat": 4, "lon": 5},
    "flags": {},
    "indicators": {"module": str(ROOT / "config/demo/indicators.yml"), "datasets": ["scenario"]},
}


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a few cells, of all rules."""
    for module, name, size in (
        (examine, "BLOCK_BYTES", SERIES_BYTES),
        (files, "BYTES_PER_CHUNK", SERIES_BYTES),
        (reference, "SERIES_BYTES", SERIES_BYTES),
        (simulation, "FILE_BYTES", SERIES_BYTES // 4),
        (product, "BLOCK_BYTES", SERIES_BYTES),
        (product, "BLOCK_IN_TIME_BYTES", SERIES_BYTES // 2),
    ):
        monkeypatch.setattr(module, name, size)


def make_raw(folder: Path, rows: int) -> Path:
    """Make the demo's data, the reference on so many rows over the same region."""
    land = replace(small_reference(), land=("#" * COLUMNS,) * rows, lats=steps(45 + 1.5 / rows, 3 / rows, rows))
    land = replace(land, lons=steps(-66.9375, 0.125, COLUMNS), experiments={"reference": (1991, 2006)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(make, "REFERENCE", land)
        for one in sources.SIMULATIONS:
            patch.setitem(one.experiments, "historical", (1991, 2000))
            patch.setitem(one.experiments, "ssp585", (2001, 2006))
        return ensure_demo({"folder": str(folder), "seed": 1})


def kilobytes(key: str) -> int:
    return int(Path("/proc/self/status").read_text().split(f"{key}:")[1].split()[0])


def peak_of(task: EspoTask) -> int:
    """Do the work of a task in a child of this process; return the bytes by which the child's memory grew at most."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        code = 1
        gc.set_threshold(700, 10, 10)  # as in a job; the tests' own leaves the cycles of Dask's graphs in memory
        try:
            before = kilobytes("VmRSS")
            with task.guarded():
                task.work()
            os.write(write, json.dumps(1024 * (kilobytes("VmHWM") - before)).encode())
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read) as answer:
        said = answer.read()
    assert os.waitpid(child, 0)[1] == 0, task
    return int(json.loads(said))


def peaks(folder: Path, rows: int) -> dict[str, int]:
    """The most memory that a task of each rule takes."""
    folder.mkdir()
    raw = make_raw(folder / "raw", rows)
    criteria = {"processing_level": "raw", "experiment": ["ssp585"], "source": ["Demo-NoLeap"]}
    source = {"extraction__simulation__search_data_catalogs__other_search_criteria": criteria}
    use(write_config(folder, raw, **{**ONE_REGION, **SHAPE, **source}), folder)
    most: dict[str, int] = defaultdict(int)
    with dask.config.set(scheduler="synchronous"):
        for task in in_order(tasks.Indicators(dataset="scenario", sim_id=NOLEAP, freq="YS-JAN")):
            most[type(task).__name__] = max(most[type(task).__name__], peak_of(task))
    return most


@pytest.mark.production
def test_no_rule_of_the_chain_takes_more_memory_for_more_cells(tmp_path: Path, small_blocks: None) -> None:
    compile_all()  # once, not in each child
    small, large = (peaks(tmp_path / f"rows{rows}", rows) for rows in ROWS)
    assert {"RefDefault", "ReferenceCalendar", "Regrid", "Train", "Adjust", "CleanUp", "Indicators"} <= large.keys()
    # A piece that is held takes more: input, noise and result of each block. Dask's graphs grow with the blocks, too.
    grown = {rule: (small[rule], peak) for rule, peak in large.items() if peak - small[rule] > 1.25 * ADDED_BYTES}
    assert not grown, (small, large)
