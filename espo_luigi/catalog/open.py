"""Opening a search's match lazily, as a single dataset."""

from __future__ import annotations

import errno
import logging
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from espo_luigi.catalog.cmip7 import is_cmip7, searched_names
from espo_luigi.catalog.criteria import Period
from espo_luigi.catalog.files import first_line, is_zarr, open_netcdf, open_zarr
from espo_luigi.catalog.read import CMIP7_COLUMNS, Asset, is_url
from espo_luigi.catalog.search import Match
from espo_luigi.catalog.stations import is_stations, open_stations
from espo_luigi.errors import DataError, StoreError
from espo_luigi.files import passes
from espo_luigi.science.attributes import INSERTED_DAYS, STATED_UNITS
from espo_luigi.science.calendar import (
    TO_MIDPOINT,
    calendar_of,
    day_of,
    floor_to_day,
    insert_days,
    whole_years,
)
from espo_luigi.science.chunks import join
from espo_luigi.science.extract.dataset import as_maps, to_canonical_units
from espo_luigi.science.extract.input_problems import require_days, wanted_days
from espo_luigi.science.geometry.cells import normalise_coordinates
from espo_luigi.science.units import with_stated_units
from espo_luigi.science.variables import VARIABLES, Variable, variable

logger = logging.getLogger(__name__)

_GRID_TOLERANCE_DEGREES = 1e-4
# Global attributes of CMIP7 that describe a file, a variable, a grid or the beginning of a run.
_OF_A_CMIP7_FILE = (
    *("tracking_id", "creation_date", "product", "drs_specs", "data_specs_version", "cmip6_compound_name"),
    *("variable_id", "branded_variable", "branding_suffix", "temporal_label", "vertical_label", "horizontal_label"),
    *("area_label", "grid_label", "region", "nominal_resolution", "realm", "external_variables"),
    *("*_index", "parent_*", "branch_*"),
)


def open_match(
    match: Match,
    *,
    xr_open_kwargs: Mapping[str, Any] | None = None,
    xr_combine_kwargs: Mapping[str, Any] | None = None,
    may_lack: Sequence[str] = (),
    table: Mapping[str, Variable] = VARIABLES,
) -> xr.Dataset:
    """Open the files of a search's match as a dataset of daily data; lazy (dask).

    Raises `DataError` if a file is missing or unreadable, lacks a variable, has unknown units or another grid or
    calendar than the others, or days are missing or double.

    Parameters
    ----------
    match : Match
        A result of `Catalog.search`.
    xr_open_kwargs : mapping, optional
        For `xarray.open_dataset`; time deltas stay numbers and chunks are chosen unless it says otherwise.
    xr_combine_kwargs : mapping, optional
        For `xarray.combine_by_coords`; ``data_vars="minimal"``, ``combine_attrs="drop_conflicts"`` unless it says
        otherwise.
    may_lack : sequence of str
        Days (YYYY-MM-DD) that files may lack, besides those of the match's preset; they are inserted as NaN.
    table : mapping
        What is known of variables.

    Returns
    -------
    xarray.Dataset
        The match's `variables` (time, y, x) in the table's units, as float32 or float64, in their calendar; coordinates
        `time` (midnight of the day that holds the middle of a stamp's interval, or else the stamp), `lat`, `lon` (and
        those of a rotated grid's dimensions); attributes of the files and, as ``cat:…``, of the catalogue.
    """
    may_lack = [*may_lack, *match.days_lacking]
    options = dict(xr_open_kwargs or {})
    opened = [(asset, open_years(asset, match, options, table=table)) for asset in match.assets]
    # Each variable of a file is a dataset of its own.
    pieces = [
        (asset, name, single(ds, name, asset, table))
        for asset, ds in opened
        for name in (wanted_of(asset, match) if ds.sizes["time"] else ())
    ]
    if lacking := [name for name in match.variables if name not in {held for _, held, _ in pieces}]:
        years = "; ".join(f"{start}-{end}" for start, end in match.periods)
        raise DataError(
            f"{match.id}: no file has {', '.join(lacking)} in {years or 'any year'}; correct the catalogue's dates."
        )
    combined = _combine(match, on_one_grid(pieces), dict(xr_combine_kwargs or {}))
    combined = _with_days(combined, match, may_lack)
    if match.columns.get("mip_era") == "CMIP7":
        # Those that all files share, and that stay true of products: files of a run and of its parent may have several
        # institutions, sources and licences.
        combined.attrs = {
            name: value
            for name, value in combined.attrs.items()
            if not any(fnmatchcase(str(name), pattern) for pattern in _OF_A_CMIP7_FILE)
            and all(name not in of.attrs or np.array_equal(of.attrs[name], value) for _, _, of in pieces)
        }
    institutions = {piece.attrs.get("institution_id") for _, _, piece in pieces}
    attributes = _catalogue_attributes(match, several_institutions=len(institutions) > 1)
    if stated := [piece.attrs[STATED_UNITS] for _, _, piece in pieces if STATED_UNITS in piece.attrs]:
        attributes[STATED_UNITS] = f"{match.id}: {', '.join(dict.fromkeys(stated))}"
    return combined[list(match.variables)].assign_attrs(attributes)


