"""What each workflow has of its own in `production.py`: how it is made small, and how large it really is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from production_input import ROTATED_POLE, SIMULATION, Region

ROOT = Path(__file__).parent.parent
Config = dict[str, Any]


@dataclass(frozen=True)
class Whole:
    """What a whole production has of land cells, pieces, pools and simulations, and what it asked for."""

    name: str
    cells: int
    pieces: int
    pools: int
    members: int
    requested: str


@dataclass(frozen=True)
class Workflow:
    """What a workflow's benchmark has of its own."""

    configuration: str
    first_year: int
    pole: tuple[float, float] | None
    # Makes the regions, slices and domains small: the configuration, the region, its land cells.
    reduce: Callable[[Config, Region, int], None]
    add_all_rules: Callable[[Config], None]
    pieces: int
    most_members: int
    whole: Whole


def reduce_2024(config: Config, region: Region, cells: int) -> None:
    """Leave one region, and a domain of the diagnostics of about an eighth of its cells."""
    box = {"method": "bbox", **region.box()}
    config["custom"]["regions"] = {"south": {"name": "south", **box}}
    config["custom"]["amno_region"] |= box
    config["extraction"]["simulation"].pop("chunks", None)
    config["extraction"]["simulation"]["search_data_catalogs"]["other_search_criteria"] = {
        "source": [SIMULATION],
        "experiment": ["ssp585"],
        "processing_level": "raw",
    }
    domain = {**box, "name": "Domain", **region.box(*part_of(region, 0.3, 0.32))}
    config["off-diag"]["domains"] = {"Domain": domain}
    for step in config["off-diag"]["steps"].values():
        step["domain"] = {"Domain": "NAM" if "NAM" in step["domain"].values() else "south"}


def reduce_v2(config: Config, region: Region, cells: int) -> None:
    """Leave the region, slices of 37 % of its cells, and a domain of about a quarter, as v2's five are of its land."""
    config["subregions"]["n"] = cells * 37 // 100
    config["extraction"]["simulation"]["search_data_catalogs"]["allow_missing"] = True  # of v2's scenarios, one is made
    config["full_region"] |= region.box()
    domain = {"name": "Domain", "method": "bbox", **region.box(*part_of(region, 0.5, 0.5))}
    config["diagregion"] = {"Domain": domain}
    config["QC"] |= region.box(slice(region.rows // 2))


def part_of(region: Region, of_rows: float, of_columns: float) -> tuple[slice, slice]:
    """Some rows and columns in the west of a region."""
    row, column = min(4, region.rows // 5), region.columns // 6
    return slice(row, row + 1 + int(of_rows * region.rows)), slice(column, column + int(of_columns * region.columns))


def diagnose_regions(config: Config) -> None:
    """Add the diagnostics of whole regions, as the demo has them."""
    demo = yaml.safe_load((ROOT / "config/demo/config.yml").read_text())
    config["diagnostics"] = demo["diagnostics"]
    of_reference = demo["extraction"]["reference"]["properties_and_measures"]
    config["extraction"]["reference"]["properties_and_measures"] = of_reference
    for step in (of_reference, *(one["properties_and_measures"] for one in demo["diagnostics"].values())):
        step["properties"] = "properties_ESPO-G.yml"


def add_outcomes(config: Config, folder: Path) -> None:
    """Add the demo's indicators, changes, levels of warming, ensembles, and the mean over the domain."""
    demo = ROOT / "config/demo"
    config |= yaml.safe_load((demo / "outcomes.yml").read_text())
    domain = config["full_region"] if "full_region" in config else config["custom"]["amno_region"]
    config["indicators"]["module"] = str(demo / "indicators.yml")
    config["spatial_mean"]["regions"] = {"whole": {key: domain[key] for key in ("lon_bnds", "lat_bnds")}}
    # Names of simulations differ by member and experiment.
    names = [f"CMIP6_{SIMULATION}_{ssp}_r{number}i1p1f1" for ssp in ("ssp370", "ssp585") for number in range(1, 6)]
    rows = [f"{year},{','.join([str(288 + max(0, year - 1950) * 0.04)] * len(names))}" for year in range(1850, 2101)]
    (folder / "warming.csv").write_text("\n".join([",".join(["year", *names]), *rows]))
    config["warming_levels"]["tas_src"] = str(folder / "warming.csv")


WORKFLOWS = {
    "2024": Workflow(
        configuration="espo-g6",
        first_year=1950,
        pole=None,
        reduce=reduce_2024,
        add_all_rules=diagnose_regions,
        pieces=1,
        most_members=1,
        whole=Whole(
            "North America (three bands of 150 000 land cells, 11 simulations)",
            cells=450_000,
            pieces=3,
            pools=11,
            members=11,
            requested="48 to 100 GB and up to 1000 minutes a job",
        ),
    ),
    "v2": Workflow(
        configuration="espo-v2",
        first_year=1951,
        pole=ROTATED_POLE,
        reduce=reduce_v2,
        add_all_rules=lambda config: None,
        pieces=3,
        most_members=5,
        whole=Whole(
            "ESPO v2.0 (six slices of 50 000 land cells, 80 pools of 211 simulations)",
            cells=300_000,
            pieces=6,
            pools=80,
            members=211,
            requested="50 to 500 GB a job",
        ),
    ),
}
