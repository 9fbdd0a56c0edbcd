"""How much a task works on, and what it has made: its job's result keeps both, to estimate what others cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from espo_luigi.config import Region, RunConfig
from espo_luigi.store.inventory import read_inventory


def size_of(config: RunConfig, wildcards: Mapping[str, str]) -> float:
    """Return area (degrees squared) times days times variables of what a task with these wildcards works on."""
    area = sum(_area(box) for box in _boxes(config, wildcards))
    first, last = config.custom.sim_period if "sim_id" in wildcards else config.custom.ref_period
    days = 365 * (int(last) - int(first) + 1)
    return area * days * (1 if "var" in wildcards else len(config.variables))


def files_and_bytes(path: Path) -> tuple[int, int]:
    """Return how many files a complete store has, and their bytes; nothing of what is not there."""
    try:
        if path.is_dir():
            inventory = read_inventory(path)
            return (inventory.files, inventory.size_bytes) if inventory else (0, 0)
        return 1, path.stat().st_size
    except OSError:
        return 0, 0


def _boxes(config: RunConfig, wildcards: Mapping[str, str]) -> Iterator[Region]:
    if config.off_diag and "diag_domain" in wildcards:
        yield config.off_diag.domains[wildcards["diag_domain"]]
    elif "region" in wildcards:
        yield config.custom.regions[wildcards["region"]]
    else:
        yield from config.custom.regions.values()


def _area(box: Region) -> float:
    (west, east), (south, north) = box.lon_bnds, box.lat_bnds
    return (east - west) * (north - south)
