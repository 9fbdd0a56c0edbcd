"""Reading YAML files: mappings with string keys, the place of every key, and a deep merge."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from espo_luigi.errors import ConfigurationError, ParameterError, not_one_of
from espo_luigi.files import read_text

KeyPath = tuple[str, ...]

# Far above what any configuration has. Aliases of aliases make billions of values of some lines.
_LARGEST_BYTES = 5_000_000
_DEEPEST = 50
_TOO_DEEP = f"lists or mappings are nested more than {_DEEPEST} deep. Nest them less deeply"
_MOST_VALUES = 200_000

_TAG = "tag:yaml.org,2002:"
_MERGE_TAG = f"{_TAG}merge"
# YAML 1.1 knows further ways to write numbers, which hardly anybody means: 010 is 8, 1:30 is 90, 1_000 is 1000.
_DECIMALS = {
    f"{_TAG}int": re.compile(r"[-+]?(0|[1-9][0-9]*)"),
    f"{_TAG}float": re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[-+]?[0-9]+)?|[-+]?\.(inf|nan)", re.IGNORECASE),
}


@dataclass(frozen=True)
class YamlFile:
    """The content of a YAML file, and its places: `places` maps each key's path to "file, line n".

    `empty` names the sections with nothing below them, not even `null`: all their keys may be commented out.
    """

    path: Path
    content: dict[str, Any]
    places: Mapping[KeyPath, str]
    empty: frozenset[str]


class _Scalars(yaml.constructor.SafeConstructor):
    """Values of scalars; dates stay text."""


# `cat:date_start: 1950-01-01` is an attribute of a product, so text, and 360-day dates are not dates for Python.
_Scalars.add_constructor(f"{_TAG}timestamp", lambda _, node: str(node.value))


def read_yaml(path: Path) -> YamlFile:
    """Read a YAML file whose top level is a mapping.

    Anchors, aliases and merge keys (``<<``) are resolved; dates and keys stay text.

    Raises
    ------
    ConfigurationError
        The file is missing, unreadable or not UTF-8, has a syntax error or a duplicate key, or holds no mapping.
    """
    text = _text(path)
    reader = _Reader(path)
    try:
        # libyaml's parser, ten times faster, where PyYAML was built with it.
        node = yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        if node is not None and not isinstance(node, yaml.MappingNode):
            raise ConfigurationError(
                f"{reader.place(node)}: got {_kind(node)}, expected sections (`name:` and its keys)."
            )
        empty = [key.value for key, given in (node.value if node else ()) if given.value == "" and not given.style]
        return YamlFile(path, reader.value(node, (), ()) if node else {}, reader.places, frozenset(empty))
    except yaml.YAMLError as error:
        raise ConfigurationError(_syntax_message(_explained(text, error), path)) from error
    except RecursionError as error:
        raise ConfigurationError(f"{path}: lists or mappings are nested too deeply to be read.") from error
    except (LookupError, TypeError, ValueError) as error:  # PyYAML's own, where a tag does not suit its value
        raise ConfigurationError(f"{path}: a tag (`!!name`) does not suit its value: {error}. Remove it.") from error


class _Reader:
    """Makes values of a file's nodes, and keeps the place of each key."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.places: dict[KeyPath, str] = {}
        self._scalars = _Scalars()
        self._count = 0

    def place(self, node: yaml.Node) -> str:
        return f"{self.path}, line {node.start_mark.line + 1}"

    def value(self, node: yaml.Node, at: KeyPath, inside: tuple[yaml.Node, ...]) -> Any:
        """Return the value of a node at a path of keys; `inside` holds the nodes around it."""
        self._count += 1
        if self._count > _MOST_VALUES:
            raise ConfigurationError(
                f"{self.places[at[:1]]}: its aliases (`*name`) stand for more than {_MOST_VALUES} values. Use fewer of "
                "them."
            )
        if isinstance(node, yaml.ScalarNode):
            known = _DECIMALS.get(node.tag)
            if known and not known.fullmatch(node.value):
                raise ConfigurationError(
                    f"`{'.'.join(at)}` ({self.place(node)}): got {node.value}, which is no decimal number: YAML reads "
                    "010 as 8, 0x1F as 31, 1_000 as 1000 and 1:30 as 90. Write decimal digits only, or put text into "
                    "quotation marks."
                )
            return self._scalars.construct_object(node)
        if node in inside:
            raise ConfigurationError(f"{self.place(node)}: the anchor of `{'.'.join(at)}` contains itself.")
        if len(inside) >= _DEEPEST:
            raise ConfigurationError(f"{self.place(node)}: {_TOO_DEEP}.")
        if node.tag not in (f"{_TAG}map", f"{_TAG}seq"):
            raise ValueError(f"`{'.'.join(at)}` has the tag {node.tag}")
        inside = (*inside, node)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*at, str(number)), inside) for number, item in enumerate(node.value)]
        return self._mapping(node, at, inside)

    def _mapping(self, node: yaml.Node, at: KeyPath, inside: tuple[yaml.Node, ...]) -> dict[str, Any]:
        self._check_keys(node, at)
        content: dict[str, Any] = {}
        for key, given in node.value:  # keys that come by a merge first, so that own keys win
            if key.tag == _MERGE_TAG:
                for mapping in reversed(given.value) if isinstance(given, yaml.SequenceNode) else [given]:
                    if not isinstance(mapping, yaml.MappingNode):
                        problem = f"expected a mapping or a list of mappings after `<<`, got {_kind(mapping)}"
                        raise yaml.constructor.ConstructorError(None, None, problem, mapping.start_mark)
                    content |= self.value(mapping, at, inside)
        for key, given in node.value:
            if key.tag != _MERGE_TAG:
                self.places[*at, key.value] = self.place(key)
                content[key.value] = self.value(given, (*at, key.value), inside)
        return content

    def _check_keys(self, node: yaml.Node, at: KeyPath) -> None:
        """Refuse keys that are no text, or given twice."""
        seen: dict[str, yaml.Node] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise ConfigurationError(f"{self.place(key)}: got {_kind(key)} as a key, expected text.")
            if key.tag != _MERGE_TAG and key.value in seen:
                raise ConfigurationError(
                    f"{self.place(key)}: duplicate key `{'.'.join((*at, key.value))}`, already given on line "
                    f"{seen[key.value].start_mark.line + 1}. Keep one of them."
                )
            seen[key.value] = key


