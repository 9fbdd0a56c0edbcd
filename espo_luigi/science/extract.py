"""Extraction: canonical units, derived variables, a period of whole years and a box of daily climate data."""

from __future__ import annotations

import functools
import logging
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import cftime
import numpy as np
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.science.calendar import SECONDS_PER_DAY
from espo_luigi.science.choices import CANONICAL_UNITS
from espo_luigi.science.chunks import indexer
from espo_luigi.science.units import as_difference, convert_to, units_of

logger = logging.getLogger(__name__)

DTR_ATTRS: Mapping[str, str] = {
    "units": "K",
    "units_metadata": "temperature: difference",
    "long_name": "Daily temperature range",
    "cell_methods": "time: range within days",
}

_LATITUDE_NAMES = ("lat", "latitude", "nav_lat")
_LONGITUDE_NAMES = ("lon", "longitude", "nav_lon")


def extract(
    ds: xr.Dataset,
    *,
    variables_and_freqs: Mapping[str, str],
    period: Sequence[str],
    region: Mapping[str, Any],
) -> xr.Dataset:
    """Cut daily data to variables, years and a box; lazy.

    Parameters
    ----------
    ds : xarray.Dataset
        (time, lat, lon), or (time, y, x) with 2-D lat and lon; daily, any calendar; any CF units.
    variables_and_freqs : mapping
        The variables of the result, each ``"D"``; `dtr` is derived from tasmax and tasmin if it is not there.
    period : (start, end)
        Years, both included.
    region : mapping
        `name`, `lon_bnds`, `lat_bnds` (degrees, inclusive) and `tile_buffer`, which widens each bound by so many of the
        data's largest coordinate steps.

    Returns
    -------
    xarray.Dataset
        The variables in the order asked for, in K and kg m-2 s-1, in the input's dtype, calendar, longitude convention
        and order of latitudes; cells of a curvilinear grid outside the box are NaN.

    Raises
    ------
    DataError
        If a variable or part of the period is missing, days are missing or double, units are unknown, no cell is in the
        box, or its bounds cannot be expressed in the data's longitudes.
    """
    cut = subset_box(select(ds, variables_and_freqs=variables_and_freqs, period=period), region)
    return cut.assign_attrs(_attributes(ds, region, period))


def select(ds: xr.Dataset, *, variables_and_freqs: Mapping[str, str], period: Sequence[str]) -> xr.Dataset:
    """Do what `extract` does before it cuts the box: variables, units and period, on the whole grid; lazy."""
    _check_daily_wanted(variables_and_freqs)
    named = normalise_coordinates(ds)
    variables = {name: _variable(named, name) for name in variables_and_freqs}
    # Built on the coordinates alone, so that variables and attributes of the input cannot slip in.
    return select_period(named[[]].assign(variables), period)


def _check_daily_wanted(variables_and_freqs: Mapping[str, str]) -> None:
    other = {name: frequency for name, frequency in variables_and_freqs.items() if frequency != "D"}
    if other:
        raise DataError(f"frequencies {other} are wanted; expected D: only daily data are extracted.")


def _attributes(ds: xr.Dataset, region: Mapping[str, Any], period: Sequence[str]) -> dict[str, str]:
    line = f"espo_luigi: extracted {period[0]}-{period[1]}, region {region['name']}"
    history = [str(ds.attrs["history"])] if ds.attrs.get("history") else []
    return {
        "cat:domain": str(region["name"]),
        "cat:processing_level": "extracted",
        "cat:xrfreq": "D",
        "cat:frequency": "day",
        "history": "\n".join([line, *history]),
    }


def normalise_coordinates(ds: xr.Dataset) -> xr.Dataset:
    """Name latitude and longitude `lat` and `lon`, dimensions too; other coordinates but time and the grid's go. Lazy.

    Raises
    ------
    DataError
        If there is no latitude or longitude, or no time.
    """
    names = {"lat": _named(ds, "latitude", _LATITUDE_NAMES), "lon": _named(ds, "longitude", _LONGITUDE_NAMES)}
    missing = [name for name, found in names.items() if found is None] + ([] if "time" in ds.coords else ["time"])
    if missing:
        raise DataError(
            f"no coordinate {' and '.join(missing)}; got {sorted(map(str, ds.variables))}. Expected time, lat and lon."
        )
    renamed = ds.rename({found: name for name, found in names.items() if found != name}).set_coords(["lat", "lon"])
    for name in ("lat", "lon"):
        if renamed[name].ndim == 1 and renamed[name].dims != (name,):
            renamed = renamed.swap_dims({renamed[name].dims[0]: name})
    kept = {"time", "lat", "lon", *renamed.dims}
    return renamed.drop_vars([name for name in renamed.coords if name not in kept])


