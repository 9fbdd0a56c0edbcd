"""Extraction: canonical units, derived variables, a period of whole years and a box of daily climate data."""

from __future__ import annotations

import functools
import logging
import operator
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NoReturn

import cftime
import numpy as np
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.science.boxes import Box, missing_sides
from espo_luigi.science.calendar import day_of, joined, whole_years
from espo_luigi.science.chunks import indexer
from espo_luigi.science.derivations import OF_RAW_DATA, derive
from espo_luigi.science.extract.input_problems import require_days
from espo_luigi.science.grid import extent
from espo_luigi.science.periods import each_period
from espo_luigi.science.units import as_difference, as_floats, convert_to
from espo_luigi.science.variables import VARIABLES, Variable, variable

logger = logging.getLogger(__name__)

# Longitudes that differ by less belong to the same column.
_SAME_DEGREES = 1e-4
# Global attributes (CMIP6, CORDEX, ACDD, tools) that describe a single file, variable or experiment. They are wrong for
# data joined from several: identities, texts about the file, the run's branching point.
_OF_A_FILE = (
    *("tracking_id", "creation_date", "date_*", "uuid", "timeStamp", "id", "name", "status", "version_id"),
    *("variable_id", "table_id", "table_info", "mipTable", "external_variables", "product", "further_info_url"),
    *("title", "description", "comment", "contact", "history", "*_history", "variant_info", "case_id", "EXPID"),
    *("experiment", "driving_experiment*", "parent_*", "branch_*", "YMDH_*", "*_runid", "*_hash", "*_commit"),
    *("cmor_version", "data_specs_version", "CMIP6_CV_version", "dr2xml_*", "NCO", "nco_*", "CDO", "DODS*"),
    *("geospatial_*", "time_coverage_*"),
    *("intake_esm*", "cat:path", "cat:format", "cat:date"),
)
# Attributes of variables that describe a single file, name its content, or limit values that change.
_OF_A_FILES_VARIABLE = (
    *("history", "original_*", "GRIB_*", "interval_*", "online_operation", "interp_method", "mipTable", "prov", "id"),
    *("title", "time", "time_label", "time_title", "coordinates", "bounds", "climatology", "cell_measures"),
    *("actual_range", "valid_min", "valid_max", "valid_range"),
)

LATITUDE_NAMES = ("lat", "latitude", "nav_lat")
LONGITUDE_NAMES = ("lon", "longitude", "nav_lon")


def extract(
    ds: xr.Dataset,
    *,
    variables_and_freqs: Mapping[str, str],
    period: Sequence[str] | Sequence[Sequence[str]],
    region: Mapping[str, Any],
    table: Mapping[str, Variable] = VARIABLES,
) -> xr.Dataset:
    """Cut daily data to variables, years and a box; lazy.

    Parameters
    ----------
    ds : xarray.Dataset
        (time, lat, lon), or (time, y, x) with 2-D lat and lon; daily, any calendar; any CF units.
    variables_and_freqs : mapping
        The variables of the result, each ``"D"``; those of `derivations.OF_RAW_DATA` are derived if
        they are not there.
    period : (start, end) or sequence of them
        Years, both included; in order, with years between them that are left out.
    region : mapping
        `name`, `lon_bnds`, `lat_bnds` (degrees, inclusive) and `tile_buffer`, which widens each bound by so many of the
        data's largest coordinate steps.
    table : mapping
        What is known of variables.

    Returns
    -------
    xarray.Dataset
        The variables in the order asked for, in the table's units, as float32 or float64, in the input's calendar,
        longitude convention and order of latitudes; cells of a curvilinear grid outside the box are NaN. Without the
        attributes that describe one file, such as `tracking_id` or `title`.

    Raises
    ------
    DataError
        If a variable or part of the period is missing, days are missing or double, units are unknown, or no cell is in
        the box.
    """
    parts = [
        select(ds, variables_and_freqs=variables_and_freqs, period=years, table=table) for years in each_period(period)
    ]
    selected = parts[0] if len(parts) == 1 else joined(parts)
    cut = subset_box(selected, region).copy(deep=False)
    for each in cut.variables.values():
        each.attrs = _without(each.attrs, _OF_A_FILES_VARIABLE)
    cut.attrs = _attributes(ds, cut, region, each_period(period))
    return cut


