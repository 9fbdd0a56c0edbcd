"""The task that the words of a ``luigi`` command name, for commands that do not run it, and luigi's refusals."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from typing import Any

from luigi.cmdline_parser import CmdlineParser
from luigi.parameter import ParameterException
from luigi.task_register import TaskClassException

from espo_luigi.driver.run.preview import preview
from espo_luigi.errors import ParameterError


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
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            CmdlineParser(words)
        with named_by(words) as task:
            return preview(task)
    except (TaskClassException, ParameterException) as error:
        raise ParameterError(without_arguments(error)) from error
    except SystemExit as end:
        if not end.code:  # --help
            raise
        raise ParameterError(said.getvalue().rpartition("error: ")[2].strip()) from end


def wrong_setting(error: Exception) -> str:
    """Return which option of luigi.cfg luigi cannot read, and why; nothing of any other error."""
    where = re.search(r"^(\w+): Error when parsing the default value of '(\w+)'$", without_arguments(error))
    return f"luigi.cfg, [{where[1]}] {where[2]}: {error.__cause__}" if where else ""


def without_arguments(error: Exception) -> str:
    """Return an error of luigi without all values of the task, which stand behind its name."""
    return re.sub(r"\[args=.*\](?=: )", "", str(error), flags=re.DOTALL)
