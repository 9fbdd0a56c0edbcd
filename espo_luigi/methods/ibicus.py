"""The debiasers of the package ibicus as methods: `ibicus.ISIMIP`, `ibicus.CDFt` and so on, cell by cell.

A debiaser takes the reference, the simulation over the reference's years, and the simulation, each with its dates;
nothing is trained before. The numbers are ibicus's own, and do not depend on the blocks.
"""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import xarray as xr
from pydantic import Field, create_model
from pydantic_core import InitErrorDetails

from espo_luigi.errors import ConfigurationError, DataError, nearest
from espo_luigi.methods.base import AdjustingSection, Block, Method, Setup, problem
from espo_luigi.science import seeds
from espo_luigi.science.chunks import REALIZATION
from espo_luigi.science.periods import each_period
from espo_luigi.science.units import convert_to

DEBIASERS = (
    "CDFt",
    "DeltaChange",
    "ECDFM",
    "ISIMIP",
    "LinearScaling",
    "QuantileDeltaMapping",
    "QuantileMapping",
    "ScaledDistributionMapping",
)
# ibicus's own names of variables.
_NAMES = {"dtr": "tasrange"}
# What ibicus sets by the variable's name.
_BY_NAME = ("variable", "reasonable_physical_range")


class Ibicus(Method):
    """A debiaser of ibicus, by its class's name; `adjusting_args` takes the keyword arguments of the class.

    ibicus needs default settings for the variable. Distributions are given by their names in scipy.stats.
    Random draws depend on the seed, the cell's place and the member.
    """

    trains = False
    needs_reference_to_adjust = True
    # A cell may take seconds of a single CPU: blocks of a store's size would leave most CPUs without work, and tell
    # progress rarely.
    cells_in_a_block, fixed_blocks, draws_by_cell = 50, True, True

    def __init__(self, variant: str = "") -> None:
        super().__init__(variant)
        if variant not in DEBIASERS:
            raise ConfigurationError(
                f"method is ibicus.{variant}; expected one of {', '.join(f'ibicus.{name}' for name in DEBIASERS)}"
                f"{nearest(variant, DEBIASERS)}"
            )
        self.Adjusting = _section(variant)
        self.variables = _variables(variant)

    def problems(self, training: Any, adjusting: Any) -> Iterator[InitErrorDetails]:
        """Yield an error for a value that the debiaser refuses, and for periods that `DeltaChange` cannot give."""
        try:
            _debiaser(self.variant, self.variables[0], **self._given(adjusting.arguments()))
        except (TypeError, ValueError) as error:
            # attrs puts the field behind the message.
            names = [one.name for one in error.args if hasattr(one, "name")]
            told, given = str(error.args[0]), getattr(adjusting, names[0]) if names else None
            yield problem(f"ibicus.{self.variant} refuses it: {told}", ("adjusting_args", *names[:1]), given)
        periods = [training.period, *each_period(adjusting.periods)]
        if self.variant == "DeltaChange" and len({int(last) - int(first) for first, last in periods}) > 1:
            told = (
                "ibicus.DeltaChange moves the reference's days of training_args.period, and makes as many: expected "
                "periods of as many years, one or several"
            )
            yield problem(told, ("adjusting_args", "periods"), adjusting.periods)

    def adjust(self, block: Block, trained: xr.Dataset, setup: Setup) -> xr.Dataset:
        """Apply the debiaser to each cell, and each member by itself.

        Raises
        ------
        DataError
            If a cell lacks days, or ibicus fails there; the message names the cell's place in the domain.
        """
        ((variable, units),) = setup.units.items()
        debiaser = _debiaser(self.variant, variable, **self._given(setup.adjusting))
        series = {name: _in_units(block[name], variable, units, ibicus_units(variable)) for name in _SERIES}
        times = {f"time_{of}": block[name]["time"].values for name, of in _SERIES.items()}
        if self.variant == "DeltaChange":
            known, wanted = (block[name]["time"].dt.dayofyear.values for name in ("reference", "simulation"))
            if not np.array_equal(known, wanted):
                raise DataError(
                    f"ibicus.DeltaChange makes the reference's {known.size} days, and the simulation has "
                    f"{wanted.size}, or other leap years: expected periods of the same days, as in a calendar without "
                    "leap days."
                )
        scenario = xr.full_like(series["simulation"], np.nan)
        for place, cell in np.ndenumerate(block["cell"].values):
            for member, seed in enumerate(setup.member_seeds):
                index = place if setup.members is None else (*place, member)
                given = {
                    of: np.array(series[name].values[index if REALIZATION in series[name].dims else place])
                    for name, of in _SERIES.items()
                }
                if any(np.isnan(values).all() for values in given.values()):
                    continue
                with seeds.numpy_state(seed, "ibicus", int(cell)):
                    scenario.values[index] = self._apply(debiaser, given | times, int(cell))
        made = _in_units(scenario, variable, ibicus_units(variable), units)
        return made.astype(setup.dtype).to_dataset(name="scenario")

    def describe(self, setup: Setup) -> str:
        """Return the debiaser, its arguments and ibicus's version."""
        from importlib.metadata import version

        given = "".join(f", {name}={value!r}" for name, value in self._given(setup.adjusting).items())
        name = ibicus_name(next(iter(setup.units)))
        return f"ibicus {version('ibicus')}: {self.variant}.from_variable({name!r}{given})"

    def _apply(self, debiaser: Any, given: Mapping[str, np.ndarray], cell: int) -> np.ndarray:
        gaps = {name: int(np.isnan(values).sum()) for name, values in given.items() if not name.startswith("time")}
        if any(gaps.values()) and not getattr(debiaser, "impute_missing_values", False):
            told = ", ".join(f"{count} of {name}" for name, count in gaps.items() if count)
            raise DataError(f"cell {cell} of the domain lacks days ({told}); expected series without gaps for ibicus.")
        try:
            with np.errstate(all="ignore"):
                return np.asarray(debiaser.apply_location(**given))
        except Exception as error:  # whatever its distributions raise
            raise DataError(
                f"ibicus.{self.variant} fails at cell {cell} of the domain ({type(error).__name__}: {error}); see its "
                "documentation for the arguments that such a climate needs."
            ) from error

    def _given(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The debiaser's own arguments among those of the section."""
        base = AdjustingSection.model_fields
        return {name: value for name, value in arguments.items() if name not in base}


# Messages of ibicus that this process has logged.
_TOLD: set[object] = set()
# The series of a block, by ibicus's names.
_SERIES = {"reference": "obs", "historical": "cm_hist", "simulation": "cm_future"}


def ibicus_name(variable: str) -> str:
    """Return ibicus's name of a variable."""
    return _NAMES.get(variable, variable)


def ibicus_units(variable: str) -> str:
    """Return the units that ibicus's default settings are for."""
    from ibicus.variables import map_variable_str_to_variable_class

    return str(map_variable_str_to_variable_class(ibicus_name(variable)).unit)


def _in_units(data: xr.DataArray, variable: str, given: str, wanted: str) -> xr.DataArray:
    """The series in double precision and other units."""
    named = data.astype(np.float64).rename(variable).assign_attrs(units=given)
    return convert_to(named, wanted)


def _once(record: logging.LogRecord) -> bool:
    """Whether a message is new; ibicus would repeat it for each window of each cell."""
    is_new = record.msg not in _TOLD
    _TOLD.add(record.msg)
    return is_new


@functools.cache
def _class(variant: str) -> Any:
    try:
        import ibicus.debias
    except ImportError as error:
        raise ConfigurationError(
            f"method ibicus.{variant} needs the package ibicus ({error}): pip install espo_luigi[ibicus]"
        ) from error
    logging.getLogger("ibicus").addFilter(_once)
    return getattr(ibicus.debias, variant)


@functools.cache
def _section(variant: str) -> type[AdjustingSection]:
    """The model of `adjusting_args`, with the fields of the debiaser's class."""
    import attrs

    told = "as in ibicus; by default as ibicus sets it for the variable"
    fields: dict[str, Any] = {
        one.name: (Any, Field(default=None, description=told))
        for one in attrs.fields(_class(variant))
        if one.init and one.name not in _BY_NAME
    }
    return create_model(f"{variant}Arguments", __base__=AdjustingSection, **fields)


@functools.cache
def _variables(variant: str) -> tuple[str, ...]:
    """The names of the variables that a debiaser has default settings for."""
    from ibicus.variables import str_to_variable_class

    ours = {theirs: own for own, theirs in _NAMES.items()}
    known = []
    for name in str_to_variable_class:
        try:
            _made(variant, name)
        except ValueError:  # there are none
            continue
        known.append(ours.get(name, {"sfcwind": "sfcWind"}.get(name, name)))
    return tuple(known)


def _debiaser(variant: str, variable: str, **arguments: Any) -> Any:
    import scipy.stats

    if isinstance(name := arguments.get("distribution"), str):
        if not isinstance(found := getattr(scipy.stats, name, None), scipy.stats.rv_continuous):
            raise ValueError(f"distribution is {name!r}; expected a continuous distribution of scipy.stats")
        arguments["distribution"] = found
    return _made(variant, ibicus_name(variable), **arguments)


def _made(variant: str, name: str, **arguments: Any) -> Any:
    with warnings.catch_warnings():
        # Of default settings that ibicus calls experimental; the how-to lists them.
        warnings.simplefilter("ignore")
        return _class(variant).from_variable(name, **arguments)
