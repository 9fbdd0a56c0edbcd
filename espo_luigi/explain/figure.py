"""A figure of a way: the calibration's quantiles, with the day's value before and after."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from espo_luigi.errors import ParameterError
from espo_luigi.explain.values import Adjusted, Way
from espo_luigi.replacing import check_ours, write_ours
from espo_luigi.report.drawings import PICTURE_OF_OURS, drawing, new_figure, picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# After Okabe and Ito (2008).
_REFERENCE, _SIMULATION, _DAY = "#0072B2", "#E69F00", "#D55E00"
_TO_MM = {"kg m-2 s-1": (86400.0, "mm d$^{-1}$")}
SUFFIXES = (".png", ".svg", ".pdf")


def draw(way: Way, path: Path) -> None:
    """Draw the quantiles of each adjusted variable's sample, and the day's value before and after; write `path`.

    Raises
    ------
    ParameterError
        If the file's suffix is none of those that can be drawn.
    """
    check_suffix(path)
    write_ours(path, picture(figure_of(way), path.suffix, 150), PICTURE_OF_OURS)


def check_suffix(path: Path) -> None:
    """Raise an error unless the file's suffix can be drawn, and any file there is a drawing of ours."""
    if path.suffix not in SUFFIXES:
        raise ParameterError(f"--plot {path}: expected a file of {', '.join(SUFFIXES)}.")
    check_ours(path, PICTURE_OF_OURS)


@drawing
def figure_of(way: Way) -> Figure:
    """Return the figure: a panel for each adjusted variable."""
    shown = list(way.adjusted.values())
    figure, axes = new_figure(4.2 * len(shown), 3.8, 1, len(shown))
    for ax, adjusted in zip(axes[0], shown, strict=True):
        _draw_variable(ax, adjusted)
    name = "\n".join(textwrap.wrap(way.sim_id.replace("_", " "), 48 * len(shown)))
    figure.suptitle(f"{name}\n{way.cell}, {way.day.date}", fontsize=9)
    return figure


def _root(values: np.ndarray) -> np.ndarray:
    return np.sqrt(np.maximum(values, 0))


def _draw_variable(ax: Axes, adjusted: Adjusted) -> None:
    factor, units = _TO_MM.get(adjusted.units, (1.0, adjusted.units))
    sample = adjusted.sample
    levels = [100 * level for level in sample.levels]
    ax.plot(levels, [factor * one for one in sample.reference], color=_REFERENCE, label="reference")
    ax.plot(levels, [factor * one for one in sample.simulation], color=_SIMULATION, label="simulation")
    rank = 100 * sample.rank
    before, after = factor * adjusted.regridded.value, factor * adjusted.value
    ax.annotate(
        "", (rank, after), (rank, before), arrowprops={"arrowstyle": "->", "color": _DAY, "shrinkA": 0, "shrinkB": 0}
    )
    ax.plot([rank], [before], "o", color=_DAY, mfc="white", label="the day, simulated")
    ax.plot([rank], [after], "o", color=_DAY, label="the day, adjusted")
    if adjusted.units in _TO_MM:
        ax.set_yscale("function", functions=(_root, np.square))
        ax.set_ylim(0, 1.1 * factor * max(*sample.reference, *sample.simulation, adjusted.value))
    ax.set_xlabel("quantile of the sample (%)")
    ax.set_ylabel(f"{adjusted.var} ({units})")
    ax.set_title(f"{sample.window} days, {sample.first_year}-{sample.last_year}", fontsize=9)
    ax.legend(fontsize=7, frameon=False)
