"""The example of ESPO v2: its catalogue, its grids, and each peculiarity that v2 has to cope with."""

from __future__ import annotations

import csv
import shutil
import subprocess
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from demo_runs import content_of
from shared_folder import shared_folder

from espo_luigi.catalog import Match, open_fixed, open_match
from espo_luigi.catalog.build import describe
from espo_luigi.catalog.search import Catalog
from espo_luigi.demo import ensure_demo
from espo_luigi.science.extract.dataset import extract
from espo_luigi.science.extract.repairs import REPAIRED, Repair, create_mask, repair
from espo_luigi.science.geometry.cells import in_outline, outline
from espo_luigi.science.regrid import regrid
from espo_luigi.science.stack import stack_drop_nans

V2_DEMO = Path(__file__).parents[2] / "config" / "v2-demo"
CONFIG = content_of(V2_DEMO / "config.yml")
REFERENCE = CONFIG["extraction"]["reference"]
SIMULATION = CONFIG["extraction"]["simulation"]
ENSEMBLE = [f"CMIP6_ScenarioMIP_ESPO-DEMO_Demo-Ensemble_ssp370_r{number}i1p1f1_global" for number in (1, 2, 3)]
SINGLE = "CMIP6_ScenarioMIP_ESPO-DEMO_Demo-Single_ssp370_r1i1p1f1_global"
REGIONAL = [f"CMIP6_DD_Demo-Ensemble_r{number}i1p1f1_ESPO-DEMO_Demo-Regional_ssp370_v1-r1_GSL-33" for number in (1, 2)]
ALL = [*ENSEMBLE, SINGLE, *REGIONAL]
LAND = 186


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure_demo({"folder": str(shared_folder(tmp_path_factory) / "v2-demo" / "raw"), "production": "v2"})


@lru_cache
def found(raw: Path) -> dict[str, Match]:
    search = {**SIMULATION["search_data_catalogs"]}
    assert search.pop("allow_resampling") is False
    members = search.pop("restrict_members")
    return Catalog.from_files([raw / "simulation.json"]).search(**search, most_members=members["ordered"])


@lru_cache
def reference(raw: Path) -> xr.Dataset:
    """The reference, with its fixed fields as coordinates."""
    catalog = Catalog.from_files([raw / "reconstruction.json"])
    search = {**REFERENCE["search_data_catalogs"]}
    assert search.pop("allow_resampling") is False
    (match,) = catalog.search(**search).values()
    ds = open_match(match)
    fields = open_fixed(match, ds)
    return ds.assign_coords({name: fields[name] for name in ("mask", "orog")})


def opened(match: Match, first_year: int, last_year: int) -> xr.Dataset:
    """The years of an experiment, from its own files."""
    own = [one for one in match.assets if one.start is not None and first_year <= one.start.year <= last_year]
    return open_match(replace(match, assets=tuple(own)), xr_open_kwargs=SIMULATION["extract_dataset"]["xr_open_kwargs"])


def test_the_search_finds_six_simulations_each_with_its_pool_s_field(raw: Path) -> None:
    assert sorted(found(raw)) == sorted(ALL)
    fields = {name: Path(found(raw)[name].fixed["sftlf"].path) for name in ALL}
    assert {fields[name].name for name in ENSEMBLE} == {"sftlf_fx_Demo-Ensemble_historical_r3i1p1f1_gn.nc"}
    assert {fields[name] for name in REGIONAL} == {fields[REGIONAL[0]]} != {fields[SINGLE]}
    assert len(list(raw.rglob("sftlf*.nc"))) == 3
    for name in ALL:
        match = found(raw)[name]
        assert match.derived == ("dtr",) and len(match.assets) == 6
        assert {"driving_model", "driving_member"} <= set(match.columns) if name in REGIONAL else match.columns


@pytest.mark.parametrize(
    ("name", "calendar", "last_day"),
    [(ENSEMBLE[0], "noleap", 31), (SINGLE, "360_day", 30), (REGIONAL[1], "noleap", 31)],
)
def test_each_simulation_opens_in_its_calendar_with_its_mask(
    raw: Path, name: str, calendar: str, last_day: int
) -> None:
    match = found(raw)[name]
    past, future = opened(match, 1951, 2014), opened(match, 2015, 2100)
    assert past.time.dt.calendar == future.time.dt.calendar == calendar
    for ds, year in ((past, 2014), (future, 2100)):
        end = ds.time.values[-1]
        assert (end.year, end.month, end.day) == (year, 12, last_day)
    beginning = future.time.values[0]
    assert (past.time.values[0].dayofyr, beginning.dayofyr) == (1, 2 if name in REGIONAL else 1)
    limits = {key: value for key, value in SIMULATION["create_mask"].items() if key != "variable"}
    share = open_fixed(match, future)["sftlf"]
    land = create_mask(share, **limits).values
    assert share.units == "%" and 4 <= land.sum() < land.size
    for variable in future.data_vars.values():
        assert variable.isel(time=slice(0, 400)).notnull().all()


