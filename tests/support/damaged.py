"""JSON documents of ours that somebody has edited, or a disk has damaged: a part of them has another shape."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text(max_size=3)
SHAPES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["", "a", "@id"]), inner, max_size=3),
    max_leaves=4,
)


@st.composite
def damaged(draw: st.DrawFn, document: Any) -> Any:
    """The document with another value at one of its places, or without it."""
    place = draw(st.sampled_from(list(_places(document))))
    if not place:
        return draw(SHAPES)
    changed = copy.deepcopy(document)
    inner = changed
    for key in place[:-1]:
        inner = inner[key]
    if draw(st.booleans()):
        inner[place[-1]] = draw(SHAPES)
    else:
        del inner[place[-1]]
    return changed


def _places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield place
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from _places(one, (*place, key))
