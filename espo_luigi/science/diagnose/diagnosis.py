"""A diagnosis: properties of a dataset over a box, their distance from the reference's, and the improvement."""

from __future__ import annotations

import logging
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.science import regrid, stack
from espo_luigi.science.chunks import join, rechunk
from espo_luigi.science.diagnose.definitions import DiagnosisStep
from espo_luigi.science.diagnose.properties import MEASURE_ATTR, as_fixed, properties, quiet, with_level
from espo_luigi.science.geometry.cells import horizontal_dims
from espo_luigi.science.geometry.cutting import subset_box
from espo_luigi.science.units import in_units, without_idle_metadata

logger = logging.getLogger(__name__)

RATIO = "measures.RATIO"
# Cells of a block: some 13 MB for each variable and thirty years.
CELLS_IN_A_BLOCK = 300
# Of a whole domain, so many land cells are diagnosed, or a few less.
CELLS_OF_A_DOMAIN = 2500
# The day of the reference, counted from 0, on which its land has values; ESPO-G's choice.
DAY_WITH_LAND = 130


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """A step of the diagnostics of a dataset: daily maps or stacked cells, of any calendar.

    `box` is cut out as `cut_domain` does; None is the whole dataset. Stacked cells need the complete `grid`.
    """

    dataset: xr.Dataset
    step: DiagnosisStep
    box: Mapping[str, Any] | None = None
    grid: xr.Dataset | None = None

    def series(self) -> xr.Dataset:
        """Return the daily maps of the box in the period, in blocks of whole series; only these cells are read."""
        units = self.step.units
        days = self.dataset.sel(time=slice(*self.step.period))
        if units:
            days = days[[name for name in units if name in days]]
        if self.grid is not None and stack.STACKED_DIM in days.dims:
            grid = self.grid.drop_vars("land", errors="ignore")
            part = grid if self.box is None else cut_domain(grid, self.box)
            days = stack.unstack_fill_nan(days, grid, blocks(part), part=part)
        if self.box is not None:
            # Cut again: on a curvilinear grid, the part is larger than the box.
            days = cut_domain(days, self.box)
        return in_units(in_blocks(days), units) if units else in_blocks(days)

    def properties(self) -> xr.Dataset:
        """Return the properties, a map each; lazy where the series are."""
        step = self.step
        return properties(self.series(), definitions=step.definitions, period=step.period, to_level=step.to_level)

    def with_measures(self, reference: xr.Dataset) -> dict[str, xr.Dataset]:
        """Return the properties (`prop`) and their distance from the reference's (`meas`), computed: a few maps."""
        made = self.properties().compute()
        return {"prop": made, "meas": measures(made, reference.compute(), to_level=self.step.measures_to_level)}


def measures(sim_properties: xr.Dataset, ref_properties: xr.Dataset, *, to_level: str) -> xr.Dataset:
    """Measure how far the properties of a simulation or scenario are from those of the reference.

    Each property is compared by its own measure, which `properties` wrote as an attribute: the bias (sim - ref, in the
    reference's units) or the ratio (sim / ref). The history of each result names the measure. Dimensions as the
    properties; lazy on dask. Raises `DataError` when the grids differ, or a property does not name its measure.

    References
    ----------
    `xsdba.measures`.
    """
    _check_same_grid(sim_properties, ref_properties)
    compared = [name for name in sim_properties.data_vars if name in ref_properties.data_vars]
    alone = set(sim_properties.data_vars) - set(compared)
    if alone or not compared:
        logger.warning("The reference has no %s: not measured.", sorted(map(str, alone)) or "properties in common")
    measured = {name: _measure(sim_properties[name], ref_properties[name]) for name in compared}
    return as_fixed(xr.Dataset(measured), sim_properties.attrs, to_level)


def improvement(sim_measures: xr.Dataset, scen_measures: xr.Dataset) -> xr.Dataset:
    """Return, per property, the fraction of cells where the scenario is at least as close to the reference.

    d = |m_sim| - |m_scen| for a bias, |m_sim - 1| - |m_scen - 1| for a ratio; the fraction is that of d >= 0 among the
    cells where d is not NaN. One variable, `improved_grid_points` (properties); lazy on dask. Raises `DataError` when
    the grids differ, or the simulation lacks a property of the scenario.
    """
    _check_same_grid(sim_measures, scen_measures)
    _check_same_properties(sim_measures, scen_measures)
    names = list(scen_measures.data_vars)
    gains = (_distance(sim_measures[name]) - _distance(scen_measures[name]) for name in names)
    fractions = ((gain >= 0).sum() / gain.notnull().sum() for gain in gains)
    da: xr.DataArray = join(fractions, _labels("properties", names))
    out = _describe(da, "Fraction of improved grid cells").to_dataset(name="improved_grid_points")
    return with_level(out, scen_measures.attrs, "diag-improved")


