"""The land cells of a run, and their series, made again by the rules' own functions."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import dask
import numpy as np
import xarray as xr

from espo_luigi import store
from espo_luigi.errors import DataError, ParameterError, StoreError
from espo_luigi.science import calendar, stack
from espo_luigi.science import regrid as cascade
from espo_luigi.science.calendar import fill_in_time
from espo_luigi.science.extract.repairs import with_repairs_told
from espo_luigi.science.finalize import gaps
from espo_luigi.science.sphere import Grid
from espo_luigi.tasks import partition
from espo_luigi.tasks.adjustment import REFERENCE_CALENDARS, Adjust, Train
from espo_luigi.tasks.context import RunContext
from espo_luigi.tasks.product import cut_to_domain
from espo_luigi.tasks.reference import RefDefault, ReferenceCalendar
from espo_luigi.tasks.simulation import Extract

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
        layout = "rectilinear" if grid["lat"].ndim == 1 else "curvilinear"
        lat, lon = Grid(grid["lat"].values, grid["lon"].values, layout).coordinates()
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
    point = Grid(np.array([lat]), np.array([lon]), "points").unit_vectors()[0]
    nearest: list[tuple[float, int, Land]] = []
    dry: list[tuple[float, int, Land]] = []
    for land in lands(run):
        away = np.linalg.norm(Grid(land.lat, land.lon, "points").unit_vectors() - point, axis=1)
        nearest.append((float(away.min()), int(away.argmin()), land))
        to_land = np.where(land.is_land, away, np.inf)
        dry.append((float(to_land.min()), int(to_land.argmin()), land))
    distance, number, land = min(nearest, key=lambda candidate: candidate[0])
    if distance > _half_diagonal(land):
        raise ParameterError(
            f"{lat:g} °N {lon:g} °E lies outside of the domain: the nearest cell, {land.lat[number]:g} °N "
            f"{land.lon[number]:g} °E, is {distance * _EARTH_KM:.0f} km away. Give a point inside."
        )
    shortest, place, its = min(dry, key=lambda candidate: candidate[0])
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


# The series of cells.


def extracted(sim_id: str) -> xr.Dataset:
    """Return what `Extract` makes of a simulation, lazily, from the raw files."""
    made = Extract(sim_id=sim_id).compute([])
    assert isinstance(made, xr.Dataset)
    return made


def regridding(run: RunContext, piece: str, raw: xr.Dataset) -> cascade.Weights:
    """Return the weights with which `Regrid` makes a piece of a simulation whose extracted data are `raw`."""
    config, target = run.config.regrid, store.open_store(_reference(piece, "noleap"), cut=False)
    return cascade.weigh(raw, target, **config.regrid_dataset.arguments(), skip_coarser=config.skip_coarser)


def from_raw(run: RunContext, sim_id: str, places: Mapping[str, np.ndarray]) -> dict[str, xr.Dataset]:
    """Return the regridded series at places of pieces, in memory: (time, loc); reads each raw file once."""
    raw = extracted(sim_id)
    lazy = {piece: cascade.regrid_cells(raw, regridding(run, piece, raw), some) for piece, some in places.items()}
    (computed,) = dask.compute(lazy)
    how = run.config.extraction.simulation.fill_in_time
    filled = {piece: fill_in_time(with_repairs_told(made), how=how) for piece, made in computed.items()}
    return {piece: _placed(made, piece, places[piece]) for piece, made in filled.items()}


def _placed(series: xr.Dataset, piece: str, places: np.ndarray) -> xr.Dataset:
    """The series with the reference's coordinates of its cells."""
    target = store.open_store(_reference(piece, "noleap"), cut=False)
    at = {
        name: coord.isel({stack.STACKED_DIM: places}).variable
        for name, coord in target.coords.items()
        if stack.STACKED_DIM in coord.dims
    }
    return series.assign_coords(at)


def series_of(run: RunContext, sim_id: str, cell: Cell) -> tuple[xr.Dataset, str]:
    """Return the regridded series of a cell, and the name of the store that has it, or "" if made of raw files."""
    places = np.array([cell.place])
    for info in run.production.stores_on_the_way(sim_id, cell.piece)["regridding"]:
        if store.is_complete(info.path):
            kept = store.open_store(info.path).isel({stack.STACKED_DIM: places}).load()
            return _placed(kept, cell.piece, places), info.path.name
    return from_raw(run, sim_id, {cell.piece: places})[cell.piece], ""


