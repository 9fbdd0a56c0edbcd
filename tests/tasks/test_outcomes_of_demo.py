"""The demo's indicators, and the examples of the page about them, are possible before anything runs."""

import itertools
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import yaml
from complete_demo import DAY360, NOLEAP
from demo_runs import CONFIG

from espo_luigi import tasks
from espo_luigi.demo import sources
from espo_luigi.tasks.context import context
from espo_luigi.tasks.ensembles import check_regions, ends_of_ensembles
from espo_luigi.tasks.outcomes import check_outcomes, chosen, ends_of_outcomes, warming

DOCS = Path(__file__).parents[2] / "docs"
SHIPPED = yaml.safe_load((CONFIG / "outcomes.yml").read_text())
OUTCOMES = [name for name in SHIPPED if name != "flags"]
Configure = Callable[..., list[Path]]


def configure(folder: Path, configured: Configure, sections: dict[str, Any]) -> None:
    for name in ("indicators.yml", "global-means.csv"):
        shutil.copy(CONFIG / name, folder)
    configured(**sections)


def test_the_demo_s_indicators_changes_and_levels_are_possible(tmp_path: Path, configured: Configure) -> None:
    configure(tmp_path, configured, SHIPPED)
    check_outcomes(context())
    check_regions(context())
    assert context().config.flagging is not None
    assert [name for of in chosen(context()).values() for name, _ in of] == [
        *("tx_mean", "hot_days", "frost_days", "prcptot", "rx5day", "cdd")
    ]
    found = warming(context(), NOLEAP, DAY360)
    assert list(found.periods[NOLEAP]) == [1.5, 2, 3, 4] and list(found.absent[DAY360]) == [4]
    ends = Counter(type(task).__name__ for of in (ends_of_outcomes, ends_of_ensembles) for task in of(context()))
    assert ends == {"ReferenceClimatology": 1, "Delta": 2, "WarmingLevels": 2, "Ensemble": 3, "Regions": 3}


def test_the_demo_s_global_means_warm_as_its_weather() -> None:
    table = pd.read_csv(CONFIG / "global-means.csv", comment="#", index_col="year")
    assert list(table.index) == list(range(1850, 2101)) and table.shape[1] == len(sources.SIMULATIONS)
    for source in sources.SIMULATIONS:
        means = table[f"CMIP6_{source.name}_{list(source.experiments)[-1]}_{source.member}"]
        assert means[2100] - means[1850] == pytest.approx(source.climate.warming_kelvin, abs=0.01)
        assert means[2025] - means[1950] == pytest.approx(source.climate.warming_kelvin / 4, abs=0.01)


def test_the_examples_of_the_page_are_possible(tmp_path: Path, configured: Configure) -> None:
    page = (DOCS / "set-up/outcomes.md").read_text()
    blocks = [yaml.safe_load(one) for one in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
    sections: dict[str, Any] = {name: {} for name in OUTCOMES}
    for name, section in (item for one in blocks if "realm" not in one for item in one.items()):
        sections |= {name: sections[name] | section} if name in sections else {}
    sections["warming_levels"] |= {"tas_src": "global-means.csv"}
    configure(tmp_path, configured, sections)
    for module in (one for one in blocks if "realm" in one):
        (tmp_path / "indicators.yml").write_text(yaml.safe_dump(module))
        configured(**sections)
        check_outcomes(context())
        assert list(chosen(context())) == ["YS-JAN", "QS-DEC"]
    check_outcomes(context())
    check_regions(context())


def test_chunks_are_several_of_the_product_s_in_few_files(tmp_path: Path, configured: Configure) -> None:
    configure(tmp_path, configured, SHIPPED)
    names = {"freq": "YS-JAN", "dataset": "scenario", "sim_id": NOLEAP}
    # Four rows and nine columns are a chunk of the product.
    for task, steps, lat, fewest in (
        (tasks.Delta(**names), 3, 300, 1),
        (tasks.Delta(**names), 3, 3000, 4),
        (tasks.Indicators(**names), 151, 300, 16),
    ):
        values = dask.array.zeros((steps, lat, 700), chunks=(steps, 4, 9), dtype="float32")
        few = dask.array.zeros((lat, 700), chunks=(4, 9), dtype="int8")
        along = "time" if steps > 100 else "horizon"
        given = xr.Dataset({"value": ((along, "lat", "lon"), values), "count": (("lat", "lon"), few)})
        made = task.described(given)
        sizes = [4 * int(np.prod(one)) for one in itertools.product(*made["value"].chunks)]
        assert made.chunksizes[along] == (steps,)
        assert fewest <= len(sizes) <= 2.5 * fewest and max(sizes) <= 2**23
        for (dim, size), one in zip({"lat": lat, "lon": 700}.items(), (4, 9), strict=True):
            assert made.chunksizes[dim][0] in (size, *range(0, size, one))
