"""Reading catalogues: the JSON and CSV files of intake-esm, with the columns that xscen writes."""

from __future__ import annotations

import csv
import io
import itertools
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from espo_luigi.catalog.cells import (
    ABSENT,
    CHECKED,
    FORMATS,
    expand_path,
    fault_of,
    is_url,
    parse_date,
    parse_variables,
    without_scheme,
)
from espo_luigi.catalog.cmip7 import normal_region, searched_name
from espo_luigi.errors import CatalogError
from espo_luigi.files import parse_json, read_bytes

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

PARENT_COLUMNS = ("parent_mip_era", "parent_activity", "parent_source", "parent_experiment", "parent_member")
"""The run that a run continues, as its files name it."""

CMIP7_COLUMNS = ("branding_suffix", "grid_label", "region", *PARENT_COLUMNS)
"""The columns that rows of CMIP7 have besides; a catalogue without such rows has none of them."""

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

# A row takes 2 kB of memory.
MOST_ROWS = 1_000_000
_REQUIRED = ("xrfreq", "variable", "path")
_KINDS = {dict: "a mapping", list: "a list", str: "a text", bool: "true or false"}
_UNREADABLE = (OSError, EOFError, ValueError, zlib.error)
"""What reading a file, decompressing it and decoding JSON may raise."""
_WORD = re.compile(r"[A-Za-z]\w*")
_MAKE_ONE = "`espo catalog FOLDER --out cat.json` makes a catalogue from a folder of files"


@dataclass(frozen=True)
class Asset:
    """A row of a catalogue: variables of a dataset over a time, in a NetCDF file or Zarr store."""

    columns: Mapping[str, str] = field(hash=False)
    """The filled cells of the row by column, `variable` and `path` included as they are written."""
    variables: tuple[str, ...]
    path: str
    """The file: absolute, or a URL."""
    faults: Mapping[str, str] = field(default_factory=dict, hash=False)
    """By column, each cell that cannot be used: file, line, what is there, and what was expected."""
    until: datetime | None = None
    """The day from which on the file is not used, as another run goes on from there; None for all of the file."""

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
        """The end of the last day that is used (midnight of the next), None without a date."""
        end = parse_date(self.columns.get("date_end"), self.path, end=True)
        return end if end is None or self.until is None else min(end, self.until)

    @property
    def is_cmip7(self) -> bool:
        """Whether the file is of CMIP7."""
        return self.columns.get("mip_era") == "CMIP7"

    def with_columns(self, **columns: str) -> Asset:
        """Return a copy with other values in some columns."""
        return replace(self, columns={**self.columns, **columns})


def make_id(columns: Mapping[str, str]) -> str:
    """Return a dataset's id: the filled columns of `ID_COLUMNS`, joined by underscores."""
    return "_".join(columns[name] for name in ID_COLUMNS if columns.get(name))


def read_catalogue(path: Path) -> list[Asset]:
    """Read the assets of a catalogue (a JSON file with its CSV beside it or inside it).

    Paths that are not absolute are relative to the JSON file's folder. Rows without an id get the id that xscen makes.
    A row with a cell that cannot be used is an asset with `faults`: only a search can tell whether it wants that row.

    Raises
    ------
    CatalogError
        If a file is missing, unreadable or damaged, or a needed column is absent.
    """
    path = Path(path)
    description = _description(path)
    wanted = {
        "path": _named(description, "assets", "column_name", path) or "path",
        "variable": _named(description, "aggregation_control", "variable_column_name", path) or "variable",
    }
    if description.get("catalog_dict") is not None:
        source = f"catalog_dict of {path}"
        found = _inline_rows(description["catalog_dict"], source, wanted)
    else:
        source = str(_table(description, path))
        found = _table_rows(Path(source), path, wanted)
    rows = list(itertools.islice(found, MOST_ROWS + 1))
    if len(rows) > MOST_ROWS:
        raise CatalogError(f"{source} has more than {MOST_ROWS} rows; expected fewer: cut it into several catalogues.")
    _check_columns([row for _, row in rows], source, wanted)
    folder = path.parent.absolute()
    return [_asset(row, where, folder) for where, row in rows]


