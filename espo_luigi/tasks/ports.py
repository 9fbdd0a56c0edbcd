"""Named inputs and outputs of a task, as sciluigi's ports: attributes ``in_*`` hold upstream attributes ``out_*``.

This is the only module that imports sciluigi, whose import otherwise creates a ``log/`` folder, adds handlers to
Luigi's loggers and warns about PostgreSQL and S3. A stand-in for its ``interface`` module, put in place before the
import, avoids all of it. The package's own `__init__` imports that module.
"""

from __future__ import annotations

import functools
import itertools
import logging
import string
import sys
import types
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import luigi

from espo_luigi.driver.graph import made
from espo_luigi.errors import FORMER_RULES
from espo_luigi.fields import render_path
from espo_luigi.store import Marker
from espo_luigi.store.marker import read_marker


def _import_sciluigi() -> types.ModuleType:
    stand_in = types.ModuleType("sciluigi.interface")
    stand_in.__dict__.update(
        run=luigi.run,
        run_local=luigi.run,
        LOGFMT_STREAM="%(asctime)s %(levelname)8s %(message)s",
        LOGFMT_LUIGI="%(asctime)s %(levelname)8s    LUIGI %(message)s",
        LOGFMT_SCILUIGI="%(asctime)s %(levelname)8s SCILUIGI %(message)s",
        DATEFMT="%Y-%m-%d %H:%M:%S",
    )
    sys.modules.setdefault("sciluigi.interface", stand_in)
    previous = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            # Of invalid escapes in its source: Python 3.12 and later tell users of them when they first compile it.
            warnings.simplefilter("ignore")
            import sciluigi
            import sciluigi.dependencies
    finally:
        logging.disable(previous)
    return sciluigi


_sciluigi = _import_sciluigi()
DependencyHelpers: Any = _sciluigi.dependencies.DependencyHelpers
TargetInfo: Any = _sciluigi.dependencies.TargetInfo


class ZarrTarget(luigi.Target):
    """A Zarr store of a task with certain parameters: a folder (``.zarr``) or an archive (``.zarr.zip``)."""

    def __init__(self, path: Path, task: str, parameters: Mapping[str, str]) -> None:
        self.path = path
        self.task = task
        self.parameters = parameters

    def exists(self) -> bool:
        """Return True if the store has its root metadata, and a marker of this task and parameters."""
        return self.marker() is not None

    def marker(self) -> Marker | None:
        """Return the marker if the store is complete and has this task and parameters; a single read."""
        marker = read_marker(self.path)
        # An archive may be that of a former release's rule.
        ours = (
            marker is not None
            and self.task in (marker.task, *FORMER_RULES.get(marker.task, ()))
            and marker.parameters == self.parameters
        )
        return marker if ours else None

    def __str__(self) -> str:
        return str(self.path)


class ZarrInfo(TargetInfo):
    """The store that an output port of a task makes."""

    def __init__(self, task: Any, path: Path) -> None:
        self.task = task
        self.path = path
        self.target = ZarrTarget(path, task.get_task_family(), task.wildcards)


@dataclass(eq=False, slots=True)
class BoundOutput:
    """An output port of a task; a call returns its `ZarrInfo`, as sciluigi expects of ``out_*`` attributes."""

    task: Any
    port: OutputPort

    def __call__(self) -> ZarrInfo:
        # The task keeps it while the fields of paths are the same: each task that needs the output asks for it.
        fields, key = self.task.context.fields, f"_info_{self.port.name}"
        of_fields, info = self.task.__dict__.get(key, (None, None))
        if of_fields is not fields:
            info = ZarrInfo(self.task, self.port.path_of(self.task))
            self.task.__dict__[key] = fields, info
        return info


@dataclass(eq=False)
class OutputPort:
    """A named output of a rule: a path template, and whether the store is temporary or packed from a port.

    Of a port's variables, an archive has the values, or the flags: `of_flags`.
    """

    template: str
    is_temporary: bool = False
    packed_from: str | None = None
    of_flags: bool = False
    name: str = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, task: Any, owner: type) -> Any:
        return self if task is None else BoundOutput(task, self)

    def template_of(self, rule: Any, run: Any) -> str:
        """Return the path template of this output of `rule`: the production's own, or the class's.

        Where a production names the place of the values, `out_final`, their flags are beside them: `flags_…`.
        """
        templates, family = run.production.templates, rule.get_task_family()
        folder, _, file = templates.get(f"{family}.out_final", "").rpartition("/")
        usual = f"{folder}/flags_{file}" if self.of_flags and file else self.template
        return str(templates.get(f"{family}.{self.name}", usual))

    def path_of(self, task: Any) -> Path:
        """Return the path of this output for `task`."""
        run = task.context
        template, fields = self.template_of(type(task), run), run.fields | task.wildcards
        if not fields.keys() >= _names_in(template):
            fields |= run.facets(task.sim_id)
        return render_path(template, fields)


