"""Tables: read by people, complete only with their marker."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from itertools import permutations
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from damaged import damaged
from hypothesis import given, settings

from espo_luigi import store
from espo_luigi.errors import InputChangedError, StoreError
from espo_luigi.export.folder import is_whole
from espo_luigi.store import table
from espo_luigi.store.inventory import check_inventory, has_fingerprint, size_bytes
from espo_luigi.store.publish import check_replaceable
from espo_luigi.store.table import read_checksums, read_table, write_checksums, write_table

needs_r = pytest.mark.skipif(shutil.which("Rscript") is None, reason="install r-base-core, which has Rscript")
MARKER = store.Marker("InputCheck", {"sim_id": "SIM"}, config_hash="0123456789ab")
ROWS = [
    {"problem": "units", "file": "/data/a b.nc", "message": 'units "parsnips", # of none'},
    {"problem": "grids", "file": "é.nc", "message": ""},
]


def test_a_table_is_complete_with_its_marker_and_read_by_others(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "table.csv"
    store.write_table(list(ROWS[0]), ROWS, path, MARKER)
    assert store.read_marker(path) == MARKER
    assert store.read_table(path) == ROWS
    assert pd.read_csv(path, keep_default_na=False).to_dict("records") == ROWS
    with path.open(newline="") as file:
        assert list(csv.DictReader(file, strict=True)) == ROWS
    assert sorted(file.name for file in path.parent.iterdir()) == ["table.csv", "table.csv.espo.json"]
    store.remove(path)
    assert list(path.parent.iterdir()) == []


@needs_r
def test_r_reads_a_table(tmp_path: Path) -> None:
    """Commas, quotes and an unknown number; one line of names."""
    rows = [{"region": 'Gasp\u00e9, "north"', "value": "-1.234e-05"}, {"region": "# of none", "value": ""}]
    store.write_table(["region", "value"], rows, tmp_path / "t.csv", MARKER)
    program = f"""
        t <- read.csv("{tmp_path}/t.csv", encoding = "UTF-8")
        stopifnot(is.numeric(t$value), nrow(t) == 2, names(t) == c("region", "value"), is.na(t$value[2]))
        cat(sprintf("%.9g|", t$value[1]), t$region, sep = "|")
    """
    said = subprocess.run(["Rscript", "-e", program], capture_output=True, text=True, check=True).stdout
    assert said == '-1.234e-05||Gasp\u00e9, "north"|# of none'


@pytest.mark.parametrize("stage", [0, 1, 2])
@pytest.mark.parametrize("marker", [MARKER, None])
def test_a_table_whose_publication_is_cut_short_is_not_complete_and_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: int, marker: store.Marker | None
) -> None:
    """Before the marker, before the table, and not at all; the table is whole, and former or new."""
    path, later = tmp_path / "t.csv", store.Marker("InputCheck", {"sim_id": "OTHER"})
    store.write_table(["a"], [{"a": "1"}], path, marker)
    begun, aside = iter(range(1, 9)), table.written_aside

    def cut_short(place: Path) -> object:
        if next(begun) > stage:
            raise KeyboardInterrupt
        return aside(place)

    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr(table, "written_aside", cut_short)
        store.write_table(["a"], [{"a": "2"}], path, later)
    assert store.read_marker(path) == (marker, None, later)[stage]
    assert store.read_table(path) == [{"a": "2" if stage == 2 else "1"}]
    for text in "345":
        store.write_table(["a"], [{"a": text}], path, later)
        assert store.read_marker(path) == later and store.read_table(path) == [{"a": text}]
    assert len(json.loads(path.with_name("t.csv.espo.json").read_text())["former"]) == 1


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize("order", sorted({*permutations("AAABBB")}), ids="".join)
def test_two_processes_that_write_a_table_at_once_leave_one_that_can_be_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: Sequence[str], is_there: bool
) -> None:
    """In all orders of the steps: look at the table that is there, marker, table."""
    path, turns, ended = tmp_path / "t.csv", {name: threading.Semaphore(0) for name in "AB"}, threading.Semaphore(0)
    for text in "x" * is_there:
        store.write_table(["a"], [{"a": text}], path, MARKER)
    aside, refused = table.written_aside, list[str]()

    def in_turn(place: Path) -> object:
        ended.release()
        turns[threading.current_thread().name].acquire()
        return aside(place)

    def write() -> None:
        name = threading.current_thread().name
        turns[name].acquire()
        try:
            store.write_table(["a"], [{"a": name}], path, store.Marker(name))
        except StoreError:
            refused.append(name)
        ended.release()

    with monkeypatch.context() as patch:
        patch.setattr(table, "written_aside", in_turn)
        threads = [threading.Thread(target=write, name=name) for name in "AB"]
        for thread in threads:
            thread.start()
        for name in order:
            if name not in refused:
                turns[name].release()
                assert ended.acquire(timeout=10)
        for thread in threads:
            thread.join()
    marker = store.read_marker(path)
    assert len(refused) < 2
    assert marker is None or store.read_table(path) == [{"a": marker.task}]
    store.write_table(["a"], [{"a": "3"}], path, MARKER)
    assert store.read_marker(path) == MARKER and store.read_table(path) == [{"a": "3"}]


@pytest.mark.parametrize("columns", ["problem,file", "problem"])
def test_a_table_of_an_earlier_version_is_told(tmp_path: Path, columns: str) -> None:
    """Its marker is the last line."""
    path = tmp_path / "t.csv"
    path.write_text(f'{columns}\n# espo.json: {{"task": "InputCheck"}}\n')
    for refused in (
        store.read_table,
        store.remove,
        lambda path: store.write_table(["problem"], [], path, MARKER),
        check_replaceable,
    ):
        with pytest.raises(StoreError, match=r"an earlier version of espo_luigi wrote it.* delete it"):
            refused(path)
    path.unlink()
    store.write_table(["problem"], [], path, MARKER)
    assert store.is_complete(path)


@pytest.mark.parametrize("bytes_", [b"a\n2\n", b"a\n1", b""])
def test_a_table_that_does_not_fit_its_marker_is_not_complete(tmp_path: Path, bytes_: bytes) -> None:
    path = tmp_path / "t.csv"
    store.write_table(["a"], [{"a": "1"}], path, MARKER)
    path.write_bytes(bytes_)
    assert not store.is_complete(path)
    with pytest.raises(StoreError, match="it was changed after it was written, as its checksum shows"):
        store.write_table(["a"], [{"a": "1"}], path, MARKER)
    assert path.read_bytes() == bytes_


def test_a_table_without_its_marker_is_there_to_be_read_and_not_complete(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    store.write_table(list(ROWS[0]), ROWS, path, MARKER)
    store.write_table(list(ROWS[0]), ROWS, path, None)
    assert not store.is_complete(path)
    assert store.read_table(path) == ROWS


def test_an_empty_table_is_complete_too_and_half_of_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    store.write_table(["problem"], [], path, MARKER)
    assert store.is_complete(path) and store.read_table(path) == []
    path.write_bytes(path.read_bytes()[:-20])
    assert not store.is_complete(path)
    path.unlink()
    assert not store.is_complete(path)
    with pytest.raises(StoreError, match="cannot read the table"):
        store.read_table(path)


def test_nothing_is_published_after_a_table_was_replaced(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    store.write_table(["problem"], [], path, MARKER)
    with pytest.raises(InputChangedError, match=r"table\.csv"), store.unchanged([path]):
        store.write_table(["problem"], [{"problem": "units"}], path, store.Marker("InputCheck", {}))
        store.write_table(["problem"], [], tmp_path / "other.csv", MARKER)
    assert not (tmp_path / "other.csv").exists()


def test_a_message_with_other_ends_of_lines_stays_one_cell(tmp_path: Path) -> None:
    rows = [{"problem": "units", "message": "a\x85b\u2028c\x1cd"}, {"problem": "x", "message": "two\n\nlines"}]
    store.write_table(list(rows[0]), rows, tmp_path / "table.csv", MARKER)
    assert store.read_table(tmp_path / "table.csv") == rows


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"problem,file\nunits\n", "more or fewer cells than the 2 columns"),
        (b"problem,file\nunits,a,b\n", "more or fewer cells than the 2 columns"),
        (b"problem\nunits\n", "has no column file; expected problem, file"),
        (b"", "has no column problem, file"),
        (b'problem,file\n"units,a\n', "is damaged"),
        (b"problem,file\n\xff,a\n", "cannot read the table"),
    ],
)
def test_a_damaged_table_is_told(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=rf"{said}.*run the task that makes it again"):
        store.read_table(path, ("problem", "file"))


@pytest.mark.parametrize("line", ["0123  a.nc", "x", f"{'0' * 64} a.nc", f"{'0' * 64}  ../../a.nc", "[1, 2]"])
def test_damaged_checksums_are_told(tmp_path: Path, line: str) -> None:
    path = tmp_path / "a.sha256"
    write_checksums({"a.nc": "0" * 64}, path, MARKER)
    assert read_checksums(path) == {"a.nc": "0" * 64}
    path.write_text(f"{line}\n{path.read_text()}")
    with pytest.raises(StoreError, match=r"a\.sha256: got .*, expected a SHA-256 and the name of a file"):
        read_checksums(path)
    assert not is_whole(path)


WHOLE = store.Marker("Train", {"a": "b"}, {"xarray": "1"}, {"/x.zarr": "0123"}, "ab", {"files of x": "12"})
IN_A_STORE = {**json.loads(WHOLE.to_json()), "inventory": {"files": 3, "size_bytes": 12}, "fingerprint": "ab"}


@settings(deadline=None, max_examples=60)
@given(damaged(IN_A_STORE))
def test_a_marker_of_any_shape_is_a_marker_or_told(tmp_path_factory: pytest.TempPathFactory, content: Any) -> None:
    try:
        found = store.Marker.from_json(json.dumps(content))
    except StoreError as error:
        assert "not a marker" in str(error)
    else:
        assert all(isinstance(one, str) for one in (found.id, *found.raw.values(), *found.inputs.values()))
    folder = tmp_path_factory.mktemp("store")
    (folder / "espo.json").write_text(json.dumps(content))
    with suppress(StoreError):
        check_inventory(folder)
    assert not has_fingerprint(folder, "other")
    assert size_bytes(folder) is not None


def test_no_cell_is_a_formula_and_numbers_stay(tmp_path: Path) -> None:
    texts = [
        "=HYPERLINK(1)",
        "@SUM(1)",
        "+cmd",
        "-cmd|' /C'!A0",
        "\t=1",
        "-3.2",
        "+1e-05",
        "-inf",
        "",
        "a=1",
        "-0.5e+3",
    ]
    write_table(["a", "n"], [{"a": text, "n": "1"} for text in texts], tmp_path / "t.csv", None)
    found = [row["a"] for row in read_table(tmp_path / "t.csv")]
    assert found == [f"'{text}" for text in texts[:5]] + texts[5:]
