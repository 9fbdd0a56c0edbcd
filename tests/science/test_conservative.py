"""Conservative regridding: equal to CDO's `remapcon`, and integrals over areas are conserved."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from espo_luigi.errors import DataError
from espo_luigi.science.attributes import EXTRAPOLATED_CELLS, REGRID_METHODS, RegridMethod
from espo_luigi.science.conservative import Quadrilaterals, cells_of, conservative_weights
from espo_luigi.science.regrid import check_covered, part_reached, regrid, regrid_cells, weigh
from espo_luigi.science.sphere import Grid, unit_vectors
from espo_luigi.science.stack import grid_of, stack_drop_nans

needs_cdo = pytest.mark.skipif(shutil.which("cdo") is None, reason="CDO, the oracle, is not installed")
PR: dict[str, RegridMethod] = {"pr": "conservative"}
NORMED: dict[str, RegridMethod] = {"pr": "conservative_normed"}


def regular(south: float, north: float, d_lat: float, west: float, east: float, d_lon: float) -> Grid:
    return Grid(np.arange(south, north, d_lat) + d_lat / 2, np.arange(west, east, d_lon) + d_lon / 2, "rectilinear")


def rotated(rows: int, columns: int, step: float, *, pole: float = 39.25, bounds: bool = True) -> Grid:
    """A grid of a rotated pole, around 10.75 degrees below that pole's antipole, with the corners of its cells."""

    def turned(rlat: np.ndarray, rlon: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        up, along, tilt = np.deg2rad(rlat), np.deg2rad(rlon), np.deg2rad(90 - pole)
        x, y, z = np.cos(up) * np.cos(along), np.cos(up) * np.sin(along), np.sin(up)
        east, north = np.cos(tilt) * x - np.sin(tilt) * z, np.sin(tilt) * x + np.cos(tilt) * z
        return np.rad2deg(np.arcsin(north)), (np.rad2deg(np.arctan2(y, east)) + 18) % 360

    rlat, rlon = np.meshgrid(*((np.arange(n) - n / 2) * step for n in (rows, columns)), indexing="ij")
    half = step / 2
    around = [turned(rlat + dy, rlon + dx) for dy, dx in ((-half, -half), (-half, half), (half, half), (half, -half))]
    lat, lon = (np.stack(values, axis=-1) for values in zip(*around, strict=True))
    return Grid(*turned(rlat, rlon), "curvilinear", bounds=(lat, lon) if bounds else None)


def dataset(grid: Grid, **variables: np.ndarray) -> xr.Dataset:
    """Variables (time, y, x) on a grid, with its bounds as our extracted data have them."""
    if grid.layout == "rectilinear":
        coords: dict[str, Any] = {"lat": grid.lat, "lon": grid.lon}
        dims: tuple[str, ...] = ("lat", "lon")
        for name, values in zip(dims, grid.bounds or (), strict=False):
            coords[f"{name}_bounds"] = ((name, "bnds"), values)
    else:
        dims, coords = ("rlat", "rlon"), {"lat": (("rlat", "rlon"), grid.lat), "lon": (("rlat", "rlon"), grid.lon)}
        coords |= {name: np.arange(size) * 0.1 for name, size in zip(dims, grid.shape, strict=True)}
        if grid.bounds:
            coords |= {
                f"{name}_bounds": ((*dims, "corner"), values)
                for name, values in zip(("lat", "lon"), grid.bounds, strict=True)
            }
    return xr.Dataset({name: (("time", *dims), values) for name, values in variables.items()}, coords)


def rain(grid: Grid, days: int = 1) -> np.ndarray:
    return np.random.default_rng(7).gamma(0.5, 5, (days, *grid.shape))


def write(grid: Grid, values: np.ndarray, path: Path) -> None:
    """Write a map for CDO, with the grid's bounds."""
    ds = dataset(grid, pr=values[None]).isel(time=0).drop_vars(["rlat", "rlon"], errors="ignore")
    ds["pr"].encoding = {"_FillValue": -9e33}
    for name, standard_name in {"lat": "latitude", "lon": "longitude"}.items():
        ds[name].attrs = {"standard_name": standard_name, "units": f"degrees_{'north' if name == 'lat' else 'east'}"}
        if f"{name}_bounds" in ds.coords:
            ds[name].attrs["bounds"] = f"{name}_bounds"
            ds[f"{name}_bounds"].attrs["units"] = ds[name].attrs["units"]
    ds.reset_coords([name for name in ds.coords if str(name).endswith("_bounds")]).to_netcdf(path)


def remapcon(source: Grid, target: Grid, values: np.ndarray, folder: Path, norm: str) -> np.ndarray:
    write(source, values, folder / "source.nc")
    write(target, np.zeros(target.shape), folder / "target.nc")
    command = ["cdo", "-s", "-b", "F64", f"remapcon,{folder / 'target.nc'}", "source.nc", "out.nc"]
    subprocess.run(
        command, cwd=folder, check=True, capture_output=True, env={"CDO_REMAP_NORM": norm, "PATH": "/usr/bin"}
    )
    with xr.open_dataset(folder / "out.nc") as out:
        return out["pr"].values.ravel()


GLOBE = regular(-90, 90, 2.5, 0, 360, 2.8125)


@needs_cdo
@pytest.mark.parametrize("norm", ["fracarea", "destarea"])
@pytest.mark.parametrize(
    ("source", "target", "tolerance"),
    [
        (GLOBE, regular(30, 60, 0.7, -20, 50, 0.9), 1e-10),
        (regular(31, 57, 0.5, -18, 30, 0.6), regular(30, 60, 1.7, -20, 50, 1.9), 1e-10),
        (Grid(GLOBE.lat[::-1], GLOBE.lon, "rectilinear"), regular(60, 90, 0.7, 170, 200, 0.9), 1e-10),
        (rotated(40, 50, 0.44), regular(40, 60, 0.7, -10, 20, 0.9), 5e-5),
        (rotated(30, 30, 4.0, pole=5), regular(66, 90, 1.5, 0, 360, 4.0), 5e-5),
        (GLOBE, rotated(20, 25, 0.44), 5e-5),
        (rotated(40, 50, 0.44), rotated(60, 70, 0.3), 1e-10),
    ],
    ids=["regular", "to coarse, in part", "to the pole", "rotated", "over the pole", "to rotated", "rotated twice"],
)
def test_values_are_those_of_cdo(tmp_path: Path, source: Grid, target: Grid, tolerance: float, norm: str) -> None:
    values = rain(source)[0]
    expected = remapcon(source, target, values, tmp_path, norm)
    matrix = conservative_weights(cells_of(source), cells_of(target), normed=norm == "fracarea")
    found = matrix @ values.ravel()
    # CDO leaves out cells that are hardly covered.
    there = np.isfinite(expected)
    assert there.mean() > 0.15
    covered = np.asarray(conservative_weights(cells_of(source), cells_of(target)).sum(axis=1)).ravel()
    assert np.nan_to_num(covered[~there]).max(initial=0) < 1e-3
    np.testing.assert_allclose(found[there], expected[there], rtol=0, atol=tolerance * values.max())


@st.composite
def axes(draw: st.DrawFn, low: float, high: float, fewest: int) -> np.ndarray:
    """Edges from one value to another, whose steps differ by up to two."""
    steps = np.array(draw(st.lists(st.floats(0.5, 1), min_size=fewest, max_size=12)))
    return low + (high - low) * np.concatenate([[0], np.cumsum(steps) / steps.sum()])


@st.composite
def globes(draw: st.DrawFn) -> Grid:
    """A global grid of any rows and columns, from any longitude and in any direction, with bounds."""
    lat, lon = draw(axes(-90, 90, 4)), draw(axes(0, 360, 8)) + draw(st.floats(-360, 360))
    bounds = [np.stack([edges[:-1], edges[1:]], axis=1) for edges in (lat, lon)]
    bounds = [values[::-1] if draw(st.booleans()) else values for values in bounds]
    return Grid(bounds[0].mean(axis=1), bounds[1].mean(axis=1), "rectilinear", bounds=(bounds[0], bounds[1]))


@settings(deadline=None, max_examples=60)
@given(source=globes(), target=globes(), between=globes())
def test_integrals_are_conserved_between_any_globes(source: Grid, target: Grid, between: Grid) -> None:
    first, second, last = (cells_of(grid) for grid in (source, between, target))
    values = np.random.default_rng(3).gamma(0.5, 5, source.size)
    found = conservative_weights(second, last) @ (conservative_weights(first, second) @ values)
    assert last.areas().sum() == pytest.approx(4 * np.pi)
    assert found @ last.areas() == pytest.approx(values @ first.areas(), rel=1e-9)
    assert found.min() >= values.min() - 1e-9
    assert found.max() <= values.max() + 1e-9


@settings(deadline=None, max_examples=4, phases=[Phase.explicit, Phase.generate])
@given(
    cells_of_globe=st.tuples(st.integers(20, 50), st.integers(40, 90)), pole=st.floats(-80, 80), rows=st.integers(5, 12)
)
def test_integrals_are_conserved_from_rotated_grids(cells_of_globe: tuple[int, int], pole: float, rows: int) -> None:
    target = regular(-90, 90 - 1e-9, 180 / cells_of_globe[0], -75, 285 - 1e-9, 360 / cells_of_globe[1])
    cells = cells_of(rotated(rows, 13, 1.7, pole=pole))
    values, areas = np.random.default_rng(3).gamma(0.5, 5, cells.size), cells_of(target).areas()
    found = np.nan_to_num(conservative_weights(cells, cells_of(target)) @ values)
    assert found @ areas == pytest.approx(values @ cells.areas(), rel=1e-6)
    back = conservative_weights(cells_of(target), cells) @ np.ones(target.size)
    np.testing.assert_allclose(back, 1, rtol=1e-6)


@pytest.mark.parametrize("step", [1.1, 1 / 3, 0.942])
def test_bounds_that_differ_by_round_off_leave_no_gap(step: float) -> None:
    lat, lon = (np.arange(first, last, step) for first, last in ((-30, 30), (-60, 60)))
    bounds = [(np.float32(of - step / 2), np.float32(of + step / 2)) for of in (np.float32(lat), np.float32(lon))]
    south, west = (np.stack(both, axis=1).astype("f8") for both in bounds)
    source = cells_of(Grid(lat, lon, "rectilinear", bounds=(south, west)))
    target = cells_of(regular(-20, 20, 0.1, -50, 50, 0.1))
    weights = conservative_weights(source, target)
    np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-9)