def select(
    ds: xr.Dataset,
    *,
    variables_and_freqs: Mapping[str, str],
    period: Sequence[str],
    table: Mapping[str, Variable] = VARIABLES,
) -> xr.Dataset:
    """Do what `extract` does before it cuts the box: variables, units and period, on the whole grid; lazy."""
    if other := {name: frequency for name, frequency in variables_and_freqs.items() if frequency != "D"}:
        raise DataError(f"frequencies {other} are wanted; expected D: only daily data are extracted.")
    named = normalise_coordinates(ds)
    variables = {name: _variable(named, name, table) for name in variables_and_freqs}
    # Built on the coordinates alone, so that variables and attributes of the input cannot slip in.
    return select_period(named[[]].assign(variables), period)


def _attributes(
    ds: xr.Dataset, cut: xr.Dataset, region: Mapping[str, Any], periods: Sequence[Sequence[str]]
) -> dict[Any, Any]:
    """The global attributes of the files that are true of the cut, and those that follow from the cut."""
    # "CF-1.7 CMIP-6.2": products follow CF, and not the rules for CMIP6's files.
    conventions = " ".join(re.findall(r"CF-[\d.]+", str(ds.attrs.get("Conventions", ""))))
    kept = _without(ds.attrs, (*_OF_A_FILE, "Conventions")) | ({"Conventions": conventions} if conventions else {})
    return kept | {
        "cat:domain": str(region["name"]),
        "cat:processing_level": "extracted",
        "cat:xrfreq": "D",
        "cat:frequency": "day",
        "cat:variable": ",".join(map(str, cut.data_vars)),
        **dates(cut),
        "history": f"espo_luigi: extracted {' and '.join(map('-'.join, periods))}, region {region['name']}",
    }


def dates(ds: xr.Dataset) -> dict[str, str]:
    """Return the attributes that say which days a series has, in its own calendar."""
    first, last = ds["time"].values[[0, -1]]
    return {"cat:date_start": day_of(first), "cat:date_end": day_of(last)}


def _without(attrs: Mapping[Any, Any], patterns: Sequence[str]) -> dict[Any, Any]:
    return {
        name: value for name, value in attrs.items() if not any(fnmatchcase(str(name), pattern) for pattern in patterns)
    }


def normalise_coordinates(ds: xr.Dataset) -> xr.Dataset:
    """Name latitude and longitude `lat` and `lon`, dimensions too; other coordinates but time and the grid's go. Lazy.

    Raises
    ------
    DataError
        If latitude, longitude or time is missing.
    """
    names = {"lat": _named(ds, "latitude", LATITUDE_NAMES), "lon": _named(ds, "longitude", LONGITUDE_NAMES)}
    missing = [name for name, found in names.items() if found is None]
    missing += [] if "time" in ds.indexes else ["time"]
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


def to_canonical_units(data: xr.DataArray, where: str = "", table: Mapping[str, Variable] = VARIABLES) -> xr.DataArray:
    """Convert to a table's units, precipitation depths by the density of water, with the types of `as_floats`; lazy.

    Differences of temperatures always get the attribute that says so. Variables without units in the table keep their
    own, known or not; an absent attribute becomes an empty text.

    Raises
    ------
    DataError
        If units are absent, unknown or of another quantity; it names `where`, the variable, its units and the expected.
    """
    known = variable(str(data.name), table)
    given = as_difference(data) if known.difference else data
    if not known.units:
        return as_floats(given.assign_attrs(units=data.attrs.get("units", "")))
    try:
        return convert_to(given, known.units)
    except DataError as error:
        raise DataError(
            f"{where + ': ' if where else ''}{data.name} has units {data.attrs.get('units', 'none')!r}; expected "
            f"{known.units} or what converts to it ({error}) Correct the units attribute of the data."
        ) from None


def as_maps(data: xr.DataArray) -> xr.DataArray:
    """Return a variable on `lat` and `lon` as (time, y, x), without other dimensions of size 1; lazy.

    Raises
    ------
    DataError
        If it has other dimensions, lacks any of these, or holds no numbers.
    """
    if data.dtype.kind not in "fiu":
        raise DataError(f"{data.name} holds {data.dtype}; expected numbers.")
    horizontal = data["lat"].dims if data["lat"].ndim == 2 else (*data["lat"].dims, *data["lon"].dims)
    dims = ("time", *horizontal)
    if "expver" in data.dims:
        data = _of_versions(data)
    others = [dim for dim in data.dims if dim not in dims]
    if set(dims) - set(data.dims) or any(data.sizes[dim] != 1 for dim in others):
        raise DataError(
            f"{data.name} has the dimensions {', '.join(f'{dim} ({size})' for dim, size in data.sizes.items())}; "
            f"expected {', '.join(map(str, dims))} and no others of more than one value. Select one value of others."
        )
    return data.squeeze(others, drop=True).transpose(*dims)


