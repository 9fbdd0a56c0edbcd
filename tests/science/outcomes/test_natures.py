"""What indicators are: dates by scipy's circular statistics, counts and amounts of years of 360, 365 and 366 days."""

import functools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from generated import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from xclim.core.calendar import convert_doy

from espo_luigi.errors import ConfigurationError
from espo_luigi.export import netcdf
from espo_luigi.report.changes import domain_means
from espo_luigi.science.geometry.boxes import Box
from espo_luigi.science.outcomes import ensemble
from espo_luigi.science.outcomes.climatology import by_year, climatology, least_years
from espo_luigi.science.outcomes.delta import delta
from espo_luigi.science.outcomes.indicators import checked, compute_indicators, load_indicators
from espo_luigi.science.outcomes.natures import nature_of, on_standard_year, without_years
from espo_luigi.science.outcomes.regions import region_means

DAYS = {"noleap": 365, "360_day": 360, "standard": 365.2425}
# The frosts of issue 54.
WINTERS = [332, 340, 345, 350, 355, 360, 362, 365, 1, 5, 9, 14, 20, 33, 42, 51]
DATE = {"units": "1", "standard_name": "day_of_year", "is_dayofyear": np.int32(1), "long_name": "First frost"}


def yearly(values: Any, calendar: str = "noleap", freq: str = "YS-JUL", **attrs: Any) -> xr.Dataset:
    """(time, ...) from July 1990 on, or January 1991."""
    values = np.asarray(values, float)
    time = xr.date_range("1990-07-01", periods=len(values), freq=freq, calendar=calendar, use_cftime=True)
    dims = ("time", "cell")[: values.ndim]
    attrs = attrs or {**DATE, "calendar": calendar}
    return xr.Dataset({"x": (dims, values, attrs)}, {"time": time}, {"cat:xrfreq": freq})


def of_days(values: Any, function: Any, calendar: str = "noleap", **options: Any) -> Any:
    """scipy's circular function in days."""
    year = DAYS[calendar]
    return function(np.asarray(values, float), high=year, low=0, nan_policy="omit", **options)


def around(values: Any, center: float, year: float = 365) -> Any:
    """Dates as days within half a year of a center."""
    return center + (np.asarray(values, float) - center + year / 2) % year - year / 2


@pytest.mark.parametrize("calendar", DAYS)
@pytest.mark.parametrize("lazy", [False, True])
def test_dates_around_the_turn_of_the_year_have_circular_statistics(calendar: str, lazy: bool) -> None:
    ds = yearly(np.array(WINTERS)[:, None], calendar)
    data, whole = ds.chunk() if lazy else ds, {"periods": [["1991", "2005"]], "min_periods": 15}
    values = WINTERS[1:]
    mean = of_days(values, stats.circmean, calendar)
    made = {
        op: float(climatology(data, op=op, **whole)[f"x_clim_{op}"][0, 0])
        for op in ("mean", "std", "median", "p90", "min", "max")
    }
    assert made["mean"] == pytest.approx((mean - 1) % DAYS[calendar] + 1)
    assert made["std"] == pytest.approx(of_days(values, stats.circstd, calendar))
    turned = around(values, mean, DAYS[calendar])
    for op, expected in {"median": 50, "p90": 90, "min": 0, "max": 100}.items():
        assert made[op] == pytest.approx((np.percentile(turned, expected) - 1) % DAYS[calendar] + 1), op
    if calendar == "noleap":
        assert made["min"] == 340 and made["max"] == 51 and 1 <= made["mean"] <= 10


@settings(max_examples=examples(8), deadline=None)
@given(st.lists(st.integers(1, 90), min_size=3, max_size=20), st.integers(1, 364))
def test_statistics_of_dates_move_with_the_dates(dates: list[int], later: int) -> None:
    """Wherever in the year the dates lie, their statistics are the same number of days later."""
    moved = [(date + later - 1) % 365 + 1 for date in dates]
    for op in ("mean", "std", "p10", "max"):
        one, other = (float(climatology(yearly(of, freq="YS-JAN"), op=op)[f"x_clim_{op}"][0]) for of in (dates, moved))
        assert 1 <= other < 366 or op == "std"
        difference = other - one - (0 if op == "std" else later)
        assert abs((difference + 182.5) % 365 - 182.5) < 1e-6, op


def test_dates_spread_evenly_over_the_year_have_no_mean() -> None:
    assert np.isnan(climatology(yearly([1, 74, 147, 220, 293], freq="YS-JAN"))["x_clim_mean"]).all()


