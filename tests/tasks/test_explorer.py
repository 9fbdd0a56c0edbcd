"""The rule of the explorer: its page has the stores' numbers, is part of `All`, and made again when inputs change."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import yaml
from complete_demo import DAY360, NOLEAP
from demo_runs import of_years
from explorer_files import read_file, unpacked
from luigi.configuration import get_config
from luigi.task_register import Register
from test_outcomes import FIRST, LAST, REGIONS, publish_inputs, table_of_warming, work

from espo_luigi import store, tasks
from espo_luigi.errors import StoreError
from espo_luigi.explorer import make
from espo_luigi.export.netcdf import from_cf_axes
from espo_luigi.report.make import make_sections
from espo_luigi.tasks.report import run_view

MODULE = {
    "realm": "atmos",
    "indicators": {"tx_mean": {"base": "tx_mean"}, "tn_mean": {"base": "tn_mean", "parameters": {"freq": "QS-DEC"}}},
}
TX = "tx_mean_clim_mean_delta_1991_2010"
ENSEMBLES = {"ensemble_stats": {"fewest": {"percentiles": 2, "robustness": 2}}}


def configure(folder: Path, configured: Callable[..., list[Path]], **sections: Any) -> None:
    (folder / "two.yml").write_text(yaml.safe_dump(MODULE))
    climatologies = {"op": "mean", "window": 20, "stride": 10, "periods": [["1991", "2030"]]}
    changes = {"climatological_op": climatologies, "compute_deltas": {"reference_horizon": "1991-2010"}}
    configured(
        **of_years(FIRST, LAST),
        custom__final_chunks={"lat": 8, "lon": 10},
        keep=["regridded"],
        indicators={"module": "two.yml", "datasets": ["scenario", "reference"]},
        aggregate=changes,
        **sections,
    )
    Register.clear_instance_cache()


@pytest.mark.production
def test_the_page_has_the_numbers_of_the_stores_with_and_without_ensembles(
    tmp_path: Path, configured: Callable[..., list[Path]], caplog: pytest.LogCaptureFixture
) -> None:
    levels = {"wl": [0.5, 1.0, 5.0], "tas_src": table_of_warming(tmp_path)}
    configure(tmp_path, configured, ensembles=ENSEMBLES, spatial_mean={"regions": REGIONS}, warming_levels=levels)
    publish_inputs()
    explorer = tasks.Explorer()
    work([explorer])
    page = explorer.out_page().path
    assert explorer.complete() and page == tmp_path / "final/report/explore.html"
    index = read_file(page, "index")
    assert [one["id"] for one in index["scenarios"]] == ["ssp585", "levels all"]
    assert [one["id"] for one in index["stations"]] == ["town"] and index["regions"][0]["id"] == "south-west"
    names = {one["id"]: one["name"] for one in index["indicators"]}
    assert names == {
        "tx_mean.YS-JAN": "Mean daily maximum temperature",
        "tn_mean.QS-DEC": "Mean daily minimum temperature, by season",
    }
    assert {one["units"] for one in index["indicators"]} == {"°C"}

    whole = {"freq": "YS-JAN", "dataset": "scenario", "experiment": "ssp585"}
    changes = store.open_store(tasks.Ensemble(**whole, product="delta").out_ensemble().path).load()
    (entry,) = [
        one
        for one in index["maps"]
        if (one["indicator"], one["scenario"], one["of"]) == ("tx_mean.YS-JAN", "ssp585", "change")
    ]
    assert (entry["along"], entry["parts"], entry["statistics"]) == (
        ["2001-2020", "2011-2030"],
        ["year"],
        ["p10", "p50", "p90"],
    )
    values, step = unpacked(read_file(page, entry["key"])["values"])
    for statistic, name in enumerate(entry["statistics"]):
        expected = changes[f"{TX}_{name}"].sel(horizon=entry["along"])
        np.testing.assert_allclose(values[:, 0, statistic], expected, atol=step)
    (of_seasons,) = [
        one
        for one in index["maps"]
        if (one["indicator"], one["scenario"], one["of"]) == ("tn_mean.QS-DEC", "ssp585", "change")
    ]
    assert of_seasons["parts"] == ["DJF", "MAM", "JJA", "SON"]
    (at_levels,) = [
        one for one in index["maps"] if one["scenario"] == "levels all" and one["indicator"] == "tx_mean.YS-JAN"
    ]
    assert (
        at_levels["along"] == ["+0.5 K", "+1 K"] and at_levels["members"] == 1 and at_levels["statistics"] == ["value"]
    )

    tiles = index["plumes"]["tx_mean.YS-JAN"]["tiles"]
    members = {
        sim_id: store.open_store(
            tasks.Indicators(freq="YS-JAN", dataset="scenario", sim_id=sim_id).out_indicators().path
        )
        for sim_id in (NOLEAP, DAY360)
    }
    yearly = store.open_store(tasks.Ensemble(**whole, product="indicators").out_ensemble().path)
    reference = store.open_store(tasks.ReferenceIndicators(freq="YS-JAN").out_indicators().path)
    for j, i in ((0, 0), (5, 4), (11, 7)):
        tile = read_file(page, f"{tiles['key']}{j // tiles['rows']}_{i // tiles['columns']}")
        place, of = tile["cells"].index([j, i]), tile["scenarios"]["ssp585"]
        assert (tile["years"], tile["parts"], tile["bounds"]) == ([*range(1991, 2031)], ["year"], ["p10", "p50", "p90"])
        for key, name in zip(("low", "median", "high"), tile["bounds"], strict=True):
            numbers, step = unpacked(of[key])
            np.testing.assert_allclose(numbers[place, 0], yearly[f"tx_mean_{name}"][:, j, i] - 273.15, atol=step)
        numbers, step = unpacked(of["members"])
        for member, name in zip(numbers, of["names"], strict=True):
            (own,) = [ds for sim_id, ds in members.items() if name.split()[0] in sim_id]
            np.testing.assert_allclose(member[place, 0], own["tx_mean"][:, j, i] - 273.15, atol=step)
        numbers, step = unpacked(tile["reference"])
        np.testing.assert_allclose(numbers[place, 0, :30], reference["tx_mean"][:, j, i] - 273.15, atol=step)
    plumes = read_file(page, index["plumes"]["tx_mean.YS-JAN"]["regions"])
    with xr.open_dataset(tasks.Regions(**whole, product="indicators").out_table().path.with_suffix(".nc")) as file:
        means = from_cf_axes(file.load())["tx_mean_p90"].sel(region="south-west")
    numbers, step = unpacked(plumes["scenarios"]["ssp585"]["high"])
    assert plumes["cells"] == ["south-west"]
    np.testing.assert_allclose(numbers[0, 0], means - 273.15, atol=step)

    # The report leads to it first; All ends with it.
    sections, _ = make_sections(run_view(), page.with_name("report.html"))
    assert sections[0].blocks[0].file == "explore.html"
    get_config().set("espo", "report", "true")
    assert {"Report", "Explorer"} <= {task.task_family for task in tasks.All().requires()}

    # A page without its folder is not complete, nor one with another's.
    moved = page.with_suffix("").rename(tmp_path / "moved")
    assert not explorer.complete()
    moved.rename(page.with_suffix(""))
    assert explorer.complete()
    (page.with_suffix("") / "data" / "mine.txt").write_text("mine")
    page.unlink()
    with pytest.raises(StoreError, match=r"mine\.txt"):
        explorer.check()
    (page.with_suffix("") / "data" / "mine.txt").unlink()

    # Simulations by themselves: no percentiles, no regions.
    configure(tmp_path, configured)
    alone = tasks.Explorer()
    work([alone])
    index = read_file(page, "index")
    assert [one["id"] for one in index["scenarios"]] == [NOLEAP, DAY360] or [
        one["id"] for one in index["scenarios"]
    ] == [DAY360, NOLEAP]
    assert {tuple(one["statistics"]) for one in index["maps"]} == {("value",)} and not index["regions"]
    own = store.open_store(tasks.Delta(freq="YS-JAN", dataset="scenario", sim_id=DAY360).out_delta().path)[TX]
    (entry,) = [
        one
        for one in index["maps"]
        if (one["indicator"], one["scenario"], one["of"]) == ("tx_mean.YS-JAN", DAY360, "change")
    ]
    values, step = unpacked(read_file(page, entry["key"])["values"])
    np.testing.assert_allclose(values[:, 0, 0], own.sel(horizon=entry["along"]), atol=step)
    tile = read_file(page, f"{index['plumes']['tn_mean.QS-DEC']['tiles']['key']}0_0")
    of = tile["scenarios"][DAY360]
    assert tile["parts"] == ["DJF", "MAM", "JJA", "SON"] and of["low"] is None and of["members"] is None
    seasons = store.open_store(tasks.Indicators(freq="QS-DEC", dataset="scenario", sim_id=DAY360).out_indicators().path)
    numbers, step = unpacked(of["median"])
    first = seasons["tn_mean"][:, 0, 0].sel(time=seasons["time"].dt.month == 6) - 273.15
    np.testing.assert_allclose(numbers[tile["cells"].index([0, 0]), 2][: first.size], first, atol=step)

    # What is too much is told before.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(make, "MOST_PLUME_BYTES", 1000)
        with caplog.at_level(logging.WARNING):
            alone.look()
    assert "regions and stations only" in caplog.text
