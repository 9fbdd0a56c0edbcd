"""Climatologies and changes, compared with those of xscen."""

from typing import Any

import numpy as np
import pytest
import xarray as xr
from outcomes import BASELINE, CALENDARS, CLIMATOLOGIES, DATA

from espo_luigi.errors import ConfigurationError, DataError
from espo_luigi.science.outcomes.climatology import climatology, horizons
from espo_luigi.science.outcomes.delta import delta

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
    assert_same(made.compute(), golden(calendar, f"{name}/{freq}"))


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
    with pytest.raises(DataError, match=r"1971-2000 is none of the horizons .* which are 1981-2010, 2041-2070; add"):
        delta(ds, "1971-2000")
    with pytest.raises(DataError, match="has the horizons 1981-2010, 2041-2070; expected one"):
        delta(ds, ds)
    with pytest.raises(DataError, match="is in mm, its baseline in d"):
        delta(ds, example([1.0, 1.0], "d").isel(horizon=0))
    with pytest.raises(ConfigurationError, match="is of the nature temperature, whose changes are \\+; got %"):
        delta(example([1.0], "degC"), "1981-2010", kind="%")
    with pytest.raises(ConfigurationError, match="kind names y; the variables are x_clim_mean"):
        delta(ds, "1981-2010", kind={"y": "%"})
