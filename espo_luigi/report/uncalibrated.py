"""The section of a report about aspects that adjusting made right by construction, and those that it did not touch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from espo_luigi.report.drawings import ADJUSTED, RAW, Drawing, drawing, labels, new_figure, units_text
from espo_luigi.report.page import Heading, Section, Table, Text, Warned
from espo_luigi.report.product_sections import MOST_SERIES, lacking
from espo_luigi.report.reading import Reader
from espo_luigi.report.view import RunView
from espo_luigi.science.diagnose.aspects import ASPECTS, FALSE_DISCOVERIES, LEAST_YEARS, Verdict, verdicts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    found = {key: ds for key, path in view.compared.items() if (ds := reader.dataset(path)) is not None}
    return found, reader


def uncalibrated_section(found: Compared, reader: Reader) -> list[Section]:
    """Return the section; none for a run that has no comparisons to make."""
    if not found and not reader.lacking:
        return []
    judged = {key: of for key, ds in found.items() if (of := list(verdicts(ds)))}
    without = len(found) - len(judged)
    few = f"{without} comparison(s) have no verdict: noise cannot be told from less than {LEAST_YEARS} years."
    cells = "; ".join(sorted({f"{domain}: {ds.attrs.get('cells', '?')}" for (_, domain), ds in found.items()}))
    blocks: list[Any] = [
        Text(_MEANING.format(percent=100 * FALSE_DISCOVERIES) + (f" Sample cells: {cells}." if cells else "")),
        *([Warned(few)] if without else []),
        *lacking(reader),
    ]
    if judged:
        blocks.append(_overview(judged))
    if len(judged) <= MOST_SERIES:
        for key, of in judged.items():
            blocks += _of_pair(key, found[key], of, found)
    else:
        for domain in dict.fromkeys(domain for _, domain in judged):
            of_domain = {key: found[key] for key in judged if key[1] == domain}
            words = f"{domain}, {len(of_domain)} pools"
            blocks += [Heading(words), _drawing(f"calibrated+{domain}", words, list(of_domain.values()))]
    return [Section("Calibrated and not", blocks)]


def first_page(found: Compared) -> list[Any]:
    """Return what the summary says: where adjusting made an aspect worse, and where calibration has failed."""
    judged = {key: list(verdicts(ds)) for key, ds in found.items()}
    count = sum(bool(of) for of in judged.values())
    if not count:
        return []
    worse = _by_aspect(judged, "is_worse", "farther")
    broken = _by_aspect(judged, "is_broken", "adjusted_off")
    blocks: list[Any] = []
    if broken:
        text = (
            "Calibrated, and yet not right beyond noise. Something is broken, or the simulation has too few wet days, "
            "which are kept (docs/explanation/uncalibrated.md):"
        )
        blocks.append(Warned("\n".join([text, *broken])))
    if worse:
        blocks.append(
            Warned("\n".join(["Adjusting has made worse, beyond noise, what it does not calibrate:", *worse]))
        )
    if not blocks:
        said = (
            "Adjusting has made no aspect worse beyond noise that it does not calibrate, and all calibrated are right"
        )
        blocks.append(Text(f"{said} ({count} pair(s) of pool and domain; section “Calibrated and not”)."))
    return blocks


def _by_aspect(judged: Mapping[tuple[str, str], Sequence[Verdict]], which: str, share: str) -> list[str]:
    """A line for each aspect: in how many pairs of pool and domain, and where most."""
    pairs = sum(bool(of) for of in judged.values())
    names = _names(judged)
    found: dict[str, list[tuple[float, str]]] = {}
    for (pool, domain), of in judged.items():
        for one in of:
            if getattr(one, which):
                found.setdefault(one.aspect, []).append((getattr(one, share), f"{names[pool]}, {domain}"))
    return [
        f"• {ASPECTS[name].long_name}: in {len(of)} of {pairs} pair(s) of pool and domain, the most in "
        f"{max(of)[1]} ({100 * max(of)[0]:.0f} % of the cells)"
        for name, of in found.items()
    ]


def _names(pairs: Mapping[tuple[str, str], Any]) -> dict[str, str]:
    pools = list(dict.fromkeys(pool for pool, _ in pairs))
    return dict(zip(pools, labels(pools), strict=True))


def _overview(judged: Mapping[tuple[str, str], Sequence[Verdict]]) -> Table:
    """The verdicts of all pairs: how many pairs have each, and the mean shares of cells."""
    rows = []
    for name, aspect in ASPECTS.items():
        of = [one for each in judged.values() for one in each if one.aspect == name]
        if of:
            pairs = [str(sum(one.word == word for one in of)) for word in ("nearer", "no different", "farther")]
            shares = [f"{100 * np.mean([getattr(one, side) for one in of]):.0f}" for side in _SHARES]
            calibrated = "calibrated" if of[0].calibrated else "not calibrated"
            rows.append((of[0].calibrated, [aspect.long_name, calibrated, *pairs, *shares]))
    ordered = [row for _, row in sorted(rows, key=lambda row: row[0])]
    columns = ["Aspect", "", "Nearer", "No different", "Farther", *_SHARES.values()]
    return Table(columns, ordered, f"Verdicts of {len(judged)} pair(s) of pool and domain, and mean shares of cells")


def _of_pair(key: tuple[str, str], ds: xr.Dataset, of: Sequence[Verdict], found: Compared) -> list[Any]:
    words = f"{key[1]}, {_names(found)[key[0]]}"
    rows = [_row(ds.sel(aspect=one.aspect), one) for one in sorted(of, key=lambda one: one.calibrated)]
    columns = ["Aspect", "Reference", "Raw", "Adjusted", "Noise", "Units", *_SHARES.values(), "Verdict"]
    table = Table(columns, rows, f"{words}: means over the cells, and shares of them", folded=True)
    return [Heading(words), _drawing(f"calibrated+{key[1]}+{key[0]}", words, [ds]), table]


def _row(ds: xr.Dataset, one: Verdict) -> list[str]:
    value, noise = ds["value"].mean("cell"), float(ds["noise"].sel(side="adjusted").mean())
    numbers = [*(float(value.sel(source=name)) for name in ("reference", "raw", "adjusted")), noise]
    shares = [f"{100 * getattr(one, side):.0f}" for side in _SHARES]
    texts = [f"{number:.3g}".replace("-", "−") for number in numbers]
    return [ASPECTS[one.aspect].long_name, *texts, units_text(ASPECTS[one.aspect].units), *shares, one.word]


def _drawing(name: str, words: str, of: Sequence[xr.Dataset]) -> Drawing:
    caption = (
        f"{words}: left, the distance from the reference in units of its noise, the median of the cells (beyond the "
        "dashed line, it is more than noise); right, the share of cells that adjusting brought nearer, or farther"
    )
    return Drawing(name, caption, aspects_figure, [of], {"title": words})


@drawing
def aspects_figure(compared: Sequence[xr.Dataset], *, title: str = "") -> Figure:
    """Draw how far each aspect is from the reference, before and after, and the shares of cells by verdict."""
    names = [name for name in ASPECTS if any(name in ds["aspect"].values for ds in compared)]
    calibrated = {name: any(bool(ds["calibrated"].sel(aspect=name)) for ds in compared) for name in names}
    groups = [("Not calibrated", [name for name in names if not calibrated[name]])]
    groups += [("Calibrated", [name for name in names if calibrated[name]])]
    groups = [(words, of) for words, of in groups if of]
    rows = sum(len(of) for _, of in groups)
    height = 0.19 * rows + 1.6 + 0.3 * len(groups)
    options = {"gridspec_kw": {"height_ratios": [len(of) for _, of in groups]}, "sharex": "col"}
    figure, axes = new_figure(9.6, height, len(groups), 2, **options)
    for (words, of), (left, right) in zip(groups, axes, strict=True):
        _distances(left, compared, of)
        _shares(right, compared, of)
        left.set_yticks(range(len(of)), [ASPECTS[name].long_name for name in of])
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
    found = []
    for ds in compared:
        if name in ds["aspect"].values:
            one = ds.sel(aspect=name)
            away = np.abs(one["value"].sel(source=side).values - one["value"].sel(source="reference").values)
            noise = one["noise"].sel(side=side).values
            # Equal, and nothing to be noise: as in a place without snow.
            found.append(np.divide(away, noise, out=np.where(away > 0, np.inf, 0.0), where=noise > 0))
    median = float(np.nanmedian(np.concatenate(found)))
    return float(np.clip(median, _LEAST_DISTANCE, _MOST_DISTANCE))


def _shares(axes: Any, compared: Sequence[xr.Dataset], names: Sequence[str]) -> None:
    """Bars of the shares of cells that are nearer, no different, and farther."""
    nearer, farther = np.zeros(len(names)), np.zeros(len(names))
    judged = [one for ds in compared for one in verdicts(ds)]
    for row, name in enumerate(names):
        of = [one for one in judged if one.aspect == name]
        if of:
            nearer[row], farther[row] = (
                100 * np.mean([getattr(one, side) for one in of]) for side in ("nearer", "farther")
            )
    begins = np.zeros(len(names))
    bars = {
        "nearer": (nearer, _NEARER),
        "no different within noise": (100 - nearer - farther, _SAME),
        "farther": (farther, _FARTHER),
    }
    for words, (widths, (colour, hatch)) in bars.items():
        axes.barh(
            range(len(names)),
            widths,
            left=begins,
            height=0.7,
            color=colour,
            hatch=hatch,
            edgecolor="white",
            label=words,
        )
        begins = begins + widths
    axes.set_xlim(0, 100)
