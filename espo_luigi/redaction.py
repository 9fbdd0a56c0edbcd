"""Texts and configurations for others: secrets, recognised by their keys and in URLs, are hidden."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

if TYPE_CHECKING:
    import yaml

HIDDEN = "***"
"""What stands in the place of a secret."""

_SECRET = re.compile(
    r"secret|token|passw(or)?d|passphrase|passcode|credential|api_?key|signature|authorization|cookie"
    r"|(^|[_-])(auth|pass|pwd|pw|sas|bearer|connection_string|connectionstring)($|[_-])",
    re.IGNORECASE,
)
# A region may be called key_west, and `check_valid` names an attribute by `key`.
_KEY = re.compile(r"(^|[_-])keys?($|[_-])|accesskey|accountkey|privatekey", re.IGNORECASE)
_NAMES_AN_ATTRIBUTE = "check_valid"
# Addresses without `https:` or the like. A password may hold what should have been escaped: `@`, or also `/`.
_ADDRESS = re.compile(r"""(?<=://)[^\s"'<>]+""")
_HOST = re.compile(r"[^/?#]*")
_WITH_PASSWORD = re.compile(r"[^/@]+:(?!\d+/)[^@]")
_QUERY = re.compile(r"""(?<=[?&#;])([^=?&#;\s"'<>]+)=((?:[^&#;\s"'<>]|;(?![^=?&#;\s"'<>]+=))+)""")
# Names in the queries of signed addresses (Azure, AWS, Google and their like).
_OF_A_QUERY = re.compile(r"sig|code|jwt|hmac|policy|session|sid|ticket|x-(amz|goog)-.*", re.IGNORECASE)
# An entry of a mapping as Python, JSON or (without quotes) YAML write it; HTML, and JSON inside of JSON, escape quotes.
_QUOTE = r"""\\?["']|&(?:quot|apos|\#x27|\#39|\#34);"""
_KEY_OF_ENTRY = re.compile(
    rf"""(?P<quote>{_QUOTE})(?P<name>[\w.-]+)(?P=quote):\s?|[{{,]\s*(?P<bare>[\w.-]+):\s"""
    # An argument in the text of a Python object.
    r"""|(?<![\w?&#;])(?P<argument>[A-Za-z]\w*)=(?=["'])"""
)
_VALUE = re.compile(
    rf"""b?(?P<opening>{_QUOTE})(?s:\\.|[^\\])*?(?:(?P=opening)|\Z)"""
    r"""|[^\s,{}\[\]"'\\&][^,{}\[\]\n"'\\]*(?=[,}])"""
)
_PLAIN_STRING = r"""b?"(?s:\\.|[^"\\])*(?:"|\Z)|b?'(?s:\\.|[^'\\])*(?:'|\Z)"""
_COUNTS = re.compile(r"(count|limit|number|max|size|seconds|bytes|s)$|^(max|n|number)[_-]", re.IGNORECASE)


def without_secrets(text: str) -> str:
    """Return a text, such as a message, with `***` for the secrets in its URLs and in its entries of mappings."""
    # Nearly all texts have no address; this is far faster than looking for the pattern.
    if "://" in text:
        text = _ADDRESS.sub(_without_user, text)
    if "=" in text:
        text = _QUERY.sub(_without_value, text)
    shown: list[str] = []
    done = 0
    for key in _KEY_OF_ENTRY.finditer(text):
        name, quote = key["name"] or key["bare"] or key["argument"], key["quote"] or ""
        # JSON of ours has names of options as `key`, or several as `keys`.
        is_shown = name in ("key", "keys") and (key["argument"] or quote.endswith(('"', "&quot;", "&#34;")))
        opening = text[key.end() : key.end() + 1]
        if key.start() < done or is_shown or not _is_secret(name, "", is_mapping=opening == "{"):
            continue
        if opening and opening in "{[(":
            shown += text[done : key.end()], quote, HIDDEN, quote
            done = _end_of_brackets(text, key.end(), quote)
            continue
        value = _VALUE.match(text, key.end())
        # Without quotes, Python and JSON have numbers, None and the like.
        if value is None or (quote and not value["opening"] and (not value[0][0].isdigit() or _COUNTS.search(name))):
            continue
        around = value["opening"] or quote
        shown += text[done : value.start()], around, HIDDEN, around
        done = value.end()
    return "".join([*shown, text[done:]])


def _without_user(match: re.Match[str]) -> str:
    """Hide the user and the password; up to the last `@` if there is a password, in time linear in the length."""
    address, last = match[0], match[0].rfind("@")
    shown: list[str] = []
    done = begin = 0
    while begin <= last:
        host = _HOST.match(address, begin)
        found = _WITH_PASSWORD.match(address, begin)
        end = last if found and found.end() <= last else address.rfind("@", begin, host.end() if host else begin)
        if end > begin:
            shown += address[done:begin], HIDDEN
            done = end
        inner = address.find("://", max(begin, end))
        begin = inner + len("://") if inner >= 0 else len(address)
    return "".join([*shown, address[done:]])


def _end_of_brackets(text: str, start: int, quote: str) -> int:
    """Return where the bracket that opens at `start` is closed again; the end of a text that was cut before."""
    # Inside of another string, quotes are escaped.
    string = rf"{re.escape(quote)}(?s:.*?)(?:{re.escape(quote)}|\Z)" if len(quote) > 1 else _PLAIN_STRING
    depth = 0
    for part in re.compile(rf"{string}|[\[{{(]|[\]}})]").finditer(text, start):
        depth += (part[0] in "{[(") - (part[0] in "}])")
        if not depth:
            return part.end()
    return len(text)


def _without_value(match: re.Match[str]) -> str:
    name = unquote(match[1])
    is_secret = _is_secret(name, "", is_mapping=False) or _OF_A_QUERY.fullmatch(name)
    return f"{match[1]}={HIDDEN}" if is_secret else match[0]


def redacted(value: Any, name: str = "", inside: str = "") -> Any:
    """Return a copy of nested mappings and lists with `***` for secrets, by their keys, and in texts.

    `name` is the key of the value, `inside` the key of the mapping that holds the value.
    """
    if _is_secret(name, inside, isinstance(value, dict)):
        return HIDDEN
    if isinstance(value, dict):
        return {key: redacted(inner, str(key), name) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(inner, name, inside) for inner in value]
    return without_secrets(value) if isinstance(value, str) else value


def redacted_text(text: str) -> str:
    """Return the text of a YAML or JSON file as `redacted` has its content; all else, comments too, stays as it is.

    A text that is neither is hidden as a whole.
    """
    import yaml

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        spans = sorted(set(_spans(root, "", "", ())), reverse=True) if root else []
    except (yaml.YAMLError, RecursionError):
        return HIDDEN
    for start, end in spans:
        hidden = text[start:end]
        text = f'{text[:start]}"{HIDDEN}"{hidden[len(hidden.rstrip()) :]}{text[end:]}'
    return without_secrets(text)


def _is_secret(name: str, inside: str, is_mapping: bool) -> bool:
    is_key = bool(_KEY.search(name)) and not is_mapping and inside != _NAMES_AN_ATTRIBUTE
    return is_key or bool(_SECRET.search(name))


def _spans(node: yaml.Node, name: str, inside: str, above: tuple[yaml.Node, ...]) -> Iterator[tuple[int, int]]:
    """The beginning and the end of each secret value."""
    import yaml

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
