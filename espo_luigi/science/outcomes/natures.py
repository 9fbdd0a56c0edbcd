"""What an indicator is: the table of natures, and what follows for dates and for years of other lengths.

Days of the year lie on a circle, where 31 December is next to 1 January. Counts and amounts of years of 360 or 366 days
are comparable with those of 365 only after scaling.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.science.calendar import calendar_of, canonical

NATURE, DATE, DAYS, RATIO = "nature", "day of the year", "days between dates", "ratio"
# The first row that matches counts: the index of xclim and the variable, [units], the last of the cell methods.
_TABLE = (
    (RATIO, r"(daily_pr|snowfall)_intensity|sdii|thresholded_statistics|_ratio|fraction_|rprctot|precip_seasonality"),
    ("extreme", r"consecutive|(max|mean)_(length|magnitude)|spell_length |prcptot_w|\bc[dw]d\b|m(ax|in)\w* over"),
    ("count", r"\[(d|days?|h|hours?)\]|frequency.* \[1?\]"),
    ("amount", r"\[\S+ (d|days?)\]|\[(?!1?\]|%)[^]]*\] sum|huglin_index|chill_|dryness_index"),
)  # fmt: skip
UNDEFINED = (DATE, RATIO)
"""Natures without a value in years without such days: before the first frost, or without rain."""
_SCALED = (DATE, DAYS, "count", "amount")
# Most products have this calendar, whose numbers stay as they are.
STANDARD = "noleap"
_YEARS = {"360_day": 360.0, STANDARD: 365.0, "standard": 365.2425, "all_leap": 366.0}
_MONTHS = np.array([31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])
NAMES = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
INITIALS = "JFMAMJJASOND"


def nature_of(data: xr.DataArray, index: str = "") -> str:
    """Return what a variable is: "day of the year", "count", "amount", "extreme", "ratio", "value" (all else).

    By the attribute `nature`; else by CF's attributes, and the name of the variable and of xclim's `index`.
    """
    attrs = data.attrs
    if NATURE in attrs:
        return str(attrs[NATURE])
    if attrs.get("standard_name") == DATE.replace(" of the ", "_of_") or attrs.get("is_dayofyear"):
        return DATE
    last = re.sub(r".*time: ", "", str(attrs.get("cell_methods", "")))
    text = f"{index} {data.name} [{attrs.get('units', '')}] {last}"
    return next((nature for nature, pattern in _TABLE if re.search(pattern, text)), "value")


def with_natures(ds: xr.Dataset, indices: Mapping[str, str] | None = None) -> xr.Dataset:
    """Return variables with the attribute `nature` and, where the year's length matters, `calendar`; lazy."""
    made = {}
    for name, data in ds.items():
        attrs = {**data.attrs, NATURE: nature_of(data, (indices or {}).get(str(name), ""))}
        if attrs[NATURE] in _SCALED and "time" in data.dims:
            attrs.setdefault("calendar", calendar_of(data))
        made[name] = data.assign_attrs(attrs)
    return ds.assign(made)


def frequency_of(ds: xr.Dataset) -> str:
    """Return the frequency, which must begin with the first of a month and divide the year."""
    calendar_of(ds)
    freq = ds.attrs.get("cat:xrfreq") or (xr.infer_freq(ds["time"]) if ds.sizes["time"] > 2 else None)
    if not re.fullmatch(r"(YS|QS)(-[A-Z]{3})?|MS", freq or ""):
        raise DataError(f"the series has the frequency {freq}; expected years, seasons or months: YS-JAN, QS-DEC, MS.")
    return str(freq)


def on_standard_year(ds: xr.Dataset) -> xr.Dataset:
    """Return counts, amounts and days of the year of other calendars on a year of 365 days; lazy.

    Counts and amounts of seasons and months are scaled by the days of these. The attribute `calendar` of a variable
    tells its days; without it and without `time`, nothing is scaled. Other natures stay.

    References
    ----------
    Days of the year: `xclim.core.calendar.convert_doy` with `align_on="year"`.
    """
    ds = with_natures(ds)
    made = {}
    for name, data in ds.items():
        if data.attrs[NATURE] not in _SCALED or "calendar" not in data.attrs:
            continue
        attrs = {**data.attrs, "calendar": STANDARD, "standard_year": "365 days, to which others are scaled"}
        if canonical(data.attrs["calendar"]) != STANDARD:
            data = (data * _factor(data, ds)).astype(np.result_type(data.dtype, np.float32))
        made[name] = data.assign_attrs(attrs)
    return ds.assign(made)


