"""Return levels, compared with those of xclim by lmoments3, which is not installed."""

from typing import Any

import dask
import numpy as np
import pytest
import xarray as xr
from scipy import stats

from espo_luigi.errors import ConfigurationError
from espo_luigi.science.outcomes.delta import delta
from espo_luigi.science.outcomes.return_levels import gev_by_l_moments, return_levels, with_intervals

# `xclim.indices.stats.frequency_analysis` with lmoments3 1.0.8's gev and "PWM", of 20, 50 and 100 years.
SAMPLES = {
    (62.46454356, 69.74848843, 75.15093626): """40.1 43.2 68.8 57.6 42.1 39.7 50.2 54.6 30.2 41.6 43.3 61.4 32.5 50.3
        33.7 42 36.5 35.4 53.5 24.7 44.1 57.1 37.9 38.3 50.4 37.6 36.7 34.3 36.3 44.2""",
    (64.52948591, 70.39007224, 74.39614791): """61.6 46.8 57.7 55.7 37.4 41.5 44.5 38.1 41.8 37.3 45.8 47.8 35.6 49
        54.3 35.4 48 27.4 71.3 42.3 45.1 27 44.1 36.7 50.3 40.8 50.7 64.7 53.5 34.9""",
}
LEVEL = "rx1day_clim_return_level"
MAXIMA = {"units": "mm/day", "cell_methods": "time: mean within days time: maximum over days", "long_name": "Most rain"}


def maxima(values: Any, **attrs: str) -> xr.Dataset:
    """Return yearly values (time, x) from 1991 on."""
    time = xr.date_range("1991-01-01", periods=len(values), freq="YS", calendar="noleap", use_cftime=True)
    data = ("time", "x")[: np.ndim(values)], np.asarray(values), MAXIMA | attrs
    return xr.Dataset({"rx1day": data}, {"time": time}, {"cat:xrfreq": "YS-JAN"})


def drawn(years: int, cells: int) -> xr.Dataset:
    draws = np.random.default_rng(1)
    return maxima(stats.genextreme.rvs(-0.1, 40, 10, size=(years, cells), random_state=draws).astype("f4"))


def test_levels_are_those_of_xclim_of_minima_with_the_other_sign() -> None:
    values = np.array([text.split() for text in SAMPLES.values()], float).T
    made = return_levels(maxima(values), resamples=0)[LEVEL].squeeze()
    np.testing.assert_allclose(made, [*SAMPLES], rtol=1e-6)
    assert made["return_period"].values.tolist() == [20, 50, 100] and made.attrs["units"] == "mm/day"
    minima = maxima(-values, cell_methods="time: minimum over days")
    np.testing.assert_allclose(return_levels(minima, resamples=0)[LEVEL].squeeze(), -np.array([*SAMPLES]), rtol=1e-6)


@pytest.mark.parametrize("shape", [-0.6, -0.1, 0, 1e-4, 0.3, 1, 2])
def test_parameters_are_those_of_a_distribution(shape: float) -> None:
    values = np.sort(stats.genextreme.ppf((np.arange(200_000) + 0.5) / 200_000, shape, 40, 10))
    found = gev_by_l_moments(values)
    np.testing.assert_allclose(found, (40, 10, shape), rtol=0.02, atol=2e-3)


def test_intervals_are_the_same_whatever_the_blocks() -> None:
    ds = drawn(60, 9)
    ds["rx1day"][3:15, 2] = np.nan
    ds["rx1day"][30, 3] = np.nan
    whole, cut = (with_intervals(return_levels(of, periods=[[1991, 2020], [2021, 2050]])) for of in (ds, ds.chunk(x=2)))
    assert all(data.chunks for data in cut.values())
    with dask.config.set(scheduler="synchronous"):
        xr.testing.assert_identical(whole.load(), cut.load())
    low, own, high = (whole[f"{LEVEL}{end}"] for end in ("_lower", "", "_upper"))
    assert low.dims == ("horizon", "x", "return_period") and low.attrs["uncertainty_of"] == LEVEL
    assert bool((low < own).where(own.notnull(), True).all() and (own < high).where(own.notnull(), True).all())
    assert own.isnull().any("return_period").sum("x").values.tolist() == [1, 1]
    # Of 18 values there are no levels, whatever is asked for.
    loose = return_levels(ds, periods=[[1991, 2020], [2021, 2050]], min_periods=10, resamples=0)[LEVEL].squeeze()
    np.testing.assert_array_equal(loose.isnull().all("return_period").sum("x"), [1, 0])


def test_an_interval_covers_the_true_level_of_most_samples() -> None:
    made = with_intervals(return_levels(drawn(60, 300), return_periods=[20], resamples=200)).squeeze()
    true = stats.genextreme.ppf(0.95, -0.1, 40, 10)
    inside = (made[f"{LEVEL}_lower"] < true) & (true < made[f"{LEVEL}_upper"])
    assert 0.78 < float(inside.mean()) < 0.96


def test_changes_have_intervals_of_their_own() -> None:
    levels = return_levels(drawn(60, 3), periods=[[1991, 2020], [2021, 2050]])
    changes = with_intervals(delta(levels, "1991-2020", kind={"rx1day": "%"})).isel(horizon=1)
    name = f"{LEVEL}_delta_1991_2020"
    assert changes[f"{name}_upper"].attrs["units"] == "%"
    assert bool((changes[f"{name}_lower"] < changes[name]).all() and (changes[name] < changes[f"{name}_upper"]).all())


def test_constant_maxima_have_no_level() -> None:
    assert return_levels(maxima(np.full((30, 2), 280.3)))[LEVEL].isel(resample=0).isnull().all()


@pytest.mark.parametrize(
    ("given", "attrs", "message"),
    [
        ({"periods": [[1991, 2005]]}, {}, "1991-2005 is too short; expected 20"),
        ({}, {"cell_methods": "time: sum over days"}, "rx1day is no maximum or minimum .*'time: sum over days'"),
        ({}, {"is_dayofyear": "1"}, "rx1day is no maximum"),
    ],
)
def test_what_is_no_extreme_or_too_short_is_refused(given: Any, attrs: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        return_levels(maxima(np.arange(30.0), **attrs), **given)
