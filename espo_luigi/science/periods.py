"""Periods and days, as the configuration and functions have them; imports nothing heavy."""

from __future__ import annotations

from typing import Any, Literal

# How days are matched between calendars.
AlignOn = Literal["year", "date"]


def each_period(periods: Any) -> list[Any]:
    """Return a single period (`[first, last]`) or several as a list of periods, unchecked."""
    several = isinstance(periods, list | tuple) and periods and isinstance(periods[0], list | tuple)
    return list(periods) if several else [periods]
