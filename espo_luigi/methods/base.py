"""The interface of adjustment methods, and the look-up of a method by its name.

A method does the numbers of a block of cells, in memory. `blocks` does what surrounds the numbers: periods, calendars,
units, blocks of cells, attributes.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from pydantic import BeforeValidator, Field, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from espo_luigi.errors import ConfigurationError
from espo_luigi.fields import OmitDefault, Period, Periods, Section, registered
from espo_luigi.science.periods import AlignOn

if TYPE_CHECKING:
    import numpy as np
    import xarray as xr

    from espo_luigi.science.calendar import TimeAxis

# xsdba's methods, by the names of their classes.
MethodName = Literal["DetrendedQuantileMapping", "EmpiricalQuantileMapping", "QuantileDeltaMapping", "Scaling"]
METHODS: tuple[str, ...] = get_args(MethodName)
DEFAULT_METHOD: MethodName = "DetrendedQuantileMapping"
# Those that adjust several variables together.
TOGETHER = ("MBCn",)
# What computes an adjustment: our kernels where they can, else xsdba; or always xsdba.
Engine = Literal["auto", "xsdba"]

_OURS = {
    "xsdba": "espo_luigi.methods.xsdba:Xsdba",
    "dqm": "espo_luigi.methods.dqm.method:Kernels",
    "ibicus": "espo_luigi.methods.ibicus:Ibicus",
    "MBCn": "espo_luigi.methods.mbcn.method:MBCn",
}

# Methods of earlier versions, and what to take in their place.
GONE_METHODS = {
    "LOCI": "DetrendedQuantileMapping or QuantileDeltaMapping with adapt_freq_thresh, which adapt wet days, too",
    **dict.fromkeys(("OTC", "dOTC"), "MBCn, or a method of your own that calls xsdba (`espo docs own-method`)"),
}

Block = Mapping[str, "xr.DataArray"]


class TrainingSection(Section):
    """Keyword arguments of the training: those of every method."""

    period: Period = Field(description="first and last year of the training; custom.ref_period by default")
    align_on: AlignOn | None = Field(default=None, description="how days are matched between calendars")


class AdjustingSection(Section):
    """Keyword arguments of the adjustment: those of every method."""

    periods: Periods = Field(description="years that are adjusted; custom.sim_period by default")
    bias_adjust_institution: str | None = Field(default=None, description="attribute of the scenarios")
    bias_adjust_project: str | None = Field(default=None, description="attribute of the scenarios")
    align_on: AlignOn | None = Field(default=None, description="how days are matched between calendars")
    bias_adjust_reference: str | None = OmitDefault(
        "attribute of the scenarios; of ESPO v2, the reference's source by default"
    )


class Array(NamedTuple):
    """An array of the training store: its dimensions after the cells', each with its size or its coordinates.

    `dtype` is the series' by default.
    """

    dims: Mapping[str, int | Sequence[Any] | np.ndarray]
    dtype: str | None = None
    attrs: Mapping[str, Any] = {}


class Step(NamedTuple):
    """A value on the way from the simulation to the scenario, of one cell on one day, with a sentence about it."""

    name: str
    value: float
    unit: str
    sentence: str = ""


@dataclass(frozen=True, eq=False)
class Setup:
    """All that training or adjusting a block needs besides the series.

    Attributes
    ----------
    units
        The reference's units, which the series have, by variable: a single one, or those that are adjusted together.
    time
        The dates of the simulation while adjusting, else of reference and historical.
    dtype
        The type of the series.
    training, adjusting
        Validated arguments, without absent ones; `adjusting` is empty while training.
    seed
        Names the random draws; with the cell's place and the member's label, it decides them.
    members
        Labels of the members along `realization`; None without this dimension.
    calibration
        The dates of reference and historical while adjusting, for methods that need them then.
    attrs
        Attributes that the training store got from the method.
    keeps_ranks
        Whether `adjust` returns `quantile`, too, if the method's `ranks`: uint16, see `dqm.ranking.as_quantiles`.
    """

    units: Mapping[str, str]
    time: TimeAxis
    dtype: np.dtype[Any]
    training: Mapping[str, Any]
    seed: str
    adjusting: Mapping[str, Any] = field(default_factory=dict)
    members: tuple[str, ...] | None = None
    calibration: TimeAxis | None = None
    attrs: Mapping[str, Any] = field(default_factory=dict)
    keeps_ranks: bool = False

    @property
    def unit(self) -> str:
        """The units of the first, mostly the only variable."""
        return next(iter(self.units.values()))

    @property
    def member_seeds(self) -> list[str]:
        """A seed for each member: its draws do not depend on the other members, nor on their number."""
        return [self.seed] if self.members is None else [f"{self.seed}+{label}" for label in self.members]


class Method:
    """A method of bias adjustment; subclasses are registered under the entry-point group `espo_luigi.methods`.

    A block is a mapping of series in memory: `reference` and `historical` while training, `simulation` while
    adjusting, and `cell`, each cell's place in the domain. Series are xr.DataArray (cells…, [realization], time) with
    their dates along `time`, and all have the units of `setup`. With `variables_together`, `variable` is their first
    dimension, `setup.units` has the units of each, and `latitude` is that of each cell, if the series have some. A cell
    without data is NaN throughout, and has to stay so.

    Attributes
    ----------
    Training, Adjusting
        The models of `training_args` and `adjusting_args`.
    trains
        False: there is no training, and no task for it; `trained` is then empty.
    variables_together
        Whether several variables are adjusted at once: `variables: [tasmax, pr]` in the configuration.
    variables
        The names of the variables that it can adjust; empty for all.
    needs_reference_to_adjust
        Whether `adjust` gets `reference` and `historical`, too, over the training's period.
    counts
        Names of what a day's value may be treated by, at most 8. `adjust` then returns `treated`, too: uint8 with the
        scenario's dimensions, whose bit n marks the days of `counts[n]`. Not with `variables_together`.
    cells_in_a_block, fixed_blocks
        The number of cells in a block, which memory limits; whether blocks have to be the same each time, because
        random numbers are drawn by block. Unless they are fixed, lazy series of one simulation keep the blocks that
        they come with: in a run, those of the stores. Those of a pool, and what is in memory, are cut.
    dated
        Whether the series of a block get their dates; without them, `setup.time` has to do.
    draws_by_cell
        Whether a cell's random numbers do not depend on the block, even if `fixed_blocks`: an audit makes a cell again
        without its block.
    """

    Training: type[TrainingSection] = TrainingSection
    Adjusting: type[AdjustingSection] = AdjustingSection
    trains = True
    variables_together = False
    variables: tuple[str, ...] = ()
    needs_reference_to_adjust = False
    counts: tuple[str, ...] = ()
    cells_in_a_block = 300
    fixed_blocks = False
    draws_by_cell = False
    dated = True
    name = ""
    engine: Engine = "auto"

    def __init__(self, variant: str = "") -> None:
        self.variant = variant

    def problems(self, training: Any, adjusting: Any) -> Iterator[InitErrorDetails]:
        """Yield errors about arguments that contradict each other; `loc` begins with the section's name."""
        yield from ()

    def chosen(self, setup: Setup) -> Method:
        """Return what computes this: the method itself, or a faster way to the same numbers.

        Raises `ConfigurationError` if the method cannot do what the arguments ask for with these data.
        """
        return self

    def bits(self, setup: Setup) -> dict[str, int]:
        """Return the bits of `treated`, by their names in `counts`, that days may have by these arguments."""
        return {name: 1 << place for place, name in enumerate(self.counts)}

    def ranks(self, setup: Setup) -> bool:
        """Return whether it ranks days among those of nearby years and days of the year."""
        return False

    def layout(self, setup: Setup) -> Mapping[str, Array]:
        """Return the arrays that `train` makes, by name."""
        raise NotImplementedError(f"{type(self).__name__}.layout; expected the arrays that `train` returns, by name.")

    def attributes(self, setup: Setup) -> Mapping[str, Any]:
        """Return attributes of the training store, which `adjust` finds in `setup.attrs`."""
        return {}

    def train(self, block: Block, setup: Setup) -> xr.Dataset:
        """Train on `reference` and `historical`, which have the same dates; return the arrays of `layout`."""
        raise NotImplementedError(f"{type(self).__name__}.train; set trains = False if nothing is trained.")

    def adjust(self, block: Block, trained: xr.Dataset, setup: Setup) -> xr.Dataset:
        """Adjust `simulation`; return `scenario` with its dimensions, and `treated` if the method has `counts`."""
        raise NotImplementedError(f"{type(self).__name__}.adjust")

    def steps(
        self, block: Block, trained: xr.Dataset, setup: Setup, day: int, member: int = 0, variable: str = ""
    ) -> list[Step]:
        """Return the steps from the simulation to the scenario of a block of one cell.

        `day` is the place of the day along `time`, `member` that along `realization`; `variable` names that of several
        together. The last step's value is the scenario's. Without steps, an audit compares the values only.
        """
        return []

    def describe(self, setup: Setup) -> str:
        """Return the text of the scenario's attribute `bias_adjustment`."""
        given = {**setup.training, **setup.adjusting}
        return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in given.items())})"