def _named(ds: xr.Dataset, standard_name: str, names: Sequence[str]) -> str | None:
    by_name = next((name for name in names if name in ds.variables), None)
    by_attribute = (
        str(name) for name, value in ds.variables.items() if value.attrs.get("standard_name") == standard_name
    )
    return by_name or next(by_attribute, None)


def to_canonical_units(data: xr.DataArray, where: str = "") -> xr.DataArray:
    """Convert to `CANONICAL_UNITS`, precipitation depths through the density of water; lazy; same dtype.

    `dtr` says afterwards that it is a difference of temperatures, whatever it said before.

    Raises
    ------
    DataError
        If units are absent, unknown or of another quantity; it names `where`, the variable, its units and the expected.
    """
    expected = CANONICAL_UNITS.get(str(data.name))
    if expected is None:
        return data
    try:
        converted = convert_to(data, expected)
    except DataError as error:
        got = data.attrs.get("units", "none")
        raise DataError(
            f"{where + ': ' if where else ''}{data.name} has units {got!r}; expected {expected} or "
            f"what converts to it ({error}) Correct the units attribute of the data."
        ) from None
    return as_difference(converted) if data.name == "dtr" else converted


def _variable(ds: xr.Dataset, name: str) -> xr.DataArray:
    if name in ds.data_vars:
        return to_canonical_units(ds[name])
    if name == "dtr" and {"tasmax", "tasmin"} <= set(ds.data_vars):
        return daily_temperature_range(to_canonical_units(ds["tasmax"]), ds["tasmin"])
    raise DataError(f"variable {name} is missing; got {sorted(map(str, ds.data_vars))}.")


def daily_temperature_range(tasmax: xr.DataArray, tasmin: xr.DataArray) -> xr.DataArray:
    """Return tasmax - tasmin (converted to tasmax's units), K, as a temperature difference. Lazy.

    Raises
    ------
    DataError
        If a unit is unknown.
    """
    units = units_of(tasmax)
    dtr = tasmax - convert_to(tasmin, units)
    result = convert_to(as_difference(dtr.rename("dtr").assign_attrs(units=units)), "K")
    result.attrs = dict(DTR_ATTRS)
    return result


def select_period(ds: xr.Dataset, period: Sequence[str]) -> xr.Dataset:
    """Select whole years, both ends included, of a daily series without gaps; lazy.

    Raises
    ------
    DataError
        If the data begin after 1 January of the first year or end before 30 December of the last (which is where
        360-day calendars end), or days are missing or double.
    """
    start, end = (str(bound) for bound in period)
    _check_calendar(ds)
    selected = ds.sel(time=slice(start, end))
    check_extent(ds["time"].values, selected["time"].values, start, end)
    check_regular(selected["time"].values)
    return selected


def _check_calendar(ds: xr.Dataset) -> None:
    first = ds["time"].values[:1]
    if first.size and not (np.issubdtype(first.dtype, np.datetime64) or isinstance(first[0], cftime.datetime)):
        raise DataError(f"time holds {first.dtype}, not dates; open the data with decode_times=True.")


def day_of(value: Any) -> str:
    """Return the day of a date, numpy's or cftime's, as YYYY-MM-DD."""
    return value.isoformat()[:10] if isinstance(value, cftime.datetime) else str(value)[:10]


def check_extent(whole: np.ndarray, times: np.ndarray, start: str, end: str) -> None:
    """Check that dates, those of `whole` that lie within a period, reach from its one end to its other.

    Raises
    ------
    DataError
        If they do not.
    """
    first_wanted = start + {4: "-01-01", 7: "-01"}.get(len(start), "")
    last_wanted = end + {4: "-12-30", 7: "-28"}.get(len(end), "")
    if times.size and day_of(times.min()) <= first_wanted and day_of(times.max()) >= last_wanted:
        return
    found = f"{day_of(whole.min())} to {day_of(whole.max())}" if whole.size else "no time steps"
    raise DataError(f"period {start}-{end} is wanted, but the data cover {found}; expected data for all of the period.")


def check_regular(times: np.ndarray, where: str = "") -> None:
    """Check that each stamp (numpy or cftime dates) is exactly one day after the one before.

    Raises
    ------
    DataError
        At the first day that is missing, double or out of order, naming it.
    """
    steps = np.diff(times).astype("timedelta64[s]").astype("int64")
    wrong = np.flatnonzero(steps != SECONDS_PER_DAY)
    if wrong.size:
        before, after = day_of(times[wrong[0]]), day_of(times[wrong[0] + 1])
        kind = "double or out of order" if steps[wrong[0]] <= 0 else "missing, or stamps are not daily"
        raise DataError(
            f"{where + ': ' if where else ''}{before} is followed by {after}: days are {kind} "
            f"({wrong.size} such places); expected one stamp a day. Correct or exclude the data."
        )


