"""Several variables adjusted together: MBCn, and xsdba's OTC and dOTC, so that their joint distribution is kept.

MBCn (Cannon 2018, doi:10.1007/s00382-017-3580-6) reorders univariate values by ranks, OTC and dOTC (Robin et al. 2019,
doi:10.5194/hess-23-773-2019) map days to days. Nothing is trained before; each cell, and each member of a pool, is
adjusted by itself, with random draws of its own, in double precision.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import xarray as xr
from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import InitErrorDetails
from scipy.ndimage import distance_transform_edt

from espo_luigi.errors import ConfigurationError, DataError
from espo_luigi.fields import Arguments, Integer, Named, Number, OmitDefault, PositiveThreshold, single_or_mapping
from espo_luigi.methods.base import Block, Method, Setup, Step, TrainingSection, problem
from espo_luigi.methods.bounded import Bounded
from espo_luigi.methods.dqm.windows import YearWindow, spans_of
from espo_luigi.methods.xsdba import (
    AdditiveSpace,
    AdjustingInWindows,
    Group,
    Grouping,
    GroupOfDays,
    JitterUnder,
    Kind,
    SmallAmounts,
    as_quantiles,
)
from espo_luigi.science import seeds
from espo_luigi.science.calendar import TimeAxis
from espo_luigi.science.chunks import REALIZATION
from espo_luigi.science.finalize.radiation import potential_radiation
from espo_luigi.science.periods import each_period
from espo_luigi.science.units import threshold_in

logger = logging.getLogger(__name__)

if TYPE_CHECKING:  # compiled kernels take longer to import than a configuration to be read
    from espo_luigi.methods.mbcn.transform import Plan

_SERIES = ("reference", "historical", "simulation")
# On days that could not have so much, parts of the potential radiation are no numbers to adjust.
_DARK = "1 W m-2"
_DIM = "multivar"


GroupNameTogether = Literal["time.dayofyear", "5D", "time.month", "time"]


class GroupTogether(GroupOfDays):
    """A grouping of MBCn."""

    group: GroupNameTogether = Field(description="the grouping's name")  # type: ignore[assignment]

    @model_validator(mode="after")
    def _fits(self) -> GroupTogether:
        if self.group == "time.month" and self.window > 1:
            raise ValueError(f"months have no window, and it is {self.window}; take 5D or time.dayofyear")
        days = 5 if self.group == "5D" else 1
        if self.window % 2 == 0 or self.window * days >= 360:
            expected = "an odd window, of steps of five days, below 72" if days == 5 else "an odd window below 360"
            raise ValueError(f"expected {expected}, and it is {self.window}")
        return self


_group = single_or_mapping(str, GroupNameTogether, GroupTogether, "expected text or a mapping")


class VariableArguments(Arguments):
    """How a variable of the group is treated by itself."""

    kind: Kind | None = Field(default=None, description="additive (+) or multiplicative (*) factors; + by default")
    jitter_under: JitterUnder | None = Field(
        default=None,
        description="{thresh}: noise replaces values under it in all series; with adapt_freq_thresh, 0 in the scenario",
    )
    adapt_freq_thresh: PositiveThreshold | None = Field(
        default=None, description="dry days are adapted up to this; kind `*`"
    )
    additive_space: AdditiveSpace | None = Field(
        default=None, description="{lower_bound, upper_bound, trans, margin, clip_next_to_bounds}, as for one variable"
    )
    ratio_to: Literal["potential_radiation"] | None = OmitDefault(
        "days are adjusted and exchanged as parts of this, at most 1: of rsds, the clearness index"
    )

    @model_validator(mode="after")
    def _without_contradiction(self) -> VariableArguments:
        kind, tail = self.kind or "+", getattr(self, "max_tail_factor", None)
        if self.adapt_freq_thresh and kind != "*":
            raise ValueError(f'adapt_freq_thresh makes dry days wet and needs kind "*", and the kind is {kind!r}')
        of_amounts = self.adapt_freq_thresh or getattr(self, "small_amounts", None)
        if self.ratio_to and (of_amounts or (self.additive_space and self.additive_space.arguments())):
            raise ValueError("ratio_to has no adapt_freq_thresh, small_amounts or additive_space: these are no ratios")
        if self.additive_space and self.additive_space.arguments() and (kind != "+" or tail is not None):
            raise ValueError(f'additive_space needs kind "+" without max_tail_factor, and the kind is {kind!r}')
        return self


class VariableOfMBCn(VariableArguments):
    """How MBCn adjusts a variable before it reorders the values."""

    nquantiles: Annotated[int | list[float], BeforeValidator(as_quantiles)] | None = Field(
        default=None, description="how many quantiles, or which; 50 in usual settings, else the rotations'"
    )
    max_tail_factor: Annotated[Number, Field(gt=0)] | None = Field(
        default=None, description="values over so many last quantiles are kept"
    )
    small_amounts: SmallAmounts | None = Field(
        default=None, description="{thresh}: by our kernels, simulated values under it are at most doubled"
    )


class VariableOfTransport(VariableArguments):
    """How OTC and dOTC see a variable."""

    bin_width: Annotated[Number, Field(gt=0)] | None = Field(
        default=None, description="the width of its bins, in the reference's unit; by Freedman and Diaconis by default"
    )
    bin_origin: Number | None = Field(default=None, description="where its bins begin; 0 by default")


class MBCnTraining(TrainingSection):
    """`training_args` of MBCn."""

    group: Annotated[GroupNameTogether | GroupTogether, _group] = Field(
        description="days that are treated together: {group, window, add_dims}; a window of 5D has steps of five days"
    )
    n_iter: Annotated[Integer, Field(ge=1)] = Field(default=20, description="the number of rotations")
    nquantiles: Annotated[int | list[float], BeforeValidator(as_quantiles)] = Field(
        default=20, description="how many quantiles the rotations have, or which"
    )
    interp: Literal["nearest", "linear"] = Field(default="nearest", description="how factors are found")
    extrapolation: Literal["constant"] = Field(default="constant", description="factors beyond the quantiles")
    base: Literal["QuantileDeltaMapping", "DetrendedQuantileMapping"] = Field(
        default="QuantileDeltaMapping", description="the adjustment of each variable by itself"
    )
    by_variable: Named[VariableOfMBCn] = OmitDefault("how each variable is treated by itself", {})


class OTCTraining(TrainingSection):
    """`training_args` of OTC."""

    group: Group = Field(default="time", description="days that are treated together")
    num_iter_max: Annotated[Integer, Field(ge=1)] = Field(
        default=100_000_000, description="iterations of the search for a plan, at most"
    )
    jitter_inside_bins: bool = Field(default=True, description="places within bins are drawn, not their middle")
    normalization: Literal["standardize", "max_distance", "max_value"] = Field(
        default="max_distance", description="how distances of different variables are made comparable"
    )
    by_variable: Named[VariableOfTransport] = OmitDefault("how each variable is treated by itself", {})


class DOTCTraining(OTCTraining):
    """`training_args` of dOTC."""

    cov_factor: Literal["std", "cholesky", "none"] = Field(
        default="std", description="how the simulation's change is scaled to the reference"
    )


_TRAINING: Mapping[str, type[TrainingSection]] = {"MBCn": MBCnTraining, "OTC": OTCTraining, "dOTC": DOTCTraining}


class Together(Method):
    """MBCn, by our kernels or by xsdba, and xsdba's OTC and dOTC."""

    Adjusting = AdjustingInWindows
    trains = False
    variables_together = True
    needs_reference_to_adjust = True
    # In double precision, three variables of 151 years have 1.3 MB a cell.
    cells_in_a_block = 50
    # Those of the stores are larger; besides, xsdba's MBCn adapts frequencies of a block at a time.
    fixed_blocks = True

    def __init__(self, variant: str) -> None:
        super().__init__(variant)
        if variant != "MBCn" and not find_spec("ot"):
            raise ConfigurationError(f"method {variant} needs the package POT: pip install espo_luigi[together]")
        self.Training = _TRAINING[variant]

    @property
    def draws_by_cell(self) -> bool:  # type: ignore[override]
        """Whether a cell can be made again by itself."""
        return self.variant != "MBCn" or not self.by_xsdba

    @property
    def by_xsdba(self) -> bool:
        """Whether xsdba computes it, which takes as many days of the simulation as of the reference at once."""
        return self.engine == "xsdba" or self.variant != "MBCn"

    def problems(self, training: Any, adjusting: Any) -> Iterator[InitErrorDetails]:
        """Yield errors about periods and groups that the method or its engine cannot take."""
        first, last = map(int, training.period)
        years, window = last - first + 1, adjusting.moving_yearly_window
        periods = [(int(one), int(other)) for one, other in each_period(adjusting.periods)]
        told = "" if self.variant != "MBCn" else " with `engine: xsdba`"
        if self.variant == "OTC" and (window or periods != [(first, last)]):
            yield problem(
                f"OTC corrects the years of the training only, {first}-{last}; expected them, or `method: dOTC`",
                ("adjusting_args", "periods"),
                adjusting.periods,
            )
        elif self.by_xsdba and any((window.window if window else other - one + 1) != years for one, other in periods):
            yield problem(
                f"{self.variant}{told} adjusts as many years at once as the training has, {years}; expected periods "
                f"of so many, or `moving_yearly_window` with such a window",
                ("adjusting_args", "moving_yearly_window"),
                window,
            )
        group, at = Grouping.of(training.model_dump()["group"]), ("training_args", "group")
        if self.by_xsdba and group.add_dims:
            yield problem(f"{self.variant}{told} adjusts each member by itself; leave add_dims out", at, training.group)
        if self.by_xsdba and self.variant == "MBCn" and group.name == "time.month":
            yield problem("xsdba's MBCn has no months; expected time.dayofyear, 5D or time", at, training.group)
        yield from self._problems_of_variables(training)

    def _problems_of_variables(self, training: Any) -> Iterator[InitErrorDetails]:
        for name, one in training.by_variable.items():
            at = ("training_args", "by_variable", name)
            if self.variant == "OTC" and one.adapt_freq_thresh:
                yield problem("xsdba's OTC fails with it; leave it out", (*at, "adapt_freq_thresh"), name)
            if one.kind == "*" and (self.variant == "OTC" or getattr(training, "cov_factor", "") == "cholesky"):
                given = "OTC" if self.variant == "OTC" else "cov_factor: cholesky"
                yield problem(f"{given} has no multiplicative factors; expected '+'", (*at, "kind"), one.kind)

    def chosen(self, setup: Setup) -> Method:
        """Return itself, and log which code computes.

        Raises
        ------
        ConfigurationError
            If xsdba would count steps of five days in years of other lengths than 365 days.
        """
        longest, group = setup.time.days_in_longest_year, Grouping.of(setup.training["group"])
        if self.by_xsdba and group.name == "5D" and longest != 365:
            raise ConfigurationError(
                f"training_args.group: 5D by xsdba is for years of 365 days, and the simulation's have {longest} "
                f"({setup.time.calendar}); expected time.dayofyear, or `engine: auto`."
            )
        logger.info(
            "%s of %s by %s", self.variant, " and ".join(setup.units), "xsdba" if self.by_xsdba else "our kernels"
        )
        return self

    def adjust(self, block: Block, trained: xr.Dataset, setup: Setup) -> xr.Dataset:
        """Adjust each cell, and each member by itself.

        A cell of which a variable has no day at all is NaN; by our kernels, so is any day that lacks a variable.

        Raises
        ------
        DataError
            By xsdba, if a cell lacks some days.
        """
        cells, data, series = block["cell"].values.ravel(), block["simulation"], _series(block, setup)
        made = self._by_xsdba(series, setup, cells) if self.by_xsdba else _by_kernels(series, setup, cells)
        for name, under in _dry(setup).items():
            values = made[list(setup.units).index(name)]
            values[values < under] = 0
        scenario = np.stack([_put_back(made[place], name, block, setup) for place, name in enumerate(setup.units)])
        return data.copy(data=scenario.reshape(data.shape)).to_dataset(name="scenario")

    def steps(
        self, block: Block, trained: xr.Dataset, setup: Setup, day: int, member: int = 0, variable: str = ""
    ) -> list[Step]:
        """Return the steps of a variable's value; none of a missing value, or by xsdba."""
        if self.by_xsdba:
            return []
        from espo_luigi.methods.mbcn.steps import steps_of_day
        from espo_luigi.methods.mbcn.transform import TRACED

        place, space, unit = list(setup.units).index(variable), _spaces(setup)[variable], setup.units[variable]
        series = _series(block, setup)
        traced = np.full((len(TRACED), *series["simulation"].shape), np.nan)
        made = _by_kernels(series, setup, block["cell"].values.ravel(), traced)
        traced[0, place] = _put_back(traced[0, place], variable, block, setup)
        given, value = (
            float(_put_back(one[place], variable, block, setup)[0, member, day]) for one in (series["simulation"], made)
        )
        told = steps_of_day(
            traced[:, place, 0], given, value, setup, variable=variable, units=unit, day=day, member=member
        )
        if not told:
            return []
        if variable in _by_variable(setup, "ratio_to"):
            told.insert(0, Step("ratio", float(series["simulation"][place, 0, member, day]), "1", "Of the potential."))
        elif not space and given != float(block["simulation"].values.reshape(made.shape)[place, 0, member, day]):
            told.insert(0, Step("noise", given, unit, "Values below `jitter_under` are noise."))
        if made[place, 0, member, day] < _dry(setup).get(variable, -np.inf):
            told.append(Step("dry", 0.0, unit, "Amounts below `jitter_under` are 0 again."))
        return told

    def _by_xsdba(self, series: Mapping[str, np.ndarray], setup: Setup, cells: np.ndarray) -> np.ndarray:
        """Return the scenario of all cells with data, each member by itself."""
        known, made = _with_data(series, setup, cells), np.full(series["simulation"].shape, np.nan)
        # xsdba's MBCn costs seconds a group of days, however many cells; optimal transport goes cell by cell anyhow.
        parts = known[None] if self.variant == "MBCn" else known[:, None]
        for places in (part for part in parts if part.size):
            for member, seed in enumerate(setup.member_seeds):
                given = {name: one[:, places, min(member, one.shape[2] - 1)] for name, one in series.items()}
                made[:, places, member] = self._in_windows(given, setup, seed, cells[places])
        return made

    def _in_windows(self, given: Mapping[str, np.ndarray], setup: Setup, seed: str, cells: np.ndarray) -> np.ndarray:
        """Return the scenario of series (variable, cell, time), in windows of years."""
        years = setup.time.year
        assert setup.calibration is not None
        days, made = len(setup.calibration), np.empty_like(given["simulation"])
        for first, last, kept_first, kept_last in spans_of(years, setup.adjusting.get("moving_yearly_window")):
            if last - first != days:
                raise DataError(
                    f"{int(years[first])}-{int(years[last - 1])} has {last - first} days, and the training {days}; "
                    f"expected as many for {self.variant} by xsdba. Give periods of as many years, which the data have."
                )
            before = {name: _stacked(given[name], setup, setup.calibration.index) for name in _SERIES[:2]}
            simulation = _stacked(given["simulation"][..., first:last], setup, setup.time.index[first:last])
            with drawing(seed, f"{self.variant}+{first}", int(cells.min())):
                if self.variant == "MBCn":
                    scenario = _mbcn(before, simulation, setup, seed, cells)
                else:
                    scenario = self._transport(before, simulation, setup)
            values = scenario.transpose(_DIM, "cell", "time").values
            made[..., kept_first:kept_last] = values[..., kept_first - first : kept_last - first]
        return made

    def _transport(self, before: Mapping[str, xr.DataArray], simulation: xr.DataArray, setup: Setup) -> xr.DataArray:
        """Return what xsdba's OTC or dOTC makes of a cell."""
        import xsdba

        given = setup.training
        arguments = {name: given[name] for name in ("num_iter_max", "jitter_inside_bins", "normalization")}
        for name in ("bin_width", "bin_origin", *(["kind"] if self.variant == "dOTC" else [])):
            arguments[name] = _by_variable(setup, name) or None
        arguments["group"] = _grouper(Grouping.of(given["group"]))
        with xsdba.set_options(extra_output=False):
            if self.variant == "OTC":
                return xsdba.OTC.adjust(before["reference"], simulation, **arguments)
            cov = None if given["cov_factor"] == "none" else given["cov_factor"]
            arguments |= {"cov_factor": cov, "adapt_freq_thresh": _texts(setup)}
            return xsdba.dOTC.adjust(*before.values(), simulation, **arguments)


