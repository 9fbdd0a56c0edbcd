"""Regridding in cascade, against real ESMF, CDO, and the stages applied one after another."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import xarray as xr

from espo_luigi.demo.sources import geographic
from espo_luigi.errors import DataError, StoreError
from espo_luigi.science.regrid import (
    BOUNDS,
    TARGET,
    Stage,
    apply_weights,
    cascade,
    check_reach,
    part_reached,
    regrid,
    regrid_cells,
    weigh,
    with_corners,
)
from espo_luigi.science.sphere import Extrapolation, Grid, weights_and_outside
from espo_luigi.store import Marker, open_store, write_store

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
ESMF = {"method": "bilinear", "extrap_method": "inverse_dist", "locstream_out": True, "reuse_weights": False}
# The bounds of ESPO-G's configuration; the sizes that they must give are 172 × 75 and 344 × 150.
REG1 = {"lon0_b": 179.05, "lon1_b": 351.2, "d_lon": 1, "lat0_b": 9, "lat1_b": 84, "d_lat": 1}
REG2 = {"lon0_b": 179.04, "lon1_b": 351.2, "d_lon": 0.5, "lat0_b": 8.9, "lat1_b": 84, "d_lat": 0.5}
CASCADE = {
    "reg1": {"cf_grid_2d": REG1, "regridder_kwargs": {**ESMF, "locstream_out": False}},
    "reg2": {"cf_grid_2d": REG2, "regridder_kwargs": {**ESMF, "locstream_out": False}},
}
SMALL_CASCADE = {
    "coarse": {
        "cf_grid_2d": {"lon0_b": 269.8, "lon1_b": 299.8, "d_lon": 1.5, "lat0_b": 39, "lat1_b": 61, "d_lat": 1},
        "regridder_kwargs": ESMF,
    }
}


def golden(name: str) -> xr.Dataset:
    return xr.open_dataset(GOLDEN / name).load()


def simulation(chunks: dict[str, int] | None = None) -> xr.Dataset:
    """Twelve days of an anonymous model, 11 × 13 cells, with what real files carry along."""
    rng = np.random.default_rng(2)
    shape = (12, 11, 13)
    ds = xr.Dataset(
        {
            "tasmax": (
                ("time", "lat", "lon"),
                rng.normal(280, 10, shape).astype("float32"),
                {"units": "K", "grid_mapping": "crs"},
            ),
            "pr": (("time", "lat", "lon"), rng.exponential(1e-5, shape), {"units": "kg m-2 s-1"}),
            "time_bnds": (("time", "bnds"), np.zeros((12, 2))),
        },
        coords={
            "time": xr.date_range("2001-01-01", periods=12, calendar="noleap", use_cftime=True),
            "lat": np.arange(40.0, 61, 2),
            "lon": np.arange(270.0, 301, 2.5),
            "height": 2.0,
            "crs": ((), 0, {"grid_mapping_name": "latitude_longitude"}),
            "area": (("lat", "lon"), np.ones(shape[1:])),
        },
        attrs={"cat:id": "model", "cat:domain": "NAM", "cat:processing_level": "extracted"},
    )
    return ds.chunk(chunks) if chunks else ds


def stacked(count: int = 50) -> xr.Dataset:
    rng = np.random.default_rng(3)
    shape = {"original_shape": "7x9"}
    return xr.Dataset(
        {"tasmax": (("time", "loc"), np.ones((1, count)))},
        coords={
            "lat": ("loc", rng.uniform(38, 62, count), {"units": "degrees_north", **shape}),
            "lon": ("loc", rng.uniform(-92, -58, count), {"units": "degrees_east", **shape}),
            "elevation": ("loc", rng.uniform(0, 100, count)),
        },
        attrs={"cat:domain": "south", "cat:id": "reference"},
    )


def small(ds: xr.Dataset, target: xr.Dataset | None = None, **kwargs: Any) -> xr.Dataset:
    arguments: dict[str, Any] = {"regridder_kwargs": ESMF, "intermediate_grids": SMALL_CASCADE, **kwargs}
    return regrid(ds, stacked() if target is None else target, **arguments)


@pytest.mark.parametrize(("ending", "grids"), [("one_stage", None), ("cascade", CASCADE)])
def test_a_rectilinear_source_gives_what_esmf_gives(ending: str, grids: dict[str, Any] | None) -> None:
    expected = golden("regrid-esmf.nc")
    found = regrid(golden("regrid-source.nc"), expected, regridder_kwargs=ESMF, intermediate_grids=grids)
    assert found.tasmax.dtype == found.pr.dtype == np.float32
    assert found.tasmax.dims == ("time", "loc")
    # The last four points lie outside the source and are extrapolated.
    np.testing.assert_allclose(found.tasmax, expected[f"tasmax_{ending}"], rtol=0, atol=1e-4)
    np.testing.assert_allclose(found.pr, expected[f"pr_{ending}"], rtol=1e-5, atol=1e-11)


def test_a_curvilinear_source_gives_what_esmf_gives() -> None:
    expected = golden("regrid-curvilinear-esmf.nc")
    found = regrid(golden("regrid-curvilinear-source.nc"), expected, regridder_kwargs=ESMF)
    np.testing.assert_allclose(found.tas, expected.tas, rtol=0, atol=1e-4)


MASKED_CASCADE = {
    name: {"cf_grid_2d": dict(zip(REG1, bounds, strict=True)), "regridder_kwargs": ESMF}
    for name, bounds in {
        "reg1": (274.05, 306.2, 1, 38, 64, 1),
        "reg2": (274.04, 306.2, 0.5, 37.9, 64, 0.5),
    }.items()
}


@pytest.mark.parametrize(("kind", "name"), [("regular", ""), ("curvilinear", "curvilinear-")])
def test_masked_cells_take_no_part_in_a_cascade_as_in_esmf(kind: str, name: str) -> None:
    expected, source = golden("regrid-masked-esmf.nc"), golden(f"regrid-masked-{name}source.nc")
    # Were a masked cell used, its NaN would spread.
    source["tas"] = source.tas.where(source.mask == 1)
    found = regrid(source, expected, regridder_kwargs=ESMF, intermediate_grids=MASKED_CASCADE)
    np.testing.assert_allclose(found.tas, expected[f"{kind}_cascade"], rtol=0, atol=1e-4)
    assert "mask" not in found.coords
    without = expected[f"{kind}_cascade_without_mask"]
    assert (abs(found.tas - without) > 0.1).any("time").sum() > 150


@pytest.mark.parametrize(("kind", "name"), [("regular", ""), ("curvilinear", "curvilinear-")])
def test_a_single_stage_to_points_ignores_the_mask_as_xesmf_does_and_warns(
    kind: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    expected, source = golden("regrid-masked-esmf.nc"), golden(f"regrid-masked-{name}source.nc")
    found = regrid(source, expected, regridder_kwargs=ESMF)
    np.testing.assert_allclose(found.tas, expected[f"{kind}_one_stage"], rtol=0, atol=1e-4)
    left_out = int((source.mask == 0).sum())
    assert f"the source's mask leaves out {left_out} of {source.mask.size} cells and is ignored" in caplog.text


@pytest.mark.parametrize("mask", [True, 1.0])
def test_a_mask_that_leaves_nothing_out_changes_no_byte(mask: object, caplog: pytest.LogCaptureFixture) -> None:
    ds = simulation()
    masked = ds.assign_coords(mask=xr.full_like(ds.area, mask, dtype=type(mask)))
    xr.testing.assert_identical(small(masked), small(ds))
    xr.testing.assert_identical(small(masked, intermediate_grids=None), small(ds, intermediate_grids=None))
    assert not caplog.records


@pytest.mark.parametrize("missing", [0, np.nan])
def test_a_target_beside_a_masked_cell_is_extrapolated_from_the_others(missing: float) -> None:
    ds = simulation()
    mask = xr.ones_like(ds.area).where((ds.lat > 46) | (ds.lon > 280), missing)
    masked = ds.assign_coords(mask=mask.transpose("lon", "lat"))
    grid = xr.Dataset(coords={"lat": [47.0, 57.0], "lon": [278.0, 291.0]})
    own, nearest = (regrid(masked, grid, regridder_kwargs=k) for k in ({}, {"extrap_method": "nearest_s2d"}))
    np.testing.assert_array_equal(np.isnan(own.tasmax[0]), [[True, False], [False, False]])
    # 46 N, 277.5 E is nearest, but masked.
    np.testing.assert_array_equal(nearest.tasmax[:, 0, 0], ds.tasmax.sel(lat=48, lon=277.5))
    assert nearest.attrs["espo_luigi_extrapolated_cells"] == 1
    np.testing.assert_array_equal(nearest.tasmax[:, 1], regrid(ds, grid, regridder_kwargs={}).tasmax[:, 1])


def test_the_result_with_a_mask_does_not_depend_on_chunks() -> None:
    ds = simulation()
    mask = ("lat", "lon"), np.random.default_rng(5).random((11, 13)) > 0.3
    found = small(simulation({"time": 5, "lat": 4, "lon": 3}).assign_coords(mask=mask).chunk(), chunks={"loc": 7})
    xr.testing.assert_identical(found.compute(), small(ds.assign_coords(mask=mask)))


def test_on_the_same_grid_masked_cells_are_missing() -> None:
    ds = simulation()
    found = small(ds.assign_coords(mask=ds.area * ds.lat > 50), ds)
    xr.testing.assert_equal(found.tasmax, ds.tasmax.where(ds.lat > 50))
    xr.testing.assert_identical(found.time_bnds, ds.time_bnds)
    assert "mask" not in found.coords


@pytest.mark.parametrize(
    ("lat_step", "lon_step", "kept"),
    [
        (2.0, 2.5, ["reg1", "reg2"]),
        # A model finer than 1 degree in one direction loses the grid of 1 degree.
        (2.0, 0.94, ["reg2"]),
        (0.94, 1.25, ["reg2"]),
        (1.0, 1.25, ["reg1", "reg2"]),
        # Steps of 1 degree that a file rounds.
        (0.99998, 1.25, ["reg1", "reg2"]),
        (0.7, 0.4, []),
    ],
)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_intermediate_grids_coarser_than_the_source_are_skipped_if_asked_for(
    lat_step: float, lon_step: float, kept: list[str], dtype: str
) -> None:
    lat = (35.2 + np.arange(0, 20, lat_step)).astype(dtype)
    # Across the meridian where longitudes begin anew.
    lon = ((345.1 + np.arange(0, 30, lon_step)) % 360).astype(dtype)
    values = np.random.default_rng(1).normal(size=(lat.size, lon.size))
    source = xr.Dataset({"tas": (("lat", "lon"), values)}, {"lat": lat, "lon": lon})
    target = xr.Dataset(coords={"lat": ("loc", [40.3, 47.7]), "lon": ("loc", [350.2, 3.1])})
    grids = {
        name: {"cf_grid_2d": dict(zip(REG1, (340, 380, step, 33, 57, step), strict=True)), "regridder_kwargs": ESMF}
        for name, step in (("reg1", 1), ("reg2", 0.5))
    }
    found = regrid(source, target, regridder_kwargs=ESMF, intermediate_grids=grids, skip_coarser=True)
    expected = regrid(source, target, regridder_kwargs=ESMF, intermediate_grids={name: grids[name] for name in kept})
    xr.testing.assert_identical(found, expected)
    if kept != list(grids):
        whole = regrid(source, target, regridder_kwargs=ESMF, intermediate_grids=grids)
        assert (whole.tas != found.tas).all()


def test_a_coarser_grid_in_either_direction_alone_is_skipped() -> None:
    grids = {
        name: {"cf_grid_2d": SMALL_CASCADE["coarse"]["cf_grid_2d"] | steps, "regridder_kwargs": ESMF}
        for name, steps in (("lat", {"d_lat": 2.1, "d_lon": 1}), ("lon", {"d_lat": 1, "d_lon": 2.6}))
    }
    found = small(simulation(), intermediate_grids=grids, skip_coarser=True)
    xr.testing.assert_identical(found, small(simulation(), intermediate_grids=None))


def test_a_regional_model_goes_straight_to_the_target_as_in_esmf() -> None:
    """ESMF's result is that of one stage; a grid a little coarser than the source would change it."""
    source, expected = golden("regrid-curvilinear-source.nc"), golden("regrid-curvilinear-esmf.nc")
    step = Grid(source.lat.values, source.lon.values, "curvilinear").largest_steps()[0]
    bounds = (200, 340, round(step + 0.1, 3), 20, 80, round(step + 0.1, 3))
    coarse = {"reg1": {"cf_grid_2d": dict(zip(REG1, bounds, strict=True)), "regridder_kwargs": ESMF}}
    options: dict[str, Any] = {"regridder_kwargs": ESMF, "intermediate_grids": coarse}
    np.testing.assert_allclose(
        regrid(source, expected, skip_coarser=True, **options).tas, expected.tas, rtol=0, atol=1e-4
    )
    assert (abs(regrid(source, expected, **options).tas - expected.tas) > 0.01).any()


