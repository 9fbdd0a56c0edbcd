"""The diagnostics: properties of reference, simulation and scenario, and the improvement from simulation to scenario.

Each of three sections of the configuration has rules of its own, which are one family: `DiagnosisTask` diagnoses a
dataset as its section says, over a region. `off-diag`: the official diagnostics of 2024, over small domains.
`diagnostics`: those of the 2024 branch, over whole pieces, which are part of `All` where the section is there.
`domain-diag`: ESPO v2's, over small domains.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import luigi
import xarray as xr

from espo_luigi import store
from espo_luigi.jobs.resources import Resources
from espo_luigi.science import stack
from espo_luigi.science.calendar import without_inserted_days
from espo_luigi.science.chunks import rechunk
from espo_luigi.science.diagnose import diagnosis
from espo_luigi.science.diagnose.diagnosis import Diagnosis
from espo_luigi.science.extract import dataset as extract
from espo_luigi.science.finalize import scenario as finalize
from espo_luigi.science.geometry.cells import horizontal_dims
from espo_luigi.science.geometry.cutting import spread_over
from espo_luigi.tasks import partition
from espo_luigi.tasks.base import DiagDomainParameter, EspoTask, PieceParameter, SimulationParameter, every_piece
from espo_luigi.tasks.daily import TABLE, Daily, keys_of_raw, of_hours
from espo_luigi.tasks.inputs import InputCheck
from espo_luigi.tasks.ports import kept, packed, temporary, upstream
from espo_luigi.tasks.product import CleanUp, ConcatClean, ConcatenationFinal, Move
from espo_luigi.tasks.production import summarised
from espo_luigi.tasks.reference import MakeRef, RefDefault
from espo_luigi.tasks.simulation import Regrid, cell_bounds, layout_of_maps, maps_in_a_file

_RESOURCES = Resources(n_workers=3, cpus_per_task=15, memory="60GB", time="1000")
_OF_PACKING = Resources(n_workers=2, cpus_per_task=10, memory="50GB", time="1000")


class DiagnosisTask(EspoTask):
    """A rule of a section of the configuration that says what is diagnosed."""

    section_name: ClassVar[str] = ""
    # The names of outputs without out_: properties (prop) and measures (meas) of a step (sim, scen).
    made_as: ClassVar[str] = "{step}_{kind}_computed"

    @property
    def section(self) -> Any:
        """The section; raises `ParameterError` if the configuration has none."""
        return self.context.needed(self.section_name, self.get_task_family())

    def check(self) -> None:
        """Raise an error, too, if the configuration lacks the section."""
        _ = self.section
        super().check()

    def box(self) -> dict[str, Any] | None:
        """Return the bounds of the task's domain; None for whole pieces."""
        return None

    def diagnosis(self, step: str, dataset: xr.Dataset, grid: xr.Dataset | None = None) -> Diagnosis:
        """Return the diagnosis of a dataset as the section asks of a step; stacked cells need their `grid`."""
        return Diagnosis(dataset, self.section.steps[step].step, self.box(), grid)

    def compared(self, ref_prop: xr.Dataset, grid: xr.Dataset | None = None, **datasets: xr.Dataset) -> dict[str, Any]:
        """Return the properties and measures of the datasets of steps, by their outputs."""
        made = {step: self.diagnosis(step, ds, grid).with_measures(ref_prop) for step, ds in datasets.items()}
        return {self.made_as.format(step=step, kind=kind): ds for step, of in made.items() for kind, ds in of.items()}

    def look_for_land(self, cells: xr.Dataset, advice: str) -> None:
        """Raise `ConfigurationError` if none of the reference's cells in the task's domain is land."""
        box = {**(self.box() or {}), "tile_buffer": 0}
        section = self.section_name.replace("_", "-")
        key = self.context.config.name_of(f"{section}.domains.{self.wildcards['diag_domain']}")
        partition.require_land(partition.cut_box(cells, box, key), box, key, advice)


# The section `off-diag`.

_OFF_DIAG = "diagnostics/{diag_domain}/"


def hosting_piece(step: str) -> Any:
    """Return a function that returns the piece whose files contain a task's domain, for a step; or all pieces."""
    return lambda task: (task.context.off_diag.steps[step].domain if task.context.off_diag else {}).get(
        task.diag_domain, every_piece(task)
    )


