"""The value that adjusting adds: whether aspects of a climate are nearer to the reference than before, beyond noise.

The years of the reference and of the simulations are resampled. All of it is in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from espo_luigi.science.chunks import REALIZATION, join
from espo_luigi.science.diagnose.climate_aspects import SOURCES, Aspect
from espo_luigi.science.diagnose.statistics import RESAMPLINGS, Resampling
from espo_luigi.science.seeds import cell_generator

# The expected share of false verdicts among the cells with a verdict.
FALSE_DISCOVERIES = 0.05
# With fewer years, resampling does not tell the noise.
LEAST_YEARS = 10


def described(compared: xr.Dataset, name: str) -> tuple[str, str]:
    """Return an aspect's name in words and its units, from what `compare_aspects` made; 0.2.0 wrote neither."""
    if "long_name" not in compared.coords:
        return name, ""
    of_aspect = compared.sel(aspect=name)
    return str(of_aspect["long_name"].item()), str(of_aspect["units"].item())


@dataclass(frozen=True)
class Verdict:
    """How many cells of an aspect are nearer to the reference than before, and farther: shares of those with data."""

    aspect: str
    long_name: str
    units: str
    calibrated: bool
    nearer: float
    farther: float
    # The shares of cells that differ from the reference beyond noise, before and after.
    raw_off: float
    adjusted_off: float

    @property
    def word(self) -> str:
        """`nearer`, `farther`, or `no different` within noise: the larger share, if it is not tiny."""
        if max(self.nearer, self.farther) < FALSE_DISCOVERIES:
            return "no different"
        return "nearer" if self.nearer >= self.farther else "farther"

    @property
    def is_worse(self) -> bool:
        """Whether an aspect that was not calibrated is `farther` than before."""
        return not self.calibrated and self.word == "farther"

    @property
    def is_broken(self) -> bool:
        """Whether an aspect that was calibrated is not right beyond noise."""
        return self.calibrated and self.adjusted_off >= FALSE_DISCOVERIES


def compare_aspects(
    sums: Sequence[xr.Dataset],
    *,
    adjusted: Collection[str],
    seed: str,
    known: Mapping[str, Aspect],
) -> xr.Dataset:
    """Compare raw and adjusted aspects with the reference's, and resample years to tell the noise.

    The years of the reference and those of the simulations are drawn independently; raw and adjusted, and all members
    of a pool, get the same years. The value of a pool is the mean of its members' values.

    Parameters
    ----------
    sums
        The `yearly_sums` of a simulation, or of a pool's members, of the same cells.
    adjusted
        The variables that were adjusted: they decide which aspects are calibrated.
    seed
        Names the draws of years: the same name gives the same numbers.
    known
        The aspects (`aspects_of`) that `sums` may have.

    Returns
    -------
    xr.Dataset
        `value` (source, aspect, cell), of further sources, too. `noise` (side, aspect, cell): the standard deviation of
        the resampled distance between raw (or adjusted) and reference. `p_value` (aspect, cell) of raw and adjusted
        being equally far from the reference, `p_off` (side, aspect, cell) of there being no distance; NaN with less
        than 10 years.
        `verdict` (aspect, cell): 1 nearer, -1 farther, 0 no different within noise, or by less than the noise of the
        adjusted; `off` (side, aspect, cell): 1 where the distance is beyond noise. Both control the false discovery
        rate over the cells of an aspect at 5 %.
        `calibrated`, and the coordinates `long_name` and `units` (aspect).

    References
    ----------
    Benjamini and Hochberg 1995, doi:10.1111/j.2517-6161.1995.tb02031.x
    """
    members: xr.Dataset = join((member.load() for member in sums), REALIZATION)
    random = cell_generator(seed, "years", 0)
    names = [name for name in known if name in members]
    sources = [*SOURCES, *(str(name) for name in members["source"].values if name not in SOURCES)]
    of_sources = members.sel(source=sources).transpose("source", REALIZATION, ..., "year", "cell")
    compared: xr.Dataset = join((_compared(known[name], of_sources[name].values, random) for name in names), "aspect")
    calibrated = [known[name].is_calibrated(adjusted) for name in names]
    texts = {
        "long_name": [known[name].long_name for name in names],
        "units": [members[name].attrs.get("units", known[name].units) for name in names],
    }
    named: dict[str, Any] = {"aspect": names, "side": ["raw", "adjusted"], "source": sources}
    named |= {name: ("aspect", np.array(of, dtype=object)) for name, of in texts.items()}
    return compared.assign(calibrated=("aspect", calibrated)).assign_coords(named).assign_attrs(members.attrs)


