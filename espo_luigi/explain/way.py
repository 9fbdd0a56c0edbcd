"""The way of a value from the raw files to the product: its steps in turn, and the comparison at its end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import cftime
import numpy as np
import xarray as xr

from espo_luigi import store
from espo_luigi.errors import DataError, ParameterError, not_one_of
from espo_luigi.explain import cells
from espo_luigi.explain.cells import Cell, Made
from espo_luigi.explain.steps import adjusted_of, place_of
from espo_luigi.explain.values import TOLERANCE, Day, Final, Way, within_tolerance
from espo_luigi.science import calendar, stack
from espo_luigi.science.calendar import TimeAxis, day_of
from espo_luigi.science.choices import NEEDED_FOR
from espo_luigi.science.finalize.gaps import DAYS_OF_A_GAP
from espo_luigi.store.marker import processor
from espo_luigi.tasks import partition
from espo_luigi.tasks.adjustment import Adjust, Train
from espo_luigi.tasks.base import package_versions
from espo_luigi.tasks.context import RunContext, context


def way_of(sim_id: str, lat: float, lon: float, date: str, var: str = "") -> Way:
    """Return the way of the values of a simulation, at a point, on a day; of a variable of the product, or of all.

    Raises
    ------
    ParameterError
        If the simulation, variable, cell or day is none of the run's.
    DataError
        If the inputs of the cell lack a year or more, or a step does not give the product's value.
    StoreError
        If the product or the reference is not there.
    """
    run = context()
    sim_id, variables = _known(run, sim_id, var)
    cell = cells.find_cell(run, lat, lon)
    infos = run.archives(sim_id)
    products = {
        name: cells.in_product(cells.open_product(infos[name].path), run, sim_id, cell)[name] for name in variables
    }
    step = step_of(next(iter(products.values())), date)
    found = {one: cells.series_of(run, one, cell) for one in partition.members(run, partition.pool_of(run, sim_id))}
    members = {name: series for name, (series, _) in found.items()}
    check_complete({name: series[cells.needed(run, variables)] for name, series in members.items()}, cell)
    inputs = cells.Inputs(cells.references_of(run, [cell], members[sim_id]), members)
    pool = partition.pool_of(run, sim_id)
    made = cells.finish(run, sim_id, cells.adjust(run, pool, [cell], inputs, variables), 0, variables)
    raw = cells.extracted(sim_id)
    weights = cells.regridding(run, sim_id, cell.piece, raw)
    day = _day(made, raw, step)
    on_the_day = raw.isel(time=place_of(TimeAxis.of(raw), day.simulation_date)).compute()
    sources = {source for name in products for source in made_of(run, made, name, step)[0]}
    shown = [name for name in made.adjusted if name in sources]
    # In the order of the way, so that an error names the first step that differs.
    adjusted = {name: adjusted_of(run, made, name, day, (weights, on_the_day)) for name in shown}
    finals = tuple(_final(run, made, data, step, str(infos[name].path)) for name, data in products.items())
    marker = store.read_marker(infos[variables[0]].path)
    return Way(sim_id, tuple(members), cell, day, found[sim_id][1], adjusted, finals, other_versions(marker))


def _known(run: RunContext, sim_id: str, var: str) -> tuple[str, list[str]]:
    """The whole id of a simulation, and the variables; raises `ParameterError` with the nearest names."""
    whole = run.full_id(sim_id)
    if whole not in run.simulations:
        raise ParameterError(not_one_of("sim_id", sim_id, list(run.simulations), takes_parts=True))
    known = list(run.archives(whole))
    if var and var not in known:
        raise ParameterError(not_one_of("var", var, known))
    return whole, [var] if var else known


def step_of(data: xr.DataArray, date: str) -> int:
    """Return the time step of a day (YYYY-MM-DD) in a product; raises `ParameterError` if it has no such day."""
    axis = TimeAxis.of(data)
    spans = f"{day_of(data['time'].values[0])} to {day_of(data['time'].values[-1])}"
    try:
        year, month, of_month = (int(part) for part in date.split("-"))
    except ValueError:
        raise ParameterError(f"the date is {date!r}; expected YYYY-MM-DD.") from None
    try:
        wanted = cftime.datetime(year, month, of_month, calendar=axis.calendar)
    except ValueError:
        also = "; the product's years have no 29 February" if (month, of_month) == (2, 29) else ""
        raise ParameterError(
            f"{date} is no day of the product's calendar ({axis.calendar}){also}. Give another day."
        ) from None
    found = place_of(axis, wanted.isoformat()[:10])
    if found is None:
        raise ParameterError(f"{date} lies outside of the product, which has {spans}. Give a day inside.")
    return found


def check_complete(members: Mapping[str, xr.Dataset], cell: Cell) -> None:
    """Raise `DataError` if the regridded series of a cell lack the days of a year or more."""
    for name, series in members.items():
        for var, data in series.data_vars.items():
            missing = int(data.isnull().sum())
            if missing >= DAYS_OF_A_GAP:
                raise DataError(
                    f"{name} has no {var} on {missing} of {data.size} days in the cells that {cell} is interpolated "
                    "from (`incomplete` in the extracted data): it is not explained. Choose a different cell."
                )


def other_versions(marker: store.Marker | None) -> dict[str, tuple[str, str]]:
    """Return the packages, and the processor, that differ from the marker's: its own, and the present one."""
    if marker is None:
        return {}
    made = {**marker.versions, "processor": marker.processor}
    here = {**package_versions(), "processor": processor()}
    return {name: (was, here[name]) for name, was in made.items() if was and here.get(name, was) != was}


