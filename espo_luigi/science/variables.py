"""The table of daily variables: what checks, defaults, products, the report and exports know of each.

Its rows stand in variables.yml. A configuration adds to it or overrides it (section `variables`); the merged table is
`RunConfig.table`. Functions take a table; `VARIABLES` is the default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal

import yaml

# The lowest and the highest value.
Limits = tuple[float, float]
Kind = Literal["+", "*"]
Transformation = Literal["log", "logit"]
# forward: linear in time, then the last value after the end; both: the first value before the beginning, too.
Filling = Literal["forward", "both", "zero"]

_ANY: Limits = (float("-inf"), float("inf"))


@dataclass(frozen=True)
class Variable:
    """What is known of a daily variable; numbers are in `units`, unless stated.

    `VariableSection` in `config/variables.py` describes the fields that a configuration may have, too. A number that
    recurs beyond `possible` by more than `fill_margin` stands for missing values. No cell, not even of a desert, is dry
    on `longest_dry` days in a row; None if snow or the like may be absent for ever.
    """

    units: str = ""  # "" keeps those of the files
    kind: Kind = "+"
    possible: Limits = _ANY
    raw: Limits = _ANY  # models may leave the possible limits by a little
    fill_margin: float = 0.0
    bounds: tuple[float | None, float | None] = (None, None)  # of raw data and products; None for no bound
    transformation: Transformation | None = None
    wet: float | None = None  # None for a variable without dry days
    longest_dry: float | None = None
    jitter: float | None = None  # factors that are multiplied divide by the values
    difference: bool = False
    filling: Filling = "both"
    display_units: str = ""  # "" for `units`
    colours: str = "viridis"
    standard_name: str = ""
    long_name: str = ""
    cell_methods: str = ""

    @property
    def shown_units(self) -> str:
        """The units of reports; "" for those of the data."""
        return self.display_units or self.units

    @property
    def no_fills(self) -> Limits:
        """The limits beyond which a number that recurs stands for missing values."""
        low, high = self.possible
        return low - self.fill_margin, high + self.fill_margin

    @property
    def is_range(self) -> bool:
        """Whether it is a difference that is never negative, such as tasmax - tasmin."""
        return self.difference and self.bounds[0] == 0


def _rows() -> dict[str, Variable]:
    text = files("espo_luigi.science").joinpath("variables.yml").read_text("utf-8")
    table = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return {name: Variable(**{key: _as_floats(value) for key, value in row.items()}) for name, row in table.items()}


def _as_floats(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_as_floats, value))
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


VARIABLES: Mapping[str, Variable] = _rows()


def variable(name: str, table: Mapping[str, Variable] = VARIABLES) -> Variable:
    """Return the row of a variable; a variable that the table lacks has a row of defaults."""
    return table.get(name, Variable())


def names_of(name: str, table: Mapping[str, Variable] = VARIABLES) -> dict[str, str]:
    """Return the attributes that name a variable in CF's terms; those that its row lacks are left out."""
    row = variable(name, table)
    names = {key: getattr(row, key) for key in ("standard_name", "long_name", "cell_methods")}
    return {key: text for key, text in names.items() if text}
