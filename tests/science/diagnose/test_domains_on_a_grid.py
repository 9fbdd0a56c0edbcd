"""A raw simulation on the cells of a domain of a rotated reference, and its properties in other units."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import dask
import dask.array
import numpy as np
import pytest
import xarray as xr
import xclim.core.units
import xsdba.measures
import xsdba.properties
import yaml

from espo_luigi.errors import DataError
from espo_luigi.science import regrid, stack
from espo_luigi.science.diagnose import diagnosis
from espo_luigi.science.diagnose.definitions import DiagnosisStep
from espo_luigi.science.diagnose.diagnosis import Diagnosis
from espo_luigi.science.geometry.cutting import spread_over

BOX = {"name": "Atlas", "lat_bnds": (46.0, 49.0), "lon_bnds": (-75.0, -70.0), "tile_buffer": 1.5}
KWARGS = {"method": "bilinear", "extrap_method": "inverse_dist"}
# Coarser than the simulation, whose step is 0.5 degrees.
GRIDS = {
    "coarse": {
        "cf_grid_2d": {"lon0_b": -82, "lon1_b": -62, "d_lon": 1.5, "lat0_b": 40, "lat1_b": 56, "d_lat": 1},
        "regridder_kwargs": KWARGS,
    }
}
PERIOD = ("2001", "2002")
UNITS = {"tasmax": "degC", "tasmin": "degC", "pr": "mm d-1", "dtr": "K"}


# The 22 properties of ESPO v2, as they are shipped.
DEFINITIONS = yaml.safe_load((Path(__file__).parents[3] / "config" / "espo-v2" / "properties.yml").read_text())


def series(time: xr.CFTimeIndex, shape: tuple[int, int], seed: int) -> dict[str, tuple[np.ndarray, str]]:
    """Days with a season, in the units of files."""
    rng = np.random.default_rng(seed)
    season = -12 * np.cos(np.asarray(time.dayofyear) / 365 * 2 * np.pi)[:, None, None]
    tasmax = 285 + season + rng.normal(0, 3, (len(time), *shape))
    dtr = rng.gamma(4, 2, tasmax.shape)
    pr = rng.gamma(0.4, 5, tasmax.shape) / 86400
    return {"tasmax": (tasmax, "K"), "tasmin": (tasmax - dtr, "K"), "pr": (pr, "kg m-2 s-1"), "dtr": (dtr, "K")}


def dataset(values: dict[str, tuple[np.ndarray, str]], dims: tuple[str, str], coords: dict[str, Any]) -> xr.Dataset:
    variables = {
        name: (("time", *dims), data.astype("float32"), {"units": units}) for name, (data, units) in values.items()
    }
    return xr.Dataset(variables, coords, {"cat:id": "one", "cat:domain": "NAM"})


@pytest.fixture(scope="module")
def reference() -> xr.Dataset:
    """The whole reference on a rotated pole, 18 x 20 cells; a sea to the east, where cells are NaN."""
    time = xr.date_range("2001-01-01", "2002-12-31", calendar="standard", use_cftime=True)
    rlat, rlon = np.linspace(-3, 3, 18), np.linspace(-4, 4, 20)
    y, x = np.meshgrid(rlat, rlon, indexing="ij")
    lat, lon = 47.5 + y + 0.1 * x, -72.5 + 1.3 * x - 0.15 * y
    coords = {"time": time, "rlat": rlat, "rlon": rlon, "lat": (("rlat", "rlon"), lat), "lon": (("rlat", "rlon"), lon)}
    fields = {"orog": (("rlat", "rlon"), 100 + lat), "mask": (("rlat", "rlon"), np.ones_like(lat))}
    made = dataset(series(time, lat.shape, 1), ("rlat", "rlon"), coords)
    return made.where(made.lon < -71).assign_coords(fields)


@pytest.fixture(scope="module")
def domain(reference: xr.Dataset) -> xr.Dataset:
    return diagnosis.cut_domain(reference, BOX)


@pytest.fixture(scope="module")
def raw() -> xr.Dataset:
    """A model's maps, in its own calendar."""
    time = xr.date_range("2001-01-01", "2002-12-31", calendar="noleap", use_cftime=True)
    lat, lon = np.arange(40.0, 56.1, 0.5), np.arange(-82.0, -62, 0.5)
    return dataset(series(time, (lat.size, lon.size), 2), ("lat", "lon"), {"time": time, "lat": lat, "lon": lon})


def on_domain(raw: xr.Dataset, domain: xr.Dataset) -> xr.Dataset:
    return diagnosis.on_domain(raw, domain, land="tasmax", regridder_kwargs=KWARGS, intermediate_grids=GRIDS)


def test_a_simulation_is_regridded_as_to_the_whole_reference_and_has_the_reference_s_cells(raw, reference, domain):
    found = on_domain(raw.chunk(time=200), domain)
    whole = regrid.regrid(
        raw, stack.grid_of(reference.drop_vars(["orog", "mask"])), regridder_kwargs=KWARGS, intermediate_grids=GRIDS
    )
    expected = whole.where(reference.tasmax.isel(time=130, drop=True).notnull())
    for name in UNITS:
        here = diagnosis.cut_domain(expected, BOX)[name]
        assert 20 < int(here[0].notnull().sum()) < 0.8 * here[0].size
        xr.testing.assert_allclose(found[name].reset_coords(drop=True), here.reset_coords(drop=True), rtol=1e-6)
    assert set(found.coords) == {"time", "rlat", "rlon", "lat", "lon"}
    assert found.attrs["cat:id"] == "one" and found.attrs["cat:domain"] == "Atlas"


