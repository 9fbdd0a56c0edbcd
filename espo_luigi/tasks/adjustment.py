"""The rules that train and apply the bias adjustment, one variable at a time, and clean the result up."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from espo_luigi import store
from espo_luigi.errors import CatalogError, ConfigurationError
from espo_luigi.jobs.resources import Resources
from espo_luigi.methods import blocks
from espo_luigi.science import calendar, pooling, stack
from espo_luigi.science.choices import NEEDED_FOR, TREATED
from espo_luigi.science.chunks import REALIZATION, block_sizes, rechunk
from espo_luigi.science.finalize import consistency, gaps
from espo_luigi.science.finalize import scenario as finalize
from espo_luigi.science.possible import POSSIBLE, Limits
from espo_luigi.tasks import partition
from espo_luigi.tasks.base import EspoTask, PieceParameter, PoolParameter, SimulationParameter, VariableParameter
from espo_luigi.tasks.ports import temporary, upstream
from espo_luigi.tasks.reference import RefDefault, ReferenceCalendar
from espo_luigi.tasks.simulation import Rechunk, four_years

# The largest block of CleanUp for each variable, and the largest one of several chunks of time. Small and large blocks
# take Zarr and Dask longer: 4000 cells took 14.1 s with 25 MB, 13.0 s with 50 MB, 15.6 s with 124 MB.
BLOCK_BYTES = 128 * 1024**2
BLOCK_IN_TIME_BYTES = 64 * 1024**2
# The settings of a variable's adjustment that become attributes of the scenario; no number depends on them.
MAKERS = ("bias_adjust_institution", "bias_adjust_project", "bias_adjust_reference")
# Below this, a simulated diurnal range becomes noise, as in the reference workflow.
JITTER_OF_DTR = {"thresh": "1e-4 K"}
# The settings of a variable's adjustment that the attributes of the product may name.
NAMED_IN_ATTRIBUTES = ("training_args.period", "adjusting_args.periods", "adjusting_args.bias_adjust_institution")


def every_member(task: EspoTask) -> list[str]:
    """Return the simulations of a task's pool."""
    return partition.members(task.context, task.pool)


class Train(EspoTask):
    """Rule `train`: the quantiles of reference and simulation over the reference period, for one variable."""

    pool, piece, var = PoolParameter(), PieceParameter(), VariableParameter()
    resources_default = Resources(n_workers=3, cpus_per_task=12, memory="100GB", time="1000")
    values_in_outputs = 1.0
    in_noleap = upstream(ReferenceCalendar, "out_reference", calendar="noleap")
    in_day360 = upstream(ReferenceCalendar, "out_reference", calendar="360_day")
    in_regchunked = upstream(Rechunk, "out_regchunked", sim_id=every_member)
    out_training = temporary("{pool}+{piece}+{var}+training.zarr")
    reads = (
        "biasadjust.variables.{var}.training_args",
        "biasadjust.variables.{var}.engine",
        "custom.maximal_calendar",
    )

    def check(self) -> None:
        """Raise an error, too, if the reference's stores are outdated and the catalogue lacks the reference."""
        super().check()
        references = (task for task in self.deps() if isinstance(task, ReferenceCalendar))
        if any(task.stale(files=False) for task in references) and (problem := self.context.reference_problem):
            raise CatalogError(problem)

    def compute(self, noleap: xr.Dataset, day360: xr.Dataset, regchunked: list[xr.Dataset]) -> xr.Dataset:
        """Train on the reference whose calendar is the simulations', or the nearest below."""
        config = self.context.config
        historical = pooled(regchunked, self)
        common = calendar.minimum_calendar(calendar.calendar_of(historical), config.custom.maximal_calendar)
        reference = day360 if common == "360_day" else noleap
        variable = config.biasadjust.variables[self.var]
        seed, first_cell = draws(self)
        return blocks.train(
            reference[self.var],
            historical[self.var],
            **variable.training_args.arguments(),
            maximal_calendar=config.custom.maximal_calendar,
            seed=seed,
            first_cell=first_cell,
            engine=variable.engine,
        ).assign_attrs(_origin(historical))

    def layout(self, dataset: xr.Dataset) -> dict[str, Any]:
        """Return the dimension of the cells: compressed along it, quantiles become small."""
        return {"bits_along": _cells(dataset)}


