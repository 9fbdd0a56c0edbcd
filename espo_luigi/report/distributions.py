"""Figures of daily series: annual cycle, quantiles, wet days and spells, means of all years, and changes.

They draw `science.diagnose.yearly`, by kind: `{"reference": [one], "raw": [one a simulation], "adjusted": […]}`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from espo_luigi.report.drawings import REFERENCE, STYLES, broken, drawing, label, long_name, panels, units_text
from espo_luigi.science.diagnose.yearly import SEASONS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Summaries = Mapping[str, Sequence[xr.Dataset]]
VARIABLES = ("tasmax", "tasmin", "pr")
_MONTHS = ("J", "F", "M", "A", "M", "J", "J", "A", "S", "O", "N", "D")
# The enlarged tail begins at this quantile; tasmin has the lower tail.
TAIL = 0.95
_SHOWN_SPELLS = 1e-3


@drawing
def annual_cycle(summaries: Summaries, *, title: str = "") -> Figure:
    """Draw each variable's mean of each month."""
    figure, axes = panels(9.6, 3.3, 1, 3)
    for place, name in zip(axes[0], VARIABLES, strict=True):
        _lines(place, summaries, f"{name}_cycle", "month")
        _named(place, summaries, f"{name}_cycle", "mean of each month")
        _months(place)
    return _finished(figure, summaries, title)


@drawing
def yearly_means(summaries: Summaries, *, title: str = "") -> Figure:
    """Draw each variable's mean of each year."""
    figure, axes = panels(9.6, 3.3, 1, 3)
    for place, name in zip(axes[0], VARIABLES, strict=True):
        _lines(place, summaries, f"{name}_yearly", "year")
        _named(place, summaries, f"{name}_yearly", "mean of each year")
        place.set_xlabel("Year")
    return _finished(figure, summaries, title)


@drawing
def quantile_quantile(summaries: Summaries, *, title: str = "") -> Figure:
    """Draw each variable's quantiles against the reference's, and below the tail enlarged: the highest 5 per cent.

    For tasmin, the tail is the lowest 5 per cent. On the black line, the distribution is the reference's.
    """
    figure, axes = panels(9.6, 6.2, 2, 3)
    for column, name in zip(axes.T, VARIABLES, strict=True):
        levels = summaries["reference"][0]["quantile"]
        tail = levels <= 1 - TAIL + 1e-9 if name == "tasmin" else levels >= TAIL - 1e-9
        words = f"{'lowest' if name == 'tasmin' else 'highest'} {100 * (1 - TAIL):.0f} %"
        for place, chosen, what in ((column[0], levels > 0, "all quantiles"), (column[1], tail, words)):
            _against(place, summaries, name, chosen.values, what)
    return _finished(figure, summaries, title)


@drawing
def wet_days(summaries: Summaries, *, title: str = "") -> Figure:
    """Draw how often it is wet, how long spells last, how wet days follow each other, and the correlation tasmax-pr."""
    figure, axes = panels(9.6, 6.0, 2, 3)
    (often, wet, dry), (follow, correlation, legend) = axes
    _lines(often, summaries, "wet_day_frequency", "month")
    often.set(ylabel="Share of days with 1 mm d⁻¹ or more [1]", title="Wet days")
    for place, name in ((wet, "wet_spell"), (dry, "dry_spell")):
        _lines(place, summaries, name, "days")
        place.set(yscale="log", ylim=(_SHOWN_SPELLS, 1.3), xlabel="Length [d]", title=f"{name[:3].title()} spells")
        place.set_ylabel("Share of spells as long or longer [1]")
        place.set_xlim(1, _longest(summaries, name))
        place.locator_params(axis="x", integer=True)
    _transitions(follow, summaries)
    _lines(correlation, summaries, "corr_tasmax_pr", "month")
    correlation.set(ylabel="Spearman's correlation [1]", title="Correlation tasmax, pr")
    correlation.axhline(0, color="#888888", linewidth=0.6)
    for place in (often, correlation):
        _months(place)
    legend.set_axis_off()
    return _finished(figure, summaries, title)


