"""Properties of a climate, measures of how far a simulation's are from the reference's, and what improved."""

from __future__ import annotations

import logging
import re
from collections.abc import Hashable, Iterable, Mapping

import numpy as np
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.science.diagnose.properties import MEASURE_ATTR, as_fixed, properties, quiet, with_level
from espo_luigi.science.units import without_idle_metadata

__all__ = ["heatmap", "improvement", "measures", "properties"]

logger = logging.getLogger(__name__)

RATIO = "measures.RATIO"


def measures(sim_properties: xr.Dataset, ref_properties: xr.Dataset, *, to_level: str) -> xr.Dataset:
    """Measure how far the properties of a simulation or scenario are from those of the reference.

    Each property is compared by its own measure, which `properties` wrote as an attribute: the bias (sim - ref, in the
    reference's units) or the ratio (sim / ref). The history of each result names the measure. Dimensions as the
    properties; lazy on dask.

    Raises
    ------
    DataError
        When the grids differ, or a property does not name its measure.

    References
    ----------
    `xsdba.measures`.
    """
    _check_same_grid(sim_properties, ref_properties)
    compared = [name for name in sim_properties.data_vars if name in ref_properties.data_vars]
    alone = set(sim_properties.data_vars) - set(compared)
    if alone or not compared:
        logger.warning("The reference has no %s: not measured.", sorted(map(str, alone)) or "properties in common")
    found = {name: _measure(sim_properties[name], ref_properties[name]) for name in compared}
    return as_fixed(xr.Dataset(found), sim_properties.attrs, to_level)


def improvement(sim_measures: xr.Dataset, scen_measures: xr.Dataset, *, to_level: str = "diag-improved") -> xr.Dataset:
    """Return, per property, the fraction of cells where the scenario is at least as close to the reference.

    d = |m_sim| - |m_scen| for a bias, |m_sim - 1| - |m_scen - 1| for a ratio; the fraction is that of d >= 0 among the
    cells where d is not NaN. One variable, `improved_grid_points` (properties); lazy on dask.

    Raises
    ------
    DataError
        When the grids differ, or the simulation lacks a property of the scenario.
    """
    _check_same_grid(sim_measures, scen_measures)
    _check_same_properties(sim_measures, scen_measures)
    names = list(scen_measures.data_vars)
    fractions = [_improved(sim_measures[name], scen_measures[name]) for name in names]
    da = xr.concat(fractions, dim=_labels("properties", names), coords="minimal")
    out = _describe(da, "Fraction of improved grid cells").to_dataset(name="improved_grid_points")
    return with_level(out, scen_measures.attrs, to_level)


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
    table = xr.concat(
        [xr.concat(row, dim=columns, coords="minimal") for row in rows],
        dim=_labels("realization", measured),
        coords="minimal",
    )
    low, high = table.min("realization"), table.max("realization")
    scaled = xr.where(high == low, 0.5, (table - low) / (high - low).where(high != low, 1.0)).transpose(
        "realization", ...
    )
    out = _describe(scaled.where(table.notnull()), "Ranking of measure performance").to_dataset(name="heatmap")
    common = {
        key: value for key, value in first.attrs.items() if all(d.attrs.get(key) == value for d in measured.values())
    }
    return with_level(out, common, "diag-heatmap")


def _span(coord: xr.DataArray) -> str:
    return f"{float(coord.min())} to {float(coord.max())}" if coord.size else "nothing"


def _measure(sim: xr.DataArray, ref: xr.DataArray) -> xr.DataArray:
    import xsdba.measures  # noqa: F401  # registers the measures
    from xclim.core.indicator import registry

    if MEASURE_ATTR not in sim.attrs:
        raise DataError(
            f"The property {sim.name!r} has no attribute {MEASURE_ATTR!r}: expected the result of `properties`."
        )
    name = re.sub(r"^xclim\.sdba\.", "xsdba.", sim.attrs[MEASURE_ATTR])
    with quiet():
        found = without_idle_metadata(registry[name].get_instance()(sim=sim, ref=ref).rename(sim.name))
    of_measure = str(found.attrs.get("long_name", "")).rstrip(".").lower()
    return found.assign_attrs(long_name=f"{sim.attrs.get('long_name', sim.name)} {of_measure}".strip())


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


def _improved(sim: xr.DataArray, scen: xr.DataArray) -> xr.DataArray:
    gain = _distance(sim) - _distance(scen)
    return (gain >= 0).sum() / gain.notnull().sum()


def _check_same_properties(got: xr.Dataset, expected: xr.Dataset) -> None:
    missing: list[Hashable] = [name for name in expected.data_vars if name not in got.data_vars]
    if missing:
        raise DataError(
            f"{missing} are missing from {list(got.data_vars)}: both datasets must have the same properties."
        )


def _check_same_grid(one: xr.Dataset, other: xr.Dataset) -> None:
    for name in ("rlat", "rlon", "lat", "lon"):
        if name in one.coords and name in other.coords and not np.array_equal(one[name].values, other[name].values):
            raise DataError(
                f"The grids differ in {name}: {one[name].size} values from {_span(one[name])} against "
                f"{other[name].size} from {_span(other[name])}. Both must be the same domain of the same grid, "
                f"to the last digit."
            )
