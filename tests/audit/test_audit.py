"""Finding land cells, and drawing them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import xarray as xr

from espo_luigi import store
from espo_luigi.audit import cells, sample
from espo_luigi.audit.value import other_versions, step_of
from espo_luigi.errors import DataError, ParameterError
from espo_luigi.store.marker import processor

# Two pieces of two rows each; # is land.
MAPS = {"south": ("##.", ".##"), "north": ("#..", "...")}


@pytest.fixture()
def run(monkeypatch: pytest.MonkeyPatch) -> object:
    """Any object that stands for a run, with the land above."""

    def land(piece: str, rows: tuple[str, ...], south: float) -> cells.Land:
        is_land = np.array([[letter == "#" for letter in row] for row in rows])
        lat, lon = south + np.arange(2) / 2, -70 + np.arange(3) / 2
        grid = xr.Dataset({"land": (("lat", "lon"), is_land)}, {"lat": lat, "lon": lon})
        each = np.meshgrid(lat, lon, indexing="ij")
        return cells.Land(piece, grid, each[0].ravel(), each[1].ravel())

    found = tuple(land(piece, rows, 45 + 1.0 * index) for index, (piece, rows) in enumerate(MAPS.items()))
    monkeypatch.setattr(cells, "lands", lambda run: found)
    return object()


@pytest.mark.parametrize("turn", [0, 360])
def test_a_point_lies_in_the_nearest_cell_of_any_piece_and_any_count_of_longitudes(run: object, turn: int) -> None:
    found = cells.find_cell(run, 45.6, -69.4 + turn)  # type: ignore[arg-type]
    assert (found.piece, found.place, found.row, found.column) == ("south", 2, 1, 1)
    assert cells.find_cell(run, 46.1, -70.1).piece == "north"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("lat", "lon", "said"),
    [
        (46.5, -69.5, "lies in a cell of the sea .*The nearest land cell is 46 °N -70 °E"),
        (45.0, -60.0, r"outside of the domain: the nearest cell, 45.5 °N -69 °E, is 70\d km away"),
    ],
)
def test_a_point_in_the_sea_or_outside_is_refused(run: object, lat: float, lon: float, said: str) -> None:
    with pytest.raises(ParameterError, match=said):
        cells.find_cell(run, lat, lon)  # type: ignore[arg-type]


def test_a_sample_draws_each_land_cell_and_no_sea_and_again_the_same(run: object) -> None:
    samples = sample.draw(run, ["a", "b"], 500, 7)  # type: ignore[arg-type]
    drawn = Counter((one.cell.piece, one.cell.place) for one in samples)
    assert set(drawn) == {*(("south", place) for place in range(4)), ("north", 0)}
    assert min(drawn.values()) > 60
    assert Counter(one.sim_id for one in samples) == {"a": 250, "b": 250}
    assert samples == sample.draw(run, ["a", "b"], 500, 7)  # type: ignore[arg-type]
    assert samples != sample.draw(run, ["a", "b"], 500, 8)  # type: ignore[arg-type]


def test_cells_that_draw_random_numbers_together_are_made_again_in_their_whole_block(
    run: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    def adjusted(given: cells.Series, only: Sequence[str]) -> cells.Series:
        # One draw for each block, as of xsdba: of another group of cells, it is another.
        draw = np.random.default_rng(given.places.tolist()).random()
        ds = given.members["a"]
        return replace(given, adjusted={"pr": ds + draw})

    def raw(run: object, sim_id: str, places: Mapping[str, np.ndarray]) -> dict[str, xr.Dataset]:
        return {piece: xr.Dataset({"pr": ("loc", some.astype(float))}) for piece, some in places.items()}

    def series(pool: str, piece: str, places: np.ndarray, members: Mapping[str, xr.Dataset]) -> cells.Series:
        return cells.Series(pool, piece, places, [], members)

    def of(places: np.ndarray) -> cells.Series:
        return series("p", "south", places, {"a": raw(run, "a", {"south": places})["south"]})

    whole = [adjusted(of(places), ()) for places in (np.arange(3), np.arange(3, 4))]
    monkeypatch.setattr(cells, "adjust", adjusted)
    monkeypatch.setattr(cells, "from_raw", raw)
    monkeypatch.setattr(cells, "series_of", series)
    monkeypatch.setattr(cells, "cells_drawn_together", lambda given, only: 3)
    context: Any = SimpleNamespace(production=SimpleNamespace(needed=list))
    made = list(sample._adjusted(context, of(np.array([1, 3]))))
    assert [own.places.tolist() for own in made] == [[0, 1, 2], [3]]
    for own, expected in zip(made, whole, strict=True):
        xr.testing.assert_identical(own.adjusted["pr"], expected.adjusted["pr"])


@pytest.mark.parametrize(
    ("sizes", "by_cell", "counts", "size"),
    [
        ({"joint": 40}, False, True, 20),  # variables together are not counted: no cell is adjusted to know it
        ({"pr": 300}, False, False, 150),
        ({"pr": 300, "dtr": 200}, False, False, 300),  # whole blocks of 150 and of 100 cells
        ({"pr": 300}, False, True, 0),
        ({"pr": 300}, True, False, 0),
        ({"pr": 0}, False, False, 0),
    ],
)
def test_only_methods_that_draw_by_block_and_not_our_kernels_need_whole_blocks(
    monkeypatch: pytest.MonkeyPatch, sizes: dict[str, int], by_cell: bool, counts: bool, size: int
) -> None:
    def task(var: str, **names: str) -> SimpleNamespace:
        how = {"fixed_blocks": sizes[var] > 0, "draws_by_cell": by_cell, "cells_in_a_block": sizes[var] or 300}
        how["variables_together"] = var == "joint"
        return SimpleNamespace(how=SimpleNamespace(chosen=SimpleNamespace(**how)))

    monkeypatch.setattr(cells, "Adjust", task)
    ds = xr.Dataset({"pr": ("loc", [1.0])} | ({"pr_days_jittered": ("loc", [0])} if counts else {}))
    monkeypatch.setattr(cells, "adjust", lambda given, only: replace(given, adjusted=dict.fromkeys(only, ds)))
    given = cells.Series("p", "south", np.array([1]), [], {"a": ds, "b": ds})
    assert cells.cells_drawn_together(given, list(sizes)) == size


def test_a_cell_whose_series_lack_a_year_is_not_explained() -> None:
    days = xr.date_range("2001-01-01", periods=730, calendar="noleap", use_cftime=True)
    whole = xr.Dataset({"pr": (("time", "loc"), np.ones((730, 1)))}, {"time": days})
    cell = cells.Cell("south", 0, 0, 0, 45.0, -70.0)

    def series(ds: xr.Dataset) -> cells.Series:
        return cells.Series("a", "south", np.array([0]), [], {"a": ds})

    cells.check_complete(series(whole), cell, ["pr"])
    with pytest.raises(DataError, match="a has no pr on 365 of 730 days in the cells that 45 °N -70 °E"):
        cells.check_complete(series(whole.where(whole.time.dt.year > 2001)), cell, ["pr"])
    cells.check_complete(series(whole.assign(tasmax=whole["pr"].where(whole.time.dt.year > 2001))), cell, ["pr"])


@pytest.mark.parametrize(
    ("calendar", "date", "place"), [("360_day", "2002-02-30", 419), ("noleap", "2002-03-01", 424), ("noleap", None, 0)]
)
def test_a_day_is_found_in_the_products_calendar(calendar: str, date: str | None, place: int) -> None:
    times = xr.date_range("2001-01-01", periods=720, calendar=calendar, use_cftime=True)
    product = xr.DataArray(np.zeros(720), {"time": times}, ["time"])
    assert step_of(product, date or "2001-01-01") == place


def test_versions_that_differ_from_a_markers_are_told() -> None:
    marker = store.Marker("Move", versions={"numpy": "0.1", "xarray": xr.__version__})
    assert other_versions(marker) == {"numpy": ("0.1", np.__version__)}
    elsewhere = replace(marker, versions={}, processor="Processor X")
    assert other_versions(elsewhere) == {"processor": ("Processor X", processor())}
    assert other_versions(store.Marker.from_json('{"task": "Move"}')) == {}
    assert elsewhere.id == replace(elsewhere, processor="Processor Y").id


def test_a_sample_that_cannot_be_made_again_is_a_failure_and_not_told_as_missing_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*given: object) -> None:
        raise DataError("pr has other units than the training\nmore of it")

    one = sample.Sample("a", cells.Cell("south", 0, 0, 0, 45.0, -70.0), 0.5)
    info = SimpleNamespace(path="a.zarr")
    series = SimpleNamespace(alone=lambda place: None)
    config = SimpleNamespace(biasadjust=SimpleNamespace(adjusted=("pr",)), downscaling=None)
    run = SimpleNamespace(simulations=["a"], archives=lambda sim_id: {"pr": info}, config=config)
    monkeypatch.setattr(sample, "context", lambda: run)
    monkeypatch.setattr(sample.store, "is_complete", lambda path: True)
    monkeypatch.setattr(sample, "draw", lambda *given: [one])
    monkeypatch.setattr(sample.partition, "pool_of", lambda run, sim_id: sim_id)
    monkeypatch.setattr(sample, "_remade", lambda *given: [(series, one)])
    monkeypatch.setattr(cells, "check_complete", lambda series, cell, names: None)
    monkeypatch.setattr(cells, "finish", fail)
    found = sample.audit(1, 0)
    assert found.failures == {"pr has other units than the training": 1} and not found.left_out
    assert "FAILED 1 sample(s): pr" in sample.render(found)
    monkeypatch.setattr(cells, "check_complete", fail)
    assert sample.audit(1, 0).left_out == {"inputs lack a year or more": 1}
