"""Errors of validation in the users' terms: the key's full path, its place, what was got and what is allowed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from espo_luigi.config.fields import Known, NoEffect, Section
from espo_luigi.config.names import Written, as_written
from espo_luigi.config.yaml_files import KeyPath

_LONGEST = 80


def explain(error: ValidationError, model: type[Section], written: Written, places: Mapping[KeyPath, str]) -> str:
    """Return one line for each problem that `error` holds; of a value and its copies by default, the value's."""
    found = [dict(one) for one in error.errors(include_url=False)]
    own = [one for one in found if one["type"] == "missing" or _is_written(one, model, written, places)]
    lines = dict.fromkeys(_line(one, model, written, places) for one in own or found)
    count = f"{len(lines)} problems" if len(lines) > 1 else "a problem"
    return f"The configuration has {count}:\n" + "\n".join(f"- {line}" for line in lines)


def nearest(name: str, allowed: Iterable[str]) -> str:
    """Return "; did you mean …?" with the allowed name that is nearest to `name`, or nothing."""
    close = difflib.get_close_matches(name, list(allowed), n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else ""


def _line(one: dict[str, Any], model: type[Section], written: Written, places: Mapping[KeyPath, str]) -> str:
    path, holder, field = _locate(model, one["loc"])
    own = _own(path, written, places)
    place = _place(own, places)
    return f"`{'.'.join(own)}`{f' ({place})' if place else ''}: {_problem(one, path, holder, field)}"


def _own(path: KeyPath, written: Written, places: Mapping[KeyPath, str]) -> KeyPath:
    """The key's path as the user wrote it: one file may use an old name, and another the current one."""
    return path if path in places else as_written(path, written)


def _is_written(one: dict[str, Any], model: type[Section], written: Written, places: Mapping[KeyPath, str]) -> bool:
    """Whether some file holds the key; a key that has its value by default does not deserve a line of its own."""
    path, _, _ = _locate(model, one["loc"])
    without_index = path[:-1] if path and path[-1].isdigit() else path
    return _own(without_index, written, places) in places


def _problem(one: dict[str, Any], path: KeyPath, holder: type[BaseModel], field: FieldInfo | None) -> str:
    purpose = f" It is {field.description}." if field and field.description else ""
    if one["type"] == "missing":
        return f"this key is missing.{purpose}"
    if one["type"] == "extra_forbidden":
        allowed = _keys(holder)
        return f"unknown key{nearest(path[-1], allowed) or '.'} Allowed here: {', '.join(allowed)}."
    got = f"got {_shown(one['input'])}"
    if one["type"] == "literal_error":
        expected = one["ctx"]["expected"]
        allowed = [choice.strip("'") for choice in expected.replace(" or ", ", ").split(", ")]
        hint = nearest(str(one["input"]), allowed)
        return f"{_sentence(f'{got}, expected {expected}{hint}')}{purpose}"
    if one["type"] in ("model_type", "dict_type", "model_attributes_type"):
        return f"{got}, expected a mapping (`key: value`).{purpose}"
    reason = one["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
    return f"{_sentence(f'{got}: {reason}')}{purpose}"


def _sentence(text: str) -> str:
    return text if text.endswith("?") else f"{text}."


def _shown(value: Any) -> str:
    text = repr(value)
    short = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    return f"{short} ({_KINDS.get(type(value), type(value).__name__)})"


_KINDS: dict[type, str] = {
    str: "text", int: "a whole number", float: "a number", bool: "true or false", list: "a list", dict: "a mapping",
    type(None): "nothing",
}  # fmt: skip


def _place(path: KeyPath, places: Mapping[KeyPath, str]) -> str:
    """The place of the key, or of the nearest section above it."""
    return next((places[path[:length]] for length in range(len(path), 0, -1) if path[:length] in places), "")


def _keys(model: type[BaseModel]) -> list[str]:
    """The keys of a section that have an effect, as written in YAML."""
    return [field.alias or name for name, field in model.model_fields.items() if not no_effect(field)]


def no_effect(field: FieldInfo) -> NoEffect | None:
    """Return the field's mark when its key has no effect."""
    return next((mark for mark in field.metadata if isinstance(mark, NoEffect)), None)


def _locate(model: type[BaseModel], loc: tuple[int | str, ...]) -> tuple[KeyPath, type[BaseModel], FieldInfo | None]:
    """Follow pydantic's location through the models: the key's path, the section that holds it, and its field.

    Locations also hold names of the branches of a union and of validators, which are not keys.
    """
    path: list[str] = []
    holder, field = model, None
    # The section that the next step is a key of; where that is a mapping's own key, the section one step further.
    section: type[BaseModel] | None = model
    further: type[BaseModel] | None = None
    for key in map(str, loc):
        if section is None and _is_internal(key):
            continue
        path.append(key)
        if section is None:
            section, further = further, None
            continue
        holder, field = section, _field(section, key)
        further = _section_in(_annotation(field)) if field else None
        section = further if field and _is_section(_annotation(field)) else None
    return tuple(path), holder, field


def _field(model: type[BaseModel], key: str) -> FieldInfo | None:
    return next((field for name, field in model.model_fields.items() if key == (field.alias or name)), None)


def _is_internal(key: str) -> bool:
    """Whether a step of a location names a branch or a validator, such as ``dict[str,any]`` or ``[key]``."""
    return key == "[key]" or key.endswith("]") or "(" in key or key in {"str", "int", "bool", "nullable"}


def _annotation(field: FieldInfo) -> Any:
    """The type of a field, or of the mapping's arguments that stand in its place."""
    return next((mark.section for mark in field.metadata if isinstance(mark, Known)), field.annotation)


def _is_section(annotation: Any) -> bool:
    """Whether the keys below are a section's, rather than a mapping's own."""
    if hasattr(annotation, "__metadata__"):
        return any(isinstance(mark, Known) for mark in annotation.__metadata__) or _is_section(annotation.__origin__)
    options = [one for one in get_args(annotation) if one is not type(None)]
    return _is_section(options[0]) if len(options) == 1 else _is_model(annotation)


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _section_in(annotation: Any) -> type[BaseModel] | None:
    """The section somewhere in an annotation such as ``dict[str, Region]`` or ``OffDiag | None``."""
    if isinstance(annotation, Known):
        return annotation.section
    if _is_model(annotation):
        return annotation
    return next((found for one in get_args(annotation) if (found := _section_in(one))), None)
