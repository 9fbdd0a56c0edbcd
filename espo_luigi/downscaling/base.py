"""The interface of downscalers, and the look-up of a downscaler by its name.

A downscaler does the numbers of a block of whole coarse cells, in memory. `blocks` does what surrounds the numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import AfterValidator, Field

from espo_luigi.errors import DataError
from espo_luigi.fields import Integer, OmitDefault, Section, registered
from espo_luigi.methods.base import Step

if TYPE_CHECKING:  # a configuration is loaded without xarray
    from espo_luigi.science.calendar import TimeAxis
    from espo_luigi.science.coarse import Places

_OURS = {
    "BCSD": "espo_luigi.downscaling.bcsd:BCSD",
    "MBCnSD": "espo_luigi.downscaling.mbcnsd:MBCnSD",
    "QPLAD": "espo_luigi.downscaling.qplad:QPLAD",
}
DOWNSCALERS = tuple(_OURS)


class Limit(NamedTuple):
    """A bound of a variable, and the threshold beyond which values stand for the bound."""

    bound: float
    threshold: float


@dataclass(frozen=True, eq=False)
class Setup:
    """All that downscaling a block needs besides the series; numbers are in the variable's units."""

    kind: Literal["+", "*"]  # factors are differences or ratios
    reference: TimeAxis  # the dates
    time: TimeAxis  # those of the adjusted simulation
    places: Places  # of the fine cells among the coarse cells
    numbers: np.ndarray  # of each coarse cell on the globe
    areas: np.ndarray  # what each fine cell weighs
    seed: str  # with the number of a coarse cell, it decides random draws
    arguments: Mapping[str, Any]  # validated, all that the downscaler's `Arguments` have
    lower: Limit | None = None  # None without
    upper: Limit | None = None
    wet: float | None = None  # the least amount of a wet day; None for a variable without dry days
    quantiles: np.ndarray | None = None  # (coarse cell, day), as the adjustment ranked it; None if it kept none

    def interpolated(self, values: np.ndarray, cells: Any = slice(None)) -> np.ndarray:
        """Return values (coarse cell, day) interpolated bilinearly to fine cells, all or those at places."""
        corners, weights = self.places.corners[cells], self.places.weights[cells]
        made = np.zeros((len(corners), values.shape[1]))
        for corner in range(corners.shape[1]):
            made += weights[:, corner, None] * values[corners[:, corner]]
        return made

    def groups(self) -> dict[int, np.ndarray]:
        """Return the places of the fine cells that lie in each coarse cell, by its number, by which it draws."""
        inside = self.places.numbers
        return {number: np.flatnonzero(inside == number) for number in np.unique(inside).tolist()}


def _odd(days: int) -> int:
    if days % 2 == 0:
        raise ValueError(f"expected an odd number of days, the same before and after, got {days}")
    return days


class WindowArguments(Section):
    """Keyword arguments of downscalers that look at days around each day of the year."""

    kind: Literal["+", "*"] | None = OmitDefault(
        "whether differences or ratios of fine to coarse values are kept; by default by the table of variables"
    )
    window: Annotated[Integer, AfterValidator(_odd)] = Field(
        default=31, ge=1, le=127, description="days around each day of the year, an odd number"
    )


class Downscaler:
    """A way to downscale; subclasses are registered under the entry-point group `espo_luigi.downscalers`.

    Series are float64 arrays: `coarse` (coarse cell, day) and `fine` (fine cell, day) of the reference have its dates,
    `adjusted` (coarse cell, day) of a member has the simulation's. A block has all fine cells that lie in its
    coarse cells, and the coarse cells around those. A cell with NaN throughout stays so.
    """

    # The model of `downscaling.arguments`.
    Arguments: type[Section] = WindowArguments
    # The number of fine cells in a block, which memory limits; a lone coarse cell may have more.
    cells_in_a_block = 200
    # The largest number of fine cells of a coarse cell; None for any.
    most_cells: int | None = None
    # Whether it needs the coarse cells around those that its fine cells lie in; else a block has none of them.
    interpolates = True
    name = ""

    def check_sizes(self, numbers: np.ndarray) -> None:
        """Raise `DataError` if too many fine cells, each with its coarse cell's number, lie in a coarse cell."""
        most = int(np.unique(numbers, return_counts=True)[1].max())
        if self.most_cells is not None and most > self.most_cells:
            raise DataError(
                f"{self.name}: a coarse cell has {most} cells of the reference; expected {self.most_cells} at most. "
                "Give smaller cells, or another downscaler."
            )

    def learn(self, coarse: np.ndarray, fine: np.ndarray, setup: Setup) -> Any:
        """Return what `apply` needs of the reference."""
        raise NotImplementedError(f"{type(self).__name__}.learn")

    def apply(self, adjusted: np.ndarray, learned: Any, setup: Setup) -> np.ndarray:
        """Return the member (fine cell, day)."""
        raise NotImplementedError(f"{type(self).__name__}.apply")

    def quantiles(self, adjusted: np.ndarray, setup: Setup) -> np.ndarray | None:
        """Return the quantile of each day (coarse cell, day), of downscalers that need it; `apply` then has it."""
        return None

    def beyond(self, learned: Any, setup: Setup) -> np.ndarray:
        """Return where (coarse cell, day) a day's quantile, in `setup`, is at an end of what the reference has."""
        assert setup.quantiles is not None
        return np.zeros(setup.quantiles.shape, bool)

    def steps(self, adjusted: np.ndarray, learned: Any, setup: Setup, cell: int, day: int) -> list[Step]:
        """Return the steps from the adjusted coarse value to that of a fine cell on a day, both by place."""
        return []


def downscaler_named(name: str) -> Downscaler:
    """Return the downscaler of a name; raises `ConfigurationError` if there is none, or it cannot be imported."""
    made = _class_of(name)()
    made.name = name
    return made


@functools.cache
def _class_of(name: str) -> type[Downscaler]:
    return registered(Downscaler, name, _OURS)