def test_all_files_of_the_regional_model_lack_the_same_day_and_no_other(raw: Path) -> None:
    for name in REGIONAL:
        match = found(raw)[name]
        for variable in ("tasmax", "tasmin", "pr"):
            paths = sorted(one.path for one in match.assets if variable in one.variables)
            days = np.concatenate([xr.open_dataset(path, decode_times=False).time.values for path in paths])
            (gap,) = np.flatnonzero(np.diff(days) != 1)
            assert days.size == 150 * 365 - 1 and gap == 64 * 365 - 1 and days[gap + 1] - days[gap] == 2


def test_the_latitudes_of_one_member_differ_by_round_off(raw: Path) -> None:
    first, second, third = (
        xr.open_dataset(found(raw)[name].assets[0].path, decode_times=False).lat.values for name in ENSEMBLE
    )
    np.testing.assert_array_equal(first, third)
    assert 0 < abs(first - second).max() < 1e-5


def test_the_reference_is_rotated_and_has_data_beyond_its_mask(raw: Path) -> None:
    ds = reference(raw)
    assert ds.time.dt.calendar in ("standard", "gregorian", "proleptic_gregorian")
    assert [str(day)[:10] for day in ds.time.values[[0, -1]]] == ["1991-01-01", "2020-12-31"]
    assert ds.tasmax.dims == ("time", "rlat", "rlon") and ds.lat.dims == ("rlat", "rlon")
    np.testing.assert_allclose(np.diff(ds.rlat), 0.1)
    np.testing.assert_allclose(np.diff(ds.rlon), 0.1)
    path = next(raw.rglob("pr_day_Demo-Rotated_*.nc"))
    with xr.open_dataset(path, decode_coords="all") as file:
        assert file["rotated_pole"].attrs["grid_mapping_name"] == "rotated_latitude_longitude"
        assert file["pr"].encoding["grid_mapping"] == "rotated_pole"
    known = ds.tasmax.isel(time=0).notnull().values
    assert set(np.unique(ds["mask"])) == {0, 1}
    assert (ds["mask"] == 1).sum() == LAND and known[ds["mask"].values == 1].all()
    assert LAND + 40 < known.sum() < known.size - 40
    for name in ("tasmin", "pr"):
        np.testing.assert_array_equal(ds[name].isel(time=-1).notnull(), known)
    assert ds.orog.max() > 300 and (ds.orog.where(ds["mask"] == 0, 0) == 0).all()


def test_slices_and_chunks_have_production_s_shape(raw: Path) -> None:
    """Three slices with a shorter last; chunks smaller than slices and grid, which nothing divides."""
    ds, chunks, cells = reference(raw), CONFIG["chunks"], CONFIG["subregions"]["n"]
    sizes = [min(cells, LAND - start) for start in range(0, LAND, cells)]
    assert len(sizes) == 3 and sizes[-1] < cells
    loc = chunks["workingloc"]["loc"]
    assert all(loc < size and size % loc for size in sizes)
    for dim, name in (("rlat", "Y"), ("rlon", "X")):
        for part in (chunks["workingXY"][name], chunks["final"][name]):
            assert part < ds.sizes[dim] and ds.sizes[dim] % part


def test_the_box_holds_the_whole_reference_and_both_domains_have_land_within_the_regional_model(raw: Path) -> None:
    ds, box = reference(raw), CONFIG["domain"]
    for name in ("lat", "lon"):
        low, high = box[f"{name}_bnds"]
        assert low < ds[name].min() and ds[name].max() < high
    grid = opened(found(raw)[REGIONAL[0]], 2015, 2100)
    within = in_outline(outline(grid.lat, grid.lon), ds.lat, ds.lon)
    covered = (within & (ds["mask"] == 1)).sum() / LAND
    assert 0.3 < covered < 0.7
    for domain in CONFIG["diagregion"].values():
        (south, north), (west, east) = domain["lat_bnds"], domain["lon_bnds"]
        own = (ds["mask"] == 1) & (ds.lat >= south) & (ds.lat <= north) & (ds.lon >= west) & (ds.lon <= east)
        assert 20 < own.sum() < LAND / 2 and 10 < (own & within).sum() < own.sum()


