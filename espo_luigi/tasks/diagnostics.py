"""The official diagnostics: properties of reference, simulation and scenario over small domains, and what improved."""

from __future__ import annotations

import functools
from typing import Any, ClassVar, Literal

import xarray as xr

from espo_luigi.config import DiagStep, OffDiag
from espo_luigi.errors import ConfigurationError
from espo_luigi.jobs.resources import Resources
from espo_luigi.science import stack
from espo_luigi.science.chunks import rechunk
from espo_luigi.science.diagnose import comparison
from espo_luigi.tasks.against_data import cut, missing_land
from espo_luigi.tasks.base import DiagDomainParameter, EspoTask, SimulationParameter
from espo_luigi.tasks.ports import packed, temporary, upstream
from espo_luigi.tasks.product import ConcatenationFinal, Move, PackTask
from espo_luigi.tasks.reference import RefDefault

_RESOURCES = Resources(n_workers=3, cpus_per_task=15, memory="60GB", time="1000")


# What Dask computes at once: some 13 MB for each variable and thirty years.
CELLS_IN_A_BLOCK = 300

Step = Literal["ref", "sim", "scen"]


def hosting_region(step: Step) -> Any:
    """Return a function that gives the region in whose files a task's domain lies, for one step."""
    return lambda task: task.step(step).domain[task.diag_domain]


class DomainTask(EspoTask):
    """A rule about one domain of the official diagnostics."""

    diag_domain = DiagDomainParameter()
    # The step whose properties are computed, if any: with that, what is read of the configuration is the same.
    reads_step: ClassVar[Step | None] = None

    @property
    def section(self) -> OffDiag:
        """The configuration's `off-diag` section."""
        off_diag = self.context.config.off_diag
        assert off_diag is not None  # `check` has refused every domain where the section is absent
        return off_diag

    def step(self, name: Step) -> DiagStep:
        """Return the settings of one step (``ref``, ``sim`` or ``scen``)."""
        return self.section.steps[name]

    def reading(self) -> list[str]:
        """Return the keys of the step, of the domain, and of the region that hosts it."""
        if self.reads_step is None:
            return super().reading()
        step, domain = f"off-diag.steps.{self.reads_step}", str(self.diag_domain)
        return [
            "custom.final_chunks",
            f"custom.regions.{self.step('ref').domain[domain]}.lat_bnds",
            f"off-diag.domains.{domain}",
            f"off-diag.steps.ref.domain.{domain}",
            *(f"{step}.{name}" for name in (f"domain.{domain}", "properties_and_measures", "unstack")),
        ]

    def box(self) -> dict[str, Any]:
        """Return the domain, as far as it lies in the reference's region: the same cells for all steps."""
        domain = self.section.domains[self.diag_domain]
        host = self.context.config.custom.regions[self.step("ref").domain[self.diag_domain]]
        south, north = max(domain.lat_bnds[0], host.lat_bnds[0]), min(domain.lat_bnds[1], host.lat_bnds[1])
        return domain.arguments() | {"lat_bnds": (south, north)}

    def properties(self, dataset: xr.Dataset, step: Step, grid: xr.Dataset | None) -> xr.Dataset:
        """Return the step's properties over the domain, the only part of `dataset` that is read; `grid` unstacks it."""
        settings = self.step(step)
        period = dataset.sel(time=slice(*settings.properties_and_measures.period))
        found = properties_of(_read_if_one(self._local(period, grid if settings.unstack else None)), settings)
        return rechunk(found, self.context.config.custom.final_chunks)

    def _local(self, dataset: xr.Dataset, grid: xr.Dataset | None) -> xr.Dataset:
        """The domain's cells, in blocks of whole series."""
        if grid is None or stack.STACKED_DIM not in dataset.dims:
            part = comparison.cut_domain(dataset, self.box())
            return rechunk(part, blocks(part))
        part = comparison.cut_domain(grid.drop_vars("land"), self.box())
        # Once more: of a curvilinear grid, the part is larger than the box.
        return comparison.cut_domain(stack.unstack_fill_nan(dataset, grid, blocks(part), part=part), self.box())


def properties_of(dataset: xr.Dataset, step: DiagStep) -> xr.Dataset:
    """Return the properties of a step's dataset, over the step's period."""
    asked = step.properties_and_measures
    return comparison.properties(
        dataset, definitions=asked.properties, period=asked.period, to_level=asked.to_level_prop
    )


def with_measures(properties: xr.Dataset, reference: xr.Dataset, step: DiagStep) -> dict[str, xr.Dataset]:
    """Return a step's properties and their distance from the reference's, both computed: a few maps."""
    found, to_level = properties.compute(), step.properties_and_measures.to_level_meas
    return {"prop": found, "meas": comparison.measures(found, reference.compute(), to_level=to_level)}


