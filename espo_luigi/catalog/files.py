"""Opening NetCDF files and Zarr stores lazily, in chunks that suit the stored chunks."""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import cftime
import h5py
import netCDF4
import numpy as np
import pandas as pd
import xarray as xr
from xarray.backends.locks import HDF5_LOCK
from xarray.backends.plugins import guess_engine

from espo_luigi.catalog.cmip7 import NAMES_IN_FILES
from espo_luigi.catalog.read import expected_url, is_url, without_scheme
from espo_luigi.config.searching import ENGINES, refused_option
from espo_luigi.errors import DataError
from espo_luigi.files import kind_of_file, read_bytes
from espo_luigi.science.calendar import EPOCH, SECONDS_PER_DAY, SYNONYMS, TO_MIDPOINT
from espo_luigi.science.netcdf import check_extent, check_hdf5
from espo_luigi.science.stations import from_ragged

DAYS_PER_CHUNK = 365
# On a small grid, several years make a chunk: each chunk costs Dask a few milliseconds.
BYTES_PER_CHUNK = 16 * 1024**2
REFUSED_CALENDARS = ("julian", "utc", "tai")
# Units of time up to the time of day, then a time zone: "days since 1850-01-01 00:00:00 +0100".
_WITH_ZONE = re.compile(
    r"(.* since \s*\d+-\d+-\d+[T ]\s*\d+(?::\d+){0,2}(?:\.\d*)?)\s*(?:[+-]\s*\d+(?::\d+)?| \d+(?::\d+)?|[A-Za-z/_]+)\s*"
)
# Numbers that are dates, 20151231.5: CDO's absolute times, "day as %Y%m%d.%f", and what others write instead.
_DATES = re.compile(r"(?:day as )?(?:%y%m%d(?:\.%f)?|yyyymmdd(?:\.f+)?)", re.IGNORECASE)
_SINCE = re.compile(r"\s*(\w+)\s+since\s+(.*)", re.IGNORECASE | re.DOTALL)
# CF's 360_day, 365_day and 366_day, as others write them.
_DAYS_OF_YEAR = re.compile(r"(36[056])[_ ]?days?")
_FIRST_DATE = 1000_01_01
# SciPy, which reads compressed files, has all of their bytes in memory.
_MOST_UNZIPPED = 2**31


def is_zarr(path: str, stated_format: str = "") -> bool:
    """Whether a path is a Zarr store (directory or `.zarr.zip`), by its catalogue's format or its name."""
    return stated_format == "zarr" or path.rstrip("/").endswith((".zarr", ".zarr.zip"))


def open_zarr(path: str, options: Mapping[str, Any]) -> xr.Dataset:
    """Open a Zarr store, directory or archive, in its own chunks; time deltas stay numbers; lazy.

    As `open_netcdf`, it has the coordinate `TO_MIDPOINT` where times have bounds, unless they are not to be decoded.

    Raises
    ------
    DataError
        If the path is none that may be opened, a codec of the store may run code, the store has too many arrays, or its
        calendar is one of `REFUSED_CALENDARS`.
    StoreError
        If a part of the store, here or when values are read, is a link out of the store.
    """
    from espo_luigi.store.read import arrays_of, unsafe_codec

    path = _checked(path, options, folder=not path.endswith(".zip"))
    store = zarr_store(path)
    arrays = arrays_of(store, {**options, **(options.get("backend_kwargs") or {})})
    check_extent(len(arrays), max((size for array in arrays.values() for size in array.shape), default=0))
    if unsafe := unsafe_codec(arrays):
        raise DataError(
            f"{unsafe} is not one that espo_luigi decodes with, as some codecs run code that is in the data; expected "
            "a compressor, a checksum or a filter of numbers. Do not open the store elsewhere; have its owner write it "
            "with another codec."
        )
    how = {name: options[name] for name in ("consolidated", "group", "storage_options") if name in options}
    with_times = options.get("decode_times") is not False
    with xr.open_dataset(store, engine="zarr", decode_cf=False, chunks=None, **how) as stored:
        axis = _time_axis(stored)
        raw = _with_time(stored, axis)
        known = _with_known_times(raw, axis) if with_times else raw
        options = options if known is raw else {**options, "decode_times": False}
        ds = xr.open_dataset(store, **{"chunks": {}, "decode_timedelta": False, **options, "engine": "zarr"})
        return _dated(_with_time(ds, axis), known) if with_times else _with_time(ds, axis)


