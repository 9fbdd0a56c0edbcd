"""The page of a run: whole, self-contained, and honest about what failed and what is not there."""

import csv
import html
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from browser import Browser, missing_axe, missing_browser
from report_examples import DOMAIN, SIMULATIONS, write_job, write_run

from espo_luigi import store
from espo_luigi.errors import DataError
from espo_luigi.replacing import MANIFEST_NAME
from espo_luigi.report import distributions, improvement, maps
from espo_luigi.report.drawings import Drawing, with_pictures
from espo_luigi.report.html import Section, Table, Warned, render_page
from espo_luigi.report.make import PARTS, make_sections, write_report
from espo_luigi.report.problem_sections import health_section, read_checks
from espo_luigi.report.reading import Made, Reader, RunView

# By part, which is an id on the page: the titles of its sections.
TITLES = {
    "glance": [""],
    "changes": ["Is the climate-change signal kept?"],
    "quality": ["Improvement", "Maps", "Series and distributions", "Health checks"],
    "doubts": ["By rank", "Missing and failed"],
    "run": ["Inputs, versions and products", "Jobs"],
}
MARKER = store.Marker("Report", {}, {}, {"/a-->b": "1"}, "abc")


class Loads(HTMLParser):
    """Collects what a page would load, and its headings."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.sources: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.sources += [str(value) for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    return write_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def written(view: RunView, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out") / "report.html"
    write_report(view, out, MARKER)
    return out


def checked(view: RunView) -> Section:
    return health_section(view, read_checks(view, reader := Reader()), reader)


def tables_of(sections: list[Section], title: str) -> dict[str, list[list[str]]]:
    """The rows of a section's tables, by the name of the first column."""
    (section,) = (one for one in sections if one.title == title)
    return {table.columns[0]: table.rows for table in section.blocks if isinstance(table, Table)}


def words(text: str) -> str:
    without = re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", without)).split())


def test_the_page_has_five_parts_in_their_order_and_loads_nothing(written: Path) -> None:
    text = written.read_text()
    assert re.findall(r'<div id="(\w+)">', text) == [*TITLES] == [*PARTS]
    titles = [html.escape(title) for of in TITLES.values() for title in of if title]
    assert re.findall(r"<h3>(.*?)</h3>", text) == titles
    loads = Loads(text)
    assert [source for source in loads.sources if not source.startswith("data:")] == [f"#{part}" for part in PARTS]
    assert not loads.tags & {"script", "iframe", "object", "embed"}
    assert "url(" not in text and "@import" not in text


def test_the_figures_of_the_page_are_the_files_beside_it(written: Path) -> None:
    import base64

    files = {path.read_bytes() for path in (written.parent / "report-figures").glob("*.png")}
    shown = re.findall(r'src="data:image/png;base64,([^"]+)"', written.read_text())
    assert {base64.b64decode(one) for one in shown} == files
    names = {path.name.split("+")[0] for path in (written.parent / "report-figures").iterdir()}
    assert names == {
        *(
            "first-map.png",
            "improvement",
            "heatmap",
            "map",
            "annual-cycle",
            "quantiles",
            "wet-days",
            "yearly-means",
            "change",
        ),
        *("timeline.png", "resources.png", MANIFEST_NAME),
    }


@pytest.mark.skipif(missing_browser() is not None, reason=str(missing_browser()))
def test_a_browser_shows_the_page_whole_and_finds_nothing_wrong(written: Path, tmp_path: Path) -> None:
    with Browser(tmp_path / "browser") as browser:
        browser.open(written.as_uri())
        titles = browser.evaluate("[...document.querySelectorAll('h2')].map(one => one.textContent.slice(3))")
        assert titles == [*PARTS.values()]
        assert browser.evaluate("document.images.length") >= len(
            list((written.parent / "report-figures").glob("*.png"))
        )
        assert browser.evaluate("[...document.images].filter(one => !one.naturalWidth).length") == 0
        # Of what is wider than the window, each part scrolls by itself.
        assert browser.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        assert browser.evaluate(
            "[...document.querySelectorAll('nav a')].every(one => document.querySelector(one.hash))"
        )
        assert browser.errors == []
        # Whatever a text from elsewhere made of the page, no script runs.
        made = "const made = document.createElement('script'); made.textContent = 'window.ran = 1'"
        assert browser.evaluate(f"(() => {{ {made}; document.head.append(made); return window.ran === undefined }})()")


@pytest.mark.skipif(missing_axe() is not None, reason=str(missing_axe()))
def test_the_page_is_accessible_in_light_and_dark_and_opens_with_one_screen(written: Path, tmp_path: Path) -> None:
    with Browser(tmp_path / "browser") as browser:
        browser.call("Emulation.setDeviceMetricsOverride", width=1366, height=768, deviceScaleFactor=1, mobile=False)
        browser.open(written.as_uri())
        assert browser.evaluate("document.querySelector('#glance section').getBoundingClientRect().bottom") <= 768
        assert browser.evaluate("document.querySelectorAll('#glance figure img').length") == 1
        grounds = "[document.body, document.images[0]].map(one => getComputedStyle(one).backgroundColor)"
        white = "rgb(255, 255, 255)"
        for dark in (False, True):
            assert browser.findings(dark=dark) == []
            ground, plate = browser.evaluate(grounds)
            assert (ground != white, plate) == (dark, white)


