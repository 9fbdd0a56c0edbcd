"""Maps of a property, with coasts and borders: reference, simulation and scenario on one scale, and their differences.

Lines are Natural Earth's, 1:50 million, in hundredths of a degree (docs/check/report.md). docs/make_natural_earth.py
makes their file.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from espo_luigi import store
from espo_luigi.report.drawings import SEQUENTIAL, Drawing, broken, drawing, label, short, spread_of
from espo_luigi.report.html import Heading, Section, Text, Warned
from espo_luigi.report.reading import Diagnosed, Reader, RunView
from espo_luigi.science import sphere
from espo_luigi.science.conservative import cells_of
from espo_luigi.science.display import as_shown, colours_of_differences, long_name, units_text
from espo_luigi.science.geometry.cells import horizontal_dims
from espo_luigi.science.regrid import horizontal_of
from espo_luigi.science.stations import are_points
from espo_luigi.science.units import as_difference
from espo_luigi.science.variables import VARIABLES, Variable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# More maps than these would make the page heavy and slow: then a rule, which is on the page, chooses.
MOST_MAPS = 50
PANEL_WIDTH = 2.7
# A grey that neither colour map has: white is a difference of 0.
_WITHOUT_DATA = "#dcdcdc"
_UNKNOWN = Variable()
# In the order in which they are drawn and lie in the file.
LINES: Mapping[str, Mapping[str, Any]] = {
    "rivers": {"color": "#86bbe0", "linewidth": 0.5},
    "lakes": {"color": "#86bbe0", "linewidth": 0.7},
    "borders": {"color": "#777777", "linewidth": 0.6},
    "coast": {"color": "black", "linewidth": 0.7},
}


@drawing
def property_maps(
    reference: xr.DataArray,
    simulation: xr.DataArray,
    scenario: xr.DataArray,
    simulation_measure: xr.DataArray,
    scenario_measure: xr.DataArray,
    *,
    title: str = "",
    known: Variable = _UNKNOWN,
) -> Figure:
    """Draw five maps (y, x) of a property: the reference, and simulation and scenario above their measures.

    Reference, simulation and scenario share a scale, and so do the two measures: a bias around 0, a ratio around 1.
    Cells without data are grey; a thin line goes around land cells. Units and the colours of values are those of the
    row of the property's variable; the middle of a diverging colour map is 0 where values have both signs.
    """
    from matplotlib import colormaps

    fields, colours = [as_shown(field, known) for field in (reference, simulation, scenario)], known.colours
    measures = [shown_measure(field, known) for field in (simulation_measure, scenario_measure)]
    figure, grid = _frame(fields[0])
    low, high = spread_of(*fields)
    first, middle, last = colormaps[colours]([0.0, 0.5, 1.0])[:, :3].sum(axis=1)
    if (first < middle) == (last < middle) and low < 0 < high:  # a diverging map
        low, high = -max(abs(low), abs(high)), max(abs(low), abs(high))
    lines = map_lines(fields[0])
    images = [
        draw_map(axes, field, lines, {"vmin": low, "vmax": high, "cmap": colours})
        for axes, field in zip(grid[0], fields, strict=True)
    ]
    scale = {**scale_around(measures), "cmap": colours_of_differences(reference)}
    biases = [draw_map(axes, field, lines, scale) for axes, field in zip(grid[1][1:], measures, strict=True)]
    kind = "ratio to the reference" if is_ratio(measures[0]) else "minus reference"
    for axes in (*grid[0][1:], grid[1][2]):
        axes.set(yticks=[], ylabel="")
    for axes, words in zip(grid[0], ("Reference", "Simulation, raw", "Scenario, adjusted"), strict=True):
        axes.set_title(words)
    for axes, words in zip(grid[1][1:], ("Simulation", "Scenario"), strict=True):
        axes.set_title(f"{words}{', ' if is_ratio(measures[0]) else ' '}{kind}")
    words = kind if is_ratio(measures[0]) else "difference from the reference"
    lower = f"{words[0].upper()}{words[1:]} [{units_text(measures[0].attrs.get('units', ''))}]"
    _scales(figure, grid[1][0], images[0], biases[0], label(fields[0]), lower)
    figure.suptitle(title, y=0.995)
    return figure


@drawing
def share_maps(
    fields: Mapping[str, xr.DataArray], *, title: str, label: str = "", scale: Any = None, wide: float = PANEL_WIDTH
) -> Figure:
    """Draw maps (y, x) of so many inches side by side, each under its words and above its scale, by default from 0."""
    from matplotlib.figure import Figure

    first = next(iter(fields.values()))
    height = min(max(wide / width_by_height(first), 1.2), 4.0)
    label, above = broken(label, int(14 * wide)), 0.75 if title else 0.3
    width, total = len(fields) * (wide + 0.25) + 0.9, height + 1.2 + above
    figure = Figure(figsize=(width, total))
    grid = figure.subplots(1, len(fields), squeeze=False)
    figure.subplots_adjust(left=0.65 / width, right=1 - 0.2 / width, top=1 - above / total, bottom=1.2 / total)
    lines = map_lines(first)
    for axes, (words, field) in zip(grid[0], fields.items(), strict=True):
        image = draw_map(axes, field, lines, scale or {"vmin": 0, "vmax": spread_of(field)[1] or 1, "cmap": SEQUENTIAL})
        axes.set_title(words)
        left, _, across, _ = axes.get_position().bounds
        place = figure.add_axes((left, 0.5 / total, across, 0.12 / total))
        bar = figure.colorbar(image, cax=place, orientation="horizontal")
        bar.set_label(label)
        _set_ticks(bar, 4)
    for axes in grid[0][1:]:
        axes.set(yticks=[], ylabel="")
    figure.suptitle(broken(title, int(9 * width)), y=1 - 0.05 / total)
    return figure


def is_ratio(measure: xr.DataArray) -> bool:
    """Whether a measure is a quotient, by its history, rather than a difference."""
    return "RATIO" in str(measure.attrs.get("history", ""))


def shown_measure(measure: xr.DataArray, known: Variable) -> xr.DataArray:
    """Return a difference in the units of reports, by the variable's row; a ratio as it is; lazy."""
    return measure if is_ratio(measure) else as_shown(as_difference(measure), known)


