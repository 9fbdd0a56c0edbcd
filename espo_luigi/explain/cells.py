"""The land cells of a run, and their series, made again by the rules' own functions."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import dask
import numpy as np
import xarray as xr

from espo_luigi import store
from espo_luigi.errors import ConfigurationError, DataError, ParameterError, StoreError
from espo_luigi.science import calendar, stack
from espo_luigi.science import regrid as cascade
from espo_luigi.science.calendar import fill_in_time
from espo_luigi.science.extract.repairs import with_repairs_told
from espo_luigi.science.finalize import gaps
from espo_luigi.science.sphere import Grid
from espo_luigi.tasks import partition
from espo_luigi.tasks.adjustment import Adjust, Train
from espo_luigi.tasks.base import EspoTask
from espo_luigi.tasks.context import RunContext
from espo_luigi.tasks.product import cut_to_domain
from espo_luigi.tasks.reference import RefDefault, ReferenceCalendar
from espo_luigi.tasks.simulation import Extract

Task = TypeVar("Task", bound=EspoTask)
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
    if not run.config.custom.stack_drop_nans:
        raise ConfigurationError(
            "`custom.stack_drop_nans` is false; `espo explain` knows runs of land cells (`stack_drop_nans: true`) only."
        )
    found = []
    for piece in partition.pieces(run):
        grid = store.open_store(RefDefault(piece=piece).out_grid().path, cut=False)
        layout = "rectilinear" if grid["lat"].ndim == 1 else "curvilinear"
        lat, lon = Grid(grid["lat"].values, grid["lon"].values, layout).coordinates()
        found.append(Land(piece, grid.load(), lat.ravel(), lon.ravel()))
    return tuple(found)


def find_cell(run: RunContext, lat: float, lon: float) -> Cell:
    """Return the land cell that a point lies in.

    Raises
    ------
    ParameterError
        If the point is none of the globe, lies outside of the domain, or in a cell of the sea.
    """
    if not (abs(lat) <= 90 and abs(lon) <= 360):
        raise ParameterError(f"{lat:g} °N {lon:g} °E is no place; expected latitudes of -90 to 90, longitudes to 360.")
    point = Grid(np.array([lat]), np.array([lon]), "points").unit_vectors()[0]
    nearest: list[tuple[float, int, Land]] = []
    dry: list[tuple[float, int, Land]] = []
    for land in lands(run):
        away = np.linalg.norm(Grid(land.lat, land.lon, "points").unit_vectors() - point, axis=1)
        nearest.append((float(away.min()), int(away.argmin()), land))
        to_land = np.where(land.is_land, away, np.inf)
        dry.append((float(to_land.min()), int(to_land.argmin()), land))
    distance, number, land = min(nearest, key=lambda one: one[0])
    if distance > _half_diagonal(land):
        raise ParameterError(
            f"{lat:g} °N {lon:g} °E lies outside of the domain: the nearest cell, {land.lat[number]:g} °N "
            f"{land.lon[number]:g} °E, is {distance * _EARTH_KM:.0f} km away. Give a point inside."
        )
    shortest, place, its = min(dry, key=lambda one: one[0])
    if shortest > distance:
        raise ParameterError(
            f"{lat:g} °N {lon:g} °E lies in a cell of the sea ({land.lat[number]:g} °N {land.lon[number]:g} °E), where "
            f"the reference has no data and products have no values. The nearest land cell is {its.cell(place)}."
        )
    return its.cell(place)


def _half_diagonal(land: Land) -> float:
    """Half a diagonal of the grid's largest cell, as a chord of the unit sphere."""
    points = Grid(land.lat, land.lon, "points").unit_vectors().reshape(*land.grid["land"].shape, 3)
    steps = [np.linalg.norm(np.diff(points, axis=axis), axis=-1) for axis in (0, 1)]
    tall, wide = (float(step.max()) if step.size else 0.0 for step in steps)
    return float(np.hypot(tall, wide) / 2 * 1.001)


def regridding(run: RunContext, sim_id: str, piece: str, raw: xr.Dataset) -> cascade.Weights:
    """Return the weights with which `Regrid` makes a piece of a simulation."""
    config, target = run.config.regrid, store.open_store(_calendar_of(piece, "noleap"), cut=False)
    return cascade.weigh(raw, target, **config.regrid_dataset.arguments(), skip_coarser=config.skip_coarser)


