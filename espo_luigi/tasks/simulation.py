"""The rules that bring one simulation onto the reference's grid."""

from __future__ import annotations

import xarray as xr

from espo_luigi import store
from espo_luigi.cluster.resources import Resources
from espo_luigi.ports import temporary, upstream
from espo_luigi.science import calendar, extract, regrid
from espo_luigi.science.chunks import rechunk
from espo_luigi.tasks.base import EspoTask, RegionParameter, SimulationParameter
from espo_luigi.tasks.reference import ReferenceCalendar

FOUR_YEARS = {"noleap": 1460, "360_day": 1440}


class Extract(EspoTask):
    """Rule `extract`: one simulation over the whole domain, in its own calendar, daily stamps at midnight."""

    sim_id = SimulationParameter()
    resources_default = Resources(n_workers=2, cpus_per_task=10, memory="50GB", time="1000")
    out_extracted = temporary("{sim_id}+{domain}+extracted.zarr")

    def compute(self) -> xr.Dataset:  # type: ignore[override]
        """Open the simulation's files, derive dtr, and cut the period and the domain."""
        config = self.context.config
        extraction = config.extraction.simulation
        dataset = extract.extract(
            self.context.open(self.context.simulation(self.sim_id), extraction),
            variables_and_freqs=extraction.search_data_catalogs.variables_and_freqs,
            period=config.custom.sim_period,
            region=config.custom.amno_region.model_dump(),
        )
        maps = {name: -1 for name in dataset.dims} | {"time": 365}
        return rechunk(_single_precision(dataset), maps | dict(extraction.chunks))


class Regrid(EspoTask):
    """Rule `regrid`: one simulation on the cells of one region of the reference, by the configured cascade of grids."""

    sim_id, region = SimulationParameter(), RegionParameter()
    resources_default = Resources(n_workers=3, cpus_per_task=9, memory="48GB", time="1000")
    in_reference = upstream(ReferenceCalendar, "out_reference", calendar="noleap")
    in_extracted = upstream(Extract, "out_extracted")
    out_regridded = temporary("{sim_id}+{region}+regridded.zarr")

    def compute(self, reference: xr.Dataset, extracted: xr.Dataset) -> xr.Dataset:  # type: ignore[override]
        """Apply the cascade's one matrix; in the working chunks at once where the result fits in memory."""
        config = self.context.config
        regridded = regrid.regrid(
            extracted,
            reference,
            regridder_kwargs=config.regrid.regridder_kwargs,
            intermediate_grids={name: grid.model_dump() for name, grid in config.regrid.intermediate_grids.items()},
        )
        if regridded.nbytes * 3 < self.allocation.memory_bytes:
            return rechunk(regridded, config.custom.working_chunks)
        # Between maps and series: chunks of some 30 MB, from which Rechunk takes whole blocks of cells.
        cells = {name: 10 * size for name, size in config.custom.working_chunks.items() if size > 0}
        return rechunk(regridded, cells | {"time": four_years(regridded)})


class Rechunk(EspoTask):
    """Rule `rechunk`: the regridded simulation in chunks of whole time series."""

    sim_id, region = SimulationParameter(), RegionParameter()
    resources_default = Resources(n_workers=2, cpus_per_task=10, memory="50GB", time="1000")
    in_regridded = upstream(Regrid, "out_regridded")
    out_regchunked = temporary("{sim_id}+{region}+regchunked.zarr")

    def work(self) -> None:
        """Link the files where `Regrid` has written the working chunks already; else write them."""
        source, destination = self.in_regridded().path, self.out_regchunked().path
        regridded = store.open_store(source)
        wanted = rechunk(regridded, self.context.config.custom.working_chunks)
        if wanted.chunks == regridded.chunks:
            store.link_store(source, destination, self.marker())
        else:
            self.publish({"": wanted})


def four_years(dataset: xr.Dataset) -> int:
    """Return the length of a chunk of four years in the dataset's calendar."""
    return FOUR_YEARS.get(calendar.calendar_of(dataset), 1461)


def _single_precision(dataset: xr.Dataset) -> xr.Dataset:
    """Return the dataset in float32: some models publish float64, and nothing downstream keeps more."""
    return dataset.astype("float32", keep_attrs=True)