def _with_days(ds: xr.Dataset, match: Match, may_lack: Sequence[str]) -> xr.Dataset:
    """Check the days of each of the match's periods, between which years may be missing; insert those that may lack."""
    several = match.periods if len(match.periods) > 1 else ()
    parts = [part for start, end in several if (part := whole_years(ds, start[:4], end[:4])).sizes["time"]] or [ds]
    for part in parts:
        require_days(part, match.id, may_lack=may_lack)
    if not may_lack:
        return ds
    ends = {end[:4]: wanted_days(start, end, calendar_of(ds))[1] for start, end in match.periods}
    filled = [
        insert_days(part, days=may_lack, until=ends.get(day_of(part["time"].values[-1])[:4], "")) for part in parts
    ]
    inserted = ",".join(filter(None, (part.attrs.get(INSERTED_DAYS) for part in filled)))
    whole = filled[0] if len(filled) == 1 else join(filled, "time")
    return whole.assign_attrs({INSERTED_DAYS: inserted}) if inserted else whole


def open_fixed(match: Match, ds: xr.Dataset, *, xr_open_kwargs: Mapping[str, Any] | None = None) -> xr.Dataset:
    """Open the fixed fields of a search's match, on the grid of its opened series; in memory.

    Raises `DataError` if a file is missing or unreadable, lacks the field, or is on another grid.

    Parameters
    ----------
    match : Match
        A result of `Catalog.search`.
    ds : xarray.Dataset
        What `open_match` returned.
    xr_open_kwargs : mapping, optional
        As of `open_match`.

    Returns
    -------
    xarray.Dataset
        Each field (y, x) in the units and the type of its file, on the coordinates of `ds`.
    """
    options = {**(xr_open_kwargs or {}), "chunks": {}}
    fields: dict[str, xr.Variable] = {}
    for name, asset in match.fixed.items():
        with _with_searched_names(_open_file(asset, match, options, math.inf), asset) as held:
            if name not in held.data_vars:
                raise DataError(f"{asset.path} has no variable {name}; it has {', '.join(map(str, held.data_vars))}.")
            field = held[name].astype("int8") if held[name].dtype == bool else held[name]
            # Some files give a field a single time.
            dated = field if "time" in field.dims else field.drop_vars("time", errors="ignore").expand_dims(time=[0])
            try:
                # The file may have series, too.
                without = held.drop_dims("time", errors="ignore").drop_vars("time", errors="ignore")
                named = normalise_coordinates(without.assign({name: dated}))
                loaded = as_maps(named[name]).isel(time=0, drop=True).load()
            except DataError as error:
                raise DataError(f"{asset.path}: {error}") from None
        loaded.attrs.pop("grid_mapping", None)
        placed = on_grid_of(ds, loaded.drop_encoding().to_dataset(name=name))
        if placed is None:
            raise DataError(
                f"{asset.path}: {name} is not on the grid of {match.id}; expected the same lat and lon. "
                "Give the catalogue the field of this grid, or exclude this one by its path."
            )
        fields[name] = placed[name].variable
    return xr.Dataset(fields, {name: value for name, value in ds.coords.items() if "time" not in value.dims})


def open_grid_mapping(match: Match, variable: str, *, xr_open_kwargs: Mapping[str, Any] | None = None) -> xr.DataArray:
    """Open the grid mapping of a variable (such as `rotated_pole`), a scalar whose attributes matter; without data.

    A DataArray without a name is returned if the files have none. Raises `DataError` if the file is missing or
    unreadable.
    """
    asset = next(asset for asset in match.assets if variable in asset.variables)
    with _open_file(asset, match, {**(xr_open_kwargs or {}), "chunks": {}}, math.inf) as ds:
        data = ds.get(variable)
        name = "" if data is None else data.encoding.get("grid_mapping") or data.attrs.get("grid_mapping")
        attrs = dict(ds[name].attrs) if name in ds.variables else {}
    return xr.DataArray(np.int8(0), attrs=attrs, name=str(name) if attrs else None)


