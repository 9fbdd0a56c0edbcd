"""`All`, the default target: everything that a production publishes; and `Selection`, a part of it."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path

import luigi
from luigi.task import Task

from espo_luigi.driver.graph import Graph
from espo_luigi.driver.settings.espo import give_parameter
from espo_luigi.errors import EspoError, ParameterError, no_such_rule, not_one_of
from espo_luigi.tasks.base import EspoTask
from espo_luigi.tasks.context import context, settings
from espo_luigi.tasks.explorer import Explorer
from espo_luigi.tasks.export import warn_of_refusal
from espo_luigi.tasks.partition import members, pieces_of, pool_of, pools_of, simulations_of
from espo_luigi.tasks.publish import ends_of_run, publish
from espo_luigi.tasks.report import Report, has_outcomes

logger = logging.getLogger(__name__)

# The parameters of `All` that select a part of it, as `Selection` has its fields; `region` is another name of `piece`.
_DESCRIPTIONS = {
    "from": "run this rule and those after it only; what they need from before has to be there",
    "until": "run until this rule",
    "only": "run this rule only",
    "sim_id": "run these simulations only, by their ids or parts of them, separated by commas",
    "pool": "run these pools of simulations only, separated by commas",
    "piece": "run what is made of these pieces of the land only, separated by commas",
    "region": "the same as piece, where pieces are regions",
}
# The commands that run the rules which `All` never runs.
_COMMANDS = {
    "PerfectModel": "perfect-model",
    "PerfectPair": "perfect-model",
    "WithheldYears": "perfect-model",
    "Export": "export FOLDER",
}


@dataclass(frozen=True)
class Selection:
    """A part of a run: rules from the first on or until the last, a single rule, some simulations, pools, pieces.

    An empty text does not narrow the run. Names are separated by commas.
    """

    first: str = ""
    until: str = ""
    only: str = ""
    sims: str = ""
    pools: str = ""
    pieces: str = ""

    def __bool__(self) -> bool:
        return self != Selection()

    @property
    def is_of_one_simulation(self) -> bool:
        """True if a single simulation is asked for."""
        return len(set(_words(self.sims))) == 1

    def ends(self, graph: Graph) -> list[Task]:
        """Return the last tasks of the selected part of a graph; its roots, if nothing is selected.

        Raises
        ------
        ParameterError
            If the graph lacks a rule, a simulation or a region that is named, or nothing is left.
        """
        if self.only and (self.first or self.until):
            raise ParameterError("--only excludes --from and --until: it is both of them for one rule")
        if not self:
            return list(graph.roots.values())
        self._check_names(graph)
        after = self.allowed(graph)
        wanted = [task for task in graph if self._wants(task) and (after is None or task.task_family in after)]
        for names_of, words, reachable in self._narrowed:
            # By task, the simulations (or the pieces) of all tasks below it.
            reach: dict[str, set[str]] = {}
            for task_id, task in graph.tasks.items():
                needs = () if names_of is pieces_of and getattr(task, "spans_pieces", False) else graph.needs[task_id]
                reach[task_id] = names_of(task).union(*(reach[need] for need in needs))
            within = [task for task in wanted if reach[task.task_id] <= reachable]
            wanted = [task for task in within if not (names := names_of(task)) or names & words]
        needed = {need for task in wanted for need in graph.needs[task.task_id]}
        if not wanted:
            given = zip(_DESCRIPTIONS, astuple(self), strict=False)
            named = [f"--{name.replace('_', '-')} {value}" for name, value in given if value]
            raise ParameterError("no task is all of that: " + ", ".join(named))
        return [task for task in wanted if task.task_id not in needed]

    def allowed(self, graph: Graph) -> set[str] | None:
        """Return the rules that may run: the first rule and those after it; None if all rules may run."""
        first = self.only or self.first
        if not first:
            return None
        needs: dict[str, set[str]] = {}
        for task in graph:
            needs.setdefault(task.task_family, set()).update(one.task_family for one in graph.needs_of(task))
        after, more = {first}, {first}
        while more:
            more = {rule for rule, others in needs.items() if others & after} - after
            after |= more
        return after

    @property
    def lacking(self) -> str:
        """The problem of missing outputs whose rules are not allowed to run, with the remedy."""
        remedy = f"give --until {self.only} in place of --only" if self.only else "run without --from"
        return f"outputs of rules before {self.only or self.first} are missing: {remedy}"

    def _wants(self, task: Task) -> bool:
        last = self.only or self.until
        if last and task.task_family != last:
            return False
        if getattr(task, "is_about_all", False) and task.task_family not in (last, self.first):
            return False
        # A task without simulation or region, such as the whole domain's, is wanted only if its rule is named.
        return bool(last) or all(names_of(task) for names_of, _, _ in self._narrowed)

    @property
    def _narrowed(self) -> list[tuple[Callable[[Task], set[str]], set[str], set[str]]]:
        """The selected names, each with the function that gives a task's, and the names that its inputs may have."""
        sims, pools, pieces = (set(_words(text)) for text in (self.sims, self.pools, self.pieces))
        # Whatever is made of a simulation is made of its whole pool.
        together = {other for sim_id in sims for other in members(context(), pool_of(context(), sim_id))} | sims
        found = [(simulations_of, sims, together), (pools_of, pools, pools), (pieces_of, pieces, pieces)]
        return [one for one in found if one[1]]

    def _check_names(self, graph: Graph) -> None:
        tasks = list(graph)
        rules = {task.task_family for task in tasks if graph.needs[task.task_id] or hasattr(task, "wildcards")}
        for name, words, known in (
            ("", _words(f"{self.first} {self.until} {self.only}"), rules),
            ("sim-id", _words(self.sims), set().union(*map(simulations_of, tasks))),
            ("pool", _words(self.pools), set().union(*map(pools_of, tasks)) if self.pools else set()),
            ("piece", _words(self.pieces), set().union(*map(pieces_of, tasks))),
        ):
            for word in words:
                if word not in known:
                    wrong = not_one_of(name, word, sorted(known), takes_parts=name == "sim-id")
                    raise ParameterError(wrong if name else _no_rule_of_all(word, known))


