"""Return levels of yearly or seasonal maxima and minima: the generalized extreme value distribution by L-moments."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

import numpy as np
import xarray as xr
from scipy.special import gamma

from espo_luigi.errors import ConfigurationError
from espo_luigi.science.outcomes.climatology import SeasonYear
from espo_luigi.science.outcomes.natures import DATE, nature_of
from espo_luigi.science.outcomes.trends import UNCERTAINTY_OF, Periods, by_period
from espo_luigi.science.seeds import cell_generator

RETURN_PERIOD, RESAMPLE, FEWEST_YEARS = "return_period", "resample", 20
_INTERVAL = (0.05, 0.95)
_OF_RETURN_PERIODS = {"units": "year", "long_name": "return period"}
# Below, differences of powers lose more digits than a shape of 0 does.
_NEARLY_0, _STEPS = 1e-6, 6
_LN2, _LN3 = np.log(2), np.log(3)


def return_levels(
    ds: xr.Dataset,
    *,
    return_periods: Sequence[float] = (20, 50, 100),
    periods: Periods | None = None,
    min_periods: int | float | None = None,
    season_year: SeasonYear = "january",
    resamples: int = 500,
) -> xr.Dataset:
    """Return the levels that a year exceeds once in so many years on average, of the data and of resamples; lazy.

    Dimensions (time, ...) in, (horizon, ..., return_period, resample) out, with seasons or months as in `climatology`.
    The variable `rx1day` becomes `rx1day_clim_return_level`, in its units. The distribution is fitted to each period;
    of minima, to their negative values, and years fall below the levels. Resample 0 is of the data; others have as many
    years, drawn with replacement, the same in all cells without gaps, for `with_intervals`.

    Parameters
    ----------
    periods, min_periods, season_year
        As in `trends`; a period and a cell need 20 years.

    Raises
    ------
    ConfigurationError
        If a variable is no maximum or minimum by its cell methods, or a period is too short; else as `trends`.

    References
    ----------
    `xclim.indices.stats.frequency_analysis` with lmoments3's "PWM", which fits minima themselves; Hosking (1990), doi:
    10.1111/j.2517-6161.1990.tb01775.x.
    """
    sizes = {RETURN_PERIOD: len(return_periods), RESAMPLE: resamples + 1}
    function = partial(_levels, np.array(return_periods, float), resamples)
    signed = ds.map(lambda data: (data * _sign(data)).assign_attrs(data.attrs), keep_attrs=True)
    whole = by_period(signed, periods, min_periods, season_year, sizes, function, FEWEST_YEARS)
    made = {}
    for name, data in whole.items():
        attrs = {key: text for key, text in ds[name].attrs.items() if key != "cell_methods"}
        attrs |= {key: f"return level of {attrs[key]}" for key in ("long_name", "description") if key in attrs}
        made[f"{name}_clim_return_level"] = (data * _sign(ds[name])).assign_attrs(attrs)
    along = RETURN_PERIOD, [*map(float, return_periods)], _OF_RETURN_PERIODS
    return xr.Dataset(made, attrs=whole.attrs).assign_coords({RETURN_PERIOD: along})


def with_intervals(ds: xr.Dataset) -> xr.Dataset:
    """Return levels or changes without `resample`, and their intervals of 90 %, `…_lower` to `…_upper`; lazy."""
    made = {}
    for name, data in ds.items():
        made[str(name)] = own = data.isel({RESAMPLE: 0})
        limits = data.isel({RESAMPLE: slice(1, None)}).quantile(_INTERVAL, RESAMPLE, skipna=False).drop_vars("quantile")
        for at, end in enumerate(("lower", "upper")):
            words = f"{data.attrs.get('long_name', name)}, {end} limit of the 90 % interval by bootstrap"
            attrs = {**data.attrs, "long_name": words, UNCERTAINTY_OF: str(name)}
            made[f"{name}_{end}"] = limits.isel(quantile=at).where(own.notnull()).assign_attrs(attrs)
    return xr.Dataset(made, attrs=ds.attrs)


def _sign(data: xr.DataArray) -> int:
    """Return 1 for maxima, and -1 for minima."""
    methods = str(data.attrs.get("cell_methods", ""))
    found = re.search(r"time: (max|min)(imum)?( (over|within) \w+)?$", methods)
    if not found or nature_of(data) == DATE:
        raise ConfigurationError(
            f"{data.name} is no maximum or minimum of a year or season: its cell_methods are {methods!r}; expected "
            "'time: maximum over days' or 'time: minimum over days', as of rx1day and tn_min."
        )
    return 1 if found[1] == "max" else -1


def _levels(
    return_periods: np.ndarray, resamples: int, values: np.ndarray, years: np.ndarray, period: str
) -> np.ndarray:
    """Return the levels (series, return period, resample) of maxima."""
    draws = cell_generator("return levels", period, years.size).integers(years.size, size=(resamples, years.size))
    samples = np.sort(values[:, np.vstack([np.arange(years.size), draws])], axis=-1)
    location, scale, shape = (each[:, None] for each in gev_by_l_moments(samples))
    levels = location - scale * np.expm1(shape * np.log(-np.log1p(-1 / return_periods))[:, None]) / shape
    # Samples of one value have no distribution: a resample has that level, the data have none.
    levels = np.where((samples[..., -1] == samples[..., 0])[:, None], samples[:, None, :, 0], levels)
    return np.where((np.ptp(values, axis=1) == 0)[:, None, None], np.nan, levels)


def gev_by_l_moments(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return location, scale and shape (of scipy's sign, never 0) of samples (..., value) in ascending order.

    From unbiased probability-weighted moments. Hosking's approximation of the shape is where Newton's method begins.
    """
    n = samples.shape[-1]
    at, mean = np.arange(n), samples.mean(axis=-1)
    first, second = samples @ (at / (n - 1)) / n, samples @ (at * (at - 1) / ((n - 1) * (n - 2))) / n
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = 2 * first - mean
        wanted = 2 / (3 + (6 * second - 6 * first + mean) / spread)
        shape = 7.859 * (wanted - _LN2 / _LN3) + 2.9554 * (wanted - _LN2 / _LN3) ** 2
        for _ in range(_STEPS):
            shape = np.where(np.abs(shape) < _NEARLY_0, _NEARLY_0, shape)
            two, three = np.expm1(-shape * _LN2), np.expm1(-shape * _LN3)
            slope = (_LN3 * two * (three + 1) - _LN2 * (two + 1) * three) / three**2
            shape = shape + (wanted - two / three) / slope
        shape = np.where(np.abs(shape) < _NEARLY_0, _NEARLY_0, shape)
        scale = -spread * shape / (np.expm1(-shape * _LN2) * gamma(1 + shape))
        return mean - scale * (1 - gamma(1 + shape)) / shape, scale, shape