def _by_kernels(
    series: Mapping[str, np.ndarray], setup: Setup, cells: np.ndarray, traced: np.ndarray | None = None
) -> np.ndarray:
    """Return MBCn's scenario, (variable, cell, member, time), of members together or each by itself."""
    from espo_luigi.methods.dqm.method import given_threads, levels_of
    from espo_luigi.methods.mbcn import transform

    given = setup.training
    pools = [setup.seed] if Grouping.of(given["group"]).add_dims else setup.member_seeds
    own, dry = {name: given.get("by_variable", {}).get(name, {}) for name in setup.units}, _thresholds(setup)
    small = _noise(setup, "small_amounts")
    draws = [[seeds.cell_generator(seed, "adapt_freq", int(cell)) for seed in pools] for cell in cells]
    size = given["n_iter"], len(setup.units)
    return transform.adjust(
        series["reference"][:, :, 0],
        series["historical"],
        series["simulation"],
        _plan(setup),
        rotations=np.stack([[rotations(seed, int(cell), *size) for seed in pools] for cell in cells]),
        levels=levels_of(given["nquantiles"]),
        variables=[
            transform.Univariate(
                one.get("kind", "+"),
                levels_of(one.get("nquantiles", given["nquantiles"])),
                dry.get(name),
                one.get("max_tail_factor"),
                small.get(name, 0.0),
            )
            for name, one in own.items()
        ],
        interp=given["interp"],
        # xsdba's own default.
        detrend=1 if given["base"] == "DetrendedQuantileMapping" else None,
        seeds=np.array([[one.integers(2**63) for one in row] for row in draws], np.uint64),
        traced=traced,
        threads=given_threads(),
    )


