"""Types of texts with a meaning that is checked: thresholds with their units, units and frequencies."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from espo_luigi.errors import DataError, nearest

# Asking the registry of units costs seconds, and these are what a configuration nearly always has.
# By what converts to each other, precipitation as depth or mass through the density of water.
_CONVERTIBLE = (
    ("K", "degC", "C"),
    ("mm d-1", "mm/d", "mm day-1", "mm/day", "kg m-2 s-1", "kg m-2 d-1", "m s-1", "km h-1"),
    ("mm", "kg m-2", "m"),
    ("1", "%", "kg kg-1", "g kg-1"),
    ("Pa", "hPa"),
    ("W m-2",),
)
FAMILIAR_UNITS = tuple(unit for units in _CONVERTIBLE for unit in units)


def _known_unit(text: str) -> str:
    """Raise ValueError unless `text` is a unit."""
    if text not in FAMILIAR_UNITS:
        from espo_luigi.science.units import threshold_in

        try:
            threshold_in(f"1 {text}", text)
        except DataError:
            near = nearest(text, FAMILIAR_UNITS)
            raise ValueError(f"{text!r} is not a unit; expected CF units such as K or mm d-1{near}") from None
    return text


def _as_threshold(value: Any) -> str:
    number, _, unit = str(value).strip().partition(" ")
    if not isinstance(value, str) or not unit.strip() or not _NUMBER.fullmatch(number):
        raise ValueError("expected a number, a space and a unit, such as 0.01 mm d-1")
    if not math.isfinite(float(number)):
        raise ValueError("expected a finite number")
    _known_unit(unit.strip())
    return value


def _as_positive_threshold(value: Any) -> str:
    text = _as_threshold(value)
    if float(text.split()[0]) <= 0:
        raise ValueError("expected a number above 0, a space and a unit, such as 0.01 mm d-1")
    return text


# Not all that Python takes for a number: neither nan, nor inf, nor 1_000.
_NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")

Unit = Annotated[str, AfterValidator(_known_unit)]
Threshold = Annotated[str, BeforeValidator(_as_threshold)]
PositiveThreshold = Annotated[str, BeforeValidator(_as_positive_threshold)]


def converts(threshold: str, units: str) -> bool:
    """Whether a threshold, a number and a unit, can be compared with a series in `units`."""
    unit = threshold.strip().partition(" ")[2].strip()
    if unit in FAMILIAR_UNITS and units in FAMILIAR_UNITS:
        return any(unit in group and units in group for group in _CONVERTIBLE)
    from espo_luigi.science.units import threshold_in

    try:
        threshold_in(threshold, units)
    except DataError:
        return False
    return True


# As pandas writes what xarray infers; `fx` is what catalogues have for fields without time.
_FREQUENCIES = ("D", "h", "min", "s", "W", "MS", "ME", "M", "QS", "QE", "Q", "YS", "YE", "Y", "AS", "A", "fx")
_IN_WORDS = {
    "d": "D", "day": "D", "daily": "D", "mon": "MS", "month": "MS", "monthly": "MS", "yr": "YS", "year": "YS",
    "yearly": "YS", "annual": "YS", "hr": "h", "hour": "h", "hourly": "h",
}  # fmt: skip
_ANCHORED = re.compile(
    r"([1-9]\d*)?(D|h|H|min|s|MS|ME|M|"
    r"W(-(MON|TUE|WED|THU|FRI|SAT|SUN))?|"
    r"(QS|QE|Q|YS|YE|Y|AS|A)(-(JAN|FEB|MAR|APR|MAY|JUN|JUL|AUG|SEP|OCT|NOV|DEC))?)|fx"
)


def _known_frequency(text: str) -> str:
    if not _ANCHORED.fullmatch(text):
        near = nearest(_IN_WORDS.get(text.lower(), text), _FREQUENCIES)
        raise ValueError(f"expected a frequency as pandas writes it, such as D, 6h, MS or YS-JAN{near}")
    return text


Frequency = Annotated[str, AfterValidator(_known_frequency)]