def method_named(name: str = DEFAULT_METHOD, engine: Engine = "auto") -> Method:
    """Return the method of a name, `NAME` or `NAME.VARIANT`; a name of xsdba's alone stands for `xsdba.NAME`.

    Raises
    ------
    ConfigurationError
        If there is no such method, its package cannot be imported, or it has more than 8 `counts`, or any of variables
        that are adjusted together.
    """
    if engine not in get_args(Engine):
        raise ConfigurationError(f"engine is {engine!r}; expected {' or '.join(get_args(Engine))}.")
    if instead := GONE_METHODS.get(name.removeprefix("xsdba.")):
        known = ", ".join((*METHODS, *TOGETHER))
        raise ConfigurationError(f"method is {name!r}, which espo_luigi no longer has: take {instead}. It has {known}.")
    package, _, variant = f"xsdba.{name}".partition(".") if name in METHODS else name.partition(".")
    method = _class_of(package)(variant)
    method.name, method.engine = name, engine
    if method.counts and method.variables_together:
        raise ConfigurationError(
            f"method {name} counts days ({', '.join(method.counts)}) of variables that it adjusts together "
            "(variables_together), and products could not tell whose they are; expected `counts` without names. "
            "Correct the method's class."
        )
    if len(method.counts) > 8:
        raise ConfigurationError(
            f"method {name} has {len(method.counts)} names in `counts` ({', '.join(method.counts)}); expected at most "
            "8, the bits of `treated`. Correct the method's class."
        )
    return method