def _of_versions(data: xr.DataArray) -> xr.DataArray:
    """Return ERA5's final values (version 1 of `expver`), and its preliminary ones (5) where there are none; lazy."""
    versions = data.sizes["expver"]
    order = data["expver"].argsort().values if "expver" in data.coords else np.arange(versions)
    final, *preliminary = (data.isel(expver=int(at), drop=True) for at in order)
    for other in preliminary:
        final = final.fillna(other)
    return final.assign_attrs(data.attrs)


def _variable(ds: xr.Dataset, name: str, table: Mapping[str, Variable]) -> xr.DataArray:
    if name in ds.data_vars:
        return to_canonical_units(as_maps(ds[name]), table=table)
    inputs = OF_RAW_DATA.get(name, ())
    if inputs and set(inputs) <= set(ds.data_vars):
        return derive(name, {given: _variable(ds, given, table) for given in inputs}, table)
    raise DataError(f"variable {name} is missing; got {sorted(map(str, ds.data_vars))}.")


def select_period(ds: xr.Dataset, period: Sequence[str]) -> xr.Dataset:
    """Select whole years, or from a day to a day, both ends included, of a daily series without gaps; lazy.

    Raises
    ------
    DataError
        If the data begin after 1 January of the first year or end before the last day of the last one (30 December
        in a 360-day calendar), or days are missing or double.
    """
    start, end = (str(bound) for bound in period)
    first = ds["time"].values[:1]
    if first.size and not (np.issubdtype(first.dtype, np.datetime64) or isinstance(first[0], cftime.datetime)):
        raise DataError(f"time holds {first.dtype}, not dates; open the data with decode_times=True.")
    selected = ds.sel(time=slice(start, end)) if "-" in start else whole_years(ds, start, end)
    if not selected.sizes["time"]:
        there = " to ".join(map(day_of, ds["time"].values[[0, -1]])) if ds.sizes["time"] else "no time steps"
        raise DataError(f"the period {start}-{end} is wanted, and the data have no day of it, but {there}.")
    require_days(selected, period=(start, end))
    return selected


def subset_box(ds: xr.Dataset, region: Mapping[str, Any]) -> xr.Dataset:
    """Cut a box of longitudes and latitudes, bounds included and widened by the region's `tile_buffer`; lazy.

    A box may cross the first and the last longitude of a global grid. Columns then run from its western to its eastern
    bound, and their longitudes go on across the edge. The buffer of a box around the Earth repeats columns. Curvilinear
    grids (2-D `lat`, `lon`) are cropped to the rows and columns that reach the box, and NaN outside it. Raises
    `DataError` if no cell is in the box, or a coordinate is missing or out of order.
    """
    if ds["lat"].ndim == 2:
        return _crop_and_mask(ds, _inside(ds, region))
    _check_coordinates(ds)
    rows, (places, longitudes) = _rows(ds, region), _columns(ds, region)
    cut = ds.isel(lat=indexer(rows), lon=indexer(places))
    return cut if np.array_equal(cut["lon"], longitudes) else cut.assign_coords(lon=cut["lon"].copy(data=longitudes))


def cells_inside(ds: xr.Dataset, region: Mapping[str, Any]) -> xr.DataArray | bool:
    """Return which cells `subset_box` leaves inside of the box, boolean (y, x); True for 1-D `lat` and `lon`."""
    grid = normalise_coordinates(ds)
    grid = grid.drop_vars(grid.data_vars)
    if grid["lat"].ndim == 1:
        return True
    return subset_box(grid.assign(inside=xr.ones_like(grid["lat"])), region)["inside"].notnull()


def subset_boxes(ds: xr.Dataset, regions: Sequence[Mapping[str, Any]]) -> xr.Dataset:
    """Cut the cells of several regions: of 1-D coordinates, all rows and all columns that any region needs.

    Rows, columns and their coordinates keep the data's order and values. Raises `DataError` as `subset_box`, for the
    first region that does not fit the data.
    """
    if ds["lat"].ndim == 2:
        return _crop_and_mask(ds, functools.reduce(operator.or_, (_inside(ds, region) for region in regions)))
    _check_coordinates(ds)
    rows = np.unique(np.concatenate([_rows(ds, region) for region in regions]))
    columns = np.unique(np.concatenate([_columns(ds, region)[0] for region in regions]))
    return ds.isel(lat=indexer(rows), lon=indexer(columns))


