"""Reading YAML files: mappings with string keys, the place of every key, and a deep merge."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from espo_luigi.errors import ConfigurationError
from espo_luigi.files import read_text

KeyPath = tuple[str, ...]

# Far above what any configuration has. Aliases of aliases make billions of values of some lines.
_LARGEST_BYTES = 5_000_000
_DEEPEST = 50
_TOO_DEEP = f"lists or mappings are nested more than {_DEEPEST} deep", "Nest them less deeply"
_MOST_VALUES = 200_000

_MERGE_TAG = "tag:yaml.org,2002:merge"
# YAML 1.1 knows further ways to write numbers, which hardly anybody means: 010 is 8, 1:30 is 90, 1_000 is 1000.
_DECIMALS = {
    "tag:yaml.org,2002:int": re.compile(r"[-+]?(0|[1-9][0-9]*)"),
    "tag:yaml.org,2002:float": re.compile(
        r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[-+]?[0-9]+)?|[-+]?\.(inf|nan)", re.IGNORECASE
    ),
}


@dataclass(frozen=True)
class YamlFile:
    """The content of a YAML file, and its places: `places` maps each key's path to "file, line n"."""

    path: Path
    content: dict[str, Any]
    places: Mapping[KeyPath, str]


# libyaml's parser, ten times faster, where PyYAML was built with it.
_SafeLoader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_SafeLoader):  # type: ignore[misc, valid-type]
    """SafeLoader whose keys are always the text that was written, and whose dates stay text."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        # Keys as text: YAML 1.1 would make a boolean of a key named `no`, and a number of `2020`.
        self.flatten_mapping(node)
        return {key.value: self.construct_object(value, deep=True) for key, value in node.value}


def _text_of(_: _Loader, node: yaml.ScalarNode) -> str:
    return str(node.value)


# `cat:date_start: 1950-01-01` is an attribute of a product, so text, and 360-day dates are not dates for Python.
_Loader.add_constructor("tag:yaml.org,2002:timestamp", _text_of)


def read_yaml(path: Path) -> YamlFile:
    """Read a YAML file whose top level is a mapping.

    Anchors, aliases and merge keys (``<<``) are resolved; dates stay text.

    Raises
    ------
    ConfigurationError
        The file is missing, unreadable or not UTF-8, has a syntax error or a duplicate key, or holds no mapping.
    """
    text = _text(path)
    try:
        _check_extent(text, path)
        loader = _Loader(text)
        node = loader.get_single_node()
        places = {} if node is None else _places(node, path)
        return YamlFile(path, {} if node is None else loader.construct_document(node), places)
    except yaml.YAMLError as error:
        raise ConfigurationError(_syntax_message(_explained(text, error), path)) from error
    except RecursionError as error:
        raise ConfigurationError(f"{path}: lists or mappings are nested too deeply to be read.") from error
    except (LookupError, TypeError, ValueError) as error:  # PyYAML's own, where a tag does not suit its value
        raise ConfigurationError(f"{path}: a tag (`!!name`) does not suit its value: {error}. Remove it.") from error


def _explained(text: str, error: yaml.YAMLError) -> yaml.YAMLError:
    """Return the error of PyYAML's own parser, which has more than libyaml's: the name of an alias, for example."""
    try:
        yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as own:
        return own
    except RecursionError:
        pass
    return error


def _check_extent(text: str, path: Path) -> None:
    """Refuse a text that is nested too deeply, or that aliases make too many values of; nothing is expanded."""
    sizes: dict[str, int] = {}
    inside = [("", 0)]
    for event in yaml.parse(text, Loader=_SafeLoader):
        match event:
            case yaml.CollectionStartEvent():
                inside.append((event.anchor or "", 1))
            case yaml.CollectionEndEvent():
                _count(inside, sizes, *inside.pop())
            case yaml.AliasEvent():
                _count(inside, sizes, "", sizes.get(str(event.anchor), 1))
            case yaml.ScalarEvent():
                _count(inside, sizes, event.anchor or "", 1)
        if len(inside) > _DEEPEST:
            found, instead = _TOO_DEEP
        elif inside[-1][1] > _MOST_VALUES:
            found, instead = f"its aliases (`*name`) stand for more than {_MOST_VALUES} values", "Use fewer of them"
        else:
            continue
        raise ConfigurationError(f"{_where(event, path)}: {found}. {instead}.")


def _count(inside: list[tuple[str, int]], sizes: dict[str, int], anchor: str, size: int) -> None:
    """Add a value's size to the innermost of the collections that it is in, and keep it for the aliases of it."""
    sizes[anchor] = size
    outer, so_far = inside.pop()
    inside.append((outer, so_far + size))


