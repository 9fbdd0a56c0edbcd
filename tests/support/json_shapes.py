"""Whether what a command prints with `--json` has the shape that its documents give."""

import types
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from make_blocks import PRINTED, has_keys


def check_shape(command: str, printed: Any) -> None:
    """Fail if a key is missing or unknown, or a value is of another type."""
    _check(PRINTED[command], printed, f"espo {command} --json")


def _check(kind: Any, value: Any, at: str) -> None:
    inner, origin = get_args(kind), get_origin(kind)
    if has_keys(kind):
        hints = get_type_hints(kind)
        assert set(value) == hints.keys(), at
        for name, hint in hints.items():
            _check(hint, value[name], f"{at}: {name}")
    elif origin in (Union, types.UnionType):
        assert value is not None or type(None) in inner, at
        for one in () if value is None else [one for one in inner if one is not type(None)]:
            _check(one, value, at)
    elif isinstance(origin, type) and issubclass(origin, Mapping | Sequence):
        for one in value.values() if isinstance(value, dict) else value:
            _check(inner[-1] if isinstance(value, dict) else inner[0], one, f"{at}: a value")
    else:
        assert _is_of(kind, value), at


def _is_of(kind: Any, value: Any) -> bool:
    """Whether a plain value is of a plain type."""
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return value in [one.value for one in kind]
    if kind is float:
        return value is None or type(value) in (int, float)
    return kind is Any or type(value) is (str if kind is Path else kind)
