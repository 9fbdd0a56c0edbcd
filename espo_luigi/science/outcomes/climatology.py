"""Climatologies: statistics of yearly, seasonal or monthly values over windows of years."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import xarray as xr

from espo_luigi.errors import ConfigurationError, DataError
from espo_luigi.science.chunks import is_lazy, join, rechunk
from espo_luigi.science.outcomes import natures
from espo_luigi.science.outcomes.natures import rules_of
from espo_luigi.science.periods import each_period

HORIZON, LEVEL, MEMBER = "horizon", "warming_level", "realization"
Periods = Sequence[str | int] | Sequence[Sequence[str | int]]
OPERATIONS = ("mean", "std", "median", "min", "max", "sum")
# Of indicators that some years leave undefined, as of normals by the WMO (No. 1203).
_SHARE = 0.8
SEASON_YEAR = "season_year"
"""Attribute of seasonal statistics: of which month's year DJF and NDJ are, "january" or "december"."""
SeasonYear = Literal["december", "january"]


def climatology(
    ds: xr.Dataset,
    *,
    op: str | Mapping[str, Mapping[str, float]] = "mean",
    window: int | None = None,
    stride: int = 1,
    periods: Periods | None = None,
    min_periods: int | float | None = None,
    season_year: SeasonYear = "january",
) -> xr.Dataset:
    """Return a statistic of each window of years, season by season or month by month.

    Dimensions (time, ...) in, (horizon, ...) out, with `season` ("DJF") or `month` ("JAN") behind `horizon` for
    seasonal and monthly series. Horizons are named by their years, "1991-2020"; years that do not begin in January are
    those in which they begin. The variable `tx_max` becomes `tx_max_clim_mean`. Units stay. Any calendar;
    lazy on Dask. A mean of standard deviations is the root of the mean variance. Days of the year have circular
    statistics: the mean and standard deviation of directions, and others about that mean; spreads are in days. Where a
    window may lack years, `..._clim_mean_years` counts those with a value.

    Parameters
    ----------
    op
        "mean", "std" (of the population), "median", "min", "max", "sum", or a percentile: "p90", or as xscen has it,
        {"quantile": {"q": 0.9}}.
    window
        Years of a window; by default those of the first period.
    stride
        Years from a window to the next.
    periods
        First and last year of the periods from which windows are taken, both included; by default all years.
    min_periods
        Years with a value that a window needs, or their fraction of the window (float). By default all; of periods that
        cross the end of the year, all but one; of days of the year and ratios, which some years lack, 0.8.
    season_year
        Whether DJF and NDJ belong to the year of their January, or of their December.

    Raises
    ------
    ConfigurationError
        If the operation is unknown, or none of a variable's nature (`natures`), or the window, stride or minimum is
        not possible.
    DataError
        If the data lack a year of a period, or the series is neither yearly, seasonal nor monthly.

    References
    ----------
    `xscen.climatological_op`, of January with `year_start_month=12`.
    """
    name, how = _operation(op)
    ds, freq = natures.with_natures(ds), natures.frequency_of(ds)
    for data in ds.values():
        natures.check_allowed(data, "operations", name if name in OPERATIONS else "percentiles")
    yearly = by_year(ds, season_year)
    windows = horizons(periods_of(ds, yearly, periods), window, stride)
    length = windows[0][1] - windows[0][0] + 1
    needed = {str(one): least_years(min_periods, length, freq, data) for one, data in yearly.items()}
    parts = [_of_window(yearly.sel(year=slice(*ends)), name, how, needed) for ends in windows]
    counts = join([yearly.sel(year=slice(*ends)).notnull().sum("year", dtype="int16") for ends in windows], HORIZON)
    joined: xr.Dataset = join(parts, HORIZON)
    joined = joined.assign_coords({HORIZON: [f"{first}-{last}" for first, last in windows]})
    made = {
        f"{variable}_clim_{name}": _described(data, ds[str(variable)], name, length, needed[str(variable)])
        for variable, data in joined.items()
    }
    for variable, count in counts.items():
        if np.any(needed[str(variable)] < length):
            attrs = {"long_name": f"Years with a value of {variable}", "units": "1", natures.NATURE: natures.YEARS}
            made[f"{variable}_clim_{name}_years"] = count.transpose(HORIZON, ...).assign_attrs(attrs)
    return xr.Dataset(made, joined.coords, ds.attrs | ({SEASON_YEAR: season_year} if freq.startswith("QS") else {}))


