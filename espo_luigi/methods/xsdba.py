"""Adjusting with xsdba: the models of its arguments, and its training and adjusting of a block, on numpy arrays.

Each block goes through xsdba as plain numpy and comes back with explicit dimensions and types. xsdba's kernels hold the
GIL, and its own use of Dask orders dimensions by hash. Where our kernels know the configuration, they do the same.
"""

from __future__ import annotations

import ast
import functools
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import numpy as np
from pydantic import AliasChoices, BeforeValidator, Field, model_validator
from pydantic_core import InitErrorDetails

from espo_luigi.errors import ConfigurationError, DataError, nearest
from espo_luigi.fields import (
    Arguments,
    Integer,
    NothingIsEmpty,
    Number,
    OmitDefault,
    PositiveThreshold,
    Switch,
    Threshold,
    converts,
    single_or_mapping,
)
from espo_luigi.methods.base import (
    DEFAULT_METHOD,
    GONE_METHODS,
    METHODS,
    AdjustingSection,
    Array,
    Block,
    Method,
    MethodName,
    Setup,
    TrainingSection,
    method_named,
    no_longer,
    problem,
)
from espo_luigi.methods.bounded import Bounded
from espo_luigi.methods.dqm.windows import year_windows
from espo_luigi.science.definitions import arguments_in, source_of
from espo_luigi.science.periods import each_period

if TYPE_CHECKING:  # xarray takes longer to import than a configuration to be read
    import xarray as xr
    import xsdba

logger = logging.getLogger(__name__)

ATTRIBUTE = "_xsdba_adjustment"
DEFAULT_NQUANTILES = 15
NQUANTILES_OF_OTHERS = 20  # xsdba's own default


@functools.cache
def arguments_of(method: str, function: str) -> tuple[str, ...]:
    """Return the arguments of a method's `train` or `adjust` in xsdba, without data and group."""
    classes = {node.name: node for node in source_of("xsdba", "adjustment") if isinstance(node, ast.ClassDef)}
    own = {one.name: one for one in classes[method].body if isinstance(one, ast.FunctionDef)}
    if f"_{function}" not in own:
        return arguments_of(ast.unparse(classes[method].bases[0]), function)
    given = {"cls", "self", "ref", "hist", "sim", "group"}
    return (*(name for name in arguments_in(own[f"_{function}"]) if name not in given), "skip_input_checks")


# Of `interp`, which xsdba has not.
_OF_ITS_DAY = "nearest_quantile"
_BY_KERNELS = "only our kernels search the value's own day (without `engine: xsdba`)"

_BY_US: Mapping[str, tuple[Any, ...]] = {"interp": ("nearest", _OF_ITS_DAY), "extrapolation": ("constant",)}
_LOESS_BY_US = {"niter": 1, "d": 0, "weights": "tricube", "equal_spacing": None, "skipna": True}

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

    lower_bound: Threshold = Field(description="the lowest value, with its unit")
    upper_bound: Threshold | None = Field(default=None, description="the highest value, with its unit; logit needs it")
    trans: Literal["log", "logit"] | None = Field(default=None, description="the transformation; log by default")
    clip_next_to_bounds: Literal["strict", "permissive"] | None = Field(
        default=None, description="whether values at a bound, or beyond it (permissive), are moved inside"
    )
    margin: PositiveThreshold | None = Field(
        default=None,
        description="values are limited to the bounds, and the transformation has bounds so much wider, with its unit",
    )

    @model_validator(mode="after")
    def _with_room_between(self) -> AdditiveSpace:
        from espo_luigi.science.units import threshold_in

        lower, upper = self.lower_bound, self.upper_bound
        if self.margin and self.clip_next_to_bounds:
            raise ValueError("margin limits values to the bounds, so clip_next_to_bounds is needless; give one of them")
        if upper is None:
            if self.trans == "logit":
                raise ValueError("logit needs both bounds, and upper_bound is missing; give it, or take trans: log")
            return self
        if not converts(upper.unit, lower.unit) or threshold_in(upper, lower.unit) <= lower.value:
            raise ValueError(f"expected an upper_bound above the lower_bound {lower!r}, and it is {upper!r}")
        return self


