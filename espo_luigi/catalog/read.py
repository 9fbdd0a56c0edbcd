"""Reading catalogues: the JSON and CSV files of intake-esm, with the columns that xscen writes.

A row with a cell that cannot be used is read, too, with its `faults`: only a search knows whether it wants that row.
"""

from __future__ import annotations

import calendar
import csv
import io
import itertools
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from espo_luigi.catalog.cmip7 import normal_region, searched_name
from espo_luigi.catalog.presets import Preset
from espo_luigi.config.messages import explain
from espo_luigi.errors import CatalogError, ParameterError
from espo_luigi.fields import check_wildcard
from espo_luigi.files import parse_json, read_bytes

COLUMNS = (
    *("id", "type", "processing_level", "bias_adjust_institution", "bias_adjust_project", "bias_adjust_reference"),
    *("mip_era", "activity", "driving_model", "driving_member", "institution", "source", "experiment", "member"),
    *("xrfreq", "frequency", "variable", "domain", "date_start", "date_end", "version", "format", "path"),
)
"""The columns of an xscen catalogue, in its order."""

PARENT_COLUMNS = ("parent_mip_era", "parent_activity", "parent_source", "parent_experiment", "parent_member")
"""The run that a run continues, as its files name it."""

CMIP7_COLUMNS = ("branding_suffix", "grid_label", "region", *PARENT_COLUMNS)
"""The columns that rows of CMIP7 have besides, and of CMIP6 some; a catalogue has those that its rows have."""

ID_COLUMNS = (
    *("bias_adjust_project", "mip_era", "activity", "driving_model", "driving_member", "institution", "source"),
    *("experiment", "member", "domain"),
)
"""The columns that make an id, in its order; empty columns are left out."""

# A row takes 2 kB of memory.
MOST_ROWS = 1_000_000
PATH_VARIABLES = ("HOME", "USER", "SCRATCH", "PROJECT", "SLURM_TMPDIR")
"""The environment variables that a catalogue's paths may name: others may be secret, and the catalogue somebody's."""
FORMATS = {name: "nc" for name in ("nc", "nc4", "netcdf", "netcdf4", "hdf5", "opendap")} | {
    name: "zarr" for name in ("zarr", "zarr2", "zarr3", "zarr.zip")
}
"""What a catalogue may call a format, in small letters, and what it is here."""

_ABSENT = frozenset({"", "nan", "NaN", "None", "NaT", "<NA>"})
_REQUIRED = ("xrfreq", "variable", "path")
_KINDS = {dict: "a mapping", list: "a list", str: "a text", bool: "true or false"}
# What reading a file, decompressing it and decoding JSON may raise.
_UNREADABLE = (OSError, EOFError, ValueError, zlib.error)
_MAKE_ONE = "`espo catalog FOLDER --out cat.json` makes a catalogue from a folder of files"

_DATE = re.compile(r"(\d{4})(?:-(\d\d)(?:-(\d\d))?|(\d\d)(\d\d)?)?(.*)", re.ASCII)
_ZONE = r"(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?"
_HOUR = re.compile(
    rf"(?:T|\s+)(?:[01]?\d|2[0-4])(?::[0-5]\d(?::[0-5]\d(?:\.\d*)?)?)?{_ZONE}|T?(?:[01]\d|2[0-4])(?:[0-5]\d){{1,2}}{_ZONE}",
    re.ASCII,
)
_DATES = "a date such as 2015, 2015-03, 2015-03-31 or 20150331, with or without hours (2015-03-31 12:00)"
_LAST = datetime(9999, 12, 31)
_NAME = re.compile(r"'([^'\\]*)'|\"([^\"\\]*)\"|([^\s'\"\[\](){},;:/\\]+)")
_NAMES = re.compile(rf"\s*(?:{_NAME.pattern})(?:\s*,\s*(?:{_NAME.pattern}))*\s*(?:,\s*)?")
_BRACKETS = {"(": ")", "[": "]", "{": "}"}
_WORD = re.compile(r"[A-Za-z]\w*")
_XRFREQ = re.compile(r"-?\d*[A-Za-z]+(-[A-Za-z]+)?", re.ASCII)
_VARIABLE = re.compile(r"\$(?:(\w+)|\{([^}]*)\})", re.ASCII)
# Other schemes read other files or run code (`reference::`, `filecache::`), and a fragment chooses netCDF's reader.
_URL = re.compile(r"file:///(?:(?!::|://).)*|(?:s3|https)://(?!:)(?:(?!::|://)[^#])+")
# Lone surrogates stand for bytes of a file's name that are not UTF-8; a catalogue cannot be written with them.
_NOT_IN_PATHS = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


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
    preset: Preset | None = field(default=None, hash=False)
    """What the file calls things, by `espo catalog --as`."""
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