def _operation(op: str | Mapping[str, Mapping[str, float]]) -> tuple[str, Callable[[xr.DataArray], xr.DataArray]]:
    """Return an operation's name and function over the years."""
    name, given = (op, {}) if isinstance(op, str) else next(iter(op.items()))
    share = given.get("q") if name == "quantile" else None
    if matched := re.fullmatch(r"p(\d{1,2}(?:\.\d+)?)", name):
        share = float(matched[1]) / 100
    if isinstance(op, str) or len(op) == 1:
        if isinstance(share, int | float) and 0 <= share <= 1:
            return f"p{share * 100:g}", lambda data: data.quantile(share, "year", skipna=True).drop_vars("quantile")
        if name in OPERATIONS and not given:
            return name, lambda data: getattr(data, name)("year", skipna=True)
    raise ConfigurationError(f"op {op!r} is unknown; expected one of {', '.join(OPERATIONS)}, or a percentile: p90.")


def horizons(ranges: Sequence[tuple[int, int]], window: int | None, stride: int) -> list[tuple[int, int]]:
    """Return the first and last years of the windows in some periods; raises `ConfigurationError` if there is none."""
    length = window or ranges[0][1] - ranges[0][0] + 1
    if length < 1 or stride < 1:
        raise ConfigurationError(f"window {length} and stride {stride} are years; expected 1 or more.")
    begins = dict.fromkeys(at for first, last in ranges for at in range(first, last - length + 2, stride))
    if not begins:
        raise ConfigurationError(f"no window of {length} years is in {list(ranges)}; choose a shorter one.")
    return [(at, at + length - 1) for at in begins]


def periods_of(ds: xr.Dataset, yearly: xr.Dataset, periods: Periods | None = None) -> list[tuple[int, int]]:
    """Return the first and last years of periods, by default all years of (time, ...) that are in its `by_year`, too.

    Raises `DataError` if a period has other years.
    """
    years = sorted({*map(int, yearly["year"].values)} & {*map(int, ds["time"].dt.year.values)})
    if not periods:
        return [(years[0], years[-1])]
    found = [(int(str(first)), int(str(last))) for first, last in each_period(periods)]
    for first, last in found:
        if (lacking := sorted({*range(first, last + 1)} - {*years})) or first > last:
            told = f"which have the years {years[0]}-{years[-1]} and lack {', '.join(map(str, lacking[:3])) or 'none'}"
            raise DataError(f"the period {first}-{last} is not in the data, {told}.")
    return found


def missing_years(ds: xr.Dataset, season_year: SeasonYear = "january") -> str:
    """Return the years, with seasons or months, in which no cell has an indicator, such as "tx_max: 1998 DJF".

    Computes. Years are those from the first to the last of the series.
    """
    yearly = by_year(ds, season_year)
    yearly = yearly.sel(year=slice(*periods_of(ds, yearly)[0]))
    cells = [dim for dim in yearly.dims if dim not in ("year", "season", "month")]
    known = yearly.notnull().any(cells).compute()
    found = {}
    for name, data in known.items():
        at = data.stack(at=data.dims) if data.ndim > 1 else data.rename(year="at")
        found[name] = [" ".join(map(str, np.atleast_1d(one))) for one in at["at"].values[~at.values]]
    return "; ".join(f"{name}: {', '.join(years)}" for name, years in found.items() if years)


