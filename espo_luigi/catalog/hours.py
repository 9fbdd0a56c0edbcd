"""Opening what a search found by hours as a dataset of days."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import dask.array as da
import numpy as np
import xarray as xr
from dask.base import tokenize

from espo_luigi.catalog.open import (
    on_grid_of,
    on_one_grid,
    open_fixed,
    open_grid,
    open_grid_mapping,
    open_match,
    open_years,
)
from espo_luigi.catalog.read import Asset
from espo_luigi.catalog.search import SUB_DAILY, Match
from espo_luigi.errors import DataError
from espo_luigi.science.calendar import TO_MIDPOINT, TimeAxis
from espo_luigi.science.chunks import join
from espo_luigi.science.extract.dataset import as_maps, to_canonical_units
from espo_luigi.science.extract.hours import days_of, lacking
from espo_luigi.science.extract.input_problems import wanted_days
from espo_luigi.science.geometry.cells import horizontal_dims
from espo_luigi.science.geometry.cutting import subset_box
from espo_luigi.science.units import convert_to, rate_of_totals
from espo_luigi.science.variables import VARIABLES, Variable, variable

logger = logging.getLogger(__name__)

# Of the steps that are read at a time: the bytes, unless a stored chunk has more; and the least and most steps.
BLOCK_BYTES, LEAST_STEPS, MOST_STEPS = 64 * 1024**2, 48, 96 * 24


def open_days(
    match: Match,
    *,
    region: Mapping[str, Any],
    day: str = "UTC",
    accumulation: Mapping[str, str],
    xr_open_kwargs: Mapping[str, Any],
    table: Mapping[str, Variable] = VARIABLES,
) -> xr.Dataset:
    """Open a match, some of whose variables are there by hours, as `Match.by_day` opens it; lazy.

    It has daily variables as of `open_match`, with NaN for days that lack too many hours, fixed fields (y, x), and as
    far as the files have them, the bounds of cells and the grid mapping. It is cut to a box as of `subset_box`, but
    curvilinear grids keep the values outside, and no column is repeated. `accumulation` is by variable, as `day` for
    `days_of`. Raises `DataError` as `open_match` and `days_of`.
    """
    options = {**xr_open_kwargs, "chunks": None}
    opened = _open_hours(match, options)
    first = opened[0][2]
    whole = first.drop_dims("time")
    cut, places = _cut(whole, region)
    of_grid = [open_fixed(match, whole, xr_open_kwargs=xr_open_kwargs)]
    if (placed := on_grid_of(whole, open_grid(opened[0][0], options))) is not None:
        of_grid.append(placed[[name for name in ("lat_bounds", "lon_bounds") if name in placed]])
    parts: list[xr.Dataset] = []
    for name in match.hours:
        pieces = [(asset, ds) for asset, held, ds in opened if held == name]
        series, read, at_once = _series(name, pieces, match.hours[name], places, table)
        series = series.assign_coords(cut.coords)
        axis = TimeAxis.of(series)
        ends = (wanted_days(*period, axis.calendar) for period in match.periods)
        # Maxima and minima of instants are not of steps.
        over = accumulation.get(name, "") if match.hours[name] == name else ""
        made = days_of(
            series[name],
            day=day,
            accumulation=over,
            periods=tuple((axis.number(start), axis.number(end)) for start, end in ends),
            table=table,
            read=read,
            at_once=at_once,
        )
        if told := lacking(series[name], made, over):
            logger.warning("%s: %s of %s; days without enough of them are missing", match.id, told, match.hours[name])
        parts.append(made.to_dataset().assign_attrs(series.attrs))
    if by_day := tuple(name for name in match.variables if name not in match.hours):
        assets = tuple(asset for asset in match.assets if not _is_of_hours(asset))
        daily = open_match(replace(match, assets=assets, variables=by_day, hours={}), xr_open_kwargs=xr_open_kwargs)
        on_grid = on_grid_of(whole, daily)
        if on_grid is None:
            raise DataError(f"{match.id}: {', '.join(by_day)} is on another grid than what is there by hours.")
        parts.append(on_grid.isel(places).assign_coords(cut.coords))
    days = xr.merge(parts, join="inner", compat="override", combine_attrs="drop_conflicts")
    cuts = [ds.isel(places, missing_dims="ignore") for ds in of_grid]
    fields = {str(name): data.variable for ds in cuts for name, data in ds.data_vars.items()}
    held = next(iter(match.hours.values()))
    mapping = open_grid_mapping(replace(match, assets=(opened[0][0],)), held, xr_open_kwargs=options)
    if mapping.name:
        named = {"grid_mapping": str(mapping.name)}
        days = days.assign({name: data.assign_attrs(named) for name, data in days.data_vars.items()})
        fields[str(mapping.name)] = mapping.variable
    # The names are not those of CMIP7's raw files any more.
    return days.assign(fields).assign_attrs({"cat:processing_level": "daily"})


def noon_of(match: Match, name: str, day: str, xr_open_kwargs: Mapping[str, Any]) -> xr.Dataset:
    """Open the map of the middle of a day, of a variable made of hours, as `name` (time, y, x) in any units; lazy."""
    for _, held, ds in _open_hours(match, {**xr_open_kwargs, "chunks": None}):
        steps = np.flatnonzero(ds["time"].dt.strftime("%Y-%m-%d").values == day)
        if steps.size:
            return as_maps(ds[match.hours[held]].isel(time=[steps[steps.size // 2]])).to_dataset(name=name)
    raise DataError(f"{match.id}: no file has {day}; correct the catalogue's dates.")


def _is_of_hours(asset: Asset) -> bool:
    return asset.columns.get("xrfreq") in SUB_DAILY


def _open_hours(match: Match, options: Mapping[str, Any]) -> list[tuple[Asset, str, xr.Dataset]]:
    """Open the files of variables by hours, on one grid and without Dask: each with the daily variable's name."""
    pieces = [
        (asset, name, open_years(asset, _of_hours(match, name, held), options, by_day=False))
        for name, held in match.hours.items()
        for asset in match.assets
        if _is_of_hours(asset) and held in asset.variables
    ]
    return [(asset, name, ds) for (asset, name, _), ds in zip(pieces, on_one_grid(pieces), strict=True)]