def rotated(ds: xr.Dataset, chunks: dict[str, int] | None = None) -> xr.Dataset:
    """The same with what files of a rotated pole have besides: 1-D rlat and rlon, and the pole."""
    sizes = ds.lat.sizes
    ds = ds.assign_coords({name: np.arange(sizes[name]) * 0.1 - 3 for name in sizes})
    ds = ds.assign_coords(rotated_pole=((), 0, {"grid_mapping_name": "rotated_latitude_longitude"}))
    return ds.chunk(chunks) if chunks else ds


@pytest.mark.parametrize("chunks", [None, {"rlat": 5, "rlon": 7}])
def test_a_rotated_source_on_a_rotated_target_gives_what_esmf_gives(chunks: dict[str, int] | None) -> None:
    source, esmf = golden("regrid-curvilinear-source.nc"), golden("regrid-curvilinear-esmf.nc")
    # Cells of a target are interpolated each by itself: ESMF's points may stand in rows.
    cells = {name: (("rlat", "rlon"), esmf[name].values.reshape(12, 20)) for name in ("lat", "lon", "tas")}
    target = rotated(xr.Dataset(cells).set_coords(["lat", "lon"]))
    found = regrid(rotated(source, chunks), target, regridder_kwargs=ESMF, chunks=chunks)
    assert found.tas.dims == ("rlat", "rlon")
    assert set(found.coords) == {"lat", "lon", "rlat", "rlon"}
    xr.testing.assert_identical(found.rlat, target.rlat.reset_coords(drop=True))
    np.testing.assert_allclose(found.tas, target.tas, rtol=0, atol=1e-4)


