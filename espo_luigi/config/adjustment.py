"""How variables are adjusted, cleaned up and checked: sections `biasadjust`, `clean_up` and `health_checks`."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from espo_luigi.config.arguments import (
    AdaptFreq,
    AdjustArguments,
    Group,
    JitterUnder,
    TrainArguments,
    foreign_arguments,
)
from espo_luigi.config.fields import (
    Arguments,
    ByFileName,
    Free,
    Ignored,
    Named,
    Names,
    NothingIsEmpty,
    Period,
    Periods,
    Refused,
    Section,
    Unused,
    Whole,
)
from espo_luigi.config.flags import CfChecksByVariable, FlagsArguments, FlagsByVariable, Missing
from espo_luigi.config.quantities import Frequency, Unit
from espo_luigi.config.regions import Calendar
from espo_luigi.science.choices import DEFAULT_METHOD, AlignOn, Check, Engine, Method


class TrainingArgs(Section):
    """Keyword arguments of the training."""

    period: Period = Field(description="first and last year of the training; custom.ref_period by default")
    method: Method = Field(default=DEFAULT_METHOD, description="the class of xsdba that is trained")
    group: Group = Field(description="the grouping: a name such as time.dayofyear, or {group, window}")
    jitter_under: JitterUnder | None = Field(default=None, description="{thresh}: noise replaces values under it")
    adapt_freq: AdaptFreq | None = Field(
        default=None, description="{thresh}: dry days of the calibration data are adapted"
    )
    align_on: AlignOn | None = Field(default=None, description="how days are matched between calendars")
    xclim_train_args: Annotated[TrainArguments, NothingIsEmpty] = Field(
        default_factory=TrainArguments, description="further arguments of the method's train"
    )
    jitter_over: Refused = None
    additive_space: Refused = None


class AdjustingArgs(Section):
    """Keyword arguments of the adjustment."""

    periods: Periods = Field(description="years that are adjusted; custom.sim_period by default")
    xclim_adjust_args: Annotated[AdjustArguments, NothingIsEmpty] = Field(
        default_factory=AdjustArguments, description="further arguments of the method's adjust"
    )
    bias_adjust_institution: str | None = Field(default=None, description="attribute of the scenarios")
    bias_adjust_project: str | None = Field(default=None, description="attribute of the scenarios")
    align_on: AlignOn | None = Field(default=None, description="how days are matched between calendars")
    bias_adjust_reference: Unused = None
    to_level: Ignored = None
    moving_yearly_window: Refused = None


class VariableAdjustment(Section):
    """How one variable is adjusted."""

    training_args: TrainingArgs = Field(description="how the variable is trained")
    adjusting_args: AdjustingArgs = Field(description="how the variable is adjusted")
    # Not luigi.cfg's `engine`, which runs jobs. Markers of products have this key: under another name, all were stale.
    engine: Engine = Field(
        default="auto", description="auto takes our own kernels where they know the configuration; xsdba never"
    )

    @model_validator(mode="after")
    def _arguments_of_the_method(self) -> VariableAdjustment:
        training, adjusting = self.training_args, self.adjusting_args
        errors = foreign_arguments(training.method, training.xclim_train_args, adjusting.xclim_adjust_args)
        if listed := list(errors):
            raise ValidationError.from_exception_data(type(self).__name__, listed)
        return self


class BiasAdjust(Section):
    """Section `biasadjust`."""

    variables: Annotated[ByFileName[VariableAdjustment], Field(min_length=1)] = Field(
        description="the variables that are adjusted"
    )


class XscenCleanUp(Section):
    """What is done to the adjusted variables."""

    round_var: Named[Annotated[Whole, Field(ge=0, le=30)]] = Field(
        default={}, description="decimals that are kept, by variable"
    )
    to_level: str = Field(default="cleaned_up", description="the attribute cat:processing_level")
    add_attrs: Annotated[Named[Free], NothingIsEmpty] = Field(
        default={}, description="attributes by variable; `global` for the dataset"
    )
    maybe_unstack_dict: Ignored = None
    variables_and_units: Refused = None
    convert_calendar_kwargs: Refused = None
    missing_by_var: Refused = None
    clip_var: Refused = None
    change_attr_prefix: Unused = None
    remove_all_attrs_except: Unused = None
    attrs_to_remove: Unused = None
    common_attrs_only: Unused = None


class CleanUp(Section):
    """Section `clean_up`."""

    problems: Names = Field(default=(), description="ids whose variables are masked where tasmin is 100 K or less")
    xscen_clean_up: XscenCleanUp = Field(
        default_factory=XscenCleanUp, description="what is done to the adjusted variables"
    )
    search_data_catalogs: Ignored = None
    save: Refused = None


class Structure(Arguments):
    """Names that a product must have, and no others."""

    dims: Names = Field(default=(), description="the dimensions")
    coords: Names = Field(default=(), description="the coordinates")


def date_of(text: str) -> tuple[int, int, int]:
    """Return year, month and day of a date, whose month and day may be missing; raise ValueError for another text."""
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
