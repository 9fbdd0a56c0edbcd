"""The rules that make the final products: the scenario of each piece and of the whole domain, and its health checks."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import xarray as xr

from espo_luigi import store
from espo_luigi.catalog.read import ID_COLUMNS
from espo_luigi.errors import ParameterError
from espo_luigi.jobs.resources import Resources
from espo_luigi.science import pooling, quality, stack
from espo_luigi.science.attributes import ABOUT_RAW_FILES, IMPOSSIBLE_VALUES
from espo_luigi.science.chunks import REALIZATION, join, rechunk
from espo_luigi.science.derivations import NEEDED_FOR, TEMPERATURES, Consistency, with_derived
from espo_luigi.science.diagnose import health
from espo_luigi.science.finalize import consistency, gaps
from espo_luigi.science.finalize import scenario as finalize
from espo_luigi.science.geometry.cells import cut_to_outline, horizontal_dims, outline
from espo_luigi.science.variables import Variable
from espo_luigi.tasks import partition
from espo_luigi.tasks.adjustment import Adjust, layout_of_pools
from espo_luigi.tasks.base import (
    DerivedParameter,
    EspoTask,
    PieceParameter,
    PoolParameter,
    PublishedParameter,
    SimulationParameter,
    every_piece,
)
from espo_luigi.tasks.context import RunContext
from espo_luigi.tasks.downscaling import Downscale, adjusted_pieces, adjusted_rule
from espo_luigi.tasks.ports import OutputPort, kept, packed, temporary, upstream
from espo_luigi.tasks.reference import RefDefault, ReferenceCalendar
from espo_luigi.tasks.simulation import Extract, Regrid, four_years

logger = logging.getLogger(__name__)

# What a product takes from the table of variables.
OF_THE_TABLE = ("units", "bounds", "standard_name", "long_name", "cell_methods")
# The settings of a variable's adjustment that the attributes of the product may name.
NAMED_IN_ATTRIBUTES = ("adjusting_args", "method", "training_args", "variables")
# The largest block of CleanUp for each variable, and the largest of several chunks of time. 2572 cells took 22.5 s of
# CPU and 1.2 GiB with 64 MB in time, 19.1 s and 0.55 GiB with 32 MB.
BLOCK_BYTES = 64 * 1024**2
BLOCK_IN_TIME_BYTES = 32 * 1024**2
# The key that lets impossible values through. A product with impossible values has this key in its marker.
ON_IMPOSSIBLE = "clean_up.on_impossible"


class ProductTask(EspoTask):
    """A rule that refuses impossible values, or counts them and becomes outdated once they are to be refused."""

    def read_for(self, outputs: Iterable[xr.Dataset]) -> list[str]:
        """Return the key that let impossible values through, if there are any in the outputs."""
        names = (str(name) for dataset in outputs for name in dataset.attrs)
        return [ON_IMPOSSIBLE] if any(name.startswith(IMPOSSIBLE_VALUES) for name in names) else []

    def with_possible_values(
        self, made: xr.Dataset, land: xr.DataArray, table: Mapping[str, Variable] | None = None, **options: Any
    ) -> xr.Dataset:
        """Return the product that has no impossible values, or their number in its attributes."""
        config = self.context.config
        known = config.table if table is None else table
        return gaps.with_possible_values(
            made, land, on_impossible=config.clean_up.on_impossible, table=known, **options
        )

    def limits_of_flags(self, given: xr.Dataset, references: Sequence[xr.Dataset]) -> xr.Dataset | None:
        """Return the limits of values beyond which the flags of what is given are raised; None without a reference."""
        flagging = self.context.config.flagging
        if flagging is None or not references:
            return None
        quality.require_flags(given)
        each = [quality.limits_of(one, flagging.record, flagging.season) for one in references]
        limits: xr.Dataset = join(each, stack.STACKED_DIM, what="The references")
        return limits

    def adjusting_keys(self) -> list[str]:
        """Return the keys of all variables that attributes may name."""
        variables = self.context.config.biasadjust.variables
        return [f"biasadjust.variables.{name}.{key}" for name in variables for key in NAMED_IN_ATTRIBUTES]

    def layout(self, dataset: xr.Dataset) -> dict[str, Any]:
        """Return the product's chunks: maps of four years."""
        return {"chunks": product_chunks(self, dataset)}


