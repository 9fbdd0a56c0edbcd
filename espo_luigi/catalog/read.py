"""Reading catalogues: the JSON and CSV files of intake-esm, with the columns that xscen writes."""

from __future__ import annotations

import ast
import calendar
import csv
import gzip
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, TextIO

from espo_luigi.errors import CatalogError

COLUMNS = (
    "id",
    "type",
    "processing_level",
    "bias_adjust_institution",
    "bias_adjust_project",
    "bias_adjust_reference",
    "mip_era",
    "activity",
    "driving_model",
    "driving_member",
    "institution",
    "source",
    "experiment",
    "member",
    "xrfreq",
    "frequency",
    "variable",
    "domain",
    "date_start",
    "date_end",
    "version",
    "format",
    "path",
)
"""The columns of an xscen catalogue, in its order."""

ID_COLUMNS = (
    "bias_adjust_project",
    "mip_era",
    "activity",
    "driving_model",
    "driving_member",
    "institution",
    "source",
    "experiment",
    "member",
    "domain",
)
"""The columns that make an id, in its order; empty ones are left out."""

_REQUIRED = ("xrfreq", "variable", "path")
_ABSENT = {"", "nan", "NaN", "None", "NaT", "<NA>"}
_DATE = re.compile(r"(\d{4})(?:-?(\d{2}))?(?:-?(\d{2}))?")
_MAKE_ONE = "`espo catalog FOLDER --out cat.json` makes a catalogue from a folder of files"


@dataclass(frozen=True)
class Asset:
    """One row of a catalogue: some variables of one dataset, over some time, in one NetCDF file or Zarr store."""

    columns: Mapping[str, str] = field(hash=False)
    """The filled cells of the row by column, `variable` and `path` included as they are written."""
    variables: tuple[str, ...]
    path: str
    """The file: absolute, or a URL."""

    @property
    def id(self) -> str:
        """The dataset's id."""
        return self.columns.get("id", "")

    @cached_property
    def start(self) -> datetime | None:
        """The beginning of the first day, None without a date."""
        return parse_date(self.columns.get("date_start"), self.path)

    @cached_property
    def end(self) -> datetime | None:
        """The end of the last day (midnight of the next), None without a date."""
        return parse_date(self.columns.get("date_end"), self.path, end=True)

    def with_columns(self, **columns: str) -> Asset:
        """Return a copy with other values in some columns."""
        return replace(self, columns={**self.columns, **columns})


def parse_date(text: str | None, where: str = "", *, end: bool = False) -> datetime | None:
    """The day of a catalogue's date, at its beginning or end; dates without day or month mean all of the month or year.

    Hours are dropped: daily data are stamped at midnight or at noon. A day that the Gregorian calendar lacks
    (30 February of a 360-day calendar) becomes the month's last.

    Raises
    ------
    CatalogError
        If the text is not a date.
    """
    if text is None:
        return None
    match = _DATE.match(text.strip())
    if match is None:
        raise CatalogError(f"{text!r} is not a date ({where}); expected YYYY-MM-DD, with or without hours.")
    year = int(match[1])
    month = min(int(match[2] or (12 if end else 1)), 12)
    last = calendar.monthrange(year, month)[1]
    day = datetime(year, month, min(int(match[3] or (last if end else 1)), last))
    # No year 10000 in Python: far ends such as 9999-12-31 lose their last day.
    return day + timedelta(days=1) if end and day.year < 9999 else day


def parse_variables(text: str) -> tuple[str, ...]:
    """Return the variables of a row: ``tasmax``, ``('tasmax',)`` or ``['tasmax', 'tasmin']``."""
    text = text.strip()
    if not text.startswith(("(", "[", "{")):
        return (text,)
    try:
        return tuple(str(name) for name in ast.literal_eval(text))
    except (ValueError, SyntaxError):
        return tuple(re.findall(r"[A-Za-z]\w*", text))


def make_id(columns: Mapping[str, str]) -> str:
    """Return a dataset's id: the filled columns of `ID_COLUMNS`, joined by underscores."""
    return "_".join(columns[name] for name in ID_COLUMNS if columns.get(name))


