"""The rules that train and apply the bias adjustment, for a variable or a group of variables."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import numpy as np
import xarray as xr

from espo_luigi.config.bias_adjustment import VariableAdjustment
from espo_luigi.config.cross_checks import WHO_ADJUSTS
from espo_luigi.errors import CatalogError, ConfigurationError
from espo_luigi.jobs.resources import Resources
from espo_luigi.methods import blocks
from espo_luigi.methods.base import Step
from espo_luigi.methods.usual import threshold_of
from espo_luigi.science import calendar, pooling, quality, stack
from espo_luigi.science.attributes import QUANTILE, TREATED
from espo_luigi.science.chunks import REALIZATION, block_sizes
from espo_luigi.science.display import wet_day
from espo_luigi.science.geometry.cells import horizontal_dims
from espo_luigi.science.units import units_of
from espo_luigi.science.variables import Variable, variable
from espo_luigi.tasks import partition, staleness
from espo_luigi.tasks.base import (
    AdjustedPieceParameter,
    EspoTask,
    PieceParameter,
    PoolParameter,
    VariableParameter,
    every,
    version_of_plugin,
)
from espo_luigi.tasks.context import RunContext, settings
from espo_luigi.tasks.ports import temporary, upstream
from espo_luigi.tasks.reference import reference_of_piece
from espo_luigi.tasks.simulation import Regrid, four_years

# The calendars in which the reference is trained on.
REFERENCE_CALENDARS = ("noleap", "360_day")
# The settings of a variable's adjustment that become attributes of the scenario; no number depends on them.
MAKERS = (*WHO_ADJUSTS, "bias_adjust_reference")


def jitter_of_range(name: str, table: Mapping[str, Variable]) -> dict[str, Any]:
    """Return the noise below which a simulated range is replaced, as in the reference workflow; {} of others."""
    row = table.get(name)
    return {"jitter_under": {"thresh": threshold_of(row.jitter, row)}} if row and row.is_range and row.jitter else {}


def version_of_method(name: str) -> dict[str, str]:
    """Return the version of the package whose method has this name, by the package's name; {} for ours."""
    package = name.partition(".")[0]
    return {package: version(package)} if package == "ibicus" else version_of_plugin("espo_luigi.methods", package)


def every_member(task: EspoTask) -> list[str]:
    """Return the simulations of a task's pool."""
    return partition.members(task.context, task.pool)


def every_calendar(task: EspoTask) -> list[str]:
    """Return the calendars of the reference."""
    return list(REFERENCE_CALENDARS)


class VariableTask(EspoTask):
    """A rule of a variable, or of a group of variables that are adjusted together, which `var` then names."""

    pool, piece, var = PoolParameter(), PieceParameter(), VariableParameter()
    values_in_outputs = 1.0

    def check(self) -> None:
        """Raise `ConfigurationError`, too, if an unfinished run was begun by other usual settings."""
        super().check()
        if self.var in self.context.config.with_usual and settings().rerun != "stale":
            try:
                _require_one_beginning(self.context)
            except ConfigurationError:
                products = (info for one in every_member(self) for info in self.context.archives(one).values())
                if not all(info.target.marker() for info in products):
                    raise

    def reading(self) -> list[str]:
        """Return, too, the key of the usual settings' name, if the variable has some."""
        return super().reading() + ([staleness.USUAL_KEY] if self.var in self.context.config.with_usual else [])

    @property
    def how(self) -> VariableAdjustment:
        """How the variable is adjusted."""
        return self.context.config.biasadjust.variables[self.var]

    def versions(self) -> dict[str, str]:
        """Return, too, the version of the package whose method adjusts."""
        return super().versions() | version_of_method(self.how.name)

    @property
    def names(self) -> tuple[str, ...]:
        """The variable, or those of the group."""
        return self.how.variables or (self.var,)

    def series(self, ds: xr.Dataset) -> xr.DataArray | xr.Dataset:
        """Return what the method takes: the variable, or the variables that it adjusts together."""
        return ds[list(self.how.variables)] if self.how.variables else ds[self.var]

    def pooled(self, members: list[xr.Dataset]) -> xr.Dataset:
        """Return the variables of the pool's members along `realization`, lazily; a lone series as it is."""
        group = self.how.training_args.arguments().get("group")
        if len(members) == 1 and not (isinstance(group, Mapping) and group.get("add_dims")):
            return members[0]
        names = quality.beside(members[0], self.names)
        return pooling.pool_of_members([one[names] for one in members], every_member(self))

    def reference_of(self, references: list[xr.Dataset], simulation: xr.Dataset) -> xr.Dataset:
        """Return the reference, of both calendars, whose calendar is the simulation's, or the nearest below."""
        maximal = self.context.config.custom.maximal_calendar
        common = calendar.minimum_calendar(calendar.calendar_of(simulation), maximal)
        return references[REFERENCE_CALENDARS.index("360_day" if common == "360_day" else "noleap")]

    def arguments(self, before: int | np.ndarray, purpose: str = "") -> dict[str, Any]:
        """Return what training and adjusting share; `before` so many cells of the piece are not given to them."""
        seed, first_cell = partition.draws(self.context, self.pool, self.piece, self.var)
        return {
            "engine": self.how.engine,
            "maximal_calendar": self.context.config.custom.maximal_calendar,
            "seed": f"{seed}{purpose}",
            "first_cell": first_cell + before,
        }


