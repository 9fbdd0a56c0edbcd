"""The rules that make days of hours, where a search finds no daily files."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import xarray as xr

from espo_luigi.catalog.hours import open_days
from espo_luigi.errors import EspoError
from espo_luigi.jobs.resources import Resources
from espo_luigi.tasks.base import EspoTask, SimulationParameter
from espo_luigi.tasks.ports import temporary, upstream

# What of the table of variables decides the values that are extracted.
TABLE = ("variables.*.units", "variables.*.bounds", "variables.*.difference")
# Cells around the domain, so that what is read later ends where the files' own grid would.
_MARGIN_CELLS = 2
_SERIES = "search_data_catalogs.variables_and_freqs"
SERIES = (_SERIES, f"{_SERIES}.*")
_OF_TABLE = (*TABLE, "variables.*.cell_methods")


def keys_of_raw(dataset: str, *more: str) -> tuple[str, ...]:
    """Return the keys that decide how raw files of "simulation" or "reference" are read, with `more` of its section."""
    units = "units.{sim_id}" if dataset == "simulation" else "units"
    names = ("accumulation", "extract_dataset.xr_open_kwargs", units, *more)
    return tuple(f"extraction.{dataset}.{name}" for name in names)


class DailyTask(EspoTask):
    """A rule that makes days of the hours of a dataset, in the domain and on the grid of its files."""

    resources_default = Resources(n_workers=1, cpus_per_task=2, memory="4GB", time="1000")
    values_in_outputs = 1.0

    def layout(self, dataset: xr.Dataset) -> dict[str, Any]:
        """Have variables that are made of the same hours be computed together."""
        return {"by_place": True}

    def region(self) -> dict[str, Any]:
        """Return the box that is cut."""
        box = self.context.config.domain.arguments()
        return box | {"tile_buffer": (box.get("tile_buffer") or 0) + _MARGIN_CELLS}

    def compute(self) -> xr.Dataset:
        """Make means, totals, minima and maxima of the days, in blocks of cells and days."""
        match, extraction = self.raw(), getattr(self.context.config.extraction, self.reads_raw)
        return open_days(
            match,
            region=self.region(),
            day=extraction.day or next((preset.day for preset in match.presets if preset.day), "UTC"),
            accumulation=match.accumulation,
            xr_open_kwargs=extraction.extract_dataset.xr_open_kwargs,
            table=self.context.config.table,
        )


class Daily(DailyTask):
    """Rule `daily`, new against ESPO-G: a simulation by day, made of its hours."""

    sim_id = SimulationParameter()
    reads_raw = "simulation"
    out_daily = temporary("{sim_id}+{domain}+daily.zarr")
    reads = ("domain", "custom.sim_period", *_OF_TABLE, *keys_of_raw("simulation", "day", *SERIES))


class RefDaily(DailyTask):
    """Rule `ref_daily`, new against ESPO-G: the reference by day, made of its hours."""

    reads_raw = "reference"
    out_daily = temporary("{ref_source}+{domain}+daily.zarr")
    reads = ("domain", "custom.ref_period", *_OF_TABLE, *keys_of_raw("reference", "day", *SERIES))

    def reading(self) -> list[str]:
        """Return, too, the key of the boxes that contain the pieces."""
        boxes, *_ = self.context.production.pieces.keys()
        return [*super().reading(), boxes.removesuffix(".{piece}")]

    def region(self) -> dict[str, Any]:
        """Return the box that holds the domain and all pieces."""
        boxes = [self.context.config.domain, *self.context.production.pieces.regions.values()]
        ends = {name: [bound for box in boxes for bound in getattr(box, name)] for name in ("lon_bnds", "lat_bnds")}
        return super().region() | {name: (min(bounds), max(bounds)) for name, bounds in ends.items()}


def of_hours(rule: type[DailyTask]) -> Any:
    """Declare an input: the store of `rule`, if what a task reads is there by hours; else none."""

    def which(task: Any) -> Any:
        with suppress(EspoError):  # a dataset that is lost; `check` tells of it
            return rule if task.raw().hours else None

    return upstream(rule, "out_daily", which=which)
