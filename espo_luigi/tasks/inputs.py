"""The rules that look for problems in raw files, before anything heavy starts."""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import xarray as xr

from espo_luigi import store
from espo_luigi.catalog import Match
from espo_luigi.catalog.examine import examine_match
from espo_luigi.catalog.files import tracking_id
from espo_luigi.catalog.open import asset_with, open_grid
from espo_luigi.config import Extraction
from espo_luigi.config.regions import Region
from espo_luigi.errors import DataError, StoreError
from espo_luigi.jobs.resources import Resources
from espo_luigi.redaction import without_secrets
from espo_luigi.science.attributes import LET_THROUGH
from espo_luigi.science.conservative import cells_of
from espo_luigi.science.diagnose.flags import limits_of
from espo_luigi.science.extract.input_problems import Problem
from espo_luigi.science.geometry.cutting import beyond_the_grid, subset_box
from espo_luigi.science.limits import INPUT_PROBLEMS
from espo_luigi.science.regrid import BOUNDS, horizontal_of
from espo_luigi.science.units import threshold_in
from espo_luigi.science.variables import Variable, variable
from espo_luigi.tasks import partition
from espo_luigi.tasks.base import EspoTask, SimulationParameter
from espo_luigi.tasks.daily import TABLE, Daily, RefDaily, keys_of_raw, of_hours
from espo_luigi.tasks.ports import kept

logger = logging.getLogger(__name__)

COLUMNS = ("action", "problem", "variable", "file", "day", "lat", "lon", "value", "count", "message")
_TABLE = (*TABLE, "variables.*.possible", "variables.*.raw", "variables.*.wet")
# How many rows of a table are shown; the file has all.
SHOWN = 10


class InputTask(EspoTask):
    """A rule that reads raw files once, and makes a table of their problems.

    If a problem fails the task, the table is written without its marker: it can be read, but is not complete.
    """

    resources_default = Resources(n_workers=1, cpus_per_task=1, memory="8GB", time="1000")
    uses_dask = False
    is_material = False

    def problems(self) -> list[Problem]:
        """Read the files, and return their problems."""
        raise NotImplementedError

    def complete(self) -> bool:
        """Return True if the table is whole, and the present configuration lets none of its problems fail."""
        if not super().complete():
            return False
        try:
            rows = store.read_table(self.out_problems().path, COLUMNS)
        except StoreError as error:
            logger.warning("%s is made again: %s", self.label(), error)
            return False
        return all(self.action(row["problem"], row["variable"]) == "warn" for row in rows)

    def action(self, problem: str, variable: str) -> str:
        """Return what a kind of problem with a variable does: fail or warn."""
        return str(getattr(self.context.config.extraction.on_input_problem, problem, "fail"))

    def work(self) -> None:
        """Write the table; raises `DataError` if a problem in it fails."""
        rank = list(INPUT_PROBLEMS).index
        in_order = sorted(self.problems(), key=lambda each: (rank(each.kind), each.variable, each.file, each.day))
        rows = [_row(problem, self.action(problem.kind, problem.variable)) for problem in in_order]
        rows.sort(key=lambda row: row["action"])
        fatal = [row for row in rows if row["action"] == "fail"]
        path = self.out_problems().path
        store.write_table(COLUMNS, rows, path, None if fatal else self.marker())
        if fatal:
            raise DataError(
                f"{len(fatal)} problem(s) of its files, because of which nothing is made of them. "
                f"Correct the files, or exclude the dataset; `extraction.on_input_problem` lets through what is only "
                f"suspicious. All are in {path}:\n{render(fatal)}"
            )

    def marker(self, outputs: Iterable[xr.Dataset] = ()) -> store.Marker:
        """Return, as inputs, the raw files with their tracking ids, which no other kept file records."""
        inputs = {without_secrets(str(path)): tracking_id(str(path)) for path in self.raw_files()}
        return replace(super().marker(), inputs=inputs)

    def run(self) -> None:
        """Have a job make the table, and log its warnings."""
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
        masked: Callable[[xr.Dataset], xr.Dataset] | None = None,
    ) -> list[Problem]:
        """Return the problems of the part of a dataset that will be extracted."""
        table, ((_, flags), *scoped) = self.context.config.table, self.context.config.input_limits
        problems = examine_match(
            match,
            period=period,
            regions=[region.arguments() for region in regions],
            limits=limits_of(flags, table),
            mask_variable=mask_variable,
            calibration=self.context.config.custom.ref_period,
            xr_open_kwargs=extraction.extract_dataset.xr_open_kwargs,
            may_lack=extraction.days_to_fill,
            masked=masked,
            scopes=[(scope, limits_of(narrower, table)) for scope, narrower in scoped],
            table={**table, **{name: self._transformable(name) for name in self._transformed}},
        )
        return [replace(each, message=self._explained(each)) for each in problems] if self._transformed else problems

    def reading(self) -> list[str]:
        """Return, too, the keys of the transformations."""
        return super().reading() + [f"{key}.additive_space" for key in self._transformed.values()]

    @property
    def _transformed(self) -> dict[str, str]:
        """The keys of the training, by variables that are adjusted through a transformation."""
        trainings = self.context.config.biasadjust.trainings
        spaces = {name: (key, getattr(one, "additive_space", None)) for name, (key, one) in trainings.items()}
        return {name: key for name, (key, space) in spaces.items() if space and space.arguments()}

    def _transformable(self, name: str) -> Variable:
        """Return a variable's row with the bounds of its transformation; they limit raw data, too, unless it clips."""
        config = self.context.config
        row, space = variable(name, config.table), config.biasadjust.trainings[name][1].additive_space
        texts = {-np.inf: space.lower_bound, np.inf: space.upper_bound}
        low, high = (threshold_in(text, row.units or text.unit) if text else none for none, text in texts.items())
        row = replace(row, bounds=(low, high if space.upper_bound else None), transformation=space.trans or "log")
        if space.margin or space.clip_next_to_bounds == "permissive":
            return row
        if space.clip_next_to_bounds is None:  # values at a bound have no transform
            low, high = (float(np.nextafter(np.float32(end), np.float32(to))) for end, to in ((low, high), (high, low)))
        else:
            lowest = variable(name, config.table).bounds[0]
            low = row.raw[0] if lowest is not None and lowest >= low else low  # `credible` lifts lower values
        return replace(row, raw=(max(row.raw[0], low), min(row.raw[1], high)))

    def _explained(self, problem: Problem) -> str:
        """Return a problem's message, with the key if a variable's transformation cannot take its values."""
        key = self._transformed.get(problem.variable)
        if key is None or problem.kind not in ("impossible_values", "mislabelled_units"):
            return problem.message
        if problem.kind == "mislabelled_units":
            return f"{problem.message} (`{key}.additive_space`)"
        return f"{problem.message}, as `{key}.additive_space` has no place for others: a `margin` there limits them"


