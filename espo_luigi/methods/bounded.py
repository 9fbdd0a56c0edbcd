"""Bounded variables: a logarithm or a logit takes their values to where additive factors keep the bounds, and back.

The definition, and each rounding on the way in, are those of xsdba's `to_additive_space` and `from_additive_space`
(Alavoine and Grenier 2022, doi:10.1002/joc.7778), so that series sort and meet their nearest quantiles as xsdba's do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from espo_luigi.errors import DataError


@dataclass(frozen=True)
class Bounded:
    """A variable's bounds, in its units, and its transformation.

    Attributes
    ----------
    lower, upper
        The lowest and the highest value; log may lack the highest.
    trans
        log: ln(x - lower). logit: ln(p / (1 - p)) with p = (x - lower) / (upper - lower).
    clip
        Values at a bound have no transform. strict moves them to the next number inside, permissive also those
        beyond; None refuses them.
    margin
        Values are limited to the bounds, and the transformation is that of bounds so much wider; 0 for none.
    """

    variable: str
    units: str
    lower: float
    upper: float | None
    trans: str
    clip: str | None
    margin: float = 0.0

    @classmethod
    def of(cls, units: Mapping[str, str], space: Mapping[str, Any]) -> Bounded | None:
        """Read `additive_space`; None if there is no space."""
        if not space:
            return None
        from espo_luigi.science.units import threshold_in

        ((variable, unit),) = units.items()
        lower, upper, margin = (
            None if space.get(name) is None else threshold_in(space[name], unit)
            for name in ("lower_bound", "upper_bound", "margin")
        )
        assert lower is not None
        # A margin that round-off swallows leaves values at the widened bounds.
        clip = "permissive" if margin else space.get("clip_next_to_bounds")
        return cls(variable, unit, lower, upper, space.get("trans") or "log", clip, margin or 0.0)

    @property
    def wider(self) -> tuple[float, float | None]:
        """The bounds of the transformation."""
        return self.lower - self.margin, None if self.upper is None else self.upper + self.margin

    @property
    def arguments(self) -> dict[str, str]:
        """xsdba's arguments of the transformation and of its inverse."""
        texts = {"lower_bound": self.wider[0], "upper_bound": self.wider[1]}
        return {name: f"{end!r} {self.units}" for name, end in texts.items() if end is not None} | {"trans": self.trans}

    @property
    def sentence(self) -> str:
        """The formula of the transform, with its bounds."""
        (lower, upper), moved = self.wider, ", at least next to the bounds" if self.clip else ""
        if self.margin:
            moved = f", limited to {self.lower:g}{' or more' if self.upper is None else f' to {self.upper:g}'}"
        above = f"x {'+' if lower < 0 else '-'} {abs(lower):g}"
        formula = f"ln(({above}) / ({upper:g} - x))" if self.trans == "logit" else f"ln({above})"
        return f"{formula}, x in {self.units}{moved}."

    def check(self, values: np.ndarray, series: str, under: str = "") -> None:
        """Raise `DataError` if values lie where `clip` allows none: their number, the bounds, the key (`under` it)."""
        if self.clip == "permissive":
            return
        upper = np.inf if self.upper is None else self.upper
        low, high = (np.less, np.greater) if self.clip else (np.less_equal, np.greater_equal)
        if not (outside := np.count_nonzero(low(values, self.lower) | high(values, upper))):
            return
        where, remedy = ("outside of", "permissive") if self.clip else ("at or outside of", "strict or permissive")
        known = values[~np.isnan(values)]
        raise DataError(
            f"{outside} of {known.size} values of {self.variable} of the {series} are {where} its bounds "
            f"{self.lower:g} to {upper:g} {self.units}: they go from {known.min():.6g} to {known.max():.6g}, and "
            f"{self.trans} has no value there. Correct the bounds or the data, or set "
            f"`biasadjust.variables.{under or self.variable + '.training_args'}.additive_space.clip_next_to_bounds: "
            f"{remedy}`, which moves them inside, or a `margin`."
        )

    def transformed(self, values: np.ndarray, dtype: np.dtype[Any] | None = None) -> np.ndarray:
        """Return the transforms of values that `check` accepts, in their type; NaN stays.

        Values are moved next to a bound in the type `dtype` of the data, by default the values' own.
        """
        of, (lower, upper) = values.dtype.type, self.wider
        near = of if dtype is None else dtype.type
        if self.margin:
            values = values.copy()
            self.limit(values)
        if self.clip:
            high = None if upper is None else np.nextafter(near(upper), near(-np.inf))
            values = values.clip(np.nextafter(near(lower), near(np.inf)), high)
        out = values - of(lower)
        if self.trans == "logit":
            assert upper is not None
            out /= of(upper) - of(lower)
        if self.clip:
            ends = np.nextafter(near(0), near(1)), np.nextafter(near(1), near(0)) if self.trans == "logit" else None
            out.clip(*ends, out=out)
        if self.trans == "logit":
            out /= 1 - out
        return np.log(out, out=out)

    def put_back(self, values: np.ndarray) -> None:
        """Turn transforms into values within the bounds, in place.

        They are within the bounds as decimal numbers, too, which the nearest float32 may not be (0.1, 0.7).
        """
        lower, upper = self.wider
        with np.errstate(over="ignore"):
            if self.trans == "log":
                np.exp(values, out=values)
            else:
                np.exp(-values, out=values)
                values += 1
                np.divide(1, values, out=values)
        if self.trans == "logit" and upper is not None:
            values *= upper - lower
        values += lower
        self.limit(values)

    def limit(self, values: np.ndarray) -> None:
        """Limit values to the bounds, in place."""
        of = values.dtype.type
        low, high = of(self.lower), of(np.inf if self.upper is None else self.upper)
        low = low if float(low) >= self.lower else np.nextafter(low, of(np.inf))
        high = high if self.upper is None or float(high) <= self.upper else np.nextafter(high, of(-np.inf))
        values.clip(low, high, out=values)
