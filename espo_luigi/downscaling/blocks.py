"""Downscaling of daily series by any downscaler: what surrounds the numbers of a block of whole coarse cells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import dask
import dask.array
import numpy as np
import xarray as xr

from espo_luigi.downscaling.base import Downscaler, Limit, Setup, downscaler_named
from espo_luigi.errors import DataError
from espo_luigi.methods.base import Step, checked
from espo_luigi.methods.dqm.ranking import of_quantiles
from espo_luigi.science import quality
from espo_luigi.science.attributes import QUANTILE
from espo_luigi.science.calendar import TimeAxis, calendar_of
from espo_luigi.science.chunks import REALIZATION, indexer
from espo_luigi.science.coarse import CoarseGrid, Places, areas_of, places_of, whole_cells
from espo_luigi.science.stack import STACKED_DIM
from espo_luigi.science.units import threshold_in, units_of
from espo_luigi.science.variables import VARIABLES, Variable, variable

# The part of the range between two bounds, and of a wet day's amount, below which values stand for the bound.
_OF_THE_RANGE, _OF_A_WET_DAY = 1e-4, 0.1
_COARSE_CELLS_AT_ONCE = 10


def downscale_variables(
    adjusted: xr.Dataset, coarse: xr.Dataset, fine: xr.Dataset, ways: Mapping[str, Mapping[str, Any]]
) -> xr.Dataset:
    """Return variables on fine cells, each downscaled by its arguments of `downscale` in `ways`; lazy if a series is.

    What stands beside a variable for days or cells, its flags, is that of the own coarse cell; flags of cells tell,
    too, where this is only the nearest.
    """
    made = {}
    for name, how in ways.items():
        ranks = adjusted.get(f"{name}_{QUANTILE}")
        found = downscale_and_mark(adjusted[name], coarse[name], fine[name], ranks, **how)
        made[name] = found["downscaled"].rename(name)
        at = {key: one for key, one in made[name].coords.items() if STACKED_DIM in one.dims}
        for key in quality.beside(adjusted.drop_vars(name), [name]):
            made[key] = adjusted[key].isel({STACKED_DIM: found["place"].values}).assign_coords(at)
        for of, mark in (("cells", "coarse_cell_missing"), ("days", "downscaled_beyond")):
            if (key := quality.flags_name(name, of)) in made and mark in found:
                made[key] = quality.of_downscaled(made[key], found[mark], mark, name)
    return xr.Dataset(made, attrs=adjusted.attrs)


def downscale(adjusted: xr.DataArray, coarse: xr.DataArray, fine: xr.DataArray, **arguments: Any) -> xr.DataArray:
    """Return the series of `downscale_and_mark`, whose arguments these are, under the simulation's name."""
    return downscale_and_mark(adjusted, coarse, fine, **arguments)["downscaled"].rename(adjusted.name)