def extracted(sim_id: str) -> xr.Dataset:
    """Return what `Extract` makes of a simulation, lazily, from the raw files."""
    made = Extract(sim_id=sim_id).compute([])
    assert isinstance(made, xr.Dataset)
    return made


def from_raw(run: RunContext, sim_id: str, cells: Mapping[str, Sequence[Cell]]) -> dict[str, xr.Dataset]:
    """Return the regridded series of cells, by piece, in memory: (time, loc); reads each raw file once."""
    raw = extracted(sim_id)
    lazy = {
        piece: cascade.regrid_cells(raw, regridding(run, sim_id, piece, raw), np.array([one.place for one in some]))
        for piece, some in cells.items()
    }
    (computed,) = dask.compute(lazy)
    how = run.config.extraction.simulation.fill_in_time
    told = {piece: with_repairs_told(one) for piece, one in computed.items()}
    return {piece: _placed(fill_in_time(one, how=how), piece, cells[piece]) for piece, one in told.items()}


def _placed(series: xr.Dataset, piece: str, cells: Sequence[Cell]) -> xr.Dataset:
    """The series with the reference's coordinates of its cells."""
    target = store.open_store(_calendar_of(piece, "noleap"), cut=False)
    at = {
        name: one.isel({stack.STACKED_DIM: [cell.place for cell in cells]}).variable
        for name, one in target.coords.items()
        if stack.STACKED_DIM in one.dims
    }
    return series.assign_coords(at)


def stores_on_the_way(run: RunContext, sim_id: str, piece: str) -> list[Any]:
    """Return the complete stores (`ZarrInfo`) that have a piece's regridded series, temporary or kept."""
    infos = run.production.stores_on_the_way(sim_id, piece)["regridding"]
    return [info for info in infos if store.is_complete(info.path)]


def series_of(run: RunContext, sim_id: str, cell: Cell) -> tuple[xr.Dataset, str]:
    """Return the regridded series of a cell, and the name of the store that has it, or "" if made of raw files."""
    for info in stores_on_the_way(run, sim_id, cell.piece):
        kept = store.open_store(info.path).isel({stack.STACKED_DIM: [cell.place]}).load()
        return _placed(kept, cell.piece, [cell]), info.path.name
    return from_raw(run, sim_id, {cell.piece: [cell]})[cell.piece], ""


@dataclass(frozen=True)
class Made:
    """What the rules make of a cell: each dataset has one cell.

    Attributes
    ----------
    reference
        In the calendar of the training.
    members
        The regridded series of the pool's members, by id.
    training, adjusted
        By variable; a pool's are together.
    product
        The variables of the product of `sim_id`.
    """

    cell: Cell
    sim_id: str
    reference: xr.Dataset
    members: Mapping[str, xr.Dataset]
    training: Mapping[str, xr.Dataset]
    adjusted: Mapping[str, xr.Dataset]
    product: xr.Dataset


@dataclass(frozen=True)
class Inputs:
    """The series of cells: the reference in the training's calendar, and the pool's members, regridded, by id."""

    reference: xr.Dataset
    members: Mapping[str, xr.Dataset]


@dataclass(frozen=True)
class Series:
    """Trained and adjusted cells of a pool, by variable, in the order of the cells."""

    cells: Sequence[Cell]
    inputs: Inputs
    training: Mapping[str, xr.Dataset]
    adjusted: Mapping[str, xr.Dataset]


def adjust(run: RunContext, pool: str, some: Sequence[Cell], inputs: Inputs, only: Sequence[str] = ()) -> Series:
    """Train and adjust cells of a piece, as few as fit into a block of the kernels.

    `only` are the product's variables that are wanted, by default all.
    """
    in_order = [inputs.members[name] for name in partition.members(run, pool)]
    before = np.array([cell.place for cell in some]) - np.arange(len(some))
    training, adjusted = {}, {}
    for var in needed(run, only):
        train = _from(Train(pool=pool, piece=some[0].piece, var=var), before)
        training[var] = train.compute(inputs.reference, inputs.reference, in_order).compute(scheduler="synchronous")
        task = _from(Adjust(pool=pool, piece=some[0].piece, var=var), before)
        adjusted[var] = _only(task.compute(training[var], in_order), "adjusted").compute(scheduler="synchronous")
    return Series(some, inputs, training, adjusted)


