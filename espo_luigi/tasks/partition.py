"""How a production is divided: its simulations into pools, its land cells into pieces.

The members of a pool are adjusted together; each piece is made on its own. Rules name both and ask here for the rest.
Today each pool is a single simulation and has its id; each piece is a box of `custom.regions`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import xarray as xr

from espo_luigi.config import Region, RunConfig
from espo_luigi.errors import ConfigurationError, DataError
from espo_luigi.science.extract.dataset import beyond_the_grid, subset_box
from espo_luigi.science.land import count_cells, holds_land
from espo_luigi.science.stack import horizontal_dims

# Keys of the configuration, as `EspoTask.reads` has them: a piece, all pieces, and only their names and order.
PIECE_KEY = "custom.regions.{piece}"
PIECES_KEY = "custom.regions"
NAMES_KEY = "custom.regions.*"


def pools(simulations: Iterable[str]) -> list[str]:
    """Return the names of the pools into which the simulations are divided."""
    return list(dict.fromkeys(map(pool_of, simulations)))


def pool_of(sim_id: str) -> str:
    """Return the name of a simulation's pool."""
    return sim_id


def members(pool: str) -> list[str]:
    """Return the ids of a pool's simulations."""
    return [pool]


def pieces(config: RunConfig) -> list[str]:
    """Return the names of all pieces, from south to north."""
    return list(config.custom.regions)


def box_of(config: RunConfig, piece: str) -> Region:
    """Return the box that contains a piece."""
    return config.custom.regions[piece]


def simulations_of(task: Any) -> set[str]:
    """Return the simulations that a task is about: its own, or its pool's members; none for the reference's tasks."""
    return set(members(task.pool)) if hasattr(task, "pool") else {task.sim_id} if hasattr(task, "sim_id") else set()


def pieces_of(task: Any) -> set[str]:
    """Return the piece that a task works on; none for tasks of the whole domain."""
    return {task.piece} if hasattr(task, "piece") else set()


def size_of(config: RunConfig, wildcards: Mapping[str, str]) -> float:
    """Return area (degrees squared) times days times variables that a task with these wildcards works on."""
    if config.off_diag and "diag_domain" in wildcards:
        boxes = [config.off_diag.domains[wildcards["diag_domain"]]]
    else:
        boxes = [box_of(config, name) for name in ([wildcards["piece"]] if "piece" in wildcards else pieces(config))]
    is_simulated = wildcards.keys() & {"sim_id", "pool"}
    first, last = config.custom.sim_period if is_simulated else config.custom.ref_period
    days = 365 * (int(last) - int(first) + 1)
    return sum(map(_area, boxes)) * days * (1 if "var" in wildcards else len(config.variables))


def _area(box: Region) -> float:
    (west, east), (south, north) = box.lon_bnds, box.lat_bnds
    return (east - west) * (north - south)


def cut_piece(reference: xr.Dataset, config: RunConfig, piece: str) -> xr.Dataset:
    """Cut a piece out of a map of the whole reference.

    Raises
    ------
    ConfigurationError
        If the reference has no cell in the piece, or ends inside the piece; the message names the piece's key.
    """
    box, key = box_of(config, piece).arguments(), PIECE_KEY.format(piece=piece)
    found = cut_box(reference, box, key)
    if beyond := beyond_the_grid(reference, box):
        raise ConfigurationError(f"`{key}`: {beyond}. Correct the bounds, or take another reference.")
    return found


def cut_box(whole: xr.Dataset, box: Mapping[str, Any], key: str) -> xr.Dataset:
    """Cut a box out of a map of the reference; raises `ConfigurationError`, with the box's `key`, if it has no cell."""
    try:
        return subset_box(whole, box)
    except DataError as error:
        raise ConfigurationError(f"`{key}`: {error} Correct the bounds, or the data.") from error


def missing_land(found: xr.Dataset, box: Mapping[str, Any], key: str) -> str:
    """Return a sentence if `found`, the reference inside `box`, has no land; else "".

    Raises
    ------
    DataError
        If the reference cannot be read.
    """
    try:
        if holds_land(found):
            return ""
    except Exception as error:  # a backend may raise nearly anything on a damaged file
        raise DataError(
            f"`{key}`: the reference cannot be read there ({error}): get or make its files again."
        ) from error
    (west, east), (south, north) = box["lon_bnds"], box["lat_bnds"]
    return (
        f"`{key}` has no land: of the reference's {count_cells(found)} cells in {west:g} to {east:g} °E, {south:g} to "
        f"{north:g} °N, none has a value on the first day of `custom.ref_period`"
    )


def shared_rows(maps: Mapping[str, xr.Dataset]) -> str:
    """Return a sentence if two pieces share a row of the reference, because a bound lies on it; else "".

    `maps` has the reference in each piece, by the piece's name.
    """
    if any("lat" in found.coords and found["lat"].ndim == 2 for found in maps.values()) and len(maps) > 1:
        return (
            "`custom.regions` has several bands of latitude, and on the reference's rotated grid they share rows: give "
            "one region"
        )
    y, x = horizontal_dims(next(iter(maps.values())))
    for south, north in itertools.combinations(maps, 2):
        rows = _common(maps[south], maps[north], y)
        if rows and _common(maps[south], maps[north], x):
            listed = ", ".join(f"{row:g}" for row in sorted(rows)[:3])
            return (
                f"`custom.regions.{south}` and `custom.regions.{north}` both have the row(s) {listed} of the "
                "reference: a bound is inclusive. Put it between two rows"
            )
    return ""


def _common(south: xr.Dataset, north: xr.Dataset, dim: str) -> set[float]:
    """Return the coordinates that two maps share along a dimension; a dimension without coordinates gives none."""
    return set(south[dim].values.tolist()) & set(north[dim].values.tolist()) if dim in south.coords else set()