def _text(path: Path) -> str:
    try:
        if (size := path.stat().st_size) > _LARGEST_BYTES:
            raise ConfigurationError(
                f"The file {path} has {size} bytes; expected a configuration, of at most {_LARGEST_BYTES} bytes."
            )
        return read_text(path, _LARGEST_BYTES)
    except FileNotFoundError as error:
        raise ConfigurationError(
            f"The file {path} does not exist (looked for it from {Path.cwd()}). Give existing YAML files: `[espo] "
            "config` of luigi.cfg names them."
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"The file {path} cannot be read: {error}.") from error


def _syntax_message(error: yaml.YAMLError, path: Path) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    # libyaml's own limit, of 1000, which it meets while it looks for the first event.
    if mark and "nesting depth" in problem:
        return f"{path}, line {mark.line + 1}: {'. '.join(_TOO_DEEP)}."
    where = f"{path}, line {mark.line + 1}, column {mark.column + 1}" if mark else str(path)
    return f"{where}: not valid YAML: {problem}."


def _places(node: yaml.Node, path: Path) -> dict[KeyPath, str]:
    if not isinstance(node, yaml.MappingNode):
        raise ConfigurationError(
            f"{path}, line {node.start_mark.line + 1}: got {_kind(node)}, expected sections (`name:` and its keys)."
        )
    return dict(_walk(node, (), path, ()))


def _walk(node: yaml.Node, at: KeyPath, path: Path, inside: tuple[yaml.Node, ...]) -> Iterator[tuple[KeyPath, str]]:
    """Yield the place of each key below `node`; keys that come by a merge first, so that own keys win."""
    if isinstance(node, yaml.ScalarNode):
        _check_number(node, at, path)
        return
    if node in inside:
        raise ConfigurationError(f"{_where(node, path)}: the anchor of `{'.'.join(at)}` contains itself.")
    inside = (*inside, node)
    if isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            yield from _walk(item, (*at, str(number)), path, inside)
        return
    _check_keys(node, at, path)
    for key, value in node.value:
        if key.tag == _MERGE_TAG:
            merged = reversed(value.value) if isinstance(value, yaml.SequenceNode) else [value]
            for one in merged:
                yield from _walk(one, at, path, inside)
    for key, value in node.value:
        if key.tag != _MERGE_TAG:
            here = (*at, str(key.value))
            yield here, _where(key, path)
            yield from _walk(value, here, path, inside)


def _check_number(node: yaml.ScalarNode, at: KeyPath, path: Path) -> None:
    known = _DECIMALS.get(node.tag)
    if known and not known.fullmatch(node.value):
        raise ConfigurationError(
            f"`{'.'.join(at)}` ({_where(node, path)}): got {node.value}, which is no decimal number: YAML reads 010 "
            "as 8, 0x1F as 31, 1_000 as 1000 and 1:30 as 90. Write decimal digits only, or put text into quotation "
            "marks."
        )


def _check_keys(node: yaml.Node, at: KeyPath, path: Path) -> None:
    seen: dict[str, yaml.Node] = {}
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise ConfigurationError(f"{_where(key, path)}: got {_kind(key)} as a key, expected text.")
        if key.tag == _MERGE_TAG:
            continue
        if key.value in seen:
            full, first = ".".join((*at, key.value)), seen[key.value].start_mark.line + 1
            raise ConfigurationError(
                f"{_where(key, path)}: duplicate key `{full}`, already given on line {first}. Keep one of them."
            )
        seen[key.value] = key


def _where(node: yaml.Node | yaml.Event, path: Path) -> str:
    return f"{path}, line {node.start_mark.line + 1}" if node.start_mark else str(path)


def _kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode):
        return f"the value {node.value!r}"
    return "a list" if isinstance(node, yaml.SequenceNode) else "a mapping"


# Checks and flags stand here by name, and `null` is a name's value: "without arguments".
_CHECKS = {"flags", "cfchecks", "missing"}


def merge(first: Mapping[str, Any], then: Mapping[str, Any], at: KeyPath = ()) -> dict[str, Any]:
    """Merge two mappings, which are at `at`, deeply: where both hold a mapping, key by key.

    Anything else of `then` replaces `first`, and `null` takes what `first` has away.
    """
    merged = dict(first)
    for key, value in then.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            merged[key] = merge(old, value, (*at, key))
        elif value is None and old is not None and not _may_be_null(at):
            del merged[key]
        else:
            merged[key] = value
    return merged


def _may_be_null(at: KeyPath) -> bool:
    return at[:1] == ("health_checks",) and not _CHECKS.isdisjoint(at)
