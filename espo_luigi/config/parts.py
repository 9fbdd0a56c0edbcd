"""Parts of a configuration, by their dotted keys, and a fingerprint of a part's value."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel


def value_at(value: Any, key: str) -> Any:
    """Return what a configuration, or a part of it, holds under a dotted key; None where it holds nothing.

    The key of a list's element is the element: `True` if it is there. `*` stands for the names of all that is there,
    in their order.
    """
    if not key:
        return value
    if isinstance(value, tuple | list):
        return True if key in value else None
    members = _members(value)
    if key == "*":
        return list(members)
    # A user's own name may hold a dot: the longest that fits.
    fitting = [name for name in members if f"{key}.".startswith(f"{name}.")]
    longest = max(fitting, key=len, default=None)
    return None if longest is None else value_at(members[longest], key[len(longest) + 1 :])


def fingerprint(config: BaseModel, key: str) -> str:
    """Return twelve hexadecimal digits that change with the value under a key, and not with the order of its keys."""
    text = json.dumps(_plain(value_at(config, key)), sort_keys=True, separators=(",", ":"), default=str)
    return short_hash(text)


def short_hash(text: str) -> str:
    """Return the first twelve hexadecimal digits of a text's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _members(value: Any) -> Mapping[str, Any]:
    if isinstance(value, BaseModel):
        return {field.alias or name: getattr(value, name) for name, field in type(value).model_fields.items()}
    return value if isinstance(value, Mapping) else {}


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        # A key of a later version changes no fingerprint until somebody gives it.
        values = {name: getattr(value, name) for name in type(value).model_fields} | (value.model_extra or {})
        return {n: _plain(one) for n, one in values.items() if one is not None or n in value.model_fields_set}
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    return [_plain(one) for one in value] if isinstance(value, tuple | list) else value
