"""The default target: everything that a production publishes."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import luigi

from espo_luigi.driver.run.run import each_after_its_needs
from espo_luigi.driver.settings.espo import give_parameter
from espo_luigi.errors import ParameterError
from espo_luigi.tasks.context import context
from espo_luigi.tasks.products import products
from espo_luigi.tasks.publish import publish
from espo_luigi.tasks.report import Report
from espo_luigi.tasks.selection import NAMES, Selection, blocked, widened
from espo_luigi.tasks.settings import settings

logger = logging.getLogger(__name__)


class All(luigi.WrapperTask):
    """Rule `all`: health checks, diagnostics and archives of every simulation in the catalogue, and the report.

    Its parameters (``--from``, ``--until``, ``--only``, ``--sim-id``, ``--region``) narrow it to a part (`selection`).
    """

    def __repr__(self) -> str:
        """Return its name, and the part that is asked for."""
        given = {name: getattr(self, name) for name in NAMES if getattr(self, name)}
        return " ".join(["All", *(f"{name}={value}" for name, value in given.items())])

    @property
    def selection(self) -> Selection:
        """The part of it that is asked for."""
        return Selection.of({name: getattr(self, name) for name in NAMES})

    @property
    def covers_everything(self) -> bool:
        """Whether its run may delete temporary stores: whatever may need them is in its graph."""
        return not self.selection

    def requires(self) -> list[luigi.Task]:
        """Return the last task of every chain; of a part, without those that would need what is before it."""
        return self._runnable if self.selection else list(self.everything())

    @functools.cached_property
    def _runnable(self) -> list[luigi.Task]:
        ends = self.ends
        graph = each_after_its_needs(ends)
        held_up = blocked(ends, graph, self.selection.allowed(graph))
        runnable = [task for task in ends if task.task_id not in held_up]
        if held_up and not runnable:
            raise ParameterError(f"nothing of this part can run: {next(iter(held_up.values()))}")
        for reason in dict.fromkeys(held_up[task.task_id] for task in ends if task.task_id in held_up):
            logger.warning("left out: %s", reason)
        return runnable

    def words_to_run(self, words: Sequence[str], rules: set[str]) -> list[str]:
        """Return the words of a command that asked for this, changed where they keep one of `rules` from running."""
        allowed = self.selection.allowed(each_after_its_needs(self.everything())) if self.selection else None
        return list(words) if allowed is None or rules <= allowed else widened(words)

    @functools.cached_property
    def ends(self) -> list[luigi.Task]:
        """The last task of every chain of the part that is asked for."""
        return self.selection.ends(self.everything()) if self.selection else list(self.everything())

    def everything(self) -> Iterator[luigi.Task]:
        """Yield the last task of every chain."""
        yield from products()
        if settings().report:
            yield Report()

    @property
    def results_folder(self) -> Path:
        """Where all that is kept lies."""
        return context().config.paths.final

    def run(self) -> None:
        """Publish the products, if that is wanted, and log where the results are."""
        if settings().publish:
            logger.info("%s", publish())
        logger.info("Everything is done; the results are in %s", self.results_folder)


_DESCRIPTIONS = {
    "from": "run this rule and those after it only; what they need from before has to be there",
    "until": "run until this rule",
    "only": "run this rule only",
    "sim_id": "run these simulations only, separated by commas",
    "region": "run what is made of these regions only, separated by commas",
}
for _name, _description in _DESCRIPTIONS.items():  # `from` is no name that a class can give
    give_parameter(All, _name, luigi.Parameter(default="", description=_description))
