"""Make docs/demo.png, docs/start/tutorial.png and docs/check/report-*.webp: ``python docs/make_figure.py DEMO``.

DEMO is the folder of a finished run of the demo, `espo-demo`. The tutorial's own code draws its figure. The pictures of
the report need a browser, which `tests/support/browser.py` drives.
"""

from __future__ import annotations

import base64
import io
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import xarray as xr
from PIL import Image

from espo_luigi.report.maps import property_maps
from espo_luigi.science.variables import VARIABLES
from espo_luigi.store import open_store

HERE = Path(__file__).parent
CALIBRATION = slice("1991", "2020")
# Of each section of the report: the picture's name, and the elements from which and to which it shows the section.
SECTIONS = {
    "": ("summary", "figure", "figure"),  # the first screen
    "Improvement": ("improvement", "h3", "figure"),
    "Calibrated and not": ("calibrated", "figure", "figure"),
    "Maps": ("maps", "h3", "figure"),
    "Series and distributions": ("series", "h3", "figure"),
    "Is the climate-change signal kept?": ("change", "figure", "figure"),
    "By rank": ("ranks", "h3", "div:last-of-type"),
    "Jobs": ("run", "h3", "figure"),
}
PICTURE_WIDTH, COLOURS = 900, 96


def main(demo: Path) -> None:
    """Draw both figures, and photograph the report."""
    draw_opening(demo / "final")
    draw_first_run(demo)
    photograph_report(demo / "final" / "report" / "report.html")


def draw_opening(final: Path) -> None:
    """Draw January's tasmax: the reference, Demo-NoLeap before and after the adjustment, and their biases."""
    reference = on_map(final.glob("reference/*+noleap.zarr"))
    raw = on_map(final.glob("regridded/day+*Demo-NoLeap*.zarr.zip"))
    adjusted = on_map(final.glob("final/NAM/day+*Demo-NoLeap*.zarr.zip"))
    biases = [(one - reference).assign_attrs(units="K") for one in (raw, adjusted)]
    title = "Demo-NoLeap: mean daily maximum temperature of January, 1991-2020"
    property_maps(reference, raw, adjusted, *biases, title=title, known=VARIABLES["tasmax"]).savefig(
        HERE / "demo.png", dpi=110
    )


def on_map(paths: Iterable[Path]) -> xr.DataArray:
    """Return January's mean tasmax in °C of stores of cells or of maps, as one map."""
    parts = [january(path) for path in paths]
    whole = xr.combine_by_coords(
        [part.to_dataset(name="tasmax") for part in parts],
        data_vars="minimal",
        coords="minimal",
        compat="override",
        join="outer",
        combine_attrs="drop",
    ).tasmax
    return whole.assign_attrs(long_name="Mean daily maximum temperature", units="degC")


def january(path: Path) -> xr.DataArray:
    """Return the mean tasmax of January in °C, on a map."""
    tasmax = open_store(path).tasmax.sel(time=CALIBRATION)
    mean = tasmax.sel(time=tasmax.time.dt.month == 1).mean("time").load() - 273.15
    return mean.set_index(loc=["lat", "lon"]).unstack("loc") if "loc" in mean.dims else mean


def draw_first_run(demo: Path) -> None:
    """Run the tutorial's Python, in a folder with the demo, and keep its figure."""
    page = HERE / "start" / "tutorial.md"
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "espo-demo").symlink_to(demo.resolve())
        os.chdir(folder)
        exec("".join(blocks), {})
        shutil.copy("monthly.png", page.with_suffix(".png"))


def photograph_report(page: Path) -> None:
    """Photograph a part of each section of a report, as a browser shows it, without the machine's paths."""
    sys.path.insert(0, str(HERE.parent / "tests" / "support"))
    from browser import Browser

    text = page.read_text().replace(str(page.resolve().parents[3]), "/home/me/demo").replace(f"{HERE.parent}/", "")
    with tempfile.TemporaryDirectory() as folder, Browser(Path(folder) / "profile") as browser:
        (Path(folder) / "report.html").write_text(text)
        browser.call("Emulation.setDeviceMetricsOverride", width=1080, height=900, deviceScaleFactor=1, mobile=False)
        browser.call("Emulation.setScrollbarsHidden", hidden=True)
        browser.open((Path(folder) / "report.html").as_uri())
        browser.evaluate("document.querySelectorAll('section > details').forEach(fold => fold.open = true)")
        for title, (name, first, last) in SECTIONS.items():
            clip = browser.evaluate(
                f"""(() => {{
                    const titled = section => (section.querySelector("h3")?.innerText ?? "") === {title!r};
                    const section = [...document.querySelectorAll("section")].find(titled);
                    const box = selector => section.querySelector(selector).getBoundingClientRect();
                    const [all, top] = [section.getBoundingClientRect(), box({first!r}).top - 10];
                    return {{x: all.x - 10, y: top, width: all.width + 20, height: box({last!r}).bottom + 10 - top}};
                }})()"""
            )
            taken = browser.call("Page.captureScreenshot", clip=clip | {"scale": 1}, captureBeyondViewport=True)
            picture = Image.open(io.BytesIO(base64.b64decode(taken["data"]))).convert("RGB")
            size = (PICTURE_WIDTH, round(picture.height * PICTURE_WIDTH / picture.width))
            few = picture.resize(size, Image.Resampling.LANCZOS).quantize(COLOURS, dither=Image.Dither.NONE)
            few.convert("RGB").save(HERE / "check" / f"report-{name}.webp", lossless=True, method=4)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
