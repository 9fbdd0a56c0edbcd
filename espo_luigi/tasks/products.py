"""What a production publishes: the last task of every chain."""

from __future__ import annotations

from collections.abc import Iterator

from espo_luigi.tasks.base import EspoTask
from espo_luigi.tasks.context import context
from espo_luigi.tasks.diagnostics import MoveDiag, MoveRef
from espo_luigi.tasks.product import HealthChecks, Move
from espo_luigi.tasks.stage2024 import LEVELS, ConcatDiagRefProp, ConcatenationDiag, DiagImprovedEtHeatmap


def products() -> Iterator[EspoTask]:
    """Yield the tasks of health checks, diagnostics and archives of every simulation that the catalogue holds."""
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
        yield from _stage_2024()


def _stage_2024() -> Iterator[EspoTask]:
    yield ConcatDiagRefProp()
    for sim_id in context().simulations:
        for level in LEVELS:
            yield ConcatenationDiag(sim_id=sim_id, level=level)
        for region in context().config.custom.regions:
            yield DiagImprovedEtHeatmap(sim_id=sim_id, region=region)