def _kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode):  # whose value may be the whole text of a file that is no configuration
        return "a single value"
    return "a list" if isinstance(node, yaml.SequenceNode) else "a mapping"


def _explained(text: str, error: yaml.YAMLError) -> yaml.YAMLError:
    """Return the error of PyYAML's own parser, which has more than libyaml's: the name of an alias, for example."""
    try:
        yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as own:
        return own
    except RecursionError:
        pass
    return error


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
    if mark and "nesting depth" in problem:  # libyaml's own limit, of 1000
        return f"{path}, line {mark.line + 1}: {_TOO_DEEP}."
    where = f"{path}, line {mark.line + 1}, column {mark.column + 1}" if mark else str(path)
    return f"{where}: not valid YAML: {problem}."


def merge(first: Mapping[str, Any], then: Mapping[str, Any], at: KeyPath = ()) -> dict[str, Any]:
    """Merge two mappings, which are at `at`, deeply: where both hold a mapping, key by key.

    Anything else of `then` replaces `first`, and `null` takes what `first` has away.
    """
    # Names of checks, for which `null` is a value: "without arguments".
    of_checks = at[:1] == ("health_checks",) and (at[-1] == "missing" or at[-2:-1] in (("flags",), ("cfchecks",)))
    merged = dict(first)
    for key, value in then.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            merged[key] = merge(old, value, (*at, key))
        elif value is None and old is not None and not of_checks:
            del merged[key]
        else:
            merged[key] = value
    return merged


def named_file(option: str, name: str, folder: Path) -> Path:
    """Return the package's YAML file of a name in a folder, or a user's by its path; `ParameterError` if neither."""
    if "/" in name or name.endswith((".yml", ".yaml")):
        return Path(name)
    known = sorted(path.stem for path in folder.glob("*.yml"))
    if name not in known:
        raise ParameterError(
            f"{not_one_of(option, name, known)}; or give the path of a file of yours, such as ./my.yml"
        )
    return folder / f"{name}.yml"