# Steps


def _day(made: Made, raw: xr.Dataset, step: int) -> Day:
    product = made.product
    axis = TimeAxis.of(product)
    name = calendar.calendar_of(raw)
    numbers = xr.DataArray(np.arange(raw.sizes["time"]), {"time": raw["time"]}, ["time"])
    places = calendar.convert(numbers, axis.calendar)
    at = int(places.sel(time=product["time"].values[step]))
    dayofyear = int(axis.dayofyear[step])
    days = calendar.DAYS_IN_YEAR.get(axis.calendar, 366)
    # A year without 29 February, in which each calendar has its usual days.
    year = xr.DataArray(np.arange(365), {"time": xr.date_range("2001-01-01", periods=365)}, ["time"])
    brought = calendar.convert(year, axis.calendar)
    reference_day = str(year["time"].values[int(brought.values[min(dayofyear, brought.size) - 1])])[5:10]
    return Day(
        day_of(product["time"].values[step]), axis.calendar, day_of(raw["time"].values[at]), name, dayofyear, days,
        reference_day,
    )  # fmt: skip


def _final(run: RunContext, made: Made, product: xr.DataArray, step: int, path: str) -> Final:
    """The last steps, and the comparison with the product."""
    var, value = str(product.name), float(product.isel(time=step))
    clean = made.product[var]
    day_value = float(clean.isel(time=step))
    sources, how = made_of(run, made, var, step)
    treatment = run.production.treatment(var)
    rounding, clipping, bits = treatment.round_var, treatment.clip_var, treatment.bits
    final = Final(
        var,
        str(clean.attrs.get("units", "")),
        sources,
        how,
        rounding.get(var),
        clipping.get(var),
        bits,
        day_value,
        value,
        path,
        {name: str(clean.attrs[name]) for name in ("long_name", "cell_methods") if name in clean.attrs},
    )
    if not within_tolerance(day_value, value):
        raw = cells.from_raw(run, made.sim_id, {made.cell.piece: [made.cell]})[made.cell.piece]
        found = step_of_difference(run, replace(made, members={**made.members, made.sim_id: raw}))
        raise DataError(
            f"{found}: {var} is {value!r} {final.units} in {path}, and {day_value!r} when it is made again from the "
            f"kept stores and raw files. {_blame(run, made.sim_id, var)}"
        )
    return final