def areas_of(field: xr.DataArray | xr.Dataset) -> xr.DataArray:
    """Return the areas (y, x) of a map's cells, 0 where unknown; all are 1 of stations, and without `lat` and `lon`."""
    if are_points(field) or not {"lat", "lon"} <= {*field.coords}:
        return xr.DataArray(np.ones([field.sizes[dim] for dim in horizontal_dims(field)]), dims=horizontal_dims(field))
    horizontal = horizontal_of(field.coords.to_dataset(), "grid")
    areas = cells_of(horizontal.grid.with_square_cells()).areas().reshape(horizontal.grid.shape)
    return xr.DataArray(np.nan_to_num(areas), dims=horizontal.dims)


def _frame(field: xr.DataArray) -> tuple[Figure, Any]:
    """A figure with two rows of three places, as high as the maps need."""
    from matplotlib.figure import Figure

    height = min(max(PANEL_WIDTH / width_by_height(field), 1.2), 4.0)
    total = 2 * height + 1.75
    figure = Figure(figsize=(3 * PANEL_WIDTH + 1.6, total))
    grid = figure.subplots(2, 3, squeeze=False)
    figure.subplots_adjust(
        left=0.075, right=0.98, top=1 - 0.55 / total, bottom=0.48 / total, wspace=0.12, hspace=0.72 / height
    )
    return figure, grid


def width_by_height(field: xr.DataArray) -> float:
    """Width by height of the field on the ground."""
    (south, north), (west, east) = (spread_of(edges) for edges in edges_around(field))
    return (east - west) * _shrinking(field) / (north - south)


def _shrinking(field: xr.DataArray) -> float:
    """How long a degree along x is in degrees along y; 1 on a rotated grid, whose equator lies in its middle."""
    y = "lat" if are_points(field) else horizontal_dims(field)[0]
    return float(np.cos(np.deg2rad(float(field[y].mean())))) if y == "lat" else 1.0


