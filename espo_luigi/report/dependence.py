"""The section about variables that are adjusted together: what they, neighbours and successive days have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from espo_luigi.report.distributions import MOST_SERIES
from espo_luigi.report.drawings import ADJUSTED, RAW, Drawing, drawing, labels, new_figure, number_text
from espo_luigi.report.html import Heading, Section, Table, Text
from espo_luigi.science.chunks import join
from espo_luigi.science.diagnose.added_value import described
from espo_luigi.science.diagnose.climate_aspects import USUAL
from espo_luigi.science.diagnose.statistics import NOISE_QUANTILE
from espo_luigi.science.display import units_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SIDES = ("raw", USUAL, "adjusted")
_LOOKS: Mapping[str, dict[str, Any]] = {
    "reference": {"color": "#000000", "marker": "|", "markersize": 11, "markeredgewidth": 1.8},
    "raw": {"color": RAW["color"], "marker": "D", "markersize": 4, "markerfacecolor": "white"},
    USUAL: {"color": "#009E73", "marker": "s", "markersize": 4},
    "adjusted": {"color": ADJUSTED["color"], "marker": "o", "markersize": 4.5},
}
# Aspects of which the figure has those that are correlations.
_CORRELATIONS = ("corr_", "next_cell_", "lag1_")
_SHOWN = (*_CORRELATIONS, "wet_", "dry_")
_MEANING = (
    "Adjusted together: {together}. For comparison, DQM is each of these variables adjusted by itself, with its usual "
    "settings, in the sample cells only. Correlations are Spearman's, of days within a season. The energy distance "
    "between joint distributions, standardised by the reference, is 0 where they are equal. Its noise is what samples "
    "of the reference's own years exceed in {percent:.0f} % of cases; in the other rows, noise is a standard "
    "deviation, as in “Calibrated and not”."
)


def together_section(compared: Mapping[tuple[str, str], xr.Dataset]) -> list[Section]:
    """Return the section, of comparisons by pool and domain; none for a run that adjusts no variables together."""
    shown = {key: ds for key, ds in compared.items() if "energy" in ds}
    if not shown:
        return []
    told = "; ".join(dict.fromkeys(str(ds.attrs.get("together", "?")) for ds in shown.values()))
    blocks: list[Any] = [Text(_MEANING.format(together=told, percent=100 * (1 - NOISE_QUANTILE)))]
    for words, name, ds in _groups(shown):
        caption = f"{words}: means over the sample cells; left, correlations; right, energy distances"
        figure = Drawing(f"together+{name}", caption, together_figure, [ds], {"title": words})
        columns = ["", "Reference", "Raw", USUAL, "Adjusted", "Noise", "Units"]
        blocks += [Heading(words), figure, Table(columns, list(_rows(ds)), f"{words}: means over the sample cells")]
    return [Section("Variables together", blocks)]


def _groups(shown: Mapping[tuple[str, str], xr.Dataset]) -> Iterator[tuple[str, str, xr.Dataset]]:
    """Each comparison, or, of many, the mean of a domain's: means over the cells."""
    names = labels(pool for pool, _ in shown)
    means = {key: ds[["value", "noise", "energy", "energy_noise"]].mean("cell") for key, ds in shown.items()}
    if len(shown) <= MOST_SERIES:
        for (pool, domain), ds in means.items():
            yield f"{domain}, {names[pool]}", f"{domain}+{pool}", ds
        return
    for domain in dict.fromkeys(domain for _, domain in shown):
        of = [ds for key, ds in means.items() if key[1] == domain]
        yield f"{domain}, {len(of)} pools", domain, join(of, "pool").mean("pool")


def _aspects(ds: xr.Dataset, prefixes: Sequence[str]) -> list[str]:
    """The aspects of variables that are adjusted together, in the order of these prefixes."""
    known = ds["aspect"].values[np.isfinite(ds["value"].sel(source=USUAL).values)]
    return [str(name) for prefix in prefixes for name in known if str(name).startswith(prefix)]


def _rows(ds: xr.Dataset) -> Iterator[list[str]]:
    for name in _aspects(ds, _SHOWN):
        value, (words, units) = ds["value"].sel(aspect=name), described(ds, name)
        noise = ds["noise"].sel(aspect=name, side="adjusted")
        numbers = [*(value.sel(source=of) for of in ("reference", *_SIDES)), noise]
        yield [words, *(number_text(float(number)) for number in numbers), units_text(units)]
    for words in ds["distance"].values:
        energy = ds.sel(distance=words)
        numbers = [*(energy["energy"].sel(other=of) for of in _SIDES), energy["energy_noise"]]
        yield [f"Energy distance of {words}", "–", *(f"{float(number):.2g}" for number in numbers), "1"]


@drawing
def together_figure(ds: xr.Dataset, *, title: str = "") -> Figure:
    """Draw correlations of reference, raw, DQM and adjusted, and energy distances from the reference."""
    names, distances = _aspects(ds, _CORRELATIONS), [str(words) for words in ds["distance"].values]
    figure, ((left, right),) = new_figure(9.6, 1.5 + 0.21 * max(len(names), len(distances)), 1, 2)
    for of, looks in _LOOKS.items():
        left.plot(ds["value"].sel(aspect=names, source=of), range(len(names)), linestyle="none", label=of, **looks)
        if of in _SIDES:
            right.plot(ds["energy"].sel(other=of), range(len(distances)), linestyle="none", **looks)
    # A line: bars have no length on a logarithmic axis, which has no zero.
    noise: Any = {"colors": "#888888", "linewidth": 1.5, "label": "noise of the reference's years"}
    right.vlines(ds["energy_noise"], *np.add.outer([-0.4, 0.4], range(len(distances))), **noise)
    words = [described(ds, name)[0].removeprefix("Correlation of ") for name in names]
    for axes, ticks in ((left, words), (right, distances)):
        axes.set_yticks(range(len(ticks)), ticks)
        axes.set_ylim(len(ticks) - 0.4, -0.6)
        axes.grid(True)
    left.set_xlabel("Correlation [1]")
    right.set_xlabel("Energy distance [1]")
    right.set_xscale("log")
    figure.legend(loc="outside lower center", ncols=5, handlelength=1.6, columnspacing=1.4)
    figure.suptitle(title)
    return figure
