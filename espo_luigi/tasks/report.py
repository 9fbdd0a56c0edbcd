"""The rules of the report: summaries of each simulation, made where its data are, and the page that shows them all."""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import luigi
import xarray as xr

from espo_luigi import store
from espo_luigi.driver.graph import Graph
from espo_luigi.driver.settings.espo import power
from espo_luigi.jobs.resources import Resources
from espo_luigi.machine import machine_cpus
from espo_luigi.methods import blocks
from espo_luigi.methods.base import DEFAULT_METHOD
from espo_luigi.methods.usual import usual_settings
from espo_luigi.report.reading import Diagnosed, Made, RunView, Together
from espo_luigi.science import display, grid, stack
from espo_luigi.science.attributes import INSERTED_DAYS, REPAIRS
from espo_luigi.science.chunks import REALIZATION, join, rechunk
from espo_luigi.science.derivations import with_lacking
from espo_luigi.science.diagnose import added_value, climate_aspects, flags, summaries
from espo_luigi.science.diagnose.statistics import Days
from espo_luigi.science.finalize import consistency
from espo_luigi.science.finalize import scenario as finalize
from espo_luigi.science.seeds import cell_generator
from espo_luigi.science.variables import variable
from espo_luigi.tasks.adjustment import every_member, jitter_of_range
from espo_luigi.tasks.base import (
    DiagDomainParameter,
    EspoTask,
    PoolParameter,
    SimulationParameter,
    provenance,
)
from espo_luigi.tasks.context import RunContext, context, settings
from espo_luigi.tasks.diagnostics import (
    Diag,
    DiagMeasuresImprovement,
    DiagRef,
    OffDiagRefProp,
    OffDiagScenPropMeas,
    OffDiagSimPropMeas,
    hosting_piece,
)
from espo_luigi.tasks.ensembles import EnsembleTask, regions
from espo_luigi.tasks.inputs import InputCheck, RefInputCheck
from espo_luigi.tasks.outcomes import ReferenceIndicators, chosen, datasets
from espo_luigi.tasks.ports import ZarrInfo, kept, upstream
from espo_luigi.tasks.product import (
    ConcatClean,
    ConcatCleanPreswap,
    HealthChecks,
    Move,
    final_archives,
    product_chunks,
    rows_of_chunks,
)
from espo_luigi.tasks.production import summarised
from espo_luigi.tasks.publish import ends_of_run
from espo_luigi.tasks.reference import MakeRef, RefDefault
from espo_luigi.tasks.simulation import Regrid

# How many cells of a domain are described day by day, and of how many the years are compared.
SAMPLE_CELLS = 16
COMPARED_CELLS = 64
PERIODS_OF_CHANGE = ((1991, 2020), (2071, 2100))
OF_THE_TABLE = tuple(
    f"variables.*.{key}" for key in ("difference", "display_units", "kind", "long_name", "units", "wet")
)
# The page that `Explorer` makes, to which this one leads.
EXPLORER = "report/explore.html"
FLAG_COLUMNS = ("variable", "flag", "raised", "count", "worst", "units", "day", "lat", "lon", "meaning")


