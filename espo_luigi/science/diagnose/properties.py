"""Properties of a climate, a number per cell and property, by the definitions of a properties file.

xclim and xsdba are imported where they are used, since their import takes seconds.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any

import dask.array
import numpy as np
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.science.calendar import TimeAxis, calendar_of, whole_years
from espo_luigi.science.chunks import rechunk
from espo_luigi.science.definitions import further_variables
from espo_luigi.science.derivations import daily_temperature_range
from espo_luigi.science.diagnose.definitions import judged
from espo_luigi.science.units import as_difference, known_units, units_of, without_idle_metadata

if TYPE_CHECKING:
    from xclim.core.indicator import Indicator

logger = logging.getLogger(__name__)

_TWO_YEARS, _EIGHT_YEARS = 732, 2923

REGISTRY_MODULE = "espo_properties"
MEASURE_ATTR = "measure"
_OF_A_SERIES = ("cat:variable", "cat:variables", "cat:date_start", "cat:date_end")

_silence = Lock()


def properties(
    ds: xr.Dataset, *, definitions: Mapping[str, Any], period: Sequence[str | int], to_level: str
) -> xr.Dataset:
    """Compute the properties that a properties file defines, over whole years, by xsdba.

    Dimensions (time, ...) in, (...) out: one variable per property, named as in the file. Thresholds are converted to
    the units of the data (precipitation as flux or depth). The calendar may be any; `dtr` is derived when it is needed
    and missing. Lazy on dask: a block of cells is a task, which reads its series once for all properties. Raises
    `DataError` when the definitions cannot be used, the data have nothing in the period, or a variable that a property
    needs is missing or has unusable units.

    Parameters
    ----------
    ds
        Daily series; units as attributes.
    definitions
        The parsed properties file: realm, variables, indicators {name: {base, cf_attrs, input, parameters}}, as
        `definitions.judged` takes it.
    period
        First and last year, both included.
    to_level
        The `cat:processing_level` of the result.

    References
    ----------
    Definitions of the properties: `xsdba.properties`.
    """
    try:
        definitions = judged(definitions)
    except ValueError as error:
        raise DataError(f"The definitions of the properties cannot be used: {error}.") from None
    selected = _needed_variables(_select_period(ds, period), definitions)
    resolved = json.dumps(_resolve(definitions, selected))
    made = _compute_lazily(selected, resolved) if selected.chunks else _compute(selected, resolved)
    for da in made.data_vars.values():
        da.attrs["period"] = f"{period[0]}-{period[1]}"
    return as_fixed(made, ds.attrs, to_level)


def as_fixed(ds: xr.Dataset, attrs: Mapping[Any, Any], to_level: str) -> xr.Dataset:
    """Give the global attributes of a dataset without time, from those of the series; the input is not changed."""
    fixed = {"cat:xrfreq": "fx", "cat:frequency": "fx"} | ({"frequency": "fx"} if "frequency" in attrs else {})
    return with_level(ds, {**attrs, **fixed}, to_level)


def with_level(ds: xr.Dataset, attrs: Mapping[Any, Any], to_level: str) -> xr.Dataset:
    """Replace the global attributes by a series', without its variables and dates; the input is not changed."""
    out = ds.copy(deep=False)
    out.attrs = {key: value for key, value in attrs.items() if key not in _OF_A_SERIES}
    out.attrs["cat:processing_level"] = to_level
    return out


@contextmanager
def quiet() -> Iterator[None]:
    """Silence expected warnings: cells without data, and CF remarks that the health checks make.

    One thread at a time, as options and warnings are the process's; xsdba holds the GIL anyway.
    """
    import xclim

    with _silence, xclim.set_options(cf_compliance="log"), warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


def _select_period(ds: xr.Dataset, period: Sequence[str | int]) -> xr.Dataset:
    first, last = (str(year) for year in period)
    selected = whole_years(ds, first[:4], last[:4])
    if not selected.sizes["time"]:
        raise DataError(f"No day in {first}-{last}: the data span {ds.indexes['time'][0]} to {ds.indexes['time'][-1]}.")
    years = selected["time"].dt.year
    if (int(years[0]), int(years[-1])) != (int(first[:4]), int(last[:4])):
        logger.warning("Properties of %s-%s from %s-%s only.", first, last, int(years[0]), int(years[-1]))
    return selected


def _needed_variables(ds: xr.Dataset, definitions: Mapping[str, Any]) -> xr.Dataset:
    names = sorted({name for of in definitions["indicators"].values() for name in of["input"].values()})
    complete = ds
    if "dtr" in names and "dtr" in ds:
        complete = ds.assign(dtr=as_difference(ds["dtr"]))
    elif "dtr" in names and {"tasmax", "tasmin"} <= set(ds):
        complete = ds.assign(dtr=daily_temperature_range(ds["tasmax"], ds["tasmin"]))
    missing = [name for name in names if name not in complete]
    if missing:
        raise DataError(f"The properties need {missing}: the data have {list(ds.data_vars)}.")
    needed = complete[names]
    return rechunk(needed, {"time": -1}).unify_chunks() if needed.chunks else needed


