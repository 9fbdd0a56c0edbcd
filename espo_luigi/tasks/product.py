"""The rules that make the final products: the scenario of each piece and of the whole domain, and its health checks."""

from __future__ import annotations

import functools
import importlib.metadata
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import xarray as xr

from espo_luigi import store
from espo_luigi.catalog.read import ID_COLUMNS
from espo_luigi.errors import ConfigurationError
from espo_luigi.jobs.resources import Resources
from espo_luigi.science import pooling, stack
from espo_luigi.science.chunks import rechunk
from espo_luigi.science.diagnose import health
from espo_luigi.science.finalize import gaps
from espo_luigi.science.finalize import scenario as finalize
from espo_luigi.science.finalize.outline import cut_to_outline, outline
from espo_luigi.science.finalize.quantization import round_bits
from espo_luigi.science.possible import OF_RAW_DATA, POSSIBLE, Limits
from espo_luigi.tasks import partition
from espo_luigi.tasks.adjustment import Adjust, CleanUp, ProductTask, Swap, product_chunks, rows_of_chunks
from espo_luigi.tasks.base import EspoTask, PieceParameter, PublishedParameter, SimulationParameter, every_piece
from espo_luigi.tasks.context import RunContext
from espo_luigi.tasks.ports import kept, packed, temporary, upstream
from espo_luigi.tasks.reference import RefDefault
from espo_luigi.tasks.simulation import Extract, Rechunk

logger = logging.getLogger(__name__)

# The variables that `Swap` makes.
TEMPERATURES = ("tasmax", "tasmin")


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
    reads = ("domain.name", "custom.final_chunks", partition.NAMES_KEY)
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
        whole = finalize.concatenate(in_rows, domain=self.context.config.domain.name)
        gaps.check_data(whole, gaps.join_land([grid["land"] for grid in grids], whole), days=files["time"])
        return whole

    def write(self, dataset: xr.Dataset, path: Path, marker: store.Marker) -> None:
        """Link the chunks that lie within a piece; write those across a seam."""
        y, _ = stack.horizontal_dims(dataset)
        paths = [info().path for info in self.in_pieces]
        in_order = paths if finalize.ascending(dataset, y) else paths[::-1]
        store.join_stores(dataset, in_order, path, marker, dim=y, chunks=product_chunks(self, dataset))


# The catalogue's columns that make a simulation's id, and the attributes that make a product's.
_PROJECT, *_OF_A_SIMULATION, _DOMAIN = ID_COLUMNS
_OF_AN_ID = tuple(f"cat:{name}" for name in (_PROJECT, "bias_adjust_reference", *_OF_A_SIMULATION, _DOMAIN))


