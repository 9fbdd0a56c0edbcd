"""The sections of daily series: annual cycle, quantiles, wet days and spells, means of all years, and changes.

The figures draw summaries of `science.diagnose.summaries` by kind: the reference's, and those of each simulation, raw
and adjusted.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from espo_luigi.report.drawings import (
    REFERENCE,
    STYLES,
    THIN,
    Drawing,
    all_years,
    broken,
    drawing,
    label,
    number_text,
    panels,
    panels_of,
    running_means,
    short,
)
from espo_luigi.report.html import Heading, Section, Table, Text, Warned
from espo_luigi.report.reading import Diagnosed, Reader, RunView
from espo_luigi.science.diagnose.statistics import SEASONS
from espo_luigi.science.diagnose.summaries import PAIRS
from espo_luigi.science.display import in_order, long_name, months_text, noun, units_text
from espo_luigi.science.variables import VARIABLES, Variable, variable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Summaries = Mapping[str, Sequence[xr.Dataset]]
_MONTHS = ("J", "F", "M", "A", "M", "J", "J", "A", "S", "O", "N", "D")
# The enlarged tail begins at this quantile; daily minima have the lower tail.
TAIL = 0.95
_SHOWN_SPELLS = 1e-3


def names_of(summaries: Summaries, statistic: str) -> list[str]:
    """Return the variables that have a statistic."""
    every = sorted({str(name) for of in summaries.values() for ds in of for name in ds.data_vars})
    return in_order(name.removesuffix(f"_{statistic}") for name in every if name.endswith(f"_{statistic}"))


@drawing
def means(summaries: Summaries, *, statistic: str, dim: str, title: str = "") -> Figure:
    """Draw each variable's mean of each month, or of each year with its running mean of ten years."""
    names = names_of(summaries, statistic)
    figure, axes = panels_of(len(names), 1.73)
    for (place,), name in zip(axes, names, strict=True):
        _lines(place, summaries, f"{name}_{statistic}", dim)
        data = _first(summaries, f"{name}_{statistic}")
        place.set_title(_named(place, data))
        place.set_ylabel(label(data, name=f"Mean of each {dim}"))
        if dim == "month":
            _months(place)
        else:
            place.set_xlabel("Year")
    return _finished(figure, summaries, title)


@drawing
def quantile_quantile(summaries: Summaries, *, title: str = "", table: Mapping[str, Variable] = VARIABLES) -> Figure:
    """Draw each variable's quantiles against the reference's, and below the tail enlarged: the highest 5 per cent.

    For daily minima, the tail is the lowest 5 per cent. On the black line, the distribution is the reference's.
    """
    names = names_of(summaries, "quantile")
    figure, axes = panels_of(len(names), 1.815, each=2)
    for column, name in zip(axes, names, strict=True):
        levels, is_minimum = summaries["reference"][0]["quantile"], "minimum" in variable(name, table).cell_methods
        tail = levels <= 1 - TAIL + 1e-9 if is_minimum else levels >= TAIL - 1e-9
        words = f"{'lowest' if is_minimum else 'highest'} {100 * (1 - TAIL):.0f} %"
        for place, chosen, what in ((column[0], levels > 0, "all quantiles"), (column[1], tail, words)):
            _against(place, summaries, name, chosen.values, what)
    return _finished(figure, summaries, title)


@drawing
def wet_days(summaries: Summaries, *, title: str = "") -> Figure:
    """Draw how often it is wet, how long spells last, how wet days follow each other, and a correlation."""
    figure, axes = panels(9.6, 6.0, 2, 3)
    (often, wet, dry), (follow, correlation, legend) = axes
    _lines(often, summaries, "wet_day_frequency", "month")
    often.set(ylabel=f"Share of days with {_least_wet(_first(summaries, 'wet_day_frequency'))} or more [1]")
    often.set_title("Wet days")
    _months(often)
    for place, name in ((wet, "wet_spell"), (dry, "dry_spell")):
        _lines(place, summaries, name, "days")
        place.set(yscale="log", ylim=(_SHOWN_SPELLS, 1.3), xlabel="Length [days]", title=f"{name[:3].title()} spells")
        place.set_ylabel("Share of spells as long or longer [1]")
        place.set_xlim(1, _longest(summaries, name))
        place.locator_params(axis="x", integer=True)
    for at, (kind, of) in enumerate(summaries.items()):
        # Each averaged over its kind.
        means = [np.mean([float(ds[name]) for ds in of]) for name in ("wet_wet", "dry_wet") if of]
        style = {"facecolor": STYLES[kind]["color"], "edgecolor": "black", "hatch": "//" if kind == "raw" else None}
        follow.bar(np.arange(len(means)) + 0.27 * (at - 1), means, width=0.25, label=kind, **style)
    follow.set_xticks([0, 1], ["wet, then wet", "dry, then wet"])
    follow.set(ylabel="Share of days [1]", title="Transitions")
    follow.grid(True, axis="y")
    legend.set_axis_off()
    first, _ = _pairs(summaries)
    for pair in first:
        _correlation(correlation, summaries, pair)
    if not first:
        correlation.set_axis_off()
    return _finished(figure, summaries, title)


