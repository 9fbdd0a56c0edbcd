"""Conservative regridding by variable in a production: CDO's values, the run's checks, and fingerprints."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from complete_demo import edit, work
from demo_runs import ONE_REGION

import espo_luigi
from espo_luigi import store, tasks
from espo_luigi.audit import cells
from espo_luigi.errors import DataError
from espo_luigi.science.attributes import REGRID_METHODS
from espo_luigi.tasks.context import context, forget

NOLEAP = "CMIP6_ScenarioMIP_ESPO-DEMO_Demo-NoLeap_ssp585_r1i1p1f1_global"
METHOD = {"regrid__regrid_method": {"pr": "conservative"}}
WITHOUT_CASCADE: dict[str, dict[str, object]] = {"regrid__regrid_dataset__intermediate_grids": {}}
Configure = Callable[..., list[Path]]


def regridded(piece: str = "middle") -> tuple[xr.Dataset, xr.Dataset, xr.Dataset]:
    """What `Regrid` makes, lazily, the reference's grid, and what `Extract` makes."""
    made = tasks.RefDefault(piece=piece).compute([])
    extracted = tasks.Extract(sim_id=NOLEAP).compute([])
    return (
        tasks.Regrid(sim_id=NOLEAP, piece=piece).compute(made["reference"], made["grid"], extracted),
        made["grid"],
        extracted,
    )


def with_corners(ds: xr.Dataset, *, bounds: bool = True) -> xr.Dataset:
    """The same cells with 2-D lat and lon, in dimensions (y, x), with or without their corners as CORDEX has them."""
    lat, lon = (np.asarray(ds[name], "float64") for name in ("lat", "lon"))
    edges = [np.concatenate([[3 * v[0] - v[1], *(v[1:] + v[:-1]), 3 * v[-1] - v[-2]]]) / 2 for v in (lat, lon)]
    corners = np.meshgrid(*edges, indexing="ij")
    around = [np.stack([c[:-1, :-1], c[:-1, 1:], c[1:, 1:], c[1:, :-1]], axis=-1) for c in corners]
    bare = ds.drop_vars(["lat", "lon", "lat_bnds", "lon_bnds"], errors="ignore").rename_dims(lat="y", lon="x")
    for name, values, own in zip(("lat", "lon"), np.meshgrid(lat, lon, indexing="ij"), around, strict=True):
        standard = {"lat": "latitude", "lon": "longitude"}[name]
        attrs = {"standard_name": standard, "units": f"degrees_{'north' if name == 'lat' else 'east'}"}
        bare[name] = (("y", "x"), values, attrs | ({"bounds": f"{name}_vertices"} if bounds else {}))
        if bounds:
            bare[f"{name}_vertices"] = (("y", "x", "vertices"), own)
    return bare.set_coords(["lat", "lon"])


def change_files(raw: Path, change: Callable[[xr.Dataset], xr.Dataset]) -> None:
    for file in (raw / "simulation").rglob("*_Demo-NoLeap_*.nc"):
        dataset = change(xr.load_dataset(file, decode_times=False))
        file.unlink()
        dataset.to_netcdf(file)


@pytest.mark.skipif(shutil.which("cdo") is None, reason="CDO, the oracle, is not installed")
def test_a_single_stage_has_cdos_values_and_other_variables_stay_bilinear(
    configured: Configure, tmp_path: Path
) -> None:
    configured(**WITHOUT_CASCADE)
    before = regridded()[0].isel(time=slice(3)).compute()
    configured(**METHOD, **WITHOUT_CASCADE)
    lazy, grid, extracted = regridded()
    found = lazy.isel(time=slice(3)).compute()
    xr.testing.assert_equal(found.drop_vars("pr"), before.drop_vars("pr"))
    assert REGRID_METHODS not in before.attrs
    assert set(found.attrs[REGRID_METHODS].split(", ")) == {
        "tasmax: bilinear", "tasmin: bilinear", "dtr: bilinear", "pr: conservative",
    }  # fmt: skip
    for name, maps in (
        ("source", extracted["pr"].isel(time=slice(3)).drop_vars("incomplete")),
        ("target", grid["land"] * 1.0),
    ):
        placed = maps.to_dataset(name="pr")
        placed["lat"].attrs, placed["lon"].attrs = {"units": "degrees_north"}, {"units": "degrees_east"}
        placed.to_netcdf(tmp_path / f"{name}.nc")
    command = f"cdo -s remapcon,{tmp_path}/target.nc {tmp_path}/source.nc {tmp_path}/out.nc"
    subprocess.run(command.split(), check=True, capture_output=True)
    with xr.open_dataset(tmp_path / "out.nc") as out:
        expected = out["pr"].values.reshape(3, -1)[:, grid["land"].values.ravel()]
    np.testing.assert_allclose(found["pr"], expected, rtol=2e-6)


def test_files_with_corners_give_the_values_of_their_rows_and_columns(own_raw: Path, tmp_path: Path) -> None:
    edit(tmp_path / "config.yml", lambda content: content["regrid"].update(regrid_method={"pr": "conservative"}))
    forget()
    tasks.InputCheck(sim_id=NOLEAP).check()
    expected = regridded()[0]["pr"].isel(time=slice(3)).compute()
    change_files(own_raw, with_corners)
    forget()
    tasks.InputCheck(sim_id=NOLEAP).check()
    lazy, _, extracted = regridded()
    assert extracted["lat_bounds"].sizes.keys() == {"y", "x", "lat_corner"}
    # Great circles are not parallels.
    np.testing.assert_allclose(lazy["pr"].isel(time=slice(3)), expected, rtol=0.02, atol=1e-6)
    written = tmp_path / "extracted.zarr"
    task = tasks.Extract(sim_id=NOLEAP)
    store.write_store(
        extracted.isel(time=slice(400)), written, task.marker(), **task.layout(extracted.isel(time=slice(400)))
    )
    np.testing.assert_array_equal(store.open_store(written)["lat_bounds"], extracted["lat_bounds"])


