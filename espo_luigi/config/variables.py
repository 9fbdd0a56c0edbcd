"""Section `variables`: what a configuration adds to the table of variables, or overrides there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pydantic import Field, field_validator, model_validator

from espo_luigi.errors import ConfigurationError, DataError, nearest
from espo_luigi.fields import Number, PositiveThreshold, Section, Unit, check_threshold, converts
from espo_luigi.science.variables import Filling, Kind, Transformation, Variable, variable

# None stands for nothing in these fields of a row.
_MAY_BE_NULL = ("transformation", "wet", "jitter")
_THRESHOLDS = ("wet", "jitter")


class VariableSection(Section):
    """What is known of a variable; what is not given is as in the table, or unknown."""

    units: Unit | None = Field(default=None, description="what is extracted has these units")
    kind: Kind | None = Field(default=None, description="whether adjustment factors are added (+) or multiplied (*)")
    possible: tuple[Number, Number] | None = Field(default=None, description="the limits of a product")
    raw: tuple[Number, Number] | None = Field(default=None, description="the limits of raw data")
    bounds: tuple[Number | None, Number | None] | None = Field(
        default=None, description="what a value cannot pass by its definition; null for no bound"
    )
    transformation: Transformation | None = Field(
        default=None, description="how a bounded variable becomes an unbounded one for the adjustment"
    )
    wet: PositiveThreshold | None = Field(default=None, description="a day below it is dry: 1 mm d-1, for example")
    jitter: PositiveThreshold | None = Field(
        default=None, description="noise takes the place of values below it where factors are multiplied"
    )
    difference: bool | None = Field(default=None, description="whether it is a difference of temperatures")
    filling: Filling | None = Field(default=None, description="how days that a calendar lacks are filled")
    display_units: Unit | None = Field(default=None, description="the units of reports")
    colours: str | None = Field(default=None, description="matplotlib's colour map of the variable's maps")
    standard_name: str | None = Field(default=None, description="CF's standard name")
    long_name: str | None = Field(default=None, description="the name in words")
    cell_methods: str | None = Field(default=None, description="CF's cell methods")

    @model_validator(mode="before")
    @classmethod
    def _unbounded(cls, given: Any) -> Any:
        """Tell `bounds: null` from bounds that are not given, for fingerprints, too."""
        is_null = isinstance(given, dict) and "bounds" in given and given["bounds"] is None
        return {**given, "bounds": (None, None)} if is_null else given

    @field_validator("colours")
    @classmethod
    def _drawable(cls, value: str | None) -> str | None:
        from matplotlib import colormaps

        if value is not None and value not in colormaps:
            raise ValueError(f"{value!r} is not a colour map of matplotlib{nearest(value, colormaps)}")
        return value

    def over(self, known: Variable) -> Variable:
        """Return a row of the table with what is given here in place of its own; its numbers are in the given units.

        `null` takes a transformation, a threshold or the bounds away, and leaves all else as it is. Without `possible`
        in either, the limits are the bounds.

        Raises
        ------
        DataError
            If the row has units that do not convert to those given here, or a threshold has others.
        """
        from espo_luigi.science.possible import converted
        from espo_luigi.science.units import threshold_in

        if self.units and known.units:
            known = converted(known, self.units)
        given = {name: value for name, value in self if name in self.model_fields_set}
        given = {name: value for name, value in given.items() if value is not None or name in _MAY_BE_NULL}
        for key, text in ((key, given[key]) for key in _THRESHOLDS if given.get(key)):
            given[key] = threshold_in(text, self.units or known.units or text.unit)
        own = replace(known, **given)
        if self.possible is not None:
            return own
        (low, high), (lowest, highest) = own.possible, own.bounds
        within = max(low, low if lowest is None else lowest), min(high, high if highest is None else highest)
        return replace(own, possible=within)

    def checked(self, name: str) -> Variable:
        """Return the row of a variable in the table of a run.

        Raises
        ------
        ConfigurationError
            If its values contradict each other, or the units those of the table.
        """
        known = variable(name)
        units = self.units or known.units
        for key, text in ((key, getattr(self, key)) for key in _THRESHOLDS):
            if text:
                check_threshold(f"variables.{name}.{key}", text, units)
        try:
            row = self.over(known)
        except DataError as error:
            raise ConfigurationError(
                f"`variables.{name}.units`: got {self.units}; expected a unit that converts to {known.units} ({error})"
            ) from error
        for key, problem in _problems(row):
            raise ConfigurationError(f"`variables.{name}.{key}`: {problem}")
        if self.kind == "*" and row.transformation:
            raise ConfigurationError(
                f"`variables.{name}.kind`: got '*', and factors are added to a {row.transformation}. Leave it out, or "
                "give `transformation: null`."
            )
        return row


def _problems(row: Variable) -> Iterator[tuple[str, str]]:
    """Yield the keys of a row that contradict others, and how."""
    for key in ("possible", "raw", "bounds"):
        low, high = getattr(row, key)
        if None not in (low, high) and not low < high:
            yield key, f"got [{low:g}, {high:g}], expected [lowest, highest]."
    (low, high), (lowest, highest) = row.possible, row.bounds
    if (lowest is not None and low < lowest) or (highest is not None and high > highest):
        outer = f"[{', '.join('null' if one is None else f'{one:g}' for one in row.bounds)}]"
        yield "possible", f"got [{low:g}, {high:g}], expected limits within the variable's `bounds`, {outer}."
    if row.transformation and (lowest is None or (row.transformation == "logit" and highest is None)):
        sides = "a lower and an upper bound, such as [0, 100]" if row.transformation == "logit" else "a lower bound"
        yield (
            "transformation",
            f"got {row.transformation}, which needs {sides}. Give `bounds`, or `transformation: null`.",
        )
    for key, number in ((key, getattr(row, key)) for key in _THRESHOLDS):
        if number is not None and not number < high:
            yield key, f"got {number:g} {row.units}, expected less than the highest possible value, {high:g}."
    if not row.units and (row.transformation or row.wet or row.jitter or row.display_units):
        yield "units", "missing; `transformation`, `wet`, `jitter` and `display_units` need the variable's. Give them."
    elif row.display_units and not converts(row.display_units, row.units):
        yield "display_units", f"got {row.display_units}, expected a unit that {row.units} converts to."
