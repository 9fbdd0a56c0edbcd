"""Reading stations: tables of one's own, and the files of GHCN-Daily and ECA&D, as a dataset (time, station)."""

from __future__ import annotations

import functools
import io
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.files import read_bytes, read_text
from espo_luigi.science.stations import ELEVATION, NAMES, STATION, from_table
from espo_luigi.science.variables import VARIABLES

TABLES = (".csv", ".csv.gz", ".parquet", ".dly")
# The largest table that is read: it is in memory as a whole.
_MOST_BYTES = 4 * 2**30
# What tables call their columns, in small letters.
_COLUMNS = {
    STATION: ("station", "station_id", "id", "staid"),
    "time": ("date", "time", "day"),
    "lat": ("lat", "latitude"),
    "lon": ("lon", "longitude"),
    ELEVATION: ("elevation", "elev", "altitude", "alt", "height"),
    NAMES: ("name", "station_name"),
    "variable": ("variable", "element"),
    "value": ("value", "data_value"),
    "quality": ("q_flag",),
}
_OF_STATIONS = ("lat", "lon", NAMES, ELEVATION)


# The elements of GHCN-Daily and ECA&D, in tenths: names and units here.
_GHCN = {"TMAX": ("tasmax", "degC"), "TMIN": ("tasmin", "degC"), "TAVG": ("tas", "degC"), "PRCP": ("pr", "mm d-1")}
_ECAD = {"TX": ("tasmax", "degC"), "TN": ("tasmin", "degC"), "TG": ("tas", "degC"), "RR": ("pr", "mm d-1")}
# The columns with which NOAA's files of a station begin.
_OF_NOAA = ["STATION", "DATE", "LATITUDE", "LONGITUDE", "ELEVATION", "NAME"]
_MISSING = -9999
_WITH_UNITS = re.compile(r"(.*?)\s*[\[(](.*)[\])]")
_GHCN_ID = re.compile(r"[A-Z]{2}[A-Z0-9_-]{9},\d{8},")
_ECAD_FILE = re.compile(r"([A-Z]{2})_STAID(\d+)\.txt")

Part = tuple[str, pd.DataFrame]
"""A variable's name, or `station` for places of stations, and rows of a table."""


def is_stations(path: str) -> bool:
    """Whether a path is a table of stations, or a folder (of tables, unless it is a Zarr store)."""
    return path.endswith(TABLES) or (Path(path).is_dir() and not path.rstrip("/").endswith(".zarr"))


def open_stations(path: str) -> xr.Dataset:
    """Read a table of stations, or all tables of a folder; in memory, as (time, station) in the tables' units.

    Raises
    ------
    DataError
        If a table cannot be read, has a value that is no number or a date that is none, two values of a station on a
        day, or a station without a place.
    """
    files = _files(Path(path))
    return _read(path, tuple((file, file.stat().st_mtime_ns, file.stat().st_size) for file in files)).copy()


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    names = sorted(each for each in path.rglob("*") if each.is_file() and not each.name.startswith("."))
    return [each for each in names if each.name.endswith((*TABLES, "stations.txt")) or _ECAD_FILE.fullmatch(each.name)]


def holds_tables(folder: Path) -> bool:
    """Whether a folder has files of stations."""
    return bool(_files(folder))


@functools.lru_cache(maxsize=1)
def _read(path: str, files: tuple[tuple[Path, int, int], ...]) -> xr.Dataset:
    parts: dict[str, list[pd.DataFrame]] = {}
    units: dict[str, str] = {}
    for file, _, size in files:
        if size > _MOST_BYTES:
            raise DataError(f"{file} has {size} bytes; expected {_MOST_BYTES} at most: cut it, or give Parquet.")
        try:
            for name, rows in _parts(file, units):
                parts.setdefault(name, []).append(rows)
        except DataError as error:
            raise DataError(f"{file}: {error}") from None
        except ImportError as error:
            raise DataError(f"{file}: {error}. Install pyarrow, or give a CSV.") from error
        except (ValueError, KeyError, IndexError) as error:
            raise DataError(f"{file} cannot be read as a table of stations: {error}.") from error
    places = parts.pop(STATION, [])
    if not parts or not places:
        lacking = "values (columns station, date and variables)" if places else "places (columns station, lat and lon)"
        raise DataError(f"{path} has no table with {lacking}.")
    stations = pd.concat(places)
    stations.index = stations.index.astype(str)
    stations = stations[~stations.index.duplicated()].dropna(subset=["lat", "lon"]).dropna(axis=1, how="all")
    if NAMES in stations:
        stations[NAMES] = stations[NAMES].fillna("").astype(str)
    return from_table({name: pd.concat(rows) for name, rows in parts.items()}, stations, units)