def product_chunks(task: EspoTask, dataset: xr.Dataset) -> dict[str, int]:
    """Return the product's chunks: the configuration's, by four years."""
    return dict(task.context.config.custom.final_chunks) | {"time": four_years(dataset)}


def rows_of_chunks(chunks: Mapping[str, int], grid: xr.Dataset) -> dict[str, int]:
    """Return blocks of some 64 MB a variable, made of the product's chunks side by side.

    Stacked cells lie row by row: the wider the blocks, the fewer blocks read the same cells. If whole rows are less
    than 32 MB, a block has several chunks of time, up to that size.
    """
    y, x = horizontal_dims(grid)
    rows = grid.sizes[y] if chunks.get(y, -1) == -1 else min(chunks[y], grid.sizes[y])
    column_bytes = 4 * chunks["time"] * rows
    columns = BLOCK_BYTES // column_bytes
    width = chunks.get(x, -1)
    if columns >= grid.sizes[x] or width == -1:
        times = BLOCK_IN_TIME_BYTES // (column_bytes * grid.sizes[x])
        return {**chunks, x: -1, "time": max(times, 1) * chunks["time"]}
    return {**chunks, x: max(columns // width, 1) * width}


class Swap(ProductTask):
    """Rule `swap`: ESPO v2: tasmax and tasmin of a pool, made consistent, and the range before."""

    pool, piece = PoolParameter(), PieceParameter()
    resources_default = Resources(n_workers=5, cpus_per_task=15, memory="300GB", time="10")
    values_in_outputs = 3.0
    in_adjusted = adjusted_pieces(var=lambda task: task.context.config.biasadjust.groups_of(task.needs))
    uncut = ("in_adjusted",)
    reads = ("clean_up.temperatures", "custom.working_chunks")
    out_tasmax = temporary("{pool}+{domain}+{ref_source}+{piece}+tasmax+adjustedS.zarr")
    out_tasmin = temporary("{pool}+{domain}+{ref_source}+{piece}+tasmin+adjustedS.zarr")
    out_dtrpreswap = temporary("preswap/{pool}+{domain}+{ref_source}+{piece}+dtrpreswap.zarr")

    @property
    def how(self) -> Consistency:
        """How they are made consistent."""
        return self.context.config.consistency or self.context.config.clean_up.temperatures

    @property
    def needs(self) -> tuple[str, ...]:
        """The adjusted variables that it takes."""
        return NEEDED_FOR[self.how]

    def reading(self) -> list[str]:
        """Return, too, the names of the variables, where it depends on them how temperatures are made consistent."""
        is_asked = self.how == self.context.config.clean_up.temperatures
        return super().reading() + ([] if is_asked else ["biasadjust.variables.*"])

    def compute(self, adjusted: list[xr.Dataset]) -> dict[str, xr.Dataset]:
        """Exchange or derive, as `clean_up.temperatures` says; blocks are whole files of `Adjust`."""
        config = self.context.config
        blocks = {REALIZATION: 1, **config.custom.working_chunks, "time": -1}
        given = {name: rechunk(dataset, blocks) for name in self.needs for dataset in adjusted if name in dataset}
        made = consistency.consistent({name: dataset[name] for name, dataset in given.items()}, how=self.how)
        # Each product has one of the two; the rest of their values is looked at there.
        last = made["tasmin"].dims[-1]
        nowhere = xr.DataArray(np.zeros(made.sizes[last], bool), dims=[last])
        each = {str(name): one for ds in given.values() for name, one in ds.data_vars.items()}
        made = self.with_possible_values(made, nowhere, {})
        attrs = adjusted[0].attrs
        made = made.assign(quality.of_temperatures(each, made["dtrpreswap"], self.how))
        made = made.assign({name: one for name, one in each.items() if quality.COUNTED in name})
        outputs = {
            name: made[quality.beside(made, [name])].assign_attrs(attrs | {"cat:variable": name})
            for name in (*TEMPERATURES, "dtrpreswap")
        }
        if IMPOSSIBLE_VALUES in made.attrs:
            told = pooling.told_of_members(IMPOSSIBLE_VALUES, gaps.count_crossed(made))
            outputs["tasmin"] = outputs["tasmin"].assign_attrs(told)
        return outputs

    def layout(self, dataset: xr.Dataset) -> dict[str, Any]:
        """Return the layout of `Adjust`."""
        return layout_of_pools(dataset)


class Derive(EspoTask):
    """Rule `derive`, new against ESPO-G: ESPO v2: a variable of a pool, derived from adjusted variables."""

    pool, piece, var = PoolParameter(), PieceParameter(), DerivedParameter()
    resources_default = Resources(n_workers=5, cpus_per_task=15, memory="300GB", time="10")
    values_in_outputs = 1.0
    in_adjusted = adjusted_pieces(
        var=lambda task: task.context.config.biasadjust.groups_of(task.inputs_of(adjusted_rule(task.context)))
    )
    in_tasmax = upstream(Swap, "out_tasmax", piece=lambda task: task.pieces_with("tasmax"))
    in_tasmin = upstream(Swap, "out_tasmin", piece=lambda task: task.pieces_with("tasmin"))
    uncut = ("in_adjusted", "in_tasmax", "in_tasmin")
    reads = ("clean_up.derive.{var}", "custom.working_chunks")
    out_derived = temporary("{pool}+{domain}+{ref_source}+{piece}+{var}+derived.zarr")

    def inputs_of(self, rule: type[EspoTask]) -> list[str]:
        """Return the variables that it is derived from, as far as a rule makes them."""
        return [name for name in self.context.config.derived[self.var] if _makes(self.context, name) is rule]

    def pieces_with(self, name: str) -> list[str]:
        """Return the piece if it is derived from this variable of `Swap`."""
        return [self.piece] if name in self.inputs_of(Swap) else []

    def reading(self) -> list[str]:
        """Return, too, the names of the variables, where it depends on them what it is made of."""
        is_asked = self.context.config.clean_up.derive[self.var].inputs
        names = [] if is_asked else ["biasadjust.variables.*"]
        return [*super().reading(), *names, f"variables.{self.var}.units"]

    def compute(self, adjusted: list[xr.Dataset], tasmax: list[xr.Dataset], tasmin: list[xr.Dataset]) -> xr.Dataset:
        """Derive it; blocks are whole files of `Adjust`."""
        config, given = self.context.config, [*adjusted, *tasmax, *tasmin]
        inputs = config.derived[self.var]
        blocks = {REALIZATION: 1, **config.custom.working_chunks, "time": -1}
        parts = [rechunk(ds[quality.beside(ds, inputs)], blocks) for ds in given]
        cut = join(parts, attributes="drop_conflicts", what="The adjusted variables")
        made = with_derived(cut, {self.var: inputs}, config.table)[[self.var]]
        return made.assign(quality.inherited(cut, {self.var: inputs})).assign_attrs({"cat:variable": self.var})

    def layout(self, dataset: xr.Dataset) -> dict[str, Any]:
        """Return the layout of `Adjust`."""
        return layout_of_pools(dataset)


def _makes(run: RunContext, name: str) -> type[EspoTask]:
    """Return ESPO v2's rule that makes the pieces of a variable of products."""
    if name in run.config.derived:
        return Derive
    return Swap if name in TEMPERATURES and run.config.consistency else adjusted_rule(run)


class CleanUp(ProductTask):
    """Rule `clean_up`: the adjusted variables together, and those derived from them, on the piece's whole grid."""

    sim_id, piece = SimulationParameter(), PieceParameter()
    resources_default = Resources(n_workers=2, cpus_per_task=6, memory="50GB", time="1000")
    values_in_outputs = 1.0
    in_adjusted = adjusted_pieces(
        pool=lambda task: partition.pool_of(task.context, task.sim_id),
        var=lambda task: list(task.context.config.biasadjust.variables),
    )
    in_grid = upstream(RefDefault, "out_grid")
    in_reference = upstream(
        ReferenceCalendar,
        "out_reference",
        calendar=lambda task: ["noleap"] if task.context.config.flagging else [],
    )
    out_cleaned_up = temporary("{sim_id}+{piece}+cleaned_up.zarr")
    uncut = ("in_adjusted",)
    reads = (
        "biasadjust.variables.*",
        "clean_up.derive",
        "clean_up.problems.{sim_id}",
        "clean_up.temperatures",
        "clean_up.xscen_clean_up",
        "custom.final_chunks",
        "extraction.ref_source",
        "extraction.reference.search_data_catalogs.other_search_criteria.source",
        "flags",
        "project.name",
        "project.version",
        partition.PRODUCTION_KEY,
    )

    def reading(self) -> list[str]:
        """Return, too, the keys that are read for each variable."""
        of_the_table = [f"variables.{v}.{key}" for v in self.context.config.published for key in OF_THE_TABLE]
        return super().reading() + self.adjusting_keys() + of_the_table

    def layout(self, dataset: xr.Dataset) -> dict[str, Any]:
        """Return the product's chunks, of values and their flags together."""
        return super().layout(dataset) | {"by_place": True}

    def compute(self, adjusted: list[xr.Dataset], grid: xr.Dataset, reference: Sequence[xr.Dataset] = ()) -> xr.Dataset:
        """Merge, unstack, round, and set the attributes of the product; blocks are rows of the product's chunks."""
        config, files = self.context.config, product_chunks(self, adjusted[0])
        given = join(adjusted, attributes="drop_conflicts", what="The adjusted variables")
        # An audit has only the variables that it takes.
        is_whole = config.consistency is not None and {*NEEDED_FOR[config.consistency]} <= {*given}
        limits = self.limits_of_flags(given, reference)
        there = {*given, *(TEMPERATURES if is_whole else ())}
        made = finalize.finish(
            given,
            treatment=self.context.production.treatment(),
            land=finalize.Land(grid["land"], grid, days=files["time"]),
            chunks=rows_of_chunks(files, grid),
            temperatures=config.consistency if is_whole else None,
            derived={name: inputs for name, inputs in config.derived.items() if {*inputs} <= there},
            mask=self.sim_id in config.clean_up.problems,
            table=config.table,
            # In memory, 26 numbers a cell: each stretch of years would read the whole reference for them again.
            limits=None if limits is None else limits.load(),
        )
        return self.with_possible_values(made, grid["land"])


class Move(EspoTask):
    """Rule `move`: the archives of a piece's scenario and regridded simulation."""

    sim_id, piece = SimulationParameter(), PieceParameter()
    resources_default = Resources(n_workers=2, cpus_per_task=10, memory="50GB", time="1000")
    uses_dask = False
    values_in_outputs = 2.0
    in_cleaned_up = upstream(CleanUp, "out_cleaned_up")
    in_regridded = upstream(Regrid, "out_regridded")
    out_scenario = packed("NAM_SPLIT/{piece}/day+{sim_id}+{piece}+{period}.zarr.zip", "in_cleaned_up")
    out_regridded = packed("regridded/day+{sim_id}+{piece}+regchunked.zarr.zip", "in_regridded")

    def ports(self) -> Sequence[tuple[str, OutputPort]]:
        """Return the archives that `keep` names."""
        archives = {"out_scenario": "pieces", "out_regridded": "regridded"}
        return [(name, port) for name, port in super().ports() if archives[name] in self.context.config.keep]

    def check(self) -> None:
        """Raise an error, too, if no archive is to be kept."""
        super().check()
        if not self.ports():
            raise ParameterError("Move: `keep` is empty; expected `pieces`, `regridded` or both, which Move archives.")

    def work(self) -> None:
        """Pack each input, without opening it as a dataset."""
        self.publish({})


class ConcatenationFinal(EspoTask):
    """Rule `concatenation_final`: the scenario of the whole domain, and its archive."""

    sim_id = SimulationParameter()
    resources_default = Resources(n_workers=12, cpus_per_task=12, memory="60GB", time="1000")
    only_links = True
    values_in_outputs = 1.0
    in_pieces = upstream(CleanUp, "out_cleaned_up", piece=every_piece)
    in_grids = upstream(RefDefault, "out_grid", piece=every_piece)
    uncut = ("in_pieces",)
    reads = ("domain.name", "custom.final_chunks", partition.NAMES_KEY)
    out_scenario = temporary("day+{sim_id}+{domain}+{period}.zarr")
    out_final = packed("final/{domain}/day+{sim_id}+{domain}_{period}.zarr.zip", "out_scenario")
    out_flags = packed("final/{domain}/flags_day+{sim_id}+{domain}_{period}.zarr.zip", "out_scenario", of_flags=True)

    def check(self) -> None:
        """Raise an error, too, if pieces share a row; log, once, the pieces that cannot be linked into the whole."""
        super().check()
        if not self.complete():
            _look_where_pieces_meet(self.context)

    def compute(self, pieces: list[xr.Dataset], grids: list[xr.Dataset]) -> xr.Dataset:
        """Put the pieces together from south to north."""
        files = product_chunks(self, pieces[0])
        in_rows = [rechunk(piece, rows_of_chunks(files, piece)) for piece in pieces]
        whole = finalize.concatenate(in_rows, domain=self.context.config.domain.name)
        land = gaps.join_land([grid["land"] for grid in grids], whole)
        # What is linked was looked at when it was written.
        return gaps.require_data(whole, land, allowed=gaps.allowed_gaps(whole.attrs, land), days=files["time"])

    def write(self, dataset: xr.Dataset, path: Path, marker: store.Marker) -> None:
        """Link the chunks that lie within a piece; write those across a seam."""
        y, _ = horizontal_dims(dataset)
        paths = [info().path for info in self.in_pieces]
        in_order = paths if finalize.ascending(dataset, y) else paths[::-1]
        store.join_stores(dataset, in_order, path, marker, dim=y, chunks=product_chunks(self, dataset))


# The catalogue's columns that make a simulation's id, and the attributes that make a product's.
_PROJECT, *_OF_A_SIMULATION, _DOMAIN = ID_COLUMNS
_OF_AN_ID = tuple(f"cat:{name}" for name in (_PROJECT, "bias_adjust_reference", *_OF_A_SIMULATION, _DOMAIN))


def regional_only(task: EspoTask) -> list[str]:
    """Return the task's simulation if its domain has an outline to which products are cut."""
    return [task.sim_id] if task.context.is_regional(task.sim_id) else []


class JoinTask(ProductTask):
    """A rule that puts a variable of a simulation together over the whole domain, and packs it."""

    sim_id = SimulationParameter()
    in_grids = upstream(RefDefault, "out_grid", piece=every_piece)
    in_extracted = upstream(Extract, "out_extracted", sim_id=regional_only)
    uncut = ("in_slices",)
    resources_default = Resources(n_workers=6, cpus_per_task=12, memory="60GB", time="60")
    values_in_outputs = 2.0
    limits: ClassVar[Literal["possible", "raw"]] = "possible"
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
        *(f"variables.{{var}}.{key}" for key in OF_THE_TABLE),
        partition.PRODUCTION_KEY,
    )

    @property
    def name(self) -> str:
        """The variable."""
        raise NotImplementedError

    def reading(self) -> list[str]:
        """Return, too, how other variables are adjusted, where attributes tell."""
        tells = "{adjust" in str(self.context.config.clean_up.variables.get(self.name))
        return super().reading() + (self.adjusting_keys() if tells else [])

    def compute(
        self,
        slices: list[xr.Dataset],
        grids: list[xr.Dataset],
        extracted: list[xr.Dataset],
        reference: Sequence[xr.Dataset] = (),
    ) -> xr.Dataset:
        """Select the member, unstack, treat and describe; cut to the outline of a regional simulation's domain."""
        members = [pooling.member(dataset, self.sim_id) for dataset in slices]
        files = product_chunks(self, members[0])
        land = _whole_land(grids, extracted, files["time"])
        blocks = rows_of_chunks(files, land.grid if land.part is None else land.part)
        read = dict(self.context.config.custom.working_chunks) | {"time": blocks["time"]}
        parts = [rechunk(ds[quality.beside(ds, [self.name])], read) for ds in members]
        cells = join(parts, stack.STACKED_DIM, what="The slices")
        # Attributes of the pool are those of the member, with the id that v2's scripts make of them.
        columns = self.context.simulation(self.sim_id).columns
        attrs = {"cat:bias_adjust_reference": self.context.config.reference_source, **cells.attrs}
        attrs |= {f"cat:{name}": columns[name] for name in _OF_A_SIMULATION if columns.get(name)}
        attrs["cat:id"] = "_".join(str(attrs[name]) for name in _OF_AN_ID if attrs.get(name))
        made = finalize.finish(
            cells.assign_attrs(attrs),
            treatment=self.treatment(),
            land=land,
            chunks=blocks,
            table=self.context.config.table,
            limits=self.limits_of_flags(cells, reference),
        )
        crossed = sum(int(dataset.attrs.get(IMPOSSIBLE_VALUES, 0)) for dataset in members)
        return self.with_possible_values(made, land.cells, which=self.limits, known=crossed)

    def treatment(self) -> finalize.Treatment:
        """Return what is done to the variable."""
        return self.context.production.treatment(self.name)


def _whole_land(grids: list[xr.Dataset], extracted: list[xr.Dataset], days: int) -> finalize.Land:
    """The whole domain's land, or its part inside of the outline of a regional simulation's grid, `extracted`."""
    grid, lands = grids[0].drop_vars("land"), [grid["land"] for grid in grids]
    incomplete = sum(int(land.attrs.get(stack.INCOMPLETE_CELLS, 0)) for land in lands)
    told = {name: text for name, text in lands[0].attrs.items() if name in ABOUT_RAW_FILES}
    land = gaps.join_land(lands, grid).assign_attrs({stack.INCOMPLETE_CELLS: incomplete} | told)
    if not extracted:
        return finalize.Land(land, grid, days=days)
    part, inside = cut_to_domain(grid, land, extracted[0])
    return finalize.Land(inside, grid, part, days)


def cut_to_domain(grid: xr.Dataset, land: xr.DataArray, extracted: xr.Dataset) -> tuple[xr.Dataset, xr.DataArray]:
    """Return the part of a grid that lies in a regional simulation's grid, and the land in it."""
    cut = cut_to_outline(grid.assign(land=land.astype("float32")), outline(extracted["lat"], extracted["lon"]))
    return cut.drop_vars("land"), (cut["land"] == 1).assign_attrs(land.attrs)


class ConcatClean(JoinTask):
    """Rule `concat_clean`: ESPO v2: a variable of a simulation over the whole domain, cleaned up, and its archive."""

    var = PublishedParameter()
    in_slices = upstream(
        (Adjust, Downscale, Swap, Derive),
        lambda task: {Swap: f"out_{task.var}", Derive: "out_derived"}.get(
            _makes(task.context, task.var), "out_adjusted"
        ),
        which=lambda task: _makes(task.context, task.var),
        var=lambda task: task.context.config.biasadjust.group_of(task.var),
        pool=lambda task: partition.pool_of(task.context, task.sim_id),
        piece=every_piece,
    )
    in_reference = upstream(
        ReferenceCalendar,
        "out_reference",
        piece=lambda task: every_piece(task) if task.context.config.flagging else [],
        calendar="noleap",
    )
    reads = (*JoinTask.reads, "flags")
    out_joined = temporary("{var}+day+{sim_id}+{domain}+{period}.zarr")
    out_final = packed("final/{domain}/{var}_day+{sim_id}+{domain}_{period}.zarr.zip", "out_joined")
    out_flags = packed(
        "final/{domain}/flags_{var}_day+{sim_id}+{domain}_{period}.zarr.zip", "out_joined", of_flags=True
    )

    @property
    def name(self) -> str:
        """The variable."""
        return str(self.var)


_BEFORE_THE_EXCHANGE = {"description": "tasmax - tasmin, as adjusted, before they were made consistent."}


class ConcatCleanPreswap(JoinTask):
    """Rule `concat_clean_preswap`: ESPO v2: tasmax - tasmin over the whole domain, before they were made consistent."""

    in_slices = upstream(
        Swap, "out_dtrpreswap", pool=lambda task: partition.pool_of(task.context, task.sim_id), piece=every_piece
    )
    out_joined = temporary("dtrpreswap+day+{sim_id}+{domain}+{period}.zarr")
    out_final = packed("preswap/dtrpreswap_day_{label}_{ref_source}+{sim_id}_{domain}.zarr.zip", "out_joined")
    reads = tuple(key.replace("{var}", "dtr") for key in JoinTask.reads)
    name = "dtr"
    # The days on which tasmax is below tasmin are what this archive shows.
    limits = "raw"

    def compute(self, slices: list[xr.Dataset], *others: Any, **inputs: Any) -> xr.Dataset:
        """Join as other variables are, under the name dtr."""
        return super().compute([one.rename(dtrpreswap="dtr") for one in slices], *others, **inputs)

    def treatment(self) -> finalize.Treatment:
        """Return that of dtr, but for the range of values, which tells where tasmax was below tasmin, and its words."""
        own = super().treatment()
        texts = {**own.add_attrs, "dtr": {**own.add_attrs.get("dtr", {}), **_BEFORE_THE_EXCHANGE}}
        return replace(own, clip_var={}, add_attrs=texts)


def final_archives(variables: Callable[[Any], str | list[str]], output: str = "out_final", **fixed: Any) -> Any:
    """Declare an input: a simulation's final archive, or those of its variables; with `out_flags`, of their flags."""
    rules = (ConcatenationFinal, ConcatClean)
    return upstream(rules, output, which=lambda task: task.context.production.final_rule, **fixed, var=variables)


class HealthChecks(EspoTask):
    """Rule `health_checks`: the errors and suspicious values in the whole domain's scenario."""

    sim_id = SimulationParameter()
    resources_default = Resources(n_workers=8, cpus_per_task=40, memory="40GB", time="1000")
    in_final = final_archives(lambda task: task.context.config.published)
    in_grids = upstream(RefDefault, "out_grid", piece=every_piece)
    in_extracted = upstream(Extract, "out_extracted", sim_id=regional_only)
    out_checks = kept("checks/{domain}/{sim_id}+{domain}_checks.zarr")
    reads = (partition.NAMES_KEY, "health_checks")

    def compute(
        self, final: xr.Dataset | list[xr.Dataset], grids: list[xr.Dataset], extracted: list[xr.Dataset]
    ) -> xr.Dataset:
        """Run the configured checks; those of ``raise_on`` fail the task."""
        product = finalize.merge_products(final)
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
    partition.require_own_rows(dict(maps))
    y, _ = horizontal_dims(maps[0][1])
    size, first, apart = context.config.custom.final_chunks.get(y, -1), 0, []
    for name, found in maps if finalize.ascending(maps[0][1], y) else maps[::-1]:
        if size > 0 and first % size:
            apart.append(f"{name} begins at row {first}")
        first += found.sizes[y]
    if apart:
        logger.info(
            "custom.regions: %s of the whole domain, no multiple of custom.final_chunks.%s = %d: for the whole domain, "
            "their data are written again instead of linked (`espo docs configuration`, where bands meet)",
            ", ".join(apart),
            y,
            size,
        )
