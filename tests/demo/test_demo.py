"""The built-in example is plausible, made once, the same for a seed, and wrong in the ways that it promises."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

import cftime
import numpy as np
import pytest
import xarray as xr
from small_demo import SMALL_CONFIG, small_reference
from xclim.core.cfchecks import cfcheck_from_name

from espo_luigi import config
from espo_luigi.catalog import Catalog
from espo_luigi.config import RunConfig
from espo_luigi.demo import ensure_demo
from espo_luigi.errors import ConfigurationError

CONFIG = Path(__file__).parents[2] / "config"
REFERENCE = "Demo-Land"
DRIZZLY, DRY = "Demo-NoLeap", "Demo-360Day"
SECONDS_PER_DAY = 86400
DAYS_PER_YEAR = {REFERENCE: 365.25, DRIZZLY: 365, DRY: 360}


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure_demo({"folder": str(tmp_path_factory.mktemp("demo") / "raw"), "seed": 1})


@pytest.fixture(scope="module")
def run_config(raw: Path) -> RunConfig:
    return config.load([CONFIG / "demo" / "config.yml", CONFIG / "demo" / "paths.yml"])


@pytest.fixture
def reference_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes making quick: no simulations, and a reference of few cells."""
    monkeypatch.setattr("espo_luigi.demo.make.SIMULATIONS", ())
    monkeypatch.setattr("espo_luigi.demo.make.REFERENCE", small_reference())


@lru_cache
def opened(raw: Path, source: str, variable: str) -> xr.DataArray:
    """All years of a variable, time as numbers: decoding 55 000 dates takes longer than all else here."""
    paths = sorted(raw.rglob(f"{variable}_day_{source}_*.nc"))
    return xr.concat([xr.open_dataset(path, decode_times=False)[variable].load() for path in paths], "time")


def calibration(raw: Path, source: str, variable: str) -> xr.DataArray:
    """The years 1991-2020 of a cell near the middle of the reference's box."""
    da = opened(raw, source, variable)
    if source != REFERENCE:
        da = da.isel(time=slice(*(DAYS_PER_YEAR[source] * (year - 1950) for year in (1991, 2021))))
    return da.assign_coords(lon=(da.lon + 180) % 360 - 180).sel(lat=46.0, lon=-66.0, method="nearest")


@pytest.mark.parametrize(
    ("source", "calendar", "days", "first", "last"),
    [
        (REFERENCE, "standard", 10958, "1991-01-01 12:00:00", "2020-12-31 12:00:00"),
        (DRIZZLY, "noleap", 55115, "1950-01-01 12:00:00", "2100-12-31 12:00:00"),
        (DRY, "360_day", 54360, "1950-01-01 12:00:00", "2100-12-30 12:00:00"),
    ],
)
def test_each_dataset_has_its_calendar_and_every_day_at_noon(
    raw: Path, source: str, calendar: str, days: int, first: str, last: str
) -> None:
    for variable in ("tasmax", "tasmin", "pr"):
        time = opened(raw, source, variable).time
        assert time.size == days and set(np.diff(time)) == {1}
        dates = cftime.num2date(time.values[[0, -1]], time.units, time.calendar)
        assert [str(date) for date in dates] == [first, last]
        assert time.calendar == calendar


@pytest.mark.parametrize("source", [REFERENCE, DRIZZLY, DRY])
def test_the_weather_is_possible(raw: Path, source: str) -> None:
    tasmax, tasmin, pr = (opened(raw, source, name) for name in ("tasmax", "tasmin", "pr"))
    assert bool((tasmax > tasmin).where(tasmax.notnull(), True).all())
    assert 240 > tasmin.min() > 203 and 300 < tasmax.max() < 333, "outside of what the health checks allow"
    assert not np.signbit(pr.values[pr.notnull().values]).any()
    assert 50 < pr.max() * SECONDS_PER_DAY < 400
    assert {tasmax.dtype, tasmin.dtype, pr.dtype} == {np.dtype("float32")}


@pytest.mark.parametrize("source", [REFERENCE, DRIZZLY, DRY])
@pytest.mark.parametrize(("variable", "units"), [("tasmax", "K"), ("tasmin", "K"), ("pr", "kg m-2 s-1")])
def test_the_files_pass_xclim_s_cf_checks(raw: Path, source: str, variable: str, units: str) -> None:
    da = opened(raw, source, variable)
    cfcheck_from_name(variable, da)
    assert da.units == units


