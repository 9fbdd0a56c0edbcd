"""Section `perfect_model`: how methods are tested on futures that are known."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from espo_luigi.fields import Integer, Names, Periods, Section

METHODS_BY_NAME = {"QDM": "QuantileDeltaMapping", "EQM": "EmpiricalQuantileMapping"}


class PerfectModelSection(Section):
    """Section `perfect_model`: what `espo perfect-model` compares."""

    methods: Annotated[tuple[Literal["QDM", "EQM"], ...], BeforeValidator(lambda value: value or ())] = Field(
        default=(), description="methods beside the configured method and Scaling, through xsdba: QDM, EQM"
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