def _compared(aspect: Aspect, sums: np.ndarray, random: np.random.Generator) -> xr.Dataset:
    """The comparison of one aspect, from (source, member, sum, year, cell): (source, cell), (side, cell) and (cell)."""

    def number(source: int, weights: np.ndarray) -> np.ndarray:
        """The aspect of each resampling, (resampling, cell): the mean over the members. The reference has no others."""
        members = sums[source] if source else sums[0, :1]
        return np.mean([aspect.number(*(weights @ member)) for member in members], axis=0)

    years = sums.shape[3]
    value = np.stack([number(source, np.ones((1, years)))[0] for source in range(len(sums))])
    drawn, simulated = (Resampling.of(random, years, aspect.years_together) for _ in range(2))
    of_reference = drawn.deviations(number(0, drawn.weights))
    # Raw and adjusted.
    distance = [
        value[side] - value[0] + simulated.deviations(number(side, simulated.weights)) - of_reference for side in (1, 2)
    ]
    raw, adjusted = distance
    noise = np.stack([one.std(axis=0) for one in distance])
    gain = np.abs(value[1] - value[0]) - np.abs(value[2] - value[0])
    # Raw and adjusted have the same years: tiny changes are certain, and no reason to call an aspect worse.
    visible = np.abs(gain) > noise[1]
    p_value = _two_sided(np.abs(raw) - np.abs(adjusted), years)
    p_off = np.stack([_two_sided(one, years) for one in distance])
    return xr.Dataset(
        {
            "value": (("source", "cell"), value),
            "noise": (("side", "cell"), noise),
            "p_value": ("cell", p_value),
            "p_off": (("side", "cell"), p_off),
            "verdict": ("cell", _flagged(p_value) * np.sign(gain) * visible),
            "off": (("side", "cell"), np.stack([_flagged(one) for one in p_off])),
        }
    )


def _two_sided(resampled: np.ndarray, years: int) -> np.ndarray:
    """The p-value of 0, two-sided, in the distribution of each cell; NaN for a cell without a value."""
    low, high = ((1 + beyond.sum(axis=0)) / (RESAMPLINGS + 1) for beyond in (resampled <= 0, resampled >= 0))
    there = np.isfinite(resampled).all(axis=0) & (years >= LEAST_YEARS)
    return np.where(there, np.minimum(1.0, 2 * np.minimum(low, high)), np.nan)


def _flagged(p_values: np.ndarray) -> np.ndarray:
    """1 for the cells that are discoveries, 0 for others; NaN where there is no p-value."""
    from scipy.stats import false_discovery_control

    known = np.isfinite(p_values)
    flagged = np.full(p_values.shape, np.nan)
    if known.any():
        flagged[known] = false_discovery_control(p_values[known]) <= FALSE_DISCOVERIES
    return flagged


def verdicts(compared: xr.Dataset) -> Iterator[Verdict]:
    """Yield the verdict about each aspect that any cell has a p-value of."""
    for place, name in enumerate(compared["aspect"].values):
        of_aspect = compared.isel(aspect=place)
        verdict = of_aspect["verdict"].values[np.isfinite(of_aspect["verdict"].values)]
        if verdict.size:
            off = [float(of_aspect["off"].sel(side=side).mean()) for side in ("raw", "adjusted")]
            shares = (float((verdict > 0).mean()), float((verdict < 0).mean()))
            words = described(compared, str(name))
            yield Verdict(str(name), *words, bool(of_aspect["calibrated"]), *shares, *off)