class Train(VariableTask):
    """Rule `train`: what a method learns over the reference period, for a variable or a group."""

    resources_default = Resources(n_workers=3, cpus_per_task=12, memory="100GB", time="1000")
    pool, piece, var = PoolParameter(), AdjustedPieceParameter(), VariableParameter()
    in_reference = reference_of_piece("out_reference", calendar=every_calendar)
    in_regridded = upstream(Regrid, "out_regridded", sim_id=every_member)
    out_training = temporary("{pool}+{piece}+{var}+training.zarr")
    reads = (
        "biasadjust.variables.{var}.engine",
        "biasadjust.variables.{var}.method",
        "biasadjust.variables.{var}.training_args",
        "biasadjust.variables.{var}.variables",
        "custom.maximal_calendar",
        partition.PRODUCTION_KEY,
    )

    def check(self) -> None:
        """Raise an error, too, if the reference's stores are outdated and the catalogue lacks the reference."""
        super().check()
        try:
            self.context.reference()
        except CatalogError:
            if any(each.task.stale(files=False) for each in self.in_reference):
                raise

    def compute(
        self, reference: list[xr.Dataset], regridded: list[xr.Dataset], before: int | np.ndarray = 0
    ) -> xr.Dataset:
        """Train; `before` of each given cell, so many cells of the piece that lie before it are not given."""
        historical = self.pooled(regridded)
        return blocks.train(
            self.series(self.reference_of(reference, historical)),
            self.series(historical),
            method=self.how.name,
            **self.how.training_args.arguments("method"),
            **self.arguments(before),
        ).assign_attrs(_origin(historical) | {"cat:processing_level": f"training_{self.var}"})

    def layout(self, dataset: xr.Dataset) -> dict[str, Any]:
        """Return the dimension of the cells: compressed along it, quantiles become small."""
        return {"bits_along": _cells(dataset)}