def _resolve(definitions: Mapping[str, Any], ds: xr.Dataset) -> dict[str, Any]:
    """Return the definitions as plain values for these data: thresholds in the data's units."""
    resolved = {}
    for name, definition in definitions["indicators"].items():
        resolved[name] = {"realm": definitions.get("realm", "generic"), **definition}
        inputs, threshold = definition["input"], definition.get("parameters", {}).get("thresh")
        if isinstance(threshold, str) and len(inputs) == 1:
            (variable,) = inputs.values()
            converted = _threshold_for(threshold, ds[variable])
            resolved[name]["parameters"] = {**definition["parameters"], "thresh": converted}
    # xclim takes variables that it knows: it is told of the others.
    own = {
        str(name): {"canonical_units": known_units(da), "description": str(name)} for name, da in ds.data_vars.items()
    }
    return {"variables": own | definitions.get("variables", {}), "indicators": resolved}


def _threshold_for(threshold: str, da: xr.DataArray) -> str:
    """Convert a threshold that xsdba cannot: it knows no hydrological context, so mm d-1 is not kg m-2 s-1 to it."""
    import xclim.core.units
    import xsdba.units
    from pint.errors import PintError

    try:
        xsdba.units.convert_units_to(threshold, da)
    except PintError:
        units = units_of(da)
        try:
            return f"{float(xclim.core.units.convert_units_to(threshold, units, context='hydro'))!r} {units}"
        except PintError as err:
            raise DataError(
                f"The threshold {threshold!r} cannot be compared with {da.name!r} in {units!r}: {err}"
            ) from err
    return threshold


def keep_compiled_run_lengths() -> None:
    """Let numba keep xclim's code on disk, which each process that counts spells compiles for 5 to 10 s."""
    from xclim.indices import run_length

    for name in ("_rle_1d", "_cumsum_reset_np"):
        function: Any = getattr(run_length, name, None)
        try:
            if hasattr(function, "enable_caching"):
                function.enable_caching()
        except RuntimeError as err:  # no folder can be written: each process compiles it
            logger.debug("xclim's %s cannot be kept: %s", name, err)


@lru_cache(maxsize=8)
def _indicators(resolved: str) -> dict[str, Indicator]:
    """Build the indicators, once per process: xclim registers each of them by name."""
    import xsdba.properties  # noqa: F401  # registers the bases
    from xclim.core.indicator import Indicator

    parsed = json.loads(resolved)
    with further_variables() as known, warnings.catch_warnings():
        keep_compiled_run_lengths()
        warnings.filterwarnings("ignore", message="Class .* already exists and will be overwritten")
        for name, metadata in parsed["variables"].items():
            known.setdefault(name, metadata)
        return {
            name: Indicator.from_dict(definition, identifier=name, module=REGISTRY_MODULE)
            for name, definition in parsed["indicators"].items()
        }


def _compute(ds: xr.Dataset, resolved: str) -> xr.Dataset:
    """Compute all properties of data in memory."""
    made = {}
    with quiet():
        for name, indicator in _indicators(resolved).items():
            logger.debug("Computing the property %s.", name)
            values = without_idle_metadata(indicator(ds=ds).rename(name))
            cells = [dim for dim in ds.dims if dim in values.dims]
            made[name] = values.transpose(..., *cells).assign_attrs({MEASURE_ATTR: indicator.measure})
    return xr.Dataset(made)


def _compute_lazily(ds: xr.Dataset, resolved: str) -> xr.Dataset:
    """Compute block by block, in memory: xsdba's own way on dask makes dozens of small tasks per property and block."""
    spatial = any(indicator.aspect == "spatial" for indicator in _indicators(resolved).values())
    whole = rechunk(ds, {dim: -1 for dim in ds.dims}) if spatial else ds
    times = {"axis": TimeAxis.of(ds), "attrs": ds["time"].attrs}
    return xr.map_blocks(
        _compute_at,
        whole.drop_vars("time"),  # to make a token of tens of thousands of dates would take Dask 0.3 s
        kwargs={"times": times, "resolved": resolved},
        template=_template(whole, resolved),
    )


def _compute_at(ds: xr.Dataset, *, times: dict[str, Any], resolved: str) -> xr.Dataset:
    """Compute all properties of data in memory, whose times come as numbers."""
    return _compute(ds.assign_coords(time=("time", times["axis"].index, times["attrs"])), resolved)


def _template(ds: xr.Dataset, resolved: str) -> xr.Dataset:
    """Return a template of the properties, from a made-up cell with the same attributes.

    Two years hold all groups of days, months and seasons, or eight years where they must include a leap year. More
    years would take longer: xclim's spells take time for each year.
    """
    days = _EIGHT_YEARS if calendar_of(ds) == "standard" else _TWO_YEARS
    cell = ds.isel({dim: slice(0, 1) for dim in ds.dims if dim != "time"} | {"time": slice(0, days)})
    made = _compute(cell.map(_made_up, keep_attrs=True), resolved)
    coords = {name: coord for name, coord in ds.coords.items() if "time" not in coord.dims}
    return made.map(_expanded, keep_attrs=True, args=(ds,)).assign_coords(coords)


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
