"""Tables, pages and checksums: CSV, HTML and SHA256 files whose last line, a comment, is the marker."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from espo_luigi.errors import StoreError
from espo_luigi.files import write_new
from espo_luigi.redaction import without_secrets
from espo_luigi.store.marker import PAGE_END, PAGE_MARK, REMAKE, TABLE_MARK, Marker
from espo_luigi.store.publish import written_aside

Row = Mapping[str, str]


def write_table(columns: Sequence[str], rows: Sequence[Row], path: Path, marker: Marker | None) -> None:
    """Write a table and publish it atomically; a table without a marker can be read, but is not complete.

    Raises
    ------
    StoreError
        If the disk refuses.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: without_secrets(value) for name, value in row.items()} for row in rows)
    if marker is not None:
        text.write(TABLE_MARK + _in_one_line(marker) + "\n")
    with written_aside(path) as partial:
        write_new(partial, text.getvalue())


def read_table(path: Path) -> list[Row]:
    """Read the rows of a table, complete or not.

    Raises
    ------
    StoreError
        If the file is missing or cannot be read.
    """
    return list(csv.DictReader(_lines(path, "table")))


def write_page(html: str, path: Path, marker: Marker | None) -> None:
    """Write a page of HTML and publish it atomically, with its marker as the last line.

    Raises
    ------
    StoreError
        If the disk refuses.
    """
    # The marker must not contain the end of the comment.
    line = f"{PAGE_MARK}{_in_one_line(marker).replace('>', chr(92) + 'u003e')}{PAGE_END}\n" if marker else ""
    with written_aside(path) as partial:
        write_new(partial, without_secrets(html.rstrip("\n")) + "\n" + line)


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
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"cannot read the {what} {path} ({error}); {REMAKE}") from error
    return [line for line in lines if not line.startswith(TABLE_MARK)]


def _in_one_line(marker: Marker) -> str:
    return json.dumps(json.loads(marker.to_json()), sort_keys=True, ensure_ascii=False)
