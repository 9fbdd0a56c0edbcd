"""The demo in small, for tests: a reference of 12 x 10 cells, and simulations of fewer cells.

`small_demo.yml` is its configuration, to be merged over the demo's.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from espo_luigi.demo import ensure_demo, make
from espo_luigi.demo.sources import Source

SMALL_CONFIG = Path(__file__).parent / "small_demo.yml"
LAND = (
    "########..",
    "#######...",
    "######....",
    "######....",
    "#######...",
    "#######...",
    "########..",
    "#########.",
    "##########",
    "##########",
    "#########.",
    "########..",
)


# Latitudes and longitudes of the simulations: the first, the step and the number.
GRIDS = {
    "NoLeap": ((37.67, 2.79, 7), (284.0625, 2.8125, 9)),
    "360Day": ((51.875, -1.25, 9), (-73.125, 1.875, 8)),
}


def small_reference() -> Source:
    """The demo's reference on the small land."""
    return replace(make.REFERENCE, land=LAND, lats=steps(45.125, 0.25, 12), lons=steps(-66.875, 0.25, 10))


def small_simulation(source: Source) -> Source:
    """A simulation of the demo on a small grid."""
    lats, lons = GRIDS[source.name.partition("-")[2]]
    return replace(source, lats=steps(*lats), lons=steps(*lons))


def steps(first: float, step: float, count: int) -> tuple[float, ...]:
    return tuple(round(first + step * index, 6) for index in range(count))


def ensure_small_demo(folder: Path, **section: object) -> Path:
    """Make the demo's raw data on the small grids in `folder`; processes that find them there use them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(make, "REFERENCE", small_reference())
        patch.setattr(make, "SIMULATIONS", tuple(map(small_simulation, make.SIMULATIONS)))
        return ensure_demo({"folder": str(folder), "seed": 1, **section})
