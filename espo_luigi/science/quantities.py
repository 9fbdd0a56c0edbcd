"""Numbers with units as configurations write them, such as "0.01 mm d-1"."""

from __future__ import annotations

import math
import re
from typing import Self

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
        number, _, unit = str(text).strip().partition(" ")
        if not isinstance(text, str) or not unit.strip() or not _NUMBER.fullmatch(number):
            raise ValueError("expected a number, a space and a unit, such as 0.01 mm d-1")
        if not math.isfinite(float(number)):
            raise ValueError("expected a finite number")
        made = super().__new__(cls, text)
        made.value, made.unit = float(number), unit.strip()
        return made