class InputCheck(InputTask):
    """Rule `input_check`, new against ESPO-G: the problems of a simulation's raw files."""

    sim_id = SimulationParameter()
    reads_raw = "simulation"
    in_daily = of_hours(Daily)
    out_problems = kept("checks/{domain}/{sim_id}+{domain}_input.csv")
    reads = (
        "domain",
        "custom.ref_period",
        "custom.sim_period",
        *keys_of_raw("simulation", "days_to_fill"),
        "health_checks.flags",
        "health_checks.inputs",
        *_TABLE,
    )

    def look(self) -> None:
        """Raise an error if the simulation's grid does not suit the domain that is cut out.

        Of the first file, only the coordinates are read. The table has files that cannot be opened.
        """
        config, conserved = self.context.config, self.context.config.regrid.conserved
        # The table does not depend on how data are regridded.
        if not conserved and self.complete() and not self.stale(files=False):
            return
        asset = asset_with(self.raw(), conserved)
        box, where = config.domain.arguments(), f"`{config.name_of('domain')}`: {asset.path}"
        try:
            grid = open_grid(asset, dict(config.extraction.simulation.extract_dataset.xr_open_kwargs))
        # A backend may raise nearly anything on a damaged file.
        except Exception:
            return
        try:
            cut = subset_box(grid, box)
        except DataError as error:
            raise DataError(f"{where}: {error} Correct the bounds, or exclude the simulation.") from error
        sizes = cut[["lat", "lon"]].sizes
        if min(sizes.values()) < 2:
            raise DataError(f"{where} has {dict(sizes)} cells there; expected 2 or more each way.")
        self._check_cells(cut, asset.path)
        # This method does not extrapolate.
        beyond = beyond_the_grid(grid, box | ({"tile_buffer": 0} if "conservative" in conserved.values() else {}))
        if beyond and self.action("extrapolation", "") == "fail":
            raise DataError(
                f"{where}: {beyond}. Correct the bounds, or exclude the simulation. "
                "`extraction.on_input_problem.extrapolation: warn` lets it through."
            )

    def _check_cells(self, grid: xr.Dataset, path: object) -> None:
        """Raise `DataError` if conservative regridding lacks right bounds of cells, or a cut at the domain's edge."""
        config = self.context.config
        for name, method in config.regrid.conserved.items():
            key = f"`{config.name_of(f'regrid.regrid_method.{name}')}: {method}`"
            if method == "conservative" and self.context.is_regional(self.sim_id):
                raise DataError(
                    f"{key} would give too little at the edges of {self.sim_id}, whose grid ({path}) covers a part of "
                    "the domain; expected conservative_normed or bilinear, or exclude the simulation."
                )
            if grid["lat"].ndim == 2 and "lat_bounds" not in grid:
                raise DataError(
                    f"{key} needs the corners of cells, and {path} has 2-D lat and lon without them; expected "
                    "variables (y, x, 4) that the attributes `bounds` of lat and lon name. Add them, regrid it "
                    "bilinearly, or exclude the simulation."
                )
            try:
                cells_of(horizontal_of(grid.set_coords([one for one in BOUNDS if one in grid]), "source").grid)
            except DataError as error:
                raise DataError(
                    f"{key}: in {path}, {error}. Correct or remove them (cells of 1-D lat and lon then end half-way "
                    "between centres), regrid it bilinearly, or exclude the simulation."
                ) from error

    def action(self, problem: str, variable: str) -> str:
        """Return what a kind of problem does; impossible values of a variable that will be repaired are a warning."""
        repaired = self.context.config.extraction.simulation.repaired(self.sim_id)
        if problem == "impossible_values" and variable in repaired:
            return "warn"
        return super().action(problem, variable)

    def problems(self) -> list[Problem]:
        """Examine the part that `Extract` will read."""
        config = self.context.config
        examined = functools.partial(self.examined, self.days(), config.extraction.simulation, regions=[config.domain])
        return list(dict.fromkeys(problem for period in config.custom.stretches for problem in examined(period)))