@drawing
def correlations(summaries: Summaries, *, title: str = "") -> Figure:
    """Draw the correlation of each pair of variables in each month, but for the pair that `wet_days` has."""
    _, pairs = _pairs(summaries)
    figure, axes = panels_of(len(pairs), 1.73)
    for (place,), pair in zip(axes, pairs, strict=True):
        _correlation(place, summaries, pair)
    return _finished(figure, summaries, title)


def _pairs(summaries: Summaries) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """The pair that the figure of wet days has, if any, and the other pairs."""
    there = [pair for pair in PAIRS if any(f"corr_{'_'.join(pair)}" in ds for of in summaries.values() for ds in of)]
    rain = _rain(summaries)
    first = [pair for pair in there if rain in pair][:1]
    return first, [pair for pair in there if pair not in first]


def _rain(summaries: Summaries) -> str:
    """The variable whose dry days are counted; "" if there is none. Former versions knew precipitation only."""
    wet = [ds["wet_day_frequency"] for of in summaries.values() for ds in of if "wet_day_frequency" in ds]
    return str(wet[0].attrs.get("variable", "pr")) if wet else ""


def _least_wet(frequency: xr.DataArray) -> str:
    attrs = {"least": 1.0, "units_of_least": "mm d-1"} | frequency.attrs
    return f"{attrs['least']:g} {units_text(attrs['units_of_least'])}"


def _correlation(axes: Any, summaries: Summaries, pair: tuple[str, str]) -> None:
    _lines(axes, summaries, f"corr_{'_'.join(pair)}", "month")
    title = broken(f"Correlation of {' and '.join(map(noun, pair))}", 36)
    axes.set(ylabel="Spearman's correlation [1]", title=title)
    axes.axhline(0, color="#888888", linewidth=0.6)
    _months(axes)


@drawing
def climate_change_signal(summaries: Summaries, *, title: str = "") -> Figure:
    """Draw the change of each variable's quantiles in each season, raw against adjusted, from `summaries.changes`."""
    names = names_of(summaries, "change")
    height = round(1.57 + 1.61 * len(names) + 0.3 * (len(names) - 1), 2)
    figure, axes = panels(9.6, height, len(names), 4, between=0.3, sharey="row", sharex=True)
    for row, name in zip(axes, names, strict=True):
        for place, season in zip(row, SEASONS, strict=True):
            part = {kind: [ds.sel(season=season) for ds in of] for kind, of in summaries.items()}
            _lines(place, part, f"{name}_change", "change_quantile", marker="o", markersize=2.5)
            place.axhline(0, color="#888888", linewidth=0.6)
            place.grid(True)
        change = _first(summaries, f"{name}_change")
        words = broken(f"Change of {label(change)}", 26)
        low, high = row[0].get_ylim()
        # Numbers with decimals, or of hundreds, leave less room beside them.
        is_long = words.count("\n") > (2 if words.endswith("[K]") else 1)
        narrow = {"linespacing": 1.05, "labelpad": 1.0} if is_long and not 4 < high - low < 100 else {}
        row[0].set_ylabel(words, **narrow)
    for place, season in zip(axes[0], SEASONS, strict=True):
        place.set_title(months_text(season))
    for place in axes[-1]:
        place.set_xlabel("Quantile [1]")
    return _finished(figure, summaries, title)


def _named(axes: Any, data: xr.DataArray) -> str:
    """The long name in lines; beside the last panel of a row there is less room."""
    return broken(long_name(data), 36 if axes.get_subplotspec().is_last_col() else 44)


def _lines(axes: Any, summaries: Summaries, name: str, dim: str, **style: Any) -> None:
    """One line a summary; many of a kind are thin."""
    for kind, of in summaries.items():
        if drawn := [ds for ds in of if name in ds]:
            if dim == "year":  # no line leads over years that are not there
                drawn = [all_years(ds[[name]]) for ds in drawn]
            places, values = (_in_a_row(ds[which].values for ds in drawn) for which in (dim, name))
            if dim == "year":
                axes.plot(places, values, **{**_style(kind, len(of)), **THIN})
                values = _in_a_row(running_means(ds[name]).values for ds in drawn)
            axes.plot(places, values, **_style(kind, len(of)), **style)
    axes.grid(True)


