"""The production of ESPO-G of 2024: boxes of land, each simulation alone, tasmin from tasmax and the diurnal range."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import xarray as xr

from espo_luigi.config import RunConfig
from espo_luigi.science.derivations import NEEDED_FOR, TEMPERATURES
from espo_luigi.science.finalize.scenario import Treatment
from espo_luigi.tasks import partition
from espo_luigi.tasks.base import EspoTask
from espo_luigi.tasks.context import RunContext
from espo_luigi.tasks.diagnostics import (
    LEVELS,
    ConcatDiagRefProp,
    ConcatenationDiag,
    DiagImprovedEtHeatmap,
    DiagMeasuresImprovement,
    OffDiagRefProp,
    OffDiagScenPropMeas,
    OffDiagSimPropMeas,
)
from espo_luigi.tasks.ports import ZarrInfo
from espo_luigi.tasks.product import CleanUp, ConcatenationFinal, HealthChecks, Move
from espo_luigi.tasks.production import Boxes, Production
from espo_luigi.tasks.reference import RefDefault
from espo_luigi.tasks.simulation import Regrid


class Espo2024(Production):
    """Pools of one, boxes, and the paths that the rules' classes have."""

    name = costs = "espo-2024"
    final_rule = ConcatenationFinal
    drs = "espo-g6"
    attributes = "clean_up.xscen_clean_up.add_attrs.global"

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self.pieces = Boxes(config.custom.regions)
        self.summarised = {
            "prop": (OffDiagRefProp, "out_prop"),
            "reference": (RefDefault, "out_reference"),
            "regridded": (Move if "regridded" in config.keep else Regrid, "out_regridded"),
        }

    def ends(self, run: RunContext) -> Iterator[EspoTask]:
        """Yield diagnostics of the domains, checks and what `keep` names; and those of the section `diagnostics`."""
        for domain in run.domains:
            yield OffDiagRefProp(diag_domain=domain)
        for sim_id in run.simulations:
            yield HealthChecks(sim_id=sim_id)
            for domain in run.domains:
                for rule in (OffDiagSimPropMeas, OffDiagScenPropMeas, DiagMeasuresImprovement):
                    yield rule(sim_id=sim_id, diag_domain=domain)
            for piece in partition.pieces(run) if run.config.keep else ():
                yield Move(sim_id=sim_id, piece=piece)
        if run.config.diagnostics is None:
            return
        yield ConcatDiagRefProp()
        for sim_id in run.simulations:
            for level in LEVELS:
                yield ConcatenationDiag(sim_id=sim_id, level=level)
            for piece in partition.pieces(run):
                yield DiagImprovedEtHeatmap(sim_id=sim_id, piece=piece)

    def archives(self, run: RunContext, sim_id: str) -> dict[str, ZarrInfo]:
        """Return the only archive of a simulation, without the range that tasmin is made of."""
        how = run.config.consistency
        inner = {*NEEDED_FOR[how]} - {*TEMPERATURES} if how else set()
        first = [var for var in TEMPERATURES if var in run.config.published]
        names = dict.fromkeys([*first, *(var for var in run.config.published if var not in inner)])
        return dict.fromkeys(names, ConcatenationFinal(sim_id=sim_id).out_final())

    def stores_on_the_way(self, sim_id: str, piece: str) -> dict[str, list[ZarrInfo]]:
        """Return the regridded series, and the piece's product."""
        names = {"sim_id": sim_id, "piece": piece}
        move = Move(**names)
        return {
            "regridding": [Regrid(**names).out_regridded(), move.out_regridded()],
            "clean-up": [CleanUp(**names).out_cleaned_up(), move.out_scenario()],
        }

    def needed(self, only: Sequence[str] = ()) -> list[str]:
        """Return, too, what the tasmin of masks (`clean_up.problems`) is made of."""
        return super().needed([*only, "tasmin"] if only and self.config.clean_up.problems else only)

    def product_of_cell(
        self, names: Mapping[str, str], grid: xr.Dataset, adjusted: Mapping[str, xr.Dataset], only: Sequence[str] = ()
    ) -> xr.Dataset:
        """Return what `CleanUp` makes of the cell."""
        given = [adjusted[var] for var in self.config.biasadjust.variables if var in adjusted]
        return CleanUp(sim_id=names["sim_id"], piece=names["piece"]).compute(given, grid)

    def treatment(self, var: str = "") -> Treatment:
        """Return the rounding of all variables, the bounds of derived ones, and the attributes."""
        asked = self.config.clean_up.xscen_clean_up.arguments("add_attrs")
        return Treatment(**asked, clip_var=self.bounds_of_derived, add_attrs=self.config.attributes)
