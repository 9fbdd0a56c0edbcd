"""How a production is divided: its simulations into pools, its land cells into pieces; and where its outputs lie.

The members of a pool are adjusted together; each piece is made on its own. Rules name both and ask here for the rest.
What differs between the workflows is a value here, `Workflow`; its `product` names the rule whose archives are the
product.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import xarray as xr

from espo_luigi.catalog import Match
from espo_luigi.config import Region, RunConfig
from espo_luigi.errors import CatalogError, ConfigurationError, DataError
from espo_luigi.science import stack
from espo_luigi.science.extract.dataset import beyond_the_grid, subset_box
from espo_luigi.science.grid import count_cells, holds_land
from espo_luigi.science.stack import horizontal_dims

# Keys of the configuration, as `EspoTask.reads` has them: a box, and only the names and order of all boxes.
PIECE_KEY = "custom.regions.{piece}"
NAMES_KEY = "custom.regions.*"
# The key of a pool in a marker's fingerprints; its value lists the members.
POOL_KEY = "pool "


class Pieces(Protocol):
    """The parts of the land that are worked on side by side."""

    def names(self, run: Any) -> list[str]:
        """Return the names of all pieces, from south to north."""

    def box(self, name: str) -> Region:
        """Return the box that contains a piece."""

    def cells(self, run: Any, name: str) -> float | None:
        """Return how many cells a piece has, or None where only its box is known."""

    def keys(self) -> tuple[str, ...]:
        """Return the configuration's keys on which a piece `{piece}` depends."""

    def cut(self, run: Any, reference: xr.Dataset, name: str) -> tuple[xr.Dataset, xr.Dataset]:
        """Return a piece of `reference`, which covers its box: the stacked cells, and their grid with `land`."""

    def draws(self, pool: str, name: str, var: str) -> tuple[str, int]:
        """Return the seed of a pool's random draws, and the place of the piece's first cell in its count of cells."""


@dataclass(frozen=True)
class Boxes:
    """Pieces are the boxes of `custom.regions`, each with a grid of its own."""

    regions: Mapping[str, Region]
    stacked: bool

    def names(self, run: Any) -> list[str]:
        """Return the keys of the boxes, in their order."""
        return list(self.regions)

    def box(self, name: str) -> Region:
        """Return the box."""
        return self.regions[name]

    def cells(self, run: Any, name: str) -> None:
        """Return None."""

    def keys(self) -> tuple[str, ...]:
        """Return the box's key."""
        return (PIECE_KEY,)

    def cut(self, run: Any, reference: xr.Dataset, name: str) -> tuple[xr.Dataset, xr.Dataset]:
        """Return the land cells of the box (all cells where they are not stacked), and its grid."""
        grid = stack.grid_of(reference).assign(land=stack.land_of(reference))
        return stack.stack_drop_nans(reference) if self.stacked else reference, grid

    def draws(self, pool: str, name: str, var: str) -> tuple[str, int]:
        """Return a seed for each box, in which cells are counted from 0."""
        return f"{pool}+{name}+{var}", 0