class OffDiagTask(DiagnosisTask):
    """A rule about a domain of the section `off-diag`; without the section, about the whole domain, thinned."""

    diag_domain = DiagDomainParameter()
    # The step whose properties the rule computes, if any; rules of a step read the same keys.
    reads_step: ClassVar[str] = ""
    section_name = "off_diag"

    @property
    def section(self) -> Any:
        """The section, or that of the whole domain; raises `ParameterError` if there is neither."""
        return self.context.off_diag or super().section

    @property
    def host(self) -> str | None:
        """The piece of the reference that contains the domain; None for the whole domain."""
        hosts: Mapping[str, str] = self.section.steps["ref"].domain
        return hosts.get(self.diag_domain)

    def reading(self) -> list[str]:
        """Return the keys of the step, of the domain, and of the piece that hosts it."""
        if not self.reads_step:
            return super().reading()
        if self.host is None:
            of_the_table = [f"variables.*.{key}" for key in ("long_name", "units", "wet")]
            return ["biasadjust.variables.*", "custom.final_chunks", "custom.ref_period", *of_the_table]
        step, domain = f"off-diag.steps.{self.reads_step}", str(self.diag_domain)
        return [
            "custom.final_chunks",
            f"{partition.PIECE_KEY.format(piece=self.host)}.lat_bnds",
            f"off-diag.domains.{domain}",
            f"off-diag.steps.ref.domain.{domain}",
            *(f"{step}.{name}" for name in (f"domain.{domain}", "properties_and_measures", "unstack")),
        ]

    def box(self) -> dict[str, Any] | None:
        """Return the part of the domain that lies in its piece of the reference: the same cells for all steps."""
        if self.host is None:
            return None
        domain = self.section.domains[self.diag_domain]
        host = partition.box_of(self.context, self.host)
        south, north = max(domain.lat_bnds[0], host.lat_bnds[0]), min(domain.lat_bnds[1], host.lat_bnds[1])
        return domain.arguments() | {"lat_bnds": (south, north)}

    def diagnosis(self, step: str, dataset: Any, grid: Any = None) -> Diagnosis:
        """Return the diagnosis of a dataset, which is unstacked if its step says so.

        Of the whole domain, `grid` has those of the pieces `dataset`; or, of its maps, the cells that are taken.
        """
        if self.host is None:
            if isinstance(grid, xr.Dataset):
                taken = dataset.sel({dim: grid[dim].values for dim in horizontal_dims(grid)})
                dataset = taken.assign_attrs(cells=grid.attrs["cells"])
            else:
                dataset = diagnosis.spread(dataset, grid)
            dataset = dataset.assign_attrs({"cat:domain": self.diag_domain})
        return super().diagnosis(step, dataset, grid if self.section.steps[step].unstack else None)


class OffDiagRefProp(OffDiagTask):
    """Rule `off_diag_ref_prop`: the properties of the reference, in its own calendar."""

    resources_default = _RESOURCES
    uncut = ("in_reference",)
    in_reference = upstream(RefDefault, "out_reference", piece=hosting_piece("ref"))
    in_grid = upstream(RefDefault, "out_grid", piece=hosting_piece("ref"))
    out_prop_computed = temporary("{ref_source}+{diag_domain}+diag_ref_prop.zarr")
    out_prop = packed(_OFF_DIAG + "{ref_source}+{diag_domain}+diag_ref_prop.zarr.zip", "out_prop_computed")
    reads_step = "ref"

    def look(self) -> None:
        """Raise an error if the reference has no land in the domain."""
        if not self.complete() and self.host is not None:
            host = self.in_reference.task
            self.look_for_land(host.land(), f"take the domain away, or name another host than {host.piece}")

    def compute(self, reference: Any, grid: Any) -> xr.Dataset:
        """Compute the properties, block by block."""
        return rechunk(self.diagnosis("ref", reference, grid).properties(), self.context.config.custom.final_chunks)