class RefInputCheck(InputTask):
    """Rule `ref_input_check`, new against ESPO-G: the problems of the reference's raw files."""

    reads_raw = "reference"
    in_daily = of_hours(RefDaily)
    out_problems = kept("checks/{domain}/{ref_source}+{domain}_input.csv")
    reads = (
        "custom.ref_period",
        *keys_of_raw("reference", "days_to_fill", "extract_dataset.mask"),
        "health_checks.flags",
        "health_checks.inputs",
        *_TABLE,
    )

    def reading(self) -> list[str]:
        """Return, too, the key of the boxes that contain the pieces."""
        boxes, *_ = self.context.production.pieces.keys()
        return [*super().reading(), boxes.removesuffix(".{piece}")]

    def problems(self) -> list[Problem]:
        """Examine the part that `RefDefault` will read for all pieces."""
        config = self.context.config
        run, extraction = self.context, config.extraction.reference
        masked = (lambda ds: run.masked(ds, self.days())[0]) if extraction.extract_dataset.mask else None
        boxes = dict.fromkeys(partition.box_of(run, name) for name in partition.pieces(run))
        return self.examined(self.days(), extraction, config.custom.ref_period, boxes, run.mask_variable, masked)


def _row(problem: Problem, action: str) -> dict[str, str]:
    told = {"action": action, "problem": problem.kind, "count": str(problem.count)}
    told |= {name: getattr(problem, name) for name in ("variable", "file", "day")}
    numbers = ((name, getattr(problem, name)) for name in ("lat", "lon", "value"))
    told |= {name: "" if number is None else f"{number:.6g}" for name, number in numbers}
    return told | {"message": " ".join(problem.message.split())}


def told(rows: Iterable[store.Row], of: str) -> dict[str, str]:
    """Return the attribute that tells of problems with the values of raw files; none if there are no such problems."""
    counts: Counter[tuple[str, str]] = Counter()
    for row in rows:
        if INPUT_PROBLEMS[row["problem"]].counts != "files":
            counts[row["problem"], row["variable"]] += int(row["count"])
    listed = ", ".join(
        f"{problem} of {variable} ({count} {INPUT_PROBLEMS[problem].counts})"
        for (problem, variable), count in counts.items()
    )
    return {LET_THROUGH: f"{of}: {listed}"} if listed else {}


def render(rows: Sequence[Mapping[str, str]]) -> str:
    """Return the first rows of a table as lines for people."""
    lines = []
    for row in rows[:SHOWN]:
        cell = f"cell {row['lat'] or '?'} °N {row['lon'] or '?'} °E" if row["lat"] or row["lon"] else ""
        value = f"value {row['value']}" if row["value"] else ""
        where = ", ".join(part for part in (row["variable"], row["file"], row["day"], cell, value) if part)
        lines.append(f"  {row['problem']} ({row['action']}): {where}: {row['message']}")
    return "\n".join(lines + ([f"  and {len(rows) - SHOWN} more"] if len(rows) > SHOWN else []))