def finish(run: RunContext, sim_id: str, series: Series, number: int, only: Sequence[str] = ()) -> Made:
    """Clean one of the cells up, by its number, as the simulation's product has it."""
    cell = series.cells[number]

    def own(ds: xr.Dataset) -> xr.Dataset:
        return _with_one_cell(ds.isel({stack.STACKED_DIM: [number]}))

    training, adjusted = ({var: own(ds) for var, ds in of.items()} for of in (series.training, series.adjusted))
    members = {name: own(ds) for name, ds in series.inputs.members.items()}
    product = _product_of(run, sim_id, cell, adjusted, only)
    return Made(cell, sim_id, own(series.inputs.reference), members, training, adjusted, product)


def needed(run: RunContext, only: Sequence[str]) -> list[str]:
    """Return the adjusted variables of which the product's variables `only` (by default all) are made."""
    return run.production.needed(only)


def references_of(run: RunContext, cells: Sequence[Cell], simulation: xr.Dataset) -> xr.Dataset:
    """Return the reference of cells of one piece in the calendar of a simulation's training, in memory."""
    common = calendar.minimum_calendar(calendar.calendar_of(simulation), run.config.custom.maximal_calendar)
    path = _calendar_of(cells[0].piece, "360_day" if common == "360_day" else "noleap")
    return store.open_store(path).isel({stack.STACKED_DIM: [cell.place for cell in cells]}).load()


def in_product(product: xr.Dataset, run: RunContext, sim_id: str, cell: Cell) -> xr.Dataset:
    """Return a cell of a product, lazily; raises `ParameterError` if a regional simulation does not cover it."""
    grid = next(land.grid for land in lands(run) if land.piece == cell.piece)
    at = {
        dim: grid[dim].values[place]
        for dim, place in zip(stack.horizontal_dims(grid), (cell.row, cell.column), strict=True)
    }
    inside = _outlined(run, sim_id) if run.is_regional(sim_id) else None
    if inside is not None and not (all(at[dim] in inside[dim] for dim in at) and bool(inside.sel(at))):
        raise ParameterError(f"{cell} lies outside of the simulation's domain, to which its products are cut.")
    return product.isel({dim: int(np.flatnonzero(product[dim].values == value)[0]) for dim, value in at.items()})


@functools.lru_cache(maxsize=4)
def _outlined(run: RunContext, sim_id: str) -> xr.DataArray:
    """The land inside of the outline to which a regional simulation's products are cut, on their grid."""
    grids = [land.grid for land in lands(run)]
    bare = grids[0].drop_vars("land")
    return cut_to_domain(bare, gaps.join_land([grid["land"] for grid in grids], bare), extracted(sim_id))[1]


def open_product(path: Any) -> xr.Dataset:
    """Open a final store; raises `StoreError` with the command that makes it."""
    try:
        return store.open_store(path)
    except StoreError as error:
        raise StoreError(f"{error} (`espo make {path}`)") from error


def _product_of(
    run: RunContext, sim_id: str, cell: Cell, adjusted: Mapping[str, xr.Dataset], only: Sequence[str]
) -> xr.Dataset:
    land = next(land for land in lands(run) if land.piece == cell.piece)
    y, x = stack.horizontal_dims(land.grid)
    grid = land.grid.isel({y: [cell.row], x: [cell.column]})
    made = run.production.product_of_cell(run, sim_id, cell.piece, grid, adjusted, only)
    return made.isel({y: 0, x: 0}).compute(scheduler="synchronous")


def _only(made: Any, port: str) -> xr.Dataset:
    """The dataset of a port, of a task that may have others."""
    found = made if isinstance(made, xr.Dataset) else made[port]
    if not isinstance(found, xr.Dataset):
        raise DataError(f"a rule made {type(found).__name__} of {port}; expected a dataset.")
    return found


def _from(task: Task, before: np.ndarray) -> Task:
    """The task, to be given some cells alone: before each lie so many that it is not given."""
    own = copy.copy(task)
    own.cells_before = before
    return own


def _with_one_cell(ds: xr.Dataset) -> xr.Dataset:
    """The dataset of a cell whose coordinates say that it is stacked of a grid of one cell."""
    stacked = {name: one for name, one in ds.coords.items() if stack.STACKED_DIM in one.dims}
    own = ds.assign_coords({name: one.variable.copy(deep=False) for name, one in stacked.items()})
    for one in own.coords.values():
        if stack.ORIGINAL_SHAPE in one.attrs:
            one.attrs[stack.ORIGINAL_SHAPE] = "1x1"
    return own


def _calendar_of(piece: str, name: str) -> Any:
    return ReferenceCalendar(piece=piece, calendar=name).out_reference().path
