"""Periods, as the configuration and functions have them; imports nothing heavy."""

from __future__ import annotations

import re
from typing import Any, Literal

# How days are matched between calendars.
AlignOn = Literal["year", "date"]
_DATE = re.compile(r"([0-9]{4})(?:-([0-9]{1,2}))?(?:-([0-9]{1,2}))?(?:[T ][0-9:.]*)?")
_MONTHS_OF_31_DAYS = (1, 3, 5, 7, 8, 10, 12)


def each_period(periods: Any) -> list[Any]:
    """Return a single period (`[first, last]`) or several as a list of periods, unchecked."""
    several = isinstance(periods, list | tuple) and periods and isinstance(periods[0], list | tuple)
    return list(periods) if several else [periods]


def date_of(text: str) -> tuple[int, int, int]:
    """Return a date's year, month and day (the latter two may be missing); raise ValueError if the text is no date."""
    parts = _DATE.fullmatch(str(text))
    year, month, day = (int(part or 1) for part in parts.groups()) if parts else (0, 0, 0)
    # 30 February is a day where all months have 30.
    if not (year and 1 <= month <= 12 and 1 <= day <= (31 if month in _MONTHS_OF_31_DAYS else 30)):
        raise ValueError("expected a date, such as 1950-01-01")
    return year, month, day
