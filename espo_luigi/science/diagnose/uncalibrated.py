"""Whether adjusting brought aspects of a simulation nearer to the reference, beyond the noise of the years at hand."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr

from espo_luigi.science.chunks import REALIZATION
from espo_luigi.science.diagnose.aspects import ASPECTS, Aspect, sums_of
from espo_luigi.science.seeds import cell_generator

RESAMPLINGS = 1000
# The expected share of false verdicts among the cells with a verdict.
FALSE_DISCOVERIES = 0.05
# With fewer years (or blocks of years), resampling does not tell the noise.
LEAST_YEARS, LEAST_BLOCKS = 10, 4


@dataclass(frozen=True)
class Verdict:
    """How many cells of an aspect are nearer to the reference than before, and farther: shares of those with data."""

    aspect: str
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


def compare_aspects(sums: Sequence[xr.Dataset], *, adjusted: Collection[str], seed: str) -> xr.Dataset:
    """Compare raw and adjusted aspects with the reference's, and resample years to tell the noise.

    The years of the reference and those of the simulations are drawn independently; raw and adjusted, and all members
    of a pool, get the same years. The value of a pool is the mean of its members' values. Deviations of the resampled
    values are widened by sqrt(n / (n - 3)) for n years, as a sample's own spread is too small.

    Parameters
    ----------
    sums
        The `aspects.yearly_sums` of a simulation, or of a pool's members, of the same cells.
    adjusted
        The variables that were adjusted: they decide which aspects are calibrated.
    seed
        Names the draws of years: the same name gives the same numbers.

    Returns
    -------
    xr.Dataset
        `value` (source, aspect, cell). `noise` (side, aspect, cell): the standard deviation of the resampled distance
        between raw (or adjusted) and reference. `p_value` (aspect, cell) of raw and adjusted being equally far from the
        reference, `p_off` (side, aspect, cell) of there being no distance; NaN with less than 10 years.
        `verdict` (aspect, cell): 1 nearer, -1 farther, 0 no different within noise, or by less than the noise of the
        adjusted; `off` (side, aspect, cell): 1 where the distance is beyond noise. Both control the false discovery
        rate over the cells of an aspect at 5 %.
        `calibrated` (aspect).

    References
    ----------
    Benjamini and Hochberg 1995, doi:10.1111/j.2517-6161.1995.tb02031.x
    """
    members = xr.concat(
        [one.load() for one in sums], REALIZATION, join="exact", coords="minimal", combine_attrs="override"
    )
    random = cell_generator(seed, "years", 0)
    names = [name for name in ASPECTS if name in members]
    found = xr.concat([_compared(ASPECTS[name], members, random) for name in names], dim="aspect", join="exact")
    calibrated = [ASPECTS[name].is_calibrated(adjusted) for name in names]
    named = {"aspect": names, "side": ["raw", "adjusted"], "source": ["reference", "raw", "adjusted"]}
    return found.assign(calibrated=("aspect", calibrated)).assign_coords(named).assign_attrs(members.attrs)


def _compared(aspect: Aspect, members: xr.Dataset, random: np.random.Generator) -> xr.Dataset:
    """The comparison of one aspect: (source, cell), (side, cell) and (cell)."""
    years = members.sizes["year"]
    sums = [one.transpose("source", REALIZATION, "year", "cell") for one in sums_of(members, aspect.name)]
    everything = np.ones((1, years))
    value = np.stack([_number(aspect, everything, sums, source)[0] for source in ("reference", "raw", "adjusted")])
    drawn, simulated = (_weights(random, years, aspect.years_together) for _ in range(2))
    of_reference = _number(aspect, drawn, sums, "reference")
    distance, sides = [], ((1, "raw"), (2, "adjusted"))
    for row, side in sides:
        deviations = _centred(_number(aspect, simulated, sums, side)) - _centred(of_reference)
        distance.append(value[row] - value[0] + deviations * _widened(years, aspect.years_together))
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


def _number(aspect: Aspect, weights: np.ndarray, sums: list[xr.DataArray], source: str) -> np.ndarray:
    """The aspect of each resampling, (resampling, cell): the mean over the members. The reference has no members."""
    members = sums[0].sizes[REALIZATION] if source != "reference" else 1
    of_members = [
        aspect.number(*(weights @ one.sel(source=source).values[member] for one in sums)) for member in range(members)
    ]
    return np.mean(of_members, axis=0)


def _weights(random: np.random.Generator, years: int, together: int) -> np.ndarray:
    """How often each resampling has each year: blocks of successive years, the first after the last, are drawn."""
    blocks = -(-years // together)
    first = random.integers(years, size=(RESAMPLINGS, blocks, 1))
    chosen = ((first + np.arange(together)) % years).reshape(RESAMPLINGS, -1)[:, :years]
    weights = np.zeros((RESAMPLINGS, years))
    np.add.at(weights, (np.arange(RESAMPLINGS)[:, None], chosen), 1.0)
    return weights


def _centred(resampled: np.ndarray) -> np.ndarray:
    """Deviations from the resamplings' mean: that of a standard deviation or a quotient is biased."""
    known = np.isfinite(resampled)
    mean = np.where(known, resampled, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    return np.where(known, resampled - mean, 0.0)


def _widened(years: int, together: int) -> float:
    blocks = max(years / together, LEAST_BLOCKS)
    return float(np.sqrt(blocks / (blocks - 3)))


def _two_sided(resampled: np.ndarray, years: int) -> np.ndarray:
    """The p-value of 0, two-sided, in the distribution of each cell; NaN for a cell without a value."""
    low, high = ((1 + beyond.sum(axis=0)) / (RESAMPLINGS + 1) for beyond in (resampled <= 0, resampled >= 0))
    there = np.isfinite(resampled).all(axis=0) & (years >= LEAST_YEARS)
    return np.where(there, np.minimum(1.0, 2 * np.minimum(low, high)), np.nan)


def _flagged(p_values: np.ndarray) -> np.ndarray:
    """1 for the cells that are discoveries, 0 for others; NaN where there is no p-value."""
    from scipy.stats import false_discovery_control

    known = np.isfinite(p_values)
    found = np.full(p_values.shape, np.nan)
    if known.any():
        found[known] = false_discovery_control(p_values[known]) <= FALSE_DISCOVERIES
    return found


def verdicts(compared: xr.Dataset) -> Iterator[Verdict]:
    """Yield the verdict about each aspect that any cell has a p-value of."""
    for place, name in enumerate(compared["aspect"].values):
        one = compared.isel(aspect=place)
        verdict = one["verdict"].values[np.isfinite(one["verdict"].values)]
        if verdict.size:
            off = [float(one["off"].sel(side=side).mean()) for side in ("raw", "adjusted")]
            shares = (float((verdict > 0).mean()), float((verdict < 0).mean()))
            yield Verdict(str(name), bool(one["calibrated"]), *shares, *off)
