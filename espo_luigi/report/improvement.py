"""The sections of what improved: the share of improved cells, and aspects that are calibrated by the method, or not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from espo_luigi import store
from espo_luigi.report.distributions import MOST_SERIES
from espo_luigi.report.drawings import ADJUSTED, RAW, Drawing, drawing, labels, new_figure, number_text
from espo_luigi.report.html import Heading, Section, Table, Text, Warned
from espo_luigi.report.reading import Reader, RunView
from espo_luigi.science.chunks import join
from espo_luigi.science.diagnose import diagnosis
from espo_luigi.science.diagnose.added_value import FALSE_DISCOVERIES, LEAST_YEARS, Verdict, described, verdicts
from espo_luigi.science.display import counted, units_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# ESPO-G6-R2 v1.0.0 (RDRS v2.1, 1989-2018), Magtogoek, SSP3-7.0: mean of 14 models, lowest, highest; read off the
# published heatmap's colours, to 0.02.
PUBLISHED: dict[str, tuple[float, float, float]] = {
    "mean_tasmax": (1.00, 0.99, 1.00),
    "q01_tasmax": (0.98, 0.93, 1.00),
    "q99_tasmax": (0.99, 0.98, 1.00),
    "mean_tasmin": (1.00, 0.99, 1.00),
    "q01_tasmin": (0.84, 0.48, 0.97),
    "q99_tasmin": (0.73, 0.47, 0.95),
    "mean_pr": (0.96, 0.90, 0.99),
    "q95_pr": (0.96, 0.94, 0.99),
    "q99_pr": (0.90, 0.84, 1.00),
    "dry_spell_freq": (0.86, 0.70, 1.00),
    "aca_tasmax": (0.97, 0.89, 1.00),
    "aca_tasmin": (0.98, 0.95, 1.00),
    "aca_pr": (0.86, 0.79, 0.91),
    "max_warm_spell": (0.81, 0.73, 0.86),
    "wet_wet": (0.86, 0.64, 0.99),
    "dry_wet": (0.62, 0.33, 0.91),
    "max_dry_spell": (0.78, 0.61, 0.86),
    "corr_tasmax_tasmin": (0.94, 0.88, 0.97),
    "corr_tasmax_pr": (0.91, 0.51, 1.00),
}
PUBLISHED_ROW = "ESPO-G6-R2, published"


def in_published_order(table: xr.DataArray) -> xr.DataArray:
    """Return a table with its properties in the order of ESPO-G6-R2's heatmap; further properties come last."""
    names = [str(name) for name in table["properties"].values]
    known = [name for name in PUBLISHED if name in names]
    plain = table.assign_coords(properties=names)
    return plain.sel(properties=[*known, *(name for name in names if name not in known)])


@drawing
def improvement_matrix(improved: xr.DataArray, *, title: str = "") -> Figure:
    """Draw the share of improved cells, (realization, properties), below the published values of ESPO-G6-R2, if any."""
    table = improved.transpose("realization", "properties")
    rows = [str(name) for name in table["realization"].values]
    properties = [str(name) for name in table["properties"].values]
    values = np.asarray(table.values, float)
    if any_published := not PUBLISHED.keys().isdisjoint(properties):
        known = [PUBLISHED.get(name, (np.nan,))[0] for name in properties]
        rows, values = [PUBLISHED_ROW, *rows], np.vstack([known, values])
    figure = _table(rows, properties, values, colours="cividis", text="{:.2f}", label="Share of\nimproved cells [1]")
    axes = figure.axes[0]
    if any_published:
        axes.axhline(0.5, color="white", linewidth=3)
    axes.set_title(title)
    return figure


@drawing
def heatmap_figure(heatmap: xr.DataArray, *, title: str = "") -> Figure:
    """Draw the distances from the reference, (realization, properties), rescaled per property: 0 is the nearest."""
    table = heatmap.transpose("realization", "properties")
    rows, columns = ([str(name) for name in table[dim].values] for dim in table.dims)
    label = "Rescaled distance [1]\n0 nearest, 1 farthest"
    figure = _table(rows, columns, table.values, colours="cividis_r", text="{:.2f}", label=label)
    figure.axes[0].set_title(title)
    return figure


