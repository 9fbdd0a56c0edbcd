"""What a production consists of: `Production`, the class that each production line describes itself with.

`espo_2024` and `espo_v2` describe ours. The configuration's `production` chooses by name, among ours and those that
installed packages register under the entry-point group `espo_luigi.productions`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import xarray as xr

from espo_luigi.config import Region, RunConfig
from espo_luigi.fields import registered
from espo_luigi.science import stack
from espo_luigi.science.coarse import ROUND_OFF, CoarseGrid
from espo_luigi.science.finalize.scenario import Treatment
from espo_luigi.tasks.partition import PIECE_KEY, check_land_cells
from espo_luigi.tasks.ports import upstream

_OURS = {"espo-2024": "espo_luigi.tasks.espo_2024:Espo2024", "espo-v2": "espo_luigi.tasks.espo_v2:EspoV2"}


@dataclass(frozen=True)
class Boxes:
    """The parts of the land that are worked on side by side: the boxes of `custom.regions`, each with its own grid."""

    regions: Mapping[str, Region]

    def names(self, run: Any) -> list[str]:
        """Return the names of all pieces, from south to north."""
        return list(self.regions)

    def box(self, name: str) -> Region:
        """Return the box that contains a piece."""
        return self.regions[name]

    def cells(self, run: Any, name: str) -> float | None:
        """Return how many cells a piece has, or None where only its box is known."""
        return None

    def near(self, run: Any, name: str, grid: CoarseGrid) -> list[str]:
        """Return the pieces that may have fine cells of the coarse cells that a piece has cells of, itself included."""
        (south, north), rows = self.box(name).lat_bnds, grid.edges[0]
        # A cell on an edge belongs to the coarse cell to the north.
        south, north = rows[rows <= south].max(initial=-90), rows[rows > north + ROUND_OFF].min(initial=90)
        boxes = ((other, self.box(other).lat_bnds) for other in self.names(run))
        return [other for other, (low, high) in boxes if low <= north and high >= south]

    def keys(self) -> tuple[str, ...]:
        """Return the configuration's keys on which a piece `{piece}` depends; that of its box is the first."""
        return (PIECE_KEY,)

    def cut(self, run: Any, reference: xr.Dataset, name: str) -> tuple[xr.Dataset, xr.Dataset]:
        """Return a piece of `reference`, which covers its box: the stacked land cells, and their grid with `land`."""
        grid = stack.grid_of(reference).assign(land=stack.land_of(reference))
        return stack.stack_drop_nans(reference), grid

    def draws(self, pool: str, name: str, var: str) -> tuple[str, int]:
        """Return the seed of a pool's random draws, and the place of the piece's first cell in its count of cells."""
        return f"{pool}+{name}+{var}", 0