def _no_rule_of_all(name: str, rules: set[str]) -> str:
    """The error message for a rule that does not exist, or that `All` does not run with this configuration."""
    if name not in {rule.__name__ for rule in _below(EspoTask)}:
        return no_such_rule(name, rules)
    command = _COMMANDS.get(name)
    remedy = f"`espo {command} --plan` plans it" if command else f"it runs {', '.join(sorted(rules))}"
    return f"All runs no {name} with this configuration; {remedy}."


def _below(rule: type[EspoTask]) -> Iterator[type[EspoTask]]:
    for each in rule.__subclasses__():
        yield each
        yield from _below(each)


def blocked(graph: Graph, allowed: set[str] | None) -> dict[str, Task]:
    """Return the tasks that cannot run, each with the incomplete task that it needs and that is not `allowed`."""
    if allowed is None:
        return {}
    pending, seen = graph.pending(lambda task: task.task_family in allowed and not task.complete())
    found: dict[str, Task] = {}
    for task_id, task in graph.tasks.items():
        if task_id in pending and (obstacles := [found[need] for need in graph.needs[task_id] if need in found]):
            found[task_id] = obstacles[0]
        elif task_id in seen and task.task_family not in allowed and not task.complete():
            found[task_id] = task
    return found


def widened(words: Iterable[str]) -> list[str]:
    """Return the words of a command without `--from RULE`, and with `--until RULE` in the place of `--only RULE`."""
    found: list[str] = []
    rest = iter(words)
    for word in rest:
        option, is_one_word, rule = word.partition("=")
        if option in ("--from", "--only"):
            rule = rule if is_one_word else next(rest)
            found += ["--until", rule] if option == "--only" else []
        else:
            found.append(word)
    return found


