"""MBCn: several variables adjusted together, so that their joint distribution is kept.

MBCn (Cannon 2018, doi:10.1007/s00382-017-3580-6) reorders univariate values by ranks. Nothing is trained before; each
cell, and each member of a pool unless members make a sample, is adjusted by itself, with random draws of its own, in
double precision.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import xarray as xr
from pydantic import BeforeValidator, Field, model_validator
from scipy.ndimage import distance_transform_edt

from espo_luigi.errors import DataError
from espo_luigi.fields import Arguments, Integer, Named, Number, OmitDefault, PositiveThreshold, single_or_mapping
from espo_luigi.methods.base import Block, Method, Setup, Step, TrainingSection, no_longer
from espo_luigi.methods.bounded import Bounded
from espo_luigi.methods.dqm.windows import YearWindow, spans_of
from espo_luigi.methods.xsdba import (
    AdditiveSpace,
    AdjustingInWindows,
    Grouping,
    GroupOfDays,
    JitterUnder,
    Kind,
    SmallAmounts,
    as_quantiles,
    check_kind,
)
from espo_luigi.science import seeds
from espo_luigi.science.calendar import TimeAxis, day_of
from espo_luigi.science.chunks import REALIZATION
from espo_luigi.science.finalize.radiation import potential_radiation
from espo_luigi.science.units import threshold_in

if TYPE_CHECKING:  # compiled kernels take longer to import than a configuration to be read
    from espo_luigi.methods.mbcn.transform import Plan

_SERIES = ("reference", "historical", "simulation")
# On days that could not have so much, parts of the potential radiation are no numbers to adjust.
_DARK = "1 W m-2"
# Of the sample of a day, after xsdba's names of groups.
_SAMPLES = {
    "time": "all days",
    "time.month": "the days of this month",
    "time.dayofyear": "the {window} days around this day of the year",
    "5D": "the {window} five-day steps around this day's",
    "15D": "the {window} five-day steps around this day's fifteen days",
}

GroupNameTogether = Literal["time.dayofyear", "5D", "15D", "time.month", "time"]


class GroupTogether(GroupOfDays):
    """A grouping of MBCn."""

    group: GroupNameTogether = Field(description="the grouping's name")  # type: ignore[assignment]

    @model_validator(mode="after")
    def _fits(self) -> GroupTogether:
        if self.group == "time.month" and self.window > 1:
            raise ValueError(f"months have no window, and it is {self.window}; take 15D, 5D or time.dayofyear")
        days = 5 if self.group in ("5D", "15D") else 1
        if self.window % 2 == 0 or self.window * days >= 360:
            expected = "an odd window, of steps of five days, below 72" if days == 5 else "an odd window below 360"
            raise ValueError(f"expected {expected}, and it is {self.window}")
        return self


_group = single_or_mapping(str, GroupNameTogether, GroupTogether, "expected text or a mapping")


class VariableOfMBCn(Arguments):
    """How MBCn adjusts a variable before it reorders the values."""

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
    nquantiles: Annotated[int | list[float], BeforeValidator(as_quantiles)] | None = Field(
        default=None, description="how many quantiles, or which; 50 in usual settings, else the rotations'"
    )
    max_tail_factor: Annotated[Number, Field(gt=0)] | None = Field(
        default=None, description="values over so many last quantiles are kept"
    )
    small_amounts: SmallAmounts | None = Field(
        default=None, description="{thresh}: simulated values under it are at most doubled"
    )

    @model_validator(mode="after")
    def _without_contradiction(self) -> VariableOfMBCn:
        check_kind(self, self.additive_space)
        has_space = bool(self.additive_space and self.additive_space.arguments())
        if self.ratio_to and (self.adapt_freq_thresh or self.small_amounts or has_space):
            raise ValueError("ratio_to has no adapt_freq_thresh, small_amounts or additive_space: these are no ratios")
        return self


class MBCnTraining(TrainingSection):
    """`training_args` of MBCn."""

    group: Annotated[GroupNameTogether | GroupTogether, _group] = Field(
        description="{group, window, add_dims}; windows of 5D and 15D are five-day steps"
    )
    n_iter: Annotated[Integer, Field(ge=1)] = Field(default=20, description="the number of rotations")
    nquantiles: Annotated[int | list[float], BeforeValidator(as_quantiles)] = Field(
        default=20, description="how many quantiles the rotations have, or which"
    )
    interp: Literal["nearest", "linear"] = Field(default="nearest", description="how factors are found")
    extrapolation: Literal["constant"] = Field(default="constant", description="factors beyond the quantiles")
    base: Annotated[
        Literal["QuantileDeltaMapping"],
        no_longer(("DetrendedQuantileMapping",), "take QuantileDeltaMapping, which is the default"),
    ] = Field(default="QuantileDeltaMapping", description="the adjustment of each variable by itself")
    by_variable: Named[VariableOfMBCn] = OmitDefault("how each variable is treated by itself", {})


class MBCn(Method):
    """MBCn by our kernels."""

    Training, Adjusting = MBCnTraining, AdjustingInWindows
    trains = False
    variables_together = True
    needs_reference_to_adjust = True
    # In double precision, three variables of 151 years have 1.3 MB a cell; the blocks of the stores are larger.
    cells_in_a_block = 50
    fixed_blocks = True
    draws_by_cell = True

    def adjust(self, block: Block, trained: xr.Dataset, setup: Setup) -> xr.Dataset:
        """Adjust each cell: its members together or each by itself.

        A cell of which a variable has no day at all is NaN; so is any day that lacks a variable.
        """
        cells, data, series = block["cell"].values.ravel(), block["simulation"], _series(block, setup)
        made = _adjusted(series, setup, cells)
        for name, under in _dry(setup).items():
            values = made[list(setup.units).index(name)]
            values[values < under] = 0
        scenario = np.stack([_put_back(made[place], name, block, setup) for place, name in enumerate(setup.units)])
        return data.copy(data=scenario.reshape(data.shape)).to_dataset(name="scenario")

    def steps(
        self, block: Block, trained: xr.Dataset, setup: Setup, day: int, member: int = 0, variable: str = ""
    ) -> list[Step]:
        """Return the steps of a variable's value; none of a missing value."""
        from espo_luigi.methods.mbcn.transform import TRACED

        place, space, unit = list(setup.units).index(variable), _spaces(setup)[variable], setup.units[variable]
        series = _series(block, setup)
        traced = np.full((len(TRACED), *series["simulation"].shape), np.nan)
        made = _adjusted(series, setup, block["cell"].values.ravel(), traced)
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