def test_spreads_and_changes_of_dates_are_days_and_sums_and_quotients_are_refused() -> None:
    ds = yearly(WINTERS, freq="YS-JAN")
    spread = climatology(ds, op="std")["x_clim_std"].attrs
    assert (spread["units"], "standard_name" in spread, "is_dayofyear" in spread) == ("days", False, False)
    with pytest.raises(ConfigurationError, match=r"x is of the nature day of the year, .*; got sum"):
        climatology(ds, op="sum")
    made = climatology(ds, periods=[["1991", "1998"], ["1999", "2005"]], min_periods=7, window=7)
    with pytest.raises(
        ConfigurationError, match="x_clim_mean is of the nature day of the year, whose changes are \\+; got %"
    ):
        delta(made, "1991-1997", kind="%")


def test_a_change_of_dates_goes_the_shortest_way() -> None:
    both = xr.DataArray([360.0, 10], dims="horizon", attrs={**DATE, "calendar": "noleap"})
    ds = xr.Dataset({"x_clim_mean": both}, {"horizon": ("horizon", ["1991-2020", "2041-2070"], {"axis": "own"})})
    for baseline, expected in (("1991-2020", [0, 15]), ("2041-2070", [-15, 0])):
        (change,) = delta(ds, baseline).values()
        np.testing.assert_allclose(change, expected)
        assert change["horizon"].attrs == {"axis": "own"}
        assert change.attrs["units"] == "days" and not {"standard_name", "is_dayofyear"} & set(change.attrs)


@pytest.mark.parametrize("weights", [None, [0.5, 1, 1.5]])
def test_members_dates_have_circular_statistics(weights: list[float] | None) -> None:
    values = np.array([[350, 100], [5, 120], [30, np.nan]])
    members = {f"m{i}": yearly([one] * 3, freq="YS-JAN") for i, one in enumerate(values)}
    ens = ensemble.join(members)
    there = ensemble.present(ens)
    given = None if weights is None else dict(zip(members, weights, strict=True))
    weight = {"x": ensemble.weigh(there["x"], given=given)}
    made = ensemble.statistics(ens, there, weights=weight if weights else None, fewest=1).isel(time=0)
    turn = 2 * np.pi / 365
    for cell, (dates, share) in enumerate(
        (([350, 5, 30], weights or [1, 1, 1]), ([100, 120], (weights or [1, 1])[:2]))
    ):
        vector = np.average(np.exp(1j * np.array(dates) * turn), weights=share)
        mean = np.angle(vector) / turn
        assert float(made["x_mean"][cell]) == pytest.approx((mean - 1) % 365 + 1, rel=1e-6)
        assert float(made["x_stdev"][cell]) == pytest.approx(np.sqrt(-2 * np.log(abs(vector))) / turn, rel=1e-5)
        assert float(made["x_min"][cell]) == dates[0] and float(made["x_max"][cell]) == dates[-1]
        if weights is None:
            p50 = (np.median(around(dates, mean)) - 1) % 365 + 1
            assert float(made["x_p50"][cell]) == pytest.approx(p50, rel=1e-6)
    assert made["x_stdev"].attrs["units"] == "days" and nature_of(made["x_p50"]) == "day of the year"


def test_means_of_dates_over_regions_and_the_domain_are_circular() -> None:
    lat, lon = [45.0, 46.0], [5.0, 6.0, 7.0]
    dates = np.array([[355.0, 360, 5], [10, 20, np.nan]])
    ds = xr.Dataset({"x": (("lat", "lon"), dates, {**DATE, "calendar": "noleap"})}, {"lat": lat, "lon": lon})
    areas = np.cos(np.deg2rad(lat))[:, None] * np.isfinite(dates)
    vector = np.nansum(areas * np.exp(1j * dates * 2 * np.pi / 365))
    expected = np.angle(vector) * 365 / (2 * np.pi)
    for made in (region_means(ds, {"all": Box((4.5, 7.5), (44.5, 46.5))}), domain_means(ds)):
        assert float(made["x"][0]) == pytest.approx((expected - 1) % 365 + 1, rel=1e-5)


def test_the_variability_of_dates_is_that_of_the_same_dates_in_summer() -> None:
    dates = np.random.default_rng(0).normal(0, 20, 30)
    winter, summer = (by_year(yearly((dates + at - 1) % 365 + 1, freq="YS-JAN"))["x"] for at in (365, 180))
    plain = summer.drop_attrs()
    np.testing.assert_allclose(ensemble.variability(winter, 20), ensemble.variability(plain, 20), rtol=1e-6)
    assert float(ensemble.variability(winter, 20)) < 20 < float(ensemble.variability(winter.drop_attrs(), 20))


