"""NetCDF-4 files of products and of statistics, as CF 1.11 wants them, each whole under its name or not there.

Metadata: bounds, climatologies, cell methods, kinds of temperature, plain coordinates, the grid mapping.
Data are written chunk by chunk in flat memory.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby, product
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pandas as pd
import xarray as xr

from espo_luigi.errors import DataError, StoreError
from espo_luigi.fields import filled
from espo_luigi.files import aside_of, open_new, sync_path
from espo_luigi.replacing import Judge, by_digest
from espo_luigi.science.attributes import FREQUENCY_BY_LETTER
from espo_luigi.science.chunks import join
from espo_luigi.science.finalize.quantization import CONTAINER
from espo_luigi.science.geometry.cells import horizontal_dims
from espo_luigi.science.outcomes.climatology import HORIZON, LEVEL, MEMBER, SEASON_YEAR
from espo_luigi.science.outcomes.natures import INITIALS, NAMES
from espo_luigi.science.outcomes.return_levels import RETURN_PERIOD
from espo_luigi.science.stack import ORIGINAL_SHAPE
from espo_luigi.science.stations import OF_A_STATION, STATION, are_series, as_series
from espo_luigi.science.units import is_difference
from espo_luigi.science.variables import VARIABLES, Variable, names_of
from espo_luigi.store.disk import delete_quietly
from espo_luigi.store.publish import written_aside
from espo_luigi.store.write import plain_attributes

logger = logging.getLogger(__name__)

# The form that CF keeps for climatologies (section 7.4), which many products have for daily statistics.
_WITHIN_DAYS = re.compile(r"time: (\w+) within days")
_KELVINS = ("K", "degC", "C", "celsius", "kelvin", "Celsius")
# Attributes of the encoding, or of coordinates that the file does not have.
_NOT_COPIED = ("_FillValue", "missing_value", "coordinates", "bounds", "grid_mapping", "ancillary_variables")
# Of the product as a whole: of a file's one variable and few years they would be wrong. The prefix is `cat` or, with
# `change_attr_prefix`, any other.
_OF_THE_PRODUCT = re.compile(r"[^:]+:(variable|date_start|date_end|_data_format_)")
BOUNDS, CLIMATOLOGY = "bnds", "climatology_bnds"
# Of longitudes and latitudes without a word of their datum: as GDAL and PROJ take them.
_WGS84 = {"grid_mapping_name": "latitude_longitude", "semi_major_axis": 6378137.0, "inverse_flattening": 298.257223563}
# CDO takes no other axis along regions than time and a vertical axis.
_VERTICAL = {"axis": "Z", "positive": "up"}
_BOUNDS_OF = {"bounds": "time_bnds", "climatology": CLIMATOLOGY}
_PARTS, _REGION, _NAMES, _COVERAGE = ("season", "month"), "region", "region_name", "coverage"
# The version that files keep to, and the version whose attributes say how bits were rounded.
CONVENTIONS, OF_QUANTIZATION = "CF-1.11", "CF-1.12"
FILL_VALUE = np.float32(1e20)
# Below this size, the time to ask for a chunk outweighs the time to read it (CMIP7's guidance for modellers).
SMALLEST_CHUNK_BYTES = 4 * 2**20
# Without a list of files of ours, no file is replaced.
_NEW = by_digest(())
# What HDF5 keeps of a variable in memory: each chunk is written once, whole, and needs no cache.
_NO_CACHE = 0
# Statistics of members in words, by the ends of their names; of a percentile, its number.
_OF_MEMBERS = {
    "p": "{}th percentile of members",
    "mean": "mean of members",
    "stdev": "standard deviation of members",
    "min": "lowest member",
    "max": "highest member",
}


@dataclass(frozen=True)
class Stretch:
    """The days of one file: their places along `time`, and the first and the last day as YYYYMMDD."""

    days: slice
    dates: str


def stretches(time: xr.DataArray, years: int, first_year: int | None = None) -> list[Stretch]:
    """Return the days of each file, of whole calendar years without a gap.

    Parameters
    ----------
    time : xr.DataArray
        Daily dates in order, of any calendar.
    years : int
        Years by file.
    first_year : int, optional
        A year with which a file begins, such as 1951 for files of 1951-1955, 1956-1960 …; by default the first year of
        the series.
    """
    of_days = time.dt.year.values
    begin = int(of_days[0]) if first_year is None else first_year
    stamps = time.dt.strftime("%Y%m%d").values
    made, first = [], 0
    # Files end where years are missing: the dates in their names would hide it.
    gaps = np.cumsum(np.diff(of_days, prepend=of_days[:1]) > 1)
    for _, group in groupby(zip((of_days - begin) // years, gaps, strict=True)):
        end = first + len(list(group))
        made.append(Stretch(slice(first, end), f"{stamps[first]}-{stamps[end - 1]}"))
        first = end
    return made


def to_cf_axes(ds: xr.Dataset) -> xr.Dataset:
    """Return statistics along axes that CDO, GDAL and R know; lazy. A daily product, or indicators, stay as they are.

    Horizons, with their seasons or months, become `time` with the bounds of a climatology (CF 7.4), whose attributes
    keep their names. Members are numbered, in the order of the attribute `ensemble_members`. Names of regions are in
    `region_name`. Other texts become parts of names: of a level's seasons, `tx_mean_p50` becomes `tx_mean_p50_DJF`, ….
    """
    if HORIZON in ds.dims:
        ds = _as_climatology(ds, [HORIZON, *(dim for dim in _PARTS if dim in ds.dims)])
    if MEMBER in ds.dims:
        attrs = {"standard_name": MEMBER, "units": "1", "long_name": "place in the attribute ensemble_members"}
        numbers = np.arange(1, ds.sizes[MEMBER] + 1, dtype=np.int32)
        ds = ds.assign_coords({MEMBER: (MEMBER, numbers, attrs | (_VERTICAL if "time" in ds.dims else {}))})
    if RETURN_PERIOD in ds.dims and MEMBER not in ds.dims:
        ds = ds.assign_coords({RETURN_PERIOD: ds[RETURN_PERIOD].assign_attrs(_VERTICAL)})
    if _REGION in ds.dims:
        named = (_REGION, ds[_REGION].values, {"long_name": "name of the region"})
        ds = ds.drop_vars(_REGION).assign_coords({_NAMES: named}).reset_coords(_COVERAGE)
        if LEVEL in ds.dims:
            ds = ds.assign_coords({LEVEL: ds[LEVEL].assign_attrs(_VERTICAL)})
    texts = [str(name) for name, index in ds.indexes.items() if index.dtype.kind in "OU" and name != "time"]
    for dim in sorted(texts, key=_PARTS.__contains__):
        made = dict(ds.drop_dims(dim).data_vars)
        for name, data in ds.data_vars.items() if dim in ds.dims else ():
            for label in map(str, ds[dim].values) if dim in data.dims else ():
                part = data.sel({dim: label}, drop=True).assign_attrs({dim: label})
                made[re.sub(r"\W", "_", f"{name}_{label}")] = part
        ds = xr.Dataset(made, ds.coords, ds.attrs).drop_vars(dim)
    return ds


def _as_climatology(ds: xr.Dataset, dims: list[str]) -> xr.Dataset:
    """Horizons, with seasons or months, as `time` in the middle year; unchanged if these times are not in order."""
    names, several = [ds.attrs.get("cat:xrfreq", "")[3:] or "JAN"], 12
    if dims[1:]:
        names, several = ds[dims[1]].values.tolist(), 3 if dims[1] == "season" else 1
    starts = [(2 * INITIALS).index(name) if several == 3 else NAMES.index(name) for name in names]
    of_january = several == 3 and ds.attrs.get(SEASON_YEAR) != "december"
    starts = [start - 12 * (of_january and start > 9) for start in starts]
    years = np.array([str(horizon).split("-") for horizon in ds[HORIZON].values], int)

    def months(year: np.ndarray) -> np.ndarray:
        return (12 * (year[:, None] - 1970) + starts).ravel().astype("datetime64[M]")

    middle = (months(years.sum(1) // 2) + several // 2).astype("datetime64[D]") + 15 * (several % 2)
    if (np.diff(middle).astype(int) <= 0).any():
        return ds
    bounds = np.stack([months(years[:, 0]), months(years[:, 1]) + several], axis=1).astype("datetime64[ns]")
    attrs = {dim: " ".join(map(str, ds[dim].values)) for dim in dims}
    made = ds.stack(time=dims, create_index=False).drop_vars(dims)
    return made.assign_coords(
        {"time": ("time", middle.astype("datetime64[ns]"), attrs), CLIMATOLOGY: (("time", BOUNDS), bounds)}
    )


def from_cf_axes(ds: xr.Dataset) -> xr.Dataset:
    """Return the statistics of a file along the dimensions that they had before `to_cf_axes`."""
    for dim in (*_PARTS, HORIZON):
        made = defaultdict[str, list[xr.DataArray]](list)
        for name, data in ds.filter_by_attrs(**{dim: lambda label: label is not None}).data_vars.items():
            made[str(name)[: -1 - len(data.attrs[dim])]].append(data.expand_dims({dim: [data.attrs[dim]]}))
            ds = ds.drop_vars(str(name))
        ds = ds.assign({name: xr.concat(of, dim) for name, of in made.items()})
    if _NAMES in ds:
        ds = ds.assign_coords({_REGION: ds[_NAMES].values}).drop_vars(_NAMES).set_coords(_COVERAGE)
    if CLIMATOLOGY in ds:
        of = {dim: ds["time"].attrs[dim].split() for dim in (HORIZON, *_PARTS) if dim in ds["time"].attrs}
        index = xr.Coordinates.from_pandas_multiindex(pd.MultiIndex.from_product(of.values(), names=of), "time")
        ds = ds.drop_vars([CLIMATOLOGY, "time"]).assign_coords(index).unstack("time").sel(of)
        ds = ds.transpose(*of, ...)
    if MEMBER in ds.dims:
        ds = ds.assign_coords({MEMBER: ds.attrs["ensemble_members"].split("; ")})
    return ds


def statistics_file(
    ds: xr.Dataset, title: str, table: Mapping[str, Variable] = VARIABLES, told: Mapping[str, str] | None = None
) -> xr.Dataset:
    """Return indicators, or statistics of them, as `described` has each, in one dataset with a title and a history."""
    named = {}
    for name in map(str, ds.data_vars):
        base, _, kind = name.rpartition("_")
        words = _OF_MEMBERS.get(kind[:1] if kind[1:].isdigit() else kind) if f"{base}_members" in ds else None
        if words and "long_name" in ds[name].attrs:
            long_name = f"{ds[name].attrs['long_name']}, {words.format(kind[1:])}"
            named[name] = ds[name].assign_attrs(long_name=long_name)
    ds = to_cf_axes(ds.assign(named))
    history = f"{datetime.now(UTC):%Y-%m-%d}: exported"
    given = {"global": {"title": ds.attrs.get("title", title), "history": ds.attrs.get("history", history)}}
    if frequency := FREQUENCY_BY_LETTER.get(str(ds.attrs.get("cat:xrfreq", ""))[:1]):
        given["global"]["frequency"] = frequency
    given["global"] |= told or {}
    parts = [described(ds, str(name), str(name), given, table) for name in ds.data_vars]
    whole: xr.Dataset = join(parts, compat="override")
    return whole


def described(
    ds: xr.Dataset,
    variable: str,
    name: str,
    attributes: Mapping[str, Mapping[str, Any]],
    table: Mapping[str, Variable] = VARIABLES,
) -> xr.Dataset:
    """Return one variable of a product with the metadata of CF 1.11, under its name in files; lazy.

    The dataset has the variable, its horizontal coordinates in double precision, its other axes, the grid mapping, and
    the container of CF 1.12's quantization if bits were rounded. Other coordinates, such as masks, are left out.

    Parameters
    ----------
    ds : xr.Dataset
        A product: (time, y, x), or statistics by `to_cf_axes`: (time or warming_level, …, y, x or region).
    variable, name : str
        The variable, and its name in the files.
    attributes : mapping
        Attributes to set: of the dataset (`global`), of the variable (`variable`), and of any other by its name. They
        win. In those of the variable, ``{long_name}`` and the like stand for its own attributes.
    table : mapping
        Gives the names and the cell methods that the variable's own attributes lack; without a long name there, too,
        it is the variable's name.

    Raises
    ------
    DataError
        If the product has no such variable, or is not on a map.
    """
    if variable not in ds.data_vars:
        raise DataError(f"the product has no variable {variable}; it has {', '.join(map(str, ds.data_vars))}.")
    ds = as_series(ds)
    of_stations = are_series(ds)
    places = (STATION,) if of_stations else (_REGION,) if _NAMES in ds.coords else horizontal_dims(ds)
    first = [dim for dim in ("time", LEVEL) if dim in ds[variable].dims]
    # CF 2.4: what is neither time nor place comes first, and so do stations.
    whole = ds[variable].transpose(*((*places, *first, ...) if of_stations else (*first, ..., *places)))
    # Categories in memory have a number for no category.
    missing = whole.attrs.get("_FillValue")
    data = (whole if missing is None else whole.where(whole != missing)).variable
    mapping = _grid_mapping(ds, ds[variable], places)
    own = {"long_name": variable} | names_of(variable, table) | ds[variable].attrs
    attrs = _of_data(own, mapping, table.get(variable, Variable()).difference or is_difference(ds[variable]))
    given = {key: filled(value, own) for key, value in attributes.get("variable", {}).items()}
    made_of = data.copy(deep=False)
    made_of.attrs, made_of.encoding = plain_attributes(dict[Any, Any](attrs | given)), {}
    if "time" not in data.dims or CLIMATOLOGY in ds or ds.attrs.get("cat:type") == "ensemble":
        _as_statistics(made_of.attrs, str(own.get("cell_methods", "")) if CLIMATOLOGY in ds else "")
    variables: dict[Hashable, xr.Variable] = {name: made_of}
    if attrs.get("quantization") == CONTAINER and CONTAINER in ds:
        variables[CONTAINER] = ds[CONTAINER].variable
    if mapping:
        # Its value has no meaning (CF 5.6), and not every form of NetCDF has its type.
        mapped = plain_attributes(ds[mapping].attrs) if mapping in ds.variables else _WGS84
        variables[mapping] = xr.Variable((), np.int32(0), mapped)
    maps = [each for each in ("lat", "lon") if each in ds.coords and each not in places]
    coords = {each: _coordinate(ds[each].variable) for each in (*places, *maps) if each in ds.coords}
    coords.pop(STATION, None)  # its ids say which station it is
    named = [each for each in OF_A_STATION if of_stations and each in ds.coords]
    kept = [*(dim for dim in data.dims if dim not in places), CLIMATOLOGY, _NAMES, *named]
    made = xr.Dataset(variables, {each: ds[each].variable for each in kept if each in ds.coords} | coords)
    if maps := [*maps, *named, *(each for each in (_NAMES,) if each in ds.coords)]:
        made[name].attrs["coordinates"] = " ".join(maps)
    for each, more in attributes.items():
        if each in made.variables:
            made[each].attrs.update(more)
    told = {**_global(ds.attrs), "Conventions": CONVENTIONS, **attributes.get("global", {})}
    if CONTAINER in variables and told["Conventions"] == CONVENTIONS:
        told["Conventions"] = f"{CONVENTIONS} {OF_QUANTIZATION}"
    return made.assign_attrs(told)


def _coordinate(variable: xr.Variable) -> xr.Variable:
    kept = {key: value for key, value in variable.attrs.items() if key not in (*_NOT_COPIED, ORIGINAL_SHAPE)}
    return xr.Variable(variable.dims, np.asarray(variable.values, np.float64), plain_attributes(kept))


def _grid_mapping(ds: xr.Dataset, data: xr.DataArray, places: Sequence[str]) -> str:
    """The name of the variable with the grid mapping (CF 5.6); of rows and columns that nobody names, an empty text."""
    named = data.attrs.get("grid_mapping", data.encoding.get("grid_mapping", ""))
    mappings = (str(name) for name, variable in ds.variables.items() if "grid_mapping_name" in variable.attrs)
    of_degrees = "crs" if places in (("lat", "lon"), (_REGION,), (STATION,)) else ""
    return named if named in ds.variables else next(mappings, of_degrees)


def _of_data(attrs: Mapping[Any, Any], mapping: str, differs: bool) -> dict[str, Any]:
    """The attributes of the variable: those that it has, in the forms of CF 1.11."""
    kept = {str(key): value for key, value in attrs.items() if key not in _NOT_COPIED}
    if mapping:
        kept["grid_mapping"] = mapping
    if methods := kept.get("cell_methods"):
        kept["cell_methods"] = cell_methods(str(methods))
    if str(kept.get("units")) in _KELVINS and "units_metadata" not in kept:
        differs |= "delta_kind" in kept
        differs |= "range" in str(methods) or str(kept.get("standard_name", "")).endswith("_range")
        kept["units_metadata"] = f"temperature: {'difference' if differs else 'on_scale'}"
    return kept


def _as_statistics(attrs: dict[Any, Any], methods: str) -> None:
    """Put attributes of statistics of years, or of simulations, into the forms of CF, which has no names for shares."""
    attrs.pop("cell_methods", None)
    if within := re.search(r"time: (\w+)(?: (?:with)?in days| over days)? time: (\w+) over years$", methods):
        attrs["cell_methods"] = f"time: {within[1]} within years time: {within[2]} over years"
    # UDUNITS has no decade.
    attrs["units"] = re.sub(r"^(.*?) ?decade-1$", r"0.1 \1 year-1", attrs.get("units") or "1").replace("  ", " ")
    for name in ("standard_name", "units_metadata") if attrs["units"] in ("1", "%") else ():
        attrs.pop(name, None)
    if (flags := attrs.get("flag_values")) is not None:
        attrs["flag_values"] = np.array(flags.split(",") if isinstance(flags, str) else flags, np.float32)


def cell_methods(text: str) -> str:
    """Return cell methods of a daily value as CF 1.11 and CMIP write them.

    ``time: maximum within days`` becomes ``area: mean time: maximum``. ``time: mean within days`` becomes
    ``area: time: mean``. Statistics over days, of yearly values, lose these words, too. Other texts stay.
    """
    method = _WITHIN_DAYS.fullmatch(text.strip())
    if method is None:
        return re.sub(r" (within|over) days", "", text.strip()) if " over days" in text else text
    return "area: time: mean" if method[1] == "mean" else f"area: mean time: {method[1]}"


def _global(attrs: Mapping[Any, Any]) -> dict[str, Any]:
    """The product's attributes; a colon, which CF has in no name (section 2.3), becomes an underscore."""
    kept = {
        key: value
        for key, value in attrs.items()
        if not _OF_THE_PRODUCT.fullmatch(str(key)) and not is_project_of_cordex(key, value)
    }
    return {str(key).replace(":", "_"): value for key, value in plain_attributes(kept).items()}


