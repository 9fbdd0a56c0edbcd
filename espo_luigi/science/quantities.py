"""Numbers with units as configurations write them, such as "0.01 mm d-1", and comparisons with them."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, Self

# By sign and by word.
ORDERS: Mapping[str, Callable[[Any, Any], Any]] = {
    name: getattr(operator, word)
    for sign, word in ((">", "gt"), (">=", "ge"), ("<", "lt"), ("<=", "le"))
    for name in (sign, word)
}
OPERATORS = {**ORDERS, "==": operator.eq, "eq": operator.eq, "!=": operator.ne, "ne": operator.ne}

# Not all that Python takes for a number: neither nan, nor inf, nor 1_000.
_NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")


class Quantity(str):
    """A number, a space and a unit; `value` and `unit` are its parts, and the text stays as it was written.

    `science.units.threshold_in` converts it. Raises ValueError if the text is none; the unit may be unknown.
    """

    value: float
    unit: str

    def __new__(cls, text: object) -> Self:
        """Parse a text."""
        number, unit = [*str(text).split(None, 1), "", ""][:2]
        if not isinstance(text, str) or not unit.strip() or not _NUMBER.fullmatch(number):
            raise ValueError("expected a number, a space and a unit, such as 0.01 mm d-1")
        if not math.isfinite(float(number)):
            raise ValueError("expected a finite number")
        made = super().__new__(cls, text)
        made.value, made.unit = float(number), unit.strip()
        return made


class Comparison(str):
    """A comparison with a number and a unit, such as "> 335 K"; `compare` and `limit` are its parts.

    Raises ValueError if the text is no comparison.
    """

    compare: Callable[[Any, Any], Any]
    limit: Quantity

    def __new__(cls, text: str) -> Self:
        """Parse a text."""
        limit = text.strip().lstrip("<>=!")
        made = super().__new__(cls, text)
        try:
            made.compare = OPERATORS[text.strip().removesuffix(limit)]
            made.limit = Quantity(limit)
        except (KeyError, ValueError):
            signs = ">=, >, <=, <, ==, !="
            raise ValueError(f'expected one of {signs}, a number and units, such as "> 335 K"') from None
        return made
