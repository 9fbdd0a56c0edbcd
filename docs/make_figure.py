"""Make docs/demo.png, docs/start/tutorial.png and docs/check/report-*.webp: ``python docs/make_figure.py DEMO``.

DEMO is the folder of a finished run of the demo, `espo-demo`. The tutorial's own code draws its figure. The pictures of
the explorer and the report need a browser, which `tests/support/browser.py` drives.
"""

from __future__ import annotations

import base64
import io
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from PIL import Image

HERE = Path(__file__).parent
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
    """Draw the tutorial's figure, and photograph the explorer and the report."""
    photograph_explorer(demo / "final" / "report" / "explore.html")
    draw_first_run(demo)
    photograph_report(demo / "final" / "report" / "report.html")


def photograph_explorer(page: Path) -> None:
    """Photograph the explorer: a map of a change, and the years of a cell."""
    sys.path.insert(0, str(HERE.parent / "tests" / "support"))
    from browser import Browser

    with tempfile.TemporaryDirectory() as folder, Browser(Path(folder)) as browser:
        browser.call("Emulation.setDeviceMetricsOverride", width=1280, height=760, deviceScaleFactor=1, mobile=False)
        browser.call("Emulation.setScrollbarsHidden", hidden=True)
        browser.open(f"{page.resolve().as_uri()}#i=tx_mean.YS-JAN&s=ssp585&h=2041-2070&at=10,20")
        browser.until("espo.choice && espo.settled === espo.choice")
        browser.evaluate("espo.load('lines').then(() => new Promise(done => setTimeout(done, 300))).then(() => 1)")
        taken = browser.call("Page.captureScreenshot")
    picture = Image.open(io.BytesIO(base64.b64decode(taken["data"]))).convert("RGB")
    picture.quantize(2 * COLOURS, dither=Image.Dither.NONE).save(HERE / "demo.png", optimize=True)


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
