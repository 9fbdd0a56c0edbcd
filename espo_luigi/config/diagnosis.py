"""Diagnosed datasets and domains, and tests of methods: sections `off-diag`, `diagnostics` and `perfect_model`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from espo_luigi.config.regions import Region
from espo_luigi.errors import ConfigurationError, nearest
from espo_luigi.fields import ByFileName, Integer, Named, Names, Period, Periods, Section, Unit
from espo_luigi.methods.base import method_named
from espo_luigi.methods.xsdba import PROPERTIES, Property
from espo_luigi.science.definitions import fault_in, fault_of_name

# Short names of xsdba's methods, in `perfect_model.methods`.
METHODS_BY_NAME = {
    "DQM": "DetrendedQuantileMapping",
    "QDM": "QuantileDeltaMapping",
    "EQM": "EmpiricalQuantileMapping",
}


def _with_current_names(value: dict[str, Any]) -> dict[str, Any]:
    """Definitions as an ordinary dictionary, as xclim's loader of indicators wants, with xsdba's current names."""
    if not isinstance(value.get("indicators"), dict) or not value["indicators"]:
        raise ValueError("expected a mapping `indicators` that defines each property")
    if fault := fault_in(value):
        raise ValueError(fault)
    return {**value, "indicators": {name: _renamed(name, one) for name, one in value["indicators"].items()}}


def _renamed(name: str, definition: Any) -> dict[str, Any]:
    if fault := fault_of_name(name):
        raise ValueError(f"a property has the name {name!r}; {fault}")
    base = definition.get("base") if isinstance(definition, dict) else None
    if not isinstance(base, str):
        raise ValueError(f"expected a mapping with a `base` for the property {name}")
    current = base.replace("xclim.sdba.properties.", "xsdba.properties.", 1)
    if not current.startswith("xsdba.properties."):
        raise ValueError(f"the property {name} has the base {base!r}; expected xsdba.properties.NAME")
    short = current.removeprefix("xsdba.properties.")
    if short not in PROPERTIES:
        raise ValueError(
            f"the property {name} has the base {base!r}, and xsdba {version('xsdba')} has no such property; "
            f"expected one of {', '.join(PROPERTIES)}{nearest(short, PROPERTIES)}"
        )
    _check_arguments(name, definition, PROPERTIES[short])
    return {**definition, "base": current}


def _check_arguments(name: str, definition: Mapping[str, Any], taken: Property) -> None:
    given, inputs = definition.get("parameters", {}), definition.get("input", {})
    if not isinstance(given, Mapping) or not isinstance(inputs, Mapping):
        raise ValueError(f"expected mappings `input` and `parameters` for the property {name}")
    for key in given:
        if key not in taken.parameters:
            raise ValueError(
                f"the property {name} has the parameter {key!r}; expected one of {', '.join(taken.parameters)}"
                f"{nearest(str(key), taken.parameters)}"
            )
    if set(inputs) != set(taken.inputs) or not all(isinstance(one, str) for one in inputs.values()):
        raise ValueError(
            f"the property {name} has the input {dict(inputs)}; expected a variable for each of "
            f"{', '.join(taken.inputs)}, such as `input: {{{taken.inputs[0]}: tasmax}}`"
        )


class Asked(Section):
    """Properties over a period."""

    properties: Annotated[dict[str, Any], AfterValidator(_with_current_names)] = Field(
        description="the definitions of the properties: a YAML file, or the mapping itself"
    )
    period: Period = Field(description="first and last year; custom.ref_period by default")


class PropertiesAndMeasures(Asked):
    """The computations of a step."""

    to_level_prop: str = Field(description="the attribute cat:processing_level of the properties")
    to_level_meas: str = Field(description="the attribute cat:processing_level of the measures")


class DiagStep(Section):
    """A diagnosed dataset: the reference, the simulation or the scenario."""

    domain: Named[str] = Field(default={}, description="the region that hosts each domain")
    properties_and_measures: PropertiesAndMeasures = Field(description="what is computed")
    unstack: bool = Field(default=False, description="whether the dataset is stacked and has to be unstacked")


class Steps(Section):
    """The three datasets that are diagnosed."""

    ref: DiagStep = Field(description="the reference")
    sim: DiagStep = Field(description="the regridded simulation")
    scen: DiagStep = Field(description="the scenario")


class OffDiag(Section):
    """Section `off-diag`: diagnostics of small domains."""

    domains: ByFileName[Region] = Field(description="the domains that are diagnosed")
    each: Steps = Field(alias="steps", description="what is diagnosed: ref, sim and scen")

    @property
    def steps(self) -> dict[str, DiagStep]:
        """The steps ref, sim and scen."""
        return {"ref": self.each.ref, "sim": self.each.sim, "scen": self.each.scen}


class Diagnostics(Section):
    """Section `diagnostics`: the diagnostics of whole regions, of the branch stage-2024."""

    reference: DiagStep = Field(alias="ref", description="the reference, from extraction.reference")
    sim: DiagStep = Field(description="the simulations")
    scen: DiagStep = Field(description="the scenarios")

    @property
    def steps(self) -> dict[str, DiagStep]:
        """The steps sim and scen."""
        return {"sim": self.sim, "scen": self.scen}


class DomainDiag(Asked):
    """Section `domain-diag`: diagnostics of small domains in ESPO v2, which has them apart as `diagregion`."""

    domains: ByFileName[Region] = Field(description="the domains that are diagnosed")
    change_units_arg: Named[Unit] = Field(description="the variables, and the unit that each is converted to first")


def _known_methods(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        try:
            method_named(METHODS_BY_NAME.get(name, name))
        except ConfigurationError as error:
            short = f"expected {', '.join(METHODS_BY_NAME)} or a method's name{nearest(name, METHODS_BY_NAME)}"
            raise ValueError(f"{short}: {error}") from error
    return names


class PerfectModelSection(Section):
    """Section `perfect_model`: what `espo perfect-model` compares."""

    methods: Annotated[Names, AfterValidator(_known_methods)] = Field(
        default=(),
        description="methods beside the configured ones and Scaling: DQM, QDM, EQM, or names as in "
        "biasadjust.variables.*.method, such as ibicus.ISIMIP",
    )
    cells: Integer = Field(
        default=100, ge=1, description="how many cells of each region or slice the further methods are applied to"
    )
    simulations: Names = Field(
        default=(), description="the simulations that take part, by ids or parts of ids; all by default"
    )
    periods: Periods = Field(
        default=(("2041", "2070"), ("2071", "2100")), description="the years that are compared, within the simulations'"
    )
