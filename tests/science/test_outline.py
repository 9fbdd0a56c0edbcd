"""The outline of a regional domain, against great circles around each cell and matplotlib's polygons."""

from __future__ import annotations

import dask
import numpy as np
import pytest
import xarray as xr
from matplotlib.path import Path as Polygon

from espo_luigi.errors import DataError
from espo_luigi.science.geometry.cells import cut_to_outline, in_outline, outline

ROWS, COLUMNS = 23, 31


def rotated(rlat: np.ndarray, rlon: np.ndarray, tilt: float = 47.5, turn: float = -97) -> tuple[np.ndarray, np.ndarray]:
    """Latitudes and longitudes of a rotated-pole grid whose middle lies at `tilt` north and `turn` east."""
    rlat, rlon = np.meshgrid(np.deg2rad(rlat), np.deg2rad(rlon), indexing="ij")
    x, y, z = np.cos(rlat) * np.cos(rlon), np.cos(rlat) * np.sin(rlon), np.sin(rlat)
    tilt = np.deg2rad(tilt)
    x, z = np.cos(tilt) * x - np.sin(tilt) * z, np.sin(tilt) * x + np.cos(tilt) * z
    return np.rad2deg(np.arcsin(z)), np.rad2deg(np.arctan2(y, x)) + turn


def domain(tilt: float = 47.5, turn: float = -97) -> xr.Dataset:
    rlat, rlon = np.linspace(-24, 24, ROWS), np.linspace(-33, 33, COLUMNS)
    lat, lon = rotated(rlat, rlon, tilt, turn)
    coords = {"rlat": rlat, "rlon": rlon, "lat": (("rlat", "rlon"), lat), "lon": (("rlat", "rlon"), lon)}
    return xr.Dataset(coords=coords)


def corners_of(tilt: float = 47.5, turn: float = -97) -> tuple[np.ndarray, np.ndarray]:
    """The corners of the domain's cells, which follow from the rotated pole."""
    half = 24 / (ROWS - 1), 33 / (COLUMNS - 1)
    axes = np.linspace(-24 - half[0], 24 + half[0], ROWS + 1), np.linspace(-33 - half[1], 33 + half[1], COLUMNS + 1)
    return rotated(*axes, tilt, turn)


def vectors(lat: np.ndarray, lon: np.ndarray) -> np.ndarray:
    lat, lon = np.deg2rad(lat), np.deg2rad(lon)
    return np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], axis=-1)


