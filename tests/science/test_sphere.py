"""Cell search and weights on the sphere, against geometry that does without Newton's method."""

from __future__ import annotations

import numpy as np
import pytest

from espo_luigi.science.sphere import (
    Extrapolation,
    Grid,
    bilinear_weights,
    inverse_distance_weights,
    weights_and_outside,
)

INVERSE_DISTANCE = Extrapolation()


def points_in(lat: tuple[float, float], lon: tuple[float, float], count: int = 400) -> Grid:
    rng = np.random.default_rng(5)
    return Grid(rng.uniform(*lat, count), rng.uniform(*lon, count), "points")


def rotated_grid(rows: int = 23, columns: int = 31) -> Grid:
    """A rotated-pole grid around 47.5 N, 97 W, as of a North American regional model."""
    rlat, rlon = np.meshgrid(np.linspace(-24, 24, rows), np.linspace(-33, 33, columns), indexing="ij")
    rlat, rlon, tilt = np.deg2rad(rlat), np.deg2rad(rlon), np.deg2rad(47.5)
    x, y, z = np.cos(rlat) * np.cos(rlon), np.cos(rlat) * np.sin(rlon), np.sin(rlat)
    x, z = np.cos(tilt) * x - np.sin(tilt) * z, np.sin(tilt) * x + np.cos(tilt) * z
    return Grid(np.rad2deg(np.arcsin(z)), np.rad2deg(np.arctan2(y, x)) - 97, "curvilinear")


GRIDS = {
    # Cells so wide that their great-circle edges pass over several rows.
    "wide cells": (Grid(np.arange(40.0, 88.0), np.arange(-150.0, 10, 30), "rectilinear"), (35, 89.9), (-170, 10)),
    "model": (Grid(np.arange(34.0, 67, 2), np.arange(276.25, 315, 2.5), "rectilinear"), (32, 68), (-86, -44)),
    "southern": (Grid(-np.arange(60.0, 86), np.arange(0.0, 200, 20), "rectilinear"), (-87, -58), (-20, 200)),
    "rotated": (rotated_grid(), (15, 80), (-150, -40)),
}


def test_the_largest_steps_of_a_rotated_grid_are_those_of_its_own_coordinates() -> None:
    assert rotated_grid(23, 31).largest_steps() == pytest.approx((2.2, 2.2))
    assert rotated_grid(23, 61).largest_steps() == pytest.approx((48 / 22, 48 / 22))
    assert Grid(np.array([60.0, 58, 55]), np.array([350.0, 355, 4]), "rectilinear").largest_steps() == (3, 9)


def cells_that_hold(source: Grid, target: Grid) -> np.ndarray:
    """(targets, cells): on the inner side of all four great circles through a cell's neighbouring corners."""
    vectors = source.unit_vectors().reshape(*source.shape, 3)
    ring = [vectors[:-1, :-1], vectors[:-1, 1:], vectors[1:, 1:], vectors[1:, :-1]]
    normals = [np.cross(a, b).reshape(-1, 3) for a, b in zip(ring, ring[1:] + ring[:1], strict=True)]
    sides = np.stack([target.unit_vectors() @ normal.T for normal in normals])
    middle = np.stack(ring).mean(axis=0).reshape(-1, 3)
    ahead = target.unit_vectors() @ middle.T > 0
    return ((sides > 0).all(axis=0) | (sides < 0).all(axis=0)) & ahead


@pytest.mark.parametrize("name", GRIDS)
def test_a_target_is_inside_exactly_if_great_circles_around_some_cell_enclose_it(name: str) -> None:
    source, lat, lon = GRIDS[name]
    target = points_in(lat, lon)
    inside, corners, _ = bilinear_weights(source, target.coordinates(), target.unit_vectors())
    holds = cells_that_hold(source, target)
    np.testing.assert_array_equal(inside, holds.any(axis=1))
    assert 0.2 < inside.mean() < 1
    row, column = np.divmod(corners[:, 0], source.shape[1])
    cell = row * (source.shape[1] - 1) + column
    np.testing.assert_array_equal(cell[inside], holds.argmax(axis=1)[inside])


