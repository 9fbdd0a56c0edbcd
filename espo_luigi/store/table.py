"""Tables, whose marker lies beside them; pages and checksums, whose last line, a comment, is the marker."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from espo_luigi.errors import StoreError, as_cell
from espo_luigi.files import read_text, write_new
from espo_luigi.redaction import without_secrets
from espo_luigi.replacing import by_digest, check_ours, why_not
from espo_luigi.store.disk import disk_errors
from espo_luigi.store.inventory import digest_of
from espo_luigi.store.marker import (
    OF_EARLIER_VERSION,
    PAGE_END,
    PAGE_MARK,
    REMAKE,
    SUMS_MARK,
    Marker,
    digests_of,
    marked,
    marker_beside,
    render,
)
from espo_luigi.store.publish import written_aside

Row = Mapping[str, str]
_PICTURE = re.compile(r"(data:[\w/+.-]+;base64,[\w+/=]*)", re.ASCII)


def write_table(
    columns: Sequence[str], rows: Iterable[Row], path: Path, marker: Marker | None, beside: Collection[Path] = ()
) -> None:
    """Write a table and publish it atomically; a table without a marker can be read, but is not complete.

    The marker beside it has the SHA-256 of the table ("") and of files `beside`, by name. It is written first, and also
    has the SHA-256 that the table may have until it is replaced: the table is ours whenever the process ends.
    Raises `StoreError` if the disk refuses, something else is at the path, or another process writes the table.
    """
    text = table_text(columns, rows)
    sums = {"": hashlib.sha256(text.encode()).hexdigest(), **{file.name: digest_of(file) for file in beside}}
    with disk_errors(path, "write"):
        check_ours(path, marked(path))
    known = digests_of(path)
    former = known if why_not(path, by_digest(known[:1])) else known[:1]
    mark = render(_with_sums(marker, sums) | {"former": former})
    for at, content in ((marker_beside(path), mark), (path, text)):
        with written_aside(at) as partial:
            write_new(partial, content, durable=True)
            # Otherwise a table could be left whose SHA-256 is in no marker.
            noted = digests_of(path)
            if sums[""] not in noted if at == path else noted != known:
                raise StoreError(f"{path} was not written: another process writes it. Run the task again")


def table_text(columns: Sequence[str], rows: Iterable[Row]) -> str:
    """Return the text of a table without a marker."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: as_cell(without_secrets(value)) for name, value in row.items()} for row in rows)
    return text.getvalue()


def read_table(path: Path, columns: Collection[str] = ()) -> list[Row]:
    """Read the rows of a table, complete or not.

    Raises
    ------
    StoreError
        If the file is missing, cannot be read, is of an earlier version, or lacks a cell or one of `columns`.
    """
    text = _text(path, "table")
    if text.rstrip("\n").rpartition("\n")[2].startswith(f"{SUMS_MARK}{{"):
        raise StoreError(f"{path}: {OF_EARLIER_VERSION}; {REMAKE}")
    # Only these ends of lines: a message may hold other characters that Python takes for ends.
    reader = csv.DictReader(io.StringIO(text, newline="\n"), strict=True)
    try:
        rows: list[Row] = list(reader)
    except csv.Error as error:
        raise StoreError(f"{path} is damaged ({error}); {REMAKE}") from error
    header = reader.fieldnames or []
    if missing := [name for name in columns if name not in header]:
        raise StoreError(f"{path} has no column {', '.join(missing)}; expected {', '.join(columns)}; {REMAKE}")
    if any(None in row or None in row.values() for row in rows):
        raise StoreError(f"{path}: a row has more or fewer cells than the {len(header)} columns; {REMAKE}")
    return rows


def page_text(html: str, marker: Marker | None) -> str:
    """Return a page of HTML without secrets, and with its marker as the last line."""
    # Pictures are no text, and might hold by chance what looks like a secret.
    parts = _PICTURE.split(html.rstrip("\n"))
    text = "".join(part if number % 2 else without_secrets(part) for number, part in enumerate(parts)) + "\n"
    if marker is None:
        return text
    # The marker must not contain the end of the comment.
    mark = _in_one_line(marker, text).replace(">", "\\u003e")
    return f"{text}{PAGE_MARK}{mark}{PAGE_END}\n"


def write_page(html: str, path: Path, marker: Marker | None) -> None:
    """Write a page of HTML and publish it atomically, with its marker as the last line.

    Raises `StoreError` if the disk refuses, or the path has what is no page of ours.
    """
    with written_aside(path) as partial:
        write_new(partial, page_text(html, marker))


def write_checksums(sums: Mapping[str, str], path: Path, marker: Marker) -> None:
    """Write the SHA-256 of files beside it, by name, for ``sha256sum -c``, and publish it atomically.

    Raises `StoreError` if the disk refuses.
    """
    text = "".join(f"{digest}  {name}\n" for name, digest in sums.items())
    mark = _in_one_line(marker, text)
    with written_aside(path) as partial:
        write_new(partial, f"{text}{SUMS_MARK}{mark}\n", durable=True)


def read_checksums(path: Path) -> dict[str, str]:
    """Read what `write_checksums` has written: the SHA-256 of each file, by name. Raises as `checksum_pairs` does."""
    return dict(checksum_pairs(path))


def checksum_pairs(path: Path) -> list[tuple[str, str]]:
    """Read names of files, each with a SHA-256; a name may have several.

    Raises `StoreError` if the file is missing, cannot be read, or holds something else.
    """
    lines = [line.removesuffix("\r") for line in _text(path, "checksums").split("\n")]
    lines = [line for line in lines if line and not line.startswith("#")]
    found = [re.fullmatch(r"([0-9a-f]{64})  ([^/\0]+)", line) for line in lines]
    if None in found:
        line = lines[found.index(None)]
        raise StoreError(f"{path}: got {line[:100]!r}, expected a SHA-256 and the name of a file beside it; {REMAKE}")
    return [(match[2], match[1]) for match in found if match]


def _text(path: Path, what: str) -> str:
    try:
        return read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"cannot read the {what} {path} ({error}); {REMAKE}") from error


def _with_sums(marker: Marker | None, sums: Mapping[str, str]) -> dict[str, Any]:
    """The marker with checksums; without a marker, the file is ours, and not complete."""
    return (json.loads(marker.to_json()) if marker is not None else {}) | {"sha256": sums}


def _in_one_line(marker: Marker | None, text: str) -> str:
    sums = {"": hashlib.sha256(text.encode()).hexdigest()}
    return json.dumps(_with_sums(marker, sums), sort_keys=True, ensure_ascii=False)
