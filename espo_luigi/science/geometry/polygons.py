"""The polygons of other people's files, GeoJSON and shapefiles, in longitudes and latitudes."""

from __future__ import annotations

import importlib
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from espo_luigi.errors import DataError
from espo_luigi.files import parse_json

# The names of coordinate systems in degrees east and north: WGS 84, NAD83 and ETRS89.
_DEGREES = re.compile(r"(CRS:?8[34]|EPSG[:/]([\d.]*[:/])?(4326|4269|4258))$", re.IGNORECASE)
# So many vertices are mended, or joined, in seconds however their edges cross.
_FEW_VERTICES, _SAMPLE, _MOST_CROSSINGS = 50, 100, 1000
_POLYGONS = ("Polygon", "MultiPolygon", "GeometryCollection")


def read_polygons(files: Mapping[str, bytes]) -> list[tuple[str, Any, Mapping[str, Any]]]:
    """Return of each feature its place in the file (for errors), its polygon, and its properties.

    A polygon is shapely's Polygon or MultiPolygon, in degrees, valid, without heights. GEOS mends rings that cross
    themselves.

    Parameters
    ----------
    files
        The content by file name: a GeoJSON file, or a shapefile's `.shp`, `.dbf` and, if there are any, `.prj`
        and `.cpg`.

    Raises
    ------
    DataError
        If the file is neither, has no polygons or other geometries, too, or is in another projection, or pyshp is
        missing for a shapefile.
    """
    import shapely  # here, as it takes a tenth of a second, and most jobs need none

    where = next(iter(files), "")
    parts = {name.rpartition(".")[2].lower(): content for name, content in files.items()}
    found = []
    for at, shape, properties in _of_shapefile(parts, where) if "shp" in parts else _of_geojson(files[where], where):
        kinds = {part.geom_type for part in shapely.get_parts(shapely.get_parts(shape))}
        if kinds - {"Polygon"}:
            raise DataError(f"{at} has a {', '.join(sorted(kinds - {'Polygon'}))}; expected polygons only.")
        west, south, east, north = shape.bounds
        if not shape.is_empty and not (-360 <= west <= east <= 360 and -90 <= south <= north <= 90):
            raise _projected(where, f"coordinates like {west:g}, {south:g}")
        if not shapely.is_valid(shape):
            check_crossings([shape], at)
        # GEOS does not mend all rings with numbers like 1e-300.
        valid = shapely.MultiPolygon()
        with suppress(shapely.GEOSException):
            valid = shapely.make_valid(shapely.force_2d(shape))
            if valid.geom_type == "GeometryCollection":
                pieces = shapely.get_parts(shapely.get_parts(valid))
                valid = shapely.union_all([part for part in pieces if part.area])
        if not (valid.area and valid.is_valid):
            raise DataError(f"{at} has a polygon without area, or beyond repair. Correct it, or leave it out.")
        found.append((at, valid, properties))
    if not found:
        raise DataError(f"{where} holds no polygon; expected a GeoJSON file or a shapefile with one or more.")
    return found