def test_the_simulations_are_wrong_as_promised(raw: Path) -> None:
    mean = {source: calibration(raw, source, "tasmax").mean().item() for source in (REFERENCE, DRIZZLY, DRY)}
    assert mean[DRIZZLY] - mean[REFERENCE] > 1 and mean[DRY] - mean[REFERENCE] < -0.5
    cycle = {source: yearly_cycle(raw, source) for source in (REFERENCE, DRIZZLY, DRY)}
    assert cycle[DRIZZLY] < cycle[REFERENCE] - 2 and cycle[DRY] > cycle[REFERENCE] + 2
    rain = {source: calibration(raw, source, "pr") * SECONDS_PER_DAY for source in (REFERENCE, DRIZZLY, DRY)}
    wet = {source: (da >= 1).mean().item() for source, da in rain.items()}
    assert wet[DRY] < wet[REFERENCE] - 0.02, "frequency adaptation has nothing to do"
    assert wet[DRIZZLY] > wet[REFERENCE] + 0.1


def yearly_cycle(raw: Path, source: str) -> float:
    """Summer's tasmax less winter's, K, from the middle months of each."""
    tasmax = calibration(raw, source, "tasmax")
    phase = (np.arange(tasmax.size) / DAYS_PER_YEAR[source]) % 1
    summer, winter = (tasmax.values[(phase > begin) & (phase < begin + 0.08)].mean() for begin in (0.53, 0.03))
    return float(summer - winter)


def test_it_warms(raw: Path) -> None:
    for source in (DRIZZLY, DRY):
        tasmin, thirty_years = opened(raw, source, "tasmin"), 30 * DAYS_PER_YEAR[source]
        warming = tasmin[-thirty_years:].mean() - tasmin[:thirty_years].mean()
        assert 2 < warming < 6


def test_grids_differ_in_longitudes_and_in_the_order_of_latitudes(raw: Path) -> None:
    assert opened(raw, DRIZZLY, "pr").lon.min() > 180 and opened(raw, DRY, "pr").lon.max() < 0
    assert opened(raw, DRIZZLY, "pr").indexes["lat"].is_monotonic_increasing
    assert opened(raw, DRY, "pr").indexes["lat"].is_monotonic_decreasing


def test_every_row_of_the_reference_is_in_one_region_and_every_region_has_land(
    raw: Path, run_config: RunConfig
) -> None:
    land = opened(raw, REFERENCE, "tasmax").isel(time=0).notnull()
    rows = []
    for region in run_config.custom.regions.values():
        part = land.sel(lat=slice(*region.lat_bnds), lon=slice(*region.lon_bnds))
        rows += part.lat.values.tolist()
        assert 15 <= int(part.sum()) < part.size
    assert rows == land.lat.values.tolist()
    assert int(land.sum()) >= 600


def test_the_small_demo_has_production_s_shape() -> None:
    """Chunks that neither cells nor rows nor columns fill, bounds of bands inside of a chunk, and a chunk all sea."""
    custom = config.load([CONFIG / "demo" / "config.yml", CONFIG / "demo" / "paths.yml", SMALL_CONFIG]).custom
    source = small_reference()
    cells = np.array([list(row) for row in source.land[::-1]]) == "#"
    land = xr.DataArray(cells, {"lat": list(source.lats), "lon": list(source.lons)}, ("lat", "lon"))
    bands = [land.sel(lat=slice(*region.lat_bnds)) for region in custom.regions.values()]
    counts, heights = [int(band.sum()) for band in bands], [band.sizes["lat"] for band in bands]
    assert max(counts) > 2 * custom.working_chunks["loc"]
    assert all(count % custom.working_chunks["loc"] for count in counts)
    rows, columns = custom.final_chunks["lat"], custom.final_chunks["lon"]
    assert len(set(heights)) == len(heights) and all(height % rows for height in heights)
    assert all(border % rows for border in np.cumsum(heights)[:-1])
    assert rows < max(heights) and land.sizes["lon"] % columns and columns % rows and rows % columns
    assert not land[rows : 2 * rows, columns:].any()


def test_bands_of_the_demo_are_linked_and_have_several_working_chunks(raw: Path, run_config: RunConfig) -> None:
    land, custom = opened(raw, REFERENCE, "tasmax").isel(time=0).notnull(), run_config.custom
    bands = [land.sel(lat=slice(*region.lat_bnds)) for region in custom.regions.values()]
    assert not any(band.sizes["lat"] % custom.final_chunks["lat"] for band in bands[:-1])
    assert all(int(band.sum()) > 2 * custom.working_chunks["loc"] for band in bands)