def _adjusted(
    series: Mapping[str, np.ndarray], setup: Setup, cells: np.ndarray, traced: np.ndarray | None = None
) -> np.ndarray:
    """Return MBCn's scenario, (variable, cell, member, time), of members together or each by itself."""
    from espo_luigi.methods.dqm.method import given_threads, levels_of
    from espo_luigi.methods.mbcn import transform

    given = setup.training
    pools = [setup.seed] if Grouping.of(given["group"]).add_dims else setup.member_seeds
    own = {name: given.get("by_variable", {}).get(name, {}) for name in setup.units}
    dry = {name: threshold_in(one, setup.units[name]) for name, one in _by_variable(setup, "adapt_freq_thresh").items()}
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
        seeds=np.array([[one.integers(2**63) for one in row] for row in draws], np.uint64),
        traced=traced,
        threads=given_threads(),
    )


def steps_of_day(
    traced: np.ndarray, given: float, result: float, setup: Setup, *, variable: str, units: str, day: int, member: int
) -> list[Step]:
    """Return what `transform.adjust` does to one value; the last step, `result`, is the value that it becomes.

    `traced` has of the variable what `transform.TRACED` names, (5, member, time); `given` and `result` are the values
    before and after, in `units`. A missing value has no steps.
    """
    alone, before, after, donor, size = map(float, traced[:, member, day])
    if not np.isfinite(donor):
        return []
    training, how = setup.training, setup.training.get("by_variable", {}).get(variable, {})
    times, group = how.get("kind") == "*" and given != 0, Grouping.of(training["group"])
    factor, dry = f"× {alone / given:.4g}" if times else f"{alone - given:+.4g} {units}", how.get("adapt_freq_thresh")
    if dry and given <= threshold_in(dry, units) < alone:
        factor = "made wet"
    elif how.get("max_tail_factor") and alone == given:
        factor = "kept"
    who, when = divmod(int(donor), len(setup.time))
    pool = setup.members if setup.members and group.add_dims else ()
    years, windows = setup.time.year, setup.adjusting.get("moving_yearly_window")
    of = next(one for one in spans_of(years, windows) if one.kept_first <= day < one.kept_last)
    sample = f"{_SAMPLES[group.name].format(window=group.window)}, {years[of.first]}-{years[of.last - 1]}"
    sample += f", of {len(pool)} members" if pool else ""
    others = ", ".join(name for name in setup.units if name != variable)
    donor_day = f"{day_of(setup.time.index[when])}{f' of {pool[who]}' if pool else ''}"
    return [
        Step("univariate", alone, units, f"{factor}: {training['base']} of {variable} alone, in {sample}."),
        Step("rank before", before, "1", f"That of the univariate value, among {size:.0f}."),
        Step("rank after", after, "1", f"That of the day after {training['n_iter']} rotations with {others}."),
        Step(
            "result",
            float(setup.dtype.type(result)),
            units,
            f"The univariate value of {donor_day}, which has this rank.",
        ),
    ]