class Summaries(EspoTask):
    """Rule `summaries`, new against ESPO-G: statistics of a domain's daily series, before and after adjustment.

    Also sums the years, for the aspects of a climate. Each block of reference, raw simulation and product is read once.
    """

    sim_id, diag_domain = SimulationParameter(), DiagDomainParameter()
    resources_default = Resources(n_workers=1, cpus_per_task=4, memory="16GB", time="1000")
    in_prop = summarised("prop", (OffDiagRefProp, Diag))
    in_reference = summarised("reference", (RefDefault, MakeRef), piece=hosting_piece("ref"))
    in_regridded = summarised("regridded", (Move, Regrid), piece=hosting_piece("sim"))
    in_final = final_archives(lambda task: task.context.config.published)
    out_summary = kept("report/{diag_domain}/{sim_id}+{diag_domain}+summary.zarr")
    out_sums = kept("report/{diag_domain}/{sim_id}+{diag_domain}+yearly-sums.zarr")
    reads = (
        *OF_THE_TABLE,
        "clean_up.derive",
        "custom.ref_period",
        "off-diag.steps.ref.domain.{diag_domain}",
        "off-diag.steps.sim.domain.{diag_domain}",
    )

    def reading(self) -> list[str]:
        """Return, too, what decides about groups of variables, where there are any."""
        groups = [f"biasadjust.variables.{name}.variables" for name in self.context.config.biasadjust.together]
        usual = ("custom.maximal_calendar", *(f"variables.*.{key}" for key in ("bounds", "jitter", "transformation")))
        return [*super().reading(), *groups, *(usual if groups else ())]

    @property
    def period(self) -> tuple[int, int]:
        """The first and the last year of the calibration period."""
        first, last = map(int, self.context.config.custom.ref_period)
        return first, last

    def compute(
        self,
        prop: xr.Dataset,
        reference: xr.Dataset | list[xr.Dataset],
        regridded: xr.Dataset | list[xr.Dataset],
        final: xr.Dataset | list[xr.Dataset],
    ) -> dict[str, xr.Dataset]:
        """Choose cells, and describe the sources, which are lazy and in display units."""
        table, derived = self.context.config.table, self.context.config.derived
        sources = {}
        for name, parts in {"reference": reference, "raw": regridded}.items():
            pieces = parts if isinstance(parts, list) else [parts]
            whole: xr.Dataset = join(pieces, stack.STACKED_DIM, what="The pieces") if len(pieces) > 1 else pieces[0]
            sources[name] = with_lacking(whole, derived, table)
        sources["adjusted"] = finalize.merge_products(final)
        shared = [name for name in self.context.config.published if all(name in ds for ds in sources.values())]
        return self.describe(
            next(iter(prop.data_vars.values())),
            {name: display.in_display_units(ds, shared, table=table) for name, ds in sources.items()},
        )

    def describe(self, field: xr.DataArray, sources: Mapping[str, xr.Dataset]) -> dict[str, xr.Dataset]:
        """Return the outputs; `field` has values in the domain's cells.

        In memory are the whole series of some cells, and the calibration period of more cells and their neighbours.
        """
        sampled, compared = (grid.evenly(field, count) for count in (SAMPLE_CELLS, COMPARED_CELLS))
        near = grid.beside(field, compared)
        read = {}
        for name, ds in sources.items():
            Days.of(ds).require(self.period, name)
            inside = ds.sel(time=slice(*map(str, self.period)))
            read[name] = grid.read_together(
                daily=grid.at_cells(ds, sampled),
                here=grid.at_cells(inside, compared),
                beside=grid.at_neighbours(inside, compared, near),
            )
        daily, here, beside = ({name: of[part] for name, of in read.items()} for part in ("daily", "here", "beside"))
        summary = summaries.compare(
            daily, period=self.period, periods=PERIODS_OF_CHANGE, table=self.context.config.table
        )
        return {
            "summary": summary.assign_attrs(cells=_cells_of(sampled)),
            "sums": self._sums(here, beside).assign_attrs(cells=_cells_of(compared)),
        }

    def _sums(self, here: Mapping[str, xr.Dataset], beside: Mapping[str, xr.Dataset]) -> xr.Dataset:
        config = self.context.config
        together = list(config.biasadjust.together.values())
        if together:
            here, beside = self._with_usual(here), self._with_usual(beside)
        sums = climate_aspects.yearly_sums(here, beside, period=self.period, table=config.table, together=together)
        if groups := [group for group in together if {*group} <= {*here.get(climate_aspects.USUAL, ())}]:
            random = cell_generator(f"{self.sim_id}+{self.diag_domain}", "years", 0)
            sums = sums.merge(climate_aspects.energies(here, groups=groups, random=random))
        return sums

    def _with_usual(self, sources: Mapping[str, xr.Dataset]) -> dict[str, xr.Dataset]:
        """Return the period's days; and of variables that are adjusted together, what each by itself would become."""
        period, config, usual = self.period, self.context.config, dict[str, xr.DataArray]()
        days = {name: climate_aspects.complete(name, ds, period) for name, ds in sources.items()}
        shared: Any = {"seed": f"{self.sim_id}+usual", "maximal_calendar": config.custom.maximal_calendar}
        for name in config.biasadjust.variables_of(config.biasadjust.together):
            if all(name in ds for ds in days.values()):
                how = usual_settings(variable(name, config.table), DEFAULT_METHOD, pooled=False)
                known, raw = (days[source][name].rename(cell=stack.STACKED_DIM) for source in ("reference", "raw"))
                trained = blocks.train(known, raw, period=period, **how["training_args"], **shared)
                adjusting = how["adjusting_args"] | jitter_of_range(name, config.table)
                usual[name] = blocks.adjust(raw, trained, periods=[period], **adjusting, **shared)
        # Products may lack all variables of the groups.
        made = {climate_aspects.USUAL: xr.Dataset(usual).rename({stack.STACKED_DIM: "cell"})} if usual else {}
        return {**days, **made}