class JoinTask(ProductTask):
    """A rule that puts a variable of a simulation together over the whole domain, and packs it."""

    sim_id = SimulationParameter()
    uncut = ("in_slices",)
    resources_default = Resources(n_workers=6, cpus_per_task=12, memory="60GB", time="60")
    values_in_outputs = 2.0
    possible: ClassVar[Mapping[str, Limits]] = POSSIBLE
    reads: ClassVar[tuple[str, ...]] = (
        "domain.name",
        "custom.final_chunks",
        "custom.working_chunks",
        "clean_up.bitround",
        "clean_up.variables.{var}",
        "extraction.ref_source",
        "extraction.reference.search_data_catalogs.other_search_criteria.source",
        "project.name",
        "project.version",
    )

    @property
    def name(self) -> str:
        """The variable."""
        raise NotImplementedError

    def compute(self, slices: list[xr.Dataset], grids: list[xr.Dataset], extracted: list[xr.Dataset]) -> xr.Dataset:
        """Select the member, unstack, treat and describe; cut to the outline of a regional simulation's domain."""
        config = self.context.config
        members = [pooling.member(one, self.sim_id)[[self.name]] for one in slices]
        grid = grids[0].drop_vars("land")
        lands = [one["land"] for one in grids]
        incomplete = sum(int(land.attrs.get(stack.INCOMPLETE_CELLS, 0)) for land in lands)
        told = {name: text for name, text in lands[0].attrs.items() if name == gaps.LET_THROUGH}
        land = gaps.join_land(lands, grid).assign_attrs({stack.INCOMPLETE_CELLS: incomplete} | told)
        part = None
        if extracted:
            part, land = cut_to_domain(grid, land, extracted[0])
        files = product_chunks(self, members[0])
        blocks = rows_of_chunks(files, grid if part is None else part)
        read = dict(config.custom.working_chunks) | {"time": blocks["time"]}
        cells = stack.join_slices([rechunk(one, read) for one in members])
        treatment = finalize.Treatment(**self.treatment())
        self._clipped_days = finalize.clipped_days(cells, treatment)
        made = finalize.clean_up_cells(
            cells.assign_attrs(self._member_attributes(cells.attrs)),
            grid=grid,
            part=part,
            land=land,
            treatment=treatment,
            chunks=blocks,
            days=files["time"],
        )
        bits = config.clean_up.bitround
        if bits is not None:
            made = round_bits(made, bits, version=importlib.metadata.version("espo_luigi"))
        crossed = sum(int(one.attrs.get(gaps.IMPOSSIBLE_VALUES, 0)) for one in members)
        return self.with_possible_values(made, land, self.possible, crossed)

    def treatment(self) -> dict[str, Any]:
        """Return what is done to the variable, as arguments of `Treatment`."""
        return self.context.config.treatment(self.name)

    def _member_attributes(self, attrs: Mapping[Any, Any]) -> dict[str, Any]:
        """Return attributes of a pool as those of the member, with the id that v2's scripts make of them."""
        columns = self.context.simulation(self.sim_id).columns
        of_the_member = {f"cat:{name}": columns[name] for name in _OF_A_SIMULATION if columns.get(name)}
        reference = {"cat:bias_adjust_reference": self.context.config.reference_source}
        made = {**reference, **attrs, **of_the_member}
        return {**made, "cat:id": "_".join(str(made[name]) for name in _OF_AN_ID if made.get(name))}

    def layout(self, dataset: xr.Dataset) -> dict[str, Any]:
        """Return the product's chunks: maps of four years."""
        return {"chunks": product_chunks(self, dataset)}


def cut_to_domain(grid: xr.Dataset, land: xr.DataArray, extracted: xr.Dataset) -> tuple[xr.Dataset, xr.DataArray]:
    """Return the part of a grid that lies in a regional simulation's grid, and the land in it."""
    cut = cut_to_outline(grid.assign(land=land.astype("float32")), outline(extracted["lat"], extracted["lon"]))
    return cut.drop_vars("land"), (cut["land"] == 1).assign_attrs(land.attrs)


def regional_only(task: EspoTask) -> list[str]:
    """Return the task's simulation if its domain has an outline to which products are cut."""
    return [task.sim_id] if task.context.is_regional(task.sim_id) else []


class ConcatClean(JoinTask):
    """Rule `concat_clean`: ESPO v2: a variable of a simulation over the whole domain, cleaned up, and its archive."""

    beside = ("clipped_path",)
    var = PublishedParameter()
    in_slices = upstream(
        (Adjust, Swap),
        lambda task: f"out_{task.var}" if task.var in TEMPERATURES else "out_adjusted",
        which=lambda task: Swap if task.var in TEMPERATURES else Adjust,
        pool=lambda task: partition.pool_of(task.context, task.sim_id),
        piece=every_piece,
    )
    in_grids = upstream(RefDefault, "out_grid", piece=every_piece)
    in_extracted = upstream(Extract, "out_extracted", sim_id=regional_only)
    out_joined = temporary("{var}+day+{sim_id}+{domain}+{period}.zarr")
    out_final = packed("final/{domain}/{var}_day+{sim_id}+{domain}_{period}.zarr.zip", "out_joined")

    @property
    def name(self) -> str:
        """The variable."""
        return str(self.var)

    def write(self, dataset: xr.Dataset, path: Path, marker: store.Marker) -> None:
        """Publish, and keep the counts of clipped days for the report."""
        super().write(dataset, path, marker)
        if self._clipped_days:
            store.write_store(self._clipped_days.load(), self.clipped_path, marker)
        else:
            store.remove(self.clipped_path)

    @property
    def clipped_path(self) -> Path:
        """The store of the days on which each cell's value was clipped (cells); none is there without `clip_var`."""
        return self.for_report(f"{self.sim_id}+{self.name}+clipped.zarr")


