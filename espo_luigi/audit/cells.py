"""The land cells of a run, and their series, made again by the rules' own functions."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import dask
import numpy as np
import xarray as xr

from espo_luigi import store
from espo_luigi.errors import DataError, ParameterError, StoreError
from espo_luigi.methods.base import Step
from espo_luigi.science import regrid as cascade
from espo_luigi.science import stack
from espo_luigi.science.calendar import fill_in_time
from espo_luigi.science.coarse import Places, places_of
from espo_luigi.science.extract.repairs import with_repairs_told
from espo_luigi.science.geometry.cells import horizontal_dims
from espo_luigi.science.limits import DAYS_OF_A_GAP
from espo_luigi.science.sphere import unit_vectors
from espo_luigi.tasks import partition
from espo_luigi.tasks.adjustment import REFERENCE_CALENDARS, Adjust, Train
from espo_luigi.tasks.context import RunContext, context
from espo_luigi.tasks.downscaling import Downscale
from espo_luigi.tasks.reference import CoarseReference, RefDefault, ReferenceCalendar
from espo_luigi.tasks.simulation import Extract, options_of

_EARTH_KM = 6371.0


@dataclass(frozen=True)
class Cell:
    """A land cell: its place among its piece's land cells, and its row and column in the piece's grid."""

    piece: str
    place: int
    row: int
    column: int
    lat: float
    lon: float

    def __str__(self) -> str:
        return f"{self.lat:g} °N {self.lon:g} °E"


@dataclass(frozen=True)
class Land:
    """The land of a piece: its grid with `land`, and the coordinates of all of the grid's cells."""

    piece: str
    grid: xr.Dataset
    lat: np.ndarray
    lon: np.ndarray

    @property
    def is_land(self) -> np.ndarray:
        """Whether a cell of the grid, in C order, is land of this piece."""
        return self.grid["land"].values.ravel()

    def cell(self, number: int) -> Cell:
        """Return the land cell with this number in the grid, in C order."""
        row, column = divmod(number, self.grid["land"].shape[1])
        place = int(self.is_land[:number].sum())
        return Cell(self.piece, place, row, column, float(self.lat[number]), float(self.lon[number]))


@functools.lru_cache(maxsize=1)
def lands(run: RunContext) -> tuple[Land, ...]:
    """Return the land of each piece, from the stores of `RefDefault`; raises `StoreError` if one is missing."""
    made = []
    for piece in partition.pieces(run):
        grid = store.open_store(RefDefault(piece=piece).out_grid().path, cut=False)
        lat, lon = cascade.horizontal_of(grid, "reference").grid.coordinates()
        made.append(Land(piece, grid.load(), lat.ravel(), lon.ravel()))
    return tuple(made)


def find_cell(run: RunContext, lat: float, lon: float) -> Cell:
    """Return the land cell that a point lies in.

    Raises
    ------
    ParameterError
        If the point is none of the globe, lies outside of the domain, or in a cell of the sea.
    """
    if not (abs(lat) <= 90 and abs(lon) <= 360):
        raise ParameterError(f"{lat:g} °N {lon:g} °E is no place; expected latitudes of -90 to 90, longitudes to 360.")
    point = unit_vectors(np.array(lat), np.array(lon))
    apart = [np.linalg.norm(unit_vectors(land.lat, land.lon) - point, axis=1) for land in lands(run)]
    distance, number, land = _nearest(run, apart)
    shortest, place, its = _nearest(
        run, [np.where(land.is_land, away, np.inf) for land, away in zip(lands(run), apart, strict=True)]
    )
    # Half a diagonal of the grid's largest cell, as a chord of the unit sphere.
    corners = unit_vectors(land.lat, land.lon).reshape(*land.grid["land"].shape, 3)
    sides = [np.linalg.norm(np.diff(corners, axis=axis), axis=-1).max(initial=0) for axis in (0, 1)]
    if distance > np.hypot(*sides) / 2 * 1.001:
        raise ParameterError(
            f"{lat:g} °N {lon:g} °E lies outside of the domain: the nearest cell, {land.lat[number]:g} °N "
            f"{land.lon[number]:g} °E, is {distance * _EARTH_KM:.0f} km away. Give a point inside."
        )
    if shortest > distance:
        raise ParameterError(
            f"{lat:g} °N {lon:g} °E lies in a cell of the sea ({land.lat[number]:g} °N {land.lon[number]:g} °E), where "
            f"the reference has no data and products have no values. The nearest land cell is {its.cell(place)}."
        )
    return its.cell(place)