class SmallAmounts(Switch):
    """Ratios of small values, limited."""

    thresh: PositiveThreshold = Field(description="the value under which a ratio is at most 2, with its unit")


class AdaptFreq(Switch):
    """The simulation's dry days, adapted to the reference's."""

    thresh: PositiveThreshold = Field(description="the value under which a day is dry, with its unit")
    group: Group | None = Field(default=None, description="the grouping; the training's by default")


def as_quantiles(value: Any) -> Any:
    """Return a number of quantiles, or those that are listed, checked."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    if (
        not isinstance(value, list | tuple)
        or not value
        or not all(isinstance(one, int | float) and not isinstance(one, bool) and 0 <= one <= 1 for one in value)
    ):
        raise ValueError("expected a whole number above 0, or a list of quantiles between 0 and 1")
    if any(above <= below for below, above in pairwise(value)):
        raise ValueError("expected quantiles that increase, each given once")
    return [float(one) for one in value]


class TrainArguments(Arguments):
    """The arguments of any method's `train`; `Xsdba.problems` names those that the chosen method lacks."""

    kind: Kind | None = Field(default=None, description="additive (+) or multiplicative (*) factors")
    nquantiles: Annotated[int | list[float], BeforeValidator(as_quantiles)] | None = Field(
        default=None, description="how many quantiles, or which"
    )
    adapt_freq_thresh: PositiveThreshold | None = Field(
        default=None, description="dry days are adapted up to this, in training and adjusting; kind `*`"
    )
    jitter_under_thresh_value: PositiveThreshold | None = Field(default=None, description="xsdba adds noise under it")
    jitter_over_thresh_value: PositiveThreshold | None = Field(default=None, description="xsdba adds noise over it")
    jitter_over_thresh_upper_bnd: PositiveThreshold | None = Field(default=None, description="the noise's upper bound")
    max_tail_factor: Annotated[Number, Field(gt=0)] | None = Field(
        default=None, description="values over so many last quantiles are kept"
    )
    skip_input_checks: bool | None = Field(default=None, description="whether xsdba checks no units")


class _AnyDetrend(Arguments):
    """Arguments that all ways of detrending share."""

    group: GroupName | None = Field(default=None, description="the grouping; the training's by default")
    kind: Kind | None = Field(default=None, description="how the trend is taken out; the training's by default")
    mult_skip_zeros: bool | None = Field(default=None, description="whether trends of zero are left alone")


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