def zarr_store(path: str) -> Any:
    """Return what xarray and Zarr open a path by: a store, or the URL."""
    from zarr.storage import ZipStore

    from espo_luigi.store.read import ClosedStore

    # Zarr opens no archive by its path. From 3.2 on, it parses a text as a URL, which ends at `#` or `?`.
    if path.endswith(".zip"):
        return ZipStore(path, mode="r")
    return path if is_url(path) else ClosedStore.at(Path(path).absolute())


def _time_axis(stored: xr.Dataset) -> str:
    """Return the name of the dimension of time: `time`, or the only one that CF's attributes call so.

    ERA5's files since September 2024 have `valid_time`.
    """
    axes = [stored[name] for name in stored.dims if name in stored.variables]
    by_name = [axis for axis in axes if axis.attrs.get("standard_name") == "time"]
    named = by_name or [axis for axis in axes if _SINCE.match(str(axis.attrs.get("units", "")))]
    return str(named[0].name) if len(named) == 1 and "time" not in stored.dims else "time"


def _with_time(ds: xr.Dataset, axis: str) -> xr.Dataset:
    """Rename the dimension of time to `time`; a scalar of that name, a forecast's beginning, goes."""
    return ds if axis == "time" else ds.drop_vars("time", errors="ignore").rename({axis: "time"})


def _dated(ds: xr.Dataset, raw: xr.Dataset) -> xr.Dataset:
    """Return an opened dataset with the dates of its time zone, and with `TO_MIDPOINT` if times have bounds.

    Times that are numbers yet are decoded from those of `raw`.
    A day is the observer's, so the zone is ignored. xarray converts to UTC, for some calendars and forms of zones.
    """
    units = str(raw["time"].attrs.get("units", "")) if "time" in raw.variables else ""
    if _SINCE.match(units) and "time" in ds.dims and ds["time"].dtype.kind in "fiu":
        ds = ds.assign_coords(time=xr.decode_cf(xr.Dataset(coords={"time": raw.variables["time"]}))["time"])
    with_zone = _WITH_ZONE.fullmatch(units)
    there = np.flatnonzero(ds["time"].notnull()) if with_zone and "time" in ds.indexes else np.array([])
    if with_zone and there.size:
        first = raw[["time"]].isel(time=there[:1])
        with_units = (
            first.assign_coords(time=first["time"].assign_attrs(units=text)) for text in (units, with_zone[1])
        )
        utc, local = (xr.decode_cf(stamp)["time"].values[0] for stamp in with_units)
        index = ds.indexes["time"] + pd.Timedelta(local - utc)
        ds = ds.assign_coords(time=xr.DataArray(index, dims="time", attrs=ds["time"].attrs))
    bounds = raw["time"].attrs.get("bounds") if "time" in raw else None
    if bounds not in raw.variables or not raw["time"].size:
        return ds
    plain = xr.decode_cf(raw[["time", bounds]].reset_coords(bounds), decode_times=False, decode_coords=False)
    days, problem = _to_midpoint(plain["time"], plain[bounds])
    return ds.assign_coords({TO_MIDPOINT: ("time", days, {"problem": problem})})