def _nearest(run: RunContext, apart: Sequence[np.ndarray]) -> tuple[float, int, Land]:
    """The shortest distance of all pieces, and its cell's number and piece."""
    index = int(np.argmin([away.min() for away in apart]))
    return float(apart[index].min()), int(apart[index].argmin()), lands(run)[index]


# The series of cells.


def extracted(sim_id: str) -> xr.Dataset:
    """Return what `Extract` makes of a simulation, lazily, from the raw files.

    Raises `StoreError` if they are by hours, which are not read again, and the store of their days is gone.
    """
    task = Extract(sim_id=sim_id)
    if task.raw().hours and not store.is_complete(daily := task.in_daily().path):
        raise StoreError(
            f"the files of {sim_id} are by hours, which are not read again for a cell, and {daily} is gone. "
            f"Make it again: `espo make {daily}`"
        )
    made = task.compute([], [])
    assert isinstance(made, xr.Dataset)
    return made


def regridding(run: RunContext, piece: str, raw: xr.Dataset) -> dict[Hashable, cascade.Weights]:
    """Return the weights with which `Regrid` makes a piece of a simulation whose extracted data are `raw`."""
    target = store.open_store(_reference(piece, "noleap"), cut=False)
    if partition.is_coarse(run, piece):
        coarse = CoarseReference(piece=piece, calendar="noleap")
        grid, raw = store.open_store(coarse.out_grid().path), cascade.with_corners(raw)
    else:
        grid = next(land.grid for land in lands(run) if land.piece == piece)
    return cascade.weigh(raw, target, whole=grid, **options_of(run, piece))


def from_raw(run: RunContext, sim_id: str, places: Mapping[str, np.ndarray]) -> dict[str, xr.Dataset]:
    """Return the regridded series at places of pieces, in memory: (time, loc); reads each raw file once."""
    raw = extracted(sim_id)
    lazy = {piece: cascade.regrid_cells(raw, regridding(run, piece, raw), some) for piece, some in places.items()}
    (computed,) = dask.compute(lazy)
    how = run.config.extraction.simulation.fill_in_time
    return {piece: fill_in_time(with_repairs_told(made), how=how) for piece, made in computed.items()}


def _reference(piece: str, name: str) -> Any:
    rule = CoarseReference if partition.is_coarse(context(), piece) else ReferenceCalendar
    return rule(piece=piece, calendar=name).out_reference().path


@dataclass(frozen=True)
class Series:
    """Cells of a pool, in the order of `places`, as the rules make them.

    Attributes
    ----------
    references
        In each calendar, as `Train` gets them.
    members
        The regridded series of the pool's members, by id.
    training, adjusted
        By the name that the configuration adjusts; a pool's members are together.
    coarse
        Of a downscaled cell, the coarse cell that it was made of, whose `training` and `members` it has.
    told
        Of a downscaled cell, what returns the steps of a variable, by its name and its group's, a day and a member.
    """

    pool: str
    piece: str
    places: np.ndarray
    references: list[xr.Dataset]
    members: Mapping[str, xr.Dataset]
    training: Mapping[str, list[xr.Dataset]] = field(default_factory=dict)
    adjusted: Mapping[str, xr.Dataset] = field(default_factory=dict)
    coarse: Series | None = None
    told: Callable[[str, str, str, int], list[Step]] | None = None

    @property
    def before(self) -> np.ndarray:
        """How many of the piece's cells that are left out lie before each cell."""
        return self.places - np.arange(self.places.size)

    @property
    def variables(self) -> dict[str, xr.DataArray]:
        """The adjusted variables."""
        return {
            str(name): ds[name] for ds in self.adjusted.values() for name in ds.data_vars if "time" in ds[name].dims
        }

    def references_for(self, task: Adjust) -> list[xr.Dataset]:
        """Return the references that a task of adjusting gets."""
        return self.references if task.how.chosen.needs_reference_to_adjust else []

    def cells(self, at: slice | np.ndarray) -> Series:
        """Return some of the cells."""
        cut = {stack.STACKED_DIM: at}
        return replace(
            self,
            places=self.places[at],
            references=[ds.isel(cut) for ds in self.references],
            members={name: ds.isel(cut) for name, ds in self.members.items()},
            training={name: [ds.isel(cut) for ds in made] for name, made in self.training.items()},
            adjusted={name: ds.isel(cut) for name, ds in self.adjusted.items()},
        )

    def alone(self, place: int) -> Series:
        """Return a cell, whose coordinates say that it is stacked of a grid of one cell."""
        own = self.cells(np.flatnonzero(self.places == place))
        adjusted = {name: ds.copy() for name, ds in own.adjusted.items()}
        for coord in (ds[name] for ds in adjusted.values() for name in ds.coords):
            if stack.ORIGINAL_SHAPE in coord.attrs:
                coord.attrs = {**coord.attrs, stack.ORIGINAL_SHAPE: "1x1"}
        return replace(own, adjusted=adjusted)


