"""Every indicator of xclim's modules: what the check accepts, the job computes, as xclim by hand."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import xarray as xr
from outcomes import CALENDARS
from xclim import indices
from xclim.core.units import convert_units_to
from xclim.indices.helpers import make_hourly_temperature

from espo_luigi.errors import ConfigurationError
from espo_luigi.science.calendar import TimeAxis
from espo_luigi.science.definitions import BUNDLES
from espo_luigi.science.derivations import derive
from espo_luigi.science.outcomes.daily import LOG_LOGISTIC, with_daily
from espo_luigi.science.outcomes.indicators import MODULES, checked, compute_indicators, load_indicators, possible
from espo_luigi.science.outcomes.percentiles import percentiles_of
from espo_luigi.science.variables import VARIABLES, Variable

# The years between are left out.
STRETCHES = ((2003, 2004), (2007, 2008))
# The last block of cells has no temperate latitude.
LATITUDES = [49.0, 41.5, 41.5, 70.0, 36.0]
# The places of each latitude, the first twice where there is no other.
GRID = [[4, 4], [1, 2], [0, 0], [3, 3]]
TABLE = {**VARIABLES, "snd": Variable(units="m")}
BASE = ("2003", "2007")
# Arguments that a YAML file cannot have, by method: of SPI and SPEI.
CALIBRATED: Mapping[str, Any] = {"APP": {"fitkwargs": {"floc": 0}}, "PWM": {"dist": LOG_LOGISTIC}}
OF_LATITUDES = ("huglin_index", "biologically_effective_degree_days", "latitude_temperature_index")
OF_WINDOWS = ("max_n_day_precipitation_amount", "heat_wave_total_length")
OF_SEASONS = ("frost_season_length", "growing_season_length")


def axis(calendar: str, stretches: Sequence[tuple[int, int]]) -> TimeAxis:
    dates = TimeAxis(calendar, np.empty(0))
    ends = [(dates.number(f"{first}-01-01"), dates.number(f"{last + 1}-01-01")) for first, last in stretches]
    return TimeAxis(calendar, np.concatenate([np.arange(*of, dtype=float) for of in ends]))


def series(calendar: str, stretches: Sequence[tuple[int, int]] = STRETCHES) -> xr.Dataset:
    """Invented days of all variables at five places; the first has a missing day."""
    days, draws = axis(calendar, stretches), np.random.default_rng(5)
    shape = (len(days), len(LATITUDES))
    season = np.sin((days.dayofyear[:, None] - 105) * 2 * np.pi / 365)
    weather = 295 - 0.3 * np.array(LATITUDES) + 14 * season + draws.normal(0, 4, shape)
    rain = draws.gamma(0.7, 8, shape) * (draws.random(shape) < 0.4)
    made: dict[str, Any] = {
        **{name: weather + more for name, more in {"tas": 0, "tasmax": 5, "tasmin": -5, "tdps": -6}.items()},
        **dict.fromkeys(("pr", "prsn", "evspsbl"), rain / 86400),
        **dict.fromkeys(("hurs", "hursmin", "hursmax", "clt"), draws.uniform(20, 100, shape)),
        **dict.fromkeys(("rsds", "rlds"), 200 + 100 * season + draws.uniform(0, 50, shape)),
        **dict.fromkeys(("ps", "psl"), draws.normal(101300, 800, shape)),
        **dict.fromkeys(("sfcWind", "sfcWindmax", "uas", "vas", "dtr"), draws.gamma(2, 3, shape)),
        "huss": draws.uniform(0.004, 0.01, shape),
        "snw": (-150 * season + draws.normal(0, 10, shape)).clip(0),
        "snd": (-0.5 * season + draws.normal(0, 0.1, shape)).clip(0),
    }
    kept = ("units", "standard_name", "cell_methods")
    data = {}
    for name, values in made.items():
        values[100, 0] = np.nan
        attrs = {key: text for key in kept if (text := getattr(TABLE[name], key))}
        data[name] = (("time", "loc"), values.astype("float32"), attrs)
    lat = ("loc", LATITUDES, {"standard_name": "latitude", "units": "degrees_north"})
    return xr.Dataset(data, {"time": days.index, "lat": lat})


def by_hand(indicator: Any, ds: xr.Dataset, freq: str, stretches: Sequence[tuple[int, int]]) -> xr.Dataset:
    """Return xclim's own results of each stretch of years, of all cells at once."""
    parts = []
    if needs_latitudes := "lat" in indicator.parameters:  # a grid has each of them once
        ds = ds.drop_vars("lat").isel(loc=xr.Variable(("lat", "lon"), GRID)).assign_coords(lat=sorted({*LATITUDES}))
        ds["lat"].attrs = {"units": "degrees_north"}
    if "cal_start" in indicator.parameters:  # calibrated over years before a gap, too
        stretches = [(stretches[0][0], stretches[-1][1])]
        ds = ds.reindex(time=axis(ds["time"].dt.calendar, stretches).index)
    for first, last in stretches:
        days = ds.sel(time=slice(str(first), str(last)))
        given = {"freq": freq} if "freq" in indicator.parameters else {}
        if "cal_start" in indicator.parameters:
            given |= dict(zip(("cal_start", "cal_end"), BASE, strict=True))
            given |= CALIBRATED.get(indicator.injected_parameters.get("method"), {})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if not needs_latitudes:
                days = with_indices_of_xclim(days, {one.default for one in indicator.parameters.values()})
            made = indicator(ds=days.astype(float) if "cal_start" in given else days, **given)
        outputs = made if isinstance(made, tuple) else (made,)
        bare = [data.drop_vars([key for key in data.coords if key not in data.dims]) for data in outputs]
        one = xr.Dataset({data.name: data for data in bare})
        if needs_latitudes:  # xclim leaves out the Arctic
            row, column = np.divmod(np.unique(GRID, return_index=True)[1], 2)
            at = {"lat": xr.Variable("loc", row), "lon": xr.Variable("loc", column)}
            one = one.reindex(lat=ds["lat"]).isel(at).drop_vars("lat")
        parts.append(one.isel(time=one["time"].dt.year.values >= first))
    return xr.concat(parts, "time", join="outer")