def beyond_the_grid(ds: xr.Dataset, region: Mapping[str, Any]) -> str:
    """Say how far a region reaches beyond the outermost cells of 1-D `lat` and `lon`, or return nothing.

    Values there would be extrapolated. Allowed are `tile_buffer` steps of the grid, or half a step, where a cell ends,
    and any distance between the outermost row and a pole. 2-D coordinates are not checked here, since their corners
    need not reach those of a box: `regrid.check_reach` checks each cell.
    """
    if ds["lat"].ndim == 2:
        return ""
    lat, lon, cells = ds["lat"], ds["lon"], max(float(region.get("tile_buffer") or 0), 0.5)
    data = Box(_ends(lon), (float(lat.min()), float(lat.max())))
    (west, east), (south, north) = data
    step_lon, step_lat = _largest_step(lon, 0), _largest_step(lat, 0)
    reach = data.widened(cells * step_lon, cells * step_lat)
    # A globe has no room for a column between its last and its first, nor for a row between the outermost and the pole.
    if east - west + 1.5 * step_lon >= 360:
        reach = reach._replace(lon_bnds=(0, 360))
    poles = -90 if south - step_lat <= -90 else reach.lat_bnds[0], 90 if north + step_lat >= 90 else reach.lat_bnds[1]
    wanted = Box(tuple(region["lon_bnds"]), tuple(region["lat_bnds"]))
    beyond = missing_sides(wanted, reach._replace(lat_bnds=poles), tolerance=1e-6)
    return (
        f"region {region['name']} ({wanted}) reaches beyond the data ({data}): {beyond} further than {cells:g} cells"
        if beyond
        else ""
    )


def _ends(lon: xr.DataArray) -> tuple[float, float]:
    """Return the western and the eastern end of longitudes that may begin anywhere: the sides of their widest gap."""
    values = np.sort(np.asarray(lon.values, dtype="float64") % 360)
    gaps = np.diff(np.append(values, values[0] + 360))
    widest = int(gaps.argmax())
    return float(values[(widest + 1) % values.size]) - (360.0 if widest + 1 < values.size else 0.0), float(
        values[widest]
    )


def _check_coordinates(ds: xr.Dataset) -> None:
    """Check the values of `lat` and `lon`: latitudes of rows are in order; longitudes may begin anywhere."""
    for name, most in (("lat", 90.001), ("lon", 720)):
        values, units = np.asarray(ds[name].values), str(ds[name].attrs.get("units", "degrees"))
        if values.dtype.kind not in "fiu" or units.lower().startswith("rad"):
            raise DataError(f"{name} holds {values.dtype} in {units}; expected degrees.")
        if missing := int((~np.isfinite(values)).sum()):
            raise DataError(f"{missing} of {values.size} values of {name} are missing; expected all of them.")
        if np.abs(values).max() > most:
            raise DataError(f"{name} is {extent(ds[name])}; expected degrees, {most:.0f} at most.")
    if ds["lat"].ndim == 2:
        return
    steps, around = np.diff(ds["lat"].values), np.sort(ds["lon"].values % 360)
    if not ((steps > 0).all() or (steps < 0).all()):
        raise DataError(f"lat neither rises nor falls from row to row ({extent(ds['lat'])}); expected rows in order.")
    # A global grid may have its first column again as its last.
    if (np.diff(around) < _SAME_DEGREES).sum() > 1:
        raise DataError(f"several columns have the same lon ({extent(ds['lon'])}); expected one each.")


def _rows(ds: xr.Dataset, region: Mapping[str, Any]) -> np.ndarray:
    """Return which rows lie within a region's latitudes."""
    south, north = _bounds(ds, region).lat_bnds
    # In the coordinate's own dtype, like xarray's slices: 49.4 in float32 is more than 49.4 in float64.
    rows = np.flatnonzero((ds["lat"].values >= south) & (ds["lat"].values <= north))
    return rows if rows.size else _refuse(ds, region)