@dataclass(frozen=True)
class Slices:
    """Pieces are slices of so many land cells of the whole domain, in the order of its rows: sr-0, sr-1, …"""

    size: int
    whole: Region

    def names(self, run: Any) -> list[str]:
        """Return as many names as it takes for the land cells of the reference."""
        return [f"sr-{number}" for number in range(-(-run.land_cells // self.size))]

    def box(self, name: str) -> Region:
        """Return the whole domain, without a buffer."""
        return self.whole

    def cells(self, run: Any, name: str) -> float:
        """Return the size of the slice; the last may be shorter."""
        return min(self.size, run.land_cells - self._first(name))

    def keys(self) -> tuple[str, ...]:
        """Return the keys of the domain and of the slices."""
        return ("domain", "subregions")

    def cut(self, run: Any, reference: xr.Dataset, name: str) -> tuple[xr.Dataset, xr.Dataset]:
        """Return the slice, and the grid of the whole domain, whose `land` is the slice's.

        Raises
        ------
        DataError
            If the reference has not the number of land cells that the run was planned with.
        """
        cells = stack.stack_drop_nans(reference.drop_vars(("mask", "orog"), errors="ignore"))
        check_land_cells(run, cells.sizes[stack.STACKED_DIM])
        first = self._first(name)
        grid, land = stack.grid_of(reference), stack.land_of(reference)
        places = np.flatnonzero(land.values)
        own = np.zeros(land.size, bool)
        own[places[first : first + self.size]] = True
        attrs = {**land.attrs, stack.INCOMPLETE_CELLS: 0} if first else land.attrs
        grid = grid.assign(land=land.copy(data=own.reshape(land.shape)).assign_attrs(attrs))
        grid = grid.assign_coords(
            {name: one.variable for name, one in reference.coords.items() if "grid_mapping_name" in one.attrs}
        )
        return cells.isel({stack.STACKED_DIM: slice(first, first + self.size)}), grid

    def draws(self, pool: str, name: str, var: str) -> tuple[str, int]:
        """Return a seed for the whole domain: slices of any size draw the same."""
        return f"{pool}+{var}", self._first(name)

    def _first(self, name: str) -> int:
        return int(name.removeprefix("sr-")) * self.size


@dataclass(frozen=True)
class Workflow:
    """What a production divides its work into, and where outputs lie.

    `names` has the templates of outputs, by RULE.PORT, that differ from those of their classes.
    """

    name: str
    pieces: Pieces
    pool_of: Callable[[Any, str], str]
    members: Callable[[Any, str], Sequence[str]]
    # The most members that a pool can have.
    most_members: int
    # Whether a simulation covers only a part of the domain, to which its products are cut.
    is_regional: Callable[[Any, str], bool]
    # The rule that makes the final archives, the key of the attributes that they are given, and the DRS of exports.
    product: str
    attributes: str
    drs: str
    names: Mapping[str, str] = field(default_factory=dict)


# The members of a pool of v2, where the configuration does not say how many are kept.
_MOST_MEMBERS = 5
_V2_PATH = (
    "{final}/staging/simulation/biasadjusted/ESPO_v20_{ref_source}/{mip_era}/{activity}/{domain}/{institution}/"
    "{source}/{driving}{experiment}/{member}/day/{var}/"
)
_V2_NAMES = {
    "RefDefault.out_reference": "{final}/reference/split_regions/{domain}_{ref_source}_{piece}_default.zarr",
    "RefDefault.out_grid": "{final}/reference/split_regions/{domain}_{ref_source}_{piece}_coords.zarr",
    "ReferenceCalendar.out_reference": "{final}/reference/split_regions/{domain}_{ref_source}_{piece}_{calendar}.zarr",
    "ConcatClean.out_final": _V2_PATH + "{var}_day_ESPO6_v20_{ref_source}+{sim_id}_{domain}_{period}.{archive}",
    "HealthChecks.out_checks": "{final}/checks/{domain}/{sim_id}+{ref_source}+{domain}_checks.zarr",
}


def _espo_2024(config: RunConfig) -> Workflow:
    """Pools of one, boxes, and the templates of the classes."""
    return Workflow(
        name="espo-2024",
        pieces=Boxes(config.custom.regions, config.custom.stack_drop_nans),
        pool_of=lambda run, sim_id: sim_id,
        members=lambda run, pool: [pool],
        most_members=1,
        is_regional=lambda run, sim_id: False,
        product="ConcatenationFinal",
        attributes="clean_up.xscen_clean_up.add_attrs.global",
        drs="espo-g6",
    )


def _espo_v2(config: RunConfig) -> Workflow:
    """Pools by model and experiment, slices, and the names of v2."""
    assert config.subregions is not None
    return Workflow(
        name="espo-v2",
        pieces=Slices(config.subregions.n, config.domain.model_copy(update={"tile_buffer": 0.0})),
        pool_of=lambda run, sim_id: _by_model_and_experiment(run.simulation(sim_id)),
        members=lambda run, pool: run.pools.get(pool, ()),
        most_members=config.extraction.simulation.search_data_catalogs.most_members or _MOST_MEMBERS,
        is_regional=lambda run, sim_id: _is_driven(run.simulation(sim_id)),
        product="ConcatClean",
        attributes="clean_up.xscen_clean_up.VARIABLE.add_attrs.global",
        drs="espo-v2",
        names=_V2_NAMES,
    )


def workflow_of(config: RunConfig) -> Workflow:
    """Return the workflow of a configuration: with a section `subregions`, that of v2."""
    return _espo_2024(config) if config.subregions is None else _espo_v2(config)


def _is_driven(match: Match) -> bool:
    return bool(match.columns.get("driving_model"))


def _by_model_and_experiment(match: Match) -> str:
    """ScenarioMIP_{source}_{experiment} of global models, {source}_{driving_model}_{experiment} of regional ones."""
    columns = ("source", "driving_model", "experiment") if _is_driven(match) else ("activity", "source", "experiment")
    if missing := [name for name in columns if not match.columns.get(name)]:
        raise CatalogError(
            f"{match.id}: the catalogue has no {' or '.join(missing)}, which names its pool. Correct the catalogue."
        )
    return "_".join(match.columns[name] for name in columns)


def pools(run: Any) -> list[str]:
    """Return the names of the pools into which the simulations are divided."""
    return list(run.pools)


def pool_of(run: Any, sim_id: str) -> str:
    """Return the name of a simulation's pool."""
    return str(run.workflow.pool_of(run, sim_id))


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
    return list(run.workflow.pieces.names(run))


def boxes(run: Any) -> list[Region]:
    """Return the boxes that contain the pieces, each once."""
    return list(dict.fromkeys(run.workflow.pieces.box(name) for name in pieces(run)))


def box_of(run: Any, piece: str) -> Region:
    """Return the box that contains a piece."""
    found: Region = run.workflow.pieces.box(piece)
    return found


def whole(run: Any) -> Region:
    """Return the box of the whole domain, without the buffer that simulations need."""
    found: Region = run.config.domain
    return found.model_copy(update={"tile_buffer": 0.0})


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
    return {task.piece} if hasattr(task, "piece") else set()


def size_of(run: Any, wildcards: Mapping[str, str]) -> float:
    """Return area (degrees squared) times days times variables that a task with these wildcards works on."""
    config: RunConfig = run.config
    if "diag_domain" in wildcards:
        area = _area(run.domains[wildcards["diag_domain"]])
    else:
        area = sum(_area_of(run, name) for name in ([wildcards["piece"]] if "piece" in wildcards else pieces(run)))
    is_simulated = wildcards.keys() & {"sim_id", "pool"}
    together = len(members(run, wildcards["pool"])) if "pool" in wildcards else 1
    first, last = config.custom.sim_period if is_simulated else config.custom.ref_period
    days = 365 * (int(last) - int(first) + 1)
    return area * days * together * (1 if "var" in wildcards else len(config.variables))


def _area_of(run: Any, piece: str) -> float:
    cells = run.workflow.pieces.cells(run, piece)
    return _area(box_of(run, piece)) if cells is None else cells / run.cells_by_area


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
    return str(run.workflow.pieces.keys()[0].format(piece=piece))


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
