"""How a run is divided: its simulations into pools, its land cells into pieces.

The members of a pool are adjusted together; each piece is made on its own. Rules name both and ask here for the rest.
The run's `Production` decides.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import xarray as xr

from espo_luigi.config import Region, RunConfig
from espo_luigi.config.downscaling import MODEL
from espo_luigi.errors import CatalogError, ConfigurationError, DataError
from espo_luigi.science.diagnose.diagnosis import CELLS_OF_A_DOMAIN
from espo_luigi.science.geometry.cells import horizontal_dims
from espo_luigi.science.geometry.cutting import beyond_the_grid, subset_box
from espo_luigi.science.grid import count_cells, holds_land

# Keys of the configuration, as `EspoTask.reads` has them: a box, and only the names and order of all boxes.
PIECE_KEY = "custom.regions.{piece}"
NAMES_KEY = "custom.regions.*"
# The name of the whole domain on the coarse grid, on which simulations are adjusted that are downscaled afterwards.
# Names of models' grids begin with it.
COARSE = "coarse"
# The key of a pool in a marker's fingerprints; its value lists the members.
POOL_KEY = "pool "
# The key of the production, by its name, whether the configuration gives it or not.
PRODUCTION_KEY = "production"


def pool_of(run: Any, sim_id: str) -> str:
    """Return the name of a simulation's pool."""
    return str(run.production.pool_of(run, sim_id))


def members(run: Any, pool: str) -> list[str]:
    """Return the ids of a pool's simulations."""
    return list(run.members(pool))


