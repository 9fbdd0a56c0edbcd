"""Tables, pages and checksums: CSV, HTML and SHA256 files whose last line, a comment, is the marker."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from espo_luigi.errors import StoreError
from espo_luigi.files import read_text, write_new
from espo_luigi.store.marker import PAGE_END, PAGE_MARK, REMAKE, TABLE_MARK, Marker
from espo_luigi.store.publish import written_aside

Row = Mapping[str, str]
# In the place of the marker: the file is ours, and not complete.
_INCOMPLETE = "{}"


def write_table(columns: Sequence[str], rows: Sequence[Row], path: Path, marker: Marker | None) -> None:
    """Write a table and publish it atomically; a table without a marker can be read, but is not complete.

    Raises
    ------
    StoreError
        If the disk refuses, or the path has what is no table of ours.
    """
    mark = _in_one_line(marker) if marker is not None else _INCOMPLETE
    with written_aside(path) as partial:
        write_new(partial, f"{table_text(columns, rows)}{TABLE_MARK}{mark}\n")


def table_text(columns: Sequence[str], rows: Sequence[Row]) -> str:
    """Return the text of a table without a marker."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def read_table(path: Path) -> list[Row]:
    """Read the rows of a table, complete or not.

    Raises
    ------
    StoreError
        If the file is missing or cannot be read.
    """
    try:
        return list(csv.DictReader(_lines(path, "table")))
    except csv.Error as error:
        raise StoreError(f"cannot read the table {path} ({error}); {REMAKE}") from error


def page_text(html: str, marker: Marker | None) -> str:
    """Return a page of HTML with its marker as the last line."""
    # The marker must not contain the end of the comment.
    line = f"{PAGE_MARK}{_in_one_line(marker).replace('>', chr(92) + 'u003e')}{PAGE_END}\n" if marker else ""
    return html.rstrip("\n") + "\n" + line


def write_page(html: str, path: Path, marker: Marker | None) -> None:
    """Write a page of HTML and publish it atomically, with its marker as the last line.

    Raises
    ------
    StoreError
        If the disk refuses, or the path has what is no page of ours.
    """
    with written_aside(path) as partial:
        write_new(partial, page_text(html, marker))


def write_checksums(sums: Mapping[str, str], path: Path, marker: Marker) -> None:
    """Write the SHA-256 of files beside it, by name, for ``sha256sum -c``, and publish it atomically.

    Raises
    ------
    StoreError
        If the disk refuses.
    """
    lines = [f"{digest}  {name}\n" for name, digest in sums.items()]
    with written_aside(path) as partial:
        write_new(partial, "".join(lines) + TABLE_MARK + _in_one_line(marker) + "\n", durable=True)


def read_checksums(path: Path) -> dict[str, str]:
    """Read what `write_checksums` has written: the SHA-256 of each file, by name.

    Raises
    ------
    StoreError
        If the file is missing or cannot be read.
    """
    pairs = (line.split("  ", 1) for line in _lines(path, "checksums") if not line.startswith("#"))
    return {name: digest for digest, name in pairs}


def _lines(path: Path, what: str) -> list[str]:
    """The lines of a file, but the marker's."""
    try:
        lines = read_text(path).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"cannot read the {what} {path} ({error}); {REMAKE}") from error
    return [line for line in lines if not line.startswith(TABLE_MARK)]


def _in_one_line(marker: Marker) -> str:
    return json.dumps(json.loads(marker.to_json()), sort_keys=True, ensure_ascii=False)
