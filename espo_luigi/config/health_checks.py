"""Section `health_checks`: data flags, CF checks, checks of missing values, and what products must have."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field

from espo_luigi.config.fields import (
    Arguments,
    Free,
    Frequency,
    Named,
    Names,
    NothingIsEmpty,
    Section,
    Threshold,
    Unit,
    Whole,
)
from espo_luigi.config.regions import Calendar
from espo_luigi.errors import nearest
from espo_luigi.science.choices import FLAGS, Check, MissingMethod


class _Threshold(Arguments):
    thresh: Threshold | None = Field(default=None, description="the threshold, with its unit; xclim's by default")


class _Bounds(Arguments):
    lower: Threshold | None = Field(default=None, description="the lower bound, with its unit; xclim's by default")
    upper: Threshold | None = Field(default=None, description="the upper bound, with its unit; xclim's by default")


class _Repeating(Arguments):
    n: Annotated[Whole, Field(ge=1)] = Field(description="the number of days")


class _RepeatingBeyond(Arguments):
    thresh: Threshold = Field(description="the threshold, with its unit")
    n: Annotated[Whole, Field(ge=1)] = Field(description="the number of days")
    op: Literal[">", "gt", "<", "lt", ">=", "ge", "<=", "le", "==", "eq", "!=", "ne"] | None = Field(
        default=None, description="the comparison"
    )


class _Deviations(Arguments):
    n: Annotated[Whole, Field(ge=1)] = Field(description="the number of standard deviations")
    window: Annotated[Whole, Field(ge=1)] | None = Field(default=None, description="the window of days")


class _NoArguments(Arguments):
    pass


def _flag(name: str, arguments: type[Arguments]) -> Any:
    """Return a flag's field: its title in reports describes it, and it is None where an argument is required."""
    if any(field.is_required() for field in arguments.model_fields.values()):
        return Field(default=None, description=FLAGS[name].title)
    return Field(default_factory=arguments, description=FLAGS[name].title)


class Flags(Arguments):
    """The data flags that xclim has, with their arguments."""

    negative_accumulation_values: Annotated[_NoArguments, NothingIsEmpty] = _flag(
        "negative_accumulation_values", _NoArguments
    )
    outside_n_standard_deviations_of_climatology: _Deviations | None = _flag(
        "outside_n_standard_deviations_of_climatology", _Deviations
    )
    percentage_values_outside_of_bounds: Annotated[_NoArguments, NothingIsEmpty] = _flag(
        "percentage_values_outside_of_bounds", _NoArguments
    )
    tas_below_tasmin: Annotated[_NoArguments, NothingIsEmpty] = _flag("tas_below_tasmin", _NoArguments)
    tas_exceeds_tasmax: Annotated[_NoArguments, NothingIsEmpty] = _flag("tas_exceeds_tasmax", _NoArguments)
    tasmax_below_tasmin: Annotated[_NoArguments, NothingIsEmpty] = _flag("tasmax_below_tasmin", _NoArguments)
    temperature_extremely_high: Annotated[_Threshold, NothingIsEmpty] = _flag("temperature_extremely_high", _Threshold)
    temperature_extremely_low: Annotated[_Threshold, NothingIsEmpty] = _flag("temperature_extremely_low", _Threshold)
    values_op_thresh_repeating_for_n_or_more_days: _RepeatingBeyond | None = _flag(
        "values_op_thresh_repeating_for_n_or_more_days", _RepeatingBeyond
    )
    values_repeating_for_n_or_more_days: _Repeating | None = _flag("values_repeating_for_n_or_more_days", _Repeating)
    very_large_precipitation_events: Annotated[_Threshold, NothingIsEmpty] = _flag(
        "very_large_precipitation_events", _Threshold
    )
    wind_values_outside_of_bounds: Annotated[_Bounds, NothingIsEmpty] = _flag("wind_values_outside_of_bounds", _Bounds)