def _plan(setup: Setup) -> Plan:
    """Lay out the samples, which all blocks of a period share."""
    group, days = Grouping.of(setup.training["group"]), (setup.calibration, setup.time)
    axes = [(axis.calendar, axis.days.tobytes()) for axis in days if axis is not None]
    spans = spans_of(setup.time.year, setup.adjusting.get("moving_yearly_window"))
    return _laid_out(tuple(axes), group.name, group.window, tuple(spans))


@functools.lru_cache(maxsize=4)
def _laid_out(axes: tuple[tuple[str, bytes], ...], group: str, window: int, spans: tuple[YearWindow, ...]) -> Plan:
    """Lay out the samples of the dates of calibration and simulation; setups of other blocks have equal ones."""
    from espo_luigi.methods.mbcn.transform import plan

    calibration, simulation = (TimeAxis(calendar, np.frombuffer(days)) for calendar, days in axes)
    return plan(calibration, simulation, group=group, window=window, spans=spans)


def _by_variable(setup: Setup, key: str) -> dict[str, Any]:
    """Return an argument of the variables that have it."""
    return {name: one[key] for name, one in setup.training.get("by_variable", {}).items() if one.get(key) is not None}


def _thresholds(setup: Setup) -> dict[str, float]:
    """Return the thresholds of dry days, in the variables' units."""
    given = _by_variable(setup, "adapt_freq_thresh")
    return {name: threshold_in(one, setup.units[name]) for name, one in given.items()}