def blocks(part: xr.Dataset) -> dict[str, int]:
    """Return the chunks in which properties are computed: whole series of some rows."""
    y, x = stack.horizontal_dims(part)
    return {y: max(1, CELLS_IN_A_BLOCK // part.sizes[x]), x: -1, "time": -1}


def _read_if_one(part: xr.Dataset) -> xr.Dataset:
    """Return a part of one block in memory: to find out what a lazy result will be, xsdba takes as long as for it."""
    return part.compute() if all(len(sizes) == 1 for sizes in part.chunksizes.values()) else part


class OffDiagRefProp(DomainTask):
    """Rule `off_diag_ref_prop`: the properties of the reference, in its own calendar."""

    resources_default = _RESOURCES
    uncut = ("in_reference",)
    in_reference = upstream(RefDefault, "out_reference", region=hosting_region("ref"))
    in_grid = upstream(RefDefault, "out_grid", region=hosting_region("ref"))
    out_prop = temporary("{ref_source}+{diag_domain}+diag_ref_prop.zarr")
    reads_step = "ref"

    def check(self) -> None:
        """Raise an error, too, if the reference has no land in the domain."""
        super().check()
        if not MoveRef(diag_domain=self.diag_domain).complete():
            _ = self._has_been_looked_at

    @functools.cached_property
    def _has_been_looked_at(self) -> bool:
        host, box, key = self.in_reference.task, self.box(), f"off-diag.domains.{self.diag_domain}"
        lacking = missing_land(cut(host.land(), box, key), box, key)
        if lacking:
            raise ConfigurationError(
                f"{lacking}. Correct the bounds, take the domain away, or name another host than {host.region}."
            )
        return True

    def compute(self, reference: xr.Dataset, grid: xr.Dataset) -> xr.Dataset:
        """Compute the properties."""
        return self.properties(reference, "ref", grid)


class MoveRef(PackTask, DomainTask):
    """Rule `move_ref`: the archive of the reference's properties."""

    resources_default = Resources(n_workers=2, cpus_per_task=10, memory="50GB", time="1000")
    in_prop = upstream(OffDiagRefProp, "out_prop")
    out_prop = packed("diagnostics/{diag_domain}/{ref_source}+{diag_domain}+diag_ref_prop.zarr.zip", "in_prop")


class OffDiagSimPropMeas(DomainTask):
    """Rule `off_diag_sim_prop_meas`: the simulation's properties, and their distance from the reference's."""

    sim_id = SimulationParameter()
    resources_default = _RESOURCES
    uncut = ("in_regchunked",)
    in_regchunked = upstream(Move, "out_regchunked", region=hosting_region("sim"))
    in_grid = upstream(RefDefault, "out_grid", region=hosting_region("sim"))
    in_ref_prop = upstream(MoveRef, "out_prop")
    reads_step = "sim"
    out_prop = temporary("{sim_id}+{diag_domain}+diag_sim_prop.zarr")
    out_meas = temporary("{sim_id}+{diag_domain}+diag_sim_meas.zarr")

    def compute(self, regchunked: xr.Dataset, grid: xr.Dataset, ref_prop: xr.Dataset) -> dict[str, xr.Dataset]:
        """Compute properties, then measures."""
        return with_measures(self.properties(regchunked, "sim", grid), ref_prop, self.step("sim"))


class OffDiagScenPropMeas(DomainTask):
    """Rule `off_diag_scen_prop_meas`: the scenario's properties, and their distance from the reference's."""

    sim_id = SimulationParameter()
    resources_default = _RESOURCES
    uncut = ("in_final",)
    in_final = upstream(ConcatenationFinal, "out_final")
    in_ref_prop = upstream(MoveRef, "out_prop")
    reads_step = "scen"
    out_prop = temporary("{sim_id}+{diag_domain}+diag_scen_prop.zarr")
    out_meas = temporary("{sim_id}+{diag_domain}+diag_scen_meas.zarr")

    def compute(self, final: xr.Dataset, ref_prop: xr.Dataset) -> dict[str, xr.Dataset]:
        """Compute properties, then measures."""
        return with_measures(self.properties(final, "scen", None), ref_prop, self.step("scen"))


class DiagMeasuresImprovement(DomainTask):
    """Rule `diag_measures_improvement`: the share of cells in which the scenario is not worse than the simulation."""

    sim_id = SimulationParameter()
    resources_default = Resources(n_workers=3, cpus_per_task=15, memory="6GB", time="1000")
    in_sim_meas = upstream(OffDiagSimPropMeas, "out_meas")
    in_scen_meas = upstream(OffDiagScenPropMeas, "out_meas")
    out_improvement = temporary("{sim_id}+{diag_domain}+improvement.zarr")

    def compute(self, sim_meas: xr.Dataset, scen_meas: xr.Dataset) -> xr.Dataset:
        """Compare the measures, which are a few maps and fit in memory; simulation first."""
        return comparison.improvement(sim_meas.compute(), scen_meas.compute())


class MoveDiag(PackTask, DomainTask):
    """Rule `move_diag`: the archives of one simulation's properties, measures and improvement."""

    sim_id = SimulationParameter()
    resources_default = Resources(n_workers=2, cpus_per_task=10, memory="50GB", time="1000")
    in_sim_prop = upstream(OffDiagSimPropMeas, "out_prop")
    in_sim_meas = upstream(OffDiagSimPropMeas, "out_meas")
    in_scen_prop = upstream(OffDiagScenPropMeas, "out_prop")
    in_scen_meas = upstream(OffDiagScenPropMeas, "out_meas")
    in_improvement = upstream(DiagMeasuresImprovement, "out_improvement")
    out_sim_prop = packed("diagnostics/{diag_domain}/{sim_id}+{diag_domain}+diag_sim_prop.zarr.zip", "in_sim_prop")
    out_sim_meas = packed("diagnostics/{diag_domain}/{sim_id}+{diag_domain}+diag_sim_meas.zarr.zip", "in_sim_meas")
    out_scen_prop = packed("diagnostics/{diag_domain}/{sim_id}+{diag_domain}+diag_scen_prop.zarr.zip", "in_scen_prop")
    out_scen_meas = packed("diagnostics/{diag_domain}/{sim_id}+{diag_domain}+diag_scen_meas.zarr.zip", "in_scen_meas")
    out_improvement = packed("diagnostics/{diag_domain}/{sim_id}+{diag_domain}+improvement.zarr.zip", "in_improvement")