def bounded(lat: np.ndarray, lon: np.ndarray) -> Grid:
    """Cells half-way between centres, with bounds; rows end at the poles."""
    edges = [np.concatenate([[3 * v[0] - v[1], *(v[1:] + v[:-1]), 3 * v[-1] - v[-2]]]) / 2 for v in (lat, lon)]
    south, west = (np.stack([values[:-1], values[1:]], axis=1) for values in edges)
    return Grid(lat, lon, "rectilinear", bounds=(np.clip(south, -90, 90), west))


def changed(grid: Grid, lat: Any = lambda bounds: bounds, lon: Any = lambda bounds: bounds) -> Grid:
    assert grid.bounds is not None
    return Grid(grid.lat, grid.lon, grid.layout, bounds=(lat(grid.bounds[0].copy()), lon(grid.bounds[1].copy())))


GAUSSIAN = np.rad2deg(np.arcsin(np.polynomial.legendre.leggauss(64)[0]))
AROUND = bounded(GAUSSIAN, np.arange(0, 360, 2.8125))
POLES = bounded(np.linspace(-90, 90, 73), np.arange(1.25, 360, 2.5))
PART = bounded(np.arange(30.25, 60, 0.5), np.arange(-20.0, 40, 0.6))
TURNED = bounded(GAUSSIAN[::-1], np.arange(-180.0, 180, 2.8125))