@pytest.mark.skipif(shutil.which("cdo") is None, reason="cdo is not on the PATH")
@pytest.mark.parametrize(("name", "variable", "bound"), [("", "tasmax", 0.1), ("curvilinear-", "tas", 0.005)])
def test_cdo_remapbil_differs_only_by_its_formula(name: str, variable: str, bound: float, tmp_path: Path) -> None:
    """CDO interpolates in longitude and latitude, not on the sphere: rows' edges are parallels, not great circles.

    Measured in K: at most 0.058, on average 0.014, on the 2.5 by 2-degree grid; 0.0009 and 0.0003 on the rotated one,
    whose cells are smaller. Targets displaced by a twentieth of a degree are further off than the bounds.
    """
    source = golden(f"regrid-{name}source.nc")[[variable]]
    source.lat.attrs.update(units="degrees_north", standard_name="latitude")
    source.lon.attrs.update(units="degrees_east", standard_name="longitude")
    source.to_netcdf(tmp_path / "source.nc")
    (tmp_path / "grid").write_text("gridtype=lonlat\nxsize=20\nysize=20\nxfirst=-75\nxinc=0.3\nyfirst=46\nyinc=0.3\n")
    subprocess.run(["cdo", "-s", "remapbil,grid", "source.nc", "cdo.nc"], cwd=tmp_path, check=True)
    expected = xr.open_dataset(tmp_path / "cdo.nc", decode_times=False)
    difference = abs(regrid(source, expected)[variable].values - expected[variable].values)
    assert difference.shape[-2:] == (20, 20)
    assert difference.max() < bound
    displaced = regrid(source, expected.assign_coords(lat=expected.lat + 0.05))[variable].values
    assert abs(displaced - expected[variable].values).max() > 2 * bound