class Adjust(EspoTask):
    """Rule `adjust`: one variable of the simulation, bias-adjusted over the whole period."""

    pool, piece, var = PoolParameter(), PieceParameter(), VariableParameter()
    beside = ("treated_path",)
    resources_default = Resources(n_workers=3, cpus_per_task=15, memory="100GB", time="1000")
    values_in_outputs = 1.0
    in_training = upstream(Train, "out_training")
    in_regchunked = upstream(Rechunk, "out_regchunked", sim_id=every_member)
    out_adjusted = temporary("{pool}+{piece}+{var}+adjusted.zarr")
    reads = (
        "biasadjust.variables.{var}.adjusting_args",
        "biasadjust.variables.{var}.engine",
        "biasadjust.variables.{var}.training_args",
        "custom.maximal_calendar",
    )

    def compute(self, training: xr.Dataset, regchunked: list[xr.Dataset]) -> xr.Dataset:
        """Adjust; values of a diurnal range below `JITTER_OF_DTR` first become noise."""
        config = self.context.config
        variable, simulation = config.biasadjust.variables[self.var], pooled(regchunked, self)
        seed, first_cell = draws(self)
        made = blocks.adjust_and_count(
            simulation[self.var],
            training,
            **variable.adjusting_args.arguments(*MAKERS),
            jitter_under=JITTER_OF_DTR if self.var == "dtr" else None,
            maximal_calendar=config.custom.maximal_calendar,
            seed=f"{seed}+adjust",
            first_cell=first_cell,
            engine=variable.engine,
        )
        return made.rename(scenario=self.var).assign_attrs(
            simulation.attrs
            | {"cat:processing_level": "biasadjusted", "cat:variable": self.var}
            | {f"cat:{name}": maker for name in MAKERS if (maker := getattr(variable.adjusting_args, name))}
        )

    def layout(self, dataset: xr.Dataset) -> dict[str, Any]:
        """Return files of whole series, in chunks of four years, so that maps of four years are read."""
        return layout_of_pools(dataset)

    def publish(self, outputs: Mapping[str, xr.Dataset]) -> None:
        """Publish, and keep the counts of treated days for the report: `out_adjusted` will be deleted."""
        super().publish(outputs)
        made = store.open_store(self.out_adjusted().path)
        if TREATED in made:
            # Counts of days are no series, whose attributes (dates, frequency) would say what is not so.
            store.write_store(made[[TREATED]].load().drop_attrs(deep=False), self.treated_path, self.marker())
        else:
            store.remove(self.treated_path)

    @property
    def treated_path(self) -> Path:
        """The store of `treated` (cells, realization, treatment); none is there where xsdba has adjusted."""
        return self.for_report("{pool}+{piece}+{var}+treated.zarr")


def pooled(members: list[xr.Dataset], task: Train | Adjust) -> xr.Dataset:
    """Return the variable of a pool's members along `realization`, lazily; without it where members are not pooled."""
    group = task.context.config.biasadjust.variables[task.var].training_args.arguments().get("group")
    if len(members) == 1 and not (isinstance(group, Mapping) and group.get("add_dims")):
        return members[0]
    return pooling.together([one[[task.var]] for one in members], every_member(task))


def draws(task: Train | Adjust) -> tuple[str, int | np.ndarray]:
    """Return the seed of a task's random draws, and the place of its first cell, to which each cell's is added."""
    seed, first = task.context.production.pieces.draws(task.pool, task.piece, task.var)
    return seed, first + task.cells_before


def layout_of_pools(dataset: xr.Dataset) -> dict[str, Any]:
    """Return files of blocks, in chunks of four years and one member."""
    chunks = {"time": four_years(dataset)} | ({REALIZATION: 1} if REALIZATION in dataset.dims else {})
    return {"chunks": chunks, "shards": block_sizes(dataset), "bits_along": _cells(dataset)}


