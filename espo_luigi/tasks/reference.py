"""The rules that prepare the reference dataset, once for all simulations."""

from __future__ import annotations

import logging
from typing import Any

import xarray as xr

from espo_luigi import store
from espo_luigi.catalog import Match, open_grid_mapping
from espo_luigi.config import Region
from espo_luigi.jobs.resources import Resources
from espo_luigi.science import calendar, chunks, coarse, stack
from espo_luigi.science.attributes import STATED_UNITS
from espo_luigi.science.extract import dataset as extract
from espo_luigi.science.geometry.cells import horizontal_dims
from espo_luigi.science.geometry.cutting import subset_box
from espo_luigi.science.grid import land_map
from espo_luigi.science.possible import credible
from espo_luigi.science.units import in_units
from espo_luigi.science.variables import variable
from espo_luigi.tasks import partition
from espo_luigi.tasks.base import AdjustedPieceParameter, CalendarParameter, EspoTask, PieceParameter, every_piece
from espo_luigi.tasks.context import RunContext
from espo_luigi.tasks.daily import SERIES, TABLE, RefDaily, keys_of_raw, of_hours
from espo_luigi.tasks.inputs import RefInputCheck, told
from espo_luigi.tasks.ports import kept, upstream

logger = logging.getLogger(__name__)

# The size of the part that is brought from maps to series at a time.
SERIES_BYTES = 512 * 1024**2


# What of the configuration decides the reference's values.
_READ = (
    "custom.ref_period",
    *keys_of_raw("reference", "days_to_fill", "extract_dataset.mask", "extract_dataset.xr_combine_kwargs", *SERIES),
    "extraction.variables_and_units",
    "variables.*.filling",
    *TABLE,
)


def reference_maps(run: RunContext, match: Match, region: Region) -> xr.Dataset:
    """Return the reference inside a box, over its period, lazily: masked, with its fixed fields as coordinates."""
    config, extraction = run.config, run.config.extraction.reference
    masked, fixed = run.masked(run.open(match, extraction), match)
    maps = extract.extract(
        masked,
        variables_and_freqs=extraction.series,
        period=config.custom.ref_period,
        region=region.arguments(),
        table=config.table,
    )
    fields = subset_box(fixed, region.arguments())
    coords = {str(name): field.variable for name, field in fields.data_vars.items()}
    if "rlat" in maps.dims:
        options = extraction.extract_dataset.xr_open_kwargs
        mapping = open_grid_mapping(match, run.mask_variable, xr_open_kwargs=options)
        coords |= {str(mapping.name): mapping.variable} if mapping.name else {}
    return credible(in_units(maps, config.extraction.variables_and_units), config.table).assign_coords(coords)


def _filled(run: RunContext, ds: xr.Dataset) -> xr.Dataset:
    return calendar.fill_inserted_days(
        ds, how={str(name): variable(str(name), run.config.table).filling for name in ds}
    )


class MakeRef(EspoTask):
    """Rule `makeref`: ESPO v2: maps of the whole reference, on its own grid, without cells that its mask leaves out."""

    resources_default = Resources(n_workers=2, cpus_per_task=4, memory="90GB", time="45")
    values_in_outputs = 1.0
    reads_raw = "reference"
    in_checked = upstream(RefInputCheck, "out_problems")
    in_daily = of_hours(RefDaily)
    out_fullregion = kept("reference/{domain}_{ref_source}_fullregion.zarr")
    reads = (*_READ, "domain", "custom.final_chunks")

    def compute(self, checked: list[store.Row], daily: object = None) -> xr.Dataset:
        """Cut the reference to the whole domain; fails if it has another number of land cells than the run's plan."""
        run = self.context
        maps = reference_maps(run, self.days(), partition.domain_without_buffer(run.config))
        partition.check_land_cells(run, int(stack.land_of(maps).sum()))
        return chunks.rechunk(_filled(run, maps), dict(run.config.custom.final_chunks) | {"time": 365})


