"""Reading catalogues that hypothesis spells and damages: no row is misread, and none vanishes silently."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from espo_luigi.catalog import Asset, read_catalogue
from espo_luigi.errors import CatalogError

QUICK = settings(max_examples=80, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])

COLUMNS = ("id", "source", "xrfreq", "variable", "date_start", "date_end", "format", "path")
NAMES = st.sampled_from(["tasmax", "tasmin", "pr", "dtr", "2t", "tas_mean", "near-surface"])
WORDS = st.text("abzAZ09_-.+= é", min_size=1, max_size=8).map(str.strip).filter(lambda text: text not in ("", "nan"))
DAYS = st.dates(datetime(1850, 1, 1).date(), datetime(2300, 12, 28).date())


@dataclass(frozen=True)
class Spelled:
    """A value and a way to write it in a cell."""

    value: Any
    text: str


@st.composite
def spelled_variables(draw: st.DrawFn) -> Spelled:
    names = draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
    quote = draw(st.sampled_from(["'", '"', ""]))
    opening, closing = draw(st.sampled_from(["()", "[]", "{}"]))
    inner = draw(st.sampled_from([",", ", ", " , "])).join(f"{quote}{name}{quote}" for name in names)
    forms = [f"{opening}{inner}{closing}", f"{opening}{inner},{closing}", f"{opening} {inner} {closing}"]
    if len(names) == 1:
        forms += [names[0], repr(names[0])]
    return Spelled(tuple(names), draw(st.sampled_from(forms)))


@st.composite
def spelled_days(draw: st.DrawFn) -> tuple[Spelled, Spelled]:
    """The first and the last day of a file: `value` is where they begin and end."""
    first = draw(DAYS)
    last = first + timedelta(days=draw(st.integers(0, 1000)))
    hour = draw(st.sampled_from(["", " 00:00", " 12:00:00", "T12:00:00Z", " 0:00", "T00:00:00.000000000", "T12"]))
    form = draw(st.sampled_from(["%Y-%m-%d", "%Y%m%d"]))
    start, end = datetime(first.year, first.month, first.day), datetime(last.year, last.month, last.day)
    if draw(st.booleans()):
        year = datetime(first.year, 1, 1)
        return Spelled(year, f"{first.year}"), Spelled(end + timedelta(days=1), end.strftime(form) + hour)
    return Spelled(start, start.strftime(form) + hour), Spelled(end + timedelta(days=1), end.strftime(form) + hour)


@st.composite
def rows(draw: st.DrawFn) -> list[dict[str, Spelled]]:
    count = draw(st.integers(1, 4))
    result = []
    for number in range(count):
        start, end = draw(spelled_days())
        name, source = draw(WORDS), draw(WORDS)
        folder = draw(st.text('ab ,é+="', max_size=6))
        frequency, kind = (
            draw(st.sampled_from(["D", "MS", "QS-DEC", "3h", "fx"])),
            draw(st.sampled_from(["nc", "zarr"])),
        )
        cells = {
            "id": f"{name}_{number}".replace("+", "-"),
            "source": source,
            "xrfreq": frequency,
            "format": kind,
            "path": f"/data/{folder}/{number}.nc",
        }
        row = {column: Spelled(text, text) for column, text in cells.items()}
        result.append(row | {"variable": draw(spelled_variables()), "date_start": start, "date_end": end})
    return result


def quoted(text: str, always: bool) -> str:
    """A cell as RFC 4180 writes it."""
    needed = always or any(character in text for character in ',"\r\n') or text.strip() != text
    return '"' + text.replace('"', '""') + '"' if needed else text


@st.composite
def tables(draw: st.DrawFn, wanted: Sequence[dict[str, Spelled]]) -> str:
    """A CSV file with the rows, in an odd but valid spelling."""
    extra = draw(st.lists(st.sampled_from(["note", "version", "my column"]), max_size=2, unique=True))
    columns = draw(st.permutations([*COLUMNS, *extra]))
    notes = st.text('ab,"\n ', max_size=5)
    space = st.sampled_from(["", "", "", " ", "  "])
    end = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    lines = [",".join(draw(space) + quoted(column, draw(st.booleans())) for column in columns)]
    for row in wanted:
        texts = [row[column].text if column in row else draw(notes) for column in columns]
        lines.append(",".join(draw(space) + quoted(text, draw(st.booleans())) for text in texts))
        lines += draw(st.sampled_from([[], [], [""], ["," * (len(columns) - 1)]]))
    return end.join(lines) + draw(st.sampled_from(["", end, end + end]))


def catalogue(folder: Path, content: bytes, zipped: bool = False, **description: Any) -> Path:
    name = "cat.csv.gz" if zipped else "cat.csv"
    (folder / name).write_bytes(gzip.compress(content, 1) if zipped else content)
    path = folder / "cat.json"
    path.write_text(json.dumps({"catalog_file": name} | description))
    return path


@QUICK
@given(st.data(), rows(), st.booleans(), st.booleans())
def test_odd_but_valid_spellings_give_exactly_the_rows_that_were_written(
    data: st.DataObject, wanted: list[dict[str, Spelled]], marked: bool, zipped: bool
) -> None:
    content = data.draw(tables(wanted)).encode("utf-8-sig" if marked else "utf-8")
    with tempfile.TemporaryDirectory() as folder:
        assets = read_catalogue(catalogue(Path(folder), content, zipped))
    assert [asset.faults for asset in assets] == [{}] * len(wanted)
    for asset, row in zip(assets, wanted, strict=True):
        assert asset.variables == row["variable"].value
        assert (asset.start, asset.end) == (row["date_start"].value, row["date_end"].value)
        assert asset.path == str(Path(row["path"].value))
        for column in ("id", "source", "xrfreq", "format"):
            assert asset.columns[column] == row[column].value


SOUND = [
    ["CMIP6_A", "CanESM5", "D", "('tasmax', 'tasmin')", "2015-01-01 00:00", "2100-12-31 00:00", "nc", "/data/a.nc"],
    ["CMIP6_B", "MIROC6", "MS", "('pr',)", "2015", "2100", "zarr", "/data/b.zarr"],
    ["CMIP6_C", "ERA5", "D", "tasmax", "20150101", "20201230", "nc", "/data/c.nc"],
    ["CMIP6_D", "ERA5", "D", "pr", "2015-01-01T12:00:00Z", "2015-12", "nc", "/data/d.nc"],
]
LINES = [",".join(COLUMNS), *(",".join(quoted(cell, False) for cell in row) for row in SOUND)]
TABLE = "".join(f"{line}\n" for line in LINES).encode()
PIECES = st.sampled_from(
    [piece.encode() for piece in ",\"\n\r\0 \t'()[]{}/\\-0179AxDé\u2028\ufeff"] + [b"\xff", b"\xc3"]
)


def touched(position: int) -> set[tuple[int, str]]:
    """The line (from 0) and the column of the cells at both sides of a place of `TABLE`."""
    found = set()
    for place in (position - 1, position, position + 1):
        if 0 <= place <= len(TABLE):
            before = TABLE[:place].decode().split("\n")
            cells = before[-1].split('"')
            commas = sum(part.count(",") for part in cells[::2])
            found.add((len(before) - 1, COLUMNS[min(commas, len(COLUMNS) - 1)]))
    return found


def told(asset: Asset, without: set[str]) -> dict[str, Any]:
    """What is known of an asset, but for some columns."""
    told = {column: cell for column, cell in asset.columns.items() if column in COLUMNS and column not in without}
    derived = {"variable": asset.variables, "date_start": asset.start, "date_end": asset.end}
    return told | {f"its {column}": value for column, value in derived.items() if column not in without}


def original() -> list[Asset]:
    with tempfile.TemporaryDirectory() as folder:
        return read_catalogue(catalogue(Path(folder), TABLE))


ORIGINAL = original()


@settings(QUICK, max_examples=500)
@given(st.integers(0, len(TABLE)), st.integers(0, 1), st.just(b"") | PIECES)
@example(TABLE.index(b"\n") + 1, 0, b'"')
@example(len(TABLE) - 1, 0, b'"')
@example(TABLE.index(b"2100-12"), 1, b"")
def test_a_changed_character_is_an_error_or_changes_only_its_own_cell(
    position: int, dropped: int, piece: bytes
) -> None:
    content = TABLE[:position] + piece + TABLE[position + dropped :]
    with tempfile.TemporaryDirectory() as folder:
        try:
            assets = read_catalogue(catalogue(Path(folder), content))
        except CatalogError as error:
            assert str(Path(folder) / "cat.csv") in str(error)
            return
    places = touched(position)
    assert len(assets) == len(ORIGINAL), "no row vanishes"
    for line, (now, before) in enumerate(zip(assets, ORIGINAL, strict=True), start=1):
        changed = {column for number, column in places if number in (0, line)}
        # A start after the end is said of the end.
        assert set(now.faults) <= changed | ({"date_end"} if "date_start" in changed else set())
        if not now.faults:
            assert told(now, changed) == told(before, changed)


@QUICK
@given(st.lists(st.sampled_from(LINES[1:]), max_size=8), st.booleans())
def test_rows_that_are_removed_repeated_or_moved_are_read_as_they_stand(lines: list[str], zipped: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = catalogue(Path(folder), "\n".join([LINES[0], *lines]).encode(), zipped)
        assert read_catalogue(path) == [ORIGINAL[LINES.index(line) - 1] for line in lines]


def test_a_table_that_was_cut_anywhere_lacks_only_what_the_file_lacks(tmp_path: Path) -> None:
    for length in range(len(TABLE)):
        lines = TABLE[:length].decode().split("\n")
        try:
            assets = read_catalogue(catalogue(tmp_path, TABLE[:length]))
        except CatalogError as error:
            assert str(tmp_path / "cat.csv") in str(error)
            assert lines[-1] or length == 0, "a whole table of fewer lines is no error"
            continue
        assert lines[0] == LINES[0], "a header that was cut is an error"
        whole = [line for line in lines[1:-1] if line]
        assert assets[: len(whole)] == ORIGINAL[: len(whole)]
        assert len(assets) == len(whole) + bool(lines[-1] and len(lines) > 1)


@QUICK
@given(st.data())
def test_damaged_compression_gives_the_same_rows_or_an_error(data: st.DataObject) -> None:
    content = bytearray(gzip.compress(TABLE, mtime=0))
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with tempfile.TemporaryDirectory() as folder:
        path = catalogue(Path(folder), TABLE, zipped=True)
        (Path(folder) / "cat.csv.gz").write_bytes(content)
        try:
            assert read_catalogue(path) == ORIGINAL
        except CatalogError as error:
            assert str(Path(folder) / "cat.csv.gz") in str(error)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6)
CELLS = SCALARS | st.sampled_from(["pr", "('pr',)", "D", "2015", "/a.nc"]) | st.lists(SCALARS, max_size=2)
ROWS = st.lists(st.dictionaries(st.sampled_from(COLUMNS), CELLS) | SCALARS, max_size=4)
SECTIONS = st.dictionaries(st.sampled_from(["column_name", "variable_column_name"]), SCALARS | st.sampled_from(COLUMNS))
DESCRIPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "catalog_file": SCALARS,
        "catalog_dict": ROWS | SECTIONS | SCALARS,
        "assets": SECTIONS | CELLS,
        "aggregation_control": SECTIONS | CELLS,
    },
)


@QUICK
@given(DESCRIPTIONS)
def test_a_description_of_any_kind_is_read_or_is_an_error_that_names_it(description: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cat.json"
        path.write_text(json.dumps(description))
        try:
            assets = read_catalogue(path)
        except CatalogError as error:
            assert str(path) in str(error)
            return
    rows = description["catalog_dict"]
    assert len([row for row in rows if row.get("path") == "/a.nc"]) <= len(assets) <= len(rows)