@dataclass(frozen=True)
class Slices(Boxes):
    """Pieces are slices of so many land cells of the whole domain, in the order of its rows: sr-0, sr-1, …

    `regions` has the whole domain, without a buffer, as its only box.
    """

    size: int

    def names(self, run: Any) -> list[str]:
        """Return as many names as it takes for the land cells of the reference."""
        return [f"sr-{number}" for number in range(-(-run.land_cells // self.size))]

    def box(self, name: str) -> Region:
        """Return the whole domain."""
        (whole,) = self.regions.values()
        return whole

    def cells(self, run: Any, name: str) -> float | None:
        """Return the size of the slice; the last may be shorter."""
        return min(self.size, run.land_cells - self._first(name))

    def near(self, run: Any, name: str, grid: CoarseGrid) -> list[str]:
        """Return the slices that have fine cells of the coarse cells that a slice has cells of, itself included."""
        slices, numbers = _common_cells(run, grid, self.size).T
        own = numbers[slices * self.size == self._first(name)]
        return [f"sr-{number}" for number in np.unique(slices[np.isin(numbers, own)])]

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
            {name: field.variable for name, field in reference.coords.items() if "grid_mapping_name" in field.attrs}
        )
        return cells.isel({stack.STACKED_DIM: slice(first, first + self.size)}), grid

    def draws(self, pool: str, name: str, var: str) -> tuple[str, int]:
        """Return a seed for the whole domain: slices of any size draw the same."""
        return f"{pool}+{var}", self._first(name)

    def _first(self, name: str) -> int:
        return int(name.removeprefix("sr-")) * self.size


@functools.lru_cache(maxsize=64)  # each task asks for the slices near its own
def _common_cells(run: Any, grid: CoarseGrid, size: int) -> np.ndarray:
    """Return the pairs (pair, 2) of a slice of so many cells and a coarse cell that have fine cells in common."""
    return np.unique(np.stack([np.arange(run.land_cells) // size, run.coarse_numbers(grid)], axis=1), axis=0)


class Production:
    """A production line: how its work is divided, its last rules, and the names and places of what it makes.

    A subclass sets the attributes and overrides the methods in which it differs. Rules, commands, report and audit ask
    here; none of them asks which production it is. `run` is the `RunContext` everywhere.
    """

    name: ClassVar[str] = ""
    # The rule that makes the final archives, by its output `out_final`.
    final_rule: ClassVar[Any] = None
    # The rule and its output that each input of the report's summaries is: `prop` (maps that have values in the cells
    # of a diagnosed domain), `reference` and `regridded`.
    summarised: Mapping[str, tuple[Any, str]] = {}
    # The templates of outputs, by RULE.PORT, that differ from those of their classes.
    templates: ClassVar[Mapping[str, str]] = {}
    # The fields {collection} and {label} of templates, where the configuration names no project.
    collection: ClassVar[str] = ""
    label: ClassVar[str] = ""
    # The DRS of exports, and the key of the attributes that products are given.
    drs: ClassVar[str] = ""
    attributes: ClassVar[str] = ""
    # The table of `measured.yml` from which costs are estimated before the first job; "" has none.
    costs: ClassVar[str] = ""
    # The most members that a pool can have.
    most_members: int = 1
    # How the land is divided; set by `__init__`.
    pieces: Boxes

    def __init__(self, config: RunConfig) -> None:
        self.config = config

    def fields(self) -> dict[str, str]:
        """Return further fields of path templates: `collection` and `label` carry the project's name and version."""
        project = self.config.project
        if project is None or not project.name:
            return {"collection": self.collection, "label": self.label}
        named = f"{project.name}_v{project.version}" if project.version else project.name
        return {"collection": named, "label": named}

    def pool_of(self, run: Any, sim_id: str) -> str:
        """Return the name of a simulation's pool; by default each simulation is a pool."""
        return sim_id

    def members(self, run: Any, pool: str) -> Sequence[str]:
        """Return the ids of a pool's simulations."""
        if type(self).pool_of is Production.pool_of:  # without a search of the whole catalogue
            return [pool]
        return run.pools.get(pool, (pool,))

    def is_regional(self, run: Any, sim_id: str) -> bool:
        """Return True if a simulation covers only a part of the domain, to which its products are cut."""
        return False

    def ends(self, run: Any) -> Iterator[Any]:
        """Yield the last task of every chain."""
        raise NotImplementedError

    def archives(self, run: Any, sim_id: str) -> dict[str, Any]:
        """Return the store (`ZarrInfo`) of the final archive of each variable of a simulation's product."""
        raise NotImplementedError

    # What an audit of single cells asks.

    def stores_on_the_way(self, sim_id: str, piece: str) -> dict[str, list[Any]]:
        """Return the stores (`ZarrInfo`) of a piece's series, by step: "regridding", and "clean-up" if it has any."""
        raise NotImplementedError

    def needed(self, only: Sequence[str] = ()) -> list[str]:
        """Return what is adjusted, alone or in groups, to make the product's variables `only`, by default all."""
        return self.config.biasadjust.groups_of(self.config.needed_for(only or self.config.published))

    @property
    def bounds_of_derived(self) -> dict[str, tuple[float | None, float | None]]:
        """The bounds that derived variables are clipped to."""
        table = self.config.table
        return {name: table[name].bounds for name in self.config.derived if table[name].bounds != (None, None)}

    def product_of_cell(
        self, names: Mapping[str, str], grid: xr.Dataset, adjusted: Mapping[str, xr.Dataset], only: Sequence[str] = ()
    ) -> xr.Dataset:
        """Return the product's variables (`only` these, or all) of adjusted cells (time, loc) on their `grid`.

        `names` are the cells' `sim_id`, `pool` and `piece`.
        """
        raise NotImplementedError

    def treatment(self, var: str = "") -> Treatment:
        """Return what is done last to a variable of the product; without `var`, to all."""
        raise NotImplementedError


def summarised(name: str, rules: tuple[Any, ...], **fixed: Any) -> Any:
    """Declare an input of a summary, from the rule that the run's production names."""
    rule, port = (lambda task, at=at: task.context.production.summarised[name][at] for at in (0, 1))
    return upstream(rules, port, which=rule, **fixed)


def production_of(config: RunConfig) -> Production:
    """Return the production of a configuration: the one that it names; else, with `subregions`, ESPO v2.

    Raises
    ------
    ConfigurationError
        If there is no production of that name, or what an installed package registers cannot be used.
    """
    name = config.production or ("espo-2024" if config.subregions is None else "espo-v2")
    return registered(Production, name, _OURS)(config)