# The key that lets impossible values through. A product with impossible values has this key in its marker.
ON_IMPOSSIBLE = "clean_up.on_impossible"


class ProductTask(EspoTask):
    """A rule that refuses impossible values, or counts them and becomes outdated once they are to be refused."""

    _has_impossible = False

    def reading(self) -> list[str]:
        """Return, too, the key that let impossible values through, if there are any in the output."""
        return super().reading() + ([ON_IMPOSSIBLE] if self._has_impossible else [])

    def with_possible_values(
        self, made: xr.Dataset, land: xr.DataArray, table: Mapping[str, Limits] = POSSIBLE, known: int = 0
    ) -> xr.Dataset:
        """Return the product that has no impossible values, or their number in its attributes."""
        how = self.context.config.clean_up.on_impossible
        checked = gaps.with_possible_values(made, land, on_impossible=how, table=table, known=known)
        self._has_impossible = gaps.IMPOSSIBLE_VALUES in checked.attrs
        return checked


class Swap(ProductTask):
    """Rule `swap`: ESPO v2: tasmax and tasmin of a pool, made consistent, and the range before."""

    pool, piece = PoolParameter(), PieceParameter()
    resources_default = Resources(n_workers=5, cpus_per_task=15, memory="300GB", time="10")
    values_in_outputs = 3.0
    in_adjusted = upstream(Adjust, "out_adjusted", var=lambda task: list(task.needs))
    uncut = ("in_adjusted",)
    reads = ("clean_up.temperatures", "custom.working_chunks")
    out_tasmax = temporary("{pool}+{domain}+{ref_source}+{piece}+tasmax+adjustedS.zarr")
    out_tasmin = temporary("{pool}+{domain}+{ref_source}+{piece}+tasmin+adjustedS.zarr")
    out_dtrpreswap = temporary("preswap/{pool}+{domain}+{ref_source}+{piece}+dtrpreswap.zarr")

    @property
    def needs(self) -> tuple[str, ...]:
        """The adjusted variables that it takes."""
        return NEEDED_FOR[self.context.config.clean_up.temperatures]

    def compute(self, adjusted: list[xr.Dataset]) -> dict[str, xr.Dataset]:
        """Exchange or derive, as `clean_up.temperatures` says; blocks are whole files of `Adjust`."""
        config = self.context.config
        blocks = {REALIZATION: 1, **config.custom.working_chunks, "time": -1}
        given = {name: rechunk(one, blocks)[name] for name, one in zip(self.needs, adjusted, strict=True)}
        made = consistency.consistent(given, how=config.clean_up.temperatures)
        # Each product has one of the two; the rest of their values is looked at there.
        last = made["tasmin"].dims[-1]
        nowhere = xr.DataArray(np.zeros(made.sizes[last], bool), dims=[last])
        made = self.with_possible_values(made, nowhere, {})
        attrs = adjusted[0].attrs
        outputs = {str(name): made[[name]].assign_attrs(attrs | {"cat:variable": name}) for name in made.data_vars}
        if self._has_impossible:
            for one in outputs.values():
                del one.attrs[gaps.IMPOSSIBLE_VALUES]
            outputs["tasmin"].attrs |= pooling.told_of_members(gaps.IMPOSSIBLE_VALUES, gaps.count_crossed(made))
        return outputs

    def layout(self, dataset: xr.Dataset) -> dict[str, Any]:
        """Return the layout of `Adjust`."""
        return layout_of_pools(dataset)