def heatmap(measured: Mapping[str, xr.Dataset]) -> xr.Dataset:
    """Compare datasets by the mean distance of their properties from the reference, rescaled per property.

    value = mean over cells of |m| (|m - 1| for a ratio), each property rescaled to (v - min) / (max - min) over the
    datasets, 0.5 where they are equal: 0 is the best, 1 the worst. One variable, `heatmap` (realization, properties),
    rows in the given order; lazy on dask.

    Raises
    ------
    DataError
        When the datasets do not have the same properties.
    """
    first = next(iter(measured.values()))
    for ds in measured.values():
        _check_same_properties(ds, first)
    names = list(first.data_vars)
    rows = [[_distance(ds[name]).mean() for name in names] for ds in measured.values()]
    columns = _labels("properties", names)
    table: xr.DataArray = join((join(row, columns) for row in rows), _labels("realization", measured))
    low, high = table.min("realization"), table.max("realization")
    scaled = xr.where(high == low, 0.5, (table - low) / (high - low).where(high != low, 1.0)).transpose(
        "realization", ...
    )
    out = _describe(scaled.where(table.notnull()), "Ranking of measure performance").to_dataset(name="heatmap")
    common = {
        key: value for key, value in first.attrs.items() if all(d.attrs.get(key) == value for d in measured.values())
    }
    return with_level(out, common, "diag-heatmap")


def _measure(sim: xr.DataArray, ref: xr.DataArray) -> xr.DataArray:
    import xsdba.measures  # noqa: F401  # registers the measures
    from xclim.core.indicator import registry

    if MEASURE_ATTR not in sim.attrs:
        raise DataError(
            f"The property {sim.name!r} has no attribute {MEASURE_ATTR!r}: expected the result of `properties`."
        )
    with quiet():
        measured = without_idle_metadata(
            registry[sim.attrs[MEASURE_ATTR]].get_instance()(sim=sim, ref=ref).rename(sim.name)
        )
    of_measure = str(measured.attrs.get("long_name", "")).rstrip(".").lower()
    return measured.assign_attrs(long_name=f"{sim.attrs.get('long_name', sim.name)} {of_measure}".strip())


def _describe(da: xr.DataArray, long_name: str) -> xr.DataArray:
    """Replace the attributes: those that arithmetic carries along are the first property's."""
    out = da.copy(deep=False)
    out.attrs = {"long_name": long_name, "units": ""}
    return out


def _labels(dim: str, names: Iterable[Hashable]) -> xr.Variable:
    """Make a coordinate of text of any length, which Zarr 3 specifies; it does not specify numpy's fixed length."""
    return xr.Variable(dim, np.array([str(name) for name in names], dtype=object))


def _distance(measure: xr.DataArray) -> xr.DataArray:
    """Return the distance from a perfect measure: 0 for a bias, 1 for a ratio."""
    if "history" not in measure.attrs:
        raise DataError(
            f"The measure {measure.name!r} has no history, which says whether it is a ratio: use `measures`."
        )
    return abs(measure - 1) if RATIO in measure.attrs["history"] else abs(measure)


def _check_same_properties(got: xr.Dataset, expected: xr.Dataset) -> None:
    missing: list[Hashable] = [name for name in expected.data_vars if name not in got.data_vars]
    if missing:
        raise DataError(
            f"{missing} are missing from {list(got.data_vars)}: both datasets must have the same properties."
        )


def _check_same_grid(here: xr.Dataset, there: xr.Dataset) -> None:
    for name in ("rlat", "rlon", "lat", "lon"):
        if name in here.coords and name in there.coords and not np.array_equal(here[name].values, there[name].values):
            both = (here[name], there[name])
            spans = [f"{float(c.min())} to {float(c.max())}" if c.size else "nothing" for c in both]
            raise DataError(
                f"The grids differ in {name}: {both[0].size} values from {spans[0]} against {both[1].size} from "
                f"{spans[1]}. Both must be the same domain of the same grid, to the last digit."
            )