def check_crossings(polygons: Sequence[Any], what: str) -> None:
    """Raise `DataError` if edges cross each other so often, by a sample of them, that GEOS would take for ever."""
    import shapely

    rings = shapely.get_rings(shapely.get_parts(shapely.get_parts(polygons)))
    at, ring = shapely.get_coordinates(rings, return_index=True)
    if len(at) <= _FEW_VERTICES:
        return
    at = at @ (1, 1j)
    start, along = (values[ring[:-1] == ring[1:]] for values in (at[:-1], np.diff(at)))
    pairs = 0
    for edge in np.random.default_rng(0).integers(len(start), size=_SAMPLE):
        to_start, other = start - start[edge], along[edge]
        apart = (other.conj() * to_start).imag * (other.conj() * (to_start + along)).imag < 0
        pairs += int((apart & ((along.conj() * to_start).imag * (along.conj() * (to_start - other)).imag < 0)).sum())
    # A single pair of a large polygon's edges says nothing.
    if pairs > 10 and (crossings := pairs * len(start) // (2 * _SAMPLE)) > _MOST_CROSSINGS:
        raise DataError(
            f"{what} has {len(start)} edges that cross each other some {crossings} times; expected polygons that do "
            f"not, or {_MOST_CROSSINGS} times at most. Correct the polygons."
        )


def _projected(where: str, got: str) -> DataError:
    return DataError(
        f"{where} has {got}; expected longitudes and latitudes (WGS 84, EPSG:4326). Convert the file: "
        "ogr2ogr -t_srs EPSG:4326 new.geojson FILE"
    )


def _of_geojson(text: bytes, where: str) -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
    import shapely

    try:
        content = parse_json(text.decode("utf-8-sig"))
    except ValueError as error:
        raise DataError(f"{where} cannot be read ({error}); expected GeoJSON in UTF-8, or a shapefile.") from error
    outermost = content if isinstance(content, Mapping) else {}
    _check_crs(outermost.get("crs"), where)
    several = outermost.get("type") == "FeatureCollection"
    features = outermost.get("features") if several else [content]
    if not isinstance(features, list):
        raise DataError(f"{where}: `features` is {_short(features)}; expected a list.")
    for number, one in enumerate(features, start=1):
        at, feature = f"{where}, feature {number}," if several else where, one if isinstance(one, Mapping) else {}
        if feature.get("type") != "Feature":
            if several:
                raise DataError(f"{at} is {_short(one)}; expected an object of the type Feature.")
            feature = {"geometry": one}
        geometry, properties = feature.get("geometry"), feature.get("properties") or {}
        kind = geometry.get("type") if isinstance(geometry, Mapping) else geometry
        if kind not in _POLYGONS:
            got = "no geometry" if geometry is None else f"a geometry of the type {_short(kind)}"
            raise DataError(f"{at} has {got}; expected a Polygon or a MultiPolygon.")
        if not isinstance(properties, Mapping):
            raise DataError(f"{at} has the properties {_short(properties)}; expected an object.")
        try:
            yield at, shapely.from_geojson(json.dumps(geometry, allow_nan=False)), properties
        except (ValueError, shapely.errors.ShapelyError) as error:
            why = re.sub(r".*\] |'$", "", str(error))
            raise DataError(
                f"{at} is no valid {kind} ({why}); expected rings of four or more longitudes and latitudes, the last "
                "as the first."
            ) from error


def _short(value: Any) -> str:
    return json.dumps(value)[:60]


def _check_crs(crs: Any, where: str) -> None:
    """Refuse coordinates that are not longitudes and latitudes; GeoJSON of before 2016 may name another system."""
    named = crs.get("properties") if isinstance(crs, Mapping) else None
    name = crs
    if isinstance(named, Mapping):
        name = f"EPSG:{named['code']}" if "code" in named else named.get("name", named.get("href", crs))
    if crs is not None and not _DEGREES.search(str(name)):
        raise _projected(where, f"coordinates in {str(name)[:100]}")


def _of_shapefile(parts: Mapping[str, bytes], where: str) -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
    from shapely.geometry import shape

    if "prj" in parts and not parts["prj"].lstrip().upper().startswith((b"GEOGCS", b"GEOGCRS")):
        raise _projected(where, f"coordinates in {parts['prj'][:60].decode(errors='replace')}")
    try:
        reader = importlib.import_module("shapefile").Reader
    except ImportError as error:
        raise DataError(f"{where}: shapefiles need pyshp ({error}): pip install 'espo_luigi[regions]'") from error
    try:
        read = {part: io.BytesIO(parts[part]) for part in ("shp", "dbf")}
        encoding = parts.get("cpg", b"utf-8").decode().strip()
        for number, record in enumerate(reader(**read, encoding=encoding).iterShapeRecords(), start=1):
            yield f"{where}, feature {number},", shape(record.shape.__geo_interface__), record.record.as_dict()
    # pyshp raises nearly anything on damaged files.
    except Exception as error:
        raise DataError(
            f"{where} cannot be read ({error!r}). Expected a shapefile with .shp and .dbf, or GeoJSON."
        ) from error