class CleanUp(ProductTask):
    """Rule `clean_up`: the adjusted variables together, tasmin from tasmax and dtr, on the piece's whole grid."""

    sim_id, piece = SimulationParameter(), PieceParameter()
    resources_default = Resources(n_workers=2, cpus_per_task=6, memory="50GB", time="1000")
    values_in_outputs = 1.0
    in_adjusted = upstream(
        Adjust,
        "out_adjusted",
        pool=lambda task: partition.pool_of(task.context, task.sim_id),
        var=lambda task: list(task.context.config.biasadjust.variables),
    )
    in_grid = upstream(RefDefault, "out_grid")
    out_cleaned_up = temporary("{sim_id}+{piece}+cleaned_up.zarr")
    uncut = ("in_adjusted",)
    reads = (
        "biasadjust.variables.*",
        "clean_up.problems.{sim_id}",
        "clean_up.xscen_clean_up",
        "custom.final_chunks",
        "custom.stack_drop_nans",
        "extraction.ref_source",
        "extraction.reference.search_data_catalogs.other_search_criteria.source",
        "project.name",
        "project.version",
    )

    def check(self) -> None:
        """Raise an error, too, if a variable that tasmin is made of is not adjusted."""
        super().check()
        adjusted = self.context.config.biasadjust.variables
        if missing := [name for name in ("tasmax", "dtr") if name not in adjusted]:
            raise ConfigurationError(
                f"`biasadjust.variables` has {', '.join(adjusted)}; expected {' and '.join(missing)}, too: the "
                "product's tasmin is tasmax - dtr. Adjust them, or run until Adjust only."
            )

    def reading(self) -> list[str]:
        """Return, too, the keys that are read for each variable."""
        variables = self.context.config.biasadjust.variables
        return super().reading() + [f"biasadjust.variables.{v}.{key}" for v in variables for key in NAMED_IN_ATTRIBUTES]

    def compute(self, adjusted: list[xr.Dataset], grid: xr.Dataset) -> xr.Dataset:
        """Merge, unstack, round, and set the attributes of the product; blocks are rows of the product's chunks."""
        config, files = self.context.config, product_chunks(self, adjusted[0])
        made = finalize.clean_up(
            [one.drop_vars([TREATED, "treatment"], errors="ignore") for one in adjusted],
            grid=grid if config.custom.stack_drop_nans else None,
            land=grid["land"],
            chunks=rows_of_chunks(files, grid),
            days=files["time"],
            problem=self.sim_id in config.clean_up.problems,
            add_attrs=config.attributes,
            **config.clean_up.xscen_clean_up.arguments("add_attrs"),
        )
        return self.with_possible_values(made, grid["land"])

    def layout(self, dataset: xr.Dataset) -> dict[str, Any]:
        """Return the product's chunks: maps of four years."""
        return {"chunks": product_chunks(self, dataset)}


def product_chunks(task: EspoTask, dataset: xr.Dataset) -> dict[str, int]:
    """Return the product's chunks: the configuration's, by four years."""
    return dict(task.context.config.custom.final_chunks) | {"time": four_years(dataset)}


def _cells(dataset: xr.Dataset) -> str:
    """Return the dimension along which neighbouring cells lie."""
    return stack.STACKED_DIM if stack.STACKED_DIM in dataset.dims else stack.horizontal_dims(dataset)[1]


def rows_of_chunks(chunks: Mapping[str, int], grid: xr.Dataset) -> dict[str, int]:
    """Return blocks of some 128 MB a variable, made of the product's chunks side by side.

    Stacked cells lie row by row: the wider the blocks, the fewer blocks read the same cells. If whole rows are less
    than 64 MB, a block has several chunks of time, up to that size.
    """
    y, x = stack.horizontal_dims(grid)
    rows = grid.sizes[y] if chunks.get(y, -1) == -1 else min(chunks[y], grid.sizes[y])
    column_bytes = 4 * chunks["time"] * rows
    columns = BLOCK_BYTES // column_bytes
    width = chunks.get(x, -1)
    if columns >= grid.sizes[x] or width == -1:
        times = BLOCK_IN_TIME_BYTES // (column_bytes * grid.sizes[x])
        return {**chunks, x: -1, "time": max(times, 1) * chunks["time"]}
    return {**chunks, x: max(columns // width, 1) * width}


def _origin(dataset: xr.Dataset) -> dict[str, object]:
    return {name: dataset.attrs[name] for name in ("cat:xrfreq", "cat:domain", "cat:id") if name in dataset.attrs}