def parse_date(text: str | None, where: str = "", *, end: bool = False) -> datetime | None:
    """The day of a catalogue's date, at its beginning or end; dates without day or month mean all of the month or year.

    Hours are dropped: daily data are stamped at midnight or at noon. A day that the Gregorian calendar lacks (30
    February of a 360-day calendar) becomes the month's last. Raises `CatalogError` if the text is not a date.
    """
    if text is None:
        return None
    day = _day(text, end)
    if day is None:
        raise CatalogError(f"{text!r} is not a date ({where}); expected {_DATES}.")
    return day


@lru_cache(maxsize=4096)  # a catalogue has many rows and few dates
def _day(text: str, end: bool) -> datetime | None:
    match = _DATE.fullmatch(text.strip())
    if match is None:
        return None
    year, month, day = int(match[1]), match[2] or match[4], match[3] or match[5]
    if year == 0 or (month and not 1 <= int(month) <= 12) or (match[6] and not (day and _HOUR.fullmatch(match[6]))):
        return None
    number = int(month or (12 if end else 1))
    last = calendar.monthrange(year, number)[1]
    # All months of a 360-day calendar have 30 days.
    if day and not 1 <= int(day) <= max(last, 30):
        return None
    date = datetime(year, number, min(int(day or (last if end else 1)), last))
    # No year 10000 in Python.
    return date if not end else date + timedelta(days=1) if date < _LAST else datetime.max


@lru_cache(maxsize=4096)
def _variables(text: str) -> tuple[str, ...]:
    """Return the variables of a cell: ``tasmax``, ``('tasmax',)`` or ``['tasmax', 'tasmin']``; none of any other text.

    Names in brackets may lack their quotes. A name without quotes has neither spaces nor punctuation.
    """
    text = text.strip()
    closing = _BRACKETS.get(text[:1])
    inner = text[1:-1] if closing else text
    if not inner.strip() or (closing and not text.endswith(closing)) or not _NAMES.fullmatch(inner):
        return ()
    names = list(dict.fromkeys("".join(groups).strip() for groups in _NAME.findall(inner)))
    if (not closing and len(names) > 1) or any(name in _ABSENT or not name.isprintable() for name in names):
        return ()
    return tuple(names)


def expand_path(path: str) -> str:
    """Return a catalogue's path with `PATH_VARIABLES` replaced, as far as they are set; a URL as it is."""
    if is_url(path):
        return path
    values = {name: os.environ[name] for name in PATH_VARIABLES if name in os.environ}
    return _VARIABLE.sub(lambda match: values.get(match[1] or match[2], match[0]), path)


def is_url(path: str) -> bool:
    """Whether a path is a URL, or a chain of URLs."""
    return "://" in path or "::" in path


def without_scheme(path: str) -> str:
    """Return the local path that a URL of the scheme `file` names, any other path as it is."""
    return path.removeprefix("file://") if path.startswith("file:///") else path


def expected_url(text: str) -> str:
    """Return what is expected instead of a URL that may not be opened; nothing for others, and for local paths."""
    if not is_url(text) or _URL.fullmatch(text):
        return ""
    return (
        "the path of a file or store, or a URL that begins with file:///, s3:// or https:// and has neither `::`, a "
        "second `://` nor `#`: other URLs may read other files, or run code"
    )