def test_no_intermediate_grid_is_skipped_though_it_is_coarser(raw, domain):
    direct = diagnosis.on_domain(raw, domain, land="tasmax", regridder_kwargs=KWARGS)
    assert float(abs(on_domain(raw, domain).tasmax - direct.tasmax).max()) > 1


def test_the_mask_of_a_simulation_is_not_used(raw, domain):
    masked = raw.assign_coords(mask=(("lat", "lon"), np.zeros((raw.lat.size, raw.lon.size))))
    xr.testing.assert_identical(on_domain(masked, domain), on_domain(raw, domain))


def test_only_the_day_at_position_130_says_where_the_reference_has_data(raw, domain):
    days = np.arange(domain.sizes["time"])[:, None, None]
    others_missing = domain.where(days == 130)
    xr.testing.assert_identical(on_domain(raw, others_missing), on_domain(raw, domain))
    missing_there = domain.assign(tasmax=domain.tasmax.where(days != 130))
    assert on_domain(raw, missing_there).pr.isnull().all()
    with pytest.raises(DataError, match="the reference has 100 days; expected more than 130"):
        on_domain(raw, domain.isel(time=slice(100)))


def test_the_raw_data_are_read_once_and_only_where_they_are_needed(raw, domain, monkeypatch):
    monkeypatch.setattr(diagnosis, "CELLS_IN_A_BLOCK", 30)
    reads, lock = [0], threading.Lock()
    values = raw.tasmax.values

    def read(block_info: Any = None) -> np.ndarray:
        with lock:
            reads[0] += 1
        first, last = block_info[None]["array-location"][0]
        return values[first:last]

    sizes = ((365, 365), *((size,) for size in values.shape[1:]))
    lazy = dask.array.map_blocks(read, chunks=sizes, dtype=values.dtype, meta=np.empty((0, 0, 0), "float32"))
    found = on_domain(raw[["tasmax"]].assign(tasmax=raw.tasmax.copy(data=lazy)), domain)
    assert found.tasmax.data.npartitions > 3 and found.tasmax.chunks[0] == (730,)
    found.load(scheduler="synchronous")
    assert reads[0] == 2


def oracle(part: xr.Dataset) -> xr.Dataset:
    """The properties of xsdba, in float64, after the conversion of units by xclim."""
    converted = part.astype("float64", keep_attrs=True).sel(time=slice(*PERIOD))
    for name, units in UNITS.items():
        if name != "dtr":
            converted[name] = xclim.core.units.convert_units_to(converted[name], units, context="hydro")
    found = {}
    for name, one in DEFINITIONS["indicators"].items():
        compute = getattr(xsdba.properties, one["base"].split(".")[-1])
        inputs = {argument: converted[variable] for argument, variable in one["input"].items()}
        found[name] = compute(**inputs, **one.get("parameters", {}))
    return xr.Dataset(found)


def properties_of(part: xr.Dataset) -> xr.Dataset:
    return Diagnosis(part, DiagnosisStep(DEFINITIONS, PERIOD, units=UNITS)).properties().compute()


@pytest.fixture(scope="module")
def found(raw, domain) -> tuple[xr.Dataset, xr.Dataset]:
    """The properties of the simulation and of the reference."""
    return properties_of(on_domain(raw, domain)), properties_of(domain)


@pytest.mark.filterwarnings("ignore:All-NaN slice", "ignore:The 'name' property")
def test_all_properties_are_xsdba_s_in_the_units_asked_for(found, raw, domain):
    for mine, part in zip(found, (on_domain(raw, domain).compute(), domain), strict=True):
        assert len(mine.data_vars) == 22
        for name, expected in oracle(part).items():
            # xsdba's order of dimensions changes from run to run.
            wanted = expected.where(part.tasmax[0].notnull()).transpose(*mine[name].dims)
            np.testing.assert_allclose(mine[name], wanted, rtol=2e-4, atol=2e-4, err_msg=str(name))
    sim = found[0]
    assert [sim[name].attrs["units"] for name in ("mean_tasmax", "q99_pr", "q01_dtr")] == ["degC", "mm d-1", "K"]
    assert -15 < float(sim.mean_tasmax.mean()) < 25


def test_measures_are_xsdba_s(found):
    sim, ref = found
    measured = diagnosis.measures(sim, ref, to_level="diag-measures")
    expected = xsdba.measures.bias(sim.mean_tasmax, ref.mean_tasmax)
    xr.testing.assert_allclose(measured.mean_tasmax, expected)
    assert measured.mean_tasmax.attrs["units"] == expected.attrs["units"]
    # A difference of temperatures in degC is not 273 larger than in K.
    assert float(abs(measured.mean_tasmax).max()) < 5
    assert measured.aca_pr.equals(xsdba.measures.ratio(sim.aca_pr, ref.aca_pr))


def test_what_covers_a_part_of_the_domain_is_spread_over_all_of_it(domain):
    grid = stack.grid_of(domain)
    part = domain.isel(rlat=slice(2, None), rlon=slice(None, -3))
    spread = spread_over(part.chunk(), grid)
    assert dask.is_dask_collection(spread.tasmax.data)
    xr.testing.assert_identical(spread.isel(rlat=slice(2, None), rlon=slice(None, -3)).compute(), part)
    assert spread.tasmax.isel(rlat=slice(2)).isnull().all() and spread.tasmax.isel(rlon=slice(-3, None)).isnull().all()
    xr.testing.assert_identical(spread.lat, grid.lat)
    with pytest.raises(DataError, match="1 of 1 values of rlat are not in the grid"):
        spread_over(part.isel(rlat=[0]).assign_coords(rlat=[9.0]), grid)