def float32(bounds: np.ndarray) -> np.ndarray:
    return bounds.astype("float32").astype("float64")


@needs_cdo
@pytest.mark.parametrize(
    "given",
    [
        AROUND,
        POLES,
        PART,
        TURNED,
        changed(AROUND, lat=lambda b: b[:, ::-1], lon=lambda b: b[:, ::-1]),
        changed(AROUND, lon=lambda b: b % 360),
        changed(TURNED, lat=float32, lon=lambda b: float32(b % 360)),
        changed(PART, lat=lambda b: b.round(2), lon=lambda b: (b + 1e-9).round(3)),
    ],
    ids=["Gaussian", "poles", "part", "turned", "upper first", "modulo 360", "float32", "decimals"],
)
def test_bounds_as_models_write_them_give_the_values_of_cdo(given: Grid, tmp_path: Path) -> None:
    target, plain = regular(40, 56, 1.6, -15, 35, 2.0), bounded(given.lat, given.lon)
    values = rain(given)[0]
    expected = remapcon(plain, target, values, tmp_path, "fracarea")
    found = conservative_weights(cells_of(given), cells_of(target)) @ values.ravel()
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-3 * values.max())
    np.testing.assert_allclose(conservative_weights(cells_of(given), cells_of(target)).sum(axis=1), 1, atol=1e-9)


