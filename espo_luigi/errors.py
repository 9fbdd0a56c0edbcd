"""The exceptions that espo_luigi raises on purpose, in a single hierarchy, and texts that are safe for a terminal.

Each message names the value that was got, the expected value, the place, and the remedy.
"""

from __future__ import annotations

import difflib
import re
import traceback
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from espo_luigi.redaction import without_secrets

if TYPE_CHECKING:
    import logging


class EspoError(Exception):
    """Base of all errors that espo_luigi raises on purpose; shown to users without a traceback."""

    def __str__(self) -> str:
        """Return the message without secrets: it may name an address of a catalogue, and end in a log."""
        return without_secrets(super().__str__())


class ConfigurationError(EspoError):
    """A configuration file is missing, unreadable, or holds a forbidden key or value."""


class ConfigurationChangedError(ConfigurationError):
    """The configuration changed between a job's order and its start."""


class ParameterError(EspoError):
    """A task parameter names something that is neither in the configuration nor in the catalogue."""


class CatalogError(EspoError):
    """A catalogue cannot be read, or its content does not answer the search."""


class DataError(EspoError):
    """Input data that cannot be used: wrong units, missing period, all NaN, an unreadable file."""


class HealthCheckError(DataError):
    """A product failed one or more of the health checks that the configuration raises on."""


class StoreError(EspoError):
    """A store cannot be written, published or read."""


class InputChangedError(StoreError):
    """A store was removed or replaced while a job read it; the job is retried within its limits."""


class InstallationError(EspoError):
    """The installation is incomplete, or cannot be collected or compiled."""


class SizingError(EspoError):
    """Requested resources that contradict each other or exceed those available."""


class SubmissionError(EspoError):
    """A job that could not be submitted."""


class ProcessLimitError(EspoError):
    """This account may start no further process or thread on this machine."""


@dataclass(frozen=True)
class Failure:
    """Why a task did not succeed, as values; the text for people is made where they read it.

    `task` is the task's label, empty for a whole run, and `words` are those of Python or the scheduler. `cause` is a
    code of `jobs.causes.Cause`, empty where no more is known, and `remedy` its explanation. The job with
    `job_id`, if there is any, was the last of so many `attempts`. `tail` has the last lines of its traceback or log.
    """

    task: str
    words: str
    cause: str = ""
    remedy: str = ""
    attempts: int = 0
    job_id: str = ""
    node: str = ""
    log_path: Path | None = None
    tail: str = ""

    @classmethod
    def of(cls, task: str, error: BaseException) -> Failure:
        """Return what `error` tells of a task that it ended."""
        if isinstance(error, JobError) and error.failure is not None:
            return error.failure
        words = "".join(traceback.format_exception_only(error)) if not isinstance(error, EspoError) else str(error)
        return cls(task, words.strip().removeprefix(f"{task}: "))

    @property
    def message(self) -> str:
        """The task, its job, why it failed, and in a line of its own the log; not the traceback."""
        job = f": job {self.job_id}{f' on {self.node}' if self.node else ''}, attempt {self.attempts}"
        subject = f"{self.task}{job if self.job_id else ' failed'}: " if self.task else ""
        log = f"\n  log: {self.log_path}" if self.log_path else ""
        remedy = f"; {self.remedy}" if self.remedy else ""
        return without_secrets(f"{subject}{self.words}{remedy}{log}")

    def __str__(self) -> str:
        """Return the message and the last lines of the traceback or the log."""
        return self.message + "".join(f"\n    {line}" for line in self.tail.strip().splitlines()[-12:])


class JobError(EspoError):
    """A job that ran and did not succeed; of a job of the driver's, `failure` tells why."""

    def __init__(self, why: str | Failure) -> None:
        super().__init__(why)
        self.failure = why if isinstance(why, Failure) else None


class JobInputError(JobError):
    """A job whose input is gone or replaced; it is worth a retry once the input is back."""


class StoppedError(JobError):
    """A task that was stopped with its run, or never began; it has not failed."""

    outcome = "stopped"


class LeftError(StoppedError):
    """A task whose job runs on after the end of the run; the next run takes it over."""

    outcome = "detached"


class WorkersLostError(JobError):
    """A job that lost its Dask workers on several nodes; it is worth a retry."""


class ClaimLostError(JobError):
    """A job whose work now belongs to a different job, or to its own later start; it must publish nothing."""


class UnknownPathError(EspoError):
    """A path that is no task's output."""


def as_text(text: str) -> str:
    """Return a text that is safe for a terminal: it cannot move the cursor or change colours, and has no secrets.

    Control characters and marks of the writing direction become escapes (``\\x1b``); line ends and tabs stay.
    """
    return _NOT_TEXT.sub(lambda match: repr(match[0])[1:-1], without_secrets(text))