def _parts(file: Path, units: dict[str, str]) -> Iterator[Part]:
    """Yield the parts of a file; adds the units of its variables to `units`."""
    if file.suffix == ".dly":
        for name, rows in _of_dly(read_bytes(file, _MOST_BYTES).decode("ascii", "replace")):
            yield from _in_tenths(_GHCN, name, rows, units)
    elif match := _ECAD_FILE.fullmatch(file.name):
        text = read_text(file, _MOST_BYTES, "latin-1")
        yield from _in_tenths(_ECAD, match[1], _of_ecad(text, *match.groups()), units)
    elif file.name == "ghcnd-stations.txt":
        yield STATION, _of_ghcn_stations(read_bytes(file, _MOST_BYTES).decode("utf-8", "replace"))
    elif file.suffix == ".txt":
        yield STATION, _of_ecad_stations(read_text(file, _MOST_BYTES, "latin-1"))
    else:
        yield from _of_table(_table(file), units)


def _in_tenths(
    elements: Mapping[str, tuple[str, str]], name: str, rows: pd.DataFrame, units: dict[str, str]
) -> Iterator[Part]:
    if name in elements:
        element, units[elements[name][0]] = elements[name]
        known = rows[rows["value"] != _MISSING]
        yield element, known.assign(value=known["value"] / 10)


def _of_dly(text: str) -> Iterator[Part]:
    """GHCN-Daily: a line is a month of an element of a station. Values that failed a check are left out."""
    by_element: dict[str, list[tuple[str, str, int, int]]] = {}
    for line in text.splitlines():
        for day in range(31):
            cell = line[21 + 8 * day : 29 + 8 * day]
            if cell[:5].strip() not in ("", "-9999") and cell[6:7] in ("", " "):
                by_element.setdefault(line[17:21], []).append((line[:11].strip(), line[11:17], day + 1, int(cell[:5])))
    for name, found in by_element.items():
        station, month, days, values = zip(*found, strict=True)
        time = np.array([f"{one[:4]}-{one[4:]}" for one in month], "datetime64[D]") + np.array(days) - 1
        yield name, pd.DataFrame({STATION: station, "time": time, "value": values})


def _of_ghcn_stations(text: str) -> pd.DataFrame:
    columns = {STATION: (0, 11), "lat": (12, 20), "lon": (21, 30), ELEVATION: (31, 37), NAMES: (41, 71)}
    read = pd.read_fwf(io.StringIO(text), colspecs=list(columns.values()), names=list(columns), dtype={NAMES: str})
    return read.assign(**{ELEVATION: read[ELEVATION].where(read[ELEVATION] > -999)}).set_index(STATION)


def _of_ecad(text: str, element: str, number: str) -> pd.DataFrame:
    """ECA&D: prose, then a table of a station, whose values have a flag: 0 valid, 1 suspect, 9 missing."""
    lines = text.splitlines()
    head = next(
        at for at, line in enumerate(lines) if "DATE" in line and f"Q_{element}" in line and line.count(",") > 2
    )
    read = pd.read_csv(io.StringIO("\n".join(lines[head:])), skipinitialspace=True).rename(columns=str.strip)
    rows = pd.DataFrame({"time": _dates(read["DATE"]), "value": read[element]})
    return rows[read[f"Q_{element}"] == 0].assign(**{STATION: str(int(number))})


def _of_ecad_stations(text: str) -> pd.DataFrame:
    """ECA&D: number, name, country, latitude and longitude (degrees:minutes:seconds), height; names may have commas."""
    rows = []
    for line in text.splitlines():
        number, _, rest = line.partition(",")
        cells = rest.rsplit(",", 4)
        if number.strip().isdigit() and len(cells) == 5:
            places = (_degrees(cells[2]), _degrees(cells[3]))
            rows.append((str(int(number)), cells[0].strip(), *places, float(cells[4]) if cells[4].strip() else np.nan))
    return pd.DataFrame(rows, columns=[STATION, NAMES, "lat", "lon", ELEVATION]).set_index(STATION)


