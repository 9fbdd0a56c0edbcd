"""Arguments of training and adjusting: what xsdba accepts, and what our own kernels accept of it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, create_model, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from espo_luigi.config.fields import Arguments, NothingIsEmpty, Number, Switch, Whole, single_or_mapping
from espo_luigi.config.quantities import PositiveThreshold
from espo_luigi.config.signatures import Described, Parameters, definitions, method, section
from espo_luigi.science.choices import METHODS

GroupName = Literal["time.dayofyear", "time.month", "time.season", "time"]
Kind = Literal["+", "*"]


class GroupOfDays(Arguments):
    """A grouping with a window."""

    group: GroupName = Field(description="the grouping's name")
    window: Whole = Field(
        default=1, ge=1, description="the number of time steps around each that count as the same group"
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


_TRAINING: Described = {
    "kind": (Kind, "additive (+) or multiplicative (*) factors"),
    "nquantiles": (Annotated[int | list[float], BeforeValidator(_as_quantiles)], "how many quantiles, or which"),
    "adapt_freq_thresh": (PositiveThreshold, "the threshold of xsdba's own adaptation"),
    "jitter_under_thresh_value": (PositiveThreshold, "xsdba adds noise under it"),
    "jitter_over_thresh_value": (PositiveThreshold, "xsdba adds noise over it"),
    "jitter_over_thresh_upper_bnd": (PositiveThreshold, "the noise's upper bound"),
    "max_tail_factor": (Annotated[Number, Field(gt=0)], "values over so many last quantiles are kept"),
    "thresh": (PositiveThreshold, "LOCI's threshold of wet days, with its unit"),
    "skip_input_checks": (bool, "whether xsdba checks no units"),
}
_WAYS = {
    "LoessDetrend": "a smooth curve",
    "PolyDetrend": "a polynomial",
    "RollingMeanDetrend": "a rolling mean",
    "MeanDetrend": "each group's mean",
    "NoDetrend": "no trend at all",
}
_DETRENDING: Described = {
    "group": (GroupName, "the grouping; the training's by default"),
    "kind": (Kind, "how the trend is taken out; the training's by default"),
    "mult_skip_zeros": (bool, "whether trends of zero are left alone"),
    "degree": (Annotated[Whole, Field(ge=0)], "the polynomial's degree"),
    "preserve_mean": (bool, "whether the mean stays"),
    "f": (Annotated[Number, Field(gt=0, le=1)], "the share of the series that each fit takes"),
    "niter": (Annotated[Whole, Field(ge=1)], "the number of iterations"),
    "d": (Literal[0, 1], "the degree of each fit"),
    "weights": (Literal["tricube", "gaussian"], "the form of the weights"),
    "equal_spacing": (bool, "whether the steps of time are equal"),
    "skipna": (bool, "whether missing values are left out"),
    "win": (Annotated[Whole, Field(ge=1)], "the window in time steps"),
    "min_periods": (Annotated[Whole, Field(ge=1)], "how many values a mean needs"),
}
_ROLLING: Described = {**_DETRENDING, "weights": (list[Number], "the weights within the window")}


class _OneWay(Arguments):
    """The way of detrending, by its class in xsdba, with its arguments."""

    @model_validator(mode="after")
    def _just_one(self) -> _OneWay:
        if len(self.model_fields_set) != 1:
            raise ValueError(f"expected one way of detrending with its arguments, of {', '.join(_WAYS)}")
        return self


def _ways() -> Iterator[tuple[str, Any]]:
    classes = definitions("xsdba.detrending")
    for name, description in _WAYS.items():
        optional = {key: False for key in method(classes, name, "__init__") if key != "self"}
        way = section(name, optional, _ROLLING if name == "RollingMeanDetrend" else _DETRENDING)
        yield name, (Annotated[way, NothingIsEmpty], Field(default_factory=way, description=description))


def _accepted() -> Iterator[tuple[str, tuple[Parameters, Parameters]]]:
    """Yield each method with the arguments of its train and of its adjust that a configuration may give."""
    classes, data = definitions("xsdba.adjustment"), {"cls", "self", "ref", "hist", "sim", "group"}
    for name in METHODS:
        found = (method(classes, name, wanted) | {"skip_input_checks": False} for wanted in ("_train", "_adjust"))
        train, adjust = ({key: needed for key, needed in one.items() if key not in data} for one in found)
        yield name, (train, adjust)


# By method, the arguments of its train and of its adjust.
ACCEPTED = dict(_accepted())
_TRAIN, _ADJUST = ({key: False for one in taken for key in one} for taken in zip(*ACCEPTED.values(), strict=True))

if TYPE_CHECKING:  # mypy does not read xsdba's signatures
    TrainArguments = Arguments
    AdjustArguments = Arguments
else:
    Detrend = create_model("Detrend", __base__=_OneWay, **dict(_ways()))
    _degree = Annotated[int, Field(ge=0)]
    _expected = "expected a polynomial's degree, or a mapping such as {LoessDetrend: {f: 0.2}}"
    _detrend = Annotated[int | Detrend, single_or_mapping(int, _degree, Detrend, _expected)]
    _ADJUSTING: Described = {
        "detrend": (_detrend, "the way of detrending, or a polynomial's degree"),
        "interp": (Literal["nearest", "linear", "cubic"], "how factors between quantiles are found"),
        "extrapolation": (Literal["constant", "nan"], "factors beyond the quantiles"),
        "rank_window": (bool, "whether values are ranked within the window"),
        "skip_input_checks": (bool, "whether xsdba checks no units"),
    }
    TrainArguments = section("TrainArguments", _TRAIN, _TRAINING)
    AdjustArguments = section("AdjustArguments", _ADJUST, _ADJUSTING)


def foreign_arguments(name: str, train: Arguments, adjust: Arguments) -> Iterator[InitErrorDetails]:
    """Yield an error for each argument that the method does not take, and for one that it cannot do without."""
    places = (("training_args", "xclim_train_args"), train), (("adjusting_args", "xclim_adjust_args"), adjust)
    for (path, arguments), accepted in zip(places, ACCEPTED[name], strict=True):
        given = arguments.arguments()
        for key in (key for key in given if key not in accepted):
            problem = PydanticCustomError(
                "foreign_argument",
                "the method {method} does not take it; it takes {accepted}",
                {"method": name, "accepted": ", ".join(accepted)},
            )
            yield InitErrorDetails(type=problem, loc=(*path, key), input=given[key])
        for key in (key for key, needed in accepted.items() if needed and key not in given):
            yield InitErrorDetails(type="missing", loc=(*path, key), input=given)