def _description(path: Path) -> dict[str, Any]:
    try:
        description = parse_json(_text(path), _mapping)
    except FileNotFoundError:
        raise CatalogError(
            f"catalogue {path} does not exist; give an existing one in data_catalogs. {_MAKE_ONE}."
        ) from None
    except _UNREADABLE as error:
        raise CatalogError(
            f"catalogue {path} cannot be read ({error}); expected an intake-esm JSON file. {_MAKE_ONE}."
        ) from None
    keys = ("catalog_file", "catalog_dict")
    if not isinstance(description, dict) or all(description.get(key) is None for key in keys):
        raise CatalogError(
            f"catalogue {path} has neither catalog_file nor catalog_dict; expected an intake-esm JSON "
            f"file. {_MAKE_ONE}."
        )
    return description


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A mapping of the JSON file; of a key that is there twice Python would take the last without a word."""
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"{twice!r} is there twice in one mapping")
    return mapping


def _text(path: Path) -> str:
    """A file's text, without the byte order mark that Excel writes; decompressed if its name ends in `.gz`."""
    content = read_bytes(path, unzip=path.suffix == ".gz")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line, byte = error.object.count(b"\n", 0, error.start) + 1, error.object[error.start]
        raise CatalogError(
            f"{path}, line {line}: got the byte 0x{byte:02x}; expected UTF-8. Save the file as UTF-8 text."
        ) from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise CatalogError(f"{path}, line {line}: got a NUL byte; expected text. The file is damaged: write it anew.")
    return text


def _named(description: Mapping[str, Any], key: str, name: str, path: Path) -> str | None:
    """Return the column that the description names for the paths or the variables, or None."""
    section = _of_kind(description.get(key), dict, f"{key} of {path}")
    return _of_kind(section.get(name), str, f"{key}.{name} of {path}") if section else None


def _of_kind(value: Any, kind: type, what: str) -> Any:
    if value is not None and not isinstance(value, kind):
        raise CatalogError(f"{what} is {_kind(value)}; expected {_KINDS[kind]}, as intake-esm writes it.")
    return value


def _kind(value: Any) -> str:
    return next((name for kind, name in _KINDS.items() if isinstance(value, kind)), "a number")


def table_of(path: Path) -> Path:
    """Return the CSV file of a catalogue.

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
    name = _of_kind(description["catalog_file"], str, f"catalog_file of {path}")
    name = without_scheme(name)
    if fault := fault_of("path", name):
        raise CatalogError(f"catalog_file of {path} {fault}.")
    return path.parent / expand_path(name)


def _inline_rows(rows: Any, source: str, wanted: Mapping[str, str]) -> Iterator[tuple[str, dict[str, str]]]:
    """The rows of a `catalog_dict`, each with its place and without its empty cells."""
    for number, record in enumerate(_of_kind(rows, list, source), start=1):
        where = f"{source}, row {number}"
        if not isinstance(record, dict):
            raise CatalogError(f"{where}: got {_kind(record)}; expected a mapping from columns to cells.")
        columns = _columns([str(key) for key in record], wanted, where)
        row = _filled(columns, ["" if cell is None else str(cell) for cell in record.values()])
        if row:
            yield where, row


def _table_rows(table: Path, path: Path, wanted: Mapping[str, str]) -> Iterator[tuple[str, dict[str, str]]]:
    """The rows of a CSV file, each with its place and without its empty cells; rows without any cell are left out."""
    what = f"{table}, the catalog_file of catalogue {path},"
    try:
        text = _text(table)
    except FileNotFoundError:
        raise CatalogError(f"{what} does not exist. {_MAKE_ONE}.") from None
    except _UNREADABLE as error:
        raise CatalogError(f"{what} cannot be read: {error}.") from None
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, skipinitialspace=True)
    columns: list[str | None] = []
    titled, line = "", 1
    try:
        for cells in reader:
            where, line = f"{table}, line {line}", reader.line_num + 1
            if not any(map(str.strip, cells)):
                continue
            if not columns:
                columns, titled = _columns(cells, wanted, where), where.rpartition(", ")[2]
                _check_columns([dict.fromkeys(filter(None, columns), "")], str(table), wanted)
                continue
            if len(cells) != len(columns):
                raise CatalogError(
                    f"{where}: got {len(cells)} cells; expected {len(columns)}, one for each column in {titled}. "
                    "Look for a comma outside of quotes, a missing comma, or a line that was cut."
                )
            if "" in columns:
                _check_unnamed(columns, cells, where)
            yield where, _filled(columns, cells)
    except csv.Error as error:
        raise CatalogError(
            f"{table}, line {line}: the row that begins here cannot be read ({error}). Look for a quote that is not "
            "closed, or text after a closing quote."
        ) from None
    if not columns:
        raise CatalogError(f"{what} is empty; expected a line with the names of columns. {_MAKE_ONE}.")


def _columns(names: Sequence[str], wanted: Mapping[str, str], where: str) -> list[str | None]:
    """The columns' names here; None marks a column that the description replaces."""
    stripped = [name.strip() for name in names]
    twice = [name for name, count in Counter(stripped).items() if name and count > 1]
    if twice:
        raise CatalogError(
            f"{where}: the column {twice[0][:100]} is there twice; expected it once. Rename or remove one."
        )
    ours = {name: column for column, name in wanted.items()}
    return [ours.get(name) or (None if name in wanted else name) for name in stripped]


