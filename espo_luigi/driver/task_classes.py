"""Checks of what a project writes as a class of tasks: names of parameters, `work`, options, and values as text."""

from __future__ import annotations

import functools
import importlib.util
import inspect
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import luigi
from luigi.cmdline_parser import CmdlineParser
from luigi.parameter import ParameterVisibility, _no_value

from espo_luigi.errors import SizingError, SubmissionError
from espo_luigi.jobs.resources import parse_memory, parse_time
from espo_luigi.jobs.schedulers import SCHEDULERS


def check_names(task: type[luigi.Task], base: type[luigi.Task]) -> None:
    """Raise `SubmissionError` if a parameter has the name of an attribute that Luigi or `base`, SlurmTask, needs."""
    ours = [vars(heir).items() for heir in task.__mro__[1:] if heir.__module__.partition(".")[0] == "espo_luigi"]
    needed = {name for items in ours for name, value in items if not isinstance(value, luigi.Parameter)}
    for name in sorted(needed | _luigis_names()):
        # A class may set `priority`, `retry_count` and other values of Luigi's.
        is_value = name in _luigis_names() and not callable(getattr(luigi.Task, name, callable))
        may_be_set = is_value and not name.startswith(("_", "task_", "param_"))
        if isinstance(getattr(task, name, None), luigi.Parameter) and not may_be_set:
            raise SubmissionError(
                f"{task.__module__}.{task.__name__}: the parameter {name} has the name of an attribute that every "
                f"{base.__name__} has; give it another name"
            )


def own_resources(task: type[luigi.Task], base: type[luigi.Task], names: Iterable[str]) -> dict[str, Any]:
    """Return the defaults of those resources in `names` that a class has as parameters and no other heir of `base` has.

    Raise `SubmissionError` if what has the name of a resource is no parameter, or means something else.
    """
    defaults = {}
    for name in names:
        owner = next(kind for kind in task.__mro__ if name in vars(kind))
        if owner is not task and base in owner.__mro__:
            continue  # seen when `owner` was defined
        parameter, where = vars(owner)[name], f"{task.__module__}.{task.__name__}"
        if not isinstance(parameter, luigi.Parameter):
            value = repr(parameter) if isinstance(parameter, (int, str)) else "…"
            raise SubmissionError(
                f"{where}: {name}, a resource of every {base.__name__}'s job, is {parameter!r}; expected a parameter: "
                f"write resources_default = Resources({name}={value})"
            )
        if not _is_amount(name, default := parameter._default):
            raise SubmissionError(
                f"{where}: the parameter {name} ({type(parameter).__name__} of {owner.__name__}) has the name of a "
                f"resource of every {base.__name__}'s job, but no such resource as its default; give it another name"
            )
        # A number is in Slurm's units, as a text is.
        defaults[name] = str(default) if name in ("memory", "time") else default
    return defaults


def _is_amount(name: str, default: Any) -> bool:
    """Return True if the resource `name` can have the value `default`."""
    parse = {"memory": parse_memory, "time": parse_time}.get(name)
    if parse is None or not isinstance(default, (int, str)):
        return isinstance(default, int)
    with suppress(SizingError):
        return default == "" or parse(default) > 0
    return False


@functools.cache
def _luigis_names() -> frozenset[str]:
    return frozenset(dir(luigi.Task()))


def has_job(task: Any, base: type[luigi.Task]) -> bool:
    """Return False for an external task, and if the class overrides the `run` of `base` in place of `work`."""
    return task.run is not None and not _works_in_driver(type(task), base)


def _works_in_driver(task: type[luigi.Task], base: Any) -> bool:
    return task.run is not base.run and getattr(task, "work", None) is base.work


def no_steps(family: str) -> str:
    """Return the error message for a `work` that is a generator or a coroutine."""
    return (
        f"{family}: work is a generator or a coroutine (it has yield or async), and a job would not run it; expected a "
        "function that does the work. Name the tasks that are needed in `requires`: they are done before the job starts"
    )


