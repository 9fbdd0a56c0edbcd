"""Archives by name: tiny files of each archive's layout, as its public documents have it, are catalogued and opened."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from espo_luigi.catalog import Catalog, Match, make_catalog, open_match
from espo_luigi.catalog.presets import load_preset, packaged
from espo_luigi.commands import cli
from espo_luigi.errors import ConfigurationError, EspoError

LATS, LONS = np.array([50.25, 50.0, 49.75]), np.array([8.0, 8.25, 8.5, 8.75])
CURVED = np.meshgrid(LATS, LONS, indexing="ij")


def grid(
    held: dict[str, tuple[float, str]],
    first: str,
    days: int = 3,
    *,
    time: str = "time",
    lat: str = "lat",
    lon: str = "lon",
    y: str = "",
    dims: tuple[str, ...] = (),
    freq: str = "D",
) -> xr.Dataset:
    """Variables with a value and units, on 3 x 4 cells; latitudes and longitudes are 2-D where `y` names their rows."""
    rows = (y, {"y": "x", "rlat": "rlon"}.get(y, y.replace("_y_", "_x_"))) if y else (lat, lon)
    times = xr.date_range(first, periods=days, freq=freq)
    coords: dict[str, Any] = {time: times}
    coords |= {lat: (rows, CURVED[0]), lon: (rows, CURVED[1])} if y else {lat: LATS, lon: LONS}
    values = np.ones((days, LATS.size, LONS.size), "float32")
    data = {name: ((time, *rows), values * value, {"units": units}) for name, (value, units) in held.items()}
    ds = xr.Dataset(data, coords)
    ds[lat].attrs, ds[lon].attrs = {"units": "degrees_north"}, {"units": "degrees_east"}
    return ds.transpose(*dims) if dims else ds


def stored(ds: xr.Dataset, path: Path, origin: str = "days since 1900-01-01 00:00:00", time: str = "time") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    ds.to_netcdf(path, encoding={time: {"units": origin, "dtype": "float64"}} if time in ds.variables else {})


def found(folder: Path, preset: str, variables: dict[str, str], **criteria: Any) -> dict[str, Match]:
    make_catalog(folder, folder / "cat.json", preset=load_preset(preset))
    years = criteria.pop("periods", None)
    catalog = Catalog.from_files([folder / "cat.json"])
    return catalog.search(variables_and_freqs=variables, periods=years, other_search_criteria=criteria or None)


def opened(folder: Path, preset: str, source: str, *variables: str) -> xr.Dataset:
    """The only dataset of a source, in canonical units."""
    (match,) = found(folder, preset, dict.fromkeys(variables, "D"), source=source).values()
    return open_match(match)


def means(ds: xr.Dataset) -> dict[str, float]:
    return {str(name): float(f"{float(data.mean()):.5g}") for name, data in ds.data_vars.items()}


def test_e_obs(tmp_path: Path) -> None:
    names = {"tx": (20.0, "Celsius"), "tn": (10.0, "Celsius"), "tg": (15.0, "Celsius"), "rr": (8.64, "mm")}
    for name, held in names.items():
        ds = grid({name: held}, "2000-01-01", lat="latitude", lon="longitude")
        stored(ds, tmp_path / f"{name}_ens_mean_0.1deg_reg_v31.0e.nc", "days since 1950-01-01 00:00")
    assert means(opened(tmp_path, "e-obs", "E-OBS", "tasmax", "tasmin", "tas", "pr")) == {
        "tasmax": 293.15,
        "tasmin": 283.15,
        "tas": 288.15,
        "pr": 0.0001,
    }


def test_chirps(tmp_path: Path) -> None:
    ds = grid({"precip": (8.64, "mm/day")}, "1981-01-01", lat="latitude", lon="longitude")
    stored(ds, tmp_path / "chirps-v2.0.1981.days_p05.nc", "days since 1980-1-1 0:0:0")
    assert means(opened(tmp_path, "chirps", "CHIRPS", "pr")) == {"pr": 0.0001}


@pytest.mark.parametrize(("name", "version"), [("precipitation", "V07B"), ("precipitationCal", "V06")])
def test_imerg_has_the_days_of_its_names(tmp_path: Path, name: str, version: str) -> None:
    for day in ("20000601", "20000602"):
        ds = grid({name: (8.64, "mm")}, "1970-01-01", 1, dims=("time", "lon", "lat"))
        ds["time"] = ("time", [11109], {"units": "days since 1970-01-01 00:00:00", "calendar": "julian"})
        path = tmp_path / f"2000/06/3B-DAY.MS.MRG.3IMERG.{day}-S000000-E235959.{version}.nc4"
        path.parent.mkdir(parents=True, exist_ok=True)
        ds.to_netcdf(path)
    ds = opened(tmp_path, "imerg", "IMERG", "pr")
    assert means(ds) == {"pr": 0.0001}
    assert [str(day)[:10] for day in ds["time"].values] == ["2000-06-01", "2000-06-02"]


def test_prism_has_a_day_in_a_file_without_times(tmp_path: Path) -> None:
    for day in ("20200228", "20200229", "20200301"):
        for name, value in (("tmax", 20.0), ("tmin", 10.0), ("ppt", 8.64)):
            ds = grid({"Band1": (value, "")}, "2020-01-01", 1).isel(time=0, drop=True)
            ds.to_netcdf(tmp_path / f"prism_{name}_us_25m_{day}.nc")
    ds = opened(tmp_path, "prism", "PRISM", "tasmax", "tasmin", "pr")
    assert means(ds) == {"tasmax": 293.15, "tasmin": 283.15, "pr": 0.0001}
    assert [str(day)[:10] for day in ds["time"].values] == ["2020-02-28", "2020-02-29", "2020-03-01"]


def daymet(folder: Path, *years: int) -> None:
    for year in years:
        for name, held in (("tmax", (20.0, "degrees C")), ("tmin", (10.0, "degrees C")), ("prcp", (8.64, "mm/day"))):
            ds = grid({name: held}, f"{year}-01-01 12:00", 365, y="y")
            half = np.timedelta64(12, "h")
            ds["time_bnds"] = (("time", "nv"), np.stack([ds["time"].values - half, ds["time"].values + half], 1))
            ds["yearday"] = ("time", np.arange(1, 366, dtype="int16"))
            ds["time"].attrs["bounds"] = "time_bnds"
            units = {"units": "days since 1950-01-01 00:00:00", "dtype": "float64"}
            ds.to_netcdf(folder / f"daymet_v4_daily_na_{name}_{year}.nc", encoding={"time": units, "time_bnds": units})


def test_daymet_lacks_the_last_day_of_leap_years_also_at_the_end(tmp_path: Path) -> None:
    daymet(tmp_path, 1999, 2000, 2001)
    (match,) = found(tmp_path, "daymet", {"tasmax": "D", "pr": "D"}, periods=["1999", "2001"]).values()
    ds = open_match(match)
    assert ds.sizes["time"] == 3 * 365 + 1 and ds.attrs["espo_luigi_inserted_days"] == "2000-12-31"
    assert bool(ds["tasmax"].sel(time="2000-12-31").isnull().all())
    assert means(ds) == {"tasmax": 293.15, "pr": 0.0001}
    (match,) = found(tmp_path, "daymet", {"tasmax": "D"}, periods=["1999", "2000"]).values()
    assert open_match(match)["time"].size == 2 * 365 + 1


def test_gridmet_tells_maxima_by_the_files_name(tmp_path: Path) -> None:
    for name, held, value, units in (
        ("tmmx", "air_temperature", 293.0, "K"),
        ("tmmn", "air_temperature", 283.0, "K"),
        ("pr", "precipitation_amount", 8.64, "mm"),
        ("rmax", "relative_humidity", 80.0, "%"),
        ("vs", "wind_speed", 3.0, "m/s"),
    ):
        ds = grid({held: (value, units)}, "1979-01-01", time="day").assign_coords(crs=("crs", [3]))
        stored(ds, tmp_path / f"{name}_1979.nc", "days since 1900-01-01 00:00:00", "day")
    ds = opened(tmp_path, "gridmet", "gridMET", "tasmax", "tasmin", "pr", "hursmax", "sfcWind")
    assert means(ds) == {"tasmax": 293.0, "tasmin": 283.0, "pr": 0.0001, "hursmax": 80.0, "sfcWind": 3.0}


def test_haduk_grid(tmp_path: Path) -> None:
    for name, value, units in (("tasmax", 20.0, "degC"), ("tasmin", 10.0, "degC"), ("rainfall", 8.64, "mm")):
        ds = grid(
            {name: (value, units)}, "2020-01-01 12:00", lat="latitude", lon="longitude", y="projection_y_coordinate"
        )
        stored(ds, tmp_path / f"{name}_hadukgrid_uk_1km_day_20200101-20200103.nc", "hours since 1800-01-01 00:00:00")
    assert means(opened(tmp_path, "haduk-grid", "HadUK-Grid", "tasmax", "tasmin", "pr")) == {
        "tasmax": 293.15,
        "tasmin": 283.15,
        "pr": 0.0001,
    }


def test_era5_of_days_and_of_hours(tmp_path: Path) -> None:
    for preset in ("era5", "era5-land"):
        folder = tmp_path / preset
        names = {"valid_time": "valid_time", "lat": "latitude", "lon": "longitude"}
        how = {"time": names["valid_time"], "lat": names["lat"], "lon": names["lon"]}
        for statistic, value in (("mean", 288.0), ("max", 293.0), ("min", 283.0)):
            ds = grid({"t2m": (value, "K")}, "2000-01-01", **how)  # type: ignore[arg-type]
            stored(ds, folder / f"2m_temperature_0_daily-{statistic}.nc", time="valid_time")
        hours = grid({"t2m": (280.0, "K"), "tp": (0.001, "m")}, "2000-01-01", 48, freq="h", **how)  # type: ignore[arg-type]
        stored(hours, folder / "data_stream-oper.nc", "seconds since 1970-01-01", "valid_time")
        source = {"era5": "ERA5", "era5-land": "ERA5-Land"}[preset]
        assert means(opened(folder, preset, source, "tas", "tasmax", "tasmin")) == {
            "tas": 288.0,
            "tasmax": 293.0,
            "tasmin": 283.0,
        }
        (match,) = found(folder, preset, {"tas": "h", "pr": "h"}).values()
        (kept,) = match.presets
        assert (kept.accumulation, kept.day) == ({"era5": "over_step"}.get(preset, "since_midnight"), "UTC")


@pytest.mark.parametrize("preset", ["era5", "era5-land"])
def test_days_of_amounts_are_only_sums_of_hours(tmp_path: Path, preset: str) -> None:
    """The Climate Data Store has a day's mean, maximum and minimum of hourly sums, too; ERA5-Land's start at 00 UTC."""
    held = {"tp": "pr", "ssrd": "rsds", "strd": "rlds"}
    for statistic, value in (("mean", 3.6e5), ("max", 1e6), ("min", 0.0), ("sum", 8.64e6)):
        for name in held:
            ds = grid({name: (value / (1e9 if name == "tp" else 1), "m" if name == "tp" else "J m-2")}, "2000-01-01")
            stored(ds, tmp_path / f"{name}_0_daily-{statistic}.nc")
    make_catalog(tmp_path, tmp_path / "cat.json", preset=load_preset(preset))
    rows = Catalog.from_files([tmp_path / "cat.json"]).assets
    days = {Path(row.path).stem: row.variables for row in rows}
    assert {stem: names for stem, names in days.items() if {*names} & {*held.values()}} == (
        {f"{name}_0_daily-sum": (usual,) for name, usual in held.items()} if preset == "era5" else {}
    )
    if preset == "era5":
        assert means(opened(tmp_path, preset, "ERA5", "pr", "rsds")) == {"pr": 0.0001, "rsds": 100.0}


def test_casr(tmp_path: Path) -> None:
    held = {
        "CaSR_v3.2_P_TT_1.5m": (15.0, "deg_C"),
        "CaSR_v3.2_A_PR0_SFC": (0.001, "m"),
        "CaSR_v3.2_P_GZ_SFC": (1.0, "m"),
    }
    ds = grid(held, "2000-01-01 13:00", 24, y="rlat", freq="h")
    stored(ds, tmp_path / "2000010112.nc", "hours since 1980-01-01")
    (match,) = found(tmp_path, "casr", {"tas": "h", "pr": "h"}, source="CaSR").values()
    assert match.variables == ("tas", "pr") and match.presets[0].accumulation == "over_step"
    assert match.assets[0].variables == ("tas", "pr")


def test_nex_gddp_is_described_by_its_names_and_the_newest_version_of_a_file_counts(tmp_path: Path) -> None:
    about = {"activity": "NEX-GDDP-CMIP6", "cmip6_source_id": "ACCESS-CM2", "variant_label": "r1i1p1f1"}
    for experiment, year, version, value in (
        ("historical", 2014, "", 290.0),
        ("ssp585", 2015, "", 291.0),
        ("ssp585", 2015, "_v1.1", 292.0),
        ("ssp585", 2015, "_v2.0", 293.0),
    ):
        ds = grid({"tasmax": (value, "K")}, f"{year}-01-01 12:00", 365).assign_attrs(about, scenario=experiment)
        ds.attrs["version"] = version.removeprefix("_v") or "1.0"
        stored(ds, tmp_path / f"tasmax_day_ACCESS-CM2_{experiment}_r1i1p1f1_gn_{year}{version}.nc")
    make_catalog(tmp_path, tmp_path / "cat.json", preset=load_preset("nex-gddp"))
    catalog = Catalog.from_files([tmp_path / "cat.json"])
    kept = [(row.columns["version"], row.columns["grid_label"], row.columns["frequency"]) for row in catalog.assets]
    assert kept == [("1.0", "gn", "day"), ("2.0", "gn", "day")]
    joined = catalog.search(variables_and_freqs={"tasmax": "D"}, periods=["2014", "2015"], match_hist_and_fut=True)
    (name,) = joined
    assert name == "CMIP6_NEX-GDDP-CMIP6_ACCESS-CM2_ssp585_r1i1p1f1_global"
    assert means(open_match(joined[name])) == {"tasmax": 291.5}


def test_cordex_cmip6_by_its_names_alone(tmp_path: Path) -> None:
    ds = grid({"tas": (288.0, "K")}, "2015-01-01 12:00", y="rlat")
    name = "tas_EUR-12_MPI-ESM1-2-HR_ssp370_r1i1p1f1_GERICS_REMO2020-2-2_v1-r1_day_20150101-20150103.nc"
    stored(ds, tmp_path / name)
    assert list(found(tmp_path, "cordex-cmip6", {"tas": "D"})) == [
        "CMIP6_DD_MPI-ESM1-2-HR_r1i1p1f1_GERICS_REMO2020-2-2_ssp370_v1-r1_EUR-12"
    ]


OWN = """
source: Mine
names:
  lat: Y
  lon: X
  pr: [RAIN, R in wet_*]
