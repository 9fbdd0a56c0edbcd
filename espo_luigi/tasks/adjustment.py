"""The rules that train and apply the bias adjustment, one variable at a time, and clean the result up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from espo_luigi.errors import CatalogError
from espo_luigi.jobs.resources import Resources
from espo_luigi.methods import blocks
from espo_luigi.methods.base import Step
from espo_luigi.science import calendar, pooling, stack
from espo_luigi.science.chunks import REALIZATION, block_sizes
from espo_luigi.tasks import partition
from espo_luigi.tasks.base import EspoTask, PieceParameter, PoolParameter, VariableParameter
from espo_luigi.tasks.ports import temporary, upstream
from espo_luigi.tasks.reference import ReferenceCalendar
from espo_luigi.tasks.simulation import Rechunk, four_years

# The settings of a variable's adjustment that become attributes of the scenario; no number depends on them.
MAKERS = ("bias_adjust_institution", "bias_adjust_project", "bias_adjust_reference")
# Below this, a simulated diurnal range becomes noise, as in the reference workflow.
JITTER_OF_DTR = {"thresh": "1e-4 K"}


def every_member(task: EspoTask) -> list[str]:
    """Return the simulations of a task's pool."""
    return partition.members(task.context, task.pool)


class Train(EspoTask):
    """Rule `train`: the quantiles of reference and simulation over the reference period, for one variable."""

    pool, piece, var = PoolParameter(), PieceParameter(), VariableParameter()
    resources_default = Resources(n_workers=3, cpus_per_task=12, memory="100GB", time="1000")
    values_in_outputs = 1.0
    in_noleap = upstream(ReferenceCalendar, "out_reference", calendar="noleap")
    in_day360 = upstream(ReferenceCalendar, "out_reference", calendar="360_day")
    in_regchunked = upstream(Rechunk, "out_regchunked", sim_id=every_member)
    out_training = temporary("{pool}+{piece}+{var}+training.zarr")
    reads = (
        "biasadjust.variables.{var}.training_args",
        "biasadjust.variables.{var}.engine",
        "custom.maximal_calendar",
    )

    def check(self) -> None:
        """Raise an error, too, if the reference's stores are outdated and the catalogue lacks the reference."""
        super().check()
        references = (task for task in self.deps() if isinstance(task, ReferenceCalendar))
        if any(task.stale(files=False) for task in references) and (problem := self.context.reference_problem):
            raise CatalogError(problem)

    def compute(
        self, noleap: xr.Dataset, day360: xr.Dataset, regchunked: list[xr.Dataset], before: int | np.ndarray = 0
    ) -> xr.Dataset:
        """Train on the reference whose calendar is the simulations', or the nearest below.

        An audit gives single cells: `before` says how many of the piece's cells that are left out lie before each.
        """
        config = self.context.config
        historical = pooled(regchunked, self)
        common = calendar.minimum_calendar(calendar.calendar_of(historical), config.custom.maximal_calendar)
        reference = day360 if common == "360_day" else noleap
        variable = config.biasadjust.variables[self.var]
        seed, first_cell = draws(self)
        return blocks.train(
            reference[self.var],
            historical[self.var],
            **variable.training_args.arguments(),
            maximal_calendar=config.custom.maximal_calendar,
            seed=seed,
            first_cell=first_cell + before,
            engine=variable.engine,
        ).assign_attrs(_origin(historical))

    def layout(self, dataset: xr.Dataset) -> dict[str, Any]:
        """Return the dimension of the cells: compressed along it, quantiles become small."""
        return {"bits_along": _cells(dataset)}


class Adjust(EspoTask):
    """Rule `adjust`: one variable of the simulation, bias-adjusted over the whole period."""

    pool, piece, var = PoolParameter(), PieceParameter(), VariableParameter()
    resources_default = Resources(n_workers=3, cpus_per_task=15, memory="100GB", time="1000")
    values_in_outputs = 1.0
    in_training = upstream(Train, "out_training")
    in_regchunked = upstream(Rechunk, "out_regchunked", sim_id=every_member)
    out_adjusted = temporary("{pool}+{piece}+{var}+adjusted.zarr")
    reads = (
        "biasadjust.variables.{var}.adjusting_args",
        "biasadjust.variables.{var}.engine",
        "biasadjust.variables.{var}.training_args",
        "custom.maximal_calendar",
    )

    def compute(self, training: xr.Dataset, regchunked: list[xr.Dataset], before: int | np.ndarray = 0) -> xr.Dataset:
        """Adjust; values of a diurnal range below `JITTER_OF_DTR` first become noise. `before` is that of `Train`."""
        variable, simulation = self.context.config.biasadjust.variables[self.var], pooled(regchunked, self)
        made = blocks.adjust_and_count(simulation[self.var], training, **self._arguments(before))
        return made.rename(scenario=self.var).assign_attrs(
            simulation.attrs
            | {"cat:processing_level": "biasadjusted", "cat:variable": self.var}
            | {f"cat:{name}": maker for name in MAKERS if (maker := getattr(variable.adjusting_args, name))}
        )

    def steps(
        self, training: xr.Dataset, regchunked: list[xr.Dataset], before: np.ndarray, date: str, member: int
    ) -> list[Step]:
        """Return the method's steps of a member's value in a single cell, on a day of the training's calendar."""
        simulation = pooled(regchunked, self)[self.var]
        return blocks.steps(simulation, training, date=date, member=member, **self._arguments(before))

    def _arguments(self, before: int | np.ndarray) -> dict[str, Any]:
        config = self.context.config
        variable, (seed, first_cell) = config.biasadjust.variables[self.var], draws(self)
        return {
            **variable.adjusting_args.arguments(*MAKERS),
            "jitter_under": JITTER_OF_DTR if self.var == "dtr" else None,
            "maximal_calendar": config.custom.maximal_calendar,
            "seed": f"{seed}+adjust",
            "first_cell": first_cell + before,
            "engine": variable.engine,
        }

    def layout(self, dataset: xr.Dataset) -> dict[str, Any]:
        """Return files of whole series, in chunks of four years, so that maps of four years are read."""
        return layout_of_pools(dataset)


def pooled(members: list[xr.Dataset], task: Train | Adjust) -> xr.Dataset:
    """Return the variable of a pool's members along `realization`, lazily; without it where members are not pooled."""
    group = task.context.config.biasadjust.variables[task.var].training_args.arguments().get("group")
    if len(members) == 1 and not (isinstance(group, Mapping) and group.get("add_dims")):
        return members[0]
    return pooling.together([one[[task.var]] for one in members], every_member(task))


def draws(task: Train | Adjust) -> tuple[str, int]:
    """Return the seed of a task's random draws, and the place of its first cell, to which each cell's is added."""
    seed, first = task.context.production.pieces.draws(task.pool, task.piece, task.var)
    return str(seed), int(first)


def layout_of_pools(dataset: xr.Dataset) -> dict[str, Any]:
    """Return files of blocks, in chunks of four years and one member."""
    chunks = {"time": four_years(dataset)} | ({REALIZATION: 1} if REALIZATION in dataset.dims else {})
    return {"chunks": chunks, "shards": block_sizes(dataset), "bits_along": _cells(dataset)}


def _cells(dataset: xr.Dataset) -> str:
    """Return the dimension along which neighbouring cells lie."""
    return stack.STACKED_DIM if stack.STACKED_DIM in dataset.dims else stack.horizontal_dims(dataset)[1]


def _origin(dataset: xr.Dataset) -> dict[str, object]:
    return {name: dataset.attrs[name] for name in ("cat:xrfreq", "cat:domain", "cat:id") if name in dataset.attrs}