def test_the_change_of_precipitation_is_told_of_days_with_much_of_it_though_half_are_dry(view: RunView) -> None:
    found, reader = distributions.read_summaries(view)
    one, ds = next(iter(found.items()))
    dry = ds.copy(deep=True)
    dry["pr_change"].loc[{"change_quantile": ds["change_quantile"] <= 0.75}] = np.nan
    section = distributions.change_section({one: dry}, reader, str(ds.attrs["periods"]))
    (table,) = [block for block in section.blocks if isinstance(block, Table)]
    told = {row[2]: row[3:5] for row in table.rows}
    for name, quantile in (("pr", 0.95), ("tasmax", 0.5)):
        wanted = dry[f"{name}_change"].sel(change_quantile=quantile).mean("season")
        expected = [f"{float(wanted.sel(source=kind)):.2f}".replace("-", "−") for kind in ("raw", "adjusted")]
        assert told[name] == expected


def test_the_table_of_improvements_has_the_published_values_and_the_stores(written: Path, view: RunView) -> None:
    rows = list(csv.DictReader((written.parent / "report-improvement.csv").read_text().splitlines()))
    assert [(row["domain"], row["simulation"]) for row in rows[1:]] == [(DOMAIN, sim_id) for sim_id in SIMULATIONS]
    assert (rows[0]["mean_tasmax"], rows[0]["dry_wet"]) == ("1.00", "0.62")
    improved = store.open_store(view.diagnosed[0].improvement)["improved_grid_points"]
    assert float(rows[1]["mean_pr"]) == pytest.approx(float(improved.sel(properties="mean_pr")))


def test_the_page_is_complete_by_its_marker_whatever_that_holds(written: Path, tmp_path: Path) -> None:
    assert store.read_marker(written) == MARKER
    cut = tmp_path / "report.html"
    cut.write_text(written.read_text()[:-40])
    assert not store.is_complete(cut)


def test_flags_are_told_in_plain_words(written: Path) -> None:
    text = words(written.read_text())
    assert (
        "Model-A ssp585 r1i1p1f1: tasmax: warmer than 60 °C: on 3 days of a cell; the worst is 61.2 °C on 2088-07-14 "
        "at 46.5 °N, -69.5 °E" in text
    )
    assert "the longest two periods of equal length are compared instead, 1991-2000 to 2001-2010" in text


def test_flags_of_several_scopes_say_which(view: RunView, tmp_path: Path) -> None:
    columns = ("scope", *store.read_table(view.flags[SIMULATIONS[0]])[0])
    below = {"variable": "tasmax", "flag": "tasmax_below_tasmin", "meaning": "tasmax below tasmin"}
    wet = {"variable": "pr", "flag": "very_large_precipitation_events", "meaning": "more precipitation than 400 mm/d"}
    rows = [
        {**below, "raised": "False", "count": "0"},
        {**below, "scope": "QC", "raised": "True", "count": "2", "worst": "-0.3", "units": "K", "day": "1990-01-01"},
        {**wet, "scope": "QC", "raised": "True", "count": "1", "worst": "405", "units": "mm d-1", "day": "2050-07-01"},
    ]
    path = tmp_path / "flags.csv"
    store.write_table(columns, rows, path, None)
    both = {SIMULATIONS[0]: path, SIMULATIONS[1]: view.flags[SIMULATIONS[1]]}
    told, flags = checked(replace(view, flags=both)).blocks[:2]
    assert "2 simulations checked, 4 flags in all, 2 of them raised." in told.text
    ranked = tables_of(make_sections(replace(view, flags=both))[0], "By rank")
    assert any(
        "Model-A ssp585 r1i1p1f1: QC: pr: more precipitation than 400 mm/d: on 1 day of" in one
        for [one] in ranked["Look"]
    )
    assert any("tasmax below tasmin" in one for [one] in ranked["Do not use"])
    assert flags.columns[:3] == ["Simulation", "Scope", "Variable"]
    assert [row[1:3] for row in flags.rows][:3] == [["whole domain", "tasmax"], ["QC", "tasmax"], ["QC", "pr"]]
    assert {len(row) for row in flags.rows} == {len(flags.columns)}


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda text: text.replace(",raised,", ",rai,"), "has no column raised"),
        (lambda text: text[: len(text) // 2], "more or fewer cells than the"),
        (lambda text: text.replace("\n", ',"\n', 1), "is damaged"),
    ],
)
def test_a_damaged_table_of_flags_is_named_in_the_page(
    view: RunView, tmp_path: Path, damage: Callable[[str], str], said: str
) -> None:
    path = tmp_path / "flags.csv"
    path.write_text(damage(view.flags[SIMULATIONS[0]].read_text()))
    section = checked(replace(view, flags={SIMULATIONS[0]: path, SIMULATIONS[1]: view.flags[SIMULATIONS[1]]}))
    assert "1 simulation checked" in section.blocks[0].text
    assert any(f"{path}" in str(block) and said in str(block) for block in section.blocks)


