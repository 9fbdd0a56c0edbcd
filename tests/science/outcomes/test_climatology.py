"""Climatologies and changes, compared with those of xscen."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import yaml
from outcomes import BASELINE, CALENDARS, CLIMATOLOGIES, DATA
from xclim import atmos

from espo_luigi.errors import ConfigurationError, DataError
from espo_luigi.export import netcdf
from espo_luigi.science.outcomes import ensemble
from espo_luigi.science.outcomes.climatology import climatology, horizons, missing_years
from espo_luigi.science.outcomes.delta import delta
from espo_luigi.science.outcomes.indicators import compute_indicators, load_indicators, northern_dates
from espo_luigi.science.outcomes.natures import without_years

FREQUENCIES = ("YS-JAN", "QS-DEC", "MS")


def golden(calendar: str, group: str) -> xr.Dataset:
    path = DATA / "golden" / f"outcomes-{calendar}.nc"
    return xr.load_dataset(path, group=group, decode_timedelta=False, engine="h5netcdf")


def series(calendar: str, freq: str) -> xr.Dataset:
    """Return the same whole years and seasons as xscen got."""
    ds = golden(calendar, f"series/{freq}").sel(time=slice("1980-12", "2040")).astype(np.float64)
    return ds if freq == "QS-DEC" else ds.sel(time=slice("1981", None))


def own(calendar: str, freq: str, name: str, lazy: bool = True) -> xr.Dataset:
    how: dict[str, Any] = {"min_periods": CLIMATOLOGIES[name]["window"], **CLIMATOLOGIES[name]}
    data = series(calendar, freq)
    return climatology(data.chunk(time=50, loc=2) if lazy else data, **how)


def assert_same(made: xr.Dataset, theirs: xr.Dataset) -> None:
    assert set(made.data_vars) == set(theirs.data_vars)
    for name, expected in theirs.items():
        np.testing.assert_array_equal(made["horizon"].values.astype(str), expected["horizon"].values.astype(str))
        part = [dim for dim in ("season", "month") if dim in expected.dims]
        by_name = made[name].sel({dim: expected[dim].values for dim in part}).transpose(*expected.dims)
        xr.testing.assert_allclose(by_name.drop_vars(["lat", "lon"]), expected.drop_vars(["lat", "lon"]), rtol=1e-5)
        assert by_name.attrs["units"] in (expected.attrs["units"], {"d": "days", "": "1"}.get(expected.attrs["units"]))


@pytest.mark.parametrize("calendar", CALENDARS)
@pytest.mark.parametrize("freq", FREQUENCIES)
@pytest.mark.parametrize("name", CLIMATOLOGIES)
def test_climatologies_are_those_of_xscen(calendar: str, freq: str, name: str) -> None:
    made = own(calendar, freq, name)
    assert made.chunks
    assert_same(without_years(made).compute(), golden(calendar, f"{name}/{freq}"))


@pytest.mark.parametrize("calendar", CALENDARS)
@pytest.mark.parametrize(("group", "kind"), [("absolute", "+"), ("quotient", "/"), ("percent", "%")])
def test_changes_are_those_of_xscen(calendar: str, group: str, kind: Any) -> None:
    names = ["prcptot_clim_mean", "dtr_clim_mean"] + ["tg_mean_clim_mean", "frost_days_clim_mean"] * (kind == "+")
    theirs = golden(calendar, f"{group}/QS-DEC")
    made = delta(own(calendar, "QS-DEC", "mean-30")[names], BASELINE, kind=kind).compute()
    assert_same(made, theirs[[f"{name}_delta_1981_2010" for name in names]])


def test_the_winter_belongs_to_the_year_of_its_january() -> None:
    time = xr.date_range("1990-12-01", periods=9, freq="QS-DEC")
    ds = xr.Dataset({"x": ("time", np.arange(9.0), {"units": "d"})}, {"time": time})
    made = climatology(ds, periods=[["1991", "1992"]])
    assert made["x_clim_mean"].sel(season="DJF", horizon="1991-1992") == (0 + 4) / 2
    assert made["x_clim_mean"].sel(season="SON", horizon="1991-1992") == (3 + 7) / 2


@pytest.mark.parametrize(("freq", "season", "periods", "expected"), [
    # By xscen 0.15.2, of the same series.
    ("QS-DEC", "DJF", ["1991", "1995"], 176), ("QS-DEC", "DJF", ["1994", "1998"], 608),
    ("QS-DEC", "MAM", ["1994", "1998"], 473), ("QS-DEC", "SON", ["1991", "1995"], 153),
    ("QS-NOV", "NDJ", ["1991", "1995"], 176), ("QS-NOV", "FMA", ["1994", "1998"], 473),
    ("YS-OCT", "", ["1991", "1995"], 11), ("YS-OCT", "", ["1994", "1998"], 38),
])  # fmt: skip
def test_the_year_of_december_and_hydrological_years_are_those_of_xscen(
    freq: str, season: str, periods: list[str], expected: float
) -> None:
    month = {"QS-DEC": 12, "QS-NOV": 11, "YS-OCT": 10}[freq]
    time = xr.date_range(f"1990-{month}-01", periods=40, freq=freq, calendar="noleap", use_cftime=True)
    ds = xr.Dataset({"x": ("time", np.arange(40.0) ** 2, {"units": "d"})}, {"time": time}, {"cat:xrfreq": freq})
    made = climatology(ds, periods=[periods], season_year="december")
    value = made["x_clim_mean"].sel(season=season) if season else made["x_clim_mean"]
    assert float(value.squeeze()) == expected and made["horizon"].item() == "-".join(periods)
    assert made.attrs.get("season_year") == ("december" if season else None)


@pytest.mark.parametrize(("season_year", "first"), [("january", "1990-12"), ("december", "1991-12")])
def test_bounds_of_winters_in_files_follow_their_year(season_year: Any, first: str) -> None:
    time = xr.date_range("1990-12-01", periods=40, freq="QS-DEC", calendar="noleap", use_cftime=True)
    winters = np.where(time.month == 12, time.year, np.nan)
    ds = xr.Dataset({"x": ("time", winters, {"units": "d"})}, {"time": time}, {"cat:xrfreq": "QS-DEC"})
    made = climatology(ds, periods=[["1991", "1995"]], season_year=season_year)
    file = netcdf.to_cf_axes(made)
    bounds = file["climatology_bnds"].isel(time=file["time"].attrs["season"].split().index("DJF"))
    assert str(bounds.values[0])[:7] == first
    # The mean of the years of the Decembers from the lower bound on.
    assert float(made["x_clim_mean"].sel(season="DJF")[0]) == int(first[:4]) + 2
    np.testing.assert_array_equal(netcdf.from_cf_axes(file)["x_clim_mean"], made["x_clim_mean"])


def daily_temperatures(sign: int, last: int = 1999) -> xr.Dataset:
    time = xr.date_range("1990-01-01", f"{last}-12-31", calendar="noleap", use_cftime=True)
    values = 283 - sign * 14 * np.cos((np.asarray(time.dayofyear) - 20) / 365 * 2 * np.pi) + (time.year - 1990) / 10
    attrs = {"units": "K", "standard_name": "air_temperature", "cell_methods": "time: mean"}
    return xr.Dataset({"tas": (("time", "lat"), np.asarray(values)[:, None], attrs)}, {"time": time, "lat": [-45.0]})


def own_indicators(folder: Path, **indicators: Any) -> Any:
    (folder / "own.yml").write_text(yaml.safe_dump({"realm": "atmos", "indicators": indicators}, sort_keys=False))
    return load_indicators(f"{folder}/own.yml")


def test_hydrological_years_have_the_label_of_their_october_from_days_to_files(tmp_path: Path) -> None:
    ds = daily_temperatures(1)
    (made,) = compute_indicators(ds, own_indicators(tmp_path, tg_mean={"base": "tg_mean"}), freqs=["YS-OCT"]).values()
    whole = made.isel(time=slice(-1))
    assert [str(time)[:7] for time in made["time"].values[[0, -1]]] == ["1990-10", "1999-10"]
    assert whole["tg_mean"].notnull().all() and made["tg_mean"][-1].isnull()
    normals = climatology(made, periods=[["1990", "1994"], ["1995", "1999"]])
    for horizon, first, end in (("1990-1994", "1990-10-01", "1995-09-30"), ("1995-1999", "1995-10-01", "1999-09-30")):
        expected = ds["tas"].sel(time=slice(first, end)).mean()
        np.testing.assert_allclose(normals["tg_mean_clim_mean"].sel(horizon=horizon), expected, rtol=1e-6)
    bounds = netcdf.to_cf_axes(normals)["climatology_bnds"].values.astype("datetime64[M]").astype(str)
    assert bounds.tolist() == [["1990-10", "1995-10"], ["1995-10", "2000-10"]]


def test_a_southern_growing_season_of_years_from_july_is_the_northern_half_a_year_later(tmp_path: Path) -> None:
    south = {"freq": "YS-JUL", "mid_date": "01-01"}
    of = own_indicators(
        tmp_path,
        north={"base": "growing_season_length"},
        south={"base": "growing_season_length", "parameters": south},
        begin={"base": "growing_season_start", "parameters": south},
    )
    northern, southern = daily_temperatures(1, 1993), daily_temperatures(-1, 1993)
    expected = compute_indicators(northern, of[:1])["YS-JAN"]["north"]
    made = compute_indicators(southern, of[1:])["YS-JUL"]
    assert abs(made["south"][:-1].values - expected[:-1].values).max() <= 3
    for name, base in (("south", atmos.growing_season_length), ("begin", atmos.growing_season_start)):
        theirs = base(southern["tas"], **south).isel(time=slice(1, None))
        np.testing.assert_array_equal(made[name], theirs)
    assert [list(northern_dates(one)) for _, one in of] == [["mid_date"], [], []]


def test_a_seasons_missing_year_is_allowed_but_no_second() -> None:
    time = xr.date_range("1991-01-01", "2000-12-01", freq="MS", calendar="360_day", use_cftime=True)
    monthly = xr.Dataset({"x": ("time", np.ones(time.size), {"units": "d"})}, {"time": time})
    seasonal = monthly.resample(time="QS-DEC").sum()
    seasonal["x"] = seasonal["x"].where(seasonal["time"].dt.year > 1990)
    assert climatology(seasonal, periods=["1991", "2000"])["x_clim_mean"].notnull().all()
    seasonal["x"][4] = np.nan
    made = climatology(seasonal, periods=["1991", "2000"])["x_clim_mean"][0]
    assert made.isnull().values.tolist() == [True, False, False, False]
    assert climatology(seasonal, periods=["1991", "2000"], min_periods=0.8)["x_clim_mean"].notnull().all()


@pytest.mark.parametrize(
    ("freq", "allowed"), [("QS-APR", []), ("QS-OCT", []), ("QS-NOV", ["NDJ"]), ("QS-DEC", ["DJF"])]
)
def test_a_missing_year_is_allowed_only_of_the_season_that_crosses_the_end_of_the_year(
    freq: str, allowed: list[str]
) -> None:
    time = xr.date_range("1990-04-01", "2000-12-31", freq=freq, calendar="noleap", use_cftime=True)
    ds = xr.Dataset({"x": ("time", np.ones(time.size), {"units": "d"})}, {"time": time}, {"cat:xrfreq": freq})
    ds["x"] = ds["x"].where(ds["time"].dt.year != 1995)
    made = climatology(ds, periods=[["1991", "1999"]])["x_clim_mean"]
    assert made["season"].values[made.notnull().values[0]].tolist() == allowed


@pytest.mark.parametrize("freq", FREQUENCIES)
def test_a_period_in_a_gap_of_the_data_is_an_error(freq: str) -> None:
    ds = series("noleap", freq).assign_attrs({"cat:xrfreq": freq})
    # The winter before the years after the gap is there, as in data from December on.
    year, month = ds["time"].dt.year, ds["time"].dt.month
    cut = ds.sel(time=~year.isin(range(2001, 2010)) | (year == 2009) & (month == 12))
    assert climatology(cut, periods=[["1981", "2000"], ["2011", "2030"]]).sizes["horizon"] == 2
    with pytest.raises(DataError, match=r"the period 1991-2020 is not in the data, .* lack 200"):
        climatology(cut, periods=[["1991", "2020"]], min_periods=10)


def test_windows_of_periods_that_overlap_are_made_only_once() -> None:
    assert horizons([(1991, 2050), (2021, 2080)], 30, 10) == [(at, at + 29) for at in range(1991, 2052, 10)]


def test_percentiles_are_those_of_numpy() -> None:
    ds = series("noleap", "YS-JAN")[["tg_mean"]]
    expected = np.nanpercentile(ds["tg_mean"].sel(time=slice("1981", "2010")).values, 90, axis=0)
    ways: list[Any] = ["p90", {"quantile": {"q": 0.9}}]
    for op in ways:
        made = climatology(ds.chunk(time=10), op=op, periods=[1981, 2010], min_periods=20)
        np.testing.assert_allclose(made["tg_mean_clim_p90"].sel(horizon="1981-2010"), expected, rtol=1e-5)


def test_what_is_not_possible_is_named() -> None:
    ds = series("standard", "YS-JAN")
    with pytest.raises(DataError, match=r"the period 1971-2000 is not in the data, which have the years 1981-2040"):
        climatology(ds, periods=["1971", "2000"])
    with pytest.raises(ConfigurationError, match=r"op 'average' is unknown; expected one of mean, std"):
        climatology(ds, op="average")
    with pytest.raises(ConfigurationError, match="no window of 90 years"):
        climatology(ds, window=90)
    with pytest.raises(ConfigurationError, match="min_periods 31 is not possible"):
        climatology(ds, window=30, min_periods=31)
    with pytest.raises(ConfigurationError, match=r"min_periods 1.5 is a fraction"):
        climatology(ds, window=30, min_periods=1.5)
    with pytest.raises(DataError, match="the frequency D; expected years"):
        climatology(ds.assign_coords(time=xr.date_range("2001-01-01", periods=60)))


def example(values: list[float], units: str = "mm") -> xr.Dataset:
    data = xr.DataArray([values, [1.0] * len(values)], dims=("horizon", "loc"), attrs={"units": units})
    return xr.Dataset({"x_clim_mean": data}, {"horizon": ["1981-2010", "2041-2070"]})


def test_there_is_no_relative_change_against_nearly_nothing() -> None:
    ds = example([0.0, 0.009, 0.02, 2.0])
    made = delta(ds, "1981-2010", kind="%")["x_clim_mean_delta_1981_2010"].sel(horizon="2041-2070")
    np.testing.assert_allclose(made, [np.nan, np.nan, 4900, -50])
    made = delta(ds, "1981-2010", kind={"x": "/"}, least={"x": "0.1 cm"})["x_clim_mean_delta_1981_2010"]
    np.testing.assert_allclose(made.sel(horizon="2041-2070"), [np.nan, np.nan, np.nan, 0.5])
    assert np.isfinite(delta(ds, "1981-2010")["x_clim_mean_delta_1981_2010"]).all()


def test_a_climatology_of_its_own_is_a_baseline() -> None:
    reference = example([2.0, 4.0]).isel(horizon=[0])
    made = delta(example([1.0, 1.0]), reference)["x_clim_mean_delta_1981_2010"]
    np.testing.assert_allclose(made, [[-1, -3], [-1, -3]])


def test_a_baseline_or_kind_that_is_not_possible_is_named() -> None:
    ds = example([1.0, 2.0])
    with pytest.raises(DataError, match=r"1971-2000 is none of the horizons, which are 1981-2010, 2041-2070; add"):
        delta(ds, "1971-2000")
    with pytest.raises(DataError, match="has the horizons 1981-2010, 2041-2070; expected one"):
        delta(ds, ds)
    with pytest.raises(DataError, match="is in mm, its baseline in d"):
        delta(ds, example([1.0, 1.0], "d").isel(horizon=0))
    with pytest.raises(ConfigurationError, match="is of the nature temperature, whose changes are \\+; got %"):
        delta(example([1.0], "degC"), "1981-2010", kind="%")
    with pytest.raises(ConfigurationError, match="kind names y; the variables are x_clim_mean"):
        delta(ds, "1981-2010", kind={"y": "%"})


def test_a_climatology_counts_the_years_with_a_value_and_names_those_without(tmp_path: Path) -> None:
    ds = daily_temperatures(1, 2001).isel(lat=[0, 0]).assign_coords(lat=[45.0, 50.0])
    # In 1995, and in the second cell after 1997, it is never cold.
    year = ds["time"].dt.year
    warmer = 12 * (year == 1995) + 12 * ((year > 1997) & (ds["lat"] > 45))
    ds["tas"] = (ds["tas"] + warmer).assign_attrs(ds["tas"].attrs)
    ds["tas"][ds.sizes["time"] // 2, 1] = np.nan
    frost = {"base": "first_day_tg_below", "parameters": {"thresh": "275 K"}}
    of = own_indicators(tmp_path, frost=frost, tg={"base": "tg_mean"})
    made = compute_indicators(ds.transpose("time", "lat").chunk(), of, freqs=["YS"])
    (yearly,) = made.values()
    periods: Any = [["1990", "1994"], ["1995", "1999"]]
    normals = climatology(yearly, periods=periods)
    assert set(normals) == {"frost_clim_mean", "frost_clim_mean_years", "tg_clim_mean"}
    counts = normals["frost_clim_mean_years"].compute()
    expected = np.stack([yearly["frost"].sel(time=slice(*period)).notnull().sum("time") for period in periods])
    np.testing.assert_array_equal(counts.transpose("horizon", "lat"), expected)
    assert expected.max() == 5 and expected.min() < 4 and counts.dtype == np.int16
    assert missing_years(yearly) == "frost: 1995"
    changes = delta(normals, "1990-1994")
    ens = ensemble.join({"a": normals, "b": normals})
    assert not [name for name in (*changes, *ens) if name.endswith("years")]
    with pytest.raises(ConfigurationError, match="nature years"):
        climatology(yearly[["frost"]].assign(frost=yearly["frost"].assign_attrs(nature="years")))
    monthly = xr.Dataset(
        {"x": ("time", np.ones(36), {"units": "mm"})},
        {"time": xr.date_range("1991-01-01", periods=36, freq="MS", use_cftime=True)},
        {"cat:xrfreq": "MS"},
    )
    monthly["x"][13] = np.nan
    assert missing_years(monthly) == "x: 1992 FEB"
    seasons = {"time": xr.date_range("1991-03-01", "1993-12-01", freq="QS-DEC", use_cftime=True)}
    known = xr.Dataset({"x": ("time", np.ones(12), {"units": "mm"})}, seasons, {"cat:xrfreq": "QS-DEC"})
    assert missing_years(known) == "x: 1991 DJF" and missing_years(known, "december") == ""
