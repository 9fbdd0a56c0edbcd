"""Sections `biasadjust` and `clean_up`: how variables are trained, adjusted and cleaned up."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from espo_luigi.config.signatures import METHOD_ARGUMENTS
from espo_luigi.fields import (
    AnyMapping,
    Arguments,
    ByFileName,
    Ignored,
    Integer,
    Named,
    Names,
    NothingIsEmpty,
    Number,
    OmitDefault,
    Period,
    Periods,
    PositiveThreshold,
    Refused,
    Section,
    Switch,
    Unused,
    single_or_mapping,
)
from espo_luigi.science.choices import DEFAULT_METHOD, AlignOn, Consistency, Engine, Method

GroupName = Literal["time.dayofyear", "time.month", "time.season", "time"]
Kind = Literal["+", "*"]


class GroupOfDays(Arguments):
    """A grouping with a window."""

    group: GroupName = Field(description="the grouping's name")
    window: Integer = Field(
        default=1, ge=1, description="the number of time steps around each that count as the same group"
    )
    add_dims: tuple[Literal["realization"], ...] = Field(
        default=(), description="realization: the members of a pool make one sample"
    )

    @model_validator(mode="after")
    def _no_window_of_everything(self) -> GroupOfDays:
        if self.group == "time" and self.window > 1:
            raise ValueError(f"the group time is the whole series, and cannot have a window of {self.window}")
        return self


Group = Annotated[GroupName | GroupOfDays, single_or_mapping(str, GroupName, GroupOfDays, "expected text or a mapping")]


class JitterUnder(Switch):
    """Noise in place of small values."""

    thresh: PositiveThreshold = Field(description="the value under which there is noise, with its unit")


class AdditiveSpace(Switch):
    """Bounded values, transformed so that additive factors keep them within their bounds."""

    lower_bound: str = Field(description="the lowest value, with its unit")
    upper_bound: str | None = Field(default=None, description="the highest value, with its unit; logit needs it")
    trans: Literal["log", "logit"] | None = Field(default=None, description="the transformation; log by default")
    clip_next_to_bounds: Literal["strict", "permissive"] | None = Field(
        default=None, description="whether values at a bound, or beyond it (permissive), are moved inside"
    )


class AdaptFreq(Switch):
    """The simulation's dry days, adapted to the reference's."""

    thresh: PositiveThreshold = Field(description="the value under which a day is dry, with its unit")
    group: Group | None = Field(default=None, description="the grouping; the training's by default")


def _as_quantiles(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    if not isinstance(value, list | tuple) or not value or not all(_is_probability(one) for one in value):
        raise ValueError("expected a whole number above 0, or a list of quantiles between 0 and 1")
    if any(above <= below for below, above in pairwise(value)):
        raise ValueError("expected quantiles that increase, each given once")
    return [float(one) for one in value]


def _is_probability(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


class TrainArguments(Arguments):
    """The arguments of any method's `train`; `foreign_arguments` names those that the chosen method lacks."""

    kind: Kind | None = Field(default=None, description="additive (+) or multiplicative (*) factors")
    nquantiles: Annotated[int | list[float], BeforeValidator(_as_quantiles)] | None = Field(
        default=None, description="how many quantiles, or which"
    )
    adapt_freq_thresh: PositiveThreshold | None = Field(
        default=None, description="dry days are adapted up to this, in training and adjusting"
    )
    jitter_under_thresh_value: PositiveThreshold | None = Field(default=None, description="xsdba adds noise under it")
    jitter_over_thresh_value: PositiveThreshold | None = Field(default=None, description="xsdba adds noise over it")
    jitter_over_thresh_upper_bnd: PositiveThreshold | None = Field(default=None, description="the noise's upper bound")
    max_tail_factor: Annotated[Number, Field(gt=0)] | None = Field(
        default=None, description="values over so many last quantiles are kept"
    )
    thresh: PositiveThreshold | None = Field(default=None, description="LOCI's threshold of wet days, with its unit")
    skip_input_checks: bool | None = Field(default=None, description="whether xsdba checks no units")


class _AnyDetrend(Arguments):
    """Arguments that all ways of detrending share."""

    group: GroupName | None = Field(default=None, description="the grouping; the training's by default")
    kind: Kind | None = Field(default=None, description="how the trend is taken out; the training's by default")
    mult_skip_zeros: bool | None = Field(default=None, description="whether trends of zero are left alone")


class _PolyDetrend(_AnyDetrend):
    """Arguments of detrending by a polynomial."""

    degree: Annotated[Integer, Field(ge=0)] | None = Field(default=None, description="the polynomial's degree")
    preserve_mean: bool | None = Field(default=None, description="whether the mean stays")


