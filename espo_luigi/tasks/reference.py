"""The rules that prepare the reference dataset, once for all simulations."""

from __future__ import annotations

import xarray as xr

from espo_luigi.cluster.resources import Resources
from espo_luigi.ports import kept, upstream
from espo_luigi.science import calendar, chunks, extract, stack
from espo_luigi.tasks.base import CalendarParameter, EspoTask, RegionParameter


class RefDefault(EspoTask):
    """Rule `ref_default`: the reference over one region, land cells only, and the region's whole grid."""

    region = RegionParameter()
    resources_default = Resources(n_workers=2, cpus_per_task=10, memory="50GB", time="1000")
    out_reference = kept("reference/{ref_source}+{region}+default.zarr")
    out_grid = kept("reference/{ref_source}+{region}+coords.zarr")

    def compute(self) -> dict[str, xr.Dataset]:  # type: ignore[override]
        """Cut the reference to the region, stack its land cells, and chunk it for work along time."""
        config = self.context.config
        extraction = config.extraction.reference
        dataset = extract.extract(
            self.context.open(self.context.reference(), extraction),
            variables_and_freqs=extraction.search_data_catalogs.variables_and_freqs,
            period=config.custom.ref_period,
            region=config.custom.regions[self.region].model_dump(),
        )
        reference = stack.stack_drop_nans(dataset) if config.custom.stack_drop_nans else dataset
        grid = stack.grid_of(dataset).assign(land=stack.land_of(dataset))
        return {"reference": chunks.rechunk(reference, config.custom.working_chunks), "grid": grid}


class ReferenceCalendar(EspoTask):
    """Rule `reference_calendar`: the reference in the calendar of a simulation."""

    region, calendar = RegionParameter(), CalendarParameter()
    resources_default = Resources(n_workers=2, cpus_per_task=10, memory="50GB", time="1000")
    in_default = upstream(RefDefault, "out_reference")
    out_reference = kept("reference/{ref_source}+{region}+{calendar}.zarr")

    def compute(self, default: xr.Dataset) -> xr.Dataset:  # type: ignore[override]
        """Convert the calendar; dropping 29 February, or days spread over the year."""
        return chunks.rechunk(
            calendar.convert(default, str(self.calendar), align_on="year"), self.context.config.custom.working_chunks
        )