def test_bounds_with_few_decimals_and_corners_around_a_pole_are_right() -> None:
    fine = bounded(np.arange(45.0, 47, 1 / 32), np.arange(5.0, 8, 1 / 32))  # edges have six decimals
    cells = cells_of(changed(fine, lat=lambda b: b.round(3), lon=lambda b: b.round(3)))
    inside = cells_of(regular(45.5, 46.5, 0.25, 5.5, 7.5, 0.25))
    plain, found = (conservative_weights(one, inside).toarray() for one in (cells_of(fine), cells))
    np.testing.assert_allclose(found, plain, rtol=0, atol=0.07 * plain.max())
    polar = rotated(12, 14, 0.44, pole=0)
    assert polar.lat.max() > 90 - 1e-6
    cap = cells_of(regular(88.5, 90, 0.5, 0, 360, 10))
    np.testing.assert_allclose(conservative_weights(cells_of(polar), cap).sum(axis=1), 1, atol=1e-9)


def moved(step: float) -> Any:
    return lambda bounds: bounds + step * (bounds[:1, 1:] - bounds[:1, :1])


def off(first: float, second: float) -> Any:
    return lambda bounds: bounds + np.array([first, second])


def one_wrong(bounds: np.ndarray) -> np.ndarray:
    bounds[7] = bounds[7, ::-1]
    return bounds


def at_seam(bounds: np.ndarray) -> np.ndarray:
    bounds[0, 0] = 0
    return bounds


@pytest.mark.parametrize(
    ("grid", "expected"),
    [
        # shared/cases 36, FGOALS-f3-L and FGOALS-g3 of ESMValCore 1570 and 1288
        (changed(PART, lat=off(-0.25, 0.25)), r"of 30.25 \(number 1\) are 29.75 and 30.75, .* 30.25;"),
        (changed(PART, lat=moved(1)), r"60 of 60 are wrong, those of 30.25 .* expected about 30 and 30.5"),
        (changed(PART, lat=moved(0.5)), "latitude"),
        (changed(PART, lat=moved(-0.3)), "latitude"),
        (changed(PART, lat=lambda b: b[::-1]), "latitude"),
        (changed(PART, lat=off(0.05, -0.05)), r"its neighbour begins at 30.55"),
        (changed(PART, lat=off(-0.02, 0)), "latitude"),
        (changed(PART, lat=one_wrong), r"1 of 60 .* 33.75 \(number 8\) are 34 and 33.5, .* in one order"),
        (changed(PART, lat=lambda b: np.where(b > 31, np.nan, b)), "latitude .* nan"),
        (changed(PART, lat=lambda b: np.repeat(b[:, :1], 2, axis=1)), "latitude"),
        (changed(PART, lat=lambda b: np.where(b == b.max(), 90, b)), r"those of 59.75 \(number 60\) are 59.5 and 90"),
        (changed(AROUND, lon=moved(0.5)), "longitude"),
        (changed(AROUND, lon=moved(1)), "longitude"),
        (changed(AROUND, lon=lambda b: b[::-1]), "longitude"),
        (changed(AROUND, lon=off(-1, 1)), "longitude"),
        (changed(AROUND, lon=at_seam), "longitude .* those of 0 \\(number 1\\) are 0 and 1.40625"),
        (changed(TURNED, lat=moved(1)), "latitude"),
        (changed(TURNED, lat=lambda b: b[::-1]), "latitude"),
    ],
)  # fmt: skip
def test_bounds_that_overlap_lie_beside_their_centres_or_leave_gaps_are_refused(grid: Grid, expected: str) -> None:
    with pytest.raises(DataError, match=rf"the bounds of .*{expected}"):
        cells_of(grid)


