"""The same graph, wired by hand as a sciluigi workflow: a start for people who want to wire the rules differently."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import luigi

from espo_luigi.tasks import partition
from espo_luigi.tasks.adjustment import Adjust, CleanUp, Train
from espo_luigi.tasks.base import PieceParameter, SimulationParameter
from espo_luigi.tasks.context import context, settings
from espo_luigi.tasks.inputs import InputCheck, RefInputCheck
from espo_luigi.tasks.ports import WorkflowTask
from espo_luigi.tasks.product import FinalZarr, Move
from espo_luigi.tasks.reference import RefDefault, ReferenceCalendar
from espo_luigi.tasks.simulation import Extract, Rechunk, Regrid


class RegionWorkflow(WorkflowTask):
    """A simulation over a piece of the land, from the raw files to the archives, every port wired explicitly.

    sciluigi writes a log and an audit file of each run, below ``[espo] workdir``. Their names carry the time, so that
    the workflow itself runs each time; its rules do not.
    """

    sim_id, piece = SimulationParameter(), PieceParameter()

    def workflow(self) -> list[luigi.Task]:
        """Create the tasks and wire their ports."""
        reference, extracted = RefDefault(piece=self.piece), Extract(sim_id=self.sim_id)
        reference.in_checked = RefInputCheck().out_problems
        extracted.in_checked = InputCheck(sim_id=self.sim_id).out_problems
        calendars = {name: ReferenceCalendar(piece=self.piece, calendar=name) for name in ("noleap", "360_day")}
        for converted in calendars.values():
            converted.in_default = reference.out_reference
        regridded = Regrid(sim_id=self.sim_id, piece=self.piece)
        regridded.in_reference = calendars["noleap"].out_reference
        regridded.in_extracted = extracted.out_extracted
        rechunked = Rechunk(sim_id=self.sim_id, piece=self.piece)
        rechunked.in_regridded = regridded.out_regridded
        cleaned = CleanUp(sim_id=self.sim_id, piece=self.piece)
        cleaned.in_adjusted = [
            self._adjusted(name, calendars, rechunked) for name in context().config.biasadjust.variables
        ]
        cleaned.in_grid = reference.out_grid
        final = FinalZarr(sim_id=self.sim_id, piece=self.piece)
        final.in_cleaned_up = cleaned.out_cleaned_up
        archives = Move(sim_id=self.sim_id, piece=self.piece)
        archives.in_scenario, archives.in_regchunked = final.out_scenario, rechunked.out_regchunked
        return [archives]

    def _adjusted(self, var: str, calendars: dict[str, ReferenceCalendar], rechunked: Rechunk) -> Any:
        trained = Train(pool=partition.pool_of(context(), self.sim_id), piece=self.piece, var=var)
        trained.in_noleap, trained.in_day360 = calendars["noleap"].out_reference, calendars["360_day"].out_reference
        trained.in_regchunked = [rechunked.out_regchunked]
        adjusted = Adjust(pool=partition.pool_of(context(), self.sim_id), piece=self.piece, var=var)
        adjusted.in_training, adjusted.in_regchunked = trained.out_training, [rechunked.out_regchunked]
        return adjusted.out_adjusted

    def get_wflogpath(self) -> str:
        """Return where the workflow's log goes."""
        return self._below_workdir(super().get_wflogpath())

    def get_auditlogpath(self) -> str:
        """Return where the workflow's audit file goes."""
        return self._below_workdir(super().get_auditlogpath())

    def get_auditdirpath(self) -> str:
        """Return where the tasks' audit files go."""
        return self._below_workdir(super().get_auditdirpath())

    def _below_workdir(self, path: str) -> str:
        inside = Path(path) if Path(path).is_absolute() else Path(settings().workdir).absolute() / path
        inside.parent.mkdir(parents=True, exist_ok=True)
        return str(inside)