def _catalogue_attributes(match: Match, *, several_institutions: bool = False) -> dict[str, str]:
    """The columns on which the catalogue's rows agree as ``cat:…``, the files' dates, and the attributes of the run.

    The files' own `experiment_id` may be `historical`, where those of a scenario continue it; so may be their
    institution's.
    """
    without = ("path", "format", *CMIP7_COLUMNS)
    columns = {name: value for name, value in match.columns.items() if name not in without}
    columns["variable"] = ",".join(match.variables)
    dates = [
        (asset.columns["date_start"], asset.columns["date_end"]) for asset in match.assets if asset.start and asset.end
    ]
    if dates:
        columns["date_start"], columns["date_end"] = min(start for start, _ in dates), max(end for _, end in dates)
    named = {"activity_id": "activity", "experiment_id": "experiment"}
    if several_institutions:
        named["institution_id"] = "institution"
    if columns.get("mip_era") == "CMIP7":
        named |= {"institution_id": "institution", "source_id": "source", "variant_label": "member"}
    run = {name: columns[column] for name, column in named.items() if column in columns}
    return run | {f"cat:{name}": value for name, value in columns.items()}


def wanted_of(asset: Asset, match: Match) -> list[str]:
    """Return the variables of the match that a file holds."""
    return [name for name in match.variables if name in asset.variables]


def open_years(
    asset: Asset,
    match: Match,
    open_kwargs: Mapping[str, Any],
    most_bytes: float = math.inf,
    table: Mapping[str, Variable] = VARIABLES,
    *,
    by_day: bool = True,
) -> xr.Dataset:
    """Open one file lazily: coordinates named as everywhere, stamps at midnight, only the years of the match.

    Chunks take `most_bytes` at most, unless a stored chunk is larger. Units are those that the match states. Unless
    `by_day`, all stamps stay as they are, with the coordinate `TO_MIDPOINT` where times have bounds, and amounts do not
    become rates.

    Raises
    ------
    DataError
        If it cannot be read, or lacks a wanted variable, coordinates or dates.
    """
    ds = _with_searched_names(_open_file(asset, match, dict(open_kwargs), most_bytes), asset)
    missing = [name for name in wanted_of(asset, match) if name not in ds.data_vars]
    if missing:
        raise DataError(
            f"{asset.path} has no variable {', '.join(missing)}; it has {', '.join(map(str, ds.data_vars))}. "
            "Correct the catalogue."
        )
    try:
        named = normalise_coordinates(ds)
        calendar_of(named)
    except DataError as error:
        raise DataError(f"{asset.path}: {error}") from None
    if named.indexes["time"].hasnans:
        missing_times = int(named["time"].isnull().sum())
        raise DataError(f"{asset.path}: {missing_times} of {named.sizes['time']} times are missing.")
    to_midpoint = ds.get(TO_MIDPOINT)
    if to_midpoint is not None and to_midpoint.isnull().any():
        # Only problems of the wanted years count.
        unknown = within(named.assign_coords(unknown=to_midpoint.isnull().variable), match.periods)["unknown"]
        if unknown.any():
            raise DataError(f"{asset.path} (id {asset.id}): {to_midpoint.attrs['problem']}.")
    if by_day:
        floored = floor_to_day(named, to_midpoint)
    else:
        floored = named if to_midpoint is None else named.assign_coords({TO_MIDPOINT: to_midpoint.variable})
    if asset.until is not None:
        # The days before the next run begins.
        time = floored["time"].dt
        days = (time.year * 100 + time.month) * 100 + time.day
        floored = floored.isel(time=np.flatnonzero(days.values < int(f"{asset.until:%Y%m%d}")))
    for name in wanted_of(asset, match):
        wanted, is_total = variable(name, table).units if by_day else "", name in match.accumulation
        told = with_stated_units(floored[name], wanted, units=match.units.get(name, ""), is_total=is_total)
        floored = floored.assign({name: told}) if STATED_UNITS in told.attrs else floored
    return within(floored, match.periods) if by_day else floored