class Adjust(VariableTask):
    """Rule `adjust`: a variable or a group of the simulation, bias-adjusted over the whole period."""

    resources_default = Resources(n_workers=3, cpus_per_task=15, memory="100GB", time="1000")
    pool, piece, var = PoolParameter(), AdjustedPieceParameter(), VariableParameter()
    in_training = upstream(Train, "out_training", var=lambda task: [task.var] if task.how.chosen.trains else [])
    in_regridded = upstream(Regrid, "out_regridded", sim_id=every_member)
    in_reference = reference_of_piece(
        "out_reference",
        calendar=lambda task: list(REFERENCE_CALENDARS) if task.how.chosen.needs_reference_to_adjust else [],
    )
    out_adjusted = temporary("{pool}+{piece}+{var}+adjusted.zarr")
    reads = (
        *Train.reads,
        "biasadjust.variables.{var}.adjusting_args",
        "flags",
        *(f"variables.{{var}}.{key}" for key in ("bounds", "difference", "jitter", "units", "wet")),
    )

    def compute(
        self,
        training: list[xr.Dataset],
        regridded: list[xr.Dataset],
        reference: list[xr.Dataset],
        before: int | np.ndarray = 0,
        *,
        with_flags: bool = True,
    ) -> xr.Dataset:
        """Adjust; `before` is that of `Train`. Without flags, the simulation needs none."""
        simulation, config = self.pooled(regridded), self.context.config
        arguments = self._arguments_to_adjust(regridded, reference, before)
        arguments["keeps_ranks"] = partition.is_coarse(self.context, self.piece)
        made = blocks.adjust_and_count(self.series(simulation), *training, **arguments)
        makers = {f"cat:{name}": maker for name in MAKERS if (maker := getattr(self.how.adjusting_args, name))}
        level = {"cat:processing_level": "biasadjusted", "cat:variable": self.var}
        made = made.rename({} if self.how.variables else {"scenario": self.var})
        made = made.rename({QUANTILE: f"{self.var}_{QUANTILE}"} if QUANTILE in made else {})
        made, marks = made.drop_vars(TREATED, errors="ignore"), made.get(TREATED)
        if with_flags and config.flagging is not None:
            how: dict[str, Any] = {
                "period": self.how.training_args.period,
                "signal": config.flagging.signal,
                "align_on": self.how.adjusting_args.align_on or "year",
            }
            for name in self.names:
                known = variable(name, config.table)
                wet = wet_day(name, units_of(made[name]), config.table)
                made = made.assign(quality.of_adjusted(made[name], simulation, marks, kind=known.kind, wet=wet, **how))
        elif marks is not None:
            made = made.assign(quality.days_of(marks, self.var))
        return made.assign_attrs(simulation.attrs | level | makers)

    def steps(
        self,
        training: list[xr.Dataset],
        regridded: list[xr.Dataset],
        reference: list[xr.Dataset],
        before: np.ndarray,
        date: str,
        member: int,
        variable: str,
    ) -> list[Step]:
        """Return the method's steps of a member's value in a single cell, on a day of the training's calendar."""
        arguments = self._arguments_to_adjust(regridded, reference, before)
        arguments |= {"date": date, "member": member, "variable": variable}
        return blocks.steps(self.series(self.pooled(regridded)), *training, **arguments)

    def _arguments_to_adjust(
        self, regridded: list[xr.Dataset], reference: list[xr.Dataset], before: int | np.ndarray
    ) -> dict[str, Any]:
        """Return all but the series and the training, for `blocks.adjust_and_count` and `blocks.steps`."""
        method, given = self.how.chosen, self.how.adjusting_args.arguments(*MAKERS)
        if "jitter_under" in method.Adjusting.model_fields:
            given = jitter_of_range(self.var, self.context.config.table) | given
        if not method.trains:
            given |= {"method": self.how.name, "training_args": self.how.training_args.arguments("method")}
        if reference and method.needs_reference_to_adjust:
            given |= {"reference": self.series(self.reference_of(reference, self.pooled(regridded)))}
        return given | self.arguments(before, "+adjust")

    def layout(self, dataset: xr.Dataset) -> dict[str, Any]:
        """Return files of whole series, in chunks of four years, so that maps of four years are read."""
        return layout_of_pools(dataset)


@functools.lru_cache(maxsize=1)  # which keeps no exception
def _require_one_beginning(run: RunContext) -> None:
    """Raise `ConfigurationError` if any product, or any adjusted piece, was made by other usual settings."""
    products = (info for sim_id in run.simulations for info in run.archives(sim_id).values())
    pieces = (info for rule in (Train, Adjust) for task in every(rule) for info in task.decisive_infos())
    made = ((info.path, info.target.marker()) for info in itertools.chain(products, pieces))
    staleness.require_agreement(run, made, run.config.with_usual, and_now=True)


def layout_of_pools(dataset: xr.Dataset) -> dict[str, Any]:
    """Return files of blocks, in chunks of four years and one member; values and flags of a block are made at once."""
    chunks = {"time": four_years(dataset)} | ({REALIZATION: 1} if REALIZATION in dataset.dims else {})
    return {"chunks": chunks, "shards": block_sizes(dataset), "bits_along": _cells(dataset), "by_place": True}


def _cells(dataset: xr.Dataset) -> str:
    """Return the dimension along which neighbouring cells lie."""
    return stack.STACKED_DIM if stack.STACKED_DIM in dataset.dims else horizontal_dims(dataset)[1]


def _origin(dataset: xr.Dataset) -> dict[str, object]:
    return {name: dataset.attrs[name] for name in ("cat:xrfreq", "cat:domain", "cat:id") if name in dataset.attrs}
