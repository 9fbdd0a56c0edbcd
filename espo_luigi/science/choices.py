"""What some arguments may be, for the functions that take them and for the configuration; imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

AlignOn = Literal["year", "date"]

# tasmin = tasmax - dtr (2024), exchange where tasmax is below tasmin (ESPO v2), or both (its variant DQM-dtr).
Consistency = Literal["derived", "swap", "dqm-dtr"]
# The variables that are made so, and the adjusted variables that each way takes.
TEMPERATURES = ("tasmax", "tasmin")
NEEDED_FOR: Mapping[str, tuple[str, ...]] = {
    "derived": ("tasmax", "dtr"),
    "swap": ("tasmax", "tasmin"),
    "dqm-dtr": ("tasmax", "tasmin", "dtr"),
}

Check = Literal[
    "structure",
    "calendar",
    "start_date",
    "end_date",
    "variables_and_units",
    "cfchecks",
    "freq",
    "missing",
    "flags",
    "land",
]
CHECKS: tuple[str, ...] = get_args(Check)

# xESMF's ways to put values outside of the source's grid.
ExtrapMethod = Literal["inverse_dist", "nearest_s2d"]
# xESMF's words for the interpolation.
RegridMethod = Literal["bilinear", "conservative", "conservative_normed"]

# With xclim's own prefix, and without.
MissingMethod = Literal[
    "any", "some_but_not_all", "at_least_n_valid", "pct", "wmo",
    "missing_any", "missing_some_but_not_all", "missing_pct", "missing_wmo",
]  # fmt: skip

# What the adjustment does to a day's value besides mapping it between quantiles: noise takes the place of a value under
# a threshold, a dry day is made wet, a value beyond the calibration's quantiles gets the last one's factor, a value in
# the tail is kept. The kernels count days in this order.
TREATED = "treated"
# The same by day, as bits.
MARKS = "marks"
TREATMENTS = ("jittered", "made_wet", "extrapolated", "limited")

LAND_FLAG = "land_cells_without_data"


@dataclass(frozen=True)
class Flag:
    """A data flag in a few words; `side` and `units` describe its threshold or its values."""

    title: str
    meaning: str = ""
    side: Literal["above", "below", ""] = ""
    units: str = ""


FLAGS: Mapping[str, Flag] = {
    "negative_accumulation_values": Flag("negative sums", "negative precipitation", "below", "mm d-1"),
    "outside_n_standard_deviations_of_climatology": Flag("values far from their day's mean"),
    "percentage_values_outside_of_bounds": Flag("percentages beyond 0-100", units="%"),
    "tas_below_tasmin": Flag("means under minima"),
    "tas_exceeds_tasmax": Flag("means over maxima"),
    "tasmax_below_tasmin": Flag(
        "maxima under minima", "tasmax below tasmin (the value is tasmax minus tasmin)", "below", "K"
    ),
    "temperature_extremely_high": Flag("impossible heat", "warmer than {threshold:g} °C", "above", "degC"),
    "temperature_extremely_low": Flag("impossible cold", "colder than {threshold:g} °C", "below", "degC"),
    "values_op_thresh_repeating_for_n_or_more_days": Flag("values beyond a threshold that repeat"),
    "values_repeating_for_n_or_more_days": Flag("values that repeat"),
    "very_large_precipitation_events": Flag(
        "impossible rain", "more precipitation than {threshold:g} mm d⁻¹", "above", "mm d-1"
    ),
    "wind_values_outside_of_bounds": Flag("impossible winds", units="m s-1"),
    LAND_FLAG: Flag("cells without data", "land cells of the reference without data on all days of a chunk of time"),
}


def each_period(periods: Any) -> list[Any]:
    """Return a single period (`[first, last]`) or several as a list of periods, unchecked."""
    several = isinstance(periods, list | tuple) and periods and isinstance(periods[0], list | tuple)
    return list(periods) if several else [periods]


# The checks of `espo validate`.
_OfFiles = Literal["checksums", "files", "times", "cells", "variables", "bounds"]
Validated = Literal[_OfFiles, "magnitudes", "outcomes", "cf", "flags", "audit", "catalogue"]
