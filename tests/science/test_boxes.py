"""Boxes: which covers which, modulo 360 degrees, and the cells of a grid by its bounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espo_luigi.science import regrid
from espo_luigi.science.geometry.boxes import Box, made_edges, missing_sides, overlap

OUTER = Box((-80, -60), (45, 50))


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        (Box((-80, -60), (45, 50)), ""),
        (Box((280, 300), (45, 50)), ""),
        (Box((-80, -60), (45 - 1e-12, 50)), ""),
        (Box((-80, -60), (44, 50)), "1 degrees in the south"),
        (Box((-80, -60), (45, 52.5)), "2.5 degrees in the north"),
        (Box((279, 301), (46, 47)), "1 degrees in the west and 1 degrees in the east"),
        (Box((5, 10), (46, 47)), "70 degrees in the east"),
        (Box((-80, -60), (60, 70)), "20 degrees in the north"),
    ],
)
def test_what_sticks_out_of_a_box_is_told_by_its_sides(inner: Box, expected: str) -> None:
    assert missing_sides(inner, OUTER) == expected


def test_a_box_around_the_earth_covers_all_longitudes() -> None:
    assert missing_sides(Box((170, 190), (0, 10)), Box((-180, 180), (0, 10))) == ""
    assert missing_sides(Box((-0.5, 359.5), (0, 10)), Box((0, 360), (0, 10))) == ""


def test_boxes_across_the_date_line_compare_modulo_360() -> None:
    assert missing_sides(Box((-180, -170), (0, 10)), Box((179, 191), (0, 10))) == ""
    assert missing_sides(Box((-180, -170), (0, 10)), Box((181, 191), (0, 10))) == "1 degrees in the west"


@pytest.mark.parametrize(
    ("box", "expected"),
    [
        (Box((281, 282), (46, 47)), True),
        (Box((-90, -79), (46, 47)), True),
        (Box((-90, -80), (46, 47)), False),
        (Box((-70, -65), (50, 51)), False),
        (Box((0, 1), (46, 47)), False),
    ],
)
def test_boxes_overlap_where_they_have_an_area_in_common(box: Box, expected: bool) -> None:
    assert overlap(box, OUTER) is expected


def test_a_widened_box_ends_at_the_poles() -> None:
    assert Box((0, 10), (-89.5, 80)).widened(2, 1) == Box((-2, 12), (-90, 81))


def test_a_box_is_shown_with_its_bounds() -> None:
    assert str(OUTER) == "45..50 degrees north, -80..-60 degrees east"


@given(
    first=st.integers(-3600, 3600).map(lambda tenths: tenths / 10),
    width=st.sampled_from([0.1, 0.25, 0.3, 0.5, 0.7, 1, 1.5, 2.8125]),
    cells=st.floats(2, 200),
)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_edges_are_those_of_the_cells_that_regridding_makes(first: float, width: float, cells: float) -> None:
    bounds = {"lon0_b": first, "lon1_b": first + cells * width, "d_lon": width}
    centres = regrid._intermediate({"cf_grid_2d": {"lat0_b": 0, "lat1_b": 9, "d_lat": 1, **bounds}}).grid.lon
    last, number = made_edges(*bounds.values())
    # Where the upper bound is a rounding error away from half a step, the two may differ by one cell.
    if abs(cells % 1 - 0.5) > 1e-9:
        assert number == centres.size
        np.testing.assert_allclose(last, centres[-1] + width / 2, rtol=0, atol=1e-9)
