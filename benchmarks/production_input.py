"""Invented input of production's shape: a reference of 0.1° with a coast and a lake, and simulations of 1°.

With a rotated grid, there are the fixed fields of ESPO v2, too: the reference's mask and orography, and the share of
land of the simulations' cells.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from espo_luigi.catalog.build import write_catalog
from espo_luigi.demo.files import dataset_of, file_name, fixed_dataset_of, folder_of
from espo_luigi.demo.make import catalog_row
from espo_luigi.demo.sources import SIMULATIONS, Source
from espo_luigi.demo.weather import Climate, Days, Field, days_of, invent_weather

SIMULATION, REFERENCE = "Made-Coarse", "Made-Land"
SOUTH = 40.1
# The north pole of CaSR's grid, and the southernmost row of a region on it: 48° N in the middle.
ROTATED_POLE, ROTATED_SOUTH = (31.7583, 87.597), -10.05
FILE_YEARS = 10
BOUNDS = "lat_bnds", "lon_bnds"
Bounds = dict[str, list[float]]


@dataclass(frozen=True)
class Region:
    """A region of 0.1° with a coast: so many rows and columns, of which the first lie south and west."""

    rows: int
    columns: int
    pole: tuple[float, float] | None = None

    @property
    def west(self) -> float:
        """The first column: 80° W, or further west so that 1700 columns end over the Atlantic. A rotated grid has as
        many columns on both sides of its meridian."""
        return -self.columns / 20 if self.pole else min(-79.95, -9.95 - self.columns / 10)

    @property
    def grid(self) -> Source:
        """The rows and columns, as the invented dataset that has them."""
        lats = steps(ROTATED_SOUTH if self.pole else SOUTH, 0.1, self.rows)
        lons = steps(self.west, 0.1, self.columns)
        fixed = ("mask", "orog") if self.pole else ()
        return Source(REFERENCE, Climate(), lats, lons, "standard", {}, pole=self.pole, fixed=fixed)

    @property
    def land(self) -> np.ndarray:
        """Where is land."""
        return land_mask(self.rows, self.columns)

    def box(self, rows: slice = slice(None), columns: slice = slice(None)) -> Bounds:
        """Return the bounds of a part of the region, as the configuration has them."""
        source = self.grid
        lat, lon = replace(source, lats=source.lats[rows], lons=source.lons[columns]).places()
        return {
            name: [float(of.min()) - 0.05, float(of.max()) + 0.05] for name, of in zip(BOUNDS, (lat, lon), strict=True)
        }


def land_mask(rows: int, columns: int) -> np.ndarray:
    """Where is land: west of a winding coast, and outside of a lake in every ten degrees."""
    row, column = np.ogrid[:rows, :columns]
    coast = columns * (0.864 + 0.096 * np.sin(row / 9))
    lake = ((row % 100 - 30) / 8) ** 2 + ((column - 50) / 12) ** 2 < 1
    return (column < coast) & ~lake


def region_of(cells: int, columns: int, pole: tuple[float, float] | None = None) -> tuple[Region, int]:
    """The region that has at least so many land cells, and how many it has."""
    in_row = np.cumsum(land_mask(1000, columns).sum(axis=1))
    rows = int(np.searchsorted(in_row, cells)) + 1
    return Region(rows, columns, pole), int(in_row[rows - 1])


def make_input(folder: Path, region: Region, last_year: int, members: int = 1) -> None:
    """Make the raw files and catalogues, unless they are there."""
    done = folder / "made"
    if not done.exists():
        simulated = [row for number in range(members) for row in simulation_rows(folder, region, last_year, number)]
        write_catalog(simulated, folder / "simulation.json", "a benchmark")
        write_catalog(reference_rows(folder, region), folder / "reconstruction.json", "a benchmark")
        done.touch()


def steps(first: float, step: float, count: int) -> tuple[float, ...]:
    return tuple(np.round(first + step * np.arange(count), 6).tolist())


def simulation_rows(folder: Path, region: Region, last_year: int, number: int) -> list[dict[str, str]]:
    """The files of a member: whole degrees, four cells beyond the region."""
    (south, north), (west, east) = (region.box()[name] for name in BOUNDS)
    south, west = np.floor(south) - 4, np.floor(west) - 4
    source = replace(
        SIMULATIONS[0],
        name=SIMULATION,
        member=f"r{number + 1}i1p1f1",
        lats=steps(south, 1.0, int(np.ceil(north - south)) + 5),
        lons=steps(west + 360, 1.0, int(np.ceil(east - west)) + 5),
        experiments={"historical": (1950, 2014), "ssp585": (2015, last_year)},
        fixed=("sftlf",) if region.pole else (),
    )
    days = days_of(source.calendar, 1950, last_year)
    rng = np.random.default_rng([1, number])
    weather = invent_weather(source.climate, days, np.array(source.lats), np.array(source.lons), rng)
    rows = [
        write_file(folder, source, experiment, name, values[days.within(*years)], days, years)
        for experiment, years in source.experiments.items()
        for name, values in weather.items()
    ]
    if region.pole:
        rows.append(write_fixed(folder, source, "sftlf", share_of_land(source, region)))
    return rows


def share_of_land(source: Source, region: Region) -> np.ndarray:
    """How many percent of a simulation's cell are land, counted by the region's cells in it; 100 where it has none."""
    lat, lon = (of.ravel() for of in region.grid.places())
    edges = [np.append(axis, axis[-1] + 1) - 0.5 for axis in (np.array(source.lats), np.array(source.lons) - 360)]
    cells = np.histogram2d(lat, lon, edges)[0]
    land = np.histogram2d(lat, lon, edges, weights=region.land.ravel())[0]
    return np.where(cells, 100 * land / np.maximum(cells, 1), 100).astype("f4")


def reference_rows(folder: Path, region: Region) -> list[dict[str, str]]:
    """The files of the reference: without values over the sea, or with a mask."""
    grid, days = region.grid, days_of("standard", 1991, 2020)
    axes = [np.array(axis) for axis in (grid.lats, grid.lons)]
    coarse_axes = [np.arange(axis[0] - 0.5, axis[-1] + 1, 0.5) for axis in axes]
    places = replace(grid, lats=tuple(coarse_axes[0]), lons=tuple(coarse_axes[1])).places()
    rng = np.random.default_rng(2)
    coarse = invent_weather(Climate(), days, *places, rng)
    rows, columns = (hats(of_coarse, axis) for of_coarse, axis in zip(coarse_axes, axes, strict=True))
    height = rows @ rng.normal(size=(rows.shape[1], columns.shape[1])).astype("f4") @ columns.T
    catalogue = []
    for first in range(1991, 2021, FILE_YEARS):
        years = (first, first + FILE_YEARS - 1)
        source = replace(grid, experiments={"reference": years})
        for name, values in coarse.items():
            fine = rows @ values[days.within(*years)] @ columns.T
            fine = fine * (1 + 0.2 * height) if name == "pr" else fine + 2 * height
            if not region.pole:
                fine[:, ~region.land] = np.nan
            catalogue.append(write_file(folder, source, "reference", name, fine.astype("f4"), days, years))
    fields = {"mask": region.land.astype("i1"), "orog": 300 + 100 * height} if region.pole else {}
    return catalogue + [write_fixed(folder, source, name, values) for name, values in fields.items()]


def hats(coarse: np.ndarray, fine: np.ndarray) -> np.ndarray:
    """The weights (fine, coarse) of linear interpolation."""
    return np.maximum(0, 1 - np.abs(fine[:, None] - coarse) / (coarse[1] - coarse[0])).astype("f4")


def write_file(
    folder: Path, source: Source, experiment: str, name: str, values: Field, days: Days, years: tuple[int, int]
) -> dict[str, str]:
    path = folder / folder_of(source, experiment, name) / file_name(source, experiment, name, days.last_day)
    path.parent.mkdir(parents=True, exist_ok=True)
    dataset_of(source, experiment, name, values, days, days.within(*years)).to_netcdf(path, engine="netcdf4")
    return catalog_row(source, experiment, name, path, days.last_day)


def write_fixed(folder: Path, source: Source, name: str, values: np.ndarray) -> dict[str, str]:
    experiment = next(iter(source.experiments))
    path = folder / folder_of(source, experiment, name) / file_name(source, experiment, name, "")
    path.parent.mkdir(parents=True, exist_ok=True)
    fixed_dataset_of(source, experiment, name, values).to_netcdf(path, engine="netcdf4")
    return catalog_row(source, experiment, name, path, "")
