"""The diagnostics: properties of reference, simulation and scenario, and the improvement from simulation to scenario.

The official diagnostics are over small domains. Those of the 2024 branch, over whole pieces, are part of `All` if the
configuration has `diagnostics`.
"""

from __future__ import annotations

import functools
from typing import Any, ClassVar, Literal, TypeVar

import luigi
import xarray as xr

from espo_luigi.config import Diagnostics as DiagnosticsSection
from espo_luigi.config import DiagStep, OffDiag
from espo_luigi.errors import ConfigurationError, ParameterError
from espo_luigi.jobs.resources import Resources
from espo_luigi.science import stack
from espo_luigi.science.chunks import rechunk
from espo_luigi.science.diagnose import comparison, domains
from espo_luigi.science.finalize import scenario as finalize
from espo_luigi.tasks import partition
from espo_luigi.tasks.base import DiagDomainParameter, EspoTask, PieceParameter, SimulationParameter, every_piece
from espo_luigi.tasks.ports import kept, packed, temporary, upstream
from espo_luigi.tasks.product import ConcatenationFinal, FinalZarr, Move, PackTask
from espo_luigi.tasks.reference import RefDefault
from espo_luigi.tasks.simulation import Rechunk

_RESOURCES = Resources(n_workers=3, cpus_per_task=15, memory="60GB", time="1000")

Step = Literal["ref", "sim", "scen"]
Given = TypeVar("Given")


def hosting_piece(step: Step) -> Any:
    """Return a function that returns the piece whose files contain a task's domain, for a step."""
    return lambda task: task.step(step).domain[task.diag_domain]


def section_of(task: EspoTask, name: str, section: Given | None) -> Given:
    """Return a section of the configuration that a task needs; raises `ParameterError` if it is absent."""
    if section is None:
        raise ParameterError(
            f"{task.get_task_family()} needs the section {name!r} in the configuration, which has none: "
            "add it, or leave this task out"
        )
    return section


class DomainTask(EspoTask):
    """A rule about a domain of the official diagnostics."""

    diag_domain = DiagDomainParameter()
    # The step whose properties the rule computes, if any; rules of a step read the same keys.
    reads_step: ClassVar[Step | None] = None

    @property
    def section(self) -> OffDiag:
        """The configuration's `off-diag` section."""
        return section_of(self, "off-diag", self.context.config.off_diag)

    def step(self, name: Step) -> DiagStep:
        """Return the settings of a step (``ref``, ``sim`` or ``scen``)."""
        return self.section.steps[name]

    @property
    def host(self) -> str:
        """The piece of the reference that contains the domain."""
        return self.step("ref").domain[self.diag_domain]

    def reading(self) -> list[str]:
        """Return the keys of the step, of the domain, and of the piece that hosts it."""
        if self.reads_step is None:
            return super().reading()
        step, domain = f"off-diag.steps.{self.reads_step}", str(self.diag_domain)
        return [
            "custom.final_chunks",
            f"{partition.PIECE_KEY.format(piece=self.host)}.lat_bnds",
            f"off-diag.domains.{domain}",
            f"off-diag.steps.ref.domain.{domain}",
            *(f"{step}.{name}" for name in (f"domain.{domain}", "properties_and_measures", "unstack")),
        ]

    def box(self) -> dict[str, Any]:
        """Return the part of the domain that lies in its piece of the reference: the same cells for all steps."""
        domain = self.section.domains[self.diag_domain]
        host = partition.box_of(self.context, self.host)
        south, north = max(domain.lat_bnds[0], host.lat_bnds[0]), min(domain.lat_bnds[1], host.lat_bnds[1])
        return domain.arguments() | {"lat_bnds": (south, north)}

    def properties(self, dataset: xr.Dataset, step: Step, grid: xr.Dataset | None) -> xr.Dataset:
        """Return the step's properties over the domain, the only part of `dataset` that is read; `grid` unstacks it."""
        settings = self.step(step)
        period = dataset.sel(time=slice(*settings.properties_and_measures.period))
        part = domains.in_blocks(self._local(period, grid if settings.unstack else None))
        return rechunk(properties_of(part, settings), self.context.config.custom.final_chunks)

    def _local(self, dataset: xr.Dataset, grid: xr.Dataset | None) -> xr.Dataset:
        """The domain's cells."""
        if grid is None or stack.STACKED_DIM not in dataset.dims:
            return domains.cut_domain(dataset, self.box())
        part = domains.cut_domain(grid.drop_vars("land"), self.box())
        # Cut again: on a curvilinear grid, the part is larger than the box.
        return domains.cut_domain(stack.unstack_fill_nan(dataset, grid, domains.blocks(part), part=part), self.box())


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


