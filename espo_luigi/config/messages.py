"""Errors of validation in the users' terms: the key's full path, its place, the given and the allowed values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from espo_luigi.config.dialects import Written, as_written
from espo_luigi.config.yaml_files import KeyPath
from espo_luigi.errors import nearest, problems_in, unknown
from espo_luigi.fields import Section
from espo_luigi.redaction import redacted

_LONGEST = 80


def explain(
    error: ValidationError,
    model: type[Section],
    written: Written,
    places: Mapping[KeyPath, str],
    what: str = "The configuration",
) -> str:
    """Return one line for each problem that `error` holds; of a value and its copies by default, the value's.

    Copies by an alias have the place of the value that they copy, and share its line.
    """
    problems: list[dict[str, Any]] = [dict(problem) for problem in error.errors(include_url=False)]
    own = [given for given in problems if given["type"] == "missing" or _is_written(given, model, written, places)]
    lines: dict[tuple[str, str, str], dict[str, None]] = {}
    for problem in own or problems:
        at = _locate(model, problem["loc"])
        path = _own(at.path, written, places)
        text = _problem(problem, at, removed=path in places)
        same = (path[-1] if path else "", place_of(path, places), text)
        lines.setdefault(same, {})[f"`{'.'.join(path)}`"] = None
    return problems_in(
        what, [f"{', '.join(keys)}{f' ({place})' if place else ''}: {text}" for (_, place, text), keys in lines.items()]
    )


def _own(path: KeyPath, written: Written, places: Mapping[KeyPath, str]) -> KeyPath:
    """The key's path as the user wrote it: some files may use an old name, and some the current name."""
    return path if path in places else as_written(path, written)


def _is_written(problem: dict[str, Any], model: type[Section], written: Written, places: Mapping[KeyPath, str]) -> bool:
    """Whether some file holds the key; a key with a default value deserves no separate line."""
    path = _locate(model, problem["loc"]).path
    without_index = path[:-1] if path and path[-1].isdigit() else path
    return _own(without_index, written, places) in places


def _problem(problem: dict[str, Any], at: _Place, *, removed: bool) -> str:
    field = at.field
    purpose = f" It is {field.description}." if field and field.description else ""
    if problem["type"] == "missing":
        return f"this key is {'needed, and is `null` (nothing) here' if removed else 'missing'}.{purpose}"
    if problem["type"] == "extra_forbidden":
        return unknown("key", at.path[-1], _keys(at.holder))
    got, context = f"got {_shown(problem['input'])}", problem.get("ctx", {})
    if problem["type"] == "literal_error":
        choices = context["expected"]
        hint = nearest(str(problem["input"]), re.findall(r"'(.*?)'", choices))
        return f"{_sentence(f'{got}, expected {choices}{hint}')}{purpose}"
    if problem["type"] in ("model_type", "dict_type", "model_attributes_type"):
        return f"{got}, expected a mapping (`key: value`).{purpose}"
    known = _EXPECTED.get(problem["type"])
    reason = f"expected {known.format(**context)}" if known else str(context.get("error", problem["msg"]))
    return f"{_sentence(f'{got}: {reason}')}{purpose}"


# The expected value by pydantic's type of error; our own validators name it themselves.
_EXPECTED = {
    "bool_type": "a valid boolean, true or false",
    "bool_parsing": "a valid boolean, true or false",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "list_type": "a list",
    "tuple_type": "a list",
    "too_short": "{min_length} or more of them",
    "greater_than": "greater than {gt:g}",
    "greater_than_equal": "greater than or equal to {ge:g}",
    "less_than_equal": "less than or equal to {le:g}",
}


def _sentence(text: str) -> str:
    return text if text.endswith("?") else f"{text}."


def _shown(value: Any) -> str:
    value = value.arguments() if isinstance(value, Section) else value
    text = repr(redacted(value))
    short = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    return f"{short} ({_KINDS.get(type(value), type(value).__name__)})"


_KINDS: dict[type, str] = {
    str: "text", int: "a whole number", float: "a number", bool: "true or false", list: "a list", dict: "a mapping",
    type(None): "nothing",
}  # fmt: skip


def place_of(path: KeyPath, places: Mapping[KeyPath, str]) -> str:
    """Return the place of the key, or of the nearest section above it."""
    return next((places[path[:length]] for length in range(len(path), 0, -1) if path[:length] in places), "")


def keys_beside(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """Return the keys of the section where pydantic's location ends."""
    return _keys(_locate(model, loc).holder)


def _keys(model: type[BaseModel]) -> list[str]:
    """The keys of a section, as written in YAML."""
    return [field.alias or name for name, field in model.model_fields.items()]


@dataclass(frozen=True)
class _Place:
    """Where pydantic's location leads: the key's path, the section that holds it, its field, and its type."""

    path: KeyPath
    holder: type[BaseModel]
    field: FieldInfo | None
    type: Any


def _locate(model: type[BaseModel], loc: tuple[int | str, ...]) -> _Place:
    """Follow pydantic's location through the types: sections, mappings with the user's own keys, and lists."""
    place = _Place((), model, None, model)
    for key in loc:
        path, kind = (*place.path, str(key)), _kind(place.type)
        if _is_model(kind):
            field = next((known for name, known in kind.model_fields.items() if key == (known.alias or name)), None)
            place = _Place(path, kind, field, field.annotation if field else None)
        else:
            inner = [argument for argument in get_args(kind) if argument is not Ellipsis]
            place = replace(place, path=path, type=inner[-1] if inner else None)
    return place


def _kind(annotation: Any) -> Any:
    """The section, mapping or list in a type that a location leads into."""
    if get_origin(annotation) is Annotated:
        return _kind(annotation.__origin__)
    if get_origin(annotation) not in (Union, UnionType):
        return annotation
    options = [_kind(option) for option in get_args(annotation)]
    return next((option for option in options if _is_model(option)), options[0])


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