def references_of(run: RunContext, piece: str, places: np.ndarray, simulation: xr.Dataset) -> xr.Dataset:
    """Return the reference of cells in the calendar of a simulation's training, in memory."""
    common = calendar.minimum_calendar(calendar.calendar_of(simulation), run.config.custom.maximal_calendar)
    path = _reference(piece, "360_day" if common == "360_day" else "noleap")
    return store.open_store(path).isel({stack.STACKED_DIM: places}).load()


def _reference(piece: str, name: str) -> Any:
    return ReferenceCalendar(piece=piece, calendar=name).out_reference().path


@dataclass(frozen=True)
class Series:
    """Cells of a pool, in the order of `places`, as the rules make them.

    Attributes
    ----------
    reference
        In the calendar of the training.
    members
        The regridded series of the pool's members, by id.
    training, adjusted
        By variable; a pool's members are together.
    """

    pool: str
    piece: str
    places: np.ndarray
    reference: xr.Dataset
    members: Mapping[str, xr.Dataset]
    training: Mapping[str, xr.Dataset] = field(default_factory=dict)
    adjusted: Mapping[str, xr.Dataset] = field(default_factory=dict)

    @property
    def before(self) -> np.ndarray:
        """How many of the piece's cells that are left out lie before each cell."""
        return self.places - np.arange(self.places.size)

    def in_order(self, run: RunContext) -> list[xr.Dataset]:
        """Return the members in the order of the pool."""
        return [self.members[name] for name in partition.members(run, self.pool)]

    def cell(self, place: int) -> Series:
        """Return the series of a cell, whose coordinates say that it is stacked of a grid of one cell."""
        at = {stack.STACKED_DIM: np.flatnonzero(self.places == place)}
        groups = (
            {name: _alone(ds.isel(at)) for name, ds in of.items()}
            for of in (self.members, self.training, self.adjusted)
        )
        return Series(self.pool, self.piece, np.array([place]), _alone(self.reference.isel(at)), *groups)


def _alone(ds: xr.Dataset) -> xr.Dataset:
    stacked = {name: coord for name, coord in ds.coords.items() if stack.STACKED_DIM in coord.dims}
    own = ds.assign_coords({name: coord.variable.copy(deep=False) for name, coord in stacked.items()})
    for coord in own.coords.values():
        if stack.ORIGINAL_SHAPE in coord.attrs:
            coord.attrs[stack.ORIGINAL_SHAPE] = "1x1"
    return own


def adjust(run: RunContext, given: Series, only: Sequence[str] = ()) -> Series:
    """Train and adjust cells of a piece, as few as fit into a block of the kernels.

    `only` are the product's variables that are wanted, by default all.
    """
    in_order, training, adjusted = given.in_order(run), {}, {}
    for var in run.production.needed(only):
        names = {"pool": given.pool, "piece": given.piece, "var": var}
        reference, method = [given.reference] * len(REFERENCE_CALENDARS), run.config.biasadjust.variables[var].chosen
        if method.trains:
            made = Train(**names).compute(reference, in_order, given.before)
            training[var] = made.compute(scheduler="synchronous")
        trained = [training[var]] if method.trains else []
        known = reference if method.needs_reference_to_adjust else []
        scenario = Adjust(**names).compute(trained, in_order, known, given.before)
        adjusted[var] = scenario.compute(scheduler="synchronous")
    return replace(given, training=training, adjusted=adjusted)


def check_complete(series: Series, cell: Cell) -> None:
    """Raise `DataError` if the regridded series of a cell lack the days of a year or more."""
    for name, ds in series.members.items():
        for var, data in ds.data_vars.items():
            missing = int(data.isnull().sum())
            if missing >= gaps.DAYS_OF_A_GAP:
                raise DataError(
                    f"{name} has no {var} on {missing} of {data.size} days in the cells that {cell} is interpolated "
                    "from (`incomplete` in the extracted data): it is not explained. Choose a different cell."
                )


# The product.


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
    own = series.cell(cell.place)
    land = next(land for land in lands(run) if land.piece == cell.piece)
    y, x = stack.horizontal_dims(land.grid)
    grid = land.grid.isel({y: [cell.row], x: [cell.column]})
    product = run.production.product_of_cell(run, sim_id, cell.piece, grid, own.adjusted, only)
    return Made(run, sim_id, cell, own, product.isel({y: 0, x: 0}).compute(scheduler="synchronous"))
