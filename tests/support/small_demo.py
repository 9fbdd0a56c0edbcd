"""The demo in small, for tests: the same simulations, and a reference of 12 x 10 cells.

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


def small_reference() -> Source:
    """The demo's reference on the small land."""
    lats, lons = ([first + 0.25 * step for step in range(count)] for first, count in ((45.125, 12), (-66.875, 10)))
    return replace(make.REFERENCE, land=LAND, lats=tuple(lats), lons=tuple(lons))


def ensure_small_demo(folder: Path, **section: object) -> Path:
    """Make the demo's raw data with the small land in `folder`; processes that find them there use them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(make, "REFERENCE", small_reference())
        return ensure_demo({"folder": str(folder), "seed": 1, **section})
