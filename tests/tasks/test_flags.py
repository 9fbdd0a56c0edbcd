"""The archive of flags beside a product: of the production of 2024, in production's shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from demo_runs import use, write_config
from test_production_shape import MANY, SHAPE, make_raw, of_source, two_threads, work_through

from espo_luigi import store, tasks
from espo_luigi.science import quality
from espo_luigi.tasks.context import context

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
    assert len(counts) == 9
    for name in counts:
        variable, kind = name.split("_days_")
        of = flags[quality.flags_name(variable)]
        days = (of & quality.meanings(of)[kind] > 0).sum("time")
        np.testing.assert_array_equal(days.values, product[name].fillna(0).values, name)
    assert int(product["pr_days_extrapolated"].sum()) > 0