class RefDefault(EspoTask):
    """Rule `ref_default`: the reference over a piece, land cells only, and the piece's whole grid."""

    piece = PieceParameter()
    resources_default = Resources(n_workers=2, cpus_per_task=10, memory="50GB", time="1000")
    values_in_outputs = 1.0
    reads_raw = "reference"
    in_checked = upstream(RefInputCheck, "out_problems")
    in_daily = of_hours(RefDaily)
    # Outputs are written in this order, the larger store last: a stopped job resumes from its blocks.
    out_grid = kept("reference/{ref_source}+{piece}+coords.zarr")
    reads = (*_READ, "custom.working_chunks")
    out_reference = kept("reference/{ref_source}+{piece}+default.zarr")

    def look(self) -> None:
        """Raise an error if the reference has no land in the piece."""
        if not self.complete():
            key, box = partition.key_of(self.context, self.piece), partition.box_of(self.context, self.piece)
            partition.require_land(self.land(), box.arguments(), key, "or take the region away")

    def land(self) -> xr.Dataset:
        """Return the piece's `land_map`, lazily: from the product if it exists, else from the raw file."""
        if not self.complete():
            return partition.cut_piece(self.context.reference_on_its_first_day, self.context, self.piece)
        land = store.open_store(self.out_grid().path)["land"]
        return land_map(land.where(land))

    def reading(self) -> list[str]:
        """Return, too, the keys that say what the piece is."""
        keys = self.context.production.pieces.keys()
        return super().reading() + [key.format_map(self.wildcards) for key in keys]

    def compute(self, checked: list[store.Row], daily: object = None) -> dict[str, xr.Dataset]:
        """Cut the reference to the piece, stack its land cells, and chunk it for work along time."""
        run = self.context
        maps = reference_maps(run, self.days(), partition.box_of(run, self.piece))
        reference, grid = run.production.pieces.cut(run, maps, self.piece)
        stated = {name: text for name, text in maps.attrs.items() if name == STATED_UNITS}
        grid["land"].attrs |= told(checked, "reference") | stated
        return {"reference": chunks.rechunk(_filled(run, reference), run.config.custom.working_chunks), "grid": grid}

    def dask_settings(self) -> dict[str, Any]:
        """Return the configuration's settings; by default without rechunking on disk: it saves no memory here."""
        return {"array.rechunk.method": "tasks"} | super().dask_settings()

    def layout(self, dataset: xr.Dataset) -> dict[str, Any]:
        """Return how many cells are brought from maps to series at a time, with all their days in memory."""
        if "time" not in dataset.dims:
            return {}
        dim = stack.STACKED_DIM if stack.STACKED_DIM in dataset.dims else horizontal_dims(dataset)[0]
        cell_bytes = max(data.nbytes // data.sizes[dim] for data in dataset.data_vars.values())
        return {"at_once": {dim: SERIES_BYTES // cell_bytes}}


class ReferenceCalendar(EspoTask):
    """Rule `reference_calendar`: the reference in the calendar of a simulation."""

    piece, calendar = PieceParameter(), CalendarParameter()
    resources_default = Resources(n_workers=2, cpus_per_task=10, memory="50GB", time="1000")
    values_in_outputs = 1.0
    in_default = upstream(RefDefault, "out_reference")
    out_reference = kept("reference/{ref_source}+{piece}+{calendar}.zarr")
    reads = ("custom.working_chunks",)

    def compute(self, default: xr.Dataset) -> xr.Dataset:
        """Convert the calendar: drop 29 February, or days spread over the year."""
        converted = calendar.convert(default, str(self.calendar), align_on="year")
        dated = converted.assign_attrs(extract.dates(converted))
        return chunks.rechunk(dated, self.context.config.custom.working_chunks)


class CoarseReference(EspoTask):
    """Rule `coarse_reference`, new against ESPO-G: the means of the reference in the cells of the coarse grid."""

    piece, calendar = AdjustedPieceParameter(), CalendarParameter()
    spans_pieces = True
    resources_default = Resources(n_workers=2, cpus_per_task=10, memory="50GB", time="1000")
    values_in_outputs = 0.1
    in_reference = upstream(ReferenceCalendar, "out_reference", piece=every_piece)
    out_grid = kept("reference/{ref_source}+{domain}+{piece}+{calendar}+coords.zarr")
    out_reference = kept("reference/{ref_source}+{domain}+{piece}+{calendar}.zarr")
    reads = ("custom.working_chunks", "domain", "downscaling.grid", "downscaling.least_share", partition.NAMES_KEY)

    def look(self) -> None:
        """Raise `ConfigurationError`, too, if the coarse grid does not suit the reference's."""
        if not self.complete():
            self.context.coarse_numbers(self.context.coarse_grids[self.piece])

    def work_size(self) -> float:
        """Return that of the reference's pieces, all of which it reads."""
        return partition.size_of(self.context, {"calendar": self.calendar})

    def compute(self, reference: list[xr.Dataset]) -> dict[str, xr.Dataset]:
        """Take the means of the land cells that lie in each coarse cell, weighed by their areas."""
        run = self.context
        section = run.needed("downscaling", "CoarseReference")
        grid, west = run.coarse_grids[self.piece], run.config.domain.lon_bnds[0]
        fine = chunks.join(reference, stack.STACKED_DIM, what="The pieces of the reference")
        numbers = coarse.coarse_numbers(grid, fine, section.least_share)
        cells, whole = coarse.coarse_cells(grid, numbers, west=west)
        made = coarse.coarse_means(fine, grid, numbers).assign_coords(cells.coords)
        return {
            "reference": chunks.rechunk(made, run.config.custom.working_chunks),
            "grid": whole.assign_attrs({key: one for key, one in made.attrs.items() if key == "cat:domain"}),
        }


def reference_of_piece(output: str, **fixed: Any) -> Any:
    """Declare an input: an output of the reference over the task's piece, or on the coarse grid."""
    rules = (RefDefault if output == "out_grid" else ReferenceCalendar, CoarseReference)
    return upstream(rules, output, which=lambda task: rules[partition.is_coarse(task.context, task.piece)], **fixed)