def _check_unnamed(columns: Sequence[str | None], cells: Sequence[str], where: str) -> None:
    """Refuse a cell without a column, but for numbers of rows, as pandas writes them."""
    for number, (column, cell) in enumerate(zip(columns, cells, strict=True), start=1):
        if column == "" and cell.strip() and not cell.strip().isdigit():
            raise CatalogError(
                f"{where}: got {cell[:100]!r}, but column {number} has no name; expected a name in the first line of "
                "the table. Write it there, or remove the column."
            )


def _filled(columns: Sequence[str | None], cells: Sequence[str]) -> dict[str, str]:
    pairs = zip(columns, cells, strict=True)
    return {column: text for column, cell in pairs if (text := cell.strip()) not in ABSENT and column}


def _check_columns(rows: Sequence[Mapping[str, str]], source: str, wanted: Mapping[str, str]) -> None:
    missing = [column for column in _REQUIRED if rows and not any(column in row for row in rows)]
    if missing:
        present = sorted({wanted.get(column, column) for row in rows for column in row})
        raise CatalogError(
            f"{source} has no column {' nor '.join(wanted.get(column, column) for column in missing)} (or only empty "
            f"cells); it has {', '.join(present)[:500]}. Expected the columns of xscen. {_MAKE_ONE}."
        )


def _asset(row: dict[str, str], where: str, folder: Path) -> Asset:
    columns = row if "id" in row else {"id": make_id(row), **row}
    faults = _faults(columns, where, made="id" not in row)
    written = without_scheme(expand_path(row.get("path", "")))
    path = written if is_url(written) or not written else str(folder / written)
    given = {"format": FORMATS.get(row["format"].lower(), row["format"])} if "format" in row else {}
    listing = row.get("variable", "")
    # A faulty cell is guessed at: the search has to know whether it may want the row.
    variables = parse_variables(listing) or tuple(name for name in _WORD.findall(listing) if name not in ABSENT)
    if columns.get("mip_era") == "CMIP7":
        # Catalogues of other tools list the names in the files.
        variables = tuple(searched_name(name, columns.get("branding_suffix", "")) for name in variables)
        given |= {"region": normal_region(columns["region"])} if "region" in columns else {}
    return Asset(columns={**columns, **given, "path": path}, variables=variables, path=path, faults=faults)


def _faults(columns: Mapping[str, str], where: str, *, made: bool) -> dict[str, str]:
    """The cells of a row that cannot be used, by column."""
    found = {column: fault for column in CHECKED if (fault := fault_of(column, columns.get(column, "")))}
    if not found.keys() & {"date_start", "date_end"}:
        start, end = parse_date(columns.get("date_start")), parse_date(columns.get("date_end"), end=True)
        if start is not None and end is not None and start >= end:
            found["date_end"] = (
                f"is {columns['date_end']!r}; expected no day before date_start, {columns['date_start']!r}"
            )
    if not found:
        return found
    parts = [name for name in ID_COLUMNS if columns.get(name)] if made else []
    names = {"id": f"id, made of {', '.join(parts)}," if parts else "id"}
    return {column: f"{where}: {names.get(column, column)} {fault}" for column, fault in found.items()}