def series_of(pool: str, piece: str, places: np.ndarray, members: Mapping[str, xr.Dataset]) -> Series:
    """Return members and reference of cells, not trained yet; the reference's coordinates are the members', too."""
    paths = [_reference(piece, name) for name in REFERENCE_CALENDARS]
    references = [store.open_store(path).isel({stack.STACKED_DIM: places}).load() for path in paths]
    at = {name: coord.variable for name, coord in references[0].coords.items() if stack.STACKED_DIM in coord.dims}
    return Series(pool, piece, places, references, {name: ds.assign_coords(at) for name, ds in members.items()})


def kept_series(run: RunContext, pool: str, piece: str, places: np.ndarray) -> tuple[Series, str]:
    """Return the regridded series of cells, and the name of a store that has them, or "" if made of raw files."""
    members, source = {}, ""
    for name in partition.members(run, pool):
        infos = run.production.stores_on_the_way(name, piece)["regridding"]
        path = next((info.path for info in infos if store.is_complete(info.path)), None)
        if path is None:
            members[name] = from_raw(run, name, {piece: places})[piece]
        else:
            members[name] = store.open_store(path).isel({stack.STACKED_DIM: places}).load()
        source = path.name if path else ""
    return series_of(pool, piece, places, members), source


def adjust(given: Series, only: Sequence[str]) -> Series:
    """Train and adjust cells of a piece, as few as fit into a block of the kernels; `only` names what is adjusted."""
    in_order = list(given.members.values())
    training: dict[str, list[xr.Dataset]] = {}
    adjusted: dict[str, xr.Dataset] = {}
    for var in only:
        names = {"pool": given.pool, "piece": given.piece, "var": var}
        task, training[var] = Adjust(**names), []
        if task.how.chosen.trains:
            made = Train(**names).compute(given.references, in_order, given.before)
            training[var] = [made.compute(scheduler="synchronous")]
        used = training[var], in_order, given.references_for(task), given.before
        scenario = task.compute(*used, with_flags=False)
        adjusted[var] = scenario.compute(scheduler="synchronous")
    return replace(given, training=training, adjusted=adjusted)


def coarse_places(run: RunContext, pool: str, cell: Cell) -> np.ndarray:
    """Return the places of the coarse cells that a cell is downscaled of."""
    places = _around(run, pool, store.open_store(_reference(partition.adjusted_piece(run, pool), "noleap")), cell)
    return np.unique(np.concatenate([places.own, places.corners[places.weights > 0]]))


def _around(run: RunContext, pool: str, coarse: xr.Dataset, cell: Cell) -> Places:
    grid = run.coarse_grid(pool)
    numbers = grid.numbers(coarse["lat"].values, coarse["lon"].values)
    return places_of(grid, numbers, np.array([cell.lat]), np.array([cell.lon]))


def downscale(run: RunContext, given: Series, cell: Cell) -> Series:
    """Return a cell that is downscaled of the adjusted coarse cells around it."""
    tasks = {var: Downscale(pool=given.pool, piece=cell.piece, var=var) for var in given.adjusted}
    fine = [store.open_store(output().path) for output in next(iter(tasks.values())).in_reference]
    series, at = {var: (ds, given.references, fine) for var, ds in given.adjusted.items()}, np.array([cell.place])

    def told(group: str, name: str, date: str, member: int) -> list[Step]:
        return tasks[group].steps(*series[group], name, cell.place, date=date, member=member)

    made = {var: task.compute(*series[var], at).compute(scheduler="synchronous") for var, task in tasks.items()}
    coarse = given.cells(_around(run, given.pool, given.references[0], cell).own)
    own = series_of(given.pool, cell.piece, at, coarse.members)
    return replace(own, training=coarse.training, adjusted=made, coarse=coarse, told=told)