class _LoessDetrend(_AnyDetrend):
    """Arguments of detrending by a smooth curve (LOESS)."""

    f: Annotated[Number, Field(gt=0, le=1)] | None = Field(
        default=None, description="the share of the series that each fit takes"
    )
    niter: Annotated[Integer, Field(ge=1)] | None = Field(default=None, description="the number of iterations")
    d: Literal[0, 1] | None = Field(default=None, description="the degree of each fit")
    weights: Literal["tricube", "gaussian"] | None = Field(default=None, description="the form of the weights")
    equal_spacing: bool | None = Field(default=None, description="whether the steps of time are equal")
    skipna: bool | None = Field(default=None, description="whether missing values are left out")


class _RollingMeanDetrend(_AnyDetrend):
    """Arguments of detrending by a rolling mean."""

    weights: list[Number] | None = Field(default=None, description="the weights within the window")
    win: Annotated[Integer, Field(ge=1)] | None = Field(default=None, description="the window in time steps")
    min_periods: Annotated[Integer, Field(ge=1)] | None = Field(
        default=None, description="how many values a mean needs"
    )


class Detrend(Arguments):
    """The way of detrending, by its class in xsdba, with its arguments."""

    LoessDetrend: Annotated[_LoessDetrend, NothingIsEmpty] = Field(
        default_factory=_LoessDetrend, description="a smooth curve"
    )
    PolyDetrend: Annotated[_PolyDetrend, NothingIsEmpty] = Field(
        default_factory=_PolyDetrend, description="a polynomial"
    )
    RollingMeanDetrend: Annotated[_RollingMeanDetrend, NothingIsEmpty] = Field(
        default_factory=_RollingMeanDetrend, description="a rolling mean"
    )
    MeanDetrend: Annotated[_AnyDetrend, NothingIsEmpty] = Field(
        default_factory=_AnyDetrend, description="each group's mean"
    )
    NoDetrend: Annotated[_AnyDetrend, NothingIsEmpty] = Field(
        default_factory=_AnyDetrend, description="no trend at all"
    )

    @model_validator(mode="after")
    def _just_one(self) -> Detrend:
        if len(self.model_fields_set) != 1:
            ways = ", ".join(type(self).model_fields)
            raise ValueError(f"expected one way of detrending with its arguments, of {ways}")
        return self


_detrend = single_or_mapping(
    int,
    Annotated[int, Field(ge=0)],
    Detrend,
    "expected a polynomial's degree, or a mapping such as {LoessDetrend: {f: 0.2}}",
)


class AdjustArguments(Arguments):
    """The arguments of any method's `adjust`; `foreign_arguments` names those that the chosen method lacks."""

    detrend: Annotated[int | Detrend, _detrend] | None = Field(
        default=None, description="the way of detrending, or a polynomial's degree"
    )
    interp: Literal["nearest", "linear", "cubic"] | None = Field(
        default=None, description="how factors between quantiles are found"
    )
    extrapolation: Literal["constant", "nan"] | None = Field(default=None, description="factors beyond the quantiles")
    rank_window: bool | None = Field(default=None, description="whether values are ranked within the window")
    skip_input_checks: bool | None = Field(default=None, description="whether xsdba checks no units")


def foreign_arguments(name: str, train: Arguments, adjust: Arguments) -> Iterator[InitErrorDetails]:
    """Yield an error for each argument that the method lacks, and for each missing argument that it requires."""
    method = METHOD_ARGUMENTS[name]
    for path, arguments, accepted in (
        (("training_args", "xclim_train_args"), train, method.train),
        (("adjusting_args", "xclim_adjust_args"), adjust, method.adjust),
    ):
        given = arguments.arguments()
        for key in (key for key in given if key not in accepted):
            problem = PydanticCustomError(
                "foreign_argument",
                "the method {method} does not take it; it takes {accepted}",
                {"method": name, "accepted": ", ".join(accepted)},
            )
            yield InitErrorDetails(type=problem, loc=(*path, key), input=given[key])
        for key in (key for key in accepted if key in method.required and key not in given):
            yield InitErrorDetails(type="missing", loc=(*path, key), input=given)