FILE = """realm: atmos
indicators:
  wet: {base: wetdays, cf_attrs: {var_name: wet, long_name: Nasse Tage}}
  total: {base: prcptot, cf_attrs: {var_name: total}}
  dry: {base: cdd, cf_attrs: {var_name: dry}}
  sdii: {base: sdii, cf_attrs: {var_name: intensity}}
  warm: {base: tx_mean, cf_attrs: {var_name: warm}}
"""


@functools.cache
def indicators(calendar: str, freq: str = "YS-JAN", names: str = "wet total", dry_year: int = 0) -> xr.Dataset:
    """Of eight years: every day as wet, but for a year."""
    last = 30 if calendar == "360_day" else 31
    time = xr.date_range("1995-01-01", f"2002-12-{last}", calendar=calendar, use_cftime=True)
    part = (np.asarray(time.dayofyear) - 1) / DAYS[calendar]
    cold = xr.DataArray(280 - 12 * np.cos(part * 2 * np.pi)[:, None], {"time": time}, ("time", "lat"))
    ds = xr.Dataset({"tasmax": cold, "pr": xr.full_like(cold, 3).where(cold["time"].dt.year != dry_year, 0)})
    ds["tasmax"].attrs = {"units": "K", "standard_name": "air_temperature", "cell_methods": "time: maximum within days"}
    ds["pr"].attrs = {"units": "mm d-1", "standard_name": "precipitation_flux", "cell_methods": "time: mean"}
    return compute_indicators(
        ds.assign_coords(lat=[46.0]), [each for each in loaded() if each[0] in names], freqs=[freq]
    )[freq]


@functools.cache
def loaded() -> list[Any]:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "own.yml").write_text(FILE)
        return load_indicators(f"{folder}/own.yml")


@pytest.mark.parametrize(("freq", "wanted"), [
    ("YS-JAN", {1: 365}),
    ("QS-DEC", {12: 90, 3: 92, 6: 92, 9: 91}),
    ("MS", dict(zip(range(1, 13), (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31), strict=True))),
])  # fmt: skip
def test_all_days_are_wet_in_every_member_whatever_its_calendar(freq: str, wanted: dict[int, int]) -> None:
    own = {calendar: indicators(calendar, freq) for calendar in DAYS}
    ens = ensemble.join(own)
    for name, each in (("wet", 1), ("total", 3)):
        for time, values in ens[name].isel(lat=0).groupby("time.month"):
            known = values.values[np.isfinite(values.values)]
            np.testing.assert_allclose(known, each * wanted[time], rtol=1e-6)
        assert ens[name].attrs["calendar"] == "noleap" and "365 days" in ens[name].attrs["standard_year"]
    # The statistics of climatologies in their own calendars are those of the standard year, too.
    periods: Any = {"periods": [["1996", "2001"]], "min_periods": 5}
    normals = ensemble.join({calendar: climatology(ds, **periods) for calendar, ds in own.items()})
    of_standard = climatology(on_standard_year(own["standard"]), **periods)
    for name in ("wet_clim_mean", "total_clim_mean"):
        expected = normals[name].sel(realization="noleap")
        np.testing.assert_allclose(normals[name].sel(realization="360_day"), expected, rtol=1e-6)
        np.testing.assert_allclose(of_standard[name], expected, rtol=1e-6)
        # In six years, leap years are as frequent as they are, not as in 400 years.
        np.testing.assert_allclose(normals[name].sel(realization="standard"), expected, rtol=5e-3)


def test_extremes_intensities_and_means_are_not_scaled() -> None:
    for calendar in ("360_day", "standard"):
        own = indicators(calendar, names="dry sdii warm")
        made = on_standard_year(own)
        for name in ("dry", "intensity", "warm"):
            xr.testing.assert_identical(made[name], own[name])
        xr.testing.assert_identical(on_standard_year(made), made)


@pytest.mark.parametrize("calendar", ["standard", "360_day", "noleap"])
def test_dates_of_years_from_july_on_are_converted_as_by_xclim(calendar: str) -> None:
    ds = yearly([*WINTERS, 100, 366 if calendar == "standard" else 360], calendar)
    np.testing.assert_allclose(on_standard_year(ds)["x"], convert_doy(ds["x"], "noleap"))


