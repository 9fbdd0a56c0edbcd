"""The rules of a known future: a simulation in the reference's place, and the page about all such pairs."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import luigi
import xarray as xr

from espo_luigi.config.diagnosis import METHODS_BY_NAME
from espo_luigi.errors import ConfigurationError, ParameterError, not_one_of
from espo_luigi.jobs.resources import Resources
from espo_luigi.machine import machine_cpus
from espo_luigi.methods import perfect_model
from espo_luigi.methods.perfect_model import ADJUSTED, SCALING, Plan, Sampling
from espo_luigi.methods.xsdba import METHOD_ARGUMENTS
from espo_luigi.report.perfect_model import Pair
from espo_luigi.science.choices import each_period
from espo_luigi.tasks import partition
from espo_luigi.tasks.adjustment import MAKERS, jitter_of_range
from espo_luigi.tasks.base import EspoTask, PieceParameter, SimulationParameter, WildcardParameter
from espo_luigi.tasks.context import RunContext, context
from espo_luigi.tasks.ports import ZarrInfo, kept, upstream
from espo_luigi.tasks.simulation import Rechunk

ALL = "all"
# Besides xsdba's, which no key `method` names: their kernels, which have the same arguments.
_KERNELS = "dqm"
TruthParameter = functools.partial(WildcardParameter, lambda run: [ALL, *run.simulations], takes_parts=True)


class PerfectPair(EspoTask):
    """Rule `perfect_pair`, new against ESPO-G: the errors of a simulation that is adjusted towards a truth."""

    truth, sim_id, piece = SimulationParameter(), SimulationParameter(), PieceParameter()
    resources_default = Resources(n_workers=3, cpus_per_task=12, memory="100GB", time="1000")
    in_truth = upstream(Rechunk, "out_regchunked", sim_id=lambda task: task.truth)
    in_regchunked = upstream(Rechunk, "out_regchunked")
    out_errors = kept("perfect_model/{piece}/{truth}+{sim_id}+{piece}+errors.zarr")
    reads = (
        "biasadjust.variables.*",
        "custom.maximal_calendar",
        "perfect_model.cells",
        "perfect_model.methods",
        "perfect_model.periods",
        *(f"variables.*.{key}" for key in ("bounds", "difference", "display_units", "units", "wet")),
    )

    def reading(self) -> list[str]:
        """Return, too, the keys that are read for each variable."""
        keys = ("method", "variables", "training_args", "adjusting_args", "engine")
        variables = self.context.config.biasadjust.variables
        of_adjustment = [f"biasadjust.variables.{v}.{key}" for v in variables for key in keys]
        return [*super().reading(), *of_adjustment]

    def compute(self, truth: xr.Dataset, regchunked: xr.Dataset) -> xr.Dataset:
        """Adjust each variable by each method, and compare."""
        section = self.context.config.perfect_model
        return perfect_model.compare(
            truth,
            regchunked,
            plans={name: self._plan(name) for name in self.context.config.biasadjust.variables},
            sampling=Sampling(later_periods(self.context), section.cells, self.truth),
        )

    def _plan(self, name: str) -> Plan:
        config = self.context.config
        variable = config.biasadjust.variables[name]
        train, adjust = variable.training_args.arguments(), variable.adjusting_args.arguments(*MAKERS)
        if isinstance(train["group"], Mapping):  # a lone simulation is no pool
            train["group"] = {key: value for key, value in train["group"].items() if key != "add_dims"}
        seed, first_cell = self.context.production.pieces.draws(f"{self.truth}+{self.sim_id}", self.piece, name)
        shared = {
            "maximal_calendar": config.custom.maximal_calendar,
            "first_cell": first_cell,
            "engine": variable.engine,
        }
        train |= shared | {"seed": seed}
        adjust |= shared | {"seed": f"{seed}+adjust", "jitter_under": None} | jitter_of_range(name, config.table)
        others = {SCALING: "Scaling"} | {label: METHODS_BY_NAME[label] for label in config.perfect_model.methods}
        first, last = map(int, variable.training_args.period)
        in_slices = adjust | {"periods": slices([(first, last), *later_periods(self.context)])}
        return Plan(
            calibration=(first, last),
            methods={ADJUSTED: (train, adjust)}
            | {label: by_method(method, train, in_slices) for label, method in others.items()},
            maximal_calendar=config.custom.maximal_calendar,
            **perfect_model.shown_as(name, config.table),
        )


def by_method(
    method: str, train: Mapping[str, Any], adjust: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the configured arguments as far as a method of xsdba takes them; Scaling adapts no frequencies.

    The compared periods take the place of moving windows of years.
    """
    accepted = METHOD_ARGUMENTS[method]
    unused = ("adapt_freq", "jitter_under", "additive_space") if method == "Scaling" else ()
    training = {name: value for name, value in train.items() if name not in unused}
    of_train, of_adjust = (
        {name: value for name, value in (given.get(key) or {}).items() if name in names}
        for given, key, names in (
            (training, "xclim_train_args", accepted.train),
            (adjust, "xclim_adjust_args", accepted.adjust),
        )
    )
    adjusting = {name: value for name, value in adjust.items() if name != "moving_yearly_window"}
    return (
        {**training, "xclim_train_args": of_train, "method": method},
        {**adjusting, "xclim_adjust_args": of_adjust},
    )