@pytest.mark.parametrize("name", GRIDS)
def test_the_weighted_corners_point_exactly_at_the_target(name: str) -> None:
    source, lat, lon = GRIDS[name]
    target = points_in(lat, lon)
    inside, corners, weights = bilinear_weights(source, target.coordinates(), target.unit_vectors())
    found = np.einsum("nc,ncx->nx", weights[inside], source.unit_vectors()[corners[inside]])
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    np.testing.assert_allclose(found, target.unit_vectors()[inside], atol=1e-12)


@pytest.mark.parametrize("extrapolation", [INVERSE_DISTANCE, Extrapolation(num_points=1)])
@pytest.mark.parametrize("name", GRIDS)
def test_weights_are_a_partition_of_one(name: str, extrapolation: Extrapolation) -> None:
    source, lat, lon = GRIDS[name]
    matrix = weights_and_outside(source, points_in(lat, lon), extrapolation)[0]
    assert (matrix.data > 0).all()
    np.testing.assert_allclose(np.asarray(matrix.sum(axis=1)).ravel(), 1, rtol=1e-12)


def test_a_grid_point_takes_its_own_value_and_stores_the_other_corners_of_its_cell() -> None:
    source, *_ = GRIDS["model"]
    lat, lon = source.coordinates()
    matrix = weights_and_outside(source, Grid(lat.ravel(), lon.ravel(), "points"), None)[0]
    np.testing.assert_allclose(matrix.toarray(), np.eye(source.size), atol=1e-7)
    # ESMF stores all four weights of a cell, zeros too: NaNs spread from the other corners.
    assert (np.diff(matrix.indptr) == 4).all()


def test_without_extrapolation_only_targets_outside_have_a_nan_weight() -> None:
    source, *_ = GRIDS["model"]
    target = Grid(np.array([50.0, 33.0, 50.0]), np.array([-60.0, -60.0, 60.0]), "points")
    sums = np.asarray(weights_and_outside(source, target, None)[0].sum(axis=1)).ravel()
    np.testing.assert_array_equal(np.isnan(sums), [False, True, True])


def test_inverse_distance_gives_an_exact_hit_weight_one() -> None:
    vectors = GRIDS["model"][0].unit_vectors()
    nearest, weights = inverse_distance_weights(vectors, vectors[[17]], INVERSE_DISTANCE)
    assert nearest[0, 0] == 17
    np.testing.assert_array_equal(weights[0], np.eye(8)[0])


def test_inverse_distance_uses_all_points_if_there_are_fewer_than_eight() -> None:
    vectors = np.eye(3)
    _, weights = inverse_distance_weights(vectors, np.array([[1.0, 1.0, 1.0]]) / np.sqrt(3), INVERSE_DISTANCE)
    np.testing.assert_allclose(weights, np.full((1, 3), 1 / 3))


def test_a_curvilinear_grid_that_is_in_truth_rectilinear_gives_the_same_matrix() -> None:
    source, lat, lon = GRIDS["model"]
    target = points_in(lat, lon)
    expected = weights_and_outside(source, target, INVERSE_DISTANCE)[0]
    found = weights_and_outside(Grid(*source.coordinates(), "curvilinear"), target, INVERSE_DISTANCE)[0]
    np.testing.assert_allclose(found.toarray(), expected.toarray(), atol=1e-12)


def test_cells_of_very_different_sizes_are_all_found() -> None:
    """Near a small cell, the nearest cell centres are not those of the large cell that holds the target."""
    lat = np.array([30.0, 30.1, 30.2, 30.3, 30.4, 50.0])
    grid = Grid(*np.meshgrid(lat, np.array([0.0, 0.1, 0.2, 0.3, 20.0]), indexing="ij"), "curvilinear")
    target = points_in((30, 50), (0, 20))
    inside, *_ = bilinear_weights(grid, target.coordinates(), target.unit_vectors())
    np.testing.assert_array_equal(inside, cells_that_hold(grid, target).any(axis=1))
