"""Percentiles of a base period, and what is counted beyond them, compared with xclim's."""

from typing import Any

import numpy as np
import pytest
import xarray as xr
from outcomes import CALENDARS
from xclim import atmos
from xclim.core.bootstrapping import build_bootstrap_year_da
from xclim.core.calendar import percentile_doy

from espo_luigi.errors import ConfigurationError, DataError
from espo_luigi.science.outcomes.indicators import (
    _chosen,
    checked,
    compute_indicators,
    load_indicators,
    percentiles_needed,
)
from espo_luigi.science.outcomes.percentiles import Base, Percentile, compute_percentiles, percentiles_of

BASE = ("1978", "1984")
YEARS = (1978, 1984)
TX90 = Percentile("tasmax", 90.0)


def series(calendar: str, first: int = 1975, last: int = 1987) -> xr.Dataset:
    """Rounded temperatures and drizzle of 0, so with many ties, and some missing days, of the base, too."""
    end = f"{last}-12-{30 if calendar == '360_day' else 31}"
    time = xr.date_range(f"{first}-01-01", end, calendar=calendar, use_cftime=calendar != "standard")
    random, shape = np.random.default_rng(1), (time.size, 3)
    season = 14 * np.sin((np.asarray(time.dayofyear) - 105) * 2 * np.pi / 365)[:, None]
    tasmax = 283 + (season + random.normal(0, 4, shape)).round()
    tasmin = tasmax - random.gamma(4, 2, shape).round()
    pr = np.where(random.random(shape) < 0.4, random.gamma(0.7, 8, shape).round(1), 0) / 86400
    for values in (tasmax, tasmin, pr):
        values[2000:2002, 1] = values[400, 0] = np.nan
    data: Any = {"tas": (tasmax + tasmin) / 2, "tasmax": tasmax, "tasmin": tasmin, "pr": pr}
    methods = {"tas": "mean", "tasmax": "maximum", "tasmin": "minimum", "pr": "mean"}
    made = xr.Dataset(coords={"time": time, "loc": [0, 1, 2]})
    for name, values in data.items():
        attrs = {"units": "K", "standard_name": "air_temperature"}
        if name == "pr":
            attrs = {"units": "kg m-2 s-1", "standard_name": "precipitation_flux"}
        attrs["cell_methods"] = f"time: {methods[name]} within days"
        made[name] = ("time", "loc"), values.astype("float32"), attrs
    return made


def of_xclim(ds: xr.Dataset, one: Percentile) -> xr.DataArray:
    base = ds[one.variable].sel(time=slice(*BASE))
    if one.daily:
        return percentile_doy(base, per=one.level).sel(percentiles=int(one.level))
    wet = base.where(base * 86400 >= np.float32(1))
    made = wet.quantile(one.level / 100, "time", method="median_unbiased").assign_attrs(base.attrs)
    return made.assign_attrs(climatology_bounds=["1978-01-01", "1984-12-31"])


def assert_as_xclims(ds: xr.Dataset, indicators: Any, **how: Any) -> None:
    """Each result is xclim's, whether the series are in memory or in chunks."""
    lazy = ds.chunk(time=1000, loc=2)
    whole = compute_indicators(ds, indicators, base_period=BASE, **how)
    parts = compute_indicators(lazy, indicators, base_period=BASE, cells_in_a_block=2, **how)
    for freq, made in whole.items():
        assert parts[freq].chunks
        xr.testing.assert_allclose(parts[freq].compute(), made, rtol=1e-6)
        for _, one in indicators:
            given = {key: of_xclim(ds, per) for key, per in percentiles_of(one).items()}
            with_bootstrap = len(given) == 1 and "tas" in next(iter(given)) and "bootstrap" in one.parameters
            boot = {"bootstrap": True} if with_bootstrap else {}
            expected = one(ds=ds, freq=freq, **given, **boot)
            expected = expected[expected["time"].dt.year.values >= 1975]
            own = made[expected.name].transpose(*expected.dims)
            tolerance = {"rtol": 1e-12 if boot else 1e-5}
            shared = own.sel(time=expected["time"])
            np.testing.assert_allclose(shared.values, expected.values, err_msg=f"{freq} {expected.name}", **tolerance)


