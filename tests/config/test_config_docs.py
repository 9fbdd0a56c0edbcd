"""docs/configuration.md names every key that the schema knows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from espo_luigi.config import RunConfig

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def keys(annotation: Any) -> Iterator[str]:
    """Yield the keys of every section in an annotation, and of the sections within them."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, field in annotation.model_fields.items():
            yield field.alias or name
            for one in (field.annotation, *field.metadata):
                yield from keys(one)
    else:
        for one in get_args(annotation):
            yield from keys(one)


def test_every_key_is_documented() -> None:
    # `ref` is a step that is copied from `extraction.reference`, and no key that anybody writes.
    page = PAGE.read_text()
    wanted = set(keys(RunConfig)) - {"ref"}
    assert len(wanted) > 140
    assert (
        sorted(key for key in wanted if f"`{key}`" not in page and f".{key}`" not in page and f"`{key}." not in page)
        == []
    )
