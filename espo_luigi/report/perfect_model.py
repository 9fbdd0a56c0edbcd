"""The page about known futures: errors of level and change by method, property and season, over all pairs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from espo_luigi import store
from espo_luigi.methods.perfect_model import ENERGY
from espo_luigi.report.drawings import Drawing, drawing, new_figure, with_pictures
from espo_luigi.report.html import Section, Table, Text, render_page
from espo_luigi.science.chunks import join
from espo_luigi.science.diagnose.statistics import NOISE_QUANTILE
from espo_luigi.science.display import counted, noun, units_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# After Okabe and Ito (2008); marks and places differ, too.
STYLES: dict[str, tuple[str, str]] = {
    "raw": ("#D55E00", "v"),
    "adjusted": ("#0072B2", "o"),
    "Scaling": ("#000000", "x"),
    "QDM": ("#56B4E9", "s"),
    "EQM": ("#E69F00", "D"),
}
# Of further methods, in turn: all places differ, and the marks of these.
FURTHER = (("#CC79A7", "^"), ("#009E73", "P"), ("#F0E442", "*"), ("#CC79A7", "<"), ("#009E73", "X"))
NOISE_COLOUR = "#888888"
TITLES = {"mean": "Mean", "q05": "5 % quantile", "q95": "95 % quantile", "q99": "99 % quantile", "wet_days": "Wet days"}
ASPECTS = {"level": "Error of the level", "change": "Error of the change"}
_MULTIPLES = (
    "≈ marks an error within noise: such methods cannot be told apart. ★ marks the smallest error where none is within "
    "noise. Means, quantiles and wet days are judged by the error of the change; rank correlations (dry days alike) "
    "and the energy distance (of joint distributions, standardised by the truth's) by that of the later periods."
)
_LIMITS = (
    "Each truth is a simulation as it is on the reference's grid: it is coarse, so that nothing here tests the "
    "downscaling, nor the correction of fine patterns.",
    "Models that warm differently have different futures whatever an adjustment does: the difference of their climate "
    "sensitivities dominates the error of the level. Compare methods by the error of the change, and with each other.",
    "If an adjustment makes the calibration period right, the error of its level is that of its change. Where the two "
    "differ, the method does not reproduce the truth's climate even where it was trained.",
    "Noise is the error between two realisations of the truth's climate, from resampled blocks of 5 of its years: 95 % "
    "of such errors are smaller. A raw level has no noise of the calibration, and is judged by the same.",
)

# Of measures of both ways: a title, and whether the truth's value has units.
MEASURES_SHOWN = {
    "mean": ("Mean", True),
    "area_spread": ("Spread of the area mean", True),
    "cell_spread": ("Spread of a cell", True),
    "highest": ("Highest of these years", True),
    "inside": ("Correlation of neighbours in a coarse cell", False),
    "across": ("Correlation of neighbours across coarse cells", False),
    "wet_days": ("Wet days", False),
    "all_dry": ("Days on which all cells are dry", False),
}
_WAYS = (
    "The simulation is the reference, averaged to the coarse grid and calibrated without its years {years}, which are "
    "the truth: `default` adjusts the reference's cells, others coarse cells, and downscale after. Above 0 is too "
    "large, too variable or too much alike; ≈ marks errors within noise, what 95 % of those between two realisations "
    "of this climate stay below. Cells are those of the coarse cells in the middle of the domain."
)
_SEAMS = "Seams: squares lie on the edges of coarse cells, dots inside. Red: neighbours know too little of each other."


@dataclass(frozen=True)
class Pair:
    """A truth and a simulation that is adjusted towards it; `is_control`: both come from the same model."""

    truth: str
    sim_id: str
    is_control: bool
    paths: tuple[Path, ...]


def write_page(
    pairs: Sequence[Pair],
    out: Path,
    marker: store.Marker | None = None,
    processes: int = 0,
    withheld: Path | None = None,
) -> None:
    """Write the page `out`; so many forked processes draw its figures, or, if 0, this process.

    `withheld` is the comparison of both ways.
    """
    sections = (ways_sections(withheld) if withheld else []) + (make_sections(pairs) if pairs or not withheld else [])
    parts = with_pictures(sections, processes)
    of_pairs = f"{counted(len({one.truth for one in pairs}), 'truth')}, {counted(len(pairs), 'pair')}"
    title = f"Known futures: {of_pairs if pairs else 'both ways'}"
    store.write_page(
        render_page(title, f"Made by espo_luigi on {datetime.now(UTC):%Y-%m-%d %H:%M} UTC.", parts), out, marker
    )


def make_sections(pairs: Sequence[Pair]) -> list[Section]:
    """Return the sections, their figures not yet drawn: different models first, then the control."""
    sections = [Section("What this tests, and what not", [Text(text) for text in _LIMITS])]
    for title, kind, is_control in (
        ("Pairs of different models", "pairs", False),
        ("Control: pairs of one model", "control", True),
    ):
        chosen = [pair for pair in pairs if pair.is_control == is_control]
        if not chosen:
            sections.append(Section(title, [Text("There is none.")]))
            continue
        errors = errors_of(chosen)
        sections.append(Section(f"{title}: all methods", [Text(_MULTIPLES), in_noises(errors)]))
        for name in map(str, errors["variable"].values):
            unit = str(errors["units"].sel(variable=name).item())
            text = f"{counted(len(chosen), 'pair')}; means over cells of absolute errors, in {units_text(unit)}."
            drawings = []
            for period in map(str, errors["period"].values):
                caption = (
                    f"{period}, {noun(name)}: a point is a pair, a bar their median; in each season, methods "
                    "stand in the legend's order. Below the grey line an error is within noise: the median over the "
                    "truths of the error that 95 % of two realisations stay below."
                )
                of_period = errors.sel(variable=name, period=period)
                file = f"perfect-{kind}-{name}-{period}"
                drawings.append(Drawing(file, caption, errors_figure, (of_period, unit)))
            sections.append(Section(f"{title}: {noun(name)}", [Text(text), *drawings, everywhere(errors, name)]))
    return sections


def ways_sections(path: Path) -> list[Section]:
    """Return a section of each variable about both ways: adjusting fine cells, and downscaling adjusted coarse ones."""
    both, sections = store.open_store(path).load(), []
    for name in map(str, both["variable"].values):
        of = both.sel(variable=name)
        drawn = Drawing(f"perfect-seams-{name}", _SEAMS, seams_figure, (of[["seam"]],))
        text = Text(_WAYS.format(years=both.attrs["years"]))
        sections.append(Section(f"Both ways: {noun(name)}", [text, ways_table(of), drawn]))
    return sections


def ways_table(both: xr.Dataset) -> Table:
    """Return a variable's errors of both ways in multiples of the noise, and how many of them are within."""
    ways, unit = list(map(str, both["way"].values)), units_text(str(both["units"].item()))
    multiples = (both["error"] / both["noise"]).dropna("measure", how="all")
    rows = []
    for measure in map(str, multiples["measure"].values):
        title, has_units = MEASURES_SHOWN[measure]
        values = multiples.sel(measure=measure).values
        truth = f"{float(both['truth'].sel(measure=measure)):.4g}{f' {unit}' if has_units else ''}"
        rows.append([title, *(f"{value:.1f}{' ≈' if abs(value) <= 1 else ''}" for value in values), truth])
    within = (abs(multiples) <= 1).sum("measure")
    rows.append(["Within noise", *(f"{int(within.sel(way=way))} of {len(rows)}" for way in ways), ""])
    return Table(["", *ways, "Truth"], rows, "Errors in multiples of their noise")


