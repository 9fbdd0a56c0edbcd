"""What an indicator is: the table of natures, which decides what may be done with each quantity.

Counts, amounts and degree days are scaled to a year of 365 days, and dates placed in it. An indicator declares its
nature by the attribute `nature`, in xclim's format `cf_attrs: {nature: degree days}`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import xarray as xr

from espo_luigi.errors import ConfigurationError, DataError
from espo_luigi.science.calendar import calendar_of, canonical
from espo_luigi.science.units import as_difference, is_difference, is_temperature

NATURE, DATE, DAYS, DIFFERENCE = "nature", "day of the year", "days between dates", "difference"
RATIO, YEARS = "ratio", "years"
_STATISTICS = ("mean", "std", "median", "min", "max", "percentiles")
_SUMMED = (*_STATISTICS, "sum")


@dataclass(frozen=True)
class Nature:
    """A kind of quantity, and what follows.

    `pattern` finds it in xclim's index, the variable's name, CF's cell methods, [units], and the last cell method.
    `operations` are the statistics over years, `changes` the kinds of change that exist. `scaled` says what the
    calendar's year changes: amounts, dates, or nothing (""). Some years have no value if it is `undefined` in years
    without such days. A mean over years is that of squares if it is `squared`; all means are `circular` or linear.
    Reports show `shown_units`, by default the indicator's, and changes in `colours`, by default by their names.
    """

    word: str
    pattern: str
    operations: tuple[str, ...] = _STATISTICS
    changes: tuple[str, ...] = ("+", "/", "%")
    scaled: Literal["", "amount", "date"] = ""
    undefined: bool = False
    circular: bool = False
    squared: bool = False
    shown_units: str = ""
    colours: str = ""


NATURES: Mapping[str, Nature] = {
    one.word: one
    for one in (  # the first pattern that matches counts
        Nature(DATE, r" \[day_of_year\]", changes=("+",), scaled="date", undefined=True, circular=True, colours="PuOr"),
        Nature(DAYS, r"^lag_", changes=("+",), scaled="date", undefined=True, colours="PuOr"),
        Nature(
            RATIO,
            r"(daily_pr|snowfall)_intensity|sdii|thresholded_statistics|_ratio|fraction_|rprctot|_seasonality"
            r"|aridity_index|isothermality",
            undefined=True,
        ),
        Nature("standard deviation", r"(?<![a-zA-Z])(std|stdev|standard.deviation)(?![a-zA-Z])", squared=True),
        Nature(DIFFERENCE, r"(range|variability|difference).* \[K\]"),
        Nature("temperature", r" \[K\]", changes=("+",), shown_units="degC"),
        Nature(
            "extreme",
            r"consecutive|(max|mean)_(length|magnitude)|spell_length |prcptot_w|\bc[dw]d\b|\] m(ax|in)\w* over"
            r"|^\w+_m(ax|in) |^max_",
        ),
        Nature("share", r"_prop .*\[1?\]|(frequency|days|\dp) .*\[%\]"),
        Nature("count", r"\[(d|days?|h|hours?)\]|frequency.* \[1?\]", _SUMMED, scaled="amount"),
        Nature("degree days", r"\[(K|\w*deg\w*) (d|days?)\]|huglin_index|degree_days", _SUMMED, scaled="amount"),
        Nature("amount", r"\[\S+ (d|days?)\]|\[(?!1?\]|%)[^]]*\] sum|chill_|dryness_index", _SUMMED, scaled="amount"),
        Nature("rate", r"precip_average|\[.*(/(s|h|d(ay)?)|\b(s|second|h|d|day)-1)\]"),
        Nature("index", r"\[1?\]", changes=("+",)),
        Nature("value", ""),
        Nature(YEARS, "", operations=(), changes=()),
    )
}  # fmt: skip
_OF_TEMPERATURES = ("temperature", DIFFERENCE, "standard deviation")
# Most products have this calendar, whose numbers stay as they are.
STANDARD = "noleap"
_YEARS = {"360_day": 360.0, STANDARD: 365.0, "standard": 365.2425, "all_leap": 366.0}
_MONTHS = np.array([31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])
NAMES = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
INITIALS = "JFMAMJJASOND"


def nature_of(data: xr.DataArray, index: str = "") -> str:
    """Return what a variable is, a word of `NATURES`.

    By the attribute `nature`; else by CF's attributes, and the name of the variable and of xclim's `index`. Raises
    `ConfigurationError` if the attribute is none of the words.
    """
    attrs = data.attrs
    if NATURE in attrs:
        if attrs[NATURE] not in NATURES:
            words = ", ".join(word for word in NATURES if word != YEARS)
            raise ConfigurationError(
                f"`cf_attrs.nature` of {data.name}: got {attrs[NATURE]!r}, expected one of {words}."
            )
        return str(attrs[NATURE])
    methods, units = str(attrs.get("cell_methods", "")), attrs.get("units", "")
    if attrs.get("standard_name") == "day_of_year" or attrs.get("is_dayofyear"):
        units = "day_of_year"
    words = f"{attrs.get('long_name')} {attrs.get('description')}".lower()
    methods += " std" * ("standard deviation" in words) + " range" * is_difference(data)
    with suppress(DataError):
        units = "K" if is_temperature(data) else units
    text = f"{index} {data.name} {methods} [{units}] {re.sub(r'.*time: ', '', methods)}".strip()
    return next(word for word, one in NATURES.items() if re.search(one.pattern, text))


def rules_of(data: xr.DataArray) -> Nature:
    """Return the row of a variable's nature; raises as `nature_of`."""
    return NATURES[nature_of(data)]


