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
    mip_era: str = "CMIP6"
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


# Grids and calendars of the same two climates; the experiments of CMIP7, whose history ends in 2021.
CMIP7_SIMULATIONS = tuple(
    replace(
        source,
        name=source.name.replace("Demo-", "Demo7-"),
        experiments={"historical": (1950, 2021), "scen7-h": (2022, 2100)},
        mip_era="CMIP7",
    )
    for source in SIMULATIONS
)
