"""The rules that make the final products: the scenario of each piece and of the whole domain, and its health checks."""

from __future__ import annotations

import functools
import logging
from pathlib import Path

import xarray as xr

from espo_luigi import store
from espo_luigi.errors import ConfigurationError
from espo_luigi.jobs.resources import Resources
from espo_luigi.science import stack
from espo_luigi.science.chunks import rechunk
from espo_luigi.science.diagnose import health
from espo_luigi.science.finalize import gaps
from espo_luigi.science.finalize import scenario as finalize
from espo_luigi.tasks import partition
from espo_luigi.tasks.adjustment import CleanUp, product_chunks, rows_of_chunks
from espo_luigi.tasks.base import EspoTask, PieceParameter, SimulationParameter, every_piece
from espo_luigi.tasks.context import RunContext
from espo_luigi.tasks.ports import kept, packed, temporary, upstream
from espo_luigi.tasks.reference import RefDefault
from espo_luigi.tasks.simulation import Rechunk

logger = logging.getLogger(__name__)


class FinalZarr(EspoTask):
    """Rule `final_zarr`: the scenario of a piece in the product's chunks."""

    sim_id, piece = SimulationParameter(), PieceParameter()
    resources_default = Resources(n_workers=2, cpus_per_task=10, memory="50GB", time="1000")
    uses_dask = False
    only_links = True
    in_cleaned_up = upstream(CleanUp, "out_cleaned_up")
    out_scenario = temporary("day+{sim_id}+{piece}+{period}.zarr")

    def work(self) -> None:
        """Link the files: `CleanUp` has written them in the product's chunks."""
        self.link(self.in_cleaned_up().path, self.out_scenario().path)


class PackTask(EspoTask):
    """A rule that only packs its inputs into archives."""

    uses_dask = False

    def work(self) -> None:
        """Pack each input, without opening it as a dataset."""
        self.publish({})


class Move(PackTask):
    """Rule `move`: the archives of a piece's scenario and regridded simulation."""

    sim_id, piece = SimulationParameter(), PieceParameter()
    resources_default = Resources(n_workers=2, cpus_per_task=10, memory="50GB", time="1000")
    values_in_outputs = 2.0
    in_scenario = upstream(FinalZarr, "out_scenario")
    in_regchunked = upstream(Rechunk, "out_regchunked")
    out_scenario = packed("NAM_SPLIT/{piece}/day+{sim_id}+{piece}+{period}.zarr.zip", "in_scenario")
    out_regchunked = packed("regridded/day+{sim_id}+{piece}+regchunked.zarr.zip", "in_regchunked")


class ConcatenationFinal(EspoTask):
    """Rule `concatenation_final`: the scenario of the whole domain, and its archive."""

    sim_id = SimulationParameter()
    resources_default = Resources(n_workers=12, cpus_per_task=12, memory="60GB", time="1000")
    only_links = True
    values_in_outputs = 1.0
    in_pieces = upstream(FinalZarr, "out_scenario", piece=every_piece)
    in_grids = upstream(RefDefault, "out_grid", piece=every_piece)
    uncut = ("in_pieces",)
    reads = ("custom.amno_region.name", "custom.final_chunks", partition.NAMES_KEY)
    out_scenario = temporary("day+{sim_id}+{domain}+{period}.zarr")
    out_final = packed("final/{domain}/day+{sim_id}+{domain}_{period}.zarr.zip", "out_scenario")

    def check(self) -> None:
        """Raise an error, too, if pieces share a row; log, once, the pieces that cannot be linked into the whole."""
        super().check()
        if not self.complete():
            _look_where_pieces_meet(self.context)

    def compute(self, pieces: list[xr.Dataset], grids: list[xr.Dataset]) -> xr.Dataset:
        """Put the pieces together from south to north; fails if land has no data."""
        files = product_chunks(self, pieces[0])
        in_rows = [rechunk(piece, rows_of_chunks(files, piece)) for piece in pieces]
        whole = finalize.concatenate(in_rows, domain=self.context.config.custom.amno_region.name)
        gaps.check_data(whole, gaps.join_land([grid["land"] for grid in grids], whole), days=files["time"])
        return whole

    def write(self, dataset: xr.Dataset, path: Path, marker: store.Marker) -> None:
        """Link the chunks that lie within a piece; write those across a seam."""
        y, _ = stack.horizontal_dims(dataset)
        paths = [info().path for info in self.in_pieces]
        in_order = paths if finalize.ascending(dataset, y) else paths[::-1]
        store.join_stores(dataset, in_order, path, marker, dim=y, chunks=product_chunks(self, dataset))


class HealthChecks(EspoTask):
    """Rule `health_checks`: the errors and suspicious values in the whole domain's scenario."""

    sim_id = SimulationParameter()
    resources_default = Resources(n_workers=8, cpus_per_task=40, memory="40GB", time="1000")
    in_final = upstream(ConcatenationFinal, "out_final")
    in_grids = upstream(RefDefault, "out_grid", piece=every_piece)
    out_checks = kept("checks/{domain}/{sim_id}+{domain}_checks.zarr")
    reads = (partition.NAMES_KEY, "health_checks")

    def compute(self, final: xr.Dataset, grids: list[xr.Dataset]) -> xr.Dataset:
        """Run the configured checks; those of ``raise_on`` fail the task."""
        cells = gaps.join_land([grid["land"] for grid in grids], final)
        allowed = gaps.allowed_gaps(final.attrs, cells)
        checks = self.context.config.health_checks.arguments()
        return health.health_checks(final, **checks, land=cells, allowed_gaps=allowed)


@functools.lru_cache(maxsize=1)
def _look_where_pieces_meet(context: RunContext) -> None:
    """Log the pieces that begin inside a chunk of the product: their files are not linked.

    Raises
    ------
    ConfigurationError
        If a row of the reference is in two pieces.
    """
    maps = [(name, RefDefault(piece=name).land()) for name in partition.pieces(context.config)]
    if shared := partition.shared_rows(dict(maps)):
        raise ConfigurationError(f"{shared}.")
    y, _ = stack.horizontal_dims(maps[0][1])
    size, first, apart = context.config.custom.final_chunks.get(y, -1), 0, []
    for name, found in maps if finalize.ascending(maps[0][1], y) else maps[::-1]:
        if size > 0 and first % size:
            apart.append(f"{name} begins at row {first}")
        first += found.sizes[y]
    if apart:
        logger.info(
            "custom.regions: %s of the whole domain, no multiple of custom.final_chunks.%s = %d: for the whole domain, "
            "their data are written again instead of linked (docs/reference/configuration.md, where bands meet)",
            ", ".join(apart),
            y,
            size,
        )
