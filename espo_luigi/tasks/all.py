"""The default target: everything that a production publishes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import luigi

from espo_luigi.tasks.context import context
from espo_luigi.tasks.diagnostics import MoveDiag, MoveRef
from espo_luigi.tasks.product import HealthChecks, Move
from espo_luigi.tasks.stage2024 import LEVELS, ConcatDiagRefProp, ConcatenationDiag, DiagImprovedEtHeatmap

logger = logging.getLogger(__name__)


class All(luigi.WrapperTask):
    """Rule `all`: health checks, diagnostics and archives of every simulation that the catalogue holds."""

    # Its run is the one that deletes temporary stores: whatever may need them is in its graph.
    covers_everything = True

    def requires(self) -> Iterator[luigi.Task]:
        """Yield the last task of every chain."""
        config = context().config
        domains = list(config.off_diag.domains) if config.off_diag else []
        for domain in domains:
            yield MoveRef(diag_domain=domain)
        for sim_id in context().simulations:
            yield HealthChecks(sim_id=sim_id)
            for domain in domains:
                yield MoveDiag(sim_id=sim_id, diag_domain=domain)
            for region in config.custom.regions:
                yield Move(sim_id=sim_id, region=region)
        if config.diagnostics is not None:
            yield from self._stage_2024()

    @property
    def results_folder(self) -> Path:
        """Where all that is kept lies."""
        return context().config.paths.final

    def run(self) -> None:
        """Say where the results are."""
        logger.info("Everything is done; the results are in %s", self.results_folder)

    def _stage_2024(self) -> Iterator[luigi.Task]:
        yield ConcatDiagRefProp()
        for sim_id in context().simulations:
            for level in LEVELS:
                yield ConcatenationDiag(sim_id=sim_id, level=level)
            for region in context().config.custom.regions:
                yield DiagImprovedEtHeatmap(sim_id=sim_id, region=region)
