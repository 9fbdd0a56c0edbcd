"""How figures look, and drawing them: in this process or in several forked processes.

Colour-blind people can distinguish the colours; axes carry CF's long names and units. Functions import matplotlib where
they use it, since most processes import this package and draw nothing.
"""

from __future__ import annotations

import functools
import gc
import io
import logging
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np
import xarray as xr

from espo_luigi.replacing import by_content
from espo_luigi.report.html import Picture, Section, Warned
from espo_luigi.science.display import long_name, units_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# After Okabe and Ito (2008), with lines that differ in grey, too.
REFERENCE: dict[str, Any] = {"color": "#000000", "linestyle": "-", "linewidth": 1.8, "zorder": 3}
RAW: dict[str, Any] = {"color": "#D55E00", "linestyle": "--", "linewidth": 1.2}
ADJUSTED: dict[str, Any] = {"color": "#0072B2", "linestyle": "-", "linewidth": 1.4}
# Of single years, below their running means.
THIN: dict[str, Any] = {"linewidth": 0.5, "linestyle": "-", "alpha": 0.6}
STYLES = {"reference": REFERENCE, "raw": RAW, "adjusted": ADJUSTED}
SEQUENTIAL = "viridis"
DOTS_PER_INCH = 100
# In the metadata of pictures that commands write under a name of the user's.
PICTURE_MARK = "drawn by espo_luigi"
PICTURE_OF_OURS = by_content(lambda content: PICTURE_MARK.encode() in content, "a picture that espo_luigi has drawn")

_SETTINGS: Any = {
    "font.size": 8,
    "axes.titlesize": 8.5,
    # Else matplotlib looks for a free place above each axes, which takes a fifth of the time.
    "axes.titley": 1.0,
    "axes.labelsize": 8,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "legend.fontsize": 8,
    "figure.titlesize": 10,
    "axes.grid": False,
    "grid.color": "#dddddd",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "savefig.facecolor": "white",
}
Parameters = ParamSpec("Parameters")
OfYears = TypeVar("OfYears", xr.Dataset, xr.DataArray)


