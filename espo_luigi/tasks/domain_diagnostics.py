"""The diagnostics of ESPO v2: properties of reference, raw simulation and product over small domains."""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import xarray as xr

from espo_luigi import store
from espo_luigi.catalog import Match
from espo_luigi.config import DomainDiag
from espo_luigi.errors import ConfigurationError
from espo_luigi.jobs.resources import Resources
from espo_luigi.science import stack
from espo_luigi.science.calendar import without_inserted_days
from espo_luigi.science.diagnose import comparison, domains
from espo_luigi.science.extract import dataset as extract
from espo_luigi.science.finalize import scenario as finalize
from espo_luigi.tasks import partition
from espo_luigi.tasks.base import DiagDomainParameter, EspoTask, SimulationParameter
from espo_luigi.tasks.diagnostics import section_of
from espo_luigi.tasks.inputs import InputCheck
from espo_luigi.tasks.ports import packed, temporary, upstream
from espo_luigi.tasks.product import ConcatClean
from espo_luigi.tasks.reference import MakeRef


def diagnosed_variables(task: Any) -> list[str]:
    """Return the variables that are diagnosed, for an input of each."""
    section = task.context.config.domain_diag
    return list(section.change_units_arg) if section else []


class DiagTask(EspoTask):
    """A rule about a domain of the section `domain-diag`."""

    diag_domain = DiagDomainParameter()
    reads: ClassVar[tuple[str, ...]] = (
        "domain-diag.change_units_arg",
        "domain-diag.domains.{diag_domain}",
        "domain-diag.period",
        "domain-diag.properties",
    )

    @property
    def section(self) -> DomainDiag:
        """The configuration's `domain-diag` section."""
        return section_of(self, "domain-diag", self.context.config.domain_diag)

    def check(self) -> None:
        """Raise an error where the configuration has no such diagnostics."""
        super().check()
        _ = self.section

    def cut(self, dataset: xr.Dataset) -> xr.Dataset:
        """Return the domain's part of maps, lazily."""
        return domains.cut_domain(dataset, self.section.domains[self.diag_domain].arguments())

    def properties(self, part: xr.Dataset) -> xr.Dataset:
        """Return the properties of the domain's part, computed."""
        section = self.section
        return domains.properties_in_units(
            part, units=section.change_units_arg, definitions=section.properties, period=section.period
        )


class DiagRef(DiagTask):
    """Rule `diag_ref`: ESPO v2: the properties of the reference over a domain, in its own calendar."""

    resources_default = Resources(n_workers=6, cpus_per_task=6, memory="90GB", time="10")
    uncut = ("in_fullregion",)
    in_fullregion = upstream(MakeRef, "out_fullregion")
    out_computed = temporary("{ref_source}+{domain}+{diag_domain}+ref-prop.zarr")
    out_prop = packed("diagnostics/{ref_source}/{domain}/{diag_domain}/ref-prop.zarr.zip", "out_computed")

    def check(self) -> None:
        """Raise an error, too, if the reference has no land in the domain."""
        super().check()
        if not self.complete():
            _ = self._land_was_looked_for

    @functools.cached_property
    def _land_was_looked_for(self) -> bool:
        box = self.section.domains[self.diag_domain].arguments() | {"tile_buffer": 0}
        key = f"domain-diag.domains.{self.diag_domain}"
        found = partition.cut_box(self.context.reference_on_its_first_day, box, key)
        if lacking := partition.missing_land(found, box, key):
            raise ConfigurationError(f"{lacking}. Correct the bounds, or take the domain away.")
        return True

    def compute(self, fullregion: xr.Dataset) -> xr.Dataset:
        """Compute the properties."""
        return self.properties(self.cut(fullregion))


_FILE = "diagnostics/{ref_source}/{domain}/{diag_domain}/{sim_id}/{sim_id}_{domain}_{diag_domain}_"


class Diag(DiagTask):
    """Rule `diag`: ESPO v2: properties of a simulation and its products over a domain, measures, and the improvement.

    The simulation is extracted anew and regridded to the domain's maps by all intermediate grids. It has no land mask,
    repairs or filling: it is not what was adjusted, as in ESPO v2.
    """

    sim_id = SimulationParameter()
    resources_default = Resources(n_workers=4, cpus_per_task=4, memory="400GB", time="540")
    in_checked = upstream(InputCheck, "out_problems")
    in_fullregion = upstream(MakeRef, "out_fullregion")
    in_ref_prop = upstream(DiagRef, "out_prop")
    in_final = upstream(ConcatClean, "out_final", var=diagnosed_variables)
    uncut = ("in_fullregion", "in_final")
    reads = (
        *DiagTask.reads,
        "domain",
        "extraction.simulation.days_to_fill",
        "extraction.simulation.extract_dataset.xr_combine_kwargs",
        "extraction.simulation.extract_dataset.xr_open_kwargs",
        "regrid.regrid_dataset",
        "regrid.regrid_dataset.intermediate_grids.*",
    )
    out_sim_prop_computed = temporary("{sim_id}+{diag_domain}+sim-prop.zarr")
    out_sim_meas_computed = temporary("{sim_id}+{diag_domain}+sim-meas.zarr")
    out_scen_prop_computed = temporary("{sim_id}+{diag_domain}+scen-prop.zarr")
    out_scen_meas_computed = temporary("{sim_id}+{diag_domain}+scen-meas.zarr")
    out_improvement_computed = temporary("{sim_id}+{diag_domain}+imp.zarr")
    out_sim_prop = packed(_FILE + "sim-prop.zarr.zip", "out_sim_prop_computed")
    out_sim_meas = packed(_FILE + "sim-meas.zarr.zip", "out_sim_meas_computed")
    out_scen_prop = packed(_FILE + "scen-prop.zarr.zip", "out_scen_prop_computed")
    out_scen_meas = packed(_FILE + "scen-meas.zarr.zip", "out_scen_meas_computed")
    out_improvement = packed(_FILE + "imp.zarr.zip", "out_improvement_computed")

    def raw(self) -> Match:
        """Return the simulation."""
        return self.context.simulation(self.sim_id)

    def compute(
        self, checked: list[store.Row], fullregion: xr.Dataset, ref_prop: xr.Dataset, final: list[xr.Dataset]
    ) -> dict[str, xr.Dataset]:
        """Compute all five, a few maps each."""
        reference, ref_properties = self.cut(fullregion), ref_prop.compute()
        # A regional simulation's product may have few of the domain's cells, or none.
        scenario = self.cut(domains.spread_over(finalize.together(final), stack.grid_of(fullregion)))
        properties = {"sim": self.properties(self._simulated(reference)), "scen": self.properties(scenario)}
        measured = {
            name: comparison.measures(found, ref_properties, to_level="diag-measures")
            for name, found in properties.items()
        }
        return {
            **{f"{name}_prop_computed": found for name, found in properties.items()},
            **{f"{name}_meas_computed": found for name, found in measured.items()},
            "improvement_computed": comparison.improvement(measured["sim"], measured["scen"]),
        }

    def _simulated(self, reference: xr.Dataset) -> xr.Dataset:
        """The raw simulation on the domain's cells where the reference has data."""
        config = self.context.config
        extracted = extract.extract(
            self.context.open(self.raw(), config.extraction.simulation),
            variables_and_freqs=dict.fromkeys(self.section.change_units_arg, "D"),
            period=self.section.period,
            region=config.domain.arguments(),
        )
        return domains.on_domain(
            without_inserted_days(extracted),
            reference,
            land=self.context.mask_variable,
            **config.regrid.regrid_dataset.arguments(),
        )