def _table(
    rows: Sequence[str], columns: Sequence[str], values: np.ndarray, *, colours: str, text: str, label: str
) -> Figure:
    from matplotlib import colormaps

    longest = max(map(len, rows), default=0)
    left, beside, above, below = 0.2 + 0.068 * longest, 1.1, 0.35, 0.15 + 0.05 * max(map(len, columns), default=0)
    width, height = left + 0.4 * len(columns) + beside, above + max(0.25 * len(rows), 1.1) + below
    figure, ((axes,),) = new_figure(width, height, layout=None)
    figure.subplots_adjust(left=left / width, right=1 - beside / width, top=1 - above / height, bottom=below / height)
    shade = colormaps[colours].with_extremes(bad="white")
    image = axes.imshow(np.ma.masked_invalid(values), vmin=0, vmax=1, cmap=shade, aspect="auto")
    axes.set_xticks(range(len(columns)), columns, rotation=50, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(rows)), rows)
    axes.tick_params(length=0)
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            red, green, blue, _ = shade(float(value))
            dark = 0.3 * red + 0.6 * green + 0.1 * blue < 0.5
            looks: Any = {"ha": "center", "va": "center", "fontsize": 7, "color": "white" if dark else "black"}
            axes.text(column, row, text.format(value), **looks)
    figure.colorbar(
        image, cax=axes.inset_axes((1 + 0.3 / (0.4 * len(columns)), 0, 0.15 / (0.4 * len(columns)), 1)), label=label
    )
    return figure


def improvement_section(view: RunView) -> tuple[Section, dict[tuple[str, str], xr.DataArray]]:
    """Return the section, and the shares of improved cells by domain and simulation."""
    reader, blocks = Reader(), list[Any]()
    shares = {
        (diagnosed.domain, diagnosed.sim_id): improved["improved_grid_points"].assign_attrs(improved.attrs)
        for diagnosed in view.diagnosed
        if (improved := reader.dataset(diagnosed.improvement)) is not None
    }
    for domain in view.domains:
        of_domain = {sim: share for (at, sim), share in shares.items() if at == domain}
        if of_domain:
            names = [[str(name) for name in share["properties"].values] for share in of_domain.values()]
            rows = [share.assign_coords(properties=of) for share, of in zip(of_domain.values(), names, strict=True)]
            realization = xr.Variable("realization", list(labels(of_domain).values()))
            ordered = in_published_order(join(rows, realization, join="outer"))
            caption = f"{domain}: share of improved cells, by simulation and property"
            matrix = Drawing(f"improvement+{domain}", caption, improvement_matrix, [ordered], {"title": domain})
            told = [Text(f"Cells: {share.attrs['cells']}.") for share in rows[:1] if "cells" in share.attrs]
            blocks += [Heading(domain), *told, matrix, *_heatmap_of(domain, view, reader)]
    text = (
        "The share of the domain's cells in which the scenario is at least as near to the reference as the raw "
        "simulation is, property by property: 1 where no cell has become worse. It is measured over the period of the "
        "diagnostics, which is the calibration period unless the configuration names a different one: it shows the "
        "fit, and not the skill in other years. "
    )
    published = (
        "The first row is ESPO-G6-R2 v1.0.0 as published: the mean "
        "of 14 models over Magtogoek, SSP3-7.0, calibrated on RDRS v2.1 over 1989-2018, read off "
        "the published heatmap to 0.02; another domain, another reference and other models than here, to compare with "
        "in general terms only."
    )
    measured = {str(name) for share in shares.values() for name in share["properties"].values}
    if not measured or measured & PUBLISHED.keys():
        text += published
    return Section("Improvement", [Text(text), *reader.warned(), *blocks]), shares