def test_changes_against_a_baseline_of_another_calendar_are_on_the_standard_year() -> None:
    own = {calendar: climatology(indicators(calendar)) for calendar in ("noleap", "360_day")}
    made = delta(own["360_day"], own["noleap"])
    for name in ("wet", "total"):
        np.testing.assert_allclose(made[f"{name}_clim_mean_delta_1995_2002"], 0, atol=1e-3)


def test_a_relative_change_of_a_count_is_not_scaled() -> None:
    count = yearly([[10.0], [20]] * 5, "360_day", "YS-JAN", units="days", cell_methods="time: sum over days")
    normals = climatology(count, periods=[["1991", "1995"], ["1996", "2000"]], window=5, stride=5)
    for kind, expected in (("%", 100 * (16 / 14 - 1)), ("/", 16 / 14), ("+", 2 * 365 / 360)):
        ens = ensemble.join({"a": delta(normals, "1991-1995", kind=kind)})  # type: ignore[arg-type]
        values = ens["x_clim_mean_delta_1991_1995"].squeeze()
        assert float(abs(values[1])) == pytest.approx(abs(expected), rel=1e-6), kind


def test_one_year_less_is_allowed_of_the_winter_only() -> None:
    seasons = yearly(np.ones(44), freq="QS-DEC", units="K").assign_attrs({"cat:xrfreq": "QS-DEC"})
    for at, season in ((5, "JJA"), (7, "DJF")):
        data = seasons["x"].copy()
        month = data["time"].dt.month.values
        (places,) = np.nonzero(month == {"JJA": 6, "DJF": 12}[season])
        data[places[3]] = np.nan
        made = climatology(seasons.assign(x=data), periods=[["1992", "2000"]])["x_clim_mean"]
        assert made.sel(season=season).isnull().all() == (season == "JJA"), at
        assert made.notnull().sum() == (3 if season == "JJA" else 4)
        assert made["season"].attrs["comment"].endswith("of their January")
        assert "of at least 9 years" in made.attrs["history"]
    whole = by_year(yearly(np.ones(9), freq="YS-JUL", units="K"))["x"]
    assert least_years(None, 9, "YS-JUL", whole) == 8 and least_years(None, 9, "YS-JAN", whole) == 9


def test_rainless_years_leave_the_others_a_mean_intensity() -> None:
    own = indicators("noleap", names="wet sdii", dry_year=1998)
    assert own["intensity"].isnull().sum() == 1 and nature_of(own["intensity"]) == "ratio"
    made = climatology(own)["intensity_clim_mean"]
    np.testing.assert_allclose(made, np.nanmean(own["intensity"].values, axis=0)[None], rtol=1e-6)
    assert "of at least 6 years" in made.attrs["history"]
    assert climatology(own, min_periods=8)["intensity_clim_mean"].isnull().all()
    gone = own.assign(intensity=own["intensity"].where(own["time"].dt.year > 1996))
    assert climatology(gone)["intensity_clim_mean"].isnull().all()
    # Where the series itself lacks a year, its counts have no climatology, as before.
    lacking = own.assign(wet=own["wet"].where(own["time"].dt.year != 1998))
    assert climatology(lacking)["wet_clim_mean"].isnull().all()


# What each quantity is, written by hand. Of all, the traps are dates that no name tells, spells, shares and rates.
EXPECTED = {
    "day of the year": "first_day_tn_below last_spring_frost growing_season_end growing_season_start freshet_start "
    "first_snowfall last_snowfall frost_free_season_start frost_free_season_end degree_days_exceedance_date "
    "snd_max_doy snd_season_start snw_season_end doy_qmax doy_qmin",
    "days between dates": "lag_snowpack_flow_peaks",
    "count": "frost_days wetdays dry_days hot_days heat_wave_frequency wet_spell_frequency hot_spell_total_length "
    "growing_season_length frost_free_season_length snd_season_length freezethaw_spell_frequency calm_days "
    "days_with_snow snd_days_above cold_spell_days tx_tn_days_above high_flow_frequency rain_on_frozen_ground_days "
    "SU FD TR R10mm GSL SD5cm",
    "amount": "precip_accumulation wet_precip_accumulation solid_precip_accumulation dryness_index PRCPTOT RR",
    "degree days": "growing_degree_days heating_degree_days cooling_degree_days thawing_degree_days huglin_index "
    "biologically_effective_degree_days HD17 GD4",
    "rate": "sfcWind_mean precip_average liquid_precip_average",
    "temperature": "tg_mean tx_max tn_min TXx TNn TG",
    "difference": "daily_temperature_range max_daily_temperature_range extreme_temperature_range DTR vDTR",
    "ratio": "daily_pr_intensity snowfall_intensity liquid_precip_ratio rprctot SDII",
    "share": "snowfall_frequency wetdays_prop",
    "extreme": "maximum_consecutive_dry_days maximum_consecutive_wet_days max_1day_precipitation_amount "
    "hot_spell_max_length consecutive_frost_days hot_spell_max_magnitude sfcWind_max freezethaw_spell_mean_length "
    "snw_max snow_melt_we_max RX5day CDD CFD CSU",
    "index": "standardized_precipitation_index latitude_temperature_index rb_flashiness_index",
    "value": "snow_depth SD",
}