class OffDiagRefProp(DomainTask):
    """Rule `off_diag_ref_prop`: the properties of the reference, in its own calendar."""

    resources_default = _RESOURCES
    uncut = ("in_reference",)
    in_reference = upstream(RefDefault, "out_reference", piece=hosting_piece("ref"))
    in_grid = upstream(RefDefault, "out_grid", piece=hosting_piece("ref"))
    out_prop = temporary("{ref_source}+{diag_domain}+diag_ref_prop.zarr")
    reads_step = "ref"

    def check(self) -> None:
        """Raise an error, too, if the reference has no land in the domain."""
        super().check()
        if not MoveRef(diag_domain=self.diag_domain).complete():
            _ = self._land_was_looked_for

    @functools.cached_property
    def _land_was_looked_for(self) -> bool:
        host, box, key = self.in_reference.task, self.box(), f"off-diag.domains.{self.diag_domain}"
        lacking = partition.missing_land(partition.cut_box(host.land(), box, key), box, key)
        if lacking:
            raise ConfigurationError(
                f"{lacking}. Correct the bounds, take the domain away, or name another host than {host.piece}."
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
    in_regchunked = upstream(Move, "out_regchunked", piece=hosting_piece("sim"))
    in_grid = upstream(RefDefault, "out_grid", piece=hosting_piece("sim"))
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
    """Rule `move_diag`: the archives of a simulation's properties, measures and improvement."""

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


LEVELS = ("diag_sim_prop", "diag_sim_meas", "diag_scen_prop", "diag_scen_meas")


class StageTask(EspoTask):
    """A rule of the 2024 branch; needs the configuration's `diagnostics` section."""

    # The keys that `joined` reads.
    joining = ("domain.name", "custom.final_chunks", partition.NAMES_KEY)

    @property
    def section(self) -> DiagnosticsSection:
        """The configuration's `diagnostics` section."""
        return section_of(self, "diagnostics", self.context.config.diagnostics)

    def joined(self, pieces: list[xr.Dataset], level: str) -> xr.Dataset:
        """Join the maps of all pieces, in the product's chunks."""
        config = self.context.config
        whole = finalize.concatenate(pieces, domain=config.domain.name, processing_level=level)
        return rechunk(whole, config.custom.final_chunks)

    def check(self) -> None:
        """Raise an error where the configuration has no such diagnostics."""
        super().check()
        _ = self.section


class DiagnosticsReference(StageTask):
    """Rule `diagnostics`: the reference's properties over a piece."""

    piece = PieceParameter()
    resources_default = Resources(n_workers=2, cpus_per_task=10, memory="50GB", time="1000")
    in_reference = upstream(RefDefault, "out_reference")
    in_grid = upstream(RefDefault, "out_grid")
    out_prop = kept("diagnostics/{piece}/{ref_source}+{piece}+diag_ref_prop.zarr")
    reads = ("custom.stack_drop_nans", "diagnostics.ref.properties_and_measures")

    def compute(self, reference: xr.Dataset, grid: xr.Dataset) -> xr.Dataset:
        """Compute the properties, without the diurnal range, on the whole grid."""
        whole = stack.unstack_fill_nan(reference, grid) if self.context.config.custom.stack_drop_nans else reference
        return properties_of(whole.drop_vars("dtr", errors="ignore"), self.section.reference)


class ConcatDiagRefProp(StageTask):
    """Rule `concat_diag_ref_prop`: the reference's properties over the whole domain."""

    resources_default = Resources(n_workers=3, cpus_per_task=15, memory="60GB", time="1000")
    in_pieces = upstream(DiagnosticsReference, "out_prop", piece=every_piece)
    out_prop = kept("diagnostics/{domain}/{ref_source}+{domain}+diag_ref_prop.zarr")
    reads = (*StageTask.joining, "diagnostics.ref.properties_and_measures.to_level_prop")

    def compute(self, pieces: list[xr.Dataset]) -> xr.Dataset:
        """Put the pieces together from south to north."""
        return self.joined(pieces, self.section.reference.properties_and_measures.to_level_prop)


class Diagnostics(StageTask):
    """Rule `DIAGNOSTICS`: properties and measures of simulation and scenario over a piece."""

    sim_id, piece = SimulationParameter(), PieceParameter()
    resources_default = Resources(n_workers=3, cpus_per_task=15, memory="60GB", time="1000")
    in_regchunked = upstream(Rechunk, "out_regchunked")
    in_grid = upstream(RefDefault, "out_grid")
    in_scenario = upstream(FinalZarr, "out_scenario")
    in_ref_prop = upstream(DiagnosticsReference, "out_prop")
    uncut = ("in_regchunked",)
    reads = (
        "custom.working_chunks",
        "diagnostics.scen.properties_and_measures",
        "diagnostics.sim.properties_and_measures",
    )
    out_diag_sim_prop = temporary("{sim_id}+{piece}+DIAGNOSTICS+diag_sim_prop.zarr")
    out_diag_sim_meas = temporary("{sim_id}+{piece}+DIAGNOSTICS+diag_sim_meas.zarr")
    out_diag_scen_prop = temporary("{sim_id}+{piece}+DIAGNOSTICS+diag_scen_prop.zarr")
    out_diag_scen_meas = temporary("{sim_id}+{piece}+DIAGNOSTICS+diag_scen_meas.zarr")

    def compute(
        self, regchunked: xr.Dataset, grid: xr.Dataset, scenario: xr.Dataset, ref_prop: xr.Dataset
    ) -> dict[str, xr.Dataset]:
        """Compute both pairs."""
        simulation = regchunked.sel(time=slice(*self.section.sim.properties_and_measures.period))
        if stack.STACKED_DIM in simulation.dims:
            simulation = stack.unstack_fill_nan(simulation, grid, domains.blocks(grid))
        else:
            simulation = rechunk(simulation, self.context.config.custom.working_chunks)
        reference, outputs = ref_prop.compute(), dict[str, xr.Dataset]()
        for name, dataset in {"sim": simulation, "scen": scenario}.items():
            step = self.section.steps[name]
            made = with_measures(properties_of(dataset, step), reference, step)
            outputs |= {f"diag_{name}_{kind}": found for kind, found in made.items()}
        return outputs


class ConcatenationDiag(StageTask):
    """Rule `concatenation_diag`: a level of `Diagnostics` over the whole domain."""

    sim_id = SimulationParameter()
    level = luigi.ChoiceParameter(choices=LEVELS, description="which of the outputs of Diagnostics")
    resources_default = Resources(n_workers=3, cpus_per_task=15, memory="60GB", time="1000")
    in_pieces = upstream(Diagnostics, lambda task: f"out_{task.level}", piece=every_piece)
    out_whole = kept("diagnostics/{domain}/{sim_id}/{level}+{sim_id}+{domain}.zarr")
    reads = StageTask.joining

    def compute(self, pieces: list[xr.Dataset]) -> xr.Dataset:
        """Put the pieces together from south to north."""
        return self.joined(pieces, pieces[0].attrs.get("cat:processing_level", self.level))


class DiagImprovedEtHeatmap(StageTask):
    """Rule `diag_improved_et_heatmap`: improvement and heatmap of a piece."""

    sim_id, piece = SimulationParameter(), PieceParameter()
    resources_default = Resources(n_workers=3, cpus_per_task=12, memory="60GB", time="1000")
    in_sim_meas = upstream(Diagnostics, "out_diag_sim_meas")
    in_scen_meas = upstream(Diagnostics, "out_diag_scen_meas")
    out_improved = kept("diagnostics/{piece}/{sim_id}+{piece}+diag_improved.zarr")
    out_heatmap = kept("diagnostics/{piece}/{sim_id}+{piece}+diag_heatmap.zarr")

    def compute(self, sim_meas: xr.Dataset, scen_meas: xr.Dataset) -> dict[str, xr.Dataset]:
        """Compare the measures, which are a few maps and fit in memory; simulation first."""
        both, name = (sim_meas.compute(), scen_meas.compute()), f"{self.sim_id}.{self.piece}"
        named = {f"{name}.{measures.attrs['cat:processing_level']}.fx": measures for measures in both}
        return {"improved": comparison.improvement(*both), "heatmap": comparison.heatmap(named)}
