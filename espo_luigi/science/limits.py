"""Who decides that a value is possible: the kinds of problems with raw files, and the thresholds of all checks.

The limits of a variable's values stand in its row of the table of variables. The predicates here take NumPy arrays;
`possible` applies them to xarray objects. It imports nothing heavy, as the configuration has a key for each kind.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from espo_luigi.science.definitions import source_of
from espo_luigi.science.variables import Limits

# The least share of steps of one day in a daily series: gaps and doubles are few; every twelve hours would be half.
DAILY = 0.6
# The least share of the days, all or the calibration's, on which a cell has to have values.
ENOUGH_DAYS = 0.9
# The largest share of a file's values on which tasmax may be at or below tasmin; so many cells may have it on a
# larger share of their days.
CROSSED = 0.05
# The largest share in any cell: coarse precision leaves a cell of sea ice or polar night many days without a range.
CROSSED_IN_A_CELL = 0.5
# A smaller map may hold a single value by chance, and fewer values of a file may be equal by chance.
CELLS_OF_A_MAP = RECURRING = 9
# In mislabelled units, many numbers are impossible, and none of them is that part.
SHARE_OF_A_FILL = 0.25
# With values that are far from possible on more days than this part, it is the units that are wrong.
MISLABELLED = 0.5
# How far that is, as a part of the possible range's width.
FAR = 0.1
# The share of the range between bounds beyond which a value counts as beyond them: air may be supersaturated.
SLACK = 0.01
# Within a year, some cell is cloudy or humid on some day. Percentages that never exceed this (in %) are fractions of 1
# that are labelled percent, unless they all are 0: the tropics may have no snow, and no sea ice.
DAYS_OF_A_YEAR, FRACTION = 360, 1.5
# A cell that lacks so many days of a simulation may lack data in its product.
DAYS_OF_A_GAP = 360
# Flags: below this share of wet days of a month, the highest quantiles of a sample may be dry, and their ratios of no
# meaning; arid months matter from a share of all amounts on; means need nearly all days of a stretch of years.
FEW_WET_DAYS, MUCH_IN_ARID_MONTHS, NEARLY_ALL_DAYS = 0.02, 0.1, 0.99
# Means of cells over the reference's years differ by far less after an adjustment; units differ by a larger factor.
FACTOR_OF_UNITS = 3
# Takes the place of a range of zero or below. A multiplicative adjustment divides by the lowest quantiles: with noise
# near zero there, it would make thousands of kelvins of the values beside them. Of 0.1 to 2 K, this keeps the adjusted
# ranges of such days nearest to the reference's lowest, where 1 to 6 % of the days have them.
SMALLEST_RANGE_K = 0.5
# Of simulations that `clean_up.problems` names: days with a tasmin up to this are masked.
LOWEST_CREDIBLE_TASMIN_K = 100


@dataclass(frozen=True)
class InputProblem:
    """A kind of problem with raw files: its meaning, what its count counts, and its effect.

    Without `may_warn` no dataset can be made of the files. After a problem that `leaves_gaps`, a scenario may lack
    values on land.
    """

    meaning: str
    counts: Literal["files", "steps", "days", "chunks", "values", "maps", "cells"] = "values"
    effect: Literal["fail", "warn"] = "fail"
    may_warn: bool = True
    leaves_gaps: bool = False


# Worst first.
INPUT_PROBLEMS: Mapping[str, InputProblem] = {
    "unreadable_files": InputProblem(
        "files that are missing, empty, truncated or damaged, or lack the variable or its coordinates",
        "files",
        may_warn=False,
    ),
    "units": InputProblem("units that are absent, unknown or of another quantity", "files", may_warn=False),
    "calendars": InputProblem("a calendar that differs from that of most files", "files", may_warn=False),
    "grids": InputProblem(
        "a grid that differs from the first file's or has no cell in the box; coordinates that are absent or out of "
        "order; a variable that is not numbers on time, latitude and longitude (in any order)",
        "files",
        may_warn=False,
    ),
    "steps_not_daily": InputProblem("steps that are not days", "steps", may_warn=False),
    "missing_days": InputProblem(
        "days that are missing in a file, between files, or at an end of the period", "days", may_warn=False
    ),
    "double_days": InputProblem("days that are there twice, in one file or in two", "days", may_warn=False),
    "days_out_of_order": InputProblem("days after later ones", "days", may_warn=False),
    "missing_chunks": InputProblem(
        "chunks of a Zarr store that are absent: Zarr would read fill values in their place; `warn` suits a writer "
        "that left out chunks of real values, such as days of 0",
        "chunks",
    ),
    "fill_values": InputProblem(
        "an impossible number that recurs (1e20, -9999) and no attribute declares; or a declared fill value that the "
        "variable may have, such as 0 mm of rain: if such values are real, set `xr_open_kwargs: {mask_and_scale: {pr: "
        "false}}`"
    ),
    "extrapolation": InputProblem(
        "a domain that reaches beyond the data's grid by more than `tile_buffer` cells (half a cell without buffer)",
        "files",
    ),
    "mislabelled_units": InputProblem(
        "values far from possible on most of a file's days, precipitation below 1 mm everywhere for five years, "
        f"percentages that are not all 0 and never exceed {FRACTION:g} %, or most values beyond the bounds of an "
        "`additive_space`: the units, the bounds or the fill value are wrong"
    ),
    "constant_series": InputProblem("one value in all cells on all days, or none", "days", leaves_gaps=True),
    "impossible_values": InputProblem(
        "values beyond the table of variables' limits of raw data (temperatures beyond 170 to 353 K, precipitation "
        "below -1 mm or above 3000 mm a day) or beyond the bounds of an `additive_space`, infinite values; of "
        "variables with `repairs`, a warning until `Extract` has repaired them"
    ),
    "crossed_temperatures": InputProblem(
        f"tasmax not above tasmin in more than {100 * CROSSED:g} % of a file's values, on more than {100 * CROSSED:g} "
        f"% of the days in more than {100 * CROSSED:g} % of the cells, or on half of a cell's days"
    ),
    "too_few_days": InputProblem(
        f"cells (of the reference: land) with values on less than {100 * ENOUGH_DAYS:g} % of the days, or of those of "
        "`custom.ref_period`",
        "cells",
        leaves_gaps=True,
    ),
    "values_out_of_range": InputProblem(
        "values that are possible, but beyond the limits of the data flags of `health_checks`", effect="warn"
    ),
    "tasmax_below_tasmin": InputProblem("tasmax below tasmin by however little", effect="warn"),
    "missing_values": InputProblem(
        f"cells that lack values on up to {100 - 100 * ENOUGH_DAYS:g} % of the days; the count is that of the values",
        effect="warn",
        leaves_gaps=True,
    ),
    "maps_without_data": InputProblem("days without a value in any cell", "maps", "warn", leaves_gaps=True),
    "constant_maps": InputProblem(
        f"days with the same value in the whole box of {CELLS_OF_A_MAP} cells or more, except 0 for precipitation",
        "maps",
        "warn",
    ),
    "cells_without_first_day": InputProblem(
        "cells of the reference with data, but none on the first day, which says where land is: they are left out",
        "cells",
        "warn",
    ),
    "coordinates_by_round_off": InputProblem(
        "coordinates up to 1e-4 degrees from the first file's, which are used", "files", "warn"
    ),
}


def is_outside(values: np.ndarray, limits: Limits) -> np.ndarray:
    """Return which values are beyond the limits, which are possible themselves; NaN is not."""
    return (values < limits[0]) | (values > limits[1])


def is_impossible(
    values: np.ndarray, limits: Limits, tasmax: np.ndarray | None = None, needed: np.ndarray | None = None
) -> np.ndarray:
    """Return which values are beyond the limits, infinite, above their `tasmax`, or NaN where a value is needed."""
    wrong = is_outside(values, limits) | np.isinf(values)
    if tasmax is not None:
        wrong |= values > tasmax
    return wrong if needed is None else wrong | (np.isnan(values) & needed)


def expected(limits: Limits, units: str) -> str:
    """Return the possible values in words: ``180 to 340 K``."""
    return f"{limits[0]:g} to {limits[1]:g} {units}".rstrip() if np.isfinite(limits).any() else "finite values"


# The health checks.
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

LAND_FLAG, CROSSED_FLAG = "land_cells_without_data", "tasmax_below_tasmin"


Rank = Literal["do_not_use", "look", "for_information"]
RANKS: tuple[Rank, ...] = get_args(Rank)


@dataclass(frozen=True)
class Flag:
    """A data flag in a few words.

    `side` is the side of the threshold on which values are wrong; `of` is a variable of the same dimension, empty for
    any; values that cannot be have the rank `do_not_use`.
    """

    title: str
    meaning: str = ""
    side: Literal["above", "below", ""] = ""
    of: str = ""
    rank: Rank = "look"


FLAGS: Mapping[str, Flag] = {
    "negative_accumulation_values": Flag("negative sums", "negative {name}", "below", rank="do_not_use"),
    "outside_n_standard_deviations_of_climatology": Flag("values far from their day's mean"),
    "percentage_values_outside_of_bounds": Flag("percentages beyond 0-100", of="hurs", rank="do_not_use"),
    "tas_below_tasmin": Flag("means under minima", rank="do_not_use"),
    "tas_exceeds_tasmax": Flag("means over maxima", rank="do_not_use"),
    CROSSED_FLAG: Flag(
        "maxima under minima",
        "tasmax below tasmin (the value is tasmax minus tasmin)",
        "below",
        "tasmax",
        rank="do_not_use",
    ),
    "temperature_extremely_high": Flag("impossible heat", "warmer than {threshold}", "above", "tasmax"),
    "temperature_extremely_low": Flag("impossible cold", "colder than {threshold}", "below", "tasmin"),
    "values_op_thresh_repeating_for_n_or_more_days": Flag("values beyond a threshold that repeat"),
    "values_repeating_for_n_or_more_days": Flag("values that repeat"),
    "very_large_precipitation_events": Flag("impossible rain", "more precipitation than {threshold}", "above", "pr"),
    "wind_values_outside_of_bounds": Flag("impossible winds", of="sfcWind", rank="do_not_use"),
    LAND_FLAG: Flag("cells without data", "land cells of the reference without data on all days of a chunk of time"),
}


@functools.cache
def arguments_of_flags() -> Mapping[str, Mapping[str, Any]]:
    """Return the arguments of each of xclim's data flags, with their defaults; `...` for those without."""
    found = {}
    for node in source_of("xclim", "core", "dataflags"):
        if isinstance(node, ast.FunctionDef) and any("register" in ast.unparse(one) for one in node.decorator_list):
            names = [argument.arg for argument in node.args.kwonlyargs]
            defaults = [... if one is None else ast.literal_eval(one) for one in node.args.kw_defaults]
            found[node.name] = dict(zip(names, defaults, strict=True))
    return found
