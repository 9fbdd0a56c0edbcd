"""Where a dataset lies, for GeoJSON and STAC: its outline from latitudes and longitudes, its axes, its grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.publication.products import check_installed
from espo_luigi.science.geometry.cells import outline
from espo_luigi.science.sphere import edges_of

# Outlines of rotated grids are thinned: each of the four sides keeps this many points.
_POINTS_PER_SIDE = 25
_DECIMALS = 6
_SPATIAL = {
    "lon": ("x", 4326),
    "longitude": ("x", 4326),
    "lat": ("y", 4326),
    "latitude": ("y", 4326),
    "rlon": ("x", None),
    "grid_longitude": ("x", None),
    "rlat": ("y", None),
    "grid_latitude": ("y", None),
}
"""The axis of a dimension by its standard name or its name, and the EPSG code; rotated grids have no code."""


@dataclass(frozen=True)
class Footprint:
    """The outline of all cells on the sphere, in degrees.

    `west` is in [-180, 180). `east` exceeds 180 if the cells lie on both sides of the 180th meridian.
    """

    west: float
    south: float
    east: float
    north: float
    ring: tuple[tuple[float, float], ...]
    """Longitudes and latitudes, counterclockwise and closed."""

    @property
    def bbox(self) -> list[float]:
        """West, south, east, north; west exceeds east across the 180th meridian, as in GeoJSON."""
        east = self.east - 360 if self.east > 180 else self.east
        return [_rounded(degrees) for degrees in (self.west, self.south, east, self.north)]

    @property
    def geometry(self) -> dict[str, Any]:
        """The outline as GeoJSON; two polygons if it crosses the 180th meridian."""
        if self.east <= 180:
            return {"type": "Polygon", "coordinates": [_listed(self.ring)]}
        import shapely

        whole = shapely.Polygon(self.ring)
        polygons = [
            [_listed(np.array(shapely.orient_polygons(part).exterior.coords) - (turn, 0))]
            for turn in (0, 360)
            for part in shapely.get_parts(shapely.clip_by_rect(whole, turn - 180, -90, turn + 180, 90))
        ]
        return {"type": "MultiPolygon", "coordinates": polygons}


def _rounded(degrees: float) -> float:
    # Never -0.0, which is a different text.
    return round(float(degrees), _DECIMALS) + 0.0


def _listed(ring: Any) -> list[list[float]]:
    return [[_rounded(lon), _rounded(lat)] for lon, lat in ring]


def union(boxes: Sequence[Sequence[float]]) -> list[float]:
    """Return the box around boxes, all as `Footprint.bbox` has them."""
    west, south, east, north = np.array([(w, s, e if e >= w else e + 360, n) for w, s, e, n in boxes]).T
    first, last = west.min(), east.max()
    first, last = (-180.0, 180.0) if last - first >= 360 else (first, last)
    return Footprint(first, south.min(), last, north.max(), ()).bbox


def footprint_of(ds: xr.Dataset) -> Footprint:
    """Return the footprint of a dataset's cells, to their edges; its latitudes and longitudes are computed.

    Parameters
    ----------
    ds : Dataset
        `lat` and `lon` in degrees, along one dimension each (rows and columns), or both along the same two.

    Raises
    ------
    DataError
        If there are no such coordinates.
    """
    axes = {name: ds.variables.get(name) for name in ("lat", "lon")}
    dims = {name: () if axis is None else axis.dims for name, axis in axes.items()}
    if axes["lat"] is None or axes["lon"] is None or len({*dims["lat"], *dims["lon"]}) != 2:
        raise DataError(
            f"expected latitudes `lat` and longitudes `lon` of rows and columns; they lie along {dims['lat']} and "
            f"{dims['lon']}"
        )
    lat, lon = (np.asarray(axis.values, np.float64) for axis in (axes["lat"], axes["lon"]))
    if lat.ndim == 1:
        rows, columns = (edges_of(np.sort(centres))[[0, -1]] for centres in (lat, np.unwrap(lon, period=360)))
        return _of_box(np.clip(rows, -90, 90), columns)
    return _of_outline(lat, lon)


def _of_box(lat: np.ndarray, lon: np.ndarray) -> Footprint:
    south, north = lat
    west, east = (-180.0, 180.0) if lon[1] - lon[0] > 360 - 1e-6 else lon - 360 * np.floor((lon[0] + 180) / 360)
    ring = ((west, south), (east, south), (east, north), (west, north), (west, south))
    return Footprint(west, south, east, north, ring)


def _of_outline(lat: np.ndarray, lon: np.ndarray) -> Footprint:
    sides = 2 * lat.shape[::-1]
    border = outline(*(xr.DataArray(degrees, dims=("y", "x")) for degrees in (lat, lon)))
    lat, lon = border["lat"].values, border["lon"].values
    closed = np.unwrap(np.append(lon, lon[0]), period=360)
    if abs(closed[-1] - closed[0]) > 180:
        # Around a pole: every meridian, and all latitudes up to there.
        ends = (lat.min(), 90.0) if lat.mean() > 0 else (-90.0, lat.max())
        return _of_box(np.array(ends), np.array([-180.0, 180.0]))
    lon = closed[:-1] - 360 * np.floor((closed.min() + 180) / 360)
    starts = np.cumsum([0, *sides])
    kept = [np.linspace(*ends, _POINTS_PER_SIDE, endpoint=False) for ends in pairwise(starts)]
    points = [(float(lon[at]), float(lat[at])) for at in np.unique(np.concatenate(kept).astype(int))]
    ring = (*points, points[0])
    area = sum(a[0] * b[1] - b[0] * a[1] for a, b in pairwise(ring))
    return Footprint(lon.min(), lat.min(), lon.max(), lat.max(), ring if area > 0 else ring[::-1])


def cube_of(ds: xr.Dataset, period: Sequence[str], step: str) -> dict[str, Any]:
    """Return the dimensions and variables of a dataset, as STAC's datacube extension describes them.

    `step` is the step of time, such as P1D; an empty text if it is unknown.
    """
    time: dict[str, Any] = {}
    if "time" in ds.dims:
        told = {"description": f"calendar {ds['time'].dt.calendar}", "extent": list(period)}
        time["time"] = {"type": "temporal", **told, **({"step": step} if step else {})}
    variables = {}
    for name in sorted(map(str, ds.variables)):
        data = ds[name]
        if name in ds.data_vars or data.ndim > 1:
            said = {"description": data.attrs.get("long_name"), "unit": data.attrs.get("units")}
            variables[name] = {
                "type": "data" if name in ds.data_vars else "auxiliary",
                "dimensions": [str(dim) for dim in data.dims],
                **{key: str(text) for key, text in said.items() if text},
            }
    return {
        "cube:dimensions": {**time, **dimensions(ds)},
        "cube:variables": variables,
    }


def dimensions(ds: xr.Dataset) -> dict[str, dict[str, Any]]:
    """Return the dimensions of the data variables but `time`, as STAC's datacube extension describes them."""
    names = dict.fromkeys(str(dim) for data in ds.data_vars.values() for dim in data.dims if dim != "time")
    return {name: _dimension(ds, name) for name in names}


