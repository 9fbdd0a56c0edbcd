"""The rule that brings adjusted simulations from the coarse grid to the reference's cells, and what chooses it."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from espo_luigi.config.downscaling import Downscaling
from espo_luigi.downscaling import blocks
from espo_luigi.jobs.resources import Resources
from espo_luigi.methods.base import Step
from espo_luigi.science.attributes import QUANTILE
from espo_luigi.science.chunks import indexer, rechunk
from espo_luigi.science.coarse import with_neighbours
from espo_luigi.science.stack import STACKED_DIM
from espo_luigi.tasks import partition
from espo_luigi.tasks.adjustment import Adjust, VariableTask, every_calendar, layout_of_pools
from espo_luigi.tasks.base import version_of_plugin
from espo_luigi.tasks.context import RunContext
from espo_luigi.tasks.ports import temporary, upstream
from espo_luigi.tasks.reference import CoarseReference, ReferenceCalendar


def _coarse_piece(task: Any) -> str:
    return partition.adjusted_piece(task.context, task.pool)


class Downscale(VariableTask):
    """Rule `downscale`, new against ESPO-G: an adjusted variable or group, on the reference's cells of a piece."""

    resources_default = Resources(n_workers=3, cpus_per_task=15, memory="100GB", time="1000")
    spans_pieces = True
    in_adjusted = upstream(Adjust, "out_adjusted", piece=_coarse_piece)
    in_coarse = upstream(CoarseReference, "out_reference", piece=_coarse_piece, calendar=every_calendar)
    in_reference = upstream(ReferenceCalendar, "out_reference", calendar=every_calendar, piece=lambda task: task.near)
    out_adjusted = temporary("{pool}+{piece}+{var}+downscaled.zarr")
    uncut = ("in_adjusted", "in_coarse")
    reads = (
        "biasadjust.variables.{var}.variables",
        "custom.maximal_calendar",
        "custom.working_chunks",
        "downscaling",
        *(f"variables.{{var}}.{key}" for key in ("bounds", "jitter", "units", "wet")),
    )

    @property
    def near(self) -> list[str]:
        """The pieces that have all fine cells of the coarse cells that the task's piece has cells of."""
        return list(self.context.production.pieces.near(self.context, self.piece, self.context.coarse_grid(self.pool)))

    def reading(self) -> list[str]:
        """Return, too, the keys that say what the piece is, by which others are near."""
        keys = self.context.production.pieces.keys()
        return super().reading() + [key.format_map(self.wildcards) for key in keys]

    @property
    def downscaler(self) -> str:
        """The downscaler of the variable, or of a group's first, by which the rule's cost differs."""
        return self.section(self.names[0]).method

    def versions(self) -> dict[str, str]:
        """Return, too, the version of the package whose downscaler it is."""
        found = super().versions()
        for name in self.names:
            found |= version_of_plugin("espo_luigi.downscalers", self.section(name).method)
        return found

    def section(self, name: str) -> Downscaling:
        """Return how a variable is downscaled; raises `ParameterError` without the section `downscaling`."""
        found: Downscaling = self.context.needed("downscaling", "Downscale").of(name)
        return found

    def arguments_of(self, name: str) -> dict[str, Any]:
        """Return how a variable is downscaled, for `blocks.downscale` and `blocks.steps`."""
        how = self.section(name)
        return {
            "downscaler": how.method,
            "grid": self.context.coarse_grid(self.pool),
            "seed": f"{self.pool}+{name}+downscale",
            "table": self.context.config.table,
            **how.given.arguments(),
        }

    def compute(
        self,
        adjusted: xr.Dataset,
        coarse: list[xr.Dataset],
        reference: list[xr.Dataset],
        cells: slice | np.ndarray = slice(None),
    ) -> xr.Dataset:
        """Downscale each variable of cells of the piece, by default of all, with its flags."""
        fine, own = self._fine(reference, adjusted, cells)
        ways = {name: self.arguments_of(name) for name in self.names}
        made = blocks.downscale_variables(adjusted, self.reference_of(coarse, adjusted), fine, ways)
        return rechunk(
            made.isel({STACKED_DIM: indexer(own)}), {**self.context.config.custom.working_chunks, "time": -1}
        )

    def _fine(
        self, reference: list[xr.Dataset], simulation: xr.Dataset, cells: slice | np.ndarray
    ) -> tuple[xr.Dataset, np.ndarray]:
        """Return all fine cells of the coarse cells that cells of the piece lie in, and the places of the latter."""
        near = self.near
        parts = [self.reference_of(reference[number :: len(near)], simulation) for number in range(len(near))]
        return with_neighbours(parts, near.index(self.piece), self.context.coarse_grid(self.pool), cells)

    def steps(
        self,
        adjusted: xr.Dataset,
        coarse: list[xr.Dataset],
        reference: list[xr.Dataset],
        name: str,
        cell: int,
        **of: Any,
    ) -> list[Step]:
        """Return the steps from the coarse value of a variable to the fine cell's; `of` is that of `blocks.steps`."""
        means, (fine, own) = self.reference_of(coarse, adjusted), self._fine(reference, adjusted, np.array([cell]))
        of |= {"cell": int(own[0]), "ranks": adjusted.get(f"{name}_{QUANTILE}")} | self.arguments_of(name)
        return blocks.steps(adjusted[name], means[name], fine[name], **of)

    def layout(self, dataset: xr.Dataset) -> dict[str, Any]:
        """Return the layout of `Adjust`."""
        return layout_of_pools(dataset)


def adjusted_rule(run: RunContext) -> type[Adjust | Downscale]:
    """Return the rule that makes the adjusted variables of the reference's cells."""
    return Adjust if run.config.downscaling is None else Downscale


def adjusted_pieces(**fixed: Any) -> Any:
    """Declare an input: what the adjusted variables of the task's piece are."""
    return upstream((Adjust, Downscale), "out_adjusted", which=lambda task: adjusted_rule(task.context), **fixed)
