"""Checks of what a project writes as a class of tasks: names of parameters, `work`, options, and values as text."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable
from contextlib import suppress
from numbers import Real
from typing import Any

import luigi
from luigi.cmdline_parser import CmdlineParser
from luigi.parameter import _no_value

from espo_luigi.errors import SizingError, SubmissionError
from espo_luigi.jobs.resources import parse_memory, parse_time
from espo_luigi.jobs.schedulers import SCHEDULERS

# The classes that a parameter may have that is a resource without a default.
_KINDS_OF_RESOURCES = (luigi.Parameter, luigi.IntParameter, luigi.NumericalParameter, luigi.ChoiceParameter)


def check_names(task: type[luigi.Task], base: type[luigi.Task]) -> None:
    """Check that no parameter of a class has the name of an attribute that Luigi or `base`, SlurmTask, needs.

    Raises
    ------
    SubmissionError
        If a parameter has such a name.
    """
    ours = [vars(heir).items() for heir in task.__mro__[1:] if heir.__module__.partition(".")[0] == "espo_luigi"]
    needed = {name for items in ours for name, value in items if not isinstance(value, luigi.Parameter)}
    for name in sorted((needed | set(_luigis_names())) - _settings_of_luigi()):
        if isinstance(getattr(task, name, None), luigi.Parameter):
            raise SubmissionError(
                f"{task.__module__}.{task.__name__}: the parameter {name} has the name of an attribute that every "
                f"{base.__name__} has; give it another name"
            )


def own_resources(task: type[luigi.Task], base: type[luigi.Task], names: Iterable[str]) -> dict[str, Any]:
    """Return the defaults of those resources in `names` that a class has as parameters and no other heir of `base` has.

    Raises
    ------
    SubmissionError
        If what has the name of a resource is no parameter, or is a parameter that means something else.
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
        default = parameter._default
        has_none = default is _no_value and owner is task and type(parameter) in _KINDS_OF_RESOURCES
        if not (has_none or _is_amount(name, default)):
            raise SubmissionError(
                f"{where}: the parameter {name} ({type(parameter).__name__} of {owner.__name__}) has the name of a "
                f"resource of every {base.__name__}'s job, but no such resource as its default; give it another name"
            )
        if not has_none:
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
def _luigis_names() -> tuple[str, ...]:
    """Return the names of a task's attributes in Luigi."""
    return tuple(dir(luigi.Task()))


@functools.cache
def _settings_of_luigi() -> set[str]:
    """Return the names of those attributes that a class may set: `priority`, `retry_count` and so on."""
    names = {name for name in _luigis_names() if not callable(getattr(luigi.Task, name, callable))}
    return {name for name in names if not name.startswith(("_", "task_", "param_"))}


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
def check_work(task: type[luigi.Task], base: Any, engine_name: str) -> None:
    """Check that a job can run what a class defines as its work.

    Raises
    ------
    SubmissionError
        If `work` is a generator or a coroutine, or if there is only a `run` and the engine is not the local one.
    """
    family, work = task.get_task_family(), getattr(task, "work", base.work)
    if inspect.isgeneratorfunction(work) or inspect.iscoroutinefunction(work) or inspect.isasyncgenfunction(work):
        raise SubmissionError(no_steps(family))
    if engine_name != "local" and _works_in_driver(task, base):
        raise SubmissionError(
            f"{family} overrides `run`, which the driver calls: with engine = {engine_name}, its work would not run "
            "in a job. Call the method `work`; a task that is meant for the driver has luigi.Task as its base"
        )


def check_options(task: Any) -> None:
    """Check that each of a class's options is read by an engine; raises `SubmissionError`."""
    family = task.get_task_family()
    if unknown := sorted(task.options_default.keys() - SCHEDULERS.keys()):
        raise SubmissionError(f"{family}: options_default has {unknown[0]!r}; expected {' or '.join(SCHEDULERS)}")


def check_values(task: luigi.Task) -> None:
    """Check that a task's job, which gets parameters as text, has the same values.

    Raises
    ------
    SubmissionError
        If a value is changed on its way through text, or does not travel because its parameter is private.
    """
    as_text, family = task.to_str_params(), task.get_task_family()
    for name, parameter in task.get_params():
        if name in ("memory", "time"):
            continue  # numbers as well: jobs get these two from `Resources`
        value = getattr(task, name)
        try:
            read = _read(parameter, as_text[name]) if name in as_text else _configured(parameter, family, name)
            is_same, told = _is_same(parameter, value, read), f"would be {read!r} in its job"
        except Exception as error:
            is_same, told = False, f"cannot be read back in its job ({type(error).__name__}: {error})"
        where = f"{family}: the parameter {name}"
        if not is_same and name not in as_text:
            raise SubmissionError(
                f"{where} is private, and its job would not get its value: set it in luigi.cfg, or give the parameter "
                "visibility=ParameterVisibility.HIDDEN"
            )
        if not is_same:
            is_lost = value is None and isinstance(parameter, luigi.BoolParameter)
            lost = " (Luigi made None of the value that was given)" if is_lost else ""
            raise SubmissionError(
                f"{where} is {value!r} ({type(value).__name__}) here{lost}, and {told}. Values travel as text: give a "
                f"value that {type(parameter).__name__} reads back, or take another class (Parameter takes an empty "
                "text; OptionalParameter, OptionalIntParameter and so on take None; PathParameter takes a path; "
                "TimeDeltaParameter takes whole seconds)"
            )


def _configured(parameter: luigi.Parameter, family: str, name: str) -> Any:
    """Return the value that a job finds for a parameter that does not travel: the job has no command line of Luigi."""
    found = [value for value, _ in parameter._value_iterator(family, name)]
    of_job = found[1:] if CmdlineParser.get_instance() else found
    return hashable(parameter.normalize(next(value for value in of_job if value is not _no_value)))


def _is_same(parameter: luigi.Parameter, value: Any, read: Any) -> bool:
    if type(value).__eq__ is object.__eq__:
        return type(read) is type(value) and parameter.serialize(read) == parameter.serialize(value)
    if isinstance(value, Real) and type(read) is not type(value):
        return read == value and float(read) == float(value)  # NumPy rounds 0.1 before it compares it with float32(0.1)
    return bool(read == value) or repr(read) == repr(value)  # NaN is not equal to itself


@functools.lru_cache(maxsize=4096)
def _read(parameter: luigi.Parameter, text: str) -> Any:
    """Return the value that a task gets from a parameter's text."""
    return hashable(parameter.normalize(parameter.parse(text)))


def hashable(value: Any) -> Any:
    """Return a parameter's value as Luigi gives it to a task."""
    return tuple(value) if isinstance(value, (list, set)) else value
