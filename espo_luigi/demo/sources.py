"""The invented datasets: climates, grids, calendars and years."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from espo_luigi.demo.weather import Axis, Climate

MEMBER = "r1i1p1f1"
INSTITUTION = "ESPO-DEMO"
REFERENCE_DOMAIN = "NAM"


@dataclass(frozen=True)
class Source:
    """An invented dataset: its name, its climate, its grid (degrees), its calendar, and where it has land.

    `land` has a row of letters for each latitude, the northernmost first: # is land, + is sea with data. Without it,
    all cells have data. With a `pole` (latitude and longitude of a rotated grid's north pole), `lats` and `lons` are
    those of the rotated grid. A regional simulation has a `driver`: the driving model and its member.
    """

    name: str
    climate: Climate
    lats: tuple[float, ...]
    lons: tuple[float, ...]
    calendar: str
    experiments: Mapping[str, tuple[int, int]]
    land: tuple[str, ...] = ()
    member: str = MEMBER
    pole: tuple[float, float] | None = None
    driver: tuple[str, str] | None = None
    domain: str = "global"
    """The domain of a simulation."""
    version: str = ""
    land_percent: tuple[tuple[int, ...], ...] = ()
    """The share of land of each cell, in the order of `lats`."""
    fixed: tuple[str, ...] = ()
    """The fixed fields that have files: `sftlf`, or `mask` and `orog`."""
    hot_cell: tuple[int, int] | None = None
    """Row and column of a cell with an impossible tasmax on a day of July 2030."""
    lacks_new_year: bool = False
    """Whether the scenario's first day is in no file."""
    is_compact: bool = False
    """Whether files are compressed, and values rounded to the bits that matter."""
    is_humid: bool = False
    """Whether it has humidity, wind and radiation, and the mean temperature instead of its extremes."""

    @property
    def is_simulation(self) -> bool:
        """Whether it is a simulation; otherwise it is the reference."""
        return "historical" in self.experiments

    @property
    def random_stream(self) -> str:
        """The name of the source's random numbers: each member has its own weather."""
        return "".join((self.name, *(self.driver or ()), self.member if self.member != MEMBER else ""))

    @property
    def dims(self) -> tuple[str, str]:
        """The horizontal dimensions of its files."""
        return ("rlat", "rlon") if self.pole else ("lat", "lon")

    def places(self) -> tuple[Axis, Axis]:
        """Return latitudes and longitudes: of rows and columns, or of each cell of a rotated grid."""
        rows, columns = np.array(self.lats), np.array(self.lons)
        return geographic(rows[:, None], columns[None, :], self.pole) if self.pole else (rows, columns)

    def begins(self, experiment: str) -> str:
        """Return the month and day on which an experiment's files begin, MMDD."""
        return "0102" if self.lacks_new_year and experiment != "historical" else "0101"


def geographic(rlat: Axis, rlon: Axis, pole: tuple[float, float]) -> tuple[Axis, Axis]:
    """Return latitudes and longitudes (-180 to 180) of places on a grid whose north pole lies at `pole`; degrees.

    The grid's zero meridian leads from its north pole away from the Earth's north pole (CF, appendix F).
    """
    up, along, tilt = np.deg2rad(rlat), np.deg2rad(rlon), np.deg2rad(pole[0])
    north = np.sin(tilt) * np.sin(up) + np.cos(tilt) * np.cos(up) * np.cos(along)
    east = np.cos(tilt) * np.sin(up) - np.sin(tilt) * np.cos(up) * np.cos(along)
    lon = np.rad2deg(np.arctan2(-np.cos(up) * np.sin(along), east)) + pole[1]
    return np.rad2deg(np.arcsin(north)), (lon + 180) % 360 - 180


def steps(first: float, step: float, count: int) -> tuple[float, ...]:
    """Return the coordinates of a regular axis, without round-off."""
    return tuple(round(first + step * index, 6) for index in range(count))


# After Natural Earth's coast, as the report draws it, with Lac Saint-Jean (~); the sea is dots.
_LAND = (
    "##################.......########.......",  # 49.125
    "################.....#############......",
    "#~~~~#########....################......",
    "##~~####.####...#################.......",
    "############..#############.###.........",  # 48.125
    "###########..###############............",
    "##########..####################........",
    "#########..####################.........",
    "########.#####################..........",  # 47.125
    "######.########################...#.....",
    "################################..#.....",
    "################################....####",
    "####################################...#",  # 46.125
    "####################################....",
    "###############################..#######",
    "#############################..#.....###",
    "##########################.....#########",  # 45.125
    "#######################......###########",
    "#####################......##########...",
    "###############.##.........#######......",
)
_SCENARIO = {"historical": (1950, 2014), "ssp585": (2015, 2100)}
REFERENCE = Source(
    name="Demo-Land",
    climate=Climate(warming_kelvin=4.0),
    lats=steps(44.375, 0.25, len(_LAND)),
    lons=steps(-72.625, 0.25, len(_LAND[0])),
    calendar="standard",
    experiments={"reference": (1991, 2020)},
    land=_LAND,
)
SIMULATIONS = (
    # Too warm, seasons too weak, drizzle on nearly every day; longitudes 0-360.
    Source(
        name="Demo-NoLeap",
        climate=Climate(
            mean_kelvin=279.5,
            seasonal_kelvin=11.5,
            noise_kelvin=5.0,
            range_kelvin=7.5,
            warming_kelvin=6.0,
            wet_fraction=0.85,
            rain_mm_per_day=2.6,
            rain_shape=0.65,
            cell_degrees=2.8,
        ),
        lats=steps(37.67, 2.79, 7),
        lons=steps(278.4375, 2.8125, 10),
        calendar="noleap",
        experiments=_SCENARIO,
    ),
    # Too cold, seasons too strong, too dry; longitudes -180-180, latitudes from north to south.
    Source(
        name="Demo-360Day",
        climate=Climate(
            mean_kelvin=272.5,
            seasonal_kelvin=16.5,
            noise_kelvin=3.2,
            range_kelvin=13.0,
            warming_kelvin=4.5,
            wet_fraction=0.30,
            rain_mm_per_day=7.5,
            rain_shape=1.0,
            cell_degrees=2.25,
        ),
        lats=steps(56.0, -2.0, 11),
        lons=steps(-81.25, 2.5, 11),
        calendar="360_day",
        experiments=_SCENARIO,
    ),
)


# ESPO v2's example: a rotated reference, pools of several members, a regional model; with what v2 has to cope with. In
# the pool of three, the first member has an impossible value, the second's latitudes differ by round-off, and only the
# third has `sftlf`. The regional model's files lack 2015-01-01, and its domain covers a part of the reference.
_V2_EXPERIMENTS = {"historical": (1951, 2014), "ssp370": (2015, 2100)}
# The Gaspé Peninsula between the St. Lawrence and New Brunswick, after Natural Earth's coast, on the grid of CaSR: 186
# cells of land (#), sea with data (+), and sea without.
_V2_LAND = (
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
    lats=steps(-7.0, 0.1, len(_V2_LAND)),
    lons=steps(16.9, 0.1, len(_V2_LAND[0])),
    calendar="standard",
    experiments={"reference": (1991, 2020)},
    land=_V2_LAND,
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
    experiments=_V2_EXPERIMENTS,
    land_percent=((97, 88, 48, 57, 24), (100, 90, 95, 49, 10), (100, 100, 78, 64, 59), (100, 100, 100, 100, 100)),
    is_compact=True,
)
_SINGLE = replace(
    SIMULATIONS[1],
    name="Demo-Single",
    lats=steps(51.0, -2.0, 4),
    lons=steps(-71.25, 2.5, 5),
    experiments=_V2_EXPERIMENTS,
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
    experiments=_V2_EXPERIMENTS,
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


# The example of variables with bounds: mountains of New Brunswick and the Bay of Chaleur, 57 land cells. The simulation
# is too humid, above 100 % on some days, too bright, and drizzles.
_HUMID_LAND = (
    "######....",
    "####....##",
    "##########",
    "########..",
    "#########.",
    "##########",
    "########..",
)
HUMID_REFERENCE = Source(
    name="Demo-Wet",
    climate=Climate(warming_kelvin=4.0),
    lats=steps(46.625, 0.25, len(_HUMID_LAND)),
    lons=steps(-67.125, 0.25, len(_HUMID_LAND[0])),
    calendar="standard",
    experiments={"reference": (1991, 2020)},
    land=_HUMID_LAND,
    is_humid=True,
)
HUMID_SIMULATION = replace(
    SIMULATIONS[0],
    name="Demo-Humid",
    climate=replace(
        SIMULATIONS[0].climate, humidity_percent=83.0, supersaturation=0.3, wind_m_per_second=4.6, clear_sky=0.8
    ),
    lats=steps(43.25, 2.79, 4),
    lons=steps(288.28, 2.8125, 5),
    experiments={"historical": (1991, 2014), "ssp585": (2015, 2050)},
    is_humid=True,
)