def open_netcdf(
    path: str, variables: Sequence[str], options: Mapping[str, Any], most_bytes: float = math.inf
) -> xr.Dataset:
    """Open a NetCDF file in chunks of a year or some megabytes; lazy.

    A chunk holds whole stored chunks of `variables`. Where a year takes more than `most_bytes`, chunks have fewer days.
    Where stored chunks of many days take more, chunks have fewer rows of the map. Where times have bounds, the
    coordinate `TO_MIDPOINT` has the days from each stamp to the middle of its interval, even if `drop_variables` names
    the bounds.

    Raises
    ------
    DataError
        If the path is none that may be opened, xarray would read the file with a package that is not for NetCDF, the
        file keeps values in other files or has too many variables, or the calendar is refused.
    """
    if options.get("engine") == "zarr":
        return open_zarr(path, options)
    path = _checked(path, options)
    options = {**options, "engine": options.get("engine") or guess_engine(path)}
    # A file's name may choose the engine: kerchunk's reads an unchecked Zarr store, cfgrib's reads pickles.
    if options["engine"] not in ENGINES or options["engine"] == "zarr":
        raise DataError(
            f"by its name, xarray would read it with {options['engine']}; expected a NetCDF file, or `zarr` as its "
            "format in the catalogue. Convert it to either."
        )
    _check_contents(path, options)
    with xr.open_dataset(path, decode_cf=False, engine=options["engine"]) as stored:
        axis = _time_axis(stored)
        raw = _with_time(stored, axis)
        with_times = options.get("decode_times") is not False
        known = _with_known_times(raw, axis) if with_times else raw
        options = options if known is raw else {**options, "decode_times": False}
        held = [raw[name] for name in variables if name in raw]
        held = held or [raw[NAMES_IN_FILES[name]] for name in variables if NAMES_IN_FILES.get(name) in raw]
        held = held or [data for data in raw.data_vars.values() if {"time"} < {*data.dims} and data.ndim > 2]
        largest = max(held, key=lambda data: data.nbytes, default=None)
        chunks = {"time": DAYS_PER_CHUNK} if largest is None else _chunks(largest, most_bytes)
        chunks = {axis if dim == "time" else dim: size for dim, size in chunks.items()}
        ds = _with_time(xr.open_dataset(path, **{"chunks": chunks, "decode_timedelta": False, **options}), axis)
        return from_ragged(_dated(ds, known)) if with_times else ds


def _checked(path: str, options: Mapping[str, Any], *, folder: bool = False) -> str:
    """Return a path, or a URL that is none of a local file, which may be opened with these options.

    Opening a pipe would wait for its writer, and a device may have no end.
    """
    if fault := refused_option(options):
        raise DataError(f"xr_open_kwargs: {fault}")
    if expected := expected_url(path):
        raise DataError(f"the catalogue has {path[:200]!r}; expected {expected}")
    path = without_scheme(path)
    if not is_url(path):
        mode = os.stat(path).st_mode
        if not (stat.S_ISDIR(mode) if folder else stat.S_ISREG(mode)):
            raise DataError(f"{path} is {kind_of_file(mode)}; expected a {'folder' if folder else 'file'}")
    return path


def _check_contents(path: str, options: Mapping[str, Any]) -> None:
    """Look at a NetCDF file's header before anything else does, which may read what the header names."""
    if is_url(path):
        if options["engine"] != "h5netcdf":
            return  # OPeNDAP: answers of a server, no file
        import fsspec

        inner = options.get("backend_kwargs") or {}
        given = options.get("storage_options") or inner.get("storage_options") or {}
        with fsspec.open(path, **given) as file, HDF5_LOCK, h5py.File(file, "r") as held:
            check_hdf5(held)
    elif h5py.is_hdf5(path):
        with HDF5_LOCK, h5py.File(path, "r") as held:
            check_hdf5(held)
    else:
        unzipped = read_bytes(path, _MOST_UNZIPPED, unzip=True) if path.endswith(".gz") else None
        with netCDF4.Dataset(path, memory=unzipped) as classic:
            check_extent(len(classic.variables), max((dim.size for dim in classic.dimensions.values()), default=0))


