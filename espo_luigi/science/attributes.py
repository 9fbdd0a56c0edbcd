"""Names by which datasets tell of themselves: attributes, coordinates, and counts of the adjustment."""

from __future__ import annotations

from typing import Literal

# Global attributes of products.
INSERTED_DAYS = "espo_luigi_inserted_days"
"""The days that no file had and that were inserted, as YYYY-MM-DD, joined by commas."""
REPAIRS = "espo_luigi_repairs"
"""The repairs of a dataset, each with the number of changed values."""
STATED_UNITS = "espo_luigi_stated_units"
"""The units that took the place of a file's, by variable: stated ones, or the rate of totals."""
LET_THROUGH = "espo_luigi_input_problems"
"""The problems of the raw files that the configuration lets through."""
ABOUT_RAW_FILES = (LET_THROUGH, STATED_UNITS)
"""What products tell of the simulation's files and of the reference's."""
IMPOSSIBLE_VALUES = "espo_luigi_impossible_values"
"""How many values are impossible where the configuration lets them through."""
CELLS_WITHOUT_DATA = "espo_luigi_incomplete_cells"
"""How many land cells lack days."""
EXTRAPOLATED_CELLS = "espo_luigi_extrapolated_cells"
"""How many cells have extrapolated values."""
RegridMethod = Literal["bilinear", "nearest", "conservative", "conservative_normed"]
REGRID_METHODS = "espo_luigi_regrid_method"
"""How each variable was regridded, if it was not bilinear for all."""

FREQUENCY_BY_LETTER = {"M": "mon", "Q": "qtr", "Y": "yr"}
"""xscen's words for the frequency of series that may begin in any month, by the first letter of pandas'."""

# Attributes of variables.
DAYS = "espo_luigi_days"
"""The days of all land cells; `espo_luigi_days_made_wet` are those that were made wet, of a product without flags."""
DERIVED_FROM = "espo_luigi_derived_from"
"""What a derived variable is made of."""

# A coordinate of extracted data.
INCOMPLETE = "incomplete"
"""The cells that lack days."""

# A variable of adjusted data.
TREATED = "treated"
"""Bits of each day that the adjustment has treated otherwise than by mapping between quantiles."""
QUANTILE = "quantile"
"""Each day's rank in the adjustment, on a coarse grid, by methods that rank."""
# Of an ensemble's store: how many members percentiles, and statements about agreement and robustness, need.
FEWEST = "fewest_members_of_percentiles"
FEWEST_ROBUST = "fewest_members_of_robustness"
