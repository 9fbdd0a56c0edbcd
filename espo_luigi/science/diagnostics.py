"""Properties of a climate, measures of how far a simulation's are from the reference's, and what improved."""

from __future__ import annotations

import json
import logging
import re
import warnings
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from threading import Lock
from typing import Any

import dask.array
import numpy as np
import xarray as xr
import xclim
from pint.errors import PintError
from xclim.core import VARIABLES
from xclim.core.indicator import Indicator, registry
from xclim.core.units import convert_units_to as convert_hydro_units
from xsdba.units import convert_units_to as convert_plain_units

from espo_luigi.errors import DataError
from espo_luigi.science.units import convert_to, units_of

logger = logging.getLogger(__name__)

REGISTRY_MODULE = "espo_properties"
MEASURE_ATTR = "measure"
RATIO = "measures.RATIO"

_building = Lock()


def properties(
    ds: xr.Dataset, *, definitions: Mapping[str, Any], period: Sequence[str | int], to_level: str
) -> xr.Dataset:
    """Compute the properties that a properties file defines, over whole years, by xsdba.

    Dimensions (time, ...) in, (...) out: one variable per property, named as in the file. Thresholds are converted to
    the units of the data (precipitation as flux or depth). The calendar may be any; `dtr` is derived when it is needed
    and missing. Lazy on dask: one block of cells is one task, which reads its series once for all properties.

    Parameters
    ----------
    ds
        Daily series; units as attributes.
    definitions
        The parsed properties file: realm, variables, indicators {name: {base, cf_attrs, input, parameters}}. Bases of
        old files (`xclim.sdba.properties.*`) are understood.
    period
        First and last year, both included.
    to_level
        The `cat:processing_level` of the result.

    Raises
    ------
    DataError
        When the data have nothing in the period, or a variable that a property needs is missing or has unusable units.

    References
    ----------
    Definitions of the properties: `xsdba.properties`.
    """
    selected = _needed_variables(_select_period(ds, period), definitions)
    resolved = json.dumps(_resolve(definitions, selected))
    found = _compute_lazily(selected, resolved) if selected.chunks else _compute(selected, resolved)
    for da in found.data_vars.values():
        da.attrs["period"] = f"{period[0]}-{period[1]}"
    return _label(found, ds.attrs, to_level)


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
    return _label(xr.Dataset(found), sim_properties.attrs, to_level)


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
    da = xr.concat(fractions, dim=xr.Variable("properties", [str(name) for name in names]), coords="minimal")
    out = da.assign_attrs(long_name="Fraction of improved grid cells", units="1").to_dataset(
        name="improved_grid_points"
    )
    return _with_level(out, scen_measures.attrs, to_level)


def heatmap(measured: Mapping[str, xr.Dataset], *, to_level: str = "diag-heatmap") -> xr.Dataset:
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
    columns = xr.Variable("properties", [str(name) for name in names])
    table = xr.concat(
        [xr.concat(row, dim=columns, coords="minimal") for row in rows],
        dim=xr.Variable("realization", list(measured)),
        coords="minimal",
    )
    low, high = table.min("realization"), table.max("realization")
    scaled = xr.where(high == low, 0.5, (table - low) / (high - low).where(high != low, 1.0)).transpose(
        "realization", ...
    )
    attrs = {"long_name": "Ranking of measure performance", "units": "1"}
    out = scaled.where(table.notnull()).assign_attrs(attrs).to_dataset(name="heatmap")
    common = {
        key: value for key, value in first.attrs.items() if all(d.attrs.get(key) == value for d in measured.values())
    }
    return _with_level(out, common, to_level)


def cut_domain(ds: xr.Dataset, region: Mapping[str, Any]) -> xr.Dataset:
    """Cut the box of `lon_bnds` and `lat_bnds` out of a dataset, bounds included, without a buffer.

    Works on 1-D `lat` and `lon`, in any order and either longitude convention; from a curvilinear grid, the smallest
    part that holds the box is cut, and cells outside of the box are NaN. Lazy.

    Raises
    ------
    DataError
        When no cell lies in the box, or the box crosses the edge of the data's longitudes.
    """
    in_lat = _between(ds["lat"], *map(float, region["lat_bnds"]))
    in_lon = _between(ds["lon"], *_bounds_like(ds["lon"], region))
    inside = (in_lat & in_lon).compute()
    if not inside.any():
        raise DataError(
            f"No cell in {region.get('name', 'the domain')!r}, lon {list(region['lon_bnds'])}, "
            f"lat {list(region['lat_bnds'])}: the data span lon {_span(ds['lon'])}, lat {_span(ds['lat'])}. "
            f"Check the domain's bounds and the region that hosts it."
        )
    boxed = ds.isel({dim: np.flatnonzero(inside.any([d for d in inside.dims if d != dim])) for dim in inside.dims})
    if ds["lat"].ndim == 1:
        return boxed
    mask = inside.isel({dim: np.flatnonzero(inside.any([d for d in inside.dims if d != dim])) for dim in inside.dims})
    return boxed.map(lambda da: da.where(mask) if set(mask.dims) <= set(da.dims) else da, keep_attrs=True)


