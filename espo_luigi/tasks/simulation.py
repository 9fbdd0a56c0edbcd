"""The rules that bring a simulation onto the reference's grid."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Hashable, Mapping
from pathlib import Path
from typing import Any

import xarray as xr

from espo_luigi import store
from espo_luigi.catalog import Match, open_fixed
from espo_luigi.catalog.open import asset_with, on_grid_of, open_grid
from espo_luigi.errors import DataError
from espo_luigi.jobs.resources import Resources
from espo_luigi.science import calendar, quality, regrid
from espo_luigi.science.attributes import INCOMPLETE
from espo_luigi.science.calendar import fill_in_time
from espo_luigi.science.chunks import block_sizes, rechunk
from espo_luigi.science.extract import dataset as extract
from espo_luigi.science.extract.repairs import (
    Repair,
    create_mask,
    idle_repairs,
    repair,
    with_repairs_told,
)
from espo_luigi.science.finalize import gaps
from espo_luigi.science.geometry.cells import normalise_coordinates
from espo_luigi.science.geometry.cutting import cells_inside, subset_box
from espo_luigi.science.possible import credible, require_possible
from espo_luigi.science.units import in_units
from espo_luigi.tasks import partition
from espo_luigi.tasks.base import EspoTask, RegriddedPieceParameter, SimulationParameter
from espo_luigi.tasks.context import RunContext
from espo_luigi.tasks.daily import SERIES, TABLE, Daily, keys_of_raw, of_hours
from espo_luigi.tasks.inputs import InputCheck, told
from espo_luigi.tasks.ports import temporary, upstream
from espo_luigi.tasks.reference import reference_of_piece

logger = logging.getLogger(__name__)

FILE_BYTES = 64 * 1024**2
CHUNK_BYTES = 512 * 1024


class Extract(EspoTask):
    """Rule `extract`: a simulation over the whole domain, in its own calendar, daily stamps at midnight."""

    sim_id = SimulationParameter()
    resources_default = Resources(n_workers=2, cpus_per_task=10, memory="50GB", time="1000")
    reads_raw = "simulation"
    in_checked = upstream(InputCheck, "out_problems")
    in_daily = of_hours(Daily)
    out_extracted = temporary("{sim_id}+{domain}+extracted.zarr")
    reads = (
        "domain",
        "custom.sim_period",
        *keys_of_raw(
            "simulation",
            "chunks",
            "create_mask",
            "days_to_fill",
            "extract_dataset.xr_combine_kwargs",
            "repairs.{sim_id}",
            *SERIES,
        ),
        "extraction.variables_and_units",
        "downscaling.grid",
        "flags",
        *TABLE,
        "regrid.regrid_method",
    )

    def compute(self, checked: list[store.Row], daily: object = None) -> xr.Dataset:
        """Open the simulation's files, derive dtr, cut the period and the domain, and repair; with a mask, if any."""
        config = self.context.config
        extraction, region = config.extraction.simulation, config.domain.arguments()
        match = self.days()
        opened = self.context.open(match, extraction)
        dataset = extract.extract(
            opened,
            variables_and_freqs=extraction.series,
            period=config.custom.stretches,
            region=region,
            table=config.table,
        )
        converted = in_units(dataset, config.extraction.variables_and_units)
        repaired = repair(converted, [Repair(**row.arguments()) for row in extraction.repairs])
        with_repairs = extraction.repaired(self.sim_id) & set(map(str, repaired.data_vars))
        repaired = repaired.assign({name: require_possible(repaired[name], config.table) for name in with_repairs})
        if config.flagging is not None:
            repaired = quality.with_repairs_marked(repaired, converted, with_repairs)
        if extraction.create_mask is not None:
            where = dict(extraction.create_mask.arguments())
            fixed = open_fixed(match, opened, xr_open_kwargs=extraction.extract_dataset.xr_open_kwargs)
            mask = create_mask(fixed[where.pop("variable")], **where)
            repaired = repaired.assign_coords(mask=subset_box(mask.to_dataset(), region)["mask"].variable)
        of = config.regrid.conserved if config.downscaling is None else config.variables
        repaired = repaired.assign_coords(cell_bounds(self.context, match, opened, of))
        made = credible(repaired, config.table).assign_attrs(told(checked, "simulation"))
        # Some models publish float64, and nothing downstream keeps more than float32.
        single = made.astype("float32", keep_attrs=True)
        maps = rechunk(single, maps_in_a_file(dataset) | dict(extraction.chunks))
        return gaps.with_incomplete_cells(maps, cells_inside(opened, region))

    def layout(self, dataset: xr.Dataset) -> dict[str, Any]:
        """Return files of maps, in chunks of a part of a row: `Regrid` reads the rows and columns that it needs."""
        return layout_of_maps(dataset)

    def write(self, dataset: xr.Dataset, path: Path, marker: store.Marker) -> None:
        """Publish; warn of repairs that change nothing, and of cells whose gaps leave the scenario around them gaps."""
        super().write(dataset, path, marker)
        written = store.open_store(path)
        for row in idle_repairs(written):
            logger.warning("the repair (%s) changes nothing in %s. Correct or remove it.", row, self.sim_id)
        incomplete = written[INCOMPLETE]
        if incomplete.any():
            logger.warning(
                "%s lacks a year's values or more in %d of %d cells; the scenario's cells around them will, too",
                self.sim_id,
                int(incomplete.sum()),
                incomplete.size,
            )