def _expected_path(text: str) -> str:
    if not text or _NOT_IN_PATHS.search(text):
        return "the path of a file or Zarr store, in UTF-8 and without control characters"
    names = {"".join(pair) for pair in _VARIABLE.findall(text)}
    if expected := expected_url(text):
        return expected
    if is_url(text):
        return "a URL without environment variables (write %24 for a dollar sign)" if names else ""
    listing = ", ".join(f"${name}" for name in PATH_VARIABLES)
    return "" if names <= set(PATH_VARIABLES) else f"a path with no other environment variables than {listing}"


def _expected_id(text: str) -> str:
    try:
        check_wildcard("id", text)
        # Luigi's page takes names for HTML.
        fits = text.isprintable() and not set("<>") & set(text)
    except ParameterError:
        fits = False
    return "" if fits else "a name that can be part of a file name, without / \\ + < > and control characters"


def _refused_with(expected: Callable[[str], str]) -> AfterValidator:
    """A validator that refuses a cell by what `expected` returns in its place; nothing of a sound cell."""

    def check(text: str) -> str:
        if told := expected(text):
            raise PydanticCustomError("cell", "{expected}", {"expected": told})
        return text

    return AfterValidator(check)


def _fits(check: Callable[[str], object], told: str) -> AfterValidator:
    return _refused_with(lambda text: "" if check(text) else told)


_Date = Annotated[str, _fits(lambda text: not text or _day(text, False), _DATES)]


class Row(BaseModel):
    """The columns of a row whose cells cannot hold any text; absent cells are empty texts."""

    id: Annotated[str, _refused_with(_expected_id)]
    variable: Annotated[str, _fits(_variables, "the variables, as tasmax, ('tasmax',) or ['tasmax', 'tasmin']")]
    xrfreq: Annotated[str, _fits(_XRFREQ.fullmatch, "a frequency in pandas' letters, as D, MS or fx")]
    date_start: _Date
    date_end: _Date
    format: Annotated[
        str, _fits(lambda text: not text or text.lower() in FORMATS, f"nc or zarr (also {', '.join(FORMATS)})")
    ]
    path: Annotated[str, _refused_with(_expected_path)]

    @model_validator(mode="after")
    def _in_order(self) -> Row:
        start, end = parse_date(self.date_start or None), parse_date(self.date_end or None, end=True)
        if start is not None and end is not None and start >= end:
            raise PydanticCustomError("cell", "no day before date_start, {start}", {"start": repr(self.date_start)})
        return self


def faults_of(columns: Mapping[str, str]) -> dict[str, str]:
    """Return each cell that cannot be used, by column, as "is empty; expected …"."""
    cells = {name: columns.get(name, "") for name in Row.model_fields}
    try:
        Row.model_validate(cells)
    except ValidationError as error:
        told = ((str(next(iter(fault["loc"]), "date_end")), fault["msg"]) for fault in error.errors(include_url=False))
        return {column: f"is {_shown(cells[column])}; expected {expected}" for column, expected in told}
    return {}


def _shown(text: str) -> str:
    return repr(text if len(text) <= 200 else f"{text[:200]}…") if text else "empty"