def _with_known_times(raw: xr.Dataset, axis: str) -> xr.Dataset:
    """Return a dataset, as it is stored, with times that xarray decodes; the same if it decodes them as they are.

    Raises
    ------
    DataError
        If a series has no times, or what its times mean is not certain; `axis` is their name in the file.
    """
    _check_times(raw)
    time = raw.variables.get("time")
    if time is None or time.dims != ("time",) or not time.size or time.dtype.kind not in "fiu":
        return raw
    units, calendar = str(time.attrs.get("units", "")), str(time.attrs.get("calendar", "standard"))
    if time.size == 1 and not _SINCE.match(units):
        return raw  # a fixed field may have any number as its time
    values, known_calendar = time.values, _DAYS_OF_YEAR.sub(r"\1_day", calendar.strip().lower()) or "standard"
    known_calendar = known_calendar.replace("no_leap", "noleap")
    try:
        numbers, known_units = _as_since(values, units, known_calendar)
        attrs = {**time.attrs, "units": known_units, "calendar": known_calendar}
        xr.decode_cf(xr.Dataset(coords={"time": ("time", numbers[[0, -1]], attrs)}))
    # xarray and cftime raise several types.
    except Exception:
        is_calendar = known_calendar not in SYNONYMS
        key, said, right = ("calendar", calendar, "noleap") if is_calendar else ("units", units, EPOCH)
        raise DataError(
            f"time has the {key} {said!r}, from which no dates follow for certain; expected the right {key}, as "
            f"`ncatted -a {key},{axis},o,c,'{right}' FILE` writes it"
        ) from None
    if numbers is values and (known_units, known_calendar) == (units, calendar.lower()):
        return raw
    known = raw.assign_coords(time=("time", numbers, attrs))
    bounds = raw.variables.get(attrs.get("bounds"))
    if bounds is None or str(bounds.attrs.get("units", units)) != units:
        return known
    try:
        held, _ = _as_since(bounds.values.ravel(), units, known_calendar)
    except ValueError:
        del attrs["bounds"]
        return raw.assign_coords(time=("time", numbers, attrs))
    return known.assign({attrs["bounds"]: (bounds.dims, held.reshape(bounds.shape))})


