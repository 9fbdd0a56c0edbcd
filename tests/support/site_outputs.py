"""Keeps what the tutorial's blocks print, and figures of the report, for the site (docs/hooks.py)."""

import base64
import html
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

# The properties whose maps are shown; of all other kinds of figures, the first.
_MAPS = ("mean_tasmax", "q99_pr", "max_dry_spell")
_FIGURE = re.compile(
    r"<h(?P<level>[23])>(?P<section>.*?)</h[23]>|"
    r'<img src="data:image/png;base64,(?P<png>[^"]+)"[^>]* alt="(?P<caption>[^"]*)"'
)


def asked_for() -> Path | None:
    """The folder that the environment's `ESPO_SITE_OUTPUTS` names."""
    named = os.environ.get("ESPO_SITE_OUTPUTS")
    return Path(named) if named else None


def keep(folder: Path, printed: Mapping[str, str], readers: Path, run: Path) -> None:
    """Write what each block printed, and draw the figures of the report of `readers`, a folder with a luigi.cfg.

    The folder of the run becomes the reader's `espo-demo`, and what lies in `readers` loses the path of its folder.
    """
    names = {f"{readers}/": "", f"{run}/": "espo-demo/", str(readers): "demo", str(run): "espo-demo"}
    shown = re.compile("|".join(map(re.escape, names)))
    folder.mkdir(parents=True, exist_ok=True)
    outputs = [
        {"block": block, "output": shown.sub(lambda found: names[found[0]], text)} for block, text in printed.items()
    ]
    (folder / "tutorial.json").write_text(json.dumps(outputs, indent=1))
    program = str(Path(sys.executable).parent / "espo")
    subprocess.run([program, "report", "--out", "site.html"], cwd=readers, check=True, capture_output=True)
    keep_figures(folder, readers / "site.html")


def keep_figures(folder: Path, page: Path) -> None:
    """Add figures of a report to those that are kept, for the kinds of which there is none yet."""
    (folder / "report-figures").mkdir(exist_ok=True)
    listed = folder / "figures.json"
    kept = json.loads(listed.read_text()) if listed.exists() else []
    known = {figure["file"] for figure in kept}
    more = [figure for figure in figures_of(page, folder / "report-figures") if figure["file"] not in known]
    listed.write_text(json.dumps(sorted(kept + more, key=lambda figure: figure["section"]), indent=1))


def figures_of(page: Path, folder: Path) -> Iterator[dict[str, str]]:
    """Copy a figure of each kind into `folder`; yield their names, captions and sections, in the report's order."""
    files = {path.read_bytes(): path.name for path in page.with_name(f"{page.stem}-figures").glob("*.png")}
    part, section, kinds = "", "", set()
    for found in _FIGURE.finditer(page.read_text()):
        if found["png"] is None:
            section = html.unescape(found["section"])
            part = section[:3] if found["level"] == "2" else part  # its number
            section = section if found["level"] == "2" else f"{part}{section}"
            continue
        png = base64.b64decode(found["png"])
        kind, about = (*files[png].split("+"), "")[:2]
        key = (kind, about) if kind == "map" else kind
        if key not in kinds and (kind != "map" or about in _MAPS):
            kinds.add(key)
            name = f"{kind}-{about}.png" if kind == "map" else f"{kind.removesuffix('.png')}.png"
            (folder / name).write_bytes(png)
            yield {"file": name, "caption": html.unescape(found["caption"]), "section": section}