def with_indices_of_xclim(ds: xr.Dataset, names: set[Any]) -> xr.Dataset:
    """Return a dataset with the daily indices of bundles, each by xclim."""
    tas, pr, hurs, wind = (ds[name] for name in ("tas", "pr", "hurs", "sfcWind"))
    made: dict[str, Any] = {}
    if "humidex" in names:
        made["humidex"] = convert_units_to(indices.humidex(ds["tasmax"], ds["tdps"]), "degC")
    if "utci" in names:
        weak = wind.clip(max=17, keep_attrs=True)
        how: Any = {"mask_invalid": False, "wind_cap_min": True}
        made["utci"] = indices.universal_thermal_climate_index(tas, hurs, weak, mrt=tas, **how)
    if "wet_bulb" in names:
        made["wet_bulb"] = with_daily(ds, ["wet_bulb"], None)["wet_bulb"]
    if "water_budget" in names:
        extremes = {"tasmin": ds["tasmin"], "tasmax": ds["tasmax"], "lat": ds["lat"]}
        made["water_budget"] = indices.converters.water_budget(pr, **extremes, method="hargreaves85")
    if "chill_units" in names:
        hours = make_hourly_temperature(ds["tasmin"], ds["tasmax"], infill_polar_days=True)
        daily = indices.chill_units(hours, positive_only=True, freq="D")
        made["chill_units"] = daily.where(ds["tasmin"].notnull()).assign_attrs(units="1")
    if names & {"fwi", "dsr", "dc", "fire_season"}:
        codes = indices.fire.fire_weather_ufunc(
            tas=convert_units_to(tas, "degC"), pr=convert_units_to(pr, "mm/day", context="hydro"), hurs=hurs,
            sfcWind=convert_units_to(wind, "km/h"), lat=ds["lat"], season_method="WF93",
        )  # fmt: skip
        there = tas.notnull()
        for name in ("FWI", "DSR", "DC", "season_mask"):
            values = codes[name].where(codes["season_mask"], 0).where(there).transpose("time", "loc")
            made[name.lower().replace("season_mask", "fire_season")] = values.assign_attrs(units="1")
    return ds.assign(made)


def compared(found: list[tuple[str, Any]], calendar: str, stretches: Sequence[tuple[int, int]] = STRETCHES) -> set[str]:
    """Compare what the check accepts with xclim; return the names of what it does not accept."""
    ds = series(calendar, stretches)
    names = [str(name) for name in ds.data_vars]
    found, refused = possible(found, names)
    refused |= checked(found, names, TABLE, calendar=calendar, years=stretches[0], if_possible=dict(found))
    accepted = [(name, one) for name, one in found if name not in refused]
    made = compute_indicators(ds.chunk(time=400, loc=3), accepted, cells_in_a_block=3, base_period=BASE)
    for freq, of in made.items():
        of = of.load()
        for name, one in accepted:
            if not {attrs["var_name"] for attrs in one.cf_attrs} & {*of.data_vars}:
                continue
            for output, expected in by_hand(one, ds, freq, stretches).data_vars.items():
                own = of[output]
                # xclim leaves out periods without days to look at.
                expected = expected.reindex(time=own["time"])
                own, expected = (each.transpose("time", "loc") for each in (own, expected))
                np.testing.assert_allclose(own, expected, rtol=1e-5, atol=1e-6, err_msg=f"{name} {output}")
    return set(refused)


def of(module: str, names: Sequence[str]) -> list[tuple[str, Any]]:
    return [pair for pair in load_indicators(module) if pair[0] in names]


@pytest.mark.parametrize(("calendar", "names"), zip(CALENDARS, (OF_LATITUDES, OF_SEASONS, OF_WINDOWS), strict=True))
def test_after_a_gap_of_years_indicators_are_xclim_s_of_each_stretch(calendar: str, names: Sequence[str]) -> None:
    assert not compared(of("atmos", names), calendar)