def _as_since(numbers: np.ndarray, units: str, calendar: str) -> tuple[np.ndarray, str]:
    """Return times as numbers since a date, and their units: those of dates as numbers, and of whole months.

    Raises ValueError if the units have no certain meaning.
    """
    since, whole = _SINCE.fullmatch(units), np.floor(numbers)
    if since and (since[1].lower() not in ("month", "months") or calendar == "360_day"):
        return numbers, units if " since " in units else f"{since[1].lower()} since {since[2]}"
    if since and np.unique(numbers - whole).size == 1:
        begin = cftime.num2date(0, f"days since {since[2]}", calendar)
        months = (begin.year * 12 + begin.month - 1 + int(number) for number in whole)
        dates = [(month // 12, month % 12 + 1, 1) for month in months]
    elif _DATES.fullmatch(units) or (not units and (whole == numbers).all() and whole.min() >= _FIRST_DATE):
        dates = [(int(day) // 10000, int(day) // 100 % 100, int(day) % 100) for day in whole]
    else:
        raise ValueError(units)
    days = cftime.date2num([cftime.datetime(*date, calendar=calendar) for date in dates], EPOCH, calendar)
    return np.asarray(days, np.float64) + (0 if since else numbers - whole), EPOCH


def _check_times(raw: xr.Dataset) -> None:
    """Refuse series without times, and unsupported calendars of CMIP7 by name: xarray says nothing, or no reason."""
    series = [name for name, data in raw.data_vars.items() if "time" in data.dims and data.ndim > 2 and not data.size]
    if series and not raw.sizes["time"]:
        raise DataError(f"{series[0]} has no time step. Download or make the file again, or exclude it")
    calendar = str(raw["time"].attrs.get("calendar", "")) if "time" in raw.variables else ""
    if calendar.lower() in REFUSED_CALENDARS:
        raise DataError(
            f"the calendar of time is {calendar}, which is not supported; expected standard, proleptic_gregorian, "
            "noleap, all_leap or 360_day. Convert the file to one of them, or exclude it"
        )


def _to_midpoint(time: xr.DataArray, bounds: xr.DataArray) -> tuple[np.ndarray, str]:
    """Return how many days after each stamp the middle of its interval is, from numbers as they are stored.

    The text describes the first wrong bounds; their value is NaN.
    """
    if bounds.dims[:1] != ("time",) or bounds.shape[1:] != (2,):
        problem = (
            f"{bounds.name}, the bounds of time, is {dict(bounds.sizes)}; expected two for each of {time.size} stamps"
        )
        return np.full(time.size, np.nan), problem
    units, calendar = str(time.attrs.get("units", "")), str(time.attrs.get("calendar", "standard"))
    units_of_bounds = str(bounds.attrs.get("units", units))
    stamps = _days(time.values, units, calendar)
    lower, upper = _days(bounds.values, units_of_bounds, calendar).T
    if units_of_bounds != units:
        origin, other = (cftime.num2date(0, text, calendar) for text in (units, units_of_bounds))
        apart = (other - origin).total_seconds() / SECONDS_PER_DAY
        lower, upper = lower + apart, upper + apart
    longest = 1.5 * (float(np.median(np.diff(stamps))) if stamps.size > 1 else 1.0)
    second = 1 / SECONDS_PER_DAY
    sound = (lower < upper) & (upper - lower <= longest) & (lower - second <= stamps) & (stamps <= upper + second)
    middle = np.where(sound, (lower + upper) / 2 - stamps, np.nan)
    if sound.all():
        return middle, ""
    at = int(np.flatnonzero(~sound)[0])
    return middle, (
        f"{bounds.name}, the bounds of time, makes no sense for {int((~sound).sum())} of {time.size} stamps: stamp "
        f"{at} lies {stamps[at] - lower[at]:g} days after its lower and {upper[at] - stamps[at]:g} days before its "
        "upper bound. Correct the bounds, or remove the attribute `bounds` of time"
    )


def _days(numbers: np.ndarray, units: str, calendar: str) -> np.ndarray:
    """Return times as days since the origin of their units."""
    first, second = cftime.num2date([0, 1], f"{units.split(' since ')[0]} since 2000-01-01", calendar)
    return np.asarray(numbers, np.float64) * ((second - first).total_seconds() / SECONDS_PER_DAY)


def _chunks(data: xr.DataArray, most_bytes: float) -> dict[Hashable, int]:
    """Whole stored chunks: a compressed chunk that is cut is decompressed more than once."""
    stored = dict(zip(data.dims, data.encoding.get("chunksizes") or (1,) * data.ndim, strict=True))
    stored_days = stored.pop("time", 1)
    # A map in single precision, also of packed data.
    bytes_per_day = max(math.prod(size for dim, size in data.sizes.items() if dim != "time") * 4, 1)
    days = min(max(DAYS_PER_CHUNK, BYTES_PER_CHUNK // bytes_per_day), most_bytes // bytes_per_day)
    days = int(max(days // stored_days, 1) * stored_days)
    if not stored or days * bytes_per_day <= most_bytes:
        return {"time": days}
    rows, stored_rows = next(iter(stored.items()))
    bytes_per_row = max(days * bytes_per_day // data.sizes[rows], 1)
    return {"time": days, rows: int(max(most_bytes // bytes_per_row // stored_rows, 1) * stored_rows)}


def tracking_id(path: str) -> str:
    """Return the attribute `tracking_id`, ESGF's name of a file; empty if it is absent or the file is unreadable."""
    try:
        if is_zarr(path):
            ds = open_zarr(path, {"decode_times": False})
        else:
            ds = open_netcdf(path, (), {"decode_times": False, "chunks": None})
        with ds:
            return str(ds.attrs.get("tracking_id", ""))
    # A damaged file may raise nearly anything from its backend; other checks report the damage.
    except Exception:
        return ""


def first_line(error: Exception) -> str:
    """The first sentence of an error; xarray's on unreadable files continues with how to install backends."""
    text = str(error).split("\n")[0].split("Consider explicitly selecting")[0].strip()
    return f"{type(error).__name__}: {text.removesuffix('.')}"