def places_of(field: xr.DataArray) -> tuple[np.ndarray, np.ndarray]:
    """Return latitudes and longitudes of stations, in degrees, the longitudes on one side of the date line."""
    lat, lon = (field[name].values.ravel() for name in ("lat", "lon"))
    return lat, lon - 360 * np.round((lon - lon[0]) / 360)


def edges_around(field: xr.DataArray) -> tuple[np.ndarray, np.ndarray]:
    """Return the edges of a map's rows and columns, or of a frame around stations."""
    if not are_points(field):
        y, x = horizontal_dims(field)
        return edges_of(field[y].values), edges_of(field[x].values)
    margin = max(0.25, 0.1 * max(np.ptp(axis) for axis in places_of(field)))
    south_north, west_east = (np.array([axis.min() - margin, axis.max() + margin]) for axis in places_of(field))
    return south_north, west_east


def draw_map(axes: Any, field: xr.DataArray, lines: Mapping[str, np.ndarray], scale: Mapping[str, Any]) -> Any:
    """Draw a map (y, x), or stations, with the lines of `map_lines`; return what has the colours of `scale`."""
    y, x = horizontal_dims(field)
    values = field.transpose(y, x).values.astype(float)
    rows, columns = edges_around(field)
    if are_points(field):
        y, x, (lat, lon) = "lat", "lon", places_of(field)
        drawn, known = {"s": 26, "edgecolors": "#444444", "linewidths": 0.5, "zorder": 3}, np.isfinite(values.ravel())
        axes.scatter(lon[~known], lat[~known], c=_WITHOUT_DATA, **drawn)
        image = axes.scatter(lon[known], lat[known], c=values.ravel()[known], **drawn, **scale)
        axes.set(xlim=columns, ylim=rows)
    else:
        axes.set_facecolor(_WITHOUT_DATA)
        image = axes.pcolorfast(columns, rows, np.ma.masked_invalid(values), **scale)
        land = np.isfinite(values)
        row, edge = np.nonzero(land[:, 1:] != land[:, :-1])
        upright = np.stack([columns[edge + 1], rows[row], columns[edge + 1], rows[row + 1]], axis=-1)
        edge, column = np.nonzero(land[1:] != land[:-1])
        level = np.stack([columns[column], rows[edge + 1], columns[column + 1], rows[edge + 1]], axis=-1)
        _lines(axes, np.concatenate([upright, level]).reshape(-1, 2, 2), color="#666666", linewidth=0.4)
    for kind, pieces in lines.items():
        _lines(axes, pieces, **LINES[kind])
    axes.set_aspect(1 / _shrinking(field))
    axes.set_xlabel(_axis(field[x], "Longitude", "degrees_east"))
    axes.set_ylabel(_axis(field[y], "Latitude", "degrees_north"))
    axes.locator_params(axis="x", nbins=4, prune="both")
    axes.locator_params(axis="y", nbins=5)
    return image


def _axis(coord: xr.DataArray, name: str, units: str) -> str:
    words = long_name(coord) if coord.attrs else name
    return f"{words} [{units_text(coord.attrs.get('units', units))}]"


def edges_of(centres: np.ndarray) -> np.ndarray:
    """The bounds of cells from their centres; a single cell is a degree wide."""
    values = np.asarray(centres, float)
    return sphere.edges_of(values) if len(values) > 1 else values[0] + np.array([-0.5, 0.5])


def _lines(axes: Any, pieces: np.ndarray, **style: Any) -> None:
    """Draw pieces as a single line with gaps, in a fifth of the time of a line each."""
    from matplotlib.lines import Line2D

    with_gaps = np.concatenate([pieces, np.full((len(pieces), 1, 2), np.nan)], axis=1)
    axes.add_artist(Line2D(*with_gaps.reshape(-1, 2).T, solid_capstyle="round", **style))


def scale_around(measures: list[xr.DataArray]) -> dict[str, Any]:
    """A scale that both measures share: symmetric around 0, or around 1 for ratios."""
    from matplotlib.colors import LogNorm

    low, high = spread_of(*measures)
    if not is_ratio(measures[0]) or low <= 0:
        most = max(abs(low), abs(high)) or 1.0
        return {"vmin": -most, "vmax": most}
    most = max(high, 1 / low, 1.01)
    return {"norm": LogNorm(1 / most, most)}


