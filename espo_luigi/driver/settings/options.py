"""Options of a scheduler as people write them, in a cluster's profile or in luigi.cfg, as the values that jobs take.

All raise a `ConfigurationError` for a value of another kind than expected; its message begins with `where`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from espo_luigi.errors import ConfigurationError
from espo_luigi.jobs.schedulers.script import LISTS, TABLES


def as_options(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return options with text for scalars, and a list or a table where that is expected."""
    return {name: _as_option(name, value, where) for name, value in values.items() if value is not None}


def _as_option(name: str, value: Any, where: str) -> Any:
    if name in LISTS:
        return as_texts(name, value, where)
    return as_table(name, value, where) if name in TABLES else as_text(name, value, where)


def as_texts(name: str, value: Any, where: str) -> tuple[str, ...]:
    """Return a list, which may be written as text with commas: ``n[1-3,7],m1``."""
    return _names(value) if isinstance(value, str) else tuple(as_text(name, one, where) for one in _list(value))


def as_table(name: str, value: Any, where: str) -> dict[str, str]:
    """Return names with values, as text."""
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"{where}: {name} is {value!r}, expected names with values, such as NAME: value")
    return {str(key): as_text(f"{name}: {key}", one, where) for key, one in value.items()}


def _names(text: str) -> tuple[str, ...]:
    # The comma of n[1-3,7] is part of one name.
    return tuple(name for part in re.split(r",(?![^\[]*\])", text) if (name := part.strip()))


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def as_text(name: str, value: Any, where: str) -> str:
    """Return a scalar as text."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (str, int, float)):
        return str(value)
    raise ConfigurationError(f"{where}: {name} is {value!r}, expected text or a number")