def _dimension(ds: xr.Dataset, name: str) -> dict[str, Any]:
    along = ds[name]
    axis, code = _SPATIAL.get(along.attrs.get("standard_name", name), _SPATIAL.get(name, ("", None)))
    if along.dtype.kind not in "iuf":
        return {"type": "other", "values": [str(value) for value in along.values]}
    values = along.values.astype(np.float64)
    extent = {"extent": [_rounded(values.min()), _rounded(values.max())]}
    attrs = [data.attrs for data in ds.variables.values()]
    mappings = [each for each in attrs if each.get("grid_mapping_name") == "rotated_latitude_longitude"]
    if not axis or not (code or mappings):
        return {"type": "other", **extent}
    system = code or _projjson(mappings[0])
    steps = np.diff(values)
    is_even = steps.size > 0 and np.allclose(steps, steps[0], rtol=1e-3)
    step = {"step": abs(_rounded(steps.mean()))} if is_even else {}
    return {"type": "spatial", "axis": axis, **extent, **step, "reference_system": system}


def _projjson(mapping: dict[Any, Any]) -> dict[str, Any]:
    check_installed("pyproj", "a STAC catalogue of rotated grids")
    import pyproj

    # A grid mapping without a radius leaves the shape of the Earth open; PROJ takes WGS 84.
    projection: dict[str, Any] = pyproj.CRS.from_cf(mapping).to_json_dict()
    return projection
