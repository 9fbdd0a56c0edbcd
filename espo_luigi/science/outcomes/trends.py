"""Trends of yearly, seasonal or monthly values over periods of years, with their significance."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import dask
import numpy as np
import xarray as xr
from scipy.special import ndtr, stdtr

from espo_luigi.errors import ConfigurationError
from espo_luigi.science.chunks import join
from espo_luigi.science.outcomes import natures
from espo_luigi.science.outcomes.climatology import (
    HORIZON,
    SEASON_YEAR,
    Periods,
    SeasonYear,
    by_year,
    least_years,
    periods_of,
)
from espo_luigi.science.outcomes.natures import DATE, NATURE, nature_of
from espo_luigi.science.units import is_temperature, units_of

UNCERTAINTY_OF = "uncertainty_of"
"""The attribute of p-values and limits of intervals, with the name of the variable that they belong to."""
# What is in memory at a time: of a block of cells its results, and within the block what they are made of.
_BLOCK_BYTES, _MOST_VALUES = 2**25, 2**21
_NOT_OF_TRENDS = ("standard_name", "is_dayofyear", "units_metadata", "cell_methods")


def trends(
    ds: xr.Dataset,
    *,
    method: Literal["theil-sen", "linear"] = "theil-sen",
    periods: Periods | None = None,
    min_periods: int | float | None = None,
    season_year: SeasonYear = "january",
) -> xr.Dataset:
    """Return the trend of each period of years, a decade, season by season or month by month, and its p-value; lazy.

    Dimensions (time, ...) in, (horizon, ...) out, with `season` or `month` behind `horizon`, as in `climatology`. The
    variable `tx_max` becomes `tx_max_clim_trend`, in "K decade-1", and `tx_max_clim_trend_pvalue`. Days of the year are
    taken around their circular mean over the period. Both tests take years for independent of each other.

    Parameters
    ----------
    method
        "theil-sen": the median slope of all pairs of years, and the two-sided test by Mann and Kendall, corrected for
        ties and continuity. "linear": least squares, and Student's t. A constant series has the p-value 1.
    periods, min_periods, season_year
        First and last year of each, both included (by default all years); and as in `climatology`, at least 3 years.
        Raises as it does.

    References
    ----------
    `scipy.stats.theilslopes` and `linregress`; Gilbert (1987), Statistical Methods for Environmental Pollution
    Monitoring, chapter 16.
    """
    function = {"theil-sen": _theil_sen, "linear": _least_squares}[method]
    of_periods, made = by_period(ds, periods, min_periods, season_year, {"part": 2}, function, 3), {}
    for name, both in of_periods.items():
        like = natures.as_spread(ds[name])
        attrs = {key: text for key, text in like.attrs.items() if key not in _NOT_OF_TRENDS}
        for key in {"long_name", "description"} & attrs.keys():
            attrs[key] = f"{'Theil-Sen' if method == 'theil-sen' else 'linear'} trend of {attrs[key]}".rstrip(".")
        units = "K" if is_temperature(ds[name]) else units_of(like)
        attrs["units"] = f"{units} decade-1".removeprefix("1 ")
        made[f"{name}_clim_trend"] = both.isel(part=0).assign_attrs(attrs)
        of_p = {"long_name": f"p-value of the {attrs.get('long_name', f'trend of {name}')}", "units": "1"}
        of_p |= {NATURE: "index", UNCERTAINTY_OF: f"{name}_clim_trend"}
        made[f"{name}_clim_trend_pvalue"] = both.isel(part=1).assign_attrs(of_p)
    return xr.Dataset(made, attrs=of_periods.attrs)


def by_period(
    ds: xr.Dataset,
    periods: Periods | None,
    min_periods: int | float | None,
    season_year: SeasonYear,
    sizes: Mapping[str, int],
    function: Callable[..., np.ndarray],
    fewest: int,
) -> xr.Dataset:
    """Return what a function makes of each period: (horizon, ..., *sizes) of (time, ...), without attributes; lazy.

    It gets values (series, year) of series that lack the same years, the numbers of the others, and the period's name;
    results are (series, *sizes). Series of fewer values than `fewest`, or than `min_periods`, are NaN. Raises as
    `climatology` does.
    """
    ds = natures.with_natures(ds)
    yearly, freq, parts = by_year(ds, season_year), natures.frequency_of(ds), {}
    for first, last in periods_of(ds, yearly, periods):
        if (years := last - first + 1) < fewest:
            raise ConfigurationError(f"the period {first}-{last} is too short; expected {fewest} years or more.")
        how = partial(_without_gaps, partial(function, period=f"{first}-{last}"), fewest, (*sizes.values(),))
        made = {}
        for name, data in yearly.sel(year=slice(first, last)).items():
            around = natures.around_mean(data, "year")[0] if nature_of(data) == DATE else data
            if data.chunks:
                bytes_read = _BLOCK_BYTES * years * data.dtype.itemsize // (8 * math.prod(sizes.values()))
                with dask.config.set({"array.chunk-size": bytes_read}):
                    cut = around.variable.chunk({dim: -1 if dim == "year" else "auto" for dim in data.dims})
                    around = around.copy(data=cut.data)
            cores: Any = {"input_core_dims": [["year"]], "output_core_dims": [[*sizes]], "output_dtypes": [float]}
            lazy: Any = {"dask": "parallelized", "dask_gufunc_kwargs": {"output_sizes": sizes}}
            enough = data.notnull().sum("year") >= least_years(min_periods, years, freq, data)
            results = xr.apply_ufunc(how, around, **cores, **lazy).where(enough).transpose(*enough.dims, *sizes)
            made[name] = results.astype(np.result_type(data.dtype, np.float32)).drop_attrs(deep=False)
        parts[f"{first}-{last}"] = xr.Dataset(made)
    whole: xr.Dataset = join(parts.values(), xr.Variable(HORIZON, [*parts]))
    return whole.assign_attrs(ds.attrs | ({SEASON_YEAR: season_year} if freq.startswith("QS") else {}))


def _without_gaps(function: Callable[..., Any], fewest: int, shape: tuple[int, ...], values: np.ndarray) -> np.ndarray:
    """Return the function's results (..., *shape) for (..., year)."""
    flat = values.reshape(-1, values.shape[-1]).astype(float)
    made = np.full((len(flat), *shape), np.nan)
    known, pattern = np.unique(np.isfinite(flat), axis=0, return_inverse=True)
    for at, there in enumerate(known):
        rows, count = np.flatnonzero(pattern.ravel() == at), int(there.sum())
        # Pairs of years, or values of resamples.
        most = rows.size * count * max(count, math.prod(shape))
        for part in np.array_split(rows, most // _MOST_VALUES + 1) if count >= fewest else ():
            made[part] = function(flat[part][:, there], np.flatnonzero(there))
    return made.reshape(*values.shape[:-1], *shape)


def _theil_sen(values: np.ndarray, years: np.ndarray, period: str = "") -> np.ndarray:
    """Return the median slope a decade and the p-value by Mann and Kendall."""
    earlier, later = np.triu_indices(years.size, 1)
    rises = values[:, later] - values[:, earlier]
    slope, score = np.median(rises / (years[later] - years[earlier]), axis=1), np.sign(rises).sum(axis=1)
    # A group of t equal values takes t (t - 1) (2 t + 5) from the variance: value by value, 6 i² + 12 i after i others.
    others, ties = np.zeros(len(values)), np.zeros(len(values))
    for is_equal in (np.diff(np.sort(values, axis=1), axis=1) == 0).T:
        others = (others + 1) * is_equal
        ties += 6 * others**2 + 12 * others
    variance = (years.size * (years.size - 1) * (2 * years.size + 5) - ties) / 18
    deviations = (np.abs(score) - 1).clip(0) / np.sqrt(np.where(variance > 0, variance, 1))
    return np.stack([10 * slope, 2 * ndtr(-deviations)], axis=1)


def _least_squares(values: np.ndarray, years: np.ndarray, period: str = "") -> np.ndarray:
    """Return the slope of least squares a decade and its p-value."""
    x, y = years - years.mean(), values - values.mean(axis=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        r = ((y @ x) / np.sqrt(x @ x * (y**2).sum(axis=1))).clip(-1, 1)
        t = np.where(np.ptp(values, axis=1) > 0, np.abs(r) * np.sqrt((years.size - 2) / ((1 - r) * (1 + r))), 0)
    return np.stack([10 * (y @ x) / (x @ x), 2 * stdtr(years.size - 2, -t)], axis=1)
