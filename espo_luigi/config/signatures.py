"""Arguments of functions of xsdba and xclim, read from their sources: to import either takes seconds."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import Field, create_model

from espo_luigi.config.fields import Arguments
from espo_luigi.errors import ConfigurationError

Definitions = Mapping[str, ast.ClassDef | ast.FunctionDef]
# A parameter's name, and whether it has to be given.
Parameters = dict[str, bool]
# What a signature lacks: a key's type and what it is.
Described = Mapping[str, tuple[Any, str]]


def definitions(module: str) -> Definitions:
    """Return the classes and functions of a module of an installed package, by name."""
    return {one.name: one for one in _statements(module) if isinstance(one, ast.ClassDef | ast.FunctionDef)}


def _statements(module: str) -> list[ast.stmt]:
    package, *inner = module.split(".")
    spec = find_spec(package)
    assert spec is not None and spec.origin is not None
    source = Path(spec.origin).parent.joinpath(*inner).with_suffix(".py").read_text(encoding="utf-8")
    return ast.parse(source).body


@dataclass(frozen=True)
class Property:
    """What a property of xsdba takes: data, and parameters."""

    inputs: tuple[str, ...]
    parameters: tuple[str, ...]


@cache
def properties() -> Mapping[str, Property]:
    """Return the properties of `xsdba.properties`, which are calls of a class with `compute`, by name."""
    functions, found = definitions("xsdba.properties"), {}
    for one in _statements("xsdba.properties"):
        if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name) and isinstance(one.value, ast.Call):
            given = {keyword.arg: keyword.value for keyword in one.value.keywords}
            compute, preset = given.get("compute"), given.get("parameters")
            function = functions.get(compute.id) if isinstance(compute, ast.Name) else None
            if isinstance(function, ast.FunctionDef):
                fixed = {ast.literal_eval(key) for key in preset.keys if key} if isinstance(preset, ast.Dict) else set()
                taken = [key.arg for key in function.args.kwonlyargs if key.arg not in fixed]
                found[one.targets[0].id] = Property(tuple(key.arg for key in function.args.args), tuple(taken))
    return found


def parameters(function: ast.FunctionDef) -> Parameters:
    """Return the parameters of a function, without `*args` and `**kwargs`."""
    given = function.args
    required = len(given.args) - len(given.defaults)
    named = {one.arg: number < required for number, one in enumerate(given.args)}
    return named | {one.arg: default is None for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)}


def method(among: Definitions, name: str, wanted: str) -> Parameters:
    """Return the parameters of a class's method, its own or that of the first of its bases that has one."""
    found = among.get(name)
    if not isinstance(found, ast.ClassDef):
        raise ConfigurationError(
            f"xsdba {version('xsdba')} has no class {name} where espo_luigi looks for the arguments of {wanted}: "
            "install the version that setup.cfg names"
        )
    own = [one for one in found.body if isinstance(one, ast.FunctionDef) and one.name == wanted]
    base = next((one.id for one in found.bases if isinstance(one, ast.Name)), f"{name}'s base")
    return parameters(own[0]) if own else method(among, base, wanted)


def decorated(among: Definitions, decorator: str) -> dict[str, ast.FunctionDef]:
    """Return the functions that a call of `decorator` decorates, by name."""
    functions = [one for one in among.values() if isinstance(one, ast.FunctionDef)]
    return {one.name: one for one in functions if any(_is_call(mark, decorator) for mark in one.decorator_list)}


def _is_call(mark: ast.expr, decorator: str) -> bool:
    return isinstance(mark, ast.Call) and isinstance(mark.func, ast.Name) and mark.func.id == decorator


def section(name: str, found: Parameters, described: Described) -> type[Arguments]:
    """Return a section whose keys are parameters, in the order of what describes them."""
    places = {key: place for place, key in enumerate(described)}
    fields: dict[str, Any] = {
        key: _field(*described.get(key, (Any, "as in the library")), required=found[key])
        for key in sorted(found, key=lambda key: places.get(key, len(places)))
    }
    return create_model(name, __base__=Arguments, **fields)


def _field(kind: Any, description: str, *, required: bool) -> tuple[Any, Any]:
    return (kind, Field(description=description)) if required else (kind | None, Field(None, description=description))