class Detrend(Arguments):
    """The way of detrending, by its class in xsdba, with its arguments."""

    LoessDetrend: Annotated[_LoessDetrend, NothingIsEmpty] = Field(
        default_factory=_LoessDetrend, description="a smooth curve"
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


class AdjustArguments(Arguments):
    """The arguments of any method's `adjust`; `Xsdba.problems` names those that the chosen method lacks."""

    detrend: Annotated[
        Detrend | None,
        no_longer(("PolyDetrend", "RollingMeanDetrend", "MeanDetrend"), "take LoessDetrend: {f: 0.2}, or NoDetrend"),
    ] = Field(default=None, description="{LoessDetrend: {f: 0.2}} or {NoDetrend: }; a linear trend by default")
    interp: Annotated[
        Literal["nearest", "nearest_quantile", "linear"] | None,
        no_longer(("cubic",), "take nearest_quantile, nearest or linear"),
    ] = Field(
        default=None,
        description="how factors are found: nearest_quantile in the value's own day, others in xsdba's plane",
    )
    extrapolation: Literal["constant", "nan"] | None = Field(default=None, description="factors beyond the quantiles")
    rank_window: bool | None = Field(default=None, description="whether values are ranked within the window")
    skip_input_checks: bool | None = Field(default=None, description="whether xsdba checks no units")


def why_no_kernels(method: str, adjust: Mapping[str, Any]) -> str | None:
    """Say why our kernels cannot adjust with arguments of a method's `adjust`; None if they can."""
    for name, value in adjust.items():
        if name not in ("detrend", "rank_window") and value not in _BY_US.get(name, ()):
            return f"the kernels do not do {name}={value!r}"
    if method == "QuantileDeltaMapping":
        return None
    detrend = adjust.get("detrend")
    given: Any = False
    if isinstance(detrend, Mapping) and [*detrend] == ["LoessDetrend"]:
        given = {} if detrend["LoessDetrend"] is None else detrend["LoessDetrend"]
    if not isinstance(given, Mapping):
        return f"the kernels detrend by LOESS only, not by {detrend!r}"
    others = {name: value for name, value in given.items() if name not in ("f", "mult_skip_zeros")}
    if any(name not in _LOESS_BY_US or _LOESS_BY_US[name] != value for name, value in others.items()):
        return f"the kernels' LOESS is {_LOESS_BY_US}, not {others}"
    if isinstance(fraction := given.get("f", 0.2), int | float) and 0 < fraction < 1:
        return None
    return f"the kernels' LOESS has a fraction between 0 and 1, not {fraction}"


def check_kind(given: Any, space: AdditiveSpace | None) -> None:
    """Raise ValueError if arguments of a variable's training are not for its kind of factors, or for its space."""
    kind = given.kind or "+"
    if given.adapt_freq_thresh is not None and kind != "*":
        raise ValueError(f'adapt_freq_thresh makes dry days wet and needs kind "*", and the kind is {kind!r}')
    if space and space.arguments():
        if kind != "+":
            raise ValueError(f'additive_space needs kind "+" without adapt_freq_thresh, and the kind is {kind!r}')
        if getattr(given, "max_tail_factor", None) is not None:
            raise ValueError("additive_space and max_tail_factor, which compares amounts, exclude each other")


class Training(TrainingSection):
    """Keyword arguments of the training."""

    method: Annotated[MethodName, no_longer(("LOCI",), f"take {GONE_METHODS['LOCI']}")] = Field(
        default=DEFAULT_METHOD, description="the class of xsdba that is trained"
    )
    group: Group = Field(description="the grouping: a name such as time.dayofyear, or {group, window, add_dims}")
    jitter_under: JitterUnder | None = Field(default=None, description="{thresh}: noise replaces values under it")
    adapt_freq: AdaptFreq | None = Field(
        default=None, description="{thresh}: dry days of the calibration data are adapted"
    )
    xclim_train_args: Annotated[TrainArguments, NothingIsEmpty] = Field(
        default_factory=TrainArguments,
        validation_alias=AliasChoices("xclim_train_args", "xsdba_train_args"),  # xscen's older and newer name
        description="further arguments of the method's train",
    )
    additive_space: AdditiveSpace | None = OmitDefault(
        "{lower_bound, upper_bound, trans, margin, clip_next_to_bounds}: the space of the training"
    )
    small_amounts: SmallAmounts | None = OmitDefault(
        "{thresh}: simulated values under it are at most doubled; by our kernels, dry days become wet as nearby"
    )

    @model_validator(mode="after")
    def _without_contradiction(self) -> Training:
        check_kind(self.xclim_train_args, self.additive_space)
        pooled = isinstance(self.group, GroupOfDays) and self.group.add_dims
        adapts = self.xclim_train_args.adapt_freq_thresh is not None
        if self.adapt_freq and self.adapt_freq.arguments() and (adapts or pooled):
            raise ValueError(
                "adapt_freq changes the series of a single member before the training; a pool needs adapt_freq_thresh "
                "in xclim_train_args instead, and both together are not possible"
            )
        return self


class YearWindows(Arguments):
    """Windows of years that are adjusted one by one; each keeps the years in its middle."""

    window: Annotated[Integer, Field(ge=1)] = Field(description="the years of a window")
    step: Annotated[Integer, Field(ge=1)] = Field(description="the years from window to window, and those kept")

    @model_validator(mode="after")
    def _odd(self) -> YearWindows:
        if self.window % self.step or self.window // self.step % 2 == 0:
            raise ValueError(
                f"expected a window of an odd number of steps, such as {{window: 30, step: 10}}: its middle step is "
                f"kept; got {self.window} years in steps of {self.step}"
            )
        return self


class AdjustingInWindows(AdjustingSection):
    """Keyword arguments of an adjustment in windows of years."""

    moving_yearly_window: YearWindows | None = OmitDefault(
        "{window, step}: each window of years is adjusted by itself, and its middle years are kept"
    )

    @model_validator(mode="after")
    def _windows_fit(self) -> AdjustingInWindows:
        window = self.moving_yearly_window.window if self.moving_yearly_window else 1
        for first, last in each_period(self.periods):
            years = int(last) - int(first) + 1
            if years < window:
                raise ValueError(
                    f"moving_yearly_window has windows of {window} years, and the period {first}-{last} has {years}; "
                    "expected periods of as many years, or shorter windows"
                )
        return self


class Adjusting(AdjustingInWindows):
    """Keyword arguments of the adjustment."""

    xclim_adjust_args: Annotated[AdjustArguments, NothingIsEmpty] = Field(
        default_factory=AdjustArguments,
        validation_alias=AliasChoices("xclim_adjust_args", "xsdba_adjust_args"),
        description="further arguments of the method's adjust",
    )
    jitter_under: JitterUnder | None = OmitDefault(
        "{thresh}: noise replaces the simulation's values under it; of dtr, 1e-4 K by default"
    )


@dataclass(frozen=True)
class Grouping:
    """Values that are treated together: a name such as "time.dayofyear", a window in time steps, more dimensions."""

    name: str
    window: int = 1
    add_dims: tuple[str, ...] = ()

    @classmethod
    def of(cls, group: str | Mapping[str, Any]) -> Grouping:
        """Read a validated group."""
        if isinstance(group, str):
            return cls(group)
        return cls(group["group"], group.get("window", 1), tuple(group.get("add_dims", ())))

    def __str__(self) -> str:
        window = f", window={self.window}" if self.window != 1 else ""
        add_dims = f"add_dims={list(self.add_dims)!r}, " if self.add_dims else ""
        return f"Grouper({add_dims}name={self.name!r}{window})"


@dataclass(frozen=True)
class Options:
    """The arguments as numbers in the data's units: what our kernels and xsdba are called with.

    `train` and `adjust` are the method's own (kind, nquantiles, …; detrend, interp, …), with thresholds as texts.
    """

    method: str
    group: Grouping
    train: Mapping[str, Any]
    adjust: Mapping[str, Any]
    jitter_under: float | None
    adapt_freq: float | None
    adapt_freq_group: Grouping
    adapt_freq_thresh: float | None
    small: float
    additive_space: Mapping[str, Any]
    year_windows: Mapping[str, int]

    @classmethod
    def of(cls, setup: Setup, method: str = DEFAULT_METHOD) -> Options:
        """Read a setup; noise is that of the training, or of the adjustment."""
        from espo_luigi.science.units import threshold_in

        given, adjusting, unit = setup.training, setup.adjusting, setup.unit
        group = Grouping.of(given["group"])
        train = dict(given.get("xclim_train_args", {}))
        adapt_freq = given.get("adapt_freq") or {}
        noise = (adjusting or given).get("jitter_under") or {}
        small = given.get("small_amounts") or {}
        # xsdba does not convert a threshold to a flux.
        numbers = {name: threshold_in(text, unit) for name, text in train.items() if "thresh" in name}
        train |= {name: f"{number!r} {unit}" for name, number in numbers.items()}
        if method == DEFAULT_METHOD:
            train.setdefault("nquantiles", DEFAULT_NQUANTILES)
        if isinstance(train.get("nquantiles"), list):
            train["nquantiles"] = np.asarray(train["nquantiles"], dtype=np.float64)
        return cls(
            method,
            group,
            train,
            adjusting.get("xclim_adjust_args", {}),
            threshold_in(noise["thresh"], unit) if noise else None,
            threshold_in(adapt_freq["thresh"], unit) if adapt_freq else None,
            Grouping.of(adapt_freq["group"]) if adapt_freq.get("group") else group,
            numbers.get("adapt_freq_thresh"),
            threshold_in(small["thresh"], unit) if small else 0.0,
            given.get("additive_space", {}),
            adjusting.get("moving_yearly_window", {}),
        )

    @property
    def kind(self) -> str:
        """Additive (+) or multiplicative (*) factors."""
        return str(self.train.get("kind", "+"))


class Xsdba(Method):
    """xsdba's univariate adjustments, by the names of their classes; or our kernels, where they do the same."""

    Training, Adjusting = Training, Adjusting
    # xsdba costs seconds a block whatever its size, and about 4 MB a cell while it adapts frequencies.
    cells_in_a_block = 300
    # It draws random numbers for a block at a time, and the shape of a block decides how its means round off.
    fixed_blocks = True

    def __init__(self, variant: str = DEFAULT_METHOD) -> None:
        if variant not in METHODS:
            raise ConfigurationError(
                f"method xsdba.{variant}; expected xsdba. with one of {', '.join(METHODS)}{nearest(variant, METHODS)}"
            )
        super().__init__(variant)

    def problems(self, training: Any, adjusting: Any) -> Iterator[InitErrorDetails]:
        """Yield an error for each argument that the class lacks, and for each missing argument that it requires."""
        if adjusting.moving_yearly_window and self.variant != "QuantileDeltaMapping":
            told, at = "only QuantileDeltaMapping ranks in windows of years", ("adjusting_args", "moving_yearly_window")
            yield problem(told, at, adjusting.moving_yearly_window)
        how = adjusting.xclim_adjust_args
        if how.interp == _OF_ITS_DAY and self.variant != "QuantileDeltaMapping":
            by_day = Grouping.of(training.model_dump()["group"]).name == "time.dayofyear"
            is_ours = self.variant == DEFAULT_METHOD and self.engine != "xsdba" and by_day
            why = why_no_kernels(self.variant, how.arguments()) if is_ours else None
            if not is_ours or why:
                told = f"{_BY_KERNELS}, of {DEFAULT_METHOD} by time.dayofyear with LoessDetrend"
                told += f" ({why}); expected nearest" if why else "; expected nearest"
                yield problem(told, ("adjusting_args", "xclim_adjust_args", "interp"), how.interp)
        if training.small_amounts and self.variant not in (DEFAULT_METHOD, "QuantileDeltaMapping"):
            told = f"the method {self.variant} has no ratios of quantiles"
            yield problem(told, ("training_args", "small_amounts"), training.small_amounts.model_dump())
        for function, section, arguments in (
            ("train", "training_args", training.xclim_train_args),
            ("adjust", "adjusting_args", adjusting.xclim_adjust_args),
        ):
            accepted, given = arguments_of(self.variant, function), arguments.arguments()
            for key in (key for key in given if key not in accepted):
                told = f"the method {self.variant} does not take it; it takes {', '.join(accepted)}"
                yield problem(told, (section, f"xclim_{function}_args", key), given[key])

    def chosen(self, setup: Setup) -> Method:
        """Return our kernels where they do the same, or itself, and log which."""
        check_pool(setup)
        reason: str | None = "asked for"
        if self.engine == "auto":
            kernels: Any = method_named(f"dqm.{self.variant}" if self.variant == "QuantileDeltaMapping" else "dqm")
            if not (reason := kernels.why_not(setup, self.variant)):
                logger.info("%s by our kernels", _doing(setup))
                return cast("Method", kernels)
        interp = setup.adjusting.get("xclim_adjust_args", {}).get("interp")
        if interp == _OF_ITS_DAY and self.variant != "QuantileDeltaMapping":
            raise ConfigurationError(f"interp: {interp}: {_BY_KERNELS}, and {reason}; expected interp: nearest.")
        logger.info("%s by xsdba: %s", _doing(setup), reason)
        return self

    def layout(self, setup: Setup) -> dict[str, Array]:
        """Return what xsdba lays out for a cell, and what the adaptation of frequencies adds."""
        training, units = _lazily_trained(self.variant, setup), {"units": setup.unit}

        def array(name: str) -> Array:
            dims = [str(dim) for dim in training[name].dims if dim != "cell"]
            sizes = {dim: training[dim].values if dim in training.coords else training.sizes[dim] for dim in dims}
            return Array(sizes, attrs=units | training[name].attrs)

        arrays = {str(name): array(str(name)) for name in training.data_vars}
        if Options.of(setup).adapt_freq is not None:
            by_group = {dim: size for dim, size in arrays["af"].dims.items() if dim != "quantiles"}
            arrays |= {name: Array(by_group, "float64", units) for name in ("pth", "dP0")}
        return arrays

    def attributes(self, setup: Setup) -> dict[str, Any]:
        """Return the attribute from which xsdba makes the trained object again, and its description."""
        return dict(_lazily_trained(self.variant, setup).attrs)

    def train(self, block: Block, setup: Setup) -> xr.Dataset:
        """Train on a block."""
        from xsdba.processing import adapt_freq

        from espo_luigi.science import seeds

        options = Options.of(setup, self.variant)
        cells = block["cell"]
        if cells.size == 1 and cells.ndim and options.train.get("max_tail_factor") is not None:
            # xsdba 0.7.0 sorts the data of a lone cell in place while it computes hist_q_raw.
            two = {name: one.isel({cells.dims[0]: [0, 0]}) for name, one in block.items()}
            return self.train(two, setup).isel({cells.dims[0]: [0]})
        reference, historical = (_prepared(block, name, setup, options) for name in ("reference", "historical"))
        with seeds.numpy_state(setup.seed, "train", int(cells.min())):
            extra: dict[str, xr.DataArray] = {}
            if space := Bounded.of(setup.units, options.additive_space):
                reference, historical = (
                    _additive(one, space, name) for name, one in (("reference", reference), ("simulation", historical))
                )
            if options.adapt_freq is not None:
                group, threshold = _grouper(options.adapt_freq_group), f"{options.adapt_freq!r} {setup.unit}"
                adapted, pth, dp0 = adapt_freq(reference, historical, group=group, thresh=threshold)
                # The random values come out as float64, which would double the size of the training.
                historical = adapted.transpose(*historical.dims).astype(historical.dtype)
                extra = {"pth": pth.astype(np.float64), "dP0": dp0.astype(np.float64)}
            trained = _train(reference, historical, options).assign(extra)
            return _limited(trained, historical, options) if options.small and options.kind == "*" else trained

    def adjust(self, block: Block, trained: xr.Dataset, setup: Setup) -> xr.Dataset:
        """Adjust a block."""
        import xsdba

        from espo_luigi.science import seeds

        options = Options.of(setup, self.variant)
        if options.year_windows:
            return self._adjust_in_windows(block, trained, setup, options)
        simulation = _prepared(block, "simulation", setup, options)
        unused = ("pth", "dP0") if options.adapt_freq_thresh is None else ()
        adjustment = self._trained(trained.drop_vars(unused, errors="ignore"), setup, options)
        arguments = dict(options.adjust)
        if arguments.get("interp") == _OF_ITS_DAY:  # of ranks, whose nearest point in the plane is their own day's
            arguments["interp"] = "nearest"
        if isinstance(arguments.get("detrend"), Mapping):
            ((name, own),) = arguments["detrend"].items()
            own = {"group": adjustment.group, "kind": adjustment.kind} | own
            arguments["detrend"] = getattr(xsdba.detrending, name)(**own)
        if space := Bounded.of(setup.units, options.additive_space):
            simulation = _additive(simulation, space, "simulation")
        state = seeds.numpy_state(setup.seed, "adjust", int(block["cell"].min()))
        with state, xsdba.set_options(extra_output=False):
            scenario = adjustment.adjust(simulation, **arguments)
        if space:
            scenario = xsdba.processing.from_additive_space(scenario, **space.arguments, units=setup.unit)
            scenario = scenario.astype(setup.dtype)
            space.limit(scenario.values)
        noise = options.jitter_under if options.kind == "*" else None
        if self.variant == "QuantileDeltaMapping" and noise is not None:
            dry = block["simulation"] < noise
            if options.adapt_freq_thresh is not None:  # a dry day may be made wet
                dry &= scenario < noise
            scenario = scenario.where(~dry, scenario.dtype.type(0))
        return scenario.to_dataset(name="scenario")

    def _adjust_in_windows(self, block: Block, trained: xr.Dataset, setup: Setup, options: Options) -> xr.Dataset:
        """Adjust each window of years by itself, and join what is kept of them."""
        from espo_luigi.science.chunks import join

        adjusting, parts = {key: one for key, one in setup.adjusting.items() if key != "moving_yearly_window"}, []
        for first, last, kept_first, kept_last in year_windows(setup.time.year, **options.year_windows):
            time = replace(setup.time, days=setup.time.days[first:last])
            of_window = {**block, "simulation": block["simulation"].isel(time=slice(first, last))}
            made = self.adjust(of_window, trained, replace(setup, time=time, adjusting=adjusting))
            parts.append(made.isel(time=slice(kept_first - first, kept_last - first)))
        return join(parts, "time")

    def _trained(self, trained: xr.Dataset, setup: Setup, options: Options) -> Any:
        """Return xsdba's trained object, of its own training or of our kernels'."""
        import xsdba
        from xsdba.adjustment import TrainAdjust

        if ATTRIBUTE in setup.attrs:
            return TrainAdjust.from_dataset(trained.assign_attrs(setup.attrs))
        own = {name: options.train.get(name) for name in ("adapt_freq_thresh", "max_tail_factor")}
        made = getattr(xsdba, self.variant)(
            _trained=True,
            hist_calendar=setup.time.calendar,
            train_units=setup.unit,
            group=_grouper(options.group),
            kind=options.kind,
            **own,
        )
        made.set_dataset(trained)
        return made

    def describe(self, setup: Setup) -> str:
        """Return the calls of xsdba that make the scenario, whatever computes it."""
        options, given = Options.of(setup, self.variant), setup.training
        own = ("kind", "adapt_freq_thresh", "max_tail_factor") if self.variant == DEFAULT_METHOD else options.train
        shown = {name: options.kind if name == "kind" else options.train.get(name) for name in own}
        trained = ", ".join([f"group={options.group}", *(f"{name}={value!r}" for name, value in shown.items())])
        adjusted = ", ".join(f"{name}={value!r}" for name, value in options.adjust.items())
        # xscen names the arguments since it trains pools.
        pooled = f" with xsdba_train_args: {dict(given.get('xclim_train_args', {}))}" if setup.members else ""
        if options.year_windows:
            adjusted += f", moving_yearly_window={dict(options.year_windows)}"
        space = given.get("additive_space")
        steps = [
            f"{function}(ref, hist, {given[key]!r})"
            for key, function in (("jitter_under", "jitter_under_thresh"), ("adapt_freq", "adapt_freq"))
            if given.get(key)
        ]
        prepared = f", ref and hist were prepared with {' and '.join(steps)}" if steps else ""
        transformed = f", ref, hist and sim were transformed with to_additive_space({space!r})" if space else ""
        if small := given.get("small_amounts"):
            transformed += f", ratios are at most 2 where hist is below {small['thresh']}"
        return f"{self.variant}({trained}).adjust(sim, {adjusted}){pooled}{prepared}{transformed}"


def check_pool(setup: Setup) -> None:
    """Raise an error unless a simulation has members exactly if the group pools them."""
    pools = bool(Grouping.of(setup.training["group"]).add_dims)
    if pools and setup.members is None:
        raise DataError(
            "the simulation has no dimension realization, and the group pools it; leave add_dims out, or give the "
            "members along realization."
        )
    if setup.members is not None and not pools:
        raise ConfigurationError(
            f"the simulation has {len(setup.members)} members along realization, and the group pools no dimension; "
            "expected add_dims: [realization] in the group, or one member at a time."
        )


def _doing(setup: Setup) -> str:
    return f"{'adjustment' if setup.adjusting else 'training'} of {' and '.join(setup.units)}"


def _grouper(group: Grouping) -> xsdba.Grouper:
    import xsdba

    return xsdba.Grouper(group.name, group.window, list(group.add_dims))


@functools.lru_cache(maxsize=1)
def _lazily_trained(variant: str, setup: Setup) -> xr.Dataset:
    """Return what xsdba would make of a cell, lazily."""
    import dask.array
    import xarray as xr

    zeros = dask.array.zeros((1, len(setup.time)), dtype=setup.dtype, chunks=-1)
    coords, attrs = {"time": setup.time.index}, {"units": setup.unit}
    reference = xr.DataArray(zeros, dims=("cell", "time"), coords=coords, attrs=attrs)
    historical = reference if setup.members is None else reference.expand_dims(realization=len(setup.members), axis=1)
    return _train(reference, historical, Options.of(setup, variant))


def _additive(data: xr.DataArray, space: Bounded, series: str) -> xr.DataArray:
    """Return a series in the space where differences make sense; there it keeps the data's units, for xsdba."""
    import xsdba

    space.check(data.values, series)
    if space.margin:
        data = data.copy()
        space.limit(data.values)
    transformed = xsdba.processing.to_additive_space(data, **space.arguments, clip_next_to_bounds=space.clip)
    return transformed.assign_attrs(units=data.attrs["units"])


def _prepared(block: Block, name: str, setup: Setup, options: Options) -> xr.DataArray:
    """Return a series of the block, contiguous, with noise if there has to be some."""
    from espo_luigi.methods.dqm import quantile_mapping

    data, cells = block[name], block["cell"]
    values = np.ascontiguousarray(data.values)
    if options.jitter_under is not None:
        flat = values.reshape(cells.size, *values.shape[cells.ndim :])
        texts = setup.member_seeds if "realization" in data.dims else [setup.seed]
        seeds = quantile_mapping.seeds_of_members(texts, cells.values)
        values = quantile_mapping.jitter(flat, options.jitter_under, seeds=seeds, series=name).reshape(values.shape)
    return data.copy(data=values)


def _limited(trained: xr.Dataset, historical: xr.DataArray, options: Options) -> xr.Dataset:
    """Return a training whose ratios are at most 2 where the historical quantile is small."""
    ratio, mean = trained["af"], 1
    if "scaling" in trained:
        ratio, mean = ratio * trained["scaling"], _grouper(options.group).apply("mean", historical)
    is_small = (trained["hist_q"] * mean < options.small) & (ratio > 2)
    limited = trained["af"].where(~is_small, trained["af"] * 2 / ratio)
    return trained.assign(af=limited.transpose(*trained["af"].dims).astype(trained["af"].dtype))


def _train(reference: xr.DataArray, historical: xr.DataArray, options: Options) -> xr.Dataset:
    """Train, and drop what xsdba fills with NaN unless a maximal tail factor is used."""
    import xsdba

    method = getattr(xsdba.adjustment, options.method)
    made = method.train(reference, historical, group=_grouper(options.group), **options.train).ds
    return made if options.train.get("max_tail_factor") is not None else made.drop_vars("hist_q_raw", errors="ignore")