def _noise(setup: Setup, key: str = "jitter_under") -> dict[str, float]:
    """Return the thresholds of noise, or of small amounts, in the variables' units."""
    given = _by_variable(setup, key)
    return {name: threshold_in(one["thresh"], setup.units[name]) for name, one in given.items() if one}


def _dry(setup: Setup) -> dict[str, float]:
    """Return the thresholds of the noise of amounts: values with `adapt_freq_thresh`, other than small ranges."""
    amounts = _by_variable(setup, "adapt_freq_thresh")
    return {name: under for name, under in _noise(setup).items() if name in amounts}


def _texts(setup: Setup) -> dict[str, str]:
    return {name: f"{one!r} {setup.units[name]}" for name, one in _thresholds(setup).items()}


def _spaces(setup: Setup) -> dict[str, Bounded | None]:
    """Return the additive space of each variable, or None."""
    given, spaces = _by_variable(setup, "additive_space"), dict[str, Bounded | None]()
    for name, unit in setup.units.items():
        space = dict(given.get(name, {}))
        for key in ("lower_bound", "upper_bound", "margin"):
            if space.get(key) is not None:
                space[key] = f"{threshold_in(space[key], unit)!r} {unit}"
        spaces[name] = Bounded.of({name: unit}, space)
    return spaces