@pytest.mark.long
@pytest.mark.parametrize("calendar", CALENDARS)
@pytest.mark.parametrize("module", MODULES)
def test_what_the_check_accepts_of_a_module_is_computed_as_xclim_does(calendar: str, module: str) -> None:
    compared(load_indicators(module), calendar)


@pytest.mark.parametrize("calendar", ["standard", "noleap"])
@pytest.mark.parametrize("bundle", BUNDLES)
def test_bundles_are_xclim_s(bundle: str, calendar: str) -> None:
    # Those with percentiles have tests of their own.
    indicators = [one for one in load_indicators(bundle) if not percentiles_of(one[1])]
    assert not compared(indicators, calendar, [(2003, 2008 if bundle == "drought" else 2004)])


def test_spi_after_a_gap_is_calibrated_before_it() -> None:
    whole, found = series("noleap", [(2003, 2011)]), of("drought", ["spi3", "spei3"])
    parts = whole.sel(time=~whole["time"].dt.year.isin([2008, 2009]))
    (made,) = compute_indicators(parts, found, base_period=BASE).values()
    (expected,) = compute_indicators(whole, found, base_period=BASE).values()
    assert made["spei3"].attrs["calibration_period"] == "2003-2007" and made["spi3"].attrs["nature"] == "index"
    after = slice("2010-03", None)
    xr.testing.assert_allclose(made.sel(time=after), expected.sel(time=after))
    assert np.isfinite(made["spei3"].sel(time=after)).all() and made["spi3"].sel(time="2010-01").isnull().all()


def test_the_log_logistic_distribution_is_lmoments3_s() -> None:
    fitted = LOG_LOGISTIC.lmom_fit(np.array([2.0, 3.0, 4.0, 2.4, 5.5, 1.2, 5.4, 2.2, 7.1, 1.3, 1.5]))
    # Of the package's tests.
    np.testing.assert_allclose([*fitted.values()], [-0.2738854, 2.7406580, 1.0060517], rtol=1e-6)
    np.testing.assert_allclose(LOG_LOGISTIC.cdf([2, 5, 8], **fitted), [0.3052960, 0.8519915, 0.9624759], rtol=1e-6)


def test_wet_bulb_and_humidex_are_the_papers_and_the_same_by_each_way() -> None:
    ds = series("noleap", [(2003, 2003)])
    kept = {"tas": 293.15, "hurs": 50.0}
    warm = ds.assign({name: xr.full_like(ds[name], value) for name, value in kept.items()})
    wet = with_daily(warm, ["wet_bulb"], None)["wet_bulb"]
    np.testing.assert_allclose(wet.isel(loc=1), 13.7, atol=0.01)
    dew_point = derive("tdps", warm[["tas", "hurs"]])
    ways = [
        with_daily(one, ["humidex"], None)["humidex"] for one in (warm.drop_vars("tdps"), warm.assign(tdps=dew_point))
    ]
    xr.testing.assert_allclose(*ways)


def test_rain_of_before_a_gap_is_in_no_window_after_it() -> None:
    ds = series("noleap")[["pr"]].isel(loc=slice(1, None)) * 0
    ds["pr"][{"time": slice(725, 733)}] = 60 / 86400  # from 27 December 2004 to 3 January 2007
    ds["pr"].attrs["units"] = "kg m-2 s-1"
    (made,) = compute_indicators(ds, of("icclim", ["RX5day"])).values()
    expected = [[0, 300, 180, 0]] * 4
    np.testing.assert_allclose(made["RX5day"].transpose("loc", "time"), expected, rtol=1e-6)


def test_what_is_not_possible_of_a_module_is_left_out_by_name() -> None:
    names = ["TX", "HI", "SD", "TX90p", "RR"]
    found, reasons = possible(of("icclim", names), ["tas", "tasmax", "pr"])
    assert [name for name, _ in found] == ["TX", "TX90p", "HI", "RR"]
    assert "needs snd" in reasons["SD"]
    # Its threshold is a depth a day, with which xclim cannot compare a flux.
    left_out = checked(of("cf", ["sdii", "tx"]), ["pr", "tasmax"], freqs=["YS"], if_possible=["sdii"])
    assert list(left_out) == ["sdii at YS"] and "Cannot convert from 'millimeter / day'" in left_out["sdii at YS"]
    depths = {**VARIABLES, "pr": Variable(units="mm d-1")}
    assert not checked(of("cf", ["sdii", "tx"]), ["pr", "tasmax"], depths)
    ds = series("noleap", STRETCHES[:1])[["tasmax", "pr"]]
    (made,) = compute_indicators(ds, of("cf", ["sdii", "tx"]), freqs=["YS"], if_possible=["sdii"]).values()
    assert list(made.data_vars) == ["tx"]
    with pytest.raises(ConfigurationError, match="indicator sdii at YS: Cannot convert"):
        compute_indicators(ds, of("cf", ["sdii", "tx"]), freqs=["YS"])
