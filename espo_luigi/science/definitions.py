"""What texts of others may say that xclim and pint read: files of indicators and of properties, and units.

xclim formats their texts with the dataset among the arguments, and pint computes with the numbers in them.
"""

from __future__ import annotations

import ast
import functools
import re
import string
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import PathFinder
from importlib.resources import files
from importlib.util import find_spec
from threading import Lock
from typing import Any

# The package's own lists of indicators, in xclim's format.
_FILES = files("espo_luigi.science").joinpath("outcomes", "bundles").iterdir()
BUNDLES: Mapping[str, str] = {path.name.removesuffix(".yml"): str(path) for path in sorted(_FILES, key=str)}
_building = Lock()
_NAME = re.compile(r"[^\W\d][\w-]*")
# Coordinates and dimensions that products have or get.
_COORDINATES = re.compile(
    "time|lat(itude)?|lon(gitude)?|r(lat|lon)|[xy]|loc|cell|height|crs|rotated_pole|(.*_)?bnds|season|month|region|"
    "coverage|realization|horizon|warming_level|uncertainty"
)
_MOST_VALUES, _DEEPEST = 100_000, 20
# pint computes with numbers in a text: 9**9**9 takes for ever, and so do thousands of factors.
LONGEST_UNITS = 100
_SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹"
# The power of a unit or of 10: two digits, without a further power.
_POWER = re.compile(
    rf"(?:(?<=[^\W\d_{_SUPERSCRIPTS}])|(?<=[%°])|(?<![\w.)])10)"
    rf"(?:\s*(?:\*\*|\^)\s*\(?[-+]?\d{{1,2}}(?:[./]\d{{1,3}})?\)?|[⁺⁻]?[{_SUPERSCRIPTS}]{{1,2}})(?![\d.])"
)
_WORD_FOR_POWER = r"(?:squared?|cubed|cubic|\bsq\b)"
_OTHER_POWER = re.compile(rf"\*\*|\^|[⁺⁻{_SUPERSCRIPTS}]|{_WORD_FOR_POWER}.*{_WORD_FOR_POWER}")
_POWER_OF_UNIT = re.compile(r"(?<=[^\W\d_]|[%°])(?:\*\*|\^)?-?\d{1,2}(?!\d)")
_QUANTITY = re.compile(r"(?:[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,3})?)?[^\d()^+]*")
_WORD_OPERATOR_OR_DATE = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*|[-<>=!+*/%]{1,2}|(?:\d{4}-)?\d\d-\d\d")


@functools.cache
def source_of(*names: str) -> list[ast.stmt]:
    """Return a module's statements without importing it: importing xclim or xsdba takes seconds."""
    spec: Any = None
    for name in names:
        spec = PathFinder.find_spec(name, spec.submodule_search_locations) if spec else find_spec(name)
        if spec is None:
            raise ModuleNotFoundError(f"{'.'.join(names)} is not installed", name=names[0])
    return ast.parse(spec.loader.get_source(names[-1])).body


def arguments_in(function: ast.FunctionDef) -> list[str]:
    """Return the names of a function's arguments."""
    return [argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)]


def is_file(module: str) -> bool:
    """Whether a module of indicators is a YAML file; others are bundles and xclim's."""
    return module.endswith((".yml", ".yaml"))


def is_bounded(text: str) -> bool:
    """Whether pint reads a text of units, or of a number and units, in a moment."""
    return len(text) <= LONGEST_UNITS and not _OTHER_POWER.search(_POWER.sub("", text))


def fault_in(definitions: object) -> str:
    """Return what is wrong with the definitions of a file, as "PLACE is …; expected …"; nothing if they are sound.

    Braces may hold plain names only: xclim would follow `{ds.attribute}` to any code of the process. Parameters and
    units are numbers, units and words, without arithmetic. A variable's name is one that `fault_of_name` takes.
    """
    try:
        for number, (at, text) in enumerate(_texts(definitions)):
            fault = _fault_of(at, text) if number < _MOST_VALUES else f"expected at most {_MOST_VALUES} values"
            if fault:
                return f"`{'.'.join(at)[:200]}` is {text[:100]!r}; {fault}"
    except RecursionError:
        return f"they are nested more than {_DEEPEST} deep; expected a few levels"
    return ""


def fault_of_name(name: str) -> str:
    """Return why a variable may not have a name, as "expected …"; nothing if it may."""
    if not _NAME.fullmatch(name):
        return "expected a variable's name: a letter, then letters, digits, _ or -"
    return "expected another name than that of a coordinate" if _COORDINATES.fullmatch(name) else ""


@contextmanager
def further_variables() -> Iterator[dict[str, Any]]:
    """Yield xclim's table of variables, which is as before afterwards: it belongs to all files of the process.

    One thread at a time.
    """
    from xclim.core import VARIABLES

    with _building:
        before = dict(VARIABLES)
        try:
            yield VARIABLES
        finally:
            for name in VARIABLES.keys() - before.keys():
                del VARIABLES[name]
            VARIABLES.update(before)


def _texts(value: Any, at: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield each value, "" if it is no text, with the keys that lead there."""
    if len(at) > _DEEPEST:
        raise RecursionError
    yield at, value if isinstance(value, str) else ""
    if isinstance(value, Mapping | list | tuple):
        for key, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _texts(inner, (*at, str(key)))


def _fault_of(at: tuple[str, ...], text: str) -> str:
    if not at or (not text and at[-1] != "var_name"):
        return ""
    is_unit, is_parameter = at[-1] in ("units", "canonical_units"), at[2:3] == ("parameters",)
    if is_unit and not is_bounded(text):
        return "expected units, with powers of units only"
    if is_parameter:
        rest = _POWER_OF_UNIT.sub("", text)
        is_quantity = is_bounded(text) and "**" not in rest and bool(_QUANTITY.fullmatch(rest))
        is_plain = is_unit or at[-1] == "description" or _WORD_OPERATOR_OR_DATE.fullmatch(text) or is_quantity
        return "" if is_plain else "expected a number and its unit, without arithmetic, or a word"
    if at[2:3] in (("notes",), ("references",)) or at[0] in ("variables", "references", "doc"):
        return ""  # xclim does not format these, and LaTeX has braces
    try:
        fields = [field for field in string.Formatter().parse(text) if field[1] is not None]
    except ValueError as error:
        return f"{error}; a brace that is to stay is written twice"
    if any(not str(name).isidentifier() or name == "ds" or form or turn for _, name, form, turn in fields):
        return "expected plain names of parameters in braces, such as {thresh}"
    return fault_of_name(re.sub(r"[{}]", "", text)) if at[-1] == "var_name" else ""
