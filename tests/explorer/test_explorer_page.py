"""The explorer's page in a real Chromium, from file://, with made-up data of 10 000 cells."""

import base64
import csv
import json
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import explorer_data as made
import numpy as np
import pytest
from browser import Browser, missing_axe

pytestmark = pytest.mark.skipif(missing_axe() is not None, reason=str(missing_axe()))


class Page:
    """The explorer's page in a browser: what people do with it, and what they see."""

    def __init__(self, browser: Browser, folder: Path) -> None:
        self.browser, self.folder = browser, folder
        self.read = browser.evaluate

    def open(self, files: dict[str, Any], name: str, hash_: str = "") -> None:
        folder = self.folder / name
        if not folder.exists():
            made.write_page(folder, files)
        self.url = (folder / "explore.html").as_uri()
        self.browser.errors.clear()
        self.browser.open(self.url + hash_)
        self.settle()

    def settle(self) -> None:
        self.browser.until("espo.choice && (espo.settled === espo.choice)")

    def go(self, hash_: str) -> None:
        self.read(f"location.hash = {json.dumps(hash_)}")
        self.browser.until(f"decodeURI(location.hash) === {json.dumps(hash_)}")
        time.sleep(0.05)
        self.settle()

    def text(self, selector: str) -> str:
        return str(self.read(f"document.querySelector({json.dumps(selector)})?.textContent ?? ''"))

    def select(self, name: str, value: str) -> None:
        field = f"document.querySelector('#choose-{name}')"
        self.read(f"{field}.value = {json.dumps(value)}; {field}.dispatchEvent(new Event('change'))")
        time.sleep(0.05)
        self.settle()

    def click_cell(self, j: int, i: int) -> None:
        self.click_at(f"espo.map.geometry.centre({j}, {i})")

    def click_at(self, point: str) -> None:
        x, y = self.read(
            "(() => { const {k, x, y} = espo.map.view, box = document.querySelector('#canvas').getBoundingClientRect();"
            f"const at = {point}; return [box.x + at[0] * k + x, box.y + at[1] * k + y]; }})()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.browser.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        time.sleep(0.05)
        self.settle()

    def key(self, *names: str, modifiers: int = 0) -> None:
        for name in names:
            text = {"text": "\r"} if name == "Enter" else {"text": name} if len(name) == 1 else {}
            codes = {"windowsVirtualKeyCode": {"Enter": 13, "Tab": 9}.get(name, 0)}
            self.browser.call("Input.dispatchKeyEvent", type="keyDown", key=name, modifiers=modifiers, **text, **codes)
            self.browser.call("Input.dispatchKeyEvent", type="keyUp", key=name, modifiers=modifiers, **codes)

    def download(self, label: str, folder: Path) -> Path:
        folder.mkdir()
        self.browser.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
        self.read(
            f"[...document.querySelectorAll('.downloads button')].find(one => one.textContent === '{label}').click()"
        )
        deadline = time.monotonic() + 20
        while not (found := [one for one in folder.iterdir() if one.suffix in (".csv", ".png", ".svg")]):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return found[0]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield Page(browser, tmp_path_factory.mktemp("pages"))


@pytest.fixture(scope="module")
def files() -> dict[str, Any]:
    return made.ensemble()


@pytest.fixture
def opened(page: Page, files: dict[str, Any]) -> Page:
    page.open(files, "ensemble")
    return page


def shown(value: float, digits: int = 1) -> str:
    return f"{np.round(value / 0.01) * 0.01:+.{digits}f}".replace("-", "−")


def test_the_first_map_is_there_soon_and_nothing_is_loaded_from_elsewhere(opened: Page) -> None:
    # 0.3 s on an idle machine.
    assert opened.read("performance.now()") < 20_000
    assert opened.read("espo.map.scene.count") == 10_000
    folder = opened.url.removesuffix("explore.html")
    loaded = opened.read("[...document.querySelectorAll('script, link')].map(one => one.src ?? one.href)")
    assert len(loaded) >= 14
    assert all(one.startswith((folder, "data:")) for one in loaded)
    assert opened.browser.errors == []
    policy = opened.read("document.querySelector('meta[http-equiv]').content")
    assert "unsafe" not in policy
    assert "http" not in policy


def test_from_a_web_server_the_page_asks_this_server_alone(page: Page, opened: Page) -> None:
    handler = partial(Quiet, directory=page.folder / "ensemble")
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        origin = f"http://127.0.0.1:{server.server_port}/"
        page.browser.open(f"{origin}explore.html#i=tg_mean_YS&at=55,52")
        page.settle()
        loaded = page.read("performance.getEntriesByType('resource').map(one => one.name)")
        server.shutdown()
    assert f"{origin}explore/data/plumes/tas/5_5.js" in loaded
    assert all(one.startswith((origin, "data:")) for one in loaded)
    assert page.browser.errors == []


def test_a_canvas_shows_each_class_colour_of_the_map(opened: Page) -> None:
    point = "(([x, y]) => [...document.querySelector('#canvas').getContext('2d').getImageData(x, y, 1, 1).data])"
    opened.read("new Promise(requestAnimationFrame)")
    for j, i in ((80, 10), (60, 60), (45, 90)):
        drawn = opened.read(f"{point}(espo.map.geometry.centre({j}, {i}))")
        own = opened.read(f"espo.rgb(espo.map.scene.colours[espo.map.scene.classes[{j * 100 + i}]])")
        assert drawn[:3] == own


@pytest.mark.parametrize(("j", "i"), [(55, 52), (50, 59), (0, 5)])
def test_a_click_on_a_cell_shows_the_numbers_of_the_data(opened: Page, files: dict[str, Any], j: int, i: int) -> None:
    opened.go("#i=tg_mean_YS&o=change&s=ssp585&h=2041-2070&p=DJF&t=p90")
    opened.click_cell(j, i)
    values = 2 * made.changes((100, 100))
    assert opened.text("#place-value") == f"{shown(values[1, 1, 2, j, i])} K"
    assert f"at={j},{i}" in opened.read("location.hash")
    rows = opened.read(
        "[...document.querySelectorAll('#place tbody tr')]"
        ".map(row => [...row.querySelectorAll('.number')].map(one => one.textContent))"
    )
    assert rows[4] == [shown(one) for one in values[1, 1, :, j, i]]
    assert len(rows) == 9
    tile = made.plume(100, (j // 10) * 10 + i // 10)
    place = (j % 10) * 10 + i % 10
    packed = np.frombuffer(base64.b64decode(tile["scenarios"]["ssp585"]["median"]["data"]), "<i2")
    median = packed.reshape(100, len(made.PARTS), -1)[place, 1] * 0.01
    np.testing.assert_allclose(opened.read("espo.chart.data.at(-1)"), median, atol=1e-9)
    # Low, high, five members, the other scenario's median, the reference, the median.
    assert opened.read("espo.chart.series.length - 1") == 10


def test_choices_lead_to_other_maps_and_the_back_button_to_the_one_before(opened: Page) -> None:
    for name, value in (("s", "ssp585"), ("h", "2021-2050"), ("p", "JJA"), ("t", "p10"), ("o", "value")):
        opened.select(name, value)
    place = 60 * 100 + 60
    values = made.changes((100, 100)) * 2 + 8
    assert opened.read(f"espo.map.scene.valueAt({place})") == pytest.approx(values[0, 2, 0, 60, 60])
    before = opened.read("location.hash")
    assert before == "#i=tg_mean_YS&o=value&s=ssp585&h=2021-2050&p=JJA&t=p10"
    opened.select("i", "prcptot_YS")
    assert opened.read(f"espo.map.scene.valueAt({place})") == pytest.approx(
        -4 * made.changes((100, 100))[0, 2, 0, 60, 60]
    )
    opened.read("history.back()")
    opened.browser.until(f"location.hash === {json.dumps(before)}")
    opened.browser.until("document.querySelector('#choose-i').value === 'tg_mean_YS'")
    opened.open({}, "ensemble", before + "&at=55,52")
    assert opened.read("[...document.querySelectorAll('select')].map(one => one.value)") == [
        "tg_mean_YS", "value", "ssp585", "2021-2050", "JJA", "p10", ""
    ]  # fmt: skip
    assert opened.read("espo.choice.place.id") == [55, 52]


def test_colours_of_quotients_lie_around_1(opened: Page) -> None:
    stops = json.dumps(made.BROWN_GREEN)
    scale = opened.read(f"espo.scaleOf([0.5, 2], {stops}, true)")
    assert scale["bounds"][5] == 1
    classes = opened.read(f"[NaN, 0.4, 0.99, 1.01, 9].map(espo.scaleOf([0.5, 2], {stops}, true).classOf)")
    assert classes == [255, 0, 5, 6, 11]
    assert [scale["colours"][one] for one in (0, 11)] == [made.BROWN_GREEN[0], made.BROWN_GREEN[8]]


def test_a_hash_that_names_nothing_shows_the_first_map(opened: Page) -> None:
    opened.go("#i=__proto__&s=<img>&h=&at=999,1&r=constructor")
    assert opened.read("[espo.choice.indicator.id, espo.choice.scenario.id, espo.choice.place]") == [
        "tg_mean_YS",
        "ssp245",
        None,
    ]


def test_the_keyboard_alone_chooses_a_map_and_a_place(opened: Page) -> None:
    opened.read("document.querySelector('#choose-s').focus()")
    opened.key("ArrowDown")
    opened.browser.until("espo.choice.scenario.id === 'ssp585'")
    opened.settle()
    assert opened.read("document.activeElement.id") == "choose-s"
    for _ in range(20):
        if opened.read("document.activeElement.id") == "canvas":
            break
        opened.key("Tab")
    opened.key("ArrowUp", "ArrowUp", "ArrowRight", "ArrowRight", "ArrowRight")
    # The first arrow sets the cursor into the middle.
    value = made.changes((100, 100))[2, 0, 1, 51, 53] * 2
    assert f"{shown(value)} K" in opened.text("#said")
    opened.key("Enter")
    opened.browser.until("espo.choice.place && espo.settled === espo.choice")
    assert opened.read("espo.choice.place.id") == [51, 53]
    before = opened.read("espo.map.view.k")
    opened.key("+", "+")
    assert opened.read("espo.map.view.k") > 2 * before
    opened.key("ArrowLeft", modifiers=8)
    opened.key("0")
    assert opened.read("[espo.map.view.k, espo.map.view.x]") == [1, 0]
    assert opened.browser.errors == []


def test_two_fingers_zoom_one_pans_and_a_tap_chooses(opened: Page) -> None:
    def touch(kind: str, *points: tuple[float, float]) -> None:
        touches = [{"x": x, "y": y, "id": number} for number, (x, y) in enumerate(points)]
        opened.browser.call("Input.dispatchTouchEvent", type=kind, touchPoints=touches)

    opened.browser.call("Emulation.setTouchEmulationEnabled", enabled=True, maxTouchPoints=2)
    touch("touchStart", (600, 400))
    touch("touchStart", (600, 400), (700, 400))
    for apart in (10, 30, 50):
        touch("touchMove", (600 - apart, 400), (700 + apart, 400))
    touch("touchEnd")
    assert opened.read("espo.map.view.k") == pytest.approx(2)
    before = opened.read("espo.map.view.y")
    touch("touchStart", (600, 400))
    touch("touchMove", (600, 380))
    touch("touchMove", (600, 370))
    touch("touchEnd")
    assert opened.read("espo.map.view.y") == pytest.approx(before - 30)
    assert opened.read("espo.choice.place") is None
    touch("touchStart", (650, 400))
    touch("touchEnd")
    opened.browser.until("espo.choice.place?.kind === 'cell'")
    opened.browser.call("Emulation.setTouchEmulationEnabled", enabled=False)


def test_regions_and_stations_are_chosen_by_name_and_hostile_names_are_inert(opened: Page, tmp_path: Path) -> None:
    opened.select("place", "region 1")
    assert "r=odd" in opened.read("location.hash")
    assert opened.text("#place h2 bdi") == made.HOSTILE
    assert opened.read("espo.chart.series.length - 1") == 10
    assert len(opened.read("[...document.querySelectorAll('#place tbody tr')]")) == 6
    opened.select("place", "station 0")
    assert opened.text("#place-title") == "Airport"
    opened.select("i", "prcptot_YS")
    assert opened.text("#map-title").count(made.HOSTILE.replace("\u202e", "")) == 1
    assert opened.read("window.hostile ?? 0") == 0
    assert opened.read("document.querySelectorAll('img').length") == 0
    assert opened.read("[...document.querySelectorAll('a')].map(one => one.getAttribute('href'))") == ["report.html"]
    svg = json.dumps(opened.download("SVG", tmp_path / "svg").read_text("utf-8"))
    drawn = f"new DOMParser().parseFromString({svg}, 'image/svg+xml')"
    assert made.HOSTILE.replace("\u202e", "") in opened.read(f"{drawn}.documentElement.textContent")
    assert opened.read(f"{drawn}.querySelectorAll('parsererror, img').length") == 0


def test_nothing_is_serious_to_axe_in_either_scheme_nor_wider_than_400_pixels(opened: Page) -> None:
    opened.go("#i=tg_mean_YS&at=55,52")
    try:
        assert opened.browser.findings(dark=False) == []
        assert opened.read("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        size = {"width": 400, "height": 800, "deviceScaleFactor": 2, "mobile": True}
        opened.browser.call("Emulation.setDeviceMetricsOverride", **size)
        opened.browser.until("document.querySelector('#canvas').width <= 800")
        assert opened.read("document.documentElement.scrollWidth") <= 400
        assert opened.browser.findings(dark=True) == []
        assert opened.read("getComputedStyle(document.body).backgroundColor") == "rgb(20, 24, 28)"
        opened.click_cell(50, 59)
        assert opened.read("espo.choice.place.id") == [50, 59]
    finally:
        opened.browser.call("Emulation.clearDeviceMetricsOverride")
        opened.browser.call("Emulation.setEmulatedMedia", features=[])


def test_files_to_take_away_have_the_numbers(opened: Page, tmp_path: Path) -> None:
    opened.go("#i=tg_mean_YS&s=ssp585&h=2041-2070&p=DJF&at=55,52")
    rows = list(csv.reader(opened.download("CSV", tmp_path / "map").open(encoding="utf-8")))
    assert rows[0][:5] == ["latitude", "longitude", "p10 (K)", "p50 (K)", "p90 (K)"]
    assert len(rows) == 10_000  # a head, and no first cell
    (row,) = (one for one in rows if one[:2] == ["53.1", "-67.4"])
    np.testing.assert_allclose([float(one) for one in row[2:5]], 2 * made.changes((100, 100))[1, 1, :, 55, 52])
    assert sum("do not use" in row[-1] for row in rows) == 25
    series = list(csv.reader(opened.download("Series (CSV)", tmp_path / "series").open(encoding="utf-8")))
    assert series[0] == ["scenario", "year", "part", "series", "value"]
    at = made.YEARS.index(2050)
    found = {row[3]: float(row[4]) for row in series if row[:3] == ["ssp585", "2050", "DJF"]}
    assert found["p50"] == pytest.approx(opened.read(f"espo.chart.data.at(-1)[{at}]"))
    assert len(found) == 3 + made.MEMBERS
    svg = opened.download("SVG", tmp_path / "svg").read_text("utf-8")
    assert (
        opened.read(f"new DOMParser().parseFromString({json.dumps(svg)}, 'image/svg+xml').querySelector('parsererror')")
        is None
    )
    assert all(one in svg for one in ("Mean temperature", "2041-2070", "url(#hatch0)", "url(#hatch1)"))
    png = opened.download("PNG", tmp_path / "png").read_bytes()
    assert png.startswith(b"\x89PNG")
    assert len(png) > 20_000


def test_a_missing_file_is_named(opened: Page, files: dict[str, Any], page: Page) -> None:
    opened.go("#i=tg_mean_YS&at=95,95")
    assert "explore/data/plumes/tas/9_9.js" in opened.text("#alert")
    assert opened.text("#place-value") != ""
    page.open({key: one for key, one in files.items() if key != "maps/1"}, "incomplete", "#s=ssp585")
    assert "explore/data/maps/1.js" in page.text("#alert")
    assert page.read("espo.map.scene") is None
    page.select("s", "ssp245")
    assert page.text("#alert") == ""
    assert page.read("espo.map.scene.count") == 10_000


def few(files: dict[str, Any]) -> dict[str, Any]:
    """Return a copy with one map, and one tile beside the series of regions and stations."""
    kept = ("index", "lines", "flags", "maps/0", "plumes/tas/5_5", "plumes/tas/regions", "plumes/tas/stations")
    copied = {key: json.loads(json.dumps(files[key])) for key in kept}
    copied["index"]["maps"] = copied["index"]["maps"][:1]
    return copied


def single(files: dict[str, Any]) -> None:
    """One simulation: its own values, no percentiles, no robustness, no members."""
    for entry in files["index"]["maps"]:
        entry |= {"statistics": ["value"], "members": 1}
        files[entry["key"]] = {"values": made.packed(made.changes((100, 100))[:, :, 1:2]), "robust": None}
    for key in (key for key in files if key.startswith("plumes")):
        for one in files[key]["scenarios"].values():
            one |= {"low": None, "high": None, "members": None, "names": []}


def test_a_single_simulation_shows_its_own_values(page: Page, files: dict[str, Any]) -> None:
    files = few(files)
    single(files)
    page.open(files, "single", "#i=tg_mean_YS&at=55,52")
    assert page.read("document.querySelector('#choose-t')") is None
    assert page.text("#place-value") == f"{shown(made.changes((100, 100))[2, 0, 1, 55, 52])} K"
    assert page.read("espo.chart.series.length - 1") == 3
    assert "p10" not in page.browser.text()
    assert page.browser.errors == []


def test_a_rotated_grid_is_drawn_by_its_corners(page: Page, files: dict[str, Any]) -> None:
    j, i = np.meshgrid(np.arange(101.0), np.arange(101.0), indexing="ij")
    lat, lon = 45 + 0.15 * j + 0.04 * i, -75 + 0.2 * i - 0.06 * j
    files = few(files)
    grid = {
        "shape": [100, 100],
        "corner_lat": made.packed(lat, 0.002, 45.0),
        "corner_lon": made.packed(lon, 0.002, -75.0),
    }
    files["index"] |= {"grid": grid}
    page.open(files, "rotated")
    page.click_cell(55, 52)
    assert page.read("espo.choice.place.id") == [55, 52]
    middle = lat[55:57, 52:54].mean(), lon[55:57, 52:54].mean()
    assert page.text("#place-title") == f"{middle[0]:.2f}° N, {-middle[1]:.2f}° W"


def stations_only(files: dict[str, Any]) -> None:
    index = files["index"]
    index |= {"grid": None, "regions": [], "flags": False}
    index["stations"] = [
        {"id": f"s{one}", "name": f"Station {one}", "lon": -75 + one, "lat": 46 + one} for one in range(3)
    ]
    for plumes in index["plumes"].values():
        plumes |= {"tiles": None, "regions": None, "stations": "plumes/stations"}
    files["plumes/stations"] = {"ids": ["s0", "s1", "s2"], **made.plume(3)}
    for entry in index["maps"]:
        files[entry["key"]] = {"values": made.packed(made.changes((100, 100))[:, :, :, 1, 1:4]), "robust": None}


def test_stations_only_are_points(page: Page, files: dict[str, Any]) -> None:
    files = few(files)
    stations_only(files)
    page.open(files, "stations")
    page.click_at("espo.map.geometry.stations[1]")
    assert page.text("#place-title") == "Station 1"
    assert page.text("#place-value") == f"{shown(made.changes((100, 100))[2, 0, 1, 1, 2])} K"
    page.select("place", "station 2")
    assert page.text("#place-title") == "Station 2"
    assert page.browser.errors == []


def test_with_series_of_regions_only_a_click_chooses_the_region(page: Page, files: dict[str, Any]) -> None:
    files = few(files)
    files["index"] |= {"stations": []}
    files["index"]["plumes"]["tg_mean_YS"] |= {"tiles": None, "stations": None}
    page.open(files, "regions")
    page.click_at("espo.map.geometry.projection([-70, 46.5])")
    assert page.text("#place-title") == "South shore"
    series = files["plumes/tas/regions"]["scenarios"]["ssp245"]["members"]
    members = np.frombuffer(base64.b64decode(series["data"]), "<i2").reshape(series["shape"])[:, 0, 0] * 0.01
    years = np.asarray(made.YEARS)
    means = [members[:, (years >= first) & (years < first + 30)].mean(axis=1) for first in (1991, 2071)]
    assert page.text("#place-value") == f"{shown(np.median(means[1] - means[0]))} K"


def test_a_large_grid_moves_as_an_image_and_is_drawn_anew(page: Page, files: dict[str, Any]) -> None:
    shape = (150, 200)
    index = few(files)["index"]
    index |= {"regions": [], "stations": [], "flags": False}
    index["grid"] = {
        "shape": shape,
        "lat_edges": np.linspace(42, 62, 151).tolist(),
        "lon_edges": np.linspace(-80, -56, 201).tolist(),
    }
    index["maps"] = [index["maps"][0] | {"along": made.ALONG[:1], "parts": ["year"]}]
    values = made.packed(made.changes(shape)[:1, :1])
    page.open({"index": index, "lines": made.LINES, "maps/0": {"values": values, "robust": None}}, "large")
    for _ in range(5):
        page.browser.click("#zoom-in")
    page.click_cell(75, 100)
    assert page.text("#place-value") == f"{shown(made.changes(shape)[0, 0, 1, 75, 100])} K"