def test_each_diagnosed_domain_lies_within_the_region_that_hosts_it(run_config: RunConfig) -> None:
    regions = {**run_config.custom.regions, run_config.domain.name: run_config.domain}
    for step in run_config.off_diag.steps.values():
        assert set(step.domain) == set(run_config.off_diag.domains)
        for name, host in step.domain.items():
            for bounds in ("lat_bnds", "lon_bnds"):
                inner, outer = getattr(run_config.off_diag.domains[name], bounds), getattr(regions[host], bounds)
                assert outer[0] <= inner[0] < inner[1] <= outer[1]


def test_the_demo_s_method_is_production_s(run_config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ESPO_OUTPUT", "ESPO_SCRATCH", "ESPO_CATALOGS"):
        monkeypatch.setenv(name, "/tmp")
    production = config.load([CONFIG / "espo-g6" / "config.yml", CONFIG / "espo-g6" / "paths.yml"])
    assert run_config.health_checks == production.health_checks
    assert (
        run_config.off_diag.steps["sim"].properties_and_measures.properties
        == production.off_diag.steps["sim"].properties_and_measures.properties
    )
    for name, variable in production.biasadjust.variables.items():
        ours = run_config.biasadjust.variables[name]
        assert ours.training_args == variable.training_args
        assert ours.adjusting_args.xclim_adjust_args == variable.adjusting_args.xclim_adjust_args


def test_the_configured_searches_find_the_reference_and_both_simulations(raw: Path, run_config: RunConfig) -> None:
    def found(section: str) -> set[str]:
        search = getattr(run_config.extraction, section).search_data_catalogs
        arguments = search.arguments("data_catalogs", "allow_resampling", "restrict_members")
        json = raw / ("reconstruction.json" if section == "reference" else "simulation.json")
        return set(Catalog.from_files([json]).search(**arguments))

    assert found("reference") == {"ESPO-DEMO_Demo-Land_NAM"}
    assert found("simulation") == {
        "CMIP6_ScenarioMIP_ESPO-DEMO_Demo-NoLeap_ssp585_r1i1p1f1_global",
        "CMIP6_ScenarioMIP_ESPO-DEMO_Demo-360Day_ssp585_r1i1p1f1_global",
    }


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*.nc")}


@pytest.mark.usefixtures("reference_only")
def test_the_same_seed_makes_the_same_files_and_another_seed_others(tmp_path: Path) -> None:
    again = contents(ensure_demo({"folder": str(tmp_path / "again"), "seed": 1}))
    other = contents(ensure_demo({"folder": str(tmp_path / "other"), "seed": 2}))
    first = contents(ensure_demo({"folder": str(tmp_path / "raw"), "seed": 1}))
    assert again == first
    assert other.keys() == first.keys() and all(other[name] != first[name] for name in first)


@pytest.mark.usefixtures("reference_only")
def test_what_is_there_is_left_alone_and_another_seed_is_made_anew(tmp_path: Path) -> None:
    folder = ensure_demo({"folder": str(tmp_path / "raw")})
    made = folder.stat().st_ino
    assert ensure_demo({"folder": str(tmp_path / "raw"), "seed": 1}).stat().st_ino == made
    assert ensure_demo({"folder": str(tmp_path / "raw"), "seed": 2}).stat().st_ino != made


@pytest.mark.usefixtures("reference_only")
def test_the_record_of_what_was_made_stays_the_same_so_that_folders_of_this_edition_stay_valid(tmp_path: Path) -> None:
    folder = ensure_demo({"folder": str(tmp_path / "raw")})
    assert json.loads((folder / "demo.json").read_text()) == {"edition": 3, "seed": 1, "folder": str(folder)}


@pytest.mark.usefixtures("reference_only")
def test_two_at_once_make_it_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "espo_luigi.demo")
    with ThreadPoolExecutor(2) as pool:
        folders = set(pool.map(ensure_demo, [{"folder": str(tmp_path / "raw")}] * 2))
    assert folders == {tmp_path / "raw"}
    assert sum("Making the demo's data" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize(
    "section",
    [
        {},
        {"folder": ""},
        {"folder": "x", "seeds": 1},
        {"folder": "x", "seed": -1},
        {"folder": "x", "seed": "a"},
        {"folder": "x", "production": "v1"},
    ],
)
def test_a_wrong_section_is_refused(
    section: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=r"`demo.*expected"):
        ensure_demo(section)
    assert not list(tmp_path.iterdir())
