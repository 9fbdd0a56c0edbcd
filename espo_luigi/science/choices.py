"""What some arguments may be, for the functions that take them and for the configuration; imports nothing heavy."""

from __future__ import annotations

from typing import Any, Literal, get_args

Method = Literal[
    "DetrendedQuantileMapping", "EmpiricalQuantileMapping", "QuantileDeltaMapping", "LOCI", "Scaling"
]  # fmt: skip
METHODS: tuple[str, ...] = get_args(Method)

AlignOn = Literal["year", "date"]

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

# With xclim's own prefix, and without.
MissingMethod = Literal[
    "any", "at_least_n_valid", "pct", "wmo", "missing_any", "missing_pct", "missing_wmo"
]  # fmt: skip

# What may be wrong with raw files, worst first. The first of them no dataset can be made of.
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
SuspiciousInput = Literal[
    "mislabelled_units",
    "values_out_of_range",
    "tasmax_below_tasmin",
    "maps_without_data",
    "constant_maps",
    "coordinates_by_round_off",
]
InputProblem = Literal[UnusableInput, SuspiciousInput]
INPUT_PROBLEMS: tuple[str, ...] = get_args(InputProblem)


def each_period(periods: Any) -> list[Any]:
    """Return one period (`[first, last]`) or several as a list of them, unchecked."""
    several = isinstance(periods, list | tuple) and periods and isinstance(periods[0], list | tuple)
    return list(periods) if several else [periods]
