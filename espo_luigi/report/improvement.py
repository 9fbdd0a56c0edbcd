"""Figures of what improved: the share of improved cells, and which dataset is how far from the reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from espo_luigi.report.drawings import drawing, new_figure

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
    """Draw the share of improved cells, (realization, properties), beside the published values of ESPO-G6-R2."""
    table = improved.transpose("realization", "properties")
    rows = [PUBLISHED_ROW, *(str(name) for name in table["realization"].values)]
    properties = [str(name) for name in table["properties"].values]
    known = [PUBLISHED.get(name, (np.nan,))[0] for name in properties]
    values = np.vstack([known, np.asarray(table.values, float)])
    figure = _table(rows, properties, values, colours="cividis", text="{:.2f}", label="Share of\nimproved cells [1]")
    axes = figure.axes[0]
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
    _write_values(axes, values, text, shade)
    figure.colorbar(
        image, cax=axes.inset_axes((1 + 0.3 / (0.4 * len(columns)), 0, 0.15 / (0.4 * len(columns)), 1)), label=label
    )
    return figure


def _write_values(axes: Any, values: np.ndarray, text: str, shade: Any) -> None:
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            red, green, blue, _ = shade(float(value))
            dark = 0.3 * red + 0.6 * green + 0.1 * blue < 0.5
            words = text.format(value)
            axes.text(column, row, words, ha="center", va="center", fontsize=7, color="white" if dark else "black")