def _heatmap_of(domain: str, view: RunView, reader: Reader) -> list[Any]:
    names = labels(view.simulations)
    paths = {
        f"{names[diagnosed.sim_id]}, {kind}": path
        for diagnosed in view.diagnosed
        for kind, path in (("raw", diagnosed.sim_meas), ("adjusted", diagnosed.scen_meas))
        if diagnosed.domain == domain and reader.has(path)
    }
    caption = (
        f"{domain}: mean distance of each property from the reference's, rescaled over the rows; 0 is the nearest "
        "dataset, 1 the farthest"
    )
    return [Drawing(f"heatmap+{domain}", caption, draw_heatmap, [paths, domain])] if paths else []


def draw_heatmap(measures: Mapping[str, Path], title: str) -> Figure:
    """Draw the heatmap of stores of measures, by row."""
    opened = {row: store.open_store(path, cut=False) for row, path in measures.items()}
    distances = diagnosis.heatmap(opened)["heatmap"].compute()
    return heatmap_figure(in_published_order(distances), title=title)


# Comparisons by pool and domain.
Compared = Mapping[tuple[str, str], xr.Dataset]
_NEARER, _SAME, _FARTHER = ("#0072B2", ""), ("#DDDDDD", ""), ("#D55E00", "////")
# Beyond these, distances in units of noise are drawn at the margin.
_LEAST_DISTANCE, _MOST_DISTANCE = 0.05, 100.0
_BEYOND_NOISE = 1.96
# The shares of cells in tables: the last two are of cells that differ from the reference beyond noise.
_SHARES = {
    "nearer": "Nearer [%]",
    "farther": "Farther [%]",
    "raw_off": "Raw beyond noise [%]",
    "adjusted_off": "Adjusted beyond noise [%]",
}
_MEANING = (
    "Quantile mapping makes the means and quantiles of the adjusted variables right by construction; this says nothing "
    "about spells, persistence, variability between years, or what variables and cells have in common. For each aspect "
    "and cell: is the adjusted simulation nearer to the reference than the raw one, or farther, by more than noise? "
    "Noise comes from resampling the years of the reference and, independently, those of the simulation; raw and "
    "adjusted, and the members of a pool, get the same years. A change that is smaller than the noise of the adjusted "
    "value counts as no different. At most {percent:.0f} % of the verdicts about cells are "
    "expected to be false, and an aspect in which nothing differs gets a verdict in at most {percent:.0f} % of cases. "
    "The value of a pool is the mean of its members' values."
)


def read_compared(view: RunView) -> tuple[dict[tuple[str, str], xr.Dataset], Reader]:
    """Return the comparisons that are there."""
    reader = Reader()
    compared = {key: ds for key, path in view.compared.items() if (ds := reader.dataset(path)) is not None}
    return compared, reader


def uncalibrated_section(compared: Compared, reader: Reader) -> list[Section]:
    """Return the section; none for a run that has no comparisons to make."""
    if not compared and not reader.lacking:
        return []
    judged = {key: of for key, ds in compared.items() if (of := list(verdicts(ds)))}
    without = len(compared) - len(judged)
    few = f"{counted(without, 'comparison')} without a verdict: noise needs {LEAST_YEARS} years or more."
    cells = "; ".join(sorted({f"{domain}: {ds.attrs.get('cells', '?')}" for (_, domain), ds in compared.items()}))
    blocks: list[Any] = [
        Text(_MEANING.format(percent=100 * FALSE_DISCOVERIES) + (f" Sample cells: {cells}." if cells else "")),
        *([Warned(few)] if without else []),
        *reader.warned(),
    ]
    if judged:
        blocks.append(_overview(judged))
    if len(judged) <= MOST_SERIES:
        columns = ["Aspect", "Reference", "Raw", "Adjusted", "Noise", "Units", *_SHARES.values(), "Verdict"]
        names = labels(pool for pool, _ in compared)
        for (pool, domain), of in judged.items():
            words, ds = f"{domain}, {names[pool]}", compared[pool, domain]
            ordered = sorted(of, key=lambda verdict: verdict.calibrated)
            rows = [_row(ds.sel(aspect=verdict.aspect), verdict) for verdict in ordered]
            table = Table(columns, rows, f"{words}: means over the cells, and shares of them", folded=True)
            blocks += [Heading(words), _drawing_of_aspects(f"calibrated+{domain}+{pool}", words, [ds]), table]
    else:
        for domain in dict.fromkeys(domain for _, domain in judged):
            of_domain = {key: compared[key] for key in judged if key[1] == domain}
            words = f"{domain}, {len(of_domain)} pools"
            blocks += [Heading(words), _drawing_of_aspects(f"calibrated+{domain}", words, list(of_domain.values()))]
    return [Section("Calibrated and not", blocks)]


