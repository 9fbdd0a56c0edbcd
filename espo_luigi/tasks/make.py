"""All rules, their files, and the task that makes a path, as Snakemake finds it."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from espo_luigi import tasks
from espo_luigi.driver.graph import Graph
from espo_luigi.errors import ParameterError, UnknownPathError, nearest
from espo_luigi.fields import match_path, render_path
from espo_luigi.tasks.all import All
from espo_luigi.tasks.base import EspoTask, every
from espo_luigi.tasks.context import FACETS, context
from espo_luigi.tasks.ports import OutputPort, ports_of, wildcard_names


def rules(module: str = "") -> list[type[EspoTask]]:
    """Return the class of every rule of this package, then of those that a user's module defines."""
    ours = sorted(_rules_among(vars(tasks).values()), key=lambda rule: rule.__name__)
    return ours + (rules_of(module) if module else [])


def tasks_of(module: str) -> list[EspoTask]:
    """Return every task of the rules that a module defines."""
    return [task for rule in rules_of(module) for task in every(rule)]


def rules_of(module: str) -> list[type[EspoTask]]:
    """Import a module and return the rules that the module defines.

    Raises
    ------
    ParameterError
        If there is no such module, or it defines no rule.
    """
    try:
        imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ParameterError(
            f"--module {module}: {error}. Expected a module on Python's path; PYTHONPATH=. adds this folder."
        ) from error
    own = [rule for rule in _rules_among(vars(imported).values()) if rule.__module__ == module]
    if not own:
        raise ParameterError(
            f"--module {module}: it defines no rule; expected subclasses of espo_luigi.tasks.EspoTask."
        )
    return own


def _rules_among(values: Iterable[object]) -> list[type[EspoTask]]:
    return [one for one in values if isinstance(one, type) and issubclass(one, EspoTask) and one is not EspoTask]


def task_for(path: Path, module: str = "") -> EspoTask:
    """Return the task that makes `path`, of this package's rules or of a user's module.

    Raises
    ------
    UnknownPathError
        If no task does; the message names the nearest path that a task makes.
    """
    wanted = path.absolute()
    refusals = []
    for cls, wildcards in _candidates(wanted, rules(module)):
        task = cls(**wildcards)
        try:
            task.check()
        except ParameterError as error:
            refusals.append(str(error))
        else:
            return task
    ends = [All(), *(tasks_of(module) if module else ())]
    outputs = [target.path for task in Graph(ends) if isinstance(task, EspoTask) for target in task.output()]
    near = nearest(str(wanted), {str(output.absolute()) for output in outputs}, cutoff=0, hint="{}")
    reason = "".join(f"\n  {refusal}" for refusal in refusals)
    raise UnknownPathError(f"no task makes {path}{reason}\n  the nearest path that one makes: {near or '(none)'}")


def _candidates(path: Path, known_rules: Iterable[type[EspoTask]]) -> Iterator[tuple[type[EspoTask], dict[str, str]]]:
    run = context()
    constants = {
        name: str(Path(value).absolute()) if name in ("tmpdir", "final") else value
        for name, value in run.fields.items()
    }
    for cls in known_rules:
        names = set(wildcard_names(cls))
        for _, port in ports_of(cls, OutputPort):
            template = port.template_of(cls, run)
            # Facets say too little of a simulation: only its own path can be compared.
            named = list(run.simulations) if "{institution}" in template else [""]
            for known in ({"sim_id": name, **run.facets(name)} if name else {} for name in named):
                wildcards = match_path(template, constants | known, path)
                if wildcards is not None and set(wildcards) | (names & known.keys()) == names:
                    yield cls, wildcards | {name: known[name] for name in names & known.keys()}


def template_of(cls: type[EspoTask]) -> dict[str, Path]:
    """Return the path templates of a rule's outputs, with their wildcards, by port name."""
    names = {name: f"{{{name}}}" for name in wildcard_names(cls)}
    run, facets = context(), {name: f"{{{name}}}" for name in (*FACETS, "driving")}
    fields = facets | run.fields | names
    return {name: render_path(port.template_of(cls, run), fields) for name, port in ports_of(cls, OutputPort)}