@functools.lru_cache(maxsize=1024)
def _names_in(template: str) -> frozenset[str]:
    return frozenset(name for _, name, _, _ in string.Formatter().parse(template) if name)


def temporary(template: str) -> Any:
    """Declare an output in the temporary folder, deleted once every task of the run that needs it is complete."""
    return OutputPort("{tmpdir}/" + template, is_temporary=True)


def kept(template: str, *, of_flags: bool = False) -> Any:
    """Declare an output in the final folder; one of flags is there only in runs with the section `flags`."""
    return OutputPort("{final}/" + template, of_flags=of_flags)


def packed(template: str, source: str, *, of_flags: bool = False) -> Any:
    """Declare an archive in the final folder, packed from the port `source` (``in_…`` or ``out_…``) of the same task.

    The template ends in ``.zarr.zip``; the suffix of the run's form of archive takes that place. An archive of flags is
    there only in runs with the section `flags`.
    """
    path = "{final}/" + template.removesuffix(".zarr.zip") + ".{archive}"
    return OutputPort(path, packed_from=source, of_flags=of_flags)


Named = str | Callable[[Any], str]
Wildcard = str | Callable[[Any], str | list[str]]


@dataclass(eq=False)
class InputPort:
    """A named input of a rule: by default, a certain output of a certain upstream task.

    Wired on first use, unless something has set the attribute before. `rules` are all that `which`, if given, may
    return, besides None, which makes an empty list of inputs.
    """

    rules: tuple[Any, ...]
    output: Named
    which: Callable[[Any], Any] | None
    fixed: dict[str, Wildcard]
    name: str = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, task: Any, owner: type) -> Any:
        if task is None:
            return self
        bound = self._wire(task)
        task.__dict__[self.name] = bound
        return bound

    def _wire(self, task: Any) -> Any:
        rule = self.which(task) if self.which else self.rules[0]
        if rule is None:
            return []
        taken = wildcard_names(rule)
        fixed = {name: value for name, value in self.fixed.items() if name in taken or not self.which}
        values = {name: value(task) if callable(value) else value for name, value in fixed.items()}
        own = task.param_kwargs
        shared = {name: own.get(name) or getattr(task, name) for name in taken if name in own or hasattr(task, name)}
        lists = {name: value for name, value in values.items() if isinstance(value, list)}
        every = [dict(zip(lists, ones, strict=True)) for ones in itertools.product(*lists.values())]
        output = self.output(task) if callable(self.output) else self.output
        found = [getattr(made(rule, shared | values | one), output) for one in every]
        return found if lists else found[0]


def upstream(rule: Any, output: Named, *, which: Callable[[Any], Any] | None = None, **fixed: Wildcard) -> Any:
    """Declare an input: the port `output` of a rule, with this task's wildcards.

    Of several rules, `which` returns the rule of a task, or None if it has no such input. A keyword fixes a wildcard,
    if the rule has it; a list makes a list of inputs, several lists one of their combinations. A function of the task
    may stand for a wildcard, or the port's name.
    """
    return InputPort(rule if isinstance(rule, tuple) else (rule,), output, which, fixed)


@functools.cache
def wildcard_names(task_class: Any) -> tuple[str, ...]:
    """Return the names of the parameters that identify a task."""
    return tuple(name for name, parameter in task_class.get_params() if parameter.significant)


@functools.cache
def ports_of(task_class: type, kind: type) -> tuple[tuple[str, Any], ...]:
    """Return the ports of a kind (`InputPort` or `OutputPort`) that a class has, those of base classes first."""
    named = dict(item for base in reversed(task_class.__mro__) for item in list(vars(base).items()))
    return tuple((name, value) for name, value in named.items() if isinstance(value, kind))
