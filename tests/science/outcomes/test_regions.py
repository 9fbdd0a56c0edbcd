"""Means over regions, against xscen (boxes) and against areas in another equal-area projection, by PROJ."""

import io
import json
from pathlib import Path

import numpy as np
import pyproj
import pytest
import shapefile
import shapely
import xarray as xr
from tg_ensemble import BOX, FOLDER, opened_whole

from espo_luigi.errors import DataError
from espo_luigi.science.geometry.boxes import Box
from espo_luigi.science.outcomes.regions import Point, parse_regions, region_means

GOLDEN = Path(__file__).parents[2] / "data" / "golden"
CYLINDER = pyproj.Transformer.from_crs("+proj=longlat +R=1", "+proj=cea +R=1", always_xy=True)


def regular(lat, lon, **dims):
    values = np.random.default_rng(0).normal(10, 5, (*dims.values(), len(lat), len(lon)))
    return xr.Dataset({"t": ((*dims, "lat", "lon"), values, {"units": "K"})}, {"lat": lat, "lon": lon})


def rotated(step=0.5, size=(31, 41)):
    """A rotated grid over Europe, two-dimensional coordinates, longitudes 0-360."""
    rlat, rlon = (np.arange(n) * step - (n // 2) * step for n in size)
    turn = pyproj.Transformer.from_crs(
        "+proj=ob_tran +o_proj=longlat +o_lon_p=0 +o_lat_p=39.25 +lon_0=18 +R=1 +to_meter=0.0174532925199433",
        "+proj=longlat +R=1",
        always_xy=True,
    )
    lon, lat = turn.transform(*np.meshgrid(rlon, rlat))
    values = np.random.default_rng(1).normal(10, 5, size)
    return xr.Dataset(
        {"t": (("rlat", "rlon"), values)},
        {"rlat": rlat, "rlon": rlon, "lat": (("rlat", "rlon"), lat), "lon": (("rlat", "rlon"), lon % 360)},
    )


def mean_on_cylinder(ds, polygon):
    """The mean by areas on a cylinder, where cells of a regular grid are rectangles."""

    def flat(geometry):
        return shapely.transform(
            shapely.segmentize(geometry, 0.02), lambda c: np.stack(CYLINDER.transform(*c.T), axis=-1)
        )

    lat, lon = ds["lat"].values, (ds["lon"].values + 180) % 360 - 180
    dy, dx = abs(np.diff(lat)[0]) / 2, abs(np.diff(lon)[0]) / 2
    cells = [[shapely.box(x - dx, max(y - dy, -90), x + dx, min(y + dy, 90)) for x in lon] for y in lat]
    of_region = flat(polygon)
    share = np.array([[shapely.area(shapely.intersection(flat(cell), of_region)) for cell in row] for row in cells])
    return float((ds["t"].values * share).sum() / share.sum())


LAKE = shapely.Polygon(
    [(-77, 44), (-60.3, 45.2), (-58, 52), (-66, 58.7), (-79.5, 55)], [[(-70, 48), (-66, 48.5), (-67, 51)]]
)


@pytest.mark.skipif(not FOLDER.is_dir(), reason="no ../shared/data/ensemble-tg beside the project")
def test_the_mean_of_a_box_is_xscens():
    made = region_means(
        opened_whole(), {"box": Box(*BOX), "same": shapely.box(BOX[0][0], BOX[1][0], BOX[0][1], BOX[1][1])}
    )
    with xr.open_dataset(GOLDEN / "regions-box.nc", engine="h5netcdf") as golden:
        for name in ("box", "same"):
            xr.testing.assert_allclose(
                made["tg_mean"].sel(region=name, drop=True).drop_attrs(),
                golden["tg_mean"],
                rtol=1e-5,
            )


@pytest.mark.parametrize("turn", [0, 360])
@pytest.mark.parametrize("step", [0.5, 2.5])
def test_the_mean_of_a_polygon_with_a_hole_is_weighted_by_exact_areas(turn, step):
    lat, lon = np.arange(62, 40, -step), np.arange(-85, -50, step)
    made = region_means(regular(lat, lon + turn), {"lake": LAKE})
    np.testing.assert_allclose(float(made["t"][0]), mean_on_cylinder(regular(lat, lon + turn), LAKE), rtol=1e-5)
    np.testing.assert_allclose(made["coverage"], 1, rtol=1e-6)


def test_the_mean_of_a_polygon_around_the_world_or_over_the_antimeridian_and_a_pole_is_exact():
    ds = regular(np.arange(-85.0, 90, 10), np.arange(5.0, 360, 10))
    weights = np.sin(np.deg2rad(ds["lat"] + 5)) - np.sin(np.deg2rad(ds["lat"] - 5))
    regions = {
        "world": shapely.box(-180, -90, 180, 90),
        "box": Box((-180, 180), (-90, 90)),
        "pole": shapely.box(-180, 70, 180, 90),
        "Fiji": shapely.box(175, -20, 185, -15),
        "Fiji's box": Box((175, -175), (-20, -15)),
    }
    made = region_means(ds, regions)["t"]
    mean = ds["t"].weighted(weights).mean(("lat", "lon"))
    np.testing.assert_allclose(made.sel(region=["world", "box"]), mean, rtol=1e-5)
    np.testing.assert_allclose(
        made.sel(region="pole"), ds["t"].sel(lat=slice(70, 90)).weighted(weights).mean(), rtol=1e-5
    )
    np.testing.assert_allclose(
        made.sel(region=["Fiji", "Fiji's box"]), ds["t"].sel(lat=-15, lon=[175, 185]).mean(), rtol=1e-5
    )


def test_on_a_rotated_grid_a_box_as_a_polygon_has_the_mean_of_the_box():
    ds = rotated()
    west, east, south, north = 12.0, 23.0, 47.0, 54.0
    made = region_means(
        ds, {"box": Box((west, east), (south, north)), "polygon": shapely.box(west, south, east, north)}
    )
    np.testing.assert_allclose(made["t"][1], made["t"][0], rtol=1e-5)
    np.testing.assert_allclose(made["coverage"], 1, rtol=1e-5)


@pytest.mark.parametrize("middle", [0.0, 0.5])
def test_cells_around_a_pole_and_over_the_antimeridian_have_the_mean_of_the_box(middle):
    x = (np.arange(30) - 15 + middle) * 1e5
    turn = pyproj.Transformer.from_crs("+proj=laea +lat_0=90 +R=6371000", "+proj=longlat +R=6371000", always_xy=True)
    lon, lat = turn.transform(*np.meshgrid(x, x))
    values = np.random.default_rng(2).normal(10, 5, lon.shape)
    ds = xr.Dataset({"t": (("y", "x"), values)}, {"y": x, "x": x, "lat": (("y", "x"), lat), "lon": (("y", "x"), lon)})
    made = region_means(
        ds,
        {
            "cap": Box((-180, 180), (84, 90)), "same": shapely.box(-180, 84, 180, 90),
            "far": Box((170, -165), (80, 82)), "even so": shapely.box(170, 80, 195, 82),
        },
    )  # fmt: skip
    np.testing.assert_allclose(made["t"][1::2], made["t"][::2], rtol=5e-5)
    np.testing.assert_allclose(made["coverage"], 1, rtol=1e-5)


def test_a_point_has_the_values_of_its_nearest_cell_on_both_kinds_of_grids():
    ds = regular(np.arange(40.0, 60), np.arange(280.0, 300))
    made = region_means(ds, {"Montréal": Point(-73.6, 45.4)})
    assert float(made["t"][0]) == float(ds["t"].sel(lat=45, lon=286))
    np.testing.assert_allclose([made["lat"][0], made["lon"][0]], [45, -74], rtol=1e-9)
    at_0 = region_means(regular(np.arange(40.0, 60), np.arange(360.0)), {"a": Box((350, 10), (44.5, 45.5))})
    np.testing.assert_allclose([at_0["lat"][0], at_0["lon"][0]], [45, 0], atol=0.5)
    grid = rotated()
    assert float(
        region_means(grid, {"x": Point(float(grid["lon"][3, 5]), float(grid["lat"][3, 5]) + 0.1)})["t"][0]
    ) == float(grid["t"][3, 5])


def test_a_curvilinear_domain_of_a_single_row_is_refused_as_its_cells_have_no_height():
    lat, lon = ("y", "x"), np.array([[50.0, 50.1, 50.2]])
    ds = xr.Dataset({"t": (lat, np.ones((1, 3)))}, {"lat": (lat, lon), "lon": (lat, lon - 40)})
    with pytest.raises(DataError, match="the grid has 1 x 3 cells"):
        region_means(ds, {"here": Point(50.1, 10.1)})


@pytest.mark.parametrize(("lat", "lon"), [([52.5], [13.0, 13.25, 13.5]), ([52.25, 52.5], [13.25]), ([52.5], [13.25])])
def test_a_domain_of_a_single_row_or_cell_has_its_point_and_its_box(lat, lon):
    ds = regular(np.array(lat), np.array(lon))
    cell = float(ds["t"].sel(lat=52.5, lon=13.25))
    inside = Box((13.2, 13.3), (52.45, 52.55))
    means = region_means(ds, {"town": Point(13.3, 52.52), "box": inside})
    np.testing.assert_allclose(means["t"], [cell, cell], rtol=1e-12)
    np.testing.assert_allclose(means["coverage"], 1)


def test_cells_without_a_value_are_left_out_and_the_coverage_tells_of_the_sea():
    ds = regular(np.arange(40.0, 50), np.arange(10.0, 20), time=3).chunk(time=1)
    ds["t"] = ds["t"].where(ds["lon"] < 15)
    ds["robust"] = xr.zeros_like(ds["t"], dtype="int8").assign_attrs(flag_values=[1, 2])
    ds["named"] = ds["t"].astype(str)
    ds["by_time"] = ds["time"] * 1.0
    made = region_means(ds, {"a": Box((9.5, 19.5), (39.5, 49.5))}, land=ds["t"].notnull().all("time"))
    assert made["t"].chunks is not None
    assert list(made.data_vars) == ["t"]
    assert made["t"].dims == ("region", "time")
    assert made["t"].attrs == {"units": "K"}
    weights = np.cos(np.deg2rad(ds["lat"]))
    xr.testing.assert_allclose(
        made["t"][0].drop_vars(["region", "coverage", "lat", "lon"]),
        ds["t"].weighted(weights).mean(("lat", "lon")),
        rtol=1e-5,
    )
    np.testing.assert_allclose(made["coverage"], 0.5, rtol=1e-6)


@pytest.mark.parametrize(
    "region", [Box((100, 110), (0, 10)), shapely.box(100, 0, 110, 10), Point(100, 0), Point(21.5, 45)]
)
def test_a_region_outside_of_the_domain_is_named(region):
    with pytest.raises(
        DataError,
        match=r"region 'far' lies outside of the domain: got .* reaches from 40 to 49 degrees north and 10 to 19",
    ):
        region_means(regular(np.arange(40.0, 50), np.arange(10.0, 20)), {"far": region})


@pytest.mark.parametrize("region", [Box((15.6, 18), (42, 44)), shapely.box(15.6, 42, 18, 44), Point(17, 43)])
def test_a_region_without_land_is_named(region):
    ds = regular(np.arange(40.0, 50), np.arange(10.0, 20))
    land = xr.broadcast(ds["lon"] < 15, ds["lat"])[0]
    with pytest.raises(DataError, match="region 'sea' has no land cell"):
        region_means(ds, {"sea": region}, land=land)


def geojson(*features, **more):
    of = [{"type": "Feature", "properties": p, "geometry": shapely.geometry.mapping(g)} for p, g in features]
    return {"a.geojson": json.dumps({"type": "FeatureCollection", "features": of, **more}).encode()}


def shapes(prj=b'GEOGCS["WGS 84"]', box=(0, 0, 2, 1), encoding="utf-8"):
    parts = {name: io.BytesIO() for name in ("shp", "shx", "dbf")}
    with shapefile.Writer(**parts, encoding=encoding) as writer:
        writer.field("NAME", "C")
        writer.shape(shapely.geometry.mapping(shapely.box(*box)))
        writer.record("Île")
    return {f"a.{name}": part.getvalue() for name, part in parts.items()} | {"a.prj": prj}


def test_polygons_of_a_geojson_file_and_of_a_shapefile_have_the_names_of_a_property():
    one, two, far = shapely.box(0, 0, 1, 1), shapely.box(1, 0, 2, 1), shapely.box(10, 0, 11, 1)
    found = parse_regions(geojson(({"n": "A"}, one), ({"n": "A"}, two), ({"n": 7}, far)), "n")
    assert list(found) == ["A", "7"]
    assert found["A"].equals(shapely.box(0, 0, 2, 1))
    assert parse_regions(shapes(), "NAME")["Île"].equals(shapely.box(0, 0, 2, 1))
    assert list(parse_regions(shapes(encoding="cp1252") | {"a.cpg": b"1252\n"}, "NAME")) == ["Île"]


@pytest.mark.parametrize(
    ("files", "what"),
    [
        (shapes(prj=b'PROJCS["NAD83 / Quebec Lambert"]'), r'coordinates in PROJCS\["NAD83'),
        (geojson(({"m": "A"}, LAKE)), "no property 'n' to name regions by; got m"),
        (geojson(({"n": None}, LAKE)), "feature 1: no property 'n' to name regions by; got n: 'None'"),
        (geojson(({"n": ["A"]}, LAKE)), "no property 'n' to name regions by"),
    ],
)
def test_a_file_without_usable_polygons_is_named(files, what):
    with pytest.raises(DataError, match=what):
        parse_regions(files, "n")


def test_polygons_of_many_vertices_are_cut_and_keep_their_area():
    angles = np.linspace(0, 2 * np.pi, 20_000, endpoint=False)
    radius = 6 + 0.5 * np.sin(40 * angles)
    star = shapely.Polygon(np.stack([-70 + radius * np.cos(angles), 50 + radius * np.sin(angles) * 0.6], axis=1))
    ds = regular(np.arange(40, 60, 1.0), np.arange(-85, -55, 1.0))
    np.testing.assert_allclose(float(region_means(ds, {"star": star})["t"][0]), mean_on_cylinder(ds, star), rtol=1e-5)


def zigzag(teeth, height):
    """A valid ring whose edges go up and down, `teeth` times to the east and back, of 1 degree."""
    x, odd = np.linspace(0, 1, teeth), np.arange(teeth) % 2
    up, down = np.column_stack([x, 1e-4 + odd * height]), np.column_stack([x, odd * (height - 2e-4)])
    return shapely.Polygon([*up, *down[::-1]])


@pytest.mark.parametrize(("teeth", "height"), [(10_000, 0.05), (2000, 20)])
def test_a_zigzag_that_would_take_for_ever_is_refused(teeth, height):
    with pytest.raises(DataError, match=r"The region 'z' is too intricate: .* vertices and \d+ degrees; expected an"):
        region_means(regular(np.arange(0.0, 21), np.arange(0.0, 21)), {"z": zigzag(teeth, height)})


def test_edges_that_cross_each_other_again_and_again_are_refused():
    at = np.random.default_rng(0).uniform(1, 9, (2000, 2)).tolist()
    ring = {"type": "Polygon", "coordinates": [[*at, at[0]]]}
    content = json.dumps({"type": "Feature", "geometry": ring, "properties": {"name": "z"}}).encode()
    with pytest.raises(DataError, match=r"z.geojson has 2000 edges that cross each other some \d{6} times"):
        parse_regions({"z.geojson": content}, "name")