def _span(coord: xr.DataArray) -> str:
    return f"{float(coord.min())} to {float(coord.max())}" if coord.size else "nothing"


def _between(coord: xr.DataArray, low: float, high: float) -> xr.DataArray:
    return (coord >= low) & (coord <= high)


def _bounds_like(lon: xr.DataArray, region: Mapping[str, Any]) -> tuple[float, float]:
    """Move the longitude bounds to the convention of the data."""
    west, east = map(float, region["lon_bnds"])
    if float(lon.max()) > 180:
        moved = west % 360, east % 360
    elif float(lon.min()) < 0:
        moved = (west + 180) % 360 - 180, (east + 180) % 360 - 180
    else:
        moved = west, east
    if moved[0] > moved[1]:
        raise DataError(
            f"The box lon {west} to {east} crosses the edge of the data's longitudes ({_span(lon)}): "
            f"give bounds on one side of it, or data in the other convention."
        )
    return moved


def _select_period(ds: xr.Dataset, period: Sequence[str | int]) -> xr.Dataset:
    first, last = (str(year) for year in period)
    selected = ds.sel(time=slice(first, last))
    if not selected.sizes["time"]:
        raise DataError(f"No day in {first}-{last}: the data span {ds.indexes['time'][0]} to {ds.indexes['time'][-1]}.")
    years = selected["time"].dt.year
    if (int(years[0]), int(years[-1])) != (int(first[:4]), int(last[:4])):
        logger.warning("Properties of %s-%s from %s-%s only.", first, last, int(years[0]), int(years[-1]))
    return selected


def _inputs(definition: Mapping[str, Any]) -> Mapping[str, str]:
    return definition.get("input", {})


def _needed_variables(ds: xr.Dataset, definitions: Mapping[str, Any]) -> xr.Dataset:
    names = sorted({name for one in definitions["indicators"].values() for name in _inputs(one).values()})
    complete = (
        ds.assign(dtr=_derive_dtr(ds)) if "dtr" in names and "dtr" not in ds and {"tasmax", "tasmin"} <= set(ds) else ds
    )
    missing = [name for name in names if name not in complete]
    if missing:
        raise DataError(f"The properties need {missing}: the data have {list(ds.data_vars)}.")
    needed = complete[names]
    return needed.chunk(time=-1).unify_chunks() if needed.chunks else needed


def _derive_dtr(ds: xr.Dataset) -> xr.DataArray:
    tasmax = ds["tasmax"]
    dtr = (tasmax - convert_to(ds["tasmin"], units_of(tasmax))).rename("dtr")
    dtr.attrs = {
        "standard_name": "air_temperature_range",
        "units": units_of(tasmax),
        "units_metadata": "temperature: difference",
    }
    return convert_to(dtr, "K")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def _resolve(definitions: Mapping[str, Any], ds: xr.Dataset) -> dict[str, Any]:
    """Return the definitions as plain values for these data: today's bases, thresholds in the data's units."""
    realm = definitions.get("realm", "generic")
    resolved = {name: _resolve_one(_plain(one), realm, ds) for name, one in definitions["indicators"].items()}
    return {"variables": _plain(definitions.get("variables", {})), "indicators": resolved}


def _resolve_one(definition: dict[str, Any], realm: str, ds: xr.Dataset) -> dict[str, Any]:
    base = re.sub(r"^xclim\.sdba\.", "xsdba.", definition.get("base", ""))
    resolved = {"realm": realm, **definition, "base": base}
    threshold = definition.get("parameters", {}).get("thresh")
    if isinstance(threshold, str) and len(_inputs(definition)) == 1:
        (variable,) = _inputs(definition).values()
        resolved["parameters"] = {**definition["parameters"], "thresh": _threshold_for(threshold, ds[variable])}
    return resolved


def _threshold_for(threshold: str, da: xr.DataArray) -> str:
    """Convert a threshold that xsdba cannot: it knows no hydrological context, so mm d-1 is not kg m-2 s-1 to it."""
    try:
        convert_plain_units(threshold, da)
    except PintError:
        units = units_of(da)
        try:
            return f"{float(convert_hydro_units(threshold, units, context='hydro'))!r} {units}"
        except PintError as err:
            raise DataError(
                f"The threshold {threshold!r} cannot be compared with {da.name!r} in {units!r}: {err}"
            ) from err
    return threshold


