"""What a diagnosis computes: definitions of properties, judged in one place, and a step of the diagnostics.

xsdba's source says which properties there are and what they take. It is read, not imported: to import xsdba takes
seconds, and each `espo` command judges the configuration.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from espo_luigi.errors import nearest
from espo_luigi.science.definitions import arguments_in, fault_in, fault_of_name, source_of
from espo_luigi.science.variables import Variable

_MODULE = "xsdba.properties."


@dataclass(frozen=True)
class DiagnosisStep:
    """What is computed of a dataset: judged `definitions`, first and last year, and the levels of both results.

    With `units`, only the variables named there are used, each after its conversion.
    """

    definitions: Mapping[str, Any]
    period: Sequence[str]
    to_level: str = "diag-properties"
    measures_to_level: str = "diag-measures"
    units: Mapping[str, str] | None = None


def usual_properties(table: Mapping[str, Variable]) -> dict[str, Any]:
    """Return definitions of each variable's mean, a high percentile, and a low one or the share of dry days."""

    def defined(name: str, words: str, base: str, **parameters: Any) -> dict[str, Any]:
        attrs = {"long_name": f"{words}: {table[name].long_name or name}"}
        return {"base": f"{_MODULE}{base}", "input": {"da": name}, "parameters": parameters, "cf_attrs": attrs}

    indicators = {}
    for name, row in table.items():
        indicators[f"mean_{name}"] = defined(name, "Mean", "mean")
        indicators[f"q99_{name}"] = defined(name, "99th percentile", "quantile", q=0.99)
        if row.wet is None:
            indicators[f"q01_{name}"] = defined(name, "1st percentile", "quantile", q=0.01)
        else:
            dry = {"op": "<", "thresh": f"{row.wet} {row.units}"}
            indicators[f"dry_{name}"] = defined(name, "Share of dry days", "relative_frequency", **dry)
    return {"realm": "generic", "indicators": indicators}


@functools.cache
def known_properties() -> Mapping[str, tuple[list[str], list[str]]]:
    """Return the data and the parameters of each of xsdba's properties: its function's arguments but for those set."""
    functions: dict[str, list[str]] = {}
    found: dict[str, tuple[list[str], list[str]]] = {}
    for node in source_of("xsdba", "properties"):
        if isinstance(node, ast.FunctionDef):
            functions[node.name] = arguments_in(node)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            given = {str(each.arg): each.value for each in node.value.keywords}
            if isinstance(function := given.get("compute"), ast.Name):
                is_set = ast.literal_eval(given["parameters"]) if "parameters" in given else {}
                taken = [name for name in functions[function.id] if name not in is_set]
                inputs = [name for name in taken if name.startswith("da")]
                found[ast.unparse(node.targets[0])] = inputs, taken[len(inputs) :]
    return found


def judged(definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Return the definitions of properties with xsdba's current names; the input is not changed.

    Bases of old files (`xclim.sdba.properties.*`) are understood.

    Raises
    ------
    ValueError
        If there are no definitions, one has a text that is not safe (`definitions.fault_in`), or xsdba has no such
        property or the property takes other data or parameters.
    """
    if not isinstance(definitions.get("indicators"), dict) or not definitions["indicators"]:
        raise ValueError("expected a mapping `indicators` that defines each property")
    if fault := fault_in(definitions):
        raise ValueError(fault)
    return {**definitions, "indicators": {name: _judged(name, one) for name, one in definitions["indicators"].items()}}


def _judged(name: str, definition: Any) -> dict[str, Any]:
    if fault := fault_of_name(name):
        raise ValueError(f"a property has the name {name!r}; {fault}")
    base = definition.get("base") if isinstance(definition, dict) else None
    if not isinstance(base, str):
        raise ValueError(f"expected a mapping with a `base` for the property {name}")
    current, known = base.replace("xclim.sdba.properties.", _MODULE, 1), known_properties()
    if not current.startswith(_MODULE):
        raise ValueError(f"the property {name} has the base {base!r}; expected {_MODULE}NAME")
    short = current.removeprefix(_MODULE)
    if short not in known:
        raise ValueError(
            f"the property {name} has the base {base!r}, and xsdba {version('xsdba')} has no such property; "
            f"expected one of {', '.join(known)}{nearest(short, known)}"
        )
    given, inputs = definition.get("parameters", {}), definition.get("input", {})
    if not isinstance(given, Mapping) or not isinstance(inputs, Mapping):
        raise ValueError(f"expected mappings `input` and `parameters` for the property {name}")
    data, parameters = known[short]
    for key in (key for key in given if key not in parameters):
        raise ValueError(
            f"the property {name} has the parameter {key!r}; expected one of {', '.join(parameters)}"
            f"{nearest(str(key), parameters)}"
        )
    if set(inputs) != set(data) or not all(isinstance(one, str) for one in inputs.values()):
        raise ValueError(
            f"the property {name} has the input {dict(inputs)}; expected a variable for each of "
            f"{', '.join(data)}, such as `input: {{{data[0]}: tasmax}}`"
        )
    return {**definition, "base": current}
