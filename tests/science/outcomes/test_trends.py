"""Trends and their p-values, compared with those of scipy, cell by cell."""

from typing import Any

import numpy as np
import pytest
import xarray as xr
from scipy import stats
from test_climatology import series

from espo_luigi.errors import ConfigurationError, DataError
from espo_luigi.science.outcomes.trends import trends

NAMES = ("tg_mean", "prcptot")


def mann_kendall(values: np.ndarray) -> float:
    """Return the p-value with the correction for continuity; scipy's has the variance with ties."""
    found = stats.kendalltau(np.arange(values.size), values, method="asymptotic")
    score = np.sign(values[None, :] - values[:, None])[np.triu_indices(values.size, 1)].sum()
    deviation = abs(score) / stats.norm.isf(found.pvalue / 2) if score else np.inf
    return 2 * stats.norm.sf((abs(score) - 1) / deviation) if score else 1.0


def expected(values: np.ndarray, years: np.ndarray, method: str) -> tuple[float, float]:
    if method == "linear":
        found = stats.linregress(years, values)
        return 10 * found.slope, found.pvalue
    return 10 * stats.theilslopes(values, years).slope, mann_kendall(values)


@pytest.mark.parametrize("method", ["theil-sen", "linear"])
@pytest.mark.parametrize("lazy", [False, True])
def test_trends_are_those_of_scipy(method: Any, lazy: bool) -> None:
    ds = series("noleap", "YS-JAN")[[*NAMES]].rename(loc="x").ffill("time").bfill("time")
    # Rounded, there are ties; some cells lack years.
    wide = xr.concat([ds, ds.round(), ds.where(ds["time"].dt.year != 1995), ds.where(ds["time"].dt.year > 2000)], "x")
    made = trends(wide.chunk(x=5, time=13) if lazy else wide, method=method, periods=[[1981, 2010], [1981, 2040]])
    assert all(bool(data.chunks) == lazy for data in made.values())
    assert made["horizon"].values.tolist() == ["1981-2010", "1981-2040"]
    loose = trends(wide, method=method, periods=[[1981, 2040]], min_periods=0.5).isel(horizon=0)
    for name in NAMES:
        slope, p = (made[f"{name}_clim_trend{end}"].isel(horizon=1).values for end in ("", "_pvalue"))
        assert np.isfinite(slope[:6]).all() and np.isnan(slope[9:]).all() and np.isnan(p[9:]).all()
        for x in range(12):
            data = wide[name].isel(x=x).dropna("time")
            wanted = expected(data.values, data["time"].dt.year.values, method)
            if x < 6:
                np.testing.assert_allclose([slope[x], p[x]], wanted, rtol=1e-12, atol=1e-14)
            at = [loose[f"{name}_clim_trend{end}"].isel(x=x) for end in ("", "_pvalue")]
            np.testing.assert_allclose(at, wanted, rtol=1e-12, atol=1e-14)


def test_trends_are_those_of_the_seasons_and_lack_one_winter() -> None:
    ds = series("noleap", "QS-DEC")[["tg_mean"]].sel(time=slice("1980-12", "2010-11"))
    made = trends(ds.sel(time=slice("1981-03", None)))
    assert made["tg_mean_clim_trend"].dims[:2] == ("horizon", "season") and made["horizon"] == ["1981-2010"]
    winters = ds["tg_mean"].isel(loc=0, time=ds["time"].dt.month.values == 12)[1:].values
    found = made.isel(horizon=0, loc=0).sel(season="DJF")
    wanted = expected(winters, np.arange(1982, 2011), "theil-sen")
    np.testing.assert_allclose([found[name] for name in ("tg_mean_clim_trend", "tg_mean_clim_trend_pvalue")], wanted)
    by_december = trends(ds, season_year="december", periods=[[1981, 2009]])
    assert by_december.attrs["season_year"] == "december"
    np.testing.assert_allclose(by_december["tg_mean_clim_trend"].isel(loc=0).sel(season="DJF"), [wanted[0]])


def years_of(values: Any, **attrs: str) -> xr.Dataset:
    time = xr.date_range("1991-01-01", periods=len(values), freq="YS", calendar="noleap", use_cftime=True)
    return xr.Dataset({"v": ("time", values, attrs)}, {"time": time}, {"cat:xrfreq": "YS-JAN"})


def test_a_trend_of_dates_crosses_the_end_of_the_year() -> None:
    dates = (340 + 2.0 * np.arange(30) - 1) % 365 + 1
    made = trends(years_of(dates, units="", standard_name="day_of_year", is_dayofyear="1"))
    trend, p = made["v_clim_trend"], made["v_clim_trend_pvalue"]
    np.testing.assert_allclose(trend, 20)
    assert trend.attrs["units"] == "days decade-1" and "is_dayofyear" not in trend.attrs and float(p.max()) < 1e-9


@pytest.mark.parametrize("method", ["theil-sen", "linear"])
def test_a_constant_series_has_no_trend(method: Any) -> None:
    made = trends(years_of([280.3] * 30, units="degC", long_name="Mean"), method=method)
    np.testing.assert_allclose(made["v_clim_trend"], 0, atol=1e-12)
    assert made["v_clim_trend_pvalue"] == 1 and made["v_clim_trend"].attrs["units"] == "K decade-1"
    assert made["v_clim_trend_pvalue"].attrs["uncertainty_of"] == "v_clim_trend"


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (
            {"periods": [[1991, 2030]]},
            DataError,
            "1991-2030 is not in the data, .* and lack 2021, 2022, 2023",
        ),
        ({"min_periods": 40}, ConfigurationError, "min_periods 40 is not possible"),
    ],
)
def test_years_that_are_not_there_are_refused(given: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        trends(years_of(np.arange(30.0), units="1"), **given)
