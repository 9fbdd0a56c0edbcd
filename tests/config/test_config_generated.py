"""Every value of the shipped configuration, replaced by odd ones: what is accepted means what was written."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from generated import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from espo_luigi.config import RunConfig, load
from espo_luigi.config.dialects import drop_without_effect
from espo_luigi.config.load import merged
from espo_luigi.config.yaml_files import KeyPath
from espo_luigi.errors import ConfigurationError

DEMO = Path(__file__).parents[2] / "config" / "demo"
G6 = DEMO.parent / "espo-g6"

ODD: tuple[Any, ...] = (
    *(math.nan, math.inf, -math.inf, -1, 0, 1, 0.5, -0.5, 2, 1e300, -1e300, 1e-320, 10**400, True, False, None),
    *("", " ", "nan", "inf", "..", "a/b", "a+b", "~", "$NOWHERE", "\x00", "a\x07b", "\u2028", "é", "１９９１", "0x1F"),
    *("-1 K", "nan K", "1e999 mm d-1", "1 K", "yes", "no", "-1", "08", "1_000", "1950-02-31", "{}", "%", "time"),
    *(
        [],
        [[]],
        [None],
        [[1, 2], [3]],
        [True],
        ["1950", "2100"],
        [math.nan, 1],
        [1, 1],
        [2, 1],
        {},
        {"a": 1},
        {"": None},
    ),
)
VALUES = st.sampled_from(ODD) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


def shipped() -> dict[str, Any]:
    """The demo's content; one step has its properties in place, so that they are replaced, too."""
    content = dict(merged([DEMO / "config.yml", DEMO / "paths.yml"])[0])
    content["extraction"]["reference"]["properties_and_measures"]["properties"] = str(G6 / "properties_ESPO-G.yml")
    for name, step in content["off-diag"]["steps"].items():
        details = step["properties_and_measures"]
        file = G6 / "off-properties_ESPO-G.yml"
        details["properties"] = yaml.safe_load(file.read_text()) if name == "sim" else str(file)
    for step in content["diagnostics"].values():
        step["properties_and_measures"]["properties"] = str(G6 / "properties_ESPO-G.yml")
    # Without aliases, so that each value is changed on its own.
    content = without_aliases(content)
    drop_without_effect(content)
    return content


def without_aliases(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): without_aliases(inner) for key, inner in value.items()}
    return [without_aliases(inner) for inner in value] if isinstance(value, list) else value


def keys_of(value: Any, at: KeyPath = ()) -> Iterator[KeyPath]:
    """Every key with a scalar or a list, and every section."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*at, key)
            yield from keys_of(inner, (*at, key))


SHIPPED = shipped()
# Of `project`, other keys than its name and version are ignored; diagnostics take properties of the reference away.
KEYS = [key for key in keys_of(SHIPPED) if key not in (("project",), ("extraction",), ("extraction", "reference"))]


def variants(old: Any) -> list[Any]:
    """Odd values that are near to the one that is there."""
    if isinstance(old, list):
        return [old[::-1], old * 2, old[:1], [old], [[old]], [str(one) for one in old]]
    if isinstance(old, bool) or not isinstance(old, int | float):
        return [[old], f"{old} ", f" {old}", str(old).upper(), f"{old}/..", f"{old}\x00"]
    return [-old, old * 1e30, [old], str(old), f"{old}x", old + 0.5]


@st.composite
def changes(draw: st.DrawFn) -> tuple[KeyPath, Any]:
    key = draw(st.sampled_from(KEYS))
    return key, draw(VALUES | st.sampled_from(variants(value_at(SHIPPED, key))))


def value_at(content: Any, key: KeyPath) -> Any:
    for name in key:
        content = content[name]
    return content


def changed(key: KeyPath, value: Any) -> dict[str, Any]:
    content = copy.deepcopy(SHIPPED)
    value_at(content, key[:-1])[key[-1]] = value
    return content


class Absent(Exception):
    """A key that has no effect, and so is nowhere in a configuration."""


def found(config: Any, key: KeyPath) -> Any:
    """What a configuration has under a key."""
    if not key:
        return config
    if isinstance(config, BaseModel):
        fields = {field.alias or name: name for name, field in type(config).model_fields.items()}
        if key[0] not in fields:
            raise Absent
        return found(getattr(config, fields[key[0]]), key[1:])
    if isinstance(config, Mapping) and key[0] in config:
        return found(config[key[0]], key[1:])
    raise Absent


TRUE, FALSE = ("1", "yes", "on", "true", "t", "y", "1.0"), ("0", "no", "off", "false", "f", "n", "0.0", "-0.0")


def means(written: Any, got: Any) -> bool:
    """Whether what a configuration has is what was written, in whatever type."""
    if isinstance(written, dict):
        return all(means(inner, got_inner(got, str(key))) for key, inner in written.items())
    if isinstance(written, list):
        if isinstance(got, list | tuple) and len(got) == len(written):
            return all(means(one, other) for one, other in zip(written, got, strict=True))
        return len(written) == 1 and means(written[0], got)
    if written is None:  # the default counts
        return True
    if isinstance(written, str):
        return means_text(written, got)
    if isinstance(written, bool) or isinstance(got, bool):
        return isinstance(got, bool) and str(written).lower() in (TRUE if got else FALSE)
    return got in (written, str(written)) or (got != got and math.isnan(written))


def means_text(written: str, got: Any) -> bool:
    if isinstance(got, tuple) and len(got) == 1:
        return means_text(written, got[0])
    if isinstance(got, Path):
        return str(got).endswith(written.lstrip("~./")) or ".." in written or "//" in written or written in ("", ".")
    if isinstance(got, dict):  # of a properties file, what it holds
        return written.endswith("_ESPO-G.yml")
    if isinstance(got, bool):
        return written.lower() in (TRUE if got else FALSE)
    return got == written or (isinstance(got, int | float) and got == float(written))


def got_inner(got: Any, key: str) -> Any:
    try:
        return found(got, (key,))
    except Absent:
        return None


def load_changed(folder: Path, key: KeyPath, value: Any) -> RunConfig:
    path = folder / "config.yml"
    path.write_text(yaml.dump(changed(key, value), Dumper=yaml.CSafeDumper, allow_unicode=True), encoding="utf-8")
    return load([path])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("generated")


def check(folder: Path, key: KeyPath, value: Any) -> None:
    try:
        config = load_changed(folder, key, value)
    except ConfigurationError as error:
        assert any(".".join(key[:length]) in str(error) for length in range(1, len(key) + 1)), str(error)
        return
    assert config.hash and config.variables and config.dask_settings is not None
    try:
        got = found(config, key)
    except Absent:
        return
    assert means(value, got), f"{'.'.join(key)}: {value!r} became {got!r}"


def test_the_shipped_values_mean_what_they_say(folder: Path) -> None:
    config = load_changed(folder, KEYS[0], value_at(SHIPPED, KEYS[0]))
    seen = 0
    for key in KEYS:
        try:
            got = found(config, key)
        except Absent:
            continue
        assert means(value_at(SHIPPED, key), got), key
        seen += 1
    assert seen > 300


@given(change=changes())
@settings(max_examples=examples(120), deadline=None, derandomize=True)
def test_an_odd_value_is_refused_by_its_key_or_means_what_was_written(
    folder: Path, change: tuple[KeyPath, Any]
) -> None:
    check(folder, *change)
