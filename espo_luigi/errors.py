"""Every exception that espo_luigi raises on purpose: one hierarchy, so that callers can catch what they mean.

A message says what was got, what was expected, where, and what to do about it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging


class EspoError(Exception):
    """Base of all errors that espo_luigi raises on purpose; shown to users without a traceback."""


class ConfigurationError(EspoError):
    """A configuration file is missing, unreadable, or holds a key or a value that is not allowed."""


class ConfigurationChangedError(ConfigurationError):
    """A job finds another configuration than the one under which it was ordered."""


class ParameterError(EspoError):
    """A task parameter names something that neither the configuration nor the catalogue holds."""


class CatalogError(EspoError):
    """A catalogue cannot be read, or what it holds does not answer the search."""


class DataError(EspoError):
    """Input data that cannot be used: wrong units, missing period, all NaN, an unreadable file."""


class HealthCheckError(DataError):
    """A product failed one or more of the health checks that the configuration raises on."""


class StoreError(EspoError):
    """A store cannot be written, published or read."""


class InputChangedError(StoreError):
    """A store that a job reads was removed or replaced while it worked: tried again, as often as makes sense."""


class InstallationError(EspoError):
    """What is installed is incomplete, or cannot be collected or compiled."""


class SizingError(EspoError):
    """Requested resources that contradict each other or exceed what there is."""


class SubmissionError(EspoError):
    """A job that could not be submitted."""


class JobError(EspoError):
    """A job that ran and did not succeed."""


class JobInputError(JobError):
    """A job that found an input gone or replaced: worth another try, once the input is there again."""


class StoppedError(JobError):
    """A task that was stopped with its run, or never begun: it has not failed."""

    outcome = "stopped"


class LeftError(StoppedError):
    """A task whose job is left running at the end of its run, and is taken over by the next one."""

    outcome = "detached"


class WorkersLostError(JobError):
    """A job whose Dask workers on its other nodes are gone: worth another try."""


class ClaimLostError(JobError):
    """A job that works on although another, or its own later start, has the work now: it publishes nothing."""


class UnknownPathError(EspoError):
    """A path that no task makes."""


def as_text(text: str) -> str:
    """Return a text for a terminal: what others wrote cannot move its cursor or change its colours.

    Control characters, and those that reverse the direction of writing, become escapes (``\\x1b``); ends of lines and
    tabs stay.
    """
    return _NOT_TEXT.sub(lambda match: repr(match[0])[1:-1], text)


# C0 and C1 but for tabs and ends of lines, DEL, marks of direction, and halves of characters.
_NOT_TEXT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def log_as_text(record: logging.LogRecord) -> bool:
    """Have a log's message be `as_text`: a filter for handlers that write to a terminal, which lets all through."""
    message = record.getMessage()
    if (harmless := as_text(message)) != message:
        record.msg, record.args = harmless, None
    return True


def nearest(name: str, allowed: Iterable[str], *, cutoff: float = 0.5, hint: str = "; did you mean {}?") -> str:
    """Return the hint with the allowed name that is nearest to `name`, or nothing."""
    close = difflib.get_close_matches(name, list(allowed), n=1, cutoff=cutoff)
    return hint.format(close[0]) if close else ""


def not_one_of(option: str, got: str, allowed: Collection[str]) -> str:
    """Return that what was got for an option of a command is not allowed, what is, and the nearest of that."""
    words = ", ".join(allowed) or "(none)"
    return f"--{option.replace('_', '-')} {got!r} is not one of: {words}{nearest(got, allowed)}"