def test_corners_that_overlap_lie_beside_their_centres_or_leave_gaps_are_refused() -> None:
    good = rotated(12, 14, 0.44)
    assert good.bounds is not None
    lat, lon = good.bounds
    east, (middle, across) = np.roll(lon, 1, axis=1), (of[..., None] for of in (good.lat, good.lon))
    # Corners may begin anywhere, go either way around, count longitudes otherwise, and be absent outside of the domain.
    outside = np.arange(12)[:, None, None] < 3
    for order in ([1, 2, 3, 0], [3, 2, 1, 0]):
        cells_of(changed(good, lambda _, o=order: lat[..., o], lambda _, o=order: float32(lon[..., o] + 360)))
    cells_of(changed(good, lambda _: np.where(outside, np.nan, lat), lambda _: np.where(outside, np.nan, lon)))
    for wrong in (
        (middle + 2 * (lat - middle), across + 2 * (lon - across)),
        (middle + 0.8 * (lat - middle), across + 0.8 * (lon - across)),
        (lat + 0.2, lon),
        (np.roll(lat, 1, axis=1), east),
        (lat[..., [0, 2, 1, 3]], lon[..., [0, 2, 1, 3]]),
        (lat[:, ::-1], lon[:, ::-1]),
    ):
        with pytest.raises(DataError, match=r"the corners of \d+ of 168 cells are wrong: .* in row 1 and column 1, at"):
            cells_of(changed(good, lambda _, w=wrong: w[0], lambda _, w=wrong: w[1]))


def test_source_cells_that_cover_a_target_twice_are_refused_and_round_off_counts_once() -> None:
    lat = np.arange(40.5, 50)
    target = cells_of(regular(42, 48, 1.5, 2, 8, 1.5))

    def quadrilaterals(step: float) -> Quadrilaterals:
        """Columns of one degree, whose corners are further east by a part of a degree in every second column."""
        rows, columns = np.meshgrid(lat, np.arange(0.5, 10), indexing="ij")
        west, east = columns - 0.5, columns + 0.5 + step * (np.arange(10) % 2)
        corners = np.stack([rows - 0.5, rows - 0.5, rows + 0.5, rows + 0.5], -1), np.stack([west, east, east, west], -1)
        return Quadrilaterals(unit_vectors(*(values.reshape(-1, 4) for values in corners)))

    for normed in (False, True):
        with pytest.raises(DataError, match=r"cells of the target are covered more than once .* up to 1\.\d+ times"):
            conservative_weights(quadrilaterals(0.1), target, normed=normed)
        sums = conservative_weights(quadrilaterals(3e-5), target, normed=normed).sum(axis=1)
        np.testing.assert_allclose(sums, 1, atol=1e-6)


def test_inferred_cells_of_a_rotated_grid_are_those_of_its_bounds() -> None:
    found, expected = (cells_of(rotated(9, 11, 0.2, bounds=given)) for given in (False, True))
    assert isinstance(found, Quadrilaterals)
    np.testing.assert_allclose(found.areas(), expected.areas(), rtol=1e-4)


def test_a_globe_with_columns_twice_and_gaussian_rows_has_each_cell_once() -> None:
    lat = np.rad2deg(np.arcsin(np.polynomial.legendre.leggauss(16)[0]))
    globe = Grid(lat, np.arange(0, 391, 30.0), "rectilinear")
    assert cells_of(globe).areas().sum() == pytest.approx(4 * np.pi)


def stacked(grid: Grid) -> tuple[xr.Dataset, xr.Dataset]:
    """Half of the cells of a reference's grid, stacked, and the grid."""
    maps = dataset(grid, tasmax=np.where(np.random.default_rng(2).random((1, *grid.shape)) < 0.5, 1.0, np.nan))
    return stack_drop_nans(maps.drop_vars(["lat_bounds", "lon_bounds"], errors="ignore")), grid_of(maps)


