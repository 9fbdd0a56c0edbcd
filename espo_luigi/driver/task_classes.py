"""Checks of what a project writes as a class of tasks: names of parameters, `work`, options, and values as text."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Iterable
from typing import Any

import luigi
from luigi.configuration import get_config

from espo_luigi.errors import SubmissionError
from espo_luigi.jobs.schedulers.known import SCHEDULERS


def check_names(task: type[luigi.Task], base: type[luigi.Task], resources: Iterable[str]) -> None:
    """Check that no parameter of a class has the name of an attribute that Luigi or `base`, SlurmTask, needs.

    Parameters named as `resources` are those of `base`; a heir of `base` may give them another default.

    Raises
    ------
    SubmissionError
        If a parameter has such a name.
    """
    ours = [vars(heir).items() for heir in task.__mro__[1:] if heir.__module__.partition(".")[0] == "espo_luigi"]
    needed = {name for items in ours for name, value in items if not isinstance(value, luigi.Parameter)}
    where = f"{task.__module__}.{task.__name__}: the parameter"
    for name in sorted((needed | set(_luigis_names())) - _settings_of_luigi()):
        if isinstance(getattr(task, name, None), luigi.Parameter):
            raise SubmissionError(
                f"{where} {name} has the name of an attribute that every {base.__name__} has; give it another name"
            )
    for heir, name in itertools.product(task.__mro__, resources):
        own = vars(heir).get(name)
        is_resource = base in heir.__mro__ and type(own) is type(vars(base)[name])
        if isinstance(own, luigi.Parameter) and not is_resource:
            raise SubmissionError(
                f"{where} {name} (a {type(own).__name__} of {heir.__name__}) has the name of a resource of every "
                f"{base.__name__}'s job; give it another name"
            )


@functools.cache
def _luigis_names() -> tuple[str, ...]:
    """Return the names of a task's attributes in Luigi."""
    return tuple(dir(luigi.Task()))


@functools.cache
def _settings_of_luigi() -> set[str]:
    """Return the names of those attributes that a class may set: `priority`, `retry_count` and so on."""
    names = {name for name in _luigis_names() if not callable(getattr(luigi.Task, name, callable))}
    return {name for name in names if not name.startswith(("_", "task_", "param_"))}


def works_in_driver(task: type[luigi.Task], base: Any) -> bool:
    """Return True if a class overrides the `run` of `base` in place of `work`, so that its tasks have no jobs."""
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
    family, work = task.get_task_family(), inspect.unwrap(getattr(task, "work", base.work))
    if inspect.isgeneratorfunction(work) or inspect.iscoroutinefunction(work) or inspect.isasyncgenfunction(work):
        raise SubmissionError(no_steps(family))
    if engine_name != "local" and works_in_driver(task, base):
        raise SubmissionError(
            f"{family} overrides `run`, which the driver calls: with engine = {engine_name}, its work would not run "
            "in a job. Call the method `work`; a task that is meant for the driver has luigi.Task as its base"
        )


def check_options(task: Any) -> None:
    """Check that each of a class's options is read by an engine; raises `SubmissionError`."""
    family = task.get_task_family()
    for name in SCHEDULERS:
        if hasattr(task, f"{name}_default"):
            raise SubmissionError(f"{family}: {name}_default has no effect; write options_default = {{{name!r}: …}}")
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
        value = getattr(task, name)
        try:
            text = as_text[name] if name in as_text else get_config().get(family, name, None)
            read = hashable(parameter.normalize(parameter._default)) if text is None else _read(parameter, text)
            is_same = bool(read == value) or repr(read) == repr(value)  # NaN is not equal to itself
        except Exception as error:
            is_same, read = False, error
        where = f"{family}: the parameter {name}"
        if not is_same and name not in as_text:
            raise SubmissionError(
                f"{where} is private, and its job would not get its value: set it in luigi.cfg, or make it a hidden one"
            )
        if not is_same:
            raise SubmissionError(
                f"{where} is {value!r} ({type(value).__name__}) here, and would be {read!r} in its job. Values travel "
                f"as text: give a value that {type(parameter).__name__} reads back, or take another class "
                "(OptionalParameter, OptionalIntParameter and so on take None, PathParameter takes a path)"
            )


@functools.lru_cache(maxsize=4096)
def _read(parameter: luigi.Parameter, text: str) -> Any:
    """Return the value that a task gets from a parameter's text."""
    return hashable(parameter.normalize(parameter.parse(text)))


def hashable(value: Any) -> Any:
    """Return a parameter's value as Luigi gives it to a task."""
    return tuple(value) if isinstance(value, (list, set)) else value