def _scales(figure: Figure, place: Any, field: Any, measure: Any, upper: str, lower: str) -> None:
    """Put both colour bars where the second row has no map."""
    place.set_axis_off()
    inch = 1 / (place.get_position().height * figure.get_figheight())
    for image, top, words in ((field, 0.0, upper), (measure, 0.78, lower)):
        place_of_bar = place.inset_axes((0.0, 1 - (top + 0.14) * inch, 0.85, 0.14 * inch))
        bar = figure.colorbar(image, cax=place_of_bar, orientation="horizontal")
        bar.set_label(broken(words, 38))
        _set_ticks(bar, 5)


def _set_ticks(bar: Any, most: int) -> None:
    from matplotlib.ticker import NullFormatter, ScalarFormatter

    if bar.norm.__class__.__name__ == "LogNorm":
        bar.ax.xaxis.set_minor_formatter(NullFormatter())
        bar.ax.xaxis.set_major_formatter(ScalarFormatter())
        bar.set_ticks([float(f"{value:.2g}") for value in np.geomspace(bar.norm.vmin, bar.norm.vmax, 3)])
    else:
        bar.ax.locator_params(axis="x", nbins=most)


_STEPS_OF_A_DEGREE = 100
# The difference of two unit vectors, about 10 km on the ground, below which they are the same place.
_SAME_PLACE = 2e-3


def map_lines(field: xr.DataArray) -> dict[str, np.ndarray]:
    """Return the pieces of lines in a map (y, x), each (piece, end, coordinate), x before y, in the map's coordinates.

    They are of the kinds of `LINES`; of a kind without a line in the map, there is none. The grid is of longitudes and
    latitudes, or rotated with 2-D `lat` and `lon`; on other grids the result is empty.
    """
    y, x = horizontal_dims(field)
    ends = _in_coordinates_of(field, y, x)
    if ends is None:
        return {}
    rows, columns = places_of(field) if are_points(field) else (field[y].values, field[x].values)
    middle = (columns.min() + columns.max()) / 2
    ends[..., 0] -= 360 * np.round((ends[:, :1, 0] - middle) / 360)
    low = np.array([columns.min(), rows.min()]) - 1
    high = np.array([columns.max(), rows.max()]) + 1
    inside = ((ends >= low) & (ends <= high)).all(axis=-1).any(axis=-1)
    shown = inside & (np.abs(ends[:, 1] - ends[:, 0]).max(axis=-1) < 90)
    return {kind: ends[of] for at, kind in enumerate(LINES) if (of := shown & (line_pieces()[1] == at)).any()}


def _in_coordinates_of(field: xr.DataArray, y: str, x: str) -> np.ndarray | None:
    pieces, _ = line_pieces()
    if (y, x) == ("lat", "lon") or are_points(field):
        return pieces.copy()
    if not {"lat", "lon"} <= set(field.coords):
        return None
    geographic = sphere.unit_vectors(*(field[name].transpose(y, x).values for name in ("lat", "lon"))).reshape(-1, 3)
    own = sphere.unit_vectors(*np.meshgrid(field[y].values, field[x].values, indexing="ij")).reshape(-1, 3)
    # The rotation that brings the unit vectors nearest to each other (Kabsch, 1976).
    left, _, right = np.linalg.svd(geographic.T @ own)
    turn = left @ np.diag([1, 1, np.sign(np.linalg.det(left @ right))]) @ right
    if np.abs(geographic @ turn - own).max() > _SAME_PLACE:
        return None
    vectors = sphere.unit_vectors(*np.moveaxis(pieces[..., ::-1], -1, 0)) @ turn
    longitudes = np.arctan2(vectors[..., 1], vectors[..., 0])
    return np.rad2deg(np.stack([longitudes, np.arcsin(vectors[..., 2].clip(-1, 1))], axis=-1))