@pytest.mark.skipif(shutil.which("cdo") is None, reason="cdo is not on the PATH")
@pytest.mark.parametrize(("name", "variable"), [("", "tasmax"), ("curvilinear-", "tas")])
def test_the_nearest_cell_is_that_of_cdo_whatever_grids_lie_between(name: str, variable: str, tmp_path: Path) -> None:
    source = golden(f"regrid-{name}source.nc")[[variable]]
    source.lat.attrs.update(units="degrees_north", standard_name="latitude")
    source.lon.attrs.update(units="degrees_east", standard_name="longitude")
    source.to_netcdf(tmp_path / "source.nc")
    (tmp_path / "grid").write_text(
        "gridtype=lonlat\nxsize=20\nysize=20\nxfirst=-74.93\nxinc=0.31\nyfirst=46.07\nyinc=0.31\n"
    )
    subprocess.run(["cdo", "-s", "remapnn,grid", "source.nc", "cdo.nc"], cwd=tmp_path, check=True)
    expected = xr.open_dataset(tmp_path / "cdo.nc", decode_times=False)
    found = regrid(source, expected, methods={variable: "nearest"}, intermediate_grids=CASCADE)
    np.testing.assert_array_equal(found[variable].values, expected[variable].values)
    assert found.attrs["espo_luigi_regrid_method"] == f"{variable}: nearest"


def test_descending_latitudes_and_the_other_longitude_convention_change_nothing() -> None:
    ds = simulation()
    turned = ds.isel(lat=slice(None, None, -1))
    turned = turned.assign_coords(lon=turned.lon - 360)
    expected, found = small(ds), small(turned)
    xr.testing.assert_allclose(found.tasmax, expected.tasmax, rtol=1e-6)
    other = stacked().assign_coords(lon=stacked().lon + 360)
    np.testing.assert_allclose(small(ds, other).tasmax, expected.tasmax, rtol=1e-6)


def test_descending_longitudes_change_nothing() -> None:
    ds = simulation()
    xr.testing.assert_allclose(small(ds.isel(lon=slice(None, None, -1))).tasmax, small(ds).tasmax, rtol=1e-6)