def spread(parts: Sequence[xr.Dataset], grids: Sequence[xr.Dataset]) -> xr.Dataset:
    """Return maps of rows and columns that are evenly spread over the stacked pieces of a domain, from south to north.

    `grids` are the pieces' complete grids with `land`; rows of pieces without land there are left out. The attribute
    `cells` tells how many are taken: of `CELLS_OF_A_DOMAIN` land cells, all. Lazy; only these cells are read.
    """
    land = sum(int(grid["land"].sum()) for grid in grids)
    axes = {dim: np.unique(np.concatenate([one[dim].values for one in grids])) for dim in horizontal_dims(grids[0])}
    ratio, shortest = land / CELLS_OF_A_DOMAIN, min(axis.size for axis in axes.values())
    every, maps = max(1, math.ceil(max(math.sqrt(ratio), ratio / shortest))), []
    taken = {dim: axis[min(every, axis.size) // 2 :: every] for dim, axis in axes.items()}
    for ds, grid in zip(parts, grids, strict=True):
        part = grid.sel({dim: axis[np.isin(axis, grid[dim].values)] for dim, axis in taken.items()})
        if part.land.any():
            part = part.drop_vars("land")
            maps.append(stack.unstack_fill_nan(ds, grid.drop_vars("land"), blocks(part), part=part))
    made: xr.Dataset = join(maps, next(iter(axes)), what="The pieces")
    of = f"one row and one column in {every}, of {land}" if every > 1 else f"all {land}"
    return made.assign_attrs(cells=f"{of} land cells")


def cut_domain(ds: xr.Dataset, region: Mapping[str, Any]) -> xr.Dataset:
    """Cut the box of `lon_bnds` and `lat_bnds` out of a dataset, bounds included, without a buffer.

    Works on 1-D `lat` and `lon`, in any order and either longitude convention. Of a curvilinear grid, the smallest part
    that holds the box is cut, and cells outside of the box are NaN. The result's `cat:domain` is the box's `name`, and
    so is that of its products. Fixed fields among the coordinates, such as `orog`, are left out. Lazy. Raises
    `DataError` when no cell lies in the box, or the box crosses the edge of the data's longitudes.
    """
    named = {"cat:domain": region["name"]} if "name" in region else {}
    bare = ds.drop_vars([name for name in ds.coords if name not in ("lat", "lon", *ds.dims)])
    return subset_box(bare, {"name": "the domain", **region, "tile_buffer": 0}).assign_attrs(named)


def blocks(part: xr.Dataset) -> dict[str, int]:
    """Return the chunks for computing properties: whole series of some rows."""
    y, x = horizontal_dims(part)
    return {y: max(1, CELLS_IN_A_BLOCK // part.sizes[x]), x: -1, "time": -1}


def in_blocks(part: xr.Dataset) -> xr.Dataset:
    """Return daily maps in `blocks`, lazily; a single block is computed.

    xsdba needs as long to describe a lazy result as to compute a block.
    """
    chunked = rechunk(part, blocks(part))
    return chunked.compute() if all(len(sizes) == 1 for sizes in chunked.chunksizes.values()) else chunked


def on_domain(raw: xr.Dataset, reference: xr.Dataset, *, land: str, **options: Any) -> xr.Dataset:
    """Regrid a simulation to a domain's cells, where the reference has data.

    Loads the cells of the simulation that are needed (on Dask's workers), since each block of the result would read the
    files again; the rest is lazy. Raises `DataError` if the reference has fewer days, or the regridding fails.

    Parameters
    ----------
    raw
        Daily maps of the simulation, any grid, calendar and units.
    reference
        The reference in the domain, as `cut_domain` returns it, 131 days or more: gives the grid and the land.
    land
        The variable of `reference` that is NaN where the result is to be NaN, on the day at position 130.
    **options
        As of `regrid.weigh`. A mask of the simulation is not used.
    """
    if reference.sizes["time"] <= DAY_WITH_LAND:
        raise DataError(
            f"the reference has {reference.sizes['time']} days; expected more than {DAY_WITH_LAND}, as the day at that "
            f"position says where {land} has values. Give a longer reference period."
        )
    has_data = reference[land].isel(time=DAY_WITH_LAND).notnull().reset_coords(drop=True).compute()
    grid = stack.grid_of(reference)
    near = regrid.part_reached(raw.drop_vars("mask", errors="ignore"), grid, **options)
    loaded = rechunk(near, blocks(near)).persist()
    return regrid.regrid(loaded, grid, **options, chunks=blocks(grid)).where(has_data)