@functools.cache
def line_pieces() -> tuple[np.ndarray, np.ndarray]:
    """Return all pieces between neighbouring points of lines, (piece, end, coordinate), in degrees, and their kinds.

    Kinds are numbers in `LINES`.
    """
    with files("espo_luigi.report").joinpath("natural_earth.npz").open("rb") as file:
        stored = np.load(file)
        steps, firsts, kinds = stored["steps"], stored["firsts"], stored["kinds"]
    # Steps are differences of 16 bits: their sums are right in 16 bits, whatever overflows between.
    points = np.cumsum(steps, axis=1, dtype=np.int16).T / _STEPS_OF_A_DEGREE
    joined = np.ones(len(points) - 1, bool)
    joined[firsts[1:] - 1] = False
    return np.stack([points[:-1], points[1:]], axis=1)[joined], kinds[1:][joined]


def maps_section(view: RunView, shares: Mapping[tuple[str, str], xr.DataArray]) -> Section:
    """Return the section of maps: of every simulation, or, where that is too many, of the least improved simulation."""
    reader, blocks = Reader(), list[Any]()
    names = {str(name) for one in shares.values() for name in one["properties"].values}
    every = len(view.diagnosed) * len(names) <= MOST_MAPS
    for domain in view.domains:
        of_domain = [one for one in view.diagnosed if one.domain == domain]
        wanted = {name: of_domain if every else _least_improved(name, of_domain, shares) for name in sorted(names)}
        needed = dict.fromkeys(one for of in wanted.values() for one in of)
        there = {one for one in needed if all([reader.has(path) for path in _five(one)])}
        blocks += [Heading(domain)] if there else []
        for name, of in wanted.items():
            for one in [one for one in of if one in there]:
                words, ds = f"{domain}, {short(one.sim_id)}", reader.dataset(one.reference, load=False)
                caption = f"{long_name(ds[name]) if ds is not None and name in ds else name}: {words}"
                of_map = [_five(one), name, words, row_of(name, view.table)]
                blocks.append(Drawing(f"map+{name}+{domain}+{one.sim_id}", caption, draw_maps, of_map))
    rule = (
        "Maps of every simulation."
        if every
        else f"Of {len(view.diagnosed)} pairs of simulation and domain, each property is shown of the simulation in "
        "which the share of improved cells is the lowest in that domain."
    )
    text = (
        f"{rule} Reference, simulation and scenario share a scale, and so do the two measures. Cells without data (the "
        "sea) are grey; a thin grey line goes around those that have some. Coasts are black, borders grey, lakes and "
        "rivers blue (Natural Earth)."
    )
    if not names:
        blocks.append(Warned("No share of improved cells is there, which says what properties there are to map."))
    return Section("Maps", [Text(text), *reader.warned(), *blocks])


def _least_improved(
    name: str, of_domain: Sequence[Diagnosed], shares: Mapping[tuple[str, str], xr.DataArray]
) -> list[Diagnosed]:
    known = {
        diagnosed: float(share.sel(properties=name))
        for diagnosed in of_domain
        if (share := shares.get((diagnosed.domain, diagnosed.sim_id))) is not None and name in share["properties"]
    }
    return sorted((diagnosed for diagnosed in known if not math.isnan(known[diagnosed])), key=known.__getitem__)[:1]


def _five(diagnosed: Diagnosed) -> tuple[Path, ...]:
    return diagnosed.reference, diagnosed.sim_prop, diagnosed.scen_prop, diagnosed.sim_meas, diagnosed.scen_meas


def row_of(name: str, table: Mapping[str, Variable] = VARIABLES) -> Variable:
    """Return the row of a property's variable: the last variable in the property's name, such as q99_tasmax."""
    known = [part for part in name.split("_") if part in table]
    return table[known[-1]] if known else Variable()


def draw_maps(stores: Sequence[Path], name: str, words: str, known: Variable) -> Figure:
    """Draw the five maps of a property from the stores of `property_maps`; only that property is read."""
    five = [store.open_store(path, check=False, cut=False)[name].load() for path in stores]
    return property_maps(*five, title=f"{long_name(five[0])}: {words}", known=known)