def test_a_source_that_crosses_its_own_longitude_seam_is_accepted() -> None:
    ds = simulation()
    # 350, 352.5, … 357.5, 0, 2.5, …: rises all the time, but for the jump of 360.
    east = ds.assign_coords(lon=(ds.lon + 80) % 360)
    target = stacked().assign_coords(lon=stacked().lon + 80)
    assert (np.diff(east.lon) < 0).any()
    np.testing.assert_allclose(
        small(east, target, intermediate_grids=None).tasmax, small(ds, intermediate_grids=None).tasmax, rtol=1e-6
    )


def test_the_source_is_not_periodic() -> None:
    lon = np.arange(0.0, 360, 30)
    ds = xr.Dataset({"tas": (("lat", "lon"), np.zeros((3, 12)) + lon)}, coords={"lat": [0.0, 30, 60], "lon": lon})
    target = xr.Dataset(coords={"lat": ("loc", [15.0, 15.0]), "lon": ("loc", [345.0, 315.0])})
    found = regrid(ds, target, regridder_kwargs={"method": "bilinear"})
    np.testing.assert_allclose(found.tas, [np.nan, 315])


def with_gaps(kind: str) -> xr.Dataset:
    ds = simulation()
    rng = np.random.default_rng(8)
    shape = ds.tasmax.shape if kind == "moving" else ds.tasmax.shape[1:]
    return ds.where(xr.DataArray(rng.random(shape) > 0.03, dims=ds.tasmax.dims[-len(shape) :]))[["tasmax"]]


@pytest.mark.parametrize("kind", ["constant", "moving"])
def test_nan_spread_as_if_the_stages_were_applied_one_after_another(kind: str) -> None:
    ds = with_gaps(kind)
    found = small(ds)
    coarse = Grid(np.arange(39.5, 61), np.arange(270.55, 299.8, 1.5), "rectilinear")
    grids = [
        Grid(ds.lat.values, ds.lon.values, "rectilinear"),
        coarse,
        Grid(stacked().lat.values, stacked().lon.values, "points"),
    ]
    missing = np.isnan(ds.tasmax.values).reshape(12, -1)
    for source, target in itertools.pairwise(grids):
        uses = weights_and_outside(source, target, Extrapolation())[0].toarray() > 0
        missing = missing @ uses.T > 0
    np.testing.assert_array_equal(np.isnan(found.tasmax), missing)
    assert 0.05 < missing.mean() < 0.95


def test_one_matrix_gives_what_the_stages_give_one_after_another() -> None:
    ds = simulation()
    source = Grid(ds.lat.values, ds.lon.values, "rectilinear")
    target = Grid(stacked().lat.values, stacked().lon.values, "points")
    between = Grid(np.arange(39.5, 61), np.arange(270.55, 299.8, 1.5), "rectilinear")
    step = apply_weights(ds.pr.values, weights_and_outside(source, between, Extrapolation())[0], between.shape)
    expected = apply_weights(step, weights_and_outside(between, target, Extrapolation())[0], target.shape)
    product = cascade(source, [Stage(between, Extrapolation()), Stage(target, Extrapolation())])[0]
    np.testing.assert_allclose(apply_weights(ds.pr.values, product, target.shape), expected, rtol=1e-12)


def test_without_extrapolation_a_point_outside_or_beside_an_unmapped_cell_is_nan() -> None:
    grid = {"cf_grid_2d": {"lon0_b": 268, "lon1_b": 302, "d_lon": 1, "lat0_b": 38, "lat1_b": 63, "d_lat": 1}}
    target = xr.Dataset(coords={"lat": ("loc", [50.0, 39.8, 30.0]), "lon": ("loc", [285.0, 285.0, 285.0])})
    # 39.8 N lies in the intermediate grid between rows 39.5, outside the source, and 40.5, inside.
    found = small(simulation(), target, regridder_kwargs={}, intermediate_grids={"wide": grid})
    np.testing.assert_array_equal(np.isnan(found.tasmax[0]), [False, True, True])


def test_nearest_extrapolation_takes_the_nearest_cell() -> None:
    ds = simulation()
    target = xr.Dataset(coords={"lat": ("loc", [30.0]), "lon": ("loc", [285.1])})
    found = regrid(ds, target, regridder_kwargs={"extrap_method": "nearest_s2d"})
    np.testing.assert_array_equal(found.tasmax[:, 0], ds.tasmax.sel(lat=40, lon=285))


