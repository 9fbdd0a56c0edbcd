"""The diagnostics of the 2024 branch, over whole regions; part of `All` when the configuration has `diagnostics`."""

from __future__ import annotations

import luigi
import xarray as xr

from espo_luigi.config import Diagnostics as DiagnosticsSection
from espo_luigi.errors import ParameterError
from espo_luigi.jobs.resources import Resources
from espo_luigi.science import stack
from espo_luigi.science.chunks import rechunk
from espo_luigi.science.diagnose import comparison
from espo_luigi.science.finalize import scenario as finalize
from espo_luigi.tasks.base import EspoTask, RegionParameter, SimulationParameter, every_region
from espo_luigi.tasks.diagnostics import blocks, properties_of, with_measures
from espo_luigi.tasks.ports import kept, temporary, upstream
from espo_luigi.tasks.product import FinalZarr
from espo_luigi.tasks.reference import RefDefault
from espo_luigi.tasks.simulation import Rechunk

LEVELS = ("diag_sim_prop", "diag_sim_meas", "diag_scen_prop", "diag_scen_meas")


class StageTask(EspoTask):
    """A rule of the 2024 branch; needs the configuration's `diagnostics` section."""

    # What `joined` reads.
    joining = ("custom.amno_region.name", "custom.final_chunks", "custom.regions.*")

    @property
    def section(self) -> DiagnosticsSection:
        """The configuration's `diagnostics` section."""
        section = self.context.config.diagnostics
        if section is None:
            raise ParameterError(
                f"{self.get_task_family()} needs the section 'diagnostics' in the configuration, which has none: "
                "add it, or leave this task out"
            )
        return section

    def joined(self, regions: list[xr.Dataset], level: str) -> xr.Dataset:
        """Return the maps of all regions as one, in the product's chunks."""
        custom = self.context.config.custom
        whole = finalize.concatenate(regions, domain=custom.amno_region.name, processing_level=level)
        return rechunk(whole, custom.final_chunks)

    def check(self) -> None:
        """Raise an error where the configuration has no such diagnostics."""
        super().check()
        _ = self.section


class DiagnosticsReference(StageTask):
    """Rule `diagnostics`: the properties of the reference over one region."""

    region = RegionParameter()
    resources_default = Resources(n_workers=2, cpus_per_task=10, memory="50GB", time="1000")
    in_reference = upstream(RefDefault, "out_reference")
    in_grid = upstream(RefDefault, "out_grid")
    out_prop = kept("diagnostics/{region}/{ref_source}+{region}+diag_ref_prop.zarr")
    reads = ("custom.stack_drop_nans", "diagnostics.ref.properties_and_measures")

    def compute(self, reference: xr.Dataset, grid: xr.Dataset) -> xr.Dataset:
        """Compute the properties, without the diurnal range, on the whole grid."""
        whole = stack.unstack_fill_nan(reference, grid) if self.context.config.custom.stack_drop_nans else reference
        return properties_of(whole.drop_vars("dtr", errors="ignore"), self.section.reference)


class ConcatDiagRefProp(StageTask):
    """Rule `concat_diag_ref_prop`: the reference's properties over the whole domain."""

    resources_default = Resources(n_workers=3, cpus_per_task=15, memory="60GB", time="1000")
    in_regions = upstream(DiagnosticsReference, "out_prop", region=every_region)
    out_prop = kept("diagnostics/{domain}/{ref_source}+{domain}+diag_ref_prop.zarr")
    reads = (*StageTask.joining, "diagnostics.ref.properties_and_measures.to_level_prop")

    def compute(self, regions: list[xr.Dataset]) -> xr.Dataset:
        """Put the regions together from south to north."""
        return self.joined(regions, self.section.reference.properties_and_measures.to_level_prop)


class Diagnostics(StageTask):
    """Rule `DIAGNOSTICS`: properties and measures of the simulation and of the scenario over one region."""

    sim_id, region = SimulationParameter(), RegionParameter()
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
    out_diag_sim_prop = temporary("{sim_id}+{region}+DIAGNOSTICS+diag_sim_prop.zarr")
    out_diag_sim_meas = temporary("{sim_id}+{region}+DIAGNOSTICS+diag_sim_meas.zarr")
    out_diag_scen_prop = temporary("{sim_id}+{region}+DIAGNOSTICS+diag_scen_prop.zarr")
    out_diag_scen_meas = temporary("{sim_id}+{region}+DIAGNOSTICS+diag_scen_meas.zarr")

    def compute(
        self, regchunked: xr.Dataset, grid: xr.Dataset, scenario: xr.Dataset, ref_prop: xr.Dataset
    ) -> dict[str, xr.Dataset]:
        """Compute both pairs."""
        simulation = regchunked.sel(time=slice(*self.section.sim.properties_and_measures.period))
        if stack.STACKED_DIM in simulation.dims:
            simulation = stack.unstack_fill_nan(simulation, grid, blocks(grid))
        else:
            simulation = rechunk(simulation, self.context.config.custom.working_chunks)
        reference, outputs = ref_prop.compute(), dict[str, xr.Dataset]()
        for name, dataset in {"sim": simulation, "scen": scenario}.items():
            step = self.section.steps[name]
            made = with_measures(properties_of(dataset, step), reference, step)
            outputs |= {f"diag_{name}_{kind}": found for kind, found in made.items()}
        return outputs


class ConcatenationDiag(StageTask):
    """Rule `concatenation_diag`: one level of `Diagnostics` over the whole domain."""

    sim_id = SimulationParameter()
    level = luigi.ChoiceParameter(choices=LEVELS, description="which of the outputs of Diagnostics")
    resources_default = Resources(n_workers=3, cpus_per_task=15, memory="60GB", time="1000")
    in_regions = upstream(Diagnostics, lambda task: f"out_{task.level}", region=every_region)
    out_whole = kept("diagnostics/{domain}/{sim_id}/{level}+{sim_id}+{domain}.zarr")
    reads = StageTask.joining

    def compute(self, regions: list[xr.Dataset]) -> xr.Dataset:
        """Put the regions together from south to north."""
        return self.joined(regions, regions[0].attrs.get("cat:processing_level", self.level))


class DiagImprovedEtHeatmap(StageTask):
    """Rule `diag_improved_et_heatmap`: improvement and heatmap of one region."""

    sim_id, region = SimulationParameter(), RegionParameter()
    resources_default = Resources(n_workers=3, cpus_per_task=12, memory="60GB", time="1000")
    in_sim_meas = upstream(Diagnostics, "out_diag_sim_meas")
    in_scen_meas = upstream(Diagnostics, "out_diag_scen_meas")
    out_improved = kept("diagnostics/{region}/{sim_id}+{region}+diag_improved.zarr")
    out_heatmap = kept("diagnostics/{region}/{sim_id}+{region}+diag_heatmap.zarr")

    def compute(self, sim_meas: xr.Dataset, scen_meas: xr.Dataset) -> dict[str, xr.Dataset]:
        """Compare the measures, which are a few maps and fit in memory; simulation first."""
        both, region = (sim_meas.compute(), scen_meas.compute()), f"{self.sim_id}.{self.region}"
        named = {f"{region}.{measures.attrs['cat:processing_level']}.fx": measures for measures in both}
        return {"improved": comparison.improvement(*both), "heatmap": comparison.heatmap(named)}