def _factor(data: xr.DataArray, ds: xr.Dataset) -> Any:
    """Return the days of the same months in the standard year by those in the variable's calendar."""
    calendar, time = canonical(data.attrs["calendar"]), data["time"].dt if "time" in data.dims else None
    if data.attrs[NATURE] in (DATE, DAYS):
        if time is None or calendar != "standard":
            return _YEARS[STANDARD] / _YEARS[calendar]
        # A date before the first of the period is one of the next year.
        return 365 / (365 + _leap(time.year + (data < time.dayofyear)))
    dim, starts, several = "", np.array([0]), 12
    if time is not None:
        dim, starts, several = "time", time.month.values - 1, {"Y": 12, "Q": 3, "M": 1}[frequency_of(ds)[0]]
    elif "season" in data.dims:
        dim, starts, several = "season", np.array([(2 * INITIALS).index(one) for one in data["season"].values]), 3
    elif "month" in data.dims:
        dim, starts, several = "month", np.array([NAMES.index(one) for one in data["month"].values]), 1
    months = (starts[:, None] + np.arange(several)) % 12
    standard = _MONTHS[months].sum(1)
    leap = _YEARS[calendar] - 365 if time is None or calendar != "standard" else _leap(time.year.values + (starts > 1))
    own = 30 * several if calendar == "360_day" else standard + leap * (months == 1).any(1)
    ratio = standard / own
    return xr.DataArray(ratio, dims=dim) if dim else float(ratio[0])


def _leap(year: Any) -> Any:
    return ((year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))) * 1


def days_of_year(data: xr.DataArray) -> float:
    """Return the days of a year of the variable's calendar."""
    return _YEARS[canonical(data.attrs.get("calendar") or (calendar_of(data) if "time" in data.dims else STANDARD))]


def circular(dates: xr.DataArray, mean: Callable[[xr.DataArray], xr.DataArray]) -> tuple[xr.DataArray, xr.DataArray]:
    """Return the circular mean and standard deviation of days of the year, by a function for a linear mean; lazy.

    NaN where dates have no mean: spread evenly over the year. As `scipy.stats.circmean` and `circstd`.
    """
    turn = 2 * np.pi / days_of_year(dates)
    angle: Any = dates.astype(float) * turn
    x, y = mean(np.cos(angle)), mean(np.sin(angle))
    length: Any = np.hypot(x, y)
    at: Any = np.arctan2(y, x) / turn
    at = at.where(length > 1e-6).assign_attrs(dates.attrs)
    return in_year(at), (-2 * np.log(length.where(length > 0).clip(max=1))) ** 0.5 / turn


def unwrapped(dates: xr.DataArray, center: xr.DataArray) -> xr.DataArray:
    """Return dates as days from half a year before to half a year after a center."""
    year = days_of_year(dates)
    return (center + (dates - center + year / 2) % year - year / 2).rename(dates.name).assign_attrs(dates.attrs)


def around_mean(
    dates: xr.DataArray, dims: str | list[str], weight: xr.DataArray | None = None
) -> tuple[xr.DataArray, xr.DataArray, xr.DataArray]:
    """Return dates within half a year of their circular mean over dimensions, this mean and the deviation; lazy."""
    center, spread = circular(dates, lambda part: (part if weight is None else part.weighted(weight)).mean(dims))
    return unwrapped(dates, center), center, spread


def in_year(dates: xr.DataArray) -> xr.DataArray:
    """Return dates as days of the year, from 1 up to the year's length plus 1."""
    return ((dates - 1) % days_of_year(dates) + 1).assign_attrs(dates.attrs)


def as_days(data: xr.DataArray) -> xr.DataArray:
    """Return a difference or spread of dates with its attributes: a number of days."""
    kept = {key: value for key, value in data.attrs.items() if key not in ("standard_name", "is_dayofyear")}
    return data.drop_attrs(deep=False).assign_attrs({**kept, "units": "days", NATURE: DAYS})


def means_of(ds: xr.Dataset, mean: Callable[[xr.Dataset], xr.Dataset]) -> xr.Dataset:
    """Return a linear mean of variables, of days of the year the circular mean; lazy."""
    dates = {name: data for name, data in ds.items() if nature_of(data) == DATE}
    of = {name: circular(data, lambda part: mean(part.to_dataset(name="x"))["x"])[0] for name, data in dates.items()}
    return mean(ds).assign(of)