def test_the_intermediate_grids_reach_from_every_simulation_to_the_reference(raw: Path) -> None:
    """All of a global simulation's cells that the box asks for take part; nothing is extrapolated, but for the mask."""
    points = stack_drop_nans(reference(raw)[["pr"]].isel(time=[0]))
    period, stages = ("2015", "2015"), CONFIG["regrid"]["regrid_dataset"]["intermediate_grids"]
    for name in (ENSEMBLE[0], SINGLE):
        ds = opened(found(raw)[name], 2015, 2100)
        cut = extract(ds, variables_and_freqs={"pr": "D"}, period=period, region=CONFIG["domain"])
        done = regrid(cut, points, intermediate_grids=stages, regridder_kwargs={"extrap_method": "inverse_dist"})
        assert done.attrs["espo_luigi_extrapolated_cells"] == 0
        assert done.pr.notnull().all()


def test_the_configured_repairs_mend_one_value_of_one_member_and_no_other(raw: Path) -> None:
    rows = [Repair(**row) for row in SIMULATION["repairs"]]
    variables = {name: "D" for name in ("tasmax", "tasmin", "dtr")}
    counts = {}
    for name in ENSEMBLE:
        ds = opened(found(raw)[name], 2015, 2100)
        cut = extract(ds, variables_and_freqs=variables, period=("2015", "2100"), region=CONFIG["domain"])
        repaired = repair(cut, rows)
        counts[name] = repaired[REPAIRED].values.tolist() if REPAIRED in repaired.coords else []
        assert repaired.tasmax.max() < 335 and repaired.dtr.max() < 45
        if name == ENSEMBLE[0]:
            gap = repaired.tasmax.isnull().any(("lat", "lon"))
            assert [str(day)[:10] for day in repaired.time.values[gap.values]] == ["2030-07-15"]
    assert counts == {ENSEMBLE[0]: [1, 1], ENSEMBLE[1]: [], ENSEMBLE[2]: []}


@pytest.mark.parametrize("name", [ENSEMBLE[1], SINGLE, REGIONAL[0]])
def test_the_weather_is_possible_and_of_each_member_s_own(raw: Path, name: str) -> None:
    ds = opened(found(raw)[name], 2015, 2100)
    assert (ds.tasmax > ds.tasmin).all()
    assert ds.tasmin.min() > 203 and ds.tasmax.max() < 330
    assert ds.pr.min() == 0 and 50 < ds.pr.max() * 86400 < 400
    other = opened(found(raw)[{ENSEMBLE[1]: ENSEMBLE[2], REGIONAL[0]: REGIONAL[1]}.get(name, ENSEMBLE[0])], 2015, 2100)
    from_day_to_day = [part.tasmax[:3650, 2, 2].diff("time").values for part in (ds, other)]
    assert abs(np.corrcoef(*from_day_to_day)[0, 1]) < 0.1


def test_the_catalogue_is_what_espo_catalog_makes_of_the_files(raw: Path) -> None:
    for name in ("reconstruction", "simulation"):
        with (raw / f"{name}.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == {"reconstruction": 5, "simulation": 39}[name]
        for row in rows:
            made = describe(Path(row["path"]))
            dates = {column: made.pop(column, "")[:10] for column in ("date_start", "date_end")}
            assert {column: row[column] for column in made} == made
            assert {column: row[column] for column in dates} == dates


@pytest.mark.skipif(shutil.which("cdo") is None, reason="cdo is not on the PATH")
class TestWithCDO:
    """What another program makes of the files."""

    def cdo(self, *arguments: Any) -> str:
        done = subprocess.run(["cdo", "-s", *map(str, arguments)], capture_output=True, text=True, check=False)
        assert done.returncode == 0 and "Warning" not in done.stderr, done.stderr
        return done.stdout

    def test_it_reads_every_file(self, raw: Path) -> None:
        paths = list(raw.rglob("*.nc"))
        assert len(paths) == 44
        for path in paths:
            said = self.cdo("sinfon", path)
            assert path.name.split("_")[0] in said
            assert ("mapping : rotated_latitude_longitude" in said) == ("GSL-33" in path.name or "Rotated" in path.name)

    @pytest.mark.parametrize("pattern", ["orog_*Rotated*.nc", "sftlf_GSL-33*.nc"])
    def test_it_computes_the_same_latitudes_and_longitudes_from_the_pole(
        self, raw: Path, tmp_path: Path, pattern: str
    ) -> None:
        with xr.open_dataset(next(raw.rglob(pattern))) as ds:
            bare = ds.drop_vars(["lat", "lon"])
            for variable in bare.data_vars.values():
                variable.encoding.pop("coordinates", None)
            bare.to_netcdf(tmp_path / "bare.nc")
            self.cdo("-f", "nc4", "setgridtype,curvilinear", tmp_path / "bare.nc", tmp_path / "theirs.nc")
            with xr.open_dataset(tmp_path / "theirs.nc") as theirs:
                np.testing.assert_allclose(theirs.lat.values, ds.lat.values, atol=1e-5)
                np.testing.assert_allclose(theirs.lon.values, ds.lon.values, atol=1e-5)
