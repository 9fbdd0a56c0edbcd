"""The reader of GeoJSON and shapefiles: each malformation has its sentence, and no junk has another error than ours."""

import json
from typing import Any

import pytest
import shapely
from generated import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st

from espo_luigi.errors import DataError
from espo_luigi.science.geometry.polygons import read_polygons

RING = [[0, 0], [4, 0], [4, 3], [0, 3], [0, 0]]
POLYGON = {"type": "Polygon", "coordinates": [RING]}
FEATURE = {"type": "Feature", "properties": {"n": "A"}, "geometry": POLYGON}


def collection(*features: Any, **more: Any) -> dict[str, Any]:
    return {"type": "FeatureCollection", "features": list(features), **more}


def read(content: Any) -> list[tuple[str, Any, Any]]:
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return read_polygons({"a.geojson": text})


@pytest.mark.parametrize(
    "content",
    [
        POLYGON,
        FEATURE,
        FEATURE | {"properties": None},
        {"type": "MultiPolygon", "coordinates": [[RING]]},
        {"type": "GeometryCollection", "geometries": [POLYGON, POLYGON]},
        {"type": "Polygon", "coordinates": [[[*point, 300.0] for point in RING]]},
        collection(FEATURE, crs=None),
        collection(FEATURE, crs={"type": "name", "properties": {"name": "urn:ogc:def:crs:OGC:1.3:CRS84"}}),
        collection(FEATURE, crs={"type": "EPSG", "properties": {"code": 4326}}),
        collection(FEATURE, crs={"type": "link", "properties": {"href": "http://www.opengis.net/def/crs/EPSG/0/4326"}}),
        b"\xef\xbb\xbf" + json.dumps(collection(FEATURE)).encode(),
    ],
)
def test_polygons_in_all_spellings_are_read(content: Any) -> None:
    ((_, polygon, _),) = read(content)
    assert polygon.equals(shapely.box(0, 0, 4, 3)) and not polygon.has_z


def test_a_ring_that_crosses_itself_is_mended_and_its_lines_are_left_out() -> None:
    spike = [[0, 0], [4, 0], [4, 3], [9, 3], [4, 3], [0, 3], [0, 0]]
    ((_, polygon, _),) = read({"type": "Polygon", "coordinates": [spike]})
    assert polygon.equals(shapely.box(0, 0, 4, 3)) and polygon.geom_type == "Polygon"


def of(coordinates: Any, **more: Any) -> dict[str, Any]:
    return collection(FEATURE, FEATURE | {"geometry": POLYGON | {"coordinates": coordinates} | more})


def with_crs(crs: Any) -> dict[str, Any]:
    return collection(FEATURE, crs=crs)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"{", "a.geojson cannot be read (Expecting property name"),
        (b"\xff\xfe{\x00}\x00", "a.geojson cannot be read ('utf-8' codec can't decode byte"),
        (b"[" * 1000 + b"]" * 1000, "a.geojson cannot be read (the recursion of lists"),
        ([], "a.geojson has a geometry of the type []; expected a Polygon or a MultiPolygon"),
        ({}, "a.geojson has a geometry of the type null; expected"),
        ({"features": [FEATURE]}, "a.geojson has a geometry of the type null"),
        ({"type": "Topology"}, 'a.geojson has a geometry of the type "Topology"; expected'),
        ({"type": "FeatureCollection"}, "a.geojson: `features` is null; expected a list"),
        (collection(), "a.geojson holds no polygon; expected a GeoJSON file or a shapefile"),
        (collection(FEATURE, POLYGON), 'feature 2, is {"type": "Polygon"'),
        (collection(FEATURE, {"geometry": POLYGON}), "feature 2, is {"),
        (collection(FEATURE, FEATURE | {"geometry": None}), "feature 2, has no geometry; expected a Polygon"),
        (collection(FEATURE, FEATURE | {"properties": ["A"]}), 'feature 2, has the properties ["A"]; expected'),
        (of([RING], type="Point"), 'feature 2, has a geometry of the type "Point"; expected a Polygon'),
        (of([RING], type=None), "feature 2, has a geometry of the type null"),
        (of([RING], type=["Polygon"]), 'feature 2, has a geometry of the type ["Polygon"]'),
        (
            collection(FEATURE | {"geometry": {"type": "GeometryCollection", "geometries": [
                POLYGON, {"type": "Point", "coordinates": [1, 2]}]}}),
            "feature 1, has a Point; expected polygons only",
        ),
        (of(None), "feature 2, is no valid Polygon (type must be array, but is null); expected rings of four"),
        (of([[["1", 0], *RING[1:]]]), "(type must be number, but is string); expected"),
        (of([[[float("nan"), 0], *RING[1:]]]), "feature 2, is no valid Polygon (Out of range float values"),
        (of([[[None, 0], *RING[1:]]]), "(type must be number, but is null)"),
        (of([[[1], [2], [3], [1]]]), "is no valid Polygon (ParseException: Expected two or three coordinates"),
        (of([RING[:4]]), "do not form a closed linestring); expected rings of four or more longitudes"),
        (of([RING[:2]]), "do not form a closed linestring)"),
        (of([[*RING[:2], RING[0]]]), "feature 2, has a polygon without area"),
        (of([[RING[0], RING[1], RING[1], RING[0]]]), "feature 2, has a polygon without area"),
        (of([]), "feature 2, has a polygon without area"),
        (of([[[5e5, 4e6], [6e5, 4e6], [6e5, 5e6], [5e5, 4e6]]]), "a.geojson has coordinates like 500000, 4e+06"),
        (of([[[0, 89], [4, 89], [4, 91], [0, 89]]]), "expected longitudes and latitudes (WGS 84, EPSG:4326)"),
        (with_crs({"properties": {"name": "urn:ogc:def:crs:EPSG::32198"}}), "in urn:ogc:def:crs:EPSG::32198; expected"),
        (with_crs({"properties": {"code": 34326}}), "coordinates in EPSG:34326; expected"),
        (with_crs({"properties": {}}), "coordinates in {'properties': {}}"),
        (with_crs({"properties": None}), "coordinates in {'properties': None}"),
        (with_crs("Lambert"), "coordinates in Lambert"),
        (with_crs(32198), "coordinates in 32198"),
    ],
)  # fmt: skip
def test_each_malformation_is_named_with_its_feature(content: Any, expected: str) -> None:
    with pytest.raises(DataError) as caught:
        read(content)
    assert expected in str(caught.value)
    assert str(caught.value).startswith("a.geojson") and len(str(caught.value)) < 300