class NotCalibrated(EspoTask):
    """Rule `not_calibrated`, new against ESPO-G: whether a pool is nearer to the reference now, beyond noise."""

    pool, diag_domain = PoolParameter(), DiagDomainParameter()
    resources_default = Resources(n_workers=1, cpus_per_task=1, memory="8GB", time="1000")
    in_sums = upstream(Summaries, "out_sums", sim_id=every_member)
    out_compared = kept("report/{diag_domain}/{pool}+{diag_domain}+not-calibrated.zarr")
    reads = ("biasadjust.variables.*", *OF_THE_TABLE)

    def reading(self) -> list[str]:
        """Return, too, the members of each group of variables."""
        variables = self.context.config.biasadjust.variables
        methods = [f"biasadjust.variables.{name}.method" for name in self.context.config.biasadjust.together]
        return [*super().reading(), *(f"biasadjust.variables.{name}.variables" for name in variables), *methods]

    def compute(self, sums: list[xr.Dataset]) -> xr.Dataset:
        """Compare the mean of the members."""
        config = self.context.config
        together = config.biasadjust.together
        compared = added_value.compare_aspects(
            sums,
            adjusted=list(config.biasadjust.adjusted),
            seed=f"{self.pool}+{self.diag_domain}",
            known=climate_aspects.aspects_of(config.published, config.table, together.values()),
        )
        if "energy" not in sums[0]:
            return compared
        energy = join((one[["energy", "energy_noise"]] for one in sums), REALIZATION).mean(REALIZATION)
        how = [f"{', '.join(names)} by {config.biasadjust.variables[key].name}" for key, names in together.items()]
        return compared.merge(energy).assign_attrs(together="; ".join(how))


class FlagDetails(EspoTask):
    """Rule `flag_details`, new against ESPO-G: how often each flag of the health checks is true, and where most.

    With `flags`, also maps of the days on which each flag of the product's archive of flags is raised.
    """

    sim_id = SimulationParameter()
    resources_default = Resources(n_workers=1, cpus_per_task=4, memory="16GB", time="1000")
    in_final = final_archives(lambda task: task.context.config.published)
    in_checks = upstream(HealthChecks, "out_checks")
    in_bits = final_archives(
        lambda task: task.context.config.published,
        "out_flags",
        sim_id=lambda task: [] if task.context.config.flagging is None else task.sim_id,
    )
    out_flags = kept("checks/{domain}/{sim_id}+{domain}_flags.csv")
    out_maps = kept("report/{domain}/{sim_id}+{domain}+flags.zarr", of_flags=True)
    reads = ("health_checks.flags",)

    def work(self) -> None:
        """Write the table, and the maps."""
        final, marker = _products(self.in_final), self.marker()
        details = self.details(final, store.open_store(self.in_checks().path))
        columns = ("scope", *FLAG_COLUMNS) if any(flag.scope for flag in details) else FLAG_COLUMNS
        rows = [{name: _text(value) for name, value in asdict(flag).items() if name in columns} for flag in details]
        store.write_table(columns, rows, self.out_flags().path, marker)
        if self.in_bits != []:
            bits = _products(self.in_bits, cut=False)
            in_blocks = rechunk(bits, rows_of_chunks(product_chunks(self, bits), bits))
            maps = finalize.counts_of_flags(in_blocks, _products(self.in_final, cut=False))
            self.write(maps.assign_attrs(provenance(marker)), self.out_maps().path, marker)

    def details(self, final: xr.Dataset, checks: xr.Dataset) -> list[flags.FlagDetail]:
        """Describe each flag of the checks; computes."""
        raised = {str(name): bool(da) for name, da in checks.data_vars.items()}
        config = self.context.config
        scopes = config.health_checks.arguments().get("scopes")
        return flags.flag_details(final, raised, config.flags, scopes, config.table)