def is_project_of_cordex(name: Any, value: Any) -> bool:
    """Return whether an attribute says that data are CORDEX's, whose guidance forbids that to uncoordinated results."""
    return name == "project_id" and str(value).strip().upper() == "CORDEX"


@dataclass(frozen=True)
class Layout:
    """How a file is cut and encoded.

    Parameters
    ----------
    chunks : mapping of str to int
        Cells of a chunk along `Y` and `X`; -1 is the whole. A chunk has all days of its file. Chunks below 4 MB are
        made higher, then wider, by whole multiples.
    time_units : str
        Days since a date.
    at_noon : bool
        Whether a day's stamp is its noon or its beginning.
    classic : bool
        Whether files keep to the classic data model.
    """

    chunks: Mapping[str, int]
    time_units: str = "days since 1950-01-01"
    at_noon: bool = False
    classic: bool = False

    def chunk(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the chunk of float32 data of a shape (…, y, x)."""
        others, cells = tuple(shape[:-2]), shape[-2:]
        asked = [self.chunks.get(axis, -1) for axis in ("Y", "X")]
        sizes = [size if wanted == -1 else min(wanted, size) for wanted, size in zip(asked, cells, strict=True)]
        for axis in (0, 1):
            smallest = 4 * math.prod(others) * sizes[0] * sizes[1]
            if smallest < SMALLEST_CHUNK_BYTES:
                times = -(-SMALLEST_CHUNK_BYTES // smallest)
                sizes[axis] = min(sizes[axis] * times, cells[axis])
        return *others, sizes[0], sizes[1]


def write_netcdf(
    ds: xr.Dataset,
    path: Path,
    layout: Layout,
    judge: Judge = _NEW,
    note: Callable[[Path, str], None] | None = None,
) -> str:
    """Write a dataset of `described` as a NetCDF-4 file, and publish it atomically.

    Data are float32, compressed by deflate 1 with shuffle; coordinates are double and have no fill value. Memory holds
    a chunk of the file and the chunks of the source that it is made of. `note` gets the SHA-256 of the file before the
    file gets its name; it is returned.

    Raises
    ------
    StoreError
        If the disk refuses, or a file of that name is not ours by the `judge`. Nothing is left behind.
    """
    with written_aside(path, judge=judge) as partial:
        with _errors_of_the_disk(partial), _new_file(partial, layout) as file:
            _define_coordinates(file, ds, layout)
            for name, variable in ds.data_vars.items():
                _write_variable(file, str(name), variable.variable, layout)
        sync_path(partial)
        with partial.open("rb", buffering=0) as written:
            digest = hashlib.file_digest(written, "sha256").hexdigest()
        if note is not None:
            note(path, digest)
    logger.info("wrote %s", path)
    return digest


@contextmanager
def _new_file(partial: Path, layout: Layout) -> Iterator[netCDF4.Dataset]:
    # The name must be free: no link is followed.
    os.close(open_new(partial))
    file = netCDF4.Dataset(partial, "w", format="NETCDF4_CLASSIC" if layout.classic else "NETCDF4")
    try:
        file.set_fill_off()
        yield file
    except BaseException:
        with suppress(Exception):
            file.close()
        raise
    file.close()


@contextmanager
def _errors_of_the_disk(partial: Path) -> Iterator[None]:
    """Raise the disk's error for NetCDF's "HDF error" or "Permission denied": a write beside it meets it, too."""
    try:
        yield
    except (RuntimeError, PermissionError) as error:
        if not isinstance(error, PermissionError) and "NetCDF" not in str(error):
            raise
        probe = aside_of(partial)
        try:
            with open(open_new(probe), "wb") as file:
                file.write(bytes(SMALLEST_CHUNK_BYTES))
                file.flush()
                os.fsync(file.fileno())
        finally:
            delete_quietly(probe)
        raise StoreError(
            f"cannot write {partial}: the NetCDF library says {str(error)!r}, and the disk took a write beside it just "
            "after; run again, and look for what limits the size of files there if it stays"
        ) from error


def _define_coordinates(file: netCDF4.Dataset, ds: xr.Dataset, layout: Layout) -> None:
    for name, value in ds.attrs.items():
        file.setncattr(str(name), _plain(value))
    for name, size in ds.sizes.items():
        file.createDimension(str(name), size)
    if "time" in ds.dims:
        days, calendar = _days(ds["time"], layout.time_units)
        freq = ds.attrs.get("cat_xrfreq", "D")
        bounds, at = "bounds", days + 0.5 if layout.at_noon and freq == "D" else days
        ends = np.stack([days, days + 1], axis=1)
        if CLIMATOLOGY in ds:
            bounds, at = "climatology", days
            ends, _ = _days(ds[CLIMATOLOGY], layout.time_units)
        elif freq != "D":
            following = ds["time"].to_index().shift(1, freq)
            ends[:, 1], _ = _days(xr.DataArray(following, dims="time"), layout.time_units)
        if BOUNDS not in ds.dims:
            file.createDimension(BOUNDS, 2)
        attrs = {"standard_name": "time", "long_name": "time", "axis": "T"}
        attrs |= {"units_metadata": "leap_seconds: none"} if calendar == "standard" else {}
        attrs |= {name: value for name, value in ds["time"].attrs.items() if name not in _BOUNDS_OF}
        # The bounds have no units of their own: CF 7.1 gives them those of time.
        attrs |= {"units": layout.time_units, "calendar": calendar, bounds: _BOUNDS_OF[bounds]}
        _write_small(file, "time", xr.Variable(("time",), at, attrs))
        _write_small(file, _BOUNDS_OF[bounds], xr.Variable(("time", BOUNDS), ends))
    for name, coordinate in ds.coords.items():
        if name not in ("time", CLIMATOLOGY):
            _write_small(file, str(name), coordinate.variable)


def _days(time: xr.DataArray, units: str) -> tuple[np.ndarray, str]:
    """The beginnings of the days as numbers of double precision, and their calendar."""
    numbers, _, calendar = xr.coding.times.encode_cf_datetime(time.values, units, time.dt.calendar, np.dtype("f8"))
    return np.floor(np.asarray(numbers, np.float64)), "standard" if "gregorian" in calendar else calendar


def _write_small(file: netCDF4.Dataset, name: str, variable: xr.Variable) -> None:
    """Write a variable in a single chunk, without a fill value; texts as letters, which both data models have."""
    values, dims = np.asarray(variable.values), tuple(map(str, variable.dims))
    if is_text := values.dtype.kind in "OTU":
        values = np.char.encode(values.astype(object).astype(str), "utf-8")[..., None].view("S1")
        dims = (*dims, f"{name}_letters")
        file.createDimension(dims[-1], values.shape[-1])
    options: dict[str, Any] = {"chunksizes": values.shape} if values.ndim else {}
    made = file.createVariable(name, values.dtype, dims, fill_value=False, **options)
    if is_text:
        made.set_auto_chartostring(False)
        made.setncattr("_Encoding", "utf-8")
    _describe(made, variable.attrs)
    made[...] = values


def _write_variable(file: netCDF4.Dataset, name: str, variable: xr.Variable, layout: Layout) -> None:
    if variable.ndim < 2:
        _write_small(file, name, variable)
        return
    chunk = layout.chunk(variable.shape)
    if variable.dims[0] == STATION:
        series_bytes = 4 * math.prod(variable.shape[1:])
        chunk = (min(max(SMALLEST_CHUNK_BYTES // series_bytes, 1), variable.shape[0]), *variable.shape[1:])
    made = file.createVariable(
        name,
        np.float32,
        tuple(map(str, variable.dims)),
        fill_value=FILL_VALUE,
        chunksizes=chunk,
        chunk_cache=_NO_CACHE,
        compression="zlib",
        complevel=1,
        shuffle=True,
    )
    made.set_auto_maskandscale(False)
    # Of the data's own type, as CF 2.5.1 wants it.
    missing: dict[Hashable, Any] = {"missing_value": FILL_VALUE} if "missing_value" in variable.attrs else {}
    _describe(made, {**variable.attrs, **missing})
    # Rows of chunks, so that each is written once, and each chunk of a source with chunks of that size is read once.
    starts = (range(0, size, step) for size, step in zip(variable.shape, chunk, strict=True))
    for corner in product(*starts):
        where = tuple(slice(first, first + step) for first, step in zip(corner, chunk, strict=True))
        values = np.array(variable[where].values, np.float32)
        np.copyto(values, FILL_VALUE, where=np.isnan(values))
        made[where] = values


def _describe(made: netCDF4.Variable, attrs: Mapping[Hashable, Any]) -> None:
    made.setncatts({str(name): _plain(value) for name, value in attrs.items()})


def _plain(value: Any) -> Any:
    """Whole numbers as int32, or large ones as float64, which the classic data model has, too."""
    return (np.int32 if abs(value) < 2**31 else np.float64)(value) if isinstance(value, int) else value