def least_years(given: int | float | None, length: int, freq: str, yearly: xr.DataArray) -> Any:
    """Return the years with a value that a window needs, by `min_periods`; (season) where they differ.

    `yearly` is by `by_year`. Raises `ConfigurationError`.
    """
    if given is None and rules_of(yearly).undefined:
        given = _SHARE
    if given is None:
        crosses = (
            yearly["season"].isin(["DJF", "NDJ"]).drop_attrs()
            if "season" in yearly.dims
            else freq[3:] not in ("", "JAN")
        )
        return np.maximum(1, length - crosses)
    if isinstance(given, float):
        if not 0 < given <= 1:
            raise ConfigurationError(f"min_periods {given} is a fraction; expected more than 0 and at most 1.")
        return max(1, int(given * length))
    if not 1 <= given <= length:
        raise ConfigurationError(f"min_periods {given} is not possible; expected 1 to the window's {length} years.")
    return given


def by_year(ds: xr.Dataset, season_year: SeasonYear = "january") -> xr.Dataset:
    """Return (year, season or month, ...) of (time, ...), of years that have any; raises as `climatology`."""
    freq = natures.frequency_of(ds)
    month, year = ds["time"].dt.month.values, ds["time"].dt.year.values
    if freq.startswith("QS") and season_year == "january":
        # From the season that has January on.
        crossing = month > 10
        year = year + crossing
        month = np.where(crossing, month - 12, month)
    starts, column = np.unique(month, return_inverse=True)
    years, row = np.unique(year, return_inverse=True)
    places = np.full((years.size, starts.size), -1)
    places[row, column] = np.arange(year.size)
    data = rechunk(ds, {"time": -1}) if is_lazy(ds) else ds
    timed = data[[name for name, one in data.data_vars.items() if "time" in one.dims]].drop_vars("time")
    timed = timed.drop_vars([name for name, coord in timed.coords.items() if "time" in coord.dims])
    at = xr.DataArray(places, {"year": years}, ("year", "part"))
    made = timed.isel(time=at).where(at >= 0)
    if freq[0] == "Y":
        return made.squeeze("part")
    if freq[0] == "Q":
        names = [(2 * natures.INITIALS)[first % 12 :][:3] for first in starts - 1]
        return made.rename(part="season").assign_coords(
            season=("season", names, {"comment": f"DJF and NDJ belong to the year of their {season_year.capitalize()}"})
        )
    return made.assign_coords(part=[natures.NAMES[first] for first in starts - 1]).rename(part="month")


def _of_window(
    ds: xr.Dataset, name: str, how: Callable[[xr.DataArray], xr.DataArray], needed: Mapping[str, Any]
) -> xr.Dataset:
    made = {}
    for variable, data in ds.items():
        if rules_of(data).circular:
            dates, mean, spread = natures.around_mean(data, "year")
            value = {"mean": mean, "std": spread}.get(name)
            value = natures.in_year(how(dates).assign_attrs(data.attrs)) if value is None else value
        else:
            value = how(data**2) ** 0.5 if name == "mean" and rules_of(data).squared else how(data)
        made[variable] = value.where(data.notnull().sum("year") >= needed[str(variable)]).drop_attrs(deep=False)
    return xr.Dataset(made)


def _described(data: xr.DataArray, source: xr.DataArray, name: str, length: int, least: Any) -> xr.DataArray:
    """Return the statistic with attributes, (horizon, ...)."""
    attrs = dict(source.attrs)
    for key in ("long_name", "description"):
        if key in attrs:
            attrs[key] = f"{length}-year climatological {name} of {attrs[key]}".rstrip(".")
    if name in ("mean", "median", "sum"):
        attrs["cell_methods"] = f"{attrs.get('cell_methods', '')} time: {name} over years".strip()
    each = np.asarray(least)
    fewer = " (the season that crosses the end of the year: one less)" if np.ptp(each) else ""
    told = f"{length}-year climatological {name}, of at least {each.max()} years{fewer}"
    attrs["history"] = "\n".join(filter(None, [told, attrs.get("history")]))
    made = data.assign_attrs(attrs).transpose(HORIZON, ...)
    return natures.as_spread(made) if name == "std" else made