def drawing(function: Callable[Parameters, Figure]) -> Callable[Parameters, Figure]:
    """Have a function draw in the style of the report, whatever else the process draws."""

    @functools.wraps(function)
    def drawn(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Figure:
        import matplotlib

        with matplotlib.rc_context(_SETTINGS):
            return function(*args, **kwargs)

    return drawn


def new_figure(
    width: float, height: float, rows: int = 1, columns: int = 1, *, layout: Any = "constrained", **options: Any
) -> tuple[Figure, Any]:
    """Return a figure of so many inches, which no list of open figures holds, and its axes (rows, columns).

    A constrained layout finds margins when it is drawn, which takes as long as drawing it.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout=layout)
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def panels(
    width: float, height: float, rows: int, columns: int, *, between: float = 1.0, **options: Any
) -> tuple[Figure, Any]:
    """Return a figure as `new_figure` does, with fixed margins: for titles, the labels of each axis, and a legend.

    So many inches are `between` the rows.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    shared = options.get("sharey") == "row"
    axes_width = (width - 0.95 - (columns - 1) * (0.2 if shared else 0.75)) / columns
    axes_height = (height - 1.57 - (rows - 1) * between) / rows
    figure.subplots_adjust(
        left=0.82 / width,
        right=1 - 0.13 / width,
        top=1 - 0.80 / height,
        bottom=0.77 / height,
        wspace=(0.2 if shared else 0.75) / axes_width,
        hspace=between / axes_height,
    )
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def panels_of(count: int, height: float, each: int = 1) -> tuple[Figure, Any]:
    """Return a figure with panels of so many inches for each of `count` variables, and each variable's `each` panels.

    The panels of a variable stand below each other, those of up to three variables side by side, the others' below.
    """
    columns = 2 if count == 4 else min(count, 3)
    rows = each * -(-count // columns)
    figure, axes = panels(3.6 + 2.0 * columns, round(1.57 + rows * height + (rows - 1) * 1.0, 2), rows, columns)
    of_variables = np.concatenate(np.split(axes, rows // each), axis=1).T
    for place in of_variables[count:].flat:
        place.remove()
    return figure, of_variables[:count]


def png(figure: Figure) -> bytes:
    """Return a figure as the bytes of a PNG file."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=DOTS_PER_INCH)
    return file.getvalue()


def picture(figure: Figure, suffix: str, dots_per_inch: int) -> bytes:
    """Return a figure as the bytes of a file of a PNG, SVG or PDF, which says that it is ours."""
    file = io.BytesIO()
    said = {"Software" if suffix == ".png" else "Creator": PICTURE_MARK}
    figure.savefig(file, format=suffix[1:], dpi=dots_per_inch, metadata=said)
    return file.getvalue()


def label(da: xr.DataArray, *, name: str = "") -> str:
    """Return an axis' label: the long name (or other words) and the units."""
    return f"{name or long_name(da)} [{units_text(da.attrs.get('units', ''))}]"


def all_years(data: OfYears) -> OfYears:
    """Return series (time or year) with all years from the first to the last along `year`, NaN where there was none."""
    if "year" not in data.dims:
        data = data.assign_coords(year=("time", data["time"].dt.year.values)).swap_dims(time="year").drop_vars("time")
    return data.reindex(year=np.arange(*data["year"].values[[0, -1]] + [0, 1]))


def running_means(data: xr.DataArray) -> xr.DataArray:
    """Return the means of ten years around each of `all_years`; NaN where there are fewer."""
    return data.rolling(year=10, center=True).mean()


def broken(words: str, width: int) -> str:
    """Return words in lines of so many characters."""
    return "\n".join(textwrap.wrap(words, width))


def spread_of(*arrays: Any) -> tuple[float, float]:
    """Return the lowest and the highest finite value of all, (0, 1) if there is none; a scale that all can share."""
    finite = [np.asarray(array, float)[np.isfinite(np.asarray(array, float))] for array in arrays]
    values = np.concatenate([array.ravel() for array in finite]) if finite else np.array([])
    return (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)


def short(sim_id: str) -> str:
    """Return a simulation's source, experiment and member, if its id has CMIP6's seven parts, else the id.

    Of a regional model's nine parts, its driving model and member take the member's place.
    """
    parts = sim_id.split("_")
    if len(parts) == 9:
        return f"{parts[5]} {parts[6]} by {parts[2]} {parts[3]}"
    return " ".join(parts[3:6]) if len(parts) == 7 else sim_id


def labels(sim_ids: Iterable[str]) -> dict[str, str]:
    """Return the name of each simulation by its id: the short name, or the id where simulations share it."""
    ids = list(dict.fromkeys(sim_ids))
    times = Counter(map(short, ids))
    return {sim_id: short(sim_id) if times[short(sim_id)] == 1 else sim_id for sim_id in ids}


def number_text(value: float, form: str = ".3g") -> str:
    """Return a number as the report's tables have it, with a real minus; a dash for none."""
    return f"{value:{form}}".replace("-", "−") if np.isfinite(value) else "–"


logger = logging.getLogger(__name__)

_OBJECTS_BETWEEN_COLLECTIONS = 200_000


@dataclass(frozen=True, eq=False)
class Drawing:
    """A figure to be drawn by `draw`, a function of a module; `arguments` are pickled for the process that draws."""

    name: str
    caption: str
    draw: Callable[..., Figure]
    arguments: Sequence[Any] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def drawn(self) -> Picture | Warned:
        """Return the picture, or a paragraph about why it could not be drawn."""
        try:
            return Picture(self.name, png(self.draw(*self.arguments, **self.options)), self.caption)
        except Exception as error:  # a chunk that cannot be read raises whatever its codec does
            return Warned(f"{self.caption}: could not be drawn ({type(error).__name__}: {error})")


def with_pictures(sections: Sequence[Section], processes: int = 0) -> list[Section]:
    """Return the sections with their drawings drawn by so many forked processes, or, if 0, by this process."""
    drawings = [block for section in sections for block in section.blocks if isinstance(block, Drawing)]
    done = dict(zip(map(id, drawings), _each(drawings, processes), strict=True))
    return [replace(section, blocks=[done.get(id(block), block) for block in section.blocks]) for section in sections]


def _each(drawings: Sequence[Drawing], processes: int) -> list[Picture | Warned]:
    if not processes or len(drawings) < 2:
        return [drawing.drawn() for drawing in drawings]
    # A forked process shares this process's imports and fonts, which take as long as drawing ten figures.
    png(new_figure(1, 1)[0])
    done: list[Picture | Warned] = []
    try:
        with ProcessPoolExecutor(processes, get_context("fork"), _alone) as pool:
            done.extend(pool.map(Drawing.drawn, drawings))
    except BrokenProcessPool:
        left = len(drawings) - len(done)
        logger.warning("A process that draws figures was killed: %d of them are drawn by this one", left)
        done += [drawing.drawn() for drawing in drawings[len(done) :]]
    return done


def _alone() -> None:
    """Have a forked process compute by itself: the threads of its parent's pools are not in it."""
    import dask

    dask.config.set(scheduler="synchronous")
    # A figure is a hundred thousand objects: the garbage collector, which goes through all again and again, takes a
    # quarter of the time.
    gc.freeze()
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