# Thousands of tasks ask for their methods, and to look through all installed packages takes milliseconds.
@functools.cache
def _class_of(package: str) -> type[Method]:
    return registered(Method, package, _OURS, METHODS)


def problem(told: str, loc: tuple[int | str, ...], given: Any) -> InitErrorDetails:
    """Return the error of validation that says so, about what is given at a place."""
    return InitErrorDetails(type=PydanticCustomError("value_error", "{told}", {"told": told}), loc=loc, input=given)


def no_longer(gone: tuple[str, ...], instead: str) -> BeforeValidator:
    """Refuse a value, or a key of a mapping, of earlier versions, with what to take in its place."""

    def refused(value: Any) -> Any:
        if found := [one for one in (value if isinstance(value, Mapping) else [value]) if one in gone]:
            raise ValueError(f"espo_luigi no longer has {found[0]}: {instead}")
        return value

    return BeforeValidator(refused)


def checked(section: type[Section], arguments: Mapping[str, Any], what: str) -> Any:
    """Return arguments as their section.

    Raises
    ------
    ConfigurationError
        If an argument is unknown, missing or wrong.
    """
    try:
        return section.model_validate(dict(arguments))
    except ValidationError as error:
        told = [
            f"{'.'.join(map(str, (what, *one['loc'])))}: {one['msg'].removeprefix('Value error, ')}, "
            f"and got {one['input']!r}"
            for one in error.errors()
        ]
        raise ConfigurationError("; ".join(told)) from error
