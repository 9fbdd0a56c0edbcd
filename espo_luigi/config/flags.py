"""Arguments of the health checks: xclim's data flags, CF checks and checks of missing values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field

from espo_luigi.config.fields import Free, Frozen, Known, NothingIsEmpty, Section
from espo_luigi.config.messages import nearest
from espo_luigi.config.quantities import Frequency, Threshold

Operator = Literal[">", "gt", "<", "lt", ">=", "ge", "<=", "le", "==", "eq", "!=", "ne"]


class NoArguments(Section):
    """A flag that takes no arguments."""


class OverThreshold(Section):
    """A flag of values beyond a threshold."""

    thresh: Threshold | None = Field(default=None, description="the threshold, with its unit; xclim's by default")


class OutsideBounds(Section):
    """A flag of values outside of bounds."""

    lower: Threshold | None = Field(default=None, description="the lower bound, with its unit; xclim's by default")
    upper: Threshold | None = Field(default=None, description="the upper bound, with its unit; xclim's by default")


class OutsideDeviations(Section):
    """A flag of values far from their day of the year's mean."""

    n: int = Field(description="the number of standard deviations")
    window: int | None = Field(default=None, ge=1, description="the window of days")


class Repeating(Section):
    """A flag of values that repeat."""

    n: int = Field(description="the number of days")


class RepeatingThreshold(Repeating):
    """A flag of values on one side of a threshold that repeat."""

    thresh: Threshold = Field(description="the threshold, with its unit")
    op: Operator | None = Field(default=None, description="the comparison")


NoArgs = Annotated[NoArguments, NothingIsEmpty]
ThresholdArgs = Annotated[OverThreshold, NothingIsEmpty]


class Flags(Section):
    """The data flags that xclim has, each with its arguments."""

    negative_accumulation_values: NoArgs = Field(default=NoArguments(), description="negative sums")
    outside_n_standard_deviations_of_climatology: OutsideDeviations | None = Field(
        default=None, description="values far from their day's mean"
    )
    percentage_values_outside_of_bounds: NoArgs = Field(default=NoArguments(), description="percentages beyond 0-100")
    tas_below_tasmin: NoArgs = Field(default=NoArguments(), description="means under minima")
    tas_exceeds_tasmax: NoArgs = Field(default=NoArguments(), description="means over maxima")
    tasmax_below_tasmin: NoArgs = Field(default=NoArguments(), description="maxima under minima")
    temperature_extremely_high: ThresholdArgs = Field(default=OverThreshold(), description="impossible heat")
    temperature_extremely_low: ThresholdArgs = Field(default=OverThreshold(), description="impossible cold")
    values_op_thresh_repeating_for_n_or_more_days: RepeatingThreshold | None = Field(
        default=None, description="values beyond a threshold that repeat"
    )
    values_repeating_for_n_or_more_days: Repeating | None = Field(default=None, description="values that repeat")
    very_large_precipitation_events: ThresholdArgs = Field(default=OverThreshold(), description="impossible rain")
    wind_values_outside_of_bounds: Annotated[OutsideBounds, NothingIsEmpty] = Field(
        default=OutsideBounds(), description="impossible winds"
    )


class FlagsArguments(Section):
    """Arguments that all flags share."""

    dims: str | list[str] | None = Field(default=None, description="the dimensions over which flags are joined")
    freq: Frequency | None = Field(default=None, description="the frequency to which flags are joined")
    raise_flags: bool | None = Field(default=None, description="whether a flag is an error")


class CfChecks(Section):
    """The CF checks of a variable, each with its arguments."""

    cfcheck_from_name: Free = Field(default={}, description="attributes as the variable's name asks for")
    check_valid: Free = Field(default={}, description="one attribute's value: key and expected")


MissingMethod = Literal[
    "any", "at_least_n_valid", "pct", "wmo", "missing_any", "missing_pct", "missing_wmo"
]  # fmt: skip


def _known_methods(value: Any) -> Any:
    if not isinstance(value, str | list | tuple | Mapping):
        raise ValueError("expected text, a list or a mapping")
    known = get_args(MissingMethod)
    for name in [value] if isinstance(value, str) else value:
        if name not in known:
            raise ValueError(f"there is no method {name!r}; expected {', '.join(known)}{nearest(str(name), known)}")
    return value


Missing = Annotated[str | list[str] | dict[str, Any], Frozen, BeforeValidator(_known_methods)]
FlagsByVariable = Annotated[dict[str, Annotated[dict[str, Any], Known(Flags)]], NothingIsEmpty, Frozen]
CfChecksByVariable = Annotated[dict[str, Annotated[dict[str, Any], Known(CfChecks)]], NothingIsEmpty, Frozen]
FlagsArgs = Annotated[dict[str, Any], Known(FlagsArguments)]