def _series(block: Block, setup: Setup) -> dict[str, np.ndarray]:
    """Return all series as the adjustment takes them."""
    return {name: _prepared(block, name, setup) for name in _SERIES}


def _potential(block: Block, name: str, series: str, setup: Setup) -> np.ndarray:
    """Return the potential radiation, (cell, 1, time), of a series' cells and dates."""
    if "latitude" not in block:
        raise DataError(f"{name} is a part of the potential radiation (ratio_to); cells need a coordinate lat.")
    axis = setup.time if series == "simulation" else setup.calibration
    assert axis is not None
    return potential_radiation(axis, block["latitude"].values.ravel(), setup.units[name])[:, None]


def _as_parts(values: np.ndarray, potential: np.ndarray, dark: float) -> np.ndarray:
    """Return values (cell, member, time) as parts of the potential, at most 1.

    On days whose potential is at most `dark`, the quotient would divide by almost 0. Such a day takes the part of the
    day mirrored at the edge of the dark season.
    """
    parts = np.minimum(values / np.maximum(potential, dark), 1)
    for cell, lit in enumerate(potential[:, 0] > dark):
        if lit.any() and not lit.all():
            edge = distance_transform_edt(~lit, return_distances=False, return_indices=True)[0]
            mirrored = np.clip(2 * edge - np.arange(lit.size), 0, lit.size - 1)
            parts[cell] = parts[cell][:, np.where(lit[mirrored], mirrored, edge)]
    return np.where(np.isnan(values), np.nan, parts)


