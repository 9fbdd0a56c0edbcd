"""The allowed content of a catalogue's cells: ids, variables, frequencies, dates, formats and paths."""

from __future__ import annotations

import calendar
import os
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import lru_cache

from espo_luigi.errors import CatalogError, ParameterError
from espo_luigi.fields import check_wildcard

ABSENT = frozenset({"", "nan", "NaN", "None", "NaT", "<NA>"})
"""The texts of empty cells."""

_DATE = re.compile(r"(\d{4})(?:-(\d\d)(?:-(\d\d))?|(\d\d)(\d\d)?)?(.*)", re.ASCII)
_ZONE = r"(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?"
_HOUR = re.compile(
    rf"(?:T|\s+)(?:[01]?\d|2[0-4])(?::[0-5]\d(?::[0-5]\d(?:\.\d*)?)?)?{_ZONE}|T?(?:[01]\d|2[0-4])(?:[0-5]\d){{1,2}}{_ZONE}",
    re.ASCII,
)
_DATES = "a date such as 2015, 2015-03, 2015-03-31 or 20150331, with or without hours (2015-03-31 12:00)"
_LAST = datetime(9999, 12, 31)

_BARE = r"[^\s'\"\[\](){},;:/\\]+"
_NAME = re.compile(rf"'([^'\\]*)'|\"([^\"\\]*)\"|({_BARE})")
_NAMES = re.compile(rf"\s*(?:{_NAME.pattern})(?:\s*,\s*(?:{_NAME.pattern}))*\s*(?:,\s*)?")
_BRACKETS = {"(": ")", "[": "]", "{": "}"}

_XRFREQ = re.compile(r"-?\d*[A-Za-z]+(-[A-Za-z]+)?", re.ASCII)
FORMATS = {name: "nc" for name in ("nc", "nc4", "netcdf", "netcdf4", "hdf5", "opendap")} | {
    name: "zarr" for name in ("zarr", "zarr2", "zarr3", "zarr.zip")
}
"""What a catalogue may call a format, in small letters, and what it is here."""
PATH_VARIABLES = ("HOME", "USER", "SCRATCH", "PROJECT", "SLURM_TMPDIR")
"""The environment variables that a catalogue's paths may name: others may be secret, and the catalogue somebody's."""
_VARIABLE = re.compile(r"\$(?:(\w+)|\{([^}]*)\})", re.ASCII)
# Other schemes read other files or run code (`reference::`, `filecache::`), and a fragment chooses netCDF's reader.
_URL = re.compile(r"file:///(?:(?!::|://).)*|(?:s3|https)://(?!:)(?:(?!::|://)[^#])+")
# Lone surrogates stand for bytes of a file's name that are not UTF-8; a catalogue cannot be written with them.
_NOT_IN_PATHS = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


def expand_path(path: str) -> str:
    """Return a catalogue's path with `PATH_VARIABLES` replaced, as far as they are set; a URL as it is."""
    if is_url(path):
        return path
    values = {name: os.environ[name] for name in PATH_VARIABLES if name in os.environ}
    return _VARIABLE.sub(lambda match: values.get(match[1] or match[2], match[0]), path)


def is_url(path: str) -> bool:
    """Whether a path is a URL, or a chain of them."""
    return "://" in path or "::" in path


def without_scheme(path: str) -> str:
    """Return the local path that a URL of the scheme `file` names, any other path as it is."""
    return path.removeprefix("file://") if path.startswith("file:///") else path


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
    day = _day(text, end)
    if day is None:
        raise CatalogError(f"{text!r} is not a date ({where}); expected {_DATES}.")
    return day


@lru_cache(maxsize=4096)  # a catalogue has many rows and few dates
def _day(text: str, end: bool) -> datetime | None:
    match = _DATE.fullmatch(text.strip())
    if match is None:
        return None
    year, month, day = match[1], match[2] or match[4], match[3] or match[5]
    if match[6] and not (day and _HOUR.fullmatch(match[6])):
        return None
    if int(year) == 0 or (month and not 1 <= int(month) <= 12):
        return None
    months = int(month or (12 if end else 1))
    last = calendar.monthrange(int(year), months)[1]
    # All months of a 360-day calendar have 30 days.
    if day and not 1 <= int(day) <= max(last, 30):
        return None
    found = datetime(int(year), months, min(int(day or (last if end else 1)), last))
    # No year 10000 in Python.
    return found if not end else found + timedelta(days=1) if found < _LAST else datetime.max


@lru_cache(maxsize=4096)
def parse_variables(text: str) -> tuple[str, ...]:
    """Return the variables of a cell: ``tasmax``, ``('tasmax',)`` or ``['tasmax', 'tasmin']``; none of any other text.

    Names in brackets may lack their quotes. A name without quotes has neither spaces nor punctuation.
    """
    text = text.strip()
    closing = _BRACKETS.get(text[:1])
    inner = text[1:-1] if closing else text
    if not inner.strip() or (closing and not text.endswith(closing)) or not _NAMES.fullmatch(inner):
        return ()
    names = list(dict.fromkeys("".join(groups).strip() for groups in _NAME.findall(inner)))
    if (not closing and len(names) > 1) or any(name in ABSENT or not name.isprintable() for name in names):
        return ()
    return tuple(names)


def _expected_id(text: str) -> str:
    try:
        check_wildcard("id", text)
    except ParameterError:
        fits = False
    else:
        # Luigi's page takes names for HTML.
        fits = text.isprintable() and not set("<>") & set(text)
    return "" if fits else "a name that can be part of a file name, without / \\ + < > and control characters"


def _expected_variables(text: str) -> str:
    return "" if parse_variables(text) else "the variables, as tasmax, ('tasmax',) or ['tasmax', 'tasmin']"


def _expected_frequency(text: str) -> str:
    return "" if _XRFREQ.fullmatch(text) else "a frequency in pandas' letters, as D, MS or fx"


def _expected_date(text: str) -> str:
    return "" if not text or _day(text, False) else _DATES


def _expected_format(text: str) -> str:
    return "" if not text or text.lower() in FORMATS else f"nc or zarr (also {', '.join(FORMATS)})"


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
    variables = {"".join(names) for names in _VARIABLE.findall(text)}
    if expected := expected_url(text):
        return expected
    if is_url(text):
        return "a URL without environment variables (write %24 for a dollar sign)" if variables else ""
    listing = ", ".join(f"${name}" for name in PATH_VARIABLES)
    return "" if variables <= set(PATH_VARIABLES) else f"a path with no other environment variables than {listing}"


_EXPECTED: dict[str, Callable[[str], str]] = {
    "id": _expected_id,
    "variable": _expected_variables,
    "xrfreq": _expected_frequency,
    "date_start": _expected_date,
    "date_end": _expected_date,
    "format": _expected_format,
    "path": _expected_path,
}
CHECKED = tuple(_EXPECTED)
"""The columns whose cells cannot hold any text."""


@lru_cache(maxsize=4096)
def fault_of(column: str, text: str) -> str:
    """Return a cell's fault and the expected content, as "is empty; expected …"; nothing for a sound cell."""
    expected = _EXPECTED[column](text) if column in _EXPECTED else ""
    shown = repr(text if len(text) <= 200 else f"{text[:200]}…") if text else "empty"
    return expected and f"is {shown}; expected {expected}"