def without_years(ds: xr.Dataset) -> xr.Dataset:
    """Return the variables that have changes and ensembles: all but numbers of years."""
    return ds[[name for name, data in ds.items() if nature_of(data) != YEARS]]


def check_allowed(data: xr.DataArray, what: Literal["operations", "changes"], asked: str) -> None:
    """Raise `ConfigurationError` if a statistic over years, or a kind of change, does not exist for a variable."""
    if asked not in (allowed := getattr(rules_of(data), what)):
        raise ConfigurationError(
            f"{data.name} is of the nature {nature_of(data)}, whose {what} are {', '.join(allowed)}; got {asked}. "
            "Choose one of them."
        )


def check_declared(data: xr.DataArray) -> None:
    """Raise `ConfigurationError` if a variable has the attribute `nature` of another quantity than its units have."""
    nature = nature_of(data)
    if NATURE in data.attrs and is_temperature(data) and nature not in _OF_TEMPERATURES:
        raise ConfigurationError(
            f"`cf_attrs.nature` of {data.name}: got {nature} in {data.attrs['units']}, expected for temperatures one "
            f"of {', '.join(_OF_TEMPERATURES)}."
        )


def with_natures(ds: xr.Dataset, indices: Mapping[str, str] | None = None) -> xr.Dataset:
    """Return variables with the attribute `nature` and, where the year's length matters, `calendar`; lazy."""
    made = {}
    for name, data in ds.items():
        attrs = {**data.attrs, NATURE: nature_of(data, (indices or {}).get(str(name), ""))}
        if NATURES[attrs[NATURE]].scaled and "time" in data.dims:
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
        if not rules_of(data).scaled or "calendar" not in data.attrs:
            continue
        attrs = {**data.attrs, "calendar": STANDARD, "standard_year": "365 days, to which others are scaled"}
        if canonical(data.attrs["calendar"]) != STANDARD:
            data = (data * _factor(data, ds)).astype(np.result_type(data.dtype, np.float32))
        made[name] = data.assign_attrs(attrs)
    return ds.assign(made)


def _factor(data: xr.DataArray, ds: xr.Dataset) -> Any:
    """Return the days of the same months in the standard year by those in the variable's calendar."""
    calendar, time = canonical(data.attrs["calendar"]), data["time"].dt if "time" in data.dims else None
    if rules_of(data).scaled == "date":
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


def as_spread(data: xr.DataArray) -> xr.DataArray:
    """Return a difference or spread with the attributes of its values: days, or a difference of temperatures."""
    if rules_of(data).circular:
        kept = {key: value for key, value in data.attrs.items() if key not in ("standard_name", "is_dayofyear")}
        return data.drop_attrs(deep=False).assign_attrs({**kept, "units": "days", NATURE: DAYS})
    is_of_temperatures = "units" in data.attrs and is_temperature(data)
    return as_difference(data).assign_attrs({NATURE: DIFFERENCE}) if is_of_temperatures else data


def means_of(ds: xr.Dataset, mean: Callable[[xr.Dataset], xr.Dataset]) -> xr.Dataset:
    """Return a linear mean of variables, of days of the year the circular mean; lazy."""
    dates = {name: data for name, data in ds.items() if rules_of(data).circular}
    of = {name: circular(data, lambda part: mean(part.to_dataset(name="x"))["x"])[0] for name, data in dates.items()}
    return mean(ds).assign(of)
