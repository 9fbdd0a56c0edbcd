"""Tables: read by people, complete only with their marker."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from espo_luigi import store
from espo_luigi.errors import InputChangedError, StoreError

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
    frame = pd.read_csv(path, keep_default_na=False, skipfooter=1, engine="python")
    assert frame.to_dict("records") == ROWS
    assert [file.name for file in path.parent.iterdir()] == ["table.csv"]


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