def in_cells(corners: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Whether points are on the inner side of all four great circles around some cell; cell by cell."""
    ring = [corners[:-1, :-1], corners[:-1, 1:], corners[1:, 1:], corners[1:, :-1]]
    normals = [np.cross(a, b).reshape(-1, 3) for a, b in zip(ring, ring[1:] + ring[:1], strict=True)]
    sides = np.stack([points @ normal.T for normal in normals])
    ahead = points @ np.stack(ring).mean(axis=0).reshape(-1, 3).T > 0
    return (((sides > 0).all(axis=0) | (sides < 0).all(axis=0)) & ahead).any(axis=1)


def everywhere(count: int = 6000) -> tuple[xr.DataArray, xr.DataArray]:
    """Points all around the Earth, longitudes from 0 to 360."""
    rng = np.random.default_rng(4)
    lat = np.rad2deg(np.arcsin(rng.uniform(-1, 1, count)))
    return xr.DataArray(lat, dims="loc"), xr.DataArray(rng.uniform(0, 360, count), dims="loc")


PLACES = {
    "North America": (47.5, -97),
    "across the date line": (47.5, 180),
    "around the pole": (85, -97),
    "across Greenwich": (10, 5),
    "around the South Pole": (-88, 20),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_point_is_inside_exactly_if_great_circles_around_some_cell_enclose_it(place: str) -> None:
    grid, (lat, lon) = domain(*PLACES[place]), everywhere()
    expected = in_cells(vectors(*corners_of(*PLACES[place])), vectors(lat, lon))
    assert 0.07 < expected.mean() < 0.1
    np.testing.assert_array_equal(in_outline(outline(grid.lat, grid.lon), lat, lon), expected)


def test_the_outline_of_all_cells_is_matplotlibs_polygon_on_a_map() -> None:
    grid = domain()
    border = outline(grid.lat, grid.lon)
    lat, lon = corners_of()
    around = [(row, 0) for row in range(ROWS)] + [(ROWS, column) for column in range(COLUMNS)]
    around += [(row, COLUMNS) for row in range(ROWS, 0, -1)] + [(0, column) for column in range(COLUMNS, 0, -1)]
    assert border.sizes == {"corner": len(around)}
    near = np.random.default_rng(1)
    points = np.stack([near.uniform(-179, -15, 5000), near.uniform(10, 85, 5000)], axis=1)
    polygon = Polygon([(lon[place], lat[place]) for place in around])
    found = in_outline(border, xr.DataArray(points[:, 1], dims="p"), xr.DataArray(points[:, 0], dims="p"))
    # A straight line on the map lies a little beside the great circle.
    assert (found.values != polygon.contains_points(points)).mean() < 0.005 < found.mean() < 0.9


def product() -> xr.Dataset:
    """A grid of the product, which reaches beyond the domain in the north and the west, with a day's field."""
    rlat, rlon = np.linspace(-10, 35, 37), np.linspace(-50, 20, 41)
    lat, lon = rotated(rlat, rlon)
    coords = {"rlat": rlat, "rlon": rlon, "lat": (("rlat", "rlon"), lat), "lon": (("rlat", "rlon"), lon % 360)}
    values = np.random.default_rng(0).random((13, 37, 41)).astype("f4")
    return xr.Dataset({"pr": (("time", "rlat", "rlon"), values, {"units": "1"}), "day": ("time", range(13))}, coords)


def test_a_product_is_cut_to_the_rows_columns_and_cells_inside() -> None:
    grid, ds = domain(), product()
    cut = cut_to_outline(ds, outline(grid.lat, grid.lon))
    # The domain is a rectangle on its own rotated grid: its sides are half a cell beyond the outermost centres.
    expected = ds.sel(rlat=slice(None, 24 + 24 / 22), rlon=slice(-33 - 33 / 30, None))
    assert expected.sizes["rlat"] < 37 and expected.sizes["rlon"] < 41
    xr.testing.assert_identical(cut, expected)


def turned() -> xr.Dataset:
    """The border of a domain whose sides do not follow the rows and columns of the product."""
    lat, lon = rotated(np.linspace(-15, 15, 9), np.linspace(-20, 20, 9), tilt=55, turn=-80)
    return outline(xr.DataArray(lat, dims=("y", "x")), xr.DataArray(lon, dims=("y", "x")))


def test_cells_outside_of_the_outline_are_nan_and_keep_their_coordinates() -> None:
    ds, border = product(), turned()
    cut = cut_to_outline(ds, border)
    within = in_outline(border, cut.lat, cut.lon)
    assert 0.2 < float(within.mean()) < 0.9
    np.testing.assert_array_equal(cut.pr.notnull().all("time"), within)
    np.testing.assert_array_equal(cut.pr.where(within), ds.pr.sel(rlat=cut.rlat, rlon=cut.rlon).where(within))
    assert cut.lat.notnull().all() and cut.pr.dtype == "f4" and cut.pr.attrs == {"units": "1"}


def test_blocks_of_any_size_give_the_same_lazily() -> None:
    ds, border = product(), turned()
    cut = cut_to_outline(ds.chunk(time=5, rlat=8, rlon=9), border)
    assert dask.is_dask_collection(cut.pr.data)
    xr.testing.assert_identical(cut.compute(), cut_to_outline(ds, border))


def test_rows_and_columns_of_a_regular_grid_are_cut_too() -> None:
    grid = domain()
    regular = xr.Dataset(coords={"lat": np.arange(-5.0, 90, 2.5), "lon": np.arange(180.0, 360, 2.5)})
    cut = cut_to_outline(regular.assign(pr=regular.lat + regular.lon), outline(grid.lat, grid.lon))
    expected = in_outline(outline(grid.lat, grid.lon), *xr.broadcast(regular.lat, regular.lon))
    assert int(cut.pr.count()) == int(expected.sum()) > 500


def test_the_outline_of_rows_and_columns_is_that_of_their_cells() -> None:
    regular = xr.Dataset(coords={"lat": np.arange(30.0, 61, 2.5), "lon": np.arange(250.0, 300, 2.5)})
    expected = outline(*xr.broadcast(regular.lat, regular.lon))
    xr.testing.assert_identical(outline(regular.lat, regular.lon), expected)


def test_a_point_on_the_level_of_a_corner_is_counted_once() -> None:
    lat, lon = xr.broadcast(xr.DataArray(np.arange(-4.0, 5), dims="y"), xr.DataArray(np.arange(-6.0, 7), dims="x"))
    border = outline(lat, lon)
    points = xr.DataArray(border.lat.values, dims="p")
    assert not in_outline(border, points, xr.full_like(points, 20)).any()
    assert not in_outline(border, points, xr.full_like(points, -20)).any()
    assert in_outline(border, points[abs(points) < 4], xr.zeros_like(points[abs(points) < 4])).all()


def test_domains_that_have_no_outline_are_refused() -> None:
    grid = domain()
    with pytest.raises(DataError, match="two rows and two columns"):
        outline(grid.lat[:1], grid.lon[:1])
    lat, lon = xr.broadcast(xr.DataArray(np.arange(-88.0, 89), dims="y"), xr.DataArray(np.arange(0.0, 200), dims="x"))
    with pytest.raises(DataError, match="degrees from its middle; expected 80 at most"):
        in_outline(outline(lat, lon), grid.lat, grid.lon)
    with pytest.raises(DataError, match="none of 1517 cells lies in the domain"):
        cut_to_outline(product(), outline(-grid.lat - 30, grid.lon + 150))
