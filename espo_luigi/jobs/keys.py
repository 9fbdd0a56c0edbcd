"""The keys that people write in luigi.cfg, in profiles, for tasks and on the command line, each declared once.

A key is a field of a dataclass. Its metadata has the kind of its value and its sentence of help. Luigi's parameters,
the checks of profiles and options, and the reference pages are made from them.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from espo_luigi.errors import ConfigurationError, SizingError, unknown


@dataclass(frozen=True, eq=False)
class Kind:
    """A kind of value, called `name` in the reference.

    `read` returns the value of a text or a number, or raises ValueError or SizingError. `choices` are all values that
    there are, if not empty. The value is a table if it has `entries`: the kind of each, by name or for any name.
    """

    name: str
    read: Callable[[Any], Any]
    choices: tuple[str, ...] = ()
    entries: Kind | Mapping[str, Kind] | None = None


def as_text(value: Any) -> str:
    """Return a text or a number as text. Raises ValueError for other values."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (str, int, float)):
        return str(value)
    raise ValueError("expected text or a number")


def as_texts(value: Any) -> tuple[str, ...]:
    """Return a list, which may be written as text with commas: ``n[1-3,7],m1``."""
    if isinstance(value, str):
        # The comma of n[1-3,7] is part of a name.
        return tuple(part.strip() for part in re.split(r",(?![^\[]*\])", value) if part.strip())
    return tuple(map(as_text, value if isinstance(value, (list, tuple)) else [value]))


def _whole_number(value: Any) -> int:
    if isinstance(value, bool) or not re.fullmatch(r"\s*[0-9]+\s*", as_text(value)):
        raise ValueError("expected a whole number, such as 4")
    return int(value)


def _number(value: Any) -> float:
    try:
        number = float(as_text(value))
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError("expected a number, such as 0.5")
    return number


def _flag(value: Any) -> bool:
    if (text := as_text(value).strip().lower()) not in ("true", "false"):
        raise ValueError("expected true or false")
    return text == "true"


TEXT, NAMES = Kind("text", as_text), Kind("list", as_texts)
WHOLE, NUMBER, FLAG = Kind("whole number", _whole_number), Kind("number", _number), Kind("true or false", _flag)
FOLDER = Kind("path", lambda value: Path(as_text(value)).absolute())


def table_of(entries: Kind | Mapping[str, Kind]) -> Kind:
    """Return the kind of a table: with any names, all of one kind, or with these names alone."""
    return Kind("table", dict, entries=entries)


ANYTHING = Kind("anything", lambda value: value)
TABLE = table_of(TEXT)


def one_of(*choices: str) -> Kind:
    """Return the kind of a text that is one of the choices."""

    def read(value: Any) -> str:
        if (text := as_text(value)) not in choices:
            raise ValueError(f"expected one of: {', '.join(choices)}")
        return text

    return Kind("text", read, choices)


@dataclass(frozen=True)
class Key:
    """A key: the kind of its value, its help, its default, its `name`, and the `field` of the dataclass that has it.

    `is_optional` tells that an empty text or 0 stands for None. `said_default` is the default in words, where it
    depends on other keys.
    """

    kind: Kind
    help: str
    default: Any
    name: str = ""
    field: str = ""
    is_optional: bool = False
    said_default: str = ""

    def value(self, written: Any) -> Any:
        """Return the value of what is written. Raises ValueError or SizingError."""
        return None if self.is_optional and not written else self.kind.read(written)


def key(default: Any, text: str, kind: Kind = TEXT, **more: Any) -> Any:
    """Return the field of a key with its help `text`; `more` has fields of `Key`, such as a `name` of its own."""
    metadata = {"key": Key(kind, text, default, **more)}
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def keys_of(*models: Any) -> Mapping[str, Key]:
    """Return the keys of dataclasses, by their names."""
    return _keys_of(models)


@functools.cache
def _keys_of(models: tuple[Any, ...]) -> Mapping[str, Key]:
    found = ((one.name, one.metadata.get("key")) for model in models for one in fields(model))
    return {one.name or name: replace(one, name=one.name or name, field=name) for name, one in found if one}


def checked(keys: Mapping[str, Key], values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return given values as their kinds read them. Raises a `ConfigurationError` that names `where` and the key."""
    return _entries({name: one.kind for name, one in keys.items()}, values, where)


def layered(keys: Mapping[str, Key], layers: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the values of all layers, by their places; a later layer overrides an earlier one, name by name."""
    return {name: value for where, layer in layers.items() for name, value in checked(keys, layer, where).items()}


def _entries(kinds: Kind | Mapping[str, Kind], values: Mapping[str, Any], where: str) -> dict[str, Any]:
    read = {}
    for name, value in values.items():
        if not isinstance(kinds, Kind) and name not in kinds:
            raise ConfigurationError(f"{where}: {name}: {unknown('key', name, sorted(kinds))}")
        kind = kinds if isinstance(kinds, Kind) else kinds[name]
        try:
            if kind.entries is None:
                read[name] = kind.read(value)
            elif isinstance(value, Mapping):
                read[name] = _entries(kind.entries, value, f"{where}: {name}")
            else:
                raise ValueError("expected names with values, such as NAME: value")
        except (ValueError, SizingError) as error:
            got = value if isinstance(value, str) else repr(value)
            raise ConfigurationError(f"{where}: {name} = {got}: {error}") from None
    return read