def test_each_variable_is_regridded_by_its_method_to_stacked_cells() -> None:
    grid = regular(45, 51, 0.5, 5, 12, 0.5)
    points, whole = stacked(grid)
    source = regular(40, 56, 1.0, 0, 17, 1.25)
    ds = dataset(source, tasmax=rain(source, 4), pr=rain(source, 4)).chunk({"time": 3})
    between = {"half": {"cf_grid_2d": dict(lon0_b=2, lon1_b=15, d_lon=0.7, lat0_b=42, lat1_b=54, d_lat=0.7)}}
    found = regrid(ds, points, whole=whole, methods=PR, intermediate_grids=between, chunks={"loc": 20}).compute()
    xr.testing.assert_equal(found["tasmax"], regrid(ds, points, intermediate_grids=between).compute()["tasmax"])
    middle = regular(42, 53.8, 0.7, 2, 15, 0.7)
    by_stages = conservative_weights(cells_of(middle), cells_of(grid)) @ (
        conservative_weights(cells_of(source), cells_of(middle)) @ ds["pr"].values.reshape(4, -1).T
    )
    land = np.isin(np.arange(grid.size), np.flatnonzero(np.random.default_rng(2).random(grid.size) < 0.5))
    np.testing.assert_allclose(found["pr"], by_stages[land].T, rtol=1e-12)
    assert found.attrs[REGRID_METHODS] == "tasmax: bilinear, pr: conservative"
    few = regrid_cells(ds, weigh(ds, points, whole=whole, methods=PR, intermediate_grids=between), np.array([7, 2]))
    np.testing.assert_array_equal(few["pr"].compute(), found["pr"][:, [7, 2]])


def test_points_of_a_rotated_reference_are_its_cells() -> None:
    grid = rotated(12, 14, 0.3)
    points, whole = stacked(grid)
    source = regular(40, 62, 1.0, -10, 40, 1.25)
    ds = dataset(source, pr=rain(source))
    found = regrid(ds, points, whole=whole, methods=PR)
    expected = conservative_weights(cells_of(source), cells_of(grid)) @ ds["pr"].values.ravel()
    by_cell = {(a, b): v for a, b, v in zip(grid.lat.ravel(), grid.lon.ravel(), expected, strict=True)}
    wanted = [by_cell[place] for place in zip(points["lat"].values, points["lon"].values, strict=True)]
    np.testing.assert_allclose(found["pr"][0], wanted, rtol=2e-3)


def test_masked_and_missing_cells() -> None:
    grid, source = regular(45, 47, 0.5, 5, 8, 0.5), regular(44, 48, 1, 4, 9, 1)
    points, whole = stacked(grid)
    land = np.ones(source.shape)
    land[1, 2] = 0
    values = rain(source)
    values[0, 1, 2] = np.nan
    ds = dataset(source, pr=values)
    masked = ds.assign_coords(mask=(("lat", "lon"), land))
    under = ((points["lat"] > 45) & (points["lat"] < 46) & (points["lon"] > 6) & (points["lon"] < 7)).values
    assert under.any()
    for found in (regrid(ds, points, whole=whole, methods=PR), regrid(masked, points, whole=whole, methods=PR)):
        np.testing.assert_array_equal(np.isnan(found["pr"][0]), under)
    coarse = dataset(regular(44, 48, 2, 4, 8, 2), pr=np.zeros((1, 2, 2)))
    part, normed = (regrid(masked, coarse, methods=how)["pr"][0] for how in (PR, NORMED))
    whole_cells = regrid(dataset(source, pr=np.nan_to_num(values)), coarse, methods=PR)["pr"][0]
    np.testing.assert_allclose(part, whole_cells)
    areas = cells_of(source).areas().reshape(source.shape)[:2, 2:4]
    own = np.average(np.nan_to_num(values[0, :2, 2:4]), weights=areas * land[:2, 2:4])
    assert float(normed[0, 1]) == pytest.approx(own)