def _degrees(text: str) -> float:
    degrees, minutes, seconds = (float(part) for part in text.strip().lstrip("+-").split(":"))
    return (degrees + minutes / 60 + seconds / 3600) * (-1 if text.strip().startswith("-") else 1)


def _table(file: Path) -> pd.DataFrame:
    if file.suffix == ".parquet":
        return pd.read_parquet(io.BytesIO(read_bytes(file, _MOST_BYTES))).reset_index()
    content = read_bytes(file, _MOST_BYTES, unzip=file.suffix == ".gz")
    first, _, rest = content[:4096].decode("utf-8-sig", "replace").partition("\n")
    separator = max(",;\t", key=first.count)
    is_bare = bool(_GHCN_ID.match(first))
    return pd.read_csv(
        io.BytesIO(content),
        sep=separator,
        encoding="utf-8-sig",
        decimal="," if separator == ";" and re.search(r";-?\d+,\d", rest) else ".",
        skipinitialspace=True,
        header=None if is_bare else "infer",
        names=["id", "date", "element", "data_value", "m_flag", "q_flag", "s_flag", "time_"] if is_bare else None,
        # Numbers of stations may begin with zeros.
        converters={name: str.strip for name in re.findall(r"\w+", first) if name.lower() in _COLUMNS[STATION]},
    )


def _of_table(read: pd.DataFrame, units: dict[str, str]) -> Iterator[Part]:
    of_noaa = list(read.columns[:6]) == _OF_NOAA
    roles = {name: role for role, names in _COLUMNS.items() for name in read.columns if str(name).lower() in names}
    table = read.rename(columns=roles)
    if STATION in table and {"lat", "lon"} <= {*table}:
        of = table[[STATION, *(name for name in _OF_STATIONS if name in table)]].drop_duplicates(STATION)
        yield STATION, of.set_index(STATION)
    if not {STATION, "time"} <= {*table}:
        return
    table["time"] = _dates(table["time"])
    if {"variable", "value"} <= {*table}:
        is_ghcn = "quality" in table
        for name, rows in (table[table["quality"].isna()] if is_ghcn else table).groupby("variable"):
            part = rows[[STATION, "time", "value"]].dropna()
            yield from _in_tenths(_GHCN, str(name), part, units) if is_ghcn else [(str(name), part)]
        return
    for column in table.columns.drop([name for name in (*_COLUMNS, "index") if name in table]):
        match = _WITH_UNITS.fullmatch(str(column))
        name = match[1] if match else str(column)
        rows = table[[STATION, "time"]].assign(value=_numbers(table[column], name, is_sure=bool(match))).dropna()
        if of_noaa and (flags := f"{name}_ATTRIBUTES") in table:  # measurement, quality, source
            suspect = table[flags].astype("string").str.split(",").str.get(1).fillna("").str.strip() != ""
            rows = rows[~suspect.loc[rows.index].astype(bool)]
        # Other tables of NOAA have units that were chosen when they were asked for.
        named = _GHCN.get(name, (name,))[0]
        yield from _in_tenths(_GHCN, name, rows, units) if of_noaa else [(named, rows)] if len(rows) else []
        if match:
            units[named] = match[2]


def _numbers(column: pd.Series, name: str, *, is_sure: bool) -> pd.Series:
    """A column's numbers; no number of one of texts that is no variable's for sure."""
    values = pd.to_numeric(column, errors="coerce")
    if not (wrong := values.isna() & column.notna()).any():
        return values
    if is_sure or name in VARIABLES:
        raise DataError(f"{name} has {str(column[wrong].iloc[0])[:40]!r}; expected numbers.")
    return values * np.nan


def _dates(column: pd.Series) -> pd.Series:
    """The days of a column: dates, or texts or numbers as 2000-12-31 or 20001231."""
    if column.dtype.kind == "M":
        return column
    texts = column.astype(str).str.strip()
    is_plain = bool(len(texts)) and texts.str.fullmatch(r"\d{8}").all()
    found = pd.to_datetime(texts, format="%Y%m%d" if is_plain else "ISO8601", errors="coerce")
    if (wrong := found.isna()).any():
        raise DataError(f"got the date {texts[wrong].iloc[0][:40]!r}; expected dates as 2000-12-31 or 20001231.")
    return found