def aspects_in_doubt(compared: Compared) -> Iterator[tuple[str, float]]:
    """Yield what adjusting made worse, and where calibration has failed: a sentence, and the largest share of cells."""
    judged = {key: of for key, ds in compared.items() if (of := list(verdicts(ds)))}
    names, shares = labels(pool for pool, _ in judged), dict[str, list[tuple[float, str]]]()
    for (pool, domain), of in judged.items():
        for verdict in of:
            words, share = "calibrated, and yet not right beyond noise", verdict.adjusted_off
            if verdict.is_worse:
                words, share = "not calibrated, and made worse beyond noise", verdict.farther
            if verdict.is_worse or verdict.is_broken:
                shares.setdefault(f"{verdict.long_name}: {words}", []).append((share, f"{names[pool]}, {domain}"))
    for told, where in shares.items():
        most = f"the most in {max(where)[1]} ({100 * max(where)[0]:.0f} % of the cells)"
        yield f"{told} in {len(where)} of {counted(len(judged), 'pair')} of pool and domain, {most}", max(where)[0]


def _overview(judged: Mapping[tuple[str, str], Sequence[Verdict]]) -> Table:
    """The verdicts of all pairs: how many pairs have each, and the mean shares of cells."""
    rows = []
    for name in dict.fromkeys(verdict.aspect for each in judged.values() for verdict in each):
        of = [verdict for each in judged.values() for verdict in each if verdict.aspect == name]
        pairs = [str(sum(verdict.word == word for verdict in of)) for word in ("nearer", "no different", "farther")]
        shares = [f"{100 * np.mean([getattr(verdict, side) for verdict in of]):.0f}" for side in _SHARES]
        calibrated = "calibrated" if of[0].calibrated else "not calibrated"
        rows.append((of[0].calibrated, [of[0].long_name, calibrated, *pairs, *shares]))
    ordered = [row for _, row in sorted(rows, key=lambda row: row[0])]
    columns = ["Aspect", "", "Nearer", "No different", "Farther", *_SHARES.values()]
    return Table(columns, ordered, f"Verdicts of {counted(len(judged), 'pair')} of pool and domain, shares of cells")


def _row(ds: xr.Dataset, verdict: Verdict) -> list[str]:
    value, noise = ds["value"].mean("cell"), float(ds["noise"].sel(side="adjusted").mean())
    numbers = [*(float(value.sel(source=name)) for name in ("reference", "raw", "adjusted")), noise]
    shares = [f"{100 * getattr(verdict, side):.0f}" for side in _SHARES]
    return [verdict.long_name, *map(number_text, numbers), units_text(verdict.units), *shares, verdict.word]


def _drawing_of_aspects(name: str, words: str, of: Sequence[xr.Dataset]) -> Drawing:
    caption = (
        f"{words}: left, the distance from the reference in units of its noise, the median of the cells (beyond the "
        "dashed line, it is more than noise); right, the share of cells that adjusting brought nearer, or farther"
    )
    return Drawing(name, caption, aspects_figure, [of], {"title": words})


