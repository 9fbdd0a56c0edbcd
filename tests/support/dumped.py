"""What the tests compare of a section."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


def given(section: BaseModel) -> dict[str, Any]:
    """Return what a section hands to a function, with lists as in YAML."""
    return section.model_dump(mode="json", exclude_none=True)