@drawing
def climate_change_signal(summaries: Summaries, *, title: str = "") -> Figure:
    """Draw the change of each variable's quantiles in each season, raw against adjusted, from `yearly.changes`."""
    figure, axes = panels(9.6, 7.0, 3, 4, between=0.3, sharey="row", sharex=True)
    for row, name in zip(axes, VARIABLES, strict=True):
        for place, season in zip(row, SEASONS, strict=True):
            part = {kind: [one.sel(season=season) for one in of] for kind, of in summaries.items()}
            _lines(place, part, f"{name}_change", "change_quantile", marker="o", markersize=2.5)
            place.axhline(0, color="#888888", linewidth=0.6)
            place.grid(True)
        change = _first(summaries, f"{name}_change")
        row[0].set_ylabel(broken(f"Change of {long_name(change)}", 26) + "\n" + label(change, name=name))
    for place, season in zip(axes[0], SEASONS, strict=True):
        place.set_title(season)
    for place in axes[-1]:
        place.set_xlabel("Quantile [1]")
    return _finished(figure, summaries, title)


def _lines(axes: Any, summaries: Summaries, name: str, dim: str, **style: Any) -> None:
    """One line a summary; many of a kind are thin."""
    for kind, of in summaries.items():
        if found := [one for one in of if name in one]:
            places, values = (_in_a_row(one[which].values for one in found) for which in (dim, name))
            axes.plot(places, values, **_style(kind, len(of)), **style)
    axes.grid(True)


def _in_a_row(lines: Iterable[np.ndarray]) -> np.ndarray:
    """Join lines, with gaps between them: drawing the result takes the time of a single line."""
    return np.concatenate([part for line in lines for part in ([np.nan], line)][1:])


def _style(kind: str, how_many: int) -> dict[str, Any]:
    thin = {"linewidth": 0.6, "alpha": 0.7} if how_many > 3 else {}
    return {**STYLES[kind], **thin, "label": kind}


def _named(axes: Any, summaries: Summaries, name: str, words: str) -> None:
    """Set a variable's long name as the title, and its statistic with units as the label."""
    found = _first(summaries, name)
    axes.set_title(broken(long_name(found), 44))
    axes.set_ylabel(label(found, name=f"{name.partition('_')[0]}, {words}"))


def _first(summaries: Summaries, name: str) -> xr.DataArray:
    return next(one[name] for of in summaries.values() for one in of if name in one)


def _months(axes: Any) -> None:
    axes.set_xticks(range(1, 13), _MONTHS)
    axes.set_xlabel("Month")


def _longest(summaries: Summaries, name: str) -> int:
    """The longest spell that the axis has to show."""
    shares = [one[name].values for of in summaries.values() for one in of if name in one]
    lasting = [int((share > _SHOWN_SPELLS).sum()) for share in shares]
    return max([*lasting, 5]) + 1


def _transitions(axes: Any, summaries: Summaries) -> None:
    """Draw the shares of wet days and of dry days that a wet day follows, each averaged over its kind."""
    for place, (kind, of) in enumerate(summaries.items()):
        means = [np.mean([float(one[name]) for one in of]) for name in ("wet_wet", "dry_wet") if of]
        style = {"facecolor": STYLES[kind]["color"], "edgecolor": "black", "hatch": "//" if kind == "raw" else None}
        axes.bar(np.arange(len(means)) + 0.27 * (place - 1), means, width=0.25, label=kind, **style)
    axes.set_xticks([0, 1], ["wet, then wet", "dry, then wet"])
    axes.set(ylabel="Share of days [1]", title="Transitions")
    axes.grid(True, axis="y")


def _against(axes: Any, summaries: Summaries, name: str, chosen: np.ndarray, what: str) -> None:
    of_reference = summaries["reference"][0][f"{name}_quantile"]
    wanted = of_reference.values[chosen]
    for kind in ("raw", "adjusted"):
        of = summaries.get(kind, ())
        if of:
            style = {**_style(kind, len(of)), "marker": "." if len(wanted) < 20 else None, "markersize": 4}
            values = _in_a_row(one[f"{name}_quantile"].values[chosen] for one in of)
            axes.plot(_in_a_row([wanted] * len(of)), values, **style)
    axes.plot(wanted, wanted, **{**REFERENCE, "linewidth": 0.9, "label": "reference"})
    axes.grid(True)
    units = units_text(of_reference.attrs.get("units", ""))
    title = f"{broken(long_name(of_reference), 44)}:\n{what}"
    axes.set(xlabel=f"{name}, reference [{units}]", ylabel=f"{name}, simulation [{units}]", title=title)


def _finished(figure: Figure, summaries: Summaries, title: str) -> Figure:
    """Add a title, and a legend for all axes."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], **{**STYLES[kind], "label": kind if len(of) < 2 else f"{kind} ({len(of)} simulations)"})
        for kind, of in summaries.items()
        if of
    ]
    figure.legend(handles=handles, loc="lower center", ncols=len(handles), handlelength=3.5)
    figure.suptitle(title, y=1 - 0.08 / figure.get_figheight(), va="top")
    return figure
