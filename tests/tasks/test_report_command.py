"""`espo report`, as people give it, about a run that has some of its products."""

import csv
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from complete_demo import DAY360, NOLEAP
from luigi.configuration import get_config
from report_examples import compared, measures, properties, write_job

from espo_luigi import store, tasks
from espo_luigi.commands import cli
from espo_luigi.report.reading import Diagnosed
from espo_luigi.science.diagnose import diagnosis
from espo_luigi.tasks.report import run_view


@pytest.fixture()
def part(configured: Callable[..., list[Path]], tmp_path: Path) -> list[Diagnosed]:
    """A configured run with files of a single simulation in a single domain, without the summary."""
    get_config().set("espo", "final_format", "sharded")
    configured()
    found = [one for one in run_view().diagnosed if one.sim_id == NOLEAP]
    for one in found:
        write_stores(one, {} if one.domain == "Lowland" else {"summary": compared()})
    write_job(tmp_path / "run", "Train", "var=pr", started=100.0, outcome="error")
    return found


def write_stores(one: Diagnosed, more: dict) -> None:
    stores = {
        "reference": properties(0.0),
        "sim_prop": properties(2.0),
        "sim_meas": measures(2.0),
        "scen_prop": properties(0.1),
        "scen_meas": measures(0.1),
        "improvement": diagnosis.improvement(measures(2.0), measures(0.1)),
        **more,
    }
    for name, ds in stores.items():
        store.write_store(ds, getattr(one, name), store.Marker("Example", {}, {"xarray": "1"}, {}, "abc"))


def test_the_page_is_whole_and_names_missing_products(
    part: list[Diagnosed], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["report", "--out", "mine/page.html"]) == 0
    assert capsys.readouterr().out == "mine/page.html\n"
    page = (tmp_path / "mine" / "page.html").read_text()
    assert page.rstrip().endswith("</html>") and page.count("<h2>") == 5
    missing = re.findall(r"• (\S+): not made", page)
    assert str(part[1].summary) in missing and part[1].domain == "Lowland"
    assert any(DAY360 in path and path.endswith("improvement.zarr") for path in missing)
    assert "ValueError: &lt;the cause&gt;" in page

    names = {path.stem.split("+")[0] for path in (tmp_path / "mine" / "page-figures").glob("*.png")}
    assert names == {
        *("improvement", "heatmap", "map", "annual-cycle", "quantiles", "wet-days", "yearly-means", "change"),
        *("first-map", "timeline", "resources"),
    }
    rows = list(csv.DictReader((tmp_path / "mine" / "page-improvement.csv").read_text().splitlines()))
    assert [(row["domain"], row["simulation"]) for row in rows[1:]] == [("Highland", NOLEAP), ("Lowland", NOLEAP)]


def test_the_page_is_about_the_products_that_are_there(part: list[Diagnosed]) -> None:
    before = tasks.Report().marker().inputs
    assert before[str(part[0].summary)] and before[str(part[1].summary)] == ""
    store.remove(part[0].summary)
    assert tasks.Report().marker().inputs == {**before, str(part[0].summary): ""}


def test_the_report_is_about_ensembles_only_where_they_are_asked_for(
    configured: Callable[..., list[Path]], tmp_path: Path
) -> None:
    module = tmp_path / "one.yml"
    module.write_text("realm: atmos\nindicators: {tx_mean: {base: tx_mean}}\n")
    box = {"method": "bbox", "lon_bnds": [-67, -66], "lat_bnds": [45, 46]}
    configured(indicators={"module": str(module)}, aggregate={"compute_deltas": {}})
    assert not run_view().ensembles and not run_view().of_reference
    assert not any(type(task).__name__ == "ReferenceIndicators" for task in tasks.Report().requires())
    configured(
        indicators={"module": str(module)},
        aggregate={"compute_deltas": {}},
        ensembles={},
        spatial_mean={"regions": {"south": box}},
    )
    view = run_view()
    assert {(one.product, one.dataset) for one in view.ensembles} == {
        (product, dataset) for product in ("indicators", "delta") for dataset in ("scenario", "simulation")
    }
    assert all(one.ensemble and one.regions and one.freq == "YS-JAN" for one in view.ensembles)
    assert list(view.regions) == ["south"] and list(view.of_reference) == ["YS-JAN"]
    inputs = tasks.Report().marker().inputs
    assert {str(one.ensemble) for one in view.ensembles} | {str(view.of_reference["YS-JAN"])} <= set(inputs)