KEYS = ("type", "features", "geometry", "geometries", "coordinates", "properties", "crs", "name", "code", "n")
WORDS = ("FeatureCollection", "Feature", "Polygon", "MultiPolygon", "GeometryCollection", "Point", "EPSG:4326")
NUMBERS = st.sampled_from([0, 1, 2, 3, -1, 90, 180]) | st.floats() | st.integers()
PLAIN = st.none() | st.booleans() | NUMBERS | st.text(max_size=3) | st.sampled_from(WORDS)
JUNK = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The places of all values within lists and mappings."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for key, one in inner for place in places(one, (*at, key)))]


@st.composite
def damaged(draw: st.DrawFn) -> Any:
    """A good file, in which a few values have become others, or are gone."""
    hole = [[1, 1], [2, 1], [2, 2], [1, 1]]
    several = {"type": "GeometryCollection", "geometries": [POLYGON, {"type": "MultiPolygon", "coordinates": [[RING]]}]}
    good = collection(
        FEATURE,
        FEATURE | {"geometry": POLYGON | {"coordinates": [RING, hole]}},
        FEATURE | {"geometry": several},
        crs={"type": "name", "properties": {"name": "EPSG:4326"}},
    )
    content = json.loads(json.dumps(good))
    for _ in range(draw(st.integers(1, 3))):
        *path, key = draw(st.sampled_from(places(content)[1:] or [("type",)]))
        parent = content
        for step in path:
            parent = parent[step]
        if draw(st.booleans()) and len(parent) > 1:
            del parent[key]
        else:
            parent[key] = draw(JUNK)
    return content


@settings(deadline=None, max_examples=examples(150))
@given(content=damaged() | JUNK)
def test_any_json_gives_polygons_or_an_error_of_ours(content: Any) -> None:
    try:
        found = read(content)
    except DataError as error:
        assert str(error).startswith("a.geojson")
        return
    for _, polygon, properties in found:
        assert polygon.is_valid and polygon.area > 0 and isinstance(properties, dict)
        assert polygon.geom_type in ("Polygon", "MultiPolygon")


DEGREES = st.tuples(st.floats(-180, 180), st.floats(-90, 90)) | st.sampled_from([(0.0, 0.0), (1e-300, 1.0)])


@settings(deadline=None, max_examples=examples(100))
@given(ring=st.lists(DEGREES))
@example(
    ring=[
        (0.0, 0.0), (1.0, -1.0), (1e-300, 1.0), (1.0, 2.0), (0.0, -1.401298464324817e-45), (1.0, 1.0), (0.0, 0.0),
        (0.0, 1.0), (1.0, -2.0), (0.0, 0.0), (1.0, 0.0), (0.0, 0.0), (1e-300, 1.0),
    ]
)  # fmt: skip
@example(ring=[(0.0, 0.0), (1e-300, 1.0), (1.41e-241, -5.6e-261), (-1.0, 0.0), (0.0, -1.0)])
def test_any_ring_of_degrees_gives_a_valid_polygon_or_an_error_of_ours(ring: list[tuple[float, float]]) -> None:
    closed = [*ring, *ring[:1]]
    try:
        ((_, polygon, _),) = read({"type": "Polygon", "coordinates": [closed]})
    except DataError as error:
        assert "without area, or beyond repair" in str(error) or len(closed) < 4
        return
    assert polygon.is_valid and polygon.area > 0


@settings(deadline=None, max_examples=examples(100))
@given(text=st.binary(max_size=40))
def test_any_bytes_give_an_error_of_ours(text: bytes) -> None:
    for files in ({"a.geojson": text}, {"a.shp": text, "a.dbf": text}, {"a.shp": text, "a.prj": text}):
        with pytest.raises(DataError):
            read_polygons(files)