def test_a_damaged_number_in_a_table_of_flags_is_shown_as_it_is(view: RunView, tmp_path: Path) -> None:
    path = tmp_path / "flags.csv"
    rows = [{**row, "count": "3O"} for row in store.read_table(view.flags[SIMULATIONS[0]])]
    store.write_table(list(rows[0]), rows, path, None)
    ranked = tables_of(make_sections(replace(view, flags={SIMULATIONS[0]: path}))[0], "By rank")
    assert "on 3O days" in str(ranked["Look"])


def test_a_run_with_failed_tasks_and_missing_products_gives_a_page_that_says_so(view: RunView, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(view.final, folder)
    moved = json.loads(json.dumps([str(path) for path in (folder,)]))[0]
    lost = replace(
        view,
        workdir=Path(moved) / "run",
        products=(*view.products, Made("Move", "Move sim_id=X region=<south>", (folder / "gone.zarr.zip",), False)),
        diagnosed=tuple(
            replace(one, summary=folder / "none.zarr", improvement=folder / "none+i.zarr") for one in view.diagnosed
        ),
    )
    write_job(lost.workdir, "Adjust", "var=pr", started=200.0, outcome="error")
    (lost.workdir / "jobs" / "Train" / "var=0.result.json").unlink()
    write_report(lost, tmp_path / "report.html")
    raw = (tmp_path / "report.html").read_text()
    text = words(raw)
    assert "1 of 3 tasks are not complete: • Move sim_id=X region=<south>" in text
    assert "ValueError: <the cause>" in text and "<the cause>" not in raw
    assert "/logs/var=pr.out" in text
    assert "Train var=0 no result: it is still waiting or at work, or was killed" in text
    assert text.count("Not there: ") == 3
    assert f"{folder}/none.zarr: not made" in text


def test_a_run_of_which_nothing_is_there_gives_a_page(tmp_path: Path) -> None:
    view = RunView((), "abc", "ERA5-Land", (), (), (1991, 2020), tmp_path, tmp_path / "run", "local")
    found, shares = make_sections(view)
    assert [section.title for section in found] == [title for of in TITLES.values() for title in of]
    assert shares == {}
    page = words(render_page("t", "i", found, PARTS))
    assert "No job has left a result" in page and "Look before use" in page


def test_of_many_simulations_the_one_that_improved_least_is_mapped(
    view: RunView, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maps, "MOST_MAPS", 3)
    _, shares = improvement.improvement_section(view)
    shares[DOMAIN, SIMULATIONS[1]].loc[{"properties": "mean_pr"}] = 0.2
    shown = [block.name for block in maps.maps_section(view, shares).blocks if isinstance(block, Drawing)]
    assert f"map+mean_pr+{DOMAIN}+{SIMULATIONS[1]}" in shown
    assert f"map+mean_pr+{DOMAIN}+{SIMULATIONS[0]}" not in shown
    assert f"map+mean_tasmax+{DOMAIN}+{SIMULATIONS[0]}" in shown


def broken_figure(words: str) -> None:
    raise DataError(words)


def test_a_figure_that_cannot_be_drawn_is_a_paragraph_that_says_why() -> None:
    (section,) = with_pictures([Section("t", [Drawing("n", "Annual cycle", broken_figure, ["no day"])])])
    assert section.blocks == [Warned("Annual cycle: could not be drawn (DataError: no day)")]


def test_several_processes_draw_the_same(view: RunView) -> None:
    improved, _ = improvement.improvement_section(view)
    alone = with_pictures([improved])
    assert with_pictures([improved], processes=2) == alone
    assert len(alone[0].pictures) == 2


def test_used_times_are_told_of_jobs_of_seconds_and_of_hours(tmp_path: Path, view: RunView) -> None:
    workdir = tmp_path / "run"
    write_job(workdir, "Train", "var=pr", started=100.0)
    order, result = (workdir / "jobs" / "Train" / f"var=pr{end}" for end in (".json", ".result.json"))
    os.utime(order, (99.9, 99.9))
    result.write_text(result.read_text().replace('"ended": 160.0', '"ended": 7300.0'))
    os.utime(result, (7300.0, 7300.0))
    write_job(workdir, "Adjust", "var=pr", started=8000.0)
    os.utime(workdir / "jobs" / "Adjust" / "var=pr.json", (7970.0, 7970.0))
    (run,) = (one for one in make_sections(replace(view, workdir=workdir))[0] if one.title == "Jobs")
    (table,) = [block for block in run.blocks if isinstance(block, Table)]
    assert [row[5:] for row in table.rows] == [
        ["120.0 of 1000", "2.0", "< 0.01"],
        ["1.0 of 1000", "0.02", "0.50"],
    ]