class Inversions(EspoTask):
    """Rule `inversions`, new against ESPO-G: ESPO v2: days with tasmax below tasmin, before and after `Swap`."""

    sim_id = SimulationParameter()
    resources_default = Resources(n_workers=1, cpus_per_task=4, memory="16GB", time="1000")
    in_preswap = upstream(ConcatCleanPreswap, "out_final")
    in_final = upstream(ConcatClean, "out_final", var=lambda task: ["tasmax", "tasmin"])
    out_inversions = kept("report/{domain}/{sim_id}+{domain}+inversions.zarr")

    def compute(self, preswap: xr.Dataset, final: list[xr.Dataset]) -> xr.Dataset:
        """Count both; the attributes have the product's repairs and inserted days."""
        pair = finalize.merge_products(final)
        told = {name: pair.attrs[name] for name in (REPAIRS, INSERTED_DAYS) if name in pair.attrs}
        return consistency.inversions_before_and_after(preswap["dtr"], pair["tasmax"], pair["tasmin"]).assign_attrs(
            told
        )


class Report(EspoTask):
    """Rule `report`, new against ESPO-G: a page about the run, its figures, and the table of improvements."""

    resources_default = Resources(n_workers=1, cpus_per_task=4, memory="16GB", time="1000")
    # Forked processes draw the figures, one process a CPU: matplotlib is not made for threads.
    uses_dask = False
    out_page = kept("report/report.html")
    is_about_all = True
    reads = ("custom.ref_period",)

    @functools.cached_property
    def _shown(self) -> list[luigi.Task]:
        return [*ends_of_run(), *summary_tasks()]

    def requires(self) -> list[luigi.Task]:
        """Return the tasks of all products and of the summaries of them."""
        return self._shown

    def check(self) -> None:
        """Raise an error, too, if the page would replace files that no report has made."""
        from espo_luigi.report.make import check_report_replaceable

        super().check()
        check_report_replaceable(self.out_page().path)

    def work(self) -> None:
        """Write the page."""
        from espo_luigi.report.make import write_report

        write_report(
            run_view(), self.out_page().path, self.marker(), min(self.allocation.cpus_per_task, machine_cpus())
        )

    def input_infos(self) -> list[ZarrInfo]:
        """Return the stores that the page shows."""
        return [info for task in self.requires() for info in kept_by(task)]


def write_now(out: Path) -> None:
    """Write the report of the current run as it stands, with up to four processes of this machine."""
    from espo_luigi.report.make import check_report_replaceable, write_report

    check_report_replaceable(out)
    view = run_view()
    explorer = view.explorer if view.explorer and view.explorer.exists() else None
    write_report(replace(view, explorer=explorer), out, processes=min(4, machine_cpus()))


def has_outcomes(run: RunContext) -> bool:
    """Return whether the configuration asks for anything that the explorer shows."""
    return run.config.indicators is not None and bool(datasets(run))


def _products(bound: Any, *, cut: bool = True) -> xr.Dataset:
    """Open and join a simulation's archives, a single one or those of its variables; lazy."""
    each = bound if isinstance(bound, list) else [bound]
    return finalize.merge_products([store.open_store(one().path, cut=cut) for one in each])


def _text(value: object) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def summary_tasks() -> Iterator[EspoTask]:
    """Yield the tasks that summarise products for the report only."""
    for sim_id in context().simulations:
        yield FlagDetails(sim_id=sim_id)
        for domain in context().domains:
            yield Summaries(sim_id=sim_id, diag_domain=domain)
    for pool, domain in itertools.product(context().pools, context().domains):
        yield NotCalibrated(pool=pool, diag_domain=domain)
    yield from _inversions()
    if _ensembles() and "reference" in context().needed("indicators").datasets:
        yield from (ReferenceIndicators(freq=freq) for freq in chosen(context()))


def _ensembles() -> tuple[Together, ...]:
    """What the configuration asks for of all simulations together, and the report shows."""
    found: dict[tuple[str, str, str, str], dict[str, Path]] = {}
    for task in ends_of_run():
        if isinstance(task, EnsembleTask) and task.product in ("indicators", "delta", "warming_levels"):
            of = found.setdefault((task.product, task.freq, task.dataset, task.experiment), {})
            of[type(task).__name__] = kept_by(task)[0].path
    return tuple(Together(*key, of.get("Ensemble"), of.get("Regions")) for key, of in found.items())


