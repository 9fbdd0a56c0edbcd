"""Tables that people read: CSV files whose last line, a comment, is the marker."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from espo_luigi.errors import StoreError
from espo_luigi.store.marker import MARKER_NAME, REMAKE, Marker
from espo_luigi.store.publish import written_aside

Row = Mapping[str, str]
_MARK = f"# {MARKER_NAME}: "


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
        text.write(_MARK + json.dumps(json.loads(marker.to_json()), sort_keys=True, ensure_ascii=False) + "\n")
    with written_aside(path) as partial:
        partial.write_text(text.getvalue(), encoding="utf-8")


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


def marker_line(path: Path) -> str | None:
    """Return the text of a table's marker, None if it has none; raises as reading a file does."""
    last = path.read_text(encoding="utf-8").rstrip("\n").rpartition("\n")[2]
    return last.removeprefix(_MARK) if last.startswith(_MARK) else None
