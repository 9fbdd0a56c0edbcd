"""Diagnosed datasets and domains, and tests of methods: sections `off-diag`, `diagnostics` and `perfect_model`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field

from espo_luigi.config.regions import Region
from espo_luigi.errors import ConfigurationError, nearest
from espo_luigi.fields import ByFileName, Integer, Named, Names, Period, Periods, Section, Unit
from espo_luigi.methods.base import method_named
from espo_luigi.science.diagnose.definitions import DiagnosisStep, judged

# Short names of xsdba's methods, in `perfect_model.methods`.
METHODS_BY_NAME = {
    "DQM": "DetrendedQuantileMapping",
    "QDM": "QuantileDeltaMapping",
    "EQM": "EmpiricalQuantileMapping",
}


class Asked(Section):
    """Properties over a period."""

    properties: Annotated[dict[str, Any], AfterValidator(judged)] = Field(
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

    @property
    def step(self) -> DiagnosisStep:
        """What is computed, as the science takes it."""
        asked = self.properties_and_measures
        return DiagnosisStep(asked.properties, asked.period, asked.to_level_prop, asked.to_level_meas)


class Steps(Section):
    """The three datasets that are diagnosed."""

    ref: DiagStep = Field(description="the reference")
    sim: DiagStep = Field(description="the regridded simulation")
    scen: DiagStep = Field(description="the scenario")

    @property
    def steps(self) -> dict[str, DiagStep]:
        """The steps by name."""
        return {"ref": self.ref, "sim": self.sim, "scen": self.scen}


class OffDiag(Section):
    """Section `off-diag`: diagnostics of small domains."""

    domains: ByFileName[Region] = Field(description="the domains that are diagnosed")
    each: Steps = Field(alias="steps", description="what is diagnosed: ref, sim and scen")

    @property
    def steps(self) -> dict[str, DiagStep]:
        """The steps by name."""
        return self.each.steps


class Diagnostics(Steps):
    """Section `diagnostics`: the diagnostics of whole regions, of the branch stage-2024."""

    ref: DiagStep = Field(description="the reference, from extraction.reference")


class DomainDiag(Asked):
    """Section `domain-diag`: diagnostics of small domains in ESPO v2, which has them apart as `diagregion`."""

    domains: ByFileName[Region] = Field(description="the domains that are diagnosed")
    change_units_arg: Named[Unit] = Field(description="the variables, and the unit that each is converted to first")

    @property
    def step(self) -> DiagnosisStep:
        """What is computed, as the science takes it."""
        return DiagnosisStep(self.properties, self.period, units=self.change_units_arg)

    @property
    def steps(self) -> dict[str, DomainDiag]:
        """The steps by name: the same for all datasets."""
        return dict.fromkeys(("ref", "sim", "scen"), self)


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