def _put_back(values: np.ndarray, name: str, block: Block, setup: Setup) -> np.ndarray:
    """Return a variable's values in its units and the series' type, which is rounded before values are limited."""
    if space := _spaces(setup)[name]:
        space.put_back(values)
    elif name in _by_variable(setup, "ratio_to"):
        values = np.clip(values, 0, 1) * _potential(block, name, "simulation", setup)
    values = values.astype(setup.dtype)
    if space:
        space.limit(values)
    return values


def _prepared(block: Block, series: str, setup: Setup) -> np.ndarray:
    """Return a series as (variable, cell, member, time) in double precision, with noise, transformed."""
    data, cells = block[series], block["cell"].values.ravel()
    members = data.sizes.get(REALIZATION, 1)
    values = np.array(data.values, np.float64).reshape(len(setup.units), cells.size, members, data.sizes["time"])
    of_members = setup.member_seeds if REALIZATION in data.dims else [setup.seed]
    for place, (name, space) in enumerate(_spaces(setup).items()):
        if under := _noise(setup).get(name):
            role = f"{series}+{name}"
            values[place] = seeds.jitter_members(values[place], under, seeds=of_members, role=role, cells=cells)
        if name in _by_variable(setup, "ratio_to"):
            dark = threshold_in(_DARK, setup.units[name])
            values[place] = _as_parts(values[place], _potential(block, name, series, setup), dark)
        if space:
            space.check(values[place], series, f"*.training_args.by_variable.{name}")
            values[place] = space.transformed(values[place], setup.dtype)
    return values


