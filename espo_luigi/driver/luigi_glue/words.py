"""The words of a `luigi` command: the task that they name, and why Luigi refuses them, in a paragraph."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from configparser import InterpolationError
from contextlib import contextmanager, redirect_stderr, suppress
from typing import Any

import luigi
from luigi.cmdline_parser import CmdlineParser
from luigi.configuration import get_config
from luigi.parameter import MissingParameterException, ParameterException
from luigi.task_register import Register, TaskClassException

from espo_luigi.driver.run.run import preview
from espo_luigi.driver.settings.espo import choices_of, expected_of
from espo_luigi.driver.settings.names import wrong_reference
from espo_luigi.driver.task import SlurmTask
from espo_luigi.errors import EspoError, ParameterError, nearest, not_one_of


@contextmanager
def named_by(words: Sequence[str]) -> Iterator[Any]:
    """Yield the task that the words of a ``luigi`` command name, under the settings that are among them."""
    with CmdlineParser.global_instance(list(words)) as parsed:
        yield parsed.get_task_obj()


def preview_of(words: Sequence[str]) -> str:
    """Return the preview of the task that the words of a ``luigi`` command name (``--module … Train --region …``).

    Raises
    ------
    ParameterError
        If luigi would refuse them.
    """
    told = io.StringIO()
    try:
        with redirect_stderr(told):
            CmdlineParser(words)
        with named_by(words) as task:
            return preview(task)
    except (TaskClassException, ParameterException) as error:
        raise ParameterError(_no_task(error) or without_arguments(error)) from error
    except SystemExit as end:
        if not end.code:  # --help
            raise
        root = CmdlineParser._build_parser().parse_known_args(list(words))[0].root_task
        raise ParameterError(refusal(told.getvalue().rpartition("error: ")[2].strip(), root)) from end


def refusal(message: str, root_task: str | None) -> str:
    """Return the message of Luigi's parser; of an unknown option, with the nearest option of the task."""
    unknown = re.search(r"unrecognized arguments:.*?(--[^\s=]+)", message)
    if not unknown or not root_task:
        return message
    flags = re.findall(r"--[\w-]+", CmdlineParser._build_parser(root_task).format_help())
    return f"{root_task} has no option {unknown[1]}{nearest(unknown[1], flags)}"


def _no_task(error: Exception) -> str:
    """Return that there is no task of a name, with the nearest; nothing of other errors."""
    unknown = re.match(r"No task (\S+)\. ", str(error))
    return f"there is no task {unknown[1]}{nearest(unknown[1], _tasks())}" if unknown else ""


def _tasks() -> Iterator[str]:
    """Yield the names of all tasks; Luigi also registers the sections of luigi.cfg."""
    for name in Register.task_names():
        with suppress(TaskClassException):  # two tasks have the name
            if not issubclass(Register.get_task_cls(name), luigi.Config):
                yield name


def wrong_setting(error: Exception) -> str:
    """Return which option of luigi.cfg luigi cannot read, and why; nothing of any other error."""
    for cause in (error, error.__cause__):
        if isinstance(cause, InterpolationError):
            return f"luigi.cfg, {wrong_reference(cause)}"
    where = re.search(r"^(\w+): Error when parsing the default value of '(\w+)'$", without_arguments(error))
    if not where:
        return ""
    family, name = where[1], where[2]
    parameter = dict(Register.get_task_cls(family).get_params())[name]
    got, choices = get_config().get(family, name, ""), choices_of(parameter)
    said = f"{got!r} is not one of: {', '.join(choices)}{nearest(got, choices)}" if choices else f"{error.__cause__}"
    if isinstance(parameter, luigi.IntParameter):
        said = f"got {got!r}, expected {expected_of(parameter)}"
    return f"luigi.cfg, [{family}] {name}: {said}"


def without_arguments(error: Exception) -> str:
    """Return an error of luigi without all values of the task, which stand behind its name."""
    return re.sub(r"\[args=.*\](?=: )", "", str(error), flags=re.DOTALL)


def reason(error: Exception, words: Sequence[str]) -> str:
    """Return the error in the `words` of Luigi's command, or nothing if they did not cause `error`."""
    if isinstance(error, TaskClassException):
        return _no_task(error) or str(error)
    with CmdlineParser.global_instance(list(words)) as parser:
        if isinstance(error, MissingParameterException):
            return _missing(without_arguments(error), parser.known_args.root_task)
        return next(_wrong_values(parser), "") or wrong_setting(error)


def _missing(message: str, root: str) -> str:
    """Return which parameter the root task lacks; nothing if the error is about a different task."""
    found = re.fullmatch(rf"{re.escape(root)}: requires the '(\w+)' parameter to be set", message)
    if not found:
        return ""
    kind, name, expected = Register.get_task_cls(root), found[1], ()
    with suppress(EspoError, OSError):
        expected = kind.expected(name) if issubclass(kind, SlurmTask) else ()
    choices = f"; expected one of: {', '.join(expected)}" if expected else ""
    return f"{root}: --{name.replace('_', '-')} is missing{choices}"


def _wrong_values(parser: CmdlineParser) -> Iterator[str]:
    for name, text, parameter in _given(parser):
        try:
            parameter.parse(text)
        except Exception as error:
            choices = choices_of(parameter)
            yield not_one_of(name, text, choices) if choices else f"--{name.replace('_', '-')} {text!r}: {error}"


def _given(parser: CmdlineParser) -> Iterator[tuple[str, Any, luigi.Parameter]]:
    """Yield the options of the command line, each with its name, its text, and the parameter that it sets."""
    given = vars(parser.known_args)
    for family, has_no_section, name, parameter in Register.get_all_params():
        qualified = f"{family}_{name}"
        if text := given.get(qualified):
            yield name if has_no_section else qualified, text, parameter
        if family == given["root_task"] and (text := given.get(name)):
            yield name, text, parameter
