"""The rule of the explorer: a page of maps and plumes, with its data in a folder, from the stores of a run."""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Iterator
from typing import Any

import luigi

from espo_luigi.explorer.make import MOST_PLUME_BYTES, check_replaceable, is_whole, what_fits, write_explorer
from espo_luigi.explorer.sources import REFERENCE, ExplorerView, Source
from espo_luigi.jobs.resources import Resources
from espo_luigi.tasks.base import EspoTask
from espo_luigi.tasks.context import RunContext
from espo_luigi.tasks.ensembles import ALL, Regions, ends_of_ensembles, experiment_of, members, regions
from espo_luigi.tasks.outcomes import (
    Climatology,
    Delta,
    Indicators,
    ReferenceIndicators,
    WarmingLevels,
    chosen,
    datasets,
)
from espo_luigi.tasks.ports import ZarrInfo, kept
from espo_luigi.tasks.report import EXPLORER, FlagDetails, kept_by

logger = logging.getLogger(__name__)
_RULES = {"indicators": Indicators, "climatology": Climatology, "delta": Delta, "warming_levels": WarmingLevels}
_LEFT_OUT = {"statistics": "statistics, without single simulations", "": "regions and stations only (`spatial_mean`)"}


class Explorer(EspoTask):
    """Rule `explorer`, new against ESPO-G: a page with maps, and the future of each place."""

    resources_default = Resources(n_workers=1, cpus_per_task=4, memory="16GB", time="1000")
    uses_dask = False
    out_page = kept(EXPLORER)
    is_about_all = True
    reads = ("spatial_mean", "indicators.datasets")

    @functools.cached_property
    def _needs(self) -> list[luigi.Task]:
        flags = [FlagDetails(sim_id=sim_id) for sim_id in self.context.simulations if self.context.config.flagging]
        return [*dict.fromkeys(task for _, tasks in _sources(self.context) for task in tasks), *flags]

    def requires(self) -> list[luigi.Task]:
        """Return the tasks of the stores that it shows."""
        return self._needs

    def input_infos(self) -> list[ZarrInfo]:
        """Return these stores."""
        return [info for task in self.requires() for info in kept_by(task)]

    def complete(self) -> bool:
        """Return True if the page is complete, and its folder was made with it."""
        return super().complete() and is_whole(self.out_page().path)

    def check(self) -> None:
        """Raise an error, too, if page or folder would replace what is not ours."""
        super().check()
        if not self.complete():
            check_replaceable(self.out_page().path)

    def look(self) -> None:
        """Warn of plumes that are left out, as those of all cells would take too many bytes."""
        run, shapes = self.context, list[tuple[int, list[Source]]]()
        spans = run.needed("indicators").periods or run.config.custom.stretches
        years = sum(int(last) - int(first) + 1 for first, last in spans)
        for freq, indicators in chosen(run).items():
            of = [one for one, _ in _sources(run) if one.product == "indicators" and one.freq == freq]
            shapes += [(years * {"Y": 1, "Q": 4, "M": 12}[freq[0]], of)] * len(indicators)
        if left := _LEFT_OUT.get(what_fits(run.land_cells, shapes)):
            most = f"all plumes of {run.land_cells:,} cells would take more than {MOST_PLUME_BYTES / 1e6:.0f} MB"
            logger.warning("The explorer will have plumes of %s: %s.", left, most)

    def work(self) -> None:
        """Write the page and its folder."""
        run, flags = self.context, [task for task in self.requires() if isinstance(task, FlagDetails)]
        attributes = run.config.attributes.get("global", {})
        view = ExplorerView(
            title=str(attributes.get("title") or attributes.get("dataset") or f"Scenarios of {run.fields['domain']}"),
            domain=run.fields["domain"],
            reference=run.config.reference_source,
            sources=[source for source, _ in _sources(run)],
            regions=regions(run) if run.config.spatial_mean else {},
            flags=[task.out_maps().path for task in flags],
        )
        write_explorer(view, self.out_page().path, self.marker())


def _sources(run: RunContext) -> Iterator[tuple[Source, list[EspoTask]]]:
    """What is shown, with the tasks that make its stores: ensembles, or else single simulations; the reference."""
    dataset = "scenario" if "scenario" in datasets(run) else datasets(run)[0]
    ends = [task for task in ends_of_ensembles(run) if task.dataset == dataset and task.product in _RULES]
    over = {
        (task.freq, task.experiment): task
        for task in ends
        if isinstance(task, Regions) and task.product == "indicators"
    }
    if run.config.ensembles:
        together = [task for task in ends if not isinstance(task, Regions)]
        groups: Any = [
            (task.experiment, task.product, task.freq, members(run, task.experiment), task) for task in together
        ]
    else:
        groups = _of_simulations(run)
    for scenario, product, freq, sim_ids, ensemble in groups:
        is_yearly = product == "indicators"
        if is_yearly and scenario == ALL:  # made for the partition of variance
            continue
        rule: Any = _RULES[product]
        own = [rule(freq=freq, dataset=dataset, sim_id=one) for one in sim_ids if is_yearly or not ensemble]
        stores = {task.sim_id: getattr(task, f"out_{product}")().path for task in own}
        experiment = scenario if ensemble else experiment_of(run.simulation(sim_ids[0]).columns)
        of_regions = over.get((freq, experiment)) if is_yearly else None
        paths = ensemble and ensemble.out_ensemble().path, of_regions and of_regions.out_table().path
        yield Source(scenario, product, freq, stores, *paths), [*filter(None, (ensemble, *own, of_regions))]
    for freq in chosen(run) if "reference" in run.needed("indicators").datasets else ():
        reference = ReferenceIndicators(freq=freq)
        yield Source(REFERENCE, "indicators", freq, {REFERENCE: reference.out_indicators().path}), [reference]


def _of_simulations(run: RunContext) -> Iterator[tuple[str, str, str, list[str], None]]:
    """Each simulation by itself, under the name of its experiment if no other is of that."""
    experiments = {sim_id: experiment_of(match.columns) for sim_id, match in run.simulations.items()}
    asked = {"delta": run.config.aggregate.compute_deltas, "warming_levels": run.config.warming_levels}
    products = [product for product in _RULES if asked.get(product, True) is not None]
    for (sim_id, experiment), freq, product in itertools.product(experiments.items(), chosen(run), products):
        is_only = [*experiments.values()].count(experiment) == 1
        yield experiment if is_only else sim_id, product, freq, [sim_id], None
