"""Make espo_luigi/report/coast.npz: ``python docs/make_coast.py land-50m.json``.

The file is `package/land-50m.json` of the npm package world-atlas 2.0.2 (``npm pack world-atlas@2.0.2``): Natural
Earth's land, 1:50 million, version 4.1.0, as TopoJSON. Made with Natural Earth, which is in the public domain.
"""

import json
import sys
from pathlib import Path

import numpy as np

STEPS_OF_A_DEGREE = 100
OUT = Path(__file__).parent.parent / "espo_luigi" / "report" / "coast.npz"


def main(source: Path) -> None:
    lines = [part for points in read_lines(source) for part in without_edges(points) if len(part) > 1]
    points = np.concatenate(lines).astype(np.int16)
    firsts = np.cumsum([0, *map(len, lines)])[:-1]
    steps = np.diff(points, axis=0, prepend=np.zeros((1, 2), np.int16))
    np.savez_compressed(OUT, steps=steps.T.copy(), firsts=firsts.astype(np.int32))


def read_lines(source: Path) -> list[np.ndarray]:
    """Return the lines of a TopoJSON file, in steps of 1/100 degree, without points that come twice in a row."""
    topology = json.loads(source.read_text())
    scale, translate = (np.array(topology["transform"][name]) for name in ("scale", "translate"))
    found = []
    for arc in topology["arcs"]:
        points = np.round((np.cumsum(arc, axis=0) * scale + translate) * STEPS_OF_A_DEGREE).astype(int)
        found.append(points[np.append(True, (np.diff(points, axis=0) != 0).any(axis=1))])
    return found


def without_edges(points: np.ndarray) -> list[np.ndarray]:
    """Cut a line where it follows the edges of the map of the world: the date line and the south pole."""
    longitudes, latitudes = np.abs(points).T
    at_edge = (longitudes >= 180 * STEPS_OF_A_DEGREE - 1) | (latitudes >= 90 * STEPS_OF_A_DEGREE - 1)
    cuts = np.flatnonzero(np.diff(at_edge.astype(int))) + 1
    pieces = zip(np.split(points, cuts), np.split(at_edge, cuts), strict=True)
    return [part for part, edge in pieces if not edge[0]]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
