"""The spatial disaggregation of BCSD: Wood et al. 2004; Thrasher et al. 2012, doi 10.5194/hess-16-3309-2012.

The anomaly of the adjusted coarse field from the coarse climatology is interpolated bilinearly, and applied to the fine
climatology.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from espo_luigi.downscaling.base import Downscaler, Setup
from espo_luigi.methods.base import Step


class Climatologies(NamedTuple):
    """Means of each day of the year, smoothed: (coarse cell, day of year) and (fine cell, day of year)."""

    coarse: np.ndarray
    fine: np.ndarray


class BCSD(Downscaler):
    """The fine climatology, with the anomalies of the coarse field; no variability within a coarse cell is new."""

    def learn(self, coarse: np.ndarray, fine: np.ndarray, setup: Setup) -> Climatologies:
        """Take the means of days around each day of the year."""
        return Climatologies(climatology(coarse, setup), climatology(fine, setup))

    def anomalies(self, adjusted: np.ndarray, learned: Climatologies, setup: Setup) -> np.ndarray:
        """Return the anomaly (coarse cell, day): a difference, or a ratio, which is 0 where the climatology is."""
        usual = learned.coarse[:, self._days(setup)]
        if setup.kind == "+":
            return adjusted - usual
        return np.divide(adjusted, usual, out=np.where(np.isnan(usual + adjusted), np.nan, 0.0), where=usual > 0)

    def apply(self, adjusted: np.ndarray, learned: Climatologies, setup: Setup) -> np.ndarray:
        """Interpolate the anomalies, and apply them to the fine climatology."""
        near = setup.interpolated(self.anomalies(adjusted, learned, setup))
        usual = learned.fine[:, self._days(setup)]
        return usual + near if setup.kind == "+" else usual * near

    def steps(self, adjusted: np.ndarray, learned: Climatologies, setup: Setup, cell: int, day: int) -> list[Step]:
        """Return the anomaly there, the fine climatology, and the value."""
        unit = "" if setup.kind == "+" else "1"
        usual = float(learned.fine[cell, self._days(setup)[day]])
        made = float(self.apply(adjusted, learned, setup)[cell, day])
        anomaly = made - usual if setup.kind == "+" else made / usual if usual else 0.0
        return [
            Step("anomaly", anomaly, unit, "of the coarse field from its climatology, interpolated"),
            Step("fine climatology", usual, ""),
            Step("downscaled", made, ""),
        ]

    @staticmethod
    def _days(setup: Setup) -> np.ndarray:
        return np.minimum(setup.time.dayofyear, setup.reference.days_in_longest_year) - 1


def climatology(series: np.ndarray, setup: Setup) -> np.ndarray:
    """Return the mean of each day of the year (cell, day of year) and the days around it, around the turn of the year.

    NaN days do not count.
    """
    days, length = setup.reference.dayofyear - 1, setup.reference.days_in_longest_year
    valid = ~np.isnan(series)
    half = setup.arguments["window"] // 2
    sums, counts = np.zeros((2, len(series), length))
    for cell, values in enumerate(np.where(valid, series, 0.0)):
        sums[cell] = np.bincount(days, weights=values, minlength=length)
        counts[cell] = np.bincount(days, weights=valid[cell], minlength=length)
    around = (np.arange(length)[:, None] + np.arange(-half, half + 1)) % length
    return np.divide(
        sums[:, around].sum(axis=-1),
        counts[:, around].sum(axis=-1),
        out=np.full(sums.shape, np.nan),
        where=counts[:, around].sum(axis=-1) > 0,
    )
