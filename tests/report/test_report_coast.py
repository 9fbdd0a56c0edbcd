"""Coasts, borders, lakes and rivers of maps: in the right place, and on any grid."""

import numpy as np
import xarray as xr

from espo_luigi.report.maps import map_lines


def a_map(west: float, east: float, south: float, north: float, step: float = 0.25) -> xr.DataArray:
    coords = {"lat": np.arange(south, north, step), "lon": np.arange(west, east, step)}
    return xr.DataArray(np.ones([len(axis) for axis in coords.values()]), coords, ("lat", "lon"))


def nearest(pieces: np.ndarray, lon: float, lat: float) -> float:
    """Degrees between a place and the nearest end of a piece."""
    return float(np.hypot(*(pieces.reshape(-1, 2) - (lon, lat)).T).min())


def rotated(field: xr.DataArray, turn: np.ndarray) -> xr.DataArray:
    """The same cells on a grid of which `turn` brings geographic unit vectors to its own."""
    rlon, rlat = np.deg2rad(np.meshgrid(field["lon"], field["lat"]))
    own = np.stack([np.cos(rlat) * np.cos(rlon), np.cos(rlat) * np.sin(rlon), np.sin(rlat)], -1)
    vectors = own @ np.linalg.inv(turn)
    places = {
        "lon": (("rlat", "rlon"), np.rad2deg(np.arctan2(vectors[..., 1], vectors[..., 0]))),
        "lat": (("rlat", "rlon"), np.rad2deg(np.arcsin(vectors[..., 2]))),
    }
    return (
        field.drop_vars("lon")
        .drop_vars("lat")
        .rename(lat="rlat", lon="rlon")
        .assign_coords(rlat=field["lat"].values, rlon=field["lon"].values, **places)
    )


def test_the_coast_goes_past_places_that_lie_on_it() -> None:
    # The northern tip of Newfoundland, Halifax, and Gaspé's cape, from a gazetteer.
    pieces = map_lines(a_map(-70, -50, 42, 54))["coast"]
    for lon, lat in ((-55.4, 51.6), (-63.6, 44.65), (-64.2, 48.75)):
        assert nearest(pieces, lon, lat) < 0.25
    assert nearest(pieces, -68.0, 52.0) > 1, "there is no coast in the middle of Quebec"


def test_it_is_the_same_where_longitudes_are_counted_from_0_to_360() -> None:
    west, east = map_lines(a_map(-70, -50, 42, 54))["coast"], map_lines(a_map(290, 310, 42, 54))["coast"]
    np.testing.assert_allclose(east - west, np.broadcast_to([360.0, 0.0], west.shape), atol=1e-9)


def test_no_line_follows_the_date_line() -> None:
    pieces = map_lines(a_map(170, 190, 60, 72))["coast"]
    # Chukotka goes on over it: its coast is on both sides, and nothing runs along 180 degrees.
    assert pieces[..., 0].min() < 175 and pieces[..., 0].max() > 185
    along = (np.abs(pieces[..., 0] - 180) < 0.02).all(axis=1)
    assert np.abs(np.diff(pieces[along][..., 1], axis=1)).sum() < 0.1


def test_on_a_rotated_grid_the_coast_is_where_the_grid_has_those_places() -> None:
    along, up = np.deg2rad(-92.4), np.deg2rad(36.0)
    around = np.array([[np.cos(along), -np.sin(along), 0], [np.sin(along), np.cos(along), 0], [0, 0, 1]])
    over = np.array([[np.cos(up), 0, -np.sin(up)], [0, 1, 0], [np.sin(up), 0, np.cos(up)]])
    grid = rotated(a_map(15, 28, 5, 20), around @ over)
    pieces = map_lines(grid)["coast"]
    away = np.hypot(grid["lon"] + 63.6, grid["lat"] - 44.65)
    assert float(away.min()) < 0.3, "Halifax lies in this grid"
    row, column = np.unravel_index(int(away.values.argmin()), away.shape)
    assert nearest(pieces, float(grid["rlon"][column]), float(grid["rlat"][row])) < 0.4


def test_a_grid_of_another_kind_and_one_far_from_any_coast_have_none() -> None:
    other = rotated(a_map(0, 10, 0, 10), np.eye(3)).assign_coords(rlon=np.arange(40) * 5e4, rlat=np.arange(40) * 5e4)
    assert map_lines(other) == {}
    assert map_lines(other.drop_vars(["lat", "lon"])) == {}
    assert "coast" not in map_lines(a_map(95, 98, 45, 48))


def test_an_inland_map_has_borders_lakes_and_rivers() -> None:
    # Lake Constance, of which three countries have a shore; the Rhine at Mainz; the Danube at Vienna; the border
    # between Austria and Bavaria at Salzburg. From a gazetteer.
    lines = map_lines(a_map(6, 18, 47, 51))
    assert list(lines) == ["rivers", "lakes", "borders"]
    for kind, lon, lat in (
        ("lakes", 9.4, 47.6),
        ("rivers", 8.27, 50.0),
        ("rivers", 16.4, 48.2),
        ("borders", 13.0, 47.8),
    ):
        assert nearest(lines[kind], lon, lat) < 0.25, kind
    assert nearest(lines["borders"], 11.58, 48.14) > 0.4, "no border goes through Munich"
    assert nearest(lines["rivers"], 9.0, 48.5) > 0.1