def _with_searched_names(ds: xr.Dataset, asset: Asset) -> xr.Dataset:
    """Rename the variables of a raw file of CMIP7 to those that people search, by the file alone."""
    if not is_cmip7(ds.attrs, asset.path):
        return ds
    maps = [str(name) for name, data in ds.data_vars.items() if "time" in data.dims and data.ndim >= 3]
    try:
        names = searched_names(ds, maps, asset.path)
    except DataError as error:
        raise DataError(f"{asset.path}: {error}.") from None
    renamed = ds.rename({name: searched for name, searched in names.items() if name != searched})
    for data in renamed.data_vars.values():
        # It names a variable of another file, and regridding changes the areas of cells.
        data.attrs.pop("cell_measures", None)
    return renamed


def asset_with(match: Match, variables: Iterable[str]) -> Asset:
    """Return the first file of a dataset that has any of the variables; the first file if none has."""
    return next((asset for asset in match.assets if {*variables} & {*asset.variables}), match.assets[0])


def open_grid(asset: Asset, open_kwargs: Mapping[str, Any]) -> xr.Dataset:
    """Open one file for the coordinates of its grid only: `lat` and `lon`, in memory; times are not read.

    Variables `lat_bounds` and `lon_bounds`, (lat, 2) and (lon, 2) or (y, x, 4), are the bounds that `lat` and `lon`
    name by their attribute `bounds`, or else those that are called as models call them. On a damaged file, it raises
    the backend's errors.
    """
    # Without times, nothing of a century of days is read or decoded.
    options = {name: value for name, value in open_kwargs.items() if name in ("engine", "group", "storage_options")}
    options |= {"chunks": None, "decode_times": False}
    with_zarr = is_zarr(asset.path, asset.columns.get("format", ""))
    ds = open_zarr(asset.path, options) if with_zarr else open_netcdf(asset.path, (), options)
    with ds:
        ds = asset.preset.opened(ds, asset.path) if asset.preset else ds
        named = normalise_coordinates(ds.reset_coords())
        grid = named[["lat", "lon"]].drop_vars("time", errors="ignore")
        bounds = {f"{axis}_bounds": _cell_bounds(named, axis) for axis in ("lat", "lon")}
        known = {name: variable for name, variable in bounds.items() if variable is not None}
        return grid.assign(known if len(known) == 2 else {}).load()


def _cell_bounds(ds: xr.Dataset, axis: str) -> xr.Variable | None:
    """The bounds of the cells along an axis, without those of other shapes."""
    centres, long_name = ds[axis], {"lat": "latitude", "lon": "longitude"}[axis]
    named = centres.attrs.get("bounds") or centres.encoding.get("bounds")
    for name in (named, f"vertices_{long_name}", f"{axis}_vertices", f"{axis}_bnds", f"{axis}_bounds"):
        if name in ds.variables and set(centres.dims) < set(ds[name].dims):
            (corner,) = set(ds[name].dims) - set(centres.dims) or (None,)
            if ds[name].ndim == centres.ndim + 1 and ds[name].sizes[corner] == 2 * centres.ndim:
                ordered = ds[name].transpose(*centres.dims, corner).variable
                return xr.Variable((*centres.dims, f"{axis}_corner"), ordered.values)
    return None


def single(ds: xr.Dataset, name: str, asset: Asset, table: Mapping[str, Variable] = VARIABLES) -> xr.Dataset:
    """Return one variable of an opened file, as (time, y, x) in canonical units.

    Raises
    ------
    DataError
        If its units are unknown.
    """
    data = to_canonical_units(as_maps(ds[name]), asset.path, table).copy(deep=False)
    # The grid mapping's variable (often a character) is not carried along; lat and lon say where cells are. Fill values
    # are attributes with `mask_and_scale: false`.
    dropped = ("grid_mapping", "_FillValue", "missing_value", STATED_UNITS)
    told = {STATED_UNITS: f"{name} in {data.attrs[STATED_UNITS]}"} if STATED_UNITS in data.attrs else {}
    data.attrs = {key: value for key, value in data.attrs.items() if key not in dropped}
    # A product has its own packing, chunks and fill values.
    return ds[[]].assign({name: data}).assign_attrs(told).drop_encoding()


