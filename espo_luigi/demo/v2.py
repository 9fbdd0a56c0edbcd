"""The invented datasets of ESPO v2's example: a rotated reference, pools of several members, a regional model.

They have the peculiarities that v2 has to cope with. In the pool of three, the first member has an impossible value,
the second's latitudes differ by round-off, and only the third has `sftlf`. The regional model's files lack 2015-01-01,
and its domain covers a part of the reference.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from espo_luigi.demo.sources import SIMULATIONS, Source, steps
from espo_luigi.demo.weather import Climate

_EXPERIMENTS = {"historical": (1951, 2014), "ssp370": (2015, 2100)}
# The Gaspé Peninsula between the St. Lawrence and New Brunswick, after Natural Earth's coast, on the grid of CaSR: 186
# cells of land (#), sea with data (+), and sea without.
_LAND = (
    "...+++++++++++.....",
    ".+++#########+.....",
    "++###########++....",
    "+#############+....",
    "##############+....",
    "##############+....",
    "##############+....",
    "#############++....",
    "#############+.....",
    "############++.....",
    "############+......",
    "###########++.+++..",
    "##########+++++#+..",
    "#####+++++++#++++..",
    "###++++++.+####+...",
    "########+++####+...",
    "#########+#####+...",
)
V2_REFERENCE = Source(
    name="Demo-Rotated",
    climate=Climate(warming_kelvin=4.0, cell_degrees=0.1),
    lats=steps(-7.0, 0.1, len(_LAND)),
    lons=steps(16.9, 0.1, len(_LAND[0])),
    calendar="standard",
    experiments={"reference": (1991, 2020)},
    land=_LAND,
    pole=(31.7583, 87.597),
    version="v32",
    fixed=("mask", "orog"),
    is_compact=True,
)
_ENSEMBLE = replace(
    SIMULATIONS[0],
    name="Demo-Ensemble",
    lats=steps(44.64, 2.79, 4),
    lons=steps(286.875, 2.8125, 5),
    experiments=_EXPERIMENTS,
    land_percent=((97, 88, 48, 57, 24), (100, 90, 95, 49, 10), (100, 100, 78, 64, 59), (100, 100, 100, 100, 100)),
    is_compact=True,
)
_SINGLE = replace(
    SIMULATIONS[1],
    name="Demo-Single",
    lats=steps(51.0, -2.0, 4),
    lons=steps(-71.25, 2.5, 5),
    experiments=_EXPERIMENTS,
    land_percent=((100, 100, 91, 84, 91), (99, 78, 56, 27, 4), (94, 97, 96, 24, 17), (100, 86, 61, 65, 22)),
    fixed=("sftlf",),
    is_compact=True,
)
_REGIONAL = Source(
    name="Demo-Regional",
    climate=Climate(
        mean_kelvin=278.0, range_kelvin=8.5, warming_kelvin=5.5, wet_fraction=0.6, rain_mm_per_day=5.0, cell_degrees=0.3
    ),
    lats=steps(-0.2, 0.3, 6),
    lons=steps(0.9, 0.3, 6),
    calendar="noleap",
    experiments=_EXPERIMENTS,
    member="v1-r1",
    pole=(42.5, 113.0),
    driver=("Demo-Ensemble", "r1i1p1f1"),
    domain="GSL-33",
    land_percent=(
        (100, 85, 8, 0, 0, 0),
        (90, 99, 38, 0, 0, 0),
        (17, 24, 20, 3, 0, 0),
        (86, 90, 24, 0, 0, 0),
        (100, 100, 95, 35, 0, 0),
        (100, 100, 100, 44, 0, 0),
    ),
    lacks_new_year=True,
    is_compact=True,
)
V2_SIMULATIONS = (
    replace(_ENSEMBLE, hot_cell=(1, 3)),
    # A model's files often hold coordinates that were in single precision once.
    replace(_ENSEMBLE, member="r2i1p1f1", lats=tuple(float(np.float32(lat)) for lat in _ENSEMBLE.lats)),
    replace(_ENSEMBLE, member="r3i1p1f1", fixed=("sftlf",)),
    _SINGLE,
    replace(_REGIONAL, fixed=("sftlf",)),
    replace(_REGIONAL, driver=("Demo-Ensemble", "r2i1p1f1")),
)