@pytest.mark.parametrize("calendar", CALENDARS)
def test_percentiles_are_those_of_xclim_to_the_last_bit(calendar: str) -> None:
    ds = series(calendar)
    wet = Percentile("pr", 95.0, daily=False, wet="1 mm/day")
    made = compute_percentiles(ds.chunk(time=700, loc=2), [TX90, wet], YEARS)
    assert made.chunks and set(made) == {"tasmax_p90", "pr_p95_all_days_wet_1_mm_day"}
    expected = of_xclim(ds, TX90)
    np.testing.assert_array_equal(made["tasmax_p90"].transpose(*expected.dims), expected)
    for key in ("units", "climatology_bounds", "window", "alpha", "beta"):
        assert made["tasmax_p90"].attrs[key] == expected.attrs[key]
    np.testing.assert_allclose(made[wet.name], of_xclim(ds, wet), rtol=1e-6)
    with pytest.raises(DataError, match=r"1978-1999.*1975-1987"):
        compute_percentiles(ds, [TX90], (1978, 1999))


@pytest.mark.parametrize(
    ("calendar", "freq"), [("noleap", "YS"), ("standard", "MS"), ("standard", "QS-DEC"), ("360_day", "YS-JUL")]
)
def test_days_beyond_percentiles_are_those_of_xclims_bootstrap(calendar: str, freq: str) -> None:
    names = {"standard": ("tx90p",), "360_day": ("tn10p",)}.get(calendar, ("tn10p", "warm_spell_duration_index"))
    indicators = [one for one in load_indicators("atmos") if one[0] in names]
    ds = series(calendar)
    chosen, _ = _chosen(indicators, ds, [freq], base_period=BASE)
    assert all(one.kernel and one.bootstrap for one in chosen)
    assert_as_xclims(ds, indicators, freqs=[freq])


@pytest.mark.parametrize("calendar", ["noleap", "standard"])
def test_all_of_etccdi_are_those_of_xclim(calendar: str) -> None:
    indicators = load_indicators("etccdi")
    assert len(indicators) == 27
    ds = series(calendar)
    needed = [one.name for one in percentiles_needed(indicators)]
    assert needed == [f"pr_p{level}_all_days_wet_1_mm_day" for level in (95, 99)] + [
        f"{name}_p{level}" for name in ("tasmax", "tasmin") for level in (10, 90)
    ]
    assert_as_xclims(ds, indicators)
    made = compute_indicators(ds, indicators, base_period=BASE)["YS-JAN"]
    natures = {name: made[name].attrs["nature"] for name in ("tx90p", "wsdi", "r95p")}
    assert natures == {"tx90p": "count", "wsdi": "count", "r95p": "amount"}
    assert (made["tx90p"].attrs["base_period"], made["tx90p"].attrs["bootstrap"]) == ("1978-1984", "yes")
    assert made["wsdi"].attrs["bootstrap"] == "no"
    # The amount is xclim's share of the precipitation of wet days.
    share = atmos.fraction_over_precip_thresh(ds["pr"], of_xclim(ds, Percentile("pr", 95.0, False, "1 mm/day")))
    total = atmos.wet_precip_accumulation(ds["pr"], thresh="1.05 mm/day")
    np.testing.assert_allclose(made["r95p"], (share * total).transpose(*made["r95p"].dims), rtol=1e-4)