def pools_by_name(run: Any, simulations: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the members of each pool, in the order of the simulations.

    Raises
    ------
    CatalogError
        If members of a pool have several domains or phases of CMIP.
    """
    found: dict[str, list[str]] = {}
    for sim_id in simulations:
        found.setdefault(pool_of(run, sim_id), []).append(sim_id)
    for pool, ids in found.items():
        for column in ("mip_era", "domain") if len(ids) > 1 else ():
            values = {run.simulation(sim_id).columns.get(column, "") for sim_id in ids}
            if len(values) > 1:
                raise CatalogError(
                    f"the pool {pool} has members of several kinds ({column}: {', '.join(sorted(values))}): "
                    f"{', '.join(ids)}. Search for one of them, or exclude the others."
                )
    return {pool: tuple(ids) for pool, ids in found.items()}


def pieces(run: Any) -> list[str]:
    """Return the names of all pieces, from south to north."""
    return list(run.production.pieces.names(run))


def adjusted_pieces(run: Any) -> list[str]:
    """Return the names of the pieces on which simulations are adjusted: all, or those of the coarse grids alone."""
    return pieces(run) if run.config.downscaling is None else list(run.coarse_grids)


def adjusted_piece(run: Any, pool: str) -> str:
    """Return the name of the coarse grid on which a pool is adjusted, as a piece."""
    section = run.config.downscaling
    return COARSE if section is None or section.grid != MODEL else f"{COARSE}-{run.coarse_grid(pool).key}"


def is_coarse(run: Any, piece: str) -> bool:
    """Return True for a piece that is a coarse grid."""
    return run.config.downscaling is not None and piece.startswith(COARSE)


def draws(run: Any, pool: str, piece: str, var: str) -> tuple[str, int]:
    """Return the seed of a pool's random draws, and the place of the piece's first cell in its count of cells."""
    if is_coarse(run, piece):
        return f"{pool}+{piece}+{var}", 0
    seed, first_cell = run.production.pieces.draws(pool, piece, var)
    return str(seed), int(first_cell)


def box_of(run: Any, piece: str) -> Region:
    """Return the box that contains a piece."""
    found: Region = run.production.pieces.box(piece)
    return found


def domain_without_buffer(config: RunConfig) -> Region:
    """Return the box of the whole domain, without the buffer that simulations need."""
    return config.domain.model_copy(update={"tile_buffer": 0.0})


def check_land_cells(run: Any, found: int) -> None:
    """Raise `DataError` if the reference has another number of land cells than the run was planned with."""
    if found != run.land_cells:
        raise DataError(
            f"the reference has {found} land cells, and {run.land_cells} when the run was planned "
            f"({', '.join(pieces(run)[-1:])} would end elsewhere): its files changed. Start the run again."
        )


def simulations_of(task: Any) -> set[str]:
    """Return the simulations that a task is about: its own, or its pool's members; none for the reference's tasks."""
    if hasattr(task, "pool"):
        return set(members(task.context, task.pool))
    return {task.sim_id} if hasattr(task, "sim_id") else set()


def pools_of(task: Any) -> set[str]:
    """Return the pool that a task is about: its own, or its simulation's."""
    if hasattr(task, "pool"):
        return {task.pool}
    return {pool_of(task.context, task.sim_id)} if hasattr(task, "sim_id") else set()


def pieces_of(task: Any) -> set[str]:
    """Return the piece that a task works on; none for tasks of the whole domain."""
    return {task.piece} if hasattr(task, "piece") and not is_coarse(task.context, task.piece) else set()


def size_of(run: Any, wildcards: Mapping[str, str]) -> float:
    """Return area (degrees squared) times days times variables that a task with these wildcards works on."""
    config: RunConfig = run.config
    if "diag_domain" in wildcards:
        area = _area(run.domains[wildcards["diag_domain"]])
        if run.off_diag is not config.off_diag:  # the whole domain, thinned
            area = min(area, CELLS_OF_A_DOMAIN / run.cells_by_area)
    else:
        names = [wildcards["piece"]] if "piece" in wildcards else pieces(run)
        if is_coarse(run, names[0]):
            pool = wildcards.get("pool") or pool_of(run, wildcards["sim_id"])
            area = _area(domain_without_buffer(config)) / run.coarse_grid(pool).area / run.cells_by_area
        else:
            cells = {name: run.production.pieces.cells(run, name) for name in names}
            area = sum(_area(box_of(run, name)) if n is None else n / run.cells_by_area for name, n in cells.items())
    is_simulated = wildcards.keys() & {"sim_id", "pool"}
    together = len(members(run, wildcards["pool"])) if "pool" in wildcards else 1
    periods = config.custom.stretches if is_simulated else [config.custom.ref_period]
    days = 365 * sum(int(last) - int(first) + 1 for first, last in periods)
    variables = config.biasadjust.together.get(wildcards["var"], (1,)) if "var" in wildcards else config.variables
    return area * days * together * len(variables)


def _area(box: Region) -> float:
    (west, east), (south, north) = box.lon_bnds, box.lat_bnds
    return (east - west) * (north - south)


def cut_piece(reference: xr.Dataset, run: Any, piece: str) -> xr.Dataset:
    """Cut the box of a piece out of a map of the whole reference.

    Raises
    ------
    ConfigurationError
        If the reference has no cell in the piece, or ends inside the piece; the message names the piece's key.
    """
    box, key = box_of(run, piece).arguments(), key_of(run, piece)
    found = cut_box(reference, box, key)
    if beyond := beyond_the_grid(reference, box):
        raise ConfigurationError(f"`{key}`: {beyond}. Correct the bounds, or take another reference.")
    return found


def key_of(run: Any, piece: str) -> str:
    """Return the key of the box that contains a piece."""
    return str(run.config.name_of(run.production.pieces.keys()[0].format(piece=piece)))


def cut_box(whole: xr.Dataset, box: Mapping[str, Any], key: str) -> xr.Dataset:
    """Cut a box out of a map of the reference; raises `ConfigurationError`, with the box's `key`, if it has no cell."""
    try:
        return subset_box(whole, box)
    except DataError as error:
        raise ConfigurationError(f"`{key}`: {error} Correct the bounds, or the data.") from error


def require_land(found: xr.Dataset, box: Mapping[str, Any], key: str, advice: str) -> None:
    """Raise `ConfigurationError` if `found`, the reference inside of `box`, has no land; `key` is the box's.

    Raises `DataError` if the reference cannot be read.
    """
    try:
        if holds_land(found):
            return
    except Exception as error:  # a backend may raise nearly anything on a damaged file
        raise DataError(
            f"`{key}`: the reference cannot be read there ({error}): get or make its files again."
        ) from error
    (west, east), (south, north) = box["lon_bnds"], box["lat_bnds"]
    raise ConfigurationError(
        f"`{key}` has no land: of the reference's {count_cells(found)} cells in {west:g} to {east:g} °E, {south:g} to "
        f"{north:g} °N, none has a value on the first day of `custom.ref_period`. Correct the bounds, {advice}."
    )


def require_own_rows(maps: Mapping[str, xr.Dataset]) -> None:
    """Raise `ConfigurationError` if two pieces share a row of the reference, because a bound lies on it.

    `maps` has the reference in each piece, by the piece's name.
    """
    if any("lat" in found.coords and found["lat"].ndim == 2 for found in maps.values()) and len(maps) > 1:
        raise ConfigurationError(
            "`custom.regions` has several bands of latitude, and on the reference's rotated grid they share rows: give "
            "one region."
        )
    y, x = horizontal_dims(next(iter(maps.values())))
    for south, north in itertools.combinations(maps, 2):
        rows = _common(maps[south], maps[north], y)
        if rows and _common(maps[south], maps[north], x):
            listed = ", ".join(f"{row:g}" for row in sorted(rows)[:3])
            raise ConfigurationError(
                f"`custom.regions.{south}` and `custom.regions.{north}` both have the row(s) {listed} of the "
                "reference: a bound is inclusive. Put it between two rows."
            )


def _common(south: xr.Dataset, north: xr.Dataset, dim: str) -> set[float]:
    """Return the coordinates that two maps share along a dimension; a dimension without coordinates gives none."""
    return set(south[dim].values.tolist()) & set(north[dim].values.tolist()) if dim in south.coords else set()