def _plan(setup: Setup) -> Plan:
    """Lay out the samples, which all blocks of a period share."""
    group = Grouping.of(setup.training["group"])
    assert setup.calibration is not None
    spans = spans_of(setup.time.year, setup.adjusting.get("moving_yearly_window"))
    return _laid_out(setup.calibration, setup.time, group.name, group.window, tuple(spans))


@functools.lru_cache(maxsize=4)
def _laid_out(calibration: TimeAxis, time: TimeAxis, group: str, window: int, spans: tuple[YearWindow, ...]) -> Plan:
    """Lay out the samples of the dates of calibration and simulation; setups of other blocks have equal ones."""
    from espo_luigi.methods.mbcn.transform import plan

    return plan(calibration, time, group=group, window=window, spans=spans)


def _by_variable(setup: Setup, key: str) -> dict[str, Any]:
    """Return an argument of the variables that have it."""
    return {name: one[key] for name, one in setup.training.get("by_variable", {}).items() if one.get(key) is not None}


def _noise(setup: Setup, key: str = "jitter_under") -> dict[str, float]:
    """Return the thresholds of noise, or of small amounts, in the variables' units."""
    given = _by_variable(setup, key)
    return {name: threshold_in(one["thresh"], setup.units[name]) for name, one in given.items() if one}


def _dry(setup: Setup) -> dict[str, float]:
    """Return the thresholds of the noise of amounts: values with `adapt_freq_thresh`, other than small ranges."""
    amounts = _by_variable(setup, "adapt_freq_thresh")
    return {name: under for name, under in _noise(setup).items() if name in amounts}


def _spaces(setup: Setup) -> dict[str, Bounded | None]:
    """Return the additive space of each variable, or None."""
    given = _by_variable(setup, "additive_space")
    return {name: Bounded.of({name: unit}, given.get(name, {})) for name, unit in setup.units.items()}


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
    from espo_luigi.methods.dqm.quantile_mapping import jitter, seeds_of_members

    data, cells = block[series], block["cell"].values.ravel()
    members = data.sizes.get(REALIZATION, 1)
    values = np.array(data.values, np.float64).reshape(len(setup.units), cells.size, members, data.sizes["time"])
    of_members = setup.member_seeds if REALIZATION in data.dims else [setup.seed]
    for place, (name, space) in enumerate(_spaces(setup).items()):
        if under := _noise(setup).get(name):
            own = seeds_of_members([f"{seed}+{name}" for seed in of_members], cells)
            values[place] = jitter(values[place], under, seeds=own, series=series)
        if name in _by_variable(setup, "ratio_to"):
            dark = threshold_in(_DARK, setup.units[name])
            values[place] = _as_parts(values[place], _potential(block, name, series, setup), dark)
        if space:
            space.check(values[place], series, f"*.training_args.by_variable.{name}")
            values[place] = space.transformed(values[place], setup.dtype)
    return values


def rotations(seed: str, cell: int, number: int, size: int) -> np.ndarray:
    """Return a cell's random orthogonal matrices, (iteration, size, size), after Mezzadri (2007)."""
    draws = seeds.cell_generator(seed, "rotations", cell).standard_normal((number, size, size))
    q, r = np.linalg.qr(draws)
    return np.asarray(q * np.sign(np.diagonal(r, axis1=1, axis2=2))[:, None, :])