def _with_data(series: Mapping[str, np.ndarray], setup: Setup, cells: np.ndarray) -> np.ndarray:
    """Return the places of cells that have all variables; `DataError` if a cell lacks only some days."""
    known = np.ones(cells.size, bool)
    for name, values in series.items():
        gaps = np.isnan(values)
        if (partly := gaps.any(-1) & ~gaps.all(-1)).any():
            variable, place, _ = (int(one[0]) for one in np.nonzero(partly))
            raise DataError(
                f"cell {int(cells[place])} of the domain lacks {int(gaps[variable, place].sum())} days of its "
                f"{[*setup.units][variable]} in the {name}; expected series without gaps."
            )
        known &= ~gaps.any((0, 2, 3))
    return np.flatnonzero(known)


@contextmanager
def drawing(seed: str, role: str, cell: int) -> Iterator[None]:
    """Let xsdba draw a cell's own random numbers: from numpy's global generator, and from those that it makes anew."""
    own = seeds.cell_generator(seed, role, cell)
    with seeds.numpy_state(seed, role, cell):
        default = np.random.default_rng  # in the lock: not that of another thread
        np.random.default_rng = lambda seed=None: own if seed is None else default(seed)
        try:
            yield
        finally:
            np.random.default_rng = default


def rotations(seed: str, cell: int, number: int, size: int) -> np.ndarray:
    """Return a cell's random orthogonal matrices, (iteration, size, size), after Mezzadri (2007)."""
    draws = seeds.cell_generator(seed, "rotations", cell).standard_normal((number, size, size))
    q, r = np.linalg.qr(draws)
    return np.asarray(q * np.sign(np.diagonal(r, axis1=1, axis2=2))[:, None, :])


def _grouper(group: Grouping) -> Any:
    import xsdba

    return xsdba.Grouper(group.name, group.window)


def _stacked(values: np.ndarray, setup: Setup, time: Any) -> xr.DataArray:
    """Return variables as xsdba's `stack_variables` does, in the order of the configuration."""
    names = xr.DataArray(list(setup.units), dims=_DIM, attrs={"is_variables": True, "_units": [*setup.units.values()]})
    coords = {_DIM: names, "time": time}
    return xr.DataArray(np.array(values), coords, (_DIM, "cell", "time"), "multivariate", {"units": ""})


def _mbcn(
    before: Mapping[str, xr.DataArray], simulation: xr.DataArray, setup: Setup, seed: str, cells: np.ndarray
) -> xr.DataArray:
    """Return what xsdba's MBCn makes of cells."""
    import xsdba

    given, names, prime = setup.training, list(setup.units), f"{_DIM}_prime"
    matrices = xr.DataArray(
        np.stack([rotations(seed, int(cell), given["n_iter"], len(names)) for cell in cells]),
        {_DIM: simulation[_DIM], prime: names},
        ("cell", "iterations", prime, _DIM),
        attrs={"crd_dim": _DIM, "new_dim": prime},
    )
    own = {name: _by_variable(setup, name) for name in ("kind", "nquantiles", "max_tail_factor")}
    own["adapt_freq_thresh"] = _texts(setup)
    base = {name: {key: one[name] for key, one in own.items() if name in one} for name in names}
    how = {"interp": given["interp"], "extrapolation": given["extrapolation"]}
    quantiles = given["nquantiles"]
    train = {
        "nquantiles": quantiles if isinstance(quantiles, int) else np.asarray(quantiles),
        "group": _grouper(Grouping.of(given["group"])),
    }
    with xsdba.set_options(extra_output=False):
        trained = xsdba.MBCn.train(
            *before.values(), base_kws=train, adj_kws=dict(how), n_iter=given["n_iter"], rot_matrices=matrices
        )
        return trained.adjust(
            simulation, *before.values(), base=getattr(xsdba, given["base"]), base_kws_vars=base, adj_kws=how
        )
