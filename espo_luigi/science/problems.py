"""Kinds of health checks, of problems of raw files, and of flags: their names and words; imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

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


# What may be wrong with raw files, worst first. Of the first kinds no dataset can be made.
UnusableInput = Literal[
    "unreadable_files",
    "units",
    "calendars",
    "grids",
    "steps_not_daily",
    "missing_days",
    "double_days",
    "days_out_of_order",
]
# Those of the second fail unless a configuration lets them through.
DoubtfulInput = Literal[
    "missing_chunks",
    "fill_values",
    "extrapolation",
    "mislabelled_units",
    "constant_series",
    "impossible_values",
    "crossed_temperatures",
    "too_few_days",
]
SuspiciousInput = Literal[
    "values_out_of_range",
    "tasmax_below_tasmin",
    "missing_values",
    "maps_without_data",
    "constant_maps",
    "cells_without_first_day",
    "coordinates_by_round_off",
]
InputProblem = Literal[UnusableInput, DoubtfulInput, SuspiciousInput]
INPUT_PROBLEMS: tuple[str, ...] = get_args(InputProblem)

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