def subset_box(ds: xr.Dataset, region: Mapping[str, Any]) -> xr.Dataset:
    """Cut a box of longitudes and latitudes, bounds included and widened by the region's `tile_buffer`; lazy.

    Curvilinear grids (2-D `lat`, `lon`) are cropped to the rows and columns that reach the box, and NaN outside it.

    Raises
    ------
    DataError
        If no cell is in the box, or its bounds cannot be expressed in the data's longitudes.
    """
    return subset_boxes(ds, [region])


def subset_boxes(ds: xr.Dataset, regions: Sequence[Mapping[str, Any]]) -> xr.Dataset:
    """Cut what `subset_box` cuts for any of several regions; of 1-D coordinates all rows and columns that one has.

    Raises
    ------
    DataError
        As `subset_box`, for the first region that does not fit the data.
    """
    boxes = [_box(ds, region) for region in regions]
    if ds["lat"].ndim == 1:
        inside = {dim: np.any([box[dim].values for box in boxes], axis=0) for dim in ("lat", "lon")}
        return ds.isel({dim: indexer(np.flatnonzero(where)) for dim, where in inside.items()})
    return _crop_and_mask(ds, functools.reduce(operator.or_, (box["lat"] & box["lon"] for box in boxes)).compute())


def _box(ds: xr.Dataset, region: Mapping[str, Any]) -> dict[str, xr.DataArray]:
    """Where latitudes, and where longitudes, are within a region's bounds."""
    buffer = float(region.get("tile_buffer") or 0)
    lat, lon = ds["lat"], ds["lon"]
    south, north = _widen(sorted(map(float, region["lat_bnds"])), buffer, _largest_step(lat, 0))
    west, east = _widen(_in_convention(lon, region), buffer, _largest_step(lon, -1))
    # In the coordinates' own dtype, like xarray's slices: 49.4 in float32 is more than 49.4 in float64.
    in_lat = (lat >= south) & (lat <= north)
    in_lon = (lon >= west) & (lon <= east)
    if not (in_lat.any() and in_lon.any() and (lat.ndim == 1 or (in_lat & in_lon).any())):
        raise DataError(
            f"region {region['name']} ({west:g} to {east:g} °E, {south:g} to {north:g} °N with its buffer) "
            f"holds no cell of the data ({_extent(lon)} °E, {_extent(lat)} °N)."
        )
    return {"lat": in_lat, "lon": in_lon}


def _extent(coordinate: xr.DataArray) -> str:
    return f"{float(coordinate.min()):g} to {float(coordinate.max()):g}"


def _widen(bounds: Sequence[float], buffer: float, step: float) -> tuple[float, float]:
    margin = buffer * step
    return bounds[0] - margin, bounds[1] + margin


def _largest_step(coordinate: xr.DataArray, axis: int) -> float:
    values = np.asarray(coordinate.values, dtype="float64")
    if values.shape[axis] < 2:
        return 0.0
    steps = np.abs(np.diff(values, axis=axis))
    # Where a global grid crosses its own edge the step is 360° minus the difference.
    return float(np.nanmax(np.minimum(steps, np.abs(360.0 - steps))))


def _in_convention(lon: xr.DataArray, region: Mapping[str, Any]) -> list[float]:
    """The region's western and eastern bound as the data count longitudes (0 to 360, or -180 to 180)."""
    bounds = [float(bound) for bound in region["lon_bnds"]]
    lowest, highest = float(lon.min()), float(lon.max())
    # Some grids of 0 to 360 begin half a cell before Greenwich.
    if highest > 180 and lowest > -90:
        return _moved(
            bounds, [bound < min(lowest, 0.0) for bound in bounds], 360.0, f"0 to 360 ({_extent(lon)})", region
        )
    return _moved(bounds, [bound > 180 for bound in bounds], -360.0, f"-180 to 180 ({_extent(lon)})", region)


def _moved(
    bounds: Sequence[float], outside: Sequence[bool], shift: float, convention: str, region: Mapping[str, Any]
) -> list[float]:
    if any(outside) and not all(outside):
        raise DataError(
            f"region {region['name']}: longitudes {bounds[0]:g} to {bounds[1]:g} straddle the edge "
            f"of data with longitudes {convention}; expected both on one side. Cut the region in two, or roll the data."
        )
    return [bound + shift for bound in bounds] if all(outside) else list(bounds)


def _crop_and_mask(ds: xr.Dataset, inside: xr.DataArray) -> xr.Dataset:
    y, x = map(str, inside.dims)
    rows, columns = np.flatnonzero(inside.any(x).values), np.flatnonzero(inside.any(y).values)
    box = {y: slice(int(rows[0]), int(rows[-1]) + 1), x: slice(int(columns[0]), int(columns[-1]) + 1)}
    cropped, mask = ds.isel(box), inside.isel(box).drop_vars(["lat", "lon"], errors="ignore")
    masked = {name: data.where(mask) if {y, x} <= set(data.dims) else data for name, data in cropped.data_vars.items()}
    return cropped.assign(masked)
