"""Stations: series at points, with CF's names and attributes (discrete sampling geometries, feature type timeSeries).

In memory, stations are a grid of one column: rows are `station`, the column is `point`, and `lat` and `lon` lie along
both. So all that works on maps works on them. Stores and files have the dimension `station` alone.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import xarray as xr

from espo_luigi.errors import DataError

STATION, POINT = "station", "point"
IDS, NAMES, ELEVATION = "station_id", "station_name", "elevation"
OF_A_STATION = (IDS, NAMES, ELEVATION)
"""Coordinates along `station` besides `lat` and `lon`."""
_ATTRS = {
    STATION: {"long_name": "number of the station in its source"},
    IDS: {"long_name": "station identifier", "cf_role": "timeseries_id"},
    NAMES: {"long_name": "station name", "standard_name": "platform_name"},
    ELEVATION: {"standard_name": "surface_altitude", "long_name": "elevation", "units": "m"},
    "lat": {"standard_name": "latitude", "long_name": "latitude", "units": "degrees_north"},
    "lon": {"standard_name": "longitude", "long_name": "longitude", "units": "degrees_east"},
}
_FEATURE = "featureType"


def are_points(data: xr.Dataset | xr.DataArray) -> bool:
    """Return whether data are those of stations, in memory."""
    return POINT in data.dims and STATION in data.dims


def along_one_dimension(lat: xr.DataArray, lon: xr.DataArray) -> bool:
    """Return whether latitudes and longitudes are those of places in a list, rather than of rows and columns."""
    return lat.dims == lon.dims and lat.ndim == 1


def as_points(ds: xr.Dataset) -> xr.Dataset:
    """Return stations, whose `lat` and `lon` lie along one dimension, as a grid (station, point) of one column; lazy.

    Ids are the texts with the `cf_role` timeseries_id, or else those of the dimension itself, or else numbers.
    Names are those with the standard name platform_name, elevations those of an altitude; other coordinates go.

    Raises
    ------
    DataError
        If a station has no place, or two have the same id.
    """
    dim = str(ds["lat"].dims[0])
    along = {name: one for name, one in ds.variables.items() if one.dims == (dim,)}
    numbers = xr.Variable(dim, range(ds.sizes[dim]))
    found = {"lat": ds["lat"].variable, "lon": ds["lon"].variable, STATION: numbers}
    for name, (key, part), usual in (
        (IDS, ("cf_role", "timeseries_id"), (IDS, "id", dim)),
        (NAMES, ("standard_name", "platform_name"), (NAMES, "name")),
        (ELEVATION, ("standard_name", "altitude"), (ELEVATION, "altitude")),
    ):
        said = [each for each, one in along.items() if part in str(one.attrs.get(key))]
        there = [along[each] for each in (*said, *usual) if each in along] or ([numbers] if name == IDS else [])
        if there:
            found[name] = there[0] if name == ELEVATION else there[0].copy(data=_texts(there[0]))
    _check(found[IDS].values, found["lat"].values, found["lon"].values)
    series = {name: data.variable for name, data in ds.data_vars.items() if "time" in data.dims}
    kept = {name: one for name, one in ds.coords.items() if dim not in one.dims and name not in ("lat", "lon")}
    coords = {name: (STATION, one.values, _ATTRS[name]) for name, one in found.items()}
    points = xr.Dataset(series, kept, ds.attrs)
    return from_series(points.rename_dims({} if dim == STATION else {dim: STATION}).assign_coords(coords))


def _check(ids: np.ndarray, lat: np.ndarray, lon: np.ndarray) -> None:
    if not len(ids):
        raise DataError("there is no station.")
    if twice := sorted({str(one) for one in pd.Index(ids)[pd.Index(ids).duplicated()]}):
        raise DataError(f"{len(twice)} station(s) are there twice, {twice[0]!r} first; expected one of each id.")
    if (wrong := ~((np.abs(lat) <= 90) & (np.abs(lon) <= 360))).any():
        at = int(wrong.argmax())
        raise DataError(
            f"{int(wrong.sum())} station(s) have no place on Earth, {str(ids[at])!r} first: {lat[at]:g} °N "
            f"{lon[at]:g} °E."
        )


def _texts(variable: xr.Variable) -> np.ndarray:
    """The texts of a variable, without the spaces or zero bytes that fill them up."""
    values = np.asarray(variable.values).tolist()
    decoded = (one.decode("utf-8", "replace") if isinstance(one, bytes) else str(one) for one in values)
    # Zarr 3 specifies texts of any length, and not of a fixed one.
    return np.array([one.strip(" \0") for one in decoded], object)


def from_table(values: Mapping[str, pd.DataFrame], stations: pd.DataFrame, units: Mapping[str, str]) -> xr.Dataset:
    """Return daily values in rows as a dataset (time, station), NaN where there is no row; in memory.

    Parameters
    ----------
    values
        By variable, rows with a `station`, a `time` (dates) and a `value`.
    stations
        Indexed by `station`: `lat`, `lon` (degrees), and perhaps `station_name` and `elevation` (m).
    units
        The units of variables, of those that have some.

    Raises
    ------
    DataError
        If a station has two values of a variable on a day, or no place.
    """
    ids = sorted({str(one) for rows in values.values() for one in rows[STATION].unique()})
    if lacking := [one for one in ids if one not in stations.index]:
        raise DataError(f"{len(lacking)} station(s) have no place, {lacking[0]!r} first; expected their lat and lon.")
    days = {name: rows["time"].to_numpy("datetime64[D]") for name, rows in values.items()}
    # Whole years: what a station lacks at an end is missing as any other day is.
    years = [end.astype("datetime64[Y]") for of in days.values() for end in (of.min(), of.max())]
    first = min(years).astype("datetime64[D]")
    time, series = np.arange(first, (max(years) + 1).astype("datetime64[D]")), {}
    for name, rows in values.items():
        of_station = pd.Categorical(rows[STATION].astype(str), ids).codes.astype(np.int64)
        at = (days[name] - first).astype(np.int64) * len(ids) + of_station
        if (twice := pd.Series(at).duplicated().to_numpy()).any():
            row = int(twice.argmax())
            raise DataError(
                f"{name} of the station {ids[of_station[row]]!r} has two values on {days[name][row]}; expected one."
            )
        whole = np.full(len(time) * len(ids), np.nan, np.float32)
        whole[at] = rows["value"]
        attrs = {"units": units[name]} if name in units else {}
        series[name] = ("time", STATION), whole.reshape(len(time), len(ids)), attrs
    of = stations.loc[ids]
    known = {str(name): (STATION, of[name].to_numpy()) for name in of.columns}
    coords = {"time": time.astype("datetime64[ns]"), IDS: (STATION, np.array(ids, str)), **known}
    return xr.Dataset(series, coords)


def from_ragged(ds: xr.Dataset) -> xr.Dataset:
    """Return ragged arrays of series, CF's contiguous or indexed ones, as a dataset (time, station); others as it is.

    Ragged arrays are read here. Raises `DataError` if a station has two values on a day.
    """
    keys = ("sample_dimension", "instance_dimension")
    of = next((one for one in ds.variables.values() if {*keys} & {*one.attrs}), None)
    if of is None or "time" not in ds.variables:
        return ds
    is_contiguous = keys[0] in of.attrs
    dim, samples = (of.dims[0], of.attrs[keys[0]]) if is_contiguous else (of.attrs[keys[1]], of.dims[0])
    counted = np.asarray(of.values, np.int64)
    place = np.repeat(np.arange(counted.size), counted) if is_contiguous else counted
    numbers, time = np.char.zfill(place.astype(str), 12), ds["time"].values
    rows = {
        str(name): data for name, data in ds.data_vars.items() if data.dims == (samples,) and data.dtype.kind == "f"
    }
    values = {
        name: pd.DataFrame({STATION: numbers, "time": time, "value": data}).dropna() for name, data in rows.items()
    }
    whole = from_table(values, pd.DataFrame(index=np.unique(numbers)), {})
    known = ds.drop_dims(str(samples)).isel({dim: whole[IDS].values.astype(np.int64)})
    series = {name: (("time", dim), whole[name].values, data.attrs) for name, data in rows.items()}
    return known.assign(series).assign_coords(time=whole["time"])


def as_series(ds: xr.Dataset) -> xr.Dataset:
    """Return stations as stores have them, along `station` alone, with CF's feature type; others as they are."""
    return ds.isel({POINT: 0}, drop=True).assign_attrs({_FEATURE: "timeSeries"}) if are_points(ds) else ds


def are_series(ds: xr.Dataset) -> bool:
    """Return whether a dataset is one that `as_series` made."""
    return STATION in ds.dims and POINT not in ds.dims and ds.attrs.get(_FEATURE) == "timeSeries"


def from_series(ds: xr.Dataset) -> xr.Dataset:
    """Return what `as_series` was given; lazy."""
    columns = {
        name: one.set_dims((*one.dims, POINT))
        for name, one in ds.variables.items()
        if STATION in one.dims and name not in (STATION, *OF_A_STATION)
    }
    return ds.assign({name: one for name, one in columns.items() if name in ds.data_vars}).assign_coords(
        {name: one for name, one in columns.items() if name in ds.coords} | {POINT: (POINT, [0])}
    )