def _inversions() -> list[Inversions]:
    """The counts of inversions, of each simulation whose products have the range before."""
    return [Inversions(sim_id=task.sim_id) for task in ends_of_run() if isinstance(task, ConcatCleanPreswap)]


def _cells_of(cells: grid.Cells) -> str:
    return f"{len(cells.rows)} of {cells.of} diagnosed land cells, evenly spaced in the order of rows"


def kept_by(task: luigi.Task) -> list[ZarrInfo]:
    """Return the outputs of a task that the run keeps."""
    ports = task.ports() if isinstance(task, EspoTask) else ()
    return [getattr(task, name)() for name, port in ports if not port.is_temporary]


def run_view() -> RunView:
    """Return the report's view of the current run: names, and where every file is or should be."""
    run = context()
    graph = Graph([*ends_of_run(), *summary_tasks()])
    wanted = [task for task in graph if isinstance(task, EspoTask) and kept_by(task)]
    simulations = tuple(sim_id for members in run.pools.values() for sim_id in members)
    details = {sim_id: FlagDetails(sim_id=sim_id) for sim_id in simulations}
    return RunView(
        config_files=run.config.files,
        config_hash=run.config.hash,
        reference=run.config.reference_source,
        simulations=simulations,
        domains=tuple(run.domains),
        period=tuple(map(int, run.config.custom.ref_period)),
        final=run.config.paths.final,
        workdir=Path(settings().workdir).absolute(),
        engine=settings().engine,
        products=tuple(
            Made(task.get_task_family(), task.label(), tuple(info.path for info in kept_by(task)), task.complete())
            for task in wanted
        ),
        diagnosed=tuple(_diagnosed(simulations)),
        flags={sim_id: task.out_flags().path for sim_id, task in details.items()},
        inputs={
            run.config.reference_source: RefInputCheck().out_problems().path,
            **{sim_id: InputCheck(sim_id=sim_id).out_problems().path for sim_id in simulations},
        },
        raised={sim_id: task.out_maps().path for sim_id, task in details.items() if task.in_bits != []},
        pools=dict(run.pools),
        power=power(),
        inversions={task.sim_id: task.out_inversions().path for task in _inversions()},
        archives={
            sim_id: tuple(dict.fromkeys(info.path for info in run.archives(sim_id).values())) for sim_id in simulations
        },
        compared={
            (pool, domain): NotCalibrated(pool=pool, diag_domain=domain).out_compared().path
            for pool, domain in itertools.product(run.pools, run.domains)
        },
        table=run.config.table,
        ensembles=_ensembles(),
        explorer=run.config.paths.final / EXPLORER if has_outcomes(run) else None,
        of_reference={
            task.freq: task.out_indicators().path for task in summary_tasks() if isinstance(task, ReferenceIndicators)
        },
        regions=regions(run) if run.config.spatial_mean else {},
        adjusted=run.config.biasadjust.adjusted,
        method=run.config.biasadjust.in_words,
        years=", ".join("-".join(map(str, period)) for period in run.config.custom.stretches),
    )


def _diagnosed(simulations: Sequence[str]) -> Iterator[Diagnosed]:
    """The stores about each domain and simulation, in this order."""
    ends = list(ends_of_run())
    references = {
        task.diag_domain: task.out_prop().path for task in ends if isinstance(task, (OffDiagRefProp, DiagRef))
    }
    archives: dict[tuple[str, str], dict[str, Path]] = defaultdict(dict)
    for task in ends:
        if isinstance(task, (Diag, OffDiagSimPropMeas, OffDiagScenPropMeas, DiagMeasuresImprovement)):
            archives[task.diag_domain, task.sim_id] |= {
                name.removeprefix("out_"): port.path_of(task) for name, port in task.ports() if port.packed_from
            }
    for domain, sim_id in itertools.product(references, simulations):
        summary = Summaries(sim_id=sim_id, diag_domain=domain).out_summary().path
        yield Diagnosed(
            sim_id=sim_id, domain=domain, reference=references[domain], summary=summary, **archives[domain, sim_id]
        )