def downscale_and_mark(
    adjusted: xr.DataArray,
    coarse: xr.DataArray,
    fine: xr.DataArray,
    ranks: xr.DataArray | None = None,
    **arguments: Any,
) -> xr.Dataset:
    """Return `downscaled`, an adjusted simulation on fine cells; lazy if a series is, but for the first day.

    Beside it are, by fine cell, the `place` of its coarse cell in `adjusted`, and whether that is only the nearest:
    `coarse_cell_missing`. Downscalers that need a day's quantile add where that is at an end: `downscaled_beyond`.
    Series are daily, of the same units and calendar, and have `loc` with `lat` and `lon`. A fine cell's values depend
    on the series of the coarse cells around it and of the fine cells of its own coarse cell, which have to be among the
    fine cells; not on others, nor on the order and the blocks of cells.

    Parameters
    ----------
    adjusted, coarse
        The simulation on cells of `grid` (loc, time), or members along `realization`; the reference on the same cells.
    ranks
        The quantile of each day of `adjusted`, as the adjustment kept it (`methods.dqm.ranking.as_quantiles`).
    **arguments
        The name `downscaler`, the `CoarseGrid` as `grid`, the `seed`, which with the coarse cell and the member's label
        decides random draws, the `table` of variables, by default the package's, and `downscaling.arguments`.

    Raises
    ------
    DataError
        If units, calendars or coarse cells differ, or a coarse cell has too many fine cells.
    ConfigurationError
        If an argument is unknown or wrong.
    """
    method, setup, series, at = _prepared(adjusted, coarse, fine, ranks, **arguments)
    places, seed = setup.places, setup.seed
    marks = type(method).beyond is not Downscaler.beyond
    order = np.lexsort((fine["lon"].values, fine["lat"].values, places.numbers))
    inside = places.numbers[order]
    method.check_sizes(inside)
    members = series["adjusted"].sizes.get(REALIZATION, 1)
    seeds = [f"{seed}+{label}" for label in np.atleast_1d(adjusted[REALIZATION].values)] if members > 1 else [seed]
    blocks: dict[str, list[Any]] = {"downscaled": [], **({"downscaled_beyond": []} if marks else {})}
    for part in whole_cells(inside, max(1, method.cells_in_a_block // members)):
        cells = order[part]
        near, setup_of_block = _of_block(method, setup, cells)
        taken = {name: one.isel({STACKED_DIM: indexer(near)}).data for name, one in series.items() if name != "fine"}
        of_fine = series["fine"].isel({STACKED_DIM: indexer(cells)}).data
        job = dask.delayed((method, setup_of_block, seeds), traverse=False)
        given = taken["coarse"], taken["adjusted"], taken.get("ranks")
        outputs = dask.delayed(_downscale_block, nout=len(blocks))(of_fine, *given, job)
        shape = (cells.size, *series["adjusted"].shape[1:])
        for name, made, dtype in zip(blocks, outputs, (adjusted.dtype, bool), strict=False):
            blocks[name].append(dask.array.from_delayed(made, shape, dtype))
    whole = xr.Dataset()
    for name, parts in blocks.items():
        data = dask.array.concatenate(parts)
        data = data[np.argsort(order)] if (np.diff(order) != 1).any() else data
        whole[name] = xr.Variable(series["adjusted"].dims, data).transpose(*adjusted.dims)
    if not any(one.chunks for one in (adjusted, coarse, fine)):
        whole = whole.compute(scheduler="synchronous")
    coords = {name: one for name, one in adjusted.coords.items() if STACKED_DIM not in one.dims}
    coords |= {name: one for name, one in fine.coords.items() if one.dims == (STACKED_DIM,)}
    told = [f"grid={arguments['grid'].name}", *(f"{key}={value!r}" for key, value in setup.arguments.items())]
    said, old = f"{method.name}({', '.join(told)})", adjusted.attrs
    history = "\n".join(filter(None, [f"Downscaled with {said}", old.get("history")]))
    adjustment = ", then ".join(filter(None, [old.get("bias_adjustment"), said]))
    whole["downscaled"].attrs = {**old, "history": history, "bias_adjustment": adjustment}
    whole["place"], whole["coarse_cell_missing"] = (STACKED_DIM, at[places.own]), (STACKED_DIM, places.nearest)
    return whole.assign_coords(coords)


def steps(
    adjusted: xr.DataArray,
    coarse: xr.DataArray,
    fine: xr.DataArray,
    ranks: xr.DataArray | None = None,
    *,
    cell: int,
    date: str,
    member: int = 0,
    **arguments: Any,
) -> list[Step]:
    """Return the steps from a coarse cell's adjusted value to that of a fine cell, by its place, on a day."""
    method, setup, series, _ = _prepared(adjusted, coarse, fine, ranks, **arguments)
    cells = setup.groups()[int(setup.places.numbers[cell])]
    cells = cells[np.lexsort((fine["lon"].values[cells], fine["lat"].values[cells]))]
    near, setup = _of_block(method, setup, cells)
    values = {name: one.isel({STACKED_DIM: near}).values for name, one in series.items() if name != "fine"}
    values = {name: _days_in_a_row(of_quantiles(one) if name == "ranks" else one) for name, one in values.items()}
    learned = method.learn(values["coarse"], _days_in_a_row(series["fine"].isel({STACKED_DIM: cells}).values), setup)
    if REALIZATION in series["adjusted"].dims:
        label = np.atleast_1d(adjusted[REALIZATION].values)[member]
        values = {name: one[:, member] if name != "coarse" else one for name, one in values.items()}
        setup = replace(setup, seed=f"{setup.seed}+{label}")
    of_member, setup = values["adjusted"], replace(setup, quantiles=values.get("ranks"))
    day = int(np.searchsorted(setup.time.days, setup.time.number(date)))
    place = int(np.flatnonzero(cells == cell)[0])
    return [Step("coarse", float(of_member[setup.places.own[place], day]), units_of(adjusted), "adjusted")] + [
        step._replace(unit=step.unit or units_of(adjusted))
        for step in method.steps(of_member, learned, setup, place, day)
    ]


def _prepared(
    adjusted: xr.DataArray,
    coarse: xr.DataArray,
    fine: xr.DataArray,
    ranks: xr.DataArray | None,
    *,
    downscaler: str,
    grid: CoarseGrid,
    seed: str,
    table: Mapping[str, Variable] = VARIABLES,
    **arguments: Any,
) -> tuple[Downscaler, Setup, dict[str, xr.DataArray], np.ndarray]:
    """Return the downscaler, its setup for all cells, and the series (loc, …, time).

    Coarse cells are those that have data, by their numbers; the last value has their places in the given series.
    """
    method = downscaler_named(downscaler)
    given = dict(checked(method.Arguments, arguments, "downscaling.arguments").arguments())
    for name, one in (("reference", fine), ("coarse reference", coarse)):
        if units_of(one) != units_of(adjusted) or calendar_of(one) != calendar_of(adjusted):
            raise DataError(
                f"the adjusted series is in {units_of(adjusted)} ({calendar_of(adjusted)} calendar), and the {name} in "
                f"{units_of(one)} ({calendar_of(one)}); expected the same. Make what is out of date again."
            )
    numbers = [grid.numbers(one["lat"].values, one["lon"].values) for one in (coarse, adjusted)]
    if not np.array_equal(numbers[0], numbers[1]):
        raise DataError(
            f"the coarse reference has {numbers[0].size} cells, and the adjusted simulation {numbers[1].size}, or "
            "others; expected the same, in the same order. Make what is out of date again."
        )
    # Regional simulations cover a part of the domain, where a cell without data is NaN throughout.
    has_data = adjusted.isel(time=0).notnull().transpose(STACKED_DIM, ...).values.reshape(numbers[0].size, -1)
    complete = np.flatnonzero(has_data.all(axis=1))
    by_number = complete[np.argsort(numbers[0][complete], kind="stable")]
    if not by_number.size:
        raise DataError("the adjusted simulation has no data in any coarse cell. Exclude it, or correct the domain.")
    series = {"fine": fine.transpose(STACKED_DIM, "time")}
    of_coarse = {"coarse": coarse, "adjusted": adjusted} | ({} if ranks is None else {"ranks": ranks})
    for name, on_grid in of_coarse.items():
        there = on_grid.transpose(STACKED_DIM, ..., "time").isel({STACKED_DIM: indexer(by_number)})
        # Cells are read by few: blocks of fine cells need some of all members.
        series[name] = there.chunk({STACKED_DIM: _COARSE_CELLS_AT_ONCE, "time": -1})
    places = places_of(grid, numbers[0][by_number], fine["lat"].values, fine["lon"].values)
    known = variable(str(adjusted.name), table)
    lower, upper = _limits(known, units_of(adjusted), given)
    wet = given.get("wet_day", known.wet)
    setup = Setup(
        kind=given.get("kind", known.kind),
        reference=TimeAxis.of(fine),
        time=TimeAxis.of(adjusted),
        places=places,
        numbers=numbers[0][by_number],
        areas=areas_of(fine.to_dataset(name="fine")),
        seed=seed,
        arguments=given,
        lower=lower,
        upper=upper,
        wet=None if wet is None else _in(wet, known, units_of(adjusted)),
    )
    return method, setup, series, by_number


def _in(given: float | str, known: Variable, unit: str) -> float:
    """Return a threshold, with a unit of its own or the table's, in a unit."""
    return threshold_in(given if isinstance(given, str) else f"{float(given)!r} {known.units}", unit)


def _limits(known: Variable, unit: str, given: Mapping[str, Any]) -> tuple[Limit | None, Limit | None]:
    """Return the variable's limits: its bounds, and thresholds that are given or follow from the table."""
    (low, high), width = known.bounds, known.jitter or 0.0
    width = width if low is None or high is None else _OF_THE_RANGE * (high - low)
    width = width if known.wet is None else _OF_A_WET_DAY * known.wet

    def limit(bound: float | None, key: str, inwards: float) -> Limit | None:
        if bound is None:
            return None
        return Limit(_in(bound, known, unit), _in(given.get(key, bound + inwards), known, unit))

    return limit(low, "lower_threshold", width), limit(high, "upper_threshold", -width)


def _of_block(method: Downscaler, setup: Setup, cells: np.ndarray) -> tuple[np.ndarray, Setup]:
    """Return the places of the coarse cells that fine cells need, and the setup of the block of these."""
    places = setup.places
    own, corners, weights = places.own[cells], places.corners[cells], places.weights[cells]
    if not method.interpolates:
        corners, weights = own[:, None], np.ones((own.size, 1))
    corners = np.where(weights > 0, corners, own[:, None])
    near, corners = np.unique(np.concatenate([own[:, None], corners], axis=1), return_inverse=True)
    corners = corners.reshape(own.size, -1)[:, 1:]
    in_block = Places(places.numbers[cells], np.searchsorted(near, own), places.nearest[cells], corners, weights)
    return near, replace(setup, places=in_block, numbers=setup.numbers[near], areas=setup.areas[cells])


def _days_in_a_row(values: np.ndarray) -> np.ndarray:
    """Return float64 with a cell's days next to each other in memory, by which kernels are faster: stores have maps."""
    return np.ascontiguousarray(values, dtype=np.float64)


def _downscale_block(
    fine: np.ndarray,
    coarse: np.ndarray,
    adjusted: np.ndarray,
    quantiles: np.ndarray | None,
    job: tuple[Downscaler, Setup, list[str]],
) -> tuple[np.ndarray, np.ndarray]:
    """Return the values, and where a quantile is at an end."""
    method, setup, seeds = job
    learned = method.learn(_days_in_a_row(coarse), _days_in_a_row(fine), setup)
    made = np.empty((len(fine), *adjusted.shape[1:]), adjusted.dtype)
    beyond = np.zeros(made.shape, bool)
    for member, seed in enumerate(seeds):
        of = (slice(None), member) if adjusted.ndim == 3 else ()
        given = _days_in_a_row(adjusted[of])
        kept = None if quantiles is None else _days_in_a_row(of_quantiles(quantiles[of]))
        of_member = replace(setup, seed=seed, quantiles=kept)
        of_member = replace(of_member, quantiles=method.quantiles(given, of_member))
        made[of] = method.apply(given, learned, of_member)
        if of_member.quantiles is not None:
            beyond[of] = method.beyond(learned, of_member)[setup.places.own]
    return made, beyond