def _columns(ds: xr.Dataset, region: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return which columns lie within a region's longitudes, in their order there, and these longitudes."""
    lon, (west, east) = ds["lon"].values, _bounds(ds, region).lon_bnds
    moved = np.stack([lon, lon - 360, lon + 360])
    turn, places = np.nonzero((moved >= west) & (moved <= east))
    if not places.size:
        return _refuse(ds, region)
    found = moved[turn, places]
    if turn.any() or np.any(np.diff(found) <= 0):
        order = np.argsort(found, kind="stable")
        # A global grid may have its first column again as its last; and a box of 360 degrees has both of its ends.
        order = order[np.append(True, np.diff(found[order]) > _SAME_DEGREES)]
        if found[order[-1]] - found[order[0]] > 360 - _SAME_DEGREES and not region.get("tile_buffer"):
            order = order[:-1]
        places, found = places[order], found[order]
        if np.median(np.diff(lon)) < 0:
            places, found = places[::-1], found[::-1]
    return places, found


def _inside(ds: xr.Dataset, region: Mapping[str, Any]) -> xr.DataArray:
    """Return which cells of a curvilinear grid lie within a region's bounds."""
    (west, east), (south, north) = _bounds(ds, region)
    lat, lon = ds["lat"].compute(), ds["lon"].compute()
    around = ((lon + turn >= west) & (lon + turn <= east) for turn in (0, -360, 360))
    inside = (lat >= south) & (lat <= north) & functools.reduce(operator.or_, around)
    return inside if inside.any() else _refuse(ds, region)


def _refuse(ds: xr.Dataset, region: Mapping[str, Any]) -> NoReturn:
    (west, east), (south, north) = _bounds(ds, region)
    raise DataError(
        f"region {region['name']} ({west:g} to {east:g} °E, {south:g} to {north:g} °N with its buffer) "
        f"holds no cell of the data ({extent(ds['lon'])} °E, {extent(ds['lat'])} °N)."
    )


def _bounds(ds: xr.Dataset, region: Mapping[str, Any]) -> Box:
    """Return a region's bounds with its buffer, as the data count longitudes."""
    cells = float(region.get("tile_buffer") or 0)
    (south, north), (west, east) = sorted(map(float, region["lat_bnds"])), _in_convention(ds["lon"], region)
    margins = cells * _largest_step(ds["lon"], -1), cells * _largest_step(ds["lat"], 0)
    return Box((west - margins[0], east + margins[0]), (south - margins[1], north + margins[1]))


def _largest_step(coordinate: xr.DataArray, axis: int) -> float:
    values = np.asarray(coordinate.values, dtype="float64")
    if values.shape[axis] < 2:
        return 0.0
    steps = np.abs(np.diff(values, axis=axis))
    # Where a global grid crosses its own edge the step is 360° minus the difference.
    return float(np.nanmax(np.minimum(steps, np.abs(360.0 - steps))))


def _in_convention(lon: xr.DataArray, region: Mapping[str, Any]) -> tuple[float, float]:
    """Return the region's western and eastern bound, turned so that most of its cells keep their longitudes."""
    west, east = (float(bound) for bound in region["lon_bnds"])

    def cells(turn: int) -> int:
        return int(((lon >= west + turn) & (lon <= east + turn)).sum())

    turn = max((0, 360, -360), key=cells)
    if not cells(turn):  # a region narrower than a cell, or beyond the data: take the turn that is nearest to them
        turn = min((0, 360, -360), key=lambda turn: abs((west + east) / 2 + turn - float((lon.min() + lon.max()) / 2)))
    return west + turn, east + turn


def _crop_and_mask(ds: xr.Dataset, inside: xr.DataArray) -> xr.Dataset:
    y, x = map(str, inside.dims)
    rows = np.flatnonzero(inside.any(x).values)
    box = {y: slice(int(rows[0]), int(rows[-1]) + 1), x: indexer(_side_by_side(inside.any(y).values, ds["lon"]))}
    cropped, mask = ds.isel(box), inside.isel(box).drop_vars(["lat", "lon"], errors="ignore")
    masked = {name: data.where(mask) if {y, x} <= set(data.dims) else data for name, data in cropped.data_vars.items()}
    _check_coordinates(cropped)
    return cropped.assign(masked)


def _side_by_side(wanted: np.ndarray, lon: xr.DataArray) -> np.ndarray:
    """Return the wanted columns of a curvilinear grid with those between them, across its edge if it is a globe's."""
    columns, number = np.flatnonzero(wanted), wanted.size
    gaps = np.diff(np.append(columns, columns[0] + number))
    widest, first_to_last = int(gaps.argmax()), lon.isel({lon.dims[1]: [0, -1]})
    if widest == columns.size - 1 or _largest_step(first_to_last, 1) > 1.5 * _largest_step(lon, 1):
        return np.arange(columns[0], columns[-1] + 1)
    start = columns[widest + 1]
    return np.arange(start, start + number - gaps[widest] + 1) % number
