"""The rules that train and apply the bias adjustment, one variable at a time, and clean the result up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import xarray as xr

from espo_luigi.errors import CatalogError, ConfigurationError
from espo_luigi.jobs.resources import Resources
from espo_luigi.science import calendar, stack
from espo_luigi.science.adjust import biasadjust
from espo_luigi.science.chunks import block_sizes
from espo_luigi.science.finalize import product as finalize
from espo_luigi.tasks.base import EspoTask, RegionParameter, SimulationParameter, VariableParameter
from espo_luigi.tasks.ports import temporary, upstream
from espo_luigi.tasks.reference import RefDefault, ReferenceCalendar
from espo_luigi.tasks.simulation import Rechunk, four_years

# A block of CleanUp, for each variable, at most; and one of several chunks of time. Very small blocks take Zarr and
# Dask longer, and so do those of 124 MB: CleanUp of 4000 cells took 13.0 s with 50 MB, 14.1 with 25 and 15.6 with 124.
BLOCK_BYTES = 128 * 1024**2
BLOCK_IN_TIME_BYTES = 64 * 1024**2
# The settings of a variable's adjustment that are attributes of the scenario, and change no number.
MAKERS = ("bias_adjust_institution", "bias_adjust_project")
# The settings of a variable's adjustment that the attributes of the product may name.
NAMED_IN_ATTRIBUTES = ("training_args.period", "adjusting_args.periods", "adjusting_args.bias_adjust_institution")


class Train(EspoTask):
    """Rule `train`: the quantiles of reference and simulation over the reference period, for one variable."""

    sim_id, region, var = SimulationParameter(), RegionParameter(), VariableParameter()
    resources_default = Resources(n_workers=3, cpus_per_task=12, memory="100GB", time="1000")
    values_in_outputs = 1.0
    in_noleap = upstream(ReferenceCalendar, "out_reference", calendar="noleap")
    in_day360 = upstream(ReferenceCalendar, "out_reference", calendar="360_day")
    in_regchunked = upstream(Rechunk, "out_regchunked")
    out_training = temporary("{sim_id}+{region}+{var}+training.zarr")
    reads = (
        "biasadjust.variables.{var}.training_args",
        "biasadjust.variables.{var}.engine",
        "custom.maximal_calendar",
    )

    def check(self) -> None:
        """Raise an error, too, if the reference's stores are of another configuration, and its data do not fit this."""
        super().check()
        references = (task for task in self.deps() if isinstance(task, ReferenceCalendar))
        if any(task.stale(files=False) for task in references) and (problem := self.context.reference_problem):
            raise CatalogError(problem)

    def compute(self, noleap: xr.Dataset, day360: xr.Dataset, regchunked: xr.Dataset) -> xr.Dataset:
        """Train on the reference whose calendar is the simulation's, or the nearest below."""
        config = self.context.config
        common = calendar.minimum_calendar(calendar.calendar_of(regchunked), config.custom.maximal_calendar)
        reference = day360 if common == "360_day" else noleap
        variable = config.biasadjust.variables[self.var]
        return biasadjust.train(
            reference[self.var],
            regchunked[self.var],
            **variable.training_args.arguments(),
            maximal_calendar=config.custom.maximal_calendar,
            seed=self.seed,
            engine=variable.engine,
        ).assign_attrs(_origin(regchunked))

    def layout(self, dataset: xr.Dataset) -> dict[str, Any]:
        """Return how quantiles become small: compressed along the cells."""
        return {"bits_along": _cells(dataset)}

    @property
    def seed(self) -> str:
        """What the random draws are seeded from, with each cell's place."""
        return f"{self.sim_id}+{self.region}+{self.var}"