class OffDiagSimPropMeas(OffDiagTask):
    """Rule `off_diag_sim_prop_meas`: the simulation's properties, and their distance from the reference's."""

    sim_id = SimulationParameter()
    resources_default = _RESOURCES
    uncut = ("in_regridded",)
    in_regridded = summarised("regridded", (Move, Regrid), piece=hosting_piece("sim"))
    in_grid = upstream(RefDefault, "out_grid", piece=hosting_piece("sim"))
    in_ref_prop = upstream(OffDiagRefProp, "out_prop")
    reads_step = "sim"
    out_sim_prop_computed = temporary("{sim_id}+{diag_domain}+diag_sim_prop.zarr")
    out_sim_meas_computed = temporary("{sim_id}+{diag_domain}+diag_sim_meas.zarr")
    out_sim_prop = packed(_OFF_DIAG + "{sim_id}+{diag_domain}+diag_sim_prop.zarr.zip", "out_sim_prop_computed")
    out_sim_meas = packed(_OFF_DIAG + "{sim_id}+{diag_domain}+diag_sim_meas.zarr.zip", "out_sim_meas_computed")

    def compute(self, regridded: Any, grid: Any, ref_prop: xr.Dataset) -> dict[str, xr.Dataset]:
        """Compute properties, then measures."""
        return self.compared(ref_prop, grid, sim=regridded)


class OffDiagScenPropMeas(OffDiagTask):
    """Rule `off_diag_scen_prop_meas`: the scenario's properties, and their distance from the reference's."""

    sim_id = SimulationParameter()
    resources_default = _RESOURCES
    uncut = ("in_final",)
    in_final = upstream(ConcatenationFinal, "out_final")
    in_ref_prop = upstream(OffDiagRefProp, "out_prop")
    reads_step = "scen"
    out_scen_prop_computed = temporary("{sim_id}+{diag_domain}+diag_scen_prop.zarr")
    out_scen_meas_computed = temporary("{sim_id}+{diag_domain}+diag_scen_meas.zarr")
    out_scen_prop = packed(_OFF_DIAG + "{sim_id}+{diag_domain}+diag_scen_prop.zarr.zip", "out_scen_prop_computed")
    out_scen_meas = packed(_OFF_DIAG + "{sim_id}+{diag_domain}+diag_scen_meas.zarr.zip", "out_scen_meas_computed")

    def compute(self, final: xr.Dataset, ref_prop: xr.Dataset) -> dict[str, xr.Dataset]:
        """Compute properties, then measures."""
        return self.compared(ref_prop, ref_prop if self.host is None else None, scen=final)


class DiagMeasuresImprovement(OffDiagTask):
    """Rule `diag_measures_improvement`: the share of cells in which the scenario is not worse than the simulation."""

    sim_id = SimulationParameter()
    resources_default = Resources(n_workers=3, cpus_per_task=15, memory="6GB", time="1000")
    in_sim_meas = upstream(OffDiagSimPropMeas, "out_sim_meas")
    in_scen_meas = upstream(OffDiagScenPropMeas, "out_scen_meas")
    out_improvement_computed = temporary("{sim_id}+{diag_domain}+improvement.zarr")
    out_improvement = packed(_OFF_DIAG + "{sim_id}+{diag_domain}+improvement.zarr.zip", "out_improvement_computed")

    def compute(self, sim_meas: xr.Dataset, scen_meas: xr.Dataset) -> xr.Dataset:
        """Compare the measures, which are a few maps and fit in memory; simulation first."""
        return diagnosis.improvement(sim_meas.compute(), scen_meas.compute())


# The section `diagnostics`.

LEVELS = ("diag_sim_prop", "diag_sim_meas", "diag_scen_prop", "diag_scen_meas")


class DiagnosticsTask(DiagnosisTask):
    """A rule of the section `diagnostics`: the 2024 branch's, over whole pieces."""

    # The keys that `joined` reads.
    joining = ("domain.name", "custom.final_chunks", partition.NAMES_KEY)
    section_name, made_as = "diagnostics", "diag_{step}_{kind}"

    def joined(self, pieces: list[xr.Dataset], level: str) -> xr.Dataset:
        """Join the maps of all pieces, from south to north, in the product's chunks."""
        config = self.context.config
        whole = finalize.concatenate(pieces, domain=config.domain.name, processing_level=level)
        return rechunk(whole, config.custom.final_chunks)


class DiagnosticsReference(DiagnosticsTask):
    """Rule `diagnostics`: the reference's properties over a piece."""

    piece = PieceParameter()
    resources_default = _OF_PACKING
    in_reference = upstream(RefDefault, "out_reference")
    in_grid = upstream(RefDefault, "out_grid")
    out_prop = kept("diagnostics/{piece}/{ref_source}+{piece}+diag_ref_prop.zarr")
    reads = ("diagnostics.ref.properties_and_measures",)

    def compute(self, reference: xr.Dataset, grid: xr.Dataset) -> xr.Dataset:
        """Compute the properties on the whole grid; the diurnal range is derived anew."""
        return self.diagnosis("ref", reference.drop_vars("dtr", errors="ignore"), grid).properties()