@drawing
def aspects_figure(compared: Sequence[xr.Dataset], *, title: str = "") -> Figure:
    """Draw how far each aspect is from the reference, before and after, and the shares of cells by verdict."""
    words_of = {str(name): described(ds, str(name))[0] for ds in compared for name in ds["aspect"].values}
    names = list(words_of)
    calibrated = {name: any(bool(ds["calibrated"].sel(aspect=name)) for ds in compared) for name in names}
    both = {"Not calibrated": False, "Calibrated": True}
    groups = [(w, of) for w, is_so in both.items() if (of := [name for name in names if calibrated[name] == is_so])]
    rows = sum(len(of) for _, of in groups)
    height = 0.19 * rows + 1.6 + 0.3 * len(groups)
    options = {"gridspec_kw": {"height_ratios": [len(of) for _, of in groups]}, "sharex": "col"}
    figure, axes = new_figure(9.6, height, len(groups), 2, **options)
    for (words, of), (left, right) in zip(groups, axes, strict=True):
        _distances(left, compared, of)
        _shares(right, compared, of)
        left.set_yticks(range(len(of)), [words_of[name] for name in of])
        left.set_title(words, loc="left", fontweight="bold")
        right.set_yticks([])
        for place in (left, right):
            place.set_ylim(len(of) - 0.4, -0.6)
    axes[-1][0].set_xlabel("Distance : noise [1]")
    axes[-1][1].set_xlabel("Share of cells [%]")
    handles = [*axes[0][0].get_legend_handles_labels()[0], *axes[0][1].get_legend_handles_labels()[0]]
    figure.legend(handles=handles, loc="outside lower center", ncols=6, handlelength=1.6, columnspacing=1.4)
    figure.suptitle(title)
    return figure


def _distances(axes: Any, compared: Sequence[xr.Dataset], names: Sequence[str]) -> None:
    """A line from the raw distance to the adjusted one."""
    sides = {side: [_distance(compared, name, side) for name in names] for side in ("raw", "adjusted")}
    rows = range(len(names))
    axes.hlines(rows, sides["raw"], sides["adjusted"], color="#888888", linewidth=1)
    axes.plot(sides["raw"], rows, "D", color=RAW["color"], markerfacecolor="white", markersize=4, label="raw")
    axes.plot(sides["adjusted"], rows, "o", color=ADJUSTED["color"], markersize=4.5, label="adjusted")
    axes.axvline(_BEYOND_NOISE, color="#000000", linestyle="--", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlim(0.8 * _LEAST_DISTANCE, 1.25 * _MOST_DISTANCE)
    axes.set_xticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
    axes.grid(True)


def _distance(compared: Sequence[xr.Dataset], name: str, side: str) -> float:
    """The median of the cells of all comparisons."""
    distances = []
    for ds in compared:
        if name in ds["aspect"].values:
            aspect = ds.sel(aspect=name)
            away = np.abs(aspect["value"].sel(source=side).values - aspect["value"].sel(source="reference").values)
            noise = aspect["noise"].sel(side=side).values
            # Equal, and nothing to be noise: as in a place without snow.
            distances.append(np.divide(away, noise, out=np.where(away > 0, np.inf, 0.0), where=noise > 0))
    median = float(np.nanmedian(np.concatenate(distances)))
    return float(np.clip(median, _LEAST_DISTANCE, _MOST_DISTANCE))


def _shares(axes: Any, compared: Sequence[xr.Dataset], names: Sequence[str]) -> None:
    """Bars of the shares of cells that are nearer, no different, and farther."""
    judged = [verdict for ds in compared for verdict in verdicts(ds)]
    of_aspects = [[verdict for verdict in judged if verdict.aspect == name] for name in names]
    nearer, farther = (
        np.array([100 * np.mean([getattr(verdict, side) for verdict in of]) if of else 0.0 for of in of_aspects])
        for side in ("nearer", "farther")
    )
    begins = np.zeros(len(names))
    for words, widths, (colour, hatch) in (
        ("nearer", nearer, _NEARER),
        ("no different within noise", 100 - nearer - farther, _SAME),
        ("farther", farther, _FARTHER),
    ):
        looks: Any = {"color": colour, "hatch": hatch, "edgecolor": "white", "label": words}
        axes.barh(range(len(names)), widths, left=begins, height=0.7, **looks)
        begins = begins + widths
    axes.set_xlim(0, 100)