def _in_a_row(lines: Iterable[np.ndarray]) -> np.ndarray:
    """Join lines, with gaps between them: drawing the result takes the time of a single line."""
    return np.concatenate([part for line in lines for part in ([np.nan], line)][1:])


def _style(kind: str, how_many: int) -> dict[str, Any]:
    thin = {"linewidth": 0.6, "alpha": 0.7} if how_many > 3 else {}
    return {**STYLES[kind], **thin, "label": kind}


def _first(summaries: Summaries, name: str) -> xr.DataArray:
    return next(ds[name] for of in summaries.values() for ds in of if name in ds)


def _months(axes: Any) -> None:
    axes.set_xticks(range(1, 13), _MONTHS)
    axes.set_xlabel("Month")


def _longest(summaries: Summaries, name: str) -> int:
    """The longest spell that the axis has to show."""
    shares = [ds[name].values for of in summaries.values() for ds in of if name in ds]
    lasting = [int((share > _SHOWN_SPELLS).sum()) for share in shares]
    return max([*lasting, 5]) + 1


def _against(axes: Any, summaries: Summaries, name: str, chosen: np.ndarray, what: str) -> None:
    of_reference = summaries["reference"][0][f"{name}_quantile"]
    wanted = of_reference.values[chosen]
    for kind in ("raw", "adjusted"):
        of = summaries.get(kind, ())
        if of:
            style = {**_style(kind, len(of)), "marker": "." if len(wanted) < 20 else None, "markersize": 4}
            values = _in_a_row(ds[f"{name}_quantile"].values[chosen] for ds in of)
            axes.plot(_in_a_row([wanted] * len(of)), values, **style)
    axes.plot(wanted, wanted, **{**REFERENCE, "linewidth": 0.9, "label": "reference"})
    axes.grid(True)
    units = units_text(of_reference.attrs.get("units", ""))
    title = f"{_named(axes, of_reference)}:\n{what}"
    axes.set(xlabel=f"Reference [{units}]", ylabel=f"Simulation [{units}]", title=title)