_STEPS = ("regridding", "training", "adjustment", "clean-up", "product")


def step_of_difference(run: RunContext, made: Made) -> str:
    """Return the first step whose kept store differs from the cell that was made again of raw files, or else the last.

    Where stores before it were deleted, the steps from the first of these on are named: "training to clean-up".
    """
    agrees = -1
    for step, info, own in _kept_stores(run, made):
        if not _has(info.path, own, made.cell):
            return f"{_span(agrees, step)} ({info.path.name})"
        agrees = _STEPS.index(step)
    return _span(agrees, "product")


def _span(agrees: int, step: str) -> str:
    first = _STEPS[agrees + 1] if agrees + 1 < _STEPS.index(step) else step
    return step if first == step else f"{first} to {step}"


def _kept_stores(run: RunContext, made: Made) -> Iterator[tuple[str, Any, xr.Dataset]]:
    """The complete stores (`ZarrInfo`) on the way, their steps, and what was made again, in the order of the way."""
    sim_id, piece, pool = made.sim_id, made.cell.piece, partition.pool_of(run, made.sim_id)
    found: list[tuple[str, Any, xr.Dataset]] = [
        ("regridding", info, made.members[sim_id]) for info in cells.stores_on_the_way(run, sim_id, piece)[:1]
    ]
    for var, own in made.training.items():
        found.append(("training", Train(pool=pool, piece=piece, var=var).out_training(), own))
    for var, own in made.adjusted.items():
        found.append(("adjustment", Adjust(pool=pool, piece=piece, var=var).out_adjusted(), own))
    for info in run.production.stores_on_the_way(sim_id, piece).get("clean-up", ()):
        found.append(("clean-up", info, made.product))
    return (one for one in found if store.is_complete(one[1].path))


def _has(path: Any, own: xr.Dataset, cell: Cell) -> bool:
    """Whether a store has these values in a cell, up to round-off."""
    theirs = store.open_store(path)
    if stack.STACKED_DIM in theirs.dims:
        theirs = theirs.isel({stack.STACKED_DIM: [cell.place]})
    else:
        theirs = theirs.isel(dict(zip(stack.horizontal_dims(theirs), (cell.row, cell.column), strict=True)))
    return all(
        # With a changed setting, a training may have other quantiles.
        dict(data.sizes) == dict(own[name].sizes)
        and np.allclose(data.transpose(*own[name].dims).values, own[name].values, TOLERANCE, 0, equal_nan=True)
        for name, data in theirs.data_vars.items()
        if name in own
    )


def _blame(run: RunContext, sim_id: str, var: str) -> str:
    """What changed since a product was made, as `espo plan --rerun stale` finds it."""
    changed = run.archives(sim_id)[var].task.stale()
    if changed:
        return f"Changed since: {', '.join(changed)}. Run again with `[espo] rerun = stale`."
    return "Neither configuration nor files changed since, as far as the marker tells: the product was altered."


def made_of(run: RunContext, made: Made, var: str, step: int) -> tuple[dict[str, float], str]:
    """Return the adjusted variables that a variable is made of, with their values, and how."""

    def at(name: str) -> float:
        data = made.adjusted[name][name].isel(loc=0, time=step)
        return float(data.sel(realization=made.sim_id) if "realization" in data.dims else data)

    temperatures = run.config.clean_up.temperatures
    if var not in ("tasmax", "tasmin") or (var == "tasmax" and temperatures != "swap"):
        return {var: at(var)}, "adjusted"
    if temperatures == "swap":
        values = {name: at(name) for name in NEEDED_FOR["swap"]}
        return values, "exchanged" if values["tasmax"] < values["tasmin"] else "consistent"
    return {name: at(name) for name in NEEDED_FOR["derived"]}, "difference"
