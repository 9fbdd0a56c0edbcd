"""Where datasets lie, beside the answers of PROJ and matplotlib."""

import json

import exported_products as made
import numpy as np
import pytest
import xarray as xr
from exported_products import rotated
from matplotlib.path import Path as Outline

from espo_luigi.errors import DataError
from espo_luigi.publication.footprint import Footprint, dimensions, footprint_of, union

pyproj = pytest.importorskip("pyproj")


def holes(place: Footprint, lat: np.ndarray, lon: np.ndarray) -> int:
    """Return how many points lie in none of the polygons."""
    geometry = json.loads(json.dumps(place.geometry))
    polygons = geometry["coordinates"] if geometry["type"] == "MultiPolygon" else [geometry["coordinates"]]
    points = np.stack([(lon.ravel() + 180) % 360 - 180, lat.ravel()], axis=1)
    inside = [Outline(np.array(rings[0])).contains_points(points, radius=1e-9) for rings in polygons]
    for rings in polygons:
        assert rings[0][0] == rings[0][-1]
    return int((~np.any(inside, axis=0)).sum())


@pytest.mark.parametrize("east", [-60.0, 30.0])
def test_the_outline_of_a_rotated_grid_is_that_of_the_cells_edges_by_proj(east: float) -> None:
    """The first grid lies on both sides of the 180th meridian."""
    rlat, rlon = np.arange(-12, 13, 0.5), np.arange(east - 20, east + 20, 0.5)
    ds = rotated(rlat, rlon)
    edges = rotated(np.append(rlat - 0.25, rlat[-1] + 0.25), np.append(rlon - 0.25, rlon[-1] + 0.25))
    place = footprint_of(ds)
    assert (place.east > 180) == (place.geometry["type"] == "MultiPolygon") == (east == -60)
    west = (place.west + 720) % 360
    lon = (edges["lon"].values - west + 1) % 360 + west - 1
    np.testing.assert_allclose([place.south, place.north], [edges["lat"].min(), edges["lat"].max()], atol=2e-3)
    np.testing.assert_allclose([west, west + place.east - place.west], [lon.min(), lon.max()], atol=5e-3)
    # Thinned, the outline may leave out slivers of its outermost cells, but no centre within.
    inner = ds.isel(rlat=slice(1, -1), rlon=slice(1, -1))
    assert holes(place, inner["lat"].values, inner["lon"].values) == 0
    assert holes(place, ds["lat"].values - 60, ds["lon"].values) > 0


def test_a_grid_around_the_pole_has_all_meridians() -> None:
    """The pole of the Earth is at 42.5 degrees north of the rotated grid, on its meridian of zero."""
    around = rotated(np.arange(30.0, 60), np.arange(-20.0, 20))
    place = footprint_of(around)
    assert (place.west, place.east, place.north) == (-180, 180, 90)
    np.testing.assert_allclose(place.south, around["lat"].min(), atol=1)
    assert footprint_of(rotated(np.arange(30.0, 40), np.arange(-20.0, 20))).north < 90


@pytest.mark.parametrize(
    ("lon", "west", "east"),
    [
        (np.arange(0.5, 360), -180, 180),
        (np.arange(-179.5, 180), -180, 180),
        (np.arange(284.5, 300), -76, -60),
        (np.array([178.5, 179.5, -179.5, -178.5]), 178, -178),
        (np.arange(179.5, 350), 179, -10),
        (np.arange(-100.5, -110, -1), -110, -100),
    ],
)
def test_longitudes_of_any_convention_give_the_same_place(lon: np.ndarray, west: float, east: float) -> None:
    lat = np.arange(60.5, 40, -1)
    place = footprint_of(xr.Dataset(coords={"lat": ("lat", lat), "lon": ("lon", lon)}))
    assert place.bbox == [west, 40, east, 61]
    assert holes(place, *np.meshgrid(lat, lon)) == 0


def test_the_projection_is_the_grid_mappings() -> None:
    found = dimensions(rotated(np.arange(-2.0, 3), np.arange(-3.0, 3)))
    assert {name: (one["axis"], one["extent"], one["step"]) for name, one in found.items()} == {
        "rlat": ("y", [-2, 2], 1),
        "rlon": ("x", [-3, 2], 1),
    }
    for one in found.values():
        cf = pyproj.CRS.from_json_dict(one["reference_system"]).to_cf()
        assert {name: cf[name] for name in made.ROTATED} == made.ROTATED


def test_a_dimension_that_is_no_place_says_its_values() -> None:
    data = xr.DataArray(np.zeros((2, 3)), dims=("season", "x"), coords={"season": ["DJF", "JJA"]})
    assert dimensions(xr.Dataset({"a": data})) == {
        "season": {"type": "other", "values": ["DJF", "JJA"]},
        "x": {"type": "other", "extent": [0, 2]},
    }


def test_the_box_around_places_on_both_sides_of_the_180th_meridian_crosses_it() -> None:
    places = [
        footprint_of(xr.Dataset(coords={"lat": ("lat", [50.0, 51]), "lon": ("lon", lon)})).bbox
        for lon in ([170.0, 171], [179.0, 180, 181, 182])
    ]
    assert union(places) == [169.5, 49.5, -177.5, 51.5]


def test_points_without_rows_and_columns_are_refused() -> None:
    with pytest.raises(DataError, match=r"lie along \('loc',\) and \('loc',\)"):
        footprint_of(xr.Dataset(coords={"lat": ("loc", [1.0, 2]), "lon": ("loc", [1.0, 2])}))
