"""The default target: everything that a production publishes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import luigi

from espo_luigi.tasks.context import context
from espo_luigi.tasks.products import products
from espo_luigi.tasks.report import Report
from espo_luigi.tasks.settings import settings

logger = logging.getLogger(__name__)


class All(luigi.WrapperTask):
    """Rule `all`: health checks, diagnostics and archives of every simulation in the catalogue, and the report."""

    # Its run is the one that deletes temporary stores: whatever may need them is in its graph.
    covers_everything = True

    def requires(self) -> Iterator[luigi.Task]:
        """Yield the last task of every chain."""
        yield from products()
        if settings().report:
            yield Report()

    @property
    def results_folder(self) -> Path:
        """Where all that is kept lies."""
        return context().config.paths.final

    def run(self) -> None:
        """Say where the results are."""
        logger.info("Everything is done; the results are in %s", self.results_folder)
