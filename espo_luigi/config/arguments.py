"""Arguments of training and adjusting: what xsdba 0.7 accepts, and what our own kernels accept of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from espo_luigi.config.fields import Known, NothingIsEmpty, Section
from espo_luigi.config.quantities import Threshold

Method = Literal[
    "DetrendedQuantileMapping", "EmpiricalQuantileMapping", "QuantileDeltaMapping", "LOCI", "Scaling"
]  # fmt: skip
GroupName = Literal["time.dayofyear", "time.month", "time.season", "time"]
Kind = Literal["+", "*"]
AlignOn = Literal["year", "date"]


class GroupOfDays(Section):
    """A grouping with a window."""

    group: GroupName = Field(description="the grouping's name")
    window: int = Field(
        default=1, ge=1, description="the number of time steps around each that count as the same group"
    )

    @model_validator(mode="after")
    def _no_window_of_everything(self) -> GroupOfDays:
        if self.group == "time" and self.window > 1:
            raise ValueError(f"the group time is the whole series, and cannot have a window of {self.window}")
        return self


def _text_or_mapping(value: Any) -> Any:
    if not isinstance(value, str | Mapping):
        raise ValueError("expected text or a mapping")
    return value


Group = Annotated[str | dict[str, Any], Known(GroupOfDays, GroupName), BeforeValidator(_text_or_mapping)]


class JitterUnder(Section):
    """Noise in place of small values."""

    thresh: Threshold = Field(description="the value under which there is noise, with its unit")


class AdaptFreq(Section):
    """The simulation's dry days, adapted to the reference's."""

    thresh: Threshold = Field(description="the value under which a day is dry, with its unit")
    group: Group | None = Field(default=None, description="the grouping; the training's by default")


def _as_quantiles(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    if not isinstance(value, list | tuple) or not value or not all(_is_probability(one) for one in value):
        raise ValueError("expected a whole number above 0, or a list of quantiles between 0 and 1")
    return [float(one) for one in value]


def _is_probability(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


class TrainArguments(Section):
    """Arguments of the training, of one method or another."""

    kind: Kind | None = Field(default=None, description="additive (+) or multiplicative (*) factors")
    nquantiles: Annotated[int | list[float], BeforeValidator(_as_quantiles)] | None = Field(
        default=None, description="how many quantiles, or which"
    )
    adapt_freq_thresh: Threshold | None = Field(default=None, description="the threshold of xsdba's own adaptation")
    jitter_under_thresh_value: Threshold | None = Field(default=None, description="xsdba adds noise under it")
    jitter_over_thresh_value: Threshold | None = Field(default=None, description="xsdba adds noise over it")
    jitter_over_thresh_upper_bnd: Threshold | None = Field(default=None, description="the noise's upper bound")
    max_tail_factor: float | None = Field(default=None, description="values over so many last quantiles are kept")
    thresh: Threshold | None = Field(default=None, description="LOCI's threshold of wet days, with its unit")
    skip_input_checks: bool | None = Field(default=None, description="whether xsdba checks no units")


class NoDetrend(Section):
    """A trend that needs no parameters."""

    group: GroupName | None = Field(default=None, description="the grouping; the training's by default")
    kind: Kind | None = Field(default=None, description="how the trend is taken out; the training's by default")
    mult_skip_zeros: bool | None = Field(default=None, description="whether trends of zero are left alone")


class PolyDetrend(NoDetrend):
    """A polynomial as trend."""

    degree: int | None = Field(default=None, ge=0, description="the polynomial's degree")
    preserve_mean: bool | None = Field(default=None, description="whether the mean stays")


class LoessDetrend(NoDetrend):
    """A smooth curve as trend."""

    f: float | None = Field(default=None, gt=0, le=1, description="the share of the series that each fit takes")
    niter: int | None = Field(default=None, ge=1, description="the number of iterations")
    d: Literal[0, 1] | None = Field(default=None, description="the degree of each fit")
    weights: Literal["tricube", "gaussian"] | None = Field(default=None, description="the form of the weights")
    equal_spacing: bool | None = Field(default=None, description="whether the steps of time are equal")
    skipna: bool | None = Field(default=None, description="whether missing values are left out")


class RollingMeanDetrend(NoDetrend):
    """A rolling mean as trend."""

    win: int | None = Field(default=None, ge=1, description="the window in time steps")
    weights: list[float] | None = Field(default=None, description="the weights within the window")
    min_periods: int | None = Field(default=None, ge=1, description="how many values a mean needs")


class Detrend(Section):
    """The way of detrending, by its class in xsdba, with its arguments."""

    loess: Annotated[LoessDetrend, NothingIsEmpty] = Field(
        default=LoessDetrend(), alias="LoessDetrend", description="a smooth curve"
    )
    poly: Annotated[PolyDetrend, NothingIsEmpty] = Field(
        default=PolyDetrend(), alias="PolyDetrend", description="a polynomial"
    )
    rolling_mean: Annotated[RollingMeanDetrend, NothingIsEmpty] = Field(
        default=RollingMeanDetrend(), alias="RollingMeanDetrend", description="a rolling mean"
    )
    mean: Annotated[NoDetrend, NothingIsEmpty] = Field(
        default=NoDetrend(), alias="MeanDetrend", description="each group's mean"
    )
    none: Annotated[NoDetrend, NothingIsEmpty] = Field(
        default=NoDetrend(), alias="NoDetrend", description="no trend at all"
    )

    @model_validator(mode="after")
    def _just_one(self) -> Detrend:
        if len(self.model_fields_set) != 1:
            known = ", ".join(str(field.alias) for field in type(self).model_fields.values())
            raise ValueError(f"expected one way of detrending with its arguments, of {known}")
        return self


def _degree_or_mapping(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | Mapping):
        raise ValueError("expected a polynomial's degree, or a mapping such as {LoessDetrend: {f: 0.2}}")
    return value


class AdjustArguments(Section):
    """Arguments of the adjustment, of one method or another."""

    detrend: (
        Annotated[
            int | dict[str, Any],
            Known(Detrend, Annotated[int, Field(ge=0)]),
            BeforeValidator(_degree_or_mapping),
        ]
        | None
    ) = Field(default=None, description="the way of detrending, or a polynomial's degree")
    interp: Literal["nearest", "linear", "cubic"] | None = Field(
        default=None, description="how factors between quantiles are found"
    )
    extrapolation: Literal["constant", "nan"] | None = Field(default=None, description="factors beyond the quantiles")
    rank_window: bool | None = Field(default=None, description="whether values are ranked within the window")
    skip_input_checks: bool | None = Field(default=None, description="whether xsdba checks no units")


_QUANTILE_TRAINING = (
    "kind", "nquantiles", "adapt_freq_thresh", "jitter_under_thresh_value", "jitter_over_thresh_value",
    "jitter_over_thresh_upper_bnd", "max_tail_factor", "skip_input_checks",
)  # fmt: skip
_QUANTILE_ADJUSTING = ("interp", "extrapolation", "skip_input_checks")
# By method, the arguments of its train and of its adjust in xsdba.
ACCEPTED: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "DetrendedQuantileMapping": (_QUANTILE_TRAINING, ("detrend", *_QUANTILE_ADJUSTING)),
    "EmpiricalQuantileMapping": (_QUANTILE_TRAINING, _QUANTILE_ADJUSTING),
    "QuantileDeltaMapping": (_QUANTILE_TRAINING, ("rank_window", *_QUANTILE_ADJUSTING)),
    "LOCI": (("thresh", "skip_input_checks"), ("interp", "skip_input_checks")),
    "Scaling": (("kind", "skip_input_checks"), ("interp", "skip_input_checks")),
}


def foreign_arguments(method: str, train: Mapping[str, Any], adjust: Mapping[str, Any]) -> Iterator[InitErrorDetails]:
    """Yield an error for each argument that the method does not take, and for one that it cannot do without."""
    places = (("training_args", "xclim_train_args"), train), (("adjusting_args", "xclim_adjust_args"), adjust)
    for (path, given), accepted in zip(places, ACCEPTED[method], strict=True):
        for name in set(given) - set(accepted):
            problem = PydanticCustomError(
                "foreign_argument",
                "the method {method} does not take it; it takes {accepted}",
                {"method": method, "accepted": ", ".join(accepted)},
            )
            yield InitErrorDetails(type=problem, loc=(*path, name), input=given[name])
    if method == "LOCI" and "thresh" not in train:
        yield InitErrorDetails(type="missing", loc=(*places[0][0], "thresh"), input=train)


JitterUnderArgs = Annotated[dict[str, Any], Known(JitterUnder)]
AdaptFreqArgs = Annotated[dict[str, Any], Known(AdaptFreq)]
TrainArgs = Annotated[dict[str, Any], Known(TrainArguments)]
AdjustArgs = Annotated[dict[str, Any], Known(AdjustArguments)]
