"""The rules that look for what is wrong with raw files, before anything heavy starts."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from espo_luigi import store
from espo_luigi.catalog import Match
from espo_luigi.catalog.examine import examine_match
from espo_luigi.catalog.files import tracking_id
from espo_luigi.config import Extraction
from espo_luigi.config.regions import Region
from espo_luigi.errors import DataError
from espo_luigi.jobs.resources import Resources
from espo_luigi.science.choices import INPUT_PROBLEMS
from espo_luigi.science.extract.input_problems import Problem
from espo_luigi.science.extract.input_values import limits_of
from espo_luigi.tasks.against_data import beyond_simulation
from espo_luigi.tasks.base import EspoTask, SimulationParameter
from espo_luigi.tasks.ports import kept

logger = logging.getLogger(__name__)

COLUMNS = ("action", "problem", "variable", "file", "day", "lat", "lon", "value", "count", "message")
# What of a table is shown; the rest is in the file.
SHOWN = 10


class InputTask(EspoTask):
    """A rule that reads raw files once, and makes the table of what is wrong with them.

    A table with a problem that fails is written, too, without its marker: it is there to be read, and not complete.
    """

    resources_default = Resources(n_workers=1, cpus_per_task=1, memory="8GB", time="1000")
    uses_dask = False
    is_material = False

    def problems(self) -> list[Problem]:
        """Return what is wrong with the files; reads them."""
        raise NotImplementedError

    def complete(self) -> bool:
        """Return True if the table is there, and nothing in it is what the configuration lets fail by now."""
        if not super().complete():
            return False
        actions = self.context.config.extraction.on_input_problem
        return all(getattr(actions, row["problem"]) == "warn" for row in store.read_table(self.out_problems().path))

    def work(self) -> None:
        """Write the table; raises `DataError` if it has a problem that fails."""
        rows = self._rows(self.problems())
        fatal = [row for row in rows if row["action"] == "fail"]
        path = self.out_problems().path
        store.write_table(COLUMNS, rows, path, None if fatal else self.marker())
        if fatal:
            raise DataError(
                f"{len(fatal)} problem(s) of its files, because of which nothing is made of them. "
                f"Correct the files, or exclude the dataset; `extraction.on_input_problem` lets through what is only "
                f"suspicious. All are in {path}:\n{render(fatal)}"
            )

    def marker(self) -> store.Marker:
        """Return, as inputs, the raw files with their tracking ids, which nothing that is kept has else."""
        return replace(super().marker(), inputs={str(path): tracking_id(str(path)) for path in self.raw_files()})

    def run(self) -> None:
        """Have a job make the table, and show here what it warns of."""
        super().run()
        rows = store.read_table(self.out_problems().path)
        if rows:
            logger.warning(
                "%s: %d warning(s), all in %s:\n%s", self.label(), len(rows), self.out_problems().path, render(rows)
            )

    def examined(
        self,
        match: Match,
        extraction: Extraction,
        period: tuple[str, str],
        regions: Iterable[Region],
        mask_variable: str = "",
    ) -> list[Problem]:
        """Return what is wrong with what will be extracted of a dataset."""
        limits, kwargs = limits_of(self.context.config.flags), extraction.extract_dataset.xr_open_kwargs
        boxes = [region.arguments() for region in regions]
        return examine_match(
            match, period=period, regions=boxes, limits=limits, mask_variable=mask_variable, xr_open_kwargs=kwargs
        )

    def _rows(self, problems: Iterable[Problem]) -> list[dict[str, str]]:
        actions = self.context.config.extraction.on_input_problem
        in_order = sorted(problems, key=lambda one: (INPUT_PROBLEMS.index(one.kind), one.variable, one.file, one.day))
        rows = [_row(problem, getattr(actions, problem.kind)) for problem in in_order]
        return sorted(rows, key=lambda row: row["action"])


class InputCheck(InputTask):
    """Rule `input_check`, which ESPO-G has not: what is wrong with the raw files of one simulation."""

    sim_id = SimulationParameter()
    out_problems = kept("checks/{domain}/{sim_id}+{domain}_input.csv")
    reads = (
        "custom.amno_region",
        "custom.sim_period",
        "extraction.simulation.extract_dataset.xr_open_kwargs",
        "health_checks.flags",
    )

    def check(self) -> None:
        """Raise an error, too, if the simulation's grid does not suit the domain that is cut out."""
        super().check()
        if not self.complete() or self.stale(files=False):
            _ = self._grid_was_looked_at

    @functools.cached_property
    def _grid_was_looked_at(self) -> bool:
        config = self.context.config
        box, key = config.custom.amno_region.arguments(), "custom.amno_region"
        beyond = beyond_simulation(self.raw(), config.extraction.simulation, box, key)
        if beyond and config.extraction.on_input_problem.extrapolation == "fail":
            raise DataError(
                f"{beyond}. Correct the bounds, or exclude the simulation. "
                "`extraction.on_input_problem.extrapolation: warn` lets it through."
            )
        return True

    def raw(self) -> Match:
        """Return the simulation."""
        return self.context.simulation(self.sim_id)

    def problems(self) -> list[Problem]:
        """Look at what `Extract` will read."""
        config = self.context.config
        return self.examined(
            self.raw(), config.extraction.simulation, config.custom.sim_period, [config.custom.amno_region]
        )


class RefInputCheck(InputTask):
    """Rule `ref_input_check`, which ESPO-G has not: what is wrong with the raw files of the reference."""

    out_problems = kept("checks/{domain}/{ref_source}+{domain}_input.csv")
    reads = (
        "custom.ref_period",
        "custom.regions",
        "extraction.reference.extract_dataset.xr_open_kwargs",
        "health_checks.flags",
    )

    def raw(self) -> Match:
        """Return the reference."""
        return self.context.reference()

    def problems(self) -> list[Problem]:
        """Look at what `RefDefault` will read for all regions."""
        config = self.context.config
        regions = config.custom.regions.values()
        mask = self.context.mask_variable
        return self.examined(self.raw(), config.extraction.reference, config.custom.ref_period, regions, mask)


def _row(problem: Problem, action: str) -> dict[str, str]:
    numbers = {"lat": problem.lat, "lon": problem.lon, "value": problem.value}
    return {
        "action": action,
        "problem": problem.kind,
        "variable": problem.variable,
        "file": problem.file,
        "day": problem.day,
        **{name: "" if value is None else f"{value:.6g}" for name, value in numbers.items()},
        "count": str(problem.count),
        "message": " ".join(problem.message.split()),
    }


def render(rows: Sequence[Mapping[str, str]]) -> str:
    """Return the first rows of a table as lines for people."""
    lines = [_line(row) for row in rows[:SHOWN]]
    return "\n".join(lines + ([f"  and {len(rows) - SHOWN} more"] if len(rows) > SHOWN else []))


def _line(row: Mapping[str, str]) -> str:
    cell = f"cell {row['lat'] or '?'} °N {row['lon'] or '?'} °E" if row["lat"] or row["lon"] else ""
    value = f"value {row['value']}" if row["value"] else ""
    where = ", ".join(part for part in (row["variable"], row["file"], row["day"], cell, value) if part)
    return f"  {row['problem']} ({row['action']}): {where}: {row['message']}"