def _as_dims(value: Any) -> Any:
    if not isinstance(value, str) and not (isinstance(value, list) and all(isinstance(one, str) for one in value)):
        raise ValueError("expected text or a list of text")
    return value


class FlagsArguments(Arguments):
    """Arguments that all flags share."""

    dims: Annotated[str | list[str], BeforeValidator(_as_dims)] | None = Field(
        default=None, description="the dimensions over which flags are joined"
    )
    freq: Frequency | None = Field(default=None, description="the frequency to which flags are joined")
    raise_flags: bool | None = Field(default=None, description="whether a flag is an error")


class CfChecks(Arguments):
    """The CF checks of a variable, each with its arguments."""

    cfcheck_from_name: Free = Field(default={}, description="attributes as the variable's name asks for")
    check_valid: Free = Field(default={}, description="one attribute's value: key and expected")


def _known_methods(value: Any) -> Any:
    if not isinstance(value, str | list | tuple | Mapping):
        raise ValueError("expected text, a list or a mapping")
    known = get_args(MissingMethod)
    for name in [value] if isinstance(value, str) else value:
        if name not in known:
            raise ValueError(f"there is no method {name!r}; expected {', '.join(known)}{nearest(str(name), known)}")
    return value


Missing = Annotated[str | tuple[str, ...] | Named[Any], BeforeValidator(_known_methods)]
FlagsByVariable = Annotated[Named[Annotated[Flags, NothingIsEmpty]], NothingIsEmpty]
CfChecksByVariable = Annotated[Named[Annotated[CfChecks, NothingIsEmpty]], NothingIsEmpty]


class Structure(Arguments):
    """The exact names that a product must have."""

    dims: Names = Field(default=(), description="the dimensions")
    coords: Names = Field(default=(), description="the coordinates")


def date_of(text: str) -> tuple[int, int, int]:
    """Return a date's year, month and day (the latter two may be missing); raise ValueError if the text is no date."""
    parts = _DATE.fullmatch(text)
    year, month, day = (int(part or 1) for part in parts.groups()) if parts else (0, 0, 0)
    # 30 February is a day where all months have 30.
    if not (year and 1 <= month <= 12 and 1 <= day <= (31 if month in _MONTHS_OF_31_DAYS else 30)):
        raise ValueError("expected a date, such as 1950-01-01")
    return year, month, day


def _as_date(value: Any) -> str:
    text = "" if isinstance(value, bool) or not isinstance(value, str | int) else str(value)
    date_of(text)
    return text


_DATE = re.compile(r"([0-9]{4})(?:-([0-9]{1,2}))?(?:-([0-9]{1,2}))?(?:[T ][0-9:.]*)?")
_MONTHS_OF_31_DAYS = (1, 3, 5, 7, 8, 10, 12)
Date = Annotated[str, BeforeValidator(_as_date)]


class HealthChecks(Section):
    """Section `health_checks`."""

    structure: Structure | None = Field(default=None, description="exactly these dims and coords")
    calendar: Literal[Calendar, "default"] | None = Field(default=None, description="the calendar that products have")
    start_date: Date | None = Field(default=None, description="the products begin on this day or before")
    end_date: Date | None = Field(default=None, description="the products end on this day or after")
    variables_and_units: Named[Unit] | None = Field(
        default=None, description="variables that must be there, and their units"
    )
    cfchecks: CfChecksByVariable | None = Field(default=None, description="CF checks by variable")
    freq: Frequency | None = Field(default=None, description="the frequency of the time axis")
    missing: Missing | None = Field(default=None, description="checks of missing values")
    flags: FlagsByVariable | None = Field(default=None, description="data flags by variable")
    flags_kwargs: FlagsArguments | None = Field(default=None, description="further arguments of the data flags")
    return_flags: bool = Field(default=True, description="store the flags")
    raise_on: Annotated[tuple[Check, ...], BeforeValidator(lambda value: [] if value is None else value)] = Field(
        default=(), description="the checks whose failure stops the run"
    )