# C0 and C1 but for tabs and ends of lines, DEL, halves of characters, and what cannot be seen: soft hyphens, marks of
# direction, joiners, spaces without width, marks of the byte order, and tags.
_NOT_TEXT = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e0fff]"
)
# A spreadsheet takes such a cell for a formula, which may open an address or run a program.
_FORMULA = re.compile(r"[=@\t\r]|[+-](?![\d.]+(e[+-]?\d+)?$|inf$|nan$)", re.IGNORECASE)


def as_cell(value: object) -> object:
    """Return a value as a cell of CSV that no spreadsheet takes for a formula: a text like one begins with `'`."""
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) else value


def log_as_text(record: logging.LogRecord) -> bool:
    """Pass a log's message and traceback through `as_text`: a filter for handlers, which drops no record."""
    message = record.getMessage()
    if (harmless := as_text(message)) != message:
        record.msg, record.args = harmless, None
    if record.exc_info:
        # Formatters take this text in place of their own.
        record.exc_text = as_text("".join(traceback.format_exception(*record.exc_info)).rstrip("\n"))
    return True


# How alike an unknown name in a file is to a name of ours that its author must have meant: [Trian] and Train are, but
# [training-data] belongs to somebody else.
ALIKE = 0.75


def nearest(name: str, allowed: Iterable[str], *, cutoff: float = 0.5, hint: str = "; did you mean {}?") -> str:
    """Return the hint with the allowed name that is nearest to `name`, or an empty text."""
    alike = {one.lower(): one for one in allowed}
    close = difflib.get_close_matches(name.lower(), alike, n=1, cutoff=cutoff)
    return hint.format(alike[close[0]]) if close else ""


def unknown(what: str, name: str, allowed: Collection[str]) -> str:
    """Return the error message for a name in a file, such as a ``key``, with the nearest or else all allowed names."""
    return f"unknown {what}" + (nearest(name, allowed) or f". Allowed here: {', '.join(allowed)}.")


def problems_in(what: str, problems: Collection[str]) -> str:
    """Return the error message for a file or a configuration that has problems, each on a line of its own."""
    count = f"{len(problems)} problems" if len(problems) > 1 else "a problem"
    return f"{what} has {count}:\n" + "\n".join(f"- {problem}" for problem in problems)


# The number of values that a message names.
_SHOWN = 10


def named_by_part(text: str, names: Collection[str]) -> list[str]:
    """Return the name that `text` is, or else all names that it is a part of."""
    return [text] if text in names else [name for name in names if text in name]


def not_one_of(option: str, got: str, allowed: Collection[str], *, takes_parts: bool = False) -> str:
    """Return the error message for a forbidden value of a command's option, with the allowed and nearest values.

    If the option `takes_parts` of values, the message lists those that have the part.
    """
    flag = f"--{option.replace('_', '-')} {got!r}"
    if takes_parts and (matches := named_by_part(got, allowed)):
        return f"{flag} is a part of {len(matches)} names; expected a part of one: {_listed(matches)}"
    parts = {part: name for name in sorted(allowed, reverse=True) for part in name.split("_")} if takes_parts else {}
    near = nearest(got, allowed, hint="{}") or parts.get(nearest(got, parts, hint="{}"), "")
    return f"{flag} is not one of: {_listed(allowed)}{f'; did you mean {near}?' if near else ''}"


def _listed(names: Collection[str]) -> str:
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return (", ".join(list(names)[:_SHOWN]) or "(none)") + more


# The rules of former releases, each with the rules that do its work now.
FORMER_RULES = {
    "Rechunk": ("Regrid",),
    "FinalZarr": ("CleanUp",),
    "MoveRef": ("OffDiagRefProp",),
    "MoveDiag": ("OffDiagSimPropMeas", "OffDiagScenPropMeas", "DiagMeasuresImprovement"),
    "SeriesSummary": ("Summaries",),
    "YearlySums": ("Summaries",),
    "FlagMaps": ("FlagDetails",),
}


def no_such_rule(name: str, rules: Iterable[str]) -> str:
    """Return the error message for the name of a rule that does not exist, or does not exist any more."""
    if name in FORMER_RULES:
        return f"the rule {name} has gone; its work is done by {' and '.join(FORMER_RULES[name])}. Name that."
    hint = nearest(name, rules, hint=" Did you mean {}?")
    return f"there is no rule {name} here.{hint} `espo rules` lists them."


def enumerated(names: Sequence[str]) -> str:
    """Return names as a sentence has them: "a, b and c"."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