class Regrid(EspoTask):
    """Rule `regrid`: a simulation on the cells of a piece of the reference, by the configured cascade of grids."""

    sim_id, piece = SimulationParameter(), RegriddedPieceParameter()
    resources_default = Resources(n_workers=3, cpus_per_task=9, memory="48GB", time="1000")
    values_in_outputs = 1.0
    in_reference = reference_of_piece("out_reference", calendar="noleap")
    in_grid = reference_of_piece("out_grid", calendar="noleap")
    in_extracted = upstream(Extract, "out_extracted")
    out_regridded = temporary("{sim_id}+{piece}+regridded.zarr")
    uncut = ("in_extracted",)
    reads = (
        "domain.tile_buffer",
        "custom.working_chunks",
        "extraction.simulation.fill_in_time",
        "flags",
        "regrid.regrid_dataset",
        "regrid.regrid_dataset.intermediate_grids.*",
        "regrid.regrid_method",
        "regrid.skip_coarser",
    )

    def compute(self, reference: xr.Dataset, grid: xr.Dataset, extracted: xr.Dataset) -> xr.Dataset:
        """Apply the cascade as a single matrix, and fill gaps; target cells are written once, as whole series."""
        config, options = self.context.config, options_of(self.context, self.piece)
        if partition.is_coarse(self.context, self.piece):
            extracted = regrid.with_corners(extracted)
        weights = regrid.weigh(extracted, reference, whole=grid, **options)
        if not self.context.is_regional(self.sim_id):
            self._check_reach(extracted, reference, weights, options)
        chunks = config.custom.working_chunks
        regridded = regrid.regrid(with_repairs_told(extracted), reference, weights=weights, chunks=chunks)
        how = config.extraction.simulation.fill_in_time
        filled = fill_in_time(regridded, how=how)
        if config.flagging is not None:
            extrapolated = {name: its.extrapolated for name, its in weights.items()}
            filled = quality.of_regridded(filled, regridded, extrapolated, how)
        return rechunk(filled, chunks)

    def _check_reach(
        self,
        extracted: xr.Dataset,
        reference: xr.Dataset,
        weights: Mapping[Any, regrid.Weights],
        options: Mapping[str, Any],
    ) -> None:
        config = self.context.config
        try:
            regrid.check_reach(extracted, reference, config.domain.tile_buffer)
            regrid.check_covered(weights)
        except DataError as error:
            if config.extraction.on_input_problem.extrapolation == "fail":  # type: ignore[attr-defined]
                raise DataError(
                    f"{error} `extraction.on_input_problem.extrapolation: warn` lets it through."
                ) from error
            logger.warning("%s, %s: %s", self.sim_id, self.piece, error)
        regrid.check_filled(weights, options, "regrid.regrid_dataset")

    def layout(self, dataset: xr.Dataset) -> dict[str, Any]:
        """Return chunks of so few cells that those of all members of a pool take no more than a lone simulation's."""
        most = self.context.production.most_members
        if most == 1:
            return {}
        blocks = block_sizes(dataset)
        cells = next(name for name in dataset.dims if name != "time")
        return {"chunks": {cells: max(1, blocks[cells] // most)}, "shards": blocks}


def options_of(run: RunContext, piece: str) -> dict[str, Any]:
    """Return the options with which a piece is regridded: the configured cascade; to the coarse grid, conservative."""
    if partition.is_coarse(run, piece):
        return {"methods": dict.fromkeys(run.config.variables, "conservative_normed")}
    return {**run.config.regrid.options(), "skip_coarser": run.config.regrid.skip_coarser}


def cell_bounds(
    run: RunContext, match: Match, opened: xr.Dataset, conserved: Collection[str]
) -> dict[str, xr.Variable]:
    """Return the bounds of the cells of a simulation in the domain, as coordinates for its conservative regridding.

    Nothing if no variables are `conserved`, or its files have no bounds.
    """
    if not conserved:
        return {}
    asset = asset_with(match, conserved)
    grid = open_grid(asset, dict(run.config.extraction.simulation.extract_dataset.xr_open_kwargs))
    placed = on_grid_of(normalise_coordinates(opened), grid)
    if placed is None:
        raise DataError(f"{asset.path} is not on the grid of {match.id}; expected the same lat and lon. Exclude it.")
    cut = subset_box(placed, run.config.domain.arguments())
    return {name: cut[name].variable for name in regrid.BOUNDS if name in cut}


def four_years(dataset: xr.Dataset) -> int:
    """Return the length of a chunk of four years in the dataset's calendar."""
    return int(4 * calendar.DAYS_IN_YEAR.get(calendar.calendar_of(dataset), 365.25))


def maps_in_a_file(dataset: xr.Dataset) -> dict[Hashable, int]:
    """Return chunks of whole maps, of as many days as make some 64 MB."""
    cells = math.prod(size for name, size in dataset.sizes.items() if name != "time")
    return {name: -1 for name in dataset.dims} | {"time": max(1, FILE_BYTES // (4 * cells))}


def layout_of_maps(dataset: xr.Dataset) -> dict[str, Any]:
    """Return files of maps, in chunks of a part of a row, some 0.5 MB large: a reader takes the rows that it needs."""
    files = block_sizes(dataset)
    row, column = (name for name in next(iter(dataset.data_vars.values())).dims if name != "time")
    return {
        "chunks": {"time": files["time"], row: 1, column: max(1, CHUNK_BYTES // (4 * files["time"]))},
        "shards": files,
    }