_BEFORE_THE_EXCHANGE = {"description": "tasmax - tasmin, as adjusted, before they were made consistent."}


class ConcatCleanPreswap(JoinTask):
    """Rule `concat_clean_preswap`: ESPO v2: tasmax - tasmin over the whole domain, before they were made consistent."""

    in_slices = upstream(
        Swap, "out_dtrpreswap", pool=lambda task: partition.pool_of(task.context, task.sim_id), piece=every_piece
    )
    in_grids = upstream(RefDefault, "out_grid", piece=every_piece)
    in_extracted = upstream(Extract, "out_extracted", sim_id=regional_only)
    out_joined = temporary("dtrpreswap+day+{sim_id}+{domain}+{period}.zarr")
    out_final = packed("preswap/dtrpreswap_day_{label}_{ref_source}+{sim_id}_{domain}.zarr.zip", "out_joined")
    reads = tuple(key.replace("{var}", "dtr") for key in JoinTask.reads)
    name = "dtr"
    # The days on which tasmax is below tasmin are what this archive shows.
    possible = OF_RAW_DATA

    def compute(self, slices: list[xr.Dataset], grids: list[xr.Dataset], extracted: list[xr.Dataset]) -> xr.Dataset:
        """Join as other variables are, under the name dtr."""
        return super().compute([one.rename(dtrpreswap="dtr") for one in slices], grids, extracted)

    def treatment(self) -> dict[str, Any]:
        """Return that of dtr, but for the range of values, which tells where tasmax was below tasmin, and its words."""
        own = {**super().treatment(), "clip_var": {}}
        texts = own.get("add_attrs", {})
        return own | {"add_attrs": {**texts, "dtr": {**texts.get("dtr", {}), **_BEFORE_THE_EXCHANGE}}}


def final_archives(variables: Callable[[Any], str | list[str]]) -> Any:
    """Declare an input: a simulation's final archive, or those of its variables."""
    rules = (ConcatenationFinal, ConcatClean)
    return upstream(rules, "out_final", which=lambda task: task.context.production.final_rule, var=variables)


class HealthChecks(EspoTask):
    """Rule `health_checks`: the errors and suspicious values in the whole domain's scenario."""

    sim_id = SimulationParameter()
    resources_default = Resources(n_workers=8, cpus_per_task=40, memory="40GB", time="1000")
    in_final = final_archives(lambda task: task.context.published)
    in_grids = upstream(RefDefault, "out_grid", piece=every_piece)
    in_extracted = upstream(Extract, "out_extracted", sim_id=regional_only)
    out_checks = kept("checks/{domain}/{sim_id}+{domain}_checks.zarr")
    reads = (partition.NAMES_KEY, "health_checks")

    def compute(
        self, final: xr.Dataset | list[xr.Dataset], grids: list[xr.Dataset], extracted: list[xr.Dataset]
    ) -> xr.Dataset:
        """Run the configured checks; those of ``raise_on`` fail the task."""
        product = finalize.together(final) if isinstance(final, list) else final
        lands = [grid["land"] for grid in grids]
        if extracted:
            grid = grids[0].drop_vars("land")
            _, cells = cut_to_domain(grid, gaps.join_land(lands, grid), extracted[0])
        else:
            cells = gaps.join_land(lands, product)
        allowed = gaps.allowed_gaps(product.attrs, cells)
        checks = self.context.config.health_checks.arguments("inputs")
        return health.health_checks(product, **checks, land=cells, allowed_gaps=allowed)


@functools.lru_cache(maxsize=1)
def _look_where_pieces_meet(context: RunContext) -> None:
    """Log the pieces that begin inside a chunk of the product: their files are not linked.

    Raises
    ------
    ConfigurationError
        If a row of the reference is in two pieces.
    """
    maps = [(name, RefDefault(piece=name).land()) for name in partition.pieces(context)]
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