def test_inverse_distance_takes_the_exponent_and_the_number_of_points() -> None:
    ds = simulation()
    target = xr.Dataset(coords={"lat": ("loc", [38.0]), "lon": ("loc", [270.0])})
    chord = [2 * np.sin(np.deg2rad(d) / 2) for d in (2, 4)]
    pick = ds.pr.sel(lat=[40, 42], lon=270).values
    options = {"extrap_method": "inverse_dist", "extrap_num_src_pnts": 1}
    np.testing.assert_allclose(regrid(ds, target, regridder_kwargs=options).pr[:, 0], pick[:, 0])
    narrow = ds.assign_coords(lon=ds.lon + np.arange(13) * 7)
    options = {"extrap_method": "inverse_dist", "extrap_num_src_pnts": 2, "extrap_dist_exponent": 3}
    expected = (pick / np.power(chord, 3)).sum(axis=1) / (1 / np.power(chord, 3)).sum()
    np.testing.assert_allclose(regrid(narrow, target, regridder_kwargs=options).pr[:, 0], expected)


def test_nothing_is_computed_and_blocks_of_cells_have_all_of_time() -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("computed something")

    with dask.config.set(scheduler=refuse):
        found = small(simulation({"time": 5, "lat": -1, "lon": -1}), chunks={"loc": 20, "time": -1})
    assert found.tasmax.chunks == ((12,), (20, 20, 10))


@pytest.mark.parametrize("chunks", [{"time": 12}, {"time": 1}, {"time": 5, "lat": 4, "lon": 3}])
@pytest.mark.parametrize("cells", [{}, {"loc": 7}, {"loc": 1}])
def test_the_result_does_not_depend_on_chunks(chunks: dict[str, int], cells: dict[str, int]) -> None:
    xr.testing.assert_identical(small(simulation(chunks), chunks=cells).compute(), small(simulation()))


def test_blocks_of_a_grid_are_put_together() -> None:
    grid = xr.Dataset(coords={"lat": np.linspace(44, 46, 7), "lon": np.linspace(-80, -71, 5)})
    found = small(simulation({"time": 5}), grid, chunks={"lat": 3, "lon": 2})
    assert found.tasmax.chunks == ((12,), (3, 3, 1), (2, 2, 1))
    xr.testing.assert_identical(found.compute(), small(simulation(), grid))


def test_a_block_reads_only_the_rows_and_columns_that_it_needs(tmp_path: Path) -> None:
    """Of a store that is opened without being cut: a chunk that no block needs may even be gone."""
    ds = simulation()[["tasmax"]].drop_vars("area")
    write_store(ds, tmp_path / "source.zarr", Marker("Extract"), chunks={"time": 5, "lat": 1, "lon": 2})
    target = stacked().isel(loc=stacked().lat.values < 45)
    for row in (7, 8, 9, 10):
        shutil.rmtree(tmp_path / "source.zarr" / "tasmax" / "c" / "0" / str(row))
    source = open_store(tmp_path / "source.zarr", check=False, cut=False)
    found = small(source, target, chunks={"loc": 3})
    np.testing.assert_array_equal(found.tasmax, small(ds, target).tasmax)
    with pytest.raises(StoreError, match="is gone"):
        small(source, chunks={"loc": 3}).tasmax.load()


def test_the_weights_of_a_block_are_one_key_that_all_variables_share() -> None:
    found = small(simulation({"time": 1}), stacked(2000), chunks={"loc": 500})
    graph = dict(found.__dask_graph__())
    assert sum("csr_matrix" in str(key) for key in graph) == 4


def test_attributes_dtypes_and_coordinates_are_those_of_a_regridded_dataset() -> None:
    of_the_grid = {"grid": "T63", "grid_label": "gn", "nominal_resolution": "500 km", "CORDEX_domain": "NAM-44"}
    source, target = simulation().assign_attrs(of_the_grid), stacked()
    found = small(source, target)
    xr.testing.assert_identical(source, simulation().assign_attrs(of_the_grid))
    xr.testing.assert_identical(target, stacked())
    assert (found.tasmax.dtype, found.pr.dtype) == (np.float32, np.float64)
    counted = found.attrs.pop("espo_luigi_extrapolated_cells")
    assert counted == 14, "the last row and column are beyond the source"
    assert found.attrs == {"cat:id": "model", "cat:domain": "south", "cat:processing_level": "regridded"}
    assert set(found.data_vars) == {"tasmax", "pr"}
    assert set(found.coords) == {"time", "height", "lat", "lon", "elevation"}
    assert found.lat.attrs == target.lat.attrs
    assert found.lon.attrs["original_shape"] == "7x9"
    assert found.tasmax.attrs == {"units": "K"}
    np.testing.assert_array_equal(found.time, source.time)


def test_a_difference_of_temperature_stays_one() -> None:
    difference = {"units": "K", "units_metadata": "temperature: difference"}
    source = simulation()
    source["dtr"] = source["tasmax"].assign_attrs(difference)
    assert small(source).dtr.attrs == difference


