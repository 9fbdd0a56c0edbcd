"""Coast lines of a map, from a small file of ours: Natural Earth's land, 1:50 million, in hundredths of a degree.

docs/report.md says where it comes from, docs/make_coast.py makes it.
"""

from __future__ import annotations

import functools
from importlib.resources import files

import numpy as np
import xarray as xr

from espo_luigi.science.stack import horizontal_dims

_STEPS_OF_A_DEGREE = 100
# The difference of two unit vectors, about 10 km on the ground, below which they are the same place.
_SAME_PLACE = 2e-3


def coast_lines(field: xr.DataArray) -> np.ndarray:
    """Return the pieces of coast in a map (y, x), as (piece, end, coordinate), x before y, in the map's coordinates.

    The grid is of longitudes and latitudes, or a rotated one with 2-D `lat` and `lon`; on another one there are none.
    """
    y, x = horizontal_dims(field.to_dataset(name="field"))
    ends = _in_coordinates_of(field, y, x)
    if ends is None:
        return np.empty((0, 2, 2))
    rows, columns = field[y].values, field[x].values
    middle = (columns.min() + columns.max()) / 2
    ends[..., 0] -= 360 * np.round((ends[:, :1, 0] - middle) / 360)
    low = np.array([columns.min(), rows.min()]) - 1
    high = np.array([columns.max(), rows.max()]) + 1
    inside = ((ends >= low) & (ends <= high)).all(axis=-1).any(axis=-1)
    return ends[inside & (np.abs(ends[:, 1] - ends[:, 0]).max(axis=-1) < 90)]


def _in_coordinates_of(field: xr.DataArray, y: str, x: str) -> np.ndarray | None:
    if (y, x) == ("lat", "lon"):
        return _pieces().copy()
    if not {"lat", "lon"} <= set(field.coords):
        return None
    geographic = _on_sphere(*(field[name].transpose(y, x).values for name in ("lon", "lat"))).reshape(-1, 3)
    own = _on_sphere(*np.meshgrid(field[x].values, field[y].values)).reshape(-1, 3)
    turn = _rotation(geographic, own)
    if np.abs(geographic @ turn - own).max() > _SAME_PLACE:
        return None
    vectors = _on_sphere(*np.moveaxis(_pieces(), -1, 0)) @ turn
    longitudes = np.arctan2(vectors[..., 1], vectors[..., 0])
    return np.rad2deg(np.stack([longitudes, np.arcsin(vectors[..., 2].clip(-1, 1))], axis=-1))


def _on_sphere(longitudes: np.ndarray, latitudes: np.ndarray) -> np.ndarray:
    """Unit vectors, along a new last axis, of degrees."""
    along, up = np.deg2rad(longitudes), np.deg2rad(latitudes)
    return np.stack([np.cos(up) * np.cos(along), np.cos(up) * np.sin(along), np.sin(up)], axis=-1)


def _rotation(these: np.ndarray, those: np.ndarray) -> np.ndarray:
    """The rotation (multiplied from the right) of unit vectors (n, 3) to as near to others as may be (Kabsch, 1976)."""
    left, _, right = np.linalg.svd(these.T @ those)
    return left @ np.diag([1, 1, np.sign(np.linalg.det(left @ right))]) @ right


@functools.cache
def _pieces() -> np.ndarray:
    """All pieces between neighbouring points of a line, (piece, end, coordinate), in degrees east and north."""
    with files("espo_luigi.report").joinpath("coast.npz").open("rb") as file:
        stored = np.load(file)
        steps, firsts = stored["steps"], stored["firsts"]
    # Steps are differences of 16 bits: their sums are right in 16 bits, whatever overflows between.
    points = np.cumsum(steps, axis=1, dtype=np.int16).T / _STEPS_OF_A_DEGREE
    joined = np.ones(len(points) - 1, bool)
    joined[firsts[1:] - 1] = False
    return np.stack([points[:-1], points[1:]], axis=1)[joined]