def test_a_curvilinear_grid_without_corners_stops_the_run_before_it_starts(
    own_raw: Path, tmp_path: Path, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does so, too, where its files were examined before the key was given."""
    change_files(own_raw, lambda ds: with_corners(ds, bounds=False))
    tasks.InputCheck(sim_id=NOLEAP).check()
    monkeypatch.setattr(tasks.InputCheck, "complete", lambda self: True)
    monkeypatch.setattr(tasks.InputCheck, "stale", lambda self, **files: [])
    edit(tmp_path / "config.yml", lambda content: content["regrid"].update(regrid_method={"pr": "conservative"}))
    forget()
    assert not espo_luigi.build([tasks.All()]).succeeded
    assert "conservative` needs the corners of cells" in log.text
    assert "pr_day_Demo-NoLeap" in log.text and "has 2-D lat and lon without them" in log.text
    assert not (tmp_path / "work").exists()


def test_a_simulation_whose_cells_end_within_the_domain_is_refused(own_raw: Path, tmp_path: Path) -> None:
    edit(tmp_path / "config.yml", lambda content: content["regrid"].update(regrid_method={"pr": "conservative"}))
    change_files(own_raw, lambda ds: ds.sel(lat=slice(None, 46.5)))
    forget()
    with pytest.raises(DataError, match=r"reaches beyond the data .* in the north further than 0.5 cells"):
        tasks.InputCheck(sim_id=NOLEAP).check()
    with pytest.raises(DataError, match=r"pr, conservative: .* not covered .* lets it through"):
        regridded("north")


def with_bounds(ds: xr.Dataset, widened: float = 0.0, moved: float = 0.0) -> xr.Dataset:
    """The files with bounds of their rows and columns; those of rows are wider or further north by parts of a step."""
    bare = ds.drop_vars(["lat_bnds", "lon_bnds"], errors="ignore")
    for name, wide, on in (("lat", widened, moved), ("lon", 0.0, 0.0)):
        step, sides = float(np.diff(ds[name].values)[0]), np.array([-0.5, 0.5])
        bounds = ds[name].values[:, None] + step * (sides + wide * np.sign(sides) + on)
        bare = bare.assign({f"{name}_bnds": ((name, "bnds"), bounds)})
        bare[name].attrs["bounds"] = f"{name}_bnds"
    return bare


@pytest.mark.parametrize("wrong", [{"widened": 0.5}, {"moved": 0.5}])
def test_bounds_that_overlap_or_lie_beside_their_rows_stop_the_run_before_it_starts(
    own_raw: Path, tmp_path: Path, wrong: dict[str, float]
) -> None:
    """Overlapping bounds doubled the rain (shared/cases 36, ESMValCore 1570); bilinear regridding needs none."""
    change_files(own_raw, lambda ds: with_bounds(ds, **wrong))
    forget()
    tasks.InputCheck(sim_id=NOLEAP).look()
    edit(tmp_path / "config.yml", lambda content: content["regrid"].update(regrid_method={"pr": "conservative"}))
    forget()
    with pytest.raises(DataError) as caught:
        tasks.InputCheck(sim_id=NOLEAP).look()
    assert "regrid_method.pr: conservative`: in " in str(caught.value)
    for text in ("pr_day_Demo-NoLeap", "the bounds of latitude make no cells", "expected about", "Correct or remove"):
        assert text in str(caught.value)
    with pytest.raises(DataError, match="the bounds of latitude make no cells"):
        regridded("middle")
    change_files(own_raw, with_bounds)
    forget()
    tasks.InputCheck(sim_id=NOLEAP).look()


def test_single_cells_are_explained_by_the_weights_of_their_variables(configured: Configure) -> None:
    """`espo explain` makes the cells again that `Regrid` makes, and its weights of pr are shares of the cell's area."""
    configured(**METHOD, **ONE_REGION)
    work(tasks.ReferenceCalendar(piece="south", calendar="noleap"))
    run, places = context(), np.array([40, 7])
    raw = cells.extracted(NOLEAP)
    reference = store.open_store(tasks.ReferenceCalendar(piece="south", calendar="noleap").out_reference().path)
    (land,) = cells.lands(run)
    made = tasks.Regrid(sim_id=NOLEAP, piece="south").compute(reference, land.grid, raw).isel(loc=places)
    weights = cells.regridding(run, "south", raw)
    assert (weights["tasmax"].method, weights["pr"].method) == ("bilinear", "conservative")
    np.testing.assert_allclose(weights["pr"].matrix[places].sum(axis=1), 1)
    few = cells.cascade.regrid_cells(raw.isel(time=slice(3)), weights, places).compute()
    for name in ("tasmax", "pr"):
        np.testing.assert_array_equal(few[name], made[name].isel(time=slice(3)))
    assert weights["pr"].matrix[[40]].nnz != weights["tasmax"].matrix[[40]].nnz
