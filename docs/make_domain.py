"""Make docs/set-up/domain.svg, the nested boxes of the page's example: ``python docs/make_domain.py``."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import yaml

from espo_luigi.report.maps import map_lines

PAGE = Path(__file__).parent / "set-up" / "domain.md"
# Degrees of the map, pixels of a degree of longitude, and the cells of CanESM5.
WEST, EAST, SOUTH, NORTH = -1.0, 23.0, 38.4, 53.6
SCALE = 30
CELL = 2.8
Box = tuple[tuple[float, float], tuple[float, float]]


def drawing() -> str:
    """Return the figure as SVG, with a ground of its own: readable on a dark page, too."""
    width, height = x(EAST), y(SOUTH)
    boxes = "\n".join(framed(*box) for box in nested(example()))
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" font-family="sans-serif">
<rect width="100%" height="100%" rx="8" fill="#fbfaf5"/>
<path d="{coast()}" fill="none" stroke="#b0b8c0"/>
{boxes}
</svg>
"""


def example() -> dict[str, Any]:
    """Return the configuration that the page shows."""
    (text,) = re.findall(r"^```yaml\n(project.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    content: dict[str, Any] = yaml.safe_load(text)
    return content


def nested(content: dict[str, Any]) -> list[tuple[str, Box, str]]:
    """Return label, box and colour of each box, from outside to inside."""
    domain = content["domain"]
    (west, east), (south, north) = bounds = (tuple(domain["lon_bnds"]), tuple(domain["lat_bnds"]))
    more = domain["tile_buffer"] * CELL
    cut = ((west - more, east + more), (south - more, north + more))
    found = [(f"cut out of a simulation: domain + {domain['tile_buffer']} cells of {CELL}°", cut, "#8a5a00")]
    steps = {"reg1": "1°", "reg2": "0.5°"}
    for name, grid in content["regrid"]["regrid_dataset"]["intermediate_grids"].items():
        g = grid["cf_grid_2d"]
        box = ((g["lon0_b"], g["lon1_b"]), (g["lat0_b"], g["lat1_b"]))
        found.append((f"{name}: the grid of {steps[name]}", box, "#1f5fa8"))
    found.append((f"domain: {domain['name']}", bounds, "#b3261e"))
    regions = {name: box for name, box in content["custom"]["regions"].items() if box}
    inner = [(name, (tuple(box["lon_bnds"]), tuple(box["lat_bnds"]))) for name, box in regions.items()]
    return found + [(f"region: {name}", box, "#b3261e") for name, box in inner]


def framed(label: str, box: Box, colour: str) -> str:
    """Return a rectangle with its label inside, at its top; a region's is filled."""
    (west, east), (south, north) = box
    fill = f'fill="{colour}" fill-opacity="0.12"' if label.startswith("region") else 'fill="none"'
    down = 34 if label.endswith("north") else 16
    return (
        f'<rect x="{x(west):.1f}" y="{y(north):.1f}" width="{x(east) - x(west):.1f}" '
        f'height="{y(south) - y(north):.1f}" {fill} stroke="{colour}" stroke-width="2"/>\n'
        f'<text x="{x(west) + 7:.1f}" y="{y(north) + down:.1f}" font-size="14" fill="{colour}">{label}</text>'
    )


def coast() -> str:
    """Return the pieces of coast inside of the map, as a path."""
    lats, lons = np.arange(SOUTH, NORTH), np.arange(WEST, EAST)
    field = xr.DataArray(np.zeros((lats.size, lons.size)), {"lat": lats, "lon": lons}, ("lat", "lon"))
    return "".join(
        f"M{x(a[0]):.0f} {y(a[1]):.0f}L{x(b[0]):.0f} {y(b[1]):.0f}"
        for a, b in map_lines(field)["coast"]
        if (round(x(a[0])), round(y(a[1]))) != (round(x(b[0])), round(y(b[1])))
    )


def x(lon: float) -> float:
    return (lon - WEST) * SCALE


def y(lat: float) -> float:
    return (NORTH - lat) * SCALE / math.cos(math.radians(46))


if __name__ == "__main__":
    PAGE.with_suffix(".svg").write_text(drawing())
