"""Tables that people read: CSV files whose last line, a comment, is the marker."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from espo_luigi.errors import StoreError
from espo_luigi.files import write_new
from espo_luigi.store.marker import MARKER_NAME, REMAKE, Marker
from espo_luigi.store.publish import written_aside

Row = Mapping[str, str]
_MARK = f"# {MARKER_NAME}: "
_PAGE_MARK, _PAGE_END = f"<!-- {MARKER_NAME}: ", " -->"
# A page may have megabytes; a marker with some thousand inputs is the longest line of interest.
_LONGEST_MARKER = 4 * 2**20


def write_table(columns: Sequence[str], rows: Sequence[Row], path: Path, marker: Marker | None) -> None:
    """Write a table and publish it atomically; without a marker it is there to be read, and is not complete.

    Raises
    ------
    StoreError
        If the disk refuses.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    if marker is not None:
        text.write(_MARK + _in_one_line(marker) + "\n")
    with written_aside(path) as partial:
        write_new(partial, text.getvalue())


def read_table(path: Path) -> list[Row]:
    """Read the rows of a table, complete or not.

    Raises
    ------
    StoreError
        If it is not there or cannot be read.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"cannot read the table {path} ({error}); {REMAKE}") from error
    return list(csv.DictReader(line for line in lines if not line.startswith(_MARK)))


def write_page(html: str, path: Path, marker: Marker | None) -> None:
    """Write a page of HTML and publish it atomically; its last line, a comment, is the marker, if there is one.

    Raises
    ------
    StoreError
        If the disk refuses.
    """
    # Nothing inside of a comment may look like its end.
    line = f"{_PAGE_MARK}{_in_one_line(marker).replace('>', chr(92) + 'u003e')}{_PAGE_END}\n" if marker else ""
    with written_aside(path) as partial:
        write_new(partial, html.rstrip("\n") + "\n" + line)


def _in_one_line(marker: Marker) -> str:
    return json.dumps(json.loads(marker.to_json()), sort_keys=True, ensure_ascii=False)


def marker_line(path: Path) -> str | None:
    """Return the text of the marker of a table or a page, None if it has none; raises as reading a file does."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, 2) - _LONGEST_MARKER))
        last = file.read().rstrip(b"\n").rpartition(b"\n")[2].decode("utf-8")
    if last.startswith(_PAGE_MARK) and last.endswith(_PAGE_END):
        return last.removeprefix(_PAGE_MARK).removesuffix(_PAGE_END)
    return last.removeprefix(_MARK) if last.startswith(_MARK) else None
