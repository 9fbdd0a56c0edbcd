"""The coarse grid of a downscaling against plain counting, and CDO-like conservative weights of nested grids."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.science.coarse import (
    CoarseGrid,
    areas_of,
    coarse_cells,
    coarse_means,
    coarse_numbers,
    edges_in,
    places_of,
    whole_cells,
    with_neighbours,
)
from espo_luigi.science.conservative import cells_of, conservative_weights
from espo_luigi.science.regrid import horizontal_of
from espo_luigi.science.stack import grid_of, places_on, stack_drop_nans, unstack_fill_nan

GRID = CoarseGrid(1.0)


def maps(lat: np.ndarray, lon: np.ndarray, days: int = 3) -> xr.Dataset:
    values = np.random.default_rng(1).normal(size=(days, lat.size, lon.size)).astype("float32")
    return xr.Dataset({"tas": (("time", "lat", "lon"), values)}, {"lat": lat, "lon": lon, "time": np.arange(days)})


def quarter_degrees(south: float, west: float, rows: int, columns: int) -> xr.Dataset:
    return maps(south + 0.125 + 0.25 * np.arange(rows), west + 0.125 + 0.25 * np.arange(columns))


@pytest.mark.parametrize("west", [10.0, -80.0, 358.0, -2.0])
def test_means_are_those_of_conservative_regridding(west: float) -> None:
    fine = quarter_degrees(50.0, west, 12, 20)
    cells = stack_drop_nans(fine)
    numbers = coarse_numbers(GRID, cells)
    coarse, whole = coarse_cells(GRID, numbers, west=west)
    assert numbers.size == 3 * 5 == coarse.sizes["loc"]
    weights = conservative_weights(
        cells_of(horizontal_of(fine, "source").grid),
        cells_of(horizontal_of(whole, "target").grid),
        places=places_on(coarse, whole),
        normed=True,
    )
    expected = fine["tas"].values.reshape(3, -1) @ weights.T.toarray()
    assert (GRID.numbers(coarse["lat"].values, coarse["lon"].values) == numbers).all()
    np.testing.assert_allclose(coarse_means(cells, GRID, numbers)["tas"].values, expected, atol=2e-5)


def test_means_are_the_same_lazily_and_in_any_order() -> None:
    cells = stack_drop_nans(quarter_degrees(50.0, 10.0, 12, 20))
    numbers = coarse_numbers(GRID, cells)
    expected = coarse_means(cells, GRID, numbers)
    turned = cells.isel(loc=np.random.default_rng(0).permutation(cells.sizes["loc"])).chunk(loc=7)
    made = coarse_means(turned, GRID, numbers)
    assert made["tas"].chunks is not None
    np.testing.assert_allclose(made["tas"].values, expected["tas"].values, rtol=1e-6)


def test_cells_of_other_parts_come_with_those_of_a_part_in_the_order_of_all() -> None:
    cells = stack_drop_nans(quarter_degrees(50.0, 10.0, 12, 8)).chunk(loc=5)
    parts = [cells.isel(loc=slice(first, first + 40)) for first in (0, 40, 80)]  # of 5 rows, or 2 at last
    parts[1]["lat"].attrs["original_shape"] = "5x8"
    made, own = with_neighbours(parts, 1, GRID)
    assert made["tas"].chunks is not None and made["lat"].attrs == {"original_shape": "5x8"}
    np.testing.assert_array_equal(made["lat"].values, cells["lat"].values[cells["lat"].values > 51])
    xr.testing.assert_equal(made.isel(loc=own), parts[1])
    few, own = with_neighbours(parts, 1, GRID, np.array([0, 39]))
    assert few.sizes["loc"] == 32 and (few["lat"].values[own], few["lon"].values[own]) == (
        pytest.approx([51.375, 52.375]),
        pytest.approx([10.125, 11.875]),
    )


def test_cells_on_an_edge_belong_to_one_cell() -> None:
    lat, lon = np.float32([39.95, 40.0, 40.05, 40.95]), np.float32([-0.05, 0.0, 359.95, 360.0])
    numbers = GRID.numbers(lat, lon)
    assert (np.diff(numbers // 360) == [1, 0, 0]).all()
    assert (numbers % 360).tolist() == [359, 0, 359, 0]


def test_corners_are_those_of_bilinear_interpolation() -> None:
    lat, lon = np.meshgrid(np.arange(50.05, 53, 0.1), np.arange(10.05, 14, 0.1), indexing="ij")
    numbers = np.unique(GRID.numbers(lat.ravel(), lon.ravel()))
    places = places_of(GRID, numbers, lat.ravel(), lon.ravel())
    row, column = GRID.centres(numbers)
    plane = 3 * row - 2 * column
    made = (plane[places.corners] * places.weights).sum(axis=1).reshape(lat.shape)
    inside = (lat > 50.5) & (lat < 52.5) & (lon > 10.5) & (lon < 13.5)
    np.testing.assert_allclose(made[inside], (3 * lat - 2 * lon)[inside])
    # Beyond the outermost centres it is the own cell's value.
    np.testing.assert_array_equal(made[~inside], plane[places.own].reshape(lat.shape)[~inside])
    assert not places.nearest.any()


def test_a_fine_cell_without_a_coarse_cell_takes_the_nearest() -> None:
    lat, lon = np.array([50.1, 50.2, 51.05]), np.array([10.1, 10.2, 10.3])
    places = places_of(GRID, np.unique(GRID.numbers(lat[:2], lon[:2])), lat, lon)
    assert places.nearest.tolist() == [False, False, True]
    assert places.own.tolist() == [0, 0, 0]
    assert (places.weights[2] == [1, 0, 0, 0]).all()


def test_coarse_cells_that_are_hardly_covered_are_left_out() -> None:
    cells = stack_drop_nans(quarter_degrees(50.0, 10.0, 9, 8))  # a row of coarse cells has a quarter
    assert coarse_numbers(GRID, cells, 0.2).size == 6
    assert coarse_numbers(GRID, cells, 0.3).size == 4


def test_a_grid_that_is_no_coarser_is_refused() -> None:
    with pytest.raises(DataError, match="no coarser"):
        coarse_numbers(CoarseGrid(0.25), stack_drop_nans(quarter_degrees(50.0, 10.0, 4, 4)))


def test_coarse_cells_unstack_onto_their_grid() -> None:
    cells = stack_drop_nans(quarter_degrees(-90.0, 10.0, 8, 8))
    coarse, whole = coarse_cells(GRID, coarse_numbers(GRID, cells), west=10.0)
    back = unstack_fill_nan(coarse.assign(one=("loc", np.ones(coarse.sizes["loc"]))), whole.drop_vars("land"))
    assert (back["one"].notnull() == whole["land"]).all()
    assert float(whole["lat"].min()) == -89.5


def test_areas_of_rotated_cells_are_those_of_their_rows() -> None:
    rotated = maps(np.arange(-1.0, 1, 0.25), np.arange(0.0, 2, 0.25)).rename(lat="rlat", lon="rlon")
    lat, lon = np.random.default_rng(0).uniform(40, 60, (2, 8, 8))
    cells = stack_drop_nans(rotated.assign_coords(lat=(("rlat", "rlon"), lat), lon=(("rlat", "rlon"), lon)))
    np.testing.assert_allclose(areas_of(cells), np.cos(np.deg2rad(cells["rlat"].values)))
    assert (areas_of(cells.rename(rlat="y", rlon="x")) == 1).all()
    np.testing.assert_allclose(areas_of(cells.drop_vars(("rlat", "rlon"))), np.cos(np.deg2rad(cells["lat"].values)))
    assert grid_of(rotated).sizes["rlat"] == 8


def test_blocks_have_whole_coarse_cells() -> None:
    own = np.repeat([3, 4, 9, 10], [2, 5, 1, 1])
    assert whole_cells(own, 7) == [slice(0, 7), slice(7, 9)]
    assert whole_cells(own, 3) == [slice(0, 2), slice(2, 7), slice(7, 9)]
    assert whole_cells(own, 100) == [slice(0, 9)]


def of_file(lat: np.ndarray, lon: np.ndarray, bounds: dict[str, np.ndarray] | None = None) -> CoarseGrid:
    ds = xr.Dataset(coords={"lat": lat, "lon": lon})
    for name, values in (bounds or {}).items():
        ds = ds.assign({f"{name}_bnds": ((name, "bnds"), values)})
        ds[name].attrs["bounds"] = f"{name}_bnds"
    return CoarseGrid(edges_in(ds))


def test_a_file_of_the_globe_is_the_grid_of_its_step() -> None:
    lat, lon = np.arange(-89.5, 90), np.arange(0.5, 360)
    rng = np.random.default_rng(2)
    at = rng.uniform(-90, 90, 500), rng.uniform(-180, 360, 500)
    for made in (of_file(lat, lon), of_file(lat[::-1], lon)):
        assert made.shape == GRID.shape and made.goes_round and made.area == 1
        np.testing.assert_array_equal(made.numbers(*at), GRID.numbers(*at))
        for got, expected in zip(made.around(*at), GRID.around(*at), strict=True):
            np.testing.assert_allclose(got, expected, atol=1e-9)


def test_cells_of_a_file_lie_between_its_bounds() -> None:
    lat, lon = np.array([50.4, 51.5, 52.6]), np.array([10.5, 11.5, 12.5])
    bounds = np.array([[50.0, 51.0], [51.0, 52.0], [52.0, 53.0]])
    made = of_file(lat, lon, {"lat": bounds, "lon": bounds - 40})
    fine = quarter_degrees(50.0, 10.0, 12, 12)
    cells = stack_drop_nans(fine)
    numbers = coarse_numbers(made, cells)
    assert numbers.tolist() == list(range(9))
    regular = coarse_means(cells, GRID, coarse_numbers(GRID, cells))
    np.testing.assert_array_equal(coarse_means(cells, made, numbers)["tas"].values, regular["tas"].values)
    coarse, whole = coarse_cells(made, numbers, west=10.0)
    np.testing.assert_allclose(whole["lat_bounds"].values, bounds)
    assert coarse.sizes["loc"] == 9 and whole["lon"].values.tolist() == lon.tolist()
    boxes = cells_of(horizontal_of(whole, "target").grid)
    np.testing.assert_allclose(boxes.lat, bounds)
    # Nothing goes round: beyond the outermost centres is what is there.
    assert (made.around(np.array([51.5]), np.array([12.9]))[1] == [1, 0, 0, 0]).all()


@pytest.mark.parametrize(("west", "first"), [(-20.0, -0.5), (350.0, 359.5), (10.0, 10.5)])
def test_longitudes_count_from_the_west_of_the_domain(west: float, first: float) -> None:
    numbers = GRID.numbers(np.full(2, 50.5), np.array([max(west, -1.0) % 360, max(west, -1.0) % 360 + 1]))
    if west == 350.0:
        numbers = GRID.numbers(np.full(2, 50.5), np.array([359.5, 0.5]))
    assert coarse_cells(GRID, numbers, west=west)[0]["lon"].values[np.argsort(numbers)].min() == first


def test_a_file_that_does_not_reach_the_domain_is_refused() -> None:
    made = of_file(np.array([50.5, 51.5]), np.array([10.5, 11.5]))
    with pytest.raises(DataError, match="does not reach 16 of"):
        coarse_numbers(made, stack_drop_nans(quarter_degrees(50.0, 10.0, 8, 10)))
    with pytest.raises(DataError, match="two or more lat and lon"):
        of_file(np.array([50.5]), np.array([10.5, 11.5]))