@drawing
def seams_figure(both: xr.Dataset) -> Figure:
    """Draw `seam` (way, pair) as a map of each way: squares lie between coarse cells."""
    ways = list(map(str, both["way"].values))
    figure, axes = new_figure(2.6 * len(ways) + 0.8, 2.8, 1, len(ways))
    most = float(abs(both["seam"]).max())
    points: Any = None
    for panel, way in zip(axes[0], ways, strict=True):
        for is_across, mark, size in ((False, "o", 8), (True, "s", 22)):
            of = both["seam"].sel(way=way)[both["across"].values == is_across]
            options: Any = {"c": of.values, "s": size, "marker": mark, "cmap": "RdBu", "vmin": -most, "vmax": most}
            points = panel.scatter(of["lon"], of["lat"], edgecolors="#888888", linewidths=0.2, **options)
        panel.set_title(way)
    figure.colorbar(points, ax=axes, label="Correlation minus the truth's")
    return figure


def errors_of(pairs: Sequence[Pair]) -> xr.Dataset:
    """Return the mean absolute errors of all pairs, (pair, variable, adjustment, period, season, property), in memory.

    Pieces count by their cells: `level` and `change` by the sampled cells, `level_of_all` and `change_of_all` by all.
    `noise` is the 95 % quantile of the resampled errors.
    """
    labels = np.array([f"{pair.truth} {pair.sim_id}" for pair in pairs], dtype=object)
    each = [_pair([store.open_store(path).load() for path in pair.paths]) for pair in pairs]
    errors: xr.Dataset = join(each, xr.Variable("pair", labels), join="outer")
    return errors


def _pair(pieces: Sequence[xr.Dataset]) -> xr.Dataset:
    names = [name for name in ("level", "change", "dependence") if all(name in piece for piece in pieces)]
    noises = [name for name in ("noise", "dependence_noise") if all(name in piece for piece in pieces)]
    sampled = join([abs(piece[names].reset_coords(drop=True)) for piece in pieces], "cell", join="outer")
    counts = [float(piece["cells"].max()) for piece in pieces]
    whole = sum(
        piece[["level_of_all", "change_of_all"]] * count / sum(counts)
        for piece, count in zip(pieces, counts, strict=True)
    )
    sizes = [piece.sizes["cell"] for piece in pieces]
    noise = sum(piece[noises] * size / sum(sizes) for piece, size in zip(pieces, sizes, strict=True))
    assert isinstance(whole, xr.Dataset)
    assert isinstance(noise, xr.Dataset)
    limits = noise.assign(noise=noise["noise"].quantile(NOISE_QUANTILE, "replicate").drop_vars("quantile"))
    made = xr.merge([sampled.mean("cell"), whole, limits], join="outer", compat="no_conflicts")
    return made.assign_coords(units=pieces[0]["units"])