units: {pr: mm d-1}
"""


def test_a_preset_of_ones_own_renames_coordinates_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yml").write_text(OWN)
    ds = grid({"R": (8.64, "inconnu")}, "2000-01-01", lat="Y", lon="X")
    ds["Y"].attrs, ds["X"].attrs = {}, {}
    stored(ds, Path("data/wet_2000.nc"))
    assert cli.main(["catalog", "data", "--out", "cat.json", "--as", "mine.yml"]) == 0
    Path("mine.yml").unlink()
    (match,) = Catalog.from_files([Path("cat.json")]).search(variables_and_freqs={"pr": "D"}).values()
    assert match.columns["source"] == "Mine" and means(open_match(match)) == {"pr": 0.0001}
    described = json.loads(Path("cat.json").read_text())
    assert described["preset"]["units"] == {"pr": "mm d-1"}


@pytest.mark.parametrize(("given", "near"), [("eobs", "e-obs"), ("era5land", "era5-land"), ("hadukgrid", "haduk-grid")])
def test_an_unknown_preset_names_the_nearest(
    given: str, near: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["catalog", str(tmp_path), "--out", str(tmp_path / "cat.json"), "--as", given]) == 1
    assert f"did you mean {near}?" in capsys.readouterr().err


def test_a_wrong_key_of_ones_own_preset_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.yml"
    for text, told in (
        ("source: Mine\nunit: {pr: mm d-1}\n", "units"),
        ("accumulation: since_midday\n", "since_midnight"),
        ("files: '{source}_{source}'\n", "source"),
        ("leap_years_lack: never\n", "leap_years_lack"),
        ("day: UTC+99:99\n", "UTC-05:00"),
        ("units: {pr: mmm d-1}\n", "units.pr"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigurationError, match=r"mine\.yml, line") as error:
            load_preset(str(path))
        assert told in str(error.value)


def test_a_catalogue_with_a_damaged_preset_is_refused(tmp_path: Path) -> None:
    stored(grid({"precip": (1.0, "mm")}, "1981-01-01"), tmp_path / "chirps-v2.0.1981.days_p05.nc")
    make_catalog(tmp_path, tmp_path / "cat.json", preset=load_preset("chirps"))
    path = tmp_path / "cat.json"
    path.write_text(path.read_text().replace('"names"', '"nams"'))
    with pytest.raises(EspoError, match="nams"):
        Catalog.from_files([path])


def test_each_packaged_preset_is_valid_and_the_page_names_it() -> None:
    page = (Path(__file__).parents[2] / "docs" / "set-up" / "catalogue.md").read_text()
    for name in packaged():
        load_preset(name)
        assert f"`{name}`" in page
