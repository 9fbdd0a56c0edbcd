"""Configurations for publication: secrets, recognised by their keys, are hidden."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

HIDDEN = "***"
"""What stands in the place of a secret."""

_SECRET = re.compile(
    r"secret|token|passw(or)?d|passphrase|passcode|credential|api_?key|signature|authorization|cookie"
    r"|(^|[_-])(auth|pass|pwd|sas|bearer|connection_string|connectionstring)($|[_-])",
    re.IGNORECASE,
)
# A region may be called key_west, and `check_valid` names an attribute by `key`.
_KEY = re.compile(r"(^|[_-])keys?($|[_-])|accesskey|accountkey|privatekey", re.IGNORECASE)
_NAMES_AN_ATTRIBUTE = "check_valid"
_IN_URL = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def redacted(value: Any, name: str = "", inside: str = "") -> Any:
    """Return a copy of nested mappings and lists with `***` for secrets, by their keys, and in URLs before the `@`.

    Parameters
    ----------
    value : object
        Anything.
    name, inside : str
        The key of the value, and the key of the mapping that holds it.
    """
    if _is_secret(name, inside, isinstance(value, dict)):
        return HIDDEN
    if isinstance(value, dict):
        return {key: redacted(inner, str(key), name) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(inner, name, inside) for inner in value]
    return _IN_URL.sub(HIDDEN, value) if isinstance(value, str) else value


def redacted_text(text: str) -> str:
    """Return the text of a YAML or JSON file as `redacted` has its content; all else, comments too, stays as it is.

    A text that is neither is hidden as a whole.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        spans = sorted(set(_spans(root, "", "", ())), reverse=True) if root else []
    except (yaml.YAMLError, RecursionError):
        return HIDDEN
    for start, end in spans:
        hidden = text[start:end]
        text = f'{text[:start]}"{HIDDEN}"{hidden[len(hidden.rstrip()) :]}{text[end:]}'
    return _IN_URL.sub(HIDDEN, text)


def _is_secret(name: str, inside: str, is_mapping: bool) -> bool:
    is_key = bool(_KEY.search(name)) and not is_mapping and inside != _NAMES_AN_ATTRIBUTE
    return is_key or bool(_SECRET.search(name))


def _spans(node: yaml.Node, name: str, inside: str, above: tuple[yaml.Node, ...]) -> Iterator[tuple[int, int]]:
    """The beginning and the end of each secret value."""
    if _is_secret(name, inside, isinstance(node, yaml.MappingNode)):
        yield node.start_mark.index, node.end_mark.index
    elif node in above:
        return
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            # A merge's keys are those of the mapping itself.
            merges = key.tag == "tag:yaml.org,2002:merge"
            yield from _spans(value, *((name, inside) if merges else (str(key.value), name)), (*above, node))
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _spans(item, name, inside, (*above, node))