class Adjust(EspoTask):
    """Rule `adjust`: one variable of the simulation, bias-adjusted over the whole period."""

    sim_id, region, var = SimulationParameter(), RegionParameter(), VariableParameter()
    resources_default = Resources(n_workers=3, cpus_per_task=15, memory="100GB", time="1000")
    values_in_outputs = 1.0
    in_training = upstream(Train, "out_training")
    in_regchunked = upstream(Rechunk, "out_regchunked")
    out_adjusted = temporary("{sim_id}+{region}+{var}+adjusted.zarr")
    reads = (
        "biasadjust.variables.{var}.adjusting_args",
        "biasadjust.variables.{var}.engine",
        "custom.maximal_calendar",
    )

    def compute(self, training: xr.Dataset, regchunked: xr.Dataset) -> xr.Dataset:
        """Adjust; a diurnal range under 1e-4 K is first replaced by noise below that, as in the reference workflow."""
        config = self.context.config
        variable = config.biasadjust.variables[self.var]
        scenario = biasadjust.adjust(
            regchunked[self.var],
            training,
            **variable.adjusting_args.arguments(*MAKERS),
            jitter_under={"thresh": "1e-4 K"} if self.var == "dtr" else None,
            maximal_calendar=config.custom.maximal_calendar,
            seed=f"{self.sim_id}+{self.region}+{self.var}+adjust",
            engine=variable.engine,
        )
        return scenario.to_dataset(name=self.var).assign_attrs(
            regchunked.attrs
            | {"cat:processing_level": "biasadjusted", "cat:variable": self.var}
            | {f"cat:{name}": maker for name in MAKERS if (maker := getattr(variable.adjusting_args, name))}
        )

    def layout(self, dataset: xr.Dataset) -> dict[str, Any]:
        """Return files of whole series, made of pieces of four years, so that `CleanUp` reads maps of four years."""
        pieces = {"time": four_years(dataset)}
        return {"chunks": pieces, "shards": block_sizes(dataset), "bits_along": _cells(dataset)}


class CleanUp(EspoTask):
    """Rule `clean_up`: the adjusted variables together, tasmin from tasmax and dtr, on the region's whole grid."""

    sim_id, region = SimulationParameter(), RegionParameter()
    resources_default = Resources(n_workers=2, cpus_per_task=6, memory="50GB", time="1000")
    values_in_outputs = 1.0
    in_adjusted = upstream(Adjust, "out_adjusted", var=lambda task: list(task.context.config.biasadjust.variables))
    in_grid = upstream(RefDefault, "out_grid")
    out_cleaned_up = temporary("{sim_id}+{region}+cleaned_up.zarr")
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
        """Raise an error, too, if a variable is not adjusted that tasmin is made of."""
        super().check()
        adjusted = self.context.config.biasadjust.variables
        if missing := [name for name in ("tasmax", "dtr") if name not in adjusted]:
            raise ConfigurationError(
                f"`biasadjust.variables` has {', '.join(adjusted)}; expected {' and '.join(missing)}, too: the "
                "product's tasmin is tasmax - dtr. Adjust them, or run until Adjust only."
            )

    def reading(self) -> list[str]:
        """Return the keys that are read for each variable, too."""
        variables = self.context.config.biasadjust.variables
        return super().reading() + [f"biasadjust.variables.{v}.{key}" for v in variables for key in NAMED_IN_ATTRIBUTES]

    def compute(self, adjusted: list[xr.Dataset], grid: xr.Dataset) -> xr.Dataset:
        """Merge, unstack, round, and set the attributes of the product; blocks are rows of the product's chunks."""
        config, files = self.context.config, product_chunks(self, adjusted[0])
        return finalize.clean_up(
            adjusted,
            grid=grid if config.custom.stack_drop_nans else None,
            land=grid["land"],
            chunks=rows_of_chunks(files, grid),
            days=files["time"],
            problem=self.sim_id in config.clean_up.problems,
            add_attrs=config.attributes,
            **config.clean_up.xscen_clean_up.arguments("add_attrs"),
        )

    def layout(self, dataset: xr.Dataset) -> dict[str, Any]:
        """Return the product's chunks: maps of four years."""
        return {"chunks": product_chunks(self, dataset)}


def product_chunks(task: EspoTask, dataset: xr.Dataset) -> dict[str, int]:
    """Return the chunks of the product: those of the configuration, and four years."""
    return dict(task.context.config.custom.final_chunks) | {"time": four_years(dataset)}


def _cells(dataset: xr.Dataset) -> str:
    """Return the dimension along which neighbouring cells lie."""
    return stack.STACKED_DIM if stack.STACKED_DIM in dataset.dims else stack.horizontal_dims(dataset)[1]


def rows_of_chunks(chunks: Mapping[str, int], grid: xr.Dataset) -> dict[str, int]:
    """Return blocks of as many of the product's chunks side by side as make some 128 MB of one variable.

    Stacked cells lie row by row: the wider a block, the fewer read the same cells. Where whole rows are less than
    64 MB, as many chunks of time as make that are one block.
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