def read_catalogue(path: Path) -> list[Asset]:
    """Read the assets of one catalogue (a JSON file with its CSV beside it or inside it).

    Paths that are not absolute are relative to the JSON file's folder. Rows without an id get the id that xscen makes.

    Raises
    ------
    CatalogError
        If a file is missing or unreadable, or a needed column is absent.
    """
    path = Path(path)
    description = _description(path)
    records, source = _records(description, path)
    path_column = (description.get("assets") or {}).get("column_name") or "path"
    variable_column = (description.get("aggregation_control") or {}).get("variable_column_name") or "variable"
    names = {path_column: "path", variable_column: "variable"}
    rows = [{names.get(key, key): value for key, value in record.items()} for record in records]
    _check_columns(rows, source)
    return [_asset(row, path.parent) for row in rows if row.get("path")]


def _description(path: Path) -> dict[str, Any]:
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CatalogError(
            f"catalogue {path} does not exist; give an existing one in data_catalogs. {_MAKE_ONE}."
        ) from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CatalogError(
            f"catalogue {path} cannot be read ({error}); expected an intake-esm JSON file. {_MAKE_ONE}."
        ) from None
    if not isinstance(description, dict) or not {"catalog_file", "catalog_dict"} & set(description):
        raise CatalogError(
            f"catalogue {path} has neither catalog_file nor catalog_dict; expected an intake-esm JSON "
            f"file. {_MAKE_ONE}."
        )
    return description


def _records(description: Mapping[str, Any], path: Path) -> tuple[list[dict[str, str]], str]:
    """The rows, without their empty cells, and what they were read from."""
    if description.get("catalog_dict") is not None:
        return [_filled(record) for record in description["catalog_dict"]], f"catalog_dict of {path}"
    table = _table(description, path)
    try:
        with _open_text(table) as stream:
            return [_filled(record) for record in csv.DictReader(stream)], str(table)
    except FileNotFoundError:
        raise CatalogError(f"{table}, the catalog_file of catalogue {path}, does not exist. {_MAKE_ONE}.") from None
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise CatalogError(f"{table}, the catalog_file of catalogue {path}, cannot be read: {error}.") from None


def table_of(path: Path) -> Path:
    """Return the CSV file of a catalogue whose rows are in one.

    Raises
    ------
    CatalogError
        If the JSON file cannot be read, or holds the rows itself.
    """
    description = _description(path)
    if description.get("catalog_file") is None:
        raise CatalogError(f"catalogue {path} holds its rows itself (catalog_dict); expected a catalog_file.")
    return _table(description, path)


def _table(description: Mapping[str, Any], path: Path) -> Path:
    return path.parent / os.path.expandvars(str(description["catalog_file"]).removeprefix("file://"))


def _open_text(table: Path) -> TextIO:
    if table.suffix == ".gz":
        return gzip.open(table, "rt", encoding="utf-8", newline="")
    return table.open(encoding="utf-8", newline="")


def _filled(record: Mapping[Any, Any]) -> dict[str, str]:
    cells = {str(key): "" if value is None else str(value).strip() for key, value in record.items() if key is not None}
    return {key: value for key, value in cells.items() if value not in _ABSENT}


def _check_columns(rows: Iterable[Mapping[str, str]], source: str) -> None:
    present = {column for row in rows for column in row}
    missing = [column for column in _REQUIRED if column not in present]
    if present and missing:
        raise CatalogError(
            f"{source} has no column {' nor '.join(missing)} (or only empty cells); it has "
            f"{', '.join(sorted(present))}. Expected the columns of xscen. {_MAKE_ONE}."
        )


def _asset(row: dict[str, str], folder: Path) -> Asset:
    written = os.path.expandvars(row["path"])
    path = written if "://" in written else str(folder.absolute() / written)
    columns = row if "id" in row else {"id": make_id(row), **row}
    return Asset(columns={**columns, "path": path}, variables=parse_variables(row.get("variable", "")), path=path)