def in_noises(errors: xr.Dataset) -> Table:
    """Return the errors of all methods in multiples of their noise: means over pairs, variables, seasons, periods.

    Means and quantiles are judged by the error of the change, dependence by that of the later periods.
    """
    columns = {
        TITLES[str(name)]: (errors["change"].sel(property=name), errors["noise"].sel(property=name))
        for name in errors["property"].values
    }
    for name in errors["joint"].values if "joint" in errors else ():
        title = f"Energy distance{name.removeprefix(ENERGY)}" if name.startswith(ENERGY) else f"Rank correlation {name}"
        columns[title] = errors["dependence"].sel(joint=name), errors["dependence_noise"].sel(joint=name)
    over, multiples, rows = ["pair", "period", "season"], dict[str, xr.DataArray](), list[list[str]]()
    for title, (error, noise) in columns.items():
        multiple = error.mean(over) / noise.where(error.notnull()).mean(over)
        multiples[title] = multiple.mean([dim for dim in multiple.dims if dim != "adjustment"])
    for method in errors["adjustment"].values:
        row = [str(method)]
        for of in multiples.values():
            value = float(of.sel(adjustment=method))
            mark = " ≈" if value <= 1 else " ★" if value == float(of.min()) else ""
            row.append(f"{value:.2f}{mark}" if np.isfinite(value) else "–")
        rows.append(row)
    return Table(["Method", *multiples], rows, "Errors in multiples of their noise")


def everywhere(errors: xr.Dataset, name: str) -> Table:
    """Return the errors over all cells, of the methods that are applied to all, by property: means over the rest."""
    of_variable = errors.sel(variable=name)
    names = [
        str(prop) for prop in of_variable["property"].values if of_variable["change"].sel(property=prop).notnull().any()
    ]
    rows = []
    for aspect, words in ASPECTS.items():
        data = of_variable[f"{aspect}_of_all"]
        for method in map(str, of_variable["adjustment"].values):
            values = data.sel(adjustment=method)
            if values.notnull().any():
                each = [f"{float(values.sel(property=prop).mean()):.3g}" for prop in names]
                rows.append([f"{words}, {method}", *each])
    return Table(["Over all cells", *(TITLES[prop] for prop in names)], rows, "Means over pairs, seasons and periods")


@drawing
def errors_figure(errors: xr.Dataset, unit: str) -> Figure:
    """Draw errors (pair, adjustment, season, property) of level and change, a column by property, with the noise."""
    from matplotlib.lines import Line2D

    names = [str(prop) for prop in errors["property"].values if errors["change"].sel(property=prop).notnull().any()]
    figure, axes = new_figure(2.6 * len(names) + 0.6, 5.2, 2, len(names), sharex=True)
    methods = [str(method) for method in errors["adjustment"].values]
    for row, (aspect, words) in enumerate(ASPECTS.items()):
        for column, prop in enumerate(names):
            panel = axes[row, column]
            _panel(panel, errors[aspect].sel(property=prop), errors["noise"].sel(property=prop))
            shown = "1" if prop == "wet_days" else units_text(unit)
            panel.set_title(TITLES[prop] if row == 0 else "")
            panel.set_ylabel(f"{words} [{shown}]" if column == 0 or prop == "wet_days" else "")
    looks: Any = {"markersize": 4, "linewidth": 2}
    handles = [Line2D([], [], color=c, marker=mark, label=of, **looks) for of, (c, mark) in _styles(methods).items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(methods))
    return figure


def _panel(panel: Any, errors: xr.DataArray, noise: xr.DataArray) -> None:
    seasons, methods = (list(map(str, errors[name].values)) for name in ("season", "adjustment"))
    step = 0.8 / len(methods)
    for at, season in enumerate(seasons):
        limit = float(np.median(noise.sel(season=season)))
        panel.plot([at - 0.45, at + 0.45], [limit, limit], color=NOISE_COLOUR, linewidth=1.5, zorder=1)
        for number, method in enumerate(methods):
            place, values = at - 0.4 + (number + 0.5) * step, errors.sel(season=season, adjustment=method).values
            colour, mark = _styles(methods)[method]
            panel.scatter(
                np.full(values.size, place), values, s=9, color=colour, marker=mark, alpha=0.6, linewidths=0.8
            )
            panel.plot([place - step / 2, place + step / 2], [np.median(values)] * 2, color=colour, linewidth=2)
    panel.set_xticks(range(len(seasons)), seasons)
    panel.set_ylim(bottom=0)
    panel.grid(axis="y")


def _styles(methods: Sequence[str]) -> dict[str, tuple[str, str]]:
    further = itertools.cycle(FURTHER)
    return {method: STYLES.get(method) or next(further) for method in methods}