@lru_cache(maxsize=8)
def _indicators(resolved: str) -> dict[str, Indicator]:
    """Build the indicators, once per process: xclim registers each of them by name."""
    parsed = json.loads(resolved)
    with _building, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Class .* already exists and will be overwritten")
        for name, metadata in parsed["variables"].items():
            VARIABLES.setdefault(name, metadata)
        return {
            name: Indicator.from_dict(one, identifier=name, module=REGISTRY_MODULE)
            for name, one in parsed["indicators"].items()
        }


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence what is expected: cells without data, and CF remarks that the health checks make."""
    with xclim.set_options(cf_compliance="log"), warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


def _compute(ds: xr.Dataset, resolved: str) -> xr.Dataset:
    """Compute all properties of data in memory."""
    with _quiet():
        found = {name: _compute_one(ds, name, one) for name, one in _indicators(resolved).items()}
    return xr.Dataset(found)


def _compute_one(ds: xr.Dataset, name: str, indicator: Indicator) -> xr.DataArray:
    logger.debug("Computing the property %s.", name)
    found = indicator(ds=ds).rename(name)
    cells = [dim for dim in ds.dims if dim in found.dims]
    return found.transpose(..., *cells).assign_attrs({MEASURE_ATTR: indicator.measure})


def _compute_lazily(ds: xr.Dataset, resolved: str) -> xr.Dataset:
    """Compute block by block, in memory: xsdba's own way on dask makes dozens of small tasks per property and block."""
    spatial = any(one.aspect == "spatial" for one in _indicators(resolved).values())
    whole = ds.chunk({dim: -1 for dim in ds.dims}) if spatial else ds
    return xr.map_blocks(_compute, whole, kwargs={"resolved": resolved}, template=_template(whole, resolved))


def _template(ds: xr.Dataset, resolved: str) -> xr.Dataset:
    """Return what the properties will be, from those of one made-up cell with the same attributes."""
    cell = ds.isel({dim: slice(0, 1) for dim in ds.dims if dim != "time"})
    found = _compute(cell.map(_made_up, keep_attrs=True), resolved)
    coords = {name: coord for name, coord in ds.coords.items() if "time" not in coord.dims}
    return found.map(_expanded, keep_attrs=True, args=(ds,)).assign_coords(coords)


def _made_up(da: xr.DataArray) -> xr.DataArray:
    values = np.random.default_rng(0).random(da.shape).astype(da.dtype)
    return xr.DataArray(values, {"time": da["time"]}, da.dims, name=da.name, attrs=da.attrs)


def _expanded(da: xr.DataArray, ds: xr.Dataset) -> xr.DataArray:
    shape = [ds.sizes.get(dim, da.sizes[dim]) for dim in da.dims]
    chunks = [ds.chunksizes.get(dim, (da.sizes[dim],)) for dim in da.dims]
    data = dask.array.empty(shape, chunks=chunks, dtype=da.dtype)
    return xr.DataArray(
        data, {n: c for n, c in da.coords.items() if n not in ds.dims}, da.dims, name=da.name, attrs=da.attrs
    )


def _measure(sim: xr.DataArray, ref: xr.DataArray) -> xr.DataArray:
    if MEASURE_ATTR not in sim.attrs:
        raise DataError(
            f"The property {sim.name!r} has no attribute {MEASURE_ATTR!r}: expected the result of `properties`."
        )
    name = re.sub(r"^xclim\.sdba\.", "xsdba.", sim.attrs[MEASURE_ATTR])
    with _quiet():
        found = registry[name].get_instance()(sim=sim, ref=ref).rename(sim.name)
    of_measure = str(found.attrs.get("long_name", "")).rstrip(".").lower()
    return found.assign_attrs(long_name=f"{sim.attrs.get('long_name', sim.name)} {of_measure}".strip())


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


def _label(ds: xr.Dataset, attrs: Mapping[Any, Any], to_level: str) -> xr.Dataset:
    return _with_level(ds, {**attrs, "cat:xrfreq": "fx", "cat:frequency": "fx"}, to_level)


def _with_level(ds: xr.Dataset, attrs: Mapping[Any, Any], to_level: str) -> xr.Dataset:
    out = ds.copy(deep=False)
    out.attrs = {key: value for key, value in attrs.items() if key != "cat:variable"}
    out.attrs["cat:processing_level"] = to_level
    return out
