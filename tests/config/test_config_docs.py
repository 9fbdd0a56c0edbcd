"""The tables of configuration.md name no key that the schema does not know, and the examples of pages are valid."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from espo_luigi.config import RunConfig, load

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


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
    """Return the names within code spans."""
    return {word for span in re.findall(r"`([^`\n]+)`", text) for word in re.findall(r"[\w-]+", span)}


def test_every_key_that_a_table_explains_is_one_that_the_schema_knows() -> None:
    text = (REFERENCE / "configuration.md").read_text()
    rows = re.findall(r"^\| (`[^|]*) \|", text, re.MULTILINE)
    assert len(rows) > 7
    assert sorted({word for row in rows for word in words(row)} - set(keys(RunConfig))) == []


BLOCKS = [
    pytest.param(block, id=f"{page}-{number}")
    for page in ("configuration", "catalogues")
    for number, block in enumerate(re.findall(r"```yaml\n(.*?)```", (REFERENCE / f"{page}.md").read_text(), re.DOTALL))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_the_examples_of_the_pages_are_valid_over_the_values_of_production(
    block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SCRATCH", "OUTPUT", "CATALOGS"):
        monkeypatch.setenv(f"ESPO_{name}", f"/site/{name.lower()}")
    ring = [[-80, 45], [-60, 45], [-60, 60], [-80, 45]]
    (tmp_path / "quebec.geojson").write_text(json.dumps({"type": "Polygon", "coordinates": [ring]}))
    (tmp_path / "indicators.yml").write_text("realm: atmos\nindicators: {prcptot: {base: prcptot}}\n")
    (tmp_path / "example.yml").write_text(block)
    production = REFERENCE.parents[1] / "config" / "espo-g6"
    load([production / "config.yml", production / "paths.yml", tmp_path / "example.yml"])
