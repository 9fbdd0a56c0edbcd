"""Cells of boxes and polygons, against matplotlib's points in paths and against bounds written out."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from matplotlib.path import Path

from espo_luigi.errors import DataError
from espo_luigi.science.geometry.cells import cells_in, cut_to, in_polygons

STAR = [
    (-75 + r * np.cos(a), 50 + r * np.sin(a))
    for r, a in zip([9, 4] * 7, np.linspace(0, 13 / 7 * np.pi, 14), strict=True)
]
STAR = [*STAR, STAR[0]]
HOLE = [(-76.0, 49.0), (-74.0, 49.0), (-74.5, 51.3), (-76.0, 51.0), (-76.0, 49.0)]
ISLAND = [(-60.0, 44.0), (-58.0, 47.0), (-62.0, 46.0), (-60.0, 44.0)]


def rotated(shape: tuple[int, int] = (37, 53)) -> xr.Dataset:
    """A rotated-pole grid as its 2-D coordinates tell: rows run neither along latitudes nor along meridians."""
    y, x = np.meshgrid(np.linspace(-9, 9, shape[0]), np.linspace(-13, 13, shape[1]), indexing="ij")
    lat, lon = 50 + 0.9 * y + 0.15 * x, -72 + 1.3 * x - 0.3 * y
    data = {"pr": (("time", "rlat", "rlon"), np.ones((2, *shape), "float32"))}
    coords = {"rlat": y[:, 0], "rlon": x[0], "lat": (("rlat", "rlon"), lat), "lon": (("rlat", "rlon"), lon)}
    return xr.Dataset(data, coords)


def regular(lon: np.ndarray | None = None) -> xr.Dataset:
    lat, lon = np.arange(40.05, 60, 0.7), np.arange(-85.03, -55, 0.7) if lon is None else lon
    return xr.Dataset({"pr": (("time", "lat", "lon"), np.ones((2, lat.size, lon.size)))}, {"lat": lat, "lon": lon})


def by_matplotlib(lon: np.ndarray, lat: np.ndarray) -> np.ndarray:
    points = np.stack([np.ravel(lon), np.ravel(lat)], axis=1)
    star, hole, island = (Path(ring).contains_points(points) for ring in (STAR, HOLE, ISLAND))
    return ((star & ~hole) | island).reshape(np.shape(lon))


@pytest.mark.parametrize("turn", [0, 360])
@pytest.mark.parametrize("ds", [rotated(), regular()], ids=["rotated", "regular"])
def test_cells_in_polygons_are_those_of_matplotlib_in_either_convention_of_longitudes(ds, turn):
    ds = ds.assign_coords(lon=ds.lon + turn)
    cells = cells_in(ds, "QC", {"shape": [[STAR, HOLE], [ISLAND]]})
    lat, lon = xr.broadcast(ds.lat, ds.lon - turn)
    assert 50 < int(cells.sum()) < cells.size / 2
    np.testing.assert_array_equal(cells.values, by_matplotlib(lon.transpose(*cells.dims), lat.transpose(*cells.dims)))


def test_polygons_that_overlap_are_joined_and_the_order_of_a_ring_is_of_no_matter():
    lon, lat = np.meshgrid(np.linspace(-85, -65, 41) + 0.01, np.linspace(40, 60, 31) + 0.01)
    once = in_polygons(lon, lat, [[STAR]])
    np.testing.assert_array_equal(in_polygons(lon, lat, [[STAR], [STAR[::-1]]]), once)


def test_a_polygon_across_the_antimeridian_has_longitudes_beyond_180_and_holds_its_edges():
    lon, lat = np.meshgrid(np.arange(-180, 180, 1.0), np.array([59.5, 60, 62.5, 65, 70.5]))
    ring = [(175.0, 60.0), (190.0, 60.0), (190.0, 65.0), (175.0, 65.0), (175.0, 60.0)]
    inside = in_polygons(lon, lat, [[ring]])
    assert lon[inside].tolist() == 3 * [*np.arange(-180, -169), *np.arange(175, 180)]


@pytest.mark.parametrize("turn", [0, 360])
@pytest.mark.parametrize(
    "ds", [rotated(), regular(), regular(np.arange(-83, -54.9, 0.1))], ids=["rotated", "regular", "on the bounds"]
)
def test_cells_in_a_box_include_its_bounds(ds, turn):
    box = {"lon_bnds": (-83, -55), "lat_bnds": (42, 63)}
    cells = cells_in(ds.assign_coords(lon=ds.lon + turn), "QC", box)
    lat, lon = (one.transpose(*cells.dims) for one in xr.broadcast(ds.lat, ds.lon))
    expected = (lat >= 42) & (lat <= 63) & (lon >= -83 - 1e-9) & (lon <= -55 + 1e-9)
    np.testing.assert_array_equal(cells.values, expected.values)


def test_a_scope_without_land_is_an_error_that_names_it():
    ds = regular()
    with pytest.raises(
        DataError, match=r"scope 'Cree' .* no cell of the grid: got 46.9..53.8 degrees north, -117..-97 "
    ):
        cells_in(ds, "Cree", {"lon_bnds": (-117, -97), "lat_bnds": (46.9, 53.8)})
    land = xr.DataArray(np.zeros((ds.sizes["lat"], ds.sizes["lon"]), bool), dims=("lat", "lon"))
    land[0, 0] = True
    with pytest.raises(DataError, match="scope 'QC' of the health checks holds no land cell"):
        cells_in(ds, "QC", {"shape": [[STAR]]}, land)


def test_land_may_come_with_its_dimensions_turned_and_other_cells_of_a_cut_are_nan():
    ds = rotated().chunk(rlat=10, rlon=11)
    land = xr.DataArray(np.arange(37 * 53).reshape(37, 53) % 3 == 0, dims=("rlat", "rlon"))
    cells = cells_in(ds, "QC", {"shape": [[ISLAND]]}, land.T)
    part, mask = cut_to(ds, cells)
    np.testing.assert_array_equal(cells.values, by_matplotlib(ds.lon, ds.lat) & land.values & (ds.lon.values > -65))
    np.testing.assert_array_equal(part.pr.notnull().all("time"), mask)
    assert int(mask.sum()) == int(cells.sum()) and mask.size < cells.size / 4