class ConcatDiagRefProp(DiagnosticsTask):
    """Rule `concat_diag_ref_prop`: the reference's properties over the whole domain."""

    resources_default = _RESOURCES
    in_pieces = upstream(DiagnosticsReference, "out_prop", piece=every_piece)
    out_prop = kept("diagnostics/{domain}/{ref_source}+{domain}+diag_ref_prop.zarr")
    reads = (*DiagnosticsTask.joining, "diagnostics.ref.properties_and_measures.to_level_prop")

    def compute(self, pieces: list[xr.Dataset]) -> xr.Dataset:
        """Put the pieces together."""
        return self.joined(pieces, self.section.ref.step.to_level)


class Diagnostics(DiagnosticsTask):
    """Rule `DIAGNOSTICS`: properties and measures of simulation and scenario over a piece."""

    sim_id, piece = SimulationParameter(), PieceParameter()
    resources_default = _RESOURCES
    in_regridded = upstream(Regrid, "out_regridded")
    in_grid = upstream(RefDefault, "out_grid")
    in_cleaned_up = upstream(CleanUp, "out_cleaned_up")
    in_ref_prop = upstream(DiagnosticsReference, "out_prop")
    uncut = ("in_regridded", "in_cleaned_up")
    reads = ("diagnostics.scen.properties_and_measures", "diagnostics.sim.properties_and_measures")
    out_diag_sim_prop = temporary("{sim_id}+{piece}+DIAGNOSTICS+diag_sim_prop.zarr")
    out_diag_sim_meas = temporary("{sim_id}+{piece}+DIAGNOSTICS+diag_sim_meas.zarr")
    out_diag_scen_prop = temporary("{sim_id}+{piece}+DIAGNOSTICS+diag_scen_prop.zarr")
    out_diag_scen_meas = temporary("{sim_id}+{piece}+DIAGNOSTICS+diag_scen_meas.zarr")

    def compute(
        self, regridded: xr.Dataset, grid: xr.Dataset, cleaned_up: xr.Dataset, ref_prop: xr.Dataset
    ) -> dict[str, xr.Dataset]:
        """Compute both pairs."""
        return self.compared(ref_prop, grid, sim=regridded, scen=cleaned_up)


class ConcatenationDiag(DiagnosticsTask):
    """Rule `concatenation_diag`: a level of `Diagnostics` over the whole domain."""

    sim_id = SimulationParameter()
    level = luigi.ChoiceParameter(choices=LEVELS, description="which of the outputs of Diagnostics")
    resources_default = _RESOURCES
    in_pieces = upstream(Diagnostics, lambda task: f"out_{task.level}", piece=every_piece)
    out_whole = kept("diagnostics/{domain}/{sim_id}/{level}+{sim_id}+{domain}.zarr")
    reads = DiagnosticsTask.joining

    def compute(self, pieces: list[xr.Dataset]) -> xr.Dataset:
        """Put the pieces together."""
        return self.joined(pieces, pieces[0].attrs.get("cat:processing_level", self.level))


class DiagImprovedEtHeatmap(DiagnosticsTask):
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
        return {"improved": diagnosis.improvement(*both), "heatmap": diagnosis.heatmap(named)}


# The section `domain-diag`.


class DomainDiagTask(DiagnosisTask):
    """A rule of the section `domain-diag`: ESPO v2's."""

    section_name = "domain_diag"

    def box(self) -> dict[str, Any]:
        """Return the bounds of the task's domain."""
        return dict(self.section.domains[self.diag_domain].arguments())


_DOMAIN_DIAG_KEYS = (
    "domain-diag.change_units_arg",
    "domain-diag.domains.{diag_domain}",
    "domain-diag.period",
    "domain-diag.properties",
)


