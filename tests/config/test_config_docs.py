"""docs/reference/configuration.md names every key that the schema knows, in its section's part, and no other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from espo_luigi.config import RunConfig

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "configuration.md"


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


def words(text: str) -> set[str]:
    """Return the names within code spans and code blocks."""
    code = re.findall(r"`([^`\n]+)`", text) + re.findall(r"^ {4,}(.*)", text, re.MULTILINE)
    return set(re.findall(r"[\w-]+", " ".join(code)))


def parts() -> dict[str, str]:
    """Return the page's text by the name of the section in its heading."""
    return {
        name: text
        for heading, _, text in (part.partition("\n") for part in PAGE.read_text().split("\n## "))
        for name in re.findall(r"`([\w-]+)`", heading) or [heading]
    }


# Where a section's text refers to another's: domains are regions, and steps are described once.
SHARED = {"off-diag": ["custom"], "diagnostics": ["off-diag"], "extraction": ["off-diag"]}
WITHOUT_EFFECT = "Keys of ESPO-G's without effect"


def test_every_key_is_documented_where_its_section_is() -> None:
    page = parts()
    missing = {}
    for name, field in RunConfig.model_fields.items():
        section = field.alias or name
        known = words(page[WITHOUT_EFFECT])
        for other in (section, *SHARED.get(section, ())):
            known |= words(page.get(other, ""))
        # `ref` is a step that is copied from `extraction.reference`, and no key that anybody writes.
        wanted = {key for one in (field.annotation, *field.metadata) for key in keys(one)} | {section}
        missing[section] = sorted(wanted - known - {section if section in page else "", "ref"})
    assert len(missing) > 10
    assert {section: keys for section, keys in missing.items() if keys} == {}


def test_every_key_that_a_table_documents_is_one_that_the_schema_knows() -> None:
    known = set(keys(RunConfig)) | {"NAME", "client"}
    tables = [text for heading, text in parts().items() if heading not in ("Types", WITHOUT_EFFECT)]
    rows = [row for text in tables for row in re.findall(r"^\| (`[^|]*) \|", text, re.MULTILINE)]
    assert len(rows) > 80
    assert sorted({word for row in rows for word in words(row)} - known) == []
