"""Invented input of production's shape: a reference of 0.1° with a coast and a lake, and a simulation of 1°."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from espo_luigi.catalog.build import write_catalog
from espo_luigi.demo.files import dataset_of, file_name, folder_of
from espo_luigi.demo.make import catalog_row
from espo_luigi.demo.sources import SIMULATIONS, Source
from espo_luigi.demo.weather import Climate, Days, Field, days_of, invent_weather

SIMULATION = "Made-Coarse"
SOUTH = 40.1
FILE_YEARS = 10


@dataclass(frozen=True)
class Region:
    """A region of 0.1° with a coast: so many rows and columns, of which the first lie south and west."""

    rows: int
    columns: int

    @property
    def west(self) -> float:
        """The longitude of the first column: 80° W, or further west so that 1700 columns end over the Atlantic."""
        return min(-79.95, -9.95 - self.columns / 10)

    @property
    def lats(self) -> tuple[float, ...]:
        return steps(SOUTH, 0.1, self.rows)

    @property
    def lons(self) -> tuple[float, ...]:
        return steps(self.west, 0.1, self.columns)


def land_mask(rows: int, columns: int) -> np.ndarray:
    """Where is land: west of a winding coast, and outside of a lake in every ten degrees."""
    row, column = np.ogrid[:rows, :columns]
    coast = columns * (0.864 + 0.096 * np.sin(row / 9))
    lake = ((row % 100 - 30) / 8) ** 2 + ((column - 50) / 12) ** 2 < 1
    return (column < coast) & ~lake


def region_of(cells: int, columns: int) -> tuple[Region, int]:
    """The region that has at least so many land cells, and how many it has."""
    in_row = np.cumsum(land_mask(1000, columns).sum(axis=1))
    rows = int(np.searchsorted(in_row, cells)) + 1
    return Region(rows, columns), int(in_row[rows - 1])


def make_input(folder: Path, region: Region, last_year: int) -> None:
    """Make the raw files and catalogues, unless they are there."""
    done = folder / "made"
    if not done.exists():
        write_catalog(simulation_rows(folder, region, last_year), folder / "simulation.json", "a benchmark")
        write_catalog(reference_rows(folder, region), folder / "reconstruction.json", "a benchmark")
        done.touch()


def steps(first: float, step: float, count: int) -> tuple[float, ...]:
    return tuple(np.round(first + step * np.arange(count), 6).tolist())


def simulation_rows(folder: Path, region: Region, last_year: int) -> list[dict[str, str]]:
    source = replace(
        SIMULATIONS[0],
        name=SIMULATION,
        lats=steps(36.0, 1.0, region.rows // 10 + 9),
        lons=steps(round(region.west + 355.95), 1.0, region.columns // 10 + 12),
        experiments={"historical": (1950, 2014), "ssp585": (2015, last_year)},
    )
    days = days_of(source.calendar, 1950, last_year)
    weather = invent_weather(
        source.climate, days, np.array(source.lats), np.array(source.lons), np.random.default_rng(1)
    )
    return [
        write_file(folder, source, experiment, name, values[days.within(*years)], days, years)
        for experiment, years in source.experiments.items()
        for name, values in weather.items()
    ]


def reference_rows(folder: Path, region: Region) -> list[dict[str, str]]:
    lats, lons = region.lats, region.lons
    coarse_lats, coarse_lons = (
        np.arange(SOUTH - 0.5, lats[-1] + 1, 0.5),
        np.arange(region.west - 0.5, lons[-1] + 1, 0.5),
    )
    rng = np.random.default_rng(2)
    days = days_of("standard", 1991, 2020)
    coarse = invent_weather(Climate(), days, coarse_lats, coarse_lons, rng)
    finer = hats(coarse_lats, np.array(lats)), hats(coarse_lons, np.array(lons)).T
    hills = rng.normal(size=(coarse_lats.size, coarse_lons.size)).astype("f4")
    height = finer[0] @ hills @ finer[1]
    catalogue = []
    for first in range(1991, 2021, FILE_YEARS):
        years = (first, first + FILE_YEARS - 1)
        for name, values in coarse.items():
            fine = finer[0] @ values[days.within(*years)] @ finer[1]
            fine = fine * (1 + 0.2 * height) if name == "pr" else fine + 2 * height
            fine[:, ~land_mask(region.rows, region.columns)] = np.nan
            source = Source("Made-Land", Climate(), lats, lons, "standard", {"reference": years})
            catalogue.append(write_file(folder, source, "reference", name, fine.astype("f4"), days, years))
    return catalogue


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