def _open_file(asset: Asset, match: Match, open_kwargs: dict[str, Any], most_bytes: float) -> xr.Dataset:
    if not is_url(asset.path) and not Path(asset.path).exists():
        raise DataError(
            f"{asset.path} is in the catalogue (id {match.id}) but does not exist; correct the catalogue or the path."
        )
    if Path(asset.path).is_file() and not Path(asset.path).stat().st_size:
        raise DataError(
            f"{asset.path} (id {match.id}) is empty (0 bytes). Download or make the file again, or exclude it."
        )
    try:
        options = open_kwargs | (asset.preset.options(asset.path) if asset.preset else {})
        if is_zarr(asset.path, asset.columns.get("format", "")):
            ds = open_zarr(asset.path, options)
        elif is_stations(asset.path):
            ds = open_stations(asset.path).chunk()
        else:
            ds = open_netcdf(asset.path, match.variables, options, most_bytes)
        return asset.preset.opened(ds, asset.path) if asset.preset else ds
    except (DataError, StoreError) as error:
        raise DataError(f"{asset.path} (id {match.id}): {error}") from None
    # A backend may raise nearly anything on a damaged file (OSError, RuntimeError, ValueError, KeyError, zlib.error …).
    except Exception as error:
        why = f"{asset.path} (id {match.id}) cannot be read: {first_line(error)}."
        if "lock file" in str(error):
            said = os.environ.get("HDF5_USE_FILE_LOCKING")
            raise StoreError(
                f"{why} Its file system has no locks, and HDF5_USE_FILE_LOCKING={said} asks for them: set it to FALSE, "
                "also in `environment` of the scheduler's section"
            ) from error
        if isinstance(error, OSError) and (passes(error) or error.errno in (errno.EACCES, errno.EPERM)):
            raise StoreError(f"{why} The file system refuses it: ask the file's owner, or the site") from error
        raise DataError(f"{why} Download or make the file again, or exclude it.") from error


def within(ds: xr.Dataset, periods: tuple[Period, ...]) -> xr.Dataset:
    """Return only the years from the first period to the last."""
    if not periods:
        return ds
    return whole_years(ds, min(int(start[:4]) for start, _ in periods), max(int(end[:4]) for _, end in periods))


def on_one_grid(pieces: list[tuple[Asset, str, xr.Dataset]]) -> list[xr.Dataset]:
    """Give all pieces the coordinates of the first; a model's files often differ by round-off.

    Raises
    ------
    DataError
        If grids differ by more than 1e-4 degrees.
    """
    first_asset, _, first = pieces[0]
    placed = [first]
    for asset, _, piece in pieces[1:]:
        found = on_grid_of(first, piece)
        if found is None:
            raise DataError(
                f"{asset.path} and {first_asset.path} are on different grids; expected the same lat and lon. "
                "Exclude one."
            )
        placed.append(found)
    coordinates = {name: value for name, value in first.coords.items() if "time" not in value.dims}
    return [piece.assign_coords(coordinates) for piece in placed]


def on_grid_of(first: xr.Dataset, other: xr.Dataset) -> xr.Dataset | None:
    """Return a dataset with the dimensions of another, if latitudes and longitudes are equal up to round-off.

    Files of a simulation may call or order the dimensions of 2-D coordinates differently. None means another grid.
    """
    dims, wanted = (tuple(dict.fromkeys((*ds["lat"].dims, *ds["lon"].dims))) for ds in (other, first))
    if len(dims) != len(wanted) or other["lat"].ndim != first["lat"].ndim:
        return None
    if set(dims) == set(wanted):
        renamed = other if dims == wanted else other.transpose(..., *wanted)
    else:
        names = {dim: new for dim, new in zip(dims, wanted, strict=True) if dim != new}
        renamed = other.drop_vars({*names, *names.values()} & other.coords.keys() - {"lat", "lon"})
        if any(new in renamed or new in renamed.dims for new in names.values()):
            return None
        renamed = renamed.rename_dims(names)
    pairs = ((first[name], renamed[name]) for name in ("lat", "lon"))
    is_same = all(
        its.dims == own.dims
        and its.shape == own.shape
        and np.allclose(its, own, rtol=0, atol=_GRID_TOLERANCE_DEGREES, equal_nan=True)
        for its, own in pairs
    )
    return renamed if is_same else None


def _combine(match: Match, pieces: list[xr.Dataset], combine_kwargs: dict[str, Any]) -> xr.Dataset:
    defaults = {
        "data_vars": "minimal",
        "coords": "minimal",
        "compat": "override",
        # Only days that all variables have: the check of the period names days that are missing at an end.
        "join": "inner",
        "combine_attrs": "drop_conflicts",
    }
    try:
        return xr.combine_by_coords(pieces, **{**defaults, **combine_kwargs})  # type: ignore[return-value]
    except (ValueError, TypeError, xr.MergeError) as error:
        files = ", ".join(asset.path for asset in match.assets)
        raise DataError(f"{match.id}: the files do not combine into one dataset ({error}): {files}.") from error