def read_catalogue(path: Path) -> list[Asset]:
    """Read the assets of a catalogue (a JSON file with its CSV beside it or inside it).

    Paths that are not absolute are relative to the JSON file's folder. Rows without an id get the id that xscen makes.

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
        read = _inline_rows(description["catalog_dict"], source, wanted)
    else:
        source = str(_table(description, path))
        read = _table_rows(Path(source), path, wanted)
    rows = list(itertools.islice(read, MOST_ROWS + 1))
    if len(rows) > MOST_ROWS:
        raise CatalogError(f"{source} has more than {MOST_ROWS} rows; expected fewer: cut it into several catalogues.")
    _check_columns([row for _, row in rows], source, wanted)
    folder = path.parent.absolute()
    preset = _preset(description, path)
    return [replace(_asset(row, where, folder), preset=preset) for where, row in rows]


def _preset(description: Mapping[str, Any], path: Path) -> Preset | None:
    try:
        return Preset.model_validate(description["preset"]) if "preset" in description else None
    except ValidationError as error:
        raise CatalogError(explain(error, Preset, {}, {}, f"The preset in {path}")) from error


def table_of(path: Path) -> Path:
    """Return the CSV file of a catalogue.

    Raises `CatalogError` if the JSON file cannot be read, or holds the rows itself.
    """
    description = _description(path)
    if description.get("catalog_file") is None:
        raise CatalogError(f"catalogue {path} holds its rows itself (catalog_dict); expected a catalog_file.")
    return _table(description, path)


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
    if twice := _twice(key for key, _ in pairs):
        raise ValueError(f"{twice!r} is there twice in one mapping")
    return dict(pairs)


def _twice(names: Iterator[str]) -> str | None:
    return next((name for name, count in Counter(names).items() if name and count > 1), None)


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


def _table(description: Mapping[str, Any], path: Path) -> Path:
    name = without_scheme(_of_kind(description["catalog_file"], str, f"catalog_file of {path}"))
    if expected := _expected_path(name):
        raise CatalogError(f"catalog_file of {path} is {_shown(name)}; expected {expected}.")
    return path.parent / expand_path(name)


def _inline_rows(rows: Any, source: str, wanted: Mapping[str, str]) -> Iterator[tuple[str, dict[str, str]]]:
    """The rows of a `catalog_dict`, each with its place and without its empty cells."""
    for number, record in enumerate(_of_kind(rows, list, source), start=1):
        where = f"{source}, row {number}"
        if not isinstance(record, dict):
            raise CatalogError(f"{where}: got {_kind(record)}; expected a mapping from columns to cells.")
        columns = _columns([str(key) for key in record], wanted, where)
        if row := _filled(columns, ["" if cell is None else str(cell) for cell in record.values()]):
            yield where, row


def _table_rows(table: Path, path: Path, wanted: Mapping[str, str]) -> Iterator[tuple[str, dict[str, str]]]:
    """The rows of a CSV file, each with its place and without its empty cells; rows without any cell are left out.

    pandas accepts text after a closing quote, and so shifts cells into wrong columns; Python's strict reader does not.
    """
    what = f"{table}, the catalog_file of catalogue {path},"
    try:
        reader = csv.reader(io.StringIO(_text(table), newline=""), strict=True, skipinitialspace=True)
    except FileNotFoundError:
        raise CatalogError(f"{what} does not exist. {_MAKE_ONE}.") from None
    except _UNREADABLE as error:
        raise CatalogError(f"{what} cannot be read: {error}.") from None
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
    if twice := _twice(iter(stripped)):
        raise CatalogError(f"{where}: the column {twice[:100]} is there twice; expected it once. Rename or remove one.")
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
    return {column: text for column, cell in pairs if (text := cell.strip()) not in _ABSENT and column}


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
    parts = ", ".join(name for name in ID_COLUMNS if "id" not in row and row.get(name))
    called = {"id": f"id, made of {parts},"} if parts else {}
    faults = {name: f"{where}: {called.get(name, name)} {fault}" for name, fault in faults_of(columns).items()}
    written = without_scheme(expand_path(row.get("path", "")))
    path = written if is_url(written) or not written else str(folder / written)
    given = {"format": FORMATS.get(row["format"].lower(), row["format"])} if "format" in row else {}
    listing = row.get("variable", "")
    # A faulty cell is guessed at: the search has to know whether it may want the row.
    variables = _variables(listing) or tuple(name for name in _WORD.findall(listing) if name not in _ABSENT)
    if columns.get("mip_era") == "CMIP7":
        # Catalogues of other tools list the names in the files.
        variables = tuple(searched_name(name, columns.get("branding_suffix", "")) for name in variables)
        given |= {"region": normal_region(columns["region"])} if "region" in columns else {}
    return Asset(columns={**columns, **given, "path": path}, variables=variables, path=path, faults=faults)