def _finished(figure: Figure, summaries: Summaries, title: str) -> Figure:
    """Add a title, and a legend for all axes."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], **{**STYLES[kind], "label": kind if len(of) < 2 else f"{kind} ({len(of)} simulations)"})
        for kind, of in summaries.items()
        if of
    ]
    figure.legend(handles=handles, loc="lower center", ncols=len(handles), handlelength=3.5)
    words = broken(title, int(12 * figure.get_figwidth()))
    figure.suptitle(words, y=1 - 0.08 / figure.get_figheight(), va="top")
    return figure


annual_cycle = functools.partial(means, statistic="cycle", dim="month")
yearly_means = functools.partial(means, statistic="yearly", dim="year")
# More groups of figures than these would make the page heavy: then a domain's simulations share them.
MOST_SERIES = 8
SERIES: Mapping[str, tuple[Callable[..., Figure], str]] = {
    "annual-cycle": (annual_cycle, "Annual cycle"),
    "quantiles": (quantile_quantile, "Quantiles against the reference's, below with the tail enlarged"),
    "wet-days": (wet_days, "Wet days, spells, transitions and the correlation with temperature"),
    "correlations": (correlations, "Correlations of daily values by month"),
    "yearly-means": (yearly_means, "Means of all years, and thick running means of ten years"),
}


def read_summaries(view: RunView) -> tuple[dict[Diagnosed, xr.Dataset], Reader]:
    """Return the summaries of series that are there."""
    reader = Reader()
    summarised = {diagnosed: diagnosed.summary for diagnosed in view.diagnosed if diagnosed.summary is not None}
    read = {diagnosed: ds for diagnosed, path in summarised.items() if (ds := reader.dataset(path)) is not None}
    return read, reader


def series_section(
    summaries_of: Mapping[Diagnosed, xr.Dataset],
    reader: Reader,
    period: Sequence[int],
    table: Mapping[str, Variable] = VARIABLES,
) -> Section:
    """Return the section of series and distributions, by domain, and by simulation if these are few."""
    blocks: list[Any] = []
    least = {}
    for words, key, summaries in groups(summaries_of):
        blocks.append(Heading(words))
        idle = [] if _pairs(summaries)[1] else ["correlations"]
        if rain := _rain(summaries):
            least[rain] = f" A day of {rain} of {_least_wet(_first(summaries, 'wet_day_frequency'))} or more is wet."
        else:
            idle.append("wet-days")
        for name, (draw, caption) in SERIES.items() if names_of(summaries, "cycle") else ():
            if name in idle:
                continue
            options = {"title": words} | ({"table": table} if name == "quantiles" else {})
            blocks.append(Drawing(f"{name}+{key}", f"{caption}: {words}", draw, [summaries], options))
    cells = sorted({f"{diagnosed.domain}: {ds.attrs.get('cells', '?')}" for diagnosed, ds in summaries_of.items()})
    text = (
        f"Daily series of sample cells ({'; '.join(cells) or 'none'}), over {period[0]}-{period[1]} but for the means "
        f"of all years. Quantiles are those of each cell, averaged over the cells.{''.join(least.values())}"
    )
    return Section("Series and distributions", [Text(text), *reader.warned(), *blocks])


def groups(summaries_of: Mapping[Diagnosed, xr.Dataset]) -> Iterator[tuple[str, str, Summaries]]:
    """Yield groups of summaries: a simulation in a domain, or, where that is too many, all of a domain."""
    if len(summaries_of) <= MOST_SERIES:
        for diagnosed, ds in summaries_of.items():
            yield (
                f"{diagnosed.domain}, {short(diagnosed.sim_id)}",
                f"{diagnosed.domain}+{diagnosed.sim_id}",
                _by_source([ds]),
            )
        return
    for domain in dict.fromkeys(diagnosed.domain for diagnosed in summaries_of):
        yield domain, domain, _by_source([ds for diagnosed, ds in summaries_of.items() if diagnosed.domain == domain])


def _by_source(summaries: Sequence[xr.Dataset]) -> Summaries:
    kinds = {kind: [ds.sel(source=kind) for ds in summaries] for kind in ("reference", "raw", "adjusted")}
    return {**kinds, "reference": kinds["reference"][:1]}


def change_section(
    summaries_of: Mapping[Diagnosed, xr.Dataset],
    reader: Reader,
    wanted: str,
    table: Mapping[str, Variable] = VARIABLES,
) -> Section:
    """Return the section about the climate-change signal before and after the adjustment."""
    blocks: list[Any] = []
    for words, key, summaries in groups(summaries_of):
        kinds = {kind: summaries[kind] for kind in ("raw", "adjusted")}
        periods = sorted({str(raw.attrs.get("periods", "?")) for raw in kinds["raw"]})
        title = f"{words}: change from {'; '.join(periods)}"
        blocks.append(Drawing(f"change+{key}", title, climate_change_signal, [kinds], {"title": title}))
    others = sorted({str(ds.attrs.get("periods", "?")) for ds in summaries_of.values()} - {wanted})
    text = (
        "The change of each quantile of daily values, by season, in the raw simulation and in the scenario. It is a "
        "difference; of precipitation and others whose factors are multiplied, it is in per cent of the first period's "
        "quantile, and left out where that is near zero (below 0.1 mm/d of precipitation). Where the lines lie on "
        "each other, the adjustment has kept the signal."
    )
    instead = (
        f"The years do not hold {wanted}: the longest two periods of equal length are compared instead, "
        f"{'; '.join(others)}."
    )
    warned = [Warned(instead)] if others else []
    numbers = [_change_table(summaries_of, table)] if summaries_of else []
    return Section("Is the climate-change signal kept?", [Text(text), *warned, *reader.warned(), *numbers, *blocks])


def _change_table(summaries_of: Mapping[Diagnosed, xr.Dataset], table: Mapping[str, Variable]) -> Table:
    """The change over all seasons, raw and adjusted: of the median, of precipitation of a day with much of it."""
    rows = []
    for diagnosed, ds in summaries_of.items():
        for name in names_of({"": [ds]}, "change"):
            # Half of the days may be dry, and their change cannot be given in per cent.
            quantile = 0.5 if variable(name, table).wet is None else 0.95
            change = ds[f"{name}_change"].sel(change_quantile=quantile, method="nearest").mean("season")
            raw, adjusted = (float(change.sel(source=kind)) for kind in ("raw", "adjusted"))
            units = str(ds[f"{name}_change"].attrs.get("units", ""))
            numbers = (number_text(value, ".2f") for value in (raw, adjusted, adjusted - raw))
            rows.append([diagnosed.domain, short(diagnosed.sim_id), name, *numbers, units])
    columns = ["Domain", "Simulation", "Variable", "Raw", "Adjusted", "Adjusted − raw", "Units"]
    caption = "Change of the median (of precipitation: of the quantile 0.95), mean of the four seasons"
    return Table(columns, rows, caption, folded=len(rows) > 24)