@functools.cache
def check_class(task: Any, base: Any, engine_name: str) -> None:
    """Raise `SubmissionError` if an engine cannot run what a class defines as its work, or none reads its options.

    `work` must not have steps. A `run` in its place is for the local engine only.
    """
    family, work = task.get_task_family(), getattr(task, "work", base.work)
    if unknown := sorted(task.options_default.keys() - SCHEDULERS.keys()):
        raise SubmissionError(f"{family}: options_default has {unknown[0]!r}; expected {' or '.join(SCHEDULERS)}")
    if inspect.isgeneratorfunction(work) or inspect.iscoroutinefunction(work) or inspect.isasyncgenfunction(work):
        raise SubmissionError(no_steps(family))
    if engine_name != "local" and _works_in_driver(task, base):
        raise SubmissionError(
            f"{family} overrides `run`, which the driver calls: with engine = {engine_name}, its work would not run "
            "in a job. Call the method `work`; a task that is meant for the driver has luigi.Task as its base"
        )


# By class and parameter: the last value that was checked. Tasks share those of luigi.cfg.
_travel: dict[type[luigi.Task], dict[str, Any]] = {}


def check_values(task: luigi.Task) -> None:
    """Raise `SubmissionError` if a value changes on its way to the job as text, or is private and does not travel."""
    family, travel = task.get_task_family(), _travel.setdefault(type(task), {})
    for name, parameter in task.get_params():
        value, is_private = getattr(task, name), parameter.visibility == ParameterVisibility.PRIVATE
        # Numbers as well: jobs get these two from `Resources`. What luigi.cfg has for private ones may change.
        if name in ("memory", "time") or (not is_private and travel.get(name, _no_value) is value):
            continue
        try:
            text = None if is_private else parameter.serialize(value)
            read = _configured(parameter, family, name) if text is None else _read(parameter, text)
            # NaN is not equal to itself.
            is_same, told = bool(read == value) or repr(read) == repr(value), f"would be {read!r} in its job"
        except Exception as error:
            is_same, told = False, f"cannot be read back in its job ({type(error).__name__}: {error})"
        if is_same:
            travel[name] = value
            continue
        where = f"{family}: the parameter {name}"
        if is_private:
            raise SubmissionError(
                f"{where} is private, and its job would not get its value: set it in luigi.cfg, or give the parameter "
                "visibility=ParameterVisibility.HIDDEN"
            )
        is_lost = value is None and isinstance(parameter, luigi.BoolParameter)
        lost = " (Luigi made None of the value that was given)" if is_lost else ""
        raise SubmissionError(
            f"{where} is {value!r} ({type(value).__name__}) here{lost}, and {told}. Values travel as text: give a "
            f"value that {type(parameter).__name__} reads back, or take another class (Parameter takes an empty text; "
            "OptionalParameter, OptionalIntParameter and so on take None; PathParameter takes a path; "
            "TimeDeltaParameter takes whole seconds)"
        )


def _configured(parameter: luigi.Parameter, family: str, name: str) -> Any:
    """Return the value that a job finds for a parameter that does not travel: the job has no command line of Luigi."""
    found = [value for value, _ in parameter._value_iterator(family, name)]
    of_job = found[1:] if CmdlineParser.get_instance() else found
    return hashable(parameter.normalize(next(value for value in of_job if value is not _no_value)))


@functools.lru_cache(maxsize=4096)
def _read(parameter: luigi.Parameter, text: str) -> Any:
    """Return the value that a task gets from a parameter's text."""
    return hashable(parameter.normalize(parameter.parse(text)))


def hashable(value: Any) -> Any:
    """Return a parameter's value as Luigi gives it to a task."""
    return tuple(value) if isinstance(value, (list, set)) else value


@functools.cache
def check_dask(family: str) -> None:
    """Raise an `EspoError` if the Dask session of a task cannot be had: not installed, or with damaged settings."""
    if missing := [name for name in ("dask", "distributed", "cryptography") if importlib.util.find_spec(name) is None]:
        raise SubmissionError(
            f"{family}: its work runs in a Dask session, and {', '.join(missing)} is not installed here: run "
            f"`pip install {' '.join(missing)}`, or write `uses_dask = False` into the class"
        )
    importlib.import_module("espo_luigi.jobs.dask.imported")