def test_identical_grids_are_not_regridded() -> None:
    ds = simulation().drop_vars("time_bnds")
    found = small(ds, ds.assign_attrs({"cat:domain": "south"}))
    xr.testing.assert_equal(found, ds)
    assert (found.attrs["cat:domain"], found.attrs["cat:processing_level"]) == ("south", "regridded")


def test_a_grid_as_target_gives_time_lat_lon_and_the_values_of_its_points() -> None:
    lat, lon = np.array([45.3, 44.1]), np.array([-80.2, -78.5, -71.0])
    grid = xr.Dataset(coords={"lat": lat, "lon": lon})
    points = xr.Dataset(coords={"lat": ("loc", np.repeat(lat, 3)), "lon": ("loc", np.tile(lon, 2))})
    found = small(simulation({"time": 5}), grid)
    assert found.tasmax.dims == ("time", "lat", "lon")
    np.testing.assert_array_equal(found.tasmax, small(simulation(), points).tasmax.values.reshape(12, 2, 3))


def test_a_curvilinear_source_loses_its_own_coordinates() -> None:
    ds = simulation()
    lat, lon = xr.broadcast(ds.lat, ds.lon)
    curved = ds.rename(lat="rlat", lon="rlon").drop_vars("area")
    curved = curved.assign_coords(lat=(("rlat", "rlon"), lat.values), lon=(("rlat", "rlon"), lon.values))
    found = small(curved)
    assert set(found.coords) == {"time", "height", "lat", "lon", "elevation"}
    xr.testing.assert_allclose(found.tasmax, small(ds).tasmax, rtol=1e-6)


def test_cells_that_any_stage_extrapolates_are_counted() -> None:
    """Against the stages by hand: 1 where a value is extrapolated, carried through the next stage."""
    lat, lon = np.arange(40.0, 51.0, 2), np.arange(0.0, 13.0, 2)
    ds = xr.Dataset({"pr": (("time", "lat", "lon"), np.ones((1, 6, 7), "float32"))}, {"lat": lat, "lon": lon})
    target = stacked_at(np.array([41.0, 45.3, 49.9, 50.4]), np.array([1.0, 4.4, 11.0, 12.5]))
    one = regrid(ds, target, regridder_kwargs=ESMF)
    assert one.attrs["espo_luigi_extrapolated_cells"] == 1
    # The grid between has its last row at 50.5, beyond the source; cells above 49.5 are made of it.
    grids = {"between": {"cf_grid_2d": dict(lon0_b=-1, lon1_b=13, d_lon=1, lat0_b=39, lat1_b=51, d_lat=1)}}
    through = grids | {"between": grids["between"] | {"regridder_kwargs": ESMF}}
    two = regrid(ds, target, regridder_kwargs=ESMF, intermediate_grids=through)
    assert two.attrs["espo_luigi_extrapolated_cells"] == 2


@pytest.mark.parametrize("curvilinear", [False, True])
def test_targets_that_lie_too_far_beyond_the_source_are_refused_with_the_farthest(curvilinear: bool) -> None:
    lat, lon = np.arange(40.0, 51.0, 2), np.arange(0.0, 13.0, 2)
    ds = xr.Dataset({"pr": (("time", "lat", "lon"), np.ones((1, 6, 7), "float32"))}, {"lat": lat, "lon": lon})
    if curvilinear:
        rows, columns = np.meshgrid(lat, lon, indexing="ij")
        ds = ds.drop_vars(["lat", "lon"]).rename(lat="y", lon="x")
        ds = ds.assign_coords(lat=(("y", "x"), rows), lon=(("y", "x"), columns))
    near = stacked_at(np.array([41.0, 51.0]), np.array([1.0, 12.9]))
    check_reach(ds, near, 0)
    far = stacked_at(np.array([41.0, 54.9]), np.array([1.0, 6.0]))
    with pytest.raises(
        DataError, match=r"1 of 2 cells of the target lie more than 1\.5 cells of the source beyond it"
    ) as told:
        check_reach(ds, far, 1.5)
    assert "2.4 cells away, at 54.9 °N 6 °E" in str(told.value)


def stacked_at(lat: np.ndarray, lon: np.ndarray) -> xr.Dataset:
    return xr.Dataset(coords={"lat": ("loc", lat), "lon": ("loc", lon)})