def cells_drawn_together(given: Series, only: Sequence[str]) -> int:
    """Return the size of the blocks for which a method draws random numbers; 0 if each cell draws by itself.

    Of several methods, it is the smallest in which the blocks of each are whole. Such a cell is made again with all of
    its block.
    """
    first, sizes = given.cells(slice(1)), []
    for var in only:
        method = Adjust(pool=given.pool, piece=given.piece, var=var).how.chosen
        if not method.fixed_blocks or method.draws_by_cell:
            continue
        # Our kernels, which count treated days of a variable, may do what the method is asked for.
        if method.variables_together or len(adjust(first, [var]).adjusted[var]) == 1:
            sizes.append(max(1, method.cells_in_a_block // len(given.members)))
    return math.lcm(*sizes) if sizes else 0


def block_of(run: RunContext, piece: str, place: int, size: int) -> np.ndarray:
    """Return the places of the block of so many cells that a cell lies in."""
    (land,) = (land for land in lands(run) if land.piece == piece)
    first = place // size * size
    return np.arange(first, min(first + size, int(land.is_land.sum())))


def check_complete(series: Series, cell: Cell, variables: Sequence[str]) -> None:
    """Raise `DataError` if the regridded series of variables of a cell lack the days of a year or more."""
    for name, ds in series.members.items():
        for var, data in ds[list(variables)].data_vars.items():
            missing = int(data.isnull().sum())
            if missing >= DAYS_OF_A_GAP:
                raise DataError(
                    f"{name} has no {var} on {missing} of {data.size} days in the cells that {cell} is interpolated "
                    "from (`incomplete` in the extracted data): it is not explained. Choose a different cell."
                )


# The product.


def in_product(product: xr.Dataset, run: RunContext, sim_id: str, cell: Cell) -> xr.Dataset:
    """Return a cell of a product, lazily; raises `ParameterError` if a regional simulation does not cover it."""
    grid = next(land.grid for land in lands(run) if land.piece == cell.piece)
    at = dict(zip(horizontal_dims(grid), (cell.row, cell.column), strict=True))
    places = {dim: np.flatnonzero(product[dim].values == grid[dim].values[place]) for dim, place in at.items()}
    own = product.isel({dim: found[:1] for dim, found in places.items()})
    first_day = (data.isel(time=0) for data in own.data_vars.values() if "time" in data.dims)
    is_covered = all(own.sizes[dim] for dim in at)
    if not is_covered or (run.is_regional(sim_id) and all(bool(data.isnull().all()) for data in first_day)):
        raise ParameterError(f"{cell} lies outside of the simulation's domain, to which its products are cut.")
    return own.squeeze(list(at))


def open_product(path: Any) -> xr.Dataset:
    """Open a final store; raises `StoreError` with the command that makes it."""
    try:
        return store.open_store(path)
    except StoreError as error:
        raise StoreError(f"{error} (`espo make {path}`)") from error


@dataclass(frozen=True)
class Made:
    """A cell as the rules make it for a simulation: its series, and the variables of its product (time)."""

    run: RunContext
    sim_id: str
    cell: Cell
    series: Series
    product: xr.Dataset


def finish(run: RunContext, sim_id: str, cell: Cell, series: Series, only: Sequence[str] = ()) -> Made:
    """Clean a cell of adjusted series up, as the simulation's product has it; in memory."""
    own = series.alone(cell.place)
    land = next(land for land in lands(run) if land.piece == cell.piece)
    y, x = horizontal_dims(land.grid)
    grid = land.grid.isel({y: [cell.row], x: [cell.column]})
    names = {"sim_id": sim_id, "pool": own.pool, "piece": own.piece}
    product = run.production.product_of_cell(names, grid, own.adjusted, only)
    return Made(run, sim_id, cell, own, product.isel({y: 0, x: 0}).compute(scheduler="synchronous"))
