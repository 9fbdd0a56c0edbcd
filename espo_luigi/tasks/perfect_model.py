"""The rules of a known future: a simulation in the reference's place, and the page about all such pairs."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import luigi
import xarray as xr

from espo_luigi.config import RunConfig
from espo_luigi.config.bias_adjustment import VariableAdjustment
from espo_luigi.config.diagnosis import METHODS_BY_NAME
from espo_luigi.config.usual import give_usual_settings
from espo_luigi.config.variables import VariableSection
from espo_luigi.downscaling import withheld
from espo_luigi.downscaling.base import DOWNSCALERS, downscaler_named
from espo_luigi.errors import ConfigurationError, DataError, ParameterError, not_one_of
from espo_luigi.jobs.resources import Resources
from espo_luigi.machine import machine_cpus
from espo_luigi.methods import perfect_model
from espo_luigi.methods.base import DEFAULT_METHOD, METHODS, Method, checked, method_named
from espo_luigi.methods.perfect_model import ADJUSTED, SCALING, Adjustment, Plan, Sampling
from espo_luigi.methods.xsdba import arguments_of
from espo_luigi.report.perfect_model import Pair
from espo_luigi.science.chunks import join
from espo_luigi.science.periods import each_period
from espo_luigi.science.stack import STACKED_DIM
from espo_luigi.tasks import partition
from espo_luigi.tasks.adjustment import MAKERS, jitter_of_range, version_of_method
from espo_luigi.tasks.base import (
    EspoTask,
    PieceParameter,
    SimulationParameter,
    WildcardParameter,
    every_piece,
    version_of_plugin,
)
from espo_luigi.tasks.context import RunContext, context
from espo_luigi.tasks.ports import ZarrInfo, kept, upstream
from espo_luigi.tasks.reference import CoarseReference, ReferenceCalendar
from espo_luigi.tasks.simulation import Regrid

ALL, REFERENCE = "all", "reference"
# Besides xsdba's methods: our kernels, which have the same arguments.
_KERNELS = "dqm"
TruthParameter = functools.partial(WildcardParameter, lambda run: [ALL, REFERENCE, *run.simulations], takes_parts=True)


class PerfectPair(EspoTask):
    """Rule `perfect_pair`, new against ESPO-G: the errors of a simulation that is adjusted towards a truth."""

    truth, sim_id, piece = SimulationParameter(), SimulationParameter(), PieceParameter()
    resources_default = Resources(n_workers=3, cpus_per_task=12, memory="100GB", time="1000")
    in_truth = upstream(Regrid, "out_regridded", sim_id=lambda task: task.truth)
    in_regridded = upstream(Regrid, "out_regridded")
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
        """Return, too, the keys that are read for each variable; usual settings are made of its whole row."""
        config, read = self.context.config, _keys_of_methods(self.context)
        if {*config.perfect_model.methods} - {"QDM", "EQM"}:
            read += [f"variables.*.{key}" for key in VariableSection.model_fields]
        return list(dict.fromkeys([*super().reading(), *read]))

    def versions(self) -> dict[str, str]:
        """Return, too, the versions of the packages whose methods are compared."""
        names = {how.name for how in self.context.config.biasadjust.variables.values()}
        names |= {METHODS_BY_NAME.get(label, label) for label in self.context.config.perfect_model.methods}
        return super().versions() | {key: one for name in sorted(names) for key, one in version_of_method(name).items()}

    def compute(self, truth: xr.Dataset, regridded: xr.Dataset) -> xr.Dataset:
        """Adjust the variables by each method, and compare."""
        config, later = self.context.config, later_periods(self.context)
        return perfect_model.compare(
            truth,
            regridded,
            plans={
                name: Plan(_calibration(how), **perfect_model.shown_as(name, config.table))
                for key, how in config.biasadjust.variables.items()
                for name in how.variables or (key,)
            },
            methods={
                label: [self._drawn(how) for how in several] for label, several in adjustments(self.context).items()
            },
            sampling=Sampling(
                later,
                config.perfect_model.cells,
                self.truth,
                config.custom.maximal_calendar,
                _groups(config),
            ),
        )

    def _drawn(self, how: Adjustment) -> Adjustment:
        """Return an adjustment with the seed of this pair."""
        group = self.context.config.biasadjust.group_of(how.variables[0])
        seed, first_cell = self.context.production.pieces.draws(f"{self.truth}+{self.sim_id}", self.piece, group)
        return replace(how, shared={**how.shared, "seed": seed, "first_cell": first_cell})


class WithheldYears(EspoTask):
    """Rule `withheld_years`, new against ESPO-G: errors of both ways, with `downscaling`, on the reference itself."""

    resources_default = Resources(n_workers=1, cpus_per_task=4, memory="16GB", time="1000")
    in_reference = upstream(ReferenceCalendar, "out_reference", calendar="noleap", piece=every_piece)
    in_coarse = upstream(CoarseReference, "out_reference", calendar="noleap", piece=lambda task: task.coarse_piece)
    out_errors = kept("perfect_model/withheld+errors.zarr")
    reads = ("custom.ref_period", "downscaling", *(key for key in PerfectPair.reads if key != "perfect_model.periods"))

    @property
    def coarse_piece(self) -> str:
        """The coarse grid; of several models', the first."""
        return next(iter(self.context.coarse_grids))

    def reading(self) -> list[str]:
        """Return, too, the keys that are read for each variable."""
        return list(dict.fromkeys([*super().reading(), *_keys_of_methods(self.context)]))

    def versions(self) -> dict[str, str]:
        """Return, too, the versions of the packages whose methods and downscalers are compared."""
        config, section = self.context.config, self.context.needed("downscaling", "WithheldYears")
        found = super().versions()
        for how in config.biasadjust.variables.values():
            found |= version_of_method(how.name)
        for _, _, how in section.ways(config.biasadjust.adjusted):
            found |= version_of_plugin("espo_luigi.downscalers", how.method)
        return found

    def compute(self, reference: list[xr.Dataset], coarse: xr.Dataset) -> xr.Dataset:
        """Calibrate with the first half of the reference's years, and compare both ways in the second."""
        config, section = self.context.config, self.context.needed("downscaling", "WithheldYears")
        first, last = map(int, config.custom.ref_period)
        halves = (first, (first + last) // 2), ((first + last) // 2 + 1, last)
        grid, seed = self.context.coarse_grids[self.coarse_piece], {"seed": "withheld"}
        whole = join(reference, STACKED_DIM, what="The pieces of the reference")
        fine = withheld.sampled(whole, coarse, grid, config.perfect_model.cells)
        names, numbers = config.biasadjust.adjusted, grid.numbers(fine["lat"].values, fine["lon"].values)
        ways: dict[str, dict[str, Any]] = {}
        for way in dict.fromkeys([*(section.of(name).method for name in names), *DOWNSCALERS]):
            with contextlib.suppress(DataError):  # too many cells for this downscaler
                downscaler_named(way).check_sizes(numbers)
                own = {name: section.of(name) for name in names}
                given = {name: how.given.arguments() if how.method == way else {} for name, how in own.items()}
                shared = {"downscaler": way, "table": config.table, **seed}
                ways[way] = {name: shared | arguments for name, arguments in given.items()}
        return withheld.compare(
            fine[list(names)],
            coarse[list(names)],
            grid=grid,
            plans={name: Plan(halves[0], **perfect_model.shown_as(name, config.table)) for name in names},
            adjustments=[_on_halves(how, halves, seed) for how in adjustments(self.context)[ADJUSTED]],
            ways=ways,
            withheld=halves[1],
        ).assign_attrs(years=f"{halves[1][0]}-{halves[1][1]}")


def _on_halves(how: Adjustment, halves: tuple[tuple[int, int], tuple[int, int]], seed: dict[str, str]) -> Adjustment:
    """Return an adjustment that calibrates with the first half of years; a detrended mapping adjusts both together."""
    together = how.method == DEFAULT_METHOD or how.method.startswith(_KERNELS)
    periods = [(halves[0][0], halves[1][1])] if together else list(halves)
    adjusting = {name: value for name, value in how.adjusting.items() if name != "moving_yearly_window"}
    return replace(
        how,
        training={**how.training, "period": halves[0]},
        adjusting={**adjusting, "periods": periods, "keeps_ranks": True},
        shared={**how.shared, **seed},
    )


def _keys_of_methods(run: RunContext) -> list[str]:
    keys = ("method", "variables", "training_args", "adjusting_args", "engine")
    return [f"biasadjust.variables.{name}.{key}" for name in run.config.biasadjust.variables for key in keys]


def adjustments(run: RunContext) -> dict[str, list[Adjustment]]:
    """Return how each method of the comparison adjusts the variables, by the method's label.

    Raises
    ------
    ConfigurationError
        If a method cannot adjust the variables, or there are no usual settings for them.
    """
    config, own = run.config, run.config.biasadjust
    found = {ADJUSTED: [_adjustment(run, how, how.variables or (key,)) for key, how in own.variables.items()]}
    for label in dict.fromkeys((SCALING, *config.perfect_model.methods)):
        method = method_named(METHODS_BY_NAME.get(label, label).removeprefix("xsdba."))
        groups: list[tuple[str, ...]] = [(name,) for name in own.adjusted]
        if method.variables_together:
            groups = _groups(config)
            if not groups:
                raise _refused(label, f"it adjusts several variables together, and {own.adjusted[0]} is the only one")
        for foreign in [
            name for group in groups for name in group if method.variables and name not in method.variables
        ]:
            raise _refused(label, f"it has no settings for {foreign}; it has: {', '.join(method.variables)}")
        further = [_further(run, label, method, group) for group in groups]
        # What all cells have is not computed again for the sampled ones.
        found |= {label: further} if further != found[ADJUSTED] else {}
    return found


def _groups(config: RunConfig) -> list[tuple[str, ...]]:
    """Return the variables that methods adjust together: the configuration's groups, else all variables."""
    own = config.biasadjust
    return list(own.together.values()) or [own.adjusted] * (len(own.adjusted) > 1)


def _refused(label: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"`perfect_model.methods`: got {label}, and {why}. Leave it out, or test it with another configuration."
    )


def _further(run: RunContext, label: str, method: Method, variables: tuple[str, ...]) -> Adjustment:
    """Return a further method with the configuration's own arguments where it has these, else with usual settings."""
    own = run.config.biasadjust
    how = own.variables[own.group_of(variables[0])]
    is_whole, name = (how.variables or variables[:1]) == variables, method.name
    later = later_periods(run)
    compared = slices([_calibration(how), *later])
    if name in METHODS and name != DEFAULT_METHOD:
        if not is_whole or how.name.partition(".")[0] not in (*METHODS, _KERNELS):
            usual = name if name == METHODS_BY_NAME["QDM"] else DEFAULT_METHOD
            how = _usual(run, label, method_named(usual), variables, how, compared)
        return by_method(name, _adjustment(run, how, variables), compared)
    if is_whole and how.name == name:
        return _adjustment(run, how, variables)
    # What a detrended mapping learns of a trend, it needs all years for.
    periods = how.adjusting_args.periods if name in (DEFAULT_METHOD, _KERNELS) else compared
    return _adjustment(run, _usual(run, label, method, variables, how, periods), variables)


def _usual(
    run: RunContext, label: str, method: Method, variables: tuple[str, ...], how: VariableAdjustment, periods: Any
) -> VariableAdjustment:
    """Return the usual settings of a method, for the calibration of `how` and for periods without moving windows."""
    name = "+".join(variables)
    rows = {one: row.model_dump(exclude_unset=True) for one, row in run.config.own_variables.items()}
    given: dict[str, Any] = {"method": method.name} | ({"variables": list(variables)} if len(variables) > 1 else {})
    content: dict[str, Any] = {"biasadjust": {"variables": {name: given}}, "variables": rows}
    try:
        give_usual_settings(content)
        made = content["biasadjust"]["variables"][name]
        training = {**made.get("training_args", {}), "period": how.training_args.period}
        adjusting = {**made.get("adjusting_args", {}), "periods": periods}
        adjusting.pop("moving_yearly_window", None)
        made = {**made, "training_args": training, "adjusting_args": adjusting}
        return cast("VariableAdjustment", checked(VariableAdjustment, made, name))
    except ConfigurationError as error:
        raise _refused(label, f"its usual settings do not suit: {error}") from error


def _adjustment(run: RunContext, how: VariableAdjustment, variables: tuple[str, ...]) -> Adjustment:
    """Return an adjustment with the arguments of a rule, of a lone simulation."""
    train, adjust = how.training_args.arguments("method"), how.adjusting_args.arguments(*MAKERS)
    if isinstance(train.get("group"), Mapping):  # a lone simulation is no pool
        train["group"] = {key: value for key, value in train["group"].items() if key != "add_dims"}
    if "jitter_under" in type(how.adjusting_args).model_fields:
        adjust = jitter_of_range(variables[0], run.config.table) | adjust
    shared = {"engine": how.engine, "maximal_calendar": run.config.custom.maximal_calendar}
    return Adjustment(variables, how.name, train, adjust, shared)


def by_method(method: str, given: Adjustment, periods: Sequence[tuple[int, int]]) -> Adjustment:
    """Return an adjustment with its arguments as far as a method of xsdba takes them; Scaling adapts no frequencies.

    The compared periods take the place of moving windows of years.
    """
    unused = ("adapt_freq", "jitter_under", "small_amounts", "additive_space") if method == "Scaling" else ()
    of_train, of_adjust = (
        {name: value for name, value in (own.get(key) or {}).items() if name in names}
        for own, key, names in (
            (given.training, "xclim_train_args", arguments_of(method, "train")),
            (given.adjusting, "xclim_adjust_args", arguments_of(method, "adjust")),
        )
    )
    if method not in (DEFAULT_METHOD, METHODS_BY_NAME["QDM"]) and of_adjust.get("interp") == "nearest_quantile":
        of_adjust["interp"] = "nearest"  # xsdba has no other nearest
    training = {name: value for name, value in given.training.items() if name not in unused}
    adjusting = {name: value for name, value in given.adjusting.items() if name != "moving_yearly_window"}
    return replace(
        given,
        method=method,
        training={**training, "xclim_train_args": of_train},
        adjusting={**adjusting, "xclim_adjust_args": of_adjust, "periods": periods},
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


def _calibration(how: VariableAdjustment) -> tuple[int, int]:
    first, last = how.training_args.period
    return int(first), int(last)


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
    truths = {ALL: sim_ids, REFERENCE: []}.get(truth, [truth])
    experiments = {sim_id: run.simulation(sim_id).columns.get("experiment") for sim_id in {*sim_ids, *truths}}
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
        """Raise an error, too, without pairs or land, for periods that are not adjusted, or a method that cannot."""
        super().check()
        run, sim_ids = self.context, taking_part(self.context)
        if not partition.pieces(run):
            raise ConfigurationError(
                f"the domain {run.config.domain.name} has {run.land_cells} land cells; expected 1 or more. "
                f"Correct the bounds of `{run.config.name_of('domain')}`."
            )
        if self.truth == REFERENCE:
            run.needed("downscaling", "--truth reference")
            return
        if not pairs(run, self.truth):
            experiments = sorted({run.simulation(sim_id).columns.get("experiment", "") for sim_id in sim_ids})
            raise ConfigurationError(
                f"{self.get_task_family()}: {len(sim_ids)} simulation(s) take part, of {', '.join(experiments)}; "
                "expected 2 or more of the truth's experiment. Widen `perfect_model.simulations` or the search."
            )
        self._check_periods()
        adjustments(run)

    def _check_periods(self) -> None:
        """Refuse periods that are not adjusted."""
        later = [("perfect_model.periods", period) for period in later_periods(self.context)]
        for name, variable in self.context.config.biasadjust.variables.items():
            key, adjusted = f"biasadjust.variables.{name}", each_period(variable.adjusting_args.periods)
            years = {year for first, last in adjusted for year in range(int(first), int(last) + 1)}
            for where, (start, stop) in [(f"{key}.training_args.period", _calibration(variable)), *later]:
                if not years.issuperset(range(start, stop + 1)):
                    expected = ", ".join(f"{first}-{last}" for first, last in adjusted)
                    raise ConfigurationError(
                        f"`{where}`: got {start}-{stop}, expected years within `{key}.adjusting_args.periods`, "
                        f"{expected}. Choose a period within it, or widen it."
                    )

    def requires(self) -> list[luigi.Task]:
        """Return the tasks of all pairs and pieces."""
        return [*self._pairs, *self._withheld]

    @property
    def _withheld(self) -> list[WithheldYears]:
        """The task of both ways, which a run without downscaling has not."""
        is_asked = self.truth in (ALL, REFERENCE) and self.context.config.downscaling is not None
        return [WithheldYears()] * is_asked

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
        return [task.out_errors() for task in (*self._pairs, *self._withheld)]

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
        both_ways = next((task.out_errors().path for task in self._withheld), None)
        write_page(pairs_of_page, self.out_page().path, self.marker(), processes, both_ways)


def tasks_for(truths: Sequence[str]) -> list[PerfectModel]:
    """Return the checked task of each truth, named by its id or a part of it; without names, that of all in turn."""
    tasks = [PerfectModel(truth=context().full_id(name)) for name in dict.fromkeys(truths)] or [PerfectModel(truth=ALL)]
    for task in tasks:
        task.check()
    return tasks