def _of_hours(match: Match, name: str, held: str) -> Match:
    units = match.units.get(name) or match.units.get(held)
    return replace(match, variables=(held,), units={held: units} if units else {})


def _cut(grid: xr.Dataset, region: Mapping[str, Any]) -> tuple[xr.Dataset, dict[str, np.ndarray]]:
    """Cut a grid to a box: its coordinates there, and the places along each dimension."""
    dims = horizontal_dims(grid)
    cut = subset_box(grid.assign({f"place_{dim}": (dim, np.arange(grid.sizes[dim])) for dim in dims}), region)
    places = {dim: cut[f"place_{dim}"].values for dim in dims}
    if any(np.unique(at).size < at.size for at in places.values()):  # around the Earth
        return grid, {}
    return cut.drop_vars([f"place_{dim}" for dim in dims]), places


def _series(
    name: str,
    pieces: Sequence[tuple[Asset, xr.Dataset]],
    held: str,
    places: Mapping[str, np.ndarray],
    table: Mapping[str, Variable],
) -> tuple[xr.Dataset, Callable[[int, int], da.Array], int]:
    """Return what describes the steps of a variable, `name` (time, y, x), what reads some by Dask, and how many.

    They are in the table's units, or those of an amount. A block is read by itself: blocks that shared what is read
    would wait for each other in memory.
    """
    has_bounds = any(TO_MIDPOINT in ds.coords for _, ds in pieces)
    in_order = sorted(pieces, key=lambda piece: TimeAxis.of(piece[1]).days[0])
    sizes = _sizes(in_order[0][1][held].isel(places))
    units = ""

    def opened(number: int, steps: slice) -> xr.DataArray:
        asset, ds = in_order[number]
        part = ds[held].isel({**places, "time": steps})
        # Variables that are made of the same steps share them.
        key = f"hours-{tokenize(asset.path, held, steps.start, steps.stop, sizes)}"
        data = as_maps(part.copy(data=part.variable.chunk(sizes | {"time": -1}, name=key).data)).rename(name)
        if not rate_of_totals(str(data.attrs.get("units", "")), variable(name, table).units):
            data = to_canonical_units(data, asset.path, table)
        return convert_to(data, units or data.attrs["units"])

    described = []
    for number, (_, ds) in enumerate(in_order):
        data = opened(number, slice(0, ds.sizes["time"]))
        units = units or data.attrs["units"]
        if has_bounds and TO_MIDPOINT not in data.coords:
            data = data.assign_coords({TO_MIDPOINT: ("time", np.full(data.sizes["time"], np.nan))})
        dropped = ("grid_mapping", "_FillValue", "missing_value")
        data.attrs = {key: text for key, text in data.attrs.items() if key not in dropped}
        described.append(data.to_dataset().assign_attrs(ds.attrs).drop_encoding())
    ends = np.cumsum([0, *(ds.sizes["time"] for ds in described)])

    def read(first: int, last: int) -> da.Array:
        spans = [(max(first, at) - at, min(last, end) - at) for at, end in pairwise(map(int, ends))]
        there = [opened(number, slice(*span)).data for number, span in enumerate(spans) if span[0] < span[1]]
        return da.concatenate(there or [described[0][name].data[:0]])

    whole: xr.Dataset = join(described, "time", "drop_conflicts")
    return whole, read, sizes["time"]


def _sizes(data: xr.DataArray) -> dict[Hashable, int]:
    """Return the lengths of blocks of whole stored chunks: days as many as are allowed, and then rows as long, as fit.

    A stored chunk of many steps is read once for each block that has a part of it.
    """
    stored = data.encoding.get("chunksizes") or data.encoding.get("chunks") or (1,) * data.ndim
    sizes = {dim: min(size, data.sizes[dim]) for dim, size in zip(data.dims, stored, strict=True)}
    others = [dim for dim in reversed(data.dims) if dim != "time"]
    for dim in ("time", *others):
        room = max(BLOCK_BYTES // (4 * math.prod(sizes.values())), 1)
        most = MOST_STEPS if dim == "time" else data.sizes[dim]
        sizes[dim] = max(min(sizes[dim] * room, most, data.sizes[dim]), sizes[dim])
    # Where days of stored maps are too large, these are read once for each part of their rows.
    column, row, *_ = others
    rows = 4 * BLOCK_BYTES // (4 * max(sizes["time"], LEAST_STEPS) * sizes[column])
    return sizes | {row: max(1, min(sizes[row], rows))}