def test_strangers_indicators_with_percentiles_are_those_of_xclim(tmp_path: Any) -> None:
    path = tmp_path / "own.yml"
    path.write_text(
        """
realm: atmos
indicators:
  heat_wave_days: {base: warm_spell_duration_index, parameters: {window: 3, bootstrap: false,
                   tasmax_per: {description: 95th percentile}}, cf_attrs: {var_name: heat_wave_days}}
  ww: {base: warm_and_dry_days, cf_attrs: {var_name: ww}}
  summer: {base: tg90p, parameters: {indexer: {month: [6, 7, 8]}}, cf_attrs: {var_name: summer}}
"""
    )
    indicators = load_indicators(str(path))
    levels = {name: [per.level for per in percentiles_of(one).values()] for name, one in indicators}
    assert levels == {"heat_wave_days": [95], "ww": [75, 25], "summer": [90]}
    ds = series("noleap")
    chosen, _ = _chosen(indicators, ds, None, base_period=BASE)
    assert {one.name: (bool(one.kernel), one.bootstrap) for one in chosen} == {
        "heat_wave_days": (True, False),
        "ww": (False, False),
        "summer": (False, True),
    }
    assert_as_xclims(ds, indicators)


def test_a_level_or_a_base_period_that_is_not_told_is_refused() -> None:
    found = {name: one for name, one in load_indicators("atmos") if name in ("days_over_precip_thresh", "tx90p")}
    with pytest.raises(ConfigurationError) as raised:
        checked(found.items(), ["tasmax", "pr"])
    assert "days_over_precip_thresh: its pr_per tells no level" in str(raised.value)
    assert "tx90p: it needs percentiles of a base period" in str(raised.value)
    assert checked([("tx90p", found["tx90p"])], ["tasmax", "pr"], calendar="standard", base_period=BASE) == {}


@pytest.mark.parametrize("calendar", ["noleap", "standard"])
def test_a_series_of_the_base_alone_has_the_bootstrap_too(calendar: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """xclim asks for a year outside."""
    ds = series(calendar)[["tas"]]
    indicators = [one for one in load_indicators("atmos") if one[0] == "tg90p"]
    whole = compute_indicators(ds, indicators, base_period=BASE)["YS-JAN"]["tg90p"].sel(time=slice(*BASE))
    alone = compute_indicators(ds.sel(time=slice(*BASE)), indicators, base_period=BASE)["YS-JAN"]["tg90p"]
    np.testing.assert_array_equal(alone, whole)
    monkeypatch.setattr("espo_luigi.science.outcomes.indicators.kernel_of", lambda *_: None)
    by_xclim = compute_indicators(ds.sel(time=slice(*BASE)), indicators, base_period=BASE)["YS-JAN"]["tg90p"]
    np.testing.assert_array_equal(by_xclim, whole)


def test_a_base_without_29_february_is_as_xclim_has_it() -> None:
    ds = series("standard")[["tasmax"]]
    indicators = [one for one in load_indicators("atmos") if one[0] == "tx90p"]
    made = compute_indicators(ds, indicators, base_period=("1977", "1979"))["YS-JAN"]["tx90p"]
    per = percentile_doy(ds["tasmax"].sel(time=slice("1977", "1979")), per=90).sel(percentiles=90)
    expected = atmos.tx90p(ds["tasmax"], per, bootstrap=True)
    np.testing.assert_array_equal(made.transpose(*expected.dims), expected)
    assert per.sizes["dayofyear"] == 365


def test_days_in_place_of_a_year_are_those_of_xclim() -> None:
    for calendar, freq in (("standard", "YS"), ("standard", "QS-DEC"), ("360_day", "YS-JUL")):
        ds = series(calendar)
        base = Base.of(ds, freq, YEARS)
        numbers = xr.DataArray(
            np.arange(base.last - base.first, dtype=float), {"time": ds["time"][base.first : base.last]}
        )
        groups = numbers.resample(time={"QS-DEC": "YS-DEC"}.get(freq, freq)).groups
        keys = [key for key in groups if int(str(key)[:4]) >= YEARS[0]]
        for ours, key in zip(base.substitutes(), keys, strict=True):
            theirs = build_bootstrap_year_da(numbers, groups, key).isel(time=groups[key]).fillna(-1)
            np.testing.assert_array_equal(ours[:, : theirs.sizes["time"]], theirs)