class TrainingArgs(Section):
    """Keyword arguments of the training."""

    period: Period = Field(description="first and last year of the training; custom.ref_period by default")
    method: Method = Field(default=DEFAULT_METHOD, description="the class of xsdba that is trained")
    group: Group = Field(description="the grouping: a name such as time.dayofyear, or {group, window, add_dims}")
    jitter_under: JitterUnder | None = Field(default=None, description="{thresh}: noise replaces values under it")
    adapt_freq: AdaptFreq | None = Field(
        default=None, description="{thresh}: dry days of the calibration data are adapted"
    )
    align_on: AlignOn | None = Field(default=None, description="how days are matched between calendars")
    xclim_train_args: Annotated[TrainArguments, NothingIsEmpty] = Field(
        default_factory=TrainArguments, description="further arguments of the method's train"
    )
    additive_space: AdditiveSpace | None = OmitDefault(
        "{lower_bound, upper_bound, trans, clip_next_to_bounds}: the space of the training"
    )
    jitter_over: Refused = None


class AdjustingArgs(Section):
    """Keyword arguments of the adjustment."""

    periods: Periods = Field(description="years that are adjusted; custom.sim_period by default")
    xclim_adjust_args: Annotated[AdjustArguments, NothingIsEmpty] = Field(
        default_factory=AdjustArguments, description="further arguments of the method's adjust"
    )
    bias_adjust_institution: str | None = Field(default=None, description="attribute of the scenarios")
    bias_adjust_project: str | None = Field(default=None, description="attribute of the scenarios")
    align_on: AlignOn | None = Field(default=None, description="how days are matched between calendars")
    bias_adjust_reference: str | None = OmitDefault(
        "attribute of the scenarios; of ESPO v2, the reference's source by default"
    )
    to_level: Ignored = None
    moving_yearly_window: Refused = None


class VariableAdjustment(Section):
    """How one variable is adjusted."""

    training_args: TrainingArgs = Field(description="how the variable is trained")
    adjusting_args: AdjustingArgs = Field(description="how the variable is adjusted")
    # Not luigi.cfg's `engine`, which runs jobs. Markers of products have this key: a new name would make them stale.
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
    """The treatment of the adjusted variables."""

    round_var: Named[Annotated[Integer, Field(ge=0, le=30)]] = Field(
        default={}, description="decimals that are kept, by variable"
    )
    to_level: str = Field(default="cleaned_up", description="the attribute cat:processing_level")
    add_attrs: Annotated[Named[AnyMapping], NothingIsEmpty] = Field(
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


def _as_patterns(value: tuple[str, ...]) -> tuple[str, ...]:
    for pattern in value:
        if ":*" in pattern:  # which would match no attribute at all
            raise ValueError(
                f"expected a regular expression, such as {pattern.replace(':*', ':.*')}, and got {pattern}"
            )
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"expected names or regular expressions, and {pattern!r} is neither ({error})") from error
    return value


class VariableCleanUp(Section):
    """The treatment of a variable's product in ESPO v2, in this order."""

    round_var: Named[Annotated[Integer, Field(ge=0, le=30)]] = Field(
        default={}, description="decimals that are kept, by variable"
    )
    clip_var: Named[tuple[Number | None, Number | None]] = Field(
        default={}, description="the lowest and the highest value, by variable, in its unit"
    )
    remove_all_attrs_except: Named[Annotated[Names, AfterValidator(_as_patterns)]] = Field(
        default={},
        description="attributes that stay (names or regular expressions), by variable; `global` for the dataset's",
    )
    add_attrs: Annotated[Named[AnyMapping], NothingIsEmpty] = Field(
        default={}, description="attributes by variable; `global` for the dataset's"
    )
    change_attr_prefix: str = Field(
        default="", description="takes the place of `cat:` in names of attributes, if given"
    )
    maybe_unstack_dict: Ignored = None
    to_level: Ignored = None
    variables_and_units: Refused = None
    convert_calendar_kwargs: Refused = None
    missing_by_var: Refused = None
    attrs_to_remove: Unused = None
    common_attrs_only: Unused = None


class CleanUp(Section):
    """Section `clean_up`."""

    problems: Names = Field(default=(), description="ids whose variables are masked where tasmin is 100 K or less")
    xscen_clean_up: XscenCleanUp = Field(
        default_factory=XscenCleanUp, description="treatment of the adjusted variables"
    )
    variables: Named[VariableCleanUp] = OmitDefault("treatment of each variable's product, in ESPO v2", {})
    temperatures: Consistency = OmitDefault(
        "how tasmax, tasmin and dtr are made consistent: derived, swap, dqm-dtr", "derived"
    )
    bitround: Annotated[Integer, Field(ge=1, le=23)] | None = OmitDefault("bits of the mantissa that products keep")
    # The hash leaves it out, since it changes no number.
    on_impossible: Literal["fail", "warn"] = Field(
        default="fail", exclude=True, description="what impossible values in a product do: no product, or an attribute"
    )
    search_data_catalogs: Ignored = None
    save: Refused = None