def slices(periods: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the periods in order of time; periods that overlap are joined.

    QDM keeps a change only if each period is adjusted alone: xsdba ranks the days of all adjusted years together, and
    over a century the trend would decide the ranks.
    """
    joined: list[tuple[int, int]] = []
    for first, last in sorted(periods):
        if joined and first <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(last, joined[-1][1])
        else:
            joined.append((first, last))
    return joined


def later_periods(run: RunContext) -> list[tuple[int, int]]:
    """Return the later periods that are compared."""
    return [(int(first), int(last)) for first, last in each_period(run.config.perfect_model.periods)]


def taking_part(run: RunContext) -> list[str]:
    """Return the simulations that take part; a part of an id stands for the id.

    Raises
    ------
    ParameterError
        If a name of the configuration belongs to no simulation, or to several.
    """
    named = run.config.perfect_model.simulations
    sim_ids = [run.full_id(name) for name in named] or list(run.simulations)
    for name in sim_ids:
        if name not in run.simulations:
            wrong = not_one_of("sim-id", name, list(run.simulations), takes_parts=True).removeprefix("--sim-id ")
            raise ParameterError(f"`perfect_model.simulations`: {wrong}")
    return list(dict.fromkeys(sim_ids))


def pairs(run: RunContext, truth: str) -> list[tuple[str, str]]:
    """Return the pairs (truth, simulation) that share an experiment; `ALL` takes each simulation for the truth."""
    sim_ids = taking_part(run)
    experiments = {sim_id: run.simulation(sim_id).columns.get("experiment") for sim_id in {*sim_ids, truth} - {ALL}}
    truths = sim_ids if truth == ALL else [truth]
    return [
        (known, other)
        for known in truths
        for other in sim_ids
        if known != other and experiments[known] == experiments[other]
    ]


def is_control(run: RunContext, truth: str, sim_id: str) -> bool:
    """Return True if both come from the same model: they differ by internal variability only."""
    columns = ("source", "driving_model")
    known, other = (run.simulation(sim).columns for sim in (truth, sim_id))
    return all(known.get(name) == other.get(name) for name in columns)


class PerfectModel(EspoTask):
    """Rule `perfect_model`, new against ESPO-G: a page about the errors in known futures."""

    truth = TruthParameter()
    resources_default = Resources(n_workers=1, cpus_per_task=4, memory="16GB", time="1000")
    uses_dask = False
    is_about_all = True
    out_page = kept("report/perfect-model+{truth}.html")
    reads = ("perfect_model.simulations",)

    def check(self) -> None:
        """Raise an error, too, for methods of others, without pairs or land, or for periods that are not adjusted."""
        super().check()
        self._check_methods()
        run, sim_ids = self.context, taking_part(self.context)
        if not partition.pieces(run):
            raise ConfigurationError(
                f"the domain {run.config.domain.name} has {run.land_cells} land cells; expected 1 or more. "
                f"Correct the bounds of `{run.config.name_of('domain')}`."
            )
        if not pairs(run, self.truth):
            experiments = sorted({run.simulation(sim_id).columns.get("experiment", "") for sim_id in sim_ids})
            raise ConfigurationError(
                f"{self.get_task_family()}: {len(sim_ids)} simulation(s) take part, of {', '.join(experiments)}; "
                "expected 2 or more of the truth's experiment. Widen `perfect_model.simulations` or the search."
            )
        self._check_periods()

    def _check_methods(self) -> None:
        """Refuse methods other than xsdba's, and groups of variables."""
        for name, variable in self.context.config.biasadjust.variables.items():
            if variable.variables or variable.method not in (None, _KERNELS):
                raise ConfigurationError(
                    f"`biasadjust.variables.{name}`: known futures compare methods of xsdba, a variable at a time, and "
                    f"got {variable.name}; expected `training_args.method` of xsdba, without `method` and `variables`. "
                    "Run known futures with another configuration."
                )

    def _check_periods(self) -> None:
        """Refuse periods that are not adjusted."""
        later = [("perfect_model.periods", period) for period in later_periods(self.context)]
        for name, variable in self.context.config.biasadjust.variables.items():
            key, adjusted = f"biasadjust.variables.{name}", each_period(variable.adjusting_args.periods)
            years = {year for first, last in adjusted for year in range(int(first), int(last) + 1)}
            begin, end = map(int, variable.training_args.period)
            for where, (start, stop) in [(f"{key}.training_args.period", (begin, end)), *later]:
                if not years.issuperset(range(start, stop + 1)):
                    expected = ", ".join(f"{first}-{last}" for first, last in adjusted)
                    raise ConfigurationError(
                        f"`{where}`: got {start}-{stop}, expected years within `{key}.adjusting_args.periods`, "
                        f"{expected}. Choose a period within it, or widen it."
                    )

    def requires(self) -> list[luigi.Task]:
        """Return the tasks of all pairs and pieces."""
        return list(self._pairs)

    @functools.cached_property
    def _pairs(self) -> list[PerfectPair]:
        run = self.context
        return [
            PerfectPair(truth=truth, sim_id=sim_id, piece=piece)
            for truth, sim_id in pairs(run, self.truth)
            for piece in partition.pieces(run)
        ]

    def input_infos(self) -> list[ZarrInfo]:
        """Return the stores that the page shows."""
        return [task.out_errors() for task in self._pairs]

    def work(self) -> None:
        """Write the page."""
        from espo_luigi.report.perfect_model import write_page

        shown: dict[tuple[str, str], list[Any]] = {}
        for task in self._pairs:
            shown.setdefault((task.truth, task.sim_id), []).append(task.out_errors().path)
        pairs_of_page = [
            Pair(truth, sim_id, is_control(self.context, truth, sim_id), tuple(paths))
            for (truth, sim_id), paths in shown.items()
        ]
        processes = min(self.allocation.cpus_per_task, machine_cpus())
        write_page(pairs_of_page, self.out_page().path, self.marker(), processes)


def tasks_for(truths: Sequence[str]) -> list[PerfectModel]:
    """Return the checked task of each truth, named by its id or a part of it; without names, that of all in turn."""
    tasks = [PerfectModel(truth=context().full_id(name)) for name in dict.fromkeys(truths)] or [PerfectModel(truth=ALL)]
    for task in tasks:
        task.check()
    return tasks