@pytest.mark.parametrize("curvilinear", [False, True])
@pytest.mark.parametrize("beyond", [0, 4])
def test_the_part_that_is_reached_gives_the_same_values(curvilinear: bool, beyond: float) -> None:
    """Targets inside, and targets beyond the source's south-eastern corner, which are extrapolated."""
    source = simulation().drop_vars("area")
    target = stacked(9).assign_coords(
        lat=("loc", np.linspace(45 - 2 * beyond, 48, 9)), lon=("loc", np.linspace(290, 293.1 + 3 * beyond, 9))
    )
    if curvilinear:
        lat, lon = xr.broadcast(source.lat, source.lon)
        source = source.rename(lat="y", lon="x").drop_vars(["y", "x"])
        source = source.assign_coords(lat=(("y", "x"), lat.values + 0.01 * lon.values), lon=(("y", "x"), lon.values))
    part = part_reached(source, target, regridder_kwargs=ESMF, intermediate_grids=SMALL_CASCADE)
    assert part.tasmax[0].size < 0.6 * source.tasmax[0].size
    xr.testing.assert_equal(small(part, target), small(source, target))


def test_the_part_that_a_single_far_cell_reaches_is_a_grid() -> None:
    kwargs = {"extrap_method": "nearest_s2d"}
    target = xr.Dataset(coords={"lat": ("loc", [10.0]), "lon": ("loc", [260.0])})
    part = part_reached(simulation(), target, regridder_kwargs=kwargs)
    assert (
        regrid(part, target, regridder_kwargs=kwargs)
        .tasmax[:, 0]
        .equals(regrid(simulation(), target, regridder_kwargs=kwargs).tasmax[:, 0])
    )


def test_on_the_same_grid_all_is_reached() -> None:
    xr.testing.assert_identical(part_reached(simulation(), simulation()), simulation())


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("chunks", [None, {"time": 5}])
def test_single_cells_have_the_bytes_that_they_have_among_all(masked: bool, chunks: dict[str, int] | None) -> None:
    source, target, cells = simulation(chunks).drop_vars("area"), stacked(), np.array([41, 3, 17])
    if masked:
        source = source.assign_coords(mask=(("lat", "lon"), np.random.default_rng(5).random((11, 13)) > 0.3))
    weights = weigh(source, target, regridder_kwargs=ESMF, intermediate_grids=SMALL_CASCADE)
    found = regrid_cells(source, weights, cells).compute()
    expected = small(source, target).isel(loc=cells).compute()
    for name in ("tasmax", "pr", "lat", "lon"):
        np.testing.assert_array_equal(found[name].values, expected[name].values)


def test_the_weights_name_their_stages_and_make_wholes() -> None:
    weights = weigh(simulation(), stacked(), regridder_kwargs=ESMF, intermediate_grids=SMALL_CASCADE)["tasmax"]
    assert weights.steps == ("coarse", TARGET)
    np.testing.assert_allclose(weights.matrix.sum(axis=1), 1)


def test_constants_are_preserved_through_the_cascade() -> None:
    ds = simulation()
    found = small(ds.assign(tasmax=xr.full_like(ds.tasmax, 273.15)))
    np.testing.assert_allclose(found.tasmax, np.float32(273.15), rtol=1e-6)


def test_a_curvilinear_target_keeps_its_dimensions() -> None:
    lat, lon = np.meshgrid([45.3, 44.1], [-80.2, -78.5, -71.0], indexing="ij")
    target = xr.Dataset(coords={"lat": (("y", "x"), lat), "lon": (("y", "x"), lon), "y": [0, 1]})
    found = small(simulation({"time": 5}), target)
    assert found.tasmax.dims == ("time", "y", "x")
    assert set(found.coords) == {"time", "height", "lat", "lon", "y"}


def test_corners_between_centres_are_given_to_a_curvilinear_grid_that_has_none() -> None:
    rlat, rlon = np.arange(-1, 1.1, 0.25), np.arange(-1, 1.6, 0.25)
    lat, lon = geographic(*np.meshgrid(rlat, rlon, indexing="ij"), (40.0, 20.0))
    ds = xr.Dataset({"tas": (("rlat", "rlon"), np.ones(lat.shape))})
    ds = ds.assign_coords(lat=(("rlat", "rlon"), lat), lon=(("rlat", "rlon"), lon))
    made = with_corners(ds)
    expected = geographic(*np.meshgrid(rlat[:-1] + 0.125, rlon[:-1] + 0.125, indexing="ij"), (40.0, 20.0))
    # The third corner of a cell lies between it and the next in both directions.
    for name, wanted in zip(BOUNDS, expected, strict=True):
        np.testing.assert_allclose(made[name].values[:-1, :-1, 2], wanted, atol=2e-4)
    assert with_corners(made).identical(made)
    target = xr.Dataset(coords={"lat": [49.0, 49.5, 50.0], "lon": [18.5, 19.0, 19.5]})
    got = regrid(made, target, methods={"tas": "conservative_normed"})["tas"]
    np.testing.assert_allclose(got.values[np.isfinite(got.values)], 1)
