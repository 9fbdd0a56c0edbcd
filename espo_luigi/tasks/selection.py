"""A part of a run: from one rule on, until another, one rule only, or some simulations and regions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from luigi.task import Task

from espo_luigi.driver.run.run import Graph, each_after_its_needs, pending_in
from espo_luigi.errors import ParameterError, not_one_of

NAMES = ("from", "until", "only", "sim_id", "region")


@dataclass(frozen=True)
class Selection:
    """What is wanted of a run; empty texts want everything. `sims` and `regions` are separated by commas."""

    first: str = ""
    until: str = ""
    only: str = ""
    sims: str = ""
    regions: str = ""

    @classmethod
    def of(cls, values: Mapping[str, str]) -> Selection:
        """Return the selection that parameters called as in `NAMES` make."""
        return cls(*(values[name] for name in NAMES))

    def __bool__(self) -> bool:
        return self != Selection()

    @property
    def is_of_one_simulation(self) -> bool:
        """Whether one simulation is asked for, and no other."""
        return len(set(_words(self.sims))) == 1

    def check(self) -> None:
        """Raise `ParameterError` for rules that exclude each other."""
        if self.only and (self.first or self.until):
            raise ParameterError("--only excludes --from and --until: it is both of them for one rule")

    def ends(self, roots: Iterable[Task]) -> list[Task]:
        """Return the last tasks of what is wanted of the graph below `roots`: what they need is below them.

        Raises
        ------
        ParameterError
            If a rule, a simulation or a region is none of the graph's, or nothing is left.
        """
        self.check()
        graph = each_after_its_needs(roots)
        tasks = [task for task, _ in graph.values()]
        self._check_names(tasks)
        after = self.allowed(graph)
        wanted = [task for task in tasks if self._wants(task) and (after is None or task.task_family in after)]
        for name, words in (("sim_id", _words(self.sims)), ("region", _words(self.regions))):
            reach = _reach(graph, name) if words else {}
            wanted = [task for task in wanted if not words or reach[task.task_id] <= set(words)]
        needed = {needed.task_id for task in wanted for needed in graph[task.task_id][1]}
        if not wanted:
            raise ParameterError("no task is all of that: " + ", ".join(self._said()))
        return [task for task in wanted if task.task_id not in needed]

    def allowed(self, graph: Graph) -> set[str] | None:
        """Return the rules that may run: the first and those after it; None where all may."""
        first = self.only or self.first
        if not first:
            return None
        needs: dict[str, set[str]] = {}
        for task, needed in graph.values():
            needs.setdefault(task.task_family, set()).update(one.task_family for one in needed)
        after, more = {first}, {first}
        while more:
            more = {rule for rule, others in needs.items() if others & after} - after
            after |= more
        return after

    def _wants(self, task: Task) -> bool:
        last = self.only or self.until
        if last and task.task_family != last:
            return False
        if getattr(task, "is_about_all", False) and task.task_family not in (last, self.first):
            return False
        chosen = {"sim_id": _words(self.sims), "region": _words(self.regions)}
        return all(not words or getattr(task, name, last and words[0]) in words for name, words in chosen.items())

    def _check_names(self, tasks: Sequence[Task]) -> None:
        rules = {task.task_family for task in tasks if task.deps() or hasattr(task, "wildcards")}
        for name, words, known in (
            ("from", _words(self.first), rules),
            ("until", _words(self.until), rules),
            ("only", _words(self.only), rules),
            ("sim-id", _words(self.sims), {getattr(task, "sim_id", "") for task in tasks}),
            ("region", _words(self.regions), {getattr(task, "region", "") for task in tasks}),
        ):
            for word in words:
                _check_known(name, word, known - {""})

    def _said(self) -> list[str]:
        values = (self.first, self.until, self.only, self.sims, self.regions)
        return [f"--{name.replace('_', '-')} {value}" for name, value in zip(NAMES, values, strict=True) if value]


def blocked(roots: Iterable[Task], graph: Graph, allowed: set[str] | None) -> dict[str, str]:
    """Return why tasks cannot run that need, directly or not, what is missing and is of a rule that may not run."""
    if allowed is None:
        return {}
    pending, seen = pending_in(roots, graph, lambda task: task.task_family in allowed and not task.complete())
    reasons: dict[str, str] = {}
    for task_id, (task, needs) in graph.items():
        if task_id in pending and (obstacles := [reasons[one.task_id] for one in needs if one.task_id in reasons]):
            reasons[task_id] = obstacles[0]
        elif task_id in seen and task.task_family not in allowed and not task.complete():
            reasons[task_id] = f"{task} is missing, and before the rules that are to run"
    return reasons


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


def _words(text: str) -> list[str]:
    return [word for word in text.replace(",", " ").split() if word]


def _check_known(name: str, word: str, known: set[str]) -> None:
    if word not in known:
        raise ParameterError(not_one_of(name, word, sorted(known)))


def _reach(graph: Graph, name: str) -> dict[str, set[str]]:
    """By task, the values of a parameter in the graph below it."""
    found: dict[str, set[str]] = {}
    for task_id, (task, needs) in graph.items():
        own = {getattr(task, name)} if hasattr(task, name) else set()
        found[task_id] = own.union(*(found[needed.task_id] for needed in needs))
    return found
