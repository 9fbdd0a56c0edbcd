"""The rule that brings adjusted simulations from the coarse grid to the reference's cells, and what chooses it."""

from __future__ import annotations

from typing import Any

import xarray as xr

from espo_luigi.config.downscaling import DownscalingSection
from espo_luigi.downscaling import blocks
from espo_luigi.jobs.resources import Resources
from espo_luigi.methods.base import Step
from espo_luigi.science.attributes import QUANTILE
from espo_luigi.science.chunks import rechunk
from espo_luigi.science.coarse import CoarseGrid
from espo_luigi.tasks import partition
from espo_luigi.tasks.adjustment import REFERENCE_CALENDARS, Adjust, VariableTask, layout_of_pools
from espo_luigi.tasks.base import version_of_plugin
from espo_luigi.tasks.context import RunContext
from espo_luigi.tasks.ports import temporary, upstream
from espo_luigi.tasks.reference import CoarseReference, ReferenceCalendar


class Downscale(VariableTask):
    """Rule `downscale`, new against ESPO-G: an adjusted variable or group, on the reference's cells of a piece."""

    resources_default = Resources(n_workers=3, cpus_per_task=15, memory="100GB", time="1000")
    in_adjusted = upstream(Adjust, "out_adjusted", piece=partition.COARSE)
    in_coarse = upstream(CoarseReference, "out_reference", calendar=lambda task: list(REFERENCE_CALENDARS))
    in_reference = upstream(ReferenceCalendar, "out_reference", calendar=lambda task: list(REFERENCE_CALENDARS))
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
    def section(self) -> DownscalingSection:
        """The section `downscaling`; raises `ParameterError` without one."""
        found: DownscalingSection = self.context.needed("downscaling", "Downscale")
        return found

    @property
    def downscaler(self) -> str:
        """The downscaler of the variable, or of a group's first, by which the rule's cost differs."""
        return self.section.of((self.how.variables or (self.var,))[0]).method

    def versions(self) -> dict[str, str]:
        """Return, too, the version of the package whose downscaler it is."""
        found = super().versions()
        for name in self.how.variables or (self.var,):
            found |= version_of_plugin("espo_luigi.downscalers", self.section.of(name).method)
        return found

    def arguments_of(self, name: str) -> dict[str, Any]:
        """Return how a variable is downscaled, for `blocks.downscale` and `blocks.steps`."""
        how = self.section.of(name)
        return {
            "downscaler": how.method,
            "grid": CoarseGrid(self.section.grid),
            "seed": f"{self.pool}+{name}+downscale",
            "table": self.context.config.table,
            **how.given.arguments(),
        }

    def compute(self, adjusted: xr.Dataset, coarse: list[xr.Dataset], reference: list[xr.Dataset]) -> xr.Dataset:
        """Downscale each variable, with its flags."""
        made = blocks.downscale_variables(
            adjusted,
            self.reference_of(coarse, adjusted),
            self.reference_of(reference, adjusted),
            {name: self.arguments_of(name) for name in self.how.variables or (self.var,)},
        )
        return rechunk(made, {**self.context.config.custom.working_chunks, "time": -1})

    def steps(
        self,
        adjusted: xr.Dataset,
        coarse: list[xr.Dataset],
        reference: list[xr.Dataset],
        name: str,
        **of: Any,
    ) -> list[Step]:
        """Return the steps from the coarse value of a variable to the fine cell's; `of` is that of `blocks.steps`."""
        means, fine = self.reference_of(coarse, adjusted), self.reference_of(reference, adjusted)
        of |= {"ranks": adjusted.get(f"{name}_{QUANTILE}")} | self.arguments_of(name)
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