def full_ids(text: str) -> str:
    """Return the ids of simulations, of each of which `text` has a part, separated by commas.

    Parts of several or of no simulation stay: `Selection.ends` raises an error for them.
    """
    with suppress(EspoError, OSError):
        return ",".join(map(context().full_id, _words(text)))
    return text


class _SimulationsParameter(luigi.Parameter):
    """Takes parts of simulations' ids, and gives the task the whole ids."""

    def normalize(self, x: str) -> str:
        """Return the whole ids."""
        return full_ids(x) if x else x


def _words(text: str) -> list[str]:
    return [word for word in text.replace(",", " ").split() if word]


class All(luigi.WrapperTask):
    """Rule `all`: health checks, diagnostics and archives of every simulation in the catalogue, report and explorer.

    Its parameters (``--from``, ``--until``, ``--only``, ``--sim-id``, ``--pool``, ``--piece``) make a `Selection`.
    """

    # What the local engine imports while the driver looks at the tasks.
    preload = (*EspoTask.preload, "h5netcdf", "xclim.ensembles", __name__)

    def __repr__(self) -> str:
        """Return its name, and the part that is asked for."""
        given = {name: getattr(self, name) for name in _DESCRIPTIONS if getattr(self, name)}
        return " ".join(["All", *(f"{name}={value}" for name, value in given.items())])

    @property
    def selection(self) -> Selection:
        """The part of it that is asked for."""
        *given, piece, region = (getattr(self, name) for name in _DESCRIPTIONS)
        given.append(",".join(filter(None, (piece, region))))
        return Selection(*given)

    @property
    def covers_everything(self) -> bool:
        """True if a run of it may delete temporary stores: all tasks that need them are in its graph."""
        return not self.selection

    def requires(self) -> list[luigi.Task]:
        """Return the last task of every chain; of a part, only those that need nothing missing from before it."""
        return self._runnable if self.selection else list(self.everything())

    @functools.cached_property
    def _runnable(self) -> list[luigi.Task]:
        ends, graph = self.ends, self._graph.below(self.ends)
        held_up = blocked(graph, self.selection.allowed(graph))
        runnable = [task for task in ends if task.task_id not in held_up]
        if held_up and not runnable:
            raise ParameterError(
                f"nothing can run: {self.selection.lacking} (such as of {next(iter(held_up.values()))})"
            )
        for missing in dict.fromkeys(held_up[task.task_id] for task in ends if task.task_id in held_up):
            logger.warning("what needs %s is left out: %s", missing, self.selection.lacking)
        return runnable

    def words_to_run(self, words: Sequence[str], rules: set[str]) -> list[str]:
        """Return the words of the command that asked for this; the words that exclude any of `rules` are changed."""
        allowed = self.selection.allowed(self._graph) if self.selection else None
        return list(words) if allowed is None or rules <= allowed else widened(words)

    @functools.cached_property
    def ends(self) -> list[luigi.Task]:
        """The last task of every chain of the part that is asked for."""
        return self.selection.ends(self._graph) if self.selection else list(self.everything())

    @functools.cached_property
    def _graph(self) -> Graph:
        """The graph of everything, of which a part is asked for."""
        return Graph(self.everything())

    def everything(self) -> Iterator[luigi.Task]:
        """Yield the last task of every chain; log why an export would be refused."""
        warn_of_refusal(context())
        yield from ends_of_run()
        if settings().report:
            yield Report()
            if has_outcomes(context()):
                yield Explorer()

    @property
    def results_folder(self) -> Path:
        """The folder of everything that is kept."""
        return context().config.paths.final

    def run(self) -> None:
        """Publish the products, if that is wanted, and log where the results are."""
        if settings().publish:
            logger.info("%s", publish())
        logger.info("Everything is done; the results are in %s", self.results_folder)


for _name, _description in _DESCRIPTIONS.items():  # `from` is no name that a class can give
    _kind = _SimulationsParameter if _name == "sim_id" else luigi.Parameter
    give_parameter(All, _name, _kind(default="", description=_description))