def test_the_part_that_is_reached_gives_the_same_values() -> None:
    source, target = regular(30, 60, 1.5, 0, 30, 1.5), regular(45, 47, 0.5, 5, 8, 0.5)
    ds, on = dataset(source, pr=rain(source)), dataset(target, pr=np.zeros((1, *target.shape)))
    part = part_reached(ds, on, methods=PR)
    assert part.sizes["lat"] < 6
    np.testing.assert_allclose(regrid(part, on, methods=PR)["pr"], regrid(ds, on, methods=PR)["pr"], rtol=1e-12)


def test_cells_beyond_the_source_are_said() -> None:
    source, target = regular(44, 48, 1, 4, 9, 1), regular(46, 49, 0.75, 5, 8, 0.5)
    ds, on = dataset(source, pr=rain(source), tasmax=rain(source)), dataset(target, pr=np.zeros((1, *target.shape)))
    with pytest.raises(DataError, match=r"pr, conservative: 12 of 24 cells .* not covered .* 48\.\d+ °N .* by 0 %"):
        check_covered(weigh(ds, on, methods=PR))
    check_covered(weigh(ds, on))


def test_conservative_regridding_without_cells_is_refused() -> None:
    points, whole = stacked(regular(45, 47, 0.5, 5, 8, 0.5))
    grid = rotated(30, 30, 0.44, bounds=False)
    with pytest.raises(
        DataError, match="needs the corners of the cells; expected coordinates lat_bounds and lon_bounds"
    ):
        regrid(dataset(grid, pr=rain(grid)), points, whole=whole, methods=PR)
    source = regular(44, 48, 1, 4, 9, 1)
    with pytest.raises(DataError, match="to points needs the grid of which they are cells"):
        regrid(dataset(source, pr=rain(source)), points, methods=PR)


def test_the_edges_of_a_simulation_have_the_mean_of_what_covers_them() -> None:
    """A cell of the intermediate grid that nothing covers takes no part in the next stage."""
    source, target = regular(40, 44.5, 0.5, 0, 6, 0.5), regular(43, 46, 0.7, 1, 4, 0.7)
    ds, on = dataset(source, pr=np.full((1, *source.shape), 3.0)), dataset(target, pr=np.zeros((1, *target.shape)))
    between = {"one": {"cf_grid_2d": dict(lon0_b=-1, lon1_b=8, d_lon=1, lat0_b=39, lat1_b=48, d_lat=1)}}
    normed, part = (regrid(ds, on, methods=how, intermediate_grids=between)["pr"][0] for how in (NORMED, PR))
    np.testing.assert_array_equal(np.isnan(normed.max("lon")), [False, False, False, True, True])
    np.testing.assert_allclose(normed[:3], 3)
    # Of 44.4 to 45.1 degrees, the cell from 44 to 45 has half of its value, and the one above nothing.
    sines = np.sin(np.deg2rad([44.0, 44.4, 44.5, 45.0, 45.1]))
    share = (sines[2] - sines[0]) / (sines[3] - sines[0]) * (sines[3] - sines[1]) / (sines[4] - sines[1])
    np.testing.assert_allclose(part[2], 3 * share)
    np.testing.assert_array_equal(np.isnan(part), np.isnan(normed))


def test_cells_that_nothing_covers_are_extrapolated_as_bilinear_ones_are() -> None:
    source, target = regular(40, 44.5, 0.5, 0, 6, 0.5), regular(43, 46, 0.7, 1, 4, 0.7)
    ds, on = dataset(source, pr=rain(source)), dataset(target, pr=np.zeros((1, *target.shape)))
    kwargs = {"extrap_method": "inverse_dist"}
    found, bilinear = (regrid(ds, on, methods=how, regridder_kwargs=kwargs) for how in (NORMED, {}))
    inside = regrid(ds, on, methods=NORMED)["pr"][0]
    np.testing.assert_allclose(found["pr"][0, 3:], bilinear["pr"][0, 3:], rtol=1e-12)
    np.testing.assert_array_equal(found["pr"][0, :3], inside[:3])
    assert np.isnan(inside[3:]).all()
    assert found.attrs[EXTRAPOLATED_CELLS] == 2 * target.shape[1]
    assert np.isnan(regrid(ds, on, methods=PR, regridder_kwargs=kwargs)["pr"][0, 3:]).all()
    check_covered(weigh(ds, on, methods=NORMED, regridder_kwargs=kwargs))