def weather() -> xr.Dataset:
    """All that indicators of xclim need, of three years, (time, lat), lazy."""
    time = xr.date_range("2000-01-01", "2002-12-31", calendar="noleap", use_cftime=True)
    part = -np.cos((np.asarray(time.dayofyear)[:, None] - 15) / 365 * 2 * np.pi) * np.ones((1, 2))
    flux, water = "precipitation_flux", "water_volume_transport_in_river_channel"
    given = {
        "tas": (283 + 14 * part, "K", "air_temperature", "mean"), "tasmax": (288 + 14 * part, "K", "air_temperature",
        "maximum"), "tasmin": (278 + 14 * part, "K", "air_temperature", "minimum"), "pr": (2 + part, "mm d-1", flux,
        "mean"), "prc": (1 + part / 2, "mm d-1", f"convective_{flux}", "mean"), "prsn": (1 - part, "kg m-2 d-1",
        "snowfall_flux", "mean"), "evspsblpot": (3 + part, "kg m-2 d-1", "water_potential_evapotranspiration_flux",
        "mean"), "sfcWind": (4 + part, "m s-1", "wind_speed", "mean"), "snd": (1 - part, "m", "surface_snow_thickness",
        "mean"), "snw": (300 - 300 * part, "kg m-2", "surface_snow_amount", "mean"), "q": (99 + part, "m3 s-1", water,
        "mean"), "da": (99 + part, "m3 s-1", water, "mean"),
    }  # fmt: skip
    data = {
        name: (("time", "lat"), values, {"units": units, "standard_name": of, "cell_methods": f"time: {how}"})
        for name, (values, units, of, how) in given.items()
    }
    return xr.Dataset(data, {"time": time, "lat": [45.0, 46]}).chunk()


def test_the_table_of_natures_knows_xclims_indicators_by_what_they_are() -> None:
    everyone = {name: one for module in ("atmos", "land", "icclim") for name, one in load_indicators(module)}
    wrong, ds = [], weather()
    for nature, names in EXPECTED.items():
        for name in names.split():
            (made,) = compute_indicators(ds, [(name, everyone[name])]).values()
            (data,) = made.values()
            wrong += [f"{name}: {data.attrs['nature']}"] if data.attrs["nature"] != nature else []
    assert not wrong
    assert sum(len(names.split()) for names in EXPECTED.values()) >= 90


def declared(folder: Path, nature: str) -> list[Any]:
    text = "realm: atmos\nindicators:\n  own: {base: wetdays, cf_attrs: {var_name: own, nature: " + nature + "}}\n"
    (folder / "own.yml").write_text(text)
    return load_indicators(f"{folder}/own.yml")


def test_a_strangers_indicator_declares_its_nature(tmp_path: Path) -> None:
    made = compute_indicators(weather(), declared(tmp_path, "degree days"))["YS-JAN"]
    assert nature_of(made["own"]) == "degree days" and made["own"].attrs["calendar"] == "noleap"
    with pytest.raises(
        ConfigurationError,
        match=r"indicator own: `cf_attrs.nature` of own: got 'warmth', expected one of .*degree days",
    ):
        checked(declared(tmp_path, "warmth"), ["pr"])
    of_temperature = [(name, one) for name, one in load_indicators("atmos") if name == "tx_max"]
    checked(of_temperature, ["tasmax"])
    (tmp_path / "odd.yml").write_text("indicators: {odd: {base: tx_max, cf_attrs: {var_name: odd, nature: amount}}}")
    with pytest.raises(
        ConfigurationError, match=r"nature` of odd: got amount in K, expected .*temperature, difference"
    ):
        checked(load_indicators(f"{tmp_path}/odd.yml"), ["tasmax"])
    (tmp_path / "odd.yml").write_text("indicators: {odd: {base: tx_max, missing: wmoo}}")
    with pytest.raises(ConfigurationError, match=r"indicator odd: `missing`: got wmoo, expected one of any, .*wmo"):
        checked(load_indicators(f"{tmp_path}/odd.yml"), ["tasmax"])


