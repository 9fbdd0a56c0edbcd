"""The page of known futures weighs pieces by their cells, compares methods, and keeps pairs of one model apart."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from espo_luigi import store
from espo_luigi.report import perfect_model
from espo_luigi.report.drawings import Drawing
from espo_luigi.report.perfect_model import Pair

METHODS = ("raw", "adjusted", "Scaling")
DIMS = {"variable": ["pr"], "adjustment": METHODS, "period": ["2041-2070"], "season": ["DJF", "MAM", "JJA", "SON"]}


def piece(folder: Path, name: str, cells: int, errors: tuple[float, float, float]) -> Path:
    """A store whose methods have these errors everywhere, of both signs, and a noise of 0 to 1."""
    labels = {dim: (dim, np.array(words, dtype=object)) for dim, words in DIMS.items()}
    labels["property"] = "property", np.array(["mean", "q05", "q95", "q99", "wet_days"], dtype=object)
    of_all = np.broadcast_to(np.reshape(errors, (1, 3, 1, 1, 1)), (1, 3, 1, 4, 5)).astype(float)
    of_all[..., 1] = np.nan
    sign = np.where(np.arange(cells) % 2, 1, -1)
    of_cells = of_all[:, :, None] * sign[None, None, :, None, None, None]
    outer, inner = ["variable", "adjustment"], ["period", "season", "property"]
    noise = np.broadcast_to(np.linspace(0, 1, 101).reshape(1, 101, 1, 1, 1), (1, 101, 1, 4, 5))
    found = xr.Dataset(
        {aspect: ([*outer, "cell", *inner], of_cells) for aspect in ("level", "change")}
        | {f"{aspect}_of_all": ([*outer, *inner], of_all) for aspect in ("level", "change")}
        | {"noise": (["variable", "replicate", *inner], noise), "cells": ("variable", [cells * 10])},
        labels | {"units": ("variable", np.array(["mm d-1"], dtype=object))},
    )
    store.write_store(found, folder / f"{name}.zarr", store.Marker("PerfectPair", {"piece": name}))
    return folder / f"{name}.zarr"


def test_pieces_count_by_their_cells_and_signs_do_not_cancel(tmp_path: Path) -> None:
    paths = piece(tmp_path, "south", 3, (4, 1, 2)), piece(tmp_path, "north", 1, (8, 1, 2))
    found = perfect_model.errors_of([Pair("a", "b", False, paths)]).sel(variable="pr", property="mean", season="DJF")
    for aspect in ("level", "change", "level_of_all", "change_of_all"):
        assert found[aspect].values.ravel() == pytest.approx([5, 1, 2])
    assert found["noise"].values.ravel() == pytest.approx(0.95)


def test_methods_are_compared_in_multiples_of_the_noise_and_marks_need_no_colour(tmp_path: Path) -> None:
    pairs = [
        Pair("a", "b", False, (piece(tmp_path, "one", 2, (3, 0.5, 2)),)),
        Pair("b", "a", False, (piece(tmp_path, "two", 2, (3, 1, 2.5)),)),
    ]
    table = perfect_model.in_noises(perfect_model.errors_of(pairs))
    assert table.columns == ["Method", "Mean", "5 % quantile", "95 % quantile", "99 % quantile", "Wet days"]
    # The noise is 0.95 throughout.
    assert {row[0]: row[1] for row in table.rows} == {"raw": "3.16", "adjusted": "0.79 ≈", "Scaling": "2.37"}
    assert {row[2] for row in table.rows} == {"–"}


def test_dependence_is_a_column_for_each_pair_and_the_best_is_marked_beyond_noise(tmp_path: Path) -> None:
    paths = [piece(tmp_path, name, 2, (3, 0.5, 2)) for name in ("one", "two")]
    sizes = {"adjustment": 3, "period": 1, "season": 4, "joint": 2, "cell": 2}
    for path, pair in zip(paths, (0.2, 0.4), strict=True):
        joint = np.broadcast_to(np.reshape([[pair, 9], [-pair / 2, 1], [pair, 5]], (3, 1, 1, 2, 1)), [*sizes.values()])
        limits = np.broadcast_to([0.1, 2.0], (1, 4, 2))
        found = (
            store.open_store(path)
            .load()
            .assign(dependence=([*sizes], joint), dependence_noise=(["period", "season", "joint"], limits))
        )
        found = found.assign_coords(joint=("joint", np.array(["tasmax, pr", "energy tasmax, pr"], dtype=object)))
        store.remove(path)
        store.write_store(found, path, store.Marker("PerfectPair", {"piece": path.stem}))
    table = perfect_model.in_noises(perfect_model.errors_of([Pair("a", "b", False, tuple(paths))]))
    assert table.columns[-2:] == ["Rank correlation tasmax, pr", "Energy distance tasmax, pr"]
    assert [row[-2] for row in table.rows] == ["3.00", "1.50 ★", "3.00"]
    assert [row[-1] for row in table.rows] == ["4.50", "0.50 ≈", "2.50"]


def test_pairs_of_one_model_stand_apart_and_the_limits_come_first(tmp_path: Path) -> None:
    paths = (piece(tmp_path, "one", 2, (3, 0.5, 2)),)
    sections = perfect_model.make_sections([Pair("a", "b", False, paths), Pair("a", "c", True, paths)])
    assert [one.title for one in sections] == [
        "What this tests, and what not",
        "Pairs of different models: all methods",
        "Pairs of different models: precipitation",
        "Control: pairs of one model: all methods",
        "Control: pairs of one model: precipitation",
    ]
    names = [block.name for one in sections for block in one.blocks if isinstance(block, Drawing)]
    assert names == ["perfect-pairs-pr-2041-2070", "perfect-control-pr-2041-2070"]
    perfect_model.write_page([Pair("a", "b", False, paths)], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "nothing here tests the downscaling" in page and "climate sensitivities dominates" in page
    assert page.count("data:image/png") == 1 and "could not be drawn" not in page


def test_a_figure_shows_each_pair_in_its_panel_with_its_unit(tmp_path: Path) -> None:
    found = perfect_model.errors_of([Pair("a", "b", False, (piece(tmp_path, "one", 2, (3, 0.5, 2)),))])
    figure = perfect_model.errors_figure(found.sel(variable="pr", period="2041-2070"), "mm d-1")
    titles = [panel.get_title() for panel in figure.axes]
    assert titles == ["Mean", "95 % quantile", "99 % quantile", "Wet days", "", "", "", ""]
    labels = [panel.get_ylabel() for panel in figure.axes]
    assert labels[0] == "Error of the level [mm/d]" and labels[7] == "Error of the change [1]"
    assert {float(one.get_offsets()[0, 1]) for one in figure.axes[0].collections} == {3, 0.5, 2}


def test_any_further_method_has_a_mark_of_its_own() -> None:
    names = [*perfect_model.STYLES, "DQM", "MBCn", "ibicus.CDFt", "ibicus.ISIMIP"]
    marks = [mark for _, mark in perfect_model._styles(names).values()]
    assert len(set(marks)) == len(names)


def seen_by_deuteranopes(colour: str) -> np.ndarray:
    """CIELAB of a colour as people without green cones see it (Machado et al. 2009, doi:10.1109/TVCG.2009.113)."""
    value = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    linear = np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)
    seen = np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]) @ linear
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x, y, z = np.cbrt(to_xyz @ np.clip(seen, 0, 1) / [0.9505, 1, 1.089])
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def test_colour_blind_people_can_tell_the_methods_and_the_noise_apart() -> None:
    colours = {name: colour for name, (colour, _) in perfect_model.STYLES.items()} | {
        "noise": perfect_model.NOISE_COLOUR
    }
    for (one, its), (other, others) in itertools.combinations(colours.items(), 2):
        apart = np.linalg.norm(seen_by_deuteranopes(its) - seen_by_deuteranopes(others))
        assert apart > 15, (one, other, apart)
    assert len({mark for _, mark in perfect_model.STYLES.values()}) == len(perfect_model.STYLES)