class DiagRef(DomainDiagTask):
    """Rule `diag_ref`: ESPO v2: the properties of the reference over a domain, in its own calendar."""

    diag_domain = DiagDomainParameter()
    resources_default = Resources(n_workers=6, cpus_per_task=6, memory="90GB", time="10")
    uncut = ("in_fullregion",)
    in_fullregion = upstream(MakeRef, "out_fullregion")
    out_computed = temporary("{ref_source}+{domain}+{diag_domain}+ref-prop.zarr")
    out_prop = packed("diagnostics/{ref_source}/{domain}/{diag_domain}/ref-prop.zarr.zip", "out_computed")
    reads = _DOMAIN_DIAG_KEYS

    def look(self) -> None:
        """Raise an error if the reference has no land in the domain."""
        if not self.complete():
            self.look_for_land(self.context.reference_on_its_first_day, "or take the domain away")

    def compute(self, fullregion: xr.Dataset) -> xr.Dataset:
        """Compute the properties."""
        return self.diagnosis("ref", fullregion).properties().compute()


class DiagExtract(DomainDiagTask):
    """Rule `diag_extract`, new against ESPO-G: ESPO v2: the raw series that the diagnoses of all domains need.

    So the raw files are read once, rather than once a domain. It has no land mask, repairs or filling: it is not what
    was adjusted, as in ESPO v2.
    """

    sim_id = SimulationParameter()
    resources_default = _OF_PACKING
    reads_raw = "simulation"
    in_checked = upstream(InputCheck, "out_problems")
    in_daily = of_hours(Daily)
    out_raw = temporary("{sim_id}+{domain}+diag-raw.zarr")
    reads = (
        "domain",
        "domain-diag.change_units_arg",
        "domain-diag.period",
        *keys_of_raw("simulation", "days_to_fill", "extract_dataset.xr_combine_kwargs"),
        *TABLE,
        "regrid.regrid_method",
    )

    def compute(self, checked: list[store.Row], daily: object = None) -> xr.Dataset:
        """Open the simulation's files, derive dtr, and cut the period and the whole domain."""
        config = self.context.config
        match = self.days()
        opened = self.context.open(match, config.extraction.simulation)
        extracted = extract.extract(
            opened,
            variables_and_freqs=dict.fromkeys(self.section.change_units_arg, "D"),
            period=self.section.period,
            region=config.domain.arguments(),
            table=config.table,
        )
        bounded = extracted.assign_coords(cell_bounds(self.context, match, opened, config.regrid.conserved))
        return rechunk(without_inserted_days(bounded), maps_in_a_file(extracted))

    def layout(self, dataset: xr.Dataset) -> dict[str, Any]:
        """Return files of maps, in chunks of a part of a row: each domain reads the rows and columns that it needs."""
        return layout_of_maps(dataset)


_FILE = "diagnostics/{ref_source}/{domain}/{diag_domain}/{sim_id}/{sim_id}_{domain}_{diag_domain}_"


class Diag(DomainDiagTask):
    """Rule `diag`: ESPO v2: properties of a simulation and its products over a domain, measures, and the improvement.

    The raw simulation is regridded to the domain's maps by all intermediate grids.
    """

    sim_id, diag_domain = SimulationParameter(), DiagDomainParameter()
    resources_default = Resources(n_workers=4, cpus_per_task=4, memory="400GB", time="540")
    in_raw = upstream(DiagExtract, "out_raw")
    in_fullregion = upstream(MakeRef, "out_fullregion")
    in_ref_prop = upstream(DiagRef, "out_prop")
    in_final = upstream(
        ConcatClean,
        "out_final",
        var=lambda task: list(getattr(task.context.config.domain_diag, "change_units_arg", ())),
    )
    uncut = ("in_raw", "in_fullregion", "in_final")
    reads = (
        *_DOMAIN_DIAG_KEYS,
        "regrid.regrid_dataset",
        "regrid.regrid_dataset.intermediate_grids.*",
        "regrid.regrid_method",
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

    def compute(
        self, raw: xr.Dataset, fullregion: xr.Dataset, ref_prop: xr.Dataset, final: list[xr.Dataset]
    ) -> dict[str, xr.Dataset]:
        """Compute all five, a few maps each."""
        simulation = diagnosis.on_domain(
            raw,
            diagnosis.cut_domain(fullregion, self.box()),
            land=self.context.mask_variable,
            **self.context.config.regrid.options(),
        )
        # A regional simulation's product may have few of the domain's cells, or none.
        scenario = spread_over(finalize.merge_products(final), stack.grid_of(fullregion))
        made = self.compared(ref_prop, sim=simulation, scen=scenario)
        improvement = diagnosis.improvement(made["sim_meas_computed"], made["scen_meas_computed"])
        return {**made, "improvement_computed": improvement}