@pytest.mark.parametrize(("nature", "op", "kind"), [
    ("day of the year", "sum", "/"), ("temperature", "sum", "%"), ("index", "sum", "%"), ("rate", "sum", ""),
    ("ratio", "sum", ""), ("share", "sum", ""), ("extreme", "sum", ""), ("days between dates", "sum", "/"),
    ("amount", "", ""), ("count", "", ""), ("degree days", "", ""), ("difference", "sum", ""), ("value", "sum", ""),
])  # fmt: skip
def test_statistics_and_changes_that_a_nature_has_not_are_refused(nature: str, op: str, kind: str) -> None:
    ds = yearly(np.arange(1.0, 13), freq="YS-JAN", units="1", nature=nature)
    for each in ("mean", "std", "median", "min", "max", "p90", "sum"):
        if each == op:
            with pytest.raises(ConfigurationError, match=f"x is of the nature {nature}, .*mean.*; got sum"):
                climatology(ds, op=each)
        else:
            climatology(ds, op=each)
    normals = climatology(ds, periods=[["1991", "1995"], ["1996", "2000"]])
    for each in ("+", "/", "%"):
        if kind and each != "+":
            with pytest.raises(ConfigurationError, match=f"_mean is of the nature {nature}, .* are \\+; got {each}"):
                delta(normals, "1991-1995", kind=each)  # type: ignore[arg-type]
        else:
            delta(normals, "1991-1995", kind=each)  # type: ignore[arg-type]


def test_a_mean_of_standard_deviations_is_that_of_variances_whatever_the_names() -> None:
    values, root = np.arange(1.0, 13), np.mean(np.arange(1.0, 13) ** 2) ** 0.5
    for attrs, expected in (
        ({"units": "K", "nature": "temperature"}, 6.5),
        ({"units": "K", "cell_methods": "time: standard_deviation"}, root),
    ):
        ds = yearly(values, freq="YS-JAN", **attrs).rename(x="lastday")
        assert float(climatology(ds)["lastday_clim_mean"][0]) == pytest.approx(expected)
    assert nature_of(yearly(values, units="mm").rename(x="tx_std")["tx_std"]) == "standard deviation"


def test_natures_survive_all_that_is_made_of_indicators(tmp_path: Path) -> None:
    everyone = dict(load_indicators("atmos"))
    names = "first_day_tn_below frost_days growing_degree_days tg_mean daily_pr_intensity daily_temperature_range"
    daily = weather().expand_dims(lon=[5.0, 6.0, 7.0]).transpose("time", "lat", "lon")
    made = compute_indicators(daily, [(name, everyone[name]) for name in names.split()])["YS-JAN"]
    own = {str(name): data.attrs["nature"] for name, data in made.items()}
    normals = climatology(made, periods=[["2000", "2000"], ["2001", "2001"]], min_periods=1)
    spread = climatology(made, op="std", min_periods=1)
    changes = delta(normals, "2000-2000")
    as_changes = {"day of the year": "days between dates", "temperature": "difference"}
    for ds, natures in ((made, {}), (normals, {}), (spread, as_changes), (changes, as_changes)):
        ens = ensemble.join({"a": ds, "b": ds})
        stats = ensemble.statistics(ens, ensemble.present(ens))
        over = region_means(stats.merge(ens, compat="override"), {"all": Box((4.5, 7.5), (44.5, 46.5))}).compute()
        path = tmp_path / "over.nc"
        netcdf.write_netcdf(netcdf.statistics_file(over, "over"), path, netcdf.Layout({}), lambda _: "")
        with xr.open_dataset(path, decode_times=False, engine="h5netcdf") as written:
            for name, data in without_years(ds).items():
                wanted = natures.get(own[str(name).partition("_clim_")[0]], own[str(name).partition("_clim_")[0]])
                for each in (data, ens[name], stats[f"{name}_p50"], over[f"{name}_p50"], written[f"{name}_p50"]):
                    assert each.attrs["nature"] == wanted, (name, each.attrs)
                of_members = as_changes.get(wanted, wanted)
                assert nature_of(over[f"{name}_stdev"]) == of_members, name
